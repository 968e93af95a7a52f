"""`BucketSampler` over an HDF5 file: the same batches with any number of workers, however they are started, and after a
kill.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter

import numpy as np
import pytest
import torch
from support.forked import CONTEXT
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from brim import BucketSampler, MismatchError, OptionError, collate_compressed_batch
from brim.data.nested.open import open_nested, write_nested

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata calls it
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),  # Python 3.12 about threads of the parent
    # On a machine with one core.
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes:UserWarning"),
]

BUDGET = 300


def histories(count=240):
    random = np.random.default_rng(0)
    for number in range(count):
        depth = number % 4
        sizes = random.integers(5, 30, depth + 1).tolist()
        stretches = [{"states": np.full((n, 2), number), "rewards": random.random(n).astype(np.float32)} for n in sizes]
        yield {
            "id": f"h{number}",
            "compression_depth": depth,
            "compression_stages": stretches[:-1],
            "context": stretches[-1],
        }


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("nested") / "histories.h5"
    write_nested(path, histories())
    return path


def loading(path, *, num_workers=0, context=None, state=None, kind=DataLoader, **options):
    dataset = open_nested(path)
    dataset[0]  # a handle is open before workers start
    sampler = BucketSampler(dataset, **({"token_budget": BUDGET} | options))
    if state is not None:
        sampler.load_state_dict(state)
    workers = (
        {"num_workers": num_workers, "multiprocessing_context": context, "persistent_workers": True}
        if num_workers
        else {}
    )
    return kind(dataset, batch_sampler=sampler, collate_fn=collate_compressed_batch, **workers)


def equal(first, second):
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(equal, first, second))
    return torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second


@pytest.mark.parametrize(
    ("num_workers", "context"),
    [(2, "fork"), (4, "fork"), (2, "spawn"), (4, CONTEXT)],
    ids=["2-fork", "4-fork", "2-spawn", "4-forkserver"],
)
def test_batches_do_not_depend_on_the_number_of_workers_or_how_they_are_started(path, num_workers, context):
    alone = loading(path)
    loader = loading(path, num_workers=num_workers, context=context)
    for _ in range(2):
        batches, expected = list(loader), list(alone)
        assert len(batches) == len(expected) > 8
        assert all(map(equal, batches, expected))
        for batch in batches:
            for stage in (*batch["compression_stages"], batch["context"]):
                numbers = torch.tensor([int(id[1:]) for id in batch["id"]])
                # The right rows of the file.
                assert torch.equal(stage["states"][..., 0], numbers[:, None] * stage["mask"])


SCRIPT = """
    import json, sys, time
    sys.path[:0] = {tests!r}
    from test_bucket_sampler import loading

    if __name__ == "__main__":
        state = json.loads({state!r})
        loader = loading({path!r}, num_workers={workers}, context={context!r}, state=state)
        for done, batch in enumerate(loader, 1):
            after = loader.batch_sampler.state_dict(done=done)
            print(json.dumps([batch["id"], after]), flush=True)
            time.sleep(0.02)
