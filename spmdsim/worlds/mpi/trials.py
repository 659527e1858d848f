"""Trials of implementations on MPI: the first calls of a repeated step measure them, and the group keeps the best.

All members of a group make the same calls in the same order. So each one derives from its own calls which
implementation is next. A trial belongs to a group. It is forgotten at the same call on all members, but the program
that a rank derives from it can be forgotten and derived again at any time. Ranks compare a call of a trial before it
runs, like a new kind of call.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from mpi4py import MPI

from spmdsim.bounded import Bounded
from spmdsim.core.step import Step
from spmdsim.redistribution.implementations.implementation import Implementation
from spmdsim.redistribution.implementations.trial import (
    FEW_TRIES,
    MANY_TRIES,
    Trial,
    TunedStep,
    TunedSteps,
    select_candidates,
)
from spmdsim.redistribution.implementations.tuning import NOTHING, TrialRecords
from spmdsim.sides import hash_text
from spmdsim.worlds.agreement.call import CallDescription
from spmdsim.worlds.mpi.counted import VENDOR, Counted
from spmdsim.worlds.programs import Run


@dataclass
class GroupTrial:
    """Trial of a step in a group.

    Attributes:
        size: the number of ranks of the group.
        trial: the trial.
        forget: is called when the trial leaves the cache.
    """

    size: int
    trial: Trial
    forget: Callable[[], None]


class Trials:
    """The trials of a world.

    Args:
        mode: ``"off"``, ``"first"`` or ``"full"``.
        records: the results of earlier trials.
        machine: the name of the machine.
    """

    def __init__(self, mode: str, records: TrialRecords = NOTHING, machine: str = "") -> None:
        self.mode, self.records, self.machine = mode, records, machine
        self._groups: dict[tuple[int, ...], Bounded[tuple[Step, np.dtype], GroupTrial]] = {}

    def of(
        self,
        step: Step,
        dtype: np.dtype,
        implementations: Sequence[Implementation],
        members: tuple[int, ...],
        forget: Callable[[], None],
    ) -> tuple[tuple[Implementation, ...], Trial]:
        """Return the implementations of a step that are tried, and the trial of its group.

        The mode of trials decides which implementations are tried (:func:`select_candidates`). In another mode than
        "full", the one that an earlier program has recorded as the fastest is tried, too; it is chosen at once, before
        any measurement. Ranks of a group have equal trials. A step that came before gets its earlier trial.

        Args:
            step: the step.
            dtype: the element type.
            implementations: all implementations, the best by the model first.
            members: the ranks of both meshes, sorted.
            forget: function without arguments that returns nothing; it is called when the trial leaves the cache.

        Returns:
            ``(tried, trial)``.
            ``tried``: the tried implementations, in the order of ``implementations``.
            ``trial``: the trial, whose indices count in ``tried``.
        """
        group = self._groups.get(members)
        if group is None:
            group = self._groups[members] = Bounded(free=lambda group_trial: group_trial.forget())
        tried, record = select_candidates(implementations, self.mode), None
        if self.records is not NOTHING and self.mode != "full":
            record = self.records.of(self.machine, describe_step(step, dtype))
            if record is not None:
                name = record.implementation
                tried = tuple(
                    implementation
                    for implementation in implementations
                    if implementation in tried or implementation.name == name
                )
        group_trial = group.get((step, dtype))
        if group_trial is None:
            names = [implementation.name for implementation in tried]
            if self.mode == "full":
                trial = Trial(names, tries=MANY_TRIES, pause=0, record=record)
            else:
                trial = Trial(names, tries=FEW_TRIES, pause=1, record=record)
            size = len(members) if not step.axes else step.src.mesh.axis_size(*step.axes)
            group_trial = group[step, dtype] = GroupTrial(size, trial, forget)
        group_trial.forget = forget
        return tried, group_trial.trial

    def table(self) -> TunedSteps:
        """Return the choice for each step so far, with its reason and times.

        Steps are ordered by the first call of their group, and in a group by their own first call. Nothing is sent: the
        times are the ones on which the ranks agreed.
        """
        pairs = [pair for group in self._groups.values() for pair in group.items()]
        rows = [
            TunedStep.of(describe_step(*key), group_trial.size, group_trial.trial)
            for key, group_trial in pairs
        ]
        return TunedSteps(tuple(rows), self.machine, self.mode, VENDOR, self.records)


def describe_step(step: Step, dtype: np.dtype) -> str:
    """Return a step in words, with its meshes. Steps with equal words share a record."""
    meshes = dict.fromkeys((step.src.mesh, step.dst.mesh))
    return f"{CallDescription.of_step(step, dtype.name, None)} on {' and '.join(map(str, meshes))}"


def run_trial(trial: Trial, make: Callable[[int], Run], comm: Counted, meet: Callable[[], None]) -> Run:
    """Return a function that runs a step, and tries its implementations in the first calls.

    The function takes the rank's array and returns the step's result. Its calls are of two kinds:

    - In a pause (``trial.pause`` calls), it runs the implementation that was chosen last.
    - In a trial, it runs the next implementation, after a barrier, and measures the time. After the last call of the
      trial, the ranks agree on the slowest time of each call, :meth:`Trial.decide` chooses the fastest implementation,
      and a new pause begins.

    Args:
        trial: the trial of the step; it is changed.
        make: returns the implementation at an index of the trial's names; it is called once per index.
        comm: the communicator of the group; all ranks must call the returned function equally often.
        meet: function without arguments that returns nothing, when all ranks of the group are in this call.
    """
    implementation = cache(make)

    def run(array: np.ndarray) -> np.ndarray:
        """Run the chosen implementation, or the next one of the trial with its time."""
        if trial.pause:
            trial.pause -= 1
            return implementation(trial.chosen)(array)
        meet()
        attempt = implementation(trial.current)
        comm.Barrier()
        start = time.perf_counter_ns()
        result = attempt(array)
        trial.add((time.perf_counter_ns() - start) / 1000)
        if trial.is_over:
            slowest = np.empty(len(trial.times))
            comm.agree(np.array(trial.times), slowest, MPI.MAX)
            trial.decide(slowest.tolist())
        return result

    return run


@cache
def machine_name() -> str:
    """Return the processor, the number of cores, and the MPI library of this machine as text.

    An example is "Intel(R) Xeon(R) CPU, 8 cores, Open MPI 5.0.3". The name comes from /proc/cpuinfo, or else from
    :mod:`platform`.
    """
    try:
        model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        model = None
    processor = model[1].strip() if model else platform.processor() or platform.machine()
    version = ".".join(map(str, MPI.get_vendor()[1]))
    return f"{processor}, {os.cpu_count()} cores, {VENDOR} {version}"


def common_machine(comm: Counted) -> str:
    """Return the machine's name if all ranks have equal machines, else a text for several.

    All ranks must call it. The text is such as "several machines, Open MPI".
    """
    own_number = hash_text(machine_name())
    common = np.empty(2, np.int64)
    comm.agree(np.array([own_number, -own_number]), common, MPI.MIN)
    return machine_name() if common[0] == -common[1] else f"several machines, {VENDOR}"
