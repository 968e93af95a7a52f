"""An episode on a puzzle server, as it was played: `GymEpisode` and its steps. It knows nothing of tokens or
samples."""

from dataclasses import dataclass

from brim.envs.episode import DIFFICULTIES, EpisodeStatus
from brim.envs.puzzle.games import EpisodeSpec
from brim.envs.puzzle.wire.errors import PuzzleError


@dataclass(frozen=True, kw_only=True, slots=True)
class GymStep:
    """An action and its outcome."""

    step_index: int
    prompt: str
    """The position before the action, in words."""
    action: str
    reward: float
    valid: bool
    """True if the server accepted the action."""
    done: bool
    """True if the action ended the puzzle: Gymnasium's `terminated`."""
    hints: int
    """Hints that were asked for before the action."""
    code: str
    """The server's word for the outcome, such as PLACED; NOT_A_MOVE if the action was never sent, CLOSED if it ended
    the session."""
    message: str
    policy_version: int | None = None
    """The version of the policy when it chose the action."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GymEpisode:
    """An episode that has ended."""

    spec: EpisodeSpec
    steps: tuple[GymStep, ...]
    status: EpisodeStatus
    reason: str
    """A word of `Ending` (solved, lost, gave up, out of steps, out of time), or the type of the error."""
    error: PuzzleError | None = None
    """The error that kept it from being played to its end."""
    seconds: float = 0.0
    attempts: int = 1
    """Connections it was played on."""
    last_hints: int = 0
    """Hints after the last action, such as those that made the player give up. They belong to no step and cost
    nothing."""

    @property
    def episode_id(self) -> str:
        return self.spec.episode_id

    @property
    def success(self) -> bool:
        return self.status is EpisodeStatus.SUCCESS

    @property
    def terminated(self) -> bool:
        """True if the puzzle itself came to an end: it was solved or lost."""
        return bool(self.steps) and self.steps[-1].done

    @property
    def truncated(self) -> bool:
        """True if the episode was cut off: out of steps or time, given up, or ended by an error."""
        return not self.terminated

    @property
    def difficulty(self) -> float:
        """The difficulty as a number from 0 to 1."""
        return DIFFICULTIES[self.spec.difficulty]

    @property
    def total_reward(self) -> float:
        return sum(step.reward for step in self.steps)

    @property
    def hints(self) -> int:
        """Hints that were asked for in the whole episode."""
        return sum(step.hints for step in self.steps) + self.last_hints

    @property
    def invalid(self) -> int:
        """Actions that were refused."""
        return sum(not step.valid for step in self.steps)


@dataclass(slots=True)
class Lane:
    """The present work of one lane; can be read while it plays."""

    number: int
    episode: EpisodeSpec | None = None
    """The episode it is playing."""
    steps: int = 0
    """Actions taken in that episode."""
    episodes: int = 0
    """Episodes that it has finished."""
    retries: int = 0
    """Reconnections, in all its episodes."""
    transport: str = ""

    @property
    def busy(self) -> bool:
        return self.episode is not None
