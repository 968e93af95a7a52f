"""Learning histories: what an agent lived through while it learned, from its first search to the shortest way.

A learner that knows nothing is run on many goals, many times each, and of its episodes every `keep_every`th is kept, so
that few of them span all of the learning. The file is HDF5 and whole or absent; everything in it is a function of the
config. Goals are held out before anything is recorded, spread over the distances, and no history of theirs is ever in
the file.

The one thing to get wrong: an HDF5 handle does not survive a fork, nor a pickle. `Histories` keeps the path, and opens
the file in whatever process it is read.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import order_by
from brim.core.atomic import atomic_file
from brim.core.errors import DamagedError, DataError, OptionError
from brim.core.extras import need
from brim.core.fingerprint import fingerprint
from brim.core.options import check_counts
from brim.core.rng import raw_bits
from brim.envs.darkroom.ppo import Ppo, PpoLearner
from brim.envs.darkroom.q_learning import QLearner, QLearning
from brim.envs.darkroom.room import Darkroom, Episode

FAMILY = "brim.histories/"
FORMAT = f"{FAMILY}1"
COLUMNS = ("states", "actions", "rewards")
SIGNATURE = b"\x89HDF\r\n\x1a\n"
HEAD = 4096
"""Bytes at the beginning of a file, among which its format is."""


@dataclass(frozen=True, kw_only=True)
class HistoryConfig:
    """Options of a file of histories."""

    room: Darkroom = field(default_factory=Darkroom)
    algorithm: QLearning | Ppo = field(default_factory=QLearning)
    episodes: int = 8
    """Episodes in a history."""
    keep_every: int = 5
    """Stride of the learner's episodes: the first and every `keep_every`-th after it are kept."""
    repeats: int = 32
    """Histories for each goal."""
    held_out: float = 0.2
    """Share of the goals that are held out."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(episodes=self.episodes, keep_every=self.keep_every, repeats=self.repeats)
        if not 0 < self.held_out < 1:
            raise OptionError(f"held_out must be between 0 and 1, got {self.held_out}")

    @property
    def steps(self) -> int:
        """Steps in a history."""
        return self.episodes * self.room.horizon

    @property
    def lived(self) -> int:
        """Episodes that the learner goes through for a history."""
        return (self.episodes - 1) * self.keep_every + 1

    def to_dict(self) -> dict[str, Any]:
        """Return the options as JSON-like values."""
        return {**asdict(self), "learner": type(self.algorithm).__name__}

    @property
    def fingerprint(self) -> str:
        return fingerprint(format=FORMAT, config=self.to_dict())


def split_goals(config: HistoryConfig) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The goals to learn from and those that are held out. [goals, 2]

    Goals are put in the order of their distance from the start, keyed at random where it is equal, and are held out at
    even intervals, so both have near and far ones in the same proportion. At least one is held out, and at least one is
    not.
    """
    goals = config.room.goals
    bits = raw_bits(len(goals), seed=config.seed, purpose="held-out goals") >> np.uint64(32)
    goals = goals[order_by(config.room.distance(goals), bits)]
    count = min(max(round(config.held_out * len(goals)), 1), len(goals) - 1)
    held_out = np.zeros(len(goals), np.bool_)
    held_out[(np.arange(count) * 2 + 1) * len(goals) // (2 * count)] = True
    return goals[~held_out], goals[held_out]


class Learner(Protocol):
    """Lanes that learn side by side."""

    def episode(self, number: int) -> Episode:
        """Play the episode of this number, and learn from it. Episodes are played in their order, each once."""
        ...


def make_learner(config: HistoryConfig, goals: NDArray[np.integer], *, seed: int) -> Learner:
    """Return an untrained learner with one lane for each goal."""
    if isinstance(config.algorithm, Ppo):
        return PpoLearner(config.algorithm, config.room, goals, seed=seed)
    return QLearner(config.algorithm, config.room, goals, seed=seed)


def learning_curve(config: HistoryConfig, goals: NDArray[np.integer]) -> NDArray[np.float32]:
    """Return of every episode of the learner, on some goals, none left out. [goals, episodes]"""
    learner = make_learner(config, goals, seed=config.seed)
    return np.stack([learner.episode(number).rewards.sum(axis=1) for number in range(config.lived)], axis=1)


def write_histories(
    path: str | os.PathLike[str], config: HistoryConfig, progress: Callable[[int, int], None] | None = None
) -> None:
    """Learn, and write the histories: those of the first goal first. `progress` is told of episodes.

    Raises:
        OptionError: The file cannot be written.
    """
    h5py = need("h5py", extra="hdf5", user="brim.envs.darkroom.histories")
    train, held_out = split_goals(config)
    lanes = np.repeat(train, config.repeats, axis=0)
    learner = make_learner(config, lanes, seed=config.seed)
    kept: list[Episode] = []
    for number in range(config.lived):
        episode = learner.episode(number)
        if number % config.keep_every == 0:
            kept.append(episode)
        if progress is not None:
            progress(number + 1, config.lived)
    with atomic_file(path) as file, h5py.File(file, "w") as store:
        store.attrs["format"] = FORMAT  # before all else: a file that is cut off still says what it was
        for name in COLUMNS:
            column = np.concatenate([getattr(episode, name) for episode in kept], axis=1)
            store.create_dataset(name, data=column, chunks=(min(64, len(column)), *column.shape[1:]), fletcher32=True)
        store.attrs["fingerprint"] = config.fingerprint
        store.attrs["config"] = json.dumps(config.to_dict(), sort_keys=True)
        store.attrs["goals"], store.attrs["held_out"] = lanes.astype(np.int16), held_out.astype(np.int16)


def is_histories(path: str | os.PathLike[str]) -> bool:
    """True if brim wrote a file of histories there, in any version, even if it is damaged now."""
    h5py = need("h5py", extra="hdf5", user="brim.envs.darkroom.histories")
    try:
        with h5py.File(path, "r") as store:
            return str(_attribute(store, "format")).startswith(FAMILY)
    except OSError:  # cut off, or no HDF5
        try:
            with open(path, "rb") as file:
                head = file.read(HEAD)
        except OSError:
            return False
        return head.startswith(SIGNATURE) and FAMILY.encode() in head


class Histories:
    """A file of histories, opened when it is first read, once in every process. Can be pickled and forked."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """
        Raises:
            DataError: There is no such file.
            DamagedError: It is truncated or damaged, or something else.
        """
        self.path = Path(path)
        self._process = -1
        self._file: Any = None
        self._columns: dict[str, Any] = {}
        columns = self._open()
        try:
            self.count, self.steps = columns["actions"].shape
            """Histories, and the steps of each."""
            attributes = self._file.attrs
            self.fingerprint, self.config = str(attributes["fingerprint"]), json.loads(attributes["config"])
            self.goals: NDArray[np.int64] = np.asarray(attributes["goals"], np.int64)
            self.held_out: NDArray[np.int64] = np.asarray(attributes["held_out"], np.int64)
            whole = self._agrees(columns)
        except (
            AttributeError,
            KeyError,
            OSError,
            RuntimeError,
            TypeError,
            ValueError,
        ):  # h5py has one for every way to be damaged
            whole = False
        if not whole:
            self.close()
            raise DamagedError(f"{self.path} is damaged; remove it, and it is made again")

    @property
    def horizon(self) -> int:
        """Steps of an episode."""
        return int(self.config["room"]["horizon"])

    def read(self, histories: Sequence[int] | NDArray[np.integer]) -> Episode:
        """Whole histories, in the order asked for: all of their episodes end to end. A history may be asked for twice.

        Raises:
            DamagedError: What was written is not what is there.
        """
        rows, where = np.unique(np.asarray(histories, np.int64), return_inverse=True)
        columns = self._open()
        try:
            return Episode(*(columns[name][rows][where] for name in COLUMNS))
        except OSError:
            raise DamagedError(f"{self.path} is damaged; remove it, and it is made again") from None

    def _agrees(self, columns: dict[str, Any]) -> bool:
        """True if the columns of the file have the shapes that its options give."""
        kinds = {name: (columns[name].shape, columns[name].dtype.kind) for name in COLUMNS}
        steps = (self.count, self.steps)
        return (
            self.fingerprint == fingerprint(format=FORMAT, config=self.config)
            and self.steps == self.config["episodes"] * self.horizon
            and kinds == {"states": ((*steps, 2), "i"), "actions": (steps, "i"), "rewards": (steps, "f")}
            and self.goals.shape == (self.count, 2)
            and self.held_out.ndim == 2
            and self.held_out.shape[1] == 2
        )

    def close(self) -> None:
        """It is opened again when it is read again."""
        if self._file is not None and self._process == os.getpid():
            self._file.close()
        self._process, self._file, self._columns = -1, None, {}

    def _open(self) -> dict[str, Any]:
        """The columns, which are kept: their caches go with them."""
        if self._process != os.getpid():
            h5py = need("h5py", extra="hdf5", user="brim.envs.darkroom.histories")
            self._file = _opened(h5py, self.path)
            self._columns, self._process = {name: self._file[name] for name in COLUMNS}, os.getpid()
        return self._columns

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": -1, "_file": None, "_columns": {}}


def _opened(h5py: Any, path: Path) -> Any:
    if not path.exists():
        raise DataError(f"there are no histories at {path}")
    try:
        file = h5py.File(path, "r")
    except OSError:
        raise DamagedError(f"{path} is truncated, or no HDF5 file; remove it, and it is made again") from None
    found = str(_attribute(file, "format"))
    missing = [name for name in COLUMNS if name not in file]
    if found == FORMAT and not missing:
        return file
    file.close()
    if found != FORMAT:
        raise DamagedError(f"{path} is of version {found}, this brim reads {FORMAT}")
    raise DamagedError(f"{path} is damaged: it has no {missing[0]}; remove it, and it is made again")


def _attribute(file: Any, name: str) -> Any:
    """None where there is none, or none that can be read."""
    try:
        return file.attrs.get(name)
    except (OSError, RuntimeError, TypeError, ValueError):
        return None
