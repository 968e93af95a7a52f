"""Rollouts from a model server: its log-probs, its weights and how old they may be."""

from pathlib import Path

import pytest
import torch
from support.generating_server import GeneratingServer
from support.worlds import lines

from brim.core.errors import BrimError, OptionError
from brim.data.tokenizer.base import ByteTokenizer
from brim.train.config import ModelConfig
from brim.train.grpo.run import train_grpo
from brim.train.model import load_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def served(small):
    """Make a server of the model that is trained, or of one with other weights."""
    opened = []

    def make(*, shifted=False, **options):
        tokenizer = ByteTokenizer()
        model = load_model(ModelConfig(output="unused", model=str(small / "model")), tokenizer)
        if shifted:
            with torch.no_grad():
                for weight in model.parameters():
                    weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
        opened.append(GeneratingServer(model, tokenizer, **options))
        return opened[-1]

    yield make
    for server in opened:
        server.close()


def test_weights_are_reloaded_before_every_rollout_and_versions_are_recorded(grpo_options, served):
    server = served()
    config = grpo_options(servers=(server.url,), steps_per_rollout=2, max_steps=6, learning_rate=1e-2)
    result = train_grpo(config, reload=server.reload)
    assert server.loaded == [0, 2, 4]
    assert [report.version for report in result.rollouts] == [0, 2, 4]
    assert all(report.mismatch < 1e-4 for report in result.rollouts)
    assert all(report.correction == pytest.approx(1, abs=1e-3) for report in result.rollouts)
    assert all(body["top_k"] == -1 and body["top_p"] == 1 for body in server.seen)
    assert "password" not in (Path(config.output) / "run.json").read_text()


def test_stale_weights_are_corrected_until_they_are_too_old(grpo_options, served):
    server = served()
    config = grpo_options(servers=(server.url,), max_steps=6, learning_rate=1e-2, max_staleness=3, save_every=None)
    with pytest.raises(BrimError, match=r"weights are those of step 0, and would be 4 steps old.*reload"):
        train_grpo(config)
    found = lines(Path(config.output) / "rollouts.jsonl")
    assert [report["version"] for report in found] == [0, 0, 0, 0]
    assert found[0]["mismatch"] is not None
    assert found[3]["mismatch"] is None
    assert abs(found[3]["correction"] - 1) > 1e-3
    assert list(Path(config.output).glob("checkpoint-*"))


def test_weights_are_reloaded_only_as_often_as_asked(grpo_options, served):
    server = served()
    train_grpo(grpo_options(servers=(server.url,), reload_every=2, max_steps=4), reload=server.reload)
    assert server.loaded == [0, 2]


def test_a_server_with_other_weights_is_refused(grpo_options, served):
    server = served(shifted=True)
    with pytest.raises(BrimError, match="the servers have other weights, or read other tokens"):
        train_grpo(grpo_options(servers=(server.url,)))


def test_a_server_that_does_not_tell_token_ids_cannot_be_trained_on(grpo_options, served):
    server = served(tells_ids=False)
    with pytest.raises(BrimError, match=r"every attempt of rollout 1 failed.*NoTokenIds"):
        train_grpo(grpo_options(servers=(server.url,)))


def test_a_reload_that_fails_ends_the_run_in_one_line(grpo_options, served):
    def broken(directory, step):
        raise ConnectionError("no answer")

    server = served()
    with pytest.raises(BrimError, match="could not load the weights of step 0: reload raised ConnectionError: no an"):
        train_grpo(grpo_options(servers=(server.url,)), reload=broken)
    with pytest.raises(OptionError, match="nowhere"):
        train_grpo(grpo_options("other", servers=(server.url,), reload="nowhere:load"))


def test_correction_bounds_the_weights_and_0_switches_them_off(grpo_options, served):
    server = served()
    changes = {"servers": (server.url,), "max_steps": 4, "learning_rate": 3e-2}
    bounded = train_grpo(grpo_options("bounded", correction=0.5, **changes)).rollouts
    assert all(report.correction <= 0.5 for report in bounded)
    off = train_grpo(grpo_options("off", correction=0.0, **changes)).rollouts
    assert all(report.correction is None for report in off)
