"""``mindspore.nn``: cells, losses, optimisers."""

from __future__ import annotations

from typing import Any

from spmdsim.dialects.mindspore.nn import utils
from spmdsim.dialects.mindspore.nn.cell import Cell, CellList, SequentialCell
from spmdsim.dialects.mindspore.nn.layers import GELU, Dense, Dropout, Embedding, Identity, LayerNorm
from spmdsim.dialects.mindspore.nn.layers import cell_of as _cell_of
from spmdsim.dialects.mindspore.nn.layers import cells as _cells
from spmdsim.dialects.mindspore.nn.losses import (
    CrossEntropyLoss,
    L1Loss,
    MSELoss,
    SoftmaxCrossEntropyWithLogits,
    TrainOneStepCell,
    WithLossCell,
)
from spmdsim.dialects.mindspore.nn.optim import SGD, Adam, Momentum, Optimizer
from spmdsim.dialects.missing import each, not_covered

#: What to use instead of a name that resembles none here.
NEAREST = each({
    "exponential_decay_lr cosine_decay_lr "
    "PolynomialDecayLR piecewise_constant_lr CosineDecayLR WarmUpLR": "learning_rate=, a function of the step",
    "Accuracy Metric Loss": "mindspore.train.Model.predict",
    "probability": "mindspore.ops",
    "Conv1d Conv2d Conv3d MaxPool2d AvgPool2d Conv2dTranspose": "Dense over reshaped patches",
    "BatchNorm1d BatchNorm2d GroupNorm": "LayerNorm",
    "AdamWeightDecay Lamb LARS RMSProp Adagrad FTRL": "Adam",
    "LSTM GRU RNN": "a loop over ops.MatMul and ops.Tanh",
    "MultiheadAttention": "spmdsim.nn.Attention",
    "TransformerEncoderLayer Transformer TransformerEncoder TransformerDecoder": "spmdsim.nn.TransformerBlock",
    "Hardswish Softplus SELU Mish HSwish LeakyReLU": "the function of mindspore.ops in a Cell of one's own",
    "ParameterUpdate": "Parameter.set_data",
    "DistributedGradReducer": "AutoParallel, which adds gradients up",
    "MicroBatchInterleaved GradAccumulationCell PipelineCell": "none: a network runs as one stage",
    "ForwardValueAndGrad": "mindspore.value_and_grad",
})  # fmt: skip

__all__ = [
    "GELU", "SGD", "Adam", "Cell", "CellList", "CrossEntropyLoss", "Dense", "Dropout", "Embedding", "Identity", "L1Loss",
    "LayerNorm", "MSELoss", "Momentum", "Optimizer", "SequentialCell", "SoftmaxCrossEntropyWithLogits", "TrainOneStepCell",
    "WithLossCell", "utils", *_cells(),
]  # fmt: skip


def __getattr__(name: str) -> Any:
    row = _cells().get(name)
    if row is not None:
        return _cell_of(row)

    raise not_covered(__name__, name, __all__, NEAREST)


def __dir__() -> list[str]:
    return sorted(__all__)
