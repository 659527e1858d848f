"""Element types in the words of the array API standard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spmdsim.errors import InputError, UsageTypeError
from spmdsim.layout.element_type import element_type, is_float
from spmdsim.pictured import Pictured

NAMES = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float32", "float64", "complex64", "complex128"),
)

KINDS = {
    "bool": "b",
    "signed integer": "i",
    "unsigned integer": "u",
    "integral": "iu",
    "real floating": "fV",
    "complex floating": "c",
    "numeric": "iufVc",
}
"""The standard's kinds of element types, as numpy's letters."""


def dtype_of(value: Any) -> np.dtype:
    """The element type of a tensor, or the type that is meant."""
    return value.dtype if hasattr(value, "dtype") and not isinstance(value, type) else element_type(value)


@dataclass(frozen=True)
class FloatInfo(Pictured):
    """Limits of a floating type: bits, distance of 1 to the next number, largest, smallest, smallest normal number."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype


@dataclass(frozen=True)
class IntegerInfo(Pictured):
    """Limits of an integer type: bits, largest and smallest number."""

    bits: int
    max: int
    min: int
    dtype: np.dtype


def finfo(type: Any, /) -> FloatInfo:
    """The limits of a floating type, of the parts of a complex one, or of a tensor's.

    >>> finfo("float32").eps == 2.0**-23, finfo("bfloat16").bits
    (True, 16)

    Raises:
        UsageTypeError: no floating type.
    """
    dtype = dtype_of(type)
    if not (is_float(dtype) or dtype.kind == "c"):
        raise UsageTypeError(f"finfo takes a floating type, but got {dtype}")
    info: Any
    if dtype.kind == "V":
        import ml_dtypes

        info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    else:
        info = np.finfo(dtype)
    eps, largest, least, normal = (
        float(value) for value in (info.eps, info.max, info.min, info.smallest_normal)
    )
    return FloatInfo(int(info.bits), eps, largest, least, normal, np.dtype(info.dtype))


def iinfo(type: Any, /) -> IntegerInfo:
    """The limits of an integer type, or of a tensor's.

    Raises:
        UsageTypeError: no integer type.

    >>> iinfo(np.int16).max
    32767
    """
    dtype = dtype_of(type)
    if dtype.kind not in "iu":
        raise UsageTypeError(f"iinfo takes an integer type, but got {dtype}")
    info = np.iinfo(dtype)
    return IntegerInfo(info.bits, int(info.max), int(info.min), dtype)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether an element type is another one, of a kind such as ``"real floating"``, or one of several of them.

    Raises:
        InputError: a kind that there is not.

    >>> isdtype(np.dtype("int16"), "integral"), isdtype(np.dtype("int16"), ("bool", "real floating"))
    (True, False)
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, str) and kind in KINDS:
        return dtype_of(dtype).kind in KINDS[kind]
    if isinstance(kind, str):
        raise InputError(f"kinds of element types are {', '.join(map(repr, KINDS))}, but got {kind!r}")
    return dtype_of(dtype) == dtype_of(kind)
