"""Plans on disk: whole or absent, checked, mapped."""

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from support.plans import configs, lognormal, tables
from support.two_builds import build_twice

from brim import BatchingConfig, BatchPlan, DamagedError, DataError, LengthCache, OptionError, PackingConfig
from brim.core.errors import BrimError
from brim.data.ids import Ids
from brim.data.lengths import LengthEntry
from brim.plan.store import save_shards
from brim.plan.verify import verify_plan

TABLE = LengthCache.from_lengths(
    LengthEntry(f"s{i}", length, "xy"[i % 2]) for i, length in enumerate(lognormal(300, longest=500).tolist())
)
PACKED = BatchingConfig(token_budget=1024, packing=PackingConfig(max_length=512))


def same(one, other):
    return all(list(one.get_epoch(epoch)) == list(other.get_epoch(epoch)) for epoch in range(one.num_epochs))


@settings(max_examples=40)
@given(tables(), configs())
def test_a_saved_plan_is_the_plan(tmp_path_factory, table, config):
    path = tmp_path_factory.mktemp("plan") / "plan"
    plan = BatchPlan.build(table, config, num_epochs=2)
    for lazy in (False, True):
        plan.save(path, lazy=lazy)
        loaded = BatchPlan.load(path)
        assert loaded.fingerprint == plan.fingerprint
        assert loaded.config == config
        assert loaded.counts == plan.counts
        assert loaded.buckets == plan.buckets
        assert loaded.dropped(0) == plan.dropped(0)
        assert same(loaded, plan)
        assert same(loaded.shard(1, 3), plan.shard(1, 3))
        assert verify_plan(loaded, table, config) == []


@pytest.mark.slow
@settings(max_examples=20)
@given(tables(max_size=30), configs())
def test_saved_shares_are_the_shares(tmp_path_factory, table, config):
    path = tmp_path_factory.mktemp("shards") / "shards"
    plan = BatchPlan.build(table, config, num_epochs=2)
    for world_size in (4, 3):  # the second replaces the first, and leaves no rank 3 behind
        save_shards(plan, path, world_size)
        assert sorted(child.name for child in path.iterdir()) == [f"rank_{rank}" for rank in range(world_size)]
        for rank in range(world_size):
            share = BatchPlan.load(path / f"rank_{rank}")
            assert (share.rank, share.world_size, share.fingerprint) == (rank, world_size, plan.fingerprint)
            assert same(share, plan.shard(rank, world_size))
            assert verify_plan(share) == []
            full = plan.shard(rank, world_size).get_epoch(0)
            assert (share.get_epoch(0).fill, share.get_epoch(0).total_samples) == (full.fill, full.total_samples)


def test_a_saved_share_continues_where_a_round_starts_and_nowhere_else(tmp_path):
    plan = BatchPlan.build(TABLE, BatchingConfig(token_budget=1024, microbatches_per_step=8))
    save_shards(plan, tmp_path / "shards", 3)
    share = BatchPlan.load(tmp_path / "shards" / "rank_1")
    expected = list(plan.shard(1, 3).iter_from(0, 11))
    assert list(share.iter_from(0, 11)) == expected
    with pytest.raises(OptionError, match="microbatch 10 is not where a round of 3 ranks starts"):
        share.iter_from(0, 10)
    with pytest.raises(OptionError, match="already the share"):
        share.shard(0, 2)


def test_saving_twice_gives_the_same_bytes(tmp_path):
    for name in "ab":
        BatchPlan.build(TABLE, PACKED, num_epochs=2).save(tmp_path / name)
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_loading_reads_no_columns(tmp_path):
    BatchPlan.build(TABLE, PACKED).save(tmp_path / "plan")
    for name in ("lengths.brim", "epoch-0000.brim"):
        raw = bytearray((tmp_path / "plan" / name).read_bytes())
        raw[64] ^= 1  # the first byte of the first column
        (tmp_path / "plan" / name).write_bytes(raw)
    plan = BatchPlan.load(tmp_path / "plan")
    assert plan.counts.samples == 300
    assert plan.num_microbatches(0) > 0
    epoch = plan.get_epoch(0)
    with pytest.raises(DamagedError, match=r"epoch-0000.brim: column 'unit' is damaged"):
        epoch[0]
    with pytest.raises(DamagedError, match=r"lengths.brim: column 'length' is damaged"):
        _ = plan.table.lengths


