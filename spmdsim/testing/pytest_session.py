"""Take part in a common pytest session: exchange outcomes with a deadline, report once, end the job on a hang.

:class:`RankSession` has the hooks of pytest. :class:`Agreement` exchanges outcomes between ranks. A rank that misses
the deadline is found by a roll call: a question to which only waiting ranks answer.
"""

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

if TYPE_CHECKING:
    from mpi4py import MPI

PASSED, SKIPPED, FAILED = range(3)
PHASES = ("collection", "setup", "call", "teardown", "end")

#: Polls before the first sleep, so that ranks that arrive together do not sleep.
SPINS = 200
#: Tags of a roll call (the question which ranks wait) and of its answer.
ROLL_CALL, HERE = 1, 2
ROLL_CALL_SECONDS = 0.5

#: Exit code of an aborted job: pytest's code for internal errors.
ABORTED = 3
CODES = {"passed": PASSED, "skipped": SKIPPED, "failed": FAILED}

#: Colours are removed from failures, because only rank 0 has them and equal failures are grouped.
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
#: Limit of a test's duration, in deadlines.
WATCHDOG_FACTOR = 2.0


class Agreement:
    """An exchange of outcomes between ranks, with a deadline.

    Args:
        comm: the communicator of all ranks.
        deadline: seconds for which a rank waits for the others.
        deadline_failed: seconds for which a failed rank waits for the others.
        say: function that prints a text on the real stderr.
    """

    def __init__(
        self, comm: MPI.Comm, deadline: float, deadline_failed: float, say: Callable[[str], None]
    ) -> None:
        self.comm, self.say = comm.Dup(), say
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.deadline, self.deadline_failed = deadline, min(deadline, deadline_failed)

    def exchange_outcomes(self, what: str, phase: str, outcome: int, message: str = "") -> list[int]:
        """Exchange the outcome of a phase of a test with all ranks; return the outcomes by rank.

        For example, [PASSED, FAILED] if rank 1 of 2 failed. Abort the job if a rank does not arrive before the
        deadline, or is at another test or phase. A rank that failed waits ``deadline_failed`` seconds, others
        ``deadline`` seconds. All ranks must call it.

        Args:
            what: name of the test.
            phase: one of PHASES.
            outcome: PASSED, SKIPPED or FAILED.
            message: text of the failure, printed if the job is aborted.
        """
        own_record = array("q", [zlib.crc32(what.encode()), PHASES.index(phase), outcome])
        all_records = array("q", bytes(8 * 3 * self.size))
        request = self.comm.Iallgather(own_record, all_records)
        seconds = self.deadline_failed if outcome == FAILED else self.deadline
        if not self._wait(request, seconds):
            self._abort_missing(what, phase, seconds, message)
        records = [tuple(all_records[3 * r : 3 * r + 3]) for r in range(self.size)]
        tests_and_phases = {record[:2] for record in records}
        if len(tests_and_phases) > 1:
            self._abort_diverged(what, phase, records, message)
        return [record[2] for record in records]

    def gather_texts(self, text: str) -> list[str]:
        """Return the texts of all ranks; all ranks call it right after ``exchange_outcomes``."""
        gathered: list[str] = self.comm.allgather(text)
        return gathered

    def _wait(self, request: Any, seconds: float) -> bool:
        """Wait for a request; return True when it is complete, False after ``seconds``.

        Poll :data:`SPINS` (200) times without a pause, then every 0.5 ms. Answer roll calls of other ranks between
        slow polls.

        Args:
            request: the MPI request.
            seconds: the deadline, from now on.
        """
        for _ in range(SPINS):
            if request.Test():
                return True
        end = time.monotonic() + seconds
        while not request.Test():
            if time.monotonic() > end:
                return False
            self._answer_roll_calls(late=False)
            time.sleep(0.0005)
        return True

    def _answer_roll_calls(self, late: bool) -> None:
        """Answer the roll calls that have arrived from other ranks: this rank waits in an exchange.

        ``late`` is the answer: True if this rank's deadline is over.
        """
        for rank in range(self.size):
            if self.comm.iprobe(source=rank, tag=ROLL_CALL):
                self.comm.recv(source=rank, tag=ROLL_CALL)
                self.comm.isend(late, dest=rank, tag=HERE)

    def _roll_call(self) -> dict[int, bool]:
        """Ask all ranks if they wait in an exchange; return {rank: True if its deadline is over}.

        This rank calls it when its own deadline is over, so its own entry is True. A rank that still waits with time
        left answers False; a rank that does not wait, because its test still runs, does not answer and has no entry.
        This rank answers other ranks' roll calls meanwhile. Return when all ranks have answered, at the latest after
        :data:`ROLL_CALL_SECONDS` (0.5 s).
        """
        others = [rank for rank in range(self.size) if rank != self.rank]
        requests = [self.comm.isend(None, dest=rank, tag=ROLL_CALL) for rank in others]
        waiting = {self.rank: True}
        end = time.monotonic() + ROLL_CALL_SECONDS
        while time.monotonic() < end and len(waiting) < self.size:
            self._answer_roll_calls(late=True)
            for rank in others:
                if rank not in waiting and self.comm.iprobe(source=rank, tag=HERE):
                    waiting[rank] = self.comm.recv(source=rank, tag=HERE)
            time.sleep(0.001)
        del requests  # not earlier, because a message can be lost without its request
        return waiting

    def _abort_missing(self, what: str, phase: str, seconds: float, message: str) -> NoReturn:
        """Print which ranks are missing, and abort the job, because this rank's deadline is over.

        The deadlines of other waiting ranks may be over, too. The lowest of these ranks prints and aborts. The others
        leave it 1 s to do so, and then abort the job themselves. Each rank first prints its own failure, if any.

        Args:
            what: name of the test.
            phase: one of PHASES.
            seconds: the deadline that is over.
            message: text of this rank's failure, which is printed first; empty if it has not failed.
        """
        waiting = self._roll_call()
        missing = [rank for rank in range(self.size) if rank not in waiting]
        self._print_failure(what, phase, message)
        if self.rank == min(rank for rank, late in waiting.items() if late):
            absent = f"ranks {missing} of {self.size} did not come within {seconds:g} s"
            self.say(f"{what} ({phase}): {absent} to where ranks {sorted(waiting)} wait; the job ends")
            self.abort()
        time.sleep(2 * ROLL_CALL_SECONDS)  # let the rank that prints abort the job
        self.abort()

    def _abort_diverged(self, what: str, phase: str, records: list[Any], message: str) -> NoReturn:
        """Print which ranks are at which test, and abort the job after 0.5 s.

        The lowest rank of each group of ranks at one test and phase prints.
        """
        self._print_failure(what, phase, message)
        own_test_and_phase = records[self.rank][:2]
        same_test = [rank for rank, record in enumerate(records) if record[:2] == own_test_and_phase]
        if self.rank == min(same_test):
            self.say(f"ranks {same_test} of {self.size} are at {what} ({phase}), others are not")
        time.sleep(ROLL_CALL_SECONDS)  # let every group print its test
        self.abort()

    def _print_failure(self, what: str, phase: str, message: str) -> None:
        """Print the failure of this rank, if it has one."""
        if message:
            self.say(f"rank {self.rank} of {self.size}: {what} ({phase}) failed\n{message}")

    def abort(self, code: int = ABORTED) -> NoReturn:
        """Abort the job with an exit code, after the output had time to be forwarded.

        All ranks end, by MPI_Abort.

        Args:
            code: the exit code; by default pytest's code for internal errors, 3.

        Raises:
            SystemExit: If MPI_Abort returns.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(FORWARD_SECONDS)
        self.comm.Abort(code)
        raise SystemExit(code)


def _frame_words(frame: FrameType | None) -> str:
    """Return the file, line and function of a frame and of up to two callers, joined by " < ".

    The innermost function comes first, as in "a.py:3 in f < b.py:9 in g".
    """
    places: list[str] = []
    while frame is not None and len(places) < 3:
        code = frame.f_code
        places.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back
    return " < ".join(places)


class RankSession:
    """The pytest hooks of a rank; if ranks call them in different order, the job ends with a message.

    Args:
        config: the configuration of the session.
        failed_key: the key under which a test stores True if it failed on any rank.
    """

    def __init__(self, config: pytest.Config, failed_key: pytest.StashKey[bool]) -> None:
        from mpi4py import MPI

        self.config, self.failed_key = config, failed_key
        deadline, failed = (config.getoption(f"--mpi-deadline{suffix}") for suffix in ("", "-failed"))
        self.agreement = Agreement(MPI.COMM_WORLD, deadline, failed, self.say)
        self.rank, self.size = self.agreement.rank, self.agreement.size
        self.is_exiting = False
        self.seconds = WATCHDOG_FACTOR * deadline
        if self.rank:
            self._silence_reporter()

    def say(self, text: str) -> None:
        """Write to the real stderr, past pytest's capturing, with one call."""
        capture: Any = self.config.pluginmanager.getplugin("capturemanager")
        saved = getattr(getattr(capture, "_global_capturing", None), "err", None)
        descriptor = getattr(saved, "targetfd_save", None)
        os.write(descriptor if isinstance(descriptor, int) else 2, f"\n{text}\n".encode())

    def _silence_reporter(self) -> None:
        """Replace pytest's reporter by a reporter that prints nothing; only rank 0 reports.

        Without pytest's reporter, only the silent one is added.
        """
        manager = self.config.pluginmanager
        old = manager.getplugin("terminalreporter")
        if old is not None:
            manager.unregister(old)
        nowhere = open(os.devnull, "w")  # noqa: SIM115 - lives as long as the process
        manager.register(TerminalReporter(self.config, nowhere), "terminalreporter")

    # --- collection ---------------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Exit the session on all ranks unless all collected equal tests without errors.

        If all ranks have errors, pytest reports them itself. All ranks call it, and wait for each other.

        Args:
            session: pytest's session; its items are the collected tests.

        Raises:
            pytest.exit.Exception: If some ranks have errors, or the tests or their order differ.
        """
        ids = [item.nodeid for item in session.items]
        failed = session.testsfailed > 0
        outcomes = self.agreement.exchange_outcomes("the tests", "collection", FAILED if failed else PASSED)
        digests = self.agreement.gather_texts(f"{len(ids)}:{zlib.crc32(chr(10).join(ids).encode())}")
        bad = [rank for rank, outcome in enumerate(outcomes) if outcome == FAILED]
        if bad and len(bad) < self.size:
            self._exit_together(f"collecting the tests failed on ranks {bad} of {self.size}", failed)
        if len(set(digests)) > 1:
            self._exit_together(self._describe_difference(ids), False)

    def _describe_difference(self, ids: list[str]) -> str:
        """Return a sentence about how the tests that ranks collected differ; all ranks call it.

        The sentence names the first rank with a test that another rank lacks, and the first of these tests in
        alphabetical order. If all ranks have equal sets of tests, the sentence is about their order.
        """
        # The text of a rank without tests is empty, which is no test.
        tests_of_ranks = [{*text.split("\n")} - {""} for text in self.agreement.gather_texts("\n".join(ids))]
        common = set.intersection(*tests_of_ranks)
        for rank, tests in enumerate(tests_of_ranks):
            if tests != common:
                return f"rank {rank} has tests that others lack, such as {min(tests - common)}"
        return "the ranks have the same tests in different orders"

    def _exit_together(self, reason: str, has_errors: bool) -> NoReturn:
        """Print the collection errors of all ranks on rank 0, and end the session.

        All ranks call it.
        """
        errors = self._collection_errors() if has_errors else ""
        for rank, text in enumerate(self.agreement.gather_texts(errors)):
            if text and self.rank == 0:
                self.say(f"rank {rank} of {self.size}:\n{text}")
        self.is_exiting = True
        pytest.exit(reason, returncode=int(pytest.ExitCode.INTERRUPTED))

    def _collection_errors(self) -> str:
        """Return the collection errors of this rank as text."""
        reporter: Any = self.config.pluginmanager.getplugin("terminalreporter")
        return "\n".join(report.longreprtext for report in reporter.stats.get("error", []))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Remove the reporter of ranks other than 0 before it prints a summary."""
        result = yield
        if self.rank:
            self.config.pluginmanager.unregister(name="terminalreporter")
        return result

    # --- one test -----------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Run a test; abort the job if it takes longer than :data:`WATCHDOG_FACTOR` (2) deadlines.

        A timer in another thread watches the test. The hook yields once, to the test, and returns pytest's result
        unchanged.

        Args:
            item: the test.
        """
        watchdog = threading.Timer(self.seconds, self._abort_expired, [item.nodeid])
        watchdog.daemon = True
        watchdog.start()
        result = yield
        watchdog.cancel()
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Exchange the outcome of a phase before any rank continues; return this rank's report.

        All ranks must call it. If a rank failed, every rank's report becomes failed and has the texts of all failing
        ranks, which rank 0 prints; an expected failure (xfail) then counts as failed. The item is marked with
        ``failed_key``. Without a failure, reports stay unchanged. A rank that skips the setup of a test that
        another rank runs takes part in the exchange after the call, too.

        Args:
            item: the test.
            call: not used; the hook's interface has it.
        """
        report = yield
        outcomes = self._agree(report, report.when)
        if FAILED in outcomes:
            item.stash[self.failed_key] = True
        if report.when == "setup" and report.skipped and PASSED in outcomes:
            # Other ranks run the test now. Take part in the exchange after it.
            self._agree(report, "call")
        return report

    def _agree(self, report: pytest.TestReport, phase: str) -> list[int]:
        """Exchange the outcome of a phase of a test; change this rank's report if any rank failed.

        If the phase failed on any rank, the report becomes "failed" on all ranks, with the texts of all failing
        ranks, which rank 0 prints. An expected failure of this rank (xfail) then counts as failed, too. All ranks
        must call it.

        Args:
            report: this rank's report.
            phase: the phase of the exchange. If ``report`` is of another phase, because this rank skipped the setup,
                the outcome of this rank is SKIPPED.

        Returns:
            The outcomes by rank.
        """
        outcome = CODES[report.outcome]
        if phase != report.when:
            outcome = SKIPPED
        text = COLOURS.sub("", report.longreprtext) if outcome == FAILED else ""
        outcomes = self.agreement.exchange_outcomes(report.nodeid, phase, outcome, text)
        failed = [rank for rank, code in enumerate(outcomes) if code == FAILED]
        if failed:
            texts = self.agreement.gather_texts(text)
            report.outcome = "failed"
            report.__dict__.pop("wasxfail", None)
            report.longrepr = self._failure_text(report.nodeid, phase, failed, texts)
            if self.rank == 0:
                self.say(report.longrepr)
        return outcomes

    def _failure_text(self, name: str, phase: str, failed: list[int], texts: list[str]) -> str:
        """Return a text with the failing ranks; equal failures are printed once."""
        lines = [f"{name} ({phase}) failed on ranks {failed} of {self.size}"]
        for ranks, text in sides((rank, texts[rank]) for rank in failed):
            lines += [f"--- {name_ranks(ranks)}:", text]
        return "\n".join(lines)

    # --- end of the session ---------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
        """Set one exit code for all ranks: the largest one.

        Nothing is exchanged if all ranks exit together after a failed collection. The hook yields once, to pytest's
        own end of the session, after all ranks know the code.

        Args:
            session: pytest's session; its exit status is set.
            exitstatus: this rank's exit code.
        """
        if not self.is_exiting:
            outcome = FAILED if int(exitstatus) else PASSED
            self.agreement.exchange_outcomes("the session", "end", outcome)
            session.exitstatus = max(int(text) for text in self.agreement.gather_texts(str(int(exitstatus))))
        agree_on_code(int(session.exitstatus))  # rank 0 prints its summary after this
        yield

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Abort the job after an interrupt or ``pytest.exit`` on one rank; a common exit needs no abort."""
        if not self.is_exiting and not excinfo.errisinstance(pytest.Session.Interrupted):
            self.say(f"rank {self.rank} of {self.size}: {excinfo.exconly()}")
            self.agreement.abort(130 if excinfo.errisinstance(KeyboardInterrupt) else ABORTED)

    @pytest.hookimpl(trylast=True)
    def pytest_internalerror(self, excrepr: object) -> None:
        """Abort the job after an internal error of pytest on one rank."""
        self.say(f"rank {self.rank} of {self.size}: {excrepr}")
        self.agreement.abort()

    def _abort_expired(self, name: str) -> None:
        """Print this rank's current source line when a test exceeds its deadline, and abort the job.

        The line is the one at which the main thread is.

        A timer calls it in a thread of its own, which runs even while the main thread is inside an MPI call; the
        handler of a signal would not. The abort comes after 1 s and 0.1 s times the rank's number, so that all ranks
        can print.
        """
        where = _frame_words(sys._current_frames().get(threading.main_thread().ident or 0))
        self.say(
            f"rank {self.rank} of {self.size}: {name} did not end within {self.seconds:g} s; now at {where}"
        )
        time.sleep(1.0 + 0.1 * self.rank)
        self.agreement.abort()
