"""Tensors arranged anew: dims added and taken away, stacked, repeated, tiled, looked up entry by entry.

Most are made of operators that are declared elsewhere: a reshape, a transposition, a broadcast, a lookup. Repeating is a
broadcast into a dim of its own, so that nothing moves where a piece is repeated whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spmdsim.arrays import Context, Op, Tensor
from spmdsim.arrays.operands import Operand, counted_dim
from spmdsim.arrays.ops.contract import matmul
from spmdsim.arrays.ops.declare import Array, Shape, alike
from spmdsim.arrays.ops.dim_reductions import Dims, as_type, normal_dims
from spmdsim.arrays.ops.dim_reductions import any as any_
from spmdsim.arrays.ops.dim_reductions import sum as sum_
from spmdsim.arrays.ops.elementwise import add, conjugate, less, multiply, where
from spmdsim.arrays.ops.lookup import gather
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.shape import broadcast_to, moving_rule, reshape, transpose
from spmdsim.arrays.ops.slicing import concat
from spmdsim.core import Rule
from spmdsim.core.notation.layouts import as_integers
from spmdsim.errors import RuleError
from spmdsim.worlds.convert_operands import as_operand

__all__ = [
    "broadcast_arrays", "expand_dims", "matrix_transpose", "meshgrid", "moveaxis", "repeat", "squeeze",
    "stack", "swapaxes", "take", "tile", "tril", "triu", "unstack", "vecdot",
]  # fmt: skip


@operator()
def expand_dims(x: Tensor, axis: Dims = 0) -> Tensor:
    """Insert dimensions of size 1.

    ``axis`` is one position in the result or several.

    Args:
        x: the tensor.
        axis: positions of the new dimensions in the result.

    Raises:
        RuleError: out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.expand_dims(x, 1).shape
    (2, 1, 3)
    """
    places = (axis,) if isinstance(axis, (int, np.integer)) else tuple(axis or ())
    new = normal_dims(places, x.ndim + len(places))
    rest = iter(x.shape)
    return reshape(x, [1 if d in new else next(rest) for d in range(x.ndim + len(places))])


@operator()
def squeeze(x: Tensor, axis: Dims = None) -> Tensor:
    """Remove dimensions of size 1: those of ``axis``, or all.

    Args:
        x: the tensor.
        axis: one dimension or several; None: all of size 1.

    Raises:
        RuleError: a dim of another size.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.squeeze(ops.expand_dims(x, 0), 0).shape
    (2, 3)
    """
    gone = [d for d, n in enumerate(x.shape) if n == 1] if axis is None else normal_dims(axis, x.ndim)
    for d in gone:
        if x.shape[d] != 1:
            raise RuleError(f"only dims of size one are squeezed, but dim {d} of shape {x.shape} is not")
    return reshape(x, [n for d, n in enumerate(x.shape) if d not in gone])


@operator()
def moveaxis(x: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Move dimensions to other positions; the others keep their order.

    Args:
        x: the tensor.
        source: which dim or dims are moved, negative ones from the end.
        destination: where each of them stands in the result; as many as ``source``.

    Raises:
        RuleError: not as many places as dims, one given twice, or out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.moveaxis(x, 0, 1).layout.short()
    'S(1)'
    """
    ends = [(d,) if isinstance(d, (int, np.integer)) else tuple(d) for d in (source, destination)]
    if len(ends[0]) != len(ends[1]):
        raise RuleError(f"moveaxis takes one place per dim, but got {source} and {destination}")
    for dims in ends:
        normal_dims(dims, x.ndim)
    moves = {counted_dim(b, x.ndim): counted_dim(a, x.ndim) for a, b in zip(*ends)}
    rest = iter([d for d in range(x.ndim) if d not in moves.values()])
    return transpose(x, [moves[d] if d in moves else next(rest) for d in range(x.ndim)])


@operator()
def swapaxes(x: Tensor, axis1: int, axis2: int) -> Tensor:
    """Exchange two dimensions; negative numbers count from the end.

    Args:
        x: the tensor.
        axis1: the first dimension.
        axis2: the second dimension.

    Raises:
        RuleError: a dim out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.swapaxes(x, 0, 1).layout.short()
    'S(1)'
    """
    a, b = counted_dim(axis1, x.ndim), counted_dim(axis2, x.ndim)
    return transpose(x, [{a: b, b: a}.get(d, d) for d in range(x.ndim)])


@operator()
def matrix_transpose(x: Tensor) -> Tensor:
    """Exchange the last two dimensions.

    Raises:
        RuleError: fewer than two dims.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.matrix_transpose(x).full().tolist()
    [[3, 6], [1, 5], [2, 4]]
    """
    if x.ndim < 2:
        raise RuleError(f"a matrix has two dims, but the shape is {x.shape}")
    return swapaxes(x, -2, -1)


