"""Entries chosen by truth values, and the different values: as many as there are, agreed by one small gathering, in balanced blocks."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from spmdsim.arrays import Context, Op, Tensor
from spmdsim.arrays.joined import joined, needs_values
from spmdsim.arrays.operands import Operand
from spmdsim.arrays.ops.along import put_along
from spmdsim.arrays.ops.declare import Array, alike, boolean, cast
from spmdsim.arrays.ops.elementwise import logical_not, subtract
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.scans import ALONG, cumulative_sum, split_axes
from spmdsim.arrays.ops.shape import merged, reshape
from spmdsim.arrays.ops.sorting import sort, sort_with_indices
from spmdsim.arrays.stepped import SteppedOp
from spmdsim.core import BoundRule, Layout, Rule, Strategy
from spmdsim.core.step import Step
from spmdsim.errors import OutOfRange, RuleError
from spmdsim.worlds.convert_operands import as_operand

__all__ = ["isin", "nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"]


def by_first_dim(x: Tensor, dims: int) -> Tensor:
    """The tensor with the first of so many dims split by the axes that split any of them, and nothing pending.

    So the entries of these dims, in row-major order, lie rank after rank.
    """
    layout = x.layout.reduced.canonical
    axes = [axis for entry in layout.dims[:dims] for axis in entry]
    return x.to(Layout(layout.mesh, [axes, *[None] * (dims - 1), *layout.dims[dims:]]))


def select(x: Tensor, mask: Tensor) -> Tensor:
    """``x[mask]``: the entries, or rows, where the mask is true, in row-major order.

    Each rank chooses among its own; how many there are in all is agreed by one small gathering, and one exchange cuts
    them in balanced blocks. Gradients go back to where the entries were.
    """
    if mask.shape != x.shape[: mask.ndim]:
        raise OutOfRange(f"a mask of shape {mask.shape} does not fit a tensor of shape {x.shape}")
    needs_values(x.world, "x[mask]")
    if not mask.ndim:
        return select(reshape(x, (1, *x.shape)), reshape(mask, (1,)))
    x = by_first_dim(x, mask.ndim)
    there = mask.detach().to(Layout(x.layout.mesh, x.layout.dims[: mask.ndim]))
    masks = there.shards
    pieces = [held[one] for held, one in zip(x.held, masks)]
    shapes, dims = [held.shape for held in x.held], x.layout.dims[mask.ndim :]

    def put(k: int, piece: Array) -> Array:
        whole = np.zeros(shapes[k], piece.dtype)
        whole[masks[k]] = piece
        return whole

    pieces = [p if p.ndim == 1 + len(dims) else p.reshape(0, *[0] * len(dims)) for p in pieces]
    layout = Layout(x.layout.mesh, [x.layout.dims[0], *dims])
    return joined("select", (x, mask), layout, pieces, x.shape[mask.ndim :], put)


def flattened(x: Tensor) -> Tensor:
    """All entries in one dim, split by the axes that split any dim."""
    x = x.to(x.layout.reduced.canonical)
    return x if x.ndim == 1 else merged(x, 0, x.ndim)


@operator()
def nonzero(x: Tensor) -> tuple[Tensor, ...]:
    """Return the indices of entries that are not 0: one tensor per dimension, in row-major order.

    Raises:
        RuleError: a tensor without dims.
        WorldError: a world without values.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> [places.full().tolist() for places in ops.nonzero(x > 3)]
    [[1, 1, 1], [0, 1, 2]]
    """
    if not x.ndim:
        raise RuleError("nonzero takes a tensor with dims")
    needs_values(x.world, "nonzero(x)")
    x = by_first_dim(x.detach(), x.ndim)
    pieces = []
    for rank, shard in zip(x.world.ranks, x.shards):
        local_places = np.stack(np.nonzero(shard), -1)
        local_places[:, 0] += x.layout.bounds(x.shape, rank)[0][0]
        pieces.append(local_places.astype(np.int64))
    layout = Layout(x.layout.mesh, [x.layout.dims[0], None])
    places = joined("nonzero", (x,), layout, pieces, (x.ndim,))
    return tuple(_column_op(places, column=d) for d in range(x.ndim))


_column_op = Op(
    "column",
    Rule.parse("m n -> m", whole="n"),
    lambda x, column: np.ascontiguousarray(x[:, column]),
    moves=True,
)


_isin_op = Op(
    "isin",
    lambda x, values: Rule.parse(
        f"..., {' '.join(f'v{d}' for d in range(len(values)))} -> ...", reduce="any"
    ),
    lambda x, values: np.asarray(np.isin(x, values.reshape(-1))),
    dtype=boolean,
)


@operator(_isin_op)
def isin(x: Operand, values: Operand, invert: bool = False) -> Tensor:
    """Return True for each entry that equals one of some values.

    If the values are split, each rank compares with its own.

    Args:
        x: the tensor.
        values: of any shape.
        invert: whether it is none of them.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.isin(x, [1, 6]).full().tolist()
    [[False, True, False], [True, False, False]]
    """
    like: Any = x if isinstance(x, Tensor) else values
    entries, others = alike("isin", as_operand(x, like), as_operand(values, like))
    among = _isin_op(entries, others)
    return logical_not(among) if invert else among


class UniqueCounts(NamedTuple):
    """What :func:`unique_counts` gives."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What :func:`unique_inverse` gives."""

    values: Tensor
    inverse_indices: Tensor


