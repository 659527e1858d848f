"""Elementwise operators with NumPy's names and broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from spmdsim.arrays import Op, Tensor
from spmdsim.arrays.operands import Operand
from spmdsim.arrays.ops.declare import (
    Array,
    Arrays,
    Gradient,
    Shape,
    Vjp,
    conj,
    convert_to_one_type,
    declare_binary,
    declare_unary,
    unbroadcast,
)
from spmdsim.arrays.ops.operators import operator
from spmdsim.core import FUNCTIONS, PASSES, Rule
from spmdsim.errors import InputError, RuleError
from spmdsim.layout.element_type import check_ordered, promote_types
from spmdsim.worlds.convert_operands import as_operand

__all__ = [
    "absolute", "add", "add_n", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh",
    "bitwise_and", "bitwise_invert", "bitwise_or", "bitwise_xor", "ceil", "clip", "conjugate", "copysign",
    "cos", "cosh", "divide", "equal", "exp", "expm1", "floor", "floor_divide", "greater", "greater_equal",
    "hypot", "identity", "imag", "isfinite", "isinf", "isnan", "left_shift", "less", "less_equal", "log",
    "log1p", "log2", "log10", "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor",
    "maximum", "minimum", "multiply", "negative", "nextafter", "not_equal", "positive", "power", "real",
    "reciprocal", "remainder", "right_shift", "rint", "round", "rsqrt", "sign", "signbit", "sin", "sinh",
    "sqrt", "square", "squared_difference", "subtract", "tan", "tanh", "trunc", "where",
]  # fmt: skip


def one_like(x: Array) -> Array:
    """Return the number 1 as an array of shape () in the element type of ``x``."""
    return np.ones((), x.dtype)


# -- of two elements ----------------------------------------------------------------------------------


def _power_vjp(dy: Array, ab: Arrays, y: Any) -> tuple[Gradient, Gradient]:
    """Return two functions that compute the gradients of ``a ** b`` by ``a`` and by ``b``.

    A gradient is ``dy`` times the conjugate of a slope, in the broadcast shape of ``a`` and ``b``; the caller sums it
    over broadcast dims. NumPy's warnings are off. The slopes are:

    - by ``a``: ``b * a ** (b - 1)``; 0 where ``b`` is 0, because ``a ** 0`` is 1 for every ``a``.
    - by ``b``: ``a ** b * log(a)``; 0 where ``a`` is 0 and ``b >= 0``; nan where ``a`` is real and negative.

    Args:
        dy: the gradient of the power.
        ab: the base and the exponent.
        y: the power; not used.

    >>> bases, exponents = np.array([2.0, 0.0, -2.0]), np.array([3.0, 0.0, 2.0])
    >>> by_base, by_exponent = _power_vjp(np.array([1.0, 1.0, 1.0]), (bases, exponents), None)
    >>> by_base().tolist(), by_exponent().round(2).tolist()
    ([12.0, 0.0, -4.0], [5.55, 0.0, nan])
    """
    a, b = ab

    def compute_base_gradient() -> Array:
        """Compute the gradient of ``a``; 0 for exponent 0."""
        with np.errstate(all="ignore"):
            slope = np.asarray(b * np.power(a, b - 1))
            array: Array = dy * conj(np.where(b == 0, np.zeros((), slope.dtype), slope))
        return array

    def compute_exponent_gradient() -> Array:
        """Compute the gradient of ``b``: ``dy`` times the conjugate of ``a ** b * log(a)``.

        It is 0 for base 0 with a non-negative exponent.
        """
        is_zero_power = (a == 0) & ((b.real >= 0) & (b.imag == 0) if b.dtype.kind == "c" else b >= 0)
        with np.errstate(all="ignore"):
            value = np.power(a, b)
            slope = np.asarray(value * np.log(a.astype(value.dtype, copy=False)))
            array: Array = dy * conj(np.where(is_zero_power, np.zeros((), slope.dtype), slope))
        return array

    return compute_base_gradient, compute_exponent_gradient


def _make_selection_vjp(pick: Callable[..., Any]) -> Vjp:
    """Return the gradient function of an operator that selects one of two elements, such as ``maximum``.

    - The elements differ: the selected operand receives the gradient.
    - They are equal: each operand receives half of it.
    - One of them is nan: the second operand receives it.

    Args:
        pick: a function of both arrays that returns True where the operator selects the first operand and the operands
            differ, such as ``numpy.greater``.
    """

    def vjp(dy: Array, ab: Arrays, _y: Any) -> tuple[Array, Array]:
        """Divide the gradient between both operands."""
        a, b = ab
        share = pick(a, b).astype(dy.dtype) + (a == b) * np.asarray(0.5, dy.dtype)
        return dy * share, dy * (1 - share)

    return vjp


def _compute_power(x: Array, y: Array) -> Array:
    """Compute ``x ** y`` of arrays that broadcast, as ``numpy.power``.

    Raises:
        InputError: If integers are raised to a negative integer.
    """
    try:
        return np.asarray(np.power(x, y))
    except ValueError:
        raise InputError(
            f"{x.dtype.name} to a negative power of {y.dtype.name} is no integer: convert it first, x.astype(float)"
        ) from None


def _divide_by_hypotenuse(x: Array, a: Array, b: Array) -> Array:
    """Return ``x / hypot(a, b)``, or 0 where the hypotenuse is zero."""
    y = np.hypot(a, b)
    array: Array = x / np.where(y == 0, np.ones((), y.dtype), y)
    return array


def _compute_logistic(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))`` without overflow."""
    array: Array = np.exp(-np.logaddexp(np.zeros((), x.dtype), -x))
    return array


