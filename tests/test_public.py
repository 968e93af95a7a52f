"""The public names of brim and of its rooms, and what importing them costs."""

import importlib.metadata
import json
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import brim

HEAVY = {"numpy", "torch", "jax", "transformers", "tokenizers", "datasets", "pyarrow", "rich", "orjson", "ray", "httpx"}


PACKAGE = Path(brim.__file__).parent
STUBS = sorted(PACKAGE.rglob("__init__.pyi"))
PACKAGES = [".".join(("brim", *stub.parent.relative_to(PACKAGE).parts)) for stub in STUBS]


def loaded_by(code: str) -> set[str]:
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_loads_no_module_behind_its_names(package):
    before, after = loaded_by("import importlib, typing"), loaded_by(f"import {package}")
    parents = {package.rsplit(".", depth)[0] for depth in range(package.count(".") + 1)}
    ours = {name for name in after - before if name.split(".")[0] == "brim"}
    assert ours == {"brim", "brim.core", "brim.core.lazy", *parents}
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


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_exists_and_is_listed_once(package):
    module = import_module(package)
    assert len(module.__all__) == len(set(module.__all__))
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        try:
            value = getattr(module, name)
        except brim.MissingExtraError:
            assert find_spec("torch") is None, "only what needs torch may be missing, and only where torch is"
            continue
        assert getattr(value, "__module__", "typing").split(".")[0] in {"brim", "types", "typing"}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_name_is_also_the_name_of_a_module_beside_it(package):
    """Importing the module would replace the name by the module, depending on what was imported before."""
    module = import_module(package)
    modules = {path.stem for path in Path(module.__file__).parent.iterdir()}
    assert not modules & set(module.__all__)


def test_every_room_can_be_reached_as_an_attribute():
    rooms = {package for package in PACKAGES if package.count(".") == 1}
    assert {"brim.data", "brim.plan", "brim.batch", "brim.analyze", "brim.envs", "brim.stream", "brim.train"} <= rooms
    code = "import brim; print(*[eval(name).__name__ for name in sys.argv[1:]])"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}", *PACKAGES], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == PACKAGES


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'brim' has no attribute 'nonsense'"):
        brim.nonsense  # noqa: B018
    assert not hasattr(brim, "_nonsense")
    assert not hasattr(brim.plan, "nonsense")


def test_a_name_of_a_room_says_where_it_is():
    with pytest.raises(
        ImportError, match=r"^brim\.HistogramBin is in brim\.analyze: from brim\.analyze import HistogramBin$"
    ):
        from brim import HistogramBin  # noqa: F401
    with pytest.raises(ImportError, match=r"from brim\.envs\.puzzle import PuzzleServer$"):
        brim.PuzzleServer  # noqa: B018
    with pytest.raises(ImportError, match=r"from brim\.envs\.puzzle import PuzzleServer$"):
        brim.envs.PuzzleServer  # noqa: B018


@pytest.mark.slow
def test_pyright_knows_the_types_and_refuses_unknown_names(tmp_path):
    script = tmp_path / "use.py"
    script.write_text(
        "from brim import BatchPlan, Nope\n"
        "from brim.plan import save_shards, Neither\n"
        "import brim\n"
        "reveal_type(BatchPlan.load('plan').num_epochs)\n"
        "brim.Nobody\n"
    )
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(PACKAGE.parent)]}))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", tmp_path],
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert [
        (entry["range"]["start"]["line"], entry.get("rule")) for entry in found if entry["severity"] == "error"
    ] == [
        (0, "reportAttributeAccessIssue"),
        (1, "reportAttributeAccessIssue"),
        (4, "reportAttributeAccessIssue"),
    ]
    assert [entry["message"] for entry in found if entry["severity"] == "information"] == [
        'Type of "BatchPlan.load(\'plan\').num_epochs" is "int"'
    ]


def test_the_version_is_that_of_the_package():
    assert importlib.metadata.version("brim") == brim.__version__


def test_errors_share_one_base():
    errors = [getattr(brim, name) for name in brim.__all__ if name.endswith("Error")]
    assert len(errors) == 7
    assert all(issubclass(error, brim.BrimError) for error in errors)
