"""Norms, ranks and other functions of singular values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spmdsim.arrays import Tensor, ops
from spmdsim.arrays.linalg.by_panels import inv
from spmdsim.arrays.linalg.tall import adjoint, reduced_svd, svdvals
from spmdsim.arrays.linalg.whole import to_division_type
from spmdsim.arrays.ops.declare import Array, Arrays, Gradient, declare_binary, declare_unary
from spmdsim.arrays.ops.operators import of_tensors
from spmdsim.arrays.ops.scans import normalise_along_dim
from spmdsim.arrays.reduction_methods import Dims
from spmdsim.core import PASSES
from spmdsim.errors import RuleError
from spmdsim.worlds.convert_operands import as_operand

__all__ = ["cond", "lstsq", "matrix_norm", "matrix_rank", "norm", "pinv", "vector_norm"]

Order = int | float | str | None
#: The bound up to which singular values count as 0: one number, or one per matrix.
Bound = float | Tensor | None


def _power_vjp(dy: Array, operands: Arrays, _y: object) -> tuple[Gradient, None]:
    """Return a function that computes the gradient of the base of a power, and None for the exponent.

    The gradient is ``dy * exponent * base ** (exponent - 1)``. It is 0 where the base is 0, unless the exponent is 1,
    and where the base is infinite and the exponent negative. The function runs only if the base requires a gradient.

    Args:
        dy: the gradient of the power.
        operands: base and exponent.
        _y: the power; not used, the interface has it.
    """
    base, exponent = operands

    def compute_base_gradient() -> Array:
        """Compute the gradient of the base."""
        flat = (base == 0) | np.isinf(base) & (exponent < 0)
        slope = exponent * np.power(np.where(flat, np.ones((), base.dtype), base), exponent - 1)
        return dy * np.where(flat & (exponent != 1), np.zeros((), base.dtype), slope)

    return compute_base_gradient, None


def _compute_power(base: Array, exponent: Array) -> Array:
    """Return ``base ** exponent`` without warnings for negative powers of 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.power(base, exponent))


# The Euclidean norm has a kink at the vector 0. Its gradient there is 0, the smallest subgradient.
_root = declare_unary(
    "sqrt", np.sqrt, lambda y: np.where(y == 0, 0, 0.5 / np.where(y == 0, 1, y)).astype(y.dtype)
)
_power = declare_binary("power", _compute_power, _power_vjp, work=PASSES, says="a ** b")


@of_tensors
def vector_norm(x: Tensor, *, axis: Dims = None, keepdims: bool = False, ord: Order = 2) -> Tensor:
    """Compute norms of vectors: ``sum(|x| ** ord) ** (1 / ord)``.

    With ``ord`` inf a norm is the largest absolute value of the vector, with -inf the smallest one. The gradient of a
    vector of zeros is 0.

    Args:
        x: the tensor; integers become float64.
        axis: one dimension or several of each vector; None: all.
        keepdims: keep reduced dimensions in the result, with size 1.
        ord: the order, any number; 0 counts the elements that are not 0.

    Returns:
        Real numbers without the reduced dimensions, or with size 1 for them.

    Raises:
        RuleError: If the order is no number, or a dim is out of range.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> linalg.vector_norm(s, axis=1).full().round(4).tolist()
    [4.4721, 3.6056]
    """
    x = to_division_type(x)
    if ord == 0:
        return ops.sum(ops.cast(ops.not_equal(x, as_operand(0, x)), ops.absolute(x).dtype), axis, keepdims)
    size = ops.absolute(x)
    if ord == 1:
        return ops.sum(size, axis, keepdims)
    if ord == 2:
        return _root(ops.sum(ops.multiply(size, size), axis, keepdims))
    if not isinstance(ord, (int, float)):
        raise RuleError(
            f"vector_norm: ord must be a number, got {ord!r}; use matrix_norm for 'fro' and 'nuc'"
        )
    if math.isinf(ord):
        return (ops.max if ord > 0 else ops.min)(size, axis, keepdims)
    return _power(ops.sum(_power(size, as_operand(ord, size)), axis, keepdims), as_operand(1 / ord, size))


