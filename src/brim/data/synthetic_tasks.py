"""The tasks of the sample data, each with a generator and a solver that needs only the prompt.

`make` generates a task and writes out the solution step by step; `solve` parses the prompt with a regular expression
and computes the answer in another way. Neither calls the other, so a bug in one of them shows.
"""

import re
from collections.abc import Callable
from datetime import date, timedelta
from typing import NamedTuple, Protocol

NAMES = (
    "Ana",
    "Björn",
    "Chidi",
    "Dana",
    "Emeka",
    "Farah",
    "Goran",
    "Hana",
    "Inés",
    "Jonas",
    "Kavya",
    "Liam",
    "Mei",
    "Noor",
    "Otto",
    "Zoë",
)
GOODS = (
    "apples",
    "books",
    "crates",
    "lamps",
    "pencils",
    "plates",
    "radios",
    "ropes",
    "seeds",
    "tiles",
    "towels",
    "wheels",
)
PLACES = ("bakery", "depot", "farm", "harbour", "library", "market", "museum", "school", "station", "workshop")
WORDS = tuple(
    re.findall(
        r"\w+",
        "amber anchor basket beacon bridge candle canyon carpet cedar cloud copper coral cotton desert dragon ember "
        "engine falcon feather field forest garden garnet glacier guitar hammer harbor honey island ivory jacket "
        "jungle kettle ladder lantern lemon marble meadow mirror mountain needle ocean orchard paper pebble pepper "
        "pillow planet pocket quartz rabbit ribbon river saddle salmon shadow silver spring stone summer sunset "
        "tiger timber tulip tunnel valley velvet violet walnut window winter wonder ",
    )
)
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
UNITS = (
    ("kilometres", "metres", 1000),
    ("hours", "minutes", 60),
    ("days", "hours", 24),
    ("kilograms", "grams", 1000),
    ("metres", "centimetres", 100),
    ("weeks", "days", 7),
    ("litres", "millilitres", 1000),
)
OPENINGS = (
    "",
    "Please help me with this. ",
    "Here is a small exercise. ",
    "A quick question. ",
    "I would like to check my homework. ",
)


class Random(Protocol):
    def below(self, limit: int) -> int: ...
    def between(self, low: int, high: int) -> int: ...
    def pick(self, choices: tuple[str, ...]) -> str: ...
    def size(self, low: int, high: int) -> int: ...


class Task(NamedTuple):
    make: Callable[[Random], tuple[str, str, str]]  # prompt, worked solution, answer
    solve: Callable[[str], str]


def make_sum(draw: Random) -> tuple[str, str, str]:
    first = draw.between(2, 999)
    terms = [(draw.pick(("+", "-")), draw.between(2, 999)) for _ in range(draw.size(3, 65))]
    total, steps = first, [f"Start with {first}."]
    for sign, term in terms:
        after = total + term if sign == "+" else total - term
        steps.append(f"{total} {sign} {term} = {after}")
        total = after
    expression = f"{first} " + " ".join(f"{sign} {term}" for sign, term in terms)
    return f"{draw.pick(OPENINGS)}Compute {expression}. Show every step.", "\n".join(steps), str(total)


def solve_sum(prompt: str) -> str:
    expression = _search(r"Compute (.*)\. Show", prompt)[0]
    return str(sum(int(term.replace(" ", "")) for term in re.findall(r"[+-]? ?\d+", expression)))


def make_sort(draw: Random) -> tuple[str, str, str]:
    numbers = [draw.between(-500, 9999) for _ in range(draw.size(9, 148))]
    down = draw.below(2) == 1
    ordered = sorted(numbers, reverse=down)
    order = "largest to smallest" if down else "smallest to largest"
    prompt = f"{draw.pick(OPENINGS)}Sort these {len(numbers)} numbers from {order}: {_listed(numbers)}."
    steps = (
        f"There are {len(numbers)} numbers. The smallest is {min(numbers)} and the largest is {max(numbers)}. In "
        "order they are:"
    )
    return prompt, steps, _listed(ordered)


def solve_sort(prompt: str) -> str:
    order, listed = _search(r"from (\w+) to \w+: (.*)\.", prompt)
    numbers = [int(number) for number in listed.split(", ")]
    numbers.sort()
    return _listed(numbers if order == "smallest" else numbers[::-1])


def make_convert(draw: Random) -> tuple[str, str, str]:
    lines, steps, answers = [], [], []
    for _ in range(draw.size(2, 18)):
        if draw.below(5) == 0:
            celsius = draw.between(-8, 40) * 5
            scaled = celsius // 5 * 9
            lines.append(f"- {celsius} °C to °F")
            steps.append(
                f"{celsius} × 9 / 5 = {scaled}, and {scaled} + 32 = {scaled + 32}, so {celsius} °C are {scaled + 32} "
                "°F."
            )
            answers.append(scaled + 32)
        else:
            big, small, factor = UNITS[draw.below(len(UNITS))]
            amount = draw.between(2, 120)
            lines.append(f"- {amount} {big} to {small}")
            steps.append(f"One of the {big} has {factor} {small}: {amount} × {factor} = {amount * factor}.")
            answers.append(amount * factor)
    return f"{draw.pick(OPENINGS)}Convert each of these:\n" + "\n".join(lines), "\n".join(steps), _listed(answers)


def solve_convert(prompt: str) -> str:
    factors = {(big, small): factor for big, small, factor in UNITS}
    found = re.findall(r"- (-?\d+) (\S+) to (\S+)", prompt)
    return _listed(
        [round(int(n) * 1.8 + 32) if big == "°C" else int(n) * factors[big, small] for n, big, small in found]
    )


