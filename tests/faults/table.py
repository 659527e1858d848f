"""The summary of all runs, as it stands in ``docs/faults.md``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from faults.cases import CASES, HARMLESS
from faults.running import ACCUSED, GOOD, LATE, LEFT, NOT_ENDED, SILENT, UNNAMED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
COLUMNS = {"named": GOOD, "not named": (UNNAMED, ACCUSED), "late": (LATE,), "left something": (LEFT,), "silent": (SILENT,), "not ended": (NOT_ENDED,)}  # fmt: skip

TEXT = """\
# What happens when something goes wrong

Each case is a program on four ranks of which one fails, or does something else than the rest. It is run by the MPI's own
`mpirun`, by the same with `spmdsim.launch.end_job_on_error()` (guarded), by `spmdsim launch`, or over an
`EmulatedCommunicator`, where that makes sense. A run is *named* if its output names the rank, the line and, where ranks
disagree, both sides, its exit code is not 0, it ends in time, and no process, shared memory or temporary file outlives
it. Where nothing is wrong, all ranks must reach the end and nobody may be accused. Seconds are from the fault to the end,
on a busy machine of two cores; ranks wait {deadline} s for each other here instead of the default.

Run `scripts/faults.sh` to run all of it on Open MPI and MPICH; it writes this page. The cases stand in `tests/faults/`.

{summary}

{table}

{failing}
"""


def read(paths: Iterable[Path]) -> list[dict]:
    """The last result of each case, way and MPI."""
    found = {}
    for path in paths:
        for line in path.read_text().splitlines():
            one = json.loads(line)
            found[one["case"], one["way"], one["mpi"]] = one
    names = {case.name for case in (*CASES, *HARMLESS)}
    return [one for key, one in sorted(found.items()) if key[0] in names]


def page(results: list[dict], deadline: float) -> str:
    """The page as a text."""
    return TEXT.format(
        deadline=deadline, summary=_summary(results), table=_table(results), failing=_failing(results)
    )


def _count(results: list[dict], column: str) -> int:
    return sum(one["outcome"] in COLUMNS[column] for one in results)


def _summary(results: list[dict]) -> str:
    counts = ", ".join(f"{_count(results, column)} {column}" for column in COLUMNS)
    return f"{len(CASES)} cases, {len(results)} runs: {counts}."


def _table(results: list[dict]) -> str:
    rows = [["kind", "MPI", "started by", "cases", *COLUMNS, "longest s"]]
    keys = sorted({(one["kind"], one["mpi"], one["way"]) for one in results})
    for key in keys:
        runs = [one for one in results if (one["kind"], one["mpi"], one["way"]) == key]
        longest = max(one["seconds"] for one in runs)
        rows.append(
            [*key, str(len(runs)), *(str(_count(runs, column)) for column in COLUMNS), f"{longest:.0f}"]
        )
    rows.append(["all", "", "", str(len(results)), *(str(_count(results, c)) for c in COLUMNS), ""])
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
