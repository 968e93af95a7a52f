"""What the options of a run do, and what is refused."""

import json
import math
import resource
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.worlds import World, lines, trained, weights

from brim.batch.token_source import check_belongs
from brim.core.errors import BrimError, DamagedError, DataError, LengthError, MismatchError, OptionError
from brim.data.measure import build_lengths
from brim.data.tokenizer.base import ByteTokenizer
from brim.plan.config import BatchingConfig, PackingConfig
from brim.plan.plan import BatchPlan
from brim.plan.position import CheckpointPosition
from brim.train.config import SftConfig
from brim.train.failed_step import load_repro, save_repro
from brim.train.output import hold_output
from brim.train.prepare import prepare
from brim.train.schedule import learning_rate
from brim.train.sft import find_checkpoint, train_sft

pytestmark = pytest.mark.usefixtures("one_thread")

TRUNCATED = {"overflow": "truncate"}


def log(config):
    return lines(Path(config.output) / "log.jsonl")


def test_the_loss_goes_down_and_the_model_loads_where_it_was_left(options):
    config = options(epochs=4, learning_rate=3e-3, save_every=None)
    reports = []
    result = train_sft(config, on_step=reports.append)
    assert result.last_loss < result.first_loss
    assert [report.step for report in reports] == list(range(1, result.steps + 1))
    assert result.tokens == sum(report.tokens for report in reports)
    assert result.model == Path(config.output) / "model"
    again = train_sft(options("again", model=str(result.model), max_steps=1))
    assert again.first_loss < result.first_loss


def test_a_run_follows_its_plan_to_the_sample(options, small, tmp_path):
    lengths = build_lengths(small / "train.jsonl", tmp_path / "lengths.brim").cache
    plan = BatchPlan.build(
        lengths, BatchingConfig(token_budget=1024, microbatches_per_step=3, **TRUNCATED), num_epochs=2
    )
    plan.save(tmp_path / "plan")
    config = options(batchplan=str(tmp_path / "plan"), batching=BatchingConfig())
    train_sft(config)
    expected = [(epoch, list(microbatch.samples)) for epoch in (0, 1) for microbatch in plan.get_epoch(epoch)]
    written = lines(Path(config.output) / "samples-rank0.jsonl")
    assert [(line["epoch"], line["samples"]) for line in written] == expected
    assert Counter(line["step"] for line in written).most_common(1)[0][1] == 3


def test_epochs_of_a_plan_may_be_fewer_and_not_more(options, small, tmp_path):
    lengths = build_lengths(small / "train.jsonl", tmp_path / "lengths.brim").cache
    BatchPlan.build(lengths, BatchingConfig(token_budget=2048, **TRUNCATED), num_epochs=2).save(tmp_path / "plan")
    config = options(batchplan=str(tmp_path / "plan"), epochs=1)
    train_sft(config)
    assert {epoch for epoch, _, _ in trained(Path(config.output))} == {0}
    with pytest.raises(OptionError, match="3 epochs were asked for"):
        train_sft(options("more", batchplan=str(tmp_path / "plan"), epochs=3))


def test_the_learning_rate_follows_the_schedule(options):
    config = options(schedule="linear", warmup_steps=3, learning_rate=0.01, epochs=2)
    train_sft(config)
    rates = [line["learning_rate"] for line in log(config)]
    rate = learning_rate(0.01, "linear", total=len(rates), warmup=3)
    assert rates == [rate(step) for step in range(len(rates))]
    assert rates[:3] == pytest.approx([0.01 / 3, 0.02 / 3, 0.01])
    assert rates[-1] == pytest.approx(0.001)


def test_schedules_end_where_they_say():
    for total, warmup in ((1, 0), (1, 1), (2, 1), (10, 0), (10, 10), (10, 20)):
        for schedule in ("cosine", "linear", "constant"):
            values = [learning_rate(1.0, schedule, total=total, warmup=warmup)(step) for step in range(total)]
            assert all(0 < value <= 1 for value in values)


