"""Paddle's model-parallel layers (``fleet.layers.mpu.mp_layers``), as layouts of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import spmdsim.ops as ops
from spmdsim.core import Layout
from spmdsim.dialects.paddle.distributed import fleet
from spmdsim.dialects.paddle.functions import lifted
from spmdsim.dialects.paddle.nn.layers import Layer
from spmdsim.dialects.paddle.parameters import create, layer_names
from spmdsim.dialects.paddle.splitting import SplitLayout, split_layout
from spmdsim.dialects.paddle.static.program import recorded
from spmdsim.dialects.paddle.tensors import Tensor, everywhere
from spmdsim.dialects.session import current_world
from spmdsim.dialects.table import renamed
from spmdsim.errors import InputError
from spmdsim.nn import Embedding, Linear, Module, Uniform, zeros


class SplitLayer(Layer):
    """A layer of ours whose weight is split, filled as soon as it is made.

    Args:
        where: how it is split.
        name: what the names of its parameters begin with; it decides first values. Two layers without one get different
            values, on every rank the same.
        weight_attr: the weight's attribute.
        bias: whether there is one.
        bias_attr: the bias's attribute.
        kind: what the names begin with where none is given.
        keep: whether the default program keeps the parameters.
        gather_output: whether columns are gathered.
    """

    def __init__(
        self,
        where: SplitLayout,
        name: str | None,
        weight_attr: Any,
        bias: bool = False,
        bias_attr: Any = None,
        kind: str = "",
        keep: bool = False,
        gather_output: bool = True,
    ) -> None:
        self.where, self.gather_output = where, gather_output
        self.inner: Module
        if where.operation == "embedding":
            self.inner = Embedding(*where.size, where.weight)
        else:
            self.inner = Linear(*where.size, where.weight, bias)
        names = layer_names(kind or type(self).__name__, name)
        for k, (path, parameter) in enumerate(self.inner.named_parameters()):
            attribute, default, suffix = ((weight_attr, Uniform(), "w"), (bias_attr, zeros, "b"))[k]
            own = create(parameter.shape, parameter.layout, attribute, default, names, suffix, keep=keep)
            setattr(self.inner, path, own)

    @property
    def weight(self) -> Any:
        """The whole weight, of which each rank holds its part."""
        return self.inner.parameters()[0]

    @property
    def bias(self) -> Any:
        """The bias, if there is one."""
        return getattr(self.inner, "bias", None)

    def extra_repr(self) -> str:
        """Nothing, as Paddle's own."""
        return ""

    def _parts(self) -> Iterator[tuple[str, Any]]:
        yield from zip(("weight", "bias"), self.inner.parameters())

    def __call__(self, x: Any) -> Any:
        """Compute; an array is one that every rank has whole."""
        return recorded(self._call, x)

    def _call(self, x: Any) -> Any:
        return self.forward(everywhere(x, self.where.mesh))

    def products(self, x: Tensor) -> Any:
        """A row-parallel layer's result before the sum; the input is split over its last dim unless it is already."""
        kept = [entry if x.layout.mesh == self.where.mesh else () for entry in x.layout.dims[:-1]]
        free = [tuple(axis for axis in entry if axis != "mp") for entry in kept]
        y: Tensor = self.inner(x.to(self.where.mesh(*free, "mp")))
        return y


def _no_group(mp_group: Any) -> None:
    if mp_group is not None:
        raise InputError("groups follow from layouts here, so mp_group must be None; nearest: mp_degree=N")


def _where(size: tuple[int, int], operation: str, axis: int, parts: int | None, mp_group: Any) -> SplitLayout:
    _no_group(mp_group)
    return split_layout(size, operation, axis, parts or fleet.model_parts(), world_size=current_world().size)


class _Vocabulary(SplitLayer):
    """A table split by rows; the looked-up rows are summed over the ranks.

    Raises:
        ValueError: a vocabulary that does not divide.
    """

    def forward(self, x: Tensor) -> Any:
        """``[...] -> [..., embedding_dim]``."""
        y = self.inner(x)
        return y.to(y.layout.reduced)


class _Columns(SplitLayer):
    """A weight split by columns, with a bias split alike (none unless ``has_bias``, as in Paddle).

    Raises:
        ValueError: columns that do not divide.
    """

    def forward(self, x: Tensor) -> Any:
        """``[..., in] -> [..., out]``; split over the columns unless gathered."""
        y = self.inner(x)
        return y.to(Layout.replicated(self.where.mesh, y.ndim)) if self.gather_output else y


class _Rows(SplitLayer):
    """A weight split by rows; the products are summed, then the bias is added, once.

    Raises:
        ValueError: rows that do not divide.
    """

    def forward(self, x: Tensor) -> Any:
        """``[..., in] -> [..., out]``; the input is split over its last dim unless it is already."""
        y = self.products(x)
        return y.to(y.layout.reduced)


VocabParallelEmbedding = renamed("VocabParallelEmbedding", _Vocabulary, lambda num_embeddings, embedding_dim, weight_attr=None,
    mp_group=None, name=None, *, mp_degree=None: dict(
    where=_where((num_embeddings, embedding_dim), "embedding", 0, mp_degree, mp_group), name=name,
    weight_attr=weight_attr))  # fmt: skip
ColumnParallelLinear = renamed("ColumnParallelLinear", _Columns, lambda in_features, out_features, weight_attr=None,
    has_bias=None, gather_output=True, fuse_matmul_bias=False, mp_group=None, name=None, *, mp_degree=None: dict(
    where=_where((in_features, out_features), "linear", 1, mp_degree, mp_group), name=name, weight_attr=weight_attr,
    bias=bool(has_bias), gather_output=gather_output))  # fmt: skip
RowParallelLinear = renamed("RowParallelLinear", _Rows, lambda in_features, out_features, weight_attr=None, has_bias=True,
    input_is_parallel=False, fuse_matmul_bias=False, mp_group=None, name=None, *, mp_degree=None: dict(
    where=_where((in_features, out_features), "linear", 0, mp_degree, mp_group), name=name, weight_attr=weight_attr,
    bias=has_bias))  # fmt: skip


class ParallelCrossEntropy(Layer):
    """Cross entropy of logits split over the classes, one loss per row.

    Args:
        mp_group: must be None.
        name: accepted for compatibility.
        ignore_index: a label whose row costs nothing.
    """

    def __init__(self, mp_group: Any = None, name: str | None = None, ignore_index: int = -100) -> None:
        _no_group(mp_group)
        self.ignore_index = ignore_index

    def __call__(self, input: Any, label: Any) -> Any:
        """Compute; arrays are those that every rank has whole."""
        return lifted(self.forward)(input, label)

    def forward(self, input: Tensor, label: Any) -> Any:
        """``[..., classes]``, ``[...]`` or ``[..., 1]`` -> the labels' shape.

        Raises:
            InputError: labels of another number of dims.
        """
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


__all__ = ["ColumnParallelLinear", "ParallelCrossEntropy", "RowParallelLinear", "VocabParallelEmbedding"]
