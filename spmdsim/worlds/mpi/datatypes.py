"""Element types and boxes as MPI sees them.

Moving data needs only the size of an element, so every type that numpy knows can be moved; arithmetic needs
the type itself, which only MPI's own reductions ask for.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from mpi4py import MPI

from spmdsim.core.step import Index
from spmdsim.redistribution.ways import way
from spmdsim.redistribution.ways.way import in_library

#: Elements MPI can count in one message (an int). A constant so that a test can make it small.
MAX_COUNT = way.MAX_COUNT

_WORDS = {
    1: MPI.UINT8_T,
    2: MPI.UINT16_T,
    4: MPI.UINT32_T,
    8: MPI.UINT64_T,
    16: MPI.C_DOUBLE_COMPLEX,
}


@lru_cache(maxsize=64)
def element(itemsize: int) -> MPI.Datatype:
    """The MPI type as which elements of this size are moved (bytes for unusual sizes).

    Given beside an array, it spares MPI the question of what the array's elements are: any can be moved.
    """
    return _WORDS.get(itemsize) or MPI.BYTE.Create_contiguous(itemsize).Commit()


def counted_parts(array: np.ndarray) -> list[np.ndarray]:
    """Views of at most :data:`MAX_COUNT` elements."""
    flat, most = array.reshape(-1), MAX_COUNT
    if 0 < flat.size <= most:
        return [flat]
    return [flat[start : start + most] for start in range(0, flat.size, most)]


_NATIVE = {"sum": MPI.SUM, "avg": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN}
_BOOLEAN = {"all": MPI.BAND, "min": MPI.BAND, "any": MPI.BOR, "max": MPI.BOR}


def native_op(op: str, dtype: np.dtype) -> MPI.Op | None:
    """MPI's own reduction, where it does the same as numpy's; None where ranks must reduce themselves."""
    if not in_library(op, dtype):
        return None
    return (_BOOLEAN if dtype.kind == "b" else _NATIVE)[op]


def number_view(array: np.ndarray) -> np.ndarray:
    """A C-contiguous array as a flat view that MPI can reduce (bools as bytes)."""
    flat = array.reshape(-1)
    return flat.view(np.uint8) if flat.dtype.kind == "b" else flat


def subarray(shape: tuple[int, ...], index: Index, itemsize: int) -> MPI.Datatype:
    """The MPI type of a box inside a C-contiguous array of this shape. To be freed."""
    starts = [part.start for part in index]
    sizes = [part.stop - part.start for part in index]
    return element(itemsize).Create_subarray(list(shape), sizes, starts, MPI.ORDER_C).Commit()
