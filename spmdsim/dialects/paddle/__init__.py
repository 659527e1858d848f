"""Paddle's spelling.

>>> from spmdsim.dialects import paddle
>>> mesh = paddle.ProcessMesh([[2, 4, 5], [0, 1, 3]], dim_names=["x", "y"])
>>> paddle.layout(mesh, [paddle.Shard(0), paddle.Replicate()], ndim=2).bounds((6, 4), rank=0)
((3, 6), (0, 4))
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from spmdsim.dialects import lazy

#: Public name -> the submodule that has it.
EXPORTS: dict[str, str] = {
    "Partial": "process_mesh",
    "ProcessMesh": "process_mesh",
    "Replicate": "process_mesh",
    "Shard": "process_mesh",
    "ceil_split": "process_mesh",
    "check_even": "process_mesh",
    "dims_mapping": "process_mesh",
    "from_dims_mapping": "process_mesh",
    "layout": "process_mesh",
    "SplitLayout": "splitting",
    "split_layout": "splitting",
    **dict.fromkeys(
        ("disable_static", "enable_static", "in_dynamic_mode", "randint", "seed", "set_device"), "static"
    ),
    **dict.fromkeys(
        ("ColumnParallelLinear", "ParallelCrossEntropy", "RowParallelLinear", "VocabParallelEmbedding"),
        "layers",
    ),
}

__all__ = list(EXPORTS)


def __getattr__(name: str) -> Any:
    if name == "distributed":
        return import_module(f"{__name__}.distributed")
    return lazy(__name__, EXPORTS, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *EXPORTS])
