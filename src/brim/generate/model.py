"""A causal language model of transformers, as generation and scoring see it: unwrapped, in evaluation mode, with its
vocabulary, its end tokens and its context; and logits only where they are asked for.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

from brim.core.errors import OptionError
from brim.core.extras import need
from brim.generate.attention import Layout, attention, attention_configs

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="generate", user="brim.generate")


class CausalModel:
    """A model, and the wrapper around it if there is one, such as DistributedDataParallel."""

    def __init__(self, model: Any) -> None:
        """
        Raises:
            OptionError: It is not a causal language model of transformers.
        """
        self.outer = model
        """The model with its wrapper: gradients go through it, so that the wrapper synchronises them."""
        inner = model
        while not hasattr(inner, "get_output_embeddings") and isinstance(
            getattr(inner, "module", None), torch.nn.Module
        ):
            inner = inner.module
        self.inner: Any = inner
        head = inner.get_output_embeddings() if hasattr(inner, "get_output_embeddings") else None
        if head is None or not hasattr(inner, "config"):
            raise OptionError(
                f"model must be a causal language model of transformers, got {type(model).__name__}; it needs a config "
                "and an output layer"
            )
        self.head: Any = head
        self.config: Any = inner.config.get_text_config() if hasattr(inner.config, "get_text_config") else inner.config

    @property
    def name(self) -> str:
        return str(getattr(self.config, "name_or_path", "") or "") or type(self.inner).__name__

    @property
    def device(self) -> "torch.device":
        return self.inner.get_input_embeddings().weight.device

    @property
    def dtype(self) -> "torch.dtype":
        return self.inner.get_input_embeddings().weight.dtype

    @property
    def computes_in(self) -> "torch.dtype":
        """The type that matrix products are computed in: that of the weights, or the caller's autocast."""
        kind = self.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.dtype

    @property
    def known_tokens(self) -> int:
        """Number of ids that the model can read."""
        return int(self.inner.get_input_embeddings().weight.shape[0])

    @property
    def vocabulary(self) -> int:
        """Number of ids that the model can write."""
        return int(self.head.weight.shape[0])

    @property
    def context(self) -> int | None:
        """Upper limit of the tokens of a prompt and its response together; None if the model states none."""
        positions = getattr(self.config, "max_position_embeddings", None)
        return int(positions) if positions else None

    @property
    def window(self) -> int | None:
        """Tokens that a layer with local attention sees, at most; None if all layers see everything before them."""
        config = self.config
        kinds = getattr(config, "layer_types", None) or ("sliding_attention", "chunked_attention")
        found: list[int] = []
        if getattr(config, "use_sliding_window", True) and "sliding_attention" in kinds:
            found.append(getattr(config, "sliding_window", None) or 0)
        if "chunked_attention" in kinds:
            found.append(getattr(config, "attention_chunk_size", None) or 0)
        return min((int(size) for size in found if size), default=None)

    @property
    def bytes_per_cached_token(self) -> int:
        """Bytes of the keys and values of one token, by the model's shape."""
        config = self.config
        all_heads = getattr(config, "num_attention_heads", None) or 1
        heads = getattr(config, "num_key_value_heads", None) or all_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // all_heads
        return 2 * int(config.num_hidden_layers) * int(heads) * int(size) * self.dtype.itemsize

    def bytes_per_scored_token(self, *, grad: bool) -> int:
        """Bytes that one token takes in a forward pass, estimated by the model's shape.

        Without gradients, the states of one layer exist at a time; with gradients, those of all layers.
        """
        hidden = int(self.config.hidden_size)
        inner = int(
            getattr(self.config, "intermediate_size", None) or getattr(self.config, "n_inner", None) or 4 * hidden
        )
        one_layer = (10 * hidden + 3 * inner) * self.dtype.itemsize
        return one_layer * (int(self.config.num_hidden_layers) if grad else 1)

    def end_tokens(self, tokenizer_end: int | None) -> tuple[int, ...]:
        """Return the ids that end a response: those of the model's generation options, its config and its tokenizer."""
        options = getattr(self.inner, "generation_config", None)
        found: list[int] = []
        for value in (getattr(options, "eos_token_id", None), self.config.eos_token_id, tokenizer_end):
            values = value if isinstance(value, list | tuple) else [value]
            found += [int(one) for one in values if one is not None]
        return tuple(dict.fromkeys(found))

    @contextmanager
    def evaluating(self) -> Generator[None, None, None]:
        """Put the model into evaluation mode inside the block, and every module back into its own mode at the end."""
        in_training = [module for module in self.outer.modules() if module.training]
        if in_training:
            self.outer.eval()
        try:
            yield
        finally:
            for module in in_training:
                module.training = True

    def unsynchronised(self) -> AbstractContextManager[None]:
        """Return a context in which a backward pass does not synchronise gradients, if a wrapper would."""
        return self.outer.no_sync() if hasattr(self.outer, "no_sync") else nullcontext()

    @contextmanager
    def attending(self, layout: Layout) -> Generator[None, None, None]:
        """Let the model attend as the layout says, inside the block.

        Raises:
            UnsupportedAttention: The model's attention cannot be exchanged, or computes something else.
        """
        with attention(self._attention_configs, layout):
            yield

    @cached_property
    def _attention_configs(self) -> list[Any]:
        return attention_configs(self.inner)

    @contextmanager
    def adapters(self, used: bool) -> Generator[None, None, None]:
        """Compute without the model's LoRA adapters inside the block, unless `used`.

        Raises:
            OptionError: The model has none.
        """
        if used:
            yield
            return
        if not hasattr(self.inner, "disable_adapter"):
            raise OptionError(
                f"adapter=False asks for the model without its LoRA adapters, but {type(self.inner).__name__} has none"
            )
        with self.inner.disable_adapter():
            yield

    @contextmanager
    def head_input(self, replace: "Callable[[Tensor], Tensor]") -> Generator[None, None, None]:
        """Pass the hidden states in front of the output layer through `replace`, inside the block.

        The model computes logits for what `replace` returns, so choosing positions there saves all other logits.
        """

        def hook(module: Any, inputs: "tuple[Tensor, ...]") -> "tuple[Tensor, ...]":
            return (replace(inputs[0]), *inputs[1:])

        handle = self.head.register_forward_pre_hook(hook)
        try:
            yield
        finally:
            handle.remove()
