"""Generation as a stream of responses: what is generated, how much at once, and by which loop.

Work is made of prompts and random numbers here; the loops of `brim.generate.decode` do it. Memory holds the prompts,
the rows that are generated at the moment, and a small object for each response that waits.
"""

from collections.abc import Container, Iterator, Sequence

import numpy as np

from brim.analyze.capacity.search import Capacity
from brim.core.errors import DataError
from brim.core.options import check_counts
from brim.data.tokenizer.base import Tokenizer
from brim.generate.auto import measure_generation
from brim.generate.config import Auto, GenerationConfig, Stop, check_batch_size, checked_stops, least_budget
from brim.generate.decode.choice import Loops
from brim.generate.decode.loop import DecodeLimits, DecodeStats
from brim.generate.decode.rows import Job, Row
from brim.generate.decode.sampler import SampledRow, Sampler, response_of
from brim.generate.model import CausalModel
from brim.generate.reading import check_prompts
from brim.generate.rollouts import Ids, Response
from brim.generate.stops import Stops
from brim.generate.uniforms import prompt_keys


class Generation:
    """Generates with one model, and remembers what it learned about it: loops, memory, batch sizes."""

    def __init__(
        self, model: CausalModel, tokenizer: Tokenizer, config: GenerationConfig, end_tokens: tuple[int, ...]
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._config = config
        self._end_tokens = end_tokens
        self._loops = Loops(model)
        self.learnt_rows: int | None = None
        """Upper limit of the rows at once that a lack of memory has taught."""
        self.capacity: Capacity | None = None
        """Result of the measurement by gen_batch_size="auto"."""
        self.stats = DecodeStats()
        """Counters of the latest stream."""

    def stream(
        self,
        ids: list[Ids],
        G: int,  # noqa: N803  the seed's letter
        *,
        seed: int,
        gen_batch_size: int | Auto | None = None,
        stop: Sequence[Stop] | None = None,
        limits: Sequence[Sequence[int]] | None = None,
        skip: Container[tuple[int, int]] = (),
    ) -> Iterator[Response]:
        """Yield G responses to each prompt as they end. See `SequenceProcessor.stream`."""
        check_counts(G=G)
        check_prompts(ids, known_tokens=self._model.known_tokens, context=self._model.context)
        stops = Stops(
            self._tokenizer,
            eos=self._end_tokens,
            stop=checked_stops(self._config.stop or () if stop is None else stop),
            vocab_size=self._model.vocabulary,
        )
        jobs = self._jobs(ids, G, seed, _checked_limits(limits, len(ids), G), skip)
        most = self._rows(gen_batch_size, jobs)
        budget = least_budget(
            self._config.gen_token_budget, self._config.memory_budget, self._model.bytes_per_cached_token
        )
        longest = max((row.longest for job in jobs for row in job.rows), default=0)
        loop = self._loops.loop(longest, DecodeLimits(rows=most, tokens=budget))
        self.stats = loop.stats
        rows = loop.run(jobs, Sampler(self._config.law, stops))
        return self._responses(rows, loop.limits, most)

    def _responses(self, rows: Iterator[Row], limits: DecodeLimits, most: int) -> Iterator[Response]:
        for row in rows:
            if limits.rows < most:
                self.learnt_rows = limits.rows
            assert isinstance(row, SampledRow)
            yield response_of(row, self._tokenizer.decode(row.tokens))

    def _jobs(
        self,
        ids: list[Ids],
        G: int,  # noqa: N803
        seed: int,
        limits: Sequence[Sequence[int]] | None,
        skip: Container[tuple[int, int]],
    ) -> list[Job]:
        jobs: list[Job] = []
        for b, (prompt, key) in enumerate(zip(ids, prompt_keys(ids), strict=True)):
            most = self._config.max_new_tokens
            if self._model.context is not None:
                most = min(most, self._model.context - len(prompt))
            rows: list[Row] = [
                SampledRow((b, g), prompt, most if limits is None else min(most, limits[b][g]), seed=seed, stream=key)
                for g in range(G)
                if (b, g) not in skip
            ]
            if rows:
                jobs.append(Job(prompt.astype(np.int64), rows))
        return jobs

    def _rows(self, asked: int | Auto | None, jobs: list[Job]) -> int:
        """Return how many rows are generated at once, at most."""
        check_batch_size("gen_batch_size", asked)
        size = self._config.gen_batch_size if asked is None else asked
        if size == "auto":
            if self.capacity is None and jobs:
                self.capacity = measure_generation(self._model, jobs, self._config.law)
            size = 1 if self.capacity is None else self.capacity.knee.size
        return min(size, self.learnt_rows or size)


def _checked_limits(
    limits: Sequence[Sequence[int]] | None,
    B: int,  # noqa: N803
    G: int,  # noqa: N803
) -> Sequence[Sequence[int]] | None:
    if limits is None:
        return None
    if len(limits) != B or any(len(row) != G for row in limits):
        raise DataError(f"limits must hold {G} numbers for each of {B} prompts")
    check_counts(**{f"limits[{b}]": min(row) for b, row in enumerate(limits)})
    return limits
