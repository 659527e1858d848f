"""Each rank's own world inside one process: arguments, main module, imported helpers, random numbers, output.

A rank of a real program is a process, so its modules' variables are its own. Here the modules of the user's
folder (and ``random``) are loaded once per rank, and put in place whenever the rank's turn comes.
"""

from __future__ import annotations

import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from typing import Any, TextIO

from spmdsim.simulation.engine.scheduler import Scheduler, Task

_OWN_STANDARD = frozenset({"random"})
_MISSING = object()


class RankWorld:
    """What one rank sees where others see something else."""

    def __init__(self, rank: int, arguments: list[str], seed: int) -> None:
        self.arguments = list(arguments)
        self.main = types.ModuleType("__main__")
        self.modules: dict[str, Any] = {}
        self.seed = (seed, rank)
        self.numpy_bits: Any = None


class Isolation:
    """Switches the process from one rank's world to the next.

    Args:
        scheduler: the simulation.
        arguments: ``sys.argv`` of every rank.
        folder: modules found here belong to each rank alone; None isolates no modules.
        draws_numbers: the program may use numpy's global random numbers, so each rank needs its own.
    """

    def __init__(
        self, scheduler: Scheduler, arguments: list[str], folder: str | None, draws_numbers: bool
    ) -> None:
        self.draws_numbers = draws_numbers
        self._scheduler = scheduler
        self._folder = folder
        seed = scheduler.seed or 0
        self.worlds = [RankWorld(task.rank, arguments, seed) for task in scheduler.tasks]
        self._current: RankWorld | None = None
        self._names: set[str] = set()

    def enter(self, task: Task) -> None:
        """Put one rank's world in place."""
        world = self.worlds[task.rank]
        before = self._current
        if world is before:
            return
        if before is not None:
            self._leave(before)
        self._current = world
        sys.argv = world.arguments
        sys.modules["__main__"] = world.main
        if world.modules:
            sys.modules.update(world.modules)
        numpy_random = sys.modules.get("numpy.random") if self.draws_numbers else None
        if numpy_random is not None:
            if world.numpy_bits is None:
                world.numpy_bits = numpy_random.MT19937(list(world.seed))
            numpy_random.set_bit_generator(world.numpy_bits)

    def _leave(self, world: RankWorld) -> None:
        for name in self._names:
            module = sys.modules.pop(name, _MISSING)
            if module is not _MISSING:
                world.modules[name] = module

    # ------------------------------------------------------------------ finding modules (meta path)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Mark a module of the user's folder as one that every rank has for itself."""
        if self._folder is None:
            return None
        top = name.partition(".")[0]
        if name in _OWN_STANDARD:
            spec = PathFinder.find_spec(name, path)
            world = self._current
            if spec is not None and world is not None:
                spec.loader = _Seeded(spec.loader, world.seed)  # type: ignore[assignment]
        elif path is None:
            spec = PathFinder.find_spec(name, [self._folder])
        elif top in self._names:
            spec = PathFinder.find_spec(name, path)
        else:
            return None
        if spec is not None:
            self._names.add(name)
            self.draws_numbers = True  # for all we know
        return spec

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Isolate while the simulation runs, and restore the process afterwards."""
        kept = {name: sys.modules.pop(name) for name in _OWN_STANDARD if name in sys.modules}
        main, arguments = sys.modules.get("__main__"), sys.argv
        numpy_random = sys.modules.get("numpy.random")
        bits = numpy_random.get_bit_generator() if numpy_random is not None else None
        path = list(sys.path)
        if self._folder is not None:
            sys.path.insert(0, self._folder)
            sys.meta_path.insert(0, self)
        if self._folder is not None or self.draws_numbers:
            self._scheduler.on_enter = self.enter
        try:
            yield
        finally:
            if self._folder is not None:
                sys.meta_path.remove(self)
            for name in self._names:
                sys.modules.pop(name, None)
            sys.modules.update(kept)
            if main is not None:
                sys.modules["__main__"] = main
            sys.argv, sys.path[:] = arguments, path
            numpy_random = sys.modules.get("numpy.random")
            if numpy_random is not None:
                numpy_random.set_bit_generator(bits or numpy_random.MT19937())


class _Seeded:
    """Loads ``random`` so that each rank draws other numbers, and the same ones in every run."""

    def __init__(self, loader: Any, seed: tuple[int, int]) -> None:
        self._loader = loader
        self._seed = seed

    def create_module(self, spec: Any) -> None:
        """An ordinary module."""

    def exec_module(self, module: Any) -> None:
        """Load, then seed."""
        self._loader.exec_module(module)
        module.seed(f"seed {self._seed[0]} rank {self._seed[1]}")


class RankOutput:
    """A text stream that knows which rank writes, and passes whole lines on."""

    def __init__(self, scheduler: Scheduler, emit: Callable[[int, str], None], real: TextIO) -> None:
        self._scheduler = scheduler
        self._emit = emit
        self._real = real
        self._partial: dict[int, str] = {}
        self.encoding = "utf-8"
        self.errors = "replace"

    def write(self, text: str) -> int:
        """Collect text of the running rank; a finished line is passed on."""
        if not text:
            return 0
        rank = self._scheduler.current.rank
        if "\n" not in text:
            self._partial[rank] = self._partial.get(rank, "") + text
            return len(text)
        *lines, rest = (self._partial.pop(rank, "") + text).split("\n")
        for line in lines:
            self._emit(rank, line)
        if rest:
            self._partial[rank] = rest
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several pieces."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Lines are passed on when they are whole."""

    def close_lines(self) -> None:
        """Pass on what was written without a line end."""
        for rank in sorted(self._partial):
            self._emit(rank, self._partial.pop(rank))

    def isatty(self) -> bool:
        """Output of many ranks is no terminal."""
        return False

    def writable(self) -> bool:
        """It can be written to."""
        return True

    def fileno(self) -> int:
        """The process's own stream, for programs that ask."""
        return self._real.fileno()


@contextmanager
def own_output(scheduler: Scheduler, emit: Callable[[int, str], None]) -> Iterator[None]:
    """Let every rank's prints go through ``emit(rank, line)``."""
    real = sys.stdout
    stream = RankOutput(scheduler, emit, real)
    sys.stdout = stream
    try:
        yield
    finally:
        sys.stdout = real
        stream.close_lines()


@contextmanager
def virtual_sleep(scheduler: Scheduler) -> Iterator[None]:
    """Sleeping takes modelled time, and lets the other ranks run."""
    real = time.sleep

    def sleep(seconds: Any) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        task = scheduler.current
        begin = task.clock
        task.clock += seconds
        if scheduler.timeline is not None:
            scheduler.timeline.call(task, "sleep", begin, sys._getframe(1))
        scheduler.yield_turn()

    time.sleep = sleep
    try:
        yield
    finally:
        time.sleep = real


def script_folder(path: str) -> str:
    """The folder whose modules belong to a script."""
    return os.path.dirname(os.path.abspath(path))
