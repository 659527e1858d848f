"""Run a user's code in a separate process, which answers questions with plain data.

Whoever judges code must not run it: it could change the judge. The process that runs it is a fork whose memory is its own;
it has two pipes to who asks, and nothing else of theirs: no other open file, and no right to look into other processes.
Whatever processes it starts end with it, also those that left their parent's process group or session: a reaper waits for it.
What it prints goes to stderr. It keeps what its user may do with files and with signals: who lets others judge themselves
gives them a user who may not write the package.
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
from spmdsim.shutdown.processes import NO_NEW_RIGHTS, ProcessHandle, fork_below_reaper, set_process_option

Serve = Callable[[list[Any]], Any]

#: Rights of root that the process loses: to load code into the system, to look into other processes, to administrate.
_LOST = (16, 17, 19, 21)
_VERSION = 0x20080522


class Sandbox:
    """Asks a function questions that ``make``, called in a process of its own, gives; both are as JSON has them.

    NoAnswer: it cannot be made, raised an error or reached a limit, or its process has ended.
    """

    def __init__(self, make: Callable[[], Serve]) -> None:
        (self._answers, to_us), (from_us, self._questions) = os.pipe(), os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._rest, self._why = b"", ""
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
        """Return the answer to a question. Raises NoAnswer."""
        if self._why:
            raise NoAnswer(self._why)
        with suppress(BrokenPipeError):
            _write(self._questions, json.dumps(question))
        return self._read_answer()

    def _read_answer(self) -> Any:
        kind, said = self._parse_answer()
        if kind == "error":
            raise NoAnswer(str(said))
        if kind == "answer":
            return said
        self._fail(
            limits.describe_overtime(str(said))
            if kind == "at"
            else "the user's code writes what is no answer"
        )

    def _fail(self, why: str) -> NoReturn:
        self._why = why
        self.close()
        raise NoAnswer(why)

    def _parse_answer(self) -> tuple[Any, Any]:
        line = self._read_line()
        with suppress(ValueError, RecursionError):
            answer = json.loads(line)
            if isinstance(answer, list) and len(answer) == 2:
                return answer[0], answer[1]
        return "", None

    def _read_line(self) -> bytes:
        parts = [self._rest]
        while b"\n" not in parts[-1]:
            data = os.read(self._answers, 1 << 20)
            if not data:
                self._report_death()
            parts.append(data)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line

    def _report_death(self) -> NoReturn:
        _, status, used = os.wait4(self._process, 0)
        self._process, code = 0, os.waitstatus_to_exitcode(status)
        over = 0 < limits.current.seconds <= used.ru_utime + used.ru_stime
        over = over and code in (-limits.OVER, -signal.SIGKILL)
        self._fail(limits.describe_overtime("") if over else limits.describe_own_exit(code))

    def find_place(self) -> str:
        """Return the line of code that does not end; empty if the process does not answer soon."""
        if not self._process:
            return ""
        self._handle.send_signal(limits.OVER)
        with suppress(OSError):
            os.set_blocking(self._answers, False)
        end, said = time.monotonic() + limits.LAST_WORDS / 2, self._rest
        while time.monotonic() < end and not said.endswith(b"\n"):
            with suppress(OSError):
                said += os.read(self._answers, 1 << 20)
            time.sleep(0.01)
        with suppress(ValueError, RecursionError, TypeError):
            kind, place = json.loads(said.splitlines()[-1])
            return str(place) if kind == "at" else ""
        return ""

    def close(self) -> None:
        """End the process, and all processes that it started."""
        if self._process:
            self._handle.send_signal(signal.SIGTERM)
            self._handle.send_signal(signal.SIGCONT)  # the user's code may have stopped its reaper
            os.waitpid(self._process, 0)
            self._process = 0

    def __del__(self) -> None:
        if sys is None or sys.is_finalizing():
            return  # modules go already; the process ends with this one
        self.close()
        self._handle.close()
        for number in (self._answers, self._questions):
            os.close(number)


def _write(number: int, text: str) -> None:
    data = memoryview(text.encode() + b"\n")
    while data:
        data = data[os.write(number, data) :]


# -- the process ----------------------------------------------------------------------------------------


def _run_server(make: Callable[[], Serve], questions: int, answers: int) -> NoReturn:
    """Answer questions in the child until the parent closes the pipe. Nothing of the parent continues here."""
    me = os.getpid()
    try:
        _drop_rights()
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        _close_other_files(questions, answers)
        signal.signal(limits.OVER, lambda _, frame: _write_place(answers, frame))
        limits.start_clock()
        _answer_questions(make, questions, answers, me)
    finally:
        limits.leave(0)


def _answer_questions(make: Callable[[], Serve], questions: int, answers: int, me: int) -> None:
    serve, rest = None, b""
    question: list[Any] | None = None
    while True:
        try:
            if question is None:
                serve, said = make(), ["answer", None]
            else:
                assert serve is not None
                said = ["answer", serve(question)]
            text = json.dumps(said)
        except BaseException as error:
            text = json.dumps(["error", limits.describe_mistake(error)])
        sys.stderr.flush()
        if os.getpid() != me:  # what the user's code has forked has nothing to say
            return
        _write(answers, text)
        while b"\n" not in rest:
            if not (data := os.read(questions, 1 << 16)):
                return
            rest += data
        line, _, rest = rest.partition(b"\n")
        question = json.loads(line)


def _write_place(answers: int, frame: FrameType | None) -> None:
    _write(answers, json.dumps(["at", limits.find_users_place(frame)]))
    limits.leave(1)


def _close_other_files(*numbers: int) -> None:
    """Redirect all open files but these to the null device. Their numbers stay in use, so later closes are harmless."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        open_files = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        open_files = list(range(3, 1024))
    for number in open_files:
        if number > 2 and number not in (*numbers, nowhere):
            with suppress(OSError):
                os.fstat(number)
                os.dup2(nowhere, number)


def _drop_rights() -> None:
    """Gain no rights, and as root lose those that reach into others (on Linux)."""
    set_process_option(NO_NEW_RIGHTS, 1)
    with suppress(Exception):  # no such system
        system = ctypes.CDLL(None)
        head, rights = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
        if system.capget(head, rights) == 0:
            for k in range(3):
                for right in _LOST:
                    rights[k] &= ~(1 << right)
            system.capset(head, rights)
