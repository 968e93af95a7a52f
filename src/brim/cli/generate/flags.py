"""The flags of `brim generate`, in the groups in which its help shows them."""

from typing import Any

import click

from brim.cli.llm.flags import access_flags
from brim.cli.options import flags
from brim.cli.show import json_option
from brim.generate.config import GenerationConfig
from brim.generate.prompts.example import SPLITS
from brim.llm.config import PoolConfig

DEFAULT = GenerationConfig()
SERVERS = PoolConfig()
GROUPS = {
    "Main options": (
        "model", "prompts", "samples", "output",
        "max_new_tokens", "temperature", "seed", "logprobs", "report", "server",
    ),
    "Data sets": ("dataset", "split", "num_prompts", "replace"),
    "Sampling": ("top_p", "top_k", "min_p", "greedy", "stop", "stop_tokens", "chat", "tokenizer"),
    "Speed and memory": ("gen_batch_size", "gen_token_budget", "memory_budget", "bf16", "threads"),
    "Model servers": ("protocol", "key_env", "limit", "timeout", "attempts"),
}  # fmt: skip

ONLY_HERE = ("gen_batch_size", "gen_token_budget", "memory_budget", "bf16", "threads", "tokenizer")
"""Options that have no effect with --server."""
ONLY_SERVED = ("protocol", "key_env", "limit", "timeout", "attempts")
"""Options that have no effect without --server."""
ONLY_DATASET = ("split", "num_prompts", "replace")
"""Options that have no effect without --dataset."""
ONLY_SAMPLED = ("temperature", "top_p", "top_k", "min_p")
"""Options that have no effect with --greedy."""


def _rows(ctx: click.Context, param: click.Parameter, value: str) -> Any:
    """Read a number of rows, or the word auto."""
    if value == "auto":
        return value
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number nor auto", ctx, param) from None


generate_flags = flags(
    click.option(
        "-m",
        "--model",
        metavar="MODEL",
        help="tiny (built in, untrained), a directory, or a name in the local Hugging Face cache; with --server, the "
        "name of its model.",
    ),
    click.option(
        "-p",
        "--prompts",
        metavar="FILE",
        help="JSONL or Parquet with prompt, question or messages in each row, and perhaps answer, id and stop.",
    ),
    click.option("-G", "--samples", type=int, default=8, show_default=True, help="Number of responses to each prompt."),
    click.option("-o", "--output", metavar="FILE", help="JSONL to write: one line for each response."),
    click.option(
        "--max-new-tokens",
        type=int,
        default=DEFAULT.max_new_tokens,
        show_default=True,
        help="Upper limit of the tokens of a response.",
    ),
    click.option(
        "--temperature",
        type=float,
        default=DEFAULT.temperature,
        show_default=True,
        help="Sampling temperature; 0 takes the likeliest token.",
    ),
    click.option(
        "--seed",
        type=int,
        default=0,
        show_default=True,
        help="Seed of the responses, and of the choice of prompts from a data set.",
    ),
    click.option(
        "--logprobs",
        is_flag=True,
        help="Write token ids, log-probs, sampling log-probs and entropies of every token, too. A model of this "
        "machine reads each response once more for them.",
    ),
    click.option(
        "--report",
        metavar="FILE",
        help="Page to write about the output. With -o alone, of an output that is finished.",
    ),
    click.option(
        "--server",
        "server",
        multiple=True,
        metavar="URL",
        help="Generate with the model of this server. Can be repeated.",
    ),
    click.option(
        "--dataset",
        metavar="NAME",
        help="Data set of prompts: arithmetic, gsm8k_r1_template, reasoning-gym:TASK, arc:DATA.",
    ),
    click.option(
        "--split", type=click.Choice(SPLITS), default="train", show_default=True, help="Split of the data set."
    ),
    click.option("--num-prompts", type=int, help="Number of prompts to draw from the data set.  [default: all]"),
    click.option("--replace", is_flag=True, help="Draw prompts with replacement."),
    click.option(
        "--top-p",
        type=float,
        default=DEFAULT.top_p,
        show_default=True,
        help="Sample from the likeliest tokens whose probabilities first reach this sum.",
    ),
    click.option(
        "--top-k",
        type=int,
        default=DEFAULT.top_k,
        show_default=True,
        help="Sample from this many likeliest tokens; 0 is no limit.",
    ),
    click.option(
        "--min-p",
        type=float,
        default=DEFAULT.min_p,
        show_default=True,
        help="Sample from tokens whose probability is at least this share of the largest one.",
    ),
    click.option("--greedy", is_flag=True, help="Take the likeliest token at every step."),
    click.option(
        "--stop",
        multiple=True,
        metavar="TEXT",
        help="Text that ends a response. Can be repeated.  [default: the stops of the prompts]",
    ),
    click.option(
        "--stop-token",
        "stop_tokens",
        type=int,
        multiple=True,
        metavar="ID",
        help="Token id that ends a response. Can be repeated.",
    ),
    click.option("--chat", is_flag=True, help="Send each prompt as a message of the user, by the chat template."),
    click.option(
        "-t",
        "--tokenizer",
        metavar="NAME",
        help="Tokenizer, by the names that brim lengths build knows.  [default: the model's own; byte for tiny]",
    ),
    click.option(
        "--gen-batch-size",
        callback=_rows,
        default=str(DEFAULT.gen_batch_size),
        show_default=True,
        metavar="N|auto",
        help="Upper limit of the responses that are generated at once; auto measures which number is fast.",
    ),
    click.option(
        "--gen-token-budget", type=int, help="Upper limit of the tokens whose keys and values are kept in memory."
    ),
    click.option("--memory-budget", type=int, metavar="BYTES", help="Upper limit of the memory that a batch needs."),
    click.option(
        "--bf16",
        is_flag=True,
        help="Load the weights in bfloat16: half of the memory. It rounds so much that responses can depend on the "
        "batch size, and on when a run was killed.",
    ),
    click.option("--threads", type=int, help="Threads of torch.  [default: torch's own choice]"),
    access_flags,
    click.option("--limit", type=int, help="Requests at once to each server.  [default: found out by itself]"),
    click.option(
        "--timeout",
        type=float,
        default=SERVERS.timeout,
        show_default=True,
        help="Seconds for a response, with all retries of its request.",
    ),
    click.option(
        "--attempts",
        type=int,
        default=SERVERS.attempts,
        show_default=True,
        help="Upper limit of the requests for one response.",
    ),
    click.option("--wandb", metavar="PROJECT", help="Log curves to this project of Weights & Biases."),
    click.option(
        "--force", is_flag=True, help="Replace an output that brim did not write, or that was made with other options."
    ),
    click.option("-q", "--quiet", is_flag=True, help="No progress."),
    json_option,
)
