"""Requests and tokens per minute: a bucket that fills at a constant rate.

A bucket holds what ten seconds bring, so that a burst cannot use a whole minute's share at once. What a request really
cost is known only afterwards, so the bucket may be overdrawn; then the next request waits until it is paid back.
"""

BURST = 10.0
"""Seconds whose share may be used at once."""
WHOLE = 1.0 - 1e-6
"""From this on, a share counts as one unit: sums of shares are rounded."""


class Rate:
    """At most `per_minute` units in a minute.

    Example:
        >>> rate = Rate(60)
        >>> for _ in range(10):
        ...     rate.take(1, now=0.0)
        >>> rate.wait(now=0.0), rate.wait(now=1.0)
        (1.0, 0.0)
    """

    def __init__(self, per_minute: float) -> None:
        self._rate = per_minute / 60.0
        self._most = max(self._rate * BURST, 1.0)
        self._left = self._most
        self._at: float | None = None

    def wait(self, now: float) -> float:
        """Return the seconds until one unit may be taken; 0 if it may be taken now."""
        self._fill(now)
        return 0.0 if self._left >= WHOLE else (1.0 - self._left) / self._rate

    def take(self, units: float, now: float) -> None:
        """Take units, also more than there are. A negative number gives back what was taken too much."""
        self._fill(now)
        self._left = min(self._left - units, self._most)

    def _fill(self, now: float) -> None:
        if self._at is not None:
            self._left = min(self._left + (now - self._at) * self._rate, self._most)
        self._at = now
