"""Pages of ARC as text: what is in them, what is left out, and names that are shown and never obeyed."""

import base64
import hashlib
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.arc import config
from support.arc_pages import NAMES, data_of, random_episode, random_episodes, renamed
from support.pages import Tags

from brim.core.display import visible
from brim.core.errors import DamagedError, DataError
from brim.envs.arc import (
    ArcOperation,
    BboxAction,
    MaskAction,
    UnifiedActionConfig,
    create_mock_task,
    family_tasks,
    render_browse_page,
    render_replay_page,
    replay,
)
from brim.envs.arc.look import page as pages
from brim.envs.arc.look.page.drawn import grid_svg
from brim.envs.arc.look.page.encode import episode_json, runs_text
from brim.envs.arc.look.page.limits import MOST_NAMES, left_out_html
from brim.envs.arc.look.page.words import operation_words, selection_use

cells = arrays(np.uint8, st.tuples(st.integers(1, 30), st.integers(1, 30)), elements=st.integers(0, 10))


def read_runs(text, before):
    """The definition of the code: letters over cells, "z" for those that stay."""
    letters = "".join(letter * int(many or 1) for letter, many in re.findall("([a-z])([0-9]*)", text))
    letters = letters.ljust(len(before), "z")
    return [old if letter == "z" else ord(letter) - 97 for letter, old in zip(letters, before, strict=True)]


@settings(max_examples=50)
@given(cells, st.data())
def test_runs_give_back_the_cells_and_no_two_neighbours_are_alike(grid, data):
    before = np.where(data.draw(arrays(np.bool_, grid.shape)), grid, 0)
    whole, change = runs_text(grid), runs_text(grid, before)
    assert read_runs(whole, [0] * grid.size) == grid.ravel().tolist()
    assert read_runs(change, before.ravel().tolist()) == grid.ravel().tolist()
    for text in (whole, change):
        letters = re.findall("[a-z]", text)
        assert all(one != other for one, other in pairwise(letters))
    assert not re.search(r"z\d*$", change)


@settings(max_examples=50)
@given(cells.filter(lambda grid: grid.max() < 10))
def test_a_static_picture_has_every_cell_once_in_its_colour(grid):
    found = np.full(grid.shape, 99)
    for colour, path in re.findall(r'class="c(\d)" d="([^"]+)"', grid_svg(grid, "A grid")):
        for left, row, width in re.findall(r"M(\d+) (\d+)h(\d+)v1H\d+z", path):
            assert (found[int(row), int(left) : int(left) + int(width)] == 99).all()
            found[int(row), int(left) : int(left) + int(width)] = int(colour)
    assert (found == grid).all()


def test_the_grids_of_a_task_are_in_a_page_once_for_all_its_episodes():
    one = random_episode(1, "bbox", steps=3)
    data = data_of(render_replay_page([one, replace(one, env=7), random_episode(2, "mask", steps=3)], title="Mine"))
    assert [episode["task"] for episode in data["episodes"]] == [0, 0, 1]
    assert len(data["tasks"]) == 2


def test_every_operation_is_named_in_words_of_its_own():
    words = [operation_words(operation) for operation in ArcOperation]
    assert len(set(words)) == len(ArcOperation)
    assert operation_words(ArcOperation.FLOOD_FILL_2) == "flood fill with red"
    assert [one for one in ArcOperation if selection_use(one) == "none"] == [
        one for one in ArcOperation if not one.uses_selection
    ]


def test_an_invalid_action_is_written_with_its_reason_and_the_cells_it_asked_for():
    allowed = tuple(number for number in range(len(ArcOperation)) if number != ArcOperation.COPY)
    setting = replace(config("bbox"), action=UnifiedActionConfig(selection_format="bbox", allowed_operations=allowed))
    numbers = [[99, 0, 0, 1, 1], [28, 0, 0, 1, 1], [3, 0, 0, 30, 1], [3, 29, 29, 29, 29], [3, 0, 0, 0, 1]]
    actions = BboxAction(*np.array(numbers, np.int32).T)
    found = episode_json(replay(create_mock_task(), setting, actions))
    assert found["operations"] == "99!u,28!f,3!a,3!g,3"
    assert found["selections"] == "?0.0.1.1,?0.0.1.1,?0.0.30.1,?29.29.29.29,0001"


def test_a_mask_is_written_as_a_rectangle_or_as_runs():
    mask = np.zeros((2, 30, 30), np.bool_)
    mask[0, 1:3, 0:2] = True
    mask[1, 0, [0, 2]] = True
    actions = MaskAction(np.array([3, 3], np.int32), mask)
    assert episode_json(replay(create_mock_task(), config("mask"), actions))["selections"] == "1021,/bzb"


