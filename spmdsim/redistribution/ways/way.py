"""Which way a rank takes for a step on MPI, and the bytes it needs besides the shards before and after.

Pure: it follows from the step, the element type and the tuning, equally on all members of a group where they
have to agree, so a plan can say without MPI what a step will need. ``worlds/mpi`` runs the way it is told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from spmdsim.core.step import LOCAL_STEPS, Index, Step, within
from spmdsim.layout.element_type import accumulator, is_float, is_half
from spmdsim.redistribution.exchange.direct_reduction import scratch
from spmdsim.redistribution.exclusive_scan import ScanStep
from spmdsim.redistribution.halo import HaloStep, received, sent
from spmdsim.redistribution.step_counts import sent_nbytes
from spmdsim.redistribution.ways.rank_transfers import (
    Blocks,
    MemberBox,
    RankTransfers,
    blocks,
    exchange_transfers,
    flat_offset,
    group_transfers,
    packed_side,
    row_count,
)
from spmdsim.redistribution.ways.tuning import Tuning, threshold

#: Groups larger than this exchange by messages to the actual peers only.
FEW_RANKS = 32
#: Elements that MPI can count in one message (an int).
MAX_COUNT = 2**31 - 1


@dataclass(frozen=True)
class Way:
    """How a rank runs a step.

    Args:
        name: the way; local steps have their own names.
        scratch: bytes of the buffers that it takes besides the shards before and after.
        fresh: whether the shard after is new memory, not the one before or a view of it.
        traffic: the boxes it sends and receives, if it places any.
        blocks: the blocks of a reduce_scatter.
        rows: rows of an all_gather that goes by rows.
        most: rows, or elements of each block, in one chunk of what goes in chunks.
    """

    name: str
    scratch: int = 0
    fresh: bool = True
    traffic: RankTransfers | None = None
    blocks: Blocks | None = None
    rows: int = 0
    most: int = 0


def way_of(step: Step, rank: int, dtype: np.dtype, tuning: Tuning, count: int = MAX_COUNT) -> Way:
    """The way of one rank.

    Args:
        step: the step.
        rank: the rank.
        dtype: type of the elements.
        tuning: the choices for the MPI library.
        count: elements that MPI can count in one message.
    """
    if rank not in step.src.mesh and rank not in step.dst.mesh:
        return Way("nothing", fresh=False)
    if isinstance(step, HaloStep):
        return Way("halo", _halo(step, rank) * dtype.itemsize)
    if step.collective in LOCAL_STEPS:
        return Way(step.collective, fresh=_is_new(step, rank))
    if step.to_shape is not None:
        return Way("numbered", _numbered(step, rank, dtype.itemsize))
    if step.collective == "reduce_exchange":
        return Way("summed", scratch(step.src, step.dst, step.shape, rank) * dtype.itemsize)
    if step.collective in ("all_reduce", "reduce_scatter"):
        return _reducing(step, rank, dtype, tuning, count)
    if isinstance(step, ScanStep):
        return _scanning(step, rank, dtype, tuning, count)
    traffic = (exchange_transfers if step.collective == "exchange" else group_transfers)(step, rank)
    if len(traffic.members) == 1 or 0 in step.shape:
        return Way("same", fresh=False)
    if step.collective == "exchange" and step.src.mesh.size == 1 and not step.dst.canonical.split_axes:
        return Way("broadcast", fresh=rank != step.src.mesh.rank_at(0), traffic=traffic)
    return replace(_placing(traffic, dtype.itemsize, tuning, count), traffic=traffic)


def _is_new(step: Step, rank: int) -> bool:
    """Whether a local step makes new memory on this rank; a fill does so on all ranks but those that keep values."""
    if step.collective == "reshape":
        return False
    source, target = step.src.bounds(step.shape, rank), step.dst.bounds(step.shape, rank)
    if step.collective == "fill":
        return source != target or step.op != "avg"
    before = tuple(stop - start for start, stop in source)
    return source != target and flat_offset(before, within(target, source)) is None


def _numbered(step: Step, rank: int, itemsize: int) -> int:
    """Elements packed, landed and set aside, and the numbers of those that travel, which are kept."""
    travel = sent_nbytes(step, rank, 1) + step.nbytes(rank, 1)
    held = math.prod(step.dst.local_shape(step.shape_after, rank)) if rank in step.dst.mesh else 0
    stays = held - step.nbytes(rank, 1)
    return (travel + stays) * itemsize + travel * np.dtype(np.int64).itemsize


# -- placing --------------------------------------------------------------------------------------------


def _placing(traffic: RankTransfers, itemsize: int, tuning: Tuning, count: int) -> Way:
    """The fastest way to place boxes."""
    size = len(traffic.members)
    if traffic.largest > count or (traffic.gathered is None and size > FEW_RANKS):
        return Way("messages", _apart(traffic) * itemsize)
    if traffic.gathered is not None:
        return _gathering(traffic, itemsize, tuning)
    if traffic.swapped:
        return Way("swap")
    if size >= tuning.types or traffic.largest * itemsize < tuning.small_types:
        return Way("typed")
    sides = (
        packed_side(traffic.sends, traffic.source, size),
        packed_side(traffic.receives, traffic.target, size),
    )
    return Way("packed", sum(0 if side.direct else side.total for side in sides) * itemsize)


def _gathering(traffic: RankTransfers, itemsize: int, tuning: Tuning) -> Way:
    assert traffic.gathered is not None
    if all(index is None or flat_offset(traffic.target, index) is not None for index in traffic.gathered):
        return Way("gather")
    rows, size = row_count(traffic), len(traffic.members)
    if rows is None:
        landing = sum(MemberBox(0, index).count for index in traffic.gathered if index is not None)
        return Way("gather, unpack", landing * itemsize)
    if traffic.largest * itemsize < tuning.gather_types:
        return Way("gather typed")
    row = size * (math.prod(traffic.source) // rows)
    most = max(1, min(rows, threshold(tuning.chunk, size) // (row * itemsize)))
    return Way("gather rows", most * row * itemsize, rows=rows, most=most)


def _halo(step: HaloStep, rank: int) -> int:
    """Elements that are packed, or land, besides: those of a neighbour which are no contiguous piece where they are."""
    source, target = (layout.local_shape(step.shape, rank) for layout in (step.src, step.dst))
    total = 0
    for peer, pieces in sent(step, rank):
        if peer != rank and (len(pieces) > 1 or not _is_flat(source, pieces[0].source)):
            total += sum(piece.size for piece in pieces)
    for peer, pieces in received(step, rank):
        if peer != rank and (step.back or len(pieces) > 1 or flat_offset(target, pieces[0].target) is None):
            total += sum(piece.size for piece in pieces)
    return total


def _is_flat(shape: tuple[int, ...], index: Index) -> bool:
    """Whether a box is contiguous in an array, and read in its order."""
    return all(part.step in (None, 1) for part in index) and flat_offset(shape, index) is not None


def _apart(traffic: RankTransfers) -> int:
    """Elements of the boxes that are not contiguous where they are."""
    sides = (traffic.sends, traffic.source), (traffic.receives, traffic.target)
    return sum(
        piece.count for pieces, shape in sides for piece in pieces if flat_offset(shape, piece.index) is None
    )


# -- reducing -------------------------------------------------------------------------------------------


def in_library(op: str | None, dtype: np.dtype) -> bool:
    """Whether MPI's own reduction does the same as numpy's; else ranks reduce themselves.

    Floats of 16 bits are accumulated in float32, which MPI does not do (nor knows bfloat16), and its MAX of a
    NaN depends on the order of the operands while numpy's is NaN. Sums of 8- and 16-bit integers wrap around in
    numpy, but saturate in Open MPI where its vector units add them, that is, depending on the length.
    """
    if dtype.kind in "iu" and dtype.itemsize <= 2 and op in ("sum", "prod"):
        return False
    return not (is_half(dtype) or (is_float(dtype) and op in ("max", "min")))


def chunk_elements(chunk: int, itemsize: int, size: int, count: int) -> int:
    """Elements of every block in one chunk of a composed reduction."""
    return max(min(chunk // itemsize, count) // size, 1)


def _reducing(step: Step, rank: int, dtype: np.dtype, tuning: Tuning, count: int) -> Way:
    members = tuple(sorted(step.group(rank)))
    shape = step.src.local_shape(step.shape, rank)
    if len(members) == 1 or 0 in shape:
        return Way("same", fresh=False)
    if step.collective == "reduce_scatter":
        layout = blocks(step, members, rank)
        return replace(_scattering(step.op, dtype, layout, len(members), tuning, count), blocks=layout)
    return _reducing_all(step.op, dtype, math.prod(shape), len(members), tuning, count)


def _scanning(step: ScanStep, rank: int, dtype: np.dtype, tuning: Tuning, count: int) -> Way:
    """The arrays of all to all where they are few, or not in the order of the ranks, or MPI cannot add them."""
    order, nbytes = step.order(rank), step.held(rank) * dtype.itemsize
    if len(order) == 1:
        return Way("identity")
    large = nbytes * len(order) > tuning.gather_reduce and step.held(rank) <= count
    if large and in_library(step.op, dtype) and order == tuple(sorted(order)):
        return Way("scan")
    wider = (
        step.held(rank) * _wider(step.op, dtype) if order.index(rank) > 1 else 0
    )  # else there is nothing to add
    return Way("scan gathered", nbytes * len(order) + wider)


def _reducing_all(op: str | None, dtype: np.dtype, held: int, size: int, tuning: Tuning, count: int) -> Way:
    nbytes, wider = held * dtype.itemsize, _wider(op, dtype)
    if in_library(op, dtype) and nbytes < threshold(tuning.compose_all_reduce, size):
        return Way("native")
    if nbytes * size <= tuning.gather_reduce:
        return Way("gathered", nbytes * size + held * wider)
    most = chunk_elements(threshold(tuning.chunk, size), dtype.itemsize, size, min(count, held))
    return Way("composed", (most + 1) * (size * dtype.itemsize + wider), most=most)


def _scattering(
    op: str | None, dtype: np.dtype, layout: Blocks, size: int, tuning: Tuning, count: int
) -> Way:
    total, mine = sum(layout.counts), math.prod(layout.target)
    nbytes, wider = total * dtype.itemsize, _wider(op, dtype)
    large = nbytes >= threshold(tuning.compose_reduce_scatter, size)
    if in_library(op, dtype) and not large and total <= count:
        return Way("native", 0 if layout.direct and layout.packed else nbytes)
    equal = layout.direct and layout.packed and len(set(layout.counts)) == 1
    if equal and nbytes <= tuning.small_block * size and not wider:
        return Way("small", nbytes)
    most = chunk_elements(threshold(tuning.chunk, size), dtype.itemsize, size, count)
    landing = min(most, mine) * (size * dtype.itemsize + wider)
    return Way("composed", landing + (0 if layout.direct else nbytes), most=most)


def _wider(op: str | None, dtype: np.dtype) -> int:
    """Bytes of an element in which sums of narrower ones add up; 0 if they add up in their own type."""
    kind = accumulator(op, dtype)
    return 0 if kind == dtype else kind.itemsize
