"""Element types by their names, those that numpy learns from a package included, and which are held as which.

Floats of 16 bits are what is stored; what is computed with is float32, as on accelerators. A result is rounded once,
when it is complete, and a pending one is not: its parts are held as float32 and travel so, or else what they add up
to would depend on how many ranks hold a part (float16 overflows on the way to a mean; parts that cancel leave nothing
but their rounding).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spmdsim.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from spmdsim.core.layout import Layout

#: Short names, and the ones that packages know.
SHORT = {"bf16": "bfloat16"}


def element_type(dtype: Any) -> np.dtype:
    """What numpy takes for an element type, or the name of one.

    Raises:
        InputError: no type is called so.

    >>> element_type("float32"), element_type("bfloat16").itemsize
    (dtype('float32'), 2)
    """
    import numpy as np

    try:
        return np.dtype(dtype)
    except (TypeError, ValueError):
        found = _of_package(SHORT.get(dtype, dtype)) if isinstance(dtype, str) else None
    if found is None:
        raise InputError(f"no element type is called {dtype!r}; float32, int64 and bfloat16 are some")
    return np.dtype(found)


def _of_package(name: str) -> Any:
    try:
        import ml_dtypes
    except ImportError:
        return None
    found = getattr(ml_dtypes, name, None)
    return found if isinstance(found, type) else None


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
