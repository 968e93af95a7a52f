"""One forward pass of scoring: the tokens of a part, and the positions and targets of what is scored in it."""

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from brim.core.errors import BrimError
from brim.core.extras import need
from brim.generate.attention import Causal, Layout, Span, Tree
from brim.generate.config import Law
from brim.generate.model import CausalModel
from brim.generate.rollouts import Rollouts
from brim.generate.score.diagnostics import NAMES, diagnose
from brim.generate.score.plan import Part
from brim.generate.score.selected import Head, Selected, chunk_rows, select, select_from_logits

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="generate", user="brim.generate")


class Inputs(NamedTuple):
    """The tokens that the model reads, and the places at which its predictions are looked up."""

    input_ids: "Tensor"
    """[rows, width]"""
    position_ids: "Tensor"
    layout: Layout
    places: "Tensor"
    """Indices into the flattened rows: one for each scored token, the place of the token before it."""
    targets: "Tensor"
    """The scored tokens: those of the part's responses, one response after the other."""
    prompt_places: "Tensor"
    prompt_targets: "Tensor"
    """The same for the tokens of the prompts, without the first one, which nothing predicts."""


class Scores(NamedTuple):
    """The results of one forward pass."""

    selected: Selected
    prompt_logprobs: "Tensor | None"
    """Log-probabilities of the prompts' own tokens, if they were asked for."""
    sampling_logprobs: "Tensor | None"
    """Log-probabilities of the responses' tokens under a second law, if it was asked for."""


def inputs_of(part: Part, rollouts: Rollouts, device: Any) -> Inputs:
    """Lay out the tokens of a part."""
    return _flat(part, rollouts, device) if part.layout == "tree" else _padded(part, rollouts, device)


def _flat(part: Part, rollouts: Rollouts, device: Any) -> Inputs:
    ids: list[Any] = []
    positions: list[Any] = []
    places: list[Any] = []
    targets: list[Any] = []
    prompt_places: list[Any] = []
    prompt_targets: list[Any] = []
    spans: list[Span] = []
    at = 0
    for tree in part.trees:
        prompt = rollouts.prompt(tree.prompt)
        size = len(prompt)
        root = at + size - 1
        ids.append(prompt)
        positions.append(np.arange(size))
        prompt_places.append(at + np.arange(size - 1))
        prompt_targets.append(prompt[1:])
        at += size
        branches: list[int] = []
        for number in tree.responses:
            response = rollouts.response(number)
            read = response[:-1]
            ids.append(read)
            positions.append(size + np.arange(len(read)))
            if len(response):
                places.append(np.concatenate([[root], at + np.arange(len(read))]))
                targets.append(response)
            branches.append(len(read))
            at += len(read)
        spans.append(Span(size, tuple(branches)))
    return Inputs(
        _tensor(ids, device)[None],
        _tensor(positions, device)[None],
        Tree(spans, device),
        _tensor(places, device),
        _tensor(targets, device),
        _tensor(prompt_places, device),
        _tensor(prompt_targets, device),
    )


def _padded(part: Part, rollouts: Rollouts, device: Any) -> Inputs:
    rows = [
        (rollouts.prompt(tree.prompt), rollouts.response(number)) for tree in part.trees for number in tree.responses
    ]
    width = max(len(prompt) + max(len(response) - 1, 0) for prompt, response in rows)
    ids = np.zeros((len(rows), width), np.int64)  # any id will do behind the end of a row
    places: list[Any] = []
    targets: list[Any] = []
    prompt_places: list[Any] = []
    prompt_targets: list[Any] = []
    for row, (prompt, response) in enumerate(rows):
        size = len(prompt)
        ids[row, :size] = prompt
        ids[row, size : size + max(len(response) - 1, 0)] = response[:-1]
        start = row * width + size - 1
        places.append(start + np.arange(len(response)))
        targets.append(response)
        prompt_places.append(row * width + np.arange(size - 1))
        prompt_targets.append(prompt[1:])
    return Inputs(
        torch.from_numpy(ids).to(device),
        torch.arange(width, device=device)[None].expand(len(rows), -1),
        Causal(width),
        _tensor(places, device),
        _tensor(targets, device),
        _tensor(prompt_places, device),
        _tensor(prompt_targets, device),
    )


def _tensor(parts: list[Any], device: Any) -> "Tensor":
    joined = np.concatenate([np.asarray(part, np.int64) for part in parts]) if parts else np.empty(0, np.int64)
    return torch.from_numpy(joined).to(device)


