"""The `brim` command. This is the only folder that prints.

Results go to stdout, messages and progress to stderr. Exit status: 0 done, 1 checked and the answer is no, 2 wrong
options or data. Until a command has checked its options, click and options are loaded and nothing that takes long: the
module of a command imports what does the work inside its functions.
"""

from brim.cli.app import Tree, run

TREE: Tree = {
    "lengths": (
        "Measure how long every sample is.",
        {
            "build": ("brim.cli.lengths:build", "Tokenize a data set and keep the lengths."),
            "stats": ("brim.cli.lengths:stats", "Summarize a length cache."),
            "histogram": ("brim.cli.lengths:histogram", "Draw the histogram of the lengths."),
        },
    ),
    "plan": (
        "Plan which samples share a batch.",
        {
            "build": ("brim.cli.plan.build:build", "Build a plan from lengths."),
            "info": ("brim.cli.plan.info:info", "Show the contents of a plan."),
            "verify": ("brim.cli.plan.verify:verify", "Check that a plan belongs to lengths and options."),
            "shard": ("brim.cli.plan.build:shard", "Write one plan for each rank."),
            "analyze": ("brim.cli.plan.analyze:analyze", "Compare ways of batching, and recommend one."),
            "suggest": ("brim.cli.plan.analyze:suggest", "Find the optimal bucket edges."),
            "report": ("brim.cli.plan.report:report", "Write a report about a plan, for a browser."),
        },
    ),
    "batch": (
        "Write and inspect batches as files.",
        {
            "write": ("brim.cli.batch:write", "Write the batches of a plan as NPZ files."),
            "show": ("brim.cli.batch:show", "Show the contents of a directory of batches."),
        },
    ),
    "generate": ("brim.cli.generate.command:generate", "Generate responses to prompts, with log-probs."),
    "train": (
        "Train a model.",
        {
            "sft": ("brim.cli.train.sft:sft", "Fine-tune a causal model."),
            "online": ("brim.cli.train.online:online", "Fine-tune a causal model on puzzles that it plays."),
            "grpo": ("brim.cli.train.grpo:grpo", "Train a causal model on its own attempts, with rewards."),
            "report": ("brim.cli.train.grpo:report", "Write a page that compares GRPO runs."),
            "query-mutator": (
                "brim.cli.train.query_mutator:query_mutator",
                "Train a policy that chooses how to rewrite questions.",
            ),
            "arc": ("brim.cli.train.arc:arc", "Train an agent that solves small ARC tasks."),
            "distill": (
                "brim.cli.train.distill:distill",
                "Distill a learning algorithm into a model that learns in context.",
            ),
        },
    ),
    "gym": (
        "Play puzzles on a server.",
        {
            "run": ("brim.cli.gym.run:run", "Play, and make a training sample of every move."),
            "info": ("brim.cli.gym.info:info", "Show the games, the policies and the server."),
            "serve": ("brim.cli.gym.serve:serve", "Run a puzzle server."),
        },
    ),
    "arc": (
        "Play ARC tasks in many environments at once.",
        {
            "info": ("brim.cli.arc.info:info", "Show the data sets, the operations, the engines, a task."),
            "rollout": ("brim.cli.arc.rollout:rollout", "Play random actions, and report what happened."),
            "play": ("brim.cli.arc.play:play", "Solve a task yourself, in the terminal."),
            "render": ("brim.cli.arc.render:render", "Draw a task or an episode; write a picture or a page."),
            "samples": ("brim.cli.arc.samples:samples", "Make training data of recorded episodes."),
            "bench": ("brim.cli.arc.bench:bench", "Measure the engines that can be used here."),
        },
    ),
    "llm": (
        "Ask language models, many questions at once.",
        {
            "map": ("brim.cli.llm.map:map_rows", "Ask a model about every row of a file."),
            "embed": ("brim.cli.llm.embed:embed", "Compute the vector of every row of a file."),
            "check": ("brim.cli.llm.check:check", "Look at model servers: are they there, and how fast."),
            "bench": ("brim.cli.llm.bench:bench", "Measure throughput and latency by requests at once."),
            "serve": ("brim.cli.llm.serve:serve", "Run a llama.cpp server on this machine."),
        },
    ),
    "bench": (
        "Measure this machine.",
        {"batch-size": ("brim.cli.bench:batch_size", "Find the largest token budget that fits.")},
    ),
    "sample-data": ("brim.cli.sample_data:sample_data", "Write a sample data set."),
    "demo": ("brim.cli.demo:demo", "Run the whole pipeline on bundled data."),
}

HELP = """brim fills every batch to the brim.

\b
Examples:
  brim sample-data -n 2000 -o train.jsonl
  brim lengths build -d train.jsonl -t byte -o lengths.brim
  brim plan build -l lengths.brim -b 16384 -e 3 -o plan/
  brim plan info -p plan/

Exit status: 0 done, 1 checked and the answer is no, 2 wrong options or data.
"""


def main() -> None:
    """Run the console script."""
    run("brim", HELP, TREE)
