"""The files of a distillation: somebody's are never lost, damaged ones are made again or named, and a run says so
before it trains.
"""

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest

from brim.batch.bucket_sampler import BucketSampler
from brim.core.errors import DamagedError, DataError, OptionError
from brim.envs.darkroom.histories import Histories, HistoryConfig, write_histories
from brim.envs.darkroom.room import Darkroom
from brim.train.checkpoint import checkpoints
from brim.train.distill.config import DistillConfig, EvaluationConfig, ModelConfig, TrainingConfig
from brim.train.distill.run import HISTORIES, RESULTS, config_of, train_distill
from brim.train.distill.samples import CutConfig, HistoryDataset
from brim.train.distill.seed_run import IN_CONTEXT

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = DistillConfig(
    histories=HistoryConfig(room=Darkroom(size=4, horizon=5), episodes=6, keep_every=2, repeats=2),
    data=CutConfig(window=8, depth=2, samples=60),
    model=ModelConfig(width=8, heads=2, encoder_layers=1, decoder_layers=1, latents=2),
    training=TrainingConfig(seeds=(0,), steps=12, token_budget=200, save_every=4, log_every=1),
    evaluation=EvaluationConfig(episodes=3, lanes=2),
)


def never(report):
    pytest.fail(f"step {report.step} was taken")


