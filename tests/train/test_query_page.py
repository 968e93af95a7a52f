"""The page of a query-mutator run: what is said, counted and written.

What the page does in a browser is tested in test_query_page_browser.py.
"""

import json
import math
import re
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiers
from support.pages import Tags
from support.query_runs import HOSTILE, KINDS, MUTATORS, OPTIONS, create_evaluation, create_run

from brim.analyze.page.forms import duration, number
from brim.analyze.page.parts import LONGEST, clipped_html
from brim.core.display import visible
from brim.train.query.page import render_training_page
from brim.train.query.page.choices import MOST_KINDS, count_choices
from brim.train.query.page.pairs import MOST_PAIRS, change_of, leading_pairs
from brim.train.query.page.stretch import POINTS, create_curves, ends, stretch_of, stretches
from brim.train.query.page.words import remarks, verdict
from brim.train.query.report import Evaluation, Example, Pair, UpdateReport

RUN = create_run(40)


def render(updates=RUN, evaluation=None, options=OPTIONS, title="run", **more):
    return render_training_page(title=title, updates=updates, evaluation=evaluation, options=options, **more)


def data_of(page):
    """The numbers of a page. NaN and Infinity are not JSON."""
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    return json.loads(text, parse_constant=pytest.fail)


def said(updates, evaluation=None, best=None):
    return verdict(stretch_of(updates), *ends(updates, 10), evaluation, best)


def rewarded(*rewards, steps=10):
    """A run with one valid reward for each update, or None."""
    return [
        replace(
            RUN[0],
            update=at + 1,
            updates=len(rewards),
            steps=steps,
            invalid={} if reward is not None else {"Timeout": steps},
            reward=reward,
        )
        for at, reward in enumerate(rewards)
    ]


def pairs(*changes, before=0.5):
    """An evaluation in which rewards change by these numbers; None is a failed call."""
    return Evaluation(
        pairs=tuple(
            Pair(
                id=str(at),
                kind="any",
                question="q",
                reference=None,
                answer="a",
                reward=before,
                query="r",
                mutators=("rephrase",),
                new_answer="b",
                new_reward=None if change is None else before + change,
            )
            for at, change in enumerate(changes)
        )
    )


numbers = st.floats(0, 100, allow_nan=False)
anything = st.none() | st.floats(allow_nan=True, allow_infinity=True)
reports = st.builds(
    UpdateReport,
    update=st.just(1),
    updates=st.just(1),
    env_steps=st.integers(0, 99),
    steps=st.integers(6, 99),
    invalid=st.dictionaries(st.sampled_from(["Timeout", "Refused"]), st.integers(0, 3)),
    fallbacks=st.integers(0, 9),
    reward=anything,
    episodes=st.integers(0, 9),
    solved=st.just(0),
    episode_return=anything,
    calls=st.integers(0, 99),
    cached=st.just(0),
    seconds=numbers,
    rollout_seconds=numbers,
    policy_seconds=numbers,
    update_seconds=numbers,
    server_seconds=numbers,
    queue_seconds=numbers,
    fill=anything,
    metrics=st.dictionaries(
        st.sampled_from(["entropy", "kl", "explained_variance"]), st.floats(allow_nan=True, allow_infinity=True)
    ),
    chosen=st.dictionaries(
        st.text(max_size=3),
        st.dictionaries(st.sampled_from(MUTATORS), st.tuples(st.integers(1, 9), st.floats(-9, 9)), min_size=1),
        max_size=3,
    ),
)


def numbered(updates):
    return [replace(one, update=at + 1, updates=len(updates)) for at, one in enumerate(updates)]


runs = st.lists(reports, max_size=12).map(numbered)


@given(runs)
@settings(max_examples=60)
def test_every_run_has_a_page_whose_numbers_are_json(updates):
    data = data_of(render(updates))
    assert len(data["curves"]["reward"]) == len(updates)


