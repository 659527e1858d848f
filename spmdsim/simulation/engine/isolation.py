"""Each rank's own world inside one process: arguments, modules, random numbers, environment, folder.

A rank of a real program is a process, so its modules' variables are its own. Here whatever can reach MPI
(:mod:`spmdsim.simulation.engine.ownership`), the user's modules and ``random`` are loaded once per rank, and put in
place whenever the rank's turn comes.
"""

from __future__ import annotations

import atexit
import os
import sys
import types
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from typing import Any

from spmdsim.errors import working_folder
from spmdsim.simulation.engine.ownership import Ownership, Variables, find
from spmdsim.simulation.engine.scheduler import Scheduler, Task

_Ending = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class _RunningRanks(MutableMapping[Any, Any]):
    """The environment variables of the running rank, found at each access because ranks change at every message."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def _own(self) -> dict[Any, Any]:
        return self._process.environments[self._process.rank]

    def __getitem__(self, key: Any) -> Any:
        return self._own()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._own()[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._own()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._own())

    def __len__(self) -> int:
        return len(self._own())


class Process:
    """The process state of each rank: folder, environment, exit functions.

    Args:
        size: number of ranks.
    """

    def __init__(self, size: int) -> None:
        self._views = [
            view for name in ("environ", "environb") if (view := getattr(os, name, None)) is not None
        ]
        self._environment: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
        self.environments = [dict(self._environment) for _ in range(size)]
        self._folders = [""] * size  # where a rank has gone to
        self.moved = False  # some rank has gone somewhere
        self._endings: list[list[_Ending]] = [[] for _ in range(size)]
        self.rank = 0

    def move(self) -> None:
        """Change to the working folder of the running rank."""
        self._chdir(self._folders[self.rank])

    def end(self) -> None:
        """Call the exit functions of the running rank, the last one first."""
        endings = self._endings[self.rank]
        while endings:
            function, args, kwargs = endings.pop()
            function(*args, **kwargs)

    @contextmanager
    def installed(self, own: Callable[[str], bool]) -> Iterator[None]:
        """Replace functions of ``os`` and ``atexit`` inside a ``with`` block, and restore the process afterwards.

        Args:
            own: whether a module is every rank's own; what shared ones do at the end is the process's.
        """
        self._chdir, register, unregister = os.chdir, atexit.register, atexit.unregister
        start = working_folder()
        for view in self._views:
            view._data = _RunningRanks(self)

        def chdir(path: Any) -> None:
            self._chdir(path)
            self._folders = [folder or start for folder in self._folders]
            self.moved = True
            self._folders[self.rank] = os.getcwd()

        def own_register(func: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not own(sys._getframe(1).f_globals.get("__name__", "")):
                return register(func, *args, **kwargs)
            self._endings[self.rank].append((func, args, kwargs))
            return func

        def own_unregister(func: Any, /) -> None:
            kept = [ending for ending in self._endings[self.rank] if ending[0] != func]
            self._endings[self.rank] = kept
            unregister(func)

        os.chdir, atexit.register, atexit.unregister = chdir, own_register, own_unregister
        try:
            yield
        finally:
            os.chdir, atexit.register, atexit.unregister = self._chdir, register, unregister
            if self.moved:
                os.chdir(start)
            self._restore_environment()

    def _restore_environment(self) -> None:
        for view in self._views:
            view._data = self._environment
        for key in {key for one in self.environments for key in one.keys() ^ self._environment.keys()}:
            os.unsetenv(key) if key not in self._environment else os.putenv(key, self._environment[key])
        for one in self.environments:
            for key in one.keys() & self._environment.keys():
                if one[key] != self._environment[key]:
                    os.putenv(key, self._environment[key])


_OWN_STANDARD = frozenset({"random"})
_Step = Callable[[Any], object]


class RankWorld:
    """The modules, arguments and random numbers of one rank."""

    def __init__(self, rank: int, arguments: list[str], seed: int) -> None:
        self.arguments = list(arguments)
        self.main = types.ModuleType("__main__")
        self.modules: dict[str, Any] = {}
        self.seed = (seed, rank)
        self.numpy_bits: Any = None


class Isolation:
    """A switch from one rank's process state to the next one's.

    Args:
        scheduler: the simulation.
        arguments: ``sys.argv`` of every rank.
        folder: where the script stands, searched first for modules; None for a function.
        draws_numbers: the program may use numpy's global random numbers, so each rank needs its own.
        variables: of the function, or None for a script.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        arguments: list[str],
        folder: str | None,
        draws_numbers: bool,
        variables: Variables | None = None,
    ) -> None:
        self.draws_numbers = draws_numbers
        self._scheduler = scheduler
        self._folder = folder
        self._variables = variables
        self._ownership = Ownership(self)
        self.process = Process(len(scheduler.tasks))
        seed = scheduler.seed or 0
        self.worlds = [RankWorld(task.rank, arguments, seed) for task in scheduler.tasks]
        self._home = "__main__" if variables is None else variables.program.__module__
        self._current: RankWorld | None = None
        self._names: set[str] = set()
        self._loading = False  # the running rank has begun to load modules
        self._searching = False
        self._replaced: dict[
            str, Any
        ] = {}  # modules that were loaded before, of which every rank gets its own

    def enter(self, task: Task) -> None:
        """Put one rank's world in place."""
        rank = task.rank
        world, before, process = self.worlds[rank], self._current, self.process
        if world is before:
            return
        self._current, process.rank = world, rank
        if process.moved:
            process.move()
        sys.argv, modules = world.arguments, sys.modules
        modules["__main__"] = world.main
        if self._names and before is not None:
            self._exchange_modules(before, world)
        if self._variables is not None and self._variables.differ:
            self._variables.put(rank)
        numpy_random = modules.get("numpy.random") if self.draws_numbers else None
        if numpy_random is not None:
            if world.numpy_bits is None:
                world.numpy_bits = numpy_random.MT19937(list(world.seed))
            numpy_random.set_bit_generator(world.numpy_bits)

    def _exchange_modules(self, before: RankWorld, after: RankWorld) -> None:
        """Put one rank's modules in the place of another's."""
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
        """Return the spec of a module that every rank loads for itself; None if ranks share the module."""
        if self._searching:
            return None
        self._searching = True
        try:
            if name not in _OWN_STANDARD and not self._ownership.own(name):
                return None
            spec = find(name, path, self)
        finally:
            self._searching = False
        if spec is None or isinstance(spec.loader, ExtensionFileLoader):
            return None
        world = self._current
        if name in _OWN_STANDARD:
            if world is not None:
                # Each rank draws other numbers, and the same ones in every run.
                words = "seed {} rank {}".format(*world.seed)
                spec.loader = _Loader(spec.loader, after=lambda module: module.seed(words))  # type: ignore[assignment]
        elif spec.submodule_search_locations is not None and spec.loader is not None:
            self._hand_shared_children_over(spec)
        self._names.add(name)
        self._loading = True
        self.draws_numbers |= may_draw_numbers(spec.origin)
        return spec

    def _hand_shared_children_over(self, spec: Any) -> None:
        """Make a package's submodules that are loaded only once attributes of every rank's package."""
        prefix = spec.name + "."
        shared = {
            name.removeprefix(prefix): module
            for name, module in sys.modules.items()
            if name.startswith(prefix) and "." not in name[len(prefix) :] and name not in self._names
        }
        if shared:
            spec.loader = _Loader(spec.loader, before=lambda module: module.__dict__.update(shared))

    # ------------------------------------------------------------------ what was loaded before

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Isolate while the simulation runs, and restore the process afterwards."""
        main, arguments = sys.modules.get("__main__"), sys.argv
        numpy_random = sys.modules.get("numpy.random")
        bits = numpy_random.get_bit_generator() if numpy_random is not None else None
        path = list(sys.path)
        if self._folder is not None:
            sys.path.insert(0, self._folder)
        replaced = self._take_out()
        if self._variables is not None:
            self._variables.replaced = replaced
        sys.meta_path.insert(0, self)
        self._scheduler.on_enter = self.enter
        try:
            with self.process.installed(self._has):
                yield
        finally:
            sys.meta_path.remove(self)
            if self._variables is not None:
                self._variables.restore()
            for name in self._names:
                sys.modules.pop(name, None)
            sys.modules.update(replaced)
            if main is not None:
                sys.modules["__main__"] = main
            sys.argv, sys.path[:] = arguments, path
            numpy_random = sys.modules.get("numpy.random")
            if numpy_random is not None:
                numpy_random.set_bit_generator(bits or numpy_random.MT19937())

    def _has(self, name: str) -> bool:
        """Return True if every rank has its own copy of a module, such as the program itself."""
        return name == self._home or name in self._names

    def _take_out(self) -> dict[str, Any]:
        """Remove loaded modules of which every rank gets its own copy; return the removed ones by name.

        A script finds nothing of the user's loaded. A function may hold what was: it shares that, but for what can
        reach MPI.
        """
        out = self._ownership.loaded(reaching=self._folder is None)
        if self._folder is None:
            out = [name for name in out if name != self._home]
        else:
            shadowed = self._shadowed()
            out += [name for name in sys.modules if name.partition(".")[0] in shadowed]
        return {name: sys.modules.pop(name) for name in {*out, *_OWN_STANDARD} if name in sys.modules}

    def _shadowed(self) -> set[str]:
        """Return the loaded modules whose names the script finds in its own folder."""
        folder = os.path.join(str(self._folder), "")
        beside = {name.partition(".")[0] for name in os.listdir(folder)} & sys.modules.keys()
        specs = {name: self._ownership.look_again(name) for name in beside}
        return {
            name for name, spec in specs.items() if spec is not None and str(spec.origin).startswith(folder)
        }


class _Loader:
    """A module loader that does something before or after another loader, and is otherwise equal to it."""

    def __init__(self, loader: Any, before: _Step | None = None, after: _Step | None = None) -> None:
        self._loader, self._before, self._after = loader, before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        """Return the module that the loader creates."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Load the module, with what is to be done beside it."""
        if self._before is not None:
            self._before(module)
        self._loader.exec_module(module)
        if self._after is not None:
            self._after(module)


def may_draw_numbers(origin: str | None) -> bool:
    """Return True if a source file mentions random numbers or cannot be read."""
    try:
        with open(str(origin), "rb") as stream:
            return b"random" in stream.read()
    except OSError:
        return True
