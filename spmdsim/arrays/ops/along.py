"""Looking entries up, and putting them back, one place for each element along a dim."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Context, Op, Tensor
from spmdsim.arrays.operands import Operand, operands
from spmdsim.arrays.ops.declare import Array, Arrays, cast
from spmdsim.arrays.ops.elementwise import add, less, where
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.scans import ALONG, along_dim, along_rule, rows_back, rows_last, split_axes
from spmdsim.arrays.ops.shape import broadcast_to
from spmdsim.arrays.stepped import SteppedOp
from spmdsim.core import BoundRule, Layout, Rule, Strategy
from spmdsim.core.step import Step
from spmdsim.errors import RuleError, many
from spmdsim.redistribution.steps.group_steps import Parts, parts_step
from spmdsim.redistribution.steps.row_steps import checked_ids
from spmdsim.worlds.convert_operands import as_operand

__all__ = ["take_along_axis"]


def _put_steps(bound: BoundRule, strategy: Strategy, inputs: Sequence[Any], dim: int) -> Any:
    axes = split_axes(strategy)
    if not axes:
        return ()
    mesh, ranks, number = strategy.mesh, strategy.mesh.axis_size(*axes), np.dtype(np.int64)
    counts = Step("all_to_all", axes, mesh(axes, None), mesh(None, axes), (ranks, ranks))
    exchange = parts_step(inputs[0].layout, axes, inputs[0].shape)
    return ((counts, number), (exchange, number), (exchange, inputs[0].dtype))


def _put_forward(context: Context, x: Array, ids: Array, dim: int) -> Generator[Any, Any, Array]:
    mesh, axes = context.strategy.mesh, split_axes(context.strategy)
    if not axes:
        placed = np.empty_like(x)
        np.put_along_axis(placed, ids, x, dim)
        return placed
    members, size = mesh.group(context.rank, *axes), context.size(ALONG)
    line = Layout(mesh, [axes])
    bounds = np.array([line.bounds((size,), member)[0] for member in members])
    rows, to = rows_last(x, dim), rows_last(ids, dim)
    starts, lengths = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
    owner = np.searchsorted(bounds[:, 1], to, side="right")
    place = (np.arange(len(rows))[:, None] * lengths[owner] + to - starts[owner]).reshape(-1)
    order = np.argsort(owner, axis=None, kind="stable")
    counts = np.bincount(owner.reshape(-1), minlength=len(members))
    cuts = np.cumsum(counts)[:-1]
    came = (yield counts[None]).reshape(-1).tolist()
    places = yield Parts(np.split(place[order], cuts), came)
    values = yield Parts(np.split(rows.reshape(-1)[order], cuts), came)
    placed = np.empty(rows.size, x.dtype)
    placed[np.concatenate(places)] = np.concatenate(values)
    return rows_back(placed.reshape(rows.shape), x.shape, dim)


_put_op = SteppedOp(
    "put_along",
    lambda shape, ids, dim: along_rule(shape, dim, "{}, {} -> {}"),
    _put_forward,
    dtype=lambda x, _ids, dim: x,
    steps=_put_steps,
    contextual=True,
    moves=True,
)


def put_along(x: Tensor, ids: Tensor, dim: int) -> Tensor:
    """Each element of ``x`` at the place along a dim that ``ids`` says, which name every place once."""
    return _put_op(x.to(ids.layout), ids, dim=dim)


def terms_of(ndim: int, dim: int, factors: Sequence[str]) -> list[str]:
    """The terms of tensors that have the same dims but for one, which are several factors."""
    return [" ".join(one if d == dim else f"d{d}" for d in range(ndim)) for one in factors]


def held_entries(
    context: Context, ids: Array, dim: int, factor: str = "v", what: str = ""
) -> tuple[Array, tuple[Array, ...]]:
    """Which ids name an entry of a dim that this rank holds, and where those lie."""
    checked_ids(ids, context.size(factor), what=what or f"entries of dim {dim}")
    start, stop = context.bounds(factor)
    mine = (ids >= start) & (ids < stop)
    where = list(np.nonzero(mine))
    where[dim] = ids[mine] - start
    return mine, tuple(where)


def _take_forward(context: Context, x: Array, ids: Array, dim: int) -> Array:
    """The entries this rank holds, zeros where another rank holds them."""
    if x.shape[dim] == context.size("v"):
        return np.take_along_axis(x, checked_ids(ids, context.size("v"), what=f"entries of dim {dim}"), dim)
    mine, where = held_entries(context, ids, dim)
    entries = np.zeros(ids.shape, x.dtype)
    entries[mine] = x[where]
    return entries


def _take_vjp(context: Context, dy: Array, operands: Arrays, _result: Any, dim: int) -> tuple[Array, None]:
    x, ids = operands
    gradient = np.zeros_like(x, order="C")
    mine, where = held_entries(context, ids, dim)
    np.add.at(gradient, where, dy[mine])
    return gradient, None


_take_op = Op(
    "take_along_axis",
    lambda x, ids, dim: Rule.parse(
        "{0}, {1} -> {1}".format(*terms_of(len(x), dim, "vi")), indexed="v", linear=((0,),)
    ),
    _take_forward,
    _take_vjp,
    dtype=lambda x, _ids, dim: x,
    contextual=True,
    moves=True,
)


@operator(_take_op)
def take_along_axis(x: Operand, ids: Operand, dim: int = -1, *, axis: int = -1) -> Tensor:
    """Return for each element of ``ids`` the entry of ``x`` at that index of a dimension.

    It equals ``numpy.take_along_axis``.

    Where that dim is split every rank gives the entries it holds and zeros for the others, so the result is
    partial over its axes.

    Args:
        x: the tensor.
        ids: integers, a tensor or an array that all ranks have; negative ones count from the end. The other dims are
            those of ``x``, or broadcast with them.
        dim: the dimension; negative numbers count from the end. It may be split.
        axis: another name of ``dim``.

    Raises:
        RuleError: a dimension out of range, shapes that do not fit.
        InputError: an integer outside the dim.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.take_along_axis(x, ops.argsort(x)).full().tolist()
    [[1, 2, 3], [4, 5, 6]]
    """
    x, ids = operands("take_along_axis", (x, ids))
    at = along_dim("take_along_axis", x, dim)
    return _take_op(*_fitting("take_along_axis", x, ids, at), dim=at)


def _fitting(name: str, x: Tensor, ids: Tensor, at: int) -> tuple[Tensor, Tensor]:
    """Both with equal sizes besides a dim, and ids that count from the front."""
    if ids.ndim != x.ndim:
        raise RuleError(
            f"{name}: indices of {many(ids.ndim, 'dim')} do not fit a tensor of {many(x.ndim, 'dim')}"
        )
    try:
        common = np.broadcast_shapes(*[(*t.shape[:at], 1, *t.shape[at + 1 :]) for t in (x, ids)])
    except ValueError:
        raise RuleError(f"{name}: shapes {x.shape} and {ids.shape} differ besides dim {at}") from None
    x, ids = (
        t if t.shape == shape else broadcast_to(t, shape)
        for t in (x, ids)
        for shape in [(*common[:at], t.shape[at], *common[at + 1 :])]
    )
    if ids.dtype.kind == "i":
        ids = where(less(ids, 0), add(ids, x.shape[at]), ids)
    return x, ids


def _replace_forward(context: Context, x: Array, ids: Array, values: Array, dim: int) -> Array:
    mine, where = held_entries(context, ids, dim)
    replaced = x.copy()
    replaced[where] = values[mine]
    return replaced


def _replace_vjp(
    context: Context, dy: Array, operands: Arrays, _result: Any, dim: int
) -> tuple[Array, None, Array]:
    """What was replaced has none, nor has a value that a later one for the same place replaced."""
    mine, where = held_entries(context, operands[1], dim)
    of_x, of_values, numbers = dy.copy(), np.zeros(operands[1].shape, dy.dtype), np.arange(np.sum(mine))
    last = np.zeros(dy.shape, np.intp)
    of_x[where], last[where] = 0, numbers
    of_values[mine] = np.where(last[where] == numbers, dy[where], 0)
    return of_x, None, of_values


_replace_op = Op(
    "put_along_axis",
    lambda x, ids, values, dim: Rule.parse(
        "{0}, {1}, {1} -> {0}".format(*terms_of(len(x), dim, "vi")), whole="i"
    ),
    _replace_forward,
    _replace_vjp,
    dtype=lambda x, _ids, _values, dim: x,
    contextual=True,
    unseen=(0, 2),
    moves=True,
)


def put_along_axis(x: Tensor, ids: Operand, values: Operand, dim: int) -> Tensor:
    """The tensor with other values, one at each place of a dim that ``ids`` names; every rank puts those into its own piece."""
    at = along_dim("put_along_axis", x, dim)
    x, numbers = _fitting("put_along_axis", x, as_operand(ids, x), at)
    new = as_operand(values, x)
    new = new if new.dtype == x.dtype else cast(new, x.dtype)
    return _replace_op(x, numbers, broadcast_to(new, numbers.shape), dim=at)
