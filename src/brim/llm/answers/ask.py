"""Ask for every answer that the journal does not have yet.

Questions are made from the rows while earlier ones are under way, so memory holds those in flight and no others. An
outcome is in the journal before the caller sees it. A run stops early only where no later question can fare better:
the servers are lost, the key is refused, no server has the model, or the cache is damaged.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from brim.core.errors import OptionError
from brim.llm.answers.journal import AnswerJournal
from brim.llm.answers.rows import Input, Row
from brim.llm.call import Reply
from brim.llm.failures import CacheFailed, Cancelled, Failure, ModelMissing, Rejected

REFUSED_KEY = (401, 403)


class Outcome(NamedTuple):
    """The end of one question."""

    row: int
    sample: int
    fields: Row
    result: Reply | Failure


def as_it_is(reply: Reply) -> Reply | Failure:
    """Accept every reply."""
    return reply


def ask_missing(
    rows: Input,
    journal: AnswerJournal,
    ready: Callable[[Iterator[Any]], Iterable[tuple[int, Reply | Failure]]],
    question: Callable[[Row, int], Any],
    *,
    judge: Callable[[Reply], Reply | Failure] = as_it_is,
    lost: Callable[[Failure], bool] = lambda failure: False,
) -> Iterator[Outcome]:
    """Ask for what is missing, and yield each outcome after it was written to the journal.

    Args:
        ready: Takes an iterator of questions and yields (number, outcome) as they end, such as `LLMPool.as_ready`.
        question: Makes the question for a row and the number of a sample. An OptionError means that there is nothing to
            ask, such as an empty prompt: the row fails, and the run continues.
        judge: Returns a reply, or the failure that it amounts to.
        lost: Tells from a failure whether all servers are lost.

    Raises:
        Failure: No further question can be answered: all servers are lost, the cache is damaged, or the first answers
            say that the key is refused or the model is missing. Everything that was answered before is in the journal.
    """
    under_way: dict[int, tuple[int, int, Row]] = {}
    unaskable: deque[Outcome] = deque()
    answered = False

    def questions() -> Iterator[Any]:
        index = 0
        for number, fields in rows:
            for sample in range(journal.samples):
                if journal.has_answer(number, sample):
                    continue
                try:
                    asked = question(fields, sample)
                except OptionError as error:
                    unaskable.append(Outcome(number, sample, fields, Rejected(str(error))))
                    continue
                under_way[index] = (number, sample, fields)
                index += 1
                yield asked

    for index, result in ready(questions()):
        outcome = Outcome(*under_way.pop(index), result)
        if isinstance(result, Failure):
            if is_hopeless(result, answered=answered) or lost(result):
                raise result
        else:
            answered = True
            outcome = outcome._replace(result=judge(result))
        journal.append(outcome.row, outcome.sample, outcome.result)
        yield outcome
        yield from _drained(unaskable, journal)
    yield from _drained(unaskable, journal)


def is_hopeless(failure: Failure, *, answered: bool) -> bool:
    """Return whether every other question would fail in the same way; `answered` says that one was answered before."""
    if isinstance(failure, Cancelled | CacheFailed):
        return True
    return not answered and (isinstance(failure, ModelMissing) or failure.status in REFUSED_KEY)


def servers_lost(stats: Callable[[], Any], attempts: int) -> Callable[[Failure], bool]:
    """Return a function that tells from a failure whether all servers are lost.

    They are if none of them works and the call was given up before its attempts were used up: that is how a pool ends
    the calls that wait when its patience is over.

    Args:
        stats: Returns the `PoolStats` of the moment.
        attempts: Upper limit of the requests for one call.
    """

    def lost(failure: Failure) -> bool:
        if not failure.transient or failure.attempts >= attempts:
            return False
        return all(server.state != "closed" for server in stats().servers)

    return lost


def _drained(unaskable: deque[Outcome], journal: AnswerJournal) -> Iterator[Outcome]:
    while unaskable:
        outcome = unaskable.popleft()
        journal.append(outcome.row, outcome.sample, outcome.result)
        yield outcome
