"""The tokens of a data set in one file: the same as row by row, whole or absent, of one data set and one tokenizer."""

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim import BrimError, DamagedError, DataError, LengthCache, MismatchError, OptionError, Sample, TokenStore
from brim.core.columns import Columns, write_columns
from brim.data.measure import build_lengths
from brim.data.rows import jsonl
from brim.data.rows.format import RowFormat
from brim.data.rows.open import layout_of, open_source
from brim.data.samples import Samples
from brim.data.synthetic import write_sample_data
from brim.data.token_store import Spans, is_token_store
from brim.data.tokenize import build_tokens, measure_and_tokenize
from brim.data.tokenizer.base import load_tokenizer


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def measured(path, tokenizer="byte"):
    """What a store is built from: source, tokenizer, layout, lengths."""
    source = open_source(path)
    loaded = load_tokenizer(tokenizer)
    layout = layout_of(source, RowFormat())
    return source, loaded, layout, build_lengths(path, path.with_suffix(f".{loaded.name}.lengths"), loaded).cache


def build(path, output, tokenizer="byte", **options):
    source, loaded, layout, table = measured(path, tokenizer)
    return build_tokens(source, output, loaded, layout, table, **options)


def assert_equals_samples(store, samples):
    assert len(store) == len(samples)
    assert (store.dataset_hash, store.tokenizer_hash, store.pad_id) == (
        samples.dataset_hash,
        samples.tokenizer_hash,
        samples.pad_id,
    )
    for row, sample in enumerate(samples):
        tokens, learned, _ = store.sample(row)
        assert tokens.tolist() == sample.input_ids.tolist()
        assert learned.tolist() == sample.loss_mask.tolist()
        assert store.lengths[row] == sample.length


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["byte", "gpt2"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_store_has_the_tokens_of_every_row(data, tmp_path, small_blocks, tokenizer, workers):
    store = build(data, tmp_path / "tokens", tokenizer, workers=workers)
    assert store.tokens.dtype == np.uint16
    assert_equals_samples(store, Samples(open_source(data), load_tokenizer(tokenizer)))
    assert_equals_samples(TokenStore.load(tmp_path / "tokens"), Samples(open_source(data), load_tokenizer(tokenizer)))


@pytest.mark.slow
def test_conversations_are_stored_as_they_are_templated(tmp_path, chat_folder):
    turns = [
        {"role": "user", "content": "hello wörld"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "sort"},
    ]
    rows = [{"messages": [*turns, {"role": "assistant", "content": "the sum" * n}]} for n in range(1, 30)]
    path = write_rows(tmp_path / "chat.jsonl", rows)
    store = build(path, tmp_path / "tokens", chat_folder)
    assert_equals_samples(store, Samples(open_source(path), load_tokenizer(chat_folder)))
    assert 0 < store.learned.sum() < store.tokens.size


def test_rows_of_tokens_may_hold_any_number(tmp_path):
    rows = [{"input_ids": [70_000 + n, 2**31 - 1, 0], "loss_mask": [0, 1, 1]} for n in range(5)]
    path = write_rows(tmp_path / "tokens.jsonl", rows)
    store = build(path, tmp_path / "tokens")
    assert store.tokens.dtype == np.uint32
    assert_equals_samples(store, Samples(open_source(path), load_tokenizer("byte")))


def test_the_number_of_workers_does_not_change_a_byte(data, tmp_path, small_blocks):
    build(data, tmp_path / "one", workers=1)
    build(data, tmp_path / "two", workers=2)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_progress_tells_how_many_rows_are_done(data, tmp_path, small_blocks):
    seen = []
    build(data, tmp_path / "tokens", progress=lambda *numbers: seen.append(numbers))
    assert seen[-1] == (200, 200)
    assert seen == sorted(seen)
    assert len(seen) > 5


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 1)), max_size=9), min_size=1, max_size=9),
    st.data(),
)
def test_spans_are_stretches_of_the_rows(rows, chance):
    samples = [
        Sample(number, [token for token, _ in row], [mask for _, mask in row]) for number, row in enumerate(rows)
    ]
    store = TokenStore.from_samples(samples)
    asked = chance.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6))
    starts = [chance.draw(st.integers(0, len(rows[row]))) for row in asked]
    lengths = [chance.draw(st.integers(0, len(rows[row]) - start)) for row, start in zip(asked, starts, strict=True)]
    tokens, learned, begin = store.spans(
        np.array(asked, np.int64), np.array(starts, np.int32), np.array(lengths, np.int32)
    )
    for row, start, length, at in zip(asked, starts, lengths, begin, strict=True):
        assert tokens[at : at + length].tolist() == [token for token, _ in rows[row][start : start + length]]
        assert learned[at : at + length].tolist() == [mask for _, mask in rows[row][start : start + length]]


