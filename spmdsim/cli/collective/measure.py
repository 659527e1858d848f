"""Measure calls for the commands that time collectives: ranks, patterns whose sums are exact, the library's own calls, timing."""

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
#: Input values repeat with this period; small whole numbers add up without rounding in every type.
PERIOD = 7
#: Batches a measurement is cut into; the median of their means is what is reported.
BATCHES = 5


#: Cores that others may keep busy before ranks are taken to wait for them.
FEW = 0.2


def noise_note(comm: Any, others: float = 0.0) -> str:
    """A remark if ranks of this node share cores, with each other or with others; all ranks call it.

    It is empty if each can have its own; ``others`` is how many cores other programs keep busy.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    everywhere = comm.allgather((platform.node(), frozenset(allowed)))
    # Launchers may bind each rank to one core: what counts is the cores of all of them together.
    here = [cores for node, cores in everywhere if node == platform.node()]
    cores = len(frozenset().union(*here))
    if len(here) > cores:
        shared = f"{many(len(here), 'rank')} share {many(cores, 'core')}"
        return f"times are noise: {shared}; compare counts and predictions instead"
    if len(here) + others > cores + FEW:
        return (
            f"times are too long: other programs kept {others:.1f} of the {many(cores, 'core')} busy meanwhile; measure again when "
            "they have ended"
        )
    return ""


def others_at_work(comm: Any) -> Callable[[], float]:
    """A function that says how many cores of this node other programs have kept busy since; all ranks call both.

    It says 0 where the system does not tell.
    """
    start, before = seconds_of_others(comm)

    def cores() -> float:
        end, after = seconds_of_others(comm)
        return max(0.0, (after - before) / (end - start))

    return cores


def seconds_of_others(comm: Any) -> tuple[float, float]:
    """The time now, and for how long this node's cores have worked for others than these ranks until now."""
    used = comm.allgather((platform.node(), time.process_time()))
    return time.perf_counter(), busy_seconds() - sum(mine for node, mine in used if node == platform.node())


def busy_seconds() -> float:
    """Seconds for which this node's cores have worked, for anybody, since it was started; 0 where it is not told."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, *interrupts = map(int, file.readline().split()[1:8])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


# ------------------------------------------------------------------------------ data whose results are known


@dataclass(frozen=True)
class MeasuredCase:
    """One collective on one size: ``count`` elements as the collective counts them, a multiple of ``size`` where blocks are equal."""

    collective: str
    size: int
    rank: int
    count: int
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Message size as the collective counts it."""
        return self.count * self.dtype.itemsize

    @property
    def block(self) -> int:
        """Elements of one rank's block."""
        return self.count // self.size

    @property
    def input_count(self) -> int:
        """Elements this rank gives."""
        return self._elements(self.promise.before)

    @property
    def output_count(self) -> int:
        """Elements this rank gets."""
        nothing = self.promise.value == "earlier" and self.rank == 0
        return 0 if nothing else self._elements(self.promise.after)

    @property
    def promise(self) -> Collective:
        """Who gives and gets what."""
        return collective(self.collective)

    def _elements(self, who: str) -> int:
        at_root = self.count if self.rank == 0 else 0
        return {"owner": self.block, "root": at_root, "nobody": 0}.get(who, self.count)

    @cached_property
    def source(self) -> Array:
        """This rank's input."""
        pattern = (np.arange(PERIOD) + 3 * self.rank) % PERIOD + 1
        return np.resize(pattern.astype(self.dtype), self.input_count)

    def wrong(self, result: Array) -> int:
        """Elements of the result that are not what they should be."""
        return sum(
            self._wrong_piece(result[start:stop], ranks, first)
            for start, stop, ranks, first in self._pieces()
        )

    def _pieces(self) -> list[tuple[int, int, range, int]]:
        """Pieces of the output: start, stop, the ranks whose inputs are added, where these inputs start."""
        if not self.output_count:
            return []
        promise, block = self.promise, self.block
        first = self.rank * block if promise.after in ("owner", "column") else 0
        if promise.before in ("owner", "row"):
            return [(s * block, (s + 1) * block, range(s, s + 1), first) for s in range(self.size)]
        ranks = {"prefix": self.rank + 1, "earlier": self.rank, "copy": 1}.get(promise.value, self.size)
        return [(0, self.output_count, range(ranks), first)]

    def _wrong_piece(self, piece: Array, ranks: range, first: int) -> int:
        index = np.arange(first, first + PERIOD)
        pattern = sum((index + 3 * rank) % PERIOD + 1 for rank in ranks)
        expected = np.asarray(pattern).astype(self.dtype)
        whole = len(piece) // PERIOD * PERIOD
        wrong = int(np.count_nonzero(piece[:whole].reshape(-1, PERIOD) != expected))
        return wrong + int(np.count_nonzero(piece[whole:] != expected[: len(piece) - whole]))


def case_for(name: str, comm: Any, nbytes: int, dtype: np.dtype) -> MeasuredCase:
    """The case whose size is nearest below ``nbytes``; at least one element, or one per rank."""
    size = comm.Get_size()
    count = max(nbytes // dtype.itemsize, 1)
    if {"owner", "row"} & {collective(name).before, collective(name).after}:
        count = max(count // size, 1) * size
    if name == "barrier":
        count = 0
    return MeasuredCase(name, size, comm.Get_rank(), count, dtype)


# ------------------------------------------------------------------------------ running and timing


def native_call(case: MeasuredCase, comm: Any, result: Array) -> Callable[[], object]:
    """The library's own call for a case, into ``result``."""
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
    """An emulated algorithm for a case, into ``result``."""
    from spmdsim.worlds.mpi.messages import TAG, Messages

    program = program_for(schedule, case.rank, case.count)
    transport, source = Messages(comm), case.source
    work = np.empty(program.work_count, case.dtype)
    return lambda: execute(program, transport, source, result, tag=TAG, work=work)


def calls_within(most: float, each: float, wanted: int) -> int:
    """How many calls of ``each`` seconds fit into ``most``: as many as are wanted, and one at least.

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
    """Mean time of a call that all ranks make, averaged over them, in the median of a few batches, or another one.

    ``iterations`` are those of all batches together. Where they would take more than ``most`` seconds, as the last call
    of the warmup says, fewer are timed, on all ranks alike.
    """
    for _ in range(warmup):
        begun = time.perf_counter()
        call()
    if warmup and most < inf:
        slowest = max(comm.allgather(time.perf_counter() - begun))
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
    return max(choose([float(np.mean(one)) for one in zip(*comm.allgather(means))]), 1e-9)


def communicator() -> Any:
    """The communicator of all ranks that the launcher started."""
    from spmdsim.worlds import MPIWorld, world

    comm = world()
    if not isinstance(comm, MPIWorld):
        raise InputError("this needs MPI ranks: run it under mpirun, or give --ranks N")
    return comm.comm
