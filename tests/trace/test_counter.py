"""Traces count the bytes that MPI moves, like a counter preloaded before the MPI library."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from processes import run_python

SCRIPT = Path(__file__).parents[2] / "scripts" / "count_bytes.py"


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are preloaded by the Linux loader")
def test_the_trace_counts_the_bytes_passed_to_mpi(launcher: object) -> None:
    result = run_python(SCRIPT, "-n", 4, "--programs", 12)
    if result.returncode == 2:
        pytest.skip(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "12 programs on 4 ranks" in result.stdout and "all equal" in result.stdout
