"""Data sets of prompts: examples, the registry, draws, readers, and how responses are scored."""

import inspect
import json
import os
import random
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import DataError, MissingExtraError, OptionError
from brim.generate.prompts import arithmetic, reasoning
from brim.generate.prompts.check import parse_number, score_response
from brim.generate.prompts.example import SPLITS, Example
from brim.generate.prompts.registry import DATASET_REGISTRY, build_dataset, sample_examples
from brim.generate.prompts.template import ANSWER_STOP

KNOWN_ID = "fed2106b0f0dc046"  # of the example below, computed once
SIMPLE = Example("1 + 1 = 2", "1 + 1 =", "2")
TAGGED = Example("", "?", "42", stop=ANSWER_STOP)
PLAIN = Example("", "?", "42", stop=("\n",))


def numbered(count):
    return lambda split="train": [Example(f"q{k}", f"q{k}", str(k), {"split": split}) for k in range(count)]


@pytest.fixture
def registered(monkeypatch):
    """A function that registers a builder for the length of a test."""

    def register(builder, name="mine"):
        monkeypatch.setitem(DATASET_REGISTRY, name, builder)
        return name

    return register


@pytest.fixture
def gym():
    return pytest.importorskip("reasoning_gym", reason="an optional extra")


def message(error, *parts):
    """Check that an error is one line with all the parts."""
    text = str(error.value)
    assert "\n" not in text
    for part in parts:
        assert part in text, (part, text)
    return text


# Examples


def test_an_id_is_a_hash_of_question_and_answer():
    assert SIMPLE.id == KNOWN_ID
    assert Example("other", "1 + 1 =", "2", {"split": "test"}, ("x",)).id == KNOWN_ID
    assert len({SIMPLE.id, Example("", "1 + 1 =", "3").id, Example("", "1 + 1 =", None).id}) == 3


def test_ids_and_draws_are_the_same_in_every_process_and_nothing_heavy_is_imported():
    program = """
import sys, json
from brim.generate.prompts.registry import DATASET_REGISTRY, sample_examples
early = [name for name in sys.modules if name.startswith("brim.generate.prompts.")]
ids = [example.id for example in sample_examples("arithmetic", "test", 5, seed=7)]
late = [name for name in ("torch", "reasoning_gym", "pyarrow") if name in sys.modules]
print(json.dumps([ids, early, late]))
"""
    expected = [example.id for example in sample_examples("arithmetic", "test", 5, seed=7)]
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    ids, early, late = json.loads(done.stdout)
    assert ids == expected
    assert sorted(early) == ["brim.generate.prompts.example", "brim.generate.prompts.registry"]
    assert late == []


def test_asdict_puts_the_entries_of_meta_beside_the_fields():
    example = Example("t", "q", "a", {"split": "train", "index": 3}, ("\n",))
    assert example.asdict() == {
        "text": "t",
        "question": "q",
        "answer": "a",
        "stop": ("\n",),
        "split": "train",
        "index": 3,
    }


def test_meta_cannot_hide_a_field():
    with pytest.raises(DataError) as error:
        Example("t", "q", "a", {"answer": "b"})
    message(error, "answer")


def test_an_example_can_be_a_member_of_a_set_whatever_its_meta_is():
    assert len({Example("t", "q", "a", {"list": [1]}), Example("t", "q", "a", {"list": [1]})}) == 1


# The registry


def test_a_builder_of_the_user_is_found_by_its_name_and_gets_the_split(registered):
    name = registered(numbered(3))
    assert [example.question for example in build_dataset(name)] == ["q0", "q1", "q2"]
    assert build_dataset(name, "odd")[0].meta["split"] == "odd"


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(OptionError) as error:
        build_dataset("gsm8k_r1_templat")
    message(error, "'gsm8k_r1_templat'", *DATASET_REGISTRY, "reasoning-gym:TASK", ".jsonl")
    assert str(error.value).endswith('Did you mean "gsm8k_r1_template"?')


