"""Messages of MPI: element types, boxes and transfers, and the implementations that place boxes.

Moving data needs only the size of an element, so every type that NumPy knows can be moved. Arithmetic needs
the type itself; only MPI's own reductions use it.

Boxes (all_gather, all_to_all, exchange) have several implementations (``redistribution/implementations``):
``Allgather(v)`` into the result if the blocks are contiguous there; ``Alltoallw`` with subarray types; packing and
``Alltoallv``; and messages to the actual peers, in parts that MPI can count, for large groups and large data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from spmdsim.collectives.execution import execute
from spmdsim.core.elements import contiguous
from spmdsim.core.step import Index
from spmdsim.redistribution.implementations.implementation import MAX_COUNT as MPI_COUNT
from spmdsim.redistribution.implementations.implementation import Implementation, is_in_library
from spmdsim.redistribution.implementations.rank_transfers import (
    MemberBox,
    RankTransfers,
    Side,
    arrange_side,
    flat_offset,
)
from spmdsim.worlds.agreement.arrival_gossip import abandoned
from spmdsim.worlds.emulated import Emulation
from spmdsim.worlds.pool import allocator, take_buffer
from spmdsim.worlds.programs import Run

#: Elements MPI can count in one message (an int). A constant so that a test can make it small.
MAX_COUNT = MPI_COUNT

_WORDS = {
    kind.Get_size(): kind
    for kind in (MPI.UINT8_T, MPI.UINT16_T, MPI.UINT32_T, MPI.UINT64_T, MPI.C_DOUBLE_COMPLEX)
}


class Stretches(NamedTuple):
    """Counts and offsets of the elements of each rank in a flat array, as MPI takes them."""

    counts: list[int]
    starts: list[int]

    @staticmethod
    def of(counts: list[int]) -> Stretches:
        """Return stretches that lie one after the other."""
        return Stretches(counts, [0, *accumulate(counts)][:-1])

    def without(self, rank: int) -> Stretches:
        """Return a copy in which the count of one rank is 0."""
        return Stretches([0 if k == rank else count for k, count in enumerate(self.counts)], self.starts)


@lru_cache(maxsize=64)
def element(itemsize: int) -> MPI.Datatype:
    """Return the MPI type that moves elements of ``itemsize`` bytes (bytes for unusual sizes).

    Passed beside an array, it spares MPI the look-up of the array's element type.
    """
    return _WORDS.get(itemsize) or MPI.BYTE.Create_contiguous(itemsize).Commit()


def counted_parts(array: np.ndarray) -> list[np.ndarray]:
    """Return flat views of a C-contiguous array, each with at most :data:`MAX_COUNT` elements.

    The list is empty for an array without elements.
    """
    flat, most = array.reshape(-1), MAX_COUNT
    if 0 < flat.size <= most:
        return [flat]
    return [flat[start : start + most] for start in range(0, flat.size, most)]


_NATIVE = {"sum": MPI.SUM, "avg": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN}
_BOOLEAN = {"all": MPI.BAND, "min": MPI.BAND, "any": MPI.BOR, "max": MPI.BOR}


def native_op(op: str, dtype: np.dtype) -> MPI.Op | None:
    """Return MPI's own reduction, or None if its results differ from NumPy's.

    Ranks must then reduce themselves.
    """
    if not is_in_library(op, dtype):
        return None
    return (_BOOLEAN if dtype.kind == "b" else _NATIVE)[op]


def number_view(array: np.ndarray) -> np.ndarray:
    """Return a C-contiguous array as a flat view that MPI can reduce (bools as bytes)."""
    flat = array.reshape(-1)
    return flat.view(np.uint8) if flat.dtype.kind == "b" else flat


def subarray(shape: tuple[int, ...], index: Index, itemsize: int) -> MPI.Datatype:
    """Return the MPI type of a box inside a C-contiguous array; the caller must free it.

    Args:
        shape: the shape of the array.
        index: the box, as slices with start and stop.
        itemsize: bytes of an element.
    """
    starts, sizes = [slice_.start for slice_ in index], [slice_.stop - slice_.start for slice_ in index]
    return element(itemsize).Create_subarray(list(shape), sizes, starts, MPI.ORDER_C).Commit()


#: All messages of schedules; messages of a pair of ranks keep their order.
TAG = 77_015


class Messages:
    """Transport of schedules: messages between positions in a group, over its communicator.

    Args:
        comm: the communicator.
        numbers: the number in ``comm`` of each position; by default they are equal.
        look: is called with the number of earlier calls while the rank waits; it raises an error if waiting is in
            vain.
    """

    def __init__(
        self, comm: MPI.Comm, numbers: Sequence[int] | None = None, look: Callable[[int], None] | None = None
    ) -> None:
        self.comm, self._look = comm, look
        self.numbers = range(comm.Get_size()) if numbers is None else numbers

    def irecv(self, buffer: np.ndarray, source: int, tag: int) -> Any:
        """Start to receive into a contiguous array.

        Args:
            buffer: the array; it is filled later.
            source: the position of the sender in the group.
            tag: the tag.

        Returns:
            A request, or a list of requests for an array of more than :data:`MAX_COUNT` elements.
        """
        peer, kind = self.numbers[source], element(buffer.dtype.itemsize)
        if buffer.size <= MAX_COUNT:
            return self.comm.Irecv([buffer, buffer.size, kind], peer, tag)
        return [self.comm.Irecv([flat_part, kind], peer, tag) for flat_part in counted_parts(buffer)]

    def isend(self, buffer: np.ndarray, dest: int, tag: int) -> Any:
        """Start to send a contiguous array, which must not change until the message is complete.

        Args:
            buffer: the array.
            dest: the position of the receiver in the group.
            tag: the tag.

        Returns:
            A request, or a list of requests for an array of more than :data:`MAX_COUNT` elements.
        """
        peer, kind = self.numbers[dest], element(buffer.dtype.itemsize)
        if buffer.size <= MAX_COUNT:
            return self.comm.Isend([buffer, buffer.size, kind], peer, tag)
        return [self.comm.Isend([flat_part, kind], peer, tag) for flat_part in counted_parts(buffer)]

    def wait_all(self, requests: Sequence[Any]) -> None:
        """Wait until all given messages are complete; check on the other ranks meanwhile.

        The check is the function ``look`` of this object, which is called again and again. Without one, MPI waits
        alone.

        Args:
            requests: a request, or a list of them, per message, from :meth:`irecv` and :meth:`isend`.

        Raises:
            DisagreementError: If ``look`` finds that a rank will not send or receive. The requests then stay open, and
                their memory is kept.
        """
        flat: list[MPI.Request] = []
        for request in requests:
            flat += request if isinstance(request, list) else [request]
        if self._look is None:
            MPI.Request.Waitall(flat)
            return
        looks = 0
        try:
            while not MPI.Request.Testall(flat):
                self._look(looks)
                looks += 1
        except Exception:
            abandoned.append(flat)
            raise


def derive_schedule_run(emulated: Emulation, comm: MPI.Comm) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function that runs a step by an emulated algorithm, such as a ring.

    The function takes this rank's shard, packs its boxes into a vector, runs the algorithm's rounds of messages, and
    returns the shard after the step. All ranks of the group must call it. The result may be a view of the output
    vector, which is new in each call.

    Args:
        emulated: the schedule and the boxes of this rank.
        comm: the communicator of the group, sorted by rank.
    """
    places = sorted(emulated.members)
    messages = Messages(comm, [places.index(rank) for rank in emulated.members])
    program = emulated.program

    def run(array: np.ndarray) -> np.ndarray:
        packed = emulated.pack(array)
        result = take_buffer((program.output_count,), array.dtype)
        execute(program, messages, packed, result, emulated.function(array.dtype), TAG)
        return emulated.unpack(result)

    return run


