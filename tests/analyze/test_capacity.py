"""The search against a scan of every size, and what is made of the trials."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brim import BrimError, DamagedError, DataError, OptionError
from brim.analyze.capacity.plot import draw, save_plot
from brim.analyze.capacity.search import Capacity, Line, Search, Trial, find_capacity


def machine(capacity, *, why="out of memory", tried=None):
    """Something that takes any size up to `capacity`."""

    def attempt(size):
        if tried is not None:
            tried.append(size)
        fits = size <= capacity
        return Trial(size=size, why=None if fits else why, seconds=0.1 + size * 1e-3, peak=1000 + 10 * size)

    return attempt


def scanned(capacity, multiple, most):
    """The definition: the last of all sizes that fits."""
    sizes = range(multiple, min(capacity, capacity if most is None else most) + 1, multiple)
    return sizes[-1] if sizes else None


SEARCHES = {
    "capacity": st.integers(0, 5000),
    "start": st.integers(1, 3000),
    "most": st.none() | st.integers(64, 6000),
    "multiple": st.integers(1, 64),
}


@given(**SEARCHES, resolution=st.sampled_from([0, 0.01, 0.05, 0.3, 0.9]))
@example(capacity=700, start=512, most=None, multiple=64, resolution=0.05)
@example(capacity=3, start=3000, most=None, multiple=1, resolution=0.9)
def test_the_largest_is_what_a_scan_of_all_sizes_finds_to_the_resolution(capacity, start, most, multiple, resolution):
    attempt, true = machine(capacity), scanned(capacity, multiple, most)
    search = Search(unit="tokens", start=start, most=most, multiple=multiple, resolution=resolution)
    if true is None:
        with pytest.raises(BrimError, match=f"not even {multiple} tokens fit: out of memory"):
            find_capacity(attempt, search)
        return
    largest = find_capacity(attempt, search).largest.size
    assert largest <= true
    assert true - largest < max(multiple, resolution * largest) or true == largest
    if resolution == 0:
        assert largest == true


@given(**SEARCHES)
def test_nothing_above_a_failure_is_tried_nor_anything_twice(capacity, start, most, multiple):
    tried = []
    try:
        find_capacity(machine(capacity, tried=tried), Search(unit="tokens", start=start, most=most, multiple=multiple))
    except BrimError:
        assert capacity < multiple
    failed = np.inf
    for size in tried:
        assert size < failed
        assert size % multiple == 0
        assert most is None or size <= most
        failed = min(failed, size) if size > capacity else failed
    assert len(set(tried)) == len(tried)


@given(capacity=st.integers(1, 10**9), start=st.integers(1, 10**6))
def test_a_search_takes_logarithmically_many_trials(capacity, start):
    tried = []
    find_capacity(machine(capacity, tried=tried), Search(unit="tokens", start=start))
    assert len(tried) <= 3 + abs(np.log2(capacity / start)) + np.log2(1 / 0.05) + np.log2(start)


def test_a_search_doubles_and_then_bisects():
    tried = []
    capacity = find_capacity(machine(5000, tried=tried), Search(unit="tokens", start=512, multiple=64))
    assert tried == [512, 1024, 2048, 4096, 8192, 6144, 5120, 4608, 4864, 4992]
    assert [trial.size for trial in capacity.trials] == sorted(tried)
    assert capacity.largest.size == 4992
    assert capacity.failed.size == 5120


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 0}, "start must be at least 1, got 0"),
        ({"multiple": 0}, "multiple must be at least 1, got 0"),
        ({"resolution": 1}, "below 1, got 1"),
        ({"resolution": -0.1}, r"got -0\.1"),
        ({"most": 63}, "most must be at least 64, .* got 63"),
    ],
)
def test_searches_that_cannot_work_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        Search(**{"unit": "tokens", "start": 64, "multiple": 64, **options})


def curve(*rates, unit="tokens", failed=()):
    """Trials of 100, 200, 400 ... with these throughputs."""
    sizes = [100 * 2**at for at in range(len(rates))]
    fitting = [Trial(size=size, seconds=size / rate, peak=size) for size, rate in zip(sizes, rates, strict=True)]
    return Capacity(unit=unit, trials=(*failed, *fitting))


def test_the_knee_is_the_smallest_that_is_nearly_as_fast_as_the_fastest():
    capacity = curve(10, 50, 96, 100, 99)
    assert (capacity.knee.size, capacity.fastest.size, capacity.largest.size) == (400, 800, 1600)
    assert curve(100).knee.size == 100


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("out of memory", "6,400 is the largest that fits, 9,000 runs out of memory"),
        ("killed", "6,400 is the largest that fits, 9,000 was killed"),
        (
            "too slow",
            "6,400 is the largest that is fast enough, 9,000 is too slow, and what memory allows was not reached",
        ),
        (None, "6,400 is the largest that was to be tried, and it fits: what memory allows was not reached"),
    ],
)
def test_advice_says_what_the_limit_was(why, said):
    failed = () if why is None else (Trial(size=9000, why=why),)
    capacity = curve(10, 20, 40, 80, 90, 95, 100, failed=failed)
    assert capacity.advice == f"3,200 tokens give 95% of the best throughput; {said}."
    assert capacity.limit == (why or "most")


@given(
    fixed=st.floats(0.01, 10),
    per_unit=st.floats(1e-6, 1e-2),
    sizes=st.sets(st.integers(1, 10**6), min_size=2, max_size=8),
)
def test_lines_find_the_cost_that_is_fixed_and_the_one_of_each_unit(fixed, per_unit, sizes):
    trials = tuple(
        Trial(size=size, seconds=fixed + per_unit * size, peak=int(1e9 * fixed) + 70 * size) for size in sizes
    )
    capacity = Capacity(unit="tokens", trials=trials)
    for size in sizes:
        assert capacity.seconds(size) == pytest.approx(fixed + per_unit * size, rel=1e-4)
        assert capacity.bytes(size) == pytest.approx(1e9 * fixed + 70 * size, rel=1e-4)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8))
def test_lines_are_never_negative(seconds):
    trials = tuple(Trial(size=64 * 2**at, seconds=value, peak=10**6) for at, value in enumerate(seconds))
    line = Capacity(unit="tokens", trials=trials).seconds
    assert min(line) >= 0
    assert line(10) > 0


def test_one_trial_makes_a_line_through_nothing():
    assert curve(50).seconds == Line(0, pytest.approx(1 / 50))


def found():
    return find_capacity(
        machine(5000), Search(unit="tokens", start=512, multiple=64), measured={"model": "tiny", "cores": 2}
    )


def test_a_saved_capacity_is_loaded_as_it_was(tmp_path):
    capacity = found()
    capacity.save(tmp_path / "capacity.json")
    assert Capacity.load(tmp_path / "capacity.json") == capacity == Capacity.from_dict(capacity.to_dict())
    written = json.loads((tmp_path / "capacity.json").read_bytes())
    assert written["format"] == "brim.capacity/1"
    assert (written["largest"], written["limit"], written["measured"]) == (
        4992,
        "out of memory",
        {"model": "tiny", "cores": 2},
    )
    assert [path.name for path in tmp_path.iterdir()] == ["capacity.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "brim.capacity/2"}, "of version brim.capacity/2, this brim reads brim.capacity/1"),
        ({"trials": None}, "not a capacity: TypeError"),
        ({"trials": []}, "no size fits"),
        ({"trials": [{"size": 3}]}, "not a capacity: KeyError"),
        ({"trials": [{"size": "3", "why": None, "seconds": 1, "peak": 1, "detail": ""}]}, "a size is an integer"),
        ({"trials": [{"size": True, "why": None, "seconds": 1, "peak": 1, "detail": ""}]}, "a size is an integer"),
        ({"trials": [{"size": 10**400, "why": None, "seconds": 1, "peak": 1, "detail": ""}]}, "a size is an integer"),
        (
            {"trials": [{"size": 3, "why": None, "seconds": float("inf"), "peak": 1, "detail": ""}]},
            "truncated or damaged",
        ),
        ({"measured": {"x": float("nan")}}, "truncated or damaged"),
        ({"trials": [{"size": 3, "why": "bored", "seconds": 1, "peak": 1, "detail": ""}]}, "got 'bored'"),
        ({"trials": [{"size": 3, "why": None, "seconds": None, "peak": 1, "detail": ""}]}, "got None and 1 for 3"),
    ],
)
def test_a_foreign_or_altered_file_is_one_line(tmp_path, change, message):
    path = tmp_path / "capacity.json"
    path.write_text(json.dumps({**found().to_dict(), **change}))
    with pytest.raises(DamagedError, match=message) as raised:
        Capacity.load(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_cut_anywhere_is_damaged_and_a_missing_one_is_missing(tmp_path):
    path = tmp_path / "capacity.json"
    found().save(path)
    whole = path.read_bytes()
    for size in range(0, len(whole) - 2, 97):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedError, match="truncated or damaged"):
            Capacity.load(path)
    path.write_text("[]")
    with pytest.raises(DamagedError, match="truncated or damaged: it is not a JSON object"):
        Capacity.load(path)
    path.write_text("{}")
    with pytest.raises(DataError, match=r"is not a capacity: .*; measure it again"):
        Capacity.load(path)
    with pytest.raises(DataError, match=r"nowhere\.json: No such file"):
        Capacity.load(tmp_path / "nowhere.json")


def test_a_capacity_needs_a_trial_that_fits_and_each_size_once():
    with pytest.raises(DataError, match="no size fits"):
        Capacity(unit="tokens", trials=(Trial(size=5, why="killed"),))
    with pytest.raises(DataError, match="tried twice"):
        Capacity(unit="tokens", trials=(Trial(size=5, seconds=1, peak=1),) * 2)


def test_the_table_has_a_line_for_each_trial_in_eighty_columns():
    drawn = found().to_ascii().splitlines()
    assert drawn[0].split() == ["tokens", "fits", "s/step", "peak", "tokens/s"]
    assert len(drawn) == 1 + 10
    assert max(len(line) for line in drawn) <= 80
    assert "█" * 24 in drawn[-4]  # the largest is the fastest here
    assert [line.split()[0] for line in drawn if "out of memory" in line] == ["5,120", "6,144", "8,192"]
    assert all("█" not in line for line in drawn if "out of memory" in line)
    assert sum(len(line) for line in found().to_ascii(10).splitlines()) < sum(len(line) for line in drawn)


def test_a_notebook_shows_a_table_with_everything_escaped():
    html = replace(found(), unit="<b>")._repr_html_()
    tree = ElementTree.fromstring(f"<div>{html}</div>")
    assert len(tree.findall(".//tbody/tr")) == 10
    assert tree.findtext(".//th") == "<b>"
    assert tree.findtext("p") == replace(found(), unit="<b>").advice


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [found(), curve(100), curve(10, 20, failed=(Trial(size=900, why="too slow"),))])
def test_a_picture_has_throughput_over_sizes_and_memory_below(tmp_path, capacity):
    rates, memory = draw(capacity, title="here").axes
    assert (rates.get_ylabel(), memory.get_ylabel(), memory.get_xlabel()) == ("tokens / s", "peak memory, GB", "tokens")
    assert list(rates.lines[0].get_ydata()) == [trial.rate for trial in capacity.fitting]
    save_plot(capacity, tmp_path / "curve.svg")
    assert ElementTree.parse(tmp_path / "curve.svg").getroot().tag.endswith("svg")
    with pytest.raises(OptionError, match=r"cannot plot to curve\.txt: the name must end in"):
        save_plot(capacity, "curve.txt")
