"""Layers: those of which every rank has all, and the model-parallel ones (``fleet.layers.mpu.mp_layers``), as layouts of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import spmdsim.nn as ours
from spmdsim.arrays import ops
from spmdsim.core import Layout
from spmdsim.dialects.dialect_modules import DialectModule, Numbered, format_options, tree
from spmdsim.dialects.layouts import plus_bias
from spmdsim.dialects.paddle import fleet
from spmdsim.dialects.paddle.functions import NETWORK_FUNCTIONS, NETWORK_TABLE, TABLE, lifted
from spmdsim.dialects.paddle.parameters import INITIALIZERS, create, create_parameter, layer_names
from spmdsim.dialects.paddle.rank_shards import rank_shard
from spmdsim.dialects.paddle.splitting import SplitLayout, split_layout
from spmdsim.dialects.paddle.static import in_static_mode, recorded
from spmdsim.dialects.paddle.tensors import Tensor, everywhere
from spmdsim.dialects.session import current_world
from spmdsim.dialects.table import Row, layers, renamed
from spmdsim.errors import InputError


class Layer(DialectModule):
    """A network: layers as attributes, and ``forward``."""

    ORIGINAL = "paddle.nn.Layer"

    def __init__(self, name_scope: str | None = None, dtype: Any = None) -> None:
        """Both arguments are accepted and ignored."""

    def __repr__(self) -> str:
        """Its class and options, and in further lines what is inside, each by its name."""
        kind, extra, children = type(self).__name__, self.extra_repr(), [*self.named_children()]
        return tree(kind, "", children, f"({extra}") if children else f"{kind}({extra})"

    def named_sublayers(
        self, prefix: str = "", include_self: bool = False
    ) -> Iterator[tuple[str, ours.Module]]:
        """All layers inside, those inside of them too, by their paths."""
        return self.inside(prefix, include_self)

    def sublayers(self, include_self: bool = False) -> list[ours.Module]:
        """All layers inside, those inside of them too."""
        return [layer for _, layer in self.inside("", include_self)]

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

    clear_gradients = ours.Module.zero_grad


class LayerList(Numbered, Layer):
    """A list of layers whose parameters are found."""


class Sequential(Numbered, ours.Sequential, Layer):
    """Layers one after the other, by number or by name: ``Sequential(("fc", Linear(2, 2)), ReLU())``."""

    def __init__(self, *layers: Any) -> None:
        entries = layers[0] if len(layers) == 1 and isinstance(layers[0], list) else layers
        pairs = [x if isinstance(x, (tuple, list)) else (str(k), x) for k, x in enumerate(entries)]
        ours.Sequential.__init__(self, *(layer for _, layer in pairs))
        self._names = [name for name, _ in pairs]


def _identity(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """The input itself; arguments are accepted and ignored."""
    return {}


_XAVIER = INITIALIZERS["XavierUniform"]()


def _vector(shape: tuple[int, ...], attribute: Any, first: Any, names: tuple[str, str], suffix: str) -> Any:
    return None if attribute is False else create(shape, None, attribute, first, names, suffix)


def _linear(
    in_features: int, out_features: int, weight_attr: Any = None, bias_attr: Any = None, name: str | None = None
) -> dict[str, Any]:  # fmt: skip
    """``x @ weight + bias`` with a weight ``[in_features, out_features]`` that every rank has whole."""
    shape, names = (int(in_features), int(out_features)), layer_names("linear", name)
    weight = create(shape, None, weight_attr, _XAVIER, names, "w")
    bias = _vector(shape[1:], bias_attr, ours.zeros, names, "b")
    return {"weight": weight, "bias": bias, "name": name or None}


def _embedding(
    num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, sparse: bool = False, weight_attr: Any = None,
    name: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Rows of a table ``[num_embeddings, embedding_dim]`` that every rank has whole; ``padding_idx`` gives zeros."""
    shape, names = (int(num_embeddings), int(embedding_dim)), layer_names("embedding", name)
    zeros = None if padding_idx is None or in_static_mode() else padding_idx % shape[0]
    weight = create(shape, None, weight_attr, _XAVIER, names, "w", zeros=zeros)
    return {"weight": weight, "padding_idx": padding_idx, "sparse": sparse, "name": name or None}


