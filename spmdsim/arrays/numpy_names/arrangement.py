"""NumPy's functions that split, join and rearrange tensors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor, linalg, ops
from spmdsim.arrays.operands import Operand, array_operands
from spmdsim.arrays.ops.scans import normalise_along_dim
from spmdsim.core import Layout
from spmdsim.errors import OutOfRange, RuleError, many
from spmdsim.worlds.convert_operands import as_operand

Cuts = int | Sequence[int]
#: A split into more parts than this is refused, because so many tensors take long.
MOST_PARTS = 1_000_000


def ravel(a: Tensor, order: str = "C") -> Tensor:
    """Return all elements in one dim, in row-major order, or column-major for the order "F"."""
    return ops.flatten(a, order=order)


def atleast_1d(*arys: Tensor) -> Any:
    """Return tensors with at least one dim; one tensor for one argument, else a tuple."""
    return _map_each(arys, lambda x: x if x.ndim else ops.reshape(x, (1,)))


def atleast_2d(*arys: Tensor) -> Any:
    """Return tensors with at least two dims; a vector becomes a row."""
    return _map_each(arys, lambda x: x if x.ndim > 1 else ops.reshape(x, (1, -1)))


def atleast_3d(*arys: Tensor) -> Any:
    """Return tensors with at least three dims.

    The elements of a vector are put along the second dim, and a matrix becomes the first two dims. Return one tensor
    for one argument, else a tuple.
    """
    shapes = {0: (1, 1, 1), 1: (1, -1, 1)}
    return _map_each(arys, lambda x: x if x.ndim > 2 else ops.reshape(x, shapes.get(x.ndim, (*x.shape, 1))))


def _map_each(tensors: Sequence[Tensor], function: Any) -> Any:
    """Apply a function to each tensor, number or list; return one result, or a tuple of several."""
    results = tuple(map(function, array_operands("np.atleast", tensors)))
    return results[0] if len(results) == 1 else results


def rollaxis(a: Tensor, axis: int, start: int = 0) -> Tensor:
    """Move a dimension before another one, as ``numpy.rollaxis``.

    For example, shape (2, 3, 4) becomes (4, 2, 3) with ``axis`` 2, and (2, 4, 3) with ``axis`` 2 and ``start`` 1.

    Args:
        a: the tensor.
        axis: the dimension to move; negative numbers count from the end.
        start: the dimension before which it is put; ``a.ndim`` puts it behind all. Negative numbers count from the end.

    Raises:
        RuleError: If ``start`` or ``axis`` is out of range.
    """
    axis = normalise_along_dim("rollaxis", a, axis)
    if not -a.ndim <= start <= a.ndim:
        raise RuleError(
            f"np.rollaxis moves before one of {many(a.ndim, 'dim')} or behind all, but start is {start}"
        )
    start += a.ndim if start < 0 else 0
    return ops.moveaxis(a, axis, start - (axis < start))


def rot90(m: Tensor, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """Rotate a tensor by ``k`` quarter turns, from the first of two dims towards the second.

    Args:
        m: the tensor.
        k: the number of turns; negative ones go the other way.
        axes: the two dims.

    Raises:
        RuleError: If ``axes`` are not two different dims.
    """
    first, second = _normalise_two_dims("rot90", m, axes)
    # The dims to flip, by the number of quarter turns. Odd numbers also swap both dims.
    for d in {0: (), 1: (second,), 2: (first, second), 3: (first,)}[k % 4]:
        m = ops.flip(m, d)
    return ops.swapaxes(m, first, second) if k % 2 else m


def _normalise_two_dims(name: str, x: Tensor, axes: Sequence[int]) -> tuple[int, int]:
    """Return two different dims as non-negative numbers; raise RuleError for others."""
    dims = tuple(normalise_along_dim(name, x, d) for d in axes)
    if len(set(dims)) != 2 or len(dims) != 2:
        raise RuleError(f"np.{name} takes two different dims, but got {tuple(axes)}")
    return dims[0], dims[1]


def hstack(tup: Sequence[Tensor]) -> Tensor:
    """Join tensors along the second dim, vectors along their only one."""
    tensors = array_operands("np.hstack", tup)
    return ops.concat(tensors, int(tensors[0].ndim > 1))


def append(arr: Operand, values: Operand, axis: int | None = None) -> Tensor:
    """Add values after the last entry along a dim; None: flatten both first."""
    tensors = array_operands("np.append", (arr, values))
    return ops.concat([ravel(x) for x in tensors], 0) if axis is None else ops.concat(tensors, axis)


def insert(arr: Tensor, obj: Any, values: Operand, axis: int | None = None) -> Tensor:
    """Insert values before positions along a dim.

    The result has the type of ``arr``. Positions refer to the tensor before the insertion: values [8, 9] inserted at
    [1, 2] in [0, 1, 2] give [0, 8, 1, 9, 2].

    Args:
        arr: the tensor.
        obj: the positions: an integer, a slice, or a list or array of integers that all ranks have; a tensor is
            gathered.
        values: broadcasts to the shape of the inserted entries. If ``obj`` is an integer, all entries of ``values``
            along the dim are inserted there.
        axis: the dim; None: the tensor is flattened first.

    Raises:
        OutOfRange: If a position or the dim is out of range, or NumPy refuses ``obj`` otherwise.
        RuleError: If the values do not broadcast.
    """
    x, axis = (ravel(arr), 0) if axis is None else (arr, axis)
    dim = normalise_along_dim("np.insert", x, axis)
    n = x.shape[dim]
    count = len(_ask_numpy_for_numbers("insert", n, obj, -1)) - n
    inserted = as_operand(values, x)
    inserted = ops.reshape(inserted, (*[1] * (x.ndim - inserted.ndim), *inserted.shape))
    if isinstance(obj, (int, np.integer)):
        inserted = ops.moveaxis(inserted, 0, dim)
        count = inserted.shape[dim]
    inserted = ops.cast(ops.broadcast_to(inserted, (*x.shape[:dim], count, *x.shape[dim + 1 :])), x.dtype)
    # The numbers 0 to n - 1 are entries of the tensor, those from n on are inserted entries.
    order = _ask_numpy_for_numbers("insert", n, obj, np.arange(n, n + count))
    # A run of consecutive numbers is one slice of the tensor, or of the inserted entries.
    runs = np.split(order, np.flatnonzero((np.diff(order) != 1) | (order[1:] == n)) + 1)
    pieces = [(inserted, run - n) if run[0] >= n else (x, run) for run in runs if run.size]
    slices = [(source, slice(int(run[0]), int(run[-1]) + 1)) for source, run in pieces]
    return ops.concat(
        [ops.getitem(source, (*[slice(None)] * dim, entries)) for source, entries in slices] or [x], dim
    )


def delete(arr: Tensor, obj: Any, axis: int | None = None) -> Tensor:
    """Return the tensor without some entries of a dimension.

    For example, [5, 6, 7] without the entries [0, -1] is [6].

    Args:
        arr: the tensor.
        obj: an integer, a slice, a mask, or integers that all ranks have; a tensor is gathered. Repeated integers
            count once.
        axis: the dimension; None: flatten the tensor first.

    Raises:
        OutOfRange: If an integer or the dim is out of range.
    """
    x, axis = (ravel(arr), 0) if axis is None else (arr, axis)
    dim = normalise_along_dim("np.delete", x, axis)
    is_kept = np.isin(np.arange(x.shape[dim]), _ask_numpy_for_numbers("delete", x.shape[dim], obj))
    index: list[Any] = [slice(None)] * dim
    return ops.getitem(x, (*index, as_operand(is_kept, x)))


def _ask_numpy_for_numbers(name: str, size: int, *args: Any) -> np.ndarray:
    """Return the array that NumPy's function ``name`` makes of the numbers 0 to ``size - 1``.

    The array shows which entry of a dim ``np.insert`` or ``np.delete`` puts at each index. All ranks must call it if
    the first argument is a tensor.

    Args:
        name: "insert" or "delete".
        size: the size of the dim.
        args: the arguments of the NumPy function after the array. The first one may be a tensor, which is gathered.

    Raises:
        OutOfRange: If NumPy refuses the arguments.

    >>> _ask_numpy_for_numbers("delete", 4, [1]).tolist()
    [0, 2, 3]
    """
    places = args[0].full() if isinstance(args[0], Tensor) else args[0]
    try:
        numbers: np.ndarray = getattr(np, name)(np.arange(size), places, *args[1:])
    except (IndexError, ValueError) as error:
        raise OutOfRange(f"np.{name} along a dim of size {size}: {error}") from None
    return numbers


def kron(a: Tensor, b: Tensor) -> Tensor:
    """Compute the Kronecker product: each entry of ``a`` times the whole tensor ``b``.

    The vectors [1, 2] and [3, 4] give [3, 4, 6, 8]. The sizes of both are multiplied dim by dim; the operand with fewer
    dims gets dims of size 1 in front.

    Args:
        a: the tensor whose entries are blocks of the result.
        b: the block; one of both operands may be an array.
    """
    a, b = array_operands("np.kron", (a, b))
    ndim = max(a.ndim, b.ndim)
    a_shape, b_shape = ((*[1] * (ndim - x.ndim), *x.shape) for x in (a, b))
    # Two dims stand for each dim of the result: the first one for the entry of a, the second one for that of b.
    a_pairs = ops.reshape(a, [size for n in a_shape for size in (n, 1)])
    b_pairs = ops.reshape(b, [size for n in b_shape for size in (1, n)])
    return ops.reshape(ops.multiply(a_pairs, b_pairs), [n * m for n, m in zip(a_shape, b_shape)])


def array_split(ary: Tensor, indices_or_sections: Cuts, axis: int = 0) -> list[Tensor]:
    """Split a dim into a number of nearly equal parts, or at given positions.

    If the size does not divide, the first parts are longer by one: 7 entries in 3 parts give sizes 3, 2, 2. Positions
    (2, 5) give sizes 2, 3, 2. The parts are views: changing one in place changes ``ary``.

    Args:
        ary: the tensor.
        indices_or_sections: the number of parts, or the first index of each part but the first. Indices beyond the
            end give empty parts.
        axis: the dim.

    Raises:
        RuleError: If the number of parts is not from 1 to 1,000,000, or the dim is out of range.
    """
    at = normalise_along_dim("array_split", ary, axis)
    n = ary.shape[at]
    if isinstance(indices_or_sections, (int, np.integer)):
        count = int(indices_or_sections)
        if not 1 <= count <= MOST_PARTS:
            raise RuleError(f"array_split: the number of parts must be from 1 to {MOST_PARTS:,}, got {count}")
        cuts = [k * (n // count) + min(k, n % count) for k in range(count + 1)]
    else:
        cuts = [0, *[slice(int(k)).indices(n)[1] for k in indices_or_sections], n]
    pieces = [slice(start, max(start, stop)) for start, stop in pairwise(cuts)]
    before: list[Any] = [slice(None)] * at
    return [ary[(*before, piece)] for piece in pieces]


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the slices along a dimension."""
    at = normalise_along_dim("unstack", x, axis)
    before: list[Any] = [slice(None)] * at
    return tuple(x[(*before, k)] for k in range(x.shape[at]))


