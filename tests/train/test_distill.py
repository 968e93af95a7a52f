"""Compressed algorithm distillation: samples, the model, training that resumes exactly, and learning in context."""

import copy
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from brim.batch.bucket_sampler import BucketSampler
from brim.batch.compressed import collate_compressed_batch
from brim.core.errors import BrimError, DamagedError, DataError, MismatchError, OptionError
from brim.data.nested.lengths import measure_structures
from brim.envs.darkroom.histories import Histories, HistoryConfig, split_goals, write_histories
from brim.envs.darkroom.room import Darkroom
from brim.train.checkpoint import checkpoints
from brim.train.distill.config import DistillConfig, EvaluationConfig, ModelConfig, TrainingConfig
from brim.train.distill.evaluate import InContext, evaluate, play_in_context, references
from brim.train.distill.model import CompressedAD, Decoding
from brim.train.distill.run import HISTORIES, train_distill
from brim.train.distill.samples import START, CutConfig, HistoryDataset
from brim.train.distill.seed_run import SeedRun, load_distilled, new_model
from brim.train.distill.yaml_files import load_config

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = DistillConfig(
    histories=HistoryConfig(room=Darkroom(size=4, horizon=5), episodes=10, keep_every=2, repeats=2),
    data=CutConfig(window=12, depth=3, samples=200),
    model=ModelConfig(width=16, heads=2, encoder_layers=1, decoder_layers=2, latents=3),
    training=TrainingConfig(seeds=(0,), steps=12, token_budget=300, save_every=5, log_every=1),
    evaluation=EvaluationConfig(episodes=3, lanes=2),
)
SMALL = ("config/env/darkroom_small.yaml", "config/model/ad_compressed_small.yaml")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("histories") / "histories.h5"
    write_histories(path, TINY.histories)
    return HistoryDataset(Histories(path), TINY.data, seed=7)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = CompressedAD(TINY.model, size=4, window=12)
    for weight in model.parameters():  # as after training: nothing is zero, or nearly so
        torch.nn.init.normal_(weight, std=0.3)
    return model


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool((np.asarray(one) == np.asarray(other)).all())


@given(st.integers(0, 199))
@settings(max_examples=40)
def test_the_stretches_of_a_sample_are_its_history_from_the_first_step_on(data, row):
    sample, shape = data[row], data.shape_of(row)
    history = data.histories.read([int(sample["id"].split("-")[0][1:])])
    stretches = [*sample["compression_stages"], sample["context"]]
    assert sample["compression_depth"] == sample["num_compression_stages"] == shape.depth == len(stretches) - 1 <= 3
    assert tuple(len(stretch["actions"]) for stretch in stretches) == shape.lengths
    assert all(6 <= length <= 12 for length in shape.lengths)
    end = sum(shape.lengths)
    assert (np.concatenate([stretch["states"] for stretch in stretches]) == history.states[0, :end]).all()
    led, earned = ([getattr(stretch, "get")(name) for stretch in stretches] for name in ("actions", "rewards"))  # noqa: B009
    for step, (action, reward) in enumerate(zip(np.concatenate(led), np.concatenate(earned), strict=True)):
        first = step % 5 == 0
        assert action == (START if first else history.actions[0, step - 1])
        assert reward == (0 if first else history.rewards[0, step - 1])
    assert (sample["context"]["targets"] == history.actions[0, end - shape.lengths[-1] : end]).all()


def test_a_sample_depends_on_its_number_and_the_seed_alone(data):
    longer = HistoryDataset(data.histories, replace(TINY.data, samples=500), seed=7)
    for row in (3, 199, 0):
        assert same(data[row], longer[row])
        assert same(data[row], data.__getitems__([5, row, row])[2])
    other = HistoryDataset(data.histories, TINY.data, seed=8)
    assert not all(data.shape_of(row) == other.shape_of(row) for row in range(20))
    assert {data.shape_of(row).depth for row in range(200)} == {0, 1, 2, 3}
    with pytest.raises(IndexError, match="row 200 of 200"):
        data[200]


