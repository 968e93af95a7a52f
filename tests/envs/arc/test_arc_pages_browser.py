"""The pages of ARC in a real browser.

Whatever a page logs as an error or warning, throws, or asks a network for fails its test. Grids are read back from the
shapes that are drawn, and compared with `ArcEpisode.frames`.
"""

import re

import numpy as np
import pytest
from support.arc import random_task
from support.arc_pages import NAMES, random_episode, random_episodes, renamed
from support.contrast import lowest_contrast
from support.pages import EXERCISE, check_tooltips, check_widths

from brim.core.display import visible
from brim.envs.arc import PADDING, render_browse_page, render_replay_page
from brim.envs.arc.look.page.browse import facts_of
from brim.envs.arc.look.palette import PALETTES

EPISODES = random_episodes(9)
TASKS = [random_task(np.random.default_rng(number), number) for number in range(300)]
PHONE = {"width": 400, "height": 800}


@pytest.fixture(scope="module")
def replayed():
    return render_replay_page(EPISODES, title="Mine")


@pytest.fixture(scope="module")
def browsed():
    return render_browse_page(TASKS, title="Mine")


CELLS = """(svg) => {
  const size = (name) => svg.getAttribute(name) - 1, body = svg.querySelector("g");
  const cell = Number(body.getAttribute("transform").match(/scale\\((\\d+)\\)/)[1]);
  const grid = Array.from({ length: size("height") / cell }, () => Array(size("width") / cell).fill(-1));
  for (const path of body.children) {
    const colour = Number(path.getAttribute("class").slice(1));
    const runs = path.getAttribute("d").matchAll(/M(\\d+) (\\d+)h(\\d+)v1H\\d+z/g);
    for (const [, x, y, many] of runs) grid[y].fill(colour, Number(x), Number(x) + Number(many));
  }
  return grid;
}"""
"""The colours of the cells of a picture."""

FRAMES = """() => {
  const rows = ({ rows, columns, cells }) =>
    Array.from({ length: rows }, (_, row) => [...cells.slice(row * columns, (row + 1) * columns)]);
  const everywhere = Array.from({ length: 900 }, (_, at) => [Math.floor(at / 30), at % 30]);
  return data.episodes.map((_, number) => framesOf(number).map((frame) => ({
    ...frame,
    grid: rows(frame.grid),
    clipboard: frame.clipboard ? rows(frame.clipboard) : [],
    selected: everywhere.filter(([row, column]) => frame.selection && frame.selection.has(row, column)),
  })));
}"""
"""All frames of all episodes, as the script puts them together."""


def cells(page, selector):
    return page.locator(selector).evaluate(CELLS)


def grid(page, pane="a"):
    return cells(page, f'#pane-{pane} [data-part="grid"]')


def part(page, name, pane="a"):
    return page.inner_text(f'#pane-{pane} [data-part="{name}"]')


def check_frame(page, episode, step, pane="a"):
    """A pane shows what the environment was like after a step."""
    frame = episode.frames[step]
    pair = (episode.task.train if frame.kind == "train" else episode.task.test)[frame.pair]
    assert grid(page, pane) == frame.grid.tolist()
    assert cells(page, f'#pane-{pane} [data-part="input"]') == pair.input.tolist()
    assert cells(page, f'#pane-{pane} [data-part="target"]') == pair.output.tolist()
    if frame.clipboard.size:
        assert cells(page, f'#pane-{pane} [data-part="clipboard"]') == frame.clipboard.tolist()
    else:
        assert part(page, "empty", pane) == "empty"
        assert page.is_hidden(f'#pane-{pane} [data-part="clipboard"]')
    assert part(page, "step", pane) == f"{step} of {episode.steps}"
    assert part(page, "action", pane).startswith("Invalid") == frame.invalid
    if step:
        assert float(part(page, "reward", pane).replace("−", "-")) == pytest.approx(frame.reward, abs=6e-4)
        assert part(page, "operation", pane).startswith(f"operation {frame.operation}")
    assert float(part(page, "alike", pane).rstrip("%")) == pytest.approx(100 * frame.similarity, abs=0.11)
    inside = frame.selected[: frame.grid.shape[0], : frame.grid.shape[1]]
    assert page.locator(f'#pane-{pane} [data-part="grid"] .inside').count() == frame.selected.any()
    if frame.selected.any():
        edges = sum(np.abs(np.diff(np.pad(inside, 1).astype(int), axis=axis)).sum() for axis in (0, 1))
        path = page.get_attribute(f'#pane-{pane} [data-part="grid"] .inside', "d")
        assert path.count("M") == edges


