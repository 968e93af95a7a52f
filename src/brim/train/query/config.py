"""Options of a query-mutator run. Nothing here imports torch."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from brim.core.arrays import ceil_div
from brim.core.errors import MismatchError, OptionError
from brim.core.options import check_counts, from_dict, one_of, resumed
from brim.envs.query.config import QueryConfig
from brim.envs.query.rewards import REWARDS
from brim.llm.config import PROTOCOLS, PoolConfig, Protocol, Server
from brim.train.config import MAY_CHANGE, Schedule
from brim.train.ppo.config import PpoRunConfig

RUNNING = (
    "servers", "protocol", "key_env", "limit", "timeout", "attempts", "patience",
    "use_batching", "max_invalid", "eval_data", "eval_questions",
)  # fmt: skip
"""Options that may change when a run is resumed, besides those of every run: they do not reach the weights."""
REFUSED = ("max_steps", "record_samples")
"""Options of other runs that have no effect here."""


@dataclass(frozen=True, kw_only=True)
class QueryMutatorConfig(PpoRunConfig):
    """Options of training a policy that chooses how to rewrite questions."""

    schedule: Schedule = "constant"
    """Schedule of the learning rate."""
    data: str = ""
    """Questions: JSONL or Parquet. "" is the scripted task, which is built in."""
    eval_data: str = ""
    """Questions for the comparison at the end that are not trained on, in the form of `data`. "" takes those that are
    trained on; of the scripted task, others of its kinds."""
    question_field: str = "question"
    reference_field: str = "reference"
    kind_field: str = "kind"
    id_field: str = "id"
    environment: QueryConfig = field(default_factory=QueryConfig)
    reward: str = "numeric"
    """Name of the reward; `train_query_mutator` can be given a function instead."""
    judge_model: str | None = None
    """The model that the reward `judge` asks. None is the target model."""
    num_processes: int = 16
    """Number of environments. They are coroutines, not processes; twice the slots of the servers is a good number."""
    num_env_steps: int = 10_000
    """Steps of all environments together, rounded up to whole updates."""
    use_batching: bool = True
    """Whether the calls of all environments run at the same time. False asks one call after another."""
    max_invalid: float = 0.2
    """Largest share of invalid steps in a rollout; a run with more stops. 1 never stops."""
    eval_questions: int = 64
    """Upper limit of the questions that are asked before and after rewriting at the end of the run; 0 leaves that
    out."""
    cache: bool = True
    """Whether answers are kept in OUTPUT/calls.cache, so that a run that was killed does not ask again."""
    servers: tuple[str, ...] = field(default=(), repr=False)
    """Addresses of model servers; () is a scripted model in this process. They may hold passwords, so they are not
    shown, and recorded without secrets."""
    protocol: Protocol = "auto"
    key_env: str | None = field(default=None, repr=False)
    """Environment variable that holds the API key. It is not recorded."""
    limit: int | None = None
    """Requests at once to each server. None finds it out."""
    timeout: float = 600.0
    """Seconds for a call, with all of its retries."""
    attempts: int = 8
    """Upper limit of the requests for one call."""
    patience: float = 60.0
    """Seconds to wait for servers that have become unreachable."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in REFUSED:
            if getattr(self, name):
                raise OptionError(f"{name} has no effect in a query-mutator run; leave it out")
        one_of("reward", self.reward, REWARDS)
        one_of("protocol", self.protocol, PROTOCOLS)
        check_counts(num_processes=self.num_processes, num_env_steps=self.num_env_steps, limit=self.limit)
        if self.eval_questions < 0:
            raise OptionError(f"eval_questions must not be negative, got {self.eval_questions}")
        if not 0 <= self.max_invalid <= 1:
            raise OptionError(f"max_invalid must be between 0 and 1, got {self.max_invalid}")
        if self.judge_model is not None and self.reward != "judge":
            raise OptionError(f"judge_model has no effect on the reward {self.reward}; leave it out")
        for name in ("data", "eval_data"):
            if getattr(self, name) and not self.servers:
                raise OptionError(
                    f"{name} needs a server: the scripted model, which is used without one, answers only its own "
                    "questions"
                )
        if self.eval_data and not self.eval_questions:
            raise OptionError("eval_data has no effect with eval_questions 0; leave one of them out")
        self.pool_config()
        self.ppo.check_minibatches(self.num_processes)

    @property
    def base_learning_rate(self) -> float:
        """The learning rate behind the warmup: 1e-3 unless given."""
        return 1e-3 if self.learning_rate is None else self.learning_rate

    @property
    def updates(self) -> int:
        """Updates of the whole run."""
        return ceil_div(self.num_env_steps, self.num_processes * self.ppo.num_steps)

    def pool_config(self) -> PoolConfig:
        """Return the options of the pool of servers."""
        return PoolConfig(timeout=self.timeout, attempts=self.attempts, patience=self.patience)

    def server_list(self) -> list[Server]:
        """Return the servers to ask."""
        return [
            Server(url=url, protocol=self.protocol, key_env=self.key_env, limit=self.limit)
            for url in dict.fromkeys(self.servers)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the options as JSON-like values, without secrets."""
        from brim.llm.wire.address import parse_address

        names = [parse_address(url, environ={}).name for url in self.servers]
        return {**asdict(self), "servers": names, "key_env": None}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        return from_dict(cls, values, what="a query-mutator run")

    def resumed(self, **given: Any) -> Self:
        """Return the options of a resumed run: these, with those of `given` that may change.

        With a constant learning rate, `num_env_steps` may change, too.

        Raises:
            MismatchError: An option was given that would change the run.
        """
        more = given.pop("num_env_steps", self.num_env_steps)
        if more != self.num_env_steps and self.schedule != "constant":
            raise MismatchError(
                f"num_env_steps ({self.num_env_steps} -> {more}) cannot change when a run is resumed whose learning "
                f"rate follows a {self.schedule} schedule; leave it out, or start a new run"
            )
        again = resumed(self, given, may_change=(*MAY_CHANGE, *RUNNING), paths=("data", "eval_data"))
        return replace(again, num_env_steps=more)
