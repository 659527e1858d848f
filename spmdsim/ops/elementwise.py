"""Element by element, with numpy's broadcasting: each operator is one row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.ops.broadcast import unbroadcast
from spmdsim.rules import Rule
from spmdsim.tensor import Op, Tensor
from spmdsim.tensor.apply import as_operand

Vjp = Callable[..., Sequence[Any]]


def _binary(
    name: str,
    function: Callable[..., Any],
    vjp: Vjp | None,
    linear: Any = "none",
    dtype: Any = None,
    **rule: Any,
) -> Callable[[Any, Any], Tensor]:
    declared = Rule.parse("..., ... -> ...", linear=linear, **rule)
    op = Op(name, declared, function, None if vjp is None else _summed(vjp), dtype=dtype)

    def call(a: Any, b: Any) -> Tensor:
        like = a if isinstance(a, Tensor) else b
        return op(as_operand(a, like), as_operand(b, like))

    return _named(call, op, name)


def _summed(vjp: Vjp) -> Vjp:
    def local(dy: np.ndarray, operands: Sequence[np.ndarray], result: Any, **params: Any) -> list[Any]:
        found = vjp(dy, operands, result, **params)
        return [None if g is None else unbroadcast(g, x.shape) for g, x in zip(found, operands)]

    return local


def _unary(
    name: str,
    function: Callable[..., Any],
    derivative: Callable[[np.ndarray, np.ndarray], np.ndarray] | None,
    linear: Any = "none",
    dtype: Any = None,
    **rule: Any,
) -> Callable[..., Tensor]:
    """A function of one element; ``derivative(x, y)`` gives dy/dx from operand and result."""

    def vjp(dy: np.ndarray, operands: Sequence[np.ndarray], result: np.ndarray) -> tuple[np.ndarray]:
        return (dy * derivative(operands[0], result),)  # type: ignore[misc]

    declared = Rule.parse("... -> ...", linear=linear, **rule)
    op = Op(name, declared, function, vjp if derivative else None, dtype=dtype, saves_result=True)

    def call(x: Tensor) -> Tensor:
        return op(x)

    return _named(call, op, name)


def _named(call: Callable[..., Tensor], op: Op, name: str) -> Callable[..., Tensor]:
    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"``{name}``, element by element."
    call.op = op  # type: ignore[attr-defined]
    return call


def _bool(*_: Any) -> np.dtype:
    return np.dtype(bool)


def _divided(a: np.dtype, b: np.dtype) -> np.dtype:
    return np.result_type(np.true_divide(np.ones((), a), np.ones((), b)))


def _floating(dtype: np.dtype) -> np.dtype:
    return dtype if dtype.kind in "fcV" else np.exp(np.ones((), dtype)).dtype


def _same(dtype: np.dtype) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: array.astype(dtype, copy=False)


# A product is linear in each factor, a sum in both together, a quotient in the numerator.
add = _binary("add", np.add, lambda dy, ab, y: (dy, dy), linear="all")
subtract = _binary("subtract", np.subtract, lambda dy, ab, y: (dy, -dy), linear="all", passes=("sum", "avg"))
multiply = _binary("multiply", np.multiply, lambda dy, ab, y: (dy * ab[1], dy * ab[0]), linear="each")
divide = _binary(
    "divide",
    np.true_divide,
    lambda dy, ab, y: (dy / ab[1], -dy * ab[0] / (ab[1] * ab[1])),
    linear=((0,),),
    dtype=_divided,
)


def _power_vjp(dy: np.ndarray, ab: Sequence[np.ndarray], y: Any) -> tuple[np.ndarray, np.ndarray]:
    a, b = ab
    safe = np.where(a > 0, a, np.ones_like(a))
    return dy * b * np.power(a, b - 1), dy * np.power(a, b) * np.log(safe)


def _chosen(pick: Callable[..., Any]) -> Vjp:
    """The gradient goes to the operand that was picked, to both halves where they are equal."""

    def vjp(dy: np.ndarray, ab: Sequence[np.ndarray], _y: Any) -> tuple[np.ndarray, np.ndarray]:
        a, b = ab
        share = pick(a, b).astype(dy.dtype) + (a == b) * np.asarray(0.5, dy.dtype)
        return dy * share, dy * (1 - share)

    return vjp


power = _binary("power", np.power, _power_vjp)
maximum = _binary("maximum", np.maximum, _chosen(np.greater))
minimum = _binary("minimum", np.minimum, _chosen(np.less))
equal = _binary("equal", np.equal, None, dtype=_bool)
greater = _binary("greater", np.greater, None, dtype=_bool)
less = _binary("less", np.less, None, dtype=_bool)

negative = _unary("negative", np.negative, lambda x, y: np.asarray(-1, x.dtype), linear="each")
exp = _unary("exp", np.exp, lambda x, y: y, dtype=_floating)
log = _unary("log", np.log, lambda x, y: 1 / x, dtype=_floating)
sqrt = _unary("sqrt", np.sqrt, lambda x, y: np.asarray(0.5, y.dtype) / y, dtype=_floating)
tanh = _unary("tanh", np.tanh, lambda x, y: 1 - y * y, dtype=_floating)
absolute = _unary("absolute", np.absolute, lambda x, y: np.sign(x))


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, np.zeros((), x.dtype))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow on either side."""
    small = np.exp(-np.abs(x))
    one = np.asarray(1, small.dtype)
    return np.where(x >= 0, one / (one + small), small / (one + small))


relu = _unary("relu", _relu, lambda x, y: x > 0)
sigmoid = _unary("sigmoid", _sigmoid, lambda x, y: y * (1 - y), dtype=_floating)

_GELU = 0.7978845608028654  # sqrt(2 / pi)


def _gelu(x: np.ndarray) -> np.ndarray:
    """The tanh form of GELU (Hendrycks and Gimpel, 2016)."""
    half, cubic = np.asarray(0.5, x.dtype), np.asarray(0.044715, x.dtype)
    return half * x * (1 + np.tanh(np.asarray(_GELU, x.dtype) * (x + cubic * x * x * x)))


def _gelu_slope(x: np.ndarray, _y: np.ndarray) -> np.ndarray:
    half, cubic, scale = (np.asarray(v, x.dtype) for v in (0.5, 0.044715, _GELU))
    t = np.tanh(scale * (x + cubic * x * x * x))
    return half * (1 + t) + half * x * (1 - t * t) * scale * (1 + 3 * cubic * x * x)


gelu = _unary("gelu", _gelu, _gelu_slope)


def _cast_vjp(dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any, dtype: Any) -> tuple[np.ndarray]:
    return (dy.astype(operands[0].dtype),)


_cast_op = Op(
    "cast",
    Rule.parse("... -> ...", linear="each"),
    lambda x, dtype: x.astype(dtype),
    _cast_vjp,
    dtype=lambda _, dtype: np.dtype(dtype),
)


def cast(x: Tensor, dtype: Any) -> Tensor:
    """The tensor with another element type."""
    return _cast_op(x, dtype=np.dtype(dtype))


cast.op = _cast_op  # type: ignore[attr-defined]


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
    dtype=lambda _, a, b: np.result_type(a, b),
)


def where(condition: Any, a: Any, b: Any) -> Tensor:
    """``a`` where the condition holds, else ``b``; all three broadcast."""
    like = next(value for value in (condition, a, b) if isinstance(value, Tensor))
    typed = next((value for value in (a, b) if isinstance(value, Tensor)), like)
    return _where_op(as_operand(condition, like), as_operand(a, typed), as_operand(b, typed))


where.op = _where_op  # type: ignore[attr-defined]