@pytest.mark.parametrize("kind", ["store", "samples"])
def test_asking_for_more_than_there_is_names_the_mismatch(data, tmp_path, kind):
    store = build(data, tmp_path / "tokens")
    source = store if kind == "store" else Samples(open_source(data), load_tokenizer("byte"))
    length = int(store.lengths[3])
    with pytest.raises(MismatchError, match=f"asks for up to {length + 1} tokens of rows that are shorter"):
        source.spans(np.array([3]), np.array([1]), np.array([length]))
    with pytest.raises(MismatchError, match="asks for row 200, the data has 200 rows"):
        source.spans(np.array([3, 200]), np.array([0, 0]), np.array([1, 1]))
    empty = np.empty(0, np.int64)
    assert source.spans(empty, empty, empty).begin.tolist() == []


def test_some_rows_are_a_store_of_their_own(data, tmp_path):
    store = build(data, tmp_path / "tokens")
    some = store.take(np.array([7, 2, 150]), dataset_hash="some")
    assert (len(some), some.dataset_hash, some.tokenizer_hash) == (3, "some", store.tokenizer_hash)
    for row, original in enumerate([7, 2, 150]):
        assert some.sample(row).tokens.tolist() == store.sample(original).tokens.tolist()
    assert some.tokens is store.tokens


@pytest.mark.slow
def test_a_store_that_is_there_is_opened_and_not_built_again(data, tmp_path):
    build(data, tmp_path / "tokens")
    before = (tmp_path / "tokens").stat().st_mtime_ns
    calls = []
    build(data, tmp_path / "tokens", progress=lambda *numbers: calls.append(numbers))
    assert (calls, (tmp_path / "tokens").stat().st_mtime_ns) == ([], before)
    assert (
        build(data, tmp_path / "tokens", "gpt2").tokenizer_hash
        != build(data, tmp_path / "tokens", "byte").tokenizer_hash
    )
    write_sample_data(data, 210)
    assert len(build(data, tmp_path / "tokens")) == 210


def test_a_damaged_store_is_built_again_and_a_foreign_file_is_kept(data, tmp_path):
    whole = tmp_path / "tokens"
    build(data, whole)
    good = whole.read_bytes()
    whole.write_bytes(good[:-10])
    build(data, whole)
    assert whole.read_bytes() == good
    raw = bytearray(good)
    raw[100] ^= 1
    whole.write_bytes(raw)
    build(data, whole)
    assert whole.read_bytes() == good
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(OptionError, match=r"will not replace .*thesis\.tex: it is not a token store"):
        build(data, tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert [is_token_store(path) for path in (whole, tmp_path / "thesis.tex", tmp_path)] == [True, False, False]


@pytest.mark.parametrize("kind", ["other", "fewer", "more"])
def test_data_that_changed_since_it_was_measured_is_refused(data, tmp_path, kind):
    lines = data.read_text().splitlines(keepends=True)
    _, tokenizer, layout, table = measured(data)
    build(data, tmp_path / "old")
    old = (tmp_path / "old").read_bytes()
    row = json.loads(lines[9])
    changed = {
        "other": [*lines[:9], json.dumps({**row, "response": "longer " + row["response"]}) + "\n", *lines[10:]],
        "fewer": lines[:-1],
        "more": [*lines, lines[0].replace('"id"', '"was"')],
    }
    data.write_text("".join(changed[kind]))
    words = {
        "other": "train.jsonl:10 is not as long as its length table says",
        "fewer": "has 199 rows, its length table 200",
        "more": "train.jsonl:201 is not as long",
    }
    with pytest.raises(MismatchError) as caught:
        build_tokens(open_source(data), tmp_path / "old", tokenizer, layout, table)
    assert words[kind] in str(caught.value)
    assert "brim lengths build" in str(caught.value)
    assert (tmp_path / "old").read_bytes() == old
    assert not (tmp_path / ".old.tmp").exists()


BUILD = """
import sys
from brim import LengthCache
from brim.data.rows import jsonl
from brim.data.rows.format import RowFormat
from brim.data.rows.open import layout_of, open_source
from brim.data.tokenize import build_tokens, measure_and_tokenize
from brim.data.tokenizer.base import load_tokenizer

jsonl.BLOCK_BYTES = 2000
data, lengths, output, limit, workers = sys.argv[1:]
if limit != "0":
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))

def progress(rows, _):
    print(rows, flush=True)
    sys.stdin.readline()

source = open_source(data)
try:
    table = LengthCache.load(lengths)
    layout = layout_of(source, RowFormat())
    build_tokens(source, output, load_tokenizer("byte"), layout, table, workers=int(workers), progress=progress)
except Exception as error:
    print(f"{type(error).__name__}: {error}", flush=True)
"""


def start(data, output, *, limit=0, workers=1):
    """A build in a process of its own that waits for a line after every block."""
    table = build_lengths(data, data.with_suffix(".lengths"))
    assert len(table.cache)
    words = [data, data.with_suffix(".lengths"), output, limit, workers]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, *map(str, words)], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_in_the_middle_it_leaves_nothing_half(data, tmp_path, workers):
    output = tmp_path / "tokens"
    build(data, tmp_path / "whole")
    for blocks in (0, 1, 4):
        process = start(data, output, workers=workers)
        for _ in range(blocks):
            assert process.stdout.readline()
            process.stdin.write(b"\n")
        assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        assert not output.exists()
    build(data, output)
    assert output.read_bytes() == (tmp_path / "whole").read_bytes()
    assert not list(tmp_path.glob(".tokens*"))


