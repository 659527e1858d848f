"""Start calls that access a window, and complete them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import index
from typing import Any

import numpy as np

from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.data.derived_types import Datatype, datatype_of
from spmdsim.simulation.data.message_buffers import MessageBuffer, message_buffer
from spmdsim.simulation.engine.scheduler import Scheduler
from spmdsim.simulation.findings.faults import is_new
from spmdsim.simulation.findings.problems import (
    ERROR,
    WARNING,
    Problem,
    ProgramPlace,
    Site,
    describe_call_place,
)
from spmdsim.simulation.one_sided.accesses import ACCUMULATE, READ, WRITE, Access, Footprint
from spmdsim.simulation.one_sided.operations import WindowOperation, check_buffers_apart, check_sizes
from spmdsim.simulation.one_sided.times import transfer_end
from spmdsim.simulation.one_sided.window_state import WindowState


def parse_target(target: Any, count: int, datatype: Datatype) -> tuple[int, int, Datatype]:
    """Return displacement, count and datatype of the target argument of a call.

    Args:
        target: None, a displacement, or a list of displacement, count and datatype whose later items may be omitted.
        count: the count of the origin, which stands for an omitted one.
        datatype: the datatype of the origin.

    Raises:
        ValueError: If ``target`` has another form.

    >>> parse_target((3, 1), 2, datatype_of(np.dtype("i4")))
    (3, 1, MPI.INT)
    """
    if target is None:
        return 0, count, datatype
    if isinstance(target, list | tuple):
        if len(target) > 3:
            raise ValueError(f"target: expecting 3 items at most, got {len(target)}")
        items: list[Any] = [*target, *(0, count, datatype)[len(target) :]]
        displacement, target_count, target_type = items
        if not isinstance(target_type, Datatype):
            target_type = datatype_of(np.dtype(target_type))
        return index(displacement), index(target_count), target_type
    try:
        return index(target), count, datatype
    except TypeError:
        raise ValueError("target: expecting integral or list/tuple") from None


def target_buffer(name: str, memory: Any, rank: int, count: int, datatype: Datatype) -> MessageBuffer:
    """Return the elements of a target.

    Args:
        name: the call, such as "Put".
        memory: the bytes of the window from the displacement on.
        rank: the target in the window.
        count: number of values.
        datatype: their type.

    Raises:
        MPIError: If the memory is too short (ERR_RMA_RANGE), or the datatype is not committed.
    """
    usable = memory[: len(memory) // datatype.dtype.itemsize * datatype.dtype.itemsize]
    try:
        return message_buffer([usable, count, 0, datatype])
    except MPIError as error:
        if error.error_name != "ERR_BUFFER":
            raise
    extent = datatype.stride * datatype.dtype.itemsize
    raise MPIError(
        "ERR_RMA_RANGE",
        f"{name}: {count} × {datatype} of {extent} bytes need {count * extent} bytes, but from the displacement on "
        f"the window of rank {rank} has {len(memory)} bytes only",
    )


class DataCall:
    """A call that accesses a window: its name, its place, its origin and its target.

    Args:
        window: the window.
        rank: the origin, as rank in the window.
        name: the method, such as "Put".
        site: its place in the program.
        target_rank: the target in the window.
    """

    def __init__(self, window: WindowState, rank: int, name: str, site: Site, target_rank: int) -> None:
        self.window, self.rank, self.name, self.site = window, rank, name, site
        self.target_rank = target_rank
        self.task = window.scheduler.tasks[window.ranks[rank]]

    def start(
        self,
        displacement: int,
        count: int,
        datatype: Datatype,
        origin: MessageBuffer | None,
        result: MessageBuffer | None,
        update: Callable[[Any, Any], Any] | None,
        op: str = "",
    ) -> WindowOperation:
        """Start the call: check it, copy what is sent, and record its access of the window.

        Args:
            displacement: start in the window of the target.
            count: number of values there.
            datatype: their type.
            origin: the buffer that is sent, or None.
            result: the buffer that is filled, or None.
            update: function of old and sent elements that returns the new ones of the window; None: they stay.
            op: the operation of an accumulate, such as "SUM".

        Raises:
            MPIError: If the rank has no epoch for the target, or the access is outside of its window.
        """
        window, epochs = self.window, self.window.epochs[self.rank]
        epochs.check_access(self.name, self.target_rank)
        memory, region = window.locate(self.name, self.target_rank, displacement)
        target = target_buffer(self.name, memory, self.target_rank, count, datatype)
        kind = ACCUMULATE if op else READ if update is None else WRITE
        access = Access(self.task, kind, Footprint.of_buffer(target), self.name, self.site, op)
        operation = WindowOperation(
            window,
            self.task,
            self.target_rank,
            self.name,
            self.site,
            target,
            region,
            access,
            origin,
            result,
            update,
        )
        operation.copy_buffers()
        self._check_unit(displacement, datatype)
        self._check(operation)
        ranks, nbytes = window.ranks, target.nbytes
        operation.end = transfer_end(self.task, ranks[self.target_rank], nbytes, result is not None)
        epochs.open_calls.append(operation)
        return operation

    def _check(self, operation: WindowOperation) -> None:
        """Add errors on the buffers of an ``operation``, on its accesses and on assertions of the target."""
        buffer = operation.origin or operation.result
        if buffer is not None:
            check_sizes(operation, buffer)
        check_buffers_apart(operation, self.window.epochs[self.rank].open_calls)
        if operation.access.footprint.stop:
            operation.region.add(operation.access)
        for kind, footprint in ((READ, operation.reads), (WRITE, operation.writes)):
            region = self.window.find_own_region(self.rank, footprint)
            if region is not None and footprint is not None:
                access = Access(self.task, kind, footprint, self.name, self.site)
                operation.local_accesses.append(access)
                region.add(access)
        self._check_assertion(operation)

    def _check_unit(self, displacement: int, datatype: Datatype) -> None:
        """Warn if displacements count bytes, and one is inside of an element, once per source line.

        Args:
            displacement: start in the window of the target.
            datatype: the type of the elements there.
        """
        window, size = self.window, datatype.dtype.itemsize
        exposed = window.exposed[self.target_rank]
        if exposed.memory is None or exposed.unit > 1 or displacement % size == 0:
            return
        if is_new(window.scheduler, "unit", self.site):
            location = describe_call_place(self.task.rank, self.name, self.site)
            text = (
                f"rank {location.rank} passes the displacement {displacement} to {location}: it counts bytes, so it is "
                f"inside of an element of {size} bytes; pass disp_unit={size} to {window.created}"
            )
            problem = Problem(
                "displacement_unit", WARNING, text, (location.rank,), (location, window.created)
            )
            window.scheduler.problems.append(problem)

    def _check_assertion(self, operation: WindowOperation) -> None:
        """Add an error if ``operation`` updates a window that its target has asserted with MODE_NOPUT to stay."""
        target = self.window.epochs[self.target_rank]
        origin = self.window.epochs[self.rank]
        opened = target.post if origin.start is not None else target.fence
        if opened is None or operation.update is None or "NOPUT" not in opened.words:
            return
        report_assertion(
            self.window,
            "NOPUT",
            opened.location,
            operation.location,
            f"rank {self.task.rank} updates its window with",
        )


def report_assertion(
    window: WindowState, word: str, asserted: ProgramPlace, broken: ProgramPlace, phrase: str
) -> None:
    """Add the error "wrong_assertion", once per pair of source lines.

    Args:
        window: the window.
        word: the assertion, such as "NOPUT".
        asserted: the call that made it.
        broken: the call that contradicts it.
        phrase: the words before the call that contradicts it.
    """
    if is_new(window.scheduler, "assertion", word, asserted.where, broken.where):
        text = f"rank {asserted.rank} asserts MODE_{word} in {asserted}, but {phrase} {broken}"
        ranks = tuple(sorted({asserted.rank, broken.rank}))
        window.scheduler.problems.append(Problem("wrong_assertion", ERROR, text, ranks, (asserted, broken)))


def complete(window: WindowState, rank: int, targets: Iterable[int] | None, apply: bool = True) -> None:
    """Complete the calls of a rank: its buffers can be used again, and the data has arrived.

    Args:
        window: the window.
        rank: the origin in the window.
        targets: the targets whose calls are completed; None: all.
        apply: False if the data arrives later, when all ranks have called Fence.
    """
    epochs, task = window.epochs[rank], window.scheduler.tasks[window.ranks[rank]]
    wanted = None if targets is None else set(targets)
    chosen = [op for op in epochs.open_calls if wanted is None or op.target_rank in wanted]
    where = window.place_in_run(task)
    for operation in chosen:
        if apply:
            operation.complete_locally(where)
        else:
            operation.check_unchanged(where)
        task.clock = max(task.clock, operation.end)
    if apply:
        apply_all(window, chosen)
        epochs.open_calls = [
            op for op in epochs.open_calls if wanted is not None and op.target_rank not in wanted
        ]
    # Accesses are complete after all data has arrived: an accumulate does not announce those of its own epoch.
    for operation in chosen:
        operation.set_complete()


def apply_all(window: WindowState, operations: list[WindowOperation]) -> None:
    """Move the data of some ``operations`` of a ``window``.

    With a seed, the order is random, except between the accumulates of a rank.
    """
    random = window.scheduler.random
    if random is not None:
        accumulates = [op for op in operations if op.access.kind == ACCUMULATE]
        others = [op for op in operations if op.access.kind != ACCUMULATE]
        random.shuffle(others)
        operations = others + accumulates
    for operation in operations:
        operation.apply()


def deliver_locked(scheduler: Scheduler) -> bool:
    """Move the data of open calls to locked windows; return True if there is any.

    Libraries do so while ranks test a window again and again. Calls with a result are left out. The calls are not complete: their epochs stay open.

    Args:
        scheduler: the simulation.
    """
    arrived = [
        operation
        for window in scheduler.windows
        for epochs in window.epochs
        if epochs.locks or epochs.lock_all is not None
        for operation in epochs.open_calls
        if operation.result is None and not operation.applied
    ]
    for operation in arrived:
        operation.apply()
    return bool(arrived)


def complete_results(window: WindowState, rank: int, targets: Iterable[int] | None) -> None:
    """Complete the calls of a rank on its side: its buffers can be used again, and results have arrived.

    Args:
        window: the window.
        rank: the origin in the window.
        targets: the targets; None: all.
    """
    task = window.scheduler.tasks[window.ranks[rank]]
    where, wanted = window.place_in_run(task), None if targets is None else set(targets)
    for operation in window.epochs[rank].open_calls:
        if wanted is None or operation.target_rank in wanted:
            operation.complete_locally(where)
