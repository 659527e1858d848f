"""Arrays in files, read slice by slice: each rank takes from a file only what it owns.

``.npy``, ``.npz`` (one member, stored or compressed), ``.safetensors`` and MNIST's IDX files (plain or
gzipped), and the bytes of any other file as token ids. Uncompressed data is mapped into memory; compressed
data is streamed to its end, where its checksum stands, and everything but the wanted rows dropped. Nothing is ever
unpickled. What a header says is compared with the size of the file before anything is allocated by it; a file that
is longer than its header says is as damaged as a shorter one.
"""

from __future__ import annotations

import gzip
import math
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from spmdsim.errors import InputError, many
from spmdsim.layout.element_type import named, safetensors_dtype
from spmdsim.reading import MOST_CHARACTERS, literal, one_line, parse_json, readable

Index = tuple[slice, ...]

MOST_DIMS = 32
"""Dims of an array: numpy 1 has no more."""
MOST_RATIO = 1032
"""What deflate compresses at most."""
MOST_COMPARED = 1 << 30
"""Bytes up to which the checksum of an uncompressed member is compared: all of it is read for that."""
MOST_HEADER = 100 << 20
"""Bytes of a header, as the safetensors format limits its own."""

_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


#: Elements of a row that are read of a file to compare it.
SAMPLE = 1 << 10


@dataclass(frozen=True)
class FileArray:
    """An array in a file, sliced like an array; ``read`` gives the block at an index, in native byte order."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[Index], np.ndarray]

    def __getitem__(self, index: Any) -> np.ndarray:
        parts = index if isinstance(index, tuple) else (index,)
        full = (*parts, *[slice(None)] * len(self.shape))
        return self.read(tuple(slice(*p.indices(n)) for p, n in zip(full, self.shape)))

    def sample(self) -> str:
        """Return the file's size and a checksum of the first rows, those in the middle and the last ones, in words."""
        number = 0
        for part in range(3):
            # One index for all dims but the last, of which up to SAMPLE elements are read.
            starts = [part * max(size - 1, 0) // 2 for size in self.shape]
            starts[-1:] = [min(start, max(self.shape[-1] - SAMPLE, 0)) for start in starts[-1:]]
            ends = [start + 1 for start in starts[:-1]] + [start + SAMPLE for start in starts[-1:]]
            number = zlib.crc32(self[tuple(map(slice, starts, ends))].tobytes(), number)
        return f"a file of {many(self.path.stat().st_size, 'byte')} with the sample {number:08x}"


def open_array(path: str | Path, name: str | None = None, dtype: Any = None) -> FileArray:
    """Open an array in a file without reading it.

    Args:
        path: the file; ``data.npz:weights`` or ``model.safetensors:layer.0`` names a member.
        name: the member, if not in the path.
        dtype: ``"bfloat16"`` where NumPy saved elements of that type, which its files cannot name; other elements are
            read in their own type whatever is said here.

    Raises:
        InputError: the file is missing, damaged or of an unknown kind, has no such member, or nameless elements.
    """
    file, member = _split_member(Path(path), name)
    _require_file(file)
    kind = "".join(file.suffixes[-2:]).lower()
    with readable(file, kind or "an IDX file"):
        if kind.endswith(".npy"):
            return _open_npy(file, dtype)
        if kind.endswith(".npz"):
            return _open_npz(file, member, dtype)
        if kind.endswith(".safetensors"):
            return _open_safetensors(file, member)
        return _open_idx(file)


def _require_file(file: Path) -> None:
    if file.is_dir():
        raise InputError(f"{str(file)!r} is a folder; give a file")
    if not file.exists():
        raise InputError(f"there is no file {str(file)!r}")
    if not file.is_file():
        raise InputError(f"{str(file)!r} is no ordinary file")


def open_tokens(path: str | Path) -> FileArray:
    """The bytes of a file as token ids ``0..255``, one dim; InputError if it is missing or empty."""
    file = Path(path)
    _require_file(file)
    count = file.stat().st_size
    if not count:
        raise InputError(f"{str(file)!r} is empty")
    return _mapped(file, (count,), np.dtype("u1"), 0)


def _split_member(path: Path, name: str | None) -> tuple[Path, str | None]:
    text = str(path)
    if name is None and ":" in text and not path.exists():
        head, _, tail = text.rpartition(":")
        if head.endswith((".npz", ".safetensors")):
            return Path(head), tail
    return path, name


def _mapped(
    path: Path,
    shape: tuple[int, ...],
    dtype: np.dtype,
    offset: int,
    have: int | None = None,
    fortran: bool = False,
) -> FileArray:
    """An array of ``have`` bytes in a file; all after ``offset`` if left out."""
    _require_numbers(path, shape, dtype)
    count = math.prod(shape)
    _require_size(path, shape, dtype, path.stat().st_size - offset if have is None else have)
    native = dtype.newbyteorder("=")

    def read(index: Index) -> np.ndarray:
        if not count:
            return _nothing(index, native)
        order: Any = "F" if fortran else "C"
        data = np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order=order)
        return _truths(path, np.array(data[index], dtype=native, order="C"))

    return FileArray(path, shape, native, read)


