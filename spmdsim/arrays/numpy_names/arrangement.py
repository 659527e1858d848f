"""NumPy's functions that take tensors apart, put them together and turn them round."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor, linalg, ops
from spmdsim.arrays.operands import Operand, array_operands
from spmdsim.arrays.ops.scans import along_dim
from spmdsim.core import Layout
from spmdsim.errors import OutOfRange, RuleError, many
from spmdsim.worlds.convert_operands import as_operand

Cuts = int | Sequence[int]


def ravel(a: Tensor, order: str = "C") -> Tensor:
    """All elements in one dim, row by row, or column by column for the order F."""
    return ops.flatten(a, order=order)


def atleast_1d(*arys: Tensor) -> Any:
    """Tensors with one dim at least."""
    return _each(arys, lambda x: x if x.ndim else ops.reshape(x, (1,)))


def atleast_2d(*arys: Tensor) -> Any:
    """Tensors with two dims at least; a vector is a row."""
    return _each(arys, lambda x: x if x.ndim > 1 else ops.reshape(x, (1, -1)))


def atleast_3d(*arys: Tensor) -> Any:
    """Tensors with three dims at least; a vector lies in the middle one, a matrix in the first two."""
    shapes = {0: (1, 1, 1), 1: (1, -1, 1)}
    return _each(arys, lambda x: x if x.ndim > 2 else ops.reshape(x, shapes.get(x.ndim, (*x.shape, 1))))


def _each(tensors: Sequence[Tensor], function: Any) -> Any:
    results = tuple(map(function, tensors))
    return results[0] if len(results) == 1 else results


def rollaxis(a: Tensor, axis: int, start: int = 0) -> Tensor:
    """Move a dimension before another one."""
    axis = along_dim("rollaxis", a, axis)
    if not -a.ndim <= start <= a.ndim:
        raise RuleError(
            f"np.rollaxis moves before one of {many(a.ndim, 'dim')} or behind all, but start is {start}"
        )
    start += a.ndim if start < 0 else 0
    return ops.moveaxis(a, axis, start - (axis < start))


def rot90(m: Tensor, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """Turned by quarters, from the first of two dims towards the second."""
    first, second = _two_dims("rot90", m, axes)
    for d in {0: (), 1: (second,), 2: (first, second), 3: (first,)}[k % 4]:
        m = ops.flip(m, d)
    return ops.swapaxes(m, first, second) if k % 2 else m


def _two_dims(name: str, x: Tensor, axes: Sequence[int]) -> tuple[int, int]:
    dims = tuple(along_dim(name, x, d) for d in axes)
    if len(set(dims)) != 2 or len(dims) != 2:
        raise RuleError(f"np.{name} takes two different dims, but got {tuple(axes)}")
    return dims[0], dims[1]


def hstack(tup: Sequence[Tensor]) -> Tensor:
    """Side by side: along the second dim, vectors along the only one."""
    parts = array_operands("np.hstack", tup)
    return ops.concat(parts, int(parts[0].ndim > 1))


def append(arr: Operand, values: Operand, axis: int | None = None) -> Tensor:
    """Values behind a tensor, along a dim; all in one dim for None."""
    parts = array_operands("np.append", (arr, values))
    return ops.concat([ravel(x) for x in parts], 0) if axis is None else ops.concat(parts, axis)


def insert(arr: Tensor, obj: Any, values: Operand, axis: int | None = None) -> Tensor:
    """Values between a tensor's, before places along a dim that all ranks get to know; of all elements in one dim for None."""
    x, axis = (ravel(arr), 0) if axis is None else (arr, axis)
    at = along_dim("np.insert", x, axis)
    n = x.shape[at]
    count = len(_numbers("insert", n, obj, -1)) - n
    new = as_operand(values, x)
    new = ops.reshape(new, (*[1] * (x.ndim - new.ndim), *new.shape))
    if isinstance(obj, (int, np.integer)):
        new = ops.moveaxis(new, 0, at)
        count = new.shape[at]
    new = ops.cast(ops.broadcast_to(new, (*x.shape[:at], count, *x.shape[at + 1 :])), x.dtype)
    order = _numbers("insert", n, obj, np.arange(n, n + count))
    runs = np.split(order, np.flatnonzero((np.diff(order) != 1) | (order[1:] == n)) + 1)
    pieces = [(new, run - n) if run[0] >= n else (x, run) for run in runs if run.size]
    slices = [(part, slice(int(run[0]), int(run[-1]) + 1)) for part, run in pieces]
    return ops.concat([ops.getitem(part, (*[slice(None)] * at, one)) for part, one in slices] or [x], at)


def delete(arr: Tensor, obj: Any, axis: int | None = None) -> Tensor:
    """Return the tensor without some entries of a dimension; None: of all elements in one dimension."""
    x, axis = (ravel(arr), 0) if axis is None else (arr, axis)
    at = along_dim("np.delete", x, axis)
    kept = np.isin(np.arange(x.shape[at]), _numbers("delete", x.shape[at], obj))
    index: list[Any] = [slice(None)] * at
    return ops.getitem(x, (*index, as_operand(kept, x)))


def _numbers(name: str, size: int, *args: Any) -> np.ndarray:
    """What numpy's function of this name makes of the numbers of places."""
    places = args[0].full() if isinstance(args[0], Tensor) else args[0]
    try:
        numbers: np.ndarray = getattr(np, name)(np.arange(size), places, *args[1:])
    except (IndexError, ValueError) as error:
        raise OutOfRange(f"np.{name} along a dim of size {size}: {error}") from None
    return numbers


