"""`brim batch` and `lazarus data batch`, run as a user runs them."""

import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.forked import run

from brim import BatchPlan, BatchReader, LengthCache, TokenStore

BIN = Path(sys.executable).parent


def contents(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


@pytest.fixture(scope="module")
def made(pipeline, tmp_path_factory):
    """The files of the pipeline, a plan by bytes (plan), and its batches."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(pipeline, folder, dirs_exist_ok=True)
    run("brim lengths build -d train.jsonl -o lengths.brim", folder)
    run("brim plan build -l lengths.brim -e 2 -b 4096 --pack --overflow split -o plan", folder)
    run("brim batch write -p plan -d train.jsonl -o batches", folder)
    return folder


@pytest.fixture
def here(made, tmp_path):
    """A copy of it that a test may spoil."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_the_line_of_the_documents_runs_as_written(here):
    done = run("lazarus data batch generate -p batch_plan/ -d train.jsonl -t gpt2 -o out/", here)
    plan, reader = BatchPlan.load(here / "batch_plan"), BatchReader(here / "out")
    assert str(plan.total_microbatches) in done.stdout
    assert done.stderr == ""
    assert reader.verify_fingerprint(plan.fingerprint)
    assert reader.num_epochs == 3
    assert sorted(path.name for path in (here / "out").iterdir()) == [
        "epoch_0",
        "epoch_1",
        "epoch_2",
        "manifest.json",
        "plan",
    ]
    for epoch in range(3):
        seen = [id for batch in reader.iter_epoch(epoch) for id in batch.ids]
        assert sorted(seen) == sorted(LengthCache.load(here / "lengths.jsonl").ids)


def test_the_tokenizer_is_the_one_that_the_plan_names(here):
    run("brim batch write -p batch_plan -d train.jsonl -o named -q", here)
    run("brim batch write -p batch_plan -d train.jsonl -t gpt2 -o given -q", here)
    assert contents(here / "named") == contents(here / "given")


def test_rows_are_read_as_they_were_measured(tmp_path):
    """Which fields are meant, and that the last line was cut off, is in the length table."""
    rows = [
        {"question": f"q{n}", "answer": "yes " * n, "text": "not this", "key": n * 7, "kind": "ab"[n % 2]}
        for n in range(1, 20)
    ]
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"question": "q')
    fields = "--prompt-field question --response-field answer --id-field key --group-field kind --torn-line skip"
    run(f"brim lengths build -d qa.jsonl {fields} -o lengths.brim", tmp_path)
    run("brim plan build -l lengths.brim -b 200 -o plan", tmp_path)
    run("brim batch write -p plan -d qa.jsonl -o batches", tmp_path)
    batches = list(BatchReader(tmp_path / "batches").iter_epoch(0))
    assert sorted(id for batch in batches for id in batch.ids) == [row["key"] for row in rows]
    text = {
        id: bytes(t for t in tokens if t < 256)
        for batch in batches
        for id, tokens in zip(batch.ids, batch.tokens.tolist(), strict=True)
    }
    assert text[21] == b"q3\nyes yes yes "


def test_ranks_have_equally_many_files_and_can_share_their_tokens(here):
    counts, seen = set(), []
    for rank in range(3):
        line = (
            f"brim batch write -p plan -d train.jsonl --rank {rank} --world-size 3 --tokens tokens.brim -o "
            f"rank_{rank} --json"
        )
        facts = json.loads(run(line, here).stdout)
        assert facts["rank"] == f"{rank} of 3"
        assert facts["written now"] == facts["batches"]
        reader = BatchReader(here / f"rank_{rank}")
        counts.add(len(reader))
        seen += [(id, batch.index) for batch in reader.iter_epoch(1) for id in batch.ids]
    assert len(counts) == 1
    assert len(seen) == len(set(seen))
    assert {id for id, _ in seen} == set(BatchPlan.load(here / "plan").table.ids)
    assert len(TokenStore.load(here / "tokens.brim")) == 300
    run("brim plan shard -p plan -w 3 -o shards", here)
    run("brim batch write -p shards/rank_1 -d train.jsonl -o from-shard", here)
    assert contents(here / "from-shard") == contents(here / "rank_1")


def test_one_epoch_is_written_when_one_is_asked_for(here):
    facts = json.loads(run("brim batch write -p plan -d train.jsonl -e 1 -o some --json", here).stdout)
    assert facts["epochs"] == 1
    assert not (here / "some" / "epoch_0").exists()
    assert len(list(BatchReader(here / "some").iter_epoch(1))) == facts["batches"]
    shown = json.loads(run("brim batch show -b some --json", here, status=1).stdout)
    assert [epoch["missing"] for epoch in shown["per_epoch"]] == [BatchPlan.load(here / "plan").num_microbatches(0), 0]
    assert run("brim batch show -b some -e 1", here).stderr == ""
    assert "some is not whole" in run("brim batch show -b some", here, status=1).stderr
    run("brim batch write -p plan -d train.jsonl -e 0 -e 1 -o some", here)
    assert contents(here / "some") == contents(here / "batches")


def test_a_finished_directory_is_left_as_it_is(here):
    before = {path: path.stat().st_mtime_ns for path in (here / "batches").rglob("*.npz")}
    (here / "batches" / ".tokens.brim").write_text("left by a writer that was killed behind its last batch")
    facts = json.loads(run("brim batch write -p plan -d train.jsonl -o batches --json", here).stdout)
    assert facts["written now"] == 0
    assert {path: path.stat().st_mtime_ns for path in (here / "batches").rglob("*.npz")} == before
    assert not (here / "batches" / ".tokens.brim").exists()


def wait_for(process, pattern, folder, count):
    """Until that many files are there, or the process is done."""
    while process.poll() is None and len(list(folder.glob(pattern))) < count:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_random_moments_and_started_again_it_ends_with_the_same_bytes(here, seed):
    chance = random.Random(seed)
    total = BatchPlan.load(here / "plan").total_microbatches
    words = [str(BIN / "brim"), "batch", "write", "-p", "plan", "-d", "train.jsonl", "-o", "out"]
    moments = [
        (".*tokens*", 1),
        ("manifest.json", 1),
        *(("epoch_*/*.npz", n) for n in sorted(chance.sample(range(1, total), 4))),
    ]
    for pattern, count in moments:
        with subprocess.Popen(words, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            wait_for(process, pattern, here / "out", count)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
    run("brim batch write -p plan -d train.jsonl -o out", here)
    assert contents(here / "out") == contents(here / "batches")


def test_interrupted_it_stops_at_once_and_can_go_on(here):
    words = [str(BIN / "brim"), "batch", "write", "-p", "plan", "-d", "train.jsonl", "-o", "out"]
    with subprocess.Popen(words, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(process, ".*tokens*", here / "out", 1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.strip()) in [(130, "interrupted"), (0, "")]
    run("brim batch write -p plan -d train.jsonl -o out", here)
    assert contents(here / "out") == contents(here / "batches")


def test_show_says_what_is_there(here):
    out = run("brim batch show -b batches", here).stdout
    plan = BatchPlan.load(here / "plan")
    assert plan.fingerprint in out
    assert "missing" in out
    shown = json.loads(run("brim batch show -b batches --json", here).stdout)
    assert shown["whole"] is True
    assert [epoch["batches"] for epoch in shown["per_epoch"]] == [plan.num_microbatches(0), plan.num_microbatches(1)]
    assert shown["per_epoch"][0]["tokens"] == plan.get_epoch(0).total_tokens
    sizes = [sum(path.stat().st_size for path in (here / "batches" / f"epoch_{epoch}").iterdir()) for epoch in range(2)]
    assert [epoch["bytes"] for epoch in shown["per_epoch"]] == sizes


def test_show_looks_into_a_batch(here):
    batch = BatchReader(here / "batches").get_batch(1, 2)
    shown = json.loads(run("brim batch show -b batches -e 1 -i 2 --json", here).stdout)
    assert shown["shape"] == list(batch.shape)
    assert [one["sample"] for one in shown["samples"]] == list(batch.ids)
    assert [one["tokens"] for one in shown["samples"]] == batch.lengths.tolist()
    assert sum(one["learned"] for one in shown["samples"]) == shown["learned"] == batch.num_loss_tokens
    for one, start in zip(shown["samples"], batch.cu_seqlens, strict=False):
        row, kept = one["row"], batch.segment_ids[one["row"]]
        mine = batch.tokens[row][kept == one["segment"]]
        assert len(mine) == one["tokens"]
        assert (
            mine[:6].tolist()
            == one["begins with"]
            == batch.tokens[batch.segment_ids != 0][start : start + 6].tolist()[: one["tokens"]]
        )
    assert shown["after"]["epoch"] == 1
    out = run("brim batch show -b batches -i 0", here).stdout
    assert all(str(id) in out for id in BatchReader(here / "batches").get_batch(0, 0).ids)
    run("brim batch write -p plan -d train.jsonl --rank 4 --world-size 5 -e 1 -o share", here)
    last = BatchReader(here / "share").num_batches(1) - 1
    assert BatchReader(here / "share").get_batch(1, last).is_null
    assert "it is empty" in run(f"brim batch show -b share -e 1 -i {last}", here).stdout


def bad_inputs(folder):
    """Command lines that cannot work, and words of the line that says so."""
    lines = (folder / "train.jsonl").read_text().splitlines(keepends=True)
    (folder / "fewer.jsonl").write_text("".join(lines[:-1]))
    first = json.loads(lines[0])
    (folder / "changed.jsonl").write_text(
        "".join([json.dumps({**first, "response": "Well. " + first["response"]}) + "\n", *lines[1:]])
    )
    # Lengths that name neither their data nor their tokenizer: then only the rows themselves can tell.
    table = LengthCache.load(folder / "lengths.brim")
    (folder / "bare.jsonl").write_text(
        "".join(json.dumps({"sample_id": id, "length": n}) + "\n" for id, n in table.items())
    )
    run("brim plan build -l bare.jsonl -b 4096 -o bare", folder)
    (folder / "files").mkdir()
    (folder / "files" / "thesis.tex").touch()
    (folder / "cut").mkdir()
    shutil.copytree(folder / "batches", folder / "cut", dirs_exist_ok=True)
    file = folder / "cut" / "epoch_0" / "batch_000001.npz"
    file.write_bytes(file.read_bytes()[:-40])
    write = "brim batch write -p plan -o out -d"
    return [
        (f"{write} nothing.jsonl", "nothing.jsonl does not exist"),
        (f"{write} fewer.jsonl", "built for other data"),
        (f"{write} changed.jsonl", "built for other data"),
        (f"{write} train.jsonl -t gpt2", "built for another tokenizer"),
        (f"{write} train.jsonl -t no/such-tokenizer", "no/such-tokenizer"),
        (f"{write} train.jsonl --rank 0", "--rank and --world-size are given together"),
        (f"{write} train.jsonl --world-size 2", "--rank and --world-size are given together"),
        (f"{write} train.jsonl --rank 2 --world-size 2", "rank must lie between 0 and 1, got 2"),
        (f"{write} train.jsonl -e 2", "epoch 2 does not exist"),
        (f"{write} train.jsonl --tokens lengths.brim", "lengths.brim: it is not a token store"),
        ("brim batch write -p bare -d changed.jsonl -o out", "this plan was built for other lengths"),
        ("brim batch write -p nothing -d train.jsonl -o out", "nothing does not exist"),
        ("brim batch write -p plan -d train.jsonl -o files", "it holds other files"),
        ("brim batch write -p plan -d train.jsonl -o plan", "it holds other files"),
        ("brim batch write -p plan -d train.jsonl -o train.jsonl", "a file is in the way"),
        ("brim batch write -p plan -d train.jsonl -o train.jsonl/x", "cannot write train.jsonl/x"),
        ("brim batch write -p batch_plan -d train.jsonl -o batches", "batches holds the batches of another tokenizer"),
        (
            "brim batch write -p plan -d train.jsonl -o batches --rank 0 --world-size 2",
            "batches holds the batches of another number of ranks",
        ),
        ("brim batch write -p plan -o out", "--data"),
        ("brim batch show -b nothing", "nothing does not exist"),
        ("brim batch show -b files", "holds no batches"),
        ("brim batch show -b train.jsonl", "is a file"),
        ("brim batch show -b batches -i 999", "batch 999 does not exist"),
        ("brim batch show -b batches -i -1", "batch -1 does not exist"),
        ("brim batch show -b batches -e 7", "epoch 7 does not exist"),
        ("brim batch show -b cut -i 1", "batch_000001.npz is damaged: it is cut off or altered"),
        ("lazarus data batch genrate", 'Did you mean "generate"?'),
    ]


def test_bad_input_is_one_line_exit_2_and_nothing_half_written(here):
    lines = bad_inputs(here)
    before = sorted(path.relative_to(here) for path in here.rglob("*"))
    for line, words in lines:
        done = run(line, here, status=2)
        message = done.stderr.strip().splitlines()[-1]
        assert words in message, (line, message)
        assert done.stdout == ""
        if not message.startswith("Error: "):  # click shows how to use the command as well
            assert len(done.stderr.strip().splitlines()) == 1, line
        assert sorted(path.relative_to(here) for path in here.rglob("*")) == before, line