@operator()
def broadcast_arrays(*tensors: Operand) -> list[Tensor]:
    """Broadcast tensors to their common shape.

    Raises:
        RuleError: shapes that do not broadcast.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> [y.shape for y in ops.broadcast_arrays(x, 1.0)]
    [(2, 3), (2, 3)]
    """
    like = next(x for x in tensors if isinstance(x, Tensor))
    operands = [as_operand(x, like) for x in tensors]
    try:
        shape = np.broadcast_shapes(*[x.shape for x in operands])
    except ValueError:
        shapes = " and ".join(str(x.shape) for x in operands)
        raise RuleError(f"shapes {shapes} do not broadcast") from None
    return [broadcast_to(x, shape) for x in operands]


@operator()
def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Join tensors of one shape along a new dimension.

    Args:
        tensors: at least one tensor.
        axis: position of the new dimension in the result.

    Raises:
        RuleError: other shapes, no tensors, or a dim out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.stack([x, x], axis=2).shape
    (2, 3, 2)
    """
    shapes = {x.shape for x in tensors}
    if len(shapes) != 1:
        raise RuleError(f"stack takes tensors of one shape, but got {sorted(shapes)}")
    dim = counted_dim(axis, tensors[0].ndim + 1)
    return concat([expand_dims(x, dim) for x in tensors], dim)


@operator()
def unstack(x: Tensor, axis: int = 0) -> tuple[Tensor, ...]:
    """Return one tensor per entry of a dimension.

    Args:
        x: the tensor.
        axis: the dimension.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> [row.full().tolist() for row in ops.unstack(x)]
    [[3, 1, 2], [6, 5, 4]]
    """
    moved = moveaxis(x, axis, 0)
    return tuple(moved[k] for k in range(moved.shape[0]))


@operator()
def meshgrid(*tensors: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Return coordinates of the points of a grid.

    Each one-dimensional tensor is repeated along the dimensions of the others.

    Args:
        *tensors: coordinates along each dim.
        indexing: ``"ij"``, or ``"xy"`` with the first two dims exchanged.

    Raises:
        RuleError: another indexing.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> [y.shape for y in ops.meshgrid(v, v[:3])]
    [(3, 4), (3, 4)]
    """
    if indexing not in ("xy", "ij"):
        raise RuleError(f"indexing is 'xy' or 'ij', but got {indexing!r}")
    count = len(tensors)
    places = list(range(count))
    if indexing == "xy" and count > 1:
        places[:2] = 1, 0
    rows = [reshape(x, [-1 if d == place else 1 for d in range(count)]) for x, place in zip(tensors, places)]
    return broadcast_arrays(*rows) if rows else []


@operator()
def repeat(x: Tensor, repeats: int | Sequence[int] | np.ndarray | Tensor, axis: int | None = None) -> Tensor:
    """Repeat each entry of a dimension several times.

    Args:
        x: the tensor.
        repeats: how often, all or one number per entry. Of a tensor, all ranks have to look at the values.
        axis: which dim.

    Raises:
        RuleError: a negative number, or not one per entry.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.repeat(v, 2).full().tolist()
    [3, 3, 1, 1, 3, 3, 2, 2]
    """
    if axis is None:
        x, axis = reshape(x, -1), 0
    dim = counted_dim(axis, x.ndim)
    counts = np.asarray(repeats.full() if isinstance(repeats, Tensor) else repeats)
    n = x.shape[dim]
    if counts.dtype.kind not in "iub" or (counts < 0).any() or counts.shape not in ((), (1,), (n,)):
        raise RuleError(f"repeats are one number from 0 on or {n} of them, but got {counts.tolist()}")
    if counts.size == 1:
        times = int(counts.reshape(()))
        wide = broadcast_to(expand_dims(x, dim + 1), (*x.shape[: dim + 1], times, *x.shape[dim + 1 :]))
        return reshape(wide, (*x.shape[:dim], n * times, *x.shape[dim + 1 :]))
    return gather(x, as_operand(np.repeat(np.arange(n), counts), x), dim)


@operator()
def tile(x: Tensor, repetitions: int | Sequence[int]) -> Tensor:
    """Repeat the whole tensor several times along each dimension.

    Args:
        x: the tensor.
        repetitions: number of copies: one for the last dimension, or one per dimension.

    Raises:
        RuleError: a negative number.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.tile(v, 2).full().tolist()
    [3, 1, 3, 2, 3, 1, 3, 2]
    """
    times = as_integers((repetitions,) if isinstance(repetitions, (int, np.integer)) else repetitions)
    if min(times, default=0) < 0:
        raise RuleError(f"tile takes numbers from 0 on, but got {times}")
    ndim = max(x.ndim, len(times))
    shape = (1,) * (ndim - x.ndim) + x.shape
    times = (1,) * (ndim - len(times)) + times
    split = reshape(x, [n for size in shape for n in (1, size)])
    wide = broadcast_to(split, [n for pair in zip(times, shape) for n in pair])
    return reshape(wide, [a * b for a, b in zip(times, shape)])


