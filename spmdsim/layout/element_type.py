"""Element types by their names, those that tensors support, and their names in files.

What types mean for rules, promotions and reductions is in :mod:`spmdsim.core.element_types`; its functions keep their names here
for one release.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.core.element_types import accumulator as accumulator
from spmdsim.core.element_types import additive as additive
from spmdsim.core.element_types import check_reduce as check_reduce
from spmdsim.core.element_types import computed_widely as computed_widely
from spmdsim.core.element_types import has_gradient as has_gradient
from spmdsim.core.element_types import held_type as held_type
from spmdsim.core.element_types import is_float as is_float
from spmdsim.core.element_types import is_half as is_half
from spmdsim.core.element_types import promoted as promoted
from spmdsim.core.element_types import typed_rule as typed_rule
from spmdsim.core.element_types import widened as widened
from spmdsim.errors import InputError, RuleError, unknown

#: What is offered where a name is wrong.
COMMON = (
    *("bool", "int8", "int32", "int64", "bfloat16", "float16"),
    *("float32", "float64", "complex64", "complex128"),
)


def element_type(dtype: Any) -> np.dtype:
    """What numpy takes for an element type, or the name of one.

    Raises:
        InputError: no type is called so.

    >>> element_type("float32"), element_type("bfloat16").itemsize
    (dtype('float32'), 2)
    """
    try:
        resolved: np.dtype = np.dtype(dtype)
        return resolved
    except (TypeError, ValueError, SyntaxError):  # numpy reads a text with a comma as Python does
        kept = _of_package("bfloat16" if dtype == "bf16" else dtype) if isinstance(dtype, str) else None
    if kept is None:
        raise unknown(f"no element type is called {dtype!r}", str(dtype), COMMON, listed="some are")
    kind: np.dtype = np.dtype(kept)
    return kind


def _of_package(name: str) -> Any:
    try:
        import ml_dtypes
    except ImportError:
        return None
    kind = getattr(ml_dtypes, name, None)
    # Its limits of types are classes, too, and numpy makes objects of them.
    return kind if isinstance(kind, type) and issubclass(kind, np.generic) else None


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
    numeric = dtype.kind in "biufc" or of_package
    return None if numeric else f"elements of type {dtype}; tensors hold numbers and truth values"


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
