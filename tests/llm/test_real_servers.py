"""Real models behind real servers: SmolLM2 and MiniLM over HTTP, through the pool and beside it."""

import json
import socket
import urllib.request

import numpy as np
import pytest
from support import minilm

from brim.llm.call import Reply, Sampling
from brim.llm.embed import InProcessEndpoint, open_embedder
from brim.llm.pool import LLMPool

pytestmark = pytest.mark.server
GREEDY = Sampling(max_tokens=6, temperature=0)
PROMPTS = [f"What is {number} plus {number}? Answer with a number." for number in range(16)]
TEXTS = [minilm.SKY, "a cat", "tax law", "Größe, naïve, 日本語!", "word " * 200, "x"]


def ask(server, path, body=None, **headers):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.headers, json.load(reply)


def test_a_real_model_answers_on_loopback_only_and_no_web_page_can_read_it(smollm):
    messages = [{"role": "user", "content": "Say hi"}]
    _, reply = ask(smollm, "/v1/chat/completions", {"model": smollm.model, "messages": messages, "max_tokens": 4})
    assert reply["choices"][0]["message"]["content"]
    assert reply["model"] == smollm.model == "SmolLM2-135M-Instruct.Q4_1"
    headers, _ = ask(smollm, "/v1/models", Origin="http://elsewhere.example")
    assert headers["Access-Control-Allow-Origin"] == smollm.url
    with pytest.raises(OSError, match="refused"):  # Linux: all of 127.0.0.0/8 is this machine
        socket.create_connection(("127.0.0.2", smollm.port), timeout=5)
    assert smollm.running


def test_many_prompts_at_once_are_all_answered_and_in_order(smollm, capsys):
    with LLMPool(smollm.url, model=smollm.model) as pool:
        together = pool.map(PROMPTS, sampling=GREEDY)
        stats = pool.stats()
    assert all(isinstance(reply, Reply) for reply in together), together
    assert stats.replies == len(PROMPTS)
    with LLMPool(smollm.url, model=smollm.model) as pool:
        alone = [pool.map([prompt], sampling=GREEDY)[0] for prompt in PROMPTS]
    differing = sum(one.text != other.text for one, other in zip(together, alone, strict=True))
    # llama.cpp is not batch-invariant, so a few may differ. Replies in another order would differ almost everywhere.
    with capsys.disabled():
        print(f"\nSmolLM2: {differing} of {len(PROMPTS)} texts differ from one at a time")
    assert len({reply.text for reply in alone}) > len(PROMPTS) // 2
    assert differing < len(PROMPTS) // 2


@pytest.mark.torch
def test_embeddings_over_http_equal_those_of_the_same_model_in_this_process(minilm_server):
    with LLMPool(minilm_server.url, model=minilm_server.model) as pool:
        over_http = np.stack([reply.vector for reply in pool.embed(TEXTS)])
    embedder = open_embedder(minilm.directory(), device="cpu")
    with LLMPool(InProcessEndpoint(embedder)) as pool:
        in_process = np.stack([reply.vector for reply in pool.embed(TEXTS)])
    np.testing.assert_allclose(in_process, embedder.encode(TEXTS), atol=1e-5)
    cosines = (over_http * in_process).sum(axis=1) / np.linalg.norm(over_http, axis=1)
    assert cosines.min() > 0.999
    np.testing.assert_allclose(over_http[0, :10], minilm.SKY_VECTOR, atol=2e-4)
