"""Cholesky factors and linear systems of matrices that are split by rows.

The matrix is factored panel by panel; a panel is a block of columns. One panel at a time is on every rank. For LU
factors with partial pivoting, rows stay on their ranks: all ranks know which rows have been pivots, and a panel's
pivot rows are broadcast by sums. A rank stores only its rows, a panel and the solution.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Context, Op, Tensor, ops
from spmdsim.arrays.linalg.tall import adjoint
from spmdsim.arrays.linalg.whole import hermitian, inv_op, require_square, solve_op, to_division_type
from spmdsim.arrays.ops.declare import Array, convert_to_one_type
from spmdsim.arrays.ops.operators import of_tensors
from spmdsim.arrays.ops.scans import find_split_axes
from spmdsim.arrays.stepped import SteppedOp
from spmdsim.core import BoundRule, Layout, Rule, Strategy
from spmdsim.core.step import Step
from spmdsim.errors import RuleError
from spmdsim.layout.element_type import accumulator, promote_types
from spmdsim.worlds.convert_operands import as_operand

__all__ = ["cholesky", "inv", "solve"]


def list_panels(strategy: Strategy, size: int) -> tuple[tuple[str, ...], list[tuple[int, int]]]:
    """Return the axes that split the rows of a square matrix, and its panels (blocks of columns).

    Each rank that owns the rows ``start:stop`` gets one panel: the columns ``start:stop``. For example, a 4 x 4 matrix
    whose rows are split over two ranks has the panels ``[(0, 2), (2, 4)]``. Axes of size 1 are left out; without axes
    one panel has all columns.

    Args:
        strategy: the axes that split the dims ``m`` and ``n``.
        size: the number of rows.
    """
    axes = find_split_axes(strategy, "m")
    mesh = strategy.mesh
    members = mesh.group(mesh.rank_at(0), *axes)
    bounds = [Layout(mesh, [axes]).bounds((size,), member)[0] for member in members]
    return axes, [(start, stop) for start, stop in bounds if stop > start]


def _cholesky_steps(bound: BoundRule, strategy: Strategy, inputs: Sequence[Any]) -> Any:
    """Return one all-gather of columns per panel, or () if rows are not split."""
    size, mesh = bound.sizes["n"], strategy.mesh
    axes, panels = list_panels(strategy, size)
    if not axes:
        return ()
    src, dst = mesh(axes, None), mesh(None, None)
    return tuple(
        (Step("all_gather", axes, src, dst, (size, stop - start)), inputs[0].dtype) for start, stop in panels
    )


def _cholesky_forward(context: Context, x: Array) -> Generator[Array, Array, Array]:
    """Return this rank's rows of the Cholesky factor.

    A panel is a group of neighbouring columns, as wide as a block of rows is high. If rows are split, the generator
    yields this rank's rows of one panel after the other; the caller sends back the rows of all ranks. If rows are not
    split, it yields nothing. Only the lower triangle of ``x`` is read; the upper one of the result is 0.

    Args:
        context: the operator call as this rank sees it: strategy, rank, sizes.
        x: this rank's rows; not changed.

    Raises:
        LinAlgError: If the matrix is not positive definite.
    """
    axes, panels = list_panels(context.strategy, context.size("n"))
    if not axes:
        return np.linalg.cholesky(x)
    first, last = context.bounds("m")
    remaining, lower = np.array(x), np.zeros_like(x)
    for start, stop in panels:
        panel = yield remaining[:, start:stop]
        corner = np.linalg.cholesky(panel[start:stop])
        factor = np.zeros_like(panel)
        factor[start:stop] = corner
        if stop < len(panel):
            factor[stop:] = hermitian(np.linalg.solve(corner, hermitian(panel[stop:])))
        own_rows = factor[first:last]
        lower[:, start:stop] = own_rows
        # This rank's columns from ``last`` on are above the diagonal, and are not read.
        remaining[:, stop:last] -= own_rows @ hermitian(factor[stop:last]) if stop < last else 0
    return lower


def _cholesky_gradient(factor: Array, dfactor: Array) -> Array:
    """Return the gradient of a symmetric matrix, from the gradient of its lower Cholesky factor.

    The result is symmetric: ``(S + S^H) / 2`` with ``S = L^-H P L^-1``, where P is the lower triangle of ``L^H dL``
    with half of its diagonal.
    """
    inner = np.tril(hermitian(factor) @ dfactor)
    inner = inner - np.einsum("...ii->...i", inner)[..., None] * np.eye(factor.shape[-1]) / 2
    adjoint_factor = hermitian(factor)
    slope = hermitian(np.linalg.solve(adjoint_factor, hermitian(np.linalg.solve(adjoint_factor, inner))))
    return np.asarray((slope + hermitian(slope)) / 2, factor.dtype)


_gradient_op = Op(
    "cholesky_gradient", Rule.parse("... m n, ... m n -> ... m n", whole="m n"), _cholesky_gradient
)


def _cholesky_adjoint(
    dys: Sequence[Tensor], operands: Sequence[Tensor], results: Sequence[Tensor]
) -> tuple[Tensor]:
    """Return the gradient of the symmetric matrix, from the gradient of its Cholesky factor.

    Rows and columns of the factor and of its gradient are gathered on every rank for it.
    """
    layout_of_factor = results[0].layout.canonical
    layout = Layout(layout_of_factor.mesh, [*layout_of_factor.dims[:-2], None, None])
    return (_gradient_op(results[0].to(layout), dys[0].to(layout)),)


cholesky_op = SteppedOp(
    "cholesky",
    lambda shape: Rule.parse("... m n -> ... m n", whole="n" if len(shape) == 2 else "m n", work="passes"),
    _cholesky_forward,
    steps=_cholesky_steps,
    adjoint=_cholesky_adjoint,
    contextual=True,
    saves_result=True,
)


@of_tensors
def cholesky(x: Tensor, upper: bool = False) -> Tensor:
    """Compute the lower triangle ``l`` with ``l l^H = x`` of positive definite matrices.

    Only the lower triangle of ``x`` is read. If a matrix is split by rows, there are as many panels of columns as row
    blocks. They are gathered and factored in turn, and the factor has the layout of the matrix. If its columns are
    split, too, it is redistributed by rows first. Matrices of a batch stay on their ranks. The gradient needs the
    whole factor.

    Args:
        x: matrices ``[..., n, n]``; integers become float64.
        upper: read the upper triangle and return ``l^H``.

    Returns:
        The factors, in the layout of ``x`` if only rows are split.

    Raises:
        RuleError: If matrices are not square.
        numpy.linalg.LinAlgError: If a matrix is not positive definite, on the ranks that factor it.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> linalg.cholesky(s).full().round(4).tolist()
    [[2.0, 0.0], [1.0, 1.4142]]
    """
    x = require_square("cholesky", x)
    if upper:
        return adjoint(cholesky(adjoint(x)))
    dims = x.layout.reduced.canonical.dims
    if x.ndim == 2 and dims[1]:
        x = x.to(x.layout.mesh((*dims[0], *dims[1]), None))
    return cholesky_op(x)


def _solve_steps(bound: BoundRule, strategy: Strategy, inputs: Sequence[Any]) -> Any:
    """Return the collectives of `_solve_forward` with their types; () if rows are not split.

    A panel is a group of neighbouring columns, one for each block of rows. Each panel needs an all-gather and two
    all-reduces while it is eliminated. Then each needs one all-reduce of its part of the solution, the last panel
    first. With 2 panels, for example, there are 6 + 2 collectives.

    Args:
        bound: the rule with its sizes.
        strategy: the axes that split the dimensions.
        inputs: the `Meta` (layout, shape, dtype) of matrix and right sides; they determine the type of the sums.
    """
    n, k, mesh = bound.sizes["n"], bound.sizes["k"], strategy.mesh
    axes, panels = list_panels(strategy, n)
    if not axes:
        return ()
    dtype = accumulator("sum", promote_types(*[meta.dtype for meta in inputs]))
    partial, columns = [(axis, "sum") for axis in axes], strategy.axes_of("k")

    def sum_of_rows(height: int, width: int, split: tuple[str, ...]) -> Any:
        """Return the all-reduce of rows ``[height, width]`` whose columns ``split`` splits, and its type."""
        src = Layout(mesh, [(), split], partial)
        return Step("all_reduce", axes, src, src.reduced, (height, width), "sum"), dtype

    steps = []
    for start, stop in panels:
        gathered = Step("all_gather", axes, mesh(axes, None), mesh(None, None), (n, stop - start))
        steps += [
            (gathered, dtype),
            sum_of_rows(stop - start, n - stop, ()),
            sum_of_rows(stop - start, k, columns),
        ]
    return (*steps, *[sum_of_rows(stop - start, k, columns) for start, stop in panels[::-1]])


def _factor_panel(panel: Array, free: Array) -> tuple[Array, Array]:
    """Return the LU factors of a panel's free rows with partial pivoting, and its pivots.

    The pivot of a column is the free row with the largest absolute value in it; the first one of equal ones.

    Args:
        panel: all rows of the panel; not changed.
        free: True for rows that have not been pivots of an earlier panel; not changed.

    Returns:
        Two arrays: one in the shape of the panel, with the upper triangle in the pivot rows and multipliers in the
        other free rows; and the numbers of the pivot rows, in the order of the columns.

    Raises:
        LinAlgError: If a pivot is exactly 0, so that the matrix is singular.
    """
    work, free, pivots = np.array(panel), free.copy(), []
    for c in range(panel.shape[1]):
        pivot = int(np.argmax(np.where(free, np.abs(work[:, c]), -1)))
        if work[pivot, c] == 0:
            raise np.linalg.LinAlgError("Singular matrix")
        free[pivot] = False
        pivots.append(pivot)
        work[free, c] /= work[pivot, c]
        work[free, c + 1 :] -= np.outer(work[free, c], work[pivot, c + 1 :])
    return work, np.array(pivots)


def _solve_forward(context: Context, a: Array, b: Array) -> Generator[Array, Array, Array]:
    """Return this rank's rows of the solution of ``a x = b``.

    If rows are not split, the generator yields nothing. Otherwise it eliminates one panel (group of neighbouring
    columns) after the other, and yields three arrays for each:

    - this rank's rows of the panel. The caller sends back the rows of all ranks, in which each rank finds the pivots;
    - the pivot rows in the columns right of the panel, with zeros for pivot rows of other ranks. The caller sends back
      the sum over all ranks, which has the values of all pivot rows;
    - the right sides of the pivot rows, also with zeros for rows of other ranks. The caller sends back their sum.

    Then it yields the arrays of :func:`_substitute_back`, one per panel.

    Args:
        context: the operator call as this rank sees it: strategy, rank, sizes.
        a: this rank's rows of the matrix; not changed.
        b: this rank's rows of the right sides; not changed.

    Raises:
        LinAlgError: If the matrix is singular; on all ranks.
    """
    n = context.size("n")
    axes, panels = list_panels(context.strategy, n)
    if not axes:
        return np.linalg.solve(a, b)
    first, last = context.bounds("m")
    dtype = np.result_type(a, b)
    left, right, free = a.astype(dtype), b.astype(dtype), np.ones(n, bool)
    own_panel: tuple[Array, ...] = ()
    for start, stop in panels:
        factors, pivots = _factor_panel((yield left[:, start:stop]), free)
        free[pivots] = False
        is_owned = (first <= pivots) & (pivots < last)
        rows = pivots[is_owned] - first
        right_part = yield _scatter_pivot_rows(is_owned, left[rows, stop:])
        right_sides = yield _scatter_pivot_rows(is_owned, right[rows])
        lower, upper = np.tril(factors[pivots], -1) + np.eye(stop - start), np.triu(factors[pivots])
        right_part, right_sides = np.linalg.solve(lower, right_part), np.linalg.solve(lower, right_sides)
        is_free = free[first:last]
        multipliers = factors[first:last][is_free]
        left[is_free, stop:] -= multipliers @ right_part
        right[is_free] -= multipliers @ right_sides
        if (start, stop) == (first, last):
            own_panel = upper, right_part, right_sides
    solution = yield from _substitute_back(
        panels, (first, last), own_panel, np.zeros((n, right.shape[1]), dtype)
    )
    return solution[first:last]


def _substitute_back(
    panels: Sequence[tuple[int, int]],
    own_rows: tuple[int, int],
    own_panel: tuple[Array, ...],
    solution: Array,
) -> Generator[Array, Array, Array]:
    """Solve the upper triangular system panel by panel, the last panel first; return ``solution``.

    Per panel, the generator yields the panel's block of the solution if the panel is this rank's, else zeros. The
    caller sends back the sum over all ranks.

    Args:
        panels: first row and row after the last one of each panel.
        own_rows: the panel of this rank.
        own_panel: three arrays of this rank's panel: the upper triangle on the diagonal, the columns right of it, and
            the right sides; () if the rank has no rows.
        solution: an array of zeros in the shape of the solution, which is filled.
    """
    for start, stop in panels[::-1]:
        block = np.zeros_like(solution[start:stop])
        if (start, stop) == own_rows:
            upper, right_part, right_sides = own_panel
            block = np.linalg.solve(upper, right_sides - right_part @ solution[stop:])
        solution[start:stop] = yield block
    return solution


def _scatter_pivot_rows(is_owned: Array, rows: Array) -> Array:
    """Return one row per pivot of a panel: this rank's rows, zeros for other ranks' rows."""
    pivots = np.zeros((len(is_owned), rows.shape[1]), rows.dtype)
    pivots[is_owned] = rows
    return pivots


def _solve_adjoint(
    dys: Sequence[Tensor], operands: Sequence[Tensor], results: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the gradients of matrix and right sides; a system with the adjoint matrix is solved for them."""
    adjoint_matrix = adjoint(operands[0])
    b_gradient = lu_solve(adjoint_matrix, dys[0])
    return -1 * ops.matmul(b_gradient, adjoint(results[0])), b_gradient


