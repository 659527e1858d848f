"""Looking entries up by number: along any dim, rows of a table, one per row; and numbers as rows with a one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.arrays import Context, Op, ShardedOp, Tensor
from spmdsim.arrays.ops.along import held_entries
from spmdsim.arrays.ops.declare import Array, Arrays, Shape
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.stepped import OwnedRows
from spmdsim.core import Layout, Rule
from spmdsim.errors import OutOfRange, RuleError, many
from spmdsim.redistribution.steps.row_steps import checked_ids
from spmdsim.worlds.local_steps import add_rows, place_rows
from spmdsim.worlds.pool import empty

__all__ = ["embedding", "gather", "one_hot", "padded_embedding", "pick"]

#: The factor that is looked up.
LOOKED_UP = "v"


def _gather_rule(x: Shape, ids: Shape, dim: int) -> Rule:
    if not 0 <= dim < len(x):
        raise OutOfRange(f"dim {dim} is out of range for a tensor of {many(len(x), 'dim')}")
    kept = [f"d{k}" for k in range(len(x))]
    new = [f"i{k}" for k in range(len(ids))]
    table = " ".join(LOOKED_UP if k == dim else name for k, name in enumerate(kept))
    result = " ".join([*kept[:dim], *new, *kept[dim + 1 :]])
    order = " ".join([*new, *table.split()])
    text = f"{table}, {' '.join(new)} -> {result}"
    return Rule.parse(text, indexed=LOOKED_UP, linear=((0,),), order=order)


def _gather_forward(context: Context, x: Array, ids: Array, dim: int) -> Array:
    """The entries this rank holds, zeros where another rank holds them."""
    checked_ids(ids, context.size(LOOKED_UP), what=f"entries of dim {dim}")
    start, stop = context.bounds(LOOKED_UP)
    if stop - start == context.size(LOOKED_UP):
        return np.take(x, ids, axis=dim)
    mine = (ids >= start) & (ids < stop)
    moved = np.moveaxis(x, dim, 0)
    entries = np.zeros((*ids.shape, *moved.shape[1:]), x.dtype)
    entries[mine] = moved[ids[mine] - start]
    return np.asarray(np.moveaxis(entries, range(ids.ndim), range(dim, dim + ids.ndim)), order="C")


def _gather_vjp(context: Context, dy: Array, operands: Arrays, _result: Any, dim: int) -> tuple[Array, None]:
    x, ids = operands
    start, stop = context.bounds(LOOKED_UP)
    gradient = np.zeros_like(np.moveaxis(x, dim, 0), order="C")
    mine = (ids >= start) & (ids < stop)
    rows = np.moveaxis(dy, range(dim, dim + ids.ndim), range(ids.ndim))
    add_rows(gradient, ids[mine] - start, rows[mine])
    return np.moveaxis(gradient, 0, dim), None


_gather_op = Op(
    "gather",
    _gather_rule,
    _gather_forward,
    _gather_vjp,
    dtype=lambda x, _ids, dim: x,
    contextual=True,
    moves=True,
)


@operator(_gather_op)
def gather(x: Tensor, ids: Tensor, dim: int = 0, *, axis: int = 0) -> Tensor:
    """Look up entries of ``x`` by ``ids`` along a dimension, as ``numpy.take``.

    Where that dim is split every rank gives the entries it holds and zeros for the others, so the result is
    partial over its axes.

    Args:
        x: ``[a..., v, b...]``.
        ids: integers ``[i...]`` in ``0 .. v-1``; the result is ``[a..., i..., b...]``.
        dim: which dim of ``x`` is ``v``.
        axis: another name of ``dim``.

    Raises:
        InputError: an id outside the dim.
        RuleError: a dimension out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ids = Tensor.from_global([[0], [2]], x.layout)
    >>> ops.gather(x, ids, dim=1).full().tolist()
    [[[3], [2]], [[6], [4]]]
    """
    if not -x.ndim <= dim < x.ndim:
        raise OutOfRange(f"dim {dim} is out of range for a tensor of {many(x.ndim, 'dim')}")
    return _gather_op(x, ids, dim=dim % x.ndim)


def _embedding(context: Context, ids: Array, table: Array, padding: int | None = None) -> Array:
    """The rows this rank holds, zeros where another rank holds the row or none does."""
    ids = checked_ids(ids, context.size("v"), padding)
    start, stop = context.bounds("v")
    out = empty((*ids.shape, table.shape[1]), table.dtype)
    if stop - start == context.size("v") and padding is None:
        return _rows(table, ids, out)
    flat = ids.reshape(-1)
    mine = np.flatnonzero((flat >= start) & (flat < stop))
    if len(mine) < len(flat):
        out.fill(0)
    place_rows(table, flat[mine].astype(np.intp) - start, out.reshape(len(flat), table.shape[1]), mine)
    return out


def _rows(table: Array, ids: Array, out: Array) -> Array:
    """``table[ids]``, straight into a buffer; the ids are known to be there."""
    # Any other mode than "raise" spares numpy a second buffer.
    return np.take(table, ids, axis=0, out=out, mode="clip") if ids.size else out


def _embedding_vjp(
    context: Context, dy: Array, operands: Arrays, _result: Any, padding: int | None = None
) -> tuple[None, Array]:
    """Return None for the ids, and the gradient of this rank's rows; ids of other ranks and of padding add nothing."""
    ids, table = operands
    start, stop = context.bounds("v")
    gradient = np.zeros_like(table)
    mine = (ids >= start) & (ids < stop)
    if padding is not None:
        mine &= ids != padding
    add_rows(gradient, ids[mine].astype(np.intp) - start, dy[mine])
    return None, gradient


