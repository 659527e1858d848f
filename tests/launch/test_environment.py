"""The launcher's variables are recognised, and settings are made before NumPy and MPI are loaded."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import run_python

from spmdsim.errors import WorldError
from spmdsim.launch import prepare, start
from spmdsim.launch.mpi import count_cores
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


def prepare_environment(ranks: int, ranks_here: int | None = None) -> dict[str, str]:
    """Return what ``prepare`` sets for a rank of Open MPI.

    The job has ``ranks_here`` ranks on this machine; None for all.
    """
    environ = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": str(ranks)}
    environ["OMPI_COMM_WORLD_LOCAL_SIZE"] = str(ranks_here or ranks)
    prepare(environ)
    return environ


#: The variables of all BLAS libraries with the number of threads.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
#: With this variable, waiting ranks of Open MPI yield their core.
YIELD_VARIABLE = "OMPI_MCA_mpi_yield_when_idle"


@pytest.mark.parametrize("ranks, cores, threads", [(4, 8, 2), (8, 2, 1), (3, 8, 2), (1, 8, 8)])
def test_threads_fill_the_cores_once(monkeypatch, ranks, cores, threads):
    monkeypatch.setattr("spmdsim.launch.mpi.count_cores", lambda for_all_ranks=False: cores)
    environ = prepare_environment(ranks)
    assert [environ[name] for name in THREAD_VARIABLES] == [str(threads)] * 5


def test_ranks_that_are_bound_to_a_core_each_know_of_all_of_them(monkeypatch):
    allowed = {0: {3}, 41: {0, 1, 2, 3}, os.getppid(): {2, 3}}
    monkeypatch.setattr(os, "sched_getaffinity", allowed.__getitem__, raising=False)
    monkeypatch.setattr(
        "spmdsim.launch.mpi.Path", lambda path: Path("/nowhere")
    )  # no container's share of time
    monkeypatch.delenv("SPMDSIM_JOB", raising=False)
    assert (count_cores(), count_cores(for_all_ranks=True)) == (1, 2)
    assert YIELD_VARIABLE not in prepare_environment(2)  # each has its own core
    monkeypatch.setenv("SPMDSIM_JOB", '{"launcher": "41"}')
    assert count_cores(for_all_ranks=True) == 4
    assert prepare_environment(2)["OMP_NUM_THREADS"] == "1"
    allowed[0] = {0, 1}
    assert prepare_environment(2)["OMP_NUM_THREADS"] == "2"
    assert YIELD_VARIABLE in prepare_environment(5)


def test_the_users_own_settings_stay():
    environ = {"PMI_RANK": "0", "PMI_SIZE": "64", "MPI_LOCALNRANKS": "64", "OMP_NUM_THREADS": "3"}
    before = dict(environ)
    prepare(environ)
    assert environ == {**before, "MPI4PY_CHECK_MPIEXEC": "0"}


def test_nothing_is_set_outside_a_launcher():
    environ: dict[str, str] = {}
    assert prepare(environ) is None
    assert environ == {}


def test_networks_are_left_alone_where_there_are_several_machines(monkeypatch):
    def settings(ranks: int, cores: int) -> dict[str, str]:
        """Return the settings of Open MPI in a job of which this machine has 8 ranks."""
        monkeypatch.setattr("spmdsim.launch.mpi.count_cores", lambda for_all_ranks=False: cores)
        environ = prepare_environment(ranks, 8)
        return {name: value for name, value in environ.items() if name.startswith("OMPI_MCA_")}

    assert settings(8, 2)["OMPI_MCA_mtl"] == "^ofi"
    assert settings(16, 2) == {YIELD_VARIABLE: "1"}
    assert settings(16, 64) == {}


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
        command = f"srun --mpi={find_slurm_plugin(launcher.vendor)} -n 3"
        assert command in result.stderr or rank > 0


#: Run a command that needs no MPI on a rank. An mpi4py for several MPIs would load the library of a family.
RANK = """\
import sys
from spmdsim import mpi_library
mpi_library.find_binary_interface = lambda: sys.argv[1]
from spmdsim.cli.main import main
sys.exit(main(["layout", "--mesh", "dp=2", "--dims", "dp", "--shape", "4"]))
"""


@pytest.mark.parametrize(
    "family, code, variables",
    [
        ("mpich", 2, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8"}),
        ("openmpi", 2, {"PMI_RANK": "0", "PMI_SIZE": "8"}),
        ("mpich", 0, {"PMI_RANK": "0", "PMI_SIZE": "8"}),
        ("openmpi", 0, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8"}),
        ("openmpi", 0, {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8"}),
        ("openmpi", 0, {"PMI_RANK": "0", "PMI_SIZE": "1"}),
        ("openmpi", 0, {}),
    ],
)
def test_a_launcher_of_another_mpi_is_noticed_before_mpi_starts(family, code, variables):
    result = run_python("-c", RANK, family, **variables)
    assert result.returncode == code, result.stderr
    launcher = "Open MPI" if family == "mpich" else "MPICH"
    message = f"error: the launcher ({launcher}) started 8 ranks, but mpi4py loads"
    assert (message in result.stderr) == (code == 2) and bool(result.stdout) == (code == 0)


@pytest.mark.parametrize("names_pmix, code", [(False, 2), (True, 0)])
def test_ranks_with_pmix_of_an_mpich_without_it_name_the_plugin(names_pmix, code):
    program = f"""\
