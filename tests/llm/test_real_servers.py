"""Real models behind real servers: SmolLM2 and MiniLM over HTTP, through the pool and beside it."""

import json
import socket
import urllib.request
from dataclasses import replace

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


def test_a_greedy_completion_has_ids_and_log_probs_of_the_model_itself(smollm):
    prompt = "The capital of France is"
    with LLMPool(smollm.url, model=smollm.model) as pool:
        [reply] = pool.map([prompt], kind="complete", sampling=replace(GREEDY, logprobs=True))
        hot = Sampling(max_tokens=1, temperature=1.5, top_p=1.0, top_k=0, min_p=0.0, seed=0, logprobs=True)
        drawn = [one.logprobs for one in pool.map([prompt], kind="complete", sampling=hot, samples=40)]
    told = reply.logprobs
    assert "".join(told.tokens) == reply.text
    assert len(told) == len(told.ids) == reply.completion_tokens == GREEDY.max_tokens
    assert (told.logprobs <= 0).all()
    # The likeliest of 49,152 tokens, at each step, after a prompt that leaves little doubt.
    assert told.tokens[0] == " Paris"
    assert np.exp(told.logprobs[0]) > 0.5
    assert np.exp(told.logprobs).min() > 0.01
    # They do not depend on the temperature, so they belong to the model, not to the distribution that was drawn from.
    whole = [one for one in drawn if one is not None and one.ids is not None]
    same = [one.logprobs[0] for one in whole if one.ids[0] == told.ids[0]]
    assert same
    np.testing.assert_allclose(same, told.logprobs[0], atol=0.05)
    # A limit of 0 lifts the server's own: tokens are drawn that its min_p of 0.05 would never allow.
    assert min(one.logprobs[0] for one in whole) < told.logprobs[0] + np.log(0.05)


def test_log_probs_that_llama_cpp_leaves_out_leave_the_ids_unknown(smollm):
    stops = replace(GREEDY, max_tokens=16, stop=("\n",), logprobs=True)
    emoji = replace(GREEDY, max_tokens=8, logprobs=True)
    with LLMPool(smollm.url, model=smollm.model) as pool:
        [stopped] = pool.map(["The capital of France is"], kind="complete", sampling=stops)
        [parrot] = pool.map(["Repeat: \U0001f99c \U0001f99c"], sampling=emoji)
    for reply in (stopped, parrot):
        assert len(reply.logprobs) < reply.completion_tokens
        assert reply.logprobs.ids is None


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
