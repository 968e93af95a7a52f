"""An iterator that a thread runs a few items ahead of its consumer."""

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TypeVar

ItemT = TypeVar("ItemT")


def fetch_ahead(items: Iterator[ItemT], ahead: int) -> Iterator[ItemT]:
    """Give the same items in the same order, made by a thread, at most `ahead` before they are asked for.

    An error comes where the item would have come. The thread starts with the first item and has ended when the
    iteration has, whether it was exhausted, left or raised in.

    Example:
        >>> list(fetch_ahead(iter(range(5)), ahead=2))
        [0, 1, 2, 3, 4]
    """
    ready: queue.Queue[tuple[bool, Any]] = queue.Queue(ahead)
    stop = threading.Event()

    def put(is_item: bool, value: Any) -> None:
        while not stop.is_set():
            try:
                return ready.put((is_item, value), timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put(True, item)
                if stop.is_set():
                    return
            put(False, None)
        except BaseException as error:  # whatever it is, it belongs to the thread that waits for the item
            put(False, error)

    thread = threading.Thread(target=work, name="brim-fetch", daemon=True)
    thread.start()
    try:
        while True:
            is_item, value = ready.get()
            if is_item:
                yield value
            elif value is None:
                return
            else:
                raise value
    finally:
        stop.set()
        with suppress(queue.Empty):
            while True:
                ready.get_nowait()  # the thread may be waiting for room
        thread.join()
