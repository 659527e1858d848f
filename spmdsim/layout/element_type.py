"""Element types by their names, which of them tensors hold, which are held as which, and which conversions commute with a sum.

Floats of 16 bits are what is stored; what is computed with is float32, as on accelerators. A result is rounded once,
when it is complete, and a pending one is not: its parts are held as float32 and travel so, or else what they add up
to would depend on how many ranks hold a part (float16 overflows on the way to a mean; parts that cancel leave nothing
but their rounding).

A tensor whose sum is pending may be converted part by part only if ``cast(a + b) == cast(a) + cast(b)``:

- to the same type: nothing is converted;
- between integers, to a type that is not wider: both sums wrap around, modulo a power of two that divides the
  other. To a wider one they do not: 100 + 100 is -56 in int8, and 200 where each part became an int16 before;
- between floating and complex types, to one that represents every value of the first: the sum is then rounded less,
  never more, and what fits still fits.

All others lose something of each part that the whole has: fractions, range, or whether it is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.core import elements
from spmdsim.core.rule import Rule
from spmdsim.errors import InputError, RuleError, WorldError, unknown
from spmdsim.notation.layouts import REDUCE_OPS

if TYPE_CHECKING:
    from spmdsim.core.layout import Layout


@lru_cache(maxsize=1024)
def additive(src: np.dtype, dst: np.dtype) -> bool:
    """Whether converting each part of a sum is converting the sum.

    >>> [additive(np.dtype(a), np.dtype(b)) for a, b in (("f4", "f8"), ("f8", "f4"), ("i8", "i4"), ("i4", "f8"))]
    [True, False, True, False]
    >>> [additive(np.dtype(a), np.dtype(b)) for a, b in (("c8", "c16"), ("f4", "c8"), ("c8", "f4"))]
    [True, True, False]
    >>> [additive(np.dtype(a), np.dtype(b)) for a, b in (("i4", "u4"), ("u1", "i1"), ("i2", "u4"))]
    [True, True, False]
    """
    if src == dst:
        return True
    if src.kind in "iu" and dst.kind in "iu":
        return dst.itemsize <= src.itemsize
    if (src.kind == "c" and dst.kind != "c") or not (src.kind in "fcV" and dst.kind in "fcV"):
        return False
    return all(a <= b for a, b in zip(_width(src), _width(dst)))


def _width(dtype: np.dtype) -> tuple[int, int]:
    """Digits and exponent bits of a floating type."""
    if dtype.kind == "V":
        import ml_dtypes

        finfo: Any = ml_dtypes.finfo
        limits = finfo(dtype)
    else:
        limits = np.finfo(dtype)
    return int(limits.nmant), int(limits.nexp)


@lru_cache(maxsize=4096)
def typed_rule(rule: Rule, operands: tuple[np.dtype, ...], result: np.dtype) -> Rule:
    """A rule for elements of these types.

    A pending value passes only where its operand's parts may be converted to the result's type before they are
    reduced (:func:`additive`). Truth values have no sum: what a product of them, or a lookup, leaves pending is
    ``any``, which such operators pass on, too.

    >>> rule = Rule.parse("m k, k n -> m n", linear="each")
    >>> typed_rule(rule, (np.dtype("i4"), np.dtype("f8")), np.dtype("f8")).linear
    (frozenset({1}),)
    >>> typed_rule(rule, (np.dtype("?"), np.dtype("?")), np.dtype("?")).reduction("k")
    'any'
    """
    linear = tuple(group for group in rule.linear if all(additive(operands[i], result) for i in group))
    if result.kind != "b":
        return replace(rule, linear=linear)
    ops = {factor: rule.reduction(factor) for factor in rule.reduced}
    reductions = tuple(sorted((f, "any" if op == "sum" else op) for f, op in ops.items()))
    passes = frozenset("any" if op == "sum" else op for op in rule.passes) - {"avg"}
    return replace(rule, linear=linear, reductions=reductions, passes=passes)


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

    An operator's functions are written for the types that they are given. What comes out is rounded once, by who called.
    """
    if not any(is_half(dtype) for dtype in dtypes):
        return function

    def compute(*operands: Any, **params: Any) -> Any:
        return function(*widened(operands), **params)

    return compute


elements.types = elements.ElementTypes(
    is_float, has_gradient, check_reduce, accumulator, held_type, promoted, typed_rule
)


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
