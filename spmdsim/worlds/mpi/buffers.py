"""Arguments in mpi4py's spelling: an array, or a list of a buffer, counts, displacements and a type; and reductions of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI

from spmdsim.errors import UsageTypeError, WorldError


@dataclass(frozen=True)
class Buffer:
    """A buffer argument, understood: the elements along the first dimension, and their MPI type, None for numpy's own.

    Elements of several bytes that numpy does not know as one (pairs, matrices) are rows of bytes. Counts and displacements
    per rank are there if they were given.
    """

    elements: np.ndarray
    datatype: MPI.Datatype | None
    counts: tuple[int, ...] | None
    displacements: tuple[int, ...] | None

    @property
    def count(self) -> int:
        """Number of elements."""
        return len(self.elements)

    def blocks(self, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Counts and displacements per rank; equal blocks if none were given."""
        if self.counts is None and self.count % size:
            raise WorldError(f"{self.count} elements are no whole number of blocks for {size} ranks")
        counts = (self.count // size,) * size if self.counts is None else self.counts
        if len(counts) != size:
            raise WorldError(f"{len(counts)} counts were given for {size} ranks")
        begins = self.displacements
        return counts, tuple(accumulate((0, *counts[:-1]))) if begins is None else begins


def buffer_of(spec: Any, vector: bool = False) -> Buffer:
    """Understand ``array``, ``[array, type]``, ``[array, count, type]``, ``[array, counts]``, ``[array, (counts,
    displacements), type]`` or ``[array, counts, displacements, type]``.

    In a ``vector`` call, a lone sequence of integers means counts per rank. UsageTypeError: something else, an array that is
    not contiguous, or an MPI type with gaps.
    """
    if not isinstance(spec, list | tuple):
        return Buffer(_elements(_array(spec), None, None), None, None, None)
    array, *rest = spec
    datatype = None
    if rest and isinstance(rest[-1], MPI.Datatype | str):
        last = rest.pop()
        datatype = MPI.Datatype.fromcode(last) if isinstance(last, str) else last
    count, counts, displacements = None, None, None
    if len(rest) == 2:
        counts, displacements = rest
    elif len(rest) == 1 and isinstance(rest[0], int | np.integer):
        count = int(rest[0])
    elif len(rest) == 1 and rest[0] is not None:
        counts = rest[0]
        if len(counts) == 2 and not isinstance(counts[0], int | np.integer):
            counts, displacements = counts
    if len(rest) > 2 or (counts is not None and not vector):
        raise UsageTypeError(f"a buffer is [array, count, type] here, but got {spec!r}")
    elements = _elements(_array(array), datatype, count)
    return Buffer(elements, datatype, _integers(counts), _integers(displacements))


def _integers(values: Sequence[Any] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(int(value) for value in values)


def _array(buffer: Any) -> np.ndarray:
    array = np.asarray(buffer)
    if not isinstance(buffer, np.ndarray) and not hasattr(buffer, "__buffer__"):
        try:
            memoryview(buffer)
        except TypeError:
            raise UsageTypeError(f"a {type(buffer).__name__} is no buffer; pass a numpy array") from None
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise UsageTypeError(f"a buffer must be contiguous, but got strides {array.strides} of {array.shape}")
    return array.reshape(-1, order="A")


def _elements(flat: np.ndarray, datatype: MPI.Datatype | None, count: int | None) -> np.ndarray:
    if datatype is not None:
        size = datatype.Get_size()
        lower, extent = datatype.Get_extent()
        if datatype.is_named and lower == 0:
            size = extent  # a pair such as DOUBLE_INT: the gap is only padding
        if (lower, extent) != (0, size):
            raise UsageTypeError(
                "an MPI type with gaps cannot be cut into elements here; pack the data first"
            )
        # What MPI takes the bytes for, whatever type the array has that they lie in; None for what numpy has no number of.
        kind = np.dtype(datatype.typestr) if datatype.is_predefined else None
        kind = kind if kind is not None and kind.kind in "biufc" else None
        if (kind is None and size != flat.dtype.itemsize) or (kind or flat.dtype) != flat.dtype:
            if flat.nbytes % size:
                raise UsageTypeError(f"{flat.nbytes} bytes are no whole number of elements of {size} bytes")
            flat = flat.view(np.uint8).reshape(-1, size) if kind is None else flat.view(kind)
    return flat if count is None else flat[:count]


_OPERATIONS = tuple((value, name) for name, value in vars(MPI).items() if type(value) is MPI.Op)

_UFUNCS = (
    *((MPI.SUM, np.add), (MPI.MAX, np.maximum), (MPI.MIN, np.minimum), (MPI.PROD, np.multiply)),
    *((MPI.BAND, np.bitwise_and), (MPI.BOR, np.bitwise_or), (MPI.BXOR, np.bitwise_xor)),
)


def operation_name(op: MPI.Op | None) -> str:
    """A reduction in words; of the user's own nothing is known."""
    if op is None:
        return ""
    known = next((name for value, name in _OPERATIONS if op == value), None)
    return known or f"an operation of the user's{'' if op.Is_commutative() else ', not commutative'}"


def type_name(array: np.ndarray) -> str:
    """An element type in words."""
    return array.dtype.name if array.ndim == 1 else f"elements of {array.shape[1]} bytes"


def function_of(op: MPI.Op, like: Buffer) -> Any:
    """The operation as a function of two arrays: numpy's where there is one, else MPI's own."""
    if like.elements.ndim == 1 and like.elements.dtype.kind in "iufc":
        for known, function in _UFUNCS:
            if op == known:
                return function
    datatype = like.datatype

    def combine(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        result = right.copy()
        if datatype is None:
            op.Reduce_local(np.ascontiguousarray(left), result)
        else:
            op.Reduce_local([left, len(left), datatype], [result, len(left), datatype])
        return result

    return combine
