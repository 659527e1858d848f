"""Element types by their names, those that numpy learns from a package included, and which are held as which.

Floats of 16 bits are what is stored; what is computed with is float32, as on accelerators. A result is rounded once,
when it is complete, and a pending one is not: its parts are held as float32 and travel so, or else what they add up
to would depend on how many ranks hold a part (float16 overflows on the way to a mean; parts that cancel leave nothing
but their rounding).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.core import elements
from spmdsim.core.layout import REDUCE_OPS
from spmdsim.errors import WorldError, unknown
from spmdsim.layout.conversions import typed_rule

if TYPE_CHECKING:
    from spmdsim.core.layout import Layout

#: Short names, and the ones that packages know.
SHORT = {"bf16": "bfloat16"}

#: What is offered where a name is wrong.
COMMON = (
    "bool",
    "int8",
    "int32",
    "int64",
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)


def element_type(dtype: Any) -> np.dtype:
    """What numpy takes for an element type, or the name of one.

    Raises:
        InputError: no type is called so.

    >>> element_type("float32"), element_type("bfloat16").itemsize
    (dtype('float32'), 2)
    """
    try:
        known: np.dtype = np.dtype(dtype)
        return known
    except (TypeError, ValueError):
        kept = _of_package(SHORT.get(dtype, dtype)) if isinstance(dtype, str) else None
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
    return kind if isinstance(kind, type) else None


def is_float(dtype: np.dtype) -> bool:
    """Whether the type is a real floating type, bfloat16 and its small relatives included."""
    return dtype.kind == "f" or (dtype.kind == "V" and dtype.name.startswith(("bfloat", "float")))


def is_half(dtype: np.dtype) -> bool:
    """Whether the type is a float of at most 16 bits, which is computed with in float32."""
    return dtype.itemsize <= 2 and is_float(dtype)


def accumulator(op: str | None, dtype: np.dtype) -> np.dtype:
    """The type in which a reduction is accumulated.

    >>> accumulator("sum", element_type("bfloat16")), accumulator("max", element_type("bfloat16"))
    (dtype('float32'), dtype(bfloat16))
    """
    return element_type("float32") if is_half(dtype) and op in ("sum", "avg", "prod") else dtype


@lru_cache(maxsize=256)
def check_reduce(op: str | None, dtype: np.dtype) -> str:
    """The reduction's name; WorldError if it has no meaning on this element type, as the sum of bools."""
    if op not in REDUCE_OPS:
        raise unknown(f"no reduction is called {op!r}", str(op), REDUCE_OPS, WorldError)
    if dtype.kind == "b":
        if op in ("sum", "prod", "avg"):
            raise WorldError(
                f"the {op} of bools is not a bool; reduce with 'any' or 'all', or convert to an integer first"
            )
    elif op in ("all", "any"):
        raise WorldError(f"{op!r} reduces bools, but got {dtype.name}; compare first, as in x != 0")
    elif dtype.kind == "c" and op in ("max", "min"):
        raise WorldError(f"complex numbers have no order, so no {op}; got {dtype.name}")
    elif dtype.kind in "iu" and op == "avg":
        raise WorldError(f"the average of {dtype.name} is not an integer; convert to a float first")
    elif dtype.kind not in "iufc" and not is_float(dtype):
        raise WorldError(f"elements of type {dtype.name} cannot be reduced")
    return op


def has_gradient(dtype: np.dtype) -> bool:
    """Whether numbers of this type have neighbours that a gradient could point to.

    >>> [has_gradient(np.dtype(name)) for name in ("f4", "c8", "i4", "?")]
    [True, True, False, False]
    """
    return dtype.kind in "fcV"


def held_type(layout: Layout, dtype: np.dtype) -> np.dtype:
    """The type of the arrays of a tensor of this element type: its own, or that in which what is pending adds up.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2,), ("x",))
    >>> half = element_type("float16")
    >>> held_type(mesh("x"), half), held_type(mesh(None, partial="x"), half)
    (dtype('float16'), dtype('float32'))
    """
    if not layout.partial or dtype.itemsize > 2:
        return dtype
    return accumulator(layout.canonical.reduce_op, dtype)


def promoted(*dtypes: np.dtype) -> np.dtype:
    """The type in which numbers of several types meet: numpy's, with bfloat16 and its relatives as torch and JAX do it.

    Those take in integers of any width, and meet one another and float16 in float32.

    >>> [promoted(element_type(a), element_type(b)) for a, b in (("bf16", "i4"), ("bf16", "f2"), ("bf16", "f8"))]
    [dtype(bfloat16), dtype('float32'), dtype('float64')]
    """
    if all(dtype.kind != "V" for dtype in dtypes):
        return np.result_type(*dtypes)
    floating = {dtype for dtype in dtypes if dtype.kind not in "biu"}
    if len(floating) == 1:
        return floating.pop()
    return np.result_type(*[np.dtype("f4") if dtype.kind == "V" else dtype for dtype in floating])


def widened(value: Any) -> Any:
    """Arrays of 16-bit floats as float32, also inside of lists; everything else as it is."""
    if isinstance(value, (list, tuple)):
        return [widened(item) for item in value]
    if isinstance(value, np.ndarray) and is_half(value.dtype):
        return value.astype(np.float32)
    return value


def computed_widely(function: Callable[..., Any], dtypes: Sequence[np.dtype]) -> Callable[..., Any]:
    """A local function, which is given float32 in the place of 16-bit floats if there are any among these types.

    This is the one place where it is so: an operator's functions are written for the types that they are given. What
    comes out is rounded once, by who called.
    """
    if not any(is_half(dtype) for dtype in dtypes):
        return function

    def compute(*operands: Any, **params: Any) -> Any:
        return function(*widened(operands), **params)

    return compute


class AllElementTypes(elements.ElementTypes):
    """What this module and its neighbours know, as answers to what core asks."""

    is_float = staticmethod(is_float)
    has_gradient = staticmethod(has_gradient)
    accumulator = staticmethod(accumulator)
    check_reduce = staticmethod(check_reduce)
    held = staticmethod(held_type)
    promoted = staticmethod(promoted)
    rule = staticmethod(typed_rule)
    local = staticmethod(computed_widely)


elements.types = AllElementTypes()
