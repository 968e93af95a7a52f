"""The seed's design, as `query.py` measures it, in a process of its own: `python query_seed.py`.

Standard input is JSON: the server's address, the questions, the number of environments, of steps and of threads. A step
has stages with a barrier after each: all queries are rewritten, then all are asked, then all are embedded, and then the
answers are rated. Every stage is a `map` of a `ThreadPoolExecutor` over one `ollama` client, which keeps its
connections open; nothing is retried. With 1 thread, the environments come one after another, and no threads are used:
the seed's `--no-batching`.

Templates and embedding model are those of brim, so the server gets the same prompts and the process has the same work
to do. It prints one line of JSON: wall and CPU seconds of the steps (not of the imports), and steps whose answer is
missing or belongs to another query.
"""

import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import ollama
from llm_clients import Clock

from brim.envs.query.config import MUTATORS
from brim.llm.embed.hash import HashEmbedder
from brim.llm.mutations import load_mutation
from brim.llm.testing.replies import echo

MODEL = "test"
MAX_STEPS = 3
"""Steps of an episode."""
MAX_TOKENS = 256


def main() -> None:
    case = json.load(sys.stdin)
    client = ollama.Client(host=case["url"])
    questions = case["questions"]
    with ThreadPoolExecutor(case["threads"]) as executor:
        run = Steps(client, questions, case["envs"], executor.map if case["threads"] > 1 else None)
        clock = Clock()
        for step in range(case["steps"]):
            run.step(step)
        found = clock.stop()
    print(json.dumps({**found, "lost": run.lost, "limit": case["threads"]}))


class Steps:
    """Environments, and their steps."""

    def __init__(
        self,
        client: ollama.Client,
        questions: Sequence[str],
        envs: int,
        in_threads: Callable[..., Any] | None,
    ) -> None:
        self._client = client
        self._questions = questions
        self._map = in_threads
        self._mutations = [load_mutation(name) for name in MUTATORS]
        self._embedder = HashEmbedder()
        self._queries = [""] * envs
        self.lost = 0

    def step(self, step: int) -> None:
        """Take a step in every environment. Episodes have `MAX_STEPS` steps, and begin with a question each."""
        envs = range(len(self._queries))
        if step % MAX_STEPS == 0:
            episode = step // MAX_STEPS
            self._queries = [self._questions[episode * len(envs) + env] for env in envs]
        prompts = [self._prompt(env, step) for env in envs]
        if self._map is None:
            for env in envs:
                self._queries[env] = self._ask(prompts[env])
                self._rate(self._queries[env], self._ask(self._queries[env]))
                self._embed(self._queries[env])
            return
        self._queries = list(self._map(self._ask, prompts))
        answers = list(self._map(self._ask, self._queries))
        list(self._map(self._embed, self._queries))
        for query, answer in zip(self._queries, answers, strict=True):
            self._rate(query, answer)

    def _prompt(self, env: int, step: int) -> str:
        mutation = self._mutations[(7 * env + 3 * step) % len(self._mutations)]
        return mutation.apply(self._queries[env], self._questions[-1 - env])

    def _ask(self, prompt: str) -> str:
        options = {"temperature": 0.0, "num_predict": MAX_TOKENS}
        try:
            reply = self._client.chat(model=MODEL, messages=[{"role": "user", "content": prompt}], options=options)
        except (ollama.ResponseError, httpx.HTTPError, ConnectionError):
            return "no answer"
        return (reply.message.content or "").strip()

    def _embed(self, query: str) -> Any:
        return self._embedder.encode([query])[0]

    def _rate(self, query: str, answer: str) -> None:
        self.lost += answer != echo(query)


if __name__ == "__main__":
    main()
