"""The launcher's variables are recognised, and settings are made before NumPy and MPI are loaded."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spmdsim.errors import WorldError
from spmdsim.launch import mpi, prepare, start
from spmdsim.launch.logs import echo_file
from spmdsim.launch.mpi import choose_mpi_settings, count_blas_threads, find_library
from spmdsim.launcher import Launched, detect, find_slurm_plugin
from spmdsim.shutdown.phase_watch import check_size
from spmdsim.shutdown.processes import can_watch_processes


@pytest.mark.parametrize(
    "variables, expected",
    [
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
                "PMIX_RANK": "3",
            },
            Launched("Open MPI", 3, 8, 4),
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}, Launched("MPICH", 0, 2, 2)),
        (
            {
                "SLURM_PROCID": "5",
                "SLURM_STEP_NUM_TASKS": "6",
                "SLURM_NTASKS": "6",
                "SLURM_STEP_TASKS_PER_NODE": "3(x2)",
            },
            Launched("Slurm", 5, 6, 3),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "6", "SLURM_JOB_ID": "1"}, None),  # a batch script
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),  # an interactive shell
        ({}, None),
    ],
)
def test_launchers_are_recognised(variables, expected):
    assert detect(variables) == expected


def test_threads_fill_the_cores_once(monkeypatch):
    monkeypatch.setattr(mpi, "count_cores", lambda for_all_ranks=False: 8)
    ranks = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    environ = dict(ranks)
    prepare(environ)
    assert {environ[name] for name in mpi.THREAD_VARIABLES} == {"2"}
    assert [count_blas_threads(8, 2), count_blas_threads(3, 8), count_blas_threads(1, 8)] == [1, 2, 8]


def test_ranks_that_are_bound_to_a_core_each_know_of_all_of_them(monkeypatch):
    allowed = {0: {3}, 41: {0, 1, 2, 3}, os.getppid(): {2, 3}}
    monkeypatch.setattr(os, "sched_getaffinity", allowed.__getitem__, raising=False)
    monkeypatch.setattr(mpi, "Path", lambda path: Path("/nowhere"))  # no container's share of time
    monkeypatch.delenv("SPMDSIM_JOB", raising=False)
    assert (mpi.count_cores(), mpi.count_cores(for_all_ranks=True)) == (1, 2)
    job = Launched("Open MPI", 0, 2, 2)
    assert mpi.YIELD_VARIABLE not in prepare_environment(job)  # each has its own core
    monkeypatch.setenv("SPMDSIM_JOB", '{"launcher": "41"}')
    assert mpi.count_cores(for_all_ranks=True) == 4
    assert prepare_environment(job)["OMP_NUM_THREADS"] == "1"
    allowed[0] = {0, 1}
    assert prepare_environment(job)["OMP_NUM_THREADS"] == "2"
    assert mpi.YIELD_VARIABLE in prepare_environment(Launched("Open MPI", 0, 5, 5))


def prepare_environment(job: Launched) -> dict[str, str]:
    """Return what ``prepare`` sets for a rank of Open MPI."""
    environ = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": str(job.size)}
    environ["OMPI_COMM_WORLD_LOCAL_SIZE"] = str(job.local_size)
    prepare(environ)
    return environ


def test_the_users_own_settings_stay():
    environ = {"PMI_RANK": "0", "PMI_SIZE": "64", "MPI_LOCALNRANKS": "64", "OMP_NUM_THREADS": "3"}
    before = dict(environ)
    prepare(environ)
    assert environ == {**before, "MPI4PY_CHECK_MPIEXEC": "0"}


def test_nothing_is_set_outside_a_launcher():
    environ: dict[str, str] = {}
    assert prepare(environ) is None
    assert environ == {}


def test_networks_are_left_alone_where_there_are_several_machines():
    one = choose_mpi_settings(Launched("Open MPI", 0, 8, 8), 2)
    several = choose_mpi_settings(Launched("Open MPI", 0, 16, 8), 2)
    assert one["OMPI_MCA_mtl"] == "^ofi"
    assert several == {"OMPI_MCA_mpi_yield_when_idle": "1"}
    assert choose_mpi_settings(Launched("Open MPI", 0, 16, 8), 64) == {}


def test_a_launcher_of_another_mpi_is_noticed():
    check_size(8, "Open MPI", Launched("Open MPI", 0, 8, 8))
    check_size(1, "Open MPI", None)
    with pytest.raises(WorldError, match=r"MPICH\) started 8 ranks, but MPI \(Open MPI.* sees 1"):
        check_size(1, "Open MPI", Launched("MPICH", 2, 8, 8))


@pytest.mark.parametrize(
    "program, code",
    [
        (["-c", "import spmdsim; spmdsim.world()"], 1),
        (["-c", "import spmdsim; spmdsim.MPIWorld()"], 1),
        (["-m", "spmdsim", "run", "--only", "linear"], 2),
    ],
)
def test_ranks_of_srun_that_do_not_see_each_other(launcher, program, code):
    """The plugin of ``srun`` is missing: each rank is alone in MPI. The first rank names the plugin."""
    prefixes = "OMPI_", "PMIX_", "PMI_", "PRTE_", "SPMDSIM_JOB"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    environment |= {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "3"}
    for rank in (0, 2):
        result = subprocess.run(
            [sys.executable, *program],
            env=environment | {"SLURM_PROCID": str(rank)},
            capture_output=True,
            text=True,
        )
        assert (result.returncode, result.stdout) == (code, "")
        assert result.stderr.count("\n") == (rank == 0), result.stderr
        command = f"srun --mpi={find_slurm_plugin(find_library().vendor)} -n 3"
        assert command in result.stderr or rank > 0


@pytest.mark.parametrize("launcher, family", [("Open MPI", "mpich"), ("MPICH", "openmpi")])
def test_a_launcher_of_another_mpi_is_noticed_before_mpi_starts(monkeypatch, launcher, family):
    monkeypatch.setattr(mpi, "find_binary_interface", lambda: family)
    with pytest.raises(WorldError, match=rf"launcher \({launcher}\) started 8 ranks, but mpi4py loads"):
        mpi.check_launcher(Launched(launcher, 0, 8, 8))
    mpi.check_launcher(Launched({"mpich": "MPICH", "openmpi": "Open MPI"}[family], 0, 8, 8))
    mpi.check_launcher(Launched("Slurm", 0, 8, 8))
    mpi.check_launcher(None)


def test_a_rank_starts_no_ranks(monkeypatch):
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(WorldError, match="already"):
        start(2, [sys.executable, "-c", ""])


def test_the_command_line_starts_without_numpy_and_mpi():
    code = (
        "import sys; from spmdsim.cli.main import main\n"
        "try: main(['--help'])\n"
        "finally: print(sorted({'numpy', 'mpi4py', 'rich'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "usage: spmdsim" in result.stdout
    assert result.stdout.endswith("[]\n")


def test_ranks_without_mpi4py_say_what_to_install():
    code = "import sys; sys.modules['mpi4py'] = None; import spmdsim; spmdsim.world()"
    ranks = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **ranks}
    )
    assert result.returncode != 0
    assert re.search(r"started 2 ranks, but mpi4py cannot be loaded .* pip install mpi4py", result.stderr)


def test_a_growing_log_is_echoed_whole(tmp_path, monkeypatch):
    """The echo repairs a character that two reads cut, and ends if the reader of stdout leaves."""
    log, stop, stream = tmp_path / "worker_0.log", threading.Event(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    text_bytes = "café".encode()
    log.write_bytes(text_bytes[:-1])
    echo = threading.Thread(target=echo_file, args=(log, stop))
    echo.start()
    while not stream.getvalue():
        stop.wait(0.01)
    with log.open("ab") as file:
        file.write(text_bytes[-1:])
    stop.set()
    echo.join()
    assert stream.getvalue() == "café"

    def leave(_: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(stream, "write", leave)
    echo_file(log, stop)


def test_systems_that_refuse_to_watch_processes(monkeypatch):
    def refuse(_: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    assert not can_watch_processes()
