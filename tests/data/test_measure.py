"""Building lengths: what is measured, what is reused, and what is refused."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.core.errors import DataError, OptionError
from brim.data.lengths import LengthCache
from brim.data.measure import build_lengths
from brim.data.rows import jsonl
from brim.data.rows.encode import encode_rows
from brim.data.rows.format import RowFormat
from brim.data.rows.open import open_source
from brim.data.samples import Samples
from brim.data.synthetic import sample_rows, write_sample_data
from brim.data.tokenizer.base import load_tokenizer


def lines(rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def journal_of(output):
    return output.parent / f".{output.name}.journal"


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["byte", "gpt2"])
@pytest.mark.parametrize("name", ["out.jsonl", "out.lengths"])
def test_lengths_are_those_of_the_encoded_rows(data, tmp_path, tokenizer, name):
    built = build_lengths(data, tmp_path / name, tokenizer)
    rows = list(sample_rows(200))
    expected = [len(tokens) for tokens, _ in encode_rows(rows, load_tokenizer(tokenizer), RowFormat(), str)]
    loaded = LengthCache.load(tmp_path / name)
    assert loaded.lengths.tolist() == built.cache.lengths.tolist() == expected
    assert list(loaded.ids) == [row["id"] for row in rows]
    assert loaded.fingerprint == built.cache.fingerprint
    assert (built.reused, built.resumed) == (0, 0)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([name, "train.jsonl"])


@pytest.mark.slow
def test_the_output_says_what_it_was_made_of_and_nothing_about_the_machine(data, tmp_path):
    source = build_lengths(data, tmp_path / "out", "gpt2").cache.source
    assert (source["name"], source["rows"], source["tokenizer"], source["layout"]["kind"]) == (
        "train.jsonl",
        200,
        "gpt2",
        "prompt",
    )
    assert str(tmp_path).encode() not in (tmp_path / "out").read_bytes()


@pytest.mark.slow
def test_the_bytes_do_not_depend_on_workers_or_blocks(data, tmp_path, monkeypatch, bpe_file):
    build_lengths(data, tmp_path / "one", str(bpe_file), workers=1)
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", 3000)
    build_lengths(data, tmp_path / "three", str(bpe_file), workers=3)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "three").read_bytes()


@pytest.mark.slow
def test_conversations_go_through_the_template_in_the_workers_too(tmp_path, chat_folder, small_blocks):
    rows = [
        {"messages": [{"role": "user", "content": "hello " * (k % 9)}, {"role": "assistant", "content": "ok"}]}
        for k in range(100)
    ]
    (tmp_path / "chat.jsonl").write_bytes(lines(rows))
    for workers in (1, 2):
        build_lengths(tmp_path / "chat.jsonl", tmp_path / f"{workers}", str(chat_folder), workers=workers)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


@pytest.mark.slow
def test_parquet_and_saved_data_sets_are_measured_like_jsonl(data, tmp_path):
    import datasets

    datasets.disable_progress_bars()
    table = datasets.Dataset.from_list(list(sample_rows(200)))
    table.save_to_disk(tmp_path / "saved")
    table.to_parquet(tmp_path / "train.parquet")
    caches = [
        build_lengths(path, tmp_path / f"{k}", workers=2).cache
        for k, path in enumerate((data, tmp_path / "saved", tmp_path / "train.parquet"))
    ]
    assert all(cache.lengths.tolist() == caches[0].lengths.tolist() for cache in caches)
    assert all(list(cache.ids) == list(caches[0].ids) for cache in caches)


@pytest.mark.slow
def test_samples_have_exactly_the_lengths_that_were_measured(data, tmp_path):
    cache = build_lengths(data, tmp_path / "out", "gpt2").cache
    samples = Samples(open_source(data), load_tokenizer("gpt2"))
    assert [len(sample) for sample in samples] == cache.lengths.tolist()
    assert [sample.id for sample in samples.take(np.array([5, 0, -1]))] == [cache.ids[5], cache.ids[0], cache.ids[199]]
    assert samples[-1] == samples[199]
    assert len(samples) == 200
    with pytest.raises(IndexError):
        samples[200]


def test_progress_ends_with_everything_and_starts_with_what_is_known(data, tmp_path, small_blocks):
    seen = []
    cache = build_lengths(data, tmp_path / "out", progress=lambda *numbers: seen.append(numbers)).cache
    size = data.stat().st_size
    assert seen[0] == (0, 0, 0, size)
    assert seen[-1] == (200, int(cache.lengths.sum()), size, size)
    assert seen == sorted(seen)
    build_lengths(data, tmp_path / "out", progress=lambda *numbers: seen.append(numbers))
    assert seen[-1] == seen[-2]


def test_groups_are_kept_and_joined(tmp_path):
    rows = [{"text": "x" * (k + 1), "depth": k % 3} for k in range(7)]
    (tmp_path / "d.jsonl").write_bytes(lines(rows[:4]))
    build_lengths(tmp_path / "d.jsonl", tmp_path / "out", format=RowFormat(group_field="depth"))
    (tmp_path / "d.jsonl").write_bytes(lines([*rows, {"text": "x", "depth": "deep"}]))
    built = build_lengths(tmp_path / "d.jsonl", tmp_path / "out", format=RowFormat(group_field="depth"))
    assert built.reused == 4
    assert [entry.group for entry in built.cache] == ["0", "1", "2", "0", "1", "2", "0", "deep"]


# Appending


CONTENT = (
    lines([{"id": f"r{k}", "text": "é" * k} for k in range(4)])
    + b"\n \r\n"
    + lines([{"id": "z", "text": "end"}]).rstrip()
)


@given(
    st.integers(0, len(CONTENT)), st.sampled_from([b"", b"\n", b"\r\n"]), st.sampled_from(["out.jsonl", "out.lengths"])
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_a_file_that_grew_gives_the_bytes_of_a_fresh_build(tmp_path, cut, ending, name):
    data, output, fresh = tmp_path / "d.jsonl", tmp_path / name, tmp_path / f"fresh-{name}"
    for file in (output, fresh):
        file.unlink(missing_ok=True)
    data.write_bytes(CONTENT[:cut])
    try:
        before = len(build_lengths(data, output, torn="skip").cache)
    except DataError:
        before = 0
    data.write_bytes(CONTENT + ending)
    built = build_lengths(data, output)
    build_lengths(data, fresh)
    assert output.read_bytes() == fresh.read_bytes()
    assert built.reused == before


def test_only_appended_rows_are_measured(data, tmp_path):
    build_lengths(data, tmp_path / "out")
    write_sample_data(data, 230)
    built = build_lengths(data, tmp_path / "out")
    assert (built.reused, len(built.cache)) == (200, 230)
    build_lengths(data, tmp_path / "fresh")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "fresh").read_bytes()


@pytest.mark.parametrize("ids", [[0, 1, 2, 3], [5, 6, 7, 8], ["a", "b", "c", "d"], [0, 1, "c", "d"], ["a", 1, 2, 3]])
def test_ids_of_any_kind_survive_appending(tmp_path, ids):
    rows = [{"id": id, "text": "x"} for id in ids]
    (tmp_path / "d.jsonl").write_bytes(lines(rows[:2]))
    build_lengths(tmp_path / "d.jsonl", tmp_path / "out")
    (tmp_path / "d.jsonl").write_bytes(lines(rows))
    assert build_lengths(tmp_path / "d.jsonl", tmp_path / "out").reused == 2
    build_lengths(tmp_path / "d.jsonl", tmp_path / "fresh")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "fresh").read_bytes()


def test_an_output_that_is_up_to_date_is_not_written_again(data, tmp_path):
    build_lengths(data, tmp_path / "out")
    before = (tmp_path / "out").stat()
    built = build_lengths(data, tmp_path / "out")
    assert built.reused == len(built.cache) == 200
    assert (tmp_path / "out").stat().st_mtime_ns == before.st_mtime_ns
    assert (tmp_path / "out").stat().st_ino == before.st_ino


def test_a_journal_that_outlived_its_build_is_removed(data, tmp_path):
    build_lengths(data, tmp_path / "out")
    journal_of(tmp_path / "out").write_bytes(b"")
    build_lengths(data, tmp_path / "out")
    assert not journal_of(tmp_path / "out").exists()


@pytest.mark.slow
def test_a_change_of_the_data_the_tokenizer_or_the_format_measures_everything_again(data, tmp_path):
    build_lengths(data, tmp_path / "out")
    rows = list(sample_rows(200))
    data.write_bytes(lines([{**rows[0], "response": "changed"}, *rows[1:]]))
    assert build_lengths(data, tmp_path / "out").reused == 0
    assert build_lengths(data, tmp_path / "out", "gpt2").reused == 0
    assert build_lengths(data, tmp_path / "out", "gpt2", RowFormat(response_field="answer")).reused == 0
    assert build_lengths(data, tmp_path / "out", "gpt2", RowFormat(response_field="answer")).reused == 200


def test_a_damaged_output_is_built_again(data, tmp_path):
    build_lengths(data, tmp_path / "out")
    whole = (tmp_path / "out").read_bytes()
    (tmp_path / "out").write_bytes(whole[:-100])
    assert build_lengths(data, tmp_path / "out").reused == 0
    assert (tmp_path / "out").read_bytes() == whole


# Bad input: one line that says where, and nothing left behind


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{"text": "a", "id": 1}\n\n{"text": "b", "id": 2}\n{"text": "c", "id": 1}\n',
            r"id 1 comes twice: .*d.jsonl:1 and .*d.jsonl:4; ids must be unique",
        ),
        (b'{"text": "a", "id": "x"}\n{"text": "c", "id": "x"}\n', r"id 'x' comes twice: .*d.jsonl:1 and .*d.jsonl:2;"),
        (b'{"text": "a", "id": 1}\n{"text": "b"}\n', 'd.jsonl:2: "id" is missing'),
        (b'{"text": "a"}\n\n{"text": "b", "id": 1}\n', 'd.jsonl:3: this row has an "id" but the first row has none'),
        (b'{"text": "a", "id": 1.0}\n', 'd.jsonl:1: "id" is a number'),
        (b'{"prompt": "a", "answer": "b"}\n', r'd.jsonl:1: "response" is missing .*--response-field answer\?'),
        (b'{"text": "a"}\n{"text": null}\n', 'd.jsonl:2: "text" is null'),
        (b'{"text": "a"}\n{"text": 3}\n', 'd.jsonl:2: "text" is an integer'),
        (b'{"text": "a"}\n[]\n', "d.jsonl:2: the row is a list"),
        (b'{"text": "a"}\n{"text": "\xff"}\n', "d.jsonl:2: invalid UTF-8"),
        (b'{"text": "a"}\n{"te', "d.jsonl:2: the last line is torn"),
        (b"", "d.jsonl is empty"),
        (b"\n\n", "d.jsonl has no rows"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_bad_rows_are_one_line_and_nothing_is_left_behind(tmp_path, content, message, workers):
    (tmp_path / "d.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        build_lengths(tmp_path / "d.jsonl", tmp_path / "out", workers=workers)
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["d.jsonl"]


def test_a_torn_line_is_skipped_and_counted_if_asked_for(tmp_path):
    (tmp_path / "d.jsonl").write_bytes(b'{"text": "a"}\n\n{"te')
    cache = build_lengths(tmp_path / "d.jsonl", tmp_path / "out", torn="skip").cache
    assert (len(cache), cache.source["torn"], cache.source["blank"]) == (1, 1, 1)


def test_no_file_that_is_not_a_length_cache_is_replaced(data, tmp_path):
    (tmp_path / "notes.txt").write_text("my notes")
    (tmp_path / "folder").mkdir()
    for output, message in (
        (data, "over the data"),
        (tmp_path / "notes.txt", "not a length cache"),
        (tmp_path / "folder", "is a directory"),
    ):
        with pytest.raises(OptionError, match=message):
            build_lengths(data, output)
    assert (tmp_path / "notes.txt").read_text() == "my notes"


def test_an_output_that_cannot_be_written_is_one_line(data, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="cannot write"):
        build_lengths(data, tmp_path / "file" / "out")


def test_the_folder_of_the_output_is_made(data, tmp_path):
    build_lengths(data, tmp_path / "new" / "deep" / "out")
    assert len(LengthCache.load(tmp_path / "new" / "deep" / "out")) == 200


@pytest.mark.parametrize("workers", [0, -1, True])
def test_workers_are_at_least_one(data, tmp_path, workers):
    with pytest.raises(OptionError, match="workers is"):
        build_lengths(data, tmp_path / "out", workers=workers)


def test_lengths_are_32_bit_and_ids_of_rows_are_row_numbers(tmp_path):
    (tmp_path / "d.jsonl").write_bytes(lines([{"text": "abc"}, {"text": ""}]))
    cache = build_lengths(tmp_path / "d.jsonl", tmp_path / "out").cache
    assert cache.lengths.dtype == np.int32
    assert cache.get_all() == {0: 4, 1: 1}