def _nothing(index: Index, dtype: np.dtype) -> np.ndarray:
    return np.zeros([len(range(p.start, p.stop)) for p in index], dtype)


def _truths(path: Path, block: np.ndarray) -> np.ndarray:
    """The block, unless its truth values are neither true nor false: numpy would compute with any byte."""
    if block.dtype == np.bool_ and block.view(np.uint8).max(initial=0) > 1:
        raise InputError(
            f"{str(path)!r} is damaged: truth values are 0 and 1, but it has {block.view(np.uint8).max()}"
        )
    return block


def _require_size(path: Path, shape: tuple[int, ...], dtype: np.dtype, have: int) -> None:
    """As many bytes as an array needs, not one less or more."""
    needs = math.prod(shape) * dtype.itemsize
    if have != needs:
        word = "cut short" if have < needs else "too long"
        raise InputError(
            f"{str(path)!r} is {word}: shape {shape} of {dtype} needs {many(needs, 'byte')}, but "
            f"{many(max(have, 0), 'is', 'are')} there"
        )


def _require_numbers(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """What a header says must be possible before anything is read by it."""
    if dtype.kind not in "biufc" and dtype.name != "bfloat16":
        raise InputError(f"{str(path)!r} holds elements of type {dtype}; save numbers")
    if not all(type(n) is int and n >= 0 for n in shape) or len(shape) > MOST_DIMS:
        raise InputError(f"{str(path)!r} is damaged: its header says shape {one_line(shape, 60)}")
    if math.prod(n for n in shape if n) * dtype.itemsize > sys.maxsize:
        raise InputError(f"{str(path)!r} is damaged: no memory holds an array of shape {one_line(shape, 60)}")


# -- npy and npz ------------------------------------------------------------------------------------


def _npy_header(stream: IO[bytes], path: Path, wanted: Any) -> tuple[tuple[int, ...], np.dtype, bool]:
    magic = stream.read(8)
    if magic[:6] != b"\x93NUMPY" or magic[6:] not in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        raise InputError(
            f"{str(path)!r} is not a .npy file: it does not begin with NumPy's mark and a version"
        )
    size = 2 if magic[6] == 1 else 4
    length = int.from_bytes(_exactly(stream, size, path), "little")
    if length > MOST_CHARACTERS:
        raise InputError(f"{str(path)!r} is damaged: its header would be {many(length, 'byte')}")
    header = literal(_exactly(stream, length, path).decode("utf-8" if magic[6] == 3 else "latin1"))
    if set(header) != {"descr", "fortran_order", "shape"} or type(header["fortran_order"]) is not bool:
        raise InputError(f"{str(path)!r} is damaged: its header is {one_line(header, 60)}")
    if not isinstance(header["descr"], str):
        raise InputError(
            f"{str(path)!r} holds elements of type {one_line(header['descr'], 60)}; save numbers"
        )
    dtype = np.dtype(header["descr"])
    if dtype.hasobject:
        raise InputError(f"{str(path)!r} holds Python objects, which are never unpickled; save numbers")
    dtype = named(dtype, wanted, f"{str(path)!r} holds")
    if type(header["shape"]) is not tuple:
        raise InputError(f"{str(path)!r} is damaged: its header says shape {one_line(header['shape'], 60)}")
    return header["shape"], dtype, header["fortran_order"]


def _open_npy(path: Path, wanted: Any) -> FileArray:
    with path.open("rb") as stream:
        shape, dtype, fortran = _npy_header(stream, path, wanted)
        offset = stream.tell()
    return _mapped(path, shape, dtype, offset, fortran=fortran)


def _open_npz(path: Path, member: str | None, wanted: Any) -> FileArray:
    with zipfile.ZipFile(path) as archive:
        names = [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
        chosen = _pick(names, member, path)
        info = archive.getinfo(f"{chosen}.npy")
        with archive.open(info) as stream:
            shape, dtype, fortran = _npy_header(stream, path, wanted)
            start = stream.tell()
            if info.compress_type == zipfile.ZIP_STORED and info.file_size <= MOST_COMPARED:
                _drain(stream)
    if len(set(names)) < len(names):
        raise InputError(f"{str(path)!r} is damaged: two of its arrays have the same name")
    _require_numbers(path, shape, dtype)
    _require_size(path, shape, dtype, info.file_size - start)
    if info.compress_type == zipfile.ZIP_STORED:
        return _mapped(path, shape, dtype, _data_offset(path, info) + start, info.file_size - start, fortran)
    if info.compress_type != zipfile.ZIP_DEFLATED:
        raise InputError(
            f"{str(path)!r} is compressed in a way that numpy does not use; save it with savez_compressed"
        )

    def open_member() -> IO[bytes]:
        stream = zipfile.ZipFile(path).open(info)  # noqa: SIM115
        stream.read(start)
        return stream

    if not fortran:
        return _streamed(path, shape, dtype, info.compress_size, open_member)
    # Fortran order is the C order of the transposed array.
    turned = _streamed(path, shape[::-1], dtype, info.compress_size, open_member)
    return FileArray(
        path, shape, turned.dtype, lambda index: np.ascontiguousarray(turned.read(index[::-1]).T)
    )


def _data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Where a stored member's bytes begin: its local header has its own name and extra lengths."""
    with path.open("rb") as stream:
        stream.seek(info.header_offset + 26)
        name, extra = struct.unpack("<HH", stream.read(4))
    return info.header_offset + 30 + int(name) + int(extra)


def _streamed(
    path: Path, shape: tuple[int, ...], dtype: np.dtype, compressed: int, open_stream: Callable[[], IO[bytes]]
) -> FileArray:
    """Rows of compressed data: read to the end, keep only the wanted rows and columns."""
    _require_numbers(path, shape, dtype)
    if math.prod(shape) * dtype.itemsize > MOST_RATIO * compressed:
        raise InputError(
            f"{str(path)!r} is damaged: {many(compressed, 'compressed byte')} cannot hold shape {shape} of {dtype}"
        )
    native = dtype.newbyteorder("=")
    row_shape = shape[1:]
    row = math.prod(row_shape) * dtype.itemsize

    def read(index: Index) -> np.ndarray:
        with readable(path, "compressed data"), open_stream() as stream:
            if not math.prod(shape):
                _require_end(stream, path)
                return _nothing(index, native)
            if not shape:
                value = np.frombuffer(_exactly(stream, row, path), dtype)[0].astype(native)
                _require_end(stream, path)
                return _truths(path, np.asarray(value))
            first, rest = index[0], index[1:]
            wanted = [len(range(p.start, p.stop)) for p in index]
            out = np.empty(wanted, native)
            for _ in range(first.start):
                _exactly(stream, row, path)
            for k in range(wanted[0]):
                out[k] = np.frombuffer(_exactly(stream, row, path), dtype).reshape(row_shape)[rest]
            for _ in range(first.start + wanted[0], shape[0]):
                _exactly(stream, row, path)
            _require_end(stream, path)
            return _truths(path, out)

    return FileArray(path, shape, native, read)


def _drain(stream: IO[bytes]) -> int:
    """Bytes up to the end, which is where a checksum is compared."""
    return sum(map(len, iter(lambda: stream.read(1 << 20), b"")))


def _require_end(stream: IO[bytes], path: Path) -> None:
    if more := _drain(stream):
        raise InputError(
            f"{str(path)!r} is too long: {many(more, 'byte follows', 'bytes follow')} the data that its header speaks of"
        )


def _exactly(stream: IO[bytes], count: int, path: Path) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise InputError(
            f"{str(path)!r} is cut short: {many(count, 'more byte was', 'more bytes were')} expected, {len(data)} came"
        )
    return data


def _pick(names: Sequence[str], member: str | None, path: Path) -> str:
    if member is None and len(names) == 1:
        return names[0]
    if member not in names:
        what = "say which array is meant of" if member is None else f"there is no array {member!r} in"
        raise InputError(f"{what} {str(path)!r}, which has {', '.join(sorted(names))}; write {path}:NAME")
    return str(member)


# -- safetensors and IDX ----------------------------------------------------------------------------


def _open_safetensors(path: Path, member: str | None) -> FileArray:
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", _exactly(stream, 8, path))
        have = path.stat().st_size - 8 - length
        if have < 0 or length > MOST_HEADER:
            raise InputError(
                f"{str(path)!r} is not a .safetensors file: its header would be {many(length, 'byte')}"
            )
        header = parse_json(stream.read(length))
    if not isinstance(header, dict):
        raise InputError(f"{str(path)!r} is not a .safetensors file: its header is a {type(header).__name__}")
    header.pop("__metadata__", None)
    entries = {name: _safetensors_entry(name, entry, path) for name, entry in header.items()}
    _require_no_gaps(entries, have, path)
    shape, dtype, start, stop = entries[_pick(list(entries), member, path)]
    return _mapped(path, shape, dtype, 8 + length + start, stop - start)


_Entry = tuple[tuple[int, ...], np.dtype, int, int]


def _safetensors_entry(name: str, entry: Any, path: Path) -> _Entry:
    """Shape, type, and first and last byte of a tensor, which must fit one another."""
    shape, offsets = tuple(entry["shape"]), entry["data_offsets"]
    dtype = safetensors_dtype(entry["dtype"], path)
    _require_numbers(path, shape, dtype)
    whole = len(offsets) == 2 and all(type(n) is int and n >= 0 for n in offsets)
    if (
        not isinstance(entry["shape"], list)
        or not whole
        or offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize
    ):
        raise InputError(
            f"{str(path)!r} is damaged: {one_line(name, 60)!r} of shape {one_line(shape, 60)} and type {entry['dtype']} "
            f"cannot lie in bytes {one_line(offsets, 60)}"
        )
    return shape, dtype, offsets[0], offsets[1]


def _require_no_gaps(entries: Mapping[str, _Entry], have: int, path: Path) -> None:
    """The tensors fill the file, each byte once, as the format demands."""
    reached = 0
    for start, stop, name in sorted((start, stop, name) for name, (_, _, start, stop) in entries.items()):
        if start != reached:
            what = (
                "overlaps another one" if start < reached else f"leaves bytes {reached} to {start} to nobody"
            )
            raise InputError(f"{str(path)!r} is damaged: {one_line(name, 60)!r} {what}")
        reached = stop
    if reached != have:
        word = "cut short" if have < reached else "too long"
        raise InputError(
            f"{str(path)!r} is {word}: its tensors are {many(reached, 'byte')}, but {many(have, 'is', 'are')} there"
        )


def _open_idx(path: Path) -> FileArray:
    compressed = path.suffix == ".gz"

    def opener() -> IO[bytes]:
        return gzip.open(path) if compressed else path.open("rb")  # type: ignore[return-value]

    with opener() as stream:
        head = stream.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _IDX_TYPES:
            raise InputError(
                f"{str(path)!r} is neither .npy, .npz, .safetensors nor an IDX file (it begins with {head!r})"
            )
        shape = struct.unpack(f">{head[3]}I", _exactly(stream, 4 * head[3], path))
    dtype, offset = np.dtype(_IDX_TYPES[head[2]]), 4 + 4 * head[3]
    if not compressed:
        return _mapped(path, shape, dtype, offset)

    def open_data() -> IO[bytes]:
        stream = opener()
        stream.read(offset)
        return stream

    return _streamed(path, shape, dtype, path.stat().st_size, open_data)