# A product is linear in each factor, a sum in both together, a quotient in the numerator.
add = declare_binary("add", np.add, lambda dy, ab, y: (dy, dy), linear="all")
subtract = declare_binary(
    "subtract", np.subtract, lambda dy, ab, y: (dy, -dy), linear="all", passes=("sum", "avg")
)
multiply = declare_binary(
    "multiply",
    np.multiply,
    lambda dy, ab, y: (lambda: dy * conj(ab[1]), lambda: dy * conj(ab[0])),
    linear="each",
)
divide = declare_binary(
    "divide",
    np.true_divide,
    lambda dy, ab, y: (lambda: dy / conj(ab[1]), lambda: -dy * conj(ab[0] / ab[1] / ab[1])),
    linear=((0,),),
)
power = declare_binary("power", _compute_power, _power_vjp, work=PASSES, says="a ** b")
maximum = declare_binary("maximum", np.maximum, _make_selection_vjp(np.greater))
minimum = declare_binary("minimum", np.minimum, _make_selection_vjp(np.less))
equal = declare_binary("equal", np.equal, None)
greater = declare_binary("greater", np.greater, None)
less = declare_binary("less", np.less, None)
greater_equal = declare_binary("greater_equal", np.greater_equal, None)
less_equal = declare_binary("less_equal", np.less_equal, None)
not_equal = declare_binary("not_equal", np.not_equal, None)
logical_and = declare_binary("logical_and", np.logical_and, None)
logical_or = declare_binary("logical_or", np.logical_or, None)
floor_divide = declare_binary("floor_divide", np.floor_divide, None)
remainder = declare_binary(
    "remainder", np.remainder, lambda dy, ab, y: (dy, lambda: -dy * np.floor_divide(ab[0], ab[1]))
)
squared_difference = declare_binary(
    "squared_difference",
    lambda a, b: (a - b) * (a - b),
    lambda dy, ab, y: (2 * dy * conj(ab[0] - ab[1]), 2 * dy * conj(ab[1] - ab[0])),
    says="(a - b) ** 2",
)
arctan2 = declare_binary(
    "arctan2",
    np.arctan2,
    lambda dy, ab, y: (
        dy * ab[1] / (ab[0] * ab[0] + ab[1] * ab[1]),
        -dy * ab[0] / (ab[0] * ab[0] + ab[1] * ab[1]),
    ),
)
logical_xor = declare_binary("logical_xor", np.logical_xor, None)
bitwise_and = declare_binary("bitwise_and", np.bitwise_and, None)
bitwise_or = declare_binary("bitwise_or", np.bitwise_or, None)
bitwise_xor = declare_binary("bitwise_xor", np.bitwise_xor, None)
left_shift = declare_binary("left_shift", np.left_shift, None)
right_shift = declare_binary("right_shift", np.right_shift, None)
nextafter = declare_binary("nextafter", np.nextafter, None, moves=True)
copysign = declare_binary(
    "copysign",
    np.copysign,
    lambda dy, ab, y: (dy * np.sign(ab[0]) * np.copysign(one_like(ab[1]), ab[1]), np.zeros_like(dy)),
)
hypot = declare_binary(
    "hypot",
    np.hypot,
    lambda dy, ab, y: (dy * _divide_by_hypotenuse(ab[0], *ab), dy * _divide_by_hypotenuse(ab[1], *ab)),
)
logaddexp = declare_binary(
    "logaddexp",
    np.logaddexp,
    lambda dy, ab, y: (dy * _compute_logistic(ab[0] - ab[1]), dy * _compute_logistic(ab[1] - ab[0])),
    work=FUNCTIONS,
)

