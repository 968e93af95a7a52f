"""The page of GRPO runs in a real browser.

Whatever a page logs as an error or warning, throws, or asks a network for fails its test.
"""

import re
from dataclasses import replace
from statistics import fmean, stdev

import pytest
from support.contrast import lowest_contrast
from support.grpo_runs import OPTIONS, STEPS, create_run
from support.pages import EXERCISE, check_tooltips, check_widths
from support.query_runs import HOSTILE

from brim.core.display import visible
from brim.train.grpo.page import render_grpo_page

ONE = create_run(44)
SEEDS = [create_run(24, name=f"runs/seed-{seed}", seed=seed) for seed in range(3)]
COMMON = ("part-0", "part-1", "length", "ended", "dead", "entropy", "kl", "policy-kl", "clipped", "norm", "mismatch")
COMMON += ("time", "rate", "fill")
CHARTS = ("reward", "pass", *COMMON)
SECTIONS = ("reward", "responses", "health", "time", "through", "groups", "provenance")


@pytest.fixture(scope="module")
def html():
    return render_grpo_page([ONE])


@pytest.fixture(scope="module")
def several():
    return render_grpo_page(SEEDS)


def plot(page, chart):
    return page.locator(f"#{chart}-chart .plot")


def rows(page, chart):
    """The table behind a chart, which is filled when it is unfolded."""
    page.click(f"#{chart}-chart summary")
    page.locator(f"#{chart}-chart tbody tr").first.wait_for()
    return [row.split("\t") for row in page.inner_text(f"#{chart}-chart tbody").splitlines()]


def numbers(cells):
    return [float(cell.split(" ")[0].replace("−", "-").replace(",", "").removesuffix("%")) for cell in cells]


def bare(run):
    """A run without everything that a run need not have."""
    nothing = dict.fromkeys(("reward", "pass_rate", "kl", "entropy", "fill", "rollout_fill", "grad_norm", "mismatch"))
    nothing |= {"loss": None, "policy_kl": None, "clipped_low": None, "clipped_high": None, "parts": {}, "shown": ()}
    nothing |= {
        "finish_reasons": {},
        "groups": 0,
        "dead": 0,
        "dead_low": 0,
        "evaluation": None,
        "step": 0,
        "version": 0,
    }
    return replace(run, before=None, options={}, rollouts=[replace(one, **nothing) for one in run.rollouts])


