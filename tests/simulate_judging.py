"""Helpers for tests of diagnoses: run a function on virtual ranks without output, and find its lines."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from spmdsim.simulation import Problem, Report, simulate


def inside_mpi_job() -> bool:
    """Return True if this process is a rank of a real MPI job, which cannot start another MPI program."""
    return any(key.startswith(("OMPI_COMM_WORLD", "PMI_", "PMIX_RANK")) for key in os.environ)


def judge(program: Callable[..., Any], n: int, **options: Any) -> Report:
    """Return the report of a program on n virtual ranks, without its output."""
    return simulate(program, n, check=False, emit=lambda rank, line: None, **options)


def only(program: Callable[..., Any], n: int, **options: Any) -> Problem:
    """Return the only problem that the report of a program has."""
    report = judge(program, n, **options)
    assert len(report.problems) == 1, report
    return report.problems[0]


def line(function: Callable[..., Any], text: str, nth: int = 0) -> int:
    """Return the number, in its file, of the function's line with the nth occurrence of a text, from 0 on."""
    source, first = inspect.getsourcelines(function)
    return first + [i for i, row in enumerate(source) if text in row][nth]
