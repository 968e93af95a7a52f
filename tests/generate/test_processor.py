"""SequenceProcessor as its document describes it: shapes, data sets, seeds, batch sizes that are measured."""

import numpy as np
import pytest
import torch
from support.models import tiny

from brim import DATASET_REGISTRY, Example, GenerationConfig, SequenceProcessor, StopAfterAnswer
from brim.core.errors import DataError, OptionError
from brim.data.tokenizer.base import ByteTokenizer
from brim.generate import auto
from brim.generate.rollouts import Response, Rollouts


@pytest.fixture(scope="module")
def model():
    return tiny("qwen2")


def make(model, **options):
    return SequenceProcessor(model, ByteTokenizer(), GenerationConfig(**{"max_new_tokens": 12, **options}))


def test_the_first_example_of_the_document(model):
    processor = make(model, temperature=0.8, gen_batch_size=64, tf_batch_size=128)
    prompts = ["Solve: 2+2=", "What is 5*3?"]
    sequences, logprobs = processor.generate_with_logprobs(prompts=prompts, G=8)
    total = int(sequences.attention_masks.sum(dim=2).max())
    assert sequences.sequences.shape == sequences.attention_masks.shape == (2, 8, total)
    assert sequences.prompt_lens == [len(prompt) for prompt in prompts]
    assert [len(row) for row in sequences.gen_lens] == [8, 8]
    for b in range(2):
        for g in range(8):
            size = sequences.gen_lens[b][g]
            assert isinstance(logprobs.logprobs[b][g], torch.Tensor)
            assert logprobs.logprobs[b][g].shape == logprobs.entropies[b][g].shape == (size,)
            assert logprobs.sampling_logprobs[b][g].shape == (size,)
            assert isinstance(logprobs.entropies[b][g], np.ndarray)
            assert logprobs.sequence_logprobs[b][g] == pytest.approx(float(logprobs.logprobs[b][g].sum()), abs=1e-4)
            response = sequences.sequences[b, g, sequences.prompt_lens[b] :][:size].tolist()
            assert sequences.responses_text[b][g] == ByteTokenizer().decode(response)
            assert sequences.finish_reasons[b][g] == ("eos" if response[-1] == 258 else "length")


def test_prompts_come_from_a_data_set_and_one_seed_decides_them_and_the_responses(model):
    processor = make(model)
    given = {"dataset_name": "arithmetic", "split": "train", "num_prompts": 4, "G": 2, "seed": 42}
    sequences, logprobs = processor.generate_with_logprobs(**given)
    again, _ = processor.generate_with_logprobs(**given)
    assert torch.equal(sequences.sequences, again.sequences)
    assert sequences.rollouts.seed == 42
    assert [example.question for example in sequences.examples] == processor.sample_prompts(
        "arithmetic", "train", 4, seed=42
    )
    other, _ = processor.generate_with_logprobs(**{**given, "seed": 43})
    assert [one.question for one in other.examples] != [one.question for one in sequences.examples]
    assert len(logprobs.logprobs) == 4


def test_a_data_set_says_what_ends_a_response_and_the_config_can_say_otherwise(model, monkeypatch):
    def build(split="train"):
        return [Example(f"{n} is", f"{n} is", str(n), stop=("e",)) for n in range(40)]

    monkeypatch.setitem(DATASET_REGISTRY, "mine", build)
    stopped, _ = make(model, max_new_tokens=100, seed=0).generate_with_logprobs(dataset_name="mine", num_prompts=8, G=4)
    reasons = [reason for row in stopped.finish_reasons for reason in row]
    assert "stop" in reasons
    texts = [text for row in stopped.responses_text for text in row]
    assert all(("e" in text) == (reason == "stop") for text, reason in zip(texts, reasons, strict=True))
    free = make(model, max_new_tokens=100, seed=0, stop=())
    through, _ = free.generate_with_logprobs(dataset_name="mine", num_prompts=8, G=4)
    assert "stop" not in [reason for row in through.finish_reasons for reason in row]
    assert StopAfterAnswer.stop == ("</answer>",)
    assert DATASET_REGISTRY["arithmetic_r1_template"]("test")[0].stop == ("</answer>",)


def test_gradients_of_generated_responses_reach_the_model(model):
    processor = make(model, seed=1)
    model.zero_grad()
    _, logprobs = processor.generate_with_logprobs(["a", "bc"], G=3, with_grad=True, tf_batch_size=2)
    sum(column.sum() for row in logprobs.logprobs for column in row).backward()
    assert all(weight.grad is not None for weight in model.parameters())
    _, recorded = processor.generate_with_logprobs(["a", "bc"], G=3)
    assert not recorded.logprobs[0][0].requires_grad
    assert torch.allclose(recorded.logprobs[1][2], logprobs.logprobs[1][2].detach(), atol=1e-5)


