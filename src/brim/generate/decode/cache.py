"""The cache of keys and values while responses are generated: rows that begin at column 0 and differ in length.

The first `count` rows are live. A row that leaves is replaced by the last one, so the live rows stay together without
moving the others. Storage grows by blocks of columns and by rows, one layer at a time. What it holds behind the end
of a row is masked, and always finite.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from brim.core.arrays import round_up
from brim.core.extras import need

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="generate", user="brim.generate")

_Cache: Any = need("transformers", extra="generate", user="brim.generate").Cache

COLUMNS = 64
"""Columns by which storage grows, at least."""

KeyValues = tuple["Tensor", "Tensor"]


class PromptCache(_Cache):
    """Keeps what each layer computes in one forward pass over prompts, as it is: [rows, heads, columns, size]."""

    is_compileable = False

    def __init__(self) -> None:
        self.layers: list[Any] = []
        self.states: dict[int, KeyValues] = {}

    def update(self, key_states: "Tensor", value_states: "Tensor", layer_idx: int, *_: Any, **__: Any) -> KeyValues:
        self.states[layer_idx] = (key_states, value_states)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def row(self, row: int, length: int) -> list[KeyValues]:
        """Return a copy of what the layers computed for the first tokens of a row: [heads, length, size] each."""
        return [
            (keys[row, :, :length].clone(), values[row, :, :length].clone())
            for _, (keys, values) in sorted(self.states.items())
        ]


class RowCache(_Cache):
    """Rows of keys and values. `lengths` holds the number of tokens of each live row."""

    is_compileable = False

    def __init__(self, most_rows: int, most_columns: int) -> None:
        """There will be so many rows at once, and so many tokens in a row, at most."""
        self.layers: list[Any] = []
        self.lengths: list[int] = []
        self._most_rows = most_rows
        self._most_columns = most_columns
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._rows = 0
        self._columns = 0
        self._places: tuple[Tensor, Tensor] | None = None
        self._width = 0

    @property
    def count(self) -> int:
        return len(self.lengths)

    @property
    def slots(self) -> int:
        """Tokens that there is storage for."""
        return self._rows * self._columns

    def add(self, states: Sequence[KeyValues], length: int, copies: int) -> None:
        """Add `copies` rows that begin with these keys and values of `length` tokens."""
        self._reserve(states, self.count + copies, max([length, *self.lengths]) + 1)
        rows = slice(self.count, self.count + copies)
        for layer, (keys, values) in enumerate(states):
            self._keys[layer][rows, :, :length] = keys
            self._values[layer][rows, :, :length] = values
        self.lengths += [length] * copies

    def remove(self, rows: Sequence[int]) -> list[int]:
        """Remove rows. Returns which row is now in each place: entry i is the former number of row i."""
        order = list(range(self.count))
        for row in sorted(rows, reverse=True):
            order[row] = order[-1]
            order.pop()
        moved = [(at, row) for at, row in enumerate(order) if at != row]
        if moved:
            width = max(self.lengths[row] for _, row in moved)
            to = torch.tensor([at for at, _ in moved], device=self._keys[0].device)
            source = torch.tensor([row for _, row in moved], device=self._keys[0].device)
            for stored in (*self._keys, *self._values):
                stored[to, :, :width] = stored[source, :, :width]
        self.lengths = [self.lengths[row] for row in order]
        return order

    def begin_step(self) -> list[int]:
        """Make room for one more token in every live row, and return the lengths with it."""
        new = [length + 1 for length in self.lengths]
        self._width = max(new)
        if self._width > self._columns:
            self._grow(self._rows, self._grown(self._width))
        device = self._keys[0].device
        self._places = (torch.arange(self.count, device=device), torch.tensor(self.lengths, device=device))
        return new

    def end_step(self) -> None:
        """Count the tokens that the step has written. A step that fails is not counted, and can be taken again."""
        self.lengths = [length + 1 for length in self.lengths]

    def update(self, key_states: "Tensor", value_states: "Tensor", layer_idx: int, *_: Any, **__: Any) -> KeyValues:
        assert self._places is not None
        rows, columns = self._places
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[rows, :, columns] = key_states[:, :, 0]
        values[rows, :, columns] = value_states[:, :, 0]
        return keys[: self.count, :, : self._width], values[: self.count, :, : self._width]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return max(self.lengths, default=0)

    def _reserve(self, states: Sequence[KeyValues], rows: int, columns: int) -> None:
        if not self._keys:
            self._keys = [keys.new_empty((0, keys.shape[0], 0, keys.shape[2])) for keys, _ in states]
            self._values = [values.new_empty((0, values.shape[0], 0, values.shape[2])) for _, values in states]
        if rows > self._rows or columns > self._columns:
            columns = self._columns if columns <= self._columns else self._grown(columns)
            if rows > self._rows:
                rows = self._most_rows
            self._grow(max(rows, self._rows), columns)

    def _grow(self, rows: int, columns: int) -> None:
        """Enlarge the storage. If memory runs out on the way, layers that were enlarged stay so and nothing is lost."""
        used = max(self.lengths, default=0)
        for stored in (self._keys, self._values):
            for layer, old in enumerate(stored):
                if old.shape[0] < rows or old.shape[2] < columns:
                    # Zeros: what is masked has weight 0, and 0 times a number that is not finite would not be 0.
                    new = old.new_zeros((rows, old.shape[1], columns, old.shape[3]))
                    new[: self.count, :, :used] = old[: self.count, :, :used]
                    stored[layer] = new
        self._rows, self._columns = rows, columns

    def _grown(self, columns: int) -> int:
        return max(columns, min(round_up(columns + columns // 8, COLUMNS), self._most_columns))
