"""Train PPO of Stable-Baselines3 on small ARC tasks through the interface of Gymnasium.

An agent recolours an object of a 5x5 grid. It sees its grid and two demonstrations, chooses a colour and a cell, and
the region of the cell is flooded with the colour. A random agent rarely solves a task; after training most are solved.

    pip install 'brim[arc]' stable-baselines3
    python examples/arc/stable_baselines.py             # one to two minutes
    python examples/arc/stable_baselines.py --quick     # a few seconds: shows that it runs, and learns nothing
"""

import argparse

import gymnasium
from gymnasium.wrappers import FlattenObservation

from brim.envs.arc import (
    ArcOperation,
    Channels,
    EnvironmentConfig,
    EpisodeMetrics,
    FlatActions,
    JaxArcConfig,
    OneHot,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
    family_tasks,
)

try:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_checker import check_env
    from stable_baselines3.common.env_util import make_vec_env
except ImportError as error:
    raise SystemExit(f"this example needs {error.name}; run: pip install 'brim[arc]' stable-baselines3") from None

CONFIG = JaxArcConfig(
    environment=EnvironmentConfig(max_episode_steps=5, end_when_solved=True),
    dataset=UnifiedDatasetConfig(max_grid_height=5, max_grid_width=5),
    action=UnifiedActionConfig(
        selection_format="point",
        allowed_operations=tuple(range(ArcOperation.FLOOD_FILL_1, ArcOperation.FLOOD_FILL_9 + 1)),
    ),
)
ENVS = 16


def make_env(tasks: int) -> gymnasium.Env:
    """An environment whose actions are numbers, and whose observations are channels of 0 and 1."""
    env = gymnasium.make("brim/ARC-v0", tasks=family_tasks(tasks, kinds=["recolour"]), config=CONFIG)
    env = OneHot(Channels(FlatActions(env), ("working", "demonstrations"), pairs=2))
    return EpisodeMetrics(FlattenObservation(env))


def solved(env: gymnasium.Env, model: PPO, episodes: int) -> float:
    """The share of episodes that the model solves."""
    solutions = 0
    for number in range(episodes):
        observation, _ = env.reset(seed=1000 + number)
        done = False
        while not done:
            action, _ = model.predict(observation)
            observation, _, terminated, truncated, info = env.step(action)
            done = terminated or truncated
        solutions += info["episode_metrics"]["solved"]
    return solutions / episodes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a few updates, to see that it runs")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)

    tasks = 4
    env = make_env(tasks)
    check_env(env)
    print(f"observations {env.observation_space.shape}, {env.action_space.n} actions, {tasks} tasks")
    model = PPO(
        "MlpPolicy",
        make_vec_env(make_env, ENVS, seed=0, env_kwargs={"tasks": tasks}),
        n_steps=64,
        batch_size=256,
        n_epochs=4,
        learning_rate=1e-3,
        gamma=0.9,
        seed=0,
        device="cpu",
    )
    before = solved(env, model, 20 if quick else 200)
    model.learn(2048 if quick else 60_000)
    after = solved(env, model, 20 if quick else 200)
    print(f"steps {model.num_timesteps}: solved {before:.0%} before training, {after:.0%} after")
    if not quick:
        assert after > before + 0.5, "it should have learned to solve most tasks"


if __name__ == "__main__":
    main()
