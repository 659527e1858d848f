"""Convert and name element types: NumPy's, bfloat16, and those of ``.npy`` and safetensors files.

:mod:`spmdsim.core.element_types` defines how rules, promotions and reductions treat types. Its functions keep their
names here for one release.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.core.element_types import accumulator as accumulator
from spmdsim.core.element_types import check_reduce as check_reduce
from spmdsim.core.element_types import compute_in_float32 as compute_in_float32
from spmdsim.core.element_types import has_gradient as has_gradient
from spmdsim.core.element_types import is_float as is_float
from spmdsim.core.element_types import is_half as is_half
from spmdsim.core.element_types import promote_types as promote_types
from spmdsim.core.element_types import storage_dtype as storage_dtype
from spmdsim.core.element_types import widen_halves as widen_halves
from spmdsim.errors import InputError, RuleError, unknown

#: Names that the error of an unknown name lists.
COMMON = (
    *("bool", "int8", "int32", "int64", "bfloat16", "float16"),
    *("float32", "float64", "complex64", "complex128"),
)


def element_type(dtype: Any) -> np.dtype:
    """Return the numpy dtype of a type or its name; names of ``ml_dtypes`` are accepted, too.

    Args:
        dtype: all that ``numpy.dtype`` accepts, or a name of a type of ``ml_dtypes``; "bf16" is bfloat16. None is
            float64, as in numpy. Types that no tensor may have, such as texts, are returned, too (see
            :func:`number_type`).

    Raises:
        InputError: If no type has this name, or it is bfloat16 and the package ml_dtypes is missing.

    >>> element_type("float32"), element_type("bfloat16").itemsize
    (dtype('float32'), 2)
    """
    try:
        resolved: np.dtype = np.dtype(dtype)
        return resolved
    except (TypeError, ValueError, SyntaxError):  # numpy reads a text with a comma as Python does
        extension = (
            _find_extension_type("bfloat16" if dtype == "bf16" else dtype) if isinstance(dtype, str) else None
        )
    if extension is None:
        raise unknown(f"no element type is called {dtype!r}", str(dtype), COMMON, listed="some are")
    kind: np.dtype = np.dtype(extension)
    return kind


def _find_extension_type(name: str) -> Any:
    """Return the class of a type of ``ml_dtypes`` such as "float8_e5m2"; None if there is none.

    If the package is missing, the result is None for all names except bfloat16.

    Raises:
        InputError: If the package is missing and the name is bfloat16.
    """
    try:
        import ml_dtypes
    except ImportError:
        if name in COMMON:
            raise InputError(
                f"element type {name!r} needs the package ml_dtypes; install ml_dtypes"
            ) from None
        return None
    kind = getattr(ml_dtypes, name, None)
    # ``ml_dtypes`` also has classes that are no types, such as ``finfo``; numpy would read them as "object".
    return kind if isinstance(kind, type) and issubclass(kind, np.generic) else None


#: Names in safetensors files, without BF16: F64, I32, U8 and so on.
_SAFETENSORS = {
    f"{kind}{8 * n}": f"<{kind.lower()}{n}" for kind in "FIU" for n in (8, 4, 2, 1) if f"{kind}{n}" != "F1"
}
_SAFETENSORS["BOOL"] = "?"


def bfloat16() -> np.dtype:
    """Return the 16-bit type with 8 exponent bits and 7 fraction bits."""
    return element_type("bfloat16")


def why_no_number(dtype: np.dtype) -> str | None:
    """Return why tensors cannot have elements of this type; None for numbers and truth values.

    >>> why_no_number(np.dtype("f4")), why_no_number(np.dtype(bool))
    (None, None)
    """
    of_package = dtype.isbuiltin == 2 and dtype.kind == "V"  # bfloat16 and its relatives
    numeric = dtype.kind in "biufc" or of_package
    return None if numeric else f"elements of type {dtype}; tensors hold numbers and truth values"


def number_type(dtype: Any, what: str) -> np.dtype:
    """Return the numpy dtype of a tensor's elements, in this machine's byte order.

    MPI requires this order. A type in another byte order is replaced by the type in this order; no data are converted.

    Args:
        dtype: the type or its name, as for :func:`element_type`.
        what: first words of the error, such as "the array has".

    Raises:
        InputError: If the name is unknown, or elements are neither numbers nor truth values. See
            :func:`why_no_number`.
    """
    kind = element_type(dtype)
    problem = why_no_number(kind)
    if problem is not None:
        raise InputError(f"{what} {problem}")
    return kind if kind.isnative else kind.newbyteorder("=")


def fraction_type(dtype: np.dtype) -> np.dtype:
    """Return the result type of functions such as ``exp``: floats unchanged, a float type for integers.

    >>> [fraction_type(np.dtype(name)).name for name in ("i1", "u2", "i4", "?", "f4")]
    ['float16', 'float32', 'float64', 'float16', 'float32']
    """
    return dtype if dtype.kind in "fcV" else np.exp(np.ones(1, dtype)).dtype


def check_ordered(dtype: np.dtype, what: str) -> np.dtype:
    """Return ``dtype``; raise RuleError if it is complex.

    ``what`` names the function in the error.
    """
    if dtype.kind == "c":
        raise RuleError(f"{what} is not defined for {dtype}: complex numbers have no order")
    return dtype


def as_array(values: Any) -> np.ndarray:
    """Convert a value to an array, as numpy does.

    An array is returned itself, without a copy. The element type is numpy's choice and is not checked.

    Args:
        values: a number, nested lists or tuples, or an array.

    Raises:
        InputError: If lists of one level differ in length. Other errors of numpy pass.
    """
    try:
        return np.asarray(values)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        raise InputError(
            "nested lists become an array only if those of one level have the same length"
        ) from None


def is_nameless(dtype: np.dtype) -> bool:
    """Return True if elements are two bytes without a type; ``numpy.save`` writes bfloat16 as ``|V2``.

    >>> is_nameless(np.dtype("V2")), is_nameless(bfloat16()), is_nameless(np.dtype("f2"))
    (True, False, False)
    """
    return dtype.type is np.void and dtype.itemsize == 2 and dtype.names is None and dtype.subdtype is None


def resolve_nameless(dtype: np.dtype, wanted: Any, what: str) -> np.dtype:
    """Return bfloat16 for a type without a name if the caller wants bfloat16, else ``dtype``.

    numpy saves bfloat16 as elements of two bytes without a name (see :func:`is_nameless`). A ``dtype`` with a name is
    returned unchanged, whatever is wanted.

    Args:
        dtype: the type in the file.
        wanted: the type, or its name, that the caller asked for; None if it asked for none.
        what: first words of the error, such as "'x.npy' holds".

    Raises:
        InputError: If ``dtype`` is nameless and ``wanted`` is not bfloat16.
    """
    if not is_nameless(dtype):
        return dtype
    if wanted is not None and element_type(wanted) == bfloat16():
        return bfloat16()
    raise InputError(
        f"{what} elements of two bytes without a type, as numpy saves bfloat16; if they are bfloat16, "
        "use dtype='bfloat16', on the command line --dtype bfloat16"
    )


def safetensors_dtype(name: str, path: Any) -> np.dtype:
    """Return the element type that a safetensors file calls ``name``, little-endian.

    Args:
        name: the name in the file, such as "F32", "BF16" or "I64".
        path: the file, for the message only.

    Raises:
        InputError: If the name is unknown (the message names ``path``), or it is BF16 and the package ml_dtypes is
            missing.
    """
    if name == "BF16":
        return bfloat16()
    if name not in _SAFETENSORS:
        raise InputError(f"{str(path)!r} has elements of type {name}, which is not supported")
    return np.dtype(_SAFETENSORS[name])


def safetensors_name(dtype: np.dtype) -> str:
    """Return the name of ``dtype`` in safetensors files, such as "F32" for float32.

    The byte order of ``dtype`` does not matter; the files are little-endian, and the caller converts the data.

    Raises:
        InputError: If the files do not support the type.
    """
    if dtype.name == "bfloat16":
        return "BF16"
    for name, code in _SAFETENSORS.items():
        if np.dtype(code) == dtype.newbyteorder("<"):
            return name
    raise InputError(f"a safetensors file cannot hold elements of type {dtype}")
