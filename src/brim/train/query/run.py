"""Train a policy that chooses how to rewrite questions, with PPO: `train_query_mutator`.

    run.json         the options, without secrets
    log.jsonl        curves; also in tensorboard/
    updates.jsonl    a report on every update
    calls.cache      answers of the models, so that a run that was killed does not ask again
    checkpoint-*     policy, optimizer, environments
    evaluation.json  questions before and after rewriting
    report.html      all of it as a page

A run that was killed in the middle of a rollout begins that rollout again. What is random is keyed by environment,
episode and step, and answers come from the cache or from a deterministic server, so the weights are those of a run that
was never killed.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from brim.core.atomic import atomic_file
from brim.core.document import Document
from brim.core.errors import BrimError, OptionError
from brim.core.fill import Fill
from brim.core.progress import Say, silent
from brim.core.rng import new_seed
from brim.envs.query.attempt import Question, Reward
from brim.envs.query.batched import BatchedQueryMutationEnv
from brim.envs.query.lane import Outcome
from brim.envs.query.questions import load_questions
from brim.envs.query.rewards import open_reward
from brim.envs.query.rollout import Rollout
from brim.envs.query.scripted import ScriptedModel, scripted_questions
from brim.llm.engine.stats import PoolStats
from brim.llm.pool import LLMPool
from brim.llm.testing.behaviour import LogNormal
from brim.train.callbacks import Callback
from brim.train.log import History
from brim.train.output import RUN
from brim.train.ppo.experience import Experience
from brim.train.ppo.policy import RolloutPolicy
from brim.train.ppo.run import PpoRun
from brim.train.query.config import QueryMutatorConfig
from brim.train.query.evaluate import evaluate
from brim.train.query.page import render_training_page
from brim.train.query.report import Evaluation, UpdateReport
from brim.train.query.summary import update_report
from brim.train.report import StepReport
from brim.train.threads import torch_threads

UPDATES, CACHE, EVALUATION, REPORT = "updates.jsonl", "calls.cache", "evaluation.json", "report.html"
DOCUMENT = Document(format="brim.query-evaluation/1", what="an evaluation of a query-mutator run")
SCRIPTED_LATENCY = LogNormal(0.006, 0.6)
"""Latency of the scripted model: about 7 ms on average, with a tail, so that it matters how it is asked."""


@dataclass(frozen=True)
class QueryHooks:
    """Functions that are called during the run."""

    on_message: Say = silent
    on_begin: Callable[[Callable[[], PoolStats]], None] | None = None
    """Called before the first rollout, with a function that returns the figures of the servers."""
    on_step: Callable[[Outcome], None] | None = None
    """Called with every step of an environment."""
    on_update: Callable[[UpdateReport], None] | None = None


@dataclass(frozen=True)
class QueryMutatorResult:
    """The outcome of a run."""

    updates: tuple[UpdateReport, ...]
    """Reports on all updates, those before a resume included."""
    taken: int
    """Updates of these that were made now."""
    evaluation: Evaluation | None
    """None if the run was stopped, or if `eval_questions` is 0."""
    page: Path
    seconds: float
    stopped: bool
    """Whether a signal ended the run before its last update."""


def train_query_mutator(
    config: QueryMutatorConfig,
    *,
    resume: Path | None = None,
    pool: LLMPool | None = None,
    questions: Sequence[Question] | None = None,
    reward: Reward | None = None,
    hooks: QueryHooks | None = None,
    callbacks: Sequence[Callback] = (),
) -> QueryMutatorResult:
    """Train, compare questions before and after rewriting, and write a page about the run.

    Args:
        resume: A checkpoint to continue from (`find_checkpoint`).
        pool: A pool to ask in place of the servers of the options. It stays open.
        questions: Questions in place of those of the options.
        reward: A function in place of the reward of the options.

    Raises:
        OptionError: The options or the questions do not fit.
        MismatchError: The checkpoint belongs to other questions, mutators, models or vectors.
        TooManyInvalid: Too many steps were invalid. The updates so far are in a checkpoint.
    """
    hooks = hooks or QueryHooks()
    with ExitStack() as opened:
        run = QueryRun(config, opened, resume, pool, questions, reward, hooks, callbacks)
        return run.train()


class QueryRun(PpoRun[QueryMutatorConfig]):
    """One run."""

    format = "brim.query-mutator/1"

    def __init__(
        self,
        config: QueryMutatorConfig,
        opened: ExitStack,
        resume: Path | None,
        pool: LLMPool | None,
        questions: Sequence[Question] | None,
        reward: Reward | None,
        hooks: QueryHooks,
        callbacks: Sequence[Callback],
    ) -> None:
        super().__init__(config, callbacks)
        self._hooks = hooks
        self._scripted = pool is None and not config.servers
        self._rollout: Rollout | None = None
        self._fill: Fill | None = None
        self._began = time.monotonic()
        opened.callback(self.close)
        if resume is None:
            self._check_output()
        with self.claimed(config.to_dict(), new=resume is None):
            asked = self._questions(questions)
            self._compared = self._held_out(questions)
            self.pool = pool or opened.enter_context(self._open_pool())
            self.envs = BatchedQueryMutationEnv(
                config.num_processes,
                asked,
                pool=self.pool,
                config=config.environment,
                reward=reward or self._reward(),
                batching=config.use_batching,
            )
            opened.callback(self.envs.close)
            task = self.envs.envs[0].task
            self._eval_task = task if self._compared is None else task.with_questions(self._compared)
            self.make_policy(
                observation_size=task.dim,
                num_actions=len(task.mutations),
                num_envs=config.num_processes,
                updates=config.updates,
            )
            if resume is None:
                self.envs.reset(seed=self._seeds())
            else:
                self.restore(resume)
            self.history = History(self.output / UPDATES, self.update, read=UpdateReport.from_dict)
        self._began_at = self.update

    def train(self) -> QueryMutatorResult:
        """Make the updates that are left, evaluate, and write the page."""
        say = self._hooks.on_message
        if self._hooks.on_begin is not None:
            self._hooks.on_begin(self.pool.stats)
        try:
            self.take_steps(say)
        except BrimError as error:
            if not self.update:
                raise
            self._write_page(None)
            raise type(error)(f"{error}; {self.update} of {self.updates} updates are kept in {self.output}") from None
        stopped = self.is_stopping and self.update < self.updates
        evaluation = None if stopped else self._evaluated(say)
        return QueryMutatorResult(
            updates=tuple(self.history.reports),
            taken=self.update - self._began_at,
            evaluation=evaluation,
            page=self._write_page(evaluation),
            seconds=time.monotonic() - self._began,
            stopped=stopped,
        )

    def collect(self, policy: RolloutPolicy) -> Experience | None:
        before = self.pool.stats().fill
        self._started = time.monotonic()
        rollout = self.envs.rollout(
            policy.act,
            self.config.ppo.num_steps,
            max_invalid=self.config.max_invalid,
            stop=lambda: self.stop_requested,
            watch=self._hooks.on_step,
        )
        if rollout is None:
            return None
        after = self.pool.stats().fill
        self._fill = Fill(after.used - before.used, after.slots - before.slots)
        self._rollout = rollout
        return Experience(
            observations=rollout.observations,
            actions=rollout.actions,
            log_probs=rollout.extras["log_probs"],
            values=rollout.extras["values"],
            next_observations=rollout.next_observations,
            rewards=rollout.rewards,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            valid=rollout.valid,
        )

    def updated(self, metrics: dict[str, float]) -> None:
        assert self._rollout is not None, "an update follows a rollout"
        report = update_report(
            self._rollout,
            metrics,
            update=self.update,
            updates=self.updates,
            fill=self._fill,
            seconds=time.monotonic() - self._started,
        )
        self.history.add(report)
        if self._hooks.on_update is not None:
            self._hooks.on_update(report)

    def logged(self, report: StepReport) -> Mapping[str, float]:
        values = dict(super().logged(report))
        if self.can_pause and self.history.reports:
            values |= self.history.reports[-1].to_log()
        return values

    def further_state(self) -> dict[str, Any]:
        return self.envs.state_dict()

    def restore_more(self, state: dict[str, Any], directory: Path) -> None:
        self.envs.load_state_dict(state)

    def _check_output(self) -> None:
        """Refuse an output whose files are not those of a run, because they would be overwritten.

        Raises:
            OptionError: There is such a file.
        """
        if (self.output / RUN).exists():
            return
        for name in (UPDATES, EVALUATION, REPORT):  # opening a cache tells whether it is one
            path = self.output / name
            # An empty one is what a run leaves that failed before its first update; nothing is lost with it.
            if path.exists() and (path.is_dir() or path.stat().st_size):
                raise OptionError(
                    f"{path} is not a file of a query-mutator run, and would be overwritten; choose another --output"
                )

    def _seeds(self) -> list[int]:
        """Seeds of the environments: those of two runs with different seeds have nothing in common."""
        seed = self.config.seed
        return [
            new_seed(seed=seed, purpose="query/environment", epoch=number)
            for number in range(self.config.num_processes)
        ]

    def _questions(self, given: Sequence[Question] | None) -> Sequence[Question]:
        config = self.config
        if given is not None:
            return given
        return self._loaded(config.data) if config.data else scripted_questions()

    def _held_out(self, given: Sequence[Question] | None) -> Sequence[Question] | None:
        """Questions for the comparison that are not trained on; None if there are none."""
        config = self.config
        if config.eval_data:
            return self._loaded(config.eval_data)
        return None if given is not None or config.data else scripted_questions(seed=1)

    def _loaded(self, path: str) -> Sequence[Question]:
        config = self.config
        return load_questions(
            path,
            question_field=config.question_field,
            reference_field=config.reference_field,
            kind_field=config.kind_field,
            id_field=config.id_field,
        )

    def _reward(self) -> Reward:
        options = {} if self.config.judge_model is None else {"model": self.config.judge_model}
        return open_reward(self.config.reward, **options)

    def _open_pool(self) -> LLMPool:
        config = self.config
        servers = config.server_list()
        if not servers:
            self._hooks.on_message(
                "no server is named, so a scripted model in this process answers; it is no language model"
            )
        return LLMPool(
            servers or [ScriptedModel(latency=SCRIPTED_LATENCY)],
            model=config.environment.model or (None if servers else "scripted"),
            config=config.pool_config(),
            cache=self.output / CACHE if config.cache and servers else None,
        )

    def _evaluated(self, say: Say) -> Evaluation | None:
        """Compare questions before and after rewriting."""
        if not self.config.eval_questions:
            return None
        say(f"asking up to {self.config.eval_questions} questions as they are, and rewritten")
        with torch_threads(1), self._stop.on_signals(say):
            found = evaluate(
                self._eval_task,
                self.policy,
                most=self.config.eval_questions,
                seed=self.config.seed,
                held_out=self._compared is not None,
                stop=lambda: self.stop_requested,
            )
        if found is not None:
            DOCUMENT.write(self.output / EVALUATION, {"update": self.update, **asdict(found)})
        return found

    def _write_page(self, evaluation: Evaluation | None) -> Path:
        page = render_training_page(
            title=f"Query mutator: {self.output.name}",
            updates=self.history.reports,
            evaluation=evaluation,
            options=self.config.to_dict(),
            best=1.0 if self._scripted else None,
        )
        with atomic_file(self.output / REPORT) as file:
            file.write(page.encode())
        return self.output / REPORT
