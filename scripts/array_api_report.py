"""What the standard's suite found, beside what is expected not to pass: ``array_api_report.py results.xml list.md``."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

LEAST = 0.95

#: A row of the table in the list: `test` | why.
_ROW = re.compile(r"^\| `(?P<test>test_\w+(?:\[[^\]]*\])?)` \|", re.MULTILINE)


def outcomes(path: Path) -> dict[str, str]:
    """Passed, failed or skipped, by test."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        failed = case.find("failure") is not None or case.find("error") is not None
        said = "failed" if failed else "skipped" if case.find("skipped") is not None else "passed"
        found[case.get("name", "")] = said
    return found


def main() -> int:
    """Print the summary; 1 where the list and the run differ, or too little passes."""
    found = outcomes(Path(sys.argv[1]))
    listed = set(_ROW.findall(Path(sys.argv[2]).read_text()))
    named = {test: {test, test.split("[")[0]} & listed for test in found}
    failed = {test for test, said in found.items() if said == "failed"}
    passed = {test for test, said in found.items() if said == "passed"}
    for test in sorted(test for test in failed if not named[test]):
        print(f"fails, and is not in the list: {test}")
    expected = {name for test in failed for name in named[test]}
    for name in sorted(listed - expected):
        if any(name in named[test] for test in passed):
            print(f"passes, though it is in the list: {name}")
    ran = len(passed) + len(failed)
    print(
        f"{len(passed)} of {ran} tests pass ({len(passed) / max(ran, 1):.1%}), {len(failed)} do not, "
        f"{len(found) - ran} are skipped by the suite"
    )
    return int((bool(failed) and any(not named[test] for test in failed)) or len(passed) < LEAST * ran)


if __name__ == "__main__":
    sys.exit(main())
