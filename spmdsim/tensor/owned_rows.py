"""Lookups that exchange only the rows that others hold, in the place of an operator's local function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spmdsim.core import BoundRule, Layout
from spmdsim.core.apply import Recipe
from spmdsim.core.operator import OutStrategy
from spmdsim.core.reductions import in_type
from spmdsim.core.tensor import Tensor
from spmdsim.layout.element_type import accumulator
from spmdsim.redistribution.sparse_lookup import RowStep, row_step


@dataclass(frozen=True)
class OwnedRows(OutStrategy):
    """As ``out_strategy`` of a lookup: exchange only the rows that others hold, straight into a layout.

    Args:
        layout: that of the result; nothing of it is pending.
    """

    layout: Layout

    def instead(
        self, bound: BoundRule, wanted: Sequence[Layout], computed: Layout, params: dict[str, Any]
    ) -> RowLookup | None:
        """The lookup; None where every rank has the whole table."""
        if not wanted[1].dims[0]:
            return None
        shape, rows = bound.output_shapes[0], bound.shapes[1][0]
        return RowLookup(row_step(computed, wanted[1], self.layout, shape, rows, params.get("padding")))


class RowLookup:
    """Runs a step of rows, and takes gradients back to the owners of rows.

    Attributes:
        layout: that of the result.
        taken: the layout in which the result's gradient is taken back; None for the ordinary gradient.
    """

    def __init__(self, step: RowStep) -> None:
        self.step, self.returning = step, step.returning
        self.layout = step.dst
        self.taken = None if self.returning is None else self.returning.dst

    def run(self, recipe: Recipe, operands: Sequence[Tensor]) -> list[Any]:
        """The looked-up rows of every owned rank."""
        world = operands[0].world
        world.about = world.derived_origin(recipe, operands)
        rows: list[Any] = world.run_rows(self.step, operands[0].held, operands[1].held)
        world.about = 0
        return rows

    def pull(self, recipe: Recipe, operands: Sequence[Tensor], dy: Tensor | None) -> list[Any]:
        """The table's gradient from those of its looked-up rows, which go back to the ranks that hold the rows."""
        if dy is None:
            return [None, None]
        parts = in_type(dy.held, accumulator("sum", dy.dtype))
        gradient = dy.world.run_rows(self.returning, operands[0].held, parts)
        return [None, in_type(gradient, recipe.gradients[1].held)]
