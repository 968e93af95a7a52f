"""Prompts and responses that come one after the other, each prompt tokenised once.

A model reads a prompt before it writes a response, and the two together become a sample afterwards. `Prompts` remembers
the tokens of the prompt in between. The tokens are exactly those that `encode_rows` gives for the whole row.
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
"""Rows of {"prompt", "response"}."""


class Prompts:
    """The tokens of prompts, remembered up to a limit; the least recently used are evicted. Can be shared by threads.

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
        return self._tokens_of([prompt], lambda _: "a prompt")[0]

    def rows(self, pairs: Sequence[tuple[str, str]], where: Where) -> list[tuple[Tokens, Mask]]:
        """The tokens and the loss mask of rows, each a prompt and its response. `where(k)` names the k-th of them in
        errors.

        Raises:
            DataError: A text cannot be tokenised.
        """
        prompts = self._tokens_of([prompt for prompt, _ in pairs], where)
        # Any prompt will do here, since it is encoded apart from the response.
        answered = encode_rows([{"prompt": ".", "response": response} for _, response in pairs], self.tokenizer, LAYOUT, where)
        rows: list[tuple[Tokens, Mask]] = []
        for read, (tokens, mask) in zip(prompts, answered, strict=True):
            learned = tokens[mask == 1]
            marks = np.zeros(len(read) + len(learned), np.uint8)
            marks[len(read) :] = 1
            rows.append((np.concatenate([read, learned]), marks))
        return rows

    def _tokens_of(self, prompts: Sequence[str], where: Where) -> list[Tokens]:
        found: dict[str, Tokens] = {}
        with self._lock:
            for prompt in prompts:
                if prompt in self._known:
                    self._known.move_to_end(prompt)
                    found[prompt] = self._known[prompt]
        missing = [prompt for prompt in dict.fromkeys(prompts) if prompt not in found]
        if missing:
            rows = [{"prompt": prompt, "response": "."} for prompt in missing]
            encoded = encode_rows(rows, self.tokenizer, LAYOUT, lambda at: where(prompts.index(missing[at])))
            for prompt, (tokens, mask) in zip(missing, encoded, strict=True):
                found[prompt] = tokens[mask == 0]
            with self._lock:
                for prompt in missing:
                    self._known[prompt] = found[prompt]
                while len(self._known) > self._limit:
                    self._known.popitem(last=False)
        return [found[prompt] for prompt in prompts]
