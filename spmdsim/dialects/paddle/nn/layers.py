"""Layers of which every rank has all: those of a single card."""

from __future__ import annotations

from typing import Any

import spmdsim.nn as ours
from spmdsim.dialects.paddle.attributes import XavierUniform
from spmdsim.dialects.paddle.functions import NETWORK_TABLE, lifted
from spmdsim.dialects.paddle.parameters import create, create_parameter, layer_names, whole_layout
from spmdsim.errors import InputError


class Layer(ours.Module):
    """A network: layers as attributes, and ``forward``."""

    def __init__(self, name_scope: str | None = None, dtype: Any = None) -> None:
        """Both arguments are accepted and ignored."""

    def sublayers(self) -> list[ours.Module]:
        """The layers inside."""
        return [x for x in vars(self).values() if isinstance(x, ours.Module)]

    def create_parameter(
        self, shape: Any, attr: Any = None, dtype: Any = "float32", is_bias: bool = False, default_initializer: Any = None
    ) -> Any:  # fmt: skip
        """A parameter that every rank has whole; None for ``attr=False``."""
        if attr is False:
            return None
        return create_parameter(shape, dtype, None, attr, is_bias, default_initializer)

    def state_dict(self) -> dict[str, Any]:
        """The parameters by their paths."""
        return dict(self.named_parameters())

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give parameters values by their paths.

        Raises:
            InputError: a path that there is not, or values of another shape.
        """
        own = self.state_dict()
        for path, value in state_dict.items():
            if path not in own:
                raise InputError(f"{path} is none of this layer's parameters, which are {', '.join(own)}")
            own[path].set_value(value.value if hasattr(value, "as_operand") else value)

    def train(self) -> None:
        """Nothing changes: no layer here computes otherwise in training."""

    def eval(self) -> None:
        """Nothing changes, as for :meth:`train`."""

    def clear_gradients(self) -> None:
        """Forget all gradients."""
        self.zero_grad()


class LayerList(ours.ModuleList, Layer):
    """A list of layers whose parameters are found."""

    attribute = "layers"


class Sequential(ours.Sequential, Layer):
    """Layers one after the other."""

    attribute = "layers"


class Linear(Layer):
    """``x @ weight + bias`` with a weight ``[in_features, out_features]`` that every rank has whole."""

    def __init__(
        self, in_features: int, out_features: int, weight_attr: Any = None, bias_attr: Any = None, name: str | None = None
    ) -> None:  # fmt: skip
        shape, names = (int(in_features), int(out_features)), layer_names("linear", name)
        self.weight = create(shape, whole_layout(2), weight_attr, XavierUniform().of(shape), names, "w")
        self.bias = None
        if bias_attr is not False:
            self.bias = create(shape[1:], whole_layout(1), bias_attr, ours.zeros, names, "b")

    def forward(self, x: Any) -> Any:
        """``[..., in_features] -> [..., out_features]``."""
        return _linear(x, self.weight, self.bias)


class Embedding(Layer):
    """Rows of a table ``[num_embeddings, embedding_dim]`` that every rank has whole; ``padding_idx`` gives zeros."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, sparse: bool = False,
        weight_attr: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        shape, names = (int(num_embeddings), int(embedding_dim)), layer_names("embedding", name)
        self.weight = create(shape, whole_layout(2), weight_attr, XavierUniform().of(shape), names, "w")
        self.padding_idx = padding_idx

    def forward(self, x: Any) -> Any:
        """``[...] -> [..., embedding_dim]``."""
        return _embedding(x, self.weight, padding_idx=self.padding_idx)


_linear, _embedding = (lifted(NETWORK_TABLE[name].call, name) for name in ("linear", "embedding"))
