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
    """Return the root; raise an MPI error if it is outside of the communicator."""
    if not 0 <= root < comm.size:
        raise MPIError("ERR_ROOT", f"root must be 0 to {comm.size - 1}, got {root}")
    return int(root)


def is_in_place(spec: Any) -> bool:
    """Return True for MPI.IN_PLACE, and for None, which mpi4py accepts instead."""
    return spec is None or spec is IN_PLACE


def _equal_facts(buffer: MessageBuffer, **facts: Any) -> dict[str, Any]:
    """Return the arguments that must be equal on all ranks: ``facts``, then dtype and count of a buffer."""
    return {**facts, "dtype": str(buffer.dtype), "count": buffer.elements}


def _check_distinct(send: Any, receive: Any) -> None:
    """Raise an MPI error if one array is both send and receive buffer, which MPI forbids."""
    if send is receive and not is_in_place(send) and message_buffer(send).elements:
        raise MPIError("ERR_BUFFER", "the send buffer must not be the receive buffer; pass MPI.IN_PLACE")


# ---------------------------------------------------------------------- upper-case: buffers


def Barrier(self: Any) -> CollectiveCall:
    """Wait until all ranks have called."""
    return CollectiveCall(RULES["barrier"], [], [], {})


def Bcast(self: Any, buf: Any, root: int = 0) -> CollectiveCall:
    """Send the root's buffer to all ranks."""
    root = check_root(self, root)
    buffer = message_buffer(buf)
    receive = [] if self._rank == root else [buffer]
    return CollectiveCall(RULES["broadcast"], [buffer], receive, _equal_facts(buffer, root=root), root)


def _gather_call(self: Any, sendbuf: Any, recvbuf: Any, root: int, split: Any, even: bool) -> CollectiveCall:
    """Return the call of a gather.

    Args:
        self: the communicator.
        sendbuf: the block of this rank.
        recvbuf: the buffer of the root.
        root: the root.
        split: ``split_equally`` or ``split_by_counts``, to split the root's buffer into one block per rank.
        even: True if all blocks must be equal in type and size.

    Raises:
        MPIError: If the root is outside of the communicator.
    """
    root = check_root(self, root)
    receive = split(recvbuf, self.size) if self._rank == root else []
    block = receive[root] if is_in_place(sendbuf) and self._rank == root else message_buffer(sendbuf)
    facts = _equal_facts(block, root=root) if even else {"root": root}
    return CollectiveCall(RULES["gather"], [block], receive, facts, root)


