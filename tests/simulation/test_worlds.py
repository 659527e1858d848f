"""The project's MPI world runs on virtual ranks, like any library that imports mpi4py."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from simulate_judging import inside_mpi_job

from spmdsim.simulation import simulate

pytest.importorskip("greenlet")

PROGRAM = """
import numpy as np
from spmdsim.core import Mesh
from spmdsim.arrays import Tensor
from spmdsim.worlds.mpi.mpi_world import MPIWorld

world = MPIWorld()
mesh = Mesh((2, 2), ("dp", "mp"))
x = np.arange(63.0).reshape(7, 9)
tensor = Tensor.from_global(x, mesh("dp", "mp"), world)
moved = tensor.to(mesh("mp", None)).to(mesh(None, "dp"))
print(world.rank, world.size, np.array_equal(moved.full(), x), moved.local(world.rank).shape)
"""


def test_the_mpi_world_runs_on_virtual_ranks(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    before = sys.modules.get("spmdsim.worlds.mpi.mpi_world")
    functions = os._exit, os.close, os.closerange, os.chdir, threading.excepthook, sys.excepthook
    report = simulate(path, 4, emit=lambda rank, line: None)
    assert functions == (os._exit, os.close, os.closerange, os.chdir, threading.excepthook, sys.excepthook)
    assert sorted(line for _, line in report.output) == [
        f"{rank} 4 True (7, {5 if rank < 2 else 4})" for rank in range(4)
    ]
    # The module that uses the stand-in for mpi4py is removed.
    assert sys.modules.get("spmdsim.worlds.mpi.mpi_world") is before


@pytest.mark.parametrize("missing", [True, False])
def test_mpi4py_is_not_needed(missing: bool, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("from mpi4py import MPI\nprint(MPI.COMM_WORLD.allreduce(1))\n", encoding="utf-8")
    hide = "sys.modules['mpi4py'] = None\n" if missing else "import mpi4py.MPI\n"
    code = (
        f"import sys\n{hide}before = sys.modules['mpi4py']\n"
        f"from spmdsim.simulation import simulate\nsimulate({str(path)!r}, 3)\n"
        "assert sys.modules['mpi4py'] is before\n"
    )
    if not missing:
        pytest.importorskip("mpi4py")
        if inside_mpi_job():
            pytest.skip("already inside an MPI job")
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.stdout.split() == ["3", "3", "3"], done.stderr


def test_a_program_of_this_project_runs_in_one_world_of_virtual_ranks() -> None:
    path = Path(__file__).parents[2] / "examples" / "first_steps.py"
    report = simulate(path, 8, emit=lambda rank, line: None)
    lines = [line for _, line in report.output]
    assert {rank for rank, _ in report.output} == {0} and len(lines) == 5
    assert "compared on 8 ranks with the reference run in one process" in lines[2]
    assert all(report.messages), "each rank sends messages"
    report = simulate(path, 4, emit=lambda rank, line: None, check=False)
    assert "8 ranks were asked for, but the simulation has 4" in report.errors[0].message
