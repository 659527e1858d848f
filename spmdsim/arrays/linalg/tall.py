"""Factors of tall matrices that are split by rows: only small triangles are gathered (TSQR)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from spmdsim.arrays import Context, Op, Tensor, ops
from spmdsim.arrays.linalg.whole import hermitian, svd_op, to_division_type
from spmdsim.arrays.ops.declare import Array, Shape
from spmdsim.arrays.ops.operators import of_tensors
from spmdsim.arrays.ops.scans import conjugate_if_complex, find_split_axes
from spmdsim.arrays.ops.slicing import slice_along
from spmdsim.arrays.stepped import SteppedOp
from spmdsim.core import BoundRule, Layout, Rule, Strategy
from spmdsim.core.step import Step
from spmdsim.errors import RuleError

__all__ = ["qr", "svd", "svdvals"]


def adjoint(x: Tensor) -> Tensor:
    """Return the conjugate transpose of matrices."""
    return conjugate_if_complex(ops.transpose(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2]))


def _qr_rule(shape: Shape) -> tuple[Rule, dict[str, int]]:
    """Return the rule of ``qr`` and the number of columns of ``q``.

    The rows of a single tall matrix may be split; other matrices must not.
    """
    tall = len(shape) == 2 and shape[0] >= shape[1]
    rule = Rule.parse("... m n -> ... m k, ... k n", whole="n k" if tall else "m n k", work="passes")
    return rule, {"k": min(shape[-2:])}


def _list_qr_exchanges(bound: BoundRule, strategy: Strategy, inputs: Sequence[Any]) -> Any:
    """Return the all-gather of the ranks' triangles, or () if rows are not split."""
    axes = find_split_axes(strategy, "m")
    if not axes:
        return ()
    n, mesh, dtype = bound.sizes["n"], strategy.mesh, inputs[0].dtype
    step = Step(
        "all_gather", axes, mesh(axes, None, None), mesh(None, None, None), (mesh.axis_size(*axes), n, n)
    )
    return ((step, dtype),)


def _make_diagonal_positive(q: Array, r: Array) -> tuple[Array, Array]:
    """Return ``q`` and ``r`` with other signs, so that no diagonal entry of ``r`` is negative.

    The entries are then real. This makes the factors unique. Columns of ``q`` and rows of ``r`` change their signs;
    complex ones are rotated. Rows whose diagonal entry is 0, nan or infinite stay. Neither argument is changed.

    Args:
        q: ``[..., m, n]``.
        r: ``[..., n, n]``.
    """
    diagonal = np.diagonal(r, axis1=-2, axis2=-1)
    size = np.abs(diagonal)
    has_sign = np.isfinite(size) & (size > 0)
    sign = np.where(has_sign, diagonal / np.where(has_sign, size, 1), 1).astype(r.dtype)
    return q * sign[..., None, :], np.conj(sign)[..., :, None] * r


def _factor_rows(context: Context, x: Array) -> Generator[Array, Array, tuple[Array, Array]]:
    """Return this rank's rows of ``q``, and ``r``.

    The diagonal of ``r`` has no negative numbers. If rows are split, each rank factors its own rows, and the generator
    yields the resulting triangle. The caller sends back the triangles of all ranks, one below the other; each rank
    factors them once more, which gives ``r``. If rows are not split, the generator yields nothing.

    Args:
        context: the operator call as this rank sees it: strategy, rank, sizes.
        x: this rank's rows; they may be fewer than the columns. Not changed.
    """
    q, r = np.linalg.qr(x)
    axes = find_split_axes(context.strategy, "m")
    if axes:
        n, mesh = context.size("n"), context.strategy.mesh
        members, rows = mesh.group(context.rank, *axes), Layout(mesh, [axes])
        # The triangle of a rank with fewer rows than columns has only these rows. The exchange needs equal sizes, so
        # zeros are added to it and removed again.
        heights = [min(rows.local_shape((context.size("m"),), member)[0], n) for member in members]
        triangles = yield np.pad(r, ((0, n - len(r)), (0, 0)))[None]
        stacked = np.concatenate([triangle[:height] for triangle, height in zip(triangles, heights)])
        first_row = sum(heights[: members.index(context.rank)])
        small_q, r = np.linalg.qr(stacked)
        q = q @ small_q[first_row : first_row + len(q.T)]
    return _make_diagonal_positive(q, r)


def _qr_gradient_factor(r: Array, dr: Array, product: Array) -> Array:
    """Return the matrix ``c`` of the gradient ``(dq + q c) r^-H`` of a QR factorisation.

    Args:
        r: the triangle.
        dr: its gradient.
        product: ``dq^H q``.
    """
    full = r @ hermitian(dr) - product
    lower = np.tril(full, -1)
    diagonal = np.real(np.einsum("...ii->...i", full))[..., None] * np.eye(r.shape[-1])
    return np.asarray(lower + hermitian(lower) + diagonal, r.dtype)


