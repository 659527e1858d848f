"""Reports of deadlocks and of sends that need a buffer name the ranks, the calls, the lines and the cycle."""

from __future__ import annotations

from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulate_judging import judge, line, only

from spmdsim.simulation import SimulationError, simulate

pytest.importorskip("greenlet")


# ---------------------------------------------------------------------- deadlock


def test_two_ranks_that_receive_first_are_a_cycle() -> None:
    def program(comm: Any) -> None:
        comm.recv(source=1 - comm.rank, tag=3)
        comm.send(0, dest=1 - comm.rank, tag=3)

    problem = only(program, 2)
    at = line(program, "comm.recv")
    assert problem.kind == "deadlock" and problem.cycle == (0, 1)
    assert problem.message == (
        "ranks 0, 1 wait for each other (0 → 1 → 0): "
        f"rank 0 in recv(source=1, tag=3) at test_deadlock.py:{at}, "
        f"rank 1 in recv(source=0, tag=3) at test_deadlock.py:{at}"
    )
    assert [call_site.line for call_site in problem.places] == [at, at]


@pytest.mark.parametrize("name", ["recv", "barrier", "Ibarrier", "Abort"])
def test_a_call_in_a_generated_method_is_at_the_line_that_called_the_method(name: str) -> None:
    def program(comm: Any) -> None:
        record = make_dataclass("Record", [("value", Any, field(default_factory=getattr(comm, name)))])
        if comm.rank == 0:
            record()

    problem = judge(program, 2).problems[0]
    assert {
        (Path(call_site.file).name, call_site.line) for call_site in problem.places if call_site.rank == 0
    } == {("test_deadlock.py", line(program, " record()"))}
    assert f"test_deadlock.py:{line(program, ' record()')}" in problem.message


def test_an_exception_in_a_generated_method_is_at_the_line_that_called_the_method() -> None:
    def program(comm: Any) -> None:
        record = make_dataclass("Record", [("value", Any, field(default_factory={}.popitem))])
        record()

    problem = only(program, 1)
    assert problem.kind == "exception"
    assert problem.message.endswith(f"at test_deadlock.py:{line(program, ' record()')}")


@pytest.mark.parametrize("arrays", [True, False])
def test_a_wildcard_that_took_the_message_is_named(arrays: bool) -> None:
    def program(comm: Any) -> None:
        room = np.zeros(1)
        if comm.rank:
            comm.Send(room, 0) if arrays else comm.send(1, 0)
        else:
            comm.Recv(room) if arrays else comm.recv()  # This call takes rank 1's message.
            comm.Recv(room, 1) if arrays else comm.recv(source=1)

    problem = only(program, 3)
    name = "Recv" if arrays else "recv"
    assert problem.ranks == (0, 1) and problem.message.endswith(
        "for rank 1, which never sends it a message: it has finished; "
        f"{name} at test_deadlock.py:{line(program, 'takes')}, open to any source, took one of its messages"
    )


def test_only_the_ranks_of_the_cycle_are_named() -> None:
    def program(comm: Any) -> None:
        if comm.rank in (2, 3):
            comm.recv(source=5 - comm.rank)
        else:
            comm.recv(source=comm.rank + 1)

    problem = only(program, 4)
    assert problem.ranks == (2, 3) and problem.cycle == (2, 3)
    assert len(problem.details) == 4


def test_a_long_cycle_is_shortened_in_the_message() -> None:
    def program(comm: Any) -> None:
        comm.Ssend(np.zeros(1), dest=(comm.rank + 1) % comm.size)
        comm.Recv(np.zeros(1), source=(comm.rank - 1) % comm.size)

    problem = only(program, 100)
    assert problem.cycle == tuple(range(100))
    assert "0 → 1 → 2 → 3 → … → 98 → 99 → 0" in problem.message


def test_a_receive_from_a_finished_rank_is_a_deadlock() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 2:
            return
        if comm.rank == 1:
            comm.recv(source=2)

    problem = only(program, 3)
    assert problem.ranks == (1, 2)
    assert "rank 1 waits in recv(source=2, tag=ANY_TAG)" in problem.message
    assert "rank 2, which never sends it a message: it has finished" in problem.message


def test_a_wildcard_receive_is_a_deadlock_if_all_others_have_finished() -> None:
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
    assert f"Wait at test_deadlock.py:{line(program, 'Wait')}" in problem.message
    assert f"of line {line(program, 'Irecv')}" in problem.message


def test_a_barrier_and_a_receive_form_a_cycle() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 3:
            comm.recv(source=0)
        comm.Barrier()
        if comm.rank == 0:
            comm.send(1, dest=3)

    problem = only(program, 4)
    assert problem.kind == "deadlock" and set(problem.cycle) == {0, 3}
    assert "rank 0 in Barrier" in problem.message and "rank 3 in recv(source=0" in problem.message


