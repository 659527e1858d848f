"""Cholesky factors and systems of equations whose matrix is split by rows: panel by panel of columns.

A panel is on every rank at a time. For LU factors with partial pivoting rows stay where they are: which of them have been
pivots is known to all, and those of a panel are added up from the rank that has them. No rank has more than its rows, a
panel and the solution.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Context, Op, Tensor, ops
from spmdsim.arrays.linalg.tall import adjoint
from spmdsim.arrays.linalg.whole import hermitian, in_fractions, inv_op, solve_op, square
from spmdsim.arrays.ops.declare import Array, alike
from spmdsim.arrays.ops.operators import of_tensors
from spmdsim.arrays.ops.scans import split_axes
from spmdsim.arrays.stepped import SteppedOp
from spmdsim.core import BoundRule, Layout, Rule, Strategy
from spmdsim.core.step import Step
from spmdsim.errors import RuleError
from spmdsim.layout.element_type import accumulator, promote_types
from spmdsim.worlds.convert_operands import as_operand

__all__ = ["cholesky", "inv", "solve"]


def panels_of(strategy: Strategy, size: int) -> tuple[tuple[str, ...], list[tuple[int, int]]]:
    """Return the axes that split the rows, and the row ranges of all ranks that own any, which are the panels."""
    axes = split_axes(strategy, "m")
    mesh = strategy.mesh
    members = mesh.group(mesh.rank_at(0), *axes)
    bounds = [Layout(mesh, [axes]).bounds((size,), member)[0] for member in members]
    return axes, [(start, stop) for start, stop in bounds if stop > start]


def _cholesky_steps(bound: BoundRule, strategy: Strategy, inputs: Sequence[Any]) -> Any:
    size, mesh = bound.sizes["n"], strategy.mesh
    axes, panels = panels_of(strategy, size)
    if not axes:
        return ()
    src, dst = mesh(axes, None), mesh(None, None)
    return tuple(
        (Step("all_gather", axes, src, dst, (size, stop - start)), inputs[0].dtype) for start, stop in panels
    )


def _cholesky_forward(context: Context, x: Array) -> Generator[Array, Array, Array]:
    axes, panels = panels_of(context.strategy, context.size("n"))
    if not axes:
        return np.linalg.cholesky(x)
    first, last = context.bounds("m")
    left, lower = np.array(x), np.zeros_like(x)
    for start, stop in panels:
        panel = yield left[:, start:stop]
        corner = np.linalg.cholesky(panel[start:stop])
        factor = np.zeros_like(panel)
        factor[start:stop] = corner
        if stop < len(panel):
            factor[stop:] = hermitian(np.linalg.solve(corner, hermitian(panel[stop:])))
        mine = factor[first:last]
        lower[:, start:stop] = mine
        left[:, stop:last] -= mine @ hermitian(factor[stop:last]) if stop < last else 0
    return lower


def _gradient(factor: Array, dfactor: Array) -> Array:
    inner = np.tril(hermitian(factor) @ dfactor)
    inner = inner - np.einsum("...ii->...i", inner)[..., None] * np.eye(factor.shape[-1]) / 2
    turned = hermitian(factor)
    slope = hermitian(np.linalg.solve(turned, hermitian(np.linalg.solve(turned, inner))))
    return np.asarray((slope + hermitian(slope)) / 2, factor.dtype)


_gradient_op = Op("cholesky_gradient", Rule.parse("... m n, ... m n -> ... m n", whole="m n"), _gradient)


def _cholesky_adjoint(
    dys: Sequence[Tensor], operands: Sequence[Tensor], results: Sequence[Tensor]
) -> tuple[Tensor]:
    """Compute the gradient of the symmetric matrix from the factor, which every rank has completely."""
    whole = results[0].layout.canonical
    layout = Layout(whole.mesh, [*whole.dims[:-2], None, None])
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

    Only the lower triangle of ``x`` is read.

    Where a matrix is split by rows, as many panels of columns as there are pieces are gathered and factored one after the
    other; the factor lies as the matrix. The gradient needs the factor whole. With ``upper`` it is ``l^H``, and the upper
    triangle is read.

    Args:
        x: matrices ``[..., n, n]``.
        upper: read the upper triangle and return ``l^H``.

    Raises:
        RuleError: matrices that are not square.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> linalg.cholesky(s).full().round(4).tolist()
    [[2.0, 0.0], [1.0, 1.4142]]
    """
    x = square("cholesky", x)
    if upper:
        return adjoint(cholesky(adjoint(x)))
    dims = x.layout.reduced.canonical.dims
    if x.ndim == 2 and dims[1]:
        x = x.to(x.layout.mesh((*dims[0], *dims[1]), None))
    return cholesky_op(x)


def _solve_steps(bound: BoundRule, strategy: Strategy, inputs: Sequence[Any]) -> Any:
    n, k, mesh = bound.sizes["n"], bound.sizes["k"], strategy.mesh
    axes, panels = panels_of(strategy, n)
    if not axes:
        return ()
    dtype = accumulator("sum", promote_types(*[meta.dtype for meta in inputs]))
    partial, columns = [(axis, "sum") for axis in axes], strategy.axes_of("k")

    def added(height: int, width: int, split: tuple[str, ...]) -> Any:
        src = Layout(mesh, [(), split], partial)
        return Step("all_reduce", axes, src, src.reduced, (height, width), "sum"), dtype

    steps = []
    for start, stop in panels:
        gathered = Step("all_gather", axes, mesh(axes, None), mesh(None, None), (n, stop - start))
        steps += [(gathered, dtype), added(stop - start, n - stop, ()), added(stop - start, k, columns)]
    return (*steps, *[added(stop - start, k, columns) for start, stop in panels[::-1]])


