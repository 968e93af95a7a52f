"""The page on an output of `brim generate` in a real browser.

Whatever a page logs as an error or warning, throws, or asks a network for fails its test.
"""

import re

import numpy as np
import pytest
from support.contrast import lowest_contrast
from support.generated import HOSTILE, create_hostile, create_output, write_output
from support.pages import EXERCISE, check_tooltips, check_widths

from brim.core.display import visible
from brim.generate.report import write_report
from brim.generate.report.collect import LONGEST

LINES = create_output(24, 8, logprobs=True, limit=160)
GROUPS = [LINES[at : at + 8] for at in range(0, len(LINES), 8)]
CHARTS = ("solved", "tries", "lengths", "endings", "entropy", "logprob", "entropy-positions", "logprob-positions")
CHARTS = (*CHARTS, "gap-positions", "gap")
SECTIONS = ("solved", "lengths", "endings", "certainty", "positions", "gap", "prompts")
REASONS = ("eos", "stop", "length")


def written(lines, folder):
    write_report(write_output(folder / "out.jsonl", lines), folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    return written(LINES, tmp_path_factory.mktemp("report"))


@pytest.fixture
def page(html, opened):
    return opened(html)


def plot(page, chart):
    return page.locator(f"#{chart}-chart .plot")


def rows(page, chart):
    """The table behind a chart, which is filled when it is unfolded."""
    page.evaluate("(id) => { document.querySelector(`#${id} details`).open = true; }", f"{chart}-chart")
    page.locator(f"#{chart}-chart tbody tr").first.wait_for(state="attached")
    text = page.locator(f"#{chart}-chart tbody tr").evaluate_all(
        "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return [[cell.replace(",", "").replace("−", "-") for cell in row] for row in text]


def shown(page):
    """The numbers of the prompts that can be seen, in order."""
    return [int(card.get_attribute("data-at")) for card in page.locator("#cards .prompt:visible").all()]


def rate(group):
    return sum(one["score"] for one in group) / len(group)


def solving(group):
    return "always" if rate(group) == 1 else "sometimes" if rate(group) else "never"


def some(count, **values):
    base = {"id": "a", "prompt": "p", "response": "r", "finish_reason": "eos"}
    return [{**base, "sample": at, **values} for at in range(count)]


OUTPUTS = {
    "one response": lambda: some(1),
    "one response with all numbers": lambda: some(
        1, tokens=1, entropy=0.1, logprob=-0.1, score=1, entropies=[0.1], logprobs=[-0.1], sampling_logprobs=[-0.3]
    ),
    "empty responses": lambda: some(3, response="", tokens=0, entropy=None, logprob=0.0, logprobs=[], score=0),
    "from a server, in characters": lambda: [{**one, "tokens": None} for one in create_output(12, 3, chat=True)],
    "twenty each, some missing": lambda: [one for at, one in enumerate(create_output(3, 20)) if at % 7],
    "entropies alone": lambda: some(8, tokens=3, entropy=0.5, entropies=[0.5, 0.4, 0.6]),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_every_kind_of_output_opens_draws_and_switches_without_a_complaint(kind, opened, tmp_path):
    page = opened(written(OUTPUTS[kind](), tmp_path), viewport={"width": 400, "height": 800})
    labels = page.evaluate(EXERCISE)
    assert len(labels) == page.locator("figure").count() >= 1
    assert all(labels)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 400
    text = page.content().split('<script type="application/json"')[0] + page.inner_text("body")
    assert not re.search(r"NaN|undefined|Infinity|null", text)


def test_the_tables_behind_the_charts_hold_the_numbers_of_the_output(page):
    lengths = rows(page, "lengths")
    for name, *counts, total, _ in lengths:
        low, high = (int(end) for end in (name.split("–") if "–" in name else (name, name)))
        inside = [one for one in LINES if low <= one["tokens"] <= high]
        assert [int(count) for count in counts] == [sum(one["finish_reason"] == r for one in inside) for r in REASONS]
        assert int(total) == len(inside)
    assert sum(int(row[-2]) for row in lengths) == len(LINES)
    counts = [sum(one["finish_reason"] == reason for one in LINES) for reason in REASONS]
    assert [row[:2] for row in rows(page, "endings")] == [[r, str(n)] for r, n in zip(REASONS, counts, strict=True)]
    hits = [round(8 * rate(group)) for group in GROUPS]
    for k, row in enumerate(rows(page, "solved")):
        alike = hits.count(k) if k in (0, 8) else 0
        assert [row[0], row[1], row[3]] == [f"{k} of 8", str(hits.count(k)), str(alike)]
    tries = [float(row[1].removesuffix("%")) / 100 for row in rows(page, "tries")]
    assert tries[0] == pytest.approx(np.mean([rate(group) for group in GROUPS]), abs=6e-4)
    assert tries[-1] == pytest.approx(np.mean([hit > 0 for hit in hits]), abs=6e-4)
    for chart, column in {"entropy-positions": "entropies", "logprob-positions": "logprobs"}.items():
        for first, mean, low, high, alive in rows(page, chart)[:5]:
            values = [one[column][int(first) - 1] for one in LINES if one["tokens"] >= int(first)]
            naive = [np.mean(values), *np.percentile(values, (25, 75))]
            assert [float(mean), float(low), float(high)] == pytest.approx(naive, abs=6e-4)
            assert int(alive) == len(values)
    assert sum(int(row[1]) for row in rows(page, "gap")) == sum(one["tokens"] for one in LINES)


def test_bars_are_coloured_by_ending_or_by_score(page):
    assert page.inner_text("#lengths-legend").split("\n") == ["eos", "stop", "length: cut off"]
    parts = page.locator("#lengths-chart path.part").evaluate_all(
        "(all) => all.map((part) => part.getBBox()).map(({ y, height }) => [y, y + height])"
    )
    assert len(parts) == 3
    assert min(top for top, _ in parts) == pytest.approx(30, abs=1)  # the highest stack fills the chart
    assert [bottom for _, bottom in parts] == pytest.approx([260] * 3, abs=1)
    page.locator('input[name="lengths"][value="score"]').press("Space")
    assert page.inner_text("#lengths-legend").split("\n") == ["solved", "not solved"]
    solved = sum(int(row[1]) for row in rows(page, "lengths"))
    assert solved == sum(one["score"] == 1 for one in LINES)
    assert page.inner_text("#certainty-legend").split("\n")[0] == "eos"
    page.locator('input[name="certainty"][value="score"]').press("Space")
    assert sum(int(row[1]) for row in rows(page, "entropy")) == solved


def test_the_pointer_and_the_keyboard_show_the_same_tooltips(page):
    check_tooltips(page, CHARTS, plot, across=0.4, down=0.4)


def test_prompts_are_filtered_and_sorted(page):
    assert shown(page) == list(range(10))
    assert page.inner_text("#matches") == "24 prompts with 192 responses, the first 10 prompts shown"
    for kind in ("always", "sometimes", "never"):
        page.select_option("#kind", kind)
        alike = [at for at, group in enumerate(GROUPS) if solving(group) == kind]
        assert shown(page) == alike[:10]
    page.select_option("#kind", "all")
    page.select_option("#ending", "length")
    cut = [at for at, group in enumerate(GROUPS) if any(one["finish_reason"] == "length" for one in group)]
    assert shown(page) == cut[:10]
    page.locator(f'.prompt[data-at="{cut[0]}"]').evaluate("(card) => { card.open = true; }")
    endings = page.locator(f'.prompt[data-at="{cut[0]}"] .response:visible').evaluate_all(
        "(all) => all.map((one) => one.dataset.ending)"
    )
    assert set(endings) == {"length"}
    page.select_option("#ending", "all")
    means = [np.mean([one["tokens"] for one in group]) for group in GROUPS]
    for sort, key in {
        "rate-up": lambda at: rate(GROUPS[at]),
        "rate-down": lambda at: -rate(GROUPS[at]),
        "length-up": lambda at: means[at],
        "length-down": lambda at: -means[at],
        "file": lambda at: at,
    }.items():
        page.select_option("#sort", sort)
        assert shown(page) == sorted(range(24), key=key)[:10]


def test_a_search_finds_prompts_by_their_text_and_marks_it(page):
    question = re.search(r"\d+ \+ \d+", LINES[8 * 20]["prompt"])[0]
    found = [at for at, group in enumerate(GROUPS) if question in group[0]["prompt"] + group[0]["response"]]
    page.fill("#search", f" {question} ")
    assert shown(page) == found[:10]
    page.locator("#cards .prompt:visible summary").first.click()
    page.wait_for_function("() => CSS.highlights.get('found').size > 0")
    marked = page.evaluate("() => [...CSS.highlights.get('found')].map((range) => range.toString())")
    assert set(marked) == {question}
    page.fill("#search", GROUPS[7][0]["id"].upper())
    assert shown(page) == [7]
    page.fill("#search", "ended by")  # words of the page are not searched
    assert shown(page) == []
    assert page.inner_text("#matches") == "No prompt is like that."
    assert page.is_disabled("#unfold")
    page.fill("#search", "")
    assert shown(page) == list(range(10))


def test_everything_is_reached_and_done_with_the_keyboard(page):
    page.focus("#search")
    for control in ("kind", "ending", "sort", "unfold"):
        page.keyboard.press("Tab")
        assert page.evaluate("() => document.activeElement.id") == control
    page.keyboard.press("Enter")
    assert page.locator("#cards .prompt[open]:visible").count() == 10
    assert page.inner_text("#unfold") == "Fold all"
    page.keyboard.press("Enter")
    assert page.locator("#cards .prompt[open]:visible").count() == 0
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator("#cards .prompt[open]:visible").count() == 1
    assert page.locator("#cards .response:visible").count() == 8
    page.focus("#more")
    page.keyboard.press("Enter")
    assert shown(page) == list(range(20))
    assert page.evaluate("() => document.activeElement.parentElement.dataset.at") == "10"
    page.focus("#kind")
    page.keyboard.press("n")  # never solved
    assert page.input_value("#kind") == "never"
    page.keyboard.press("Shift+Tab")
    page.keyboard.type("no such text")
    assert shown(page) == []


def test_a_card_shows_the_prompt_the_answer_and_every_response_with_its_numbers(page):
    card = page.locator("#cards .prompt").first
    text = card.inner_text()
    assert visible(LINES[0]["prompt"], keep="\n") in text
    assert LINES[0]["answer"] in text
    assert f"{round(8 * rate(GROUPS[0]))} of 8 solved" in text
    for one, response in zip(GROUPS[0], card.locator(".response").all(), strict=True):
        words = response.inner_text()
        assert one["response"] in words
        for part in (f"{one['tokens']} tokens", f"ended by {one['finish_reason']}", f"score {one['score']:.0f}"):
            assert part in words
        assert f"entropy {one['entropy']:.3f}" in words
    tops = {box.bounding_box()["y"] for box in card.locator(".response").all()[:4]}
    assert len(tops) == 1  # side by side


def test_hostile_texts_are_shown_as_text_and_nothing_of_them_runs(opened, tmp_path):
    page = opened(written(list(create_hostile(logprobs=True)), tmp_path), viewport={"width": 400, "height": 800})
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.evaluate(EXERCISE)
    assert page.evaluate("() => window.hit") is None
    assert page.locator("img, main a, iframe, main script, main style").count() == 0
    for width in (400, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        wide = "(all) => all.filter((box) => box.scrollWidth > box.clientWidth).length"
        assert page.locator(".text:visible").evaluate_all(wide) == 0
    text = page.text_content("#cards")
    for name, hidden in HOSTILE.items():
        if not hidden.strip():
            assert {"blank": "only white space", "empty": "empty"}[name] in text
            continue
        assert visible(hidden[:LONGEST], keep="\n") in text, name
    assert f"{100_000 - LONGEST:,} more characters are left out" in text
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ufeff]", page.text_content("body")
    )
    page.fill("#search", HOSTILE["arabic"])
    box = page.locator(".prompt:visible .text", has_text="مرحبا").first
    assert box.evaluate("(node) => getComputedStyle(node).direction") == "rtl"
    page.fill("#search", "line 399")
    assert page.locator("#cards .prompt:visible").count() == 1
    long = page.locator(".response:visible .text", has_text="line 399").first  # it scrolls in its box to what was found
    page.wait_for_function("(node) => node.scrollTop > 1000", arg=long.element_handle())
    assert long.bounding_box()["height"] < 400
    assert long.get_attribute("tabindex") == "0"
    for tricky in ("<img", "\u202e", "İ", ".*", "\\", '"'):
        page.fill("#search", tricky)


def test_without_javascript_facts_tables_and_prompts_are_there(html, opened):
    page, with_script = opened(html, java_script_enabled=False), opened(html)
    for part in ("#verdict", "#remarks", "#facts", *(f"#{name}-words" for name in SECTIONS)):
        assert page.inner_text(part) == with_script.inner_text(part)
    assert "JavaScript is off" in page.inner_text("header")
    for name in ("solved", "lengths", "endings", "certainty", "positions"):
        assert page.locator(f"#{name} table:visible").count() == 1, name
    assert page.locator("figure:visible, .tools:visible, #more:visible, #theme:visible").count() == 0
    assert page.locator("#cards .prompt:visible").count() == len(GROUPS)
    page.locator("#cards summary").nth(3).click()
    assert page.locator("#cards .prompt").nth(3).locator(".response:visible").count() == 8
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 1280


def test_text_is_readable_in_light_and_dark_and_print_is_black_on_white(html, opened):
    page = opened(html, color_scheme="dark")
    page.select_option("#ending", "length")
    page.click("#unfold")
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        contrast, where = lowest_contrast(page)
        assert contrast >= 4.5, (scheme, where)
    page.click("#theme")
    assert page.get_attribute("#theme", "aria-pressed") == "true"
    background = "() => getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(20, 23, 27)"
    page.emulate_media(media="print")
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    assert page.locator("main > section:visible").count() == len(SECTIONS)
    for gone in ("#theme", "#prompts .tools", "#more"):
        assert page.is_hidden(gone)


def test_no_width_scrolls_sideways_and_what_is_wider_can_be_scrolled(page):
    page.evaluate("() => { for (const one of document.querySelectorAll('details')) one.open = true; }")
    check_widths(page, (320, 400, 1280), may_be_wider=".scroll, svg, .ask")


def test_the_page_has_landmarks_headings_and_words_for_every_chart(page):
    assert page.get_attribute("html", "lang") == "en"
    assert [page.locator(mark).count() for mark in ("header", "main", "footer", "h1")] == [1, 1, 1, 1]
    assert [section.get_attribute("id") for section in page.locator("main > section").all()] == list(SECTIONS)
    assert page.locator("main > section > h2 + .words").count() == len(SECTIONS)
    for chart in CHARTS:
        assert plot(page, chart).get_attribute("role") == "img"
        assert len(plot(page, chart).get_attribute("aria-label")) > 30
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, select, input")].filter((one) => !one.textContent.trim()
             && !(one.labels && [...one.labels].some((label) => label.textContent.trim()))).length"""
    )
    assert unnamed == 0
