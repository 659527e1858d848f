"""A job whose starter, launcher or rank is killed leaves no process, folder or shared memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest
from processes import hear_ctrl_c, parent_of, waited_for

from spmdsim.cli.main import main
from spmdsim.launch import diagnosis
from spmdsim.launcher import JOB_VARIABLE
from spmdsim.shutdown import processes

pytestmark = pytest.mark.usefixtures("launcher")

PROGRAM = """\
import sys, time
from mpi4py import MPI
from spmdsim import world
world().barrier()
if world().rank == 0:
    print("ready", flush=True)
time.sleep(600)
"""


def processes_with(word: str) -> dict[int, str]:
    """Return the processes whose command line contains a word, with their command lines."""
    commands = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line and int(path.parent.name) != os.getpid():
            commands[int(path.parent.name)] = line
    return commands


def variable(process: int, name: str) -> str:
    """Return a variable of another process's environment."""
    text = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return next(line.partition(b"=")[2].decode() for line in text if line.startswith(name.encode() + b"="))


def segments(word: str) -> set[Path]:
    """Return the shared memory of a job: the files that its ranks have mapped."""
    paths = set()
    for process in processes_with(word):
        lines = Path(f"/proc/{process}/maps").read_text().splitlines()
        paths |= {Path(line.split()[-1]) for line in lines if " /dev/shm/" in line}
    return {path for path in paths if path.exists()}


@pytest.fixture
def job(tmp_path):
    """Yield the starter of a running job of two ranks, and a word in the command line of each process."""
    script, word = tmp_path / "program.py", uuid.uuid4().hex
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "spmdsim", "launch", "-n", "2", script, word]
    paths = os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,
        preexec_fn=hear_ctrl_c,
    ) as starter:
        try:
            assert starter.stdout is not None and starter.stdout.readline() == "ready\n"
            shared = segments(word)
            yield starter, word
        finally:
            starter.kill()
    for process in processes_with(word):
        os.kill(process, signal.SIGKILL)
    assert waited_for(lambda: not any(path.exists() for path in shared)), shared


def is_gone(word: str) -> bool:
    return waited_for(lambda: not processes_with(word))


def folder_of(job) -> Path:
    """Return the folder into which the ranks write notes."""
    starter, word = job
    ranks = {
        process: line
        for process, line in processes_with(word).items()
        if "bootstrap" in line.split(" -m ")[-1]
    }
    rank = max(process for process in ranks if process != starter.pid)
    folder = Path(json.loads(variable(rank, JOB_VARIABLE))["folder"])
    assert folder.is_dir()
    return folder


