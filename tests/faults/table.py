"""The summary of all runs, as it stands in ``docs/faults.md``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from faults.cases import CASES, HARMLESS
from faults.running import ACCUSED, GOOD, LATE, LEFT, NAMED, NOT_ENDED, RIGHT, SILENT, UNNAMED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
#: The columns of a table, each with the judgements that it counts.
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

Each case is a program on four ranks of which one fails, or does something else than the rest. It is run by the MPI's own
`mpirun`, by the same with `spmdsim.launch.end_job_on_error()` (guarded), by `spmdsim launch`, or over an
`EmulatedCommunicator`, where that makes sense. A run is *named* if its output names the rank, the line and, where ranks
disagree, both sides, its exit code is not 0, it ends in time, and no process, shared memory or temporary file outlives
it. Where nothing is wrong, all ranks must reach the end and nobody may be accused. Seconds are from the fault to the end,
on a busy machine of two cores; ranks wait {deadline} s for each other here instead of the default. The last run of each
case, MPI and way counts: {runs} of {of} have been run.

Run `scripts/faults.sh` to run all of it on Open MPI and MPICH; it writes this page. The cases stand in `tests/faults/`.

## A rank fails, or does something else than the rest

{faults}

## Nothing is wrong

Odd programs that are right, and the programs above without their fault.

{no_faults}

{failing}
"""


def read(paths: Iterable[Path]) -> list[dict]:
    """The last result of each case, way and MPI."""
    rows = {}
    for path in paths:
        for line in path.read_text().splitlines():
            one = json.loads(line)
            rows[one["case"], one["way"], one["mpi"]] = one
    names = {case.name for case in (*CASES, *HARMLESS)}
    return [one for key, one in sorted(rows.items()) if key[0] in names]


def page(results: list[dict], deadline: float) -> str:
    """The page as a text."""
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
    rows = [["kind", "MPI", "started by", "runs", *columns, "longest s"]]
    for key in sorted({(one["kind"], one["mpi"], one["way"]) for one in results}):
        runs = [one for one in results if (one["kind"], one["mpi"], one["way"]) == key]
        counts = [str(_count(runs, outcomes)) for outcomes in columns.values()]
        rows.append([*key, str(len(runs)), *counts, f"{max(one['seconds'] for one in runs):.0f}"])
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _failing(results: list[dict]) -> str:
    bad = [one for one in results if one["outcome"] not in GOOD]
    if not bad:
        return "Every run is as it should be."
    by_case: dict[tuple[str, str], list[str]] = {}
    for one in bad:
        by_case.setdefault((one["case"], one["outcome"]), []).append(f"{one['mpi']} {one['way']}")
    lines = [f"- {case}: {outcome} ({', '.join(where)})" for (case, outcome), where in by_case.items()]
    return "\n".join(["Not yet as it should be:", "", *lines])
