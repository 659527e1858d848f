"""Measurement of calls on all ranks, for the commands that time collectives.

:class:`MeasuredCase` has inputs whose sums are exact, and verifies results. :func:`bind_native_call` and
:func:`bind_emulated_call` return functions to be timed, and :func:`measure_call` times them.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf
from statistics import median
from typing import Any

import numpy as np

from spmdsim.collectives import Collective, Schedule, collective
from spmdsim.collectives.execution import execute
from spmdsim.collectives.rank_program import program_for
from spmdsim.errors import InputError, many

Array = np.ndarray
#: Period of the input values, which are small whole numbers, so that sums are exact in every type.
PERIOD = 7
#: Number of batches of a measurement; the median of their seconds per call is reported.
BATCHES = 5
#: Seconds of a call from which ranks wait for each other before each call.
LONG_CALL = 0.01


#: Number of cores that other programs may keep busy without a remark.
FEW = 0.2


def noise_note(comm: Any, others: float = 0.0) -> str:
    """Return a remark for the user if times of this job are unreliable, else "".

    Times are unreliable in two cases:

    * This node has more ranks than cores on which its ranks may run.
    * The ranks, one core each, and other programs together need more than these cores plus :data:`FEW` (0.2). So 3
      ranks on 4 cores beside other programs that need 1.5 cores get a remark.

    All ranks must call it; ranks of different nodes can get different remarks.

    Args:
        comm: the mpi4py communicator of the ranks.
        others: the number of cores of this node that other programs keep busy.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    everywhere = comm.allgather((platform.node(), frozenset(allowed)))
    # Launchers may bind each rank to one core: what counts is the cores of all of them together.
    cores_of_ranks = [cores for node, cores in everywhere if node == platform.node()]
    cores = len(frozenset().union(*cores_of_ranks))
    if len(cores_of_ranks) > cores:
        shared = f"{many(len(cores_of_ranks), 'rank')} share {many(cores, 'core')}"
        return f"times are noise: {shared}; compare counts and predictions instead"
    if len(cores_of_ranks) + others > cores + FEW:
        return (
            f"times are too long: other programs kept {others:.1f} of the {many(cores, 'core')} busy meanwhile; measure again when "
            "they have ended"
        )
    return ""


def watch_other_programs(comm: Any) -> Callable[[], float]:
    """Return a function that returns how many cores other programs have kept busy since now.

    Only cores of this node count. The number is the mean from this call to the call of the function, such as 1.5.
    It is 0 if the system does not report it. All ranks must call both functions. ``comm`` is the mpi4py
    communicator of the ranks.
    """
    start, busy_before = read_other_seconds(comm)

    def cores() -> float:
        end, busy_after = read_other_seconds(comm)
        return max(0.0, (busy_after - busy_before) / (end - start))

    return cores


def read_other_seconds(comm: Any) -> tuple[float, float]:
    """Return a time, and the seconds for which this node's cores have worked for other programs.

    Both are seconds since an arbitrary start, so only differences have a meaning. The second number is the work of all
    cores minus the processor time of the ranks on this node. All ranks must call it. ``comm`` is their mpi4py
    communicator.
    """
    used = comm.allgather((platform.node(), time.process_time()))
    return time.perf_counter(), _read_busy_seconds() - sum(
        seconds for node, seconds in used if node == platform.node()
    )


def _read_busy_seconds() -> float:
    """Return the seconds for which all cores of this node have worked since the system's start.

    The number is a sum over all cores. It includes user, nice, system and interrupts, but no idle time and no
    waits for disks. It is 0 if ``/proc/stat`` cannot be read.
    """
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, *interrupts = map(int, file.readline().split()[1:8])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


# ------------------------------------------------------------------------------ data whose results are known


