"""``paddle.nn``: what stands between the model-parallel layers."""

from __future__ import annotations

from typing import Any

from spmdsim.dialects.missing import each, refusal
from spmdsim.dialects.paddle.attributes import ParamAttr
from spmdsim.dialects.paddle.functions import NETWORK_TABLE, TABLE, lifted
from spmdsim.dialects.paddle.nn import functional, initializer
from spmdsim.dialects.paddle.nn.clip import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue
from spmdsim.dialects.paddle.nn.layers import (
    Dropout,
    Embedding,
    Identity,
    Layer,
    LayerList,
    LayerNorm,
    Linear,
    Sequential,
)
from spmdsim.dialects.table import layers as layers_of

#: Layers and losses that are one operator, by their names.
LAYERS: dict[str, Any] = layers_of({**TABLE, **NETWORK_TABLE}, Layer, lifted)
globals().update(LAYERS)

__all__ = [
    "ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue", "Dropout", "Embedding", "Identity", "Layer", "LayerList",
    "LayerNorm", "Linear", "ParamAttr", "Sequential", "functional", "initializer", *LAYERS,
]  # fmt: skip

#: What to use instead of a name that resembles none here.
NEAREST = each({
    "BatchNorm BatchNorm1D BatchNorm3D SyncBatchNorm GroupNorm InstanceNorm1D InstanceNorm2D": "LayerNorm",
    "LayerDict ParameterList ParameterDict": "LayerList",
    "TransformerEncoderLayer TransformerDecoderLayer": "spmdsim.nn.TransformerBlock",
    "LSTM GRU SimpleRNN": "a loop over matmul and tanh",
    "utils": "ClipGradByGlobalNorm",
    "MultiHeadAttention": "spmdsim.nn.Attention",
    "Conv2D MaxPool2D BatchNorm2D": "ColumnParallelLinear over reshaped patches",
})  # fmt: skip
__getattr__ = refusal(__name__, __all__, NEAREST)
