"""Plan the forward passes of scoring: which responses are computed together, and in which layout.

A response of n tokens behind a prompt of p needs p + n - 1 tokens in the model: its last token predicts nothing. In a
tree, the prompt counts once for all responses behind it; in a bucket, every response has a row of its own, padded to
the longest one. Only lengths are looked at here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import LengthError
from brim.core.fill import Fill
from brim.plan.grouping.group import group_sorted
from brim.plan.packing.pack import pack

LayoutName = Literal["tree", "bucket", "one"]
CALL = 4
"""Tokens whose computation takes as long as one more call of the attention kernel; it decides between layouts."""
DENSE = 256
"""Tokens up to which a tree is attended to with a mask, so that all trees of a part need one call of the kernel. A
longer one needs a call for its prompt and one for each response, which compute nothing that is masked."""


@dataclass(frozen=True)
class Branches:
    """Some responses to one prompt, computed in one tree."""

    prompt: int
    responses: tuple[int, ...]
    """Numbers of the responses in the record."""
    tokens: int
    """Tokens of the prompt and of all responses together."""


@dataclass(frozen=True)
class Part:
    """The responses of one forward pass."""

    layout: LayoutName
    trees: tuple[Branches, ...]
    fill: Fill

    @property
    def responses(self) -> tuple[int, ...]:
        return tuple(response for tree in self.trees for response in tree.responses)


@dataclass(frozen=True)
class Lengths:
    """The lengths of a record, and the number of responses to each prompt."""

    prompts: NDArray[np.int64]
    responses: NDArray[np.int64]
    group: int

    def prompt_of(self, response: int) -> int:
        return response // self.group

    def behind(self, responses: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens that each response adds behind its prompt."""
        return np.maximum(self.responses[responses] - 1, 0)

    def alone(self, responses: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens of each response with its prompt."""
        return self.prompts[responses // self.group] + self.behind(responses)


def plan_parts(
    lengths: Lengths,
    responses: NDArray[np.int64],
    *,
    layouts: Sequence[LayoutName],
    max_responses: int,
    budget: int,
) -> list[Part]:
    """Plan forward passes in which every one of `responses` appears once, in the cheapest of the layouts.

    No part has more than `max_responses` responses or `budget` tokens, padding included.

    Raises:
        LengthError: A response with its prompt has more tokens than the budget.
    """
    if len(responses) == 0:
        return []
    alone = lengths.alone(responses)
    if int(alone.max()) > budget:
        worst = int(responses[alone.argmax()])
        raise LengthError(
            f"response {worst % lengths.group} to prompt {lengths.prompt_of(worst)} takes {alone.max()} tokens with "
            f"its prompt, more than the budget of {budget} tokens; raise tf_token_budget (or memory_budget)"
        )
    plans = [_PLANS[layout](lengths, responses, max_responses, budget) for layout in layouts]
    return min(plans, key=cost)


def cost(parts: Sequence[Part]) -> int:
    """Return the cost of a plan in tokens: all slots, and the calls of the attention kernel that trees need."""
    slots = sum(part.fill.slots for part in parts)
    return slots + CALL * sum(_calls(part) for part in parts if part.layout == "tree")


def _calls(part: Part) -> int:
    """Return the calls of the attention kernel that a part of trees needs."""
    if all(tree.tokens <= DENSE for tree in part.trees):
        return 1
    return sum(len(tree.responses) + 1 for tree in part.trees)


def _plan_trees(lengths: Lengths, responses: NDArray[np.int64], max_responses: int, budget: int) -> list[Part]:
    trees: list[Branches] = []
    sizes: list[int] = []
    bounds = np.flatnonzero(np.diff(responses // lengths.group)) + 1
    for group in np.split(responses, bounds):
        prompt = lengths.prompt_of(int(group[0]))
        root = int(lengths.prompts[prompt])
        behind = lengths.behind(group)
        for branches in _packed(behind, max(budget - root, 1), max_responses):
            sizes.append(root + int(behind[branches].sum()))
            trees.append(Branches(prompt, tuple(group[branches].tolist()), sizes[-1]))
    most = max(1, max_responses // max(len(tree.responses) for tree in trees))
    parts: list[Part] = []
    for row in _packed(np.array(sizes), budget, most):
        tokens = sum(sizes[index] for index in row)
        parts.append(Part("tree", tuple(trees[index] for index in row), Fill(tokens, tokens)))
    return parts


def _packed(sizes: NDArray[np.int64], capacity: int, most: int) -> list[NDArray[np.int64]]:
    rows = pack(sizes, max(capacity, int(sizes.max(initial=1))), max_sequences=most)
    return [np.sort(np.asarray(row, np.int64)) for row in rows]


def _plan_buckets(lengths: Lengths, responses: NDArray[np.int64], max_responses: int, budget: int) -> list[Part]:
    width = lengths.alone(responses).astype(np.int32)
    groups = group_sorted(width, budget=budget, max_rows=max_responses)
    parts: list[Part] = []
    for begin, end in zip(groups.ptr[:-1].tolist(), groups.ptr[1:].tolist(), strict=True):
        rows = groups.order[begin:end]
        widths = width[rows]
        fill = Fill(int(widths.sum()), int(widths.max()) * len(rows))
        single = (_single(lengths, int(responses[row]), int(width[row])) for row in rows)
        parts.append(Part("bucket", tuple(single), fill))
    return parts


def _plan_one(lengths: Lengths, responses: NDArray[np.int64], max_responses: int, budget: int) -> list[Part]:
    return [
        Part("one", (_single(lengths, response, size),), Fill(size, size))
        for response, size in zip(responses.tolist(), lengths.alone(responses).tolist(), strict=True)
    ]


def _single(lengths: Lengths, response: int, tokens: int) -> Branches:
    return Branches(lengths.prompt_of(response), (response,), tokens)


_PLANS = {"tree": _plan_trees, "bucket": _plan_buckets, "one": _plan_one}
