"""Sorting along any dimension. If it is split, each rank ends with its block of the sorted dimension, without a
gather.

Ranks sort their blocks, find the exact cuts between the blocks of the result, and exchange the elements between cuts.
Every element travels once, and blocks are balanced for any values.

Elements are ordered by value, then by owner, then by position, so no two elements are equal. Each border between
result blocks needs one cut per rank. A bracket bounds each cut; at first it is the rank's whole block. In a round
each rank sends evenly spaced samples of its bracket to the rank that decides about this border. That rank sorts the
samples and returns narrower brackets. Between two neighbouring samples lie at most as many elements as the sample
distance: a round with ``s`` samples per rank reduces a bracket of ``w`` elements in all to at most ``3 w / s + 3 p``
for ``p`` ranks. So the number of rounds follows from the sizes alone. At the end, ranks send all elements inside the
brackets, which makes the cuts exact.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from spmdsim.arrays import Context, Tensor
from spmdsim.arrays.operands import parse_flag
from spmdsim.arrays.ops.along import put_along
from spmdsim.arrays.ops.declare import Array, Arrays
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.scans import (
    ALONG,
    find_split_axes,
    from_rows,
    list_other_dims,
    make_along_rule,
    normalise_along_dim,
    to_rows,
)
from spmdsim.arrays.stepped import SteppedOp
from spmdsim.core import BoundRule, Layout, Strategy
from spmdsim.core.step import Step
from spmdsim.layout.element_type import is_half
from spmdsim.redistribution.steps.group_steps import Parts, build_parts_step, join_arrays
from spmdsim.worlds.pool import take_buffer

__all__ = ["argsort", "sort", "sort_with_indices"]

#: Cost of a round besides its samples, in bytes: two more messages.
ROUND = 8192


class Sampling(NamedTuple):
    """The cost parameters of finding cuts.

    Attributes:
        samples: samples that a rank sends per border in a round.
        rounds: number of rounds.
        within: upper limit for the elements inside a bracket after all rounds.
    """

    samples: int
    rounds: int
    within: int


@lru_cache(maxsize=1024)
def choose_sampling(size: int, ranks: int, itemsize: int) -> Sampling:
    """Return the number of samples and rounds with which a rank receives the fewest bytes.

    A round of ``s`` samples per rank narrows a bracket (the range in which a cut must be) from ``w`` elements to at
    most ``3 * ceil(w / s) + 3 * ranks``. So more samples and rounds cost bytes, but leave fewer elements to send at
    the end. All pairs of 8, 16, … 1024 samples and 0 to 39 rounds are tried. The bytes of a pair are
    ``rounds * (ranks * samples * itemsize + 8192) + within * itemsize``; 8192 (:data:`ROUND`) stands for a round's
    latency. Of equal pairs the one with few samples counts, then the one with few rounds. Results are cached.

    Args:
        size: length of the dimension.
        ranks: number of ranks that split it.
        itemsize: bytes per element.

    >>> choose_sampling(10_000_000, 8, 8), choose_sampling(80, 8, 8)
    (Sampling(samples=64, rounds=3, within=1056), Sampling(samples=8, rounds=0, within=80))
    """
    samplings = []
    for samples in (8, 16, 32, 64, 128, 256, 512, 1024):
        within = size
        for rounds in range(40):
            samplings.append(Sampling(samples, rounds, within))
            within = min(within, 3 * -(-within // samples) + 3 * ranks)

    def count_received_bytes(sampling: Sampling) -> int:
        return sampling.rounds * (ranks * sampling.samples * itemsize + ROUND) + sampling.within * itemsize

    return min(samplings, key=count_received_bytes)


def to_comparable(values: Array) -> Array:
    """Convert ml_dtypes floats of 16 bits to float32, because NumPy cannot order all of them."""
    return values.astype(np.float32) if is_half(values.dtype) and values.dtype.kind == "V" else values


def sample_positions(low: Array, high: Array, samples: int) -> tuple[Array, Array]:
    """Return the positions of samples in brackets, and a mask of the samples that exist.

    Args:
        low: first position of each bracket.
        high: position after the last one of each bracket.
        samples: number of samples per bracket: the size of a new last dim of the results. A shorter bracket has fewer
            samples, so the mask is False for the rest.

    >>> [part.tolist() for part in sample_positions(np.array([4, 2]), np.array([14, 4]), 5)]
    [[[4, 6, 8, 10, 12], [2, 3, 4, 5, 6]], [[True, True, True, True, True], [True, True, False, False, False]]]
    """
    wide = np.maximum(high - low, samples)[..., None]
    at = low[..., None] + np.arange(samples) * wide // samples
    return at, at < high[..., None]


def narrow_brackets(values: Array, low: Array, high: Array, before: int) -> tuple[Array, Array]:
    """Return narrower brackets of all ranks for one border between two blocks of the result.

    A rank's cut is the number of elements of its sorted row that lie before the border. A bracket is a range of
    positions that contains the cut. Each rank sampled its row at the positions of :func:`sample_positions`; samples
    beyond a bracket's end are ignored. The samples of all ranks are sorted. For each sample it follows how many
    elements lie before it at least, and at most. The last sample that is surely before the border gives the new lower
    ends, the first one that is surely behind it the upper ends.

    Args:
        values: samples of all ranks, ``[b, p, s]``: rows, ranks, samples.
        low: lower ends of the brackets, ``[b, p]``.
        high: upper ends of the brackets, ``[b, p]``.
        before: number of elements before the border, over all ranks.

    Returns:
        The new lower and upper ends, ``[b, p]`` each.

    Two ranks with 6 elements each, of which 3 are sampled (at 0, 2 and 4); 6 elements lie before the border:

    >>> samples = np.array([[[0, 4, 8], [1, 5, 9]]])
    >>> narrow_brackets(samples, np.array([[0, 0]]), np.array([[6, 6]]), 6)
    (array([[3, 1]]), array([[4, 4]]))
    """
    count, ranks, samples = values.shape
    at, exists = sample_positions(low, high, samples)
    flat = (count, ranks * samples)
    # Sort the samples of all ranks by value, and move those that do not exist behind the others.
    order = np.argsort(to_comparable(values).reshape(flat), axis=-1, kind="stable")
    missing = np.take_along_axis(~exists.reshape(flat), order, -1)
    order = np.take_along_axis(order, np.argsort(missing, axis=-1, kind="stable"), -1)
    exists, at = (np.take_along_axis(array.reshape(flat), order, -1) for array in (exists, at))
    is_own = (order // samples == np.arange(ranks)[:, None, None]) & exists
    # Per rank and sample: the fewest and the most elements up to the sample, and the position of its next sample.
    fewest_up_to = np.maximum.accumulate(np.where(is_own, at + 1, low.T[..., None]), axis=-1)
    next_position = np.where(is_own, at, high.T[..., None])
    next_position = np.minimum.accumulate(next_position[..., ::-1], axis=-1)[..., ::-1]
    most_up_to = np.concatenate([next_position[..., 1:], high.T[..., None]], axis=-1)
    # Number of samples that are before the border for sure, and of those that may be before it.
    sure_count = ((most_up_to.sum(0) <= before) & exists).sum(-1)
    possible_count = ((fewest_up_to.sum(0) <= before) & exists).sum(-1)
    fewest_up_to = np.concatenate([low.T[..., None], fewest_up_to], axis=-1)
    next_position = np.concatenate([next_position, high.T[..., None]], axis=-1)
    # If all samples may be before the border, the upper ends stay; other entries of the last dim are no samples.
    possible_count = np.where(possible_count == exists.sum(-1), next_position.shape[-1] - 1, possible_count)
    row_numbers = np.arange(count)
    return fewest_up_to[:, row_numbers, sure_count].T, next_position[:, row_numbers, possible_count].T


def find_cuts(
    pieces: Array, sizes: Array, before: int, samples: int, rounds: int
) -> Generator[Any, Any, Array]:
    """Return the cuts of this rank's sorted rows, ``[p, b]``: one per block and row.

    The entries that go to block k of the result begin at cut k of this rank's row. For example, rank 0 with the row
    [1, 4, 6] and rank 1 with [2, 3, 5] form the blocks [1, 2, 3] and [4, 5, 6]: rank 0 has the cuts 0 and 1,
    rank 1 has 0 and 2.

    The generator yields what this rank sends, and the caller sends back the arrays received from each rank.

    Args:
        pieces: this rank's sorted rows, ``[b, n]``.
        sizes: number of entries per row on each rank.
        before: number of elements in the result's blocks of preceding ranks. This rank finds the cuts of all ranks at
            the border that follows these blocks.
        samples: samples per border and round.
        rounds: number of rounds.

    Yields:
        In this order:

        - in each round, samples for each rank, ``[p, s, b]``, and then the bracket of each rank's cut, ``[p, 2, b]``;
        - the elements inside the brackets, as :class:`Parts`;
        - the cuts of all ranks at this rank's border, ``[p, b]``.
    """
    count, ranks = len(pieces), len(sizes)
    low, high = np.zeros((ranks, count), np.int64), np.full((ranks, count), pieces.shape[1], np.int64)
    # low, high: the brackets of this rank's cuts, one per border. theirs: the brackets of all ranks' cuts for the one
    # border about which this rank decides.
    theirs = np.zeros((count, ranks), np.int64), np.broadcast_to(sizes, (count, ranks))
    for _ in range(rounds):
        at = np.minimum(sample_positions(low.T, high.T, samples)[0], pieces.shape[1] - 1)
        if pieces.shape[1]:
            chosen = np.take_along_axis(pieces, at.reshape(count, ranks * samples), -1)
        else:
            chosen = np.zeros(at.shape, pieces.dtype)
        landed = yield np.moveaxis(chosen.reshape(at.shape), 0, -1)
        theirs = narrow_brackets(np.moveaxis(landed, -1, 0), *theirs, before)
        brackets = yield np.stack([theirs[0].T, theirs[1].T], axis=1)
        low, high = brackets[:, 0], brackets[:, 1]
    lengths = theirs[1] - theirs[0]
    remaining = yield Parts(
        [concatenate_ranges(pieces, a, b) for a, b in zip(low, high)], lengths.sum(0).tolist()
    )
    inside = _count_first_per_rank(remaining, lengths, before - theirs[0].sum(-1))
    borders: Array = yield (theirs[0] + inside).T
    return borders


def concatenate_ranges(rows: Array, starts: Array, stops: Array) -> Array:
    """Return the elements from ``start`` to ``stop - 1`` of each row in one flat array, row after row."""
    if len(rows) == 1:
        return rows[0, starts[0] : stops[0]]
    pieces = [row[start:stop] for row, start, stop in zip(rows, starts.tolist(), stops.tolist())]
    return np.concatenate(pieces) if pieces else rows.reshape(-1)


def _count_first_per_rank(parts: Arrays, lengths: Array, first: Array) -> Array:
    """Return how many of the first elements of all ranks, in sorted order, are on each rank.

    For example, of the first 3 elements of [1, 5] on rank 0 and [2, 3] on rank 1, one is on rank 0 and two are on rank
    1. Equal elements are ordered by rank, then by position; nan are last.

    Args:
        parts: elements of each rank, row after row; the elements of each row are sorted.
        lengths: number of these elements per row and rank, ``[b, p]``.
        first: number of first elements to count in each row, ``[b]``.

    Returns:
        Counts ``[b, p]``.
    """
    counts, begins = np.zeros_like(lengths), [0] * len(parts)
    for row, (row_lengths, first_count) in enumerate(zip(lengths.tolist(), first.tolist())):
        ends = [begin + length for begin, length in zip(begins, row_lengths)]
        values = np.concatenate([elements[begin:end] for elements, begin, end in zip(parts, begins, ends)])
        owners = np.repeat(np.arange(len(parts)), row_lengths)
        order = np.argsort(to_comparable(values), kind="stable")[:first_count]
        counts[row], begins = np.bincount(owners[order], minlength=len(parts)), ends
    return counts


#: The results of a sort: the values in order, and their indices in the operand.
VALUES, INDICES = "values", "indices"


def _list_exchanges(bound: BoundRule, strategy: Strategy, inputs: Sequence[Any], **params: Any) -> Any:
    """List the steps of a sort with their element types; () if the dimension is not split.

    Each step is one collective among the ranks that split the dimension. They exchange, in this order:

    1. in each round of finding cuts: samples, then brackets;
    2. the elements that remain inside the brackets;
    3. the cuts, and then the number of entries that go from rank to rank;
    4. the values of the entries, and their indices if these are wanted.

    Args:
        bound: the rule with its sizes; not used, but part of the interface of `SteppedOp.steps`.
        strategy: the axes that split the dimensions.
        inputs: the `Meta` (layout, shape, dtype) of the only operand.
        **params: the parameters of `_sort_block`.
    """
    axes = find_split_axes(strategy)
    if not axes:
        return ()
    (meta,), dim, give = inputs, params["dim"], params["give"]
    size = meta.shape[dim]
    mesh, ranks = strategy.mesh, strategy.mesh.axis_size(*axes)
    sizes, entries = list_other_dims(meta, dim)
    samples, rounds, within = choose_sampling(size, ranks, meta.dtype.itemsize)
    number = np.dtype(np.int64)

    def transposed(inner: list[int]) -> Any:
        """Return the all-to-all of arrays with sizes ``inner`` before the other dims' sizes."""
        middle = [None] * len(inner)
        src, dst = mesh(axes, None, *middle, *entries), mesh(None, axes, *middle, *entries)
        return Step("all_to_all", axes, src, dst, (ranks, ranks, *inner, *sizes))

    selection = [(transposed([samples]), meta.dtype), (transposed([2]), number)] * rounds
    remaining = build_parts_step(mesh(axes, *entries), axes, (ranks * within, *sizes))
    exchange = build_parts_step(meta.layout, axes, meta.shape)
    moved = {VALUES: (exchange, meta.dtype), INDICES: (exchange, number)}
    kinds = [VALUES, *[kind for kind in give if kind == INDICES]]
    ending = (remaining, meta.dtype), (transposed([]), number), (transposed([]), number)
    return (*selection, *ending, *[moved[kind] for kind in kinds])


