"""The tokenizer "arc": a closed vocabulary with stated ids."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import DataError, OptionError
from brim.data.tokenizer import arc
from brim.data.tokenizer.arc import WORDS, ArcTokenizer
from brim.data.tokenizer.base import load_tokenizer
from brim.envs.arc.config import LARGEST
from brim.envs.arc.operations import COLOURS, OPERATIONS

DOCUMENT = Path(__file__).parents[2] / "docs" / "arc" / "samples.md"


@given(st.lists(st.integers(0, len(WORDS) - 1)))
def test_ids_become_words_and_the_same_ids_again(ids):
    tokenizer = ArcTokenizer()
    text = tokenizer.decode(ids)
    [again] = tokenizer.encode_batch([text])
    assert again.tolist() == ids
    assert tokenizer.count_batch([text]).tolist() == [len(ids)]
    [(same, ends)] = tokenizer.encode_ends([f"  {text}\n"])
    assert same.tolist() == ids
    assert [f"  {text}\n"[:end].split()[-1] for end in ends] == [WORDS[id] for id in ids]


def test_the_vocabulary_covers_the_environments_and_is_version_1():
    assert (arc.COLOURS, arc.ROWS, arc.COLUMNS, arc.OPERATIONS) == (COLOURS, LARGEST, LARGEST, OPERATIONS)
    assert len(set(WORDS)) == len(WORDS) == ArcTokenizer.vocab_size
    assert [WORDS[colour] for colour in range(COLOURS)] == [str(colour) for colour in range(COLOURS)]
    assert (arc.VERSION, ArcTokenizer.fingerprint) == (1, FINGERPRINT), "other words or ids raise the version"


FINGERPRINT = "5d4d6544596c9c0092a8ee75b439c720"


def test_the_table_of_the_document_is_the_vocabulary():
    """A row names the first id, the last id, and the words from the first to the last."""
    listed = []
    for first, last, words in re.findall(r"^\| (\d+)(?: to (\d+))? \| (`.*?`) \|", DOCUMENT.read_text(), re.MULTILINE):
        ids = range(int(first), int(last or first) + 1)
        assert ids.start == len(listed)
        named = re.findall(r"`(\w+)`", words)
        assert (named[0], named[-1]) == (WORDS[ids.start], WORDS[ids[-1]])
        assert " to " in words or named == [WORDS[id] for id in ids]
        listed += ids
    assert listed == list(range(len(WORDS)))


def test_a_word_or_an_id_that_is_not_in_the_vocabulary_is_refused():
    tokenizer = load_tokenizer("arc")
    assert isinstance(tokenizer, ArcTokenizer)
    for refuses in (tokenizer.encode_batch, tokenizer.count_batch, tokenizer.encode_ends):
        with pytest.raises(DataError, match=r"^'r30' is not a word of the tokenizer arc"):
            refuses(["bos r30"])
    for id in (-1, len(WORDS)):
        with pytest.raises(DataError, match=rf"^the tokenizer arc has the ids 0 to {len(WORDS) - 1}, got {id}$"):
            tokenizer.decode([id])
    with pytest.raises(OptionError, match="has no chat template"):
        tokenizer.render_chat([{"role": "user", "content": "0"}])
