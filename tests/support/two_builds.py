"""Two `brim plan build` of one target at the same time, again and again: python tests/support/two_builds.py [ROUNDS].

Every round ends with one whole plan. In even rounds both commands build the same plan, in odd rounds different ones;
the second starts a little later every time, so that it meets the first one at different moments of its work.
"""

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from brim.data.ids import Ids
from brim.data.lengths import LengthCache
from brim.plan.plan import BatchPlan
from brim.plan.verify import verify_plan


def build_twice(folder: Path, rounds: int, samples: int = 20_000) -> Counter[str]:
    """Run the rounds in a folder, and count how the commands ended. An assertion fails where a plan is not whole."""
    lengths = np.random.default_rng(0).integers(1, 512, samples).astype(np.int32)
    LengthCache(Ids.rows(samples), lengths).save(folder / "lengths.brim")
    ended: Counter[str] = Counter()
    target = folder / "plan"
    for number in range(rounds):
        commands: list[subprocess.Popen[str]] = []
        for seed in (1, 1 + number % 2):
            options = [
                "-l",
                str(folder / "lengths.brim"),
                "-b",
                "8192",
                "-e",
                "6",
                "--seed",
                str(seed),
                "-o",
                str(target),
            ]
            command = [sys.executable, "-m", "brim", "plan", "build", *options]
            commands.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
            time.sleep(0.01 * (number % 10))
        for command in commands:
            _, errors = command.communicate()
            ended[f"exit {command.returncode}"] += 1
            assert command.returncode == 0, errors
        plan = BatchPlan.load(target)
        assert plan.config.seed in (1, 1 + number % 2)
        assert verify_plan(plan) == []
        assert sorted(path.name for path in folder.iterdir()) == ["lengths.brim", "plan"]
    return ended


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(dict(build_twice(Path(folder), int(sys.argv[1]) if len(sys.argv) > 1 else 100)))
