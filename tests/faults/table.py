"""Write the summary of all runs, which is ``docs/faults.md``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from faults.cases import CASES, HARMLESS
from faults.running import ACCUSED, GOOD, LATE, LEFT, NAMED, NOT_ENDED, RIGHT, SILENT, UNNAMED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
#: The counts above a table, each with the judgements that it counts. The first one is a column of the table.
FAULTS = {
    "named": (NAMED,), "not named": (UNNAMED,), "late": (LATE,), "left something": (LEFT,), "silent": (SILENT,),
    "not ended": (NOT_ENDED,),
}  # fmt: skip
NO_FAULTS = {
    "right": (RIGHT,),
    "wrongly accused": (ACCUSED,),
    "left something": (LEFT,),
    "not ended": (NOT_ENDED,),
}

TEXT = """\
# What happens when something goes wrong

A failure on one rank must end the whole job with one clear message. This page reports how often it does. Each case is a
program on four ranks in which one rank fails or differs from the others. A case is started in up to four ways:

- *mpirun*: by the MPI's own `mpirun`
- *guarded*: by `mpirun`, with `spmdsim.launch.end_job_on_error()` in the program
- *launch*: by `spmdsim launch`
- *emulated*: over an `EmulatedCommunicator`

A run counts as *named* if all of this holds:

- The output names the rank and the line. If ranks disagree, it names both sides.
- The exit code is not 0.
- The job ends in time. No process, shared memory or temporary file outlives it.

A program without a fault is *right* if all ranks reach the end and the library reports no fault.

Seconds count from the fault to the end of the job, on a busy machine with two cores. Ranks wait {deadline} s for each other here
instead of the default. The tables count the last run of each case: {runs} of {of} have been run.

`scripts/faults.sh` runs all cases on Open MPI and MPICH and writes this page. The cases are in `tests/faults/`.

## A rank fails, or differs from the others

{faults}

## Nothing is wrong

These are unusual but correct programs, and the programs above without their fault.

{no_faults}

{failing}
"""


def read(paths: Iterable[Path]) -> list[dict]:
    """Return the last result of each case, way to start it and MPI."""
    rows = {}
    for path in paths:
        for line in path.read_text().splitlines():
            one = json.loads(line)
            rows[one["case"], one["way"], one["mpi"]] = one
    names = {case.name for case in (*CASES, *HARMLESS)}
    return [one for key, one in sorted(rows.items()) if key[0] in names]


def page(results: list[dict], deadline: float) -> str:
    """Return the page as a text."""
    right = {case.name for case in (*CASES, *HARMLESS) if not case.fails}
    faults = [one for one in results if one["case"] not in right]
    no_faults = [one for one in results if one["case"] in right]
    count = len({case.name for case in CASES} - right)
    return TEXT.format(
        deadline=deadline, runs=len(results), of=2 * sum(len(case.ways) for case in (*CASES, *HARMLESS)), faults=_part(faults, FAULTS, count), no_faults=_part(no_faults, NO_FAULTS, len(right)),
        failing=_failing(results),
    )  # fmt: skip


Columns = Mapping[str, tuple[str, ...]]


def _part(results: list[dict], columns: Columns, cases: int) -> str:
    counts = ", ".join(f"{_count(results, outcomes)} {name}" for name, outcomes in columns.items())
    return f"{cases} cases, {len(results)} runs: {counts}.\n\n{_table(results, columns)}"


def _count(results: list[dict], outcomes: tuple[str, ...]) -> int:
    return sum(one["outcome"] in outcomes for one in results)


def _table(results: list[dict], columns: Columns) -> str:
    """Return the table of outcomes by kind of fault, for one MPI."""
    name, outcomes = next(iter(columns.items()))
    rows = [["kind", "MPI", "started by", "runs", name, "longest (s)"]]
    for key in sorted({(one["kind"], one["mpi"], one["way"]) for one in results}):
        runs = [one for one in results if (one["kind"], one["mpi"], one["way"]) == key]
        rows.append(
            [*key, str(len(runs)), str(_count(runs, outcomes)), f"{max(one['seconds'] for one in runs):.0f}"]
        )
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _failing(results: list[dict]) -> str:
    bad = [one for one in results if one["outcome"] not in GOOD]
    if not bad:
        return "Every run ended as expected."
    by_case: dict[tuple[str, str], list[str]] = {}
    for one in bad:
        by_case.setdefault((one["case"], one["outcome"]), []).append(f"{one['mpi']} {one['way']}")
    lines = [f"- {case}: {outcome} ({', '.join(where)})" for (case, outcome), where in by_case.items()]
    return "\n".join(["These runs did not end as expected:", "", *lines])
