"""Intercommunicators: two groups that send to each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spmdsim.simulation import SimulationError, simulate

pytest.importorskip("greenlet")


def halves(comm: Any) -> Any:
    """Return the intercommunicator of the even and the odd ranks."""
    parity = comm.rank % 2
    return comm.Split(parity, comm.rank).Create_intercomm(0, comm, 1 - parity)


def test_messages_go_to_the_other_group() -> None:
    def program(comm: Any) -> Any:
        """Return what the rank with this number in the other group sends, and the sizes."""
        from mpi4py import MPI

        inter, status = halves(comm), MPI.Status()
        peer = inter.rank if inter.rank < inter.remote_size else MPI.PROC_NULL
        received = inter.sendrecv(comm.rank, peer, source=peer, status=status)
        return received, status.source == peer, inter.size, inter.remote_size, inter.is_inter

    assert simulate(program, 5).results == (
        (1, True, 3, 2, True),
        (0, True, 2, 3, True),
        (3, True, 3, 2, True),
        (2, True, 2, 3, True),
        (None, True, 3, 2, True),
    )


def test_collectives_move_data_between_the_groups() -> None:
    def program(comm: Any) -> Any:
        """Return the results of an all-gather, a reduction, an all-to-all and two collectives with a root."""
        from mpi4py import MPI

        inter, total = halves(comm), np.zeros(2)
        inter.Allreduce(np.full(2, 1.0 * comm.rank), total)
        is_even = comm.rank % 2 == 0
        root = (MPI.ROOT if comm.rank == 2 else MPI.PROC_NULL) if is_even else 1
        return (
            inter.allgather(comm.rank),
            total.tolist(),
            inter.alltoall([(comm.rank, remote) for remote in range(inter.remote_size)]),
            inter.alltoall(None),
            inter.bcast("word" if comm.rank == 2 else None, root),
            inter.gather(comm.rank, root),
        )

    results = simulate(program, 5).results
    odd, even = [1, 3], [0, 2, 4]
    for rank, (gathered, total, exchanged, empty, word, at_root) in enumerate(results):
        others, position = (odd, rank // 2) if rank % 2 == 0 else (even, rank // 2)
        assert gathered == others and total == [float(sum(others))] * 2
        assert exchanged == [(other, position) for other in others] and empty == [None] * len(others)
        assert word == ("word" if rank % 2 else None)
        assert at_root == (odd if rank == 2 else None)


def test_merge_orders_the_groups() -> None:
    def program(comm: Any) -> Any:
        """Return the ranks of two merged communicators, and of the pieces of a split one."""
        inter = halves(comm)
        pieces = inter.Split(0 if inter.rank == 0 else 1, 0)
        return (
            inter.Merge(comm.rank % 2 == 1).allgather(comm.rank),
            inter.Merge(comm.rank % 2 == 0).allgather(comm.rank),
            pieces.allgather(comm.rank),
        )

    results = simulate(program, 4).results
    assert results[0] == ([0, 2, 1, 3], [1, 3, 0, 2], [1])
    assert results[3] == ([0, 2, 1, 3], [1, 3, 0, 2], [2])


def test_mistakes_in_intercommunicators_are_found() -> None:
    def waits(comm: Any) -> None:
        """Receive from a remote rank that does not send."""
        inter = halves(comm)
        if comm.rank == 0:
            inter.recv(source=1)

    def differs(comm: Any) -> None:
        """Gather blocks that are longer than the root expects."""
        from mpi4py import MPI

        inter = halves(comm)
        root = 0 if comm.rank % 2 else MPI.ROOT if comm.rank == 0 else MPI.PROC_NULL
        inter.Gather(np.zeros(3), np.zeros(4) if comm.rank == 0 else None, root)

    problem = simulate(waits, 4, check=False).problems[0]
    assert "rank 0" in problem.message and "rank 3" in problem.message
    problem = simulate(differs, 4, check=False).problems[0]
    assert problem.kind == "collective_mismatch" and "3 × float64" in problem.message


def test_ranks_connect_at_a_port_with_a_published_name() -> None:
    def program(comm: Any) -> Any:
        """Return sizes, the ranks of the other group and the result of a broadcast to it."""
        from mpi4py import MPI

        side = comm.Split(comm.rank == 2, comm.rank)
        if comm.rank == 2:
            port = MPI.Open_port()
            comm.Barrier()
            MPI.Publish_name("sum", port)
            inter = side.Accept(port)
            MPI.Unpublish_name("sum", port)
            MPI.Close_port(port)
        else:
            comm.Barrier()
            inter = side.Connect(MPI.Lookup_name("sum") if side.rank == 1 else "", root=1)
        sizes, others = (inter.size, inter.remote_size), inter.allgather(comm.rank)
        word = inter.bcast("word", MPI.ROOT if comm.rank == 2 else 0)
        inter.Disconnect()
        return sizes, others, word, bool(inter)

    assert simulate(program, 4).results == (
        ((3, 1), [2], "word", False),
        ((3, 1), [2], "word", False),
        ((1, 3), [0, 1, 3], None, False),
        ((3, 1), [2], "word", False),
    )


def test_wrong_ports_and_services_are_refused() -> None:
    def program(comm: Any) -> None:
        from mpi4py import MPI

        port = MPI.Open_port()
        MPI.Publish_name("service", port)
        for call, text in (
            (lambda: comm.Connect("port"), "ERR_PORT.*port_name must be an open port, got 'port'"),
            (lambda: comm.Accept(port, root=1), "ERR_ROOT"),
            (lambda: MPI.Close_port("port"), "ERR_PORT"),
            (lambda: MPI.Publish_name("service", port), "ERR_SERVICE"),
            (lambda: MPI.Unpublish_name("service", "port"), "ERR_SERVICE"),
            (lambda: MPI.Lookup_name("other"), "ERR_NAME"),
        ):
            with pytest.raises(MPI.Exception, match=text):
                call()

    simulate(program, 1)


def test_a_connection_that_no_rank_accepts_is_a_deadlock() -> None:
    def program(comm: Any) -> None:
        """Let rank 1 connect at a port where rank 0 does not accept."""
        from mpi4py import MPI

        port = comm.bcast(MPI.Open_port() if comm.rank == 0 else None)
        if comm.rank == 1:
            MPI.COMM_SELF.Connect(port)

    with pytest.raises(SimulationError, match=r"rank 1.*Connect"):
        simulate(program, 2)
