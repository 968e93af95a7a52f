"""Costs from two measurements of capacity."""

import pytest

from brim import OptionError
from brim.analyze.capacity.costs import SAME, measured_costs
from brim.analyze.capacity.search import Capacity, Trial
from brim.plan import CostModel


def measured(path, length, *, per_token, unit="tokens", lengths=SAME):
    """Write a measurement whose steps take a second of overhead and `per_token` for each token."""
    trials = tuple(Trial(size=size, seconds=1 + per_token * size, peak=1) for size in (1000, 2000, 4000))
    Capacity(unit=unit, trials=trials, measured={"length": length, "lengths": lengths}).save(path)
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
