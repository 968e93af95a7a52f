"""Byte-level BPE word by word gives the tokens that the library gives for the whole text."""

import re
import string
import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from brim.data.synthetic import sample_rows
from brim.data.tokenizer import words
from brim.data.tokenizer.gpt2 import END_OF_TEXT, gpt2_backend
from brim.data.tokenizer.hf import HfTokenizer
from brim.data.tokenizer.words import words_of

LLAMA3, QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    + digits
    + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for digits in (r"\p{N}{1,3}", r"\p{N}")
)


def split_by(pattern):
    only_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), only_bytes])


def gpt2_split():
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


WAYS = {
    "gpt2": gpt2_split,
    "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2_split()]),
    "llama3": lambda: split_by(LLAMA3),
    "qwen2": lambda: split_by(QWEN2),
    "qwen2, normalised": lambda: split_by(QWEN2),
}


def backend_of(way):
    """GPT-2's vocabulary under another way of splitting."""
    backend = gpt2_backend()
    backend.pre_tokenizer = WAYS[way]()
    if way.endswith("normalised"):
        backend.normalizer = normalizers.NFC()
    backend.add_tokens(["added by hand", "at K it"])
    return backend


@pytest.fixture(scope="module", params=WAYS)
def backend(request):
    return backend_of(request.param)


OTHERS = "\u00a0\u2028\u3000\u0301\u037e\u212a\u2014ſ\U0001f600"

# Mostly what patterns are about: white space of every kind, apostrophes, digits, letters in both cases, signs.
pieces = st.sampled_from(
    ["'s", "'LL", "'", " ", "  ", "\n", "\r\n", "\t", "\x0b", "\x1c", "\x7f", "a", "The", "7", "42"]
)
asciis = st.lists(st.one_of(pieces, st.text(st.characters(max_codepoint=127), max_size=6))).map("".join)
# And added tokens, halves of them, characters that look like others, join with those before them, or become others.
spelled = st.sampled_from(
    [END_OF_TEXT, "added by hand", "<|endof", "at \u212a it", "über", "日本 語", "１２", "’s", "'ſ", "e\u0301", *OTHERS]
)
texts = st.lists(st.one_of(asciis, spelled, st.text(max_size=6)), max_size=8).map("".join)


def check_split(found, backend, text):
    """Words are the library's; a piece that is not ASCII is one or more of them. Tokens alone would not show it: a
    vocabulary may have none that a wrong cut divides.
    """
    words = found._split(text)
    if words is None:
        return
    ends = [stop for _, (_, stop) in backend.pre_tokenizer.pre_tokenize_str(text)]
    begin = 0
    for word in words:
        inside = [end for end in ends if begin < end <= begin + len(word)]
        assert inside[-1] == begin + len(word), (text, word)
        assert len(inside) == 1 or not word.isascii(), (text, word)
        begin += len(word)
    assert begin == len(text)


@given(st.lists(texts, max_size=5))
@example(["a 'S  1\n\n 2", " \t\r\n ", "''s '''ll", f"x{END_OF_TEXT} y", ""])
@example(["a b \u00a0 c d", "a e\u0301 b", "look at \u212a it is", "a ’s b", "x 日 y z １ 2"])
def test_tokens_are_those_of_the_whole_text(backend, batch):
    found = words_of(backend)
    expected = [encoding.ids for encoding in backend.encode_batch(batch, add_special_tokens=False)]
    for text in batch:
        check_split(found, backend, text)
    for _ in range(2):  # as new words, and as known ones
        assert [tokens.tolist() for tokens in found.encode_batch(batch)] == expected
        assert found.count_batch(batch).tolist() == [len(ids) for ids in expected]


@pytest.mark.parametrize(
    "kinds", ["'sL9 \n\r\t\x0b\x0c\x1c\x00._\x7f", "'sL9 \n.é\u00a0\u0301日１\u2028’\u200b"], ids=["ascii", "others"]
)
def test_every_four_kinds_of_characters_are_split_as_the_library_splits_them(backend, kinds):
    batch = [a + b + c + d for a in kinds for b in kinds for c in kinds for d in kinds]
    batch = ["".join(batch[at : at + 25]) for at in range(0, len(batch), 25)]
    expected = [encoding.ids for encoding in backend.encode_batch_fast(batch, add_special_tokens=False)]
    found = words_of(backend)
    assert [tokens.tolist() for tokens in found.encode_batch(batch)] == expected
    for text in batch:
        check_split(found, backend, text)