class Forward:
    """Forward passes of one model. What the model does behind its output layer is found out in the first one."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self._known: tuple[float, float | None] | None = None
        self._whole = False
        """Whether the model's own logits must be used, because they are no known function of a linear layer."""

    def hidden(self, inputs: Inputs, *, grad: bool, own_attention: bool) -> "tuple[Tensor, Tensor]":
        """Return the states in front of the output layer, [rows * width, size], and the model's logits for the first.

        With `own_attention` the model attends as it is set up to; else as the layout says.
        """
        seen: list[Tensor] = []

        def first(hidden: "Tensor") -> "Tensor":
            seen.append(hidden)
            return hidden[:1, :1]

        logits = self._run(inputs, first, grad=grad, own_attention=own_attention)
        return seen[0].reshape(-1, seen[0].shape[-1]), logits[0]

    def _run(self, inputs: Inputs, replace: Any, *, grad: bool, own_attention: bool) -> "Tensor":
        model = self._model
        call = model.outer if grad else model.inner
        given: dict[str, Any] = {"input_ids": inputs.input_ids, "use_cache": False}
        if not own_attention:
            given["position_ids"] = inputs.position_ids
        with torch.set_grad_enabled(grad), model.head_input(replace):
            if own_attention:
                return call(**given).logits
            with model.attending(inputs.layout):
                return call(**given).logits

    def score(
        self,
        inputs: Inputs,
        law: Law,
        *,
        grad: bool,
        own_attention: bool,
        prompts: bool = False,
        sampling: Law | None = None,
    ) -> Scores:
        """Score the responses' tokens, under `sampling` too if it is given, and the prompts' own with `prompts`."""
        if self._whole:
            return self._score_whole(inputs, law, grad, own_attention, prompts, sampling)
        hidden, logits = self.hidden(inputs, grad=grad, own_attention=own_attention)
        head = self._head(hidden, logits)
        if head is None:
            self._whole = True
            return self._score_whole(inputs, law, grad, own_attention, prompts, sampling)
        before = drawn = None
        with torch.set_grad_enabled(grad):
            chosen = hidden[inputs.places]
            selected = select(chosen, inputs.targets, head, law)
            if sampling is not None:
                drawn = select(chosen, inputs.targets, head, sampling).logprobs
            if prompts:
                before = select(hidden[inputs.prompt_places], inputs.prompt_targets, head, law).logprobs
        return Scores(selected, before, drawn)

    def diagnosed(self, inputs: Inputs, end_tokens: tuple[int, ...], *, own_attention: bool) -> "dict[str, Tensor]":
        """Return the diagnostics of the responses' tokens, by name, by a forward pass without gradients."""
        hidden, logits = self.hidden(inputs, grad=False, own_attention=own_attention)
        head = None if self._whole else self._head(hidden, logits)
        with torch.no_grad():
            if head is None:
                chosen = partial(_gathered, places=inputs.places)
                whole = self._run(inputs, chosen, grad=False, own_attention=own_attention)
                return diagnose(whole[0], end_tokens)
            step = chunk_rows(head.weight.shape[0])
            parts = [
                diagnose(head.logits(hidden[places], head.weight, head.bias), end_tokens)
                for places in inputs.places.split(step)
            ]
        return {name: torch.cat([part[name] for part in parts]) for name in NAMES}

    def _score_whole(
        self, inputs: Inputs, law: Law, grad: bool, own_attention: bool, prompts: bool, sampling: Law | None
    ) -> Scores:
        places = torch.cat([inputs.places, inputs.prompt_places]) if prompts else inputs.places
        logits = self._run(inputs, partial(_gathered, places=places), grad=grad, own_attention=own_attention)[0]
        count = len(inputs.places)
        before = drawn = None
        with torch.set_grad_enabled(grad):
            selected = select_from_logits(logits[:count], inputs.targets, law)
            if sampling is not None:
                drawn = select_from_logits(logits[:count], inputs.targets, sampling).logprobs
            if prompts:
                before = select_from_logits(logits[count:], inputs.prompt_targets, law).logprobs
        return Scores(selected, before, drawn)

    def _head(self, hidden: "Tensor", logits: "Tensor") -> Head | None:
        """Return the output layer as a `Head`, or None if it is more than a linear layer, a factor and a cap."""
        layer = self._model.head
        if type(layer) is not torch.nn.Linear:
            return None
        if self._known is None:
            self._known = _transform(layer(hidden[:1]).detach(), logits.detach(), self._model.config)
            if self._known is None:
                return None
        factor, softcap = self._known
        return Head(layer.weight, layer.bias, factor, softcap)


def _gathered(hidden: "Tensor", places: "Tensor") -> "Tensor":
    return hidden.reshape(-1, hidden.shape[-1])[places][None]


@torch.no_grad()
def _transform(raw: "Tensor", logits: "Tensor", config: Any) -> tuple[float, float | None] | None:
    """Find out what a model does behind its output layer: multiply by a factor, after a cap if its config names one."""
    raw, logits = raw.float().reshape(-1), logits.float().reshape(-1)
    if not bool(torch.isfinite(logits).all().item()):
        raise BrimError("the model's logits are not finite; its weights are damaged, or a number overflowed")
    cap = getattr(config, "final_logit_softcapping", None)
    for softcap in (None, float(cap)) if cap else (None,):
        capped = raw if softcap is None else torch.tanh(raw / softcap) * softcap
        largest = int(capped.abs().argmax())
        factor = float(logits[largest] / capped[largest]) if float(capped[largest]) else 1.0
        factor = 1.0 if abs(factor - 1) < 1e-3 else factor
        if bool(torch.allclose(capped * factor, logits, rtol=1e-3, atol=1e-3 * float(logits.abs().max()))):
            return factor, softcap
    return None
