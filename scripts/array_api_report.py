"""Compare the results of the array API suite with the list of expected failures: ``array_api_report.py results.xml list.md``."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

#: Smallest part of the tests that must pass.
LEAST = 0.95

#: A row of the table in the list: | `test` | why |
_ROW = re.compile(r"^\| `(test_\w+(?:\[\w+\])?)` \| \S", re.MULTILINE)


def outcomes(path: Path) -> dict[str, str]:
    """Return "passed", "failed" or "skipped" for each test of a JUnit file."""
    results = {}
    for case in ElementTree.parse(path).iter("testcase"):
        failed = case.find("failure") is not None or case.find("error") is not None
        outcome = "failed" if failed else "skipped" if case.find("skipped") is not None else "passed"
        results[case.get("name", "")] = outcome
    return results


def covers(name: str, test: str) -> bool:
    """Return True if a row of the list with this name covers a test.

    A name covers its own test and all cases of this test: ``test_a`` covers ``test_a[x]``. The name of a case covers
    the special cases of the case's function, too: ``test_a[f]`` covers ``test_a[f(x) is 0]``.
    """
    return test == name or test.startswith((f"{name}[", f"{name.removesuffix(']')}("))


def compare(results: dict[str, str], listed: list[str]) -> tuple[list[str], bool]:
    """Return the lines of a report, and True if no unlisted test fails and enough tests pass.

    Enough are :data:`LEAST` (0.95) of the tests that were not skipped.

    Args:
        results: the outcome of each test, as :func:`outcomes` returns them.
        listed: the names in the list of expected failures.
    """
    failed = [test for test, outcome in results.items() if outcome == "failed"]
    unknown = [test for test in failed if not any(covers(name, test) for name in listed)]
    unneeded = [name for name in listed if not any(covers(name, test) for test in failed)]
    passed = sum(outcome == "passed" for outcome in results.values())
    run_count = passed + len(failed)
    lines = [
        *(f"fails, and is not in the list: {test}" for test in sorted(unknown)),
        *(f"passes here, though it is in the list: {name}" for name in unneeded),
        f"{passed} of {run_count} tests pass ({passed / max(run_count, 1):.1%}), {len(failed)} do not, "
        f"{len(results) - run_count} are skipped by the suite",
    ]
    return lines, not unknown and passed >= LEAST * run_count > 0


def main() -> int:
    """Print the report; return 1 if a test fails that is not listed, or if too few pass."""
    lines, is_ok = compare(outcomes(Path(sys.argv[1])), _ROW.findall(Path(sys.argv[2]).read_text()))
    print("\n".join(lines))
    return int(not is_ok)


if __name__ == "__main__":
    sys.exit(main())
