"""Run cases from the command line; see ``scripts/faults.sh``."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from faults.case import DEADLINE, WAYS, WITHOUT, Case
from faults.cases import CASES, HARMLESS
from faults.running import GOOD, Result, launcher, run
from faults.table import PAGE, page, read


def main() -> int:
    """Run the chosen cases; write a line of JSON for each, and print its outcome."""
    parser = argparse.ArgumentParser(prog="faults.sh", description="Faults in jobs of four ranks.")
    parser.add_argument(
        "--cases", default="", help="a regular expression: only cases or kinds that it is found in"
    )
    parser.add_argument("--ways", default=",".join(WAYS), help=f"how they are started ({','.join(WAYS)})")
    parser.add_argument("--jobs", type=int, default=2, help="jobs side by side (2)")
    parser.add_argument("--results", type=Path, required=True, help="lines of JSON are added to this file")
    parser.add_argument(
        "--again", action="store_true", help="only what is not as it should be in these results"
    )
    parser.add_argument(
        "--spread",
        type=int,
        metavar="K",
        help="every case once first, beginning with every second one from the K-th on",
    )
    parser.add_argument("--list", action="store_true", help="name the cases, and run none")
    parser.add_argument(
        "--table", nargs="+", type=Path, metavar="RESULTS", help="write the summary of results, and run none"
    )
    arguments = parser.parse_args()
    if arguments.table:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(read(arguments.table), DEADLINE), encoding="utf-8")
        return 0
    chosen = [
        (case, way)
        for case in (*CASES, *HARMLESS)
        for way in case.ways
        if way in arguments.ways.split(",") and re.search(arguments.cases, f"{case.kind}: {case.name}")
    ]
    if arguments.again:
        vendor = launcher().vendor
        good = {
            (one["case"], one["way"])
            for one in read([arguments.results])
            if one["mpi"] == vendor and one["outcome"] in GOOD
        }
        chosen = [(case, way) for case, way in chosen if (case.name, way) not in good]
    if arguments.spread is not None:
        chosen = spread(chosen, arguments.spread)
    if arguments.list:
        print(*(f"{case.kind}: {case.name} ({way})" for case, way in chosen), sep="\n")
        return 0
    counts: Counter[str] = Counter()
    with arguments.results.open("a") as file, ThreadPoolExecutor(arguments.jobs) as pool:
        for result in pool.map(lambda one: run(*one), chosen):
            counts[result.outcome] += 1
            file.write(json.dumps(result.to_dict()) + "\n")
            file.flush()
            say(result, sum(counts.values()), len(chosen))
    print(", ".join(f"{number} {outcome}" for outcome, number in counts.most_common()))
    return int(any(outcome not in GOOD for outcome in counts))


def spread(chosen: list[tuple[Case, str]], first: int) -> list[tuple[Case, str]]:
    """Return the runs in an order for users who stop early: each case is first started in one way only."""
    numbers = {case.name: k for k, case in enumerate((*CASES, *HARMLESS))}

    def turn(one: tuple[Case, str]) -> tuple[bool, int, bool, int]:
        """Return the key by which runs are sorted."""
        case, way = one
        k = numbers[case.name]
        return case.kind == WITHOUT, (case.ways.index(way) - k // 2) % len(case.ways), (k + first) % 2 == 1, k

    return sorted(chosen, key=turn)


def say(result: Result, number: int, of: int) -> None:
    """Print one line for a run."""
    why = "; ".join([*result.missing, *result.left]) if result.outcome not in GOOD else ""
    print(
        f"{number}/{of} {result.outcome}: {result.case} ({result.mpi}, {result.way}), {result.seconds} s, "
        f"code {result.code}{': ' + why if why else ''}", flush=True,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
