"""The page of a plan in a real browser.

Whatever a page logs as an error or warning, throws, or asks a network for fails its test.
"""

import re
from dataclasses import replace

import numpy as np
import pytest
from support.contrast import lowest_contrast
from support.reports import FIXED, KINDS, NASTY, plan

from brim import BatchingConfig, BatchPlan, LengthCache, LengthEntry
from brim.analyze.plan_report.report import create_plan_report
from brim.analyze.plan_report.view import order_stats

CHARTS = ("lengths", "fill", "shapes", "order", "cost", "ranks", "waste")
SECTIONS = ("lengths", "fill", "shapes", "order", "cost", "waste", "strategies", "provenance")


@pytest.fixture(scope="module")
def report():
    """Of a plan with buckets and a short last step on 4 ranks."""
    return create_plan_report(plan(n=3000, epochs=3, **FIXED), name="plan/")


@pytest.fixture
def page(report, opened):
    return opened(report)


def text(page, selector):
    return page.inner_text(selector)


def drawn(page, chart):
    """What a chart shows: its SVG, and the pixels behind it."""
    return page.evaluate(
        """id => { const root = document.getElementById(id), canvas = root.querySelector("canvas");
                   return root.querySelector("svg").innerHTML + (canvas ? canvas.toDataURL() : ""); }""",
        f"{chart}-chart",
    )


def plot(page, chart):
    return page.locator(f"#{chart}-chart .plot")


def hover(page, chart, x=0.5, y=0.5):
    box = plot(page, chart).bounding_box()
    plot(page, chart).hover(position={"x": box["width"] * x, "y": box["height"] * y})
    return page.inner_text("#tip") if page.is_visible("#tip") else None


def rows(page, chart):
    """The table behind a chart, which is filled when it is unfolded."""
    page.click(f"#{chart}-chart summary")
    page.locator(f"#{chart}-chart tbody tr").first.wait_for()
    return [row.split("\t") for row in text(page, f"#{chart}-chart tbody").splitlines()]


def choose(page, name, value):
    page.locator(f'input[name="{name}"][value="{value}"]').press("Space")


