"""Runs that play on the real puzzle server."""

import json
import signal
import threading
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from support.worlds import World, free_port, lines, trained, weights

from brim.core.errors import BrimError, DataError, LengthError, MismatchError, OptionError
from brim.data.rows.format import RowFormat
from brim.envs.puzzle.config import GymConfig
from brim.envs.puzzle.wire.errors import ConnectionFailed
from brim.envs.puzzle.wire.server import PuzzleServer
from brim.plan.config import BatchingConfig
from brim.stream.replay.buffer import ReplayBuffer
from brim.train.config import CausalConfig
from brim.train.online.config import OnlineConfig
from brim.train.online.run import OnlineHooks, train_online
from brim.train.sft import find_checkpoint, train_sft


@pytest.fixture(scope="module")
def server():
    with PuzzleServer() as running:
        yield running


@pytest.fixture
def online(options, server):
    """Options of a short run that plays; keywords change them."""

    def make(name="run", *, sft=None, gym=None, **changes):
        values = {"data": "", "schedule": "constant", "save_every": 2, "batching": BatchingConfig(token_budget=512)}
        base = options(name, **{**values, **(sft or {})})
        training = {option.name: getattr(base, option.name) for option in fields(CausalConfig)}
        where = {
            "host": server.host,
            "port": server.port,
            "games": ("lights",),
            "difficulty_range": (0.3, 0.3),
            "lanes": 4,
            "max_steps": 4,
        }
        playing = {"rounds": 3, "episodes_per_round": 6, "min_samples": 4, "window_microbatches": 4, "passes": 1}
        return OnlineConfig(**training, gym=GymConfig(**{**where, **(gym or {})}), **{**playing, **changes})

    return make


def rounds(config):
    """Without how long they took."""
    return [{**line, "seconds": 0} for line in lines(Path(config.output) / "rounds.jsonl")]


def test_what_was_solved_is_remembered_drawn_and_trained_on(online):
    config, reports, episodes = online(), [], []
    result = train_online(config, hooks=OnlineHooks(on_round=reports.append, on_episode=episodes.append))
    output = Path(config.output)
    assert [report.round for report in result.rounds] == [0, 1, 2]
    assert [report.episodes for report in reports] == [6, 6, 6]
    assert len(episodes) == 18
    assert len({episode.spec.seed for episode in episodes}) == 18, "no puzzle comes twice"
    solved = {episode.spec.number for episode in episodes if episode.success}
    assert solved
    for _, _, id in trained(output):
        number = int(str(id).split("@")[1].split("/")[0])
        assert number in solved
    buffer = ReplayBuffer.load(find_checkpoint(output) / "buffer.brim")
    assert len(buffer) == reports[-1].buffer == sum(len(e.steps) for e in episodes if e.success)
    assert result.sft.model == output / "model"
    assert result.sft.steps == len(lines(output / "log.jsonl"))


def test_killed_at_any_moment_and_resumed_it_plays_and_learns_the_same(online):
    """With -9, in the middle of a window: the same memory, the same windows, the same batches, the same weights."""
    World(whole := online("whole")).wait()
    config = online("killed")
    world = World(config)
    for step in (3, 6):
        world.wait_for_step(step)
        world.kill()
        assert world.wait() == [{"error": "killed"}]
        world = World(config, resume=config.output)
    assert "error" not in world.wait()[0]
    expected, found = Path(whole.output), Path(config.output)
    assert trained(found) == trained(expected)
    assert rounds(config) == rounds(whole)
    assert all(torch.equal(tensor, weights(found)[name]) for name, tensor in weights(expected).items())
    ends = [find_checkpoint(output) for output in (expected, found)]
    assert len({ReplayBuffer.load(end / "buffer.brim").snapshot().fingerprint for end in ends}) == 1
    assert len({(end / "window.brim").read_bytes() for end in ends}) == 1


