"""Layers: those of which every rank has all, and the model-parallel ones (``fleet.layers.mpu.mp_layers``), as layouts of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import spmdsim.nn as ours
import spmdsim.ops as ops
from spmdsim.core import Layout
from spmdsim.dialects.dialect_modules import DialectModule, Numbered, padded_row, said, tree
from spmdsim.dialects.missing import each
from spmdsim.dialects.paddle import fleet
from spmdsim.dialects.paddle.functions import NETWORK_FUNCTIONS, NETWORK_TABLE, TABLE, lifted
from spmdsim.dialects.paddle.parameters import (
    INITIALIZERS,
    create,
    create_parameter,
    layer_names,
    whole_layout,
)
from spmdsim.dialects.paddle.splitting import SplitLayout, split_layout
from spmdsim.dialects.paddle.static import in_static_mode, recorded
from spmdsim.dialects.paddle.tensors import Tensor, everywhere
from spmdsim.dialects.session import current_world
from spmdsim.dialects.table import layers, renamed
from spmdsim.errors import InputError


class Layer(DialectModule):
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

    def __repr__(self) -> str:
        """Its class and options, and in further lines what is inside, each by its name."""
        extra, children = self.extra_repr(), [*self.named_children()]
        if not children:
            return tree(type(self).__name__, extra, ())
        return tree(type(self).__name__, "", children, f"({extra}")

    def named_sublayers(
        self, prefix: str = "", include_self: bool = False
    ) -> Iterator[tuple[str, ours.Module]]:
        """All layers inside, those inside of them too, by their paths."""
        if include_self:
            yield prefix, self
        yield from self.inside(prefix)

    def sublayers(self, include_self: bool = False) -> list[ours.Module]:
        """All layers inside, those inside of them too."""
        return [layer for _, layer in self.named_sublayers("", include_self)]

    def add_sublayer(self, name: str, sublayer: Any) -> Any:
        """Hold a layer, or a parameter, under a name."""
        setattr(self, name, sublayer)
        return sublayer

    add_parameter = add_sublayer

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
        """Give parameters values by their paths. InputError: a path that there is not, or values of another shape."""
        own = self.state_dict()
        for path, value in state_dict.items():
            if path not in own:
                raise InputError(f"{path} is none of this layer's parameters, which are {', '.join(own)}")
            own[path].set_value(value.value if hasattr(value, "as_operand") else value)

    def train(self) -> None:
        """``training`` is true of this and all layers inside."""
        self.set_training(True)

    def eval(self) -> None:
        """``training`` is false of this and all layers inside."""
        self.set_training(False)

    def apply(self, fn: Any) -> Layer:
        """Call a function with every layer inside, and with this one last."""
        for layer in [*self.sublayers(), self]:
            fn(layer)
        return self

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
        self.name, shape = name or None, (int(in_features), int(out_features))
        names = layer_names("linear", name)
        self.weight = create(
            shape, whole_layout(2), weight_attr, INITIALIZERS["XavierUniform"]().of(shape), names, "w"
        )
        self.bias = None
        if bias_attr is not False:
            self.bias = create(shape[1:], whole_layout(1), bias_attr, ours.zeros, names, "b")

    extra_repr = said(
        "in_features={0.weight.shape[0]}, out_features={0.weight.shape[1]}, dtype={0.weight.dtype}", "name"
    )

    def forward(self, x: Any) -> Any:
        """``[..., in_features] -> [..., out_features]``."""
        return NETWORK_FUNCTIONS["linear"](x, self.weight, self.bias)


class Embedding(Layer):
    """Rows of a table ``[num_embeddings, embedding_dim]`` that every rank has whole; ``padding_idx`` gives zeros."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, sparse: bool = False,
        weight_attr: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        self.name, shape = name or None, (int(num_embeddings), int(embedding_dim))
        names = layer_names("embedding", name)
        self.weight = create(
            shape, whole_layout(2), weight_attr, INITIALIZERS["XavierUniform"]().of(shape), names, "w"
        )
        self.padding_idx, self.sparse = padding_idx, sparse
        if padding_idx is not None and not in_static_mode():
            self.weight.initialiser = padded_row(self.weight.initialiser, padding_idx % shape[0])
            self.weight.materialise(current_world(), self.weight.first_seed)

    extra_repr = said("{0.weight.shape[0]}, {0.weight.shape[1]}", "padding_idx", "sparse", "name")

    def forward(self, x: Any) -> Any:
        """``[...] -> [..., embedding_dim]``."""
        return NETWORK_FUNCTIONS["embedding"](x, self.weight, padding_idx=self.padding_idx)


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

    extra_repr = said("normalized_shape={0.normalized_shape}, epsilon={0.epsilon}")

    def forward(self, x: Any) -> Any:
        """``[..., *normalized_shape]``, the same shape."""
        return NETWORK_FUNCTIONS["layer_norm"](x, self.normalized_shape, self.weight, self.bias, self.epsilon)


class Dropout(Layer):
    """Drops a share of the elements while training, the same in every layout."""

    def __init__(
        self, p: float = 0.5, axis: Any = None, mode: str = "upscale_in_train", name: str | None = None
    ) -> None:
        self.p, self.axis, self.mode, self.name = p, axis, mode, name or None

    extra_repr = said("p={0.p}, axis={0.axis}, mode={0.mode}", "name")

    def forward(self, x: Any) -> Any:
        """Another mask at every call."""
        return NETWORK_FUNCTIONS["dropout"](x, self.p, self.axis, self.training, self.mode)


#: Layers and losses by their names: those that are one operator are made from the tables.
LAYERS: dict[str, Any] = {
    "Dropout": Dropout,
    "Embedding": Embedding,
    "Identity": Identity,
    "LayerNorm": LayerNorm,
    "Linear": Linear,
    **layers({**TABLE, **NETWORK_TABLE}, Layer, lifted),
}


