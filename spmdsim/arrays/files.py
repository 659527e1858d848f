"""Arrays in files, read slice by slice: each rank reads only the elements that it owns.

Formats: ``.npy``, ``.npz`` (one member, stored or compressed), ``.safetensors``, models in several of these with an
index (``model.safetensors.index.json``), MNIST's IDX files (plain or gzipped), and the bytes of any other file as
token ids. Uncompressed data is mapped into memory. Compressed data is read to its end, where the checksum is, and all
but the needed rows are dropped. Nothing is ever unpickled. The size in a header is compared with the size of the file
before memory is allocated; a file that is longer than its header says is as damaged as a shorter one.
"""

from __future__ import annotations

import gzip
import math
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from spmdsim.arrays.file_arrays import (
    FileArray,
    map_array,
    read_exactly,
    read_to_end,
    require_numbers,
    require_size,
    stream_array,
)
from spmdsim.errors import InputError, many, nearest
from spmdsim.layout.element_type import resolve_nameless, safetensors_dtype
from spmdsim.reading import MOST_CHARACTERS, literal, one_line, parse_json, readable, require_file

MOST_COMPARED = 1 << 30
"""Bytes up to which the checksum of an uncompressed member is compared: all of it is read for that."""
MOST_NAMED = 20
"""Arrays of a file that an error names; of more it says how many there are."""
MOST_HEADER = 100 << 20
"""Bytes of a header, as the safetensors format limits its own."""

INDEX = ".safetensors.index.json"
"""End of the file names of indices, which models in several files have."""

_PICKLED = "it is pickled, and nothing is ever unpickled; save it as .safetensors"
#: Files of models of other kinds, and what to do with them.
_FOREIGN = {
    **dict.fromkeys((".pt", ".pth", ".bin", ".pkl"), _PICKLED),
    ".distcp": "it is a part of PyTorch's distributed checkpoint; convert that, and save it as .safetensors",
    ".ckpt": "it is a checkpoint of another system; save it there as .npz or .safetensors",
    **dict.fromkeys((".h5", ".hdf5"), "open it with h5py, and give the data set, h5py.File(path)[name]"),
    ".gguf": "save the model as .safetensors",
}
_ANY_SOURCE = (
    "Tensor.from_global takes any array that can be read in parts, such as np.load(path, mmap_mode='r')"
)

_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def open_array(path: str | Path, name: str | None = None, dtype: Any = None) -> FileArray:
    """Open an array in a file without reading its elements.

    The suffix determines the format, in upper or lower case. A file with another suffix must be an IDX file.

    Args:
        path: the file; ``data.npz:weights`` or ``model.safetensors:layer.0`` names a member. For a model in several
            ``.safetensors`` files: its index ``model.safetensors.index.json``, or the folder that contains the index
            or a single file.
        name: the member, if it is not in the path; None: the only one. Not used for files of one array.
        dtype: ``"bfloat16"`` if NumPy saved elements of this type, which its files cannot name. It has no effect on
            other elements.

    Returns:
        An array that is sliced like a NumPy array; each slice reads its elements. If it is an uncompressed member of
        an ``.npz`` file, up to 1 GiB, it is read once here to compare its checksum.

    Raises:
        InputError: If the file is missing, damaged or of an unknown kind, has no member of this name, or has elements
            of an unnamed type; or if ``name`` is None and the file has several members.

    >>> import os, tempfile, numpy
    >>> path = os.path.join(tempfile.mkdtemp(), "x.npy")
    >>> numpy.save(path, numpy.arange(6.0).reshape(2, 3))
    >>> array = open_array(path)
    >>> array.shape, array[1, :2]
    ((2, 3), array([3., 4.]))
    """
    file, member = _split_member(Path(path), name)
    file = _find_model_file(file)
    _require_readable_kind(file)
    if file.name.endswith(INDEX):
        parts = _read_index(file)
        member = _pick_name(list(parts), member, file)
        file = parts[member]
        _require_readable_kind(file)
    kind = "".join(file.suffixes[-2:]).lower()
    with readable(file, kind or "an IDX file"):
        if kind.endswith(".npy"):
            return _open_npy(file, dtype)
        if kind.endswith(".npz"):
            return _open_npz(file, member, dtype)
        if kind.endswith(".safetensors"):
            arrays = _open_safetensors(file)
            return arrays[_pick_name(list(arrays), member, file)]
        return _open_idx(file)