def derive_placement(
    implementation: Implementation, comm: MPI.Comm, dtype: np.dtype, types: list[MPI.Datatype]
) -> Run:
    """Return the function that runs a step without a reduction by one of its implementations.

    All ranks of the communicator must call the function; it returns a new array.

    Args:
        implementation: the implementation, with the transfers of this rank.
        comm: the communicator of the step's ranks.
        dtype: the element type.
        types: a list to which MPI types that it creates are appended; the caller must free them.
    """
    traffic = implementation.traffic
    assert traffic is not None
    if implementation.name == "gather rows":
        return _derive_gather_rows(traffic, comm, dtype, implementation.rows, implementation.most)
    if implementation.name == "gather typed":
        return _derive_gather_typed(traffic, comm, dtype, types)
    if implementation.name == "typed":
        return _derive_typed_exchange(traffic, comm, dtype, types)
    return _PLAIN[implementation.name](traffic, comm, dtype)


def _counts(indices: tuple[Index | None, ...]) -> list[int]:
    """Return the number of elements of each box; 0 for None."""
    return [0 if i is None else MemberBox(0, i).count for i in indices]


def derive_broadcast(
    traffic: RankTransfers, comm: MPI.Comm, dtype: np.dtype, root: int, shape: tuple[int, ...]
) -> Run:
    """Return the function that runs a step as a Bcast: one rank owns what all others want.

    The root's result is its own array, another rank's a new one. A rank that wants nothing receives, too, and returns
    an array without elements.

    Args:
        traffic: which elements this rank sends and receives.
        comm: the communicator.
        dtype: the element type.
        root: the number of the sender in ``comm``.
        shape: the shape of the tensor.
    """
    kind, fresh = element(dtype.itemsize), allocator(shape, dtype)
    is_root, target = comm.Get_rank() == root, traffic.target

    def run(array: np.ndarray) -> np.ndarray:
        out = array if is_root else fresh()
        for flat_part in counted_parts(out):
            comm.Bcast([flat_part, kind], root)
        return out if out.shape == target else np.empty(target, dtype)

    return run