class SplitLayer(Layer):
    """A layer of ours whose weight is split as ``where`` says, filled as soon as it is made; arrays are whole on every rank.

    The products of rows, of a table or of a weight, are summed; columns have a bias alike, and may be gathered. What the names
    of its parameters begin with (a ``kind``, unless it has a name) decides first values: two layers without a name get
    different values, on every rank the same. A size that does not divide is a ValueError.
    """

    def __init__(
        self, where: SplitLayout, name: str | None, weight_attr: Any, bias: bool = False, bias_attr: Any = None,
        kind: str = "", keep: bool = False, gather_output: bool = True,
    ) -> None:  # fmt: skip
        self.where, self.gather_output = where, gather_output
        self.inner: ours.Module
        if where.operation == "embedding":
            self.inner = ours.Embedding(*where.size, where.weight)
        else:
            self.inner = ours.Linear(*where.size, where.weight, bias)
        names = layer_names(kind or type(self).__name__, name)
        for k, (path, parameter) in enumerate(self.inner.named_parameters()):
            attribute, default, suffix = ((weight_attr, ours.Uniform(), "w"), (bias_attr, ours.zeros, "b"))[k]
            own = create(parameter.shape, parameter.layout, attribute, default, names, suffix, keep=keep)
            setattr(self.inner, path, own)

    extra_repr = said("")
    weight = property(lambda self: self.inner.parameters()[0], doc="The whole weight.")
    bias = property(lambda self: getattr(self.inner, "bias", None), doc="The bias, if there is one.")

    def _parts(self) -> Iterator[tuple[str, Any]]:
        yield from zip(("weight", "bias"), self.inner.parameters())

    def __call__(self, x: Any) -> Any:
        """Compute."""
        return recorded(self._call, x)

    def _call(self, x: Any) -> Any:
        return self.forward(everywhere(x, self.where.mesh))

    def products(self, x: Tensor) -> Any:
        """The result before sums; a row-parallel layer's input is split over its last dim unless it is already."""
        if self.where.kind == "row-parallel linear":
            kept = [entry if x.layout.mesh == self.where.mesh else () for entry in x.layout.dims[:-1]]
            free = [tuple(axis for axis in entry if axis != "mp") for entry in kept]
            return self.inner(x.to(self.where.mesh(*free, "mp")))
        return self.inner(x)

    def forward(self, x: Tensor) -> Any:
        """``[..., rows] -> [..., columns]``, or of a table ``[...] -> [..., columns]``."""
        y = self.products(x)
        if self.where.axis == 0:
            return y.to(y.layout.reduced)
        return y.to(Layout.replicated(self.where.mesh, y.ndim)) if self.gather_output else y


def _no_group(mp_group: Any) -> None:
    if mp_group is not None:
        raise InputError("groups follow from layouts here, so mp_group must be None; nearest: mp_degree=N")


def _where(size: tuple[int, int], operation: str, axis: int, parts: int | None, mp_group: Any) -> SplitLayout:
    _no_group(mp_group)
    return split_layout(size, operation, axis, parts or fleet.model_parts(), world_size=current_world().size)


VocabParallelEmbedding = renamed("VocabParallelEmbedding", SplitLayer, lambda num_embeddings, embedding_dim, weight_attr=None,
    mp_group=None, name=None, *, mp_degree=None: dict(
    where=_where((num_embeddings, embedding_dim), "embedding", 0, mp_degree, mp_group), name=name,
    weight_attr=weight_attr))  # fmt: skip
ColumnParallelLinear = renamed("ColumnParallelLinear", SplitLayer, lambda in_features, out_features, weight_attr=None,
    has_bias=None, gather_output=True, fuse_matmul_bias=False, mp_group=None, name=None, *, mp_degree=None: dict(
    where=_where((in_features, out_features), "linear", 1, mp_degree, mp_group), name=name, weight_attr=weight_attr,
    bias=bool(has_bias), gather_output=gather_output))  # fmt: skip
RowParallelLinear = renamed("RowParallelLinear", SplitLayer, lambda in_features, out_features, weight_attr=None, has_bias=True,
    input_is_parallel=False, fuse_matmul_bias=False, mp_group=None, name=None, *, mp_degree=None: dict(
    where=_where((in_features, out_features), "linear", 0, mp_degree, mp_group), name=name, weight_attr=weight_attr,
    bias=has_bias))  # fmt: skip


class ParallelCrossEntropy(Layer):
    """Cross entropy of logits split over the classes, one loss per row; none for the label ``ignore_index``."""

    def __init__(self, mp_group: Any = None, name: str | None = None, ignore_index: int = -100) -> None:
        _no_group(mp_group)
        self.ignore_index = ignore_index

    def __call__(self, input: Any, label: Any) -> Any:
        """Compute; arrays are those that every rank has whole."""
        return lifted(self.forward)(input, label)

    def forward(self, input: Tensor, label: Any) -> Any:
        """``[..., classes]``, ``[...]`` or ``[..., 1]`` -> the labels' shape."""
        logits, labels = input, label
        if labels.ndim not in (logits.ndim, logits.ndim - 1):
            raise InputError(
                "Expected input_dims - 1 = label_dims or input_dims == label_dims (got input_dims "
                f"{logits.ndim}, label_dims {labels.ndim})"
            )
        column = labels.ndim == logits.ndim
        if column:
            labels = ops.reshape(labels, labels.shape[:-1])
        counted = ops.not_equal(labels, self.ignore_index)
        losses = ops.cross_entropy(logits, ops.where(counted, labels, 0), "none")
        losses = ops.where(counted, losses, 0.0)
        return ops.reshape(losses, (*losses.shape, 1)) if column else losses
