"""Start-up: the CPU time of commands that only print something, beside a bare click application with one option.

Every run is a process of its own, and all of them take turns.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import Contender, Report, Target, add_ratios, one_thread, race

BARE, BASE = "a bare click application, --help", "brim plan build --help"
APPLICATION = '''"""The least that a command with a subcommand and an option takes."""

import click


@click.group()
def cli():
    """A group of commands."""


@cli.command()
@click.option("--lengths", help="Length table.")
def build(lengths):
    """Build a plan."""


cli()
'''
MOST = 1.6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds instead of thirty")
    options = parser.parse_args()
    one_thread()
    report = Report("startup")
    brim = str(Path(sys.executable).with_name("brim"))
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        bare.write_text(APPLICATION)
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            BARE: [sys.executable, str(bare), "build", "--help"],
            "brim --version": [brim, "--version"],
            "brim --help": [brim, "--help"],
            BASE: [brim, "plan", "build", "--help"],
            "brim train sft --help": [brim, "train", "sft", "--help"],
            "python -c 'import numpy'": [sys.executable, "-c", "import numpy"],
        }
        contenders = [Contender(name, lambda command=command: start(command)) for name, command in commands.items()]
        rows = race(contenders, rounds=3 if options.quick else 30)
    add_ratios(rows, BARE, cpu=True)
    report.table("Commands that print something", rows, {"ratio": ".2f"}, subject="startup")
    ratio = next(row.columns["ratio"] for row in rows if row.name == BASE)
    what, target = f"start-up of {BASE}", f"within {MOST} x a bare click application"
    report.targets([Target(what, target, f"{ratio:.2f} x", ratio <= MOST)])
    print(f"written: {report.close()}")


def start(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