def test_a_page_allows_its_own_style_and_script_and_nothing_else():
    for page in (
        render_replay_page(random_episodes(2, steps=2), title="Mine"),
        render_browse_page(family_tasks(2), title="Mine"),
    ):
        policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
        for name in ("style", "script"):
            (inner,) = re.findall(rf"<{name}>(.*?)</{name}>", page, re.DOTALL)
            found = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
            assert f"{name}-src 'sha256-{found}';" in policy
        assert policy.startswith("default-src 'none'")
        assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r' (style|on\w+|src)="', page)


PLAIN = "plain name"


def both_pages(name):
    task = renamed(family_tasks(1)[0], name)
    one = random_episode(5, "bbox", steps=4, name=name)
    return render_replay_page([one], title=name), render_browse_page([task], title=name)


def page_names(page):
    """The ids in the data of a page."""
    return [task["id"] for task in data_of(page)["tasks"]]


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_name_is_shown_with_every_character_visible_and_adds_no_element(name):
    for page, plain in zip(both_pages(name), both_pages(PLAIN), strict=True):
        tags = Tags(page)
        assert tags.seen == Tags(plain).seen
        assert visible(name) in tags.words or not name
        assert (visible(" ".join(name.split())) or "(no id)") in page_names(page)
        assert all(character.isprintable() or character == "\n" for character in page)


def test_a_very_long_name_is_clipped():
    for page in both_pages("x" * 100_000):
        body = page.split("<main", 1)[1]
        assert "x" * 59 + "…" in body
        assert "x" * 60 not in body


def test_what_is_left_out_is_counted_and_named(monkeypatch):
    episodes, tasks = random_episodes(5, steps=3), family_tasks(5)
    assert 'id="left-out"' not in render_replay_page(episodes, title="Mine")
    monkeypatch.setattr(pages, "MOST_EPISODES", 2)
    monkeypatch.setattr(pages, "MOST_TASKS", 4)
    replayed, browsed = render_replay_page(episodes, title="Mine"), render_browse_page(tasks, title="Mine")
    assert "The last 3 of 5 episodes are left out" in replayed
    assert ", ".join(one.id for one in episodes[2:]) in replayed
    assert len(data_of(replayed)["episodes"]) == len(re.findall('href="#episode=', replayed)) == 2
    assert 'data-fact="episodes">5<' in replayed
    assert "The last 1 of 5 tasks is left out" in browsed
    assert [one["id"] for one in data_of(browsed)["tasks"]] == [one.id for one in tasks[:4]]


def test_a_page_is_limited_in_characters_but_has_one_episode_at_least(monkeypatch):
    episodes = random_episodes(4, steps=3)
    for most, kept in ((1, 1), (10**9, 4)):
        monkeypatch.setattr(pages, "MOST_CHARACTERS", most)
        assert len(data_of(render_replay_page(episodes, title="Mine"))["episodes"]) == kept


def test_not_more_than_a_thousand_names_are_listed():
    note = left_out_html("task", [f"t{number}" for number in range(MOST_NAMES + 5)], 2_000)
    assert "t999 and 5 more" in note


def test_nothing_to_show_is_an_error_and_so_is_an_episode_that_does_not_follow_from_its_actions():
    with pytest.raises(DataError, match="there are no episodes to replay"):
        render_replay_page([], title="Mine")
    with pytest.raises(DataError, match="there are no tasks to browse"):
        render_browse_page([], title="Mine")
    with pytest.raises(DamagedError, match="its actions end with"):
        render_replay_page([replace(random_episode(1, "bbox"), reward=77.0)], title="Mine")


def test_a_page_counts_outcomes_and_does_not_keep_frames():
    episodes = [replace(one) for one in random_episodes(8)]
    page = render_replay_page(episodes, title="Mine")
    counts = {"failed": 0, "cut off": 0, "unfinished": 0}
    for one in episodes:
        name = "cut off" if one.truncated else "failed" if one.terminated else "unfinished"
        counts[name] += not one.solved
    assert all(counts.values())
    assert "; " + ", ".join(f"{many} {name}" for name, many in counts.items()) + "." in page
    assert not any("frames" in vars(one) for one in episodes)


def test_the_same_episodes_give_the_same_page():
    assert render_replay_page(random_episodes(3), title="a") == render_replay_page(random_episodes(3), title="a")
