"""The memory that steps take on MPI: the shards after them, and the buffers in which they pack and land."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from spmdsim.core import Layout
from spmdsim.core.step import Step
from spmdsim.redistribution.price import LISTED
from spmdsim.redistribution.ways.tuning import TABLE, Tuning
from spmdsim.redistribution.ways.way import way_of

#: Up to so many ranks each one is asked; of more, a mesh's first: balanced splits give it the most.
ASKED = 64


def step_memory(
    step: Step, rank: int, dtype: np.dtype, tuning: Tuning = TABLE["Open MPI"]
) -> tuple[int, int]:
    """Bytes that a rank of ``MPIWorld`` takes in a step.

    Args:
        step: the step.
        rank: the rank.
        dtype: type of the elements.
        tuning: the choices for its MPI library.

    Returns:
        Bytes of the shard after the step, 0 if it is the one before or a view of it; and of the buffers in which
        values are packed, or land, besides; those of an all_gather are left out in groups of more than 1,024.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2,), ("x",))
    >>> step = Step("all_gather", ("x",), mesh(None, "x"), mesh(None, None), (512, 512))
    >>> step_memory(step, 0, np.dtype("float32"))
    (1048576, 1048576)
    """
    held = math.prod(step.dst.local_shape(step.shape_after, rank)) if rank in step.dst.mesh else 0
    if step.axes and step.src.mesh.axis_size(*step.axes) > LISTED:
        if step.collective == "all_gather":
            return held * dtype.itemsize, 0
        if step.collective == "all_to_all":  # by the same messages
            step = replace(step, collective="exchange", axes=())
    way = way_of(step, rank, dtype, tuning)
    return held * dtype.itemsize if way.fresh else 0, way.scratch


def step_buffer(step: Step, dtype: np.dtype) -> int:
    """Bytes that a step takes on the rank that takes most: see :func:`step_memory`."""
    return max(sum(step_memory(step, rank, dtype)) for rank in _ranks([step]))


def plan_peak(steps: Sequence[Step], held: np.dtype, dtype: np.dtype) -> int:
    """Bytes held at most on the rank that holds most while the steps run, the shard before them included.

    Args:
        steps: of a plan, at least one. A shard in between is forgotten once the next one is there; the first stays its owner's.
        held: the type in which they run.
        dtype: the type to which the result is rounded in the end.
    """
    return max(_peak(steps, rank, held, dtype) for rank in _ranks(steps))


def _peak(steps: Sequence[Step], rank: int, held: np.dtype, dtype: np.dtype) -> int:
    start = _held(steps[0].src, steps[0].shape, rank) * held.itemsize
    before, most = 0, start
    for step in steps:
        after, scratch = step_memory(step, rank, held)
        most = max(most, start + before + after + scratch)
        before = after or before
    if held != dtype:
        last = _held(steps[-1].dst, steps[-1].shape_after, rank) * dtype.itemsize
        most = max(most, start + before + last)
    return most


def _held(layout: Layout, shape: tuple[int, ...], rank: int) -> int:
    return math.prod(layout.local_shape(shape, rank)) if rank in layout.mesh else 0


def _ranks(steps: Sequence[Step]) -> set[int]:
    meshes = {mesh: None for step in steps for mesh in (step.src.mesh, step.dst.mesh)}
    all_of_them = all(mesh.size <= ASKED for mesh in meshes)
    return {rank for mesh in meshes for rank in (mesh.rank_list if all_of_them else (mesh.rank_at(0),))}
