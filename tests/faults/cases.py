"""All cases."""

from __future__ import annotations

import re

from faults import deaths, emulated, files, mismatches, right, values
from faults.case import EMULATED, LAUNCH, MPIRUN

CASES = [*deaths.CASES, *mismatches.CASES, *values.CASES, *files.CASES, *emulated.CASES, *right.CASES]
#: Part of every run of the tests: one case of each kind of fault, and how it is started.
QUICK = (
    ("SIGSTOP at call 3", MPIRUN),
    ("layout, late", LAUNCH),
    ("other array, copied", MPIRUN),
    ("element type of the same size, emulated, late", EMULATED),
    ("pairs work at their own pace", MPIRUN),
)

#: Programs of which one rank does something else, here all alike: whoever is accused is accused wrongly.
HARMLESS = [
    case.harmless()
    for case in CASES
    if case.kind in ("mismatch", "values", "settings", "checkpoint", "emulated communicator")
    and case.signal is None
    and "killed" not in case.name
    and "sys.exit" not in case.body
    and re.search(r"\bbad\b", case.body + case.top)
]
