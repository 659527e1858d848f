"""Processes that tests start: they find the package as this one does, installed or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def run_python(
    *arguments: object, cwd: Path | None = None, timeout: float = 600, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run this Python with arguments and further environment variables; what it printed, and its exit code."""
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
    """End a process and all that it started: launchers, asked to, end their ranks."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, kind)
            process.communicate(timeout=10)
