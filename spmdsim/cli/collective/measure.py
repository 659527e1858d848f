"""Measurement of calls on all ranks, for the commands that time collectives.

It has inputs whose sums are exact, the library's own calls, calls of emulated algorithms, and the timing.
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
#: Number of batches of a measurement; the median of their means is reported.
BATCHES = 5


#: Number of cores that other programs may keep busy without a remark.
FEW = 0.2


def noise_note(comm: Any, others: float = 0.0) -> str:
    """Return a remark if ranks of this node share cores, or other programs use them; else "".

    All ranks call it. ``others`` is the number of cores that other programs keep busy.
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


def others_at_work(comm: Any) -> Callable[[], float]:
    """Return a function that counts the cores that other programs have kept busy.

    It counts from this call on. All ranks call both functions. The number is 0 if the system does not report it.
    """
    start, busy_before = seconds_of_others(comm)

    def cores() -> float:
        end, busy_after = seconds_of_others(comm)
        return max(0.0, (busy_after - busy_before) / (end - start))

    return cores


def seconds_of_others(comm: Any) -> tuple[float, float]:
    """Return the time, and the seconds for which the cores worked for other programs.

    They are the cores of this node. Both are seconds with arbitrary start.
    """
    used = comm.allgather((platform.node(), time.process_time()))
    return time.perf_counter(), busy_seconds() - sum(
        seconds for node, seconds in used if node == platform.node()
    )


def busy_seconds() -> float:
    """Return the seconds for which this node's cores have worked; 0 if unknown.

    They count from the start of the system.
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
        """Return the number of elements on this rank for an owner, such as "root"."""
        at_root = self.count if self.rank == 0 else 0
        return {"owner": self.block, "root": at_root, "nobody": 0}.get(who, self.count)

    @cached_property
    def source(self) -> Array:
        """Input of this rank."""
        pattern = (np.arange(PERIOD) + 3 * self.rank) % PERIOD + 1
        return np.resize(pattern.astype(self.dtype), self.input_count)

    def wrong(self, result: Array) -> int:
        """Return the number of wrong elements in the result."""
        return sum(
            self._count_wrong(result[start:stop], ranks, first)
            for start, stop, ranks, first in self._blocks()
        )

    def _blocks(self) -> list[tuple[int, int, range, int]]:
        """Return the blocks of the output as `(start, stop, ranks, first)`.

        ``ranks`` are the ranks whose inputs are added; ``first`` is the index of the block's first element in their
        inputs.
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
        """Return the number of wrong elements in a block of the output."""
        index = np.arange(first, first + PERIOD)
        pattern = sum((index + 3 * rank) % PERIOD + 1 for rank in ranks)
        expected = np.asarray(pattern).astype(self.dtype)
        full = len(block) // PERIOD * PERIOD
        wrong = int(np.count_nonzero(block[:full].reshape(-1, PERIOD) != expected))
        return wrong + int(np.count_nonzero(block[full:] != expected[: len(block) - full]))


def case_for(name: str, comm: Any, nbytes: int, dtype: np.dtype) -> MeasuredCase:
    """Return the case with the largest size up to ``nbytes``.

    It has at least one element, or one per rank.
    """
    size = comm.Get_size()
    count = max(nbytes // dtype.itemsize, 1)
    if {"owner", "row"} & {collective(name).before, collective(name).after}:
        count = max(count // size, 1) * size
    if name == "barrier":
        count = 0
    return MeasuredCase(name, size, comm.Get_rank(), count, dtype)


# ------------------------------------------------------------------------------ running and timing


def native_call(case: MeasuredCase, comm: Any, result: Array) -> Callable[[], object]:
    """Return a function that runs the library's call of a case and writes into ``result``.

    Raises:
        InputError: If MPI has no call for the collective.
    """
    source, block = case.source, case.block
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


def emulated_call(schedule: Schedule, case: MeasuredCase, comm: Any, result: Array) -> Callable[[], object]:
    """Return a function that runs an emulated algorithm on a case and writes into ``result``."""
    from spmdsim.worlds.mpi.messages import TAG, Messages

    program = program_for(schedule, case.rank, case.count)
    transport, source = Messages(comm), case.source
    work = np.empty(program.work_count, case.dtype)
    return lambda: execute(program, transport, source, result, tag=TAG, work=work)


def calls_within(most: float, each: float, wanted: int) -> int:
    """Return the number of calls that fit into ``most`` seconds, from 1 to ``wanted``.

    A call takes ``each`` seconds.

    >>> calls_within(0.3, 0.001, 60), calls_within(0.3, 0.05, 60), calls_within(0.3, 2.0, 60)
    (60, 6, 1)
    """
    return max(1, min(wanted, int(most / max(each, 1e-9) + 1e-9)))


def seconds_per_call(
    call: Callable[[], object],
    comm: Any,
    warmup: int,
    iterations: int,
    batches: int = BATCHES,
    choose: Callable[[list[float]], float] = median,
    most: float = inf,
) -> float:
    """Return the mean seconds of a call that all ranks make, averaged over ranks.

    Args:
        call: the call.
        comm: the communicator of the ranks.
        warmup: number of calls before the measurement.
        iterations: number of timed calls in all batches. If the last call of the warmup shows that they would take
            more than ``most`` seconds, fewer calls are timed, equally many on all ranks.
        batches: number of batches.
        choose: selects the result from the means of the batches, by default the median.
        most: most seconds of all timed calls.
    """
    for _ in range(warmup):
        start_of_call = time.perf_counter()
        call()
    if warmup and most < inf:
        slowest = max(comm.allgather(time.perf_counter() - start_of_call))
        iterations = calls_within(most, slowest, iterations)
    batches = min(batches, iterations)
    means = []
    for batch in range(batches):
        times = iterations // batches + (batch < iterations % batches)
        comm.Barrier()
        start = time.perf_counter()
        for _ in range(times):
            call()
        means.append((time.perf_counter() - start) / times)
    batch_means = [float(np.mean(means_of_ranks)) for means_of_ranks in zip(*comm.allgather(means))]
    return max(choose(batch_means), 1e-9)


def communicator() -> Any:
    """Return the communicator of all ranks that the launcher started.

    Raises:
        InputError: If this process is not a rank of an MPI job.
    """
    from spmdsim.worlds import MPIWorld, world

    comm = world()
    if not isinstance(comm, MPIWorld):
        raise InputError("this needs MPI ranks: run it under mpirun, or give --ranks N")
    return comm.comm
