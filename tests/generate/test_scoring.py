"""Teacher forcing: every layout gives what the model computes for one sequence at a time, and so do its gradients."""

import copy
import warnings

import numpy as np
import peft
import pytest
import torch
from support.models import tiny
from support.runs import on_ranks

from brim.core.errors import BrimError, DataError, LengthError, OptionError
from brim.data.tokenizer.base import ByteTokenizer
from brim.generate.attention import Tree
from brim.generate.config import GenerationConfig, Law
from brim.generate.law import restricted
from brim.generate.processor import SequenceProcessor
from brim.generate.rollouts import Response, Rollouts
from brim.generate.score import selected as selected_module
from brim.generate.score.diagnostics import NAMES
from brim.generate.score.forward import Forward
from brim.generate.score.selected import Head, select
from brim.generate.sequences import BatchedSequences

KINDS = ["llama", "qwen2", "gpt2"]
LAYOUTS = ["tree", "bucket", "one"]
WEIGHT = 0.1


@pytest.fixture(scope="module")
def models():
    return {kind: tiny(kind) for kind in KINDS}


def some_rollouts(seed=0, prompts=(5, 17, 1, 40), group=3, vocab=300, longest=30):
    """Ragged groups of random tokens, with an empty response and one of a single token."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, longest, (len(prompts), group))
    lengths[0, 0], lengths[-1, -1] = 0, 1
    responses = [
        Response(
            prompt=b,
            sample=g,
            text="",
            finish_reason="length",
            token_ids=random.integers(0, vocab, lengths[b, g]).astype(np.int32),
        )
        for b in range(len(prompts))
        for g in range(group)
    ]
    ids = [random.integers(0, vocab, size).astype(np.int32) for size in prompts]
    return Rollouts.collect(ids, responses, G=group, seed=0)


def naive(model, rollouts, law):
    """The definition: one sequence at a time, whole logits, double precision behind the model."""
    for index in range(len(rollouts)):
        prompt, response = rollouts.prompt(index // rollouts.G), rollouts.response(index)
        ids = torch.from_numpy(np.concatenate([prompt, response]).astype(np.int64))[None]
        logits = model(input_ids=ids).logits[0].double() / law.temperature
        at = torch.arange(len(prompt) - 1, len(prompt) + len(response) - 1)
        logprobs = torch.log_softmax(restricted(logits[at], law), dim=1)
        kept = logprobs > -torch.inf
        entropies = -torch.where(kept, logprobs.exp() * logprobs.masked_fill(~kept, 0), 0.0).sum(dim=1)
        yield logprobs.gather(1, torch.from_numpy(response.astype(np.int64))[:, None])[:, 0], entropies


def assert_equal(found, expected):
    """Compare [B][G] tensors."""
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        assert all(torch.allclose(a.detach(), b.detach(), atol=1e-5) for a, b in zip(row, other, strict=True))


def gradients(model):
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def relative(found, expected):
    """The largest relative error of a gradient."""
    assert found.keys() == expected.keys()
    scale = max(float(one.norm()) for one in expected.values())
    return max(float((found[n] - e).norm() / max(float(e.norm()), 1e-6 * scale)) for n, e in expected.items())


@pytest.mark.parametrize("layout", [None, *LAYOUTS])
@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_equals_one_sequence_at_a_time_and_so_do_its_gradients(models, kind, layout):
    model, rollouts = models[kind], some_rollouts()
    model.zero_grad()
    expected = list(naive(model, rollouts, Law()))
    sum((logprobs.sum() + WEIGHT * entropies.sum()) for logprobs, entropies in expected).backward()
    wanted = gradients(model)
    processor = SequenceProcessor(model, ByteTokenizer(), GenerationConfig(tf_token_budget=200))
    results = processor.teacher_force_logprobs(rollouts, tf_batch_size=5, layout=layout)
    for index, (logprobs, entropies) in enumerate(expected):
        b, g = divmod(index, rollouts.G)
        assert results.logprobs[b][g].shape == (len(rollouts.response(index)),)
        assert np.allclose(results.logprobs[b][g].numpy(), logprobs.detach().numpy(), atol=1e-5)
        assert np.allclose(results.entropies[b][g], entropies.detach().numpy(), atol=1e-5)
        assert results.sequence_logprobs[b][g] == pytest.approx(float(logprobs.detach().sum()), abs=1e-4)
    model.zero_grad()
    for part in processor.microbatches(rollouts, tf_batch_size=5, layout=layout):
        (part.logprobs.sum() + WEIGHT * part.entropies.sum()).backward()
    assert relative(gradients(model), wanted) < 1e-5


def test_a_long_tree_is_attended_to_branch_by_branch_with_the_same_scores(models, monkeypatch):
    monkeypatch.setattr("brim.generate.attention.DENSE", 0)
    for kind in KINDS:
        test_every_layout_equals_one_sequence_at_a_time_and_so_do_its_gradients(models, kind, "tree")


@pytest.mark.parametrize("law", [Law(temperature=0.6), Law(temperature=1.3, top_k=40, min_p=0.001)], ids=str)
def test_another_law_is_scored_with_its_gradients(models, law):
    """The responses are greedy ones, so that the law keeps all of their tokens."""
    model = models["llama"]
    processor = SequenceProcessor(model, ByteTokenizer(), GenerationConfig(max_new_tokens=9, do_sample=False))
    rollouts = processor.generate_batched([[5, 6, 7], [9]], G=2).record()
    model.zero_grad()
    expected = list(naive(model, rollouts, law))
    sum((logprobs.sum() + WEIGHT * entropies.sum()) for logprobs, entropies in expected).backward()
    wanted = gradients(model)
    options = {name: getattr(law, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    model.zero_grad()
    for part in processor.microbatches(rollouts, **options):
        (part.logprobs.sum() + WEIGHT * part.entropies.sum()).backward()
        for number, column in zip(part.responses, part.split(part.logprobs.detach()), strict=True):
            assert torch.allclose(column.double(), expected[number][0], atol=1e-5)
    assert relative(gradients(model), wanted) < 1e-5


@pytest.mark.parametrize("law", [Law(), Law(temperature=0.7), Law(top_k=9), Law(temperature=2.0, top_p=0.9)], ids=str)
@pytest.mark.parametrize(("factor", "softcap", "bias"), [(1.0, None, False), (0.3, None, True), (1.0, 4.0, True)])
def test_the_chunked_head_equals_autograd_on_whole_logits(monkeypatch, law, factor, softcap, bias):
    monkeypatch.setattr(selected_module, "CHUNK", 4 * 50)  # several chunks of four positions
    generator = torch.Generator().manual_seed(1)
    hidden, weight = (torch.randn(size, generator=generator).double().float() for size in ((11, 16), (50, 16)))
    offset = torch.randn(50, generator=generator) if bias else None
    tensors = [tensor.requires_grad_() for tensor in (hidden, weight, offset) if tensor is not None]
    head = Head(weight, offset, factor, softcap)
    targets = restricted(head.logits(hidden, weight, offset) / law.temperature, law).argmax(dim=1)

    def loss_of(scored):
        return (scored.logprobs * torch.arange(11)).sum() + WEIGHT * (scored.entropies**2).sum()

    found = torch.autograd.grad(loss_of(select(hidden, targets, head, law)), tensors)
    whole = selected_module.select_from_logits(head.logits(hidden, weight, offset), targets, law)
    for one, other in zip(found, torch.autograd.grad(loss_of(whole), tensors), strict=True):
        assert float((one - other).norm() / other.norm()) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_under_autocast_the_backward_pass_computes_the_logits_of_the_forward_pass(dtype):
    """It usually runs outside of autocast, where bfloat16 states and float32 weights have no product."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn((11, 64), generator=generator).to(dtype).requires_grad_()
    weight = torch.randn((50, 64), generator=generator).requires_grad_()
    head, targets = Head(weight), torch.arange(11)

    def gradients_of(score):
        with torch.autocast("cpu", torch.bfloat16):
            scored = score()
        return torch.autograd.grad(scored.logprobs.sum() + WEIGHT * scored.entropies.sum(), (hidden, weight))

    found = gradients_of(lambda: select(hidden, targets, head, Law()))
    whole = gradients_of(lambda: selected_module.select_from_logits(head.logits(hidden, weight, None), targets, Law()))
    for one, other in zip(found, whole, strict=True):
        assert one.dtype == other.dtype
        assert float((one - other).norm() / other.norm()) < 5e-3  # bfloat16 has 8 bits


