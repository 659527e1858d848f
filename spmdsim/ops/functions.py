"""More functions element by element: each operator is one row, as in :mod:`spmdsim.ops.elementwise`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.core import Rule
from spmdsim.errors import OutOfRange, RuleError
from spmdsim.layout.element_type import promoted
from spmdsim.layout.shape_sizes import counted_dim
from spmdsim.ops.declare import alike, binary, conj, unary
from spmdsim.ops.elementwise import stable_sigmoid
from spmdsim.ops.operators import operator
from spmdsim.tensor import Op, Tensor
from spmdsim.tensor.element_types import ordered
from spmdsim.tensor.operands import Operand


def _one(x: np.ndarray) -> Any:
    return np.ones((), x.dtype)


greater_equal = binary("greater_equal", np.greater_equal, None)
less_equal = binary("less_equal", np.less_equal, None)
not_equal = binary("not_equal", np.not_equal, None)
logical_and = binary("logical_and", np.logical_and, None)
logical_or = binary("logical_or", np.logical_or, None)
floor_divide = binary("floor_divide", np.floor_divide, None)
remainder = binary(
    "remainder", np.remainder, lambda dy, ab, y: (dy, lambda: -dy * np.floor_divide(ab[0], ab[1]))
)
squared_difference = binary(
    "squared_difference",
    lambda a, b: (a - b) * (a - b),
    lambda dy, ab, y: (2 * dy * conj(ab[0] - ab[1]), 2 * dy * conj(ab[1] - ab[0])),
    says="(a - b) ** 2",
)
arctan2 = binary(
    "arctan2",
    np.arctan2,
    lambda dy, ab, y: (
        dy * ab[1] / (ab[0] * ab[0] + ab[1] * ab[1]),
        -dy * ab[0] / (ab[0] * ab[0] + ab[1] * ab[1]),
    ),
)

logical_not = unary("logical_not", np.logical_not, None)
identity = unary("identity", lambda x: x, lambda x, y: _one(x), linear="each", says="x")
sign = unary("sign", np.sign, None)
floor = unary("floor", np.floor, None)
ceil = unary("ceil", np.ceil, None)
rint = unary("rint", np.rint, None)
square = unary("square", np.square, lambda x, y: 2 * x)
reciprocal = unary("reciprocal", lambda x: _one(x) / x, lambda x, y: -y * y, fractions=True, says="1 / x")
rsqrt = unary(
    "rsqrt", lambda x: _one(x) / np.sqrt(x), lambda x, y: -y * y * y / 2, fractions=True, says="1 / sqrt(x)"
)
sin = unary("sin", np.sin, lambda x, y: np.cos(x))
cos = unary("cos", np.cos, lambda x, y: -np.sin(x))
log1p = unary("log1p", np.log1p, lambda x, y: 1 / (1 + x))
expm1 = unary("expm1", np.expm1, lambda x, y: y + 1)
softplus = unary(
    "softplus",
    lambda x: np.logaddexp(x, np.zeros((), x.dtype)),
    lambda x, y: stable_sigmoid(x),
    fractions=True,
    says="log(1 + exp(x))",
)
silu = unary(
    "silu",
    lambda x: x * stable_sigmoid(x),
    lambda x, y: stable_sigmoid(x) + y * (1 - stable_sigmoid(x)),
    fractions=True,
    says="x / (1 + exp(-x))",
)
relu6 = unary(
    "relu6",
    lambda x: np.clip(x, 0, 6).astype(x.dtype),
    lambda x, y: (x > 0) & (x < 6),
    real=True,
    says="min(max(x, 0), 6)",
)
elu = unary(
    "elu",
    lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    lambda x, y: np.where(x > 0, _one(y), y + 1),
    fractions=True,
    real=True,
    says="x if x > 0 else exp(x) - 1",
)


def _add_n_rule(*shapes: tuple[int, ...]) -> Rule:
    if len(set(shapes)) > 1:
        raise RuleError(f"add_n takes tensors of one shape, but got {', '.join(map(str, shapes))}")
    return Rule.parse(f"{', '.join(['...'] * len(shapes))} -> ...", linear="all")


def _add_n_forward(*arrays: np.ndarray) -> np.ndarray:
    total = np.array(arrays[0])
    for array in arrays[1:]:
        total = total + array
    return total


_add_n_op = Op("add_n", _add_n_rule, _add_n_forward, lambda dy, operands, _y: [dy] * len(operands))


@operator(_add_n_op)
def add_n(*tensors: Operand) -> Tensor:
    """The sum of tensors of one shape.

    Raises:
        RuleError: shapes that differ.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.add_n(x, x, x).full().tolist()
    [[9, 3, 6], [18, 15, 12]]
    """
    return _add_n_op(*alike("add_n", *tensors))


def _channel_rule(x: tuple[int, ...], channel: tuple[int, ...], dim: int, linear: Any = "none") -> Rule:
    """``x`` with one parameter per entry of a dim; a single entry serves them all."""
    if not 0 <= dim < len(x):
        raise OutOfRange(f"dim {dim} is out of range for a tensor of {len(x)} dims")
    names = [f"d{k}" for k in range(len(x))]
    parameter = "1" if channel == (1,) and x[dim] != 1 else names[dim]
    return Rule.parse(f"{' '.join(names)}, {parameter} -> {' '.join(names)}", linear=linear)


def _along(parameter: np.ndarray, ndim: int, dim: int) -> np.ndarray:
    return parameter.reshape([-1 if k == dim else 1 for k in range(ndim)])


def _per_channel(gradient: np.ndarray, parameter: np.ndarray, dim: int) -> np.ndarray:
    dims = tuple(k for k in range(gradient.ndim) if k != dim)
    total = gradient.sum(axis=dims, dtype=gradient.dtype)
    array: np.ndarray = (
        total if total.shape == parameter.shape else total.sum(keepdims=True, dtype=total.dtype)
    )
    return array


def _bias_rule(x: tuple[int, ...], bias: tuple[int, ...], dim: int) -> Rule:
    return _channel_rule(x, bias, dim, linear="all")


def _bias_vjp(dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any, dim: int) -> tuple[Any, Any]:
    return dy, _per_channel(dy, operands[1], dim)


_bias_op = Op("bias_add", _bias_rule, lambda x, bias, dim: x + _along(bias, x.ndim, dim), _bias_vjp)


@operator(_bias_op)
def bias_add(x: Tensor, bias: Operand, dim: int = 1, *, axis: int = 1) -> Tensor:
    """``x`` plus one number per entry of a dim: ``[n, c, ...] + [c]``.

    Args:
        x: ``[n, c, ...]``.
        bias: ``[c]``, or ``[1]`` for the same number everywhere.
        dim: which dim of ``x`` is ``c``, the second by default.
        axis: the same as ``dim``.

    Returns:
        The shape of ``x``, in the type in which both meet.

    Raises:
        RuleError: a bias of several dims or none, or of another size than the dim.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.bias_add(x, [10, 20, 30]).full().tolist()
    [[13, 21, 32], [16, 25, 34]]
    """
    return _bias_op(*alike("bias_add", x, bias), dim=counted_dim(dim, x.ndim))


def _prelu(x: np.ndarray, slope: np.ndarray, dim: int) -> np.ndarray:
    return np.where(x > 0, x, x * _along(slope, x.ndim, dim))


def _prelu_vjp(dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any, dim: int) -> tuple[Any, Any]:
    x, slope = operands
    negative = x <= 0
    return (
        np.where(negative, dy * _along(slope, x.ndim, dim), dy),
        _per_channel(np.where(negative, dy * x, np.zeros((), dy.dtype)), slope, dim),
    )


_prelu_op = Op(
    "prelu",
    _channel_rule,
    _prelu,
    _prelu_vjp,
    dtype=lambda x, slope, dim: ordered(promoted(x, slope), "prelu"),
)


@operator(_prelu_op)
def prelu(x: Tensor, slope: Operand, dim: int = 1, *, axis: int = 1) -> Tensor:
    """``x`` where positive, else ``x`` times the slope of its channel (one for all if it has one entry).

    Args:
        x: ``[n, c, ...]``, real.
        slope: ``[c]``, or ``[1]`` for the same slope everywhere.
        dim: which dim of ``x`` is ``c``, the second by default.
        axis: the same as ``dim``.

    Returns:
        The shape of ``x``, in the type in which both meet.

    Raises:
        RuleError: slopes of several dims or none, or of another size than the dim; complex numbers.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.prelu(x - 2.0, [0.5, 0.1]).full().tolist()
    [[1.0, -0.1], [0.0, 2.0]]
    """
    return _prelu_op(*alike("prelu", x, slope), dim=counted_dim(dim, x.ndim))
