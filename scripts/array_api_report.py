"""What the standard's suite found, beside what is expected not to pass: ``array_api_report.py results.xml list.md``."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

LEAST = 0.95

#: A row of the table in the list: | `test` | why |
_ROW = re.compile(r"^\| `(test_\w+(?:\[\w+\])?)` \| \S", re.MULTILINE)


def outcomes(path: Path) -> dict[str, str]:
    """Passed, failed or skipped, by test."""
    results = {}
    for case in ElementTree.parse(path).iter("testcase"):
        failed = case.find("failure") is not None or case.find("error") is not None
        said = "failed" if failed else "skipped" if case.find("skipped") is not None else "passed"
        results[case.get("name", "")] = said
    return results


def covers(name: str, test: str) -> bool:
    """Whether a row is about a test: the test itself, all its cases, or the special cases of one function."""
    return test == name or test.startswith((f"{name}[", f"{name.removesuffix(']')}("))


def compare(results: dict[str, str], listed: list[str]) -> tuple[list[str], bool]:
    """The report's lines, and whether the run is as the list says and enough passes."""
    failed = [test for test, said in results.items() if said == "failed"]
    unknown = [test for test in failed if not any(covers(name, test) for name in listed)]
    idle = [name for name in listed if not any(covers(name, test) for test in failed)]
    passed = sum(said == "passed" for said in results.values())
    ran = passed + len(failed)
    lines = [
        *(f"fails, and is not in the list: {test}" for test in sorted(unknown)),
        *(f"passes here, though it is in the list: {name}" for name in idle),
        f"{passed} of {ran} tests pass ({passed / max(ran, 1):.1%}), {len(failed)} do not, "
        f"{len(results) - ran} are skipped by the suite",
    ]
    return lines, not unknown and passed >= LEAST * ran > 0


def main() -> int:
    """Print the report; 1 where a test fails that is not in the list, or too little passes."""
    lines, right = compare(outcomes(Path(sys.argv[1])), _ROW.findall(Path(sys.argv[2]).read_text()))
    print("\n".join(lines))
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
