"""Layers that are whole on every rank, and model-parallel layers (``fleet.layers.mpu.mp_layers``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import spmdsim.nn as ours
from spmdsim.arrays import ops
from spmdsim.core import Layout
from spmdsim.dialects.dialect_modules import (
    DialectModule,
    Numbered,
    format_module_tree,
    format_options,
    layer_row,
)
from spmdsim.dialects.layouts import plus_bias
from spmdsim.dialects.paddle import fleet
from spmdsim.dialects.paddle.functions import NETWORK_FUNCTIONS, NETWORK_TABLE, TABLE, lift_function
from spmdsim.dialects.paddle.parameters import INITIALIZERS, create, create_parameter, layer_names
from spmdsim.dialects.paddle.rank_shards import wrap_rank_shard
from spmdsim.dialects.paddle.splitting import SplitLayout, split_layout
from spmdsim.dialects.paddle.static import call_recorded, in_static_mode
from spmdsim.dialects.paddle.tensors import Tensor, as_replicated
from spmdsim.dialects.session import current_world
from spmdsim.dialects.table import Row, adapt_class, layers
from spmdsim.errors import InputError


class Layer(DialectModule):
    """Network: layers as attributes, and ``forward``."""

    ORIGINAL = "paddle.nn.Layer"

    def __init__(self, name_scope: str | None = None, dtype: Any = None) -> None:
        """Create a layer; both arguments are accepted and ignored."""

    def __repr__(self) -> str:
        """Return the class and its options; each child follows on lines of its own, with its name."""
        kind, extra, children = type(self).__name__, self.extra_repr(), [*self.named_children()]
        return format_module_tree(kind, "", children, f"({extra}") if children else f"{kind}({extra})"

    def named_sublayers(
        self, prefix: str = "", include_self: bool = False
    ) -> Iterator[tuple[str, ours.Module]]:
        """Yield ``(path, layer)`` for all layers inside, and this layer if ``include_self``."""
        return self.inside(prefix, include_self)

    def sublayers(self, include_self: bool = False) -> list[ours.Module]:
        """Return all layers inside, and this layer if ``include_self``."""
        return [layer for _, layer in self.inside("", include_self)]

    def add_sublayer(self, name: str, sublayer: Any) -> Any:
        """Add a layer or a parameter under a name and return it."""
        setattr(self, name, sublayer)
        return sublayer

    add_parameter = add_sublayer

    def create_parameter(
        self, shape: Any, attr: Any = None, dtype: Any = "float32", is_bias: bool = False, default_initializer: Any = None
    ) -> Any:  # fmt: skip
        """Create a parameter that is whole on every rank; return None for ``attr=False``.

        See `parameters.create_parameter` for the arguments.
        """
        if attr is False:
            return None
        return create_parameter(shape, dtype, None, attr, is_bias, default_initializer)

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters by path."""
        return dict(self.named_parameters())

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set parameters to values by path; parameters without a value stay.

        Entries are set one after the other: those before a wrong one are set.

        Args:
            state_dict: arrays, tensors or parameters by the path of a parameter, such as ``"0.weight"``.

        Raises:
            InputError: If a path is unknown, or values have another shape.
        """
        parameters = self.state_dict()
        for path, value in state_dict.items():
            if path not in parameters:
                raise InputError(
                    f"set_state_dict: names must be those of this layer's parameters ({', '.join(parameters)}), "
                    f"got {path!r}"
                )
            parameters[path].set_value(value.value if hasattr(value, "as_operand") else value)

    clear_gradients = ours.Module.zero_grad


class LayerList(Numbered, Layer):
    """List of layers, whose parameters belong to the layer around."""


class Sequential(Numbered, ours.Sequential, Layer):
    """Layer that applies layers one after the other: ``Sequential(("fc", Linear(2, 2)), ReLU())``."""

    def __init__(self, *layers: Any) -> None:
        entries = layers[0] if len(layers) == 1 and isinstance(layers[0], list) else layers
        pairs = [x if isinstance(x, (tuple, list)) else (str(k), x) for k, x in enumerate(entries)]
        ours.Sequential.__init__(self, *(layer for _, layer in pairs))
        self._names = [name for name, _ in pairs]


def _identity(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Layer that returns its input; arguments are accepted and ignored."""
    return {}


_XAVIER = INITIALIZERS["XavierUniform"]()


def _create_vector(
    shape: tuple[int, ...], attribute: Any, first: Any, names: tuple[str, str], suffix: str
) -> Any:
    """Create a parameter of a vector; None for ``attribute=False``.

    ``first`` are its first values; see `create` for ``names`` and ``suffix``.
    """
    return None if attribute is False else create(shape, None, attribute, first, names, suffix)


