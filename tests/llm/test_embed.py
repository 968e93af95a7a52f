"""The built-in embedding model, the description of pooling, and embedders in the place of a server."""

import asyncio
import hashlib
import json
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import DataError, OptionError
from brim.core.fill import Fill
from brim.llm.call import Call
from brim.llm.embed import HashEmbedder, InProcessEndpoint, open_embedder
from brim.llm.embed.hash import CHUNK_BYTES, NGRAMS, WORD_WEIGHT
from brim.llm.embed.pooling import Recipe, read_recipe
from brim.llm.failures import ModelMissing, Rejected, ServerFailed, ServerLost

TEXTS = ["how to bake bread", "How  to\nbake a bread?", "income tax", "", " \t", "Größe", "日本語", "x\ud800", "a"]
any_text = st.text(st.characters(codec=None), max_size=40)


def mixed(value):
    """SplitMix64's output function, in Python's integers."""
    whole = 2**64 - 1
    value = (value + 0x9E3779B97F4A7C15) & whole
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & whole
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & whole
    return value ^ (value >> 31)


def by_definition(text, dim):
    """The vector of one text, feature by feature."""
    data = b" %b " % b" ".join(text.encode("utf-8", "surrogatepass").lower().replace(b"\0", b" ").split())
    features = []
    for n in NGRAMS:
        for start in range(len(data) - n + 1):
            features.append((mixed(int.from_bytes(bytes([n]) + data[start : start + n], "big")), 1))
    ascii_word = b"abcdefghijklmnopqrstuvwxyz0123456789_"
    words = bytes(byte if byte >= 0x80 or byte in ascii_word else 0x20 for byte in data).split()
    for word in words:
        letters = sum(mixed(place << 8 | byte) for place, byte in enumerate(word))
        features.append((mixed(letters & (2**64 - 1)), WORD_WEIGHT))
    vector = np.zeros(dim)
    if not data.strip():
        return vector
    for feature, weight in features:
        vector[feature % dim] += -weight if feature >> 63 else weight
    return vector / (np.linalg.norm(vector) or 1)


@given(st.lists(any_text, max_size=8), st.sampled_from([1, 7, 384]))
def test_the_fast_version_agrees_with_the_definition_whatever_the_neighbours(texts, dim):
    vectors = HashEmbedder(dim).encode(texts)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(texts), dim)
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_allclose(vector, by_definition(text, dim), atol=1e-6)
        np.testing.assert_array_equal(vector, HashEmbedder(dim).encode([text])[0])


def test_the_vectors_are_the_same_on_every_machine_and_in_every_version():
    vectors = HashEmbedder().encode(TEXTS)
    digest = hashlib.sha256(vectors.astype("<f4").tobytes()).hexdigest()
    assert digest[:16] == "cf47387ef1d19bdc"


def test_similar_texts_get_similar_vectors():
    bread, breads, tax, *_ = HashEmbedder().encode(TEXTS)
    assert bread @ breads > 0.7
    assert abs(bread @ tax) < 0.2
    assert np.isclose(bread @ bread, 1)


def test_a_text_without_visible_characters_is_the_zero_vector():
    vectors = HashEmbedder().encode(["", " \n\t ", "\0", "a"])
    assert not vectors[:3].any()
    assert vectors[3].any()
    assert HashEmbedder().encode([]).shape == (0, 384)


