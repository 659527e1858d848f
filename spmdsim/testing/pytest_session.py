"""One rank's part in a common pytest session: the ranks agree, with a deadline, report once, and never hang."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import zlib
from array import array
from collections.abc import Callable, Generator
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from _pytest.terminal import TerminalReporter

from spmdsim.shutdown.stop import FORWARD_SECONDS, agree_on_code
from spmdsim.sides import name_ranks, sides
from spmdsim.testing.plugin import FAILED as FAILED_SOMEWHERE

if TYPE_CHECKING:
    from mpi4py import MPI

PASSED, SKIPPED, FAILED = range(3)
PHASES = ("collection", "setup", "call", "teardown", "end")

#: Polls before the first sleep: when all ranks come together nobody sleeps.
SPINS = 200
#: Tags of the question "who is here?" and of its answer.
ROLL_CALL, HERE = 1, 2
ROLL_CALL_SECONDS = 0.5

#: Exit code when the job had to be ended: the one pytest has for its own errors.
ABORTED = 3
CODES = {"passed": PASSED, "skipped": SKIPPED, "failed": FAILED}

#: Only rank 0 colours its texts; without them equal failures are equal.
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
#: A test may take this many deadlines when all ranks are still in it.
WATCHDOG_FACTOR = 2.0


class Agreement:
    """The object through which ranks exchange outcomes with a deadline."""

    def __init__(
        self, comm: MPI.Comm, deadline: float, deadline_failed: float, say: Callable[[str], None]
    ) -> None:
        self.comm, self.say = comm.Dup(), say
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.deadline, self.deadline_failed = deadline, min(deadline, deadline_failed)

    def meet(self, what: str, phase: str, outcome: int, message: str = "") -> list[int]:
        """Exchange outcomes with all ranks and return them by rank; end the job if a rank is late or elsewhere."""
        mine = array("q", [zlib.crc32(what.encode()), PHASES.index(phase), outcome])
        every = array("q", bytes(8 * 3 * self.size))
        request = self.comm.Iallgather(mine, every)
        seconds = self.deadline_failed if outcome == FAILED else self.deadline
        if not self._wait(request, seconds):
            self._missing(what, phase, seconds, message)
        records = [tuple(every[3 * r : 3 * r + 3]) for r in range(self.size)]
        if any(record[:2] != records[0][:2] for record in records):
            self._astray(what, phase, records, message)
        return [record[2] for record in records]

    def texts(self, text: str) -> list[str]:
        """Return the texts of all ranks; all ranks call it right after :meth:`meet`."""
        gathered: list[str] = self.comm.allgather(text)
        return gathered

    def _wait(self, request: Any, seconds: float) -> bool:
        """Poll until done or late; answer roll calls of other ranks meanwhile."""
        for _ in range(SPINS):
            if request.Test():
                return True
        end = time.monotonic() + seconds
        while not request.Test():
            if time.monotonic() > end:
                return False
            self._answer(late=False)
            time.sleep(0.0005)
        return True

    def _answer(self, late: bool) -> None:
        for rank in range(self.size):
            if self.comm.iprobe(source=rank, tag=ROLL_CALL):
                self.comm.recv(source=rank, tag=ROLL_CALL)
                self.comm.isend(late, dest=rank, tag=HERE)

    def _roll_call(self) -> dict[int, bool]:
        """Ask which ranks wait here, too, and whether they are late."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        requests = [self.comm.isend(None, dest=rank, tag=ROLL_CALL) for rank in others]
        here = {self.rank: True}
        end = time.monotonic() + ROLL_CALL_SECONDS
        while time.monotonic() < end and len(here) < self.size:
            self._answer(late=True)
            for rank in others:
                if rank not in here and self.comm.iprobe(source=rank, tag=HERE):
                    here[rank] = self.comm.recv(source=rank, tag=HERE)
            time.sleep(0.001)
        del requests  # kept until here: a message whose request is gone may be lost
        return here

    def _missing(self, what: str, phase: str, seconds: float, message: str) -> NoReturn:
        here = self._roll_call()
        away = [rank for rank in range(self.size) if rank not in here]
        self._say_failed(what, phase, message)
        if self.rank == min(rank for rank, late in here.items() if late):
            absent = f"ranks {away} of {self.size} did not come within {seconds:g} s"
            self.say(f"{what} ({phase}): {absent} to where ranks {sorted(here)} wait; the job ends")
            self.abort()
        time.sleep(2 * ROLL_CALL_SECONDS)  # let the rank that speaks end the job
        self.abort()

    def _astray(self, what: str, phase: str, records: list[Any], message: str) -> NoReturn:
        self._say_failed(what, phase, message)
        together = [r for r, record in enumerate(records) if record[:2] == records[self.rank][:2]]
        if self.rank == min(together):
            self.say(f"ranks {together} of {self.size} are at {what} ({phase}), others are not")
        time.sleep(ROLL_CALL_SECONDS)  # let every group say where it is
        self.abort()

    def _say_failed(self, what: str, phase: str, message: str) -> None:
        if message:
            self.say(f"rank {self.rank} of {self.size}: {what} ({phase}) failed\n{message}")

    def abort(self, code: int = ABORTED) -> NoReturn:
        """End all ranks now."""
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(FORWARD_SECONDS)
        self.comm.Abort(code)
        raise SystemExit(code)