KINDS = {
    "no rollout": lambda: [replace(ONE, rollouts=[], before=None, is_over=False)],
    "one rollout, still running": lambda: [create_run(1, planned=9, evaluate=0)],
    "nothing known": lambda: [bare(create_run(3))],
    "of different lengths": lambda: [create_run(3, planned=9), create_run(9), replace(ONE, rollouts=[], before=None)],
    "of different options": lambda: [ONE, replace(create_run(9), options={**OPTIONS, "group_size": 4})],
    "turns, corrections and peaks": lambda: [
        replace(
            ONE,
            rollouts=[
                replace(one, turns=2.5, correction=0.9, kl=90.0 if at == 7 else 0.1, mismatch=0.03)
                for at, one in enumerate(ONE.rollouts)
            ],
        )
    ],
    "ten runs": lambda: [create_run(3, name=f"run-{at}", seed=at, evaluate=1) for at in range(10)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_opens_draws_and_switches_without_a_complaint(kind, opened):
    page = opened(render_grpo_page(KINDS[kind]()), viewport={"width": 400, "height": 800})
    labels = page.evaluate(EXERCISE)
    assert len(labels) == page.locator("figure").count() >= 10
    assert all(labels)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 400
    written = page.content().split('<script type="application/json"')[0] + page.inner_text("body")
    assert not re.search(r"NaN|undefined|Infinity|null", written)


def test_the_tables_behind_the_charts_hold_the_numbers_of_the_run(html, opened):
    page = opened(html)
    reports = ONE.rollouts
    for chart, values in {
        "entropy": [one.entropy for one in reports],
        "kl": [one.kl for one in reports],
        "norm": [one.grad_norm for one in reports],
        "part-1": [one.parts["format"] for one in reports],
        "length": [one.lengths[2] for one in reports],
    }.items():
        assert numbers(row[1] for row in rows(page, chart)) == pytest.approx(values, abs=6e-4)
    assert numbers(row[1] for row in rows(page, "mismatch")) == pytest.approx(
        [one.mismatch for one in reports], rel=0.1
    )
    for chart, values in {
        "dead": [one.dead_low / one.groups for one in reports],
        "ended": [one.finish_reasons["eos"] / one.attempts for one in reports],
    }.items():
        assert numbers(row[1] for row in rows(page, chart)) == pytest.approx(
            [100 * value for value in values], abs=0.06
        )
    for one, row in zip(reports, rows(page, "time"), strict=True):
        rest = one.seconds - one.rollout_seconds - one.reward_seconds - one.train_seconds
        times = [one.rollout_seconds, one.reward_seconds, one.train_seconds, rest, one.seconds]
        assert numbers(row[1:]) == pytest.approx(times, abs=6e-4)
    reward = {int(row[0].split(",")[0]): row[1:] for row in rows(page, "reward")}
    # Attempts stand at the steps of the weights that drew them, beside evaluations of the same weights.
    assert numbers(reward[one.version][0] for one in reports) == pytest.approx(
        [one.reward for one in reports], abs=6e-4
    )
    for one in ONE.evaluations:
        told = f"{one.evaluation.reward:.3f} ± {one.evaluation.reward_error:.3f}"
        assert reward[one.step][1] == told


def test_several_runs_have_a_thin_line_each_and_a_mean_with_its_standard_error(several, opened):
    page = opened(several)
    assert page.locator("#held-chart path.curve.thin").count() == 3
    assert page.locator("#held-chart path.curve.mean").count() == 1
    assert page.locator("#held-chart path.band.mean").count() == 1
    assert page.locator("#runs-legend button").all_inner_texts() == ["seed-0", "seed-1", "seed-2"]
    assert "mean of the 3 runs" in page.inner_text("#runs-legend")
    last = [run.rollouts[-1].evaluation.reward for run in SEEDS]
    cells = rows(page, "held")[-1]
    assert numbers(cells[1:4]) == pytest.approx(last, abs=6e-4)
    assert cells[4] == f"{fmean(last):.3f} ± {stdev(last) / 3**0.5:.3f}"
    plot(page, "entropy").focus()
    page.keyboard.press("End")
    tip = page.inner_text("#tip").splitlines()
    assert tip[0] == f"step {24 * STEPS}, rollout 24"
    assert [line.split(" ")[0] for line in tip[1:]] == ["seed-0", "seed-1", "seed-2", "mean"]


def test_runs_with_other_options_are_not_averaged(opened):
    other = replace(SEEDS[1], options={**SEEDS[1].options, "learning_rate": 1.0})
    page = opened(render_grpo_page([SEEDS[0], other]))
    assert page.locator("path.mean").count() == 0
    assert page.locator("#reward-chart path.curve").count() == 2
    assert "learning_rate" in page.inner_text("#provenance table")


def test_a_run_that_is_pressed_stands_out_and_its_responses_and_options_are_shown(several, opened):
    page = opened(several)

    def shown():
        return {block.get_attribute("data-run") for block in page.locator(".of-run").all() if block.is_visible()}

    assert shown() == {"0"}
    page.locator("#runs-legend button").nth(2).focus()
    page.keyboard.press("Enter")
    assert shown() == {"2"}
    assert page.locator("#reward-chart path.chosen").count() == 1
    assert page.get_attribute("#runs-legend button >> nth=2", "aria-pressed") == "true"
    page.click("#theme")  # everything is drawn anew
    assert page.locator("#reward-chart path.chosen").count() == 1
    page.keyboard.press("Tab")
    page.locator("#groups select").select_option("1")
    assert shown() == {"1"}
    assert "runs/seed-1" in page.inner_text("#provenance .of-run[data-run='1']")
    page.click("#runs-legend button >> nth=2")
    assert page.locator("path.chosen").count() == 0


def test_attempts_at_a_task_stand_side_by_side_through_training(html, opened):
    page = opened(html)
    table = page.locator("#through table").first
    heads = table.locator("th").all_inner_texts()
    assert heads[0].startswith("before training")
    assert heads[-1].startswith(f"step {44 * STEPS}")
    first, last = ONE.before.shown[0].attempts, ONE.rollouts[-1].evaluation.shown[0].attempts
    for at in range(2):
        cells = table.locator("tbody tr").nth(at).locator("td").all_inner_texts()
        assert len(cells) == len(heads) == 6
        for cell, attempt in ((cells[0], first[at]), (cells[-1], last[at])):
            assert attempt.text.strip() in cell
            assert f"reward {attempt.reward:.3f}" in cell
            assert f"{attempt.tokens} tokens, ended by {attempt.finish_reason}" in cell
            assert ("not passed" in cell) != attempt.passed
    assert page.locator("#through details.prompt[open]").count() == 1
    page.locator("#through details.prompt > summary").nth(1).press("Enter")
    assert page.locator("#through table:visible").count() == 2


def test_without_javascript_everything_but_the_charts_is_there(several, opened):
    page, with_script = opened(several, java_script_enabled=False), opened(several)
    for part in ("#verdict", "#remarks", "#facts", "#warnings", "#dead-words", "#time-words", "#through-words"):
        assert page.inner_text(part) == with_script.inner_text(part)
    assert "JavaScript is off" in page.inner_text("header")
    assert page.locator(".of-run:visible").count() == 9
    assert page.locator(".run-name:visible").all_inner_texts() == [f"seed-{at}" for at in range(3)] * 3
    assert page.locator("#through table:visible").count() == 3
    for gone in (".tools", "figure", "#runs-legend", "#health", "#theme"):
        assert not page.locator(f"{gone}:visible").count()
    page.locator("#reward summary", has_text="first and the last tenth").click()
    assert "entropy, nats" in page.inner_text("#reward table >> nth=0")


def hostile_runs():
    """Runs with hostile texts wherever models or data can write."""
    texts = list(HOSTILE.values())
    names = [visible(text)[:20] for text in texts[:4]]
    runs = [create_run(3, name=text, texts=texts, evaluate=1) for text in texts[:3]]
    strange = {"parts": dict.fromkeys(names, 0.5), "failures": dict.fromkeys(names, 1)}
    strange["finish_reasons"] = {text[:50]: 5 for text in texts}
    return [replace(run, rollouts=[replace(one, **strange) for one in run.rollouts]) for run in runs]


def test_hostile_texts_are_shown_as_text_and_nothing_of_them_runs(opened):
    page = opened(render_grpo_page(hostile_runs()), viewport={"width": 400, "height": 800})
    page.evaluate(EXERCISE)
    assert page.evaluate("() => window.hit") is None
    assert page.locator("img, main a, iframe, main script").count() == 0
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 400
    written = page.text_content("#groups") + page.text_content("#through")
    for name, text in HOSTILE.items():
        assert visible(text[:1000], keep="\n") in written, name
    assert "more characters are left out" in written
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]", page.text_content("body"))


def test_the_pointer_and_the_keyboard_show_the_same_tooltips(html, several, opened):
    """A chart of each kind: lines with evaluations, with a band, of several runs, and areas."""
    check_tooltips(opened(html), ("reward", "length", "ended"), plot, across=0.55, down=0.48)
    check_tooltips(opened(several), ("held", "clipped", "time"), plot, across=0.55, down=0.48)


def test_text_is_readable_and_nothing_is_too_wide_in_light_and_dark(several, opened):
    page = opened(several)
    page.evaluate("() => { for (const one of document.querySelectorAll('.prompt, .long details')) one.open = true; }")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        contrast, where = lowest_contrast(page)
        assert contrast >= 4.5, (scheme, where)
    check_widths(page, (320, 1600), may_be_wider=".scroll, svg, .unseen")


def test_the_page_has_landmarks_headings_and_words_for_every_chart(html, opened):
    page = opened(html)
    assert [page.locator(mark).count() for mark in ("header", "main", "footer", "h1")] == [1, 1, 1, 1]
    assert [section.get_attribute("id") for section in page.locator("main > section").all()] == list(SECTIONS)
    assert page.locator("main > section > h2").count() == len(SECTIONS)
    for chart in CHARTS:
        assert plot(page, chart).get_attribute("role") == "img"
        assert len(plot(page, chart).get_attribute("aria-label")) > 30
    page.emulate_media(media="print")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.is_hidden("#theme")
