"""Commands of brim, scripts, and ranks of a run, each in a real process that is forked from a server which has
imported everything.

Importing NumPy, or torch and transformers, takes longer than most of what is tested. A forked process has a process id,
signals, files and an exit status of its own, as one that was started by a shell has; only its imports are done. What is
about starting Python, such as the cost of an import, has to start Python. In the quick tier there is no torch to
import.
"""

import faulthandler
import multiprocessing
import os
import runpy
import sys
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess

CONTEXT = multiprocessing.get_context("forkserver")
LIGHT = [
    "brim.cli.lazarus",
    "brim.cli.batch",
    "brim.cli.plan.analyze",
    "brim.cli.terminal",
    "brim.analyze.histogram",
    "brim.analyze.strategies",
    "brim.batch.files.reader",
    "brim.batch.files.writer",
    "brim.data.measure",
    "brim.data.nested.open",
    "brim.data.tokenize",
    "brim.plan.verify",
    "rich.progress",
    "tokenizers",
]
HEAVY = [
    "brim.cli.generate.here",
    "brim.generate.processor",
    "brim.train.grpo.run",
    "brim.train.online.run",
    "brim.train.distill.run",
    "brim.train.query.run",
    "brim.cli.train.query_mutator",
    "brim.cli.train.sft",
    "brim.cli.train.distill",
    "brim.cli.train.grpo",
    "brim.cli.train.grpo_progress",
    "brim.cli.train.progress",
    "brim.cli.train.query_progress",
    "transformers.models.llama.modeling_llama",
]
CONTEXT.set_forkserver_preload(LIGHT + (HEAVY if find_spec("torch") else []))
PATIENCE = 240


class Command:
    """`brim ...`, `lazarus ...`, or a script for which warnings are errors, running in `folder` with its output going
    to files."""

    def __init__(self, words: list[str], folder: Path, **environment: str) -> None:
        self.words = words
        self._scratch = tempfile.TemporaryDirectory(prefix="brim-command-")
        self.stdout = Path(self._scratch.name, "stdout")
        self.stderr = Path(self._scratch.name, "stderr")
        variables = {**os.environ, **environment}
        self.process = CONTEXT.Process(
            target=_command, args=(words, str(folder), variables, str(self.stdout), str(self.stderr))
        )
        self.process.start()

    def wait(self, seconds: float = PATIENCE) -> CompletedProcess[str]:
        """How it ended, as `subprocess.run(..., capture_output=True, text=True)` tells it."""
        self.process.join(seconds)
        ended = self.process.exitcode is not None
        if not ended:
            self.process.kill()
            self.process.join()
        said = [path.read_text() if path.exists() else "" for path in (self.stdout, self.stderr)]
        self._scratch.cleanup()
        assert ended, f"{' '.join(self.words)} did not end in {seconds} s: {said}"
        return CompletedProcess(self.words, self.process.exitcode, *said)


def run_command(words: list[str], folder: Path, **environment: str) -> CompletedProcess[str]:
    return Command(words, folder, **environment).wait()


def run(line: str | list[str], folder: Path, *, status: int = 0, **environment: str) -> CompletedProcess[str]:
    """Run a command line that ends with this exit status, and without a traceback."""
    done = run_command(line.split() if isinstance(line, str) else line, folder, **environment)
    assert done.returncode == status, (line, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def _command(words: list[str], folder: str, variables: dict[str, str], stdout: str, stderr: str) -> None:
    for path, number in ((stdout, 1), (stderr, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    faulthandler.dump_traceback_later(PATIENCE - 10, exit=True)  # where it hangs, if it does
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = list(words)
    import brim.cli
    import brim.cli.lazarus

    if torch := sys.modules.get("torch"):
        torch.set_num_threads(int(variables.get("OMP_NUM_THREADS", "1")))
    if words[0].endswith(".py"):
        warnings.simplefilter("error")
        sys.path.insert(0, os.path.dirname(words[0]))
        runpy.run_path(words[0], run_name="__main__")
        return
    mains = {"brim": brim.cli.main, "lazarus": brim.cli.lazarus.main}
    mains[words[0]]()