EXERCISE = """async () => {
  const all = (selector) => [...document.querySelectorAll(selector)], change = (node) => node.dispatchEvent(new Event("change"));
  const said = [];
  for (const plot of all(".plot")) {
    plot.focus();
    const keys = ["ArrowRight", "End", "PageUp", "+", "Home", "0", "Escape"];
    for (const key of keys) plot.dispatchEvent(new KeyboardEvent("keydown", { key }));
    said.push(plot.getAttribute("aria-label"));
  }
  for (const details of all("details")) details.open = true;
  for (const id of ["epoch", "world", "rank"]) for (const option of [...document.getElementById(id).options].slice(-2)) {
    document.getElementById(id).value = option.value;
    change(document.getElementById(id));
  }
  said.push(document.getElementById("scope").textContent);
  for (const input of all("input")) if (input.offsetParent) input.click();
  document.getElementById("theme").click();
  await new Promise((done) => setTimeout(done, 50));
  return said;
}"""
"""Focuses and moves over every chart, makes every choice, unfolds every table."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_plan_opens_draws_and_switches_without_a_complaint(kind, opened):
    page = opened(create_plan_report(KINDS[kind]()))
    assert page.locator("main > section:visible h2").count() == len(SECTIONS)
    *labels, scope = page.evaluate(EXERCISE)
    assert len(labels) == len(CHARTS)
    assert all(labels)
    assert scope.endswith("rank 1 of 4" if kind == "a share" else "rank 7 of 8")
    shown = page.content().split('<script type="application/json"')[0] + text(page, "body")
    assert not re.search(r"NaN|undefined|Infinity", shown)


def test_stored_lazy_and_partial_plans_open_too(tmp_path, opened):
    made = plan()
    made.save(tmp_path / "lazy", lazy=True)
    made.shard(2, 3).save(tmp_path / "share")
    opened(create_plan_report(BatchPlan.load(tmp_path / "lazy")))
    page = opened(create_plan_report(BatchPlan.load(tmp_path / "share")))
    assert page.is_disabled("#world")
    assert page.is_disabled("#rank")
    assert text(page, "#scope") == "Epoch 0, rank 2 of 3"
    assert "share of rank 2 of 3" in text(page, "header")
    assert "what the other ranks cost is not in it" in text(page, "#cost-words")


def test_the_numbers_on_the_page_are_those_of_the_plan_for_every_epoch_and_number_of_ranks(page, report):
    for epoch in range(3):
        page.select_option("#epoch", str(epoch))
        for ranks in (1, 4):
            page.select_option("#world", str(ranks))
            shares = [report.plan.shard(rank, ranks).get_epoch(epoch) for rank in range(ranks)]
            used, slots = (sum(getattr(share.fill, name) for share in shares) for name in ("used", "slots"))
            real = [microbatch for share in shares for microbatch in share if not microbatch.is_null]
            assert text(page, '[data-fact="fill"]') == f"{used / slots:.1%}"
            assert text(page, '[data-beside="tokens"]') == f"{used:,} of {slots:,} slots"
            assert text(page, '[data-fact="microbatches"]') == f"{len(real):,}"
            assert text(page, '[data-fact="steps"]') == f"{shares[0].num_steps:,}"
            assert text(page, '[data-fact="shapes"]') == str(len({microbatch.shape for microbatch in real}))
            assert text(page, "#shapes-words").startswith(
                f"{len({microbatch.shape for microbatch in real})} distinct shapes"
            )
            assert f"{slots - used:,} slots of padding" in text(page, "#waste-words")


def test_what_is_written_before_the_script_runs_is_what_the_script_writes(report, opened):
    with_script, without = opened(report), opened(report, java_script_enabled=False)
    assert with_script.inner_text("#facts") == without.inner_text("#facts")


def test_the_charts_count_what_python_counts(page, report):
    """The sums that the script makes for its tables, against the view's."""
    page.select_option("#world", "4")
    epoch = report.view.epochs[0]
    dealt = epoch.dealt[4]
    sums = report.view.band_sums(epoch, dealt.order())
    for at, row in enumerate(rows(page, "fill")):
        padding = sums["slots"][at] - sums["tokens"][at]
        expected = [sums["sequences"][at], sums["microbatches"][at], sums["tokens"][at], padding]
        assert row[1:5] == [f"{value:,}" for value in expected]
    costs = dealt.step_costs(epoch.cost)
    first = rows(page, "cost")[0]
    steps = int(first[0].split("–")[-1].replace(",", "")) + 1
    mean, slowest = costs[:steps].mean(axis=1), costs[:steps].max(axis=1)
    assert first[1:] == [f"{mean.mean():,.0f}", f"{slowest.mean():,.0f}", f"{slowest.sum() / mean.sum() - 1:.2%}"]
    choose(page, "sort", "worst")
    worst = np.sort(epoch.padding[dealt.order()])[::-1]
    for row in rows(page, "waste"):
        assert row[2] == f"{worst[: int(row[0].replace(',', ''))].sum():,}"
    shapes, times = epoch.shapes(dealt.order())
    assert rows(page, "shapes")[0][1:] == [f"{value:,}" for value in (*shapes[times.argmax()], times.max())]
    assert [row[1] for row in rows(page, "ranks")] == [f"{total:,}" for total in costs.sum(axis=0)]
    assert sum(int(row[1].replace(",", "")) for row in rows(page, "lengths")) == 3000


def test_words_about_the_order_carry_the_statistics(page, report):
    epoch = report.view.epochs[0]
    for metric in ("width", "tokens", "cost"):
        choose(page, "metric", metric)
        for ranks in (1, 4):
            page.select_option("#world", str(ranks))
            stats = order_stats(epoch.column(metric), epoch.dealt[ranks])
            numbers = [
                float(found.replace("−", "-")) for found in re.findall(r"[−-]?\d\.\d{3}", text(page, "#order-words"))
            ]
            assert f"{stats.tail:.1%}" in text(page, "#order-words")
            assert numbers[0] == pytest.approx(stats.lag if ranks == 1 else stats.step_lag, abs=6e-4)
            assert numbers[1] == pytest.approx(stats.trend, abs=6e-4)
    assert "The last step is short" in text(page, "#order-words")
    assert "empty microbatch" in text(page, "#order-words")


