"""Paddle's spelling.

>>> from spmdsim.dialects import paddle
>>> mesh = paddle.ProcessMesh([[2, 4, 5], [0, 1, 3]], dim_names=["x", "y"])
>>> paddle.layout(mesh, [paddle.Shard(0), paddle.Replicate()], ndim=2).bounds((6, 4), rank=0)
((3, 6), (0, 4))
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from spmdsim.dialects import exported, lazy, listed

#: Public name -> the submodule that has it.
EXPORTS = exported(
    process_mesh="Partial ProcessMesh Replicate Shard ceil_split check_even dims_mapping from_dims_mapping layout",
    splitting="SplitLayout split_layout",
    creation="arange empty eye full get_device is_tensor linspace normal ones randperm uniform rand randint randn set_device to_tensor zeros",
    static="disable_static enable_static in_dynamic_mode no_grad seed",
    tensors="Tensor",
    parameters="create_parameter",
    attributes="ParamAttr",
    layers="ColumnParallelLinear ParallelCrossEntropy RowParallelLinear VocabParallelEmbedding",
)

#: What to use instead of a name that resembles none here.
NEAREST = {
    **dict.fromkeys(
        ("float16", "float32", "float64", "int32", "int64", "bool"), "the type's name, 'float32'"
    ),
    **dict.fromkeys(("is_compiled_with_cuda", "version", "device"), "get_device"),
    "DataParallel": "Shard(0) of the input, Replicate() of the parameters",
    "Model": "a loop over loss.backward() and optimizer.step()",
    "jit": "calling the function: programs run eagerly",
    **dict.fromkeys(("save", "load"), "spmdsim.tensor.checkpoint"),
    "utils": "ParamAttr(name=...)",
    **dict.fromkeys(("DataLoader", "io"), "to_tensor of each batch"),
    **dict.fromkeys(("CUDAPlace", "CPUPlace", "CUDAPinnedPlace"), "set_device, which changes nothing"),
    **dict.fromkeys(("set_default_dtype", "get_default_dtype"), "dtype= of each call"),
    "grad": "Tensor.backward",
    "histogram": "spmdsim.ops.histogram",
    "bernoulli": "rand",
    "shape": "Tensor.shape",
    "rank": "Tensor.ndim",
    **dict.fromkeys(("allclose", "equal_all"), "numpy(), and numpy's"),
    **dict.fromkeys(("base", "fluid", "framework", "tensor"), "the same word of paddle"),
    "amp": "float32 everywhere",
    "incubate": "VocabParallelEmbedding and its neighbours",
}
SUBMODULES = ("distributed", "fft", "linalg", "nn", "optimizer", "regularizer", "static")

__all__ = list(EXPORTS)

import_module(f"{__name__}.functions")  # which gives tensors their symbols and methods


def __getattr__(name: str) -> Any:
    return lazy(__name__, EXPORTS, name, NEAREST, SUBMODULES, table="functions")


def __dir__() -> list[str]:
    return listed(__name__, EXPORTS, SUBMODULES, "functions")
