"""Prompts from rows, the journal that a run resumes from, and the files that are written from it."""

import json
import random
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import BrimError, DamagedError, DataError, MismatchError, OptionError
from brim.core.records import RecordFile, records_path
from brim.llm.answers.ask import ask_missing, servers_lost
from brim.llm.answers.journal import AnswerJournal
from brim.llm.answers.models import check_model
from brim.llm.answers.record import failed_path, finished, record_path, wrote
from brim.llm.answers.rows import read_input
from brim.llm.answers.template import TEXT_FIELDS, Prompts, Template
from brim.llm.answers.vectors import Judge, embed_missing, write_vectors
from brim.llm.answers.write import Lines, following, write_answers, write_failed
from brim.llm.call import Reply
from brim.llm.failures import BadReply, ModelMissing, Rejected, ServerLost, TimedOut

names = st.text(st.characters(blacklist_characters="{}", blacklist_categories=["Cs"]), min_size=1, max_size=5)
texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)


# Prompts.


@given(st.lists(st.tuples(st.booleans(), texts, names), max_size=6), st.data())
def test_a_filled_template_is_its_text_with_each_field_replaced_once(pieces, data):
    pieces = [*pieces, (True, "", "q")]
    row = {name: data.draw(texts) for is_field, _, name in pieces if is_field}
    written = "".join(
        f"{{{name}}}" if is_field else text.replace("{", "{{").replace("}", "}}") for is_field, text, name in pieces
    )
    filled = "".join(row[name] if is_field else text for is_field, text, name in pieces)
    assert Template(written).fill(row) == filled


def test_the_text_of_a_row_is_never_expanded():
    assert Template("{a} {{b}}").fill({"a": "{b} {{b}} {a}", "b": "secret"}) == "{b} {{b}} {a} {b}"


