"""The page of GRPO runs: what is read, said, counted and written.

What the page does in a browser is tested in test_page_browser.py.
"""

import json
import math
import re
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiers
from support.grpo_runs import OPTIONS, STEPS, create_evaluation, create_run
from support.pages import Tags
from support.query_runs import HOSTILE

from brim.core.display import visible
from brim.core.errors import DamagedError, DataError
from brim.train.grpo.page import render_grpo_page
from brim.train.grpo.page.attempts import ALL_CHARACTERS, longest_text
from brim.train.grpo.page.read import BEFORE, EVALUATION_FILE, MODEL, ROLLOUTS, read_run
from brim.train.grpo.page.remarks import remarks
from brim.train.grpo.page.runs import RunShown, differences, short_names, spread
from brim.train.grpo.page.stretch import POINTS, Stretch, create_curves, points_of
from brim.train.grpo.page.through import MOST_EVALUATIONS, chosen_evaluations, followed_tasks
from brim.train.grpo.page.words import advice, verdict
from brim.train.grpo.report import ShownAttempt, ShownGroup
from brim.train.output import RUN, RUN_FORMAT

ONE = create_run(24)
SEEDS = [create_run(24, name=f"runs/seed-{seed}", seed=seed) for seed in range(3)]


def data_of(page):
    """The numbers of a page. NaN and Infinity are not JSON."""
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    return json.loads(text, parse_constant=pytest.fail)


def changed(run, **changes):
    """The run with these fields in all of its reports."""
    return replace(run, rollouts=[replace(one, **changes) for one in run.rollouts])


def evaluated(*rewards, error=0.02, is_over=True):
    """A run whose first reward is that before training, with an evaluation after each of its rollouts."""
    evaluation = create_evaluation(0.5)
    made = [None if reward is None else replace(evaluation, reward=reward, reward_error=error) for reward in rewards]
    run = create_run(max(1, len(rewards) - 1), evaluate=0)
    rollouts = [replace(one, evaluation=found) for one, found in zip(run.rollouts, made[1:], strict=False)]
    return replace(run, before=made[0] if made else None, rollouts=rollouts, is_over=is_over)


def rewarded(*rewards):
    """A run without evaluations, with these rewards in training."""
    run = create_run(len(rewards), evaluate=0)
    rollouts = [replace(one, reward=reward, failures={}) for one, reward in zip(run.rollouts, rewards, strict=True)]
    return replace(run, rollouts=rollouts)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (
            evaluated(0.2, 0.5),
            "The mean reward on 64 held-out tasks rose from 0.200 ± 0.020 before training to 0.500 ± 0.020 after 4 "
            "steps. The difference is 10.6 standard errors, more than chance explains.",
        ),
        (evaluated(0.5, 0.6, 0.2), "fell from 0.500 ± 0.020 before training to 0.200 ± 0.020 after 8 steps"),
        (evaluated(0.5, 0.53), "hardly changed, from 0.500 ± 0.020 before training to 0.530 ± 0.020"),
        (evaluated(0.5, 0.53), "The difference is 1.1 standard errors: chance may explain it."),
        (evaluated(0.5, 0.5), "stayed the same, from 0.500 ± 0.020 before training to 0.500 ± 0.020 after 4 steps."),
        (evaluated(0.2, 0.5, error=None), "to 0.500 after 4 steps; one task says little"),
        (evaluated(None, 0.2, 0.5), "rose from 0.200 ± 0.020 after 4 steps to 0.500 ± 0.020 after 8 steps"),
        (evaluated(0.2, 0.5, is_over=False), "So far, the mean reward on 64 held-out tasks rose"),
        (evaluated(0.2, None), "held-out reward was 0.200 ± 0.020 before training, and was not measured again."),
        (rewarded(0.2, 0.3, 0.6), "reward in training rose from 0.200 to 0.600 between the first and the last rollout"),
        (rewarded(0.6, 0.2), "The mean reward in training fell from 0.600 to 0.200"),
        (rewarded(0.4, 0.9, 0.4), "The mean reward in training stayed at 0.400"),
        (rewarded(0.4), "The mean reward in training was 0.400; one rollout shows no trend."),
        (rewarded(None, None), "No attempt in training has a reward."),
        (replace(ONE, rollouts=[]), "No rollout is finished yet"),
    ],
)  # fmt: skip
def test_the_verdict_says_what_became_of_the_reward_and_whether_chance_explains_it(run, words):
    assert words in verdict([run])