"""


def run(tmp_path, path, state, *, workers, context, kill_after=None):
    """The batches that a process of its own gave, and the state after the last of them. It is killed after so many."""
    script = tmp_path / f"run_{workers}_{context}.py"
    script.write_text(
        textwrap.dedent(SCRIPT).format(
            tests=[os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__))],
            state=json.dumps(state),
            path=str(path),
            workers=workers,
            context=context,
        )
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        lines = [json.loads(line) for line in itertools.islice(process.stdout, kill_after)]
    finally:
        if kill_after is not None:
            os.killpg(process.pid, signal.SIGKILL)  # with its workers
        process.stdout.close()
        process.wait(60)
    return [ids for ids, _ in lines], lines[-1][1]


def test_killed_in_the_middle_of_an_epoch_and_resumed_with_other_workers_the_rest_comes(tmp_path, path):
    whole = [batch["id"] for batch in loading(path)]
    first, state = run(tmp_path, path, None, workers=2, context="fork", kill_after=7)
    second, state = run(tmp_path, path, state, workers=4, context="spawn", kill_after=5)
    rest, _ = run(tmp_path, path, state, workers=0, context=None)
    assert len(first) == 7
    assert len(second) == 5
    assert first + second + rest == whole
    assert Counter(itertools.chain(*whole)) == Counter(f"h{number}" for number in range(240))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_goes_on_after_any_batch(path, workers):
    whole = [batch["id"] for batch in loading(path)]
    for done in (1, 6, len(whole) - 1):
        loader = loading(path, kind=StatefulDataLoader, num_workers=workers, context="fork")
        first = [batch["id"] for batch in itertools.islice(loader, done)]
        again = loading(path, kind=StatefulDataLoader, num_workers=workers, context="fork")
        again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert first + [batch["id"] for batch in again] == whole


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_counts_what_came_out_of_a_plain_loader_wherever_its_workers_are(path, num_workers):
    """Two epochs, left after any batch, and then left once more: what is counted is batches of the last loop."""
    order = [batch["id"] for _ in range(1) for loader in [loading(path)] for _ in range(2) for batch in loader]
    first = len(loading(path).batch_sampler)
    loader = loading(path, num_workers=num_workers, context="fork")
    seen = []
    for epoch in range(2):
        for done, batch in enumerate(loader, 1):
            seen.append(batch["id"])
            state = loader.batch_sampler.state_dict(done=done)
            again = BucketSampler(open_nested(path), token_budget=BUDGET)
            again.load_state_dict(json.loads(json.dumps(state)))
            assert (again.epoch, len(seen)) == (
                (epoch, len(seen)) if done < len_of(path, epoch) else (epoch + 1, len(seen))
            )
            if done in (3, first - 1):
                rest = [[f"h{row}" for row in rows] for rows in again]
                assert rest == order[len(seen) : first if epoch == 0 else len(order)]
                again.load_state_dict(json.loads(json.dumps(state)))
                for _, _ in zip(range(1), again, strict=False):
                    later = again.state_dict(done=1)
                last = BucketSampler(open_nested(path), token_budget=BUDGET)
                last.load_state_dict(later)
                if done == 3:
                    assert [[f"h{row}" for row in rows] for rows in last] == rest[1:]
    assert seen == order
    assert loader.batch_sampler.state_dict(done=done) == loader.batch_sampler.state_dict()  # the third epoch comes next


def test_buckets_are_the_rows_of_each_compression_depth(path):
    naive = {
        depth: [row for row, sample in enumerate(histories()) if sample["compression_depth"] == depth]
        for depth in range(4)
    }
    sampler = BucketSampler(open_nested(path), batch_size=8)
    assert sampler.buckets == naive
    assert all(set(rows) <= set(bucket) for rows in sampler for bucket in naive.values() if rows[0] in bucket)


def test_buckets_of_structures_without_a_number_have_their_names():
    samples = [{"x": np.zeros(3)}, {"y": np.zeros(2)}, {"x": np.zeros(1)}]
    sampler = BucketSampler(samples, batch_size=2)
    assert list(sampler.buckets.values()) == [[0, 2], [1]]
    assert list(sampler.buckets) == list(sampler.plan.table.group_names)


def test_a_state_of_more_batches_than_there_are_is_refused(path):
    sampler = BucketSampler(open_nested(path), token_budget=BUDGET)
    assert sampler.state_dict(done=0) == sampler.state_dict()
    for done in (-1, 10_000):
        with pytest.raises(OptionError, match="done "):
            sampler.state_dict(done=done)
    list(sampler)
    with pytest.raises(OptionError, match="count from 1 in every loop"):
        sampler.state_dict(done=10_000)
    assert sampler.epoch == 1


def len_of(path, epoch):
    return len(list_of_epoch(path, epoch))


def list_of_epoch(path, epoch):
    sampler = BucketSampler(open_nested(path), token_budget=BUDGET)
    sampler.set_epoch(epoch)
    return list(sampler)


def test_epochs_differ_and_any_of_them_can_be_asked_for(path):
    sampler = BucketSampler(open_nested(path), token_budget=BUDGET)
    epochs = [list(sampler) for _ in range(3)]
    assert len({json.dumps(epoch) for epoch in epochs}) == 3
    assert list_of_epoch(path, 2) == epochs[2]
    other = list(BucketSampler(open_nested(path), token_budget=BUDGET, seed=43))
    assert other != epochs[0]


def test_killed_on_three_ranks_and_continued_on_two_nothing_is_repeated_or_skipped(path):
    dataset = open_nested(path)
    three = [BucketSampler(dataset, token_budget=BUDGET, rank=rank, world_size=3) for rank in range(3)]
    done = [rows for rank in three for rows in itertools.islice(rank, 4)]
    states = [rank.state_dict(done=4) for rank in three]
    assert states[0] == states[1] == states[2]
    two = [BucketSampler(dataset, token_budget=BUDGET, rank=rank, world_size=2) for rank in range(2)]
    for rank in two:
        rank.load_state_dict(states[0])
    assert len({len(rank) for rank in two}) == 1
    done += [rows for rank in two for rows in rank]
    assert sorted(itertools.chain(*done)) == list(range(240))
    other = BucketSampler(dataset, token_budget=BUDGET + 1)
    with pytest.raises(MismatchError, match="another plan"):
        other.load_state_dict(states[0])


def test_a_rank_that_has_nothing_left_gets_a_batch_of_nothing(path):
    dataset = open_nested(path)
    world_size = next(ranks for ranks in range(2, 9) if len(BucketSampler(dataset, token_budget=BUDGET)) % ranks)
    shares = [loading(path, rank=rank, world_size=world_size) for rank in range(world_size)]
    batches = [list(share) for share in shares]
    assert len({len(share) for share in batches}) == 1
    empty = [batch for share in batches for batch in share if not batch["id"]]
    assert 0 < len(empty) < world_size
    assert all(batch == {"compression_stages": [], "num_compression_stages": 0, "id": []} for batch in empty)
    assert Counter(id for share in batches for batch in share for id in batch["id"]) == Counter(dataset.ids)


def test_without_shuffle_neighbours_of_one_structure_share_a_batch(path):
    sampler = BucketSampler(open_nested(path), 3, shuffle=False)
    first, second = list(sampler), list(sampler)
    assert first == second
    assert first[:5] == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11], [12, 16, 20]]


def test_a_batch_has_the_size_that_was_asked_for_or_what_was_left(path):
    sizes = Counter(len(rows) for rows in BucketSampler(open_nested(path), 7))
    assert sizes[7] == 4 * (60 // 7)
    assert sum(size * count for size, count in sizes.items()) == 240
    assert {len(rows) for rows in BucketSampler(open_nested(path), 7, drop_last=True)} == {7}
    both = BucketSampler(open_nested(path), 7, token_budget=BUDGET)
    assert all(len(rows) <= 7 for rows in both)
    assert both.plan.config.token_budget == BUDGET


def test_neither_a_size_nor_a_budget_is_an_error(path):
    with pytest.raises(OptionError, match="give batch_size, the samples of a batch, or token_budget"):
        BucketSampler(open_nested(path))
    with pytest.raises(OptionError, match="max_sequences must be at least 1, got 0"):
        BucketSampler(open_nested(path), 0)