class UniqueAll(NamedTuple):
    """What :func:`unique_all` gives."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


def _beside_steps(bound: BoundRule, strategy: Strategy, inputs: Sequence[Any], **params: Any) -> Any:
    axes = split_axes(strategy)
    if not axes:
        return ()
    mesh = strategy.mesh
    step = Step("all_gather", axes, mesh(axes), mesh(None), (mesh.axis_size(*axes),))
    return ((step, inputs[0].dtype),)


def _beside(context: Context, x: Array, ahead: bool) -> Generator[Array, Array, tuple[Array, bool]]:
    """The entry beside this rank's piece, behind it or ahead, and whether there is one."""
    axes, mesh, size = split_axes(context.strategy), context.strategy.mesh, context.size(ALONG)
    if not axes:
        return np.zeros(1, x.dtype), False
    mine = (x[:1] if ahead else x[-1:]) if len(x) else np.zeros(1, x.dtype)
    all_of = yield mine
    members = mesh.group(context.rank, *axes)
    line, me = Layout(mesh, [axes]), members.index(context.rank)
    others = range(me + 1, len(members)) if ahead else range(me - 1, -1, -1)
    for k in others:
        if line.local_shape((size,), members[k])[0]:
            return all_of[k : k + 1], True
    return np.zeros(1, x.dtype), False


def _starts(context: Context, x: Array) -> Generator[Array, Array, Array]:
    """Where entries differ from the one before."""
    before, there = yield from _beside(context, x, False)
    earlier = np.concatenate([before, x])[: len(x)]
    differs = np.asarray(x != earlier)
    if not there:
        differs[:1] = True
    return differs


def _following(context: Context, x: Array, last: int) -> Generator[Array, Array, Array]:
    """The entry after each, and what stands behind the last one."""
    after, there = yield from _beside(context, x, True)
    return np.concatenate([x[1:], after if there else np.full(1, last, x.dtype)])[: len(x)]


_runs_rule = Rule.parse(f"{ALONG} -> {ALONG}")
_starts_op = SteppedOp(
    "starts", _runs_rule, _starts, dtype=boolean, steps=_beside_steps, contextual=True, moves=True
)
_following_op = SteppedOp(
    "following", _runs_rule, _following, steps=_beside_steps, contextual=True, moves=True
)


def _flat(name: str, x: Tensor) -> Tensor:
    needs_values(x.world, f"{name}(x)")
    return flattened(x.detach())


def _counts(ordered: Tensor, starts: Tensor) -> Tensor:
    """How long the runs of equal values are."""
    (places,) = nonzero(starts)
    return subtract(_following_op(places, last=ordered.shape[0]), places)


def _inverse(x: Tensor, starts: Tensor, order: Tensor) -> Tensor:
    """For each entry of ``x``, the number of its value."""
    numbers = subtract(cumulative_sum(cast(starts, np.int64)), 1)
    return reshape(put_along(numbers, order, 0), x.shape, x.layout.reduced)


@operator()
def unique_values(x: Tensor) -> Tensor:
    """Return the different values, ascending; every nan counts as different.

    Raises:
        WorldError: a world without values.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.unique_values(v).full().tolist()
    [1, 2, 3]
    """
    ordered = sort(_flat("unique_values", x))
    return select(ordered, _starts_op(ordered))


@operator()
def unique_counts(x: Tensor) -> UniqueCounts:
    """Return the values of :func:`unique_values` and the number of their occurrences.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> values, counts = ops.unique_counts(v)
    >>> values.full().tolist(), counts.full().tolist()
    ([1, 2, 3], [1, 1, 2])
    """
    ordered = sort(_flat("unique_counts", x))
    starts = _starts_op(ordered)
    return UniqueCounts(select(ordered, starts), _counts(ordered, starts))


@operator()
def unique_inverse(x: Tensor) -> UniqueInverse:
    """Return the values of :func:`unique_values` and the number of each entry's value.

    The second result has the shape of ``x``.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.unique_inverse(v).inverse_indices.full().tolist()
    [2, 0, 2, 1]
    """
    ordered, order = sort_with_indices(_flat("unique_inverse", x))
    starts = _starts_op(ordered)
    return UniqueInverse(select(ordered, starts), _inverse(x, starts, order))


@operator()
def unique_all(x: Tensor) -> UniqueAll:
    """Return values, first indices, inverse and counts.

    The values are those of :func:`unique_values`. The first index is the position of a value's first occurrence among all
    entries. The inverse has for each entry the number of its value.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.unique_all(v).indices.full().tolist()
    [1, 3, 0]
    """
    ordered, order = sort_with_indices(_flat("unique_all", x))
    starts = _starts_op(ordered)
    counts, inverse = _counts(ordered, starts), _inverse(x, starts, order)
    return UniqueAll(select(ordered, starts), select(order, starts), inverse, counts)
