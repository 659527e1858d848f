"""One-sided communication: right programs run without a finding, wrong ones are named with rank, line and other side.

The first line of each program in ``programs/one_sided`` is its verdict. A wrong program has the kind of the finding there,
and the comment "named" on each line that the finding names.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from spmdsim.simulation import Report, SimulationError, simulate

pytest.importorskip("greenlet")
PROGRAMS = sorted((Path(__file__).parent / "programs" / "one_sided").glob("*.py"))
VERDICT = re.compile(r"# (?:right|wrong: (\w+)), (\d) ranks")
RIGHT = [path for path in PROGRAMS if path.name.startswith("right")]
WRONG = [path for path in PROGRAMS if path.name.startswith("wrong")]


def run(path: Path, seed: int | None = None) -> tuple[str, Report]:
    """Return the kind of the expected finding, and the report of a program."""
    kind, ranks = VERDICT.match(path.read_text()).groups()
    return kind, simulate(str(path), int(ranks), check=False, seed=seed, emit=lambda rank, line: None)


def test_there_are_programs_of_both_verdicts() -> None:
    assert len(RIGHT) >= 25 and len(WRONG) >= 40


@pytest.mark.parametrize("path", RIGHT, ids=lambda path: path.stem)
def test_right_programs_have_no_finding_in_any_order(path: Path) -> None:
    for seed in (None, 1, 2):
        _, report = run(path, seed)
        assert report.completed and not report.problems, "\n".join(map(str, report.problems))


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_wrong_programs_are_named_with_rank_and_lines(path: Path) -> None:
    lines = [n for n, line in enumerate(path.read_text().split("\n"), 1) if line.endswith("# named")]
    kind, report = run(path)
    texts = [problem.message for problem in report.problems if problem.kind == kind]
    assert lines and any(
        re.search(r"ranks? \d", text) and all(f"{path.name}:{line}" in text for line in lines)
        for text in texts
    ), "\n".join(map(str, report.problems))


def test_data_arrives_at_the_end_of_the_epoch() -> None:
    def program(comm: object) -> list[float]:
        from mpi4py import MPI

        memory, result = np.zeros(1), np.full(1, 5.0)
        window = MPI.Win.Create(memory, 8, comm=comm)
        window.Fence()
        window.Put(np.ones(1), 1 - comm.rank)
        observed = [memory[0]]
        window.Fence()
        observed.append(memory[0])
        window.Get(result, 1 - comm.rank)
        observed.append(result[0])
        window.Fence()
        window.Free()
        return [float(value) for value in (*observed, result[0])]

    assert simulate(program, 2).results == ([0.0, 1.0, 5.0, 1.0],) * 2


def test_modelled_time_counts_messages_and_bytes() -> None:
    def program(comm: object) -> None:
        from mpi4py import MPI

        window = MPI.Win.Allocate(1000, comm=comm)
        window.Lock_all()
        if comm.rank == 0:
            window.Put(bytearray(1000), 1)
            window.Flush(1)
        window.Unlock_all()
        window.Free()

    report = simulate(program, 2, machine=(1.0, 0.5))
    assert (report.messages, report.nbytes) == ((1, 0), (1000, 0))
    # Two locks of 2 s each, then a message of 1 s and 500 s.
    assert report.seconds[0] >= 505.0


def test_the_other_side_of_a_conflict_is_named() -> None:
    path = next(path for path in WRONG if path.stem == "wrong_fence_store_and_put")
    _, report = run(path)
    # 3.0 differs from 0.0 in two of its bytes.
    assert str(report.problems[0]) == (
        f"error: conflicting access: rank 0 stores before Fence at {path.name}:15 and rank 1 writes with Put at "
        f"{path.name}:14: both touch bytes 6 to 7 of the window of rank 0; no synchronisation orders both, so the result "
        "depends on the run"
    )


def test_a_lock_that_is_not_given_back_explains_the_deadlock() -> None:
    path = next(path for path in WRONG if path.stem == "wrong_lock_never_given_back")
    _, report = run(path)
    assert "(rank 0 has locked rank 0 with Lock at wrong_lock_never_given_back.py:10)" in str(
        report.problems[0]
    )


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda window, data: window.Put(data, 5), "ERR_RANK"),
        (lambda window, data: window.Put(data, 0, 9), "ERR_RMA_RANGE"),
        (lambda window, data: window.Put(data, 0, -1), "ERR_DISP"),
        (lambda window, data: window.Lock(0, 99), "ERR_LOCKTYPE"),
        (lambda window, data: window.Lock(0, assertion=1024), "ERR_ASSERT"),
        (lambda window, data: window.Shared_query(0), "ERR_RMA_FLAVOR"),
        (lambda window, data: window.Unlock(0), "ERR_RMA_SYNC"),
    ],
)
def test_errors_have_the_classes_of_mpi(call, error: str) -> None:
    def program(comm: object) -> bool:
        from mpi4py import MPI

        window = MPI.Win.Allocate(32, 8, comm=comm)
        window.Fence()
        try:
            call(window, np.ones(1))
        except MPI.Exception as raised:
            return raised.Get_error_class() == getattr(MPI, error)
        finally:
            window.Free()
        return False

    assert simulate(program, 2).results == (True, True)


def test_a_target_of_another_form_is_refused() -> None:
    def program(comm: object) -> None:
        from mpi4py import MPI

        window = MPI.Win.Allocate(8, 8, comm=comm)
        window.Fence()
        window.Put(np.ones(1), 0, "start")

    with pytest.raises(SimulationError, match="ValueError: target: expecting integral or list/tuple"):
        simulate(program, 1)


def test_windows_have_attributes_error_handlers_and_hints() -> None:
    def program(comm: object) -> tuple[object, ...]:
        """Return what a handle, a second handle and a freed window say of attributes, hints and memory."""
        from mpi4py import MPI

        deleted: list[object] = []
        key = MPI.Win.Create_keyval(delete_fn=lambda window, key, value: deleted.append(value))
        window = MPI.Win.Allocate(8, 1, MPI.Info.Create({"a": "b"}), comm)
        other = MPI.Win(window)
        window.Set_attr(key, 5)
        handler = MPI.Win.Create_errhandler(lambda window, code: deleted.append(code))
        window.Set_errhandler(handler)
        window.Call_errhandler(MPI.ERR_TAG)
        memory = window.tomemory()
        memory[:] = 7
        facts = window == other, other.Get_attr(key), window.Get_info().items(), bytes(memory), memory.nbytes
        window.Free()
        empty = MPI.Win.Create_dynamic(comm=comm)
        attributes = empty.attrs
        empty.Free()
        return *facts, deleted == [MPI.ERR_TAG, 5], attributes, bool(window), window == MPI.WIN_NULL

    expected = (True, 5, [("a", "b")], b"\x07" * 8, 8, True, (0, 0, 1), False, True)
    assert simulate(program, 2).results == (expected,) * 2


def test_a_view_of_a_window_shows_the_memory_of_the_rank() -> None:
    def program(comm: object) -> tuple[object, ...]:
        from mpi4py import MPI

        window = MPI.Win.Allocate(16, 8, comm=comm)
        view = memoryview(window).cast("d")
        window.Fence()
        window.Put(np.full(2, 1.5 + comm.rank), 1 - comm.rank)
        window.Fence()
        values = view.tolist()
        np.frombuffer(window)[0] = -1.0
        values += [view[0], memoryview(window).readonly, len(view)]
        view.release()
        window.Free()
        return (*values,)

    assert simulate(program, 2).results == ((2.5, 2.5, -1.0, False, 2), (1.5, 1.5, -1.0, False, 2))


def test_data_arrives_while_ranks_test_locked_windows_without_a_flush() -> None:
    def program(comm: object) -> int:
        from mpi4py import MPI

        window = MPI.Win.Allocate(8, 8, comm=comm)
        memory = memoryview(window).cast("l")
        window.Lock_all()
        comm.Barrier()
        if comm.rank == 0:
            window.Accumulate(np.array([5]), 1, op=MPI.REPLACE)
        while memory[0] == 0:
            window.Flush(comm.rank)
            window.Sync()
        if comm.rank == 1:
            window.Accumulate(np.array([6]), 0, op=MPI.REPLACE)
        value = memory[0]
        window.Unlock_all()
        window.Free()
        return value

    assert simulate(program, 2).results == (6, 5)


def test_an_operation_that_ignores_its_origin_still_needs_one_element() -> None:
    def program(comm: object) -> list[str]:
        from mpi4py import MPI

        window, result, names = MPI.Win.Allocate(8, 8, comm=comm), np.zeros(1), []
        window.Lock(0)
        for origin in (None, [None, 0, MPI.DOUBLE], np.zeros(2), np.zeros(1, np.int32)):
            try:
                window.Fetch_and_op(origin, result, 0, op=MPI.NO_OP)
            except (TypeError, ValueError) as error:
                names.append(type(error).__name__)
        window.Unlock(0)
        window.Free()
        return names

    assert simulate(program, 1).results == (["TypeError", "ValueError", "ValueError", "ValueError"],)
