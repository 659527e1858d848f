"""The ways in which a rank can run a step on MPI, the bytes each needs besides the shards before and after, and a plan's peak.

Pure: they follow from the step, the element type and the tuning, equally on all members of a group where they
have to agree, so a plan can say without MPI what a step will need. The first is what the model says; ``worlds/mpi``
tries the others where a step repeats. All of them give the same numbers, unless it is asked for more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from spmdsim.core import Layout
from spmdsim.core.layout import Mesh
from spmdsim.core.step import LOCAL_STEPS, PLACING, REDUCING, Index, Step, within
from spmdsim.layout.element_type import accumulator, is_float, is_half
from spmdsim.redistribution.exchange.direct_reduction import scratch
from spmdsim.redistribution.group_steps import LISTED, ScanStep, sent_nbytes
from spmdsim.redistribution.halo import HaloStep, received, room_around, sent
from spmdsim.redistribution.ways.rank_transfers import (
    Blocks,
    RankTransfers,
    blocks,
    count_blocks,
    exchange_transfers,
    flat_offset,
    group_transfers,
    packed_side,
    row_count,
)
from spmdsim.redistribution.ways.tuning import NEVER, TABLE, Thresholds, Tuning

#: Groups larger than this exchange by messages to the actual peers only.
FEW_RANKS = 32
#: The steps that place boxes.
#: Elements that MPI can count in one message (an int).
MAX_COUNT = 2**31 - 1


@dataclass(frozen=True)
class Way:
    """How a rank runs a step.

    Args:
        name: the way; local steps have their own names.
        scratch: bytes of the buffers that it takes besides the shards before and after.
        fresh: whether the shard after is new memory, not the one before or a view of it.
        rows: rows of an all_gather that goes by rows.
        most: rows, or elements of each block, in one chunk of what goes in chunks.
        chunk: bytes of a chunk, where it goes in more than one.
        nanoseconds: by the model, as far as ways of one step differ.
    """

    name: str
    scratch: int = 0
    fresh: bool = True
    traffic: RankTransfers | None = None
    blocks: Blocks | None = None
    rows: int = 0
    most: int = 0
    chunk: int = 0
    nanoseconds: float = 0.0

    @property
    def label(self) -> str:
        """The name, with the chunks where there are any: it tells ways of one step apart."""
        return f"{self.name} by {self.chunk}" if self.chunk else self.name


def way_of(step: Step, rank: int, dtype: np.dtype, tuning: Tuning, count: int = MAX_COUNT) -> Way:
    """The way of one rank by the model; see :func:`ways_of`."""
    return ways_of(step, rank, dtype, tuning, count)[0]


def ways_of(
    step: Step, rank: int, dtype: np.dtype, tuning: Tuning, count: int = MAX_COUNT, reproducible: bool = True
) -> tuple[Way, ...]:
    """The ways of one rank, the best one first by the model.

    MPI can count ``count`` elements in one message. Reproducible: without those that reduce in another order than the first.
    """
    if rank not in step.src.mesh and rank not in step.dst.mesh:
        return (Way("nothing", fresh=False),)
    if not has_ways(step):
        return (_only_way(step, rank, dtype, tuning, count),)
    if step.collective in PLACING:
        return _placing_step(step, rank, dtype, tuning, count)
    return _reducing(step, rank, dtype, tuning, count, reproducible)


def has_ways(step: Step) -> bool:
    """Whether there are several ways of steps of this kind."""
    return step.to_shape is None and step.collective in (*PLACING, *REDUCING)


def _only_way(step: Step, rank: int, dtype: np.dtype, tuning: Tuning, count: int) -> Way:
    if isinstance(step, HaloStep):
        return Way("halo", _halo(step, rank) * dtype.itemsize)
    if step.collective in LOCAL_STEPS:
        return Way(step.collective, fresh=_is_new(step, rank))
    if step.to_shape is not None:
        return Way("numbered", _numbered(step, rank, dtype.itemsize))
    if step.collective == "reduce_exchange":
        return Way("summed", scratch(step.src, step.dst, step.shape, rank) * dtype.itemsize)
    assert isinstance(step, ScanStep)
    return _scanning(step, rank, dtype, tuning, count)


def _placing_step(step: Step, rank: int, dtype: np.dtype, tuning: Tuning, count: int) -> tuple[Way, ...]:
    traffic = (exchange_transfers if step.collective == "exchange" else group_transfers)(step, rank)
    if len(traffic.members) == 1 or 0 in step.shape:
        return (Way("same", fresh=False),)
    if step.collective == "exchange" and step.src.mesh.size == 1 and not step.dst.canonical.split_axes:
        return (Way("broadcast", fresh=rank != step.src.mesh.rank_at(0), traffic=traffic),)
    ways = _placing(step, traffic, dtype.itemsize, tuning, count)
    ways.sort(key=lambda way: (_asked_for(way, tuning), way.nanoseconds))
    return tuple(replace(way, traffic=traffic) for way in ways)


def _asked_for(way: Way, tuning: Tuning) -> int:
    """Where a way is among those that are asked for first; what is as good stays in its order."""
    return tuning.first.index(way.name) if way.name in tuning.first else len(tuning.first)


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


def _placing(step: Step, traffic: RankTransfers, itemsize: int, tuning: Tuning, count: int) -> list[Way]:
    """The ways to place boxes. What they take is said of the largest shard, which all members know."""
    size, nbytes = len(traffic.members), traffic.largest * itemsize
    wire = nbytes * tuning.copy / 1000
    messages = Way("messages", _apart(traffic) * itemsize, nanoseconds=wire + 4 * size * tuning.call)
    if traffic.largest > count or (traffic.gathered is None and size > FEW_RANKS):
        return [messages]
    if traffic.gathered is not None:
        return _gathering(step, traffic, itemsize, tuning)
    if traffic.swapped:
        swap = Way("swap", nanoseconds=wire + tuning.call)
        return [swap, messages, *_scheduled(step, "pairwise", 3 * wire, size, tuning)]
    share = (size - 1) / size
    typed = Way("typed", nanoseconds=wire + size * tuning.call + nbytes * tuning.typed / 1000)
    sides = (
        packed_side(traffic.sends, traffic.source, size),
        packed_side(traffic.receives, traffic.target, size),
    )
    copies = (2 * share + 1 / size) * nbytes * tuning.copy / 1000
    packed = Way(
        "packed",
        sum(0 if side.direct else side.total for side in sides) * itemsize,
        nanoseconds=wire + size * tuning.call + copies + (2 * size - 1) * tuning.piece,
    )
    messages = replace(messages, nanoseconds=messages.nanoseconds + copies + size * tuning.piece)
    return [typed, packed, messages]


def _scheduled(step: Step, algorithm: str, moves: float, size: int, tuning: Tuning) -> list[Way]:
    """An emulated schedule: vectors are packed and unpacked, and each round is many calls of Python's."""
    if step.collective == "exchange":
        return []
    return [Way(f"schedule {algorithm}", nanoseconds=moves + (size - 1) * 20 * tuning.call)]