def test_killed_over_an_older_store_it_leaves_that_one(data, tmp_path):
    output = tmp_path / "tokens"
    build(data, output)
    old = output.read_bytes()
    write_sample_data(data, 300)
    process = start(data, output)
    assert process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert output.read_bytes() == old
    assert len(TokenStore.load(output)) == 200


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_a_full_disk_is_one_clear_error_and_leaves_the_old_file(data, tmp_path, share):
    """The system refuses the space for the columns, or the last bytes behind them."""
    output = tmp_path / "tokens"
    build(data, output)
    old = output.read_bytes()
    write_sample_data(data, 210)
    build(data, tmp_path / "larger")
    limit = int((tmp_path / "larger").stat().st_size * share) - 1
    process = start(data, output, limit=limit)
    told, errors = process.communicate(b"\n" * 10_000, timeout=60)
    assert told.decode().splitlines()[-1] == f"OptionError: cannot write {output}: File too large"
    assert errors == b""
    assert output.read_bytes() == old
    assert not list(tmp_path.glob(".tokens*"))


def test_a_store_cut_off_anywhere_is_refused(data, tmp_path):
    build(data, tmp_path / "tokens")
    whole = (tmp_path / "tokens").read_bytes()
    for size in [0, 1, 63, 64, *range(100, len(whole), 997), len(whole) - 1]:
        (tmp_path / "tokens").write_bytes(whole[:size])
        with pytest.raises(BrimError):
            TokenStore.load(tmp_path / "tokens")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    path = write_rows(folder / "rows.jsonl", [{"text": "a" * n} for n in range(1, 20)])
    build(path, folder / "tokens")
    return folder / "tokens"


@given(st.data())
@settings(max_examples=200)
def test_a_flipped_bit_never_changes_what_is_read(small, chance):
    whole = small.read_bytes()
    before = TokenStore.load(small)
    raw = bytearray(whole)
    raw[chance.draw(st.integers(0, len(raw) - 1))] ^= 1 << chance.draw(st.integers(0, 7))
    flipped = small.with_name("flipped")
    flipped.write_bytes(raw)
    names = ("tokens", "learned", "starts", "lengths")
    try:
        after = TokenStore.load(flipped)
        read = {name: getattr(after, name) for name in names}
    except BrimError:
        return
    assert all(np.array_equal(read[name], getattr(before, name)) for name in names)
    assert (after.pad_id, after.dataset_hash, after.tokenizer_hash) == (
        before.pad_id,
        before.dataset_hash,
        before.tokenizer_hash,
    )


def test_a_flipped_bit_is_found_by_the_rows_that_touch_its_block_and_by_verify(tmp_path):
    """The other rows are as they were written. The file is larger than a block, so most rows touch others."""
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": f"{n} " * (n % 90)} for n in range(4000)])
    build(rows, tmp_path / "tokens")
    whole, expected = (tmp_path / "tokens").read_bytes(), rows_of(TokenStore.load(tmp_path / "tokens"))
    random = np.random.default_rng(0)
    damaged = 0
    for _ in range(12):
        raw, at = bytearray(whole), int(random.integers(64, len(whole) - 1000))
        raw[at] ^= 1 << int(random.integers(8))
        (tmp_path / "flipped").write_bytes(raw)
        store, found = TokenStore.load(tmp_path / "flipped"), 0
        for row, tokens in enumerate(expected):
            try:
                assert store.sample(row).tokens.tolist() == tokens
            except DamagedError:
                found += 1
        assert found < len(expected)
        if found:
            damaged += 1
            with pytest.raises(DamagedError, match="flipped: column"):
                TokenStore.load(tmp_path / "flipped").verify()
    assert damaged >= 10