_embedding_op = Op(
    "embedding",
    Rule.parse("..., v h -> ... h", indexed="v", linear=((1,),)),
    _embedding,
    _embedding_vjp,
    dtype=lambda _ids, table, padding=None: table,
    contextual=True,
    moves=True,
)


@operator(_embedding_op)
def embedding(
    ids: Tensor, table: Tensor, layout: Layout | None = None, *, rows: str = "all", padding: int | None = None
) -> Tensor:
    """Look up rows of a table by their numbers.

    Where the table's rows are split (vocabulary-parallel), every rank looks up the rows it holds and gives
    zeros for the others: the result is partial, one all_reduce or reduce_scatter completes it. With
    ``rows="owned"`` nothing is added: all ranks that share the table's rows know the same ids, so each receives
    exactly the rows that its part of the result needs and it does not hold, once however often they occur. Their
    gradients take the same way back; those of a result that every rank has whole need none.

    Args:
        ids: integers ``[...]``, each in ``0 .. v-1``.
        table: ``[v, h]``, for a result ``[..., h]``.
        layout: that of the result. Left out, it is what the lookup leaves, partial where the table's rows are split;
            with ``rows="owned"`` every row lies where its id does.
        rows: ``"all"``, or ``"owned"`` to exchange only owned rows. Ids that are split along axes of the table are
            gathered first: they are much shorter than rows.
        padding: an id that stands for no row, such as -1 or a row of the table that is not to be used: it gives zeros
            and has no gradient.

    Raises:
        InputError: an id outside the table.
        RuleError: ``rows`` is something else, or ids and table are on different meshes.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> table = Tensor.from_global([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], m.layout)
    >>> ops.embedding(Tensor.from_global([2, 0], m.layout.mesh(None)), table).full().tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """
    if rows not in ("all", "owned"):
        raise RuleError(f"rows is 'all' or 'owned', but got {rows!r}")
    params = {} if padding is None else {"padding": padding}
    if rows == "owned" and table.layout.cuts[0] > 1:
        return _owned(ids.layout, table.layout, layout)(ids, table, **params)
    looked_up = _embedding_op(ids, table, **params)
    if layout is None:
        return looked_up if rows == "all" else looked_up.to(looked_up.layout.reduced)
    return looked_up.to(layout)


@lru_cache(maxsize=1024)
def _owned(ids: Layout, table: Layout, layout: Layout | None) -> ShardedOp:
    """The lookup on ids that all ranks which share a row or a column of the table have in common."""
    if ids.mesh != table.mesh:
        raise RuleError(f"ids and table live on different meshes, {ids.mesh} and {table.mesh}")
    where = [tuple(axis for axis in entry if axis not in table.split_axes) for entry in ids.dims]
    if layout is None:
        beside = [tuple(axis for axis in entry if axis not in table.dims[1]) for entry in ids.dims]
        layout = Layout(table.mesh, [*beside, table.dims[1]])
    return OwnedRows(_embedding_op, (Layout(ids.mesh, where), table.reduced), layout)


def _padded_rows(context: Context, ids: Array) -> Array:
    start, stop = context.bounds("v")
    rows = stop - start - 1
    first = start - start // (rows + 1)
    return np.where((ids >= first) & (ids < first + rows), ids - first, rows)


def _padded_vjp(context: Context, dy: Array, operands: Arrays, _result: Any) -> tuple[None, Array]:
    """The padding row gets no gradient, so that it stays zero."""
    ids, table = operands
    gradient = np.zeros_like(table)
    rows = _padded_rows(context, ids)
    mine = rows < len(table) - 1
    add_rows(gradient, rows[mine], dy[mine])
    return None, gradient


