"""The journal of a run: every response that has ended, from which the run resumes after SIGKILL.

It is the journal of `brim llm map` with other contents: a question is a prompt, and its samples are the responses to
it. Where several ranks generate, each appends to a journal of its own, and the main rank takes all of them over. So a
run resumes on any number of ranks.
"""

import glob
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.records import records_path
from brim.generate.output.lines import Fields, to_json
from brim.llm.answers.journal import NOTHING, TEXT, AnswerJournal


class ResponseJournal(AnswerJournal):
    """The responses of one output, or of one rank that works on it. It is locked until `close`."""

    def __init__(self, output: Path, *, prompts: int, samples: int, rank: int = 0) -> None:
        """Lock the output and open its journal; `recover` must follow.

        Raises:
            OptionError: The directory cannot be written to.
            BrimError: Another process is writing the output.
        """
        super().__init__(_of_rank(output, rank) if rank else output, rows=prompts, samples=samples)

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Which responses are missing, [prompts, samples]."""
        return ((self._offsets == NOTHING) | self._failed).reshape(-1, self.samples)

    def append_fields(self, prompt: int, sample: int, fields: Fields) -> None:
        """Write the fields of a response, and hand them to the operating system."""
        self._append(prompt, sample, to_json(fields))

    def fields(self, prompt: int, sample: int) -> Fields:
        """Return the fields of a finished response."""
        return self.text(prompt, sample)

    def take_over(self, options: Mapping[str, Any], *, force: bool = False) -> int:
        """Take over what ranks wrote to journals of their own, remove these, and return how many responses there were.

        A process that is killed on the way leaves some responses in two journals, where they are the same.

        Raises:
            MismatchError: A journal belongs to a run with other options, and `force` is not set.
            BrimError: A rank is still writing.
        """
        taken = 0
        for rank in _ranks(self.output):
            shape = self.missing.shape
            other = ResponseJournal(self.output, prompts=shape[0], samples=shape[1], rank=rank)
            try:
                taken += other.recover(options, force=force)
                for prompt, sample in other.in_order_of_arrival():
                    self._append(prompt, sample, other._body(prompt, sample))
            except BaseException:  # Ctrl-C too: nothing is removed before it was taken over
                other.close(keep=True)
                raise
            other.close(keep=False)
        return taken

    def _append(self, prompt: int, sample: int, body: bytes) -> None:
        at = prompt * self.samples + sample
        self._offsets[at] = self._file.append(TEXT, b"%d\n" % at + body)
        self._failed[at] = False


def _of_rank(output: Path, rank: int) -> Path:
    """Return the name beside the output that the journal of a rank belongs to."""
    return output.with_name(f"{output.name}.rank{rank}")


def _ranks(output: Path) -> Iterator[int]:
    """Yield the ranks of this run or of earlier ones that have a journal beside the output."""
    found = glob.glob(f"{glob.escape(str(records_path(output).with_suffix('')))}.rank*.journal")
    for path in sorted(found):
        if match := re.search(r"\.rank([1-9]\d*)\.journal$", path):
            yield int(match[1])
