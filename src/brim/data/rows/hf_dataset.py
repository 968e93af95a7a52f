"""Data sets that `datasets.Dataset.save_to_disk` wrote: a directory of Arrow files, memory-mapped by `datasets`."""

from functools import cached_property
from pathlib import Path
from typing import Any

from brim.core.errors import unreadable
from brim.core.extras import need
from brim.data.rows.table import TableSource


class DatasetSource(TableSource):
    """Rows of a saved `Dataset`, as plain Python values whatever format it was saved with."""

    kind = "datasets"

    def __init__(self, path: Path) -> None:
        """Open the directory.

        Raises:
            DataError: The directory is damaged.
        """
        self.path = path
        self.size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        self.end = len(self._dataset)

    def __reduce__(self) -> tuple[Any, ...]:
        return (DatasetSource, (self.path,))

    def rows(self, start: int, stop: int) -> list[dict[str, Any]]:
        columns: dict[str, list[Any]] = self._dataset[start:stop]
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def where(self, number: int) -> str:
        return f"{self.path}: row {number % self.end}"

    @cached_property
    def _dataset(self) -> Any:
        datasets = need("datasets", extra="hf", user="brim.data.rows.hf_dataset")
        try:
            return datasets.load_from_disk(str(self.path), keep_in_memory=False).with_format(None)
        except Exception as error:  # a damaged state.json or Arrow file can make it raise anything
            raise unreadable(self.path, "a saved data set", error) from None
