"""Generation: what a response becomes depends on the seed, its prompt and its number, and on nothing else."""

import copy
import gc
import itertools
import random

import numpy as np
import pytest
import torch
import transformers
from support.models import ENDS, tiny

from brim.core.errors import BrimError, LengthError, MismatchError, OptionError
from brim.data.tokenizer.base import ByteTokenizer
from brim.generate.config import GenerationConfig
from brim.generate.decode import loop as loop_module
from brim.generate.decode.cache import RowCache
from brim.generate.decode.sampler import SampledRow
from brim.generate.law import draw
from brim.generate.model import CausalModel
from brim.generate.processor import SequenceProcessor
from brim.generate.rollouts import Rollouts
from brim.generate.uniforms import prompt_keys, response_uniforms

KINDS = ["llama", "qwen2", "gpt2"]
LENGTHS = (5, 17, 1, 40, 9, 9)
EOS = 258
G = 3


@pytest.fixture(scope="module")
def models():
    return {kind: tiny(kind) for kind in KINDS}


@pytest.fixture(scope="module")
def prompts():
    generator = np.random.default_rng(0)
    return [generator.integers(0, 255, size).tolist() for size in LENGTHS]


def make(model, **options):
    return SequenceProcessor(model, ByteTokenizer(), GenerationConfig(**{"max_new_tokens": 16, "seed": 3, **options}))


def edges(model, ids, temperature):
    """The cumulative distribution after some tokens, by one forward pass in double precision behind the model."""
    logits = model(input_ids=torch.tensor([ids])).logits[0, -1].detach().double().numpy() / temperature
    weights = np.exp(logits - logits.max())
    return np.cumsum(weights) / weights.sum()


def naive(model, prompt, key, sample, *, seed=3, limit=16, temperature=1.0):
    """The definition: read everything again before each token, and invert the cumulative distribution."""
    tokens = []
    for share in response_uniforms(limit, seed=seed, key=key, sample=sample):
        tokens.append(int(np.searchsorted(edges(model, [*prompt, *tokens], temperature), share, side="right")))
        if tokens[-1] == EOS:
            break
    return tokens


def responses(rollouts):
    return [rollouts.response(index).tolist() for index in range(len(rollouts))]


@pytest.mark.parametrize("kind", KINDS)
def test_responses_are_those_of_the_definition(models, prompts, kind):
    model = models[kind]
    rollouts = make(model, temperature=0.9).generate_batched(prompts[:4], G=2).record()
    keys = prompt_keys([np.array(prompt, np.int32) for prompt in prompts[:4]])
    expected = [naive(model, prompts[b], keys[b], g, temperature=0.9) for b in range(4) for g in range(2)]
    assert responses(rollouts) == expected
    assert any(rollouts.reason(index) == "eos" for index in range(8)) or all(len(one) == 16 for one in expected)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {}),
        ("qwen2", {}),
        ("gpt2", {}),
        ("llama", {"temperature": 0.8, "top_k": 50, "top_p": 0.9}),
        ("gpt2", {"do_sample": False}),
    ],
)
def test_the_batch_size_and_the_order_of_prompts_change_nothing_and_log_probs_are_the_scored_ones(
    models, prompts, kind, options
):
    first = make(models[kind], gen_batch_size=1, **options).generate_batched(prompts, G=G).record()
    for size in (7, 64):
        found = make(models[kind], gen_batch_size=size, **options).generate_batched(prompts, G=G).record()
        assert responses(found) == responses(first)
    turned = make(models[kind], **options).generate_batched(prompts[::-1], G=G).record()
    expected = [responses(first)[b * G : (b + 1) * G] for b in reversed(range(len(prompts)))]
    # Prompts 4 and 5 differ in their tokens, so each has its own responses wherever it stands.
    assert responses(turned) == list(itertools.chain(*expected))
    processor = make(models[kind], **options)
    scored = processor.teacher_force_logprobs(first)
    columns = zip(first.split(first.logprobs), first.split(first.entropies), strict=True)
    for index, (logprobs, entropies) in enumerate(columns):
        b, g = divmod(index, G)
        assert np.allclose(scored.logprobs[b][g].numpy(), logprobs, atol=1e-5)
        assert np.allclose(scored.entropies[b][g], entropies, atol=1e-5)
    if options.get("do_sample", True):
        law = {name: value for name, value in options.items() if name != "do_sample"}
        sampling = processor.teacher_force_logprobs(first, **law)
        flat = np.concatenate([column.numpy() for row in sampling.logprobs for column in row])
        assert np.allclose(flat, first.sampling_logprobs, atol=1e-5)
    else:
        assert (first.sampling_logprobs == 0).all()


