"""Run a command's body, which runs a user's code, in a child process with limits of time, memory and output.

The child is a fork: it starts at once and has the state of its parent. It reports its end through a pipe. A child that
is killed, or that the user's code ends with any exit code, does not report and is an error.
"""

from __future__ import annotations

import math
import os
import secrets
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO
from weakref import WeakSet

from spmdsim.errors import InputError, SpmdError
from spmdsim.launcher import launched
from spmdsim.reading import one_line
from spmdsim.shutdown.processes import (
    PASSED_SIGNAL,
    ProcessHandle,
    end_reaper,
    fork_below_reaper,
    list_children,
    make_unreadable,
    read_status,
)
from spmdsim.shutdown.stop import is_users_file
from spmdsim.worlds.trace.source_lines import format_place

if TYPE_CHECKING:
    from resource import struct_rusage

MIB = 1 << 20
#: The limits if nothing else is asked for.
SECONDS, MEMORY_MIB, OUTPUT_MIB = 10, 4096, 64
#: The time that a process may take by the clock is ``WALL`` times its limit of processor time. While the process
#: works, ``LOADING`` seconds are added, and the time that it has waited for a processor, which counts up to
#: ``MOST_WAITING`` times the limit of processor time.
WALL, MOST_WAITING = 2, 8
#: Seconds of processor time for what a command itself needs until the user's code begins.
LOADING = 5
#: Seconds for a process at its limit to report its line: by the clock, and of processor time.
REPORT_SECONDS, LAST_SECONDS = 5.0, 2
#: The exit of the system: a simulation replaces ``os._exit``.
exit_now = os._exit
#: The signal by which a process that reaches a limit is asked for its line, by the system or by its parent.
LIMIT_SIGNAL = PASSED_SIGNAL


@dataclass(frozen=True)
class Limits:
    """The limits of a command; 0 is no limit.

    Attributes:
        seconds: processor time. The time by the clock has a limit, too (see :data:`WALL`).
        memory: bytes beyond the memory that the command itself needs; only on Linux.
        output: bytes that are printed, but not to a terminal.
    """

    seconds: float = SECONDS
    memory: int = MEMORY_MIB * MIB
    output: int = OUTPUT_MIB * MIB


def run_limited(body: Callable[[], int], limits: Limits, reads: bool = False) -> int:
    """Run a function in a child process with limits, and return its exit code.

    The child, and all processes that it started, end before this function returns. If the user presses Ctrl-C, the line
    of the user's code that ran is printed.

    The function runs in this process without limits if all limits are 0, if this process is a rank of an MPI job, or if
    the system cannot fork.

    Args:
        body: the function, which runs the user's code and returns an exit code.
        limits: the limits on processor time, memory and output; 0 for none.
        reads: True if the user's code may read stdin. Otherwise its stdin is empty.

    Raises:
        InputError: If the function reached a limit, raised a mistake of the user's code (see :func:`_run_body`), or its
            process ended before the function did.
        KeyboardInterrupt: After Ctrl-C.
    """
    if not hasattr(os, "fork") or launched() or limits == Limits(0, 0, 0):
        return body()
    streams = [stream for stream in (sys.stdout, sys.stderr) if not stream.isatty()]
    pipes = [os.pipe() for _ in streams]  # a terminal stays the child's, which asks for its colours and width
    report = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    # A terminal stops a process that reads from it outside of the terminal's group.
    in_group = reads and sys.stdin is not None and sys.stdin.isatty()
    secret = secrets.token_hex(8)
    with make_unreadable():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, such as numpy's
            child = fork_below_reaper()
        if child == 0:
            writes = {1 if stream is sys.stdout else 2: end for stream, (_, end) in zip(streams, pipes)}
            _run_child(body, limits, writes, (report[1], secret), reads, in_group)
        for _, end in (*pipes, report):
            os.close(end)
        pipes_of = dict(zip([end for end, _ in pipes], streams))
        return _ChildWatch(child, limits, pipes_of, report[0], in_group, secret).run()


# -- the child ------------------------------------------------------------------------------------------

_memory = 0  # the limit of this process in bytes
#: The limits of this process.
current = Limits(0, 0, 0)
#: The sandboxes of this process: the user's code may run in one of them.
sandboxes: WeakSet[Any] = WeakSet()


