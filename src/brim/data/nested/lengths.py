"""The length table of nested samples: a group for each structure, a column for each ragged axis.

Downstream, only the planner's arithmetic of several axes depends on samples being nested. Axes are named by the paths
of their arrays. The names tell which axes a batch of mixed structures would have to pad, and name the axes whose steps
cost more than others (`charge_axes`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import natural, round_up
from brim.core.errors import DataError, OptionError, did_you_mean
from brim.core.options import LONGEST
from brim.data.ids import Ids, SampleId
from brim.data.lengths import LengthCache
from brim.data.nested.structure import Structure, outline, sample_id

ROOT = "/"
"""The name of the axis of arrays at the top of a sample, if they share one. No key has a slash in it."""


def measure_structures(
    dataset: Any, *, read: bool = False, progress: Callable[[int, int], None] | None = None
) -> LengthCache:
    """Return the length table of nested samples, with a group for each structure and a length for each ragged axis.

    The `table` of the data set is returned if it has one. Otherwise its list `samples` is measured, if it has one with
    an entry for each sample, or else the data set itself; with `read`, always the data set itself. Arrays of one dict
    that are equally long in all samples share an axis, which counts once.

    Raises:
        DataError: A sample cannot be batched; the message names it.
    """
    if isinstance(known := getattr(dataset, "table", None), LengthCache):
        return known
    samples = dataset if read else listed_samples(dataset)
    ids: list[SampleId] = []
    code: dict[Structure, int] = {}
    kinds: list[int] = []
    lengths: list[list[tuple[int, ...]]] = []
    count = len(samples)
    for row in range(count):
        sample = samples[row]
        try:
            parts = outline(sample)
            ids.append(sample_id(sample, row))
        except DataError as error:
            raise DataError(f"sample {row}: {error}") from None
        kind = code.setdefault(parts.structure, len(code))
        if kind == len(lengths):
            lengths.append([])
        kinds.append(kind)
        lengths[kind].append(parts.lengths)
        if progress is not None and (row % 1000 == 999 or row + 1 == count):
            progress(row + 1, count)
    columns = [np.array(rows, np.int64).reshape(len(rows), -1) for rows in lengths]
    return structure_table(list(code), np.array(kinds, np.int64), columns, ids=Ids.of(ids))


def listed_samples(dataset: Any) -> Any:
    """Return the list that some data sets keep of their samples, without reading them; the data set itself if there is
    none.
    """
    samples = getattr(dataset, "samples", None)
    return (
        samples if isinstance(samples, list | tuple) and len(cast(Sequence[Any], samples)) == len(dataset) else dataset
    )


def structure_table(
    structures: Sequence[Structure],
    kinds: NDArray[np.integer[Any]],
    lengths: Sequence[NDArray[np.integer[Any]]],
    *,
    ids: Ids | None = None,
    dataset_hash: str = "",
) -> LengthCache:
    """Make the length table of samples whose structures and lengths are known.

    Sample i has the structure `structures[kinds[i]]`; the j-th sample of a structure k has arrays of the lengths
    `lengths[k][j]`. The table does not depend on the order of `structures`.

    Raises:
        DataError: An id comes twice, or a sample is longer than `LONGEST`.
    """
    ids = ids or Ids.rows(len(kinds))
    ids.refuse_duplicate("sample {}".format)
    order = sorted(range(len(structures)), key=lambda kind: (natural(structures[kind].name), structures[kind].text))
    names = _distinct_names([structures[kind] for kind in order])
    axes = [shared_axes(structures[kind], lengths[kind]) for kind in order]
    matrix = np.zeros((len(kinds), max((len(found) for found in axes), default=0)), np.int64)
    groups = np.empty(len(kinds), np.int32)
    for code, kind in enumerate(order):
        rows = np.flatnonzero(kinds == kind)
        groups[rows] = code
        for axis, arrays in enumerate(axes[code].values()):
            matrix[rows, axis] = lengths[kind][:, arrays[0]]
    totals = matrix.sum(axis=1)
    if (totals > LONGEST).any():
        raise DataError(
            f"sample {ids[int(totals.argmax())]!r} has length {totals.max()}; a length is at most {LONGEST}"
        )
    described = [
        {"name": name, "structure": structures[kind].text, "axes": list(axes[code])}
        for code, (kind, name) in enumerate(zip(order, names, strict=True))
    ]
    return LengthCache(
        ids,
        totals.astype(np.int32),
        groups=groups,
        group_names=tuple(names),
        axes=matrix.astype(np.int32) if matrix.shape[1] > 1 else None,
        dataset_hash=dataset_hash,
        source={"structures": described},
    )


def shared_axes(structure: Structure, lengths: NDArray[np.integer[Any]]) -> dict[str, list[int]]:
    """Return the ragged axes of a structure: for each name, the indices of the arrays along that axis.

    `lengths` is [samples, arrays]. Arrays share an axis if they are in the same dict and equally long in every sample.
    """
    together: dict[str, dict[bytes, list[int]]] = {}
    for array, table in enumerate(structure.tables.values()):
        together.setdefault(table, {}).setdefault(lengths[:, array].tobytes(), []).append(array)
    axes = {
        (table or ROOT) if len(columns) == 1 and len(arrays) > 1 else structure.arrays[arrays[0]]: arrays
        for table, columns in together.items()
        for arrays in columns.values()
    }
    return dict(sorted(axes.items(), key=lambda axis: axis[1]))


def axes_by_name(table: LengthCache) -> dict[str, NDArray[np.int32]]:
    """Return the length of every sample along every axis that any of them has; 0 if a sample does not have the axis.

    These are the lengths that a batch of mixed structures pads.
    """
    columns: dict[str, NDArray[np.int32]] = {}
    if table.axes is None or table.groups is None or "structures" not in table.source:
        axes = table.lengths[:, None] if table.axes is None else table.axes
        return {str(number): axes[:, number] for number in range(axes.shape[1])}
    for code, each in enumerate(table.source["structures"]):
        rows = np.flatnonzero(table.groups == code)
        for number, name in enumerate(each["axes"]):
            columns.setdefault(name, np.zeros(len(table), np.int32))[rows] = table.axes[rows, number]
    return columns


def charge_axes(table: LengthCache, costs: Mapping[str, int], *, pad_to_multiple: int = 1) -> LengthCache:
    """Return the table with lengths in units of cost: the length along an axis times its cost in `costs`, default 1.

    A key is the name of an axis, or a path above it: "stages" stands for all axes below it. Lengths are rounded up to
    `pad_to_multiple` before they are multiplied, since batches are padded to that; then plan with `pad_to_multiple` 1.

    Raises:
        OptionError: A key is no axis of these samples, a cost is not an integer from 1 on, or the cost of a sample is
            more than `LONGEST`.
    """
    described = table.source.get("structures")
    if described is None or table.groups is None:
        raise OptionError("axis_costs are for nested samples whose axes have names, as measure_structures gives them")
    names = sorted({name for each in described for name in each["axes"]})
    known = {path for name in names for path in _above(name)}
    for key, cost in costs.items():
        if key not in known:
            raise OptionError(f"axis_costs has {key!r}, and the axes are {', '.join(names)}.{did_you_mean(key, known)}")
        if isinstance(cost, bool) or not isinstance(cost, int) or cost < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"axis_costs of {key!r} must be an integer from 1 on, got {cost!r}")
    axes = table.lengths[:, None] if table.axes is None else table.axes
    charged = round_up(axes.astype(np.int64), pad_to_multiple)
    for code, each in enumerate(described):
        factors = np.ones(axes.shape[1], np.int64)
        for number, name in enumerate(each["axes"]):
            factors[number] = next((costs[path] for path in _above(name) if path in costs), 1)
        charged[table.groups == code] *= factors
    totals = charged.sum(axis=1)
    if (totals > LONGEST).any():
        raise OptionError(
            f"by axis_costs sample {table.ids[int(totals.argmax())]!r} costs {totals.max()}, and at most {LONGEST} "
            "is possible"
        )
    return LengthCache(
        table.ids,
        totals.astype(np.int32),
        groups=table.groups,
        group_names=table.group_names,
        axes=None if table.axes is None else charged.astype(np.int32),
        dataset_hash=table.dataset_hash,
        source={**table.source, "axis_costs": dict(costs)},
    )


def _above(name: str) -> list[str]:
    """Return an axis and the paths above it, the longest path first."""
    keys = name.split("/")
    return [name] if name == ROOT else ["/".join(keys[:end]) for end in range(len(keys), 0, -1)]


def _distinct_names(structures: Sequence[Structure]) -> list[str]:
    names = [structure.name for structure in structures]
    return [
        name if names.count(name) == 1 else f"{name} #{structure.mark}"
        for name, structure in zip(names, structures, strict=True)
    ]
