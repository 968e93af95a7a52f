"""Bytes to lines: however they are cut into pieces, the lines are the same."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.envs.puzzle.wire.errors import ProtocolError
from brim.envs.puzzle.wire.lines import EchoFilter, Lines, TelnetFilter

IAC, SB, SE = b"\xff", b"\xfa", b"\xf0"
commands = st.one_of(
    st.sampled_from([b"\xfb", b"\xfc", b"\xfd", b"\xfe"]).flatmap(
        lambda verb: st.binary(min_size=1, max_size=1).map(lambda o: IAC + verb + o)
    ),
    st.sampled_from([b"\xf1", b"\xf9"]).map(lambda verb: IAC + verb),
    st.binary(max_size=5).map(lambda data: IAC + SB + data.replace(IAC, b"") + IAC + SE),
)
plain = st.binary(max_size=8).map(lambda data: data.replace(IAC, b"."))
streams = st.lists(st.tuples(plain, commands), max_size=8)


def pieces_of(data, cuts):
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


@given(streams, st.lists(st.integers(0, 10_000), max_size=12))
def test_telnet_commands_are_taken_out_wherever_the_stream_is_cut(parts, cuts):
    data = b"".join(text + command for text, command in parts)
    telnet = TelnetFilter()
    assert b"".join(telnet.feed(piece) for piece in pieces_of(data, cuts)) == b"".join(text for text, _ in parts)


def test_a_doubled_iac_is_the_byte_itself():
    assert TelnetFilter().feed(b"a\xff\xffb") == b"a\xffb"


def test_what_the_real_server_opens_with_is_no_text():
    opening = bytes.fromhex("fffb01fffb03fffd03fffd18fffd1ffffc22")
    assert TelnetFilter().feed(opening + b"menu") == b"menu"


@given(st.binary(max_size=60), st.lists(st.integers(0, 10_000), max_size=12))
def test_lines_are_what_lies_between_newlines(data, cuts):
    lines = Lines()
    for piece in pieces_of(data, cuts):
        lines.feed(piece)
    assert list(iter(lines.pop, None)) == [
        line.rstrip(b"\r").decode("utf-8", "replace") for line in data.split(b"\n")[:-1]
    ]


@pytest.mark.parametrize("ending", [b"", b"\n"])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_line_that_is_too_long_is_refused_before_it_fills_the_memory(ending, size):
    lines = Lines(limit=100)
    with pytest.raises(ProtocolError, match="more than 100 bytes"):
        for _ in range(102):
            lines.feed(b"x" * size)
        lines.feed(ending)


def test_echo_and_prompts_are_taken_out_of_what_a_terminal_shows():
    echo = EchoFilter()
    echo.sent(["hint", "mode k1"])
    shown = ["hint", "Hint: Try pressing", "> mode k1", '{"mode":"k1"}', "> > hint"]
    assert [echo.keep(line) for line in shown] == [None, "Hint: Try pressing", None, '{"mode":"k1"}', "hint"]
    echo.sent(["never echoed", "mode k2"])
    echo.sent(["show", "mode k3"])
    assert [echo.keep(line) for line in ("never echoed", "show", "mode k3")] == ["never echoed", None, None]