def test_a_new_plan_replaces_the_old_one_with_all_its_epochs(tmp_path):
    BatchPlan.build(TABLE, PACKED, num_epochs=3).save(tmp_path / "plan")
    BatchPlan.build(TABLE, PACKED, num_epochs=1).save(tmp_path / "plan")
    assert BatchPlan.load(tmp_path / "plan").num_epochs == 1
    assert sorted(path.name for path in (tmp_path / "plan").iterdir()) == [
        "epoch-0000.brim",
        "lengths.brim",
        "plan.json",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]


def test_a_directory_with_other_files_is_not_replaced(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").touch()
    plan = BatchPlan.build(TABLE, PACKED)
    for save in (plan.save, lambda path: save_shards(plan, path, 2)):
        with pytest.raises(OptionError, match="will not replace"):
            save(tmp_path / "thesis")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]


def test_truncated_files_are_refused_with_one_line(tmp_path):
    BatchPlan.build(TABLE, PACKED).save(tmp_path / "plan")
    for path in sorted((tmp_path / "plan").iterdir()):
        whole = path.read_bytes()
        for size in (0, 1, 63, 64, len(whole) // 2, len(whole) - 2):
            path.write_bytes(whole[:size])
            with pytest.raises(DamagedError) as caught:
                list(BatchPlan.load(tmp_path / "plan").get_epoch(0))
            assert "\n" not in str(caught.value)
            assert path.name in str(caught.value)
        path.unlink()
        with pytest.raises(BrimError, match=path.name):
            list(BatchPlan.load(tmp_path / "plan").get_epoch(0))
        path.write_bytes(whole)


def test_flipped_bits_are_refused_or_harmless(tmp_path):
    plan = BatchPlan.build(TABLE, PACKED)
    plan.save(tmp_path / "plan")
    random = np.random.default_rng(0)
    refused = 0
    for path in sorted((tmp_path / "plan").iterdir()):
        whole = path.read_bytes()
        for at in random.integers(0, len(whole), 60).tolist():
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << int(random.integers(8))]) + whole[at + 1 :])
            try:
                loaded = BatchPlan.load(tmp_path / "plan")
                assert same(loaded, plan)  # a bit of alignment, white space, or one that was not read
            except BrimError:
                refused += 1
        path.write_bytes(whole)
    assert refused > 120


@pytest.mark.parametrize("overflow", ["truncate", "split"])
def test_a_flipped_bit_is_found_by_the_microbatches_that_touch_its_block_and_by_verify(tmp_path, overflow):
    """The other microbatches are those of the plan. Files are larger than a block, so most of them touch others."""
    table = LengthCache(Ids.of([f"sample {i}" for i in range(20_000)]), lognormal(20_000))
    config = BatchingConfig(token_budget=8192, overflow_max=1500, overflow=overflow)
    plan = BatchPlan.build(table, config)
    plan.save(tmp_path / "plan")
    expected = list(plan.get_epoch(0))
    wanted = [spec.samples for spec in expected]
    random = np.random.default_rng(0)
    for name in ("epoch-0000.brim", "lengths.brim", *(["units.brim"] if overflow == "split" else [])):
        whole = (tmp_path / "plan" / name).read_bytes()
        for _ in range(6):
            raw, at = bytearray(whole), int(random.integers(64, len(whole) - 1000))
            raw[at] ^= 1 << int(random.integers(8))
            (tmp_path / "plan" / name).write_bytes(raw)
            found = 0
            opened = BatchPlan.load(tmp_path / "plan").get_epoch(0)
            for number in range(len(expected)):
                try:
                    spec = opened[number]
                    assert spec.samples == wanted[number]
                    assert spec == expected[number]
                except DamagedError:
                    found += 1
            assert found < len(expected)
            damage = verify_plan(BatchPlan.load(tmp_path / "plan"))
            # A bit that fills a column up to a multiple of 64 is nobody's.
            assert damage or not found
            assert all(name in difference.message for difference in damage)
        (tmp_path / "plan" / name).write_bytes(whole)


