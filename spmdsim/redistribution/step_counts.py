"""How much a rank sends and receives in a step: of those that core does not run, and the other way of all."""

from __future__ import annotations

import math

from spmdsim.core.layout import split_block
from spmdsim.core.step import LOCAL_STEPS, RECEIVED_ELSEWHERE, Step, overlap, volume
from spmdsim.redistribution.group_steps import ScanStep, scan_traffic
from spmdsim.redistribution.halo import HaloStep, elements, sent

#: Up to so many ranks, what each of them sends is added up; in larger meshes shares are taken to be even.
LISTED = 1024


def received_in_exchange(step: Step, rank: int) -> int:
    """Elements of the target box that a rank does not hold, box by box or by their row-major numbers."""
    if rank not in step.dst.mesh:
        return 0
    if step.to_shape is not None:
        from spmdsim.redistribution.exchange.flat import flat_receives

        flat = flat_receives(step.src, step.dst, step.shape, step.to_shape, rank)
        return sum(t.count for t in flat if t.peer != rank)
    target = step.dst.bounds(step.shape, rank)
    own = overlap(step.src.bounds(step.shape, rank), target) if rank in step.src.mesh else None
    return volume(target) - (0 if own is None else volume(own))


def received_in_direct_reduction(step: Step, rank: int) -> int:
    """Elements that a rank receives, to add them up or added up already."""
    return _summed(step, rank, 0)


RECEIVED_ELSEWHERE["exchange"] = received_in_exchange
RECEIVED_ELSEWHERE["reduce_exchange"] = received_in_direct_reduction


def reduced_block(step: Step, rank: int) -> int:
    """Elements of the block that ``rank`` reduces in an all_reduce."""
    held = math.prod(step.dst.local_shape(step.shape, rank))
    number: int = split_block(0, held, step.src.mesh.axis_size(*step.axes), step.place(rank))[1]
    return number


def sent_nbytes(step: Step, rank: int, itemsize: int) -> int:
    """Bytes ``rank`` sends to others; reductions count as in :meth:`Step.nbytes`, the blocks going the other way."""
    if step.collective == "reduce_exchange":
        return itemsize * _summed(step, rank, 1)
    if step.collective in LOCAL_STEPS or rank not in step.src.mesh:
        return 0
    if isinstance(step, HaloStep):
        return itemsize * elements(sent(step, rank), rank)
    if isinstance(step, ScanStep):
        return itemsize * scan_traffic(step, rank, 1)
    if step.to_shape is not None:
        from spmdsim.redistribution.exchange.flat import flat_sends

        flat = flat_sends(step.src, step.dst, step.shape, step.to_shape, rank)
        return itemsize * sum(len(places) for peer, places in flat if peer != rank)
    if step.collective == "exchange":
        from spmdsim.redistribution.exchange.direct import sent_counts

        return itemsize * sent_counts(step.src, step.dst, step.shape, (rank,))[0]
    if step.collective == "all_reduce":
        return step.nbytes(rank, itemsize)
    box = step.src.bounds(step.shape, rank)
    held, members = volume(box), step.src.mesh.axis_size(*step.axes)
    if step.collective == "all_gather":
        return itemsize * (members - 1) * held
    own = overlap(box, step.dst.bounds(step.shape, rank))
    mine = 0 if own is None else volume(own)
    same = {*step.src.split_axes, *step.axes} == {*step.dst.split_axes}
    whole = same and step.src.mesh == step.dst.mesh
    if step.collective != "reduce_scatter" or whole:
        return itemsize * (held - mine)
    if step.dst.is_even(step.shape):  # the blocks are only a part of what is held
        return itemsize * (members - 1) * mine
    others = (member for member in step.group(rank) if member != rank)
    return itemsize * sum(math.prod(step.dst.local_shape(step.shape, member)) for member in others)


def _summed(step: Step, rank: int, side: int) -> int:
    """Elements that a rank receives (0) or sends (1) in a direct reduction."""
    from spmdsim.redistribution.exchange.direct_reduction import totals

    counts = totals(step.src, step.dst, step.shape)[side]
    return counts[rank] if rank < len(counts) else 0
