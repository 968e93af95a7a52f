import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import DataError, OptionError
from brim.envs.query.attempt import Question
from brim.envs.query.questions import check_questions, load_questions, questions_fingerprint

any_question = st.builds(
    Question,
    id=st.text(max_size=5),
    text=st.text(max_size=5),
    reference=st.none() | st.text(max_size=5),
    kind=st.text(),
)


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_all_fields_are_read_and_have_defaults(tmp_path):
    path = write(
        tmp_path / "q.jsonl",
        {"id": "a", "question": " What is {x}? ", "reference": "y", "kind": "letters"},
        {"question": "2 + 2?", "reference": 4, "kind": 7, "id": 9},
        {"question": "Why?"},
        {"question": "How?", "reference": None, "kind": None, "id": None},
        {"question": "Where?", "reference": "  "},
    )
    assert load_questions(path) == (
        Question(id="a", text=" What is {x}? ", reference="y", kind="letters"),
        Question(id="9", text="2 + 2?", reference="4", kind="7"),
        Question(id="2", text="Why?"),
        Question(id="3", text="How?"),
        Question(id="4", text="Where?"),
    )


def test_fields_can_have_other_names(tmp_path):
    path = write(tmp_path / "q.jsonl", {"q": "Why?", "a": "so", "t": "deep", "n": "1", "question": "no", "id": 0})
    (question,) = load_questions(path, question_field="q", reference_field="a", kind_field="t", id_field="n")
    assert question == Question(id="1", text="Why?", reference="so", kind="deep")


def test_parquet_is_read_like_jsonl(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"question": f"What is {n}?", "reference": n / 10} for n in range(1500)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "q.parquet")
    assert load_questions(tmp_path / "q.parquet") == load_questions(write(tmp_path / "q.jsonl", *rows))


@settings(deadline=None)
@given(st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_loses_no_digit(tmp_path_factory, number):
    path = write(tmp_path_factory.getbasetemp() / "number.jsonl", {"question": "?", "reference": number})
    (question,) = load_questions(path)
    assert type(number)(question.reference) == number
    if isinstance(number, int):
        assert question.reference == str(number)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"query": "Why?", "n": 1},
            r'"question" is missing \(keys: query, n\); name it with --question-field\. Did .*',
        ),
        ({"query": "Why?"}, r"Did you mean --question-field query\?"),
        ({"questoin": "Why?"}, r'Did you mean "questoin"\?'),
        ({}, r"\(keys: none\)"),
        ({"question": " \n"}, r'"question" is empty; a question is a string that is not empty \(--question-field'),
        ({"question": None}, r'"question" is null; a question is a string'),
        ({"question": 7}, r'"question" is an integer; a question'),
        ({"question": ["Why?"]}, r'"question" is a list; a question'),
        ({"question": "?", "reference": True}, r'"reference" is a boolean; a reference is a string or a number'),
        ({"question": "?", "reference": ["a"]}, r'"reference" is a list; a .* \(--reference-field names its field\)'),
        ({"question": "?", "reference": {"a": 1}}, r'"reference" is an object'),
        ({"question": "?", "kind": 1.5}, r'"kind" is a number; it must be a string or an integer'),
        ({"question": "?", "id": False}, r'"id" is a boolean; it must be a string or an integer'),
        (
            {"question": "?", "id": "first"},
            r'the id "first" is also that of .*q\.jsonl:1; ids must differ \(--id-field',
        ),
    ],
)
def test_a_wrong_row_is_refused_with_its_place_and_the_way_out(tmp_path, row, message):
    path = write(tmp_path / "q.jsonl", {"question": "fine", "id": "first"}, row)
    with pytest.raises(
        DataError, match=rf"^{path}:2: {message}" if message.startswith('"') else rf"q.jsonl:2: .*{message}"
    ):
        load_questions(path)


def test_a_number_that_is_none_is_no_reference(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"question": ["?"], "reference": [math.nan]}), tmp_path / "q.parquet")
    with pytest.raises(DataError, match='"reference" is nan; a reference is a string or a number'):
        load_questions(tmp_path / "q.parquet")


def test_an_id_may_not_be_the_number_of_another_row(tmp_path):
    path = write(tmp_path / "q.jsonl", {"question": "a", "id": 1}, {"question": "b"})
    with pytest.raises(DataError, match=r':2: the id "1" is also that of .*:1'):
        load_questions(path)


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("q.jsonl", "", "is empty"),
        ("q.jsonl", "\n\n", "has no rows"),
        ("q.txt", "Why?", "unknown kind of file"),
        ("q.jsonl", '{"question": "a"}\n{"question": ', "q.jsonl:2"),
    ],
)
def test_a_file_without_questions_is_refused(tmp_path, name, contents, message):
    (tmp_path / name).write_text(contents)
    with pytest.raises(DataError, match=message):
        load_questions(tmp_path / name)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        load_questions(tmp_path / "none.jsonl")


def some(*references):
    return [Question(id=f"q{number}", text="?", reference=reference) for number, reference in enumerate(references)]


def test_missing_references_are_refused_only_where_the_reward_needs_them():
    questions = some("a", None, None, "b", None, None)
    check_questions(questions, needs_reference=False, crossover=True)
    message = (
        r"^4 of 6 questions have no reference \(q1, q2, q4, \.\.\.\), and the reward needs one; .*--reference-field, "
        r"or choose a reward that needs none: agreement, judge$"
    )
    with pytest.raises(DataError, match=message):
        check_questions(questions, needs_reference=True, crossover=False)
    with pytest.raises(DataError, match=r"^1 of 1 questions have no reference \(q0\),"):
        check_questions(some(None), needs_reference=True, crossover=False)


def test_one_question_is_not_enough_for_crossover():
    check_questions(some("a"), needs_reference=True, crossover=False)
    with pytest.raises(OptionError, match=r'there is one question \("q0"\), and a mutator needs a second one'):
        check_questions(some("a"), needs_reference=True, crossover=True)


def test_no_questions_and_equal_ids_are_refused():
    with pytest.raises(DataError, match="there are no questions"):
        check_questions([], needs_reference=False, crossover=False)
    with pytest.raises(DataError, match='two questions have the id "q0"; ids must differ'):
        check_questions(some("a") * 2, needs_reference=False, crossover=False)


@given(st.lists(any_question, max_size=3), st.lists(any_question, max_size=3))
def test_fingerprints_are_equal_exactly_if_the_questions_are(one, other):
    assert (questions_fingerprint(one) == questions_fingerprint(other)) == (one == other)
    assert questions_fingerprint(one) == questions_fingerprint(tuple(one))