@pytest.mark.parametrize(
    ("result", "parts"),
    [
        (None, ["None"]),
        (7, ["int", "7"]),
        ("questions", ["str", "questions"]),
        (np.zeros((3, 3)), ["ndarray"]),
        ({"a": 1}, ["dict"]),
        ([], ["'train'", "no examples"]),
        ([SIMPLE, "question"], ["item 1", "str", "'question'"]),
        ([SIMPLE, Example("", " \n", "1")], ["item 1", "no prompt", "' \\n'"]),
        ([Example("", None, "1")], ["item 0", "no prompt", "None"]),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("draw", [build_dataset, lambda name: sample_examples(name, num_prompts=1, seed=0)])
def test_a_builder_that_returns_rubbish_is_refused(registered, result, parts, draw):
    name = registered(lambda split="train": result)
    with pytest.raises(DataError) as error:
        draw(name)
    message(error, name, *parts)


@pytest.mark.parametrize("seed", range(5))
def test_rubbish_in_a_list_is_found_whether_or_not_it_is_drawn(registered, seed):
    name = registered(lambda split="train": [SIMPLE, SIMPLE, SIMPLE, "question"])
    with pytest.raises(DataError, match="item 3"):
        sample_examples(name, num_prompts=1, seed=seed)


# Draws


@given(count=st.integers(1, 30), fewer=st.integers(1, 30), seed=st.integers(0, 2**64), replace=st.booleans())
def test_the_examples_that_are_drawn_first_do_not_depend_on_how_many_are_drawn(count, fewer, seed, replace):
    more = 30 if replace else count
    fewer = min(fewer, more)
    DATASET_REGISTRY["drawn"] = numbered(count)
    try:
        long = sample_examples("drawn", "train", more, seed, replace=replace)
        short = sample_examples("drawn", "train", fewer, seed, replace=replace)
    finally:
        del DATASET_REGISTRY["drawn"]
    assert long[:fewer] == short


@given(count=st.integers(1, 30), seed=st.integers(0, 2**64))
def test_without_replacement_every_example_is_drawn_once(count, seed):
    DATASET_REGISTRY["drawn"] = numbered(count)
    try:
        drawn = sample_examples("drawn", "train", count, seed)
    finally:
        del DATASET_REGISTRY["drawn"]
    assert sorted(example.question for example in drawn) == sorted(f"q{k}" for k in range(count))


def test_with_replacement_more_can_be_drawn_than_there_are_and_all_are_about_equally_frequent(registered):
    drawn = sample_examples(registered(numbered(4)), "train", 4000, seed=1, replace=True)
    counts = [sum(example.answer == str(k) for example in drawn) for k in range(4)]
    assert sum(counts) == 4000
    assert all(850 < count < 1150 for count in counts)


def test_without_a_number_all_examples_come_in_their_order(registered):
    name = registered(numbered(5))
    assert sample_examples(name, seed=3) == build_dataset(name)


def test_seeds_give_different_draws_and_no_seed_a_new_one_each_time(registered):
    name = registered(numbered(1000))
    assert sample_examples(name, "train", 10, 1) != sample_examples(name, "train", 10, 2)
    assert sample_examples(name, "train", 10) != sample_examples(name, "train", 10)


def test_draws_leave_the_global_generators_alone(registered):
    name = registered(numbered(5))
    python, numpy = random.getstate(), np.random.get_state()
    sample_examples(name, "train", 5)
    sample_examples(name, "train", 5, replace=True)
    assert random.getstate() == python
    assert np.random.get_state()[1].tolist() == numpy[1].tolist()


def test_more_examples_than_there_are_is_an_error_with_both_numbers(registered):
    with pytest.raises(OptionError) as error:
        sample_examples(registered(numbered(5)), "odd", 6, seed=0)
    message(error, "6 prompts", "has 5", "'odd'", "mine", "replace=True")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"num_prompts": 0}, ["num_prompts", "0"]),
        ({"num_prompts": -3}, ["num_prompts", "-3"]),
        ({"num_prompts": 2.5}, ["num_prompts", "2.5"]),
        ({"num_prompts": 1, "seed": -1}, ["seed", "-1"]),
        ({"num_prompts": 1, "seed": "a"}, ["seed", "'a'"]),
        ({"replace": True}, ["replace=True", "num_prompts", "None"]),
    ],
)
def test_an_option_out_of_range_is_refused(registered, options, parts):
    with pytest.raises(OptionError) as error:
        sample_examples(registered(numbered(5)), "train", **options)
    message(error, *parts)


# Arithmetic