def _linear(
    in_features: int, out_features: int, weight_attr: Any = None, bias_attr: Any = None, name: str | None = None
) -> dict[str, Any]:  # fmt: skip
    """Layer ``x @ weight + bias``; the weight ``[in_features, out_features]`` is whole on every rank.

    Args:
        in_features: size of the last dim of the input.
        out_features: size of the last dim of the result.
        weight_attr: attribute of the weight; see `create`.
        bias_attr: attribute of the bias, at first zeros. False: no bias.
        name: prefix of the parameters' names; None numbers them.

    Returns:
        The layer's attributes by name: the parameters ``weight`` and ``bias`` (None if left out), and ``name``.
    """
    shape, names = (int(in_features), int(out_features)), layer_names("linear", name)
    weight = create(shape, None, weight_attr, _XAVIER, names, "w")
    bias = _create_vector(shape[1:], bias_attr, ours.zeros, names, "b")
    return {"weight": weight, "bias": bias, "name": name or None}


def _embedding(
    num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, sparse: bool = False, weight_attr: Any = None,
    name: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Layer that returns rows of a table ``[num_embeddings, embedding_dim]``, whole on every rank.

    Args:
        num_embeddings: number of rows.
        embedding_dim: length of a row.
        padding_idx: index for which the layer returns zeros; negative numbers count from the end. None for none.
        sparse: ignored.
        weight_attr: attribute of the table; see `create`.
        name: prefix of the table's name; None numbers it.

    Returns:
        The layer's attributes by name: the parameter ``weight``, ``padding_idx``, ``sparse`` and ``name``.
    """
    shape, names = (int(num_embeddings), int(embedding_dim)), layer_names("embedding", name)
    zeros = None if padding_idx is None or in_static_mode() else padding_idx % shape[0]
    weight = create(shape, None, weight_attr, _XAVIER, names, "w", zeros=zeros)
    return {"weight": weight, "padding_idx": padding_idx, "sparse": sparse, "name": name or None}


def _layer_norm(
    normalized_shape: Any, epsilon: float = 1e-5, weight_attr: Any = None, bias_attr: Any = None, name: str | None = None
) -> dict[str, Any]:  # fmt: skip
    """Layer that normalises over the last dims; scale and shift are optional.

    Args:
        normalized_shape: sizes of the last dims; an int is one dim.
        epsilon: number added to the variance.
        weight_attr: attribute of the scale, at first ones; see `create`. False: no scale.
        bias_attr: attribute of the shift, at first zeros. False: no shift.
        name: prefix of the parameters' names; None numbers them.

    Returns:
        The layer's attributes by name: ``normalized_shape`` (a list), ``epsilon``, and the parameters ``weight`` (the
        scale) and ``bias`` (the shift), None if left out.
    """
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    names = layer_names("layer_norm", name)
    weight = _create_vector(shape, weight_attr, ours.ones, names, "w")
    bias = _create_vector(shape, bias_attr, ours.zeros, names, "b")
    return {"normalized_shape": list(shape), "epsilon": epsilon, "weight": weight, "bias": bias}


def _dropout(
    p: float = 0.5, axis: Any = None, mode: str = "upscale_in_train", name: str | None = None
) -> dict[str, Any]:
    """Layer that zeroes a random share ``p`` of the elements in training, equal in every layout."""
    return {"p": p, "axis": axis, "mode": mode, "name": name or None}


_ROWS = {
    "identity": layer_row(Row(lambda x: x), "Identity", _identity, ""),
    "dropout": layer_row(NETWORK_TABLE["dropout"], "Dropout", _dropout, "p={0.p}, axis={0.axis}, mode={0.mode}", "name"),
    "embedding": layer_row(
        NETWORK_TABLE["embedding"], "Embedding", _embedding, "{0.weight.shape[0]}, {0.weight.shape[1]}", "padding_idx", "sparse", "name"),
    "layer_norm": layer_row(
        NETWORK_TABLE["layer_norm"], "LayerNorm", _layer_norm, "normalized_shape={0.normalized_shape}, epsilon={0.epsilon}"),
    "linear": layer_row(
        NETWORK_TABLE["linear"], "Linear", _linear,
        "in_features={0.weight.shape[0]}, out_features={0.weight.shape[1]}, dtype={0.weight.dtype}", "name"),
}  # fmt: skip
#: Layers and losses by their names, made from the tables.
LAYERS = layers({**TABLE, **NETWORK_TABLE, **_ROWS}, Layer, lift_function)


class Split(Layer):
    """Product with a split weight; arrays are whole on every rank.

    The weight is filled by the constructor. The result of a row-parallel layer or a table is summed over the shards,
    unless ``where.stays_partial``. First values depend on the name, or, without a name, on the kind and a number: such
    layers get different values, which are equal on every rank.

    Args:
        where: sizes and layouts.
        name: prefix of the parameters' names, or None.
        weight_attr: attribute of the weight; see `create`.
        bias: True to add a bias; a table has none.
        bias_attr: attribute of the bias.
        kind: kind for the names; by default the class.
        keep: True if the default program owns the parameters; see `create`.

    Raises:
        LayoutError: (a ValueError) If a size is not split evenly.
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
        """Apply the layer; in a program, record the call."""
        return call_recorded(self.forward, x)

    def products(self, x: Any) -> Any:
        """Return the layer's result; sums over "mp" may be pending.

        - An embedding has pending sums. With a padding row it goes through :func:`padded_embedding`. - A row-parallel
        layer has pending sums. It first moves the input to the mesh of the weight, and splits its last dim over "mp",
        the axis of the shards. The other dims keep their other axes; they are whole if the input is on another mesh. -
        A column-parallel layer has none.

        If the layer has a bias, pending sums are reduced before it is added.

        Args:
            x: ids, or the input; a tensor.
        """
        where = self.where
        if where.padding_row:
            return ops.padded_embedding(x, with_padding_rows(self.weight.to(where.weight), where))
        if where.operation == "embedding":
            return ops.embedding(x, self.weight.value)
        if where.axis == 0:
            entries = x.layout.dims[:-1] if x.layout.mesh == where.mesh else [()] * (x.ndim - 1)
            without_mp = [tuple(axis for axis in entry if axis != "mp") for entry in entries]
            x = x.to(where.mesh(*without_mp, "mp"))
        return plus_bias(ops.matmul(x, self.weight.value), self.bias)

    def forward(self, x: Tensor) -> Any:
        """Compute ``[..., rows] -> [..., columns]``, or for a table ``[...] -> [..., columns]``.

        - A column-parallel layer returns all columns on every rank with ``gather_out``, else the rank's own shard.
        - A row-parallel layer with ``gather_out=False`` returns the rank's own addends, without a reduction.
        - Another row-parallel layer and a table return sums over all shards.

        Own shards and addends are marked (`rank_shard`), so that the program sees them as its array.

        Args:
            x: ids, or the input: a tensor or an array that is equal on every rank.
        """
        where = self.where
        y = self.products(as_replicated(x, where.mesh))
        if where.stays_partial:
            return wrap_rank_shard(y)
        gathered = where.axis == 1 and where.gather_out
        if gathered:
            return y.to(Layout.replicated(where.mesh, y.ndim))
        return wrap_rank_shard(y.to(y.layout.reduced))


