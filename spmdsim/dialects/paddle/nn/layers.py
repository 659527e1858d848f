"""Layers of which every rank has all: those of a single card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import spmdsim.nn as ours
from spmdsim.dialects.missing import Worded, each
from spmdsim.dialects.paddle.attributes import XavierUniform
from spmdsim.dialects.paddle.functions import NETWORK_TABLE, lifted
from spmdsim.dialects.paddle.parameters import create, create_parameter, layer_names, whole_layout
from spmdsim.dialects.paddle.static import in_static_mode
from spmdsim.dialects.printed import options_of, tree
from spmdsim.dialects.session import current_world
from spmdsim.dialects.table import Numbered, PaddingRow
from spmdsim.errors import InputError


class Layer(Worded, ours.Module):
    """A network: layers as attributes, and ``forward``."""

    ORIGINAL = "paddle.nn.Layer"
    NEAREST = each({
        "register_forward_pre_hook register_forward_post_hook": "a layer around it",
        "register_buffer buffers named_buffers": "an attribute, or ParamAttr(trainable=False)",
        "to astype float float16 bfloat16": "dtype= of each parameter",
        "full_name": "the names of its parameters",
        "to_static_state_dict load_dict set_dict": "set_state_dict",
    })  # fmt: skip

    def __init__(self, name_scope: str | None = None, dtype: Any = None) -> None:
        """Both arguments are accepted and ignored."""

    training = True

    def extra_repr(self) -> str:
        """What a layer prints in its brackets: its options; a loss none."""
        return "" if hasattr(self, "reduction") else options_of(self)

    def __repr__(self) -> str:
        """Its class and options, and in further lines what is inside, each by its name."""
        extra, children = self.extra_repr(), [*self.named_children()]
        if not children:
            return tree(type(self).__name__, extra, ())
        return tree(type(self).__name__, "", children, f"({extra}")

    def named_children(self) -> Iterator[tuple[str, ours.Module]]:
        """The layers that it holds itself, by name."""
        return ((name, part) for name, part in self._parts() if isinstance(part, ours.Module))

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

    def clear_gradients(self) -> None:
        """Forget all gradients."""
        self.zero_grad()


class LayerList(Numbered, Layer):
    """A list of layers whose parameters are found."""


class Sequential(Numbered, ours.Sequential, Layer):
    """Layers one after the other, by number or by name: ``Sequential(("fc", Linear(2, 2)), ReLU())``."""

    def __init__(self, *layers: Any) -> None:
        given = layers[0] if len(layers) == 1 and isinstance(layers[0], list) else layers
        pairs = [x if isinstance(x, (tuple, list)) else (str(k), x) for k, x in enumerate(given)]
        ours.Sequential.__init__(self, *(layer for _, layer in pairs))
        self._names = [name for name, _ in pairs]


class Identity(Layer):
    """The input itself; arguments are accepted and ignored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def forward(self, x: Any) -> Any:
        """Nothing is done."""
        return x


class Linear(Layer):
    """``x @ weight + bias`` with a weight ``[in_features, out_features]`` that every rank has whole."""

    def __init__(
        self, in_features: int, out_features: int, weight_attr: Any = None, bias_attr: Any = None, name: str | None = None
    ) -> None:  # fmt: skip
        self.name, shape = name, (int(in_features), int(out_features))
        names = layer_names("linear", name)
        self.weight = create(shape, whole_layout(2), weight_attr, XavierUniform().of(shape), names, "w")
        self.bias = None
        if bias_attr is not False:
            self.bias = create(shape[1:], whole_layout(1), bias_attr, ours.zeros, names, "b")

    def extra_repr(self) -> str:
        """Sizes and type."""
        (rows, columns), kind = self.weight.shape, self.weight.dtype
        return f"in_features={rows}, out_features={columns}, dtype={kind}{_named(self.name)}"

    def forward(self, x: Any) -> Any:
        """``[..., in_features] -> [..., out_features]``."""
        return _linear(x, self.weight, self.bias)


class Embedding(Layer):
    """Rows of a table ``[num_embeddings, embedding_dim]`` that every rank has whole; ``padding_idx`` gives zeros."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, sparse: bool = False,
        weight_attr: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        self.name, shape = name, (int(num_embeddings), int(embedding_dim))
        names = layer_names("embedding", name)
        self.weight = create(shape, whole_layout(2), weight_attr, XavierUniform().of(shape), names, "w")
        self.padding_idx, self.sparse = padding_idx, sparse
        if padding_idx is not None and not in_static_mode():
            self.weight.initialiser = PaddingRow(self.weight.initialiser, padding_idx % shape[0])
            self.weight.materialise(current_world(), self.weight.first_seed)

    def extra_repr(self) -> str:
        """Rows and columns."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        rows, columns = self.weight.shape
        return f"{rows}, {columns}{padding}, sparse={self.sparse}{_named(self.name)}"

    def forward(self, x: Any) -> Any:
        """``[...] -> [..., embedding_dim]``."""
        return _embedding(x, self.weight, padding_idx=self.padding_idx)


class LayerNorm(Layer):
    """Normalised over the last dims, scaled and shifted unless an attribute is False."""

    def __init__(
        self, normalized_shape: Any, epsilon: float = 1e-5, weight_attr: Any = None, bias_attr: Any = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.epsilon = list(shape), epsilon
        names, where = layer_names("layer_norm", name), whole_layout(len(shape))
        for word, attribute, first in (("weight", weight_attr, ours.ones), ("bias", bias_attr, ours.zeros)):
            vector = None if attribute is False else create(shape, where, attribute, first, names, word[0])
            setattr(self, word, vector)

    def extra_repr(self) -> str:
        """Sizes."""
        return f"normalized_shape={self.normalized_shape}, epsilon={self.epsilon}"

    def forward(self, x: Any) -> Any:
        """``[..., *normalized_shape]``, the same shape."""
        return _layer_norm(x, self.normalized_shape, self.weight, self.bias, self.epsilon)


class Dropout(Layer):
    """Drops a share of the elements while training, the same in every layout."""

    def __init__(
        self, p: float = 0.5, axis: Any = None, mode: str = "upscale_in_train", name: str | None = None
    ) -> None:
        self.p, self.axis, self.mode, self.name = p, axis, mode, name

    def extra_repr(self) -> str:
        """The share."""
        return f"p={self.p}, axis={self.axis}, mode={self.mode}{_named(self.name)}"

    def forward(self, x: Any) -> Any:
        """Another mask at every call."""
        return _dropout(x, self.p, self.axis, self.training, self.mode)


def _named(name: str | None) -> str:
    return f", name={name}" if name else ""


_linear, _embedding, _layer_norm, _dropout = (
    lifted(NETWORK_TABLE[name].call, name) for name in ("linear", "embedding", "layer_norm", "dropout")
)
