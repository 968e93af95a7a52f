"""Texts that name rewards: weights, modules, files, and what is said about those that cannot be opened."""

import functools
import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import MissingExtraError, OptionError
from brim.generate.prompts.example import Example
from brim.generate.rewards import JudgeOptions, open_rewards, reward
from brim.generate.rewards.specs import parse_spec

EXAMPLE = Example("", "?", "42")
MODULE = '''
"""Rewards of a user."""
from dataclasses import dataclass
from brim.generate.rewards import reward

CONSTANT = 3

def size(prompt, response, example):
    return float(len(response))

@reward(name="named", batched=True)
def many(prompts, responses, examples):
    return [1.0] * len(prompts)

async def later(prompt, response, example):
    return 2.0

@dataclass
class Weighted:
    factor: float = 2.0

    def __call__(self, prompt, response, example):
        return self.factor

weighted = Weighted()

def two(prompt, response):
    return 1.0

def with_option(prompt, response, example, *, option):
    return 1.0

def with_default(prompt, response, example, tolerance=0.1):
    return tolerance
'''


def refused(specs, *parts, **options):
    """Check that rewards cannot be opened, and that one line says why."""
    with pytest.raises(OptionError) as error:
        open_rewards(specs, **options)
    text = str(error.value)
    assert "\n" not in text
    for part in parts:
        assert part in text, (part, text)
    return text


