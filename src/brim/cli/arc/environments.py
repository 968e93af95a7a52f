"""Environments as the commands of `brim arc` make them: flags that they share, and the configuration of the flags."""

from typing import TYPE_CHECKING, Any, cast

import click

from brim.cli.arc.data import smallest_shape
from brim.envs.arc.config import (
    AutoReset,
    Engine,
    EnvironmentConfig,
    JaxArcConfig,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
)

if TYPE_CHECKING:
    from brim.envs.arc.tasks.task import JaxArcTask

MOST_ENVS = 2**17
"""Upper limit of the environments of a batch, which then take about a gigabyte."""
AUTO_RESETS: dict[str, AutoReset] = {"off": "off", "next-step": "next_step", "same-step": "same_step"}

auto_reset_option = click.option(
    "--auto-reset",
    type=click.Choice(list(AUTO_RESETS)),
    default="same-step",
    show_default=True,
    help="When a finished environment begins its next episode; off plays one episode in each.",
)
seed_option = click.option(
    "-s", "--seed", type=int, default=42, show_default=True, help="Seed of the tasks and of the actions."
)


def make_config(tasks: "list[JaxArcTask]", engine: str, options: dict[str, Any]) -> JaxArcConfig:
    """Return the configuration that the flags describe, with arrays of the size of the largest grid."""
    height, width = smallest_shape(tasks)
    return JaxArcConfig(
        environment=EnvironmentConfig(
            max_episode_steps=options["max_episode_steps"],
            episode_mode=options["mode"],
            auto_reset=AUTO_RESETS[options["auto_reset"]],
            engine="auto" if engine == "numpy" else cast(Engine, engine),
        ),
        dataset=UnifiedDatasetConfig(max_grid_height=height, max_grid_width=width),
        action=UnifiedActionConfig(
            selection_format=options["selection_format"], allowed_operations=options["operations"]
        ),
    )
