"""The page of a query-mutator run in a real browser.

Whatever a page logs as an error or warning, throws, or asks a network for fails its test.
"""

import re
from dataclasses import replace

import pytest
from support.contrast import lowest_contrast
from support.pages import EXERCISE, check_tooltips, check_widths
from support.query_runs import HOSTILE, KINDS, MUTATORS, OPTIONS, create_evaluation, create_run

from brim.core.display import visible
from brim.train.query.page import render_training_page
from brim.train.query.page.choices import count_choices
from brim.train.query.page.pairs import MOST_PAIRS, change_of, leading_pairs, named_change
from brim.train.query.page.stretch import ends, stretch_of
from brim.train.query.report import Evaluation, Example, Pair

RUN = create_run(60)
EVALUATION = create_evaluation(70, failed=3)
CHARTS = ("reward", "return", "solved", "choices", "entropy", "kl", "clip", "variance", "time", "totals")
FAILING = (*CHARTS, "invalid", "types")
SECTIONS = ("reward", "choices", "health", "time", "invalid", "pairs", "examples", "provenance")


def render(updates=RUN, evaluation=EVALUATION, options=OPTIONS, title="Run runs/query", **more):
    return render_training_page(title=title, updates=updates, evaluation=evaluation, options=options, **more)


@pytest.fixture(scope="module")
def html():
    return render(best=0.82)


@pytest.fixture
def page(html, opened):
    return opened(html)


def plot(page, chart):
    return page.locator(f"#{chart}-chart .plot")


def rows(page, chart):
    """The table behind a chart, which is filled when it is unfolded."""
    if not page.locator(f"#{chart}-chart details[open]").count():
        page.click(f"#{chart}-chart summary")
    page.locator(f"#{chart}-chart tbody tr").first.wait_for()
    return [row.split("\t") for row in page.inner_text(f"#{chart}-chart tbody").splitlines()]


def share_of(text):
    """A share from its percentage, which Python and the browser round in different ways."""
    return float(text.removesuffix("%")) / 100


def shown(page):
    """The ids of the pairs that can be seen, in order."""
    return page.locator("#cards .card:visible .id").all_inner_texts()


RUNS = {
    "one update": lambda: render(create_run(1), None, {}),
    "no update": lambda: render([], None, {}),
    "no valid step": lambda: render(create_run(3, invalid=1.0), create_evaluation(4, failed=4)),
    "stopped, none invalid": lambda: render(create_run(9, planned=40, invalid=0.0), create_evaluation(1)),
    "one kind, two mutators": lambda: render(create_run(4, kinds=("",), mutators=("rephrase", "shorten"))),
    "many long kinds": lambda: render(create_run(12, kinds=[f"a kind of question with number {i}" for i in range(14)])),
}


@pytest.mark.parametrize("kind", RUNS)
def test_every_kind_of_run_opens_draws_and_switches_without_a_complaint(kind, opened):
    page = opened(RUNS[kind](), viewport={"width": 400, "height": 800})
    failing = page.locator("#invalid").count()
    labels = page.evaluate(EXERCISE)
    assert len(labels) == len(FAILING if failing else CHARTS)
    assert all(labels)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 400
    written = page.content().split('<script type="application/json"')[0] + page.inner_text("body")
    assert not re.search(r"NaN|undefined|Infinity|null", written)


def test_two_thousand_updates_are_drawn_as_500_points(opened):
    many = create_run(20) * 100
    page = opened(render(many, None))
    assert "500 means over stretches of the 2,000 updates" in page.inner_text("header")
    assert page.locator("#reward-chart circle.spot").count() == 500


def test_the_tables_behind_the_charts_hold_the_numbers_of_the_run(page):
    for chart, values in {
        "reward": [one.reward for one in RUN],
        "return": [one.episode_return for one in RUN],
        "entropy": [one.metrics["entropy"] for one in RUN],
        "kl": [one.metrics["kl"] for one in RUN],
        "variance": [one.metrics["explained_variance"] for one in RUN],
    }.items():
        table = rows(page, chart)
        assert [row[0] for row in table] == [str(one.update) for one in RUN]
        assert [float(row[1].replace("−", "-")) for row in table] == pytest.approx(values, abs=6e-4)
    for chart, values in {
        "solved": [one.solved / one.episodes for one in RUN],
        "clip": [one.metrics["clip_fraction"] for one in RUN],
        "invalid": [one.invalid_share for one in RUN],
    }.items():
        assert [share_of(row[1]) for row in rows(page, chart)] == pytest.approx(values, abs=6e-4)
    for one, row in zip(RUN, rows(page, "time"), strict=True):
        waiting = one.rollout_seconds - one.policy_seconds
        times = [waiting, one.policy_seconds, one.update_seconds]
        times += [one.seconds - one.rollout_seconds - one.update_seconds, one.seconds]
        assert [float(cell) for cell in row[1:]] == pytest.approx(
            [*times, one.server_seconds, one.queue_seconds], abs=6e-4
        )
    totals = {row[0]: float(row[1].replace(",", "")) for row in rows(page, "totals")}
    assert totals["wall-clock time"] == pytest.approx(sum(one.seconds for one in RUN), abs=0.06)
    assert totals["servers' time of all calls"] == pytest.approx(sum(one.server_seconds for one in RUN), abs=0.06)
    failures = stretch_of(RUN).invalid
    assert {row[0]: row[1] for row in rows(page, "types")} == {name: f"{n:,}" for name, n in failures.items()}