def test_logits_exist_for_one_chunk_at_a_time(models, monkeypatch):
    sizes = []
    before = Head.logits
    monkeypatch.setattr(selected_module, "CHUNK", 8 * 300)
    monkeypatch.setattr(Head, "logits", lambda *given: sizes.append(len(given[1])) or before(*given))
    rollouts = some_rollouts()
    for part in SequenceProcessor(models["llama"], ByteTokenizer()).microbatches(rollouts):
        part.logprobs.sum().backward()
    assert max(sizes) == 8
    assert sum(sizes) >= 2 * len(rollouts.response_ids)  # forward and backward


def test_prompts_are_scored_and_diagnostics_given_on_request(models):
    rollouts, model = some_rollouts(), models["gpt2"]
    processor = SequenceProcessor(model, ByteTokenizer())
    results = {
        layout: processor.teacher_force_logprobs(rollouts, prompt_logprobs=True, diagnostics=True, layout=layout)
        for layout in LAYOUTS
    }
    for b in range(rollouts.B):
        ids = torch.from_numpy(rollouts.prompt(b).astype(np.int64))
        whole = torch.log_softmax(model(input_ids=ids[None]).logits[0], dim=1)[:-1]
        expected = whole.gather(1, ids[1:, None])[:, 0]
        for found in results.values():
            assert torch.allclose(found.prompt_logprobs[b], expected, atol=1e-5)
    for found in results.values():
        assert tuple(found.diagnostics) == NAMES
        top = np.concatenate([column for row in found.diagnostics["top_probability"] for column in row])
        agree = np.concatenate([column for row in found.diagnostics["collision_probability"] for column in row])
        assert len(top) == len(rollouts.response_ids)
        assert (top**2 <= agree + 1e-6).all()
        assert (agree <= top + 1e-6).all()


