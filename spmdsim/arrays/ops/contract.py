"""Matrix and vector products: ``matmul`` with batch dimensions, ``vdot`` and the linear layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.arrays import Op, Tensor
from spmdsim.arrays.operands import Operand
from spmdsim.arrays.ops.declare import Array, Arrays, Gradient, Shape, conj, convert_to_one_type, unbroadcast
from spmdsim.arrays.ops.elementwise import add
from spmdsim.arrays.ops.operators import operator
from spmdsim.core import Rule
from spmdsim.core.operator import apply
from spmdsim.errors import RuleError
from spmdsim.worlds.pool import SMALLEST, take_buffer

__all__ = ["linear", "matmul", "vdot"]


def _transpose_if(array: Array, transposed: bool) -> Array:
    """Exchange the last two dims of an array if ``transposed``; a vector stays."""
    return array.swapaxes(-1, -2) if transposed and array.ndim > 1 else array


def _multiply_matrices(a: Array, b: Array) -> Array:
    """Return ``a @ b`` in C order; write a large result into a reused buffer.

    A reused buffer spares the page faults of a fresh one, which cost up to the product's own time. A fresh array is
    used for results of less than ``SMALLEST`` bytes (256 KiB), for vectors, and for operands of different types.
    Leading dims broadcast.
    """
    is_small = a.ndim == b.ndim == 2 and a.shape[0] * b.shape[1] * a.itemsize < SMALLEST
    if is_small or a.ndim < 2 or b.ndim < 2 or a.dtype != b.dtype:
        array: Array = np.matmul(a, b)
        return array
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) if a.ndim > 2 or b.ndim > 2 else ()
    # A reused buffer spares the page faults of a fresh one, which cost up to the product's own time.
    return np.matmul(a, b, out=take_buffer((*batch, a.shape[-2], b.shape[-1]), a.dtype))


def _matmul_rule(a: Shape, b: Shape, transpose_a: bool = False, transpose_b: bool = False) -> Rule:
    """Return the rule of a matrix product: rows m, contraction k, columns n, batch "...".

    Two matrices have "... m k, ... k n -> ... m n". An operand of one dim is ``k``. Sizes are not compared here.
    """
    if not a or not b:
        raise RuleError(f"matmul needs operands of at least 1 dim, but got shapes {a} and {b}")
    left = "k" if len(a) == 1 else "... k m" if transpose_a else "... m k"
    right = "k" if len(b) == 1 else "... n k" if transpose_b else "... k n"
    result_dims = [("...", len(a) > 1 or len(b) > 1), ("m", len(a) > 1), ("n", len(b) > 1)]
    out = " ".join(dim for dim, exists in result_dims if exists)
    order = " ".join(dim for dim in ("...", "m", "k", "n") if dim in f"{left} {right}".split())
    return Rule.parse(f"{left}, {right} -> {out}", linear="each", order=order)


def _matmul(a: Array, b: Array, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    """Compute the product of two operands, each transposed on request."""
    if transpose_a or transpose_b:
        a, b = _transpose_if(a, transpose_a), _transpose_if(b, transpose_b)
    return _multiply_matrices(a, b)


def _matmul_vjp(
    dy: Array, operands: Arrays, _result: Any, transpose_a: bool = False, transpose_b: bool = False
) -> tuple[Gradient, Gradient]:
    """Return functions that compute the gradients of a matrix product by its operands.

    For matrices ``y = a b`` they are ``dy b^H`` and ``a^H dy``, where ``^H`` is the conjugate transpose. A vector
    counts as a matrix with one row or one column. Gradients are summed over batch dims that broadcast. All arrays are
    one rank's blocks. A function runs only if its gradient is needed.

    Args:
        dy: the gradient of the product.
        operands: both operands.
        _result: the product; not used.
        transpose_a: True if the product used the transpose of the first operand.
        transpose_b: True if the product used the transpose of the second operand.
    """
    a, b = _transpose_if(operands[0], transpose_a), _transpose_if(operands[1], transpose_b)
    if a.ndim == 1 and b.ndim == 1:
        return lambda: dy * conj(b), lambda: dy * conj(a)  # each a number times a vector
    if a.ndim == b.ndim == 2:
        return (
            lambda: _transpose_if(_multiply_matrices(dy, conj(b).T), transpose_a),
            lambda: _transpose_if(_multiply_matrices(conj(a).T, dy), transpose_b),
        )
    left, right = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    full = dy
    if b.ndim == 1:
        full = full[..., None]
    if a.ndim == 1:
        full = full[..., None, :]

    def compute_a_gradient() -> Array:
        """Compute the gradient of ``a``."""
        da = _multiply_matrices(full, conj(right).swapaxes(-1, -2))
        return _transpose_if(unbroadcast(da, left.shape).reshape(a.shape), transpose_a)

    def compute_b_gradient() -> Array:
        """Compute the gradient of ``b``."""
        db = _multiply_matrices(conj(left).swapaxes(-1, -2), full)
        return _transpose_if(unbroadcast(db, right.shape).reshape(b.shape), transpose_b)

    return compute_a_gradient, compute_b_gradient


_matmul_op = Op("matmul", _matmul_rule, _matmul, _matmul_vjp)


@operator(_matmul_op)
def matmul(a: Operand, b: Operand, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """Compute the matrix product over the last two dimensions, ``[..., m, n]``.

    Leading dimensions broadcast as in NumPy. If the contraction ``k`` is split, the result is partial over the axes of
    ``k``.

    Args:
        a: ``[..., m, k]`` (``[..., k, m]`` with ``transpose_a``), or ``[k]``. A tensor or an array; one of both
            operands is a tensor.
        b: ``[..., k, n]`` (``[..., n, k]`` with ``transpose_b``), or ``[k]``.
        transpose_a: swap the last two dims of ``a``; a vector stays as it is.
        transpose_b: swap the last two dims of ``b``; a vector stays as it is.

    Returns:
        ``[..., m, n]``, without ``m`` or ``n`` for an operand ``[k]``, in the promoted type of both.

    Raises:
        RuleError: If the sizes of ``k`` or of the batch dimensions differ, or an operand has no dimension.
        UsageTypeError: If no operand is a tensor.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> y = ops.matmul(m, m)
    >>> y.layout.placement_text(), y.full().tolist()
    ('S(0)', [[11.0, 7.0], [14.0, 18.0]])
    """
    if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.meta.dtype is b.meta.dtype):
        a, b = convert_to_one_type("matmul", a, b)
    if transpose_a or transpose_b:
        return _matmul_op(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    return apply(_matmul_op, (a, b), {})  # type: ignore[no-any-return]


def _vdot_rule(a: Shape, b: Shape) -> Rule:
    """Return the rule of ``vdot``; raise RuleError for different shapes."""
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
    """Compute the sum of products of all elements; elements of ``a`` are conjugated.

    For boolean tensors the result is True if any product is true. It is partial over the axes that split any
    dimension.

    Args:
        a: a tensor of any shape.
        b: a tensor of the shape of ``a``.

    Returns:
        A tensor of shape (), partial over the axes that split the operands.

    Raises:
        RuleError: If the shapes differ.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> y = ops.vdot(m, m)
    >>> y.layout.placement_text(), float(y.full())
    ('P(sum)', 30.0)
    """
    return _vdot_op(*convert_to_one_type("vdot", a, b))


@operator()
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``x @ weight + bias``.

    If the columns of the weight are split, the columns of the result are split, too, and the bias may be split like
    them. If the rows of the weight are split, the product is partial. It is reduced before the bias is added.

    Args:
        x: ``[..., n]``.
        weight: ``[n, m]``.
        bias: ``[m]``, or None for no bias.

    Returns:
        ``[..., m]``. Without a bias it is partial if the rows of the weight are split.

    Raises:
        RuleError: If the sizes ``n`` or ``m`` differ.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.linear(m, m).full().tolist()
    [[11.0, 7.0], [14.0, 18.0]]
    """
    y = matmul(x, weight)
    return y if bias is None else add(y.to(y.layout.reduced), bias)
