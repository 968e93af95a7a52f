"""AdamW, and its moments by the names of the weights: they outlive the process, the number of ranks and the way they
were sharded.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.core.errors import DamagedError
from brim.core.extras import need

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="train", user="brim.train")

OPTIMIZER = "optimizer.safetensors"
"""The file of a checkpoint that holds the moments."""
RNG = "torch.rng"


def named_weights(module: Any) -> "dict[str, torch.nn.Parameter]":
    """Return the weights that are trained, by the names they have in the unwrapped model."""
    found = {name.removeprefix("module.").removeprefix("model."): weight for name, weight in module.named_parameters()}
    return {name: weight for name, weight in found.items() if weight.requires_grad}


def make_optimizer(
    weights: "dict[str, torch.nn.Parameter]", weight_decay: float, *, fused: bool
) -> "torch.optim.AdamW":
    """Make an AdamW that decays matrices only; vectors (norms, biases) do not decay."""
    matrices = [weight for weight in weights.values() if weight.ndim > 1]
    vectors = [weight for weight in weights.values() if weight.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.0, fused=fused)


def moments(optimizer: "torch.optim.AdamW", weights: "dict[str, torch.nn.Parameter]") -> "dict[str, Tensor]":
    """Return the moments as whole tensors, by the names of the weights.

    Where weights are sharded, every rank must call this.
    """
    return {
        f"{name}|{key}": whole(value)
        for name, weight in weights.items()
        for key, value in optimizer.state.get(weight, {}).items()
    }


def restore_moments(
    optimizer: "torch.optim.AdamW", weights: "dict[str, torch.nn.Parameter]", saved: "dict[str, Tensor]"
) -> None:
    """Give an optimizer the moments of a checkpoint.

    Raises:
        DamagedError: They belong to other weights.
    """
    by_name: dict[str, dict[str, Tensor]] = {}
    for key, value in saved.items():
        name, _, what = key.rpartition("|")
        by_name.setdefault(name, {})[what] = value
    by_name.pop("", None)  # what is not a moment
    if by_name and by_name.keys() != weights.keys():
        other = sorted(by_name.keys() ^ weights.keys())
        raise DamagedError(f"the checkpoint's optimizer is of other weights than the model's, such as {other[0]}")
    for name, values in by_name.items():
        weight = weights[name]
        optimizer.state[weight] = {key: value if key == "step" else _as(value, weight) for key, value in values.items()}


def save_moments(path: Path, moments: "dict[str, Tensor]") -> None:
    """Write the moments of the optimizer, with the state of torch's generator for models that draw from it outside of
    brim.
    """
    safetensors = need("safetensors.torch", extra="train", user="brim.train")
    safetensors.save_file({**moments, RNG: torch.get_rng_state()}, path)


def load_moments(path: Path) -> "dict[str, Tensor]":
    """Read what `save_moments` wrote, and set torch's generator."""
    state = need("safetensors.torch", extra="train", user="brim.train").load_file(path)
    torch.set_rng_state(state.pop(RNG))
    return state


def whole(tensor: "Tensor") -> "Tensor":
    full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # pyright: ignore[reportAttributeAccessIssue]
    return full.detach().cpu().contiguous()


def _as(value: "Tensor", weight: Any) -> "Tensor":
    """Put a moment on the device of its weight, sharded like it."""
    if not hasattr(weight, "device_mesh"):
        return value.to(weight.device)
    distribute = need("torch.distributed.tensor", extra="train", user="brim.train").distribute_tensor
    return distribute(value.to(weight.device), weight.device_mesh, weight.placements)
