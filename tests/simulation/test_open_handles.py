"""Handles that a program does not free are reported with the line that made them."""

from __future__ import annotations

from typing import Any

import pytest
from simulate_judging import judge

pytest.importorskip("greenlet")


def split_in_a_loop(comm: Any) -> None:
    """Make eight communicators, and free one."""
    for step in range(8):
        half = comm.Split(comm.rank % 2)
        if step == 1:
            half.Free()


def test_a_line_that_makes_handles_in_a_loop_is_reported() -> None:
    (problem,) = judge(split_in_a_loop, 4).problems
    assert (problem.kind, problem.severity, problem.ranks) == ("not_freed", "warning", (0, 1, 2, 3))
    assert "ranks 0..3 do not free 28 communicators of Split at test_open_handles.py:" in problem.message


def test_one_handle_of_a_line_is_freed_by_the_end_of_the_program() -> None:
    def program(comm: Any) -> None:
        from mpi4py import MPI

        comm.Dup()
        MPI.DOUBLE.Create_contiguous(2).Create_resized(0, 32).Free()

    assert judge(program, 2).problems == ()


def free_all(comm: Any) -> None:
    """Create handles of all kinds in a loop, and free all but two datatypes per step."""
    from mpi4py import MPI

    cart = comm.Create_cart([comm.size])
    other = 1 - comm.rank // 2
    for _ in range(8):
        cart.Sub([True]).Free()
        MPI.Intracomm(cart.Dup()).Free()
        half = comm.Split(comm.rank // 2)
        intercomm = half.Create_intercomm(0, comm, 2 * other)
        intercomm.Merge().Disconnect()
        MPI._commctx_inter(intercomm)
        MPI.Intercomm.Create_from_groups(half.group, 0, intercomm.remote_group, 0).Free()
        intercomm.free()
        half.Free()
        comm.Iagree(bytearray(4)).Wait()
        struct = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.INT])
        MPI.Datatype(struct.Create_resized(0, 24).Dup()).Free()
        struct.Get_contents()
        MPI.Op.Create(lambda left, right, kind: None).Free()
        comm.Send_init(bytearray(1), MPI.PROC_NULL).Free()
        comm.group.Incl([0])
    cart.Free()


def list_unfreed_calls(program: Any, ranks: int) -> list[str]:
    """Return the calls of handles that a program is reported not to free."""
    return sorted(problem.places[0].call for problem in judge(program, ranks).problems)


def test_freed_handles_and_internal_ones_are_not_reported() -> None:
    assert list_unfreed_calls(free_all, 4) == ["Create_resized", "Create_struct"]


def test_handles_of_each_kind_are_reported() -> None:
    def program(comm: Any) -> None:
        from mpi4py import MPI

        for _ in range(7):
            comm.Dup()
            MPI.INT.Dup()
            MPI.Op.Create(lambda left, right, kind: None)
            comm.Barrier_init()

    assert list_unfreed_calls(program, 2) == ["Barrier_init", "Create", "Dup", "Dup"]


def test_a_handle_per_neighbour_may_be_kept_to_the_end() -> None:
    def program(comm: Any) -> None:
        from mpi4py import MPI

        requests = [comm.Recv_init(bytearray(1), MPI.PROC_NULL) for _ in range(6)]
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)

    assert judge(program, 2).problems == ()
