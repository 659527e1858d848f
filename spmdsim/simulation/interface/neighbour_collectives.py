"""Exchanges between neighbours of a topology: blocking, nonblocking and persistent.

All ranks of the communicator must call them. In a grid, neighbours are the previous and the next rank in dimension 0,
then in dimension 1, and so on; the block of a neighbour beyond an edge is not sent or changed. In a graph they are the
sources and the destinations of the rank, in the order of its creation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spmdsim.simulation.data.message_buffers import (
    ObjectPayload,
    message_buffer,
    split_by_counts,
    split_by_types,
    split_equally,
)
from spmdsim.simulation.engine.collective_calls import RULES, CollectiveCall


def _exchange(self: Any, send: list[Any], receive: Any, single: bool) -> CollectiveCall:
    """Return the call of an exchange with all neighbours.

    Args:
        self: the communicator.
        send: the blocks or objects to send: one for all neighbours if ``single``, else one per destination.
        receive: the buffers to fill, one per source; None for objects.
        single: True to send one block to all neighbours.
    """
    call = CollectiveCall(RULES["neighbours"], send, receive, {}, listed=True)
    call.value = [(rank, 0 if single else slot) for rank, slot in self._sources()]
    return call


def Neighbor_allgather(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Send one block to all neighbours and receive one from each.

    ``Neighbor_allgather`` blocks; ``Ineighbor_allgather`` returns a request and ``Neighbor_allgather_init`` a
    persistent one.

    Args:
        self: the communicator.
        sendbuf: the block: an array, or ``[array, count, displacement, datatype]`` with later items omitted.
        recvbuf: room for one block per source, in the form of ``sendbuf``; a count is the count of one block.

    Raises:
        ValueError: If ``recvbuf`` has no count and cannot be divided by the number of sources.
    """
    return _exchange(self, [message_buffer(sendbuf)], split_equally(recvbuf, self.indegree), single=True)


def Neighbor_allgatherv(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Send one block to all neighbours and receive a block of any size from each.

    ``Neighbor_allgatherv`` blocks; ``Ineighbor_allgatherv`` returns a request and ``Neighbor_allgatherv_init`` a
    persistent one. A block whose size or type is not the one that the receiver expects ends the run with a finding.

    Args:
        self: the communicator.
        sendbuf: the block: an array, or ``[array, count, displacement, datatype]`` with later items omitted.
        recvbuf: ``[array, counts, displacements, datatype]`` with one count and one displacement per source; later
            items may be omitted.

    Raises:
        ValueError: If the number of counts or displacements is not the number of sources.
    """
    return _exchange(self, [message_buffer(sendbuf)], split_by_counts(recvbuf, self.indegree), single=True)


def Neighbor_alltoall(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Send an equal block to each neighbour and receive one from each.

    ``Neighbor_alltoall`` blocks; ``Ineighbor_alltoall`` returns a request and ``Neighbor_alltoall_init`` a persistent
    one.

    Args:
        self: the communicator.
        sendbuf: one block per destination: an array, or ``[array, count, displacement, datatype]`` with later items
            omitted. A count is the count of one block.
        recvbuf: room for one block per source, in the form of ``sendbuf``.

    Raises:
        ValueError: If a buffer has no count and cannot be divided by the number of neighbours.
    """
    send, receive = split_equally(sendbuf, self.outdegree), split_equally(recvbuf, self.indegree)
    return _exchange(self, [*send], receive, single=False)


def Neighbor_alltoallv(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Send a block of any size to each neighbour and receive one from each.

    ``Neighbor_alltoallv`` blocks; ``Ineighbor_alltoallv`` returns a request and ``Neighbor_alltoallv_init`` a
    persistent one. A block whose size or type is not the one that the receiver expects ends the run with a finding.

    Args:
        self: the communicator.
        sendbuf: ``[array, counts, displacements, datatype]`` with one count and one displacement per destination;
            later items may be omitted.
        recvbuf: the memory to fill, in the form of ``sendbuf``, with one count and displacement per source.

    Raises:
        ValueError: If the number of counts or displacements is not the number of neighbours.
    """
    send, receive = split_by_counts(sendbuf, self.outdegree), split_by_counts(recvbuf, self.indegree)
    return _exchange(self, [*send], receive, single=False)


def Neighbor_alltoallw(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Send a block of any size and type to each neighbour and receive one from each.

    ``Neighbor_alltoallw`` blocks; ``Ineighbor_alltoallw`` returns a request and ``Neighbor_alltoallw_init`` a
    persistent one. A block whose size or type is not the one that the receiver expects ends the run with a finding.

    Args:
        self: the communicator.
        sendbuf: ``[array, counts, displacements, datatypes]`` with one count, one displacement in bytes and one
            datatype per destination.
        recvbuf: the memory to fill, in the form of ``sendbuf``, with one entry per source.

    Raises:
        MPIError: If a displacement is no multiple of the basic type's size.
        TypeError: If a count or displacement is no integer, or a datatype no MPI datatype.
        ValueError: If a buffer has another form, or another number of entries than neighbours.
    """
    send, receive = split_by_types(sendbuf, self.outdegree), split_by_types(recvbuf, self.indegree)
    return _exchange(self, [*send], receive, single=False)


def neighbor_allgather(self: Any, sendobj: Any) -> CollectiveCall:
    """Send one object to all neighbours; return the list of their objects, in order.

    An item is None if the neighbour is beyond an edge of a grid.

    Args:
        self: the communicator.
        sendobj: any object that can be pickled.
    """
    return _exchange(self, [ObjectPayload(sendobj)], None, single=True)


def neighbor_alltoall(self: Any, sendobj: Sequence[Any]) -> CollectiveCall:
    """Send one object to each neighbour; return the list of their objects, in order.

    An item is None if the neighbour is beyond an edge of a grid.

    Args:
        self: the communicator.
        sendobj: one object per destination; objects for a neighbour beyond an edge are not sent.

    Raises:
        ValueError: If ``sendobj`` has another number of items.
    """
    objects = list(sendobj)
    if len(objects) != self.outdegree:
        raise ValueError(f"sendobj must have {self.outdegree} items, one per neighbour, got {len(objects)}")
    return _exchange(self, [ObjectPayload(item) for item in objects], None, single=False)
