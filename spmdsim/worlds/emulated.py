"""A step of a world run by an emulated algorithm: the group's boxes as the vectors that schedules work on.

The same schedule that the collectives room verifies, prices and draws moves the data. Names are those of the
algorithms, with options after a colon, as in ``"ring"`` or ``"hierarchical:group=4"``; ``"auto"`` takes the
cheapest one in the world's cost model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from spmdsim.collectives import Schedule, schedule_of
from spmdsim.collectives import algorithm as algorithm_of
from spmdsim.collectives.instructions import cut
from spmdsim.collectives.rank_program import RankProgram, compile_program
from spmdsim.core import Bounds
from spmdsim.core.elements import ufunc
from spmdsim.core.step import Index, Step, overlap, volume, within
from spmdsim.errors import ScheduleError
from spmdsim.layout.element_type import check_reduce


@dataclass(frozen=True)
class Emulation:
    """One rank's part of a step that a schedule runs, on a group whose members' places are the schedule's ranks.

    ``sizes`` are elements of each chunk. The boxes of the source that make up the rank's input vector, one after the other, are
    what it ``gives``, those of the target that its output vector fills what it ``takes``; None for all.
    """

    schedule: Schedule
    sizes: tuple[int, ...]
    members: tuple[int, ...]
    me: int
    gives: tuple[Index, ...] | None
    takes: tuple[Index, ...] | None
    target: tuple[int, ...]
    op: str | None

    @property
    def program(self) -> RankProgram:
        """The rank's rounds."""
        return program_of(self.schedule, self.me, self.sizes)

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Return the input vector."""
        if self.gives is None:
            return array.reshape(-1)
        parts = [array[index].reshape(-1) for index in self.gives]
        return np.concatenate(parts) if parts else np.empty(0, array.dtype)

    def unpack(self, vector: np.ndarray) -> np.ndarray:
        """Return the target shard from the output vector."""
        if self.takes is None:
            result = vector.reshape(self.target)
        else:
            result, start = np.empty(self.target, vector.dtype), 0
            for index in self.takes:
                piece = result[index]
                piece[...] = vector[start : start + piece.size].reshape(piece.shape)
                start += piece.size
        if self.op == "avg":
            result /= len(self.members)
        return result

    def function(self, dtype: np.dtype) -> np.ufunc:
        """Return the function that combines two operands."""
        return np.add if self.op is None else ufunc(self.op, dtype)


program_of = lru_cache(maxsize=4096)(compile_program)


@lru_cache(maxsize=8192)
def emulation(step: Step, algorithm: str, rank: int, dtype: np.dtype) -> Emulation:
    """Return this rank's part of a step run by an algorithm."""
    if step.op is not None:
        check_reduce(step.op, dtype)
    members = step.group(rank)
    me, size = members.index(rank), len(members)
    before = [step.src.bounds(step.shape, m) for m in members]
    after = [step.dst.bounds(step.shape, m) for m in members]
    source, target = before[me], after[me]
    name, options = _parsed(algorithm)
    schedule = schedule_of(step.collective, name, size, **options)
    each = schedule.chunk_count // size
    gives: list[Index] | None = None
    takes: list[Index] | None = None
    if step.collective == "all_reduce":
        sizes: Sequence[int] = schedule.chunk_elements(volume(target))
    elif step.collective == "reduce_scatter":
        sizes = [part for box in after for part in cut(volume(box), each)]
        gives = [_part(box, source) for box in after]
    elif step.collective == "all_gather":
        sizes = [part for box in before for part in cut(volume(box), each)]
        takes = [_part(box, target) for box in before]
    else:
        shared = [[overlap(a, b) for b in after] for a in before]
        sizes = [volume(box) if box else 0 for row in shared for box in row]
        gives = [_part(box, source) for box in shared[me] if box]
        takes = [_part(row[me], target) for row in shared if row[me]]
    outgoing, incoming = (None if boxes is None else tuple(boxes) for boxes in (gives, takes))
    shape = tuple(stop - start for start, stop in target)
    return Emulation(schedule, tuple(sizes), members, me, outgoing, incoming, shape, step.op)


def _part(box: Bounds | None, outer: Bounds) -> Index:
    if not box or volume(box):
        return within(box or (), outer)
    return tuple(slice(0, stop - start) for start, stop in box)


def _parsed(algorithm: str) -> tuple[str, dict[str, Any]]:
    """``"name:option=value,..."`` as name and options.

    >>> _parsed("hierarchical:group=4")
    ('hierarchical', {'group': 4})
    """
    name, _, text = algorithm.partition(":")
    options: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        key, sign, value = item.partition("=")
        if not sign:
            raise ScheduleError(f"an algorithm's option is written name=value, but got {item!r}")
        options[key.strip()] = int(value) if value.strip().lstrip("-").isdigit() else value.strip()
    return name.strip(), options


def check_name(name: str, collectives: Sequence[str]) -> None:
    """Refuse an algorithm that none of the collectives has."""
    wanted, _ = _parsed(name)
    problems = []
    for collective in collectives:
        try:
            algorithm_of(collective, wanted)
        except ScheduleError as error:
            problems.append(error)
    if len(problems) == len(collectives):
        raise problems[0]


@lru_cache(maxsize=4096)
def cheapest(collective: str, size: int, nbytes: int, machine: Any) -> str:
    """Return the algorithm with the least time by the cost model."""
    from spmdsim.cost.machine import Machine
    from spmdsim.cost.prediction import predict

    if not isinstance(machine, Machine):
        machine = Machine("typical", alpha=2e-6, beta=1e-10, gamma=2e-11)
    return predict(collective, machine, [size], [nbytes]).points[0].best


def message_bytes(step: Step, rank: int, itemsize: int) -> int:
    """Return the size of a step in its collective's convention: a rank's vector, its blocks, or all blocks together."""
    layout = step.dst if step.collective == "all_gather" else step.src
    return volume(layout.bounds(step.shape, rank)) * itemsize
