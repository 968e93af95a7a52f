"""A step whose loss is not finite, saved to be examined: the weights before it and the microbatches that caused it."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from brim.batch.torch import TENSORS, TensorBatch
from brim.core.atomic import atomic_directory
from brim.core.extras import need
from brim.data.tokenizer.base import Tokenizer, load_tokenizer
from brim.plan.epoch import MicrobatchSpec
from brim.plan.position import CheckpointPosition
from brim.train.checkpoint import MODEL
from brim.train.config import CausalConfig
from brim.train.loss import Segments, SftLoss, choose_attention
from brim.train.model import TOKENIZER, load_adapter, load_model, save_model

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="train", user="brim.train")

KNOWN = tuple(field.name for field in fields(CausalConfig))
"""The options that decide how a model is loaded, whichever trainer they are of."""
INDEX, SCRIPT = "repro.json", "repro.py"
COUNTS = ("longest", "num_loss_tokens", "num_tokens")
FACTS = ("ids", "epoch", "index", "packed", *COUNTS, "ends_step")
"""Fields of repro.json for each batch, beside the position after it."""
TEXT = '''"""The loss of each microbatch of a step that was not finite: python repro.py"""

from pathlib import Path

import torch

from brim.train.failed_step import load_repro

module, batches = load_repro(Path(__file__).parent)
for batch in batches:
    with torch.no_grad():
        loss = float(module(batch))
    where = f"microbatch {batch.index} of epoch {batch.epoch}"
    print(f"{where}: loss sum {loss} over {batch.num_loss_tokens} tokens; samples {batch.ids}")
'''


def save_repro(
    directory: Path,
    config: CausalConfig,
    model: Any,
    weights: "dict[str, Tensor]",
    tokenizer: Tokenizer,
    batches: list[TensorBatch],
) -> None:
    """Save the weights, the microbatches, and a script that computes their losses again."""
    with atomic_directory(directory, replaces=lambda there: (there / INDEX).exists()) as target:
        save_model(target / MODEL, model, weights, tokenizer)
        listed: list[dict[str, Any]] = []
        for number, batch in enumerate(batches):
            np.savez(target / f"batch_{number}.npz", **{name: getattr(batch, name).cpu().numpy() for name in TENSORS})
            facts = {name: getattr(batch, name) for name in FACTS}
            listed.append({**facts, "after": None if batch.after is None else asdict(batch.after)})
        content = {"config": config.to_dict(), "batches": listed}
        (target / INDEX).write_text(json.dumps(content, indent=2) + "\n")
        (target / SCRIPT).write_text(TEXT)


def load_repro(directory: Path) -> tuple[SftLoss, list[TensorBatch]]:
    """Load the module as it was trained, and the microbatches."""
    content = json.loads((directory / INDEX).read_bytes())
    config = CausalConfig.from_dict({name: content["config"][name] for name in KNOWN if name in content["config"]})
    stored = directory / MODEL / TOKENIZER
    tokenizer = load_tokenizer(json.loads(stored.read_bytes())["tokenizer"] if stored.is_file() else directory / MODEL)
    model: Any = load_model(config if config.lora_rank else replace(config, model=str(directory / MODEL)), tokenizer)
    if config.lora_rank:
        load_adapter(model, directory)
    batches: list[TensorBatch] = []
    for number, facts in enumerate(content["batches"]):
        with np.load(directory / f"batch_{number}.npz", allow_pickle=False) as arrays:
            tensors: dict[str, Any] = {name: torch.from_numpy(arrays[name]) for name in TENSORS}
        counts = {name: facts[name] for name in COUNTS}
        batches.append(TensorBatch(**tensors, **counts, spec=_stored_spec(facts, tensors)))
    longest = max(batch.longest for batch in batches)
    segments: Segments = choose_attention(
        model, config.attention, packed=any(batch.packed for batch in batches), longest=longest
    )
    return SftLoss(model, segments), batches


def _stored_spec(facts: dict[str, Any], tensors: "dict[str, Tensor]") -> MicrobatchSpec:
    """Make the spec of a saved microbatch. Row numbers are not saved, so its samples count as rows 0, 1, 2, ..."""
    lengths = np.diff(tensors["cu_seqlens"].numpy())
    spec = MicrobatchSpec.unplanned(facts["ids"], lengths, tensors["input_ids"].shape[1], packed=facts["packed"])
    return replace(
        spec,
        epoch=facts["epoch"],
        index=facts["index"],
        after=None if facts["after"] is None else CheckpointPosition(**facts["after"]),
        last_of_step=facts["ends_step"],
    )