def split(ary: Tensor, indices_or_sections: Cuts, axis: int = 0) -> list[Tensor]:
    """Split a dim into equal parts, or at given positions; see :func:`array_split`.

    Args:
        ary: the tensor.
        indices_or_sections: the number of parts, or the first index of each part but the first.
        axis: the dim.

    Raises:
        RuleError: If a number of parts is less than 1 or does not divide the dim, or the dim is out of range.
    """
    n, parts = ary.shape[normalise_along_dim("split", ary, axis)], indices_or_sections
    if isinstance(parts, (int, np.integer)) and (parts < 1 or n % parts):
        raise RuleError(
            f"dim {axis} of size {n} does not split into {parts} equal parts: np.array_split does"
        )
    return array_split(ary, parts, axis)


def vsplit(ary: Tensor, indices_or_sections: Cuts) -> list[Tensor]:
    """Split the first dim, as :func:`split`; there must be at least two dims."""
    return split(_require_dims("vsplit", ary, 2), indices_or_sections, 0)


def dsplit(ary: Tensor, indices_or_sections: Cuts) -> list[Tensor]:
    """Split the third dim, as :func:`split`."""
    return split(_require_dims("dsplit", ary, 3), indices_or_sections, 2)


def _require_dims(name: str, x: Tensor, least: int) -> Tensor:
    """Return the tensor; raise RuleError if it has fewer dims."""
    if x.ndim < least:
        raise RuleError(f"np.{name} takes {many(least, 'dim')} at least, but the shape is {x.shape}")
    return x


