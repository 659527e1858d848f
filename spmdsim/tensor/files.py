"""Arrays in files, read slice by slice: each rank takes from a file only what it owns.

``.npy``, ``.npz`` (one member, stored or compressed), ``.safetensors`` and MNIST's IDX files (plain or
gzipped), and the bytes of any other file as token ids. Uncompressed data is mapped into memory; compressed
data is streamed and everything but the wanted rows dropped. Nothing is ever unpickled.
"""

from __future__ import annotations

import ast
import gzip
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from spmdsim.errors import InputError
from spmdsim.tensor.element_types import named, safetensors_dtype

Index = tuple[slice, ...]

_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


@dataclass(frozen=True)
class FileArray:
    """An array in a file, sliced like an array.

    Attributes:
        path: the file.
        shape: global shape.
        dtype: element type, in native byte order.
        read: gives the block at an index.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[Index], np.ndarray]

    def __getitem__(self, index: Any) -> np.ndarray:
        parts = index if isinstance(index, tuple) else (index,)
        full = (*parts, *[slice(None)] * (len(self.shape) - len(parts)))
        return self.read(tuple(slice(*p.indices(n)) for p, n in zip(full, self.shape)))


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
    with _readable(file, kind or "an IDX file"):
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
    if not file.is_file():
        raise InputError(f"there is no file {str(file)!r}")


@contextmanager
def _readable(path: Path, kind: str) -> Iterator[None]:
    """Whatever a damaged file makes a reader say becomes one clear error."""
    try:
        yield
    except InputError:
        raise
    except (
        OSError, ValueError, KeyError, TypeError, SyntaxError, EOFError, struct.error, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        raise InputError(f"{str(path)!r} cannot be read as {kind}: {error}") from None


def open_tokens(path: str | Path) -> FileArray:
    """The bytes of a file as token ids ``0..255``, one dim.

    Raises:
        InputError: the file is missing or empty.
    """
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
    path: Path, shape: tuple[int, ...], dtype: np.dtype, offset: int, fortran: bool = False
) -> FileArray:
    _require_numbers(path, shape, dtype)
    count = math.prod(shape)
    have = path.stat().st_size - offset
    if have < count * dtype.itemsize:
        raise InputError(
            f"{str(path)!r} is cut short: shape {shape} of {dtype} needs {count * dtype.itemsize} bytes, but "
            f"{max(have, 0)} are there"
        )
    native = dtype.newbyteorder("=")

    def read(index: Index) -> np.ndarray:
        if not count:
            return np.zeros([len(range(p.start, p.stop)) for p in index], native)
        order: Any = "F" if fortran else "C"
        data = np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order=order)
        return np.array(data[index], dtype=native, order="C")

    return FileArray(path, shape, native, read)


def _require_numbers(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """What a header says must be possible before anything is read by it."""
    if dtype.kind not in "biufc" and dtype.name != "bfloat16":
        raise InputError(f"{str(path)!r} holds elements of type {dtype}; save numbers")
    if not all(isinstance(n, int) and n >= 0 for n in shape):
        raise InputError(f"{str(path)!r} is damaged: its header says shape {shape}")


# -- npy and npz ------------------------------------------------------------------------------------


def _npy_header(stream: IO[bytes], path: Path, wanted: Any) -> tuple[tuple[int, ...], np.dtype, bool]:
    magic = stream.read(8)
    if magic[:6] != b"\x93NUMPY":
        raise InputError(f"{str(path)!r} is not a .npy file: it does not begin with NumPy's mark")
    size = stream.read(2 if magic[6] == 1 else 4)
    length = int.from_bytes(size, "little")
    header = ast.literal_eval(stream.read(length).decode("latin1"))
    dtype = np.dtype(header["descr"])
    if dtype.hasobject:
        raise InputError(f"{str(path)!r} holds Python objects, which are never unpickled; save numbers")
    dtype = named(dtype, wanted, f"{str(path)!r} holds")
    return tuple(header["shape"]), dtype, bool(header["fortran_order"])


def _open_npy(path: Path, wanted: Any) -> FileArray:
    with path.open("rb") as stream:
        shape, dtype, fortran = _npy_header(stream, path, wanted)
        offset = stream.tell()
    return _mapped(path, shape, dtype, offset, fortran)


def _open_npz(path: Path, member: str | None, wanted: Any) -> FileArray:
    with zipfile.ZipFile(path) as archive:
        names = [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
        chosen = _pick(names, member, path)
        info = archive.getinfo(f"{chosen}.npy")
        with archive.open(info) as stream:
            shape, dtype, fortran = _npy_header(stream, path, wanted)
            start = stream.tell()
    if info.compress_type == zipfile.ZIP_STORED:
        return _mapped(path, shape, dtype, _data_offset(path, info) + start, fortran)

    def open_member() -> IO[bytes]:
        stream = zipfile.ZipFile(path).open(info)  # noqa: SIM115
        stream.read(start)
        return stream

    if not fortran:
        return _streamed(path, shape, dtype, open_member)
    # Fortran order is the C order of the transposed array.
    turned = _streamed(path, shape[::-1], dtype, open_member)
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
    path: Path, shape: tuple[int, ...], dtype: np.dtype, open_stream: Callable[[], IO[bytes]]
) -> FileArray:
    """Rows of compressed data: read on to the last wanted one, keep only the wanted columns."""
    _require_numbers(path, shape, dtype)
    native = dtype.newbyteorder("=")
    row_shape = shape[1:]
    row = int(np.prod(row_shape, dtype=np.int64)) * dtype.itemsize

    def read(index: Index) -> np.ndarray:
        with _readable(path, "compressed data"), open_stream() as stream:
            if not shape:
                return np.frombuffer(_exactly(stream, row, path), dtype)[0].astype(native)
            first, rest = index[0], index[1:]
            wanted = [len(range(p.start, p.stop)) for p in index]
            out = np.empty(wanted, native)
            for _ in range(first.start):
                _exactly(stream, row, path)
            for k in range(wanted[0]):
                out[k] = np.frombuffer(_exactly(stream, row, path), dtype).reshape(row_shape)[rest]
            if first.stop == shape[0]:
                stream.read(1)  # the end of the data is where its checksum is compared
            return out

    return FileArray(path, shape, native, read)


def _exactly(stream: IO[bytes], count: int, path: Path) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise InputError(f"{str(path)!r} is cut short: {count} more bytes were expected, {len(data)} came")
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
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > path.stat().st_size:
            raise InputError(f"{str(path)!r} is not a .safetensors file: its header would be {length} bytes")
        header = json.loads(stream.read(length))
    if not isinstance(header, dict):
        raise InputError(f"{str(path)!r} is not a .safetensors file: its header is a {type(header).__name__}")
    entry = header[_pick([n for n in header if n != "__metadata__"], member, path)]
    return _mapped(
        path,
        tuple(entry["shape"]),
        safetensors_dtype(entry["dtype"], path),
        8 + length + entry["data_offsets"][0],
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
        shape = struct.unpack(f">{head[3]}I", stream.read(4 * head[3]))
    dtype, offset = np.dtype(_IDX_TYPES[head[2]]), 4 + 4 * head[3]
    if not compressed:
        return _mapped(path, shape, dtype, offset)

    def open_data() -> IO[bytes]:
        stream = opener()
        stream.read(offset)
        return stream

    return _streamed(path, shape, dtype, open_data)
