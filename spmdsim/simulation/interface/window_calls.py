"""The methods of a window that move data and open or close epochs."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from spmdsim.simulation.data.constants import LOCK_EXCLUSIVE, PROC_NULL, UNDEFINED, MPIError
from spmdsim.simulation.data.message_buffers import (
    MessageBuffer,
    count_and_type,
    message_buffer,
    receive_buffer,
)
from spmdsim.simulation.data.reduce_operators import SUM, Op
from spmdsim.simulation.engine.collective_calls import CollectiveCall, CollectiveRule
from spmdsim.simulation.engine.mailboxes import Endpoint
from spmdsim.simulation.engine.scheduler import Task
from spmdsim.simulation.findings.problems import site_of
from spmdsim.simulation.interface.collective_methods import call_collective
from spmdsim.simulation.interface.groups import Group
from spmdsim.simulation.interface.requests import Request
from spmdsim.simulation.one_sided.accesses import SWAP
from spmdsim.simulation.one_sided.data_calls import DataCall, complete_results, parse_target
from spmdsim.simulation.one_sided.operations import WindowOperation
from spmdsim.simulation.one_sided.synchronisation import RankSynchronisation, deliver_fence
from spmdsim.simulation.one_sided.window_state import WindowState

_frame = sys._getframe


class WindowCalls:
    """Methods of one rank's handle of a window.

    A call that moves data starts in an epoch: after Fence, Start, Lock or Lock_all. Its data arrives when the epoch
    ends, or at a flush. Calls raise MPIError with ERR_RMA_SYNC without an epoch, ERR_RANK if the target is no rank of
    the window, and ERR_RMA_RANGE if an access is outside of the target's window. Calls with a request need a lock. A target PROC_NULL does nothing.
    """

    _window: WindowState | None = None
    _end: Endpoint
    _rank: int

    @property
    def _meeting_end(self) -> Endpoint:
        """The rank's end for collectives."""
        return self._end

    @property
    def _state(self) -> WindowState:
        """The state of the window. Raises an MPI error if the handle is null."""
        if self._window is None:
            raise MPIError("ERR_WIN", "the window is WIN_NULL or was freed")
        self._end.running()
        return self._window

    @property
    def _scheduler(self) -> Any:
        return self._state.scheduler

    @property
    def _task(self) -> Task:
        return self._end.running()

    def _synchronise(self) -> RankSynchronisation:
        """Return the synchronisation calls of the running rank, after its stores have been recorded."""
        self._state.scheduler.order.observe(self._task)
        return RankSynchronisation(self._state, self._rank)

    def _check_rank(self, name: str, rank: int) -> bool:
        """Return False for PROC_NULL, else True; raise an MPI error (ERR_RANK) for no rank of the window."""
        size = len(self._state.ranks)
        if not 0 <= rank < size and rank != PROC_NULL:
            raise MPIError("ERR_RANK", f"{name}: the rank must be 0 to {size - 1}, got {rank}")
        return rank != PROC_NULL

    # ------------------------------------------------------------------ data

    def _call(self, name: str, target_rank: int, frame: Any) -> DataCall | None:
        """Return a new call of the running rank, after its stores have been recorded; None for PROC_NULL.

        Args:
            name: the method, such as "Put". Methods with a request, such as "Rput", need a lock of the target.
            target_rank: the target.
            frame: the caller's frame.

        Raises:
            MPIError: If the target is no rank of the window (ERR_RANK), or a lock is missing (ERR_RMA_SYNC).
        """
        if not self._check_rank(name, target_rank):
            return None
        self._state.scheduler.order.observe(self._task)
        if name.startswith("R"):
            self._state.epochs[self._rank].check_passive(name, target_rank)
        return DataCall(self._state, self._rank, name, site_of(frame), target_rank)

    def _put(
        self, name: str, origin: Any, target_rank: int, target: Any, frame: Any
    ) -> WindowOperation | None:
        call = self._call(name, target_rank, frame)
        if call is None:
            return None
        buffer = message_buffer(origin)
        displacement, count, datatype = parse_target(target, *count_and_type(origin, buffer))
        return call.start(displacement, count, datatype, buffer, None, lambda old, sent: _replace(old, sent))

    def _get(
        self, name: str, origin: Any, target_rank: int, target: Any, frame: Any
    ) -> WindowOperation | None:
        call = self._call(name, target_rank, frame)
        if call is None:
            return None
        buffer = receive_buffer(origin)
        displacement, count, datatype = parse_target(target, *count_and_type(origin, buffer))
        return call.start(displacement, count, datatype, None, buffer, None)

    def _accumulate(
        self, name: str, origin: Any, result: Any, target_rank: int, target: Any, op: Op, frame: Any
    ) -> WindowOperation | None:
        """Start a call that combines data with the window, and return the operation; None for PROC_NULL.

        Args:
            name: the method, such as "Accumulate".
            origin: the buffer that is combined; not read if ``op`` is NO_OP.
            result: the buffer for the old values of the window; None: not wanted.
            target_rank: the target.
            target: its displacement, count and datatype.
            op: a predefined operation.
            frame: the caller's frame.
        """
        call = self._call(name, target_rank, frame)
        if call is None:
            return None
        filled = None if result is None else receive_buffer(result)
        reads_only = op.name == "NO_OP" and filled is not None
        spec = result if reads_only else origin
        buffer = message_buffer(spec)
        displacement, count, datatype = parse_target(target, *count_and_type(spec, buffer))
        if not reads_only:
            _check_op(op, buffer)
        update = None if reads_only else lambda old, sent: _combine(op, old, sent)
        sent = None if reads_only else buffer
        return call.start(displacement, count, datatype, sent, filled, update, op.name)

    def Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Write data to the window of a rank.

        Args:
            origin: the data: an array, or ``[array, count, displacement, datatype]`` with later items omitted. It must
                stay unchanged until the call is complete.
            target_rank: the target.
            target: None for the start of its window, a displacement, or ``(displacement, count, datatype)`` with later
                items omitted. Displacements count units of the target's window.
        """
        self._put("Put", origin, target_rank, target, _frame(1))

    def Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Read data from the window of a rank; it is in the buffer when the call is complete.

        Args:
            origin: the buffer to fill: an array, or ``[array, count, displacement, datatype]``.
            target_rank: the target.
            target: as in ``Put``.
        """
        self._get("Get", origin, target_rank, target, _frame(1))

    def Accumulate(self, origin: Any, target_rank: int, target: Any = None, op: Op = SUM) -> None:
        """Combine data with the window of a rank; equal operations of several ranks may meet in one element.

        Args:
            origin: the data, as in ``Put``.
            target_rank: the target.
            target: as in ``Put``.
            op: a predefined operation, or REPLACE.

        Raises:
            MPIError: If ``op`` is not predefined, or not defined for the type (ERR_OP).
        """
        self._accumulate("Accumulate", origin, None, target_rank, target, op, _frame(1))

    def Get_accumulate(
        self, origin: Any, result: Any, target_rank: int, target: Any = None, op: Op = SUM
    ) -> None:
        """Combine data with the window of a rank, and read the old values in one step.

        Args:
            origin: the data, as in ``Put``; not read if ``op`` is NO_OP.
            result: the buffer for the old values.
            target_rank: the target.
            target: as in ``Put``.
            op: a predefined operation, REPLACE or NO_OP.

        Raises:
            MPIError: If ``op`` is not predefined, or not defined for the type (ERR_OP).
        """
        self._accumulate("Get_accumulate", origin, result, target_rank, target, op, _frame(1))

    def Fetch_and_op(
        self, origin: Any, result: Any, target_rank: int, target_disp: int = 0, op: Op = SUM
    ) -> None:
        """Combine one element with the window of a rank, and read its old value in one step.

        Args:
            origin: one element, whose value is not read if ``op`` is NO_OP.
            result: a buffer of one element for the old value.
            target_rank: the target.
            target_disp: displacement in its window.
            op: a predefined operation, REPLACE or NO_OP.

        Raises:
            MPIError: If ``op`` is not predefined, or not defined for the type (ERR_OP).
            ValueError: If a buffer does not have one element, or the types of buffers differ.
        """
        if target_rank != PROC_NULL:
            _check_elements(origin, result=result)
        self._accumulate("Fetch_and_op", origin, result, target_rank, target_disp, op, _frame(1))

    def Compare_and_swap(
        self, origin: Any, compare: Any, result: Any, target_rank: int, target_disp: int = 0
    ) -> None:
        """Replace one element of a window if it has an expected value; read its old value in one step.

        Args:
            origin: the new value, one element.
            compare: the expected value, one element.
            result: a buffer of one element for the old value.
            target_rank: the target.
            target_disp: displacement in its window.

        Raises:
            ValueError: If a buffer does not have one element, or the types of buffers differ.
        """
        call = self._call("Compare_and_swap", target_rank, _frame(1))
        if call is None:
            return
        _check_elements(origin, compare=compare, result=result)
        buffer, expected = message_buffer(origin), message_buffer(compare).copy().tobytes()
        _, datatype = count_and_type(origin, buffer)
        call.start(
            target_disp, 1, datatype, buffer, receive_buffer(result),
            lambda old, sent: sent if old.tobytes() == expected else old, SWAP,
        )  # fmt: skip

    def Rput(self, origin: Any, target_rank: int, target: Any = None) -> Request:
        """Start to write data as ``Put`` does; when the request is complete, the origin buffer can be changed."""
        return Request(operation=self._put("Rput", origin, target_rank, target, _frame(1)))

    def Rget(self, origin: Any, target_rank: int, target: Any = None) -> Request:
        """Start to read data as ``Get`` does; when the request is complete, the data is in the buffer."""
        return Request(operation=self._get("Rget", origin, target_rank, target, _frame(1)))

    def Raccumulate(self, origin: Any, target_rank: int, target: Any = None, op: Op = SUM) -> Request:
        """Start to combine data as ``Accumulate`` does; return a request for the origin buffer."""
        operation = self._accumulate("Raccumulate", origin, None, target_rank, target, op, _frame(1))
        return Request(operation=operation)

    def Rget_accumulate(
        self, origin: Any, result: Any, target_rank: int, target: Any = None, op: Op = SUM
    ) -> Request:
        """Start to combine data as ``Get_accumulate`` does; return a request for both buffers."""
        operation = self._accumulate("Rget_accumulate", origin, result, target_rank, target, op, _frame(1))
        return Request(operation=operation)

    # ------------------------------------------------------------------ epochs

    def Fence(self, assertion: int = 0) -> None:
        """Complete all calls of all ranks and open a new epoch. All ranks of the window must call it.

        Args:
            assertion: 0 or a sum of MODE_NOSTORE, MODE_NOPUT, MODE_NOPRECEDE and MODE_NOSUCCEED. The last one opens
                no epoch.

        Raises:
            MPIError: If the rank holds a lock or is in an epoch of Post or Start (ERR_RMA_SYNC).
        """
        window, sync = self._state, self._synchronise()
        opened = sync.begin_fence(assertion)
        common = sorted(opened.words & {"NOPRECEDE", "NOSUCCEED"})
        facts = {"assertion": " and ".join(f"MODE_{word}" for word in common) or "0"}
        call = CollectiveCall(CollectiveRule(lambda calls: deliver_fence(window), "barrier"), [], None, facts)
        call_collective(self, call, "Fence", _frame(1))

    def _group_ranks(self, name: str, group: Group) -> list[int]:
        """Return the ranks of a group as ranks of the window; raise an MPI error (ERR_GROUP) for others."""
        ranks = group.Translate_ranks(group=Group.make(self._state.ranks))
        if UNDEFINED in ranks:
            raise MPIError("ERR_GROUP", f"{name}: the group must have ranks of the window only, got {ranks}")
        return ranks

    def Post(self, group: Group, assertion: int = 0) -> None:
        """Let the ranks of a group access the window of this rank, until ``Wait``. Never blocks.

        Args:
            group: the ranks that call ``Start`` with this rank in their group.
            assertion: 0 or a sum of MODE_NOCHECK, MODE_NOSTORE and MODE_NOPUT.
        """
        self._synchronise().post(self._group_ranks("Post", group), assertion)

    def Start(self, group: Group, assertion: int = 0) -> None:
        """Open an epoch to access the windows of a group, until ``Complete``; block until all called ``Post``.

        Args:
            group: the targets.
            assertion: 0 or MODE_NOCHECK.
        """
        self._synchronise().start(self._group_ranks("Start", group), assertion)

    def Complete(self) -> None:
        """Complete the calls since ``Start``, and close this epoch."""
        self._synchronise().complete()

    def Wait(self) -> bool:
        """Block until all ranks of the group of ``Post`` have called ``Complete``; return True."""
        self._synchronise().wait()
        return True

    def Test(self) -> bool:
        """Return True if ``Wait`` would not block, and close the epoch of ``Post`` then."""
        return self._synchronise().test()

    def Lock(self, rank: int, lock_type: int = LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        """Block until this rank has the lock of a rank's window, and open an epoch to access it.

        Args:
            rank: the target.
            lock_type: LOCK_EXCLUSIVE, or LOCK_SHARED to let other ranks share the lock.
            assertion: 0 or MODE_NOCHECK.

        Raises:
            MPIError: If the type of lock does not exist (ERR_LOCKTYPE), or another epoch is open (ERR_RMA_SYNC).
        """
        if self._check_rank("Lock", rank):
            self._synchronise().lock(rank, lock_type, assertion)

    def Unlock(self, rank: int) -> None:
        """Complete the calls to a rank, and give its lock back."""
        if self._check_rank("Unlock", rank):
            self._synchronise().unlock(rank)

    def Lock_all(self, assertion: int = 0) -> None:
        """Share the locks of the windows of all ranks; ``assertion`` is 0 or MODE_NOCHECK."""
        self._synchronise().lock_all(assertion)

    def Unlock_all(self) -> None:
        """Complete all calls, and give the locks of ``Lock_all`` back."""
        self._synchronise().unlock_all()

    def Flush(self, rank: int) -> None:
        """Complete the calls to a rank: their data has arrived."""
        if self._check_rank("Flush", rank):
            self._synchronise().flush("Flush", rank)

    def Flush_all(self) -> None:
        """Complete the calls to all ranks: their data has arrived."""
        self._synchronise().flush("Flush_all", None)

    def Flush_local(self, rank: int) -> None:
        """Complete the calls to a rank on this side: buffers can be used again."""
        if self._check_rank("Flush_local", rank):
            self._state.epochs[self._rank].check_passive("Flush_local", rank)
            complete_results(self._state, self._rank, [rank])

    def Flush_local_all(self) -> None:
        """Complete the calls to all ranks on this side: buffers can be used again."""
        self._state.epochs[self._rank].check_passive("Flush_local_all", None)
        complete_results(self._state, self._rank, None)

    def Sync(self) -> None:
        """Make stores to the window visible to ranks that share its memory, and those of others to this rank."""
        self._synchronise().sync()


def _check_op(op: Op, buffer: MessageBuffer) -> None:
    """Raise an MPI error (ERR_OP) if an operation is not predefined, or not defined for a buffer's type."""
    if not op.is_predefined:
        raise MPIError("ERR_OP", f"op must be a predefined operation such as MPI.SUM, got {op!r}")
    op.check(buffer.dtype)


def _check_elements(origin: Any, **others: Any) -> None:
    """Raise ValueError unless each buffer argument has one element, of the type of ``origin``.

    Args:
        origin: the origin of the call.
        others: other buffer arguments by name.
    """
    buffers = {name: message_buffer(spec) for name, spec in (("origin", origin), *others.items())}
    for name, buffer in buffers.items():
        if buffer.elements != 1:
            raise ValueError(f"{name}: expecting a single element, got {buffer.elements}")
        if buffer.dtype != buffers["origin"].dtype:
            raise ValueError(f"mismatch in origin and {name} MPI datatypes")


def _replace(old: Any, sent: Any) -> Any:
    """Return the old elements with the first ones replaced by the sent elements."""
    return np.concatenate((sent, old[len(sent) :])) if len(sent) < len(old) else sent


def _combine(op: Op, old: Any, sent: Any) -> Any:
    """Return the combined elements; old elements without a sent one stay."""
    count = len(sent)
    return _replace(old, op.combine(old[:count], sent))
