"""NumPy's functions of elements: comparisons, roundings, remainders, angles."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor, ops
from spmdsim.arrays.creation import ones_like
from spmdsim.arrays.operands import Operand, operands
from spmdsim.arrays.ops.declare import binary, in_fractions, unary
from spmdsim.arrays.ops.dim_reductions import as_type, wide
from spmdsim.layout.element_type import check_ordered, promote_types


def isclose(
    a: Operand, b: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Tensor:
    """Return True where two elements differ by at most ``atol`` plus ``rtol`` times the second."""
    one, other = (
        x if x.dtype.kind in "fcV" else ops.cast(x, np.float64) for x in operands("np.isclose", (a, b))
    )
    far = ops.absolute(ops.subtract(one, other))
    near = ops.less_equal(far, ops.add(ops.multiply(ops.absolute(other), rtol), atol))
    close = ops.logical_or(ops.equal(one, other), ops.logical_and(near, ops.isfinite(other)))
    return ops.logical_or(close, ops.logical_and(ops.isnan(one), ops.isnan(other))) if equal_nan else close


def allclose(
    a: Operand, b: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Return True if all elements are close by :func:`isclose`."""
    return bool(ops.all(isclose(a, b, rtol, atol, equal_nan)))


def array_equal(a1: Operand, a2: Operand, equal_nan: bool = False) -> bool:
    """Return True if shapes and elements are equal."""
    if np.shape(a1) != np.shape(a2):  # type: ignore[arg-type]
        return False
    one, other = operands("np.array_equal", (a1, a2))
    same = ops.equal(one, other)
    return bool(
        ops.all(
            ops.logical_or(same, ops.logical_and(ops.isnan(one), ops.isnan(other))) if equal_nan else same
        )
    )


def array_equiv(a1: Operand, a2: Operand) -> bool:
    """Return True if elements are equal after broadcasting."""
    try:
        np.broadcast_shapes(np.shape(a1), np.shape(a2))  # type: ignore[arg-type]
    except ValueError:
        return False
    return bool(ops.all(ops.equal(a1, a2)))


