"""NPZ files without pickle: what is written is what NumPy writes, and whatever is not plain and whole is refused."""

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from brim.core import npz
from brim.core.npz import NotPlainError, NpzArchive, NpzError, npz_bytes

KINDS = ["|u1", "|b1", "<i2", "<i8", "<f4", "<f8", "<c16", "<U3"]


def archive_of(members, method=zipfile.ZIP_STORED):
    """The bytes of an archive with these members as they are."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def npy(array):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array)
    return buffer.getvalue()


def refused(data, kind=NpzError, words=None, **options):
    for read in (NpzArchive.__getitem__, NpzArchive.outline):
        with pytest.raises(kind, match=words) as raised, NpzArchive(io.BytesIO(data), **options) as archive:
            read(archive, "x")
        assert type(raised.value) is kind


@given(arrays(st.sampled_from(KINDS), array_shapes(min_dims=0, max_dims=20, min_side=0, max_side=2)))
def test_a_member_has_the_bytes_that_numpy_writes(array):
    with zipfile.ZipFile(io.BytesIO(npz_bytes({"x": array}))) as archive:
        assert archive.read("x.npy") == npy(array)


@given(
    arrays(st.sampled_from([*KINDS, ">f8", ">i4"]), array_shapes(min_dims=0, max_dims=4, min_side=0)),
    st.booleans(),
    st.booleans(),
)
def test_what_numpy_writes_is_read(array, compressed, by_columns):
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(
        buffer, **{"a/x": np.asarray(array, order="F" if by_columns else "C")}
    )
    with NpzArchive(buffer) as archive:
        assert list(archive) == ["a/x"]
        read, outline = archive["a/x"], archive.outline("a/x")
    assert np.array_equal(read, array, equal_nan=array.dtype.kind in "fc")
    assert read.dtype == array.dtype.newbyteorder("=")
    assert read.flags.c_contiguous
    assert read.flags.writeable
    assert outline.shape == array.shape


def test_objects_and_strangers_are_not_plain():
    refused(
        archive_of([("x.npy", npy(np.array([{}], object)))]),
        NotPlainError,
        "'x' holds Python objects, which are never loaded",
    )
    refused(
        archive_of([("x.npy", npy(np.zeros(2))), ("notes.txt", b"")]), NotPlainError, "'notes.txt' is not a plain array"
    )
    refused(archive_of([("x.npy", b"\x93NUMPY\x03\x00")]), NotPlainError, "'x' is not an array of numbers or text")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_array_that_comes_twice_is_refused():
    refused(archive_of([("x.npy", npy(np.zeros(2)))] * 2), NpzError, "holds 'x' twice")


@pytest.mark.parametrize("shape", [(1 << 19, 1 << 19), (1 << 62, 1 << 62), (-1,), (0, 1 << 62, 1 << 62), (-2, -1)])
def test_a_header_is_not_believed(shape):
    """Neither reading the array nor reading its outline asks the machine for what the header says."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i4", "fortran_order": False, "shape": shape})
    refused(archive_of([("x.npy", header.getvalue())]))


@pytest.mark.parametrize(
    "header", [b"(" * 2000, b"{'descr': '", b"\xff" * 9, b"{}", b"{'descr': 'no', 'fortran_order': False, 'shape': ()}"]
)
def test_a_header_that_is_no_literal_of_numpy_is_refused(header):
    start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
    refused(archive_of([("x.npy", start + header)]), words="'x' has no readable header")


@pytest.mark.slow
def test_a_bomb_is_refused_before_it_is_unpacked():
    """The header promises 8 bytes, and the archive holds a hundred megabytes of zeros in a hundred kilobytes."""
    bomb = archive_of([("x.npy", npy(np.zeros(1)) + bytes(100 << 20))], zipfile.ZIP_DEFLATED)
    assert len(bomb) < 1 << 20
    refused(bomb, words="'x' has 104857608 bytes, which is not the shape")
    refused(bomb, NotPlainError, "'x.npy' is not a plain array", stored=True)


def test_a_file_cut_off_anywhere_is_refused():
    whole = npz_bytes({"x": np.arange(9)})
    for size in range(len(whole)):
        refused(whole[:size], words="it is cut off or altered")


@given(
    st.sampled_from(["<i4", ">f8", "|u1", "<U3", "|O8", "<q8", "<i3", "<", "i4"]),
    st.sampled_from(["False", "True", "0"]),
    st.sampled_from(["()", "(3,)", "(3)", "(03,)", "(2, 3)", "(2, 3,)", "(2,3)", "(-1,)", "(,)", "(1, 2, 0)"]),
    st.sampled_from([" }\n", " }   \n", "}\n", " }", " }\n\n", " } \t\n"]),
)
def test_a_header_of_the_usual_form_is_read_as_numpy_reads_it(kind, by_columns, shape, end):
    words = f"{{'descr': '{kind}', 'fortran_order': {by_columns}, 'shape': {shape},{end}".encode()
    data = b"\x93NUMPY\x01\x00" + len(words).to_bytes(2, "little") + words
    try:
        usual = npz._usual_head(io.BytesIO(data))
    except TypeError:  # no such type
        with pytest.raises(ValueError, match="descr"):
            npz._any_head(io.BytesIO(data), "x")
        return
    if usual is not None:
        assert usual == npz._any_head(io.BytesIO(data), "x")


def test_what_is_written_here_has_headers_of_the_usual_form():
    for array in (np.zeros((3, 0, 2), "<f4"), np.array(7), np.array(["", "abc"])):
        assert npz._usual_head(io.BytesIO(npy(array))) is not None