def diagonal(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Return diagonals of the matrices that two dims form, as last dim.

    Args:
        a: the tensor.
        offset: number of columns to the right of the main diagonal; negative: to the left.
        axis1: the dim of rows.
        axis2: the dim of columns.
    """
    first, second = _normalise_two_dims("diagonal", a, (axis1, axis2))
    return linalg.diagonal(ops.moveaxis(a, (first, second), (-2, -1)), offset=offset)


def trace(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Tensor:
    """Compute the sums of :func:`diagonal`."""
    return ops.sum(diagonal(a, offset, axis1, axis2), -1, dtype=dtype)


def diag(v: Tensor, k: int = 0) -> Tensor:
    """Return the diagonal of a matrix, or a matrix that has a vector as its diagonal.

    Args:
        v: a matrix or a vector; the new matrix has ``len(v) + abs(k)`` rows and columns, and is split by rows as
            ``v`` is.
        k: the number of the diagonal to the right of the main one; negative: to the left.

    Raises:
        RuleError: If ``v`` has another number of dims.
    """
    if v.ndim == 2:
        return linalg.diagonal(v, offset=k)
    if v.ndim != 1:
        raise RuleError(f"np.diag takes a vector or a matrix, but the shape is {v.shape}")
    n = v.shape[0] + abs(k)
    value_of_row = ops.pad(v, (max(0, -k),), (max(0, k),))
    layout = Layout(value_of_row.layout.mesh, [value_of_row.layout.reduced.dims[0], None])
    is_diagonal = Tensor.eye(n, k=k, dtype=np.bool_, layout=layout, world=v.world)
    values = ops.broadcast_to(ops.reshape(value_of_row, (n, 1)), (n, n))
    return ops.where(is_diagonal, values, np.zeros((), v.dtype))


def fill_diagonal(a: Tensor, val: Operand) -> None:
    """Replace the diagonal of a matrix in place."""
    if a.ndim != 2:
        raise RuleError(f"np.fill_diagonal takes a matrix, but the shape is {a.shape}")
    a[Tensor.eye(*a.shape, dtype=np.bool_, layout=a.layout.reduced, world=a.world)] = val


def unravel_index(indices: Tensor, shape: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Convert row-major numbers of elements to one index per dimension.

    For example, the number 4 is the index (1, 1) of shape (2, 3). The results have the shape of ``indices``. Numbers out
    of range raise no error: they are taken modulo the number of elements.

    Args:
        indices: the numbers.
        shape: the sizes of the dimensions; a number is the size of the only one.
    """
    sizes = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    coordinates, number = [], indices
    for size in sizes[::-1]:
        coordinates.append(ops.remainder(number, size))
        number = ops.floor_divide(number, size)
    return tuple(coordinates[::-1])


def block(arrays: Any) -> Tensor:
    """Join nested lists of blocks along the last dims.

    The innermost lists are joined along the last dim, lists around them along the dim before it, and so on. So
    ``[[a, b], [c, d]]`` of matrices is a matrix with a and b above c and d. Blocks with fewer dims get dims of size 1
    in front.

    Args:
        arrays: tensors and arrays in lists of equal depth; or a single tensor, which is copied.

    Raises:
        RuleError: If lists are empty or have different depths, or sizes do not fit.
    """
    leaves: list[Any] = []
    depth = _collect_leaves("np.block", arrays, leaves)
    blocks = array_operands("np.block", leaves)
    ndim = max(depth, *(x.ndim for x in blocks))
    expanded = iter(
        [ops.reshape(x, (*(1,) * (ndim - x.ndim), *x.shape)) if x.ndim < ndim else x for x in blocks]
    )

    def join(nested: Any, level: int) -> Tensor:
        """Join the lists of a level and of those inside."""
        return ops.concat([join(item, level - 1) for item in nested], -level) if level else next(expanded)

    return join(arrays, depth) if depth else ops.identity(next(expanded))


def _collect_leaves(name: str, nested: Any, leaves: list[Any]) -> int:
    """Append the items of nested lists to ``leaves`` in order; return the depth of the nesting.

    A value that is no list is an item itself, with the depth 0.

    Args:
        name: the function, for error messages.
        nested: a tensor or nested lists of tensors.
        leaves: the list that is extended in place.

    Raises:
        RuleError: If lists are empty or have different depths.
    """
    if not isinstance(nested, list):
        leaves.append(nested)
        return 0
    depths = {_collect_leaves(name, item, leaves) for item in nested}
    if len(depths) != 1:
        raise RuleError(f"{name} takes lists that are nested alike and not empty, but got {nested!r}")
    return 1 + depths.pop()
