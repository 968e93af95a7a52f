"""Curves of a run on Weights & Biases, if they are asked for. Nothing is sent otherwise."""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from brim.cli.generate.progress import Tally
from brim.core.errors import MissingExtraError

EVERY = 1.0
"""Seconds between two points of the curves, at least."""


class Curves:
    """Nothing is logged: --wandb was not given."""

    def log(self, tally: Tally) -> None:
        """Add a point, unless the latest one is too recent."""


class WandbCurves(Curves):
    """Curves of a run of wandb. The horizontal axis is the number of finished responses."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._latest = time.monotonic()

    def log(self, tally: Tally) -> None:
        if time.monotonic() - self._latest >= EVERY:
            self.log_now(tally)

    def log_now(self, tally: Tally) -> None:
        """Add a point."""
        self._latest = time.monotonic()
        self._run.log(_point(tally), step=tally.ended)


@contextmanager
def curves(
    project: str | None, *, name: str, options: Mapping[str, Any], tally: Tally
) -> Generator[Curves, None, None]:
    """Log to a project within the block, with a last point at its end; to nothing if there is no project.

    Raises:
        MissingExtraError: wandb is not installed.
    """
    if project is None:
        yield Curves()
        return
    run = load_wandb().init(project=project, name=name, config=dict(options), job_type="generate")
    drawn = WandbCurves(run)
    try:
        yield drawn
        drawn.log_now(tally)
    except BaseException:  # Ctrl-C too: the run is marked as failed, and what was logged is sent
        run.finish(exit_code=1)
        raise
    run.finish()


def load_wandb() -> Any:
    """Import wandb, which is no dependency of brim.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return import_module("wandb")
    except ModuleNotFoundError as error:
        if error.name != "wandb":
            raise
        raise MissingExtraError("--wandb needs wandb, which is not installed; run: pip install wandb") from None


def _point(tally: Tally) -> dict[str, Any]:
    totals = tally.totals
    point: dict[str, Any] = {
        "responses": tally.ended,
        "tokens_per_second": tally.tokens_per_second,
        "mean_length": totals.mean_length,
        "entropy": totals.mean_entropy,
        "pass_rate": totals.pass_rate,
        **{f"finish_reason/{reason}": count for reason, count in totals.finish_reasons.items()},
    }
    if tally.decoding is not None:
        stats = tally.decoding()
        point |= {"live_rows": stats.live, "fill": stats.fill.ratio}
    return {name: value for name, value in point.items() if value is not None}
