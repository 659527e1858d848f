"""Tests on several hosts: collected only on the first host of scripts/cluster.sh, which runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import pytest
from batch_jobs import HOSTS, PLACES

STATE = Path("/run/spmdsim-cluster")
SHARED = Path("/srv/shared")

collect_ignore_glob = [] if STATE.exists() and os.uname().nodename == HOSTS[0] else ["test_*"]


@pytest.fixture
def shared_folder() -> Path:
    """A new folder that all hosts see."""
    return Path(mkdtemp(dir=SHARED))


@pytest.fixture
def program(shared_folder) -> Path:
    """The program PLACES, in a folder that all hosts see."""
    (shared_folder / "places.py").write_text(PLACES)
    return shared_folder / "places.py"


@pytest.fixture
def run_command(shared_folder) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command on this host, in a folder that all hosts see."""

    def run(command: list[str], **variables: str):
        """Run the command with further variables, and return the finished process."""
        return subprocess.run(
            command,
            cwd=shared_folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
        )

    return run


@pytest.fixture
def launch(shared_folder, run_command) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``spmdsim launch WORDS`` of a program on this host, in a folder that all hosts see."""

    def run(program: str, *words: str, arguments: tuple[str, ...] = (), **variables: str):
        """Write the program, launch it with the words and variables, and return the finished process."""
        script = shared_folder / "program.py"
        script.write_text(program)
        command = [sys.executable, "-m", "spmdsim", "launch", *words, str(script), *arguments]
        return run_command(command, **{"SPMDSIM_DEADLINE": "20", **variables})

    return run
