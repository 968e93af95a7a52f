"""Objects that a program gives to a run instead of names: a model, a tokenizer, rows in memory.

A resumed run needs what it began with. Rows in memory are therefore kept as a file in the output, and the trained
weights and the tokenizer are in every checkpoint. What is not kept is the model below LoRA adapters: a run with LoRA on
a model that was given as an object is resumed by giving the same object again.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from brim.core.atomic import atomic_file
from brim.core.errors import DataError, MismatchError, OptionError
from brim.data.sample import Sample
from brim.train.config import ModelConfig, SftConfig

ROWS = Path("data", "rows.jsonl")
"""Path in the output of rows that were given in memory."""


@dataclass(frozen=True)
class Given:
    """Objects that a program gives instead of names. None: the options name it."""

    model: Any = None
    """A causal language model of transformers. It is trained in place."""
    tokenizer: Any = None
    rows: Iterable[Any] | None = None
    """Rows as dictionaries, or `Sample`s."""


def with_objects(config: SftConfig, model: Any, tokenizer: Any, data: Any) -> tuple[SftConfig, Given]:
    """Put names into the options, and return the objects apart.

    Raises:
        OptionError: There is no model or no data, or both the options and the arguments name one.
    """
    named, objects = model_objects(config, model, tokenizer)
    _refuse_twice(config, data=data)
    if isinstance(data, str | Path):
        named["data"] = str(data)
    elif isinstance(getattr(data, "path", None), Path):  # a Source: a data set on disk that has been opened
        named["data"] = str(data.path)
    elif data is not None:
        named["data"] = str(Path(config.output) / ROWS)
        objects["rows"] = data
    config = replace(config, **named)
    for name in ("model", "data"):
        if not getattr(config, name):
            raise OptionError(
                f"{name} is missing: name it in the options, or give it as an argument (train_sft({name}=...))"
            )
    return config, Given(**objects)


def model_objects(config: ModelConfig, model: Any, tokenizer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options that name a model and a tokenizer, and those of the two that are objects.

    Raises:
        OptionError: Both the options and the arguments name one.
    """
    _refuse_twice(config, model=model, tokenizer=tokenizer)
    named: dict[str, Any] = {}
    objects: dict[str, Any] = {}
    if isinstance(model, str | Path):
        named["model"] = str(model)
    elif model is not None:
        named["model"] = f"an object of type {type(model).__name__}"
        objects["model"] = model
    if isinstance(tokenizer, str | Path):
        named["tokenizer"] = str(tokenizer)
    elif tokenizer is not None:
        objects["tokenizer"] = tokenizer
    return named, objects


def _refuse_twice(config: Any, **arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None and getattr(config, name):
            raise OptionError(
                f"{name} is given twice: in the options ({getattr(config, name)}) and as an argument; leave one out"
            )


def keep_rows(rows: Iterable[Any], path: Path, *, resumed: bool) -> None:
    """Write rows to the output as JSON lines, or check that a resumed run is given those it began with.

    Raises:
        DataError: A row is neither a dictionary nor a `Sample`, or holds something that JSON cannot.
        MismatchError: A resumed run is given other rows.
    """
    text = b"".join(_lines(rows))
    if resumed:
        if not path.exists() or path.read_bytes() != text:
            raise MismatchError(
                f"the rows given are not those the run began with, which are in {path}; leave out data, or start a "
                "new run"
            )
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(text)


def _lines(rows: Iterable[Any]) -> Iterator[bytes]:
    for number, row in enumerate(rows):
        if isinstance(row, Sample):
            row = {"id": row.id, "input_ids": row.input_ids, "loss_mask": row.loss_mask}
        if not isinstance(row, Mapping):
            raise DataError(
                f"row {number} of the data is a {type(row).__name__}; rows are dictionaries, or brim.Sample"
            )
        try:
            yield json.dumps(dict(cast(Mapping[str, Any], row)), default=_plain, ensure_ascii=False).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise DataError(f"row {number} of the data cannot be written as JSON: {error}") from None


def _plain(value: Any) -> Any:
    """Turn arrays and numbers of NumPy into what JSON has."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a value is a {type(value).__name__}")