def test_more_texts_than_are_hashed_together_stay_in_their_order():
    texts = [f"text number {number} " * 20 for number in range(CHUNK_BYTES // 300)]
    vectors = HashEmbedder(16).encode(iter(texts))
    for place in (0, 1, len(texts) // 2, len(texts) - 1):
        np.testing.assert_array_equal(vectors[place], HashEmbedder(16).encode([texts[place]])[0])


def test_the_built_in_model_is_opened_by_name_and_size():
    assert (open_embedder("hash").name, open_embedder("hash").dim) == ("hash", 384)
    assert (open_embedder("hash-32").name, open_embedder("hash-32").dim) == ("hash-32", 32)
    assert open_embedder("hash").fill == Fill()


@pytest.mark.parametrize("option", [{"device": "cpu"}, {"batch_tokens": 64}, {"normalize": False}])
def test_options_that_the_built_in_model_does_not_have_are_refused(option):
    with pytest.raises(OptionError, match=f"{next(iter(option))} has no effect on the built-in model hash"):
        open_embedder("hash", **option)


def test_what_is_no_list_of_texts_is_refused():
    with pytest.raises(OptionError, match="got one string: 'bread'"):
        HashEmbedder().encode("bread")
    with pytest.raises(OptionError, match="number 1 is None"):
        HashEmbedder().encode(["bread", None])
    with pytest.raises(OptionError, match="dim must be at least 1"):
        HashEmbedder(0)


def described(folder, **files):
    """A directory with these JSON files; a slash in a name is written as two underscores."""
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def modules(*kinds):
    kinds = [kind if isinstance(kind, tuple) else (kind, "") for kind in kinds]
    return [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds]


def test_a_directory_that_says_nothing_is_averaged(tmp_path):
    assert read_recipe(tmp_path) == Recipe(modes=("mean",), normalize=False)


def test_the_recipe_is_read_from_the_files_of_sentence_transformers(tmp_path):
    described(
        tmp_path,
        modules=modules("Transformer", ("Pooling", "9_Pooling"), "Normalize"),
        sentence_bert_config={"max_seq_length": 128, "do_lower_case": True},
        config_sentence_transformers={"prompts": {"query": "query: "}, "default_prompt_name": "query"},
        **{"9_Pooling__config": {"pooling_mode_max_tokens": True, "pooling_mode_cls_token": True}},
    )
    assert read_recipe(tmp_path) == Recipe(
        modes=("cls", "max"), normalize=True, max_length=128, lower=True, prefix="query: "
    )


@pytest.mark.parametrize(("named", "modes"), [("lasttoken", ("lasttoken",)), (["mean", "cls"], ("mean", "cls"))])
def test_newer_directories_name_their_pooling_mode(tmp_path, named, modes):
    assert read_recipe(described(tmp_path, **{"1_Pooling__config": {"pooling_mode": named}})).modes == modes


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"modules": modules("Transformer", "Pooling", "Dense")}, "this model has Transformer, Pooling, Dense"),
        ({"modules": modules("StaticEmbedding")}, "this model has StaticEmbedding"),
        ({"modules": "{"}, "modules.json cannot be read as a list of modules"),
        ({"modules": [{"path": ""}]}, "modules.json cannot be read as a list of modules"),
        ({"1_Pooling__config": "[]"}, "must hold a JSON object"),
        ({"1_Pooling__config": "nothing"}, "cannot be read as JSON"),
        ({"1_Pooling__config": {"pooling_mode": "middle"}}, "unknown pooling mode 'middle'; known are cls, max"),
        ({"1_Pooling__config": {"pooling_mode_mean_tokens": False}}, "no pooling mode is on"),
        ({"sentence_bert_config": {"max_seq_length": 0}}, "max_seq_length must be a positive integer, got 0"),
        ({"config_sentence_transformers": {"default_prompt_name": "q"}}, "default prompt 'q' is not one of its"),
        (
            {
                "config_sentence_transformers": {"default_prompt_name": "q", "prompts": {"q": "q: "}},
                "1_Pooling__config": {"pooling_mode_mean_tokens": True, "include_prompt": False},
            },
            "include_prompt is false",
        ),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_one_line(tmp_path, files, message):
    with pytest.raises(DataError, match=message) as raised:
        read_recipe(described(tmp_path, **files))
    assert len(str(raised.value).splitlines()) == 1


class Blocked:
    """An embedder that waits to be released, and counts what it computed."""

    name, dim, fill = "blocked", 1, Fill()

    def __init__(self):
        self.started, self.release, self.computed = threading.Event(), threading.Event(), []

    def encode(self, texts):
        self.started.set()
        assert self.release.wait(10)
        self.computed += texts
        return np.zeros((len(texts), 1), np.float32)


class Broken:
    name, dim, fill = "broken", 1, Fill()

    def encode(self, texts):
        raise MemoryError("no room\nat all")


def embed(*texts, **options):
    return Call(kind="embed", inputs=texts, **options)


def asked(embedder, *calls):
    async def run():
        endpoint = InProcessEndpoint(embedder)
        try:
            return [await endpoint.ask(call) for call in calls]
        finally:
            await endpoint.close()

    return asyncio.run(run())


def test_an_embedder_answers_calls_as_a_server_does():
    first, second = asked(HashEmbedder(8), embed("a", "b"), embed("c", model="hash-8"))
    np.testing.assert_array_equal(first.vectors, HashEmbedder(8).encode(["a", "b"]))
    assert second.vectors.shape == (1, 8)
    assert first.model == "hash-8"
    assert first.service_seconds >= 0
    assert first.queue_seconds >= 0


def test_what_an_embedder_cannot_answer_is_a_typed_failure():
    with pytest.raises(Rejected, match="computes embeddings, and this is a chat call"):
        asked(HashEmbedder(), Call(messages=({"role": "user", "content": "a"},)))
    with pytest.raises(ModelMissing, match="no model 'bert' here, only 'hash'"):
        asked(HashEmbedder(), embed("a", model="bert"))
    with pytest.raises(Rejected, match="number 0 is 5"):
        asked(HashEmbedder(), embed(5))
    with pytest.raises(ServerFailed, match=r"MemoryError: no room \(in-process:broken\)"):
        asked(Broken(), embed("a"))


def test_the_loop_goes_on_while_a_model_computes_and_a_cancelled_request_is_not_computed():
    async def run():
        model = Blocked()
        endpoint = InProcessEndpoint(model)
        assert await endpoint.models() == ["blocked"]
        first = asyncio.create_task(endpoint.ask(embed("first")))
        while not model.started.is_set():
            await asyncio.sleep(0.001)
        dropped = asyncio.create_task(endpoint.ask(embed("dropped")))
        third = asyncio.create_task(endpoint.ask(embed("third")))
        await asyncio.sleep(0.01)
        dropped.cancel()
        await asyncio.sleep(0)
        model.release.set()
        answers = await asyncio.gather(first, dropped, third, return_exceptions=True)
        await endpoint.close()
        with pytest.raises(ServerLost, match="closed"):
            await endpoint.ask(embed("late"))
        return model.computed, answers

    computed, (first, dropped, third) = asyncio.run(run())
    assert computed == ["first", "third"]
    assert isinstance(dropped, asyncio.CancelledError)
    assert first.vectors.shape == third.vectors.shape == (1, 1)
