"""Arrays in files that are read slice by slice: mapped into memory, or streamed if compressed."""

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
    """An array in a file that is sliced like an array.

    Attributes:
        path: the file.
        shape: sizes of the dimensions.
        dtype: the element type in native byte order.
        read: returns the block at an index of slices as a new array.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[Index], np.ndarray]

    def __getitem__(self, index: Any) -> np.ndarray:
        """Read the block at an index of slices and integers; ``...`` is allowed at the end only.

        Raises:
            InputError: If an entry is no slice and no integer, or there are more entries than dims.
            IndexError: If an integer is out of range.
        """
        entries = index if isinstance(index, tuple) else (index,)
        if entries and entries[-1] is Ellipsis:
            entries = entries[:-1]
        has_wrong_entry = any(
            not isinstance(entry, (slice, int, np.integer)) or isinstance(entry, bool) for entry in entries
        )
        if len(entries) > len(self.shape) or has_wrong_entry:
            raise InputError(
                f"the index of an array in a file must be up to {many(len(self.shape), 'slice')} or integers, got {index!r}; "
                "read the complete array with array[...]"
            )
        picks: list[int | slice] = []
        spans: list[slice] = []
        for entry, size in zip((*entries, *[slice(None)] * len(self.shape)), self.shape):
            if isinstance(entry, slice):
                # A slice with negative step is read in ascending order and reversed afterwards.
                span = range(size)[entry]
                picks.append(slice(None, None, -1 if span.step < 0 else 1))
                span = (span[::-1] if span.step < 0 else span) if span else range(0)
            else:
                span = range(size)[int(entry) : int(entry) + 1 or None]
                picks.append(0)
            spans.append(slice(span.start, span.stop, span.step))
        return self.read(tuple(spans))[tuple(picks)]

    def sample(self) -> str:
        """Return the file's size in bytes and a checksum, as text that ranks compare.

        - Up to 64 MiB, the checksum covers all elements. The text is such as "a file of 208 bytes with the checksum
          0f3c2a11".
        - Of a larger array it covers a sample: up to 1024 neighbouring elements of three rows (the first, a middle
          and the last one). A row has all indices of the last dim and one index of each other dim. The text then has
          "the sample" instead of "the checksum".
        """
        size = f"a file of {many(self.path.stat().st_size, 'byte')}"
        if math.prod(self.shape) * self.dtype.itemsize <= SMALL_FILE:
            return f"{size} with the checksum {checksum(self[()]):08x}"
        number = 0
        for row in range(3):
            # One index for all dims but the last, of which up to SAMPLE elements are read.
            starts = [row * max(length - 1, 0) // 2 for length in self.shape]
            starts[-1:] = [min(start, max(self.shape[-1] - SAMPLE, 0)) for start in starts[-1:]]
            ends = [start + 1 for start in starts[:-1]] + [start + SAMPLE for start in starts[-1:]]
            number = zlib.crc32(self[tuple(map(slice, starts, ends))].tobytes(), number)
        return f"{size} with the sample {number:08x}"


def map_array(
    path: Path,
    shape: tuple[int, ...],
    dtype: np.dtype,
    offset: int,
    byte_count: int | None = None,
    fortran: bool = False,
) -> FileArray:
    """Return an array whose elements are read from a file when it is sliced.

    No element is read here. Each read maps the file into memory and returns a copy in C order and native byte order.
    It raises InputError if a boolean array has bytes other than 0 and 1.

    Args:
        path: the file; it must exist.
        shape: sizes of the dimensions.
        dtype: the element type in the file.
        offset: number of the first byte.
        byte_count: number of bytes of the array; None: all bytes from ``offset`` on.
        fortran: True if elements are in Fortran order.

    Raises:
        InputError: If shape, type and number of bytes do not fit each other, or elements are no numbers.
    """
    require_numbers(path, shape, dtype)
    count = math.prod(shape)
    require_size(path, shape, dtype, path.stat().st_size - offset if byte_count is None else byte_count)
    native = dtype.newbyteorder("=")

    def read(index: Index) -> np.ndarray:
        """Map the file, and return a copy of the block at an index of slices.

        Raise InputError if a boolean block has bytes other than 0 and 1.
        """
        if not count:
            return make_empty_block(index, native)
        order: Any = "F" if fortran else "C"
        data = np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order=order)
        return check_bools(path, np.array(data[index], dtype=native, order="C"))

    return FileArray(path, shape, native, read)


def make_empty_block(index: Index, dtype: np.dtype) -> np.ndarray:
    """Return an array of zeros in the shape that an index of slices selects."""
    return np.zeros([len(range(p.start, p.stop, p.step or 1)) for p in index], dtype)


def check_bools(path: Path, block: np.ndarray) -> np.ndarray:
    """Return a block as it is, after checking that booleans are stored as bytes 0 or 1.

    Blocks of other types are not checked.

    Args:
        path: the file, for the message.
        block: elements that were read from it.

    Raises:
        InputError: If a boolean block has another byte, which NumPy would accept.
    """
    if block.dtype == np.bool_ and block.view(np.uint8).max(initial=0) > 1:
        raise InputError(
            f"{str(path)!r} is damaged: truth values are 0 and 1, but it has {block.view(np.uint8).max()}"
        )
    return block


def require_size(path: Path, shape: tuple[int, ...], dtype: np.dtype, byte_count: int) -> None:
    """Raise InputError unless an array of this shape and type has exactly ``byte_count`` bytes.

    The message says whether the file is cut short or too long.

    Args:
        path: the file, for the message.
        shape: the shape in the file's header.
        dtype: the element type in the file's header.
        byte_count: the number of bytes in the file; negative if not even the header is complete.
    """
    needs = math.prod(shape) * dtype.itemsize
    if byte_count != needs:
        word = "cut short" if byte_count < needs else "too long"
        raise InputError(
            f"{str(path)!r} is {word}: shape {shape} of {dtype} needs {many(needs, 'byte')}, but "
            f"the file has {max(byte_count, 0):,}"
        )


def require_numbers(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Raise InputError unless a file of numbers can have this element type and shape.

    Elements must be bools, integers, floats (also bfloat16) or complex numbers. A shape has up to 32 sizes, all
    integers of at least 0, and its bytes must be addressable.

    Args:
        path: the file, for the message.
        shape: the shape in the file's header.
        dtype: the element type in the file's header.
    """
    if dtype.kind not in "biufc" and dtype.name != "bfloat16":
        raise InputError(f"{str(path)!r} holds elements of type {dtype}; save numbers")
    if not all(type(n) is int and n >= 0 for n in shape) or len(shape) > MOST_DIMS:
        raise InputError(f"{str(path)!r} is damaged: its header says shape {one_line(shape, 60)}")
    if math.prod(n for n in shape if n) * dtype.itemsize > sys.maxsize:
        raise InputError(
            f"{str(path)!r} is damaged: its header says shape {one_line(shape, 60)}, which no memory can hold"
        )