@pytest.mark.parametrize("seed", range(6))
def test_running_out_of_memory_at_random_moments_changes_nothing(models, prompts, monkeypatch, seed):
    """It fails while reading prompts, in the middle of a step, while the cache grows, and while tokens are drawn."""
    model = models["llama"]
    expected = make(model).generate_batched(prompts, G=G).record()
    dice = random.Random(seed)
    failures = itertools.count()

    def failing(function, chance, size):
        def call(*given, **options):
            # One row alone always fits.
            if size(*given) > 1 and dice.random() < chance and next(failures) < 5:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
            return function(*given, **options)

        return call

    processor = make(model, gen_batch_size=64)
    list(processor.stream(["a"], 1))  # checks the model
    layer = model.model.layers[1].mlp
    monkeypatch.setattr(layer, "forward", failing(layer.forward, 0.2, len))
    monkeypatch.setattr(RowCache, "_grow", failing(RowCache._grow, 0.5, lambda cache, rows, columns: rows))
    monkeypatch.setattr("brim.generate.decode.sampler.draw", failing(draw, 0.15, lambda logits, *_: len(logits)))
    seen = []
    found = Rollouts.collect(
        [np.array(prompt, np.int32) for prompt in prompts],
        (seen.append(one) or one for one in processor.stream(prompts, G)),
        G=G,
        seed=3,
    )
    assert processor.stats.memory_errors > 0
    assert responses(found) == responses(expected)
    assert np.allclose(found.logprobs, expected.logprobs, atol=1e-5)
    assert len(seen) == len(prompts) * G
    assert processor._generation.learnt_rows < 64  # it remembers


def test_one_response_that_does_not_fit_is_an_error_and_what_ended_before_is_kept(models, prompts, monkeypatch):
    model = copy.deepcopy(models["llama"])
    processor = make(model, gen_batch_size=1)
    stream = processor.stream(prompts, 2)
    kept = [next(stream), next(stream)]
    layer = model.model.layers[0].mlp

    def full(hidden):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1099511627776 bytes")

    monkeypatch.setattr(layer, "forward", full)
    with pytest.raises(BrimError, match=r"one response alone runs out of memory: \d+ tokens of the prompt and"):
        list(stream)
    assert len(kept) == 2


def test_equal_prompts_have_responses_of_their_own_and_a_new_seed_gives_new_ones(models):
    processor = make(models["llama"])
    rollouts = processor.generate_batched(["ab", "ab"], G=2).record()
    assert len({tuple(one) for one in responses(rollouts)}) == 4
    again = processor.generate_batched(["ab", "ab"], G=2).record()
    assert responses(again) == responses(rollouts)
    other = processor.generate_batched(["ab", "ab"], G=2, seed=4).record()
    assert responses(other) != responses(rollouts)
    free = make(models["llama"], seed=None)
    one, two = (free.generate_batched(["ab"], G=1).record() for _ in range(2))
    assert one.seed != two.seed
    repeated = free.generate_batched(["ab"], G=1, seed=one.seed).record()
    assert responses(repeated) == responses(one)


def test_what_is_skipped_is_not_generated_and_the_rest_is_as_before(models, prompts):
    processor = make(models["llama"])
    every = {(one.prompt, one.sample): one for one in processor.stream(prompts, G)}
    skip = {(b, g) for b, g in every if (b + g) % 3 == 0} | {(2, g) for g in range(G)}
    some = {(one.prompt, one.sample): one for one in processor.stream(prompts, G, skip=skip)}
    assert some.keys() == every.keys() - skip
    assert all(np.array_equal(one.token_ids, every[key].token_ids) for key, one in some.items())