def threshold(table: Thresholds, ranks: int) -> int:
    """Bytes from which the alternative pays for a group of this size.

    >>> threshold(((2, 10), (8, 30)), 6), threshold(((2, 10), (8, 30)), 1) == NEVER
    (10, True)
    """
    best = NEVER
    for count, nbytes in table:
        if count <= ranks:
            best = nbytes
    return best


def _gathering(step: Step, traffic: RankTransfers, itemsize: int, tuning: Tuning) -> list[Way]:
    assert traffic.gathered is not None
    size, nbytes = len(traffic.members), traffic.largest * itemsize
    copy, call = nbytes * tuning.copy / 1000, tuning.call
    schedules = _scheduled(step, "ring", 3 * copy, size, tuning) if None not in traffic.gathered else []
    if all(index is None or flat_offset(traffic.target, index) is not None for index in traffic.gathered):
        gather = Way("gather", nanoseconds=copy + call)
        return [gather, Way("messages", nanoseconds=copy + 4 * size * call), *schedules]
    types = copy + nbytes * tuning.typed / 1000
    typed = Way("typed", nanoseconds=types + size * call)
    unpack = Way(
        "gather, unpack",
        math.prod(traffic.target) * itemsize,
        nanoseconds=2 * copy + call + size * tuning.piece,
    )
    rows = row_count(traffic)
    if rows is None:
        return [unpack, typed]
    row = size * (math.prod(traffic.source) // rows)
    chunked: dict[int, Way] = {}
    for chunk in _chunks(threshold(tuning.chunk, size)):
        most = max(1, min(rows, chunk // (row * itemsize)))
        scratch, parts = most * row * itemsize, -(-rows // most)
        takes = (2.2 if chunked else 2) * copy + parts * (call + tuning.piece)
        one = Way("gather rows", scratch, rows=rows, most=most, nanoseconds=takes)
        chunked.setdefault(most, replace(one, chunk=scratch if parts > 1 else 0))
    return [*chunked.values(), Way("gather typed", nanoseconds=types + call), typed, *schedules]


def _chunks(usual: int) -> tuple[int, ...]:
    """Bytes of chunks that are tried, the usual ones first: small ones stay in cache, large ones are few."""
    return usual, usual // 4, 4 * usual


def _halo(step: HaloStep, rank: int) -> int:
    """Elements that are packed, or land, besides: those of a neighbour which are no contiguous piece where they are."""
    source, target = (layout.local_shape(step.shape, rank) for layout in (step.src, step.dst))
    room = room_around(step, rank)
    total = 0 if room is None else math.prod(room.shape) - math.prod(target)
    for peer, pieces in sent(step, rank):
        if peer != rank and (len(pieces) > 1 or not _is_flat(source, pieces[0].source)):
            total += sum(piece.size for piece in pieces)
    for peer, pieces in received(step, rank):
        if peer != rank and (
            step.back or room or len(pieces) > 1 or flat_offset(target, pieces[0].target) is None
        ):
            total += sum(piece.size for piece in pieces)
    return total


def _is_flat(shape: tuple[int, ...], index: Index) -> bool:
    """Whether a box is contiguous in an array, and read in its order."""
    return all(part.step in (None, 1) for part in index) and flat_offset(shape, index) is not None


def _apart(traffic: RankTransfers) -> int:
    """Elements of the boxes that are not contiguous where they are."""
    sides = (traffic.sends, traffic.source), (traffic.receives, traffic.target)
    boxes = [(shape, piece) for pieces, shape in sides for piece in pieces]
    return sum([piece.count for shape, piece in boxes if flat_offset(shape, piece.index) is None])


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


def _reducing(
    step: Step, rank: int, dtype: np.dtype, tuning: Tuning, count: int, reproducible: bool
) -> tuple[Way, ...]:
    """The tables decide whether MPI's own reduction is taken, since it may add up in another order."""
    size = step.src.mesh.axis_size(*step.axes)
    shape = step.src.local_shape(step.shape, rank)
    if size == 1 or 0 in shape:
        return (Way("same", fresh=False),)
    layout = None
    if step.collective == "reduce_scatter":
        listed = size <= LISTED
        layout = blocks(step, tuple(sorted(step.group(rank))), rank) if listed else count_blocks(step, rank)
        ways = _scattering(step.op, dtype, layout, size, tuning, count)
    else:
        ways = _reducing_all(step.op, dtype, math.prod(shape), size, tuning, count)
    free = _order_free(step.op, dtype, size)
    if not free and not _in_one_order(step.src.mesh, size):
        ways = [way for way in ways if way.name != "native"]
    usual, free = ways[0], free or not reproducible
    ways = [way for way in ways if free or (way.name == "native") == (usual.name == "native")]
    ways.sort(key=lambda way: _asked_for(way, tuning))
    return tuple(replace(way, blocks=layout) for way in ways)


def _order_free(op: str | None, dtype: np.dtype, size: int) -> bool:
    """Whether a reduction comes to the same in all orders: of two operands, of integers, of the largest."""
    exact = dtype.kind in "iub" or op in ("max", "min")
    return (exact and op != "avg") or (size == 2 and (op == "sum" or (op == "prod" and dtype.kind == "f")))


def _in_one_order(mesh: Mesh, size: int) -> bool:
    """Whether MPI, which adds in the order of its ranks, adds in one order for all groups of a size, and so for replicas."""
    return mesh.ranks is None or size == mesh.size or all(one < other for one, other in pairwise(mesh.ranks))


def _scanning(step: ScanStep, rank: int, dtype: np.dtype, tuning: Tuning, count: int) -> Way:
    """The arrays of all to all where they are few, or not in the order of the ranks, or MPI cannot add them."""
    order, nbytes = step.order(rank), step.held(rank) * dtype.itemsize
    if len(order) == 1:
        return Way("identity")
    large = nbytes * len(order) > tuning.gather_reduce and step.held(rank) <= count
    ordered = order == tuple(sorted(order)) and (
        _order_free(step.op, dtype, len(order)) or _in_one_order(step.src.mesh, len(order))
    )
    if large and ordered and in_library(step.op, dtype):
        return Way("scan")
    wider = (
        step.held(rank) * _wider(step.op, dtype) if order.index(rank) > 1 else 0
    )  # else there is nothing to add
    return Way("scan gathered", nbytes * len(order) + wider)


def _reducing_all(
    op: str | None, dtype: np.dtype, held: int, size: int, tuning: Tuning, count: int
) -> list[Way]:
    """The ways, the usual one first."""
    nbytes, wider = held * dtype.itemsize, _wider(op, dtype)
    library, small = in_library(op, dtype), nbytes * size <= tuning.gather_reduce
    native, gathered = Way("native"), Way("gathered", nbytes * size + held * wider)
    each = size * dtype.itemsize + wider
    ways = _composed(dtype, size, tuning, min(count, held), -(-held // size), lambda most: (most + 1) * each)
    ways = [gathered, *ways] if small else ways
    if not library:
        return ways
    return [native, *ways] if nbytes < threshold(tuning.compose_all_reduce, size) else [*ways, native]


def _scattering(
    op: str | None, dtype: np.dtype, layout: Blocks, size: int, tuning: Tuning, count: int
) -> list[Way]:
    """The ways, the usual one first."""
    total, mine = sum(layout.counts), math.prod(layout.target)
    nbytes, wider = total * dtype.itemsize, _wider(op, dtype)
    each, packed = size * dtype.itemsize + wider, 0 if layout.direct else nbytes
    block = max(layout.counts)
    ordered = _composed(dtype, size, tuning, count, block, lambda most: min(most, mine) * each + packed)
    equal = layout.direct and layout.packed and len(set(layout.counts)) == 1
    if equal and not wider and total <= count:
        small = Way("small", nbytes)
        ordered = [small, *ordered] if nbytes <= tuning.small_block * size else [*ordered, small]
    if not in_library(op, dtype) or total > count:
        return ordered
    native = Way("native", 0 if layout.direct and layout.packed else nbytes)
    large = nbytes >= threshold(tuning.compose_reduce_scatter, size)
    return [*ordered, native] if large else [native, *ordered]


def _composed(
    dtype: np.dtype, size: int, tuning: Tuning, count: int, block: int, scratch: Callable[[int], int]
) -> list[Way]:
    """The ways that exchange blocks and reduce them, in chunks of several sizes."""
    ways: dict[int, Way] = {}
    for chunk in _chunks(threshold(tuning.chunk, size)):
        most = chunk_elements(chunk, dtype.itemsize, size, count)
        nbytes = most * size * dtype.itemsize if most < block else 0
        ways.setdefault(nbytes, Way("composed", scratch(most), most=most, chunk=nbytes))
    return [*ways.values()]


def _wider(op: str | None, dtype: np.dtype) -> int:
    """Bytes of an element in which sums of narrower ones add up; 0 if they add up in their own type."""
    kind = accumulator(op, dtype)
    return 0 if kind == dtype else kind.itemsize


#: Up to so many ranks each one is asked; of more, a mesh's first: balanced splits give it the most.
ASKED = 64


def step_memory(
    step: Step, rank: int, dtype: np.dtype, tuning: Tuning = TABLE["Open MPI"]
) -> tuple[int, int]:
    """Bytes that a rank of ``MPIWorld`` takes in a step.

    Those of the shard after the step, 0 if it is the one before or a view of it; and of the buffers in which values are
    packed, or land, besides; those of an all_gather are left out in groups of more than 1,024.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2,), ("x",))
    >>> step = Step("all_gather", ("x",), mesh(None, "x"), mesh(None, None), (512, 512))
    >>> step_memory(step, 0, np.dtype("float32"))
    (1048576, 1048576)
    """
    held = math.prod(step.dst.local_shape(step.shape_after, rank)) if rank in step.dst.mesh else 0
    if step.axes and step.src.mesh.axis_size(*step.axes) > LISTED:
        if step.collective == "all_gather":
            return held * dtype.itemsize, 0
        if step.collective == "all_to_all":  # by the same messages
            step = replace(step, collective="exchange", axes=())
    way = way_of(step, rank, dtype, tuning)
    return held * dtype.itemsize if way.fresh else 0, way.scratch


def step_buffer(step: Step, dtype: np.dtype) -> int:
    """Bytes that a step takes on the rank that takes most: see :func:`step_memory`."""
    return max(sum(step_memory(step, rank, dtype)) for rank in _ranks([step]))


def plan_peak(steps: Sequence[Step], held: np.dtype, dtype: np.dtype) -> int:
    """Bytes held at most on the rank that holds most while steps run, the shard before them included.

    They run in the type ``held``, and the result is rounded to ``dtype`` in the end. A shard in between is forgotten
    once the next one is there; the first stays its owner's.
    """
    return max(_peak(steps, rank, held, dtype) for rank in _ranks(steps))


def _peak(steps: Sequence[Step], rank: int, held: np.dtype, dtype: np.dtype) -> int:
    start = _held(steps[0].src, steps[0].shape, rank) * held.itemsize
    before, most = 0, start
    for step in steps:
        after, scratch = step_memory(step, rank, held)
        most = max(most, start + before + after + scratch)
        before = after or before
    if held != dtype:
        last = _held(steps[-1].dst, steps[-1].shape_after, rank) * dtype.itemsize
        most = max(most, start + before + last)
    return most


def _held(layout: Layout, shape: tuple[int, ...], rank: int) -> int:
    return math.prod(layout.local_shape(shape, rank)) if rank in layout.mesh else 0


def _ranks(steps: Sequence[Step]) -> set[int]:
    meshes = {mesh: None for step in steps for mesh in (step.src.mesh, step.dst.mesh)}
    all_of_them = all(mesh.size <= ASKED for mesh in meshes)
    return {rank for mesh in meshes for rank in (mesh.rank_list if all_of_them else (mesh.rank_at(0),))}
