"""Score a response by comparing its answer with the reference.

For prompts that ask for tags the answer is the content of the one <answer> block, otherwise the first line of the
response. Numbers are compared by value, everything else as text, in time linear in the length of the response. Examples
of reasoning-gym are scored by that package, grids of ARC by `brim.generate.prompts.arc.score`. Nothing that a model
wrote is run as code.
"""

import re
from fractions import Fraction

from brim.generate.prompts import reasoning
from brim.generate.prompts.arc import score as arc
from brim.generate.prompts.example import Example
from brim.generate.prompts.template import CLOSE_ANSWER, in_tags

LONGEST_NUMBER = 100  # characters; a longer text is compared as text

_NUMBER = re.compile(
    r"(?P<sign>[+-]?)\$?(?P<minus>-?)"
    r"(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]*)(?P<decimals>\.[0-9]+)?"
    r"(?: ?/ ?(?P<divisor>[0-9]+))?\$?\.?"
)


def score_response(example: Example, response: str) -> float | None:
    """Return a score from 0 to 1 for a response, or None if the example has no answer to compare it with.

    Raises:
        OptionError: The example is of a reasoning-gym task that is unknown or refused.
        MissingExtraError: The example is of a reasoning-gym task, and the package is not installed.

    Example:
        >>> score_response(Example("2 * 600 = 1200", "2 * 600 =", "1200", stop=("\\n",)), " 1,200.0")
        1.0
    """
    by_task = reasoning.META in example.meta
    if example.answer is None and not by_task:
        return None
    if arc.META in example.meta:
        return 1.0 if arc.judge(example, response).right else 0.0
    given = extract_answer(example, response)
    if given is None:
        return 0.0
    if by_task:
        return reasoning.score(example, given)
    return 1.0 if _same(example.answer or "", given) else 0.0


def extract_answer(example: Example, response: str) -> str | None:
    """Return the part of a response that is its answer, or None if it has no answer or more than one."""
    if arc.META in example.meta:
        return arc.extract(example, response)
    if CLOSE_ANSWER in example.stop:
        return in_tags(response)
    found = (response.find(stop) for stop in example.stop)
    end = min((at for at in found if at >= 0), default=len(response))
    return response[:end].strip().partition("\n")[0].strip()


def _same(reference: str, given: str) -> bool:
    number = parse_number(reference)
    if number is not None:
        return parse_number(given) == number
    return _normal(reference) == _normal(given)


def parse_number(text: str) -> Fraction | None:
    """Return the value of a number such as "1,200", "$3.50", "-7." or "3/4", or None for any other text.

    A percentage is not a number: "50%" and "0.5" differ.
    """
    text = text.strip().replace("\N{MINUS SIGN}", "-")
    if len(text) > LONGEST_NUMBER:
        return None
    match = _NUMBER.fullmatch(text)
    if match is None or not (match["whole"] or match["decimals"]):
        return None
    if match["sign"] and match["minus"]:
        return None
    value = Fraction((match["whole"].replace(",", "") or "0") + (match["decimals"] or ""))
    if match["divisor"] is not None:
        if int(match["divisor"]) == 0:
            return None
        value /= int(match["divisor"])
    return -value if "-" in (match["sign"], match["minus"]) else value


def _normal(text: str) -> str:
    return " ".join(text.split()).casefold()