def test_the_script_puts_the_frames_of_every_kind_of_episode_together(opened):
    episodes = [*EPISODES, random_episode(100, "bbox", steps=0)]
    found = opened(render_replay_page(episodes, title="Mine")).evaluate(FRAMES)
    for frames, episode in zip(found, episodes, strict=True):
        assert len(frames) == episode.steps + 1
        for one, frame in zip(frames, episode.frames, strict=True):
            assert one["grid"] == frame.grid.tolist()
            assert np.array_equal(np.array(one["clipboard"]).reshape(frame.clipboard.shape), frame.clipboard)
            assert one["selected"] == np.argwhere(frame.selected).tolist()
            assert (one["operation"], one["kind"], one["pair"]) == (frame.operation, frame.kind, frame.pair)
            assert bool(one["invalid"]) == frame.invalid
            assert [one["reward"], one["similarity"]] == pytest.approx([frame.reward, frame.similarity], rel=1e-5)
    assert any((frame.clipboard == PADDING).any() for one in episodes for frame in one.frames)


def test_buttons_keys_and_the_slider_move_from_step_to_step(replayed, opened):
    page, first = opened(replayed), EPISODES[0]
    check_frame(page, first, 0)
    assert page.is_disabled("#back")
    page.click("#forth")
    page.keyboard.press("ArrowRight")
    check_frame(page, first, 2)
    page.click("#back")
    check_frame(page, first, 1)
    page.keyboard.press("End")
    check_frame(page, first, first.steps)
    assert page.is_disabled("#forth")
    page.keyboard.press("Home")
    check_frame(page, first, 0)
    for step in range(3, first.steps, 9):
        page.locator("#scrub").fill(str(step))
        check_frame(page, first, step)
    page.keyboard.press("n")
    check_frame(page, EPISODES[1], 0)
    page.keyboard.press("p")
    check_frame(page, first, 0)
    page.wait_for_function("() => location.hash === '#episode=1&step=0'")


def test_playing_shows_every_frame_in_order_and_stops_at_the_end(replayed, opened):
    page, first = opened(replayed, viewport=PHONE), EPISODES[0]
    page.evaluate(
        """() => {
             const node = document.querySelector("#pane-a [data-part=step]");
             window.steps = [];
             new MutationObserver(() => window.steps.push(node.textContent)).observe(node, { childList: true });
           }"""
    )
    for _ in range(9):
        page.keyboard.press("+")
    assert page.input_value("#speed") == "32"
    page.keyboard.press("Space")
    assert page.inner_text("#play-name") == "Pause"
    page.wait_for_function("() => document.getElementById('play-name').textContent === 'Play'")
    steps = page.evaluate("() => window.steps.map((text) => Number(text.split(' ')[0]))")
    assert sorted(set(steps)) == list(range(first.steps + 1))
    assert steps == sorted(steps)
    check_frame(page, first, first.steps)
    page.keyboard.press("-")
    assert page.input_value("#speed") == "16"
    page.keyboard.press("Space")
    page.wait_for_function("() => document.querySelector('#pane-a [data-part=step]').textContent.startsWith('3 ')")
    page.keyboard.press("Space")
    assert page.inner_text("#play-name") == "Play"
    check_frame(page, first, int(part(page, "step").split()[0]))


