"""Batches as files: what is read is what was collated, or an error."""

import asyncio
import io
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from support.batches import assert_same, cases

from brim import (
    BatchingConfig,
    BatchPlan,
    BatchReader,
    BatchWriter,
    BrimError,
    CheckpointPosition,
    DamagedError,
    DataError,
    LengthCache,
    MismatchError,
    OptionError,
    Sample,
    TokenStore,
    collate,
)
from brim.core.columns import write_columns
from brim.core.npz import NpzArchive, npz_bytes
from brim.data.lengths import LengthEntry

random = np.random.default_rng(0)
SAMPLES = [
    Sample(f"s{i}", random.integers(0, 99, n), random.integers(0, 2, n))
    for i, n in enumerate(random.integers(1, 40, size=60))
]
TABLE = LengthCache.from_lengths(
    [LengthEntry(s.id, s.length) for s in SAMPLES], dataset_hash="data", tokenizer_hash="byte"
)
STORE = TokenStore.from_samples(SAMPLES, pad_id=7, dataset_hash="data", tokenizer_hash="byte")
PLAN = BatchPlan.build(TABLE, BatchingConfig(token_budget=200), num_epochs=2)


@contextmanager
def folder():
    """Examples of a property have a directory each."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.fixture
def written(tmp_path):
    BatchWriter(PLAN, STORE, tmp_path / "batches").write_all()
    return tmp_path / "batches"


def contents(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def one(directory, epoch=0, number=0):
    return directory / f"epoch_{epoch}" / f"batch_{number:06d}.npz"


@pytest.mark.slow
@given(cases(max_size=15), st.integers(1, 3), st.booleans(), st.sampled_from([np.int32, np.int64]))
@settings(max_examples=50)
def test_what_is_read_is_what_was_collated(case, ranks, flat, dtype):
    layout = partial(collate, flat=flat, dtype=dtype)
    with folder() as path:
        counts = set()
        for rank in range(ranks):
            share = case.plan.shard(rank, ranks)
            writer = BatchWriter(share, case.store, path / str(rank), layout)
            assert writer.write_all() == (share.total_microbatches, 0)
            reader = BatchReader(path / str(rank))
            assert (len(reader), reader.num_epochs, reader.fingerprint) == (
                share.total_microbatches,
                share.num_epochs,
                share.fingerprint,
            )
            counts.add(len(reader))
            for epoch in range(share.num_epochs):
                batches = reader.iter_epoch(epoch)
                assert len(batches) == reader.num_batches(epoch) == share.num_microbatches(epoch)
                for batch, spec in zip(batches, share.iter_epoch(epoch), strict=True):
                    assert_same(batch, layout(spec, case.store))
                    assert batch.tokens.flags.writeable
        assert len(counts) == 1


@given(cases(max_size=15), st.data())
@settings(max_examples=40)
def test_a_run_goes_on_from_any_batch_with_the_rest(case, data):
    ranks = data.draw(st.integers(1, 3))
    share = case.plan.shard(data.draw(st.integers(0, ranks - 1)), ranks)
    with folder() as path:
        BatchWriter(share, case.store, path).write_all()
        reader = BatchReader(path)
        run = list(reader.iter_from(0))
        assert len(run) == len(reader)
        at = data.draw(st.integers(0, len(run) - 1))
        rest = list(BatchReader(path).iter_from(run[at].after))
        assert len(rest) == len(run) - at - 1
        for batch, again in zip(rest, run[at + 1 :], strict=True):
            assert_same(batch, again)
        # The plan itself goes on from there too: a run over files and one over a token store have the same positions.
        assert [batch.ids for batch in rest] == [spec.samples for _, _, spec in share.iter_from(run[at].after)]


@given(
    arrays(st.sampled_from(["u1", "<i4", "<i8", "<u2"]), array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
def test_arrays_are_written_as_numpy_writes_them(array):
    with np.load(io.BytesIO(npz_bytes({"x": array})), allow_pickle=False) as read:
        assert read["x"].dtype == array.dtype
        assert np.array_equal(read["x"], array)
    theirs = io.BytesIO()
    np.savez(theirs, x=array)
    for data in (npz_bytes({"x": array}), theirs.getvalue()):
        with NpzArchive(io.BytesIO(data), stored=True) as archive:
            again = archive["x"]
        assert (again.dtype, again.shape) == (array.dtype, array.shape)
        assert np.array_equal(again, array)


def test_numpy_reads_the_files(written):
    spec = PLAN.get_epoch(0)[3]
    with np.load(one(written, 0, 3), allow_pickle=False) as found:
        batch = collate(spec, STORE)
        for name in ("input_ids", "loss_mask", "segment_ids", "positions", "cu_seqlens"):
            assert np.array_equal(found[name], getattr(batch, name))
        assert found["input_ids"].dtype == np.int32
        assert [int(found[name]) for name in ("bucket_id", "max_len", "index", "epoch")] == [0, spec.max_len, 3, 0]
        ids, ends = bytes(found["sample_ids"]), found["sample_ends"].tolist()
        assert tuple(ids[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)) == spec.samples


def test_the_same_batches_are_the_same_bytes(written, tmp_path):
    BatchWriter(PLAN, STORE, tmp_path / "again").write_all()
    assert contents(written) == contents(tmp_path / "again")
    assert sorted(path.name for path in written.iterdir()) == ["epoch_0", "epoch_1", "manifest.json", "plan"]


class StoppedError(Exception):
    """Raised in the middle of writing."""


@pytest.mark.slow
@given(st.lists(st.integers(0, 8), min_size=1, max_size=4))
@settings(max_examples=15)
def test_stopped_anywhere_it_goes_on_and_ends_with_the_same_bytes(stops):
    with folder() as path:
        BatchWriter(PLAN, STORE, path / "whole").write_all()
        kept = 0
        for stop in stops:
            calls = iter(range(stop + 1))

            def progress(done, total, calls=calls, stop=stop):
                assert total == PLAN.total_microbatches
                if next(calls, stop) == stop:
                    raise StoppedError

            with suppress(StoppedError):  # unless it was done before
                BatchWriter(PLAN, STORE, path / "out").write_all(progress)
            kept += stop
        total = PLAN.total_microbatches
        assert BatchWriter(PLAN, STORE, path / "out").write_all() == (total - min(kept, total), min(kept, total))
        assert contents(path / "out") == contents(path / "whole")


WRITE = """
import sys
from brim import BatchPlan, BatchWriter, TokenStore