def _place(frame: FrameType | None) -> str:
    """Describe the place of a frame as in a traceback, with up to three callers."""
    places: list[str] = []
    while frame is not None and len(places) < 3:
        code = frame.f_code
        places.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back
    return " < ".join(places)


class RankSession:
    """The pytest hooks of a rank. All ranks call them in one order, or the job ends with the reason."""

    def __init__(self, config: pytest.Config) -> None:
        from mpi4py import MPI

        self.config = config
        deadline, failed = (config.getoption(f"--mpi-deadline{of}") for of in ("", "-failed"))
        self.agreement = Agreement(MPI.COMM_WORLD, deadline, failed, self.say)
        self.rank, self.size = self.agreement.rank, self.agreement.size
        self.leaving = False
        self.seconds = WATCHDOG_FACTOR * deadline
        if self.rank:
            self._be_quiet()

    def say(self, text: str) -> None:
        """Write to the real stderr, past pytest's capturing, in one piece."""
        capture: Any = self.config.pluginmanager.getplugin("capturemanager")
        saved = getattr(getattr(capture, "_global_capturing", None), "err", None)
        descriptor = getattr(saved, "targetfd_save", None)
        os.write(descriptor if isinstance(descriptor, int) else 2, f"\n{text}\n".encode())

    def _be_quiet(self) -> None:
        """Suppress the reports of ranks other than 0."""
        manager = self.config.pluginmanager
        old = manager.getplugin("terminalreporter")
        if old is not None:
            manager.unregister(old)
        nowhere = open(os.devnull, "w")  # noqa: SIM115 - lives as long as the process
        manager.register(TerminalReporter(self.config, nowhere), "terminalreporter")

    # --- collection ---------------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Check that all ranks collected equal tests without errors."""
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
        """Skip the summary on ranks whose summary is not shown."""
        result = yield
        if self.rank:
            self.config.pluginmanager.unregister(name="terminalreporter")
        return result

    # --- one test -----------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Watch the deadline of the whole test."""
        watchdog = threading.Timer(self.seconds, self._expired, [item.nodeid])
        watchdog.daemon = True
        watchdog.start()
        result = yield
        watchdog.cancel()
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Agree on the outcome of a phase before any rank continues."""
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
        lines = [f"{name} ({phase}) failed on ranks {failed} of {self.size}"]
        for ranks, text in sides((rank, texts[rank]) for rank in failed):
            lines += [f"--- {name_ranks(ranks)}:", text]
        return "\n".join(lines)

    # --- the end ------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
        """Set one exit code for all ranks: the worst one."""
        if not self.leaving:
            outcome = FAILED if int(exitstatus) else PASSED
            self.agreement.meet("the session", "end", outcome)
            session.exitstatus = max(int(text) for text in self.agreement.texts(str(int(exitstatus))))
        agree_on_code(int(session.exitstatus))  # rank 0 has the summary yet to print
        yield

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """End all ranks after an interrupt or ``pytest.exit`` on one rank; agreed ends need no abort."""
        if not self.leaving and not excinfo.errisinstance(pytest.Session.Interrupted):
            self.say(f"rank {self.rank} of {self.size}: {excinfo.exconly()}")
            self.agreement.abort(130 if excinfo.errisinstance(KeyboardInterrupt) else ABORTED)

    @pytest.hookimpl(trylast=True)
    def pytest_internalerror(self, excrepr: object) -> None:
        """End all ranks after an internal error of pytest on one rank."""
        self.say(f"rank {self.rank} of {self.size}: {excrepr}")
        self.agreement.abort()

    def _expired(self, name: str) -> None:
        """Report this rank's place when a test exceeds its deadline, and end the job.

        A thread does: it works while the main one sits inside an MPI call, which signals do not.
        """
        where = _place(sys._current_frames().get(threading.main_thread().ident or 0))
        self.say(
            f"rank {self.rank} of {self.size}: {name} did not end within {self.seconds:g} s; now at {where}"
        )
        time.sleep(1.0 + 0.1 * self.rank)
        self.agreement.abort()
