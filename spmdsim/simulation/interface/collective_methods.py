"""The collective methods of a communicator: blocking, nonblocking and persistent.

One function per collective has mpi4py's signature. It converts the arguments of one rank to a `CollectiveCall`. The
blocking, nonblocking and persistent methods are created from it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from spmdsim.errors import many
from spmdsim.simulation.data.constants import IN_PLACE, MPIError
from spmdsim.simulation.data.memory_overlap import overlap_one_another, share_memory
from spmdsim.simulation.data.message_buffers import (
    MessageBuffer,
    ObjectPayload,
    message_buffer,
    split_by_counts,
    split_by_types,
    split_equally,
)
from spmdsim.simulation.data.reduce_operators import SUM, Op, as_op
from spmdsim.simulation.engine.collective_calls import RULES, CollectiveCall, join_meeting
from spmdsim.simulation.engine.mailboxes import wait_for
from spmdsim.simulation.findings.problems import site_of
from spmdsim.simulation.interface.requests import Prequest, Request, take_result


def check_root(comm: Any, root: int) -> int:
    """Return the root; raise an MPI error (ERR_ROOT) if it is outside of the communicator."""
    if not 0 <= root < comm.size:
        raise MPIError("ERR_ROOT", f"root must be 0 to {comm.size - 1}, got {root}")
    return int(root)


def is_in_place(spec: Any) -> bool:
    """Return True for MPI.IN_PLACE, and for None, which mpi4py accepts instead."""
    return spec is None or spec is IN_PLACE


def _equal_facts(buffer: MessageBuffer, **facts: Any) -> dict[str, Any]:
    """Return the arguments that must be equal on all ranks, by name.

    These are ``facts``, then "dtype", as text, and "count", the number of elements, of a buffer.
    """
    return {**facts, "dtype": str(buffer.dtype), "count": buffer.elements}


def _check_memory(self: Any, call: CollectiveCall, name: str, in_place: bool) -> None:
    """Raise an MPI error if a collective reads memory that it writes, or writes memory twice.

    MPI forbids both. Open MPI accepts shared memory in collectives that do not reduce, and both Open MPI and MPICH
    accept blocks that overlap; the option ``like`` selects what is checked.

    Args:
        self: the communicator.
        call: the call of this rank.
        name: name of the method, such as "Gatherv".
        in_place: True if an argument is MPI.IN_PLACE or None.
    """
    like, receive = self._scheduler.like, call.receive
    if not receive or call.rule.priced_as == "broadcast":
        return
    refuses_shared = like != "openmpi" or call.op is not None
    if refuses_shared and not in_place and share_memory(call.send, receive):
        raise MPIError(
            "ERR_BUFFER",
            f"the send buffer of {name} must not share memory with its receive buffer; "
            "pass MPI.IN_PLACE or a copy",
        )
    if like == "strict" and name.removesuffix("_init")[-1] in "vw" and overlap_one_another(receive):
        raise MPIError(
            "ERR_BUFFER",
            f"the blocks of the receive buffer of {name} must not overlap; check the displacements",
        )


def _prepared_call(
    prepare: Callable[..., CollectiveCall], self: Any, name: str, args: Any, kwargs: Any
) -> CollectiveCall:
    """Return this rank's call of a collective; raise an error if its buffers overlap.

    Args:
        prepare: converts the arguments to the call.
        self: the communicator.
        name: name of the method.
        args: the program's arguments.
        kwargs: its arguments with a name.
    """
    call = prepare(self, *args, **kwargs)
    if call.receive:
        in_place = any(is_in_place(argument) for argument in (*args, *kwargs.values()))
        _check_memory(self, call, name, in_place)
    return call


# ---------------------------------------------------------------------- upper-case: buffers


def Barrier(self: Any) -> CollectiveCall:
    """Block until all ranks of the communicator have called. ``Ibarrier`` returns a request."""
    return CollectiveCall(RULES["barrier"], [], [], {})


def Bcast(self: Any, buf: Any, root: int = 0) -> CollectiveCall:
    """Send the root's buffer to all ranks. All ranks must call it.

    ``Bcast`` blocks; ``Ibcast`` returns a request and ``Bcast_init`` a persistent one. Roots, dtypes or counts that
    differ between ranks end the run with a finding.

    Args:
        self: the communicator.
        buf: the data on the root, overwritten on other ranks: an array, or ``[array, count, displacement, datatype]``
            with later items omitted.
        root: rank of the root.

    Raises:
        BufferError: If the memory is not contiguous.
        MPIError: If the root is no rank, or the memory is too small for the count.
        TypeError: If ``buf`` is no buffer.
    """
    root = check_root(self, root)
    buffer = message_buffer(buf)
    receive = [] if self._rank == root else [buffer]
    return CollectiveCall(RULES["broadcast"], [buffer], receive, _equal_facts(buffer, root=root), root)


def _gather_call(self: Any, sendbuf: Any, recvbuf: Any, root: int, split: Any, even: bool) -> CollectiveCall:
    """Return the call of a gather: what this rank sends and, on the root, the buffers to fill.

    Args:
        self: the communicator.
        sendbuf: the block of this rank; on the root it may be MPI.IN_PLACE or None: its block is in ``recvbuf``.
        recvbuf: the buffer of the root; not read on other ranks.
        root: the root.
        split: ``split_equally`` or ``split_by_counts``, to split the root's buffer into one block per rank.
        even: True if all blocks must be equal in type and size.

    Raises:
        MPIError: If the root is outside of the communicator. Also the errors of ``split`` and ``message_buffer``.
    """
    root = check_root(self, root)
    receive = split(recvbuf, self.size) if self._rank == root else []
    block = receive[root] if is_in_place(sendbuf) and self._rank == root else message_buffer(sendbuf)
    facts = _equal_facts(block, root=root) if even else {"root": root}
    return CollectiveCall(RULES["gather"], [block], receive, facts, root)


def Gather(self: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveCall:
    """Gather equal blocks of all ranks to the root, in rank order. All ranks must call it.

    ``Gather`` blocks; ``Igather`` returns a request and ``Gather_init`` a persistent one. Roots, dtypes or counts
    that differ between ranks end the run with a finding.

    Args:
        self: the communicator.
        sendbuf: this rank's block: an array, or ``[array, count, displacement, datatype]`` with later items omitted.
            On the root it may be MPI.IN_PLACE or None: its block is in ``recvbuf``.
        recvbuf: room for one block per rank; read on the root only, None elsewhere. A count is the count of one
            block.
        root: rank of the root.

    Raises:
        BufferError: If memory is not contiguous.
        MPIError: If the root is no rank, one array is both buffers, or memory is too small for a count.
        ValueError: If ``recvbuf`` has no count and cannot be divided by the number of ranks.
    """
    check_root(self, root)
    return _gather_call(self, sendbuf, recvbuf, root, split_equally, even=True)


def Gatherv(self: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveCall:
    """Gather blocks of any size to the root, in rank order. All ranks must call it.

    ``Gatherv`` blocks; ``Igatherv`` returns a request and ``Gatherv_init`` a persistent one. Roots that differ
    between ranks, and a block whose size or type is not the one that the root expects, end the run with a finding.

    Args:
        self: the communicator.
        sendbuf: this rank's block: an array, or ``[array, count, displacement, datatype]`` with later items omitted.
            On the root it may be MPI.IN_PLACE or None: its block is in ``recvbuf``.
        recvbuf: read on the root only, None elsewhere: ``[array, counts, displacements, datatype]`` with one count
            and one displacement per rank. Without counts blocks are equal, without displacements they are
            consecutive.
        root: rank of the root.

    Raises:
        BufferError: If memory is not contiguous.
        MPIError: If the root is no rank, or memory is too small for a block.
        ValueError: If the number of counts or displacements is not the number of ranks.
    """
    return _gather_call(self, sendbuf, recvbuf, root, split_by_counts, even=False)


def _scatter_call(self: Any, sendbuf: Any, recvbuf: Any, root: int, split: Any, even: bool) -> CollectiveCall:
    """Return the call of a scatter: the root's blocks, and the buffer that this rank fills.

    Args:
        self: the communicator.
        sendbuf: the buffer of the root; not read on other ranks.
        recvbuf: the block of this rank; on the root it may be MPI.IN_PLACE or None: its block is not copied.
        root: the root.
        split: ``split_equally`` or ``split_by_counts``, to split the root's buffer into one block per rank.
        even: True if all blocks must be equal in type and size; the ranks then compare both.

    Raises:
        MPIError: If the root is outside of the communicator. Also the errors of ``split`` and ``message_buffer``.
    """
    root = check_root(self, root)
    blocks = split(sendbuf, self.size) if self._rank == root else []
    keeps_block = is_in_place(recvbuf) and self._rank == root
    receive = [] if keeps_block else [message_buffer(recvbuf)]
    facts = _equal_facts(blocks[root] if keeps_block else receive[0], root=root) if even else {"root": root}
    return CollectiveCall(RULES["scatter"], list(blocks), receive, facts, root)


def Scatter(self: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveCall:
    """Scatter equal blocks of the root's buffer, one per rank, in rank order. All ranks must call it.

    ``Scatter`` blocks; ``Iscatter`` returns a request and ``Scatter_init`` a persistent one. Roots, dtypes or counts
    that differ between ranks end the run with a finding.

    Args:
        self: the communicator.
        sendbuf: one block per rank; read on the root only, None elsewhere: an array, or ``[array, count,
            displacement, datatype]`` with later items omitted. A count is the count of one block.
        recvbuf: room for this rank's block, in the form of ``sendbuf``. On the root it may be MPI.IN_PLACE or None:
            its block is not copied.
        root: rank of the root.

    Raises:
        BufferError: If memory is not contiguous.
        MPIError: If the root is no rank, or memory is too small for a count.
        ValueError: If ``sendbuf`` has no count and cannot be divided by the number of ranks.
    """
    return _scatter_call(self, sendbuf, recvbuf, root, split_equally, even=True)


def Scatterv(self: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveCall:
    """Scatter blocks of any size of the root's buffer, one per rank. All ranks must call it.

    ``Scatterv`` blocks; ``Iscatterv`` returns a request and ``Scatterv_init`` a persistent one. Roots that differ
    between ranks, and a block whose size or type is not that of its receive buffer, end the run with a finding.

    Args:
        self: the communicator.
        sendbuf: read on the root only, None elsewhere: ``[array, counts, displacements, datatype]`` with one count
            and one displacement per rank. Without counts blocks are equal, without displacements they are
            consecutive.
        recvbuf: room for this rank's block: an array, or ``[array, count, displacement, datatype]`` with later items
            omitted. On the root it may be MPI.IN_PLACE or None: its block is not copied.
        root: rank of the root.

    Raises:
        BufferError: If memory is not contiguous.
        MPIError: If the root is no rank, or memory is too small for a block.
        ValueError: If the number of counts or displacements is not the number of ranks.
    """
    return _scatter_call(self, sendbuf, recvbuf, root, split_by_counts, even=False)


def Allgather(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Gather equal blocks of all ranks to all ranks, in rank order. All ranks must call it.

    ``Allgather`` blocks; ``Iallgather`` returns a request and ``Allgather_init`` a persistent one. Dtypes or counts
    that differ between ranks end the run with a finding.

    Args:
        self: the communicator.
        sendbuf: this rank's block: an array, or ``[array, count, displacement, datatype]`` with later items omitted.
            MPI.IN_PLACE or None: the block is in ``recvbuf``.
        recvbuf: room for one block per rank, in the form of ``sendbuf``. A count is the count of one block.

    Raises:
        BufferError: If memory is not contiguous.
        MPIError: If one array is both buffers, or memory is too small for a count.
        ValueError: If ``recvbuf`` has no count and cannot be divided by the number of ranks.
    """
    receive = split_equally(recvbuf, self.size)
    block = receive[self._rank] if is_in_place(sendbuf) else message_buffer(sendbuf)
    return CollectiveCall(RULES["all_gather"], [block], receive, _equal_facts(block))