def describe_memory_limit() -> str:
    """Return the memory limit of this process in words, to follow a message on a lack of memory."""
    return f" (the limit is {_memory // MIB:,} MiB: --memory-limit)" if _memory else ""


def describe_overtime(code_line: str) -> str:
    """Return the message for code that has reached the time limit. ``code_line`` is its line, or empty."""
    return f"{code_line}{': ' * bool(code_line)}{_describe_time_limit(current)}"


def _describe_time_limit(limits: Limits) -> str:
    return f"it has not ended after {limits.seconds:g} s: --time-limit allows more"


def is_end_by_time_limit(status: int, usage: struct_rusage, limits: Limits) -> bool:
    """Return True if the system has ended a process at its limit of processor time.

    Args:
        status: its exit code, or minus its signal.
        usage: the processor time that it and its descendants have used.
        limits: its limits.
    """
    is_over = 0 < limits.seconds <= usage.ru_utime + usage.ru_stime
    return is_over and status in (-LIMIT_SIGNAL, -signal.SIGKILL)


def describe_early_exit(status: int) -> str:
    """Return the words for code that has ended its own process."""
    end = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
    return f"the program ended its own process with {end}: nothing can be said of it"


def _run_child(
    body: Callable[[], int],
    limits: Limits,
    writes: dict[int, int],
    report: tuple[int, str],
    reads: bool,
    in_group: bool,
) -> NoReturn:
    """Run the function in the forked child, report how it ended, and exit with code 0.

    Before, stdin is replaced by an empty file (unless ``reads``), stdout and stderr by pipes, and the limits are set. The
    report is a line in the pipe ``report``: the secret text, then the outcome (see :func:`_run_body`). The parent reads
    from it how the function ended, so the exit code does not matter.

    Args:
        body: the function, which runs the user's code.
        limits: the limits.
        writes: the pipes that replace stdout (1) and stderr (2); one that is a terminal is missing, and stays.
        report: the descriptor for the line of the report, and the secret text that begins it.
        reads: True if the user's code may read stdin.
        in_group: True to stay in the parent's process group, which may read from the terminal.
    """
    process, outcome = os.getpid(), ""
    try:
        if not in_group:
            os.setpgid(0, 0)
        if not reads:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.stdin = open(0, closefd=False)  # noqa: SIM115 - lives as long as the process
        for number, end in writes.items():
            os.dup2(end, number)
            name = "stdout" if number == 1 else "stderr"
            setattr(sys, name, _open_like(getattr(sys, name), number))
        _set_limits(limits, report[0], report[1])
        outcome = _run_body(body)
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        if os.getpid() == process:  # not in a process that the user's code has forked
            os.write(report[0], f"{report[1]} {outcome}\n".encode(errors="surrogateescape"))
        exit_now(0)


def _open_like(stream: TextIO, number: int) -> TextIO:
    """Return a stream into a file descriptor with the encoding of another stream."""
    encoding, errors = getattr(stream, "encoding", None) or "utf-8", getattr(stream, "errors", None)
    return open(number, "w", encoding=encoding, errors=errors, closefd=False)


def _run_body(body: Callable[[], int]) -> str:
    """Run ``body`` in the child; return the outcome line that its parent reads.

    ``body`` returns an exit code. The line is one of these:

    - ``error TEXT``: the text of a mistake of the user, which is not printed here. The mistake is an `SpmdError`, a
      `MemoryError`, or a `SystemExit` with code 0 or None, because a body must return its code.
    - ``word TEXT``: the text of an `SpmdError` that suggests a word for a misspelt one.
    - ``code N``: the exit code of every other end, modulo 256. An exception is printed here, as by every command.
    """
    from spmdsim.launch.bootstrap import guard

    mistakes: list[SpmdError] = []

    def run() -> int:
        """Run the function; store a mistake of the user and return 2 instead of raising it."""
        try:
            return body()
        except (SpmdError, MemoryError, SystemExit) as error:
            if isinstance(error, SystemExit) and error.code:
                raise
            mistakes.append(error if isinstance(error, SpmdError) else InputError(describe_mistake(error)))
        return 2

    code = guard(run, " ".join(["spmdsim", *sys.argv[1:2]])) & 0xFF
    if mistakes:
        return f"{'word' if mistakes[0].wrong_word else 'error'} {mistakes[0]}"
    return f"code {code}"


