"""The rewards that come with brim, but the judge."""

import logging
import signal
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.generate.prompts.check import score_response
from brim.generate.prompts.example import Example
from brim.generate.prompts.registry import sample_examples
from brim.generate.prompts.template import ANSWER_STOP, think_prompt, with_solution
from brim.generate.rewards import RewardFailure, open_rewards

TAGGED = Example("", "?", "42", stop=ANSWER_STOP)
PLAIN = Example("", "?", "42", stop=("\n",))
UNKNOWN = Example("", "?", None)

pieces = st.lists(
    st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", " ", "\n", "x", "42", "<think", "/answer>"]),
    max_size=9,
).map("".join)


def outcome(spec, response, example=TAGGED, timeout=60.0):
    with open_rewards([spec], timeout=timeout) as rewards, rewards.scoring() as scoring:
        scoring.submit(0, example.question, response, example)
        return scoring.results()[0]


def value(spec, response, example=TAGGED):
    return outcome(spec, response, example).value


def tagged(answer):
    return f"thoughts</think><answer> {answer} </answer>"


# Answers


@pytest.mark.parametrize("example", [*sample_examples("arithmetic", "test", 2, seed=0), TAGGED, PLAIN])
@pytest.mark.parametrize("response", ["42", " 42.0\nand more", tagged("42"), tagged("4,2"), "", "<answer>42"])
def test_answer_is_the_score_of_the_response(example, response):
    assert value("answer", response, example) == score_response(example, response)


@pytest.mark.parametrize(
    ("response", "example", "expected"),
    [
        (tagged("42"), TAGGED, 1.0),
        (tagged("\n 42\t"), TAGGED, 1.0),
        (tagged("42.0"), TAGGED, 0.0),
        (tagged("042"), TAGGED, 0.0),
        ("42", TAGGED, 0.0),
        ("<answer>42</answer><answer>42</answer>", TAGGED, 0.0),
        (" 42 \nbecause", PLAIN, 1.0),
        ("it is 42", PLAIN, 0.0),
        ("Paris", Example("", "?", " Paris\n"), 1.0),
        ("paris", Example("", "?", "Paris"), 0.0),
    ],
)
def test_exact_compares_the_answer_character_by_character(response, example, expected):
    assert value("exact", response, example) == expected


@pytest.mark.parametrize(
    ("response", "example", "expected"),
    [
        (tagged("42.0"), TAGGED, 1.0),
        (tagged("$42"), TAGGED, 1.0),
        (tagged("84/2"), TAGGED, 1.0),
        (tagged("43"), TAGGED, 0.0),
        (tagged("forty-two"), TAGGED, 0.0),
        ("42", TAGGED, 0.0),
        ("1,200", Example("", "?", "1200.00"), 1.0),
    ],
)
def test_numeric_compares_by_value(response, example, expected):
    assert value("numeric", response, example) == expected


def test_closeness_falls_with_the_relative_difference():
    example = Example("", "?", "40", stop=("\n",))
    found = [value("closeness", response, example) for response in ("40", "30\n", "50", "-40", "forty", "1/0")]
    assert found == [1.0, 0.75, 0.8, 0.0, 0.0, 0.0]
    assert value("closeness", "0", Example("", "?", "0")) == 1.0


def test_numeric_needs_a_number_as_a_reference():
    failure = outcome("numeric", "Paris", Example("", "?", "Paris"))
    assert failure.kind == "DataError"
    assert "'Paris' is not a number" in failure.message


@pytest.mark.parametrize("name", ["answer", "exact", "numeric", "math-verify", "reasoning-gym"])
@pytest.mark.parametrize("response", ["42", ""])
def test_an_example_without_a_reference_is_a_failure(name, response):
    pytest.importorskip({"math-verify": "math_verify", "reasoning-gym": "reasoning_gym"}.get(name, "brim"))
    failure = outcome(name, response, UNKNOWN)
    assert (type(failure), failure.kind) == (RewardFailure, "NoAnswer")
    assert UNKNOWN.id in failure.message


# Form and length


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("thoughts </think> <answer> 42 </answer>", 1.0),
        ("<think> thoughts </think>\n\n<answer>42</answer>\n", 1.0),
        (" \n<think>thoughts</think><answer>42</answer> ", 1.0),
        ("", 0.0),
        ("42", 0.0),
        ("<answer>42</answer>", 0.0),
        ("</think><answer>42</answer>", 0.0),
        ("<think> </think><answer>42</answer>", 0.0),
        ("thoughts</think><answer> </answer>", 0.0),
        ("thoughts</think>so <answer>42</answer>", 0.0),
        ("thoughts</think><answer>42</answer>.", 0.0),
        ("thoughts</think><answer>42", 0.0),
        ("thoughts</think></answer>42<answer>", 0.0),
        ("</answer>thoughts</think><answer>42", 0.0),
        ("thoughts</think><answer>42</answer><answer>43</answer>", 0.0),
        ("thoughts</think>more</think><answer>42</answer>", 0.0),
        ("a<think>b</think><answer>42</answer>", 0.0),
        ("<think><think>b</think><answer>42</answer>", 0.0),
        ("thoughts<answer>42</answer></think>", 0.0),
        ("thoughts</think><answer><think></answer>", 0.0),
    ],
)
def test_the_form_is_reasoning_and_then_one_answer(response, expected):
    assert value("format", response) == expected


