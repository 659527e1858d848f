"""Every algorithm equals NumPy on real ranks with synchronous sends, which no library buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from collectives_reference import chunk_lengths, expected, make_inputs

MPI = pytest.importorskip("mpi4py.MPI")

from spmdsim.collectives import Schedule, algorithms, count, make_schedule  # noqa: E402
from spmdsim.collectives.execution import execute  # noqa: E402
from spmdsim.collectives.rank_program import compile_program  # noqa: E402

pytestmark = pytest.mark.mpi


class Synchronous:
    """A transport that counts its messages and sends with Issend, which ends when the message is received."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.messages, self.nbytes = comm, 0, 0

    def irecv(self, buffer: Any, source: int, tag: int) -> Any:
        return self.comm.Irecv(buffer, source, tag)

    def isend(self, buffer: Any, dest: int, tag: int) -> Any:
        self.messages += 1
        self.nbytes += buffer.nbytes
        return self.comm.Issend(buffer, dest, tag)

    def wait_all(self, requests: Sequence[Any]) -> None:
        MPI.Request.Waitall(requests)


def run(comm: Any, schedule: Schedule, length: int) -> None:
    """Run a schedule on real ranks; check this rank's result and its sent messages and bytes."""
    rng = np.random.default_rng(length)
    inputs = make_inputs(schedule, length, lambda n: rng.integers(0, 99, n))
    sizes = chunk_lengths(schedule, inputs)
    program = compile_program(schedule, comm.rank, sizes)
    result, transport = np.empty(program.output_count, np.int64), Synchronous(comm)
    execute(program, transport, inputs[comm.rank] if program.input_count else None, result)
    wanted = expected(schedule, inputs)[comm.rank]
    if wanted is not None:
        np.testing.assert_array_equal(result, wanted, err_msg=schedule.name)
    if length < 1000:
        return
    counted = count(schedule, 8 * sum(sizes), sizes=[8 * size for size in sizes])
    assert transport.messages == counted.messages_sent[comm.rank], schedule.name
    assert transport.nbytes == counted.bytes_sent[comm.rank], schedule.name


@pytest.mark.ranks(2, 3, 6, 8)
def test_every_algorithm_equals_numpy(mpi_comm: Any) -> None:
    for chosen in algorithms():
        if not chosen.fits(mpi_comm.size):
            continue
        for root in range(mpi_comm.size) if chosen.takes_root else (0,):
            for length in (1003, 3, 0) if root == 0 else (29,):
                run(mpi_comm, make_schedule(chosen, mpi_comm.size, root), length)


@pytest.mark.ranks(2, 6)
def test_long_messages_arrive(mpi_comm: Any) -> None:
    """Messages are longer than every eager limit."""
    for chosen in algorithms("all_reduce"):
        if chosen.fits(mpi_comm.size):
            run(mpi_comm, make_schedule(chosen, mpi_comm.size), 100_003)
