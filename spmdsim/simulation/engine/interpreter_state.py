"""Give each rank its own values of what the interpreter and extension modules have once per process.

These are variables of ``sys`` and ``warnings``, numpy's global random numbers and the figures of pyplot. They are
stored when a rank stops, and set when it continues.
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
_SYS = [
    "argv",
    "path",
    "stdin",
    "stdout",
    "stderr",
    "__stdin__",
    "__stdout__",
    "__stderr__",
    "excepthook",
    "displayhook",
]
_WARNINGS = ["filters", "onceregistry", "defaultaction", "showwarning", "formatwarning", "_showwarnmsg_impl"]


class _Variables:
    """Variables of one module: a copy of their values, and functions that read and set them.

    Args:
        module: the module.
        names: names of the variables; those that the module lacks are left out.
    """

    def __init__(self, module: Any, names: list[str]) -> None:
        self._namespace = vars(module)
        self._names = [name for name in names if name in self._namespace]
        self.read = itemgetter(*self._names)
        self.start = self.values()

    def values(self) -> dict[str, Any]:
        """Return the values as {name: value}."""
        return dict(zip(self._names, self.read(self._namespace), strict=True))

    def copies(self) -> dict[str, Any]:
        """Return the values from before the simulation, with copies of lists and dicts."""
        return {
            name: type(value)(value) if type(value) in (list, dict) else value
            for name, value in self.start.items()
        }

    def set(self, values: dict[str, Any]) -> None:
        """Set values."""
        self._namespace.update(values)


@dataclass(slots=True)
class _RankValues:
    """The values of one rank, while it does not run."""

    sys: dict[str, Any]
    warnings: dict[str, Any]
    bit_generator: Any = None
    figures: Any = field(default_factory=OrderedDict)


class InterpreterState:
    """The state of the interpreter and of extension modules, with the values of each rank.

    Args:
        arguments: ``sys.argv`` of every rank.
        streams: the standard streams of the ranks.
        seed: the simulation's seed.
    """

    def __init__(self, arguments: list[str], streams: RankStreams, seed: int) -> None:
        self._sys, self._warnings = _Variables(sys, _SYS), _Variables(warnings, _WARNINGS)
        self._arguments, self._streams, self._seed = arguments, streams, seed
        self._ranks: dict[int, _RankValues] = {}
        self._rank = -1  # the running rank; -1 for the process
        self._random: Any = None  # numpy.random, if ranks may draw numbers
        self._process_generator: Any = None
        self._process_figures: Any = None

    def enter_rank(self, rank: int) -> None:
        """Store the values of the running rank, and set those of the next one.

        Args:
            rank: the rank that runs next.
        """
        before = self._ranks.get(self._rank)
        if before is not None:
            before.sys, before.warnings = self._sys.values(), self._warnings.values()
        after = self._ranks.get(rank)
        if after is None:
            after = self._ranks[rank] = self._first_values(rank)
        self._rank = rank
        self._sys.set(after.sys)
        self._warnings.set(after.warnings)
        if self._random is not None:
            if before is not None:
                before.bit_generator = self._random.get_bit_generator()
            self._set_generator(after)
        pyplot = sys.modules.get("matplotlib._pylab_helpers")
        if pyplot is not None:
            self._exchange_figures(pyplot.Gcf, before, after)

    def _first_values(self, rank: int) -> _RankValues:
        """Return the values that a rank has when it starts.

        These are the process's values, but the arguments, the path and the standard streams are the rank's.
        """
        output, source = self._streams.open_output(rank), self._streams.input_of(rank)
        variables = self._sys.copies() | {
            "argv": list(self._arguments),
            "path": list(sys.path),
            "stdin": source,
            "__stdin__": source,
            "stdout": output,
            "__stdout__": output,
        }
        return _RankValues(variables, self._warnings.copies())

    def separate_random_numbers(self) -> None:
        """Give each rank its own numpy generator from now on: ``np.random.rand()`` draws from it.

        A rank's first numbers follow from the simulation's seed and the rank, so they are equal in every run.
        """
        if self._random is None:
            self._random = import_module("numpy.random")
            self._process_generator = self._random.get_bit_generator()
            if self._rank in self._ranks:
                self._set_generator(self._ranks[self._rank])

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
        self._rank = -1
        self._sys.set(self._sys.start)
        self._warnings.set(self._warnings.start)
        if self._random is not None:
            self._random.set_bit_generator(self._process_generator)
        pyplot = sys.modules.get("matplotlib._pylab_helpers")
        if pyplot is not None:
            pyplot.Gcf.figs = self._process_figures or OrderedDict()
