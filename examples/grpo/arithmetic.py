"""Does it learn? A warm start, then GRPO on the same problems, with several seeds and with rewards that mean nothing.

    python examples/grpo/arithmetic.py          # about ten minutes on two cores
    python examples/grpo/arithmetic.py --quick  # a look at what it does; too short to learn

`tiny`, a model of under a million weights, is fine-tuned for some seconds on worked problems of the data set
`arithmetic`. Then it practises them with GRPO; the reward says how close its number is to the right one. Problems of
other splits, which are never trained on, show what was learned. With shuffled rewards, every response is given the
reward of another one, and nothing should be learned.
"""

import argparse
import math
import tempfile
from pathlib import Path

from brim import GrpoConfig, SftConfig, train_grpo, train_sft
from brim.generate.prompts.registry import build_dataset
from brim.generate.rewards import reward
from brim.generate.rewards.builtin import closeness
from brim.plan import BatchingConfig


@reward(batched=True)
def shuffled(prompts, responses, examples):
    """The rewards of all responses of a rollout, in another order."""
    rewards = [closeness(*one) for one in zip(prompts, responses, examples, strict=True)]
    half = len(rewards) // 2 + 1
    return rewards[half:] + rewards[:half]


def warm_start(folder: Path, steps: int) -> Path:
    rows = [{"id": example.id, "text": example.text + "\n"} for example in build_dataset("arithmetic")]
    config = SftConfig(
        output=str(folder / "sft"),
        batching=BatchingConfig(token_budget=2048),
        epochs=100,
        max_steps=steps,
        learning_rate=2e-3,
        save_every=None,
        tensorboard=False,
    )
    result = train_sft(config, model="tiny", data=rows)
    print(f"warm start: loss {result.first_loss:.2f} -> {result.last_loss:.2f} in {result.seconds:.0f} s")
    return result.model


def practise(folder: Path, model: Path, seed: int, steps: int, held_out: int, function) -> float:
    """Train, print how the held-out reward changed, and return by how many standard errors."""
    name = f"{function.__name__}-seed{seed}"
    config = GrpoConfig(
        output=str(folder / name),
        model=str(model),
        max_steps=steps,
        prompts_per_step=32,
        group_size=8,
        max_new_tokens=8,
        learning_rate=3e-4,
        seed=seed,
        resample=1,
        eval_prompts=held_out,
        eval_samples=4,
        eval_temperature=1.0,
        eval_every=max(1, steps // 5),
        save_every=None,
        tensorboard=False,
    )
    result = train_grpo(
        config,
        rewards=function,
        examples=build_dataset("arithmetic"),
        held_out=build_dataset("arithmetic", "test") + build_dataset("arithmetic", "validation"),
    )
    before, after = result.before, result.after
    rise = (after.reward - before.reward) / math.hypot(before.reward_error, after.reward_error)
    print(
        f"{name}: held-out reward {before.reward:.3f} ± {before.reward_error:.3f} -> {after.reward:.3f} ± "
        f"{after.reward_error:.3f} ({rise:+.1f} standard errors) in {result.seconds:.0f} s"
    )
    return rise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="directory for the runs; by default a temporary one")
    parser.add_argument("--steps", type=int, default=80, help="optimizer steps of GRPO")
    parser.add_argument("--sft-steps", type=int, default=96, help="optimizer steps of the warm start")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a few steps and one seed")
    options = parser.parse_args()
    held_out = 400
    if options.quick:
        options.steps, options.sft_steps, options.seeds, held_out = 2, 12, 1, 20
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.output or Path(temporary)
        model = warm_start(folder, options.sft_steps)
        rises = [practise(folder, model, seed, options.steps, held_out, closeness) for seed in range(options.seeds)]
        nothing = practise(folder, model, 0, options.steps, held_out, shuffled)
    print(f"practice: {min(rises):+.1f} to {max(rises):+.1f} standard errors; shuffled rewards: {nothing:+.1f}")


if __name__ == "__main__":
    main()
