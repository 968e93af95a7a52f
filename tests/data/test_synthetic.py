import hashlib

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import OptionError
from brim.data.synthetic import check_answer, sample_rows, write_sample_data
from brim.data.synthetic_tasks import TASKS


def test_the_bytes_are_the_same_on_every_machine(tmp_path):
    write_sample_data(tmp_path / "a.jsonl", 1500)
    assert (
        hashlib.sha256((tmp_path / "a.jsonl").read_bytes()).hexdigest()
        == "9b300e35979dc2a9cdcc2e7d4b6b47704f24b4e2b1ea53dffc66776b84952fb2"
    )


@pytest.mark.slow
@given(st.integers(0, 2**40))
@settings(max_examples=15)
def test_every_answer_is_right_and_another_one_is_not(seed):
    for row in sample_rows(100, seed=seed):
        assert check_answer(row)
        assert not check_answer({**row, "answer": row["answer"] + "1"})
        assert not check_answer({**row, "response": row["response"] + "1"})


@pytest.mark.slow
def test_lengths_have_a_long_tail_and_a_hard_end():
    lengths = np.array([len(f"{row['prompt']}\n{row['response']}".encode()) + 1 for row in sample_rows(20_000)])
    assert 250 <= np.median(lengths) <= 350
    assert np.percentile(lengths, 99) > 4 * np.median(lengths)
    assert lengths.max() < 2048


def test_a_longer_data_set_starts_with_the_shorter_one_and_another_seed_with_something_else(tmp_path):
    for name, n, seed in (("a", 10, 0), ("b", 1010, 0), ("c", 10, 1)):
        write_sample_data(tmp_path / name, n, seed=seed)
    short, long, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert long.startswith(short)
    assert other.splitlines()[0] != short.splitlines()[0]


def test_rows_have_unique_ids_and_all_tasks_occur(tmp_path):
    write_sample_data(tmp_path / "a.jsonl", 2500)
    rows = [orjson.loads(line) for line in (tmp_path / "a.jsonl").read_bytes().splitlines()]
    assert len({row["id"] for row in rows}) == 2500
    assert {row["task"] for row in rows} == set(TASKS)
    assert all(set(row) == {"id", "prompt", "response", "answer", "task"} for row in rows)


@pytest.mark.parametrize("n", [0, -1])
def test_no_rows_are_an_option_that_cannot_work_and_nothing_is_written(tmp_path, n):
    with pytest.raises(OptionError, match=f"n is {n}"):
        write_sample_data(tmp_path / "a.jsonl", n)
    assert list(tmp_path.iterdir()) == []
