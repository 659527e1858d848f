"""Lookups by integers: entries along a dim, rows of a table, one entry per row; and one-hot rows."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.arrays import Context, Op, ShardedOp, Tensor
from spmdsim.arrays.operands import normalise_dim
from spmdsim.arrays.ops.along import find_owned_entries
from spmdsim.arrays.ops.declare import Array, Arrays, Shape
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.stepped import OwnedRows
from spmdsim.core import Layout, Rule
from spmdsim.errors import OutOfRange, RuleError, many
from spmdsim.redistribution.steps.row_steps import check_ids
from spmdsim.worlds.local_steps import add_rows, place_rows
from spmdsim.worlds.pool import take_buffer

__all__ = ["embedding", "gather", "one_hot", "padded_embedding", "pick"]

#: Name of the factor that ids look up.
LOOKED_UP = "v"


def _gather_rule(x: Shape, ids: Shape, dim: int) -> Rule:
    """Return the rule of ``gather``: the ids' dims replace the dim that is looked up.

    For shapes (6, 4) and (3,) and dim 0 it is "v d1, i0 -> i0 d1".

    Args:
        x: the shape of the tensor.
        ids: the shape of the ids.
        dim: the dim that is looked up.

    Raises:
        OutOfRange: If the dim is out of range.
    """
    if not 0 <= dim < len(x):
        raise OutOfRange(f"dim {dim} is out of range for a tensor of {many(len(x), 'dim')}")
    names = [f"d{k}" for k in range(len(x))]
    new = [f"i{k}" for k in range(len(ids))]
    table = " ".join(LOOKED_UP if k == dim else name for k, name in enumerate(names))
    result = " ".join([*names[:dim], *new, *names[dim + 1 :]])
    order = " ".join([*new, *table.split()])
    text = f"{table}, {' '.join(new)} -> {result}"
    return Rule.parse(text, indexed=LOOKED_UP, linear=((0,),), order=order)


def _gather_forward(context: Context, x: Array, ids: Array, dim: int) -> Array:
    """Return the looked-up entries that this rank owns, and zeros for entries of other ranks.

    The result has the dims of the ids in place of ``dim``. A rank whose block has the whole dimension owns all entries.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        x: this rank's block.
        ids: positions along ``dim`` in the whole tensor, from 0.
        dim: the dimension.

    Raises:
        InputError: If an id is out of range, or ids are no integers.
    """
    check_ids(ids, context.size(LOOKED_UP), description=f"entries of dim {dim}")
    start, stop = context.bounds(LOOKED_UP)
    if stop - start == context.size(LOOKED_UP):
        return np.take(x, ids, axis=dim)
    is_owned = (ids >= start) & (ids < stop)
    lookup_first = np.moveaxis(x, dim, 0)
    entries = np.zeros((*ids.shape, *lookup_first.shape[1:]), x.dtype)
    entries[is_owned] = lookup_first[ids[is_owned] - start]
    return np.asarray(np.moveaxis(entries, range(ids.ndim), range(dim, dim + ids.ndim)), order="C")


def _gather_vjp(context: Context, dy: Array, operands: Arrays, _result: Any, dim: int) -> tuple[Array, None]:
    """Return the gradient of this rank's block, and None for the ids.

    An entry that is looked up several times gets the sum of its gradients; one that is never looked up gets 0.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        dy: the gradient of the result, with the dims of the ids in place of ``dim``.
        operands: this rank's block and the ids.
        _result: the result; not used.
        dim: the dimension.
    """
    x, ids = operands
    start, stop = context.bounds(LOOKED_UP)
    gradient = np.zeros_like(np.moveaxis(x, dim, 0), order="C")
    is_owned = (ids >= start) & (ids < stop)
    rows = np.moveaxis(dy, range(dim, dim + ids.ndim), range(ids.ndim))
    add_rows(gradient, ids[is_owned] - start, rows[is_owned])
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

    If the dimension is split, each rank returns the entries it owns and zeros for the others: the result is partial.

    Args:
        x: ``[a..., v, b...]``.
        ids: integers ``[i...]`` from 0 to ``v - 1``; the result is ``[a..., i..., b...]``.
        dim: the dimension ``v`` of ``x``; negative numbers count from the end.
        axis: another name of ``dim``.

    Returns:
        The entries, partial over the axes that split the dimension.

    Raises:
        InputError: If an id is out of range.
        RuleError: If the dimension is out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ids = Tensor.from_global([[0], [2]], x.layout)
    >>> ops.gather(x, ids, dim=1).full().tolist()
    [[[3], [2]], [[6], [4]]]
    """
    return _gather_op(x, ids, dim=normalise_dim(dim, x.ndim))


