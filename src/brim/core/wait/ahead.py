"""An iterator that a thread runs a few items ahead of its consumer.

Waking a thread costs as much as making a small batch, because the woken thread also needs the interpreter's lock. So a
consumer that waits is woken when the thread has made all it may make, or after a millisecond if that is sooner, and
then takes several items without waiting.
"""

import threading
from collections import deque
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

ItemT = TypeVar("ItemT")

LONGEST_DELAY = 0.001
"""Upper limit, in seconds, of the time for which an item that is ready is withheld from a consumer that waits."""

ALIVE = 1.0
"""A consumer that waits looks every so many seconds whether the thread is still there."""


class _End:
    """Comes after the last item: the error that ended the iteration, if there was one."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def fetch_ahead(items: Iterator[ItemT], ahead: int) -> Iterator[ItemT]:
    """Give the same items in the same order, made by a thread, at most `ahead` before they are asked for.

    An error comes where the item would have come. The thread starts with the first item and has ended when the
    iteration has, whether it was exhausted, left or raised in.

    Raises:
        RuntimeError: The process was forked in the middle of the iteration, and this is the child, which has no thread.

    Example:
        >>> list(fetch_ahead(iter(range(5)), ahead=2))
        [0, 1, 2, 3, 4]
    """
    asked: SimpleQueue[bool] = SimpleQueue()  # True for each item that may be made, False when no more are wanted
    made: deque[Any] = deque()
    # Locked while there is nothing new: only the consumer locks it, only the thread unlocks it.
    news = threading.Lock()
    news.acquire()
    left = is_blocked = False

    def notify() -> None:
        if news.locked():
            news.release()

    def work() -> None:
        try:
            while asked.get() and not left:
                made.append(next(items))
                if is_blocked or asked.empty():
                    notify()
        except StopIteration:
            made.append(_End(None))
        except BaseException as error:  # whatever it is, it belongs to the thread that waits for the item
            made.append(_End(error))
        notify()

    for _ in range(ahead):
        asked.put(True)
    thread = threading.Thread(target=work, name="brim-fetch", daemon=True)
    thread.start()
    try:
        while True:
            asked.put(True)
            while not made:  # the news may have been an item that was taken without waiting
                if not news.acquire(timeout=LONGEST_DELAY):
                    # Set before looking again: the thread sees this, or this sees the item.
                    is_blocked = True
                    while not made and not news.acquire(timeout=ALIVE):
                        if not thread.is_alive() and not made:
                            raise RuntimeError("this process was forked during an iteration; begin another one")
                    is_blocked = False
            item = made.popleft()
            if type(item) is _End:
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        left = True
        asked.put(False)
        thread.join()
