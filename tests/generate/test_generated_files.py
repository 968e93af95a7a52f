"""The files of `brim generate`: lines, journals, shares of ranks, fingerprints of weights. Nothing here needs torch."""

import json
import struct
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from brim.core.errors import BrimError, MismatchError, OptionError
from brim.core.records import records_path
from brim.generate.output.journal import ResponseJournal
from brim.generate.output.lines import Totals, fields_of, to_json, to_line
from brim.generate.output.prompts import Prompts
from brim.generate.output.share import AllBut, share_of
from brim.generate.output.weights import weights_fingerprint
from brim.generate.output.write import write_responses
from brim.generate.prompts.example import Example
from brim.generate.rollouts import Response
from brim.llm.answers.write import write_failed
from brim.llm.failures import TimedOut

OPTIONS = {"model": "tiny", "seed": 0, "logprobs": False}
OTHER = {**OPTIONS, "seed": 1}


def response_of(prompt=0, sample=0, size=3, **more):
    numbers = np.random.default_rng([prompt, sample]).standard_normal((3, size)).astype(np.float32)
    values = {
        "text": f"response {sample} to {prompt}",
        "finish_reason": "stop",
        "token_ids": np.arange(size, dtype=np.int32),
        "logprobs": numbers[0],
        "sampling_logprobs": numbers[1],
        "entropies": numbers[2],
    }
    return Response(prompt=prompt, sample=sample, **(values | more))


def prompts_of(count=3, **options):
    return Prompts([Example(f"{at} + 1 =", f"{at} + 1 =", str(at + 1), stop=("\n",)) for at in range(count)], **options)


# Lines.

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(arrays.arrays(np.float32, st.integers(0, 20), elements=finite))
def test_numbers_read_back_as_the_same_float32(column):
    line = to_json({"logprobs": column})
    read = np.array(json.loads(line)["logprobs"], np.float32)
    assert read.tobytes() == column.tobytes()
    # Through the journal, which is parsed and written again.
    assert np.array(json.loads(to_json(orjson.loads(line)))["logprobs"], np.float32).tobytes() == column.tobytes()


def test_numbers_are_written_in_as_few_digits_as_float32_needs():
    assert to_json({"logprobs": np.array([0.1, -5.7163396, 0], np.float32)}) == b'{"logprobs":[0.1,-5.7163396,0.0]}'


def test_a_line_has_its_fields_in_order_and_those_of_tokens_only_if_asked_for():
    fields = fields_of(response_of(), 1.0)
    about = {"id": "a", "sample": 0, "prompt": "1 + 1 =", "answer": "2", "prompt_ids": np.array([7, 8], np.int32)}
    line = json.loads(to_line(fields, **about))
    names = ["id", "sample", "prompt", "response", "finish_reason", "tokens", "logprob", "entropy", "answer", "score"]
    assert list(line) == names
    assert line["tokens"] == 3
    assert line["logprob"] == pytest.approx(float(fields["logprobs"].sum()), rel=1e-6)
    assert line["entropy"] == pytest.approx(float(fields["entropies"].mean()), rel=1e-6)
    long = json.loads(to_line(fields, **about, per_token=True))
    assert list(long) == [*names, "prompt_ids", "token_ids", "logprobs", "sampling_logprobs", "entropies"]
    assert long["prompt_ids"] == [7, 8]


def test_what_is_not_known_is_absent():
    silent = dict.fromkeys(("token_ids", "logprobs", "sampling_logprobs", "entropies"))
    fields = fields_of(response_of(**silent), None)
    line = json.loads(to_line(fields, id="a", sample=0, prompt="x", answer=None, per_token=True))
    assert list(line) == ["id", "sample", "prompt", "response", "finish_reason"]
    assert fields_of(response_of(**(silent | {"logprobs": np.zeros(5, np.float32)})), None)["tokens"] == 5
    assert "entropy" not in fields_of(response_of(size=0), None)


def test_totals_are_means_over_what_is_known():
    totals = Totals()
    for size, score in ((2, 1.0), (6, 0.0), (4, None), (4, 0.5)):
        totals.add(fields_of(response_of(size=size, entropies=np.full(size, size, np.float32)), score))
    assert totals.mean_length == 4
    assert totals.mean_entropy == pytest.approx((2 * 2 + 6 * 6 + 4 * 4 + 4 * 4) / 16)
    assert (totals.checked, totals.pass_rate, totals.mean_score) == (3, pytest.approx(1 / 3), 0.5)
    empty = Totals().to_dict()
    assert empty["mean_length"] is empty["pass_rate"] is empty["mean_score"] is None


# Prompts.


def test_a_prompt_is_sent_as_it_is_or_as_a_conversation():
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    examples = [Example("2 + 2 =", "2 + 2 =", None), Example("hi", "hi", None, {"messages": messages})]
    assert Prompts(examples).sent == ["2 + 2 =", messages]
    assert Prompts(examples, chat=True).sent == [[{"role": "user", "content": "2 + 2 ="}], messages]