def _sort_block(
    context: Context, x: Array, dim: int, descending: bool, give: tuple[str, ...]
) -> Generator[Any, Any, Any]:
    """Sort a dimension and return this rank's block of the result: values, indices or both.

    For example, if two ranks own [3, 9] and [9, 1], descending values are [9, 9] and [3, 1], with the indices [1, 2]
    and [0, 3]. Equal entries keep their order, also if descending. If the dimension is split, the generator yields the
    operands of the steps of :func:`_list_exchanges`; the caller sends back what this rank receives.

    Args:
        context: the operator call as this rank sees it: strategy, rank, sizes.
        x: this rank's block.
        dim: the dimension.
        descending: the largest entries come first.
        give: the results: VALUES, INDICES or both, in this order.

    Returns:
        One array, or a tuple of two, in the order of ``give``. Indices are positions in the whole dimension.
    """
    rows, start = to_rows(x, dim), context.bounds(ALONG)[0]
    if descending:  # reverse, sort, and reverse again, so that equal entries keep their order
        rows = rows[:, ::-1]
    numbered = INDICES in give
    rows, order = _sort_rows(rows, numbered)
    if order is not None:
        order = start + (rows.shape[1] - 1 - order if descending else order)
    if find_split_axes(context.strategy):
        rows, order = yield from _exchange_entries(context, rows, order, dim, descending)
    if descending:
        rows, order = rows[:, ::-1], None if order is None else order[:, ::-1]
    results = [
        from_rows(rows_of_result, x.shape, dim)
        for rows_of_result in (rows if VALUES in give else None, order)
        if rows_of_result is not None
    ]
    return results[0] if len(results) == 1 else tuple(results)