def _layer_norm(
    normalized_shape: Any, epsilon: float = 1e-5, weight_attr: Any = None, bias_attr: Any = None, name: str | None = None
) -> dict[str, Any]:  # fmt: skip
    """Normalised over the last dims, scaled and shifted unless an attribute is False."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    names = layer_names("layer_norm", name)
    weight = _vector(shape, weight_attr, ours.ones, names, "w")
    bias = _vector(shape, bias_attr, ours.zeros, names, "b")
    return {"normalized_shape": list(shape), "epsilon": epsilon, "weight": weight, "bias": bias}


def _dropout(
    p: float = 0.5, axis: Any = None, mode: str = "upscale_in_train", name: str | None = None
) -> dict[str, Any]:
    """Drops a share of the elements while training, the same in every layout."""
    return {"p": p, "axis": axis, "mode": mode, "name": name or None}


def _of(operator: str, layer: str, keeps: Callable[..., Any], says: str, *optional: str) -> dict[str, Row]:
    """The row of a layer that keeps what its operator is given beside the input, and of what it prints."""
    return {
        operator: replace(
            NETWORK_TABLE[operator], layer=layer, keeps=keeps, says=format_options(says, *optional)
        )
    }


_ROWS = {
    "identity": Row(lambda x: x, "Identity", keeps=_identity, says=format_options("")),
    **_of("dropout", "Dropout", _dropout, "p={0.p}, axis={0.axis}, mode={0.mode}", "name"),
    **_of("embedding", "Embedding", _embedding, "{0.weight.shape[0]}, {0.weight.shape[1]}", "padding_idx", "sparse", "name"),
    **_of("layer_norm", "LayerNorm", _layer_norm, "normalized_shape={0.normalized_shape}, epsilon={0.epsilon}"),
    **_of("linear", "Linear", _linear, "in_features={0.weight.shape[0]}, out_features={0.weight.shape[1]}, dtype={0.weight.dtype}", "name"),
}  # fmt: skip
#: Layers and losses by their names, made from the tables.
LAYERS = layers({**TABLE, **NETWORK_TABLE, **_ROWS}, Layer, lifted)


class Split(Layer):
    """A product whose weight is split as ``where`` says, filled as soon as it is made; arrays are whole on every rank.

    The products of rows, of a table or of a weight, are summed unless they stay partial; columns have a bias alike. What the
    names of its parameters begin with (a ``kind``, unless it has a name) decides first values: two layers without a name get
    different values, on every rank the same. A size that does not divide is a ValueError.
    """

    def __init__(
        self, where: SplitLayout, name: str | None, weight_attr: Any, bias: bool = False, bias_attr: Any = None,
        kind: str = "", *, keep: bool = False,
    ) -> None:  # fmt: skip
        self.where, names = where, layer_names(kind or type(self).__name__, name)
        self.weight = create(where.size, where.weight, weight_attr, ours.Uniform(), names, "w", keep=keep)
        at = where.bias if bias else None
        self.bias: Any = at and create(where.size[1:], at, bias_attr, ours.zeros, names, "b", keep=keep)

    extra_repr = format_options("")
    #: A row-parallel layer sums the products of ranks' shards, as Paddle does.
    takes_rank_shards = True

    def __call__(self, x: Any) -> Any:
        """Compute."""
        return recorded(self.forward, x)

    def products(self, x: Any) -> Any:
        """The result before sums; a row-parallel layer's input is split over its last dim unless it is already."""
        where = self.where
        if where.padding_row:
            return ops.padded_embedding(x, with_padding_rows(self.weight.to(where.weight), where))
        if where.operation == "embedding":
            return ops.embedding(x, self.weight.value)
        if where.axis == 0:
            kept = x.layout.dims[:-1] if x.layout.mesh == where.mesh else [()] * (x.ndim - 1)
            x = x.to(where.mesh(*(tuple(axis for axis in entry if axis != "mp") for entry in kept), "mp"))
        return plus_bias(ops.matmul(x, self.weight.value), self.bias)

    def forward(self, x: Tensor) -> Any:
        """``[..., rows] -> [..., columns]``, or of a table ``[...] -> [..., columns]``."""
        where = self.where
        y = self.products(everywhere(x, where.mesh))
        if where.stays_partial:
            return rank_shard(y)
        gathered = where.axis == 1 and where.gather_out
        if gathered:
            return y.to(Layout.replicated(where.mesh, y.ndim))
        return rank_shard(y.to(y.layout.reduced))