@pytest.fixture
def done(tmp_path):
    """A run that is over."""
    train_distill(TINY, output=tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def stopped(tmp_path):
    """A run that ended in step 10, behind the checkpoint of step 8."""

    class StopError(Exception):
        pass

    def stop(report):
        if report.step == 10:
            raise StopError

    with pytest.raises(StopError):
        train_distill(TINY, output=tmp_path / "run", on_step=stop)
    return tmp_path / "run"


def another_hdf5(path):
    with h5py.File(path, "w") as file:
        file["states"], file.attrs["format"] = [1, 2, 3], "brim.nested/1"


def an_array_for_a_format(path):
    with h5py.File(path, "w") as file:
        file.attrs["format"] = np.arange(3)


def a_cut_off_hdf5(path):
    another_hdf5(path)
    path.write_bytes(path.read_bytes()[:-7])


def text(path):
    path.write_text("about brim.histories/1")


@pytest.mark.parametrize("write", [another_hdf5, an_array_for_a_format, a_cut_off_hdf5, text])
def test_a_file_of_somebody_else_is_never_overwritten_with_histories(tmp_path, write):
    write(path := tmp_path / HISTORIES)
    before = path.read_bytes()
    with pytest.raises(
        OptionError, match=rf"{HISTORIES} is not a file of `brim train distill`, .*; choose another --output"
    ):
        train_distill(TINY, output=tmp_path, on_step=never)
    assert path.read_bytes() == before
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize("name", ["run.json", RESULTS])
@pytest.mark.parametrize("text", ['{"format": "brim.run/1"}', '{"accuracy": 0.9}', "[]", "accuracy"])
def test_nor_are_files_of_the_names_that_options_and_results_have(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(OptionError, match=f"{name} is not a file of"):
        train_distill(TINY, output=tmp_path, on_step=never)
    assert (tmp_path / name).read_text() == text


def cut_off(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def without_goals(path):
    with h5py.File(path, "a") as file:
        del file.attrs["goals"]


def of_a_later_version(path):
    with h5py.File(path, "a") as file:
        file.attrs["format"] = "brim.histories/99"


@pytest.mark.parametrize("damage", [cut_off, without_goals, of_a_later_version])
def test_histories_of_ours_that_are_damaged_are_recorded_again(stopped, tmp_path, damage):
    damage(stopped / HISTORIES)
    messages = []
    train_distill(TINY, output=stopped, resume=True, on_message=messages.append)
    assert messages[:2] == [
        f"{stopped / HISTORIES} is damaged, or of another version of brim",
        "recording 2 histories for each goal",
    ]
    train_distill(TINY, output=tmp_path / "whole")
    assert last_checkpoint(stopped) == last_checkpoint(tmp_path / "whole")


def last_checkpoint(output):
    path = checkpoints(output / "seed-0")[-1]
    return path.name, (path / "model.safetensors").read_bytes()


def test_histories_of_other_options_are_recorded_again(tmp_path):
    write_histories(tmp_path / HISTORIES, replace(TINY.histories, seed=9))
    messages = []
    train_distill(TINY, output=tmp_path, on_message=messages.append)
    assert "recording 2 histories for each goal" in messages
    assert Histories(tmp_path / HISTORIES).fingerprint == TINY.histories.fingerprint


def altered(text, **changes):
    return json.dumps({**json.loads(text), **changes})


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "{}",
        lambda text: altered(text, returns="many"),
        lambda text: altered(text, returns=[[1.0], [2.0, 3.0]]),
        lambda text: altered(text, returns=[1.0, 2.0]),
        lambda text: altered(text, returns=None),
    ],
)
def test_an_evaluation_that_is_damaged_is_made_again(done, damage):
    path = done / "seed-0" / IN_CONTEXT
    before = path.read_text()
    path.write_text(damage(before))
    messages = []
    train_distill(TINY, output=done, resume=True, on_step=never, on_message=messages.append)
    assert messages == ["seed 0", f"{path} is truncated or damaged; evaluating seed 0 again"]
    assert path.read_text() == before


def steps_of(log):
    return [json.loads(line)["step"] for line in log.read_bytes().splitlines()]


@pytest.mark.parametrize("cut", [1, 20])
def test_a_line_of_the_log_that_a_kill_cut_off_is_dropped(stopped, cut):
    log = stopped / "seed-0" / "log.jsonl"
    log.write_bytes(log.read_bytes()[:-cut])
    train_distill(TINY, output=stopped, resume=True)
    assert steps_of(log) == list(range(1, 13))


def test_a_last_line_that_lacks_nothing_but_its_end_stays(done):
    log = done / "seed-0" / "log.jsonl"
    before = log.read_bytes()
    log.write_bytes(before[:-1])
    train_distill(TINY, output=done, resume=True, on_step=never)
    assert log.read_bytes() == before


@pytest.mark.parametrize("line", [b"{", b"null", b'{"loss": 3}', b'{"step": null}', b"\xff\x00", b""])
def test_another_line_that_is_damaged_is_named_before_training_and_nothing_is_lost(stopped, line):
    log = stopped / "seed-0" / "log.jsonl"
    lines = log.read_bytes().splitlines()
    lines[2] = line
    log.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(DamagedError, match=r"log\.jsonl:3 is damaged; remove that line"):
        train_distill(TINY, output=stopped, resume=True, on_step=never)
    assert log.read_bytes().splitlines() == lines
    log.write_bytes(b"\n".join(lines[:2] + lines[3:]) + b"\n")
    train_distill(TINY, output=stopped, resume=True)
    assert steps_of(log) == [1, 2, *range(4, 13)]


def test_every_step_is_logged_and_reported_with_the_epoch_of_its_batch(tmp_path):
    reported = []
    train_distill(TINY, output=tmp_path / "run", on_step=lambda report: reported.append(report.epoch))
    data = HistoryDataset(Histories(tmp_path / "run" / HISTORIES), TINY.data, seed=0)
    sampler = BucketSampler(data, token_budget=200, seed=0, rank=0, world_size=1)
    planned = [epoch for epoch in range(12) for _ in sampler][:12]
    assert planned.count(0) < 12  # an epoch ends on the way
    assert reported == planned
    assert [
        json.loads(line)["epoch"] for line in (tmp_path / "run" / "seed-0" / "log.jsonl").read_bytes().splitlines()
    ] == planned


@pytest.mark.parametrize("resume", [True, False])
def test_a_directory_where_a_checkpoint_goes_is_noticed_before_training(tmp_path, resume):
    output, config = tmp_path / "run", TINY.with_training(seeds=(0, 1))
    if resume:
        train_distill(TINY, output=output)
    stray = output / "seed-1" / "checkpoint-00000012"
    stray.mkdir(parents=True)
    (stray / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(
        OptionError, match=r"seed-1/checkpoint-00000012 is not a checkpoint: it has no state\.json; remove it"
    ):
        train_distill(config, output=output, resume=resume, on_step=never)
    (stray / "model.safetensors").unlink()  # an empty one is in nobody's way
    train_distill(config, output=output, resume=resume)
    assert checkpoints(output / "seed-1")[-1] == stray


def test_a_checkpoint_without_its_state_is_not_gone_on_from_in_silence(done):
    (done / "seed-0" / "checkpoint-00000012" / "state.json").unlink()
    with pytest.raises(OptionError, match=r"checkpoint-00000012 is not a checkpoint: it has no state\.json"):
        train_distill(TINY, output=done, resume=True, on_step=never)


@pytest.mark.parametrize(
    "text", ["[]", "3", "{", '{"checksum": 1}', '{"format": "brim.distill-checkpoint/1", "checksum": "0"}']
)
def test_a_damaged_state_of_any_seed_is_noticed_before_training(done, text):
    (done / "seed-0" / "checkpoint-00000012" / "state.json").write_text(text)
    with pytest.raises(DamagedError):
        train_distill(TINY.with_training(seeds=(3, 0)), output=done, resume=True, on_step=never)


def test_a_file_in_the_place_of_a_seed_is_an_error_of_ours(tmp_path):
    (tmp_path / "seed-0").write_text("")
    with pytest.raises(OptionError, match="seed-0: a file is in the way"):
        train_distill(TINY, output=tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "brim.distill/1", "config": 3}',
        '{"format": "brim.distill/1", "config": {"model": {"width": "x"}}}',
    ],
)
def test_options_that_cannot_be_read_are_an_error_that_names_the_file(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(DamagedError, match=r"run\.json is .*damaged.*; start a new run in another --output"):
        config_of(tmp_path)
    with pytest.raises(DataError, match="holds no run"):
        config_of(tmp_path / "run.json")
