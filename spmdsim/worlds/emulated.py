"""Emulated algorithms: run a step of a world by a schedule, on the group's boxes as vectors.

The schedule that moves the data is the one that :mod:`spmdsim.collectives` verifies, prices and draws. Names are those
of the algorithms, with options after a colon, as in ``"ring"`` or ``"hierarchical:group=4"``; ``"auto"`` takes the
cheapest one in the world's cost model.
"""

from __future__ import annotations

import re
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
    """Part of one rank in a step that a schedule runs. The positions of the group's members are the schedule's ranks.

    Attributes:
        schedule: the schedule.
        sizes: the number of elements of each chunk.
        members: the ranks of the group.
        me: the position of this rank.
        gives: the boxes of the source that form the input vector, one after the other; None for the whole source.
        takes: the boxes of the target that the output vector fills; None for the whole target.
        target: the shape of the target shard.
        op: the reduction, or None.
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
        """Rounds of the rank."""
        return program_of(self.schedule, self.me, self.sizes)

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Return the elements of a source shard as the input vector of the schedule.

        It is a view of ``array`` if the whole source is sent and the array is contiguous, else a copy.
        """
        if self.gives is None:
            return array.reshape(-1)
        parts = [array[index].reshape(-1) for index in self.gives]
        return np.concatenate(parts) if parts else np.empty(0, array.dtype)

    def unpack(self, vector: np.ndarray) -> np.ndarray:
        """Return the rank's shard after the step, made of the elements of the output vector.

        - If the vector fills the whole target (:attr:`takes` is None), the shard is a view of ``vector``.
        - Otherwise the shard is a new array, whose boxes take consecutive elements: with boxes of 2 and 3 elements, the
          first box gets ``vector[:2]`` and the second one ``vector[2:5]``.

        The vector of an average has sums. They are divided by the size of the group, in place if the shard is a view.

        Args:
            vector: the output vector, whose elements are in the order of the target's boxes.
        """
        if self.takes is None:
            result = vector.reshape(self.target)
        else:
            result, start = np.empty(self.target, vector.dtype), 0
            for index in self.takes:
                block = result[index]
                block[...] = vector[start : start + block.size].reshape(block.shape)
                start += block.size
        if self.op == "avg":
            result /= len(self.members)
        return result

    def function(self, dtype: np.dtype) -> np.ufunc:
        """Return the function that combines two operands of the reduction."""
        return np.add if self.op is None else ufunc(self.op, dtype)


program_of = lru_cache(maxsize=4096)(compile_program)


@lru_cache(maxsize=8192)
def emulation(step: Step, algorithm: str, rank: int, dtype: np.dtype) -> Emulation:
    """Return a rank's part in a step that an algorithm runs: its schedule, inputs and outputs.

    A schedule moves chunks of vectors between the ranks 0, 1, … of one group. These are the positions of the group's
    members: in the group (4, 6), rank 6 of the mesh plays rank 1 of the schedule. The rank's input vector has the
    elements of some boxes of its shard before the step, and its output vector those of boxes of its shard after it.
    Instead of boxes the result has None if the vector is the whole shard. Results are cached.

    Args:
        step: an all_reduce, reduce_scatter, all_gather or all_to_all.
        algorithm: the name of an algorithm with its options, such as ``"hierarchical:group=4"``; not "auto".
        rank: a rank of the step's mesh.
        dtype: the element type; it is only checked, and only if the step reduces.

    Raises:
        ScheduleError: If the collective does not have the algorithm, or the algorithm cannot run on such a group.
        WorldError: If the reduction is undefined for the element type.
    """
    if step.op is not None:
        check_reduce(step.op, dtype)
    members = step.group(rank)
    me, size = members.index(rank), len(members)
    before = [step.src.bounds(step.shape, m) for m in members]
    after = [step.dst.bounds(step.shape, m) for m in members]
    source, target = before[me], after[me]
    name, options = parse_algorithm(algorithm)
    schedule = schedule_of(step.collective, name, size, **options)
    chunks_per_rank = schedule.chunk_count // size
    source_boxes: list[Index] | None = None
    target_boxes: list[Index] | None = None
    if step.collective == "all_reduce":
        sizes: Sequence[int] = schedule.chunk_elements(volume(target))
    elif step.collective == "reduce_scatter":
        sizes = [chunk_size for box in after for chunk_size in cut(volume(box), chunks_per_rank)]
        source_boxes = [_part(box, source) for box in after]
    elif step.collective == "all_gather":
        sizes = [chunk_size for box in before for chunk_size in cut(volume(box), chunks_per_rank)]
        target_boxes = [_part(box, target) for box in before]
    else:
        shared = [[overlap(a, b) for b in after] for a in before]
        sizes = [volume(box) if box else 0 for row in shared for box in row]
        source_boxes = [_part(box, source) for box in shared[me] if box]
        target_boxes = [_part(row[me], target) for row in shared if row[me]]
    outgoing, incoming = (None if boxes is None else tuple(boxes) for boxes in (source_boxes, target_boxes))
    shape = tuple(stop - start for start, stop in target)
    return Emulation(schedule, tuple(sizes), members, me, outgoing, incoming, shape, step.op)


