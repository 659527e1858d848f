"""all_reduce and reduce_scatter on MPI, derived once per step and rank.

Each has three implementations. *Native* is MPI's own call. *Composed* is an exchange after which every rank reduces
its block with NumPy (and, for all_reduce, gathers the blocks), in chunks that stay in the cache. *Gathered*, for small
reductions that MPI does not support, gathers all arrays and reduces them on every rank. The last two reduce in the
order of the group, so their results equal LockStep's to the last bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from mpi4py import MPI

from spmdsim.core.elements import fold, ufunc
from spmdsim.core.layout import nested_blocks
from spmdsim.core.step import Step
from spmdsim.layout.element_type import check_reduce
from spmdsim.redistribution.implementations.implementation import Implementation, chunk_elements
from spmdsim.redistribution.implementations.rank_transfers import Blocks
from spmdsim.worlds.mpi import messages
from spmdsim.worlds.mpi.counted import Counted
from spmdsim.worlds.mpi.messages import element, native_op, number_view
from spmdsim.worlds.pool import allocator, take_buffer
from spmdsim.worlds.programs import Run


@dataclass(frozen=True)
class ReduceGroup:
    """Ranks that reduce together.

    Attributes:
        comm: their communicator, sorted by world rank.
        order: the number in ``comm`` of each rank, in the order of the group.
        me: the number of this rank in ``comm``.
    """

    comm: Counted
    order: tuple[int, ...]
    me: int

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.order)


def derive_all_reduce(
    step: Step, group: ReduceGroup, dtype: np.dtype, shape: tuple[int, ...], implementation: Implementation
) -> Run:
    """Return the function that runs an all_reduce on a shard of this shape.

    All ranks of the group must call the function. It returns a new array.

    Args:
        step: the step.
        group: the ranks, their order and communicator.
        dtype: the element type.
        shape: the shape of the shard.
        implementation: "native", "gathered" or "composed", see the module.

    Raises:
        WorldError: If the reduction is undefined for the element type.
    """
    op = check_reduce(step.op, dtype)
    if implementation.name == "native":
        return _derive_native_all_reduce(op, group, shape, dtype)
    if implementation.name == "gathered":
        return lambda array: _gather_and_fold(op, group, array.reshape(-1)).reshape(array.shape)
    return _derive_composed_all_reduce(op, group, implementation.most)


def _derive_native_all_reduce(op: str, group: ReduceGroup, shape: tuple[int, ...], dtype: np.dtype) -> Run:
    """Return the function that reduces a shard by MPI's own Allreduce.

    The function takes this rank's shard and returns a new array. One call of MPI takes at most ``messages.MAX_COUNT``
    elements, so larger shards need several. An average is a sum that is divided by the number of ranks afterwards.

    Args:
        op: the reduction, which MPI must have for the type.
        group: the ranks and their communicator.
        shape: the shape of the shard.
        dtype: the element type.
    """
    comm, max_count, fresh, size = group.comm, messages.MAX_COUNT, allocator(shape, dtype), group.size
    native = native_op(op, dtype)
    assert native is not None

    def run(array: np.ndarray) -> np.ndarray:
        """Reduce at most ``max_count`` elements per call."""
        out = fresh()
        source_view, result_view = number_view(array), number_view(out)
        for start in range(0, result_view.size, max_count):
            comm.Allreduce(
                source_view[start : start + max_count], result_view[start : start + max_count], native
            )
        if op == "avg":
            out /= size
        return out

    if op == "avg" or dtype.kind == "b" or math.prod(shape) > max_count:
        return run

    def run_at_once(array: np.ndarray) -> np.ndarray:
        out = fresh()
        comm.Allreduce(array, out, native)
        return out

    return run_at_once


def _gather_and_fold(op: str, group: ReduceGroup, flat: np.ndarray) -> np.ndarray:
    """Return the reduction of all ranks' vectors in the order of the group, after an Allgather."""
    rows = np.empty((group.size, flat.size), flat.dtype)
    kind = element(flat.dtype.itemsize)
    group.comm.Allgather([flat, flat.size, kind], [rows, flat.size, kind])
    return fold(op, [rows[k] for k in group.order])