def test_a_prompt_is_read_once_for_all_its_responses(models, prompts):
    for size in (1, 3, 64):
        processor = make(models["llama"], gen_batch_size=size)
        list(processor.stream(prompts, G))
        assert processor.stats.read_tokens == sum(LENGTHS)
        assert processor.stats.finished == len(prompts) * G


def test_the_token_budget_bounds_the_cache_and_one_row_above_it_is_an_error(models, prompts, monkeypatch):
    seen = []
    begin = RowCache.begin_step

    def watched(self):
        lengths = begin(self)
        seen.append(len(lengths) * max(lengths))
        return lengths

    monkeypatch.setattr(RowCache, "begin_step", watched)
    expected = make(models["llama"]).generate_batched(prompts, G=G).record()
    assert max(seen) > 200
    seen.clear()
    found = make(models["llama"], gen_token_budget=200).generate_batched(prompts, G=G).record()
    assert max(seen) <= 200
    assert responses(found) == responses(expected)
    with pytest.raises(LengthError, match="a prompt of 40 tokens and a response of up to 16 take 56 tokens, more than"):
        make(models["llama"], gen_token_budget=45).generate_batched(prompts, G=1)
    with pytest.raises(LengthError, match="more than the budget of 1; raise gen_token_budget"):
        make(models["llama"], memory_budget=1000).generate_batched(prompts, G=1)


def test_several_end_tokens_are_honoured_kept_and_scored_wherever_they_are_set(prompts):
    model = tiny("llama")
    model.generation_config.eos_token_id = [10, 20, 30, 40]
    model.config.eos_token_id = 50
    processor = make(model, max_new_tokens=200)
    ends = {10, 20, 30, 40, 50, EOS}
    assert set(processor.end_tokens) == ends
    sequences = processor.generate_batched(prompts, G=8)
    rollouts = sequences.record()
    reasons = {rollouts.reason(index) for index in range(len(rollouts))}
    assert "eos" in reasons
    for index, tokens in enumerate(responses(rollouts)):
        assert not ends & set(tokens[:-1])
        assert (tokens[-1] in ends) == (rollouts.reason(index) == "eos")
        b, g = divmod(index, 8)
        start, size = sequences.prompt_lens[b], sequences.gen_lens[b][g]
        assert sequences.sequences[b, g, :start].tolist() == prompts[b]
        assert sequences.sequences[b, g, start : start + size].tolist() == tokens
        assert int(sequences.attention_masks[b, g].sum()) == start + size


def test_prompts_may_contain_the_padding_and_the_end_token(models):
    """The byte tokenizer pads with 256; here it also ends with it, as tokenizers with pad = eos do."""

    class PadIsEnd(ByteTokenizer):
        eos_id = pad_id = 256
        bos_id = 257

    prompt = [256, 65, 256, 256, 66, 256]
    processor = SequenceProcessor(models["gpt2"], PadIsEnd(), GenerationConfig(max_new_tokens=12, seed=1))
    sequences = processor.generate_batched([prompt, [65]], G=3)
    rollouts = sequences.record()
    assert sequences.attention_masks[0, 0, :6].tolist() == [1] * 6
    scored = processor.teacher_force_logprobs(sequences)
    for index, logprobs in enumerate(rollouts.split(rollouts.logprobs)):
        b, g = divmod(index, 3)
        ids = torch.tensor([[*rollouts.prompt(b).tolist(), *rollouts.response(index).tolist()]])
        whole = torch.log_softmax(models["gpt2"](input_ids=ids).logits[0].detach(), dim=1)
        start = len(rollouts.prompt(b))
        expected = [float(whole[start - 1 + n, token]) for n, token in enumerate(rollouts.response(index).tolist())]
        assert np.allclose(logprobs, expected, atol=1e-5)
        assert np.allclose(scored.logprobs[b][g].numpy(), expected, atol=1e-5)


