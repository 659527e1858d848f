"""Root mean square and Euclidean norm of rows, which must be whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.core import PASSES, Rule
from spmdsim.errors import RuleError
from spmdsim.ops.declare import in_fractions
from spmdsim.ops.normalise import norm_terms, row_rule
from spmdsim.ops.operators import operator
from spmdsim.ops.reduce import Dims, normal_dims
from spmdsim.tensor import Op, Tensor


def _rms_rule(x: tuple[int, ...], scale: tuple[int, ...], epsilon: float) -> Rule:
    if not 1 <= len(scale) <= len(x):
        raise RuleError(f"rms_norm needs a scale with the last dims of x, but got shapes {x} and {scale}")
    data, parameters = norm_terms(len(x), len(scale), -len(scale))
    return Rule.parse(
        f"{data}, {parameters} -> {data}", whole=parameters, linear=((1,),), work=PASSES, backward=3
    )


def _inverse(x: np.ndarray, scale: np.ndarray, epsilon: float) -> tuple[np.ndarray, tuple[int, ...]]:
    dims = tuple(range(x.ndim - scale.ndim, x.ndim))
    power = (x * x).mean(axis=dims, keepdims=True, dtype=x.dtype)
    return 1 / np.sqrt(power + np.asarray(epsilon, x.dtype)), dims


def _rms(x: np.ndarray, scale: np.ndarray, epsilon: float) -> np.ndarray:
    array: np.ndarray = x * _inverse(x, scale, epsilon)[0] * scale
    return array


def _rms_vjp(
    dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any, epsilon: float
) -> tuple[np.ndarray, np.ndarray]:
    x, scale = operands
    inverse, dims = _inverse(x, scale, epsilon)
    hat, dhat = x * inverse, dy * scale
    dx = inverse * (dhat - hat * (dhat * hat).mean(axis=dims, keepdims=True, dtype=x.dtype))
    return dx, (dy * hat).sum(axis=tuple(range(x.ndim - scale.ndim)), dtype=x.dtype)


_rms_op = Op("rms_norm", _rms_rule, _rms, _rms_vjp)


@operator(_rms_op)
def rms_norm(x: Tensor, scale: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Rows divided by their root mean square, then scaled (Zhang and Sennrich, 2019).

    Args:
        x: ``[..., n]``.
        scale: ``[n]``, or more of the last dims of ``x``.
        epsilon: added to the mean square.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.rms_norm(x, Tensor.ones((2,), layout=x.layout.mesh(None))).full().round(4).tolist()
    [[1.3416, 0.4472], [0.6325, 1.2649]]
    """
    x, scale = in_fractions("rms_norm", x, scale)
    return _rms_op(x, scale, epsilon=epsilon)


def _length(x: np.ndarray, dim: tuple[int, ...], epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    total = (x * x).sum(axis=dim, keepdims=True, dtype=x.dtype)
    small = total <= epsilon
    return np.sqrt(np.maximum(total, np.asarray(epsilon, x.dtype))), small


def _l2(x: np.ndarray, dim: tuple[int, ...], epsilon: float) -> np.ndarray:
    array: np.ndarray = x / _length(x, dim, epsilon)[0]
    return array


def _l2_vjp(
    dy: np.ndarray, operands: Sequence[np.ndarray], y: Any, dim: tuple[int, ...], epsilon: float
) -> tuple[np.ndarray]:
    length, small = _length(operands[0], dim, epsilon)
    along = (dy * y).sum(axis=dim, keepdims=True, dtype=y.dtype)
    return ((dy - y * np.where(small, np.zeros((), y.dtype), along)) / length,)


_l2_op = Op("l2_normalize", row_rule, _l2, _l2_vjp, saves_result=True)


@operator(_l2_op)
def l2_normalize(x: Tensor, dims: Dims = -1, epsilon: float = 1e-12, *, axis: Dims = -1) -> Tensor:
    """``x`` divided by its Euclidean norm over dims (at least the root of ``epsilon``).

    Args:
        x: real numbers of any shape; whole numbers become fractions.
        dims: over which dims the norm is, the last by default; all for None. Those that are split are brought
            together first.
        epsilon: the least that a sum of squares is taken for, so that rows of zeros stay zeros.
        axis: the same as ``dims``.

    Returns:
        The shape of ``x``.

    Raises:
        RuleError: a dim out of range or given twice, or complex numbers.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.l2_normalize(x).full().round(4).tolist()
    [[0.9487, 0.3162], [0.4472, 0.8944]]
    """
    return _l2_op(*in_fractions("l2_normalize", x), dim=normal_dims(dims, x.ndim), epsilon=epsilon)