def _triangle_rule(shape: Shape, k: int, upper: bool) -> Rule:
    if len(shape) < 2:
        raise RuleError(f"a triangle needs two dims, but the shape is {shape}")
    leading = " ".join(f"d{d}" for d in range(len(shape) - 2))
    return moving_rule(f"{leading} m n -> {leading} m n", (), "each")


def _triangle(context: Context, x: Array, k: int, upper: bool) -> Array:
    k += context.bounds("m")[0] - context.bounds("n")[0]
    return np.asarray(np.triu(x, k) if upper else np.tril(x, k))


_triangle_op = Op(
    "triangle",
    _triangle_rule,
    _triangle,
    lambda context, dy, _xs, _y, k, upper: (_triangle(context, dy, k, upper),),
    contextual=True,
    moves=True,
)


@operator(_triangle_op)
def tril(x: Tensor, k: int = 0) -> Tensor:
    """Return the lower triangles of matrices ``[..., m, n]``.

    Elements above the ``k``-th diagonal become zero.

    Args:
        x: the tensor.
        k: number of diagonals above the main one that are kept; negative: below.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.tril(x).full().tolist()
    [[3, 0, 0], [6, 5, 0]]
    """
    return _triangle_op(x, k=k, upper=False)


@operator(_triangle_op)
def triu(x: Tensor, k: int = 0) -> Tensor:
    """Return the upper triangles of matrices ``[..., m, n]``.

    Elements below the ``k``-th diagonal become zero.

    Args:
        x: the tensor.
        k: number of the lowest kept diagonal above the main one; negative: below.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.triu(x).full().tolist()
    [[3, 1, 2], [0, 5, 4]]
    """
    return _triangle_op(x, k=k, upper=True)


@operator()
def take(x: Tensor, indices: Operand, axis: int | None = None) -> Tensor:
    """Return entries of a dimension by their indices, as ``numpy.take``.

    Negative indices count from the end.

    Where that dim is split the result is partial over its axes, as that of :func:`gather`.

    Args:
        x: ``[a..., v, b...]``.
        indices: integers ``[i...]`` in ``-v .. v-1``: a number, an array or a tensor.
        axis: which dim of ``x`` is ``v``, for ``[a..., i..., b...]``; None: all elements, for ``[i...]``.

    Raises:
        RuleError: indices that are no integers, or a dim out of range.
        InputError: an index out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.take(x, [2, 0], axis=1).full().tolist()
    [[2, 3], [4, 6]]
    """
    if axis is None:
        x, axis = reshape(x, -1), 0
    dim = counted_dim(axis, x.ndim)
    ids = as_operand(indices if isinstance(indices, Tensor) else np.asarray(indices), x)
    if ids.dtype.kind not in "iu":
        raise RuleError(f"entries are looked up by integers, not by {ids.dtype}")
    if ids.dtype.kind == "i":
        ids = as_type(ids, np.dtype(np.int64))
        ids = where(less(ids, 0), add(ids, x.shape[dim]), ids)
    return gather(x, ids, dim)


@operator()
def vecdot(a: Operand, b: Operand, axis: int = -1) -> Tensor:
    """Compute sums of products over one dimension of two tensors.

    The other dimensions broadcast. Complex numbers of the first tensor are conjugated.

    Partial over the axes that split the dim; of truth values, whether any product is true.

    Args:
        a: ``[..., n]`` with ``n`` where ``axis`` says; a tensor or what broadcasts as one.
        b: as ``a``.
        axis: which dim of each is ``n``, counted in each on its own.

    Raises:
        RuleError: dims of different sizes, others that do not broadcast, or a dim out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.vecdot(m, m).full().tolist()
    [10.0, 20.0]
    """
    x, y = alike("vecdot", a, b)
    kind, shape = x.dtype.kind, x.shape
    x = conjugate(x) if kind == "c" else x
    if shape == y.shape and len(shape) == 1 and axis in (0, -1) and kind != "b":  # no array of the products
        return matmul(x, y)
    dims = [counted_dim(axis, t.ndim) - t.ndim for t in (x, y)]
    if shape[dims[0]] != y.shape[dims[1]]:
        raise RuleError(f"vecdot of shapes {shape} and {y.shape}: dim {axis} differs in size")
    products = multiply(*[t if d == -1 else moveaxis(t, d, -1) for t, d in zip((x, y), dims)])
    return any_(products, -1) if products.dtype.kind == "b" else sum_(products, -1, dtype=products.dtype)
