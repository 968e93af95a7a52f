import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import MismatchError, OptionError
from brim.stream.curriculum import Curriculum, CurriculumConfig

outcomes = st.lists(st.booleans(), max_size=120)


@given(outcomes, st.integers(1, 9))
def test_the_target_moves_once_per_block_and_stays_in_its_range(successes, block):
    """The definition: cut the history into blocks, and step up or down by the success rate of each."""
    curriculum = Curriculum(block=block, step=0.1)
    curriculum.record_batch(successes)
    target = 0.3
    for start in range(0, len(successes) - block + 1, block):
        rate = sum(successes[start : start + block]) / block
        target = min(max(target + (0.1 if rate > 0.75 else -0.1 if rate < 0.25 else 0), 0.3), 0.7)
    assert curriculum.target == pytest.approx(target)


@given(outcomes, st.integers(0, 120))
def test_a_restored_curriculum_goes_on_as_if_it_had_never_stopped(successes, cut):
    whole, first, second = (Curriculum(block=5) for _ in range(3))
    whole.record_batch(successes)
    first.record_batch(successes[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    second.record_batch(successes[cut:])
    assert second.state_dict() == whole.state_dict()


def test_samples_near_the_target_are_likelier_and_none_is_forgotten():
    curriculum = Curriculum(start=0.5, width=0.1, floor=0.05)
    weights = curriculum.weights([0.5, 0.4, 0.6, 0.0, np.nan])
    assert weights == pytest.approx([1, 0.5, 0.5, 0.05, 1])


def test_levels_lie_on_both_sides_of_the_target_the_nearer_one_more_often():
    curriculum = Curriculum(start=0.35)
    levels = curriculum.levels(range(2000), seed=1)
    assert set(levels) == {"easy", "medium"}
    assert levels.count("medium") / 2000 == pytest.approx(0.25, abs=0.04)
    assert curriculum.levels(range(500, 510), seed=1) == levels[500:510], (
        "a level depends on the number of the episode alone"
    )
    assert set(Curriculum(start=0.7).levels(range(50), seed=1)) == {"hard"}
    assert set(Curriculum(lowest=0.2, highest=0.4, start=0.2).levels(range(50), seed=1)) == {"easy"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lowest": 0.8}, "lowest <= highest"),
        ({"start": 0.9}, "start must lie"),
        ({"raise_above": 0.2}, "lower_below must be less"),
        ({"width": 0.0}, "width must lie above 0"),
        ({"block": 0}, "block must be at least 1"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        CurriculumConfig(**options)


def test_a_range_without_a_level_and_a_state_of_another_curriculum_are_refused():
    with pytest.raises(OptionError, match="no level lies between"):
        Curriculum(lowest=0.55, highest=0.6).levels([0], seed=1)
    with pytest.raises(MismatchError, match="another curriculum"):
        Curriculum(block=3).load_state_dict(Curriculum(block=4).state_dict())
