"""Sorting along any dim, split or whole: each rank ends with its block of the sorted whole, and nothing is gathered.

Where the dim is split, ranks sort their pieces, find the exact cuts, and send each other what lies between them: every element
travels once, and blocks are balanced whatever the values are.

All elements together are ordered by value, then by the rank that holds them, then by their place there, so no two are equal.
For each place in the whole there is one cut per rank. What is known of it is a bracket, at first the whole piece. In a round
each rank sends evenly spaced samples of its bracket to the rank that decides about this place, which puts them in order and
sends the narrower brackets back. Between two samples that stand side by side lie at most as many elements as there are between
samples: a bracket of ``w`` elements in all, of which every rank sends ``s`` samples, is followed by one of at most
``3 w / s + 3 p``. So how many rounds there are follows from the sizes, and how much is left to be sent as it is in the end,
which makes the cuts exact.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from spmdsim.arrays import Context, Tensor
from spmdsim.arrays.operands import flag
from spmdsim.arrays.ops.along import put_along
from spmdsim.arrays.ops.declare import Array, Arrays
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.scans import ALONG, along_dim, along_rule, beside, rows_back, rows_last, split_axes
from spmdsim.arrays.stepped import SteppedOp
from spmdsim.core import BoundRule, Layout, Strategy
from spmdsim.core.step import Step
from spmdsim.layout.element_type import is_half
from spmdsim.redistribution.steps.group_steps import Parts, one_array, parts_step
from spmdsim.worlds.pool import empty

__all__ = ["argsort", "sort", "sort_with_indices"]

#: What a round is charged besides its samples, in bytes: two more messages.
ROUND = 8192


class Sampling(NamedTuple):
    """How cuts are found: how many samples a rank sends for each place in a round, rounds, and elements left after them."""

    samples: int
    rounds: int
    within: int


@lru_cache(maxsize=1024)
def sampling(size: int, ranks: int, itemsize: int) -> Sampling:
    """The numbers with which a rank receives the least.

    >>> sampling(10_000_000, 8, 8), sampling(80, 8, 8)
    (Sampling(samples=64, rounds=3, within=1056), Sampling(samples=8, rounds=0, within=80))
    """
    samplings = []
    for samples in (8, 16, 32, 64, 128, 256, 512, 1024):
        within = size
        for rounds in range(40):
            samplings.append(Sampling(samples, rounds, within))
            within = min(within, 3 * -(-within // samples) + 3 * ranks)
    return min(
        samplings,
        key=lambda one: one.rounds * (ranks * one.samples * itemsize + ROUND) + one.within * itemsize,
    )


def comparable(values: Array) -> Array:
    """Values as numpy orders them: floats of 16 bits as float32, since it does not know all of them."""
    return values.astype(np.float32) if is_half(values.dtype) and values.dtype.kind == "V" else values


def places(low: Array, high: Array, samples: int) -> tuple[Array, Array]:
    """Places of the samples of brackets, in a new last dim, and which of them there are.

    >>> [part.tolist() for part in places(np.array([4, 2]), np.array([14, 4]), 5)]
    [[[4, 6, 8, 10, 12], [2, 3, 4, 5, 6]], [[True, True, True, True, True], [True, True, False, False, False]]]
    """
    wide = np.maximum(high - low, samples)[..., None]
    at = low[..., None] + np.arange(samples) * wide // samples
    return at, at < high[..., None]


def narrowed(values: Array, low: Array, high: Array, before: int) -> tuple[Array, Array]:
    """The brackets ``[b, p]`` of all ranks for one place, ``before`` elements behind, from samples ``[b, p, s]`` of all."""
    count, ranks, samples = values.shape
    at, there = places(low, high, samples)
    flat = (count, ranks * samples)
    order = np.argsort(comparable(values).reshape(flat), axis=-1, kind="stable")
    missing = np.take_along_axis(~there.reshape(flat), order, -1)
    order = np.take_along_axis(order, np.argsort(missing, axis=-1, kind="stable"), -1)
    there, at = (np.take_along_axis(part.reshape(flat), order, -1) for part in (there, at))
    own = (order // samples == np.arange(ranks)[:, None, None]) & there
    # Of each rank, how many elements are not behind a sample, at least; and where its first behind it may be.
    least = np.maximum.accumulate(np.where(own, at + 1, low.T[..., None]), axis=-1)
    ahead = np.where(own, at, high.T[..., None])
    ahead = np.minimum.accumulate(ahead[..., ::-1], axis=-1)[..., ::-1]
    most = np.concatenate([ahead[..., 1:], high.T[..., None]], axis=-1)
    inside = ((most.sum(0) <= before) & there).sum(-1)
    outside = ((least.sum(0) <= before) & there).sum(-1)
    least = np.concatenate([low.T[..., None], least], axis=-1)
    ahead = np.concatenate([ahead, high.T[..., None]], axis=-1)
    outside = np.where(outside == there.sum(-1), ahead.shape[-1] - 1, outside)
    one = np.arange(count)
    return least[:, one, inside].T, ahead[:, one, outside].T


def cuts(
    pieces: Array, sizes: Array, me: int, before: int, samples: int, rounds: int
) -> Generator[Any, Any, Array]:
    """Where this rank's pieces ``[b, n]`` are to be cut for one place that each rank of the group decides about, ``[p, b]``.

    ``sizes`` are those of each rank's pieces, ``me`` is this rank, which decides about the place after ``before`` elements.

    Yields:
        In each round samples for each rank, ``[p, s, b]``, and then for each the bracket of its cut, ``[p, 2, b]``; in the
        end what is left in the brackets as :class:`Parts`, and the cuts, ``[p, b]``.
    """
    count, ranks = len(pieces), len(sizes)
    low, high = np.zeros((ranks, count), np.int64), np.full((ranks, count), pieces.shape[1], np.int64)
    theirs = np.zeros((count, ranks), np.int64), np.broadcast_to(sizes, (count, ranks))
    for _ in range(rounds):
        at = np.minimum(places(low.T, high.T, samples)[0], pieces.shape[1] - 1)
        if pieces.shape[1]:
            chosen = np.take_along_axis(pieces, at.reshape(count, ranks * samples), -1)
        else:
            chosen = np.zeros(at.shape, pieces.dtype)
        landed = yield np.moveaxis(chosen.reshape(at.shape), 0, -1)
        theirs = narrowed(np.moveaxis(landed, -1, 0), *theirs, before)
        brackets = yield np.stack([theirs[0].T, theirs[1].T], axis=1)
        low, high = brackets[:, 0], brackets[:, 1]
    lengths = theirs[1] - theirs[0]
    rest = yield Parts([between(pieces, a, b) for a, b in zip(low, high)], lengths.sum(0).tolist())
    inside = _counted(rest, lengths, before - theirs[0].sum(-1))
    borders: Array = yield (theirs[0] + inside).T
    return borders


def between(rows: Array, starts: Array, stops: Array) -> Array:
    """What lies between two cuts of each row, one row's after the other's."""
    if len(rows) == 1:
        return rows[0, starts[0] : stops[0]]
    pieces = [row[start:stop] for row, start, stop in zip(rows, starts.tolist(), stops.tolist())]
    return np.concatenate(pieces) if pieces else rows.reshape(-1)


def _counted(parts: Arrays, lengths: Array, first: Array) -> Array:
    """How many of each rank's elements are among the first ones of all, for each sequence, ``[b, p]``, as ``lengths``."""
    counts, begins = np.zeros_like(lengths), [0] * len(parts)
    for k, (row, number) in enumerate(zip(lengths.tolist(), first.tolist())):
        ends = [begin + length for begin, length in zip(begins, row)]
        values = np.concatenate([part[begin:end] for part, begin, end in zip(parts, begins, ends)])
        owner = np.repeat(np.arange(len(parts)), row)
        order = np.argsort(comparable(values), kind="stable")[:number]
        counts[k], begins = np.bincount(owner[order], minlength=len(parts)), ends
    return counts


