"""What a rank does in a step, as lines of Python: a function of their own, or with other lines around them.

A small step that repeats is mostly Python's, and a function between two others costs as much as what one does; more where
ranks share cores, for each finds the caches as the others left them. So the lines of a way (``messages.py``, ``reducing.py``),
those of the trial of several ways and what notes the call become one function.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import CodeType
from typing import Any

import numpy as np
from mpi4py import MPI

from spmdsim.core.elements import contiguous
from spmdsim.trace import recorder
from spmdsim.worlds.mpi.counted import Counted
from spmdsim.worlds.programs import Run

#: The file that their frames are said to be in: like all of the package's, they are not the user's.
_FILE = os.path.join(os.path.dirname(__file__), "<step>")


@dataclass(frozen=True, eq=False)
class WrittenRun:
    """Lines that make ``out`` of ``array``, which is C-contiguous, and what other names in them mean."""

    lines: tuple[str, ...]
    names: Mapping[str, Any]

    @staticmethod
    def of(run: Run) -> WrittenRun:
        """Any function, written out if it can be."""
        return run if isinstance(run, WrittenRun) else WrittenRun(("out = run(array)",), {"run": run})

    @cached_property
    def run(self) -> Run:
        """The function."""
        return defined((*self.lines, "return out"), self.names)

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """What the lines make of an array."""
        return self.run(array)

    def inside(self, before: Sequence[str], after: Sequence[str], **names: Any) -> WrittenRun:
        """With other lines around these, which come one step further to the right."""
        assert not self.names.keys() & names.keys()
        return WrittenRun((*before, *["    " + line for line in self.lines], *after), {**self.names, **names})


#: What comes before lines that want a C-contiguous array.
IN_ORDER = ("if not array.flags.c_contiguous:", "    array = contiguous(array)")


def in_order(run: Run) -> Run:
    """The same function, given C-contiguous arrays only."""
    step = WrittenRun.of(run)
    return WrittenRun((*IN_ORDER, *step.lines), {**step.names, "contiguous": contiguous}).run


def defined(lines: Sequence[str], names: Mapping[str, Any]) -> Run:
    """The function of an ``array`` whose body these lines are."""
    scope = dict(names)
    exec(_compiled("\n    ".join(("def written(array):", *lines))), scope)
    return scope["written"]  # type: ignore[no-any-return]


@lru_cache(maxsize=256)
def _compiled(text: str) -> CodeType:
    return compile(text, _FILE, "exec")


def one_call(
    comm: MPI.Comm, name: str, fresh: Callable[[], np.ndarray], source: Sequence[Any], taken: Sequence[Any]
) -> WrittenRun:
    """One call that moves elements from where they are to where they belong, each told beside its array.

    Counted only for those who record: in between would be another function.
    """
    call, names = calling(comm, name)
    names |= {f"source{k}": one for k, one in enumerate(source)} | {
        f"taken{k}": one for k, one in enumerate(taken)
    }
    give, take = (
        ", ".join(f"{side}{k}" for k in range(len(some)))
        for side, some in (("source", source), ("taken", taken))
    )
    return WrittenRun(("out = fresh()", f"{call}([array, {give}], [out, {take}])"), {**names, "fresh": fresh})


def calling(comm: MPI.Comm, name: str) -> tuple[str, dict[str, Any]]:
    """A function of MPI's by name: counted where somebody records, else the library's own; and what the words mean.

    A kind of communicator that overrides it, such as a transport of limited rate, is asked in both cases.
    """
    counted = getattr(comm, name)
    plain = getattr(type(comm), name) is getattr(Counted, name)
    own = getattr(MPI.Intracomm, name).__get__(comm) if plain else counted
    names = {"call": own, "counted": counted, "traces": recorder.open_traces}
    return "(counted if traces else call)", names
