"""What goes wrong is named: kind, ranks, calls and lines."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spmdsim.simulate import Problem, Report, SimulationError, simulate

pytest.importorskip("greenlet")


def judge(program: Callable[..., Any], n: int, **options: Any) -> Report:
    return simulate(program, n, check=False, emit=lambda rank, line: None, **options)


def only(program: Callable[..., Any], n: int, **options: Any) -> Problem:
    report = judge(program, n, **options)
    assert len(report.problems) == 1, report
    return report.problems[0]


def line(function: Callable[..., Any], text: str, nth: int = 0) -> int:
    """Line of the nth occurrence of a text in a function."""
    source, first = inspect.getsourcelines(function)
    return first + [i for i, row in enumerate(source) if text in row][nth]


# ---------------------------------------------------------------------- deadlock


def test_each_waits_for_the_other() -> None:
    def program(comm: Any) -> None:
        comm.recv(source=1 - comm.rank, tag=3)
        comm.send(0, dest=1 - comm.rank, tag=3)

    problem = only(program, 2)
    at = line(program, "comm.recv")
    assert problem.kind == "deadlock" and problem.cycle == (0, 1)
    assert problem.message == (
        "ranks 0, 1 wait for each other (0 → 1 → 0): "
        f"rank 0 in recv(source=1, tag=3) at test_simulate_diagnosis.py:{at}, "
        f"rank 1 in recv(source=0, tag=3) at test_simulate_diagnosis.py:{at}"
    )
    assert [place.line for place in problem.places] == [at, at]


def test_only_the_cycle_is_blamed_not_those_behind_it() -> None:
    def program(comm: Any) -> None:
        if comm.rank in (2, 3):
            comm.recv(source=5 - comm.rank)
        else:
            comm.recv(source=comm.rank + 1)

    problem = only(program, 4)
    assert problem.ranks == (2, 3) and problem.cycle == (2, 3)
    assert len(problem.details) == 4


def test_a_long_ring_of_synchronous_sends() -> None:
    def program(comm: Any) -> None:
        comm.Ssend(np.zeros(1), dest=(comm.rank + 1) % comm.size)
        comm.Recv(np.zeros(1), source=(comm.rank - 1) % comm.size)

    problem = only(program, 100)
    assert problem.cycle == tuple(range(100))
    assert "0 → 1 → 2 → 3 → … → 98 → 99 → 0" in problem.message


def test_a_rank_that_has_left() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 2:
            return
        if comm.rank == 1:
            comm.recv(source=2)

    problem = only(program, 3)
    assert problem.ranks == (1, 2)
    assert "rank 1 waits in recv(source=2, tag=ANY_TAG)" in problem.message
    assert "rank 2, which never sends it a message: it has finished" in problem.message


def test_everybody_else_has_left_an_any_source_receive() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            comm.recv()

    problem = only(program, 3)
    assert problem.kind == "deadlock" and problem.ranks == (0, 1, 2)


def test_wait_names_the_line_of_wait_and_of_the_start() -> None:
    def program(comm: Any) -> None:
        request = comm.Irecv(np.zeros(1), source=1 - comm.rank)
        request.Wait()

    problem = only(program, 2)
    assert f"Wait at test_simulate_diagnosis.py:{line(program, 'Wait')}" in problem.message
    assert f"of line {line(program, 'Irecv')}" in problem.message


def test_barrier_against_receive() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 3:
            comm.recv(source=0)
        comm.Barrier()
        if comm.rank == 0:
            comm.send(1, dest=3)

    problem = only(program, 4)
    assert problem.kind == "deadlock" and set(problem.cycle) == {0, 3}
    assert "rank 0 in Barrier" in problem.message and "rank 3 in recv(source=0" in problem.message


def test_collectives_on_two_communicators_in_other_order() -> None:
    def program(comm: Any) -> None:
        twin = comm.Dup()
        first, second = (comm, twin) if comm.rank == 0 else (twin, comm)
        first.Barrier()
        second.Barrier()

    problem = only(program, 2)
    assert problem.cycle == (0, 1)
    assert "Barrier(COMM_WORLD.Dup)" in problem.message


def test_message_in_another_communicator() -> None:
    def program(comm: Any) -> None:
        twin = comm.Dup()
        if comm.rank == 0:
            twin.send(1, dest=1)
        else:
            comm.recv(source=0)

    problem = only(program, 2)
    assert "is in the communicator COMM_WORLD.Dup, not COMM_WORLD" in problem.message


def test_polling_for_ever_is_a_deadlock() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            while not comm.Iprobe(source=1):
                pass

    problem = only(program, 2)
    assert problem.kind == "deadlock" and 0 in problem.ranks
    assert "Iprobe" in problem.message


def test_simulate_raises_with_the_report() -> None:
    with pytest.raises(SimulationError, match="wait for each other") as caught:
        simulate(lambda comm: comm.recv(source=1 - comm.rank), 2)
    assert caught.value.report.exit_code == 1


# ---------------------------------------------------------------------- buffering


def head_to_head(comm: Any) -> Any:
    comm.send(comm.rank, dest=1 - comm.rank)
    return comm.recv(source=1 - comm.rank)


def test_sends_that_need_a_buffer_are_a_warning_and_the_program_goes_on() -> None:
    report = judge(head_to_head, 2)
    assert report.completed and report.ok and report.results == (1, 0)
    (problem,) = report.problems
    assert (problem.kind, problem.severity) == ("needs_buffering", "warning")
    assert f":{line(head_to_head, 'comm.send')}" in problem.message
    assert problem.cycle == (0, 1) and problem.ranks == (0, 1)


def test_sends_that_need_a_buffer_are_an_error_under_strict() -> None:
    problem = only(head_to_head, 2, strict=True)
    assert problem.kind == "deadlock" and problem.cycle == (0, 1)


def test_nonblocking_standard_sends_need_a_buffer_too() -> None:
    def program(comm: Any) -> None:
        comm.isend(1, dest=1 - comm.rank).wait()
        comm.recv(source=1 - comm.rank)

    assert only(program, 2).kind == "needs_buffering"


def test_correct_orders_need_none() -> None:
    def ordered(comm: Any) -> None:
        if comm.rank == 0:
            comm.send(1, dest=1)
            comm.recv(source=1)
        else:
            comm.recv(source=0)
            comm.send(1, dest=0)

    def exchanged(comm: Any) -> None:
        comm.sendrecv(1, dest=1 - comm.rank, source=1 - comm.rank)

    def nonblocking(comm: Any) -> None:
        request = comm.isend(1, dest=1 - comm.rank)
        comm.recv(source=1 - comm.rank)
        request.wait()

    for program in (ordered, exchanged, nonblocking):
        assert judge(program, 2).problems == ()
        assert judge(program, 2, strict=True).problems == ()


def test_only_the_guilty_send_is_named() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 2:
            comm.send("innocent", dest=0, tag=9)
        else:
            comm.send("guilty", dest=1 - comm.rank)
            comm.recv(source=1 - comm.rank)
            if comm.rank == 0:
                comm.recv(source=2, tag=9)

    problem = only(program, 3)
    assert problem.ranks == (0, 1)
    assert f":{line(program, 'guilty')}" in problem.message


def test_collectives_that_must_not_wait_for_all_are_a_warning() -> None:
    def down(comm: Any) -> Any:
        if comm.rank == 1:
            comm.recv(source=0)
        thing = comm.bcast([7] if comm.rank == 0 else None)
        if comm.rank == 0:
            thing.append(8)
            comm.send(1, dest=1)
        return thing

    def up(comm: Any) -> Any:
        x = np.array([comm.rank + 1])
        if comm.rank == 0:
            comm.recv(source=1)
        total = np.zeros(1, dtype=int)
        comm.Reduce(x, total if comm.rank == 0 else None)
        x[0] = 99
        if comm.rank == 1:
            comm.send(1, dest=0)
        return int(total[0])

    for program, expected in ((down, ([7, 8], [7], [7])), (up, (6, 0, 0))):
        report = judge(program, 3)
        assert report.results == expected
        (problem,) = report.problems
        assert (problem.kind, problem.severity) == ("early_leave", "warning")
        assert set(problem.cycle) == {0, 1}
        assert only(program, 3, strict=True).kind == "deadlock"


def test_pairs_at_one_line_are_one_warning() -> None:
    def program(comm: Any) -> None:
        comm.send(1, dest=comm.rank ^ 1)
        comm.recv(source=comm.rank ^ 1)

    problem = only(program, 6)
    assert problem.ranks == (0, 1)
    assert "(0 → 1 → 0), and 4 more ranks likewise" in problem.message


def test_a_send_to_oneself() -> None:
    def program(comm: Any) -> None:
        comm.send(1, dest=0)
        comm.recv(source=0)

    assert "rank 0 waits for itself" in only(program, 1).message
    assert "rank 0 waits for itself in send(dest=0" in only(program, 1, strict=True).message


def test_buffered_mode_needs_no_relief_but_an_attached_buffer() -> None:
    def program(comm: Any) -> None:
        from mpi4py import MPI

        MPI.Attach_buffer(bytearray(1000))
        comm.Bsend(np.zeros(4), dest=1 - comm.rank)
        comm.Recv(np.zeros(4), source=1 - comm.rank)
        MPI.Detach_buffer()

    assert judge(program, 2, strict=True).problems == ()

    def bare(comm: Any) -> None:
        comm.Bsend(np.zeros(4), dest=0)

    assert "no buffer is attached" in only(bare, 2).message


def test_ready_send_before_its_receive() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            comm.Rsend(np.zeros(1), dest=1)
        else:
            comm.Recv(np.zeros(1), source=0)

    assert only(program, 2).kind == "ready_send"


# ---------------------------------------------------------------------- messages


def test_truncation() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            comm.Send(np.zeros(10), dest=1)
        else:
            comm.Recv(np.zeros(4), source=0)

    problem = only(program, 2)
    assert problem.kind == "truncation" and problem.ranks == (0, 1)
    assert "10 × float64" in problem.message and "4 × float64 only" in problem.message
    assert f":{line(program, 'Send')}" in problem.message
    assert f":{line(program, 'Recv')}" in problem.message


def test_a_shorter_message_is_fine() -> None:
    def program(comm: Any) -> Any:
        if comm.rank == 0:
            comm.Send(np.ones(2), dest=1)
            return None
        room = np.zeros(4)
        comm.Recv(room, source=0)
        return room.tolist()

    assert simulate(program, 2).results[1] == [1, 1, 0, 0]


@pytest.mark.parametrize("blocked_first", [True, False])
def test_object_against_buffer(blocked_first: bool) -> None:
    def program(comm: Any) -> None:
        if comm.rank == int(blocked_first):
            comm.send([1, 2], dest=1 - comm.rank)
        else:
            comm.Recv(np.zeros(100), source=1 - comm.rank)

    problem = only(program, 2)
    assert problem.kind == "type_mismatch" and "a pickled object" in problem.message


def test_bytes_match_anything() -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        if comm.rank == 0:
            comm.Send([np.arange(3.0), MPI.BYTE], dest=1)
            return None
        room = np.zeros(3)
        comm.Recv([room, MPI.BYTE], source=0)
        return room.tolist()

    assert simulate(program, 2).results[1] == [0, 1, 2]


def test_never_received() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            for _ in range(3):
                comm.send(1, dest=1, tag=5)
        else:
            comm.recv(source=0, tag=5)

    problem = only(program, 2)
    assert problem.kind == "unreceived" and problem.ranks == (0, 1)
    assert "rank 1 never receives 2 messages with tag 5 that rank 0 sent" in problem.message


def test_columns_against_rows() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            comm.Send(np.zeros((3, 2), order="F"), dest=1)
        else:
            comm.Recv(np.zeros((3, 2)), source=0)

    problem = only(program, 2)
    assert (problem.kind, problem.severity) == ("memory_order", "warning")


# ---------------------------------------------------------------------- requests


def test_never_waited() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            comm.isend(1, dest=1)
        else:
            comm.recv(source=0)

    problem = only(program, 2)
    assert problem.kind == "not_waited" and problem.ranks == (0,)
    assert f":{line(program, 'isend')}" in problem.message


def test_freed_requests_are_forgiven() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            comm.isend(1, dest=1).Free()
        else:
            comm.recv(source=0)

    assert judge(program, 2).problems == ()


@pytest.mark.parametrize("side", ["send", "receive"])
def test_buffer_changed_before_wait(side: str) -> None:
    def program(comm: Any) -> None:
        data = np.zeros(3)
        if comm.rank == 0:
            request = comm.Isend(data, dest=1)
        else:
            request = comm.Irecv(data, source=0)
        if comm.rank == (0 if side == "send" else 1):
            data[1] = 7
        request.Wait()

    problem = only(program, 2)
    assert problem.kind == "buffer_reused"
    assert f"changes the {side} buffer" in problem.message
    assert f":{line(program, 'Wait')}" in problem.message


def test_two_receives_into_one_buffer() -> None:
    def program(comm: Any) -> None:
        from mpi4py import MPI

        if comm.rank == 0:
            comm.Send(np.ones(2), dest=1)
            comm.Send(np.zeros(2) + 5, dest=1)
        else:
            room = np.zeros(2)
            MPI.Request.Waitall([comm.Irecv(room, source=0), comm.Irecv(room, source=0)])

    assert only(program, 2).kind == "buffer_reused"


# ---------------------------------------------------------------------- collectives


def mismatch(program: Callable[..., Any], n: int = 4) -> Problem:
    problem = only(program, n)
    assert problem.kind == "collective_mismatch", problem
    return problem


def test_different_collectives() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 3:
            comm.Bcast(np.zeros(2))
        else:
            comm.Allreduce(np.zeros(2), np.zeros(2))

    problem = mismatch(program, 8)
    assert problem.ranks == (3,)
    assert f"rank 3 calls Bcast at test_simulate_diagnosis.py:{line(program, 'Bcast')}" in (problem.message)
    assert "where ranks 0-2, 4-7 call Allreduce" in problem.message


def test_different_root_op_dtype_and_count() -> None:
    def root(comm: Any) -> None:
        comm.Bcast(np.zeros(2), root=int(comm.rank == 2))

    def op(comm: Any) -> None:
        from mpi4py import MPI

        comm.allreduce(1, op=MPI.PROD if comm.rank == 2 else MPI.SUM)

    def dtype(comm: Any) -> None:
        x = np.zeros(2, dtype="i8" if comm.rank == 2 else "f8")
        comm.Allreduce(x, x.copy())

    def count(comm: Any) -> None:
        x = np.zeros(3 if comm.rank == 2 else 2)
        comm.Allreduce(x, x.copy())

    for program, words in (
        (root, "the root of Bcast"),
        (op, "the op of allreduce"),
        (dtype, "the dtype of Allreduce"),
        (count, "the count of Allreduce"),
    ):
        problem = mismatch(program)
        assert problem.ranks == (2,)
        assert words in problem.message and "ranks 0, 1, 3 pass" in problem.message
    assert "rank 2 passes MPI.PROD" in mismatch(op).message


def test_blocks_of_other_sizes() -> None:
    def program(comm: Any) -> None:
        mine = np.zeros(comm.rank + 1)
        counts = [1, 2, 3, 5] if comm.rank == 1 else [1, 2, 3, 4]
        comm.Allgatherv(mine, [np.zeros(sum(counts)), counts])

    problem = mismatch(program)
    assert problem.ranks == (1, 3)
    assert "rank 3 sends 4 × float64 to rank 1, which expects 5 × float64" in problem.message


def test_one_rank_skips_a_collective() -> None:
    def program(comm: Any) -> None:
        comm.allreduce(1)
        if comm.rank != 2:
            comm.allreduce(2)
        comm.allreduce(3)
        comm.allreduce(4)

    problem = only(program, 4)
    assert problem.kind == "deadlock" and problem.ranks == (0, 1, 2, 3)
    assert "rank 2 skipped allreduce" in problem.message
    assert f":{line(program, 'allreduce(2)')}" in problem.message


def test_one_rank_skips_one_of_many_kinds() -> None:
    def program(comm: Any) -> None:
        if comm.rank != 1:
            comm.barrier()
        comm.bcast(1)

    problem = mismatch(program)
    assert problem.ranks == (1,) and "rank 1 calls bcast" in problem.message


def test_a_nonblocking_collective_that_one_rank_never_starts() -> None:
    def program(comm: Any) -> None:
        if comm.rank:
            comm.Ibarrier()

    report = judge(program, 3)
    assert {problem.kind for problem in report.problems} == {"collective_mismatch", "not_waited"}
    assert "rank 0 never calls Ibarrier" in report.problems[0].message


def test_blocking_does_not_match_nonblocking() -> None:
    def program(comm: Any) -> None:
        if comm.rank:
            comm.Ibarrier().Wait()
        else:
            comm.Barrier()

    mismatch(program, 3)


# ---------------------------------------------------------------------- ends


def test_an_exception_on_one_rank_ends_the_job() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 3:
            raise KeyError("lost")
        comm.Barrier()

    problem = only(program, 5)
    assert problem.kind == "exception" and problem.ranks == (3,)
    assert f"rank 3 raises KeyError: 'lost' at test_simulate_diagnosis.py:{line(program, 'raise')}" == (
        problem.message
    )
    assert any("KeyError" in row for row in problem.details)


def test_abort_and_exit_keep_their_code() -> None:
    def aborts(comm: Any) -> None:
        if comm.rank == 1:
            comm.Abort(7)
        comm.Barrier()

    def leaves(comm: Any) -> None:
        if comm.rank == 1:
            raise SystemExit(5)
        comm.Barrier()

    assert (only(aborts, 2).kind, judge(aborts, 2).exit_code) == ("abort", 7)
    assert (only(leaves, 2).kind, judge(leaves, 2).exit_code) == ("exit", 5)


def test_a_silent_exit_is_found_when_somebody_waits() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 1:
            raise SystemExit(0)
        comm.Barrier()

    assert "rank 1, which never calls it: it has finished" in only(program, 3).message


def test_finally_blocks_run_when_the_run_ends() -> None:
    ended = []

    def program(comm: Any) -> None:
        try:
            comm.recv(source=1 - comm.rank)
        finally:
            ended.append(comm.rank)

    judge(program, 2)
    assert sorted(ended) == [0, 1]


def test_invalid_ranks_tags_and_roots_are_mpi_errors() -> None:
    def program(comm: Any) -> list[str]:
        from mpi4py import MPI

        found = []
        for call in (
            lambda: comm.send(1, dest=9),
            lambda: comm.send(1, dest=0, tag=-5),
            lambda: comm.recv(source=7),
            lambda: comm.bcast(1, root=4),
            lambda: comm.Allreduce(np.zeros(2, bool), np.zeros(2, bool)),
            lambda: comm.Allreduce(np.zeros(2, complex), np.zeros(2, complex), op=MPI.MAX),
        ):
            try:
                call()
            except MPI.Exception as error:
                found.append(str(error).partition(":")[0])
        return found

    names = ["MPI_ERR_RANK", "MPI_ERR_TAG", "MPI_ERR_RANK", "MPI_ERR_ROOT", "MPI_ERR_OP", "MPI_ERR_OP"]
    assert simulate(program, 2).results == (names, names)


def test_strided_memory_is_refused_as_mpi4py_does() -> None:
    def program(comm: Any) -> None:
        comm.Send(np.zeros((4, 4))[:, 1], dest=0)

    assert "not contiguous" in only(program, 1).message


def test_both_buffers_the_same() -> None:
    def program(comm: Any) -> None:
        x = np.zeros(2)
        comm.Allreduce(x, x)

    assert "IN_PLACE" in only(program, 2).message
