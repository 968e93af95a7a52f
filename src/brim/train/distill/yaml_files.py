"""The YAML files that the options of `brim train distill` are read from.

Files are merged in the order given: later ones win, and mappings in them merge key by key. What no file mentions has
its default. A key that means nothing or has no value is an error that names its file, and so is a value of another
type; nothing is converted in silence. Where values of several files do not go together, all of these are named. Some
files come with brim, in `brim/train/distill/config`: a file `config/....yaml` that is not in the current directory is
looked for there.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast, get_origin, get_type_hints

from brim.core.errors import DataError, OptionError, did_you_mean
from brim.core.extras import need
from brim.core.options import one_of
from brim.envs.darkroom.histories import HistoryConfig
from brim.envs.darkroom.room import Darkroom
from brim.train.distill.config import (
    ALGORITHMS,
    RECORDING,
    DistillConfig,
    EvaluationConfig,
    ModelConfig,
    TrainingConfig,
)
from brim.train.distill.samples import CutConfig

DEFAULTS = ("config/algorithm/q_learning.yaml", "config/env/darkroom.yaml", "config/model/ad_compressed_dr.yaml")
BUNDLE = Path(__file__).parent
MERGE = "tag:yaml.org,2002:merge"
SECTIONS = ("algorithm", "env", "data", "model", "training", "evaluation")


def load_config(paths: Sequence[str | os.PathLike[str]] = ()) -> DistillConfig:
    """The options in some YAML files; without any, in those of `DEFAULTS`.

    Raises:
        DataError: A file does not exist or is not YAML.
        OptionError: What it says cannot work; the message names the file.
    """
    merged: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    for path in paths or DEFAULTS:
        values = _read(path)
        _check_sections(values, f"{os.fspath(path)}: ")
        for section, options in values.items():
            merged.setdefault(section, {}).update(options or {})
            given = {f"{section}.{key}": os.fspath(path) for key in options or {}}
            origins = {name: file for name, file in origins.items() if name not in given} | given
    return config_from(merged, Origins(origins))


@dataclass(frozen=True)
class Origins:
    """Which file each value came from, by its dotted name; those of the first file first."""

    files: dict[str, str]

    def of(self, *names: str) -> str:
        """The files of some values, for the beginning of a message; nothing if none of them came from a file."""
        found = list(dict.fromkeys(file for name, file in self.files.items() if name in names))
        return f"{', '.join(found)}: " if found else ""


def config_from(values: dict[str, Any], where: "Origins" = Origins({})) -> DistillConfig:
    """The inverse of `DistillConfig.to_dict`; what is not there has its default.

    Raises:
        OptionError: A key means nothing, or a value is of another type or cannot work.
    """
    _check_sections(values, "")
    return _Reader(values, where).config()


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    yaml = need("yaml", extra="train", user="brim.train.distill.config")
    found = Path(path)
    if not found.exists():
        bundled = BUNDLE / path
        named = found.parts[:1] == ("config",) and found.suffix == ".yaml" and ".." not in found.parts
        if not (named and bundled.is_file()):
            known = [str(file.relative_to(BUNDLE)) for file in sorted((BUNDLE / "config").rglob("*.yaml"))]
            raise DataError(
                f"{path} does not exist, and does not come with brim "
                f"({', '.join(known)}).{did_you_mean(str(path), known)}"
            )
        found = bundled
    try:
        values = _parsed(yaml, found.read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, or a date that does not exist
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise DataError(
            f"{path}{line} is not YAML: {getattr(error, 'problem', None) or str(error).splitlines()[0]}"
        ) from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise OptionError(f"{path} must hold sections such as model and training, got {values!r}")
    return cast(dict[str, Any], values)


def _parsed(yaml: Any, text: bytes) -> Any:
    """Parse YAML with the safe loader. A key that comes twice is an error, and so is a mapping that contains itself."""

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        return loader.construct_mapping(node, deep=True)

    kind = type("Loader", (yaml.SafeLoader,), {})
    kind.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    loader = kind(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _refuse_twice(yaml, loader, node, set())
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _refuse_twice(yaml: Any, loader: Any, node: Any, seen: set[int]) -> None:
    """Before anything is constructed: then the keys that `<<` merges in stand among the others, which may repeat
    them.
    """
    if id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for child in node.value:
            _refuse_twice(yaml, loader, child, seen)
        return
    keys: set[Any] = set()
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            name = key.value if key.tag == MERGE else loader.construct_object(key)
            if name in keys:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {name!r} comes twice", problem_mark=key.start_mark
                )
            keys.add(name)
        _refuse_twice(yaml, loader, value, seen)


def _check_sections(values: dict[str, Any], where: str) -> None:
    """A section may be empty; an option without a value is none."""
    for key, options in values.items():
        if key not in SECTIONS:
            raise OptionError(f"{where}unknown section {key!r}.{did_you_mean(str(key), SECTIONS)}")
        if options is not None and not isinstance(options, dict):
            raise OptionError(f"{where}{key} must be a section, got {options!r}")
        for name, value in cast(dict[str, Any], options or {}).items():
            if value is None:
                raise OptionError(f"{where}{key}.{name} has no value; give it one, or leave the key out")


class _Reader:
    """From merged mappings to dataclasses."""

    def __init__(self, values: dict[str, Any], where: Origins) -> None:
        self._where = where
        self._sections: dict[str, dict[str, Any]] = {key: dict(values.get(key) or {}) for key in SECTIONS}

    def config(self) -> DistillConfig:
        algorithm, env = self._sections["algorithm"], self._sections["env"]
        name = self._name("algorithm", algorithm, list(ALGORITHMS))
        kind = ALGORITHMS[name]
        self._refuse_others(name, algorithm)
        self._name("env", env, ["darkroom"])
        recording = {key: algorithm.pop(key) for key in RECORDING if key in algorithm}
        held_out = {key: env.pop(key) for key in ("held_out",) if key in env}
        room = self._build(Darkroom, "env", env, also=("name", "held_out"))
        learner = self._build(kind, "algorithm", algorithm, also=("name", *RECORDING))
        types = get_type_hints(HistoryConfig)
        parts = {key: self._typed(f"algorithm.{key}", value, types[key]) for key, value in recording.items()}
        parts |= {key: self._typed(f"env.{key}", value, types[key]) for key, value in held_out.items()}
        dotted = {key: f"{'env' if key == 'held_out' else 'algorithm'}.{key}" for key in parts}
        histories = self._make(HistoryConfig, {"room": room, "algorithm": learner, **parts}, dotted)
        sections = {"data": CutConfig, "model": ModelConfig, "training": TrainingConfig, "evaluation": EvaluationConfig}
        built = {section: self._build(kind, section, self._sections[section]) for section, kind in sections.items()}
        return self._make(
            DistillConfig,
            {"histories": histories, **built},
            {name: name for name in self._where.files},
            says_section=True,
        )

    def _name(self, section: str, values: dict[str, Any], choices: list[str]) -> str:
        try:
            return one_of(f"{section}.name", values.pop("name", choices[0]), choices)
        except OptionError as error:
            raise OptionError(f"{self._where.of(f'{section}.name')}{error}") from None

    def _refuse_others(self, name: str, values: dict[str, Any]) -> None:
        """An option of another algorithm is as often meant as the name: both are named."""
        known = {option.name for option in fields(ALGORITHMS[name])}
        for other, kind in ALGORITHMS.items():
            for key in (option.name for option in fields(kind) if option.name in values.keys() - known):
                where = self._where.of(f"algorithm.{key}", "algorithm.name")
                raise OptionError(f"{where}unknown option {key!r} in algorithm {name}: it is one of {other}")

    def _build(self, kind: type[Any], section: str, values: dict[str, Any], also: tuple[str, ...] = ()) -> Any:
        types = get_type_hints(kind)
        known = [option.name for option in fields(kind)]
        for key in values:
            if key not in known:
                where = self._where.of(f"{section}.{key}")
                raise OptionError(
                    f"{where}unknown option {key!r} in {section}.{did_you_mean(str(key), [*known, *also])}"
                )
        typed = {key: self._typed(f"{section}.{key}", value, types[key]) for key, value in values.items()}
        return self._make(kind, typed, {key: f"{section}.{key}" for key in values})

    def _make(
        self, kind: type[Any], values: dict[str, Any], dotted: dict[str, str], *, says_section: bool = False
    ) -> Any:
        """Options of checked types.

        An error is about those that its message names, or about all; `dotted` says where they stand.
        """
        try:
            return kind(**values)
        except OptionError as error:
            words = set(re.findall(r"[\w.]*\w", str(error)))
            named = [dotted[name] for name in dotted if name in words] or list(dotted.values())
            sections = "" if says_section else ", ".join(dict.fromkeys(name.split(".")[0] for name in named)) + ": "
            raise OptionError(f"{self._where.of(*named)}{sections}{error}") from None

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
