"""Random nested samples: a few structures, several samples of each, in any order; and samples and files for tests of
sources.

`nested_samples()` draws lists of samples. Arrays are filled with arbitrary bits, NaN among them: compare with `same`,
which looks at bits, types and shapes. `normal` is what a sample is once it was taken apart and put together again:
lists of numbers are arrays then, as they are for everything that reads samples. `assert_holds` is what a source
promises.
"""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hypothesis import strategies as st

from brim.data.nested.lengths import measure_structures
from brim.data.nested.structure import ID, PINNED, outline

KEYS = ("x", "y", "states", "stages", "id", "0", "1", "..", "a b", "é", "ends", "structure")
DTYPES = ("float32", "float64", "int64", "int16", "uint8", "bool", "float16", "complex64")
SIZES = ((), (2,), (0,), (2, 3))

Sample = dict[str, Any]


def templates(*, dtypes: tuple[str, ...] = DTYPES, keys: tuple[str, ...] = KEYS) -> st.SearchStrategy[Any]:
    """Structures to fill: dicts, lists, and ("array", dtype, sizes), ("scalar", dtype), ("text",) or ("bytes",)."""
    leaves = st.one_of(
        st.tuples(st.just("array"), st.sampled_from(dtypes), st.sampled_from(SIZES)),
        st.tuples(st.just("scalar"), st.sampled_from(dtypes)),
        st.sampled_from([("text",), ("bytes",)]),
    )

    def nest(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from(keys), inside, max_size=3)

    nodes = st.recursive(leaves, nest, max_leaves=6)
    top = tuple(key for key in keys if key != ID)
    return st.dictionaries(st.sampled_from(top), nodes, max_size=4)


@st.composite
def nested_samples(draw: Any, *, min_size: int = 1, max_size: int = 10, ids: bool = True, **shape: Any) -> list[Sample]:
    """Samples of up to three structures; with distinct ids of one type, or without any."""
    kinds = draw(st.lists(templates(**shape), min_size=1, max_size=3))
    picks = draw(st.lists(st.sampled_from(range(len(kinds))), min_size=min_size, max_size=max_size))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    samples = [fill(kinds[pick], rng) for pick in picks]
    if draw(st.booleans()):
        for sample in samples:
            sample[draw(st.sampled_from(PINNED))] = draw(st.integers(1, 3))
    id_kind = draw(st.sampled_from([None, st.integers(-(2**63), 2**63 - 1), st.text(max_size=4)])) if ids else None
    if id_kind is not None:
        names = draw(st.lists(id_kind, min_size=len(samples), max_size=len(samples), unique=True))
        samples = [{ID: name, **sample} for name, sample in zip(names, samples, strict=True)]
    return samples


def fill(template: Any, rng: np.random.Generator) -> Any:
    """A sample of a structure, with lengths from 0 to 4."""
    if isinstance(template, dict):
        return {key: fill(value, rng) for key, value in template.items()}
    if isinstance(template, list):
        return [fill(value, rng) for value in template]
    if template[0] in ("text", "bytes"):
        text = "".join(rng.choice(list("aé\0\N{SNOWMAN}"), int(rng.integers(5))))
        return text if template[0] == "text" else text.encode()
    shape = (int(rng.integers(5)), *template[2]) if template[0] == "array" else ()
    dtype = np.dtype(template[1])
    bits = rng.integers(0, 2 if template[1] == "bool" else 256, (*shape, dtype.itemsize), dtype=np.uint8)
    return bits.view(dtype)[..., 0][()]


def normal(sample: Sample) -> Sample:
    parts = outline(sample)
    return parts.structure.assemble(parts.leaves)


def same(first: Any, second: Any) -> bool:
    """Whether two samples, or parts of them, are equal bit by bit."""
    if isinstance(first, dict):
        return (
            isinstance(second, dict)
            and first.keys() == second.keys()
            and all(same(first[key], second[key]) for key in first)
        )
    if isinstance(first, list):
        return isinstance(second, list) and len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, str | bytes):
        return type(first) is type(second) and first == second
    first, second = np.asarray(first), np.asarray(second)
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()


TARGETS = {"hdf5": "samples.h5", "npz": "samples.npz", "shards": "samples"}
TEMPLATES = (
    {
        "x": ("array", "float32", (3,)),
        "stages": [{"s": ("array", "int64", ())}],
        "text": ("text",),
        "r": ("scalar", "float64"),
    },
    {
        "x": ("array", "float32", (3,)),
        "stages": [{"s": ("array", "int64", ())}] * 2,
        "text": ("text",),
        "r": ("scalar", "float64"),
    },
)


def some_samples(count: int = 40) -> list[dict]:
    rng = np.random.default_rng(7)
    return [{ID: f"ep{number}", **fill(TEMPLATES[number % 2], rng)} for number in range(count)]


def assert_holds(source, samples: list[dict]) -> None:
    """The samples, in their order, under their ids, and their table."""
    ids = [sample.get(ID, number) for number, sample in enumerate(samples)]
    assert len(source) == len(samples)
    assert list(source.ids) == ids
    for row, sample in enumerate(samples):
        found = source[row]
        assert found.pop(ID) == ids[row]
        assert same(found, normal(sample))
    assert_tables_agree(source.table, measure_structures(samples))
    assert source.table.dataset_hash == source.fingerprint != ""


def assert_tables_agree(found, wanted) -> None:
    assert np.array_equal(found.lengths, wanted.lengths)
    assert np.array_equal(found.groups, wanted.groups)
    assert found.group_names == wanted.group_names
    assert (found.axes is None and wanted.axes is None) or np.array_equal(found.axes, wanted.axes)
    assert list(found.ids) == list(wanted.ids)
    assert found.source == wanted.source


def write_groups(path: Path, samples: list[dict], root: str = "/") -> None:
    with h5py.File(path, "w") as file:
        for number, sample in enumerate(samples):
            put(file.require_group(root).create_group(sample.get(ID, f"ep{number}")), sample)


def put(group, value: dict | list) -> None:
    for key, inside in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(inside, dict | list):
            put(group.create_group(str(key)), inside)
        elif key != ID:
            group[str(key)] = inside
