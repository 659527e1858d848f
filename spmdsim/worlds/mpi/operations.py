"""Reductions and element types of an emulated communicator: what they are called, and how they are computed."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from spmdsim.worlds.mpi.buffers import Buffer

_OPERATIONS = tuple((value, name) for name, value in vars(MPI).items() if type(value) is MPI.Op)

_UFUNCS = (
    (MPI.SUM, np.add),
    (MPI.MAX, np.maximum),
    (MPI.MIN, np.minimum),
    (MPI.PROD, np.multiply),
    (MPI.BAND, np.bitwise_and),
    (MPI.BOR, np.bitwise_or),
    (MPI.BXOR, np.bitwise_xor),
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
