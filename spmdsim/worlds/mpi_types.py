"""Element types and boxes as MPI sees them.

Moving data needs only the size of an element, so every type that numpy knows can be moved; arithmetic needs
the type itself, which only MPI's own reductions ask for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from mpi4py import MPI

from spmdsim.worlds.local_steps import Index
from spmdsim.worlds.reduce_ops import is_float, is_half

#: Elements MPI can count in one message (an int). A constant so that a test can make it small.
MAX_COUNT = 2**31 - 1

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


@lru_cache(maxsize=64)
def element(itemsize: int) -> tuple[np.dtype, MPI.Datatype]:
    """What elements of this size are viewed as to be moved, and its MPI type (bytes for unusual sizes)."""
    if itemsize in _WORDS:
        word = np.dtype(_WORDS[itemsize])
        return word, MPI.Datatype.fromcode(word.char)
    datatype = MPI.BYTE.Create_contiguous(itemsize)
    return np.dtype(np.uint8), datatype.Commit()


def words(array: np.ndarray) -> np.ndarray:
    """A C-contiguous array as a flat view that MPI can move."""
    word, _ = element(array.dtype.itemsize)
    return array.reshape(-1).view(word)


def counted_parts(array: np.ndarray) -> list[np.ndarray]:
    """Views of at most :data:`MAX_COUNT` elements."""
    flat, most = array.reshape(-1), MAX_COUNT
    return [words(flat[start : start + most]) for start in range(0, flat.size, most)]


def mover(dtype: np.dtype) -> Callable[[np.ndarray], np.ndarray]:
    """What makes a C-contiguous array of this type something MPI can move: nothing, for types it can see."""
    return _same if dtype.kind in "biufc" and dtype.itemsize <= 16 else words


def _same(array: np.ndarray) -> np.ndarray:
    return array


_NATIVE = {"sum": MPI.SUM, "avg": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN}
_BOOLEAN = {"all": MPI.BAND, "min": MPI.BAND, "any": MPI.BOR, "max": MPI.BOR}


def native_op(op: str, dtype: np.dtype) -> MPI.Op | None:
    """MPI's own reduction, where it does the same as numpy's; None where ranks must reduce themselves.

    Floats of 16 bits are accumulated in float32, which MPI does not do (nor knows bfloat16), and its MAX of a
    NaN depends on the order of the operands while numpy's is NaN. Sums of 8- and 16-bit integers wrap around in
    numpy, but saturate in Open MPI where its vector units add them, that is, depending on the length.
    """
    if dtype.kind == "b":
        return _BOOLEAN[op]
    if dtype.kind in "iu" and dtype.itemsize <= 2 and op in ("sum", "prod"):
        return None
    if is_half(dtype) or (is_float(dtype) and op in ("max", "min")):
        return None
    return _NATIVE[op]


def number_view(array: np.ndarray) -> np.ndarray:
    """A C-contiguous array as a flat view that MPI can reduce (bools as bytes)."""
    flat = array.reshape(-1)
    return flat.view(np.uint8) if flat.dtype.kind == "b" else flat


def subarray(shape: tuple[int, ...], index: Index, itemsize: int) -> MPI.Datatype:
    """The MPI type of a box inside a C-contiguous array of this shape. To be freed."""
    starts = [part.start for part in index]
    sizes = [part.stop - part.start for part in index]
    return element(itemsize)[1].Create_subarray(list(shape), sizes, starts, MPI.ORDER_C).Commit()


def flat_offset(shape: tuple[int, ...], index: Index) -> int | None:
    """Where a box begins in the flat array if it is contiguous there, else None.

    >>> flat_offset((4, 6), (slice(1, 3), slice(0, 6))), flat_offset((4, 6), (slice(0, 2), slice(0, 3)))
    (6, None)
    """
    stride, offset, whole = 1, 0, True
    for size, part in zip(reversed(shape), reversed(index)):
        length = part.stop - part.start
        if not whole and length != 1:
            return None
        whole = whole and length == size
        offset += part.start * stride
        stride *= size
    return offset