def value(*specs):
    with open_rewards(specs) as rewards, rewards.scoring() as scoring:
        scoring.submit(0, "prompt", "response", EXAMPLE)
        return scoring.results()[0]


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A folder with a module of rewards, which Python finds, and which is the working directory."""
    (tmp_path / "my_rewards.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("my_rewards", "failing", "empty"):
        sys.modules.pop(name, None)


# Weights


@given(st.floats(allow_nan=False, allow_infinity=False).filter(bool), st.sampled_from(["", " "]))
def test_a_weight_is_any_finite_number_but_zero(weight, space):
    parsed = parse_spec(f"{weight!r}{space}*{space}length:200")
    assert (parsed.weight, parsed.place, parsed.function) == (weight, "length", "200")


@pytest.mark.parametrize("weight", ["0", "-0.0", "nan", "inf", "-inf", "", "two", "0.1*0.2", "1e999"])
def test_a_weight_that_cannot_work_is_refused(weight):
    refused([f"{weight}*format"], "weight", repr(weight), "0.2*format")


def test_weights_and_names_can_be_read():
    with open_rewards(["answer", "-0.5*format", "2*length:10"]) as rewards:
        assert rewards.names == ("answer", "format", "length")
        assert rewards.weights == (1.0, -0.5, 2.0)


# Modules and files


@pytest.mark.parametrize("place", ["my_rewards", "my_rewards.py", "./my_rewards.py"])
@pytest.mark.parametrize(
    ("function", "parts"),
    [
        ("size", {"size": 8.0}),
        ("many", {"named": 1.0}),
        ("later", {"later": 2.0}),
        ("weighted", {"weighted": 2.0}),
        ("with_default", {"with_default": 0.1}),
    ],
)
def test_a_function_is_found_in_a_module_and_in_a_file(user, place, function, parts):
    assert value(f"{place}:{function}").parts == parts


def test_a_file_is_found_by_its_whole_path_and_run_once_for_all_its_functions(user, monkeypatch):
    path = user / "counting.py"
    path.write_text(MODULE + "\nimport os\nwith open(os.environ['RUNS'], 'a') as runs:\n    runs.write('run ')\n")
    monkeypatch.setenv("RUNS", str(user / "runs"))
    assert value(f"{path}:size", f"0.5*{path}:later").parts == {"size": 8.0, "later": 1.0}
    assert (user / "runs").read_text() == "run "


def test_files_of_one_name_in_two_folders_stay_apart(user):
    for folder, number in (("a", 1), ("b", 2)):
        (user / folder).mkdir()
        (user / folder / "r.py").write_text(f"def f_{folder}(prompt, response, example):\n    return {number}\n")
    assert value("a/r.py:f_a", "b/r.py:f_b").parts == {"f_a": 1, "f_b": 2}


def test_a_changed_file_is_read_again(user):
    path = user / "changed.py"
    for number in (1, 22):
        path.write_text(f"def f(prompt, response, example):\n    return {number}\n")
        assert value(f"{path}:f").value == number


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("exat", ["unknown reward 'exat'", "answer, exact", "package.module:function", 'Did you mean "exact"?']),
        ("", ["got ''"]),
        ("2*", ["got '2*'"]),
        (":f", ["got ':f'"]),
        ("my_rewards:", ["got 'my_rewards:'"]),
        ("no_such_module:f", ["'no_such_module'", "ModuleNotFoundError: No module named 'no_such_module'"]),
        ("my_rewards.deeper:f", ["'my_rewards.deeper'", "is not a package"]),
        ("my_rewards:siz", ["my_rewards has no function 'siz'", 'Did you mean "size"?']),
        ("my_rewards.py:siz", ["my_rewards.py has no function 'siz'", 'Did you mean "size"?']),
        ("missing.py:f", ["'missing.py:f'", "does not exist"]),
        ("folder/missing:f", ["'folder/missing:f'", "does not exist"]),
        ("./text.txt:f", ["not a Python file", ".py"]),
        ("my_rewards:CONSTANT", ["my_rewards:CONSTANT", "not a function but a int, 3"]),
        ("my_rewards:Weighted", ["my_rewards:Weighted", "is a class"]),
        ("my_rewards:two", ["(prompt, response, example)", "(prompt, response)"]),
        ("my_rewards:with_option", ["(prompt, response, example)", "*, option"]),
        ("failing:f", ["'failing'", "ZeroDivisionError: division by zero"]),
        ("failing.py:f", ["'failing.py'", "ZeroDivisionError: division by zero"]),
        ("wrong.py:f", ["'wrong.py'", "SyntaxError", "line 1"]),
        ("exact:3", ["exact takes no argument", "'exact:3'"]),
        ("judge:3", ["judge takes no argument", "'judge:3'"]),
        ("judge", ["JudgeOptions(servers=ADDRESS)"]),
        ("length", ["length:200", "'length'"]),
        ("length:0", ["length:200", "'length:0'"]),
        ("length:x", ["'length:x'"]),
        ("length:²", ["'length:²'"]),
    ],
)
def test_a_reward_that_cannot_be_opened_is_one_line(user, spec, parts):
    (user / "failing.py").write_text("1 / 0\n")
    (user / "wrong.py").write_text("def (\n")
    (user / "text.txt").write_text("text")
    refused([spec], *parts)


def test_a_file_that_fails_leaves_no_module(user):
    (user / "failing.py").write_text("1 / 0\n")
    before = set(sys.modules)
    refused(["failing.py:f"], "ZeroDivisionError")
    assert set(sys.modules) == before


def test_a_module_that_is_a_file_here_is_pointed_out(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    refused(["only_here:size"], 'write "only_here.py:size"')


def test_an_exit_of_a_module_is_an_exit(user):
    (user / "leaving.py").write_text("raise SystemExit(4)\n")
    with pytest.raises(SystemExit):
        open_rewards(["leaving.py:f"])


# Functions


@pytest.mark.parametrize("specs", ["exact", [], ()])
def test_rewards_are_a_list_that_is_not_empty(specs):
    refused(specs, "reward")


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        (3, ["not a function but a int, 3"]),
        (dict, ["is a class"]),
        (lambda prompt: 1.0, ["(prompt, response, example)", "(prompt)"]),
    ],
)
def test_what_is_not_a_reward_function_is_refused(function, parts):
    refused([function], *parts)


def test_functions_that_do_not_tell_their_parameters_are_taken():
    with open_rewards([max]) as rewards:
        assert rewards.names == ("max",)


def test_partial_functions_are_functions():
    def scaled(factor, prompt, response, example):
        return factor * len(response)

    async def scaled_later(factor, prompt, response, example):
        return factor * len(response)

    result = value(reward(name="a")(functools.partial(scaled, 2)), reward(name="b")(functools.partial(scaled_later, 3)))
    assert result.parts == {"a": 16, "b": 24}


def test_methods_keep_the_mark_of_their_function():
    class Rewarder:
        @reward(batched=True, name="own")
        def many(self, prompts, responses, examples):
            return [len(prompts)] * len(prompts)

        @reward(name="called")
        async def __call__(self, prompt, response, example):
            return 1.0

    one = Rewarder()
    assert value(one.many, one).parts == {"own": 1.0, "called": 1.0}
    with pytest.raises(OptionError, match="cannot be marked"):
        reward(name="x")(one.many)


def test_a_marked_function_is_the_same_function():
    def function(prompt, response, example):
        return 1.0

    assert reward(batched=True)(function) is function


def test_two_rewards_of_one_name_are_refused(user):
    (user / "other.py").write_text("def size(prompt, response, example):\n    return 1.0\n")
    refused(["my_rewards:size", "other.py:size"], "'size'", "@reward(name=...)")
    refused(["exact", "0.5*exact"], "'exact'")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"timeout": 0}, ["timeout", "0"]),
        ({"timeout": -1.5}, ["-1.5"]),
        ({"timeout": math.nan}, ["nan"]),
        ({"timeout": "5"}, ["'5'"]),
        ({"timeout": True}, ["True"]),
        ({"name": ""}, ["name", "''"]),
        ({"name": "a/b"}, ["'a/b'"]),
        ({"batched": 1}, ["batched", "1"]),
    ],
)
def test_a_mark_that_cannot_work_is_refused(options, parts):
    with pytest.raises(OptionError) as error:
        reward(**options)
    assert all(part in str(error.value) for part in parts)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"timeout": 0}, ["timeout", "0"]),
        ({"concurrency": 0}, ["concurrency", "0"]),
        ({"judge": JudgeOptions("http://127.0.0.1:9", model="m")}, ["judge", "no effect", "answer"]),
    ],
)
def test_options_that_cannot_work_are_refused(options, parts):
    refused(["answer"], *parts, **options)


def test_a_very_long_limit_is_no_limit():
    assert value(reward(timeout=1e300)(lambda prompt, response, example: 1.0)).value == 1


def test_a_missing_package_is_one_line_when_rewards_are_opened(monkeypatch):
    for module, name in (("math_verify", "math-verify"), ("reasoning_gym", "reasoning-gym")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtraError, match=rf"^the reward {name} needs {module}.*pip install"):
            open_rewards([name])


def test_opening_rewards_imports_nothing_heavy():
    program = """
import sys, json
from brim.generate.rewards import open_rewards
with open_rewards(["answer", "0.1*format", "numeric", "exact", "length:9"]):
    pass
print(json.dumps([name for name in ("torch", "aiohttp", "sympy", "reasoning_gym") if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == []
