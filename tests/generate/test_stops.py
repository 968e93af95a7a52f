import random
import struct
import sys
from functools import cache
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.llama import model_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from brim.core.errors import MissingExtraError, OptionError
from brim.data.tokenizer.base import ByteTokenizer, load_tokenizer
from brim.data.tokenizer.given import as_tokenizer
from brim.data.tokenizer.words import PATTERNS, QWEN2
from brim.generate.config import GenerationConfig
from brim.generate.stops import StopAfterAnswer, Stops

TAG = "</answer>"
CONTEXTS = {
    "between spaces": "<answer> 42 </answer>",
    "after a digit": "<answer>42</answer>",
    "before a newline": "<answer>42</answer>\n",
    "before two newlines": "<answer>42</answer>\n\nSo",
    "between a bracket and a period": "<answer>f(2)</answer>.",
    "between a letter and a space": "<answer>x</answer> is",
    "before the end of a turn": "<answer>42</answer><|im_end|>",
    "after a dollar sign": "<answer>$42$</answer>",
    "after a brace": "<answer>\\boxed{42}</answer>",
    "after a newline": "<answer>\n42\n</answer>",
    "in bold": "**<answer>42**</answer>**",
}
LONG = "this is the end of the answer, é答, and nothing follows it!!!"
STOP_SETS = [
    (TAG,),
    ("ab", "b"),
    ("ba", "aab"),
    ("é",),
    ("答",),
    ("答é", "é答"),
    ("\n",),
    (" ",),
    (" a",),
    ("a ",),
    (LONG,),
    (TAG, "\n\n", "答"),
    ("\ufffd",),
    ("a\ufffd", TAG),
    ("\ud800", "ab"),
]


def smollm2():
    """The tokenizer of SmolLM2, from the header of the model file: gguf's own reader takes six seconds for it."""
    with model_file().open("rb") as file:
        read = GgufHeader(file)
    kinds = read["tokenizer.ggml.token_type"]
    tokens = read["tokenizer.ggml.tokens"]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in read["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    control = 3
    backend.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind == control])
    return backend


class GgufHeader(dict):
    """The keys and values at the start of a GGUF file."""

    NUMBERS = "BbHhIif?__QqD"  # struct's letters, by the type's number; 8 is a text, 9 a list

    def __init__(self, file):
        self.file = file
        magic, _, _, count = struct.unpack("<4sIQQ", file.read(24))
        assert magic == b"GGUF"
        for _ in range(count):
            key = self.text()
            self[key] = self.value(self.number("I"))

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind != 9:
            return self.number(self.NUMBERS[kind])
        inner, size = self.number("I"), self.number("Q")
        return [self.value(inner) for _ in range(size)]

    def text(self):
        return self.file.read(self.number("Q")).decode()

    def number(self, letter):
        return struct.unpack("<" + letter, self.file.read(struct.calcsize("<" + letter)))[0]


def glued():
    """A byte-level BPE that splits as Qwen2.5 does, trained until `>` and the newlines after it are one token."""
    backend = Tokenizer(models.BPE())
    way = next(way for way, pattern in PATTERNS if pattern == QWEN2)
    split, _ = way["pretokenizers"]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern=Regex(split["pattern"]["Regex"]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_end|>"],
        show_progress=False,
    )
    backend.train_from_iterator([*CONTEXTS.values(), "<p>\n</p>\n\n", "é答 ab"] * 20, trainer)
    return backend


PIECES = [
    *(chr(code) for code in range(33, 127)),
    *("é", "答", "\n", "▁", "▁▁", "ab", "▁a", "▁b", "▁a▁b", "b▁", "a▁b", "x▁", "▁答", "é答"),
    *("</", "▁</", "answer", "</answer", "▁</answer", ">\n", ">\n\n", ">.", "</answer>", "</answer>\n", "▁the", "▁of"),
]