@pytest.mark.parametrize("kind", ["cohere", "gemma2", "mistral"])
def test_models_with_scaled_capped_or_windowed_computations_are_scored_right(kind, recwarn):
    """Gemma 2 caps attention scores and logits, Cohere multiplies logits, Mistral's window is shorter than a row."""
    options = {"mistral": {"sliding_window": 8}, "gemma2": {"head_dim": 16}}.get(kind, {})
    model, rollouts = tiny(kind, **options), some_rollouts()
    if kind == "gemma2":
        model.set_attn_implementation("eager")
    results = SequenceProcessor(model, ByteTokenizer()).teacher_force_logprobs(rollouts)
    for index, (logprobs, _) in enumerate(naive(model, rollouts, Law())):
        found = results.logprobs[index // rollouts.G][index % rollouts.G]
        assert np.allclose(found.numpy(), logprobs.detach().numpy(), atol=1e-4)
    said = [str(one.message) for one in recwarn if "prefix trees" in str(one.message)]
    assert (kind == "gemma2") == bool(said)


def test_a_layout_that_differs_from_the_reference_is_not_used(models, monkeypatch):
    attend = Tree.attend
    monkeypatch.setattr(Tree, "attend", lambda *given: 1.5 * attend(*given))
    processor = SequenceProcessor(models["llama"], ByteTokenizer())
    rollouts = some_rollouts()
    with pytest.warns(RuntimeWarning, match="scored in padded rows instead of prefix trees, because .* differ by"):
        results = processor.teacher_force_logprobs(rollouts)
    expected = [logprobs for logprobs, _ in naive(models["llama"], rollouts, Law())]
    assert np.allclose(results.logprobs[1][0].numpy(), expected[3].detach().numpy(), atol=1e-5)


def test_under_autocast_trees_may_differ_from_the_reference_as_much_as_its_type_rounds(models, monkeypatch):
    rollouts = some_rollouts()
    monkeypatch.setattr("brim.generate.score.scorer.TOLERANCE", {torch.float32: -1.0})  # anything is too much
    with torch.autocast("cpu", torch.bfloat16):
        assert SequenceProcessor(models["llama"], ByteTokenizer()).teacher_force_logprobs(rollouts).layout_noise >= 0
    with pytest.warns(RuntimeWarning, match="padded rows instead of prefix trees"):
        SequenceProcessor(models["llama"], ByteTokenizer()).teacher_force_logprobs(rollouts)


def test_the_noise_of_layouts_is_reported_for_models_with_few_bits(models, monkeypatch):
    attend = Tree.attend
    monkeypatch.setattr(Tree, "attend", lambda *given: 1.02 * attend(*given))  # as rough as rounding can be
    rough = copy.deepcopy(models["llama"]).to(torch.bfloat16)
    found = SequenceProcessor(rough, ByteTokenizer()).teacher_force_logprobs(some_rollouts())
    assert found.logprobs[1][0].dtype == torch.float32
    assert 1e-4 < found.layout_noise < 0.5


@pytest.mark.parametrize("grad", [False, True])
def test_running_out_of_memory_halves_the_budget_and_loses_nothing(models, monkeypatch, grad):
    rollouts = some_rollouts(prompts=(9,) * 8, group=4)
    processor = SequenceProcessor(models["llama"], ByteTokenizer())
    expected = processor.teacher_force_logprobs(rollouts)
    score, seen = Forward.score, []

    def limited(self, inputs, *given, **options):
        seen.append(inputs.input_ids.numel())
        if inputs.input_ids.numel() > 150:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return score(self, inputs, *given, **options)

    monkeypatch.setattr(Forward, "score", limited)
    found = processor.teacher_force_logprobs(rollouts, with_grad=grad)
    assert_equal(found.logprobs, expected.logprobs)
    fits = [size for size in seen if size <= 150]
    failures = len(seen) - len(fits)
    seen.clear()
    processor.teacher_force_logprobs(rollouts)
    assert failures > 0
    assert max(seen) <= 150  # it remembers


def test_one_response_that_runs_out_of_memory_is_an_error_with_its_size(models, monkeypatch):
    def full(self, inputs, *given, **options):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: tried 1 TB")

    processor = SequenceProcessor(models["llama"], ByteTokenizer())
    processor.teacher_force_logprobs(some_rollouts())
    monkeypatch.setattr(Forward, "score", full)
    with pytest.raises(BrimError, match=r"response \d to prompt \d alone runs out of memory: \d+ tokens"):
        processor.teacher_force_logprobs(some_rollouts())


def test_budgets_bound_what_is_scored_at_once(models, monkeypatch):
    seen = []
    score = Forward.score

    def counted(self, inputs, *given, **options):
        seen.append(inputs.input_ids.numel())
        return score(self, inputs, *given, **options)

    monkeypatch.setattr(Forward, "score", counted)
    model = models["llama"]
    rollouts = some_rollouts()
    SequenceProcessor(model, ByteTokenizer(), GenerationConfig(tf_token_budget=80)).teacher_force_logprobs(rollouts)
    assert max(seen) <= 80
    small = GenerationConfig(memory_budget=1000)
    with pytest.raises(LengthError, match="more than the budget of 1 tokens; raise tf_token_budget"):
        SequenceProcessor(model, ByteTokenizer(), small).teacher_force_logprobs(rollouts)


def test_the_reference_is_the_model_without_its_adapters(models):
    base = copy.deepcopy(models["llama"])
    options = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)  # peft about transformers
        adapted = peft.get_peft_model(base, options)
    torch.nn.init.normal_(adapted.base_model.model.model.layers[0].self_attn.q_proj.lora_B.default.weight)
    rollouts = some_rollouts()
    processor = SequenceProcessor(adapted, ByteTokenizer())
    with_adapter = processor.teacher_force_logprobs(rollouts)
    without = processor.teacher_force_logprobs(rollouts, adapter=False)
    plain = SequenceProcessor(models["llama"], ByteTokenizer())
    expected = plain.teacher_force_logprobs(rollouts)
    assert torch.allclose(without.logprobs[1][0], expected.logprobs[1][0], atol=1e-6)
    assert not torch.allclose(with_adapter.logprobs[1][0], expected.logprobs[1][0], atol=1e-3)
    # Both at once, as a loss with a penalty for leaving the reference needs them.
    columns = zip(processor.microbatches(rollouts, 2), processor.microbatches(rollouts, 2, adapter=False), strict=True)
    for own, reference in columns:
        for scored, results in ((own, with_adapter), (reference, without)):
            for number, column in zip(scored.responses, scored.split(scored.logprobs.detach()), strict=True):
                assert torch.allclose(column, results.logprobs[number // 3][number % 3], atol=1e-5)
    processor.teacher_force_logprobs(rollouts, with_grad=True).logprobs[1][0].sum().backward()
    assert {n for n, weight in adapted.named_parameters() if weight.grad is not None} == {
        n for n, weight in adapted.named_parameters() if weight.requires_grad
    }
    with pytest.raises(OptionError, match="without its LoRA adapters, but LlamaForCausalLM has none"):
        plain.teacher_force_logprobs(rollouts, adapter=False)


def test_an_output_layer_that_is_not_linear_is_computed_by_the_model_itself(models):
    """LoRA on the output layer: logits exist only where they count, and gradients reach the adapters."""
    base = copy.deepcopy(models["llama"])
    options = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["lm_head", "v_proj"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft about transformers, and about tied weights
        adapted = peft.get_peft_model(base, options).eval()
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    rollouts = some_rollouts()
    processor = SequenceProcessor(adapted, ByteTokenizer())
    expected = list(naive(adapted, rollouts, Law(temperature=0.7)))
    sum((logprobs.sum() + WEIGHT * entropies.sum()) for logprobs, entropies in expected).backward()
    wanted = gradients(adapted)
    adapted.zero_grad()
    for part in processor.microbatches(rollouts, temperature=0.7):
        (part.logprobs.sum() + WEIGHT * part.entropies.sum()).backward()
        for number, column in zip(part.responses, part.split(part.logprobs.detach()), strict=True):
            assert torch.allclose(column.double(), expected[number][0], atol=1e-5)
    assert relative(gradients(adapted), wanted) < 1e-5
    results = processor.teacher_force_logprobs(rollouts, prompt_logprobs=True, diagnostics=True)
    assert len(results.prompt_logprobs[3]) == 39
    assert len(results.diagnostics["top_margin"][3][2]) == 1


def _ddp_gradients(rank, model, halves, how):
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    processor = SequenceProcessor(wrapped, ByteTokenizer())
    if how == "whole":
        results = processor.teacher_force_logprobs(halves[rank], with_grad=True, tf_batch_size=2)
        sum(column.sum() for row in results.logprobs for column in row).backward()
    else:
        for part in processor.microbatches(halves[rank], tf_batch_size="auto" if how == "measured" else 2 + rank):
            part.logprobs.sum().backward()
    return {name: weight.grad.numpy() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("how", ["parts", "whole", "measured"])
def test_two_processes_get_the_gradient_of_one_process_on_all_data(models, how):
    model = models["qwen2"]
    prompts = [(4, 11), (4, 12, 5, 7, 9, 20)]  # more work for rank 1: it tries more sizes, and has more parts
    halves = [some_rollouts(seed=rank, prompts=prompts[rank], group=3) for rank in range(2)]
    model.zero_grad()
    for half in halves:
        for logprobs, _ in naive(model, half, Law()):
            logprobs.sum().backward()
    expected = gradients(model)
    ranks = on_ranks(2, _ddp_gradients, copy.deepcopy(model), halves, how)
    for found in ranks:  # the mean over two ranks is half of the sum
        for name, gradient in expected.items():
            assert np.allclose(2 * found[name], gradient.numpy(), atol=1e-5 * max(1, float(gradient.abs().max())))


def test_sequences_from_elsewhere_are_scored_by_their_lengths(models):
    """Padding is whatever the tensor holds behind a row, an end token or a token of the text included."""
    rollouts = some_rollouts()
    sequences = BatchedSequences.of(rollouts, pad_id=7, device="cpu")
    given = BatchedSequences(
        sequences.sequences, sequences.prompt_lens, sequences.gen_lens, sequences.attention_masks, []
    )
    processor = SequenceProcessor(models["llama"], ByteTokenizer())
    expected = processor.teacher_force_logprobs(sequences)
    found = processor.teacher_force_logprobs(given)
    assert_equal(found.logprobs, expected.logprobs)
    with pytest.raises(DataError, match="it is not known why they ended"):
        _ = given.finish_reasons
    given.prompt_lens = [*given.prompt_lens[:-1], 400]
    with pytest.raises(DataError, match="prompt 3 has 400 tokens"):
        processor.teacher_force_logprobs(given)


def test_a_model_with_damaged_weights_is_an_error_and_a_greedy_law_cannot_be_scored(models):
    broken = copy.deepcopy(models["llama"])
    torch.nn.init.constant_(broken.model.norm.weight, torch.nan)
    with pytest.raises(BrimError, match="not finite"):
        SequenceProcessor(broken, ByteTokenizer()).teacher_force_logprobs(some_rollouts())
    with pytest.raises(OptionError, match="temperature must be above 0 to score"):
        SequenceProcessor(models["llama"], ByteTokenizer()).teacher_force_logprobs(some_rollouts(), temperature=0)