def _sort_rows(rows: Array, numbered: bool) -> tuple[Array, Array | None]:
    """Return sorted rows and the positions from which their entries came.

    The order is ascending; equal entries keep their order, and nan are last. ``rows`` is not changed.

    Args:
        rows: ``[b, n]``.
        numbered: False to return None instead of the positions.

    Returns:
        The sorted rows, a new array ``[b, n]``; the positions in the row, ``[b, n]``, or None.
    """
    keys = to_comparable(rows)
    if not numbered and keys is rows:
        result = take_buffer(rows.shape, rows.dtype)  # numpy's sort would copy into fresh pages
        result[...] = rows
        result.sort(axis=-1)
        return result, None
    order = np.argsort(keys, axis=-1, kind="stable")
    return np.take_along_axis(rows, order, -1), order if numbered else None


def _exchange_entries(
    context: Context, rows: Array, order: Array | None, dim: int, descending: bool
) -> Generator[Any, Any, tuple[Array, Array | None]]:
    """Exchange the entries of sorted rows; return this rank's block of the sorted result.

    First the ranks find the cuts of their rows (:func:`find_cuts`). Then each rank sends the entries between two cuts
    to the owner of the block, which merges what it receives. The generator yields the operands of the steps of
    :func:`_list_exchanges`; the caller sends back what this rank receives.

    Args:
        context: the operator call as this rank sees it: strategy, rank, sizes.
        rows: this rank's sorted rows, ``[b, n]``.
        order: global indices of the entries of ``rows``, or None.
        dim: the dimension.
        descending: True if the caller reverses the result. The smallest entries then go to the last rank.

    Returns:
        This rank's block of the sorted rows, ``[b, n]``, and the global indices of its entries. The second result is
        None if ``order`` is None.
    """
    mesh, axes = context.strategy.mesh, find_split_axes(context.strategy)
    members = mesh.group(context.rank, *axes)
    line, size = Layout(mesh, [axes]), context.size(ALONG)
    sizes = np.array([line.local_shape((size,), member)[0] for member in members])
    # Descending: the rows are ascending, and the last rank's block comes first, so ranks count from the end.
    own_number, rank_order = members.index(context.rank), slice(None, None, -1 if descending else 1)
    if descending:
        sizes, own_number = sizes[::-1], len(members) - 1 - own_number
    layout, shape = context.bound.input_layouts(context.strategy)[0], context.bound.shapes[0]
    other_sizes = [n for d, n in enumerate(layout.local_shape(shape, context.rank)) if d != dim]
    samples, rounds, _ = choose_sampling(size, len(members), rows.itemsize)
    selection = find_cuts(rows, sizes, int(sizes[:own_number].sum()), samples, rounds)

    def as_operand(array: Array, inner: int) -> Array:
        """Reshape arrays for all ranks to the operand of an all-to-all."""
        return array[rank_order].reshape(1, *array.shape[: 1 + inner], *other_sizes)

    def as_received(array: Array, inner: int) -> Array:
        """Reshape the result of an all-to-all to one array per rank."""
        return array.reshape(len(members), *array.shape[2 : 2 + inner], len(rows))[rank_order]

    outgoing = next(selection)
    for _ in range(2 * rounds):
        outgoing = selection.send(as_received((yield as_operand(outgoing, 1)), 1))
    remaining = yield Parts(outgoing.arrays[rank_order], outgoing.counts[rank_order])
    outgoing = selection.send(remaining[rank_order])
    try:
        selection.send(as_received((yield as_operand(outgoing, 0)), 0))
    except StopIteration as end:
        starts = end.value
    ends = np.concatenate([starts[1:], np.full((1, len(rows)), rows.shape[1])])
    counts = as_received((yield as_operand(ends - starts, 0)), 0)
    blocks = []
    for entries in (rows, order):
        if entries is not None:
            sent = [concatenate_ranges(entries, *cuts) for cuts in zip(starts, ends)]
            received = yield Parts(sent[rank_order], counts.sum(-1)[rank_order].tolist())
            blocks.append(_concatenate_rows(received[rank_order], counts).reshape(rows.shape))
    return _merge_rows(blocks[0], blocks[1] if len(blocks) > 1 else None)


