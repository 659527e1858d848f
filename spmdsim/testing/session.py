"""One rank's part in a common pytest session: agree, report once, never hang."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import zlib
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

from spmdsim.ending.stop import agree
from spmdsim.sides import name_ranks, sides
from spmdsim.testing.agreement import ABORTED, FAILED, PASSED, SKIPPED, Agreement
from spmdsim.testing.ranks import FAILED as FAILED_SOMEWHERE

CODES = {"passed": PASSED, "skipped": SKIPPED, "failed": FAILED}

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""Only rank 0 colours its texts; without them equal failures are equal."""

WATCHDOG_FACTOR = 2.0
"""A test may take this many deadlines when all ranks are still in it."""


def _place(frame: FrameType | None) -> str:
    """Where a frame is, in the words of a traceback, with its callers up to three levels."""
    places: list[str] = []
    while frame is not None and len(places) < 3:
        code = frame.f_code
        places.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back
    return " < ".join(places)


class Watchdog(threading.Thread):
    """Calls ``expired(name, where)`` if what it watches takes longer than ``seconds``.

    It works while the main thread sits inside an MPI call, which signals do not.
    """

    def __init__(self, seconds: float, expired: Callable[[str, str], None]) -> None:
        super().__init__(name="spmdsim watchdog", daemon=True)
        self.seconds = seconds
        self.expired = expired
        self._main = threading.main_thread().ident
        self._watched: tuple[str, float] | None = None

    def watch(self, name: str) -> None:
        """Start the clock for ``name``."""
        self._watched = (name, time.monotonic())

    def rest(self) -> None:
        """Stop the clock."""
        self._watched = None

    def run(self) -> None:
        """Look at the clock a few times in each period."""
        while True:
            time.sleep(min(1.0, self.seconds / 4))
            watched = self._watched
            if watched is not None and time.monotonic() - watched[1] > self.seconds:
                self.expired(watched[0], _place(sys._current_frames().get(self._main or 0)))
                return


