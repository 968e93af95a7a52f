"""Query environments for tests: a model in this process, and ways to drive environments that must agree.

A driver lets every environment take the same number of steps, each with the action that a table has for it, and returns
what happened by environment: resets that take the place of a step are left out, so that all drivers return the same.
"""

import asyncio
import math
from contextlib import contextmanager

import numpy as np

from brim.core.rng import raw_bits, uniform
from brim.envs.query import BatchedQueryMutationEnv, QueryConfig, QueryMutationEnv, Question
from brim.envs.query.scripted import scripted_answer, scripted_questions
from brim.llm.call import Answer
from brim.llm.config import PoolConfig
from brim.llm.embed.hash import HashEmbedder
from brim.llm.mutations import load_mutation
from brim.llm.pool import LLMPool
from brim.llm.testing.replies import asked

MUTATORS = ("rephrase", "shorten", "expand", "add_context", "break_into_steps", "crossover")
QUESTIONS = scripted_questions(12, seed=1)
DIM = 16
CONFIG = QueryConfig(embedder=f"hash-{DIM}", model="scripted")
CALLS = PoolConfig(attempts=1, timeout=20.0, patience=0.0, embed_wait=0.0005)
"""A call that fails once has failed."""
MODES = ("next_step", "same_step", "disabled")


class Model:
    """An `Endpoint` in this process, whose answers are a function of the call.

    The function returns a text, or a failure, which is raised. What it says is kept in `calls`.
    """

    name = "model"

    def __init__(self, answer=scripted_answer, *, wait=None, model="scripted", vector=None, limit=256):
        """
        Args:
            wait: Called with the number of the request; returns seconds to wait before the answer, or an awaitable.
            model: Name of the model in replies, or a function of the call.
            vector: The vector of a text; by default that of the built-in embedder.
        """
        self.answer = answer
        self.wait = wait
        self.model = model
        self.limit = limit
        self.vector = vector or (lambda text: HashEmbedder(DIM).encode([text])[0])
        self.calls = []
        self.open = 0
        self.most_open = 0
        """Largest number of calls that were open at once."""

    async def ask(self, call):
        number = len(self.calls)
        self.calls.append(call)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            if self.wait is not None:
                waited = self.wait(number)
                await (asyncio.sleep(waited) if isinstance(waited, int | float) else waited)
            model = self.model(call) if callable(self.model) else self.model
            if call.kind == "embed":
                vectors = [given_or_raised(self.vector(text)) for text in call.inputs]
                return Answer(vectors=np.stack(vectors).astype(np.float32), model=model)
            return Answer(text=given_or_raised(self.answer(call)), model=model, finish_reason="stop")
        finally:
            self.open -= 1

    async def models(self):
        return ["scripted"]

    async def close(self):
        pass

    def chats(self):
        """The prompts of all chats, in the order of their arrival."""
        return [asked(call) for call in self.calls if call.kind == "chat"]


def given_or_raised(value):
    if isinstance(value, BaseException):
        raise value
    return value


def is_rewrite(call):
    """Whether a call asks for a rewritten query, and not for an answer."""
    prompt = asked(call)
    return any(prompt.startswith(load_mutation(name).template[:40]) for name in MUTATORS)


@contextmanager
def pool_of(*servers, **options):
    with LLMPool(list(servers), model="scripted", config=options.pop("config", CALLS), **options) as pool:
        yield pool


@contextmanager
def world(count=3, model=None, *, config=CONFIG, reward="numeric", questions=QUESTIONS, calls=CALLS, **options):
    """`count` environments that ask one model."""
    with pool_of(model or Model(), config=calls) as pool:
        envs = BatchedQueryMutationEnv(count, questions, pool=pool, config=config, reward=reward, **options)
        yield envs
        envs.close()


@contextmanager
def single(model=None, *, config=CONFIG, reward="numeric", questions=QUESTIONS, calls=CALLS):
    """One environment."""
    with pool_of(model or Model(), config=calls) as pool:
        yield QueryMutationEnv(questions, pool=pool, config=config, reward=reward)


def table(count, steps, *, mutators=6, seed=0):
    """Random actions [steps, count]."""
    return (uniform(count * steps, seed=seed, purpose="actions") * mutators).astype(np.int64).reshape(steps, count)


class Taken:
    """The steps of each environment, up to `steps`, in the order in which it took them."""

    def __init__(self, actions):
        self.actions = actions
        self.steps, self.count = actions.shape
        self.rows = [[] for _ in range(self.count)]

    def action(self, number):
        """The next action of an environment; any, once it has all its steps."""
        return int(self.actions[min(len(self.rows[number]), self.steps - 1), number])

    def add(self, number, observation, reward, terminated, truncated, info):
        """Keep a step. With a new episode in the same step, its last observation and information are those kept."""
        observation, info = info.get("final_obs", observation), info.get("final_info", info)
        if "mutator" not in info or len(self.rows[number]) == self.steps:
            return
        self.rows[number].append(row_of(observation, reward, terminated, truncated, info))

    @property
    def missing(self):
        """Environments that have steps left."""
        return [number for number in range(self.count) if len(self.rows[number]) < self.steps]


