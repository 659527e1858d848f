"""Inputs of the main job: the user's files, data that the package ships, or small integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from spmdsim.arrays.file_arrays import FileArray, Index
from spmdsim.arrays.files import open_array, open_tokens
from spmdsim.arrays.random import normal_block
from spmdsim.errors import InputError, many
from spmdsim.layout.element_type import element_type

#: Default sizes: columns of a weight without a file, tokens, and width of the embedding.
DEFAULT_COLUMNS = 40
DEFAULT_TOKENS = 512
DEFAULT_WIDTH = 32
#: Maximum number of tokens: in some cases every rank owns a row per token, so a large text would not fit.
MOST_TOKENS = 2**18
VOCABULARY = 256


@dataclass(frozen=True)
class Source:
    """Array that is read block by block: ``read`` returns the block at an index."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[Index], np.ndarray]

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.read(index)

    def crop(self, shape: tuple[int, ...]) -> Source:
        """Return the source of a leading block: the first ``shape[d]`` elements of each dim d.

        Raises:
            InputError: If the source is smaller, or has another number of dims.
        """
        if len(shape) != len(self.shape) or any(n > m for n, m in zip(shape, self.shape)):
            raise InputError(
                f"{self.name} must contain a block of shape {shape}, but its shape is {self.shape}; take a smaller "
                "shape or a larger file"
            )
        return Source(self.name, shape, self.dtype, self.read)

    def astype(self, dtype: np.dtype) -> Source:
        """Return the values in another element type."""
        return Source(self.name, self.shape, dtype, lambda index: np.asarray(self.read(index), dtype))


def from_file(path: str, what: str, dtype: np.dtype | None = None) -> Source:
    """Return the array in a file as a matrix; dims after the first one are joined, as for images.

    Blocks are read from the file when they are used.

    Args:
        path: the file, in a format of :func:`open_array`.
        what: names the array in errors.
        dtype: the element type if the file cannot name it; None for the file's own.

    Raises:
        InputError: If the array has fewer than 2 dims, or the file cannot be read.
    """
    array = open_array(path, dtype=dtype)
    if len(array.shape) < 2:
        raise InputError(
            f"{what} must be an array of 2 or more dims, got shape {array.shape} in {path!r}; store it as a matrix"
        )
    if len(array.shape) == 2:
        return Source(Path(path).name, array.shape, array.dtype, array.read)
    width = math.prod(array.shape[1:])

    def read_block(index: Index) -> np.ndarray:
        rows, columns = index
        every_pixel = tuple(slice(0, n) for n in array.shape[1:])
        block = array.read((rows, *every_pixel))
        return block.reshape(len(block), width)[:, columns]

    return Source(Path(path).name, (array.shape[0], width), array.dtype, read_block)


def load_digits() -> Source:
    """Return the package's handwritten digits: 1797 images of 8 x 8 pixels, one row each.

    The numbers are float32 from 0 to 1. Blocks are read from a file of the package when they are used. The labels
    are in :func:`digit_records`.
    """
    records = digit_records()

    def read_block(index: Index) -> np.ndarray:
        return records.read(index).astype(np.float32) / np.float32(16)

    return Source("handwritten digits", (records.shape[0], 64), np.dtype(np.float32), read_block)


def digit_records() -> FileArray:
    """Return the digits' bytes ``[1797, 65]``: per image 64 pixels (0 to 16) and a label."""
    return open_array(Path(__file__).resolve().parent.parent / "documents" / "digits.npy")


def project_text() -> Path:
    """Return the path of the text that the package contains."""
    return Path(__file__).resolve().parent.parent / "documents" / "primer.md"


def _transpose(source: Source, columns: int) -> Source:
    """Return a source of a weight ``[k, columns]``: the first rows of a matrix, transposed."""

    def read_block(index: Index) -> np.ndarray:
        return np.ascontiguousarray(source.read((index[1], index[0])).T)

    name = f"first {many(columns, 'row')} of {source.name}, as columns"
    return Source(name, (source.shape[1], columns), source.dtype, read_block)


