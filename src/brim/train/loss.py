"""The loss of a batch, summed over what is learned, through whichever attention keeps its segments apart.

Everything that is wrapped for several ranks is in one module, so that an empty microbatch goes through the same forward
pass as any other. The sum, not the mean: a step divides by its own tokens, over all microbatches and ranks, so that how
they were batched does not change what is learned.
"""

import inspect
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from brim.batch import attention
from brim.batch.batch import IGNORED, Batch
from brim.batch.collate import default_collate
from brim.batch.masks import create_segment_attention_mask
from brim.batch.torch import TensorBatch
from brim.core.errors import OptionError
from brim.core.extras import need
from brim.data.sample import Sample
from brim.train.config import Attention
from brim.train.objective import Objective

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:
    torch = need("torch", extra="train", user="brim.train")
    from torch import nn

Segments = Literal["bounds", "dense", "blocks", "none"]
"""The form in which a model gets segments: boundaries, a mask, a mask of blocks; or none, for rows of one sample."""


class SftLoss(Objective):
    """Supervised fine-tuning of a causal model: the summed cross entropy of a `TensorBatch`."""

    def __init__(self, model: Any, segments: Segments) -> None:
        super().__init__(model)
        self.segments: Segments = segments
        self._keeps = (
            "logits_to_keep" in inspect.signature(getattr(model, "get_base_model", lambda: model)().forward).parameters
        )

    def forward(self, batch: TensorBatch) -> "Tensor":
        targets = batch.labels[:, 1:]
        learned = targets != IGNORED
        inputs = model_inputs(batch, self.segments)
        if self._keeps and batch.input_ids.shape[0] == 1:  # the head is computed only where something is learned
            at = torch.nonzero(learned[0])[:, 0]
            logits = self.model(**inputs, logits_to_keep=at).logits[0]
        else:
            logits = self.model(**inputs).logits[:, :-1][learned]
        return nn.functional.cross_entropy(logits.float(), targets[learned], reduction="sum")


def model_inputs(batch: TensorBatch, segments: Segments) -> dict[str, Any]:
    if segments in ("bounds", "none"):
        return batch.inputs()
    inputs = {"input_ids": batch.input_ids, "position_ids": batch.position_ids}
    if segments == "dense":
        mask = create_segment_attention_mask(batch.segment_ids.cpu().numpy(), kind="additive")
        return {**inputs, "attention_mask": torch.from_numpy(mask)[:, None].to(batch.input_ids.device)}
    return {**inputs, "attention_mask": attention.block_mask(_as_batch(batch), batch.input_ids.device)}


FORMS: dict[Attention, Segments] = {
    "flash_attention_2": "bounds",
    "brim": "bounds",
    "flex_attention": "blocks",
    "sdpa": "dense",
    "eager": "dense",
}


def choose_attention(model: Any, wanted: Attention, *, packed: bool, longest: int) -> Segments:
    """Set the model's attention, and return how it is told about segments. Packed rows are tried on the model before
    they are used.

    Raises:
        OptionError: The attention that was asked for is not available, or mixes the samples of packed rows.
    """
    if wanted != "auto":
        _set(model, wanted)
    if not packed:
        return "none"
    candidates: list[Attention] = [wanted] if wanted != "auto" else ["flash_attention_2", "brim", "sdpa", "eager"]
    for name in candidates:
        form = FORMS[name]
        if wanted == "auto" and not _try_set(model, name):
            continue
        if not (form in ("dense", "blocks") and _slides(model, longest)) and keeps_segments_apart(model, form):
            return form
    which = "every kind of attention it has" if wanted == "auto" else f"the attention {wanted}"
    raise OptionError(f"this model does not keep the samples of a packed row apart with {which}; train without --pack")


def _slides(model: Any, longest: int) -> bool:
    """Whether some layers have an attention window shorter than a segment, which one mask for all layers cannot
    express.
    """
    window = getattr(model.config, "sliding_window", None)
    return window is not None and longest > window


def _set(model: Any, name: str) -> None:
    inner = getattr(model, "get_base_model", lambda: model)()
    if name == "flex_attention" and not next(model.parameters()).is_cuda:
        raise OptionError(
            "the attention flex_attention has no backward pass on the CPU; choose another, such as brim or sdpa"
        )
    try:
        inner.set_attn_implementation(attention.register() if name == "brim" else name)
    except (ValueError, ImportError) as error:
        raise OptionError(f"the attention {name} is not available here: {str(error).splitlines()[0]}") from None


def _try_set(model: Any, name: str) -> bool:
    if name == "flash_attention_2" and not next(model.parameters()).is_cuda:
        return False
    try:
        _set(model, name)
    except OptionError:
        return False
    return True


def keeps_segments_apart(model: Any, form: Segments) -> bool:
    """Whether two samples in one row have the logits that each has alone."""
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    size = model.get_input_embeddings().num_embeddings
    samples = [
        Sample(number, np.arange(length) * (7 + number) % size, np.ones(length, np.int32))
        for number, length in enumerate((5, 9))
    ]
    packed = TensorBatch.of(default_collate(samples, dtype=np.int64).flat()).to(device)
    try:
        with torch.no_grad():
            both = model(**model_inputs(packed, form)).logits[0].float()
            rows = [torch.tensor(sample.input_ids[None], dtype=torch.int64, device=device) for sample in samples]
            alone = torch.cat([model(input_ids=row).logits[0].float() for row in rows])
    except (OptionError, TypeError, ValueError, RuntimeError):
        return False  # this model does not take inputs of this form
    finally:
        model.train(training)
    return bool((both - alone).abs().max() <= 1e-3 * alone.abs().max().clamp(min=1))


def _as_batch(batch: TensorBatch) -> Batch:
    arrays = {name: getattr(batch, name).cpu().numpy() for name in ("segment_ids", "labels", "cu_seqlens")}
    tokens, positions = batch.input_ids.cpu().numpy(), batch.position_ids.cpu().numpy()
    loss_mask = (arrays["labels"] != IGNORED).astype("uint8")
    return Batch(**arrays, tokens=tokens, positions=positions, loss_mask=loss_mask, spec=batch.spec)