@dataclass(frozen=True)
class MeasuredCase:
    """Input and expected result of one collective on one rank.

    Attributes:
        collective: name of the collective.
        size: number of ranks.
        rank: the rank.
        count: message size in elements, as the collective defines it; a multiple of ``size`` if it has blocks.
        dtype: element type.
    """

    collective: str
    size: int
    rank: int
    count: int
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Message size in bytes, as the collective defines it."""
        return self.count * self.dtype.itemsize

    @property
    def block(self) -> int:
        """Elements of one rank's block."""
        return self.count // self.size

    @property
    def input_count(self) -> int:
        """Number of elements that this rank sends into the collective."""
        return self._elements(self.promise.before)

    @property
    def output_count(self) -> int:
        """Number of elements that this rank gets from the collective."""
        nothing = self.promise.value == "earlier" and self.rank == 0
        return 0 if nothing else self._elements(self.promise.after)

    @property
    def promise(self) -> Collective:
        """Specification of the collective: which ranks own which blocks before and after."""
        return collective(self.collective)

    def _elements(self, who: str) -> int:
        """Return the number of elements that this rank sends or receives.

        ``who`` is the collective's word for the ranks that own the data. "owner" stands for one block per rank, "root"
        for the complete vector on rank 0 alone, and "nobody" for no data. Any other word stands for the complete
        vector on each rank.
        """
        at_root = self.count if self.rank == 0 else 0
        return {"owner": self.block, "root": at_root, "nobody": 0}.get(who, self.count)

    @cached_property
    def source(self) -> Array:
        """Input of this rank."""
        pattern = (np.arange(PERIOD) + 3 * self.rank) % PERIOD + 1
        return np.resize(pattern.astype(self.dtype), self.input_count)

    def wrong(self, result: Array) -> int:
        """Return the number of wrong elements in the result, an array of ``output_count`` elements."""
        return sum(
            self._count_wrong(result[start:stop], ranks, first)
            for start, stop, ranks, first in self._blocks()
        )

    def _blocks(self) -> list[tuple[int, int, range, int]]:
        """Return the verified blocks of this rank's output as ``(start, stop, ranks, first)``.

        The elements ``start`` to ``stop - 1`` of the output must be the sum of the inputs of ``ranks``, read from
        element ``first`` on; one rank means a copy. Collectives that concatenate have a block per rank, others
        one block. If the rank has no output, the list is empty.

        For example, rank 1 of 2 ranks with messages of 6 elements has these blocks:

        * in an all_gather: ``(0, 3, range(0, 1), 0)`` and ``(3, 6, range(1, 2), 0)``;
        * in a reduce_scatter: ``(0, 3, range(0, 2), 3)``.
        """
        if not self.output_count:
            return []
        promise, block = self.promise, self.block
        first = self.rank * block if promise.after in ("owner", "column") else 0
        if promise.before in ("owner", "row"):
            return [(s * block, (s + 1) * block, range(s, s + 1), first) for s in range(self.size)]
        ranks = {"prefix": self.rank + 1, "earlier": self.rank, "copy": 1}.get(promise.value, self.size)
        return [(0, self.output_count, range(ranks), first)]

    def _count_wrong(self, block: Array, ranks: range, first: int) -> int:
        """Return the number of elements of a block that differ from the sum of the ranks' inputs.

        Element ``i`` of rank ``r``'s input is ``(i + 3 r) % PERIOD + 1``. So one period of expected sums is
        computed, and compared with the whole block in the type of the case. A NaN counts as wrong.
        """
        index = np.arange(first, first + PERIOD)
        pattern = sum((index + 3 * rank) % PERIOD + 1 for rank in ranks)
        expected = np.asarray(pattern).astype(self.dtype)
        full = len(block) // PERIOD * PERIOD
        wrong = int(np.count_nonzero(block[:full].reshape(-1, PERIOD) != expected))
        return wrong + int(np.count_nonzero(block[full:] != expected[: len(block) - full]))


