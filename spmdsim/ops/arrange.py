"""Tensors arranged anew: dims added and taken away, stacked, repeated, tiled, looked up entry by entry.

Most are made of operators that are declared elsewhere: a reshape, a transposition, a broadcast, a lookup. Repeating is a
broadcast into a dim of its own, so that nothing moves where a piece is repeated whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters

import numpy as np

from spmdsim.core import Rule
from spmdsim.errors import RuleError, many
from spmdsim.notation.layouts import integers
from spmdsim.ops.contract import matmul
from spmdsim.ops.declare import Array, Shape, alike
from spmdsim.ops.dim_reductions import Dims, as_type, normal_dims
from spmdsim.ops.dim_reductions import any as any_
from spmdsim.ops.dim_reductions import sum as sum_
from spmdsim.ops.einstein_sums import einsum
from spmdsim.ops.elementwise import add, conjugate, less, multiply, where
from spmdsim.ops.lookup import gather
from spmdsim.ops.operators import operator
from spmdsim.ops.shape import broadcast_to, moving_rule, reshape, transpose
from spmdsim.ops.slicing import concat
from spmdsim.tensor import Context, Op, Tensor
from spmdsim.tensor.operands import Operand, as_operand, counted_dim

__all__ = [
    "broadcast_arrays", "expand_dims", "matrix_transpose", "meshgrid", "moveaxis", "repeat", "squeeze",
    "stack", "swapaxes", "take", "tensordot", "tile", "tril", "triu", "unstack", "vecdot",
]  # fmt: skip


@operator()
def expand_dims(x: Tensor, axis: Dims = 0) -> Tensor:
    """The tensor with new dims of size one, where ``axis`` says that they stand in the result.

    Raises:
        RuleError: out of range.

    >>> ops.expand_dims(x, 1).shape
    (2, 1, 3)
    """
    places = (axis,) if isinstance(axis, (int, np.integer)) else tuple(axis or ())
    new = normal_dims(places, x.ndim + len(places))
    rest = iter(x.shape)
    return reshape(x, [1 if d in new else next(rest) for d in range(x.ndim + len(places))])


@operator()
def squeeze(x: Tensor, axis: Dims = None) -> Tensor:
    """The tensor without dims of size one: those of ``axis``, or all.

    Raises:
        RuleError: a dim of another size.

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
    """The tensor with dims at other places, the others in the order that they have.

    Parameters:
        source: which dim or dims are moved, negative ones from the end.
        destination: where each of them stands in the result; as many as ``source``.

    Raises:
        RuleError: not as many places as dims, one given twice, or out of range.

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
    """The tensor with two dims exchanged, negative ones counted from the end.

    Raises:
        RuleError: a dim out of range.

    >>> ops.swapaxes(x, 0, 1).layout.short()
    'S(1)'
    """
    a, b = counted_dim(axis1, x.ndim), counted_dim(axis2, x.ndim)
    return transpose(x, [{a: b, b: a}.get(d, d) for d in range(x.ndim)])


@operator()
def matrix_transpose(x: Tensor) -> Tensor:
    """The tensor with its last two dims exchanged.

    Raises:
        RuleError: fewer than two dims.

    >>> ops.matrix_transpose(x).full().tolist()
    [[3, 6], [1, 5], [2, 4]]
    """
    if x.ndim < 2:
        raise RuleError(f"a matrix has two dims, but the shape is {x.shape}")
    return swapaxes(x, -2, -1)


@operator()
def broadcast_arrays(*tensors: Operand) -> list[Tensor]:
    """Tensors repeated to the shape in which they meet.

    Raises:
        RuleError: shapes that do not broadcast.

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
    return [x if x.shape == shape else broadcast_to(x, shape) for x in operands]


@operator()
def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors of one shape, one after the other along a new dim.

    Raises:
        RuleError: other shapes, no tensors, or a dim out of range.

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
    """The entries of a dim, one tensor each.

    >>> [row.full().tolist() for row in ops.unstack(x)]
    [[3, 1, 2], [6, 5, 4]]
    """
    moved = moveaxis(x, axis, 0)
    return tuple(moved[k] for k in range(moved.shape[0]))


