"""One episode from its beginning to its end, whatever happens to the connection: `EpisodePlayer`.

An episode ends exactly once, as success, failure, timeout or error. When its connection fails it is taken up again on another one: seeds
are deterministic, so what was asked before is asked again and must lead to the same position. An action that closes the session twice in a
row at the same place, on a server that has answered something in this episode, is what closed it; it then counts as invalid and the episode
goes on without it. The next such action counts so only if something was answered in between.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from brim.core.errors import BrimError
from brim.envs.puzzle.candidates import candidates
from brim.envs.puzzle.games import Game, game
from brim.envs.puzzle.hints import action_of
from brim.envs.puzzle.policy import EpisodeSpec, Policy, Turn
from brim.envs.puzzle.wire.errors import ConnectionFailed, ProtocolError, PuzzleError, ServerClosed, ServerTimeout
from brim.envs.puzzle.wire.session import Outcome, PuzzleSession
from brim.stream.gym_config import GymConfig
from brim.stream.lanes import Backoff, Clock, Lane
from brim.stream.sample import DIFFICULTIES, EpisodeStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class GymStep:
    """An action and what came of it."""

    step_index: int
    prompt: str
    """What was seen before it."""
    action: str
    reward: float
    valid: bool
    done: bool
    hints: int
    """Asked for before it."""
    code: str
    """The server's word for what came of it, such as PLACED; NOT_A_MOVE if it was never sent, CLOSED if it ended the session."""
    message: str
    policy_version: int | None = None
    """Of the policy when it chose."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GymEpisode:
    """An episode that is over."""

    spec: EpisodeSpec
    steps: tuple[GymStep, ...]
    status: EpisodeStatus
    reason: str
    """In a word or two: solved, lost, gave up, out of steps, out of time, or the type of the error."""
    error: PuzzleError | None = None
    """Why it could not be played to its end."""
    seconds: float = 0.0
    attempts: int = 1
    """Connections it was played on."""
    last_hints: int = 0
    """Hints after the last action, such as those that made the player give up. They belong to no step and cost nothing."""

    @property
    def episode_id(self) -> str:
        return self.spec.episode_id

    @property
    def success(self) -> bool:
        return self.status is EpisodeStatus.SUCCESS

    @property
    def difficulty(self) -> float:
        """From 0 to 1."""
        return DIFFICULTIES[self.spec.difficulty]

    @property
    def total_reward(self) -> float:
        return sum(step.reward for step in self.steps)

    @property
    def hints(self) -> int:
        return sum(step.hints for step in self.steps) + self.last_hints

    @property
    def invalid(self) -> int:
        return sum(not step.valid for step in self.steps)


@dataclass(slots=True)
class _Progress:
    """What survives a connection."""

    game: Game
    asked: list[str] = field(default_factory=lambda: [])
    """Hints and actions that were answered, in order."""
    steps: list[GymStep] = field(default_factory=lambda: [])
    observation: dict[str, Any] = field(default_factory=lambda: {})
    prompt: str = ""
    hints: int = 0
    """Since the last action."""
    attempts: int = 0
    error: PuzzleError | None = None
    """Of the last attempt that failed."""
    version: int | None = None
    pending: str | None = None
    """An action that was chosen and not answered yet."""
    closed: bool = False
    """Whether the pending action has met the end of a connection."""
    closings: int = 0
    """Actions that did so twice."""
    answered: bool = False
    """Whether the server has answered a hint or an action since the last of these."""


class _PolicyRaised(Exception):  # noqa: N818
    """Carries what a policy raised past everything that is about servers."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class EpisodePlayer:
    """Plays episodes on one lane, and keeps its connection from one to the next."""

    def __init__(
        self, config: GymConfig, policy: Policy, backoff: Backoff, clock: Clock, lane: Lane, version: Callable[[], int | None]
    ) -> None:
        self._config, self._policy, self._backoff, self._clock, self._lane, self._version = config, policy, backoff, clock, lane, version
        self._wants_hints = bool(getattr(policy, "wants_hints", False))
        self._session: PuzzleSession | None = None

    async def play(self, spec: EpisodeSpec) -> GymEpisode:
        """
        Raises:
            ConnectionFailed: No connection was ever made, or the server is gone. Any other failure of the server is part of the episode.
            BaseException: What the policy raises.
        """
        began, progress, limit = time.monotonic(), _Progress(game(spec.game)), asyncio.timeout(None)
        error: PuzzleError | None = None
        try:
            async with limit:
                with self._clock.running(limit, self._config.episode_timeout):
                    status, reason, error = await self._tries(spec, progress)
        except TimeoutError:
            await self.drop()
            if not limit.expired():
                raise
            status, reason = EpisodeStatus.TIMEOUT, "out of time"
            if not progress.observation:  # the player had no turn
                error = progress.error or ServerTimeout(
                    f"the server did not start {spec.episode_id} in {self._config.episode_timeout} seconds"
                )
                status, reason = EpisodeStatus.ERROR, type(error).__name__
        except _PolicyRaised as raised:
            await self.drop()
            raise raised.error from None
        except BaseException:
            await self.drop()
            raise
        if status is not EpisodeStatus.ERROR:
            self._backoff.answered()
        elif error is not None and not (progress.game.slow and isinstance(error, ServerTimeout)):
            self._backoff.failed(error)
        return GymEpisode(
            spec=spec,
            steps=tuple(progress.steps),
            status=status,
            reason=reason,
            error=error,
            seconds=time.monotonic() - began,
            attempts=progress.attempts,
            last_hints=progress.hints,
        )

    async def _tries(self, spec: EpisodeSpec, progress: _Progress) -> tuple[EpisodeStatus, str, PuzzleError | None]:
        while True:
            try:
                progress.attempts += 1
                return *await self._attempt(spec, progress), None
            except ConnectionFailed:
                raise  # the server is gone
            except PuzzleError as failure:
                progress.error = failure
                await self.drop()
            if progress.attempts > self._config.max_retries + 2 * progress.closings:
                return EpisodeStatus.ERROR, type(progress.error).__name__, progress.error
            self._lane.retries += 1
            await self._backoff.pause(progress.attempts, spec.number)

    async def drop(self) -> None:
        """Throw the connection away."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _attempt(self, spec: EpisodeSpec, progress: _Progress) -> tuple[EpisodeStatus, str]:
        session = await self._start(spec, progress)
        while len(progress.steps) < self._config.max_steps:
            if progress.pending is None:
                progress.pending = await self._choose(session, spec, progress)
            if progress.pending is None:
                return EpisodeStatus.FAILURE, "gave up"
            outcome = await self._act(session, progress, progress.pending)
            if outcome.done:
                return (EpisodeStatus.SUCCESS, "solved") if outcome.success else (EpisodeStatus.FAILURE, "lost")
        return EpisodeStatus.FAILURE, "out of steps"

    async def _start(self, spec: EpisodeSpec, progress: _Progress) -> PuzzleSession:
        if self._session is None:
            self._session = await self._backoff.open()
            self._lane.transport = self._session.transport
        seen = await self._session.start(spec, progress.asked)
        if progress.observation and any(seen.get(key) != progress.observation.get(key) for key in ("grid", "grid_display")):
            raise ProtocolError(f"{spec.episode_id} was taken up again, and {len(progress.asked)} requests led to another position")
        progress.observation, progress.prompt = seen, progress.game.prompt(seen)
        return self._session

    async def _choose(self, session: PuzzleSession, spec: EpisodeSpec, progress: _Progress) -> str | None:
        hint = None
        if self._wants_hints:
            words = await session.hint()
            hint = None if words is None else action_of(words, progress.observation)
            if words is not None and (hint is None or progress.game.check(hint)):
                raise ProtocolError(f"a hint in {spec.episode_id} makes no sense: {words[:80]!r}")
            progress.asked.append("hint")
            progress.hints += 1
            self._answered(progress)
        turn = Turn(
            episode=spec,
            step=len(progress.steps),
            prompt=progress.prompt,
            observation=progress.observation,
            actions=candidates(spec.game, progress.observation),
            hint=hint,
            history=tuple(step.action for step in progress.steps),
            refused=bool(progress.steps) and not progress.steps[-1].valid,
        )
        try:
            progress.version = self._version()
            action: Any = await self._policy.act(turn)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raise _PolicyRaised(error) from None
        if action is not None and not isinstance(action, str):
            who = getattr(self._policy, "name", type(self._policy).__name__)
            what = f"an action is a string, or None to give up, not {action!r:.60}"
            raise _PolicyRaised(BrimError(f"the policy {who} in step {turn.step} of {spec.episode_id}: {what}"))
        return None if action is None else action.strip(" ")

    async def _act(self, session: PuzzleSession, progress: _Progress, action: str) -> Outcome:
        try:
            outcome = await session.act(action)
        except ServerClosed:
            if progress.closed and progress.answered:
                progress.closings += 1
                progress.answered = False
                self._took(
                    progress,
                    action,
                    Outcome(
                        valid=False,
                        observation=progress.observation,
                        done=False,
                        success=False,
                        code="CLOSED",
                        message="the server closed the session on it, twice",
                    ),
                )
            else:
                progress.closed = True
            raise
        if outcome.code != "NOT_A_MOVE":
            progress.asked.append(action)
            self._answered(progress)
        self._took(progress, action, outcome)
        return outcome

    def _answered(self, progress: _Progress) -> None:
        progress.answered = True
        self._backoff.answered()

    def _took(self, progress: _Progress, action: str, outcome: Outcome) -> None:
        rewards = self._config.rewards
        reward = rewards.step + progress.hints * rewards.hint + (0.0 if outcome.valid else rewards.invalid)
        if outcome.done:
            reward += rewards.success if outcome.success else rewards.failure
        progress.steps.append(
            GymStep(
                step_index=len(progress.steps),
                prompt=progress.prompt,
                action=action,
                reward=reward,
                valid=outcome.valid,
                done=outcome.done,
                hints=progress.hints,
                code=outcome.code,
                message=outcome.message,
                policy_version=progress.version,
            )
        )
        progress.pending, progress.closed, progress.hints = None, False, 0
        self._lane.steps = len(progress.steps)
        if outcome.valid:
            progress.observation, progress.prompt = outcome.observation, progress.game.prompt(outcome.observation)
