"""Numbers and names as the page writes them."""

from brim.core.display import visible

LONGEST_NAME = 60
MISSING = "–"


def number(value: float | None) -> str:
    """Format a reward: 0.412, or 1,234.5 if it is large."""
    if value is None:
        return MISSING
    digits = 3 if abs(value) < 100 else 1
    return f"{round(value, digits) + 0.0:,.{digits}f}".replace("-", "−")


def duration(seconds: float) -> str:
    """Format a duration: 0.8 s, 41 s, 12 min 30 s, 2 h 13 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60:,} h {minutes % 60} min"


def counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def named(text: str, what: str = "name") -> str:
    """Return a name that models or data chose, with every character visible, and clipped if it is very long."""
    if len(text) > LONGEST_NAME:
        text = text[: LONGEST_NAME - 1] + "…"
    return visible(text) or f"(no {what})"
