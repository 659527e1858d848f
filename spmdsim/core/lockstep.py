"""Lock step: one process owns all ranks and runs each collective on the list of their shards.

Reductions go through the members of a group in its order (their mesh coordinates). Ranks whose results are
equal share one array, so memory and time grow with the number of distinct shards, not with the number of ranks.

A box is a range of indices ``(start, stop)`` in each dim of the global tensor (:data:`~spmdsim.core.layout.Bounds`). A
layout assigns a box to each rank: its shard. The program of a step computes, from the shards before the step, the
shards after it. It is derived once: which boxes are cut out of which arrays.

Next: :mod:`spmdsim.core.recipe`, what follows from the operands of an operator call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from spmdsim.core.element_types import check_reduce
from spmdsim.core.elements import contiguous, fold
from spmdsim.core.layout import Bounds, Layout
from spmdsim.core.step import Step, volume, within
from spmdsim.core.tensor import PlainTensor, follow
from spmdsim.core.world import AbstractWorld, Shards, T
from spmdsim.errors import UsageTypeError, WorldError

#: The program of a step: takes one shard per rank, and a list to which it writes the shards after the step.
Program = Callable[[Shards, Shards], None]


def box_sizes(box: Bounds) -> tuple[int, ...]:
    """Return the number of indices of a box in each dim."""
    return tuple([stop - start for start, stop in box])


def make_cutter(box: Bounds, outer: Bounds) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that cuts ``box`` out of an array with the elements of ``outer``.

    The function takes an array and returns a C-contiguous array with the elements of ``box``. If possible it
    returns the argument itself or a view of it; an empty box gives a new empty array. For example, the box
    ``((2, 4),)`` is ``array[1:3]`` of an array with the elements ``((1, 6),)``.

    Args:
        box: ``(start, stop)`` per dim in global indices.
        outer: the box of the array; must contain ``box`` unless ``box`` is empty. This is not checked.
    """
    if box == outer:
        return contiguous
    if not volume(box):  # An empty box may be longer in some dim than ``outer``, so it cannot be cut out.
        sizes = box_sizes(box)
        return lambda array: np.empty(sizes, array.dtype)
    index = within(box, outer)

    def cut(array: np.ndarray) -> np.ndarray:
        block = array[index]
        return block if block.flags.c_contiguous else block.copy()

    return cut


def _derive_slice_program(step: Step, dtype: np.dtype) -> Program:
    """Return the program of a local slice: each rank cuts its target box out of its own shard.

    A program reads one shard per rank and writes one result per rank. Ranks get one common result array if they own one
    common shard array, and have equal source boxes and equal target boxes. Results of ranks outside the mesh are not
    written.

    Args:
        step: the slice.
        dtype: not used: the interface :data:`Derivation` has it.
    """
    jobs, first_ranks = [], dict[tuple[Bounds, Bounds], int]()
    for rank in step.src.mesh.rank_list:
        boxes = step.dst.bounds(step.shape, rank), step.src.bounds(step.shape, rank)
        jobs.append((rank, first_ranks.setdefault(boxes, rank), make_cutter(*boxes)))

    def run(shards: Shards, results: Shards) -> None:
        slices: dict[tuple[int, int], np.ndarray] = {}  # by array and first rank with these boxes
        for rank, first_rank, cut in jobs:
            key = id(shards[rank]), first_rank
            if key not in slices:
                slices[key] = cut(shards[rank])
            results[rank] = slices[key]

    return run


def ranks_by_box(layout: Layout, step: Step, members: tuple[int, ...]) -> dict[Bounds, list[int]]:
    """Return the members of a group by the box that a layout assigns to them.

    Args:
        layout: the step's source or target layout.
        step: the step, for the tensor's shape before it.
        members: the ranks of the group. Those with one box keep their order.
    """
    boxes: dict[Bounds, list[int]] = {}
    for rank in members:
        boxes.setdefault(layout.bounds(step.shape, rank), []).append(rank)
    return boxes


def _derive_group_program(step: Step, members: tuple[int, ...]) -> Program:
    """Return the program of a step in one group of ranks.

    The program makes one array of the members' shards, and cuts the target box of each member out of it.
    Members with equal target boxes get one array object. The array of the members' shards is:

    - if the step reduces (all_reduce, reduce_scatter): the sum or other reduction of all shards, in the order
      of ``members``. Their boxes are equal.
    - else (all_gather, all_to_all): the smallest box around all source boxes, with each shard at its place. Of
      members with equal source boxes, the first one's shard is copied.

    Args:
        step: the step: an all_gather, all_to_all, all_reduce or reduce_scatter.
        members: the ranks of the group. The program writes to their results only.
    """
    sources, targets = ranks_by_box(step.src, step, members), ranks_by_box(step.dst, step, members)
    nonempty_boxes = [box for box in sources if volume(box)]
    union = tuple((min(a for a, _ in spans), max(b for _, b in spans)) for spans in zip(*nonempty_boxes))
    shape = box_sizes(union)
    source_indices = [(within(box, union), sources[box][0]) for box in nonempty_boxes]
    cuts = [(make_cutter(box, union), ranks) for box, ranks in targets.items()]

    def run(shards: Shards, results: Shards) -> None:
        """Write the target blocks of the group's members to ``results``."""
        if step.op is not None:
            union_array = fold(step.op, [shards[rank] for rank in members])
        else:
            union_array = np.empty(shape, shards[members[0]].dtype)
            for index, rank in source_indices:
                union_array[index] = shards[rank]
        for cut, ranks in cuts:
            block = cut(union_array)
            for rank in ranks:
                results[rank] = block

    return run