def test_noise_in_the_training_reward_is_called_chance():
    noisy = rewarded(*[0.1, 0.6, 0.2, 0.5] * 9, 0.1, 0.6, 0.3, 0.5)
    assert "hardly changed from 0.350 to 0.375 between the first and the last tenth of the rollouts" in verdict([noisy])
    assert "chance may explain the difference" in verdict([noisy])


def test_several_runs_are_judged_by_their_mean_and_by_how_much_they_differ():
    alike = [evaluated(0.2, 0.5), evaluated(0.2, 0.6), evaluated(0.2, 0.7)]
    words = verdict(alike)
    assert "rose from 0.200 ± 0.020 before training to 0.600 ± 0.058 after 4 steps" in words
    assert "6.9 standard errors" in words  # 0.4 / (0.1 / sqrt(3))
    assert "means of 3 runs; the reward rose in all of them" in words
    mixed = [evaluated(0.4, 0.9), evaluated(0.4, 0.1)]
    assert "chance may explain it" in verdict(mixed)
    assert "rose in 1 of them" in verdict(mixed)
    assert "rose in both of them" in verdict(alike[:2])


def test_the_advice_tells_the_training_reward_and_how_far_a_run_is():
    assert "The mean reward in training rose" in advice([ONE])
    assert advice([rewarded(0.2, 0.4)]) == ""
    half = create_run(12, planned=24)
    assert "The run is not over; it has taken 48 of 96 optimizer steps." in advice([half])
    assert "The run ended early, after 48 of 96 optimizer steps." in advice([replace(half, is_over=True)])
    assert "seed-1: the run is not over" in advice([ONE, replace(half, name="seed-1")])


def ends_changed(run, first, last):
    """The run with some fields in its first half and others in its second half."""
    middle = len(run.rollouts) // 2
    rollouts = [replace(one, **(first if at < middle else last)) for at, one in enumerate(run.rollouts)]
    return replace(run, rollouts=rollouts)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (({}, {"failures": {"RewardTimeout": 3, "ValueError": 1}}), "48 attempts of 3,072 (1.6%) have no reward"),
        (({}, {"failures": {"RewardTimeout": 3, "ValueError": 1}}), "RewardTimeout 36, ValueError 12."),
        (({"dead": 2, "dead_low": 0}, {"dead": 12, "dead_low": 12}), "of the rollouts to 75.0% in the last"),
        (({"dead": 2, "dead_low": 0}, {"dead": 12, "dead_low": 12}), "too hard for the model, or the reward is wrong"),
        (({"dead": 2, "dead_low": 0}, {"dead": 12, "dead_low": 0}), "the tasks have become too easy"),
        (({}, {"loss": None}), "On 12 rollouts of 24 no step was taken"),
        (({}, {"truncated": 64, "masked": 64}), "50.0% of the attempts in the last tenth"),
        (({}, {"truncated": 64, "masked": 64}), "were cut off, and not trained on; allow more tokens."),
        (({}, {"truncated": 64, "masked": 0}), "were cut off, and trained on as they are"),
        (({"entropy": 2.0}, {"entropy": 0.1}), "The entropy fell to 0.100 nats, 5.0% of what it began with (2.000)"),
        (({}, {"mismatch": 0.03}), "differ by more than 0.02 nats a token in 12 rollouts (up to 0.030)"),
        (({}, {"kl": 0.7}), "The KL divergence to the reference is 0.700 nats a token at the end"),
        (({}, {"policy_kl": 0.2}), "In 12 rollouts the steps moved the policy by more than 0.1 nats"),
    ],
)  # fmt: skip
def test_signs_of_trouble_are_remarked_on(changes, words):
    quiet = changed(ONE, failures={})
    assert remarks([quiet]) == []
    assert words in " ".join(remarks([ends_changed(quiet, *changes)]))