@operator()
def meshgrid(*tensors: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Coordinates of the points of a grid: each tensor of one dim, repeated along those of the others.

    Args:
        *tensors: coordinates along each dim.
        indexing: ``"ij"``, or ``"xy"`` with the first two dims exchanged.

    Raises:
        RuleError: another indexing.

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
    """Each entry of a dim (of all elements for None) several times, one after the other.

    Parameters:
        repeats: how often, all or one number per entry. Of a tensor, all ranks have to look at the values.
        axis: which dim.

    Raises:
        RuleError: a negative number, or not one per entry.

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
    """The whole tensor several times, one after the other along each dim.

    Raises:
        RuleError: a negative number.

    >>> ops.tile(v, 2).full().tolist()
    [3, 1, 3, 2, 3, 1, 3, 2]
    """
    times = integers((repetitions,) if isinstance(repetitions, (int, np.integer)) else repetitions)
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
    """The lower triangles of matrices ``[..., m, n]``, zeros above their ``k``-th diagonal.

    >>> ops.tril(x).full().tolist()
    [[3, 0, 0], [6, 5, 0]]
    """
    return _triangle_op(x, k=k, upper=False)


@operator(_triangle_op)
def triu(x: Tensor, k: int = 0) -> Tensor:
    """The upper triangles of matrices ``[..., m, n]``, zeros below their ``k``-th diagonal.

    >>> ops.triu(x).full().tolist()
    [[3, 1, 2], [0, 5, 4]]
    """
    return _triangle_op(x, k=k, upper=True)


@operator()
def take(x: Tensor, indices: Operand, axis: int | None = None) -> Tensor:
    """Entries of a dim by number, negative ones from the end; of all elements for None, as ``numpy.take``.

    Where that dim is split the result is partial over its axes, as that of :func:`gather`.

    Args:
        x: ``[a..., v, b...]``.
        indices: integers ``[i...]`` in ``-v .. v-1``: a number, an array or a tensor.
        axis: which dim of ``x`` is ``v``, for ``[a..., i..., b...]``; None: all elements, for ``[i...]``.

    Raises:
        RuleError: indices that are no integers, or a dim out of range.
        InputError: an index out of range.

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
def tensordot(a: Operand, b: Operand, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """The product summed over several dims.

    Parameters:
        axes: so many last dims of ``a`` and first ones of ``b``, or the dims of each.

    Raises:
        RuleError: different numbers of dims, or sizes that differ.

    >>> ops.tensordot(m, m, 1).full().tolist()
    [[11.0, 7.0], [14.0, 18.0]]
    """
    a, b = alike("tensordot", a, b)
    if isinstance(axes, int):
        if not 0 <= axes <= min(a.ndim, b.ndim):
            raise RuleError(f"tensordot over {axes} dims of tensors of {a.ndim} and {many(b.ndim, 'dim')}")
        axes = tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes))
    sides = [[one] if isinstance(one, int) else list(one) for one in axes]
    left, right = ([counted_dim(d, x.ndim) for d in side] for x, side in zip((a, b), sides))
    if len(left) != len(right) or [a.shape[d] for d in left] != [b.shape[d] for d in right]:
        raise RuleError(f"tensordot: dims {left} of {a.shape} and {right} of {b.shape} do not fit")
    first, second = ascii_letters[: a.ndim], list(ascii_letters[a.ndim : a.ndim + b.ndim])
    for d, e in zip(left, right):
        second[e] = first[d]
    kept = [name for name in (*first, *second) if (name in first) != (name in second)]
    return einsum(f"{first},{''.join(second)}->{''.join(kept)}", a, b)


@operator()
def vecdot(a: Operand, b: Operand, axis: int = -1) -> Tensor:
    """The sum of products over one dim of two tensors, whose others broadcast; of complex numbers the first is conjugated.

    Partial over the axes that split the dim; of truth values, whether any product is true.

    Args:
        a: ``[..., n]`` with ``n`` where ``axis`` says; a tensor or what broadcasts as one.
        b: as ``a``.
        axis: which dim of each is ``n``, counted in each on its own.

    Raises:
        RuleError: dims of different sizes, others that do not broadcast, or a dim out of range.

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
