"""Tensors from data, from one value and from random numbers: ``flow.tensor``, ``flow.ones``, ``flow.randn``, ...

With a placement and an sbp the tensor is global and the same for every placement; without, every rank has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spmdsim.dialects.oneflow.agreement import check_placement, check_same, facts_of
from spmdsim.dialects.oneflow.local import GlobalTensor, LocalTensor
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.oneflow.tensors import check_sizes
from spmdsim.dialects.oneflow.tensors import layout as layout_of
from spmdsim.dialects.session import current_world
from spmdsim.tensor import Tensor as CoreTensor
from spmdsim.tensor.random import normal_block, uniform_block

AnyTensor = LocalTensor | GlobalTensor

_calls = [0]


def manual_seed(seed: int) -> None:
    """Where random numbers begin, and the first values of parameters."""
    from spmdsim.dialects.oneflow.nn.module import seed_parameters

    _calls[0] = seed
    seed_parameters(seed)


def next_seed() -> int:
    """Another seed at every call, the same on every rank."""
    _calls[0] += 1
    return _calls[0]


def _is_global(placement: Placement | None, sbp: Any) -> bool:
    if (placement is None) != (sbp is None):
        raise OneFlowError("a global tensor needs both placement and sbp")
    return placement is not None


def _global(source: Any, shape: tuple[int, ...], placement: Any, sbp: Any) -> GlobalTensor:
    """A global tensor of an array, or float32 from a function, if all ranks mean the same one."""
    world, layout = current_world(), layout_of(placement, sbp, len(shape))
    data = source if isinstance(source, np.ndarray) else None
    kind = np.dtype(np.float32) if data is None else data.dtype
    check_placement(placement, world)
    check_sizes(placement, sbp, shape)
    check_same(world, [facts_of(placement, sbp, data)] * len(world.ranks))
    return GlobalTensor(CoreTensor.from_global(source, layout, world, shape=shape, dtype=kind), placement)


def tensor(data: Any, placement: Placement | None = None, sbp: Any = None, dtype: Any = None) -> AnyTensor:
    """A tensor of the same data on every rank; global if a placement and an sbp are given.

    Raises:
        RuntimeError: only one of the two; ranks whose data, placement or sbp differ; a dim too short to be split.
    """
    array = np.asarray(data, dtype=dtype)
    if array.dtype == np.float64 and dtype is None:
        array = array.astype(np.float32)
    if _is_global(placement, sbp):
        return _global(array, array.shape, placement, sbp)
    world = current_world()
    return LocalTensor([array.copy() for _ in world.ranks], world)


def Tensor(*data: Any, placement: Placement | None = None, sbp: Any = None) -> AnyTensor:
    """Data as float32, or zeros of the sizes given."""
    if data and all(isinstance(n, int) for n in data):
        return tensor(np.zeros(data, np.float32), placement, sbp)
    return tensor(data[0] if data else (), placement, sbp, dtype=np.float32)


def _shape(size: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)


def _random(about: str, block: Callable[..., np.ndarray], local: str) -> Callable[..., AnyTensor]:
    """Random numbers: keyed by the global index if global, different on every rank if local."""

    def draw(*size: Any, placement: Placement | None = None, sbp: Any = None) -> AnyTensor:
        shape, seed, world, kind = _shape(size), next_seed(), current_world(), np.dtype(np.float32)
        if _is_global(placement, sbp):
            return _global(lambda index: block(index, shape, kind, seed), shape, placement, sbp)
        draws = [getattr(np.random.default_rng([seed, rank]), local)(size=shape) for rank in world.ranks]
        return LocalTensor([x.astype(kind) for x in draws], world)

    draw.__doc__ = about
    return draw


randn = _random("Normal numbers.", normal_block, "normal")
rand = _random("Numbers uniform in [0, 1).", uniform_block, "random")


def full(size: Any, fill_value: Any, dtype: Any = None, placement: Any = None, sbp: Any = None) -> AnyTensor:
    """One value everywhere."""
    kind = dtype or (np.float32 if isinstance(fill_value, float) else None)
    return tensor(np.full(size, fill_value, kind), placement, sbp)


def zeros(*size: Any, dtype: Any = np.float32, placement: Any = None, sbp: Any = None) -> AnyTensor:
    """Zeros."""
    return tensor(np.zeros(_shape(size), dtype), placement, sbp)


def ones(*size: Any, dtype: Any = np.float32, placement: Any = None, sbp: Any = None) -> AnyTensor:
    """Ones."""
    return tensor(np.ones(_shape(size), dtype), placement, sbp)


def arange(*bounds: int, placement: Any = None, sbp: Any = None) -> AnyTensor:
    """Whole numbers, the same on every rank."""
    return tensor(np.arange(*bounds), placement, sbp)