def test_the_map_of_choices_shows_shares_counts_and_rewards(page):
    choices = count_choices(stretch_of(RUN), ends(RUN, 5))
    table = {(row[0], row[1]): row[2:] for row in rows(page, "choices")}
    assert len(table) == len(KINDS) * len(MUTATORS)
    for k, kind in enumerate(choices.kinds):
        for m, mutator in enumerate(choices.mutators):
            cells = table[kind, mutator]
            for period, (part, steps, reward) in enumerate((cells[:3], cells[3:])):
                count, total = choices.cells[period][k][m]
                assert share_of(part) == pytest.approx(choices.share(period, k, m), abs=6e-4)
                assert steps == f"{count:,}"
                assert reward == "–" if not count else float(reward) == pytest.approx(total / count, abs=6e-4)
    assert page.locator("#choices-chart rect.ring").count() == 2 * len(KINDS)
    count, total = choices.cells[1][0][choices.best[0]]
    plot(page, "choices").scroll_into_view_if_needed()
    spot = page.locator("#choices-chart rect.ring").nth(1).bounding_box()
    page.mouse.move(spot["x"] + spot["width"] / 2, spot["y"] + spot["height"] / 2)
    tip = page.inner_text("#tip")
    assert tip.startswith(
        f"{choices.kinds[0]}, {choices.mutators[choices.best[0]]}\nlate, updates 49–60\n{count:,} of "
    )
    assert f"mean reward {total / count:.3f}" in tip


def test_the_pointer_and_the_keyboard_show_the_same_tooltips(page):
    check_tooltips(page, FAILING, plot, across=0.55, down=0.48)


def test_pairs_are_filtered_by_keyboard_and_the_largest_changes_come_first(page):
    pairs = leading_pairs(EVALUATION)
    assert shown(page) == [pair.id for pair in pairs[:10]]
    assert page.inner_text("#matches") == "70 pairs, the first 10 shown"
    for change in ("worse", "same", "unrated", "better"):
        page.locator(f'input[name="change"][value="{change}"]').focus()
        page.keyboard.press("Space")
        alike = [pair for pair in pairs if named_change(pair) == change]
        assert shown(page) == [pair.id for pair in alike[:10]]
        assert page.inner_text("#matches").startswith(f"{len(alike)} pair")
    page.focus("#kind")
    page.select_option("#kind", label=page.locator("#kind option").nth(1).inner_text())
    kind = page.locator("#kind option").nth(1).inner_text().rsplit(" (", 1)[0]
    alike = [pair for pair in alike if pair.kind == kind]
    assert shown(page) == [pair.id for pair in alike[:10]]
    page.select_option("#kind", "all")
    page.locator('input[name="change"][value="all"]').press("Space")
    for many in range(20, 80, 10):
        page.focus("#more")
        page.keyboard.press("Enter")
        assert shown(page) == [pair.id for pair in pairs[:many]]
    assert page.is_hidden("#more")


def test_a_card_shows_both_questions_answers_rewards_and_mutators(page):
    pair = leading_pairs(EVALUATION)[0]
    card = page.locator("#cards .card").first
    words = card.inner_text()
    for part in (pair.question, pair.answer, pair.query, pair.new_answer, pair.reference, pair.id, *pair.mutators):
        assert part in words
    assert f"reward {pair.reward:.3f}" in words
    assert f"reward {pair.new_reward:.3f}" in words
    assert f"{abs(change_of(pair)):.3f} better" in words


def hostile_page():
    """Hostile texts wherever text of models or names of data can be."""
    texts = list(HOSTILE.values())
    examples = [Example(kind=t, question=t, before="b", mutator=t, query=t, answer=t, reward=0.5) for t in texts]
    pairs = [
        Pair(
            id=text,
            kind=text,
            question=text,
            reference=text,
            answer=text,
            reward=0.1,
            query=text,
            mutators=(text,),
            new_answer=text,
            new_reward=0.5,
        )
        for text in texts
    ]
    first, *more = create_run(3, kinds=texts[:7], mutators=texts[:6])
    first = replace(first, examples=tuple(examples), invalid=dict.fromkeys(texts, 3))
    options = {text[:50]: text for text in texts}
    return render([first, *more], Evaluation(pairs=tuple(pairs)), options, title=HOSTILE["image"])


