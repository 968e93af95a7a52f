"""Pictures of grids, tasks and episodes: text, PNG, SVG and GIF show the cells that there are, and obey no name."""

import io
import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from brim import DataError, OptionError
from brim.envs.arc import (
    BboxAction,
    JaxArcConfig,
    JaxArcTask,
    UnifiedActionConfig,
    batch_reset,
    create_mock_task,
    draw_episode,
    draw_state,
    draw_task,
    rgb_episode,
    rgb_state,
    rgb_task,
    save_picture,
    take_states,
)
from brim.envs.arc.episodes.episode import replay
from brim.envs.arc.look import gif
from brim.envs.arc.look.figure import MARGIN, Figure, PlacedGrid
from brim.envs.arc.look.font import ascii_text, text_pixels
from brim.envs.arc.look.palette import PALETTES, palette
from brim.envs.arc.look.picture import picture_bytes
from brim.envs.arc.look.png import png_bytes
from brim.envs.arc.look.raster import MOST_PIXELS, edges, paint
from brim.envs.arc.operations import PADDING

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = '<script>alert(1)</script>\x1b[2J\x1b]0;owned\x07\r\n"&\u202egnp.'
OPTIONS = {"answers": True, "palette": "arc", "cell": 16, "delay": 0.5}

shapes = st.tuples(st.integers(1, 12), st.integers(1, 12))
grids = shapes.flatmap(lambda shape: arrays(np.uint8, shape, elements=st.integers(0, 9)))
sizes = st.tuples(st.integers(1, 40), st.integers(1, 40))
images = sizes.flatmap(lambda size: arrays(np.uint8, size, elements=st.integers(0, 14)))


def episode(task=None, operations=(26, 3, 34), *, kind="train"):
    """An episode of rectangles, which are the four cells at the upper left."""
    config = JaxArcConfig(action=UnifiedActionConfig(selection_format="bbox"))
    zeros, ones = np.zeros(len(operations), np.int32), np.ones(len(operations), np.int32)
    actions = BboxAction(np.array(operations, np.int32), zeros, zeros, ones, ones)
    return replay(create_mock_task() if task is None else task, config, actions, kind=kind)


def decoded(content):
    """The frames of a picture, as another library reads them. [frames, height, width, 3]"""
    with Image.open(io.BytesIO(content)) as image:
        frames = []
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            frames.append(np.array(image.convert("RGB")))
    return np.stack(frames)


def colours(count=15):
    return np.arange(3 * count, dtype=np.uint8).reshape(count, 3) * 5


def contrast(one, other):
    """The contrast of two colours by WCAG 2."""
    lights = []
    for colour in (one, other):
        shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        lights.append(np.dot(linear, [0.2126, 0.7152, 0.0722]) + 0.05)
    return max(lights) / min(lights)


# Text


@given(grids, st.data())
def test_text_without_its_escapes_is_the_digits_of_the_grid_with_selected_cells_marked(grid, data):
    selected = data.draw(arrays(np.bool_, grid.shape))
    naive = [
        "".join(f"{colour}{'*' if mark else ' '}" for colour, mark in zip(*row, strict=True)).rstrip()
        for row in zip(grid.tolist(), selected.tolist(), strict=True)
    ]
    plain = draw_state(grid, selected=selected, colour=False)
    coloured = draw_state(grid, selected=selected, colour=True)
    assert plain.splitlines() == naive
    assert [line.rstrip() for line in ESCAPE.sub("", coloured).splitlines()] == naive


@given(grids, st.sampled_from(sorted(PALETTES)))
def test_every_cell_has_the_colour_of_the_palette_in_a_terminal(grid, name):
    found = re.findall(r";48;2;(\d+);(\d+);(\d+)m", draw_state(grid, palette=name))
    expected = palette(name).rgb[grid].reshape(-1, 3)
    assert np.array_equal(np.array(found, int), expected)


def test_a_drawing_that_is_too_wide_is_narrowed_then_stacked_then_refused_with_both_widths():
    grid = np.zeros((2, 20), np.uint8)
    task = JaxArcTask("wide", train=[(grid, grid)])
    assert "0 " * 20 + "  ->  " + ("0 " * 20).rstrip() in draw_task(task, colour=False, width=86)
    assert "0" * 20 + "  ->  " + "0" * 20 in draw_task(task, colour=False, width=46)
    assert "\n" + "0" * 20 + "\n->\n" + "0" * 20 in draw_task(task, colour=False, width=20)
    with pytest.raises(OptionError, match=r"needs 20 columns, but there are 19; .* \(brim arc render -o FILE\.png\)$"):
        draw_task(task, colour=False, width=19)


def test_an_episode_is_drawn_with_every_step_and_the_target():
    drawn = draw_episode(episode(), colour=False)
    for text in (
        "mock#0.0: 3 steps, not solved, submitted",
        "0: beginning",
        "1: FLIP_HORIZONTAL",
        "2: FILL_3",
        "target",
    ):
        assert text in drawn
    assert drawn.count("3*3*") == 2
    assert max(map(len, drawn.splitlines())) <= 80


