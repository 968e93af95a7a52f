"""The step that is measured is a step of training."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brim import LengthError, OptionError
from brim.batch.batch import IGNORED
from brim.train.config import SftConfig
from brim.train.measured_step import DRAWN, TrainingTrial, TrainingWork, draw_lengths
from brim.train.step import Stepper

TINY = SftConfig(model="tiny", data="", output="")


@given(size=st.integers(1, 3000), length=st.integers(2, 700))
def test_packed_segments_are_of_one_length_but_the_last_and_add_up(size, length):
    segments = TrainingTrial(config=TINY, length=length).segments(size)
    assert segments.sum() == size
    assert (segments[:-1] == length).all()
    assert 1 <= segments[-1] <= length


@given(size=st.integers(1, 3000), drawn=st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_drawn_segments_come_in_the_order_of_the_draw_and_begin_again(size, drawn):
    segments = TrainingTrial(config=TINY, drawn=tuple(drawn)).segments(size).tolist()
    again = (drawn * (size // sum(drawn) + 1))[: len(segments)]
    assert sum(segments) == size
    assert segments[:-1] == again[:-1]
    assert 1 <= segments[-1] <= again[-1]


@given(rows=st.integers(1, 40), more=st.integers(0, 63))
def test_padded_rows_are_full(rows, more):
    assert TrainingTrial(config=TINY, layout="padded", length=64).segments(64 * rows + more).tolist() == [64] * rows


def test_lengths_are_drawn_by_the_seed_from_those_that_are_there():
    lengths = np.array([0, 3, 500, 7], np.int32)
    drawn = draw_lengths(lengths, seed=1)
    assert len(drawn) == DRAWN
    assert set(drawn) == {3, 500, 7}
    assert drawn[-1] == 500
    assert drawn == draw_lengths(lengths, seed=1) != draw_lengths(lengths, seed=2)
    with pytest.raises(OptionError, match="no sample that has a token"):
        draw_lengths(lengths[:1], seed=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "pakced"}, "got 'pakced'. Did you mean \"packed\""),
        ({"length": 1}, "length must be at least 2, .* got 1"),
        ({"layout": "padded", "drawn": (5, 6)}, "for the packed layout"),
    ],
)
def test_trials_that_cannot_work_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        TrainingTrial(config=TINY, **options)


@pytest.fixture
def trial(small):
    """Of the small model, with 2048 positions; keywords change the trial, `config` what is trained."""

    def make(config=None, **changes):
        base = SftConfig(model=str(small / "model"), data="", output="", **(config or {}))
        return TrainingTrial(config=base, **{"length": 50, **changes})

    return make


@pytest.fixture
def taken(monkeypatch):
    """The batches that training steps are taken with, and by what rate."""
    seen, take = [], Stepper.take

    def spy(self, batches, learned, rate):
        seen.append((batches, learned, rate))
        return take(self, batches, learned, rate)

    monkeypatch.setattr(Stepper, "take", spy)
    return seen


def test_a_packed_step_has_all_tokens_in_one_row_and_learns_all_but_the_first_of_a_segment(trial, taken):
    TrainingWork(trial()).prepare(320)()
    [([batch], learned, _)] = taken
    assert batch.input_ids.shape == (1, 320)
    assert batch.is_flat
    assert batch.cu_seqlens.tolist() == [0, 50, 100, 150, 200, 250, 300, 320]
    assert learned == int((batch.labels != IGNORED).sum()) == 320 - 7


def test_a_padded_step_has_full_rows(trial, taken):
    TrainingWork(trial(layout="padded")).prepare(320)()
    [([batch], learned, _)] = taken
    assert batch.input_ids.shape == (6, 50)
    assert learned == 6 * 49


def test_steps_move_the_optimizer_and_not_the_weights(trial):
    work = TrainingWork(trial())
    before = {name: weight.clone() for name, weight in work._stepper.weights.items()}
    step = work.prepare(200)
    step()
    step()
    assert all(torch.equal(before[name], weight) for name, weight in work._stepper.weights.items())
    moments = work._stepper.optimizer.state.values()
    assert len(moments) == len(before)
    assert all(state["step"] == 2 and state["exp_avg_sq"].any() for state in moments)


def test_the_same_seed_measures_the_same_tokens(trial, taken):
    for seed in (1, 1, 2):
        TrainingWork(trial({"seed": seed})).prepare(100)()
    first, same, other = (batches[0].input_ids for batches, _, _ in taken)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_adapters_and_bfloat16_are_measured_as_they_are_trained(trial, taken):
    work = TrainingWork(trial({"lora_rank": 2, "bf16": True}, drawn=(30, 40)))
    facts = work.facts()
    assert 0 < facts["trained_weights"] < facts["weights"] / 2
    assert (facts["lora_rank"], facts["dtype"], facts["lengths"], facts["length"]) == (
        2,
        "bfloat16",
        "drawn from the data",
        40,
    )
    work.prepare(100)()
    assert all("lora" in name for name in work._stepper.weights)
    assert taken[0][0][0].cu_seqlens.tolist() == [0, 30, 70, 100]


def test_what_was_measured_is_said(trial):
    facts = TrainingWork(trial({"attention": "sdpa"})).facts()
    assert facts["attention"] == "sdpa"
    assert facts["device"] == "cpu" if not torch.cuda.is_available() else facts["device"]
    assert (facts["torch"], facts["layout"], facts["length"], facts["tokenizer"]) == (
        torch.__version__,
        "packed",
        50,
        "byte",
    )
    assert facts["weights"] == facts["trained_weights"]


def test_segments_longer_than_the_model_has_positions_are_refused(trial):
    TrainingWork(trial(length=2048))
    with pytest.raises(LengthError, match=r"a length of 2049 is more than the model .* has positions: 2048"):
        TrainingWork(trial(length=2049))
    with pytest.raises(
        LengthError, match=r"a sample has 3000 tokens, .* has 2048 positions; measure with --length 2048"
    ):
        TrainingWork(trial(drawn=(5, 3000)))


def test_a_model_that_is_not_there_is_refused(trial):
    with pytest.raises(OptionError, match="the model nowhere is neither a directory"):
        TrainingWork(replace(trial(), config=replace(TINY, model="nowhere")))


def test_a_trial_is_small_to_send(trial):
    drawn = draw_lengths(np.arange(10**6, dtype=np.int32), seed=1)
    assert len(pickle.dumps(trial(drawn=drawn))) < 200_000
