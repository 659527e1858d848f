"""Run a user's code in a separate process, which answers questions with plain data.

A process that judges code must not run it: the code could change the judge. A sandbox is a fork of the judge with
memory of its own. It has two pipes to the judge, no other open file, and no right to look into other processes.
Processes that it starts end with it, also if they are in sessions of their own, because a reaper waits for it. Its
prints go to stderr. It keeps the user's rights to change files and send signals. To judge code of other people, start
the judge as a user that cannot write the package.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from spmdsim.errors import NoAnswer
from spmdsim.launch import limits
from spmdsim.shutdown.processes import (
    NO_NEW_RIGHTS,
    ProcessHandle,
    end_reaper,
    fork_below_reaper,
    set_process_option,
)

Serve = Callable[[list[Any]], Any]

#: Rights of root that the process loses: CAP_SYS_MODULE, CAP_SYS_RAWIO, CAP_SYS_PTRACE, CAP_SYS_ADMIN.
_LOST_RIGHTS = (16, 17, 19, 21)
#: The version of Linux's capget and capset that has 64 rights.
_VERSION = 0x20080522


class Sandbox:
    """A process that calls ``make`` and answers questions by the function that ``make`` returns.

    Questions and answers are values of JSON. NoAnswer is raised if ``make`` or the function raises an error or reaches
    a limit, or if the process has ended.
    """

    def __init__(self, make: Callable[[], Serve]) -> None:
        (self._answers, to_us), (from_us, self._questions) = os.pipe(), os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._unread, self._failure = b"", ""
        with warnings.catch_warnings():
            # BLAS has threads, of which Python warns since 3.12; it makes its own anew in a fork.
            warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
            self._process = fork_below_reaper()
        if self._process == 0:
            _run_server(make, from_us, to_us)
        self._handle = ProcessHandle(self._process)
        os.close(to_us)
        os.close(from_us)
        limits.sandboxes.add(self)
        self._read_answer()

    def ask(self, *question: Any) -> Any:
        """Send a question to the process, wait for its answer, and return it.

        Args:
            question: values that JSON can represent. The function in the process gets them as one list.

        Returns:
            The function's result after its way through JSON: a tuple becomes a list.

        Raises:
            NoAnswer: If the function raised an error, the process ended, it reached its time limit, or it wrote what
                is no answer. Except after an error of the function, every later question raises it, too.
        """
        if self._failure:
            raise NoAnswer(self._failure)
        with suppress(BrokenPipeError):
            _write_line(self._questions, json.dumps(question))
        return self._read_answer()

    def _read_answer(self) -> Any:
        """Wait for the next answer, and return it.

        Raises NoAnswer if the function raised an error, the process ended, it reached its time limit, or it wrote a
        line of another form. Except after an error of the function, the sandbox is closed then.
        """
        kind, value = self._parse_answer()
        if kind == "error":
            raise NoAnswer(str(value))
        if kind == "answer":
            return value
        if kind == "at":
            self._fail(limits.describe_overtime(str(value)))
        self._fail("the user's code writes what is no answer")

    def _fail(self, failure: str) -> NoReturn:
        """End the process, and raise NoAnswer for this question and all later ones."""
        self._failure = failure
        self.close()
        raise NoAnswer(failure)

    def _parse_answer(self) -> tuple[Any, Any]:
        """Wait for the next line, and return its kind and its value.

        - "answer": the value is the answer.
        - "error": the value is the text of the function's error.
        - "at": the process reached its time limit; the value is the line of code that ran.
        - "" with None: the line has another form.

        Raises NoAnswer if the process ends instead.
        """
        line = self._read_line()
        with suppress(ValueError, RecursionError):
            answer = json.loads(line)
            if isinstance(answer, list) and len(answer) == 2:
                return answer[0], answer[1]
        return "", None

    def _read_line(self) -> bytes:
        """Wait for the next line from the process, and return it without its newline.

        Bytes behind the newline are stored for the next call. There is no time limit here: the process ends itself at its
        own limit.

        Raises:
            NoAnswer: If the process ends instead. Then the sandbox is closed, and later questions raise NoAnswer, too.
        """
        parts = [self._unread]
        while b"\n" not in parts[-1]:
            data = os.read(self._answers, 1 << 20)
            if not data:
                self._report_death()
            parts.append(data)
        line, _, self._unread = b"".join(parts).partition(b"\n")
        return line

    def _report_death(self) -> NoReturn:
        """Wait for the process, which has closed its pipe, and raise NoAnswer with the way it ended."""
        _, status, usage = os.wait4(self._process, 0)
        self._process, code = 0, os.waitstatus_to_exitcode(status)
        is_over = limits.is_end_by_time_limit(code, usage, limits.current)
        self._fail(limits.describe_overtime("") if is_over else limits.describe_early_exit(code))

    def find_place(self) -> str:
        """End the process, and return the line of the user's code that it ran, such as ``"lab.py:3"``.

        The process is asked for the line by a signal, and ends after its answer. The result is "" if no process runs, if it
        runs no code of the user, or if it does not answer within half of ``REPORT_SECONDS``.
        """
        if not self._process:
            return ""
        self._handle.send_signal(limits.LIMIT_SIGNAL)
        with suppress(OSError):
            os.set_blocking(self._answers, False)
        end, text = time.monotonic() + limits.REPORT_SECONDS / 2, self._unread
        while time.monotonic() < end and not text.endswith(b"\n"):
            with suppress(OSError):
                text += os.read(self._answers, 1 << 20)
            time.sleep(0.01)
        with suppress(ValueError, RecursionError, TypeError):
            kind, code_line = json.loads(text.splitlines()[-1])
            return str(code_line) if kind == "at" else ""
        return ""

    def close(self) -> None:
        """End the process, and all processes that it started."""
        if self._process:
            end_reaper(self._handle)
            self._process = 0

    def __del__(self) -> None:
        if sys is None or sys.is_finalizing():
            return  # modules are cleared already; the process ends with this one
        self.close()
        self._handle.close()
        for number in (self._answers, self._questions):
            os.close(number)


def _write_line(number: int, text: str) -> None:
    """Write all of a line to a pipe."""
    data = memoryview(text.encode() + b"\n")
    while data:
        data = data[os.write(number, data) :]


# -- the process ----------------------------------------------------------------------------------------


def _run_server(make: Callable[[], Serve], questions: int, answers: int) -> NoReturn:
    """Answer questions in the child until the parent closes the pipe; then exit with code 0.

    The child has no rights and no open files but stderr and the two pipes; its prints go to stderr. At the time limit it
    writes ``["at", line]`` to ``answers`` and ends. The parent's program must not continue here.

    Args:
        make: returns the function that answers questions.
        questions: the descriptor of the pipe from which questions are read.
        answers: the descriptor of the pipe to which answers are written.
    """
    try:
        _drop_rights()
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        _close_other_files(questions, answers)
        signal.signal(limits.LIMIT_SIGNAL, lambda _, frame: _write_place(answers, frame))
        limits.start_clock()
        _answer_questions(make, questions, answers)
    finally:
        limits.exit_now(0)


def _answer_questions(make: Callable[[], Serve], questions: int, answers: int) -> None:
    """Answer the parent's questions, one line for each, until the parent closes the pipe.

    First ``make`` is called, and the line ``["answer", null]`` is written. Each question then gets a line ``["answer",
    value]``. Cases:

    - If an error of any class is raised, SystemExit included: its line is ``["error", text]``. Later questions are answered.
    - If ``make`` fails: its line is an error, and the next question calls ``make`` again, and is not answered otherwise.
    - If the user's code forks: the new process returns without writing.

    Args:
        make: returns the function that answers questions.
        questions: the pipe from which questions are read, a line of JSON each.
        answers: the pipe to which the lines are written.
    """
    serve: Serve | None = None
    process = os.getpid()
    with open(questions, "rb", closefd=False) as lines:
        line: bytes | None = None
        while line != b"":
            try:
                if serve is None or line is None:
                    serve, answer = make(), None
                else:
                    answer = serve(json.loads(line))
                text = json.dumps(["answer", answer])
            except BaseException as error:
                text = json.dumps(["error", limits.describe_mistake(error)])
            sys.stderr.flush()
            if os.getpid() != process:  # a process that the user's code has forked must not answer
                return
            _write_line(answers, text)
            line = lines.readline()


def _write_place(answers: int, frame: FrameType | None) -> None:
    """Write the line of the user's code, and exit. Runs as the handler of the signal for a limit."""
    _write_line(answers, json.dumps(["at", limits.find_users_place(frame)]))
    limits.exit_now(1)


