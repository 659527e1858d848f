"""Factors of tall matrices that are split by rows: nothing but small triangles is gathered (TSQR)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from spmdsim.arrays import Context, Op, Tensor, ops
from spmdsim.arrays.linalg.whole import hermitian, in_fractions, svd_op
from spmdsim.arrays.ops.declare import Array, Shape
from spmdsim.arrays.ops.operators import of_tensors
from spmdsim.arrays.ops.scans import conjugated, split_axes
from spmdsim.arrays.ops.slicing import part_along
from spmdsim.arrays.stepped import SteppedOp
from spmdsim.core import BoundRule, Layout, Rule, Strategy
from spmdsim.core.step import Step
from spmdsim.errors import RuleError

__all__ = ["qr", "svd", "svdvals"]


def adjoint(x: Tensor) -> Tensor:
    """Return the conjugate transpose of matrices."""
    return conjugated(ops.transpose(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2]))


def _rule(shape: Shape) -> tuple[Rule, dict[str, int]]:
    tall = len(shape) == 2 and shape[0] >= shape[1]
    rule = Rule.parse("... m n -> ... m k, ... k n", whole="n k" if tall else "m n k", work="passes")
    return rule, {"k": min(shape[-2:])}


def _steps(bound: BoundRule, strategy: Strategy, inputs: Sequence[Any]) -> Any:
    axes = split_axes(strategy, "m")
    if not axes:
        return ()
    n, mesh, dtype = bound.sizes["n"], strategy.mesh, inputs[0].dtype
    step = Step(
        "all_gather", axes, mesh(axes, None, None), mesh(None, None, None), (mesh.axis_size(*axes), n, n)
    )
    return ((step, dtype),)


def _positive(q: Array, r: Array) -> tuple[Array, Array]:
    """Scale factors so that the second has no negative diagonal entries, which makes them unique."""
    diagonal = np.diagonal(r, axis1=-2, axis2=-1)
    size = np.abs(diagonal)
    told = np.isfinite(size) & (size > 0)
    sign = np.where(told, diagonal / np.where(told, size, 1), 1).astype(r.dtype)
    return q * sign[..., None, :], np.conj(sign)[..., :, None] * r


def _forward(context: Context, x: Array) -> Generator[Array, Array, tuple[Array, Array]]:
    q, r = np.linalg.qr(x)
    axes = split_axes(context.strategy, "m")
    if axes:
        n, mesh = context.size("n"), context.strategy.mesh
        members, rows = mesh.group(context.rank, *axes), Layout(mesh, [axes])
        heights = [min(rows.local_shape((context.size("m"),), member)[0], n) for member in members]
        all_of = yield np.pad(r, ((0, n - len(r)), (0, 0)))[None]
        stacked = np.concatenate([one[:height] for one, height in zip(all_of, heights)])
        mine = sum(heights[: members.index(context.rank)])
        small, r = np.linalg.qr(stacked)
        q = q @ small[mine : mine + len(q.T)]
    return _positive(q, r)


def _middle(r: Array, *parts: Array) -> Array:
    """Compute ``c`` of the gradient ``(dq + q c) r^-H`` from the triangle, its gradient and ``dq^H q``."""
    whole = np.zeros_like(r)
    dr, product = parts
    whole = r @ hermitian(dr) - product
    lower = np.tril(whole, -1)
    diagonal = np.real(np.einsum("...ii->...i", whole))[..., None] * np.eye(r.shape[-1])
    return np.asarray(lower + hermitian(lower) + diagonal, r.dtype)


_middle_op = Op("qr_gradient", Rule.parse("... m n, ... m n, ... m n -> ... m n", whole="m n"), _middle)
_back_op = Op(
    "qr_back",
    Rule.parse("... m k, ... n k -> ... m n", whole="n k"),
    lambda x, r: hermitian(np.linalg.solve(r, hermitian(x))),
)


def _adjoint(
    dys: Sequence[Tensor | None], operands: Sequence[Tensor], results: Sequence[Tensor]
) -> tuple[Tensor]:
    """Compute the gradient of a tall matrix of full rank from products of its shape and functions of the small triangle."""
    (dq, dr), (q, r) = dys, results
    zeros = r * 0
    product = zeros if dq is None else ops.matmul(adjoint(dq), q)
    middle = ops.matmul(q, _middle_op(r, zeros if dr is None else dr, product.to(r.layout)))
    return (_back_op(middle if dq is None else ops.add(dq, middle), r),)


def _complete(x: Array) -> tuple[Array, Array]:
    q, r = np.linalg.qr(x, "complete")
    n = x.shape[-1]
    first, top = _positive(q[..., :n], r[..., :n, :])
    return np.concatenate([first, q[..., n:]], -1), np.concatenate([top, r[..., n:, :]], -2)


_complete_op = Op(
    "qr_complete",
    lambda shape: (Rule.parse("... m n -> ... m p, ... p n", whole="m n p", work="passes"), {"p": shape[-2]}),
    _complete,
)
qr_op = SteppedOp("qr", _rule, _forward, steps=_steps, adjoint=_adjoint, contextual=True, saves_result=True)


def _by_rows(x: Tensor) -> Tensor:
    """Redistribute a tall matrix so that only its rows are split."""
    dims = x.layout.reduced.canonical.dims
    if x.ndim != 2 or x.shape[0] < x.shape[1] or not dims[1]:
        return x
    return x.to(x.layout.mesh((*dims[0], *dims[1]), None))


class Triangular(NamedTuple):
    """The result of :func:`qr`."""

    Q: Tensor
    R: Tensor


class Singular(NamedTuple):
    """The result of :func:`svd`."""

    U: Tensor
    S: Tensor
    Vh: Tensor


@of_tensors
def qr(x: Tensor, mode: str = "reduced") -> Any:
    """Factor matrices ``[..., m, n]`` into ``q r``.

    The columns of ``q`` are orthonormal. ``r`` is an upper triangle without negative numbers on its diagonal.

    Where a tall matrix is split by rows each rank factors its rows, and the triangles alone are gathered: ``q`` lies as
    the matrix, ``r`` on every rank.

    Args:
        x: the tensor.
        mode: ``"reduced"``; ``"r"``: the triangle alone; or ``"complete"``: ``q`` square, for which tall matrices are
            made whole; that has no gradient.

    Raises:
        RuleError: another mode, or fewer than two dims; a gradient of a complete ``q``.

    >>> from spmdsim import LockStep, Mesh, Tensor
    >>> x = Tensor.from_global(np.arange(12.0).reshape(6, 2), Mesh((2,), ("x",))("x", None), LockStep(2))
    >>> q, r = qr(x)
    >>> q.layout == x.layout, bool(np.allclose(q.full() @ r.full(), x.full()))
    (True, True)
    """
    if mode == "r":
        return qr(x).R
    if mode not in ("reduced", "complete"):
        raise RuleError(f"qr has the modes 'reduced', 'complete' and 'r', but got {mode!r}")
    if x.ndim < 2:
        raise RuleError(f"qr takes matrices [..., m, n], but the shape is {x.shape}")
    high, wide = x.shape[-2:]
    if mode == "complete" and high > wide:
        if x.requires_grad:
            raise RuleError(
                "qr in the mode 'complete' has no gradient, since the columns beyond those of 'reduced' are any; use "
                "mode='reduced', or x.detach()"
            )
        return Triangular(*_complete_op.results(in_fractions(x)))
    if x.requires_grad and high < wide:  # the first columns decide about q, the others follow
        q, r = qr(part_along(x, -1, 0, high))
        rest = ops.matmul(adjoint(q), part_along(x, -1, high, wide))
        return Triangular(q, ops.concat([r, rest], x.ndim - 1))
    return Triangular(*qr_op.results(_by_rows(in_fractions(x))))


def _split_and_tall(x: Tensor) -> bool:
    return x.ndim == 2 and x.shape[0] >= x.shape[1] and bool(x.layout.canonical.split_axes)


def reduced_svd(x: Tensor) -> Singular:
    """Compute the factors of :func:`svd` without the columns that only complete square matrices."""
    if not _split_and_tall(x):
        if x.ndim == 2 and x.shape[0] < x.shape[1] and x.layout.canonical.split_axes:
            v, s, uh = reduced_svd(adjoint(x))
            return Singular(adjoint(uh), s, adjoint(v))
        return Singular(*svd_op.results(in_fractions(x)))
    q, r = qr(x)
    u, s, vh = svd_op.results(r)
    return Singular(ops.matmul(q, u), s, vh)


def _completed(q: Tensor) -> Tensor:
    """Extend orthonormal columns to a square matrix."""
    high, wide = q.shape[-2:]
    if high == wide:
        return q
    return ops.concat([q, part_along(qr(q, "complete").Q, -1, wide, high)], q.ndim - 1)


@of_tensors
def svd(x: Tensor, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Compute ``u``, singular values and ``v^H`` of matrices ``[..., m, n]``.

    For reduced factors of tall split matrices it calls :func:`qr` first.

    Args:
        x: the tensor.
        full_matrices: ``u`` and ``v^H`` square, for which they are made whole, as numpy has it; else as they are
            needed. Only those have gradients.
        compute_uv: without it the singular values alone.

    Raises:
        RuleError: fewer than two dims; a gradient of full matrices.

    >>> from spmdsim import LockStep, Mesh, Tensor
    >>> x = Tensor.from_global(np.eye(6, 2), Mesh((2,), ("x",))("x", None), LockStep(2))
    >>> svd(x, full_matrices=False).U.shape, svd(x).U.shape
    ((6, 2), (6, 6))
    """
    if x.ndim < 2:
        raise RuleError(f"svd takes matrices [..., m, n], but the shape is {x.shape}")
    if not compute_uv:
        return svdvals(x)
    if not full_matrices or x.shape[-1] == x.shape[-2]:
        return reduced_svd(x)
    if x.requires_grad:
        raise RuleError(
            "svd with full_matrices=True has no gradient, since the columns beyond the reduced ones are any; use "
            "full_matrices=False, or x.detach()"
        )
    u, s, vh = reduced_svd(x)
    return Singular(_completed(u), s, adjoint(_completed(adjoint(vh))))


@of_tensors
def svdvals(x: Tensor) -> Tensor:
    """Compute singular values, largest first.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> linalg.svdvals(s).full().round(4).tolist()
    [5.5616, 1.4384]
    """
    return reduced_svd(x)[1] if not _split_and_tall(x) else svd_op.results(qr(x)[1])[1]
