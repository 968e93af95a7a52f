"""Prompts that are tokenised once, against `encode_rows`, which tokenises whole rows."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import OptionError
from brim.data.rows.encode import encode_rows
from brim.data.rows.prompts import LAYOUT, Prompts
from brim.data.tokenizer.base import ByteTokenizer


class Starting(ByteTokenizer):
    """Has a start token, and counts what it encodes."""

    adds_bos, bos_id = True, 7

    def __init__(self):
        super().__init__()
        self.encoded = []

    def encode_batch(self, texts):
        self.encoded += texts
        return super().encode_batch(texts)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)


@given(
    st.lists(st.tuples(TEXTS | st.sampled_from(["", "a", "a\n"]), TEXTS), max_size=8), st.integers(1, 4), st.booleans()
)
def test_rows_are_those_that_are_encoded_whole_whatever_is_remembered(pairs, limit, starts):
    tokenizer = Starting() if starts else ByteTokenizer()
    prompts = Prompts(tokenizer, limit=limit)
    for prompt, _ in pairs[::2]:
        prompts.tokens(prompt)
    expected = encode_rows(
        [{"prompt": prompt, "response": response} for prompt, response in pairs], tokenizer, LAYOUT, str
    )
    for (tokens, mask), (whole, marks) in zip(prompts.rows(pairs, str), expected, strict=True):
        assert np.array_equal(tokens, whole)
        assert np.array_equal(mask, marks)


def test_a_prompt_that_was_read_is_not_tokenised_again():
    tokenizer = Starting()
    prompts = Prompts(tokenizer)
    read = prompts.tokens("the position")
    assert read.tolist() == [7, *b"the position\n"]
    [(tokens, mask)] = prompts.rows([("the position", "the move")], str)
    assert tokens[mask == 0].tolist() == read.tolist()
    assert tokenizer.encoded.count("the position\n") == 1
    assert tokenizer.encoded.count("the move") == 1


def test_the_least_recently_used_prompt_is_evicted():
    tokenizer = Starting()
    prompts = Prompts(tokenizer, limit=2)
    for prompt in ("a", "b", "a", "c", "a", "b"):
        prompts.tokens(prompt)
    assert [text for text in tokenizer.encoded if text != "."] == ["a\n", "b\n", "c\n", "b\n"]
    with pytest.raises(OptionError, match="limit"):
        Prompts(tokenizer, limit=0)


def test_threads_may_share_them():
    prompts, wrong = Prompts(ByteTokenizer(), limit=3), []

    def read(seed):
        for number in range(300):
            text = str((number * seed) % 7)
            if prompts.tokens(text).tolist() != [*text.encode(), 10]:
                wrong.append(text)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in (1, 3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
