"""OneFlow's spelling.

>>> from spmdsim.dialects import oneflow as flow
>>> placement = flow.placement("cpu", ranks=[[0, 1], [2, 3]])
>>> flow.layout(placement, (flow.sbp.broadcast, flow.sbp.split(0)), ndim=2).local_shape((4, 8), 1)
(2, 8)
"""

from __future__ import annotations

from typing import Any

from spmdsim.dialects import exported, lazy, listed
from spmdsim.dialects.oneflow.nearest import TOP as NEAREST

#: Public name -> the submodule that has it.
EXPORTS = exported(
    placements="placement",
    sbp="sbp",
    tensors="broadcast_groups can_merge check_sizes layout local_range local_shape logical_shape logical_shape_of sbp_of",
    local="GlobalTensor LocalTensor",
    symbols="Size",
    creation="Tensor arange as_tensor empty eye from_numpy full is_floating_point is_tensor linspace manual_seed numel "
    "ones ones_like rand randint randn randperm tensor zeros zeros_like",
    operators="cast cat concat",
    tracking="enable_grad inference_mode is_grad_enabled no_grad set_grad_enabled",
    devices="device",
    printing="set_printoptions",
    dtypes="bool double dtype float float16 float32 float64 half int int8 int32 int64 long uint8",
)

SUBMODULES = ("boxing", "distributed", "env", "linalg", "nn", "optim")

__all__ = list(EXPORTS)


def __getattr__(name: str) -> Any:
    return lazy(__name__, EXPORTS, name, NEAREST, SUBMODULES, table="operators")


def __dir__() -> list[str]:
    return listed(__name__, EXPORTS, SUBMODULES, "operators")
