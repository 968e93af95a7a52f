"""What a command costs before it works: help, the version and a refused option import nothing that takes long."""

import json
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from brim.cli import HELP, TREE, lazarus
from brim.cli.app import Group

HEAVY = (
    *("numpy", "torch", "jax", "transformers", "tokenizers", "datasets", "pyarrow", "h5py", "matplotlib", "ray"),
    *("rich", "orjson", "aiohttp", "gymnasium", "websockets", "asyncio", "multiprocessing", "sqlite3", "subprocess"),
)
WATCH = f"""
import contextlib, io, json, os, sys
from brim.cli import lazarus, main

def ended(line):
    sys.argv = line.split()
    output, status = io.StringIO(), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            (lazarus.main if sys.argv[0] == "lazarus" else main)()
        except SystemExit as end:
            status = end.code
    heavy = sorted(name for name in {HEAVY!r} if name in sys.modules)
    return {{"status": status, "heavy": heavy, "output": output.getvalue()}}

def forked(line):
    reader, writer = os.pipe()
    if os.fork() == 0:
        with open(writer, "w") as answer:
            json.dump(ended(line), answer)
        os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        found = json.load(answer)
    os.wait()
    return found

print(json.dumps({{line: forked(line) for line in json.load(sys.stdin)}}))
"""
BROKEN_FLAG = re.compile(r"--[a-z-]+-$")
"""The end of a line of help that breaks the name of a flag."""
REFUSED = {
    "brim plan build -b x": "'x' is not a valid integer",
    "brim plan build -l none -o out --token-budget 0": "token_budget must be at least 1, got 0",
    "brim plan build -l none -o out --window 0": "window must be at least 1, got 0",
    "brim plan build -l none -o out --pack-max-len 10": "--pack-max-len needs --pack",
    "brim plan build -l none -o out --bucket-edges 8,4": "bucket edges must ascend",
    "brim plan build -l none -o out --epochs 0": "the number of epochs must be at least 1, got 0",
    "brim plan verify -p none -l none --pack-max-len 10": "--pack-max-len needs --pack",
    "brim plan shard -p none -w 0 -o out": "world_size must be at least 1, got 0",
    "brim plan info -p none --rank 1": "--rank needs --world-size",
    "brim plan info -p none --world-size 0": "world_size must be at least 1, got 0",
    "brim plan info -p none --world-size 2 --rank 3": "rank must lie between 0 and 1, got 3",
    "brim plan build -l none -o out --cost 1": "neither two numbers such as 1,8e-5 nor the directory of a model",
    "brim plan build -l none -o out --pack --pack-max-len 0": "--pack-max-len must be at least 1, got 0",
    "brim plan build -l none -o out --no-shuffle --window 9": "--window has no effect with --no-shuffle",
    "brim plan verify -p none --window 0": "window must be at least 1, got 0",
    "brim plan report -p none -w 0": "world_size must be at least 1, got 0",
    "brim lengths build -d none -o out --workers 0": "workers must be at least 1, got 0",
    "brim plan analyze -l none --overflow-max 9": "--overflow-max needs --bucket-edges",
    "brim plan analyze -l none --pack-max-len 0": "pack_max_len must be at least 1, got 0",
    "brim plan suggest -l none -n 0": "num_buckets must be at least 1, got 0",
    "brim plan report -p none -o page.txt": "a report ends in .html or .png",
    "brim lengths histogram -c none --bins 0": "bins must be at least 1, got 0",
    "brim batch write -p none -d none -o out --rank 1": "--rank and --world-size are given together",
    "brim batch write -p none -d none -o out --rank 3 -w 2": "rank must lie between 0 and 1, got 3",
    "brim bench batch-size -m tiny --length 8 --lengths none": "give --length or --lengths, not both",
    "brim bench batch-size -m tiny --steps 0": "steps must be at least 1, got 0",
    "brim bench batch-size -m tiny --resolution 1": "resolution must be at least 0 and below 1, got 1.0",
    "brim sample-data -n 0 -o out": "num_samples must be at least 1, got 0",
    "brim generate -o out.jsonl": "-m MODEL is missing",
    "brim gym run -t byte --policy scripted": "--policy scripted and --script FILE go together",
    "brim arc samples none -o out --max-length 0": "max_length must be at least 1, got 0",
    "brim llm map -i none -o out -m small --cache-mode replay": "--cache-mode replay needs --cache FILE",
    "brim llm embed -i none -o out.npy -m hash --limit 3": "--limit has no effect on a model that runs in this process",
    "brim train sft --model tiny": "--data is missing",
    "brim train online --model tiny --games foo": "there is no game 'foo'",
    "brim train grpo": "name a model: --model",
    "brim train arc --updates 0": "updates must be at least 1, got 0",
    "brim demo -b 0": "token_budget must be at least 1, got 0",
    "brim train arc --evaluate none --epochs 2": "--epochs has no effect on --evaluate",
    "lazarus data batchplan build -l none -o out -b 0": "token_budget must be at least 1, got 0",
}


