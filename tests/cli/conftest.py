"""Files of a small pipeline, made by the commands once for all tests of a process."""

import pytest
from support.forked import run


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory):
    """A directory with train.jsonl of 300 rows, and by gpt2 lengths.jsonl and batch_plan/."""
    folder = tmp_path_factory.mktemp("pipeline")
    run("brim sample-data -n 300 -o train.jsonl", folder)
    run("lazarus data lengths build -d train.jsonl -t gpt2 -o lengths.jsonl", folder)
    run("lazarus data batchplan build -l lengths.jsonl -e 3 -b 4096 -o batch_plan/", folder)
    return folder
