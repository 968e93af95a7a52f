"""A group of HDF5 as a nested value.

Groups are dicts; groups whose members are named exactly 0 .. n - 1 are lists; data sets are arrays, or with no axes
numbers and text. Attributes of a group are more keys of its dict, attributes of a list have no place and are refused,
attributes of data sets and of the root are not read.

The one thing to get wrong: a group with nothing in it is a list of no items or a dict of no keys, and does not say
which. The file does: if any of its samples has a list at that place (whatever the place in the lists around it), it is
an empty list, otherwise an empty dict. The whole file is looked through for that (`lists_in`), so the order in which
samples are read does not matter; names are read, and no data.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from brim.core.arrays import natural, stand_in
from brim.core.errors import DataError
from brim.core.extras import need
from brim.data.nested.structure import ID, PINNED, ListPath, is_numbered

DEEPEST = 50
"""Groups in groups; deeper means that a link leads back up."""


def sample_names(group: Any, root: str) -> list[str]:
    """The names of the samples below a root, in natural order.

    Raises:
        DataError: Something there is not a group.
    """
    h5py = need("h5py", extra="hdf5", user="brim.data.nested.hdf5_groups")
    names = {name: f"/{_joined(root.strip('/'), name)}" for name in group}
    for name, path in names.items():
        if _follow(group, name, path, getclass=True) is not h5py.Group:
            raise DataError(
                f"{path} is not a group, and every group below {root} is a sample; name the group that holds the "
                f"samples: root='/{name}'"
            )
    return sorted(names, key=natural)


def members(group: Any, path: str, leaf: Any) -> dict[str, Any]:
    """The contents of a group as a dict; `leaf` makes something of a data set."""
    h5py = need("h5py", extra="hdf5", user="brim.data.nested.hdf5_groups")
    if path.count("/") >= DEEPEST:
        raise DataError(f"{path[:60]}.. has groups in groups without end; does a link lead back up?")
    found: dict[str, Any] = {}
    for name in group:
        inside = _joined(path, name)
        member = _follow(group, name, inside)
        found[name] = leaf(member, inside) if isinstance(member, h5py.Dataset) else members(member, inside, leaf)
    for name in group.attrs:
        if name in found:
            raise DataError(f"{path or 'the sample'} has both a member and an attribute {name!r}")
        if path and found and is_numbered(found):
            raise DataError(f"{path} is a list, and has an attribute {name!r}, for which a list has no place")
        found[name] = _plain(group.attrs[name], _joined(path, name))
    return found


def lists_in(group: Any, path: ListPath) -> Iterator[ListPath]:
    """Where in a sample there are lists that are not empty.

    A link that leads nowhere is for the reader of its own sample to report.
    """
    h5py = need("h5py", extra="hdf5", user="brim.data.nested.hdf5_groups")
    if len(path) > DEEPEST:
        raise DataError(f"{group.name[:60]}.. has groups in groups without end; does a link lead back up?")
    names = set(group)
    if listed := bool(path and names) and is_numbered(names):
        yield path
    for name in names:
        try:
            kind = _follow(group, name, _joined("", name), getclass=True)
        except DataError:
            continue
        if kind is h5py.Group:
            yield from lists_in(group[name], (*path, "" if listed else name))


def value_of(dataset: Any, path: str) -> Any:
    h5py = need("h5py", extra="hdf5", user="brim.data.nested.hdf5_groups")
    if dataset.shape is None:
        raise DataError(f"{path} is empty: it has no shape, and no number either")
    if dataset.shape == () and h5py.check_string_dtype(dataset.dtype) is not None:
        try:
            return dataset.asstr("utf-8")[()]
        except UnicodeDecodeError:
            raise DataError(f"{path} is text that is not UTF-8; save it as such, or as an array of uint8") from None
    return _plain(dataset[()], path)


def shape_of(dataset: Any, path: str) -> Any:
    if not dataset.shape or path in (ID, *PINNED):
        return value_of(dataset, path)
    return (
        stand_in(dataset.dtype, dataset.shape)
        if dataset.dtype.kind in "biufc"
        else _plain(np.empty(0, dataset.dtype), path)
    )


def _plain(value: Any, path: str) -> Any:
    """Numbers in the byte order of this machine, or text."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "biufc":
        raise DataError(
            f"{path} is {getattr(value, 'dtype', type(value).__name__)}, which cannot be batched; arrays hold numbers"
        )
    return value.astype(value.dtype.newbyteorder("="), copy=False)


def _joined(path: str, name: str | bytes) -> str:
    """The path of a name in a group. h5py gives names as bytes where they are not UTF-8."""
    if isinstance(name, bytes):
        raise DataError(f"{path or 'it'} has the name {name!r} in it, which is not UTF-8; rename it")
    return f"{path}/{name}" if path else name


def _follow(group: Any, name: str, path: str, **what: Any) -> Any:
    """A member of a group, or what `get` of h5py says of it."""
    h5py = need("h5py", extra="hdf5", user="brim.data.nested.hdf5_groups")
    try:
        return group.get(name, **what) if what else group[name]
    except (KeyError, OSError, RuntimeError):
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.HardLink):
            raise
        target = f"{link.filename}:{link.path}" if isinstance(link, h5py.ExternalLink) else link.path
        raise DataError(
            f"{path} is a link that leads nowhere: to {target!r}; remove it, or bring back what it leads to"
        ) from None
