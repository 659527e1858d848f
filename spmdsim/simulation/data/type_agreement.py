"""Compare the dtype of an array with the MPI datatype that the program names for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.simulation.data.derived_types import Datatype

#: A basic value: its kind and its bytes.
Part = tuple[str, int]
#: The kind of dates is that of integers.
_KINDS = {"u": "i", "m": "i", "M": "i", "c": "f"}


def contradicts(dtype: np.dtype, datatype: Datatype) -> bool:
    """Return True if values of a dtype cannot be read as values of a datatype.

    Integers with and without a sign agree, complex numbers agree with their two real numbers, and bytes and
    characters agree with all. Unsigned integers agree with all values of equal size, because libraries move such
    words. A struct type must repeat at the distance of the array's items.

    Args:
        dtype: the dtype of the array.
        datatype: the datatype, which may be a derived one.

    >>> from spmdsim.simulation.data.derived_types import NAMED
    >>> contradicts(np.dtype("int64"), NAMED["INT"]), contradicts(np.dtype("uint8"), NAMED["INT"])
    (True, False)
    >>> contradicts(np.dtype("complex128"), NAMED["DOUBLE"])
    False
    """
    dtype = dtype.base
    pair = datatype.dtype
    if pair.names is not None and dtype.names is not None:
        return _fields(dtype) != _fields(pair) or dtype.itemsize != pair.itemsize
    if datatype.offsets is not None and dtype.names is not None and _is_bytes(_parts(pair)):
        return bool(datatype.resized is False and datatype.elements and datatype.stride % dtype.itemsize)
    array_parts, named = _parts(dtype), _parts(pair)
    if pair.kind == "u" and {size for _, size in array_parts} == {pair.itemsize}:
        return False
    return array_parts != named and not _is_bytes(array_parts) and not _is_bytes(named)


def _parts(dtype: Any) -> set[Part]:
    """Return the basic values of which a dtype consists."""
    dtype = dtype.base
    if dtype.names is not None:
        return set().union(*(_parts(field[0]) for field in dtype.fields.values()))
    if dtype.kind == "U":
        return {("U", 4)}
    if dtype.kind in "SV":
        return {("i", 1)}
    size = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    return {(_KINDS.get(dtype.kind, dtype.kind), size)}


def _is_bytes(parts: set[Part]) -> bool:
    """Return True if all values are bytes or characters."""
    return parts == {("i", 1)}


def _fields(dtype: Any) -> list[tuple[int, set[Part]]]:
    """Return the position and the basic values of each field of a dtype, in the order of their positions."""
    return sorted(((field[1], _parts(field[0])) for field in dtype.fields.values()), key=lambda item: item[0])