def _call_once(
    call: Callable[[Any, Any], None], fresh: Callable[[], np.ndarray], source: Any, target: Any
) -> Run:
    """Return ``run(array)``, which calls MPI once and returns the result in new memory.

    It allocates the result with ``fresh``, calls ``call([array, *source], [result, *target])`` and returns the result.

    Args:
        call: the communicator's method; it takes a send and a receive buffer and returns None.
        fresh: allocates the result.
        source: what MPI needs to know about the shard besides its memory: counts, displacements, types.
        target: the same facts about the result.
    """

    def run(array: np.ndarray) -> np.ndarray:
        out = fresh()
        call([array, *source], [out, *target])
        return out

    return run


def _derive_gather(traffic: RankTransfers, comm: MPI.Comm, dtype: np.dtype) -> Run:
    """Return the function that gathers blocks directly in the result.

    It calls Allgather if the blocks are equal and in the order of the ranks, else Allgatherv. All blocks must be
    contiguous in the result.

    Args:
        traffic: the transfers of this rank.
        comm: the communicator of the group.
        dtype: the element type.
    """
    assert traffic.gathered is not None
    offsets = [0 if i is None else flat_offset(traffic.target, i) or 0 for i in traffic.gathered]
    counts, kind, count = _counts(traffic.gathered), element(dtype.itemsize), math.prod(traffic.source)
    call, received_layout = _choose_all_gather(comm, counts, offsets)
    return _call_once(call, allocator(traffic.target, dtype), (count, kind), (received_layout, kind))