def _look_up_rows(context: Context, ids: Array, table: Array, padding: int | None = None) -> Array:
    """Return the table's row for each id; zeros for the padding id and for rows of other ranks.

    The ranks that split the table's rows all get the ids, so the sum of their results is complete. If this rank owns
    rows 4 to 7, the ids [5, 2] give its rows [table[1], 0].

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        ids: row numbers in the whole table, from 0, or the padding id; of any shape.
        table: this rank's rows, ``[v, h]``.
        padding: the padding id, or None.

    Returns:
        ``[..., h]``, with the dims of the ids in front.

    Raises:
        InputError: If an id is out of range and not the padding id, or ids are no integers.
    """
    ids = check_ids(ids, context.size("v"), padding)
    start, stop = context.bounds("v")
    out = take_buffer((*ids.shape, table.shape[1]), table.dtype)
    if stop - start == context.size("v") and padding is None:
        return _take_rows(table, ids, out)
    flat = ids.reshape(-1)
    owned_positions = np.flatnonzero((flat >= start) & (flat < stop))
    if len(owned_positions) < len(flat):
        out.fill(0)
    place_rows(
        table,
        flat[owned_positions].astype(np.intp) - start,
        out.reshape(len(flat), table.shape[1]),
        owned_positions,
    )
    return out


def _take_rows(table: Array, ids: Array, out: Array) -> Array:
    """Write ``table[ids]`` into the buffer ``out`` and return it; the ids must be in range."""
    # Any other mode than "raise" spares numpy a second buffer.
    return np.take(table, ids, axis=0, out=out, mode="clip") if ids.size else out


def _embedding_vjp(
    context: Context, dy: Array, operands: Arrays, _result: Any, padding: int | None = None
) -> tuple[None, Array]:
    """Return None for the ids, and the gradient of this rank's rows.

    A row that is looked up several times gets the sum of its gradients. Ids of other ranks' rows, and the padding id,
    add nothing.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        dy: the gradient of the result, ``[..., h]``.
        operands: the ids, and this rank's rows of the table.
        _result: the result; not used.
        padding: the padding id, or None.
    """
    ids, table = operands
    start, stop = context.bounds("v")
    gradient = np.zeros_like(table)
    is_owned = (ids >= start) & (ids < stop)
    if padding is not None:
        is_owned &= ids != padding
    add_rows(gradient, ids[is_owned].astype(np.intp) - start, dy[is_owned])
    return None, gradient


