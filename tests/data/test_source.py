import gzip
import json
import os
import pickle
import sys

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.core.errors import DataError, MissingExtraError, OptionError
from brim.data.rows import jsonl
from brim.data.rows.format import RowFormat
from brim.data.rows.open import layout_of, open_source

ROWS = [{"id": number, "prompt": f"é {number}", "response": "x" * number} for number in range(25)]


def lines(rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.fixture
def write(tmp_path):
    def write(data: bytes, name: str = "train.jsonl"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


separators = st.lists(
    st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\n  \t\n", b"\r\n\r\n", b"\n" + b" " * 300 + b"\n"]),
    min_size=25,
    max_size=25,
)


@given(separators, st.booleans(), st.booleans(), st.integers(1, 400))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_rows_are_those_of_the_naive_reading_whatever_lies_between_them(write, monkeypatch, between, bom, cut, size):
    data = b"".join(json.dumps(row, ensure_ascii=False).encode() + end for row, end in zip(ROWS, between, strict=True))
    data = (b"\xef\xbb\xbf" if bom else b"") + (data.rstrip() if cut else data)
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", size)
    monkeypatch.setattr(jsonl, "READ_BYTES", size)
    source = open_source(write(data))
    places = [number for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1) if line.strip()]
    assert len(source) == len(ROWS)
    assert [source.row(number) for number in range(len(source))] == ROWS
    assert [source.where(number) for number in range(len(source))] == [f"{source.path}:{place}" for place in places]
    blocks = list(source.blocks())
    assert [row for block in blocks for row in source.read(block).rows] == ROWS
    assert [source.where_in(block, k) for block in blocks for k in range(len(source.read(block).rows))] == [
        source.where(i) for i in range(25)
    ]
    assert sum(source.read(block).blank for block in blocks) == len(data.removesuffix(b"\n").split(b"\n")) - len(ROWS)


def test_rows_count_from_the_end_too_and_end_where_they_end(write):
    source = open_source(write(lines(ROWS)))
    assert source.row(-1) == ROWS[-1]
    for number in (25, -26):
        with pytest.raises(IndexError, match=f"row {number} of 25"):
            source.row(number)


def test_a_source_can_be_sent_to_another_process(write):
    source = open_source(write(lines(ROWS)))
    assert len(source) == 25
    again = pickle.loads(pickle.dumps(source))
    assert again.row(3) == ROWS[3]
    assert again.fingerprint == source.fingerprint


def test_rows_appended_after_opening_are_not_seen(write):
    source = open_source(path := write(lines(ROWS)))
    path.write_bytes(lines(ROWS) * 2)
    assert len(source) == 25
    assert sum(len(source.read(block).rows) for block in source.blocks()) == 25


def test_a_file_that_becomes_shorter_is_an_error(write):
    source = open_source(path := write(lines(ROWS)))
    os.truncate(path, 10)
    with pytest.raises(DataError, match="became shorter"):
        source.read(next(source.blocks()))


def test_the_fingerprint_is_of_the_rows_and_not_of_the_path(write):
    one, same, other = write(lines(ROWS), "a.jsonl"), write(lines(ROWS), "b.jsonl"), write(lines(ROWS[:-1]), "c.jsonl")
    assert open_source(one).fingerprint == open_source(same).fingerprint
    assert open_source(one).fingerprint != open_source(other).fingerprint


def test_a_source_knows_whether_it_starts_with_what_was_read_before(write):
    old = open_source(write(lines(ROWS[:10]).rstrip()))
    end, digest = old.end, old.fingerprint
    assert open_source(write(lines(ROWS))).starts_with(end, digest)
    assert open_source(write(lines(ROWS[:10]).rstrip())).starts_with(end, digest)
    assert not open_source(write(lines(ROWS[:9]))).starts_with(end, digest)
    assert not open_source(write(lines([{**ROWS[0], "id": 9}, *ROWS[1:]]))).starts_with(end, digest)
    assert not open_source(write(lines(ROWS[:10]).rstrip() + b"  {}\n")).starts_with(end, digest)


def test_a_torn_last_line_is_an_error_or_left_out_and_counted(write):
    path = write(lines(ROWS[:3]) + b'{"id": 3, "prom')
    with pytest.raises(DataError, match=r"train.jsonl:4: the last line is torn.*--torn-line skip"):
        open_source(path)
    source = open_source(path, torn="skip")
    assert (len(source), source.torn) == (3, 1)
    assert open_source(write(lines(ROWS[:3])), torn="skip").torn == 0


def test_a_line_torn_inside_a_character_is_torn(write):
    assert open_source(write(lines(ROWS[:1]) + '{"a": "é'.encode()[:-1]), torn="skip").torn == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lines(ROWS[:2]) + b"{nonsense}\n", r"train.jsonl:3: not JSON \(.*one JSON object on one line"),
        (lines(ROWS[:2]) + b"\n\n[1, 2]\n", "train.jsonl:5: the row is a list; it must be an object"),
        (lines(ROWS[:2]) + b"null\n", "train.jsonl:3: the row is null"),
        (lines(ROWS[:2]) + b'"text"\n', "train.jsonl:3: the row is a string"),
        (lines(ROWS[:2]) + b'{"a": "\xff"}\n', "train.jsonl:3: invalid UTF-8 at byte 8"),
        (b'{\n  "a": 1\n}\n', "train.jsonl:1: not JSON"),
    ],
)
def test_a_line_that_is_not_a_row_is_an_error_with_its_line(write, data, message):
    source = open_source(write(data))
    with pytest.raises(DataError, match=message) as caught:
        [source.read(block) for block in source.blocks()]
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=message):
        [source.row(number) for number in range(len(source))]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b"", "a.jsonl is empty"),
        ("a.jsonl", b"PAR1....PAR1", "is not JSONL: by its content it is a Parquet file; rename"),
        ("a.jsonl", gzip.compress(b"{}\n", mtime=0), "compressed with gzip; unpack"),
        ("a.jsonl", '{"a": 1}\n'.encode("utf-16"), "UTF-16"),
        ("a.jsonl", b'{"a": "\0"}\n', "binary data"),
        ("a.json", b' [{"text": "x"}]', "holds one JSON list.*jq -c"),
        ("a.jsonl.gz", gzip.compress(b"{}\n", mtime=0), "compressed with gzip"),
        ("a.csv", b"a,b\n", "unknown kind of file '.csv'; brim reads .jsonl"),
        ("a.parquet", b'{"a": 1}\n', "is not a Parquet file; it looks like JSONL"),
        ("a.parquet", b"PAR1 and nothing else", "cannot be read as Parquet"),
    ],
)
def test_a_file_of_another_format_is_named_for_what_it_is(write, name, data, message):
    with pytest.raises(DataError, match=message) as caught:
        open_source(write(data, name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "A.JSONL"])
