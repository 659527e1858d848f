"""Correct programs print the right results, and the lines that a real MPI prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from processes import run_python

from spmdsim.simulation import simulate

pytest.importorskip("greenlet")

FOLDER = Path(__file__).parents[1] / "simulate_programs"
PROGRAMS = {
    "ring_all_reduce": (),
    "pi": ("1000",),
    "halo": (),
    "matmul": (),
    "tour": (),
    "spawn": (),
}


def lines_of(name: str, ranks: int, **options: object) -> list[str]:
    """Return the sorted lines that a program of the folder prints; check that it has no problems."""

    report = simulate(
        FOLDER / f"{name}.py",
        ranks,
        *PROGRAMS[name],
        emit=lambda rank, line: None,
        strict=True,
        **options,  # type: ignore[arg-type]
    )
    assert report.ok and not report.problems
    return sorted(line for _, line in report.output)


@pytest.mark.parametrize("ranks", [2, 4, 6, 16])
def test_the_ring_all_reduce_adds_over_all_ranks(ranks: int) -> None:
    total = sum(range(4 * ranks)) * ranks * (ranks + 1) // 2
    assert lines_of("ring_all_reduce", ranks) == sorted(f"rank {rank}: {total} True" for rank in range(ranks))


@pytest.mark.parametrize("ranks", [1, 3, 64])
def test_pi_has_the_right_digits(ranks: int) -> None:
    assert lines_of("pi", ranks) == ["pi is about 3.141593"]


@pytest.mark.parametrize("ranks", [1, 4, 9])
def test_every_block_of_the_product_is_right(ranks: int) -> None:
    lines = lines_of("matmul", ranks)
    assert len(lines) == ranks
    assert all(": True, sum of all " in line for line in lines)


def test_the_halo_program_prints_equal_lines_for_every_order_of_messages() -> None:
    assert lines_of("halo", 6) == lines_of("halo", 6, seed=3) == lines_of("halo", 6, seed=4)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_the_tour_runs_on_any_number_of_ranks(ranks: int) -> None:
    lines = lines_of("tour", ranks)
    assert f"0 SUM: {[sum(10 * r + i for r in range(ranks)) for i in range(3)]}" in lines


#: A script that runs every program in one job. Each rank writes the output of a program to a file.
JOB = """
import runpy, sys
from contextlib import redirect_stdout
from mpi4py import MPI

for name, arguments in {programs!r}.items():
    sys.argv = [f"{folder}/{{name}}.py", *arguments]
    with open(f"{{name}}-{{MPI.COMM_WORLD.rank}}", "w") as file, redirect_stdout(file):
        runpy.run_path(sys.argv[0], run_name="__main__")
    MPI.COMM_WORLD.Barrier()
"""


def test_programs_print_the_lines_that_a_real_mpi_prints(launcher: object, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB.format(programs=PROGRAMS, folder=FOLDER))
    result = run_python("-m", "spmdsim", "launch", "-n", 4, "job.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for name in PROGRAMS:
        texts = [(tmp_path / f"{name}-{rank}").read_text() for rank in range(4)]
        assert sorted("".join(texts).splitlines()) == lines_of(name, 4), name


def test_a_function_may_use_mpi4py_by_name() -> None:
    def program() -> Any:
        from mpi4py import MPI

        return MPI.COMM_WORLD.rank

    assert simulate(program, 3).results == (0, 1, 2)


def test_a_function_gets_its_arguments_after_the_communicator() -> None:
    assert simulate(lambda comm, x, y=1: (comm.rank, x, y), 2, 5).results == ((0, 5, 1), (1, 5, 1))
    assert simulate(lambda x: x, 2, 5).results == (5, 5)
