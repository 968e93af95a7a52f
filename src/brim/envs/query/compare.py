"""Compare answers with each other and with references: as texts in a normal form, or by the numbers in them.

Models say the same thing in many ways: "The answer is **Paris**.", "paris", "Answer: Paris". The functions here accept
exactly what their docstrings say, and never search an answer for the reference, so an answer that lists everything
matches nothing.
"""

import math
import re
import unicodedata

TOLERANCE = 1e-6
"""Difference up to which two numbers are taken for equal, absolute or relative."""

_QUOTES = "\"'`´“”„‘’‚«»‹›()[]{}<>*_¿¡"
_OPENING = _QUOTES + " "
_CLOSING = _QUOTES + ".,;:!?… "
_ARTICLES = re.compile(r"(?:(?:a|an|the) )+(?=.)")
_MARK = re.compile(r"\banswer[*_]*(?:(?:\s+is)?[*_]*\s*[:：]|\s+is(?=\s))", re.IGNORECASE)

_NUMBER = re.compile(
    r"""
    (?<!\w) \d+ (?:/\d+){2,}                    # a date: no number
  | (?: (?<![\w)\]]) (?P<sign>[-+−－]) )?       # a hyphen between two words or numbers is no sign
    [$€£¥]?
    (?: (?<!\w) (?<!\d\.)                       # not the 2 of "m2", not the end of a version number
        (?P<digits> \d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)? | \d+(?:\.\d+)? )
      | (?<![\w.]) (?P<point> \.\d+ )
    )
    (?: (?P<power> [eE][-+−]?\d+ ) | / (?P<below> \d+ ) )?
    """,
    re.VERBOSE,
)


def normal_form(text: str) -> str:
    """Return a text without the differences that do not count.

    Compatible characters are one (Unicode NFKC), case is folded, runs of white space are one blank, and quotes,
    brackets, asterisks and underscores around the text are left out, as are marks such as a period at its end, and
    English articles at its beginning. Signs and symbols stay: "-3", ".5" and "50%" differ from "3", "5" and "50". A
    text of nothing else stays as it is.

    Example:
        >>> normal_form("  The  **Eiffel Tower**.\\n")
        'eiffel tower'
    """
    while True:
        before = text
        text = " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).split())
        text = text.lstrip(_OPENING).rstrip(_CLOSING) or text
        if articles := _ARTICLES.match(text):
            text = text[articles.end() :]
        # A step can give rise to another one: an article may be followed by a quote.
        if text == before:
            return text


def final_part(answer: str) -> str:
    """Return the text after the last "answer:" or "answer is" of an answer, up to the end of its line, or the next line
    if there is no letter or digit on it. An answer without such a part is returned as it is.

    Example:
        >>> final_part("Let me think. The answer is: Paris\\nI hope this helps.")
        ' Paris'
    """
    marks = list(_MARK.finditer(answer))
    if not marks:
        return answer
    lines = answer[marks[-1].end() :].splitlines()
    return next((line for line in lines if any(map(str.isalnum, line))), answer)


def matches(answer: str, reference: str) -> bool:
    """Return whether an answer, its last line, or its `final_part` has the same normal form as the reference."""
    lines = answer.strip().splitlines() or [""]
    return normal_form(reference) in {normal_form(part) for part in (answer, lines[-1], final_part(answer))}


def numbers(text: str) -> list[float]:
    """Return all numbers of a text, in their order.

    It understands 42, -3 (also with the sign U+2212), 1,234.5, .5, 1e3, $5 and fractions such as 3/4. Digits that
    follow a letter are no number ("m2"), and a comma is no decimal point: "3,5" is two numbers. Dates such as 3/4/2024,
    numbers that are too large for a double, and divisions by zero are left out.

    Example:
        >>> numbers("3/4 of 1,200 m2 is 900, not -900")
        [0.75, 1200.0, 900.0, -900.0]
    """
    found = [_value(match) for match in _NUMBER.finditer(text)]
    return [number for number in found if number is not None]


def last_number(text: str) -> float | None:
    """Return the last number of a text, or None if it has none."""
    found = numbers(text)
    return found[-1] if found else None


def close(one: float, other: float, tolerance: float = TOLERANCE) -> bool:
    """Return whether two numbers differ by at most `tolerance`, absolute or relative to the larger one."""
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def agree(one: str, other: str) -> bool:
    """Return whether two answers say the same: their last numbers if both have numbers, else their final parts.

    An empty answer agrees with none.
    """
    first, second = last_number(one), last_number(other)
    if first is not None and second is not None:
        return close(first, second)
    form = normal_form(final_part(one))
    return form != "" and form == normal_form(final_part(other))


def _value(match: re.Match[str]) -> float | None:
    digits = match["digits"] or match["point"]
    if digits is None:
        return None
    value = float(digits.replace(",", "") + (match["power"] or "").replace("−", "-"))
    if match["below"]:
        below = float(match["below"])
        if not below:
            return None
        value /= below
    if not math.isfinite(value):
        return None
    return -value if match["sign"] in ("-", "−", "－") else value
