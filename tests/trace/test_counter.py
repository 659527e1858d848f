"""Traces hold what MPI was asked to move, to the byte: compared with a counter that stands before the MPI library."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from processes import run_python

SCRIPT = Path(__file__).parents[2] / "scripts" / "count_bytes.py"


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are preloaded by the Linux loader")
def test_the_trace_is_what_mpi_was_asked_to_move(launcher: object) -> None:
    done = run_python(SCRIPT, "-n", 4, "--programs", 12)
    if done.returncode == 2:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 programs on 4 ranks" in done.stdout and "all equal" in done.stdout