@of_tensors
def matrix_norm(x: Tensor, *, keepdims: bool = False, ord: Order = "fro") -> Tensor:
    """Compute norms of matrices ``[..., m, n]``.

    Args:
        x: the tensor; integers become float64.
        keepdims: keep reduced dimensions in the result, with size 1.
        ord: ``"fro"``: root of the sum of squares; ``"nuc"``: sum of singular values; 2 and -2: largest and smallest
            singular value; 1 and -1: largest and smallest sum of absolute values of a column; ``inf`` and ``-inf``:
            largest and smallest sum of absolute values of a row. None is no order here, but in :func:`norm`.

    Returns:
        Real numbers ``[...]``, or ``[..., 1, 1]`` with ``keepdims``.

    Raises:
        RuleError: If the order is unknown, or ``x`` has fewer than two dims.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> round(linalg.matrix_norm(s).item(), 4)
    5.7446
    """
    if x.ndim < 2:
        raise RuleError(
            f"matrix_norm: x must have at least two dims [..., m, n], got shape {x.shape}; use vector_norm"
        )
    if ord == "fro":
        return vector_norm(x, axis=(x.ndim - 2, x.ndim - 1), keepdims=keepdims)
    x = to_division_type(x)
    if ord in ("nuc", 2, -2):
        reduce = ops.sum if ord == "nuc" else ops.max if ord == 2 else ops.min
        norms = reduce(svdvals(x), -1)
    elif ord in (1, -1, math.inf, -math.inf):
        sums = ops.sum(ops.absolute(x), x.ndim - 2 if abs(float(ord)) == 1 else x.ndim - 1)
        norms = (ops.max if float(ord) > 0 else ops.min)(sums, -1)
    else:
        raise RuleError(f"matrix_norm: ord must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, got {ord!r}")
    return ops.reshape(norms, (*norms.shape, 1, 1)) if keepdims else norms


@of_tensors
def norm(x: Tensor, ord: Order = None, axis: Dims = None, keepdims: bool = False) -> Tensor:
    """Compute norms of vectors or matrices, as ``numpy.linalg.norm``.

    Args:
        x: the tensor; integers become float64.
        ord: the order, of vectors as in :func:`vector_norm`, of matrices as in :func:`matrix_norm`; None: the root of
            the sum of squares, along any dims.
        axis: one dimension for vectors, two (rows, columns) for matrices; None: all.
        keepdims: keep reduced dimensions in the result, with size 1.

    Returns:
        Real numbers without the reduced dimensions, or with size 1 for them.

    Raises:
        RuleError: If an order is combined with no dim or more than two, the order is unknown, or a dim is out of
            range.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> round(linalg.norm(s).item(), 4)
    5.7446
    """
    if ord is None:
        return vector_norm(x, axis=axis, keepdims=keepdims)
    axes = list(range(x.ndim)) if axis is None else [axis] if isinstance(axis, int) else list(axis)
    dims = [normalise_along_dim("norm", x, d) for d in axes]
    if len(dims) == 1:
        return vector_norm(x, axis=dims[0], keepdims=keepdims, ord=ord)
    if len(dims) != 2:
        raise RuleError(f"norm: axis must be one dim or two if ord is {ord!r}, got {dims}")
    others = [d for d in range(x.ndim) if d not in dims]
    norms = matrix_norm(ops.transpose(x, [*others, *dims]), ord=ord)
    return ops.reshape(norms, [1 if d in dims else n for d, n in enumerate(x.shape)]) if keepdims else norms


def _find_cutoff(values: Tensor, shape: Sequence[int], rtol: Bound) -> Tensor:
    """Return the value up to which singular values count as 0, one per matrix.

    Args:
        values: singular values, descending.
        shape: the shape of the matrices.
        rtol: the value as a part of the largest singular value; None: machine epsilon times the larger size.
    """
    epsilon = np.finfo(values.dtype).eps.item() * max(shape[-2:]) if rtol is None else rtol
    return ops.multiply(ops.max(values, -1, True), _reshape_bounds(epsilon, values))


def _reshape_bounds(bound: float | Tensor, values: Tensor) -> Tensor:
    """Return one number, or one per matrix, shaped to broadcast with the values of all matrices."""
    bounds = as_operand(bound, values)
    return ops.reshape(bounds, (*bounds.shape, 1)) if bounds.ndim else bounds


def _invert_values(s: Tensor, shape: Sequence[int], rtol: Bound) -> tuple[Tensor, Tensor]:
    """Return a mask of the singular values above the cutoff, and their inverses (else 0).

    Args:
        s: singular values, descending.
        shape: the shape of the matrices.
        rtol: the cutoff, as in `_find_cutoff`.
    """
    counts = ops.greater(s, _find_cutoff(s, shape, rtol).detach())
    ones, zeros = as_operand(1, s), as_operand(0, s)
    return counts, ops.where(counts, ops.divide(ones, ops.where(counts, s, ones)), zeros)


@of_tensors
def matrix_rank(x: Tensor, tol: Bound = None, *, rtol: Bound = None) -> Tensor:
    """Count the singular values of matrices ``[..., m, n]`` that exceed a tolerance.

    Args:
        x: the tensor.
        tol: the tolerance, one number or one per matrix.
        rtol: without ``tol``, the tolerance as a part of the largest singular value; None: machine epsilon times the
            larger size.

    Returns:
        int64 ``[...]``.

    Raises:
        RuleError: If ``x`` has fewer than two dimensions.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> linalg.matrix_rank(s).item()
    2
    """
    values = svdvals(x.detach())
    least = _find_cutoff(values, x.shape, rtol) if tol is None else _reshape_bounds(tol, values)
    return ops.sum(ops.cast(ops.greater(values, least), np.int64), -1)


