"""Training a query mutator: it learns, it resumes exactly, and servers that are away cost time or end it clearly."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.forked import Command

from brim import MismatchError, OptionError
from brim.envs.query.attempt import Question
from brim.envs.query.config import QueryConfig
from brim.envs.query.failures import TooManyInvalid
from brim.envs.query.scripted import BEST, ScriptedModel, scripted_answer, scripted_questions
from brim.llm import LLMPool
from brim.llm.testing import Faults, ModelServer, Uniform
from brim.train.checkpoint import find_checkpoint, read_checkpoint
from brim.train.ppo.config import PpoConfig
from brim.train.query.config import QueryMutatorConfig
from brim.train.query.run import QueryHooks, QueryRun, train_query_mutator

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("error")]

SMALL = PpoConfig(num_steps=8, ppo_epoch=2, num_mini_batch=2)


@pytest.fixture
def options(tmp_path):
    """Options of a short run under a name: 4 updates of 8 environments and 8 steps."""

    def make(name="run", **changes):
        values = {
            "output": str(tmp_path / name),
            "num_processes": 8,
            "num_env_steps": 256,
            "ppo": SMALL,
            "save_every": 1,
            "eval_questions": 8,
            "tensorboard": False,
        }
        return QueryMutatorConfig(**{**values, **changes})

    return make


def instant(config, **more):
    """Train with a scripted model that answers at once."""
    with LLMPool(ScriptedModel(), model="scripted") as pool:
        return train_query_mutator(config, pool=pool, **more)


def weights(config):
    return (find_checkpoint(config.output) / "model.safetensors").read_bytes()


def state(config):
    return read_checkpoint(find_checkpoint(config.output), format=QueryRun.format)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_best_mutator_for_each_kind_of_question_is_learned(options, seed):
    """One mutator of six is right for each kind, so a policy that learns nothing earns a sixth of the optimum, 1."""
    config = options(
        seed=seed,
        num_processes=16,
        num_env_steps=3072,
        learning_rate=3e-3,
        ppo=PpoConfig(num_steps=16, target_kl=None),
        save_every=None,
        eval_questions=64,
    )
    result = instant(config)
    assert result.updates[0].reward < 0.3
    assert sum(report.reward for report in result.updates[-3:]) / 3 >= 0.9
    assert (result.evaluation.before, result.evaluation.after) == (0.0, 1.0)
    for kind, mutator in BEST.items():
        chosen = result.updates[-1].chosen[kind]
        assert max(chosen, key=lambda name: chosen[name][0]) == mutator


def test_a_reward_that_depends_on_nothing_teaches_nothing(options):
    """The counterpart of the test above: without a signal the policy stays near to where it began."""
    config = options(num_env_steps=2048, ppo=replace(SMALL, num_steps=32), save_every=None, eval_questions=0)
    result = instant(config, reward=lambda attempt: float(len(attempt.question.id) % 2))
    shares = [max(count for count, _ in each.values()) for each in result.updates[-1].chosen.values()]
    totals = [sum(count for count, _ in each.values()) for each in result.updates[-1].chosen.values()]
    assert sum(shares) / sum(totals) < 0.75


def test_a_run_leaves_its_records_and_a_page(options):
    config = options(tensorboard=True)
    result = instant(config)
    output = Path(config.output)
    assert [report.update for report in result.updates] == [1, 2, 3, 4]
    assert not result.stopped
    lines = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    assert {"reward", "invalid_share", "speedup", "kl", "entropy", "clip_fraction", "explained_variance"} <= set(
        lines[-1]
    )
    assert len((output / "updates.jsonl").read_text().splitlines()) == 4
    assert list((output / "tensorboard").iterdir())
    assert "<html" in (output / "report.html").read_text()
    evaluation = json.loads((output / "evaluation.json").read_text())
    assert len(evaluation["pairs"]) == 8


def test_a_run_that_ends_in_any_rollout_and_resumes_has_the_same_weights(options):
    """It ends with an error in the middle of a rollout; the next process begins that rollout again."""
    instant(whole := options("whole"))

    class InterruptError(Exception):
        pass

    for at in (70, 130, 200):
        config = options(f"ended-{at}")
        seen = []

        def count(outcome, seen=seen, at=at):
            seen.append(outcome)
            if len(seen) == at:
                raise InterruptError

        with pytest.raises(InterruptError):
            instant(config, hooks=QueryHooks(on_step=count))
        result = instant(config, resume=find_checkpoint(config.output))
        assert weights(config) == weights(whole)
        assert state(config)["state"] == state(whole)["state"]
        assert [report.update for report in result.updates] == [1, 2, 3, 4]
        told = [line for one in (config, whole) for line in [(Path(one.output) / "log.jsonl").read_text().splitlines()]]
        assert [json.loads(line)["loss"] for line in told[0]] == [json.loads(line)["loss"] for line in told[1]]


def test_one_call_at_a_time_and_shuffled_latencies_with_failing_attempts_give_the_same_weights(options):
    instant(whole := options("whole"))
    instant(one := options("one", use_batching=False))
    assert weights(one) == weights(whole)
    faults = Faults(error=0.02, drop=0.01)
    with ModelServer(
        answers=scripted_answer, latency=Uniform(0.0, 0.004), faults=faults, slots=6, models=("scripted",), seed=5
    ) as server:
        config = options("faults", servers=(server.url,), cache=False)
        result = train_query_mutator(config)
        assert server.counts.failed > 0
    assert weights(config) == weights(whole)
    assert sum(sum(report.invalid.values()) for report in result.updates) == 0


def brim(config, *more):
    """Start the command in a process of its own."""
    words = ["--output", config.output, "--num-processes", "8", "--num-env-steps", "256", "--num-steps", "8"]
    words += ["--ppo-epoch", "2", "--num-mini-batch", "2", "--save-every", "1", "--eval-questions", "0"]
    words += ["--no-tensorboard", *(word for url in config.servers for word in ("--server", url)), *more]
    return Command(["brim", "train", "query-mutator", *words], Path(config.output).parent)


def served(server, count, command, patience=60.0):
    """Wait until the server has answered so many requests."""
    ends = time.monotonic() + patience
    while server.counts.served < count:
        assert command.process.is_alive(), command.wait()
        assert time.monotonic() < ends
        time.sleep(0.002)


@pytest.fixture
def scripted_server():
    with ModelServer(answers=scripted_answer, latency=Uniform(0.001, 0.006), models=("scripted",)) as server:
        yield server


def test_killed_in_the_middle_of_a_rollout_and_resumed_the_weights_are_those_of_a_whole_run(options, scripted_server):
    instant(whole := options("whole", eval_questions=0))
    config = options("killed", servers=(scripted_server.url,))
    command = brim(config)
    served(scripted_server, 200, command)  # of 512 calls, 128 for each rollout
    command.process.kill()
    command.wait()
    assert find_checkpoint(config.output).name < find_checkpoint(whole.output).name
    asked = scripted_server.counts.served
    again = brim(config, "--resume", config.output).wait()
    assert again.returncode == 0, again.stderr
    assert weights(config) == weights(whole)
    assert state(config)["state"]["lanes"] == state(whole)["state"]["lanes"]
    # Answers of the rollout that was killed come from the cache, up to those that were under way.
    assert scripted_server.counts.served - asked < 512 - 128


def test_sigterm_in_a_rollout_ends_the_run_with_a_checkpoint_from_which_it_resumes(options, scripted_server):
    instant(whole := options("whole", eval_questions=0))
    config = options("stopped", servers=(scripted_server.url,))
    command = brim(config)
    served(scripted_server, 150, command)
    command.process.terminate()
    done = command.wait()
    assert done.returncode == 1, done.stderr
    assert "SIGTERM: stopping soon, with a checkpoint" in done.stderr
    assert f"continue with: brim train query-mutator --resume {config.output}" in done.stderr
    assert (Path(config.output) / "report.html").exists()
    train_query_mutator(config, resume=find_checkpoint(config.output))
    assert weights(config) == weights(whole)


def test_a_server_that_is_away_for_a_while_costs_time_and_nothing_else(options, scripted_server):
    instant(whole := options("whole"))
    config = options("away", servers=(scripted_server.url,), cache=False)
    steps = []

    def leave(outcome):
        steps.append(outcome)
        if len(steps) == 90:
            scripted_server.stop()
            time.sleep(1.5)
            scripted_server.start()

    result = train_query_mutator(config, hooks=QueryHooks(on_step=leave))
    assert [report.invalid for report in result.updates] == [{}] * 4
    assert weights(config) == weights(whole)


def test_a_server_that_stays_away_ends_the_run_with_a_checkpoint_and_one_line(options, scripted_server):
    config = options("lost", servers=(scripted_server.url,), patience=0.5)
    steps = []

    def leave(outcome):
        steps.append(outcome)
        if len(steps) == 90:
            scripted_server.stop()

    with pytest.raises(TooManyInvalid, match=r"ServerLost: .*; 1 of 4 updates are kept in ") as raised:
        train_query_mutator(config, hooks=QueryHooks(on_step=leave))
    assert "\n" not in str(raised.value)
    assert state(config)["update"] == 1
    scripted_server.start()
    instant(whole := options("whole"))
    train_query_mutator(config, resume=find_checkpoint(config.output))
    assert weights(config) == weights(whole)


def test_a_server_that_is_not_there_at_the_start_is_one_clear_line_and_leaves_no_run(options):
    config = options(servers=("http://127.0.0.1:9",))
    with pytest.raises(Exception, match="connection refused"):
        train_query_mutator(config)
    assert not (Path(config.output) / "run.json").exists()


def test_steps_whose_reward_fails_are_counted_and_teach_nothing(options):
    """Every fourth question has a reward that raises an error."""

    def reward(attempt):
        if attempt.question.kind == "bare":
            raise ValueError("no reward for this")
        return float(attempt.question.kind == "wordy")

    result = instant(options(max_invalid=1.0), reward=reward)
    report = result.updates[0]
    assert set(report.invalid) == {"RewardFailed"}
    assert "bare" not in report.chosen
    with pytest.raises(TooManyInvalid, match=r"RewardFailed: .*ValueError: no reward for this"):
        instant(options("strict", max_invalid=0.05), reward=reward)


def test_a_resumed_run_refuses_other_questions_embeddings_and_mutators(options):
    instant(config := options())
    checkpoint = find_checkpoint(config.output)
    with pytest.raises(MismatchError, match="observation_size"):
        instant(replace(config, environment=QueryConfig(embedder="hash-64")), resume=checkpoint)
    with pytest.raises(MismatchError, match="other questions, mutators, models"):
        instant(config, resume=checkpoint, questions=scripted_questions(32))
    others = QueryConfig(mutators=("shorten", "rephrase", "expand", "add_context", "break_into_steps", "crossover"))
    with pytest.raises(MismatchError, match="other questions, mutators, models"):
        instant(replace(config, environment=others), resume=checkpoint)


def test_a_finished_run_can_be_extended_and_equals_a_longer_one(options):
    instant(long := options("long", num_env_steps=384))
    instant(config := options("short"))
    result = instant(config.resumed(num_env_steps=384), resume=find_checkpoint(config.output))
    assert (len(result.updates), result.taken) == (6, 2)
    assert weights(config) == weights(long)
    with pytest.raises(MismatchError, match="num_env_steps"):
        options(schedule="linear").resumed(num_env_steps=384)


def test_options_that_cannot_work_are_refused(options):
    for changes, message in (
        ({"num_env_steps": 0}, "num_env_steps must be at least 1"),
        ({"ppo": PpoConfig(num_steps=1, num_mini_batch=9)}, "num_mini_batch must be at most 8"),
        ({"data": "questions.jsonl"}, "data needs a server"),
        ({"reward": "best"}, "reward must be one of"),
        ({"max_invalid": 2.0}, "max_invalid must be between 0 and 1"),
        ({"max_steps": 5}, "max_steps has no effect"),
        ({"judge_model": "x"}, "judge_model has no effect on the reward numeric"),
        ({"bf16": True}, "bf16"),
    ):
        with pytest.raises(OptionError, match=message):
            options(**changes)


def test_files_of_the_user_in_the_output_are_kept(options):
    config = options()
    Path(config.output).mkdir()
    (Path(config.output) / "report.html").write_text("mine")
    with pytest.raises(OptionError, match=r"report\.html is not a file of a query-mutator run"):
        instant(config)
    assert (Path(config.output) / "report.html").read_text() == "mine"


def test_secrets_of_servers_are_not_recorded(options):
    with ModelServer(answers=scripted_answer, models=("scripted",)) as server:
        config = options(servers=(server.url.replace("http://", "http://me:hush-hush@"),), eval_questions=0)
        train_query_mutator(config)
    found = [path for path in Path(config.output).rglob("*") if path.is_file() and b"hush-hush" in path.read_bytes()]
    assert found == []
    assert "hush-hush" not in repr(config)
    assert json.loads((Path(config.output) / "run.json").read_text())["config"]["servers"] == [server.url]


def test_a_judge_and_questions_from_a_file_need_no_references(options, tmp_path):
    rows = [Question(id=str(number), text=f"What is {number} + 1?") for number in range(12)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps({"question": row.text}) + "\n" for row in rows))

    def answers(call):
        return "Score: 7" if "You are to rate" in call.messages[0]["content"] else "some answer"

    with ModelServer(answers=answers, models=("m",)) as server:
        config = options(servers=(server.url,), data=str(tmp_path / "questions.jsonl"), reward="judge")
        result = train_query_mutator(config)
    assert [report.reward for report in result.updates] == pytest.approx([0.7] * 4)
    with pytest.raises(Exception, match="reference"):
        train_query_mutator(replace(config, reward="exact", output=str(tmp_path / "other")))


def test_questions_for_the_comparison_are_checked_before_anything_is_asked(options, scripted_server, tmp_path):
    (tmp_path / "held_out.jsonl").write_text('{"question": "Why?"}\n{"question": "What for?"}\n')
    config = options(servers=(scripted_server.url,), eval_data=str(tmp_path / "held_out.jsonl"))
    with pytest.raises(Exception, match="2 of 2 questions have no reference"):
        train_query_mutator(config)
    assert scripted_server.counts.arrived == 0


def test_a_stop_during_the_comparison_leaves_the_page_and_the_last_checkpoint(options, monkeypatch):
    config = options()

    def interrupt(text):
        if text.startswith("asking up to"):
            stopping.append(True)

    stopping = []
    monkeypatch.setattr(QueryRun, "stop_requested", property(lambda run: bool(stopping)))
    result = instant(config, hooks=QueryHooks(on_message=interrupt))
    assert stopping
    assert result.evaluation is None
    assert state(config)["update"] == 4
    assert "not compared" in (Path(config.output) / "report.html").read_text()
