"""The measurements a machine is fitted to: exchanges between two ranks, local loops, the library's collectives."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from spmdsim.cli.collective_measure import case_for, native_call, seconds_per_call
from spmdsim.collectives.execution import execute, rounds_of
from spmdsim.collectives.program import INPUT, OUTPUT, WORK, Action, Place, Program, Step
from spmdsim.cost import Measurement
from spmdsim.cost.calibration import Sample

#: Collectives whose native calls are measured for the table of the machine file.
NATIVE = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
#: Reductions or copies in one run, likewise.
ACTIONS = 8
#: Rounds in one run of the exchange, so that the cost of a call does not hide that of a round.
ROUNDS = 4


def sample_sizes(largest: int) -> list[int]:
    """0 and two sizes per doubling from 64 bytes to the largest; all multiples of 8."""
    sizes, size = [0], 64.0
    while size <= largest * 1.001:
        sizes.append(int(size) // 8 * 8)
        size *= 2**0.5
    return sizes


def loops(nbytes: int) -> tuple[int, int]:
    """How many loops of how many calls to time for what moves this many bytes: the same on all ranks.

    Loops are short, so that some of them run undisturbed on a machine that does other work too.
    """
    calls = max(1, min(8, (256 << 10) // max(nbytes, 1)))
    return max(5, min(30, (96 << 20) // max(nbytes * calls, 1))), calls


def pairs(comm: Any) -> tuple[tuple[int, int] | None, tuple[int, int] | None, int]:
    """A pair of ranks on one node, a pair on two nodes, and how many ranks share the first node."""
    names = comm.allgather(platform.node())
    near = [rank for rank, name in enumerate(names) if name == names[0]]
    far = [rank for rank, name in enumerate(names) if name != names[0]]
    return (0, near[1]) if len(near) > 1 else None, (0, far[0]) if far else None, len(near)


def exchanges(comm: Any, pair: tuple[int, int], largest: int, fresh: bool = True) -> list[Sample]:
    """Bytes and seconds of a round in which two ranks send to each other, as emulated algorithms do.

    Args:
        comm: all ranks; the others wait.
        pair: the two ranks.
        largest: bytes of the largest message.
        fresh: send what was just received, as a ring does; otherwise the same bytes again and again.
    """
    samples: list[Sample] = []
    for nbytes in sample_sizes(largest):
        seconds = 0.0
        comm.Barrier()
        if comm.Get_rank() in pair:
            seconds = _exchange_seconds(comm, sum(pair) - comm.Get_rank(), nbytes, fresh)
        samples.append((nbytes, max(comm.allgather(seconds))))
    return samples


def _exchange_seconds(comm: Any, peer: int, nbytes: int, fresh: bool) -> float:
    from spmdsim.worlds.mpi_messages import Messages

    here, there = Place(INPUT, 0, nbytes), Place(OUTPUT, 0, nbytes)
    step = Step((), ((peer, there),), ((peer, here),), ())
    back = Step((), ((peer, here),), ((peer, there),), ()) if fresh else step
    program = Program((step, back) * (ROUNDS // 2), (), nbytes, nbytes, 0, False, 0)
    given, result = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    transport = Messages(comm)
    return _per_call(lambda: execute(program, transport, given, result), nbytes) / ROUNDS


def local_times(comm: Any, largest: int, what: str) -> list[Sample]:
    """Bytes and seconds of reductions or copies as emulated algorithms do them.

    All ranks do them at once, since they share the memory.
    """
    samples: list[Sample] = []
    for nbytes in sample_sizes(largest)[1:]:
        count = nbytes // 4
        arrays = [np.ones(count, np.float32) for _ in range(3)]
        places = [Place(which, 0, count) for which in (OUTPUT, INPUT, WORK)]
        action = Action(*places) if what == "reduce" else Action(*places[:2])
        program = Program((), (action,) * ACTIONS, count, count, count, False, 0)
        comm.Barrier()
        seconds = _per_call(partial(_run_locally, program, arrays), nbytes * ACTIONS) / ACTIONS
        samples.append((nbytes, median(comm.allgather(seconds))))
    return samples


def _run_locally(program: Program, arrays: list[np.ndarray]) -> None:
    result, given, work = arrays
    list(rounds_of(program, given, result, np.add, work))


def call_seconds(comm: Any) -> float:
    """What an emulated collective costs besides its rounds: binding its arrays."""
    nothing = Program((), (), 0, 0, 0, False, 0)
    from spmdsim.worlds.mpi_messages import Messages

    transport, empty = Messages(comm), np.empty(0, np.float32)
    return _per_call(lambda: execute(nothing, transport, empty, empty), 0)


def flops_per_second() -> float:
    """Arithmetic speed of one rank on a float32 matrix product."""
    n = 512
    a, b, c = (np.ones((n, n), np.float32) for _ in range(3))
    return 2 * n**3 / _per_call(lambda: np.matmul(a, b, out=c), 4 << 20)


def _per_call(call: Callable[[], object], nbytes: int) -> float:
    """Time of a call in the fastest of several loops: other work on the machine only ever adds time."""
    repeats, calls = loops(nbytes)
    call()  # warms caches and connections up
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    return max(best, 1e-9)


def native_table(comm: Any, largest: int) -> list[Measurement]:
    """Times of the library's own collectives over all ranks, two sizes per factor of four."""
    rows = []
    for name in NATIVE:
        nbytes = 8
        while nbytes <= largest:
            case = case_for(name, comm, nbytes, np.dtype(np.float32))
            result = np.zeros(case.output_count, case.dtype)
            call = native_call(case, comm, result)
            batches = max(4, min(10, (64 << 20) // max(nbytes, 1)))
            seconds = seconds_per_call(call, comm, 2, 4 * batches, batches, min)
            rows.append(Measurement(name, "native", comm.Get_size(), case.nbytes, max(seconds, 1e-9)))
            nbytes *= 2
    # Small sizes may round to the same case; the table keeps one row per size.
    return list({(row.collective, row.nbytes): row for row in rows}.values())
