"""Redistribution of tensors: plan, run the steps, remember the way back."""

from __future__ import annotations

from collections.abc import Sequence

from spmdsim.core import Layout
from spmdsim.core.reductions import in_type
from spmdsim.core.step import Step
from spmdsim.errors import UsageTypeError
from spmdsim.redistribution import plan
from spmdsim.redistribution.planner import Plan
from spmdsim.tensor import watch
from spmdsim.tensor.meta import Meta
from spmdsim.tensor.tape import MoveNode
from spmdsim.tensor.tensor import Tensor
from spmdsim.worlds.base import Ready

#: Redistributions whose shortest form a world keeps.
KEPT = 1024


def move(tensor: Tensor, layout: Layout, shape: Sequence[int] | None = None) -> Tensor:
    """The tensor in another layout, and in another shape if one is given."""
    if not isinstance(layout, Layout):
        raise UsageTypeError(f"a tensor goes to a layout, such as mesh('dp', None), but got {layout!r}")
    meta = tensor.meta
    if shape is None and (layout is meta.layout or layout == meta.layout):
        return tensor
    world = tensor.world
    world.check_mesh(layout.mesh)
    found = plan(
        meta.layout,
        layout,
        meta.shape,
        meta.dtype,
        world.machine,
        to_shape=None if shape is None else tuple(shape),
    )
    result = run_plan(tensor, found)
    if watch.watchers:
        watch.watchers[-1].moved(tensor, result)
    if shape is None and len(found.steps) == 1:
        _keep(tensor, layout, found.steps[0], result)
    return result


def _keep(tensor: Tensor, layout: Layout, step: Step, result: Tensor) -> None:
    """Remember what was done in its shortest form, which :meth:`Tensor.to` takes the next time."""
    world = tensor.world
    run = world.shortest(step, tensor.meta.dtype)
    if run is not None and tensor.meta.held is tensor.meta.dtype and result.meta.held is result.meta.dtype:
        if len(world.ready) >= KEPT:
            world.ready.clear()
        world.ready[tensor.meta, id(layout)] = Ready(run, result.meta, layout)


def run_plan(tensor: Tensor, found: Plan) -> Tensor:
    """Run the steps of a plan on a tensor."""
    world, shards = tensor.world, tensor.held
    meta = Meta.of(found.dst, found.shape_after, tensor.dtype)
    for step in found.steps:
        if meta.held is not meta.dtype and step.collective == "fill":  # what becomes pending here may grow
            shards = in_type(shards, meta.held)
        world.about = tensor.origin
        shards = world.run(step, shards)
    world.about = 0
    if tensor.meta.held is not meta.held:
        shards = in_type(shards, meta.held)
    result = Tensor(world, meta, shards, origin=tensor.origin)
    if tensor.requires_grad:
        result.requires_grad, result.node = True, MoveNode(tensor)
    return result