_embedding_op = Op(
    "embedding",
    Rule.parse("..., v h -> ... h", indexed="v", linear=((1,),)),
    _look_up_rows,
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

    If the table's rows are split (vocabulary-parallel), each rank looks up its own rows and returns zeros for the
    others. The result is partial; one all_reduce or reduce_scatter completes it.

    With ``rows="owned"`` no zeros are added: each rank receives exactly the rows that it needs and does not own, each
    row once. Gradients of rows are sent back to the owners. They need no communication if every rank has the whole
    result.

    Args:
        ids: integers ``[...]`` from 0 to ``v - 1``.
        table: ``[v, h]``; the result is ``[..., h]``.
        layout: the layout of the result. None: the layout of the lookup, partial if the table's rows are split; with
            ``rows="owned"`` rows have the layout of their ids.
        rows: ``"all"``, or ``"owned"`` to exchange only needed rows. Ids that are split along axes of the table are
            then gathered first, so that all ranks that share the table's rows have equal ids. Ids are much smaller
            than rows.
        padding: an id without a row, such as -1 or the number of an unused row: it gives zeros and has no gradient.

    Returns:
        The rows ``[..., h]`` in the type of the table.

    Raises:
        InputError: If an id is out of range, or ids are no integers.
        RuleError: If ``rows`` is unknown, the table does not have two dims, or ids and table are on different meshes.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> table = Tensor.from_global([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], m.layout)
    >>> ops.embedding(Tensor.from_global([2, 0], m.layout.mesh(None)), table).full().tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """
    if rows not in ("all", "owned"):
        raise RuleError(f"embedding: rows must be 'all' or 'owned', got {rows!r}")
    params = {} if padding is None else {"padding": padding}
    if rows == "owned" and table.layout.cuts[0] > 1:
        return _exchange_owned_rows(ids.layout, table.layout, layout)(ids, table, **params)
    result = _embedding_op(ids, table, **params)
    if layout is None:
        return result if rows == "all" else result.to(result.layout.reduced)
    return result.to(layout)


@lru_cache(maxsize=1024)
def _exchange_owned_rows(ids: Layout, table: Layout, layout: Layout | None) -> ShardedOp:
    """Return the operator of a lookup that sends each rank the rows it needs and does not own.

    The operator is called with ids and table, and with ``padding=`` if one id names no row. It first moves the ids to a
    layout without the axes that split the table, so that ranks that share rows have equal ids. It also completes
    pending reductions of both operands. Operators are cached.

    Args:
        ids: the layout of the ids.
        table: the layout of the table ``[rows, columns]``.
        layout: the layout of the result. None: its first dims are split as the ids, except by axes that split the
            table's columns; its last dim is split as these columns.

    Raises:
        RuleError: If ids and table are on different meshes.
    """
    if ids.mesh != table.mesh:
        raise RuleError(f"ids and table live on different meshes, {ids.mesh} and {table.mesh}")
    id_dims = [tuple(axis for axis in entry if axis not in table.split_axes) for entry in ids.dims]
    if layout is None:
        result_dims = [tuple(axis for axis in entry if axis not in table.dims[1]) for entry in ids.dims]
        layout = Layout(table.mesh, [*result_dims, table.dims[1]])
    return OwnedRows(_embedding_op, (Layout(ids.mesh, id_dims), table.reduced), layout)


def _find_padded_rows(context: Context, ids: Array) -> Array:
    """Return for each id the number of its row in this rank's block.

    The last row of each block is padding, which is zero and has no id. Ids of other blocks get the number of this
    row. For example, in the second of two blocks of 3 rows, which has the ids 2 and 3, the ids [1, 2, 3] give [2, 0, 1].
    """
    start, stop = context.bounds("v")
    id_count = stop - start - 1
    # Ids do not count padding rows, of which each block before this one has one.
    first_id = start - start // (id_count + 1)
    is_owned = (ids >= first_id) & (ids < first_id + id_count)
    return np.where(is_owned, ids - first_id, id_count)


def _padded_vjp(context: Context, dy: Array, operands: Arrays, _result: Any) -> tuple[None, Array]:
    """Return None for the ids, and the gradient of this rank's rows of the table.

    The padding row, the last row of each rank's block, stands for ids of other ranks' blocks. These ids add nothing
    here, so its gradient is always 0.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        dy: the gradient of the result, ``[..., h]``.
        operands: the ids, and this rank's rows of the table.
        _result: the result; not used.
    """
    ids, table = operands
    gradient = np.zeros_like(table)
    rows = _find_padded_rows(context, ids)
    is_owned = rows < len(table) - 1
    add_rows(gradient, rows[is_owned], dy[is_owned])
    return None, gradient


def _look_up_padded(context: Context, ids: Array, table: Array) -> Array:
    """Return table rows; ids of other ranks look up this rank's last row, which is zero."""
    check_ids(ids, context.size("v") - context.strategy.parts("v"), description="rows of the table")
    return _take_rows(
        table, _find_padded_rows(context, ids), take_buffer((*ids.shape, table.shape[1]), table.dtype)
    )


_padded_op = Op(
    "padded_embedding",
    _embedding_op.rule,
    _look_up_padded,
    _padded_vjp,
    dtype=lambda _ids, table: table,
    contextual=True,
    moves=True,
)


@operator(_padded_op)
def padded_embedding(ids: Tensor, table: Tensor) -> Tensor:
    """Look up rows of a table as ``paddle.distributed.split`` does.

    Each rank's block ends in a zero row. The result is partial over the axes that split the table.

    Args:
        ids: integers ``[...]`` from 0 to ``n - 1``.
        table: ``[n + p, h]``, split in ``p`` equal blocks of ``n/p + 1`` rows, the last row of each block zero. An id
            of another rank looks up the block's last row, so it adds zeros to the sum.

    Returns:
        The rows ``[..., h]``.

    Raises:
        InputError: If an id is out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> table = Tensor.from_global([[1.0], [2.0], [0.0], [3.0], [4.0], [0.0]], m.layout)
    >>> ops.padded_embedding(Tensor.from_global([0, 2, 3], m.layout.mesh(None)), table).full().tolist()
    [[1.0], [3.0], [4.0]]
    """
    return _padded_op(ids, table)


def _pick_entries(context: Context, x: Array, ids: Array) -> Array:
    """Return ``x[..., ids]`` row by row; zero for entries of other ranks."""
    is_owned, indices = find_owned_entries(context, ids[..., None], -1, "c", "classes")
    entries = np.zeros(is_owned.shape, x.dtype)
    entries[is_owned] = x[indices]
    return entries[..., 0]


def _pick_vjp(context: Context, dy: Array, operands: Arrays, _result: Any) -> tuple[Array, None]:
    """Return the gradient of this rank's block, and None for the ids.

    The gradient is ``dy`` at the picked entry of each row, 0 elsewhere.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        dy: the gradient of the result, in the shape of the ids.
        operands: this rank's block ``[..., c]`` and the ids ``[...]``.
        _result: the result; not used.
    """
    x, ids = operands
    is_owned, indices = find_owned_entries(context, ids[..., None], -1, "c", "classes")
    gradient = np.zeros_like(x)
    gradient[indices] = dy[is_owned[..., 0]]
    return gradient, None


_pick_op = Op(
    "pick",
    Rule.parse("... c, ... -> ...", indexed="c", linear=((0,),)),
    _pick_entries,
    _pick_vjp,
    dtype=lambda x, _ids: x,
    contextual=True,
    moves=True,
)


@operator(_pick_op)
def pick(x: Tensor, ids: Tensor) -> Tensor:
    """Return one entry of each row ``x[..., c]``, at index ``ids[...]``.

    Args:
        x: ``[..., c]``.
        ids: integers ``[...]`` from 0 to ``c - 1``.

    Returns:
        The entries ``[...]``, partial over the axes that split the last dimension.

    Raises:
        InputError: If an id is out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.pick(m, Tensor.from_global([1, 0], m.layout.mesh("dp"))).full().tolist()
    [1.0, 2.0]
    """
    return _pick_op(x, ids)


def _one_hot_rule(ids: Shape, depth: int, dtype: Any, dim: int = -1) -> tuple[Rule, dict[str, int]]:
    """Return the rule of ``one_hot`` and the size of its new dim, whose factor is "c"."""
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
    """Return 1 at index ``ids`` of a new dimension and 0 elsewhere, split as the ids.

    An id outside of 0 to ``depth - 1`` gives zeros only. The result has no gradient.

    Args:
        ids: integers ``[...]``.
        depth: number of classes: the size of the new dimension.
        dtype: element type of the result.
        dim: position of the new dimension in the result; -1: last.
        axis: another name of ``dim``.

    Returns:
        A tensor with one dimension more than ``ids``.

    Raises:
        RuleError: If ``dim`` is out of range or ``depth`` is negative.
        InputError: If tensors do not support ``dtype``.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.one_hot(v, 4).full().tolist()
    [[0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]]
    """
    if not -ids.ndim - 1 <= dim <= ids.ndim:
        raise OutOfRange(f"dim {dim} is out of range for a result of {many(ids.ndim + 1, 'dim')}")
    if not isinstance(depth, (int, np.integer)) or depth < 0:
        raise RuleError(f"one_hot: depth must be an integer from 0 on, got {depth!r}")
    return _one_hot_op(ids, depth=depth, dtype=np.dtype(dtype), dim=dim)