@given(st.integers(0, 3000), st.integers(1, 600))
def test_a_run_is_divided_into_stretches_that_lose_nothing(count, most):
    points = stretches([RUN[0]] * count, most)
    sizes = [len(point.updates) for point in points]
    assert sum(sizes) == count
    assert len(points) == min(count, most)
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(runs.filter(len))
def test_means_are_over_valid_steps_and_times_add_up(updates):
    stretch = stretch_of(updates)
    known = [
        (one.reward, one.steps - sum(one.invalid.values()))
        for one in updates
        if one.reward is not None and math.isfinite(one.reward) and one.steps > sum(one.invalid.values())
    ]
    if known:
        naive = sum(reward * steps for reward, steps in known) / sum(steps for _, steps in known)
        assert stretch.reward == naive or stretch.reward == pytest.approx(naive) or not math.isfinite(naive)
    else:
        assert stretch.reward is None
    least = sum(max(one.seconds, one.rollout_seconds + one.update_seconds) for one in updates)
    assert stretch.seconds == pytest.approx(least)
    assert min(stretch.waiting, stretch.policy, stretch.learning, stretch.other) >= 0


def test_the_parts_of_the_time_add_up_to_the_time_of_the_run():
    run = stretch_of(RUN)
    assert run.seconds == pytest.approx(sum(one.seconds for one in RUN))
    assert run.waiting + run.policy == pytest.approx(sum(one.rollout_seconds for one in RUN))
    assert stretch_of(RUN[:1]).speedup == pytest.approx(RUN[0].speedup)


def test_two_thousand_updates_become_500_means_and_the_page_says_so():
    many = [replace(RUN[at % 40], update=at + 1, updates=2000) for at in range(2000)]
    page = render(many)
    curves = data_of(page)["curves"]
    assert {len(values) for values in curves.values()} == {POINTS}
    assert curves["first"][:3] == [1, 5, 9]
    naive = stretch_of(many[:4])
    assert curves["reward"][0] == pytest.approx(naive.reward, rel=1e-5)
    assert curves["kl"][0] == pytest.approx(sum(one.metrics["kl"] for one in many[:4]) / 4, rel=1e-5)
    assert curves["learning"][0] == pytest.approx(sum(one.update_seconds for one in many[:4]) / 4, rel=1e-5)
    assert "500 means over stretches of the 2,000 updates" in page
    assert len(page) < 300_000
    assert "means over stretches" not in render()


@given(runs.filter(len))
def test_choices_are_counted_as_the_reports_count_them(updates):
    periods = ends(updates, 5)
    choices = count_choices(stretch_of(updates), periods)
    for at, period in enumerate(periods):
        naive = Counter()
        for one in period.updates:
            for kind, row in one.chosen.items():
                for mutator, (count, _) in row.items():
                    naive[visible(kind) or "(no kind)", mutator] += count
        counted = {
            (kind, mutator): choices.cells[at][k][m][0]
            for k, kind in enumerate(choices.kinds[: choices.known])
            for m, mutator in enumerate(choices.mutators)
        }
        total = sum(count for row in choices.cells[at] for count, _ in row)
        assert total == sum(naive.values())
        assert choices.known < len(choices.kinds) or +Counter(counted) == naive


def test_many_kinds_share_the_last_row_and_nothing_is_lost():
    updates = create_run(5, kinds=tuple(f"kind {at}" for at in range(20)))
    choices = count_choices(stretch_of(updates), [stretch_of(updates)])
    assert len(choices.kinds) == MOST_KINDS
    assert choices.kinds[-1] == "9 other kinds"
    assert choices.best[-1] is None
    valid = sum(one.steps - sum(one.invalid.values()) for one in updates)
    assert sum(count for row in choices.cells[0] for count, _ in row) == valid


def test_the_mutator_with_the_highest_mean_reward_is_marked():
    choices = count_choices(stretch_of(RUN), ends(RUN, 5))
    suits = {"arithmetic": 1, "date format": 0, "unit conversion": 3, "list of words": 5}
    assert {kind: choices.best[at] for at, kind in enumerate(choices.kinds)} == suits
    assert "For 4 of 4 kinds, that is also the mutator with the highest mean reward" in render()