@pytest.mark.parametrize("name", ["arithmetic", "arithmetic_r1_template"])
def test_arithmetic_has_disjoint_splits_without_repetitions(name):
    splits = {split: [example.question for example in build_dataset(name, split)] for split in SPLITS}
    assert {split: len(questions) for split, questions in splits.items()} == arithmetic.SIZES
    assert len({question for questions in splits.values() for question in questions}) == 2400


def test_both_orders_of_a_sum_or_product_belong_to_the_same_split():
    places = {}
    for split in SPLITS:
        for example in build_dataset("arithmetic", split):
            left, operator, right, _ = example.question.split()
            assert places.setdefault((operator, frozenset((left, right))), split) == split


def test_the_answers_of_arithmetic_are_right():
    operators = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
    for example in build_dataset("arithmetic"):
        left, operator, right, equals = example.question.split(" ")
        assert equals == "="
        assert int(example.answer) == operators[operator](int(left), int(right)) >= 0
        assert example.text == f"{example.question} {example.answer}"
        assert example.stop == ("\n",)


@pytest.mark.parametrize("name", ["arithmetic", "arithmetic_r1_template"])
def test_the_solutions_of_arithmetic_continue_the_prompt_and_score_one(name):
    for example in build_dataset(name, "test"):
        assert example.text.startswith(example.question)
        assert score_response(example, example.text.removeprefix(example.question)) == 1.0


def test_the_tagged_prompt_ends_inside_the_reasoning():
    example = build_dataset("arithmetic_r1_template")[0]
    assert re.search(r"\nQuestion: What is \d+ [-+*] \d+\?\nResponse: <think>$", example.question)
    assert example.stop == ("</answer>",)
    assert example.meta == {"dataset": "arithmetic_r1_template", "split": "train", "index": 0}


@pytest.mark.parametrize("name", ["arithmetic", "arithmetic_r1_template", "gsm8k_r1_template"])
def test_an_unknown_split_is_refused_with_the_known_ones(name):
    with pytest.raises(OptionError) as error:
        build_dataset(name, "tset")
    message(error, name, "'tset'", *SPLITS, 'Did you mean "test"?')


# GSM8K

TAGGED_ROW = {
    "index": 17,
    "text": "Ida folds 3 boats an hour. How many in 4 hours?\n<think>\n3 * 4 = 12\n</think>\n<answer>\n12\n</answer>",
}
HUGGING_FACE_ROW = {
    "question": "A shelf holds 40 jars. How many jars do 30 shelves hold?",
    "answer": "#### Jars\nEach shelf holds 40 jars.\nThat is 40*30=<<40*30=1200>>1200 jars.\n#### 1,200",
}


def write_rows(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_gsm8k_rows_with_tags_are_read(tmp_path, monkeypatch):
    write_rows(tmp_path / "gsm8k_latex_train.jsonl", TAGGED_ROW)
    monkeypatch.setenv("BRIM_GSM8K", str(tmp_path))
    [example] = build_dataset("gsm8k_r1_template")
    assert example.question.endswith("\nQuestion: Ida folds 3 boats an hour. How many in 4 hours?\nResponse: <think>")
    assert example.text == f"{example.question} 3 * 4 = 12 </think> <answer> 12 </answer>"
    assert example.answer == "12"
    assert example.meta == {"dataset": "gsm8k_r1_template", "split": "train", "index": 17}
    assert example.stop == ("</answer>",)


@pytest.mark.parametrize("name", ["test.jsonl", "test.parquet", "test-00000-of-00001.parquet", "main/test-0.parquet"])
def test_gsm8k_rows_of_hugging_face_are_read(tmp_path, monkeypatch, name):
    path = tmp_path / name
    if path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        path.parent.mkdir(exist_ok=True)
        parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist([HUGGING_FACE_ROW]), path)
    else:
        write_rows(path, HUGGING_FACE_ROW)
    monkeypatch.setenv("BRIM_GSM8K", str(tmp_path))
    [example] = build_dataset("gsm8k_r1_template", "test")
    assert example.answer == "1,200"
    assert "40*30=1200 jars." in example.text
    assert "<<" not in example.text
    assert example.meta["index"] == 0
    assert score_response(example, "Let me see. </think> <answer> $1200.00 </answer>") == 1.0


