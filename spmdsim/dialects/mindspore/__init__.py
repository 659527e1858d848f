"""MindSpore's spelling.

>>> from spmdsim.dialects import mindspore
>>> mindspore.Layout((2, 4), ("dp", "mp"))("dp", "None").to_dict()["tensor_map"]
(1, -1)
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from spmdsim.dialects import lazy

#: Public name -> the submodule that has it.
EXPORTS: dict[str, str] = {
    "Layout": "layout",
    "MindSporeLayout": "layout",
    "check_cuts": "cuts",
    "check_even": "layout",
    "optimizer_shard": "forms",
    "without_ones": "forms",
    "without_tuples": "forms",
    "from_cuts": "layout",
    "from_tensor_map": "layout",
    "from_placements": "layout",
    "infer_layout": "infer",
    "shard": "strategies",
    "AutoParallel": "parallel",
    "GRAPH_MODE": "context",
    "PYNATIVE_MODE": "context",
    "Parameter": "parameter",
    "initializer": "parameter",
    "no_init_parameters": "parameter",
    "runtime": "context",
    "set_context": "context",
    "set_seed": "parameter",
    "value_and_grad": "gradient",
    **dict.fromkeys(("float16", "float32", "float64", "int8", "int16", "int32", "int64", "bool_"), "dtypes"),
}

#: Submodules that programs reach as attributes.
SUBMODULES = ("common", "communication", "dataset", "nn", "ops", "parallel")

__all__ = list(EXPORTS)


def __getattr__(name: str) -> Any:
    if name in SUBMODULES:
        return import_module(f"{__name__}.{name}")
    return lazy(__name__, EXPORTS, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *EXPORTS])