def derive_groups_program(step: Step, dtype: np.dtype) -> Program:
    """Return a function that runs a collective, group by group.

    Args:
        step: the collective.
        dtype: the type of the shards; only used for the check of the reduction.

    Raises:
        WorldError: If the step's reduction is undefined for the element type.
    """
    if step.op is not None:
        check_reduce(step.op, dtype)
    programs = [_derive_group_program(step, members) for members in step.src.mesh.groups(*step.axes)]

    def run(shards: Shards, results: Shards) -> None:
        for program in programs:
            program(shards, results)

    return run


class DerivedStep(NamedTuple):
    """Step derived for all ranks.

    Attributes:
        shapes: the shape of each rank's shard before the step.
        outside: for each rank an array without elements, the result of ranks outside the target mesh.
        run: the function that computes the shards after the step.
    """

    shapes: list[tuple[int, ...]]
    outside: Shards
    run: Program


#: A function that derives the program of a step for arrays of an element type.
Derivation = Callable[[Step, np.dtype], Program]
#: The derivations of core's steps by collective.
DERIVATIONS: dict[str, Derivation] = {
    "slice": _derive_slice_program,
    **dict.fromkeys(("all_gather", "all_to_all", "all_reduce", "reduce_scatter"), derive_groups_program),
}


class LockStepRunner:
    """Runner of steps for a world that owns all its ranks.

    It derives each step once and stores it in the world's cache.

    Args:
        world: the world.
        derivations: a function by collective that derives the program of a step.
    """

    def __init__(self, world: AbstractWorld, derivations: Mapping[str, Derivation]) -> None:
        self._world, self._derivations = world, derivations

    def run(self, step: Step, shards: Shards) -> Shards:
        """Run one step on the shards of all ranks and return the new shards; ``shards`` does not change."""
        derived_step = self.find_derived(step, shards)
        results = list(derived_step.outside)
        derived_step.run(shards, results)
        return results

    def find_derived(self, step: Step, shards: Shards) -> DerivedStep:
        """Check the shards; return what follows from a step and their element type.

        The first call for a step and a type derives it; the world's cache stores it.

        Args:
            step: the step.
            shards: the shards of all ranks; the type of the first one counts, or float64 if there is none.

        Raises:
            WorldError: If the shards do not have the number or the shapes of the step's source layout, or the
                world cannot run the step.
        """
        dtype, cache = shards[0].dtype if shards else np.dtype(float), self._world.cache
        derived_step: DerivedStep | None = cache.get((step, dtype))
        if derived_step is None:
            derived_step = cache[step, dtype] = self._derive(step, dtype)
        if [shard.shape for shard in shards] != derived_step.shapes:
            check_shards(step, shards, derived_step.shapes)
        return derived_step

    def _derive(self, step: Step, dtype: np.dtype) -> DerivedStep:
        """Return the shapes, empty results and program of a step for shards of an element type."""
        self._world.check_step(step)
        shapes = [step.src.local_shape(step.shape, rank) for rank in range(self._world.size)]
        empty = np.zeros((0,) * len(step.shape_after), dtype)
        return DerivedStep(
            shapes, [empty] * self._world.size, self._derivations[step.collective](step, dtype)
        )


def check_shards(step: Step, shards: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise WorldError if the shards do not have the expected number and shapes.

    The message is about the first rank whose shard has another shape.

    Args:
        step: the step that reads the shards, for the message.
        shards: the array of each rank, by rank.
        shapes: the shape that each rank's shard must have.
    """
    if len(shards) != len(shapes):
        raise WorldError(f"shards must be one per rank, {len(shapes)}, got {len(shards)}")
    for rank, (shard, shape) in enumerate(zip(shards, shapes)):
        if shard.shape != shape:
            raise WorldError(
                f"the shard of rank {rank} must have shape {shape} in {step.src}, got {shard.shape}"
            )


class PlainLockStep(AbstractWorld):
    """World of ``size`` ranks in this process that runs the collectives of one mesh.

    >>> PlainLockStep(4).ranks
    range(0, 4)
    """

    def __init__(self, size: int = 1) -> None:
        super().__init__(size, range(size) if isinstance(size, int) else ())
        self._runner = LockStepRunner(self, DERIVATIONS)

    def run(self, step: Step, shards: Shards) -> Shards:
        """Run one step on the shards of all ranks."""
        return self._runner.run(step, shards)

    def move(self, tensor: T, layout: Layout) -> T:
        """Return a tensor of this world in another layout, by the planner's cheapest steps."""
        meta = tensor.meta
        if layout == meta.layout:
            return tensor
        self.check_mesh(layout.mesh)
        return follow(tensor, self.planner.plan(meta.layout, layout, meta.shape, meta.dtype))

    def operands(self, name: str, values: Sequence[Any], like: PlainTensor) -> Sequence[PlainTensor]:
        """Return ``values`` if all are tensors of this world; this world converts nothing.

        Args:
            name: the operator's name, for messages.
            values: the operands.
            like: not used.

        Raises:
            UsageTypeError: If an operand is not a tensor.
            WorldError: If a tensor belongs to another world.
        """
        wrong_types = [type(x).__name__ for x in values if not isinstance(x, PlainTensor)]
        if wrong_types:
            raise UsageTypeError(f"{name} takes tensors, but got {', '.join(wrong_types)}")
        if any(x.world is not self for x in values):
            raise WorldError(f"operands of {name} live in different worlds; make both with the same world")
        return values
