"""Choose the loop that a model is generated with, before anything is generated.

A few tokens are generated in rows of different length, and their logits are compared with those of plain forward passes
over whole sequences. A model that raises an error, or differs by more than rounding can explain, is generated with
through its own cache instead (`brim.generate.decode.plain`).
"""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from brim.core.extras import need
from brim.generate.decode.loop import DecodeLimits, DecodeLoop
from brim.generate.decode.plain import PlainLoop
from brim.generate.decode.rows import Job, Row
from brim.generate.memory import OutOfMemory, watching_memory
from brim.generate.model import CausalModel
from brim.generate.score.scorer import ROUNDED, TOLERANCE

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="generate", user="brim.generate")

PROMPTS = ((1, 5, 2, 7, 3), (4, 6))
SCRIPT = (8, 9, 3)
"""Tokens of the sequences that are compared, taken modulo the vocabulary."""


class Loops:
    """Chooses between the loops for one model, which is checked when the first one is asked for."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self._reason: str | None = None
        self._checked = False
        self._warned = False

    def loop(self, longest: int, limits: DecodeLimits) -> DecodeLoop | PlainLoop:
        """Return the faster loop that the model supports for sequences of up to `longest` tokens.

        A warning says, once, that it is the slower one and why.
        """
        if not self._checked:
            self._reason = why_not_in_rows(self._model)
            self._checked = True
        reason = self._reason
        window = self._model.window
        if reason is None and window is not None and longest > window:
            reason = f"because its attention has a window of {window} tokens and a response may end at token {longest}"
        if reason is None:
            return DecodeLoop(self._model, limits)
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._model.name} is generated with one prompt at a time, which is slower, {reason}",
                RuntimeWarning,
                stacklevel=4,
            )
        return PlainLoop(self._model, limits)


def why_not_in_rows(model: CausalModel) -> str | None:
    """Return why a model cannot be generated with in rows of our cache; None if it can."""
    try:
        with watching_memory():
            difference = _difference(model)
    except OutOfMemory:
        raise
    except Exception as error:  # a foreign model can fail in any way on a cache that is not its own
        return f"because {' '.join(str(error).split())[:200] or type(error).__name__}"
    if difference > TOLERANCE.get(model.computes_in, ROUNDED):
        return f"because its logits differ by {difference:.2g}"
    return None


def _difference(model: CausalModel) -> float:
    vocabulary = min(model.known_tokens, model.vocabulary)
    script = [token % vocabulary for token in SCRIPT]
    seen: dict[int, list[Tensor]] = {0: [], 1: []}

    def choose(rows: Sequence[Row], logits: "Tensor") -> None:
        for row, one in zip(rows, logits, strict=True):
            seen[row.key].append(torch.log_softmax(one.float(), dim=0))
            row.tokens.append(script[len(row.tokens)])
            # The rows end at different times, so that one of them is moved.
            row.ended = "length" if len(row.tokens) == row.limit else None

    prompts = [np.array(prompt, np.int32) % vocabulary for prompt in PROMPTS]
    rows = [Row(key, prompt, len(script) - 1 + key) for key, prompt in enumerate(prompts)]
    loop = DecodeLoop(model, DecodeLimits(rows=2))
    for _ in loop.run([Job(row.ids, [row]) for row in rows], choose):
        pass
    worst = 0.0
    with torch.no_grad(), model.evaluating():
        for row in rows:
            ids = torch.from_numpy(row.ids[:-1]).to(model.device)[None]
            whole = torch.log_softmax(model.inner(input_ids=ids, use_cache=False).logits[0].float(), dim=1)
            wanted = whole[len(row.prompt) - 1 :]
            worst = max(worst, float((torch.stack(seen[row.key]) - wanted).abs().max()))
    return worst