def progress(done, total):
    print(done, flush=True)
    sys.stdin.readline()

BatchWriter(BatchPlan.load(sys.argv[1]), TokenStore.load(sys.argv[2]), sys.argv[3]).write_all(progress)
"""


def test_killed_again_and_again_it_goes_on_and_ends_with_the_same_bytes(written, tmp_path):
    """The process waits for a line before every batch, and is killed while it writes one."""
    PLAN.save(tmp_path / "plan")
    columns = {"tokens": STORE.tokens.astype(np.uint16), "learned": STORE.learned, "length": STORE.lengths}
    meta = {"pad_id": STORE.pad_id, "dataset_hash": STORE.dataset_hash, "tokenizer_hash": STORE.tokenizer_hash}
    write_columns(tmp_path / "tokens", "brim.tokens/1", meta, columns)
    words = [sys.executable, "-c", WRITE, *(str(tmp_path / name) for name in ("plan", "tokens", "out"))]
    before = 0
    for batches in (0, 3, 5):
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as process:
            for number in range(batches + 1):
                told = int(process.stdout.readline())
                assert told - number in (before, before + 1)  # the batch that it was killed in may have been done
                before = told - number
                process.stdin.write(b"\n")
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        before = told
    assert BatchWriter(PLAN, STORE, tmp_path / "out").write_all().kept >= 8
    assert contents(tmp_path / "out") == contents(written)


def test_epochs_can_be_written_one_by_one_in_any_order(written, tmp_path):
    writer = BatchWriter(PLAN, STORE, tmp_path / "out")
    assert writer.write_epoch(1) == (PLAN.num_microbatches(1), 0)
    with pytest.raises(
        DamagedError, match=rf"lacks {PLAN.num_microbatches(0)} of its .* first is batch_000000\.npz; write them again"
    ):
        BatchReader(tmp_path / "out").iter_epoch(0)
    assert len(list(BatchReader(tmp_path / "out").iter_epoch(1))) == PLAN.num_microbatches(1)
    writer.write_epoch(0)
    assert contents(tmp_path / "out") == contents(written)
    with pytest.raises(OptionError, match="epoch 2 does not exist"):
        writer.write_epoch(2)


def test_a_finished_directory_is_left_as_it_is(written):
    before = {path: path.stat().st_mtime_ns for path in written.rglob("*")}
    assert BatchWriter(PLAN, STORE, written).write_all() == (0, PLAN.total_microbatches)
    assert {path: path.stat().st_mtime_ns for path in written.rglob("*")} == before


def test_ranks_have_equally_many_files_and_together_every_sample_once(tmp_path):
    ranks, seen, nulls = 5, [], 0
    for rank in range(ranks):
        BatchWriter(PLAN.shard(rank, ranks), STORE, tmp_path / str(rank)).write_all()
        batches = list(BatchReader(tmp_path / str(rank)).iter_epoch(1))
        assert len(batches) == PLAN.shard(rank, ranks).num_microbatches(1)
        seen += [id for batch in batches for id in batch.ids]
        nulls += sum(batch.is_null for batch in batches)
    assert sorted(seen) == sorted(s.id for s in SAMPLES)
    assert nulls == PLAN.shard(0, ranks).deal(1).nulls > 0


def test_a_plan_with_steps_of_its_own_is_read_back_in_its_order(tmp_path):
    plan = PLAN.with_step_size(3)
    BatchWriter(plan, STORE, tmp_path).write_all()
    reader = BatchReader(tmp_path)
    assert [batch.after for batch in reader.iter_from(0)] == [spec.after for _, _, spec in plan.iter_from(0)]
    assert [batch.ids for batch in reader.iter_epoch(0)] == [spec.samples for spec in reader.iter_epoch_specs(0)]


def test_the_share_of_a_plan_on_disk_can_be_written_too(tmp_path):
    PLAN.shard(1, 3).save(tmp_path / "share")
    BatchWriter(BatchPlan.load(tmp_path / "share"), STORE, tmp_path / "from-disk").write_all()
    BatchWriter(PLAN.shard(1, 3), STORE, tmp_path / "from-memory").write_all()
    assert contents(tmp_path / "from-disk") == contents(tmp_path / "from-memory")


as_mappings = {s.id: {"input_ids": s.input_ids.tolist(), "loss_mask": s.loss_mask.tolist()} for s in SAMPLES}


@pytest.mark.parametrize("source", [SAMPLES, SAMPLES[::-1], {s.id: s for s in SAMPLES[::-1]}, as_mappings])
def test_samples_may_come_in_a_list_or_by_id_in_any_order(source, written, tmp_path):
    BatchWriter(PLAN, source, tmp_path / "out", pad_id=7).write_all()
    for epoch in range(2):
        for mine, theirs in zip(
            BatchReader(tmp_path / "out").iter_epoch(epoch), BatchReader(written).iter_epoch(epoch), strict=True
        ):
            assert_same(mine, theirs)


def test_a_sample_without_a_mask_is_learned_whole_and_mixed_ids_are_texts(tmp_path):
    plan = BatchPlan.build([LengthEntry(1, 2), LengthEntry("b", 3)], BatchingConfig(token_budget=6))
    BatchWriter(plan, {1: {"input_ids": [5, 6]}, "b": {"input_ids": [7, 8, 9]}}, tmp_path).write_all()
    batch = BatchReader(tmp_path).get_batch(0, 0)
    assert sorted(zip(batch.ids, batch.loss_mask.tolist(), strict=True)) == [("1", [0, 1, 0]), ("b", [0, 1, 1])]


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        (SAMPLES[:-1], MismatchError, "sample 's59' is not among the 59 that were given"),
        ([*SAMPLES, Sample("new", [1], [1])], MismatchError, "does not know sample 'new' and has 60 of the 61"),
        ([*SAMPLES, SAMPLES[3]], DataError, "id 's3' comes twice; ids must be unique"),
        (
            {**as_mappings, "s1": {"input_ids": [1, 2], "loss_mask": [1]}},
            DataError,
            "sample 's1': loss_mask has 1 entries for 2 tokens",
        ),
        ({**as_mappings, "s1": {"tokens": [1]}}, DataError, "sample 's1' has no input_ids (keys: tokens)"),
        (
            {**as_mappings, "s1": {"input_ids": [1] * 50}},
            MismatchError,
            "built for other lengths: 1 samples differ, the first is 's1'",
        ),
        (TokenStore.from_samples(SAMPLES, dataset_hash="other"), MismatchError, "built for other data"),
        (TokenStore.from_samples(SAMPLES, tokenizer_hash="gpt2"), MismatchError, "built for another tokenizer"),
    ],
)
def test_other_data_is_refused_before_anything_is_written(source, error, words, tmp_path):
    with pytest.raises(error) as caught:
        BatchWriter(PLAN, source, tmp_path / "out")
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def with_first_token(token):
    """The same samples but for one token."""
    first = SAMPLES[0]
    return [Sample(first.id, [token, *first.input_ids[1:]], first.loss_mask), *SAMPLES[1:]]


def test_a_directory_of_something_else_is_refused_and_kept(written, tmp_path):
    before = contents(written)
    other_plan = BatchPlan.build(TABLE, BatchingConfig(token_budget=100), num_epochs=2)
    other_data = replace_hashes(dataset_hash="data-2")
    refused = {
        "another plan": lambda: BatchWriter(other_plan, STORE, written),
        "other data (data, not data-2)": lambda: BatchWriter(*other_data, written),
        "another tokenizer or row format (byte, not gpt2)": lambda: BatchWriter(
            *replace_hashes(tokenizer_hash="gpt2"), written
        ),
        "another pad id (7, not 0)": lambda: BatchWriter(PLAN, STORE, written, pad_id=0),
        "another rank (0, not 1)": lambda: BatchWriter(PLAN.shard(1, 2), STORE, written),
        "another number of ranks (1, not 2)": lambda: BatchWriter(PLAN.shard(0, 2), STORE, written),
        "other optimizer steps (1, not 2)": lambda: BatchWriter(PLAN.with_step_size(2), STORE, written),
        "another collate function (brim.batch.collate.collate, not brim.batch.collate.collate(dtype=int64))": lambda: (
            BatchWriter(PLAN, STORE, written, partial(collate, dtype=np.int64))
        ),
    }
    for words, make in refused.items():
        with pytest.raises(MismatchError) as caught:
            make()
        assert f"{written} holds the batches of {words}" in str(caught.value)
    # Samples without a hash are told apart by their tokens.
    BatchWriter(PLAN, with_first_token(3), tmp_path / "memory").write_all()
    with pytest.raises(MismatchError, match="other data"):
        BatchWriter(PLAN, with_first_token(4), tmp_path / "memory")
    assert contents(written) == before


def replace_hashes(**hashes):
    hashes = {"dataset_hash": "data", "tokenizer_hash": "byte", **hashes}
    plan = BatchPlan.build(TABLE.with_hashes(**hashes), BatchingConfig(token_budget=200), num_epochs=2)
    return plan, TokenStore.from_samples(SAMPLES, pad_id=7, **hashes)


def test_a_directory_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for name in ("out", "manifest.json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text('{"format": "something else"}')
    for path, words in [
        (tmp_path, "will not write into .*: it holds other files"),
        (tmp_path / "out", "will not write into .*out: it holds other files"),
        (tmp_path / "thesis.tex", "a file is in the way"),
        (tmp_path / "thesis.tex" / "below", "cannot write"),
    ]:
        before = contents(tmp_path)
        with pytest.raises(OptionError, match=words):
            BatchWriter(PLAN, STORE, path).write_all()
        assert contents(tmp_path) == before


def test_an_empty_directory_and_leftovers_are_no_obstacle(written, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / ".manifest.json.tmp").write_text("{")
    BatchWriter(PLAN, STORE, out).write_all()
    (out / "epoch_0" / ".batch_000002.npz.tmp").write_text("half")
    one(out, 0, 2).unlink()
    assert len(BatchWriter(PLAN, STORE, out).missing(0)) == 1
    BatchWriter(PLAN, STORE, out).write_all()
    assert contents(out) == contents(written)


def test_a_lost_plan_is_written_again(written):
    before = contents(written)
    shutil.rmtree(written / "plan")
    with pytest.raises(DamagedError, match=r"plan does not exist.*or write the batches again"):
        BatchReader(written).get_batch(0, 0)
    BatchWriter(PLAN, STORE, written).write_all()
    assert contents(written) == before
    BatchPlan.build(TABLE, BatchingConfig(token_budget=100)).save(written / "plan")
    with pytest.raises(DamagedError, match="is another plan than that of the batches"):
        BatchReader(written).get_batch(0, 0)


def test_two_writers_do_not_mix(tmp_path):
    def second(*_):
        with pytest.raises(BrimError, match="another process is writing"):
            BatchWriter(PLAN, STORE, tmp_path).write_all()

    BatchWriter(PLAN, STORE, tmp_path).write_all(second)
    assert BatchWriter(PLAN, STORE, tmp_path).write_all().written == 0


def test_a_claim_that_comes_to_nothing_leaves_nothing(tmp_path):
    with pytest.raises(StoppedError), BatchWriter(PLAN, STORE, tmp_path / "out").claim():
        raise StoppedError
    assert list(tmp_path.iterdir()) == []


def test_a_collate_function_keeps_what_it_makes(tmp_path):
    def only_the_last_token(microbatch, source, *, pad_id):
        batch = collate(microbatch, source, pad_id=pad_id)
        labels = np.full_like(batch.labels, -100)
        labels[:, -1] = batch.tokens[:, -1]
        return replace(batch, labels=labels)

    BatchWriter(PLAN, STORE, tmp_path, only_the_last_token).write_all()
    for batch, spec in zip(BatchReader(tmp_path).iter_epoch(0), PLAN.iter_epoch(0), strict=True):
        assert_same(batch, only_the_last_token(spec, STORE, pad_id=7))


def test_a_collate_function_that_does_not_follow_the_plan_is_named(tmp_path):
    def fewer(microbatch, source, *, pad_id):
        batch = collate(microbatch, source, pad_id=pad_id)
        return replace(batch, spec=replace(batch.spec, samples=batch.ids[1:]))

    def crooked(microbatch, source, *, pad_id):
        batch = collate(microbatch, source, pad_id=pad_id)
        return replace(batch, positions=batch.positions[:, :-1])

    with pytest.raises(
        OptionError,
        match=r"fewer was asked for batch 0 of epoch 0 and .* samples, and gave batch 0 .* keep what the plan says",
    ):
        BatchWriter(PLAN, STORE, tmp_path / "a", fewer).write_all()
    with pytest.raises(OptionError, match="crooked gave a batch that cannot be kept: its arrays have different shapes"):
        BatchWriter(PLAN, STORE, tmp_path / "b", crooked).write_all()
    assert not one(tmp_path / "b").exists()


def test_a_reader_says_what_it_reads(written):
    reader = BatchReader(written)
    assert reader.verify_fingerprint(PLAN.fingerprint)
    assert not reader.verify_fingerprint("")
    assert reader.plan.fingerprint == PLAN.fingerprint
    assert [spec.samples for spec in reader.iter_epoch_specs(1)] == [spec.samples for spec in PLAN.iter_epoch(1)]
    batches = reader.iter_epoch(1)
    assert_same(batches[-1], reader.get_batch(1, len(batches) - 1))
    assert [batch.index for batch in batches[2:5]] == [2, 3, 4]

    async def walk():
        return [batch.index async for batch in reader.iter_epoch(0)]

    assert asyncio.run(walk()) == [batch.index for batch in reader.iter_epoch(0)]
    with pytest.raises(IndexError):
        batches[len(batches)]
    for epoch, number in [(0, -1), (0, 999), (2, 0), (-1, 0)]:
        with pytest.raises(OptionError, match="does not exist"):
            reader.get_batch(epoch, number)
    for epoch in (2, -1):
        with pytest.raises(OptionError, match=f"epoch {epoch} does not exist: there are epochs 0 to 1"):
            reader.iter_epoch(epoch)


def test_a_position_of_another_plan_does_not_enter(written):
    reader = BatchReader(written)
    with pytest.raises(MismatchError, match="belongs to another plan"):
        reader.iter_from(CheckpointPosition(epoch=0, microbatch_idx=1, fingerprint="0" * 32))
    with pytest.raises(OptionError, match="microbatch 999 does not exist"):
        reader.iter_from(0, 999)
    assert [batch.index for batch in reader.iter_from(1, 3)] == list(range(3, PLAN.num_microbatches(1)))
    assert list(reader.iter_from(reader.get_batch(1, PLAN.num_microbatches(1) - 1).after)) == []


def first_ids(reader):
    return reader.get_batch(0, 0).ids


def test_a_reader_travels_to_another_process(written):
    reader = BatchReader(written)
    reader.get_batch(0, 1)
    assert_same(pickle.loads(pickle.dumps(reader)).get_batch(0, 1), reader.get_batch(0, 1))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(first_ids, reader).result(timeout=120) == first_ids(reader)


class Payload:
    """Runs a command when it is unpickled."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return (os.system, (self.command,))


