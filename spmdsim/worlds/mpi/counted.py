"""Communicators that count what MPI moves, from the buffers and counts of every call.

The calls of all steps go through them. Data are counted while a trace is open. Control traffic, which moves nothing of
the user's, is recognised by the functions that only it calls (or by its messages' tags), is counted from the
beginning, and is shown separately. A reduction of MPI's own is counted by the convention of plans; in addition, the
bytes of the library's algorithm are counted if its choice is known.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from mpi4py import MPI

from spmdsim.collectives import algorithm, make_schedule
from spmdsim.collectives.instructions import cut
from spmdsim.collectives.rank_program import compile_program
from spmdsim.collectives.selection_tables import choose
from spmdsim.core import split_block
from spmdsim.errors import InputError, ScheduleError
from spmdsim.shutdown.stop import TAG as STOPS
from spmdsim.worlds.agreement.arrival_gossip import GAVE_UP
from spmdsim.worlds.trace import recorder
from spmdsim.worlds.trace.events import CallCounts

#: The tables' names of the libraries that have one.
TABLES = {"Open MPI": "openmpi", "MPICH": "mpich"}
#: The collective behind each of MPI's functions.
_COLLECTIVES = {"Allreduce": "all_reduce", "Reduce_scatter": "reduce_scatter"}


class LibraryMoves(NamedTuple):
    """Bytes that one rank receives and sends in the algorithm that a library chooses."""

    algorithm: str
    received: int
    sent: int


@lru_cache(maxsize=4096)
def count_library_bytes(
    vendor: str, function: str, counts: tuple[int, ...], rank: int, itemsize: int
) -> LibraryMoves | None:
    """Return the bytes that a rank moves in a reduction by the MPI library's own algorithm.

    The library chooses its algorithm by the number of ranks and bytes. A table of these choices names the algorithm,
    and its schedule gives the bytes. Results are cached. In the example, recursive doubling on 4 ranks has 2 rounds. In
    each one a rank sends and receives the whole vector: 4 elements of 8 bytes.

    Args:
        vendor: the name of the MPI library, such as "Open MPI".
        function: "Allreduce" or "Reduce_scatter".
        counts: the number of elements of each rank's block; an Allreduce reduces all of them.
        rank: the rank.
        itemsize: the bytes of an element.

    Returns:
        The name of the algorithm, and the bytes that the rank receives and sends. None if the library's choice is not
        known, or its algorithm cannot run on this number of ranks.

    >>> count_library_bytes("Open MPI", "Allreduce", (1, 1, 1, 1), 0, 8)
    LibraryMoves(algorithm='recursive_doubling', received=64, sent=64)
    """
    size, name = len(counts), _COLLECTIVES[function]
    try:
        equal = name == "all_reduce" or len(set(counts)) == 1
        nbytes = sum(counts) * itemsize
        chosen = choose(TABLES[vendor], name, size, nbytes, True, itemsize, equal_blocks=equal)
        choice = chosen.algorithm
        if vendor == "Open MPI" and name == "all_reduce" and "ring" in chosen.name and sum(counts) < size:
            choice = algorithm(name, "recursive_doubling")  # Open MPI's rings need an element per rank.
        schedule = make_schedule(choice, size)
    except (KeyError, InputError, ScheduleError):
        return None
    if name == "all_reduce":
        sizes = tuple(schedule.chunk_elements(sum(counts)))
    else:
        chunks_per_rank = schedule.chunk_count // size
        sizes = tuple(chunk_size for block in counts for chunk_size in cut(block, chunks_per_rank))
    program = compile_program(schedule, rank, sizes)
    return LibraryMoves(choice.name, program.received_elements * itemsize, program.sent_elements * itemsize)


#: Tags of messages that are control traffic: of ranks that meet to make a communicator, that ask whether a rank has
#: left, that have left, and that meet at the end. Below every library's limit on tags.
MEETING, ASKED, LEFT, DONE = 77_017, 77_018, 77_019, 77_021

_PURPOSES = {
    GAVE_UP: "agreement", MEETING: "groups", ASKED: "groups", LEFT: "exit", DONE: "exit", STOPS: "exit",
}  # fmt: skip


class Tally:
    """Counts of the communicators of one world.

    Control traffic is counted since the world was made, data in the current step.

    Attributes:
        control: the control traffic by purpose.
        data: the calls and bytes of the step.
        calls: the number of calls by MPI's function, in the order of the first calls.
        library: the bytes that the library's algorithms of the step's reductions move.
        algorithms: the names of these algorithms.
        unknown: True if one of these algorithms is not known.
    """

    def __init__(self) -> None:
        self.control: dict[str, CallCounts] = {}
        self.begin()

    def begin(self) -> None:
        """Start to count a step."""
        self.data, self.library = CallCounts(), CallCounts()
        self.calls: dict[str, int] = {}
        self.algorithms: dict[str, None] = {}
        self.unknown = False

    def count_move(self, name: str, received: int, sent: int) -> None:
        """Count a call of MPI's function ``name`` that moves data.

        Bytes are those of other ranks only.
        """
        self.calls[name] = self.calls.get(name, 0) + 1
        self.data += CallCounts(1, received, sent)

    def count_reduction(self, name: str, counts: Sequence[int], rank: int, itemsize: int) -> None:
        """Count one reduction by MPI: its bytes in a plan, and those of the library's algorithm.

        In the plan, each rank sends every other rank the block of which the other rank owns the result; in an
        Allreduce, each rank then sends its reduced block to all others. If the library's algorithm is not known,
        ``unknown`` becomes True.

        Args:
            name: "Allreduce" or "Reduce_scatter".
            counts: the number of elements that each rank owns.
            rank: this rank.
            itemsize: bytes per element.
        """
        received, sent = (len(counts) - 1) * counts[rank], sum(counts) - counts[rank]
        if name == "Allreduce":  # Gathering the blocks moves equally many bytes.
            received = sent = received + sent
        self.count_move(name, received * itemsize, sent * itemsize)
        moves = count_library_bytes(VENDOR, name, tuple(counts), rank, itemsize)
        if moves is None:
            self.unknown = True
        else:
            self.algorithms[moves.algorithm] = None
            self.library += CallCounts(1, moves.received, moves.sent)

    def describe_calls(self) -> str:
        """Return the calls of this step in words."""
        by = f" ({', '.join(self.algorithms)})" if self.algorithms else ""
        calls = (f"{count} x {name}" if count > 1 else name for name, count in self.calls.items())
        return ", ".join(calls) + by

    def by_library(self) -> CallCounts | None:
        """Return the bytes that the library's algorithms moved in this step.

        Return None if a choice of the library is not known, or no reduction ran.
        """
        return self.library if self.algorithms and not self.unknown else None

    def controls(self, purpose: str, received: int = 0, sent: int = 0) -> None:
        """Count a call of control traffic, and show it in the open traces.

        Args:
            purpose: the purpose, such as "agreement" or "polls".
            received: the bytes that this process receives from others in the call.
            sent: the bytes that it sends to others.
        """
        calls, before, after = self.control.get(purpose, (0, 0, 0))
        self.control[purpose] = CallCounts(calls + 1, before + received, after + sent)
        if recorder.open_traces:
            recorder.control(purpose, CallCounts(1, received, sent))


#: The library's name.
VENDOR: str = MPI.get_vendor()[0]

_Call = TypeVar("_Call", bound=Callable[..., Any])
#: A function that returns the bytes received and sent, from the rank, the number of ranks and the call's buffers.
Moves = Callable[[int, int, Any, Any], tuple[int, int]]


def _nbytes(spec: Any) -> int:
    """Return the bytes of a buffer: an array, ``[array, type]`` or ``[array, count, type]``.

    Of ``[array, type]`` all bytes of the array count.

    Args:
        spec: the buffer argument of an MPI call.
    """
    if isinstance(spec, np.ndarray):
        return spec.nbytes
    if len(spec) == 2:  # Arrays of some element types do not support Python's buffer protocol.
        return spec[0].nbytes if isinstance(spec[0], np.ndarray) else memoryview(spec[0]).nbytes
    return int(spec[1]) * int(spec[2].Get_size())


def _block_bytes(spec: Any) -> list[int]:
    """Return the bytes of each block of a buffer argument.

    It is ``[array, (counts, places), type]`` or ``[array, counts, places, types]``.
    """
    if len(spec) == 4:
        return [count * kind.Get_size() for count, kind in zip(spec[1], spec[3])]
    size = spec[2].Get_size()
    return [count * size for count in spec[1][0]]


def _count_equal_blocks(rank: int, size: int, source: Any, recvbuf: Any) -> tuple[int, int]:
    """Return the bytes received and sent if each rank sends an equal block to each rank.

    Args:
        rank: not used: all functions of this kind take it.
        size: the number of ranks.
        source: the send buffer, or MPI.IN_PLACE.
        recvbuf: the receive buffer; its bytes are those of one block.
    """
    own_buffer = recvbuf if source is MPI.IN_PLACE else source
    return (size - 1) * _nbytes(recvbuf), (size - 1) * _nbytes(own_buffer)


def _count_gathered(rank: int, size: int, source: Any, recvbuf: Any) -> tuple[int, int]:
    """Return the bytes received and sent if every rank sends its block to all others.

    Blocks may have any length.

    Args:
        rank: this rank.
        size: the number of ranks.
        source: the send buffer, or MPI.IN_PLACE.
        recvbuf: the receive buffer, with counts.
    """
    blocks = _block_bytes(recvbuf)
    own_bytes = blocks[rank] if source is MPI.IN_PLACE else _nbytes(source)
    return sum(blocks) - blocks[rank], (size - 1) * own_bytes


def _count_exchanged(rank: int, size: int, source: Any, recvbuf: Any) -> tuple[int, int]:
    """Return the bytes received and sent if each rank sends a block of any length to each rank."""
    sent, received = _block_bytes(source), _block_bytes(recvbuf)
    return sum(received) - received[rank], sum(sent) - sent[rank]


def _count_calls(call: _Call, moves: Moves) -> _Call:
    """Return a method of a communicator that counts the bytes of its call while a trace is open.

    Args:
        call: the method of mpi4py's communicator, with a send and a receive buffer.
        moves: returns the bytes received and sent; see :data:`Moves`.
    """
    name = call.__name__

    def count_and_call(self: Counted, sendbuf: Any, recvbuf: Any) -> Any:
        if recorder.open_traces:
            self.tally.count_move(name, *moves(*self.rank_size, sendbuf, recvbuf))
        return call(self, sendbuf, recvbuf)

    return cast(_Call, count_and_call)


class Counted(MPI.Intracomm):
    """Communicator that counts the data and control traffic of its calls in a tally."""

    tally: Tally
    rank_size: tuple[int, int]

    @classmethod
    def of(cls, comm: MPI.Comm, tally: Tally) -> Counted:
        """Return a communicator with equal ranks that counts its calls in ``tally``."""
        counted = cls(comm)
        counted.tally, counted.rank_size = tally, (comm.Get_rank(), comm.Get_size())
        return counted

    # -- data ---------------------------------------------------------------------------------------------

    Allgather = _count_calls(MPI.Intracomm.Allgather, _count_equal_blocks)
    Allgatherv = _count_calls(MPI.Intracomm.Allgatherv, _count_gathered)
    Alltoall = _count_calls(MPI.Intracomm.Alltoall, _count_equal_blocks)
    Alltoallv = _count_calls(MPI.Intracomm.Alltoallv, _count_exchanged)
    Alltoallw = _count_calls(MPI.Intracomm.Alltoallw, _count_exchanged)
    Iallgather = _count_calls(MPI.Intracomm.Iallgather, _count_equal_blocks)
    Iallgatherv = _count_calls(MPI.Intracomm.Iallgatherv, _count_gathered)
    Ialltoallv = _count_calls(MPI.Intracomm.Ialltoallv, _count_exchanged)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce on all ranks; count it as a reduce_scatter and an all_gather of balanced blocks.

        Nothing is counted unless a trace is open.

        Args:
            sendbuf: an array, or MPI.IN_PLACE.
            recvbuf: an array for the result.
            op: the operation.
        """
        if recorder.open_traces:
            self.tally.count_reduction(
                "Allreduce", self._balanced(recvbuf.size), self.rank_size[0], recvbuf.itemsize
            )
        super().Allreduce(sendbuf, recvbuf, op)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: MPI.Op = MPI.SUM
    ) -> None:
        """Reduce, and leave each rank its block.

        It is counted as an exchange: each rank sends its part of each block to the rank that gets the block.

        Args:
            sendbuf: an array with all blocks.
            recvbuf: an array for this rank's block.
            recvcounts: the number of elements of each rank's block; not None while a trace is open.
            op: the operation.
        """
        if recorder.open_traces:
            self.tally.count_reduction("Reduce_scatter", recvcounts, self.rank_size[0], recvbuf.itemsize)
        super().Reduce_scatter(sendbuf, recvbuf, recvcounts, op)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Send the root's buffer to all other ranks."""
        if recorder.open_traces:
            (rank, size), nbytes = self.rank_size, _nbytes(buf)
            self.tally.count_move("Bcast", nbytes * (rank != root), (size - 1) * nbytes * (rank == root))
        super().Bcast(buf, root)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce the ranks before this one; count one array per rank.

        Each rank but the first counts as receiving an array, each but the last as sending one.
        """
        if recorder.open_traces:
            (rank, size), nbytes = self.rank_size, _nbytes(recvbuf)
            self.tally.count_move("Exscan", nbytes * (rank > 0), nbytes * (rank < size - 1))
        super().Exscan(sendbuf, recvbuf, op)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Start to send a message; return its request.

        It counts as control traffic if its tag is that of a control message, else as data if a trace is open.

        Args:
            buf: an array, ``[array, type]`` or ``[array, count, type]``.
            dest: the receiver.
            tag: the tag.
        """
        if tag in _PURPOSES:
            self.tally.controls(_PURPOSES[tag], 0, _nbytes(buf))
        elif recorder.open_traces:
            self.tally.count_move("Isend", 0, _nbytes(buf))
        return super().Isend(buf, dest, tag)

    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Request:
        """Start to receive a message that fills the buffer; return its request. Count it if a trace is open."""
        if recorder.open_traces:
            self.tally.count_move("Irecv", _nbytes(buf), 0)
        return super().Irecv(buf, source, tag)

    def _balanced(self, count: int) -> list[int]:
        """Return the sizes of balanced blocks of ``count`` elements, one per rank."""
        size = self.rank_size[1]
        return [split_block(0, count, size, k)[1] for k in range(size)]

    # -- control ------------------------------------------------------------------------------------------

    def agree(self, own_numbers: np.ndarray, common: np.ndarray, op: MPI.Op) -> None:
        """Reduce a few numbers that the ranks must agree on; count it as control traffic.

        All ranks must call it.

        Args:
            own_numbers: this rank's numbers.
            common: the array for the result.
            op: the operation.
        """
        self._count_agreement(common)
        super().Allreduce(own_numbers, common, op)

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Start to reduce a buffer on all ranks; return its request. Count it as control traffic."""
        self._count_agreement(recvbuf)
        return super().Iallreduce(sendbuf, recvbuf, op)

    def _count_agreement(self, numbers: np.ndarray) -> None:
        """Count the bytes of an all-reduce of a few numbers as control traffic "agreement".

        They are the bytes that this rank receives in a reduce_scatter and an all_gather; it sends as many.

        Args:
            numbers: the array that is reduced; only its size and type count.
        """
        size, counts = self.rank_size[1], self._balanced(numbers.size)
        # As a reduce_scatter of balanced blocks and an all_gather of the reduced blocks.
        own_block = counts[self.rank_size[0]]
        nbytes = ((size - 1) * own_block + numbers.size - own_block) * numbers.itemsize
        self.tally.controls("agreement", nbytes, nbytes)

    def Iprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Any = None) -> bool:
        """Return True if a message has arrived."""
        self.tally.controls("polls")
        return super().Iprobe(source, tag, status)

    def Barrier(self) -> None:
        """Wait until all ranks have called it."""
        self.tally.controls("barriers")
        super().Barrier()

    def Ibarrier(self) -> MPI.Request:
        """Return a request that completes when all ranks have called it."""
        self.tally.controls("barriers")
        return super().Ibarrier()

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send a message of control traffic; ``tag`` must be one of its tags."""
        self.tally.controls(_PURPOSES[tag], 0, _nbytes(buf))
        super().Send(buf, dest, tag)

    def Recv(
        self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Any = None
    ) -> None:
        """Receive a message of control traffic; ``tag`` must be one of its tags."""
        self.tally.controls(_PURPOSES[tag], _nbytes(buf), 0)
        super().Recv(buf, source, tag, status)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Start to send a pickled object as control traffic; return its request, which keeps the bytes."""
        return self.Isend([pickle.dumps(obj), MPI.BYTE], dest, tag)

    def recv(
        self, buf: Any = None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Any = None
    ) -> Any:
        """Receive a pickled object, and count it as control traffic.

        It waits until the message arrives; callers probe for it first.

        Args:
            buf: not used: mpi4py's method has it.
            source: the sender; any by default.
            tag: a tag of control traffic (the default fails).
            status: filled with the message's facts if it is not None.

        Returns:
            The object.
        """
        arrived = MPI.Status() if status is None else status
        self.Probe(source, tag, arrived)
        data = bytearray(arrived.Get_count(MPI.BYTE))
        self.Recv([data, MPI.BYTE], arrived.Get_source(), tag)
        return pickle.loads(data)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Send a Python object to all ranks; return the objects of all ranks, ordered by rank.

        For example, on 2 ranks that give "a" and "b", both get ["a", "b"]. The objects are pickled and may differ in
        length. So there are two collectives, one of the lengths and one of the objects. Both are counted as control
        traffic. All ranks must call it.

        Args:
            sendobj: this rank's object.
        """
        data, (rank, size) = pickle.dumps(sendobj), self.rank_size
        lengths = np.empty(size, np.int64)
        self.tally.controls("objects", (size - 1) * 8, (size - 1) * 8)
        super().Allgather(np.array([len(data)]), lengths)
        counts = lengths.tolist()
        total = sum(counts)
        everything = bytearray(total)
        self.tally.controls("objects", total - counts[rank], (size - 1) * len(data))
        super().Allgatherv([data, MPI.BYTE], [everything, (counts, None), MPI.BYTE])
        ends = np.cumsum(lengths).tolist()
        return [pickle.loads(everything[end - length : end]) for end, length in zip(ends, counts)]

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Counted:
        """Return the communicator of a group, which counts, too."""
        self.tally.controls("groups")
        return Counted.of(super().Create_group(group, tag), self.tally)

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Counted:
        """Return the communicators of the nodes, which count, too."""
        self.tally.controls("groups")
        return Counted.of(super().Split_type(split_type, key, info), self.tally)

    def window(self, nbytes: int) -> MPI.Win:
        """Return memory that all ranks share, to which this rank contributes ``nbytes`` bytes.

        All ranks must call it.
        """
        self.tally.controls("groups")
        return MPI.Win.Allocate_shared(nbytes, 1, MPI.INFO_NULL, self)
