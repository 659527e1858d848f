"""Element by element, with numpy's broadcasting: each operator is one row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.core import FUNCTIONS, PASSES, Rule
from spmdsim.core.operator import Op
from spmdsim.errors import InputError
from spmdsim.layout.element_type import promoted
from spmdsim.ops.broadcast import unbroadcast
from spmdsim.ops.declare import Gradient, Vjp, alike, binary, conj, unary
from spmdsim.ops.operators import operator
from spmdsim.tensor import Tensor
from spmdsim.tensor.operands import Operand, as_operand

# A product is linear in each factor, a sum in both together, a quotient in the numerator.
add = binary("add", np.add, lambda dy, ab, y: (dy, dy), linear="all")
subtract = binary("subtract", np.subtract, lambda dy, ab, y: (dy, -dy), linear="all", passes=("sum", "avg"))
multiply = binary(
    "multiply",
    np.multiply,
    lambda dy, ab, y: (lambda: dy * conj(ab[1]), lambda: dy * conj(ab[0])),
    linear="each",
)
divide = binary(
    "divide",
    np.true_divide,
    lambda dy, ab, y: (lambda: dy / conj(ab[1]), lambda: -dy * conj(ab[0] / ab[1] / ab[1])),
    linear=((0,),),
)


def _power_vjp(dy: np.ndarray, ab: Sequence[np.ndarray], y: Any) -> tuple[Gradient, Gradient]:
    """``a ** 0`` is 1 for every a, and ``0 ** b`` is 0 for every b > 0: neither changes with what is written first."""
    a, b = ab

    def of_base() -> np.ndarray:
        with np.errstate(all="ignore"):
            slope = np.asarray(b * np.power(a, b - 1))
        array: np.ndarray = dy * conj(np.where(b == 0, np.zeros((), slope.dtype), slope))
        return array

    def of_exponent() -> np.ndarray:
        value = np.power(a, b)
        constant = (a == 0) & ((b.real >= 0) & (b.imag == 0) if b.dtype.kind == "c" else b >= 0)
        with np.errstate(all="ignore"):
            slope = np.asarray(value * np.log(a.astype(value.dtype, copy=False)))
        array: np.ndarray = dy * conj(np.where(constant, np.zeros((), slope.dtype), slope))
        return array

    return of_base, of_exponent


def _chosen(pick: Callable[..., Any]) -> Vjp:
    """The gradient goes to the operand that was picked, to both halves where they are equal."""

    def vjp(dy: np.ndarray, ab: Sequence[np.ndarray], _y: Any) -> tuple[np.ndarray, np.ndarray]:
        a, b = ab
        share = pick(a, b).astype(dy.dtype) + (a == b) * np.asarray(0.5, dy.dtype)
        return dy * share, dy * (1 - share)

    return vjp


def _power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    try:
        return np.asarray(np.power(x, y))
    except ValueError:
        raise InputError(
            f"{x.dtype.name} to a negative power of {y.dtype.name} is no integer: convert it first, x.astype(float)"
        ) from None


power = binary("power", _power, _power_vjp, work=PASSES, says="a ** b")
maximum = binary("maximum", np.maximum, _chosen(np.greater))
minimum = binary("minimum", np.minimum, _chosen(np.less))
equal = binary("equal", np.equal, None)
greater = binary("greater", np.greater, None)
less = binary("less", np.less, None)

negative = unary("negative", np.negative, lambda x, y: np.asarray(-1, x.dtype), linear="each")
exp = unary("exp", np.exp, lambda x, y: y, work=FUNCTIONS)
log = unary("log", np.log, lambda x, y: 1 / x, work=FUNCTIONS)
sqrt = unary("sqrt", np.sqrt, lambda x, y: np.asarray(0.5, y.dtype) / y)
tanh = unary("tanh", np.tanh, lambda x, y: 1 - y * y, work=FUNCTIONS)


def _away_from_zero(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The slope of the modulus: its gradient points where ``x`` does, and nowhere at zero."""
    array: np.ndarray = (
        np.conj(x) / np.where(y == 0, np.ones((), y.dtype), y) if x.dtype.kind == "c" else np.sign(x)
    )
    return array


absolute = unary("absolute", np.absolute, _away_from_zero)


def _relu(x: np.ndarray) -> np.ndarray:
    array: np.ndarray = np.maximum(x, np.zeros((), x.dtype))
    return array


def stable_sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow on either side."""
    right = (x.real if x.dtype.kind == "c" else x) >= 0
    small = np.exp(np.where(right, -x, x))
    one = np.asarray(1, small.dtype)
    array: np.ndarray = np.where(right, one / (one + small), small / (one + small))
    return array


relu = unary("relu", _relu, lambda x, y: x > 0, real=True, says="max(x, 0)")
sigmoid = unary(
    "sigmoid", stable_sigmoid, lambda x, y: y * (1 - y), fractions=True, work=PASSES, says="1 / (1 + exp(-x))"
)


def _where_vjp(dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any) -> list[Any]:
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
    dtype=lambda _, a, b: promoted(a, b),
    moves=True,
)


def _in_one_type(a: Any, b: Any, condition: Tensor) -> tuple[Any, Any]:
    """Numbers and arrays in the type in which they meet, as numpy has it: that of a condition says nothing."""
    numbers = [isinstance(x, (bool, int, float, complex)) for x in (a, b)]
    if all(numbers) and condition.dtype.kind == "b":  # beside which they meet as they would alone
        return a, b
    parts = [x if number else np.asarray(x) for x, number in zip((a, b), numbers)]
    dtype = np.result_type(*parts)
    return np.asarray(parts[0], dtype), np.asarray(parts[1], dtype)


@operator(_where_op)
def where(condition: Operand, a: Operand, b: Operand) -> Tensor:
    """``a`` where the condition holds, else ``b``; all three broadcast.

    Args:
        condition: truth values, or numbers, of which all but 0 are true.
        a: elements where it holds.
        b: elements where it does not. Each of the three is a tensor, an array or a number, and one of them at least a
            tensor.

    Returns:
        The shape to which all three broadcast, in the type in which ``a`` and ``b`` meet.

    Raises:
        RuleError: shapes that do not broadcast.
        UsageTypeError: no tensor among them.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.where(x > 3, x, 0).full().tolist()
    [[0, 0, 0], [6, 5, 4]]
    """
    like = next(value for value in (condition, a, b) if isinstance(value, Tensor))
    typed = next((value for value in (a, b) if isinstance(value, Tensor)), like)
    if not any(isinstance(value, Tensor) or hasattr(value, "as_operand") for value in (a, b)):
        a, b = _in_one_type(a, b, like)
    return _where_op(as_operand(condition, like), *alike("where", as_operand(a, typed), as_operand(b, typed)))
