"""The Cholesky factor of a matrix that is split by rows: panel by panel, of which one is on every rank at a time."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from spmdsim.core import BoundRule, Layout, Rule, Strategy
from spmdsim.core.step import Step
from spmdsim.linalg.tall import adjoint
from spmdsim.linalg.whole import hermitian, square
from spmdsim.ops.operators import of_tensors
from spmdsim.tensor import Context, Op, Tensor
from spmdsim.tensor.stepped import SteppedOp


def _rule(shape: tuple[int, ...]) -> Rule:
    return Rule.parse("... m n -> ... m n", whole="n" if len(shape) == 2 else "m n", work="passes")


def panels_of(strategy: Strategy, size: int) -> tuple[tuple[str, ...], list[tuple[int, int]]]:
    """The axes that split the rows, and the rows of every rank that has any, which are the columns of the panels."""
    axes = tuple(a for a in strategy.axes_of("m") if strategy.mesh.axis_size(a) > 1)
    mesh = strategy.mesh
    members = mesh.group(mesh.rank_at(0), *axes)
    bounds = [Layout(mesh, [axes]).bounds((size,), member)[0] for member in members]
    return axes, [(start, stop) for start, stop in bounds if stop > start]


def _steps(bound: BoundRule, strategy: Strategy, inputs: Sequence[Any]) -> Any:
    size, mesh = bound.sizes["n"], strategy.mesh
    axes, panels = panels_of(strategy, size)
    if not axes:
        return ()
    src, dst = mesh(axes, None), mesh(None, None)
    return tuple(
        (Step("all_gather", axes, src, dst, (size, stop - start)), inputs[0].dtype) for start, stop in panels
    )


def _forward(context: Context, x: np.ndarray) -> Generator[np.ndarray, np.ndarray, np.ndarray]:
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


def _gradient(factor: np.ndarray, dfactor: np.ndarray) -> np.ndarray:
    inner = np.tril(hermitian(factor) @ dfactor)
    inner = inner - np.einsum("...ii->...i", inner)[..., None] * np.eye(factor.shape[-1]) / 2
    turned = hermitian(factor)
    slope = hermitian(np.linalg.solve(turned, hermitian(np.linalg.solve(turned, inner))))
    return np.asarray((slope + hermitian(slope)) / 2, factor.dtype)


_gradient_op = Op("cholesky_gradient", Rule.parse("... m n, ... m n -> ... m n", whole="m n"), _gradient)


def _adjoint(dys: Sequence[Tensor], operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Tensor]:
    """The gradient of the symmetric matrix, from the whole factor, which every rank has for it."""
    whole = results[0].layout.canonical
    layout = Layout(whole.mesh, [*whole.dims[:-2], None, None])
    return (_gradient_op(results[0].to(layout), dys[0].to(layout)),)


cholesky_op = SteppedOp(
    "cholesky", _rule, _forward, steps=_steps, adjoint=_adjoint, contextual=True, saves_result=True
)


@of_tensors
def cholesky(x: Tensor, upper: bool = False) -> Tensor:
    """The lower triangle ``l`` with ``l l^H = x`` of positive definite matrices; only the lower triangle of ``x`` is read.

    Where a matrix is split by rows, as many panels of columns as there are pieces are gathered and factored one after the
    other; the factor lies as the matrix. The gradient needs the factor whole.

    Args:
        x: ``[..., n, n]``.
        upper: give ``l^H``, and read the upper triangle.

    Raises:
        RuleError: matrices that are not square.

    >>> from spmdsim import Mesh, Tensor
    >>> x = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> cholesky(x).full().round(4).tolist()
    [[2.0, 0.0], [1.0, 1.4142]]
    """
    x = square("cholesky", x)
    if upper:
        return adjoint(cholesky(adjoint(x)))
    dims = x.layout.reduced.canonical.dims
    if x.ndim == 2 and dims[1]:
        x = x.to(x.layout.mesh((*dims[0], *dims[1]), None))
    return cholesky_op(x)
