"""Help for tests of diagnoses: run a function on virtual ranks quietly, find lines in it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from spmdsim.simulation import Problem, Report, simulate


def inside_mpi_job() -> bool:
    """Whether this process is a rank of a real MPI job, in which no other MPI program can be started."""
    return any(key.startswith(("OMPI_COMM_WORLD", "PMI_", "PMIX_RANK")) for key in os.environ)


def judge(program: Callable[..., Any], n: int, **options: Any) -> Report:
    return simulate(program, n, check=False, emit=lambda rank, line: None, **options)


def only(program: Callable[..., Any], n: int, **options: Any) -> Problem:
    report = judge(program, n, **options)
    assert len(report.problems) == 1, report
    return report.problems[0]


def line(function: Callable[..., Any], text: str, nth: int = 0) -> int:
    """Line of the nth occurrence of a text in a function."""
    source, first = inspect.getsourcelines(function)
    return first + [i for i, row in enumerate(source) if text in row][nth]
