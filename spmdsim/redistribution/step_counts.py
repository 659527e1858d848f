"""Count the elements and messages that ranks receive and send in a step.

A step takes as long as its busiest rank, so most functions count for the rank that receives or sends most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.core.layout import largest_block, split_block
from spmdsim.core.step import LOCAL_STEPS, REDUCING, Step, overlap, reduction_elements, volume
from spmdsim.redistribution.exchange.direct import count_sent
from spmdsim.redistribution.exchange.direct_reduction import DirectReduction
from spmdsim.redistribution.exchange.exchange_counts import (
    BusiestCounts,
    ExchangeCounts,
    busiest_counts,
    exchange_counts,
)
from spmdsim.redistribution.exchange.replica_shares import shared_transfers
from spmdsim.redistribution.grid import Ends, grid, piece_numbers, ranks_of
from spmdsim.redistribution.steps.counted_step import CountedStep

#: The largest number of ranks whose sent elements are counted one by one. In larger meshes, shares are assumed to be even.
LISTED = 1024


def largest_shard_shape(mesh: Mesh, dims: Sequence[Sequence[str]], shape: Sequence[int]) -> list[int]:
    """Return the shape of the largest shard of a split; the first block of each dimension is its largest.

    >>> largest_shard_shape(Mesh((2, 2), ("a", "b")), (("a", "b"), ()), (7, 3))
    [2, 3]
    """
    size_of = mesh.size_of
    return [largest_block(n, math.prod([size_of[axis] for axis in entry])) for n, entry in zip(shape, dims)]


def largest_shard(layout: Layout, shape: Sequence[int]) -> int:
    """Return the number of elements of the largest shard of a tensor with this global shape."""
    return math.prod(largest_shard_shape(layout.mesh, layout.dims, shape))


def count_most_received(step: Step) -> int:
    """Return the number of elements that the busiest rank receives in a step.

    * Local steps: 0. Counted steps: their own count.
    * Reductions: :func:`~spmdsim.core.step.reduction_elements` of the largest shard.
    * Other collectives between even shards: the target shard without the part that its rank owns already. With S
      elements per shard and g ranks in a group, they are S - S // g; an all_gather of 4 blocks of 2 elements gives
      8 - 2 = 6.
    * An uneven all_gather of one dimension: the largest target shard minus the smallest share of it.
    * Exchanges, and other uneven shards: counted rank by rank.
    """
    src, dst, shape, collective = step.src, step.dst, step.shape, step.collective
    if collective in LOCAL_STEPS:
        return 0
    if isinstance(step, CountedStep):
        return step.most_received
    if collective == "exchange":
        return _count_busiest(step).most_received
    members, shard = src.mesh.axis_size(*step.axes), largest_shard(dst, shape)
    if collective in REDUCING:
        return int(reduction_elements(collective, members, shard))
    if src.is_even(shape) and dst.is_even(shape):
        return shard - shard // members
    changed = [dim for dim, (before, after) in enumerate(zip(src.dims, dst.dims)) if before != after]
    if collective == "all_gather" and len(changed) == 1 and shard:
        # The rank with the largest block and the smallest share of it receives most, because blocks are balanced.
        size = largest_shard_shape(dst.mesh, dst.dims, shape)[changed[0]]
        return shard // size * (size - size // members)
    return _count_busiest(step).most_received


def list_step_splits(step: Step) -> Ends:
    """Return the splits of the layouts before and after a step; pending reductions are left out."""
    return Ends(step.src.mesh, step.src.dims, step.dst.mesh, step.dst.dims, step.shape)


def _count_busiest(step: Step) -> BusiestCounts | ExchangeCounts:
    """Return the counts of an exchange from which the busiest rank's numbers can be read."""
    return busiest_counts(list_step_splits(step))


def busiest_received(steps: Sequence[Step]) -> int:
    """Return the number of elements that the busiest rank receives over all steps together.

    It can be smaller than the sum of the steps' maxima, because different ranks can be the busiest ones. The sum is
    returned if it is exact: on one mesh with at most one step in which ranks may receive different numbers. It is 0
    without steps that send.
    """
    sending = [step for step in steps if step.collective not in LOCAL_STEPS]
    has_one_mesh = len({step.dst.mesh for step in sending}) < 2
    if len(sending) < 2 or (has_one_mesh and sum(not _is_equal_on_ranks(step) for step in sending) < 2):
        return sum(count_most_received(step) for step in sending)
    return int(all_received(sending).max())


