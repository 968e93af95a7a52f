"""Rows of a data set to stream samples: tokens as everywhere in brim, and what the row says about where it came from.

Read from the top of a row or from its object "meta", wherever they stand: episode_id, episode_status, step_index, total_steps, reward,
difficulty, difficulty_score, success, policy_version, priority. The id is found as in `row_ids.py`, and else in "meta". A field that
is absent or null is not known; a field that cannot be what it says is an error that names the row. A "meta" that is no object belongs to
somebody else and is not looked at. What `StreamSample.to_dict` writes can be read again, as an offline sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from brim.core.errors import DataError, did_you_mean
from brim.data.ids import SampleId
from brim.data.rows.encode import Where, encode_rows
from brim.data.rows.format import ID_FIELDS, Layout, Row
from brim.data.rows.row_ids import row_id
from brim.data.tokenizer.base import Tokenizer
from brim.envs.episode import DIFFICULTIES, EpisodeStatus
from brim.stream.sample import StreamSample

PLAIN = ("episode_id", "episode_status", "step_index", "total_steps", "reward", "success", "policy_version", "priority")


@dataclass(frozen=True, kw_only=True)
class RowReader:
    """How the rows of one data set become samples."""

    tokenizer: Tokenizer
    layout: Layout
    id_in_meta: str | None
    """The field of "meta" that holds the ids, if they are there."""
    dataset_id: str
    difficulties: Mapping[str, float] = field(default_factory=lambda: DIFFICULTIES)

    def samples(self, rows: Sequence[Row], numbers: Sequence[int], where: Where) -> list[StreamSample]:
        """One sample for each row; `numbers` are their numbers in the data set, and `where(k)` names the k-th of them in errors.

        Raises:
            DataError: A row is not what it should be.
        """
        made: list[StreamSample] = []
        for row, number, (tokens, mask) in zip(rows, numbers, encode_rows(rows, self.tokenizer, self.layout, where), strict=True):
            try:
                segments = row.get("segment_ids") if self.layout.kind == "tokens" else None
                known: dict[str, Any] = {"dataset_id": self.dataset_id, "segment_ids": segments, **origin(row, self.difficulties)}
                made.append(StreamSample(sample_id=self._id(row, number), input_ids=tokens, loss_mask=mask, **known))
            except DataError as error:
                raise DataError(f"{where(len(made))}: {error}") from None
        return made

    def _id(self, row: Row, number: int) -> SampleId:
        id = row_id(row, self.layout, number)
        if self.layout.id_field is not None:
            return id
        meta = replace(self.layout, id_field=self.id_in_meta)
        try:
            return row_id(_meta(row), meta, number)
        except DataError as error:
            raise DataError(f'in "meta": {error}') from None


def id_in_meta(first: Row, layout: Layout) -> str | None:
    """Where the ids are, settled by the first row: in "meta", if there and nowhere else."""
    return None if layout.id_field is not None else next((name for name in ID_FIELDS if name in _meta(first)), None)


def origin(row: Row, difficulties: Mapping[str, float] = DIFFICULTIES) -> dict[str, Any]:
    """What a row says about where it came from, by the names of `StreamSample`. A difficulty in numbers goes before one in words.

    Raises:
        DataError: A field stands in two places with two values, a difficulty is not one, or success and status contradict each other.
    """
    found = {name: value for name in PLAIN if (value := _field(row, name)) is not None}
    difficulty, score = _difficulty(_field(row, "difficulty"), difficulties), _field(row, "difficulty_score")
    if difficulty is not None or score is not None:
        found["difficulty"] = difficulty if score is None else score
    if isinstance(success := found.get("success"), bool):
        ended = EpisodeStatus.SUCCESS if success else EpisodeStatus.FAILURE
        status = found.setdefault("episode_status", ended)
        if (status == EpisodeStatus.SUCCESS) != success:
            raise DataError(f'"success" is {str(success).lower()}, but "episode_status" is {status!r:.40}; correct one of them')
    return found


def _field(row: Row, name: str) -> Any:
    above, below = row.get(name), _meta(row).get(name)
    if above is not None and below is not None and above != below:
        raise DataError(f'"{name}" is {above!r:.40} in the row and {below!r:.40} in its "meta"; keep one of them')
    return below if above is None else above


def _meta(row: Row) -> Mapping[str, Any]:
    meta: Any = row.get("meta")
    return meta if isinstance(meta, dict) else {}


def _difficulty(value: Any, difficulties: Mapping[str, float]) -> Any:
    if not isinstance(value, str):
        return value
    if value not in difficulties:
        known = ", ".join(difficulties)
        hint = did_you_mean(value, difficulties) or " Pass other words with their numbers as difficulties={...}."
        raise DataError(f'"difficulty" is {value!r:.40}; in words it is one of {known}.{hint}')
    return difficulties[value]