@pytest.mark.parametrize(
    ("rewards", "words"),
    [
        ([0.2, 0.3, 0.4], "rose from 0.200 in the first update to 0.400 in the last update"),
        ([0.4, 0.3, 0.2], "fell from 0.400 in the first update to 0.200 in the last update"),
        ([0.4, 0.3, 0.4], "did not change: 0.400"),
        ([0.1] * 10 + [0.9] * 10, "rose from 0.100 in the first tenth of updates (2) to 0.900"),
        ([0.1, 0.5] * 9 + [0.2, 0.5], "hardly changed, from 0.300"),
        ([0.4], "One update shows no trend: the mean reward of its steps was 0.400"),
        ([None, 0.4], "was 0.400 in the last update; the first update had no valid step"),
        ([0.4, None], "was 0.400 in the first update; the last update had no valid step"),
        ([None, None], "Nothing was learned: none of the 20 steps was valid"),
        ([], "No update was finished"),
        ([-0.5, -0.2], "rose from −0.500 in the first update to −0.200"),
    ],
)
def test_the_verdict_says_what_became_of_the_reward(rewards, words):
    assert words in said(rewarded(*rewards))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            [0.3, 0.31, 0.29],
            "raised the mean reward of the answer from 0.500 to 0.800 (3 better, 0 worse, 0 the same).",
        ),
        ([-0.3, -0.2, 0], "lowered the mean reward of the answer from 0.500 to 0.333 (0 better, 2 worse, 1 the same)"),
        ([0.5, -0.4], "(1 better, 1 worse, 0 the same); chance may explain the difference."),
        ([0.5, -0.5], "left the mean reward at 0.500 (1 better, 1 worse, 0 the same)."),
        (
            [0, 0],
            "On 2 questions of the training data, rewriting by the trained policy changed no reward: the mean is 0.500",
        ),
        ([0.2], "On 1 question of the training data, rewriting by the trained policy raised"),
        ([0.2], "one question says little"),
        ([None], "cannot be compared: none of 1 question was rated"),
        ([], "Questions were not compared"),
    ],
)
def test_the_verdict_says_what_became_of_the_answers(changes, words):
    assert words in said(RUN, pairs(*changes))


def test_the_verdict_compares_with_the_best_possible_where_it_is_known():
    assert "The best possible is 0.800, so the end is at 50% of it" in said(rewarded(0.1, 0.4), best=0.8)
    assert "best possible" not in said(rewarded(0.1, 0.4))


def test_remarks_count_invalid_steps_fallbacks_unrated_questions_and_missing_updates():
    words = remarks(stretch_of(rewarded(0.1, 0.2, steps=4)), None)
    assert words == "All 8 steps were valid."
    failed = [replace(one, fallbacks=2, updates=9) for one in rewarded(0.1, None, steps=500)]
    words = remarks(stretch_of(failed), pairs(0.1, None, None))
    assert "500 of 1,000 steps (50.0%) were invalid, and nothing was learned from them (Timeout)." in words
    assert "In 4 steps a fallback took the place of a failed call." in words
    assert "2 of the 3 questions compared lack a reward" in words
    assert "The run stopped after 2 of 9 updates." in words
    assert "All 500 steps were invalid (Timeout)." in remarks(stretch_of(failed[1:]), None)


def facts_of(page):
    return dict(re.findall(r'data-fact="(\w+)">([^<]*)<', page))


def test_the_facts_are_sums_of_the_reports():
    facts = facts_of(render())
    seconds, rollout = sum(one.seconds for one in RUN), sum(one.rollout_seconds for one in RUN)
    bad = sum(sum(one.invalid.values()) for one in RUN)
    steps = sum(one.steps for one in RUN)
    sequential = sum(one.server_seconds + one.policy_seconds for one in RUN)
    assert facts == {
        "steps": f"{steps:,}",
        "updates": "40",
        "calls": f"{sum(one.calls for one in RUN):,}",
        "invalid": f"{bad / steps:.1%}",
        "rate": f"{steps / seconds:,.1f}",
        "speedup": f"{sequential / rollout:,.1f}×",
        "fill": f"{sum(one.fill * one.rollout_seconds for one in RUN) / rollout:.0%}",
        "wall": duration(seconds),
    }
    assert facts_of(render([]))["rate"] == "–"


def test_reports_that_were_written_and_read_make_the_same_page():
    stored = json.loads(json.dumps([asdict(one) for one in RUN]))
    again = [UpdateReport.from_dict(one) for one in stored]
    evaluation = create_evaluation(9, failed=2)
    same = Evaluation.from_dict(json.loads(json.dumps(asdict(evaluation))))
    assert render(again, same) == render(RUN, evaluation)


def test_the_largest_changes_come_first_and_the_page_says_how_many_are_left_out():
    evaluation = create_evaluation(MOST_PAIRS + 60, failed=5)
    shown = leading_pairs(evaluation)
    sizes = [-1 if change_of(pair) is None else abs(change_of(pair)) for pair in shown]
    assert sizes == sorted(sizes, reverse=True)
    assert len(shown) == MOST_PAIRS
    page = render(RUN, evaluation)
    assert page.count("<article") == MOST_PAIRS + 8
    assert f"{MOST_PAIRS} of {MOST_PAIRS + 60} pairs are shown; 60 are left out" in page
    assert "pairs are shown" not in render(RUN, create_evaluation(20))


