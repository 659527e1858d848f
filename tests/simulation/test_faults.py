"""Reports name wrong messages, requests and collectives, and ranks that end early."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulate_judging import judge, line, only

import spmdsim
from spmdsim.simulation import Problem, simulate

pytest.importorskip("greenlet")


# ---------------------------------------------------------------------- messages


def test_a_message_longer_than_the_buffer_is_reported() -> None:
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


def test_a_message_shorter_than_the_buffer_is_correct() -> None:
    def program(comm: Any) -> Any:
        if comm.rank == 0:
            comm.Send(np.ones(2), dest=1)
            return None
        room = np.zeros(4)
        comm.Recv(room, source=0)
        return room.tolist()

    assert simulate(program, 2).results[1] == [1, 1, 0, 0]


@pytest.mark.parametrize("blocked_first", [True, False])
def test_an_object_does_not_match_a_buffer(blocked_first: bool) -> None:
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


def test_messages_without_a_receive_are_reported() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            for _ in range(3):
                comm.send(1, dest=1, tag=5)
        else:
            comm.recv(source=0, tag=5)

    problem = only(program, 2)
    assert problem.kind == "unreceived" and problem.ranks == (0, 1)
    assert "rank 1 never receives 2 messages with tag 5 that rank 0 sent" in problem.message


def test_a_message_with_another_memory_order_is_a_warning() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            comm.Send(np.zeros((3, 2), order="F"), dest=1)
        else:
            comm.Recv(np.zeros((3, 2)), source=0)

    problem = only(program, 2)
    assert (problem.kind, problem.severity) == ("memory_order", "warning")


def test_a_collective_with_another_memory_order_is_a_warning() -> None:
    def program(comm: Any) -> None:
        x = np.ones((3, 2), order="F") if comm.rank == 1 else np.ones((3, 2))
        comm.Allreduce(x, np.zeros((3, 2)))

    problem = only(program, 3)
    assert (problem.kind, problem.severity) == ("memory_order", "warning")
    assert "the send buffer of rank 1 is stored column by column" in problem.message

    def use_column_order(comm: Any) -> Any:
        x, y = np.array([[1, 2], [3, 4]], order="F"), np.zeros((2, 2), dtype=int, order="F")
        comm.Allreduce(x, y)
        comm.Bcast([y, "l"])
        return y.tolist()

    report = judge(use_column_order, 2)
    assert report.problems == () and report.results[1] == [[2, 4], [6, 8]]


# ---------------------------------------------------------------------- requests


def test_a_request_without_a_wait_is_reported() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            comm.isend(1, dest=1)
        else:
            comm.recv(source=0)

    problem = only(program, 2)
    assert problem.kind == "not_waited" and problem.ranks == (0,)
    assert f":{line(program, 'isend')}" in problem.message


def test_requests_of_one_line_are_listed_with_their_ranks() -> None:
    def program(comm: Any) -> None:
        comm.isend(1, dest=(comm.rank + 1) % comm.size)

    def send_equal_messages(comm: Any) -> None:
        for _ in range(2):
            comm.isend(1, dest=0)

    short_message, long_message = (judge(program, size).problems[-1].message for size in (3, 5))
    calls = [f"rank {rank}: isend(dest={(rank + 1) % 3}, tag=0)" for rank in range(3)]
    assert f"({'; '.join(calls)})" in short_message
    assert "rank 2: isend(dest=3, tag=0); and 2 more)" in long_message
    assert "(isend(dest=0, tag=0))" in judge(send_equal_messages, 2).problems[-1].message


def test_freed_requests_need_no_wait() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            comm.isend(1, dest=1).Free()
        else:
            comm.recv(source=0)

    assert judge(program, 2).problems == ()


@pytest.mark.parametrize("side", ["send", "receive"])
def test_a_buffer_that_changes_before_wait_is_reported(side: str) -> None:
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


def test_two_open_receives_into_one_buffer_are_reported() -> None:
    def program(comm: Any) -> None:
        from mpi4py import MPI

        if comm.rank == 0:
            comm.Send(np.ones(2), dest=1)
            comm.Send(np.zeros(2) + 5, dest=1)
        else:
            room = np.zeros(2)
            MPI.Request.Waitall([comm.Irecv(room, source=0), comm.Irecv(room, source=0)])

    assert only(program, 2).kind == "buffer_reused"


def test_the_finding_that_ended_the_run_stands_first() -> None:
    def program(comm: Any) -> None:
        other = 1 - comm.rank
        comm.send(1, other)
        comm.recv(source=other)
        comm.recv(source=other)

    assert [problem.kind for problem in judge(program, 2).problems] == ["deadlock", "needs_buffering"]


@pytest.mark.parametrize("changed", ["sent", "received"])
def test_a_changed_buffer_of_a_persistent_collective_is_reported_once(changed: str) -> None:
    def program(comm: Any) -> None:
        sent, received = np.ones(2), np.zeros(2)
        request = comm.Allreduce_init(sent, received)
        for _ in range(2):
            request.Start()
            (sent if changed == "sent" else received)[:] += 1
            request.Wait()
            sent += 1
        request.Free()

    (problem,) = judge(program, 2).problems
    assert problem.kind == "buffer_reused"
    assert "changes the collective buffer of Allreduce_init at test_faults.py:" in problem.message


# ---------------------------------------------------------------------- collectives


def mismatch(program: Callable[..., Any], n: int = 4) -> Problem:
    problem = only(program, n)
    assert problem.kind == "collective_mismatch", problem
    return problem


def test_the_rank_with_another_collective_is_named() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 3:
            comm.Bcast(np.zeros(2))
        else:
            comm.Allreduce(np.zeros(2), np.zeros(2))

    problem = mismatch(program, 8)
    assert problem.ranks == (3,)
    assert f"rank 3 calls Bcast at test_faults.py:{line(program, 'Bcast')}" in (problem.message)
    assert "where ranks 0..2, 4..7 call Allreduce" in problem.message


def test_the_rank_with_another_root_op_dtype_or_count_is_named() -> None:
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


def test_blocks_that_do_not_fit_their_counts_are_reported() -> None:
    def program(comm: Any) -> None:
        own_block = np.zeros(comm.rank + 1)
        counts = [1, 2, 3, 5] if comm.rank == 1 else [1, 2, 3, 4]
        comm.Allgatherv(own_block, [np.zeros(sum(counts)), counts])

    problem = mismatch(program)
    assert problem.ranks == (1, 3)
    assert "rank 3 sends 4 × float64 to rank 1, which expects 5 × float64" in problem.message


def test_the_rank_that_skips_one_of_several_equal_collectives_is_named() -> None:
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


def test_the_rank_that_skips_one_of_different_collectives_is_named() -> None:
    def program(comm: Any) -> None:
        if comm.rank != 1:
            comm.barrier()
        comm.bcast(1)

    problem = mismatch(program)
    assert problem.ranks == (1,) and "rank 1 calls bcast" in problem.message


def test_the_rank_that_never_starts_a_nonblocking_collective_is_named() -> None:
    def program(comm: Any) -> None:
        if comm.rank:
            comm.Ibarrier()

    report = judge(program, 3)
    assert {problem.kind for problem in report.problems} == {"collective_mismatch", "not_waited"}
    assert "rank 0 never calls Ibarrier" in report.problems[0].message


def test_a_blocking_collective_does_not_match_a_nonblocking_one() -> None:
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
    assert f"rank 3 raises KeyError: 'lost' at test_faults.py:{line(program, 'raise')}" == (problem.message)
    assert any("KeyError" in row for row in problem.details)
    package = str(Path(spmdsim.__file__).parent)
    assert not any(package in row for row in problem.details if "File" in row)


def test_abort_and_exit_keep_their_code() -> None:
    def call_abort(comm: Any) -> None:
        if comm.rank == 1:
            comm.Abort(7)
        comm.Barrier()

    def call_exit(comm: Any) -> None:
        if comm.rank == 1:
            raise SystemExit(5)
        comm.Barrier()

    assert (only(call_abort, 2).kind, judge(call_abort, 2).exit_code) == ("abort", 7)
    assert (only(call_exit, 2).kind, judge(call_exit, 2).exit_code) == ("exit", 5)


def test_a_rank_that_exits_with_0_before_a_collective_is_named() -> None:
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


def test_a_program_that_catches_everything_ends_too() -> None:
    def program(comm: Any) -> None:
        while True:
            with suppress(BaseException):
                comm.recv(source=1 - comm.rank)

    assert only(program, 2).kind == "deadlock"


def test_invalid_ranks_tags_and_roots_are_mpi_errors() -> None:
    def program(comm: Any) -> list[str]:
        """Return the error class of each invalid call."""

        from mpi4py import MPI

        errors = []
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
                errors.append(str(error).partition(":")[0])
        return errors

    names = ["MPI_ERR_RANK", "MPI_ERR_TAG", "MPI_ERR_RANK", "MPI_ERR_ROOT", "MPI_ERR_OP", "MPI_ERR_OP"]
    assert simulate(program, 2).results == (names, names)


def test_strided_memory_is_refused_like_in_mpi4py() -> None:
    def program(comm: Any) -> None:
        comm.Send(np.zeros((4, 4))[:, 1], dest=0)

    assert "must be contiguous, got an array of shape (4,)" in only(program, 1).message


def test_one_array_for_both_buffers_of_a_collective_is_reported() -> None:
    def program(comm: Any) -> None:
        x = np.zeros(2)
        comm.Allreduce(x, x)

    assert "IN_PLACE" in only(program, 2).message