def test_answers_of_test_pairs_are_hidden_on_request():
    task = JaxArcTask("t", train=[([[1]], [[2]])], test=[([[3]], [[7, 7]])])
    assert "7 7" in draw_task(task, colour=False)
    assert "7" not in draw_task(task, colour=False, answers=False)
    orange = palette("arc").rgb[7]
    assert (rgb_task(task) == orange).all(axis=-1).any()
    assert not (rgb_task(task, answers=False) == orange).all(axis=-1).any()
    tested = episode(task, [34], kind="test")
    for suffix in (".png", ".gif"):
        shown, hidden = (
            (decoded(picture_bytes(suffix, tested, **{**OPTIONS, "answers": answers})) == orange).all(axis=-1).any()
            for answers in (True, False)
        )
        assert (shown, hidden) == (True, False), suffix


# Pixels


@given(grids, st.integers(2, 20), st.sampled_from(sorted(PALETTES)))
def test_the_middle_of_every_cell_has_its_colour(grid, cell, name):
    pixels = rgb_state(grid, cell=cell, palette=name)
    middle = MARGIN + cell // 2
    rows, columns = grid.shape
    seen = pixels[middle : middle + rows * cell : cell, middle : middle + columns * cell : cell]
    assert np.array_equal(seen[:rows, :columns], palette(name).rgb[grid])
    assert pixels.shape[:2] == tuple(2 * MARGIN + size * cell + 1 for size in grid.shape)


@given(shapes.flatmap(lambda shape: arrays(np.bool_, shape)))
def test_the_border_of_a_selection_lies_between_cells_of_which_one_is_selected(selected):
    found = {(row, column) for row, at, length in edges(selected) for column in range(at, at + length)}
    rows, columns = selected.shape

    def inside(row, column):
        return 0 <= row < rows and bool(selected[row, column])

    naive = {
        (row, column)
        for row in range(rows + 1)
        for column in range(columns)
        if inside(row, column) != inside(row - 1, column)
    }
    assert found == naive


def test_padding_is_cut_off_and_what_is_no_grid_is_refused():
    padded = np.full((5, 5), PADDING, np.uint8)
    padded[:2, :3] = 4
    assert np.array_equal(rgb_state(padded), rgb_state(np.full((2, 3), 4)))
    for wrong in ([[11]], [[-1]], [[PADDING]], [1, 2], [[0.5]], np.zeros((31, 1), int), np.zeros((0, 3), int)):
        with pytest.raises(DataError, match=r"^grid"):
            draw_state(wrong)
    with pytest.raises(DataError, match=r"selected must be an array of bool that covers the grid of 2x2"):
        draw_state([[1, 2], [3, 4]], selected=np.ones((1, 2), bool))


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_painted():
    huge = Figure(MOST_PIXELS, 2, 16, 2, "", (PlacedGrid(0, 0, np.zeros((1, 1), np.uint8), None),), (), ())
    with pytest.raises(OptionError, match="the picture would have 100,000,000 x 2 pixels, more than 100,000,000"):
        paint(huge)


def test_every_printable_character_has_pixels_of_its_own_and_others_are_escaped():
    drawn = {char: text_pixels(char).tobytes() for char in map(chr, range(32, 127))}
    assert len(set(drawn.values())) == 95
    assert not any(drawn[" "])
    assert ascii_text("é\x1b\u202e") == "\\xe9\\x1b\\u202e"


@pytest.mark.parametrize("name", sorted(PALETTES))
def test_colours_of_a_palette_differ_and_text_on_each_can_be_read(name):
    chosen = palette(name)
    assert len(set(chosen.colours)) == 10
    for ink, colour in zip(chosen.inks, chosen.colours, strict=True):
        assert contrast(ink, colour) >= 4.5


def test_a_colour_blind_person_tells_all_colours_apart_better_than_those_of_the_editor():
    """Deuteranopia as in Machado et al. 2009, severity 1, in linear light; the smallest distance of any two."""
    matrix = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])

    def nearest(name):
        linear = (palette(name).rgb / 255.0) ** 2.2
        seen = np.clip(linear @ matrix.T, 0, 1) ** (1 / 2.2)
        return min(np.linalg.norm(one - other) for one, other in combinations(seen, 2))

    assert nearest("colour-blind") > 1.2 * nearest("arc")


# Files


@given(images)
def test_png_is_decoded_to_the_same_pixels(image):
    assert np.array_equal(decoded(png_bytes(image, colours()))[0], colours()[image])


@given(sizes, st.data())
def test_gif_is_decoded_to_the_same_frames(size, data):
    frames = data.draw(st.lists(arrays(np.uint8, size, elements=st.integers(0, 14)), min_size=1, max_size=4))
    content = gif.gif_bytes(frames, colours(), [7] * len(frames))
    found = decoded(content)
    assert len(found) == len(frames)
    assert np.array_equal(found, np.stack([colours()[frame] for frame in frames]))