from spmdsim import mpi_library
mpi_library.find_library = lambda: mpi_library.Library("MPICH", "5.0.2", "5.0", "MPICH", {names_pmix})
{RANK}"""
    variables = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8", "PMIX_NAMESPACE": "slurm.1"}
    result = run_python("-c", program, "mpich", **variables)
    assert result.returncode == code, result.stderr
    message = "error: srun started 8 ranks with PMIx, but MPICH 5.0.2 (MPI 5.0) is built without it: "
    assert (f"{message}start with `srun --mpi=pmi2 -n 8`" in result.stderr) == (code == 2)


@pytest.mark.parametrize("start", ["spmdsim.world()", "from mpi4py import MPI"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_program_with_pmix_of_an_mpich_without_it_ends_before_mpi_starts(start, rank):
    program = f"""\
import spmdsim
from spmdsim import mpi_library
mpi_library.find_binary_interface = lambda: "mpich"
mpi_library.find_library = lambda: mpi_library.Library("MPICH", "5.0.2", "5.0", "MPICH", False)
{start}"""
    variables = {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "8", "PMIX_NAMESPACE": "slurm.1"}
    result = run_python("-c", program, **variables)
    assert result.returncode == 1
    words = "srun started 8 ranks with PMIx, but MPICH 5.0.2 (MPI 5.0) is built without it"
    line = f"-c: error: {words}: start with `srun --mpi=pmi2 -n 8`\n"
    assert result.stderr == ("" if rank else line)


def test_a_plugin_of_another_mpi_is_replaced_in_the_message():
    variables = {"PMI_RANK": "0", "PMI_SIZE": "8", "SLURM_STEP_NUM_TASKS": "8"}
    result = run_python("-c", RANK, "openmpi", **variables)
    assert result.returncode == 2
    assert "would see 8 jobs of one rank: start with `srun --mpi=pmix -n 8`" in result.stderr


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


#: Print the first bytes of a character and the last ones later, and more once a second file exists.
GROWING = """\
import os, time
from pathlib import Path
os.write(1, "caf\u00e9".encode()[:-1])
for name, data in (("go", "\u00e9".encode()[-1:]), ("gone", b"x" * 10**6)):
    while not Path(name).exists():
        time.sleep(0.01)
    os.write(1, data)
"""


@pytest.mark.parametrize("leaves", [False, True])
def test_a_growing_log_is_echoed_whole(tmp_path, leaves):
    """The echo repairs a character that two reads cut, and ends if the reader of stdout leaves."""
    (tmp_path / "program.py").write_text(GROWING, encoding="utf-8")
    words = "-m spmdsim launch -n 1 --world lockstep --log-dir logs program.py"
    paths = os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen(
        [sys.executable, *words.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8"},
    ) as starter:
        assert starter.stdout is not None and starter.stderr is not None
        text_bytes = starter.stdout.read(3)
        (tmp_path / "go").touch()
        text_bytes += starter.stdout.read(2)
        if leaves:
            starter.stdout.close()
        (tmp_path / "gone").touch()
        more = b"" if leaves else starter.stdout.read()
        error = starter.stderr.read()
    assert text_bytes.decode() == "café" and more == (b"" if leaves else b"x" * 10**6)
    assert (starter.returncode, error) == (0, b"")


def test_systems_that_refuse_to_watch_processes(monkeypatch):
    def refuse(_: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    assert not can_watch_processes()
