"""What the documents behind brim name is there, with the parameters, defaults, attributes and keys that they use.

`table.py` is the contract. Command lines are run exactly as written, in one directory, in the order of the table. The
two that need a puzzle server find one at a free port instead of 8023, and these two are shortened by options that the
table declares.
"""

import asyncio
import inspect
import json
import runpy
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import brim
from brim.envs.puzzle import PuzzleServer
from contract.instances import HISTORIES, INSTANCES, lengths, plan, stream_sample
from contract.table import ANY, FILES, LINES, NAMES, REQUIRED, Line, Name

ROOT = Path(__file__).parents[2]
BUILT = [name for name in NAMES if name.status == "built"]
PENDING = [name for name in NAMES if name.status == "pending"]
NEED_TORCH = (
    "collate_compressed_batch",
    "train.distill.CompressedAD",
    "BatchedSequences",
    "LogprobResults",
    *(name.path for name in NAMES if name.path.startswith("SequenceProcessor")),
)
COMMANDS = [line for line in LINES if line.status == "built" and line.text.startswith("lazarus ")]


def find(path: str) -> Any:
    """Return what a dotted path below `brim` names."""
    found: Any = brim
    for word in path.split("."):
        found = getattr(found, word)
    return found


def rows(names: list[Name]) -> list[Any]:
    """Rows as parameters of a test."""
    marks = {True: [pytest.mark.torch], False: []}
    return [pytest.param(row, id=f"{row.document}-{row.path}", marks=marks[row.path in NEED_TORCH]) for row in names]


@pytest.mark.parametrize("name", rows(BUILT))
def test_a_name_that_is_built_has_its_parameters_defaults_and_members(name):
    found = find(name.path)
    assert [member for member in name.members if member not in found.__members__] == []
    if not name.parameters:
        return
    known = inspect.signature(found).parameters
    for parameter, default in name.parameters.items():
        assert parameter in known, f"{name.path} has no parameter {parameter}; it has {', '.join(known)}"
        if default == REQUIRED:
            assert known[parameter].default is inspect.Parameter.empty, parameter
        elif default != ANY:
            assert known[parameter].default == default, parameter


@pytest.mark.parametrize("name", rows([row for row in BUILT if row.attributes or row.keys]))
def test_an_instance_has_the_attributes_and_a_result_the_keys(name, tmp_path):
    instance = INSTANCES[name.path](tmp_path)
    assert [attribute for attribute in name.attributes if not hasattr(instance, attribute)] == []
    assert [key for key in name.keys if key not in instance] == []


@pytest.mark.parametrize("name", rows(PENDING))
def test_a_name_that_is_pending_is_not_there_yet(name):
    with pytest.raises(AttributeError):
        find(name.path)  # an ImportError would say that a room of brim has it: then move its row to "built"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.path)
def test_a_file_is_there_if_it_is_built(file):
    assert (ROOT / file.path).is_file() == (file.status == "built")


def test_no_row_comes_twice_and_every_instance_is_of_a_row():
    assert len({name.path for name in NAMES}) == len(NAMES)
    assert len({line.text for line in LINES}) == len(LINES)
    assert INSTANCES.keys() <= {name.path for name in BUILT}