def test_ordinary_text_is_encoded_by_words_and_as_the_library_does(backend):
    batch = [text for row in sample_rows(300) for text in (row["prompt"], row["response"])]
    expected = [encoding.ids for encoding in backend.encode_batch_fast(batch, add_special_tokens=False)]
    tokenizer = HfTokenizer(backend.to_str(), name="x")
    assert [tokens.tolist() for tokens in tokenizer.encode_batch(batch)] == expected
    assert tokenizer.count_batch(batch).tolist() == [len(ids) for ids in expected]
    assert len(tokenizer._words._known) > 300


def test_a_known_word_never_reaches_the_library_again(monkeypatch):
    backend = backend_of("gpt2")
    found, sent = words_of(backend), []
    monkeypatch.setattr(found, "_encode", lambda texts: sent.extend(texts) or backend.encode_batch_fast(texts))
    found.encode_batch(["one two", "two three"])
    assert sorted(sent) == [" three", " two", "one", "two"]
    found.count_batch(["one two three", f"{END_OF_TEXT} one"])
    assert sent[4:] == [f"{END_OF_TEXT} one"]


def test_text_whose_words_never_come_again_is_left_to_the_library(monkeypatch):
    backend = backend_of("gpt2")
    found = words_of(backend)
    numbers = [" ".join(map(str, range(start, start + 100))) for start in range(0, 3000, 100)]
    expected = [encoding.ids for encoding in backend.encode_batch_fast(numbers, add_special_tokens=False)]
    assert [tokens.tolist() for tokens in found.encode_batch(numbers)] == expected
    assert found._known == {}
    found.encode_batch(numbers[:5])
    assert len(found._known) > 100, "a few are remembered"


def test_so_much_is_remembered_and_no_more(backend, monkeypatch):
    monkeypatch.setattr(words, "MOST", 50 * (words.EXTRA + 4))
    found = words_of(backend)
    for start in range(0, 400, 8):
        batch = [" ".join(f"w{number}" for number in range(start, start + 8)), "a b"]
        expected = [encoding.ids for encoding in backend.encode_batch_fast(batch, add_special_tokens=False)]
        assert [tokens.tolist() for tokens in found.encode_batch(batch)] == expected
        assert 0 < len(found._known) <= 100
    many = [string.ascii_letters[n % 52] * (n + 1) for n in range(80)]  # more than that in one batch
    expected = [encoding.ids for encoding in backend.encode_batch_fast(many, add_special_tokens=False)]
    assert [tokens.tolist() for tokens in found.encode_batch(many)] == expected


def test_whole_texts_are_not_remembered(backend):
    found = words_of(backend)
    found.encode_batch(["日本語" * 50, "при вет " * 50])
    assert found._known == {}


def test_threads_can_share_it(monkeypatch):
    monkeypatch.setattr(words, "MOST", 20 * words.EXTRA)
    backend = backend_of("gpt2")
    found, wrong = words_of(backend), []

    def work(first):
        for number in range(first, first + 200):
            text = f"a{number} b {number}"
            if found.encode_batch([text])[0].tolist() != backend.encode(text, add_special_tokens=False).ids:
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(100 * first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def lowercased(backend):
    backend.normalizer = normalizers.Lowercase()


def with_a_space_in_front(backend):
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)


def by_another_pattern(backend):
    backend.pre_tokenizer = split_by(re.escape("x"))


def not_at_all(backend):
    backend.pre_tokenizer = None


@pytest.mark.parametrize("change", [lowercased, with_a_space_in_front, by_another_pattern, not_at_all])
def test_other_ways_of_splitting_are_left_to_the_library(change):
    backend = gpt2_backend()
    change(backend)
    assert words_of(backend) is None
    tokenizer = HfTokenizer(backend.to_str(), name="x")
    assert tokenizer.encode_batch(["The xx 's"])[0].tolist() == backend.encode("The xx 's").ids


def test_other_models_are_left_to_the_library():
    assert words_of(Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))) is None
