"""Replay buffers on disk: columns that are mapped into memory, or JSON if the name ends in .json.

Both forms are written whole or not at all, hold all there is to know about a buffer, and notice when they are truncated or altered.
Nothing is unpickled.
"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.atomic import atomic_file
from brim.core.columns import Columns, is_columns, write_columns
from brim.core.errors import BrimError, DamagedError, DataError
from brim.data.ids import SampleId
from brim.stream.replay.as_json import state_from_json, state_to_json
from brim.stream.replay.columns import TYPES, Entries, ends, objects
from brim.stream.replay.config import ReplayBufferConfig
from brim.stream.replay.slots import ReplayCounts
from brim.stream.replay.state import ReplayState

FORMAT = "brim.replay/1"
STATE_COLUMNS = ("keys", "priorities", "weights", "replays")
NUMBERS = [name for name, kind in TYPES.items() if kind is not object and name != "start"]


def save_state(state: ReplayState, path: str | os.PathLike[str]) -> None:
    if Path(path).suffix == ".json":
        with atomic_file(path) as file:
            file.write(state_to_json(state))
        return
    entries = state.entries
    columns: dict[str, NDArray[Any]] = {name: getattr(state, name) for name in STATE_COLUMNS}
    columns |= {name: entries.columns[name] for name in NUMBERS}
    columns |= _ids_to_columns(entries.columns["sample_id"].tolist())
    for name in ("dataset_id", "episode_id"):
        columns |= _names_to_columns(name, entries.columns[name].tolist())
    columns |= {"tokens": entries.tokens, "learned": entries.learned}
    if entries.segments is not None:
        columns["segments"] = entries.segments
    meta = {"config": state.config.to_dict(), "counts": asdict(state.counts)}
    meta |= {"high": state.high, "drawn": state.drawn, "evicting": state.evicting}
    write_columns(path, FORMAT, meta, columns)


def load_state(path: str | os.PathLike[str]) -> ReplayState:
    """
    Raises:
        DataError: There is no such file, or it is not a replay buffer.
        DamagedError: It is truncated, altered or of another version.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path} is a directory, not a replay buffer" if path.is_dir() else f"{path} does not exist")
    if is_columns(path, FORMAT):
        return _from_columns(Columns(path, FORMAT))
    data = path.read_bytes()
    if not data.lstrip().startswith(b"{"):
        raise DataError(f"{path} is not a replay buffer")
    return state_from_json(data, str(path))


def _from_columns(columns: Columns) -> ReplayState:
    meta = columns.meta
    try:
        lengths = columns["length"]
        named: dict[str, NDArray[Any]] = {name: columns[name] for name in NUMBERS}
        named |= {"start": ends(lengths) - lengths, "sample_id": objects(_ids_from_columns(columns))}
        named |= {name: _names_from_columns(name, columns) for name in ("dataset_id", "episode_id")}
        entries = Entries(named, columns["tokens"], columns["learned"], columns.get("segments"))
        state = ReplayState(
            config=ReplayBufferConfig.from_dict(meta["config"]),
            counts=ReplayCounts(**meta["counts"]),
            high=meta["high"],
            drawn=meta["drawn"],
            evicting=meta["evicting"],
            entries=entries,
            keys=columns["keys"],
            priorities=columns["priorities"],
            weights=columns["weights"],
            replays=columns["replays"],
        )
        state.check()
    except (KeyError, TypeError, ValueError) as error:  # checksums are right, so another program wrote it
        reason = str(error) if isinstance(error, BrimError) else repr(error)
        raise DamagedError(f"{columns.path} is not as brim writes it ({reason}); save the buffer again") from None
    return state


def _ids_to_columns(ids: list[SampleId]) -> dict[str, NDArray[Any]]:
    """Integers, or text and, where not all are strings, which are."""
    kinds = set(map(type, ids))
    if kinds == {int} and all(-(2**63) <= int(id) < 2**63 for id in ids):
        return {"id": np.array(ids, np.int64)}
    columns = _texts_to_columns("id", [str(id) for id in ids])
    return columns if int not in kinds else {**columns, "id_is_integer": np.array([type(id) is int for id in ids], np.uint8)}


def _ids_from_columns(columns: Columns) -> list[SampleId]:
    if "id" in columns:
        return columns["id"].tolist()
    texts = _texts_from_columns("id", columns)
    if "id_is_integer" not in columns:
        return [*texts]
    return [int(text) if whole else text for text, whole in zip(texts, columns["id_is_integer"].tolist(), strict=True)]


def _names_to_columns(name: str, values: list[str | None]) -> dict[str, NDArray[Any]]:
    """Names that come often are written once: a code for each value, -1 for None, and what the codes stand for."""
    texts = [value for value in dict.fromkeys(values) if value is not None]
    table: dict[str | None, int] = {None: -1, **{text: code for code, text in enumerate(texts)}}
    return {name: np.fromiter(map(table.__getitem__, values), np.int32, len(values)), **_texts_to_columns(name, texts)}


def _names_from_columns(name: str, columns: Columns) -> NDArray[np.object_]:
    table = objects([*_texts_from_columns(name, columns), None])  # -1 is the last one
    return table[columns[name]]


def _texts_to_columns(name: str, texts: list[str]) -> dict[str, NDArray[Any]]:
    """In UTF-8, one behind the other, and where each one ends. Half a surrogate pair, which JSON allows, is kept."""
    joined = "".join(texts)
    sizes = map(len, texts if joined.isascii() else (text.encode("utf-8", "surrogatepass") for text in texts))
    stops = np.cumsum(np.fromiter(sizes, np.int64, len(texts)))
    return {f"{name}_text": np.frombuffer(joined.encode("utf-8", "surrogatepass"), np.uint8), f"{name}_ends": stops}


def _texts_from_columns(name: str, columns: Columns) -> list[str]:
    data, stops = columns[f"{name}_text"].tobytes(), columns[f"{name}_ends"].tolist()
    starts = [0, *stops[:-1]]
    if data.isascii():
        text = data.decode()
        return [text[start:stop] for start, stop in zip(starts, stops, strict=False)]
    return [data[start:stop].decode("utf-8", "surrogatepass") for start, stop in zip(starts, stops, strict=False)]
