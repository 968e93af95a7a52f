"""One episode from its beginning to its end, whatever happens to the connection: `EpisodePlayer`.

An episode ends exactly once, as success, failure, timeout or error. When its connection fails it is resumed on another
one: seeds are deterministic, so what was asked before is asked again and must lead to the same position. An action on
which the server closes the session twice in a row at the same place, although it has answered something in this
episode, counts as invalid, and the episode goes on without it. The next such action counts so only if something was
answered in between.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from brim.core.errors import BrimError
from brim.core.wait.backoff import Backoff
from brim.core.wait.clock import Clock
from brim.envs.episode import Ending, EpisodeStatus
from brim.envs.puzzle.candidates import candidates
from brim.envs.puzzle.config import GymConfig
from brim.envs.puzzle.episode import GymEpisode, GymStep, Lane
from brim.envs.puzzle.games import EpisodeSpec, Game, game
from brim.envs.puzzle.hints import action_of
from brim.envs.puzzle.policies import Policy, Turn
from brim.envs.puzzle.wire.errors import ConnectionFailed, ProtocolError, PuzzleError, ServerClosed, ServerTimeout
from brim.envs.puzzle.wire.session import Outcome, PuzzleSession


@dataclass(slots=True)
class _Progress:
    """The part of an episode that survives a connection."""

    game: Game
    asked: list[str] = field(default_factory=lambda: [])
    """Hints and actions that were answered, in order."""
    steps: list[GymStep] = field(default_factory=lambda: [])
    observation: dict[str, Any] = field(default_factory=lambda: {})
    prompt: str = ""
    hints: int = 0
    """Hints since the last action."""
    attempts: int = 0
    """Connections so far."""
    error: PuzzleError | None = None
    """The error of the last attempt that failed."""
    version: int | None = None
    """The version of the policy when it was last asked."""
    pending: str | None = None
    """An action that was chosen and not answered yet."""
    closed: bool = False
    """True if the server has closed a connection on the pending action."""
    closings: int = 0
    """Actions on which it did so twice."""
    answered: bool = False
    """True if the server has answered a hint or an action since the last of these."""


class _PolicyRaised(Exception):  # noqa: N818
    """Carries what a policy raised past everything that is about servers."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class EpisodePlayer:
    """Plays episodes on one lane, and keeps its connection from one to the next."""

    def __init__(
        self,
        config: GymConfig,
        policy: Policy,
        spec: Callable[[int], EpisodeSpec],
        *,
        backoff: Backoff[PuzzleSession],
        clock: Clock,
        lane: Lane,
        version: Callable[[], int | None],
    ) -> None:
        """
        Args:
            spec: From the number of a piece of work to its episode.
            version: Asked for the version of the policy before every action.
        """
        self._config = config
        self._policy = policy
        self._spec = spec
        self._backoff = backoff
        self._clock = clock
        self._lane = lane
        self._version = version
        self._wants_hints = bool(getattr(policy, "wants_hints", False))
        self._session: PuzzleSession | None = None

    async def work(self, number: int) -> GymEpisode:
        """Play episode `number`; see `play`."""
        self._lane.episode = self._spec(number)
        self._lane.steps = 0
        try:
            episode = await self.play(self._lane.episode)
        finally:
            self._lane.episode = None
        self._lane.episodes += 1
        return episode

    async def close(self) -> None:
        """Close the connection, if there is one."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def play(self, spec: EpisodeSpec) -> GymEpisode:
        """Play an episode to its end.

        Raises:
            ConnectionFailed: No connection was ever made, or the server is lost. Any other failure of the server is
                part of the episode.
            BaseException: What the policy raises.
        """
        began = time.monotonic()
        progress = _Progress(game(spec.game))
        limit = asyncio.timeout(None)
        error: PuzzleError | None = None
        try:
            async with limit:
                with self._clock.running(limit, self._config.episode_timeout):
                    status, reason, error = await self._attempts(spec, progress)
        except TimeoutError:
            await self.close()
            if not limit.expired():
                raise
            status, reason = Ending.OUT_OF_TIME.status, str(Ending.OUT_OF_TIME)
            if not progress.observation:  # the player had no turn, so this is the server's fault
                error = progress.error or ServerTimeout(
                    f"the server did not start {spec.episode_id} in {self._config.episode_timeout} seconds"
                )
                status, reason = EpisodeStatus.ERROR, type(error).__name__
        except _PolicyRaised as raised:
            await self.close()
            raise raised.error from None
        except BaseException:
            await self.close()
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

    async def _attempts(self, spec: EpisodeSpec, progress: _Progress) -> tuple[EpisodeStatus, str, PuzzleError | None]:
        """Play on one connection after the other until the episode has ended, or too many have failed."""
        while True:
            try:
                progress.attempts += 1
                ending = await self._attempt(spec, progress)
                return ending.status, str(ending), None
            except ConnectionFailed:
                raise  # the server is lost, for all lanes
            except PuzzleError as failure:
                progress.error = failure
                await self.close()
            if progress.attempts > self._config.max_retries + 2 * progress.closings:
                return EpisodeStatus.ERROR, type(progress.error).__name__, progress.error
            self._lane.retries += 1
            await self._backoff.pause(progress.attempts, spec.number)

    async def _attempt(self, spec: EpisodeSpec, progress: _Progress) -> Ending:
        session = await self._start(spec, progress)
        while len(progress.steps) < self._config.max_steps:
            if progress.pending is None:
                progress.pending = await self._choose(session, spec, progress)
            if progress.pending is None:
                return Ending.GAVE_UP
            outcome = await self._act(session, progress, progress.pending)
            if outcome.terminated:
                return Ending.SOLVED if outcome.success else Ending.LOST
        return Ending.OUT_OF_STEPS

    async def _start(self, spec: EpisodeSpec, progress: _Progress) -> PuzzleSession:
        """Begin the episode, or lead another session to the position where the last one failed."""
        if self._session is None:
            self._session = await self._backoff.connect()
            self._lane.transport = self._session.transport
        seen = await self._session.start(spec, progress.asked)
        if progress.observation and any(
            seen.get(key) != progress.observation.get(key) for key in ("grid", "grid_display")
        ):
            raise ProtocolError(
                f"{spec.episode_id} was resumed, and {len(progress.asked)} requests led to another position"
            )
        progress.observation = seen
        progress.prompt = progress.game.prompt(seen)
        return self._session

    async def _choose(self, session: PuzzleSession, spec: EpisodeSpec, progress: _Progress) -> str | None:
        """Ask the policy for an action; None if it gives up."""
        turn = Turn(
            episode=spec,
            step=len(progress.steps),
            prompt=progress.prompt,
            observation=progress.observation,
            hint=await self._hint(session, spec, progress) if self._wants_hints else None,
            actions=candidates(spec.game, progress.observation),
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

    async def _hint(self, session: PuzzleSession, spec: EpisodeSpec, progress: _Progress) -> str | None:
        """The action that the server advises, or None if it advises none."""
        words = await session.hint()
        hint = None if words is None else action_of(words, progress.observation)
        if words is not None and (hint is None or progress.game.check(hint)):
            raise ProtocolError(f"a hint in {spec.episode_id} makes no sense: {words[:80]!r}")
        progress.asked.append("hint")
        progress.hints += 1
        self._answered(progress)
        return hint

    async def _act(self, session: PuzzleSession, progress: _Progress, action: str) -> Outcome:
        try:
            outcome = await session.act(action)
        except ServerClosed:
            if progress.closed and progress.answered:
                # The second time at the same place: the action is to blame, and the next attempt continues without it.
                progress.closings += 1
                progress.answered = False
                self._record(
                    progress,
                    action,
                    Outcome(
                        valid=False,
                        observation=progress.observation,
                        terminated=False,
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
        self._record(progress, action, outcome)
        return outcome

    def _answered(self, progress: _Progress) -> None:
        progress.answered = True
        self._backoff.answered()

    def _record(self, progress: _Progress, action: str, outcome: Outcome) -> None:
        """Add a step with its reward, and move on to the position after it."""
        rewards = self._config.rewards
        reward = rewards.step + progress.hints * rewards.hint + (0.0 if outcome.valid else rewards.invalid)
        if outcome.terminated:
            reward += rewards.success if outcome.success else rewards.failure
        progress.steps.append(
            GymStep(
                step_index=len(progress.steps),
                prompt=progress.prompt,
                action=action,
                reward=reward,
                valid=outcome.valid,
                done=outcome.terminated,
                hints=progress.hints,
                code=outcome.code,
                message=outcome.message,
                policy_version=progress.version,
            )
        )
        progress.pending = None
        progress.closed = False
        progress.hints = 0
        self._lane.steps = len(progress.steps)
        if outcome.valid:
            progress.observation = outcome.observation
            progress.prompt = progress.game.prompt(outcome.observation)
