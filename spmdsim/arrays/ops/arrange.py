"""Functions that rearrange tensors: insert, remove, move, stack and repeat dims, or look up entries.

Most combine operators of other modules: reshape, transposition, broadcast, lookup. A repetition broadcasts into a new
dimension, so no element moves if a rank repeats its whole block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spmdsim.arrays import Context, Op, Tensor
from spmdsim.arrays.operands import Operand, normalise_dim
from spmdsim.arrays.ops.contract import matmul
from spmdsim.arrays.ops.declare import Array, Shape, convert_to_one_type
from spmdsim.arrays.ops.dim_reductions import any as any_
from spmdsim.arrays.ops.dim_reductions import normalise_dims, to_type
from spmdsim.arrays.ops.dim_reductions import sum as sum_
from spmdsim.arrays.ops.elementwise import add, conjugate, less, multiply, where
from spmdsim.arrays.ops.lookup import gather
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.shape import broadcast_to, make_moving_rule, reshape, transpose
from spmdsim.arrays.ops.slicing import concat
from spmdsim.arrays.reduction_methods import Dims
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

    Args:
        x: the tensor.
        axis: position of a new dimension in the result, or several positions; negative ones count from the end.

    Returns:
        A tensor with the elements of ``x``; the other dimensions keep their layout.

    Raises:
        RuleError: If a position is out of range or occurs twice.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.expand_dims(x, 1).shape
    (2, 1, 3)
    """
    positions = (axis,) if isinstance(axis, (int, np.integer)) else tuple(axis or ())
    new = normalise_dims(positions, x.ndim + len(positions))
    sizes = iter(x.shape)
    return reshape(x, [1 if d in new else next(sizes) for d in range(x.ndim + len(positions))])


@operator()
def squeeze(x: Tensor, axis: Dims = None) -> Tensor:
    """Remove dimensions of size 1: the dimensions ``axis``, or all.

    Args:
        x: the tensor.
        axis: one dimension or several; negative ones count from the end; None: all of size 1.

    Returns:
        A tensor with the elements of ``x``; the other dimensions keep their layout.

    Raises:
        RuleError: If a dimension of ``axis`` does not have size 1, is out of range or occurs twice.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.squeeze(ops.expand_dims(x, 0), 0).shape
    (2, 3)
    """
    removed_dims = (
        [d for d, n in enumerate(x.shape) if n == 1] if axis is None else normalise_dims(axis, x.ndim)
    )
    for d in removed_dims:
        if x.shape[d] != 1:
            raise RuleError(f"squeeze: dim {d} must have size 1, got shape {x.shape}")
    return reshape(x, [n for d, n in enumerate(x.shape) if d not in removed_dims])


