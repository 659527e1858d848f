"""What it costs to get from one layout to another, fast enough to ask a million times.

A search compares thousands of pairs of layouts. The collectives between two layouts of one mesh do not depend on the
tensor's size when everything divides, so the path is derived once per pair of layouts, with the bytes received
as a share of the tensor; pricing it is a multiplication. Reports use the real plans of
:mod:`spmdsim.redistribution`; tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from spmdsim.auto_parallel.costs.settings import Settings, machine_on
from spmdsim.auto_parallel.solvers.problem import IMPOSSIBLE
from spmdsim.cost.machine import CostModel, Machine
from spmdsim.layout import Layout, Mesh
from spmdsim.layout.element_type import held_type
from spmdsim.redistribution.moves import Target

Dims = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Hop:
    """One collective of a path.

    Attributes:
        collective: its name.
        axes: the mesh axes it runs along.
        group: ranks per group.
        share: bytes each rank receives (copies, for a slice), as a share of the whole tensor's bytes.
        messages: messages each rank receives, for an exchange.
    """

    collective: str
    axes: tuple[str, ...]
    group: int
    share: float
    messages: int | None = None


@lru_cache(maxsize=1 << 18)
def path(src: Layout, dst: Layout, scatter: bool = True) -> tuple[Hop, ...]:
    """The collectives that take a tensor from ``src`` to ``dst`` on one mesh, least traffic first.

    Slices are free and come first; values still pending are scattered where the target splits by their axis and
    reduced otherwise; axes that move from dim to dim are exchanged; what is left is gathered. Without ``scatter``
    everything pending is reduced on all ranks.

    >>> mesh = Mesh((2, 4), ("dp", "tp"))
    >>> [hop.collective for hop in path(mesh("dp", None, partial="tp"), mesh("dp", None))]
    ['all_reduce']
    """
    return tuple(_Walk(src.canonical, dst.canonical, scatter).run())


class _Walk:
    """The state of one derivation."""

    def __init__(self, src: Layout, dst: Layout, scatter: bool) -> None:
        self.scatter = scatter
        self.size = src.mesh.axis_size
        self.now = [list(entry) for entry in src.dims]
        self.goal = [list(entry) for entry in dst.dims]
        self.pending = [axis for axis in src.partial_axes if axis not in dst.partial_axes]
        self.kept = [axis for axis in src.partial_axes if axis in dst.partial_axes]
        self.hops: list[Hop] = []

    def run(self) -> list[Hop]:
        """All hops."""
        while True:
            self._slice()
            if self._scatter() or self._exchange():
                continue
            if self._reduce(wait=True) or self._gather() or self._reduce(wait=False):
                continue
            return self.hops

    @property
    def local(self) -> float:
        """The local piece as a share of the tensor."""
        return 1.0 / math.prod(self.size(*entry) for entry in self.now)

    def _next(self, dim: int) -> str | None:
        """The axis by which this dim has to be split next, if all its axes so far are as wanted."""
        now, goal = self.now[dim], self.goal[dim]
        return goal[len(now)] if len(now) < len(goal) and now == goal[: len(now)] else None

    def _free(self, axis: str) -> bool:
        used = any(axis in entry for entry in self.now)
        return not used and axis not in self.pending and axis not in self.kept

    def _slice(self) -> None:
        before = self.local
        for dim in range(len(self.now)):
            while (axis := self._next(dim)) is not None and self._free(axis):
                self.now[dim].append(axis)
        if self.local < before:
            self.hops.append(Hop("slice", (), 1, self.local))

    def _scatter(self) -> bool:
        for dim in range(len(self.now)):
            axes: list[str] = []
            while self.scatter and (axis := self._next(dim)) is not None and axis in self.pending:
                self.now[dim].append(axis)
                self.pending.remove(axis)
                axes.append(axis)
            if axes:
                group = self.size(*axes)
                self._hop("reduce_scatter", axes, (group - 1) * self.local)
                return True
        return False

    def _exchange(self) -> bool:
        for dim, entry in enumerate(self.now):
            axes: list[str] = []
            for other in range(len(self.now)):
                while entry and not self._kept(dim) and other != dim and self._next(other) == entry[-1]:
                    axes.append(entry.pop())
                    self.now[other].append(axes[-1])
                if axes:
                    group = self.size(*axes)
                    self._hop("all_to_all", axes, self.local * (group - 1) / group)
                    return True
        return False

    def _kept(self, dim: int) -> bool:
        """Whether the dim's axes are a beginning of the wanted ones."""
        now, goal = self.now[dim], self.goal[dim]
        return now == goal[: len(now)]

    def _reduce(self, wait: bool) -> bool:
        wanted = {axis for entry in self.goal for axis in entry} if wait else set()
        axes = [axis for axis in self.pending if axis not in wanted]
        if not axes:
            return False
        group = self.size(*axes)
        self.pending = [axis for axis in self.pending if axis not in axes]
        self._hop("all_reduce", axes, 2 * self.local * (group - 1) / group)
        return True

    def _gather(self) -> bool:
        axes: list[str] = []
        before = self.local
        for dim, entry in enumerate(self.now):
            while not self._kept(dim):
                axes.append(entry.pop())
        if axes:
            self._hop("all_gather", axes, self.local - before)
        return bool(axes)

    def _hop(self, collective: str, axes: Sequence[str], share: float) -> None:
        self.hops.append(Hop(collective, tuple(axes), self.size(*axes), share))


