"""The compiled kernel on NumPy arrays against the definition, and the definition itself."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from support.arc import FORMATS, assert_same, assert_same_results, random_actions, random_states, random_task

from brim.core.errors import DataError, MismatchError
from brim.envs.arc import (
    ArcOperation,
    ArcRewardConfig,
    BboxAction,
    EnvironmentConfig,
    JaxArcConfig,
    JaxArcTask,
    MaskAction,
    PointAction,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
    arc_reset,
    arc_step,
    batch_reset,
    batch_step,
    build_bank,
    compiled_batch_step,
    observe,
    stack_states,
)
from brim.envs.arc.engine import on_numpy
from brim.envs.arc.engine.call import CHANGED
from brim.envs.arc.engine.random import below, threefry

Op = ArcOperation


def config(form="point", shape=(30, 30), allowed=None, reward=None, **environment):
    return JaxArcConfig(
        environment=EnvironmentConfig(**environment),
        dataset=UnifiedDatasetConfig(max_grid_height=shape[0], max_grid_width=shape[1]),
        action=UnifiedActionConfig(selection_format=form, allowed_operations=allowed),
        reward=reward or ArcRewardConfig(),
    )


def keys(batch, seed=0):
    return np.random.default_rng(seed).integers(0, 2**32, (batch, 2), dtype=np.uint32)


def by_definition(monkeypatch):
    monkeypatch.setattr(on_numpy, "kernel", None)


@pytest.mark.kernel
def test_the_kernel_is_compiled_here():
    assert on_numpy.kernel is not None


@pytest.mark.parametrize("form", FORMATS)
def test_every_operation_of_the_kernel_equals_its_definition(form, monkeypatch):
    """3 x 3,400 cases of all sizes from 1x1 to 30x30."""
    random = np.random.default_rng(FORMATS.index(form))
    reward = ArcRewardConfig(similarity_weight=1.3, unsolved_submission_penalty=-1.7, invalid_penalty=-0.3)
    setting = config(form, reward=reward)
    bank = build_bank([random_task(random, number) for number in range(40)], setting)
    states, _ = batch_reset(keys(3400), setting, bank)
    states = random_states(random, states)
    actions = random_actions(random, form, 3400)
    assert set(actions.operation.tolist()) >= {int(operation) for operation in ArcOperation}
    found = batch_step(states, actions, setting)
    by_definition(monkeypatch)
    assert_same_results(found, batch_step(states, actions, setting))


@pytest.mark.parametrize(
    ("form", "shape", "options"),
    [
        ("point", (5, 5), {"auto_reset": "same_step", "max_episode_steps": 9}),
        ("bbox", (1, 30), {"auto_reset": "next_step", "episode_mode": "test"}),
        ("mask", (30, 3), {"auto_reset": "off", "end_when_solved": True}),
        ("mask", (7, 12), {"auto_reset": "next_step", "end_when_solved": True, "max_episode_steps": 4}),
        ("bbox", (1, 1), {"auto_reset": "same_step", "episode_mode": "test", "max_episode_steps": 1}),
    ],
)
def test_episodes_of_the_kernel_equal_those_of_the_definition(form, shape, options, monkeypatch):
    random = np.random.default_rng(5)
    allowed = None if form == "mask" else tuple(range(0, 42, 2))
    setting = config(form, shape, allowed, ArcRewardConfig(invalid_penalty=-0.25), **options)
    tasks = [random_task(random, number, shape) for number in range(6)]
    fixed = random.integers(-1, 6, 12)
    start = batch_reset(keys(12), setting, tasks, task_indices=fixed)
    fast = slow = start[0]
    script = [random_actions(random, form, 12, shape) for _ in range(30)]
    results = []
    for actions in script:
        results.append(batch_step(fast, actions, setting))
        fast = results[-1].states
    by_definition(monkeypatch)
    assert_same(batch_reset(keys(12), setting, tasks, task_indices=fixed)[1], start[1])
    for number, actions in enumerate(script):
        expected = batch_step(slow, actions, setting)
        slow = expected.states
        assert_same_results(results[number], expected, number)


def test_randomness_is_that_of_jax():
    """The words are what JAX 0.10.2 makes of these keys and the counter (5, 0)."""
    key = np.array([[0, 42], [123456789, 987654321]], np.uint32)
    one, two = threefry(key, (5, 0))
    assert one.tolist() == [2002499661, 2344832634]
    assert two.tolist() == [1469863379, 3359529081]
    assert below(np.array([0, 2**31, 2**32 - 1], np.uint32), 3).tolist() == [0, 1, 2]


# What each operation means, on small grids that a reader can check.

ABC = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def play(grid, *steps, form="mask", target=None, shape=(6, 6), **environment):
    """Apply (operation, selected cells) one after the other to a single environment; None selects nothing."""
    task = JaxArcTask("t", [(grid, target or [[0]])])
    setting = config(form, shape, **environment)
    states, _ = batch_reset(keys(1), setting, task)
    result = None
    for operation, cells in steps:
        mask = np.zeros((1, *shape), np.bool_)
        for row, column in cells or []:
            mask[0, row, column] = True
        result = batch_step(states, MaskAction(np.array([operation]), mask), setting)
        states = result.states
    return states, result


def grid_of(states):
    return states.working_grid[0, : states.height[0], : states.width[0]].tolist()


def box(top, left, bottom, right):
    return [(row, column) for row in range(top, bottom + 1) for column in range(left, right + 1)]


@pytest.mark.parametrize(
    ("operation", "cells", "expected"),
    [
        (Op.MOVE_UP, box(0, 0, 2, 2), [[4, 5, 6], [7, 8, 9], [1, 2, 3]]),
        (Op.MOVE_DOWN, box(0, 0, 2, 2), [[7, 8, 9], [1, 2, 3], [4, 5, 6]]),
        (Op.MOVE_LEFT, box(0, 0, 2, 2), [[2, 3, 1], [5, 6, 4], [8, 9, 7]]),
        (Op.MOVE_RIGHT, box(0, 0, 2, 2), [[3, 1, 2], [6, 4, 5], [9, 7, 8]]),
        (Op.ROTATE_CLOCKWISE, box(0, 0, 2, 2), [[7, 4, 1], [8, 5, 2], [9, 6, 3]]),
        (Op.ROTATE_COUNTERCLOCKWISE, box(0, 0, 2, 2), [[3, 6, 9], [2, 5, 8], [1, 4, 7]]),
        (Op.FLIP_HORIZONTAL, box(0, 0, 2, 2), [[3, 2, 1], [6, 5, 4], [9, 8, 7]]),
        (Op.FLIP_VERTICAL, box(0, 0, 2, 2), [[7, 8, 9], [4, 5, 6], [1, 2, 3]]),
        # A part of the grid turns in place.
        (Op.ROTATE_CLOCKWISE, box(1, 1, 2, 2), [[1, 2, 3], [4, 8, 5], [7, 9, 6]]),
        # Two cells at opposite corners select their rectangle.
        (Op.ROTATE_COUNTERCLOCKWISE, [(0, 1), (1, 2)], [[1, 3, 6], [4, 2, 5], [7, 8, 9]]),
        (Op.ROTATE_CLOCKWISE, box(0, 0, 0, 1), ABC),
        (Op.MOVE_LEFT, box(1, 0, 1, 1), [[1, 2, 3], [5, 4, 6], [7, 8, 9]]),
        (Op.FILL_0, [(0, 0), (2, 2)], [[0, 2, 3], [4, 5, 6], [7, 8, 0]]),
        (Op.CLEAR, [(0, 0), (2, 2)], [[0, 2, 3], [4, 5, 6], [7, 8, 0]]),
        (Op.RESIZE, [(3, 1)], [[1, 2], [4, 5], [7, 8], [0, 0]]),
        # Without a selection.
        (Op.MOVE_UP, None, [[4, 5, 6], [7, 8, 9], [1, 2, 3]]),
        (Op.CLEAR, None, [[0, 0, 0]] * 3),
        (Op.FILL_7, None, ABC),
        (Op.FLOOD_FILL_7, None, ABC),
        (Op.RESIZE, None, ABC),
        (Op.COPY, None, ABC),
        (Op.PASTE, None, ABC),
    ],
)
def test_an_operation_does_what_its_name_says(operation, cells, expected):
    states, result = play(ABC, (operation, cells))
    assert grid_of(states) == expected
    assert not result.infos["invalid"][0]


def test_a_selection_without_a_cell_of_the_grid_is_invalid_and_changes_nothing():
    for operation in ArcOperation:
        states, result = play(ABC, (operation, [(4, 4)]))
        outside_is_wrong = operation.uses_selection and operation != Op.RESIZE
        assert result.infos["invalid"][0] == outside_is_wrong
        assert not outside_is_wrong or (grid_of(states) == ABC and not states.selected.any())


def test_flood_fill_follows_a_corridor_of_any_length():
    serpentine = np.ones((30, 30), np.int64)
    serpentine[::2] = 0
    serpentine[1::4, 29] = 0
    serpentine[3::4, 0] = 0
    states, _ = play(serpentine.tolist(), (Op.FLOOD_FILL_7, [(0, 0)]), shape=(30, 30))
    assert (states.working_grid[0] == 7).sum() == (serpentine == 0).sum() > 400


def test_flood_fill_needs_exactly_one_cell_and_stops_at_corners():
    grid = [[0, 1], [1, 0]]
    assert grid_of(play(grid, (Op.FLOOD_FILL_5, [(0, 0)]))[0]) == [[5, 1], [1, 0]]
    assert grid_of(play(grid, (Op.FLOOD_FILL_5, [(0, 0), (1, 1)]))[0]) == grid


def test_black_cells_are_copied_and_pasted_and_cells_that_were_not_copied_are_not():
    grid = [[0, 0, 5], [0, 3, 5], [5, 5, 5]]
    states, _ = play(grid, (Op.COPY, box(0, 0, 1, 1)), (Op.PASTE, [(1, 1)]))
    assert grid_of(states) == [[0, 0, 5], [0, 0, 0], [5, 0, 3]]
    states, _ = play(grid, (Op.COPY, [(0, 0), (1, 1)]), (Op.PASTE, [(1, 1)]))
    assert grid_of(states) == [[0, 0, 5], [0, 0, 5], [5, 5, 3]]
    assert states.clipboard[0, :2, :2].tolist() == [[0, 10], [10, 3]]


def test_cutting_copies_and_blackens_and_pasting_over_the_border_keeps_what_fits():
    states, _ = play(ABC, (Op.CUT, box(0, 0, 1, 1)), (Op.PASTE, [(2, 2)]))
    assert grid_of(states) == [[0, 0, 3], [0, 0, 6], [7, 8, 1]]


def test_copying_the_input_restores_its_size():
    states, _ = play(ABC, (Op.RESIZE, [(5, 5)]), (Op.FILL_9, [(0, 0)]), (Op.COPY_INPUT, None))
    assert grid_of(states) == ABC


def test_similarity_counts_the_union_of_both_sizes():
    states, result = play([[1, 2], [3, 4]], (Op.FILL_1, [(0, 0)]), target=[[1, 2, 3]])
    assert result.infos["similarity"][0] == np.float32(2) / np.float32(5)
    larger = np.zeros((6, 6), np.int64)
    larger[:3, :3] = ABC
    states, result = play(larger.tolist(), (Op.SUBMIT, None), target=ABC)
    assert result.infos["similarity"][0] == np.float32(0.25)
    assert not result.infos["solved"][0]
    assert result.dones[0]
    assert states.status[0] == 1


def test_a_done_environment_stays_as_it_is_with_reward_zero():
    done, _ = play(ABC, (Op.SUBMIT, None))
    setting = config("mask", (6, 6))
    mask = np.ones((1, 6, 6), np.bool_)
    again = batch_step(done, MaskAction(np.array([Op.CLEAR]), mask), setting)
    assert again.rewards[0] == 0
    assert again.dones[0]
    assert again.infos["terminated"][0]
    for name in CHANGED:
        assert_same(getattr(done, name), getattr(again.states, name), name)


def test_the_step_limit_truncates_and_submitting_terminates():
    _, result = play(ABC, (Op.FILL_0, [(0, 0)]), (Op.FILL_0, [(0, 0)]), max_episode_steps=2)
    assert (result.infos["terminated"][0], result.infos["truncated"][0]) == (False, True)
    _, result = play(ABC, (Op.FILL_0, [(0, 0)]), (Op.SUBMIT, None), max_episode_steps=2)
    assert (result.infos["terminated"][0], result.infos["truncated"][0]) == (True, False)


def test_being_solved_ends_an_episode_only_on_request():
    steps = [(Op.FILL_5, [(0, 0)])]
    for ends in (False, True):
        _, result = play([[1]], *steps, target=[[5]], end_when_solved=ends)
        assert result.infos["solved"][0]
        assert bool(result.dones[0]) is ends
        assert result.rewards[0] == np.float32(1) + np.float32(-0.01) + np.float32(10 if ends else 0)


PAIRS = JaxArcTask("p", [([[1]], [[1, 1]]), ([[2]], [[2]]), ([[3]], [[0]])], [([[4]], [[4]]), ([[5]], [[0]])])


@pytest.mark.parametrize(
    ("start", "operation", "expected"),
    [
        (1, Op.NEXT_DEMO, 2),
        (2, Op.NEXT_DEMO, 0),
        (0, Op.PREVIOUS_DEMO, 2),
        (1, Op.NEXT_TEST, 3),
        (1, Op.PREVIOUS_TEST, 4),
        (4, Op.NEXT_TEST, 3),
        (3, Op.NEXT_DEMO, 0),
        (3, Op.PREVIOUS_DEMO, 2),
        (1, Op.RESET_PAIR, 1),
        (2, Op.FIRST_UNSOLVED_DEMO, 0),
        (0, Op.FIRST_UNSOLVED_TEST, 3),
    ],
)
def test_pairs_are_chosen_in_a_circle(start, operation, expected):
    setting = config()
    states, _ = batch_reset(keys(1), setting, PAIRS)
    states = states._replace(pair_index=np.array([start], np.int32))
    result = batch_step(states, PointAction(np.array([operation]), np.array([99]), np.array([99])), setting)
    assert result.states.pair_index.tolist() == [expected]
    assert_same(result.states.working_grid, result.states.input_grid)
    assert not result.infos["invalid"][0]


def test_switching_pairs_keeps_the_clipboard_and_its_similarity_counts_as_a_change():
    setting = config()
    states, _ = batch_reset(keys(1), setting, PAIRS)
    begin = lambda states, operation: batch_step(states, PointAction(np.array([operation]), [0], [0]), setting)  # noqa: E731
    states = begin(states, Op.FIRST_UNSOLVED_DEMO).states
    assert (states.pair_index[0], states.similarity_score[0]) == (0, 0.5)
    copied = begin(states, Op.COPY).states
    solved = begin(copied, Op.NEXT_DEMO)  # pair 1 is solved as it stands
    assert solved.rewards[0] == np.float32(0.5) + np.float32(-0.01)
    assert_same(solved.states.clipboard, copied.clipboard)
    assert solved.states.demos_solved.tolist() == [2]
    hidden = begin(solved.states, Op.NEXT_TEST)  # on a test pair the similarity counts as 0
    assert hidden.rewards[0] == np.float32(-1) + np.float32(-0.01)
    assert begin(hidden.states, Op.FIRST_UNSOLVED_DEMO).states.pair_index.tolist() == [0]


def test_an_operation_that_is_not_allowed_changes_nothing_and_may_cost_something():
    setting = config(allowed=(Op.FILL_1, Op.SUBMIT), reward=ArcRewardConfig(invalid_penalty=-0.5))
    states, _ = batch_reset(keys(4), setting, JaxArcTask("t", [(ABC, ABC)]))
    operations = np.array([Op.CLEAR, 42, -1, Op.FILL_1])
    result = batch_step(states, PointAction(operations, np.zeros(4, int), np.zeros(4, int)), setting)
    assert result.infos["invalid"].tolist() == [True, True, True, False]
    assert_same(result.obs[:3], states.working_grid[:3])
    assert result.rewards[:3].tolist() == [np.float32(-0.01) + np.float32(-0.5)] * 3
    assert not result.dones.any()


def test_coordinates_beyond_32_bits_do_not_come_back_as_small_ones():
    setting = config("bbox")
    states, _ = batch_reset(keys(1), setting, JaxArcTask("t", [(ABC, ABC)]))
    far = np.array([2**32], np.int64)
    zero = np.array([0])
    for corners in ([far, zero, zero, zero], [zero, zero, zero, -far], [zero, far.astype(np.uint64), zero, zero]):
        assert batch_step(states, BboxAction(zero, *corners), setting).infos["invalid"][0]
    assert batch_step(states, BboxAction(far, zero, zero, zero, zero), setting).infos["invalid"][0]


def test_the_target_of_a_test_pair_is_hidden_from_observations_only():
    setting = config(episode_mode="test")
    states, _ = batch_reset(keys(8), setting, PAIRS)
    assert (observe(states, ("target",)) == 10).all()
    assert (states.target_grid[:, 0, 0] != 10).all()
    shown = observe(states, ("working", "input", "target", "clipboard", "selected"))
    assert shown.shape == (8, 5, 30, 30)
    trained, _ = batch_reset(keys(8), config(), PAIRS)
    assert_same(observe(trained, ("target",))[:, 0], trained.target_grid)
    with pytest.raises(DataError, match=r"channels must be some of working.*'colour'"):
        observe(states, ("colour",))


# Values and memory.


def test_a_step_leaves_the_given_states_alone_unless_they_are_donated():
    setting = config()
    states, obs = batch_reset(keys(3), setting, JaxArcTask("t", [(ABC, ABC)]))
    before = [getattr(states, name).copy() for name in CHANGED]
    actions = PointAction(np.zeros(3, int), np.zeros(3, int), np.zeros(3, int))
    after = batch_step(states, actions, setting)
    for name, array in zip(CHANGED, before, strict=True):
        assert_same(getattr(states, name), array, name)
    seen = after.obs.copy()
    donated = compiled_batch_step(after.states, actions._replace(operation=np.full(3, 9)), setting, donate=True)
    assert donated.states.cells is after.states.cells
    assert_same(after.obs, seen)  # an observation is not changed by later steps
    assert obs[0, 0, 0] == 1


def test_a_single_environment_is_stepped_without_the_axis_of_a_batch():
    setting = config()
    state, obs = arc_reset(keys(1)[0], setting, PAIRS)
    assert obs.shape == state.working_grid.shape == (30, 30)
    result = arc_step(state, PointAction(int(Op.SUBMIT), 0, 0), setting)
    assert result.states.status == 1
    assert result.rewards.shape == ()
    assert isinstance(result.states.cells, np.ndarray)
    assert_same(stack_states([state, state]).cells[1], state.cells)


@pytest.mark.kernel
@pytest.mark.parametrize(
    "wrong",
    [
        {"task_index": 9},
        {"task_index": -1},
        {"pair_index": 99},
        {"pair_index": -1},
        {"height": 31},
        {"height": 0},
        {"width": -5},
    ],
)
def test_the_kernel_reads_nothing_outside_of_its_arrays(wrong):
    setting = config()
    states, _ = batch_reset(keys(2), setting, JaxArcTask("t", [(ABC, ABC)]))
    (name, value), *_ = wrong.items()
    broken = states._replace(**{name: np.array([value, value], np.int32)})
    with pytest.raises(DataError, match=r"a state refers to a task, a pair or a size that does not exist"):
        batch_step(broken, PointAction(np.array([20, 20]), np.array([0, 0]), np.array([0, 0])), setting)


@pytest.mark.kernel
@pytest.mark.parametrize("name", [*CHANGED, "key", "fixed_task"])
def test_the_kernel_refuses_arrays_of_another_size(name):
    setting = config()
    states, _ = batch_reset(keys(2), setting, JaxArcTask("t", [(ABC, ABC)]))
    broken = states._replace(**{name: getattr(states, name)[:1]})
    zeros = np.zeros(len(broken.status), int)  # the length of the status is the size of the batch
    with pytest.raises(DataError, match="the arrays do not belong together"):
        batch_step(broken, PointAction(zeros, zeros, zeros), setting)


def test_environments_of_numpy_need_no_jax():
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "import numpy as np\n"
        "from brim.envs.arc import *\n"
        "keys = np.arange(8, dtype=np.uint32).reshape(4, 2)\n"
        "config = JaxArcConfig()\n"
        "states, obs = batch_reset(keys, config, create_mock_task())\n"
        "zeros = np.zeros(4, int)\n"
        "result = batch_step(states, PointAction(zeros + 34, zeros, zeros), config)\n"
        "print(result.dones.tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[True, True, True, True]"


@pytest.mark.parametrize(
    ("keys_", "message"),
    [
        (np.zeros((0, 2), np.uint32), "keys has no rows"),
        (np.zeros(2, np.uint32), r"uint32 of shape \(batch, 2\), got uint32 of shape \(2,\)"),
        (np.zeros((3, 4), np.uint32), r"got uint32 of shape \(3, 4\)"),
        (np.zeros((3, 2), np.int64), "got int64"),
        ([1, 2], "got list"),
    ],
)
def test_wrong_keys_are_refused(keys_, message):
    with pytest.raises(DataError, match=message):
        batch_reset(keys_, config(), PAIRS)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (BboxAction(0, 0, 0, 0, 0), "selection_format is 'point', so actions must be PointAction, got BboxAction"),
        ({"operation": 0}, "got dict"),
        (PointAction(np.zeros(3, int), np.zeros(2, int), np.zeros(2, int)), r"operation must have shape \(2,\)"),
        (PointAction(np.zeros(2, int), np.zeros(2), np.zeros(2, int)), "row must be integers, got float64"),
        (PointAction(np.zeros(2, int), np.zeros(2, int), np.zeros(2, bool)), "col must be integers, got bool"),
        (PointAction(0, 0, 0), r"operation must have shape \(2,\), got \(\)"),
    ],
)
def test_wrong_actions_are_refused(actions, message):
    states, _ = batch_reset(keys(2), config(), PAIRS)
    with pytest.raises(DataError, match=message):
        batch_step(states, actions, config())


def test_wrong_masks_are_refused():
    setting = config("mask")
    states, _ = batch_reset(keys(2), setting, PAIRS)
    for mask, message in (
        (np.zeros((2, 5, 5), bool), r"must have shape \(2, 30, 30\), got \(2, 5, 5\)"),
        (np.zeros((2, 30, 30), np.uint8), "must be bool, got uint8"),
    ):
        with pytest.raises(DataError, match=message):
            batch_step(states, MaskAction(np.zeros(2, int), mask), setting)


@pytest.mark.parametrize("indices", [[0], [0, 1, 7], [-2, 0, 0], [0.0, 0.0, 0.0]])
def test_wrong_task_indices_are_refused(indices):
    with pytest.raises(DataError, match=r"task_indices must be"):
        batch_reset(keys(3), config(), [PAIRS, PAIRS], task_indices=indices)


def test_states_of_another_size_are_refused():
    states, _ = batch_reset(keys(2), config(), PAIRS)
    zeros = np.zeros(2, int)
    with pytest.raises(MismatchError, match="the states hold grids of 30x30, but the configuration says 5x5"):
        batch_step(states, PointAction(zeros, zeros, zeros), config(shape=(5, 5)))


def test_a_task_is_drawn_by_the_key_and_the_episode_and_a_fixed_one_stays():
    random = np.random.default_rng(1)
    setting = config(auto_reset="next_step")
    tasks = [random_task(random, number) for number in range(7)]
    states, _ = batch_reset(keys(400), setting, tasks, task_indices=np.r_[np.full(399, -1), 3])
    assert set(states.task_index.tolist()) == set(range(7))
    seen = {int(states.task_index[0])}
    submit = PointAction(np.full(400, int(Op.SUBMIT)), np.zeros(400, int), np.zeros(400, int))
    for _ in range(20):
        for _ in range(2):
            states = batch_step(states, submit, setting).states
        seen.add(int(states.task_index[0]))
        assert states.task_index[399] == 3
    assert len(seen) > 3
    assert states.episode.tolist() == [20] * 400


def test_a_configuration_can_be_hashed_and_compared():
    assert hash(config()) == hash(config())
    assert config() == config()
    assert config() != replace(config(), reward=ArcRewardConfig(step_penalty=0))
