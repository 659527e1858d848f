"""The collective steps that lead from a state of the values towards a target.

A state is a layout in its barest form: per dim the axes, and the axes still to be reduced. Splits are nested, so
only the last axes of a dim can be gathered or moved away, and axes can only be appended at the end. Moves are
directed: an axis is placed where the target wants it, right after the axes that the target has before it, or given
up. What that cannot reach (swapped axes, other cut points) is what the direct exchange is for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from spmdsim.layout import Layout
from spmdsim.redistribution.bound import kept_axes

Dims = tuple[tuple[str, ...], ...]


class State(NamedTuple):
    """Per dim the axes that split it, major first, and the axes whose values have to be reduced."""

    dims: Dims
    pending: tuple[str, ...]


class Move(NamedTuple):
    """A collective over axes that leads to a state."""

    collective: str
    axes: tuple[str, ...]
    state: State


class Target:
    """Where the moves lead: the target's dims, and what the search may do on the way.

    Args:
        src: the layout before.
        dst: the layout after, on the same mesh, with no axis pending that is not pending in ``src``.
        shape: global shape.
        limit: the most elements a rank may hold in between.
    """

    def __init__(self, src: Layout, dst: Layout, shape: tuple[int, ...], limit: int) -> None:
        self.mesh, self.shape, self.limit = src.mesh, shape, limit
        self.size_of = src.mesh._size_of
        kept = kept_axes(src, dst)
        self.dims = dst.dims
        self.start = State(src.dims, tuple(axis for axis in src.partial_axes if axis not in kept))
        self.goal = State(dst.dims, ())
        self.movable = tuple(a for a in src.mesh.axes if a not in kept and self.size_of[a] > 1)
        self.wanted = {axis for entry in dst.dims for axis in entry}
        self._local: dict[Dims, tuple[int, ...]] = {}

    def local(self, dims: Dims) -> tuple[int, ...]:
        """The local shape of the largest piece: that of the first rank, balanced splits being what they are."""
        found = self._local.get(dims)
        if found is None:
            found = tuple(self._part(dim, entry) for dim, entry in enumerate(dims))
            self._local[dims] = found
        return found

    def largest(self, dims: Dims) -> int:
        """Elements of the largest piece."""
        return math.prod(self.local(dims))

    def _part(self, dim: int, entry: tuple[str, ...]) -> int:
        size = self.shape[dim]
        for axis in entry:
            size = -(-size // self.size_of[axis])
        return size

    def moves(self, state: State) -> Iterator[Move]:
        """The moves that make sense from a state."""
        sliced = self._slice(state)
        if sliced is not None:
            yield sliced  # costs nothing and shrinks everything that follows
            return
        moves = self._reductions(state) if state.pending else self._placements(state)
        for move in moves:
            if self.largest(move.state.dims) <= self.limit:
                yield move

    # -- slice --------------------------------------------------------------------------------------

    def _slice(self, state: State) -> Move | None:
        free = {*self.movable} - {a for entry in state.dims for a in entry} - {*state.pending}
        taken: list[str] = []
        dims = list(state.dims)
        for dim, (entry, target) in enumerate(zip(state.dims, self.dims)):
            run = next_run(entry, target, free)
            if run:
                dims[dim] = entry + run
                taken += run
        return Move("slice", tuple(taken), State(tuple(dims), state.pending)) if taken else None

    # -- reductions ---------------------------------------------------------------------------------

    def _reductions(self, state: State) -> Iterator[Move]:
        pending = {*state.pending}
        runs = [next_run(entry, target, pending) for entry, target in zip(state.dims, self.dims)]
        fitting = [dim for dim, run in enumerate(runs) if run]
        if len(fitting) > 1:
            yield self._scattered(state, {dim: runs[dim] for dim in fitting})
        for dim in fitting:
            yield self._scattered(state, {dim: runs[dim]})
        lost = tuple(axis for axis in state.pending if axis not in self.wanted)
        if lost and len(lost) < len(state.pending):
            yield self._reduced(state, lost)
        yield self._reduced(state, state.pending)
        for dim in range(len(self.shape)):
            if runs[dim] != state.pending:
                yield self._scattered(state, {dim: state.pending})

    def _scattered(self, state: State, added: dict[int, tuple[str, ...]]) -> Move:
        dims = tuple(entry + added.get(dim, ()) for dim, entry in enumerate(state.dims))
        axes = tuple(axis for run in added.values() for axis in run)
        left = tuple(axis for axis in state.pending if axis not in axes)
        return Move("reduce_scatter", axes, State(dims, left))

    def _reduced(self, state: State, axes: tuple[str, ...]) -> Move:
        return Move("all_reduce", axes, State(state.dims, tuple(a for a in state.pending if a not in axes)))

    # -- placements ---------------------------------------------------------------------------------

    def _placements(self, state: State) -> Iterator[Move]:
        beyond = [entry[_common(entry, target) :] for entry, target in zip(state.dims, self.dims)]
        for dim, extra in enumerate(beyond):
            for count in range(1, len(extra) + 1):
                yield from self._all_to_all(state, dim, extra[-count:])
        for dim, extra in enumerate(beyond):
            for count in range(len(extra), 0, -1):
                yield self._gathered(state, {dim: extra[-count:]})
        if sum(bool(extra) for extra in beyond) > 1:
            yield self._gathered(state, dict(enumerate(beyond)))

    def _all_to_all(self, state: State, dim: int, axes: tuple[str, ...]) -> Iterator[Move]:
        for other, (entry, target) in enumerate(zip(state.dims, self.dims)):
            run = target[len(entry) : len(entry) + len(axes)]
            if other != dim and {*run} == {*axes} and target[: len(entry)] == entry:
                dims = list(state.dims)
                dims[dim] = dims[dim][: -len(axes)]
                dims[other] = entry + run
                yield Move("all_to_all", run, State(tuple(dims), ()))

    def _gathered(self, state: State, dropped: dict[int, tuple[str, ...]]) -> Move:
        dims = tuple(entry[: len(entry) - len(dropped.get(dim, ()))] for dim, entry in enumerate(state.dims))
        return Move("all_gather", tuple(a for axes in dropped.values() for a in axes), State(dims, ()))


def _common(entry: tuple[str, ...], target: tuple[str, ...]) -> int:
    """How many leading axes agree."""
    for count, (a, b) in enumerate(zip(entry, target)):
        if a != b:
            return count
    return min(len(entry), len(target))


def next_run(entry: tuple[str, ...], target: tuple[str, ...], allowed: set[str]) -> tuple[str, ...]:
    """The target's next axes on a dim that are all allowed, if what is there is the target's beginning."""
    if len(target) <= len(entry) or target[: len(entry)] != entry:
        return ()
    stop = len(entry)
    while stop < len(target) and target[stop] in allowed:
        stop += 1
    return target[len(entry) : stop]
