"""Algorithm distillation with a compressed memory: a model that reads a learning history and acts as the learner would
next.

A history is cut into stages, oldest first, and the context, its most recent stretch. One encoder, the same for every
stage, reads the latents of the stage before and the steps of its own, and gives a fixed number of latents. A causal
decoder reads the last latents and the context, and predicts the action that is taken at each of its steps.

Padding is on the right and never reaches a real step: stages are masked, and what is causal does not look right. So a
sample has the same loss alone and in a batch. The loss is the mean over a sample's own steps, then over samples: every
sample counts equally, however long.
"""

from typing import TYPE_CHECKING, Any

from brim.core.errors import DataError
from brim.core.extras import need
from brim.envs.darkroom.room import ACTIONS
from brim.train.distill.config import ModelConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
else:
    torch = need("torch", extra="train", user="brim.train")
    nn, functional = torch.nn, torch.nn.functional


class CompressedAD(nn.Module):
    """The model. `batch` is as `collate_compressed_batch` makes it: every row of it has equally many stages."""

    def __init__(self, config: ModelConfig, *, size: int, window: int) -> None:
        """For a room of `size` x `size` cells, and stretches of at most `window` steps."""
        super().__init__()
        self.config, self.window = config, window
        self.steps = StepEmbedding(config.width, size, window)
        self.encoder = Encoder(config)
        self.decoder = nn.ModuleList(Block(config.width, config.heads) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, ACTIONS)
        self.apply(_initialise)

    def forward(self, batch: dict[str, Any]) -> "Tensor":
        """The logits of the action at every step of the context. [rows, steps, actions]"""
        return self.decode(self.compress(batch["compression_stages"]), batch["context"])

    def loss(self, batch: dict[str, Any]) -> "Tensor":
        """The mean cross-entropy over a sample's steps, then over samples."""
        context, logits = batch["context"], self(batch)
        mask = context["mask"]
        if not bool(mask.any(dim=1).all()):
            raise DataError("a sample without context has no action to predict")
        targets = context["targets"].masked_fill(~mask, 0)
        losses = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none") * mask
        return (losses.sum(dim=1) / mask.sum(dim=1)).mean()

    def compress(self, stages: list[dict[str, Any]], latents: "Tensor | None" = None) -> "Tensor | None":
        """The latents of the last stage, behind those of earlier stages if there are any; none without stages.

        [rows, latents, width]
        """
        for stage in stages:
            latents = self.encoder(latents, self.steps(stage), stage["mask"])
        return latents

    def decode(self, latents: "Tensor | None", context: dict[str, Any]) -> "Tensor":
        """Return what `forward` returns, for latents that are computed already."""
        return Decoding(self, latents).read(context)


class Decoding:
    """A context that may grow: what the decoder has read of it is kept, and read once."""

    def __init__(self, model: CompressedAD, latents: "Tensor | None") -> None:
        self._model, self._latents, self._place = model, latents, 0
        self._seen: list[tuple[Tensor, Tensor] | None] = [None] * len(model.decoder)

    def read(self, steps: dict[str, Any]) -> "Tensor":
        """The logits of the action at each of some steps: all of a context, or the next one. [rows, steps, actions]"""
        count = steps["actions"].shape[1]
        if self._place and count > 1:
            raise DataError(
                f"a context is read at once, or step by step; got {count} steps behind {self._place} others"
            )
        x = self._model.steps(steps, place=self._place)
        if self._latents is not None and not self._place:
            x = torch.cat([self._latents, x], dim=1)
        for number, block in enumerate(self._model.decoder):
            x, self._seen[number] = block(x, self._seen[number])
        self._place += count
        return self._model.head(self._model.norm(x[:, -count:]))


class StepEmbedding(nn.Module):
    """A token for each step: the cell, the action and the reward that led there, and the place in the stretch."""

    def __init__(self, width: int, size: int, window: int) -> None:
        super().__init__()
        self.x, self.y = nn.Embedding(size, width), nn.Embedding(size, width)
        self.action = nn.Embedding(ACTIONS + 1, width)
        self.reward = nn.Linear(1, width)
        self.place = nn.Embedding(window, width)

    def forward(self, stretch: dict[str, Any], *, place: int = 0) -> "Tensor":
        """Embed steps that begin at index `place` of their stretch. Returns [rows, steps, width]."""
        states, actions = stretch["states"], stretch["actions"]
        end = place + actions.shape[1]
        if end > self.place.num_embeddings:
            raise DataError(f"a stretch has {end} steps, and the model's window {self.place.num_embeddings}")
        token = (
            self.x(states[..., 0])
            + self.y(states[..., 1])
            + self.action(actions)
            + self.reward(stretch["rewards"].unsqueeze(-1))
        )
        return token + self.place.weight[place:end]


class Encoder(nn.Module):
    """A stage to latents: learned queries look at the latents before them and at the steps of the stage."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(config.latents, config.width) * 0.02)
        self.norm = nn.LayerNorm(config.width)
        self.blocks = nn.ModuleList(Reader(config.width, config.heads) for _ in range(config.encoder_layers))
        self.out = nn.LayerNorm(config.width)

    def forward(self, latents: "Tensor | None", steps: "Tensor", mask: "Tensor") -> "Tensor":
        """[rows, latents, width], [rows, steps, width] and [rows, steps] -> [rows, latents, width]"""
        rows, memory = len(steps), self.norm(steps)
        queries = self.queries.expand(rows, -1, -1)
        if latents is not None:
            queries = queries + latents
            memory = torch.cat([latents, memory], dim=1)
            mask = torch.cat([mask.new_ones(rows, latents.shape[1]), mask], dim=1)
        for block in self.blocks:
            queries = block(queries, memory, mask)
        return self.out(queries)


class Reader(nn.Module):
    """A layer of the encoder: queries attend to a memory, of which only what is real."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.query, self.memory, self.out = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )
        self.mlp = Mlp(width)

    def forward(self, x: "Tensor", memory: "Tensor", mask: "Tensor") -> "Tensor":
        query = _split(self.query(self.before(x)), self.heads)
        key, value = (_split(part, self.heads) for part in self.memory(memory).chunk(2, dim=-1))
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
        return self.mlp(x + self.out(_join(seen)))


class Block(nn.Module):
    """A layer of the decoder: causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = Mlp(width)

    def forward(self, x: "Tensor", before: "tuple[Tensor, Tensor] | None") -> "tuple[Tensor, tuple[Tensor, Tensor]]":
        """`before` has the keys and values of what comes before `x`, of which there is one step then; the result has
        them of all.
        """
        query, key, value = (_split(part, self.heads) for part in self.qkv(self.before(x)).chunk(3, dim=-1))
        if before is not None:
            key, value = torch.cat([before[0], key], dim=2), torch.cat([before[1], value], dim=2)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=before is None)
        return self.mlp(x + self.out(_join(seen))), (key, value)


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: "Tensor") -> "Tensor":
        return x + self.down(functional.gelu(self.up(self.before(x))))


def _split(x: "Tensor", heads: int) -> "Tensor":
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _join(x: "Tensor") -> "Tensor":
    return x.transpose(1, 2).flatten(2)


def _initialise(module: "nn.Module") -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
