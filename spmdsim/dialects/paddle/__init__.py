"""Paddle's spelling.

>>> from spmdsim.dialects import paddle
>>> mesh = paddle.ProcessMesh([[2, 4, 5], [0, 1, 3]], dim_names=["x", "y"])
>>> paddle.layout(mesh, [paddle.Shard(0), paddle.Replicate()], ndim=2).bounds((6, 4), rank=0)
((3, 6), (0, 4))
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from spmdsim.dialects import exported, lazy, listed
from spmdsim.dialects.host import TYPES
from spmdsim.dialects.missing import each

#: Public name -> the submodule that has it.
EXPORTS = exported(
    process_mesh="Partial ProcessMesh Replicate Shard ceil_split check_even dims_mapping from_dims_mapping layout",
    splitting="SplitLayout split_layout",
    creation="arange empty eye full get_default_dtype get_device is_compiled_with_cuda is_tensor linspace normal ones randperm uniform rand randint randn set_default_dtype set_device to_tensor zeros",
    static="disable_static enable_static in_dynamic_mode no_grad seed",
    tensors="CPUPlace CUDAPinnedPlace CUDAPlace Tensor",
    parameters="create_parameter",
    attributes="ParamAttr",
    layers="ColumnParallelLinear ParallelCrossEntropy RowParallelLinear VocabParallelEmbedding",
)

#: What to use instead of a name that resembles none here.
NEAREST = each({
    "version device is_compiled_with_xpu is_compiled_with_rocm": "get_device",
    "bfloat16": "float32",
    "DataParallel": "Shard(0) of the input, Replicate() of the parameters",
    "Model": "a loop over loss.backward() and optimizer.step()",
    "jit": "calling the function: programs run eagerly",
    "save load": "spmdsim.tensor.checkpoint",
    "utils": "ParamAttr(name=...)",
    "DataLoader io": "to_tensor of each batch",
    "grad": "Tensor.backward",
    "histogram": "spmdsim.ops.histogram",
    "bernoulli": "rand",
    "shape": "Tensor.shape",
    "rank": "Tensor.ndim",
    "base fluid framework tensor": "the same word of paddle",
    "vision text audio hub dataset": "to_tensor of arrays of one's own",
    "metric callbacks hapi": "a loop over loss.backward() and optimizer.step()",
    "summary flops profiler": "print(layer), and spmdsim.record",
    "distribution geometric sparse quantization signal": "the functions of paddle",
    "onnx inference": "calling the layer",
    "amp": "float32 everywhere",
    "incubate": "VocabParallelEmbedding and its neighbours",
})  # fmt: skip
SUBMODULES = ("distributed", "fft", "linalg", "nn", "optimizer", "regularizer", "static")

__all__ = list(EXPORTS)

import_module(f"{__name__}.functions")  # which gives tensors their symbols and methods


def __getattr__(name: str) -> Any:
    if name in TYPES.split():
        return np.dtype(name)
    return lazy(__name__, EXPORTS, name, NEAREST, SUBMODULES, table="functions")


def __dir__() -> list[str]:
    return listed(__name__, [*EXPORTS, *TYPES.split()], SUBMODULES, "functions")
