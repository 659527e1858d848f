"""``mindspore.nn``: cells, losses, optimisers."""

from __future__ import annotations

from typing import Any

from spmdsim.dialects.mindspore.nn import utils
from spmdsim.dialects.mindspore.nn.cell import Cell, CellList, SequentialCell
from spmdsim.dialects.mindspore.nn.layers import (
    ELU,
    GELU,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Identity,
    LayerNorm,
    LogSoftmax,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from spmdsim.dialects.mindspore.nn.losses import (
    CrossEntropyLoss,
    L1Loss,
    MSELoss,
    SoftmaxCrossEntropyWithLogits,
    TrainOneStepCell,
    WithLossCell,
)
from spmdsim.dialects.mindspore.nn.optim import SGD, Adam, Momentum, Optimizer

#: What to use instead of a name that resembles none here.
NEAREST = {
    **dict.fromkeys(("Conv1d", "Conv2d", "Conv3d", "MaxPool2d", "AvgPool2d"), "Dense over reshaped patches"),
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "GroupNorm"), "LayerNorm"),
    **dict.fromkeys(("AdamWeightDecay", "Lamb", "LARS", "RMSProp", "Adagrad", "FTRL"), "Adam"),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), "a loop over ops.MatMul and ops.Tanh"),
    "MultiheadAttention": "spmdsim.nn.Attention",
    "TransformerEncoderLayer": "spmdsim.nn.TransformerBlock",
    "Conv2dTranspose": "Dense over reshaped patches",
    "PipelineCell": "none: a network runs as one stage",
    "ForwardValueAndGrad": "mindspore.value_and_grad",
}


def __getattr__(name: str) -> Any:
    from spmdsim.dialects.missing import not_covered

    raise not_covered(__name__, name, __all__, NEAREST)


__all__ = [
    "ELU",
    "GELU",
    "SGD",
    "Adam",
    "Cell",
    "CellList",
    "CrossEntropyLoss",
    "Dense",
    "Dropout",
    "Embedding",
    "Flatten",
    "Identity",
    "L1Loss",
    "LayerNorm",
    "LogSoftmax",
    "MSELoss",
    "Momentum",
    "Optimizer",
    "ReLU",
    "ReLU6",
    "SequentialCell",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "SoftmaxCrossEntropyWithLogits",
    "Tanh",
    "TrainOneStepCell",
    "WithLossCell",
    "utils",
]
