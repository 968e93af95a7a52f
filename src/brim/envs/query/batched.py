"""`BatchedQueryMutationEnv`: many query environments at once, with the interface of Gymnasium's `VectorEnv`.

Three ways to use it, all of them on one engine:

    step           one step of all environments, as Gymnasium wants it
    send, recv     begin steps of some, and take those that are done, as EnvPool has it
    rollout        every environment takes its own T steps, and the policy serves whoever is ready

Environments are coroutines in the event loop of the pool. With `batching=False` they ask one call at a time.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DamagedError, MismatchError, OptionError
from brim.core.extras import need
from brim.core.fingerprint import fingerprint
from brim.core.options import check_counts
from brim.envs.query.arguments import Seeds, checked_mode, masked, seeds_of
from brim.envs.query.attempt import Question, Reward
from brim.envs.query.config import QueryConfig
from brim.envs.query.env import LARGEST_SEED, QueryMutationEnv
from brim.envs.query.lane import Lane, LaneState, Outcome
from brim.envs.query.lanes import Lanes, Work
from brim.envs.query.received import BatchStep, Observations, QueryBatch, gathered
from brim.envs.query.rollout import Policy, Rollout, checked_actions, collect
from brim.envs.query.task import QueryTask
from brim.llm.pool import AnyServer, LLMPool

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
else:
    gymnasium = need("gymnasium", extra="query", user="brim.envs.query")
    AutoresetMode = need("gymnasium.vector", extra="query", user="brim.envs.query").AutoresetMode
    VectorEnv = need("gymnasium.vector", extra="query", user="brim.envs.query").VectorEnv
    batch_space = need("gymnasium.vector.utils", extra="query", user="brim.envs.query").batch_space


class BatchedQueryMutationEnv(VectorEnv[Observations, NDArray[np.integer], NDArray[Any]]):
    """Many `QueryMutationEnv`s whose calls run at the same time.

    Example:
        with LLMPool("http://127.0.0.1:11434", model="llama3.2") as pool:
            envs = BatchedQueryMutationEnv(16, load_questions("questions.jsonl"), pool=pool, reward="numeric")
            observations, infos = envs.reset(seed=0)
            observations, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
    """

    def __init__(
        self,
        envs: Sequence[QueryMutationEnv] | int,
        questions: Sequence[Question] = (),
        *,
        pool: LLMPool | None = None,
        servers: AnyServer | Sequence[AnyServer] | None = None,
        config: QueryConfig | None = None,
        reward: str | Reward | None = None,
        autoreset_mode: "AutoresetMode | str" = AutoresetMode.NEXT_STEP,
        batching: bool = True,
    ) -> None:
        """
        Args:
            envs: Environments that ask one pool; or how many to make, of the other arguments.
            autoreset_mode: When an episode that ended is followed by the next one; see Gymnasium's `AutoresetMode`.
            batching: False asks one call at a time, in all environments of the same task.

        Raises:
            OptionError: There are no environments, or they differ in their pool or in their spaces.
        """
        super().__init__()
        if isinstance(envs, int):
            check_counts(envs=envs)
            first = QueryMutationEnv(questions, pool=pool, servers=servers, config=config, reward=reward or "exact")
            self.envs = [first, *(QueryMutationEnv(task=first.task) for _ in range(envs - 1))]
        else:
            if questions or any(one is not None for one in (pool, servers, config, reward)):
                raise OptionError("environments that are given have questions, a pool and a reward of their own")
            self.envs = list(envs)
            _check_alike(self.envs)
        self.num_envs = len(self.envs)
        self.autoreset_mode = checked_mode(autoreset_mode)
        self.metadata = {**self.envs[0].metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.batching = batching
        self.pool = self.envs[0].task.pool
        if not batching:
            turns = asyncio.Semaphore(1)
            for env in self.envs:
                env.task.take_turns(turns)
        self._lanes = Lanes([env.lane for env in self.envs], self.pool.post)

    def reset(
        self, *, seed: Seeds = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Begin episodes in all environments, or in those of `options["reset_mask"]`.

        Args:
            seed: An integer gives environment i the seed `seed + i`; a list gives each its own. Without one, the next
                episodes begin.

        Raises:
            OptionError: The mask or the seeds do not fit, or steps that were sent have not been received.
            Failure: A question cannot be embedded.
        """
        super().reset(seed=int(seed) if isinstance(seed, int | np.integer) else None)
        mask = None if options is None else options.get("reset_mask")
        ids = list(range(self.num_envs)) if mask is None else masked(mask, self.num_envs)
        outcomes = self._reset(ids, seed)
        infos: dict[str, Any] = {}
        for number, outcome in outcomes.items():
            infos = self._add_info(infos, outcome.info, number)
        return np.stack([env.lane.observation for env in self.envs]), infos

    def step(
        self, actions: NDArray[np.integer]
    ) -> tuple[Observations, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Take a step in all environments, and wait for the slowest of them.

        Raises:
            OptionError: An action does not exist, or steps that were sent have not been received.
            gymnasium.error.ResetNeeded: `reset` was not called, or an episode has ended and nothing resets it.
        """
        batch = self._all(actions, range(self.num_envs))
        infos: dict[str, Any] = {}
        for number, info in enumerate(batch.infos):
            if "final_info" in info:  # before the information of the new episode, as Gymnasium has it
                final = {name: info[name] for name in ("final_obs", "final_info")}
                infos = self._add_info(infos, final, number)
                info = {name: value for name, value in info.items() if name not in final}
            infos = self._add_info(infos, info, number)
        return batch.observations, batch.rewards, batch.terminated, batch.truncated, infos

    def batch_reset(
        self, ids: Sequence[int] | None = None, *, seed: Seeds = None
    ) -> tuple[Observations, list[dict[str, Any]]]:
        """Begin episodes in all environments, or in some. Returns their observations, and a dictionary for each."""
        listed = self._ids(ids)
        outcomes = self._reset(listed, seed)
        observations = np.stack([outcomes[number].observation for number in listed])
        return observations, [outcomes[number].info for number in listed]

    def batch_step(self, actions: Any, ids: Sequence[int] | None = None) -> BatchStep:
        """Take a step in all environments, or in those of `ids`, and wait for the slowest. Results follow `ids`."""
        batch = self._all(actions, self._ids(ids))
        return BatchStep(batch.observations, batch.rewards, batch.terminated, batch.truncated, batch.infos)

    def send(self, actions: Any, ids: Sequence[int] | NDArray[np.integer] | None = None) -> None:
        """Begin a step in all environments, or in some, and return at once.

        An environment whose episode has ended begins the next one instead, unless the autoreset mode is DISABLED.

        Raises:
            OptionError: An action or an environment does not exist, or the result of its last step was not received.
            gymnasium.error.ResetNeeded: `reset` was not called, or an episode has ended and nothing resets it.
        """
        listed = self._ids(ids)
        chosen = checked_actions(actions, len(listed), len(self.envs[0].task.mutations))
        self._lanes.begin({number: self._work(number, action) for number, action in zip(listed, chosen, strict=True)})

    def recv(self, min_n: int = 1, max_n: int | None = None, deadline: float | None = None) -> QueryBatch:
        """Return steps that were sent and are done, in the order of their completion.

        Args:
            min_n: Number of steps to wait for.
            max_n: Upper limit of the steps that are returned; the others are returned next time.
            deadline: Seconds after which fewer than `min_n`, even none, are returned. The others stay under way.

        Raises:
            OptionError: Fewer than `min_n` steps are under way.
        """
        if min_n < 0 or (max_n is not None and max_n < max(min_n, 1)):
            raise OptionError(f"min_n must be at least 0, and max_n at least 1 and min_n, got {min_n} and {max_n}")
        return gathered(self._lanes.take(min_n, max_n, deadline), self.envs[0].task.dim)

    def rollout(
        self,
        policy: Policy,
        num_steps: int,
        *,
        max_invalid: float | None = None,
        stop: Callable[[], bool] | None = None,
        watch: Callable[[Outcome], None] | None = None,
    ) -> Rollout | None:
        """Let every environment take `num_steps` steps of one policy, without waiting for the others.

        The policy is called with observations [k, d], the numbers of the k environments that are ready, and how many
        steps each has taken before. It returns actions [k], or a pair of actions and further columns to keep. Episodes
        that end are followed by the next one at once, whatever the autoreset mode.

        Args:
            max_invalid: Largest share of invalid steps, beyond which the rollout is given up. None is no limit.
            stop: Asked from time to time; if it is true, the rollout is given up, and None is returned.
            watch: Called with every step that is done, in the order of completion.

        Raises:
            TooManyInvalid: More steps are invalid than `max_invalid` allows.
            OptionError: An action does not exist, or steps that were sent have not been received.
            gymnasium.error.ResetNeeded: `reset` was not called.
        """
        check_counts(num_steps=num_steps)
        if max_invalid is not None and not 0 <= max_invalid <= 1:
            raise OptionError(f"max_invalid must lie between 0 and 1, got {max_invalid!r}")
        self._check_idle()
        self._check_begun(range(self.num_envs))
        return collect(self._lanes, policy, num_steps, max_invalid=max_invalid, stop=stop, watch=watch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all environments as JSON-like values.

        Raises:
            OptionError: Steps that were sent have not been received.
        """
        self._check_idle()
        tasks = self._tasks()
        return {
            "task": self._fingerprint(),
            "dim": tasks[0].dim,
            "models": [dict(task.seen_models) for task in tasks],
            "lanes": [env.lane.state.to_dict() for env in self.envs],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state.

        Raises:
            MismatchError: It belongs to other questions, mutators, models or vectors, or to another number of
                environments.
            DamagedError: It cannot be understood.
        """
        self._check_idle()
        tasks = self._tasks()
        task = tasks[0]
        try:
            found, dim, lanes = state["task"], state["dim"], [LaneState.from_dict(lane) for lane in state["lanes"]]
            models = [dict(seen) for seen in state["models"]]
            if type(dim) is not int or not all(isinstance(name, str) for seen in models for name in seen.values()):
                raise TypeError("dim or models")
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError(f"the state of the environments is damaged: {error!r:.80}") from None
        if dim != task.dim:
            raise MismatchError(
                f"the vectors of {task.encoder.name} have {task.dim - 1} numbers, and had {dim - 1} before; use the "
                "embedding model that the run began with"
            )
        if len(lanes) != self.num_envs:
            raise MismatchError(f"there were {len(lanes)} environments before, and there are {self.num_envs} now")
        if found != self._fingerprint():
            raise MismatchError(
                "the environments had other questions, mutators, models, or another reward, max_steps or goal before; "
                "use those the run began with"
            )
        if len(models) != len(tasks):
            raise DamagedError(f"the state of the environments is damaged: {len(models)} models of {len(tasks)} tasks")
        for env, lane in zip(self.envs, lanes, strict=True):
            env.lane.check(lane)
        for env, lane in zip(self.envs, lanes, strict=True):
            env.lane.state = lane
            env.lane.seeded = lane.episode >= 0
        for task, seen in zip(tasks, models, strict=True):
            task.seen_models = seen

    def close_extras(self, **options: Any) -> None:
        """Cancel what is under way, and close the pools that the environments opened."""
        self._lanes.cancel()
        for env in self.envs:
            env.close()

    def _fingerprint(self) -> str:
        """Return a fingerprint of the tasks, and of which environment has which."""
        tasks = self._tasks()
        places = {id(task): at for at, task in enumerate(tasks)}
        return fingerprint(tasks=[task.fingerprint() for task in tasks], of=[places[id(env.task)] for env in self.envs])

    def _tasks(self) -> list[QueryTask]:
        """The tasks of all environments, each once."""
        return list({id(env.task): env.task for env in self.envs}.values())

    def _all(self, actions: Any, ids: Sequence[int]) -> QueryBatch:
        """Send, wait for all, and put them into the order of `ids`."""
        self._check_idle()
        self.send(actions, list(ids))
        outcomes = self._take_all(len(ids))
        return gathered([(number, outcomes[number]) for number in ids], self.envs[0].task.dim)

    def _reset(self, ids: Sequence[int], seed: Seeds) -> dict[int, Outcome]:
        self._check_idle()
        for number, one in seeds_of(seed, self.num_envs).items():
            env = self.envs[number]
            if number in ids:
                if one is None and not env.lane.seeded:
                    one = int(self.np_random.integers(LARGEST_SEED))
                env.seed_lane(one)
        self._lanes.begin(dict.fromkeys(ids, Lane.reset))
        outcomes = self._take_all(len(ids))
        for number in ids:
            if (failure := outcomes[number].failure) is not None:
                raise failure
        return outcomes

    def _take_all(self, count: int) -> dict[int, Outcome]:
        """Wait for all that was begun. If that is interrupted, what is left is cancelled."""
        try:
            return dict(self._lanes.take(count))
        except BaseException:  # Ctrl-C too
            self._lanes.cancel()
            raise

    def _work(self, number: int, action: int) -> Work:
        state = self.envs[number].lane.state
        self._check_begun([number])
        if state.ended:
            if self.autoreset_mode == AutoresetMode.DISABLED:
                raise gymnasium.error.ResetNeeded(
                    f"the episode of environment {number} has ended; reset it with options={{'reset_mask': ...}}"
                )
            if self.autoreset_mode == AutoresetMode.SAME_STEP:  # the reset of its last step failed
                return Lane.late_reset
            return Lane.reset
        then_reset = self.autoreset_mode == AutoresetMode.SAME_STEP
        return lambda lane: lane.step(action, then_reset=then_reset)

    def _ids(self, ids: Sequence[int] | NDArray[np.integer] | None) -> list[int]:
        if ids is None:
            return list(range(self.num_envs))
        for number in ids:
            if isinstance(number, bool | np.bool_) or not isinstance(number, int | np.integer):
                raise OptionError(f"ids must be integers, got {number!r}")
        listed = [int(number) for number in ids]
        for number in listed:
            if not 0 <= number < self.num_envs:
                raise OptionError(f"there is no environment {number}; they are numbered from 0 to {self.num_envs - 1}")
        if len(set(listed)) < len(listed):
            raise OptionError(f"ids must differ, got {listed}")
        return listed

    def _check_idle(self) -> None:
        if busy := sorted(self._lanes.busy):
            raise OptionError(f"environment {busy[0]} is still at work; receive all steps that were sent first")

    def _check_begun(self, ids: Sequence[int]) -> None:
        for number in ids:
            state = self.envs[number].lane.state
            if state.episode < 0:
                raise gymnasium.error.ResetNeeded(f"environment {number} was never reset; call reset() first")


def _check_alike(envs: Sequence[QueryMutationEnv]) -> None:
    if not envs:
        raise OptionError("there must be at least one environment")
    for env in envs:
        if not isinstance(env, QueryMutationEnv):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"envs must be a number, or a list of QueryMutationEnv, got {env!r:.80}")
    for env in envs[1:]:
        if env.task.pool is not envs[0].task.pool:
            raise OptionError("the environments must ask one pool; give the same pool to each of them")
        if env.observation_space != envs[0].observation_space or env.action_space != envs[0].action_space:
            raise OptionError("the environments must have the same observations and as many mutators")
    if len({id(env) for env in envs}) < len(envs):
        raise OptionError("one environment is given twice")
