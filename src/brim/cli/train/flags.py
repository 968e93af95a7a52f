"""Flags that the training commands share, and help in groups: the options that matter first, then one group for each
subject.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from brim.cli.options import Decorator, attention_option, flags, names_callback


class GroupedCommand(click.Command):
    """A command whose help lists its options under titles. Options in no group are under "Other"."""

    def __init__(self, *args: Any, groups: Mapping[str, Sequence[str]], **options: Any) -> None:
        super().__init__(*args, **options)
        self.groups = groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = {
            param.name: param.get_help_record(ctx) for param in self.get_params(ctx) if isinstance(param, click.Option)
        }
        rows = {name: record for name, record in shown.items() if record is not None}
        for title, names in self.groups.items():
            with formatter.section(title):
                formatter.write_dl([rows.pop(name) for name in names])
        with formatter.section("Other"):
            formatter.write_dl(list(rows.values()))


model_flags = flags(
    click.option(
        "-m",
        "--model",
        metavar="MODEL",
        help="tiny (built in), a directory, or a name in the local Hugging Face cache.",
    ),
    click.option("-d", "--data", metavar="PATH", help="JSONL, Parquet, or a Hugging Face data set on disk."),
)
tokenizer_flag = click.option(
    "-t", "--tokenizer", help="As for brim lengths build.  [default: the model's own; for tiny the plan's, or byte]"
)


def optimizer_flags(schedule: str, schedule_help: str) -> Decorator:
    """Return the flags of the optimizer. The default of the schedule depends on the command."""
    return flags(
        click.option("--max-steps", type=int, help="Stop after this many optimizer steps."),
        click.option(
            "--learning-rate",
            "--lr",
            type=float,
            help="Peak learning rate.  [default: 2e-5; with LoRA 2e-4; for tiny 1e-3]",
        ),
        click.option(
            "--schedule",
            type=click.Choice(["cosine", "linear", "constant"]),
            default=schedule,
            show_default=True,
            help=schedule_help,
        ),
        click.option("--warmup-steps", type=int, help="Steps of rising learning rate.  [default: 3% of all]"),
        click.option(
            "--weight-decay",
            type=float,
            default=0.0,
            show_default=True,
            help="Weight decay of matrices; vectors do not decay.",
        ),
        click.option(
            "--clip-norm",
            type=float,
            default=1.0,
            show_default=True,
            help="Upper limit of the gradient's norm; 0 is no limit.",
        ),
        click.option(
            "--tokens-per-step",
            type=int,
            help="Accumulate gradients over this many tokens, on all ranks.  [default: one microbatch for each rank]",
        ),
        click.option("--bf16", is_flag=True, help="Compute in bfloat16; weights stay in float32."),
    )


adapter_flags = flags(
    click.option(
        "--lora-rank",
        type=int,
        default=0,
        show_default=True,
        help="Rank of LoRA adapters to train; 0 trains all weights.",
    ),
    click.option("--lora-alpha", type=float, help="Scale of the LoRA adapters.  [default: twice the rank]"),
    click.option(
        "--lora-targets",
        callback=names_callback,
        metavar="NAME,...",
        help="Layers with adapters.  [default: all linear ones but the head]",
    ),
)
lora_flags = flags(
    adapter_flags,
    click.option(
        "--lora-dropout", type=float, default=0.0, show_default=True, help="Dropout rate of the LoRA adapters."
    ),
)


def bare_option(*names: str, **about: Any) -> Decorator:
    """Return a flag without a default: the options of the run have the defaults, so that a resumed run can tell what
    was given.
    """
    return click.option(*names, default=None, **about)


wandb_flag = click.option(
    "--wandb", metavar="PROJECT", help="Send the curves to this project of Weights & Biases, too."
)


schedule_flag = bare_option(
    "--schedule",
    type=click.Choice(["cosine", "linear", "constant"]),
    help="Schedule of the learning rate.  [default: constant]",
)


def record_flags(unit: str, save_every: int) -> Decorator:
    """Return the flags of checkpoints and curves without defaults. `unit` is what the run counts, such as Steps."""
    return flags(
        bare_option("--save-every", type=int, help=f"{unit} between checkpoints.  [default: {save_every}]"),
        bare_option("--keep", type=int, help="Number of checkpoints to keep.  [default: 2]"),
        bare_option("--log-every", type=int, help=f"{unit} between points of the curves.  [default: 1]"),
        bare_option(
            "--tensorboard/--no-tensorboard",
            "tensorboard",
            is_flag=True,
            help="Curves in OUTPUT/tensorboard.  [default: tensorboard]",
        ),
        wandb_flag,
    )


def checkpoint_flags(save_every: int, save_help: str) -> Decorator:
    """Return the flags of checkpoints and records. The default of --save-every depends on the command."""
    return flags(
        click.option("--save-every", type=int, default=save_every, show_default=True, help=save_help),
        click.option("--keep", type=int, default=2, show_default=True, help="Number of checkpoints to keep."),
        click.option(
            "--log-every", type=int, default=10, show_default=True, help="Steps between points of the curves."
        ),
        click.option(
            "--tensorboard/--no-tensorboard", default=True, show_default=True, help="Curves in OUTPUT/tensorboard."
        ),
        wandb_flag,
        click.option("--record-samples", is_flag=True, help="Write which samples each step was trained on."),
    )


resume_flag = click.option(
    "--resume",
    is_flag=False,
    flag_value="",
    metavar="[DIR]",
    help="Resume from the last checkpoint of the output, or from this one.",
)
compute_flags = flags(
    click.option(
        "--num-workers",
        type=int,
        default=0,
        show_default=True,
        help="Worker processes; 0 makes batches in a thread, which is faster.",
    ),
    attention_option,
)
quiet_flag = click.option("-q", "--quiet", is_flag=True, help="No progress.")

BATCHING = (
    "bucket_edges", "num_buckets", "predictable", "overflow", "overflow_max",
    "pack_max_len", "pack_mode", "pack_max_sequences", "pack_time_limit", "pad_to_multiple", "max_sequences",
    "window", "window_padding", "shuffle", "drop_last", "microbatches_per_step", "cost", "measured", "remainder",
    "tokens_per_step",
)  # fmt: skip
DATA = ("tokenizer", "shape", "text_field", "prompt_field", "response_field", "id_field")
OPTIMIZER = ("max_steps", "schedule", "warmup_steps", "weight_decay", "clip_norm", "seed")
LORA = ("lora_alpha", "lora_dropout", "lora_targets")
CHECKPOINTS = ("save_every", "keep", "log_every", "tensorboard", "wandb", "record_samples")
