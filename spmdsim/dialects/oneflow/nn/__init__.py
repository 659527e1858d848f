"""``oneflow.nn``: modules whose parameters become global by ``to_global``."""

from __future__ import annotations

from typing import Any

from spmdsim.dialects.oneflow.nn import functional
from spmdsim.dialects.oneflow.nn.layers import (
    GELU,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    Flatten,
    Identity,
    LayerNorm,
    Linear,
    MSELoss,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from spmdsim.dialects.oneflow.nn.module import Module, ModuleList, Parameter, Sequential

#: What to use instead of a name that resembles none here.
NEAREST = {
    "Graph": "calling the module: programs run eagerly",
    "parallel": "sbp.split(0) of the input, sbp.broadcast of the parameters",
    **dict.fromkeys(("Conv2d", "MaxPool2d", "BatchNorm2d"), "Linear over reshaped patches"),
    "MultiheadAttention": "spmdsim.nn.Attention",
    "init": "Parameter(global_tensor)",
}


def __getattr__(name: str) -> Any:
    from spmdsim.dialects.missing import not_covered

    raise not_covered(__name__, name, __all__, NEAREST)


__all__ = [
    "GELU", "CrossEntropyLoss", "Dropout", "Embedding", "Flatten", "Identity", "LayerNorm", "Linear", "MSELoss",
    "Module", "ModuleList", "Parameter", "ReLU", "Sequential", "SiLU", "Sigmoid", "Softmax", "Tanh", "functional",
]  # fmt: skip
