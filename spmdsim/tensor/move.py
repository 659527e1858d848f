"""Redistribution of tensors by a user's ``to``, and into another shape: plan, run the steps, remember the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from spmdsim.core import Layout
from spmdsim.core.tape import Gradients, MoveNode, settle
from spmdsim.core.tensor import Tensor, follow
from spmdsim.errors import UsageTypeError
from spmdsim.redistribution import planner
from spmdsim.redistribution.planner import Plan
from spmdsim.tensor.watch import watchers
from spmdsim.worlds.programs import FastPath

T = TypeVar("T", bound=Tensor)


class ReshapeNode(MoveNode):
    """A redistribution into another shape: the identity on the elements in row-major order."""

    __slots__ = ()

    def pull(self, gradients: list[Gradients]) -> list[Gradients]:
        """Hand the gradients on in the shape that the operand has."""
        operand = self.meta
        if not gradients[0]:
            return gradients
        with self.world.named("reshape.backward"):
            first, *others = gradients[0]
            total = settle(gradients[0], first.layout.dual()) if others else first
            return [[move(total.detach(), operand.layout.dual(), operand.shape)]]


def move(tensor: T, layout: Layout, shape: Sequence[int] | None = None) -> T:
    """The tensor in another layout, and in another shape if one is given."""
    if not isinstance(layout, Layout):
        raise UsageTypeError(f"a tensor goes to a layout, such as mesh('dp', None), but got {layout!r}")
    meta = tensor.meta
    if shape is None and (layout is meta.layout or layout == meta.layout):
        return tensor
    world: Any = tensor.world
    world.check_mesh(layout.mesh)
    to_shape = None if shape is None else tuple(shape)
    plan = planner.plan(meta.layout, layout, meta.shape, meta.dtype, world.machine, to_shape=to_shape)
    result = along(tensor, plan)
    if shape is None:
        whole = tensor.meta.held is tensor.meta.dtype and result.meta.held is result.meta.dtype
        one = len(plan.steps) == 1 and whole
        program = world.program(plan.steps[0], meta.dtype) if one else None
        world.cache[meta, hash(layout), world.variant] = FastPath(layout, plan, result.meta, program)
    return result


def along(tensor: T, plan: Plan) -> T:
    """Run a plan, and tell who watches."""
    result = follow(tensor, plan, None if plan.to_shape is None else ReshapeNode)
    if watchers:
        watchers[-1].moved(tensor, result)
    return result
