"""The methods of a communicator that all its ranks call together: blocking, nonblocking and persistent.

One function per collective, with mpi4py's signature, says from its arguments what the call brings and what it wants; the three
methods are made from it.
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
    blocks,
    simple,
    typed,
    vector,
)
from spmdsim.simulation.data.reduce_operators import SUM, Op, as_op
from spmdsim.simulation.engine.collective_calls import RULES, CollectiveCall, join
from spmdsim.simulation.engine.mailboxes import wait_for
from spmdsim.simulation.interface.requests import Prequest, Request, take_result


def checked_root(comm: Any, root: int) -> int:
    """Return the root. Raise an MPI error if it is outside the communicator."""
    if not 0 <= root < comm.size:
        raise MPIError("ERR_ROOT", f"root {root} is not in 0 to {comm.size - 1}")
    return int(root)


def in_place(spec: Any) -> bool:
    """Return True if a buffer stands for the other one; mpi4py accepts None for MPI.IN_PLACE."""
    return spec is None or spec is IN_PLACE


def _same(buffer: MessageBuffer, **facts: Any) -> dict[str, Any]:
    """Return the facts that must be equal on all ranks: the given ones, then dtype and count."""
    return {**facts, "dtype": str(buffer.dtype), "count": buffer.elements}


def _apart(send: Any, receive: Any) -> None:
    """Raise an MPI error for one array as both buffers, which MPI forbids."""
    if send is receive and not in_place(send) and simple(send).elements:
        raise MPIError("ERR_BUFFER", "the send buffer is the receive buffer: pass MPI.IN_PLACE")


# ---------------------------------------------------------------------- upper-case: buffers


def Barrier(self: Any) -> CollectiveCall:
    """Wait until all ranks have come."""
    return CollectiveCall(RULES["barrier"], [], [], {})


def Bcast(self: Any, buf: Any, root: int = 0) -> CollectiveCall:
    """Send the root's buffer to all ranks."""
    root = checked_root(self, root)
    buffer = simple(buf)
    receive = [] if self._rank == root else [buffer]
    return CollectiveCall(RULES["broadcast"], [buffer], receive, _same(buffer, root=root), root)


def _gathering(self: Any, sendbuf: Any, recvbuf: Any, root: int, share: Any, even: bool) -> CollectiveCall:
    """Describe a gather of blocks to the root, which ``share`` cuts out of its buffer."""
    root = checked_root(self, root)
    receive = share(recvbuf, self.size) if self._rank == root else []
    mine = receive[root] if in_place(sendbuf) and self._rank == root else simple(sendbuf)
    facts = _same(mine, root=root) if even else {"root": root}
    return CollectiveCall(RULES["gather"], [mine], receive, facts, root)


