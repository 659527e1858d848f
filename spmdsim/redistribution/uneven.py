"""Where pieces are not all equal: the reduction that leaves the busiest rank the fewest elements over all its steps.

The busiest ranks of two steps need not be the same, so what steps receive is added up rank by rank. A reduction goes

    source -> (another split, or a part of the reductions, still pending) -> everything reduced -> target

Once nothing is pending the direct exchange is the least on every rank, so only the two layouts in between are free:
all splits of all device matrices of the source's ranks are compared at once, as arrays. Any of them can be reduced into
whose pieces lie within the pieces held: that is a reduce_scatter, whatever the order of the axes.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations, permutations, product
from typing import NamedTuple

import numpy as np

from spmdsim.layout import Layout, Mesh
from spmdsim.redistribution.every import every_layout, every_mesh
from spmdsim.redistribution.exchange.few import pieces_of
from spmdsim.redistribution.exchange.grid import Entries, piece_numbers, ranks_of
from spmdsim.redistribution.step import Step

#: Up to so many ranks all device matrices are tried, beyond only the two meshes themselves.
MOST_RANKS = 12
#: Meshes of more axes have too many layouts to try them all.
MOST_AXES = 3

Pairs = tuple[tuple[str, str], ...]


class Splits(NamedTuple):
    """Layouts of one tensor on meshes over the same ranks.

    Attributes:
        layouts: the layouts.
        number: which one has a mesh and splits.
        start: ``[layout, position, dim]``, where a piece starts.
        stop: the same, where it stops.
        volume: ``[layout, position]``, its elements.
    """

    layouts: tuple[Layout, ...]
    number: dict[tuple[Mesh, Entries], int]
    start: np.ndarray
    stop: np.ndarray
    volume: np.ndarray

    def shared(self, one: int, others: Splits) -> np.ndarray:
        """Per layout of ``others`` and position, the elements that a rank has in it and in one of these."""
        start = np.maximum(self.start[one], others.start)
        return np.maximum(np.minimum(self.stop[one], others.stop) - start, 0).prod(axis=2)


@lru_cache(maxsize=64)
def _layouts(meshes: tuple[Mesh, ...], ndim: int, pending: Pairs) -> tuple[Layout, ...]:
    """All layouts with exactly these axes pending."""
    axes = {axis for axis, _ in pending}
    free = [one for mesh in meshes for one in every_layout(mesh, ndim) if axes.isdisjoint(one.split_axes)]
    return tuple([Layout(one.mesh, one.dims, pending) for one in free]) if pending else tuple(free)


@lru_cache(maxsize=256)
def _splits(meshes: tuple[Mesh, ...], shape: tuple[int, ...], pending: Pairs) -> Splits:
    layouts = _layouts(meshes, len(shape), pending)
    spans: dict[tuple[Mesh, tuple[str, ...], int], int] = {}
    starts, stops, rows = [], [], []
    for layout in layouts:
        mesh, row = layout.mesh, []
        for entry, size in zip(layout.dims, shape):
            number = spans.get((mesh, entry, size))
            if number is None:
                number = spans[mesh, entry, size] = len(spans)
                start, length = pieces_of(size, tuple([mesh.size_of[axis] for axis in entry]))
                held = piece_numbers(mesh, entry)
                starts.append(np.array(start)[held])
                stops.append(starts[-1] + np.array(length)[held])
            row.append(number)
        rows.append(row)
    numbers = np.array(rows)
    number = {(one.mesh, one.dims): k for k, one in enumerate(layouts)}
    start = np.array(starts)[numbers].swapaxes(1, 2)
    stop = np.array(stops)[numbers].swapaxes(1, 2)
    return Splits(layouts, number, start, stop, (stop - start).prod(axis=2))


class Way(NamedTuple):
    """Layouts one after the other, and the elements every rank has received at the last one."""

    layouts: tuple[Layout, ...]
    received: np.ndarray


def reduction(src: Layout, dst: Layout, shape: tuple[int, ...], kept: Pairs, limit: int) -> tuple[Step, ...]:
    """The steps of a reduction in which the busiest rank receives the fewest elements.

    Args:
        src: the layout before, canonical, with values pending that ``dst`` does not have pending.
        dst: the layout after, canonical, on any mesh.
        shape: global shape, of at least one dim.
        kept: the axes that stay pending, with their reduction.
        limit: the elements that the busiest rank has to stay below.

    Returns:
        The steps; none if there are none below the limit, or too many layouts to look at them all.
    """
    best: Way | None = None
    for start in _finer(src) if shape and not kept else (src,):
        meshes = _meshes(start.mesh, dst.mesh)
        if shape and meshes:
            found = _Finder(start, dst, shape, kept, meshes, limit)
            if found.best is not None:
                best, limit = found.best, found.limit
    return () if best is None else _steps(best.layouts, shape)


@lru_cache(maxsize=256)
def _meshes(here: Mesh, there: Mesh) -> tuple[Mesh, ...]:
    """The device matrices over the ranks of ``here`` whose layouts are tried."""
    if len(here.axes) > MOST_AXES:
        return ()
    named = {mesh.shape: mesh for mesh in (there, here) if mesh.ranks == here.ranks and mesh.size == here.size}
    if here.size > MOST_RANKS:
        return tuple([mesh for mesh in named.values() if len(mesh.axes) <= MOST_AXES])
    return tuple([named.get(mesh.shape) or Mesh(mesh.shape, mesh.axes, here.ranks) for mesh in every_mesh(here.size)])


@lru_cache(maxsize=256)
def _finer(src: Layout) -> tuple[Layout, ...]:
    """The layout with the axes that split nothing cut into prime factors, in every order: reduced one by one."""
    if src.mesh.size > MOST_RANKS:
        return (src,)
    cut = {*src.mesh.axes} - {*src.split_axes}
    parts = [
        sorted({*permutations(_primes(size))}) if axis in cut else [(size,)] for axis, size in src.mesh.size_of.items()
    ]
    found = []
    for sizes in product(*parts):
        names = [
            (axis,) if len(some) == 1 else tuple([f"{axis}.{k}" for k in range(len(some))])
            for axis, some in zip(src.mesh.axes, sizes)
        ]
        mesh = Mesh([n for some in sizes for n in some], [name for some in names for name in some], src.mesh.ranks)
        into = dict(zip(src.mesh.axes, names))
        found.append(Layout(mesh, src.dims, [(name, op) for axis, op in src.partial for name in into[axis]]))
    return tuple(found)


def _primes(size: int) -> list[int]:
    for factor in range(2, size):
        if size % factor == 0:
            return [factor, *_primes(size // factor)]
    return [size]


class _Finder:
    """The best way between two layouts whose busiest rank stays below a limit."""

    def __init__(
        self, src: Layout, dst: Layout, shape: tuple[int, ...], kept: Pairs, meshes: tuple[Mesh, ...], limit: int
    ) -> None:
        self.src, self.dst, self.shape, self.kept, self.limit = src, dst, shape, kept, limit
        self.ends = _splits((src.mesh,) if kept else meshes, shape, kept)
        here = ranks_of(src.mesh).rank
        position = ranks_of(dst.mesh).positions(here)
        want = dst.all_bounds(shape)
        volume = (want[..., 1] - want[..., 0]).prod(axis=1)
        target = want[position]
        width = np.minimum(target[..., 1], self.ends.stop) - np.maximum(target[..., 0], self.ends.start)
        held = np.maximum(width, 0).prod(axis=2)
        #: What the direct exchange to the target leaves every rank to receive, by the layout it starts from.
        self.last = np.where(position < 0, 0, volume[position] - held)
        #: What a rank receives that is in the target's mesh only.
        self.elsewhere = int(volume[np.isin(ranks_of(dst.mesh).rank, here, invert=True)].max(initial=0))
        self.best: Way | None = None
        for way in self._pending():
            self._finish(way)

    def _pending(self) -> list[Way]:
        """The source, and what it can be brought to with something still pending, the best way to each."""
        start = Way((self.src,), np.zeros(self.src.mesh.size, np.int64))
        self._finish(start)
        known = {self.src: start}
        for way in self._to(start, self.src.partial):
            known.setdefault(way.layouts[-1], way)
        reduced = [axis for axis, op in self.src.partial if (axis, op) not in self.kept]
        for count in range(1, len(reduced)):
            for gone in combinations(reduced, count):
                left = tuple(item for item in self.src.partial if item[0] not in gone)
                for before in [way for layout, way in known.items() if {*left} < {*layout.partial}]:
                    for way in self._to(before, left):
                        other = known.get(way.layouts[-1])
                        if other is None or _order(way) < _order(other):
                            known[way.layouts[-1]] = way
        return list(known.values())[1:]

    def _to(self, way: Way, left: Pairs) -> list[Way]:
        """The ways on to all layouts of the source's mesh in which ``left`` is pending."""
        there = _splits((self.src.mesh,), self.shape, left)
        received, possible = self._moved(way.layouts[-1], there)
        received = received + way.received
        # What is left to be received in all says which of them cannot stay below the limit.
        terms = self.src.mesh.axis_size(*[axis for axis, op in left if (axis, op) not in self.kept])
        after = (terms - 1) * math.prod(self.shape) * self.src.mesh.axis_size(*[axis for axis, _ in self.kept])
        possible &= received.max(axis=1) < self.limit
        possible &= received.sum(axis=1) + after <= (self.limit - 1) * self.src.mesh.size
        return [Way((*way.layouts, there.layouts[k]), received[k]) for k in np.flatnonzero(possible)]

    def _moved(self, layout: Layout, there: Splits) -> tuple[np.ndarray, np.ndarray]:
        """What each rank receives on the way to each of some layouts, and to which of them there is one."""
        here = _splits((layout.mesh,), self.shape, layout.partial)
        shared = here.shared(here.number[layout.mesh, layout.dims], there)
        left = {axis for axis, _ in there.layouts[0].partial}
        reduced = tuple([axis for axis in layout.partial_axes if axis not in left])
        if not reduced:
            return there.volume - shared, np.ones(len(there.layouts), bool)
        members = layout.mesh.axis_size(*reduced)
        received = (members - 1) * there.volume
        same = there.number.get((layout.mesh, layout.dims))
        if same is not None:  # an all_reduce, over balanced blocks
            mine = there.volume[same]
            block = mine // members + (piece_numbers(layout.mesh, reduced) < mine % members)
            received[same] = (members - 2) * block + mine
        return received, (shared == there.volume).all(axis=1)

    def _finish(self, way: Way) -> None:
        """Reduce what is pending, go to the target, and keep it if it is better than the best so far."""
        received, possible = self._moved(way.layouts[-1], self.ends)
        received = received + way.received + self.last
        most = np.where(possible, np.maximum(received.max(axis=1), self.elsewhere), self.limit)
        k = int(np.lexsort((received.sum(axis=1), most))[0])
        if most[k] < self.limit:
            middle = self.ends.layouts[k]
            ends = (middle,) if middle == self.dst else (middle, self.dst)
            self.best, self.limit = Way((*way.layouts, *ends), received[k]), int(most[k])


