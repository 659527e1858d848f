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
from itertools import combinations, pairwise, permutations, product
from typing import NamedTuple

import numpy as np

from spmdsim.layout import Layout, Mesh
from spmdsim.redistribution.every import every_layout, every_mesh
from spmdsim.redistribution.exchange.few import pieces_of
from spmdsim.redistribution.exchange.grid import Entries, piece_numbers, ranks_of
from spmdsim.redistribution.price import places
from spmdsim.redistribution.step import Step, reduction_elements

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
    number_of = {(one.mesh, one.dims): k for k, one in enumerate(layouts)}
    start = np.array(starts)[numbers].swapaxes(1, 2)
    stop = np.array(stops)[numbers].swapaxes(1, 2)
    return Splits(layouts, number_of, start, stop, (stop - start).prod(axis=2))


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
    for start in _finer(src, shape) if shape and not kept else (src,):
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
    named = {
        mesh.shape: mesh for mesh in (there, here) if mesh.ranks == here.ranks and mesh.size == here.size
    }
    if here.size > MOST_RANKS:
        return tuple([mesh for mesh in named.values() if len(mesh.axes) <= MOST_AXES])
    return tuple(
        [named.get(mesh.shape) or Mesh(mesh.shape, mesh.axes, here.ranks) for mesh in every_mesh(here.size)]
    )


@lru_cache(maxsize=1024)
def _finer(src: Layout, shape: tuple[int, ...]) -> tuple[Layout, ...]:
    """The same layout on meshes whose axes are primes, so that axes can be reduced, moved or split in part.

    Neighbouring axes that are both pending, or both only copy, are one axis that is cut into its primes in every
    order; an axis that splits a dim is cut where that leaves the pieces as they are.
    """
    mesh, pending = src.mesh, dict(src.partial)
    if mesh.size > MOST_RANKS:
        return (src,)
    runs: list[tuple[list[str], str | None]] = []
    for axis in mesh.axes:
        role = axis if axis in src.split_axes else pending.get(axis)
        if runs and runs[-1][1] == role:
            runs[-1][0].append(axis)
        else:
            runs.append(([axis], role))
    found = []
    for sizes in product(*(sorted({*permutations(_primes(mesh.axis_size(*axes)))}) for axes, _ in runs)):
        into: dict[str, tuple[str, ...]] = {}
        shape_of: list[int] = []
        names: list[str] = []
        for (axes, _), parts in zip(runs, sizes):
            same = list(parts) == [mesh.size_of[axis] for axis in axes]
            into[axes[0]] = tuple(axes) if same else tuple([f"{axes[0]}.{k}" for k in range(len(parts))])
            shape_of += parts
            names += into[axes[0]]
        fine = Mesh(shape_of, names, mesh.ranks)
        left = [(name, op) for axis, op in src.partial for name in into.get(axis, ())]
        dims = [[name for axis in entry for name in into[axis]] for entry in src.dims]
        one = Layout(fine, dims, left)
        if np.array_equal(one.all_bounds(shape).reshape(-1), src.all_bounds(shape).reshape(-1)):
            found.append(one)
    return tuple(found) if src in found else (src, *found)


def _primes(size: int) -> list[int]:
    for factor in range(2, size):
        if size % factor == 0:
            return [factor, *_primes(size // factor)]
    return [size]


class _Finder:
    """The best way between two layouts whose busiest rank stays below a limit."""

    def __init__(
        self,
        src: Layout,
        dst: Layout,
        shape: tuple[int, ...],
        kept: Pairs,
        meshes: tuple[Mesh, ...],
        limit: int,
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
        self.want = np.where(position < 0, 0, volume[position])
        kept_size, others = dst.mesh.axis_size(*dst.partial_axes), {*ranks_of(dst.mesh).rank} - {*here}
        #: Elements of all problems, and the receptions that even the best leaves to their holders, one each but for one.
        self.elements = math.prod(shape) * kept_size
        self.copies = dst.mesh.size // dst.mesh.axis_size(*dst.split_axes) // kept_size - 1
        self.ranks = src.mesh.size + len(others)
        #: What a rank receives that is in the target's mesh only.
        self.elsewhere = int(volume[np.isin(ranks_of(dst.mesh).rank, here, invert=True)].max(initial=0))
        self.best: Way | None = None
        for way in sorted(self._pending(), key=_order):
            self._finish(way)

    def _pending(self) -> list[Way]:
        """What the source can be brought to with something still pending, without what is worse on every rank."""
        start = Way((self.src,), np.zeros(self.src.mesh.size, np.int64))
        self._finish(start)
        known: dict[Layout, list[Way]] = {self.src: [start]}
        reduced = [axis for axis, op in self.src.partial if (axis, op) not in self.kept]
        for count in range(len(reduced)):
            for gone in combinations(reduced, count):
                left = tuple(item for item in self.src.partial if item[0] not in gone)
                for rule in (set.__gt__, set.__eq__):  # first reduce to what is left, then move that
                    ways = [
                        w for layout, some in known.items() if rule({*layout.partial}, {*left}) for w in some
                    ]
                    for way in ways:
                        for further in self._to(way, left):
                            _keep(known.setdefault(further.layouts[-1], []), further)
        return [way for some in known.values() for way in some if len(way.layouts) > 1]

    def _to(self, way: Way, left: Pairs) -> list[Way]:
        """The ways on to all layouts of the source's mesh in which ``left`` is pending."""
        there = _splits((self.src.mesh,), self.shape, left)
        received, possible = self._moved(way.layouts[-1], there)
        received = received + way.received
        possible &= self._may_win(received, left)
        return [Way((*way.layouts, there.layouts[k]), received[k]) for k in np.flatnonzero(possible)]

    def _may_win(self, received: np.ndarray, left: Pairs) -> np.ndarray:
        """Whether ranks that received so much can still stay below the limit, with ``left`` pending."""
        terms = self.src.mesh.axis_size(*[axis for axis, op in left if (axis, op) not in self.kept])
        after = (terms - 1 + self.copies) * self.elements
        fits = received.sum(axis=-1) + after <= (self.limit - 1) * self.ranks
        return fits & ((received + self.want).max(axis=-1) < self.limit)

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
            held, place = there.volume[same], places(layout.mesh, reduced)
            received[same] = reduction_elements("all_reduce", members, held, place)
        return received, (shared == there.volume).all(axis=1)

    def _finish(self, way: Way) -> None:
        """Reduce what is pending, go to the target, and keep it if it is better than the best so far."""
        if not self._may_win(way.received, way.layouts[-1].partial):
            return
        received, possible = self._moved(way.layouts[-1], self.ends)
        received = received + way.received + self.last
        most = np.where(possible, np.maximum(received.max(axis=1), self.elsewhere), self.limit)
        k = int(np.lexsort((received.sum(axis=1), most))[0])
        if most[k] < self.limit:
            middle = self.ends.layouts[k]
            ends = (middle,) if middle == self.dst else (middle, self.dst)
            self.best, self.limit = Way((*way.layouts, *ends), received[k]), int(most[k])


def _keep(ways: list[Way], new: Way) -> None:
    """Add a way to one layout, unless another one is at least as good on every rank."""
    if not any((way.received <= new.received).all() for way in ways):
        ways[:] = [way for way in ways if not (new.received <= way.received).all()] + [new]


def _order(way: Way) -> tuple[int, int]:
    return int(way.received.max()), int(way.received.sum())


def _steps(layouts: tuple[Layout, ...], shape: tuple[int, ...]) -> tuple[Step, ...]:
    """The steps through some layouts."""
    steps = []
    for before, after in pairwise(layouts):
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