def test_other_versions_and_places_are_named(tmp_path, monkeypatch):
    BatchPlan.build(TABLE, PACKED).save(tmp_path / "plan")
    index = tmp_path / "plan" / "plan.json"
    original = index.read_text()
    index.write_text(original.replace("brim.plan/1", "brim.plan/2"))
    with pytest.raises(DamagedError, match=r"of version brim\.plan/2, this brim reads brim\.plan/1"):
        BatchPlan.load(tmp_path / "plan")
    index.write_text(original.replace('"seed": 42', '"seed": 43'))
    with pytest.raises(DamagedError, match="was altered"):
        BatchPlan.load(tmp_path / "plan")
    index.write_text(original)
    monkeypatch.setattr("brim.plan.store.ALGORITHM", 1)
    with pytest.raises(DamagedError, match="planned by version 2 of the planner, this brim has 1"):
        BatchPlan.load(tmp_path / "plan")
    for place, message in ((tmp_path / "nothing", "does not exist"), (index, "is a file"), (tmp_path, "is not a plan")):
        with pytest.raises(DataError, match=message):
            BatchPlan.load(place)
    save_shards(BatchPlan.build(TABLE, PACKED), tmp_path / "shards", 2)
    with pytest.raises(DataError, match="did you mean one of its ranks"):
        BatchPlan.load(tmp_path / "shards")


def test_an_epoch_of_another_plan_is_noticed(tmp_path):
    for name, seed in (("a", 1), ("b", 2)):
        BatchPlan.build(TABLE, BatchingConfig(token_budget=512, seed=seed)).save(tmp_path / name)
    shutil.copy(tmp_path / "a" / "epoch-0000.brim", tmp_path / "b" / "epoch-0000.brim")
    with pytest.raises(DamagedError, match="belongs to another plan"):
        BatchPlan.load(tmp_path / "b").get_epoch(0)


SAVER = """
import sys
from brim import BatchingConfig, BatchPlan, LengthCache
from brim.data.ids import Ids
import numpy as np
table = LengthCache(Ids.rows(20000), np.full(20000, int(sys.argv[2]), np.int32))
plan = BatchPlan.build(table, BatchingConfig(token_budget=512), num_epochs=4)
print("ready", flush=True)
while True:
    plan.save(sys.argv[1])
    print("saved", flush=True)
"""


def test_killed_while_saving_the_plan_on_disk_is_an_old_or_a_new_one(tmp_path):
    path = tmp_path / "plan"
    random = np.random.default_rng(5)
    for length in (5, 6, 7):
        with subprocess.Popen(
            [sys.executable, "-c", SAVER, str(path), str(length)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(2):
                process.stdout.readline()
            for _ in range(int(random.integers(0, 50_000))):  # a while, without a clock
                pass
            os.kill(process.pid, signal.SIGKILL)
        plan = BatchPlan.load(path)
        assert int(plan.table.lengths[0]) == length
        assert verify_plan(plan) == []


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (lambda rows: rows, set()),
        (lambda rows: [*rows, LengthEntry("new", 5, "x")], {"added"}),
        (lambda rows: rows[1:], {"removed"}),
        (lambda rows: [LengthEntry("s0", 499, "x"), *rows[1:]], {"longer"}),
        (lambda rows: [LengthEntry("s0", 1, "x"), *rows[1:]], {"shorter"}),
        (lambda rows: [LengthEntry(rows[0].sample_id, rows[0].length, "y"), *rows[1:]], {"group"}),
        (lambda rows: rows[::-1], {"order"}),
    ],
)
def test_verify_lists_how_the_lengths_differ(change, kinds):
    plan = BatchPlan.build(TABLE, PACKED)
    other = LengthCache.from_entries(change(list(TABLE)))
    assert {difference.kind for difference in verify_plan(plan, other)} == kinds


def test_verify_names_samples_and_counts_them():
    plan = BatchPlan.build(TABLE, PACKED)
    (removed,) = verify_plan(plan, LengthCache.from_entries(list(TABLE)[8:]))
    assert removed.message == "8 removed: s0, s1, s2, s3, s4, ..."
    assert removed.samples == tuple(f"s{i}" for i in range(8))
    rows = BatchPlan.build(LengthCache(Ids.rows(5), np.full(5, 3, np.int32)), PACKED)
    (added,) = verify_plan(rows, LengthCache(Ids.rows(7), np.full(7, 3, np.int32)))
    assert added.samples == ("5", "6")


