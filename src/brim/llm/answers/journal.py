"""The journal of a run over the rows of a file: every answer that came back, from which the run resumes after SIGKILL.

A header says which options the outcomes belong to. Every other record is the outcome of one question: a row and the
number of its sample. An answer is written as soon as it is there, so a kill costs no more than what was under way.
Memory holds a byte offset and a flag for each question, never a text. A failure is recorded too, but its question
counts as not answered: a later run asks again, and the later record replaces the earlier one.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from brim.core.errors import DamagedError, MismatchError
from brim.core.fingerprint import canonical_json
from brim.core.records import RecordFile, records_path
from brim.llm.answers.record import check_same_options
from brim.llm.call import Reply
from brim.llm.failures import Failure

FORMAT = "brim.llm-answers/1"
HEADER, TEXT, VECTOR, FAILED = b"H", b"T", b"V", b"F"
NOTHING = -1


def has_journal(output: Path) -> bool:
    """Return whether a run has left a journal beside an output."""
    return records_path(output).is_file()


class AnswerJournal:
    """The outcomes of all questions of one output. The output is locked until `close`."""

    def __init__(self, output: Path, *, rows: int, samples: int = 1) -> None:
        """Lock the output and open its journal; `recover` must follow.

        Raises:
            OptionError: The directory cannot be written to.
            BrimError: Another process is writing the output.
        """
        self.output = output
        self.samples = samples
        self._offsets: NDArray[np.int64] = np.full(rows * samples, NOTHING, np.int64)
        self._failed: NDArray[np.bool_] = np.zeros(rows * samples, np.bool_)
        self.writing = False
        """True if a run was killed while it wrote the output, so that the file there is ours in whatever state."""
        self._options: dict[str, Any] = {}
        self._recovered = False
        self._file = RecordFile(output, kinds=(HEADER, TEXT, VECTOR, FAILED), private=True)

    def recover(self, options: Mapping[str, Any], *, may_change: tuple[str, ...] = (), force: bool = False) -> int:
        """Take over the outcomes of an earlier run, and return how many questions it answered.

        Args:
            options: Everything that decides the answers. A run with other options cannot be resumed.
            may_change: Names among them that may differ all the same.
            force: Discard the outcomes of a run with other options instead of raising an error.

        Raises:
            MismatchError: The journal belongs to a run with other options.
            DamagedError: It is a journal of something else, or of another version.
        """
        resumes = False
        for record in self._file.recover():
            if record.kind == HEADER:
                header = orjson.loads(record.data)
                resumes = self._resumes(header, options, may_change, force)
                if not resumes:
                    break
                self.writing = header["writing"]
            else:
                self._index(record.data, record.offset, failed=record.kind == FAILED)
        self._options = dict(options)
        if not resumes:
            self._file.restart()
            self.note_writing(False)
        self._recovered = True
        return self.answered

    def note_writing(self, writing: bool) -> None:
        """Note, in a header, that the output is about to be written, or that it was written and recorded."""
        self.writing = writing
        header = {"format": FORMAT, "options": self._options, "writing": writing}
        self._file.append(HEADER, canonical_json(header))

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def discarded(self) -> int:
        """Bytes after the last whole record, which `recover` removed: a record that was being written, or damage."""
        return self._file.discarded

    @property
    def questions(self) -> int:
        return len(self._offsets)

    @property
    def answered(self) -> int:
        return int(np.count_nonzero((self._offsets != NOTHING) & ~self._failed))

    @property
    def failed(self) -> int:
        return int(np.count_nonzero(self._failed))

    def has_answer(self, row: int, sample: int = 0) -> bool:
        at = row * self.samples + sample
        return bool(self._offsets[at] != NOTHING and not self._failed[at])

    def has_failed(self, row: int, sample: int = 0) -> bool:
        return bool(self._failed[row * self.samples + sample])

    def append(self, row: int, sample: int, outcome: Reply | Failure) -> None:
        """Write the outcome of a question, and hand it to the operating system."""
        if isinstance(outcome, Failure):
            kind, body = FAILED, orjson.dumps(outcome.to_dict())
        elif outcome.vector is not None:
            kind, body = VECTOR, np.ascontiguousarray(outcome.vector, "<f4").tobytes()
        else:
            kind, body = TEXT, orjson.dumps({"text": outcome.text, "details": _details(outcome)})
        at = row * self.samples + sample
        self._offsets[at] = self._file.append(kind, b"%d\n" % at + body)
        self._failed[at] = kind == FAILED

    def text(self, row: int, sample: int = 0) -> dict[str, Any]:
        """Return the stored answer to a question: its "text" and its "details"."""
        return orjson.loads(self._body(row, sample))

    def vector(self, row: int) -> NDArray[np.float32]:
        """Return the stored vector of a row, [d]."""
        return np.frombuffer(self._body(row, 0), "<f4").astype(np.float32, copy=False)

    def failure(self, row: int, sample: int = 0) -> dict[str, Any]:
        """Return why a question has no answer, as `Failure.to_dict`."""
        return orjson.loads(self._body(row, sample))

    def in_order_of_arrival(self) -> Iterator[tuple[int, int]]:
        """Yield the row and the sample of each answer, in the order in which they were written."""
        answered = np.flatnonzero((self._offsets != NOTHING) & ~self._failed)
        for at in answered[np.argsort(self._offsets[answered])].tolist():
            yield divmod(at, self.samples)

    def close(self, *, keep: bool) -> None:
        """Release the lock. With `keep`, the file stays unless it is known to have nothing in it to resume from."""
        is_empty = self._recovered and not (self._offsets != NOTHING).any()
        self._file.close(keep=keep and not is_empty)

    def _resumes(
        self, header: dict[str, Any], options: Mapping[str, Any], may_change: tuple[str, ...], force: bool
    ) -> bool:
        path = self._file.path
        if header.get("format") != FORMAT:
            raise DamagedError(
                f"{path} is of the format {header.get('format')!r}, this brim reads {FORMAT}; remove it, or choose "
                "another output"
            )
        try:
            advice = f"choose another output, or pass --force to discard the answers in {path}"
            check_same_options(header["options"], options, may_change=may_change, advice=advice)
        except MismatchError:
            if force:
                return False
            raise
        return True

    def _index(self, data: bytes, offset: int, *, failed: bool) -> None:
        at = int(data.split(b"\n", 1)[0])
        self._offsets[at] = offset
        self._failed[at] = failed

    def _body(self, row: int, sample: int) -> bytes:
        offset = int(self._offsets[row * self.samples + sample])
        return self._file.read(offset).data.split(b"\n", 1)[1]


def _details(reply: Reply) -> dict[str, Any]:
    """Return how an answer came about, for `--details`."""
    return {
        "model": reply.model,
        "finish_reason": reply.finish_reason,
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "latency": round(reply.latency, 6),
        "server": reply.server,
        "attempts": reply.attempts,
        "cached": reply.cached,
    }
