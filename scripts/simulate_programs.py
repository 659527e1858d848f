"""Run the small programs with known mistakes, and print a table: kinds, caught, missed, falsely blamed.

Run it as ``python scripts/simulate_programs.py``; ``--missed`` lists the programs that were judged wrongly.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spmdsim.simulation import simulate

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "simulation" / "programs"
#: First line of a program: the kind of finding and its line, or "ok"; then options of the run.
EXPECTED = re.compile(r"# expect: (?P<kind>\w+)(?: (?P<line>\d+))?(?:; (?P<options>.*))?")


@dataclass
class Verdict:
    """The expected finding of a program, and the options of its run.

    Attributes:
        kind: the kind of the finding, such as "deadlock"; "ok": none.
        line: the line that the finding names.
        ranks: the number of ranks.
        options: further arguments of ``simulate``.
    """

    kind: str
    line: int | None
    ranks: int = 2
    options: dict[str, Any] = field(default_factory=dict)


def read_verdict(program: Path) -> Verdict:
    """Return the verdict in the first line of a program; raise ValueError for another line.

    An example: ``# expect: deadlock 7; ranks=3 explore=50``.
    """
    first_line = program.read_text(encoding="utf-8").partition("\n")[0]
    match = EXPECTED.fullmatch(first_line)
    if match is None:
        raise ValueError(
            f"{program.name}: the first line must be '# expect: KIND LINE; OPTIONS', got {first_line!r}"
        )
    verdict = Verdict(match["kind"], int(match["line"]) if match["line"] else None)
    for word in (match["options"] or "").split():
        name, _, number = word.partition("=")
        if name == "ranks":
            verdict.ranks = int(number)
        else:
            verdict.options[name] = int(number) if number else True
    return verdict


def list_programs() -> list[Path]:
    """Return the programs with a mistake, then the right ones."""
    return [program for folder in ("wrong", "right") for program in sorted((FOLDER / folder).glob("*.py"))]


def judge(program: Path) -> tuple[Verdict, bool, str]:
    """Run a program; return its verdict, whether the simulator agrees, and the findings as text."""
    verdict = read_verdict(program)
    report = simulate(program, verdict.ranks, check=False, emit=lambda rank, line: None, **verdict.options)
    text = "\n".join(map(str, report.problems))
    if verdict.kind == "ok":
        return verdict, not report.problems, text
    where = f"{program.name}:{verdict.line}"
    agrees = any(
        problem.kind == verdict.kind and re.search(rf"{re.escape(where)}\b", problem.message)
        for problem in report.problems
    )
    return verdict, agrees, text


def main() -> None:
    """Judge all programs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--missed", action="store_true", help="list the programs that were judged wrongly")
    args = parser.parse_args()
    counts: dict[str, Counter[bool]] = {}
    for program in list_programs():
        verdict, agrees, text = judge(program)
        counts.setdefault(verdict.kind, Counter())[agrees] += 1
        if args.missed and not agrees:
            print(
                f"{program.parent.name}/{program.name}: {verdict.kind} {verdict.line or ''}\n  {text or 'no finding'}"
            )
    right = counts.pop("ok", Counter())
    print("| kind | programs | caught | missed |\n|---|---|---|---|")
    for kind, count in sorted(counts.items()):
        print(f"| {kind.replace('_', ' ')} | {count.total()} | {count[True]} | {count[False]} |")
    total = sum(counts.values(), Counter())
    print(f"| all wrong programs | {total.total()} | {total[True]} | {total[False]} |")
    print(f"\nRight programs: {right.total()}, falsely blamed: {right[False]}.")


if __name__ == "__main__":
    main()