def test_verify_lists_tokenizer_data_and_options():
    plan = BatchPlan.build(TABLE.with_hashes("data1", "tok1"), PACKED)
    found = verify_plan(plan, TABLE.with_hashes("data2", "tok2"), BatchingConfig(token_budget=2048))
    assert [difference.kind for difference in found] == ["tokenizer", "data", "config", "config"]
    assert "other token_budget (1024 -> 2048)" in [difference.message for difference in found]


def test_verify_finds_every_damaged_file_and_epochs_that_were_not_planned(tmp_path):
    BatchPlan.build(TABLE, PACKED, num_epochs=3).save(tmp_path / "plan")
    for name in ("epoch-0000.brim", "epoch-0002.brim", "lengths.brim"):
        raw = bytearray((tmp_path / "plan" / name).read_bytes())
        raw[70] ^= 1
        (tmp_path / "plan" / name).write_bytes(raw)
    found = verify_plan(BatchPlan.load(tmp_path / "plan"), TABLE)
    assert [difference.kind for difference in found] == ["damaged"] * 3
    assert [name in found[at].message for at, name in enumerate(("epoch-0000", "epoch-0002", "lengths"))] == [True] * 3


def test_verify_notices_an_epoch_that_the_planner_would_not_make(tmp_path, monkeypatch):
    plan = BatchPlan.build(TABLE, PACKED)
    plan.save(tmp_path / "plan")
    monkeypatch.setattr("brim.plan.build.deal_order", lambda cost, *args, **options: np.arange(len(cost)))
    (difference,) = verify_plan(BatchPlan.load(tmp_path / "plan"), TABLE)
    assert difference.kind == "epoch"


def test_the_index_is_json_that_people_can_read(tmp_path):
    plan = BatchPlan.build(TABLE, PACKED, num_epochs=2)
    plan.save(tmp_path / "plan")
    index = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert index["config"]["token_budget"] == 1024
    assert index["counts"]["samples"] == 300
    assert [epoch["microbatches"] for epoch in index["epochs"]] == [len(plan.get_epoch(epoch)) for epoch in range(2)]
    assert index["epochs"][0]["remainder"] == {"null": 0, "dropped": 0, "repeated": 0}
    assert index["lengths"]["fingerprint"] == TABLE.fingerprint


@pytest.mark.parametrize("lazy", [False, True])
def test_lengths_of_another_plan_are_never_used(tmp_path, lazy):
    BatchPlan.build(TABLE, PACKED).save(tmp_path / "plan", lazy=lazy)
    opened = BatchPlan.load(tmp_path / "plan")
    for other in (list(TABLE)[:-1], list(TABLE)[::-1]):
        LengthCache.from_entries(other).save(tmp_path / "plan" / "lengths.brim")
        for plan in (opened, BatchPlan.load(tmp_path / "plan")):
            with pytest.raises(DamagedError, match=r"lengths\.brim belongs to another plan; load the plan again"):
                list(plan.iter_epoch(0))
        assert "belongs to another plan" in "".join(difference.message for difference in verify_plan(plan))


@pytest.mark.slow
def test_two_commands_that_build_one_plan_at_once_leave_one_whole_plan(tmp_path):
    assert build_twice(tmp_path, rounds=2, samples=2000) == {"exit 0": 4}


RANK = """
import sys, time
from brim import BatchingConfig, BatchPlan
plan = BatchPlan.build({i: i % 50 + 1 for i in range(3000)}, BatchingConfig(token_budget=256), num_epochs=3)
print("ready", flush=True)
sys.stdin.readline()
plan.save(sys.argv[1])
print(BatchPlan.load(sys.argv[1]).fingerprint)
"""


def test_ranks_that_all_save_one_plan_end_with_one_plan(tmp_path):
    command = [sys.executable, "-c", RANK, str(tmp_path / "plan")]
    ranks = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for rank in ranks:
        rank.stdout.readline()
    answers = {rank.communicate("go\n")[0] for rank in ranks}
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    assert answers == {BatchPlan.load(tmp_path / "plan").fingerprint + "\n"}
    assert list(tmp_path.iterdir()) == [tmp_path / "plan"]