def test_remarks_on_several_runs_name_the_run_and_add_up_failures():
    good, bad = SEEDS[0], changed(SEEDS[1], mismatch=0.5, kl=0.9)
    found = remarks([changed(good, failures={"A": 1}), changed(bad, failures={"A": 2})])
    assert found[0].startswith("72 attempts of 6,144 (1.2%) have no reward")
    assert len(found) == 2
    assert found[1].startswith("runs/seed-1: Log-probabilities")
    assert "KL divergence" in found[1]


def test_failures_in_evaluations_are_remarked_on():
    failing = replace(create_evaluation(0.1), failures={"Timeout": 5})
    assert "5 of 512 attempts in evaluations have no reward" in " ".join(remarks([replace(ONE, before=failing)]))


def facts_of(page):
    return dict(re.findall(r'data-fact="(\w+)">([^<]*)<', page))


def test_the_facts_are_sums_over_the_runs_and_means_of_their_last_evaluations():
    facts = facts_of(render_grpo_page(SEEDS))
    reports = [one for run in SEEDS for one in run.rollouts]
    last = [run.rollouts[-1].evaluation for run in SEEDS]
    assert facts["rollouts"] == "72"
    assert facts["steps"] == str(3 * 24 * STEPS)
    assert facts["attempts"] == f"{sum(one.attempts for one in reports):,}"
    assert facts["tokens"] == f"{sum(one.rollout_tokens for one in reports):,}"
    assert facts["reward"] == f"{sum(one.reward for one in last) / 3:.3f}"
    assert facts["passed"] == f"{sum(one.pass_rate for one in last) / 3:.1%}"
    assert facts_of(render_grpo_page([replace(ONE, rollouts=[], before=None)]))["reward"] == "–"


anything = st.none() | st.floats(allow_nan=True, allow_infinity=True)
counts = st.dictionaries(st.text(max_size=3), st.integers(0, 4), max_size=2)


@st.composite
def odd_runs(draw):
    """A run with reports that no run would write, as far as their types allow it."""
    rollouts = draw(st.integers(0, 6))
    found = []
    for one in create_run(rollouts, evaluate=draw(st.integers(0, 2))).rollouts:
        names = ("reward", "pass_rate", "entropy", "kl", "policy_kl", "grad_norm", "mismatch", "fill", "rollout_fill")
        values = {name: draw(anything) for name in draw(st.lists(st.sampled_from(names), unique=True))}
        values |= {"failures": draw(counts), "finish_reasons": draw(counts), "step": draw(st.integers(0, 9))}
        values |= {"attempts": draw(st.integers(0, 9)), "groups": draw(st.integers(0, 3)), "loss": draw(anything)}
        values["parts"] = draw(st.dictionaries(st.text(max_size=3), st.floats(), max_size=2))
        found.append(replace(one, **values))
    return replace(create_run(1), rollouts=found, is_over=draw(st.booleans()))


@given(st.lists(odd_runs(), min_size=1, max_size=3))
@settings(max_examples=25)
def test_every_run_has_a_page_whose_numbers_are_json(runs):
    data = data_of(render_grpo_page(runs))
    assert [len(one["curves"]["reward"]) for one in data["runs"]] == [len(run.rollouts) for run in runs]


