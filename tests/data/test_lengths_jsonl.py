"""Length tables as JSONL: lines that are parsed at once are what they are when parsed one by one."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from brim import LengthCache
from brim.core.errors import BrimError
from brim.data import lengths_jsonl
from brim.data.ids import Ids

IDS = (
    st.text(max_size=6)
    | st.integers(-(2**65), 2**65)
    | st.sampled_from(["a", ',"length":', "}", 'x", "length": 1', "null"])
)
LENGTHS = st.integers(0, 300) | st.sampled_from([2**31 - 1, 2**31, -1, 2**63, 2**64, 10**30])
ODD = st.none() | st.booleans() | st.floats() | st.text(max_size=3) | st.lists(st.integers(0, 9), max_size=3)
NESTED = st.fixed_dictionaries({"length": st.integers(0, 3), "sample_id": st.text(max_size=2)})
ROWS = st.fixed_dictionaries(
    {"sample_id": IDS, "length": LENGTHS},
    optional={"group": st.sampled_from(["", "g", "true"]) | ODD, "axes": ODD, "x": st.integers(0, 9) | ODD | NESTED},
)
PLAIN = st.fixed_dictionaries({"sample_id": st.text(max_size=4), "length": st.integers(0, 99)})
STYLES = st.tuples(
    st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : "), (",\t", ":\r")]),
    st.sampled_from(["", " ", "\t"]),
    st.booleans(),
    st.sampled_from(["\n", "\r\n", " \n"]),
)


def line_of(row, style, order):
    separators, inner, ascii_only, end = style
    keys = sorted(row, key=lambda key: order.find(key[0]))
    text = json.dumps({key: row[key] for key in keys}, separators=separators, ensure_ascii=ascii_only)
    return "{" + inner + text[1:-1] + inner + "}" + end


@st.composite
def files(draw):
    """Lines of mostly one style and one set of keys, some of them with something else about them."""
    style, order = draw(STYLES), draw(st.permutations("slgax").map("".join))
    rows = draw(st.lists(PLAIN, max_size=6) | st.lists(ROWS, max_size=4))
    lines = [line_of(row, style, order) for row in rows]
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        odd = draw(
            st.builds(line_of, ROWS | PLAIN, STYLES, st.permutations("slgax").map("".join))
            | st.sampled_from(
                [
                    "\n",
                    " \r\n",
                    "null\n",
                    "[1]\n",
                    "{}\n",
                    '{"sample_id":"d","length":1,"length":2}\n',
                    '{"sample_id": "d", "length": 1, "length": 2}\n',
                    '{"sample_id":"d"}\n',
                    '{"length": 3}\n',
                    '{"sample_id":"e","length":5} trailing\n',
                    '{"sample_id":"e","length":5},\n',
                    '{"sample_id":"e","length":5}{"sample_id":"f","length":5}\n',
                    '{"sample_id":"x,"length":5}\n',
                    '{"sample_id":","length":6}\n',
                    '{"sample_id":"x,"length":","length":5}\n',
                    '{"sample_id": "x, "length": y, "length": z", "length": 5}\n',
                    '{"sample_id": "x, "length": 5}\n',
                    '{"sample_id": ", "length": 6}\n',
                    '{"sample_id":["y","length":5}\n',
                    '{"sample_id":"\\u0061","length":5e0}\n',
                    '{"sample\\u005fid":"u","length":5}\n',
                ]
            )
        )
        lines.insert(draw(st.integers(0, len(lines))), odd)
    text = "".join(lines)
    return text if draw(st.booleans()) else text.rstrip("\n")


def outcome(path):
    """Everything a reader can see of a table, or what is wrong with it."""
    try:
        table = LengthCache.load(path)
    except BrimError as error:
        return type(error), str(error)
    axes = None if table.axes is None else np.asarray(table.axes).tolist()
    return table.fingerprint, list(table.ids), np.asarray(table.length).tolist(), table.group_names, axes


@given(files())
@example('{"sample_id":"a","length":4}\n{"sample_id":"x,"length":5}\n{"sample_id":","length":6}')
@example('{"length":1,"sample_id":"a","group":"b"}\n{"length":1,"group":"c","sample_id":"d"}\n')
@example('{"sample_id":"a","length":4}\n{"sample_id":"x,"length":","length":5}\n')
@example('{"length":4,"sample_id":"a"}\n{"length":5,"sample_id":"x,"sample_id":y"}\n')
@example('{"sample_id":"a","length":4,"group":"g"}\n{"sample_id":"b","length":5,"group":"h,"group":"}\n')
@example('{"sample_id":"a\\"","length":4}\n{"sample_id":"b","length":5}\n')
@example('{"sample_id":"a","length":-1}\n{"sample_id":"b","length":1}\nbroken\n')
@example('{"sample_id":"a","length":1,"x":2}\n{"sample_id":"b","x":3,"length":4}\n')
@example('{"sample_id":"a","length":2,"group":"g","x":0}\n{"sample_id":"b","length":2,"x":0,"group":"g"}\n')
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=400)
def test_lines_that_are_parsed_at_once_are_read_and_refused_as_when_parsed_one_by_one(tmp_path, text):
    path = tmp_path / "t.jsonl"
    path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
    at_once = outcome(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lengths_jsonl, "_parse_block", lambda text: None)
        assert at_once == outcome(path)


@pytest.mark.parametrize(
    "line",
    [
        '{"sample_id":"s%d","length":%d}\n',
        '{"sample_id": "s%d", "length": %d}\n',
        '{ "sample_id" : "s%d" , "length" : %d }\r\n',
        '{"sample_id": "s%d", "length": %d, "group": "g"}\n',
        '{"sample_id": "s%d", "length": %d, "group": "g", "score": 1.5}\n',
    ],
)
def test_every_style_is_parsed_at_once_with_keys_in_any_order(line, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("lines were parsed one by one")

    monkeypatch.setattr(lengths_jsonl, "_parse_lines", refuse)
    path = tmp_path / "t.jsonl"
    path.write_text("".join(line % (number, number % 7) for number in range(20_000)), newline="")
    table = LengthCache.load(path)
    assert list(table.ids)[:2] == ["s0", "s1"]
    assert np.array_equal(table.length, np.arange(20_000) % 7)
    path.write_text('{"length": 4, "sample_id": "a"}\n{"length": 5, "sample_id": "b"}\n')
    assert np.asarray(LengthCache.load(path).length).tolist() == [4, 5]


def test_the_first_line_that_is_wrong_is_named(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"sample_id":"a","length":-1}\n{"sample_id":"b","length":1}\nbroken\n')
    with pytest.raises(BrimError, match=r"t\.jsonl:1: sample 'a' has length -1"):
        LengthCache.load(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ('"source":5', "source is 5; it must be an object"),
        ('"source":"ab"', "source is 'ab'; it must be an object"),
        ('"group_names":5', "group_names is 5; it must be a list of strings"),
        ('"group_names":[5]', r"group_names is \[5\]; it must be a list of strings"),
        ('"rows":"1"', "rows is '1'; it must be a number"),
    ],
)
def test_headers_of_the_wrong_types_are_refused(tmp_path, header, message):
    path = tmp_path / "t.jsonl"
    path.write_text(f'{{"tokenizer_hash":"x",{header}}}\n{{"sample_id":"a","length":4}}\n')
    with pytest.raises(BrimError, match=rf"t\.jsonl:1: {message}"):
        LengthCache.load(path)


@pytest.mark.parametrize("group", ["5", "0", "true", "[]"])
def test_a_group_is_a_string(tmp_path, group):
    path = tmp_path / "t.jsonl"
    path.write_text(f'{{"sample_id":"a","length":4,"group":{group}}}\n')
    with pytest.raises(BrimError, match=r"t\.jsonl:1: the group is .*; a group is a string"):
        LengthCache.load(path)


def test_a_flipped_bit_anywhere_in_a_table_is_found(tmp_path):
    """Spaces apart, no byte of the header or of a row can change without a word."""
    path = tmp_path / "t.jsonl"
    source = {"path": "data.jsonl", "fields": ["text"], "bytes": 12345}
    cache = LengthCache(Ids.of(["a", "b", "c"]), np.array([5, 3, 4], np.int32), tokenizer_hash="t", source=source)
    cache.save(path)
    whole = path.read_bytes()
    assert LengthCache.load(path).source == source
    for at in range(len(whole)):
        for bit in (0, 2, 5):
            raw = bytearray(whole)
            raw[at] ^= 1 << bit
            path.write_bytes(raw)
            try:
                table = LengthCache.load(path)
            except BrimError:
                continue
            assert (table.fingerprint, table.source) == (cache.fingerprint, source), bytes(raw)
