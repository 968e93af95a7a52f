"""The examples of each framework, and what they promise: nothing seen twice, nothing lost, on real processes, stopped
and continued.
"""

import contextlib
import importlib
import io
import itertools
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from support.runs import make_plan, make_store, on_ranks

EXAMPLES = Path(__file__).parents[2] / "examples" / "integrations"
ONCE = "each of 120 samples was seen exactly once in each of 2 epochs"


def example(name):
    """An example as a module, in a rank's process."""
    sys.path.insert(0, str(EXAMPLES))
    return __import__(name)


@pytest.fixture(scope="module", autouse=True)
def _imported():
    """Once, before ranks are forked: that takes longer than what they do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about themselves
        for name in ("accelerate", "lightning", "transformers.models.llama.modeling_llama", "transformers.trainer"):
            importlib.import_module(name)


# Examples


def run_example(_rank, name):
    sys.path.insert(0, str(EXAMPLES))
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return said.getvalue()


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("stateful_dataloader", "stopped after 12 batches of"),
        ("accelerate_loop", "stopped after 5 steps on 1 processes"),
        ("hf_trainer", "stopped after 5 steps, resumed from the Trainer's checkpoint"),
        ("lightning_fit", "stopped after 5 steps, resumed from Lightning's checkpoint"),
    ],
    ids=["stateful_dataloader", "accelerate_loop", "hf_trainer", "lightning_fit"],
)
def test_an_example_runs_and_sees_every_sample_once(name, fact):
    (said,) = on_ranks(1, run_example, name)
    assert [missing for missing in (fact, ONCE) if missing not in said] == []


def test_the_example_of_jax_runs_and_sees_every_sample_once():
    """In a process of its own: JAX starts threads that a fork leaves behind."""
    pytest.importorskip("jax")
    command = [sys.executable, "-W", "error", str(EXAMPLES / "jax_loop.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [
        fact for fact in ("stopped after 5 steps", ONCE, "once for each of the shapes") if fact not in done.stdout
    ] == []


def test_every_example_is_run_here_and_listed():
    names = sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert names == [
        "accelerate_loop.py",
        "hf_trainer.py",
        "jax_loop.py",
        "lightning_fit.py",
        "stateful_dataloader.py",
        "tiny.py",
    ]
    listed = (EXAMPLES.parent / "README.md").read_text()
    assert [name for name in names if f"`integrations/{name}`" not in listed] == []


# Accelerate


def accelerate_train(_rank, checkpoint, stop_after):
    return example("accelerate_loop").train(checkpoint, stop_after)


def weights(path):
    from safetensors.torch import load_file

    return load_file(path)


def close(left, right, tolerance):
    return left.keys() == right.keys() and all(
        torch.allclose(left[name], right[name], rtol=0, atol=tolerance) for name in left
    )


def once(seen, epochs=2, samples=120):
    return sorted(itertools.chain(*seen)) == [(epoch, sample) for epoch in range(epochs) for sample in range(samples)]


def test_accelerate_sees_every_sample_once_on_two_processes_continued_on_one_and_on_three(tmp_path):
    checkpoint = tmp_path / "checkpoint"
    before = on_ranks(2, accelerate_train, checkpoint, 3)
    assert all(before)
    for world_size in (1, 3):
        assert once(before + on_ranks(world_size, accelerate_train, checkpoint, None))
    on_ranks(1, accelerate_train, tmp_path / "alone", 3)
    both, alone = (weights(folder / "model.safetensors") for folder in (checkpoint, tmp_path / "alone"))
    assert close(both, alone, 1e-6)


def accelerate_prepares(rank):
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    from brim import OptionError
    from brim.batch.torch import PlanBatchSampler, TokenDataset, as_is, loader

    store = make_store()
    plan = make_plan(store)
    accelerator = Accelerator(cpu=True)
    ours = loader(plan, store)
    returned = accelerator.prepare(ours) is ours
    plain = DataLoader(TokenDataset(store), batch_sampler=PlanBatchSampler(plan), collate_fn=as_is)
    try:
        accelerator.prepare(plain)
    except OptionError as error:
        return returned, [id for batch in ours for id in batch.ids], str(error)


def test_accelerate_hands_a_loader_back_and_may_not_deal_out_a_sampler_again():
    (first, second) = on_ranks(2, accelerate_prepares)
    assert first[0]
    assert second[0]
    assert sorted(first[1] + second[1]) == list(range(60))
    assert first[2] == (
        "this sampler has the batches of rank 0 of 2 already, and must not be dealt out again; "
        "give accelerator.prepare a brim.batch.torch.loader instead of a DataLoader, or nothing"
    )


# Hugging Face's Trainer


def trainer_train(_rank, folder, stop_after=None, resume=False):
    trainer = example("hf_trainer").train(folder, stop_after, resume)
    if trainer.args.process_index == 0 and not stop_after:
        trainer.save_model(f"{folder}/model")
    return trainer.seen, trainer.state.global_step, trainer.state.max_steps


def test_the_trainer_continues_exactly_on_any_number_of_processes(tmp_path):
    unbroken = on_ranks(1, trainer_train, str(tmp_path / "unbroken"))
    assert once([seen for seen, _, _ in unbroken])
    for first, second in ((1, 1), (2, 3)):
        folder = str(tmp_path / f"from {first} to {second}")
        before = on_ranks(first, trainer_train, folder, 5)
        after = on_ranks(second, trainer_train, folder, None, True)
        assert once([seen for seen, _, _ in before + after])
        assert {(step, steps) for _, step, steps in after} == {unbroken[0][1:]}
        expected, found = (weights(Path(at, "model", "model.safetensors")) for at in (tmp_path / "unbroken", folder))
        assert close(expected, found, 0 if (first, second) == (1, 1) else 1e-6)


# Lightning


def lightning_train(_rank, folder, stop_after, resume, world_size):
    """Ranks one after the other: to Lightning each is a run by itself."""
    seen, last = [], None
    for rank in range(world_size):
        module = example("lightning_fit").train(
            Path(folder, str(rank)), stop_after, resume, rank=rank, world_size=world_size
        )
        seen, last = seen + module.seen, module
    return (
        seen,
        last.trainer.global_step,
        {name: weight.detach().numpy() for name, weight in last.model.state_dict().items()},
    )


def test_lightning_continues_exactly_on_any_number_of_ranks(tmp_path):
    ((seen, steps, unbroken),) = on_ranks(1, lightning_train, tmp_path / "unbroken", -1, None, 1)
    assert once([seen])
    for first, second in ((1, 1), (1, 3), (3, 2)):
        folder = tmp_path / f"from {first} to {second}"
        ((before, done, _),) = on_ranks(1, lightning_train, folder, 5, None, first)
        ((after, total, found),) = on_ranks(1, lightning_train, folder, -1, folder / "0" / "step=5.ckpt", second)
        assert once([before, after])
        assert (done, total) == (5, steps)
        if first == second:
            assert all((unbroken[name] == found[name]).all() for name in unbroken)