def test_collectives_on_two_communicators_in_different_orders_are_a_cycle() -> None:
    def program(comm: Any) -> None:
        twin = comm.Dup()
        first, second = (comm, twin) if comm.rank == 0 else (twin, comm)
        first.Barrier()
        second.Barrier()

    problem = only(program, 2)
    assert problem.cycle == (0, 1)
    assert "Barrier(COMM_WORLD.Dup)" in problem.message


def test_the_message_names_the_communicator_of_a_sent_message() -> None:
    def program(comm: Any) -> None:
        twin = comm.Dup()
        if comm.rank == 0:
            twin.send(1, dest=1)
        else:
            comm.recv(source=0)

    problem = only(program, 2)
    assert "is in the communicator COMM_WORLD.Dup, not COMM_WORLD" in problem.message


def test_endless_polling_is_a_deadlock() -> None:
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


def test_sends_that_need_a_buffer_are_a_warning_and_the_program_finishes() -> None:
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


def test_correct_orders_need_no_buffer() -> None:
    def take_turns(comm: Any) -> None:
        if comm.rank == 0:
            comm.send(1, dest=1)
            comm.recv(source=1)
        else:
            comm.recv(source=0)
            comm.send(1, dest=0)

    def exchange(comm: Any) -> None:
        comm.sendrecv(1, dest=1 - comm.rank, source=1 - comm.rank)

    def send_nonblocking(comm: Any) -> None:
        request = comm.isend(1, dest=1 - comm.rank)
        comm.recv(source=1 - comm.rank)
        request.wait()

    for program in (take_turns, exchange, send_nonblocking):
        assert judge(program, 2).problems == ()
        assert judge(program, 2, strict=True).problems == ()


def test_only_the_send_that_needs_a_buffer_is_named() -> None:
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
    def broadcast(comm: Any) -> Any:
        if comm.rank == 1:
            comm.recv(source=0)
        value = comm.bcast([7] if comm.rank == 0 else None)
        if comm.rank == 0:
            value.append(8)
            comm.send(1, dest=1)
        return value

    def reduce(comm: Any) -> Any:
        """Return the sum; rank 1 lets rank 0 call Reduce only after its own call."""

        x = np.array([comm.rank + 1])
        if comm.rank == 0:
            comm.recv(source=1)
        total = np.zeros(1, dtype=int)
        comm.Reduce(x, total if comm.rank == 0 else None)
        x[0] = 99
        if comm.rank == 1:
            comm.send(1, dest=0)
        return int(total[0])

    for program, expected in ((broadcast, ([7, 8], [7], [7])), (reduce, (6, 0, 0))):
        report = judge(program, 3)
        assert report.results == expected
        (problem,) = report.problems
        assert (problem.kind, problem.severity) == ("early_leave", "warning")
        assert set(problem.cycle) == {0, 1}
        assert only(program, 3, strict=True).kind == "deadlock"


def test_pairs_of_ranks_at_one_line_are_one_warning() -> None:
    def program(comm: Any) -> None:
        comm.send(1, dest=comm.rank ^ 1)
        comm.recv(source=comm.rank ^ 1)

    problem = only(program, 6)
    assert problem.ranks == (0, 1)
    assert "(0 → 1 → 0), and 4 more ranks likewise" in problem.message


def test_a_blocking_send_to_the_own_rank_needs_a_buffer() -> None:
    def program(comm: Any) -> None:
        comm.send(1, dest=0)
        comm.recv(source=0)

    assert "rank 0 waits for itself" in only(program, 1).message
    assert "rank 0 waits for itself in send(dest=0" in only(program, 1, strict=True).message


def test_a_buffered_send_needs_an_attached_buffer() -> None:
    def program(comm: Any) -> None:
        from mpi4py import MPI

        MPI.Attach_buffer(bytearray(1000))
        comm.Bsend(np.zeros(4), dest=1 - comm.rank)
        comm.Recv(np.zeros(4), source=1 - comm.rank)
        MPI.Detach_buffer()

    assert judge(program, 2, strict=True).problems == ()

    def send_without_buffer(comm: Any) -> None:
        comm.Bsend(np.zeros(4), dest=0)

    assert "32 bytes and no buffer" in only(send_without_buffer, 2).message


def test_a_ready_send_before_its_receive_is_reported() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            comm.Rsend(np.zeros(1), dest=1)
        else:
            comm.Recv(np.zeros(1), source=0)

    assert only(program, 2).kind == "ready_send"
