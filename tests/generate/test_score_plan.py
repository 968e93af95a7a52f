"""Which responses are scored together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import LengthError
from brim.generate.score.plan import Lengths, cost, plan_parts

GROUPS = st.integers(1, 5).flatmap(
    lambda group: st.lists(
        st.tuples(st.integers(1, 40), st.lists(st.integers(0, 30), min_size=group, max_size=group)),
        min_size=1,
        max_size=12,
    )
)


def lengths_of(groups):
    prompts = np.array([prompt for prompt, _ in groups], np.int64)
    responses = np.array([size for _, sizes in groups for size in sizes], np.int64)
    return Lengths(prompts, responses, len(groups[0][1]))


def tokens_of(part, lengths):
    """The definition: what the model computes for a part, padding included."""
    if part.layout == "tree":
        return sum(
            int(lengths.prompts[tree.prompt]) + sum(max(int(lengths.responses[r]) - 1, 0) for r in tree.responses)
            for tree in part.trees
        )
    rows = [int(lengths.prompts[r // lengths.group]) + max(int(lengths.responses[r]) - 1, 0) for r in part.responses]
    return max(rows) * len(rows)


@given(GROUPS, st.integers(70, 300), st.integers(1, 9), st.sampled_from(["tree", "bucket", "one"]), st.data())
def test_every_response_is_in_one_part_and_limits_are_bounds(groups, budget, most, layout, data):
    lengths = lengths_of(groups)
    every = np.arange(len(lengths.responses))
    asked = np.array(sorted(data.draw(st.sets(st.sampled_from(every.tolist()), min_size=1))))
    parts = plan_parts(lengths, asked, layouts=(layout,), max_responses=most, budget=budget)
    assert sorted(response for part in parts for response in part.responses) == asked.tolist()
    for part in parts:
        assert len(part.responses) <= most
        assert tokens_of(part, lengths) == part.fill.slots <= budget
        assert all(response // lengths.group == tree.prompt for tree in part.trees for response in tree.responses)


def test_the_cheaper_layout_is_chosen():
    long_prompts = lengths_of([(40, [5] * 8)] * 4)
    every = np.arange(32)
    chosen = plan_parts(long_prompts, every, layouts=("tree", "bucket"), max_responses=64, budget=2000)
    assert {part.layout for part in chosen} == {"tree"}
    single = lengths_of([(5, [12])] * 32)
    chosen = plan_parts(single, every, layouts=("tree", "bucket"), max_responses=64, budget=2000)
    assert {part.layout for part in chosen} == {"bucket"}
    assert cost(chosen) == 32 * 16


def test_a_response_above_the_budget_is_named_with_its_size():
    lengths = lengths_of([(10, [3, 4]), (10, [30, 2])])
    with pytest.raises(
        LengthError, match="response 0 to prompt 1 takes 39 tokens with its prompt, more than the budget"
    ):
        plan_parts(lengths, np.arange(4), layouts=("tree",), max_responses=4, budget=20)
