"""Many model calls at once: a server refuses what exceeds its slots and fails now and then, and no call is lost.

The server is a simulated one in this process, behind real HTTP. It works on 16 requests at once and refuses others; a
few requests end in an error, a closed connection, or a reply that is not JSON. The pool is told its address and nothing
else. Lines that begin with "measured:" differ from run to run.
"""

import asyncio
from collections import Counter

from brim.llm import Failure, LLMPool, ModelMissing, Rejected, Reply, Sampling, batch_mutate_queries
from brim.llm.testing import Faults, ModelServer, Uniform

SLOTS = 16
PROMPTS = [f"What is {number} + {number}?" for number in range(500)]


def answer(call):
    """The model: it adds."""
    number = int(call.messages[-1]["content"].split()[2])
    return str(number + number)


def check(results):
    """Assert that every prompt has its own answer, in its place."""
    assert [result.text for result in results if isinstance(result, Reply)] == [str(2 * n) for n in range(len(PROMPTS))]


# 1. 500 prompts in, 500 results out, in the order asked.
faults = Faults(error=0.02, drop=0.01, garbage=0.01)
behaviour = {"slots": SLOTS, "overflow": "reject", "latency": Uniform(0.005, 0.015), "faults": faults, "seed": 1}
with ModelServer(answers=answer, **behaviour) as server, LLMPool(server.url, model="adder") as pool:
    results = pool.map(PROMPTS)
    check(results)
    stats, seen = pool.stats(), server.counts
assert stats.calls == stats.replies == len(PROMPTS)
assert 0 < seen.max_in_service <= SLOTS
assert stats.retries >= seen.failed > 0
print(f"{len(PROMPTS)} prompts, {len(results)} replies: in the order asked, none lost")
print(f"at most {SLOTS} requests were worked on at once; failed and refused ones were sent again")
(figures,) = stats.servers
print(f"measured: limit {figures.limit} of {SLOTS} slots, {100 * stats.fill.ratio:.0f}% of the allowed slots used")
print(f"measured: {stats.requests} requests, {seen.failed} failed, {figures.refused} refused, {stats.retries} retries")

# 2. As they are ready, and asynchronously: the same answers.
with ModelServer(answers=answer, **behaviour) as server, LLMPool(server.url, model="adder") as pool:
    ready = dict(pool.as_ready(PROMPTS))
    check([ready[number] for number in range(len(PROMPTS))])
    check(asyncio.run(pool.map_async(PROMPTS)))
print("\nas_ready and map_async give the same answers")

# 3. A failure has a type and stands in its place. Nothing takes its place unless that is asked for.
with ModelServer(answers=answer, models=("adder",)) as server:
    with LLMPool(server.url, model="adder") as pool:
        first, empty, last = pool.map([PROMPTS[1], " ", PROMPTS[2]])
        (missing,) = pool.map(PROMPTS[:1], model="multiplier")
    assert (first.text, last.text) == ("2", "4")
    assert isinstance(empty, Rejected)
    assert isinstance(missing, ModelMissing)
    assert isinstance(missing, Failure)
    print(f"\n{type(empty).__name__}: {empty.message}")
    print(f"{type(missing).__name__}: {missing.message}")
    kept = batch_mutate_queries(PROMPTS[:2], "shorten", "multiplier", servers=server.url, fallback="original")
    assert kept == PROMPTS[:2]
    print(f"with fallback='original', {len(kept.fallbacks)} queries stand for failures, and are listed")

# 4. Several answers to a prompt; equal deterministic calls are asked once.
with ModelServer(latency=0.02) as server, LLMPool(server.url, model="test") as pool:
    samples = pool.map(["Tell a story."] * 2, sampling=Sampling(temperature=1.0), samples=4)
    assert len(samples) == server.counts.served == 8
    same = pool.map(["Why is the sky blue?"] * 8, sampling=Sampling(temperature=0))
    assert Counter(reply.joined for reply in same) == {True: 7, False: 1}
    assert server.counts.served == 9
print("\n2 prompts with 4 samples each are 8 requests; 8 equal calls at temperature 0 are 1")
