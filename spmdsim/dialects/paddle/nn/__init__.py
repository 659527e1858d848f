"""``paddle.nn``: what stands between the model-parallel layers."""

from __future__ import annotations

from typing import Any

import spmdsim.nn as ours
from spmdsim.dialects.missing import refusal
from spmdsim.dialects.paddle.functions import NETWORK_TABLE, TABLE, lifted
from spmdsim.dialects.paddle.nn import functional, initializer
from spmdsim.dialects.table import layers


class Layer(ours.Module):
    """A network: layers as attributes, and ``forward``."""

    def __init__(self, name_scope: str | None = None, dtype: Any = None) -> None:
        """Both arguments are accepted and ignored."""

    def sublayers(self) -> list[ours.Module]:
        """The layers inside."""
        return [x for x in vars(self).values() if isinstance(x, ours.Module)]


class LayerList(ours.ModuleList, Layer):
    """A list of layers whose parameters are found."""

    attribute = "layers"


class Sequential(ours.Sequential, Layer):
    """Layers one after the other."""

    attribute = "layers"


#: Layers and losses that are one operator, by their names.
LAYERS: dict[str, Any] = layers({**TABLE, **NETWORK_TABLE}, Layer, lifted)
globals().update(LAYERS)

__all__ = ["Layer", "LayerList", "Sequential", "functional", "initializer", *LAYERS]

#: What to use instead of a name that resembles none here.
NEAREST = {
    "Linear": "ColumnParallelLinear or RowParallelLinear, also with mp_degree=1",
    "Embedding": "VocabParallelEmbedding, also with mp_degree=1",
    "LayerNorm": "spmdsim.nn.LayerNorm",
    "Dropout": "spmdsim.ops.dropout",
    "MultiHeadAttention": "spmdsim.nn.Attention",
    **dict.fromkeys(("Conv2D", "MaxPool2D", "BatchNorm2D"), "ColumnParallelLinear over reshaped patches"),
}
__getattr__ = refusal(__name__, __all__, NEAREST)