def _choose_all_gather(
    comm: MPI.Comm, counts: Sequence[int], offsets: Sequence[int]
) -> tuple[Callable[..., None], Any]:
    """Return the method that gathers blocks, and the layout of the received blocks as it takes it.

    It is Allgather, with one count, if the blocks are equal and lie one behind the other. Libraries have better
    algorithms for it than for Allgatherv.

    Args:
        comm: the communicator.
        counts: the elements of each rank's block.
        offsets: where each block begins in the receive buffer.
    """
    if len(set(counts)) == 1 and [*offsets] == [k * counts[0] for k in range(len(counts))]:
        return comm.Allgather, counts[0]
    return comm.Allgatherv, (counts, offsets)


def _derive_gather_unpack(traffic: RankTransfers, comm: MPI.Comm, dtype: np.dtype) -> Run:
    """Return the function that gathers blocks in a buffer, and copies them to the result.

    The function takes this rank's shard, calls Allgather or Allgatherv once, and returns a new array. Blocks may lie
    anywhere in the result, such as the two column halves of a matrix, which are not contiguous in it.

    Args:
        traffic: the transfers of this rank.
        comm: the communicator of the group.
        dtype: the element type.
    """
    assert traffic.gathered is not None
    layout = Stretches.of(_counts(traffic.gathered))
    kind, count = element(dtype.itemsize), math.prod(traffic.source)
    jobs = [
        (offset, size, MemberBox(0, index).shape, index)
        for offset, size, index in zip(layout.starts, layout.counts, traffic.gathered)
        if index is not None
    ]
    fresh, landing = allocator(traffic.target, dtype), allocator((sum(layout.counts),), dtype)
    call, received_layout = _choose_all_gather(comm, layout.counts, layout.starts)

    def run(array: np.ndarray) -> np.ndarray:
        out, buffer = fresh(), landing()
        call([array, count, kind], [buffer, received_layout, kind])
        for offset, size, shape, index in jobs:
            out[index] = buffer[offset : offset + size].reshape(shape)
        return out

    return run


def _derive_gather_typed(
    traffic: RankTransfers, comm: MPI.Comm, dtype: np.dtype, types: list[MPI.Datatype]
) -> Run:
    """Return the function that gathers blocks by one Allgather, in which MPI places the rows.

    Blocks that split the columns of a matrix are not contiguous in the result. An MPI type says where the rows of a
    block belong, so no buffer and no copy are needed. The blocks must be equal and split one dim, in the order of the
    ranks. The function takes this rank's shard and returns a new array.

    Args:
        traffic: the transfers of this rank.
        comm: the communicator of the group.
        dtype: the element type.
        types: a list to which the MPI types are appended; the caller must free them.
    """
    assert traffic.gathered is not None and traffic.gathered[0] is not None
    box, dim = traffic.gathered[0], len(traffic.target) - 1
    while traffic.source[dim] == traffic.target[dim]:
        dim -= 1
    # The next member's part begins where this one's first row ends.
    width = math.prod(traffic.source[dim:]) * dtype.itemsize
    block_type = subarray(traffic.target, box, dtype.itemsize)
    shifted = block_type.Create_resized(0, width).Commit()
    types += [block_type, shifted]
    source = math.prod(traffic.source), element(dtype.itemsize)
    return _call_once(comm.Allgather, allocator(traffic.target, dtype), source, (1, shifted))


