import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.core.errors import DamagedError, DataError
from brim.data.lengths import LengthCache, LengthEntry

ids = st.one_of(st.lists(st.text(max_size=5), unique=True), st.lists(st.integers(-(2**62), 2**62), unique=True))
tables = ids.flatmap(
    lambda ids: st.tuples(
        st.just(ids),
        st.lists(st.integers(0, 2**31 - 1), min_size=len(ids), max_size=len(ids)),
        st.lists(st.sampled_from([None, "a", "b"]), min_size=len(ids), max_size=len(ids)),
    )
)


def entries(table):
    return [LengthEntry(id, length, group) for id, length, group in zip(*table, strict=True)]


def cache_of(table):
    return LengthCache.from_entries(entries(table), tokenizer_hash="t", dataset_hash="d", source={"rows": 3})


@given(tables, st.sampled_from(["c.jsonl", "c.lengths"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_a_saved_cache_is_the_same_when_loaded_in_either_form(tmp_path, table, name):
    cache = cache_of(table)
    cache.save(tmp_path / name)
    loaded = LengthCache.load(tmp_path / name)
    assert (loaded.fingerprint, loaded.meta) == (cache.fingerprint, cache.meta)
    assert list(loaded.items()) == list(cache.items())
    first = (tmp_path / name).read_bytes()
    loaded.save(tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


@pytest.mark.parametrize("name", ["c.jsonl", "c.lengths"])
def test_every_truncation_is_noticed(tmp_path, name):
    cache_of((["x", "y", "z"], [1, 2, 3], ["a", "b", "a"])).save(tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    for size in range(1, len(whole) - 1):
        (tmp_path / name).write_bytes(whole[:size])
        with pytest.raises((DamagedError, DataError)):
            LengthCache.load(tmp_path / name)


def test_a_flipped_bit_in_a_column_is_noticed(tmp_path):
    cache_of(([5, 7, 9], [1, 2, 3], [None, None, None])).save(tmp_path / "c")
    data = bytearray((tmp_path / "c").read_bytes())
    data[64] ^= 1
    (tmp_path / "c").write_bytes(data)
    with pytest.raises(DamagedError, match="'length' is damaged"):
        _ = LengthCache.load(tmp_path / "c").lengths


def test_the_fingerprint_changes_with_an_id_a_length_or_a_group():
    base = (["x", "y"], [1, 2], ["a", "b"])
    others = [(["x", "z"], [1, 2], ["a", "b"]), (["x", "y"], [1, 3], ["a", "b"]), (["x", "y"], [1, 2], ["a", "a"])]
    assert len({cache_of(table).fingerprint for table in (base, *others)}) == 4


def test_an_id_that_comes_twice_is_an_error():
    with pytest.raises(DataError, match="id 'x' comes twice: entry 1 and entry 3"):
        cache_of((["x", "y", "x"], [1, 2, 3], [None, None, None]))