def test_two_episodes_move_together_by_step_or_by_progress(opened):
    long, short = random_episode(1, "bbox", steps=12), random_episode(2, "mask", steps=6)
    page = opened(render_replay_page([long, short], title="Mine"))
    page.keyboard.press("c")
    page.locator("#scrub").fill("9")
    check_frame(page, long, 9, "a")
    check_frame(page, short, 6, "b")
    page.locator('input[name="by"][value="share"]').press("Space")
    page.locator("#scrub").fill("8")
    check_frame(page, long, 8, "a")
    check_frame(page, short, 4, "b")
    page.keyboard.press("c")
    assert page.is_hidden("#pane-b")
    page.locator("#list tbody tr").nth(1).locator("a").click()
    check_frame(page, short, 0)
    page.locator("#list tbody tr").nth(0).locator("button").click()
    check_frame(page, long, 0, "b")


def test_episodes_are_searched_filtered_and_sorted(replayed, opened):
    page = opened(replayed)

    def ids():
        return page.locator("#list tbody tr:visible bdi").all_inner_texts()

    page.select_option("#sort", "reward-down")
    assert ids() == [one.id for one in sorted(EPISODES, key=lambda one: -one.reward)]
    page.select_option("#outcome", "cut")
    assert set(ids()) == {one.id for one in EPISODES if one.truncated and not one.solved}
    page.fill("#search", "task4#")
    assert ids() == [one.id for one in EPISODES if one.task.id == "task4" and one.truncated]
    page.fill("#search", "nothing")
    assert page.inner_text("#matches") == "No episode is like that."


def test_the_palette_digits_and_the_list_of_keys(replayed, opened):
    page = opened(replayed)

    def filled():
        return page.evaluate(
            """() => [...document.querySelectorAll("#pane-a [data-part=grid] g:first-child path")]
                 .map((one) => [one.getAttribute("class"), getComputedStyle(one).fill])"""
        )

    for name in ("arc", "colour-blind", "arc"):
        assert page.is_checked(f'input[name="palette"][value="{name}"]')
        for colour, fill in filled():
            assert tuple(map(int, re.findall(r"\d+", fill))) == tuple(PALETTES[name].rgb[int(colour[1:])])
        page.keyboard.press("k")
    page.keyboard.press("d")
    drawn = page.locator('#pane-a [data-part="grid"] text').all_text_contents()
    assert drawn == [str(cell) for cell in EPISODES[0].frames[0].grid.ravel()]
    page.keyboard.press("?")
    assert "play or pause" in page.inner_text("#help")
    page.keyboard.press("Escape")
    assert page.is_hidden("#help")


def test_tasks_are_searched_filtered_sorted_and_drawn_when_they_come_into_view(browsed, opened):
    page = opened(browsed)

    def ids():
        return page.locator("#gallery .id").all_text_contents()

    assert ids() == [task.id for task in TASKS]
    page.wait_for_function("() => document.querySelectorAll('#gallery svg').length > 0")
    assert page.locator("#gallery svg").count() < 200
    page.locator("#gallery .card").last.scroll_into_view_if_needed()
    page.locator("#gallery .card").last.locator("svg").first.wait_for()
    assert cells(page, "#gallery .card:last-child svg:first-child") == TASKS[-1].train[0].input.tolist()
    facts = {task.id: facts_of(task) for task in TASKS}
    page.select_option("#pairs", "2")
    page.select_option("#shape", "other")
    wanted = [name for name, one in facts.items() if one.train == 2 and not one.is_same]
    assert ids() == wanted
    page.select_option("#sort", "size-down")
    assert ids() == sorted(wanted, key=lambda name: -facts[name].rows * facts[name].columns)
    page.select_option("#size", "20")
    assert set(ids()) == {name for name in wanted if max(facts[name].rows, facts[name].columns) <= 20}
    page.select_option("#size", "all")
    page.select_option("#colours", "10")
    assert set(ids()) == {name for name in wanted if facts[name].colours == 10}
    page.fill("#search", "Task29")
    assert set(ids()) == {name for name in wanted if facts[name].colours == 10 and "task29" in name}