def stream_array(
    path: Path, shape: tuple[int, ...], dtype: np.dtype, compressed: int, open_stream: Callable[[], IO[bytes]]
) -> FileArray:
    """Return an array whose elements are read from compressed data when it is sliced.

    Nothing is read here. Each read decompresses the data row by row (a row is an entry of the first dim), and copies
    the wanted elements. So it needs memory for one row and for the result.

    Args:
        path: the file, for error messages.
        shape: sizes of the dimensions.
        dtype: the element type in the file.
        compressed: number of compressed bytes. A shape of more than 1032 times as many bytes is impossible, because
            the compression (deflate) cannot reach this factor.
        open_stream: opens the decompressed data at the first element; called once per read.

    Raises:
        InputError: If the shape is impossible. A read raises it if data are missing, follow the last element, or are
            damaged, or if a boolean array has bytes other than 0 and 1.
    """
    require_numbers(path, shape, dtype)
    if math.prod(shape) * dtype.itemsize > MOST_RATIO * compressed:
        raise InputError(
            f"{str(path)!r} is damaged: {many(compressed, 'compressed byte')} cannot hold shape {shape} of {dtype}"
        )
    native = dtype.newbyteorder("=")
    row_shape = shape[1:]
    row_bytes = math.prod(row_shape) * dtype.itemsize

    def read_rows(index: Index) -> np.ndarray:
        """Return the block at an index of slices, after decompressing all data.

        All data are read, so that the checksum at their end is compared. Raise InputError if data are damaged,
        missing, or follow the last element.
        """
        with readable(path, "compressed data"), open_stream() as stream:
            if not math.prod(shape):
                require_end(stream, path)
                return make_empty_block(index, native)
            if not shape:
                value = np.frombuffer(read_exactly(stream, row_bytes, path), dtype)[0].astype(native)
                require_end(stream, path)
                return check_bools(path, np.asarray(value))
            needed = [range(size)[span] for span, size in zip(index, shape)]
            out = np.empty([len(span) for span in needed], native)
            for row_number in range(shape[0]):
                data = read_exactly(stream, row_bytes, path)
                if row_number in needed[0]:
                    row = np.frombuffer(data, dtype).reshape(row_shape)
                    out[needed[0].index(row_number)] = row[index[1:]]
            require_end(stream, path)
            return check_bools(path, out)

    return FileArray(path, shape, native, read_rows)


def read_to_end(stream: IO[bytes]) -> int:
    """Read a stream to its end, which verifies its checksum; return the number of bytes read."""
    return sum(map(len, iter(lambda: stream.read(1 << 20), b"")))


def require_end(stream: IO[bytes], path: Path) -> None:
    """Raise InputError if a stream has further bytes."""
    if more := read_to_end(stream):
        raise InputError(
            f"{str(path)!r} is too long: {many(more, 'byte follows', 'bytes follow')} the data that its header describes"
        )


def read_exactly(stream: IO[bytes], count: int, path: Path) -> bytes:
    """Return the next ``count`` bytes of a stream; the stream is then after them.

    Args:
        stream: the stream.
        count: the number of bytes.
        path: the file, for the message.

    Raises:
        InputError: If the stream has fewer bytes.
    """
    data = stream.read(count)
    if len(data) != count:
        raise InputError(
            f"{str(path)!r} is cut short: the next part has {many(count, 'byte')} according to the header, but only {len(data):,} follow"
        )
    return data
