"""MindSpore's spelling.

>>> from spmdsim.dialects import mindspore
>>> mindspore.Layout((2, 4), ("dp", "mp"))("dp", "None").to_dict()["tensor_map"]
(1, -1)
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from spmdsim.dialects import lazy, listed

#: Public name -> the submodule that has it.
EXPORTS: dict[str, str] = {
    "Layout": "layout",
    "MindSporeLayout": "layout",
    "check_cuts": "sharding",
    "check_even": "layout",
    "optimizer_shard": "sharding",
    "without_ones": "sharding",
    "without_tuples": "sharding",
    "from_cuts": "layout",
    "from_tensor_map": "layout",
    "from_placements": "layout",
    "infer_layout": "sharding",
    "shard": "sharding",
    "AutoParallel": "parallel",
    "Parameter": "parameter",
    "ParameterTuple": "parameter",
    "initializer": "parameter",
    "no_init_parameters": "parameter",
    "set_seed": "parameter",
    "Tensor": "tensors",
    "tensor": "tensors",
    "grad": "gradient",
    "value_and_grad": "gradient",
    "Model": "train",
    **dict.fromkeys(("load_checkpoint", "load_param_into_net", "save_checkpoint"), "checkpoint"),
    **dict.fromkeys(
        (
            "GRAPH_MODE", "PYNATIVE_MODE", "ParallelMode", "get_auto_parallel_context", "get_context", "jit",
            "reset_auto_parallel_context", "set_auto_parallel_context", "set_context", "set_device",
        ),
        "context",
    ),
    **dict.fromkeys(("float16", "float32", "float64", "int8", "int16", "int32", "int64", "bool_"), "common.dtype"),
}  # fmt: skip

#: What to use instead of a name that resembles none here.
NEAREST = {
    **dict.fromkeys(("ms_class", "ms_memory_recycle", "jit_class"), "jit"),
    "run_check": "communication.get_group_size",
    **dict.fromkeys(("Momentum", "SGD", "Adam", "Cell", "Dense"), "mindspore.nn has it"),
    **dict.fromkeys(("MatMul", "ReLU", "Primitive"), "mindspore.ops has it"),
    "numpy": "mindspore.ops",
    "ms_function": "jit",
    "bfloat16": "float32",
    "amp": "float32 everywhere",
    "lazy_inline": "nothing is needed: programs are not compiled",
    "DynamicLossScaleManager": "float32 without loss scaling",
    "Profiler": "spmdsim.record, which counts every collective",
    "shard": "ops.MatMul().shard(...)",
    "export": "save_checkpoint",
    **dict.fromkeys(("set_dump", "set_profiler", "profiler", "dump"), "spmdsim.record"),
    **dict.fromkeys(("save_mindir", "load_mindir", "onnx"), "save_checkpoint"),
    **dict.fromkeys(
        ("set_ps_context", "set_offload_context", "set_algo_parameters"), "set_auto_parallel_context"
    ),
    **dict.fromkeys(
        ("rank_list_for_transform", "transform_checkpoints", "merge_sliced_parameter"), "load_checkpoint"
    ),
    **dict.fromkeys(("hal", "device_context", "multiprocessing"), "runtime"),
    "rewrite": "nn.Cell",
    "boost": "nn.SGD",
    "experimental": "parallel",
    "scipy": "ops",
    **dict.fromkeys(("jvp", "vjp", "jacfwd", "jacrev", "vmap", "jet", "derivative"), "value_and_grad"),
    **dict.fromkeys(
        ("LossMonitor", "TimeMonitor", "CheckpointConfig", "ModelCheckpoint"), "mindspore.train has it"
    ),
    "manual_seed": "set_seed",
    "recompute": "nothing is needed: a run keeps its activations",
}

#: Submodules that programs reach as attributes.
SUBMODULES = (
    "common",
    "communication",
    "context",
    "dataset",
    "dtype",
    "mint",
    "nn",
    "ops",
    "parallel",
    "runtime",
    "train",
)

__all__ = list(EXPORTS)


def __getattr__(name: str) -> Any:
    if name == "dtype":
        return import_module(f"{__name__}.common.dtype")
    return lazy(__name__, EXPORTS, name, NEAREST, SUBMODULES)


def __dir__() -> list[str]:
    return listed(__name__, EXPORTS, SUBMODULES)
