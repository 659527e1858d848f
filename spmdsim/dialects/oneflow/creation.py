"""``flow.ones``, ``flow.zeros``, ``flow.full``, ``flow.randn``, ``flow.rand``, ``flow.arange``: local, or global.

With a placement and an sbp the tensor is global and the same for every placement; without, every rank has its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.dialects.oneflow.agreement import check_placement, check_same, facts_of
from spmdsim.dialects.oneflow.functions import next_seed, tensor
from spmdsim.dialects.oneflow.local import GlobalTensor, LocalTensor
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.oneflow.tensors import check_sizes
from spmdsim.dialects.oneflow.tensors import layout as layout_of
from spmdsim.dialects.session import current_world
from spmdsim.tensor import Tensor as CoreTensor
from spmdsim.tensor.random import normal_block, uniform_block

Made = LocalTensor | GlobalTensor


def _shape(size: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)


def _drawn(block: Any, local: Any, size: tuple[Any, ...], placement: Placement | None, sbp: Any) -> Made:
    """Random numbers: keyed by the global index if global, different on every rank if local."""
    shape, seed, world = _shape(size), next_seed(), current_world()
    if placement is None and sbp is None:
        made = [local(np.random.default_rng([seed, rank]), shape) for rank in world.ranks]
        return LocalTensor([x.astype(np.float32) for x in made], world)
    if placement is None or sbp is None:
        raise OneFlowError("a global tensor needs both placement and sbp")
    check_placement(placement, world)
    check_sizes(placement, sbp, shape)
    check_same(world, [facts_of(placement, sbp)] * len(world.ranks))
    whole = CoreTensor.from_global(
        lambda index: block(index, shape, np.dtype(np.float32), seed),
        layout_of(placement, sbp, len(shape)),
        world,
        shape=shape,
        dtype=np.float32,
    )
    return GlobalTensor(whole, placement)


def randn(*size: Any, placement: Placement | None = None, sbp: Any = None) -> Made:
    """Normal numbers."""
    return _drawn(normal_block, lambda rng, shape: rng.normal(size=shape), size, placement, sbp)


def rand(*size: Any, placement: Placement | None = None, sbp: Any = None) -> Made:
    """Numbers uniform in [0, 1)."""
    return _drawn(uniform_block, lambda rng, shape: rng.random(shape), size, placement, sbp)


def full(size: Any, fill_value: Any, dtype: Any = None, placement: Any = None, sbp: Any = None) -> Made:
    """One value everywhere."""
    kind = dtype or (np.float32 if isinstance(fill_value, float) else None)
    return tensor(np.full(size, fill_value, kind), placement, sbp)


def zeros(*size: Any, dtype: Any = np.float32, placement: Any = None, sbp: Any = None) -> Made:
    """Zeros."""
    return tensor(np.zeros(_shape(size), dtype), placement, sbp)


def ones(*size: Any, dtype: Any = np.float32, placement: Any = None, sbp: Any = None) -> Made:
    """Ones."""
    return tensor(np.ones(_shape(size), dtype), placement, sbp)


def arange(*bounds: int, placement: Any = None, sbp: Any = None) -> Made:
    """Whole numbers, the same on every rank."""
    return tensor(np.arange(*bounds), placement, sbp)


__all__ = ["arange", "full", "ones", "rand", "randn", "zeros"]