def _derive_composed_all_reduce(op: str, group: ReduceGroup, most: int) -> Run:
    """Return the function that reduces a shard in chunks: exchange blocks, reduce, and gather.

    A chunk is cut into one block per rank. Each rank receives its block from all others, reduces it in the order of the
    group, and all ranks gather the reduced blocks. For example, 2 ranks with blocks of at most 100 elements reduce 500
    elements in chunks of 200, 200 and 100. No more bytes are moved than an all_reduce needs. The function takes this
    rank's shard and returns a new array.

    Args:
        op: the reduction.
        group: the ranks, their order and communicator.
        most: the largest number of elements of a block. Blocks of the last chunk may have one more, so that no chunk
            has fewer elements than there are ranks.
    """
    comm, size, me = group.comm, group.size, group.me

    def run(array: np.ndarray) -> np.ndarray:
        """Exchange blocks, reduce the own block and gather the blocks, chunk by chunk."""
        out = take_buffer(array.shape, array.dtype)
        flat, result = array.reshape(-1), out.reshape(-1)
        kind = element(array.dtype.itemsize)
        rows = take_buffer((size, most + 1), array.dtype)
        for start, length in _chunks(flat.size, size * most, size):
            span, blocks = slice(start, start + length), nested_blocks(length, (size,))
            first, block_size = blocks[me]
            own_slice = slice(start + first, start + first + block_size)
            received = rows.reshape(-1)[: size * block_size].reshape(size, block_size)
            counts, places = tuple(count for _, count in blocks), tuple(offset for offset, _ in blocks)
            sent_layout = tuple(0 if k == me else count for k, count in enumerate(counts)), places
            comm.Alltoallv([flat[span], sent_layout, kind], [received, to_others(block_size, size, me), kind])
            fold(
                op, [flat[own_slice] if k == me else received[k] for k in group.order], out=result[own_slice]
            )
            if length % size:
                comm.Allgatherv(MPI.IN_PLACE, [result[span], (counts, places), kind])
            else:
                comm.Allgather(MPI.IN_PLACE, [result[span], block_size, kind])
        return out

    return run


@lru_cache(maxsize=256)
def _chunks(total: int, most: int, size: int) -> tuple[tuple[int, int], ...]:
    """Return the start and length of each chunk of a vector.

    A remainder of fewer elements than ranks joins the last chunk.

    >>> _chunks(10, 4, 4)
    ((0, 4), (4, 6))

    Args:
        total: the elements of the vector.
        most: the elements of a chunk.
        size: the number of ranks.
    """
    starts = range(0, max(total - total % size, 1), most)
    return tuple((a, b - a) for a, b in pairwise((*starts, total)))


def reduce_own_block(op: str, group: ReduceGroup, flat: np.ndarray, result: np.ndarray, chunk: int) -> None:
    """Reduce this rank's block of the group's vectors, and write it to its place in ``result``.

    The vectors are split into as many nearly equal blocks as there are ranks. This rank's block is the one with its
    number in the communicator. The ranks send each other their parts of these blocks in calls of Alltoallv, and each
    rank reduces the parts of its own block. Other elements of ``result`` are not written. All ranks of the group must
    call it.

    Args:
        op: the reduction.
        group: the group.
        flat: this rank's vector.
        result: the vector of the result, which all ranks of the group share.
        chunk: the bytes of all blocks together that are exchanged and reduced at a time (:func:`chunk_elements`).
    """
    size, me = group.size, group.me
    sizes = nested_blocks(flat.size, (size,))
    indices = tuple((slice(start, start + length),) for start, length in sizes)
    starts, lengths = [start for start, _ in sizes], [length for _, length in sizes]
    target = (lengths[me],)
    layout = Blocks(indices, lengths, starts, direct=True, packed=True, covers_source=True, target=target)
    most = chunk_elements(chunk, flat.dtype.itemsize, size, messages.MAX_COUNT)
    _exchange_and_fold(op, group, layout, most, flat, result[indices[me]])