def test_gif_of_noise_fills_the_table_of_codes_more_than_once_and_is_decoded():
    noise = np.random.default_rng(0).integers(0, 15, (150, 150), dtype=np.uint8)
    assert np.array_equal(decoded(gif.gif_bytes([noise], colours(), [1]))[0], colours()[noise])


def test_an_animation_has_a_frame_for_every_step_and_shows_the_last_longer(tmp_path):
    played = episode()
    save_picture(tmp_path / "e.gif", played, delay=0.2)
    with Image.open(tmp_path / "e.gif") as image:
        assert image.n_frames == played.steps + 1
        durations = []
        for number in range(image.n_frames):
            image.seek(number)
            durations.append(image.info["duration"])
        assert image.info["loop"] == 0
    assert durations == [200, 200, 200, 800]


@pytest.mark.parametrize("answers", [True, False])
def test_frames_of_an_animation_have_one_size_whatever_the_captions_and_pairs_are(answers):
    task = JaxArcTask("t", train=[([[1]], [[2] * 9] * 9)], test=[([[3] * 4], [[4] * 20] * 3)])
    played = episode(task, [1, 10, 41, 26, 40, 25, 34])
    frames = decoded(picture_bytes(".gif", played, **{**OPTIONS, "answers": answers, "cell": 3}))
    assert len(frames) == 8


def test_png_of_states_tasks_and_episodes_is_the_array_of_pixels(tmp_path):
    task = create_mock_task()
    states, _ = batch_reset(np.zeros((2, 2), np.uint32), JaxArcConfig(), task)
    state = take_states(states, 0)
    pair = {"input": state.input_grid, "target": state.target_grid}
    for what, expected in (
        (state, rgb_state(state.working_grid, **pair)),
        (task, rgb_task(task)),
        (episode(), rgb_episode(episode())),
    ):
        save_picture(tmp_path / "picture.PNG", what)
        assert np.array_equal(decoded((tmp_path / "picture.PNG").read_bytes())[0], expected)
    with pytest.raises(DataError, match=r"a batch of 2; take one with take_states\(states, 0\)"):
        save_picture(tmp_path / "batch.png", states)


def test_svg_has_a_rectangle_for_every_run_of_cells_and_the_size_of_the_png():
    task = JaxArcTask("t", train=[([[1, 1, 2]], [[3]])])
    root = ElementTree.fromstring(picture_bytes(".svg", task, **OPTIONS))
    fills = [one.get("fill") for one in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert fills[1:] == [palette("arc").colours[number] for number in (1, 2, 3)]
    height, width = rgb_task(task).shape[:2]
    assert (root.get("width"), root.get("height")) == (str(width), str(height))


def test_the_same_picture_has_the_same_bytes():
    for suffix in (".png", ".svg", ".gif", ".txt", ".ans"):
        assert picture_bytes(suffix, episode(), **OPTIONS) == picture_bytes(suffix, episode(), **OPTIONS)


@pytest.mark.parametrize("suffix", [".svg", ".txt", ".ans"])
def test_a_hostile_name_is_shown_and_never_obeyed(suffix):
    task = JaxArcTask(HOSTILE, train=[([[1]], [[2]])])
    for what in (task, episode(task)):
        text = picture_bytes(suffix, what, **OPTIONS).decode()
        assert not set(ESCAPE.sub("", text)) & set("\x1b\x07\r\u202e")
        assert "\\x1b[2J" in text
        if suffix == ".svg":
            tags = {one.tag.rpartition("}")[2] for one in ElementTree.fromstring(text).iter()}
            assert tags <= {"svg", "title", "rect", "g", "path", "text"}


def test_unknown_formats_and_palettes_are_refused_with_the_nearest_name_before_anything_is_written(tmp_path):
    task = create_mock_task()
    with pytest.raises(OptionError, match=r"it ends with '\.pgn', but should end with .*\. Did you mean \"\.png\"\?"):
        save_picture(tmp_path / "task.pgn", task)
    with pytest.raises(OptionError, match="it has no suffix"):
        save_picture(tmp_path / "task", task)
    with pytest.raises(OptionError, match=r'palette .*colour-blind.*Did you mean "colour-blind"\?'):
        save_picture(tmp_path / "task.png", task, palette="color-blind")
    with pytest.raises(OptionError, match="a GIF shows the steps of an episode"):
        save_picture(tmp_path / "task.gif", task)
    with pytest.raises(OptionError, match="cell must be at most 64 pixels, got 65"):
        save_picture(tmp_path / "task.png", task, cell=65)
    with pytest.raises(OptionError, match=r"delay must be 0\.02 to 60 seconds, got 0"):
        save_picture(tmp_path / "e.gif", episode(), delay=0)
    with pytest.raises(DataError, match="got ndarray"):
        save_picture(tmp_path / "grid.png", np.zeros((2, 2), np.uint8))
    assert not list(tmp_path.iterdir())
