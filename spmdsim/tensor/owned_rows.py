"""Lookups that exchange only the rows that others hold, in the place of an operator's local function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from spmdsim.core import BoundRule, Layout, Strategy
from spmdsim.core.elements import in_type
from spmdsim.core.operator import Op, Recipe, ShardedOp
from spmdsim.core.tape import OpNode
from spmdsim.core.tensor import Tensor
from spmdsim.core.world import programs
from spmdsim.layout.element_type import accumulator
from spmdsim.redistribution.sparse_lookup import RowStep, row_step


@dataclass(frozen=True, repr=False)
class OwnedRows(ShardedOp):
    """A lookup that exchanges only the rows that others hold, straight into the layout that ``out_strategy`` is."""

    def instead(self, bound: BoundRule, strategy: Strategy, params: dict[str, Any]) -> Op:
        """The lookup; the operator itself where every rank has the whole table."""
        table = bound.input_layouts(strategy)[1]
        if not table.dims[0]:
            return self.op
        shape, rows = bound.output_shapes[0], bound.shapes[1][0]
        computed = bound.output_layouts(strategy)[0]
        step = row_step(computed, table, self.out_strategy, shape, rows, params.get("padding"))
        return RowLookup(step=step, **{field.name: getattr(self.op, field.name) for field in fields(Op)})


class RowsNode(OpNode):
    """Gradients of looked-up rows, which go back to the ranks that hold the rows."""

    __slots__ = ()

    def gradients(self, dys: list[Tensor | None], wanted: Sequence[bool]) -> Sequence[Any]:
        """The table's gradient; the ordinary one where the lookup's result is whole."""
        step, dy = self.recipe.prepared.returning, dys[0]
        if step is None:
            return super().gradients(dys, wanted)
        if dy is None:
            return [None, None]
        parts = in_type(dy.held, accumulator("sum", dy.dtype))
        gradient = dy.world.run_rows(step, self.values[0], parts)
        return [None, in_type(gradient, self.recipe.gradients[1].held)]


@dataclass(frozen=True, eq=False)
class RowLookup(Op):
    """The operator whose rows are looked up by a step that ids decide about."""

    step: RowStep | None = None

    node: ClassVar[Any] = RowsNode

    def output_layouts(self, bound: BoundRule, strategy: Strategy) -> tuple[Layout, ...]:
        """That of the step."""
        return (self.prepared().dst,)

    def prepared(self, *facts: Any) -> RowStep:
        """The step."""
        assert self.step is not None
        return self.step

    def duals(self, recipe: Recipe) -> tuple[Layout, ...]:
        """Where the step back begins, or those of the ordinary gradient."""
        back = recipe.prepared.returning
        return (recipe.bound.output_layouts(recipe.strategy)[0].dual() if back is None else back.dst,)

    def computed(self, recipe: Recipe, tensors: Sequence[Tensor], params: dict[str, Any]) -> list[list[Any]]:
        """The looked-up rows of every owned rank."""
        if programs:
            programs[-1].refuse(f"{self.name} exchanges rows that the ids decide about in every call")
        world = tensors[0].world
        world.about = world.derived_origin(recipe, tensors)
        rows: list[Any] = world.run_rows(recipe.prepared, tensors[0].held, tensors[1].held)
        world.about = 0
        return [rows]