def _derive_gather_rows(
    traffic: RankTransfers, comm: MPI.Comm, dtype: np.dtype, rows: int, rows_at_once: int
) -> Run:
    """Return the function that gathers blocks by several Allgathers, some rows at a time.

    Blocks that split the columns of a matrix are not contiguous in the result. So rows are gathered into a buffer and
    copied to their places. The buffer is small enough for the processor's cache, which makes the copy fast. For
    example, with 10 rows and 4 at once, the calls gather 4, 4 and 2 rows of each block. The blocks must be equal and
    split one dim, in the order of the ranks. The function takes this rank's shard and returns a new array.

    Args:
        traffic: the transfers of this rank.
        comm: the communicator of the group.
        dtype: the element type.
        rows: the number of rows of a block: the product of its dims before the split one.
        rows_at_once: the largest number of rows of a block in one call.
    """
    size, width = comm.size, math.prod(traffic.source) // rows
    kind = element(dtype.itemsize)
    fresh, landing = allocator(traffic.target, dtype), allocator((rows_at_once * size * width,), dtype)

    def run(array: np.ndarray) -> np.ndarray:
        """Gather ``rows_at_once`` rows per call, and copy each batch to its places."""
        out, buffer, own_rows = fresh(), landing(), array.reshape(rows, width)
        target = out.reshape(rows, size, width)
        for begin in range(0, rows, rows_at_once):
            end = min(rows, begin + rows_at_once)
            count = (end - begin) * width
            received = buffer[: size * count]
            comm.Allgather([own_rows[begin:end], count, kind], [received, count, kind])
            target[begin:end] = received.reshape(size, end - begin, width).swapaxes(0, 1)
        return out

    return run


def _derive_swap(traffic: RankTransfers, comm: MPI.Comm, dtype: np.dtype) -> Run:
    """Return the function that exchanges equal blocks by one Alltoall, without copies."""
    kind, count = element(dtype.itemsize), math.prod(traffic.source) // comm.size
    return _call_once(comm.Alltoall, allocator(traffic.target, dtype), (count, kind), (count, kind))


def _derive_typed_exchange(
    traffic: RankTransfers, comm: MPI.Comm, dtype: np.dtype, created: list[MPI.Datatype]
) -> Run:
    """Return the function that exchanges boxes by one Alltoallw, without packing them.

    The function takes this rank's shard and returns a new array. MPI reads the boxes in the shard and writes them in
    the result, as this function describes them for each rank. The box that this rank keeps is sent by MPI, too, from
    the rank to itself.

    - No box: the count 0.
    - One box that is contiguous, at an offset that MPI can count: its number of elements and the offset in bytes.
    - Any other box, or several: one MPI type with the positions of the elements.

    Args:
        traffic: the transfers of this rank.
        comm: the communicator of the step's ranks.
        dtype: the element type.
        created: a list to which the MPI types are appended; the caller must free them.
    """
    size, kind = comm.size, element(dtype.itemsize)

    def side(pieces: tuple[MemberBox, ...], shape: tuple[int, ...]) -> tuple[list[int], list[int], list[Any]]:
        """Return counts, displacements in bytes and types of one side, each with an entry per rank."""
        counts, displacements, types = [0] * size, [0] * size, [kind] * size
        for member, member_pieces in groupby(pieces, lambda piece: piece.member):
            indices = [piece.index for piece in member_pieces]
            offset = flat_offset(shape, indices[0]) if len(indices) == 1 else None
            if offset is not None and offset * dtype.itemsize <= MAX_COUNT:
                counts[member] = MemberBox(member, indices[0]).count
                displacements[member] = offset * dtype.itemsize
            else:
                counts[member] = 1
                boxes = [subarray(shape, index, dtype.itemsize) for index in indices]
                created.extend(boxes)
                types[member] = boxes[0]
                if len(boxes) > 1:
                    struct_type = MPI.Datatype.Create_struct([1] * len(boxes), [0] * len(boxes), boxes)
                    types[member] = struct_type.Commit()
                    created.append(struct_type)
        return counts, displacements, types

    sends, receives = traffic.sends, traffic.receives
    if traffic.local_box is not None:
        before, after = traffic.local_box
        sends = (*sends, MemberBox(traffic.me, before))
        receives = (*receives, MemberBox(traffic.me, after))
    sent, received = side(sends, traffic.source), side(receives, traffic.target)
    return _call_once(comm.Alltoallw, allocator(traffic.target, dtype), sent, received)


