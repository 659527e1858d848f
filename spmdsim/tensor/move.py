"""Redistribution of tensors by a user's ``to``, and into another shape: plan, run the steps, remember the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from spmdsim.core import Layout
from spmdsim.core.apply import watchers
from spmdsim.core.step import Step
from spmdsim.core.tape import MoveNode, Pending, settle
from spmdsim.core.tensor import Tensor, follow
from spmdsim.errors import UsageTypeError
from spmdsim.redistribution import planner
from spmdsim.worlds.base import Ready

T = TypeVar("T", bound=Tensor)

#: Redistributions whose shortest form a world keeps.
KEPT = 1024


class ReshapeNode(MoveNode):
    """A redistribution into another shape: the identity on the elements in row-major order."""

    __slots__ = ()

    def pull(self, gradients: list[Pending]) -> list[Pending]:
        """Hand the gradients on in the shape that the operand has."""
        operand = self.operands[0]
        if not gradients[0]:
            return gradients
        with operand.world.named("reshape.backward"):
            first, *others = gradients[0]
            total = settle(gradients[0], first.layout.reduced) if others else first
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
    result = follow(tensor, plan, None if plan.to_shape is None else ReshapeNode)
    if watchers:
        watchers[-1].moved(tensor, result)
    if shape is None and len(plan.steps) == 1:
        _keep(tensor, layout, plan.steps[0], result)
    return result


def _keep(tensor: Tensor, layout: Layout, step: Step, result: Tensor) -> None:
    """Remember what was done in its shortest form, which :meth:`Tensor.to` takes the next time."""
    world = tensor.world
    run = world.shortest(step, tensor.meta.dtype)
    if run is not None and tensor.meta.held is tensor.meta.dtype and result.meta.held is result.meta.dtype:
        if len(world.ready) >= KEPT:
            world.ready.clear()
        world.ready[tensor.meta, id(layout)] = Ready(run, result.meta, layout)