def test_two_ranks_have_one_memory_and_learn_what_one_rank_learns(online):
    batching = BatchingConfig(token_budget=512, microbatches_per_step=2)
    one, two = (online(name, guided=1.0) for name in ("one", "two"))
    one, two = (replace(config, batching=batching) for config in (one, two))
    assert "error" not in World(one, 1).wait()[0]
    assert [outcome.get("error") for outcome in World(two, 2).wait()] == [None, None]
    assert sorted(trained(Path(two.output))) == sorted(trained(Path(one.output)))
    assert rounds(two) == rounds(one)
    expected, found = weights(Path(one.output)), weights(Path(two.output))
    assert max(float((found[name] - expected[name]).abs().max()) for name in expected) < 1e-5


def test_a_small_model_comes_to_solve_puzzles_it_has_never_seen(online, tmp_path):
    """Lights Out: three presses of 25 in any order.

    A model that learned nothing, or from the wrong actions, stays where it began.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {
        "vocab_size": 259,
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=True)).save_pretrained(tmp_path / "model")
    changes = {
        "rounds": 4,
        "episodes_per_round": 64,
        "guided": 0.6,
        "temperature": 0.5,
        "window_microbatches": 128,
        "passes": 14,
        "max_staleness": None,
    }
    sft = {"model": str(tmp_path / "model"), "tokenizer": "byte", "learning_rate": 3e-3, "warmup_steps": 50}
    config = online(sft=sft, gym={"lanes": 16, "max_steps": 5}, **changes)
    config = replace(config, save_every=None, record_samples=False, max_steps=1000)
    assert "error" not in World(config).wait()[0]
    rates = [played["solved"] / played["played"] for played in rounds(config)]
    print("success of the model, by round:", rates)
    assert rates[0] <= 0.1
    assert rates[-1] >= 0.3


@pytest.mark.parametrize("moment", ["playing", "training"])
def test_a_signal_ends_it_with_a_checkpoint_that_goes_on(online, moment):
    config, seen = online("stopped"), []

    def interrupt(report):
        seen.append(report)
        if len(seen) == 4:
            signal.raise_signal(signal.SIGTERM)

    hooks = OnlineHooks(on_episode=interrupt) if moment == "playing" else OnlineHooks(on_step=interrupt)
    result = train_online(config, hooks=hooks)
    assert result.sft.stopped
    assert len(seen) in ((4,) if moment == "playing" else (4, 5)), "a round is given up, a step is taken to its end"
    train_online(config, resume=find_checkpoint(config.output))
    whole = online("whole")
    train_online(whole)
    assert trained(Path(config.output)) == trained(Path(whole.output))
    assert rounds(config) == rounds(whole)


def test_data_is_remembered_from_the_start(online, small):
    config = online(sft={"model": str(small / "model")}, rounds=1, window_microbatches=100)
    config = replace(config, data=str(small / "train.jsonl"), batching=BatchingConfig(token_budget=2048))
    result = train_online(config)
    ids = {id for _, _, id in trained(Path(config.output))}
    expected = {json.loads(line)["id"] for line in (small / "train.jsonl").read_text().splitlines()}
    assert expected <= ids
    assert result.rounds[0].buffer == len(expected) + result.rounds[0].samples


def test_no_action_of_the_model_is_trained_on_that_is_too_old(online):
    """Also not at the end of the last pass through a window."""
    changes = {
        "guided": 0.0,
        "learn_from": "all",
        "rounds": 4,
        "passes": 2,
        "window_microbatches": 3,
        "overlap_fraction": 1.0,
    }
    ages = {}
    for most in (6, None):
        config = online(f"most-{most}", max_staleness=most, **changes)
        played = {report.round: report.step for report in train_online(config).rounds}
        trained_at = [
            (step - 1, int(str(id).split("@")[1].split("/")[0]) // 6) for _, step, id in trained(Path(config.output))
        ]
        ages[most] = max(step - played[number] for step, number in trained_at)
    assert ages[6] <= 6 < ages[None]
    with pytest.raises(OptionError, match="a window takes up to 6 steps"):
        train_online(online("short", max_staleness=5, **changes))


def test_nothing_of_the_data_is_lost_in_silence(online, small, tmp_path):
    def run(rows, name, batching=None, **changes):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = online(name, guided=1.0, rounds=1, **changes)
        return train_online(replace(config, data=str(tmp_path / f"{name}.jsonl"), batching=batching or config.batching))

    rows = [{"id": n, "prompt": "p", "response": "r" * (20 if n % 2 else 900)} for n in range(20)]
    with pytest.raises(LengthError, match="has 903 tokens, 512 fit the budget"):
        run(rows, "long")
    skipped = run(rows, "skipped", BatchingConfig(token_budget=512, overflow="skip"))
    assert skipped.sft.left_out == {"samples of the data too long": 10}
    cut = run(rows, "cut", BatchingConfig(token_budget=512, overflow="truncate"), window_microbatches=100)
    assert cut.sft.left_out["samples truncated"] == 10
    with pytest.raises(OptionError, match="has 20 samples, the replay buffer holds 5"):
        run([{**row, "response": "r"} for row in rows], "many", buffer_size=5)
    with pytest.raises(DataError, match=r"id 1 comes twice in .*; ids must be unique"):
        run([{"id": 1, "prompt": "p", "response": "r"}] * 2, "twice")


def test_a_server_that_is_gone_for_a_while_costs_nothing_and_one_that_is_gone_for_good_leaves_a_checkpoint(online):
    config, other = online("away", gym={"retry_delay": 0.2, "max_retries": 5}), PuzzleServer()
    with other:
        config = replace(config, gym=replace(config.gym, port=other.port))
        port = other.port
    returning = PuzzleServer(port=port)

    def leave_after_the_first(report):
        if report.round == 0:
            returning.stop()
            threading.Timer(1.0, returning.start).start()

    with returning:
        result = train_online(config, hooks=OnlineHooks(on_round=leave_after_the_first))
    assert [report.errors for report in result.rounds] == [{}, {}, {}]

    quickly = {"retry_delay": 0.05, "max_retry_delay": 0.5, "max_retries": 1}
    gone = online("gone", sft={"save_every": None}, gym={"port": port, **quickly})
    with PuzzleServer(port=port) as leaving:
        with pytest.raises(ConnectionFailed):
            train_online(gone, hooks=OnlineHooks(on_round=lambda report: leaving.stop()))
    saved = json.loads((find_checkpoint(gone.output) / "state.json").read_bytes())
    assert saved["online"]["round"] == 1
    assert saved["step"] == len(lines(Path(gone.output) / "log.jsonl")) > 0


def test_more_rounds_do_not_change_the_learning_rate_and_fewer_are_refused(online):
    config = online(rounds=1)
    train_online(config)
    train_online(replace(config, rounds=3), resume=find_checkpoint(config.output))
    rates = [line["learning_rate"] for line in lines(Path(config.output) / "log.jsonl")]
    assert len(rates) > 4
    assert set(rates) == {1e-3}
    with pytest.raises(OptionError, match="3 rounds were played already, and 2 were asked for"):
        train_online(replace(config, rounds=2), resume=find_checkpoint(config.output))
    again = train_online(
        replace(config, rounds=3, gym=replace(config.gym, port=free_port())), resume=find_checkpoint(config.output)
    )
    assert again.sft.taken == 0, "a run that is complete needs no server"


def test_positions_that_the_model_cannot_read_are_given_up_and_counted(online, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {
        "vocab_size": 259,
        "n_positions": 60,
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "bos_token_id": 257,
        "eos_token_id": 258,
    }
    GPT2LMHeadModel(GPT2Config(**shape)).save_pretrained(tmp_path / "model")
    sft = {"model": str(tmp_path / "model"), "tokenizer": "byte"}
    config = online(sft=sft, rounds=2, gym={"games": ("lights", "nqueens")}, episodes_per_round=12)
    result = train_online(config)
    assert all(report.filtered["prompt too long for the model"] > 0 for report in result.rounds)
    assert all(report.filtered["too long"] > 0 for report in result.rounds), "and neither are hints learned there"
    assert result.sft.taken > 0


@pytest.mark.parametrize(("priority", "field"), [("reward", "reward"), ("difficulty", "difficulty")])
def test_what_has_priority_is_trained_on_more_often(online, tmp_path, priority, field):
    low, high = (0.0, 20.0) if priority == "reward" else (0.7, 0.3)  # play begins on the easy side
    rows = [
        {"id": f"{n}-{value}", "prompt": "p", "response": "r" * 8, field: value}
        for n in range(40)
        for value in (low, high)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = {}
    for name in ("none", priority):
        config = online(name, priority=name, window_microbatches=2, rounds=1)
        train_online(replace(config, data=str(tmp_path / "rows.jsonl")))
        ids = [str(id) for _, _, id in trained(Path(config.output))]
        found[name] = sum(id.endswith(f"-{high}") for id in ids) - sum(id.endswith(f"-{low}") for id in ids)
    assert found[priority] > found["none"] + 10, found


def test_without_a_server_there_is_one_line_and_no_run(online, tmp_path):
    config = online(gym={"port": free_port(), "connect_timeout": 0.5, "retry_delay": 0.01, "max_retries": 1})
    with pytest.raises(ConnectionFailed, match="brim gym serve"):
        train_online(config)
    assert not Path(config.output).exists()


def test_rounds_without_anything_solved_are_played_and_end_with_advice(online):
    config = online(guided=0.0, rounds=2, gym={"max_steps": 1})
    with pytest.raises(DataError, match=r"nothing was learned.*--guided"):
        train_online(config)


def test_a_run_that_plays_and_one_that_does_not_are_not_resumed_as_each_other(online, options):
    config = online(rounds=1, guided=1.0)
    train_online(config)
    plain = options("plain", max_steps=2)
    train_sft(plain)
    with pytest.raises(MismatchError, match="another kind of run; resume it with `brim train sft --resume"):
        train_online(config, resume=find_checkpoint(plain.output))
    with pytest.raises(MismatchError, match="another kind of run; resume it with `brim train online --resume"):
        train_sft(replace(plain, output=config.output), resume=find_checkpoint(config.output))


def test_more_rounds_and_another_server_may_be_asked_for_on_resume_and_nothing_else(online):
    config = online()
    longer = config.resumed_online({}, {"port": 1234}, {"rounds": 9})
    assert (longer.rounds, longer.gym.port) == (9, 1234)
    with pytest.raises(MismatchError, match=r"guided \(0.5 -> 0.1\)"):
        config.resumed_online({}, {}, {"guided": 0.1})
    with pytest.raises(MismatchError, match="games"):
        config.resumed_online({}, {"games": ("sudoku",)}, {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"guided": 1.5}, "guided must lie between"),
        ({"temperature": -1.0}, "temperature must not be negative"),
        ({"temperature": float("inf")}, "temperature must not be negative or infinite"),
        ({"sft": {"format": RowFormat(group_field="g")}}, "group_field has no effect"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"learn_from": "failure"}, "learn_from must be one of"),
        ({"sft": {"fsdp": True}}, "fsdp cannot be used in a run that plays"),
    ],
)
def test_what_a_run_that_plays_cannot_do_is_refused(online, changes, message):
    with pytest.raises(OptionError, match=message):
        online(**changes)


def test_options_survive_their_file(online):
    config = online(guided=0.25, gym={"difficulty_range": (0.3, 0.5)})
    assert OnlineConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert issubclass(ConnectionFailed, BrimError)
