"""Layers of ``oneflow.nn`` with parameters; those without, and losses, are made from the table of operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import spmdsim.ops as core
from spmdsim.dialects.oneflow.creation import next_seed
from spmdsim.dialects.oneflow.local import GlobalTensor
from spmdsim.dialects.oneflow.nn.module import Module, Parameter
from spmdsim.dialects.oneflow.operators import NETWORK_TABLE, TABLE, lifted
from spmdsim.dialects.table import PaddingRow, layers
from spmdsim.errors import InputError
from spmdsim.nn import Normal, Uniform, ones, zeros

#: Layers and losses that are one operator, by their names.
LAYERS: dict[str, Any] = layers({**TABLE, **NETWORK_TABLE}, Module, lifted)


class Linear(Module):
    """``x @ weight.T + bias``, the weight ``[out, in]`` as OneFlow keeps it; a device is accepted and ignored."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        self.in_features, self.out_features = in_features, out_features
        bound = Uniform(in_features**-0.5)
        self.weight = Parameter((out_features, in_features), bound, dtype=dtype)
        self.bias = Parameter((out_features,), bound, dtype=dtype) if bias else None

    def extra_repr(self) -> str:
        """Sizes, and whether there is a bias."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"

    def forward(self, x: GlobalTensor) -> GlobalTensor:
        """``[..., in] -> [..., out]``."""
        return lifted(_linear)(x, self.weight, *([] if self.bias is None else [self.bias]))


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    y = core.matmul(x, weight, transpose_b=True)
    return y if bias is None else core.add(y.to(y.layout.reduced), bias)


class Embedding(Module):
    """Rows of a table by number; the padding's begins as zeros and stays."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *, dtype: Any = None
    ) -> None:
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        first = Normal(1.0) if self.padding_idx is None else PaddingRow(Normal(1.0), self.padding_idx)
        self.weight = Parameter((num_embeddings, embedding_dim), first, dtype=dtype)

    def extra_repr(self) -> str:
        """Rows and columns."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return ", ".join(map(str, self.weight.shape)) + padding

    def forward(self, ids: GlobalTensor) -> GlobalTensor:
        """``[...] -> [..., embedding_dim]``; pending where the rows are split."""
        return lifted(core.embedding)(ids, self.weight, padding=self.padding_idx)


class LayerNorm(Module):
    """Normalised over the last dims; scaled and shifted, unless not ``elementwise_affine``."""

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True
    ) -> None:
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.weight = Parameter(shape, ones) if elementwise_affine else None
        self.bias = Parameter(shape, zeros) if elementwise_affine else None
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine

    def extra_repr(self) -> str:
        """The dims that are normalised."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"

    def forward(self, x: GlobalTensor) -> GlobalTensor:
        """``[..., n] -> [..., n]``."""
        if self.weight is None:
            return lifted(NETWORK_TABLE["layer_norm"].call)(x, self.normalized_shape, eps=self.eps)
        begin = -len(self.normalized_shape)
        return lifted(core.layer_norm)(x, self.weight, self.bias, epsilon=self.eps, begin=begin)


class Dropout(Module):
    """Drops a share of the elements while training, the same in every layout."""

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise InputError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p = p

    def extra_repr(self) -> str:
        """The share."""
        return f"p={self.p}, inplace=False"

    def forward(self, x: GlobalTensor) -> GlobalTensor:
        """Another mask at every call."""
        if not self.training or not self.p:
            return x
        if self.p == 1:
            return lifted(core.multiply)(x, 0)
        return lifted(core.dropout)(x, rate=self.p, seed=next_seed())
