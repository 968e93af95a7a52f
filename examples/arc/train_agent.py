"""Train an agent with PPO on generated ARC tasks, and let it solve tasks with rules that it never saw.

    python examples/arc/train_agent.py --quick    # one kind of task
    python examples/arc/train_agent.py            # all four kinds

The run is in arc-agent/ afterwards: open report.html and episodes.html there. Run it again after a kill to resume it.
"""

import argparse
from pathlib import Path

from brim.envs.arc import record_episodes
from brim.train import find_checkpoint
from brim.train.arc import ArcHooks, ArcPpoConfig, UpdateReport, load_agent, train_arc

OUTPUT = Path("arc-agent")
QUICK = ArcPpoConfig(
    kinds=("recolour",),
    envs=128,
    minibatches=4,
    width=16,
    tasks=256,
    held_out=100,
    learning_rate=0.004,
    updates=20,
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train an agent on generated ARC tasks.")
    parser.add_argument("--quick", action="store_true", help="train on one kind of task only")
    config = QUICK if parser.parse_args().quick else ArcPpoConfig()

    # 1. Train. A run that was killed goes on from its last checkpoint, to the same weights.
    resume = find_checkpoint(OUTPUT) if OUTPUT.exists() else None
    result = train_arc(config, output=OUTPUT, resume=resume, hooks=ArcHooks(on_update=show))

    # 2. How many tasks with rules that were held out does it solve, and how many do random actions solve?
    assert result.evaluation is not None, "the run was stopped by a signal; run this again to resume it"
    print(f"{'kind':10} {'agent':>6} {'random':>7}")
    for kind, scores in result.evaluation.rows():
        print(f"{kind:10} {scores['sampled'].solved_share:6.0%} {scores['random'].solved_share:7.0%}")
    assert result.evaluation.total("sampled").solved_share >= 0.8
    assert result.evaluation.total("random").solved_share < 0.05

    # 3. The agent can be loaded, and its policy used wherever a policy is asked for.
    agent = load_agent(OUTPUT)
    episodes = record_episodes(
        agent.policy(greedy=True), agent.held_out_tasks(100), agent.environment(), envs=100, steps=6
    )
    solved = sum(episode.solved for episode in episodes)
    print(f"solved again after loading: {solved} of {len(episodes)}")
    assert solved >= 80


def show(report: UpdateReport) -> None:
    if report.held_out is not None:
        print(f"measured: update {report.step}/{report.steps}, held-out tasks solved {report.held_out:.0%}")


if __name__ == "__main__":
    main()
