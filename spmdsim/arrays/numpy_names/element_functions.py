"""NumPy's functions of elements: comparisons, rounding, remainders, angles."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor, ops
from spmdsim.arrays.creation import ones_like
from spmdsim.arrays.operands import Operand, convert_operands
from spmdsim.arrays.ops.declare import convert_integers_to_floats, declare_binary, declare_unary
from spmdsim.arrays.ops.dim_reductions import to_sum_type, to_type
from spmdsim.layout.element_type import check_ordered, promote_types


def isclose(
    a: Operand, b: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Tensor:
    """Return True where elements differ by at most ``atol + rtol * abs(b)``.

    An infinity is close only to an equal infinity. Integers are compared as float64.

    Args:
        a: the first operand.
        b: the second operand; it broadcasts with ``a``.
        rtol: allowed difference as a part of the second element's absolute value.
        atol: allowed difference in addition.
        equal_nan: True if two nan are close.
    """
    left, right = (
        x if x.dtype.kind in "fcV" else ops.cast(x, np.float64)
        for x in convert_operands("np.isclose", (a, b))
    )
    distance = ops.absolute(ops.subtract(left, right))
    is_near = ops.less_equal(distance, ops.add(ops.multiply(ops.absolute(right), rtol), atol))
    close = ops.logical_or(ops.equal(left, right), ops.logical_and(is_near, ops.isfinite(right)))
    return ops.logical_or(close, ops.logical_and(ops.isnan(left), ops.isnan(right))) if equal_nan else close


def allclose(
    a: Operand, b: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Return True if all elements are close by :func:`isclose`."""
    return bool(ops.all(isclose(a, b, rtol, atol, equal_nan)))


def array_equal(a1: Operand, a2: Operand, equal_nan: bool = False) -> bool:
    """Return True if shapes and elements are equal; all ranks must call it.

    Args:
        a1: a tensor or an array.
        a2: a tensor or an array; at least one operand is a tensor.
        equal_nan: True if two nan are equal.
    """
    if np.shape(a1) != np.shape(a2):  # type: ignore[arg-type]
        return False
    left, right = convert_operands("np.array_equal", (a1, a2))
    is_equal = ops.equal(left, right)
    return bool(
        ops.all(
            ops.logical_or(is_equal, ops.logical_and(ops.isnan(left), ops.isnan(right)))
            if equal_nan
            else is_equal
        )
    )


def array_equiv(a1: Operand, a2: Operand) -> bool:
    """Return True if elements are equal after broadcasting, False if shapes do not broadcast.

    All ranks must call it.

    Args:
        a1: a tensor or an array.
        a2: a tensor or an array; at least one operand is a tensor.
    """
    try:
        np.broadcast_shapes(np.shape(a1), np.shape(a2))  # type: ignore[arg-type]
    except ValueError:
        return False
    return bool(ops.all(ops.equal(a1, a2)))