@given(pieces)
def test_a_response_has_the_form_if_it_is_put_together_from_its_parts(response):
    """The definition: all ways to cut the response into parts."""
    tags = ("<think>", "</think>", "<answer>", "</answer>")
    start = response.strip().removeprefix("<think>")
    has_form = False
    for at in range(len(start)):
        for behind in range(at, len(start)):
            thoughts, between, rest = start[:at], start[at:behind], start[behind:]
            if not (between.startswith("</think>") and between.endswith("<answer>") and rest.endswith("</answer>")):
                continue
            inside = rest.removesuffix("</answer>")
            middle = between[len("</think>") : -len("<answer>")]
            clean = not any(tag in text for tag in tags for text in (thoughts, middle, inside))
            has_form |= bool(clean and thoughts.strip() and not middle.strip() and inside.strip())
    assert value("format", response) == has_form


def test_worked_solutions_have_the_form():
    prompt = think_prompt("6 * 7")
    assert value("format", with_solution(prompt, "six sevens", "42").removeprefix(prompt)) == 1.0


@pytest.mark.parametrize(("characters", "expected"), [(0, 1.0), (200, 1.0), (250, 0.75), (400, 0.0), (1000, 0.0)])
def test_length_falls_linearly_from_the_limit_to_twice_the_limit(characters, expected):
    assert value("length:200", "ß" * characters) == expected


# math-verify


@pytest.fixture(scope="module")
def math_verify():
    return pytest.importorskip("math_verify", reason="an optional extra")


@pytest.mark.parametrize(
    ("reference", "answer", "expected"),
    [
        ("42", "42.0", 1.0),
        ("1/2", "\\frac{1}{2}", 1.0),
        ("\\frac{1}{2}", "0.5", 1.0),
        ("x^2 + 2x + 1", "(x+1)^2", 1.0),
        ("x^2 + 2x + 1", "(x+2)^2", 0.0),
        ("$\\sqrt{8}$", "2\\sqrt{2}", 1.0),
        ("\\{1, 2\\}", "\\{2, 1\\}", 1.0),
        ("42", "$42$", 1.0),
        ("42", "\\boxed{42}", 1.0),
        ("42", "43", 0.0),
        ("42", "", 0.0),
        ("42", "((((", 0.0),
        ("42", "1" * 100_000, 0.0),
    ],
)
def test_math_verify_compares_by_mathematics(math_verify, reference, answer, expected):
    example = Example("", "?", reference, stop=ANSWER_STOP)
    assert value("math-verify", tagged(answer), example) == expected


def test_math_verify_finds_the_answer_in_a_text_without_tags(math_verify):
    example = Example("", "?", "\\frac{3}{4}")
    assert value("math-verify", "First, 1 + 1 = 2.\nSo it is $\\boxed{0.75}$.", example) == 1.0
    assert value("math-verify", "First, $\\frac{3}{4}$.\nSo it is $\\boxed{2}$.", example) == 0.0
    assert value("math-verify", tagged("0.75") + tagged("0.75"), Example("", "?", "0.75", stop=ANSWER_STOP)) == 0.0


def test_a_reference_without_mathematics_is_a_failure(math_verify):
    failure = outcome("math-verify", tagged("42"), Example("", "?", " ", stop=ANSWER_STOP))
    assert (failure.kind, "no mathematics" in failure.message) == ("DataError", True)


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "1000000!"])
def test_what_never_ends_in_math_verify_is_ended_by_our_limit_and_not_by_its_own(math_verify, answer, monkeypatch):
    alarms = []
    monkeypatch.setattr(signal, "alarm", alarms.append)
    assert outcome("math-verify", tagged(answer), timeout=0.2).kind == "Timeout"
    assert alarms == []
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    assert value("math-verify", tagged("42")) == 1.0


def test_a_text_that_math_verify_cannot_read_is_a_wrong_answer(math_verify):
    digits = "1" * 100_000
    with pytest.raises(Exception, match="could not parse"):
        math_verify.parse(digits, parsing_timeout=None, raise_on_error=True)
    assert value("math-verify", digits, PLAIN) == 0.0


def test_math_verify_works_off_the_main_thread_and_warns_of_nothing(math_verify, caplog, monkeypatch):
    for module in (math_verify.parser, math_verify.grader):
        monkeypatch.setattr(module, "TIMEOUT_WARNING_SHOWN", False)
    found = []
    thread = threading.Thread(target=lambda: found.append(value("math-verify", tagged("84/2"))))
    with caplog.at_level(logging.WARNING):
        thread.start()
        thread.join()
    assert found == [1.0]
    assert caplog.records == []


# reasoning-gym


def test_reasoning_gym_is_the_score_of_the_task():
    pytest.importorskip("reasoning_gym", reason="an optional extra")
    [example] = sample_examples("reasoning-gym:chain_sum", "test", 1, seed=0)
    assert value("reasoning-gym", tagged(example.answer), example) == 1.0
    wrong = value("reasoning-gym", tagged("no"), example)
    assert wrong == score_response(example, tagged("no")) < 1
    assert value("reasoning-gym", "no tags", example) == 0.0