#: What a sort may give: the values in order, and where they were.
VALUES, INDICES = "values", "indices"


def _steps(bound: BoundRule, strategy: Strategy, inputs: Sequence[Any], **params: Any) -> Any:
    axes = split_axes(strategy)
    if not axes:
        return ()
    (meta,), dim, give = inputs, params["dim"], params["give"]
    size = meta.shape[dim]
    mesh, ranks = strategy.mesh, strategy.mesh.axis_size(*axes)
    rest, entries = beside(meta, dim)
    samples, rounds, within = sampling(size, ranks, meta.dtype.itemsize)
    number = np.dtype(np.int64)

    def transposed(inner: list[int]) -> Any:
        """From each rank to each: an array of this shape."""
        middle = [None] * len(inner)
        src, dst = mesh(axes, None, *middle, *entries), mesh(None, axes, *middle, *entries)
        return Step("all_to_all", axes, src, dst, (ranks, ranks, *inner, *rest))

    selection = [(transposed([samples]), meta.dtype), (transposed([2]), number)] * rounds
    left = parts_step(mesh(axes, *entries), axes, (ranks * within, *rest))
    exchange = parts_step(meta.layout, axes, meta.shape)
    moved = {VALUES: (exchange, meta.dtype), INDICES: (exchange, number)}
    kinds = [VALUES, *[kind for kind in give if kind == INDICES]]
    ending = (left, meta.dtype), (transposed([]), number), (transposed([]), number)
    return (*selection, *ending, *[moved[kind] for kind in kinds])