def clip(a: Tensor, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Tensor:
    """Limit elements to the range from a minimum to a maximum.

    Each bound has two names in NumPy, of which ``a_min`` and ``a_max`` come first. None: no bound.
    """
    return ops.clip(a, min if a_min is None else a_min, max if a_max is None else a_max)


def round(a: Tensor, decimals: int = 0) -> Tensor:
    """Round elements to a number of decimals, halves to the even digit."""
    return _make_round(int(decimals))(a)


@lru_cache(maxsize=64)
def _make_round(decimals: int) -> Callable[[Tensor], Tensor]:
    """Return the operator that rounds to a number of decimals."""
    return (
        declare_unary(f"round to {decimals}", partial(np.round, decimals=decimals)) if decimals else ops.round
    )


gcd = declare_binary("gcd", np.gcd, None)
lcm = declare_binary("lcm", np.lcm, None)


def fmod(x1: Operand, x2: Operand) -> Tensor:
    """Compute the remainder with the sign of the dividend.

    `ops.remainder` has the sign of the divisor.

    Args:
        x1: the dividend.
        x2: the divisor; it broadcasts with ``x1``. 0 gives nan for floats and 0 for integers.

    Raises:
        RuleError: If elements are complex.
    """
    dividend, divisor = convert_operands("np.fmod", (x1, x2))
    for operand in (dividend, divisor):
        check_ordered(operand.dtype, "np.fmod")
    remainder = ops.remainder(ops.absolute(dividend), ops.absolute(divisor))
    return (
        ops.copysign(remainder, dividend)
        if remainder.dtype.kind in "fV"
        else ops.where(ops.less(dividend, 0), ops.negative(remainder), remainder)
    )


def fmax(x1: Operand, x2: Operand) -> Tensor:
    """Return the larger of two elements; if one of them is nan, return the other."""
    left, right = convert_operands("np.fmax", (x1, x2))
    return ops.where(ops.isnan(left), right, ops.where(ops.isnan(right), left, ops.maximum(left, right)))


def fmin(x1: Operand, x2: Operand) -> Tensor:
    """Return the smaller of two elements; if one of them is nan, return the other."""
    left, right = convert_operands("np.fmin", (x1, x2))
    return ops.where(ops.isnan(left), right, ops.where(ops.isnan(right), left, ops.minimum(left, right)))


def fabs(x: Tensor) -> Tensor:
    """Return absolute values; those of integers are floats."""
    check_ordered(x.dtype, "np.fabs")
    return ops.absolute(fraction_of(x))


def float_power(x1: Operand, x2: Operand) -> Tensor:
    """Compute powers in double precision."""
    # Convert before a Python number takes the type of the other operand.
    doubles = [_double(x) if isinstance(x, Tensor) else x for x in (x1, x2)]
    base, exponent = convert_operands("np.float_power", doubles)
    return ops.power(_double(base), _double(exponent))


def _double(x: Tensor) -> Tensor:
    """Convert a tensor to float64 or complex128."""
    return ops.cast(x, np.complex128 if x.dtype.kind == "c" else np.float64)


def fraction_of(x: Tensor) -> Tensor:
    """Convert integers to the type of floats in which NumPy computes functions of them."""
    return x if x.dtype.kind in "fcV" else ops.cast(x, ops.sqrt(x).dtype)


def heaviside(x1: Operand, x2: Operand) -> Tensor:
    """Return 0 for negative elements, 1 for positive ones, and the second operand at 0.

    nan stays nan. Integers become floats.

    Args:
        x1: the elements.
        x2: the values at 0; it broadcasts with ``x1``.
    """
    values, value_at_zero = convert_integers_to_floats(
        "heaviside", *map(fraction_of, convert_operands("np.heaviside", (x1, x2)))
    )
    step = ops.where(ops.isnan(values), values, ops.cast(ops.greater(values, 0), values.dtype))
    return ops.where(ops.equal(values, 0), value_at_zero, step)


def reciprocal(x: Tensor) -> Tensor:
    """Return 1 divided by each element; integers for integers, as in ``np.reciprocal``."""
    x = ops.cast(x, np.int8) if x.dtype.kind == "b" else x
    return to_type(ops.reciprocal(x), x.dtype) if x.dtype.kind in "iu" else ops.reciprocal(x)


def logaddexp2(x1: Operand, x2: Operand) -> Tensor:
    """Compute ``log2(2 ** x1 + 2 ** x2)`` without overflow.

    Integers become floats.

    Args:
        x1: the first exponent.
        x2: the second exponent; it broadcasts with ``x1``.
    """
    fractions = convert_integers_to_floats(
        "logaddexp2", *map(fraction_of, convert_operands("np.logaddexp2", (x1, x2)))
    )
    left, right = (to_type(x, promote_types(*[y.dtype for y in fractions])) for x in fractions)
    scale = math.log(2)
    return ops.divide(ops.logaddexp(ops.multiply(left, scale), ops.multiply(right, scale)), scale)


def modf(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the fractional part and the integral part, both with the element's sign."""
    value = fraction_of(x)
    integral = ops.trunc(value)
    fractional = ops.where(ops.isinf(value), 0, ops.subtract(value, integral))
    return ops.copysign(fractional, value), integral


def sinc(x: Tensor) -> Tensor:
    """Compute ``sin(pi x) / (pi x)``, which is 1 at 0."""
    zero = ops.equal(x, 0)
    angle = ops.multiply(ops.where(zero, 1, x), math.pi)
    return ops.where(zero, 1, ops.divide(ops.sin(angle), angle))


def cbrt(x: Tensor) -> Tensor:
    """Compute cube roots; those of negative numbers are negative."""
    exact = to_sum_type(fraction_of(x))
    return ops.cast(ops.copysign(ops.power(ops.absolute(exact), 1 / 3), exact), fraction_of(x).dtype)


def angle(z: Tensor, deg: bool = False) -> Tensor:
    """Return the angle of each complex number, from -pi to pi; pi for negative real numbers, else 0.

    Args:
        z: the numbers.
        deg: True for degrees, False for radians.
    """
    if z.dtype.kind == "c":
        angles = ops.arctan2(ops.imag(z), ops.real(z))
    else:
        angles = ops.arctan2(0, ops.cast(z, np.int64) if z.dtype.kind == "b" else z)
    return ops.multiply(angles, 180 / math.pi) if deg else angles


def isreal(x: Tensor) -> Tensor:
    """Return True where the imaginary part is 0."""
    return ops.equal(ops.imag(x), 0) if x.dtype.kind == "c" else ones_like(x, dtype=np.bool_)


def divmod(x1: Operand, x2: Operand) -> tuple[Tensor, Tensor]:
    """Return quotients rounded down, and remainders."""
    dividend, divisor = convert_operands("np.divmod", (x1, x2))
    return ops.floor_divide(dividend, divisor), ops.remainder(dividend, divisor)