def _merge_rows(rows: Array, indices: Array | None) -> tuple[Array, Array | None]:
    """Return the received rows sorted, and the indices of their entries in this order.

    The order is ascending; nan are last, and equal entries keep their order. Without indices, ``rows`` may be sorted in
    place and returned.

    Args:
        rows: ``[b, n]``; each row is the concatenation of one sorted run per rank.
        indices: the global index of each entry, ``[b, n]``. None: the second result is None.
    """
    if indices is None and to_comparable(rows) is rows:
        rows.sort(axis=-1, kind="stable")  # merges the sorted runs of the ranks
        return rows, None
    ordered, positions = _sort_rows(rows, indices is not None)
    if indices is None or positions is None:  # Both or neither; the type checker needs both.
        return ordered, None
    return ordered, np.take_along_axis(indices, positions, -1)


def _concatenate_rows(landed: Arrays, counts: Array) -> Array:
    """Concatenate the entries received from all ranks row by row, into one flat array.

    Row 0 has the entries of rank 0, then those of rank 1, and so on; row 1 follows. For example, [1, 2, 3] with the
    counts [1, 2], and [4, 5] with the counts [1, 1] give [1, 4, 2, 3, 5].

    Args:
        landed: entries received from each rank, row after row.
        counts: number of these entries per rank and row, ``[p, b]``.
    """
    if counts.shape[1] == 1:
        return join_arrays(landed)
    ends = np.cumsum(counts, axis=1)
    pieces = [
        entries[end - count : end]
        for row_ends, row_counts in zip(ends.T.tolist(), counts.T.tolist())
        for entries, end, count in zip(landed, row_ends, row_counts)
    ]
    return np.concatenate(pieces or landed)