def test_gsm8k_is_looked_for_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.delenv("BRIM_GSM8K", raising=False)
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "data" / "gsm8k" / "validation.jsonl", HUGGING_FACE_ROW)
    assert len(build_dataset("gsm8k_r1_template", "validation")) == 1


def test_a_missing_gsm8k_file_is_an_error_with_the_names_and_the_place(tmp_path, monkeypatch):
    monkeypatch.delenv("BRIM_GSM8K", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError) as error:
        build_dataset("gsm8k_r1_template", "test")
    message(error, "data/gsm8k/", "gsm8k_latex_test.jsonl", "test.jsonl", "test.parquet", "BRIM_GSM8K")


def test_a_file_of_gsm8k_serves_only_the_split_in_its_name(tmp_path, monkeypatch):
    path = write_rows(tmp_path / "gsm8k_train.jsonl", HUGGING_FACE_ROW)
    monkeypatch.setenv("BRIM_GSM8K", str(path))
    assert len(build_dataset("gsm8k_r1_template")) == 1
    with pytest.raises(OptionError) as error:
        build_dataset("gsm8k_r1_template", "test")
    message(error, str(path), "'test'")


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ({"problem": "x"}, ['"text"', "keys: problem"]),
        ({"text": 5}, ['"text" is an integer']),
        ({"text": "<think> a </think> <answer> 4 </answer>"}, ["question is empty"]),
        ({"text": "Q <think> a </think> <answer> </answer>"}, ["empty final answer"]),
        ({"question": "Q", "answer": "It is 4."}, ["####"]),
        ({"question": "Q", "answer": "It is 4. ####"}, ["empty final answer"]),
        ({"question": None, "answer": "#### 4"}, ['"question" is null']),
    ],
)
def test_a_gsm8k_row_of_neither_form_is_refused_with_its_line(tmp_path, monkeypatch, row, parts):
    path = write_rows(tmp_path / "train.jsonl", HUGGING_FACE_ROW, row)
    monkeypatch.setenv("BRIM_GSM8K", str(tmp_path))
    with pytest.raises(DataError) as error:
        build_dataset("gsm8k_r1_template")
    message(error, f"{path}:2: ", *parts)


@pytest.mark.parametrize(
    "text", ["No tags here.", "3 * 4 = 12\n<answer>\n12\n</answer>", "Q <think> a </think> <answer> 4"]
)
def test_gsm8k_rows_in_which_a_tag_is_missing_are_left_out_and_counted(tmp_path, monkeypatch, text):
    path = write_rows(tmp_path / "train.jsonl", TAGGED_ROW, {"index": 18, "text": text}, TAGGED_ROW)
    monkeypatch.setenv("BRIM_GSM8K", str(tmp_path))
    with pytest.warns(
        UserWarning, match=rf"^1 of 3 rows are left out, the first is {path}:2: .text. is not a question"
    ):
        assert [example.answer for example in build_dataset("gsm8k_r1_template")] == ["12", "12"]
    write_rows(path, {"index": 18, "text": text})
    with pytest.raises(DataError) as error:
        build_dataset("gsm8k_r1_template")
    message(error, f"{path}:1: ", "<think>")


# Files


