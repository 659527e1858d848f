"""Signals reach the intended process, and files stay while a process may use them."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import run_python

from spmdsim.launcher import give_job_facts
from spmdsim.shutdown import processes
from spmdsim.shutdown.processes import ProcessHandle, can_watch_processes, list_children, make_unreadable

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not can_watch_processes(), reason="needs process descriptors"
)


def test_a_handle_signals_no_other_process_that_gets_the_number(monkeypatch):
    child = os.fork()
    if not child:
        os._exit(0)
    handle = ProcessHandle(child)
    os.waitpid(child, 0)
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("the number may belong to another process"))
    handle.send_signal(signal.SIGKILL)


#: A rank and its supervisor, as a launcher starts them. Write signals that are sent by number after the rank's end.
SUPERVISED = """\
import os, sys
from spmdsim.launch import bootstrap
send_signal, wait, path, ended = os.kill, os.waitpid, sys.argv[1], []
def record_kill(process, number):
    if process in ended:
        with open(path, "a") as file:
            print(process, number, file=file)
    else:
        send_signal(process, number)
def record_wait(process, options):
    result = wait(process, options)
    ended.append(result[0])
    return result
os.kill, os.waitpid = record_kill, record_wait
sys.exit(bootstrap.run_rank(lambda job: 3, "program.py"))
"""


def test_a_supervisor_signals_no_number_after_the_end_of_its_rank(tmp_path):
    facts: dict[str, str] = {}
    give_job_facts(facts, folder=str(tmp_path), starter=str(os.getpid()))
    done = run_python("-c", SUPERVISED, tmp_path / "signals", PMI_RANK="0", PMI_SIZE="1", **facts)
    assert done.returncode == 3 and (tmp_path / "left_0").exists(), done
    assert not (tmp_path / "signals").exists(), (tmp_path / "signals").read_text()


#: The watched process ends while a process that it has forked keeps its end of the pipe open.
ORPHANED = """\
import os, time
from spmdsim.shutdown import phase_watch
from spmdsim.shutdown.processes import ADOPT_ORPHANS, set_process_option
set_process_option(ADOPT_ORPHANS, 1)
if os.fork() == 0:
    parent = os.getpid()
    def work(watched):
        while os.getppid() == parent:
            time.sleep(0.01)
        watched.end_job("the job ends", 2)
    with phase_watch.run_beside(work):
        if os.fork() == 0:
            time.sleep(3)
        os._exit(0)
for _ in range(3):
    os.wait()
print("END")
"""


def test_a_watch_ends_no_process_that_adopts_it():
    done = run_python("-c", ORPHANED)
    assert (done.returncode, done.stdout) == (0, "END\n"), done


def test_memory_stays_while_an_unreadable_process_may_use_it(monkeypatch):
    """The test runs as an ordinary user, because root may read every process."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    monkeypatch.setattr("spmdsim.shutdown.processes.SHARED", folder)
    monkeypatch.setattr("spmdsim.shutdown.processes.YOUNG", -1.0)
    monkeypatch.setattr("spmdsim.shutdown.processes.SETTLED", -1.0)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    folder.chmod(0o777)
    child = os.fork()
    if not child:
        code = 1
        try:
            assert fcntl  # an ordinary user may not be allowed to read the file of this module
            code = check_unreadable_user(folder / "mpich_shm_1")
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    shutil.rmtree(folder)
    assert code == 0


def check_unreadable_user(path: Path) -> int:
    """Return 0 if a segment stays while an unreadable process maps it and is removed later, else 2."""
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    path.write_bytes(b"1" * 100)
    (ready, is_ready), user = os.pipe(), os.fork()
    if not user:
        with path.open("rb") as file, make_unreadable():
            memory = mmap.mmap(file.fileno(), 100, access=mmap.ACCESS_READ)
            assert memory[0] == ord("1")
            os.write(is_ready, b"1")
            signal.pause()
            memory.close()
    os.read(ready, 1)
    try:
        remaining, listed = processes.remove_segments(0.0), processes.find_leftovers()
    finally:
        os.kill(user, signal.SIGKILL)
        os.waitpid(user, 0)
    stays = path.exists() and remaining == [path] and path not in listed
    return 0 if stays and processes.remove_segments(0.0) == [] and not path.exists() else 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_children_of_all_threads_are_listed():
    # The thread of the pool lives until the block ends and has the child in its list.
    with ThreadPoolExecutor(1) as pool:
        child = pool.submit(subprocess.Popen, ["sleep", "60"]).result()
        try:
            assert child.pid in list_children(os.getpid())
        finally:
            child.kill()
            child.wait()