@given(st.integers(1, 5), st.integers(0, 900))
@settings(max_examples=20)
def test_points_lose_no_rollout_and_stand_for_the_same_ones_in_all_runs(many, rollouts):
    runs = [replace(ONE, rollouts=ONE.rollouts[:1] * (rollouts // (at + 1))) for at in range(many)]
    points = points_of(runs)
    assert [sum(len(point.rollouts) for point in of) for of in points] == [len(run.rollouts) for run in runs]
    assert max(map(len, points)) <= POINTS
    whole = [[len(point.rollouts) for point in of] for of in points]
    assert all(sizes[:-1] == whole[0][: len(sizes)][:-1] for sizes in whole)


def test_means_are_weighted_by_what_they_are_means_of():
    first, second = ONE.rollouts[0], ONE.rollouts[1]
    first = replace(first, attempts=10, failures={"Timeout": 9}, reward=1.0, length=10.0)
    second = replace(second, attempts=30, failures={}, reward=0.0, length=20.0)
    both = Stretch([first, second])
    assert both.reward == pytest.approx(1 / 31)
    assert both.over_attempts("length") == pytest.approx(17.5)
    curves = create_curves([both], ["answer", "unknown"], ["eos", "unknown"])
    assert curves["parts"][1] == [None]
    assert curves["ended"] == [[first.finish_reasons["eos"] + second.finish_reasons["eos"]], [0]]
    assert sum(curves["seconds"][at][0] for at in range(4)) == pytest.approx(first.seconds + second.seconds, rel=1e-4)
    assert curves["version"] == [STEPS / 2]
    assert curves["step"] == [STEPS * 1.5]


@given(st.integers(0, 300), st.integers(2, 20))
def test_chosen_positions_are_even_and_include_both_ends(count, most):
    found = spread(count, most)
    assert found == sorted(set(found))
    assert len(found) == min(count, most)
    if count:
        assert (found[0], found[-1]) == (0, count - 1)
        gaps = [b - a for a, b in pairwise(found)]
        assert not gaps or max(gaps) - min(gaps) <= 1


def test_every_task_is_followed_through_the_chosen_evaluations():
    run = create_run(24, evaluate=2)
    assert len(run.evaluations) == 13
    chosen = chosen_evaluations(run)
    assert len(chosen) == MOST_EVALUATIONS
    assert (chosen[0].step, chosen[-1].step) == (0, 24 * STEPS)
    tasks = followed_tasks(chosen)
    assert [task.any.task for task in tasks] == ["sum-0", "sum-1", "sum-2", "sum-3"]
    for at, task in enumerate(tasks):
        assert list(task.groups) == [one.evaluation.shown[at] for one in chosen]


def test_a_task_that_an_evaluation_does_not_show_leaves_a_gap_and_one_that_comes_twice_is_two():
    evaluation = create_evaluation(0.5)
    first = evaluation.shown[0]
    rollouts = [
        replace(ONE.rollouts[0], evaluation=replace(evaluation, shown=(first, first))),
        replace(ONE.rollouts[1], evaluation=replace(evaluation, shown=(evaluation.shown[1],))),
    ]
    run = replace(ONE, before=None, rollouts=rollouts)
    groups = [task.groups for task in followed_tasks(chosen_evaluations(run))]
    assert groups == [(first, None), (first, None), (None, evaluation.shown[1])]
    words = Tags(render_grpo_page([run])).words
    assert words.count("not shown") == 3


def test_the_page_shows_the_attempts_of_the_chosen_evaluations_and_of_the_first_and_last_rollout_alone():
    texts = {}
    for at, one in enumerate(ONE.rollouts):
        attempt = replace(one.shown[0].attempts[0], text=f"drawn in rollout {at}")
        texts[at] = replace(one.shown[0], attempts=(attempt,))
    run = replace(ONE, rollouts=[replace(one, shown=(texts[at],)) for at, one in enumerate(ONE.rollouts)])
    words = " ".join(Tags(render_grpo_page([run])).words)
    assert [at for at in range(24) if re.search(rf"drawn in rollout {at}\b", words)] == [0, 23]
    assert "First rollout (1), drawn by the weights of step 0" in words
    assert f"Last rollout (24), drawn by the weights of step {23 * STEPS}" in words


def page_of(text):
    """A page on which this text is everything that models or data can name."""
    attempt = ShownAttempt(
        text=text, reward=0.5, parts={text: 1.0, f"{text}2": 0.0}, finish_reason=text, tokens=3, turns=2, passed=None,
        failure=None,
    )  # fmt: skip
    failed = replace(attempt, reward=None, failure=text, passed=False)
    group = ShownGroup(task=text, prompt=text, answer=text, attempts=(attempt, failed))
    evaluation = replace(create_evaluation(0.5), shown=(group,))
    rollouts = [
        replace(
            one,
            shown=(group,),
            parts={text: 1.0, f"{text}2": 0.5},
            failures={text: 2},
            finish_reasons={text: 4},
            evaluation=evaluation,
        )
        for one in ONE.rollouts[:2]
    ]
    options = {text: text, "more": {text: [text]}}
    runs = [RunShown(f"a/{text}", rollouts, evaluation, options, True), RunShown("b", rollouts, None, {}, False)]
    return render_grpo_page(runs)


PLAIN = Tags(page_of("text")).seen


@given(st.text(min_size=1, max_size=30).filter(lambda text: text.strip() and text.count("\n") < 7))
@settings(max_examples=25)
def test_no_text_of_a_model_makes_or_changes_an_element(text):
    page = page_of(text)
    page.encode()
    seen = Tags(page).seen
    # A finish reason of "length" is set in bold.
    assert seen == PLAIN or text == "length"


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in ("long", "lines")])
def test_hostile_text_is_shown_as_it_is_with_every_character_visible(name):
    page = page_of(HOSTILE[name])
    tags = Tags(page)
    assert tags.seen == PLAIN
    assert tags.words.count(visible(HOSTILE[name])) >= 7
    assert all(char.isprintable() or char == "\n" for char in page)


def test_long_runs_with_long_texts_stay_small():
    run = create_run(10, texts=["<word> " * 700], evaluate=1)
    rollouts = [
        replace(run.rollouts[at % 10], rollout=at + 1, version=at * STEPS, step=(at + 1) * STEPS, steps=10_000 * STEPS)
        for at in range(10_000)
    ]
    page = render_grpo_page([replace(run, rollouts=rollouts)])
    curves = data_of(page)["runs"][0]["curves"]
    assert len(curves["reward"]) == POINTS
    assert curves["first"][:2] == [1, 26]
    naive = Stretch(rollouts[:25])
    assert curves["reward"][0] == pytest.approx(naive.reward, rel=1e-5)
    assert curves["grad_norm"][0] == pytest.approx(sum(one.grad_norm for one in rollouts[:25]) / 25, rel=1e-5)
    assert f"{POINTS} means over stretches of the 10,000 rollouts" in page
    assert len(page) < 1_500_000
    assert "means over stretches" not in render_grpo_page([ONE])


def test_the_more_texts_a_page_shows_the_shorter_they_are():
    assert longest_text(3) == 10_000
    assert longest_text(100) == ALL_CHARACTERS // 100
    assert longest_text(10**9) == longest_text(10**6) > 0
    page = render_grpo_page([create_run(4, texts=["x" * 9_999])])
    shown = int(re.search(r"Show ([\d,]+) of 9,999 characters", page)[1].replace(",", ""))
    assert max(map(len, re.findall("x+", page))) == shown < 9_999


def test_runs_are_averaged_only_if_they_differ_in_nothing_but_seed_and_output():
    assert differences(SEEDS) == {}
    assert data_of(render_grpo_page(SEEDS))["averaged"]
    other = replace(SEEDS[1], options={**SEEDS[1].options, "learning_rate": 1e-5, "lora": {"rank": 4, "alpha": 16}})
    found = differences([SEEDS[0], other])
    assert found == {"learning_rate": [1e-4, 1e-5], "lora.rank": [8, 4]}
    page = render_grpo_page([SEEDS[0], other])
    assert not data_of(page)["averaged"]
    assert "What differs, beside the seed" in page
    assert not data_of(render_grpo_page([ONE]))["averaged"]


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["runs/a", "runs/b"], ["a", "b"]),
        (["runs/seed-1", "runs/seed-10"], ["seed-1", "seed-10"]),
        (["x/a/out", "x/b/out"], ["a/out", "b/out"]),
        (["a", "b/a"], ["a", "b/a"]),
        (["x/run", "x/run"], ["run (1)", "run (2)"]),
        (["x/run"], ["x/run"]),
    ],
)
def test_runs_are_named_by_what_tells_them_apart(names, short):
    assert short_names(names) == short


