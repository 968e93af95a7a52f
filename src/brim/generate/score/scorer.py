"""Score the responses of a record: log-probabilities and entropies of their tokens, part by part.

The layout is chosen by the planner among those that the model supports. A layout of ours is checked against the plain
one, a single sequence with the model's own attention, when it is first used with a model; what differs by more than
rounding can explain is not used, with a warning. A part that runs out of memory is planned again with half the budget;
parts that were scored before it stay as they are.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import BrimError
from brim.core.extras import need
from brim.core.fill import Fill
from brim.generate.attention import UnsupportedAttention
from brim.generate.config import Law
from brim.generate.memory import OutOfMemory, watching_memory
from brim.generate.model import CausalModel
from brim.generate.rollouts import Response, Rollouts
from brim.generate.score.forward import Forward, inputs_of
from brim.generate.score.plan import LayoutName, Lengths, Part, plan_parts

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="generate", user="brim.generate")

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
ROUNDED = 1.0
"""Largest difference of log-probabilities between two layouts that rounding can explain, in nats: by type, and for
types with fewer bits."""
CHECKED: tuple[LayoutName, LayoutName] = ("one", "tree")
TELLING = 8
"""Tokens that a response has at least, if there is one, to be part of the check of a layout."""


@dataclass(frozen=True)
class Scored:
    """The scores of one part. Its columns hold the tokens of its responses, one response after the other."""

    responses: tuple[int, ...]
    """Numbers of the responses in the record: b * G + g."""
    lengths: tuple[int, ...]
    """Number of tokens of each of them."""
    logprobs: "Tensor"
    entropies: "Tensor"
    prompt_logprobs: "dict[int, Tensor]" = field(default_factory=dict[int, Any])
    """By the number of the prompt, if they were asked for."""
    sampling_logprobs: "Tensor | None" = None
    """A column under a second law, if it was asked for."""
    diagnostics: "dict[str, Tensor]" = field(default_factory=dict[str, Any])
    """Further columns by name, if they were asked for."""

    def split(self, column: "Tensor") -> "list[Tensor]":
        """Cut a column into one tensor for each response."""
        return list(column.split(list(self.lengths)))


@dataclass(frozen=True, kw_only=True)
class ScoreLimits:
    """How much is scored at once."""

    responses: int
    tokens: int


class Planned(NamedTuple):
    """Forward passes that score some responses, and how the model attends in them."""

    parts: list[Part]
    own: bool
    """Whether the model attends as it is set up to, instead of as the layout says."""


class Scorer:
    """Scores with one model, and remembers what it learned about it: layouts, rounding, memory."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self._forward = Forward(model)
        self._unsupported: str | None = None
        """Why the layouts of ours cannot be used with this model."""
        self._checked = False
        self.layout_noise: float | None = None
        """Largest difference between log-probabilities of two layouts, as measured when they were first used."""
        self.learnt_tokens: int | None = None
        """Upper limit of the tokens of a part that a lack of memory has taught."""
        self.fill = Fill()
        """Tokens of all parts so far out of the slots that were computed."""

    def scored(
        self,
        rollouts: Rollouts,
        *,
        law: Law,
        limits: ScoreLimits,
        grad: bool = False,
        prompts: bool = False,
        sampling: Law | None = None,
        diagnostics: tuple[int, ...] | None = None,
        adapter: bool = True,
        layout: LayoutName | None = None,
        around: Callable[[bool], Any] = lambda last: nullcontext(),
    ) -> Iterator[Scored]:
        """Yield the scores of all responses, part by part, each response once.

        Args:
            grad: Compute with gradients, through the model's wrapper.
            prompts: Score the prompts' own tokens, too.
            sampling: Score the responses under this law, too.
            diagnostics: The end tokens of the model, if diagnostics are asked for; they take a second forward pass.
            adapter: False computes without the model's LoRA adapters.
            layout: One layout for all parts, instead of the cheapest ones.
            around: Returns a context for each forward pass; its argument says whether it is the last one.

        Raises:
            LengthError: A response does not fit into the budget.
            BrimError: One response alone runs out of memory, or its logits are not finite.
        """
        lengths = Lengths(rollouts.prompt_lengths, rollouts.response_lengths, rollouts.G)
        waiting: NDArray[np.int64] = np.arange(len(rollouts), dtype=np.int64)
        with self._model.adapters(adapter):
            layouts, own = self._layouts(rollouts, lengths, layout)
        budget = min(limits.tokens, self.learnt_tokens or limits.tokens)
        parts = plan_parts(lengths, waiting, layouts=layouts, max_responses=limits.responses, budget=budget)
        while parts:
            part = parts.pop(0)
            last = not parts
            try:
                # The model is changed only while it computes, not while the caller has a part.
                with self._model.evaluating(), self._model.adapters(adapter), watching_memory(), around(last):
                    scored = self._score(
                        part,
                        rollouts,
                        law,
                        grad=grad,
                        prompts=prompts,
                        sampling=sampling,
                        diagnostics=diagnostics,
                        own=own,
                    )
            except OutOfMemory as error:
                budget = self._halved(part, lengths, error)
                left = [part, *parts]
                waiting = np.sort(np.array([number for one in left for number in one.responses], np.int64))
                parts = plan_parts(lengths, waiting, layouts=layouts, max_responses=limits.responses, budget=budget)
                continue
            self.fill += part.fill
            yield scored

    @property
    def device(self) -> "torch.device":
        """The device that scores are computed on."""
        return self._model.device

    def prepare(self) -> None:
        """Find out which layouts the model supports, with tokens of no meaning.

        Without this it is found out when responses are first scored; ranks that compute in step must all do it at once.
        """
        if self._checked:
            return
        size = min(self._model.known_tokens, self._model.vocabulary)
        prompt, *responses = (np.arange(TELLING, dtype=np.int32) * (3 + number) % size for number in range(3))
        drawn = [
            Response(prompt=0, sample=number, text="", finish_reason="length", token_ids=ids)
            for number, ids in enumerate(responses)
        ]
        rollouts = Rollouts.collect([prompt], drawn, G=2, seed=0)
        self._check(rollouts, Lengths(rollouts.prompt_lengths, rollouts.response_lengths, rollouts.G))

    def plan(self, rollouts: Rollouts, responses: NDArray[np.int64], limits: ScoreLimits) -> Planned:
        """Plan forward passes that score these responses, whose numbers rise, each once.

        Raises:
            LengthError: A response does not fit into the budget.
        """
        lengths = Lengths(rollouts.prompt_lengths, rollouts.response_lengths, rollouts.G)
        layouts, own = self._layouts(rollouts, lengths, None)
        parts = plan_parts(lengths, responses, layouts=layouts, max_responses=limits.responses, budget=limits.tokens)
        return Planned(parts, own)

    def score_part(
        self,
        part: Part,
        rollouts: Rollouts,
        law: Law,
        *,
        grad: bool,
        own: bool,
        kept: NDArray[np.bool_] | None = None,
        adapter: bool = True,
    ) -> Scored:
        """Score one part of a plan.

        Args:
            kept: One entry for each token of `rollouts.response_ids`; the tokens with False are read and not scored.

        Raises:
            BrimError: The part runs out of memory, or its logits are not finite.
        """
        try:
            with self._model.evaluating(), self._model.adapters(adapter), watching_memory():
                return self._score(part, rollouts, law, grad=grad, prompts=False, own=own, kept=kept)
        except OutOfMemory as error:
            raise BrimError(
                f"a microbatch of {part.fill.slots} tokens runs out of memory; lower the token budget ({error})"
            ) from None

    def _score(
        self,
        part: Part,
        rollouts: Rollouts,
        law: Law,
        *,
        grad: bool,
        prompts: bool,
        sampling: Law | None = None,
        diagnostics: tuple[int, ...] | None = None,
        own: bool,
        kept: NDArray[np.bool_] | None = None,
    ) -> Scored:
        """Score a part. `own` lets the model attend as it is set up to, instead of as the layout says."""
        inputs = inputs_of(part, rollouts, self._model.device)
        lengths = tuple(len(rollouts.response(number)) for number in part.responses)
        if kept is not None:
            columns = [kept[rollouts.response_offsets[n] : rollouts.response_offsets[n + 1]] for n in part.responses]
            wanted = torch.from_numpy(np.concatenate(columns)).to(self._model.device)
            inputs = inputs._replace(places=inputs.places[wanted], targets=inputs.targets[wanted])
            lengths = tuple(int(column.sum()) for column in columns)
        selected, before, drawn = self._forward.score(
            inputs, law, grad=grad, own_attention=own, prompts=prompts, sampling=sampling
        )
        numbers = part.responses
        further: dict[str, Tensor] = {}
        if diagnostics is not None:
            further = self._forward.diagnosed(inputs, diagnostics, own_attention=own)
        scored = Scored(
            responses=numbers,
            lengths=lengths,
            logprobs=selected.logprobs,
            entropies=selected.entropies,
            prompt_logprobs={} if before is None else _by_prompt(part, rollouts, before),
            sampling_logprobs=drawn,
            diagnostics=further,
        )
        _check_finite(scored, rollouts)
        return scored

    def _halved(self, part: Part, lengths: Lengths, error: OutOfMemory) -> int:
        """Return half of the tokens of a part that ran out of memory, and remember them."""
        numbers = np.array(part.responses, np.int64)
        if len(numbers) == 1:
            number = int(numbers[0])
            raise BrimError(
                f"response {number % lengths.group} to prompt {lengths.prompt_of(number)} alone runs out of memory: "
                f"{lengths.alone(numbers)[0]} tokens ({error})"
            )
        longest = int(lengths.alone(numbers).max())
        self.learnt_tokens = max(longest, part.fill.slots // 2)
        return self.learnt_tokens

    def _layouts(
        self, rollouts: Rollouts, lengths: Lengths, asked: LayoutName | None
    ) -> tuple[tuple[LayoutName, ...], bool]:
        """Return the layouts among which the planner chooses, and whether the model's own attention must be used."""
        if asked == "one" or len(rollouts) == 0:
            return ("one",), True
        every = lengths.alone(np.arange(len(rollouts), dtype=np.int64))
        window = self._model.window
        if window is not None and int(every.max()) > window:
            return ("bucket",), True
        if not self._checked:
            self._check(rollouts, lengths)
        if self._unsupported is not None:
            return ("bucket",), True
        return (("tree", "bucket") if asked is None else (asked,)), False

    def _check(self, rollouts: Rollouts, lengths: Lengths) -> None:
        """Compare a tree with its sequences alone: two responses to one prompt, short ones that say something."""
        group = lengths.responses.reshape(-1, rollouts.G)
        preferred = np.where(group >= TELLING, group, 2 * int(group.max()) + TELLING - group)
        few = np.argsort(preferred, axis=1, kind="stable")[:, :2]
        sizes = lengths.prompts + np.take_along_axis(group, few, axis=1).sum(axis=1)
        prompt = int((lengths.prompts + np.take_along_axis(preferred, few, axis=1).sum(axis=1)).argmin())
        numbers = prompt * rollouts.G + few[prompt].astype(np.int64)
        law = Law()
        found: list[Tensor] = []
        self._checked = True
        try:
            with torch.no_grad(), self._model.evaluating():
                for layout in CHECKED:
                    parts = plan_parts(
                        lengths, np.sort(numbers), layouts=(layout,), max_responses=2, budget=int(sizes[prompt]) + 2
                    )
                    own = layout == "one"
                    scored = [self._score(part, rollouts, law, grad=False, prompts=True, own=own) for part in parts]
                    found.append(torch.cat([one.logprobs for one in scored]))
        except UnsupportedAttention as reason:
            self._give_up(f"because {reason}")
            return
        noise = float((found[0] - found[1]).abs().max()) if len(found[0]) else 0.0
        self.layout_noise = max(noise, self.layout_noise or 0.0)
        if noise > TOLERANCE.get(self._model.computes_in, ROUNDED):
            self._give_up(f"because their log-probabilities differ by {noise:.2g}")
            return

    def _give_up(self, reason: str) -> None:
        self._unsupported = reason
        warnings.warn(
            f"{self._model.name} is scored in padded rows instead of prefix trees, {reason}",
            RuntimeWarning,
            stacklevel=5,
        )


def _by_prompt(part: Part, rollouts: Rollouts, column: "Tensor") -> "dict[int, Tensor]":
    """Cut the log-probabilities of prompts. A prompt that has several rows is the same in all of them."""
    rows = [tree.prompt for tree in part.trees for _ in (tree.responses if part.layout != "tree" else (0,))]
    pieces = column.split([len(rollouts.prompt(prompt)) - 1 for prompt in rows])
    return dict(zip(rows, pieces, strict=True))


def _check_finite(scored: Scored, rollouts: Rollouts) -> None:
    bad = torch.isnan(scored.logprobs) | torch.isnan(scored.entropies)
    if not bool(bad.any().item()):
        return
    at = int(bad.int().argmax())
    number = int(np.searchsorted(np.cumsum(scored.lengths), at, side="right"))
    response = scored.responses[number]
    raise BrimError(
        f"the model's logits for response {response % rollouts.G} to prompt {response // rollouts.G} are not finite; "
        "its weights are damaged, or a number overflowed"
    )