def _factored(panel: Array, free: Array) -> tuple[Array, Array]:
    """Factor a panel's free rows: multipliers and upper triangle in one array, and the pivots."""
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
    n = context.size("n")
    axes, panels = panels_of(context.strategy, n)
    if not axes:
        return np.linalg.solve(a, b)
    first, last = context.bounds("m")
    dtype = np.result_type(a, b)
    left, right, free = a.astype(dtype), b.astype(dtype), np.ones(n, bool)
    mine: tuple[Array, ...] = ()
    for start, stop in panels:
        factors, pivots = _factored((yield left[:, start:stop]), free)
        free[pivots] = False
        here = (first <= pivots) & (pivots < last)
        rows = pivots[here] - first
        rest = yield _rows(here, left[rows, stop:])
        side = yield _rows(here, right[rows])
        lower, upper = np.tril(factors[pivots], -1) + np.eye(stop - start), np.triu(factors[pivots])
        rest, side = np.linalg.solve(lower, rest), np.linalg.solve(lower, side)
        below = free[first:last]
        multipliers = factors[first:last][below]
        left[below, stop:] -= multipliers @ rest
        right[below] -= multipliers @ side
        if (start, stop) == (first, last):
            mine = upper, rest, side
    solution = np.zeros((n, right.shape[1]), dtype)
    for start, stop in panels[::-1]:
        part = np.zeros((stop - start, right.shape[1]), dtype)
        if (start, stop) == (first, last):
            upper, rest, side = mine
            part = np.linalg.solve(upper, side - rest @ solution[stop:])
        solution[start:stop] = yield part
    return solution[first:last]


def _rows(here: Array, rows: Array) -> Array:
    """Return some of a panel's pivot rows, and zeros for the others."""
    pivots = np.zeros((len(here), rows.shape[1]), rows.dtype)
    pivots[here] = rows
    return pivots


def _solve_adjoint(
    dys: Sequence[Tensor], operands: Sequence[Tensor], results: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Compute the gradients: for the right sides by the adjoint matrix, for the matrix by their product with the solution."""
    turned = adjoint(operands[0])
    side = lu_solve(turned, dys[0])
    return -1 * ops.matmul(side, adjoint(results[0])), side


_solve_op = SteppedOp(
    "lu_solve",
    Rule.parse("m n, m k -> m k", whole="n", work="passes"),
    _solve_forward,
    steps=_solve_steps,
    adjoint=_solve_adjoint,
    contextual=True,
    saves_result=True,
)


def _split(a: Tensor) -> bool:
    return a.ndim == 2 and bool(a.layout.reduced.canonical.split_axes)


def lu_solve(a: Tensor, b: Tensor) -> Tensor:
    """Solve ``a x = b`` for a split matrix, redistributed by rows, and right sides ``[n, k]``, split like the rows."""
    mesh, rows = a.layout.mesh, a.layout.reduced.canonical.split_axes
    columns = b.layout.dims[1] if b.layout.mesh == mesh else ()
    return _solve_op(a.to(mesh(rows, None)), b.to(mesh(rows, [axis for axis in columns if axis not in rows])))


@of_tensors
def solve(a: Tensor, b: Tensor) -> Tensor:
    """Solve ``a x = b`` for ``a`` of shape ``[..., n, n]`` and ``b`` of ``[n]`` or ``[..., n, k]``.

    Where a single matrix is split, its rows are, and as many panels of columns as there are pieces are gathered and
    factored one after the other, with partial pivoting; ``x`` is split like the rows. Else each rank solves for the
    matrices, and the columns of ``b``, that it has.

    Args:
        a: square matrices.
        b: right-hand sides.

    Raises:
        RuleError: matrices that are not square, or shapes that do not fit.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> linalg.solve(s, [2.0, 4.0]).full().round(4).tolist()
    [-0.25, 1.5]
    """
    a, b = alike("solve", square("solve", a), in_fractions(as_operand(b, a)))
    if b.ndim == 1:
        solution = solve(a, ops.reshape(b, (b.shape[0], 1)))
        return ops.reshape(solution, solution.shape[:-1])
    if b.ndim == 2 and _split(a):
        if a.shape[0] != b.shape[0]:
            raise RuleError(f"solve: right sides of shape {b.shape} do not fit a matrix of shape {a.shape}")
        return lu_solve(a, b)
    return solve_op(a, b)


@of_tensors
def inv(x: Tensor) -> Tensor:
    """Compute inverses of square matrices ``[..., n, n]``.

    A single split matrix is inverted by :func:`solve`; the rows of the inverse are split.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> linalg.inv(s).full().round(4).tolist()
    [[0.375, -0.25], [-0.25, 0.5]]
    """
    x = square("inv", x)
    if not _split(x):
        return inv_op(x)
    layout = x.layout.mesh(x.layout.reduced.canonical.split_axes, None)
    return lu_solve(x, Tensor.eye(len(x), dtype=x.dtype, layout=layout, world=x.world))