def test_lines_are_read_under_every_usual_suffix(write, name):
    assert open_source(write(lines(ROWS), name)).row(7) == ROWS[7]


def test_a_missing_library_says_which_extra_to_install(write, tmp_path, monkeypatch):
    parquet = write(b"PAR1", "a.parquet")
    saved = tmp_path / "saved"
    saved.mkdir()
    for name in ("state.json", "dataset_info.json"):
        (saved / name).write_text("{}")
    for module, path in (("pyarrow.parquet", parquet), ("datasets", saved)):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(MissingExtraError, match=r"needs .* run: pip install 'brim\[hf\]'"):
                open_source(path)


def test_what_is_no_data_set_is_an_error_that_says_what_is(tmp_path, write):
    with pytest.raises(DataError, match="does not exist"):
        open_source(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="is a directory that is not a data set; brim reads"):
        open_source(tmp_path)
    path = write(lines(ROWS))
    with pytest.raises(DataError, match=f"did you mean {path}"):
        open_source(tmp_path)
    with pytest.raises(DataError, match="not a regular file"):
        open_source(os.devnull)
    with pytest.raises(OptionError, match="torn is 'maybe'"):
        open_source(path, torn="maybe")


def test_a_file_of_blank_lines_has_no_rows(write):
    source = open_source(write(b"\n \n\n"))
    assert len(source) == 0
    with pytest.raises(DataError, match="has no rows"):
        layout_of(source, RowFormat())