def test_stops_end_a_response_for_good_and_are_recorded(models, prompts):
    free = make(models["llama"], max_new_tokens=60).generate_batched(prompts, G=G).record()
    processor = make(models["llama"], max_new_tokens=60, stop=("e", 200))
    stopped = processor.generate_batched(prompts, G=G).record()
    reasons = []
    for index, tokens in enumerate(responses(stopped)):
        whole = responses(free)[index]
        hits = [at for at, token in enumerate(whole) if token in (ord("e"), 200, EOS)]
        expected = whole[: hits[0] + 1] if hits else whole
        assert tokens == expected
        reasons.append(stopped.reason(index))
        assert reasons[-1] == ("length" if not hits else "eos" if whole[hits[0]] == EOS else "stop")
    assert "stop" in reasons


def test_the_model_and_the_global_generators_are_left_as_they_were(prompts):
    model = tiny("llama")
    model.train()
    model.model.layers[0].eval()
    config = model.config.to_dict()
    torch.manual_seed(11)
    random.seed(11)
    np.random.seed(11)
    before = (torch.random.get_rng_state(), random.getstate(), np.random.get_state()[1].copy())
    processor = make(model)
    stream = processor.stream(prompts, 2)
    next(stream)
    assert model.training  # while the caller has a response, too
    list(stream)
    processor.teacher_force_logprobs(processor.generate_batched(prompts, G=2), with_grad=True)
    assert model.training
    assert not model.model.layers[0].training
    assert model.model.layers[1].training
    assert model.config.to_dict() == config
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.array_equal(np.random.get_state()[1], before[2])


@pytest.mark.parametrize("kind", ["window", "capped", "mamba"])
def test_models_whose_cache_cannot_select_rows_take_a_slower_path_and_say_so(prompts, kind):
    if kind == "window":
        model = tiny("mistral", sliding_window=8)
    elif kind == "capped":
        model = tiny("gemma2", head_dim=16)
        model.set_attn_implementation("eager")
    else:
        torch.manual_seed(0)
        shape = transformers.MambaConfig(vocab_size=300, hidden_size=32, num_hidden_layers=2, state_size=4, **ENDS)
        model = transformers.MambaForCausalLM(shape).eval()
    processor = make(model, max_new_tokens=12)
    with pytest.warns(RuntimeWarning, match="generated with one prompt at a time, which is slower, because"):
        rollouts = processor.generate_batched(prompts[:3], G=2).record()
    keys = prompt_keys([np.array(prompt, np.int32) for prompt in prompts[:3]])
    expected = [naive(model, prompts[b], keys[b], g, limit=12) for b in range(3) for g in range(2)]
    assert responses(rollouts) == expected


def test_a_model_that_ignores_our_attention_is_noticed_before_anything_is_generated(models, prompts, monkeypatch):
    monkeypatch.setattr(CausalModel, "attending", lambda self, layout: torch.no_grad())
    processor = make(models["llama"], max_new_tokens=6)
    with pytest.warns(RuntimeWarning, match="one prompt at a time"):
        found = processor.generate_batched(prompts[:3], G=2).record()
    monkeypatch.undo()
    expected = make(models["llama"], max_new_tokens=6).generate_batched(prompts[:3], G=2).record()
    assert responses(found) == responses(expected)


def test_logits_that_are_not_finite_end_the_stream_after_what_is_finished(prompts):
    model = tiny("llama", positions=64)
    processor = make(model, gen_batch_size=4, max_new_tokens=40)
    stream = processor.stream(prompts, 2)
    kept = [next(stream)]
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(BrimError, match=r"logits for response \d to prompt \d are not finite after \d+ tokens"):
        kept.extend(stream)
    assert kept


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        ([], {}, OptionError, "there are no prompts"),
        ("abc", {}, OptionError, "prompts must be a list of prompts, got one text: 'abc'"),
        (["a", ""], {}, OptionError, "prompt 1 is empty"),
        (["a", []], {}, OptionError, "prompt 1 is empty: it has no tokens"),
        ([[1.5]], {}, OptionError, "prompt 0 must be a text, messages or token ids"),
        ([[5, 300]], {}, MismatchError, "prompt 0 has the token 300, the model knows 300 tokens"),
        ([[-1]], {}, MismatchError, "prompt 0 has the token -1"),
        (["a" * 512], {}, LengthError, "prompt 0 has 512 tokens, the model's context is 512"),
        (["a"], {"G": 0}, OptionError, "G must be at least 1, got 0"),
        (["a"], {"gen_batch_size": 0}, OptionError, "gen_batch_size must be at least 1, got 0"),
        (["a"], {"seed": -1}, OptionError, "seed must be an integer that is not negative, got -1"),
        (["a"], {"stop": ("",)}, OptionError, "must not be an empty text"),
        (["a"], {"stop": (300,)}, OptionError, "the stop 300 is not the id of a token"),
    ],
)
def test_bad_input_is_one_clear_line_with_the_value(models, given, options, error, message):
    with pytest.raises(error, match=message):
        make(models["llama"]).generate_batched(given, **options)


