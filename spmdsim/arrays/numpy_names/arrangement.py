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
from spmdsim.errors import RuleError, many

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
