"""Local functions with collectives in their middle: generators that all owned ranks go through together.

Most operators compute on shards and leave what is missing to a redistribution before or after. A scan or a sort has to
hear from the other ranks on the way. Its local function yields what its rank gives to the next step and is sent what it
gets; which steps these are is said beforehand, by the operator's declaration, for the layouts at hand. So every world
runs the same steps, the one without data too, and a trace counts them like all others.

Next: :mod:`spmdsim.core.apply`, who begins these functions.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from spmdsim.core.step import Step

#: A step in the middle of a local function, and the type of the elements it moves.
Phase = tuple[Step, np.dtype]
#: A local function on its way: it yields what it gives, is sent what it gets, and returns its results.
Way = Generator[Any, Any, Any]


def run_phases(phases: Sequence[Phase], world: Any, begun: Sequence[Way | None]) -> list[Any]:
    """Take the local functions of all owned ranks through the steps.

    Args:
        phases: the steps, one for each time that the functions yield.
        world: runs the steps. Those with parts of any length (``step.ragged``) are given lists of arrays, one for each
            member of the group, and how long those are that come back.
        begun: per owned rank its function, None on ranks outside of the mesh.

    Returns:
        What each function returned.
    """
    given = [None if way is None else _advance(way, None) for way in begun]
    for step, dtype in phases:
        if getattr(step, "ragged", False):
            taken = world.run_parts(step, dtype, [value and value.value for value in given])
        else:
            shapes = [step.src.local_shape(step.shape, rank) for rank in world.ranks]
            arrays = [
                np.zeros(shape, dtype) if end is None else np.asarray(end.value, dtype, order="C")
                for shape, end in zip(shapes, given)
            ]
            taken = world.run(step, arrays)
        given = [None if way is None else _advance(way, part) for way, part in zip(begun, taken)]
    return [None if end is None else end.value for end in given]


class _Yielded:
    """What a function gave to a step, or returned."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _advance(way: Way, taken: Any) -> _Yielded:
    try:
        return _Yielded(way.send(taken))
    except StopIteration as end:
        return _Yielded(end.value)


def run_shapes(phases: Sequence[Phase], world: Any) -> None:
    """The same steps in a world without data."""
    for step, dtype in phases:
        if getattr(step, "ragged", False):
            world.run_parts(step, dtype, [None] * len(world.ranks))
        else:
            world.run(
                step, [world.empty(step.src.local_shape(step.shape, rank), dtype) for rank in world.ranks]
            )