def write_run(folder, run):
    """The files of a run, as a run writes them."""
    folder.mkdir(exist_ok=True)
    (folder / RUN).write_text(json.dumps({"format": RUN_FORMAT, "config": dict(run.options)}))
    (folder / ROLLOUTS).write_text("".join(json.dumps(asdict(one)) + "\n" for one in run.rollouts))
    if run.before is not None:
        EVALUATION_FILE.write(folder / BEFORE, asdict(run.before))
    if run.is_over:
        (folder / MODEL).mkdir(exist_ok=True)
    return folder


def test_a_run_that_was_written_and_read_makes_the_same_page(tmp_path):
    run = create_run(24, evaluate=2)
    read = read_run(write_run(tmp_path / "run", run))
    assert read.name == str(tmp_path / "run")
    assert read.before == run.before
    assert read.is_over
    assert [replace(one, shown=(), evaluation=None) for one in read.rollouts] == [
        replace(one, shown=(), evaluation=None) for one in run.rollouts
    ]
    # Only the texts that are shown are read, so that a long run needs little memory.
    assert sum(bool(one.shown) for one in read.rollouts) <= MOST_EVALUATIONS + 1
    assert render_grpo_page([replace(read, name=run.name)]) == render_grpo_page([run])


def test_a_run_can_be_read_while_it_runs(tmp_path):
    folder = write_run(tmp_path / "run", replace(create_run(3, planned=9), rollouts=[], before=None))
    (folder / ROLLOUTS).unlink()
    assert read_run(folder).rollouts == []
    assert not read_run(folder).is_over
    write_run(folder, create_run(3, planned=9))
    with open(folder / ROLLOUTS, "a") as file:
        file.write('{"rollout": 4, "st')
    read = read_run(folder)
    assert len(read.rollouts) == 3
    assert "So far" in render_grpo_page([read])