# -- of one element -----------------------------------------------------------------------------------


def _absolute_slope(x: Array) -> Array:
    """Return the slope of the absolute value: the sign of ``x``, or ``conj(x) / |x|`` if complex.

    It is 0 at zero.
    """
    if x.dtype.kind != "c":
        sign: Array = np.sign(x)
        return sign
    size = np.absolute(x)
    slope: Array = np.conj(x) / np.where(size == 0, np.ones((), size.dtype), size)
    return slope


negative = declare_unary("negative", np.negative, lambda x: np.asarray(-1, x.dtype), linear="each")
exp = declare_unary("exp", np.exp, lambda y: y, work=FUNCTIONS)
log = declare_unary("log", np.log, lambda x: 1 / x, work=FUNCTIONS)
sqrt = declare_unary("sqrt", np.sqrt, lambda y: np.asarray(0.5, y.dtype) / y)
tanh = declare_unary("tanh", np.tanh, lambda y: 1 - y * y, work=FUNCTIONS)
absolute = declare_unary("absolute", np.absolute, _absolute_slope)
logical_not = declare_unary("logical_not", np.logical_not, None)
identity = declare_unary("identity", lambda x: x, lambda x: one_like(x), linear="each", says="x")
sign = declare_unary("sign", np.sign, None)
floor = declare_unary("floor", np.floor, None)
ceil = declare_unary("ceil", np.ceil, None)
rint = declare_unary("rint", np.rint, None)
square = declare_unary("square", np.square, lambda x: 2 * x)
reciprocal = declare_unary(
    "reciprocal", lambda x: one_like(x) / x, lambda y: -y * y, fractions=True, says="1 / x"
)
rsqrt = declare_unary(
    "rsqrt", lambda x: one_like(x) / np.sqrt(x), lambda y: -y * y * y / 2, fractions=True, says="1 / sqrt(x)"
)
sin = declare_unary("sin", np.sin, lambda x: np.cos(x))
cos = declare_unary("cos", np.cos, lambda x: -np.sin(x))
log1p = declare_unary("log1p", np.log1p, lambda x: 1 / (1 + x))
expm1 = declare_unary("expm1", np.expm1, lambda y: y + 1)
isnan = declare_unary("isnan", np.isnan, None)
isinf = declare_unary("isinf", np.isinf, None)
isfinite = declare_unary("isfinite", np.isfinite, None)
signbit = declare_unary("signbit", np.signbit, None)
round = declare_unary("round", np.round, None)
trunc = declare_unary("trunc", np.trunc, None)
positive = declare_unary("positive", np.positive, lambda x: np.ones((), x.dtype), linear="each")
bitwise_invert = declare_unary("bitwise_invert", np.invert, None)
conjugate = declare_unary("conjugate", np.conjugate, vjp=lambda dy, xs, y: (conj(dy),), linear="each")
real = declare_unary(
    "real", lambda x: np.array(x.real), lambda x: np.ones((), x.dtype), linear="each", says="x.real"
)
imag = declare_unary(
    "imag", lambda x: np.array(x.imag), lambda x: np.asarray(-1j), linear="each", says="x.imag"
)


def _replace_part(x: Array, value: Array, name: str) -> Array:
    """Return a copy of complex numbers with another real or imaginary part."""
    changed = np.array(x)
    setattr(changed, name, value)
    return changed


def _replace_part_vjp(dy: Array, _operands: Arrays, _y: Any, name: str) -> tuple[Array, Array]:
    """Return the gradients of the complex operand and of the new real or imaginary part."""
    return (1j * dy.imag, dy.real.copy()) if name == "real" else (dy.real + 0j, dy.imag.copy())


_with_part_op = Op(
    "with_part",
    lambda *_, name: Rule.parse("..., ... -> ...", linear="all"),
    _replace_part,
    _replace_part_vjp,
    lambda x, value, name: x,
)