def _part(box: Bounds | None, outer: Bounds) -> Index:
    """Return a box as slices of the shard ``outer``; for an empty box, slices of its lengths."""
    if not box or volume(box):
        return within(box or (), outer)
    return tuple(slice(0, stop - start) for start, stop in box)


def parse_algorithm(algorithm: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of ``"name:option=value,..."``.

    Values of digits, also after one minus, become integers; other values stay texts. Blanks around names and values are
    dropped. Empty options, as in ``"hierarchical:,group=4"``, are skipped.

    Args:
        algorithm: the text; its name and options are not looked up.

    Raises:
        ScheduleError: If an option has no value.

    >>> parse_algorithm("hierarchical:group=4")
    ('hierarchical', {'group': 4})
    """
    name, _, text = algorithm.partition(":")
    options: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        key, sign, value = item.partition("=")
        text_value = value.strip()
        if not sign or not text_value:
            raise ScheduleError(f"an algorithm's option is written name=value, but got {item!r}")
        options[key.strip()] = int(text_value) if re.fullmatch("-?[0-9]+", text_value) else text_value
    return name.strip(), options


def check_name(name: str, collectives: Sequence[str]) -> None:
    """Raise ScheduleError if none of the collectives has the algorithm ``name``.

    Args:
        name: the name, possibly with options, whose names are not checked.
        collectives: the names of collectives. There must be at least one.

    Raises:
        ScheduleError: If no collective has it, or an option has no value. The text is about the first collective.
    """
    algorithm_name, _ = parse_algorithm(name)
    problems = []
    for collective in collectives:
        try:
            algorithm_of(collective, algorithm_name)
        except ScheduleError as error:
            problems.append(error)
    if len(problems) == len(collectives):
        raise problems[0]


@lru_cache(maxsize=4096)
def choose_cheapest(collective: str, size: int, nbytes: int, machine: Any) -> str:
    """Return the name of the algorithm with the least modelled time for one message size.

    A hierarchical algorithm gets the ranks of a node as its option ``group``, such as ``"two_level_ring:group=4"``.
    Results are cached.

    Args:
        collective: the collective.
        size: the number of ranks in the group.
        nbytes: the bytes of the message, as :func:`step_message_bytes` counts them.
        machine: the cost model. Unless it is a Machine, one with a latency of 2 µs, 10 GB/s and 20 ps per reduced byte
            is used.
    """
    from spmdsim.cost.machine import Machine
    from spmdsim.cost.prediction import node_group, predict

    if not isinstance(machine, Machine):
        machine = Machine("typical", alpha=2e-6, beta=1e-10, gamma=2e-11)
    best = predict(collective, machine, [size], [nbytes]).points[0].best
    own_options = dict(algorithm_of(collective, best).options)
    options = [f"{key}={value}" for key, value in node_group(machine, size).items() if key in own_options]
    return ":".join([best, *options])


def step_message_bytes(step: Step, rank: int, itemsize: int) -> int:
    """Return the bytes of a rank's message in a step.

    These are its shard before the step or, for an all_gather, its shard after it.

    Args:
        step: the step.
        rank: the rank.
        itemsize: bytes of an element.
    """
    layout = step.dst if step.collective == "all_gather" else step.src
    return volume(layout.bounds(step.shape, rank)) * itemsize