def test_numbers_that_are_not_finite_are_read_and_shown_as_missing(tmp_path):
    folder = write_run(tmp_path / "run", changed(ONE, grad_norm=math.nan, kl=math.inf))
    read = read_run(folder)
    assert math.isnan(read.rollouts[0].grad_norm)
    assert data_of(render_grpo_page([read]))["runs"][0]["curves"]["grad_norm"] == [None] * 24


@pytest.mark.parametrize("line", ['{"rollout": 1, "st\n', "[]\n", '{"rollout": 1}\n'])
def test_a_damaged_line_is_named(line, tmp_path):
    folder = write_run(tmp_path / "run", create_run(3))
    lines = (folder / ROLLOUTS).read_text().splitlines(keepends=True)
    (folder / ROLLOUTS).write_text(lines[0] + line + lines[2])
    with pytest.raises(DamagedError, match=r"rollouts\.jsonl:2 is damaged.*; restore that line"):
        read_run(folder)


def test_a_field_of_another_type_is_named(tmp_path):
    folder = write_run(tmp_path / "run", create_run(2))
    text = (folder / ROLLOUTS).read_text().replace('"groups": 16', '"groups": "many"')
    (folder / ROLLOUTS).write_text(text)
    with pytest.raises(DamagedError, match=r"rollouts\.jsonl:1 is damaged: groups must be an integer"):
        read_run(folder)


def test_a_directory_without_a_run_and_damaged_files_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"holds no run: there is no run\.json"):
        read_run(tmp_path)
    folder = write_run(tmp_path / "run", ONE)
    (folder / BEFORE).write_text((folder / BEFORE).read_text().replace("64", "65"))
    with pytest.raises(DamagedError, match="was altered"):
        read_run(folder)
    EVALUATION_FILE.write(folder / BEFORE, {"tasks": 3})
    with pytest.raises(DamagedError, match=r"before\.json is damaged: option 'attempts' is missing"):
        read_run(folder)
    (folder / RUN).write_text(json.dumps({"format": RUN_FORMAT, "config": []}))
    with pytest.raises(DamagedError, match="it has no options"):
        read_run(folder)


def test_options_are_shown_and_those_of_every_run():
    words = " ".join(Tags(render_grpo_page(SEEDS)).words)
    for part in ("group size 8", "rank 8", "reference not given", "rewards answer, 0.2*format"):
        assert words.count(part) == 3
    assert {f"output runs/seed-{seed}" for seed in range(3)} == set(re.findall(r"output \S+", words))
    assert OPTIONS["model"] in words


def test_the_page_asks_for_nothing_and_runs_only_its_own_script():
    page = render_grpo_page(SEEDS)
    assert "default-src 'none'" in page
    assert "unsafe" not in page
    assert not re.search(r'(src|href)="(?!#)', page)
    assert not re.search(r' style="| on[a-z]+="', page)
    assert page.count("<script") == 2
    assert "innerHTML" not in page


def test_making_and_reading_a_page_needs_no_torch():
    folder = Path(tiers.ROOT) / "src/brim/train/grpo/page"
    for name in ("__init__.py", "read.py"):
        assert tiers.marks_of_import(folder / name) == set()