def Allgatherv(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Gather blocks of any size to all ranks, in rank order. All ranks must call it.

    ``Allgatherv`` blocks; ``Iallgatherv`` returns a request and ``Allgatherv_init`` a persistent one. A block whose
    size or type is not the one that a receiver expects ends the run with a finding.

    Args:
        self: the communicator.
        sendbuf: this rank's block: an array, or ``[array, count, displacement, datatype]`` with later items omitted.
            MPI.IN_PLACE or None: the block is in ``recvbuf``.
        recvbuf: ``[array, counts, displacements, datatype]`` with one count and one displacement per rank. Without
            counts blocks are equal, without displacements they are consecutive.

    Raises:
        BufferError: If memory is not contiguous.
        MPIError: If memory is too small for a block.
        ValueError: If the number of counts or displacements is not the number of ranks.
    """
    receive = split_by_counts(recvbuf, self.size)
    block = receive[self._rank] if is_in_place(sendbuf) else message_buffer(sendbuf)
    return CollectiveCall(RULES["all_gather"], [block], receive, {})


def _exchange_call(self: Any, sendbuf: Any, recvbuf: Any, split: Any) -> CollectiveCall:
    """Return the call of an all-to-all.

    Args:
        self: the communicator.
        sendbuf: the blocks to send, or MPI.IN_PLACE or None: send those in ``recvbuf``.
        recvbuf: room for one block per rank.
        split: function that splits each buffer into one block per rank, such as ``split_equally``.
    """
    receive = split(recvbuf, self.size)
    blocks = receive if is_in_place(sendbuf) else split(sendbuf, self.size)
    return CollectiveCall(RULES["all_to_all"], list(blocks), receive, {})


def Alltoall(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Exchange equal blocks between all ranks: block j of rank i becomes block i of rank j.

    All ranks must call it. ``Alltoall`` blocks; ``Ialltoall`` returns a request and ``Alltoall_init`` a persistent
    one. Dtypes or counts that differ between ranks end the run with a finding.

    Args:
        self: the communicator.
        sendbuf: one block per rank: an array, or ``[array, count, displacement, datatype]`` with later items omitted.
            A count is the count of one block. MPI.IN_PLACE or None: send the blocks in ``recvbuf``.
        recvbuf: room for one block per rank, in the form of ``sendbuf``.

    Raises:
        BufferError: If memory is not contiguous.
        MPIError: If one array is both buffers, or memory is too small for a count.
        ValueError: If a buffer has no count and cannot be divided by the number of ranks.
    """
    call = _exchange_call(self, sendbuf, recvbuf, split_equally)
    call.facts = _equal_facts(call.send[0])
    return call


def Alltoallv(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Exchange blocks of any size between all ranks: block j of rank i becomes block i of rank j.

    All ranks must call it. ``Alltoallv`` blocks; ``Ialltoallv`` returns a request and ``Alltoallv_init`` a persistent
    one. A block whose size or type is not the one that the receiver expects ends the run with a finding.

    Args:
        self: the communicator.
        sendbuf: ``[array, counts, displacements, datatype]`` with one count and one displacement per rank. Without
            counts blocks are equal, without displacements they are consecutive. MPI.IN_PLACE or None: send the blocks
            in ``recvbuf``.
        recvbuf: the memory to fill, in the form of ``sendbuf``.

    Raises:
        BufferError: If memory is not contiguous.
        MPIError: If memory is too small for a block.
        ValueError: If the number of counts or displacements is not the number of ranks.
    """
    return _exchange_call(self, sendbuf, recvbuf, split_by_counts)


def Alltoallw(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Exchange blocks of any size and type: block j of rank i becomes block i of rank j.

    All ranks must call it. ``Alltoallw`` blocks; ``Ialltoallw`` returns a request and ``Alltoallw_init`` a persistent
    one. A block whose size or type is not the one that the receiver expects ends the run with a finding.

    Args:
        self: the communicator.
        sendbuf: ``[array, counts, displacements, datatypes]`` with one count, one displacement in bytes and one
            datatype per rank; ``[array, datatypes]`` has counts of 1 and displacements of 0. MPI.IN_PLACE or None:
            send the blocks in ``recvbuf``.
        recvbuf: the memory to fill, in the form of ``sendbuf``.

    Raises:
        BufferError: If memory is not contiguous.
        MPIError: If memory is too small for a block, or a displacement is no multiple of the basic type's size.
        TypeError: If a count or displacement is no integer, or a datatype no MPI datatype.
        ValueError: If a buffer has another form, or another number of entries than ranks.
    """
    return _exchange_call(self, sendbuf, recvbuf, split_by_types)


def _reduce_call(
    self: Any,
    rule: str,
    sendbuf: Any,
    receive: list[MessageBuffer],
    op: Any,
    buffer: MessageBuffer,
    **facts: Any,
) -> CollectiveCall:
    """Return the call of a reduction.

    Args:
        self: the communicator.
        rule: name of the rule in RULES, such as "all_reduce".
        sendbuf: the vector of this rank. If it is MPI.IN_PLACE or None, the vector is ``buffer``.
        receive: the buffers to fill; empty on a rank that gets no result.
        op: the operation. A function of two Python objects is refused, because it is not defined for arrays.
        buffer: the vector of this rank if ``sendbuf`` is MPI.IN_PLACE or None; otherwise not used.
        facts: further arguments that must be equal on all ranks, such as the root.

    Raises:
        MPIError: If the operation is not defined for the dtype; a function is defined for none.
        TypeError: If ``op`` is neither an operation nor a function, or ``sendbuf`` no buffer.
    """
    operation = as_op(op)
    vector = buffer if is_in_place(sendbuf) else message_buffer(sendbuf)
    operation.check(vector.dtype)
    # Differences are reported in this order: the root, the operation, type and count, other arguments.
    root = {"root": facts["root"]} if "root" in facts else {}
    all_facts = _equal_facts(vector, **root, op=operation.comparison_key()) | facts
    return CollectiveCall(RULES[rule], [vector], receive, all_facts, root.get("root", -1), operation)


def _receive_blocks(sendbuf: Any, buffer: MessageBuffer) -> list[MessageBuffer]:
    """Return a list with the receive buffer.

    Args:
        sendbuf: the send buffer as the program passed it; for MPI.IN_PLACE or None nothing is checked.
        buffer: the receive buffer.

    Raises:
        ValueError: If the buffers have different types or lengths.
    """
    if not is_in_place(sendbuf):
        vector = message_buffer(sendbuf)
        _check_one_type(vector, buffer)
        _check_length(buffer, vector.elements)
    return [buffer]


def _check_one_type(vector: MessageBuffer, buffer: MessageBuffer) -> None:
    """Raise ValueError if the vector to reduce and the receive buffer have different dtypes."""
    if vector.dtype != buffer.dtype:
        raise ValueError(
            f"both buffers must have one type, got {vector.dtype} to send and {buffer.dtype} to receive"
        )


def _check_length(buffer: MessageBuffer, count: int) -> None:
    """Raise ValueError if a receive buffer does not have ``count`` elements."""
    if buffer.elements != count:
        raise ValueError(f"the receive buffer must have {many(count, 'element')}, got {buffer.elements}")


def _block_buffer(sendbuf: Any, buffer: MessageBuffer, count: int) -> list[MessageBuffer]:
    """Return a list with the buffer for a rank's block of a vector.

    Args:
        sendbuf: the send buffer as the program passed it. MPI.IN_PLACE or None: ``buffer`` has the whole vector.
        buffer: the receive buffer.
        count: the number of elements of the block.

    Raises:
        ValueError: If a receive buffer that does not have the whole vector has another length.
    """
    if is_in_place(sendbuf):
        return [buffer.select_elements(0, count)]
    _check_length(buffer, count)
    return [buffer]


def Reduce(self: Any, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> CollectiveCall:
    """Reduce all ranks' vectors element by element to the root, in rank order.

    All ranks must call it. ``Reduce`` blocks; ``Ireduce`` returns a request and ``Reduce_init`` a persistent one.
    Roots, operations, dtypes or counts that differ between ranks end the run with a finding.

    Args:
        self: the communicator.
        sendbuf: this rank's vector: an array, or ``[array, count, displacement, datatype]`` with later items omitted.
            Only the root may pass MPI.IN_PLACE or None: its vector is in ``recvbuf``.
        recvbuf: room for the result; read on the root only, None elsewhere. It has the vector's length.
        op: the operation.
        root: rank of the root.

    Raises:
        BufferError: If memory is not contiguous.
        MPIError: If the root is no rank, the operation is not defined for the dtype, one array is both buffers, their
            types differ, or another rank than the root passes MPI.IN_PLACE.
        ValueError: If ``recvbuf`` is shorter than the vector.
    """
    root = check_root(self, root)
    if self._rank != root:
        if is_in_place(sendbuf):
            raise MPIError(
                "ERR_BUFFER", "the send buffer can be MPI.IN_PLACE on the root only; pass an array"
            )
        return _reduce_call(self, "reduce", sendbuf, [], op, message_buffer(sendbuf), root=root)
    buffer = message_buffer(recvbuf)
    return _reduce_call(self, "reduce", sendbuf, _receive_blocks(sendbuf, buffer), op, buffer, root=root)


def _reduce_to_all_call(self: Any, rule: str, sendbuf: Any, recvbuf: Any, op: Op) -> CollectiveCall:
    """Return the call of a reduction whose result every rank receives.

    Args:
        self: the communicator.
        rule: name of the rule in RULES: "all_reduce", "scan" or "exscan".
        sendbuf: the vector of this rank, or MPI.IN_PLACE or None: it is in ``recvbuf``.
        recvbuf: room for the result, as long as the vector.
        op: the operation.

    Raises:
        MPIError: If one array is both buffers, their types differ, or the operation is not defined for the type.
        ValueError: If ``recvbuf`` is shorter than the vector.
    """
    buffer = message_buffer(recvbuf)
    return _reduce_call(self, rule, sendbuf, _receive_blocks(sendbuf, buffer), op, buffer)


def Allreduce(self: Any, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> CollectiveCall:
    """Reduce all ranks' vectors element by element to all ranks, in rank order.

    All ranks must call it. ``Allreduce`` blocks; ``Iallreduce`` returns a request and ``Allreduce_init`` a persistent
    one. Operations, dtypes or counts that differ between ranks end the run with a finding.

    Args:
        self: the communicator.
        sendbuf: this rank's vector: an array, or ``[array, count, displacement, datatype]`` with later items omitted.
            MPI.IN_PLACE or None: it is in ``recvbuf``.
        recvbuf: room for the result, in the form of ``sendbuf``, as long as the vector.
        op: the operation.

    Raises:
        BufferError: If memory is not contiguous.
        MPIError: If the operation is not defined for the dtype, one array is both buffers, or their types differ.
        ValueError: If ``recvbuf`` is shorter than the vector.
    """
    return _reduce_to_all_call(self, "all_reduce", sendbuf, recvbuf, op)


def Scan(self: Any, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> CollectiveCall:
    """Reduce the vectors of the ranks up to and including this one, element by element.

    All ranks must call it. ``Scan`` blocks; ``Iscan`` returns a request and ``Scan_init`` a persistent one.
    Operations, dtypes or counts that differ between ranks end the run with a finding.

    Args:
        self: the communicator.
        sendbuf: this rank's vector: an array, or ``[array, count, displacement, datatype]`` with later items omitted.
            MPI.IN_PLACE or None: it is in ``recvbuf``.
        recvbuf: room for the result, in the form of ``sendbuf``, as long as the vector.
        op: the operation.

    Raises:
        BufferError: If memory is not contiguous.
        MPIError: If the operation is not defined for the dtype, one array is both buffers, or their types differ.
        ValueError: If ``recvbuf`` is shorter than the vector.
    """
    return _reduce_to_all_call(self, "scan", sendbuf, recvbuf, op)


def Exscan(self: Any, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> CollectiveCall:
    """Reduce the vectors of the ranks before this one; rank 0's receive buffer stays unchanged.

    All ranks must call it. ``Exscan`` blocks; ``Iexscan`` returns a request and ``Exscan_init`` a persistent one.
    Operations, dtypes or counts that differ between ranks end the run with a finding.

    Args:
        self: the communicator.
        sendbuf: this rank's vector: an array, or ``[array, count, displacement, datatype]`` with later items omitted.
            MPI.IN_PLACE or None: it is in ``recvbuf``.
        recvbuf: room for the result, in the form of ``sendbuf``, as long as the vector.
        op: the operation.

    Raises:
        BufferError: If memory is not contiguous.
        MPIError: If the operation is not defined for the dtype, one array is both buffers, or their types differ.
        ValueError: If ``recvbuf`` is shorter than the vector.
    """
    return _reduce_to_all_call(self, "exscan", sendbuf, recvbuf, op)


def Reduce_scatter_block(self: Any, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> CollectiveCall:
    """Reduce all ranks' vectors element by element; give each rank one block of the result.

    All ranks must call it, and all blocks are equal in size. ``Reduce_scatter_block`` blocks;
    ``Ireduce_scatter_block`` returns a request and ``Reduce_scatter_block_init`` a persistent one. Operations, dtypes
    or counts that differ between ranks end the run with a finding.

    Args:
        self: the communicator.
        sendbuf: this rank's vector, one block per rank: an array, or ``[array, count, displacement, datatype]`` with
            later items omitted. MPI.IN_PLACE or None: the vector is in ``recvbuf``, whose first block is overwritten.
        recvbuf: room for one block.
        op: the operation.

    Raises:
        BufferError: If memory is not contiguous.
        MPIError: If the operation is not defined for the dtype, one array is both buffers, or their types differ.
        ValueError: If the vector cannot be divided by the number of ranks, or ``recvbuf`` another length.
    """
    buffer = message_buffer(recvbuf)
    vector = buffer if is_in_place(sendbuf) else message_buffer(sendbuf)
    _check_one_type(vector, buffer)
    receive = _block_buffer(sendbuf, buffer, _elements_per_rank(self, vector))
    return _reduce_call(self, "reduce_scatter", sendbuf, receive, op, buffer)


def _elements_per_rank(self: Any, vector: MessageBuffer) -> int:
    """Return the number of elements of each rank's block, if a vector is divided into equal blocks.

    Args:
        self: the communicator.
        vector: the vector.

    Raises:
        ValueError: If the number of elements is not a multiple of the number of ranks.
    """
    if vector.elements % self.size:
        raise ValueError(
            f"the vector must have a multiple of {many(self.size, 'element')}, one block per rank, got {vector.elements}"
        )
    count: int = vector.elements // self.size
    return count


def Reduce_scatter(
    self: Any, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Op = SUM
) -> CollectiveCall:
    """Reduce all ranks' vectors element by element; give each rank a block of the result.

    All ranks must call it. Rank r gets ``recvcounts[r]`` elements. Blocks are consecutive, in rank order: with
    ``recvcounts`` [1, 3, 2], rank 1 gets elements 1 to 3 of the sum. ``Reduce_scatter`` blocks; ``Ireduce_scatter``
    returns a request and ``Reduce_scatter_init`` a persistent one. Operations, dtypes, lengths or counts that differ
    between ranks end the run with a finding.

    Args:
        self: the communicator.
        sendbuf: this rank's vector: an array, or ``[array, count, displacement, datatype]`` with later items omitted.
            MPI.IN_PLACE or None: the vector is in ``recvbuf``, whose first elements are overwritten.
        recvbuf: room for this rank's block.
        recvcounts: one number per rank, with the vector's length as their sum. None: each rank gets as many elements
            as its receive buffer has, and elements after the last block are dropped; with MPI.IN_PLACE, equal blocks.
        op: the operation.

    Raises:
        BufferError: If memory is not contiguous.
        MPIError: If the operation is not defined for the dtype, one array is both buffers, or their types differ.
        ValueError: If ``recvcounts`` has another length or sum, or ``recvbuf`` another length. Without ``recvcounts``,
            if all receive buffers together are longer than the vector.
    """
    buffer = message_buffer(recvbuf)
    vector = buffer if is_in_place(sendbuf) else message_buffer(sendbuf)
    _check_one_type(vector, buffer)
    if recvcounts is None and not is_in_place(sendbuf):
        return _reduce_call(self, "reduce_scatter", sendbuf, [buffer], op, buffer)
    if recvcounts is None:
        counts = [_elements_per_rank(self, vector)] * self.size
    else:
        counts = [int(count) for count in recvcounts]
    if len(counts) != self.size or sum(counts) != vector.elements:
        raise ValueError(
            f"recvcounts must be {many(self.size, 'number')} with the sum {vector.elements}, got {counts}"
        )
    receive = _block_buffer(sendbuf, buffer, counts[self._rank])
    return _reduce_call(self, "reduce_scatter", sendbuf, receive, op, buffer, counts=tuple(counts))


# ---------------------------------------------------------------------- lower-case: Python objects


def _object_per_rank(self: Any, sendobj: Any) -> list[ObjectPayload]:
    """Return a list of objects to send, one per rank; raise ValueError for another number."""
    objects = [None] * self.size if sendobj is None else list(sendobj)
    if len(objects) != self.size:
        raise ValueError(f"sendobj must have {self.size} items, one per rank, got {len(objects)}")
    return [ObjectPayload(item) for item in objects]


def barrier(self: Any) -> CollectiveCall:
    """Block until all ranks of the communicator have called."""
    return CollectiveCall(RULES["barrier"], [], None, {})


def bcast(self: Any, obj: Any, root: int = 0) -> CollectiveCall:
    """Send the root's object to all ranks, and return it.

    All ranks must call it; it blocks until they have. Each rank gets a copy, the root too. Roots that differ between
    ranks end the run with a finding.

    Args:
        self: the communicator.
        obj: on the root any object that can be pickled; not sent by other ranks.
        root: rank of the root.

    Raises:
        MPIError: If the root is no rank.
    """
    root = check_root(self, root)
    send = [ObjectPayload(obj)] if self._rank == root else []
    return CollectiveCall(RULES["broadcast"], send, None, {"root": root}, root)


def gather(self: Any, sendobj: Any, root: int = 0) -> CollectiveCall:
    """Gather all ranks' objects to the root, as a list in rank order; other ranks get None.

    All ranks must call it; it blocks until they have.

    Args:
        self: the communicator.
        sendobj: any object that can be pickled.
        root: rank of the root.

    Raises:
        MPIError: If the root is no rank.
    """
    root = check_root(self, root)
    send = [ObjectPayload(sendobj)]
    return CollectiveCall(RULES["gather"], send, None, {"root": root}, root, listed=True)


def scatter(self: Any, sendobj: Any, root: int = 0) -> CollectiveCall:
    """Scatter the root's list, and return this rank's object.

    All ranks must call it; it blocks until they have.

    Args:
        self: the communicator.
        sendobj: on the root one object per rank; not read on other ranks.
        root: rank of the root.

    Raises:
        MPIError: If the root is no rank.
        ValueError: If the root's list has another length than the number of ranks.
    """
    root = check_root(self, root)
    send = _object_per_rank(self, sendobj) if self._rank == root else []
    return CollectiveCall(RULES["scatter"], list(send), None, {"root": root}, root)


def allgather(self: Any, sendobj: Any) -> CollectiveCall:
    """Gather all ranks' objects to all ranks, as a list in rank order.

    All ranks must call it; it blocks until they have.

    Args:
        self: the communicator.
        sendobj: any object that can be pickled.
    """
    return CollectiveCall(RULES["all_gather"], [ObjectPayload(sendobj)], None, {}, listed=True)


def alltoall(self: Any, sendobj: Any) -> CollectiveCall:
    """Exchange objects: rank i gets a list with the i-th object of every rank's list, in rank order.

    All ranks must call it; it blocks until they have.

    Args:
        self: the communicator.
        sendobj: one object per rank.

    Raises:
        ValueError: If ``sendobj`` has another length than the number of ranks.
    """
    return CollectiveCall(RULES["all_to_all"], list(_object_per_rank(self, sendobj)), None, {}, listed=True)


def _object_reduce_call(rule: str, sendobj: Any, op: Any, root: int = -1) -> CollectiveCall:
    """Return the call of a reduction of objects.

    Args:
        rule: name of the rule in RULES, such as "reduce".
        sendobj: the object of this rank.
        op: the operation, or a function of two objects.
        root: rank of the root; -1: all ranks receive the result.

    Raises:
        TypeError: If ``op`` cannot be called.
    """
    op = as_op(op)
    facts = ({"root": root} if root >= 0 else {}) | {"op": op.comparison_key()}
    return CollectiveCall(RULES[rule], [ObjectPayload(sendobj)], None, facts, root, op)


def reduce(self: Any, sendobj: Any, op: Any = SUM, root: int = 0) -> CollectiveCall:
    """Reduce all ranks' objects to the root, in rank order; other ranks get None.

    All ranks must call it; it blocks until they have.

    Args:
        self: the communicator.
        sendobj: any object that can be pickled.
        op: an operation, or a function ``(left, right) -> result``.
        root: rank of the root.

    Raises:
        MPIError: If the root is no rank.
        TypeError: If ``op`` cannot be called.
    """
    return _object_reduce_call("reduce", sendobj, op, check_root(self, root))


def allreduce(self: Any, sendobj: Any, op: Any = SUM) -> CollectiveCall:
    """Reduce all ranks' objects to all ranks, in rank order. All ranks must call it; it blocks.

    Args:
        self: the communicator.
        sendobj: any object that can be pickled.
        op: an operation, or a function ``(left, right) -> result``.

    Raises:
        TypeError: If ``op`` cannot be called.
    """
    return _object_reduce_call("all_reduce", sendobj, op)


def scan(self: Any, sendobj: Any, op: Any = SUM) -> CollectiveCall:
    """Reduce the objects of the ranks up to and including this one, in rank order.

    All ranks must call it; it blocks until they have.

    Args:
        self: the communicator.
        sendobj: any object that can be pickled.
        op: an operation, or a function ``(left, right) -> result``.

    Raises:
        TypeError: If ``op`` cannot be called.
    """
    return _object_reduce_call("scan", sendobj, op)


def exscan(self: Any, sendobj: Any, op: Any = SUM) -> CollectiveCall:
    """Reduce the objects of the ranks before this one, in rank order; None on rank 0.

    All ranks must call it; it blocks until they have.

    Args:
        self: the communicator.
        sendobj: any object that can be pickled.
        op: an operation, or a function ``(left, right) -> result``.

    Raises:
        TypeError: If ``op`` cannot be called.
    """
    return _object_reduce_call("exscan", sendobj, op)


def call_collective(comm: Any, call: CollectiveCall, name: str, frame: Any) -> Any:
    """Join a collective, block until it is complete, and return its result.

    It is complete when all ranks of the communicator have joined. Differing calls end the run with a finding.

    Args:
        comm: the communicator.
        call: this rank's call.
        name: name of the method, such as "Bcast".
        frame: the caller's frame, to find the line of the call.

    Returns:
        None for buffers, which are filled in place; else the received object, list of objects, or ``call.value``.
    """
    end = comm._meeting_end
    task, scheduler = end.running(), end.scheduler
    begin, call.is_blocking = task.clock, True
    join_meeting(end, call, name, site_of(frame))
    wait_for(scheduler, call)
    result = take_result(call, None)
    if scheduler.observes_calls:
        scheduler.leave_call(task, name, begin, frame, nbytes=call.nbytes())
    return result


def describe_method(
    method: Callable[..., Any], name: str, prepare: Callable[..., Any], about: str | None = None
) -> Callable[..., Any]:
    """Give a generated method a name and the signature and docstring of another function; return it.

    Args:
        method: the generated method; changed in place.
        name: its name. The code object gets this name, too, because findings read it from the stack.
        prepare: the function whose signature and docstring it gets.
        about: another docstring; None: the docstring of ``prepare``.
    """
    method.__code__ = method.__code__.replace(co_name=name)
    method.__name__ = name
    method.__qualname__ = f"Comm.{name}"
    method.__doc__ = about or prepare.__doc__
    method.__signature__ = inspect.signature(prepare)  # type: ignore[attr-defined]
    return method


def _blocking_method(name: str, prepare: Callable[..., CollectiveCall]) -> Callable[..., Any]:
    """Return the blocking method of a collective; its result is that of :func:`call_collective`.

    Args:
        name: name of the method, such as "Bcast".
        prepare: called with the communicator and the program's arguments; returns this rank's call.
    """

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call_collective(
            self, _prepared_call(prepare, self, name, args, kwargs), name, sys._getframe(1)
        )

    return describe_method(method, name, prepare)


def _nonblocking_method(name: str, prepare: Callable[..., CollectiveCall]) -> Callable[..., Any]:
    """Return the method of a collective that joins it and returns a request.

    Args:
        name: name of the method, such as "Ibcast".
        prepare: called with the communicator and the program's arguments; returns this rank's call.
    """

    def method(self: Any, *args: Any, **kwargs: Any) -> Request:
        frame = sys._getframe(1)
        call = _prepared_call(prepare, self, name, args, kwargs)
        call.keep_contents()
        return Request(operation=join_meeting(self._meeting_end, call, name, site_of(frame)))

    return describe_method(method, name, prepare)


def _persistent_method(name: str, prepare: Callable[..., CollectiveCall]) -> Callable[..., Any]:
    """Return the persistent method of a collective, which returns a request to start repeatedly.

    The arguments are converted at each start, so errors in them are raised there. The argument ``info`` is ignored.

    Args:
        name: name of the method, such as "Bcast_init".
        prepare: called with the communicator and the program's arguments; returns this rank's call.
    """

    def method(self: Any, *args: Any, **kwargs: Any) -> Prequest:
        """Return the request."""
        kwargs.pop("info", None)
        frame = sys._getframe(1)
        site = site_of(frame)

        def start() -> CollectiveCall:
            call = _prepared_call(prepare, self, name, args, kwargs)
            call.keep_contents()
            return join_meeting(self._meeting_end, call, name, site)

        return Prequest(begin=start)

    return describe_method(method, name, prepare)


class CollectiveMethods:
    """The collective methods of a communicator, except those that create communicators."""


def add_collectives(cls: type, module: dict[str, Any]) -> None:
    """Add the methods of each collective of a module to a class of communicators.

    A collective is a public function of the module that returns a ``CollectiveCall``. Each gets a blocking method.
    Collectives of buffers, whose names begin with a capital letter, also get a nonblocking ``I...`` and a persistent
    ``..._init`` method.

    Args:
        cls: the class.
        module: the variables of the module.
    """
    for name, prepare in [*module.items()]:
        is_local = getattr(prepare, "__module__", None) == module["__name__"] and not name.startswith("_")
        if not is_local or prepare.__annotations__.get("return") != "CollectiveCall":
            continue
        makers = {name: _blocking_method}
        if not name.islower():
            makers |= {f"I{name.lower()}": _nonblocking_method, f"{name}_init": _persistent_method}
        for call, make_method in makers.items():
            setattr(cls, call, make_method(call, prepare))


add_collectives(CollectiveMethods, globals())
