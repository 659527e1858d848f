"""MindSpore's spelling.

>>> from spmdsim.dialects import mindspore
>>> mindspore.Layout((2, 4), ("dp", "mp"))("dp", "None").to_dict()["tensor_map"]
(1, -1)
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from spmdsim.dialects import lazy, listed
from spmdsim.dialects.missing import each

#: Public name -> the submodule that has it.
EXPORTS: dict[str, str] = each({
    "Layout MindSporeLayout check_even from_cuts from_tensor_map from_placements": "layout",
    "check_cuts optimizer_shard without_ones without_tuples infer_layout shard": "sharding",
    "AutoParallel": "parallel",
    "Parameter ParameterTuple initializer no_init_parameters set_seed": "parameter",
    "Tensor from_numpy tensor": "tensors",
    "grad value_and_grad": "gradient",
    "Model": "train",
    "load_checkpoint load_param_into_net save_checkpoint": "checkpoint",
    "GRAPH_MODE PYNATIVE_MODE ParallelMode get_auto_parallel_context get_context jit reset_auto_parallel_context "
    "set_auto_parallel_context set_context set_device": "context",
    "float16 float32 float64 int8 int16 int32 int64 bool_": "common.dtype",
})  # fmt: skip

#: What to use instead of a name that resembles none here.
NEAREST = each({
    "ms_class ms_memory_recycle jit_class ms_function": "jit",
    "run_check": "communication.get_group_size",
    "Momentum SGD Adam Cell Dense": "mindspore.nn has it",
    "MatMul ReLU Primitive": "mindspore.ops has it",
    "numpy": "mindspore.ops",
    "bfloat16": "float32",
    "amp": "float32 everywhere",
    "lazy_inline": "nothing is needed: programs are not compiled",
    "DynamicLossScaleManager": "float32 without loss scaling",
    "Profiler": "spmdsim.record, which counts every collective",
    "shard": "ops.MatMul().shard(...)",
    "export save_mindir load_mindir onnx": "save_checkpoint",
    "set_dump set_profiler profiler dump": "spmdsim.record",
    "set_ps_context set_offload_context set_algo_parameters": "set_auto_parallel_context",
    "rank_list_for_transform transform_checkpoints merge_sliced_parameter": "load_checkpoint",
    "hal device_context multiprocessing": "runtime",
    "rewrite": "nn.Cell",
    "boost": "nn.SGD",
    "experimental": "parallel",
    "scipy": "ops",
    "jvp vjp jacfwd jacrev vmap jet derivative": "value_and_grad",
    "LossMonitor TimeMonitor CheckpointConfig ModelCheckpoint": "mindspore.train has it",
    "manual_seed": "set_seed",
    "recompute": "nothing is needed: a run keeps its activations",
})  # fmt: skip

#: Submodules that programs reach as attributes.
SUBMODULES = (
    "common", "communication", "context", "dataset", "dtype", "mint", "nn", "ops", "parallel", "runtime", "train",
)  # fmt: skip

__all__ = list(EXPORTS)


def __getattr__(name: str) -> Any:
    if name == "dtype":
        return import_module(f"{__name__}.common.dtype")
    return lazy(__name__, EXPORTS, name, NEAREST, SUBMODULES)


def __dir__() -> list[str]:
    return listed(__name__, EXPORTS, SUBMODULES)