def clip(a: Tensor, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Tensor:
    """Elements no smaller and no larger than bounds, by either of NumPy's names for them."""
    return ops.clip(a, min if a_min is None else a_min, max if a_max is None else a_max)


def round(a: Tensor, decimals: int = 0) -> Tensor:
    """Rounded to so many digits behind the point, halves to the even one."""
    return _rounded(int(decimals))(a)


@lru_cache(maxsize=64)
def _rounded(decimals: int) -> Callable[[Tensor], Tensor]:
    return unary(f"round to {decimals}", partial(np.round, decimals=decimals)) if decimals else ops.round


gcd = binary("gcd", np.gcd, None)
lcm = binary("lcm", np.lcm, None)


def fmod(x1: Operand, x2: Operand) -> Tensor:
    """Compute the remainder with the sign of the dividend."""
    one, other = operands("np.fmod", (x1, x2))
    for operand in (one, other):
        check_ordered(operand.dtype, "np.fmod")
    rest = ops.remainder(ops.absolute(one), ops.absolute(other))
    return (
        ops.copysign(rest, one)
        if rest.dtype.kind in "fV"
        else ops.where(ops.less(one, 0), ops.negative(rest), rest)
    )


def fmax(x1: Operand, x2: Operand) -> Tensor:
    """Return the larger of two elements; a number if the other is nan."""
    one, other = operands("np.fmax", (x1, x2))
    return ops.where(ops.isnan(one), other, ops.where(ops.isnan(other), one, ops.maximum(one, other)))


def fmin(x1: Operand, x2: Operand) -> Tensor:
    """Return the smaller of two elements; a number if the other is nan."""
    one, other = operands("np.fmin", (x1, x2))
    return ops.where(ops.isnan(one), other, ops.where(ops.isnan(other), one, ops.minimum(one, other)))


def fabs(x: Tensor) -> Tensor:
    """Absolute values; of integers as fractions."""
    check_ordered(x.dtype, "np.fabs")
    return ops.absolute(fraction_of(x))


def float_power(x1: Operand, x2: Operand) -> Tensor:
    """Powers in double precision."""
    # Before a number becomes one of their type.
    doubles = [_double(x) if isinstance(x, Tensor) else x for x in (x1, x2)]
    one, other = operands("np.float_power", doubles)
    return ops.power(_double(one), _double(other))


def _double(x: Tensor) -> Tensor:
    return ops.cast(x, np.complex128 if x.dtype.kind == "c" else np.float64)


def fraction_of(x: Tensor) -> Tensor:
    """Convert integers to the type of floats in which NumPy computes functions of them."""
    return x if x.dtype.kind in "fcV" else ops.cast(x, ops.sqrt(x).dtype)


def heaviside(x1: Operand, x2: Operand) -> Tensor:
    """0 below 0, 1 above, at 0 the second operand."""
    one, other = in_fractions("heaviside", *map(fraction_of, operands("np.heaviside", (x1, x2))))
    step = ops.where(ops.isnan(one), one, ops.cast(ops.greater(one, 0), one.dtype))
    return ops.where(ops.equal(one, 0), other, step)


def reciprocal(x: Tensor) -> Tensor:
    """One divided by each element; of whole numbers whole ones, as ``np.reciprocal`` has it."""
    x = ops.cast(x, np.int8) if x.dtype.kind == "b" else x
    return as_type(ops.reciprocal(x), x.dtype) if x.dtype.kind in "iu" else ops.reciprocal(x)


def logaddexp2(x1: Operand, x2: Operand) -> Tensor:
    """Compute the logarithm to base 2 of a sum of powers of 2."""
    fractions = in_fractions("logaddexp2", *map(fraction_of, operands("np.logaddexp2", (x1, x2))))
    one, other = (as_type(x, promote_types(*[y.dtype for y in fractions])) for x in fractions)
    scale = math.log(2)
    return ops.divide(ops.logaddexp(ops.multiply(one, scale), ops.multiply(other, scale)), scale)


def modf(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the fractional part and the integral part, both with the element's sign."""
    one = fraction_of(x)
    whole = ops.trunc(one)
    rest = ops.where(ops.isinf(one), 0, ops.subtract(one, whole))
    return ops.copysign(rest, one), whole


def sinc(x: Tensor) -> Tensor:
    """``sin(pi x) / (pi x)``, and 1 at 0."""
    zero = ops.equal(x, 0)
    angle = ops.multiply(ops.where(zero, 1, x), math.pi)
    return ops.where(zero, 1, ops.divide(ops.sin(angle), angle))


def cbrt(x: Tensor) -> Tensor:
    """Cube roots, negative ones of negative numbers."""
    exact = wide(fraction_of(x))
    return ops.cast(ops.copysign(ops.power(ops.absolute(exact), 1 / 3), exact), fraction_of(x).dtype)


def angle(z: Tensor, deg: bool = False) -> Tensor:
    """Return the angles of complex numbers."""
    parts = (
        ops.arctan2(ops.imag(z), ops.real(z))
        if z.dtype.kind == "c"
        else ops.arctan2(0, ops.cast(z, np.int64) if z.dtype.kind == "b" else z)
    )
    return ops.multiply(parts, 180 / math.pi) if deg else parts


def isreal(x: Tensor) -> Tensor:
    """Return True where the imaginary part is 0."""
    return ops.equal(ops.imag(x), 0) if x.dtype.kind == "c" else ones_like(x, dtype=np.bool_)


def divmod(x1: Operand, x2: Operand) -> tuple[Tensor, Tensor]:
    """Quotients rounded down, and what is left."""
    one, other = operands("np.divmod", (x1, x2))
    return ops.floor_divide(one, other), ops.remainder(one, other)