def test_an_order_is_called_random_exactly_when_its_numbers_stay_within_what_is_said_of_chance(opened):
    """On orders of the planner by six seeds, and on one that is sorted by width."""
    made = [create_plan_report(plan(token_budget=4096, seed=seed), world_sizes=(1,)) for seed in range(6)]
    view = made[0].view
    epoch = view.epochs[0]
    by_width = replace(epoch.dealt[1], places=np.argsort(epoch.width, kind="stable")[:, None])
    ordered = replace(made[0], view=replace(view, epochs=(replace(epoch, dealt={1: by_width}),)))
    said = []
    for report in (*made, ordered):
        words = text(opened(report), "#order-words")
        near, trend, chance = (
            abs(float(found.replace("−", "-"))) for found in re.findall(r"[−-]?\d\.\d{3}", words)[:3]
        )
        said.append("looks random" in words)
        assert said[-1] == (max(near, trend) <= chance), words
    assert said == [True] * 6 + [False]


def test_switching_epoch_ranks_and_rank_changes_what_is_drawn_and_said(page):
    states = {}

    def look(name):
        states[name] = {chart: drawn(page, chart) for chart in CHARTS} | {
            "words": text(page, "main"),
            "facts": text(page, "#facts"),
        }

    look("start")
    page.select_option("#epoch", "1")
    look("epoch")
    page.select_option("#world", "4")
    look("ranks")
    page.select_option("#rank", "2")
    look("rank")
    for chart in ("order", "cost", "waste", "words"):
        assert len({state[chart] for state in states.values()}) == 4, chart
    assert states["ranks"]["ranks"] != states["epoch"]["ranks"]
    assert states["rank"]["fill"] != states["ranks"]["fill"]
    assert len({state["lengths"] for state in states.values()}) == 1
    assert text(page, "#scope") == "Epoch 1, rank 2 of 4"
    page.select_option("#world", "1")
    assert page.input_value("#rank") == "all"
    assert page.is_disabled("#rank")


def test_a_toggle_redraws_its_chart_and_back(page):
    for name, value, chart in (
        ("axis", "log", "lengths"),
        ("metric", "tokens", "order"),
        ("metric", "cost", "order"),
        ("sort", "worst", "waste"),
    ):
        before = drawn(page, chart)
        first = page.locator(f'input[name="{name}"]:checked').get_attribute("value")
        choose(page, name, value)
        assert drawn(page, chart) != before
        choose(page, name, first)
        assert drawn(page, chart) == before


def test_padding_can_be_seen_by_group(opened):
    page = opened(create_plan_report(plan(groups=["code", "chat"])))
    choose(page, "by", "group")
    assert "Group c" in text(page, "#fill-words")
    assert "group c" in hover(page, "fill", 0.3, 0.2)
    assert page.locator("#fill-chart svg rect.used").count() == 2


TIPS = {
    "lengths": r"tokens\n[\d,]+ samples?, \d",
    "fill": r"bucket .*\n.* samples in .* microbatch.*\n.* tokens, .* padding\n.*% full",
    "order": r"microbatch .* of .*\nstep .*, rank 0\n.* rows × .* wide\n.*padding\ncost",
    "cost": r"step \d+\ncost",
    "ranks": r"rank 0\ncost",
    "waste": r"the first .*\n.* of padding",
}


def test_hovering_and_the_keyboard_show_the_same_tooltips(page):
    for chart, said in TIPS.items():
        assert re.search(said, hover(page, chart)), chart
        page.mouse.move(2, 2)
        assert page.is_hidden("#tip")
        plot(page, chart).focus()
        page.keyboard.press("Home")
        first = text(page, "#tip")
        assert re.search(said, first), chart
        assert page.text_content("#said") == page.text_content("#tip")
        page.keyboard.press("End")
        assert (text(page, "#tip") == first) == (chart == "ranks")  # there is one rank
        page.keyboard.press("Escape")
        assert page.is_hidden("#tip")


def test_the_shape_under_the_pointer_is_named(page):
    plot(page, "shapes").scroll_into_view_if_needed()
    spot = page.locator("#shapes-chart circle.dot").first.bounding_box()
    page.mouse.move(spot["x"] + spot["width"] / 2, spot["y"] + spot["height"] / 2)
    assert re.search(r"rows × [\d,]+ wide\n[\d,]+ microbatch", text(page, "#tip"))


