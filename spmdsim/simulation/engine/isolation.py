"""Give each rank its own modules, and switch the state of the process when another rank runs.

In a real program each rank is a process with its own variables of modules. Here modules that can reach MPI
(:mod:`spmdsim.simulation.engine.ownership`), the user's modules and ``random`` are loaded once per rank. They are
exchanged whenever another rank runs.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from typing import Any

from spmdsim.simulation.engine.captured_output import RankStreams
from spmdsim.simulation.engine.interpreter_state import InterpreterState
from spmdsim.simulation.engine.ownership import Ownership, Variables, find_module
from spmdsim.simulation.engine.rank_process import Process
from spmdsim.simulation.engine.scheduler import Scheduler, Task

_OWN_STANDARD = frozenset({"random"})
_Step = Callable[[Any], object]


class RankWorld:
    """The modules of one rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.main = types.ModuleType("__main__")
        self.modules: dict[str, Any] = {}


class Isolation:
    """A switch from one rank's process state to another rank's.

    Args:
        scheduler: the simulation.
        arguments: ``sys.argv`` of every rank.
        folder: folder of the script, searched first for modules; None for a function.
        draws_numbers: True if the program may use numpy's global random numbers, so that each rank needs its own.
        variables: the variables of the function, or None for a script.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        arguments: list[str],
        folder: str | None,
        draws_numbers: bool,
        variables: Variables | None = None,
    ) -> None:
        self._draws_numbers = draws_numbers
        self._scheduler = scheduler
        self._arguments = arguments
        self._folder = folder
        self._variables = variables
        self._ownership = Ownership(self)
        self.process = Process(len(scheduler.tasks))
        self.worlds = [RankWorld(task.rank) for task in scheduler.tasks]
        self._home = "__main__" if variables is None else variables.program.__module__
        self._current: RankWorld | None = None
        self._names: set[str] = set()
        self._loading = False  # True if the running rank has loaded modules since its turn began
        self._searching = False

    def enter_rank(self, task: Task) -> None:
        """Set the process state to that of a rank that runs next; do nothing if it is set already.

        The state is:

        - folder, environment and locale (:class:`Process`);
        - variables of shared modules, such as ``sys.stdout`` (:class:`InterpreterState`);
        - the module ``__main__``, and other modules that are loaded per rank;
        - variables of the program's function, if their values differ between ranks.

        Args:
            task: the rank.
        """
        world, before = self.worlds[task.rank], self._current
        if world is before:
            return
        self._current = world
        self.process.enter_rank(task.rank)
        self._interpreter.enter_rank(task.rank)
        sys.modules["__main__"] = world.main
        if self._names and before is not None:
            self._exchange_modules(before, world)
        if self._variables is not None and self._variables.differ:
            self._variables.set_values(task.rank)

    def _exchange_modules(self, before: RankWorld, after: RankWorld) -> None:
        """Replace one rank's own modules in ``sys.modules`` by another rank's.

        A module that only ``before`` has loaded is removed from ``sys.modules``, so that ``after`` loads it again.

        Args:
            before: the rank that ran. If it loaded modules since its turn began, its ``modules`` gets them first.
            after: the rank that runs next.
        """
        modules = sys.modules
        if self._loading:
            before.modules = {name: modules[name] for name in self._names if name in modules}
            self._loading = False
        for name in before.modules:
            if name not in after.modules:
                modules.pop(name, None)
        modules.update(after.modules)

    # ------------------------------------------------------------------ finding modules (meta path)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a module that every rank loads for itself; None if ranks share it.

        Python calls this method for each module that is not in ``sys.modules``, because the object is in
        ``sys.meta_path``. After None, Python's other finders load the module, or report that it does not exist.
        Extension modules are shared, because Python cannot load them twice. Each rank's copy of ``random`` is seeded
        with the simulation's seed and the rank.

        Args:
            name: the dotted name of the module.
            path: the folders of its package; None for a module without package.
            target: not used: Python's interface has it.
        """
        if self._searching:
            return None
        self._searching = True
        try:
            if name not in _OWN_STANDARD and not self._ownership.is_own(name):
                return None
            spec = find_module(name, path, self)
        finally:
            self._searching = False
        if spec is None or isinstance(spec.loader, ExtensionFileLoader):
            return None
        world = self._current
        if name in _OWN_STANDARD:
            if world is not None:
                # Each rank draws different numbers, which are equal in every run.
                words = f"seed {self._scheduler.seed or 0} rank {world.rank}"
                spec.loader = _Loader(spec.loader, after=lambda module: module.seed(words))  # type: ignore[assignment]
        elif spec.submodule_search_locations is not None and spec.loader is not None:
            self._share_submodules(spec)
        self._names.add(name)
        self._loading = True
        if may_draw_numbers(spec.origin):
            self._interpreter.separate_random_numbers()
        return spec

    def _share_submodules(self, spec: Any) -> None:
        """Let a package, when it is loaded, get its shared submodules as attributes.

        Python sets the attribute ``package.part`` only when it loads ``package.part``. A rank's own copy of the
        package would lack it if ranks share ``package.part``, which was loaded before. Changes nothing if no direct
        submodule is shared.

        Args:
            spec: the spec of the package; its loader is replaced.
        """
        shared = {}
        for name, module in sys.modules.items():
            package, _, submodule = name.rpartition(".")
            if package == spec.name and name not in self._names:
                shared[submodule] = module
        if shared:
            spec.loader = _Loader(spec.loader, before=lambda module: module.__dict__.update(shared))

    # ------------------------------------------------------------------ modules that are already loaded

    @contextmanager
    def installed(self, emit: Callable[[int, str], None]) -> Iterator[None]:
        """Isolate ranks from each other inside a ``with`` block, and restore the process afterwards.

        On entry:

        - modules that ranks load for themselves are removed from ``sys.modules``;
        - the script's folder becomes the first one of each rank's ``sys.path``;
        - this object becomes the first finder of ``sys.meta_path``, so that it is asked for modules
          (:meth:`find_spec`);
        - :meth:`enter_rank` becomes the scheduler's ``on_enter``, so that it is called before a rank runs.

        On exit the removed modules are back, and ``__main__``, the function's variables and the state of the
        interpreter are as before. Yields None.

        Args:
            emit: function that is called with (rank, line) for each line that a rank prints.
        """
        main, streams = sys.modules.get("__main__"), RankStreams(emit)
        self._interpreter = InterpreterState(self._arguments, streams, self._scheduler.seed or 0)
        if self._folder is not None:
            sys.path = [self._folder, *sys.path]
        if self._draws_numbers:
            self._interpreter.separate_random_numbers()
        replaced = self._remove_loaded()
        if self._variables is not None:
            self._variables.replaced = replaced
        sys.meta_path.insert(0, self)
        self._scheduler.on_enter = self.enter_rank
        try:
            with self.process.installed(self._is_own):
                yield
        finally:
            sys.meta_path.remove(self)
            self._interpreter.restore()
            streams.close_lines()
            if self._variables is not None:
                self._variables.restore()
            for name in self._names:
                sys.modules.pop(name, None)
            sys.modules.update(replaced)
            if main is not None:
                sys.modules["__main__"] = main

    def _is_own(self, name: str) -> bool:
        """Return True if every rank has its own copy of a module, such as the program itself."""
        return name == self._home or name in self._names

    def _remove_loaded(self) -> dict[str, Any]:
        """Remove loaded modules that every rank loads for itself from ``sys.modules``; return {name: module}.

        - For a script: all modules of which each rank has a copy, and those that a file beside the script hides.
        - For a function: only modules that can reach MPI, because the function may use the loaded modules. The module
          of the function itself stays.
        - Always: ``random``.
        """
        names = self._ownership.loaded_modules(reaching=self._folder is None)
        if self._folder is None:
            names = [name for name in names if name != self._home]
        else:
            shadowed = self._shadowed_modules()
            names += [name for name in sys.modules if name.partition(".")[0] in shadowed]
        return {name: sys.modules.pop(name) for name in {*names, *_OWN_STANDARD} if name in sys.modules}

    def _shadowed_modules(self) -> set[str]:
        """Return the top-level names of loaded modules that a file in the script's folder hides.

        A name is returned if a search finds the module in the script's folder now, so that an import in the script
        would load this file.
        """
        folder = os.path.join(str(self._folder), "")
        beside = {name.partition(".")[0] for name in os.listdir(folder)} & sys.modules.keys()
        specs = {name: self._ownership.find_again(name) for name in beside}
        return {
            name for name, spec in specs.items() if spec is not None and str(spec.origin).startswith(folder)
        }


class _Loader:
    """A module loader that calls functions before and after another loader, and else behaves like it."""

    def __init__(self, loader: Any, before: _Step | None = None, after: _Step | None = None) -> None:
        self._loader, self._before, self._after = loader, before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        """Return the module that the loader creates."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Load the module; call ``before(module)`` before and ``after(module)`` after it, if they are set.

        Args:
            module: the new module object, which Python passes.
        """
        if self._before is not None:
            self._before(module)
        self._loader.exec_module(module)
        if self._after is not None:
            self._after(module)


def may_draw_numbers(origin: str | None) -> bool:
    """Return True if a source file contains the letters "random" anywhere, or cannot be read.

    Args:
        origin: path of the file; None counts as a file that cannot be read.
    """
    if origin is None:
        return True
    try:
        with open(origin, "rb") as stream:
            return b"random" in stream.read()
    except OSError:
        return True