def _forward(
    context: Context, x: Array, dim: int, descending: bool, give: tuple[str, ...]
) -> Generator[Any, Any, Any]:
    rows, start = rows_last(x, dim), context.bounds(ALONG)[0]
    if descending:  # the rows turned round, sorted, and turned round again: equal ones stay in their order
        rows = rows[:, ::-1]
    numbered = INDICES in give
    rows, order = _sorted(rows, numbered)
    if order is not None:
        order = start + (rows.shape[1] - 1 - order if descending else order)
    if split_axes(context.strategy):
        rows, order = yield from _exchange(context, rows, order, dim, descending)
    if descending:
        rows, order = rows[:, ::-1], None if order is None else order[:, ::-1]
    results = [
        rows_back(part, x.shape, dim)
        for part in (rows if VALUES in give else None, order)
        if part is not None
    ]
    return results[0] if len(results) == 1 else tuple(results)


def _sorted(rows: Array, numbered: bool) -> tuple[Array, Array | None]:
    """Rows in order, and the order if it is asked for."""
    keys = comparable(rows)
    if not numbered and keys is rows:
        result = empty(rows.shape, rows.dtype)  # numpy's sort would copy into fresh pages
        result[...] = rows
        result.sort(axis=-1)
        return result, None
    order = np.argsort(keys, axis=-1, kind="stable")
    return np.take_along_axis(rows, order, -1), order if numbered else None


def _exchange(
    context: Context, rows: Array, order: Array | None, dim: int, descending: bool
) -> Generator[Any, Any, tuple[Array, Array | None]]:
    """This rank's block of the rows of all ranks, in order."""
    mesh, axes = context.strategy.mesh, split_axes(context.strategy)
    members = mesh.group(context.rank, *axes)
    line, size = Layout(mesh, [axes]), context.size(ALONG)
    sizes = np.array([line.local_shape((size,), member)[0] for member in members])
    me, turn = members.index(context.rank), slice(None, None, -1 if descending else 1)
    if descending:
        sizes, me = sizes[::-1], len(members) - 1 - me
    layout, shape = context.bound.input_layouts(context.strategy)[0], context.bound.shapes[0]
    meta_rest = [n for d, n in enumerate(layout.local_shape(shape, context.rank)) if d != dim]
    samples, rounds, _ = sampling(size, len(members), rows.itemsize)
    selection = cuts(rows, sizes, me, int(sizes[:me].sum()), samples, rounds)

    def sent(array: Array, inner: int) -> Array:
        """One array for each rank, as a step between all wants it."""
        return array[turn].reshape(1, *array.shape[: 1 + inner], *meta_rest)

    def came(array: Array, inner: int) -> Array:
        return array.reshape(len(members), *array.shape[2 : 2 + inner], len(rows))[turn]

    outgoing = next(selection)
    for _ in range(2 * rounds):
        outgoing = selection.send(came((yield sent(outgoing, 1)), 1))
    rest = yield Parts(outgoing.arrays[turn], outgoing.counts[turn])
    outgoing = selection.send(rest[turn])
    try:
        selection.send(came((yield sent(outgoing, 0)), 0))
    except StopIteration as end:
        starts = end.value
    ends = np.concatenate([starts[1:], np.full((1, len(rows)), rows.shape[1])])
    counts = came((yield sent(ends - starts, 0)), 0)
    blocks = []
    for what in (rows, order):
        if what is not None:
            parts = [between(what, a, b) for a, b in zip(starts, ends)]
            landed = yield Parts(parts[turn], counts.sum(-1)[turn].tolist())
            blocks.append(_joined(landed[turn], counts).reshape(rows.shape))
    if len(blocks) == 1 and comparable(blocks[0]) is blocks[0]:
        blocks[0].sort(axis=-1, kind="stable")  # what came from each rank is in order: runs are merged
        return blocks[0], None
    rows, again = _sorted(blocks[0], order is not None)
    return rows, None if again is None or len(blocks) == 1 else np.take_along_axis(blocks[1], again, -1)


def _joined(landed: Arrays, counts: Array) -> Array:
    """Rows put together of what came from each rank, one after the other: of each row, all ranks' parts."""
    if counts.shape[1] == 1:
        return one_array(landed)
    ends = np.cumsum(counts, axis=1)
    pieces = [
        part[end - count : end]
        for row_ends, row_counts in zip(ends.T.tolist(), counts.T.tolist())
        for part, end, count in zip(landed, row_ends, row_counts)
    ]
    return np.concatenate(pieces or landed)


