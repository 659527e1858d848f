"""Run a case as a job, and judge it: the named rank, the time to the end, and what it left behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from processes import hear_ctrl_c

from faults.case import DEADLINE, LAUNCH, RANKS, Case
from spmdsim.launch.mpi import find_launcher

ROOT = Path(__file__).resolve().parents[2]
#: In the environment of every process of a job: which job it is.
MARK = "FAULTS_JOB"
#: Seconds from the start of a job in which its ranks must have come to the fault.
START = 180.0
#: Seconds after the time allowed until a job is ended from outside.
GRACE = 15.0
#: Seconds that processes of a job may take to go once its launcher has ended.
LINGER = 2.0
#: Characters of the output that are kept with a result.
KEPT = 3000

#: The judgements of a run with a fault, worst first, and those of one without.
NOT_ENDED, SILENT, LATE, LEFT, UNNAMED, NAMED = (
    "not ended",
    "silent",
    "late",
    "left something",
    "not named",
    "named",
)
RIGHT, ACCUSED = "right", "wrongly accused"
GOOD = (NAMED, RIGHT)


@dataclass
class Result:
    """The outcome of one run.

    Attributes:
        case: the name of the case.
        kind: its row in the summary.
        mpi: the library's vendor.
        way: how it was started.
        outcome: the judgement.
        seconds: the time from the fault to the end.
        code: the exit code; None if the job had to be killed.
        missing: expected texts that were not printed, and forbidden ones that were.
        left: processes, shared memory and temporary files that outlived the job.
        output: the beginning of what the job printed.
    """

    case: str
    kind: str
    mpi: str
    way: str
    outcome: str
    seconds: float
    code: int | None
    missing: list[str]
    left: list[str]
    output: str

    def to_dict(self) -> dict[str, object]:
        """Return the result as a dict for a line of JSON."""
        return asdict(self)


@cache
def launcher() -> Any:
    """Return the launcher of the MPI in use, which is searched once."""
    return find_launcher()


def command(case: Case, way: str, program: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts the job, and the variables that its launcher needs."""
    if way == LAUNCH:
        return [sys.executable, "-m", "spmdsim", "launch", *case.options, "-n", str(RANKS), str(program)], {}
    starter = launcher()
    return [*starter.make_command(RANKS, True), sys.executable, str(program)], starter.choose_variables()


def environment(folder: Path, mark: str) -> dict[str, str]:
    """Return this process's variables without those of another job, with a folder for temporary files."""
    foreign = ("OMPI_", "PMI", "PRTE", "HYDRA", "MPI", "SPMDSIM_", "PYTEST")
    variables = {name: text for name, text in os.environ.items() if not name.startswith(foreign)}
    return variables | {
        "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
        "SPMDSIM_DEADLINE": str(DEADLINE), MARK: mark,
    }  # fmt: skip


def run(case: Case, way: str) -> Result:
    """Run a case to its end, or kill it, and judge it."""
    folder, mark = Path(tempfile.mkdtemp(prefix="f-", dir="/tmp")), uuid.uuid4().hex
    try:
        return _run(case, way, folder, mark)
    finally:
        for pid in processes(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def _run(case: Case, way: str, folder: Path, mark: str) -> Result:
    """Run a case in a folder, with a variable that marks its processes, and judge it."""
    program, output = folder / "program.py", folder / "output.txt"
    program.write_text(case.program(way), encoding="utf-8")
    (folder / "tmp").mkdir()
    argv, needed = command(case, way, program)
    variables = environment(folder, mark) | needed | case.variables
    with output.open("wb") as out:
        job = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=folder, env=variables,
            start_new_session=True, preexec_fn=hear_ctrl_c,
        )  # fmt: skip
    code, seconds = _wait(job, case, folder)
    left = [] if code is None else _left(mark, folder)
    text = output.read_text(encoding="utf-8", errors="replace")
    missing = [one for one in case.expected(way) if not re.search(one, text)]
    missing += [f"said: {one}" for one in case.never if re.search(one, text)]
    if case.after:
        variables[MARK] = "after"
        after = subprocess.run(
            [sys.executable, "-c", case.after, str(folder)],
            env=variables,
            capture_output=True,
            text=True,
            cwd=folder,
        )
        missing += (after.stdout + after.stderr).strip().splitlines()[-1:]
    if not case.fails:
        missing += [f"END {rank}" for rank in range(RANKS) if f"END {rank}" not in text]
    outcome = judge(case, code, seconds, missing, left)
    return Result(
        case.name,
        case.kind,
        launcher().vendor,
        way,
        outcome,
        round(seconds, 1),
        code,
        missing,
        left,
        text[:KEPT],
    )


def judge(case: Case, code: int | None, seconds: float, missing: list[str], left: list[str]) -> str:
    """Return the judgement in a word or two."""
    if code is None:
        return NOT_ENDED
    if not case.fails:
        return RIGHT if code == 0 and not missing and not left else ACCUSED if code or missing else LEFT
    if code == 0:
        return SILENT
    if left:
        return LEFT
    if missing:
        return UNNAMED
    return LATE if seconds > case.seconds else NAMED


def _wait(job: subprocess.Popen[bytes], case: Case, folder: Path) -> tuple[int | None, float]:
    """Return the exit code (None if the job did not end in time) and the seconds since the fault."""
    started, began = time.time(), None
    sent = case.signal is None
    while job.poll() is None:
        now = time.time()
        notes = list(folder.glob("begins-*"))
        if began is None and notes:
            began = min(note.stat().st_mtime for note in notes)
        if not sent and len(notes) == RANKS:
            time.sleep(0.3)
            began, sent = time.time(), True
            job.send_signal(case.signal or 0)
        if now > (started + START if began is None else began + case.seconds + GRACE):
            return None, now - (began or started)
        time.sleep(0.03)
    if began is None:
        began = min((note.stat().st_mtime for note in folder.glob("begins-*")), default=started)
    return job.returncode, time.time() - began


def processes(mark: str) -> list[int]:
    """Return the processes of a job that still run."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if (
                f"{MARK}={mark}".encode() in path.read_bytes()
                and "zombie" not in (path.parent / "status").read_text()
            ):
                pids.append(int(path.parent.name))
    return pids


def _left(mark: str, folder: Path) -> list[str]:
    """Return what outlived the job: processes, shared memory that its ranks had mapped, temporary files."""
    end = time.time() + LINGER
    while (pids := processes(mark)) and time.time() < end:
        time.sleep(0.1)
    left = [f"process {pid}: {_command_line(pid)}" for pid in pids]
    shared = {line for note in folder.glob("begins-*") for line in note.read_text().splitlines()}
    left += [path for path in sorted(shared) if "(deleted)" not in path and Path(path).exists()]
    for path in shared:  # the next jobs shall find an empty house
        if "(deleted)" not in path:
            with suppress(OSError):
                os.remove(path)
    return left + [f"temporary {path.name}" for path in sorted((folder / "tmp").iterdir())]


def _command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    return "?"
