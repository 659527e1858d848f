"""Jobs of PBS on several hosts: the hosts of the job, deleted jobs, and job scripts with a time limit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from batch_jobs import HOSTS, LAUNCH, ROOT, WAITING, find_processes, read_hosts
from processes import waited_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not shutil.which("qsub"), reason="no PBS: scripts/cluster.sh --pbs FOLDER"),
]


@pytest.fixture
def submit(shared_folder, run_command) -> Iterator[Callable[[str, int, int], str]]:
    """Submits a command as a job of PBS, and deletes all jobs at the end. Its output is in ``output.txt``."""

    def run(command: str, hosts: int, ranks: int) -> str:
        """Submit a command on so many hosts with so many tasks each, and return the name of the job."""
        script = f'cd "$PBS_O_WORKDIR"; exec >output.txt 2>&1; {command}\n'
        (shared_folder / "job.sh").write_text(script)
        select = f"select={hosts}:ncpus={ranks}:mpiprocs={ranks}"
        return run_command(
            ["qsub", "-V", "-joe", "-l", select, "-l", "place=scatter", "job.sh"]
        ).stdout.strip()

    yield run
    delete_jobs()


def list_jobs() -> list[str]:
    """Return the names of the jobs that wait or run."""
    return subprocess.run(["qselect"], capture_output=True, text=True, check=True).stdout.split()


def delete_jobs() -> None:
    """Delete all jobs, also a job that another one submits meanwhile, and wait until none is left."""

    def delete() -> bool:
        jobs = list_jobs()
        subprocess.run(["qdel", *jobs], capture_output=True, check=False) if jobs else None
        return not jobs

    assert waited_for(delete)


@pytest.mark.parametrize("hosts", [2, 4])
def test_launch_starts_a_rank_per_task_on_the_hosts_of_the_job(submit, program, hosts):
    submit(" ".join([*LAUNCH, str(program)]), hosts, 2)
    assert waited_for(lambda: not list_jobs(), tries=1200)
    output = (program.parent / "output.txt").read_text()
    assert f"{2 * hosts} ranks, as PBS_NODEFILE says" in output
    assert read_hosts(output) == [host for host in HOSTS[:hosts] for _ in range(2)]


def test_commands_start_ranks_on_the_hosts_of_the_job(submit, shared_folder):
    submit(f"{sys.executable} -m spmdsim run -n 4 --only linear --mesh dp=2,tp=2", 2, 2)
    assert waited_for(lambda: not list_jobs(), tries=1200)
    output = (shared_folder / "output.txt").read_text()
    assert "6 of 6 cases hold" in output and "nodes: node1: ranks 0, 1; node2: ranks 2, 3" in output


def test_a_deleted_job_leaves_no_process(submit, shared_folder):
    (shared_folder / "waiting.py").write_text(WAITING)
    submit(" ".join([*LAUNCH, "waiting.py"]), 4, 2)
    output = shared_folder / "output.txt"
    assert waited_for(lambda: output.exists() and output.read_text().count("ready") == 8), output.read_text()
    delete_jobs()
    assert waited_for(lambda: not find_processes()), find_processes()


def test_a_job_script_saves_before_its_time_limit_and_the_next_job_resumes(
    shared_folder, run_command, launcher
):
    name = "pbs_openmpi.sh" if launcher.vendor == "Open MPI" else "pbs_mpich.sh"
    script = shared_folder / "examples" / "cluster" / name
    shutil.copytree(ROOT / "examples" / "cluster", script.parent)
    (shared_folder / ".venv-system").symlink_to(sys.prefix)
    text = script.read_text()
    for old, new in {
        "ncpus=4:mpiprocs=4": "ncpus=2:mpiprocs=2 -l place=scatter",
        "57m": "1m",
        '"$@"': "--steps 100000000 --every 100000000",
        "set -euo pipefail": f"set -euo pipefail\nexport PYTHONPATH={os.pathsep.join(filter(None, sys.path))}",
        'cd "$PBS_O_WORKDIR"': 'cd "$PBS_O_WORKDIR"; exec >>output.txt 2>&1',
    }.items():
        assert old in text
        text = text.replace(old, new)
    script.write_text(text)
    run_command(["qsub", f"examples/cluster/{name}"])
    output, resumed = shared_folder / "output.txt", r"; [1-9]\d* steps are done"
    try:
        assert waited_for(lambda: output.exists() and re.search(resumed, output.read_text()), tries=3600), (
            output.read_text()
        )
    finally:
        delete_jobs()
    saved = re.findall(r"^(\d+) steps, loss .*, saved$", output.read_text(), re.M)
    assert f"; {saved[0]} steps are done" in output.read_text()
    assert waited_for(lambda: not find_processes()), find_processes()
