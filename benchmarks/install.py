"""Make `.venv-bench`: brim and its peers in an environment of their own. Needs nothing but Python.

Run again, it sees from a stamp that nothing changed and returns at once. A peer that cannot be installed is no error:
it is named, with the reason, and the benchmarks list it as not available.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-bench"
PYTHON = ENVIRONMENT / "bin" / "python"
STAMP = ENVIRONMENT / "brim-bench.json"
TOGETHER, ALONE = (ROOT / "benchmarks" / name for name in ("requirements.txt", "requirements-alone.txt"))
INPUTS = (
    TOGETHER,
    ALONE,
    ROOT / "constraints.txt",
    ROOT / "pyproject.toml",
    ROOT / "setup.py",
    ROOT / "src/brim/plan/_kernel.c",
    ROOT / "src/brim/plan/packing/_kernel.c",
    ROOT / "src/brim/batch/_kernel.c",
    ROOT / "src/brim/stream/replay/_kernel.c",
    ROOT / "src/brim/envs/arc/engine/_kernel.c",
    Path(__file__),
)


def main() -> None:
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in INPUTS)).hexdigest()
    if STAMP.exists() and json.loads(STAMP.read_text())["inputs"] == digest:
        failures = json.loads(STAMP.read_text())["failures"]
        print(f"{ENVIRONMENT.name} is up to date")
    else:
        failures = install()
        STAMP.write_text(json.dumps({"inputs": digest, "failures": failures}, indent=2) + "\n")
    for peer, reason in failures.items():
        print(f"not available: {peer}: {reason}")


def install() -> dict[str, str]:
    """Install everything; for each peer that failed, why."""
    if not PYTHON.exists():
        print(f"creating {ENVIRONMENT}")
        venv.create(ENVIRONMENT, with_pip=True)
    STAMP.unlink(missing_ok=True)
    pip("install", "--upgrade", "pip", "setuptools", "wheel")
    print("installing brim and its peers (a minute or two)")
    failures: dict[str, str] = {}
    if pip("install", "-c", str(ROOT / "constraints.txt"), "-r", str(TOGETHER)):
        for requirement in requirements(TOGETHER):  # one of them failed: find out which, and keep the others
            if reason := pip("install", "-c", str(ROOT / "constraints.txt"), requirement):
                failures[name_of(requirement)] = reason
    for requirement in requirements(ALONE):
        reason = pip("install", "--no-deps", requirement)
        if reason and name_of(requirement) == "seqpacker":
            reason = install_seqpacker(requirement) and reason
        if reason:
            failures[name_of(requirement)] = reason
    if reason := pip("install", "-c", str(ROOT / "constraints.txt"), "-e", str(ROOT)):
        sys.exit(f"brim itself cannot be installed into {ENVIRONMENT}: {reason}")
    return failures


def install_seqpacker(requirement: str) -> str:
    """The binary of the wheel for CPython 3.8 under the name of a stable-ABI module.

    Its sources need crates.io. The module uses only what later versions of CPython still export, so they load it. "" if
    that worked.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = (
            "--platform",
            "manylinux_2_17_x86_64",
            "--python-version",
            "3.8",
            "--only-binary",
            ":all:",
            "--ignore-requires-python",
        )
        if reason := pip("download", "--no-deps", *options, "-d", folder, requirement):
            return reason
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            wheel.extractall(
                packages := Path(run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
            )
    module = next((packages / "seqpacker").glob("_core.cpython-38-*.so"))
    shutil.copyfile(module, module.with_name("_core.abi3.so"))
    if run("-c", "import seqpacker; seqpacker.Packer(capacity=8).pack([5, 3])").returncode:
        return "the wheel for CPython 3.8 does not load"
    print("seqpacker has no wheel for this Python; using the binary of its wheel for CPython 3.8")
    return ""


def requirements(path: Path) -> list[str]:
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def name_of(requirement: str) -> str:
    return re.split(r"[\[=<>~ ]", requirement)[0]


def pip(*arguments: str) -> str:
    """The last line of what pip has to say against it; "" if it worked."""
    done = run("-m", "pip", "--disable-pip-version-check", *arguments)
    if done.returncode == 0:
        return ""
    errors = [
        line.strip()
        for line in done.stderr.splitlines()
        if line.lower().startswith("error") or "error:" in line.lower()
    ]
    return (errors or [f"pip ended with status {done.returncode}"])[0]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(PYTHON), *arguments], capture_output=True, text=True, cwd=ROOT)


if __name__ == "__main__":
    main()
