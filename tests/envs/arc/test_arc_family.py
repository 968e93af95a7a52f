"""Generated tasks: their solutions solve them, their rules are split once and for all, and each depends on little."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import DataError, OptionError
from brim.envs.arc import (
    FAMILY,
    JaxArcConfig,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
    create_mock_task,
    family_tasks,
    replay,
    solution,
)
from brim.envs.arc.tasks.family import family_rules, rule_of


@settings(max_examples=12, deadline=None)
@given(size=st.integers(5, 30), held_out=st.booleans(), seed=st.integers(0, 2**32))
def test_the_solution_of_every_pair_solves_it_and_its_first_part_does_not(size, held_out, seed):
    config = JaxArcConfig(
        dataset=UnifiedDatasetConfig(max_grid_height=size, max_grid_width=size),
        action=UnifiedActionConfig(selection_format="bbox"),
    )
    for task in family_tasks(8, size=size, held_out=held_out, seed=seed):
        assert (len(task.train), len(task.test)) == (3, 1)
        for kind, pairs in (("train", task.train), ("test", task.test)):
            for number, pair in enumerate(pairs):
                assert pair.input.shape == pair.output.shape == (size, size)
                actions = solution(task, pair.input)
                episode = replay(task, config, actions, kind=kind, pair=number)
                assert episode.solved
                assert episode.terminated
                assert all(frame.similarity < 1 for frame in episode.frames[:-2])


def test_rules_for_training_and_held_out_rules_are_apart_and_every_rule_is_one_of_them():
    for kind in FAMILY:
        training, held_out = set(family_rules(kind)), set(family_rules(kind, held_out=True))
        assert not training & held_out
        assert (len(training), len(held_out)) == (54, 18)
        # Every way and distance is seen in training: a held-out rule combines them with another colour.
        for name in ("way", "distance"):
            assert {getattr(rule, name) for rule in held_out} <= {getattr(rule, name) for rule in training}
    for held_out in (False, True):
        for task in family_tasks(200, held_out=held_out, seed=5):
            assert rule_of(task) in family_rules(rule_of(task).kind, held_out=held_out)


def test_a_task_depends_on_seed_number_and_options_and_not_on_the_count():
    few, many = family_tasks(5, seed=3), family_tasks(40, seed=3)
    assert few == many[:5]
    assert few != family_tasks(5, seed=4)
    assert [rule_of(task).kind for task in many] == list(FAMILY) * 10
    assert len({task.id for task in many}) == 40
    questions = {pair.input.tobytes() for task in many for pair in (*task.train, *task.test)}
    assert len(questions) > 150  # of 160: small grids may be drawn twice in two tasks
    for task in many:
        assert len({pair.input.tobytes() for pair in (*task.train, *task.test)}) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "count must be at least 1, got 0"),
        ({"count": 1, "size": 4}, "size must be between 5 and 30, got 4"),
        ({"count": 1, "size": 31}, "size must be between 5 and 30, got 31"),
        ({"count": 1, "kinds": ["mvoe"]}, "mvoe.*move"),
        ({"count": 1, "kinds": []}, "kinds must name every kind once, and at least one"),
        ({"count": 1, "kinds": ["flip", "flip"]}, "kinds must name every kind once"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        family_tasks(**options)


def test_other_tasks_have_no_rule():
    with pytest.raises(DataError, match="was not made by family_tasks: its id does not name a rule"):
        solution(create_mock_task(), np.zeros((5, 5), np.uint8))
