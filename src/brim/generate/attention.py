"""Attention for generating and scoring: three layouts of the same causal rule, without a mask of length x length.

    Causal    rows that begin together and are padded at the end, which causal attention never sees
    Tree      one flat row of trees: a prompt once, and behind it the responses, which see it and themselves
    Rows      one new token in each row of a cache, whose rows differ in length

Transformers calls `attend`, which is registered as an attention function, and `attend` asks the layout of the moment.
A model whose attention computes something else (capped scores, sinks, a bias, a sliding window) is refused with
`UnsupportedAttention`; such models are run with their own attention, in layouts that need no help of ours.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from brim.batch.attention import CHANGES
from brim.core.errors import BrimError
from brim.core.extras import need
from brim.generate.score.plan import DENSE

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="generate", user="brim.generate")

NAME = "brim_generate"


class UnsupportedAttention(BrimError):  # noqa: N818  a reason, caught where the layout is chosen
    """The model's attention computes something that these layouts do not."""


class Layout(Protocol):
    """How the tokens of a forward pass see each other."""

    longest: int
    """Tokens that the longest sequence spans."""

    def attend(self, query: "Tensor", key: "Tensor", value: "Tensor", scaling: float | None) -> "Tensor":
        """Return [rows, heads, length, size] for queries of that shape."""
        ...


_layout: ContextVar[Layout | None] = ContextVar("brim_generate_layout", default=None)


@contextmanager
def attention(configs: Sequence[Any], layout: Layout) -> Generator[None, None, None]:
    """Let a model attend as the layout says, inside the block. Its own choice of attention is restored.

    `configs` are those that `attention_configs` returned for the model.

    Raises:
        UnsupportedAttention: Transformers cannot exchange the attention of this model. Forward passes inside the block
            raise it, too.
    """
    if not configs:
        raise UnsupportedAttention("its attention cannot be exchanged")
    before = [config._attn_implementation for config in configs]
    token = _layout.set(layout)
    try:
        for config in configs:
            config._attn_implementation_internal = NAME
        yield
    finally:
        _layout.reset(token)
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation_internal = name


def attention_configs(model: Any) -> list[Any]:
    """Return the configurations that the model's attention modules read, each once, ready for `attention`."""
    transformers = need("transformers", extra="generate", user="brim.generate")
    transformers.AttentionInterface.register(NAME, attend)
    found = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    return [config for config in found.values() if hasattr(config, "_attn_implementation_internal")]


def attend(
    module: Any,
    query: "Tensor",
    key: "Tensor",
    value: "Tensor",
    attention_mask: "Tensor | None" = None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> "tuple[Tensor, None]":
    """Compute attention in the layout of the moment. The signature is the one that transformers requires."""
    layout = _layout.get()
    if layout is None:
        raise BrimError(f"the attention {NAME} works only inside brim.generate.attention.attention")
    for name, what in CHANGES.items():
        if others.get(name) is not None:
            raise UnsupportedAttention(f"it {what}")
    if attention_mask is not None:
        raise UnsupportedAttention("it has a mask of its own")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise UnsupportedAttention("it is not causal")
    if sliding_window is not None and layout.longest > sliding_window:
        raise UnsupportedAttention(f"it has a sliding window of {sliding_window} tokens")
    if dropout:
        raise UnsupportedAttention("it drops attention weights at random")
    return layout.attend(query, key, value, scaling).transpose(1, 2), None


def _sdpa(query: "Tensor", key: "Tensor", value: "Tensor", scaling: float | None, **how: Any) -> "Tensor":
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, scale=scaling, enable_gqa=query.shape[1] != key.shape[1], **how
    )


class Causal:
    """Rows that begin at their first column. What a row has behind its end does not reach its tokens."""

    def __init__(self, longest: int) -> None:
        self.longest = longest

    def attend(self, query: "Tensor", key: "Tensor", value: "Tensor", scaling: float | None) -> "Tensor":
        return _sdpa(query, key, value, scaling, is_causal=True)


class Span(NamedTuple):
    """One tree of a flat row: the lengths of its prompt and of its responses."""

    prompt: int
    responses: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return self.prompt + sum(self.responses)


