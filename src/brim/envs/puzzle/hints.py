"""Turn the server's hints, which are sentences, into actions. A session has checked that a sentence is short."""

import re
from collections.abc import Callable

from brim.envs.puzzle.games import Observation

_RULES: tuple[tuple[str, str | Callable[[re.Match[str], Observation], str | None]], ...] = (
    (r"placing a queen at row (\d+), column (\d+)", r"place \1 \2 1"),
    (r"placing a (?:tent|star) at row (\d+), column (\d+)", r"mark \1 \2 place"),
    (r"Remove the (?:tent|star) at row (\d+), column (\d+)", r"mark \1 \2 remove"),
    (r"placing (\d+) bridge\(s\) between \((\d+),(\d+)\) and \((\d+),(\d+)\)", r"bridge \2 \3 \4 \5 \1"),
    (r"placing (-?\d+) at row (\d+), column (\d+)", r"place \2 \3 \1"),
    (r"marking row (\d+), column (\d+) as filled", r"place \1 \2 1"),
    (r"marking row (\d+), column (\d+) as empty", r"place \1 \2 0"),
    (r"pressing the light at row (\d+), column (\d+)", r"press \1 \2"),
    (r"secret code is: ([\d ]+)", r"guess \1"),
    (r"setting horizontal edge at \((\d+),(\d+)\) to line", r"set h \1 \2 1"),
    (r"setting vertical edge at \((\d+),(\d+)\) to line", r"set v \1 \2 1"),
    (r"unshading cell at row (\d+), column (\d+)", r"mark \1 \2 unshade"),
    (r"shading cell at row (\d+), column (\d+)", r"shade \1 \2"),
    (r"rectangle from \((\d+),(\d+)\) to \((\d+),(\d+)\)", r"bridge \1 \2 \3 \4 1"),
    (r"moving vehicle (\w) (up|down|left|right)", r"move \1 \2"),
    (r"(?:Push|Move|Try moving|Try pushing) (up|down|left|right)", r"move \1"),
    (r"\b(select|deselect)ing item (\d+)", r"\1 \2"),
    (r"scheduling (.+) on Worker (\d+) at time (\d+)", lambda match, seen: _scheduled(match, seen)),
    (r"marking \((\d+),(\d+)\) as (white|black)", r"mark \1 \2 \3"),
    (r"revealing cell \((\d+),(\d+)\)", r"reveal \1 \2"),
    (r"flagging cell \((\d+),(\d+)\)", r"flag \1 \2"),
    (r"coloring node (\d+) with .*\(color (\d+)\)", r"place \1 \2"),
    (r"assigning ([A-Z]) = (\d)", r"assign \1 \2"),
)


def action_of(hint: str, observation: Observation) -> str | None:
    """Return the action that a hint advises, or None for a sentence that advises none."""
    for pattern, action in _RULES:
        if match := re.search(pattern, hint):
            return match.expand(action).strip() if isinstance(action, str) else action(match, observation)
    return None


def _scheduled(match: re.Match[str], observation: Observation) -> str | None:
    """Find the number of a task, which a move needs, by its name, which a hint has."""
    name, worker, time = match.groups()
    row = re.search(
        rf"(?m)^[ \t]*(\d{{1,4}})[ \t]*\|[ \t]*{re.escape(name)}[ \t]*\|", str(observation.get("grid_display", ""))
    )
    return f"assign {row[1]} {worker} {time}" if row else None