def test_values_that_are_not_strings_are_inserted_as_json():
    assert Template("{n} {flag} {list}").fill({"n": 3, "flag": True, "list": ["a", 1]}) == '3 true ["a",1]'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a { b", "has a single {; write {{"),
        ("a } b {x}", "has a single }; write }}"),
        ("a {} b", "a field without a name"),
        ("no field", "has no field, so all rows would get the same prompt"),
    ],
)
def test_a_template_that_cannot_work_is_refused(text, reason):
    with pytest.raises(OptionError, match=reason):
        Template(text)


def test_a_missing_field_names_the_nearest_one():
    with pytest.raises(DataError, match=r'"questoin" of the template is missing.*Did you mean "question"\?'):
        Template("{questoin}").fill({"id": 1, "question": "why"})
    with pytest.raises(DataError, match='"question" of the template is null'):
        Template("{question}").fill({"question": None})
    with pytest.raises(DataError, match="Literal braces are doubled"):
        Template('{"key": 1}').fill({})


def test_without_a_template_the_prompt_is_the_first_usual_field_that_a_row_has():
    user = {"role": "user", "content": "hi"}
    assert Prompts().messages({"prompt": "p", "text": "t"}) == ({"role": "user", "content": "p"},)
    assert Prompts().messages({"text": "t", "prompt": None}) == ({"role": "user", "content": "t"},)
    assert Prompts(system="be brief").messages({"messages": [user], "prompt": "p"}) == (
        {"role": "system", "content": "be brief"},
        user,
    )
    assert Prompts(field="q").messages({"q": "p", "text": "t"}) == ({"role": "user", "content": "p"},)
    assert Prompts(usual=TEXT_FIELDS).text({"prompt": "p", "text": "t"}) == "t"


def test_a_row_without_a_prompt_is_an_error_with_its_place(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"question": "b"}\n')
    with pytest.raises(DataError, match=r"rows.jsonl:3: there is no prompt in this row \(fields: question\)"):
        read_input(path, check=Prompts().check)
    with pytest.raises(DataError, match=r'rows.jsonl:1: "question" is missing'):
        read_input(path, check=Prompts(field="question").check)
    path.write_text('{"prompt": 3}\n')
    with pytest.raises(DataError, match=r'rows.jsonl:1: "prompt" is an integer; a prompt is a string or a list of'):
        read_input(path, check=Prompts().check)


def test_a_field_that_the_answer_would_replace_is_an_error(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b", "response": "mine"}\n')
    with pytest.raises(DataError, match=r'rows.jsonl:2: the row has a field "response" already'):
        read_input(path, check=Prompts().check, reserved=Lines().added)


# A run without servers: the outcome of a question is a function of its row.


def rows_of(path, count=6):
    path.write_text("".join(json.dumps({"id": f"r{at}", "prompt": f"p{at}"}) + "\n" for at in range(count)))
    return read_input(path, check=Prompts().check)


def result_of(item):
    row, sample = item
    return Reply(text=f"answer {row['prompt']} {sample}", model="m", completion_tokens=3, server="s", latency=0.1)


def in_the_order(shuffled, result=result_of, stop=None):
    """Answer questions in a random order, and stop after some of them."""

    def ready(items):
        listed = list(enumerate(items))
        shuffled.shuffle(listed)
        for count, (index, item) in enumerate(listed):
            if count == stop:
                return
            yield index, result(item)

    return ready


def question(row, sample):
    return row, sample


def run(rows, output, *, samples=1, ready=None, options=None, order="input", lines=None):
    """Ask for what is missing and write the files, as `brim llm map` does. Returns the number of questions asked."""
    journal = AnswerJournal(output, rows=rows.rows, samples=samples)
    try:
        journal.recover(options or {"model": "m"})
        asked = sum(1 for _ in ask_missing(rows, journal, ready or in_the_order(random.Random(0)), question))
        write_answers(output, rows, journal, lines or Lines(samples=samples), order=order)
        write_failed(output, rows, journal)
    except BaseException:
        journal.close(keep=True)
        raise
    journal.close(keep=journal.answered < journal.questions)
    return asked


def expected(rows, samples=1):
    """The output by its definition: each row with each of its answers, in order."""
    lines = []
    for _, row in rows:
        for sample in range(samples):
            line = {**row, "response": result_of((row, sample)).text}
            lines.append(line if samples == 1 else {**line, "sample": sample})
    return lines


def lines_of(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@given(st.integers(1, 12), st.integers(1, 3), st.lists(st.integers(0, 8), max_size=5), st.randoms())
@settings(max_examples=40, deadline=None)
def test_stopped_at_any_moments_and_resumed_the_output_is_the_same_and_nothing_is_asked_twice(
    tmp_path_factory, count, samples, stops, shuffled
):
    folder = tmp_path_factory.mktemp("run")
    rows = rows_of(folder / "rows.jsonl", count)
    output = folder / "out.jsonl"
    asked = 0
    for stop in stops:
        asked += run(rows, output, samples=samples, ready=in_the_order(shuffled, stop=stop))
        if asked == count * samples:
            break
    else:
        asked += run(rows, output, samples=samples, ready=in_the_order(shuffled))
    assert asked == count * samples
    assert lines_of(output) == expected(rows, samples)
    assert not records_path(output).exists()


def test_a_journal_cut_at_any_byte_resumes_from_its_whole_records(tmp_path):
    rows = rows_of(tmp_path / "rows.jsonl", 4)
    output = tmp_path / "out.jsonl"
    run(rows, output)
    whole = output.read_bytes()
    run(rows, tmp_path / "cut.jsonl", ready=in_the_order(random.Random(1), stop=3))
    journal = records_path(tmp_path / "cut.jsonl").read_bytes()
    ends = list(record_ends(journal))
    for at in range(len(journal) + 1):
        records_path(output).write_bytes(journal[:at])
        recovered = AnswerJournal(output, rows=rows.rows)
        assert recovered.recover({"model": "m"}) == sum(end <= at for end in ends[1:])  # the first one is the header
        recovered.close(keep=True)
        if at % 200 == 0:
            run(rows, output)
            assert output.read_bytes() == whole
            assert not records_path(output).exists()


def record_ends(journal):
    """Where the records of a journal end, by its definition."""
    at = 0
    while at < len(journal):
        line, _, _ = journal[at:].partition(b"\n")
        at += len(line) + 1 + int(line.split()[1])
        yield at


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_journal_never_changes_the_output(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("run")
    rows = rows_of(folder / "rows.jsonl", 4)
    output = folder / "out.jsonl"
    run(rows, output, ready=in_the_order(random.Random(1), stop=3))
    journal = bytearray(records_path(output).read_bytes())
    journal[data.draw(st.integers(0, len(journal) - 1))] ^= 1
    records_path(output).write_bytes(journal)
    run(rows, output)
    assert lines_of(output) == expected(rows)


def test_a_record_that_was_cut_off_is_truncated_and_counted(tmp_path):
    file = RecordFile(tmp_path / "out", kinds=(b"A",))
    offsets = [file.append(b"A", data) for data in (b"one", b"", b"three\n")]
    file.close(keep=True)
    with open(records_path(tmp_path / "out"), "ab") as torn:
        torn.write(b"A 12 0123")
    file = RecordFile(tmp_path / "out", kinds=(b"A",))
    assert [(record.data, record.offset) for record in file.recover()] == list(
        zip((b"one", b"", b"three\n"), offsets, strict=True)
    )
    assert file.discarded == 9
    assert not file.path.read_bytes().endswith(b"A 12 0123")
    after = file.append(b"A", b"four")
    assert file.read(offsets[2]).data == b"three\n"
    assert file.read(after).data == b"four"
    file.close(keep=False)
    assert not records_path(tmp_path / "out").exists()


def test_failed_rows_are_listed_and_asked_again(tmp_path):
    rows = rows_of(tmp_path / "rows.jsonl")
    output = tmp_path / "out.jsonl"

    def result(item):
        return (
            TimedOut("too late", server="s", attempts=2, seconds=1.5) if item[0]["id"] in "r1 r4" else result_of(item)
        )

    assert run(rows, output, ready=in_the_order(random.Random(2), result)) == 6
    assert [line["id"] for line in lines_of(output)] == ["r0", "r2", "r3", "r5"]
    failed = lines_of(failed_path(output))
    assert [(line["where"], line["row"], line["sample"], line["fields"]["id"]) for line in failed] == [
        (f"{tmp_path}/rows.jsonl:2", 1, 0, "r1"),
        (f"{tmp_path}/rows.jsonl:5", 4, 0, "r4"),
    ]
    assert failed[0]["failure"] == TimedOut("too late", server="s", attempts=2, seconds=1.5).to_dict()
    assert run(rows, output) == 2
    assert lines_of(output) == expected(rows)
    assert not failed_path(output).exists()


def test_the_place_of_a_failed_row_counts_blank_lines(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n\n\n{"prompt": " "}\n')
    rows = read_input(path, check=Prompts().check)
    assert rows.rows == 2
    run(rows, tmp_path / "out.jsonl", ready=in_the_order(random.Random(0), lambda item: Rejected("no")))
    assert [line["where"][-5:] for line in lines_of(failed_path(tmp_path / "out.jsonl"))] == ["onl:1", "onl:4"]


def test_an_empty_prompt_is_a_failed_row_and_the_others_are_answered(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": " "}\n{"prompt": "a"}\n{"prompt": ""}\n')
    rows = read_input(path, check=Prompts().check)
    journal = AnswerJournal(tmp_path / "out.jsonl", rows=3)
    journal.recover({})

    def asked(row, sample):
        return Prompts().messages(row) and (row, sample)

    outcomes = list(ask_missing(rows, journal, in_the_order(random.Random(0)), asked))
    assert sorted((outcome.row, type(outcome.result).__name__) for outcome in outcomes) == [
        (0, "Rejected"),
        (1, "Reply"),
        (2, "Rejected"),
    ]
    assert (journal.answered, journal.failed) == (1, 2)
    assert journal.failure(0)["reason"] == "the prompt is empty"
    journal.close(keep=False)


def test_in_the_order_of_arrival_the_output_grows_while_the_run_goes_on(tmp_path):
    rows = rows_of(tmp_path / "rows.jsonl")
    output = tmp_path / "out.jsonl"
    journal = AnswerJournal(output, rows=rows.rows)
    journal.recover({})
    came = []
    for stop in (2, None):  # the second part finds the first one in the journal
        with following(output, rows, journal, Lines()) as append:
            assert [line["id"] for line in lines_of(output)] == came
            for outcome in ask_missing(rows, journal, in_the_order(random.Random(3), stop=stop), question):
                append(outcome)
                came.append(outcome.fields["id"])
                assert [line["id"] for line in lines_of(output)] == came
        output.write_bytes(output.read_bytes() + b'{"torn')
    write_answers(output, rows, journal, Lines(), order="ready")
    assert [line["id"] for line in lines_of(output)] == came
    assert came != sorted(came)
    journal.close(keep=False)


def test_details_and_the_name_of_the_answer_are_as_asked_for(tmp_path):
    rows = rows_of(tmp_path / "rows.jsonl", 1)
    run(rows, tmp_path / "out.jsonl", lines=Lines(response_field="said", details=True))
    (line,) = lines_of(tmp_path / "out.jsonl")
    assert line["said"] == "answer p0 0"
    assert line["details"] == {
        "model": "m",
        "finish_reason": None,
        "prompt_tokens": None,
        "completion_tokens": 3,
        "latency": 0.1,
        "server": "s",
        "attempts": 0,
        "cached": False,
    }


def test_a_journal_of_other_options_is_refused_by_name_and_discarded_only_by_force(tmp_path):
    rows = rows_of(tmp_path / "rows.jsonl")
    output = tmp_path / "out.jsonl"
    run(
        rows,
        output,
        options={"model": "a", "template": "x\ny", "order": 1},
        ready=in_the_order(random.Random(0), stop=2),
    )
    journal = AnswerJournal(output, rows=rows.rows)
    after = {"model": "b", "template": "x", "order": 2}
    with pytest.raises(MismatchError, match=r"resumed: model \(a -> b\), template \(x y -> x\); .* --force to discard"):
        journal.recover(after, may_change=("order",))
    journal.close(keep=True)
    journal = AnswerJournal(output, rows=rows.rows)
    assert journal.recover({"model": "a", "template": "x\ny", "order": 2}, may_change=("order",)) == 2
    journal.close(keep=True)
    journal = AnswerJournal(output, rows=rows.rows)
    assert journal.recover(after, force=True) == 0
    journal.close(keep=True)
    assert not records_path(output).exists()  # nothing in it to resume from


def test_a_journal_knows_whether_a_run_was_killed_while_it_wrote_the_output(tmp_path):
    output = tmp_path / "out.jsonl"
    for noted in ([], [True], [True, False]):
        journal = AnswerJournal(output, rows=2)
        journal.recover({"order": 1}, may_change=("order",))
        journal.append(0, 0, Reply(text="a"))
        for writing in noted:
            journal.note_writing(writing)
        journal.close(keep=True)
        journal = AnswerJournal(output, rows=2)
        assert journal.recover({"order": 2}, may_change=("order",)) == 1
        assert journal.writing is (noted == [True])
        journal.close(keep=False)


@pytest.mark.parametrize("field", ["", "sample", "details"])
def test_the_answer_needs_a_field_of_its_own(field):
    with pytest.raises(OptionError, match="response_field is "):
        Lines(response_field=field, samples=2, details=True)
    if field:
        assert Lines(response_field=field).added == (field,)


def test_a_journal_of_something_else_is_refused(tmp_path):
    file = RecordFile(tmp_path / "out.jsonl", kinds=(b"H",))
    file.append(b"H", b'{"format": "brim.llm-answers/9"}')
    file.close(keep=True)
    journal = AnswerJournal(tmp_path / "out.jsonl", rows=1)
    with pytest.raises(
        DamagedError, match=r"is of the format 'brim.llm-answers/9', this brim reads brim.llm-answers/1"
    ):
        journal.recover({}, force=True)
    journal.close(keep=True)


def test_a_journal_is_readable_by_its_owner_only_and_belongs_to_one_run(tmp_path):
    journal = AnswerJournal(tmp_path / "out.jsonl", rows=1)
    journal.recover({})
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600
    with pytest.raises(BrimError, match="another process is writing"):
        AnswerJournal(tmp_path / "out.jsonl", rows=1)
    journal.close(keep=True)


def test_a_run_stops_where_no_other_question_can_fare_better(tmp_path):
    rows = rows_of(tmp_path / "rows.jsonl")

    def asked_before(failure, *, after=0, lost=lambda failure: False):
        results = iter([*("ok" for _ in range(after)), *(failure for _ in range(9))])

        def result(item):
            outcome = next(results)
            return result_of(item) if outcome == "ok" else outcome

        journal = AnswerJournal(tmp_path / "out.jsonl", rows=rows.rows)
        journal.recover({})
        try:
            return len(list(ask_missing(rows, journal, in_the_order(random.Random(0), result), question, lost=lost)))
        except type(failure):
            return None
        finally:
            assert journal.answered == after
            journal.close(keep=False)

    assert asked_before(ModelMissing("no model")) is None
    assert asked_before(Rejected("key", status=401)) is None
    assert asked_before(Rejected("key", status=401), after=1) == 6
    assert asked_before(Rejected("too long", status=400)) == 6
    assert asked_before(ServerLost("gone"), after=2) == 6
    assert asked_before(ServerLost("gone"), after=2, lost=lambda failure: True) is None


def test_servers_are_lost_if_none_works_and_a_call_was_given_up_early():
    class Stats:
        def __init__(self, *states):
            self.servers = [type("Server", (), {"state": state}) for state in states]

    def lost(failure, *states):
        return servers_lost(lambda: Stats(*states), attempts=8)(failure)

    assert lost(ServerLost("gone", attempts=2), "open", "half-open")
    assert not lost(ServerLost("gone", attempts=2), "open", "closed")
    assert not lost(ServerLost("gone", attempts=8), "open", "open")
    assert not lost(Rejected("no", attempts=1), "open")


def test_a_model_that_no_server_has_names_the_nearest_ones():
    failure = ServerLost("refused", server="b")
    assert check_model({"a": ["llama3:latest"], "b": failure}, "llama3") == [failure]
    assert check_model({"a": [], "b": ["x"]}, "llama3") == []
    with pytest.raises(
        ModelMissing, match=r"no server has the model 'lama3' \(models: llama3, qwen\). Did you mean llama3"
    ):
        check_model({"a": ["llama3"], "b": ["qwen"]}, "lama3")
    with pytest.raises(ServerLost, match="refused"):
        check_model({"b": failure}, "llama3")


def test_a_record_without_its_output_or_a_changed_output_is_not_ours(tmp_path):
    output = tmp_path / "out.jsonl"
    assert not wrote(output)
    output.write_text("mine\n")
    record_path(output).write_text('{"format": "other"}')
    assert not wrote(output)
    assert finished(output, {}, force=False) is None
    assert record_path(Path("v.npy")).name == "v.npy.run.json"


# Vectors.


class Neighbours:
    """An embedder whose vectors depend on all texts of a group, as those of real models do in their last bits."""

    name = "neighbours"
    dim = 2

    def encode(self, texts):
        return np.array([[len(texts), hash(text) % 1000] for text in texts], np.float32)


def test_a_model_in_this_process_gives_the_same_bytes_after_any_stop(tmp_path, monkeypatch):
    monkeypatch.setattr("brim.llm.answers.vectors.GROUP", 4)
    rows = rows_of(tmp_path / "rows.jsonl", 10)
    prompts = Prompts(usual=TEXT_FIELDS)

    def embed(output, stop=None):
        journal = AnswerJournal(output, rows=rows.rows)
        journal.recover({})
        for count, _ in enumerate(embed_missing(rows, journal, prompts, Neighbours()), 1):
            if count == stop:
                break
        if stop is None:
            write_vectors(output, rows, journal)
        journal.close(keep=stop is not None)
        return None if stop else output.read_bytes()

    whole = embed(tmp_path / "whole.npy")
    assert np.load(tmp_path / "whole.npy")[:, 0].tolist() == [4] * 8 + [2] * 2
    for stop in range(1, 10):
        output = tmp_path / f"{stop}.npy"
        embed(output, stop)
        assert embed(output) == whole


def test_vectors_are_written_in_order_and_missing_ones_are_nan_or_null(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = rows_of(tmp_path / "rows.jsonl", 3)
    for name in ("v.npy", "v.parquet"):
        journal = AnswerJournal(tmp_path / name, rows=3)
        journal.recover({})
        journal.append(2, 0, Reply(vector=np.array([5, 6], np.float32)))
        journal.append(0, 0, Reply(vector=np.array([1, 2], np.float32)))
        journal.append(1, 0, Rejected("no"))
        write_vectors(tmp_path / name, rows, journal)
        journal.close(keep=False)
    found = np.load(tmp_path / "v.npy")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [[1, 2], [np.nan, np.nan], [5, 6]])
    table = parquet.read_table(tmp_path / "v.parquet").to_pydict()
    assert table == {"id": ["r0", "r1", "r2"], "vector": [[1, 2], None, [5, 6]]}


def test_a_vector_of_another_length_or_without_numbers_is_a_bad_reply():
    judge = Judge(None)
    good = Reply(vector=np.ones(3, np.float32))
    assert judge(good) is good
    assert isinstance(judge(Reply(vector=np.ones(4, np.float32))), BadReply)
    assert isinstance(judge(Reply(vector=np.array([1, np.nan, 1], np.float32))), BadReply)
    assert isinstance(judge(Reply(text="words")), BadReply)
