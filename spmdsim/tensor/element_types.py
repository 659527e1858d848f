"""Element types as files name them, and the one that numpy's files have no name for."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.errors import InputError, RuleError
from spmdsim.layout.element_type import element_type

#: Names in safetensors files, without BF16: F64, I32, U8 and so on.
_SAFETENSORS = {
    f"{kind}{8 * n}": f"<{kind.lower()}{n}" for kind in "FIU" for n in (8, 4, 2, 1) if f"{kind}{n}" != "F1"
}
_SAFETENSORS["BOOL"] = "?"


def bfloat16() -> np.dtype:
    """The element type of 8 exponent and 7 fraction bits."""
    return element_type("bfloat16")


def why_no_number(dtype: np.dtype) -> str | None:
    """What to say of elements that no tensor holds; None for numbers and truth values.

    >>> why_no_number(np.dtype("f4")), why_no_number(np.dtype(bool))
    (None, None)
    """
    of_package = dtype.isbuiltin == 2 and dtype.kind == "V"  # bfloat16 and its relatives
    known = dtype.kind in "biufc" or of_package
    return None if known else f"elements of type {dtype}; tensors hold numbers and truth values"


def number_type(dtype: Any, what: str) -> np.dtype:
    """An element type of tensors, or its name, in this machine's byte order: MPI and other ranks cannot tell another one.

    An InputError that begins with ``what``, such as "the array has", if it is neither numbers nor truth values.
    """
    kind = element_type(dtype)
    problem = why_no_number(kind)
    if problem is not None:
        raise InputError(f"{what} {problem}")
    return kind if kind.isnative else kind.newbyteorder("=")


def fractional(dtype: np.dtype) -> np.dtype:
    """The type of functions that make fractions of whole numbers: as numpy has it for ``exp``.

    >>> [fractional(np.dtype(name)).name for name in ("i1", "u2", "i4", "?", "f4")]
    ['float16', 'float32', 'float64', 'float16', 'float32']
    """
    return dtype if dtype.kind in "fcV" else np.exp(np.ones(1, dtype)).dtype


def ordered(dtype: np.dtype, what: str) -> np.dtype:
    """The type, unless its numbers have no order: a RuleError for complex ones."""
    if dtype.kind == "c":
        raise RuleError(f"{what} is not defined for {dtype}: complex numbers have no order")
    return dtype


def as_array(values: Any) -> np.ndarray:
    """Nested lists as an array; InputError for rows of different lengths."""
    try:
        return np.asarray(values)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        raise InputError(
            "nested lists become an array only if those of one level have the same length"
        ) from None


def is_nameless(dtype: np.dtype) -> bool:
    """Whether elements are two bytes of nobody knows what: ``numpy.save`` writes bfloat16 as ``|V2``.

    >>> is_nameless(np.dtype("V2")), is_nameless(bfloat16()), is_nameless(np.dtype("f2"))
    (True, False, False)
    """
    return dtype.type is np.void and dtype.itemsize == 2 and dtype.names is None and dtype.subdtype is None


def named(dtype: np.dtype, wanted: Any, what: str) -> np.dtype:
    """The element type as it is, but bfloat16 for two nameless bytes if that, a type or its name, is what is wanted.

    An InputError that begins with ``what``, such as "'x.npy' holds", if nobody asked for bfloat16.
    """
    if not is_nameless(dtype):
        return dtype
    if wanted is not None and element_type(wanted) == bfloat16():
        return bfloat16()
    raise InputError(
        f"{what} elements of two bytes without a type, as numpy saves bfloat16; if they are that, say so: "
        "dtype='bfloat16', on the command line --dtype bfloat16"
    )


def safetensors_dtype(name: str, path: Any) -> np.dtype:
    """The element type that a safetensors file calls ``name``."""
    if name == "BF16":
        return bfloat16()
    if name not in _SAFETENSORS:
        raise InputError(f"{str(path)!r} has elements of type {name}, which is not known")
    return np.dtype(_SAFETENSORS[name])


def safetensors_name(dtype: np.dtype) -> str:
    """What a safetensors file calls an element type; InputError if it has no name for it."""
    if dtype.name == "bfloat16":
        return "BF16"
    for name, code in _SAFETENSORS.items():
        if np.dtype(code) == dtype.newbyteorder("<"):
            return name
    raise InputError(f"a safetensors file cannot hold elements of type {dtype}")
