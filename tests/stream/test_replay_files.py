"""A buffer that was saved and loaded goes on as if nothing had happened; a file that is not what it was is refused."""

import json

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.replays import numbered, sample, samples

from brim.core.columns import Columns, write_columns
from brim.core.errors import BrimError, DamagedError, DataError
from brim.core.fingerprint import digest_bytes
from brim.stream.replay.buffer import ReplayBuffer
from brim.stream.replay.files import FORMAT

NAMES = ("buffer.brim", "buffer.json")


def step(buffer, rng, number):
    """One random operation, and what it gave. The same generator and the same buffer give the same."""
    match rng.integers(8):
        case 0:
            return buffer.add(
                sample(int(rng.integers(60)), [number] * int(rng.integers(4)), policy_version=number, timestamp=1.0),
                float(rng.random()),
            )
        case 1:
            several = [
                sample(f"{number}-{i}", rng.integers(0, 70_000, 3).tolist(), policy_version=number, timestamp=2.0)
                for i in range(rng.integers(12))
            ]
            return buffer.add_batch(several, rng.random(len(several))).tolist()
        case 2 | 3 if buffer.size:
            draw = buffer.sample(int(rng.integers(1, buffer.size + 1)))
            return (
                draw.keys.tolist(),
                draw.weights.tolist(),
                draw.tokens.tolist(),
                [one.replay_count for one in draw.samples],
            )
        case 4 if buffer.size:
            draw = buffer.sample_uniform(int(rng.integers(1, buffer.size + 1)))
            return buffer.update_priorities(draw.keys, rng.random(len(draw)) * (rng.random(len(draw)) < 0.8))
        case 5 if buffer.size:
            return buffer.sample(3, replace=True).keys.tolist()
        case 6 if rng.random() < 0.2:
            return buffer.evict_older_than(number - 30)
        case 7 if rng.random() < 0.3:
            return buffer.remove(buffer.snapshot().keys[::5])
        case _:
            return buffer.update_priority(int(rng.integers(60)), float(rng.random()))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fifo", "priority", "random"])
@pytest.mark.parametrize("duplicates", ["replace", "keep"])
@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_buffer_goes_on_as_the_one_that_was_never_saved(tmp_path, policy, duplicates, name):
    buffer = ReplayBuffer(max_size=40, eviction_policy=policy, duplicates=duplicates, seed=5)
    again = ReplayBuffer(buffer.config)
    first, second = np.random.default_rng(1), np.random.default_rng(1)
    for number in range(600):
        assert step(buffer, first, number) == step(again, second, number)
        if number % 120 == 60:
            again.save(tmp_path / name)
            again = ReplayBuffer.load(tmp_path / name)
    assert again.snapshot().fingerprint == buffer.snapshot().fingerprint
    assert again.get_all() == buffer.get_all()
    assert again.to_dict() == buffer.to_dict()


@settings(max_examples=25)
@given(st.lists(samples(), max_size=8), st.sampled_from(NAMES))
def test_everything_about_a_sample_survives_a_file(tmp_path_factory, given_samples, name):
    path = tmp_path_factory.mktemp("replay") / name
    buffer = ReplayBuffer(duplicates="keep")
    buffer.add_batch(given_samples)
    buffer.save(path)
    loaded = ReplayBuffer.load(path)
    assert loaded.get_all() == given_samples
    assert [one.timestamp for one in loaded.get_all()] == [one.timestamp for one in given_samples]
    assert loaded.config == buffer.config
    loaded.save(path.with_name(f"again-{name}"))
    assert path.with_name(f"again-{name}").read_bytes() == path.read_bytes()


def test_the_dict_is_json_and_says_what_it_is():
    buffer = ReplayBuffer(max_size=3, priority_alpha=0.5)
    buffer.add_batch(numbered(5, length=2, reward=1.0))
    buffer.sample(2)
    values = json.loads(json.dumps(buffer.to_dict()))
    assert values["format"] == "brim.buffer/1"
    assert (values["total_added"], values["total_evicted"], len(values["samples"]), len(values["priorities"])) == (
        5,
        2,
        3,
        3,
    )
    assert values["samples"][0].keys() == sample().to_dict().keys()
    assert ReplayBuffer.from_dict(values).to_dict() == buffer.to_dict()


def test_json_is_one_line(tmp_path):
    buffer = ReplayBuffer()
    buffer.add_batch(numbered(20, length=64))
    buffer.save(tmp_path / "buffer.json")
    assert (tmp_path / "buffer.json").read_bytes().count(b"\n") == 1


def test_an_empty_buffer_and_one_with_holes_survive(tmp_path):
    for name in NAMES:
        empty = ReplayBuffer(max_size=10)
        empty.save(tmp_path / name)
        assert ReplayBuffer.load(tmp_path / name).size == 0
        empty.add_batch(numbered(10))
        empty.remove(empty.snapshot().keys[3:8])
        empty.save(tmp_path / name)
        loaded = ReplayBuffer.load(tmp_path / name)
        assert [empty.add(sample(i)) for i in range(9)] == [loaded.add(sample(i)) for i in range(9)]


@pytest.fixture
def saved(tmp_path):
    def save(name):
        buffer = ReplayBuffer(max_size=20)
        buffer.add_batch(
            [*numbered(15, timestamp=1.5), sample("t", segment_ids=[0, 0, 1], episode_id="e", timestamp=2.5)]
        )
        buffer.save(tmp_path / name)
        return tmp_path / name

    return save


