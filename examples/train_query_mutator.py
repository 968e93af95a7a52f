"""Train a policy that chooses how to rewrite questions: `brim train query-mutator` as a script.

    python examples/train_query_mutator.py --num-processes 16 --use-batching
    python examples/train_query_mutator.py --num-processes 16 --no-batching
    python examples/train_query_mutator.py --help

Without --server, a scripted model in this process answers.
"""

import sys

from brim.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["train", "query-mutator"]
    main()