def test_batch_sizes_can_be_measured_and_change_nothing(model, monkeypatch):
    monkeypatch.setattr(auto, "TOKENS", 3)
    fixed, _ = make(model, seed=5).generate_with_logprobs(["a", "bcd", "ef"], G=4)
    processor = make(model, seed=5, gen_batch_size="auto", tf_batch_size="auto")
    sequences, _ = processor.generate_with_logprobs(["a", "bcd", "ef"], G=4)
    assert torch.equal(sequences.sequences, fixed.sequences)
    assert processor.gen_capacity.unit == "rows"
    assert processor.gen_capacity.largest.size == 12
    scored = processor.teacher_force_logprobs(sequences, with_grad=True)
    assert processor.tf_capacity[True].unit == "responses"
    assert torch.allclose(scored.logprobs[2][1].detach(), processor.teacher_force_logprobs(sequences).logprobs[2][1])
    monkeypatch.setattr(auto, "memory_available", lambda: 50_000)
    tight = make(model, seed=5, gen_batch_size="auto")
    tight.generate_batched(["a", "bcd", "ef"], G=4)
    assert tight.gen_capacity.limit == "out of memory"
    assert tight.gen_capacity.largest.size < 12


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_k": 30}, {"do_sample": False}], ids=str)
def test_rescored_numbers_are_the_same_to_the_bit_whatever_shared_the_batch(model, options):
    prompts = ["a", "bcd", "efghij"]
    found = []
    for size in (1, 5):
        processor = make(model, seed=5, gen_batch_size=size, **options)
        ids = [np.frombuffer(prompt.encode(), np.uint8).astype(np.int32) for prompt in prompts]
        responses = {(one.prompt, one.sample): one for one in processor.stream(prompts, 4)}
        found.append({key: processor.rescored(ids[key[0]], one) for key, one in responses.items()})
        for key, one in responses.items():
            for name in ("logprobs", "sampling_logprobs", "entropies"):
                assert np.allclose(getattr(one, name), getattr(found[-1][key], name), atol=1e-5)
    for key, one in found[0].items():
        for name in ("token_ids", "logprobs", "sampling_logprobs", "entropies"):
            assert np.array_equal(getattr(one, name), getattr(found[1][key], name))


def test_conversations_go_through_the_chat_template(model):
    class Chats(ByteTokenizer):
        has_chat_template = True

        def render_chat(self, messages, *, reply=False):
            return "".join(f"<{one['role']}>{one['content']}" for one in messages) + ("<assistant>" if reply else "")

    processor = SequenceProcessor(model, Chats(), GenerationConfig(max_new_tokens=3, seed=0))
    sequences = processor.generate_batched([[{"role": "user", "content": "hi"}], "hi"], G=1)
    assert bytes(sequences.rollouts.prompt(0).tolist()).decode() == "<user>hi<assistant>"
    assert bytes(sequences.rollouts.prompt(1).tolist()).decode() == "hi"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give either prompts or dataset_name"),
        ({"prompts": ["a"], "dataset_name": "arithmetic"}, "give either prompts or dataset_name, not both"),
        ({"prompts": ["a"], "num_prompts": 3}, "num_prompts is for a data set"),
        ({"dataset_name": "arithmetics", "num_prompts": 3}, 'Did you mean "arithmetic"'),
        ({"dataset_name": "arithmetic", "num_prompts": 10**7}, "10000000"),
        ({"dataset_name": "arithmetic", "split": "nothing"}, "nothing"),
        ({"prompts": ["a"], "tf_batch_size": "many", "with_grad": True}, "tf_batch_size must be a number"),
    ],
)
def test_bad_calls_are_one_clear_line(model, options, message):
    with pytest.raises(OptionError, match=message):
        make(model).generate_with_logprobs(**options)


def test_other_objects_than_a_model_a_tokenizer_and_a_config_are_refused(model):
    with pytest.raises(OptionError, match="must be a causal language model of transformers, got Linear"):
        SequenceProcessor(torch.nn.Linear(2, 2), ByteTokenizer())
    with pytest.raises(OptionError, match="tokenizer must be a name or a tokenizer"):
        SequenceProcessor(model, 5)
    with pytest.raises(OptionError, match=r"config must be a brim\.generate\.GenerationConfig, got dict"):
        SequenceProcessor(model, ByteTokenizer(), {"temperature": 1})


def test_a_record_refuses_responses_that_are_missing_twice_there_or_without_tokens():
    def response(b, g, ids=(1, 2)):
        tokens = None if ids is None else np.array(ids, np.int32)
        return Response(prompt=b, sample=g, text="x", finish_reason="eos", token_ids=tokens)

    prompts = [np.array([5], np.int32)] * 2
    every = [response(b, g) for b in range(2) for g in range(2)]
    assert len(Rollouts.collect(prompts, reversed(every), G=2, seed=0)) == 4
    with pytest.raises(DataError, match="1 of 4 responses are missing, the first is response 1 to prompt 1"):
        Rollouts.collect(prompts, every[:-1], G=2, seed=0)
    with pytest.raises(DataError, match="response 0 to prompt 0 is there twice"):
        Rollouts.collect(prompts, [*every, every[0]], G=2, seed=0)
    with pytest.raises(DataError, match="the server told only its text"):
        Rollouts.collect(prompts, [*every[:-1], response(1, 1, None)], G=2, seed=0)