def Gather(self: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveCall:
    """Gather equal blocks of all ranks to the root, in rank order."""
    checked_root(self, root)
    _apart(sendbuf, recvbuf)
    return _gathering(self, sendbuf, recvbuf, root, blocks, True)


def Gatherv(self: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveCall:
    """Gather blocks of any size to the root."""
    return _gathering(self, sendbuf, recvbuf, root, vector, False)


def _scattering(self: Any, sendbuf: Any, recvbuf: Any, root: int, share: Any, even: bool) -> CollectiveCall:
    """Describe a scatter of blocks that ``share`` cuts out of the root's buffer, one per rank."""
    root = checked_root(self, root)
    parts = share(sendbuf, self.size) if self._rank == root else []
    kept = in_place(recvbuf) and self._rank == root
    receive = [] if kept else [simple(recvbuf)]
    facts = _same(parts[root] if kept else receive[0], root=root) if even else {"root": root}
    return CollectiveCall(RULES["scatter"], list(parts), receive, facts, root)


def Scatter(self: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveCall:
    """Scatter equal blocks of the root's buffer, one per rank."""
    return _scattering(self, sendbuf, recvbuf, root, blocks, True)


def Scatterv(self: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveCall:
    """Scatter blocks of any size of the root's buffer, one per rank."""
    return _scattering(self, sendbuf, recvbuf, root, vector, False)


def Allgather(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Gather equal blocks of all ranks to all ranks."""
    _apart(sendbuf, recvbuf)
    receive = blocks(recvbuf, self.size)
    mine = receive[self._rank] if in_place(sendbuf) else simple(sendbuf)
    return CollectiveCall(RULES["all_gather"], [mine], receive, _same(mine))


def Allgatherv(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Gather blocks of any size to all ranks."""
    receive = vector(recvbuf, self.size)
    mine = receive[self._rank] if in_place(sendbuf) else simple(sendbuf)
    return CollectiveCall(RULES["all_gather"], [mine], receive, {})


def _exchanging(self: Any, sendbuf: Any, recvbuf: Any, share: Any) -> CollectiveCall:
    receive = share(recvbuf, self.size)
    parts = receive if in_place(sendbuf) else share(sendbuf, self.size)
    return CollectiveCall(RULES["all_to_all"], list(parts), receive, {})


def Alltoall(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Exchange equal blocks between all ranks."""
    _apart(sendbuf, recvbuf)
    call = _exchanging(self, sendbuf, recvbuf, blocks)
    call.facts = _same(call.send[0])
    return call


def Alltoallv(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Exchange blocks of any size between all ranks."""
    return _exchanging(self, sendbuf, recvbuf, vector)


def Alltoallw(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Exchange blocks of any size and type between all ranks."""
    return _exchanging(self, sendbuf, recvbuf, typed)


def _reducing(
    self: Any,
    rule: str,
    sendbuf: Any,
    receive: list[MessageBuffer],
    op: Any,
    whole: MessageBuffer,
    **facts: Any,
) -> CollectiveCall:
    """Describe a reduction: all ranks pass one vector each and name one operation."""
    op = as_op(op)
    mine = whole if in_place(sendbuf) else simple(sendbuf)
    op.check(mine.dtype)
    facts = _same(mine, **{k: v for k, v in facts.items() if k == "root"}, op=op.identity()) | facts
    return CollectiveCall(RULES[rule], [mine], receive, facts, int(facts.get("root", -1)), op)


def _fitting(sent: Any, buffer: MessageBuffer) -> list[MessageBuffer]:
    """Return the receive buffer, as long as the send buffer."""
    if in_place(sent):
        return [buffer]
    mine = simple(sent)
    if mine.dtype != buffer.dtype:
        raise MPIError("ERR_TYPE", f"the send buffer holds {mine.dtype}, the receive buffer {buffer.dtype}")
    if mine.elements > buffer.elements:
        raise ValueError(f"mismatch in send count {mine.elements} and receive count {buffer.elements}")
    return [buffer.part(0, mine.elements)]


def Reduce(self: Any, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> CollectiveCall:
    """Reduce all ranks' vectors to the root."""
    root = checked_root(self, root)
    _apart(sendbuf, recvbuf)
    if self._rank != root:
        if in_place(sendbuf):
            raise MPIError("ERR_BUFFER", "MPI.IN_PLACE stands for the send buffer on the root only")
        return _reducing(self, "reduce", sendbuf, [], op, simple(sendbuf), root=root)
    whole = simple(recvbuf)
    return _reducing(self, "reduce", sendbuf, _fitting(sendbuf, whole), op, whole, root=root)


def _everywhere(self: Any, rule: str, sendbuf: Any, recvbuf: Any, op: Op) -> CollectiveCall:
    """Describe a reduction that fills every rank's buffer."""
    _apart(sendbuf, recvbuf)
    whole = simple(recvbuf)
    return _reducing(self, rule, sendbuf, _fitting(sendbuf, whole), op, whole)


def Allreduce(self: Any, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> CollectiveCall:
    """Reduce all ranks' vectors to all ranks."""
    return _everywhere(self, "all_reduce", sendbuf, recvbuf, op)


def Scan(self: Any, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> CollectiveCall:
    """Reduce the vectors of the ranks up to and including this one."""
    return _everywhere(self, "scan", sendbuf, recvbuf, op)


def Exscan(self: Any, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> CollectiveCall:
    """Reduce the vectors of the ranks before this one; rank 0's buffer stays unchanged."""
    return _everywhere(self, "exscan", sendbuf, recvbuf, op)


def Reduce_scatter_block(self: Any, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> CollectiveCall:
    """Reduce all ranks' vectors; each rank gets one equal block."""
    _apart(sendbuf, recvbuf)
    whole = simple(recvbuf)
    mine = whole if in_place(sendbuf) else simple(sendbuf)
    if mine.elements % self.size:
        raise ValueError(
            f"{many(mine.elements, 'element')} cannot be shared out to {many(self.size, 'rank')}"
        )
    count = mine.elements // self.size
    if whole.elements < count:
        raise ValueError(f"mismatch in receive count {whole.elements} and block count {count}")
    return _reducing(self, "reduce_scatter", sendbuf, [whole.part(0, count)], op, whole)


def Reduce_scatter(
    self: Any, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Op = SUM
) -> CollectiveCall:
    """Reduce all ranks' vectors; each rank gets a block of given size."""
    _apart(sendbuf, recvbuf)
    whole = simple(recvbuf)
    mine = whole if in_place(sendbuf) else simple(sendbuf)
    if recvcounts is None and not in_place(sendbuf):
        # Each rank gets as much as its receive buffer holds.
        return _reducing(self, "reduce_scatter", sendbuf, [whole], op, whole)
    if recvcounts is None:
        if mine.elements % self.size:
            raise ValueError(
                f"{many(mine.elements, 'element')} cannot be shared out to {many(self.size, 'rank')}"
            )
        recvcounts = [mine.elements // self.size] * self.size
    counts = [int(count) for count in recvcounts]
    if len(counts) != self.size or sum(counts) != mine.elements:
        raise ValueError(
            f"receive counts {counts} must be {many(self.size, 'number')} with the sum {mine.elements}"
        )
    receive = [whole.part(0, counts[self._rank])]
    return _reducing(self, "reduce_scatter", sendbuf, receive, op, whole, counts=tuple(counts))


# ---------------------------------------------------------------------- lower-case: Python objects


def _listed(self: Any, sendobj: Any) -> list[ObjectPayload]:
    objects = list(sendobj)
    if len(objects) != self.size:
        raise ValueError(f"expecting {self.size} items, got {len(objects)}")
    return [ObjectPayload(one) for one in objects]


def barrier(self: Any) -> CollectiveCall:
    """Wait until all ranks have come."""
    return CollectiveCall(RULES["barrier"], [], None, {})


def bcast(self: Any, obj: Any, root: int = 0) -> CollectiveCall:
    """Send the root's object to all ranks."""
    root = checked_root(self, root)
    send = [ObjectPayload(obj)] if self._rank == root else []
    call = CollectiveCall(RULES["broadcast"], send, None, {"root": root}, root)
    call.value = obj
    return call


def gather(self: Any, sendobj: Any, root: int = 0) -> CollectiveCall:
    """Gather all ranks' objects to the root, as a list."""
    root = checked_root(self, root)
    send = [ObjectPayload(sendobj)]
    return CollectiveCall(RULES["gather"], send, None, {"root": root}, root, listed=True)


def scatter(self: Any, sendobj: Any, root: int = 0) -> CollectiveCall:
    """Scatter the root's list, one object per rank."""
    root = checked_root(self, root)
    send = _listed(self, sendobj) if self._rank == root else []
    return CollectiveCall(RULES["scatter"], list(send), None, {"root": root}, root)


def allgather(self: Any, sendobj: Any) -> CollectiveCall:
    """Gather all ranks' objects to all ranks, as a list."""
    return CollectiveCall(RULES["all_gather"], [ObjectPayload(sendobj)], None, {}, listed=True)


def alltoall(self: Any, sendobj: Any) -> CollectiveCall:
    """Exchange objects: rank i gets the i-th object of every rank's list."""
    return CollectiveCall(RULES["all_to_all"], list(_listed(self, sendobj)), None, {}, listed=True)


def _folding(rule: str, sendobj: Any, op: Any, root: int = -1) -> CollectiveCall:
    op = as_op(op)
    facts = ({"root": root} if root >= 0 else {}) | {"op": op.identity()}
    return CollectiveCall(RULES[rule], [ObjectPayload(sendobj)], None, facts, root, op)


def reduce(self: Any, sendobj: Any, op: Any = SUM, root: int = 0) -> CollectiveCall:
    """Reduce all ranks' objects to the root."""
    return _folding("reduce", sendobj, op, checked_root(self, root))


def allreduce(self: Any, sendobj: Any, op: Any = SUM) -> CollectiveCall:
    """Reduce all ranks' objects to all ranks."""
    return _folding("all_reduce", sendobj, op)


def scan(self: Any, sendobj: Any, op: Any = SUM) -> CollectiveCall:
    """Reduce the objects of the ranks up to and including this one."""
    return _folding("scan", sendobj, op)


def exscan(self: Any, sendobj: Any, op: Any = SUM) -> CollectiveCall:
    """Reduce the objects of the ranks before this one; None on rank 0."""
    return _folding("exscan", sendobj, op)


def meet(comm: Any, call: CollectiveCall, name: str, frame: Any) -> Any:
    """Join a collective and wait until it is complete."""
    end = comm._end
    task, scheduler = end.running(), end.scheduler
    begin = task.clock
    join(end, call, name, (frame.f_code, frame.f_lasti))
    wait_for(scheduler, call)
    result = take_result(call, None)
    if scheduler.timeline is not None:
        scheduler.timeline.call(task, name, begin, frame, nbytes=call.nbytes())
    return result


def named(
    method: Callable[..., Any], name: str, prepare: Callable[..., Any], about: str | None = None
) -> Callable[..., Any]:
    """Give a made method the name, signature and description of what it stands for."""
    method.__code__ = method.__code__.replace(co_name=name)
    method.__name__ = name
    method.__qualname__ = f"Comm.{name}"
    method.__doc__ = about or prepare.__doc__
    method.__signature__ = inspect.signature(prepare)  # type: ignore[attr-defined]
    return method


def _blocking(name: str, prepare: Callable[..., CollectiveCall]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return meet(self, prepare(self, *args, **kwargs), name, sys._getframe(1))

    return named(method, name, prepare)


def _nonblocking(name: str, prepare: Callable[..., CollectiveCall]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Request:
        frame = sys._getframe(1)
        call = prepare(self, *args, **kwargs)
        return Request(operation=join(self._end, call, name, (frame.f_code, frame.f_lasti)))

    return named(method, name, prepare)


def _persistent(name: str, prepare: Callable[..., CollectiveCall]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Prequest:
        kwargs.pop("info", None)
        frame = sys._getframe(1)
        site = (frame.f_code, frame.f_lasti)
        return Prequest(lambda: join(self._end, prepare(self, *args, **kwargs), name, site))

    return named(method, name, prepare)


class CollectiveMethods:
    """The collective methods of a communicator, except those that create communicators."""


def _install() -> None:
    for name, prepare in [*globals().items()]:
        own = getattr(prepare, "__module__", None) == __name__ and not name.startswith("_")
        if not own or prepare.__annotations__.get("return") != "CollectiveCall":
            continue
        ways = {name: _blocking}
        if not name.islower():  # of buffers
            ways |= {f"I{name.lower()}": _nonblocking, f"{name}_init": _persistent}
        for call, way in ways.items():
            setattr(CollectiveMethods, call, way(call, prepare))


_install()