def one_line(error):
    return "\n" not in str(error.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_was_cut_or_altered_anywhere_is_refused(saved, name):
    path = saved(name)
    whole = path.read_bytes()
    rng = np.random.default_rng(2)
    for size in rng.integers(1, len(whole) - 1, 25).tolist():
        path.write_bytes(whole[:size])
        with pytest.raises((DamagedError, DataError)) as error:
            ReplayBuffer.load(path)
        assert one_line(error)
        assert str(path) in str(error.value)
    for place in rng.integers(0, len(whole) - 1, 60).tolist():
        altered = bytearray(whole)
        altered[place] ^= 1
        path.write_bytes(altered)
        try:
            loaded = ReplayBuffer.load(path).to_dict()
        except (DamagedError, DataError):
            continue
        path.write_bytes(whole)  # it may have been padding between columns; nothing else may go unnoticed
        assert (name, whole[place]) == ("buffer.brim", 0)
        assert loaded == ReplayBuffer.load(path).to_dict()


def test_files_of_another_kind_or_version_are_refused(tmp_path, saved):
    cases = {
        "does not exist": tmp_path / "nothing.brim",
        "is a directory": tmp_path,
        "not a replay buffer": saved("other.brim"),
        "of version brim.replay/9": saved("version.brim"),
        "of version brim.buffer/9": saved("version.json"),
        "is not JSON": saved("broken.json"),
    }
    cases["not a replay buffer"].write_bytes(b"brim.lengths/1\n" + b"\0" * 100)
    for path, old, new in ((cases["of version brim.replay/9"], b"brim.replay/1", b"brim.replay/9"),):
        path.write_bytes(path.read_bytes().replace(old, new))
    version = cases["of version brim.buffer/9"]
    version.write_bytes(version.read_bytes().replace(b"brim.buffer/1", b"brim.buffer/9"))
    cases["is not JSON"].write_text('{"format": "brim.buffer/1", ')
    for message, path in cases.items():
        with pytest.raises(BrimError, match=message) as error:
            ReplayBuffer.load(path)
        assert one_line(error)
    for content in (b"", b"[]", b"[1]", b'{"a": 1}', b"{}"):
        (tmp_path / "x.json").write_bytes(content)
        with pytest.raises(DataError, match="not a replay buffer"):
            ReplayBuffer.load(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.pop("keys"), "needs 'keys'"),
        (lambda values: values["keys"].pop(), "15 keys"),
        (lambda values: values["keys"].reverse(), "must be positive and increasing"),
        (lambda values: values.update(keys=[20 * i for i in range(1, 17)]), "must not share a slot"),
        (lambda values: values.update(total_added=99), "add up"),
        (lambda values: values.update(total_added="x"), "not a replay buffer"),
        (lambda values: values.update(slots=1), "slots"),
        (lambda values: values.update(chechsum="x"), "chechsum"),
        (lambda values: values["priorities"].__setitem__(0, -1.0), "priorities"),
        (lambda values: values["samples"][0].update(reward="much"), "reward"),
        (lambda values: values["samples"][0].update(rewards=1), "rewards"),
        (lambda values: values.update(samples=7), "not a replay buffer"),
        (lambda values: values["config"].update(max_sizes=7), "max_sizes"),
        (lambda values: values["random_words"].update(draws=-1), "must not be negative"),
    ],
)
def test_json_that_no_buffer_wrote_is_refused_also_without_a_checksum(saved, change, message):
    path = saved("buffer.json")
    values = orjson.loads(path.read_bytes())
    del values["checksum"]
    path.write_bytes(orjson.dumps(values))
    assert ReplayBuffer.load(path).size == 16  # believed
    change(values)
    path.write_bytes(orjson.dumps(values))
    with pytest.raises(BrimError, match=message) as error:
        ReplayBuffer.load(path)
    assert one_line(error)


def test_columns_that_no_buffer_wrote_are_refused(saved):
    path = saved("buffer.brim")
    columns = Columns(path, FORMAT)
    arrays = {name: columns[name] for name in columns}
    for changed in (
        {"keys": arrays["keys"][::-1]},
        {"priorities": arrays["priorities"][1:]},
        {"tokens": None},
        {"sample_id": None, "id_ends": None},
    ):
        kept = {name: array for name, array in (arrays | changed).items() if array is not None}
        write_columns(path.with_name("x.brim"), FORMAT, columns.meta, kept)
        with pytest.raises(DamagedError, match="not as brim writes it") as error:
            ReplayBuffer.load(path.with_name("x.brim"))
        assert one_line(error)


def test_a_reformatted_json_is_the_same_buffer_and_an_edited_one_is_not(saved):
    path = saved("buffer.json")
    before = ReplayBuffer.load(path).to_dict()
    values = json.loads(path.read_bytes())
    path.write_text(json.dumps(values, indent=2))
    assert ReplayBuffer.load(path).to_dict() == before
    values["priorities"][0] = 3.0
    path.write_text(json.dumps(values))
    with pytest.raises(DamagedError, match="altered"):
        ReplayBuffer.load(path)


def test_a_failed_save_leaves_the_old_file(saved, monkeypatch):
    for name in NAMES:
        path = saved(name)
        before = digest_bytes(path.read_bytes())
        buffer = ReplayBuffer.load(path)
        buffer.add(sample("new"))
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(BrimError, match="No space left"):
                buffer.save(path)
        assert digest_bytes(path.read_bytes()) == before
        assert sorted(item.name for item in path.parent.iterdir() if item.name.startswith(".")) == []


def test_a_loaded_buffer_can_be_saved_over_the_file_it_is_mapped_from(saved):
    path = saved("buffer.brim")
    buffer = ReplayBuffer.load(path)
    before = buffer.get_all()
    buffer.save(path)
    buffer.add_batch(numbered(3, length=50))
    buffer.save(path)
    assert ReplayBuffer.load(path).get_all() == buffer.get_all()
    assert {one.sample_id for one in before} <= {one.sample_id for one in buffer.get_all()} | {"s0", "s1", "s2"}
