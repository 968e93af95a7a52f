"""The task that environments share (questions, mutators, reward, models), and the calls of a step.

Whatever is random in a call is keyed by the environment's seed, the episode and the step, never by who asked first: an
environment gets the same answers however its calls interleave with those of others.
"""

import asyncio
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from brim.core.fingerprint import fingerprint
from brim.core.rng import below as index_below
from brim.core.rng import new_seed, permutation, raw_bits
from brim.envs.query.attempt import Attempt, Question, Reward
from brim.envs.query.config import QueryConfig
from brim.envs.query.encoder import Encoder, open_encoder
from brim.envs.query.failures import EmbeddingChanged, ModelChanged
from brim.envs.query.questions import check_questions, questions_fingerprint
from brim.envs.query.rewards import check_reward, needs_reference, open_reward, rate, reward_identity
from brim.llm.call import LARGEST_SEED, Call, Reply, Sampling, chat
from brim.llm.failures import BadReply, Cancelled, Failure
from brim.llm.mutations import Mutation, load_mutation
from brim.llm.pool import LLMPool

SEVERAL_TEMPERATURE = 0.7
"""Temperature of several rewrites of one query where the environment's own is 0: they should differ."""


@dataclass
class Tally:
    """Calls of a step, and the time they took."""

    calls: int = 0
    cached: int = 0
    server_seconds: float = 0.0
    """Sum of the latencies."""
    queue_seconds: float = 0.0
    """Sum of the times that calls waited for a free slot."""

    def add(self, reply: Reply) -> None:
        self.calls += 1
        self.cached += reply.cached
        if not reply.cached:
            self.server_seconds += reply.latency
            self.queue_seconds += max(0.0, reply.seconds - reply.latency)


@dataclass(frozen=True)
class Rewritten:
    """The successful end of a step's calls."""

    query: str
    answer: str
    reward: float
    vector: NDArray[np.float32]
    fallbacks: tuple[str, ...]
    """The calls that failed and whose place a fallback took: "query", "answer"."""


class QueryTask:
    """Questions, mutators, a reward, and the models to ask. Used in the event loop of the pool."""

    def __init__(
        self,
        questions: Sequence[Question],
        pool: LLMPool,
        config: QueryConfig,
        reward: str | Reward,
    ) -> None:
        """
        Raises:
            OptionError: The questions do not fit the reward or the mutators, or a name is unknown.
            Failure: The servers cannot be asked which models they have.
        """
        self.config = config
        self.mutations = tuple(load_mutation(name) for name in config.mutators)
        self.reward = open_reward(reward)
        self.questions = self._checked(questions)
        self.model = config.model or pool.only_model()
        self.mutator_model = config.mutator_model or self.model
        self.pool = pool
        self.encoder: Encoder = open_encoder(config.embedder, pool)
        self.seen_models: dict[str, str] = {}
        """The model that each server answered with, by "server model asked for"."""
        self.asker = pool.asker()

    @property
    def dim(self) -> int:
        """Numbers in an observation: the vector of the query, and the step."""
        return self.encoder.dim + 1

    def with_questions(self, questions: Sequence[Question]) -> "QueryTask":
        """Return the same task with other questions.

        Raises:
            OptionError: They do not fit the reward or the mutators.
        """
        other = copy(self)
        other.questions = self._checked(questions)
        return other

    def take_turns(self, turns: asyncio.Semaphore | None) -> None:
        """Limit the calls that are open at once; with a value of 1, one is asked after another. None is no limit."""
        for asker in (self.asker, self.encoder.asker):
            if asker is not None:
                asker.turns = turns

    def fingerprint(self) -> str:
        """Return a fingerprint of everything that decides about episodes, but the models' answers."""
        return fingerprint(
            questions=questions_fingerprint(self.questions),
            mutations=[[mutation.name, mutation.template] for mutation in self.mutations],
            reward=reward_identity(self.reward),
            config=asdict(self.config),
            embedder=[self.encoder.name, self.encoder.dim],
            models=[self.model, self.mutator_model],
        )

    def _checked(self, questions: Sequence[Question]) -> tuple[Question, ...]:
        check_questions(
            questions,
            needs_reference=needs_reference(self.reward),
            crossover=any(mutation.needs_other for mutation in self.mutations),
        )
        check_reward(self.reward, questions)
        return tuple(questions)

    def order(self, seed: int, number: int) -> NDArray[np.int64]:
        """Return the order of the questions in an environment's pass `number` through all of them."""
        return permutation(len(self.questions), seed=seed, purpose="query/questions", epoch=number)

    def other(self, seed: int, episode: int, step: int, question: int) -> str:
        """Return another question of the pool, for a mutation that combines two."""
        (word,) = raw_bits(1, seed=seed, purpose=f"query/other/{episode}", epoch=step).tolist()
        drawn = index_below(int(word), len(self.questions) - 1)
        return self.questions[drawn + (drawn >= question)].text

    def observation(self, vector: NDArray[np.float32], step: int) -> NDArray[np.float32]:
        """Return the observation of a query: its vector, and the share of the episode's steps that were taken."""
        observation = np.empty(self.dim, np.float32)
        observation[:-1] = vector
        observation[-1] = step / self.config.max_steps
        return observation


