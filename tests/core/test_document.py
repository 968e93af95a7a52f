import json
import os
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.document import Document
from brim.core.errors import DamagedError, DataError
from brim.core.fingerprint import canonical_json, digest_bytes

KIND = Document(format="brim.test/2", what="a test", again="write it again")
BARE = Document(format="brim.bare/1", what="a bare thing", checksum="none")
MAYBE = Document(format="brim.maybe/1", what="a thing of hand", checksum="optional")

names = st.text().filter(lambda name: name not in ("format", "checksum"))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    st.lists,
    max_leaves=6,
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [KIND, BARE, MAYBE])
@given(content=st.dictionaries(names, values, max_size=4))
def test_what_is_written_is_read(kind, content):
    assert kind.decode(kind.encode(content), "here") == content


def test_a_document_is_indented_json_with_its_format_first_and_its_checksum_last(tmp_path):
    content = {"b": 1, "a": [1.5, "ü"]}
    KIND.write(tmp_path / "x.json", content)
    naive = {"format": "brim.test/2", **content}
    naive["checksum"] = digest_bytes(canonical_json(naive))
    assert (tmp_path / "x.json").read_bytes() == json.dumps(naive, indent=2).encode() + b"\n"
    assert KIND.read(tmp_path / "x.json") == content
    BARE.write(tmp_path / "y.json", content)
    assert (tmp_path / "y.json").read_text() == json.dumps({"format": "brim.bare/1", **content}, indent=2) + "\n"


def test_another_layout_of_the_same_values_is_the_same_document():
    assert KIND.decode(canonical_json(json.loads(KIND.encode({"a": 1}))), "here") == {"a": 1}


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (b"", DamagedError, "here is truncated or damaged: it is not JSON; write it again"),
        (b'{"format": "brim.te', DamagedError, "here is truncated or damaged: it is not JSON; write it again"),
        (b"\xff", DamagedError, "here is truncated or damaged: it is not JSON; write it again"),
        (b'{"a": NaN}', DamagedError, "here is truncated or damaged: it is not JSON; write it again"),
        (b"[" * 200_000, DamagedError, "here is truncated or damaged: it is nested too deeply; write it again"),
        (b"[1]", DamagedError, "here is truncated or damaged: it is not a JSON object; write it again"),
        (b"{}", DataError, "here is not a test: it does not say that it is brim.test; write it again"),
        (b'{"format": 3}', DataError, "here is not a test: it does not say that it is brim.test; write it again"),
        (
            b'{"format": "brim.testing/2"}',
            DataError,
            "here is not a test: it does not say that it is brim.test; write it again",
        ),
        (
            b'{"format": "brim.test/3"}',
            DamagedError,
            "here is of version brim.test/3, this brim reads brim.test/2; write it again",
        ),
        (b'{"format": "brim.test/2"}', DamagedError, "here was altered (its checksum differs); write it again"),
        (
            b'{"format": "brim.test/2", "checksum": 1}',
            DamagedError,
            "here was altered (its checksum differs); write it again",
        ),
    ],
)
def test_what_is_no_document_is_refused(data, kind, message):
    with pytest.raises(kind) as caught:
        KIND.decode(data, "here")
    assert str(caught.value) == message


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_changed_byte_is_found(place, change):
    data = bytearray(KIND.encode({"a": 1, "text": "some words"}))
    data[place % len(data)] ^= change
    with suppress(DataError, DamagedError):
        assert KIND.decode(bytes(data), "here") == {"a": 1, "text": "some words"}  # white space


def test_advice_can_be_given_for_one_document():
    with pytest.raises(DamagedError, match=r"not JSON; remove it$"):
        KIND.decode(b"", "here", again="remove it")
    with pytest.raises(DamagedError, match=r"not JSON$"):
        BARE.decode(b"", "here")


def test_an_optional_checksum_is_checked_only_if_it_is_there():
    assert MAYBE.decode(b'{"format": "brim.maybe/1", "a": 1}', "here") == {"a": 1}
    with pytest.raises(DamagedError, match="altered"):
        MAYBE.decode(b'{"format": "brim.maybe/1", "a": 1, "checksum": "00"}', "here")


def test_what_is_not_a_readable_file_is_said(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*missing: No such file or directory"):
        KIND.read(tmp_path / "missing")
    with pytest.raises(DataError, match=r"cannot read .*: it is a directory"):
        KIND.read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"cannot read .*pipe: it is not a regular file"):
        KIND.read(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b" " * 101)
    with pytest.raises(DataError, match=r"too large for a test \(101 bytes, at most 100\)"):
        Document(format="brim.test/2", what="a test", largest=100).read(tmp_path / "large")