_gradient_factor_op = Op(
    "qr_gradient", Rule.parse("... m n, ... m n, ... m n -> ... m n", whole="m n"), _qr_gradient_factor
)
_right_solve_op = Op(
    "qr_back",
    Rule.parse("... m k, ... n k -> ... m n", whole="n k"),
    lambda x, r: hermitian(np.linalg.solve(r, hermitian(x))),
)


def _qr_adjoint(
    dys: Sequence[Tensor | None], operands: Sequence[Tensor], results: Sequence[Tensor]
) -> tuple[Tensor]:
    """Return the gradient of a matrix from the gradients of its QR factors: ``(dq + q c) r^-H``.

    The matrix must be tall and of full rank. See `_qr_gradient_factor` for c.

    Args:
        dys: the gradients of ``q`` and ``r``; None for one that is not used.
        operands: the matrix; not used, the interface has it.
        results: ``q`` and ``r``.

    Returns:
        A tuple of one tensor, in the layout of ``q``.
    """
    (dq, dr), (q, r) = dys, results
    zeros = r * 0
    product = zeros if dq is None else ops.matmul(adjoint(dq), q)
    middle = ops.matmul(q, _gradient_factor_op(r, zeros if dr is None else dr, product.to(r.layout)))
    return (_right_solve_op(middle if dq is None else ops.add(dq, middle), r),)


def _complete_qr(x: Array) -> tuple[Array, Array]:
    """Return the factors ``q [..., m, m]`` and ``r [..., m, n]`` of tall matrices ``x [..., m, n]``.

    The diagonal of ``r`` has no negative numbers.
    """
    q, r = np.linalg.qr(x, "complete")
    n = x.shape[-1]
    first, top = _make_diagonal_positive(q[..., :n], r[..., :n, :])
    return np.concatenate([first, q[..., n:]], -1), np.concatenate([top, r[..., n:, :]], -2)


_complete_op = Op(
    "qr_complete",
    lambda shape: (Rule.parse("... m n -> ... m p, ... p n", whole="m n p", work="passes"), {"p": shape[-2]}),
    _complete_qr,
)
qr_op = SteppedOp(
    "qr",
    _qr_rule,
    _factor_rows,
    steps=_list_qr_exchanges,
    adjoint=_qr_adjoint,
    contextual=True,
    saves_result=True,
)


def _split_by_rows_only(x: Tensor) -> Tensor:
    """Return a single tall matrix in a layout that splits only its rows.

    The axes of the columns then split the rows further. Other tensors are returned unchanged.
    """
    dims = x.layout.reduced.canonical.dims
    if x.ndim != 2 or x.shape[0] < x.shape[1] or not dims[1]:
        return x
    return x.to(x.layout.mesh((*dims[0], *dims[1]), None))


class Triangular(NamedTuple):
    """The result of :func:`qr`: orthonormal columns and upper triangle."""

    Q: Tensor
    R: Tensor


class Singular(NamedTuple):
    """The result of :func:`svd`: left vectors, singular values, adjoint of right vectors."""

    U: Tensor
    S: Tensor
    Vh: Tensor


@of_tensors
def qr(x: Tensor, mode: str = "reduced") -> Any:
    """Factor matrices ``[..., m, n]`` into ``q r``: orthonormal columns and an upper triangle.

    The diagonal of ``r`` has no negative numbers.

    - A tall matrix split by rows: each rank factors its rows, and only the triangles are gathered. ``q`` has the layout
      of the matrix, and every rank owns all of ``r``.
    - A tall matrix whose columns are split, too: it is first redistributed by rows.
    - Other split matrices: rows and columns are gathered.

    Args:
        x: the tensor; integers become float64.
        mode: ``"reduced"``: ``q`` has ``min(m, n)`` columns; ``"r"``: the triangle alone; ``"complete"``: ``q`` is
            square, for which tall matrices are gathered, without a gradient.

    Returns:
        The named tuple ``(Q, R)``, or ``R`` for mode "r".

    Raises:
        RuleError: If the mode is unknown, ``x`` has fewer than two dims, or a complete ``q`` needs a gradient.

    >>> from spmdsim import LockStep, Mesh, Tensor
    >>> x = Tensor.from_global(np.arange(12.0).reshape(6, 2), Mesh((2,), ("x",))("x", None), LockStep(2))
    >>> q, r = qr(x)
    >>> q.layout == x.layout, bool(np.allclose(q.full() @ r.full(), x.full()))
    (True, True)
    """
    if mode == "r":
        return qr(x).R
    if mode not in ("reduced", "complete"):
        raise RuleError(f"qr: mode must be 'reduced', 'complete' or 'r', got {mode!r}")
    if x.ndim < 2:
        raise RuleError(f"qr: x must have at least two dims [..., m, n], got shape {x.shape}")
    height, width = x.shape[-2:]
    if mode == "complete" and height > width:
        if x.requires_grad:
            raise RuleError(
                "qr with mode='complete' has no gradient, because its additional columns are not unique; use "
                "mode='reduced', or x.detach()"
            )
        return Triangular(*_complete_op.results(to_division_type(x)))
    # The gradient of wide matrices is that of their square left part, on which alone q depends.
    if x.requires_grad and height < width:
        q, r = qr(slice_along(x, -1, 0, height))
        right_part = ops.matmul(adjoint(q), slice_along(x, -1, height, width))
        return Triangular(q, ops.concat([r, right_part], x.ndim - 1))
    return Triangular(*qr_op.results(_split_by_rows_only(to_division_type(x))))


