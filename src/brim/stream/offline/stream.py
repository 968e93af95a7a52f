"""Data sets on disk as streams.

Rows are tokenised shortly before they are needed, and every row becomes one sample. Samples that `min_length`,
`max_length` and `filter` leave out are counted, by reason. A row that cannot become a sample is an error that names its
place; it is raised before the samples of its block, and the stream stays where it was.

`for` reads in the calling thread. `async for` reads and tokenises in a background thread, one block ahead, and gives
the same samples in the same order: both iterate over the same chunks, and the position counts samples that were handed
out.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.analyze.histogram import LengthHistogram, compute_length_histogram
from brim.core.errors import DataError, MismatchError, OptionError
from brim.core.options import check_counts
from brim.data.rows.encode import identity
from brim.data.rows.format import RowFormat
from brim.data.rows.open import layout_of, open_source
from brim.data.rows.source import Source
from brim.data.tokenizer.base import ByteTokenizer, Tokenizer, load_tokenizer
from brim.envs.episode import DIFFICULTIES
from brim.stream.offline.chunks import Chunk, ChunkReader, Place, Shuffling
from brim.stream.offline.positioned import PositionedStream
from brim.stream.offline.rows import RowReader, id_in_meta
from brim.stream.protocols import StreamState
from brim.stream.sample import StreamSample


class OfflineDatasetStream(PositionedStream):
    """The samples of a data set (JSONL, Parquet or a saved Hugging Face data set), with `for` or `async for`.

    Rows have the formats of `brim.data.rows.format`, and may have fields about their origin; see `rows.py`. Ids are not
    checked for being unique, which would take memory for all of them. The first `state_dict` reads the whole data set
    once, to identify it by its content.

    Example:
        >>> stream = OfflineDatasetStream("train.jsonl", "byte", shuffle=True, max_length=2048)  # doctest: +SKIP
        >>> for sample in stream:  # doctest: +SKIP
        ...     state = stream.state_dict()  # resumes with the next sample, also in another process
    """

    kind = "offline"

    def __init__(
        self,
        path: str | os.PathLike[str],
        tokenizer: str | os.PathLike[str] | Tokenizer | None = None,
        *,
        dataset_id: str | None = None,
        format: RowFormat | None = None,
        min_length: int = 1,
        max_length: int | None = None,
        map: Callable[[StreamSample], StreamSample] | None = None,
        filter: Callable[[StreamSample], bool] | None = None,
        shuffle: bool = False,
        buffer_size: int = 10_000,
        seed: int = 42,
        epochs: int | None = 1,
        difficulties: Mapping[str, float] = DIFFICULTIES,
    ) -> None:
        """Open a data set. `tokenizer` is not needed if the rows hold input_ids; `dataset_id` defaults to the file
        name.

        Every sample goes through `map`. It is left out if it is then shorter or longer than allowed, or if `filter`
        returns False. Both functions are called in the caller's thread, once for every row, just before its sample is
        handed out. They must depend on the sample alone: a state does not record what they do.

        With `shuffle` every epoch has an order of its own, the same for the same seed, and at most `buffer_size` rows
        are held; a larger buffer mixes better. `epochs` is the number of passes over the data set; None is no limit.

        Raises:
            DataError: There is no data set, its last line is truncated, or its first row has no known format.
            OptionError: An option has a value that cannot work, or the rows are text and there is no tokenizer.
        """
        super().__init__()
        check_counts(min_length=min_length, max_length=max_length, buffer_size=buffer_size, epochs=epochs)
        if max_length is not None and max_length < min_length:
            raise OptionError(
                f"max_length {max_length} is less than min_length {min_length}, which leaves no sample; raise it"
            )
        source = _open_whole(path)
        layout = layout_of(source, format or RowFormat())
        if tokenizer is None and layout.kind != "tokens":
            fields = " and ".join(name for _, name in layout.fields)
            raise OptionError(
                f'the rows of {source.path} hold {fields}, not input_ids; pass a tokenizer, such as "byte" or "gpt2"'
            )
        loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str | os.PathLike) else tokenizer or ByteTokenizer()
        first = next(row for block in source.blocks() for row in source.read(block).rows)
        self.path = source.path
        self.dataset_id = source.path.stem if dataset_id is None else dataset_id
        self.min_length = min_length
        self.max_length = max_length
        self.epochs = epochs
        self._map = map
        self._filter = filter
        rows = RowReader(
            tokenizer=loaded,
            layout=layout,
            id_in_meta=id_in_meta(first, layout),
            dataset_id=self.dataset_id,
            difficulties=dict(difficulties),
        )
        shuffling = Shuffling(buffer_size, seed) if shuffle else None
        self._reader = ChunkReader(source, rows, epochs=epochs, shuffling=shuffling)
        self._place = Place()
        self._given = 0  # samples of this epoch that were handed out
        self._chunk: Chunk | None = None
        self._ahead: _Ahead | None = None
        self._thread: ThreadPoolExecutor | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the last sample that was handed out, from 0."""
        return self._place.epoch

    def __next__(self) -> StreamSample:
        self._check_open()
        self._state = StreamState.STREAMING
        try:
            while (sample := self._hand_out()) is None and (place := self._reads_on()) is not None:
                ahead = self._ahead_at(place)
                self._accept(ahead.result() if ahead else self._reader.read(place))
        except Exception:
            self._fail()
            raise
        if sample is None:
            self._state = StreamState.EXHAUSTED
            raise StopIteration
        return sample

    async def __anext__(self) -> StreamSample:
        self._check_open()
        self._state = StreamState.STREAMING
        try:
            while (sample := self._hand_out()) is None and (place := self._reads_on()) is not None:
                reading = self._read_ahead(place)
                await _done(reading)
                self._check_open()
                if self._reads_on() == place:  # otherwise another task accepted the chunk or moved the stream meanwhile
                    self._accept(reading.result())
                    if (on := self._reads_on()) is not None:
                        self._read_ahead(on)
        except Exception:
            self._fail()
            raise
        if sample is None:
            self._state = StreamState.EXHAUSTED
            self._stop_thread()
            raise StopAsyncIteration
        return sample

    def peek(self, n: int = 1) -> list[StreamSample]:
        """The next n samples, or fewer at the end, without moving the position or counting them."""
        check_counts(n=n)
        self._check_open()
        other = copy(self)
        PositionedStream.__init__(other)
        return list(islice(other, n))

    def count_samples(self) -> int:
        """The number of samples in an epoch.

        The first call reads and tokenises everything; the position does not move.
        """
        return len(self._lengths)

    def get_length_distribution(self, num_bins: int = 20) -> LengthHistogram:
        """The histogram of the lengths of an epoch; reads everything, as `count_samples` does.

        Raises:
            DataError: An epoch has no samples.
        """
        return compute_length_histogram(self._lengths, num_bins)

    def close(self) -> None:
        """End the stream, after waiting for the block that is being read. Its state and metrics can still be read."""
        super().close()
        self._stop_thread()
        self._chunk = self._ahead = None
        self._reader.forget()

    async def aclose(self) -> None:
        self._state = StreamState.CLOSED  # before waiting, so that other tasks that wait for the block see it
        if self._ahead is not None and not self._ahead.reading.cancel():
            await _done(self._ahead.reading)
        self.close()

    def _hand_out(self) -> StreamSample | None:
        """The next sample of the current chunk; None if it has no more. Samples that are left out are counted."""
        if self._chunk is None:
            return None
        begin, samples = self._chunk.place.row, self._chunk.samples
        while self._place.row - begin < len(samples):
            sample = samples[self._place.row - begin]
            sample, reason = self._judged(sample)
            self._place = self._place._replace(row=self._place.row + 1)
            if reason is None:
                self._given += 1
                self._metrics.record(sample)
                return sample
            self._metrics.record_filtered(reason)
        return None

    def _judged(self, sample: StreamSample) -> tuple[StreamSample, str | None]:
        """The sample after `map`, and the reason to leave it out, if any."""
        if self._map is not None:
            mapped = self._map(sample)
            if not isinstance(mapped, StreamSample):  # pyright: ignore[reportUnnecessaryIsInstance]
                kind = type(mapped).__name__
                raise OptionError(
                    f"map returned a {kind} for sample {sample.sample_id!r}; it must return a StreamSample (use "
                    "filter to leave samples out)"
                )
            sample = mapped
        if sample.length < self.min_length:
            return sample, "too short"
        if self.max_length is not None and sample.length > self.max_length:
            return sample, "too long"
        return sample, None if self._filter is None or self._filter(sample) else "filter"

    def _reads_on(self) -> Place | None:
        """The place of the next chunk to read; None after the last epoch."""
        return self._place if self._chunk is None else self._chunk.after

    def _accept(self, chunk: Chunk) -> None:
        if chunk.place.epoch != self._place.epoch:
            if self.epochs is None and not self._given:
                left = ", ".join(f"{count} by {reason!r}" for reason, count in self._metrics.filtered.items())
                raise DataError(
                    f"no sample of {self.path} is left in epoch {self.epoch} ({left}), and with epochs=None the "
                    "stream would never end; relax the filter, or set epochs"
                )
            self._given = 0
        self._chunk = chunk
        self._place = chunk.place

    def _ahead_at(self, place: Place) -> "Future[Chunk] | None":
        ahead = self._ahead
        return ahead.reading if ahead is not None and ahead.place == place and not ahead.reading.cancelled() else None

    def _read_ahead(self, place: Place) -> "Future[Chunk]":
        """The read of a place that is in progress or done; starts one if there is none."""
        if (reading := self._ahead_at(place)) is None:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="brim-stream")
            reading = self._thread.submit(self._reader.read, place)
            self._ahead = _Ahead(place, reading)
        return reading

    def _stop_thread(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
        self._thread = None

    def _fail(self) -> None:
        self._ahead = None
        if self._state is not StreamState.CLOSED:
            self._state = StreamState.ERROR

    @cached_property
    def _lengths(self) -> NDArray[np.int32]:
        self._check_open()
        judged = (self._judged(sample) for sample in self._reader.all())
        return np.fromiter((sample.length for sample, reason in judged if reason is None), np.int32)

    def _options(self) -> dict[str, Any]:
        return {**self._fixed, "map": self._map is not None, "filter": self._filter is not None}

    @cached_property
    def _fixed(self) -> dict[str, Any]:
        """The options that cannot change. `epochs` is not one of them: a longer stream begins as the shorter one."""
        rows, how = self._reader.rows, self._reader.shuffling
        tokens = rows.layout.fingerprint if rows.layout.kind == "tokens" else identity(rows.tokenizer, rows.layout)
        return {
            "data": self._reader.fingerprint(),
            "format and tokenizer": tokens,
            "ids": rows.id_in_meta,
            "dataset_id": self.dataset_id,
            "min_length": self.min_length,
            "max_length": self.max_length,
            "shuffle": how is not None,
            "buffer_size": None if how is None else how.buffer_size,
            "seed": None if how is None else how.seed,
            "difficulties": dict(rows.difficulties),
        }

    def _position(self) -> dict[str, int]:
        return {**self._place._asdict(), "given": self._given}

    def _go_to(self, position: Mapping[str, int] | None) -> None:
        if position is not None:
            self._check_position(position)
            if self.epochs is not None and position["epoch"] >= self.epochs:
                raise MismatchError(
                    f"the state is in epoch {position['epoch']}, and epochs={self.epochs} ends before; raise epochs"
                )
        place = dict(position or {})
        self._given = place.pop("given", 0)
        self._place = Place(**place)
        self._chunk = None


class AsyncOfflineDatasetStream(OfflineDatasetStream):
    """`OfflineDatasetStream` under another name, for asynchronous code. Both accept each other's states.

    Example:
        >>> async with AsyncOfflineDatasetStream("train.jsonl", "byte") as stream:  # doctest: +SKIP
        ...     async for sample in stream:
        ...         await learn(sample)
    """


def _open_whole(path: str | os.PathLike[str]) -> Source:
    """Open a data set, and refuse one with a truncated last line: only commands have an option to skip it."""
    source = open_source(path, torn="skip")
    if source.torn:
        with open(source.path, "rb") as file:
            line = sum(1 for _ in file)
        raise DataError(
            f"{source.path}:{line}: the last line is torn: it has no newline and is not complete JSON. If the file "
            "is still being written, wait; otherwise remove the line"
        )
    return source


class _Ahead(NamedTuple):
    place: Place
    reading: "Future[Chunk]"


async def _done(reading: "Future[Any]") -> None:
    """Wait for a read. Cancelling the wait stops neither the read nor other waiters, and leaves no task behind."""
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake(_: object) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile, so nothing waits there
            loop.call_soon_threadsafe(lambda: waiter.done() or waiter.set_result(None))

    reading.add_done_callback(wake)
    await waiter
