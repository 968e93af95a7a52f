"""The clients that `llm.py` compares, each in a process of its own: `python llm_clients.py CASE`.

CASE is JSON: which client, the server's address, the number of calls, how many of them at once. The process sends them,
checks every answer after the clock has stopped, and prints one line of JSON: wall and CPU seconds of the calls (not of
the imports), lost calls, peak memory. It imports one client and nothing else, so that memory is that client's own.
With "warm", so many calls are sent before the clock starts, and the connections are open by then.

    brim      `LLMPool.map`; without "at_once" it finds the server's capacity out
    seed      `ThreadPoolExecutor(8)` and the `ollama` client, no retry
    openai    `AsyncOpenAI` and a semaphore of "at_once"; "openai, aiohttp" is the same over openai's aiohttp transport
    litellm   litellm's `Router` and a semaphore of "at_once"

"profile" names a file to which the profile of the event loop's thread is written.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

MODEL = "test"
SEED_THREADS = 8
FILLER = "The rest of the question is as long as questions often are, and it asks for nothing that matters here. "

Case = dict[str, Any]
Texts = list[str | None]
"""The answers in the order asked; None for a call that failed."""


def main() -> None:
    case: Case = json.loads(sys.argv[1])
    prompts = [f"{number:06}: {FILLER}{FILLER[:60]}" for number in range(case["calls"])]
    found = CLIENTS[case["client"]](case, prompts)
    texts = found.pop("texts")
    # The test server answers short prompts with the prompt itself.
    found["lost"] = sum(text != f"answer to: {prompt}" for text, prompt in zip(texts, prompts, strict=True))
    print(json.dumps({**found, "peak MB": peak_memory()}))


def brim(case: Case, prompts: Sequence[str]) -> dict[str, Any]:
    from brim.llm.call import Reply
    from brim.llm.config import Server
    from brim.llm.pool import LLMPool

    server = Server(url=case["url"], protocol=case.get("protocol", "auto"), limit=case.get("at_once"))
    with LLMPool(server, model=MODEL) as pool:
        pool.map(prompts[: case.get("warm", 0)])
        if "profile" in case:
            return profiled(pool, prompts, case["profile"])
        clock = Clock()
        results = pool.map(prompts)
        found = clock.stop()
        stats = pool.stats()
    texts = [result.text if isinstance(result, Reply) else None for result in results]
    latencies = sorted(result.latency for result in results if isinstance(result, Reply))
    found["median ms"] = 1000 * latencies[len(latencies) // 2] if latencies else None
    return {**found, "texts": texts, "limit": stats.servers[0].limit, "failures": stats.failures}


def profiled(pool: Any, prompts: Sequence[str], path: str) -> dict[str, Any]:
    import cProfile

    profile = cProfile.Profile()
    pool._post(profile.enable)
    clock = Clock()
    results = pool.map(prompts)
    found = clock.stop()
    pool._post(profile.disable)
    pool.stats()
    profile.dump_stats(path)
    return {**found, "texts": [getattr(result, "text", None) for result in results]}


def seed(case: Case, prompts: Sequence[str]) -> dict[str, Any]:
    from concurrent.futures import ThreadPoolExecutor

    import httpx
    import ollama

    client = ollama.Client(host=case["url"], timeout=case.get("timeout"))
    failures: Counter[str] = Counter()

    def ask(prompt: str) -> str | None:
        try:
            return client.chat(model=MODEL, messages=[{"role": "user", "content": prompt}]).message.content
        except (ollama.ResponseError, httpx.HTTPError, ConnectionError) as error:
            failures[type(error).__name__] += 1
            return None

    with ThreadPoolExecutor(SEED_THREADS) as executor:
        list(executor.map(ask, prompts[: case.get("warm", 0)]))
        clock = Clock()
        texts = list(executor.map(ask, prompts))
        found = clock.stop()
    return {**found, "texts": texts, "failures": failures}


def openai(case: Case, prompts: Sequence[str]) -> dict[str, Any]:
    from openai import AsyncOpenAI, DefaultAioHttpClient, OpenAIError

    async def run() -> dict[str, Any]:
        options: dict[str, Any] = {"timeout": case["timeout"]} if "timeout" in case else {}
        if "aiohttp" in case["client"]:
            options["http_client"] = DefaultAioHttpClient()
        async with AsyncOpenAI(base_url=f"{case['url']}/v1", api_key="none", **options) as client:

            async def ask(prompt: str) -> str | None:
                messages: Any = [{"role": "user", "content": prompt}]
                reply = await client.chat.completions.create(model=MODEL, messages=messages)
                return reply.choices[0].message.content

            return await gathered(ask, prompts, case, OpenAIError)

    return asyncio.run(run())


def litellm(case: Case, prompts: Sequence[str]) -> dict[str, Any]:
    import litellm
    from openai import OpenAIError

    litellm.suppress_debug_info = True
    options: dict[str, Any] = {"timeout": case["timeout"]} if "timeout" in case else {}
    server = {"model": f"openai/{MODEL}", "api_base": f"{case['url']}/v1", "api_key": "none"}
    router = litellm.Router(model_list=[{"model_name": MODEL, "litellm_params": server}], **options)

    async def ask(prompt: str) -> str | None:
        reply = await router.acompletion(model=MODEL, messages=[{"role": "user", "content": prompt}])
        return reply.choices[0].message.content

    return asyncio.run(gathered(ask, prompts, case, OpenAIError))


async def gathered(
    ask: Callable[[str], Awaitable[str | None]], prompts: Sequence[str], case: Case, error: type[Exception]
) -> dict[str, Any]:
    """Ask for all prompts, "at_once" of them at once; a call that ends in `error` is lost."""
    semaphore = asyncio.Semaphore(case["at_once"])
    failures: Counter[str] = Counter()

    async def one(prompt: str) -> str | None:
        async with semaphore:
            try:
                return await ask(prompt)
            except error as raised:
                failures[type(raised).__name__] += 1
                return None

    await asyncio.gather(*map(one, prompts[: case.get("warm", 0)]))
    clock = Clock()
    texts = await asyncio.gather(*map(one, prompts))
    return {**clock.stop(), "texts": texts, "failures": failures}


CLIENTS: dict[str, Callable[[Case, Sequence[str]], dict[str, Any]]] = {
    "brim": brim,
    "seed": seed,
    "openai": openai,
    "openai, aiohttp": openai,
    "litellm": litellm,
}


class Clock:
    """Wall seconds, and CPU seconds of all threads of this process, user and system together."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def stop(self) -> dict[str, Any]:
        return {"wall": time.perf_counter() - self.wall, "cpu": time.process_time() - self.cpu}


def peak_memory() -> float:
    """In MB of a million bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    main()
