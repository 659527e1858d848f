"""Jobs of Slurm on several hosts: launchers, plugins of srun, cancelled jobs, and job scripts with a time limit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
from batch_jobs import LAUNCH, ROOT, WAITING, find_processes, read_hosts
from processes import waited_for

from spmdsim.launcher import find_slurm_plugin
from spmdsim.mpi_library import FAMILIES

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not shutil.which("sbatch"), reason="no Slurm: scripts/cluster.sh --slurm"),
]


def read_job_states(job: str) -> str:
    """Return the state of a job, such as RUNNING; an empty text if Slurm has forgotten it."""
    shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True).stdout
    state = re.search(r"JobState=(\w+)", shown)
    return state[1] if state else ""


def test_launch_takes_the_hosts_of_the_job(run_command, program):
    everywhere = ["salloc", "-Q", "-N4", "--ntasks-per-node=2"]
    result = run_command([*everywhere, *LAUNCH, "-n", "8", str(program)])
    assert result.returncode == 0, result.stderr
    assert sorted(read_hosts(result.stdout)) == [f"node{number}" for number in (1, 1, 2, 2, 3, 3, 4, 4)]


def test_launch_starts_a_rank_per_task_in_a_job_script(run_command, program):
    command = " ".join([*LAUNCH, str(program)])
    result = run_command(["sbatch", "--wait", "-N2", "-n3", "-o", "output.txt", "--wrap", command])
    output = (program.parent / "output.txt").read_text()
    assert result.returncode == 0, output
    assert "3 ranks, as SLURM_NTASKS says" in output
    assert set(read_hosts(output)) == {"node1", "node2"}


def test_launch_calls_srun_if_there_is_no_mpirun(run_command, program, launcher):
    """A Python without MPI's launcher beside it loads the library of this one."""
    folder = program.parent / "venv"
    assert run_command([sys.executable, "-m", "venv", "--without-pip", str(folder)]).returncode == 0
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "all.pth").write_text("\n".join(path for path in sys.path if path))
    variables = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": f"{sys.prefix}/lib"}
    variables["MPI4PY_MPIABI"] = FAMILIES[launcher.vendor]
    command = [str(folder / "bin" / "python"), "-m", "spmdsim", "launch", "-n", "4", str(program)]
    result = run_command(["salloc", "-Q", "-N2", "--ntasks-per-node=2", *command], **variables)
    assert result.returncode == 0, result.stderr
    assert sorted(read_hosts(result.stdout)) == ["node1", "node1", "node2", "node2"]


def test_srun_with_the_plugin_of_the_mpi(run_command, program, launcher):
    srun = ["srun", "-N2", "-n4", f"--mpi={find_slurm_plugin(launcher.vendor)}"]
    result = run_command([*srun, sys.executable, str(program)])
    assert result.returncode == 0, result.stderr
    assert set(read_hosts(result.stdout)) == {"node1", "node2"}


def test_srun_with_another_plugin_names_the_right_one(run_command, program, launcher):
    for plugin in ("none", "pmi2" if launcher.vendor == "Open MPI" else "pmix"):
        result = run_command(["srun", "-N2", "-n4", f"--mpi={plugin}", sys.executable, str(program)])
        assert result.returncode != 0
        lines = [line for line in result.stderr.splitlines() if line.startswith("places.py: error: ")]
        assert len(lines) == 1, result.stderr
        assert lines[0].endswith(f"start with `srun --mpi={find_slurm_plugin(launcher.vendor)} -n 4`")
        assert "Traceback" not in result.stderr


def test_commands_with_pmix_name_the_plugin_of_mpich(run_command, launcher):
    command = [sys.executable, "-m", "spmdsim", "run", "--only", "linear", "--mesh", "dp=2,tp=2"]
    result = run_command(["srun", "-N2", "-n4", "--mpi=pmix", *command])
    words = "error: srun started 4 ranks with PMIx, but MPICH"
    assert result.stderr.count(words) == (launcher.vendor == "MPICH"), result.stderr
    assert (result.returncode == 0) == (launcher.vendor == "Open MPI")


@pytest.mark.parametrize("start", ["launch", "srun"])
def test_a_cancelled_job_leaves_no_process(run_command, shared_folder, launcher, start):
    (shared_folder / "waiting.py").write_text(WAITING)
    words = (
        LAUNCH
        if start == "launch"
        else ["srun", f"--mpi={find_slurm_plugin(launcher.vendor)}", sys.executable]
    )
    command = " ".join([*words, "waiting.py"])
    job = run_command(
        ["sbatch", "--parsable", "-N2", "--ntasks-per-node=2", "-o", "output.txt", "--wrap", command]
    ).stdout.strip()
    output = shared_folder / "output.txt"
    try:
        assert waited_for(lambda: output.exists() and output.read_text().count("ready") == 4), (
            output.read_text()
        )
    finally:
        run_command(["scancel", job])
    assert waited_for(lambda: read_job_states(job) in ("CANCELLED", ""))
    assert find_processes() == []


def test_a_job_script_saves_before_its_time_limit_and_the_next_job_resumes(
    run_command, shared_folder, launcher
):
    """Slurm sends the signal one to two minutes after the start. The requeued job starts 21 s later."""
    name = "slurm_openmpi.sh" if launcher.vendor == "Open MPI" else "slurm_mpich.sh"
    (shared_folder / "examples").symlink_to(ROOT / "examples")
    (shared_folder / ".venv-system").symlink_to(sys.prefix)
    options = ["--parsable", "--time=3", "--signal=USR1@60", "--ntasks-per-node=2", "-o", "output.txt"]
    words = [f"examples/cluster/{name}", "--steps", "100000000", "--every", "100000000"]
    job = run_command(
        ["sbatch", *options, *words], PYTHONPATH=os.pathsep.join(filter(None, sys.path))
    ).stdout.strip()
    output = shared_folder / "output.txt"
    try:
        is_requeued = waited_for(lambda: read_job_states(job) == "PENDING" and output.exists(), tries=1600)
        assert is_requeued, output.read_text()
        saved = re.findall(r"^(\d+) steps, loss .*, saved$", output.read_text(), re.M)
        assert len(saved) == 1, output.read_text()
        resumed = f"; {saved[0]} steps are done"
        assert waited_for(lambda: resumed in output.read_text(), tries=3600), output.read_text()
    finally:
        run_command(["scancel", job])
    assert waited_for(lambda: read_job_states(job) in ("CANCELLED", ""))
