"""`brim train grpo`: train a model on its own attempts; and `brim train report`: the page of one or several runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from brim.cli.options import flags, names_callback
from brim.cli.show import json_option, show_facts, show_json
from brim.cli.train.flags import (
    CHECKPOINTS,
    GroupedCommand,
    adapter_flags,
    bare_option,
    quiet_flag,
    record_flags,
    resume_flag,
    schedule_flag,
    tokenizer_flag,
)

DEFAULT_OUTPUT = "checkpoints/grpo"
GYM = {
    "gym_host": "host",
    "gym_port": "port",
    "games": "games",
    "lanes": "lanes",
    "max_episode_steps": "max_steps",
}
"""Names of flags, and of the options of `GymConfig` that they set."""
EPISODE_STEPS = 64
NOT_OPTIONS = ("resume", "quiet", "as_json")

GROUPS = {
    "Main options": (
        "model", "dataset", "rewards", "output", "max_steps", "group_size", "prompts_per_step", "max_new_tokens",
        "learning_rate", "resume",
    ),
    "Rollouts": (
        "split", "temperature", "steps_per_rollout", "passes", "max_staleness", "resample", "mask_truncated",
        "gen_batch_size", "reward_timeout", "judge_servers", "judge_model",
    ),
    "Loss": (
        "loss", "scale_rewards", "ratio", "clip_low", "clip_high", "kl_coef", "kl_in", "reference", "old_logprobs",
        "correction", "max_mismatch",
    ),
    "Episodes on a puzzle server instead of a data set": (
        "gym_host", "gym_port", "games", "difficulty_min", "difficulty_max", "lanes", "max_episode_steps",
    ),
    "Responses of a model server": ("servers", "server_model", "key_env", "reload", "reload_every"),
    "Evaluation": (
        "eval_dataset", "eval_split", "eval_prompts", "eval_samples", "eval_temperature", "eval_every", "show_groups",
    ),
    "Model and optimizer": (
        "tokenizer", "lora_rank", "lora_alpha", "lora_targets", "schedule", "warmup_steps", "weight_decay", "clip_norm",
        "token_budget",
        "tf_batch_size", "bf16", "fsdp", "seed",
    ),
    "Checkpoints and records": CHECKPOINTS,
}  # fmt: skip


main_flags = flags(
    bare_option("-m", "--model", help="tiny (built in), a directory, or a name in the local Hugging Face cache."),
    bare_option(
        "-d",
        "--dataset",
        metavar="NAME",
        help="Prompts: arithmetic, arithmetic_r1_template, gsm8k_r1_template, reasoning-gym:TASK, arc:DATA, or a "
        "JSONL file.",
    ),
    click.option(
        "--reward",
        "rewards",
        multiple=True,
        metavar="[WEIGHT*]NAME",
        help="answer, exact, numeric, closeness, format, length:CHARACTERS, math-verify, reasoning-gym, "
        "arc-similarity, arc-format, judge, module:function or file.py:function. Can be repeated; rewards are added "
        "up.  [default: answer]",
    ),
    bare_option(
        "-o", "--output", metavar="DIR", help=f"Checkpoints, curves and the page.  [default: {DEFAULT_OUTPUT}]"
    ),
    bare_option("--max-steps", type=int, help="Optimizer steps.  [default: one pass through the prompts]"),
    bare_option("-g", "--group-size", type=int, help="Responses to each prompt, which are compared.  [default: 8]"),
    bare_option("--prompts-per-step", type=int, help="Prompts that a step is taken on.  [default: 16]"),
    bare_option("--max-new-tokens", type=int, help="Upper limit of a response; of a move in episodes.  [default: 256]"),
    bare_option(
        "--learning-rate",
        "--lr",
        type=float,
        help="[default: 1e-6 for 7 billion weights, more for smaller models; 10 times as much with LoRA]",
    ),
)
rollout_flags = flags(
    bare_option("--split", help="Split of the data set to train on.  [default: train]"),
    bare_option("--temperature", type=float, help="Sampling temperature.  [default: 1]"),
    bare_option("--steps-per-rollout", type=int, help="Steps that a rollout has prompts for.  [default: 1]"),
    bare_option("--passes", type=int, help="Times that a rollout is trained on.  [default: 1]"),
    bare_option(
        "--max-staleness", type=int, help="Largest age of a response in training, in optimizer steps.  [default: 8]"
    ),
    bare_option(
        "--resample",
        type=int,
        help="Rounds in which groups with equal rewards are replaced; 0 trains on fewer groups.  [default: 3]",
    ),
    bare_option(
        "--mask-truncated/--train-truncated",
        "mask_truncated",
        is_flag=True,
        help="Leave responses that were cut off out of the loss.  [default: mask; train for episodes]",
    ),
    bare_option("--gen-batch-size", type=int, help="Responses that are generated at once.  [default: 64]"),
    bare_option("--reward-timeout", type=float, help="Seconds for one call of a reward; 0 is no limit.  [default: 10]"),
    click.option(
        "--judge-server", "judge_servers", multiple=True, metavar="URL", help="Server of the reward judge. Repeatable."
    ),
    bare_option("--judge-model", metavar="NAME", help="The model that judges.  [default: the only one of the servers]"),
)
loss_flags = flags(
    bare_option(
        "--loss",
        type=click.Choice(["grpo", "dr_grpo", "dapo"]),
        help="How tokens are averaged: over a response and then over responses; summed and divided by "
        "max-new-tokens; over all tokens of the step.  [default: dapo]",
    ),
    bare_option(
        "--scale-rewards",
        type=click.Choice(["group", "batch", "none"]),
        help="Standard deviation that divides advantages.  [default: group; none for dr_grpo]",
    ),
    bare_option(
        "--ratio", type=click.Choice(["token", "sequence"]), help="Level of importance ratios.  [default: token]"
    ),
    bare_option("--clip-low", type=float, help="Clipping of ratios below 1.  [default: 0.2]"),
    bare_option("--clip-high", type=float, help="Clipping of ratios above 1.  [default: 0.2]"),
    bare_option("--kl-coef", type=float, help="Weight of the KL divergence to the reference.  [default: 0]"),
    bare_option("--kl-in", type=click.Choice(["loss", "reward"]), help="Where it counts.  [default: loss]"),
    bare_option(
        "--reference",
        metavar="MODEL",
        help="Model of the KL divergence.  [default: the model as it is before training]",
    ),
    bare_option(
        "--old-logprobs",
        type=click.Choice(["decode", "score"]),
        help="Old log-probabilities: those of decoding, or scored again.  [default: decode; score with --server]",
    ),
    bare_option(
        "--correction",
        type=float,
        help="Upper limit of importance weights between decoding and scoring; 0 for none.  [default: 2]",
    ),
    bare_option(
        "--max-mismatch",
        type=float,
        help="Mean difference of their log-probabilities that ends the run, in nats.  [default: 0.1]",
    ),
)
gym_flags = flags(
    bare_option("--gym-host", metavar="HOST", help="Host of the puzzle server.  [default: localhost]"),
    bare_option("--gym-port", type=int, help="Port of the puzzle server.  [default: 8023]"),
    bare_option("--games", callback=names_callback, metavar="NAME,...", help="Games to play, such as lights."),
    bare_option("--difficulty-min", type=float, help="Easy is 0.3, medium 0.5, hard 0.7.  [default: 0]"),
    bare_option("--difficulty-max", type=float, help="[default: 1]"),
    bare_option("--lanes", type=int, help="Episodes that are played at once.  [default: 8]"),
    bare_option(
        "--max-episode-steps", type=int, help=f"Upper limit of the moves of an episode.  [default: {EPISODE_STEPS}]"
    ),
)
server_flags = flags(
    click.option(
        "--server", "servers", multiple=True, metavar="URL", help="OpenAI-compatible server, such as vLLM. Repeatable."
    ),
    bare_option("--server-model", metavar="NAME", help="Its model.  [default: the only one]"),
    bare_option("--key-env", metavar="NAME", help="Environment variable that holds the API key."),
    bare_option(
        "--reload",
        metavar="SPEC",
        help="module:function or file.py:function that makes the servers load (directory, step).",
    ),
    bare_option("--reload-every", type=int, help="Optimizer steps between reloads.  [default: 1]"),
)
evaluation_flags = flags(
    bare_option("--eval-dataset", metavar="NAME", help="Held-out prompts.  [default: another split of the data set]"),
    bare_option("--eval-split", help="[default: test]"),
    bare_option("--eval-prompts", type=int, help="Held-out tasks of an evaluation; 0 for none.  [default: 64]"),
    bare_option("--eval-samples", type=int, help="Attempts at each of them.  [default: 1]"),
    bare_option("--eval-temperature", type=float, help="0 takes the likeliest token.  [default: 0]"),
    bare_option("--eval-every", type=int, help="Steps between evaluations.  [default: before and after training only]"),
    bare_option("--show-groups", type=int, help="Groups of a rollout that the page can show.  [default: 4]"),
)
optimizer_flags = flags(
    schedule_flag,
    bare_option("--warmup-steps", type=int, help="Steps of rising learning rate.  [default: 3% of all]"),
    bare_option("--weight-decay", type=float, help="Weight decay of matrices.  [default: 0]"),
    bare_option("--clip-norm", type=float, help="Upper limit of the gradient's norm; 0 is no limit.  [default: 1]"),
    bare_option("--token-budget", type=int, help="Tokens of a microbatch in training.  [default: 8192]"),
    bare_option("--tf-batch-size", type=int, help="Responses of a microbatch in training.  [default: 64]"),
    bare_option("--bf16", is_flag=True, help="Compute in bfloat16; weights stay in float32."),
    bare_option(
        "--fsdp", is_flag=True, help="Shard the model over the ranks; each holds a whole copy to generate with."
    ),
    bare_option("--seed", type=int, help="[default: 42]"),
)


@click.command(cls=GroupedCommand, groups=GROUPS)
@main_flags
@resume_flag
@rollout_flags
@loss_flags
@gym_flags
@server_flags
@evaluation_flags
@tokenizer_flag
@adapter_flags
@optimizer_flags
@record_flags("Steps", 50)
@bare_option("--record-samples", is_flag=True, help="Write which responses each step was trained on.")
@quiet_flag
@json_option
@click.pass_context
def grpo(ctx: click.Context, **options: Any) -> None:
    """Train a causal model on its own attempts, with rewards.

    The model writes several responses to each prompt; each gets a reward; what is better than the others of its group
    becomes more likely (group relative policy optimization). Responses that share a prompt are trained on in one
    forward pass, which reads the prompt once.

    A reward is a function (prompt, response, example) -> number, or parts by name. One that raises, or takes too long,
    fails for that response alone: it is counted and not trained on.

    \b
    Examples:
      brim train grpo -m run/model -d arithmetic --max-new-tokens 16 -o grpo/
      brim train grpo -m Qwen/Qwen2.5-0.5B-Instruct -d tasks.jsonl \\
        --reward math-verify --reward 0.2*format --lora-rank 16 -o grpo/
      brim train grpo -m run/model -d tasks.jsonl --reward rewards.py:score
      brim train grpo -m run/model --games lights --max-steps 100
      torchrun --nproc-per-node 8 -m brim train grpo -m run/model -d arithmetic
      brim train grpo --resume grpo/

    Afterwards, open OUTPUT/report.html; `brim train report` compares several runs.

    Exit status: 0 trained, 1 stopped by a signal with a checkpoint, 2 the options or the data are wrong, or training
    failed.
    """
    config, resume = _config(ctx, options)
    from brim.cli.train.grpo_progress import grpo_progress
    from brim.plan.distributed import DistributedConfig
    from brim.train.grpo.run import train_grpo

    quiet = options["quiet"] or DistributedConfig.from_env().rank > 0
    if not quiet:
        click.echo(f"{'resuming' if resume else 'writing'} {resume or config.output}", err=True)
    with grpo_progress(config, quiet=quiet) as hooks:
        result = train_grpo(config, resume=resume, hooks=hooks)
    if DistributedConfig.from_env().rank == 0:
        facts = _facts(result)
        show_json(facts) if options["as_json"] else show_facts(_lines(facts))
        if result.stopped and not quiet:
            click.echo(
                f"stopped with a checkpoint; continue with: {ctx.command_path} --resume {config.output}", err=True
            )
        elif not result.taken and not quiet:
            click.echo(f"this run is finished: all {result.steps} steps were taken before", err=True)
    ctx.exit(1 if result.stopped else 0)


def _config(ctx: click.Context, options: dict[str, Any]) -> tuple[Any, Path | None]:
    """Return the options of a new or resumed run, and the checkpoint to resume from."""
    from brim.cli.train.outputs import checkpoint_to_resume, new_output

    given = {name for name in ctx.params if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    values = {name: options[name] for name in given if name not in NOT_OPTIONS}
    gym = {theirs: values.pop(ours) for ours, theirs in GYM.items() if ours in values}
    ends = {name: values.pop(name) for name in ("difficulty_min", "difficulty_max") if name in values}
    if values.get("reward_timeout") == 0:
        values["reward_timeout"] = None
    if options["resume"] is None:
        values.setdefault("output", new_output(DEFAULT_OUTPUT))
        if gym or ends:
            values["gym"] = _gym(gym, ends, values.get("seed", 42))
        if not values.get("model"):
            raise click.UsageError("name a model: --model")
        if not values.get("dataset") and "gym" not in values:
            raise click.UsageError("name a data set: --dataset, such as arithmetic; or games to play: --games")
        from brim.train.grpo.config import GrpoConfig

        return GrpoConfig(**values), None
    from brim.train.checkpoint import load_saved
    from brim.train.grpo.config import GrpoConfig

    checkpoint = checkpoint_to_resume(options, DEFAULT_OUTPUT)
    saved = load_saved(checkpoint)
    if "grpo" not in saved.sections:
        raise click.UsageError(f"{checkpoint} belongs to another kind of run: brim train sft --resume {checkpoint}")
    config = GrpoConfig.from_dict(saved.config)
    values["output"] = str(checkpoint.parent)
    if gym or ends:
        if config.gym is None:
            raise click.UsageError("this run answers prompts; leave out the options of a puzzle server")
        values["gym"] = replace(config.gym, **gym, **_range(ends, config.gym.difficulty_range))
    return config.resumed(**values), checkpoint


def _gym(gym: dict[str, Any], ends: dict[str, float], seed: int) -> Any:
    from brim.envs.puzzle.config import GymConfig

    options: dict[str, Any] = {"max_steps": EPISODE_STEPS, "seed": seed, **gym, **_range(ends, (0.0, 1.0))}
    return GymConfig(**options)


def _range(ends: dict[str, float], known: tuple[float, float]) -> dict[str, Any]:
    low, high = ends.get("difficulty_min", known[0]), ends.get("difficulty_max", known[1])
    return {"difficulty_range": (low, high)} if ends else {}


def _facts(result: Any) -> dict[str, Any]:
    """Return the figures of a run as JSON-like values."""
    reports = result.rollouts
    before, after = result.before, result.after
    trained = sum(report.trained for report in reports)
    return {
        "model": str(result.model),
        "page": str(result.page),
        "steps": result.steps,
        "taken_now": result.taken,
        "rollouts": len(reports),
        "attempts": sum(report.attempts for report in reports),
        "trained": trained,
        "dead_groups": sum(report.dead for report in reports),
        "failures": sum(sum(report.failures.values()) for report in reports),
        "reward_first": reports[0].reward if reports else None,
        "reward_last": reports[-1].reward if reports else None,
        "held_out_before": None if before is None else before.reward,
        "held_out_after": None if after is None else after.reward,
        "held_out_error": None if after is None else after.reward_error,
        "held_out_tasks": None if after is None else after.tasks,
        "rollout_tokens": sum(report.rollout_tokens for report in reports),
        "seconds": round(result.seconds, 1),
        "stopped": result.stopped,
        "ended_early": result.ended_early,
    }


def _lines(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the figures that people are shown."""
    shown = {name: f"{value:.3f}" if isinstance(value, float) else value for name, value in facts.items()}
    held_out = None
    if facts["held_out_after"] is not None:
        error = "" if facts["held_out_error"] is None else f" ± {facts['held_out_error']:.3f}"
        held_out = f"{shown['held_out_before']} -> {shown['held_out_after']}{error} ({facts['held_out_tasks']} tasks)"
    lines = {
        "model": facts["model"],
        "page": facts["page"],
        "steps": facts["steps"],
        "taken now": facts["taken_now"],
        "reward, first and last rollout": f"{shown['reward_first']}, {shown['reward_last']}",
        "held-out reward": held_out,
        "attempts": facts["attempts"],
        "trained on": facts["trained"],
        "groups with equal rewards": facts["dead_groups"] or None,
        "attempts without a reward": facts["failures"] or None,
        "seconds": facts["seconds"],
    }
    return {name: value for name, value in lines.items() if value is not None}


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("grpo.html"), show_default=True,
    help="The page to write.",
)  # fmt: skip
def report(runs: tuple[Path, ...], output: Path) -> None:
    """Write a page that compares GRPO runs.

    Each RUN is the output of `brim train grpo`, finished or still running; several of them, such as those of several
    seeds, are drawn together with their mean. The page is one file that needs nothing else.

    \b
    Examples:
      brim train report grpo/ -o grpo.html
      brim train report seed-1/ seed-2/ seed-3/ -o seeds.html

    Exit status: 0 written, 2 a run cannot be read.
    """
    from brim.core.atomic import atomic_file
    from brim.train.grpo.page import render_grpo_page
    from brim.train.grpo.page.read import read_run

    page = render_grpo_page([read_run(run) for run in runs])
    with atomic_file(output) as file:
        file.write(page.encode())
    click.echo(str(output))
