"""The tiers: what a test needs is read off its source, and the quick tier has neither torch nor JAX."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import tiers

TORCH_IN_A_HELPER = """
import pytest

def model():
    import torch
    return torch.nn.Linear(1, 1)

@pytest.fixture
def trained():
    return model()

def test_by_fixture(trained): ...
def test_by_helper(): model()
def test_of_nothing(): ...
"""


def marks(folder: Path, source: str, name: str) -> set[str]:
    path = folder / "test_it.py"
    path.write_text(source)
    tiers._tree.cache_clear()
    tiers._definitions.cache_clear()
    return set(tiers.marks_of_import.__wrapped__(path)) | set(tiers.marks_of_name.__wrapped__(path, name))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch", {"torch"}),
        ("import torch.nn as nn", {"torch"}),
        ("from safetensors.torch import load_file", {"torch"}),
        ("from safetensors import torch", {"torch"}),
        ("from brim.batch.torch import TensorBatch", {"torch"}),
        ("from brim.train.loss import token_losses", {"torch"}),
        ("from brim.train import train_sft", {"torch"}),
        ("from transformers import AutoModelForCausalLM", {"torch"}),
        ("from transformers import AutoTokenizer", set()),
        ("from brim import BatchPlan, LengthCache", set()),
        ("import brim", set()),
        ("import jax.numpy", {"jax"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n", set()),
        ("def unused():\n    import torch\n", set()),
        ("def test():\n    import torch\n", {"torch"}),
        ("def test():\n    from support.worlds import World\n    World()\n", {"torch", "process"}),
        ("import subprocess\ndef test():\n    subprocess.run([])", {"process"}),
        ("from brim.envs.puzzle.wire.server import PuzzleServer\ndef test(): ...", set()),
        ("from brim.envs.puzzle.wire.server import PuzzleServer\ndef test():\n    PuzzleServer()", {"server"}),
    ],
)
def test_a_test_is_marked_by_what_it_imports_and_uses(source, expected, tmp_path):
    assert marks(tmp_path, source, "test") == expected


@pytest.mark.parametrize(
    ("name", "expected"), [("test_by_helper", {"torch"}), ("trained", {"torch"}), ("test_of_nothing", set())]
)
def test_helpers_are_followed(name, expected, tmp_path):
    assert marks(tmp_path, TORCH_IN_A_HELPER, name) == expected


HIDDEN = ("torch", "jax", "peft", "accelerate")


def test_a_quick_test_never_finds_torch(request):
    if not request.config.option.quick:
        pytest.skip("torch is hidden in the quick tier only")
    assert [name for name in HIDDEN if find_spec(name)] == []
    assert "torch" not in sys.modules


def test_the_quick_tier_leaves_out_what_is_marked_and_refuses_torch_to_the_rest(tmp_path):
    """Run as a project of its own, with the conftest of this one."""
    (tmp_path / "tests").symlink_to(tiers.ROOT / "tests")
    (tmp_path / "conftest.py").write_text((tiers.ROOT / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = tests\n")
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "test_some.py").write_text(
        "import importlib, pytest\n"
        "def test_plain(): ...\n"
        "def test_marked_by_import():\n    import torch\n"
        "def test_forgotten():\n    importlib.import_module('tor' + 'ch')\n"
        "@pytest.mark.slow\ndef test_slow(): ...\n"
    )
    (suite / "test_torch.py").write_text("import torch\ndef test_it(): ...\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--quick", "-rA", "suite"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed, 2 deselected" in done.stdout
    assert "PASSED suite/test_some.py::test_plain" in done.stdout
    assert "FAILED suite/test_some.py::test_forgotten - ModuleNotFoundError" in done.stdout
