"""Files that brim 0.5.0 wrote still open, verify and hold the same numbers; its unfinished training runs resume.

`write.py` wrote the files and `expected.json`, which records what 0.5.0 says about them. They are read through the
command line and through names at the top of the package. Everything is compared exactly, except the losses and weights
of resumed runs: on another CPU torch adds in another order, and the last bits differ.
"""

import json
import shutil
from pathlib import Path

import pytest

from brim import BatchPlan, LengthCache
from brim.envs.puzzle import PuzzleServer
from compat import facts

WRITTEN = Path(__file__).parent / "0.5.0"
EXPECTED = json.loads((WRITTEN / "expected.json").read_text())
CLOSE = {"rel": 1e-3, "abs": 1e-4}


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A copy of the files, which is the current directory."""
    shutil.copytree(WRITTEN, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def here(monkeypatch):
    """The files themselves are the current directory; for tests that only read."""
    monkeypatch.chdir(WRITTEN)


@pytest.mark.parametrize("name", facts.FACTS)
def test_a_file_holds_what_it_held(here, name):
    found = json.loads(json.dumps(facts.FACTS[name]()))
    expected = EXPECTED["facts"][name]
    if name == "capacity.json":  # by LAPACK in 0.5.0, whose last bits depend on its version
        assert found["seconds"] == pytest.approx(expected["seconds"])
        found["seconds"] = expected["seconds"]
    assert found == expected


def test_every_fact_that_was_written_down_is_checked():
    assert facts.FACTS.keys() == EXPECTED["facts"].keys()
    assert facts.RUNS.keys() == EXPECTED["runs"].keys()


@pytest.mark.parametrize("name", facts.PLANS)
def test_a_plan_verifies_against_its_lengths(here, name):
    status, shown = facts.call(f"plan verify -p {name} -l {facts.PLANS[name]}")
    assert status == 0, shown


@pytest.mark.parametrize("name", facts.SHARDS)
def test_the_share_of_a_rank_verifies(here, name):
    status, shown = facts.call(f"plan verify -p {name}")
    assert status == 0, shown


@pytest.mark.parametrize("name", facts.BATCHES)
def test_a_directory_of_batches_is_whole(here, name):
    status, shown = facts.call(f"batch show -b {name} -e {facts.BATCHES[name]}")
    assert status == 0, shown


def test_the_same_commands_write_files_that_hold_the_same(tmp_path, monkeypatch):
    """Bytes differ, because checksums are those of blocks. Plans are those of 0.5.0: built anew, they differ too."""
    for name in ("train.jsonl", "nested.h5", "nested.npz"):
        shutil.copy(WRITTEN / name, tmp_path / name)
    shutil.copytree(WRITTEN / "plans", tmp_path / "plans")
    monkeypatch.chdir(tmp_path)
    for line in facts.COMMANDS:
        if not line.startswith("plan build"):
            assert facts.call(line)[0] == 0, line
    for name in (*facts.LENGTHS, "tokens.brim", *facts.SHARDS, *facts.BATCHES):
        assert json.loads(json.dumps(facts.FACTS[name]())) == EXPECTED["facts"][name], name


@pytest.mark.parametrize("name", facts.PLANS)
def test_version_1_of_the_planner_still_gives_the_plans_that_it_gave(here, tmp_path, name):
    stored = BatchPlan.load(name)
    again = BatchPlan.build(
        LengthCache.load(facts.PLANS[name]), stored.config, num_epochs=stored.num_epochs, algorithm=1
    )
    again.save(tmp_path / "plan", lazy=name == "plans/lazy")
    assert json.loads(json.dumps(facts.of_plan(tmp_path / "plan"))) == EXPECTED["facts"][name]
    status, shown = facts.call(f"plan verify -p {tmp_path / 'plan'} -l {facts.PLANS[name]}")
    assert status == 0, shown


@pytest.mark.parametrize("name", facts.PLANS)
def test_positions_of_plans_of_version_1_resume_on_plans_that_are_built_again(here, name):
    stored = BatchPlan.load(name)
    again = BatchPlan.build(LengthCache.load(facts.PLANS[name]), stored.config, num_epochs=stored.num_epochs)
    assert again.fingerprint != stored.fingerprint
    step = stored.shard(0, 2).get_epoch(0)[0]
    expected, found = (list(plan.resume(step.after, 1, 2).iter_from(step.after)) for plan in (stored, again))
    assert found == expected


def test_the_same_commands_find_nothing_left_to_write(there):
    before = {name: facts.file_digests(Path(name)) for name in facts.WRITTEN}
    for line in facts.COMMANDS:
        if line.startswith("batch write"):
            status, shown = facts.call(f"{line} --json")
            assert status == 0, line
            assert json.loads(shown)["written now"] == 0, line
    assert {name: facts.file_digests(Path(name)) for name in facts.WRITTEN} == before


def test_an_interrupted_build_of_lengths_resumes(there):
    journal = Path(".interrupted.brim.journal")
    assert journal.exists()
    assert facts.call("lengths build -d train.jsonl -t byte -q -o interrupted.brim")[0] == 0
    assert not journal.exists()
    assert facts.call("lengths build -d train.jsonl -t byte -q -o whole.brim")[0] == 0
    assert Path("interrupted.brim").read_bytes() == Path("whole.brim").read_bytes()
    assert json.loads(json.dumps(facts.of_lengths("interrupted.brim"))) == EXPECTED["facts"]["lengths.brim"]


def assert_ended_as_expected(name):
    found, expected = facts.of_run(name), EXPECTED["runs"][name]
    assert found["samples"] == expected["samples"]
    assert found["losses"] == pytest.approx(expected["losses"], **CLOSE)
    assert found["weights"].keys() == expected["weights"].keys()
    for key, numbers in expected["weights"].items():
        assert found["weights"][key] == pytest.approx(numbers, **CLOSE), key


@pytest.mark.torch
@pytest.mark.parametrize("name", ["sft", "lora", "distill"])
def test_an_unfinished_run_resumes_to_the_same_end(there, name):
    status, shown = facts.call(facts.RESUMES[name])
    assert status == (1 if name == "distill" else 0), shown  # 1: so small a model does not learn
    assert_ended_as_expected(name)


@pytest.mark.torch
def test_an_unfinished_run_that_has_played_all_its_rounds_resumes_without_a_server(there):
    line = facts.RESUMES["online"].replace("CHECKPOINT", "checkpoint-00000015").replace(" --gym-port PORT", "")
    assert facts.call(line)[0] == 0
    assert_ended_as_expected("online")


@pytest.mark.torch
def test_an_unfinished_run_that_has_rounds_left_plays_them_as_0_5_0_did(there):
    with PuzzleServer() as server:
        line = facts.RESUMES["online"].replace("CHECKPOINT", "checkpoint-00000006").replace("PORT", str(server.port))
        assert facts.call(line)[0] == 0
    assert_ended_as_expected("online")