def _close_other_files(*numbers: int) -> None:
    """Redirect all open files except ``numbers`` and 0 to 2 to the null device.

    The descriptors stay in use, so later closes are harmless. Without ``/proc``, all descriptors up to 1023 are tried.

    Args:
        numbers: the descriptors that stay open.
    """
    null_device = os.open(os.devnull, os.O_RDWR)
    try:
        open_files = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        open_files = list(range(3, 1024))
    for number in open_files:
        if number > 2 and number not in (*numbers, null_device):
            with suppress(OSError):
                os.fstat(number)
                os.dup2(null_device, number)


def _drop_rights() -> None:
    """Give up the Linux capabilities with which this process could reach into other processes.

    Its descendants lose them, too. Programs that it starts gain none (``no_new_privs``). The capabilities in
    ``_LOST_RIGHTS`` are removed from the effective, permitted and inheritable sets. This has an effect only if the
    process has them, such as a process of root. Failures are ignored. Do nothing on a system other than Linux.
    """
    set_process_option(NO_NEW_RIGHTS, 1)
    with suppress(Exception):  # no such system
        system = ctypes.CDLL(None)
        head, rights = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
        if system.capget(head, rights) == 0:
            for k in range(3):  # the effective, permitted and inheritable sets of the capabilities 0 to 31
                for right in _LOST_RIGHTS:
                    rights[k] &= ~(1 << right)
            system.capset(head, rights)