@lru_cache(maxsize=1 << 18)
def direct(src: Layout, dst: Layout) -> Hop | None:
    """The direct exchange between two layouts without pending values, as the busiest rank sees it."""
    if src.partial or dst.partial or src.mesh != dst.mesh:
        return None
    size, mesh = src.mesh.axis_size, src.mesh
    wanted, overlap, pieces = 1.0, 1.0, 1
    for have, want in zip(src.canonical.dims, dst.canonical.dims):
        shorter = min(len(have), len(want))
        nested = have[:shorter] == want[:shorter]
        wanted /= size(*want)
        overlap *= 1.0 / max(size(*have), size(*want)) if nested else 0.0
        pieces *= max(1, size(*have) // size(*want)) if not nested or len(have) > len(want) else 1
    messages = max(1, pieces - (overlap > 0))
    return Hop("exchange", mesh.axes, mesh.size, wanted - overlap, messages)


@lru_cache(maxsize=1 << 18)
def scattered(src: Layout, dst: Layout) -> Layout:
    """Where pending sums go before a direct exchange: scattered, as minor parts, over the dims the target splits."""
    if not src.partial:
        return src
    kept = [pair for pair in src.partial if pair in dst.partial]
    pending = [axis for axis in src.partial_axes if axis not in dst.partial_axes]
    goal = {axis: dim for dim, entry in enumerate(dst.dims) for axis in entry}
    dims = [(*entry, *(a for a in pending if goal.get(a) == dim)) for dim, entry in enumerate(src.dims)]
    return Layout(src.mesh, dims, kept)


@lru_cache(maxsize=1 << 18)
def spreads(src: Layout, dst: Layout) -> tuple[tuple[Hop, Layout], ...]:
    """Pending sums reduced at once into pieces as small as can be, ranks with copies helping, and the layouts after."""
    target = Target(src, dst, (1,) * src.ndim)
    if not target.start.pending or not src.replicated_axes:
        return ()
    kept = [pair for pair in src.partial if pair in dst.partial]
    found = {}
    for move in target.spreads(target.start):
        size = src.mesh.axis_size
        group = size(*move.axes)
        share = (group - 1) / math.prod(size(*entry) for entry in move.state.dims)
        found[Layout(src.mesh, move.state.dims, kept)] = Hop(move.collective, move.axes, group, share)
    return tuple((hop, layout) for layout, hop in found.items())


class Moves:
    """Prices of all moves on one machine.

    Args:
        machine: the cost model.
        exchange: whether the direct exchange is among the choices; by default for real machines, not for the
            published cost models, which do not know it.
        scatter: whether pending sums may be scattered.
        scatter_results: whether those of operators' results may.
        gather: whether tensors may be gathered.
        plans: price by the redistribution planner itself: exact, and forty times slower.
    """

    def __init__(
        self,
        machine: CostModel,
        exchange: bool | None = None,
        scatter: bool = True,
        gather: bool = True,
        plans: bool = False,
        scatter_results: bool = True,
    ) -> None:
        self.machine, self.scatter, self.gather = machine, scatter, gather
        self.scatter_results = scatter and scatter_results
        self.exchange = isinstance(machine, Machine) if exchange is None else exchange
        self.plans = plans and isinstance(machine, Machine)
        self._prices: dict[tuple[Layout, Layout, int, bool], float] = {}
        self._collectives: dict[tuple[str, tuple[str, ...], int, float, int | None], float] = {}

    @classmethod
    def under(cls, settings: Settings, mesh: Mesh | None = None) -> Moves:
        """The prices that some settings ask for, on a mesh."""
        machine = settings.machine if mesh is None else machine_on(settings.machine, mesh)
        results = settings.scatter_results
        return cls(machine, settings.exchange, settings.scatter, settings.gather, scatter_results=results)

    def seconds(
        self, src: Layout, dst: Layout, shape: Sequence[int], itemsize: int, result: bool = False
    ) -> float:
        """Time from ``src`` to ``dst``; :data:`IMPOSSIBLE` if values would have to become pending.

        Args:
            src: layout before.
            dst: layout after.
            shape: the tensor's.
            itemsize: bytes per element.
            result: whether the tensor is an operator's result, or its gradient.
        """
        if src == dst:
            return 0.0
        nbytes = moved_itemsize(src, itemsize) * math.prod(shape)
        scatter = self.scatter_results if result else self.scatter
        key = (src, dst, nbytes, scatter)
        found = self._prices.get(key)
        if found is None:
            found = self._prices[key] = self._price(src, dst, nbytes, shape, itemsize, scatter)
        return found

    def _price(
        self, src: Layout, dst: Layout, nbytes: int, shape: Sequence[int], itemsize: int, scatter: bool
    ) -> float:
        if any(axis not in src.partial_axes for axis in dst.partial_axes):
            return IMPOSSIBLE
        if src.mesh != dst.mesh or self.plans:
            return self._planned(src, dst, shape, itemsize)
        seconds = self._path(src, dst, nbytes, scatter)
        if self.exchange and seconds > 0:
            between = scattered(src, dst)
            hop = direct(between, dst)
            if hop is not None and hop.share > 0:
                first = 0.0 if between == src else self._path(src, between, nbytes, scatter)
                seconds = min(seconds, first + self._hop(hop, nbytes))
        if self.exchange and scatter and src.partial and seconds > 0:
            for first_hop, between in spreads(src.canonical, dst.canonical):
                ways = [self._path(between, dst, nbytes, scatter)]
                hop = direct(between, dst)
                ways += [self._hop(hop, nbytes)] if hop is not None and hop.share > 0 else []
                seconds = min(seconds, self._hop(first_hop, nbytes) + min(ways))
        return seconds

    def _path(self, src: Layout, dst: Layout, nbytes: int, scatter: bool) -> float:
        return sum(self._hop(hop, nbytes) for hop in path(src, dst, scatter))

    def _planned(self, src: Layout, dst: Layout, shape: Sequence[int], itemsize: int) -> float:
        from spmdsim.redistribution import plan

        return plan(src, dst, tuple(shape), element_type(itemsize), self.machine).seconds

    def _hop(self, hop: Hop, nbytes: int) -> float:
        if hop.collective == "all_gather" and not self.gather:
            return IMPOSSIBLE
        key = (hop.collective, hop.axes, hop.group, hop.share * nbytes, hop.messages)
        found = self._collectives.get(key)
        if found is None:
            if hop.collective == "slice":
                found = self.machine.seconds("slice", 1, 0.0, copied=hop.share * nbytes)
            else:
                found = self.machine.seconds(
                    hop.collective, hop.group, hop.share * nbytes, hop.axes, messages=hop.messages
                )
            self._collectives[key] = found
        return found

    def collective(self, collective: str, axes: tuple[str, ...], group: int, nbytes: float) -> float:
        """Time of one collective in which every rank of a group receives so many bytes."""
        return self.machine.seconds(collective, group, nbytes, axes)

    def table(
        self,
        sources: Sequence[Layout],
        targets: Sequence[Layout],
        shape: Sequence[int],
        itemsize: int,
        result: bool = False,
    ) -> np.ndarray:
        """Seconds of every pair, ``[source, target]``; equal layouts are priced once."""
        rows = list(dict.fromkeys(sources))
        columns = list(dict.fromkeys(targets))
        prices = np.array([[self.seconds(s, t, shape, itemsize, result) for t in columns] for s in rows])
        row = {layout: i for i, layout in enumerate(rows)}
        column = {layout: i for i, layout in enumerate(columns)}
        return prices[np.ix_([row[s] for s in sources], [column[t] for t in targets])]


def moved_itemsize(src: Layout, itemsize: int) -> int:
    """Bytes per element on the way: numbers of two bytes are floats, whose pending sums are held in four."""
    return held_type(src, element_type(itemsize)).itemsize if src.partial and itemsize <= 2 else itemsize


def element_type(itemsize: int) -> np.dtype:
    """An element type of this size: prices depend on nothing else."""
    return np.dtype({1: "int8", 2: "float16", 4: "float32", 8: "float64", 16: "complex128"}[itemsize])


def piece_elements(layout: Layout, shape: Sequence[int]) -> int:
    """Elements of the largest piece of a tensor."""
    count = 1
    for n, entry in zip(shape, layout.dims):
        for axis in entry:
            n = -(-n // layout.mesh.axis_size(axis))
        count *= n
    return count


@lru_cache(maxsize=4096)
def simple_layouts(mesh: Mesh, shape: tuple[int, ...], nested: bool = True) -> tuple[Layout, ...]:
    """Every layout in which each axis splits one dim evenly, or none; without ``nested``, one axis per dim."""
    found: list[list[list[str]]] = [[[] for _ in shape]]
    for axis, size in zip(mesh.axes, mesh.shape):
        if size == 1:
            continue
        grown = []
        for dims in found:
            grown.append(dims)
            for d, n in enumerate(shape):
                if n % (mesh.axis_size(*dims[d]) * size) == 0 and (nested or not dims[d]):
                    grown.append([[*e, axis] if k == d else e for k, e in enumerate(dims)])
        found = grown
    return tuple(Layout(mesh, [tuple(e) for e in dims]) for dims in found)
