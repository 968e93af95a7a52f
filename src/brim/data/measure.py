"""Measure a data set: every row through the tokenizer, only the lengths kept.

The source is read in blocks, by worker processes when it is large, and every block goes to a journal as soon as its turn comes. A build
that is killed continues from there, and ends with the bytes of one that was not. A build whose output exists already measures only the
rows that were appended since; if a row before them changed, or the tokenizer, or the format, it starts over.

Memory holds a few blocks, and the finished columns: 4 bytes for a length and the ids.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.columns import is_columns
from brim.core.errors import DamagedError, DataError, OptionError
from brim.core.progress import silent
from brim.data.journal import FORMAT as JOURNAL_FORMAT
from brim.data.journal import Journal, Measured, discard_journal
from brim.data.lengths import FORMAT, LengthCache
from brim.data.pool import available_cores, ordered_map
from brim.data.rows.encode import identity as tokens_identity
from brim.data.rows.encode import measure_rows
from brim.data.rows.format import Layout, RowFormat
from brim.data.rows.open import layout_of, open_source
from brim.data.rows.row_ids import IdBlock, join_ids, row_id, split_ids
from brim.data.rows.source import Block, Source, Torn
from brim.data.tokenizer.base import Tokenizer, load_tokenizer

# (rows done, tokens done, bytes done, bytes in all); the first call tells what did not have to be measured again.
Progress = Callable[[int, int, int, int], None]

SMALL = 4 << 20  # bytes that are measured before a worker process would have started


class Built(NamedTuple):
    """A finished build: the cache, how many of its rows an earlier output had, and how many a journal had."""

    cache: LengthCache
    reused: int
    resumed: int


@dataclass(frozen=True, slots=True)
class BlockMeasurer:
    """What a worker is sent: everything but the block."""

    source: Source
    tokenizer: Tokenizer
    layout: Layout

    def __call__(self, block: Block) -> Measured:
        read = self.source.read(block)
        layout = self.layout

        def where(number: int) -> str:
            return self.source.where_in(block, number)

        lengths = measure_rows(read.rows, self.tokenizer, layout, where)
        number = 0
        try:
            ids, groups = [], []
            for number, row in enumerate(read.rows):
                ids.append(row_id(row, layout, number))
                if layout.group_field is not None:
                    groups.append(layout.group(row))
        except DataError as error:
            raise DataError(f"{where(number)}: {error}") from None
        return Measured(block.start, block.stop, read.blank, lengths, IdBlock.of(ids, layout), groups if layout.group_field else None)


def build_lengths(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    tokenizer: str | os.PathLike[str] | Tokenizer = "byte",
    format: RowFormat | Layout | None = None,
    *,
    workers: int | None = None,
    torn: Torn = "error",
    progress: Progress | None = None,
) -> Built:
    """Measure the data set at `source` and write its `LengthCache` to `output`.

    `workers` is the number of processes; 1 measures in this process, None chooses: this process for a few megabytes, else all cores.

    Raises:
        DataError: A row or the data set is not what it should be; nothing is written.
        OptionError: The output cannot be written or is not a length cache, or there is no such tokenizer.
        BrimError: Another process is writing the same output, or a worker process died; then run again to continue.
    """
    if workers is not None and (isinstance(workers, bool) or workers < 1):
        raise OptionError(f"workers is {workers}; it must be at least 1")
    data, output = open_source(source, torn=torn), Path(output)
    check_output(output, data.path)
    layout = format if isinstance(format, Layout) else layout_of(data, format or RowFormat())
    loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str | os.PathLike) else tokenizer
    return _build(BlockMeasurer(data, loaded, layout), output, workers, progress or silent)


def open_as_measured(path: str | os.PathLike[str], table: LengthCache) -> tuple[Source, Layout | None]:
    """The data set, and the layout of its rows, as they were when `table` was measured. A table that was made by hand has no layout."""
    recorded = table.source
    source = open_source(path, torn="skip" if recorded.get("torn") else "error")
    layout: dict[str, Any] | None = recorded.get("layout")
    if layout is None:
        return source, None
    return source, Layout(layout["kind"], tuple(dict(layout["fields"]).items()), layout["id_field"], layout["group_field"])


def _build(measurer: BlockMeasurer, output: Path, workers: int | None, progress: Progress) -> Built:
    source, layout = measurer.source, measurer.layout
    identity = tokens_identity(measurer.tokenizer, layout)
    old = _earlier(output, identity)
    done: list[Measured] = []
    if old is not None and source.starts_with(old.source["end"], old.source["digest"]):
        done = [_as_measured(old, layout)]
        if old.dataset_hash == source.fingerprint and old.source["torn"] == source.torn:
            _Tally(progress, source, done)
            discard_journal(output)
            return Built(old, len(old), 0)
    reused = sum(len(part.lengths) for part in done)
    journal = Journal(output)
    keep = True
    try:
        done += _recovered(journal, source, identity, start=done[-1].stop if done else 0)
        resumed = sum(len(part.lengths) for part in done) - reused
        _measure_rest(measurer, journal, done, workers, progress)
        cache = _joined(done, measurer, identity)
        cache.save(output)
        keep = False
        return Built(cache, reused, resumed)
    except DataError:
        keep = False  # the data has to change before another try
        raise
    finally:
        journal.close(keep=keep)


def _measure_rest(measurer: BlockMeasurer, journal: Journal, done: list[Measured], workers: int | None, progress: Progress) -> None:
    source = measurer.source
    start = done[-1].stop if done else 0
    if workers is None:
        left = source.size * (source.end - start) // max(source.end, 1)
        workers = 1 if left < SMALL else available_cores()
    tally = _Tally(progress, source, done)
    with closing(ordered_map(measurer, source.blocks(start), workers=workers)) as results:
        for measured in results:
            journal.append(measured)
            done.append(measured)
            tally.add(measured)


class _Tally:
    """Counts what has been measured and tells the caller: once for what is there already, then after every block."""

    def __init__(self, progress: Progress, source: Source, done: Sequence[Measured]) -> None:
        self._progress, self._source = progress, source
        self._rows = self._tokens = self._position = 0
        for measured in done:
            self._count(measured)
        self._tell()

    def add(self, measured: Measured) -> None:
        self._count(measured)
        self._tell()

    def _count(self, measured: Measured) -> None:
        self._rows += len(measured.lengths)
        self._tokens += int(measured.lengths.sum(dtype=np.int64))
        self._position = measured.stop

    def _tell(self) -> None:
        source = self._source
        self._progress(self._rows, self._tokens, source.size * self._position // max(source.end, 1), source.size)


def _recovered(journal: Journal, source: Source, identity: str, *, start: int) -> list[Measured]:
    """What a killed build of the same output had measured, if it is still true; and a header for what is to come."""
    header, found = journal.recover()
    now = {"format": JOURNAL_FORMAT, "identity": identity, "start": start, "end": source.end}
    same = header is not None and all(header.get(key) == now[key] for key in ("format", "identity", "start"))
    if not (header is not None and same and source.starts_with(header["end"], header["digest"])):
        journal.restart()
        header, found = None, []
    now["digest"] = source.fingerprint
    if header != now:
        journal.begin(now)
    return found


def _earlier(output: Path, identity: str) -> LengthCache | None:
    """The output of an earlier build by the same rules, if there is one."""
    if not output.exists() or not output.stat().st_size:
        return None
    try:
        cache = LengthCache.load(output)
    except (DamagedError, DataError):
        return None
    known = {"end", "digest", "rows", "blank", "torn"} <= cache.source.keys()
    return cache if known and cache.tokenizer_hash == identity else None


def _as_measured(cache: LengthCache, layout: Layout) -> Measured:
    groups = None if cache.groups is None else [cache.group_names[code] for code in cache.groups.tolist()]
    if groups is None and layout.group_field is not None:
        groups = [""] * len(cache)
    return Measured(0, cache.source["end"], cache.source["blank"], cache.lengths, split_ids(cache.ids, layout), groups)


def _joined(done: Sequence[Measured], measurer: BlockMeasurer, identity: str) -> LengthCache:
    source = measurer.source
    lengths = np.concatenate([part.lengths for part in done])
    ids = join_ids([part.ids for part in done], len(lengths))
    if twice := ids.duplicate():
        first, second = (source.where(row) for row in twice)
        raise DataError(f"{second}: id {ids[twice[0]]!r} is taken already, by {first}; ids must be unique")
    groups, names = _join_groups(done)
    digest = source.fingerprint
    meta: dict[str, Any] = {
        "name": source.path.name,
        "kind": source.kind,
        "rows": len(lengths),
        "end": source.end,
        "digest": digest,
        "blank": sum(part.blank for part in done),
        "torn": source.torn,
        "tokenizer": measurer.tokenizer.name,
        "layout": asdict(measurer.layout) | {"fields": dict(measurer.layout.fields)},
    }
    return LengthCache(ids, lengths, groups=groups, group_names=names, tokenizer_hash=identity, dataset_hash=digest, source=meta)


def _join_groups(done: Sequence[Measured]) -> tuple[NDArray[np.int32] | None, tuple[str, ...]]:
    names = sorted({name for part in done for name in part.groups or ()})
    if names in ([], [""]):
        return None, ()
    code = {name: number for number, name in enumerate(names)}
    return np.array([code[name] for part in done for name in part.groups or ()], np.int32), tuple(names)


def check_output(output: Path, data: Path) -> None:
    """A mistyped output never costs anyone their data.

    Raises:
        OptionError: It is the data, or something else that is not a length cache.
    """
    if output.is_dir():
        raise OptionError(f"cannot write {output}: it is a directory")
    if not output.exists() or not output.stat().st_size:
        return
    if data.is_file() and output.samefile(data):
        raise OptionError(f"will not write the lengths over the data: {output} is both; choose another output")
    with open(output, "rb") as file:
        head = file.readline(4096)
    if not is_columns(output, FORMAT) and not (head.startswith(b"{") and (b'"tokenizer_hash"' in head or b'"sample_id"' in head)):
        raise OptionError(f"will not replace {output}: it is not a length cache; remove it or choose another output")