def fit_case(name: str, comm: Any, nbytes: int, dtype: np.dtype) -> MeasuredCase:
    """Return the case of a collective with the largest message of up to ``nbytes`` bytes.

    The message has at least one element, even if that is more than ``nbytes``. If the collective has one block per
    rank, each block has at least one element and all blocks have equal sizes. A barrier has no elements. Nothing is
    communicated.

    Args:
        name: the collective.
        comm: the mpi4py communicator; its size and this process's rank go into the case.
        nbytes: the largest message size, as the collective defines it.
        dtype: element type.

    Raises:
        SpmdError: If the collective is unknown.
    """
    size = comm.Get_size()
    count = max(nbytes // dtype.itemsize, 1)
    if {"owner", "row"} & {collective(name).before, collective(name).after}:
        count = max(count // size, 1) * size
    if name == "barrier":
        count = 0
    return MeasuredCase(name, size, comm.Get_rank(), count, dtype)


# ------------------------------------------------------------------------------ running and timing


def bind_native_call(
    case: MeasuredCase, comm: Any, result: Array, source: Array | None = None
) -> Callable[[], object]:
    """Return a function that runs MPI's own call of a collective and writes into ``result``.

    All ranks must call the function together. The root is rank 0, and the operation is a sum. On ranks without output,
    ``result`` is not written. MPI's broadcast works in one buffer: it is ``result``, into which rank 0's input is
    copied here.

    Args:
        case: the collective and its size.
        comm: the mpi4py communicator of the ranks.
        result: an array of ``case.output_count`` elements.
        source: the input of this rank; None for the input of the case.

    Raises:
        InputError: If MPI has no call for the collective.
    """
    block = case.block
    if source is None:
        source = case.source
    if case.collective == "broadcast":
        result[: case.input_count] = source
    send, receive = source if case.input_count else None, result if case.output_count else None
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: comm.Allreduce(source, result),
        "all_gather": lambda: comm.Allgather(source, result),
        "reduce_scatter": lambda: comm.Reduce_scatter(source, result, [block] * case.size),
        "all_to_all": lambda: comm.Alltoall(source, result),
        "broadcast": lambda: comm.Bcast(result, 0),
        "reduce": lambda: comm.Reduce(source, result, root=0),
        "gather": lambda: comm.Gather(send, receive, root=0),
        "scatter": lambda: comm.Scatter(send, receive, root=0),
        "scan": lambda: comm.Scan(source, result),
        "exscan": lambda: comm.Exscan(source, result if case.output_count else np.empty_like(source)),
        "barrier": comm.Barrier,
    }
    if case.collective not in calls:
        raise InputError(f"MPI has no call for {case.collective}")
    return calls[case.collective]


def bind_emulated_call(
    schedule: Schedule, case: MeasuredCase, comm: Any, result: Array
) -> Callable[[], object]:
    """Return a function that runs a schedule on a case and writes into ``result``.

    All ranks must call the function together, because it sends the schedule's messages as point-to-point messages of
    MPI. Reductions are sums. The work array is allocated here, once for all calls.

    Args:
        schedule: the schedule, for the case's collective and number of ranks; not checked.
        case: the collective, its size and this rank's input.
        comm: the mpi4py communicator of the ranks.
        result: an array of ``case.output_count`` elements.
    """
    from spmdsim.worlds.mpi.messages import TAG, Messages

    program = program_for(schedule, case.rank, case.count)
    transport, source = Messages(comm), case.source
    work = np.empty(program.work_count, case.dtype)
    return lambda: execute(program, transport, source, result, tag=TAG, work=work)


def calls_within(most: float, each: float, wanted: int) -> int:
    """Return the number of calls that fit into ``most`` seconds, from 1 to ``wanted``.

    A call takes ``each`` seconds; less than 1e-9 counts as 1e-9.

    >>> calls_within(0.3, 0.001, 60), calls_within(0.3, 0.05, 60), calls_within(0.3, 2.0, 60)
    (60, 6, 1)
    """
    return max(1, min(wanted, int(most / max(each, 1e-9) + 1e-9)))


def measure_call(
    call: Callable[[], object],
    comm: Any,
    warmup: int,
    iterations: int,
    batches: int = BATCHES,
    choose: Callable[[list[float]], float] = median,
    most: float = inf,
) -> float:
    """Time a call that all ranks make; return the seconds per call, until the last rank ends it.

    1. ``warmup`` calls are not timed. Ranks wait for each other before each of them.
    2. ``iterations`` calls are timed in ``batches``. Ranks wait for each other before each batch. If the last
       call of the warmup takes :data:`LONG_CALL` (10 ms) or more, each batch has one call, whatever ``batches`` is. Two
       calls in a row could overlap, as in a pipeline.
    3. The seconds per call of a batch are those of its slowest rank: in a reduction to one rank, senders end before the
       data arrives. ``choose`` computes the result from the seconds of all batches.

    The result is equal on all ranks, and at least 1e-9. All ranks must call it with equal arguments.

    Args:
        call: the call, without arguments; its result is ignored.
        comm: the mpi4py communicator of the ranks.
        warmup: number of calls before the measurement.
        iterations: number of timed calls in all batches together, at least 1.
        batches: number of batches, at most one per call. Their numbers of calls differ by at most 1: 10 calls in 4
            batches are 3, 3, 2 and 2.
        choose: a function of the list of the batches' seconds; by default the median.
        most: the most seconds of all timed calls and waits. If the last call of the warmup and its wait show on any
            rank that they would take longer, fewer calls are timed, on all ranks equally many and at least 1. Without
            a warmup it has no effect.
    """
    for _ in range(warmup):
        start_of_call = time.perf_counter()
        comm.Barrier()
        call()
    if warmup:
        slowest_call_seconds = max(comm.allgather(time.perf_counter() - start_of_call))
        if most < inf:
            iterations = calls_within(most, slowest_call_seconds, iterations)
        if slowest_call_seconds >= LONG_CALL:
            batches = iterations
    batches = min(batches, iterations)
    seconds_of_batches = []
    for batch in range(batches):
        times = iterations // batches + (batch < iterations % batches)
        comm.Barrier()
        start = time.perf_counter()
        for _ in range(times):
            call()
        seconds_of_batches.append((time.perf_counter() - start) / times)
    slowest = [max(seconds_of_ranks) for seconds_of_ranks in zip(*comm.allgather(seconds_of_batches))]
    return max(choose(slowest), 1e-9)


def require_communicator() -> Any:
    """Return the mpi4py communicator of all ranks that the launcher started.

    The first call of a process starts MPI, so all ranks must call it.

    Raises:
        InputError: If this process is not a rank of an MPI job.
    """
    from spmdsim.worlds import MPIWorld, world

    comm = world()
    if not isinstance(comm, MPIWorld):
        raise InputError("this needs MPI ranks: run it under mpirun, or give --ranks N")
    return comm.comm