@pytest.fixture(params=["jsonl", "parquet", "parquet directory", "datasets"])
def save(request, tmp_path):
    """A way to write rows as a data set; called again, it writes the data set anew."""
    import datasets
    import pyarrow.parquet

    def save(rows):
        if request.param == "jsonl":
            (tmp_path / "d.jsonl").write_bytes(lines(rows))
            return tmp_path / "d.jsonl"
        if request.param == "parquet":
            pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet", row_group_size=7)
            return tmp_path / "d.parquet"
        if request.param == "parquet directory":
            folder = tmp_path / "parts"
            folder.mkdir(exist_ok=True)
            for part, start in enumerate(range(0, len(rows), 10)):
                pyarrow.parquet.write_table(
                    pa.Table.from_pylist(rows[start : start + 10]), folder / f"part-{part}.parquet", row_group_size=4
                )
            return folder
        target = tmp_path / f"saved-{len(rows)}"
        datasets.disable_progress_bars()
        datasets.Dataset.from_list(rows).save_to_disk(target)
        return target

    return save


def test_every_kind_of_source_gives_the_same_rows_at_random_and_in_blocks(save):
    source = open_source(save(ROWS))
    assert len(source) == 25
    assert [source.row(number) for number in (24, 0, 11, -1)] == [ROWS[number] for number in (24, 0, 11, -1)]
    assert [row for block in source.blocks() for row in source.read(block).rows] == ROWS
    assert pickle.loads(pickle.dumps(source)).row(13) == ROWS[13]
    assert layout_of(source, RowFormat()).kind == "prompt"
    with pytest.raises(IndexError):
        source.row(25)


@pytest.mark.slow
def test_every_kind_of_source_recognises_rows_that_were_only_added_to(save):
    old = open_source(save(ROWS[:20]))
    end, digest = old.end, old.fingerprint
    new = open_source(save(ROWS))
    assert new.starts_with(end, digest)
    assert [row for block in new.blocks(end) for row in new.read(block).rows] == ROWS[20:]
    assert not open_source(save([ROWS[0], {**ROWS[1], "response": "other"}, *ROWS[2:]])).starts_with(end, digest)


def test_parquet_and_datasets_of_the_same_rows_have_the_same_fingerprint(tmp_path):
    import datasets
    import pyarrow.parquet

    datasets.disable_progress_bars()
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    pyarrow.parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "d.parquet")
    assert open_source(tmp_path / "saved").fingerprint == open_source(tmp_path / "d.parquet").fingerprint


def test_a_row_of_a_table_has_a_place(tmp_path):
    import pyarrow.parquet

    for part in range(3):
        pyarrow.parquet.write_table(pa.Table.from_pylist(ROWS[part * 5 : part * 5 + 5]), tmp_path / f"p{part}.parquet")
    assert open_source(tmp_path).where(7) == f"{tmp_path / 'p1.parquet'}: row 2"


def test_values_that_json_has_no_word_for_are_part_of_the_fingerprint(tmp_path):
    import pyarrow.parquet

    prints = set()
    for value in (b"\xff", b"\xfe"):
        pyarrow.parquet.write_table(pa.Table.from_pylist([{"text": "x", "image": value}]), tmp_path / "d.parquet")
        prints.add(open_source(tmp_path / "d.parquet").fingerprint)
    assert len(prints) == 2


def test_a_directory_of_several_splits_names_them(tmp_path):
    import datasets

    datasets.disable_progress_bars()
    data = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": data, "test": data}).save_to_disk(tmp_path / "all")
    with pytest.raises(DataError, match=r"holds several splits; name one of them: .*all/train, .*all/test"):
        open_source(tmp_path / "all")
    assert len(open_source(tmp_path / "all" / "train")) == 25


def test_a_damaged_saved_data_set_is_one_line(tmp_path):
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "state.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read as a saved data set") as caught:
        open_source(tmp_path / "saved")
    assert "\n" not in str(caught.value)