@pytest.fixture(scope="module")
def four_steps(one_thread, short_run, tmp_path_factory):
    """The weights after four steps with the options of a short run."""
    config = short_run(tmp_path_factory.mktemp("four-steps"), max_steps=4)
    train_sft(config)
    return weights(Path(config.output))


@pytest.mark.parametrize(
    ("changes", "reaches"),
    [
        ({"weight_decay": 0.5}, True),
        ({"clip_norm": 0.01}, True),
        ({"clip_norm": 0.0}, True),
        ({"bf16": True}, True),
        ({"seed": 1}, True),
        ({"learning_rate": 2e-3}, True),
        ({"schedule": "constant"}, True),
        ({"tokens_per_step": 4096}, True),
        ({"save_every": 1}, False),
        ({"log_every": 3}, False),
        ({"record_samples": False}, False),
    ],
    ids=str,
)
def test_an_option_changes_the_weights_exactly_if_it_should(options, four_steps, changes, reaches):
    config = options(max_steps=4, **changes)
    train_sft(config)
    found = weights(Path(config.output))
    assert any(not torch.equal(four_steps[name], found[name]) for name in four_steps) == reaches


def test_worker_processes_do_not_change_the_weights(options, four_steps):
    config = options(max_steps=4, num_workers=2)
    train_sft(config)
    found = weights(Path(config.output))
    assert all(torch.equal(four_steps[name], found[name]) for name in four_steps)


def test_tokens_per_step_accumulates_microbatches(options):
    config = options(tokens_per_step=4096)
    train_sft(config)
    per_step = Counter(line["step"] for line in lines(Path(config.output) / "samples-rank0.jsonl"))
    assert set(list(per_step.values())[:-1]) == {4}


def test_accumulating_packing_and_padding_give_the_same_first_step(options):
    """One step over all samples, cut into microbatches in four ways."""
    losses, norms = [], []
    ways = [
        BatchingConfig(token_budget=1 << 15, overflow_max=512, **TRUNCATED),
        BatchingConfig(token_budget=1024, overflow_max=512, microbatches_per_step=100, **TRUNCATED),
        BatchingConfig(
            token_budget=1024, microbatches_per_step=100, packing=PackingConfig(max_length=512), **TRUNCATED
        ),
        BatchingConfig(token_budget=1024, overflow_max=512, microbatches_per_step=100, max_sequences=1, **TRUNCATED),
    ]
    for number, batching in enumerate(ways):
        config = options(str(number), batching=batching, model="tiny", max_steps=1, warmup_steps=0)
        train_sft(config)
        losses.append(log(config)[0]["loss"])
        norms.append(log(config)[0]["grad_norm"])
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-5)
    assert norms == pytest.approx([norms[0]] * 4, rel=1e-4)


