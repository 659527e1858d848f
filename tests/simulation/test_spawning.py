"""Programs start further virtual ranks with Spawn and Spawn_multiple."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spmdsim.simulation import SimulationError, simulate

pytest.importorskip("greenlet")

ANSWER = """
from mpi4py import MPI
import sys
parent = MPI.Comm.Get_parent()
parent.gather((sys.argv[1:], __name__, MPI.COMM_WORLD.rank), root=0)
"""


def collect(child: Any, rank: int) -> Any:
    """Return what the children gather to rank 0 of the parents."""
    from mpi4py import MPI

    return child.gather(None, root=MPI.ROOT if rank == 0 else MPI.PROC_NULL)


def test_a_function_spawns_scripts_texts_and_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "answer.py"
    script.write_text(f"#!{sys.executable}\n{ANSWER}")
    monkeypatch.chdir(tmp_path)
    commands = [
        (str(script), None),
        (sys.executable, ["answer.py", "x"]),
        ("python3", ["-u", "-W", "error", "-c", ANSWER, "y"]),
        (sys.executable, ["-m", "answer", "z"]),
    ]

    def program(comm: Any) -> list[Any]:
        answers = []
        for command, args in commands:
            child = comm.Spawn(command, args, 2)
            answers.append(collect(child, comm.rank))
            child.Disconnect()
        return answers

    report = simulate(program, 2)
    words: list[list[str]] = [[], ["x"], ["y"], ["z"]]
    assert report.results[0] == [[(each, "__main__", rank) for rank in (0, 1)] for each in words]
    assert report.size == 2 + 2 * len(commands) and not report.problems


def test_commands_that_run_no_program_are_refused_on_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("1 +")
    commands = [
        ("/bin/true", []),
        (sys.executable, []),
        (sys.executable, [str(tmp_path / "missing.py")]),
        (sys.executable, [str(tmp_path / "wrong.py")]),
        (sys.executable, ["-m", "no_such_module"]),
    ]

    def program(comm: Any) -> list[str]:
        from mpi4py import MPI

        texts = []
        for command, args in commands:
            with pytest.raises(MPI.Exception) as caught:
                comm.Spawn(command, args, 1)
            assert caught.value.Get_error_class() == MPI.ERR_SPAWN
            texts.append(str(caught.value).partition("Spawn: ")[2])
        return texts

    first, second = simulate(program, 2).results
    assert first == second
    expected = [
        "got '/bin/true'",
        "args must name a script",
        "missing.py",
        "not valid Python",
        "'no_such_module'",
    ]
    assert [word in text for word, text in zip(expected, first)] == [True] * 5, first
    assert all(text.endswith("virtual ranks run Python programs only") for text in first)


def test_numbers_that_do_not_fit_the_commands_are_refused() -> None:
    def program(comm: Any) -> None:
        from mpi4py import MPI

        python, args = sys.executable, ["-c", ""]
        with pytest.raises(ValueError, match="must be a list of commands"):
            comm.Spawn_multiple(python, [args], [1])
        with pytest.raises(ValueError, match="args must have 1 items, one per command, got 2"):
            comm.Spawn_multiple([python], [args, args], [1])
        with pytest.raises(ValueError, match="maxprocs must have 1 items"):
            comm.Spawn_multiple([python], [args], [1, 1])
        with pytest.raises(ValueError, match="info must have 1 items"):
            comm.Spawn_multiple([python], [args], 1, [MPI.INFO_NULL] * 2)
        with pytest.raises(MPI.Exception, match="maxprocs must be 1 to 4,096, got 0"):
            comm.Spawn(python, args, 0)
        with pytest.raises(MPI.Exception, match="root must be 0 to 0, got 1"):
            comm.Spawn(python, args, 1, root=1)

    simulate(program, 1)


def test_a_spawned_rank_has_its_own_process_state() -> None:
    child = "\n".join(
        [
            "import os, sys, numpy as np",
            "from mpi4py import MPI",
            "os.chdir('/')",
            "os.environ['SPAWNED'] = 'yes'",
            "np.random.seed(MPI.COMM_WORLD.rank)",
            "MPI.Comm.Get_parent().Barrier()",
            "print(os.getcwd(), np.random.randint(1000), MPI.Get_processor_name())",
        ]
    )

    def program(comm: Any) -> tuple[bool, str]:
        import os

        folder = os.getcwd()
        os.environ["PARENT"] = "yes"
        comm.Spawn(sys.executable, ["-c", child], 2).Barrier()
        return os.getcwd() == folder, os.environ.get("SPAWNED", "")

    report = simulate(program, 2, nodes="a:1,b:1", emit=lambda rank, line: None)
    numbers = [np.random.RandomState(seed).randint(1000) for seed in (0, 1)]
    assert report.results[:2] == ((True, ""), (True, ""))
    hosts = {line.split()[2] for _, line in report.output}
    assert sorted((rank, line.split()[:2]) for rank, line in report.output) == [
        (2, ["/", str(numbers[0])]),
        (3, ["/", str(numbers[1])]),
    ]
    assert len(hosts) == 1 and hosts <= {"a", "b"}


def test_mistakes_of_spawned_ranks_are_reported() -> None:
    def fails(comm: Any) -> None:
        comm.Spawn(sys.executable, ["-c", "raise ValueError('bad')"], 1).Barrier()

    def waits(comm: Any) -> None:
        comm.Spawn(sys.executable, ["-c", "from mpi4py import MPI; MPI.Comm.Get_parent().recv()"], 1)
        comm.recv()

    with pytest.raises(SimulationError, match="rank 1 raises ValueError: bad"):
        simulate(fails, 1)
    with pytest.raises(SimulationError) as caught:
        simulate(waits, 1)
    assert caught.value.report.problems[0].kind == "deadlock"


def test_windows_of_parents_and_children_are_separate() -> None:
    child = "\n".join(
        [
            "from mpi4py import MPI",
            "import numpy as np",
            "everyone = MPI.Comm.Get_parent().Merge(True)",
            "win = MPI.Win.Create(None, 8, comm=everyone)",
            "win.Fence()",
            "win.Put(np.array([7 + everyone.rank]), 0, everyone.rank)",
            "win.Fence()",
            "win.Free()",
        ]
    )

    def program(comm: Any) -> list[int]:
        from mpi4py import MPI

        MPI.Win.Allocate(8, comm=comm).Free()
        comm.Barrier()
        everyone = comm.Spawn(sys.executable, ["-c", child], 2).Merge(False)
        memory = np.zeros(4, np.int64)
        win = MPI.Win.Create(memory if everyone.rank == 0 else None, 8, comm=everyone)
        win.Fence()
        win.Fence()
        win.Free()
        return memory.tolist()

    assert simulate(program, 2).results[0] == [0, 0, 9, 10]


def test_a_spawned_rank_starts_when_its_parents_have_called() -> None:
    child = "from mpi4py import MPI; print(MPI.Wtime() >= 2.5)"

    def program(comm: Any) -> None:
        import time

        time.sleep(2.5 * comm.rank)
        comm.Spawn(sys.executable, ["-c", child], 1)

    report = simulate(program, 2, trace=True, emit=lambda rank, line: None)
    assert report.output == ((2, "True"),)


def test_parents_and_children_meet_at_a_port() -> None:
    child = "\n".join(
        [
            "from mpi4py import MPI",
            "port = MPI.Comm.Get_parent().bcast(None, root=0)",
            "assert MPI.COMM_WORLD.Connect(port).allreduce(5) == 1",
        ]
    )

    def program(comm: Any) -> int:
        from mpi4py import MPI

        port = MPI.Open_port() if comm.rank == 0 else None
        root = MPI.ROOT if comm.rank == 0 else MPI.PROC_NULL
        comm.Spawn(sys.executable, ["-c", child], 3).bcast(port, root)
        total: int = comm.Accept(port).allreduce(comm.rank)
        return total

    assert simulate(program, 2).results[:2] == (15, 15)


def test_a_run_that_spawns_is_not_recorded(tmp_path: Path) -> None:
    def program(comm: Any) -> None:
        comm.Spawn(sys.executable, ["-c", ""], 1)

    with pytest.raises(SimulationError, match="record"):
        simulate(program, 1, record=tmp_path / "run.jsonl")