def test_an_open_task_shows_all_pairs_and_hides_answers_until_they_are_asked_for(browsed, opened):
    page = opened(browsed, viewport=PHONE)
    page.locator("#gallery .card").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")  # there are two columns on a phone
    page.keyboard.press("Enter")
    for number in (3, 4):
        task = TASKS[number]
        assert page.inner_text("#task-id") == task.id
        shown = [cells(page, f"#train .couple:nth-child({at + 1}) svg:nth-of-type(1)") for at in range(len(task.train))]
        assert shown == [pair.input.tolist() for pair in task.train]
        assert page.locator("#test svg").count() == len(task.test)
        page.keyboard.press("a")
        for at, pair in enumerate(task.test):
            for place, side in enumerate(pair, start=1):
                assert cells(page, f"#test .couple:nth-child({at + 1}) svg:nth-of-type({place})") == side.tolist()
        page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.hash === '#task=6'")
    page.keyboard.press("Escape")
    assert page.is_hidden("#task")
    # A dialog says that it is closed after it gave the focus back to where it was opened from.
    page.wait_for_function("() => document.activeElement.dataset.at === '5'")


def test_hostile_names_are_shown_as_text_and_nothing_of_them_runs(opened):
    tasks = [renamed(TASKS[at], name) for at, name in enumerate(NAMES)]
    episodes = [random_episode(at, "bbox", steps=3, name=name) for at, name in enumerate(NAMES)]
    for made, names in (
        (render_replay_page(episodes, title=NAMES[0]), "#list bdi"),
        (render_browse_page(tasks, title=NAMES[1]), ".card .id"),
    ):
        page = opened(made, viewport=PHONE)
        assert page.locator(names).all_text_contents() == [
            (visible(task.id) or "(no id)") + (f"#{at}.0" if "#list" in names else "") for at, task in enumerate(tasks)
        ]
        page.evaluate(EXERCISE)
        assert page.evaluate("() => window.hit") is None
        assert page.locator("img, iframe, main script, a[href^=javascript]").count() == 0
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 400
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]", page.text_content("body"))


def test_text_is_readable_and_nothing_is_too_wide_in_light_and_dark(replayed, browsed, opened):
    for made, open_all in ((replayed, "c"), (browsed, "/")):
        page = opened(made)
        page.keyboard.press(open_all)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            contrast, where = lowest_contrast(page)
            assert contrast >= 4.5, (scheme, where)
        check_widths(page, (400, 1280), may_be_wider=".scroll, svg, .unseen, legend, #speed-name")


def test_the_chart_tells_the_pointer_and_the_keyboard_the_same_and_a_click_goes_to_its_step(replayed, opened):
    page = opened(replayed)
    check_tooltips(page, ["chart-a"], lambda page, chart: page.locator(f"#{chart} .plot"), across=0.5, down=0.5)
    box = page.locator("#chart-a .plot").bounding_box()
    page.locator("#chart-a .plot").click(position={"x": box["width"] * 0.6, "y": box["height"] * 0.5})
    step = int(part(page, "step").split()[0])
    assert EPISODES[0].steps * 0.4 < step < EPISODES[0].steps * 0.7
    check_frame(page, EPISODES[0], step)


def test_reduced_motion_begins_with_the_slowest_speed(replayed, opened):
    assert opened(replayed, reduced_motion="reduce").input_value("#speed") == "1"
    assert opened(replayed).input_value("#speed") == "4"


def test_without_javascript_the_facts_the_list_and_the_first_pictures_are_there(replayed, browsed, opened):
    page = opened(replayed, java_script_enabled=False)
    assert "JavaScript is off" in page.inner_text("header")
    assert page.locator("#list tbody tr:visible").count() == len(EPISODES)
    assert page.locator("#drawn svg:visible").count() == 3 * 8
    assert page.is_hidden("#player")
    page = opened(browsed, java_script_enabled=False)
    assert page.locator("#table tbody tr:visible").count() == len(TASKS)
    assert page.locator("#drawn svg:visible").count() == 2 * 12
    assert page.is_hidden("#browse")