@lru_cache(maxsize=256)
def to_others(block_size: int, size: int, me: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return counts and offsets of equal blocks for all ranks; the count for this rank is 0.

    >>> to_others(3, 3, 1)
    ((3, 0, 3), (0, 3, 6))

    Args:
        block_size: the elements of a block.
        size: the number of ranks.
        me: this rank.
    """
    counts = tuple(block_size if k != me else 0 for k in range(size))
    return counts, tuple(k * block_size for k in range(size))


# -- reduce_scatter -----------------------------------------------------------------------------------


def derive_reduce_scatter(
    step: Step, group: ReduceGroup, dtype: np.dtype, implementation: Implementation
) -> Run:
    """Return the function that runs a reduce_scatter.

    Each rank gets one block of the reduced vector. The function takes this rank's shard and returns its reduced block,
    a new array. All ranks of the group must call it. The name of the implementation decides how it runs:

    - "native": by MPI's Reduce_scatter.
    - "small": by one exchange of equal blocks, which each rank then reduces.
    - Any other name: in chunks, each of which is exchanged and reduced (:func:`_exchange_and_fold`).

    Args:
        step: the step.
        group: the ranks, their order and communicator.
        dtype: the element type.
        implementation: the name, and the position of each rank's block in the shard.

    Raises:
        WorldError: If the reduction is undefined for the element type.
    """
    op, layout = check_reduce(step.op, dtype), implementation.blocks
    assert layout is not None
    if implementation.name == "native":
        return _derive_native_reduce_scatter(op, group, layout, dtype)
    if implementation.name == "small":
        return _derive_small_reduce_scatter(op, group, layout, dtype)

    def composed(array: np.ndarray) -> np.ndarray:
        out = take_buffer(layout.target, array.dtype)
        _exchange_and_fold(
            op, group, layout, implementation.most, pack_blocks(layout, array).reshape(-1), out.reshape(-1)
        )
        return out

    return composed


def pack_blocks(layout: Blocks, array: np.ndarray, without_gaps: bool = False) -> np.ndarray:
    """Return an array from which MPI can send the blocks of a shard.

    - If each block is contiguous in the shard (``layout.direct``): the shard itself.
    - Otherwise: a flat copy with one block after the other.

    Args:
        layout: the blocks.
        array: the shard, C-contiguous.
        without_gaps: True if the result must be flat, with one block after the other. The shard is then copied unless
            its blocks have no gaps; if they have none, the result is a view of it.
    """
    if layout.direct and (layout.packed or not without_gaps):
        return array.reshape(-1)[: sum(layout.counts)] if without_gaps else array
    buffer, start = take_buffer((sum(layout.counts),), array.dtype), 0
    for index, count in zip(layout.indices, layout.counts):
        block = array[index]
        buffer[start : start + count].reshape(block.shape)[...] = block
        start += count
    return buffer


def _derive_native_reduce_scatter(op: str, group: ReduceGroup, layout: Blocks, dtype: np.dtype) -> Run:
    """Return the function that reduces by MPI's own Reduce_scatter, also if blocks are equal.

    For equal blocks MPI has Reduce_scatter_block, too, but Open MPI's would move up to twice as many bytes. The
    function takes this rank's shard and returns its reduced block, a new array. An average is a sum that is divided by
    the number of ranks afterwards.

    Args:
        op: the reduction, which MPI must have for the type.
        group: the ranks and their communicator.
        layout: the blocks of the vectors, one per rank.
        dtype: the element type.
    """
    comm, counts = group.comm, layout.counts
    fresh, native = allocator(layout.target, dtype), native_op(op, dtype)
    assert native is not None

    def run(array: np.ndarray) -> np.ndarray:
        out = fresh()
        packed = pack_blocks(layout, array, without_gaps=True)
        comm.Reduce_scatter(number_view(packed), number_view(out), counts, native)
        if op == "avg":
            out /= group.size
        return out

    return run


def _derive_small_reduce_scatter(op: str, group: ReduceGroup, layout: Blocks, dtype: np.dtype) -> Run:
    """Return the function that exchanges equal blocks by one Alltoall and reduces them.

    The function takes this rank's shard and returns its reduced block, a new array. This rank's own block goes through
    the Alltoall, too, which is cheap for small blocks. The blocks are reduced in the order of the group.

    Args:
        op: the reduction.
        group: the ranks, their order and communicator.
        layout: the blocks of the vectors, one per rank and equal, which lie one after the other in the shard.
        dtype: the element type.
    """
    comm, size, kind, count = group.comm, group.size, element(dtype.itemsize), layout.counts[0]
    fresh, landing = allocator(layout.target, dtype), allocator((size, *layout.target), dtype)
    # Along the first dim numpy reduces row by row, in the order of the group, unless rows are single elements.
    is_in_order = group.order == tuple(range(size))
    at_once = size > 2 and count > 1 and op != "avg" and is_in_order
    function, order = ufunc(op, dtype), group.order

    def run(array: np.ndarray) -> np.ndarray:
        """Exchange the blocks, and reduce the received ones in the order of the group."""
        out, received = fresh(), landing()
        comm.Alltoall([array, count, kind], [received, count, kind])
        if at_once:
            function.reduce(received, 0, None, out)
        elif size == 2 and op != "avg":
            function(received[order[0]], received[order[1]], out=out)
        else:
            fold(op, [received[k] for k in order], out)
        return out

    return run


def _exchange_and_fold(
    op: str, group: ReduceGroup, layout: Blocks, most: int, flat: np.ndarray, result: np.ndarray
) -> None:
    """Reduce this rank's block of all ranks' vectors into ``result``, some elements at a time.

    In each round, this rank receives the next ``most`` elements of its block from all others, and reduces them in the
    order of the group. For example, a block of 250 elements with ``most`` 100 takes rounds of 100, 100 and 50. There
    are as many rounds as the longest block needs. All ranks of the group must call it.

    Args:
        op: the reduction.
        group: the group.
        layout: the blocks of the vectors, one per rank.
        most: the largest number of elements of a block in a round.
        flat: this rank's vector.
        result: the array for this rank's block.
    """
    comm, size, me = group.comm, group.size, group.me
    own_count, longest, itemsize = layout.counts[me], max(layout.counts), flat.dtype.itemsize
    kind = element(itemsize)
    rows = take_buffer((size, min(most, own_count)), flat.dtype)
    for start in range(0, longest, most):
        parts = [max(0, min(most, count - start)) for count in layout.counts]
        part_size = parts[me]
        received = rows.reshape(-1)[: size * part_size].reshape(size, part_size)
        own_offset = layout.offsets[me] + start
        parts[me] = 0
        # Offsets count from the first element sent, so that they stay countable in long arrays.
        begins = [offset + start for offset in layout.offsets]
        first = min((begin for begin, length in zip(begins, parts) if length), default=0)
        places = [begin - first if length else 0 for begin, length in zip(begins, parts)]
        comm.Alltoallv(
            [flat[first:], (parts, places), kind], [received, to_others(part_size, size, me), kind]
        )
        terms = [flat[own_offset : own_offset + part_size] if k == me else received[k] for k in group.order]
        fold(op, terms, out=result[start : start + part_size])