class StepCalls:
    """The calls of one step of one environment. A reward gets it as `Attempt.calls`."""

    def __init__(self, task: QueryTask, seed: int, episode: int, step: int, tally: Tally, *, rank: int = 0) -> None:
        """`rank` is the number of steps that the environment has taken: the calls of those that lag behind go first."""
        self._task = task
        self._seed = seed
        self._episode = episode
        self._step = step
        self._rank = rank
        self.tally = tally

    async def ask(self, prompt: str, *, purpose: str, sample: int = 0, model: str | None = None) -> str:
        config = self._task.config
        sampling = self._sampling(purpose, sample, config.answer_temperature, config.max_answer_tokens)
        return await self._asked(prompt, model or self._task.model, sampling, sample)

    async def rewrite(self, query: str, mutation: Mutation, *, sample: int = 0) -> str:
        return await self._rewrite(mutation.apply(query), sample, self._task.config.temperature or SEVERAL_TEMPERATURE)

    async def embed(self, text: str) -> NDArray[np.float32]:
        encoder = self._task.encoder
        vector, reply = await encoder.encode(text)
        if reply is not None:
            self.tally.add(reply)
        if len(vector) != encoder.dim:
            raise EmbeddingChanged(
                f"a vector of {encoder.name} has {len(vector)} numbers, and those before had {encoder.dim}"
            )
        exact = vector.astype(np.float64)  # the length of large vectors does not fit in 32 bits
        length = float(np.linalg.norm(exact))
        if not np.isfinite(length):
            raise BadReply(f"a vector of {encoder.name} is not finite")
        return np.clip(exact / (length or 1.0), -1.0, 1.0).astype(np.float32)

    async def attempt(self, question: Question, before: str, mutation: Mutation, other: str | None) -> Rewritten:
        """Rewrite a query, ask it, and rate the answer.

        Raises:
            Failure: A call failed, or the reward did.
        """
        config = self._task.config
        fallbacks: list[str] = []
        try:
            query = await self._rewrite(mutation.apply(before, other), 0, config.temperature)
        except Failure as failure:
            if not config.fallback_query or isinstance(failure, ModelChanged | Cancelled):
                raise
            query = before
            fallbacks.append("query")
        return await self.answered(question, before, query, fallbacks)

    async def answered(self, question: Question, before: str, query: str, fallbacks: Sequence[str] = ()) -> Rewritten:
        """Ask a query, and rate the answer. The query is embedded at the same time.

        Raises:
            Failure: A call failed, or the reward did.
        """
        task = self._task
        answer, vector = await asyncio.gather(self._answer(query), self.embed(query), return_exceptions=True)
        instead = task.config.fallback_answer
        if instead is not None and isinstance(answer, Failure) and not isinstance(answer, ModelChanged | Cancelled):
            answer = instead
            fallbacks = (*fallbacks, "answer")
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(vector, BaseException):
            raise vector
        attempt = Attempt(question=question, before=before, query=query, answer=answer, step=self._step, calls=self)
        return Rewritten(query, answer, await rate(task.reward, attempt), vector, tuple(fallbacks))

    async def _answer(self, query: str) -> str:
        return await self.ask(query, purpose="answer")

    async def _rewrite(self, prompt: str, sample: int, temperature: float) -> str:
        task = self._task
        sampling = self._sampling("rewrite", sample, temperature, task.config.max_query_tokens)
        text = (await self._asked(prompt, task.mutator_model, sampling, sample)).strip()
        if not text:
            raise BadReply("the rewritten query is empty")
        return text

    async def _asked(self, prompt: str, model: str, sampling: Sampling, sample: int) -> str:
        call = Call(model=model, messages=chat(prompt), sampling=sampling, sample=sample)
        try:
            reply = await self._task.asker.ask(call, rank=self._rank)
        except Failure:
            self.tally.calls += 1
            raise
        self.tally.add(reply)
        self._check_model(reply, model)
        return reply.text

    def _sampling(self, purpose: str, sample: int, temperature: float, max_tokens: int) -> Sampling:
        if temperature == 0:  # equal calls of several environments are asked once
            return Sampling(temperature=0.0, max_tokens=max_tokens)
        key = new_seed(seed=self._seed, purpose=f"query/{purpose}/{self._episode}/{self._step}", epoch=sample)
        return Sampling(temperature=temperature, max_tokens=max_tokens, seed=key % LARGEST_SEED)

    def _check_model(self, reply: Reply, asked: str) -> None:
        if not reply.model or not reply.server:
            return
        before = self._task.seen_models.setdefault(f"{reply.server} {asked}", reply.model)
        if before != reply.model:
            raise ModelChanged(
                f"asked for {asked}, the server answered with {reply.model}, and before with {before}",
                server=reply.server,
            )
