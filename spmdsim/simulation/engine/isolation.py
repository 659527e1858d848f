"""Give each rank its own modules, and switch the state of the process when another rank runs.

In a real program each rank is a process with its own variables of modules. Here modules that can reach MPI
(:mod:`spmdsim.simulation.engine.ownership`), the user's modules and ``random`` are loaded once per rank. They are
exchanged whenever another rank runs.
"""

from __future__ import annotations

import builtins
import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from typing import Any

from spmdsim.simulation.engine.captured_output import RankStreams
from spmdsim.simulation.engine.interpreter_state import InterpreterState
from spmdsim.simulation.engine.module_loading import CodeSharingLoader, ContextLoader
from spmdsim.simulation.engine.ownership import Ownership, Variables, find_module
from spmdsim.simulation.engine.rank_process import Process, restored_settings
from spmdsim.simulation.engine.rank_threads import make_select_module, make_thread_module
from spmdsim.simulation.engine.scheduler import RankThread, Scheduler, Task


class RankWorld:
    """The modules of one rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.main = types.ModuleType("__main__")
        self.builtins: Any = None  # its module "builtins"; None if it shares the process's
        self.modules: dict[str, Any] = {}

    def separate_builtins(self) -> None:
        """Give the rank its own module ``builtins``, so that it may replace ``print`` for itself."""
        self.builtins = types.ModuleType("builtins")
        vars(self.builtins).update(vars(builtins))
        self.modules["builtins"] = self.builtins
        self.main.__builtins__ = self.builtins  # type: ignore[attr-defined]


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
        self._replaced: dict[str, Any] = {}  # the process's copies of modules that ranks load
        self._codes: dict[str, types.CodeType | None] = {}
        self._is_process = False  # True while a module that ranks share is loaded
        self._loading = False  # True if the running rank has loaded modules since its turn began
        self._searching = False
        # Without ``_queue``, ``queue`` uses ``threading``.
        self._thread_modules = {
            "_thread": make_thread_module(),
            "select": make_select_module(),
            "_queue": None,
        }

    def enter_rank(self, task: RankThread) -> None:
        """Set the process state to that of a rank that runs next; do nothing if it is set already.

        The state is:

        - folder, environment and locale (:class:`Process`);
        - variables of shared modules, such as ``sys.stdout`` (:class:`InterpreterState`);
        - the module ``__main__``, and other modules that are loaded per rank;
        - variables of the program's function, if their values differ between ranks.

        Args:
            task: a thread of the rank.
        """
        world, before = self.worlds[task.rank], self._current
        if world is before:
            return
        if before is not None:
            before.main = sys.modules.get("__main__", before.main)  # runpy replaces it
        self._current = world
        self.process.enter_rank(task.rank)
        self._interpreter.enter_rank(task.rank)
        sys.modules["__main__"] = world.main
        if self._names:
            self._exchange_modules(before, world)
        if self._variables is not None and self._variables.differ:
            self._variables.set_values(task.rank)

    def add_rank(self, task: Task) -> None:
        """Create the process state of a rank that the program spawns.

        Args:
            task: the rank, with the script that it runs.
        """
        script, world = task.script, RankWorld(task.rank)
        world.modules |= self._thread_modules
        self.worlds.append(world)
        if "builtins" in self._names:
            world.separate_builtins()
        self.process.add_rank()
        self._interpreter.set_start(task.rank, script.arguments, [script.folder, *self._process_path])
        if b"random" in script.source:
            self._interpreter.separate_random_numbers()

    def _exchange_modules(self, before: RankWorld | None, after: RankWorld) -> None:
        """Replace one rank's own modules in ``sys.modules`` by another rank's.

        A module that only ``before`` has loaded is removed from ``sys.modules``, so that ``after`` loads it again.

        Args:
            before: the rank that ran; None at the start. If it loaded modules since its turn began, its ``modules``
                gets them first.
            after: the rank that runs next.
        """
        modules = sys.modules
        if before is None:
            modules.update(after.modules)
            return
        if self._loading:
            before.modules = {name: modules[name] for name in self._names if name in modules}
            self._loading = False
        for name in before.modules:
            if name not in after.modules:
                modules.pop(name, None)
        modules.update(after.modules)

    # ------------------------------------------------------------------ finding modules (meta path)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a module, or None if Python's other finders shall search for it.

        Python calls this method for each module that is not in ``sys.modules``, because the object is in
        ``sys.meta_path``. A module that every rank loads for itself, and a module in Python that ranks share, get a
        loader that loads it in the right surroundings. Extension modules are shared: Python cannot load them twice.

        Args:
            name: the dotted name of the module.
            path: the folders of its package; None for a module without package.
            target: not used: Python's interface has it.
        """
        if self._searching or self._is_process:
            return None
        self._searching = True
        try:
            spec = find_module(name, path, self)
            is_own = spec is not None and self._ownership.is_own(name)
        finally:
            self._searching = False
        if spec is None or isinstance(spec.loader, ExtensionFileLoader):
            return None
        if not is_own:
            if spec.loader is None or not spec.has_location:
                return None
            spec.loader = ContextLoader(spec.loader, lambda module: self._as_process())  # type: ignore[assignment]
            return spec
        if type(spec.loader) is SourceFileLoader:
            spec.loader = CodeSharingLoader(spec.loader.name, spec.loader.path, self._codes)
        if spec.loader is not None:
            spec.loader = ContextLoader(spec.loader, self._as_rank)  # type: ignore[assignment]
        self._names.add(name)
        self._loading = True
        if may_draw_numbers(spec.origin):
            self._interpreter.separate_random_numbers()
        return spec

    @contextmanager
    def _as_rank(self, module: Any) -> Iterator[None]:
        """Prepare a rank's own copy of a module before it is loaded. Yields None.

        Afterwards ``random`` is seeded. The module gets the rank's builtins, and a package its shared submodules as attributes: Python sets the
        attribute ``package.part`` only when it loads ``package.part``, which was loaded before.

        Args:
            module: the new module.
        """
        world = self._current
        if world is not None and world.builtins is not None:
            vars(module)["__builtins__"] = vars(world.builtins)
        is_package = module.__spec__.submodule_search_locations is not None
        for name, loaded in list(sys.modules.items()) if is_package else ():
            package, _, submodule = name.rpartition(".")
            if package == module.__name__ and name not in self._names:
                vars(module)[submodule] = loaded
        yield
        if module.__name__ == "random" and world is not None:
            # Each rank draws different numbers, which are equal in every run.
            module.seed(f"seed {self._scheduler.seed or 0} rank {world.rank}")

    @contextmanager
    def _as_process(self) -> Iterator[None]:
        """Show the process's modules instead of the rank's inside a ``with`` block. Yields None.

        A module that ranks share is loaded in it, so that it never refers to one rank's copy of a module. Copies that
        the process lacked are stored as the process's.
        """
        modules, copies = sys.modules, {}
        for name in self._names:
            if name in modules:
                copies[name] = modules.pop(name)
        modules.update(self._replaced)
        before, self._is_process = set(modules), True
        try:
            yield
        finally:
            self._is_process = False
            for name in set(modules) - before:
                if self._ownership.is_own(name):
                    self._replaced[name] = modules[name]
            for name in self._replaced:
                modules.pop(name, None)
            modules.update(copies)

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
        self._process_path = list(sys.path)
        path = list(sys.path) if self._folder is None else [self._folder, *sys.path]
        self._interpreter = InterpreterState(self._arguments, path, streams, self._scheduler.seed or 0)
        sys.path = path
        if self._draws_numbers:
            self._interpreter.separate_random_numbers()
        self._replaced = self._remove_loaded()
        if self._variables is not None:
            self._variables.replaced = self._replaced
        sys.meta_path.insert(0, self)
        self._scheduler.on_enter, self._scheduler.on_add = self.enter_rank, self.add_rank
        try:
            with restored_settings(), self.process.installed(self._is_own):
                yield
        finally:
            sys.meta_path.remove(self)
            self._interpreter.restore()
            streams.close_lines()
            if self._variables is not None:
                self._variables.restore()
            for name in self._names:
                sys.modules.pop(name, None)
            sys.modules.update(self._replaced)
            if main is not None:
                sys.modules["__main__"] = main

    def _is_own(self, name: str) -> bool:
        """Return True if every rank has its own copy of a module, such as the program itself."""
        return name == self._home or name in self._names

    def _remove_loaded(self) -> dict[str, Any]:
        """Remove loaded modules that every rank loads for itself from ``sys.modules``; return {name: module}.

        - For a script: all modules of which each rank has a copy, and those that a file beside the script hides.
        - For a function: only modules of Python and those that can reach MPI, because the function may use the loaded
          modules. The module of the function itself stays.
        - For a script: ``builtins``, of which each rank gets a copy.
        - ``_thread`` and ``_queue``, which each rank gets replaced.
        """
        names = self._ownership.loaded_modules(reaching=self._folder is None)
        if self._folder is None:
            names = [name for name in names if name != self._home]
        else:
            shadowed = self._shadowed_modules()
            names += [name for name in sys.modules if name.partition(".")[0] in shadowed]
            for world in self.worlds:
                world.separate_builtins()
            names.append("builtins")
            self._names.add("builtins")
        names += self._separate_threads()
        return {name: sys.modules.pop(name) for name in names if name in sys.modules and name != "__main__"}

    def _separate_threads(self) -> tuple[str, ...]:
        """Give each rank the modules on which ``threading`` and ``queue`` are built; return their names."""
        for name in self._thread_modules:
            import_module(name)  # the process's, which are restored
        self._names |= self._thread_modules.keys()
        for world in self.worlds:
            world.modules |= self._thread_modules
        return tuple(self._thread_modules)

    def _shadowed_modules(self) -> set[str]:
        """Return the top-level names of loaded modules that a file in the script's folder hides.

        A name is returned if a search finds the module in the script's folder now, so that an import in the script
        would load this file.
        """
        folder = os.path.join(str(self._folder), "")
        beside = {name.partition(".")[0] for name in os.listdir(folder)} & sys.modules.keys()
        specs = {name: self._ownership.find_again(name) for name in beside}
        return {
            name
            for name, spec in specs.items()
            if spec is not None
            and str(spec.origin).startswith(folder)
            and spec.origin != getattr(sys.modules[name], "__file__", None)
        }


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
