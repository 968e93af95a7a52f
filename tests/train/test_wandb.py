"""Curves for Weights & Biases. The service cannot be reached from here, so a stand-in records what it is told."""

import sys
from types import SimpleNamespace

import pytest

from brim.core.errors import MissingExtraError
from brim.plan.distributed import DistributedConfig
from brim.train.config import RunConfig
from brim.train.log import Records
from brim.train.ranks import Ranks


class Run:
    def __init__(self):
        self.rows, self.finished = [], False

    def define_metric(self, name, *, step_metric):
        assert (name, step_metric) == ("*", "step")

    def log(self, values):
        self.rows.append(values)

    def finish(self):
        self.finished = True


def test_curves_are_sent_and_a_resumed_run_continues_the_one_that_it_began(tmp_path, monkeypatch):
    begun = []

    def init(**options):
        begun.append((options, Run()))
        return begun[-1][1]

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    config = RunConfig(output=str(tmp_path / "run"), wandb="project", tensorboard=False)
    (tmp_path / "run").mkdir()
    for after in (0, 2, 0):
        with Records(config, Ranks(DistributedConfig()), after=after) as records:
            records.curves(after + 1, {"loss": 0.5}, due=True)
    (first, told), (again, _), (new, _) = begun
    assert told.rows == [{"step": 1, "loss": 0.5}]
    assert told.finished
    assert first["project"] == "project"
    assert first["config"]["wandb"] == "project"
    assert first["id"] == again["id"]
    assert first["id"] != new["id"]


def test_without_the_package_one_line_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    (tmp_path / "run").mkdir()
    config = RunConfig(output=str(tmp_path / "run"), wandb="project", tensorboard=False)
    with pytest.raises(MissingExtraError, match=r"--wandb needs wandb.*brim\[wandb\]"):
        Records(config, Ranks(DistributedConfig()), after=0)
