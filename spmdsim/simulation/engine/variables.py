"""What the variables of a simulated function hold on each rank.

A function's variables are shared, as it was defined once. But what they hold of mpi4py, and of modules of which every
rank has its own, is every rank's own here too: ``from lib import total`` before the simulation is the rank's
``total`` in it.
"""

from __future__ import annotations

import types
from importlib import import_module
from typing import Any

from spmdsim.errors import InputError
from spmdsim.simulation.engine.scheduler import Task


class Variables:
    """Global variables, closure and default arguments of a function.

    Args:
        program: the function.
        real: the mpi4py.MPI that was loaded before the simulation, or None.
        virtual: the one of the simulation.
    """

    def __init__(self, program: types.FunctionType, real: Any, virtual: Any) -> None:
        self.program = program
        self.replaced: dict[str, Any] = {}  # modules loaded before, of which every rank has its own
        self._real, self._virtual = real, virtual
        self._kept = dict(program.__globals__), [_contents(cell) for cell in program.__closure__ or ()]
        self._of_ranks: dict[int, tuple[dict[str, Any], dict[int, Any]]] = {}
        self.differ = False  # some rank's are others than those of the process

    def call(self, task: Task, arguments: tuple[Any, ...]) -> Any:
        """Call the function as the rank that runs.

        Raises:
            InputError: the function uses a communicator of the real MPI.
        """
        program, (variables, contents) = self.program, self._kept
        cells = dict(enumerate(contents))
        names = program.__code__.co_freevars
        own = self._own(task, variables), self._own(task, cells, dict(enumerate(names)))
        self._of_ranks[task.rank] = own
        self.differ |= any(own)
        defaults = dict(enumerate(program.__defaults__ or ()))
        named = program.__kwdefaults__ or {}
        start = program.__code__.co_argcount - len(defaults)
        places = {i: program.__code__.co_varnames[start + i] for i in defaults}
        defaults |= self._own(task, defaults, places)
        body = types.FunctionType(
            program.__code__,
            program.__globals__,
            program.__name__,
            tuple(defaults.values()),
            program.__closure__,
        )
        body.__kwdefaults__ = named | self._own(task, named, {name: name for name in named})
        self.put(task.rank)
        return body(*arguments)

    def put(self, rank: int) -> None:
        """Let the variables hold what they hold on a rank."""
        variables, cells = self._of_ranks.get(rank, ({}, {}))
        self.program.__globals__.update(variables)
        for i, value in cells.items():
            self.program.__closure__[i].cell_contents = value  # type: ignore[index]

    def restore(self) -> None:
        """Let the variables hold again what they held before."""
        variables, contents = self._kept
        for own, cells in self._of_ranks.values():
            self.program.__globals__.update({name: variables[name] for name in own})
            for i in cells:
                self.program.__closure__[i].cell_contents = contents[i]  # type: ignore[index]

    def _own(self, task: Task, values: dict[Any, Any], names: dict[Any, str] | None = None) -> dict[Any, Any]:
        """The values that are others on this rank. Only variables that the function names have to have one."""
        used = self.program.__code__.co_names
        own = {
            key: self._value(task, value, names[key] if names else key, names is not None or key in used)
            for key, value in values.items()
        }
        return {key: value for key, value in own.items() if value is not None}

    def _value(self, task: Task, value: Any, name: str, used: bool) -> Any:
        """What a value is on this rank, or None if it is no rank's own."""
        real = self._real
        if real is not None and value is real:
            return self._virtual
        if real is None or not isinstance(value, real.Comm):
            return self._of_module(value)
        if value in (real.COMM_WORLD, real.COMM_SELF):
            return task.world if value == real.COMM_WORLD else task.own
        if used:
            raise InputError(
                f"the function uses {name!r}, a communicator of the real MPI that virtual ranks are not in: "
                "make it inside the function, from the virtual MPI.COMM_WORLD"
            )
        return None

    def _of_module(self, value: Any) -> Any:
        """This rank's own module, or function or class of such a module."""
        if isinstance(value, types.ModuleType):
            name: str = value.__name__
            return import_module(name) if value is self.replaced.get(name) else None
        home, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if not isinstance(home, str) or home not in self.replaced or not isinstance(path, str):
            return None
        return (
            _attribute(import_module(home), path) if _attribute(self.replaced[home], path) is value else None
        )


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def _attribute(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name, None)
    return value