def test_the_table_says_what_measuring_every_sample_would_find(data):
    known, measured = data.table, measure_structures([data[row] for row in range(len(data))])
    assert list(known.ids) == list(measured.ids)
    assert known.group_names == measured.group_names
    assert (known.groups == measured.groups).all()
    assert (known.axes == measured.axes).all()
    assert known.dataset_hash == data.fingerprint


def test_histories_that_are_too_short_for_the_stages_are_refused(data):
    with pytest.raises(OptionError, match="histories of 50 steps are too short for 5 stages of 12 steps"):
        HistoryDataset(data.histories, CutConfig(window=12, depth=5), seed=0)
    with pytest.raises(OptionError, match=r"a history has 50 steps \(10 episodes of 5\)"):
        replace(TINY, data=CutConfig(window=30))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_give_the_batches_that_one_process_gives(data, method):
    def batches(workers):
        sampler = BucketSampler(data, token_budget=400, seed=3, rank=0, world_size=1)
        context = method if workers else None
        return list(
            DataLoader(
                data,
                batch_sampler=sampler,
                collate_fn=collate_compressed_batch,
                num_workers=workers,
                multiprocessing_context=context,
            )
        )

    alone, shared = batches(0), batches(2)
    assert sorted(id for batch in alone for id in batch["id"]) == sorted(data.id_of(row) for row in range(200))
    assert all(map(same, alone, shared))
    assert len(alone) == len(shared)


def alike(data, depth, count=5):
    """Samples of one depth, of different lengths."""
    rows = [row for row in range(200) if data.shape_of(row).depth == depth][:count]
    assert len({data.shape_of(row).lengths for row in rows}) > 1
    return data.__getitems__(rows)


@pytest.mark.parametrize("depth", range(4))
def test_a_sample_is_read_alike_alone_and_in_a_padded_batch(data, model, depth):
    samples = alike(data, depth)
    together = model(collate_compressed_batch(samples))
    for row, sample in enumerate(samples):
        alone = model(collate_compressed_batch([sample]))[0]
        torch.testing.assert_close(together[row, : len(alone)], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("depth", range(4))
def test_what_stands_in_the_padding_changes_nothing(data, model, depth):
    batch = collate_compressed_batch(alike(data, depth))
    other = copy.deepcopy(batch)
    for stretch in (*other["compression_stages"], other["context"]):
        for name in ("states", "actions", "rewards", "targets"):
            if name in stretch:
                stretch[name][~stretch["mask"]] = 3
    assert model.loss(batch).item() == model.loss(other).item()


@pytest.mark.parametrize("depth", range(4))
def test_the_gradient_of_a_batch_is_the_mean_of_those_of_its_samples(data, model, depth):
    """Every sample counts equally, however long its context is."""

    def gradient(samples):
        model.zero_grad()
        loss = model.loss(collate_compressed_batch(samples))
        loss.backward()
        return loss.item(), [torch.zeros_like(w) if w.grad is None else w.grad.clone() for w in model.parameters()]

    samples = alike(data, depth)
    loss, together = gradient(samples)
    alone = [gradient([sample]) for sample in samples]
    assert loss == pytest.approx(sum(each for each, _ in alone) / len(alone), rel=1e-5)
    for place, found in enumerate(together):
        mean = sum(each[place] for _, each in alone) / len(alone)
        torch.testing.assert_close(found, mean, rtol=0, atol=1e-5)
    assert any(w.grad is not None and w.grad.abs().sum() > 0 for w in model.encoder.parameters()) == (depth > 0)


def test_a_step_knows_nothing_of_those_behind_it_and_everything_of_the_stages(data, model):
    batch = collate_compressed_batch(alike(data, 3))
    before = model(batch)
    batch["context"]["rewards"][:, 4] += 1
    after = model(batch)
    assert torch.equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).any()
    for stage in range(3):
        changed = copy.deepcopy(batch)
        changed["compression_stages"][stage]["rewards"][:, 0] += 1
        assert (model(changed)[:, 0] - after[:, 0]).abs().max() > 1e-4


