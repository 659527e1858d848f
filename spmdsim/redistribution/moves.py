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
        self.start = State(src.dims, tuple([axis for axis in src.partial_axes if axis not in kept]))
        self.goal = State(dst.dims, ())
        self.movable = {a for a in src.mesh.axes if a not in kept and self.size_of[a] > 1}
        self.wanted = {axis for entry in dst.dims for axis in entry}
        self._parts: list[dict[tuple[str, ...], int]] = [{} for _ in shape]
        self._local: dict[Dims, tuple[int, list[int]]] = {}
        self._members: dict[tuple[str, ...], int] = {}

    # -- sizes --------------------------------------------------------------------------------------

    def local(self, dims: Dims) -> tuple[int, list[int]]:
        """Elements and shape of the largest piece: the first rank's, balanced splits being what they are."""
        found = self._local.get(dims)
        if found is None:
            shape = [
                known[entry] if entry in known else self._part(dim, entry)
                for dim, (entry, known) in enumerate(zip(dims, self._parts))
            ]
            found = self._local[dims] = (math.prod(shape), shape)
        return found

    def _part(self, dim: int, entry: tuple[str, ...]) -> int:
        size = self.shape[dim]
        for axis in entry:
            size = -(-size // self.size_of[axis])
        self._parts[dim][entry] = size
        return size

    def members(self, axes: tuple[str, ...]) -> int:
        """Ranks of a group along some axes."""
        found = self._members.get(axes)
        if found is None:
            found = self._members[axes] = self.mesh.axis_size(*axes)
        return found

    def moved(self, state: State, move: Move) -> int:
        """Elements that the first rank receives: the busiest one's, or where pieces are uneven a little less."""
        kind = move.collective
        if kind == "slice":
            return 0
        after, shape = self.local(move.state.dims)
        if kind == "reduce_scatter":
            return (self.members(move.axes) - 1) * after
        if kind == "all_reduce":
            members = self.members(move.axes)
            return (members - 2) * -(-after // members) + after
        return after - math.prod(map(min, self.local(state.dims)[1], shape))

    # -- all moves ----------------------------------------------------------------------------------

    def moves(self, state: State) -> list[Move]:
        """The moves that make sense from a state."""
        sliced = self._slice(state)
        if sliced is not None:
            return [sliced]  # costs nothing and shrinks everything that follows
        moves = self._reductions(state) if state.pending else self._placements(state)
        return [move for move in moves if self.local(move.state.dims)[0] <= self.limit]

    # -- slice --------------------------------------------------------------------------------------

    def _slice(self, state: State) -> Move | None:
        if state.dims == self.dims:
            return None
        free = self.movable.difference(state.pending, *state.dims)
        if free.isdisjoint(self.wanted):
            return None
        runs = [next_run(entry, target, free) for entry, target in zip(state.dims, self.dims)]
        if not any(runs):
            return None
        dims = tuple([entry + run for entry, run in zip(state.dims, runs)])
        return Move("slice", tuple([axis for run in runs for axis in run]), State(dims, state.pending))

    # -- reductions ---------------------------------------------------------------------------------

    def _reductions(self, state: State) -> Iterator[Move]:
        pending = {*state.pending}
        runs = [next_run(entry, target, pending) for entry, target in zip(state.dims, self.dims)]
        if sum(map(bool, runs)) > 1:
            yield self._scattered(state, runs)
        for dim, run in enumerate(runs):
            if run:
                yield self._scattered(state, _only(runs, dim, run))
        lost = tuple([axis for axis in state.pending if axis not in self.wanted])
        if lost and len(lost) < len(state.pending):
            yield Move("all_reduce", lost, State(state.dims, _without(state.pending, lost)))
        yield Move("all_reduce", state.pending, State(state.dims, ()))
        for dim, run in enumerate(runs):
            if run != state.pending:
                yield self._scattered(state, _only(runs, dim, state.pending))

    def _scattered(self, state: State, added: list[tuple[str, ...]]) -> Move:
        dims = tuple([entry + run for entry, run in zip(state.dims, added)])
        axes = tuple([axis for run in added for axis in run])
        return Move("reduce_scatter", axes, State(dims, _without(state.pending, axes)))

    # -- placements ---------------------------------------------------------------------------------

    def _placements(self, state: State) -> Iterator[Move]:
        beyond = [entry[_common(entry, target) :] for entry, target in zip(state.dims, self.dims)]
        for dim, extra in enumerate(beyond):
            for count in range(1, len(extra) + 1):
                yield from self._all_to_all(state, dim, extra[-count:])
        for dim, extra in enumerate(beyond):
            for count in range(len(extra), 0, -1):
                yield self._gathered(state, _only(beyond, dim, extra[-count:]))
        if sum(map(bool, beyond)) > 1:
            yield self._gathered(state, beyond)

    def _all_to_all(self, state: State, dim: int, axes: tuple[str, ...]) -> Iterator[Move]:
        for other, (entry, target) in enumerate(zip(state.dims, self.dims)):
            run = target[len(entry) : len(entry) + len(axes)]
            if run and other != dim and {*run} == {*axes} and target[: len(entry)] == entry:
                dims = list(state.dims)
                dims[dim] = dims[dim][: -len(axes)]
                dims[other] = entry + run
                yield Move("all_to_all", run, State(tuple(dims), ()))

    def _gathered(self, state: State, dropped: list[tuple[str, ...]]) -> Move:
        dims = tuple([entry[: len(entry) - len(gone)] for entry, gone in zip(state.dims, dropped)])
        return Move("all_gather", tuple([axis for gone in dropped for axis in gone]), State(dims, ()))


def _only(runs: list[tuple[str, ...]], dim: int, run: tuple[str, ...]) -> list[tuple[str, ...]]:
    """As many runs, all empty but that of one dim."""
    out: list[tuple[str, ...]] = [()] * len(runs)
    out[dim] = run
    return out


def _without(axes: tuple[str, ...], gone: tuple[str, ...]) -> tuple[str, ...]:
    return tuple([axis for axis in axes if axis not in gone])


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