def _padded(context: Context, ids: Array, table: Array) -> Array:
    """Each rank's last row is zero, and every id it does not hold is looked up there."""
    checked_ids(ids, context.size("v") - context.strategy.parts("v"), what="rows of the table")
    return _rows(table, _padded_rows(context, ids), empty((*ids.shape, table.shape[1]), table.dtype))


_padded_op = Op(
    "padded_embedding",
    _embedding_op.rule,
    _padded,
    _padded_vjp,
    dtype=lambda _ids, table: table,
    contextual=True,
    moves=True,
)


@operator(_padded_op)
def padded_embedding(ids: Tensor, table: Tensor) -> Tensor:
    """Look up rows of a table as ``paddle.distributed.split`` does.

    Every rank's block of the table ends in a zero row.

    Partial over the axes that split the table.

    Args:
        ids: integers ``[...]`` in ``0 .. n-1``.
        table: ``[n + p, h]`` split in p equal parts of ``n/p + 1`` rows, the last of each part zero. An id that a rank
            does not hold becomes its padding row ``n/p``, so it adds zeros to the sum.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> table = Tensor.from_global([[1.0], [2.0], [0.0], [3.0], [4.0], [0.0]], m.layout)
    >>> ops.padded_embedding(Tensor.from_global([0, 2, 3], m.layout.mesh(None)), table).full().tolist()
    [[1.0], [3.0], [4.0]]
    """
    return _padded_op(ids, table)


def _picked(context: Context, x: Array, ids: Array) -> Array:
    """``x[..., ids]`` row by row; zero where another rank holds the entry."""
    mine, where = held_entries(context, ids[..., None], -1, "c", "classes")
    entries = np.zeros(mine.shape, x.dtype)
    entries[mine] = x[where]
    return entries[..., 0]


def _picked_vjp(context: Context, dy: Array, operands: Arrays, _result: Any) -> tuple[Array, None]:
    x, ids = operands
    mine, where = held_entries(context, ids[..., None], -1, "c", "classes")
    gradient = np.zeros_like(x)
    gradient[where] = dy[mine[..., 0]]
    return gradient, None


_pick_op = Op(
    "pick",
    Rule.parse("... c, ... -> ...", indexed="c", linear=((0,),)),
    _picked,
    _picked_vjp,
    dtype=lambda x, _ids: x,
    contextual=True,
    moves=True,
)


@operator(_pick_op)
def pick(x: Tensor, ids: Tensor) -> Tensor:
    """Return the entry ``ids[...]`` of the last dimension of ``x[..., c]``, one per row.

    Args:
        x: ``[..., c]``.
        ids: integers ``[...]`` in ``0 .. c-1``.

    Raises:
        InputError: an id outside the last dim.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.pick(m, Tensor.from_global([1, 0], m.layout.mesh("dp"))).full().tolist()
    [1.0, 2.0]
    """
    return _pick_op(x, ids)


def _one_hot_rule(ids: Shape, depth: int, dtype: Any, dim: int = -1) -> tuple[Rule, dict[str, int]]:
    names = [f"d{i}" for i in range(len(ids))]
    at = dim % (len(ids) + 1)
    return Rule.parse(f"{' '.join(names)} -> {' '.join([*names[:at], 'c', *names[at:]])}"), {"c": depth}


_one_hot_op = Op(
    "one_hot",
    _one_hot_rule,
    lambda context, ids, depth, dtype, dim=-1: np.asarray(
        np.moveaxis((ids[..., None] == np.arange(*context.bounds("c"))).astype(dtype), -1, dim), order="C"
    ),
    dtype=lambda _ids, depth, dtype, dim=-1: np.dtype(dtype),
    contextual=True,
)


@operator(_one_hot_op)
def one_hot(
    ids: Tensor, depth: int, dtype: DTypeLike = np.float32, dim: int = -1, *, axis: int = -1
) -> Tensor:
    """Return ``[..., depth]`` with one at ``ids`` and zero elsewhere, split as the ids.

    An id outside of ``0..depth-1`` gives zeros only.

    Args:
        ids: whole numbers ``[...]``.
        depth: how many classes there are: the size of the new dim.
        dtype: element type of the result.
        dim: where the new dim stands in the result.
        axis: another name of ``dim``.

    Raises:
        RuleError: a dimension out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.one_hot(v, 4).full().tolist()
    [[0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]]
    """
    if not -ids.ndim - 1 <= dim <= ids.ndim:
        raise OutOfRange(f"dim {dim} is out of range for a result of {many(ids.ndim + 1, 'dim')}")
    if depth < 0:
        raise RuleError(f"one_hot has a number of classes from 0 on, but got {depth}")
    return _one_hot_op(ids, depth=depth, dtype=np.dtype(dtype), dim=dim)