@pytest.mark.parametrize("depth", [0, 2])
def test_read_step_by_step_a_context_says_the_same_as_read_at_once(data, model, depth):
    batch = collate_compressed_batch(alike(data, depth))
    latents, context = model.compress(batch["compression_stages"]), batch["context"]
    decoding = Decoding(model, latents)
    names = ("states", "actions", "rewards")
    steps = [
        decoding.read({name: context[name][:, at : at + 1] for name in names})
        for at in range(context["actions"].shape[1])
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), model(batch), rtol=1e-4, atol=1e-5)
    with pytest.raises(DataError, match="at once, or step by step"):
        decoding.read(context)


def test_a_stretch_beyond_the_window_is_refused(data):
    small = CompressedAD(TINY.model, size=4, window=3)
    with pytest.raises(DataError, match="and the model's window 3"):
        small(collate_compressed_batch(alike(data, 0)))


def test_in_context_the_model_reads_the_stages_and_steps_it_was_trained_on(data, model, monkeypatch):
    """What it is asked in evaluation is what `forward` is given, for the history that it lived through itself."""
    room, goals = TINY.histories.room, split_goals(TINY.histories)[1]
    asked = []
    monkeypatch.setattr(
        "brim.train.distill.evaluate.choose", lambda chances, noise: asked.append(chances) or chances.argmax(axis=1)
    )
    play_in_context(model, room, goals, episodes=6, seed=0)
    played = play_again(room, goals, [chances.argmax(axis=1) for chances in asked])
    for at in (3, 11, 12, 29):  # in the first window, at its end, behind it, and in the third
        start = at // 12 * 12
        stages = [{name: column[:, s : s + 12] for name, column in played.items()} for s in range(0, start, 12)]
        stages = [{**stage, "mask": torch.ones(len(goals), 12, dtype=torch.bool)} for stage in stages]
        context = {name: column[:, start : at + 1] for name, column in played.items()}
        with torch.no_grad():
            logits = model({"compression_stages": stages, "context": context})[:, -1]
        np.testing.assert_allclose(torch.softmax(logits, -1).numpy(), asked[at], atol=1e-5)


def test_at_temperature_0_nothing_is_left_to_chance(model):
    def played(temperature, seed):
        goals = split_goals(TINY.histories)[1]
        return play_in_context(
            model, TINY.histories.room, goals, episodes=6, seed=seed, temperature=temperature
        ).tolist()

    assert played(0.0, seed=0) == played(0.0, seed=1)
    assert played(1.0, seed=0) == played(1.0, seed=0) != played(1.0, seed=1)


def test_torch_has_as_many_threads_as_before_when_a_run_is_over(tmp_path):
    seen = []
    train_distill(
        TINY.with_training(threads=2, steps=2),
        output=tmp_path / "run",
        on_step=lambda _: seen.append(torch.get_num_threads()),
    )
    assert (seen, torch.get_num_threads()) == ([2, 2], 1)


