"""A small model learns Lights Out by playing: the server's hints first, then GRPO on its own episodes.

    python examples/grpo/puzzles.py
    python examples/grpo/puzzles.py --quick  # a look at what it does; too short to learn

The first part is supervised: 600 puzzles are played by hints, and a model of 120,000 weights learns the moves, until it
solves some puzzles by itself. The second part plays groups of 8 episodes of the same puzzle, and learns from which of
them were solved. An episode is one sequence of moves and answers of the server, with the loss on the moves. Success is
measured on held-out puzzles, before and after, by sampling. It takes two to three minutes, on one core and a second one
for the server. Needs brim[train,gym].
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from brim.data.tokenizer.base import ByteTokenizer
from brim.envs.puzzle.config import GymConfig
from brim.envs.puzzle.wire.server import PuzzleServer
from brim.plan.config import BatchingConfig
from brim.train.config import SftConfig
from brim.train.grpo.config import GrpoConfig
from brim.train.grpo.hooks import GrpoHooks
from brim.train.grpo.report import Evaluation, GrpoResult, RolloutReport
from brim.train.grpo.run import train_grpo
from brim.train.grpo.turns import hint_samples
from brim.train.sft import train_sft

LONGEST = 256
"""Tokens of an episode: a position and a move take about 40, and there are three of each."""
PASSES = 3
"""Optimizer steps on the groups of a rollout."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, help="port of a running puzzle server; by default one is started")
    parser.add_argument("--hints", type=int, default=600, help="puzzles of the warm start")
    parser.add_argument("--rollouts", type=int, default=20, help="rollouts of GRPO, of 32 groups of 8 episodes")
    parser.add_argument("--eval-puzzles", type=int, default=150, help="held-out puzzles, each played twice")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", help="directory of the run; a temporary one by default")
    parser.add_argument("--quick", action="store_true", help="few puzzles and one rollout")
    given = parser.parse_args()
    if given.quick:
        given.hints, given.rollouts, given.eval_puzzles = 40, 1, 4
    torch.set_num_threads(1)  # more threads only wait for each other with a model of this size
    with tempfile.TemporaryDirectory() as folder:
        output = Path(given.output or folder)
        if given.port is not None:
            learn(given, output, given.port)
        else:
            with PuzzleServer() as server:
                learn(given, output, server.port)


def learn(given: argparse.Namespace, output: Path, port: int) -> None:
    gym = GymConfig(
        host="127.0.0.1",
        port=port,
        games=("lights",),
        difficulty_range=(0.3, 0.3),  # easy: a 5 x 5 board that three presses darken
        max_steps=3,
        lanes=128,
    )
    model = warm_start(gym, output / "warm", puzzles=given.hints, seed=given.seed)
    result = play(gym, model, output / "grpo", given)
    if result.before is None or result.after is None:
        print("stopped before the last rollout")
        return
    print(f"before  {described(result.before)}")
    print(f"after   {described(result.after)}")
    if given.output is not None:
        print(f"the run as a page: {result.page}")


def warm_start(gym: GymConfig, output: Path, *, puzzles: int, seed: int) -> Any:
    """Train a model from random weights on episodes that follow the server's hints."""
    tokenizer = ByteTokenizer()
    samples = hint_samples(gym, tokenizer, range(puzzles), longest=LONGEST)
    torch.manual_seed(seed)
    shape = LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_id,
        bos_token_id=tokenizer.bos_id,
        eos_token_id=tokenizer.eos_id,
    )
    model = LlamaForCausalLM(shape)
    options = SftConfig(
        output=str(output),
        learning_rate=2e-3,
        schedule="constant",
        epochs=6,
        batching=BatchingConfig(token_budget=1024),
        save_every=None,
        tensorboard=False,
        seed=seed,
    )
    result = train_sft(options, model=model, tokenizer=tokenizer, data=samples)
    print(f"warm start: {len(samples)} puzzles by hints, {result.steps} steps in {result.seconds:.0f} s")
    return model


def play(gym: GymConfig, model: Any, output: Path, given: argparse.Namespace) -> GrpoResult:
    """Train the model on its own episodes."""
    options = GrpoConfig(
        output=str(output),
        gym=gym,
        group_size=8,
        prompts_per_step=32,
        passes=PASSES,
        max_steps=PASSES * given.rollouts,
        max_new_tokens=12,
        learning_rate=5e-4,
        mask_truncated=False,  # an episode that is not solved is cut off after three moves, and must count
        resample=0,
        token_budget=4096,
        eval_prompts=given.eval_puzzles,
        eval_samples=2,
        eval_temperature=1.0,
        save_every=None,
        tensorboard=False,
        seed=given.seed,
    )

    def report(rollout: RolloutReport) -> None:
        print(
            f"rollout {rollout.rollout:2}: solved {rollout.pass_rate:.2f}, groups without variance {rollout.dead}, "
            f"entropy {rollout.entropy or 0:.3f} nats, {rollout.seconds:.1f} s",
            flush=True,
        )

    return train_grpo(options, model=model, tokenizer=ByteTokenizer(), hooks=GrpoHooks(on_rollout=report))


def described(found: Evaluation) -> str:
    return (
        f"{found.tasks} held-out puzzles, played {found.attempts} times: solved {found.pass_rate:.3f}, "
        f"reward {found.reward:.3f} +- {found.reward_error:.3f}"
    )


if __name__ == "__main__":
    main()