def crafted(path, name, payload):
    """The file with one of its arrays replaced by Python objects."""
    with np.load(path) as found:
        members = {key: found[key] for key in found}
    objects = np.empty(1, object)
    objects[0] = payload
    np.savez(path, **{**members, name: objects})


@pytest.mark.parametrize("name", ["input_ids", "sample_ids", "index", "directory", "something"])
def test_a_crafted_file_runs_nothing(name, written, tmp_path):
    crafted(one(written), name, Payload(f"touch {tmp_path / 'owned'}"))
    with np.load(one(written), allow_pickle=True) as found:
        found[name]
    assert (tmp_path / "owned").exists()  # the payload is live: elsewhere it does run
    (tmp_path / "owned").unlink()
    with pytest.raises(DamagedError, match=f"'{name}' holds Python objects, which are never loaded"):
        BatchReader(written).get_batch(0, 0)
    one(written).write_bytes(pickle.dumps(Payload(f"touch {tmp_path / 'owned'}")))
    with pytest.raises(DamagedError, match="cut off or altered"):
        list(BatchReader(written).iter_epoch(0))
    assert not (tmp_path / "owned").exists()


def members_of(path):
    with np.load(path) as found:
        return {name: found[name] for name in found}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input_ids": np.zeros((3, 3), np.int32)}, "different shapes"),
        ({"input_ids": np.zeros((3, 3), np.float32)}, "not a plain array of integers"),
        ({"input_ids": np.zeros((3, 3), np.uint16)}, "input_ids are uint16, not int32 or int64"),
        ({"input_ids": np.zeros(9, np.int32)}, "different shapes"),
        ({"loss_mask": np.zeros((2, 2), np.uint8)}, "different shapes"),
        ({"labels": np.zeros((2, 2), np.int32)}, "different shapes"),
        ({"cu_seqlens": np.zeros(2, np.int32)}, "sample ids for 1 segments"),
        ({"index": np.zeros(2, np.int64)}, "sample ids for"),
        ({"max_len": np.array(3)}, "not where its boundaries say"),
        ({"sample_ids": np.array([255, 255], np.uint8)}, "sample ids are not readable"),
        ({"sample_ends": np.array([9, 3])}, "sample ids are not readable"),
        ({"sample_ends": np.zeros((1, 1), np.int64)}, "sample ids are not readable"),
        ({"epoch": None}, "has no array 'epoch'"),
        ({"directory": None}, "has no array 'directory'"),
        ({"directory": np.zeros(16, np.uint8)}, "was written for another directory"),
        ({"index": np.array(5)}, "is batch 5 of epoch 0, under the name of another"),
        ({"epoch": np.array(1)}, "is batch 0 of epoch 1, under the name of another"),
    ],
)
def test_a_file_that_contradicts_itself_or_its_plan_is_refused(change, words, written):
    changed = {name: array for name, array in {**members_of(one(written)), **change}.items() if array is not None}
    one(written).write_bytes(npz_bytes(changed))
    with pytest.raises(DamagedError) as caught:
        BatchReader(written).get_batch(0, 0)
    assert words in str(caught.value)
    assert str(one(written)) in str(caught.value)


