"""Measure redistributions and predictions between hosts, and write the tables of docs/howto/cluster.md.

``scripts/cluster.sh bench`` starts this program on the first of its hosts. For each MPI, and for 2 and 4 hosts of two
ranks, it calibrates a machine, runs ``bench_hosts.py`` with it, and runs ``spmdsim collective bench`` with its predictions. A
prediction counts if the measured call takes at least 100 ms, so that the network matters and not the processors.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paired import figure

BENCH = Path(__file__).resolve().parent
PAGE = BENCH.parent.parent / "docs" / "howto" / "cluster.md"
BEGIN, END = "<!-- hosts: begin -->", "<!-- hosts: end -->"
#: The hosts of each job, with their ranks.
JOBS = ("node1:2,node2:2", "node1:2,node2:2,node3:2,node4:2")
COLLECTIVES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
)
#: Measured seconds from which a prediction counts, and seconds for a calibration.
LEAST, CALIBRATION = 0.1, 60
#: Bytes of the messages of the collectives.
SIZE = "2M"
#: The hosts share the cores of one machine: a rank of Open MPI that waits must give up its core, as one of MPICH does.
YIELD = {"OMPI_MCA_mpi_yield_when_idle": "1"}


class Job:
    """A job on hosts under one MPI.

    Args:
        mpi: the name of the MPI.
        python: the interpreter whose packages have this MPI.
        hosts: the hosts, with their ranks.
        folder: a folder for files; all hosts must see it.
    """

    def __init__(self, mpi: str, python: str, hosts: str, folder: Path) -> None:
        self.python, self.hosts, self.folder = python, hosts, folder
        self.name = f"{mpi}, {hosts.count(',') + 1} hosts x 2 ranks"

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run ``spmdsim`` with these words on the hosts; print its output if it fails."""
        command = [self.python, "-m", "spmdsim", *words]
        process = subprocess.run(
            command, env={**os.environ, **YIELD, **variables}, capture_output=True, text=True, check=False
        )
        if process.returncode:
            print(f"{' '.join(command)}\n{process.stdout}{process.stderr}", file=sys.stderr, flush=True)
        return process

    def calibrate(self) -> Path | None:
        """Return a machine file of the hosts, or None if its measurements were refused."""
        machine = self.folder / "machine.json"
        machine.unlink(missing_ok=True)
        seconds = str(CALIBRATION)
        self.run(
            "collective",
            "calibrate",
            "--hosts",
            self.hosts,
            "--seconds",
            seconds,
            "-e",
            "4M",
            "-o",
            str(machine),
        )
        return machine if machine.exists() else None

    def measure_redistributions(self, machine: Path | None) -> dict[str, dict[str, Any]]:
        """Return the row of each case of ``bench_hosts.py``, by the name of the case."""
        rows = self.folder / "rows"
        rows.unlink(missing_ok=True)
        words = [str(BENCH / "bench_hosts.py"), *(["--machine", str(machine)] if machine else [])]
        self.run(
            "launch",
            "--hosts",
            self.hosts,
            *words,
            BENCH_ROWS=str(rows),
            BENCH_QUICK="1",
            BENCH_STATISTIC="min",
        )
        lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
        return {row["case"].split(",")[0]: row for row in map(json.loads, lines)}

    def measure_predictions(self, machine: Path) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of all algorithms whose call takes at least ``LEAST`` seconds, by collective."""
        rows = {}
        for collective in COLLECTIVES:
            process = self.run(
                "collective", "bench", collective, "--hosts", self.hosts, "--machine", str(machine), "--json",
                "-b", SIZE, "-e", SIZE, "-n", "3", "-w", "1",
            )  # fmt: skip
            measured = json.loads(process.stdout)["rows"] if process.returncode == 0 else []
            rows[collective] = [
                row for row in measured if row["seconds"] >= LEAST and row["predicted"] is not None
            ]
        return rows


def format_redistributions(measured: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """Return the lines of the table of redistributions: a row per case, a column per job."""
    cases = list(dict.fromkeys(case for rows in measured.values() for case in rows))
    lines = [f"| case | {' | '.join(measured)} |", "|---|" + "---|" * len(measured)]
    for case in cases:
        cells = [figure(rows[case]["value"]) if case in rows else "-" for rows in measured.values()]
        lines.append(f"| `{case}` | {' | '.join(cells)} |")
    return lines


def format_predictions(measured: dict[str, dict[str, list[dict[str, Any]]]]) -> list[str]:
    """Return the lines of the table of predictions: a row per job, with the median and the worst error."""
    lines = ["| job | calls | median error | worst error | of |", "|---|---|---|---|---|"]
    for job, by_collective in measured.items():
        rows = [(collective, row) for collective, calls in by_collective.items() for row in calls]
        if not rows:
            lines.append(f"| {job} | 0 | - | - | - |")
            continue
        middle = statistics.median(abs(row["error"]) for _, row in rows)
        collective, worst = max(rows, key=lambda item: abs(item[1]["error"]))
        name = f"`{collective}` by `{worst['algorithm']}`"
        lines.append(f"| {job} | {len(rows)} | {middle:.0%} | {worst['error']:+.0%} | {name} |")
    return lines


def write_page(lines: list[str]) -> None:
    """Replace the lines between the marks of the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text("\n".join([before + BEGIN, *lines, END + after]), encoding="utf-8")


def main() -> None:
    """Measure all jobs, print the tables, and write them to the page unless ``--print`` is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="+", metavar="MPI=PYTHON", help="the interpreter of each MPI")
    parser.add_argument("--print", action="store_true", help="leave the page as it is")
    parser.add_argument("--hosts", type=int, choices=(2, 4), help="measure jobs on this number of hosts only")
    parser.add_argument("--only", choices=("redistributions", "predictions"), help="measure one of the two")
    options = parser.parse_args()
    moves: dict[str, dict[str, dict[str, Any]]] = {}
    predictions: dict[str, dict[str, list[dict[str, Any]]]] = {}
    with TemporaryDirectory(dir="/srv/shared") as folder:
        for mpi, python in (item.split("=", 1) for item in options.pythons):
            for hosts in [job for job in JOBS if options.hosts in (None, job.count(",") + 1)]:
                job = Job(mpi, python, hosts, Path(folder))
                print(f"spmdsim: {job.name}", file=sys.stderr, flush=True)
                machine = job.calibrate()
                if options.only != "predictions":
                    moves[job.name] = job.measure_redistributions(machine)
                if options.only != "redistributions":
                    predictions[job.name] = {} if machine is None else job.measure_predictions(machine)
    lines = ["", *format_redistributions(moves), "", *format_predictions(predictions), ""]
    print("\n".join(lines))
    if not options.print and not options.only:
        write_page(lines)


if __name__ == "__main__":
    main()