class RankSession:
    """The hooks of a rank. All ranks call them in the same order, or the job ends with the reason."""

    def __init__(self, config: pytest.Config) -> None:
        from mpi4py import MPI

        self.config = config
        self.agreement = Agreement(
            MPI.COMM_WORLD,
            config.getoption("--mpi-deadline"),
            config.getoption("--mpi-deadline-failed"),
            self.say,
        )
        self.rank, self.size = self.agreement.rank, self.agreement.size
        self.leaving = False
        self.watchdog = Watchdog(WATCHDOG_FACTOR * config.getoption("--mpi-deadline"), self._expired)
        self.watchdog.start()
        if self.rank:
            self._be_quiet()

    def say(self, text: str) -> None:
        """Write to the real stderr, past pytest's capturing, in one piece."""
        os.write(self._stderr(), f"\n{text}\n".encode())

    def _stderr(self) -> int:
        capture: Any = self.config.pluginmanager.getplugin("capturemanager")
        saved = getattr(getattr(capture, "_global_capturing", None), "err", None)
        descriptor = getattr(saved, "targetfd_save", None)
        return descriptor if isinstance(descriptor, int) else 2

    def _be_quiet(self) -> None:
        """Ranks other than 0 report to nobody."""
        manager = self.config.pluginmanager
        old = manager.getplugin("terminalreporter")
        if old is not None:
            manager.unregister(old)
        nowhere = open(os.devnull, "w")  # noqa: SIM115 - lives as long as the process
        manager.register(TerminalReporter(self.config, nowhere), "terminalreporter")

    # --- collection ---------------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """All ranks must have found the same tests, without errors."""
        ids = [item.nodeid for item in session.items]
        failed = session.testsfailed > 0
        outcomes = self.agreement.meet("the tests", "collection", FAILED if failed else PASSED)
        digests = self.agreement.texts(f"{len(ids)}:{zlib.crc32(chr(10).join(ids).encode())}")
        bad = [rank for rank, outcome in enumerate(outcomes) if outcome == FAILED]
        if bad and len(bad) < self.size:
            self._leave(f"collecting the tests failed on ranks {bad} of {self.size}", failed)
        if len(set(digests)) > 1:
            self._leave(self._difference(ids), False)

    def _difference(self, ids: list[str]) -> str:
        """Which tests are not the same on all ranks."""
        others = [set(text.split("\n")) for text in self.agreement.texts("\n".join(ids))]
        common = set.intersection(*others)
        for rank, tests in enumerate(others):
            if tests != common:
                return f"rank {rank} has tests that others lack, such as {min(tests - common)}"
        return "the ranks have the same tests in different orders"

    def _leave(self, reason: str, errors_here: bool) -> None:
        """End the session on all ranks together."""
        errors = self._collection_errors() if errors_here else ""
        for rank, text in enumerate(self.agreement.texts(errors)):
            if text and self.rank == 0:
                self.say(f"rank {rank} of {self.size}:\n{text}")
        self.leaving = True
        pytest.exit(reason, returncode=int(pytest.ExitCode.INTERRUPTED))

    def _collection_errors(self) -> str:
        reporter: Any = self.config.pluginmanager.getplugin("terminalreporter")
        return "\n".join(report.longreprtext for report in reporter.stats.get("error", []))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Where nobody reads the summary, none is made: plugins would only spend time on their parts of it."""
        result = yield
        if self.rank:
            self.config.pluginmanager.unregister(name="terminalreporter")
        return result

    # --- one test -----------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Watch the whole test."""
        self.watchdog.watch(item.nodeid)
        result = yield
        self.watchdog.rest()
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Agree on the outcome of a phase before anybody goes on."""
        report = yield
        outcomes = self._agree(report, report.when)
        if FAILED in outcomes:
            item.stash[FAILED_SOMEWHERE] = True
        if report.when == "setup" and report.skipped and PASSED in outcomes:
            # the others run the test now: meet them behind it
            self._agree(report, "call")
        return report

    def _agree(self, report: pytest.TestReport, phase: str) -> list[int]:
        outcome = CODES[report.outcome]
        if phase != report.when:
            outcome = SKIPPED
        text = COLOURS.sub("", report.longreprtext) if outcome == FAILED else ""
        outcomes = self.agreement.meet(report.nodeid, phase, outcome, text)
        failed = [rank for rank, code in enumerate(outcomes) if code == FAILED]
        if failed:
            texts = self.agreement.texts(text)
            report.outcome = "failed"
            report.__dict__.pop("wasxfail", None)
            report.longrepr = self._verdict(report.nodeid, phase, failed, texts)
            if self.rank == 0:
                self.say(report.longrepr)
        return outcomes

    def _verdict(self, name: str, phase: str, failed: list[int], texts: list[str]) -> str:
        """Each distinct failure once, with its ranks."""
        lines = [f"{name} ({phase}) failed on ranks {failed} of {self.size}"]
        for ranks, text in sides((rank, texts[rank]) for rank in failed):
            lines += [f"--- {name_ranks(ranks)}:", text]
        return "\n".join(lines)

    # --- the end ------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
        """One exit code for all ranks: the worst."""
        if not self.leaving:
            outcome = FAILED if int(exitstatus) else PASSED
            self.agreement.meet("the session", "end", outcome)
            session.exitstatus = max(int(text) for text in self.agreement.texts(str(int(exitstatus))))
        agree(int(session.exitstatus))  # rank 0 has the summary yet to print
        yield

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """An interrupt or ``pytest.exit`` on one rank ends all of them; what was agreed on needs no force."""
        if not self.leaving and not excinfo.errisinstance(pytest.Session.Interrupted):
            self.say(f"rank {self.rank} of {self.size}: {excinfo.exconly()}")
            self.agreement.abort(130 if excinfo.errisinstance(KeyboardInterrupt) else ABORTED)

    @pytest.hookimpl(trylast=True)
    def pytest_internalerror(self, excrepr: object) -> None:
        """An error of pytest's own on one rank ends all of them."""
        self.say(f"rank {self.rank} of {self.size}: {excrepr}")
        self.agreement.abort()

    def _expired(self, name: str, where: str) -> None:
        """No rank came to the end of a test: say where each of them is."""
        self.say(
            f"rank {self.rank} of {self.size}: {name} did not end within "
            f"{self.watchdog.seconds:g} s; now at {where}"
        )
        time.sleep(1.0 + 0.1 * self.rank)
        self.agreement.abort()