def _is_split_and_tall(x: Tensor) -> bool:
    """Return True if a tensor is a single matrix with at least as many rows as columns, and split."""
    return x.ndim == 2 and x.shape[0] >= x.shape[1] and bool(x.layout.canonical.split_axes)


def reduced_svd(x: Tensor) -> Singular:
    """Compute the reduced singular value decomposition: ``U``, singular values and ``V^H``.

    - One matrix (2-D) that is split and has at least as many rows as columns: :func:`qr` computes ``x = Q R``. ``R`` is
      decomposed, and ``Q`` times the ``U`` of ``R`` is the ``U`` of ``x``.
    - One split matrix with fewer rows: its conjugate transpose is decomposed, as in the first case.
    - All others: one operator, which gathers rows and columns that are split.

    Args:
        x: matrices ``[..., m, n]``; integers become float64.

    Returns:
        ``U [..., m, k]``, ``S [..., k]`` (descending) and ``Vh [..., k, n]`` with ``k = min(m, n)``.
    """
    if not _is_split_and_tall(x):
        if x.ndim == 2 and x.shape[0] < x.shape[1] and x.layout.canonical.split_axes:
            v, s, uh = reduced_svd(adjoint(x))
            return Singular(adjoint(uh), s, adjoint(v))
        return Singular(*svd_op.results(to_division_type(x)))
    q, r = qr(x)
    u, s, vh = svd_op.results(r)
    return Singular(ops.matmul(q, u), s, vh)


def _complete_columns(q: Tensor) -> Tensor:
    """Extend orthonormal columns ``q [..., m, n]`` to square matrices ``[..., m, m]``.

    If there are columns to add, the matrices are gathered.
    """
    height, width = q.shape[-2:]
    if height == width:
        return q
    return ops.concat([q, slice_along(qr(q, "complete").Q, -1, width, height)], q.ndim - 1)


@of_tensors
def svd(x: Tensor, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Compute ``u``, singular values and ``v^H`` of matrices ``[..., m, n]``.

    Tall split matrices are factored by :func:`qr` first if reduced factors are needed.

    Args:
        x: the tensor; integers become float64.
        full_matrices: True: ``u`` and ``v^H`` are square, as in NumPy; the matrix is gathered for this, and the
            results have no gradients. False: ``u`` has only ``k = min(m, n)`` columns, and ``v^H`` only ``k`` rows. For
            square matrices both give equal results.
        compute_uv: False: return the singular values alone; ``full_matrices`` is then not used.

    Returns:
        The named tuple ``(U, S, Vh)``, or with ``compute_uv=False`` the singular values ``[..., k]``, descending.

    Raises:
        RuleError: If ``x`` has fewer than two dims, or full matrices need a gradient.

    >>> from spmdsim import LockStep, Mesh, Tensor
    >>> x = Tensor.from_global(np.eye(6, 2), Mesh((2,), ("x",))("x", None), LockStep(2))
    >>> svd(x, full_matrices=False).U.shape, svd(x).U.shape
    ((6, 2), (6, 6))
    """
    if x.ndim < 2:
        raise RuleError(f"svd: x must have at least two dims [..., m, n], got shape {x.shape}")
    if not compute_uv:
        return svdvals(x)
    if not full_matrices or x.shape[-1] == x.shape[-2]:
        return reduced_svd(x)
    if x.requires_grad:
        raise RuleError(
            "svd with full_matrices=True has no gradient, because its additional columns are not unique; use "
            "full_matrices=False, or x.detach()"
        )
    u, s, vh = reduced_svd(x)
    return Singular(_complete_columns(u), s, adjoint(_complete_columns(adjoint(vh))))


@of_tensors
def svdvals(x: Tensor) -> Tensor:
    """Compute singular values, largest first.

    Args:
        x: matrices ``[..., m, n]``.

    Returns:
        ``[..., min(m, n)]``, real.

    Raises:
        RuleError: If ``x`` has fewer than two dimensions.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> linalg.svdvals(s).full().round(4).tolist()
    [5.5616, 1.4384]
    """
    return reduced_svd(x)[1] if not _is_split_and_tall(x) else svd_op.results(qr(x)[1])[1]
