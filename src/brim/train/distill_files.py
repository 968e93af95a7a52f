"""The YAML files that the options of `brim train distill` are read from.

Files are merged in the order given: later ones win, and mappings in them merge key by key. What no file mentions has its default. A key
that means nothing is an error that names its file, and so is a value of another type; nothing is converted in silence. Some files come with
brim, in `brim/train/config`: one that is not in the current directory is looked for there.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast, get_origin, get_type_hints

from brim.core.errors import DataError, OptionError, did_you_mean, one_of
from brim.core.extras import need
from brim.envs.darkroom import Darkroom
from brim.envs.histories import HistoryConfig
from brim.train.distill_config import ALGORITHMS, RECORDING, DistillConfig, EvaluationConfig, ModelConfig, TrainingConfig
from brim.train.histories import CutConfig

DEFAULTS = ("config/algorithm/q_learning.yaml", "config/env/darkroom.yaml", "config/model/ad_compressed_dr.yaml")
BUNDLE = Path(__file__).parent
SECTIONS = ("algorithm", "env", "data", "model", "training", "evaluation")


def load_config(paths: Sequence[str | os.PathLike[str]] = ()) -> DistillConfig:
    """The options in some YAML files; without any, in those of `DEFAULTS`.

    Raises:
        DataError: A file does not exist or is not YAML.
        OptionError: What it says cannot work; the message names the file.
    """
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for path in paths or DEFAULTS:
        _merge(merged, _read(path), os.fspath(path), origins)
    return config_from(merged, Origins(origins))


@dataclass(frozen=True)
class Origins:
    """Which file each value came from, by its dotted name."""

    files: dict[str, str]

    def of(self, name: str) -> str:
        return f"{self.files[name]}: " if name in self.files else ""


def config_from(values: dict[str, Any], where: "Origins" = Origins({})) -> DistillConfig:  # noqa: B008  frozen
    """The inverse of `DistillConfig.to_dict`; what is not there has its default.

    Raises:
        OptionError: A key means nothing, or a value is of another type or cannot work.
    """
    return _Reader(values, where).config()


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    yaml = need("yaml", extra="train", user="brim.train.distill_config")
    found = Path(path)
    if not found.exists():
        bundled = BUNDLE / path
        if found.is_absolute() or ".." in found.parts or not bundled.is_file():
            known = [str(file.relative_to(BUNDLE)) for file in sorted((BUNDLE / "config").rglob("*.yaml"))]
            raise DataError(f"{path} does not exist, and does not come with brim ({', '.join(known)}).{did_you_mean(str(path), known)}")
        found = bundled
    try:
        values = yaml.load(found.read_bytes(), _loader(yaml))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise DataError(f"{path}{line} is not YAML: {getattr(error, 'problem', None) or error}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise OptionError(f"{path} must hold sections such as model and training, got {values!r}")
    return cast(dict[str, Any], values)


def _loader(yaml: Any) -> Any:
    """The safe loader, but a key that comes twice is an error."""

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        keys = [loader.construct_object(key) for key, _ in node.value]
        for place, key in enumerate(keys):
            if key in keys[:place]:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key!r} comes twice", problem_mark=node.value[place][0].start_mark
                )
        return loader.construct_mapping(node, deep=True)

    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    return loader


def _merge(into: dict[str, Any], values: dict[str, Any], file: str, origins: dict[str, str], prefix: str = "") -> None:
    for key, value in values.items():
        name = f"{prefix}{key}"
        origins[name] = file
        there = into.get(key)
        if isinstance(value, dict) and (there is None or isinstance(there, dict)):
            _merge(into.setdefault(key, {}), cast(dict[str, Any], value), file, origins, f"{name}.")
        elif value is not None or there is None:
            into[key] = value


class _Reader:
    """From merged mappings to dataclasses."""

    def __init__(self, values: dict[str, Any], where: Origins) -> None:
        self._where = where
        for key in values:
            if key not in SECTIONS:
                raise OptionError(f"{where.of(str(key))}unknown section {key!r}.{did_you_mean(str(key), SECTIONS)}")
            if values[key] is not None and not isinstance(values[key], dict):
                raise OptionError(f"{where.of(key)}{key} must be a section, got {values[key]!r}")
        self._sections: dict[str, dict[str, Any]] = {key: dict(values.get(key) or {}) for key in SECTIONS}

    def config(self) -> DistillConfig:
        algorithm, env = self._sections["algorithm"], self._sections["env"]
        kind = ALGORITHMS[self._name("algorithm", algorithm, list(ALGORITHMS))]
        self._name("env", env, ["darkroom"])
        recording = {key: algorithm.pop(key) for key in RECORDING if key in algorithm}
        held_out = {key: env.pop(key) for key in ("held_out",) if key in env}
        room = self._build(Darkroom, "env", env, also=("name", "held_out"))
        learner = self._build(kind, "algorithm", algorithm, also=("name", *RECORDING))
        types = get_type_hints(HistoryConfig)
        parts = {key: self._typed(f"algorithm.{key}", value, types[key]) for key, value in recording.items()}
        parts |= {key: self._typed(f"env.{key}", value, types[key]) for key, value in held_out.items()}
        histories = HistoryConfig(room=room, algorithm=learner, **parts)
        return DistillConfig(
            histories=histories,
            data=self._build(CutConfig, "data", self._sections["data"]),
            model=self._build(ModelConfig, "model", self._sections["model"]),
            training=self._build(TrainingConfig, "training", self._sections["training"]),
            evaluation=self._build(EvaluationConfig, "evaluation", self._sections["evaluation"]),
        )

    def _name(self, section: str, values: dict[str, Any], choices: list[str]) -> str:
        try:
            return one_of(f"{section}.name", values.pop("name", choices[0]), choices)
        except OptionError as error:
            raise OptionError(f"{self._where.of(f'{section}.name')}{error}") from None

    def _build(self, kind: type[Any], section: str, values: dict[str, Any], also: tuple[str, ...] = ()) -> Any:
        types = get_type_hints(kind)
        known = [option.name for option in fields(kind)]
        for key in values:
            if key not in known:
                where = self._where.of(f"{section}.{key}")
                raise OptionError(f"{where}unknown option {key!r} in {section}.{did_you_mean(str(key), [*known, *also])}")
        typed = {key: self._typed(f"{section}.{key}", value, types[key]) for key, value in values.items()}
        try:
            return kind(**typed)
        except OptionError as error:
            named = next((key for key in values if str(error).startswith(f"{key} ")), "")
            raise OptionError(f"{self._where.of(f'{section}.{named}')}{section}: {error}") from None

    def _typed(self, name: str, value: Any, kind: Any) -> Any:
        """`value`, if it is what the option takes; whole numbers are numbers too."""
        if get_origin(kind) is tuple:
            if isinstance(value, list) and all(type(item) is int for item in cast(list[Any], value)):
                return tuple(cast(list[int], value))
            wanted = "a list of whole numbers"
        elif kind is int:
            if type(value) is int:
                return value
            wanted = "a whole number"
        elif kind is float:
            if type(value) in (int, float):
                return float(value)
            wanted = "a number"
        else:
            if isinstance(value, str):
                return value
            wanted = "a word"
        raise OptionError(f"{self._where.of(name)}{name} must be {wanted}, got {value!r}{_hint(value, wanted)}")


def _hint(value: Any, wanted: str) -> str:
    """To YAML, 3e-3 is a word."""
    try:
        number = float(value) if isinstance(value, str) and wanted == "a number" else None
    except ValueError:
        number = None
    return "" if number is None else f"; write {number!r}, with a point: YAML takes it for text"