def describe_mistake(error: BaseException) -> str:
    """Return the message for an exception of the user's code.

    - An SpmdError: its text alone.
    - A MemoryError: that there is no more memory, with the memory limit.
    - A SystemExit: that ``sys.exit`` ends the program, with its code.
    - Another error: its type and its text.

    Except for an SpmdError, the innermost line of the user in the traceback is in front, if there is one, as in
    ``"lab.py:3: ValueError: no such axis"``.

    Args:
        error: the exception, with its traceback.
    """
    if isinstance(error, SpmdError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"{_find_raise_place(error)}there is no more memory{describe_memory_limit()}"
    if isinstance(error, SystemExit):
        return f"{_find_raise_place(error)}sys.exit({error.code}) ends the program"
    return f"{_find_raise_place(error)}{type(error).__name__}: {one_line(error)}"


def find_users_place(frame: FrameType | None) -> str:
    """Return the innermost line of the user's code, such as ``"lab.py:3"``; empty if there is none.

    The search goes from ``frame`` to its callers and ends where the child process began, at ``_run_child``. ``frame`` is
    None where no Python code runs.
    """
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        if frame.f_code is _run_child.__code__:
            return ""  # the user's code runs below this frame
        frame = frame.f_back
    if frame is None:
        return ""
    return format_place(frame.f_code.co_filename, frame.f_lineno)


def _find_raise_place(error: BaseException) -> str:
    """Return the innermost line of the user's code that an exception passed, and a colon.

    Empty if it passed none.
    """
    lines = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    users_lines = [format_place(file, line) for file, line in lines if is_users_file(file)]
    return f"{users_lines[-1]}: " if users_lines else ""


def _set_limits(limits: Limits, report: int, secret: str) -> None:
    """Set the limits of this process, and handlers that report the user's line and exit.

    A handler runs when the time limit is reached, and when the process is interrupted. The limits are:

    - time: processor seconds, with some more for loading until the user's code starts;
    - memory: what the process has now, NumPy included, plus the user's bytes. There is no limit if the system does not
      report the present memory;
    - core files: none is written.

    The limit of output is the parent's to watch. Without the module ``resource`` only the handlers are set.

    Args:
        limits: the limits; 0 seconds or 0 bytes for none.
        report: file descriptor for the line ``"<secret> at <file and line>"``.
        secret: text by which the parent knows a genuine report.
    """
    global _memory, current
    current = limits

    def report_place(_: int, frame: FrameType | None) -> None:
        code_line = next(
            filter(None, (sandbox.find_place() for sandbox in sandboxes)), ""
        ) or find_users_place(frame)
        with suppress(RuntimeError):  # the signal may interrupt a print
            sys.stdout.flush()
        os.write(report, f"{secret} at {code_line}\n".encode(errors="surrogateescape"))
        exit_now(1)

    signal.signal(LIMIT_SIGNAL, report_place)
    signal.signal(signal.SIGINT, report_place)
    try:
        import resource
    except ImportError:
        return
    import numpy  # noqa: F401 - the memory that the command itself needs is not the user's

    _lower_limit(resource.RLIMIT_CORE, 0, 0)
    _limit_time(limits.seconds + LOADING)
    if limits.memory and (needed := _measure_address_space()):
        _lower_limit(resource.RLIMIT_AS, needed + limits.memory, needed + limits.memory)
        _memory = limits.memory


def start_clock() -> None:
    """Start to count the time limit, when the user's code starts."""
    if current.seconds:
        _limit_time(current.seconds)


def _limit_time(seconds: float) -> None:
    """Let this process use some more processor time, but not more than an earlier limit.

    After the time, rounded up to whole seconds, the system sends the signal of the time limit. ``LAST_SECONDS`` (2)
    later it kills the process. Do nothing if the current limits have no time limit.

    Args:
        seconds: the time from now on.
    """
    import resource

    if current.seconds:
        soft = math.ceil(time.process_time() + seconds)
        _lower_limit(resource.RLIMIT_CPU, soft, soft + LAST_SECONDS)


def _lower_limit(kind: int, soft: int, hard: int) -> None:
    """Set a limit of the system for this process, but never above the hard limit that it has.

    For example, with a hard limit of 10 s of processor time, limits of 8 and 12 s become 8 and 10 s.

    Args:
        kind: the resource, such as ``resource.RLIMIT_CPU``.
        soft: the limit at which the system warns or refuses, in the unit of the resource.
        hard: the limit that this process cannot raise again.
    """
    import resource

    allowed = resource.getrlimit(kind)[1]
    allowed = sys.maxsize if allowed == resource.RLIM_INFINITY else allowed
    resource.setrlimit(kind, (min(soft, allowed), min(hard, allowed)))


def _measure_address_space() -> int:
    """Return the bytes of this process's address space; 0 if the system does not tell them."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


# -- the parent -----------------------------------------------------------------------------------------


def measure_busy_seconds(process: int) -> tuple[float, float]:
    """Return the processor time of a process and its descendants, and their waiting time for a processor.

    Both are in seconds. A number that the system does not report is 0, and both are if the process has ended.

    Args:
        process: the number of a process.
    """
    status = read_status(process)
    if status is None:
        return 0.0, 0.0
    waited = 0.0
    with suppress(OSError, ValueError, IndexError):  # not on every system
        waited = int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    children = [measure_busy_seconds(child) for child in list_children(process)]
    return status.seconds + sum(used for used, _ in children), waited + sum(waits for _, waits in children)


class _ChildWatch:
    """The child as its parent sees it: prints its output, ends it at its limits, reports how it ended."""

    def __init__(
        self, child: int, limits: Limits, streams: dict[int, TextIO], report: int, in_group: bool, secret: str
    ) -> None:
        self.child, self.handle = child, ProcessHandle(child)
        self.limits, self.streams, self.report = limits, streams, report
        self.secret = secret
        self.printed_bytes, self.used, self.is_in_line, self.message = 0, 0.0, False, b""
        #: The limit that the child has reached: "time" or "output"; "interrupted" after Ctrl-C; else empty.
        self.reached = ""
        self.status: int | None = None
        self.started, self.limit = time.monotonic(), limits.seconds or math.inf
        # In the terminal's group the child waits for a user who types.
        self.deadline = math.inf if in_group else self.started + WALL * self.limit

    def run(self) -> int:
        """Wait for the end of the child, print its output meanwhile, and return its exit code.

        After Ctrl-C, the child first gets some seconds to report the line of the user's code. In the end the child and all
        processes that it started are killed and the pipes closed, even after an error.

        Raises:
            InputError, KeyboardInterrupt: As :meth:`_report_end` does.
        """
        try:
            try:
                self._watch()
            except KeyboardInterrupt:
                self._request_place("interrupted")
                self._watch()
        finally:
            self._kill()
            for end in (*self.streams, self.report):
                os.close(end)
        return self._report_end()

    def _watch(self) -> None:
        """Wait for the child; print its output meanwhile.

        The wait ends when the child has reported its outcome or ended. At the deadline there are these cases:

        - If the deadline may move (see :meth:`_extend_deadline`): wait on.
        - Else, if the child was not asked to end: ask it for its line and to end, which sets a new deadline.
        - Else: the wait ends.

        The rest of the output is read before returning. Afterwards :attr:`status` is the exit code if the child has ended, else
        None; :attr:`reached` is the limit, if one was reached.
        """
        while not self.message.endswith(b"\n") and self.status is None:
            remaining = self.deadline - time.monotonic()
            if remaining <= 0 and self.reached:
                return
            if remaining <= 0 and not self._extend_deadline():
                self._request_place("time")
            self._read_output(min(max(remaining, 0), 0.2))
            process, status, usage = os.wait4(self.child, os.WNOHANG)
            if process:
                self.status = os.waitstatus_to_exitcode(status)
                if not self.reached and is_end_by_time_limit(self.status, usage, self.limits):
                    self.reached = "time"
        while self._read_output(0):
            pass

    def _extend_deadline(self) -> bool:
        """Move the deadline by ``WALL`` times the time limit; return True if the child may continue.

        It may continue if two conditions hold:

        - Since the last call it worked or waited for a processor for a tenth of these seconds.
        - The new deadline is not reached yet. It is never later than the longest time that the child may take by the
          clock (see :data:`WALL`).
        """
        before = self.used
        used, waited = measure_busy_seconds(self.child)
        self.used = used + waited
        last_deadline = self.started + WALL * self.limit + LOADING + min(waited, MOST_WAITING * self.limit)
        self.deadline = min(self.deadline + WALL * self.limit, last_deadline)
        was_busy = self.used - before > WALL * self.limit / 10
        return was_busy and time.monotonic() < self.deadline

    def _read_output(self, seconds: float) -> bool:
        """Print what the child prints, and append what it reports to :attr:`message`.

        Wait up to ``seconds`` for bytes, and read each ready pipe once. Return True if there were bytes. Return False
        if none came in time, or at once if the child has closed a pipe.
        """
        has_read = False
        for end in select.select([*self.streams, self.report], [], [], seconds)[0]:
            data = os.read(end, 1 << 16)
            has_read = has_read or bool(data)
            if end == self.report:
                self.message += data
            else:
                self._print(self.streams[end], data)
        return has_read

    def _print(self, stream: TextIO, data: bytes) -> None:
        """Write the child's output to a stream of this process, up to the limit of output.

        - If a limit was reached before, or the child was interrupted: write nothing.
        - If ``data`` exceeds the limit of output: write nothing of it; ask the child for its line and to end.
        - Otherwise write ``data``.

        Args:
            stream: stdout or stderr of this process.
            data: the bytes that the child has printed.
        """
        if self.reached:
            return
        self.printed_bytes += len(data)
        if self.limits.output and self.printed_bytes > self.limits.output:
            self._request_place("output")
            return
        if stream is sys.stderr:
            self.is_in_line = not data.endswith(b"\n")
        if hasattr(stream, "buffer"):
            stream.buffer.write(data)
            stream.buffer.flush()
        else:
            stream.write(data.decode(errors="replace"))

    def _request_place(self, why: str) -> None:
        """Ask the child to report its line and to end, within ``REPORT_SECONDS`` (5).

        Args:
            why: the reason for ``self.reached``.
        """
        self.reached, self.deadline = why, time.monotonic() + REPORT_SECONDS
        if self.status is None:
            self.handle.send_signal(LIMIT_SIGNAL)

    def _kill(self) -> None:
        """End the child, and all processes that it started."""
        if self.status is None:
            self.status = end_reaper(self.handle)
        self.handle.close()

    def _report_end(self) -> int:
        """Return the exit code that the child has reported, or raise the error that it has reported.

        The report is the last line that the child writes into its own pipe. It begins with a secret, so that the user's code
        cannot imitate it.

        Raises:
            InputError: If the child reached a limit, reported a mistake, reported nothing, or the user's code wrote to the
                pipe of the report.
            KeyboardInterrupt: If it was interrupted; the line of the user's code is printed before.
        """
        secret, _, report = self.message.decode(errors="surrogateescape").strip().partition(" ")
        word, _, text = report.partition(" ") if secret == self.secret else ("", "", "")
        at = f"{text}: " if word == "at" and text else ""
        if self.reached == "interrupted":
            sys.stderr.write(f"interrupted{f' at {text}' if at else ''}\n")
            raise KeyboardInterrupt("is printed")  # an argument: the caller prints no other line
        if self.reached == "output":
            sys.stderr.write("\n" * self.is_in_line)
            mebibytes = self.limits.output / MIB
            raise InputError(f"{at}it has printed more than {mebibytes:g} MiB: --output-limit allows more")
        if self.reached == "time" or word == "at":
            raise InputError(f"{at}{_describe_time_limit(self.limits)}")
        if self.message and not word:
            raise InputError("the program writes to the command's own pipe: nothing can be said of it")
        if word == "code":
            return int(text)
        if word in ("error", "word"):
            error = InputError(text)
            error.wrong_word = word == "word"
            raise error
        raise InputError(describe_early_exit(self.status or 0))
