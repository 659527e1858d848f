"""Helpers start processes that find the package on the path of this process, installed or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

#: Program text: start a command on N ranks by the MPI launcher alone, without a starter. Arguments: N, the command.
MPIRUN = """\
import os, subprocess, sys
from spmdsim.launch.mpi import find_launcher
mpirun = find_launcher()
command = [*mpirun.make_command(int(sys.argv[1]), oversubscribe=True), *sys.argv[2:]]
sys.exit(subprocess.run(command, env={**os.environ, **mpirun.choose_variables()}).returncode)
"""


def hear_ctrl_c() -> None:
    """Let Ctrl-C stop this new process, because a shell's background processes ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_python(
    *arguments: object, cwd: Path | None = None, timeout: float = 600, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run this Python and return its output and its exit code.

    Args:
        arguments: the command line of Python.
        cwd: the working folder; None for the current one.
        timeout: seconds until the process and its children are stopped.
        variables: environment variables, in addition to the variables of this process.

    Raises:
        TimeoutExpired: If the process runs longer than ``timeout``.
    """
    paths = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths, **variables},
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            _end(process)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _end(process: subprocess.Popen[str]) -> None:
    """Stop a process and its children, first with SIGTERM, because launchers then stop their ranks."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, kind)
            process.communicate(timeout=10)


def waited_for(happened: Callable[[], bool], tries: int = 1200) -> bool:
    """Return True once ``happened()`` is true, or False after ``tries`` checks, one minute by default.

    The limit is long because the machine may be slow.
    """
    for _ in range(tries):
        if happened():
            return True
        time.sleep(0.05)
    return False


def parent_of(process: int) -> int:
    """Return the number of a process's parent, or 0 if the process does not run."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