_sort_op = SteppedOp(
    "sort",
    lambda shape, dim, descending, give: make_along_rule(
        shape, dim, "{} -> " + ", ".join(["{}"] * len(give))
    ),
    _sort_block,
    dtype=lambda x, give, **_: tuple(x if kind == VALUES else np.dtype(np.int64) for kind in give),
    steps=_list_exchanges,
    adjoint=lambda dys, _xs, results, dim, **_: (
        dys[0] if dys[0] is None else put_along(dys[0], results[-1], dim),
    ),
    contextual=True,
    saves_result=True,
    unseen=(0,),
    moves=True,
)


def _sort_along(
    name: str, x: Tensor, dim: int, descending: bool, give: tuple[str, ...]
) -> tuple[Tensor, ...]:
    """Sort along a dimension, in the layout that moves fewer bytes (see :func:`_choose_layout`).

    A partial ``x`` is reduced first. The results have the layout of ``x`` without pending reductions. Equal entries
    keep their order, also if descending; nan counts as larger than all other values.

    Args:
        name: the function that the user called, for error messages.
        x: the tensor.
        dim: the dimension; negative ones count from the end.
        descending: True to sort the largest entries first.
        give: the results in their order: VALUES, INDICES or both.

    Returns:
        One tensor per entry of ``give``: the sorted values; the int64 positions from which they came.

    Raises:
        OutOfRange: If ``dim`` is out of range.
    """
    at = normalise_along_dim(name, x, dim)
    x = x.to(x.layout.reduced)
    sorting_layout = _choose_layout(x, at)
    results = _sort_op.results(
        x.to(sorting_layout), dim=at, descending=parse_flag("descending", descending), give=give
    )
    return tuple(result.to(x.layout) for result in results)


