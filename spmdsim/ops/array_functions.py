"""The functions of elements that the array API standard adds: each operator is one row, by numpy's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.core import FUNCTIONS, Rule
from spmdsim.layout.element_type import promoted
from spmdsim.ops.broadcast import unbroadcast
from spmdsim.ops.declare import alike, binary, conj, unary
from spmdsim.ops.operators import operator
from spmdsim.tensor import Op, Tensor
from spmdsim.tensor.element_types import ordered
from spmdsim.tensor.operands import Operand, as_operand

# -- of one element -----------------------------------------------------------------------------------

isnan = unary("isnan", np.isnan, None)
isinf = unary("isinf", np.isinf, None)
isfinite = unary("isfinite", np.isfinite, None)
signbit = unary("signbit", np.signbit, None)
round = unary("round", np.round, None)
trunc = unary("trunc", np.trunc, None)
positive = unary("positive", np.positive, lambda x, y: np.ones((), x.dtype), linear="each")
bitwise_invert = unary("bitwise_invert", np.invert, None)
conjugate = unary("conjugate", np.conjugate, vjp=lambda dy, xs, y: (conj(dy),), linear="each")
real = unary(
    "real", lambda x: np.array(x.real), lambda x, y: np.ones((), x.dtype), linear="each", says="x.real"
)
imag = unary("imag", lambda x: np.array(x.imag), lambda x, y: np.asarray(-1j), linear="each", says="x.imag")

_LN2, _LN10 = np.log(2.0), np.log(10.0)
log2 = unary("log2", np.log2, lambda x, y: 1 / (x * y.dtype.type(_LN2)), work=FUNCTIONS)
log10 = unary("log10", np.log10, lambda x, y: 1 / (x * y.dtype.type(_LN10)), work=FUNCTIONS)
tan = unary("tan", np.tan, lambda x, y: 1 + y * y, work=FUNCTIONS)
sinh = unary("sinh", np.sinh, lambda x, y: np.cosh(x), work=FUNCTIONS)
cosh = unary("cosh", np.cosh, lambda x, y: np.sinh(x), work=FUNCTIONS)
arcsin = unary("arcsin", np.arcsin, lambda x, y: 1 / np.cos(y), work=FUNCTIONS)
arccos = unary("arccos", np.arccos, lambda x, y: -1 / np.sin(y), work=FUNCTIONS)
arctan = unary("arctan", np.arctan, lambda x, y: 1 / (1 + x * x), work=FUNCTIONS)
arcsinh = unary("arcsinh", np.arcsinh, lambda x, y: 1 / np.cosh(y), work=FUNCTIONS)
arccosh = unary("arccosh", np.arccosh, lambda x, y: 1 / np.sinh(y), work=FUNCTIONS)
arctanh = unary("arctanh", np.arctanh, lambda x, y: 1 / (1 - x * x), work=FUNCTIONS)

# -- of two elements ----------------------------------------------------------------------------------

logical_xor = binary("logical_xor", np.logical_xor, None)
bitwise_and = binary("bitwise_and", np.bitwise_and, None)
bitwise_or = binary("bitwise_or", np.bitwise_or, None)
bitwise_xor = binary("bitwise_xor", np.bitwise_xor, None)
left_shift = binary("left_shift", np.left_shift, None)
right_shift = binary("right_shift", np.right_shift, None)
nextafter = binary("nextafter", np.nextafter, None, moves=True)
copysign = binary(
    "copysign",
    np.copysign,
    lambda dy, ab, y: (dy * np.sign(ab[0]) * np.copysign(_one(ab[1]), ab[1]), np.zeros_like(dy)),
)
hypot = binary("hypot", np.hypot, lambda dy, ab, y: (dy * _share(ab[0], *ab), dy * _share(ab[1], *ab)))
logaddexp = binary(
    "logaddexp",
    np.logaddexp,
    lambda dy, ab, y: (dy * _odds(ab[0] - ab[1]), dy * _odds(ab[1] - ab[0])),
    work=FUNCTIONS,
)


def _one(x: np.ndarray) -> np.ndarray:
    return np.ones((), x.dtype)


def _share(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A leg over the hypotenuse; nothing where that is zero."""
    y = np.hypot(a, b)
    array: np.ndarray = x / np.where(y == 0, np.ones((), y.dtype), y)
    return array


def _odds(x: np.ndarray) -> np.ndarray:
    array: np.ndarray = np.exp(-np.logaddexp(np.zeros((), x.dtype), -x))
    return array


# -- of several ---------------------------------------------------------------------------------------


def _clip_rule(*shapes: tuple[int, ...], limits: str) -> Rule:
    return Rule.parse(f"{', '.join(['...'] * len(shapes))} -> ...")


def _bounded(arrays: Sequence[np.ndarray], limits: str) -> tuple[Any, Any, Any]:
    """The elements, and the limits that there are."""
    rest = list(arrays[1:])
    return arrays[0], rest.pop(0) if "min" in limits else None, rest.pop() if "max" in limits else None


def _clip_forward(*arrays: np.ndarray, limits: str) -> np.ndarray:
    return np.asarray(np.clip(*_bounded(arrays, limits)))


def _clip_vjp(dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any, limits: str) -> list[np.ndarray]:
    """An element has a slope up to its limits, a limit where it is what comes out."""
    x, low, high = _bounded(operands, limits)
    zero = np.zeros((), dy.dtype)
    above = False if high is None else x > high
    above = above if low is None or high is None else above | (low > high)
    below = np.zeros((), bool) if low is None else (x < low) & ~np.asarray(above)
    masks = [
        ~(np.asarray(above) | below),
        *([] if low is None else [below]),
        *([] if high is None else [above]),
    ]
    return [unbroadcast(np.where(mask, dy, zero), x.shape) for mask, x in zip(masks, operands)]


_clip_op = Op(
    "clip",
    _clip_rule,
    _clip_forward,
    _clip_vjp,
    dtype=lambda *dtypes, limits: ordered(promoted(*dtypes), "clip"),
)


@operator(_clip_op)
def clip(x: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """``x``, but no element less than ``min`` or more than ``max``, which broadcast; no limit for None.

    Args:
        x: real numbers of any shape.
        min: a number, an array or a tensor that broadcasts with ``x``; no limit for None.
        max: as ``min``. Where it is less than ``min`` the result is ``max``.

    Returns:
        The shape to which all broadcast, in the type in which they meet.

    Raises:
        RuleError: complex numbers, or shapes that do not broadcast.

    >>> from spmdsim import Tensor
    >>> clip(Tensor.arange(5), 1, 3).full().tolist()
    [1, 1, 2, 3, 3]
    """
    limits = [value for value in (min, max) if value is not None]
    names = " ".join(name for name, value in (("min", min), ("max", max)) if value is not None)
    if not limits:
        return positive(x)
    tensors = alike("clip", *[as_operand(value, x) for value in (x, *limits)])
    return _clip_op(*tensors, limits=names)
