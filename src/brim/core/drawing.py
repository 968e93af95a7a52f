"""What people read off a screen: bars made of characters, numbers with their thousands apart."""

from typing import Any


def bar(share: float, width: int) -> str:
    """A bar of `share` (0 to 1) of `width` characters, to an eighth of a character. What is more than nothing is seen."""
    eighths = max(round(share * width * 8), int(share > 0))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def readable(value: Any) -> str:
    """A value as people read it: thousands apart, yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