def Gather(self: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveCall:
    """Gather equal blocks of all ranks to the root, in rank order."""
    check_root(self, root)
    _check_distinct(sendbuf, recvbuf)
    return _gather_call(self, sendbuf, recvbuf, root, split_equally, True)


def Gatherv(self: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveCall:
    """Gather blocks of any size to the root."""
    return _gather_call(self, sendbuf, recvbuf, root, split_by_counts, False)


def _scatter_call(self: Any, sendbuf: Any, recvbuf: Any, root: int, split: Any, even: bool) -> CollectiveCall:
    """Return the call of a scatter.

    Args:
        self: the communicator.
        sendbuf: the buffer of the root.
        recvbuf: the block of this rank, or IN_PLACE on the root.
        root: the root.
        split: ``split_equally`` or ``split_by_counts``, to split the root's buffer into one block per rank.
        even: True if all blocks must be equal in type and size.

    Raises:
        MPIError: If the root is outside of the communicator.
    """
    root = check_root(self, root)
    blocks = split(sendbuf, self.size) if self._rank == root else []
    keeps_block = is_in_place(recvbuf) and self._rank == root
    receive = [] if keeps_block else [message_buffer(recvbuf)]
    facts = _equal_facts(blocks[root] if keeps_block else receive[0], root=root) if even else {"root": root}
    return CollectiveCall(RULES["scatter"], list(blocks), receive, facts, root)


def Scatter(self: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveCall:
    """Scatter equal blocks of the root's buffer, one per rank."""
    return _scatter_call(self, sendbuf, recvbuf, root, split_equally, True)


def Scatterv(self: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveCall:
    """Scatter blocks of any size of the root's buffer, one per rank."""
    return _scatter_call(self, sendbuf, recvbuf, root, split_by_counts, False)


def Allgather(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Gather equal blocks of all ranks to all ranks."""
    _check_distinct(sendbuf, recvbuf)
    receive = split_equally(recvbuf, self.size)
    block = receive[self._rank] if is_in_place(sendbuf) else message_buffer(sendbuf)
    return CollectiveCall(RULES["all_gather"], [block], receive, _equal_facts(block))


def Allgatherv(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Gather blocks of any size to all ranks."""
    receive = split_by_counts(recvbuf, self.size)
    block = receive[self._rank] if is_in_place(sendbuf) else message_buffer(sendbuf)
    return CollectiveCall(RULES["all_gather"], [block], receive, {})


def _exchange_call(self: Any, sendbuf: Any, recvbuf: Any, split: Any) -> CollectiveCall:
    """Return the call of an all-to-all; ``split`` splits both buffers in one block per rank."""
    receive = split(recvbuf, self.size)
    blocks = receive if is_in_place(sendbuf) else split(sendbuf, self.size)
    return CollectiveCall(RULES["all_to_all"], list(blocks), receive, {})


def Alltoall(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Exchange equal blocks between all ranks."""
    _check_distinct(sendbuf, recvbuf)
    call = _exchange_call(self, sendbuf, recvbuf, split_equally)
    call.facts = _equal_facts(call.send[0])
    return call


def Alltoallv(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Exchange blocks of any size between all ranks."""
    return _exchange_call(self, sendbuf, recvbuf, split_by_counts)


def Alltoallw(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Exchange blocks of any size and type between all ranks."""
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
        rule: name of the rule in RULES.
        sendbuf: the vector of this rank, or MPI.IN_PLACE.
        receive: the buffers to fill.
        op: the operation.
        buffer: the vector of this rank if ``sendbuf`` is MPI.IN_PLACE.
        facts: further arguments that must be equal on all ranks, such as the root.
    """
    operation = as_op(op)
    vector = buffer if is_in_place(sendbuf) else message_buffer(sendbuf)
    operation.check(vector.dtype)
    # Differences are reported in this order: the root, the operation, type and count, other arguments.
    root = {"root": facts["root"]} if "root" in facts else {}
    all_facts = _equal_facts(vector, **root, op=operation.comparison_key()) | facts
    return CollectiveCall(RULES[rule], [vector], receive, all_facts, root.get("root", -1), operation)


def _receive_blocks(sendbuf: Any, buffer: MessageBuffer) -> list[MessageBuffer]:
    """Return a list with the receive buffer, shortened to the length of the send buffer.

    Raises:
        MPIError: If the buffers have different types.
        ValueError: If the receive buffer is shorter than the send buffer.
    """
    if is_in_place(sendbuf):
        return [buffer]
    vector = message_buffer(sendbuf)
    _check_one_type(vector, buffer)
    return [_first_elements(buffer, vector.elements)]


def _check_one_type(vector: MessageBuffer, buffer: MessageBuffer) -> None:
    """Raise an MPI error if the vector to reduce and the receive buffer have different dtypes."""
    if vector.dtype != buffer.dtype:
        raise MPIError(
            "ERR_TYPE",
            f"both buffers must have one type, got {vector.dtype} to send and {buffer.dtype} to receive",
        )


def _first_elements(buffer: MessageBuffer, count: int) -> MessageBuffer:
    """Return the first ``count`` elements of a receive buffer; raise ValueError if it is shorter."""
    if buffer.elements < count:
        raise ValueError(
            f"the receive buffer must have {many(count, 'element')} or more, got {buffer.elements}"
        )
    return buffer.select_elements(0, count)


def Reduce(self: Any, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> CollectiveCall:
    """Reduce all ranks' vectors to the root. Only the root may pass MPI.IN_PLACE as ``sendbuf``."""
    root = check_root(self, root)
    _check_distinct(sendbuf, recvbuf)
    if self._rank != root:
        if is_in_place(sendbuf):
            raise MPIError(
                "ERR_BUFFER", "the send buffer can be MPI.IN_PLACE on the root only; pass an array"
            )
        return _reduce_call(self, "reduce", sendbuf, [], op, message_buffer(sendbuf), root=root)
    buffer = message_buffer(recvbuf)
    return _reduce_call(self, "reduce", sendbuf, _receive_blocks(sendbuf, buffer), op, buffer, root=root)


def _reduce_to_all_call(self: Any, rule: str, sendbuf: Any, recvbuf: Any, op: Op) -> CollectiveCall:
    """Return the call of a reduction whose result every rank receives."""
    _check_distinct(sendbuf, recvbuf)
    buffer = message_buffer(recvbuf)
    return _reduce_call(self, rule, sendbuf, _receive_blocks(sendbuf, buffer), op, buffer)


def Allreduce(self: Any, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> CollectiveCall:
    """Reduce all ranks' vectors to all ranks."""
    return _reduce_to_all_call(self, "all_reduce", sendbuf, recvbuf, op)


def Scan(self: Any, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> CollectiveCall:
    """Reduce the vectors of the ranks up to and including this one."""
    return _reduce_to_all_call(self, "scan", sendbuf, recvbuf, op)


def Exscan(self: Any, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> CollectiveCall:
    """Reduce the vectors of the ranks before this one; rank 0's buffer stays unchanged."""
    return _reduce_to_all_call(self, "exscan", sendbuf, recvbuf, op)


def Reduce_scatter_block(self: Any, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> CollectiveCall:
    """Reduce all ranks' vectors and give each rank one block; all blocks are equal in size."""
    _check_distinct(sendbuf, recvbuf)
    buffer = message_buffer(recvbuf)
    vector = buffer if is_in_place(sendbuf) else message_buffer(sendbuf)
    _check_one_type(vector, buffer)
    receive = [_first_elements(buffer, _elements_per_rank(self, vector))]
    return _reduce_call(self, "reduce_scatter", sendbuf, receive, op, buffer)


def _elements_per_rank(self: Any, vector: MessageBuffer) -> int:
    """Return the length of a rank's block of a vector; raise ValueError if the blocks are not equal."""
    if vector.elements % self.size:
        raise ValueError(
            f"the vector must have a multiple of {many(self.size, 'element')}, one block per rank, got {vector.elements}"
        )
    count: int = vector.elements // self.size
    return count


def Reduce_scatter(
    self: Any, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Op = SUM
) -> CollectiveCall:
    """Reduce all ranks' vectors and give each rank r a block of ``recvcounts[r]`` elements.

    Without ``recvcounts`` each rank gets as many elements as its receive buffer has; with MPI.IN_PLACE, equal blocks.
    """
    _check_distinct(sendbuf, recvbuf)
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
    receive = [_first_elements(buffer, counts[self._rank])]
    return _reduce_call(self, "reduce_scatter", sendbuf, receive, op, buffer, counts=tuple(counts))


# ---------------------------------------------------------------------- lower-case: Python objects


def _object_per_rank(self: Any, sendobj: Any) -> list[ObjectPayload]:
    """Return a list of objects to send, one per rank; raise ValueError for another number."""
    objects = list(sendobj)
    if len(objects) != self.size:
        raise ValueError(f"sendobj must have {self.size} items, one per rank, got {len(objects)}")
    return [ObjectPayload(item) for item in objects]


def barrier(self: Any) -> CollectiveCall:
    """Wait until all ranks have called."""
    return CollectiveCall(RULES["barrier"], [], None, {})


def bcast(self: Any, obj: Any, root: int = 0) -> CollectiveCall:
    """Send the root's object to all ranks."""
    root = check_root(self, root)
    send = [ObjectPayload(obj)] if self._rank == root else []
    call = CollectiveCall(RULES["broadcast"], send, None, {"root": root}, root)
    call.value = obj
    return call


def gather(self: Any, sendobj: Any, root: int = 0) -> CollectiveCall:
    """Gather all ranks' objects to the root, as a list."""
    root = check_root(self, root)
    send = [ObjectPayload(sendobj)]
    return CollectiveCall(RULES["gather"], send, None, {"root": root}, root, listed=True)


def scatter(self: Any, sendobj: Any, root: int = 0) -> CollectiveCall:
    """Scatter the root's list, one object per rank."""
    root = check_root(self, root)
    send = _object_per_rank(self, sendobj) if self._rank == root else []
    return CollectiveCall(RULES["scatter"], list(send), None, {"root": root}, root)


def allgather(self: Any, sendobj: Any) -> CollectiveCall:
    """Gather all ranks' objects to all ranks, as a list."""
    return CollectiveCall(RULES["all_gather"], [ObjectPayload(sendobj)], None, {}, listed=True)


def alltoall(self: Any, sendobj: Any) -> CollectiveCall:
    """Exchange objects: rank i gets the i-th object of every rank's list."""
    return CollectiveCall(RULES["all_to_all"], list(_object_per_rank(self, sendobj)), None, {}, listed=True)


def _object_reduce_call(rule: str, sendobj: Any, op: Any, root: int = -1) -> CollectiveCall:
    """Return the call of a reduction of objects; without a root, -1, all ranks receive the result."""
    op = as_op(op)
    facts = ({"root": root} if root >= 0 else {}) | {"op": op.comparison_key()}
    return CollectiveCall(RULES[rule], [ObjectPayload(sendobj)], None, facts, root, op)


def reduce(self: Any, sendobj: Any, op: Any = SUM, root: int = 0) -> CollectiveCall:
    """Reduce all ranks' objects to the root."""
    return _object_reduce_call("reduce", sendobj, op, check_root(self, root))


def allreduce(self: Any, sendobj: Any, op: Any = SUM) -> CollectiveCall:
    """Reduce all ranks' objects to all ranks."""
    return _object_reduce_call("all_reduce", sendobj, op)


def scan(self: Any, sendobj: Any, op: Any = SUM) -> CollectiveCall:
    """Reduce the objects of the ranks up to and including this one."""
    return _object_reduce_call("scan", sendobj, op)


def exscan(self: Any, sendobj: Any, op: Any = SUM) -> CollectiveCall:
    """Reduce the objects of the ranks before this one; None on rank 0."""
    return _object_reduce_call("exscan", sendobj, op)


def call_collective(comm: Any, call: CollectiveCall, name: str, frame: Any) -> Any:
    """Join a collective, wait until it is complete, and return its result.

    Args:
        comm: the communicator.
        call: this rank's call.
        name: name of the method, such as "Bcast".
        frame: the caller's frame, to find the line of the call.
    """
    end = comm._end
    task, scheduler = end.running(), end.scheduler
    begin = task.clock
    join_meeting(end, call, name, site_of(frame))
    wait_for(scheduler, call)
    result = take_result(call, None)
    if scheduler.timeline is not None:
        scheduler.timeline.record_call(task, name, begin, frame, nbytes=call.nbytes())
    return result


def describe_method(
    method: Callable[..., Any], name: str, prepare: Callable[..., Any], about: str | None = None
) -> Callable[..., Any]:
    """Give a generated method a name and the signature and docstring of another function; return it.

    Args:
        method: the generated method.
        name: its name. The code object gets this name, too, because findings read it from the stack.
        prepare: the function whose signature and docstring it gets.
        about: another docstring, or None.
    """
    method.__code__ = method.__code__.replace(co_name=name)
    method.__name__ = name
    method.__qualname__ = f"Comm.{name}"
    method.__doc__ = about or prepare.__doc__
    method.__signature__ = inspect.signature(prepare)  # type: ignore[attr-defined]
    return method


def _blocking_method(name: str, prepare: Callable[..., CollectiveCall]) -> Callable[..., Any]:
    """Return the blocking method of a collective; see :func:`_persistent_method` for the arguments."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call_collective(self, prepare(self, *args, **kwargs), name, sys._getframe(1))

    return describe_method(method, name, prepare)


def _nonblocking_method(name: str, prepare: Callable[..., CollectiveCall]) -> Callable[..., Any]:
    """Return the method of a collective that returns a request.

    See :func:`_persistent_method` for the arguments.
    """

    def method(self: Any, *args: Any, **kwargs: Any) -> Request:
        frame = sys._getframe(1)
        call = prepare(self, *args, **kwargs)
        return Request(operation=join_meeting(self._end, call, name, site_of(frame)))

    return describe_method(method, name, prepare)


def _persistent_method(name: str, prepare: Callable[..., CollectiveCall]) -> Callable[..., Any]:
    """Return the persistent method of a collective, which returns a request to start repeatedly.

    Args:
        name: name of the method.
        prepare: returns the call from the communicator and the arguments.
    """

    def method(self: Any, *args: Any, **kwargs: Any) -> Prequest:
        kwargs.pop("info", None)
        frame = sys._getframe(1)
        site = site_of(frame)
        return Prequest(lambda: join_meeting(self._end, prepare(self, *args, **kwargs), name, site))

    return describe_method(method, name, prepare)


class CollectiveMethods:
    """The collective methods of a communicator, except those that create communicators."""


def _add_collective_methods() -> None:
    """Add a blocking method per collective of this module to ``CollectiveMethods``.

    A collective is a public function that returns a ``CollectiveCall``. Collectives of buffers, whose names begin with
    a capital letter, also get a nonblocking ``I...`` and a persistent ``..._init`` method.
    """
    for name, prepare in [*globals().items()]:
        is_local = getattr(prepare, "__module__", None) == __name__ and not name.startswith("_")
        if not is_local or prepare.__annotations__.get("return") != "CollectiveCall":
            continue
        makers = {name: _blocking_method}
        if not name.islower():
            makers |= {f"I{name.lower()}": _nonblocking_method, f"{name}_init": _persistent_method}
        for call, make_method in makers.items():
            setattr(CollectiveMethods, call, make_method(call, prepare))


_add_collective_methods()