# The command lines


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A directory with a data set and a small model, in which the lines are run one after the other."""
    folder = tmp_path_factory.mktemp("desk")
    rows = [{"id": f"r{n}", "prompt": f"Count to {n}.", "response": " ".join(map(str, range(n)))} for n in range(1, 9)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_model(folder / "model")
    return folder


@pytest.fixture(scope="module")
def server():
    with PuzzleServer() as running:
        yield running


def make_model(directory: Path) -> None:
    """A Llama with the vocabulary of gpt2 and hidden states of 8 numbers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from brim.train.model import quiet

    shape = LlamaConfig(
        vocab_size=50257,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    with quiet():
        LlamaForCausalLM(shape).save_pretrained(directory)
    (directory / "brim_tokenizer.json").write_text('{"tokenizer": "gpt2"}\n')


def call(command: str, monkeypatch) -> tuple[int, str]:
    """Run a command line in this process, as its console script does."""
    from brim.cli import lazarus, main

    program, *words = command.split()
    shown = StringIO()
    monkeypatch.setattr(sys, "argv", [program, *words])
    monkeypatch.setattr(sys, "stdout", shown)
    with pytest.raises(SystemExit) as done:
        {"brim": main, "lazarus": lazarus.main}[program]()
    return int(done.value.code or 0), shown.getvalue()


@pytest.mark.torch
@pytest.mark.server
def test_the_command_lines_that_are_built_run_as_written(desk, server, monkeypatch):
    monkeypatch.chdir(desk)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for line in COMMANDS:
        command = f"{line.text.replace('8023', str(server.port))} {line.shortened}"
        status, _ = call(command, monkeypatch)
        assert status == 0, line.text
        assert line.writes is None or Path(line.writes).exists(), line.text


def scripts(document: str) -> list[Line]:
    return [line for line in LINES if line.document == document and line.text.startswith("python ")]


@pytest.mark.torch
@pytest.mark.parametrize("line", scripts("001"), ids=lambda line: line.text)
def test_the_files_of_a_script_that_is_built_are_found_where_it_is_run(line, monkeypatch):
    """The scripts themselves are run by tests/test_examples.py."""
    from brim.train.distill import load_config

    _, script, *files = line.text.split()
    [folder] = [path.parent for path in (ROOT / "examples").rglob(script)]
    monkeypatch.chdir(folder)
    assert [file for file in files if not Path(file).is_file()] == []
    load_config(files)


@pytest.mark.torch
@pytest.mark.parametrize("line", scripts("002"), ids=lambda line: line.text)
def test_the_lines_of_the_query_mutator_run_as_written(line, monkeypatch, tmp_path):
    """With a path in front of the script, from anywhere; the scripted model answers at once here."""
    monkeypatch.setattr("brim.train.query.run.SCRIPTED_LATENCY", 0.0)
    monkeypatch.chdir(tmp_path)
    _, script, *words = f"{line.text} {line.shortened}".split()
    monkeypatch.setattr(sys, "argv", [script, *words, "--no-tensorboard", "--quiet"])
    with pytest.raises(SystemExit) as done:
        runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
    assert (done.value.code or 0) == 0
    steps = 1024 if "1000" in line.text else 512
    last = Path("checkpoints/query-mutator/updates.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["env_steps"] == steps


# What the documents show of how the parts work together


def test_the_quick_start_iterates_with_async_for():
    spec = brim.BucketSpec(edges=(128, 256, 512), overflow_max=1024)
    sizes = {f"s{number}": 100 + number * 10 for number in range(50)}
    sampler = brim.TokenBudgetBatchSampler(lengths=sizes, bucket_spec=spec, token_budget=2048, seed=42)

    async def collect() -> list[tuple[int, int]]:
        return [(batch.batch_size, batch.max_length) async for batch in sampler.iter_epoch(epoch=0)]

    shapes = asyncio.run(collect())
    assert sum(size for size, _ in shapes) == 50
    assert {width for _, width in shapes} <= {128, 256, 512, 1024}


def test_a_rank_takes_every_so_many_microbatches_of_a_plan():
    seen = []
    for rank in range(2):
        shard = brim.shard_batch_plan(plan(), brim.DistributedConfig(rank=rank, world_size=2))
        taken = [spec for spec in shard.iter_epoch(0) if not spec.is_null]
        assert [spec.index % 2 for spec in taken] == [rank] * len(taken)
        same = [spec for spec in plan().shard(rank, 2).iter_epoch(0) if not spec.is_null]
        assert [spec.samples for spec in taken] == [spec.samples for spec in same]
        seen += [id for spec in taken for id in spec.samples]
    assert sorted(seen) == sorted(entry.sample_id for entry in lengths())


def test_a_replayed_sample_is_a_marked_copy():
    sample = stream_sample()
    again = sample.with_replay()
    assert (sample.replay_count, again.replay_count) == (0, 1)
    assert brim.StreamSample.model_validate(again.model_dump()) == again


@pytest.mark.torch
def test_a_batch_of_histories_has_one_depth_and_its_stages_are_tensors():
    sampler = brim.BucketSampler(HISTORIES, batch_size=2, shuffle=True)
    assert sampler.buckets == {0: [0], 1: [2], 2: [1, 3]}
    for rows in sampler:
        batch = brim.collate_compressed_batch([HISTORIES[row] for row in rows])
        assert batch["num_compression_stages"] == len(batch["compression_stages"])
        for stage in batch["compression_stages"]:
            assert tuple(stage["states"].shape)[::2] == (len(rows), 2)