def page_of(text):
    """A page on which this text is everything that models or data can name."""
    update = replace(
        RUN[0],
        invalid={text: 2},
        chosen={text: {text: (3, 1.0)}},
        examples=(Example(kind=text, question=text, before="", mutator=text, query=text, answer=text, reward=0.5),),
    )
    pair = Pair(
        id=text,
        kind=text,
        question=text,
        reference=text,
        answer=text,
        reward=0.1,
        query=text,
        mutators=(text, text),
        new_answer=text,
        new_reward=0.2,
    )
    return render([update], Evaluation(pairs=(pair,)), {text: text, "more": {text: [text]}}, text)


PLAIN = Tags(page_of("text")).seen


@given(st.text(min_size=1, max_size=40).filter(lambda text: text.strip() and text.count("\n") < 9))
@settings(max_examples=60)
def test_no_text_of_a_model_makes_or_changes_an_element(text):
    page = page_of(text)
    page.encode()
    assert Tags(page).seen == PLAIN


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in ("long", "lines")])
def test_hostile_text_is_shown_as_it_is_with_every_character_visible(name):
    page = page_of(HOSTILE[name])
    tags = Tags(page)
    assert tags.seen == PLAIN
    assert tags.words.count(visible(HOSTILE[name])) >= 7
    assert all(char.isprintable() or char == "\n" for char in page)


def test_long_text_is_clipped_with_all_of_it_behind_an_expander_and_a_limit():
    short = clipped_html("word " * 60)
    assert "details" not in short
    long = clipped_html("<" * 5000)
    assert long.count("&lt;") == 5500
    assert "Show all 5,000 characters" in long
    longest = clipped_html("x" * (LONGEST + 5))
    assert "Show 10,000 of 10,005 characters" in longest
    assert "5 more characters are left out" in longest
    assert "Show all" in clipped_html("line\n" * 40)
    assert "empty" in clipped_html("")
    assert "white space" in clipped_html(" \n")


@given(st.text())
def test_visible_text_is_printable_and_printable_text_is_left_alone(text):
    assert visible(text).isprintable()
    if text.isprintable():
        assert visible(text) == text
    assert visible(text, keep="\n").count("\n") == text.count("\n")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.97, "10 s"), (61.2, "1 min 1 s"), (3599.6, "1 h 0 min"), (7300, "2 h 2 min")],
)
def test_durations_are_brief(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"), [(0.4125, "0.412"), (-0.0001, "0.000"), (-1.5, "−1.500"), (1234.56, "1,234.6"), (None, "–")]
)
def test_rewards_have_three_digits(value, words):
    assert number(value) == words


def test_options_are_shown_in_sections():
    page = render(
        options={"num_steps": 32, "ppo": {"clip": 0.2, "layers": [64, 64]}, "resume": None, "note": "y" * 999}
    )
    words = " ".join(Tags(page).words)
    for part in ("num steps 32", "clip 0.2", "layers 64, 64", "resume not given", "(999 characters)"):
        assert part in words


def test_the_page_asks_for_nothing_and_runs_only_its_own_script():
    page = render(RUN, create_evaluation())
    assert "default-src 'none'" in page
    assert "unsafe" not in page
    assert not re.search(r'(src|href)="(?!#)', page)
    assert not re.search(r' style="| on[a-z]+="', page)
    assert page.count("<script") == 2
    assert "innerHTML" not in page


def test_making_a_page_needs_no_torch():
    page = Path(tiers.ROOT) / "src/brim/train/query/page/__init__.py"
    assert tiers.marks_of_import(page) == set()


def test_curves_have_a_number_or_nothing_for_every_point():
    curves = create_curves(stretches(create_run(6, invalid=1.0)))
    assert curves["reward"] == curves["entropy"] == [None] * 6
    assert curves["invalid"] == [1.0] * 6
    assert set(KINDS) == set(count_choices(stretch_of(RUN), [stretch_of(RUN)]).kinds)


def test_the_verdict_says_whether_the_questions_were_held_out():
    held_out = replace(pairs(0.2, 0.3), held_out=True)
    assert "On 2 questions outside of the training data, rewriting by the trained policy raised" in said(RUN, held_out)