def kron(a: Tensor, b: Tensor) -> Tensor:
    """Kronecker's product: each entry of ``a`` times the whole of ``b``."""
    a, b = array_operands("np.kron", (a, b))
    ndim = max(a.ndim, b.ndim)
    sizes = [(*[1] * (ndim - x.ndim), *x.shape) for x in (a, b)]
    left = ops.reshape(a, [m for n in sizes[0] for m in (n, 1)])
    right = ops.reshape(b, [m for n in sizes[1] for m in (1, n)])
    return ops.reshape(ops.multiply(left, right), [n * m for n, m in zip(*sizes)])


def array_split(ary: Tensor, indices_or_sections: Cuts, axis: int = 0) -> list[Tensor]:
    """Parts along a dim, so many of nearly equal size, or cut at given places."""
    at = along_dim("array_split", ary, axis)
    n = ary.shape[at]
    if isinstance(indices_or_sections, (int, np.integer)):
        parts = int(indices_or_sections)
        if parts < 1:
            raise RuleError(f"there is one part at least, but got {parts}")
        cuts = [k * (n // parts) + min(k, n % parts) for k in range(parts + 1)]
    else:
        cuts = [0, *[slice(int(k)).indices(n)[1] for k in indices_or_sections], n]
    pieces = [slice(start, max(start, stop)) for start, stop in pairwise(cuts)]
    before: list[Any] = [slice(None)] * at
    return [ary[(*before, piece)] for piece in pieces]


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the slices along a dimension."""
    at = along_dim("unstack", x, axis)
    before: list[Any] = [slice(None)] * at
    return tuple(x[(*before, k)] for k in range(x.shape[at]))


def split(ary: Tensor, indices_or_sections: Cuts, axis: int = 0) -> list[Tensor]:
    """Equal parts along a dim, or parts cut at given places."""
    n, parts = ary.shape[along_dim("split", ary, axis)], indices_or_sections
    if isinstance(parts, (int, np.integer)) and (parts < 1 or n % parts):
        raise RuleError(
            f"dim {axis} of size {n} does not split into {parts} equal parts: np.array_split does"
        )
    return array_split(ary, parts, axis)


def vsplit(ary: Tensor, indices_or_sections: Cuts) -> list[Tensor]:
    """:func:`split` along the first dim of two at least."""
    return split(_with_dims("vsplit", ary, 2), indices_or_sections, 0)


def dsplit(ary: Tensor, indices_or_sections: Cuts) -> list[Tensor]:
    """:func:`split` along the third dim."""
    return split(_with_dims("dsplit", ary, 3), indices_or_sections, 2)


def _with_dims(name: str, x: Tensor, least: int) -> Tensor:
    if x.ndim < least:
        raise RuleError(f"np.{name} takes {many(least, 'dim')} at least, but the shape is {x.shape}")
    return x


def diagonal(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Diagonals of the matrices that two dims make, the first two unless others are named; they are the last dim."""
    first, second = _two_dims("diagonal", a, (axis1, axis2))
    return linalg.diagonal(ops.moveaxis(a, (first, second), (-2, -1)), offset=offset)


def trace(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Tensor:
    """Compute the sums of :func:`diagonal`."""
    return ops.sum(diagonal(a, offset, axis1, axis2), -1, dtype=dtype)


def diag(v: Tensor, k: int = 0) -> Tensor:
    """Return the diagonal of a matrix, or the matrix with a vector as its diagonal, split as the vector."""
    if v.ndim == 2:
        return linalg.diagonal(v, offset=k)
    if v.ndim != 1:
        raise RuleError(f"np.diag takes a vector or a matrix, but the shape is {v.shape}")
    n = v.shape[0] + abs(k)
    rows = ops.pad(v, (max(0, -k),), (max(0, k),))
    layout = Layout(rows.layout.mesh, [rows.layout.reduced.dims[0], None])
    there = Tensor.eye(n, k=k, dtype=np.bool_, layout=layout, world=v.world)
    return ops.where(there, ops.broadcast_to(ops.reshape(rows, (n, 1)), (n, n)), np.zeros((), v.dtype))


def fill_diagonal(a: Tensor, val: Operand) -> None:
    """Let a matrix have other values on its diagonal."""
    if a.ndim != 2:
        raise RuleError(f"np.fill_diagonal takes a matrix, but the shape is {a.shape}")
    a[Tensor.eye(*a.shape, dtype=np.bool_, layout=a.layout.reduced, world=a.world)] = val


def unravel_index(indices: Tensor, shape: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Convert numbers of elements, counted row by row, to one index per dimension."""
    places, rest = [], indices
    for n in ((shape,) if isinstance(shape, (int, np.integer)) else tuple(shape))[::-1]:
        places.append(ops.remainder(rest, n))
        rest = ops.floor_divide(rest, n)
    return tuple(places[::-1])


def block(arrays: Any) -> Tensor:
    """Nested lists of blocks put together: the innermost lists along the last dim, those around them along the one before it."""
    leaves: list[Any] = []
    depth = _collected("np.block", arrays, leaves)
    blocks = array_operands("np.block", leaves)
    ndim = max(depth, *(x.ndim for x in blocks))
    rest = iter([ops.reshape(x, (*(1,) * (ndim - x.ndim), *x.shape)) if x.ndim < ndim else x for x in blocks])

    def joined(part: Any, level: int) -> Tensor:
        return ops.concat([joined(one, level - 1) for one in part], -level) if level else next(rest)

    return joined(arrays, depth) if depth else ops.identity(next(rest))


def _collected(name: str, part: Any, leaves: list[Any]) -> int:
    """How deep lists are nested; what they hold is added to ``leaves``."""
    if not isinstance(part, list):
        leaves.append(part)
        return 0
    depths = {_collected(name, one, leaves) for one in part}
    if len(depths) != 1:
        raise RuleError(f"{name} takes lists that are nested alike and not empty, but got {part!r}")
    return 1 + depths.pop()