def all_received(steps: Sequence[Step]) -> np.ndarray:
    """Return the number of elements that each rank receives over all steps, by rank number.

    The int64 array goes up to the largest rank number of the steps' meshes; ranks in no mesh receive 0. Without
    steps, it is ``[0]``.
    """
    ranks = [ranks_of(mesh).rank for step in steps for mesh in (step.src.mesh, step.dst.mesh)]
    total = np.zeros(1 + max([int(numbers.max(initial=0)) for numbers in ranks], default=0), np.int64)
    for step in steps:
        # Counts of a direct reduction are by rank number, those of other steps by position in the mesh.
        if isinstance(step, DirectReduction):
            counts = count_received(step)
            total[: len(counts)] += counts
        else:
            total[ranks_of(step.dst.mesh).rank] += count_received(step)
    return total


def _is_equal_on_ranks(step: Step) -> bool:
    """Return True if it is certain that all ranks receive equally many elements in a step.

    It is certain for collectives between even shards, for an all_reduce if the group's ranks divide the shard, too.
    False does not mean that the numbers differ: exchanges, counted steps and uneven shards are not examined.
    """
    if step.collective == "exchange" or isinstance(step, CountedStep):
        return False
    if not (step.src.is_even(step.shape) and step.dst.is_even(step.shape)):
        return False
    members = step.src.mesh.axis_size(*step.axes)
    return step.collective != "all_reduce" or largest_shard(step.dst, step.shape) % members == 0


def most_sent(step: Step) -> int:
    """Return the number of elements that the busiest rank sends in a step.

    On up to :data:`LISTED` (1024) ranks per mesh, all ranks are counted one by one. On more ranks:

    * Local steps: 0.
    * all_gather, reduce_scatter, all_to_all: what the rank with the largest shard sends.
    * all_reduce: as many as the busiest rank receives.
    * An exchange: replicas are assumed to send equal shares, and the mean is rounded up.
    * A counted step: what its busiest rank receives or sends, whichever is more.
    """
    if step.src.mesh.size <= LISTED and (step.collective != "exchange" or step.dst.mesh.size <= LISTED):
        return max(sent_nbytes(step, rank, 1) for rank in step.src.mesh.rank_list)
    if step.collective in LOCAL_STEPS:
        return 0
    if isinstance(step, CountedStep):
        return step.most_moved
    if step.collective == "exchange":
        return math.ceil(_count_busiest(step).most_sent)
    members, shard = step.src.mesh.axis_size(*step.axes), largest_shard(step.src, step.shape)
    if step.collective == "all_gather":
        return (members - 1) * shard
    if step.collective == "reduce_scatter":
        return (members - 1) * largest_shard(step.dst, step.shape)
    return count_most_received(step) if step.collective == "all_reduce" else shard - shard // members


def count_received(step: Step) -> np.ndarray:
    """Return the number of elements that each rank receives in a step, as an int64 array.

    The index is the position in the target mesh. Only for a direct reduction, in which source ranks receive addends,
    too, it is the rank number. Local steps give zeros. Reductions are counted as bandwidth-optimal algorithms
    (:func:`~spmdsim.core.step.reduction_elements`); so an all_reduce of 8 elements on 4 ranks gives 2 * 6 = 12 for
    each.
    """
    mesh = step.dst.mesh
    if step.collective in LOCAL_STEPS:
        return np.zeros(mesh.size, np.int64)
    if isinstance(step, CountedStep):
        return step.received_by_position
    if step.collective not in REDUCING:
        return exchange_counts(list_step_splits(step)).received
    members, shards = step.src.mesh.axis_size(*step.axes), grid(mesh, step.dst.dims, step.shape).volumes
    group_positions = group_numbers(mesh, step.axes) if step.collective == "all_reduce" else 0
    elements: np.ndarray = reduction_elements(step.collective, members, shards, group_positions)
    return elements


