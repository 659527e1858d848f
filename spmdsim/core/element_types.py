"""Element types: kinds, promotion, the types in which reductions accumulate, and which reductions are legal.

Floats of at most 16 bits are storage types: local functions and sums get them as float32, as on accelerators. A result
is rounded once, when it is complete. The shards of a pending sum stay float32, and are sent as float32. Otherwise a sum
would depend on the number of ranks: float16 overflows on the way to a mean, and contributions that cancel leave nothing
but their rounding.

A tensor whose sum is pending may be converted shard by shard only if ``cast(a + b) == cast(a) + cast(b)``:

- to the same type: nothing is converted;
- between integers, to a type that is not wider: both sums wrap around, modulo a power of two that divides the
  other. To a wider type they differ: 100 + 100 is -56 in int8, but 200 if each shard became an int16 before;
- between floating and complex types, to one that represents every value of the first: the sum is rounded less,
  never more, and what fits still fits.

All other conversions lose something of each shard that the sum has: fractions, range, or the difference from zero.

bfloat16 and its relatives are types of the package ml_dtypes, which is imported only if their precision is asked for.

Next: :mod:`spmdsim.core.elements`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.core.notation.layouts import REDUCE_OPS
from spmdsim.core.rule import Rule
from spmdsim.errors import WorldError, unknown

if TYPE_CHECKING:
    from spmdsim.core.layout import Layout


def is_float(dtype: np.dtype) -> bool:
    """Return True for a real floating type, including bfloat16 and its relatives."""
    return dtype.kind == "f" or (dtype.kind == "V" and dtype.name.startswith(("bfloat", "float")))


def is_half(dtype: np.dtype) -> bool:
    """Return True for a float of at most 16 bits; local functions compute with float32 in its place."""
    return dtype.itemsize <= 2 and is_float(dtype)


def has_gradient(dtype: np.dtype) -> bool:
    """Return True for element types whose values have a gradient: floating and complex ones.

    >>> [has_gradient(np.dtype(name)) for name in ("f4", "c8", "i4", "?")]
    [True, True, False, False]
    """
    return dtype.kind in "fcV"  # V is the kind of the types of ml_dtypes, such as bfloat16.


def promote_types(*dtypes: np.dtype) -> np.dtype:
    """Return the element type to which several types are promoted.

    The rule is NumPy's, except for types of ml_dtypes such as bfloat16. There the rule of torch and JAX holds:

    * With bools and integers of any width, the result is the type itself.
    * With other floats or complex numbers, the type counts as float32. So two different types of ml_dtypes, or
      one with float16, give float32.

    Args:
        dtypes: one or more element types.

    >>> import ml_dtypes
    >>> bf16 = np.dtype(ml_dtypes.bfloat16)
    >>> [promote_types(bf16, np.dtype(other)) for other in ("i4", "f2", "f8")]
    [dtype(bfloat16), dtype('float32'), dtype('float64')]
    """
    if all(dtype.kind != "V" for dtype in dtypes):
        return np.result_type(*dtypes)
    floating = {dtype for dtype in dtypes if dtype.kind not in "biu"}
    if len(floating) == 1:
        return floating.pop()
    return np.result_type(*[np.dtype("f4") if dtype.kind == "V" else dtype for dtype in floating])


@lru_cache(maxsize=256)
def check_reduce(op: str | None, dtype: np.dtype) -> str:
    """Return the name ``op`` of a reduction after checking that it exists for an element type.

    These reductions do not exist:

    * of bools: "sum", "prod" and "avg"; of numbers: "all" and "any";
    * of complex numbers: "max" and "min"; of integers: "avg";
    * of other types, such as strings or dates: any.

    Raises:
        WorldError: If ``op`` is None or no reduction's name, or the reduction does not exist for the type.

    >>> check_reduce("sum", np.dtype("f4"))
    'sum'
    """
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
        raise WorldError(f"{op} reduces numbers and bools, but got {dtype.name}; convert with astype first")
    return op


def accumulator(op: str | None, dtype: np.dtype) -> np.dtype:
    """Return the type in which a reduction is accumulated.

    It is float32 for sums, averages and products of floats of at most 16 bits, else ``dtype``.

    >>> [accumulator(op, np.dtype("f2")).name for op in ("sum", "max")]
    ['float32', 'float16']
    """
    return np.dtype("f4") if is_half(dtype) and op in ("sum", "avg", "prod") else dtype


def storage_dtype(layout: Layout, dtype: np.dtype) -> np.dtype:
    """Return the type of the arrays of a tensor's shards.

    It is the element type, or the accumulator of the pending reduction.

    >>> from spmdsim.core import Mesh
    >>> mesh, half = Mesh((2,), ("x",)), np.dtype("f2")
    >>> storage_dtype(mesh("x"), half), storage_dtype(mesh(None, partial="x"), half)
    (dtype('float16'), dtype('float32'))
    """
    if not layout.partial or dtype.itemsize > 2:
        return dtype
    return accumulator(layout.canonical.reduce_op, dtype)


@lru_cache(maxsize=1024)
def is_additive(src: np.dtype, dst: np.dtype) -> bool:
    """Return True if addends of a pending sum may be converted from ``src`` to ``dst`` singly.

    Then the sum of the converted addends equals the converted sum. The result is True

    * for equal types;
    * between integers, if ``dst`` is not wider;
    * between floats and complex numbers, if ``dst`` has at least the fraction and exponent bits of ``src``, but
      not from complex to real numbers.

    The module's text has the reasons.

    >>> [is_additive(np.dtype(a), np.dtype(b)) for a, b in (("f4", "f8"), ("f8", "f4"), ("i8", "i4"), ("i4", "f8"))]
    [True, False, True, False]
    >>> [is_additive(np.dtype(a), np.dtype(b)) for a, b in (("c8", "c16"), ("f4", "c8"), ("c8", "f4"))]
    [True, True, False]
    >>> [is_additive(np.dtype(a), np.dtype(b)) for a, b in (("i4", "u4"), ("u1", "i1"), ("i2", "u4"))]
    [True, True, False]
    """
    if src == dst:
        return True
    if src.kind in "iu" and dst.kind in "iu":
        return dst.itemsize <= src.itemsize
    # Between integers and floats, a conversion rounds or cuts every shard. From complex to real numbers, it loses the
    # imaginary parts.
    if not (has_gradient(src) and has_gradient(dst)) or (src.kind == "c" and dst.kind != "c"):
        return False
    return all(a <= b for a, b in zip(_precision(src), _precision(dst)))


def _precision(dtype: np.dtype) -> tuple[int, int]:
    """Return ``(fraction bits, exponent bits)`` of a float, or of each part of a complex type.

    They are the stored bits: (23, 8) for float32 and complex64, (7, 8) for bfloat16. For types of ml_dtypes, the
    function imports this package.

    Args:
        dtype: a floating or complex type.
    """
    finfo: Any = np.finfo
    if dtype.kind == "V":
        from ml_dtypes import finfo
    limits = finfo(dtype)
    return int(limits.nmant), int(limits.nexp)


@lru_cache(maxsize=4096)
def typed_rule(rule: Rule, operands: tuple[np.dtype, ...], result: np.dtype) -> Rule:
    """Return a rule without the pending sums that are wrong for these element types.

    * A set of operands stays in ``linear`` only if each of them may be converted to the result's type while its
      sum is pending (:func:`is_additive`).
    * If the result has bools, which have no sum, "any" replaces "sum": a product of bools leaves "any" pending,
      and averages are no longer passed.

    Args:
        rule: the rule; it does not change.
        operands: the element type of each operand.
        result: the element type of the first result.

    >>> rule = Rule.parse("m k, k n -> m n", linear="each")
    >>> typed_rule(rule, (np.dtype("i4"), np.dtype("f8")), np.dtype("f8")).linear
    (frozenset({1}),)
    >>> typed_rule(rule, (np.dtype("?"), np.dtype("?")), np.dtype("?")).reduction("k")
    'any'
    """
    linear = tuple(group for group in rule.linear if all(is_additive(operands[i], result) for i in group))
    if result.kind != "b":
        return replace(rule, linear=linear)
    ops = {factor: rule.reduction(factor) for factor in rule.reduced}
    reductions = tuple(sorted((f, "any" if op == "sum" else op) for f, op in ops.items()))
    passes = frozenset("any" if op == "sum" else op for op in rule.passes) - {"avg"}
    return replace(rule, linear=linear, reductions=reductions, passes=passes)


def widen_halves(value: Any) -> Any:
    """Return a value with its arrays of floats of at most 16 bits converted to float32.

    Args:
        value: an array of such floats, which gives a new array; or a list or tuple, which gives a list of its
            items converted. Any other value, also a NumPy scalar or a tensor, is returned unchanged.
    """
    if isinstance(value, (list, tuple)):
        return [widen_halves(item) for item in value]
    if isinstance(value, np.ndarray) and is_half(value.dtype):
        return value.astype(np.float32)
    return value


def compute_in_float32(function: Callable[..., Any], dtypes: Sequence[np.dtype]) -> Callable[..., Any]:
    """Return a local function that gets float32 arrays in place of floats of at most 16 bits.

    Positional arguments are converted by :func:`widen_halves`, keyword arguments are not. The results are not
    rounded to 16 bits; the caller does that. Without such a float in ``dtypes``, ``function`` itself is returned.

    Args:
        function: the local function: takes arrays, or lists of arrays, and parameters by keyword.
        dtypes: the element types of operands and results.
    """
    if not any(is_half(dtype) for dtype in dtypes):
        return function

    def compute(*operands: Any, **params: Any) -> Any:
        return function(*widen_halves(operands), **params)

    return compute
