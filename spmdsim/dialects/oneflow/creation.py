"""Tensors from data, from one value and from random numbers: ``flow.tensor``, ``flow.ones``, ``flow.randn``, ...

With a placement and an sbp the tensor is global and the same for every placement; without, every rank has its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.dialects.oneflow.agreement import check_placement, check_same, facts_of
from spmdsim.dialects.oneflow.local import GlobalTensor, LocalTensor
from spmdsim.dialects.oneflow.operators import install
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.oneflow.tensors import check_sizes
from spmdsim.dialects.oneflow.tensors import layout as layout_of
from spmdsim.dialects.session import current_world
from spmdsim.tensor import Tensor as CoreTensor
from spmdsim.tensor.random import normal_block, uniform_block

install()

Made = LocalTensor | GlobalTensor

_calls = [0]


def manual_seed(seed: int) -> None:
    """Where random numbers begin, and the first values of parameters."""
    from spmdsim.dialects.oneflow.nn.module import seed_parameters

    _calls[0] = seed
    seed_parameters(seed)


def tensor(data: Any, placement: Placement | None = None, sbp: Any = None, dtype: Any = None) -> Made:
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
    layout = layout_of(placement, sbp, array.ndim)
    check_placement(placement, world)
    check_sizes(placement, sbp, array.shape)
    check_same(world, [facts_of(placement, sbp, array)] * len(world.ranks))
    return GlobalTensor(CoreTensor.from_global(array, layout, world), placement)


def Tensor(*data: Any, placement: Placement | None = None, sbp: Any = None) -> Made:
    """Data as float32, or zeros of the sizes given."""
    if data and all(isinstance(n, int) for n in data):
        return tensor(np.zeros(data, np.float32), placement, sbp)
    return tensor(data[0] if data else (), placement, sbp, dtype=np.float32)


def next_seed() -> int:
    """Another seed at every call, the same on every rank."""
    _calls[0] += 1
    return _calls[0]


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
