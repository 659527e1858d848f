"""An emulated communicator: it replaces mpi4py's in a script that does not know this package.

::

    comm = EmulatedCommunicator(MPI.COMM_WORLD, all_reduce="ring", library="mpich")
    comm.Allreduce(x, y, op=MPI.MAX)

Each upper-case collective runs a schedule over point-to-point messages of the real communicator: the algorithm
named for it, or the one that ``library`` (by default the MPI in use) would choose for that size. All methods that
are not collectives of buffers, including the lower-case ones, are those of the real communicator. Copies and parts,
as by ``Dup`` and ``Split``, are emulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from spmdsim.bounded import Bounded
from spmdsim.collectives import Schedule, algorithms, make_schedule, schedule_of
from spmdsim.collectives.execution import check_arrays, execute
from spmdsim.collectives.instructions import cut
from spmdsim.collectives.promises import collective
from spmdsim.collectives.selection_tables import choose, libraries
from spmdsim.errors import InputError, ScheduleError, WorldError, many, unknown
from spmdsim.pictured import Pictured
from spmdsim.worlds.agreement.start_agreement import agree_on_start
from spmdsim.worlds.emulated import parse_algorithm, program_of
from spmdsim.worlds.mpi.emulated_calls import (
    Buffer,
    EmulatedCalls,
    find_function,
    parse_buffer,
    require_writable_array,
)
from spmdsim.worlds.mpi.messages import TAG, Messages
from spmdsim.worlds.programs import check_mode

_Method = TypeVar("_Method", bound=Callable[..., None])


def _report_failures(method: _Method) -> _Method:
    """Return a collective that reports this rank's error to the ranks that wait for it.

    It is for use as a decorator. Without the report, they would wait for a call that the rank cannot make. With it,
    they raise an error with the text of the rank's error. If nothing fails, the decorated collective returns when all
    ranks have made an equal call.

    Args:
        method: a collective of :class:`EmulatedCommunicator`.
    """

    @wraps(method)
    def call(self: EmulatedCommunicator, *args: Any, **options: Any) -> None:
        self._calls.begun = False
        try:
            method(self, *args, **options)
            self._calls.end()
        except Exception as error:
            self._calls.failed(method.__name__, error)
            raise

    return call  # type: ignore[return-value]


class EmulatedCommunicator(Pictured, MPI.Intracomm):
    """A communicator whose collectives of buffers run by emulated algorithms.

    It is a handle of the real communicator, so all other calls are those of mpi4py. Copies and parts of it, as by
    ``Dup`` and ``Split``, are emulated, too.

    Its ranks compare what they call: collective, operation, root, counts, element type and algorithm. A long call, or
    one of a new kind, is compared before it runs, any other beside it; none returns before all ranks have made an
    equal call.

    Args:
        comm: the real communicator; messages go over a duplicate of it. Collective.
        library: ``"mpich"`` or ``"openmpi"``, whose choices to follow if no algorithm is named; by default that of the
            MPI in use.
        check: as in :class:`~spmdsim.worlds.mpi.mpi_world.MPIWorld`.
        deadline: seconds that a call waits for ranks that do not come before they are named; as in MPIWorld.
        **algorithms: an algorithm per collective, such as ``all_reduce="ring"``, with options after a colon.

    Raises:
        SpmdError: If a collective does not exist.
        ScheduleError: If an algorithm does not exist.
        InputError: If the library does not exist.
        WorldError: If ranks do not start alike; in every call, if ranks disagree, do not come or have left.
    """

    def __new__(cls, comm: MPI.Intracomm, *_: Any, **__: Any) -> EmulatedCommunicator:
        """Return a handle of the real communicator; mpi4py sets it before the object is initialised."""
        return super().__new__(cls, comm)

    def __init__(
        self,
        comm: MPI.Intracomm,
        library: str | None = None,
        check: bool | str | None = None,
        deadline: float | None = None,
        **algorithms: str,
    ) -> None:
        self._rank, self._size = comm.Get_rank(), comm.Get_size()
        wanted: dict[str, Callable[[], Any]] = {
            "check": lambda: check_mode(check),
            "library": lambda: _check_library(library),
            "algorithms": lambda: _check_algorithms(algorithms, self._size),
        }
        settings = agree_on_start(comm, deadline, wanted, "an emulated communicator")
        self._options: dict[str, Any] = {"check": check, "deadline": deadline}
        self._owns_real = False
        self.library: str = settings["library"]
        self._named: dict[str, str] = settings["algorithms"]
        self._schedules: Bounded[tuple[Any, ...], Schedule] = Bounded()
        self.real, self.comm = comm, comm.Dup()
        self._calls = EmulatedCalls(self.comm, settings["check"], settings["deadline"])
        self._messages = Messages(self.comm, look=self._calls.look)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def Free(self) -> None:
        """Free the duplicate; a real communicator of the caller stays. Collective."""
        self._calls.free()
        self.comm.Free()
        if self._owns_real:
            self.real.Free()

    # -- other communicators --------------------------------------------------------------------------

    def _emulate(self, real: Any) -> Any:
        """Return the emulation of a communicator with the settings of this one; COMM_NULL stays.

        Args:
            real: the communicator, which the emulation frees.
        """
        if real == MPI.COMM_NULL:
            return real
        settings: dict[str, Any] = {**self._options, **self._named}
        comm = type(self)(real, self.library, **settings)
        comm._owns_real = True
        return comm

    def Dup(self, info: MPI.Info | None = None) -> Any:
        """Return an emulated communicator of all ranks with the hints ``info``. Collective."""
        return self._emulate(self.real.Dup(info))

    def Dup_with_info(self, info: MPI.Info) -> Any:
        """Return an emulated communicator of all ranks with the hints ``info``. Collective."""
        return self._emulate(self.real.Dup_with_info(info))

    def Clone(self) -> Any:
        """Return an emulated communicator of all ranks. Collective."""
        return self._emulate(self.real.Clone())

    def Split(self, color: int = 0, key: int = 0) -> Any:
        """Return an emulated communicator of the ranks with equal color. Collective.

        Args:
            color: 0 or more, or MPI.UNDEFINED for COMM_NULL.
            key: ranks are ordered by key, then by old rank.

        Raises:
            ScheduleError: If a named algorithm does not fit the number of ranks.
        """
        return self._emulate(self.real.Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Any:
        """Return an emulated communicator of the ranks that share hardware. Collective.

        Args:
            split_type: such as MPI.COMM_TYPE_SHARED.
            key: ranks are ordered by key, then by old rank.
            info: hints for the library.

        Raises:
            ScheduleError: If a named algorithm does not fit the number of ranks.
        """
        return self._emulate(self.real.Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> Any:
        """Return an emulated communicator of a group's ranks; COMM_NULL on other ranks. Collective."""
        return self._emulate(self.real.Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Any:
        """Return an emulated communicator of a group's ranks, which all call it with equal ``tag``."""
        return self._emulate(self.real.Create_group(group, tag))

    def Idup(self, info: MPI.Info | None = None) -> Any:
        """Raise WorldError: an emulated communicator cannot be created in the background; ``info`` is unused."""
        raise WorldError("Idup: an emulated communicator must be copied by a blocking call; call Dup")

    def Idup_with_info(self, info: MPI.Info) -> Any:
        """Raise WorldError, as :meth:`Idup` does; ``info`` is unused."""
        return self.Idup(info)

    # -- reductions -----------------------------------------------------------------------------------

    @_report_failures
    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce the operands of all ranks; every rank gets the result.

        Args:
            sendbuf: the operand, or MPI.IN_PLACE if ``recvbuf`` has it.
            recvbuf: the buffer of the result.
            op: the operation.

        Raises:
            UsageTypeError: If a buffer is no contiguous buffer of numbers, or the result's is read-only.
            WorldError: If no algorithm fits the operation.
            DisagreementError: If ranks make other calls, or do not come.
        """
        self._reduce("all_reduce", sendbuf, recvbuf, op)

    @_report_failures
    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        """Reduce the operands of all ranks; the root gets the result.

        Args:
            sendbuf: the operand; on the root also MPI.IN_PLACE if ``recvbuf`` has it.
            recvbuf: the buffer of the result; not read or written on other ranks, where it may be None.
            op: the operation.
            root: the rank that gets the result.

        Raises:
            UsageTypeError: If a buffer is no contiguous buffer of numbers, or the result's is read-only.
            WorldError: If no algorithm fits the operation.
            DisagreementError: If ranks make other calls, or do not come.
        """
        self._reduce("reduce", sendbuf, recvbuf, op, root)

    @_report_failures
    def Scan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce the operands of the ranks up to and including the own one.

        Args:
            sendbuf: the operand, or MPI.IN_PLACE if ``recvbuf`` has it.
            recvbuf: the buffer of the result.
            op: the operation.

        Raises:
            UsageTypeError: If a buffer is no contiguous buffer of numbers, or the result's is read-only.
            WorldError: If no algorithm fits the operation.
            DisagreementError: If ranks make other calls, or do not come.
        """
        self._reduce("scan", sendbuf, recvbuf, op)

    @_report_failures
    def Exscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce the operands of the ranks before the own one; rank 0's buffer is left as it is.

        Args:
            sendbuf: the operand, or MPI.IN_PLACE if ``recvbuf`` has it.
            recvbuf: the buffer of the result.
            op: the operation.

        Raises:
            UsageTypeError: If a buffer is no contiguous buffer of numbers, or the result's is read-only.
            WorldError: If no algorithm fits the operation.
            DisagreementError: If ranks make other calls, or do not come.
        """
        self._reduce("exscan", sendbuf, recvbuf, op)

    def _reduce(self, name: str, sendbuf: Any, recvbuf: Any, op: MPI.Op, root: int = 0) -> None:
        """Run a reduction of buffers by the chosen algorithm.

        Only the first elements of ``recvbuf`` are written, as many as the operand has. A rank without a result, such
        as rank 0 in "exscan", keeps its buffer.

        Args:
            name: "all_reduce", "reduce", "scan" or "exscan".
            sendbuf: the operand, or MPI.IN_PLACE if ``recvbuf`` has it (in "reduce" on the root only).
            recvbuf: the buffer of the result; only the root's is used by "reduce".
            op: the operation.
            root: the rank that gets the result of "reduce".

        Raises:
            UsageTypeError: If a buffer is no contiguous buffer of numbers, or the result's is read-only.
            WorldError: If no algorithm fits the operation.
            DisagreementError: If ranks make other calls, or do not come.
        """
        has_result = name != "reduce" or self._rank == root
        result = parse_buffer(recvbuf) if has_result else None
        source = result if sendbuf is MPI.IN_PLACE else parse_buffer(sendbuf)
        assert source is not None  # for the type checker: only the root's sendbuf may be IN_PLACE
        schedule = self._schedule(name, source.count, source, op, root)
        vector = source.elements.copy() if sendbuf is MPI.IN_PLACE else source.elements
        has_output = result is not None and schedule.ends_with(self._rank)
        target = result.elements[: source.count] if result is not None and has_output else None
        self._run(schedule, schedule.chunk_elements(source.count), vector, target, op, source)

    @_report_failures
    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce, and leave each rank its block; blocks are equal, of the receive buffer's length.

        Args:
            sendbuf: all blocks, in the order of the ranks; or MPI.IN_PLACE if ``recvbuf`` has them.
            recvbuf: the buffer for this rank's block.
            op: the operation.

        Raises:
            UsageTypeError: If an argument is no buffer.
            DisagreementError: If ranks make other calls, or do not come.
        """
        result = parse_buffer(recvbuf)
        count = result.count // self._size if sendbuf is MPI.IN_PLACE else result.count
        self._scatter_reduced(sendbuf, result, (count,) * self._size, op)

    @_report_failures
    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: MPI.Op = MPI.SUM
    ) -> None:
        """Reduce, and leave each rank its block of ``recvcounts`` elements.

        Args:
            sendbuf: all blocks, in the order of the ranks; or MPI.IN_PLACE if ``recvbuf`` has them.
            recvbuf: the buffer for this rank's block.
            recvcounts: the number of elements of each rank's block. None: the ranks first send each other the lengths
                of their receive buffers.
            op: the operation.

        Raises:
            UsageTypeError: If an argument is no buffer.
            DisagreementError: If ranks make other calls, or do not come.
        """
        result = parse_buffer(recvbuf)
        if recvcounts is None:
            self._calls.meet("reduce_scatter")
        counts = self.comm.allgather(result.count) if recvcounts is None else recvcounts
        self._scatter_reduced(sendbuf, result, tuple(map(int, counts)), op)

    def _scatter_reduced(self, sendbuf: Any, result: Buffer, counts: tuple[int, ...], op: MPI.Op) -> None:
        """Run a reduce_scatter of blocks with ``counts`` elements by the chosen algorithm.

        Args:
            sendbuf: all blocks, or MPI.IN_PLACE if ``result`` has them.
            result: the buffer for this rank's block.
            counts: the number of elements of each rank's block.
            op: the operation.

        Raises:
            UsageTypeError: If ``sendbuf`` is no buffer.
            DisagreementError: If ranks make other calls, or do not come.
        """
        in_place = sendbuf is MPI.IN_PLACE
        source = result if in_place else parse_buffer(sendbuf)
        schedule = self._schedule("reduce_scatter", sum(counts), source, op)
        vector = source.elements.copy() if in_place else source.elements
        target = result.elements[: counts[self._rank]]
        self._run(schedule, _split_into_chunks(schedule, counts), vector[: sum(counts)], target, op, source)

    # -- moves ----------------------------------------------------------------------------------------

    @_report_failures
    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Send the root's buffer to all ranks.

        Args:
            buf: the buffer: read on the root, written on the other ranks; equally many elements everywhere.
            root: the rank that sends.

        Raises:
            UsageTypeError: If ``buf`` is no contiguous buffer.
            DisagreementError: If ranks make other calls (count, type or root), or do not come.
        """
        buffer = parse_buffer(buf)
        schedule = self._schedule("broadcast", buffer.count, buffer, None, root)
        if self._rank == root:
            # The algorithm may write into both arrays, but the root's buffer is only read.
            vector, target = buffer.elements.copy(), buffer.elements.copy()
        else:
            vector, target = None, buffer.elements
        self._run(schedule, schedule.chunk_elements(buffer.count), vector, target)

    @_report_failures
    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send all ranks' blocks, of equal length, to all ranks.

        Args:
            sendbuf: this rank's block, or MPI.IN_PLACE if it is in its place in ``recvbuf``.
            recvbuf: the buffer for all blocks, in the order of the ranks.

        Raises:
            UsageTypeError: If ``sendbuf`` is no buffer.
            WorldError: If the buffer's counts do not fit the number of ranks.
            DisagreementError: If ranks make other calls, or do not come.
        """
        self._gather_all(sendbuf, parse_buffer(recvbuf))

    @_report_failures
    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send all ranks' blocks, of any length, to all ranks.

        Args:
            sendbuf: this rank's block, or MPI.IN_PLACE if it is in its place in ``recvbuf``.
            recvbuf: the buffer for all blocks, as ``[array, counts]`` or with displacements.

        Raises:
            UsageTypeError: If ``sendbuf`` is no buffer.
            WorldError: If the buffer's counts do not fit the number of ranks.
            DisagreementError: If ranks make other calls, or do not come.
        """
        self._gather_all(sendbuf, parse_buffer(recvbuf, vector=True))

    def _gather_all(self, sendbuf: Any, result: Buffer) -> None:
        """Run an all_gather of blocks.

        Args:
            sendbuf: this rank's block, or MPI.IN_PLACE if it is in its place in ``result``.
            result: the buffer of the result, with the counts and displacements of the blocks.

        Raises:
            UsageTypeError: If ``sendbuf`` is no buffer.
            WorldError: If the buffer's counts do not fit the number of ranks.
            DisagreementError: If ranks make other calls, or do not come.
        """
        counts, begins = result.blocks(self._size)
        schedule = self._schedule("all_gather", sum(counts), result)
        block = slice(begins[self._rank], begins[self._rank] + counts[self._rank])
        vector = result.elements[block].copy() if sendbuf is MPI.IN_PLACE else parse_buffer(sendbuf).elements
        self._run_and_place(schedule, _split_into_chunks(schedule, counts), vector, result, counts, begins)

    @_report_failures
    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a block of equal length from each rank to each rank.

        Args:
            sendbuf: one block per receiver, or MPI.IN_PLACE if ``recvbuf`` has them.
            recvbuf: the buffer for one block per sender.

        Raises:
            UsageTypeError: If an argument is no buffer.
            DisagreementError: If ranks make other calls, or do not come.
        """
        result = parse_buffer(recvbuf)
        vector = result.elements.copy() if sendbuf is MPI.IN_PLACE else parse_buffer(sendbuf).elements
        schedule = self._schedule("all_to_all", len(vector), result)
        self._run(schedule, schedule.chunk_elements(len(vector)), vector, result.elements)

    @_report_failures
    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a block from each rank to each rank; blocks may have any length, also 0.

        The ranks first send each other the lengths of all blocks, and compare them with the expected ones. For example,
        if rank 0 sends with the counts (1, 3), rank 1 must expect 3 elements from rank 0.

        Args:
            sendbuf: one block per receiver, as ``[array, counts]`` or with displacements. MPI.IN_PLACE: ``recvbuf`` has
                them.
            recvbuf: the buffer for one block per sender, with the expected lengths.

        Raises:
            InputError: If this rank expects other lengths than the others send. The ranks that wait for it raise an
                error with this text.
        """
        result, size = parse_buffer(recvbuf, vector=True), self._size
        source = result if sendbuf is MPI.IN_PLACE else parse_buffer(sendbuf, vector=True)
        counts, begins = source.blocks(size)
        lengths = np.empty((size, size), np.int64)
        self._calls.meet("all_to_all")
        self.comm.Allgather(np.array(counts, np.int64), lengths)
        sent_counts, received_layout = tuple(lengths[:, self._rank].tolist()), result.blocks(size)
        if sent_counts != received_layout[0]:
            raise InputError(
                f"recvcounts must be the sizes of the blocks sent to this rank, {sent_counts}, got {received_layout[0]}"
            )
        schedule = self._schedule("all_to_all", int(lengths.sum(axis=1).max()), result)
        vector = _join_blocks(source, counts, begins)
        self._run_and_place(schedule, tuple(lengths.reshape(-1).tolist()), vector, result, *received_layout)

    @_report_failures
    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Send all ranks' blocks, of equal length, to the root.

        Args:
            sendbuf: this rank's block; on the root also MPI.IN_PLACE if it is in its place in ``recvbuf``.
            recvbuf: the buffer for all blocks, in the order of the ranks; only the root's is used.
            root: the rank that receives the blocks.

        Raises:
            InputError: On the root, if its lengths are not those of the blocks.
            WorldError: If the elements of the result are no multiple of the number of ranks.
        """
        self._gather(sendbuf, recvbuf, root, False)

    @_report_failures
    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Send all ranks' blocks, of any length, to the root.

        The root first sends the lengths to all ranks. Arguments and errors are those of :meth:`Gather`, but ``recvbuf``
        is ``[array, counts]``, or has displacements, too.
        """
        self._gather(sendbuf, recvbuf, root, True)

    def _gather(self, sendbuf: Any, recvbuf: Any, root: int, vector: bool) -> None:
        """Send one block of each rank to the root, by the chosen algorithm.

        The root's result has the blocks of the ranks 0, 1, … at their displacements.

        Args:
            sendbuf: the block of this rank; on the root also MPI.IN_PLACE if its block is in the result already.
            recvbuf: the buffer of the result, used on the root only.
            root: the rank that receives all blocks.
            vector: False for Gather: all blocks must have equal lengths, which is not checked here. True for Gatherv:
                they may differ, and the ranks first send each other their lengths.

        Raises:
            InputError: On the root, if its lengths are not those of the blocks.
            WorldError: If the result's counts are not one per rank or, without counts, its elements are no multiple of
                the number of ranks.
        """
        result = parse_buffer(recvbuf, vector) if self._rank == root else None
        counts, begins = result.blocks(self._size) if result is not None else ((), ())
        if vector:
            own_count = counts[root] if sendbuf is MPI.IN_PLACE else parse_buffer(sendbuf).count
            counts = self._exchange_counts("gather", root, counts, own_count)
        elif result is None:
            counts = (parse_buffer(sendbuf).count,) * self._size
        # In place, the root's block is copied, because the gather writes into the memory that has it.
        if sendbuf is MPI.IN_PLACE and result is not None:
            block = result.elements[begins[root] : begins[root] + counts[root]].copy()
        else:
            block = parse_buffer(sendbuf).elements
        schedule = self._schedule("gather", sum(counts), result or parse_buffer(sendbuf), None, root)
        self._run_and_place(schedule, _split_into_chunks(schedule, counts), block, result, counts, begins)

    @_report_failures
    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Send one block of the root's, of equal length, to each rank.

        Args:
            sendbuf: the buffer with all blocks, in the order of the ranks; only the root's is used.
            recvbuf: the buffer for this rank's block; on the root also MPI.IN_PLACE to leave its block in ``sendbuf``.
            root: the rank that sends the blocks.

        Raises:
            InputError: On the root, if its lengths are not those that the ranks expect.
            WorldError: If the elements of the root's buffer are no multiple of the number of ranks.
        """
        self._scatter(sendbuf, recvbuf, root, False)

    @_report_failures
    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Send one block of the root's, of any length, to each rank.

        The root first sends the lengths to all ranks. Arguments and errors are those of :meth:`Scatter`, but ``sendbuf``
        is ``[array, counts]``, or has displacements, too.
        """
        self._scatter(sendbuf, recvbuf, root, True)

    def _scatter(self, sendbuf: Any, recvbuf: Any, root: int, vector: bool) -> None:
        """Send one block of the root's buffer to each rank, by the chosen algorithm.

        Args:
            sendbuf: the buffer with the blocks for the ranks 0, 1, …; used on the root only.
            recvbuf: the buffer for this rank's block; on the root also MPI.IN_PLACE if its block stays in ``sendbuf``.
            root: the rank that sends all blocks.
            vector: False for Scatter: all blocks are equally long. True for Scatterv: they may differ, and the ranks
                first send each other the lengths that they expect.

        Raises:
            InputError: On the root, if its lengths are not those that the ranks expect.
            WorldError: If the counts of the root's buffer are not one per rank or, without counts, its elements are no
                multiple of the number of ranks.
        """
        is_root = self._rank == root
        source = parse_buffer(sendbuf, vector) if is_root else None
        counts, begins = source.blocks(self._size) if source is not None else ((), ())
        is_in_place = recvbuf is MPI.IN_PLACE
        result = source if is_in_place else parse_buffer(recvbuf)
        assert result is not None  # for the type checker: only the root's recvbuf may be IN_PLACE
        if vector:
            counts = self._exchange_counts(
                "scatter", root, counts, counts[root] if is_in_place else result.count
            )
        elif source is None:
            counts = (result.count,) * self._size
        schedule = self._schedule("scatter", sum(counts), result, None, root)
        packed = None if source is None else _join_blocks(source, counts, begins)
        count = counts[self._rank]
        target = np.empty_like(result.elements[:count]) if is_in_place else result.elements[:count]
        self._run(schedule, _split_into_chunks(schedule, counts), packed, target)

    @_report_failures
    def Barrier(self) -> None:
        """Wait until all ranks have called it."""
        schedule = self._schedule("barrier", 0, Buffer(np.empty(0), None, None, None))
        self._run(schedule, (0,) * schedule.chunk_count, None, None)

    # -- how -------------------------------------------------------------------------------------------

    def _exchange_counts(
        self, name: str, root: int, counts: tuple[int, ...], own_count: int
    ) -> tuple[int, ...]:
        """Return the number of elements of each rank's block, of which each rank knows its own.

        All ranks must call it.

        Args:
            name: the collective.
            root: the rank that knows all lengths.
            counts: the lengths on the root; not used on other ranks.
            own_count: the length of this rank's block.

        Raises:
            InputError: On the root, if its lengths differ from those that the ranks expect.
            DisagreementError: If ranks make other calls, or do not come.
        """
        self._calls.meet(name, root)
        expected_counts = tuple(self.comm.allgather(own_count))
        if self._rank == root and expected_counts != counts:
            raise InputError(
                f"the root's blocks have {counts} elements, but the ranks have {expected_counts}"
            )
        return expected_counts

    def _run_and_place(
        self,
        schedule: Schedule,
        sizes: tuple[int, ...],
        vector: np.ndarray,
        result: Buffer | None,
        counts: tuple[int, ...],
        begins: tuple[int, ...],
    ) -> None:
        """Run a schedule, and put the received blocks at their offsets in the result.

        - If the blocks lie one after the other from offset 0, the schedule writes to the result directly.
        - Otherwise it writes to a new array, whose blocks are copied. With counts (2, 1) and offsets (0, 5), the
          elements 0, 1 and 5 of the result are written, and those in the gap stay.

        Args:
            schedule: the schedule.
            sizes: the number of elements of each chunk that the schedule moves.
            vector: this rank's input.
            result: the buffer of the result; None on a rank without one.
            counts: the number of elements of each block.
            begins: the offset of each block in the result.
        """
        if result is None:
            self._run(schedule, sizes, vector, None)
            return
        require_writable_array(result.elements)
        total = sum(counts)
        in_order = begins == tuple(accumulate((0, *counts[:-1])))
        shape = (total, *result.elements.shape[1:])
        target = result.elements[:total] if in_order else np.empty_like(result.elements, shape=shape)
        self._run(schedule, sizes, vector, target)
        start = 0
        for begin, count in zip(begins, counts if not in_order else ()):
            result.elements[begin : begin + count] = target[start : start + count]
            start += count

    def _run(
        self,
        schedule: Schedule,
        sizes: tuple[int, ...],
        vector: np.ndarray | None,
        result: np.ndarray | None,
        op: MPI.Op | None = None,
        like: Buffer | None = None,
    ) -> None:
        """Compare the call with those of the other ranks, and run a schedule.

        The arrays are checked before, so a rank with a wrong array raises without comparing.

        Args:
            schedule: the schedule.
            sizes: the number of elements of each chunk.
            vector: this rank's input; None on a rank that gives nothing.
            result: the array for its output; None on a rank that gets nothing.
            op: the operation; None if nothing is reduced.
            like: a buffer with the operation's element type; None if nothing is reduced.

        Raises:
            ScheduleError: If the input or the result has another length than the schedule needs, or their element types
                differ.
            UsageTypeError: If the result is read-only.
            DisagreementError: If ranks make other calls, or do not come.
        """
        program = program_of(schedule, self._rank, sizes)
        check_arrays(program, vector, result)
        if result is not None:
            require_writable_array(result)
        self._calls.begin(schedule, sizes, op, result if vector is None else vector)
        function = np.add if op is None or like is None else find_function(op, like)
        execute(program, self._messages, vector, result, function, TAG)

    def _schedule(
        self, name: str, count: int, like: Buffer, op: MPI.Op | None = None, root: int = 0
    ) -> Schedule:
        """Return the schedule of a call, from a cache if possible.

        Args:
            name: the collective.
            count: the number of elements of the message.
            like: a buffer with the element type.
            op: the operation; None if nothing is reduced. If it does not commute, operands are reduced in the order of
                the ranks.
            root: the root; 0 for collectives without one.

        Raises:
            WorldError: As in :meth:`_choose`.
        """
        elements = like.elements
        itemsize = elements.dtype.itemsize * (elements.shape[1] if elements.ndim > 1 else 1)
        commutes = op is None or op.Is_commutative()
        key = (name, count, itemsize, commutes, root)
        schedule = self._schedules.get(key)
        if schedule is None:
            schedule = self._schedules[key] = self._choose(name, count * itemsize, itemsize, commutes, root)
        return schedule

    def _choose(self, name: str, nbytes: int, itemsize: int, commutes: bool, root: int) -> Schedule:
        """Return the schedule by which a collective runs.

        The first of these algorithms is taken:

        1. The algorithm that the user named for the collective.
        2. The algorithm that the library would choose for a message of ``nbytes`` bytes, if it is known and fits.
        3. The first algorithm of the collective that fits.

        An algorithm fits if it runs on the communicator's number of ranks, and keeps the order of operands unless
        they commute.

        Args:
            name: the collective, such as "all_reduce".
            nbytes: the bytes of the message.
            itemsize: the bytes of an element.
            commutes: False if operands must be reduced in the order of the ranks.
            root: the root; 0 for collectives without one.

        Raises:
            WorldError: If the user's algorithm does not keep the order of operands of an operation that does not
                commute, or no algorithm fits.
        """
        if name in self._named:
            kind, options = parse_algorithm(self._named[name])
            schedule = schedule_of(name, kind, self._size, root, **options)
            if not commutes and not schedule.in_order:
                needed = "the order of operands, which a non-commutative operation needs"
                raise WorldError(f"{schedule.name} does not keep {needed}; choose an algorithm that does")
            return schedule
        try:
            chosen = choose(self.library, name, self._size, nbytes, commutes, itemsize).algorithm
            schedule = make_schedule(chosen, self._size, root)
            if commutes or schedule.in_order:
                return schedule
        except (InputError, ScheduleError):
            pass  # no table for this collective, or a choice that does not fit here
        return _find_schedule(name, self._size, root, commutes)


def _join_blocks(source: Buffer, counts: tuple[int, ...], begins: tuple[int, ...]) -> np.ndarray:
    """Return the blocks of a buffer one after the other."""
    return np.concatenate([source.elements[begin : begin + n] for begin, n in zip(begins, counts)])


def _check_library(library: str | None) -> str:
    """Return ``library``, or "openmpi" or "mpich" if it is None.

    None stands for the library in use; every other MPI library than Open MPI counts as MPICH.

    Raises:
        InputError: If no choices of the library are known.
    """
    name = library or ("openmpi" if MPI.get_vendor()[0] == "Open MPI" else "mpich")
    if name not in libraries():
        what = f"the choices of {library!r} are not known"
        raise unknown(what, str(library), libraries(), listed="known are")
    return name


def _check_algorithms(algorithms: Mapping[str, str], size: int) -> dict[str, str]:
    """Return the user's algorithms by the canonical names of their collectives.

    Args:
        algorithms: an algorithm with its options, such as "ring", by collective.
        size: the number of ranks.

    Raises:
        SpmdError: If a collective does not exist.
        ScheduleError: If an algorithm does not exist, or does not fit ``size`` ranks.
    """
    named = {collective(name).name: text for name, text in algorithms.items()}
    for name, text in named.items():
        kind, options = parse_algorithm(text)
        schedule_of(name, kind, size, **options)
    return named


def _find_schedule(name: str, size: int, root: int, commutes: bool) -> Schedule:
    """Return the schedule of the first algorithm of a collective that fits the number of ranks.

    Args:
        name: the collective.
        size: the number of ranks.
        root: the root; 0 for collectives without one.
        commutes: False if the algorithm must keep the order of the ranks.

    Raises:
        WorldError: If there is no such algorithm.
    """
    for candidate in algorithms(name):
        if candidate.fits(size, dict(candidate.options)):
            schedule = make_schedule(candidate, size, root)
            if commutes or schedule.in_order:
                return schedule
    raise WorldError(
        f"no algorithm of {name} fits {many(size, 'rank')}, root {root}{', in order' * (not commutes)}"
    )


def _split_into_chunks(schedule: Schedule, counts: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of elements of each chunk, from those of each rank's block.

    Each block is cut into equally many chunks, which are balanced.
    """
    chunks_per_rank = schedule.chunk_count // schedule.size
    return tuple(size for count in counts for size in cut(count, chunks_per_rank))