def group_numbers(mesh: Mesh, axes: Sequence[str]) -> np.ndarray:
    """Return, for each position of a mesh, the number of its rank in its group along ``axes``.

    The ranks of a group are numbered from 0 in the order of rank numbers, like in :meth:`Step.group_position`. A
    position is the row-major number of a rank in its mesh.

    >>> group_numbers(Mesh((2, 3), ("a", "b")), ("b",)).tolist()
    [0, 1, 2, 0, 1, 2]
    """
    if mesh.ranks is None:
        return piece_numbers(mesh, tuple(sorted(axes, key=mesh.axis_index)))
    groups = piece_numbers(mesh, tuple(axis for axis in mesh.axes if axis not in axes))
    numbers, members = np.empty(mesh.size, np.int64), mesh.axis_size(*axes)
    numbers[np.lexsort((np.asarray(mesh.ranks), groups))] = np.arange(mesh.size) % members
    return numbers


def step_messages(step: Step) -> int:
    """Return the number of messages that the busiest rank receives in a step.

    * Local steps, and collectives in which nothing is received: 0.
    * Exchanges and counted steps: counted message by message.
    * An all_reduce in groups of g ranks: 2 (g - 1), because it counts as a reduce_scatter and an all_gather.
    * Other collectives: g - 1, because each pair of ranks communicates directly.
    """
    if step.collective in LOCAL_STEPS:
        return 0
    if isinstance(step, CountedStep):
        return step.most_messages
    if step.collective == "exchange":
        ends = list_step_splits(step)
        return (shared_transfers(ends) or busiest_counts(ends)).most_messages
    members = step.src.mesh.axis_size(*step.axes)
    return (members - 1) * (2 if step.collective == "all_reduce" else 1) if count_most_received(step) else 0


def reduced_block(step: Step, rank: int) -> int:
    """Return the number of elements that ``rank`` reduces in an all_reduce.

    Each rank of a group reduces one block of the shard, as if the all_reduce were a reduce_scatter and an all_gather.
    The blocks are balanced: of 10 elements, 4 ranks reduce 3, 3, 2 and 2.

    Args:
        step: an all_reduce; other steps are not refused.
        rank: a rank of its mesh.
    """
    shard_size = math.prod(step.dst.local_shape(step.shape, rank))
    block_size: int = split_block(
        0, shard_size, step.src.mesh.axis_size(*step.axes), step.group_position(rank)
    )[1]
    return block_size


def sent_nbytes(step: Step, rank: int, itemsize: int) -> int:
    """Return the bytes that ``rank`` sends to other ranks in a step.

    It is 0 for local steps and ranks outside the source mesh. Otherwise, with g ranks in a group:

    * all_reduce: the bytes that the rank receives; it sends equally many;
    * all_gather: g - 1 times its shard;
    * reduce_scatter: the target blocks of the other ranks of its group;
    * all_to_all: its shard without the part that it keeps;
    * exchanges and counted steps: the sum of its messages.

    Args:
        step: the step.
        rank: the number of any rank.
        itemsize: the bytes of an element.
    """
    if isinstance(step, CountedStep):
        return itemsize * step.sent_elements(rank)
    if step.collective in LOCAL_STEPS or rank not in step.src.mesh:
        return 0
    if step.collective == "exchange":
        return itemsize * count_sent(step.src, step.dst, step.shape, (rank,))[0]
    if step.collective == "all_reduce":
        return step.nbytes(rank, itemsize)
    box = step.src.bounds(step.shape, rank)
    shard_size, members = volume(box), step.src.mesh.axis_size(*step.axes)
    if step.collective == "all_gather":
        return itemsize * (members - 1) * shard_size
    kept_box = overlap(box, step.dst.bounds(step.shape, rank))
    kept_size = 0 if kept_box is None else volume(kept_box)
    splits_all_axes = {*step.src.split_axes, *step.axes} == {*step.dst.split_axes}
    splits_shard = splits_all_axes and step.src.mesh == step.dst.mesh
    if step.collective != "reduce_scatter" or splits_shard:
        return itemsize * (shard_size - kept_size)
    if step.dst.is_even(step.shape):  # The blocks of the group cover only a part of the rank's shard.
        return itemsize * (members - 1) * kept_size
    peers = (member for member in step.group(rank) if member != rank)
    return itemsize * sum(math.prod(step.dst.local_shape(step.shape, member)) for member in peers)