def with_part(name: str, x: Tensor, value: Tensor) -> Tensor:
    """Return complex numbers with a new real or imaginary part; ``name`` is "real" or "imag"."""
    return _with_part_op(x, value, name=name)


_LN2, _LN10 = np.log(2.0), np.log(10.0)
log2 = declare_unary("log2", np.log2, lambda x: 1 / (x * x.dtype.type(_LN2)), work=FUNCTIONS)
log10 = declare_unary("log10", np.log10, lambda x: 1 / (x * x.dtype.type(_LN10)), work=FUNCTIONS)
tan = declare_unary("tan", np.tan, lambda y: 1 + y * y, work=FUNCTIONS)
sinh = declare_unary("sinh", np.sinh, lambda x: np.cosh(x), work=FUNCTIONS)
cosh = declare_unary("cosh", np.cosh, lambda x: np.sinh(x), work=FUNCTIONS)
arcsin = declare_unary("arcsin", np.arcsin, lambda y: 1 / np.cos(y), work=FUNCTIONS)
arccos = declare_unary("arccos", np.arccos, lambda y: -1 / np.sin(y), work=FUNCTIONS)
arctan = declare_unary("arctan", np.arctan, lambda x: 1 / (1 + x * x), work=FUNCTIONS)
arcsinh = declare_unary("arcsinh", np.arcsinh, lambda y: 1 / np.cosh(y), work=FUNCTIONS)
arccosh = declare_unary("arccosh", np.arccosh, lambda y: 1 / np.sinh(y), work=FUNCTIONS)
arctanh = declare_unary("arctanh", np.arctanh, lambda x: 1 / (1 - x * x), work=FUNCTIONS)

# -- of several ---------------------------------------------------------------------------------------


def _where_vjp(dy: Array, operands: Arrays, _y: Any) -> list[Any]:
    """Return the gradients of the operands of ``where``: None for the condition, one per value.

    A value's gradient is 0 where the other value was selected; it is summed over dims that broadcasting added or
    stretched.
    """
    mask = operands[0]
    zero = np.zeros((), dy.dtype)
    return [
        None,
        unbroadcast(np.where(mask, dy, zero), operands[1].shape),
        unbroadcast(np.where(mask, zero, dy), operands[2].shape),
    ]


_where_op = Op(
    "where",
    Rule.parse("..., ..., ... -> ...", linear=((1, 2),)),
    np.where,
    _where_vjp,
    dtype=lambda _, a, b: promote_types(a, b),
    moves=True,
)


def _promote_values(a: Any, b: Any, condition: Tensor) -> tuple[Any, Any]:
    """Return the two values of ``where`` as arrays of their common NumPy type.

    For example, an int8 array and the number 2.5 become float64 arrays. Two Python numbers are returned unchanged if the
    condition is boolean. With another condition they become arrays too, so that they do not get the condition's type.

    Args:
        a: the value where the condition holds: an array or a number.
        b: the value where it does not.
        condition: the condition.
    """
    are_numbers = [isinstance(x, (bool, int, float, complex)) for x in (a, b)]
    if all(are_numbers) and condition.dtype.kind == "b":
        return a, b
    values = [x if is_number else np.asarray(x) for x, is_number in zip((a, b), are_numbers)]
    dtype = np.result_type(*values)
    return np.asarray(values[0], dtype), np.asarray(values[1], dtype)


@operator(_where_op)
def where(condition: Operand, a: Operand, b: Operand) -> Tensor:
    """Return ``a`` where the condition holds, else ``b``.

    All three broadcast. A gradient goes to the value that was selected. Arrays must be equal on all ranks.

    Args:
        condition: truth values, or numbers, of which all but 0 are true.
        a: elements where it holds.
        b: elements where it does not. Each of the three is a tensor, an array or a number, one at least a tensor.

    Returns:
        A tensor of the broadcast shape, in the type to which ``a`` and ``b`` are promoted.

    Raises:
        RuleError: If the shapes do not broadcast.
        UsageTypeError: If none of the three is a tensor.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.where(x > 3, x, 0).full().tolist()
    [[0, 0, 0], [6, 5, 4]]
    """
    # Arrays and numbers are converted to tensors in the world of `like`; a number gets the type of `typed`, too.
    # The decorator has refused calls without a tensor.
    like = next(value for value in (condition, a, b) if isinstance(value, Tensor))
    typed = next((value for value in (a, b) if isinstance(value, Tensor)), like)
    if not any(isinstance(value, Tensor) or hasattr(value, "as_operand") for value in (a, b)):
        a, b = _promote_values(a, b, like)
    return _where_op(
        as_operand(condition, like), *convert_to_one_type("where", as_operand(a, typed), as_operand(b, typed))
    )