def _order(way: Way) -> tuple[int, int]:
    return int(way.received.max()), int(way.received.sum())


def _steps(layouts: tuple[Layout, ...], shape: tuple[int, ...]) -> tuple[Step, ...]:
    """The steps through some layouts."""
    steps = []
    for before, after in zip(layouts, layouts[1:]):
        reduced = tuple([axis for axis in before.partial_axes if axis not in after.partial_axes])
        if reduced:
            same = before.mesh == after.mesh and before.dims == after.dims
            name = "all_reduce" if same else "reduce_scatter"
            steps.append(Step(name, reduced, before, after, shape, before.reduce_op))
        else:
            steps.append(_placed(before, after, shape))
    return tuple(steps)


def _placed(before: Layout, after: Layout, shape: tuple[int, ...]) -> Step:
    """One step in which values only move: regular where it can be."""
    if before.mesh == after.mesh:
        pairs = list(zip(before.dims, after.dims))
        if all(old == new[: len(old)] for old, new in pairs):
            return Step("slice", (), before, after, shape)
        if all(new == old[: len(new)] for old, new in pairs):
            axes = tuple([axis for old, new in pairs for axis in old[len(new) :]])
            return Step("all_gather", axes, before, after, shape)
    return Step("exchange", (), before, after, shape)
