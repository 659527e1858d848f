"""``flow.tensor``, ``flow.randn``, products and functions of global tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import spmdsim.ops as core
from spmdsim.dialects.oneflow.agreement import check_placement, check_same, facts_of, same_code
from spmdsim.dialects.oneflow.local import GlobalTensor, LocalTensor
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.session import current_world

_calls = [0]


def manual_seed(seed: int) -> None:
    """Where the ranks' own random numbers begin."""
    _calls[0] = seed


def tensor(
    data: Any, placement: Placement | None = None, sbp: Any = None, dtype: Any = None
) -> LocalTensor | GlobalTensor:
    """A tensor of the same data on every rank; global if a placement and an sbp are given.

    Raises:
        RuntimeError: only one of the two; ranks whose data, placement or sbp differ; a dim too short to be split.
    """
    array = np.asarray(data, dtype=dtype)
    if array.dtype == np.float64 and dtype is None:
        array = array.astype(np.float32)
    world = current_world()
    if placement is None and sbp is None:
        return LocalTensor([array.copy() for _ in world.ranks], world)
    if placement is None or sbp is None:
        raise OneFlowError("a global tensor needs both placement and sbp")
    from spmdsim.dialects.oneflow.tensors import check_sizes
    from spmdsim.dialects.oneflow.tensors import layout as layout_of
    from spmdsim.tensor import Tensor as CoreTensor

    layout = layout_of(placement, sbp, array.ndim)
    check_placement(placement, world)
    check_sizes(placement, sbp, array.shape)
    check_same(world, [facts_of(placement, sbp, array)] * len(world.ranks))
    return GlobalTensor(CoreTensor.from_global(array, layout, world), placement)


Tensor = tensor


def randn(*shape: int) -> LocalTensor:
    """Normal numbers, different on every rank, as each process's own generator would give them."""
    world = current_world()
    _calls[0] += 1
    made = [np.random.default_rng([_calls[0], rank]).normal(size=shape) for rank in world.ranks]
    return LocalTensor([block.astype(np.float32) for block in made], world)


def arange(*bounds: int) -> LocalTensor:
    """Whole numbers, the same on every rank."""
    world = current_world()
    return LocalTensor([np.arange(*bounds) for _ in world.ranks], world)


def _binary(function: Callable[..., Any]) -> Callable[[GlobalTensor, GlobalTensor], GlobalTensor]:
    def call(a: GlobalTensor, b: GlobalTensor) -> GlobalTensor:
        if a.placement != b.placement:
            raise OneFlowError(
                "Expected all tensors to be on the same placement, but found at least two placements, "
                f"{a.placement} and {b.placement}!"
            )
        with same_code():
            return GlobalTensor(function(a.value, b.value), a.placement)

    call.__doc__ = f"``{function.__name__}`` of two global tensors on one placement."
    return call


matmul = _binary(core.matmul)
add = _binary(core.add)
mul = _binary(core.multiply)


def relu(x: GlobalTensor) -> GlobalTensor:
    """Rectified linear unit."""
    return GlobalTensor(core.relu(x.value), x.placement)