def test_threads_that_verify_the_same_rows_leave_no_row_unverified(tmp_path):
    """Both count the rows that they verify, so the rows that are left must not be derived from the count."""
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": "abc " * 600} for _ in range(64)])
    build(rows, tmp_path / "tokens")
    raw = bytearray((tmp_path / "tokens").read_bytes())
    raw[64 + 2 * 2_400 * 60] ^= 1
    (tmp_path / "tokens").write_bytes(raw)

    def is_damaged(store, row):
        try:
            store.sample(row)
        except DamagedError:
            return True
        return False

    damaged = [is_damaged(TokenStore.load(tmp_path / "tokens"), row) for row in range(64)]
    assert any(damaged[50:])
    for _ in range(20):
        store = TokenStore.load(tmp_path / "tokens")
        together = threading.Barrier(4)

        def read(store=store, together=together):
            together.wait()
            for row in range(50):
                store.sample(row)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [is_damaged(store, row) for row in range(64)] == damaged


def test_a_pickled_store_verifies_a_file_that_was_replaced(tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": "abc " * 600} for _ in range(8)])
    build(rows, tmp_path / "tokens")
    store = TokenStore.load(tmp_path / "tokens")
    store.verify()
    pickled = pickle.dumps(store)
    assert pickle.loads(pickled).sample(3).tokens.tolist() == store.sample(3).tokens.tolist()
    raw = bytearray((tmp_path / "tokens").read_bytes())
    raw[64] ^= 1
    (tmp_path / "other").write_bytes(raw)
    os.replace(tmp_path / "other", tmp_path / "tokens")
    with pytest.raises(DamagedError):
        pickle.loads(pickled).sample(0)


def test_rows_count_from_the_end_as_in_a_list(tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": f"{n} " * (n % 90)} for n in range(3000)])
    build(rows, tmp_path / "tokens")
    whole = rows_of(TokenStore.load(tmp_path / "tokens"))
    assert TokenStore.load(tmp_path / "tokens").sample(-1).tokens.tolist() == whole[-1]
    with pytest.raises(IndexError):
        TokenStore.load(tmp_path / "tokens").sample(3000)


def test_a_store_of_version_1_is_verified_when_it_is_opened(data, tmp_path):
    build(data, tmp_path / "tokens")
    file = Columns(tmp_path / "tokens", "brim.tokens/2")
    columns = {name: file[name] for name in ("tokens", "learned", "length")}
    write_columns(tmp_path / "old", "brim.tokens/1", file.meta, columns)
    assert rows_of(TokenStore.load(tmp_path / "old")) == rows_of(TokenStore.load(tmp_path / "tokens"))
    raw = bytearray((tmp_path / "old").read_bytes())
    raw[64] ^= 1
    (tmp_path / "old").write_bytes(raw)
    with pytest.raises(DamagedError, match="column 'tokens' is damaged"):
        TokenStore.load(tmp_path / "old")


def test_what_is_not_a_store_is_named(data, tmp_path):
    with pytest.raises(DataError, match="nothing does not exist"):
        TokenStore.load(tmp_path / "nothing")
    with pytest.raises(DataError, match="is a directory, not a token store"):
        TokenStore.load(tmp_path)
    with pytest.raises(DataError, match=r"train\.jsonl is not a brim\.tokens file"):
        TokenStore.load(data)
    build(data, tmp_path / "tokens")
    raw = (tmp_path / "tokens").read_bytes()
    (tmp_path / "tokens").write_bytes(raw.replace(b"brim.tokens/2", b"brim.tokens/9", 1))
    with pytest.raises(DamagedError, match=r"version brim\.tokens/9"):
        TokenStore.load(tmp_path / "tokens")


def rows_of(store: TokenStore) -> list[list[int]]:
    return [store.sample(row).tokens.tolist() for row in range(len(store))]


def test_a_store_travels_to_other_processes(data, tmp_path):
    """As its path where it has one, else with its tokens."""
    mapped = build(data, tmp_path / "tokens")
    memory = TokenStore.from_samples(
        [Sample("a", [1, 2], [1, 1]), Sample("b", [3], [1])], pad_id=5, dataset_hash="d", tokenizer_hash="t"
    )
    assert len(pickle.dumps(mapped)) < 500
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(rows_of, mapped).result(timeout=120) == rows_of(mapped)
        assert pool.submit(rows_of, memory).result(timeout=120) == [[1, 2], [3]]
    again = pickle.loads(pickle.dumps(memory))
    assert (again.pad_id, again.dataset_hash, again.tokenizer_hash) == (5, "d", "t")


def test_a_store_of_nothing_and_of_one_row():
    assert len(TokenStore.from_samples([])) == 0
    one = TokenStore.from_samples([Sample("a", [1, 2], [0, 1])])
    assert isinstance(one.sample(0), Spans)
    assert one.starts.tolist() == [0]


def test_the_lengths_of_a_store_are_those_of_its_table(data, tmp_path):
    store = build(data, tmp_path / "tokens")
    table = LengthCache.load(data.with_suffix(".byte.lengths"))
    assert np.array_equal(store.lengths, table.lengths)
    assert (store.dataset_hash, store.tokenizer_hash) == (table.dataset_hash, table.tokenizer_hash)
    assert not store.tokens.flags.writeable


@pytest.mark.slow
def test_one_pass_gives_the_bytes_of_two(data, tmp_path, small_blocks):
    """The definition: measure, then tokenise what was measured."""
    store = build(data, tmp_path / "tokens", "gpt2")
    for workers in (1, 2):
        source, tokenizer, layout, table = measured(data, "gpt2")
        outputs = (tmp_path / f"{workers}.lengths", tmp_path / f"{workers}.tokens")
        found, tokens = measure_and_tokenize(source, *outputs, tokenizer, layout, workers=workers)
        assert outputs[0].read_bytes() == data.with_suffix(".gpt2.lengths").read_bytes()
        assert outputs[1].read_bytes() == (tmp_path / "tokens").read_bytes()
        assert (found.fingerprint, tokens.dataset_hash) == (table.fingerprint, store.dataset_hash)


class Counting:
    """A tokenizer that counts the texts it is given."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.texts = []

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def encode_batch(self, texts):
        self.texts += texts
        return self.tokenizer.encode_batch(texts)

    def count_batch(self, texts):
        self.texts += texts
        return self.tokenizer.count_batch(texts)


def test_one_pass_reads_the_data_once_and_tokenises_every_row_once(tmp_path, monkeypatch):
    path = write_rows(tmp_path / "rows.jsonl", [{"text": f"row {n} " + "x" * 1000} for n in range(3000)])
    read = []
    pread = os.pread

    def counted(file, size, offset):
        data = pread(file, size, offset)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counted)
    source = open_source(path)
    tokenizer = Counting(load_tokenizer("byte"))
    layout = layout_of(source, RowFormat())
    measure_and_tokenize(source, tmp_path / "lengths", tmp_path / "tokens", tokenizer, layout, workers=1)
    assert tokenizer.texts == [row["text"] for row in map(json.loads, path.read_text().splitlines())]
    # Besides the rows themselves: the first block, which settles the layout, and the tail, in which the last line
    # begins.
    assert sum(read) <= path.stat().st_size + jsonl.BLOCK_BYTES + jsonl.TAIL_BYTES + 4000


def test_one_pass_opens_what_is_there_and_makes_what_is_missing(data, tmp_path):
    lengths, tokens = tmp_path / "lengths", tmp_path / "tokens"

    def made():
        source, tokenizer, layout, _ = measured(data)
        counting = Counting(tokenizer)
        table, store = measure_and_tokenize(source, lengths, tokens, counting, layout)
        assert_equals_samples(store, Samples(source, tokenizer))
        assert np.array_equal(table.lengths, store.lengths)
        return len(counting.texts)

    assert made() == 400  # a prompt and a response of every row
    assert made() == 0
    tokens.unlink()
    assert made() == 400
    lengths.unlink()
    assert made() == 400
    write_sample_data(data, 210)
    assert made() == 420


def test_a_refused_pass_writes_neither_file(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", [{"id": 1, "text": "a"}, {"id": 1, "text": "b"}])
    source = open_source(path)
    with pytest.raises(DataError, match="id 1 comes twice"):
        measure_and_tokenize(
            source, tmp_path / "l", tmp_path / "t", load_tokenizer("byte"), layout_of(source, RowFormat())
        )
    assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]
    (tmp_path / "t").write_text("years of work")
    with pytest.raises(OptionError, match="is not a token store"):
        measure_and_tokenize(
            source, tmp_path / "l", tmp_path / "t", load_tokenizer("byte"), layout_of(source, RowFormat())
        )
