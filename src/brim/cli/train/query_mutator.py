"""`brim train query-mutator`: a policy that chooses how to rewrite questions, trained with PPO."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from brim.cli.llm.flags import access_flags
from brim.cli.options import flags, names_callback
from brim.cli.show import json_option, show_facts, show_json
from brim.cli.train.flags import (
    GroupedCommand,
    bare_option,
    quiet_flag,
    record_flags,
    resume_flag,
    schedule_flag,
)

DEFAULT_OUTPUT = "checkpoints/query-mutator"
REWARDS = ("exact", "numeric", "agreement", "similarity", "judge")

ENVIRONMENT = {
    "mutators": "mutators",
    "max_episode_steps": "max_steps",
    "goal": "goal",
    "model": "model",
    "mutator_model": "mutator_model",
    "embedder": "embedder",
    "temperature": "temperature",
    "answer_temperature": "answer_temperature",
    "max_query_tokens": "max_query_tokens",
    "max_answer_tokens": "max_answer_tokens",
    "fallback_query": "fallback_query",
    "fallback_answer": "fallback_answer",
}
"""Names of flags, and of the options of `QueryConfig` that they set."""
PPO = {
    "num_steps": "num_steps",
    "ppo_epoch": "ppo_epoch",
    "num_mini_batch": "num_mini_batch",
    "gamma": "discount",
    "gae_lambda": "gae_lambda",
    "clip_param": "clip_param",
    "value_loss_coef": "value_coef",
    "entropy_coef": "entropy_coef",
    "target_kl": "target_kl",
}
"""Names of flags, and of the options of `PpoConfig` that they set."""
RENAMED = {"max_grad_norm": "clip_norm"}
NOT_OPTIONS = ("resume", "quiet", "as_json")

GROUPS = {
    "Main options": (
        "servers", "model", "data", "reward", "output", "num_processes", "num_steps", "ppo_epoch", "num_mini_batch",
        "num_env_steps", "use_batching", "resume",
    ),
    "Environment": (
        "mutators", "max_episode_steps", "goal", "mutator_model", "judge_model", "embedder", "temperature",
        "answer_temperature", "max_query_tokens", "max_answer_tokens", "fallback_query", "fallback_answer",
        "max_invalid",
    ),
    "Data": ("eval_data", "question_field", "reference_field", "kind_field", "id_field", "eval_questions"),
    "Servers": ("protocol", "key_env", "limit", "timeout", "attempts", "patience", "cache"),
    "PPO": (
        "learning_rate", "schedule", "gamma", "gae_lambda", "clip_param", "value_loss_coef", "entropy_coef",
        "target_kl", "max_grad_norm", "seed",
    ),
    "Checkpoints and records": ("save_every", "keep", "log_every", "tensorboard", "wandb"),
}  # fmt: skip


main_flags = flags(
    click.option("--server", "servers", multiple=True, metavar="URL", help="A model server. Can be repeated."),
    bare_option("-m", "--model", help="The model that answers.  [default: the only one of the servers]"),
    bare_option("-d", "--data", metavar="PATH", help="Questions: JSONL or Parquet.  [default: arithmetic, built in]"),
    bare_option("--reward", type=click.Choice(REWARDS), help="How an answer is rated.  [default: numeric]"),
    bare_option(
        "-o", "--output", metavar="DIR", help=f"Checkpoints, curves and the page.  [default: {DEFAULT_OUTPUT}]"
    ),
    bare_option("--num-processes", type=int, help="Environments; none of them is a process.  [default: 16]"),
    bare_option("--num-steps", type=int, help="Steps of each environment in an update.  [default: 32]"),
    bare_option("--ppo-epoch", type=int, help="Passes over the steps of an update.  [default: 4]"),
    bare_option("--num-mini-batch", type=int, help="Optimizer steps of a pass.  [default: 4]"),
    bare_option(
        "--num-env-steps",
        type=int,
        help="Steps of all environments together, rounded up to whole updates.  [default: 10000]",
    ),
    bare_option(
        "--use-batching/--no-batching",
        "use_batching",
        is_flag=True,
        help="Ask for all environments at once, or one call after another.  [default: use-batching]",
    ),
)
environment_flags = flags(
    bare_option(
        "--mutators",
        callback=names_callback,
        metavar="NAME,...",
        help="Ways to rewrite: names, or paths of templates.  [default: rephrase,shorten,expand,add_context,"
        "break_into_steps,crossover]",
    ),
    bare_option("--max-episode-steps", type=int, help="Rewrites of one question.  [default: 3]"),
    bare_option("--goal", type=float, help="Reward at which a question is answered well enough.  [default: 1]"),
    bare_option("--mutator-model", metavar="NAME", help="The model that rewrites.  [default: that of --model]"),
    bare_option("--judge-model", metavar="NAME", help="The model of --reward judge.  [default: that of --model]"),
    bare_option(
        "--embedder",
        metavar="NAME",
        help="Model of the observations: hash, a directory, or a model of the servers.  [default: hash]",
    ),
    bare_option("--temperature", type=float, help="Sampling temperature of rewrites.  [default: 0]"),
    bare_option("--answer-temperature", type=float, help="Sampling temperature of answers.  [default: 0]"),
    bare_option("--max-query-tokens", type=int, help="Upper limit of a rewritten question.  [default: 256]"),
    bare_option("--max-answer-tokens", type=int, help="Upper limit of an answer.  [default: 256]"),
    bare_option("--fallback-query", is_flag=True, help="Ask a question as it was if rewriting fails."),
    bare_option("--fallback-answer", metavar="TEXT", help="Rate this text if the answer fails."),
    bare_option("--max-invalid", type=float, help="Share of invalid steps beyond which the run stops.  [default: 0.2]"),
)
data_flags = flags(
    bare_option("--eval-data", metavar="PATH", help="Questions for the comparison at the end that are not trained on."),
    bare_option("--question-field", metavar="NAME", help="Field of the question.  [default: question]"),
    bare_option("--reference-field", metavar="NAME", help="Field of the right answer.  [default: reference]"),
    bare_option("--kind-field", metavar="NAME", help="Field of the kind of question, for reports.  [default: kind]"),
    bare_option("--id-field", metavar="NAME", help="Field of the id.  [default: id]"),
    bare_option(
        "--eval-questions",
        type=int,
        help="Most questions to compare before and after rewriting, at the end; 0 for none.  [default: 64]",
    ),
)
asking_flags = flags(
    access_flags,
    bare_option("--limit", type=int, help="Requests at once to each server.  [default: found out by itself]"),
    bare_option("--timeout", type=float, help="Seconds for a call, with all of its retries.  [default: 600]"),
    bare_option("--attempts", type=int, help="Upper limit of the requests for one call.  [default: 8]"),
    bare_option("--patience", type=float, help="Seconds to wait for servers that are unreachable.  [default: 60]"),
    bare_option(
        "--cache/--no-cache",
        "cache",
        is_flag=True,
        help="Keep answers in OUTPUT/calls.cache, so that none is asked for twice.  [default: cache]",
    ),
)
ppo_flags = flags(
    bare_option("--learning-rate", "--lr", type=float, help="Peak learning rate.  [default: 0.001]"),
    schedule_flag,
    bare_option("--gamma", type=float, help="Discount of later rewards.  [default: 0.99]"),
    bare_option("--gae-lambda", type=float, help="Lambda of the advantage estimates.  [default: 0.95]"),
    bare_option("--clip-param", type=float, help="Clipping of the probability ratio.  [default: 0.2]"),
    bare_option("--value-loss-coef", type=float, help="Weight of the value loss.  [default: 0.5]"),
    bare_option("--entropy-coef", type=float, help="Weight of the entropy bonus.  [default: 0.01]"),
    bare_option(
        "--target-kl", type=float, help="KL divergence that ends an update early; 0 for none.  [default: 0.03]"
    ),
    bare_option("--max-grad-norm", type=float, help="Upper limit of the gradient's norm; 0 is no limit.  [default: 1]"),
    bare_option("--seed", type=int, help="[default: 42]"),
)


@click.command(cls=GroupedCommand, groups=GROUPS)
@main_flags
@resume_flag
@environment_flags
@data_flags
@asking_flags
@ppo_flags
@record_flags("Updates", 10)
@quiet_flag
@json_option
@click.pass_context
def query_mutator(ctx: click.Context, **options: Any) -> None:
    """Train a policy that chooses how to rewrite questions.

    A model rewrites each question by one of several templates, a model answers it, and a reward rates the answer. PPO
    learns which template suits which question. All environments ask at the same time, and none waits for another.

    Questions are rows with the fields question, reference and kind. Without --server, a scripted model in this process
    answers, which is no language model: a way to try the command.

    A call that fails makes its step invalid. Nothing is learned from it, and no reward is made up.

    \b
    Examples:
      brim train query-mutator --num-processes 16 --num-env-steps 2000
      brim train query-mutator --server http://127.0.0.1:11434 -m llama3.2 \\
        -d questions.jsonl --reward exact -o run/
      brim train query-mutator --num-processes 16 --no-batching
      brim train query-mutator --resume run/

    Afterwards, open OUTPUT/report.html: what was learned, and questions before and after rewriting.

    Exit status: 0 trained, 1 stopped by a signal with a checkpoint, 2 the options or the data are wrong, or training
    failed.
    """
    config, resume = _config(ctx, options)
    from brim.cli.train.query_progress import query_progress
    from brim.train.query.run import train_query_mutator

    quiet = options["quiet"]
    if not quiet:
        click.echo(f"{'resuming' if resume else 'writing'} {resume or config.output}", err=True)
    with query_progress(config, quiet=quiet) as hooks:
        result = train_query_mutator(config, resume=resume, hooks=hooks)
    facts = _facts(result)
    show_json(facts) if options["as_json"] else show_facts(_lines(facts))
    if result.stopped and not quiet:
        click.echo(f"stopped with a checkpoint; continue with: {ctx.command_path} --resume {config.output}", err=True)
    elif not result.taken and not quiet:
        click.echo(f"this run is finished: all {len(result.updates)} updates were made before", err=True)
    ctx.exit(1 if result.stopped else 0)


def _config(ctx: click.Context, options: dict[str, Any]) -> tuple[Any, Path | None]:
    """Return the options of a new or resumed run, and the checkpoint to resume from."""
    from brim.cli.train.outputs import checkpoint_to_resume, new_output
    from brim.envs.query.config import QueryConfig
    from brim.train.ppo.config import PpoConfig
    from brim.train.query.config import QueryMutatorConfig

    given = {name for name in ctx.params if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    values = {name: options[name] for name in given if name not in NOT_OPTIONS}
    environment = {theirs: values.pop(ours) for ours, theirs in ENVIRONMENT.items() if ours in values}
    ppo = {theirs: values.pop(ours) for ours, theirs in PPO.items() if ours in values}
    values = {RENAMED.get(name, name): value for name, value in values.items()}
    if ppo.get("target_kl") == 0:
        ppo["target_kl"] = None
    if options["resume"] is None:
        values.setdefault("output", new_output(DEFAULT_OUTPUT))
        return QueryMutatorConfig(**values, environment=QueryConfig(**environment), ppo=PpoConfig(**ppo)), None
    from brim.train.checkpoint import read_checkpoint
    from brim.train.query.run import QueryRun

    checkpoint = checkpoint_to_resume(options, DEFAULT_OUTPUT)
    saved = QueryMutatorConfig.from_dict(read_checkpoint(checkpoint, format=QueryRun.format)["config"])
    values["output"] = str(checkpoint.parent)
    if environment:
        values["environment"] = replace(saved.environment, **environment)
    if ppo:
        values["ppo"] = replace(saved.ppo, **ppo)
    return saved.resumed(**values), checkpoint


def _facts(result: Any) -> dict[str, Any]:
    """Return the figures of a run as JSON-like values."""
    from brim.train.query.report import overall_speedup

    last = result.updates[-1] if result.updates else None
    first = result.updates[0] if result.updates else None
    evaluation = result.evaluation
    steps = sum(report.steps for report in result.updates)
    return {
        "updates": len(result.updates),
        "updates_now": result.taken,
        "env_steps": steps,
        "reward_first": None if first is None else first.reward,
        "reward_last": None if last is None else last.reward,
        "invalid": sum(sum(report.invalid.values()) for report in result.updates),
        "calls": sum(report.calls for report in result.updates),
        "cached": sum(report.cached for report in result.updates),
        "speedup": overall_speedup(result.updates),
        "before": None if evaluation is None else evaluation.before,
        "after": None if evaluation is None else evaluation.after,
        "questions_compared": None if evaluation is None else len(evaluation.rated),
        "page": str(result.page),
        "seconds": round(result.seconds, 1),
        "stopped": result.stopped,
    }


def _lines(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the figures that people are shown."""
    rounded = {name: f"{value:.3f}" if isinstance(value, float) else value for name, value in facts.items()}
    lines = {
        "updates": facts["updates"],
        "made now": facts["updates_now"],
        "steps of all environments": facts["env_steps"],
        "reward, first and last update": f"{rounded['reward_first']}, {rounded['reward_last']}",
        "invalid steps": facts["invalid"] or None,
        "calls": facts["calls"],
        "answered by the cache": facts["cached"] or None,
        "faster than one call at a time": None if facts["speedup"] is None else f"{facts['speedup']:.1f} times",
        "reward of the questions as they are": rounded["before"],
        "reward of the rewritten questions": rounded["after"],
        "questions compared": facts["questions_compared"],
        "page": facts["page"],
        "seconds": facts["seconds"],
    }
    return {name: value for name, value in lines.items() if value is not None}
