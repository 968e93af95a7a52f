"""Measure a data set: tokenise every row and keep only the lengths.

The source is read once, in blocks, by worker processes if it is large. They also return the bytes they read, from which
the fingerprint of the source is computed. Blocks are appended to a journal, in order. A killed build resumes from the
journal, and writes the same bytes as a build that was not killed. A build whose output exists already measures only the
rows that were appended since; if an earlier row, the tokenizer or the format changed, it starts over.

Memory holds a few blocks and the finished columns: the ids, and 4 bytes for each length.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.columns import is_columns
from brim.core.errors import DamagedError, DataError, OptionError
from brim.core.progress import silent
from brim.data.ids import SampleId
from brim.data.journal import FORMAT as JOURNAL_FORMAT
from brim.data.journal import Journal, Measured, discard_journal
from brim.data.lengths import FORMAT, LengthCache
from brim.data.pool import available_cores, ordered_map
from brim.data.rows.encode import Where, measure_rows
from brim.data.rows.encode import identity as tokens_identity
from brim.data.rows.format import Layout, RowFormat
from brim.data.rows.open import layout_of, open_source
from brim.data.rows.row_ids import IdBlock, join_ids, row_id, split_ids
from brim.data.rows.source import Block, Rows, Source, Torn
from brim.data.tokenizer.base import Tokenizer, load_tokenizer

# (rows done, tokens done, bytes done, all bytes). The first call reports what need not be measured again.
Progress = Callable[[int, int, int, int], None]

SMALL = 4 << 20  # bytes that one process measures before a worker process would have started


class Built(NamedTuple):
    """A finished build: the cache, and how many of its rows come from an earlier output and from a journal."""

    cache: LengthCache
    reused: int
    resumed: int


@dataclass(frozen=True, slots=True)
class BlockMeasurer:
    """The work of a worker process, pickled once for each: everything but the block."""

    source: Source
    tokenizer: Tokenizer
    layout: Layout

    def __call__(self, block: Block) -> tuple[Measured, bytes]:
        """Return the measured block, and its bytes for the digest of the source."""
        read = self.source.read(block, raw=True)
        where = partial(self.source.where_in, block)
        lengths = measure_rows(read.rows, self.tokenizer, self.layout, where)
        return as_measured(block, read, lengths, self.layout, where), read.raw


def as_measured(block: Block, read: Rows, lengths: NDArray[np.int32], layout: Layout, where: Where) -> Measured:
    """Return a measured block: its lengths with the ids and groups of its rows.

    Raises:
        DataError: A row lacks an id or a group that the layout requires, or has one that is not allowed.
    """
    number = 0
    try:
        ids: list[SampleId] = []
        groups: list[str] = []
        for number, row in enumerate(read.rows):
            ids.append(row_id(row, layout, number))
            if layout.group_field is not None:
                groups.append(layout.group(row))
    except DataError as error:
        raise DataError(f"{where(number)}: {error}") from None
    grouped = groups if layout.group_field is not None else None
    return Measured(block.start, block.stop, read.blank, lengths, IdBlock.of(ids, layout), grouped)


def build_lengths(
    source: Source | str | os.PathLike[str],
    output: str | os.PathLike[str],
    tokenizer: str | os.PathLike[str] | Tokenizer = "byte",
    format: RowFormat | Layout | None = None,
    *,
    workers: int | None = None,
    torn: Torn = "error",
    progress: Progress | None = None,
) -> Built:
    """Measure a data set, given as an open source or a path, and write its `LengthCache` to `output`.

    `workers` is the number of processes: 1 measures in this process; None does so for a few megabytes, and uses all
    cores for more. `torn` is for a path, as in `open_source`; an open source has its own.

    Raises:
        DataError: A row or the data set is invalid; nothing is written.
        OptionError: The output cannot be written or is not a length cache, or there is no such tokenizer.
        BrimError: Another process is writing the same output, or a worker process died; run again to resume.
    """
    if workers is not None and (isinstance(workers, bool) or workers < 1):
        raise OptionError(f"workers is {workers}; it must be at least 1")
    if isinstance(source, str | os.PathLike):
        data = open_source(source, torn=torn)
    elif torn == "error":
        data = source
    else:
        raise OptionError(f"torn={torn!r} is for a path; give it to open_source, which opened {source.path}")
    output = Path(output)
    check_output(output, data.path)
    layout = format if isinstance(format, Layout) else layout_of(data, format or RowFormat())
    loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str | os.PathLike) else tokenizer
    return _build(BlockMeasurer(data, loaded, layout), output, workers, progress or silent)


def open_as_measured(path: str | os.PathLike[str], table: LengthCache) -> tuple[Source, Layout | None]:
    """Open a data set with the settings that `table` was measured with. Return it with the layout of its rows.

    The layout is None if the table was made by hand.
    """
    recorded = table.source
    source = open_source(path, torn="skip" if recorded.get("torn") else "error")
    layout: dict[str, Any] | None = recorded.get("layout")
    if layout is None:
        return source, None
    return source, Layout(
        layout["kind"], tuple(dict(layout["fields"]).items()), layout["id_field"], layout["group_field"]
    )


def _build(measurer: BlockMeasurer, output: Path, workers: int | None, progress: Progress) -> Built:
    source, layout = measurer.source, measurer.layout
    identity = tokens_identity(measurer.tokenizer, layout)
    old = _earlier(output, identity)
    done: list[Measured] = []
    if old is not None and source.starts_with(old.source["end"], old.source["digest"]):
        done = [_reused(old, layout)]
        if _is_of(old, source):
            _Tally(progress, source, done)
            discard_journal(output)
            return Built(old, len(old), 0)
    reused = sum(len(part.lengths) for part in done)
    journal = Journal(output)
    keep = True
    try:
        header = {"format": JOURNAL_FORMAT, "identity": identity, "start": done[-1].stop if done else 0}
        done += _recovered(journal, source, header)
        resumed = sum(len(part.lengths) for part in done) - reused
        _measure_rest(measurer, journal, header, done, workers, progress)
        cache = joined(done, source, measurer.tokenizer, layout)
        cache.save(output)
        keep = False
        return Built(cache, reused, resumed)
    except DataError:
        keep = False  # the data has to change before another try
        raise
    finally:
        journal.close(keep=keep)


def _measure_rest(
    measurer: BlockMeasurer,
    journal: Journal,
    header: dict[str, Any],
    done: list[Measured],
    workers: int | None,
    progress: Progress,
) -> None:
    source = measurer.source
    start = done[-1].stop if done else 0
    tally = _Tally(progress, source, done)
    with closing(
        ordered_map(measurer, source.blocks(start), workers=workers or choose_workers(source, start))
    ) as results:
        for measured, raw in results:
            source.absorb(Block(measured.start, measured.stop), raw)
            # A header that covers the rows of the record precedes it: a resumed build checks them against the data.
            journal.begin({**header, "end": measured.stop, "digest": source.digest(measured.stop)})
            journal.append(measured)
            done.append(measured)
            tally.add(measured)


def choose_workers(source: Source, start: int = 0) -> int:
    """Return the number of worker processes: one for a few megabytes, else one for each core."""
    left = source.size * (source.end - start) // max(source.end, 1)
    return 1 if left < SMALL else available_cores()


def finished(output: Path, source: Source, identity: str) -> LengthCache | None:
    """Return the table at `output` if it is of exactly this data, tokenizer and layout, else None."""
    old = _earlier(output, identity)
    # The end is compared first: data of another size is not read for its fingerprint.
    if old is None or old.source["end"] != source.end or not _is_of(old, source):
        return None
    return old


def _is_of(table: LengthCache, source: Source) -> bool:
    return table.dataset_hash == source.fingerprint and table.source["torn"] == source.torn


class _Tally:
    """Counts what is measured and reports it: once for what need not be measured again, then after every block."""

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


def _recovered(journal: Journal, source: Source, now: dict[str, Any]) -> list[Measured]:
    """Return what a killed build of the same output measured. If those rows have changed, empty the journal instead."""
    header, found = journal.recover()
    same = header is not None and all(header.get(key) == value for key, value in now.items())
    if header is None or not same or not source.starts_with(header["end"], header["digest"]):
        journal.restart()
        return []
    return found


def _earlier(output: Path, identity: str) -> LengthCache | None:
    """Return the output of an earlier build with the same tokenizer and layout, or None."""
    if not output.exists() or not output.stat().st_size:
        return None
    try:
        cache = LengthCache.load(output)
        cache.verify()  # its rows are used again, so a damaged table must be measured again
    except (DamagedError, DataError):
        return None
    known = {"end", "digest", "rows", "blank", "torn"} <= cache.source.keys()
    return cache if known and cache.tokenizer_hash == identity else None


def _reused(cache: LengthCache, layout: Layout) -> Measured:
    groups = None if cache.groups is None else [cache.group_names[code] for code in cache.groups.tolist()]
    if groups is None and layout.group_field is not None:
        groups = [""] * len(cache)
    return Measured(0, cache.source["end"], cache.source["blank"], cache.lengths, split_ids(cache.ids, layout), groups)


def joined(done: Sequence[Measured], source: Source, tokenizer: Tokenizer, layout: Layout) -> LengthCache:
    """Return the table of a source whose blocks have all been measured.

    Raises:
        DataError: Two rows have the same id.
    """
    lengths = np.concatenate([part.lengths for part in done])
    ids = join_ids([part.ids for part in done], len(lengths))
    ids.refuse_duplicate(source.where)
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
        "tokenizer": tokenizer.name,
        "layout": asdict(layout) | {"fields": dict(layout.fields)},
    }
    identity = tokens_identity(tokenizer, layout)
    return LengthCache(
        ids, lengths, groups=groups, group_names=names, tokenizer_hash=identity, dataset_hash=digest, source=meta
    )


def _join_groups(done: Sequence[Measured]) -> tuple[NDArray[np.int32] | None, tuple[str, ...]]:
    names = sorted({name for part in done for name in part.groups or ()})
    if names in ([], [""]):
        return None, ()
    code = {name: number for number, name in enumerate(names)}
    return np.array([code[name] for part in done for name in part.groups or ()], np.int32), tuple(names)


def check_output(output: Path, data: Path) -> None:
    """Check that writing to `output` replaces nothing but a length cache: a mistyped output never destroys data.

    Raises:
        OptionError: The output is the data, or something else that is not a length cache.
    """
    if output.is_dir():
        raise OptionError(f"cannot write {output}: it is a directory")
    if not output.exists() or not output.stat().st_size:
        return
    if data.is_file() and output.samefile(data):
        raise OptionError(f"will not write the lengths over the data: {output} is both; choose another output")
    with open(output, "rb") as file:
        head = file.readline(4096)
    if not is_columns(output, FORMAT) and not (
        head.startswith(b"{") and (b'"tokenizer_hash"' in head or b'"sample_id"' in head)
    ):
        raise OptionError(f"will not replace {output}: it is not a length cache; remove it or choose another output")
