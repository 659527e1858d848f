"""Run a command's body, which runs a user's code, in a child process with limits of time, memory and output.

The child is a fork: it starts at once and has the state of its parent. It reports its end through a pipe. A child that is
killed, or that the user's code ends with any exit code, does not report and is an error.
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
from types import FrameType
from typing import Any, NoReturn, TextIO
from weakref import WeakSet

from spmdsim.errors import InputError, SpmdError
from spmdsim.launcher import launched
from spmdsim.reading import one_line
from spmdsim.shutdown.processes import (
    PASSED_SIGNAL,
    ProcessHandle,
    fork_below_reaper,
    list_children,
    make_unreadable,
    read_status,
)
from spmdsim.worlds.trace.source_lines import in_words

MIB = 1 << 20
#: The limits if nothing else is asked for.
SECONDS, MEMORY_MIB, OUTPUT_MIB = 10, 4096, 64
#: A process may take this many times its processor time by the clock, and LOADING seconds more as long as it works;
#: besides, what it waits for a processor, up to so many times its processor time.
WALL, MOST_WAITING = 2, 8
#: Seconds of processor time for what a command itself needs until the user's code begins.
LOADING = 5
#: Seconds for a process that is over its time to say where it is: by the clock, and of its processor time.
LAST_WORDS, LAST_SECONDS = 5.0, 2
PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep
leave = os._exit  # simulations have another one
OVER = PASSED_SIGNAL


@dataclass(frozen=True)
class Limits:
    """The limits of a command, seconds of processor time and bytes; 0 is no limit.

    By the clock a process may take twice its seconds, and ``LOADING`` more if it works; besides, what it waits for a processor.
    Memory is counted beyond what the program itself needs (on Linux), output if it is not on a terminal.
    """

    seconds: float = SECONDS
    memory: int = MEMORY_MIB * MIB
    output: int = OUTPUT_MIB * MIB


def run_limited(body: Callable[[], int], limits: Limits, reads: bool = False) -> int:
    """Run a function in a child process with limits.

    Ranks of an MPI job, and systems that cannot fork, run it as it is. InputError: it reached a limit, or did not come to
    its end. After Ctrl-C it is said where the user's code was.
    """
    if not hasattr(os, "fork") or launched() or limits == Limits(0, 0, 0):
        return body()
    streams = [stream for stream in (sys.stdout, sys.stderr) if not stream.isatty()]
    pipes = [os.pipe() for _ in streams]  # a terminal is the child's as well: it has colours and a width
    report = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    in_group = reads and sys.stdin is not None and sys.stdin.isatty()  # else the terminal stops who reads
    word = secrets.token_hex(8)
    with make_unreadable():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, such as numpy's
            child = fork_below_reaper()
        if child == 0:
            writes = {1 if stream is sys.stdout else 2: end for stream, (_, end) in zip(streams, pipes)}
            _run_child(body, limits, writes, (report[1], word), reads, in_group)
        for _, end in (*pipes, report):
            os.close(end)
        pipes_of = dict(zip([end for end, _ in pipes], streams))
        return _ChildWatch(child, limits, pipes_of, report[0], in_group, word).run()


# -- the child ------------------------------------------------------------------------------------------

_memory = 0  # the limit of this process in bytes
#: The limits of this process.
current = Limits(0, 0, 0)
#: The sandboxes of this process: the user's code may run in one of them.
sandboxes: WeakSet[Any] = WeakSet()


def describe_memory_limit() -> str:
    """Return the memory limit of this process in words, to follow a message on a lack of memory."""
    return f" (the limit is {_memory // MIB:,} MiB: --memory-limit)" if _memory else ""


def describe_overtime(place: str) -> str:
    """Return the words for code that has not ended. ``place`` is its line, or empty."""
    return f"{place}{': ' * bool(place)}{_describe_time_limit(current)}"


def _describe_time_limit(limits: Limits) -> str:
    return f"it has not ended after {limits.seconds:g} s: --time-limit allows more"


def describe_own_exit(status: int) -> str:
    """Return the words for code that has ended its own process."""
    how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
    return f"the program ended its own process with {how}: nothing can be said of it"


def _run_child(
    body: Callable[[], int],
    limits: Limits,
    writes: dict[int, int],
    report: tuple[int, str],
    reads: bool,
    in_group: bool,
) -> NoReturn:
    """Run the function in the child, report how it ended, and exit. Nothing of the parent continues here."""
    me, said = os.getpid(), ""
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
        said = _run_body(body)
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        if os.getpid() == me:  # what the user's code has forked has nothing to say
            os.write(report[0], f"{report[1]} {said}\n".encode(errors="surrogateescape"))
        leave(0)


def _open_like(stream: TextIO, number: int) -> TextIO:
    """Return a stream into a file descriptor with the encoding of another stream."""
    encoding, errors = getattr(stream, "encoding", None) or "utf-8", getattr(stream, "errors", None)
    return open(number, "w", encoding=encoding, errors=errors, closefd=False)


def _run_body(body: Callable[[], int]) -> str:
    """Run the function and return how it ended: ``code N``, ``error TEXT`` or ``word TEXT`` for a wrong word.

    Errors that are no mistake of the user are printed as those of any command.
    """
    from spmdsim.launch.bootstrap import guard

    mistakes: list[SpmdError] = []

    def run() -> int:
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
    """Return in one line what the user's code has raised."""
    if isinstance(error, SpmdError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"{_find_raise_place(error)}there is no more memory{describe_memory_limit()}"
    if isinstance(error, SystemExit):
        return f"{_find_raise_place(error)}sys.exit({error.code}) ends the program"
    return f"{_find_raise_place(error)}{type(error).__name__}: {one_line(error)}"


def find_users_place(frame: FrameType | None) -> str:
    """Return the innermost line of the user's code in a stack; empty if the stack has none."""
    while frame is not None and frame.f_code is not _run_child.__code__ and not _is_users_frame(frame):
        frame = frame.f_back
    if frame is None or frame.f_code is _run_child.__code__:
        return ""  # it has not come to the user's code yet, or is past it
    return in_words(frame.f_code.co_filename, frame.f_lineno)


def _find_raise_place(error: BaseException) -> str:
    """Return the innermost line of the user's code that an exception passed, and a colon; empty if it passed none."""
    words, trace = "", error.__traceback__
    while trace is not None:
        if _is_users_frame(trace.tb_frame):
            words = f"{in_words(trace.tb_frame.f_code.co_filename, trace.tb_lineno)}: "
        trace = trace.tb_next
    return words


def _is_users_frame(frame: FrameType) -> bool:
    file, installed = (
        frame.f_code.co_filename,
        (PACKAGE, "<frozen", "<string>", os.path.dirname(os.__file__) + os.sep),
    )
    return not file.startswith(installed) and "site-packages" not in file


def _set_limits(limits: Limits, report: int, word: str) -> None:
    """Set the limits of this process. At the time limit it reports its line and exits."""
    global _memory, current
    current = limits

    def over(_: int, frame: FrameType | None) -> None:
        place = next(filter(None, (one.find_place() for one in sandboxes)), "") or find_users_place(frame)
        with suppress(RuntimeError):  # it may be printing just now
            sys.stdout.flush()
        os.write(report, f"{word} at {place}\n".encode(errors="surrogateescape"))
        leave(1)

    signal.signal(OVER, over)
    signal.signal(signal.SIGINT, over)
    try:
        import resource
    except ImportError:
        return
    import numpy  # noqa: F401 - what the program itself needs is not the user's

    _lower_limit(resource.RLIMIT_CORE, 0, 0)
    _limit_time(limits.seconds + LOADING)
    if limits.memory and (needed := _measure_address_space()):
        _lower_limit(resource.RLIMIT_AS, needed + limits.memory, needed + limits.memory)
        _memory = limits.memory


def start_clock() -> None:
    """Count the time limit from now on, where the user's code begins."""
    if current.seconds:
        _limit_time(current.seconds)


def _limit_time(seconds: float) -> None:
    """Let this process use ``seconds`` more of processor time, but never more than an earlier limit."""
    import resource

    if current.seconds:
        soft = math.ceil(time.process_time() + seconds)
        _lower_limit(resource.RLIMIT_CPU, soft, soft + LAST_SECONDS)


def _lower_limit(kind: int, soft: int, hard: int) -> None:
    import resource

    most = resource.getrlimit(kind)[1]
    most = sys.maxsize if most == resource.RLIM_INFINITY else most
    resource.setrlimit(kind, (min(soft, most), min(hard, most)))


def _measure_address_space() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


# -- the parent -----------------------------------------------------------------------------------------


def measure_busy_seconds(process: int) -> tuple[float, float]:
    """Return how long a process and its children have used a processor, and how long they waited for one.

    Zeros where the system does not say.
    """
    status = read_status(process)
    if status is None:
        return 0.0, 0.0
    waited = 0.0
    with suppress(OSError, ValueError, IndexError):  # not on every system
        waited = int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    below = [measure_busy_seconds(child) for child in list_children(process)]
    return status.seconds + sum(used for used, _ in below), waited + sum(waits for _, waits in below)


class _ChildWatch:
    """The parent's view of the child: print what the child prints, end it at its limits, report how it ended."""

    def __init__(
        self, child: int, limits: Limits, streams: dict[int, TextIO], report: int, in_group: bool, word: str
    ) -> None:
        self.child, self.handle = child, ProcessHandle(child)
        self.limits, self.streams, self.report = limits, streams, report
        self.in_group, self.secret = in_group, word
        self.printed, self.used, self.in_a_line, self.said, self.why = 0, 0.0, False, b"", ""
        self.status: int | None = None
        # In the terminal's group somebody types.
        self.started, self.limit = time.monotonic(), limits.seconds or math.inf
        self.deadline = math.inf if in_group else self.started + WALL * self.limit

    def run(self) -> int:
        """Wait for the end of the child, and return its exit code."""
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
        """Wait until the child reports, ends, or exceeds the time that it has after a request to end."""
        while not self.said.endswith(b"\n") and self.status is None:
            left = self.deadline - time.monotonic()
            if left <= 0 and self.why:
                return
            if left <= 0 and not self._extend_deadline():
                self._request_place("time")
            self._read(min(max(left, 0), 0.2))
            done, status, used = os.wait4(self.child, os.WNOHANG)
            if done:
                self.status = os.waitstatus_to_exitcode(status)
                over = 0 < self.limits.seconds <= used.ru_utime + used.ru_stime
                self.why = self.why or ("time" if self.status in (-OVER, -signal.SIGKILL) and over else "")
        while self._read(0):
            pass

    def _extend_deadline(self) -> bool:
        """Return True if the child may go on, and move the deadline.

        It was at work, or ready for it, a tenth of its time, and is not past what it may take by the clock.
        """
        before = self.used
        used, waited = measure_busy_seconds(self.child)
        self.used = used + waited
        last = self.started + WALL * self.limit + LOADING + min(waited, MOST_WAITING * self.limit)
        self.deadline = min(self.deadline + WALL * self.limit, last)
        return self.used - before > WALL * self.limit / 10 and time.monotonic() < self.deadline

    def _read(self, seconds: float) -> bool:
        some = False
        for end in select.select([*self.streams, self.report], [], [], seconds)[0]:
            data = os.read(end, 1 << 16)
            some = some or bool(data)
            if end == self.report:
                self.said += data
            else:
                self._write(self.streams[end], data)
        return some

    def _write(self, stream: TextIO, data: bytes) -> None:
        if self.why:
            return
        self.printed += len(data)
        if self.limits.output and self.printed > self.limits.output:
            self._request_place("output")
            return
        if stream is sys.stderr:
            self.in_a_line = not data.endswith(b"\n")
        if hasattr(stream, "buffer"):
            stream.buffer.write(data)
            stream.buffer.flush()
        else:
            stream.write(data.decode(errors="replace"))

    def _request_place(self, why: str) -> None:
        """Ask the child to report its line and to end, within ``LAST_WORDS`` seconds."""
        self.why, self.deadline = why, time.monotonic() + LAST_WORDS
        if self.status is None:
            self.handle.send_signal(OVER)

    def _kill(self) -> None:
        """End the child, and all processes that it started."""
        if self.status is None:
            self.handle.send_signal(signal.SIGTERM)
            self.handle.send_signal(signal.SIGCONT)  # the user's code may have stopped its reaper
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
        self.handle.close()

    def _report_end(self) -> int:
        secret, _, said = self.said.decode(errors="surrogateescape").strip().partition(" ")
        word, _, rest = said.partition(" ") if secret == self.secret else ("", "", "")
        at = f"{rest}: " if word == "at" and rest else ""
        if self.why == "interrupted":
            sys.stderr.write(f"interrupted{' at ' if at else ''}{rest if at else ''}\n")
            raise KeyboardInterrupt("was said")
        if self.why == "output":
            sys.stderr.write("\n" * self.in_a_line)
            mebibytes = self.limits.output / MIB
            raise InputError(f"{at}it has printed more than {mebibytes:g} MiB: --output-limit allows more")
        if self.why == "time" or word == "at":
            raise InputError(f"{at}{_describe_time_limit(self.limits)}")
        if self.said and not word:
            raise InputError("the program writes to the command's own pipe: nothing can be said of it")
        if word == "code":
            return int(rest)
        if word in ("error", "word"):
            error = InputError(rest)
            error.wrong_word = word == "word"
            raise error
        raise InputError(describe_own_exit(self.status or 0))