_solve_op = SteppedOp(
    "lu_solve",
    Rule.parse("m n, m k -> m k", whole="n", work="passes"),
    _solve_forward,
    steps=_solve_steps,
    adjoint=_solve_adjoint,
    contextual=True,
    saves_result=True,
)


def _is_split_matrix(a: Tensor) -> bool:
    """Return True if a tensor is a single matrix with split dims."""
    return a.ndim == 2 and bool(a.layout.reduced.canonical.split_axes)


def lu_solve(a: Tensor, b: Tensor) -> Tensor:
    """Solve ``a x = b`` for a single split matrix.

    Args:
        a: ``[n, n]``; it is redistributed so that only rows are split.
        b: right sides ``[n, k]``; they are split like the rows of ``a``.
    """
    mesh, rows = a.layout.mesh, a.layout.reduced.canonical.split_axes
    columns = b.layout.dims[1] if b.layout.mesh == mesh else ()
    return _solve_op(a.to(mesh(rows, None)), b.to(mesh(rows, [axis for axis in columns if axis not in rows])))


@of_tensors
def solve(a: Tensor, b: Tensor) -> Tensor:
    """Solve linear systems ``a x = b``.

    - A single matrix that is split is first redistributed by rows. Then one panel (group of neighbouring columns) for
      each block of rows is gathered and factored, with partial pivoting. ``x`` is split like the rows.
    - Otherwise each rank solves for its own matrices and its own columns of ``b``.

    Args:
        a: square matrices ``[..., n, n]``; integers become float64.
        b: right-hand sides ``[n]`` or ``[..., n, k]``; leading dims broadcast with those of ``a``.

    Returns:
        The solution in the shape of ``b``, or with the leading dims of ``a``.

    Raises:
        RuleError: If matrices are not square, or shapes do not fit.
        numpy.linalg.LinAlgError: If a matrix is singular, on the ranks that solve with it.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> linalg.solve(s, [2.0, 4.0]).full().round(4).tolist()
    [-0.25, 1.5]
    """
    a, b = convert_to_one_type("solve", require_square("solve", a), to_division_type(as_operand(b, a)))
    if b.ndim == 1:
        solution = solve(a, ops.reshape(b, (b.shape[0], 1)))
        return ops.reshape(solution, solution.shape[:-1])
    if b.ndim == 2 and _is_split_matrix(a):
        if a.shape[0] != b.shape[0]:
            raise RuleError(
                f"solve: b must have {a.shape[0]} rows like a, got shape {b.shape} for a of shape {a.shape}"
            )
        return lu_solve(a, b)
    return solve_op(a, b)


@of_tensors
def inv(x: Tensor) -> Tensor:
    """Compute inverses of square matrices ``[..., n, n]``.

    A single split matrix is inverted by :func:`solve`; the rows of the inverse are split. Otherwise each rank inverts
    its own matrices, and their rows and columns are gathered before if they are split.

    Args:
        x: matrices ``[..., n, n]``; integers become float64.

    Returns:
        Matrices in the shape of ``x``.

    Raises:
        RuleError: If the matrices are not square.
        numpy.linalg.LinAlgError: If a matrix is singular, on the ranks that invert it.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> linalg.inv(s).full().round(4).tolist()
    [[0.375, -0.25], [-0.25, 0.5]]
    """
    x = require_square("inv", x)
    if not _is_split_matrix(x):
        return inv_op(x)
    layout = x.layout.mesh(x.layout.reduced.canonical.split_axes, None)
    return lu_solve(x, Tensor.eye(len(x), dtype=x.dtype, layout=layout, world=x.world))
