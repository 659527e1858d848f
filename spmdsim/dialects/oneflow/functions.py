"""``flow.tensor``: data that every rank has."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.dialects.oneflow.agreement import check_placement, check_same, facts_of
from spmdsim.dialects.oneflow.local import GlobalTensor, LocalTensor
from spmdsim.dialects.oneflow.operators import install
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.session import current_world

install()
_calls = [0]


def manual_seed(seed: int) -> None:
    """Where random numbers begin, and the first values of parameters."""
    from spmdsim.dialects.oneflow.nn.module import seed_parameters

    _calls[0] = seed
    seed_parameters(seed)


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


def Tensor(*data: Any, placement: Placement | None = None, sbp: Any = None) -> LocalTensor | GlobalTensor:
    """Data as float32, or zeros of the sizes given."""
    if data and all(isinstance(n, int) for n in data):
        return tensor(np.zeros(data, np.float32), placement, sbp)
    return tensor(data[0] if data else (), placement, sbp, dtype=np.float32)


def next_seed() -> int:
    """Another seed at every call, the same on every rank."""
    _calls[0] += 1
    return _calls[0]
