"""Layers and losses of ``oneflow.nn``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import spmdsim.ops as core
from spmdsim.dialects.oneflow.creation import next_seed
from spmdsim.dialects.oneflow.local import GlobalTensor
from spmdsim.dialects.oneflow.nn.module import Module, Parameter
from spmdsim.dialects.oneflow.operators import FUNCTIONS, lifted
from spmdsim.errors import InputError
from spmdsim.nn import Normal, Uniform, ones, zeros


def _activation(name: str, function: str) -> type[Module]:
    def forward(self: Module, x: GlobalTensor) -> GlobalTensor:
        return FUNCTIONS[function](x)

    return type(name, (Module,), {"forward": forward, "__doc__": f"``{function}``, element by element."})


ReLU, GELU, Tanh, Sigmoid, SiLU = (
    _activation(name, name.lower()) for name in ("ReLU", "GELU", "Tanh", "Sigmoid", "SiLU")
)


class Linear(Module):
    """``x @ weight.T + bias``, the weight ``[out, in]`` as OneFlow keeps it."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        bound = Uniform(in_features**-0.5)
        self.weight = Parameter((out_features, in_features), bound)
        self.bias = Parameter((out_features,), bound) if bias else None

    def forward(self, x: GlobalTensor) -> GlobalTensor:
        """``[..., in] -> [..., out]``."""
        return lifted(_linear)(x, self.weight, *([] if self.bias is None else [self.bias]))


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    y = core.matmul(x, weight, transpose_b=True)
    return y if bias is None else core.add(y.to(y.layout.reduced), bias)


class Embedding(Module):
    """Rows of a table by number."""

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        self.weight = Parameter((num_embeddings, embedding_dim), Normal(1.0))

    def forward(self, ids: GlobalTensor) -> GlobalTensor:
        """``[...] -> [..., embedding_dim]``; pending where the rows are split."""
        return lifted(core.embedding)(ids, self.weight)


class LayerNorm(Module):
    """Normalised over the last dim, scaled and shifted."""

    def __init__(self, normalized_shape: int | Sequence[int], eps: float = 1e-5) -> None:
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.weight, self.bias = Parameter(shape, ones), Parameter(shape, zeros)
        self.eps, self.begin = eps, -len(shape)

    def forward(self, x: GlobalTensor) -> GlobalTensor:
        """``[..., n] -> [..., n]``."""
        return lifted(core.layer_norm)(x, self.weight, self.bias, epsilon=self.eps, begin=self.begin)


class Softmax(Module):
    """Softmax along a dim."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: GlobalTensor) -> GlobalTensor:
        """Row by row."""
        return FUNCTIONS["softmax"](x, self.dim)


class Flatten(Module):
    """All dims from one on as one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.dims = start_dim, end_dim

    def forward(self, x: GlobalTensor) -> GlobalTensor:
        """``[batch, ...] -> [batch, n]``."""
        return FUNCTIONS["flatten"](x, *self.dims)


class Identity(Module):
    """The input itself."""

    def forward(self, x: GlobalTensor) -> GlobalTensor:
        """Nothing is done."""
        return x


class Dropout(Module):
    """Drops a share of the elements while training, the same in every layout."""

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p < 1:
            raise InputError(f"Dropout drops a share of at least 0 and less than 1, not {p}")
        self.p = p

    def forward(self, x: GlobalTensor) -> GlobalTensor:
        """Another mask at every call."""
        if not self.training or not self.p:
            return x
        return lifted(core.dropout)(x, rate=self.p, seed=next_seed())


class _Loss(Module):
    def __init__(self, reduction: str = "mean") -> None:
        if reduction not in ("mean", "sum", "none"):
            raise InputError(f"reduction is one of mean, sum, none, not {reduction!r}")
        self.reduction = reduction

    def _reduced(self, losses: Any) -> Any:
        if self.reduction == "none":
            return losses
        return core.mean(losses) if self.reduction == "mean" else core.sum(losses)


class CrossEntropyLoss(_Loss):
    """Minus the log-probability of each label; logits may be split over the classes."""

    def forward(self, logits: GlobalTensor, labels: GlobalTensor) -> GlobalTensor:
        """``[..., classes]``, ``[...]`` -> ``[]``."""
        return lifted(lambda x, y: self._reduced(core.cross_entropy(x, y, "none")))(logits, labels)


class MSELoss(_Loss):
    """Squared differences."""

    def forward(self, x: GlobalTensor, y: GlobalTensor) -> GlobalTensor:
        """Two tensors of one shape -> ``[]``."""
        return lifted(lambda a, b: self._reduced(core.squared_difference(a, b)))(x, y)


__all__ = [
    "GELU", "CrossEntropyLoss", "Dropout", "Embedding", "Flatten", "Identity", "LayerNorm", "Linear", "MSELoss", "ReLU",
    "SiLU", "Sigmoid", "Softmax", "Tanh",
]  # fmt: skip