class Tree:
    """One flat row of trees. A response sees the prompt of its tree and its own tokens, nothing of other responses."""

    def __init__(self, spans: Sequence[Span], device: Any) -> None:
        self.longest = max(span.prompt + max(span.responses, default=0) for span in spans)
        self._dense = _Dense(spans, device) if all(span.tokens <= DENSE for span in spans) else None
        self._spans = spans
        self._sizes = [size for span in spans for size in (span.prompt, *span.responses)]
        widest = max((max(span.responses, default=0) for span in spans), default=0)
        at = torch.arange(widest, device=device)
        self._below = at[:, None] >= at[None, :]

    def attend(self, query: "Tensor", key: "Tensor", value: "Tensor", scaling: float | None) -> "Tensor":
        if self._dense is not None:
            return self._dense.attend(query, key, value, scaling)
        # Split, not sliced: the gradient of a split is one concatenation, that of each slice a tensor of the whole row.
        queries, keys, values = (list(states.split(self._sizes, dim=2)) for states in (query, key, value))
        attended: list[Tensor] = []
        at = 0
        for span in self._spans:
            root = at
            attended.append(_sdpa(queries[at], keys[at], values[at], scaling, is_causal=True))
            at += 1
            for size in span.responses:
                if size:
                    seen = torch.cat([keys[root], keys[at]], dim=2)
                    read = torch.cat([values[root], values[at]], dim=2)
                    mask = self._mask(span.prompt, size)
                    attended.append(_sdpa(queries[at], seen, read, scaling, attn_mask=mask))
                at += 1
        return torch.cat(attended, dim=2)

    def _mask(self, prompt: int, size: int) -> "Tensor":
        """Return which of prompt + size keys each of `size` queries sees, [size, prompt + size]."""
        return torch.nn.functional.pad(self._below[:size, :size], (prompt, 0), value=True)


class _Dense:
    """Short trees, each in a row of its own with a mask: many of them need one call of the attention kernel."""

    def __init__(self, spans: Sequence[Span], device: Any) -> None:
        tokens = np.array([span.tokens for span in spans], np.int64)
        self._rows, self._width = len(spans), int(tokens.max())
        columns = np.arange(self._width)
        there = columns[None, :] < tokens[:, None]
        begins = np.cumsum(tokens) - tokens
        # What stands behind the end of a tree is any token; only it sees it.
        self._from = torch.from_numpy(np.where(there, begins[:, None] + columns, 0).reshape(-1)).to(device)
        self._to = torch.from_numpy(np.flatnonzero(there)).to(device)
        branch = np.zeros((self._rows, self._width), np.int32)  # 0 for the prompt, then the number of the response
        for row, span in enumerate(spans):
            sizes = (span.prompt, *span.responses)
            branch[row, : span.tokens] = np.repeat(np.arange(len(sizes)), sizes)
        own = branch[:, :, None] == branch[:, None, :]
        seen = (own | (branch[:, None, :] == 0)) & there[:, None, :] & (columns[:, None] >= columns[None, :])
        seen |= np.eye(self._width, dtype=np.bool_)
        self._mask = torch.from_numpy(seen[:, None]).to(device)

    def attend(self, query: "Tensor", key: "Tensor", value: "Tensor", scaling: float | None) -> "Tensor":
        queries, keys, values = (self._spread(states) for states in (query, key, value))
        attended = _sdpa(queries, keys, values, scaling, attn_mask=self._mask)  # [rows, heads, width, size]
        flat = attended.transpose(0, 1).reshape(1, query.shape[1], self._rows * self._width, value.shape[-1])
        return flat.index_select(2, self._to)

    def _spread(self, states: "Tensor") -> "Tensor":
        """Return [rows, heads, width, size] from one flat row."""
        picked = states[0].index_select(1, self._from)
        return picked.view(states.shape[1], self._rows, self._width, states.shape[3]).transpose(0, 1)


class Rows:
    """One new token for each row of a cache. Row i sees its first `lengths[i]` columns, the last of which is new."""

    def __init__(self, lengths: Sequence[int], device: Any) -> None:
        self.longest = max(lengths)
        self._mask: Tensor | None = None
        if min(lengths) < self.longest:
            columns = torch.arange(self.longest, device=device)
            ends = torch.tensor(lengths, device=device)
            self._mask = (columns[None, :] < ends[:, None])[:, None, None, :]  # [rows, 1, 1, columns]

    def attend(self, query: "Tensor", key: "Tensor", value: "Tensor", scaling: float | None) -> "Tensor":
        rows, heads, _, size = query.shape
        # Heads that share keys become queries of one head, so that no key is copied.
        packed = query.view(rows, key.shape[1], heads // key.shape[1], size)
        attended = _sdpa(packed, key, value, scaling, attn_mask=self._mask)
        return attended.reshape(rows, heads, 1, value.shape[-1])
