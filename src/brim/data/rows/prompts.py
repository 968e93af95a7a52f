"""A cache of tokenised prompts, for responses that are generated later.

A model reads a prompt before it writes a response, and the two together become a sample afterwards. `Prompts` caches
the tokens of the prompt in between, so that it is tokenised once. The tokens are exactly those that `encode_rows` gives
for the whole row.
"""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

import numpy as np

from brim.core.options import check_counts
from brim.data.rows.encode import Mask, Where, encode_rows
from brim.data.rows.format import RowFormat
from brim.data.tokenizer.base import Tokenizer, Tokens

LAYOUT = RowFormat(shape="prompt").layout({"prompt": "", "response": ""})
"""The layout of rows of {"prompt", "response"}."""


class Prompts:
    """A cache of the tokens of up to `limit` prompts; the least recently used are evicted. Can be shared by threads.

    Example:
        >>> from brim.data.tokenizer.base import ByteTokenizer
        >>> prompts = Prompts(ByteTokenizer())
        >>> prompts.tokens("a").tolist()
        [97, 10]
        >>> [(tokens, mask)] = prompts.rows([("a", "b")], str)
        >>> mask.tolist()
        [0, 0, 1, 1]
    """

    def __init__(self, tokenizer: Tokenizer, *, limit: int = 4096) -> None:
        check_counts(limit=limit)
        self.tokenizer = tokenizer
        self._limit = limit
        self._known: OrderedDict[str, Tokens] = OrderedDict()
        self._lock = Lock()

    def tokens(self, prompt: str) -> Tokens:
        """Return the tokens that come before a response: the start token, if any, the prompt, and a newline."""
        known = self._remembered([prompt])[0]
        if known is not None:
            return known
        row = {"prompt": prompt, "response": "."}  # any response will do: it is encoded separately from the prompt
        [(tokens, mask)] = encode_rows([row], self.tokenizer, LAYOUT, lambda _: "a prompt")
        read = tokens[mask == 0]
        with self._lock:
            self._known[prompt] = read
            while len(self._known) > self._limit:
                self._known.popitem(last=False)
        return read

    def rows(self, pairs: Sequence[tuple[str, str]], where: Where) -> list[tuple[Tokens, Mask]]:
        """Return the tokens and the loss mask of each pair of prompt and response. `where(k)` names the k-th pair in
        errors.

        Raises:
            DataError: A text cannot be tokenised.
        """
        known = self._remembered([prompt for prompt, _ in pairs])
        # A cached prompt is replaced by a short one, whose tokens are then replaced by the cached ones.
        rows = [
            {"prompt": prompt if read is None else ".", "response": response}
            for (prompt, response), read in zip(pairs, known, strict=True)
        ]
        encoded = encode_rows(rows, self.tokenizer, LAYOUT, where)
        return [row if read is None else _with_prompt(read, *row) for read, row in zip(known, encoded, strict=True)]

    def _remembered(self, prompts: Sequence[str]) -> list[Tokens | None]:
        with self._lock:
            for prompt in prompts:
                if prompt in self._known:
                    self._known.move_to_end(prompt)
            return [self._known.get(prompt) for prompt in prompts]


def _with_prompt(read: Tokens, tokens: Tokens, mask: Mask) -> tuple[Tokens, Mask]:
    """Return the tokens and the loss mask of a row with the tokens of its prompt replaced by `read`."""
    begin = int(np.count_nonzero(mask == 0))  # the prompt comes first, and is not trained on
    marks = np.ones(len(read) + len(tokens) - begin, np.uint8)
    marks[: len(read)] = 0
    return np.concatenate([read, tokens[begin:]]), marks