def by_step(envs, actions, *, seed=0):
    """Steps of all environments at once, as Gymnasium takes them."""
    taken = Taken(actions)
    envs.reset(seed=seed)
    while taken.missing:
        chosen = np.array([taken.action(number) for number in range(taken.count)])
        observations, rewards, terminated, truncated, infos = envs.step(chosen)
        for number in range(taken.count):
            row = listed(infos, number)
            taken.add(number, observations[number], rewards[number], terminated[number], truncated[number], row)
        if envs.metadata["autoreset_mode"].name == "DISABLED" and (terminated | truncated).any():
            envs.reset(options={"reset_mask": terminated | truncated})
    return taken.rows


def by_batch_step(envs, actions, *, seed=0, shuffle=0):
    """Steps of random groups of environments."""
    taken = Taken(actions)
    envs.batch_reset(seed=seed)
    for words in endless_words(shuffle):
        if not taken.missing:
            return taken.rows
        ids = some(taken.missing, words)
        batch = envs.batch_step([taken.action(number) for number in ids], ids)
        for at, number in enumerate(ids):
            taken.add(number, *(column[at] for column in batch))
    return None


def by_send_recv(envs, actions, *, seed=0, shuffle=0):
    """Steps that are sent in random groups, and received with random limits."""
    taken = Taken(actions)
    envs.batch_reset(seed=seed)
    free, under_way = set(range(taken.count)), 0
    for words in endless_words(shuffle):
        if not taken.missing and not under_way:
            return taken.rows
        ids = some([number for number in taken.missing if number in free], words)
        envs.send(np.array([taken.action(number) for number in ids], np.int64), ids)
        free -= set(ids)
        under_way += len(ids)
        least = words[0] % (under_way + 1)
        most = None if words[1] % 3 == 0 else max(1, least) + words[2] % 3
        batch = envs.recv(least, most, deadline=None if words[3] % 2 else 0.002)
        assert most is None or len(batch) <= most
        for at, number in enumerate(batch.ids.tolist()):
            columns = (batch.observations, batch.rewards, batch.terminated, batch.truncated, batch.infos)
            taken.add(number, *(column[at] for column in columns))
            free.add(number)
        under_way -= len(batch)
    return None


def by_rollout(envs, actions, *, seed=0, lengths=None):
    """Steps of rollouts, one after another. Without a seed, from the environments' present state."""
    steps, count = actions.shape
    if seed is not None:
        envs.batch_reset(seed=seed)
    rows = [[] for _ in range(count)]
    for length in lengths or [steps]:
        rollout = envs.rollout(table_policy(actions), length)
        for at, number in np.ndindex(length, count):
            columns = (rollout.next_observations, rollout.rewards, rollout.terminated, rollout.truncated)
            rows[number].append(row_of(*(column[at, number] for column in columns), rollout.infos[at][number]))
    return rows


def row_of(observation, reward, terminated, truncated, info):
    """A step as values that can be compared with ==: NaN is a text here, and an observation its bytes."""
    info = {**info, "valid": bool(info["valid"])}
    return (observation.tobytes(), repr(float(reward)), bool(terminated), bool(truncated), info)


def table_policy(actions):
    """The policy that takes the actions of a table, by environment and number of the step."""
    return lambda observations, ids, numbers: actions[numbers % len(actions), ids]


def listed(infos, number):
    """The information of one environment, out of the arrays of a vector environment."""
    row = {}
    for name, values in infos.items():
        if name.startswith("_") or not infos[f"_{name}"][number]:
            continue
        row[name] = listed(values, number) if isinstance(values, dict) else values[number]
    return row


def endless_words(seed):
    """Lists of random numbers."""
    epoch = 0
    while True:
        yield raw_bits(64, seed=seed, purpose="shuffle", epoch=epoch).tolist()
        epoch += 1


def some(items, words):
    """A random part of the items, in a random order; at least one if there is one."""
    order = sorted(range(len(items)), key=lambda at: words[at % 56 + 8] ^ at)
    return [items[at] for at in order[: 1 + words[4] % len(items)]] if items else []


def same(one, other):
    """Whether two values are equal, where NaN equals NaN, and types of numbers, arrays and dictionaries count."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, np.ndarray):
        if not isinstance(other, np.ndarray) or (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        return all(map(same, one, other)) if one.dtype == object else np.array_equal(one, other, one.dtype.kind == "f")
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    return type(one) is type(other) and one == other


def questions_of(count):
    """Questions with unique words in them."""
    return tuple(Question(id=f"q{at}", text=f"<<question {at}>>", reference=str(at)) for at in range(count))