def test_ids_are_those_of_the_rows_or_of_the_content():
    prompts = Prompts([Example("a", "a", None, {"id": "mine"}), Example("a", "a", None)])
    assert prompts.id(0) == "mine"
    assert prompts.id(1) == prompts.examples[1].id


def test_everything_that_a_line_depends_on_changes_the_fingerprint():
    def of(text="a", answer="1", stop=("x",), chat=False, **meta):
        return Prompts([Example(text, text, answer, meta, stop)], chat=chat).fingerprint

    found = [of(), of(text="b"), of(answer="2"), of(answer=None), of(stop=()), of(chat=True), of(id="mine")]
    assert len(set(found)) == len(found)
    assert of() == of()


def test_stops_are_those_of_all_prompts():
    examples = [Example("a", "a", None, stop=("x", "y")), Example("b", "b", None, stop=("y", "z"))]
    assert Prompts(examples).stop == ("x", "y", "z")


# The journal.


def journal_of(output, *, prompts=3, samples=2, options=OPTIONS, rank=0, **how):
    journal = ResponseJournal(output, prompts=prompts, samples=samples, rank=rank)
    try:
        journal.recover(options, may_change=("logprobs",), **how)
    except BaseException:
        journal.close(keep=True)
        raise
    return journal


def fill(journal, *pairs):
    for prompt, sample in pairs:
        journal.append_fields(prompt, sample, fields_of(response_of(prompt, sample), None))


def test_a_journal_that_is_cut_anywhere_keeps_every_whole_response(tmp_path):
    output = tmp_path / "out.jsonl"
    journal = journal_of(output)
    ends = []
    for pair in ((2, 1), (0, 0), (1, 1)):
        fill(journal, pair)
        ends.append(records_path(output).stat().st_size)
    expected = journal.fields(0, 0)
    journal.close(keep=True)
    whole = records_path(output).read_bytes()
    for end in range(0, len(whole), 7):
        records_path(output).write_bytes(whole[:end])
        journal = journal_of(output)
        assert journal.answered == sum(end >= at for at in ends)
        if end >= ends[1]:
            assert journal.fields(0, 0) == expected
            assert not journal.missing[0, 0]
        journal.close(keep=True)


def test_what_ranks_wrote_is_taken_over_whatever_their_number(tmp_path):
    output = tmp_path / "out[1].jsonl"  # a name that a pattern would read differently
    main = journal_of(output)
    fill(main, (0, 0))
    for rank, pairs in ((1, [(1, 0), (1, 1)]), (11, [(2, 1)])):
        other = journal_of(output, rank=rank)
        fill(other, *pairs)
        other.close(keep=True)
    assert main.take_over(OPTIONS) == 3
    assert main.missing.tolist() == [[False, True], [False, False], [True, False]]
    assert main.fields(1, 1)["response"] == "response 1 to 1"
    main.close(keep=True)
    assert [path.name for path in tmp_path.iterdir()] == [".out[1].jsonl.journal"]
    again = journal_of(output)
    assert again.answered == 4
    again.close(keep=False)


def test_a_kill_while_journals_are_taken_over_loses_nothing(tmp_path, monkeypatch):
    output = tmp_path / "out.jsonl"
    other = journal_of(output, rank=1)
    fill(other, (0, 0), (1, 0), (2, 0))
    other.close(keep=True)

    class KilledError(Exception):
        pass

    main = journal_of(output)
    append = ResponseJournal._append
    left = [2]

    def dying(self, *record):
        if not left[0]:
            raise KilledError
        left[0] -= 1
        append(self, *record)

    with monkeypatch.context() as patched:
        patched.setattr(ResponseJournal, "_append", dying)
        with pytest.raises(KilledError):
            main.take_over(OPTIONS)
    main.close(keep=True)
    main = journal_of(output)
    assert main.answered == 2
    main.take_over(OPTIONS)
    assert main.answered == 3
    main.close(keep=False)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_still_writes_is_not_taken_over(tmp_path):
    output = tmp_path / "out.jsonl"
    main, other = journal_of(output), journal_of(output, rank=1)
    with pytest.raises(BrimError, match=r"another process is writing .*out.jsonl.rank1"):
        main.take_over(OPTIONS)
    main.close(keep=True)
    other.close(keep=True)


def test_other_options_are_refused_by_name_unless_forced(tmp_path):
    output = tmp_path / "out.jsonl"
    for rank in (0, 1):
        journal = journal_of(output, rank=rank)
        fill(journal, (rank, 0))
        journal.close(keep=True)
    with pytest.raises(MismatchError, match=r"seed \(0 -> 1\).*--force to discard"):
        journal_of(output, options=OTHER)
    may_change = journal_of(output, options={**OPTIONS, "logprobs": True})
    assert may_change.answered == 1
    may_change.close(keep=True)
    forced = journal_of(output, options=OTHER, force=True)
    assert forced.answered == 0
    with pytest.raises(MismatchError, match=r"seed \(0 -> 1\)"):
        forced.take_over(OTHER)
    assert forced.take_over(OTHER, force=True) == 0
    forced.close(keep=True)
    assert list(tmp_path.iterdir()) == []