def _add_n_rule(*shapes: Shape) -> Rule:
    """Return the rule of ``add_n``; raise RuleError for different shapes."""
    if len(set(shapes)) > 1:
        raise RuleError(f"add_n takes tensors of one shape, but got {', '.join(map(str, shapes))}")
    return Rule.parse(f"{', '.join(['...'] * len(shapes))} -> ...", linear="all")


_add_n_op = Op(
    "add_n",
    _add_n_rule,
    lambda *arrays: np.array(reduce(np.add, arrays)),
    lambda dy, operands, _y: [dy] * len(operands),
)


@operator(_add_n_op)
def add_n(*tensors: Operand) -> Tensor:
    """Add tensors of one shape.

    Args:
        *tensors: tensors or arrays of one shape, at least one a tensor.

    Returns:
        Their sum, in the type to which they are promoted. Partial operands give a partial sum.

    Raises:
        RuleError: If shapes differ.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.add_n(x, x, x).full().tolist()
    [[9, 3, 6], [18, 15, 12]]
    """
    return _add_n_op(*convert_to_one_type("add_n", *tensors))


def _split_limits(arrays: Arrays, limits: str) -> tuple[Any, Any, Any]:
    """Return the elements, the lower limit and the upper limit; a missing limit is None.

    Args:
        arrays: the elements, then the limits named in ``limits``.
        limits: "min", "max" or "min max".
    """
    bounds = list(arrays[1:])
    return arrays[0], bounds.pop(0) if "min" in limits else None, bounds.pop() if "max" in limits else None


def _clip_vjp(dy: Array, operands: Arrays, _y: Any, limits: str) -> list[Array]:
    """Return the gradients of the elements and of each limit, in the order of the operands.

    An element inside the limits, equal to a limit, or nan receives the gradient. A limit receives the gradients of the
    elements that it replaces. Where ``min`` is above ``max``, ``max`` receives them. Each gradient is summed to the
    shape of its operand.

    Args:
        dy: the gradient of the result.
        operands: the elements, then the limits that exist.
        _y: the result; not used.
        limits: the names of the limits: "min", "max" or "min max".
    """
    x, low, high = _split_limits(operands, limits)
    zero, no_element = np.zeros((), dy.dtype), np.zeros((), bool)
    is_above = no_element if high is None else x > high
    if low is not None and high is not None:
        is_above = is_above | (low > high)
    is_below = no_element if low is None else (x < low) & ~is_above
    masks = [~(is_above | is_below)]
    masks += [] if low is None else [is_below]
    masks += [] if high is None else [is_above]
    return [unbroadcast(np.where(mask, dy, zero), operand.shape) for mask, operand in zip(masks, operands)]


_clip_op = Op(
    "clip",
    lambda *shapes, limits: Rule.parse(f"{', '.join(['...'] * len(shapes))} -> ..."),
    lambda *arrays, limits: np.asarray(np.clip(*_split_limits(arrays, limits))),
    _clip_vjp,
    dtype=lambda *dtypes, limits: check_ordered(promote_types(*dtypes), "clip"),
)


@operator(_clip_op)
def clip(x: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """Limit the elements of ``x`` to the range from ``min`` to ``max``.

    The limits broadcast. The result has the type to which all three are promoted. Without limits it is a copy.

    Args:
        x: the tensor.
        min: a number, an array or a tensor that broadcasts with ``x``; no limit for None.
        max: as ``min``. Where it is less than ``min`` the result is ``max``.

    Returns:
        A tensor of the broadcast shape, without pending reduction.

    Raises:
        RuleError: If an operand is complex, or shapes do not broadcast.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.clip(x, 2, 5).full().tolist()
    [[3, 2, 2], [5, 5, 4]]
    """
    limits = [value for value in (min, max) if value is not None]
    names = " ".join(name for name, value in (("min", min), ("max", max)) if value is not None)
    if not limits:
        return positive(x)
    tensors = convert_to_one_type("clip", *[as_operand(value, x) for value in (x, *limits)])
    return _clip_op(*tensors, limits=names)
