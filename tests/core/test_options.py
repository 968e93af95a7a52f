import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import MismatchError, OptionError
from brim.core.options import check_counts, check_unchanged, from_dict, one_of, resumed, to_dict


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int = 9
    goal: tuple[int, ...] | None = None
    pair: tuple[float, str] = (0.5, "x")


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)
    other: Inner | None = None
    colour: Colour = Colour.RED
    mode: Literal["fast", "slow"] = "fast"
    rate: float = 0.1
    on: bool = True
    id: int | str = 0
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if self.rate < 0:
            raise OptionError(f"rate must not be negative, got {self.rate}")


inners = st.builds(
    Inner,
    size=st.integers(),
    goal=st.none() | st.lists(st.integers()).map(tuple),
    pair=st.tuples(st.floats(0, 1), st.text()),
)
outers = st.builds(
    Outer,
    name=st.text(),
    inner=inners,
    other=st.none() | inners,
    colour=st.sampled_from(Colour),
    mode=st.sampled_from(["fast", "slow"]),
    rate=st.floats(0, 1),
    on=st.booleans(),
    id=st.integers() | st.text(),
    facts=st.dictionaries(st.text(), st.integers()),
)


@given(outers)
def test_options_survive_json(options):
    assert from_dict(Outer, json.loads(json.dumps(to_dict(options)))) == options
    assert json.loads(json.dumps(to_dict(options))) == to_dict(options)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nam": "a"}, "unknown option 'nam' of a test. Did you mean \"name\"?"),
        ({}, "option 'name' of a test is missing"),
        ({"name": 3}, "name of a test must be a string, got 3"),
        ({"name": "a", "inner": {"sise": 3}}, "unknown option 'inner.sise' of a test. Did you mean \"size\"?"),
        ({"name": "a", "inner": {"size": 3.0}}, "inner.size of a test must be an integer, got 3.0"),
        ({"name": "a", "inner": {"size": True}}, "inner.size of a test must be an integer, got True"),
        ({"name": "a", "inner": {"goal": "12"}}, "inner.goal of a test must be a list, got '12'"),
        ({"name": "a", "inner": {"goal": [1, "2"]}}, "inner.goal[1] of a test must be an integer, got '2'"),
        ({"name": "a", "inner": {"pair": [1.0]}}, "inner.pair of a test must be a list of 2, got [1.0]"),
        ({"name": "a", "inner": None}, "inner of a test must be named values, got None"),
        ({"name": "a", "colour": "green"}, "colour of a test must be one of red, blue, got 'green'."),
        ({"name": "a", "mode": "slo"}, "mode of a test must be one of fast, slow, got 'slo'. Did you mean \"slow\"?"),
        ({"name": "a", "mode": None}, "mode of a test must be one of fast, slow, got None."),
        ({"name": "a", "rate": "0.5"}, "rate of a test must be a number, got '0.5'"),
        ({"name": "a", "rate": -1.0}, "rate must not be negative, got -1.0"),
        ({"name": "a", "on": 1}, "on of a test must be true or false, got 1"),
        ({"name": "a", "id": 1.5}, "id of a test must be an integer or a string, got 1.5"),
        ({"name": "a", "facts": [1]}, "facts of a test must be dict, got [1]"),
        ([1], "options of a test must be named values, got [1]"),
    ],
)
def test_what_cannot_be_options_is_refused_with_its_name_and_value(values, message):
    with pytest.raises(OptionError) as caught:
        from_dict(Outer, values, what="a test")
    assert str(caught.value) == message


def test_an_integer_is_a_number_and_stays_an_integer():
    assert type(from_dict(Outer, {"name": "a", "rate": 1}).rate) is int


def test_nested_options_may_be_options_already():
    assert from_dict(Outer, {"name": "a", "inner": Inner(size=3)}).inner == Inner(size=3)


def test_a_resumed_run_takes_what_may_change_and_nothing_else(tmp_path):
    began = Outer(name=str(tmp_path), rate=0.5, inner=Inner(size=3, goal=(1,)))
    free = {"may_change": {"rate", "inner.goal"}, "paths": {"name"}}
    other = f"{tmp_path}/../{tmp_path.name}"
    after = resumed(began, {"name": other, "rate": 0.25, "on": True, "inner": Inner(size=3, goal=(2,))}, **free)
    assert after == Outer(name=str(tmp_path), rate=0.25, inner=Inner(size=3, goal=(2,)))
    with pytest.raises(MismatchError) as caught:
        resumed(began, {"name": "elsewhere", "inner": Inner(size=4), "mode": "slow"}, **free)
    assert str(caught.value) == (
        f"these options cannot change when a run is resumed: name ({tmp_path} -> elsewhere), inner.size (3 -> 4), "
        "mode (fast -> slow); leave them out, or start a new run"
    )


def test_dictionaries_of_options_are_compared_name_by_name():
    check_unchanged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": 2}}, may_change={"a.b"})
    check_unchanged({"a": {"b": 1}, "d": 1}, {"a": {"b": 3}, "d": 1}, may_change={"a"})
    with pytest.raises(MismatchError, match=r"resumed: a\.b \(1 -> None\), a\.c \(None -> 2\); leave"):
        check_unchanged({"a": {"b": 1}}, {"a": {"c": 2}})


def test_counts_are_integers_within_range():
    check_counts(a=1, b=None, c=2**31 - 1)
    for value, what in ((0, "at least 1"), (2**31, "at most 2147483647"), (1.0, "an integer"), (True, "an integer")):
        with pytest.raises(OptionError, match=f"a must be {what}, got {value}"):
            check_counts(a=value)


def test_a_choice_is_returned_as_a_string():
    assert type(one_of("colour", Colour.RED, Colour)) is str
    with pytest.raises(OptionError, match=r"got .blu.*Did you mean .blue"):
        one_of("colour", "blu", Colour)
