"""The plain planner: which steps bring a tensor into a layout, and which strategy an operator runs with.

A world is given its planner. :class:`spmdsim.worlds.machine_planner.MachinePlanner` finds exact plans, across meshes and shapes,
and prices them with a model of the machine.

Next: :mod:`spmdsim.core.world`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from spmdsim.core.layout import Layout
from spmdsim.core.notation.rules import Shape
from spmdsim.core.rule import BoundRule, Strategy
from spmdsim.core.step import Route, Step, shortest_route


class Planner(Protocol):
    """The interface of planners: plan redistributions and choose strategies for a world."""

    def plan(self, src: Layout, dst: Layout, shape: Shape, dtype: np.dtype) -> Route:
        """Return the cheapest steps from one layout to another; PlanError if there are none."""

    def choose(self, bound: BoundRule, layouts: Sequence[Layout], dtypes: Sequence[np.dtype]) -> Strategy:
        """Return the cheapest strategy for operands whose layouts fit no strategy without redistribution."""


class BytesPlanner:
    """A planner that counts the bytes that the busiest rank receives."""

    def price(self, step: Step, itemsize: int) -> float:
        """Return the bytes that the busiest rank receives in a step."""
        return max(step.nbytes(rank, itemsize) for rank in step.src.mesh.rank_list)

    def plan(self, src: Layout, dst: Layout, shape: Shape, dtype: np.dtype) -> Route:
        """Return the cheapest path of collectives on one mesh."""
        return shortest_route(src, dst, shape, dtype.itemsize, self.price)

    def choose(self, bound: BoundRule, layouts: Sequence[Layout], dtypes: Sequence[np.dtype]) -> Strategy:
        """Return the strategy for which redistributing operands and reducing partial results costs least."""

        def cost(strategy: Strategy) -> float:
            moves = [*zip(layouts, bound.input_layouts(strategy), bound.shapes, dtypes)]
            results = zip(bound.output_layouts(strategy), bound.output_shapes)
            moves += [(layout, layout.reduced, shape, dtypes[0]) for layout, shape in results]
            routes = ((self.plan(src, dst, shape, dtype), dtype) for src, dst, shape, dtype in moves)
            return sum(self.price(step, dtype.itemsize) for route, dtype in routes for step in route.steps)

        return min(bound.strategies(layouts[0].mesh, partial=False, empty=True), key=cost)
