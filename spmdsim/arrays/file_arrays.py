"""An array in a file that is read slice by slice: mapped into memory, or streamed where it is compressed."""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from spmdsim.arrays.sources import SMALL_FILE
from spmdsim.errors import InputError, many
from spmdsim.reading import one_line, readable
from spmdsim.worlds.checksums import checksum

Index = tuple[slice, ...]

MOST_DIMS = 32
"""Dims of an array: numpy 1 has no more."""
SAMPLE = 1 << 10
"""Elements of a row that are read of a file to compare it."""
MOST_RATIO = 1032
"""Largest ratio of decompressed to compressed bytes that deflate reaches."""


@dataclass(frozen=True)
class FileArray:
    """An array in a file, sliced like an array; ``read`` gives the block at an index, in native byte order."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[Index], np.ndarray]

    def __getitem__(self, index: Any) -> np.ndarray:
        """Read a block at slices and whole numbers, ``...`` only last. InputError for other indices, IndexError past the end."""
        parts = index if isinstance(index, tuple) else (index,)
        if parts and parts[-1] is Ellipsis:
            parts = parts[:-1]
        if len(parts) > len(self.shape) or not all(
            isinstance(part, (slice, int, np.integer)) and not isinstance(part, bool) for part in parts
        ):
            raise InputError(
                f"an array in a file is read at up to {many(len(self.shape), 'slice')} or whole numbers, not at {index!r}; "
                "array[...] is all of it in memory"
            )
        picks: list[int | slice] = []
        spans: list[slice] = []
        for part, size in zip((*parts, *[slice(None)] * len(self.shape)), self.shape):
            if isinstance(part, slice):
                span = range(size)[part]
                picks.append(slice(None, None, -1 if span.step < 0 else 1))
                span = (span[::-1] if span.step < 0 else span) if span else range(0)
            else:
                span = range(size)[int(part) : int(part) + 1 or None]
                picks.append(0)
            spans.append(slice(span.start, span.stop, span.step))
        return self.read(tuple(spans))[tuple(picks)]

    def sample(self) -> str:
        """Return the file's size and a checksum in words: of all elements, or of three rows of more than 64 MiB."""
        size = f"a file of {many(self.path.stat().st_size, 'byte')}"
        if math.prod(self.shape) * self.dtype.itemsize <= SMALL_FILE:
            return f"{size} with the checksum {checksum(self[()]):08x}"
        number = 0
        for part in range(3):
            # One index for all dims but the last, of which up to SAMPLE elements are read.
            starts = [part * max(size - 1, 0) // 2 for size in self.shape]
            starts[-1:] = [min(start, max(self.shape[-1] - SAMPLE, 0)) for start in starts[-1:]]
            ends = [start + 1 for start in starts[:-1]] + [start + SAMPLE for start in starts[-1:]]
            number = zlib.crc32(self[tuple(map(slice, starts, ends))].tobytes(), number)
        return f"{size} with the sample {number:08x}"


def mapped(
    path: Path,
    shape: tuple[int, ...],
    dtype: np.dtype,
    offset: int,
    have: int | None = None,
    fortran: bool = False,
) -> FileArray:
    """An array of ``have`` bytes in a file; all after ``offset`` if left out."""
    require_numbers(path, shape, dtype)
    count = math.prod(shape)
    require_size(path, shape, dtype, path.stat().st_size - offset if have is None else have)
    native = dtype.newbyteorder("=")

    def read(index: Index) -> np.ndarray:
        if not count:
            return nothing(index, native)
        order: Any = "F" if fortran else "C"
        data = np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order=order)
        return truths(path, np.array(data[index], dtype=native, order="C"))

    return FileArray(path, shape, native, read)


def nothing(index: Index, dtype: np.dtype) -> np.ndarray:
    """Return zeros for an index of an array without elements."""
    return np.zeros([len(range(p.start, p.stop, p.step or 1)) for p in index], dtype)


def truths(path: Path, block: np.ndarray) -> np.ndarray:
    """The block, unless its truth values are neither true nor false: numpy would compute with any byte."""
    if block.dtype == np.bool_ and block.view(np.uint8).max(initial=0) > 1:
        raise InputError(
            f"{str(path)!r} is damaged: truth values are 0 and 1, but it has {block.view(np.uint8).max()}"
        )
    return block


def require_size(path: Path, shape: tuple[int, ...], dtype: np.dtype, have: int) -> None:
    """As many bytes as an array needs, not one less or more."""
    needs = math.prod(shape) * dtype.itemsize
    if have != needs:
        word = "cut short" if have < needs else "too long"
        raise InputError(
            f"{str(path)!r} is {word}: shape {shape} of {dtype} needs {many(needs, 'byte')}, but "
            f"{many(max(have, 0), 'is', 'are')} there"
        )


def require_numbers(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Raise InputError if an array's header names a type or a shape that no file of numbers can have."""
    if dtype.kind not in "biufc" and dtype.name != "bfloat16":
        raise InputError(f"{str(path)!r} holds elements of type {dtype}; save numbers")
    if not all(type(n) is int and n >= 0 for n in shape) or len(shape) > MOST_DIMS:
        raise InputError(f"{str(path)!r} is damaged: its header says shape {one_line(shape, 60)}")
    if math.prod(n for n in shape if n) * dtype.itemsize > sys.maxsize:
        raise InputError(f"{str(path)!r} is damaged: no memory holds an array of shape {one_line(shape, 60)}")


def streamed(
    path: Path, shape: tuple[int, ...], dtype: np.dtype, compressed: int, open_stream: Callable[[], IO[bytes]]
) -> FileArray:
    """Rows of compressed data: read to the end, keep only the wanted rows and columns."""
    require_numbers(path, shape, dtype)
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
                require_end(stream, path)
                return nothing(index, native)
            if not shape:
                value = np.frombuffer(exactly(stream, row, path), dtype)[0].astype(native)
                require_end(stream, path)
                return truths(path, np.asarray(value))
            wanted = [range(size)[part] for part, size in zip(index, shape)]
            out = np.empty([len(span) for span in wanted], native)
            for place in range(shape[0]):
                data = exactly(stream, row, path)
                if place in wanted[0]:
                    out[wanted[0].index(place)] = np.frombuffer(data, dtype).reshape(row_shape)[index[1:]]
            require_end(stream, path)
            return truths(path, out)

    return FileArray(path, shape, native, read)


def drain(stream: IO[bytes]) -> int:
    """Bytes up to the end, which is where a checksum is compared."""
    return sum(map(len, iter(lambda: stream.read(1 << 20), b"")))


def require_end(stream: IO[bytes], path: Path) -> None:
    """Raise InputError if bytes follow."""
    if more := drain(stream):
        raise InputError(
            f"{str(path)!r} is too long: {many(more, 'byte follows', 'bytes follow')} the data that its header speaks of"
        )


def exactly(stream: IO[bytes], count: int, path: Path) -> bytes:
    """Read so many bytes; InputError if there are fewer."""
    data = stream.read(count)
    if len(data) != count:
        raise InputError(
            f"{str(path)!r} is cut short: {many(count, 'more byte was', 'more bytes were')} expected, {len(data)} came"
        )
    return data
