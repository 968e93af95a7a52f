"""Convert the rows of a data set to stream samples: tokens as everywhere in brim, and fields about their origin.

These fields are read from the row itself or from its object "meta": episode_id, episode_status, step_index,
total_steps, reward, difficulty, difficulty_score, success, policy_version, priority. The id is found as in
`row_ids.py`, otherwise in "meta". A field that is absent or null is unknown; an impossible value is an error that names
the row. A "meta" that is not an object is ignored. Rows written by `StreamSample.to_dict` can be read again, as offline
samples.
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
    """Converts the rows of one data set to samples."""

    tokenizer: Tokenizer
    layout: Layout
    id_in_meta: str | None
    """The field of "meta" that holds the ids; None if the ids are not in "meta"."""
    dataset_id: str
    difficulties: Mapping[str, float] = field(default_factory=lambda: DIFFICULTIES)

    def samples(self, rows: Sequence[Row], numbers: Sequence[int], where: Where) -> list[StreamSample]:
        """One sample for each row.

        `numbers` are the numbers of the rows in the data set, and `where(k)` names the k-th row in errors.

        Raises:
            DataError: A row is not valid.
        """
        made: list[StreamSample] = []
        encoded = encode_rows(rows, self.tokenizer, self.layout, where)
        for row, number, (tokens, mask) in zip(rows, numbers, encoded, strict=True):
            try:
                segments = row.get("segment_ids") if self.layout.kind == "tokens" else None
                sample = StreamSample(
                    sample_id=self._id(row, number),
                    input_ids=tokens,
                    loss_mask=mask,
                    segment_ids=segments,
                    dataset_id=self.dataset_id,
                    **origin(row, self.difficulties),
                )
                made.append(sample)
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
    """The field of "meta" that holds the ids, found in the first row; None if the row itself has an id, or none has."""
    if layout.id_field is not None:
        return None
    return next((name for name in ID_FIELDS if name in _meta(first)), None)


def origin(row: Row, difficulties: Mapping[str, float] = DIFFICULTIES) -> dict[str, Any]:
    """The fields of a row about its origin, by their names in `StreamSample`.

    A difficulty in numbers takes precedence over one in words.

    Raises:
        DataError: A field has two values, a difficulty is unknown, or success and status contradict each other.
    """
    found = {name: value for name in PLAIN if (value := _field(row, name)) is not None}
    difficulty = _difficulty(_field(row, "difficulty"), difficulties)
    score = _field(row, "difficulty_score")
    if difficulty is not None or score is not None:
        found["difficulty"] = difficulty if score is None else score
    if isinstance(success := found.get("success"), bool):
        ended = EpisodeStatus.SUCCESS if success else EpisodeStatus.FAILURE
        status = found.setdefault("episode_status", ended)
        if (status == EpisodeStatus.SUCCESS) != success:
            raise DataError(
                f'"success" is {str(success).lower()}, but "episode_status" is {status!r:.40}; correct one of them'
            )
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
