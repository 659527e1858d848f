"""OneFlow's spelling.

>>> from spmdsim.dialects import oneflow as flow
>>> placement = flow.placement("cpu", ranks=[[0, 1], [2, 3]])
>>> flow.layout(placement, (flow.sbp.broadcast, flow.sbp.split(0)), ndim=2).local_shape((4, 8), 1)
(2, 8)
"""

from __future__ import annotations

from typing import Any

from spmdsim.dialects import lazy

#: Public name -> the submodule that has it.
EXPORTS: dict[str, str] = {
    "placement": "placements",
    "sbp": "sbp",
    "broadcast_groups": "tensors",
    "can_merge": "tensors",
    "check_sizes": "tensors",
    "layout": "tensors",
    "local_range": "tensors",
    "local_shape": "tensors",
    "logical_shape": "tensors",
    "logical_shape_of": "tensors",
    "sbp_of": "tensors",
    "GlobalTensor": "local",
    "LocalTensor": "local",
    "Size": "local",
    **dict.fromkeys(("Tensor", "manual_seed", "tensor"), "creation"),
    **dict.fromkeys(("arange", "full", "ones", "rand", "randn", "zeros"), "creation"),
    **dict.fromkeys(("cast", "cat", "concat"), "operators"),
    **dict.fromkeys(("bool", "float16", "float32", "float64", "int8", "int32", "int64"), "dtypes"),
}

#: What to use instead of a name that resembles none here.
NEAREST = {
    **dict.fromkeys(("save", "load"), "spmdsim.tensor.checkpoint"),
    "autograd": "GlobalTensor.backward",
    "no_grad": "GlobalTensor.detach",
    "comm": "to_global, which inserts the collectives",
    "from_numpy": "tensor",
    "distributed": "spmdsim launch",
}
SUBMODULES = ("boxing", "env", "nn", "optim")

__all__ = list(EXPORTS)


def __getattr__(name: str) -> Any:
    return lazy(__name__, EXPORTS, name, NEAREST, SUBMODULES, table="operators")


def __dir__() -> list[str]:
    return sorted([*globals(), *EXPORTS])