def _make_random_source(name: str, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> Source:
    """Return a source of random numbers that depend only on the seed and on the element's index.

    So each element has an equal value on every rank, in whatever block it is read. Floats are normally
    distributed; integer types get numbers from 0 to 9.

    Args:
        name: description of the source.
        shape: its shape.
        dtype: its element type.
        seed: the seed.
    """

    def read_block(index: Index) -> np.ndarray:
        if dtype.kind in "iu":
            small = np.floor(normal_block(index, shape, np.float32, seed) * 2 + 4).clip(0, 9)
            array: np.ndarray = small.astype(dtype)
            return array
        block = normal_block(index, shape, np.float64 if dtype.itemsize >= 8 else np.float32, seed)
        return block.astype(dtype)

    return Source(name, shape, dtype, read_block)


class Inputs:
    """Data of one run, opened on first use.

    Args:
        x: file of the left operand. None for digits, or for random numbers if ``shape`` is given without ``w``.
        w: file of the right operand. None for the first rows of x as columns, or for random numbers if ``shape`` is
            given without ``x``.
        text: file whose bytes are the token ids; None for the package's text.
        shape: ``(m, k, n)`` to which the operands are cropped.
        dtype: element type; by default that of the files, float32 for integers.
    """

    def __init__(
        self,
        x: str | None = None,
        w: str | None = None,
        text: str | None = None,
        shape: tuple[int, ...] | None = None,
        dtype: str | None = None,
    ) -> None:
        self._x, self._w, self._text, self._shape = x, w, text, shape
        self._dtype = None if dtype is None else parse_case_dtype(dtype)

    @cached_property
    def dtype(self) -> np.dtype:
        """The element type in which operators compute."""
        if self._dtype is not None:
            return self._dtype
        file_type = self._raw_x.dtype
        return file_type if file_type.kind in "fcV" else np.dtype(np.float32)

    @cached_property
    def _raw_x(self) -> Source:
        """The left operand before it is cropped and converted to the element type.

        1. The user's file, if there is one.
        2. Random numbers, if the user gave a shape and no file for the right operand.
        3. Otherwise the package's handwritten digits.
        """
        if self._x is not None:
            return from_file(self._x, "--x", self._dtype)
        if self._shape is not None and self._w is None:
            m, k, _ = self._shape
            return _make_random_source("random numbers", (m, k), self._dtype or np.dtype(np.float32), 1)
        return load_digits()

    @cached_property
    def x(self) -> Source:
        """The left operand ``[m, k]``."""
        raw = self._raw_x if self._shape is None else self._raw_x.crop(self._shape[:2])
        return raw.astype(self.dtype)

    @cached_property
    def w(self) -> Source:
        """The right operand ``[k, n]`` of the product.

        * If it has a file: the file.
        * Else, if there is a shape and x has no file either: random numbers.
        * Else: rows of x as columns, the first :data:`DEFAULT_COLUMNS` (40) or all if x has fewer.

        A shape crops it. Raises InputError if the inner sizes of x and w differ, or if it is smaller than the shape.
        """
        if self._w is not None:
            operand = from_file(self._w, "--w", self._dtype)
        elif self._shape is not None and self._x is None:
            operand = _make_random_source(
                "random numbers", self._shape[1:], self._dtype or np.dtype(np.float32), 2
            )
        else:
            operand = _transpose(self._raw_x, min(DEFAULT_COLUMNS, self._raw_x.shape[0]))
        operand = operand if self._shape is None else operand.crop(self._shape[1:])
        if operand.shape[0] != self.x.shape[1]:
            raise InputError(
                f"x has shape {self.x.shape} and w {operand.shape}: their inner sizes {self.x.shape[1]} and "
                f"{operand.shape[0]} must be equal"
            )
        return operand.astype(self.dtype)

    @cached_property
    def bias(self) -> Source:
        """The bias: one number per column of w."""
        return _make_random_source("random numbers", (self.w.shape[1],), self.dtype, 3)

    @cached_property
    def w2(self) -> Source:
        """The second weight of a chain, ``[n, k]``: it has as many columns as x."""
        return _make_random_source("random numbers", (self.w.shape[1], self.x.shape[1]), self.dtype, 4)

    @cached_property
    def ids(self) -> Source:
        """The token ids, as int32: each byte of a text is one id.

        They are the first 512 bytes (:data:`DEFAULT_TOKENS`) of the package's text, or the first 2**18 bytes
        (:data:`MOST_TOKENS`) of the user's file. A file with fewer bytes gives all of them.
        """
        path = self._text or str(project_text())
        tokens: FileArray = open_tokens(path)
        count = min(tokens.shape[0], DEFAULT_TOKENS if self._text is None else MOST_TOKENS)
        source = Source(Path(path).name, (count,), np.dtype(np.int32), tokens.read)
        return source.astype(np.dtype(np.int32))

    @property
    def text_note(self) -> str:
        """A note if a file's text is longer than the tokens in use, else an empty text."""
        if self._text is None or self.ids.shape[0] == (size := open_tokens(self._text).shape[0]):
            return ""
        return f"embedding looks up the first {self.ids.shape[0]:,} of the {size:,} bytes of {self.ids.name}"

    @cached_property
    def table(self) -> Source:
        """The embedding table: one row per byte value."""
        return _make_random_source("random numbers", (VOCABULARY, DEFAULT_WIDTH), self.dtype, 5)


def parse_case_dtype(name: str) -> np.dtype:
    """Return the element type of a name.

    Raises:
        InputError: If it is no type of numbers.
    """
    dtype = element_type(name)
    if dtype.kind not in "fciu" and dtype.name != "bfloat16":
        raise InputError(f"dtype must be a type of numbers, got {name!r}; take, for example, float32")
    return dtype


# ---------------------------------------------------------------- whole numbers


#: Nonzero numbers in a column of a weight: two successive sums of this number of terms of at most 2 are exact.
MOST = 1022
#: Like `MOST`, for floats of 16 bits: results up to 256, which bfloat16 can represent, and 32,512 after a second layer.
MOST_HALF = 126


def _whole_number_source(name: str, seed: int, most: int, sparse: bool = False) -> cached_property[Source]:
    """Return a cached property of :class:`ExactInputs`: a source of random integers.

    It has the shape of the source ``name`` of the original data. For the numbers see
    :meth:`ExactInputs._make_integer_source`.
    """

    def source(self: ExactInputs) -> Source:
        data: Source = getattr(self.data, name)
        return self._make_integer_source(data.shape, seed, most, sparse)

    return cached_property(source)


class ExactInputs(Inputs):
    """Inputs like others in shapes and types, but with small integers, whose sums are exact in any order.

    Rounding hides small faults: an element may be off by as much as a correct sum of such terms. So each case runs a
    second time on integers so small that every product, every partial sum and every result is exact in its type.
    Every strategy and every order then has the same result, and any difference is an error. No number is zero where a
    rank's addend would vanish with it, and neighbours differ. Integer types wrap around equally in every order, so
    any numbers are suitable for them.
    """

    def __init__(self, data: Inputs) -> None:
        super().__init__()
        self.data = data

    @cached_property
    def dtype(self) -> np.dtype:
        """The element type of the data."""
        return self.data.dtype

    #: Operands have +-1 and +-2, weights +-1; long columns of weights have zeros, so that sums stay exact.
    x = _whole_number_source("x", 11, 2)
    w = _whole_number_source("w", 12, 1, sparse=True)
    bias = _whole_number_source("bias", 13, 2)
    w2 = _whole_number_source("w2", 14, 1, sparse=True)
    table = _whole_number_source("table", 16, 2)

    @cached_property
    def ids(self) -> Source:
        """Random row numbers of the table (0 to 255), as many as the data has ids, in their type.

        A number depends only on its index and a fixed seed, so every rank reads equal numbers.
        """
        data = self.data.ids

        def read_block(index: Index) -> np.ndarray:
            large = np.abs(normal_block(index, data.shape, np.float64, 15)) * 1e6
            array: np.ndarray = large.astype(data.dtype) % VOCABULARY
            return array

        return Source("whole numbers", data.shape, data.dtype, read_block)

    def _make_integer_source(self, shape: tuple[int, ...], seed: int, most: int, sparse: bool) -> Source:
        """Return a source of integers that are 1 or ``most`` in absolute value, in the data's type.

        With ``most`` 2, for example, they are -2, -1, 1 and 2. Complex numbers have such integers in both parts.

        Args:
            shape: shape of the source.
            seed: seed of the numbers, which depend on it and their index alone.
            most: largest absolute value.
            sparse: True to set elements of long columns to zero, so that at most :data:`MOST` of them are summed
                (:data:`MOST_HALF` (126) in floats of 16 bits). Integer types get no zeros.
        """
        dtype, longest = self.dtype, MOST_HALF if self.dtype.itemsize <= 2 else MOST
        stride = -(-shape[0] // longest) if sparse and dtype.kind not in "iu" else 1

        def read_block(index: Index) -> np.ndarray:
            """Return the integers at an index."""
            block = _to_small_integers(normal_block(index, shape, np.float64, seed), most)
            if dtype.kind == "c":
                block = block + 1j * _to_small_integers(
                    normal_block(index, shape, np.float64, seed + 100), most
                )
            if stride > 1:  # keep every stride-th row of a column, and other rows in the next column
                rows, columns = (np.arange(s.start, s.stop) for s in index)
                block = np.where((rows[:, None] + columns) % stride == 0, block, 0)
            return block.astype(np.int64).astype(dtype) if dtype.kind in "iu" else block.astype(dtype)

        return Source("whole numbers", shape, dtype, read_block)


def _to_small_integers(normal: np.ndarray, most: int) -> np.ndarray:
    """Return +-1 or +-most for normal numbers: ``most`` where the absolute value is over 0.7."""
    size = np.where(np.abs(normal) > 0.7, most, 1)
    return np.where(normal < 0, -size, size)


def exact_block(block: Any, dtype: np.dtype) -> np.ndarray:
    """Return a block of a reference; compute it in a type in which it is exact, if necessary.

    Args:
        block: an array, which is returned as it is. Or ``(function, operands)``: the function is called with
            floats as float64, complex numbers as complex128, and integers in their own type.
        dtype: the element type to which a computed block is converted.
    """
    if not isinstance(block, tuple):
        return np.asarray(block)
    function, operands = block
    wide = [x.astype(_WIDE.get(x.dtype.kind, x.dtype)) for x in map(np.asarray, operands)]
    return np.asarray(function(*wide)).astype(dtype)


#: Wide type per kind of element type; bfloat16 has kind V.
_WIDE: dict[str, Any] = {"f": np.float64, "V": np.float64, "c": np.complex128}