def test_a_search_for_packed_rows_is_shown(options, tmp_path):
    rows = [{"id": number, "input_ids": [1] * (28 + number % 11)} for number in range(300)]
    (tmp_path / "near_thirds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = {}

    @contextmanager
    def bar(what):
        yield lambda done, total: shown.setdefault(what, []).append((done, total))

    batching = BatchingConfig(token_budget=1000, packing=PackingConfig(max_length=100))
    config = options(data=str(tmp_path / "near_thirds.jsonl"), batching=batching)
    prepared = prepare(config, ByteTokenizer(), bar=bar)
    assert all(bound <= rows for bound, rows in shown["packing"])
    assert shown["packing"][-1][1] <= prepared.plan.epochs.packed(0).rows


def test_held_out_samples_are_never_trained_on(options, small):
    config = options(eval_split=0.25, epochs=2)
    result = train_sft(config)
    ids = {json.loads(line)["id"] for line in (small / "train.jsonl").read_text().splitlines()}
    seen = Counter((epoch, id) for epoch, _, id in trained(Path(config.output)))
    assert set(seen.values()) == {1}
    assert len({id for _, id in seen}) == len(ids) * 3 // 4
    assert result.eval_loss is not None
    assert [line["step"] for line in log(config) if "eval_loss" in line][-1] == result.steps


def test_evaluation_on_other_data_is_the_mean_over_what_is_learned(options, small):
    config = options(eval_data=str(small / "train.jsonl"), eval_every=2, max_steps=4, learning_rate=1e-9)
    train_sft(config)
    evaluated = [line["eval_loss"] for line in log(config) if "eval_loss" in line]
    assert len(evaluated) == 2
    whole = options(
        "whole",
        batching=BatchingConfig(token_budget=1024, microbatches_per_step=100, **TRUNCATED),
        max_steps=1,
        learning_rate=1e-9,
    )
    train_sft(whole)
    assert evaluated[0] == pytest.approx(log(whole)[0]["loss"], rel=0.02)  # the same but for dropout


def test_lora_trains_adapters_and_resumes_to_the_bit(options, small):
    whole = options("whole", lora_rank=2, lora_dropout=0.1, lora_targets=("q_proj", "v_proj"))
    train_sft(whole)
    part = options("part", lora_rank=2, lora_dropout=0.1, lora_targets=("q_proj", "v_proj"), keep=100)
    train_sft(part)
    first = sorted(Path(part.output).glob("checkpoint-*"))[0]
    train_sft(part, resume=first)
    expected, found = (load_file(Path(run.output) / "model" / "adapter_model.safetensors") for run in (whole, part))
    assert expected.keys() == found.keys()
    assert all("q_proj" in name or "v_proj" in name for name in expected)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert any(expected[name].any() for name in expected if "lora_B" in name)


def test_curves_reach_tensorboard(options):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = options(tensorboard=True, max_steps=3)
    train_sft(config)
    events = EventAccumulator(str(Path(config.output) / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]
    assert {"learning_rate", "grad_norm", "tokens_per_second", "fill"} <= set(events.Tags()["scalars"])


def test_only_so_many_checkpoints_stay(options):
    config = options(save_every=1, keep=3)
    result = train_sft(config)
    kept = sorted(path.name for path in Path(config.output).glob("checkpoint-*"))
    assert kept == [f"checkpoint-{step:08d}" for step in range(result.steps - 2, result.steps + 1)]


def test_a_checkpoint_holds_every_tensor_of_the_model_and_the_optimizer(options, small):
    config = options(max_steps=2)
    train_sft(config)
    saved = find_checkpoint(config.output)
    model, optimizer = load_file(saved / "model" / "model.safetensors"), load_file(saved / "optimizer.safetensors")
    assert model.keys() == load_file(small / "model" / "model.safetensors").keys()
    assert {name.split("|")[0] for name in optimizer if "|" in name} == model.keys()
    assert {name.split("|")[1] for name in optimizer if "|" in name} == {"step", "exp_avg", "exp_avg_sq"}


def test_going_on_from_an_earlier_checkpoint_sets_the_later_ones_aside(options):
    config = options(save_every=1, keep=3)
    train_sft(config)
    first = sorted(Path(config.output).glob("checkpoint-*"))[0]
    said = []
    result = train_sft(config, resume=first, on_message=said.append)
    assert result.taken == 2
    assert sum("renamed a newer checkpoint to" in text for text in said) == 2
    assert len(list(Path(config.output).glob("abandoned-checkpoint-*"))) == 2
    assert find_checkpoint(config.output).name == f"checkpoint-{result.steps:08d}"


def test_a_run_is_one_process_at_a_time(options):
    config = options(max_steps=1)
    train_sft(config)
    held = hold_output(Path(config.output))
    with pytest.raises(BrimError, match="another process is training in"):
        train_sft(config, resume=find_checkpoint(config.output))
    held.close()
    assert train_sft(config, resume=find_checkpoint(config.output)).taken == 0


def test_a_run_that_ended_before_its_first_checkpoint_is_begun_again(options, small, tmp_path):
    config = options(epochs=50, save_every=None)
    world = World(config)
    world.wait_for_step(2)
    world.kill()
    world.wait()
    assert (Path(config.output) / "run.json").exists()
    shorter = SftConfig(**{**vars(config), "epochs": 1})
    result = train_sft(shorter)
    assert [line["step"] for line in log(shorter)] == list(range(1, result.steps + 1))


def test_what_the_plan_leaves_out_is_said(options):
    said = []
    result = train_sft(options(max_steps=1), on_message=said.append)
    assert result.left_out["samples truncated"] > 0
    assert any("samples truncated" in text for text in said)


def test_a_step_with_nothing_to_learn_has_no_loss(options, tmp_path):
    rows = [{"id": i, "input_ids": [7] * 40, "loss_mask": [int(i == 0)] * 40} for i in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = options(data=str(tmp_path / "rows.jsonl"), batching=BatchingConfig(token_budget=40))
    result = train_sft(config)
    assert sum("loss" in line for line in log(config)) == 1
    assert result.first_loss == result.last_loss > 0


def test_a_full_run_is_resumed_without_the_model_it_began_from(options, small, tmp_path):
    shutil.copytree(small / "model", tmp_path / "copy")
    config = options(model=str(tmp_path / "copy"), save_every=1, keep=99, max_steps=6)
    whole = train_sft(config)
    shutil.rmtree(tmp_path / "copy")
    first = sorted(Path(config.output).glob("checkpoint-*"))[0]
    expected = weights(Path(config.output))
    assert train_sft(config, resume=first).taken == whole.steps - 1
    assert all(torch.equal(weight, expected[name]) for name, weight in weights(Path(config.output)).items())


def test_the_published_model_may_be_edited(options):
    config = options(max_steps=1)
    train_sft(config)
    with open(Path(config.output) / "model" / "config.json", "a") as file:
        file.write("\n")
    assert train_sft(config, resume=find_checkpoint(config.output)).taken == 0


# What is refused.


def refused(config, error, match, *, resume=None, begun=False):
    with pytest.raises(error, match=match):
        train_sft(config, resume=resume)
    assert begun or not {"run.json", ".lock"} & {path.name for path in Path(config.output).glob("*")}
    assert not list(Path(config.output).glob("checkpoint-*")) or begun


def test_models_that_do_not_fit_are_refused(options, small, tmp_path):
    for name in (str(tmp_path / "nowhere" / "model"), "model", "nobody/nothing"):
        refused(
            options(model=name),
            OptionError,
            f"the model {name} is neither a directory nor in the local Hugging Face cache",
        )
    refused(options(model=str(small / "train.jsonl")), OptionError, "is a file; give a directory")
    refused(options(model=str(small)), OptionError, "did you mean .*/model")
    (tmp_path / "empty").mkdir()
    refused(options(model=str(tmp_path / "empty")), OptionError, "is not a model")
    refused(options(tokenizer="gpt2"), OptionError, "the tokenizer gpt2 has 50257 tokens, the model .* knows 259")
    long = options(batching=BatchingConfig(token_budget=8192))
    (tmp_path / "long.jsonl").write_text(json.dumps({"id": "too-long", "text": "x" * 3000}) + "\n")
    refused(
        SftConfig(**{**vars(long), "data": str(tmp_path / "long.jsonl")}),
        LengthError,
        "sample 'too-long' has 3001 tokens, the model",
    )


def test_a_plan_of_other_data_or_another_tokenizer_is_refused(options, small, tmp_path):
    (tmp_path / "other.jsonl").write_bytes((small / "train.jsonl").read_bytes().replace(b"the", b"die"))
    for name, data, tokenizer in (
        ("data", tmp_path / "other.jsonl", "byte"),
        ("tokenizer", small / "train.jsonl", "gpt2"),
    ):
        lengths = build_lengths(data, tmp_path / f"{name}.brim", tokenizer).cache
        BatchPlan.build(lengths, BatchingConfig(token_budget=1024, **TRUNCATED)).save(tmp_path / name)
        refused(options(batchplan=str(tmp_path / name)), MismatchError, f"built for (other|another) {name}")
    BatchPlan.build(lengths, BatchingConfig(token_budget=1024, **TRUNCATED)).shard(0, 2).save(tmp_path / "share")
    refused(options(batchplan=str(tmp_path / "share")), OptionError, "is the share of rank 0; give the whole plan")


def test_data_that_is_missing_or_too_long_is_refused(options, tmp_path):
    refused(options(data=str(tmp_path / "none.jsonl")), DataError, "does not exist")
    refused(options(batching=BatchingConfig(token_budget=64)), LengthError, "do not fit in 64 tokens")


def test_adapters_are_not_resumed_on_another_model(options, small, tmp_path):
    from transformers import LlamaForCausalLM

    shutil.copytree(small / "model", tmp_path / "copy")
    config = options(model=str(tmp_path / "copy"), lora_rank=2, max_steps=2, save_every=1)
    train_sft(config)
    refused(options("next", model=str(Path(config.output) / "model")), OptionError, "holds a LoRA adapter, not a model")
    model = LlamaForCausalLM.from_pretrained(tmp_path / "copy")
    with torch.no_grad():
        model.lm_head.weight.add_(1e-3)
    model.save_pretrained(tmp_path / "copy")
    refused(config, MismatchError, "has adapters for another model", resume=find_checkpoint(config.output), begun=True)


def test_evaluation_data_and_padding_that_do_not_fit_the_model_are_refused(options, tmp_path):
    (tmp_path / "long.jsonl").write_text(json.dumps({"id": "long", "text": "x" * 3000}) + "\n")
    wide = BatchingConfig(token_budget=8192, overflow_max=600, **TRUNCATED)
    refused(
        options(eval_data=str(tmp_path / "long.jsonl"), batching=BatchingConfig(token_budget=4096)),
        LengthError,
        "sample 'long' has 3001",
    )
    (tmp_path / "foreign.jsonl").write_text(json.dumps({"id": "x", "input_ids": [1, 5000]}) + "\n")
    refused(options(eval_data=str(tmp_path / "foreign.jsonl"), batching=wide), MismatchError, "holds the token 5000")
    padded = BatchingConfig(token_budget=8192, overflow_max=2048, pad_to_multiple=3000, **TRUNCATED)
    refused(options(batching=padded), LengthError, "rows are padded to 3000 tokens, the model .* has 2048 positions")


def test_data_with_nothing_to_learn_and_plans_without_a_step_are_refused(options, tmp_path):
    (tmp_path / "masked.jsonl").write_text(json.dumps({"input_ids": [1, 2, 3], "loss_mask": [1, 0, 0]}) + "\n")
    refused(options(data=str(tmp_path / "masked.jsonl")), DataError, "nothing to learn")
    none = BatchingConfig(token_budget=1024, microbatches_per_step=500, remainder="drop", **TRUNCATED)
    refused(options(batching=none), DataError, "contains no optimizer steps")
    refused(options(attention="flex_attention"), OptionError, "no backward pass on the CPU")


def test_an_output_that_holds_a_run_is_not_overwritten(options):
    config = options(max_steps=1)
    train_sft(config)
    refused(config, OptionError, "holds a run already; continue it with --resume", begun=True)


def test_resuming_from_another_plan_or_nothing_is_refused(options, small, tmp_path):
    config = options(max_steps=1)
    train_sft(config)
    other = options(seed=7)
    refused(other, MismatchError, "belongs to another plan", resume=find_checkpoint(config.output), begun=True)
    with pytest.raises(DataError, match="holds no checkpoint, so there is nothing to resume"):
        find_checkpoint(tmp_path)
    with pytest.raises(DataError, match="is a file and not the directory of a run, so there is nothing to resume"):
        find_checkpoint(__file__)
    with pytest.raises(MismatchError, match=r"run is resumed: learning_rate \(0.001 -> 0.5\)"):
        config.resumed(learning_rate=0.5)
    assert config.resumed(save_every=7, data=f"{config.data.rpartition('/')[0]}/./train.jsonl").save_every == 7
    with pytest.raises(
        MismatchError, match=r"batching.token_budget \(1024 -> 4096\), batching.overflow \(truncate -> error\)"
    ):
        config.resumed(batching=BatchingConfig())


@pytest.mark.parametrize(
    "name", ["state.json", "optimizer.safetensors", "model/model.safetensors", "model/config.json"]
)
@pytest.mark.parametrize("how", ["flipped", "truncated", "missing"])
def test_a_damaged_checkpoint_is_named_with_the_one_before_it(options, checkpoints, name, how, tmp_path):
    run = tmp_path / "copy"
    shutil.copytree(checkpoints, run)
    last = find_checkpoint(run)
    path = last / name
    content = bytearray(path.read_bytes())
    if how == "flipped":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.unlink()
    if (name, how) == ("state.json", "missing"):
        assert find_checkpoint(run) != last  # it is no checkpoint any more
        return
    with pytest.raises(DamagedError, match=r"an earlier one is .*checkpoint-00000001"):
        train_sft(options(), resume=last)


@pytest.fixture(scope="module")
def checkpoints(small, tmp_path_factory):
    config = SftConfig(
        model=str(small / "model"),
        data=str(small / "train.jsonl"),
        output=str(tmp_path_factory.mktemp("run") / "run"),
        batching=BatchingConfig(token_budget=1024, **TRUNCATED),
        max_steps=2,
        save_every=1,
        tensorboard=False,
    )
    train_sft(config)
    return Path(config.output)


@pytest.fixture
def poisoned(small, tmp_path):
    """A model that makes NaN of one token, and data in which one sample has it."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(small / "model")
    with torch.no_grad():
        model.model.embed_tokens.weight[ord("~")] = math.nan
    model.save_pretrained(tmp_path / "model")
    rows = [{"id": f"good-{i}", "text": "all is well " * 20} for i in range(40)] + [{"id": "bad", "text": "~"}]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"model": str(tmp_path / "model"), "tokenizer": "byte", "data": str(tmp_path / "data.jsonl")}


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_a_repro(options, poisoned):
    config = options(**poisoned, save_every=1)
    with pytest.raises(
        BrimError, match=r"the loss of step \d+ is not finite: microbatch \d+ of epoch 0, samples .*'bad'"
    ) as caught:
        train_sft(config)
    directory = next(Path(config.output).glob("not-finite-*"))
    assert str(directory / "repro.py") in str(caught.value)
    module, batches = load_repro(directory)
    assert any("bad" in batch.ids for batch in batches)
    assert all(math.isnan(float(module(batch).detach())) for batch in batches)
    shown = subprocess.run([sys.executable, directory / "repro.py"], capture_output=True, text=True, timeout=120)
    assert "loss sum nan" in shown.stdout, shown.stderr


def test_a_failed_step_of_version_0_5_0_still_loads(small, tmp_path):
    arrays = {
        "input_ids": np.array([[72, 105, 33, 79, 107]]),
        "labels": np.array([[-100, 105, 33, -100, 107]]),
        "position_ids": np.array([[0, 1, 2, 0, 1]]),
        "segment_ids": np.array([[1, 1, 1, 2, 2]], np.int32),
        "cu_seqlens": np.array([0, 3, 5], np.int32),
    }
    position = {"epoch": 1, "microbatch_idx": 8, "global_step": 0, "microbatches_per_step": 3, "fingerprint": "5f3a9c"}
    facts = {
        "ids": ["x", "y"],
        "epoch": 1,
        "index": 7,
        "packed": True,
        "longest": 3,
        "num_loss_tokens": 3,
        "num_tokens": 5,
        "ends_step": True,
        "after": position,
    }
    shutil.copytree(small / "model", tmp_path / "model")
    np.savez(tmp_path / "batch_0.npz", **arrays)
    config = {"model": "elsewhere", "tokenizer": "byte", "data": "gone.jsonl", "output": "run", "seed": 3}
    (tmp_path / "repro.json").write_text(json.dumps({"config": config, "batches": [facts]}, indent=2))
    module, (batch,) = load_repro(tmp_path)
    read = {name: getattr(batch, name) for name in facts}
    assert read == {**facts, "ids": ("x", "y"), "after": CheckpointPosition(**position)}
    assert all(np.array_equal(getattr(batch, name).numpy(), array) for name, array in arrays.items())
    assert (batch.is_flat, batch.spec.lengths.tolist(), batch.spec.packs) == (True, [3, 2], (("x", "y"),))
    assert math.isfinite(float(module(batch).detach()))
    # What is written now has the same form.
    save_repro(
        tmp_path / "again", SftConfig(**config), module.model, module.model.state_dict(), ByteTokenizer(), [batch]
    )
    (again,) = json.loads((tmp_path / "again" / "repro.json").read_bytes())["batches"]
    assert list(again.items()) == list(facts.items())
    assert load_repro(tmp_path / "again")[1][0].spec == batch.spec


def test_a_run_checks_once_that_plan_and_data_belong_together(options, small, tmp_path, monkeypatch):
    checked = []

    def counted(plan, source):
        checked.append(len(source))
        check_belongs(plan, source)

    for module in ("brim.train.prepare", "brim.batch.torch"):
        monkeypatch.setattr(f"{module}.check_belongs", counted)
    train_sft(options(max_steps=2, eval_data=str(small / "train.jsonl"), eval_every=1))
    assert checked == [36, 36]  # the data, and the data of all evaluations


def test_a_loss_that_is_not_finite_on_one_rank_stops_all(options, poisoned):
    errors = [outcome["error"] for outcome in World(options(**poisoned), 2).wait()]
    assert sum("'bad'" in error for error in errors) == 1
    assert sum("on another rank; its error names the samples" in error for error in errors) == 1


def test_a_full_disk_ends_the_run_with_one_line_and_the_last_checkpoint(small, tmp_path):
    arguments = ["--model", "tiny", "--data", str(small / "train.jsonl"), "-b", "1024", "--overflow", "truncate"]
    arguments += ["--max-steps", "3", "--no-tensorboard", "-q", "-o", str(tmp_path / "run")]
    command = [sys.executable, "-m", "brim", "train", "sft", *arguments]
    limit = 1_000_000  # bytes: below the weights, above the data

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, preexec_fn=limited)
    assert done.returncode == 2, done.stderr
    said, error = done.stderr.strip().splitlines()
    assert "samples truncated" in said
    assert "cannot write the checkpoint" in error
    assert "earlier checkpoints are untouched" in error
    assert not list((tmp_path / "run").glob("*checkpoint-*"))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"schedule": "wavy"}, "schedule must be one of"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"learning_rate": math.inf}, "learning_rate must be above 0 and finite"),
        ({"model": "tiny", "lora_rank": 2}, "LoRA needs a trained model below it"),
        ({"learning_rate": math.nan}, "learning_rate must be above 0"),
        ({"clip_norm": -1.0}, "clip_norm must not be negative"),
        ({"eval_split": 1.0}, "eval_split must be below 1"),
        ({"eval_split": 0.1, "eval_data": "x"}, "not both"),
        ({"eval_split": 0.1, "batchplan": "plan"}, "none can be held out"),
        ({"eval_every": 3}, "something to evaluate on"),
        ({"lora_alpha": 2.0}, "need lora_rank"),
        ({"fsdp": True, "lora_rank": 2}, "leave out fsdp or lora_rank"),
        ({"tokens_per_step": 1, "batching": BatchingConfig(microbatches_per_step=2)}, "not both"),
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(options, changes, match):
    with pytest.raises(OptionError, match=match):
        options(**changes)


def test_options_survive_json(options):
    config = options(
        lora_rank=2, lora_targets=("q_proj",), batching=BatchingConfig(packing=PackingConfig(max_length=512))
    )
    assert SftConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_pickled_weights_are_refused_and_never_opened(options, small, tmp_path):
    folder = tmp_path / "pickled"
    shutil.copytree(small / "model", folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"not even a pickle")
    with pytest.raises(OptionError, match=r"the weights of .*pickled are pickled \(pytorch_model.bin\)"):
        train_sft(options(model=str(folder)))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "reason"), [('{"model_type": "nonsense"}', "nonsense"), ('{"model', "not a valid JSON")]
)
def test_a_config_that_transformers_cannot_read_is_one_line(options, small, tmp_path, text, reason):
    folder = tmp_path / "odd"
    shutil.copytree(small / "model", folder)
    (folder / "config.json").write_text(text)
    with pytest.raises(OptionError, match=f"odd cannot be loaded: .*{reason}"):
        train_sft(options(model=str(folder)))
