"""Fourier transforms along one dim as an operator; a split dim moves its axes or becomes a matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from spmdsim.arrays import Context, Op, Tensor
from spmdsim.arrays.ops.declare import Array, Arrays, Shape
from spmdsim.arrays.ops.scans import ALONG, normalise_along_dim
from spmdsim.arrays.ops.shape import reshape, transpose
from spmdsim.arrays.ops.slicing import slice_along
from spmdsim.core import Layout, Rule
from spmdsim.errors import RuleError


@lru_cache(maxsize=256)
def factors(n: int, parts: int) -> tuple[int, int] | None:
    """Return two factors of ``n``, the first a multiple of ``parts``; None if there are none.

    They are the sizes of a matrix as which a split dim of ``n`` points is transformed. Of several pairs, one whose
    second factor is a multiple of ``parts``, too, is preferred; then the pair that is closest to a square (the
    smallest absolute logarithm of the quotient). Results are cached.

    Args:
        n: the number of points.
        parts: the number of blocks of the dim.

    >>> factors(4096, 4), factors(24, 4), factors(15, 4)
    ((64, 64), (4, 6), None)
    """
    rows = np.arange(parts, n // parts + 1, parts)
    rows = rows[n % rows == 0]
    if not len(rows):
        return None

    def rank_candidate(first: int) -> tuple[bool, float]:
        """Return a sort key: True if the second factor is uneven, and the imbalance of both factors."""
        is_uneven = (n // first) % parts > 0
        return is_uneven, abs(math.log(first * first / n))

    first = min(rows.tolist(), key=rank_candidate)
    return first, n // first


def four_steps(transform: Callable[[Tensor, int], Tensor], x: Tensor, dim: int, inverse: bool) -> Tensor:
    """Transform a split dim of ``n = rows * columns`` points as a matrix, without a gather.

    :func:`factors` gives ``rows`` and ``columns``; it must not return None. The four steps are:

    1. Transform each column.
    2. Multiply by the twiddle factors, the roots of unity that depend on row and column.
    3. Transform each row.
    4. Transpose the matrix and flatten it.

    All ranks must call it. They exchange their blocks three times, and no rank ever stores more than one block. The
    result has shape and layout of ``x``, which must not be partial.

    Args:
        transform: ``transform(tensor, dim)`` transforms a tensor along a dim in the direction of ``inverse``.
        x: the tensor, of the complex type of the result.
        dim: the split dimension, not negative.
        inverse: True for an inverse transform.
    """
    layout = x.layout.canonical
    sizes = factors(x.shape[dim], layout.cuts[dim])
    assert sizes
    y = reshape(x, (*x.shape[:dim], *sizes, *x.shape[dim + 1 :]))
    y = transform(_turn_op(transform(y, dim), dim=dim, inverse=inverse), dim + 1)
    # Row k and column l of the matrix are entry ``l * rows + k`` of the result, so transpose before the reshape.
    order = list(range(y.ndim))
    order[dim : dim + 2] = dim + 1, dim
    y = transpose(y, order)
    split = Layout(layout.mesh, [*layout.dims[: dim + 1], (), *layout.dims[dim + 1 :]])
    return reshape(y.to(split), x.shape, layout)


def _multiply_twiddles(context: Context, x: Array, dim: int, inverse: bool) -> Array:
    """Return this rank's block times twiddle factors, in the block's type.

    The factor at ``[k, j]`` is the ``n``-th root of unity to the power ``k j``: ``exp(-2 pi i k j / n)``.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        x: this rank's block.
        dim: the dim of ``k``; the next dim is the dim of ``j``. ``n`` is the product of both sizes.
        inverse: True for the conjugate roots of an inverse transform.
    """
    (first, last), (start, stop) = context.bounds(f"d{dim}"), context.bounds(f"d{dim + 1}")
    n = context.size(f"d{dim}") * context.size(f"d{dim + 1}")
    powers = np.outer(np.arange(first, last), np.arange(start, stop)) % n
    roots = np.exp((2j if inverse else -2j) * np.pi / n * powers).astype(x.dtype)
    return np.asarray(x * roots.reshape(*roots.shape, *[1] * (x.ndim - dim - 2)))


_turn_op = Op(
    "twiddle",
    lambda shape, dim, inverse: Rule.parse(
        "{0} -> {0}".format(" ".join(f"d{d}" for d in range(len(shape)))), linear="each"
    ),
    _multiply_twiddles,
    lambda context, dy, _operands, _y, dim, inverse: (_multiply_twiddles(context, dy, dim, not inverse),),
    contextual=True,
)


#: The norm of the opposite transform by the norm of a transform, with equal scale factors.
OTHER_NORM = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def _transform_rule(shape: Shape, kind: str, n: int, dim: int, norm: str) -> tuple[Rule, dict[str, int]]:
    """Return the rule of a transform, and the size of the transformed dim in the result.

    The dim must not be split. For shape (8, 6), the kind "rfft", 6 points and dim 1 the rule is "d0 w -> d0 v", with
    {"v": 4}. ``norm`` is not used.
    """
    names = [ALONG if d == dim else f"d{d}" for d in range(len(shape))]
    left, right = " ".join(names), " ".join("v" if name == ALONG else name for name in names)
    rule = Rule.parse(f"{left} -> {right}", whole=f"{ALONG} v", linear="each", work="functions")
    return rule, {"v": n // 2 + 1 if kind == "rfft" else n}


def _apply_numpy(x: Array, kind: str, n: int, dim: int, norm: Any) -> Array:
    """Apply NumPy's transform to this rank's block; a block without elements gives zeros."""
    if x.size or not n:  # if n is 0, NumPy raises its error
        return np.asarray(getattr(np.fft, kind)(x, n, dim, norm), order="C")
    shape = [*x.shape]
    shape[dim] = n // 2 + 1 if kind == "rfft" else n
    return np.zeros(shape, _find_result_type(x.dtype, kind))


def _transform_vjp(
    dy: Array, operands: Arrays, _y: Any, kind: str, n: int, dim: int, norm: str
) -> tuple[Array]:
    """Return the gradient of a Fourier transform: a transform in the opposite direction.

    It uses the opposite ``norm``: "forward" for "backward" and vice versa.

    - fft and rfft: ``ifft(dy)`` of ``n`` points.
    - ifft: ``fft(dy)`` of ``n`` points.
    - irfft: ``rfft(dy)``, whose entries are doubled except the first one and, for even ``n``, the last one: each
      doubled entry stands for two conjugate ones. Only the real part of ``dy`` is used.

    The result is cut or padded with zeros to the operand's size along ``dim``. For rfft it is complex: its real part
    is not taken here. An empty ``dy`` gives zeros.

    Args:
        dy: the gradient of the result.
        operands: the operand of the call, in a list of one.
        _y: the result; not used.
        kind: "fft", "ifft", "rfft" or "irfft".
        n: the number of points.
        dim: the dimension.
        norm: "backward", "ortho" or "forward", as in NumPy.
    """
    size, opposite_norm = operands[0].shape[dim], OTHER_NORM[norm]
    if not dy.size:
        return (np.zeros_like(operands[0]),)
    if kind in ("fft", "rfft"):
        slope = _apply_numpy(dy, "ifft", n, dim, opposite_norm)
    elif kind == "ifft":
        slope = _apply_numpy(dy, "fft", n, dim, opposite_norm)
    else:  # each value except the first and the middle one represents two conjugate values
        slope = _apply_numpy(np.ascontiguousarray(dy.real), "rfft", n, dim, opposite_norm)
        doubled = np.full(n // 2 + 1, 2.0, dy.real.dtype)
        doubled[0] = 1
        if n % 2 == 0:
            doubled[-1] = 1
        slope = slope * doubled.reshape([-1 if d == dim else 1 for d in range(slope.ndim)])
    missing = [(0, max(size - slope.shape[dim], 0) if d == dim else 0) for d in range(slope.ndim)]
    return (
        np.pad(slope, missing)[tuple([slice(size) if d == dim else slice(None) for d in range(slope.ndim)])],
    )


def _find_result_type(x: np.dtype, kind: str, **_: Any) -> np.dtype:
    """Return the result type of a transform; it is real for "irfft".

    It has single precision for operands of at most 4 bytes per real number, else double.
    """
    single = x.itemsize <= (8 if x.kind == "c" else 4) and x.kind in "fcV"
    if kind == "irfft":
        return np.dtype(np.float32 if single else np.float64)
    return np.dtype(np.complex64 if single else np.complex128)


_op = Op("fft", _transform_rule, _apply_numpy, _transform_vjp, dtype=_find_result_type)


def transform(
    kind: str, x: Tensor, n: int | None, axis: int, norm: str | None, done: Sequence[int] = ()
) -> Tensor:
    """Compute a Fourier transform along a dim; all ranks must call it.

    A split dim is treated in the first way that is possible:

    1. The axes that split it move to another dim, if one is large enough (:func:`_move_axes_away`).
    2. It is transformed as a matrix (:func:`four_steps`), if ``n`` is its size, the size has two :func:`factors`, and
       the kind is not irfft.
    3. It is gathered.

    Args:
        kind: "fft", "ifft", "rfft" or "irfft".
        x: the tensor.
        n: the number of points, to which the dim is cut or padded with zeros; None: the size of the dim, or ``2 *
            (size - 1)`` for irfft.
        axis: the dim; negative ones count from the end.
        norm: "backward", "forward", "ortho" or None for "backward", as in NumPy.
        done: dims that are transformed already; the axes move to one of them if one is large enough.

    Returns:
        A tensor whose dim has ``n`` entries, or ``n // 2 + 1`` for rfft; its layout may differ from that of ``x``. If
        ``x`` has floats of up to 32 bits or complex64, its type is complex64, otherwise complex128. For irfft it is
        float32 or float64.

    Raises:
        RuleError: If the dim is out of range, ``n`` < 1, the norm is unknown, or ``x`` is complex for rfft.
    """
    at = normalise_along_dim(kind, x, axis)
    if norm not in (None, *OTHER_NORM):
        raise RuleError(f"the norm of a transform is {', '.join(map(repr, OTHER_NORM))}, but got {norm!r}")
    if n is None:
        n = 2 * (x.shape[at] - 1) if kind == "irfft" else x.shape[at]
    if n < 1:
        raise RuleError(f"{kind} of {n} points along dim {at}; it takes one at least")
    if kind == "rfft" and x.dtype.kind == "c":
        raise RuleError("rfft takes real numbers, but got complex ones: use fft")
    x = _move_axes_away(x, at, done)
    parts = x.layout.canonical.parts[at]
    if parts > 1 and n == x.shape[at] and kind != "irfft" and factors(n, parts):
        return _transform_as_matrix(kind, x, int(n), at, norm)
    return _op(x, kind=kind, n=int(n), dim=at, norm=norm or "backward")


def _move_axes_away(x: Tensor, dim: int, done: Sequence[int]) -> Tensor:
    """Return the tensor with another dim split by the axes of a dim, if one is large enough.

    With 4 ranks along axis x, ``("x", None)`` becomes ``(None, "x")`` for dim 0. The blocks of the other dim must have
    at least as many entries as the axes have ranks. Of several dims, those in ``done`` are preferred, then dims that
    the axes divide evenly, then the dim with the largest blocks. The tensor is returned unchanged if the dim is not
    split, or no other dim is large enough.

    Args:
        x: the tensor.
        dim: the dim, not negative.
        done: the dims that are transformed already.
    """
    axes = x.layout.canonical.dims[dim]
    if not axes:
        return x
    layout, parts = x.layout.canonical, x.layout.mesh.axis_size(*axes)
    pieces = layout.largest_shape(x.shape)
    candidates = [d for d in range(x.ndim) if d != dim and pieces[d] >= parts]
    if not candidates:
        return x  # the operator then gathers the dim
    target = max(candidates, key=lambda d: (d in done, pieces[d] % parts == 0, pieces[d]))
    dims = [() if d == dim else entry + axes * (d == target) for d, entry in enumerate(layout.dims)]
    return x.to(Layout(layout.mesh, dims))


def _transform_as_matrix(kind: str, x: Tensor, n: int, dim: int, norm: str | None) -> Tensor:
    """Transform a tensor along a split dim, without a gather, by :func:`four_steps`.

    The four steps treat the dim as a matrix, so its size must have two factors (see :func:`factors`). A "rfft" computes
    the whole "fft" and keeps the first ``n // 2 + 1`` entries of the result.
    """
    kind_of_steps = "ifft" if kind == "ifft" else "fft"
    y = four_steps(lambda y, at: transform(kind_of_steps, y, None, at, norm), x, dim, kind_of_steps == "ifft")
    if kind != "rfft":
        return y
    return slice_along(y, dim, 0, n // 2 + 1)
