"""An iterator that a thread runs a few items ahead of its consumer.

The two threads exchange items and requests through queues that are written in C and wait without polling, so a waiting
side costs nothing, and handing an item over costs a few microseconds.
"""

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

ItemT = TypeVar("ItemT")


class _End:
    """Comes after the last item: the error that ended the iteration, if there was one."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def fetch_ahead(items: Iterator[ItemT], ahead: int) -> Iterator[ItemT]:
    """Give the same items in the same order, made by a thread, at most `ahead` before they are asked for.

    An error comes where the item would have come. The thread starts with the first item and has ended when the
    iteration has, whether it was exhausted, left or raised in.

    Example:
        >>> list(fetch_ahead(iter(range(5)), ahead=2))
        [0, 1, 2, 3, 4]
    """
    ready: SimpleQueue[Any] = SimpleQueue()
    asked: SimpleQueue[bool] = SimpleQueue()  # one entry for each item that may be made; False: no more of them
    for _ in range(ahead):
        asked.put(True)
    left = False  # set before the last entry of `asked`, which may have others in front of it

    def work() -> None:
        try:
            while asked.get() and not left:
                ready.put(next(items))
        except StopIteration:
            ready.put(_End(None))
        except BaseException as error:  # whatever it is, it belongs to the thread that waits for the item
            ready.put(_End(error))

    thread = threading.Thread(target=work, name="brim-fetch", daemon=True)
    thread.start()
    try:
        while True:
            asked.put(True)
            item = ready.get()
            if type(item) is _End:
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        left = True
        asked.put(False)
        thread.join()