def launcher_of(job) -> int:
    """Return the number of the MPI launcher's process."""
    starter, word = job
    commands = {
        process: line for process, line in processes_with(word).items() if parent_of(process) == starter.pid
    }
    (launcher,) = [process for process, line in commands.items() if "spmdsim launch" not in line]
    return launcher


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda kind: kind.name)
def test_the_starter_is_killed(job, kind):
    starter, word = job
    folder = folder_of(job)
    starter.send_signal(kind)
    assert is_gone(word)
    assert waited_for(lambda: not folder.exists())
    output = starter.stderr.read()
    if kind == signal.SIGKILL:
        assert starter.wait() == -kind and "before it started MPI" not in output
    else:
        assert starter.wait() == 128 + kind
        if kind == signal.SIGTERM:
            assert output == "spmdsim launch: ended by SIGTERM, with all ranks\n"
        assert output.splitlines()[-1] == "interrupted" or kind == signal.SIGTERM
        assert output.count("the job ends") <= 1  # said by a rank, if its launcher tells it


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT], ids=lambda kind: kind.name)
def test_failures_after_the_end_of_the_job_are_not_its_cause(tmp_path, kind):
    script = tmp_path / "program.py"
    script.write_text(
        "import os, signal\n"
        + PROGRAM.replace("time.sleep", "signal.signal(signal.SIGTERM, lambda *_: os._exit(14))\ntime.sleep")
    )
    words = ["launch", "-n", "2", "--log-dir", tmp_path / "logs", script]
    with subprocess.Popen(
        [sys.executable, "-m", "spmdsim", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_ctrl_c,
    ) as starter:
        try:
            assert starter.stdout is not None and starter.stdout.readline() == "ready\n"
            starter.send_signal(kind)
            _, error = starter.communicate(timeout=60)
        finally:
            starter.kill()
    assert starter.returncode == 128 + kind
    assert error.splitlines() == [
        "interrupted" if kind == signal.SIGINT else "spmdsim launch: ended by SIGTERM, with all ranks"
    ]


def test_the_launcher_of_mpi_is_killed(job):
    starter, word = job
    folder, launcher = folder_of(job), launcher_of(job)
    os.kill(launcher, signal.SIGKILL)
    assert is_gone(word)
    assert starter.wait() != 0 and "was killed by signal 9 (SIGKILL" in starter.stderr.read()
    assert not folder.exists()
    # Open MPI starts no launcher that happens to get the number of one whose files are left.
    assert not list(Path(tempfile.gettempdir()).glob(f"ompi.{launcher}*"))


def test_a_launcher_that_does_not_answer_ends_with_its_starter(job):
    starter, word = job
    folder, launcher = folder_of(job), launcher_of(job)
    os.kill(launcher, signal.SIGSTOP)
    starter.kill()
    assert is_gone(word) and waited_for(lambda: not folder.exists())
    assert not list(Path(tempfile.gettempdir()).glob(f"ompi.{launcher}*"))


def test_a_rank_that_is_stopped_goes_with_the_others(job):
    starter, word = job
    folder = folder_of(job)
    for process in processes_with(word):
        if parent_of(process) != starter.pid and process != starter.pid:
            os.kill(process, signal.SIGSTOP)
    starter.send_signal(signal.SIGTERM)
    assert is_gone(word) and waited_for(lambda: not folder.exists())


def find_leftovers_in_doctor(capsys: pytest.CaptureFixture[str]) -> dict[str, str] | None:
    """Return the finding of ``spmdsim doctor`` about files of killed jobs, or None."""
    main(["doctor", "--no-trial", "--json"])
    findings = {finding["about"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    return findings.get("left behind")


def test_what_killed_jobs_left_is_told_and_removed(tmp_path, monkeypatch, capsys):
    """Files that a running job may need stay, and so do young files and files of other programs."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    stale, running = tmp_path / f"ompi.{gone.pid}", tmp_path / f"ompi.{os.getpid()}"
    others = [tmp_path / f"ompi.host.{gone.pid}", tmp_path / f"other.{gone.pid}", running]
    segments = [tmp_path / name for name in ("sm_segment.host.0.1", "mpich_shm_2", "mine")]
    for folder in (stale, *others):
        folder.mkdir()
        (folder / "contact").write_text("")
    monkeypatch.setattr("spmdsim.shutdown.processes.SHARED", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for path in segments:
        path.write_bytes(b"1" * 100)
    finding = find_leftovers_in_doctor(capsys)
    assert finding is not None and finding["found"].startswith("1 file of jobs that were killed")
    assert diagnosis.clean().observed == "1 file of jobs that were killed removed"
    assert not stale.exists() and all(
        path.exists() for path in (*others, *segments)
    )  # all segments are young
    stale.mkdir()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 700)
    assert set(processes.find_leftovers()) == {stale, *segments[:2]}
    finding = find_leftovers_in_doctor(capsys)
    assert finding is not None and finding["found"].startswith("3 files of jobs that were killed")
    assert finding["state"] == "note" and "spmdsim doctor --clean removes them" in finding["advice"]
    assert diagnosis.clean().observed == "3 files of jobs that were killed removed"
    assert not stale.exists() and not any(path.exists() for path in segments[:2])
    assert all(path.exists() for path in (*others, *segments[2:]))
    assert find_leftovers_in_doctor(capsys) is None


def test_what_cannot_be_removed_is_not_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("spmdsim.shutdown.processes.SHARED", tmp_path)
    monkeypatch.setattr("spmdsim.shutdown.processes.SETTLED", -1.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stuck = tmp_path / "mpich_shm_stuck"
    for path in (tmp_path / "mpich_shm_1", stuck):
        path.touch()
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == stuck:
            raise PermissionError(path)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    cleaned = diagnosis.clean()
    assert cleaned.state == "warning" and cleaned.observed.startswith(
        "1 file of jobs that were killed removed"
    )
    assert str(stuck) in cleaned.observed