def with_padding_rows(table: Any, where: SplitLayout) -> Any:
    """Return the table with a zero row at the end of every rank's shard."""
    parts, columns = where.num_partitions, where.size[1]
    padded = ops.pad(ops.reshape(table, (parts, -1, columns)), (0, 0, 0), (0, 1, 0))
    return ops.reshape(padded, (where.size[0] + parts, columns))


def _check_no_group(mp_group: Any) -> None:
    """Raise InputError if a group is given: groups follow from layouts here."""
    if mp_group is not None:
        raise InputError(
            "mp_group must be None here, because groups follow from layouts; nearest: mp_degree=N"
        )


def _weight_layout(
    rows: int, columns: int, axis: Any, parts: Any, group: Any, gather: bool = True
) -> SplitLayout:
    """Return the layout of a parallel layer's weight."""
    _check_no_group(group)
    operation, parts = "embedding" if axis is None else "linear", parts or fleet.model_parts()
    return split_layout((rows, columns), operation, axis or 0, parts, gather, world_size=current_world().size)


VocabParallelEmbedding = adapt_class("VocabParallelEmbedding", Split, lambda num_embeddings, embedding_dim, weight_attr=None,
    mp_group=None, name=None, *, mp_degree=None: dict(
    where=_weight_layout(num_embeddings, embedding_dim, None, mp_degree, mp_group), name=name, weight_attr=weight_attr))  # fmt: skip
ColumnParallelLinear = adapt_class("ColumnParallelLinear", Split, lambda in_features, out_features, weight_attr=None,
    has_bias=None, gather_output=True, fuse_matmul_bias=False, mp_group=None, name=None, *, mp_degree=None: dict(
    where=_weight_layout(in_features, out_features, 1, mp_degree, mp_group, gather_output), name=name, weight_attr=weight_attr,
    bias=bool(has_bias)))  # fmt: skip
RowParallelLinear = adapt_class("RowParallelLinear", Split, lambda in_features, out_features, weight_attr=None, has_bias=True,
    input_is_parallel=False, fuse_matmul_bias=False, mp_group=None, name=None, *, mp_degree=None: dict(
    where=_weight_layout(in_features, out_features, 0, mp_degree, mp_group), name=name, weight_attr=weight_attr, bias=has_bias))  # fmt: skip


class ParallelCrossEntropy(Layer):
    """Cross entropy of logits split over the classes: one loss per row, 0 for label ``ignore_index``."""

    def __init__(self, mp_group: Any = None, name: str | None = None, ignore_index: int = -100) -> None:
        _check_no_group(mp_group)
        self.ignore_index = ignore_index

    #: The layer sums over the shards of all ranks by design.
    takes_rank_shards = True

    def __call__(self, input: Any, label: Any) -> Any:
        """Compute the losses; in a program, record the call."""
        return call_recorded(self.forward, input, label)

    def forward(self, input: Any, label: Any) -> Any:
        """Compute ``[..., classes]`` and labels ``[...]`` or ``[..., 1]`` -> losses in the labels' shape."""
        return NETWORK_FUNCTIONS["cross_entropy"](input, label, None, self.ignore_index, "none")
