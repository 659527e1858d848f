"""Run tests of one module of mpi4py's own suite on every rank: ``mpi4py_module.py SUITE MODULE RESULTS [SKIPPED]``.

Each rank appends a line per event to the file ``RESULTS.<rank>``: ``start``, ``pass``, ``skip`` or ``fail``, a tab, the
name of the test, and for a failure a tab and its first line. SKIPPED is a file with names of tests that are not run.
"""

from __future__ import annotations

import importlib
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path

#: Arrays with which tests of buffers run: of the module array, and of numpy.
BACKENDS = ("ArrayArray", "ArrayNumPy")


class EventLog(unittest.TestResult):
    """A result of unittest that writes each event to a file at once, because the process may be killed."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.outcome = ("pass", "")

    def _write(self, *words: str) -> None:
        """Append a line of words."""
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write("\t".join(words) + "\n")

    def startTest(self, test: unittest.TestCase) -> None:
        """Write that a test begins."""
        super().startTest(test)
        self.outcome = ("pass", "")
        self._write("start", test.id())

    def stopTest(self, test: unittest.TestCase) -> None:
        """Write the outcome of a test."""
        super().stopTest(test)
        self._write(self.outcome[0], test.id(), self.outcome[1])

    def _fail(self, error: object) -> None:
        """Store the first line of an error as the outcome; end the rank if the simulation has ended."""
        kind, value = error[:2]  # type: ignore[index]
        if kind.__name__ == "GreenletExit":  # the report counts a test that began and did not end as stopped
            raise value
        lines = (str(value) or kind.__name__).splitlines()
        self.outcome = ("fail", f"{kind.__name__}: {lines[0] if lines else ''}"[:200].replace("\t", " "))

    def addError(self, test: unittest.TestCase, err: object) -> None:
        """Store the error of a test, or write that of a class."""
        if isinstance(test, unittest.TestCase):
            self._fail(err)
        else:  # the set-up of a class failed: its tests are not run
            self._write("broken", test.id(), str(err[1])[:200])  # type: ignore[index]

    def addFailure(self, test: unittest.TestCase, err: object) -> None:
        """Store the failure of a test."""
        self._fail(err)

    def addSubTest(self, test: unittest.TestCase, subtest: object, err: object) -> None:
        """Store the failure of a part of a test."""
        if err is not None:
            self._fail(err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        """Store that a test was skipped."""
        self.outcome = ("skip", reason)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        """Store that a test passed that should fail."""
        self.outcome = ("fail", "unexpected success")


def tests_of(suite: object) -> Iterator[unittest.TestCase]:
    """Yield the test cases of a suite."""
    for test in suite:  # type: ignore[attr-defined]
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        else:
            yield test


def main() -> None:
    """Run the tests of the module that are not skipped."""
    folder, name, results, *skipped_file = sys.argv[1:]
    for backend in ("cupy", "numba"):
        sys.modules[backend] = None  # type: ignore[assignment]
    sys.path.insert(0, folder)
    from mpi4py import MPI

    backends = importlib.import_module("arrayimpl").ArrayBackends
    backends[:] = [backend for backend in backends if backend.__name__ in BACKENDS]
    skipped = set(Path(skipped_file[0]).read_text().split()) if skipped_file else set()
    suite = unittest.defaultTestLoader.loadTestsFromName(name)
    selected = unittest.TestSuite(test for test in tests_of(suite) if test.id() not in skipped)
    log = EventLog(f"{results}.{MPI.COMM_WORLD.Get_rank()}")
    selected.run(log)
    log._write("end", name)


if __name__ == "__main__":
    main()
