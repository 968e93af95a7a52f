"""Checksums of blocks: damage is found where it is touched, and what is not touched is not read."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.blocks import BLOCK, Blocks, GrowingTree, HashTree
from brim.core.column import Column
from brim.core.columns import Columns, write_columns
from brim.core.errors import DamagedError
from brim.core.fingerprint import DIGEST_BYTES

FORMAT = "brim.test/2"
SIZES = st.sampled_from([0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 40 * BLOCK + 7])
LARGE = np.random.default_rng(0).integers(0, 2**31, 300_000, dtype=np.int32)  # 293 blocks: two lists of checksums


def data_of(size):
    return np.random.default_rng(size).bytes(size)


def root(data):
    """The definition: the checksum of the checksums of all blocks, which are bytes in turn."""
    sums = b"".join(
        hashlib.blake2b(data[at : at + BLOCK], digest_size=DIGEST_BYTES).digest() for at in range(0, len(data), BLOCK)
    )
    if len(sums) > BLOCK:
        return root(sums)
    return hashlib.blake2b(sums, digest_size=DIGEST_BYTES).hexdigest()


@given(SIZES, st.lists(st.integers(1, 3 * BLOCK), max_size=8))
def test_bytes_in_pieces_have_the_tree_of_the_whole(size, pieces):
    data, tree, at = data_of(size), GrowingTree(), 0
    for piece in pieces:
        tree.update(memoryview(data[at : at + piece]))
        at += piece
    tree.update(memoryview(data[at:]))
    assert tree.close() == HashTree.of(data)
    assert HashTree.of(data).root == root(data)


@pytest.mark.parametrize("size", [0, 1, BLOCK, 256 * BLOCK, 256 * BLOCK + 1, 700 * BLOCK])
def test_lists_that_lie_end_to_end_are_told_apart_again(size):
    tree = HashTree.of(data_of(size))
    assert tree.root == root(data_of(size))
    assert len(tree.lists) == (2 if size > 256 * BLOCK else 1)
    read = HashTree.read(memoryview(b"".join(tree.lists) + b"more"), size, tree.root)
    assert [bytes(each) for each in read.lists] == list(tree.lists)


@settings(max_examples=50)
@given(st.data())
def test_a_flipped_bit_damages_its_block_and_no_other(chance):
    data = bytearray(LARGE.tobytes())
    tree = HashTree.of(bytes(data))
    at = chance.draw(st.integers(0, len(data) - 1))
    data[at] ^= 1 << chance.draw(st.integers(0, 7))
    blocks = Blocks.under(tree, memoryview(data))
    count = len(blocks.verified)
    others = np.array([block for block in range(count) if block != at // BLOCK])
    assert blocks.check(others)
    assert not blocks.check(np.array([at // BLOCK]))
    assert not blocks.check_all()
    assert blocks.verified.sum() == count - 1


@settings(max_examples=30)
@given(st.data())
def test_a_flipped_bit_in_a_list_of_checksums_is_found_too(chance):
    tree = HashTree.of(LARGE.tobytes())
    lists = [bytearray(each) for each in tree.lists]
    number = chance.draw(st.integers(0, len(lists) - 1))
    lists[number][chance.draw(st.integers(0, len(lists[number]) - 1))] ^= 1 << chance.draw(st.integers(0, 7))
    damaged = HashTree(tuple(map(bytes, lists)), tree.root)
    assert not Blocks.under(damaged, memoryview(LARGE.tobytes())).check_all()


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("columns") / "columns"
    write_columns(path, FORMAT, {}, {"few": np.arange(5), "many": LARGE}, blocks=True)
    return path


rows = st.integers(0, len(LARGE) - 1)
any_rows = st.integers(-len(LARGE), len(LARGE) - 1)
keys = st.one_of(
    any_rows,
    st.builds(slice, any_rows, any_rows, st.sampled_from([None, 1, 7, 5_000, -1, -3_000])),
    st.lists(any_rows, max_size=20).map(lambda numbers: np.array(numbers, np.int64)),
    st.lists(rows, max_size=20).map(lambda numbers: np.isin(np.arange(len(LARGE)), numbers)),
)


@settings(max_examples=60)
@given(keys, st.data())
def test_what_is_read_is_verified_and_nothing_else_is(stored, key, chance):
    """One bit is flipped: reading raises exactly if it lies in a block of the rows that are read."""
    raw = bytearray(stored.read_bytes())
    start = Columns(stored, FORMAT)._places["many"]["start"]
    bad = chance.draw(rows)
    raw[start + 4 * bad] ^= 1
    path = stored.with_name("flipped")
    path.write_bytes(raw)
    column = Columns(path, FORMAT).column("many")
    read = np.atleast_1d(np.arange(len(LARGE))[key])
    # A slice is verified from its first row to its last, whatever its step.
    touched = read if not isinstance(key, slice) or len(read) == 0 else np.arange(read.min(), read.max() + 1)
    if bad * 4 // BLOCK in set(touched * 4 // BLOCK):
        with pytest.raises(DamagedError, match="column 'many' is damaged"):
            column[key]
    else:
        assert np.array_equal(column[key], LARGE[key])
        with pytest.raises(DamagedError):
            _ = column.whole


@settings(max_examples=60)
@given(st.lists(st.tuples(rows, rows).map(sorted), min_size=1, max_size=6), st.data())
def test_spans_are_verified_from_their_first_block_to_their_last(stored, spans, chance):
    raw = bytearray(stored.read_bytes())
    bad = chance.draw(rows)
    raw[Columns(stored, FORMAT)._places["many"]["start"] + 4 * bad] ^= 1
    path = stored.with_name("flipped")
    path.write_bytes(raw)
    column = Columns(path, FORMAT).column("many")
    starts, stops = np.array(spans).T
    touched = {at * 4 // BLOCK for start, stop in spans for at in range(start, stop, BLOCK // 4)}
    touched |= {(stop - 1) * 4 // BLOCK for start, stop in spans if start < stop}
    if bad * 4 // BLOCK in touched:
        with pytest.raises(DamagedError):
            column.spans(starts, stops)
    else:
        values = column.spans(starts, stops)
        assert all(np.array_equal(values[a:b], LARGE[a:b]) for a, b in spans)


def test_a_column_of_a_file_and_one_in_memory_have_the_same_identity(stored):
    column = Columns(stored, FORMAT).column("many")
    assert column.identity == Column.of(LARGE).identity
    assert not column._blocks.verified.any()  # known from the headers
    assert column.equals(Column.of(LARGE))
    assert not column.equals(Column.of(LARGE[:-1]))


def test_a_file_with_one_checksum_for_a_column_is_verified_as_a_whole(tmp_path):
    """As version 1 of the formats was written."""
    write_columns(tmp_path / "old", "brim.test/1", {}, {"many": LARGE})
    column = Columns(tmp_path / "old", FORMAT, older=("brim.test/1",)).column("many")
    assert column[7] == LARGE[7]
    assert np.array_equal(column.whole, LARGE)
    raw = bytearray((tmp_path / "old").read_bytes())
    raw[64 + 4 * 299_999] ^= 1
    (tmp_path / "old").write_bytes(raw)
    with pytest.raises(DamagedError, match="column 'many' is damaged"):
        Columns(tmp_path / "old", FORMAT, older=("brim.test/1",)).column("many")[7]


def test_bytes_missing_from_the_middle_are_damage(stored):
    """What is left is an index that is whole, of columns that are not."""
    raw = stored.read_bytes()
    path = stored.with_name("shorter")
    random = np.random.default_rng(0)
    for _ in range(50):
        begin = int(random.integers(64, len(raw) - 2_000))
        path.write_bytes(raw[:begin] + raw[begin + int(random.integers(1, len(raw) - 1_000 - begin)) :])
        columns = Columns(path, FORMAT)
        with pytest.raises(DamagedError, match="write the file again"):
            columns.verify()