_sort_op = SteppedOp(
    "sort",
    lambda shape, dim, descending, give: along_rule(shape, dim, "{} -> " + ", ".join(["{}"] * len(give))),
    _forward,
    dtype=lambda x, give, **_: tuple(x if kind == VALUES else np.dtype(np.int64) for kind in give),
    steps=_steps,
    adjoint=lambda dys, _xs, results, dim, **_: (
        dys[0] if dys[0] is None else put_along(dys[0], results[-1], dim),
    ),
    contextual=True,
    saves_result=True,
    unseen=(0,),
    moves=True,
)


def _sort(name: str, x: Tensor, dim: int, descending: bool, give: tuple[str, ...]) -> tuple[Tensor, ...]:
    at = along_dim(name, x, dim)
    x = x.to(x.layout.reduced)
    home, other = x.layout, _turned(x, at)
    results = _sort_op.results(x.to(other), dim=at, descending=flag("descending", descending), give=give)
    return tuple(result.to(home) for result in results)


def _turned(x: Tensor, dim: int) -> Layout:
    """Where the sort is done: in another layout, with the dim whole, where moving there and back is less than sampling."""
    layout, shape = x.layout.canonical, x.shape
    axes = layout.dims[dim]
    parts = layout.mesh.axis_size(*axes)
    if parts == 1 or not math.prod(shape):
        return x.layout
    samples, rounds, within = sampling(shape[dim], parts, x.dtype.itemsize)
    if rounds * parts * samples + within <= layout.largest_shape(shape)[dim]:
        return x.layout
    rooms = [d for d, n in enumerate(layout.largest_shape(shape)) if d != dim and n >= parts]
    if not rooms:
        return x.layout
    room = max(rooms, key=lambda d: layout.largest_shape(shape)[d])
    dims = [() if d == dim else entry + axes * (d == room) for d, entry in enumerate(layout.dims)]
    return Layout(layout.mesh, dims)


@operator(_sort_op)
def sort(
    x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True, *, axis: int = -1
) -> Tensor:
    """Sort values along a dimension; the layout stays.

    Where the dim is split no rank ever has more than its block: regular samples lead to the exact cuts, and every
    element goes once to the rank in whose block it ends. Nan count as larger than all other values, complex numbers
    are ordered by their real parts first. The gradient of a value goes to where the value was.

    Args:
        x: the tensor.
        dim: the dimension; negative numbers count from the end. It may be split.
        descending: largest first.
        stable: accepted as in NumPy; equal values keep their order in any case.
        axis: another name of ``dim``.

    Raises:
        RuleError: a dimension out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.sort(v).full().tolist(), ops.argsort(v).full().tolist()
    ([1, 2, 3, 3], [1, 3, 0, 2])
    """
    return _sort("sort", x, dim, descending, (VALUES, INDICES) if x.requires_grad else (VALUES,))[0]


@operator(_sort_op)
def argsort(
    x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True, *, axis: int = -1
) -> Tensor:
    """Return the indices that sort a tensor; of equal values the first one comes first.

    int64, in the shape and layout of ``x``: places in the whole dim and not in a rank's piece.

    Args:
        x: the tensor.
        dim: the dimension; negative numbers count from the end. It may be split.
        descending: largest first.
        stable: accepted as in NumPy; equal values keep their order in any case.
        axis: another name of ``dim``.

    Raises:
        RuleError: a dimension out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.argsort(x).full().tolist()
    [[1, 2, 0], [2, 1, 0]]
    """
    return _sort("argsort", x.detach(), dim, descending, (INDICES,))[0]


@operator(_sort_op)
def sort_with_indices(
    x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True, *, axis: int = -1
) -> tuple[Tensor, Tensor]:
    """Return the results of :func:`sort` and :func:`argsort`.

    Args:
        x: the tensor.
        dim: the dimension; negative numbers count from the end. It may be split.
        descending: largest first.
        stable: accepted as in NumPy; equal values keep their order in any case.
        axis: another name of ``dim``.

    Raises:
        RuleError: a dimension out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> values, places = ops.sort_with_indices(x)
    >>> values.full().tolist(), places.full().tolist()
    ([[1, 2, 3], [4, 5, 6]], [[1, 2, 0], [2, 1, 0]])
    """
    values, indices = _sort("sort_with_indices", x, dim, descending, (VALUES, INDICES))
    return values, indices
