"""``paddle.nn``: what stands between the model-parallel layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spmdsim.dialects.paddle.functions import FUNCTIONS
from spmdsim.dialects.paddle.nn import functional, initializer
from spmdsim.nn import Module


class Layer(Module):
    """A network: layers as attributes, and ``forward``."""

    def __init__(self, name_scope: str | None = None, dtype: Any = None) -> None:
        """Both arguments are accepted and ignored."""

    def sublayers(self) -> list[Module]:
        """The layers inside."""
        return [x for x in vars(self).values() if isinstance(x, Module)]


class LayerList(Layer):
    """A list of layers whose parameters are found."""

    def __init__(self, sublayers: Any = ()) -> None:
        self.layers = list(sublayers)

    def append(self, layer: Any) -> LayerList:
        """One more at the end."""
        self.layers.append(layer)
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)

    def __getitem__(self, index: int) -> Any:
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)


class Sequential(LayerList):
    """Layers one after the other."""

    def __init__(self, *layers: Any) -> None:
        super().__init__(layers)

    def forward(self, x: Any) -> Any:
        """The last layer's result."""
        for layer in self.layers:
            x = layer(x)
        return x


def _activation(name: str, function: str) -> type[Layer]:
    def forward(self: Layer, x: Any) -> Any:
        return FUNCTIONS[function](x)

    return type(name, (Layer,), {"forward": forward, "__doc__": f"``{function}``, element by element."})


ReLU, GELU, Tanh, Sigmoid, Silu, Softmax = (
    _activation(name, name.lower()) for name in ("ReLU", "GELU", "Tanh", "Sigmoid", "Silu", "Softmax")
)


class CrossEntropyLoss(Layer):
    """Minus the log-probability of each label."""

    def __init__(self, reduction: str = "mean") -> None:
        self.reduction = reduction

    def forward(self, input: Any, label: Any) -> Any:
        """``[..., classes]``, labels -> ``[]``."""
        return functional.cross_entropy(input, label, reduction=self.reduction)


#: What to use instead of a name that resembles none here.
NEAREST = {
    "Linear": "ColumnParallelLinear or RowParallelLinear, also with mp_degree=1",
    "Embedding": "VocabParallelEmbedding, also with mp_degree=1",
    "LayerNorm": "spmdsim.nn.LayerNorm",
    "Dropout": "spmdsim.ops.dropout",
    "MultiHeadAttention": "spmdsim.nn.Attention",
    **dict.fromkeys(("Conv2D", "MaxPool2D", "BatchNorm2D"), "ColumnParallelLinear over reshaped patches"),
}


def __getattr__(name: str) -> Any:
    from spmdsim.dialects.missing import not_covered

    raise not_covered(__name__, name, __all__, NEAREST)


__all__ = [
    "GELU", "CrossEntropyLoss", "Layer", "LayerList", "ReLU", "Sequential", "Sigmoid", "Silu", "Softmax", "Tanh",
    "functional", "initializer",
]  # fmt: skip
