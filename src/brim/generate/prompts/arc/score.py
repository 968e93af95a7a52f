"""The grid of a response, and how similar it is to the answer.

Where the grid is looked for:

1. The answer is the content of the one <answer> block if the prompt asks for tags, and otherwise everything before the
   first text that ends a response.
2. Blank lines, lines that end in a colon, and fences of code (```) separate blocks of lines in it. The last block must
   be a grid in the encoding of the prompt, and nothing else. If it is not, the response is malformed; no earlier block
   takes its place.
"""

from typing import NamedTuple

from brim.core.errors import DataError
from brim.envs.arc.engine.reference import similarity
from brim.envs.arc.tasks.task import Grid
from brim.generate.prompts.arc.encodings import BLANK, NotAGrid, find_encoding
from brim.generate.prompts.example import Example
from brim.generate.prompts.template import CLOSE_ANSWER, in_tags

META = "arc_task"
"""The key of `Example.meta` that holds task, pair and encoding."""
FENCE = "```"


class Judged(NamedTuple):
    """A response beside the answer."""

    grid: Grid | None
    """None if the response is malformed."""
    similarity: float
    """Equal cells divided by the cells that the grid or the answer has, as in the environments; 0 if malformed."""

    @property
    def right(self) -> bool:
        """Whether the size and every cell are those of the answer."""
        return self.similarity == 1


def judge(example: Example, response: str) -> Judged:
    """Compare a response with the answer of an ARC example.

    Raises:
        DataError: The example is not of ARC, or its own answer is not a grid.
    """
    encoding = find_encoding(_about(example))
    try:
        target = encoding.decode(example.answer or "")
    except NotAGrid as error:
        raise DataError(f"the answer of example {example.id} is not a grid: {error}") from None
    grid = response_grid(example, response)
    return Judged(grid, 0.0 if grid is None else float(similarity(grid, target)))


def response_grid(example: Example, response: str) -> Grid | None:
    """Return the grid of a response, or None if it is malformed.

    Raises:
        DataError: The example is not of ARC.
    """
    encoding = find_encoding(_about(example))
    block = _last_block(_answer(example, response))
    try:
        return None if block is None else encoding.decode(block)
    except NotAGrid:
        return None


def extract(example: Example, response: str) -> str | None:
    """Return the grid of a response as the encoding writes it, or None if it is malformed."""
    grid = response_grid(example, response)
    return None if grid is None else find_encoding(_about(example)).encode(grid)


def _about(example: Example) -> str:
    about = example.meta.get(META)
    if not isinstance(about, dict) or "encoding" not in about:
        raise DataError(f"the example {example.id} is not of ARC")
    return str(about["encoding"])  # pyright: ignore[reportUnknownArgumentType]


def _answer(example: Example, response: str) -> str:
    """Return the part of a response that is its answer; empty if there is none."""
    if CLOSE_ANSWER in example.stop:
        return in_tags(response) or ""
    found = (response.find(stop) for stop in example.stop)
    return response[: min((at for at in found if at >= 0), default=len(response))]


def _last_block(text: str) -> str | None:
    block: list[str] = []
    for line in reversed(text.split("\n")):
        bare = line.strip(BLANK)
        if bare and not bare.endswith(":") and not bare.startswith(FENCE):
            block.append(line)
        elif block:
            break
    return "\n".join(reversed(block)) or None
