"""The vectors of all rows: computed in this process, checked, and written as NPY or Parquet in the order of the input.

A model in this process embeds the rows in groups that depend on their numbers alone. A resumed run repeats a group that
was not finished as a whole, so every text meets the same neighbours and its vector has the same bytes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from brim.core.atomic import atomic_file
from brim.core.errors import OptionError
from brim.core.extras import need
from brim.data.rows.format import ID_FIELDS
from brim.llm.answers.ask import Outcome
from brim.llm.answers.journal import AnswerJournal
from brim.llm.answers.rows import Input, Row
from brim.llm.answers.template import Prompts
from brim.llm.call import Reply
from brim.llm.embed.base import Embedder
from brim.llm.failures import BadReply, Failure, Rejected, ServerFailed

GROUP = 512
"""Rows that a model in this process embeds together."""
ROW_GROUP = 4096
"""Rows of a Parquet file that are held in memory and written together."""


class Judge:
    """Accepts the vectors of one model: all of one length, and finite."""

    def __init__(self, dim: int | None) -> None:
        self.dim = dim
        """Length of a vector; None until the first one."""

    def __call__(self, reply: Reply) -> Reply | Failure:
        """Return the reply, or the failure that it amounts to."""
        vector = reply.vector
        if vector is None or not vector.size:
            problem = "the reply has no vector"
        elif self.dim is not None and vector.size != self.dim:
            problem = f"the vector has {vector.size} numbers, and earlier ones have {self.dim}"
        elif not np.isfinite(vector).all():
            problem = "the vector contains numbers that are not finite"
        else:
            self.dim = vector.size
            return reply
        return BadReply(problem, server=reply.server, attempts=reply.attempts, seconds=reply.seconds)


def stored_dim(journal: AnswerJournal) -> int | None:
    """Return the length of the vectors in a journal, or None if it has none."""
    first = next(journal.in_order_of_arrival(), None)
    return None if first is None else journal.vector(first[0]).size


def embed_missing(rows: Input, journal: AnswerJournal, prompts: Prompts, embedder: Embedder) -> Iterator[Outcome]:
    """Compute the missing vectors in this process, and yield each outcome after it was written to the journal.

    Raises:
        ServerFailed: The model failed, for want of memory, say.
    """
    judge = Judge(stored_dim(journal))
    for group in _groups(rows):
        if all(journal.has_answer(number) for number, _ in group):
            continue
        texts: list[tuple[int, Row, str]] = []
        for number, row in group:
            try:
                texts.append((number, row, prompts.text(row)))
            except OptionError as error:
                outcome = Outcome(number, 0, row, Rejected(str(error)))
                journal.append(number, 0, outcome.result)
                yield outcome
        vectors = _encoded(embedder, [text for _, _, text in texts])
        for (number, row, _), vector in zip(texts, vectors, strict=True):
            if not journal.has_answer(number):
                outcome = Outcome(number, 0, row, judge(Reply(vector=vector, model=embedder.name)))
                journal.append(number, 0, outcome.result)
                yield outcome


def _groups(rows: Input) -> Iterator[list[tuple[int, Row]]]:
    group: list[tuple[int, Row]] = []
    for number, row in rows:
        group.append((number, row))
        if len(group) == GROUP:
            yield group
            group = []
    if group:
        yield group


def _encoded(embedder: Embedder, texts: list[str]) -> NDArray[np.float32]:
    try:
        return embedder.encode(texts)
    except (RuntimeError, MemoryError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ServerFailed(f"the model {embedder.name} failed: {type(error).__name__}: {reason}") from error


def write_vectors(output: Path, rows: Input, journal: AnswerJournal, *, id_field: str | None = None) -> None:
    """Write the vectors in the order of the input: NPY, float32 [n, d], or Parquet with the columns id and vector.

    A row that failed is a row of NaN in NPY, and null in Parquet. Ids are strings: the value of `id_field`, or of "id"
    or "sample_id", or the number of the row.
    """
    dim = stored_dim(journal) or 0
    with atomic_file(output) as file:
        if output.suffix.lower() == ".npy":
            _write_npy(file, rows.rows, dim, journal)
        else:
            _write_parquet(file, rows, journal, (id_field,) if id_field else ID_FIELDS)


def _write_npy(file: IO[bytes], rows: int, dim: int, journal: AnswerJournal) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)}
    np.lib.format.write_array_header_1_0(file, header)
    missing = np.full(dim, np.nan, "<f4")
    for row in range(rows):
        vector = journal.vector(row) if journal.has_answer(row) else missing
        file.write(vector.astype("<f4", copy=False).tobytes())


def _write_parquet(file: IO[bytes], rows: Input, journal: AnswerJournal, fields: tuple[str, ...]) -> None:
    pa = need("pyarrow", extra="hf", user="brim.llm.answers.vectors")
    parquet = need("pyarrow.parquet", extra="hf", user="brim.llm.answers.vectors")
    # Lists without a fixed length: pyarrow before version 26 cannot read null among lists with one.
    schema = pa.schema([("id", pa.string()), ("vector", pa.list_(pa.float32()))])
    ids: list[str] = []
    vectors: list[Any] = []
    with parquet.ParquetWriter(file, schema) as writer:
        for number, row in rows:
            name = next((row[field] for field in fields if row.get(field) is not None), number)
            ids.append(str(name))
            vectors.append(journal.vector(number) if journal.has_answer(number) else None)
            if len(ids) == ROW_GROUP or number == rows.rows - 1:
                columns = [pa.array(ids, pa.string()), pa.array(vectors, schema.field("vector").type)]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
                ids, vectors = [], []
