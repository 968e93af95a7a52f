"""The `lazarus` command: a tree of other names for the commands of `brim`."""

from brim.cli.app import Tree, run

TREE: Tree = {
    "data": (
        "Prepare data.",
        {
            "lengths": (
                "Length caches.",
                {
                    "build": ("brim.cli.lengths:build", "Tokenize a data set and keep the lengths."),
                    "stats": ("brim.cli.lengths:stats", "Summarize a length cache."),
                },
            ),
            "batchplan": (
                "Batch plans.",
                {
                    "build": ("brim.cli.plan.build:build", "Build a plan from lengths."),
                    "info": ("brim.cli.plan.info:info", "Show the contents of a plan."),
                    "verify": ("brim.cli.plan.verify:verify", "Check that a plan belongs to lengths and options."),
                    "shard": ("brim.cli.plan.build:shard", "Write one plan for each rank."),
                },
            ),
            "batch": (
                "Write batches as files.",
                {"generate": ("brim.cli.batch:write", "Write the batches of a plan as NPZ files.")},
            ),
            "batching": (
                "Analyze padding.",
                {
                    "histogram": ("brim.cli.lengths:histogram", "Draw the histogram of the lengths."),
                    "analyze": ("brim.cli.plan.analyze:analyze", "Compare ways of batching, and recommend one."),
                    "suggest": ("brim.cli.plan.analyze:suggest", "Find the optimal bucket edges."),
                },
            ),
        },
    ),
    "gym": (
        "Play puzzles on a server.",
        {
            "run": ("brim.cli.gym.run:run", "Play, and make a training sample of every move."),
            "info": ("brim.cli.gym.info:info", "Show the games, the policies and the server."),
        },
    ),
    "train": ("Train a model.", {"sft": ("brim.cli.train.sft:sft", "Fine-tune a causal model.")}),
}

HELP = """The commands of brim under the names of lazarus.

\b
Examples:
  lazarus data lengths build -d train.jsonl -t gpt2 -o lengths.jsonl
  lazarus data batchplan build -l lengths.jsonl -e 3 -b 4096 -o batch_plan/
"""


def main() -> None:
    """Run the console script."""
    run("lazarus", HELP, TREE)
