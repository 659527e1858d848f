"""What it costs a program to get from one layout to another, under the assumptions of a search.

The prices are the planner's: where everything divides from :mod:`spmdsim.redistribution.even_moves`, which plans once for all
tensors that are alike, elsewhere from the plan itself. So what a search adds up is what its report says.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from spmdsim.auto_parallel.costs.settings import Settings
from spmdsim.auto_parallel.solvers.choice_problem import IMPOSSIBLE
from spmdsim.core import Layout, Mesh
from spmdsim.cost.cost_model import Restricted
from spmdsim.cost.machine import CostModel, Machine
from spmdsim.layout.element_type import held_type
from spmdsim.redistribution import Plan, plan
from spmdsim.redistribution.even_moves import price_move
from spmdsim.redistribution.merge import Merge
from spmdsim.redistribution.plan_candidates import LOCAL
from spmdsim.redistribution.price import machine_on, price_step


class MovePrices:
    """Prices of all moves under the assumptions of a search.

    Args:
        settings: the assumptions: the machine, and which collectives there are. The direct exchange is one of them on
            real machines, not in the published cost models, which do not know it.
    """

    def __init__(self, settings: Settings) -> None:
        self.machine = settings.machine
        exchange = isinstance(self.machine, Machine) if settings.exchange is None else settings.exchange
        without = {
            "exchange": not exchange,
            "all_gather": not settings.gather,
            "reduce_scatter": not settings.scatter,
        }
        self._models = [_restricted(self.machine, without)]
        without["reduce_scatter"] |= not settings.scatter_results
        self._models.append(_restricted(self.machine, without))
        self._prices: dict[tuple[Layout, Layout, tuple[int, ...], int, bool], float] = {}
        self._plans: dict[tuple[Layout, Layout, tuple[int, ...], int, bool], Plan] = {}

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
        key = (src, dst, tuple(shape), itemsize, result)
        seconds = self._prices.get(key)
        if seconds is None:
            seconds = self._prices[key] = self._price(*key)
        return seconds

    def _price(self, src: Layout, dst: Layout, shape: tuple[int, ...], itemsize: int, result: bool) -> float:
        if any(axis not in src.partial_axes for axis in dst.partial_axes):
            return IMPOSSIBLE
        seconds = price_move(src, dst, shape, moved_itemsize(src, itemsize), self._models[result]).seconds
        return min(seconds, IMPOSSIBLE)

    def plan(
        self, src: Layout, dst: Layout, shape: tuple[int, ...], itemsize: int, result: bool = False
    ) -> Plan:
        """The plan that is priced."""
        key = (src, dst, shape, itemsize, result)
        priced_plan = self._plans.get(key)
        if priced_plan is None:
            priced_plan = self._plans[key] = plan(
                src, dst, shape, element_type(itemsize), self._models[result]
            )
        return priced_plan

    def communicates(self, src: Layout, dst: Layout, shape: tuple[int, ...], itemsize: int) -> bool:
        """Whether anything is sent from ``src`` to ``dst``."""
        made_partial = any(axis not in src.partial_axes for axis in dst.partial_axes)
        return made_partial or price_move(src, dst, shape, itemsize, self._models[0]).kind != LOCAL

    def together(self, merge: Merge, nbytes: float, copies: Sequence[str] = (), itemsize: int = 4) -> float:
        """Time of one message of gradients that are reduced together.

        Args:
            merge: what they have in common.
            nbytes: bytes of them that a rank holds before.
            copies: axes along which ranks hold copies of all of them and help.
            itemsize: bytes per element; it matters where ranks help.
        """
        if copies or merge.rest:
            steps = merge.steps(int(nbytes) // itemsize, copies, itemsize, self.machine)
            return sum(price_step(step, itemsize, self.machine)[1] for step in steps)
        model = machine_on(self.machine, merge.mesh)
        return model.seconds(merge.collective, merge.ranks, merge.received(nbytes), merge.axes)

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


def _restricted(machine: CostModel, without: dict[str, bool]) -> CostModel:
    names = frozenset(name for name, forbidden in without.items() if forbidden)
    return Restricted(machine, names) if names else machine


def element_type(itemsize: int) -> np.dtype:
    """An element type of this size: prices depend on nothing else."""
    return np.dtype({1: "int8", 2: "float16", 4: "float32", 8: "float64", 16: "complex128"}[itemsize])


@lru_cache(maxsize=4096)
def simple_layouts(
    mesh: Mesh, shape: tuple[int, ...], nested: bool = True, even: bool = True
) -> tuple[Layout, ...]:
    """Every layout in which each axis splits one dim, or none.

    Args:
        mesh: the mesh.
        shape: the tensor's.
        nested: whether a dim may be split by several axes.
        even: whether all pieces have to be equal; otherwise none is empty.
    """
    partial_dims: list[list[list[str]]] = [[[] for _ in shape]]
    for axis, size in zip(mesh.axes, mesh.shape):
        if size == 1:
            continue
        grown = []
        for dims in partial_dims:
            grown.append(dims)
            for d, n in enumerate(shape):
                parts = mesh.axis_size(*dims[d]) * size
                fits = n % parts == 0 if even else n >= parts
                if fits and (nested or not dims[d]):
                    grown.append([[*e, axis] if k == d else e for k, e in enumerate(dims)])
        partial_dims = grown
    return tuple(Layout(mesh, [tuple(e) for e in dims]) for dims in partial_dims)
