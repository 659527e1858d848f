"""The plain planner: choose the steps of a redistribution and the strategy of an operator by counting bytes.

A world receives its planner as an argument. :class:`spmdsim.worlds.machine_planner.MachinePlanner` finds exact plans,
across meshes and shapes, and prices them with a model of the machine.

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
        """Return the cheapest steps from one layout to another. Raise PlanError if there are none.

        Args:
            src: the tensor's layout.
            dst: the new layout.
            shape: the tensor's global shape.
            dtype: its element type.
        """

    def choose(self, bound: BoundRule, layouts: Sequence[Layout], dtypes: Sequence[np.dtype]) -> Strategy:
        """Return the cheapest strategy of an operator whose operands need a redistribution for any strategy.

        Args:
            bound: the operator's rule, bound to shapes.
            layouts: the layouts of the operands.
            dtypes: the element types of the operands' shards.
        """


class BytesPlanner:
    """A planner that counts the bytes that the busiest rank receives."""

    def price(self, step: Step, itemsize: int) -> float:
        """Return the bytes that the busiest rank receives in a step of elements of ``itemsize`` bytes."""
        return max(step.nbytes(rank, itemsize) for rank in step.src.mesh.rank_list)

    def plan(self, src: Layout, dst: Layout, shape: Shape, dtype: np.dtype) -> Route:
        """Return the cheapest path of collectives on one mesh. Raise PlanError for layouts on two meshes."""
        return shortest_route(src, dst, shape, dtype.itemsize, self.price)

    def choose(self, bound: BoundRule, layouts: Sequence[Layout], dtypes: Sequence[np.dtype]) -> Strategy:
        """Return the strategy for which ranks receive the fewest bytes.

        The candidates are the strategies on the first operand's mesh in which no operand is partial; ranks may own
        empty blocks. The cost of a candidate is the sum, over all steps that redistribute the operands and reduce the
        results, of the bytes that the busiest rank receives. Of candidates with equal cost, the first in the order of
        :meth:`BoundRule.strategies` wins.

        Args:
            bound: the operator's rule, bound to the shapes of the operands.
            layouts: the layout of each operand, at least one.
            dtypes: the type of each operand's arrays; results count with the type of the first operand.

        Raises:
            PlanError: If an operand is on another mesh than the first one.
        """

        def cost(strategy: Strategy) -> float:
            """Return the bytes that the busiest rank receives, summed over all steps that a strategy needs."""
            operands = zip(layouts, bound.input_layouts(strategy), bound.shapes, dtypes)
            outputs = zip(bound.output_layouts(strategy), bound.output_shapes)
            results = [(layout, layout.reduced, shape, dtypes[0]) for layout, shape in outputs]
            total = 0.0
            for src, dst, shape, dtype in (*operands, *results):
                route = self.plan(src, dst, shape, dtype)
                total += sum(self.price(step, dtype.itemsize) for step in route.steps)
            return total

        return min(bound.strategies(layouts[0].mesh, partial=False, empty=True), key=cost)