def sentencepiece(decoder, *, bytes_too=False):
    """A Unigram with ▁ for spaces, as sentencepiece writes it."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256) if bytes_too), *PIECES]
    model = models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0, byte_fallback=bytes_too)
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoder
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def llama_like():
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return sentencepiece(decoders.Sequence(steps), bytes_too=True)


@cache
def tokenizer_named(name):
    makers = {
        "smollm2": smollm2,
        "glued": glued,
        "metaspace": lambda: sentencepiece(decoders.Metaspace()),
        "unprefixed": lambda: sentencepiece(decoders.Metaspace(prepend_scheme="never")),
        "llama": llama_like,
        # Neither of these decodes token by token: the space after a token depends on whether another one follows.
        "suffixes": lambda: sentencepiece(decoders.BPEDecoder(suffix="▁")),
        "joined": lambda: sentencepiece(None),
    }
    return as_tokenizer(makers[name]()) if name in makers else load_tokenizer(name)


@cache
def stops_of(name, texts):
    return Stops(tokenizer_named(name), eos=[], stop=texts)


def naive_end(tokenizer, ids, stops):
    """The definition: the first step at which the whole decoded response contains a stop text."""
    texts = (tokenizer.decode(ids[:count]) for count in range(1, len(ids) + 1))
    return next((step for step, text in enumerate(texts) if any(stop in text for stop in stops)), None)


def end_of(stops, ids):
    """The step at which a response ends, and why, when its tokens are appended one by one."""
    response = []
    for step, id in enumerate(ids):
        response.append(id)
        [reason] = stops.reasons([id], [response])
        if reason is not None:
            return step, reason
    return None


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", ["byte", "gpt2", "smollm2", "glued", "metaspace", "llama"])
def test_the_tag_ends_a_response_at_the_token_that_completes_it(name, context):
    tokenizer, text = tokenizer_named(name), CONTEXTS[context]
    [(ids, ends)] = tokenizer.encode_ends([text])
    completed = text.index(TAG) + len(TAG)
    if name == "byte":
        ends = np.arange(1, len(ids) + 1)
    assert end_of(stops_of(name, (TAG,)), ids.tolist()) == (int(np.argmax(ends >= completed)), "stop")


def test_the_ids_of_the_tag_alone_are_missing_from_most_contexts():
    """Comparing the last ids with those of the tag, which is how the tag was looked for, does not find it."""
    tokenizer = tokenizer_named("glued")
    tag, *texts = (ids.tolist() for ids in tokenizer.encode_batch([TAG, *CONTEXTS.values()]))
    by_ids = [any(ids[at : at + len(tag)] == tag for at in range(len(ids))) for ids in texts]
    assert sum(by_ids) < len(CONTEXTS) / 2


@cache
def pieces_of(name, stops):
    """Ids that often spell a stop text: parts of it as text and as single bytes, special tokens, and any other id."""
    tokenizer = tokenizer_named(name)

    @cache
    def encoded(text):
        return tokenizer.encode_batch([text])[0].tolist()

    def part(stop, begin, end, as_bytes):
        text = stop.encode("utf-8", "replace").decode()
        return byte_ids(tokenizer, text)[begin:end] if as_bytes else encoded(text[begin:end])

    place = st.one_of(st.none(), st.integers(-4, 4))
    parts = st.builds(part, st.sampled_from(stops), place, place, st.booleans())
    others = st.integers(0, tokenizer.vocab_size + 3)
    specials = st.sampled_from(SPECIAL_IDS.get(name, [1, 2]))
    common = st.sampled_from([" ", "a", "b", "\n", "é", "</", "x"]).map(encoded)
    single = st.one_of(others, specials).map(lambda id: [id])
    pieces = st.lists(st.one_of(parts, parts, common, single), max_size=12)
    return pieces.map(lambda lists: [*chain.from_iterable(lists)])


SPECIAL_IDS = {"byte": [256, 258], "gpt2": [50256], "glued": [0, 1]}


def byte_ids(tokenizer, text):
    """The ids of a text byte by byte, as far as there are tokens for them."""
    if isinstance(tokenizer, ByteTokenizer):
        return list(text.encode())
    to_id = tokenizer._backend.token_to_id
    [(characters, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    names = [[f"<0x{byte:02X}>", character] for byte, character in zip(text.encode(), characters, strict=True)]
    found = [[to_id(name) for name in both if to_id(name) is not None] for both in names]
    return [ids[0] for ids in found if ids]


NAMES = ["byte", "gpt2", "glued", "metaspace", "unprefixed", "llama", "suffixes", "joined"]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=100)
def test_a_response_ends_where_its_decoded_text_first_contains_a_stop(name, data):
    tokenizer = tokenizer_named(name)
    texts = data.draw(st.sampled_from(STOP_SETS))
    ids = data.draw(pieces_of(name, texts))
    found = end_of(stops_of(name, texts), ids)
    assert (found and found[0]) == naive_end(tokenizer, ids, texts)


@pytest.mark.parametrize("name", NAMES)
def test_long_random_responses_end_where_the_definition_says(name):
    rng = random.Random(7)
    tokenizer = tokenizer_named(name)
    ended = 0
    for texts in STOP_SETS:
        # Short tokens made of the characters of the stops, so that the stops appear by chance.
        wanted = set("".join(texts).encode("utf-8", "replace")) | {0x20}
        table = getattr(tokenizer, "token_bytes", None)
        pool = [id for id, token in enumerate(table) if wanted.issuperset(token)] if table else range(400)
        for _ in range(12):
            ids = rng.choices(pool, k=60)
            found = end_of(stops_of(name, texts), ids)
            assert (found and found[0]) == naive_end(tokenizer, ids, texts)
            ended += found is not None
    assert ended > 12 * len(STOP_SETS) / 4


def test_rows_end_on_their_own_and_an_end_token_precedes_a_stop():
    byte = ByteTokenizer()
    stops = Stops(byte, eos=[258, 7], stop=["b", 65, 7, "a\x07"])
    rows = [[97], [97, 98], [98, 65], [97, 258], [97, 7], [256]]
    tokens = [row[-1] for row in rows]
    expected = [None, "stop", "stop", "eos", "eos", None]
    assert stops.reasons(tokens, rows) == expected
    assert stops.reasons(np.array(tokens), rows) == expected


def test_without_stops_only_the_end_tokens_end():
    stops = Stops(ByteTokenizer(), eos=[258, -1, 10**6])
    assert stops.reasons([0, 258, 300, 10**6], [[0], [258], [300], [10**6]]) == [None, "eos", None, None]


def test_ids_that_only_the_model_knows_have_no_text():
    stops = Stops(tokenizer_named("glued"), eos=[], stop=[TAG, 700], vocab_size=704)
    ids = tokenizer_named("glued").encode_batch([f"<answer> 42 {TAG}\n"])[0].tolist()
    assert end_of(stops, [703, *ids[:-1], 702, ids[-1]]) == (len(ids) + 1, "stop")
    assert end_of(stops, [703, 700]) == (1, "stop")


@pytest.mark.parametrize("name", ["glued", "llama"])
def test_special_tokens_inside_a_stop_text_do_not_hide_it(name):
    tokenizer, special = tokenizer_named(name), 1
    ids = [
        *byte_ids(tokenizer, "so" * 20),
        *byte_ids(tokenizer, "</ans"),
        *[special] * 30,
        *byte_ids(tokenizer, "wer>"),
    ]
    assert end_of(stops_of(name, (TAG,)), ids) == (len(ids) - 1, "stop")


@pytest.mark.parametrize("stop", [[""], [-1], ["a", 259], [10**6], [True], [1.5], "text"])
def test_a_stop_that_cannot_be_is_refused(stop):
    with pytest.raises(OptionError, match=r"stop|token"):
        Stops(ByteTokenizer(), eos=[], stop=stop)


class Counted(ByteTokenizer):
    decoded = 0

    def decode(self, ids):
        self.decoded += 1
        return super().decode(ids)


def test_only_a_response_whose_bytes_hold_the_stop_is_decoded():
    tokenizer = Counted()
    stops = Stops(tokenizer, eos=[258], stop=[TAG])
    text = "the <answer> is > 42 and </answe> and < /answer> and <b>bold</b> " * 4
    assert end_of(stops, text.encode()) is None
    assert tokenizer.decoded == 0
    assert end_of(stops, (text + TAG + ">").encode()) == (len(text) + len(TAG) - 1, "stop")
    assert tokenizer.decoded == 1


class OnlyDecodes:
    """A tokenizer of another maker, with what `Stops` needs of the protocol."""

    vocab_size = 256

    def decode(self, ids):
        return "".join("ab\n"[id % 3] for id in ids)


@given(st.lists(st.integers(0, 255), max_size=30))
def test_a_tokenizer_that_does_not_tell_its_bytes_is_asked_to_decode(ids):
    found = end_of(Stops(OnlyDecodes(), eos=[], stop=["ab\na", "bb"]), ids)
    assert (found and found[0]) == naive_end(OnlyDecodes(), ids, ["ab\na", "bb"])


def test_the_answer_tag_is_a_stop_of_the_configuration():
    assert GenerationConfig(stop=StopAfterAnswer.stop).stop == (TAG,)
    assert StopAfterAnswer(ByteTokenizer(), "</done>").stop == ("</done>",)
    with pytest.raises(OptionError, match="-1"):
        StopAfterAnswer(ByteTokenizer(), prompt_length=-1)
    with pytest.raises(OptionError, match="empty"):
        StopAfterAnswer(ByteTokenizer(), "")


def test_the_criterion_names_the_extra_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"brim\[torch\]"):
        StopAfterAnswer(ByteTokenizer())(None)


def calls_of(criterion, prompts, responses):
    """What a criterion returns after each token of a generation."""
    import torch

    steps = range(1, responses.shape[1] + 1)
    return [criterion(torch.from_numpy(np.hstack([prompts, responses[:, :step]]))).tolist() for step in steps]


def padded(rows, pad):
    width = max(map(len, rows))
    return np.array([row + [pad] * (width - len(row)) for row in rows], np.int64)


@pytest.mark.torch
@pytest.mark.parametrize("given_length", [True, False])
def test_the_criterion_finds_the_tag_in_all_contexts_and_keeps_rows_ended(given_length):
    tokenizer = tokenizer_named("gpt2")
    rows = [ids.tolist() for ids in tokenizer.encode_batch(list(CONTEXTS.values()))]
    ends = [naive_end(tokenizer, row, [TAG]) for row in rows]
    # The prompt holds the tag; what follows a finished response is not the padding of this tokenizer but a text.
    prompt = tokenizer.encode_batch([f"<answer>1</answer> 1 + 1 = {TAG[:-1]}"])[0].tolist()
    prompts = np.array([prompt] * len(rows))
    responses = padded(rows, pad=64)
    criterion = StopAfterAnswer(tokenizer, prompt_length=len(prompt) if given_length else None)
    for width in (1, 3):  # the second generation has a longer prompt
        wider = np.hstack([prompts] * width)
        if given_length and width > 1:
            criterion = StopAfterAnswer(tokenizer, prompt_length=wider.shape[1])
        found = calls_of(criterion, wider, responses)
        assert found == [[step >= end for end in ends] for step in range(responses.shape[1])]


@pytest.mark.torch
def test_the_criterion_follows_rows_that_change_places_and_steps_of_several_tokens():
    import torch

    prompt, response = f"<prompt>{TAG}", f" 42 {TAG} and more"
    begin, end = len(prompt), len(f"{prompt} 42 {TAG}")
    texts = [prompt + response, prompt + response.replace(">", "]")]
    text, other = (np.frombuffer(text.encode(), np.uint8).astype(np.int64) for text in texts)
    criterion = StopAfterAnswer(ByteTokenizer())
    for width in range(begin + 1, len(text) + 1):
        rows = [text, other] if width % 2 else [other, text]
        expected = [row is text and width >= end for row in rows]
        assert criterion(torch.from_numpy(np.stack(rows)[:, :width])).tolist() == expected
    # One column more than in the last call, but of another generation, with the tag in its prompt.
    longer = torch.tensor([[*f"{TAG}?".rjust(len(text) + 1).encode()]] * 2)
    assert criterion(longer).tolist() == [False, False]
    assert criterion(torch.from_numpy(np.stack([text, other]))).tolist() == [False, False]
    jumps = StopAfterAnswer(ByteTokenizer(), prompt_length=begin)
    for width in range(begin, len(text), 5):
        assert jumps(torch.from_numpy(np.stack([text, other])[:, :width])).tolist() == [width >= end, False]


@pytest.mark.torch
def test_the_criterion_keeps_nothing_of_the_tensor_that_the_caller_goes_on_writing_to():
    import torch

    text = torch.tensor([*f"? {TAG} and".encode()])
    buffer = torch.zeros(2, len(text), dtype=torch.int64)
    criterion = StopAfterAnswer(ByteTokenizer(), prompt_length=1)
    ended = []
    for width in range(1, len(text) + 1):
        # The rows change places in the same memory.
        buffer[width % 2, :width], buffer[1 - width % 2, :width] = text[:width], ord("x")
        ended.append(criterion(buffer[:, :width])[width % 2].item())
    assert ended == [width >= len(f"? {TAG}") for width in range(1, len(text) + 1)]


@pytest.mark.torch
def test_the_criterion_ends_the_rows_of_generate_of_transformers():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_object=glued(), eos_token="<|im_end|>", pad_token="<|endoftext|>")
    texts = [CONTEXTS["before two newlines"] + " ab" * 8, CONTEXTS["between spaces"], "no answer" * 5]
    script = padded([theirs(text)["input_ids"] for text in texts], pad=theirs("x")["input_ids"][0])
    ends = [naive_end(as_tokenizer(theirs), row.tolist(), [TAG]) for row in script]
    prompt = torch.tensor([theirs(f"1 {TAG}")["input_ids"]] * len(texts))

    def forced(input_ids, scores):
        at = input_ids.shape[1] - prompt.shape[1]
        return torch.full_like(scores, -torch.inf).scatter(1, torch.from_numpy(script[:, at : at + 1]), 0.0)

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(theirs),
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            eos_token_id=theirs.eos_token_id,
            pad_token_id=theirs.pad_token_id,
        )
    )
    generated = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=script.shape[1],
        do_sample=False,
        logits_processor=[forced],
        stopping_criteria=[StopAfterAnswer(theirs)],
    )[:, prompt.shape[1] :].tolist()
    for row, expected, end in zip(generated, script.tolist(), ends, strict=True):
        kept = len(expected) if end is None else end + 1
        assert row == expected[:kept] + [theirs.pad_token_id] * (len(expected) - kept)
