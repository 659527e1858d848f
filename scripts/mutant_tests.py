"""Collect tests once and run them in forks, with the code of one function replaced or a mutated file imported."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from mutants import Mutant

ROOMS = ("core", "layout", "redistribution", "collectives", "arrays", "nn")


def fork(body: Callable[[], int]) -> int:
    """Fork a child that runs ``body`` without output and exits with its result; return its process number.

    The child has its own process group.
    """
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 3
    try:
        os.setsid()
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        code = body()
    finally:
        os._exit(code)


def fork_each(
    tasks: Iterable[tuple[Callable[[], int], float]], jobs: int
) -> Iterable[tuple[int, int | None]]:
    """Run tasks ``(body, allowed seconds)`` in children; yield ``(number, exit code)`` as they end.

    The exit code is None for a timeout. The time for which a child waits for a processor does not count, so that a
    busy machine changes nothing. At most ``jobs`` children run at a time.
    """
    waiting, live = list(enumerate(tasks))[::-1], {}
    while waiting or live:
        while waiting and len(live) < jobs:
            number, (body, limit) = waiting.pop()
            live[fork(body)] = number, time.monotonic() + limit
        for pid, (number, deadline) in list(live.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            late = not ended and time.monotonic() > deadline + _waited(pid)
            if late:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            if ended or late:
                del live[pid]
                yield number, None if late else os.waitstatus_to_exitcode(status)
        time.sleep(0.005)


def _waited(pid: int) -> float:
    """Return the seconds for which a process waited for a processor; 0 if the system does not report them."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


class Tests:
    """A pytest session that collects files and then calls ``work`` instead of running all tests."""

    def __init__(self, work: Callable[[Tests], None]):
        self.work, self.durations = work, {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Call ``work`` instead of pytest's own loop."""
        self.session = session
        self.items = {item.nodeid: item for item in session.items}
        self.loaded = functions(self.copy)
        gc.freeze()  # so that the collector does not touch, and so copy, pages that children share
        self.work(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the durations of a test; nan if it fails."""
        before = self.durations.get(report.nodeid, 0.0)
        self.durations[report.nodeid] = float("nan") if report.failed else before + report.duration

    def collect(self, copy: Path, files: list[str]) -> int:
        """Collect the tests of some files in the copy and call ``work``; return pytest's exit code."""
        self.copy = copy
        os.chdir(copy)
        sys.path[:0] = [str(copy), str(copy / "tests")]
        options = ["-xsq", "-m", "not mpi", "-p", "no:cacheprovider", "--assert=plain", "--doctest-modules"]
        return pytest.main([*options, "--hypothesis-seed=0", *files], plugins=[self])

    def run(self, names: list[str], note: Path | None = None) -> int:
        """Run tests; return 0 if all pass, else 1 after the first failure, and write to ``note`` how many ran."""
        items = [self.items[name] for name in names if name in self.items]
        for number, (item, after) in enumerate(zip(items, [*items[1:], None]), 1):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if self.session.shouldfail or self.session.shouldstop:
                if note:
                    note.write_text(str(number))
                return 1
        return 0

    def record(self, names: list[str], file: Path, seconds: float) -> int:
        """Write a JSON file with the processor time and the executed lines of each test.

        Only lines of the tested packages count. Stop after ``seconds`` of processor time; the first cases of each test come first.
        """
        self.session.config.option.maxfail = 0
        codes: dict[int, tuple[types.CodeType, set[int]]] = {}
        reached: dict[str, set[int]] = {}
        folders, end, no_lines = folders_of(self.copy), time.process_time() + seconds, set()

        def lines_of(code: types.CodeType) -> set[int]:
            if id(code) not in codes:
                ours = code.co_filename.startswith(folders)
                codes[id(code)] = code, {line for *_, line in code.co_lines() if line} if ours else no_lines
            return codes[id(code)][1]

        def trace(frame: types.FrameType, event: str, argument: object) -> Callable[..., object] | None:
            lines = lines_of(frame.f_code)
            if not lines:
                return None
            executed_lines = reached.setdefault(frame.f_code.co_filename, set())
            executed_lines.add(frame.f_lineno)
            return None if lines <= executed_lines else trace

        executed = {}
        for name in by_turns(names, dict.fromkeys(names, 0)):
            begin = time.process_time()
            if begin > end:
                break
            reached.clear()
            threading.settrace(trace)
            sys.settrace(trace)
            self.run([name])
            sys.settrace(None)
            if self.durations[name] == self.durations[name]:  # skip tests that fail without a mutant
                lines = {
                    path.removeprefix(f"{self.copy}/"): sorted(executed_lines)
                    for path, executed_lines in reached.items()
                }
                executed[name] = round(time.process_time() - begin, 4), lines
        file.write_text(json.dumps(executed))
        return 0


def by_turns(names: Iterable[str], seconds: dict[str, float]) -> list[str]:
    """Return tests in an order in which the fastest case of each test comes first, then each second case, and so on.

    Cases of one test are similar, so one of them is likely to find what the others find.

    Args:
        names: the tests; a test and its cases are "test" or "test[case]".
        seconds: the duration of each test.
    """
    cases: Counter[str] = Counter()
    turns = []
    for name in sorted(names, key=lambda name: seconds[name]):
        test = name.partition("[")[0]
        cases[test] += 1
        turns.append((cases[test], seconds[name], name))
    return [name for *_, name in sorted(turns)]


def room_of(file: str) -> str:
    """Return the package to which a file of the package or a test belongs."""
    return Path(file).parts[1]


def folders_of(copy: Path) -> tuple[str, ...]:
    """Return the folders of the packages in a copy of the source tree."""
    return tuple(f"{copy}/spmdsim/{room}/" for room in ROOMS)


def functions(copy: Path) -> list[types.FunctionType]:
    """Return all loaded functions of the packages."""
    folders = folders_of(copy)
    return [
        value
        for value in gc.get_objects()
        if type(value) is types.FunctionType and value.__code__.co_filename.startswith(folders)
    ]


def exchange(mutant: Mutant, copy: Path, loaded: list[types.FunctionType]) -> bool:
    """Replace the code of a loaded function by its mutated code; return False if that is not possible."""
    path = str(copy / mutant.file)
    codes = [compile(mutant.source, path, "exec", dont_inherit=True)]
    for code in codes:
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    name, line = mutant.scope.function, mutant.scope.owner
    try:
        new = next(c for c in codes if (c.co_name, c.co_firstlineno) == (name, line))
        old = [f for f in loaded if (f.__code__.co_filename, f.__code__.co_firstlineno) == (path, line)]
        for function in old:
            function.__code__ = new
    except (StopIteration, ValueError):
        return False
    return bool(old)
