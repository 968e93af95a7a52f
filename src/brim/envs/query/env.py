"""`QueryMutationEnv`: one query environment with the interface of Gymnasium.

An action is the number of a mutator. The observation is the vector of the query, of length 1, and the share of the
episode's steps that were taken. A step whose calls fail is truncated, its reward is NaN, and `info["valid"]` is False:
no reward is made up for it.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from brim.core.display import visible
from brim.core.errors import BrimError, OptionError
from brim.core.extras import need
from brim.envs.query.attempt import Question, Reward
from brim.envs.query.config import QueryConfig
from brim.envs.query.lane import Lane, LaneState, Outcome
from brim.envs.query.task import QueryTask
from brim.llm.config import LOCAL
from brim.llm.pool import AnyServer, LLMPool

if TYPE_CHECKING:
    import gymnasium
else:
    gymnasium = need("gymnasium", extra="query", user="brim.envs.query")

LARGEST_SEED = 2**63 - 1


class QueryMutationEnv(gymnasium.Env[NDArray[np.float32], Any]):
    """Rewrite a question, step by step, until a model answers it well.

    Example:
        questions = load_questions("questions.jsonl")
        with LLMPool("http://127.0.0.1:11434", model="llama3.2") as pool:
            env = QueryMutationEnv(questions, pool=pool, reward="numeric")
            observation, info = env.reset(seed=0)
            observation, reward, terminated, truncated, info = env.step(0)
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(
        self,
        questions: Sequence[Question] = (),
        *,
        pool: LLMPool | None = None,
        servers: AnyServer | Sequence[AnyServer] | None = None,
        config: QueryConfig | None = None,
        reward: str | Reward = "exact",
        task: QueryTask | None = None,
        render_mode: str | None = None,
    ) -> None:
        """
        Args:
            questions: `Question`s; `load_questions` reads them from a file.
            pool: A pool to ask, which stays open.
            servers: Addresses of servers instead of a pool; by default an Ollama server on this machine.
            reward: "exact", "numeric", "agreement", "similarity", "judge", or a function of an `Attempt`.
            task: A task that several environments share, in place of everything before.

        Raises:
            OptionError: The questions do not fit the reward or the mutators, or a name is unknown.
            Failure: The servers cannot be asked which models they have.
            MissingExtraError: gymnasium or aiohttp is not installed.
        """
        if render_mode not in (None, "ansi"):
            raise OptionError(f"render_mode must be None or 'ansi', got {render_mode!r}")
        self.render_mode = render_mode
        self._own_pool: LLMPool | None = None
        self._own_task = task is None
        if task is None:
            task = self._open_task(questions, pool, servers, config or QueryConfig(), reward)
        self.task = task
        self.lane = Lane(task)
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (task.dim,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(task.mutations))
        self._last: Outcome | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode with the next question; with a seed, with the first one of that seed.

        Raises:
            Failure: The question cannot be embedded.
        """
        super().reset(seed=seed, options=options)
        self.seed_lane(seed)
        outcome = self.task.pool.run(self.lane.reset())
        if outcome.failure is not None:
            raise outcome.failure
        self._last = outcome
        return outcome.observation, outcome.info

    def seed_lane(self, seed: int | None) -> None:
        """Start the episodes of a seed anew; without a seed, only if there never was one."""
        if seed is None and not self.lane.seeded:
            seed = int(self.np_random.integers(LARGEST_SEED))
        if seed is not None:
            self.lane.state = LaneState(seed)
            self.lane.seeded = True

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Rewrite the query by a mutator, ask it, and rate the answer.

        Raises:
            OptionError: There is no such action.
            gymnasium.error.ResetNeeded: The episode has ended, or none has begun.
        """
        if not self.action_space.contains(action):
            raise OptionError(f"an action must be an integer from 0 to {len(self.task.mutations) - 1}, got {action!r}")
        if self.lane.state.ended:
            raise gymnasium.error.ResetNeeded("the episode has ended, or none has begun; call reset() first")
        outcome = self.task.pool.run(self.lane.step(int(action)))
        self._last = outcome
        return outcome.observation, outcome.reward, outcome.terminated, outcome.truncated, outcome.info

    def render(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the query and the answer as text, with render_mode "ansi"."""
        if self.render_mode is None or self._last is None:
            return None
        info = self._last.info
        parts = [f"question {info['question_id']}: {info['query']}"]
        if "answer" in info:
            parts.append(f"after {info['mutator']}: {info['answer']} (reward {self._last.reward:g})")
        if "failure" in info:
            parts.append(f"invalid: {info['failure_type']}: {info['failure']}")
        return visible("\n".join(parts), keep="\n")

    def close(self) -> None:
        """Close the embedding model and the pool, if the environment opened them."""
        if self._own_task:
            with suppress(BrimError):  # the pool was closed before
                self.task.encoder.close()
        if self._own_pool is not None:
            self._own_pool.close()

    def _open_task(
        self,
        questions: Sequence[Question],
        pool: LLMPool | None,
        servers: AnyServer | Sequence[AnyServer] | None,
        config: QueryConfig,
        reward: str | Reward,
    ) -> QueryTask:
        if pool is not None and servers is not None:
            raise OptionError("give a pool or servers, not both")
        if pool is not None:
            return QueryTask(questions, pool, config, reward)
        opened = LLMPool(LOCAL if servers is None else servers, model=config.model)
        try:
            task = QueryTask(questions, opened, config, reward)
        except BaseException:  # Ctrl-C too: no pool is left open
            opened.close()
            raise
        self._own_pool = opened
        return task
