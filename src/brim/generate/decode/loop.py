"""Generate: read prompts, planned by length, and continue them token by token, in as many rows as fit.

A prompt is read once, and all its responses continue from there. A row leaves as soon as its response ends, and when a
quarter of the rows are free, further prompts are read. What a response becomes does not depend on its neighbours: which
token is chosen is up to `Choose`, which sees one row of logits for each response.

When memory runs out, half of the rows are put back. They keep their tokens, which are read again later together with
their prompts; no token is chosen twice. The number of rows that fitted is remembered.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from brim.core.arrays import ceil_div
from brim.core.errors import BrimError, LengthError
from brim.core.extras import need
from brim.core.fill import Fill
from brim.generate.attention import Causal, Rows, UnsupportedAttention
from brim.generate.decode.cache import KeyValues, PromptCache, RowCache
from brim.generate.decode.rows import Choose, Job, Row
from brim.generate.memory import OutOfMemory, watching_memory
from brim.generate.model import CausalModel
from brim.plan.grouping.group import group_sorted

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="generate", user="brim.generate")

REFILL = 0.75
"""Share of the rows that may be live when further prompts are read."""
READ_AT_ONCE = 4096
"""Tokens of prompts that are read in one forward pass, by default."""


@dataclass
class DecodeStats:
    """Counters of the loop. One thread counts, another one may show them."""

    live: int = 0
    """Rows that are generated at the moment."""
    steps: int = 0
    tokens: int = 0
    """Tokens that were chosen."""
    read_tokens: int = 0
    """Tokens of prompts that were read."""
    finished: int = 0
    memory_errors: int = 0
    """How often memory ran out."""
    fill: Fill = field(default_factory=Fill)
    """Tokens in the cache out of the columns that were attended to, over all steps."""


@dataclass
class DecodeLimits:
    """How much is computed at once. A lack of memory lowers `rows` and `read_tokens`, and they stay low."""

    rows: int
    tokens: int | None = None
    """Upper limit of rows times columns of the cache."""
    read_tokens: int = READ_AT_ONCE
    """Upper limit of the tokens of prompts that are read in one forward pass, unless one prompt has more."""


class _Read(NamedTuple):
    """A sequence that was read, and is kept until all its rows have a place."""

    states: list[KeyValues]
    job: Job
    """Its `rows` are those that wait to continue it."""


class DecodeLoop:
    """Generates with one model. `run` can be called again, but not while another one is under way."""

    def __init__(self, model: CausalModel, limits: DecodeLimits) -> None:
        self._model = model
        self.limits = limits
        self.stats = DecodeStats()

    def run(self, jobs: Sequence[Job], choose: Choose) -> Iterator[Row]:
        """Yield every row of the jobs when its response has ended.

        Raises:
            LengthError: A row does not fit into the token budget.
            BrimError: One row alone runs out of memory.
        """
        return _Run(self._model, self.limits, self.stats, choose, jobs).rows()


class _Run:
    def __init__(
        self, model: CausalModel, limits: DecodeLimits, stats: DecodeStats, choose: Choose, jobs: Sequence[Job]
    ) -> None:
        self._model = model
        self._limits = limits
        self._stats = stats
        self._choose = choose
        self._cache = self._new_cache([row for job in jobs for row in job.rows])
        self._live: list[Row] = []
        self._read: deque[_Read] = deque()
        self._waiting: deque[list[Job]] = deque(self._planned(jobs))
        self._reading: list[Job] = []
        """The sequences of the forward pass that is under way, if it reads prompts."""
        self._ended: list[Row] = []

    def _new_cache(self, rows: list[Row]) -> RowCache:
        return RowCache(min(self._limits.rows, len(rows)), max((row.longest for row in rows), default=1))

    def rows(self) -> Iterator[Row]:
        failed: BrimError | None = None
        while failed is None and (self._live or self._read or self._waiting):
            # The model is in evaluation mode only while it computes, not while the caller has a response.
            with torch.no_grad(), self._model.evaluating():
                try:
                    with watching_memory():
                        self._admit()
                        if self._live:
                            self._step()
                except OutOfMemory as error:
                    failed = self._put_back(error)
                except BrimError as error:
                    failed = error
            self._stats.live = len(self._live)
            ended, self._ended = self._ended, []
            self._stats.finished += len(ended)
            yield from ended
        if failed is not None:
            raise failed

    def _planned(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Group sequences of similar length that are read together: as many as fill the rows that become free."""
        jobs = [job for job in jobs if job.rows]
        if not jobs:
            return []
        lengths = np.array([len(job.ids) for job in jobs], np.int32)
        most = max(len(job.rows) for job in jobs)
        groups = group_sorted(
            lengths,
            budget=max(self._limits.read_tokens, int(lengths.max())),
            max_rows=max(1, ceil_div(int((1 - REFILL) * self._limits.rows), most)),
        )
        bounds = zip(groups.ptr[:-1].tolist(), groups.ptr[1:].tolist(), strict=True)
        return [[jobs[number] for number in groups.order[begin:end].tolist()] for begin, end in bounds]

    def _admit(self) -> None:
        """Fill the free rows, and read further prompts if enough of them are free."""
        while len(self._live) < self._limits.rows:
            if not self._read:
                if not self._waiting or len(self._live) > REFILL * self._limits.rows:
                    return
                groups = self._groups_to_read()
                self._reading = [job for group in groups for job in group]
                self._read.extend(self._read_prompts(self._reading))
                for _ in groups:
                    self._waiting.popleft()
                self._reading = []
            free = self._room(self._read[0])
            if free == 0:
                return
            self._place(self._read[0], free)
            if not self._read[0].job.rows:
                self._read.popleft()

    def _groups_to_read(self) -> list[list[Job]]:
        """Return the next groups that are read in one forward pass: as many as the free rows and the limit allow."""
        chosen = [self._waiting[0]]
        free = self._limits.rows - len(self._live)
        rows = tokens = count = longest = 0
        for group in self._waiting:
            rows += sum(len(job.rows) for job in group)
            tokens += sum(len(job.ids) for job in group)
            count += len(group)
            longest = max(longest, *(len(job.ids) for job in group))
            # Padding must not cost more than the forward passes that are saved.
            if rows > free or count * longest > min(self._limits.read_tokens, 1.25 * tokens + 64):
                break
            if group is not chosen[0]:
                chosen.append(group)
        return chosen

    def _room(self, read: _Read) -> int:
        """Return how many rows of a sequence can be continued now."""
        rows = read.job.rows
        free = min(self._limits.rows - len(self._live), len(rows))
        budget = self._limits.tokens
        if budget is None:
            return free
        width = max(row.longest for row in (*self._live, *rows))
        if width > budget:
            row = max(rows, key=lambda row: row.longest)
            raise LengthError(
                f"a prompt of {len(row.prompt)} tokens and a response of up to {row.limit} take {row.longest} tokens, "
                f"more than the budget of {budget}; raise gen_token_budget (or memory_budget), or lower max_new_tokens"
            )
        return max(0, min(free, budget // width - len(self._live)))

    def _read_prompts(self, jobs: list[Job]) -> list[_Read]:
        lengths = [len(job.ids) for job in jobs]
        width = max(lengths)
        ids = np.zeros((len(jobs), width), np.int64)  # any id will do behind the end of a row
        for row, job in enumerate(jobs):
            ids[row, : len(job.ids)] = job.ids
        device = self._model.device
        ends = torch.tensor([length - 1 for length in lengths], device=device)
        every = torch.arange(len(jobs), device=device)
        cache = PromptCache()
        with (
            self._model.head_input(lambda hidden: hidden[every, ends][:, None]),
            self._model.attending(Causal(width)),
        ):
            logits = self._model.inner(
                input_ids=torch.from_numpy(ids).to(device),
                position_ids=torch.arange(width, device=device)[None].expand(len(jobs), -1),
                past_key_values=cache,
                use_cache=True,
            ).logits[:, 0]
        if len(cache.states) < self._model.config.num_hidden_layers:
            raise UnsupportedAttention("not all of its layers keep keys and values")
        self._stats.read_tokens += sum(lengths)
        waiting = [[row for row in job.rows if row.waits] for job in jobs]
        counts = [len(rows) for rows in waiting]
        if any(counts):
            # One choice for all of them. A row keeps its token until there is a place for it.
            which = torch.tensor(counts, device=device)
            self._chosen([row for rows in waiting for row in rows], logits.float().repeat_interleave(which, dim=0))
        return [
            _Read(cache.row(row, length), Job(job.ids, list(job.rows)))
            for row, (job, length) in enumerate(zip(jobs, lengths, strict=True))
        ]

    def _place(self, read: _Read, count: int) -> None:
        """Add `count` rows to the cache, without those that ended at their first token."""
        rows = read.job.rows[:count]
        going = [row for row in rows if row.ended is None]
        if going:
            self._cache.add(read.states, len(read.job.ids), len(going))
        # From here on nothing fails, so a row is in one place only. If adding failed, rows keep the tokens they have.
        self._live += going
        self._ended += [row for row in rows if row.ended is not None]
        del read.job.rows[:count]

    def _chosen(self, rows: list[Row], logits: "Tensor") -> None:
        before = sum(len(row.tokens) for row in rows)
        self._choose(rows, logits)
        self._stats.tokens += sum(len(row.tokens) for row in rows) - before

    def _step(self) -> None:
        """Let the model read one token of every row, and choose the next ones."""
        lengths = self._cache.begin_step()
        device = self._model.device
        tokens = [row.tokens[row.fed] for row in self._live]
        with self._model.attending(Rows(lengths, device)):
            logits = self._model.inner(
                input_ids=torch.tensor(tokens, device=device)[:, None],
                position_ids=torch.tensor(self._cache.lengths, device=device)[:, None],
                past_key_values=self._cache,
                use_cache=True,
            ).logits[:, -1]
        self._choose_next(logits)
        self._cache.end_step()
        self._stats.steps += 1
        self._stats.fill += Fill(sum(lengths), max(lengths) * len(lengths))
        if ended := [at for at, row in enumerate(self._live) if row.ended is not None]:
            order = self._cache.remove(ended)
            self._ended += [self._live[at] for at in ended]
            self._live = [self._live[at] for at in order]

    def _choose_next(self, logits: "Tensor") -> None:
        for row in self._live:
            row.fed += 1
        asked = [at for at, row in enumerate(self._live) if row.waits]
        if len(asked) < len(self._live):
            logits = logits[asked]
        try:
            if asked:
                self._chosen([self._live[at] for at in asked], logits)
        except BaseException:
            for row in self._live:
                row.fed -= 1
            raise

    def _put_back(self, error: OutOfMemory) -> BrimError | None:
        """Go on with half as much at once after memory ran out. Returns the error if one sequence alone does not fit.

        If several prompts were being read, fewer of them are read at once. Otherwise everything is freed, and half as
        many rows go on. Rows keep their tokens and are read again, prompt and tokens together.
        """
        self._stats.memory_errors += 1
        limits, reading, self._reading = self._limits, self._reading, []
        waiting = [job for batch in self._waiting for job in batch]
        if len(reading) > 1:
            limits.read_tokens = max(1, len(reading) * max(len(job.ids) for job in reading) // 2)
            self._waiting = deque(self._planned(waiting))
            return None
        if limits.rows == 1 and len(self._live) + len(self._read) + len(reading) <= 1:
            jobs = [*(read.job for read in self._read), *reading]
            return alone_out_of_memory((self._live or jobs[0].rows)[0], error)
        # The storage of rows that have left is freed too, so a last row that runs out of memory may still fit.
        limits.rows = max(1, (len(self._live) if len(self._live) > 1 else limits.rows) // 2)
        self._ended += [row for row in self._live if row.ended is not None]
        alive = [row for row in self._live if row.ended is None]
        for row in alive:
            row.fed = len(row.tokens)
        again = [Job(row.ids, [row]) for row in alive]
        again += [read.job for read in self._read]
        self._live = []
        self._read.clear()
        self._cache = self._new_cache([row for job in [*again, *waiting] for row in job.rows])
        self._waiting = deque(self._planned([*again, *waiting]))
        return None


def alone_out_of_memory(row: Row, error: OutOfMemory) -> BrimError:
    """Return the error for a response that does not fit into memory although nothing else is computed."""
    return BrimError(
        f"one response alone runs out of memory: {len(row.prompt)} tokens of the prompt and {len(row.tokens)} of the "
        f"response ({error})"
    )
