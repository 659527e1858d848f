"""Give each rank its own values of what the interpreter and extension modules have once per process.

These are variables of ``sys`` and ``warnings``, numpy's global random numbers, the running event loop of asyncio and
the figures of pyplot. They are stored when a rank stops, and set when it continues.
"""

from __future__ import annotations

import sys
import warnings
from collections import OrderedDict
from dataclasses import dataclass, field
from importlib import import_module
from operator import itemgetter
from typing import Any

from spmdsim.simulation.engine.captured_output import RankStreams

#: Variables that each rank has for itself, of modules that all ranks share.
_SYS = ("argv", "path", "stdin", "stdout", "stderr", "__stdout__", "excepthook", "displayhook")
_WARNINGS = ("filters", "onceregistry", "showwarning", "formatwarning", "_showwarnmsg_impl")


class _Variables:
    """Variables of one module that all ranks share, with their values in the process.

    Args:
        module: the module.
        names: names of the variables; those that the module lacks are left out.
    """

    def __init__(self, module: Any, names: tuple[str, ...]) -> None:
        self.namespace = vars(module)
        self.names = [name for name in names if name in self.namespace]
        self.read = itemgetter(*self.names)
        self.start = dict(zip(self.names, self.read(self.namespace), strict=True))

    def first_values(self, **changes: Any) -> _Values:
        """Return the values with which a rank starts: the process's, with copies of lists and dicts.

        Args:
            **changes: other values by name.
        """
        copies = {
            name: type(value)(value) for name, value in self.start.items() if type(value) in (list, dict)
        }
        return _Values(self, self.start | copies | changes)

    def restore(self) -> None:
        """Set the values of the process."""
        self.namespace.update(self.start)


class _Values:
    """Values that the variables of a module have for a rank, while it does not run.

    Args:
        variables: the variables.
        by_name: the values.
    """

    __slots__ = ("by_name", "in_order", "variables")

    def __init__(self, variables: _Variables, by_name: dict[str, Any]) -> None:
        self.variables = variables
        self.by_name = by_name
        self.in_order = tuple(by_name[name] for name in variables.names)

    def store(self, present: tuple[Any, ...]) -> None:
        """Store other values.

        Args:
            present: the values in the order of the variables.
        """
        self.in_order = present
        self.by_name = dict(zip(self.variables.names, present, strict=True))


@dataclass(slots=True)
class _RankValues:
    """The values of one rank, while it does not run."""

    sys: _Values
    warnings: _Values
    bit_generator: Any = None
    figures: Any = field(default_factory=OrderedDict)
    event_loop: Any = None
    generator_hooks: Any = (None, None)


def _event_loop() -> tuple[Any, Any]:
    """Return the running event loop, None without one, and the hooks of async generators."""
    module = sys.modules.get("_asyncio")
    return module and module._get_running_loop(), sys.get_asyncgen_hooks()


def _set_event_loop(loop: Any, hooks: Any) -> None:
    """Set the running event loop, if asyncio is loaded, and the hooks of async generators.

    Args:
        loop: the event loop; None if none runs.
        hooks: the hooks, as ``sys.get_asyncgen_hooks`` returns them.
    """
    if "_asyncio" in sys.modules:
        sys.modules["_asyncio"]._set_running_loop(loop)
    sys.set_asyncgen_hooks(*hooks)


