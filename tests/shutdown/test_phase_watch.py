"""A watching process names the rank that others wait for while MPI starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from processes import MPIRUN, run_python

from spmdsim.shutdown import phase_watch
from spmdsim.shutdown.processes import ProcessHandle


def without_launcher() -> dict[str, str]:
    """Return variables that make a process look as if no launcher had started it."""
    return {name: "" for name in os.environ if name.startswith(("PMI_", "OMPI_", "PMIX_", "SLURM_"))}


def test_a_process_beside_a_block_stops_with_the_block(tmp_path):
    process_file, unfinished_file = tmp_path / "begun", tmp_path / "name"

    def work(watched: phase_watch.WatchedProcess) -> None:
        unfinished_file.write_text(str(os.getpid()))
        unfinished_file.rename(process_file)
        watched.wait_for_end(3600)

    with phase_watch.run_beside(work):
        while not process_file.exists():
            pass
    with pytest.raises(ProcessLookupError):
        os.kill(int(process_file.read_text()), 0)


def test_a_process_that_has_ended_has_no_stacks():
    """The request ends because the process's end of the pipe is closed."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    handle, (read_end, write_end) = ProcessHandle(child.pid), os.pipe()
    child.wait()
    os.close(write_end)
    answers = []
    watched = phase_watch.WatchedProcess(handle, read_end)
    question = threading.Thread(target=lambda: answers.append(watched.request_stacks(read_end)), daemon=True)
    question.start()
    question.join(30)
    assert answers == [""]
    os.close(read_end)
    handle.close()


PROGRAM = """\
import sys
import spmdsim
from spmdsim.launcher import detect
if detect().rank == 1:
    sys.exit(0)
{start}
print("END")
"""


@pytest.mark.parametrize("start", ["spmdsim.world()", "from mpi4py import MPI"])
def test_a_rank_that_leaves_before_the_others_start_mpi_is_named(start, tmp_path, launcher):
    (tmp_path / "program.py").write_text(PROGRAM.format(start=start))
    done = run_python("-m", "spmdsim", "launch", "-n", 3, tmp_path / "program.py")
    text = done.stdout + done.stderr
    assert done.returncode == phase_watch.CODE and "END" not in text, text
    assert (
        "rank 1 of 3 left the program before it started MPI, where rank" in text
        and " for it, the job ends" in text
    )


def test_a_rank_that_leaves_before_an_import_starts_mpi_is_named_without_a_starter(tmp_path, launcher):
    (tmp_path / "program.py").write_text(PROGRAM.format(start="from mpi4py import MPI"))
    arguments = ("-c", MPIRUN, 3, sys.executable, tmp_path / "program.py")
    done = run_python(*arguments, TMPDIR=str(tmp_path), timeout=120)
    assert done.returncode != 0 and "END" not in done.stdout, done
    # Open MPI's launcher ends the job itself as soon as the rank leaves.
    assert "rank 1 left the program before that, the job ends" in done.stderr or "prterun" in done.stderr, (
        done
    )


#: Rank 1 exits while rank 0 polls for events; rank 0 has loaded mpi4py without starting MPI.
LOADED = """\
import asyncio, sys, time
from spmdsim.launcher import detect
if detect().rank == 1:
    time.sleep(1.5)
    sys.exit(0)
import mpi4py
mpi4py.rc(initialize=False, finalize=False)
from mpi4py import MPI
asyncio.run(asyncio.sleep(4))
print("END")
"""


@pytest.mark.parametrize("starter", ["launch", "mpirun"])
def test_a_rank_that_loads_mpi_and_does_not_start_it_waits_for_no_rank(starter, tmp_path, launcher):
    (tmp_path / "program.py").write_text(LOADED)
    if starter == "launch":
        done = run_python("-m", "spmdsim", "launch", "-n", 2, tmp_path / "program.py")
    else:
        done = run_python("-c", MPIRUN, 2, sys.executable, tmp_path / "program.py", TMPDIR=str(tmp_path))
    assert done.returncode == 0 and done.stdout.strip() == "END", done.stdout + done.stderr


ALONE = """\
import os, signal, sys
import spmdsim
spmdsim.MPIWorld()
with open("/proc/self/maps") as maps:
    print(*(line.split(None, 5)[5].strip() for line in maps if " /dev/shm/" in line), sep="\\n")
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_without_a_launcher_that_is_killed_leaves_no_shared_memory(launcher):
    done = run_python("-c", ALONE, **without_launcher())
    paths = done.stdout.splitlines()
    assert done.returncode == -signal.SIGKILL and paths, done.stderr
    assert not [path for path in paths if os.path.exists(path.removesuffix(" (deleted)"))]
