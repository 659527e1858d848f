"""Lock step: one process owns all ranks and runs each collective on the list of their shards.

Reductions go through the members of a group in its order (their mesh coordinates). Ranks whose results are
equal share one array, so thousands of ranks cost what their distinct pieces cost.

Next: :mod:`spmdsim.core.tensor`, a value over the ranks of a world.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from spmdsim.core.element_types import check_reduce
from spmdsim.core.elements import contiguous, fold
from spmdsim.core.layout import Bounds, Layout
from spmdsim.core.notation.rules import check_shards
from spmdsim.core.step import Step, volume, within
from spmdsim.core.world import AbstractWorld, Shards

Program = Callable[[Shards, Shards], None]


def _sizes(box: Bounds) -> tuple[int, ...]:
    return tuple([stop - start for start, stop in box])


def cutting(box: Bounds, outer: Bounds) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that cuts a box out of an array that contains it; it returns the array itself for equal boxes."""
    if box == outer:
        return contiguous
    if not volume(box):  # what is empty may be longer in some dim than the piece it would be cut from
        sizes = _sizes(box)
        return lambda array: np.empty(sizes, array.dtype)
    index = within(box, outer)

    def cut(array: np.ndarray) -> np.ndarray:
        piece = array[index]
        return piece if piece.flags.c_contiguous else piece.copy()

    return cut


def _slices(step: Step, dtype: np.dtype) -> Program:
    jobs, first = [], dict[tuple[Bounds, Bounds], int]()
    for rank in step.src.mesh.rank_list:
        boxes = step.dst.bounds(step.shape, rank), step.src.bounds(step.shape, rank)
        jobs.append((rank, first.setdefault(boxes, rank), cutting(*boxes)))

    def run(shards: Shards, results: Shards) -> None:
        pieces: dict[tuple[int, int], np.ndarray] = {}  # replicas that share an array share its slices
        for rank, same, cut in jobs:
            key = id(shards[rank]), same
            if key not in pieces:
                pieces[key] = cut(shards[rank])
            results[rank] = pieces[key]

    return run


def holders(layout: Layout, step: Step, members: tuple[int, ...]) -> dict[Bounds, list[int]]:
    """Return the members by the box that a layout assigns to them."""
    boxes: dict[Bounds, list[int]] = {}
    for rank in members:
        boxes.setdefault(layout.bounds(step.shape, rank), []).append(rank)
    return boxes


def _together(step: Step, members: tuple[int, ...]) -> Program:
    """Return the program of one group: join its source boxes, or reduce its arrays in order; then cut target boxes.

    Source boxes that are equal are joined once.
    """
    sources, targets = holders(step.src, step, members), holders(step.dst, step, members)
    filled = [box for box in sources if volume(box)]
    union = tuple((min(a for a, _ in spans), max(b for _, b in spans)) for spans in zip(*filled))
    shape, puts = _sizes(union), [(within(box, union), sources[box][0]) for box in filled]
    cuts = [(cutting(box, union), ranks) for box, ranks in targets.items()]

    def run(shards: Shards, results: Shards) -> None:
        if step.op is not None:
            whole = fold(step.op, [shards[rank] for rank in members])
        else:
            whole = np.empty(shape, shards[members[0]].dtype)
            for place, rank in puts:
                whole[place] = shards[rank]
        for cut, ranks in cuts:
            piece = cut(whole)
            for rank in ranks:
                results[rank] = piece

    return run


def grouped(step: Step, dtype: np.dtype) -> Program:
    """Return the program of a collective: what each group does, one group after the other."""
    if step.op is not None:
        check_reduce(step.op, dtype)
    programs = [_together(step, members) for members in step.src.mesh.groups(*step.axes)]

    def run(shards: Shards, results: Shards) -> None:
        for program in programs:
            program(shards, results)

    return run


class DerivedStep(NamedTuple):
    """A step derived for all ranks: shapes of their shards, arrays of ranks outside, and the function that computes the rest."""

    shapes: list[tuple[int, ...]]
    outside: Shards
    run: Program


#: Derives what a step of a collective does to the shards of all ranks.
Derivation = Callable[[Step, np.dtype], Program]
#: How core derives its steps.
DERIVATIONS: dict[str, Derivation] = {
    "slice": _slices,
    **dict.fromkeys(("all_gather", "all_to_all", "all_reduce", "reduce_scatter"), grouped),
}


class LockStepRunner:
    """A runner of steps for a world that owns all its ranks. Each step is derived once and kept in the world's cache.

    Args:
        world: the world.
        derivations: how to derive steps, by collective.
    """

    def __init__(self, world: AbstractWorld, derivations: Mapping[str, Derivation]) -> None:
        self._world, self._derivations = world, derivations

    def run(self, step: Step, shards: Shards) -> Shards:
        """Run one step on the shards of all ranks."""
        program = self.derived(step, shards)
        results = list(program.outside)
        program.run(shards, results)
        return results

    def derived(self, step: Step, shards: Shards) -> DerivedStep:
        """Return a step as it runs on these shards; WorldError if their shapes are others."""
        dtype, cache = shards[0].dtype if shards else np.dtype(float), self._world.cache
        program: DerivedStep | None = cache.get((step, dtype))
        if program is None:
            program = cache[step, dtype] = self._derive(step, dtype)
        if [shard.shape for shard in shards] != program.shapes:
            check_shards(step, shards, program.shapes)
        return program

    def _derive(self, step: Step, dtype: np.dtype) -> DerivedStep:
        self._world.check_step(step)
        shapes = [step.src.local_shape(step.shape, rank) for rank in range(self._world.size)]
        nothing = np.zeros((0,) * len(step.shape_after), dtype)
        return DerivedStep(
            shapes, [nothing] * self._world.size, self._derivations[step.collective](step, dtype)
        )


class PlainLockStep(AbstractWorld):
    """A world of ``size`` ranks in this process that runs the collectives of one mesh.

    >>> PlainLockStep(4).ranks
    range(0, 4)
    """

    def __init__(self, size: int = 1) -> None:
        super().__init__(size, range(size) if isinstance(size, int) else ())
        self._runner = LockStepRunner(self, DERIVATIONS)

    def run(self, step: Step, shards: Shards) -> Shards:
        """Run one step on the shards of all ranks."""
        return self._runner.run(step, shards)
