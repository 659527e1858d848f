"""Correct programs give the right answers, and the same ones as a real MPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from simulate_judging import inside_mpi_job

from spmdsim.simulation import simulate

pytest.importorskip("greenlet")

FOLDER = Path(__file__).parents[1] / "simulate_programs"
PROGRAMS = {
    "ring_all_reduce": (),
    "pi": ("1000",),
    "halo": (),
    "matmul": (),
    "tour": (),
}


def lines_of(name: str, ranks: int, **options: object) -> list[str]:
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
def test_ring(ranks: int) -> None:
    total = sum(range(4 * ranks)) * ranks * (ranks + 1) // 2
    assert lines_of("ring_all_reduce", ranks) == sorted(f"rank {rank}: {total} True" for rank in range(ranks))


@pytest.mark.parametrize("ranks", [1, 3, 64])
def test_pi(ranks: int) -> None:
    assert lines_of("pi", ranks) == ["pi is about 3.141593"]


@pytest.mark.parametrize("ranks", [1, 4, 9])
def test_matmul(ranks: int) -> None:
    lines = lines_of("matmul", ranks)
    assert len(lines) == ranks
    assert all(": True, sum of all " in line for line in lines)


def test_halo_conserves_the_total_between_runs_of_other_orders() -> None:
    assert lines_of("halo", 6) == lines_of("halo", 6, seed=3) == lines_of("halo", 6, seed=4)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_tour_runs_on_any_rank_count(ranks: int) -> None:
    lines = lines_of("tour", ranks)
    assert f"0 SUM: {[sum(10 * r + i for r in range(ranks)) for i in range(3)]}" in lines


def _mpirun() -> str | None:
    beside = Path(sys.executable).parent
    for name in ("mpiexec", "mpirun"):
        if (beside / name).exists():
            return str(beside / name)
    return shutil.which("mpiexec") or shutil.which("mpirun")


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_lines_as_a_real_mpi(name: str) -> None:
    launcher = _mpirun()
    if launcher is None:
        pytest.skip("no mpirun here")
    pytest.importorskip("mpi4py")
    if inside_mpi_job():
        pytest.skip("already inside an MPI job")
    environment = os.environ | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_rmaps_base_oversubscribe": "true",
        "OMPI_MCA_btl": "^ofi,uct",
        "OMPI_MCA_mtl": "^ofi",
        "OPENBLAS_NUM_THREADS": "1",
        "MPIEXEC_TIMEOUT": "90",
    }
    command = [launcher, "-n", "4", sys.executable, str(FOLDER / f"{name}.py"), *PROGRAMS[name]]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=100, env=environment, check=False
        )
    except OSError as error:
        pytest.skip(f"the launcher does not start: {error}")
    if done.returncode and "MPI_Init" in done.stderr:
        pytest.skip("this MPI does not start here")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == lines_of(name, 4)