def _choose_layout(x: Tensor, dim: int) -> Layout:
    """Return the layout in which to sort: that of ``x``, or one that does not split ``dim``.

    To sort a split dim, a rank receives the samples of all rounds and the elements inside the last brackets (see
    :func:`choose_sampling`). If these are more elements than its largest block has along ``dim``, the axes of ``dim``
    split another dim further: the dim with the longest blocks, of equal ones the first. Its blocks must have at least
    as many elements along it as ``dim`` has blocks. Without such a dim, the layout of ``x`` remains. For example, a
    matrix [64, 64] split by rows over 8 ranks is sorted along the rows' dim in the layout that splits the columns.

    The layout of ``x`` is also returned if ``dim`` is not split, or the tensor has no elements.

    Args:
        x: the tensor; it must not be partial.
        dim: the dimension to sort along, not negative.
    """
    layout, shape = x.layout.canonical, x.shape
    axes = layout.dims[dim]
    block_count = layout.mesh.axis_size(*axes)
    if block_count == 1 or not math.prod(shape):
        return x.layout
    samples, rounds, within = choose_sampling(shape[dim], block_count, x.dtype.itemsize)
    block_shape = layout.largest_shape(shape)
    elements_for_cuts = rounds * block_count * samples + within
    elements_to_move = block_shape[dim]  # along ``dim``, to the other layout and back
    if elements_for_cuts <= elements_to_move:
        return x.layout
    long_dims = [d for d, n in enumerate(block_shape) if d != dim and n >= block_count]
    if not long_dims:
        return x.layout
    longest = max(long_dims, key=lambda d: block_shape[d])
    dims = list(layout.dims)
    dims[longest] += axes
    dims[dim] = ()
    return Layout(layout.mesh, dims)