def test_a_range_is_zoomed_by_dragging_and_reset_by_the_button(page):
    whole = drawn(page, "order")
    assert page.is_disabled('[data-zoom="reset"]')
    plot(page, "order").scroll_into_view_if_needed()
    box = plot(page, "order").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 120, steps=4)
    page.mouse.up()
    assert drawn(page, "order") != whole
    at = int(re.search(r"microbatch ([\d,]+) of", hover(page, "order", 0.5, 0.4))[1].replace(",", ""))
    total = int(text(page, '[data-fact="microbatches"]').replace(",", ""))
    assert 0.4 * total < at < 0.6 * total
    left = int(re.search(r"microbatch ([\d,]+) of", hover(page, "order", 0.1, 0.4))[1].replace(",", ""))
    assert left > 0.3 * total
    page.click('[data-zoom="reset"]')
    page.mouse.move(2, 2)
    assert drawn(page, "order") == whole
    assert page.is_disabled('[data-zoom="reset"]')


def test_zooming_works_by_buttons_keys_and_the_wheel_and_scrolling_past_is_left_alone(page):
    whole = drawn(page, "order")
    page.click('[data-zoom="in"]')
    assert page.is_enabled('[data-zoom="reset"]')
    page.click('[data-zoom="out"]')
    assert drawn(page, "order") == whole
    hover(page, "order")
    page.mouse.wheel(0, -100)
    assert page.is_disabled('[data-zoom="reset"]')
    plot(page, "order").focus()
    for zoom in (lambda: page.keyboard.press("+"), lambda: (hover(page, "order"), page.mouse.wheel(0, -100))):
        zoom()
        page.wait_for_function("() => !document.querySelector('[data-zoom=reset]').disabled")
        page.keyboard.press("0")
        assert page.is_disabled('[data-zoom="reset"]')


def test_everything_can_be_reached_by_tabbing(page):
    page.evaluate(
        """() => { window.reached = []; addEventListener("focusin", ({ target }) =>
                   window.reached.push(target.id || target.closest("figure")?.id || target.name)); }"""
    )
    for _ in range(45):
        page.keyboard.press("Tab")
    reached = set(page.evaluate("() => window.reached"))
    assert {"theme", "epoch", "world", "axis", "metric", "sort"} | {f"{chart}-chart" for chart in CHARTS} <= reached


def test_dark_and_light_follow_the_system_and_the_button(report, opened):
    def background(page):
        return page.evaluate("() => getComputedStyle(document.body).backgroundColor")

    light, dark = opened(report, color_scheme="light"), opened(report, color_scheme="dark")
    assert background(light) == "rgb(251, 250, 247)"
    assert background(dark) == "rgb(20, 23, 27)"
    assert drawn(light, "order") != drawn(dark, "order")
    dark.click("#theme")
    assert background(dark) == background(light)
    assert drawn(light, "order") == drawn(dark, "order")
    light.click("#theme")
    assert background(light) == "rgb(20, 23, 27)"
    assert light.get_attribute("#theme", "aria-pressed") == "true"


def test_text_is_readable_in_light_and_dark(page):
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        contrast, where = lowest_contrast(page)
        assert contrast >= 4.5, (scheme, where)


def test_no_width_scrolls_sideways_and_charts_are_drawn_again_for_each(page):
    for summary in page.locator("summary").all():
        summary.click()
    for width in (320, 400, 768, 1600):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_function(
            """() => { const chart = document.querySelector("#order-chart");
                       return chart.querySelector("svg").viewBox.baseVal.width === chart.clientWidth; }"""
        )
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width


