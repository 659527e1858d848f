"""Layers of which every rank has all: those of a single card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import spmdsim.nn as ours
from spmdsim.dialects.missing import not_covered
from spmdsim.dialects.paddle.attributes import XavierUniform
from spmdsim.dialects.paddle.functions import NETWORK_TABLE, lifted
from spmdsim.dialects.paddle.parameters import create, create_parameter, layer_names, whole_layout
from spmdsim.errors import InputError

#: What to use instead of a word of layers that is not here.
NEAREST = {
    **dict.fromkeys(("register_forward_pre_hook", "register_forward_post_hook"), "a layer around it"),
    **dict.fromkeys(("register_buffer", "buffers", "named_buffers"), "an attribute, or ParamAttr(trainable=False)"),
    **dict.fromkeys(("to", "astype", "float", "float16", "bfloat16"), "dtype= of each parameter"),
    **dict.fromkeys(("full_name", "extra_repr"), "the names of its parameters"),
    **dict.fromkeys(("to_static_state_dict", "load_dict", "set_dict"), "set_state_dict"),
}  # fmt: skip


class Layer(ours.Module):
    """A network: layers as attributes, and ``forward``."""

    def __init__(self, name_scope: str | None = None, dtype: Any = None) -> None:
        """Both arguments are accepted and ignored."""

    training = True

    def named_children(self) -> Iterator[tuple[str, ours.Module]]:
        """The layers that it holds itself, by name."""
        yield from ((name, x) for name, x in vars(self).items() if isinstance(x, ours.Module))

    def children(self) -> Iterator[ours.Module]:
        """The layers that it holds itself."""
        yield from (layer for _, layer in self.named_children())

    def named_sublayers(
        self, prefix: str = "", include_self: bool = False
    ) -> Iterator[tuple[str, ours.Module]]:
        """All layers inside, those inside of them too, by their paths."""
        if include_self:
            yield prefix, self
        for name, layer in self.named_children():
            path = f"{prefix}.{name}" if prefix else name
            yield path, layer
            if isinstance(layer, Layer):
                yield from layer.named_sublayers(path)

    def sublayers(self, include_self: bool = False) -> list[ours.Module]:
        """All layers inside, those inside of them too."""
        return [layer for _, layer in self.named_sublayers("", include_self)]

    def add_sublayer(self, name: str, sublayer: Any) -> Any:
        """Hold a layer under a name."""
        setattr(self, name, sublayer)
        return sublayer

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
        """``training`` is true of this and all layers inside."""
        self._mode(True)

    def eval(self) -> None:
        """``training`` is false of this and all layers inside."""
        self._mode(False)

    def _mode(self, training: bool) -> None:
        for layer in self.sublayers(include_self=True):
            vars(layer)["training"] = training

    def apply(self, fn: Any) -> Layer:
        """Call a function with every layer inside, and with this one last."""
        for layer in [*self.sublayers(), self]:
            fn(layer)
        return self

    def add_parameter(self, name: str, parameter: Any) -> Any:
        """Hold a parameter under a name."""
        setattr(self, name, parameter)
        return parameter

    def __getattr__(self, name: str) -> Any:
        if name in NEAREST:
            raise not_covered("spmdsim.dialects.paddle.nn.Layer", name, (), NEAREST)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def clear_gradients(self) -> None:
        """Forget all gradients."""
        self.zero_grad()


class _Numbered(ours.ModuleList, Layer):
    """Layers whose names are their numbers."""

    def named_children(self) -> Iterator[tuple[str, ours.Module]]:
        """The layers by number."""
        yield from ((str(k), x) for k, x in enumerate(self._modules()) if isinstance(x, ours.Module))

    def _walk(self, prefix: str) -> Iterator[tuple[str, ours.Parameter]]:
        for number, layer in self.named_children():
            yield from layer._walk(f"{prefix}{number}.")


class LayerList(_Numbered):
    """A list of layers whose parameters are found."""


class Sequential(_Numbered, ours.Sequential):
    """Layers one after the other."""


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
