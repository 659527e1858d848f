"""The command runs scripts as if each rank were a process."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from spmdsim.cli.main import main
from spmdsim.simulation import simulate

pytest.importorskip("greenlet")

FOLDER = Path(__file__).parents[1] / "simulate_programs"
BUGGY = Path(__file__).parents[2] / "examples" / "buggy_programs"


def command(*words: str) -> int:
    """Run `spmdsim simulate` with the given words; return the exit code."""
    return main(["simulate", *words])


def script(folder: Path, text: str, name: str = "program.py") -> str:
    """Write a program that has `comm`; return its path."""

    path = folder / name
    path.write_text("from mpi4py import MPI\ncomm = MPI.COMM_WORLD\n" + text, encoding="utf-8")
    return str(path)


def printed(path: str, ranks: int, *args: str, **options: Any) -> list[tuple[int, str]]:
    """Return the lines that a script prints, as sorted pairs of rank and line."""

    report = simulate(path, ranks, *args, emit=lambda rank, line: None, **options)
    return sorted(report.output)


def test_options_stand_before_or_right_after_the_script(capsys: Any) -> None:
    program = str(FOLDER / "pi.py")
    for words in (
        ("-n", "3", program, "100"),
        (program, "-n", "3", "100"),
        (program, "--ranks=3", "--prefix", "100"),
        (program, "-n", "3", "--", "100"),
    ):
        assert command(*words) == 0
        captured = capsys.readouterr()
        assert captured.out.strip().removeprefix("[0] ") == "pi is about 3.141601"
        assert "3 ranks, all finished" in captured.err


@pytest.mark.parametrize(
    "words, ranks, own_words",
    [
        ("--only=0 x --json -n 3", 4, "x --json -n 3"),
        ("--own -n 3", 4, "--own -n 3"),
        ("--n 5", 4, "--n 5"),
        ("-n 3 -- -n 2", 3, "-n 2"),
    ],
)
def test_the_scripts_own_options_are_left_alone(
    words: str, ranks: int, own_words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = script(tmp_path, "import sys\nif comm.rank == 0: print(*sys.argv[1:])")
    assert command(program, *words.split()) == 0
    captured = capfd.readouterr()
    assert captured.out == f"{own_words}\n" and captured.err.startswith(f"{ranks} ranks, all finished")


def test_json_prints_nothing_but_the_report(capsys: Any) -> None:
    assert command(str(BUGGY / "bug4_reduce.py"), "-n", "4", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ranks"] == 4 and not report["ok"] and report["exit_code"] == 1
    assert report["output"] == [{"rank": 0, "line": "sum: 120.0"}]
    (problem,) = report["problems"]
    assert problem["kind"] == "deadlock" and problem["severity"] == "error"
    assert problem["places"][0]["line"] == 21
    assert problem["places"][0]["file"].endswith("bug4_reduce.py")


def test_the_exit_code_depends_on_problems_strict_and_the_script(tmp_path: Path, capfd: Any) -> None:
    assert command(str(BUGGY / "bug5_flood.py"), "-n", "2", "--quiet") == 0
    assert command(str(BUGGY / "bug5_flood.py"), "-n", "2", "--quiet", "--strict") == 1
    assert command(script(tmp_path, "raise SystemExit(9 if comm.rank == 1 else 0)"), "--quiet") == 9
    assert command(script(tmp_path, "comm.Abort(4)"), "--quiet") == 4
    assert command(script(tmp_path, "1 / comm.rank"), "--quiet") == 1
    refused = {
        (str(tmp_path / "missing.py"),): "there is no script",
        (str(tmp_path),): "is a folder, not a script",
        (str(FOLDER / "pi.py"), "-n", "0"): "n must be a number of ranks of 1 or more, got 0",
        (script(tmp_path, "def ("),): "not valid Python",
    }
    capfd.readouterr()
    for words, message in refused.items():
        assert command(*words) == 2
        error = capfd.readouterr().err
        assert message in error and error.count("\n") == 1


def test_prefix_names_the_rank_and_only_selects_it(tmp_path: Path, capsys: Any) -> None:
    path = script(tmp_path, "print('a'); print('b', end='')")
    command(path, "-n", "2", "--prefix", "--quiet")
    assert sorted(capsys.readouterr().out.splitlines()) == ["[0] a", "[0] b", "[1] a", "[1] b"]
    command(path, "-n", "2", "--prefix", "--only", "1", "--quiet")
    assert capsys.readouterr().out.splitlines() == ["[1] a", "[1] b"]


def test_the_trace_file_has_the_times_of_the_machine_file(tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "trace.json"
    program = str(FOLDER / "ring_all_reduce.py")
    machine = tmp_path / "machine.json"
    machine.write_text(json.dumps({"name": "m", "alpha": 2.0, "beta": 0.0}))
    assert command(program, "-n", "4", "--machine", str(machine), "--trace", str(target)) == 0
    assert "24 s modelled" in capsys.readouterr().err
    assert json.loads(target.read_text())["traceEvents"]


def test_waiting_times_are_a_table_and_json(tmp_path: Path, capsys: Any) -> None:
    path = script(tmp_path, "comm.rank or __import__('time').sleep(2)\ncomm.Barrier()")
    assert command(path, "-n", "2", "--waits") == 0
    assert "\n1     Barrier at program.py:4  collective      1           2 s" in capsys.readouterr().err
    command(path, "-n", "2", "--json")
    (wait,) = json.loads(capsys.readouterr().out)["waits"]
    location = {"rank": 1, "call": "Barrier", "file": path, "line": 4}
    assert wait == location | {"cause": "collective", "seconds": 2.0, "count": 1}


# ---------------------------------------------------------------------- each rank is its own program


def test_every_rank_has_its_own_globals_arguments_and_modules(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(
        "from mpi4py import MPI\nrank = MPI.COMM_WORLD.rank\nseen = []\n"
        "def note():\n    MPI.COMM_WORLD.barrier()\n    seen.append(rank)\n    return list(seen)\n",
        encoding="utf-8",
    )
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("count = 0\n", encoding="utf-8")
    (tmp_path / "package" / "part.py").write_text(
        "from mpi4py import MPI\nMPI.COMM_WORLD.barrier()\nsquare = MPI.COMM_WORLD.rank ** 2\n",
        encoding="utf-8",
    )
    path = script(
        tmp_path,
        "import sys, helper, package\nfrom package import part\n"
        "package.count += 1\nsys.argv.append(str(comm.rank))\ncomm.barrier()\n"
        "import __main__\n"
        "print(helper.rank, helper.note(), package.count, part.square, sys.argv[1:], "
        "__main__.comm.rank, __name__)\n",
    )
    assert printed(path, 3, "x") == [(r, f"{r} [{r}] 1 {r * r} ['x', '{r}'] {r} __main__") for r in range(3)]
    assert "helper" not in sys.modules and "package" not in sys.modules


def test_instances_of_the_scripts_classes_can_be_sent(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "class Point:\n    def __init__(self, x): self.x = x\n"
        "got = comm.sendrecv(Point(comm.rank), dest=(comm.rank + 1) % comm.size)\n"
        "print(got.x, isinstance(got, Point), [p.x for p in comm.allgather(got)])\n",
    )
    assert printed(path, 3) == [(r, f"{(r - 1) % 3} True [2, 0, 1]") for r in range(3)]


def test_random_numbers_differ_between_ranks_and_not_between_runs(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "import random\nimport numpy as np\n"
        "first = random.random(), np.random.rand()\ncomm.barrier()\n"
        "np.random.seed(5); random.seed(5)\ncomm.barrier()\n"
        "print(first, np.random.rand(), random.random())\n",
    )
    import random

    import numpy as np

    random.seed(1)
    np.random.seed(1)
    expected = random.Random(1).random(), np.random.RandomState(1).rand()
    lines = printed(path, 4)
    assert lines == printed(path, 4)
    firsts = {line.partition(")")[0] for _, line in lines}
    seeded = {line.partition(")")[2] for _, line in lines}
    assert len(firsts) == 4 and len(seeded) == 1
    # The simulation does not change the random state of the process.
    assert (random.random(), np.random.rand()) == expected


def test_a_simulation_restores_the_state_of_the_process(tmp_path: Path) -> None:
    import time

    def state() -> Any:
        return sys.argv, sys.stdout, sys.modules["__main__"], list(sys.path), time.sleep, sys.meta_path[:]

    before = state()
    simulate(script(tmp_path, "comm.recv(source=comm.rank ^ 1)"), 2, check=False)
    simulate(script(tmp_path, "import sys; sys.argv = ['changed']; sys.path.append('x')"), 2)
    assert state() == before


def test_a_simulation_restores_settings_that_ranks_share(tmp_path: Path) -> None:
    def state() -> Any:
        hooks = threading.excepthook, sys.unraisablehook, sys.get_asyncgen_hooks()
        mask = os.umask(0o22)
        os.umask(mask)
        return mask, signal.getsignal(signal.SIGINT), sys.getrecursionlimit(), gc.isenabled(), hooks

    before = state()
    changes = (
        "import gc, os, signal, sys, threading\nos.umask(0o77)\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "sys.setrecursionlimit(4321)\ngc.disable()\nthreading.excepthook = sys.unraisablehook = print\n"
        "comm.Barrier()\n"
    )
    for end in ("", "1 / 0\n", "comm.recv()\n"):
        simulate(script(tmp_path, changes + end), 2, check=False)
        assert state() == before


def test_calls_of_init_and_finalize_are_checked(tmp_path: Path) -> None:
    start = "import mpi4py\nmpi4py.rc.initialize = False\nfrom mpi4py import MPI\n"
    path = tmp_path / "program.py"
    path.write_text(start + "MPI.Init()\nMPI.COMM_WORLD.Barrier()\nMPI.Finalize()\n")
    assert simulate(path, 2).problems == ()
    path.write_text(start + "comm = MPI.COMM_WORLD\nMPI.Init()\ncomm.Barrier()\n")
    report = simulate(path, 2, check=False)
    assert [p.kind for p in report.problems] == ["not_finalized"]
    assert "program.py:5" in report.problems[0].message
    path.write_text("from mpi4py import MPI\nMPI.Finalize()\nMPI.COMM_WORLD.Barrier()\n")
    report = simulate(path, 2, check=False)
    assert [p.kind for p in report.problems] == ["finalized"]


def test_a_simulation_inside_a_simulation_is_refused() -> None:
    report = simulate(lambda comm: simulate(lambda inner: None, 2), 2, check=False)
    assert "inside a simulated program" in report.problems[0].message
