"""The public face: names, import cost."""

import importlib.metadata
import json
import subprocess
import sys

import pytest

import brim

HEAVY = {"numpy", "torch", "jax", "transformers", "tokenizers", "datasets", "pyarrow", "rich", "orjson", "ray", "httpx"}


def loaded_by(code: str) -> set[str]:
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_brim_loads_nothing_but_brim():
    before, after = loaded_by("import importlib"), loaded_by("import brim")
    ours = {name for name in after - before if name.split(".")[0] == "brim"}
    assert ours == {"brim"}
    assert not after & HEAVY


@pytest.mark.parametrize("command", [[], ["--help"], ["plan", "--help"], ["lengths", "--help"], ["--version"]])
@pytest.mark.parametrize("module", ["brim.cli", "brim.cli.lazarus"])
def test_help_loads_click_and_little_else(module, command):
    if module.endswith("lazarus") and command[:1] in (["plan"], ["lengths"]):
        command = ["data", *command[1:]]
    code = f"import {module} as m\nsys.argv = ['x', *{command!r}]\ntry:\n    m.main()\nexcept SystemExit:\n    pass"
    loaded = loaded_by(code)
    assert "click" in loaded
    assert not loaded & HEAVY


def test_every_public_name_exists_and_is_listed_once():
    assert len(brim.__all__) == len(set(brim.__all__))
    for name in brim.__all__:
        assert getattr(brim, name).__module__.startswith("brim.")
    assert set(brim.__all__) <= set(dir(brim))
    assert set(brim._HOME_OF) == set(brim.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        brim.nonsense  # noqa: B018


def test_the_version_is_that_of_the_package():
    assert importlib.metadata.version("brim") == brim.__version__


def test_errors_share_one_base():
    errors = [getattr(brim, name) for name in brim.__all__ if name.endswith("Error")]
    assert len(errors) == 7
    assert all(issubclass(error, brim.BrimError) for error in errors)