def play_again(room, goals, actions):
    """The columns of tokens of episodes that were played with some actions."""
    from brim.envs.darkroom.room import Episode, play
    from brim.train.distill.samples import tokens

    episodes = [
        play(room, goals, lambda state, n=number: actions[n * room.horizon + state.elapsed])
        for number in range(len(actions) // room.horizon)
    ]
    whole = Episode(*(np.concatenate(column, axis=1) for column in zip(*episodes, strict=True)))
    return {name: torch.from_numpy(column) for name, column in tokens(whole, room.horizon).items() if name != "targets"}


def weights_of(output, seed=0):
    return load_distilled(checkpoints(output / f"seed-{seed}")[-1])[0].state_dict()


def test_a_run_is_a_function_of_its_options(tmp_path):
    state = torch.get_rng_state()
    first = train_distill(TINY, output=tmp_path / "a")
    assert torch.equal(state, torch.get_rng_state())
    second = train_distill(TINY, output=tmp_path / "b")
    assert same(weights_of(tmp_path / "a"), weights_of(tmp_path / "b"))
    assert (first.seeds[0].returns == second.seeds[0].returns).all()
    results = [json.loads((tmp_path / name / "results.json").read_bytes()) for name in "ab"]
    assert results[0] == results[1]
    train_distill(TINY.with_training(seeds=(1,)), output=tmp_path / "c")
    assert not same(weights_of(tmp_path / "a"), weights_of(tmp_path / "c", 1))


def test_stopped_after_any_step_and_resumed_it_ends_with_the_same_weights(tmp_path):
    train_distill(TINY, output=tmp_path / "whole")
    expected, lines = weights_of(tmp_path / "whole"), (tmp_path / "whole" / "seed-0" / "log.jsonl").read_text()

    class StopError(Exception):
        pass

    for last in (3, 5, 11):

        def stop(report, last=last):
            if report.step == last:
                raise StopError

        output = tmp_path / f"stopped-{last}"
        with pytest.raises(StopError):
            train_distill(TINY, output=output, on_step=stop)
        taken = []
        train_distill(TINY, output=output, resume=True, on_step=lambda report, taken=taken: taken.append(report.step))
        assert taken[0] == (last - 1) // 5 * 5 + 1
        assert same(weights_of(output), expected)
        assert (output / "seed-0" / "log.jsonl").read_text() == lines


def test_a_signal_ends_a_run_with_a_checkpoint_and_the_resumed_one_has_the_same_weights(tmp_path):
    def kill(report):
        if report.step == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    messages = []
    stopped = train_distill(
        TINY.with_training(seeds=(0, 1)), output=tmp_path / "run", on_step=kill, on_message=messages.append
    )
    assert stopped.stopped
    assert stopped.seeds == ()
    assert messages[-1] == "SIGTERM: stopping soon, with a checkpoint"
    assert checkpoints(tmp_path / "run" / "seed-0")[-1].name == "checkpoint-00000008"
    assert not (tmp_path / "run" / "results.json").exists()
    steps = []
    train_distill(TINY, output=tmp_path / "run", resume=True, on_step=lambda report: steps.append(report.step))
    assert steps == list(range(9, 13))
    train_distill(TINY, output=tmp_path / "whole")
    assert same(weights_of(tmp_path / "run"), weights_of(tmp_path / "whole"))


def test_killed_and_resumed_it_ends_with_the_same_weights(tmp_path):
    options = replace(TINY, training=replace(TINY.training, seeds=(0, 1), steps=80, save_every=10))
    script = (
        "import json, sys, torch; torch.set_num_threads(1)\n"
        "from brim.train.distill.run import train_distill\n"
        "from brim.train.distill.yaml_files import config_from\n"
        "train_distill(config_from(json.loads(sys.argv[1])), output=sys.argv[2])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, json.dumps(options.to_dict()), str(tmp_path / "killed")], env={**os.environ}
    )
    while process.poll() is None and not any(
        int(path.name[-8:]) >= 20 for path in checkpoints(tmp_path / "killed" / "seed-0")
    ):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    steps = []
    train_distill(options, output=tmp_path / "killed", resume=True, on_step=lambda report: steps.append(report.step))
    assert steps[0] > 20
    train_distill(options, output=tmp_path / "whole")
    for seed in (0, 1):
        assert same(weights_of(tmp_path / "killed", seed), weights_of(tmp_path / "whole", seed))


def test_a_run_that_is_done_is_neither_trained_nor_evaluated_again(tmp_path, monkeypatch):
    before = train_distill(TINY, output=tmp_path / "run")
    with pytest.raises(OptionError, match="holds a run already; continue it with --resume"):
        train_distill(TINY, output=tmp_path / "run")
    monkeypatch.setattr("brim.train.distill.seed_run.evaluate", None)
    monkeypatch.setattr("brim.train.distill.run.write_histories", None)
    again = train_distill(
        TINY, output=tmp_path / "run", resume=True, on_step=lambda report: pytest.fail("trained again")
    )
    assert (again.seeds[0].returns == before.seeds[0].returns).all()


def test_a_resumed_run_may_take_other_seeds_and_no_other_steps(tmp_path):
    train_distill(TINY, output=tmp_path / "run")
    more = train_distill(TINY.with_training(seeds=(0, 4)), output=tmp_path / "run", resume=True)
    assert [seed.seed for seed in more.seeds] == [0, 4]
    with pytest.raises(MismatchError, match=r"training.steps \(12 -> 13\)"):
        train_distill(TINY.with_training(steps=13), output=tmp_path / "run", resume=True)
    with pytest.raises(DataError, match="holds no run"):
        train_distill(TINY, output=tmp_path / "other", resume=True)


def test_a_loss_that_is_not_finite_is_an_error_that_names_step_and_samples(tmp_path):
    with pytest.raises(
        BrimError, match=r"the (loss|gradient) is not finite in step \d+ of seed 0; the samples are h\d+-t"
    ):
        train_distill(TINY.with_training(learning_rate=1e30, clip_norm=0.0, warmup=0.0), output=tmp_path / "run")
    assert not list((tmp_path / "run" / "seed-0").glob("checkpoint-00000012"))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_checkpoint_that_was_altered_is_noticed(tmp_path, name):
    train_distill(TINY, output=tmp_path / "run")
    path = checkpoints(tmp_path / "run" / "seed-0")[-1]
    data = bytearray((path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (path / name).write_bytes(data)
    with pytest.raises(DamagedError):
        load_distilled(path)


def test_the_learning_rate_and_weight_decay_reach_the_weights(tmp_path):
    data = Histories(_recorded(tmp_path))
    ends = []
    for changes in (
        {},
        {"learning_rate": 0.01},
        {"weight_decay": 0.5},
        {"clip_norm": 0.01},
        {"warmup": 0.9},
        {"schedule": "constant"},
    ):
        run = SeedRun(TINY.with_training(**changes), data, tmp_path / str(len(ends)), 0)
        run.finish()
        ends.append(run.model.head.weight.detach().numpy().tobytes())
    assert len(set(ends)) == len(ends)


def _recorded(folder):
    write_histories(folder / HISTORIES, TINY.histories)
    return folder / HISTORIES


@pytest.fixture(scope="module")
def small():
    """Half a minute's worth of training in a small room. Of the seeds 0 to 7, only 0 learns too little for the test."""
    config = load_config(SMALL)
    return config.with_training(seeds=(1,))


def test_a_distilled_model_learns_in_context_on_goals_it_was_never_trained_on(small, tmp_path):
    result = train_distill(small, output=tmp_path / "run")
    seed, others = result.seeds[0], result.references
    assert seed.improves
    assert seed.improvement > 3.5 * seed.standard_error
    assert seed.curve[-3:].mean() > 2 * seed.curve[0]
    assert seed.curve[-3:].mean() > 8 * others.random


def test_an_untrained_model_does_not(small):
    result = evaluate(new_model(small, 0), small, seed=0)
    others = references(small.histories, lanes=small.evaluation.lanes)
    assert result.curve.mean() == pytest.approx(others.random, abs=0.25)
    assert abs(result.improvement) < 2 * result.standard_error
    assert not result.improves


@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=6))
def test_a_seed_improves_by_more_than_twice_the_standard_error_over_goals(returns):
    seed = InContext(0, np.array(returns, np.float32)[:, None])
    gains = [last - first for first, _, last in returns]
    mean = sum(gains) / len(gains)
    if len(gains) == 1:
        assert seed.standard_error is None
        assert seed.improves == (mean > 0)
    else:
        error = (sum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1) / len(gains)) ** 0.5
        assert seed.standard_error == pytest.approx(error)
        if mean != pytest.approx(2 * error):
            assert seed.improves == (mean > 2 * error)
    assert seed.to_dict()["improves"] is seed.improves


@pytest.mark.parametrize(
    ("gains", "improves"),
    [([0.1, -0.1, 0.1], False), ([0.1, 0.12, 0.08], True), ([0.0, 0.0], False), ([0.01], True), ([0.0], False)],
)
def test_a_gain_that_may_be_chance_is_no_improvement(gains, improves):
    assert InContext(0, np.array([[[0.0, 0.0, gain]] for gain in gains], np.float32)).improves is improves