def make_letters(draw: Random) -> tuple[str, str, str]:
    words = [draw.pick(WORDS) for _ in range(draw.size(5, 85))]
    letter = draw.pick(tuple("aeiorst"))
    counted = [(word, word.count(letter)) for word in words]
    steps = ["Going through the words:"] + [f"{word}: {count}" for word, count in counted if count]
    total = sum(count for _, count in counted)
    return (
        f'{draw.pick(OPENINGS)}How often does the letter "{letter}" occur in "{" ".join(words)}"?',
        "\n".join(steps),
        str(total),
    )


def solve_letters(prompt: str) -> str:
    letter, text = _search(r'letter "(.)" occur in "(.*)"\?', prompt)
    return str(len(text) - len(text.replace(letter, "")))


def make_backwards(draw: Random) -> tuple[str, str, str]:
    words = [draw.pick(WORDS) for _ in range(draw.size(5, 90))]
    steps = (
        f"There are {len(words)} words. The last one, {words[-1]}, comes first, and the first one, {words[0]}, comes "
        "last."
    )
    prompt = f"{draw.pick(OPENINGS)}Write the words of this list in the opposite order, in capitals: {' '.join(words)}."
    return prompt, steps, " ".join(word.upper() for word in reversed(words))


def solve_backwards(prompt: str) -> str:
    return " ".join(_search(r"capitals: (.*)\.", prompt)[0].split()[::-1]).upper()


def make_date(draw: Random) -> tuple[str, str, str]:
    start = date(draw.between(1980, 2035), 1, 1) + timedelta(draw.below(365))
    days = draw.between(3, 40) if draw.below(3) else draw.size(40, 850)
    steps, left, day = [f"Count on from {_date(start)}."], days, start
    while left:
        rest = (date(day.year + day.month // 12, day.month % 12 + 1, 1) - day).days
        step = min(left, rest)
        day, left = day + timedelta(step), left - step
        steps.append(f"{step} days later it is {_date(day)}; {left} days are left.")
    steps.append(f"{_date(day)} is a {DAYS[day.weekday()]}.")
    prompt = f"{draw.pick(OPENINGS)}Which day of the week is it {days} days after {_date(start)}?"
    return prompt, "\n".join(steps), DAYS[day.weekday()]


def solve_date(prompt: str) -> str:
    days, day, month, year = _search(r"(\d+) days after (\d+) (\w+) (\d+)", prompt)
    ordinal = date(int(year), MONTHS.index(month) + 1, int(day)).toordinal() + int(days)
    return DAYS[(ordinal - 1) % 7]


def make_stock(draw: Random) -> tuple[str, str, str]:
    goods, place, stock = draw.pick(GOODS), draw.pick(PLACES), draw.between(200, 900)
    story, steps = [f"A {place} has {stock} {goods}."], [f"At first there are {stock} {goods}."]
    for _ in range(draw.size(2, 19)):
        name, many = draw.pick(NAMES), draw.between(2, 60)
        if draw.below(2):
            packs = draw.between(2, 9)
            story.append(f"{name} brings {packs} boxes with {many} {goods} each.")
            steps.append(
                f"{packs} × {many} = {packs * many} come in: {stock} + {packs * many} = {stock + packs * many}."
            )
            stock += packs * many
        else:
            many = min(many, stock)
            story.append(f"{name} takes {many} {goods} away.")
            steps.append(f"{many} go out: {stock} - {many} = {stock - many}.")
            stock -= many
    return (
        f"{draw.pick(OPENINGS)}{' '.join(story)} How many {goods} are there at the end?",
        "\n".join(steps),
        str(stock),
    )


def solve_stock(prompt: str) -> str:
    stock = int(_search(r"has (\d+)", prompt)[0])
    stock += sum(int(packs) * int(many) for packs, many in re.findall(r"brings (\d+) boxes with (\d+)", prompt))
    return str(stock - sum(int(many) for many in re.findall(r"takes (\d+)", prompt)))


def make_bill(draw: Random) -> tuple[str, str, str]:
    lines, steps, total = [], [], 0
    for _ in range(draw.size(2, 18)):
        goods, many, cents = draw.pick(GOODS), draw.between(2, 12), draw.between(25, 1999)
        lines.append(f"- {many} {goods} at €{_money(cents)} each")
        steps.append(
            f"{many} {goods}: {many} × {_money(cents)} = {_money(many * cents)}; so far {_money(total + many * cents)}"
        )
        total += many * cents
    prompt = f"{draw.pick(OPENINGS)}{draw.pick(NAMES)} buys:\n" + "\n".join(lines) + "\nWhat does it cost altogether?"
    return prompt, "\n".join(steps), f"€{_money(total)}"


def solve_bill(prompt: str) -> str:
    bought = re.findall(r"- (\d+) .*€(\d+)\.(\d+)", prompt)
    return f"€{_money(sum(int(many) * (int(euros) * 100 + int(cents)) for many, euros, cents in bought))}"


def _search(pattern: str, prompt: str) -> tuple[str, ...]:
    found = re.search(pattern, prompt)
    if found is None:
        raise ValueError(f"not a prompt of this task: {prompt[:80]!r}")
    return found.groups()


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _date(day: date) -> str:
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def _money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"


TASKS = {
    "sum": Task(make_sum, solve_sum),
    "sort": Task(make_sort, solve_sort),
    "convert": Task(make_convert, solve_convert),
    "letters": Task(make_letters, solve_letters),
    "backwards": Task(make_backwards, solve_backwards),
    "date": Task(make_date, solve_date),
    "stock": Task(make_stock, solve_stock),
    "bill": Task(make_bill, solve_bill),
}
