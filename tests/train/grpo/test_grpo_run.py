"""GRPO runs: what they learn, what they refuse, what every option does, and how they go on after a kill."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support import grpo_rewards
from support.worlds import World, lines, trained, weights

from brim.core.errors import BrimError, DataError, LengthError, MismatchError, OptionError
from brim.envs.puzzle.config import GymConfig
from brim.generate.config import GenerationConfig
from brim.generate.processor import SequenceProcessor
from brim.generate.prompts.example import Example
from brim.train.checkpoint import find_checkpoint
from brim.train.grpo.attempt import Attempt, Group
from brim.train.grpo.config import GrpoConfig
from brim.train.grpo.hooks import GrpoHooks
from brim.train.grpo.run import train_grpo

pytestmark = pytest.mark.usefixtures("one_thread")


def reports(config):
    return lines(Path(config.output) / "rollouts.jsonl")


def differ(one, two):
    return max(float((one[name] - two[name]).abs().max()) for name in one)


def test_the_reward_rises_and_a_reward_that_means_nothing_does_not(grpo_options):
    """Both are measured by the share of ASCII, to which the shuffled reward has no relation."""
    means = {}
    for name in ("ascii_share", "shuffled"):
        shares = []

        def watched(prompt, response, example, name=name, shares=shares):
            shares.append(grpo_rewards.ascii_share(prompt, response, example))
            return getattr(grpo_rewards, name)(prompt, response, example)

        config = grpo_options(name, max_steps=20, prompts_per_step=4, group_size=8, learning_rate=1e-2)
        train_grpo(config, rewards=watched)
        means[name] = np.mean(shares[:64]), np.mean(shares[-128:])
    first, last = means["ascii_share"]
    assert last > first + 0.25
    first, last = means["shuffled"]
    assert abs(last - first) < 0.15


def test_killed_twice_and_resumed_the_weights_are_the_same_to_the_bit(grpo_options):
    changes = {"max_steps": 10, "steps_per_rollout": 2, "kl_coef": 0.05, "prompts_per_step": 2, "eval_prompts": 4}
    World(whole := grpo_options("whole", **changes)).wait()
    config = grpo_options("killed", **changes)
    world = World(config)
    for step in sorted(random.Random(3).sample(range(3, 10), 2)):
        world.wait_for_step(step)
        world.kill()
        assert world.wait() == [{"error": "killed"}]
        world = World(config, resume=config.output)
    assert "error" not in world.wait()[0]
    expected, found = weights(Path(whole.output)), weights(Path(config.output))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert trained(Path(config.output)) == trained(Path(whole.output))
    timed = ("seconds", "rollout_seconds", "reward_seconds", "train_seconds")
    kept = [[{k: v for k, v in one.items() if k not in timed} for one in reports(run)] for run in (whole, config)]
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    "changes",
    [{}, {"kl_coef": 0.1, "kl_in": "reward", "steps_per_rollout": 2, "passes": 2}, {"fsdp": True}],
    ids=["plain", "KL in the reward, several steps", "sharded"],
)
def test_two_ranks_train_like_one(grpo_options, changes):
    """The rewards hardly ever agree with the mean of their group: where one does, its advantage is the rounding error
    of the KL divergence, and Adam makes steps of full size of the rounding error.
    """
    changes = {"rewards": ("support.grpo_rewards:shuffled",), **changes}
    one = grpo_options("one", **{**changes, "fsdp": False})
    two = grpo_options("two", **changes)
    assert "error" not in World(one).wait()[0]
    assert [outcome.get("error") for outcome in World(two, 2).wait()] == [None, None]
    assert differ(weights(Path(one.output)), weights(Path(two.output))) < 1e-4  # three steps of up to 3e-3
    norms = [[line["grad_norm"] for line in lines(Path(run.output) / "log.jsonl")] for run in (one, two)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert sorted(id for _, _, id in trained(Path(one.output))) == sorted(id for _, _, id in trained(Path(two.output)))
    assert [report["reward"] for report in reports(one)] == pytest.approx(
        [report["reward"] for report in reports(two)], abs=1e-9
    )


def test_a_run_of_two_ranks_is_resumed_on_one_and_on_three(grpo_options):
    config = grpo_options(max_steps=9, prompts_per_step=4, save_every=1)
    world = World(config, 2)
    world.wait_for_step(3)
    world.kill()
    world.wait()
    middle = World(replace(config, max_steps=6), 1, resume=config.output).wait()
    assert "error" not in middle[0]
    assert [outcome.get("error") for outcome in World(config, 3, resume=config.output).wait()] == [None] * 3
    assert [report["step"] for report in reports(config)] == list(range(1, 10))


def test_a_learning_rate_is_chosen_by_the_size_of_the_model(grpo_options):
    assert grpo_options(learning_rate=None).learning_rate_for(7 * 10**9) == 1e-6
    assert grpo_options(learning_rate=None).learning_rate_for(7 * 10**7) == 1e-5
    train_grpo(config := grpo_options(learning_rate=None, max_steps=1))
    state = json.loads((find_checkpoint(config.output) / "state.json").read_text())
    assert state["config"]["learning_rate"] == pytest.approx(1e-6 * (7e9 / 23_000) ** 0.5, rel=0.2)


def test_groups_without_variance_are_replaced_and_counted(grpo_options):
    def by_prompt(prompt, response, example):
        return float(len(response)) if "+" in prompt else 1.0

    result = train_grpo(grpo_options(max_steps=2, resample=3), rewards=by_prompt)
    first = result.rollouts[0]
    assert first.dead > 0
    assert first.groups == 3 + first.replaced
    assert first.groups - first.dead <= 3
    fewer = train_grpo(grpo_options("fewer", max_steps=2, resample=0), rewards=by_prompt).rollouts[0]
    assert fewer.replaced == 0
    assert fewer.groups == 3
    assert fewer.trained == 4 * (3 - fewer.dead)


def test_a_run_without_anything_to_learn_is_refused_at_first_and_ends_early_later(grpo_options):
    with pytest.raises(BrimError, match=r"same reward .mean 1.*easier tasks"):
        train_grpo(grpo_options(rewards=("support.grpo_rewards:same",)))
    calls = []

    def soon_same(prompt, response, example):
        calls.append(response)
        return float(len(calls) % 2) if len(calls) <= 12 else 1.0

    said = []
    result = train_grpo(grpo_options("later", resample=0), rewards=soon_same, hooks=GrpoHooks(on_message=said.append))
    assert result.steps == 1
    assert not result.stopped
    assert "nothing to learn" in result.ended_early
    assert result.ended_early in said
    assert (result.model / "config.json").exists()


def test_a_reward_that_raises_fails_for_its_attempt_alone_and_is_never_a_zero(grpo_options):
    result = train_grpo(grpo_options(rewards=("support.grpo_rewards:sometimes_broken",), max_steps=1, group_size=8))
    report = result.rollouts[0]
    failed = report.failures["KeyError"]
    assert 0 < failed < report.attempts
    assert report.trained <= report.attempts - failed
    with pytest.raises(BrimError, match=r"every attempt of rollout 1 failed.*ValueError: no reward today"):
        train_grpo(grpo_options("broken", rewards=("support.grpo_rewards:broken",)))


def test_parts_of_a_reward_are_reported(grpo_options):
    result = train_grpo(
        grpo_options(rewards=("support.grpo_rewards:in_parts", "0.5*support.grpo_rewards:ascii_share"), max_steps=1)
    )
    report = result.rollouts[0]
    assert len(report.parts) == 3
    assert sum(report.parts.values()) == pytest.approx(report.reward)


def test_truncated_attempts_are_masked_by_option(grpo_options):
    masked = train_grpo(
        grpo_options("masked", mask_truncated=True, max_steps=1, max_new_tokens=40, prompts_per_step=8)
    ).rollouts[0]
    assert 0 < masked.masked <= masked.truncated
    assert masked.trained == masked.attempts - masked.masked - 4 * masked.dead
    trained_on = train_grpo(
        grpo_options("trained", mask_truncated=False, max_steps=1, max_new_tokens=40, prompts_per_step=8)
    ).rollouts[0]
    assert trained_on.masked == 0
    assert trained_on.trained > masked.trained


CHANGES = {
    "loss": "dr_grpo",
    "scale_rewards": "none",
    "kl_coef": 0.5,
    "temperature": 0.5,
    "group_size": 5,
    "prompts_per_step": 2,
    "steps_per_rollout": 2,
    "passes": 2,
    "max_new_tokens": 3,
    "split": "test",
    "seed": 7,
    "weight_decay": 0.5,
    "clip_norm": 1e-3,
    "schedule": "linear",
    "warmup_steps": 3,
    "lora_rank": 2,
}


@pytest.fixture(scope="module")
def baseline(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("baseline")
    config = GrpoConfig(
        model=str(small / "model"),
        dataset="arithmetic",
        output=str(folder / "run"),
        rewards=("support.grpo_rewards:ascii_share",),
        max_steps=3,
        group_size=4,
        prompts_per_step=3,
        max_new_tokens=6,
        learning_rate=3e-3,
        mask_truncated=False,
        eval_prompts=0,
        eval_split="validation",
        tensorboard=False,
    )
    train_grpo(config)
    return config, weights(Path(config.output))


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "lora_rank"])
def test_every_option_of_training_changes_what_is_learned(baseline, tmp_path, name):
    config, before = baseline
    changed = replace(config, output=str(tmp_path / "run"), **{name: CHANGES[name]})
    train_grpo(changed)
    assert differ(weights(tmp_path / "run"), before) > 1e-6


@pytest.mark.parametrize(("name", "value"), [("clip_low", 1e-4), ("clip_high", 1e-4), ("ratio", "sequence")])
def test_clipping_and_ratios_change_what_later_steps_on_a_rollout_learn(baseline, tmp_path, name, value):
    """In the first step all ratios are 1."""
    config, _ = baseline
    several = replace(config, passes=3, learning_rate=2e-2, clip_low=0.9, clip_high=9.0, output=str(tmp_path / "wide"))
    train_grpo(several)
    train_grpo(replace(several, output=str(tmp_path / "narrow"), **{name: value}))
    assert differ(weights(tmp_path / "wide"), weights(tmp_path / "narrow")) > 1e-6
    if name != "ratio":
        found = lines(tmp_path / "narrow" / "rollouts.jsonl")
        assert max(report[name.replace("clip", "clipped")] for report in found) > 0.01


def test_how_much_is_computed_at_once_does_not_change_what_is_learned(baseline, tmp_path):
    config, before = baseline
    train_grpo(replace(config, output=str(tmp_path / "run"), token_budget=16, tf_batch_size=2, gen_batch_size=3))
    assert differ(weights(tmp_path / "run"), before) < 1e-5


def test_lora_trains_adapters_and_the_reference_is_the_model_below_them(grpo_options, small):
    base = weights(small)
    result = train_grpo(config := grpo_options(lora_rank=2, kl_coef=0.1, max_steps=2, learning_rate=1e-2))
    assert (result.model / "adapter_config.json").exists()
    assert result.rollouts[0].kl == pytest.approx(0.0, abs=1e-6)
    assert result.rollouts[1].kl > 1e-6
    assert weights(small).keys() == base.keys()
    again = train_grpo(config.resumed(max_steps=3), resume=find_checkpoint(config.output))
    assert again.taken == 1


def test_another_reference_has_another_divergence_and_one_with_another_vocabulary_is_refused(
    grpo_options, small, tmp_path
):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    shape = LlamaConfig.from_pretrained(small / "model")
    LlamaForCausalLM(shape).save_pretrained(tmp_path / "other")
    shape.vocab_size = 300
    LlamaForCausalLM(shape).save_pretrained(tmp_path / "larger")
    own = train_grpo(grpo_options("own", kl_coef=0.1, max_steps=1)).rollouts[0]
    other = train_grpo(grpo_options("other-run", kl_coef=0.1, reference=str(tmp_path / "other"), max_steps=1))
    assert own.kl == pytest.approx(0.0, abs=1e-6)
    assert other.rollouts[0].kl > 1e-4
    with pytest.raises(MismatchError, match=r"knows 300 tokens, the model .* 259"):
        train_grpo(grpo_options("refused", kl_coef=0.1, reference=str(tmp_path / "larger")))


def test_a_run_is_refused_when_decoding_and_training_do_not_agree(grpo_options, monkeypatch):
    import brim.train.grpo.writers as writers

    shifted = writers.attempt_of
    monkeypatch.setattr(
        writers, "attempt_of", lambda response: replace(shifted(response), logprobs=response.sampling_logprobs - 1)
    )
    with pytest.raises(BrimError, match=r"differ from those of the training code by 1 nats .* max_mismatch 0.1"):
        train_grpo(config := grpo_options())
    assert not list(Path(config.output).glob("checkpoint-*"))
    assert train_grpo(grpo_options("allowed", max_mismatch=2.0)).rollouts[0].mismatch == pytest.approx(1, abs=1e-3)


def test_held_out_tasks_are_evaluated_before_during_and_after(grpo_options):
    seen = []
    config = grpo_options(
        eval_prompts=5, eval_samples=2, eval_temperature=1.0, eval_every=2, max_steps=5, show_groups=2
    )
    result = train_grpo(config, hooks=GrpoHooks(on_evaluation=seen.append))
    assert seen == [5, 5, 5, 5]
    assert [report.step for report in result.rollouts if report.evaluation] == [2, 4, 5]
    assert result.before.tasks == 5
    assert result.before.attempts == 10
    shown = [evaluation.shown for evaluation in (result.before, result.rollouts[1].evaluation, result.after)]
    assert len({tuple(group.prompt for group in groups) for groups in shown}) == 1
    assert len(shown[0]) == 2
    assert all(len(report.shown) == 2 for report in result.rollouts)
    train = {example for _, _, example in trained(Path(config.output))}
    assert not {group.task for group in shown[0]} & {id.split("/")[0] for id in train}


def test_bfloat16_reaches_decoding_and_training_alike(baseline, tmp_path):
    config, exact = baseline
    report = train_grpo(replace(config, bf16=True, output=str(tmp_path / "run"))).rollouts[0]
    assert differ(weights(tmp_path / "run"), exact) > 1e-6
    assert report.mismatch < 0.01


REFUSED = [
    ({"group_size": 1}, "group_size must be at least 2, got 1"),
    ({"temperature": 0.0}, "temperature must be above 0"),
    ({"steps_per_rollout": 4, "passes": 3}, "more than max_staleness 8"),
    ({"lora_rank": 2, "lora_dropout": 0.1}, "lora_dropout has no effect"),
    ({"reference": "x"}, "need kl_coef"),
    ({"correction": 2.0}, "old_logprobs='score'"),
    ({"loss": "ppo"}, "loss must be one of grpo, dr_grpo, dapo"),
    ({"clip_low": 1.5}, "clip_low must be below 1"),
    ({"reload": "x:y"}, "reload needs servers"),
    ({"servers": ("http://x",), "old_logprobs": "decode"}, "must be 'score' with servers"),
    ({"servers": ("http://x",), "temperature": 0.5}, "temperature must be 1 with servers"),
    ({"rewards": ()}, "rewards is empty"),
    ({"dataset": "", "rewards": ("answer",), "gym": GymConfig(), "gen_batch_size": 8}, "gym.lanes is how many"),
    ({"gym": GymConfig()}, "dataset or gym, not both"),
    ({"dataset": "", "gym": GymConfig()}, "rewards have no effect on episodes"),
]


def test_cut_off_responses_are_masked_by_default_and_cut_off_episodes_are_not():
    assert GrpoConfig(output="x", model="tiny", dataset="arithmetic").masks_truncated
    assert not GrpoConfig(output="x", model="tiny", gym=GymConfig()).masks_truncated
    assert GrpoConfig(output="x", model="tiny", gym=GymConfig(), mask_truncated=True).masks_truncated


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_options_that_cannot_work_are_refused_in_one_line(grpo_options, changes, message):
    with pytest.raises(OptionError, match=message) as raised:
        grpo_options(**changes)
    assert "\n" not in str(raised.value)


def test_bad_data_and_bad_rewards_are_refused_before_the_first_step(grpo_options, tmp_path):
    cases = [
        ({"rewards": ("no_such_module:score",)}, OptionError, "no_such_module"),
        ({"rewards": ("anwser",)}, OptionError, "Did you mean"),
        ({"dataset": "aritmetic"}, OptionError, "arithmetic"),
        ({"dataset": str(tmp_path / "none.jsonl")}, DataError, "none.jsonl"),
        ({"eval_prompts": 4, "eval_split": "train"}, OptionError, "eval_split must not be"),
    ]
    for number, (changes, kind, message) in enumerate(cases):
        with pytest.raises((kind, LengthError), match=message):
            train_grpo(config := grpo_options(f"refused-{number}", **changes))
        assert not Path(config.output).exists()


def test_prompts_without_room_for_a_response_are_left_out_and_said(grpo_options):
    long = Example("x" * 3000, "x" * 3000, "1")
    short = [Example(f"{n} =", f"{n} =", str(n)) for n in range(9)]
    said = []
    result = train_grpo(
        grpo_options(dataset="", max_steps=1), examples=[long, *short], hooks=GrpoHooks(on_message=said.append)
    )
    assert result.steps == 1
    assert any("1 prompts are left out" in text for text in said)
    with pytest.raises(DataError, match="no prompt that leaves room"):
        train_grpo(grpo_options("none", dataset=""), examples=[long])


def test_a_resumed_run_keeps_its_options_and_another_run_is_refused(grpo_options, short_run, tmp_path):
    from brim.train.sft import train_sft

    config = grpo_options(max_steps=2)
    train_grpo(config)
    with pytest.raises(MismatchError, match=r"group_size .4 -> 6"):
        config.resumed(group_size=6)
    with pytest.raises(MismatchError, match="linear schedule"):
        replace(config, schedule="linear").resumed(max_steps=9)
    sft = short_run(tmp_path / "sft", max_steps=1)
    train_sft(sft)
    with pytest.raises(MismatchError, match="another kind of run; resume it with `brim train sft"):
        train_grpo(grpo_options("again"), resume=find_checkpoint(sft.output))


def test_curves_have_the_figures_of_steps_and_rollouts(grpo_options):
    config = grpo_options(max_steps=4, steps_per_rollout=2, prompts_per_step=2)
    train_grpo(config)
    log = lines(Path(config.output) / "log.jsonl")
    assert [line["step"] for line in log] == [1, 2, 3, 4]
    assert all({"loss", "entropy", "policy_kl", "grad_norm"} <= line.keys() for line in log)
    assert ["reward" in line for line in log] == [False, True, False, True]
    assert ["mismatch" in line for line in log] == [True, False, True, False]
    assert (Path(config.output) / "report.html").exists()


class Guessing:
    """An environment of one letter: the model writes a token, and the reward is whether its id is even."""

    fill = None
    reward_seconds = 0.0

    def __init__(self, model, tokenizer, spoil=None):
        self.processor = SequenceProcessor(model, tokenizer, GenerationConfig(max_new_tokens=1))
        self.spoil = spoil

    def play(self, draws, *, size, temperature, held_out, stop):
        prompts = [np.array([97 + draw % 26], np.int32) for draw in draws]
        found = self.processor.generate_batched(prompts, G=size, seed=draws[0]).record()
        groups = []
        for at, draw in enumerate(draws):
            attempts = []
            for g in range(size):
                index = at * size + g
                ids = found.response(index)
                attempts.append(
                    Attempt(
                        token_ids=ids,
                        drawn=np.ones(len(ids), bool),
                        logprobs=found.split(found.sampling_logprobs)[index],
                        text="",
                        finish_reason="stop",
                        reward=float(ids[0] % 2 == 0),
                    )
                )
            group = Group(draw=draw, task=str(draw), prompt_ids=prompts[at], prompt="", answer=None, attempts=attempts)
            groups.append(group if self.spoil is None else self.spoil(group))
        return groups

    def close(self):
        self.closed = True


def test_any_source_of_attempts_can_be_trained_on(grpo_options):
    config = grpo_options(dataset="", max_steps=15, learning_rate=1e-2, group_size=16, prompts_per_step=4)
    result = train_grpo(config, source=Guessing)
    rewards = [report.reward for report in result.rollouts]
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.15
    with pytest.raises(OptionError, match="max_steps is missing"):
        train_grpo(grpo_options("endless", dataset="", max_steps=None), source=Guessing)


SPOILED = [
    (lambda group: replace(group, attempts=group.attempts[1:]), "has 3 attempts, 4 were asked for"),
    (lambda group: replace(group, draw=77), "those of"),
    (lambda group: with_first(group, reward=float("nan")), "reward nan, which is not finite"),
    (lambda group: with_first(group, reward=None), "either a reward or a failure"),
    (lambda group: with_first(group, drawn=np.ones(5, bool)), "one of each for every token"),
]


def with_first(group, **changes):
    return replace(group, attempts=[replace(group.attempts[0], **changes), *group.attempts[1:]])


@pytest.mark.parametrize(("spoil", "message"), SPOILED, ids=[message for _, message in SPOILED])
def test_a_source_that_returns_something_else_is_refused_in_one_line(grpo_options, spoil, message):
    with pytest.raises(DataError, match=message) as raised:
        train_grpo(grpo_options(dataset=""), source=lambda model, tokenizer: Guessing(model, tokenizer, spoil))
    assert "\n" not in str(raised.value)