def with_padding_rows(table: Any, where: SplitLayout) -> Any:
    """The table with a zero row at the end of every rank's part."""
    parts, columns = where.num_partitions, where.size[1]
    padded = ops.pad(ops.reshape(table, (parts, -1, columns)), (0, 0, 0), (0, 1, 0))
    return ops.reshape(padded, (where.size[0] + parts, columns))


def _check_no_group(mp_group: Any) -> None:
    if mp_group is not None:
        raise InputError("groups follow from layouts here, so mp_group must be None; nearest: mp_degree=N")


def _where(rows: int, columns: int, axis: Any, parts: Any, group: Any, gather: bool = True) -> SplitLayout:
    """A table for no axis."""
    _check_no_group(group)
    operation, parts = "embedding" if axis is None else "linear", parts or fleet.model_parts()
    return split_layout((rows, columns), operation, axis or 0, parts, gather, world_size=current_world().size)


VocabParallelEmbedding = renamed("VocabParallelEmbedding", Split, lambda num_embeddings, embedding_dim, weight_attr=None,
    mp_group=None, name=None, *, mp_degree=None: dict(
    where=_where(num_embeddings, embedding_dim, None, mp_degree, mp_group), name=name, weight_attr=weight_attr))  # fmt: skip
ColumnParallelLinear = renamed("ColumnParallelLinear", Split, lambda in_features, out_features, weight_attr=None,
    has_bias=None, gather_output=True, fuse_matmul_bias=False, mp_group=None, name=None, *, mp_degree=None: dict(
    where=_where(in_features, out_features, 1, mp_degree, mp_group, gather_output), name=name, weight_attr=weight_attr,
    bias=bool(has_bias)))  # fmt: skip
RowParallelLinear = renamed("RowParallelLinear", Split, lambda in_features, out_features, weight_attr=None, has_bias=True,
    input_is_parallel=False, fuse_matmul_bias=False, mp_group=None, name=None, *, mp_degree=None: dict(
    where=_where(in_features, out_features, 0, mp_degree, mp_group), name=name, weight_attr=weight_attr, bias=has_bias))  # fmt: skip


class ParallelCrossEntropy(Layer):
    """Cross entropy of logits split over the classes, one loss per row; none for the label ``ignore_index``."""

    def __init__(self, mp_group: Any = None, name: str | None = None, ignore_index: int = -100) -> None:
        _check_no_group(mp_group)
        self.ignore_index = ignore_index

    #: The sum over all classes is the layer's purpose.
    takes_rank_shards = True

    def __call__(self, input: Any, label: Any) -> Any:
        """Compute."""
        return recorded(self.forward, input, label)

    def forward(self, input: Any, label: Any) -> Any:
        """``[..., classes]``, ``[...]`` or ``[..., 1]`` -> the labels' shape."""
        return NETWORK_FUNCTIONS["cross_entropy"](input, label, None, self.ignore_index, "none")
