"""All orders of messages are explored, and results and errors of single orders are found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spmdsim.cli.main import main
from spmdsim.simulation import Report, simulate

pytest.importorskip("greenlet")


def explore(program: Callable[..., Any], ranks: int, runs: int = 1000) -> Report:
    return simulate(program, ranks, check=False, explore=runs, emit=lambda rank, line: None)


def sum_of_all(comm: Any) -> Any:
    """Return the sum of all ranks' numbers, in any order of their messages."""
    if comm.rank == 0:
        return sum(comm.recv() for _ in range(comm.size - 1))
    comm.send(comm.rank, 0)


@pytest.mark.parametrize(("ranks", "orders"), [(2, 1), (3, 2), (4, 6)])
def test_all_orders_of_one_receiver_are_run(ranks: int, orders: int) -> None:
    report = explore(sum_of_all, ranks)
    assert (report.problems, report.orders, report.all_orders) == ((), orders, True)


def test_independent_receivers_do_not_multiply_the_orders() -> None:
    def program(comm: Any) -> None:
        pair = comm.rank // 3 * 3
        if comm.rank == pair:
            comm.recv()
            comm.recv()
        else:
            comm.send(comm.rank, pair)

    report = explore(program, 6)
    assert (report.orders, report.all_orders) == (4, True)


def test_the_limit_ends_the_search() -> None:
    report = explore(sum_of_all, 6, 10)
    assert (report.orders, report.all_orders) == (10, False)
    assert str(report).endswith("10 orders of messages explored, not all")


def test_a_result_that_depends_on_the_order_is_shown_with_two_orders() -> None:
    def program(comm: Any) -> Any:
        if comm.rank == 0:
            return [comm.recv(), comm.recv()]
        comm.send(comm.rank, 0)

    (problem,) = explore(program, 3).problems
    assert (problem.kind, problem.severity) == ("order_dependent", "warning")
    assert "rank 0 returns [1, 2] if rank 0 receives from 1, 2, and [2, 1] if rank 0 receives from 2, 1" in (
        problem.message
    )


def test_an_error_of_one_order_is_found() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            first = comm.recv()
            comm.recv()
            if first == 2:
                comm.recv(source=1)
        else:
            comm.send(comm.rank, 0)

    report = explore(program, 3)
    (problem,) = report.problems
    assert problem.kind == "deadlock"
    assert report.exit_code == 1
    assert problem.message.endswith("this happens if rank 0 receives from 2, 1 (in 1 of 2 orders)")


def test_a_late_message_can_overtake_through_a_buffer() -> None:
    def program(comm: Any) -> Any:
        if comm.rank == 0:
            return comm.recv(), comm.recv()
        if comm.rank == 1:
            comm.send("early", 0)
            comm.send(None, 2)
        else:
            comm.recv(source=1)
            comm.send("late", 0)

    assert [problem.kind for problem in explore(program, 3).problems] == ["order_dependent"]


def test_probes_from_any_source_are_explored() -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        if comm.rank == 0:
            status = MPI.Status()
            comm.probe(status=status)
            first = comm.recv(source=status.source)
            comm.recv()
            return first
        comm.send(comm.rank, 0)

    assert [problem.kind for problem in explore(program, 3).problems] == ["order_dependent"]


def test_the_command_runs_a_range_of_rank_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "pairs.py"
    script.write_text("from mpi4py import MPI\ncomm = MPI.COMM_WORLD\ncomm.sendrecv(1, comm.rank ^ 1)\n")
    assert main(["simulate", str(script), "-n", "2..4", "--json"]) == 1
    reports = json.loads(capsys.readouterr().out)
    assert [(report["ranks"], report["ok"]) for report in reports] == [(2, True), (3, False), (4, True)]