@operator(_sort_op)
def sort(
    x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True, *, axis: int = -1
) -> Tensor:
    """Sort values along a dimension; the layout stays.

    If the dimension is split, ranks exchange samples to find exact cuts, and every element goes once to the rank
    whose block contains it. No rank ever stores more than its block. Nan counts as larger than all other values;
    complex numbers are ordered by their real parts first. The gradient of a value goes to the position the value came
    from.

    Args:
        x: the tensor.
        dim: the dimension; negative numbers count from the end. It may be split.
        descending: sort the largest values first.
        stable: accepted as in NumPy; equal values keep their order in any case.
        axis: another name of ``dim``.

    Returns:
        The sorted values in the shape and layout of ``x``.

    Raises:
        RuleError: If a dimension is out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.sort(v).full().tolist(), ops.argsort(v).full().tolist()
    ([1, 2, 3, 3], [1, 3, 0, 2])
    """
    return _sort_along("sort", x, dim, descending, (VALUES, INDICES) if x.requires_grad else (VALUES,))[0]


@operator(_sort_op)
def argsort(
    x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True, *, axis: int = -1
) -> Tensor:
    """Return the indices that sort a tensor along a dimension.

    Args:
        x: the tensor.
        dim: the dimension; negative numbers count from the end. It may be split.
        descending: largest first.
        stable: accepted as in NumPy; equal values keep their order in any case.
        axis: another name of ``dim``.

    Returns:
        int64 indices in the global dimension, in the shape and layout of ``x``. Of equal values the first one comes
        first.

    Raises:
        RuleError: If the dimension is out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.argsort(x).full().tolist()
    [[1, 2, 0], [2, 1, 0]]
    """
    return _sort_along("argsort", x.detach(), dim, descending, (INDICES,))[0]


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

    Returns:
        The sorted values, and the int64 indices of :func:`argsort`.

    Raises:
        RuleError: If the dimension is out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> values, places = ops.sort_with_indices(x)
    >>> values.full().tolist(), places.full().tolist()
    ([[1, 2, 3], [4, 5, 6]], [[1, 2, 0], [2, 1, 0]])
    """
    values, indices = _sort_along("sort_with_indices", x, dim, descending, (VALUES, INDICES))
    return values, indices