class InterpreterState:
    """The state of the interpreter and of extension modules, with the values of each rank.

    Args:
        arguments: ``sys.argv`` of every rank.
        path: ``sys.path`` of every rank.
        streams: the standard streams of the ranks.
        seed: the simulation's seed.
    """

    def __init__(self, arguments: list[str], path: list[str], streams: RankStreams, seed: int) -> None:
        self._sys, self._warnings = _Variables(sys, _SYS), _Variables(warnings, _WARNINGS)
        self._arguments, self._path, self._streams, self._seed = arguments, path, streams, seed
        self._starts: dict[int, tuple[list[str], list[str]]] = {}  # of ranks with other arguments
        self._ranks: dict[int, _RankValues] = {}
        self._rank = -1  # the running rank; -1 for the process
        self._running: _RankValues | None = None
        self._random: Any = None  # numpy.random, if ranks may draw numbers
        self._process_generator: Any = None
        self._process_figures: Any = None
        self._process_loop = _event_loop()

    def enter_rank(self, rank: int) -> None:
        """Store the values of the running rank, and set those of the next one.

        Nearly every message calls this, so it reads and sets all variables of a module at once.

        Args:
            rank: the rank that runs next.
        """
        before, after = self._running, self._ranks.get(rank)
        sys_variables, warning_variables = self._sys.namespace, self._warnings.namespace
        if before is not None:
            present = self._sys.read(sys_variables)
            if present != before.sys.in_order:
                before.sys.store(present)
            present = self._warnings.read(warning_variables)
            if present != before.warnings.in_order:
                before.warnings.store(present)
        if after is None:
            after = self._ranks[rank] = self._first_values(rank)
        self._rank, self._running = rank, after
        sys_variables.update(after.sys.by_name)
        warning_variables.update(after.warnings.by_name)
        if self._random is not None:
            if before is not None:
                before.bit_generator = self._random.get_bit_generator()
            self._set_generator(after)
        if "_asyncio" in sys.modules:
            if before is not None:
                before.event_loop, before.generator_hooks = _event_loop()
            _set_event_loop(after.event_loop, after.generator_hooks)
        pyplot = sys.modules.get("matplotlib._pylab_helpers")
        if pyplot is not None:
            self._exchange_figures(pyplot.Gcf, before, after)

    def set_start(self, rank: int, arguments: list[str], path: list[str]) -> None:
        """Set ``sys.argv`` and ``sys.path`` with which a rank starts.

        Args:
            rank: the rank, which has not started.
            arguments: ``sys.argv``.
            path: ``sys.path``.
        """
        self._starts[rank] = arguments, path

    def _first_values(self, rank: int) -> _RankValues:
        """Return the values that a rank has when it starts.

        These are the process's values, but the arguments, the path and the standard streams are the rank's.
        """
        output = self._streams.open_output(rank)
        arguments, path = self._starts.get(rank, (self._arguments, self._path))
        sys_values = self._sys.first_values(
            argv=list(arguments),
            path=list(path),
            stdin=self._streams.input_of(rank),
            stdout=output,
            __stdout__=output,
        )
        return _RankValues(sys_values, self._warnings.first_values())

    def separate_random_numbers(self) -> None:
        """Give each rank its own numpy generator from now on: ``np.random.rand()`` draws from it.

        A rank's first numbers follow from the simulation's seed and the rank, so they are equal in every run.
        """
        if self._random is None:
            self._random = import_module("numpy.random")
            self._process_generator = self._random.get_bit_generator()
            if self._running is not None:
                self._set_generator(self._running)

    def _set_generator(self, values: _RankValues) -> None:
        """Make a rank's generator numpy's global one; create it if necessary."""
        if values.bit_generator is None:
            values.bit_generator = self._random.MT19937([self._seed, self._rank])
        self._random.set_bit_generator(values.bit_generator)

    def _exchange_figures(self, manager: Any, before: _RankValues | None, after: _RankValues) -> None:
        """Replace the open figures of pyplot by those of the next rank.

        Args:
            manager: pyplot's class that stores the figures.
            before: the values of the rank that ran. None: the process's figures are stored.
            after: the values of the rank that runs next.
        """
        if before is None:
            self._process_figures = manager.figs
        else:
            before.figures = manager.figs
        manager.figs = after.figures

    def restore(self) -> None:
        """Set the values of the process."""
        self._rank, self._running = -1, None
        self._sys.restore()
        self._warnings.restore()
        _set_event_loop(*self._process_loop)
        if self._random is not None:
            self._random.set_bit_generator(self._process_generator)
        pyplot = sys.modules.get("matplotlib._pylab_helpers")
        if pyplot is not None:
            pyplot.Gcf.figs = self._process_figures or OrderedDict()
