"""LockStep: one process owns all ranks and runs each collective on the list of their shards.

Reductions go through the members of a group in its order (their mesh coordinates). Ranks whose results are
equal share one array, so thousands of ranks cost what their distinct pieces cost.

Next: :mod:`spmdsim.core.meta`, what is known of a tensor without its data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from spmdsim.core import elements
from spmdsim.core.layout import Bounds, Layout
from spmdsim.core.step import Index, Step, volume, within
from spmdsim.core.world import World
from spmdsim.errors import WorldError

Shards = list[Any]
Program = Callable[[Shards, Shards], None]


def contiguous(array: np.ndarray) -> np.ndarray:
    """The array itself if it is C-contiguous, else a C-ordered copy (0-d arrays stay 0-d)."""
    return array if array.flags.c_contiguous else array.copy()


@dataclass(frozen=True)
class Slicing:
    """How one rank slices: the part of its source it keeps, or None for all of it.

    An empty shard is made of nothing: its dims may be longer than those of an empty source.
    """

    index: Index | None
    empty: tuple[int, ...] | None = None

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """The slice of an array."""
        if self.empty is not None:
            return np.empty(self.empty, array.dtype)
        return contiguous(array if self.index is None else array[self.index])


def slicing(step: Step, rank: int) -> Slicing:
    """The slice that takes ``rank`` from the source to the target layout."""
    source, target = step.src.bounds(step.shape, rank), step.dst.bounds(step.shape, rank)
    if source != target and not volume(target):
        return Slicing(None, _sizes(target))
    return Slicing(None if source == target else within(target, source))


def _slices(step: Step, dtype: np.dtype) -> Program:
    jobs = [(rank, job, str(job)) for rank in step.src.mesh.rank_list for job in [slicing(step, rank)]]

    def run(shards: Shards, results: Shards) -> None:
        pieces: dict[tuple[int, str], np.ndarray] = {}  # replicas that share an array share its slices
        for rank, job, words in jobs:
            key = (id(shards[rank]), words)
            if key not in pieces:
                pieces[key] = job(shards[rank])
            results[rank] = pieces[key]

    return run


def _sizes(box: Bounds) -> tuple[int, ...]:
    return tuple([stop - start for start, stop in box])


def holders(layout: Layout, step: Step, members: tuple[int, ...]) -> dict[Bounds, list[int]]:
    """The members by the box that a layout gives them."""
    boxes: dict[Bounds, list[int]] = {}
    for rank in members:
        boxes.setdefault(layout.bounds(step.shape, rank), []).append(rank)
    return boxes


def _together(step: Step, members: tuple[int, ...]) -> Program:
    """Put the group's distinct source boxes together once, or reduce its arrays in order; then cut the target boxes out."""
    sources, targets = holders(step.src, step, members), holders(step.dst, step, members)
    filled = [box for box in sources if volume(box)]
    union = tuple((min(a for a, _ in spans), max(b for _, b in spans)) for spans in zip(*filled))
    shape, puts = _sizes(union), [(within(box, union), sources[box][0]) for box in filled]
    # What is empty may be longer in some dim than the piece it would be cut from.
    cuts = [
        (within(box, union) if volume(box) else None, _sizes(box), ranks) for box, ranks in targets.items()
    ]

    def run(shards: Shards, results: Shards) -> None:
        if step.op is not None:
            whole = elements.fold(step.op, [shards[rank] for rank in members])
        else:
            whole = np.empty(shape, shards[members[0]].dtype)
            for place, rank in puts:
                whole[place] = shards[rank]
        for index, sizes, ranks in cuts:
            piece = np.empty(sizes, whole.dtype) if index is None else contiguous(whole[index])
            for rank in ranks:
                results[rank] = piece

    return run


def _grouped(step: Step, dtype: np.dtype) -> Program:
    """What each group of a collective does, one after the other."""
    if step.op is not None:
        elements.types.check_reduce(step.op, dtype)
    programs = [_together(step, members) for members in step.src.mesh.groups(*step.axes)]

    def run(shards: Shards, results: Shards) -> None:
        for program in programs:
            program(shards, results)

    return run


class _Compiled(NamedTuple):
    """A step derived for all ranks: the shapes of their shards, what ranks outside get, and what computes the rest."""

    shapes: list[tuple[int, ...]]
    outside: Shards
    run: Program


class LockStep(World):
    """A world of ``size`` ranks in this process.

    >>> LockStep(4).ranks
    range(0, 4)
    """

    #: How a step's program is derived, by its collective; worlds that run more steps have more.
    derivations: ClassVar[Mapping[str, Callable[[Step, np.dtype], Program]]] = {
        "slice": _slices,
        **dict.fromkeys(("all_gather", "all_to_all", "all_reduce", "reduce_scatter"), _grouped),
    }

    def __init__(self, size: int = 1) -> None:
        super().__init__(size, range(size) if isinstance(size, int) else ())

    def _run(self, step: Step, shards: Shards, algorithm: str | None) -> Shards:
        dtype = shards[0].dtype if shards else np.dtype(float)
        program: _Compiled | None = self.cache.get((step, dtype))
        if program is None:
            program = self.cache[step, dtype] = self._compile(step, dtype)
        if [shard.shape for shard in shards] != program.shapes:
            _refuse(step, shards, program.shapes)
        if algorithm is not None:
            return self._emulate(step, shards, algorithm)
        results = list(program.outside)
        program.run(shards, results)
        return results

    def _emulate(self, step: Step, shards: Shards, algorithm: str) -> Shards:
        raise WorldError(f"{type(self).__name__} runs no algorithms, but {algorithm!r} was asked for")

    def _compile(self, step: Step, dtype: np.dtype) -> _Compiled:
        self.check_step(step)
        if step.collective not in self.derivations:
            raise WorldError(f"{type(self).__name__} of core does not run {step.collective!r}")
        shapes = [step.src.local_shape(step.shape, rank) for rank in range(self.size)]
        nothing = np.zeros((0,) * len(step.shape_after), dtype)
        return _Compiled(shapes, [nothing] * self.size, self.derivations[step.collective](step, dtype))


def _refuse(step: Step, shards: Shards, shapes: list[tuple[int, ...]]) -> None:
    if len(shards) != len(shapes):
        raise WorldError(f"{len(shards)} shards were given for {len(shapes)} ranks")
    rank = next(r for r, shape in enumerate(shapes) if shards[r].shape != shape)
    raise WorldError(
        f"rank {rank} holds a shard of shape {shards[rank].shape}, but {step.src} gives it {shapes[rank]}"
    )