def test_a_header_is_not_believed(written):
    """It says a terabyte; nothing of that size is asked of the machine."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i4", "fortran_order": False, "shape": (1 << 19, 1 << 19)})
    deep = b"\x93NUMPY\x01\x00" + (2000).to_bytes(2, "little") + b"(" * 2000
    for member, words in [
        (header.getvalue(), "has 0 bytes, which is not the shape"),
        (deep, "has no readable header"),
        (b"", "no readable"),
    ]:
        with zipfile.ZipFile(one(written), "w") as archive:
            archive.writestr("input_ids.npy", member)
        with pytest.raises(DamagedError, match=words):
            BatchReader(written).get_batch(0, 0)
    with zipfile.ZipFile(one(written), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("input_ids.npy", b"\0" * (1 << 20))
    with pytest.raises(DamagedError, match="is not a plain array"):
        BatchReader(written).get_batch(0, 0)


def test_a_file_cut_off_anywhere_is_refused(written):
    whole = one(written, 0, 1).read_bytes()
    reader = BatchReader(written)
    for size in range(0, len(whole), 7):
        one(written, 0, 1).write_bytes(whole[:size])
        with pytest.raises(DamagedError, match="is damaged: it is cut off or altered; delete it"):
            reader.get_batch(0, 1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    path = tmp_path_factory.mktemp("shared") / "batches"
    BatchWriter(PLAN, STORE, path).write_all()
    return path


@given(st.data())
@settings(max_examples=400)
def test_a_flipped_bit_never_changes_what_is_read(shared, data):
    reader, file = BatchReader(shared), one(shared, 1, 2)
    before = reader.get_batch(1, 2)
    whole = file.read_bytes()
    raw = bytearray(whole)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        file.write_bytes(raw)
        try:
            after = reader.get_batch(1, 2)
        except DamagedError:
            return
        assert_same(after, before)
    finally:
        file.write_bytes(whole)


def test_files_that_are_missing_renamed_swapped_or_strange_are_noticed(written, tmp_path):
    reader = BatchReader(written)
    one(written, 0, 4).rename(written / "epoch_0" / "batch_4.npz")
    with pytest.raises(
        DamagedError, match=r"lacks 1 of its \d+ batches, the first is batch_000004\.npz, and holds batch_4\.npz"
    ):
        reader.iter_epoch(0)
    with pytest.raises(DamagedError, match=r"batch_000004\.npz is missing"):
        reader.get_batch(0, 4)
    assert reader.files(0) == ([4], ["batch_4.npz"])
    assert reader.get_batch(0, 5).index == 5
    (written / "epoch_0" / "batch_4.npz").rename(one(written, 0, 4))
    (written / "epoch_1" / "notes.txt").touch()
    with pytest.raises(
        DamagedError, match=r"epoch_1 holds notes\.txt, which does not belong there \(1 in all\); remove it"
    ):
        reader.iter_epoch(1)
    (written / "epoch_1" / "notes.txt").unlink()

    one(written, 0, 4).rename(tmp_path / "kept")
    one(written, 0, 5).rename(one(written, 0, 4))
    (tmp_path / "kept").rename(one(written, 0, 5))
    with pytest.raises(DamagedError, match=r"batch_000004\.npz is batch 5 of epoch 0, under the name of another"):
        list(reader.iter_epoch(0))

    BatchWriter(PLAN, STORE, tmp_path / "other", pad_id=3).write_all()
    shutil.copy(one(tmp_path / "other", 0, 4), one(written, 0, 4))
    with pytest.raises(DamagedError, match=r"batch_000004\.npz was written for another directory of batches"):
        reader.get_batch(0, 4)
    one(written, 0, 4).unlink()
    one(written, 0, 4).mkdir()
    with pytest.raises(DamagedError, match=r"cannot read .*batch_000004\.npz"):
        reader.get_batch(0, 4)


def test_deleting_a_damaged_file_and_writing_again_mends_the_directory(written):
    before = contents(written)
    one(written, 1, 3).write_bytes(b"")
    with pytest.raises(DamagedError, match="delete it and write the batches again"):
        list(BatchReader(written).iter_from(1, 2))
    one(written, 1, 3).unlink()
    assert BatchWriter(PLAN, STORE, written).write_all().written == 1
    assert contents(written) == before


def test_a_manifest_that_is_not_whole_ours_or_of_this_version_is_refused(written, tmp_path):
    manifest = written / "manifest.json"
    whole = manifest.read_text()
    for text, words in [
        (whole[:-30], "truncated or damaged"),
        ("[]", "truncated or damaged"),
        (whole.replace('"pad_id": 7', '"pad_id": 8'), "was altered"),
        (
            whole.replace("brim.batches/1", "brim.batches/2"),
            r"version brim\.batches/2, this brim reads brim\.batches/1",
        ),
    ]:
        manifest.write_text(text)
        with pytest.raises(DamagedError, match=words):
            BatchReader(written)
        with pytest.raises(DamagedError, match=words):
            BatchWriter(PLAN, STORE, written)
    with pytest.raises(DataError, match=r"nothing does not exist; write them with: brim batch write"):
        BatchReader(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"holds no batches \(no manifest\.json in it\)"):
        BatchReader(tmp_path)
    with pytest.raises(DataError, match="is a file"):
        BatchReader(manifest)


LIMITED = """
import resource, sys
from brim import BatchWriter, BatchPlan, Sample
size = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
samples = [Sample(i, [1] * size, [1] * size) for i in range(4)]
plan = BatchPlan.build({s.id: s.length for s in samples})
try:
    BatchWriter(plan, samples, sys.argv[1]).write_all()
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


def test_a_full_disk_is_one_clear_error_and_leaves_no_half_file(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), "1000"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"OptionError: cannot write {one(tmp_path)}: File too large"
    assert list((tmp_path / "epoch_0").iterdir()) == []
    samples = [Sample(i, [1] * 1000, [1] * 1000) for i in range(4)]
    BatchWriter(BatchPlan.build({s.id: s.length for s in samples}), samples, tmp_path).write_all()
    assert [path.name for path in (tmp_path / "epoch_0").iterdir()] == ["batch_000000.npz"]