def test_a_file_of_prompts_is_read(tmp_path):
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    path = write_rows(
        tmp_path / "prompts.jsonl",
        {"prompt": "2 + 2 =", "answer": "4", "id": "a", "stop": ["\n"]},
        {"question": "Half of 3?", "answer": 1.5, "id": 9, "stop": "."},
        {"messages": talk},
        {"prompt": "Large?", "question": "raw", "answer": 1e22},
    )
    plain, number, conversation, large = build_dataset(path)
    assert plain == Example("2 + 2 =", "2 + 2 =", "4", {"dataset": str(path), "index": 0, "id": "a"}, ("\n",))
    assert (number.question, number.answer, number.stop, number.meta["id"]) == ("Half of 3?", "1.5", (".",), "9")
    assert (conversation.question, conversation.answer) == ("Why?", None)
    assert conversation.meta["messages"] == talk
    assert (large.question, large.answer) == ("Large?", "1" + "0" * 22)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('{"text": "x", "answer": 4}', ["missing", "keys: text, answer"]),
        ("{}", ["missing", "keys: none"]),
        ('{"prompt": "  "}', ['"prompt" is empty', "keys: prompt"]),
        ('{"prompt": null, "answer": 4}', ['"prompt" is null', "keys: prompt, answer"]),
        ('{"prompt": 4}', ['"prompt" is an integer']),
        ('{"prompt": [{"role": "user"}]}', ['"prompt" is a list', '"messages"']),
        ('{"prompt": "x", "answer": [4]}', ['"answer" is a list']),
        ('{"prompt": "x", "answer": true}', ['"answer" is a boolean']),
        ('{"prompt": "x", "id": {}}', ['"id" is an object']),
        ('{"prompt": "x", "stop": 4}', ['"stop" has an integer']),
        ('{"prompt": "x", "stop": [""]}', ['"stop" has an empty string']),
        ('{"messages": []}', ['"messages" is empty']),
        ('{"messages": "x"}', ['"messages" is a string']),
        ('{"messages": ["x"]}', ["messages[0] is a string"]),
        ('{"messages": [{"role": "user"}]}', ['messages[0]: "content" is null']),
        ('{"messages": [{"role": "user", "content": " "}]}', ['messages[0]: "content" is empty']),
        ('{"messages": [{"role": "system", "content": "x"}]}', ['"user"', "roles: system"]),
        (
            '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}',
            ['"assistant"', "2 messages"],
        ),
        ('{"prompt": "x"', ["not JSON"]),
        ("[1]", ["a list"]),
    ],
)
def test_a_line_without_a_usable_prompt_is_refused_with_its_number(tmp_path, line, parts):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "good"}}\n\n{line}\n{{"prompt": "good"}}\n')
    with pytest.raises(DataError) as error:
        build_dataset(str(path))
    message(error, f"{path}:3: ", *parts)


def test_a_file_that_is_missing_or_has_no_rows_is_refused(tmp_path):
    with pytest.raises(DataError) as error:
        build_dataset(tmp_path / "none.jsonl")
    message(error, "none.jsonl", "does not exist")
    (tmp_path / "blank.jsonl").write_text("\n\n")
    with pytest.raises(DataError) as error:
        build_dataset(tmp_path / "blank.jsonl")
    message(error, "blank.jsonl", "no rows")


def test_a_file_has_no_splits(tmp_path):
    path = write_rows(tmp_path / "prompts.jsonl", {"prompt": "x"})
    with pytest.raises(OptionError) as error:
        build_dataset(path, "test")
    message(error, str(path), "'test'")


# reasoning-gym


@pytest.mark.parametrize("name", ["reasoning-gym:chain_sum", "reasoning-gym/chain_sum", "reasoning-gym:gsm_symbolic"])
def test_tasks_of_reasoning_gym_are_data_sets(gym, name):
    assert len(reasoning.build(name[14:])) == 500
    for example in sample_examples(name, "train", 20, seed=0):
        assert example.question.endswith("\nResponse: <think>")
        assert example.meta["reasoning_gym"]["task"] == name[14:]
        assert score_response(example, f" hm </think> <answer> {example.answer} </answer>") == 1.0
        assert score_response(example, f"{example.answer}") == 0.0


@pytest.mark.parametrize(
    ("task", "count", "other"), [("gsm_symbolic", 200, "fractions"), ("knights_knaves", 20, "strings of NumPy")]
)
def test_what_a_scorer_needs_is_kept_as_values_that_json_can_hold(gym, task, count, other):
    examples = reasoning.build(task)[:count]
    raw = gym.create_dataset(task, seed=0, size=500)
    assert any(not plain_json(raw[at]["metadata"]) for at in range(count)), f"the task has no {other} any more"
    assert all(plain_json(example.meta) for example in examples)


