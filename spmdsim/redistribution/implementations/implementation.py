"""The implementations of a step on MPI: their names, prices and buffers. A plan's peak memory follows from them.

An implementation follows from the step, the element type and the tuning. All members of a group derive equal lists,
so a plan knows without MPI what a step needs. The model's choice is the first; `worlds/mpi` tries the others when a
step repeats. All implementations give equal numbers, unless the world has `reproducible=False`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from spmdsim.core import Layout
from spmdsim.core.layout import Mesh
from spmdsim.core.step import LOCAL_STEPS, PLACING, REDUCING, Index, Step, within
from spmdsim.cost.node_map import NodeMap
from spmdsim.cost.port_load import has_shared_ports
from spmdsim.layout.element_type import accumulator, is_float, is_half
from spmdsim.redistribution.exchange.direct_reduction import peak_buffer_elements
from spmdsim.redistribution.implementations.rank_transfers import (
    Blocks,
    RankTransfers,
    arrange_side,
    count_blocks,
    count_rows,
    exchange_transfers,
    flat_offset,
    group_transfers,
    list_blocks,
)
from spmdsim.redistribution.implementations.tuning import NEVER, TABLE, Thresholds, Tuning
from spmdsim.redistribution.step_counts import LISTED, sent_nbytes
from spmdsim.redistribution.steps.group_steps import ScanStep
from spmdsim.redistribution.steps.halo import HaloStep, padded_buffer, received_boxes, sent_boxes

#: The largest group that exchanges by collectives. Larger groups send messages to the actual peers only.
FEW_RANKS = 32
#: The number of elements that MPI can count in one message (an int).
MAX_COUNT = 2**31 - 1


@dataclass(frozen=True)
class Implementation:
    """Implementation of a step, seen from one rank.

    Args:
        name: its name; local steps have their own names.
        scratch: bytes of its buffers besides the shards before and after.
        fresh: True if the shard after is new memory, False if it is the shard before or a view of it.
        traffic: the boxes that a placing step moves, or None.
        blocks: the blocks of a reduce_scatter, or None.
        rows: the number of rows of an all_gather in chunks of rows.
        most: the number of rows, or of elements of each block, in one chunk.
        nanoseconds: the model's price. It leaves out costs that all implementations of a step share.
    """

    name: str
    scratch: int = 0
    fresh: bool = True
    traffic: RankTransfers | None = None
    blocks: Blocks | None = None
    rows: int = 0
    most: int = 0
    nanoseconds: float = 0.0


def implementation_of(
    step: Step,
    rank: int,
    dtype: np.dtype,
    tuning: Tuning,
    count: int = MAX_COUNT,
    nodes: NodeMap | None = None,
) -> Implementation:
    """Return the implementation that the model chooses for one rank; see :func:`implementations_of`."""
    return implementations_of(step, rank, dtype, tuning, count, nodes=nodes)[0]


def implementations_of(
    step: Step,
    rank: int,
    dtype: np.dtype,
    tuning: Tuning,
    count: int = MAX_COUNT,
    reproducible: bool = True,
    nodes: NodeMap | None = None,
) -> tuple[Implementation, ...]:
    """Return the implementations of a step for one rank, at most three, the model's choice first.

    All members of a group get equal names in equal order. A rank outside of both meshes gets one implementation,
    named "nothing".

    Args:
        step: the step.
        rank: the rank.
        dtype: the element type.
        tuning: the choices for the MPI library.
        count: the number of elements that MPI can count in one message.
        reproducible: True to leave out implementations whose order of operands differs from the first one's, if the
            order can change the result.
        nodes: the node of each rank; None for one node.
    """
    if rank not in step.src.mesh and rank not in step.dst.mesh:
        return (Implementation("nothing", fresh=False),)
    if not has_implementations(step):
        return (_single_implementation(step, rank, dtype, tuning, count),)
    if step.collective in PLACING:
        return _list_placing(step, rank, dtype, tuning, count)
    if (
        step.collective == "all_reduce"
        and nodes is not None
        and has_shared_ports(nodes, step.src.mesh, step.axes)
    ):
        tuning = replace(tuning, compose_all_reduce=tuning.compose_on_nodes)
    return _list_reductions(step, rank, dtype, tuning, count, reproducible)


def has_implementations(step: Step) -> bool:
    """Return True if steps of this kind can have several implementations."""
    return step.to_shape is None and step.collective in (*PLACING, *REDUCING)


def _single_implementation(
    step: Step, rank: int, dtype: np.dtype, tuning: Tuning, count: int
) -> Implementation:
    """Return the implementation of a step that has only one.

    ==================  ===========================  ============================================
    step                name                         memory
    ==================  ===========================  ============================================
    halo                "halo"                       bytes of its buffer
    local               the collective's name        none; ``fresh`` is False if a view suffices
    reshaping           "numbered"                   bytes of its buffers
    direct reduction    "summed"                     peak bytes of its buffers
    scan                see :func:`_choose_scan`     see :func:`_choose_scan`
    ==================  ===========================  ============================================

    Args:
        step: a step for which :func:`has_implementations` is False.
        rank: a rank of one of its meshes.
        dtype: the element type.
        tuning: the choices for the MPI library; only a scan reads them.
        count: the number of elements that MPI can count in one message; only a scan reads it.
    """
    if isinstance(step, HaloStep):
        return Implementation("halo", _count_halo_buffer(step, rank) * dtype.itemsize)
    if step.collective in LOCAL_STEPS:
        return Implementation(step.collective, fresh=_needs_memory(step, rank))
    if step.to_shape is not None:
        return Implementation("numbered", _numbered_bytes(step, rank, dtype.itemsize))
    if step.collective == "reduce_exchange":
        return Implementation(
            "summed", peak_buffer_elements(step.src, step.dst, step.shape, rank) * dtype.itemsize
        )
    assert isinstance(step, ScanStep)
    return _choose_scan(step, rank, dtype, tuning, count)


def _list_placing(
    step: Step, rank: int, dtype: np.dtype, tuning: Tuning, count: int
) -> tuple[Implementation, ...]:
    """Return the implementations of an exchange, all_gather or all_to_all, preferred first.

    The implementations that ``tuning.first`` names come first, then the others by increasing price in nanoseconds. Two
    cases have a single implementation:

    * "same" if the group has one rank or the tensor is empty;
    * "broadcast" if, in an exchange, one rank owns the source and the target is replicated.

    Args:
        step: the step.
        rank: a rank of one of its meshes.
        dtype: the element type.
        tuning: the choices for the MPI library.
        count: the number of elements that MPI can count in one message; a larger shard is sent by "messages" only.
    """
    traffic = (exchange_transfers if step.collective == "exchange" else group_transfers)(step, rank)
    if len(traffic.members) == 1 or 0 in step.shape:
        return (Implementation("same", fresh=False),)
    if step.collective == "exchange" and step.src.mesh.size == 1 and not step.dst.canonical.split_axes:
        return (Implementation("broadcast", fresh=rank != step.src.mesh.rank_at(0), traffic=traffic),)
    placing = _price_placing(traffic, dtype.itemsize, tuning, count)
    placing.sort(key=lambda candidate: (_preference(candidate, tuning), candidate.nanoseconds))
    return tuple(replace(candidate, traffic=traffic) for candidate in placing)


def _preference(implementation: Implementation, tuning: Tuning) -> int:
    """Return the index of an implementation in the list `tuning.first`, or the length of the list."""
    first = tuning.first
    return first.index(implementation.name) if implementation.name in first else len(first)


def _needs_memory(step: Step, rank: int) -> bool:
    """Return True if a local step counts as new memory on this rank.

    - A reshape needs none.
    - A fill counts, also on the replica that keeps its values without a copy. Only an average whose source and target
      box are equal does not.
    - Another step, such as a slice, counts if the target box is not contiguous in the source box. Otherwise a view is
      enough.
    """
    if step.collective == "reshape":
        return False
    source, target = step.src.bounds(step.shape, rank), step.dst.bounds(step.shape, rank)
    if step.collective == "fill":
        return source != target or step.op != "avg"
    source_shape = tuple(stop - start for start, stop in source)
    return source != target and flat_offset(source_shape, within(target, source)) is None


def _numbered_bytes(step: Step, rank: int, itemsize: int) -> int:
    """Return the bytes of the buffers of an exchange by element numbers.

    There is an element for each one that the rank sends, receives or keeps. For those that it sends or receives there
    is an int64 number, too.
    """
    travel = sent_nbytes(step, rank, 1) + step.nbytes(rank, 1)
    kept_size = _shard_size(step.dst, step.shape_after, rank) - step.nbytes(rank, 1)
    return (travel + kept_size) * itemsize + travel * np.dtype(np.int64).itemsize


# -- placing --------------------------------------------------------------------------------------------


def _price_placing(traffic: RankTransfers, itemsize: int, tuning: Tuning, count: int) -> list[Implementation]:
    """Return the implementations of a step that moves boxes, with prices in nanoseconds.

    The first case that holds counts:

    * A shard has more than ``count`` elements, or a group that does not gather has more than :data:`FEW_RANKS` (32)
      ranks: only "messages", which are sent to the actual peers only.
    * An all_gather: the implementations of :func:`_price_gathers`.
    * Each member's shard consists of one equal block for each member: "swap" (MPI's alltoall) and "messages".
    * Otherwise: "typed" (derived types place the boxes), "packed" (boxes are copied to buffers) and "messages".

    Boxes that are not contiguous go through buffers; "typed" and "swap" have none.

    Let g be the members and b the bytes of the largest shard of any member. Moving takes c = b copy / 1000, and
    packing on both sides k = (2 g - 1) c / g.

    * messages: c + 4 g call, and beside "typed" and "packed" also k + g piece;
    * swap: c + call;
    * typed: c + g call + b typed / 1000;
    * packed: c + g call + k + (2 g - 1) piece.

    Args:
        traffic: the transfers of this rank.
        itemsize: the bytes of an element.
        tuning: the choices for the MPI library: ``call`` and ``piece`` in nanoseconds, ``copy`` and ``typed`` in
            picoseconds per byte.
        count: the number of elements that MPI can count in one message.
    """
    size, nbytes = len(traffic.members), traffic.largest * itemsize
    wire = nbytes * tuning.copy / 1000
    messages = Implementation(
        "messages", _noncontiguous_elements(traffic) * itemsize, nanoseconds=wire + 4 * size * tuning.call
    )
    if traffic.largest > count or (traffic.gathered is None and size > FEW_RANKS):
        return [messages]
    if traffic.gathered is not None:
        return _price_gathers(traffic, itemsize, tuning)
    if traffic.swapped:
        swap = Implementation("swap", nanoseconds=wire + tuning.call)
        return [swap, messages]
    share = (size - 1) / size
    typed = Implementation("typed", nanoseconds=wire + size * tuning.call + nbytes * tuning.typed / 1000)
    sides = (
        arrange_side(traffic.sends, traffic.source, size),
        arrange_side(traffic.receives, traffic.target, size),
    )
    copies = (2 * share + 1 / size) * nbytes * tuning.copy / 1000
    packed = Implementation(
        "packed",
        sum(0 if side.direct else side.total for side in sides) * itemsize,
        nanoseconds=wire + size * tuning.call + copies + (2 * size - 1) * tuning.piece,
    )
    messages = replace(messages, nanoseconds=messages.nanoseconds + copies + size * tuning.piece)
    return [typed, packed, messages]


def find_threshold(table: Thresholds, ranks: int) -> int:
    """Return the number of bytes from which an alternative pays in a group.

    It is that of the table's last pair with at most ``ranks`` ranks, or :data:`NEVER` (2**62) without one.

    Args:
        table: pairs of a number of ranks and bytes, by increasing number.
        ranks: the number of ranks of the group.

    >>> find_threshold(((2, 10), (8, 30)), 6), find_threshold(((2, 10), (8, 30)), 1) == NEVER
    (10, True)
    """
    best = NEVER
    for count, nbytes in table:
        if count <= ranks:
            best = nbytes
    return best


def _price_gathers(traffic: RankTransfers, itemsize: int, tuning: Tuning) -> list[Implementation]:
    """Return the implementations of an all_gather, with their prices in nanoseconds; unsorted.

    * The members' blocks are contiguous in the result, as after a split of the first dimension: "gather" and
      "messages", both directly into the result.
    * The result has equal rows (:func:`count_rows`), as after an even split of a later dimension: "gather rows",
      which gathers chunks of rows in a buffer and copies them; "gather typed" and "typed", in which MPI places the
      blocks by derived types. A chunk has as many rows as fit into ``tuning.chunk`` bytes, at least one.
    * Otherwise: "gather, unpack", which gathers all blocks in a buffer and copies them, and "typed".

    Let g be the members, b the bytes of the largest shard, and c = b copy / 1000.

    * gather: c + call; messages: c + 4 g call;
    * gather, unpack: 2 c + call + g piece; gather rows: 2 c + (call + piece) per chunk;
    * gather typed: c + b typed / 1000 + call; typed: c + b typed / 1000 + g call.

    Args:
        traffic: the transfers of this rank.
        itemsize: the bytes of an element.
        tuning: the choices for the MPI library: ``call`` and ``piece`` in nanoseconds, ``copy`` and ``typed`` in
            picoseconds per byte, ``chunk`` in bytes.
    """
    assert traffic.gathered is not None
    size, nbytes = len(traffic.members), traffic.largest * itemsize
    copy, call = nbytes * tuning.copy / 1000, tuning.call
    if all(index is None or flat_offset(traffic.target, index) is not None for index in traffic.gathered):
        gather = Implementation("gather", nanoseconds=copy + call)
        return [gather, Implementation("messages", nanoseconds=copy + 4 * size * call)]
    types = copy + nbytes * tuning.typed / 1000
    typed = Implementation("typed", nanoseconds=types + size * call)
    rows = count_rows(traffic)
    if rows is None:
        scratch = math.prod(traffic.target) * itemsize
        takes = 2 * copy + call + size * tuning.piece
        return [Implementation("gather, unpack", scratch, nanoseconds=takes), typed]
    row = size * (math.prod(traffic.source) // rows) * itemsize
    most = max(1, min(rows, find_threshold(tuning.chunk, size) // row))
    takes = 2 * copy + -(-rows // most) * (call + tuning.piece)
    chunked = Implementation("gather rows", most * row, rows=rows, most=most, nanoseconds=takes)
    return [chunked, Implementation("gather typed", nanoseconds=types + call), typed]


def _count_halo_buffer(step: HaloStep, rank: int) -> int:
    """Return the number of elements of the buffers of a halo exchange on one rank.

    It is the sum of

    - messages to other ranks that are not one contiguous box of the shard, and so are packed;
    - messages from other ranks that cannot be received in place: they are not one contiguous box, are added up (from
      windows back to blocks), or go into a padded buffer;
    - the padding of the padded buffer, if there is one (:func:`padded_buffer`).

    For example, a rank sends the last column of its 4 x 4 block: the column is not contiguous, so the buffer has 4
    elements.

    Args:
        step: the halo exchange.
        rank: a rank of its mesh.
    """
    source, target = (layout.local_shape(step.shape, rank) for layout in (step.src, step.dst))
    room = padded_buffer(step, rank)
    total = 0 if room is None else math.prod(room.shape) - math.prod(target)
    for peer, pieces in sent_boxes(step, rank):
        if peer != rank and (len(pieces) > 1 or not _is_flat(source, pieces[0].source)):
            total += sum(piece.size for piece in pieces)
    for peer, pieces in received_boxes(step, rank):
        if peer != rank and (
            step.back or room or len(pieces) > 1 or flat_offset(target, pieces[0].target) is None
        ):
            total += sum(piece.size for piece in pieces)
    return total


def _is_flat(shape: tuple[int, ...], index: Index) -> bool:
    """Return True if a box is contiguous in an array and read in the order of the array."""
    return all(interval.step in (None, 1) for interval in index) and flat_offset(shape, index) is not None


def _noncontiguous_elements(traffic: RankTransfers) -> int:
    """Return the number of elements in boxes that are not contiguous, on both sides."""
    sides = (traffic.sends, traffic.source), (traffic.receives, traffic.target)
    boxes = [(shape, piece) for pieces, shape in sides for piece in pieces]
    return sum([piece.count for shape, piece in boxes if flat_offset(shape, piece.index) is None])


# -- reducing -------------------------------------------------------------------------------------------


def is_in_library(op: str | None, dtype: np.dtype) -> bool:
    """Return True if MPI's own reduction has NumPy's results. Otherwise, ranks reduce themselves.

    MPI does not accumulate floats of 16 bits in float32, and does not support bfloat16. Its MAX of a NaN depends on
    the order of the operands, while NumPy's is NaN. Sums of 8- and 16-bit integers wrap around in NumPy. In Open MPI
    they saturate if vector units add them, which depends on the length.
    """
    if dtype.kind in "iu" and dtype.itemsize <= 2 and op in ("sum", "prod"):
        return False
    return not (is_half(dtype) or (is_float(dtype) and op in ("max", "min")))


def chunk_elements(chunk: int, itemsize: int, size: int, count: int) -> int:
    """Return the number of elements of each block in one chunk of a composed reduction: at least 1.

    Args:
        chunk: the bytes of a chunk.
        itemsize: the bytes of an element.
        size: the number of blocks.
        count: the largest number of elements of a chunk.
    """
    return max(min(chunk // itemsize, count) // size, 1)


def _list_reductions(
    step: Step, rank: int, dtype: np.dtype, tuning: Tuning, count: int, reproducible: bool
) -> tuple[Implementation, ...]:
    """Return the implementations of an all_reduce or reduce_scatter, the preferred one first.

    There is only one, "same", if the group has one rank or the shard is empty. Otherwise those that ``tuning.first``
    names come first; the others follow in the order of the model.

    MPI's own reduction ("native") chooses the order of its operands itself. Where that can change the result, as in
    sums of floats:

    * "native" is left out if groups of the mesh could reduce in different orders, so that replicas would differ.
    * With ``reproducible``, results must not depend on the choice of the implementation. So only "native" remains if
      the model prefers it, and otherwise only the others.

    Args:
        step: the step.
        rank: a rank of its mesh.
        dtype: the element type.
        tuning: the choices for the MPI library.
        count: the number of elements that MPI can count in one message.
        reproducible: as in :func:`implementations_of`.
    """
    size = step.src.mesh.axis_size(*step.axes)
    shape = step.src.local_shape(step.shape, rank)
    if size == 1 or 0 in shape:
        return (Implementation("same", fresh=False),)
    layout = None
    if step.collective == "reduce_scatter":
        has_few_ranks = size <= LISTED
        layout = (
            list_blocks(step, tuple(sorted(step.group(rank))), rank)
            if has_few_ranks
            else count_blocks(step, rank)
        )
        reducing = _list_reduce_scatters(step.op, dtype, layout, size, tuning, count)
    else:
        reducing = _list_all_reduces(step.op, dtype, math.prod(shape), size, tuning, count)
    is_order_free = _order_free(step.op, dtype, size)
    if not is_order_free and not _in_one_order(step.src.mesh, size):
        reducing = [candidate for candidate in reducing if candidate.name != "native"]
    first, is_order_free = reducing[0], is_order_free or not reproducible
    reducing = [
        candidate
        for candidate in reducing
        if is_order_free or (candidate.name == "native") == (first.name == "native")
    ]
    reducing.sort(key=lambda candidate: _preference(candidate, tuning))
    return tuple(replace(candidate, blocks=layout) for candidate in reducing)


def _order_free(op: str | None, dtype: np.dtype, size: int) -> bool:
    """Return True if the result of a reduction of ``size`` operands does not depend on their order.

    That is so for integers and bools, except for their average, and for maxima and minima. Two operands also have one
    sum, and real floats one product, in both orders.
    """
    exact = dtype.kind in "iub" or op in ("max", "min")
    return (exact and op != "avg") or (size == 2 and (op == "sum" or (op == "prod" and dtype.kind == "f")))


def _in_one_order(mesh: Mesh, size: int) -> bool:
    """Return True if MPI reduces in one order in all groups, so that replicas are equal.

    The order is that of the group's ranks in MPI. It is one order if the mesh numbers its ranks in ascending order, or
    if the group is the whole mesh. False does not mean that results differ.
    """
    return (
        mesh.ranks is None
        or size == mesh.size
        or all(rank < next_rank for rank, next_rank in pairwise(mesh.ranks))
    )


def _choose_scan(step: ScanStep, rank: int, dtype: np.dtype, tuning: Tuning, count: int) -> Implementation:
    """Return the implementation of an exclusive scan on one rank.

    - "identity": the group has one rank.
    - "scan" (MPI's): all arrays of the group together exceed ``tuning.gather_reduce`` bytes, MPI has the reduction, and
      its order of operands is that of the step or cannot change the result.
    - "scan gathered": all other cases. Each rank gathers all arrays and reduces those before its own.

    Args:
        step: the scan.
        rank: a rank of its mesh.
        dtype: the element type.
        tuning: the choices for the MPI library.
        count: the number of elements that MPI can count in one message; longer arrays are gathered.
    """
    order, nbytes = step.order(rank), step.array_elements(rank) * dtype.itemsize
    if len(order) == 1:
        return Implementation("identity")
    large = nbytes * len(order) > tuning.gather_reduce and step.array_elements(rank) <= count
    ordered = order == tuple(sorted(order)) and (
        _order_free(step.op, dtype, len(order)) or _in_one_order(step.src.mesh, len(order))
    )
    if large and ordered and is_in_library(step.op, dtype):
        return Implementation("scan")
    wider = (
        step.array_elements(rank) * _accumulator_itemsize(step.op, dtype) if order.index(rank) > 1 else 0
    )  # else there is nothing to add
    return Implementation("scan gathered", nbytes * len(order) + wider)


def _list_all_reduces(
    op: str | None, dtype: np.dtype, elements: int, size: int, tuning: Tuning, count: int
) -> list[Implementation]:
    """Return the implementations of an all_reduce, the one that the thresholds prefer first.

    - "native" (MPI's all_reduce): first if a rank has fewer bytes than the threshold of ``tuning.compose_all_reduce``
      for this number of ranks, else last. It is left out if MPI lacks the reduction.
    - "gathered" (each rank gathers and reduces all arrays): only if all ranks together have at most
      ``tuning.gather_reduce`` bytes; before "composed".
    - "composed" (each rank reduces a block, and the blocks are gathered, in chunks): always.

    So few bytes give native, gathered, composed; many bytes give composed, native.

    Args:
        op: the name of the reduction; None does not occur in steps that reduce.
        dtype: the element type.
        elements: the number of elements of each rank.
        size: the number of ranks of a group.
        tuning: the thresholds for the MPI library.
        count: the number of elements that MPI can count in one message; it limits a chunk of "composed".
    """
    nbytes, accumulator_itemsize = elements * dtype.itemsize, _accumulator_itemsize(op, dtype)
    native = Implementation("native")
    most = chunk_elements(find_threshold(tuning.chunk, size), dtype.itemsize, size, min(count, elements))
    composed_bytes = (most + 1) * (size * dtype.itemsize + accumulator_itemsize)
    implementations = [Implementation("composed", composed_bytes, most=most)]
    if nbytes * size <= tuning.gather_reduce:
        gathered_bytes = nbytes * size + elements * accumulator_itemsize
        implementations.insert(0, Implementation("gathered", gathered_bytes))
    if not is_in_library(op, dtype):
        return implementations
    is_small = nbytes < find_threshold(tuning.compose_all_reduce, size)
    return [native, *implementations] if is_small else [*implementations, native]


def _list_reduce_scatters(
    op: str | None, dtype: np.dtype, layout: Blocks, size: int, tuning: Tuning, count: int
) -> list[Implementation]:
    """Return the implementations of a reduce_scatter, the one that the thresholds prefer first.

    - "native" (MPI's reduce_scatter): first if a rank has fewer bytes than the threshold of
      ``tuning.compose_reduce_scatter`` for this number of ranks, else last. It is left out if MPI lacks the reduction
      or cannot count the elements.
    - "small": only if all blocks are equal and sums stay in the element type. It comes before "composed" if a block
      has at most ``tuning.small_block`` bytes, else after it.
    - "composed": always.

    Args:
        op: the name of the reduction; None does not occur in steps that reduce.
        dtype: the element type.
        layout: the blocks of the members in this rank's source.
        size: the number of ranks of a group.
        tuning: the choices for the MPI library.
        count: the number of elements that MPI can count in one message.
    """
    total, own_elements = sum(layout.counts), math.prod(layout.target)
    nbytes, wider = total * dtype.itemsize, _accumulator_itemsize(op, dtype)
    most = chunk_elements(find_threshold(tuning.chunk, size), dtype.itemsize, size, count)
    scratch = min(most, own_elements) * (size * dtype.itemsize + wider) + (0 if layout.direct else nbytes)
    ordered = [Implementation("composed", scratch, most=most)]
    has_equal_blocks = layout.direct and layout.packed and len(set(layout.counts)) == 1
    if has_equal_blocks and not wider and total <= count:
        position = 0 if nbytes <= tuning.small_block * size else 1
        ordered.insert(position, Implementation("small", nbytes))
    if not is_in_library(op, dtype) or total > count:
        return ordered
    native = Implementation("native", 0 if layout.direct and layout.packed else nbytes)
    is_large = nbytes >= find_threshold(tuning.compose_reduce_scatter, size)
    return [*ordered, native] if is_large else [native, *ordered]


def _accumulator_itemsize(op: str | None, dtype: np.dtype) -> int:
    """Return the bytes of an element of the accumulator type; 0 if sums have the type of the elements."""
    kind = accumulator(op, dtype)
    return 0 if kind == dtype else kind.itemsize


#: The largest mesh of which the memory of every rank is computed. In larger meshes it is that of the first rank, whose
#: shard is the largest.
ASKED = 64


def step_memory(
    step: Step, rank: int, dtype: np.dtype, tuning: Tuning = TABLE["Open MPI"]
) -> tuple[int, int]:
    """Return the bytes of new memory on a rank of ``MPIWorld`` in a step: ``(shard, buffers)``.

    The shard is that after the step; it takes 0 bytes if it is the shard before or a view of it. Values are packed
    and received in the buffers. In groups of more than 1,024 ranks, the buffers of an all_gather are left out, and an
    all_to_all counts as an exchange.

    Args:
        step: the step.
        rank: the rank.
        dtype: the element type.
        tuning: the choices for the MPI library.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2,), ("x",))
    >>> step = Step("all_gather", ("x",), mesh(None, "x"), mesh(None, None), (512, 512))
    >>> step_memory(step, 0, np.dtype("float32"))
    (1048576, 1048576)
    """
    shard_size = _shard_size(step.dst, step.shape_after, rank)
    if step.axes and step.src.mesh.axis_size(*step.axes) > LISTED:
        if step.collective == "all_gather":
            return shard_size * dtype.itemsize, 0
        if step.collective == "all_to_all":  # An exchange sends equal messages, and is derived in less time.
            step = replace(step, collective="exchange", axes=())
    implementation = implementation_of(step, rank, dtype, tuning)
    return shard_size * dtype.itemsize if implementation.fresh else 0, implementation.scratch


def step_buffer(step: Step, dtype: np.dtype) -> int:
    """Return the new bytes of a step on the rank that needs most; see :func:`step_memory`."""
    return max(sum(step_memory(step, rank, dtype)) for rank in _ranks_to_ask([step]))


def plan_peak(steps: Sequence[Step], step_dtype: np.dtype, dtype: np.dtype) -> int:
    """Return the peak bytes of a plan on the rank that needs most, including the shard before the plan.

    The steps run in the type ``step_dtype``, and the result is rounded to ``dtype`` at the end. A shard in between is
    freed when the next one exists. The first shard stays, because the caller owns it.
    """
    return max(_peak_on_rank(steps, rank, step_dtype, dtype) for rank in _ranks_to_ask(steps))


def _peak_on_rank(steps: Sequence[Step], rank: int, step_dtype: np.dtype, dtype: np.dtype) -> int:
    """Return the peak bytes of a plan on one rank.

    At each step, the first shard, the shard before, the shard after and the step's buffers exist. If the types
    differ, the rounded result is added at the end.

    Args:
        steps: the steps; at least one.
        rank: the rank.
        step_dtype: the element type in which the steps run.
        dtype: the element type of the result.
    """
    start = _shard_size(steps[0].src, steps[0].shape, rank) * step_dtype.itemsize
    before, peak = 0, start
    for step in steps:
        after, scratch = step_memory(step, rank, step_dtype)
        peak = max(peak, start + before + after + scratch)
        before = after or before
    if step_dtype != dtype:
        last = _shard_size(steps[-1].dst, steps[-1].shape_after, rank) * dtype.itemsize
        peak = max(peak, start + before + last)
    return peak


def _shard_size(layout: Layout, shape: tuple[int, ...], rank: int) -> int:
    """Return the number of elements of a rank's shard; 0 outside the mesh."""
    return math.prod(layout.local_shape(shape, rank)) if rank in layout.mesh else 0


def _ranks_to_ask(steps: Sequence[Step]) -> set[int]:
    """Return the ranks among which one needs most memory.

    They are all ranks or, if a mesh has more than :data:`ASKED` (64) ranks, the first rank of each mesh.
    """
    meshes = {mesh: None for step in steps for mesh in (step.src.mesh, step.dst.mesh)}
    are_small = all(mesh.size <= ASKED for mesh in meshes)
    return {rank for mesh in meshes for rank in (mesh.rank_list if are_small else (mesh.rank_at(0),))}
