"""Processes that tests start: they find the package as this one does, installed or not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_python(
    *arguments: object, cwd: Path | None = None, timeout: float = 100, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run this Python with arguments and further environment variables; what it printed, and its exit code."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths, **variables},
    )
