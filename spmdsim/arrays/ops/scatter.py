"""Values set or combined at positions that ids name; each rank changes its own block of the tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.arrays import Context, Op, Tensor
from spmdsim.arrays.operands import Operand, normalise_dim
from spmdsim.arrays.ops.declare import Array, Arrays, Shape
from spmdsim.arrays.ops.dim_reductions import to_type
from spmdsim.arrays.ops.indexing import IndexLookup, split_index
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.shape import broadcast_to, drop_leading_ones, merge_dims, reshape, transpose
from spmdsim.core import Rule
from spmdsim.errors import RuleError, UsageTypeError
from spmdsim.redistribution.steps.row_steps import check_ids
from spmdsim.worlds.convert_operands import as_operand
from spmdsim.worlds.local_steps import add_rows

__all__ = ["scatter_add"]

#: Functions of an element and a value: NumPy's names, and "set", which replaces the element.
KINDS = ("add", "subtract", "multiply", "maximum", "minimum", "set")
#: Kinds with gradients.
LINEAR = ("add", "subtract", "set")


def _scatter_rule(x: Shape, ids: Shape, values: Shape, dim: int, kind: str) -> Rule:
    """Return the rule of a scatter into ``dim``, in which the dims of the ids must not be split.

    For shapes (6, 4), (3,), (3, 4) and dim 0 it is "v d1, i0, i0 d1 -> v d1"; "i0" must not be split.

    Args:
        x: the shape of the tensor.
        ids: the shape of the ids.
        values: the shape of the values; not used: the rule states it.
        dim: the dim of the positions.
        kind: "set" or the name of a NumPy function, see :data:`KINDS`; "add", "subtract" and "set" pass pending sums
            through.
    """
    names = [f"d{k}" for k in range(len(x))]
    new = [f"i{k}" for k in range(len(ids))]
    table = " ".join("v" if k == dim else name for k, name in enumerate(names))
    values_term = " ".join([*names[:dim], *new, *names[dim + 1 :]])
    text = f"{table}, {' '.join(new)}, {values_term} -> {table}"
    return Rule.parse(text, whole=" ".join(new), linear=((0, 2),) if kind in LINEAR else "none")


def _find_owned_ids(context: Context, ids: Array, dim: int) -> tuple[Array, Array]:
    """Return a mask of the ids inside this rank's block of a dim, and their positions in the block.

    The positions are in the order of the True elements. Raises InputError if an id is out of range of the whole dim.
    """
    check_ids(ids, context.size("v"), description=f"entries of dim {dim}")
    start, stop = context.bounds("v")
    is_owned = (ids >= start) & (ids < stop)
    return is_owned, ids[is_owned].astype(np.intp) - start


def _move_ids_first(values: Array, ids: Array, dim: int) -> Array:
    """Return the values with the dims of the ids first."""
    return np.moveaxis(values, range(dim, dim + ids.ndim), range(ids.ndim))


def _scatter(context: Context, x: Array, ids: Array, values: Array, dim: int, kind: str) -> Array:
    """Return a copy of this rank's block with values set or combined at positions inside it.

    For example, adding the values [10, 20, 5] at the ids [1, 1, 3] turns the block [3, 1] of the first of two ranks into
    [3, 31]; id 3 is in the block of the other rank. Values of equal positions apply one after the other in row-major
    order of the ids.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        x: this rank's block; not changed.
        ids: all ids, from 0.
        values: all values, with the dims of the ids in place of ``dim``.
        dim: the dimension.
        kind: "set", "add", "subtract", "multiply", "maximum" or "minimum".

    Raises:
        InputError: If an id is out of range.
    """
    is_owned, positions = _find_owned_ids(context, ids, dim)
    result = np.array(np.moveaxis(x, dim, 0), order="C")
    rows = _move_ids_first(values, ids, dim)[is_owned]
    if kind == "set":
        result[positions] = rows
    elif kind == "add":
        add_rows(result, positions, rows)
    else:
        getattr(np, kind).at(result, positions, rows)
    return np.asarray(np.moveaxis(result, 0, dim), order="C")


def _scatter_vjp(
    context: Context, dy: Array, operands: Arrays, _y: Any, dim: int, kind: str
) -> tuple[Array, None, Array]:
    """Return the gradients of a scatter by the tensor, the ids (None) and the values.

    A value's gradient is the gradient of the entry to which it goes, with opposite sign for "subtract". It is 0 here
    if another rank owns the entry. The tensor's gradient is ``dy``. With "set", two gradients are 0 besides: those of
    the tensor's replaced entries, and those of values that a later value replaced. For example, "set" at the ids [2,
    2] of 3 entries gives the tensor ``[dy[0], dy[1], 0]`` and the values ``[0, dy[2]]``.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        dy: the gradient of this rank's block of the result.
        operands: the tensor (not read), the ids and the values (of which the shape is read).
        _y: the result; not used.
        dim: the dimension.
        kind: "add", "subtract" or "set"; other kinds have no gradient.
    """
    _, ids, values = operands
    is_owned, positions = _find_owned_ids(context, ids, dim)
    x_gradient, values_gradient = np.array(np.moveaxis(dy, dim, 0)), np.zeros(values.shape, dy.dtype)
    rows = x_gradient[positions] if kind != "subtract" else -x_gradient[positions]
    if kind == "set":
        numbers, last = np.arange(len(positions)), np.zeros(len(x_gradient), np.intp)
        last[positions] = numbers
        rows[last[positions] != numbers] = 0
        x_gradient[positions] = 0
    _move_ids_first(values_gradient, ids, dim)[is_owned] = rows
    return np.moveaxis(x_gradient, 0, dim), None, values_gradient


_scatter_op = Op(
    "scatter",
    _scatter_rule,
    _scatter,
    _scatter_vjp,
    dtype=lambda x, _ids, _values, dim, kind: x,
    contextual=True,
    unseen=(0, 2),
)


@operator(_scatter_op)
def scatter_add(x: Tensor, ids: Operand, values: Operand, dim: int = 0, *, axis: int = 0) -> Tensor:
    """Add values to the entries of a dimension that ``ids`` name, once per occurrence of an id.

    A split dimension stays split: each rank adds the values of its own block. Ids and values are gathered. ``x``
    itself does not change.

    Args:
        x: ``[a..., v, b...]``.
        ids: integers ``[i...]``, a tensor or an array that all ranks have; negative ones count from the end. An array
            of ``v`` bools stands for the positions of True.
        values: ``[a..., i..., b...]``, or a shape that broadcasts to it; converted to the type of ``x``.
        dim: the dimension ``v`` of ``x``; negative numbers count from the end.
        axis: another name of ``dim``; it is an error to give both.

    Returns:
        A tensor in the shape and type of ``x``.

    Raises:
        RuleError: If a dimension is out of range, ids are no integers, values do not broadcast, or their type cannot
            be cast to that of ``x`` (such as float to integer).
        OutOfRange: If an id in an array is out of range.
        InputError: If an id in a tensor is out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.scatter_add(v, [1, 1, -1], [10, 20, 5]).full().tolist()
    [3, 31, 3, 7]
    """
    index = [*[slice(None)] * normalise_dim(dim, x.ndim), ids if isinstance(ids, Tensor) else np.asarray(ids)]
    if not np.ndim(ids):  # type: ignore[arg-type]
        # An index of one number would be a basic selection, which is no lookup.
        index[-1] = as_operand(index[-1], x)
    # The index selects all dims before ``dim`` whole, so the lookup is in ``x`` itself.
    _parts, _selected, lookup = split_index(x, index)
    return scatter_values(x, lookup, values, "add", "scatter_add")


def scatter_values(x: Tensor, lookup: IndexLookup, value: Operand, kind: str, name: str) -> Tensor:
    """Return a copy of a tensor with values set or combined at the entries that a lookup names.

    If the lookup names an entry several times, its values apply one after the other in row-major order. For example,
    the values [5, 6] at the positions [1, 1] of [0, 0, 0] give [0, 6, 0] with "set" and [0, 11, 0] with "add".

    Args:
        x: the tensor; it does not change.
        lookup: the lookup of the index, from :func:`split_index`.
        value: broadcasts to the shape of the looked-up entries; leading dims of size 1 are dropped.
        kind: "set", "add", "subtract", "multiply", "maximum" or "minimum".
        name: the function, for error messages.

    Returns:
        A tensor in the shape and type of ``x``.

    Raises:
        RuleError: If the value does not broadcast, or its type cannot be cast to that of ``x`` (such as float to
            integer).
        UsageTypeError: If ``kind`` has no gradient and an operand requires one.
        InputError: If an id in a tensor is out of range.
    """
    new = as_operand(value, x)
    if new.dtype != x.dtype:
        if not np.can_cast(new.dtype, x.dtype, "same_kind"):
            raise RuleError(
                f"{name}: elements of {new.dtype} do not go into a tensor of {x.dtype}; convert them first"
            )
        new = to_type(new, x.dtype)
    if kind not in LINEAR and (x.requires_grad or new.requires_grad):
        raise UsageTypeError(f"{name} has no gradient; detach() its operands")
    ordered = x if lookup.order == tuple(range(x.ndim)) else transpose(x, lookup.order)
    dim = lookup.first_dim
    table = merge_dims(ordered, dim, dim + lookup.dim_count) if lookup.dim_count > 1 else ordered
    ids = as_operand(lookup.ids, x)
    entries_shape = (*table.shape[:dim], *ids.shape, *table.shape[dim + 1 :])
    new = drop_leading_ones(new, len(entries_shape))
    if new.shape != entries_shape:
        new = broadcast_to(new, entries_shape)
    result = _scatter_op(table, ids, new, dim=dim, kind=kind)
    if lookup.dim_count > 1:
        result = reshape(result, ordered.shape, ordered.layout.reduced)
    original_order = [int(d) for d in np.argsort(lookup.order)]
    return result if ordered is x else transpose(result, original_order)