def test_in_print_all_sections_are_black_on_white_and_controls_are_gone(report, opened):
    page = opened(report, color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("() => getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.locator("main > section:visible").count() == len(SECTIONS)
    for chart in CHARTS:
        assert plot(page, chart).is_visible()
    for gone in (".controls", "#theme", ".tools >> nth=0", "summary >> nth=0", ".hint"):
        assert page.is_hidden(gone)
    assert len(page.pdf()) > 20_000


def test_without_javascript_facts_comparison_and_provenance_are_there(report, opened):
    page = opened(report, java_script_enabled=False)
    assert text(page, "#verdict") == report.verdict
    assert f"{report.facts['fill']:.1%}" in text(page, "#facts")
    assert "JavaScript is off" in text(page, "header")
    assert page.locator("#strategies tbody tr").count() == len(report.rows)
    assert "this plan" in text(page, "#strategies tr.own")
    assert report.plan.fingerprint in text(page, "#provenance")
    assert page.locator("main > section:visible").count() == 3
    assert page.is_hidden(".controls")


def test_the_page_has_landmarks_headings_and_words_for_every_chart(page):
    assert page.get_attribute("html", "lang") == "en"
    assert [page.locator(mark).count() for mark in ("header", "main", "footer", "h1")] == [1, 1, 1, 1]
    assert page.locator("main > section > h2").count() == len(SECTIONS)
    assert [section.get_attribute("id") for section in page.locator("main > section").all()] == list(SECTIONS)
    for chart in CHARTS:
        assert plot(page, chart).get_attribute("role") == "img"
        assert len(plot(page, chart).get_attribute("aria-label")) > 30
        assert len(rows(page, chart)) > 0
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, select, input")].filter((one) =>
                 !one.textContent.trim() && !(one.labels && [...one.labels].some((label) => label.textContent.trim()))).length"""
    )
    assert unnamed == 0


def test_markup_in_ids_groups_and_paths_is_shown_as_it_is(opened):
    lengths = LengthCache.from_lists(
        [f"{NASTY}{i}" for i in range(60)],
        (np.arange(60) + 5).tolist(),
        [NASTY if i % 2 else "fine" for i in range(60)],
        source={"path": f"/data/{NASTY}"},
    )
    page = opened(
        create_plan_report(
            BatchPlan.build(lengths, BatchingConfig(token_budget=64, overflow="skip", overflow_max=60)), name=NASTY
        )
    )
    choose(page, "by", "group")
    assert page.locator("img, b").count() == 0
    assert text(page, "h1") == f"Plan {NASTY}"
    assert f"/data/{NASTY}" in text(page, "#provenance")
    assert f"{NASTY}56" in text(page, "#provenance")
    assert NASTY in [row[0] for row in rows(page, "fill")]
    assert NASTY in hover(page, "fill", 0.3, 0.2) + hover(page, "fill", 0.3, 0.45)


def test_an_epoch_that_was_merged_draws_and_says_the_same_numbers(opened):
    report = create_plan_report(plan(n=20_000, groups=["a", "b"], **FIXED), world_sizes=(1, 4))
    whole, merged = opened(report), opened(report.html(max_bytes=4000))
    for page in (whole, merged):
        page.select_option("#world", "4")
        page.select_option("#rank", "2")
        choose(page, "by", "group")
        hover(page, "order")
        page.mouse.move(2, 2)
    for words in ("#facts", "#order-words", "#cost-words", "#waste-words"):
        assert whole.inner_text(words) == merged.inner_text(words)
    assert "Shown for all ranks together" in merged.inner_text("#fill-words")
    assert re.search(r"runs? of \d+ steps", merged.inner_html("#order-chart svg"))


def test_a_notebook_frame_runs_in_its_sandbox(report, opened):
    page = opened(f"<!doctype html><html lang=en><title>notebook</title><body>{report._repr_html_()}</body></html>")
    frame = page.frame_locator("iframe")
    frame.locator("#order-chart svg line").first.wait_for(state="attached")
    assert frame.locator("#verdict").inner_text() == report.verdict


def test_a_page_that_complains_fails_its_test(browser, tmp_path):
    """The fixture itself: a page with an error, a warning and a request."""
    from support.chromium import Opened

    path = tmp_path / "bad.html"
    path.write_text(
        "<!doctype html><script>console.warn('so so'); fetch('http://localhost:9/x').catch(() => 0); throw new "
        "Error('bad')</script>"
    )
    seen = Opened(browser, path)
    seen.page.wait_for_timeout(200)
    seen.context.close()
    said = " ".join(seen.complaints)
    assert all(word in said for word in ("so so", "bad", "localhost:9"))


def test_entries_with_an_empty_group_have_a_name(opened):
    entries = [LengthEntry(i, 10 + i, "a" if i % 2 else None) for i in range(30)]
    page = opened(
        create_plan_report(BatchPlan.build(LengthCache.from_lengths(entries), BatchingConfig(token_budget=64)))
    )
    choose(page, "by", "group")
    assert "(no group)" in [row[0] for row in rows(page, "fill")]
