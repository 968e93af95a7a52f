"""Detect the end of a response: an end token of the model, a token given as a stop, or a text in the decoded response.

A text is found however it was tokenised: BPE glues `>` to the newline after it, so the ids of "</answer>" alone are
often not those in a response. By definition a response ends at the first token at which `decode` of the whole response
contains a stop text. To decode every response at every step would be slow, and to decode only its last tokens would be
wrong: they can begin inside a character, and some tokenizers drop a space at the start of whatever they decode. So the
bytes of each token are looked up, and `decode` has the last word on the few responses whose bytes match.

Prompts are never looked at, and ids are never changed: the token that ends a response is kept in full, with whatever
text it holds after the stop. Nothing here needs torch, except a call of `StopAfterAnswer`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.core.extras import need
from brim.data.tokenizer.base import Tokenizer
from brim.generate.config import FinishReason, Stop, checked_stops

# What a token can do to a response, in the order of precedence.
NOTHING, TEXT, STOP, EOS = range(4)

REPLACEMENT = "\ufffd"
"""Written by `decode` for bytes that are not UTF-8, so a stop text with this character is not found by its bytes."""


class Stops:
    """Decides at which token a response ends.

    Args:
        tokenizer: Decodes the responses. One without `token_bytes`, or for which that is None, is asked to decode
            every response at every step.
        eos: End tokens of the model. Those outside its vocabulary are ignored.
        stop: Texts and token ids that end a response.
        vocab_size: Number of tokens of the model, if these are more than the tokenizer knows.

    Raises:
        OptionError: A stop is empty, of another type, or an id outside the vocabulary.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        eos: Iterable[int],
        stop: Sequence[Stop] = (),
        vocab_size: int | None = None,
    ) -> None:
        stops = checked_stops(stop)
        size = max(vocab_size or 0, tokenizer.vocab_size)
        ids = [one for one in stops if isinstance(one, int)]
        if max(ids, default=-1) >= size:
            raise OptionError(f"the stop {max(ids)} is not the id of a token: the vocabulary has {size} tokens")

        self._tokenizer = tokenizer
        self._texts = tuple(one for one in stops if isinstance(one, str))
        # A lone surrogate is in no decoded text; "surrogatepass" gives it bytes that match nothing.
        self._stop_bytes = tuple(text.encode("utf-8", "surrogatepass") for text in self._texts)
        self._before = max(map(len, self._stop_bytes), default=1) - 1
        self._token_bytes: Sequence[bytes] | None = None
        if self._texts and REPLACEMENT not in "".join(self._texts):
            self._token_bytes = getattr(tokenizer, "token_bytes", None)

        # The last entry is for ids outside the vocabulary.
        self._kinds = np.full(size + 1, NOTHING, np.uint8)
        if self._texts:
            self._kinds[:] = self._text_ends(size + 1)
        self._kinds[ids] = STOP
        self._kinds[[id for id in eos if 0 <= id < size]] = EOS

    def reasons(
        self, tokens: NDArray[np.int64] | Sequence[int], responses: Sequence[Sequence[int]]
    ) -> list[FinishReason | None]:
        """Return why each response ends at the token just appended to it, or None where it does not.

        Args:
            tokens: The token just appended to each response.
            responses: The generated ids of each, including that token, and without the prompt.
        """
        kinds = self._kinds.take(tokens, mode="clip")
        reasons: list[FinishReason | None] = [None] * len(kinds)
        for row in kinds.nonzero()[0].tolist():
            if kinds[row] == EOS:
                reasons[row] = "eos"
            elif kinds[row] == STOP or (self._may_end(responses[row]) and self.found(responses[row])):
                reasons[row] = "stop"
        return reasons

    def found(self, response: Sequence[int]) -> bool:
        """Whether the decoded response contains a stop text."""
        text = self._tokenizer.decode(response)
        return any(stop in text for stop in self._texts)

    def _text_ends(self, size: int) -> NDArray[np.uint8]:
        """Return TEXT for the ids whose text holds the last byte of a stop text: nowhere else can one end. [size]"""
        if self._token_bytes is None:
            return np.full(size, TEXT, np.uint8)
        table = np.full(size, NOTHING, np.uint8)
        for last in {stop[-1] for stop in self._stop_bytes}:
            holds = np.array([last in token for token in self._token_bytes], np.bool_)
            table[: len(holds)][holds] = TEXT
        return table

    def _may_end(self, response: Sequence[int]) -> bool:
        """Whether the bytes of a stop text are among the last ones. It can be wrong only where it says yes.

        At the start of a response it always says yes: which spaces are dropped there is known to `decode` alone.
        """
        token_bytes = self._token_bytes
        if token_bytes is None:
            return True
        known = len(token_bytes)
        backwards = (token_bytes[id] if id < known else b"" for id in reversed(response))
        tail = [next(backwards, b"")]
        # Special tokens have no bytes, so it is bytes that are counted, not tokens.
        missing = self._before
        for token in backwards:
            # One token more than is needed, so that none of the needed ones can be the first of the text.
            if missing <= 0 and token:
                joined = b"".join(reversed(tail))
                return any(stop in joined for stop in self._stop_bytes)
            tail.append(token)
            missing -= len(token)
        return True


class StopAfterAnswer:
    """Ends a response after its closing tag: a stopping criterion for `generate` of transformers.

    The tag is found however it was tokenised, in the tokens after the prompt only, and a row in which it was found
    stays ended. `stop` is the same as an option of `GenerationConfig`.

    Args:
        tokenizer: One of brim or of transformers.
        tag: The text that ends a response.
        prompt_length: Width of the prompts, padding included. By default the first call of a generation has one token
            after the prompt; with assisted generation, which appends several, it must be given.

    Example:
        >>> StopAfterAnswer.stop
        ('</answer>',)
    """

    stop: tuple[str, ...] = ("</answer>",)

    def __init__(self, tokenizer: Any, tag: str = "</answer>", *, prompt_length: int | None = None) -> None:
        from brim.data.tokenizer.given import as_tokenizer

        if prompt_length is not None and prompt_length < 0:
            raise OptionError(f"prompt_length must not be negative, got {prompt_length}")
        self.stop = (tag,)
        self._stops = Stops(as_tokenizer(tokenizer), eos=(), stop=self.stop)
        self._prompt_length = prompt_length
        self._begin = 0
        self._last = np.empty((0, 0), np.int64)
        self._ended = np.empty(0, np.bool_)

    def __call__(self, input_ids: Any, scores: Any = None, **kwargs: Any) -> Any:
        """Return which rows have ended, as a tensor of bools [rows], for `input_ids` [rows, width]."""
        torch = need("torch", extra="torch", user="brim.generate.stops")
        # A copy: the caller may write the next tokens into the same memory.
        ids: NDArray[np.int64] = input_ids.detach().cpu().numpy().copy()
        rows, width = ids.shape
        last = self._last
        grown = last.shape == (rows, width - 1)
        if not grown or not np.array_equal(ids[:, : self._begin], last[:, : self._begin]):
            self._begin = width - 1 if self._prompt_length is None else self._prompt_length

        responses: Any = ids[:, self._begin :]
        if grown and np.array_equal(ids[:, :-1], last):
            reasons = self._stops.reasons(ids[:, -1], responses)
            self._ended |= np.array([reason is not None for reason in reasons], np.bool_)
        else:
            # Another generation, or a beam search that put its rows into another order.
            self._ended = np.array([self._stops.found(response) for response in responses], np.bool_)
        self._last = ids
        return torch.from_numpy(self._ended.copy()).to(input_ids.device)