def test_a_response_ends_where_the_models_context_ends(models):
    rollouts = make(models["gpt2"], max_new_tokens=100).generate_batched(["a" * 500], G=3).record()
    for index in range(3):
        size = len(rollouts.response(index))
        assert size == 12 or rollouts.reason(index) == "eos"
        assert rollouts.reason(index) == "length" or size < 12


def test_reading_is_planned_by_length_under_a_budget(models, monkeypatch):
    shapes = []
    read = loop_module._Run._read_prompts

    def watched(self, jobs):
        shapes.append([len(job.ids) for job in jobs])
        return read(self, jobs)

    processor = make(models["llama"], max_new_tokens=1, gen_batch_size=256)
    list(processor.stream(["a"], 1))  # checks the model
    monkeypatch.setattr(loop_module._Run, "_read_prompts", watched)
    generator = np.random.default_rng(1)
    many = [generator.integers(0, 255, size).tolist() for size in generator.integers(1, 300, 64)]
    list(processor.stream(many, 2))
    assert sorted(itertools.chain(*shapes)) == sorted(len(one) for one in many)
    assert all(len(shape) * max(shape) <= 4096 for shape in shapes)
    slots = sum(len(shape) * max(shape) for shape in shapes)
    assert sum(map(sum, shapes)) / slots > 0.75  # 64 prompts of 1 to 300 tokens in four parts


def test_on_a_larger_model_every_difference_between_batch_sizes_is_a_near_tie(capsys):
    """19 million weights: the last bits of a product depend on its shape, and a uniform number can lie that near to an
    edge of the cumulative distribution."""
    shape = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 4}
    torch.manual_seed(0)
    config = transformers.Qwen2Config(vocab_size=32000, num_key_value_heads=2, **shape, **ENDS)
    model = transformers.Qwen2ForCausalLM(config).eval()
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, 255, size).tolist() for size in (20, 7, 33, 60)]
    runs = [
        make(model, gen_batch_size=size, max_new_tokens=20).generate_batched(prompts, G=4).record() for size in (1, 16)
    ]
    keys = prompt_keys([np.array(prompt, np.int32) for prompt in prompts])
    ties = 0
    for index, (one, other) in enumerate(zip(*map(responses, runs), strict=True)):
        if one == other:
            continue
        at = next(n for n, pair in enumerate(itertools.zip_longest(one, other)) if pair[0] != pair[1])
        b, g = divmod(index, 4)
        share = response_uniforms(at + 1, seed=3, key=keys[b], sample=g)[at]
        assert np.abs(edges(model, [*prompts[b], *one[:at]], 1.0) - share).min() < 1e-5
        ties += 1
    with capsys.disabled():
        print(f"[{ties} of 16 responses differ between batch sizes, each by a near-tie]")


def test_finished_responses_are_not_kept_in_memory(models):
    """A stream can be longer than memory: what the caller has taken is gone."""
    processor = make(models["llama"], max_new_tokens=3, gen_batch_size=4)
    most = 0
    for number, _ in enumerate(processor.stream([f"prompt {n}" for n in range(40)], 2)):
        if number % 30 == 29:
            most = max(most, sum(type(one) is SampledRow and bool(one.tokens) for one in gc.get_objects()))
    assert 0 < most <= 10