@operator()
def moveaxis(x: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Move dimensions to other positions; the others keep their order.

    Args:
        x: the tensor.
        source: the dimension or dimensions to move; negative ones count from the end.
        destination: their positions in the result, one per dimension of ``source``, in this order; negative ones count
            from the end.

    Returns:
        A tensor with the elements of ``x``; every dimension keeps the axes that split it.

    Raises:
        RuleError: If the numbers of positions differ, or one occurs twice or is out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.moveaxis(x, 0, 1).layout.placement_text()
    'S(1)'
    """
    old_dims, new_dims = (
        (dims,) if isinstance(dims, (int, np.integer)) else tuple(dims) for dims in (source, destination)
    )
    if len(old_dims) != len(new_dims):
        raise RuleError(
            f"moveaxis: source and destination must have equally many dims, got {source} and {destination}"
        )
    for dims in (old_dims, new_dims):
        normalise_dims(dims, x.ndim)  # raises an error for a dim that is out of range or given twice
    old_dim_at = {
        normalise_dim(new, x.ndim): normalise_dim(old, x.ndim) for old, new in zip(old_dims, new_dims)
    }
    remaining_dims = iter([d for d in range(x.ndim) if d not in old_dim_at.values()])
    return transpose(x, [old_dim_at[d] if d in old_dim_at else next(remaining_dims) for d in range(x.ndim)])


@operator()
def swapaxes(x: Tensor, axis1: int, axis2: int) -> Tensor:
    """Exchange two dimensions; negative numbers count from the end.

    Args:
        x: the tensor.
        axis1: the first dimension.
        axis2: the second dimension.

    Returns:
        A tensor with the elements of ``x``; every dimension keeps the axes that split it.

    Raises:
        RuleError: If a dimension is out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.swapaxes(x, 0, 1).layout.placement_text()
    'S(1)'
    """
    a, b = normalise_dim(axis1, x.ndim), normalise_dim(axis2, x.ndim)
    return transpose(x, [{a: b, b: a}.get(d, d) for d in range(x.ndim)])


@operator()
def matrix_transpose(x: Tensor) -> Tensor:
    """Exchange the last two dimensions.

    Args:
        x: a tensor ``[..., m, n]``.

    Returns:
        A tensor ``[..., n, m]``; every dimension keeps the axes that split it.

    Raises:
        RuleError: If ``x`` has fewer than two dimensions.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.matrix_transpose(x).full().tolist()
    [[3, 6], [1, 5], [2, 4]]
    """
    if x.ndim < 2:
        raise RuleError(f"matrix_transpose: x must have at least two dims, got shape {x.shape}")
    return swapaxes(x, -2, -1)


@operator()
def broadcast_arrays(*tensors: Operand) -> list[Tensor]:
    """Broadcast tensors to their common shape.

    Args:
        *tensors: tensors, arrays or numbers; at least one is a tensor. Arrays must be equal on all ranks.

    Returns:
        A list with one tensor of the common shape per operand, in the order of the operands. Each keeps its element
        type and the axes that split its dims.

    Raises:
        RuleError: If the shapes do not broadcast.
        UsageTypeError: If no operand is a tensor.

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
        axis: position of the new dimension in the result; negative ones count from the end of the result's dimensions.

    Returns:
        A tensor with one more dimension, in the type to which all tensors are promoted. The new dimension is not split,
        the others stay split.

    Raises:
        RuleError: If shapes differ, there are no tensors, or ``axis`` is out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.stack([x, x], axis=2).shape
    (2, 3, 2)
    """
    shapes = {x.shape for x in tensors}
    if len(shapes) != 1:
        raise RuleError(f"stack takes tensors of one shape, but got {sorted(shapes)}")
    dim = normalise_dim(axis, tensors[0].ndim + 1)
    return concat([expand_dims(x, dim) for x in tensors], dim)


@operator()
def unstack(x: Tensor, axis: int = 0) -> tuple[Tensor, ...]:
    """Return one tensor per entry of a dimension, in order.

    Args:
        x: the tensor.
        axis: the dimension; negative numbers count from the end.

    Returns:
        Tensors without the dimension.

    Raises:
        RuleError: If the dimension is out of range.

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

    Each one-dimensional tensor is repeated along the dimensions of the others. With "ij", coordinates [1, 2] and [5, 6]
    give [[1, 1], [2, 2]] and [[5, 6], [5, 6]].

    Args:
        *tensors: coordinates ``[n]`` along each dim, of which there may be any number.
        indexing: ``"ij"``: tensor ``i`` varies along dim ``i``; ``"xy"``: the first two dims are exchanged.

    Returns:
        A list with one tensor per coordinate, each with one dimension per coordinate; [] without coordinates. Only the
        dimension along which a tensor varies is split, as its coordinates are.

    Raises:
        RuleError: If ``indexing`` is another word.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> [y.shape for y in ops.meshgrid(v, v[:3])]
    [(3, 4), (3, 4)]
    """
    if indexing not in ("xy", "ij"):
        raise RuleError(f"meshgrid: indexing must be 'xy' or 'ij', got {indexing!r}")
    count = len(tensors)
    positions = list(range(count))
    if indexing == "xy" and count > 1:
        positions[:2] = 1, 0
    rows = [
        reshape(x, [-1 if d == position else 1 for d in range(count)])
        for x, position in zip(tensors, positions)
    ]
    return broadcast_arrays(*rows) if rows else []


@operator()
def repeat(x: Tensor, repeats: int | Sequence[int] | np.ndarray | Tensor, axis: int | None = None) -> Tensor:
    """Repeat each entry of a dimension several times.

    If one number holds for all entries, ranks exchange only those entries that then belong to another rank's block.
    With one number per entry, each entry of the result is looked up in ``x``.

    Args:
        x: the tensor.
        repeats: number of repetitions, from 0 on: one for all entries or one per entry. If it is a tensor, all ranks
            gather its values.
        axis: the dimension; negative ones count from the end; None: repeat all elements in row-major order, which
            gives one dimension.

    Returns:
        A tensor in which each entry of the dimension is followed by its copies; an entry with 0 repetitions is left
        out. With one number per entry it may be partial.

    Raises:
        RuleError: If a number is negative or no integer, there is not one number per entry, or ``axis`` is out of
            range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.repeat(v, 2).full().tolist()
    [3, 3, 1, 1, 3, 3, 2, 2]
    """
    if axis is None:
        x, axis = reshape(x, -1), 0
    dim = normalise_dim(axis, x.ndim)
    counts = np.asarray(repeats.full() if isinstance(repeats, Tensor) else repeats)
    n = x.shape[dim]
    if counts.dtype.kind not in "iub" or (counts < 0).any() or counts.shape not in ((), (1,), (n,)):
        raise RuleError(f"repeats are one number from 0 on or {n} of them, but got {counts.tolist()}")
    if counts.size == 1:
        times = int(counts.reshape(()))
        repeated = broadcast_to(expand_dims(x, dim + 1), (*x.shape[: dim + 1], times, *x.shape[dim + 1 :]))
        return reshape(repeated, (*x.shape[:dim], n * times, *x.shape[dim + 1 :]))
    return gather(x, as_operand(np.repeat(np.arange(n), counts), x), dim)


@operator()
def tile(x: Tensor, repetitions: int | Sequence[int]) -> Tensor:
    """Repeat the whole tensor several times along each dimension.

    Args:
        x: the tensor.
        repetitions: number of copies, from 0 on: one number for the last dimension, or several for the last
            dimensions. Missing ones are 1.

    Returns:
        A tensor whose sizes are those of ``x`` times the repetitions. It has more dimensions than ``x`` if there are
        more repetitions. Split dimensions stay split.

    Raises:
        RuleError: If a number is negative or does not fit 64 bits.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.tile(v, 2).full().tolist()
    [3, 1, 3, 2, 3, 1, 3, 2]
    """
    times = as_integers((repetitions,) if isinstance(repetitions, (int, np.integer)) else repetitions)
    if not all(0 <= count < 2**63 for count in times):
        raise RuleError(f"tile: repetitions must be integers from 0 to 2**63 - 1, got {times!s:.60}")
    ndim = max(x.ndim, len(times))
    shape = (1,) * (ndim - x.ndim) + x.shape
    times = (1,) * (ndim - len(times)) + times
    # Insert a dim of size 1 before each dim, stretch it to the number of copies, and merge both.
    pairs = reshape(x, [n for size in shape for n in (1, size)])
    repeated = broadcast_to(pairs, [n for counts in zip(times, shape) for n in counts])
    return reshape(repeated, [copy_count * size for copy_count, size in zip(times, shape)])


def _triangle_rule(shape: Shape, k: int, upper: bool) -> Rule:
    """Return the rule of ``tril`` and ``triu``; raise RuleError for a tensor of fewer than two dims."""
    if len(shape) < 2:
        raise RuleError(f"a triangle needs two dims, but the shape is {shape}")
    leading = " ".join(f"d{d}" for d in range(len(shape) - 2))
    return make_moving_rule(f"{leading} m n -> {leading} m n", (), "each")


def _cut_triangle(context: Context, x: Array, k: int, upper: bool) -> Array:
    """Return this rank's block with zeros outside of the triangle."""
    k += context.bounds("m")[0] - context.bounds("n")[0]
    return np.asarray(np.triu(x, k) if upper else np.tril(x, k))


_triangle_op = Op(
    "triangle",
    _triangle_rule,
    _cut_triangle,
    lambda context, dy, _xs, _y, k, upper: (_cut_triangle(context, dy, k, upper),),
    contextual=True,
    moves=True,
)


@operator(_triangle_op)
def tril(x: Tensor, k: int = 0) -> Tensor:
    """Return the lower triangles of matrices ``[..., m, n]``.

    Elements above diagonal ``k`` become zero.

    Args:
        x: the tensor.
        k: the highest diagonal that keeps its elements; 0 is the main diagonal, positive numbers lie above it.

    Returns:
        A tensor in the shape and layout of ``x``.

    Raises:
        RuleError: If ``x`` has fewer than two dimensions.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.tril(x).full().tolist()
    [[3, 0, 0], [6, 5, 0]]
    """
    return _triangle_op(x, k=k, upper=False)


@operator(_triangle_op)
def triu(x: Tensor, k: int = 0) -> Tensor:
    """Return the upper triangles of matrices ``[..., m, n]``.

    Elements below diagonal ``k`` become zero.

    Args:
        x: the tensor.
        k: the lowest diagonal that keeps its elements; 0 is the main diagonal, positive numbers lie above it.

    Returns:
        A tensor in the shape and layout of ``x``.

    Raises:
        RuleError: If ``x`` has fewer than two dimensions.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.triu(x).full().tolist()
    [[3, 1, 2], [0, 5, 4]]
    """
    return _triangle_op(x, k=k, upper=True)


@operator()
def take(x: Tensor, indices: Operand, axis: int | None = None) -> Tensor:
    """Return entries of a dimension by their indices, as ``numpy.take``.

    If the dimension is split, the result is partial over its axes, as that of :func:`gather`.

    Args:
        x: ``[a..., v, b...]``.
        indices: integers ``[i...]`` from ``-v`` to ``v - 1``; negative ones count from the end. A number, an array or
            a tensor.
        axis: the dimension ``v`` of ``x``; the result is ``[a..., i..., b...]``. None: look up elements in row-major
            order; the result is ``[i...]``.

    Returns:
        The entries, partial over the axes that split the dimension.

    Raises:
        RuleError: If indices are no integers, or a dimension is out of range.
        InputError: If an index is out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.take(x, [2, 0], axis=1).full().tolist()
    [[2, 3], [4, 6]]
    """
    if axis is None:
        x, axis = reshape(x, -1), 0
    dim = normalise_dim(axis, x.ndim)
    ids = as_operand(indices if isinstance(indices, Tensor) else np.asarray(indices), x)
    if ids.dtype.kind not in "iu":
        raise RuleError(f"take: indices must be integers, got {ids.dtype}")
    if ids.dtype.kind == "i":
        ids = to_type(ids, np.dtype(np.int64))
        ids = where(less(ids, 0), add(ids, x.shape[dim]), ids)
    return gather(x, ids, dim)


@operator()
def vecdot(a: Operand, b: Operand, axis: int = -1) -> Tensor:
    """Compute sums of products over one dimension; the other dimensions broadcast.

    Complex numbers of the first tensor are conjugated. The result has the type to which both are promoted, without a
    wider type for the sum. For bools it is True if any product is true.

    Args:
        a: a tensor or array ``[..., n]``, with ``n`` at position ``axis``.
        b: as ``a``; one of both is a tensor.
        axis: the summed dimension, counted in each operand separately; negative ones count from the end.

    Returns:
        The broadcast of both operands without the summed dimension, partial over the axes that split it.

    Raises:
        RuleError: If the sizes of the dimension differ, others do not broadcast, or a dimension is out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.vecdot(m, m).full().tolist()
    [10.0, 20.0]
    """
    x, y = convert_to_one_type("vecdot", a, b)
    kind, shape = x.dtype.kind, x.shape
    x = conjugate(x) if kind == "c" else x
    if shape == y.shape and len(shape) == 1 and axis in (0, -1) and kind != "b":  # no array of the products
        return matmul(x, y)
    # Negative, because the numbers of dims may differ, and broadcasting aligns the last ones.
    dims = [normalise_dim(axis, t.ndim) - t.ndim for t in (x, y)]
    if shape[dims[0]] != y.shape[dims[1]]:
        raise RuleError(f"vecdot of shapes {shape} and {y.shape}: dim {axis} differs in size")
    products = multiply(*[t if d == -1 else moveaxis(t, d, -1) for t, d in zip((x, y), dims)])
    return any_(products, -1) if products.dtype.kind == "b" else sum_(products, -1, dtype=products.dtype)
