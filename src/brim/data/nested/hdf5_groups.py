"""HDF5 groups as nested values.

Groups are dicts; groups whose members are named exactly 0 .. n - 1 are lists; data sets are arrays, or numbers and text
if they have no axes. Attributes of a group are further keys of its dict, attributes of a list are refused, attributes
of data sets and of the root are not read.

The pitfall: an empty group can be an empty list or an empty dict, and does not say which. It is a list if any sample of
the file has a list at the same path (at any index of the lists around it), otherwise a dict. The whole file is scanned
for that (`lists_in`), so the order in which samples are read does not matter. Only names are scanned, no data.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from brim.core.arrays import natural, stand_in
from brim.core.errors import DataError
from brim.core.extras import need
from brim.data.nested.structure import ID, PINNED, ListPath, is_numbered

DEEPEST = 50
"""Upper limit of the depth of groups in groups. If it is exceeded, a link leads back up."""


def sample_names(group: Any, root: str) -> list[str]:
    """Return the names of the samples below a root, in natural order.

    Raises:
        DataError: A member of the root is not a group.
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
    """Return the contents of a group as a dict. `leaf` converts a data set at a path."""
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
    """Yield the paths of the lists in a sample that are not empty.

    Broken links are skipped here; reading the sample that has them reports them.
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
    """Return numbers in native byte order, or text and bytes as they are. Anything else is an error."""
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
    """Return the path of a name in a group. A name that is not UTF-8, which h5py returns as bytes, is an error."""
    if isinstance(name, bytes):
        raise DataError(f"{path or 'it'} has the name {name!r} in it, which is not UTF-8; rename it")
    return f"{path}/{name}" if path else name


def _follow(group: Any, name: str, path: str, **what: Any) -> Any:
    """Return a member of a group or, with options, the result of h5py's `Group.get`. A broken link is an error."""
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
