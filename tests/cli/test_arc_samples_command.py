"""`brim arc samples`: from recorded episodes to rows for training."""

import json

import numpy as np
import pytest
from support.arc import config

from brim.cli import TREE
from brim.cli.app import Group
from brim.core.errors import DataError, LengthError, OptionError
from brim.envs.arc import BboxAction, family_tasks, replay, solution, write_episodes
from brim.stream.arc import ArcEpisodeStream, ArcSampleConfig


def brim(*words):
    Group("brim", "", TREE).main([str(word) for word in words], standalone_mode=False)


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A file with four solved episodes and one that is not."""
    monkeypatch.chdir(tmp_path)
    setting = config("bbox", shape=(5, 5))
    tasks = family_tasks(4)
    played = [replay(task, setting, solution(task, task.test[0].input), kind="test") for task in tasks]
    at_once = BboxAction(*(np.array([number], np.int32) for number in (34, 0, 0, 0, 0)))
    write_episodes("episodes.json", [*played, replay(tasks[0], setting, at_once, kind="test")])
    return tmp_path


def test_rows_are_the_samples_of_the_stream_and_the_rest_is_counted(recorded, capsys):
    brim("arc", "samples", "episodes.json", "--only-solved", "--grids", "changes", "-o", "train.jsonl", "--json")
    facts = json.loads(capsys.readouterr().out)
    expected = list(ArcEpisodeStream("episodes.json", ArcSampleConfig(only_solved=True, grids="changes")))
    rows = [json.loads(line) for line in (recorded / "train.jsonl").read_text().splitlines()]
    assert [(row["id"], row["input_ids"], row["loss_mask"]) for row in rows] == [
        (one.sample_id, one.input_ids.tolist(), one.loss_mask.tolist()) for one in expected
    ]
    assert (facts["episodes"], facts["solved"], facts["samples"]) == (5, 4, 4)
    assert facts["left_out"] == {"not solved": 1}
    brim("arc", "samples", "episodes.json", "--per", "step", "--demonstrations", "1", "-o", "train.jsonl")
    assert "left out     none" in capsys.readouterr().out


def test_what_cannot_work_is_one_line_and_writes_nothing(recorded):
    for words, kind, message in [
        (["--max-length", "20"], LengthError, "tokens, the limit is 20; raise max_length"),
        (
            ["--max-length", "20", "--overflow", "skip"],
            DataError,
            "no episode of episodes.json becomes a sample: 5 too long",
        ),
        (["--overflow", "skip"], OptionError, "has no effect without max_length"),
        (["--per", "step", "--grids", "none"], OptionError, "has no effect with per"),
    ]:
        with pytest.raises(kind, match=message):
            brim("arc", "samples", "episodes.json", *words, "-o", "train.jsonl")
    with pytest.raises(DataError, match=r"cannot read nothing\.json"):
        brim("arc", "samples", "nothing.json", "-o", "train.jsonl")
    (recorded / "mine.jsonl").write_text('{"text": "mine"}\n')
    with pytest.raises(OptionError, match=r"will not replace mine\.jsonl"):
        brim("arc", "samples", "episodes.json", "-o", "mine.jsonl")
    assert not (recorded / "train.jsonl").exists()