def commands() -> dict[str, click.Command]:
    """Every command and every group of both trees, by what is typed."""

    def walk(command, line):
        yield line, command
        if isinstance(command, Group):
            for name in command.list_commands(click.Context(command)):
                yield from walk(command.get_command(click.Context(command), name), f"{line} {name}")

    apps = {"brim": Group("brim", HELP, TREE), "lazarus": Group("lazarus", lazarus.HELP, lazarus.TREE)}
    return {line: command for name, app in apps.items() for line, command in walk(app, name)}


COMMANDS = commands()


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """How each line ends and what it imports, in a fork of a process that has imported click and little else."""
    lines = [*(f"{line} --help" for line in COMMANDS), *REFUSED, "brim --version", "lazarus --version"]
    folder = tmp_path_factory.mktemp("empty")
    done = subprocess.run(
        [sys.executable, "-c", WATCH], input=json.dumps(lines), capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not list(folder.iterdir())
    return json.loads(done.stdout)


@pytest.mark.parametrize("line", [*COMMANDS, "brim --version", "lazarus --version"])
def test_help_and_versions_import_nothing_heavy(ended, line):
    shown = ended[line if line.endswith("--version") else f"{line} --help"]
    assert (shown["status"], shown["heavy"]) == (0, [])


@pytest.mark.parametrize("line", REFUSED)
def test_wrong_options_are_refused_before_anything_heavy_is_imported_or_read(ended, line):
    refused = ended[line]
    assert REFUSED[line] in " ".join(refused["output"].split())
    assert (refused["status"], refused["heavy"]) == (2, [])


@pytest.mark.parametrize("line", COMMANDS)
def test_help_fits_in_80_columns_and_has_examples(line):
    help = CliRunner().invoke(COMMANDS[line], ["--help"], prog_name=line, terminal_width=80).output
    assert max(len(shown) for shown in help.splitlines()) <= 80
    assert not [shown for shown in help.splitlines() if BROKEN_FLAG.search(shown)]
    if not isinstance(COMMANDS[line], Group):
        assert "Examples:" in help
        assert "Exit status:" in help


@pytest.mark.parametrize("line", [line for line, command in COMMANDS.items() if not isinstance(command, Group)])
def test_examples_in_help_are_commands_with_options_that_exist(line):
    text = COMMANDS[line].help or ""
    lines = [shown.split() for shown in text.replace("\\\n", " ").splitlines()]
    examples = [words for words in lines if words[:1] == ["brim"]]
    assert examples
    for words in examples:
        place = "brim"
        while words[1:] and f"{place} {words[1]}" in COMMANDS:
            place = f"{place} {words.pop(1)}"
        known = {name for param in COMMANDS[place].params for name in (*param.opts, *param.secondary_opts)}
        assert {word for word in words if word.startswith("-")} <= {*known, "--help"}, words