def test_hostile_texts_are_shown_as_text_and_nothing_of_them_runs(opened):
    page = opened(hostile_page(), viewport={"width": 400, "height": 800})
    page.evaluate(EXERCISE)
    assert page.evaluate("() => window.hit") is None
    assert page.locator("img, main a, iframe, main script").count() == 0
    assert page.inner_text("h1") == HOSTILE["image"]
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 400
    page.locator('input[name="change"][value="all"]').press("Space")
    written = page.text_content("#cards")
    for name, text in HOSTILE.items():
        assert visible(text[:10_000], keep="\n") in written, name
    assert "90,000 more characters are left out" in written
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]", page.text_content("body"))
    names = {row[0] for row in rows(page, "types")}
    assert HOSTILE["script"] in names
    assert visible(HOSTILE["ansi"]) in names


def test_long_answers_unfold_with_their_line_breaks(opened):
    page = opened(hostile_page())
    card = page.locator("#cards .card", has_text="line 0").first
    assert "line 399" not in card.inner_text()
    card.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert "line 0\nline 1\n" in card.inner_text()
    assert "line 399" in card.inner_text()
    assert card.locator(".lead").first.is_hidden()


def test_without_javascript_everything_but_the_charts_is_there(html, opened):
    page = opened(html, java_script_enabled=False)
    with_script = opened(html)
    for part in ("#verdict", "#remarks", "#facts", "#choices-words", "#time-words", "#invalid-words", "#provenance"):
        assert page.inner_text(part) == with_script.inner_text(part)
    assert "JavaScript is off" in page.inner_text("header")
    assert page.locator("#cards .card:visible").count() == len(EVALUATION.pairs) <= MOST_PAIRS
    assert page.locator("#examples .card:visible").count() == 8
    assert page.is_hidden(".tools")
    assert page.is_hidden("#reward")


def test_dark_and_light_follow_the_system_and_the_button(html, opened):
    def background(page):
        return page.evaluate("() => getComputedStyle(document.body).backgroundColor")

    page = opened(html, color_scheme="dark")
    assert background(page) == "rgb(20, 23, 27)"
    page.click("#theme")
    assert background(page) == "rgb(251, 250, 247)"
    page.click("#theme")
    assert page.get_attribute("#theme", "aria-pressed") == "true"


def test_text_is_readable_in_light_and_dark(page):
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        contrast, where = lowest_contrast(page, ("#choices-chart text.strong", "rect.heat"))
        assert contrast >= 4.5, (scheme, where)


def test_no_width_scrolls_sideways_and_what_is_wider_can_be_scrolled(page):
    for summary in page.locator("figure summary").all():
        summary.click()
    check_widths(page, (320, 400, 768, 1600), may_be_wider=".scroll, svg, .unseen")


def test_a_chart_that_was_hidden_is_drawn_again_when_it_is_seen(page):
    hide = """async (hidden) => {
      document.querySelector("main").hidden = hidden;
      for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame);
      const chart = document.querySelector("#reward-chart");
      return [chart.clientWidth, chart.querySelector("svg").viewBox.baseVal.width];
    }"""
    wide, drawn = page.evaluate(hide, False)
    assert wide == drawn > 1000
    assert page.evaluate(hide, True) == [0, drawn]
    page.set_viewport_size({"width": 700, "height": 800})
    wide, drawn = page.evaluate(hide, False)
    assert 500 < wide == drawn < 700


def test_the_page_has_landmarks_headings_and_words_for_every_chart(page):
    assert page.get_attribute("html", "lang") == "en"
    assert [page.locator(mark).count() for mark in ("header", "main", "footer", "h1")] == [1, 1, 1, 1]
    assert [section.get_attribute("id") for section in page.locator("main > section").all()] == list(SECTIONS)
    assert page.locator("main > section > h2").count() == len(SECTIONS)
    for chart in FAILING:
        assert plot(page, chart).get_attribute("role") == "img"
        assert len(plot(page, chart).get_attribute("aria-label")) > 30
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, select, input")].filter((one) => !one.textContent.trim()
             && !(one.labels && [...one.labels].some((label) => label.textContent.trim()))).length"""
    )
    assert unnamed == 0


def test_in_print_all_sections_are_black_on_white_and_controls_are_gone(html, opened):
    page = opened(html, color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("main > section:visible").count() == len(SECTIONS)
    for gone in ("#theme", ".tools", "#more"):
        assert page.is_hidden(gone)
