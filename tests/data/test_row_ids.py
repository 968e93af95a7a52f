import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import DataError
from brim.data import ids as ids_module
from brim.data.ids import Ids
from brim.data.rows.format import RowFormat
from brim.data.rows.row_ids import IdBlock, join_ids, row_id

LAYOUT = RowFormat().layout({"text": "x", "id": 1})
NUMBERED = RowFormat().layout({"text": "x"})

texts = st.text(alphabet="ab\0é", max_size=3)
some_ids = st.one_of(st.lists(texts), st.lists(st.integers(-3, 3)), st.lists(st.one_of(texts, st.integers(-3, 3))))


def first_duplicate(ids):
    """The two-line definition."""
    twice = [(ids.index(id), row) for row, id in enumerate(ids) if id in ids[:row]]
    return twice[0] if twice else None


@given(some_ids)
def test_a_duplicate_is_found_if_and_only_if_there_is_one(values):
    ids = Ids.of(values)
    assert ids.duplicate() == first_duplicate(list(ids))


@given(st.lists(texts))
def test_an_accident_among_hashes_is_not_a_duplicate(values):
    ids = Ids.of(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids_module, "_hashes", lambda text, ends: np.zeros(len(ends), np.uint64))
        assert ids.duplicate() == first_duplicate(list(ids))


@given(st.lists(texts, min_size=1), st.integers(1, 8))
def test_hashes_do_not_depend_on_how_the_column_is_cut(values, chunk):
    columns = Ids.of(values).to_columns()
    whole = ids_module._hashes(columns["id_text"], columns["id_ends"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids_module, "CHUNK", chunk)
        assert ids_module._hashes(columns["id_text"], columns["id_ends"]).tolist() == whole.tolist()
    assert len(set(whole.tolist())) == len(set(values))


@given(st.lists(some_ids.filter(len), min_size=1))
def test_joined_blocks_are_the_column_of_all_ids(blocks):
    joined = join_ids([IdBlock.of(block, LAYOUT) for block in blocks], sum(map(len, blocks)))
    assert list(joined) == list(Ids.of(id for block in blocks for id in block))


def test_row_numbers_take_no_memory():
    assert join_ids([IdBlock.of([0, 1], NUMBERED), IdBlock.of([2], NUMBERED)], 3).to_columns() == {}


def test_zero_and_negative_and_empty_ids_are_ids():
    assert [row_id({"id": id}, LAYOUT, 5) for id in (0, -7, "", "0")] == [0, -7, "", "0"]
    assert row_id({"text": "x"}, NUMBERED, 5) == 5


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": None}, '"id" is null'),
        ({"id": 1.5}, '"id" is a number'),
        ({"id": True}, '"id" is a boolean'),
        ({"id": [1]}, '"id" is a list'),
        ({"id": 2**63}, "does not fit in 64 bits"),
        ({"text": "x"}, r'"id" is missing \(keys: text\). Give every row an id or none'),
    ],
)
def test_what_is_not_an_id_is_an_error(row, message):
    with pytest.raises(DataError, match=message):
        row_id(row, LAYOUT, 0)


def test_an_id_where_the_first_row_has_none_is_an_error():
    with pytest.raises(DataError, match='this row has an "id" but the first row has none'):
        row_id({"id": 1}, NUMBERED, 3)