def open_arrays(path: str | Path) -> dict[str, FileArray]:
    """Open all arrays of a file or of a model, by name, without reading their elements.

    The names are in the order of the file, or of the index. Members of an ``.npz`` file that are no ``.npy`` are left
    out.

    Args:
        path: a ``.npz`` or ``.safetensors`` file, a model's ``model.safetensors.index.json``, or a folder that
            contains one of these.

    Raises:
        InputError: If the file is missing, damaged or of another kind, or a file lacks an array that the index names.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/a.npz", w=np.ones((2, 3)), b=np.ones(3))
    ...     {name: array.shape for name, array in open_arrays(f"{folder}/a.npz").items()}
    {'w': (2, 3), 'b': (3,)}
    """
    file = _find_model_file(Path(path))
    _require_readable_kind(file)
    if file.name.endswith(INDEX):
        file_of_name = _read_index(file)
        arrays_of_file = {
            path_of_array: open_arrays(path_of_array)
            for path_of_array in dict.fromkeys(file_of_name.values())
        }
        for name, path_of_array in file_of_name.items():
            _pick_name(list(arrays_of_file[path_of_array]), name, path_of_array)
        return {name: arrays_of_file[path_of_array][name] for name, path_of_array in file_of_name.items()}
    with readable(file, "".join(file.suffixes[-2:]).lower()):
        if file.suffix.lower() == ".npz":
            with zipfile.ZipFile(file) as archive:
                names = [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
            return {name: open_array(file, name) for name in names}
        if file.suffix.lower() == ".safetensors":
            return _open_safetensors(file)
    raise InputError(
        f"{str(file)!r} is one array without a name; read it with open_array, or give a .npz, .safetensors or {INDEX} file"
    )


def _find_model_file(path: Path) -> Path:
    """Return the file to read for a path: the path itself, or the file of a model's folder.

    In a folder it is the only index (a file that ends with ``.safetensors.index.json``), or without an index the only
    ``.safetensors`` file. A path that is no folder is returned unchanged, existing or not.

    Raises:
        InputError: If a folder contains none or several of them.
    """
    if not path.is_dir():
        return path
    files = sorted(path.glob(f"*{INDEX}")) or sorted(path.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    names = f"{len(files)}, such as {files[0].name}" if files else "none"
    raise InputError(
        f"{str(path)!r} is a folder; give a file, or a folder with one {INDEX} or one .safetensors file: it has {names}"
    )


def _read_index(path: Path) -> dict[str, Path]:
    """Return a dict from the name of each array of a model to the path of its file.

    The files are in the folder of the index. It is not checked that they exist or have the arrays.

    Raises:
        InputError: If the index is damaged, has no names, or names a file in another folder or without
            ``.safetensors``.
    """
    with readable(path, INDEX):
        index = parse_json(path.read_bytes())
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(files, dict) or not files:
        raise InputError(
            f"{str(path)!r} is not an index of a model: it must have a weight_map from names of arrays to files"
        )
    for name, file in files.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise InputError(
                f"{str(path)!r} is damaged: the file of {one_line(name, 60)!r} must be a .safetensors file in the index's folder, got "
                f"{one_line(file, 60)!r}"
            )
    return {name: path.parent / file for name, file in files.items()}


def _require_readable_kind(file: Path) -> None:
    """Raise InputError if a file does not exist, or has the suffix of an unsupported format.

    The message says how to convert files of PyTorch, HDF5, GGUF and similar formats.
    """
    require_file(file)
    if file.suffix.lower() in _FOREIGN:
        raise InputError(f"{str(file)!r} cannot be read: {_FOREIGN[file.suffix.lower()]}; {_ANY_SOURCE}")


def open_tokens(path: str | Path) -> FileArray:
    """Open a file as an array of token ids ``0..255``, one per byte, without reading it.

    Args:
        path: any file that is not empty.

    Raises:
        InputError: If the file is missing or empty, or has the suffix of an unsupported model format, such as
            ``.pt``.

    >>> import os, tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "text")
    >>> path.write_text("abc")
    3
    >>> open_tokens(path)[0:3]
    array([97, 98, 99], dtype=uint8)
    """
    file = Path(path)
    _require_readable_kind(file)
    count = file.stat().st_size
    if not count:
        raise InputError(f"{str(file)!r} is empty; give a file with tokens")
    return map_array(file, (count,), np.dtype("u1"), 0)


def _split_member(path: Path, name: str | None) -> tuple[Path, str | None]:
    """Return the file of a path such as ``file.npz:member``, and the member's name.

    The path is split at its last colon if all of these hold; otherwise the result is ``(path, name)``:

    - ``name`` is None;
    - no file has the whole path as its name;
    - the part before the colon ends with ``.npz``, ``.safetensors`` or ``.safetensors.index.json``.

    >>> _split_member(Path("model.npz:w"), None)[1], _split_member(Path("model.npz"), None)[1]
    ('w', None)
    """
    text = str(path)
    if name is None and ":" in text and not path.exists():
        head, _, tail = text.rpartition(":")
        if head.endswith((".npz", ".safetensors", INDEX)):
            return Path(head), tail
    return path, name


# -- npy and npz ------------------------------------------------------------------------------------


def _read_npy_header(stream: IO[bytes], path: Path, wanted: Any) -> tuple[tuple[int, ...], np.dtype, bool]:
    """Read the header of a ``.npy`` file; the stream is then at the first element.

    Args:
        stream: the file, or a member of an archive, at its first byte.
        path: the file, for error messages.
        wanted: the element type from the user if the header cannot name it, such as bfloat16; else None.

    Returns:
        ``(shape, element type, True if elements are in Fortran order)``. The caller must check that the sizes are not
        negative, and that the elements are numbers.

    Raises:
        InputError: If the header is damaged, longer than ``MOST_CHARACTERS``, or names Python objects or elements
            with fields; or if elements have two bytes without a type, and ``wanted`` is not bfloat16.
    """
    magic = stream.read(8)
    if magic[:6] != b"\x93NUMPY" or magic[6:] not in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        raise InputError(
            f"{str(path)!r} is not a .npy file: it does not begin with NumPy's signature and a version from 1 to 3"
        )
    size = 2 if magic[6] == 1 else 4
    length = int.from_bytes(read_exactly(stream, size, path), "little")
    if length > MOST_CHARACTERS:
        raise InputError(
            f"{str(path)!r} is damaged: its header would have {many(length, 'byte')}, more than {MOST_CHARACTERS:,}"
        )
    header = literal(read_exactly(stream, length, path).decode("utf-8" if magic[6] == 3 else "latin1"))
    if set(header) != {"descr", "fortran_order", "shape"} or type(header["fortran_order"]) is not bool:
        raise InputError(
            f"{str(path)!r} is damaged: its header must have descr, fortran_order and shape, got {one_line(header, 60)}"
        )
    if not isinstance(header["descr"], str):
        raise InputError(
            f"{str(path)!r} holds elements of type {one_line(header['descr'], 60)}; save numbers"
        )
    dtype = np.dtype(header["descr"])
    if dtype.hasobject:
        raise InputError(f"{str(path)!r} holds Python objects, which are never unpickled; save numbers")
    dtype = resolve_nameless(dtype, wanted, f"{str(path)!r} holds")
    if type(header["shape"]) is not tuple:
        raise InputError(f"{str(path)!r} is damaged: its header says shape {one_line(header['shape'], 60)}")
    return header["shape"], dtype, header["fortran_order"]


def _open_npy(path: Path, wanted: Any) -> FileArray:
    """Open a ``.npy`` file; its elements are mapped into memory when they are read.

    Args:
        path: the file.
        wanted: the element type from the user if the header cannot name it, or None.
    """
    with path.open("rb") as stream:
        shape, dtype, fortran = _read_npy_header(stream, path, wanted)
        offset = stream.tell()
    return map_array(path, shape, dtype, offset, fortran=fortran)


def _open_npz(path: Path, member: str | None, wanted: Any) -> FileArray:
    """Open a member of a ``.npz`` file.

    - A member that is not compressed is mapped into memory. Up to 1 GiB it is read once here, to compare its checksum.
    - A compressed member is not read here. Each later read decompresses all of it.

    Args:
        path: the file.
        member: the name of the member, without ".npy"; None: the only one.
        wanted: the element type from the user if the header cannot name it, or None.

    Raises:
        InputError: If the member is missing or damaged, two members have one name, elements are no numbers, or the
            compression is not supported.
        zipfile.BadZipFile: If the archive is damaged; the caller converts it.
    """
    with zipfile.ZipFile(path) as archive:
        names = [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
        chosen = _pick_name(names, member, path)
        info = archive.getinfo(f"{chosen}.npy")
        with archive.open(info) as stream:
            shape, dtype, fortran = _read_npy_header(stream, path, wanted)
            start = stream.tell()
            if info.compress_type == zipfile.ZIP_STORED and info.file_size <= MOST_COMPARED:
                read_to_end(stream)
    if len(set(names)) < len(names):
        raise InputError(f"{str(path)!r} is damaged: two of its arrays have the same name")
    require_numbers(path, shape, dtype)
    require_size(path, shape, dtype, info.file_size - start)
    if info.compress_type == zipfile.ZIP_STORED:
        return map_array(
            path, shape, dtype, _find_data_offset(path, info) + start, info.file_size - start, fortran
        )
    if info.compress_type != zipfile.ZIP_DEFLATED:
        raise InputError(
            f"{str(path)!r} is compressed by another method than numpy's; save it with np.savez_compressed"
        )
    return _stream_member(path, info, start, shape, dtype, fortran)


def _stream_member(
    path: Path, info: zipfile.ZipInfo, start: int, shape: tuple[int, ...], dtype: np.dtype, fortran: bool
) -> FileArray:
    """Return the array in a compressed member of a ``.npz`` file; each read decompresses all of it.

    Args:
        path: the file.
        info: the entry of the member in the archive's directory.
        start: number of bytes of the array's header, which comes before the elements in the decompressed member.
        shape: the shape in the header.
        dtype: the element type in the header.
        fortran: True if elements are in Fortran order.

    Raises:
        InputError: If the compressed bytes are too few for the shape.
    """

    def open_member() -> IO[bytes]:
        """Open the decompressed member at its first element."""
        stream = zipfile.ZipFile(path).open(info)  # noqa: SIM115
        stream.read(start)
        return stream

    if not fortran:
        return stream_array(path, shape, dtype, info.compress_size, open_member)
    # Fortran order is the C order of the transposed array.
    transposed = stream_array(path, shape[::-1], dtype, info.compress_size, open_member)
    return FileArray(
        path, shape, transposed.dtype, lambda index: np.ascontiguousarray(transposed.read(index[::-1]).T)
    )


def _find_data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Return the offset in a zip archive at which the data of an uncompressed member start.

    The data follow the member's local header, name and extra field. Their lengths are read from the local header,
    because those in the archive's directory may differ.
    """
    # A local header has 30 bytes, of which the last four are both lengths.
    with path.open("rb") as stream:
        stream.seek(info.header_offset + 26)
        name_length, extra_length = struct.unpack("<HH", stream.read(4))
    return info.header_offset + 30 + int(name_length) + int(extra_length)


def _pick_name(names: Sequence[str], member: str | None, path: Path) -> str:
    """Return ``member`` if a file has a member of this name; None: return the only name.

    Args:
        names: names of the members.
        member: the name that the user wants.
        path: the file, for the message. The message lists all names, or if there are more than ``MOST_NAMED`` (20)
            their number and the most similar name.

    Raises:
        InputError: If the member does not exist, or if it is None and there is not exactly one.
    """
    if member is None and len(names) == 1:
        return names[0]
    if member not in names:
        what = (
            "the name of an array must be given for" if member is None else f"there is no array {member!r} in"
        )
        listing = ", ".join(sorted(names))
        if len(names) > MOST_NAMED:
            near = nearest(member or "", names)
            listing = (
                f"{len(names)} arrays{f', the nearest {near!r}' if near else ''} (open_arrays lists them)"
            )
        raise InputError(f"{what} {str(path)!r}, which has {listing}; write {path}:NAME")
    return str(member)


# -- safetensors and IDX ----------------------------------------------------------------------------


def _open_safetensors(path: Path) -> dict[str, FileArray]:
    """Return the arrays of a ``.safetensors`` file by name, in the order of the header.

    Only the header is read. Its ``__metadata__`` is left out.

    Args:
        path: the file.

    Raises:
        InputError: If the header is damaged or longer than 100 MiB, a type is unknown, or the arrays do not fill the
            file.
    """
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", read_exactly(stream, 8, path))
        data_size = path.stat().st_size - 8 - length
        if data_size < 0 or length > MOST_HEADER:
            raise InputError(
                f"{str(path)!r} is not a .safetensors file: its header would have {many(length, 'byte')}"
            )
        header = parse_json(stream.read(length))
    if not isinstance(header, dict):
        raise InputError(
            f"{str(path)!r} is not a .safetensors file: its header must be a table of names, got {type(header).__name__}"
        )
    header.pop("__metadata__", None)
    entries = {name: _parse_safetensors_entry(name, entry, path) for name, entry in header.items()}
    _require_no_gaps(entries, data_size, path)
    return {
        name: map_array(path, shape, dtype, 8 + length + start, stop - start)
        for name, (shape, dtype, start, stop) in entries.items()
    }


_Entry = tuple[tuple[int, ...], np.dtype, int, int]


def _parse_safetensors_entry(name: str, entry: Any, path: Path) -> _Entry:
    """Return shape, element type, first byte and end byte of an array.

    Bytes are counted from the end of the header. The end byte is the one after the last; it is not compared with the
    size of the file. For example, an F32 array of shape [2, 3] with the offsets [8, 32] gives
    ``((2, 3), float32, 8, 32)``.

    Args:
        name: the array's name, for error messages.
        entry: its entry in the header: a dict with ``shape``, ``dtype`` and ``data_offsets`` (first and end byte).
        path: the file, for error messages.

    Raises:
        InputError: If the number of bytes does not fit shape and type, the type is unknown, or the entry has values of
            other kinds.
        KeyError, TypeError: If a value is missing or no list; :func:`open_array` and :func:`open_arrays` convert them.
    """
    shape, offsets = tuple(entry["shape"]), entry["data_offsets"]
    dtype = safetensors_dtype(entry["dtype"], path)
    require_numbers(path, shape, dtype)
    has_two_offsets = len(offsets) == 2 and all(type(n) is int and n >= 0 for n in offsets)  # No bools.
    fits_shape = has_two_offsets and offsets[1] - offsets[0] == math.prod(shape) * dtype.itemsize
    if not fits_shape or not isinstance(entry["shape"], list):
        raise InputError(
            f"{str(path)!r} is damaged: {one_line(name, 60)!r} of shape {one_line(shape, 60)} and type {entry['dtype']} "
            f"cannot lie in bytes {one_line(offsets, 60)}"
        )
    return shape, dtype, offsets[0], offsets[1]


def _require_no_gaps(entries: Mapping[str, _Entry], byte_count: int, path: Path) -> None:
    """Raise InputError unless the arrays fill the data of the file, each byte once.

    The arrays may be in any order. The message names the first array that overlaps another one or follows a gap. For
    example, arrays at bytes 0 to 8 and 12 to 20 (ends excluded) leave a gap. If the arrays end before or after the data,
    the message says that the file is too long or cut short.

    Args:
        entries: the result of :func:`_parse_safetensors_entry` for each array.
        byte_count: number of bytes in the data part.
        path: the file, for error messages.
    """
    covered = 0
    for start, stop, name in sorted((start, stop, name) for name, (_, _, start, stop) in entries.items()):
        if start != covered:
            what = (
                "overlaps another one"
                if start < covered
                else f"leaves bytes {covered} to {start} without a tensor"
            )
            raise InputError(f"{str(path)!r} is damaged: {one_line(name, 60)!r} {what}")
        covered = stop
    if covered != byte_count:
        word = "cut short" if byte_count < covered else "too long"
        raise InputError(
            f"{str(path)!r} is {word}: its tensors need {many(covered, 'byte')}, but the file has {byte_count:,}"
        )


def _open_idx(path: Path) -> FileArray:
    """Open an IDX file, which is MNIST's format, plain or gzipped.

    The file begins with four bytes: two zeros, the code of the element type and the number of dims. Then come the sizes
    of the dims and the elements. If the file's name ends with ``.gz``, each read decompresses all of it.

    Args:
        path: the file.

    Raises:
        InputError: If it does not begin like an IDX file, or is cut short. For a compressed file a read raises it if
            data are missing.
    """
    compressed = path.suffix == ".gz"

    def opener() -> IO[bytes]:
        """Open the decompressed file at its first byte."""
        return gzip.open(path) if compressed else path.open("rb")  # type: ignore[return-value]

    with opener() as stream:
        head = stream.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _IDX_TYPES:
            raise InputError(
                f"{str(path)!r} must be a .npy, .npz, .safetensors or IDX file, got one that begins with {head!r}"
            )
        shape = struct.unpack(f">{head[3]}I", read_exactly(stream, 4 * head[3], path))
    dtype, offset = np.dtype(_IDX_TYPES[head[2]]), 4 + 4 * head[3]
    if not compressed:
        return map_array(path, shape, dtype, offset)

    def open_data() -> IO[bytes]:
        """Open the decompressed file at its first element."""
        stream = opener()
        stream.read(offset)
        return stream

    return stream_array(path, shape, dtype, path.stat().st_size, open_data)
