"""Costs from two measurements of capacity."""

import pytest

from brim import OptionError
from brim.analyze.capacity.costs import SAME, measured_costs
from brim.analyze.capacity.search import Capacity, Trial
from brim.core.errors import DamagedError, DataError
from brim.plan import CostModel


def measured(path, length, *, per_token, unit="tokens", lengths=SAME, **facts):
    """Write a measurement whose steps take a second of overhead and `per_token` for each token."""
    trials = tuple(Trial(size=size, seconds=1 + per_token * size, peak=1) for size in (1000, 2000, 4000))
    Capacity(unit=unit, trials=trials, measured={"length": length, "lengths": lengths, **facts}).save(path)
    return str(path)


def test_two_files_give_the_costs_of_tokens_and_squares(tmp_path):
    short = measured(tmp_path / "short", 200, per_token=2e-3 + 200e-6)
    long = measured(tmp_path / "long", 1000, per_token=2e-3 + 1000e-6)
    assert measured_costs((short, long)).attention_scale == CostModel(per_token=2e-3, per_square=1e-6).attention_scale


def test_measurements_that_do_not_tell_are_refused(tmp_path):
    short = measured(tmp_path / "short", 200, per_token=2e-3)
    with pytest.raises(OptionError, match="two measurements at different lengths, got 1"):
        measured_costs((short,))
    for name, about in {"drawn": {"lengths": "drawn from the data"}, "envs": {"unit": "environments"}}.items():
        other = measured(tmp_path / name, 1000, per_token=3e-3, **about)
        with pytest.raises(OptionError, match=f"{name} was not measured with samples of one length"):
            measured_costs((short, other))


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("model", "a", "b"),
        ("device", "cpu", "cuda"),
        ("dtype", "float32", "bfloat16"),
        ("attention", "sdpa", "eager"),
        ("lora_rank", 0, 8),
    ],
)
def test_measurements_of_different_things_are_not_compared(tmp_path, monkeypatch, name, one, other):
    monkeypatch.chdir(tmp_path)
    measured("short", 200, per_token=2e-3, **{name: one})
    measured("long", 1000, per_token=3e-3, **{name: other})
    expected = rf"^--measured: short and long differ in {name} \({one}, {other}\); measure both with the same options"
    with pytest.raises(OptionError, match=expected):
        measured_costs(("short", "long"))


def test_another_layout_is_told_without_the_attention_that_follows_from_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    measured("m1.json", 200, per_token=2e-3, layout="padded", attention="sdpa", cores=2)
    measured("m3.json", 1000, per_token=3e-3, layout="packed", attention="brim_segments", cores=8)
    with pytest.raises(OptionError) as caught:
        measured_costs(("m1.json", "m3.json"))
    assert str(caught.value) == (
        "--measured: m1.json and m3.json differ in layout (padded, packed); measure both with the same options except "
        "--length"
    )


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "brim.plan/1"}', '{"format": "brim.capacity/1"}'])
def test_a_file_that_is_no_measurement_is_refused(tmp_path, content):
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(DataError, match=r"^--measured: .*file is not a measurement of brim bench batch-size$"):
        measured_costs((str(path), str(path)))


def test_what_cannot_be_read_is_told_as_it_is(tmp_path):
    with pytest.raises(DataError, match=r"^--measured: cannot read none: No such file"):
        measured_costs(("none", "none"))
    later = tmp_path / "later"
    later.write_text('{"format": "brim.capacity/9"}')
    with pytest.raises(DamagedError, match=r"is of version brim.capacity/9"):
        measured_costs((str(later), str(later)))
