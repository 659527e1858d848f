"""Products: matmul with transposes and broadcast batch dims, vdot, and the linear layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.arrays import Op, Tensor
from spmdsim.arrays.operands import Operand
from spmdsim.arrays.ops.declare import Array, Arrays, Gradient, Shape, alike, conj, unbroadcast
from spmdsim.arrays.ops.elementwise import add
from spmdsim.arrays.ops.operators import operator
from spmdsim.core import Rule
from spmdsim.core.operator import apply
from spmdsim.errors import RuleError
from spmdsim.worlds.pool import SMALLEST, empty

__all__ = ["linear", "matmul", "vdot"]


def _swap(array: Array, transposed: bool) -> Array:
    return array.swapaxes(-1, -2) if transposed and array.ndim > 1 else array


def _product(a: Array, b: Array) -> Array:
    """``a @ b`` in C order."""
    few = a.ndim == b.ndim == 2 and a.shape[0] * b.shape[1] * a.itemsize < SMALLEST
    if few or a.ndim < 2 or b.ndim < 2 or a.dtype != b.dtype:
        array: Array = np.matmul(a, b)
        return array
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) if a.ndim > 2 or b.ndim > 2 else ()
    # A reused buffer spares the page faults of a fresh one, which cost up to the product's own time.
    return np.matmul(a, b, out=empty((*batch, a.shape[-2], b.shape[-1]), a.dtype))


def _matmul_rule(a: Shape, b: Shape, transpose_a: bool = False, transpose_b: bool = False) -> Rule:
    if not a or not b:
        raise RuleError(f"matmul needs operands of at least 1 dim, but got shapes {a} and {b}")
    left = "k" if len(a) == 1 else "... k m" if transpose_a else "... m k"
    right = "k" if len(b) == 1 else "... n k" if transpose_b else "... k n"
    out = " ".join(
        part
        for part, there in (("...", len(a) > 1 or len(b) > 1), ("m", len(a) > 1), ("n", len(b) > 1))
        if there
    )
    order = " ".join(part for part in ("...", "m", "k", "n") if part in f"{left} {right}".split())
    return Rule.parse(f"{left}, {right} -> {out}", linear="each", order=order)


def _matmul(a: Array, b: Array, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    if transpose_a or transpose_b:
        a, b = _swap(a, transpose_a), _swap(b, transpose_b)
    return _product(a, b)


def _matmul_vjp(
    dy: Array, operands: Arrays, _result: Any, transpose_a: bool = False, transpose_b: bool = False
) -> tuple[Gradient, Gradient]:
    a, b = _swap(operands[0], transpose_a), _swap(operands[1], transpose_b)
    if a.ndim == 1 and b.ndim == 1:
        return lambda: dy * conj(b), lambda: dy * conj(a)
    if a.ndim == b.ndim == 2:
        return (
            lambda: _swap(_product(dy, conj(b).T), transpose_a),
            lambda: _swap(_product(conj(a).T, dy), transpose_b),
        )
    left, right = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    full = dy
    if b.ndim == 1:
        full = full[..., None]
    if a.ndim == 1:
        full = full[..., None, :]

    def of_a() -> Array:
        da = _product(full, conj(right).swapaxes(-1, -2))
        return _swap(unbroadcast(da, left.shape).reshape(a.shape), transpose_a)

    def of_b() -> Array:
        db = _product(conj(left).swapaxes(-1, -2), full)
        return _swap(unbroadcast(db, right.shape).reshape(b.shape), transpose_b)

    return of_a, of_b


_matmul_op = Op("matmul", _matmul_rule, _matmul, _matmul_vjp)


@operator(_matmul_op)
def matmul(a: Operand, b: Operand, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """Compute the matrix product over the last two dimensions, ``[..., m, n]``.

    Leading dimensions broadcast as in NumPy.

    Where the contraction k is split, it is partial over its axes until somebody needs it.

    Args:
        a: ``[..., m, k]`` (``[..., k, m]`` with ``transpose_a``), or ``[k]``.
        b: ``[..., k, n]`` (``[..., n, k]`` with ``transpose_b``), or ``[k]``.
        transpose_a: swap the last two dims of ``a``.
        transpose_b: swap the last two dims of ``b``.

    Raises:
        RuleError: contraction or batch sizes that differ.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> y = ops.matmul(m, m)
    >>> y.layout.short(), y.full().tolist()
    ('S(0)', [[11.0, 7.0], [14.0, 18.0]])
    """
    if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.meta.dtype is b.meta.dtype):
        a, b = alike("matmul", a, b)
    if transpose_a or transpose_b:
        return _matmul_op(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    return apply(_matmul_op, (a, b), {})  # type: ignore[no-any-return]


def _vdot_rule(a: Shape, b: Shape) -> Rule:
    if a != b:
        raise RuleError(f"vdot takes tensors of one shape, but got {a} and {b}")
    dims = " ".join(f"d{k}" for k in range(len(a)))
    return Rule.parse(f"{dims}, {dims} ->", linear="each")


_vdot_op = Op(
    "vdot",
    _vdot_rule,
    lambda a, b: np.asarray(np.vdot(a, b)),
    lambda dy, operands, _: (lambda: np.conj(dy) * operands[1], lambda: dy * operands[0]),
)


@operator(_vdot_op)
def vdot(a: Operand, b: Operand) -> Tensor:
    """Compute the sum of products of all elements, the first ones conjugated.

    For truth values it tells if any product is true.

    Partial over the axes that split any dim.

    Args:
        a: of any shape.
        b: of the same.

    Raises:
        RuleError: other shapes.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> y = ops.vdot(m, m)
    >>> y.layout.short(), float(y.full())
    ('P(sum)', 30.0)
    """
    return _vdot_op(*alike("vdot", a, b))


@operator()
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``x @ weight + bias``.

    A weight split by columns gives a result split by columns, with a bias split alike; a weight split by
    rows gives a partial product, which is reduced before the bias is added, so that it is added once.

    Args:
        x: ``[..., n]``.
        weight: ``[n, m]``.
        bias: ``[m]``, or None.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.linear(m, m).full().tolist()
    [[11.0, 7.0], [14.0, 18.0]]
    """
    y = matmul(x, weight)
    return y if bias is None else add(y.to(y.layout.reduced), bias)
