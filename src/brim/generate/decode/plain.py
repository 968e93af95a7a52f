"""Generate with the model's own attention and cache, for models whose cache cannot select rows.

Sliding windows and linear attention keep states that only the model itself understands. So the responses to one prompt
are computed together, one prompt at a time: they begin alike, so no row is ever padded. A row whose response has ended
is computed until the last one of its prompt has ended. `Choose` and the rows are those of `brim.generate.decode.loop`,
and so are the responses.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from brim.core.errors import BrimError
from brim.core.extras import need
from brim.core.fill import Fill
from brim.generate.decode.loop import DecodeLimits, DecodeStats, alone_out_of_memory
from brim.generate.decode.rows import Choose, Job, Row
from brim.generate.memory import OutOfMemory, watching_memory
from brim.generate.model import CausalModel

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="generate", user="brim.generate")


class PlainLoop:
    """Generates with one model, one prompt at a time."""

    def __init__(self, model: CausalModel, limits: DecodeLimits) -> None:
        self._model = model
        self.limits = limits
        self.stats = DecodeStats()

    def run(self, jobs: Sequence[Job], choose: Choose) -> Iterator[Row]:
        """Yield every row of the jobs when the responses to its prompt have ended.

        Raises:
            BrimError: One row alone runs out of memory.
        """
        waiting = deque(Job(job.ids, list(job.rows)) for job in jobs if job.rows)
        while waiting:
            job = waiting.popleft()
            rows, left = job.rows[: self.limits.rows], job.rows[self.limits.rows :]
            if left:
                waiting.appendleft(Job(job.ids, left))
            failed: BrimError | None = None
            with torch.no_grad(), self._model.evaluating():
                try:
                    with watching_memory():
                        self._generate(job, rows, choose)
                except OutOfMemory as error:
                    self.stats.memory_errors += 1
                    if len(rows) == 1:
                        failed = alone_out_of_memory(rows[0], error)
                    self.limits.rows = max(1, len(rows) // 2)
                    waiting.extendleft(_continued(row) for row in rows if row.ended is None)
                except BrimError as error:
                    failed = error
            self.stats.live = 0
            ended = [row for row in rows if row.ended is not None]
            self.stats.finished += len(ended)
            yield from ended
            if failed is not None:
                raise failed

    def _generate(self, job: Job, rows: list[Row], choose: Choose) -> None:
        device = self._model.device
        ids = torch.from_numpy(job.ids).to(device)[None].expand(len(rows), -1)
        cache: dict[str, Any] = {}
        self.stats.read_tokens += len(job.ids)
        self.stats.live = len(rows)
        # All logits but the last are left out by the hook, before the output layer computes them.
        with self._model.head_input(lambda hidden: hidden[:, -1:]):
            while True:
                output = self._model.inner(input_ids=ids, use_cache=True, **cache)
                cache = _cache_of(output)
                self._chosen(rows, output.logits[:, -1], choose)
                if all(row.ended is not None for row in rows):
                    return
                # Ended rows are fed their last token again; nothing looks at what comes of it.
                fed = [row.tokens[min(row.fed, len(row.tokens) - 1)] if row.tokens else 0 for row in rows]
                ids = torch.tensor(fed, device=device)[:, None]
                for row in rows:
                    row.fed = min(row.fed + 1, len(row.tokens))
                self.stats.steps += 1
                self.stats.fill += Fill(sum(row.ended is None for row in rows), len(rows))

    def _chosen(self, rows: list[Row], logits: "Tensor", choose: Choose) -> None:
        asked = [at for at, row in enumerate(rows) if row.ended is None and row.waits]
        if not asked:
            return
        waiting = [rows[at] for at in asked]
        before = sum(len(row.tokens) for row in waiting)
        choose(waiting, logits[asked])
        self.stats.tokens += sum(len(row.tokens) for row in waiting) - before


def _continued(row: Row) -> Job:
    """Return the job that reads a row's prompt and its tokens so far, and continues it."""
    row.fed = len(row.tokens)
    return Job(row.ids, [row])


def _cache_of(output: Any) -> dict[str, Any]:
    for name in ("past_key_values", "cache_params"):
        if getattr(output, name, None) is not None:
            return {name: getattr(output, name)}
    raise BrimError(f"the model returns no cache ({type(output).__name__}), so it cannot generate token by token")