@of_tensors
def pinv(x: Tensor, rcond: Bound = None, *, rtol: Bound = None) -> Tensor:
    """Compute pseudo-inverses of matrices ``[..., m, n]`` from singular values.

    Args:
        x: the tensor.
        rcond: another name of ``rtol``.
        rtol: singular values up to this part of the largest one count as 0; one number or one per matrix. None:
            machine epsilon times the larger size.

    Returns:
        Matrices ``[..., n, m]``.

    Raises:
        RuleError: If ``x`` has fewer than two dimensions.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> linalg.pinv(s).full().round(4).tolist()
    [[0.375, -0.25], [-0.25, 0.5]]
    """
    u, s, vh = reduced_svd(x)
    inverse = _invert_values(s, x.shape, rtol if rcond is None else rcond)[1]
    scaled = ops.multiply(adjoint(vh), ops.reshape(inverse, (*s.shape[:-1], 1, s.shape[-1])))
    return ops.matmul(scaled, adjoint(u))


class LeastSquares(NamedTuple):
    """The result of :func:`lstsq`: solution, squared distances, rank and singular values."""

    x: Tensor
    residuals: Tensor
    rank: int
    s: Tensor


@of_tensors
def lstsq(a: Tensor, b: Tensor, rcond: float | None = None) -> LeastSquares:
    """Compute the smallest ``x`` that minimises ``|a x - b|``; tall matrices stay split by rows.

    It is computed from the reduced singular value decomposition of ``a``. All ranks must call it, because they read the
    rank of ``a``.

    Args:
        a: ``[m, n]``.
        b: ``[m]`` or ``[m, k]``.
        rcond: singular values up to ``rcond`` times the largest one count as 0; None: machine epsilon times the
            larger one of ``m`` and ``n``.

    Returns:
        A named tuple:

        - ``x``: the solution, ``[n]`` or ``[n, k]``.
        - ``residuals``: the squared distances, ``[k]``, or ``[1]`` for a vector; of shape ``(0,)`` if the rank is less
          than ``n``, or ``m <= n``.
        - ``rank``: the number of singular values that do not count as 0, an int.
        - ``s``: the singular values, descending.

    Raises:
        RuleError: If shapes do not fit.
        WorldError: If the world has no data, because the rank depends on values.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> linalg.lstsq(s, s).x.full().round(4).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    b = as_operand(b, a)
    if a.ndim != 2 or b.ndim not in (1, 2) or a.shape[0] != b.shape[0]:
        raise RuleError(f"lstsq: a must have shape [m, n] and b [m] or [m, k], got {a.shape} and {b.shape}")
    m, n = a.shape
    sides = ops.reshape(b, (b.shape[0], -1)) if b.ndim == 1 else b
    u, s, vh = reduced_svd(a)
    counts, inverse = _invert_values(s, a.shape, rcond)
    scaled = ops.multiply(ops.reshape(inverse, (-1, 1)), ops.matmul(adjoint(u), sides))
    x, rank = ops.matmul(adjoint(vh), scaled), int(ops.sum(ops.cast(counts, np.int64)).full())
    distances = ops.absolute(ops.subtract(ops.matmul(a, x), sides))
    residuals = ops.sum(ops.multiply(distances, distances), 0)
    if rank < n or m <= n:
        residuals = Tensor.zeros((0,), dtype=residuals.dtype, layout=residuals.layout.reduced, world=a.world)
    return LeastSquares(ops.reshape(x, x.shape[: b.ndim]) if b.ndim == 1 else x, residuals, rank, s)


@of_tensors
def cond(x: Tensor, p: Order = None) -> Tensor:
    """Compute condition numbers: the largest singular value divided by the smallest.

    For orders other than 2 and -2 it is the product of the norms of ``x`` and of its inverse. A singular matrix has
    the condition inf (nan if it is 0) for 2 and None; orders that need the inverse raise an error.

    Args:
        x: matrices ``[..., m, n]``; square ones for an order other than 2 and -2.
        p: 2 or None: the largest singular value divided by the smallest; -2: the smallest divided by the largest; else
            an order of :func:`matrix_norm`.

    Returns:
        Real numbers ``[...]``.

    Raises:
        RuleError: If the order is unknown, ``x`` has fewer than two dims, or the order needs the inverse and matrices
            are not square.
        numpy.linalg.LinAlgError: If the order needs the inverse and a matrix is singular.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> round(linalg.cond(s).item(), 4)
    3.8664
    """
    if p not in (None, 2, -2):
        return ops.multiply(*[matrix_norm(matrix, ord=p) for matrix in (x, inv(x))])
    values = svdvals(x)
    largest, smallest = ops.max(values, -1), ops.min(values, -1)
    return ops.divide(smallest, largest) if p == -2 else ops.divide(largest, smallest)