def plain_json(value):
    if isinstance(value, dict):
        return all(plain_json(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(plain_json(item) for item in value)
    return type(value) in (str, int, float, bool, type(None))


def test_splits_of_a_task_differ_and_are_the_same_each_time(gym):
    splits = {split: reasoning.build("gsm_symbolic", split)[:100] for split in SPLITS}
    assert len({example.id for examples in splits.values() for example in examples}) > 290
    assert sample_examples("reasoning-gym:gsm_symbolic", "test", 3, seed=1) == sample_examples(
        "reasoning-gym:gsm_symbolic", "test", 3, seed=1
    )
    starts = sorted(reasoning.SEEDS.values())
    assert min(np.diff(starts)) >= reasoning.SIZE


@pytest.mark.parametrize("task", ["list_functions", "pool_matrix"])
def test_tasks_that_use_the_global_generators_are_reproducible_and_leave_them_alone(gym, task):
    random.seed(1)
    np.random.seed(1)
    python, numpy = random.getstate(), np.random.get_state()[1].tolist()
    first = reasoning.build(task)[:40]
    assert random.getstate() == python
    assert np.random.get_state()[1].tolist() == numpy
    random.seed(2)
    assert reasoning.build(task)[:40] == first


def test_what_a_task_prints_does_not_go_to_the_standard_output(gym, capsys):
    reasoning.build("bf")[:5]
    out, err = capsys.readouterr()
    assert out == ""
    assert err, "the task prints no more: choose another for this test"


def test_only_the_items_that_are_drawn_are_generated(gym, monkeypatch):
    read = []
    original = reasoning.TaskItems._item
    monkeypatch.setattr(reasoning.TaskItems, "_item", lambda self, at: read.append(at) or original(self, at))
    assert len(sample_examples("reasoning-gym:chain_sum", "train", 3, seed=0)) == len(read) == 3


def test_items_of_a_task_are_a_sequence(gym):
    items = reasoning.build("chain_sum")
    assert items[-1] == items[499]
    assert items[1:3] == [items[1], items[2]]
    with pytest.raises(IndexError):
        items[500]


def test_an_unknown_task_is_refused(gym):
    with pytest.raises(OptionError) as error:
        build_dataset("reasoning-gym:chain_sun")
    message(error, "'chain_sun'", 'Did you mean "chain_sum"?')
    with pytest.raises(OptionError) as error:
        build_dataset("reasoning-gym:composite")
    message(error, "'composite'", "default options")
    with pytest.raises(OptionError) as error:
        build_dataset("reasoning-gym:chain_sum", "dev")
    message(error, "'dev'", *SPLITS)


def test_tasks_whose_scorer_runs_responses_are_refused_when_built_and_when_scored(gym):
    with pytest.raises(OptionError) as error:
        build_dataset("reasoning-gym:countdown")
    message(error, "'countdown'", "Python code")
    meta = {"reasoning_gym": {"task": "spiral_matrix", "question": "", "metadata": {}}}
    with pytest.raises(OptionError) as error:
        score_response(Example("", "?", "1", meta, ANSWER_STOP), "<answer>print(1)</answer>")
    message(error, "'spiral_matrix'", "Python code")


def test_every_task_whose_scorer_evaluates_text_is_known(gym):
    """A release of reasoning-gym that evaluates in more scorers fails here."""
    evaluates = re.compile(r"\b(eval|exec|parse_expr|sympify)\(")
    reference_only = {"number_sorting"}  # evaluates its own answer, not the response
    own_parser = {"propositional_logic"}  # a function of its own that is also called parse_expr
    found = {
        task
        for task, (kind, _) in gym.factory.DATASETS.items()
        if evaluates.search(inspect.getsource(kind.score_answer))
    }
    assert found - reference_only - own_parser == reasoning.RUN_RESPONSES


def test_an_answer_on_which_a_scorer_fails_scores_zero(gym):
    example = reasoning.build("prime_factorization")[0]
    assert score_response(example, "<answer>nonsense</answer>") == 0.0
    assert score_response(example, f"<answer>{example.answer}</answer>") == 1.0


def test_a_scorer_that_fails_on_the_reference_too_is_an_error(gym):
    stored = {"task": "prime_factorization", "question": "", "metadata": {}}
    with pytest.raises(DataError) as error:
        score_response(Example("", "?", "2 x 3", {"reasoning_gym": stored}, ANSWER_STOP), "<answer>5</answer>")
    message(error, "'prime_factorization'", "ValueError", "'2 x 3'")


def test_an_answer_of_a_task_without_a_reference_is_scored(gym):
    example = reasoning.build("graph_color")[0]
    assert example.answer is None
    assert 0 <= score_response(example, "<answer>{}</answer>") < 1
    assert score_response(example, "{}") == 0.0


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(MissingExtraError) as error:
        build_dataset("reasoning-gym:chain_sum")
    message(error, "reasoning_gym", "pip install 'brim[reasoning]'")


# Scores


@pytest.mark.parametrize(
    ("response", "score"),
    [
        (" hm </think> <answer> 42 </answer>", 1.0),
        ("<answer>42.0</answer>", 1.0),
        ("<answer>\n42\n</answer> and more", 1.0),
        ("</think> <answer> 42", 1.0),
        ("<answer> 43 </answer>", 0.0),
        ("42", 0.0),
        ("42 </answer>", 0.0),
        ("</answer> <answer> 42", 0.0),
        ("<answer>42</answer> <answer>42</answer>", 0.0),
        ("<answer>42</answer></answer>", 0.0),
        ("<answer>42</answer> <answer>", 0.0),
        ("<answer><answer>42</answer>", 0.0),
        ("<answer></answer>", 0.0),
        ("<answer>about 42</answer>", 0.0),
        ("", 0.0),
    ],
)
def test_the_answer_in_tags_must_be_the_only_one(response, score):
    assert score_response(TAGGED, response) == score


@pytest.mark.parametrize(
    ("response", "score"),
    [(" 42\n", 1.0), ("42\n43", 1.0), (" 42", 1.0), ("\n42", 0.0), ("41\n42", 0.0), ("", 0.0), ("42 apples", 0.0)],
)
def test_without_tags_the_answer_is_the_first_line_up_to_the_stop(response, score):
    assert score_response(PLAIN, response) == score


def test_without_stops_blank_lines_before_the_answer_are_skipped():
    assert score_response(Example("", "?", "42"), "\n\n 42 \nbecause") == 1.0
    assert score_response(Example("", "?", "42", stop=(";", "#")), "42 # 43; 44") == 1.0


@pytest.mark.parametrize(
    ("reference", "given", "same"),
    [
        ("42", "42.0", True),
        ("42", "42.", True),
        ("42", "$42", True),
        ("42", "$42$", True),
        ("42", "+42", True),
        ("042", "42", True),
        ("-5", "-$5", True),
        ("-5", "$-5", True),
        ("-5", "\N{MINUS SIGN}5", True),
        ("5", "-5", False),
        ("-5", "--5", False),
        ("1200", "1,200", True),
        ("1,200", "1200", True),
        ("1200", "1,20,0", False),
        ("12", "1,2", False),
        ("0.75", "3/4", True),
        ("3/4", "6 / 8", True),
        ("1/3", "0.333", False),
        (".5", "0.5", True),
        ("1", "1/0", False),
        ("50%", "50%", True),
        ("50%", "0.5", False),
        ("50", "50%", False),
        ("100000", "1e5", False),
        ("42", "\u0664\u0662", False),
        ("Paris", " paris ", True),
        ("New  York", "new york", True),
        ("Paris", "Paris, France", False),
        ("nan", "NaN", True),
        ("nan", "inf", False),
        ("12 34", "12  34", True),
        ("2 * 3", "6", False),
    ],
)
def test_numbers_are_compared_by_value_and_other_answers_as_text(reference, given, same):
    example = Example("", "?", reference, stop=ANSWER_STOP)
    assert score_response(example, f"<answer>{given}</answer>") == float(same)


@given(st.integers(-(10**12), 10**12))
def test_every_way_to_write_an_integer_is_the_same_number(number):
    for text in (f"{number}", f"{number:,}", f"{number}.0", f" {number}. ", f"{2 * number}/2"):
        assert parse_number(text) == number


@given(st.text(max_size=40))
def test_any_text_has_a_score_and_its_own_answer_is_right(text):
    assert score_response(TAGGED, text) in (0.0, 1.0)
    assert score_response(PLAIN, text) in (0.0, 1.0)
    if "<" not in text:
        assert score_response(Example("", "?", text, stop=ANSWER_STOP), f"<answer>{text}</answer>") == 1.0


def test_an_example_without_an_answer_has_no_score():
    assert score_response(Example("", "?", None, stop=ANSWER_STOP), "<answer>42</answer>") is None


@pytest.mark.parametrize(
    "content", ["9" * 100_000, "1,000" * 20_000, "1/" * 50_000, " " * 100_000, "<answer" * 15_000, "$-" * 50_000]
)
def test_a_response_of_100_000_characters_is_scored_without_trying_all_splits_of_it(content):
    assert score_response(TAGGED, f"<answer>{content}</answer>") == 0.0
    assert score_response(PLAIN, content) == 0.0
    assert parse_number(content) is None