# The output.


def test_lines_are_in_the_order_of_the_prompts_whatever_ended_first(tmp_path):
    written = []
    for order in (1, -1):
        output = tmp_path / f"out{order}.jsonl"
        journal = journal_of(output)
        fill(journal, *[(prompt, sample) for prompt in range(3) for sample in range(2)][::order])
        totals = write_responses(output, prompts_of(), journal)
        journal.close(keep=False)
        assert totals.responses == 6
        written.append(output.read_bytes())
    assert written[0] == written[1]
    lines = [json.loads(line) for line in written[0].splitlines()]
    pairs = [(f"{at} + 1 =", sample) for at in range(3) for sample in range(2)]
    assert [(line["prompt"], line["sample"]) for line in lines] == pairs


def test_responses_that_failed_are_listed_and_the_list_is_removed_when_there_are_none(tmp_path):
    output = tmp_path / "out.jsonl"
    journal = journal_of(output)
    fill(journal, *((prompt, sample) for prompt in range(3) for sample in range(2) if (prompt, sample) != (1, 1)))
    journal.append(1, 1, TimedOut("no answer in 5 s", server="http://a"))
    assert write_responses(output, prompts_of(), journal).responses == 5
    path = write_failed(output, prompts_of(), journal)
    (line,) = [json.loads(line) for line in Path(path).read_bytes().splitlines()]
    assert (line["row"], line["sample"], line["failure"]["type"]) == (1, 1, "TimedOut")
    assert line["fields"]["prompt"] == "1 + 1 ="
    fill(journal, (1, 1))
    assert write_failed(output, prompts_of(), journal) is None
    assert not path.exists()
    journal.close(keep=False)


# Ranks.

missings = arrays.arrays(np.bool_, st.tuples(st.integers(1, 30), st.integers(1, 5)))


@given(missings, st.integers(1, 6), st.data())
def test_every_missing_response_belongs_to_exactly_one_rank(missing, ranks, data):
    lengths = data.draw(st.lists(st.integers(1, 500), min_size=len(missing), max_size=len(missing)))
    shares = [share_of(missing, lengths, rank=rank, world_size=ranks) for rank in range(ranks)]
    np.testing.assert_array_equal(np.sum(shares, axis=0), missing)
    for share in shares:  # a prompt is read by one rank
        whole = share.any(axis=1)
        np.testing.assert_array_equal(share[whole], missing[whole])


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 6))
def test_ranks_have_nearly_the_same_number_of_prompts_and_of_tokens(lengths, ranks):
    missing = np.ones((len(lengths), 2), np.bool_)
    shares = [share_of(missing, lengths, rank=rank, world_size=ranks)[:, 0] for rank in range(ranks)]
    counts = [int(share.sum()) for share in shares]
    tokens = [int(np.array(lengths)[share].sum()) for share in shares]
    assert max(counts) - min(counts) <= 1
    assert max(tokens) - min(tokens) <= 2 * max(lengths)


@given(missings)
def test_all_but_some_is_the_rest(wanted):
    skip = AllBut(wanted)
    assert [[(b, g) in skip for g in range(wanted.shape[1])] for b in range(wanted.shape[0])] == (~wanted).tolist()


# Weights.


def write_weights(folder, tensors, config="{}"):
    """Write a model directory with one file of safetensors."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config)
    header, data = {}, b""
    for name, values in tensors.items():
        raw = np.asarray(values, np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return str(folder)


def test_other_weights_have_another_fingerprint(tmp_path):
    values = {"a": np.arange(1000.0), "b": np.arange(5.0), "empty": []}
    base = weights_fingerprint(write_weights(tmp_path / "m", values))
    assert base == weights_fingerprint(write_weights(tmp_path / "copy", values))
    changed = [
        {**values, "a": values["a"] + 1e-3},
        {**values, "b": [0, 1, 2, 3, 5]},
        {"a": values["a"], "c": values["b"], "empty": []},
    ]
    found = {weights_fingerprint(write_weights(tmp_path / "m", tensors)) for tensors in changed}
    assert len(found | {base}) == 4
    assert weights_fingerprint(write_weights(tmp_path / "m", values, config='{"eos_token_id": 7}')) != base
    assert weights_fingerprint("tiny") is None


@pytest.mark.parametrize(
    "data", [b"", b"\x05", struct.pack("<Q", 9) + b"not json!", struct.pack("<Q", 8) + b'{"a": 5}']
)
def test_damaged_weights_are_refused_in_one_line(tmp_path, data):
    model = write_weights(tmp_path / "m", {"a": [1.0]})
    (tmp_path / "m" / "model.safetensors").write_bytes(data)
    with pytest.raises(OptionError, match="cannot be loaded: its weights are not readable") as caught:
        weights_fingerprint(model)
    assert "\n" not in str(caught.value)