def _pack(side: Side, array: np.ndarray) -> np.ndarray:
    """Return the boxes of an array one after the other; the array itself if it has them in this form.

    Args:
        side: the boxes to send.
        array: this rank's shard.
    """
    if side.direct:
        return array
    buffer, offset = take_buffer((side.total,), array.dtype), 0
    for piece in side.pieces:
        buffer[offset : offset + piece.count].reshape(piece.shape)[...] = array[piece.index]
        offset += piece.count
    return buffer


def _unpack(side: Side, buffer: np.ndarray, out: np.ndarray) -> None:
    """Copy the boxes of a packed buffer to their places in ``out``."""
    offset = 0
    for piece in () if side.direct else side.pieces:
        out[piece.index] = buffer[offset : offset + piece.count].reshape(piece.shape)
        offset += piece.count


def _derive_packed_exchange(traffic: RankTransfers, comm: MPI.Comm, dtype: np.dtype) -> Run:
    """Return the function that packs boxes, exchanges them by one Alltoallv, and unpacks them.

    The function takes this rank's shard and returns a new array. It copies only what it must:

    - The boxes to send are packed into a buffer, unless each rank gets one box that is contiguous in the shard.
    - The boxes to receive are unpacked from a buffer, unless each rank sends one that is contiguous in the result.
    - The box that stays on this rank is copied without MPI.

    Args:
        traffic: the transfers of this rank.
        comm: the communicator of the step's ranks.
        dtype: the element type.
    """
    sent = arrange_side(traffic.sends, traffic.source, comm.size)
    received = arrange_side(traffic.receives, traffic.target, comm.size)
    kind, own_box = element(dtype.itemsize), traffic.local_box
    sent_layout, received_layout = (sent.counts, sent.offsets), (received.counts, received.offsets)
    fresh, buffer = allocator(traffic.target, dtype), allocator((received.total,), dtype)

    def run(array: np.ndarray) -> np.ndarray:
        out = fresh()
        landing = out if received.direct else buffer()
        outgoing = _pack(sent, array)
        comm.Alltoallv([outgoing, sent_layout, kind], [landing, received_layout, kind])
        if own_box is not None:
            out[own_box[1]] = array[own_box[0]]
        _unpack(received, landing, out)
        return out

    return run


def _derive_messages(traffic: RankTransfers, comm: MPI.Comm, dtype: np.dtype) -> Run:
    """Return the function that exchanges boxes by single messages, without a collective.

    The function takes this rank's shard and returns a new array. It posts all receives, then all sends, copies the box
    that stays on this rank, and waits for all messages. A box of more than :data:`MAX_COUNT` elements goes in several
    messages. A received box that is not contiguous in the result goes through a buffer.

    Args:
        traffic: the transfers of this rank.
        comm: the communicator of the step's ranks.
        dtype: the element type.
    """
    kind, own_box, target = element(dtype.itemsize), traffic.local_box, traffic.target

    def run(array: np.ndarray) -> np.ndarray:
        """Post all receives, then all sends; copy the own box while the messages are under way."""
        out, requests, landings = take_buffer(target, dtype), [], []
        for piece in traffic.receives:
            offset = flat_offset(target, piece.index)
            if offset is None:
                landing = take_buffer((piece.count,), dtype)
                landings.append((piece, landing))
            else:
                landing = out.reshape(-1)[offset : offset + piece.count]
            requests += [comm.Irecv([flat_part, kind], piece.member) for flat_part in counted_parts(landing)]
        for piece in traffic.sends:
            box = contiguous(array[piece.index])
            requests += [comm.Isend([flat_part, kind], piece.member) for flat_part in counted_parts(box)]
        if own_box is not None:
            out[own_box[1]] = array[own_box[0]]
        MPI.Request.Waitall(requests)
        for piece, landing in landings:
            out[piece.index] = landing.reshape(piece.shape)
        return out

    return run


_PLAIN = {
    "gather": _derive_gather,
    "gather, unpack": _derive_gather_unpack,
    "swap": _derive_swap,
    "packed": _derive_packed_exchange,
    "messages": _derive_messages,
}
