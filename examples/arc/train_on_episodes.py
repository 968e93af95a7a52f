"""Train a small transformer on solved ARC episodes, and test it on rules that it never saw.

    python examples/arc/train_on_episodes.py            # under a minute
    python examples/arc/train_on_episodes.py --quick    # a look at what it does; too short to learn

The tasks are generated: an object moves up, down, left or right by one or two cells. The model sees one demonstration
and the grid to work on, and learns the actions that solve it. No rule that is held out (a direction, a distance and a
colour) is among those of the training tasks.
"""

import argparse
import tempfile

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from brim.data.tokenizer.arc import ID, ArcTokenizer
from brim.envs.arc import (
    ArcEpisode,
    JaxArcConfig,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
    family_tasks,
    replay,
    solution,
)
from brim.plan import BatchingConfig
from brim.stream import StreamSample
from brim.stream.arc import ArcEpisodeStream, ArcSampleConfig
from brim.train import SftConfig, train_sft

SIZE = 5
SUBMIT = ID["op34"]
OPTIONS = ArcSampleConfig(only_solved=True, demonstrations=1, grids="none")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="Train for a few steps only.")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)

    # Every pair of every task becomes an episode that the shortest actions solve.
    train = ArcEpisodeStream(episodes(20 if quick else 400), OPTIONS)
    held_out = list(ArcEpisodeStream(episodes(10 if quick else 50, held_out=True), OPTIONS))
    lengths = train.lengths()  # from the sizes of grids and selections: no tokens are written yet
    samples = list(train)
    assert lengths.lengths.tolist() == [sample.length for sample in samples]
    print(f"{len(samples)} samples of solved episodes, {lengths.lengths.mean():.0f} tokens each")
    print(f"{len(held_out)} samples of rules that are held out")
    print(ArcTokenizer().decode(samples[0].input_ids[-30:]))

    model = make_model()
    before = measure(model, held_out)
    print(f"before: {before.text}")
    with tempfile.TemporaryDirectory() as folder:
        result = train_sft(
            SftConfig(
                output=f"{folder}/run",
                tokenizer="arc",
                epochs=1 if quick else 4,
                learning_rate=4e-3,
                batching=BatchingConfig(token_budget=2048),
            ),
            model=model,
            data=[sample.to_sample() for sample in samples],
        )
    after = measure(model, held_out)
    print(f"after:  {after.text}")
    print(f"measured: {result.steps} steps in {result.seconds:.0f} s")
    assert after.loss < before.loss
    assert quick or after.moves > 0.5, "a model that always answers with the same move is right in about a quarter"


def episodes(tasks: int, *, held_out: bool = False) -> list[ArcEpisode]:
    config = JaxArcConfig(
        dataset=UnifiedDatasetConfig(max_grid_height=SIZE, max_grid_width=SIZE),
        action=UnifiedActionConfig(selection_format="bbox"),
    )
    return [
        replay(task, config, solution(task, pair.input), kind=kind, pair=number)
        for task in family_tasks(tasks, kinds=["move"], size=SIZE, held_out=held_out)
        for kind, pairs in (("train", task.train), ("test", task.test))
        for number, pair in enumerate(pairs)
    ]


def make_model() -> GPT2LMHeadModel:
    """Two layers with learned positions, which tell the cells of a grid apart. Random weights are larger than in GPT-2,
    which is a hundred times wider."""
    shape = GPT2Config(
        vocab_size=ArcTokenizer.vocab_size,
        n_embd=48,
        n_layer=2,
        n_head=4,
        n_positions=256,
        initializer_range=0.1,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=ArcTokenizer.bos_id,
        eos_token_id=ArcTokenizer.eos_id,
    )
    torch.manual_seed(0)
    return GPT2LMHeadModel(shape)


class Measured:
    """The mean loss of the tokens of actions, and the shares of actions that are predicted right, token by token."""

    def __init__(self, losses: list[float], moves: list[bool], submissions: list[bool]) -> None:
        self.loss = float(np.mean(losses))
        self.moves = float(np.mean(moves))
        self.submissions = float(np.mean(submissions))

    @property
    def text(self) -> str:
        return f"loss {self.loss:.2f}, right: {self.moves:.0%} of the moves, {self.submissions:.0%} of the submissions"


def measure(model: GPT2LMHeadModel, samples: list[StreamSample]) -> Measured:
    losses: list[float] = []
    right: dict[bool, list[bool]] = {True: [], False: []}
    model.eval()
    for sample in samples:
        tokens = torch.tensor(sample.input_ids, dtype=torch.long)
        with torch.inference_mode():
            scores = model(tokens[None]).logits[0, :-1]
        learned = np.flatnonzero(sample.loss_mask[1:])
        losses += torch.nn.functional.cross_entropy(scores, tokens[1:], reduction="none")[learned].tolist()
        hits = (scores.argmax(-1) == tokens[1:]).numpy()[learned]
        words = sample.input_ids[1:][learned]
        # The tokens of an action end with `step`.
        ends = np.flatnonzero(words == ID["step"]) + 1
        for begin, end in zip([0, *ends[:-1]], ends, strict=True):
            right[words[begin] == SUBMIT].append(bool(hits[begin:end].all()))
    return Measured(losses, moves=right[False], submissions=right[True])


if __name__ == "__main__":
    main()
