"""The first calls of a step that repeats try its ways; what all ranks of its group then agree on is kept.

All members of a group make the same calls in the same order, so that each knows from its own which way is whose turn.
What they know is kept by group, and forgotten at the same call on all of them; what a rank derived from it may be
forgotten, and derived again, at any time. A call of a trial is compared with the others' before it runs, as a new kind
of call is.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from spmdsim.agreement.call import CallDescription
from spmdsim.bounded import Bounded
from spmdsim.core.step import Step
from spmdsim.redistribution.ways.tuning import NOTHING, Wisdom
from spmdsim.redistribution.ways.way import Way
from spmdsim.redistribution.ways.way_trial import Trial, TunedStep, TunedSteps, candidates, tries
from spmdsim.sides import number_of
from spmdsim.worlds.mpi.counted import VENDOR, Counted
from spmdsim.worlds.programs import Run


class KeptTrial(NamedTuple):
    """What the group of a step knows of it, its ranks, and what is called when it is known no more."""

    size: int
    trial: Trial
    forgotten: list[Callable[[], None]]


class Trials:
    """What a world tries (``"off"``, ``"first"`` or ``"full"``), what was known before of its machine, and what came of it."""

    def __init__(self, mode: str, wisdom: Wisdom = NOTHING, machine: str = "") -> None:
        self.mode, self.wisdom, self.machine = mode, wisdom, machine
        self._groups: dict[tuple[int, ...], Bounded[tuple[Step, np.dtype], KeptTrial]] = {}

    def of(
        self,
        step: Step,
        dtype: np.dtype,
        ways: Sequence[Way],
        members: tuple[int, ...],
        forgotten: Callable[[], None],
    ) -> tuple[tuple[Way, ...], Trial]:
        """The ways of a step that are worth a trial, and what all members, whose calls are the same, know of them."""
        group = self._groups.get(members)
        if group is None:
            group = self._groups[members] = Bounded(free=lambda kept: [one() for one in kept.forgotten])
        some, finding = candidates(ways, self.mode), None
        if self.wisdom is not NOTHING and self.mode != "full":
            finding = self.wisdom.of(self.machine, words(step, dtype))
            if finding is not None:
                some = tuple(way for way in ways if way in some or way.label == finding.way)
        kept = group.get((step, dtype))
        if kept is None:
            labels = [way.label for way in some]
            trial = Trial(labels, tries(len(some), self.mode), int(self.mode != "full"), finding)
            size = len(members) if not step.axes else step.src.mesh.axis_size(*step.axes)
            kept = group[step, dtype] = KeptTrial(size, trial, [])
        kept.forgotten[:] = [forgotten]
        return some, kept.trial

    def table(self) -> TunedSteps:
        """What is chosen now, and why."""
        pairs = [one for group in self._groups.values() for one in group.items()]
        rows = [TunedStep.of(words(*key), kept.size, kept.trial) for key, kept in pairs]
        return TunedSteps(tuple(rows), self.machine, self.mode, VENDOR, self.wisdom)


def words(step: Step, dtype: np.dtype) -> str:
    """A step in words, with its meshes: what is found of it holds for others of which they are the same."""
    meshes = dict.fromkeys((step.src.mesh, step.dst.mesh))
    return f"{CallDescription.of_step(step, dtype.name, None)} on {' and '.join(map(str, meshes))}"


def tried(trial: Trial, make: Callable[[int], Run], comm: Counted, meet: Callable[[], None]) -> Run:
    """Return a step whose calls try the ways, which ``make`` derives by their numbers, or take the chosen one.

    ``meet`` is called inside of a call of a trial: it returns when all of the communicator's ranks are in it.
    """
    way = cache(make)

    def run(array: np.ndarray) -> np.ndarray:
        if trial.waiting:
            trial.waiting -= 1
            return way(trial.chosen)(array)
        meet()
        attempt = way(trial.way)
        comm.Barrier()
        start = time.perf_counter_ns()
        result = attempt(array)
        trial.note((time.perf_counter_ns() - start) / 1000)
        if trial.over:
            slowest = np.empty(len(trial.mine))
            comm.agree(np.array(trial.mine), slowest, MPI.MAX)
            trial.decide(slowest.tolist())
        return result

    return run


@cache
def machine_name() -> str:
    """This machine and its MPI in words."""
    try:
        said = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        said = None
    processor = said[1].strip() if said else platform.processor() or platform.machine()
    version = ".".join(map(str, MPI.get_vendor()[1]))
    return f"{processor}, {os.cpu_count()} cores, {VENDOR} {version}"


def common_machine(comm: Counted) -> str:
    """The machine's name where all ranks have the same one. Collective."""
    mine = number_of(machine_name())
    common = np.empty(2, np.int64)
    comm.agree(np.array([mine, -mine]), common, MPI.MIN)
    return machine_name() if common[0] == -common[1] else f"several machines, {VENDOR}"
