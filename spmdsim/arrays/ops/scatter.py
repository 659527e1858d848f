"""Values put or added at places that ids name: each rank does so in its own block, and what is beside that is not moved."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.arrays import Context, Op, Tensor
from spmdsim.arrays.operands import Operand
from spmdsim.arrays.ops.declare import Array, Arrays, Shape
from spmdsim.arrays.ops.dim_reductions import as_type
from spmdsim.arrays.ops.indexing import Looked, parted
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.shape import broadcast_to, merged, reshape, transpose
from spmdsim.core import Rule
from spmdsim.errors import OutOfRange, RuleError, UsageTypeError, many
from spmdsim.redistribution.steps.row_steps import checked_ids
from spmdsim.worlds.convert_operands import as_operand
from spmdsim.worlds.local_steps import add_rows

__all__ = ["scatter_add"]

#: What a scatter does with an element and a value: numpy's names, and "set".
KINDS = ("add", "subtract", "multiply", "maximum", "minimum", "set")
#: Those with gradients.
LINEAR = ("add", "subtract", "set")


def _rule(x: Shape, ids: Shape, values: Shape, dim: int, kind: str) -> Rule:
    kept = [f"d{k}" for k in range(len(x))]
    new = [f"i{k}" for k in range(len(ids))]
    table = " ".join("v" if k == dim else name for k, name in enumerate(kept))
    text = f"{table}, {' '.join(new)}, {' '.join([*kept[:dim], *new, *kept[dim + 1 :]])} -> {table}"
    return Rule.parse(text, whole=" ".join(new), linear=((0, 2),) if kind in LINEAR else "none")


def _own(context: Context, ids: Array, dim: int) -> tuple[Array, Array]:
    """Return the mask of ids inside the rank's block of a dim, and the positions of these ids in the block."""
    checked_ids(ids, context.size("v"), what=f"entries of dim {dim}")
    start, stop = context.bounds("v")
    mine = (ids >= start) & (ids < stop)
    return mine, ids[mine].astype(np.intp) - start


def _rows(values: Array, ids: Array, dim: int) -> Array:
    """The values with the dims of the ids in front."""
    return np.moveaxis(values, range(dim, dim + ids.ndim), range(ids.ndim))


def _scatter(context: Context, x: Array, ids: Array, values: Array, dim: int, kind: str) -> Array:
    mine, places = _own(context, ids, dim)
    changed = np.array(np.moveaxis(x, dim, 0), order="C")
    rows = _rows(values, ids, dim)[mine]
    if kind == "set":
        changed[places] = rows
    elif kind == "add":
        add_rows(changed, places, rows)
    else:
        getattr(np, kind).at(changed, places, rows)
    return np.asarray(np.moveaxis(changed, 0, dim), order="C")


def _scatter_vjp(
    context: Context, dy: Array, operands: Arrays, _y: Any, dim: int, kind: str
) -> tuple[Array, None, Array]:
    """Entries that were set have no gradient, nor has a value that a later one for the same entry replaced."""
    _, ids, values = operands
    mine, places = _own(context, ids, dim)
    of_x, of_values = np.array(np.moveaxis(dy, dim, 0)), np.zeros(values.shape, dy.dtype)
    rows = of_x[places] if kind != "subtract" else -of_x[places]
    if kind == "set":
        numbers, last = np.arange(len(places)), np.zeros(len(of_x), np.intp)
        last[places] = numbers
        rows[last[places] != numbers] = 0
        of_x[places] = 0
    _rows(of_values, ids, dim)[mine] = rows
    return np.moveaxis(of_x, 0, dim), None, of_values


_scatter_op = Op(
    "scatter",
    _rule,
    _scatter,
    _scatter_vjp,
    dtype=lambda x, _ids, _values, dim, kind: x,
    contextual=True,
    unseen=(0, 2),
)


@operator(_scatter_op)
def scatter_add(x: Tensor, ids: Operand, values: Operand, dim: int = 0, *, axis: int = 0) -> Tensor:
    """Add values to the entries of a dimension that ``ids`` name.

    A value is added for each occurrence of an id.

    A dim that is split stays so: every rank adds what lies in its own block. Ids and values are brought together.

    Args:
        x: ``[a..., v, b...]``.
        ids: integers ``[i...]``, a tensor or an array that all ranks have; negative ones count from the end.
        values: ``[a..., i..., b...]``, or what broadcasts to that.
        dim: which dim of ``x`` is ``v``.
        axis: another name of ``dim``.

    Raises:
        RuleError: a dimension out of range, values that do not fit, or of a type that the tensor's cannot hold.
        InputError: an id outside the dim.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.scatter_add(v, [1, 1, -1], [10, 20, 5]).full().tolist()
    [3, 31, 3, 7]
    """
    if not -x.ndim <= dim < x.ndim:
        raise OutOfRange(f"dim {dim} is out of range for a tensor of {many(x.ndim, 'dim')}")
    index = [*[slice(None)] * (dim % x.ndim), ids if isinstance(ids, Tensor) else np.asarray(ids)]
    if not np.ndim(ids):  # type: ignore[arg-type]
        index[-1] = as_operand(index[-1], x)
    return scattered(x, parted(x, index)[2], values, "add", "scatter_add")


def scattered(x: Tensor, looked: Looked, value: Operand, kind: str, name: str) -> Tensor:
    """The tensor with values put or added where arrays of an index look it up.

    Args:
        x: the tensor.
        looked: what they look up.
        value: broadcasts to what is there.
        kind: one of :data:`KINDS`. Equal places are visited one after the other, row by row: the last value stays that is set.
        name: the function, for errors.

    Raises:
        RuleError: a value that does not fit, or of a type that the tensor's cannot hold.
        UsageTypeError: gradients are wanted, and the kind has none.
    """
    new = as_operand(value, x)
    if new.dtype != x.dtype:
        if not np.can_cast(new.dtype, x.dtype, "same_kind"):
            raise RuleError(
                f"{name}: elements of {new.dtype} do not go into a tensor of {x.dtype}; convert them first"
            )
        new = as_type(new, x.dtype)
    if kind not in LINEAR and (x.requires_grad or new.requires_grad):
        raise UsageTypeError(f"{name} has no gradient; detach() its operands")
    y = x if looked.order == tuple(range(x.ndim)) else transpose(x, looked.order)
    place, sizes = looked.place, y.shape
    table = merged(y, place, place + looked.dims) if looked.dims > 1 else y
    ids = as_operand(looked.ids, x)
    wanted = (*table.shape[:place], *ids.shape, *table.shape[place + 1 :])
    extra = new.ndim - len(wanted)
    if extra > 0 and set(new.shape[:extra]) == {1}:  # numpy drops leading dims of size one
        new = reshape(new, new.shape[extra:])
    if new.shape != wanted:
        new = broadcast_to(new, wanted)
    result = _scatter_op(table, ids, new, dim=place, kind=kind)
    if looked.dims > 1:
        result = reshape(result, sizes, y.layout.reduced)
    back = [int(d) for d in np.argsort(looked.order)]
    return result if y is x else transpose(result, back)
