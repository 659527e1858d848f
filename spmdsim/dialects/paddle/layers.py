"""Paddle's model-parallel layers (``fleet.layers.mpu.mp_layers``) and ``distributed.split``, as layouts of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import spmdsim.ops as ops
from spmdsim.core import Layout
from spmdsim.dialects.paddle.attributes import initial
from spmdsim.dialects.paddle.distributed import fleet
from spmdsim.dialects.paddle.splitting import SplitError, SplitLayout, check_call, split_layout
from spmdsim.dialects.paddle.static import everywhere, in_dynamic_mode, next_name
from spmdsim.dialects.session import alone, current_world
from spmdsim.errors import InputError, LayoutError
from spmdsim.nn import Embedding, Linear, Module, Uniform, zeros
from spmdsim.tensor import Tensor


class SplitLayer(Module):
    """A layer of ours whose weight is split, filled as soon as it is made.

    Args:
        where: how it is split.
        name: it decides first values; two layers without one get different values, on every rank the same.
        weight_attr: first values of the weight.
        bias: whether there is one.
        bias_attr: first values of the bias.
        suffixes: what the names of weight and bias end with; their paths if left out.
    """

    def __init__(
        self,
        where: SplitLayout,
        name: str | None,
        weight_attr: Any,
        bias: bool = False,
        bias_attr: Any = None,
        suffixes: tuple[str, ...] = (),
    ) -> None:
        self.where = where
        self.inner: Module
        if where.operation == "embedding":
            self.inner = Embedding(*where.size, where.weight)
        else:
            self.inner = Linear(*where.size, where.weight, bias)
        self._name = name or next_name(type(self).__name__)
        for k, (path, parameter) in enumerate(self.inner.named_parameters()):
            attribute, default = ((weight_attr, Uniform()), (bias_attr, zeros))[k]
            parameter.initialiser, dtype, called = initial(attribute, parameter.shape, default)
            parameter.dtype = parameter.dtype if dtype is None else np.dtype(dtype)
            parameter.name = called or f"{self._name}.{suffixes[k] if suffixes else path}"
            parameter.materialise(current_world())

    @property
    def weight(self) -> Tensor:
        """The whole weight's tensor, of which each rank holds its part."""
        return self.inner.parameters()[0].value

    @property
    def bias(self) -> Tensor | None:
        """The bias, if there is one."""
        bias = getattr(self.inner, "bias", None)
        return None if bias is None else bias.value

    def __call__(self, x: Any) -> Any:
        """Compute; an array is one that every rank has whole."""
        return self.forward(everywhere(x, self.where.mesh))

    def products(self, x: Tensor) -> Tensor:
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


class VocabParallelEmbedding(SplitLayer):
    """A table split by rows; the looked-up rows are summed over the ranks.

    Raises:
        ValueError: a vocabulary that does not divide.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        weight_attr: Any = None,
        mp_group: Any = None,
        name: str | None = None,
        *,
        mp_degree: int | None = None,
    ) -> None:
        where = _where((num_embeddings, embedding_dim), "embedding", 0, mp_degree, mp_group)
        super().__init__(where, name, weight_attr)

    def forward(self, x: Tensor) -> Tensor:
        """``[...] -> [..., embedding_dim]``."""
        y = self.inner(x)
        result: Tensor = y.to(y.layout.reduced)
        return result


class ColumnParallelLinear(SplitLayer):
    """A weight split by columns, with a bias split alike (none unless ``has_bias``, as in Paddle).

    Raises:
        ValueError: columns that do not divide.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        weight_attr: Any = None,
        has_bias: bool | None = None,
        gather_output: bool = True,
        fuse_matmul_bias: bool = False,
        mp_group: Any = None,
        name: str | None = None,
        *,
        mp_degree: int | None = None,
    ) -> None:
        self.gather_output = gather_output
        where = _where((in_features, out_features), "linear", 1, mp_degree, mp_group)
        super().__init__(where, name, weight_attr, bool(has_bias))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in] -> [..., out]``; split over the columns unless gathered."""
        y = self.inner(x)
        result: Tensor = y.to(Layout.replicated(self.where.mesh, y.ndim)) if self.gather_output else y
        return result


class RowParallelLinear(SplitLayer):
    """A weight split by rows; the products are summed, then the bias is added, once.

    Raises:
        ValueError: rows that do not divide.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        weight_attr: Any = None,
        has_bias: bool = True,
        input_is_parallel: bool = False,
        fuse_matmul_bias: bool = False,
        mp_group: Any = None,
        name: str | None = None,
        *,
        mp_degree: int | None = None,
    ) -> None:
        self.input_is_parallel = input_is_parallel
        where = _where((in_features, out_features), "linear", 0, mp_degree, mp_group)
        super().__init__(where, name, weight_attr, has_bias)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in] -> [..., out]``; the input is split over its last dim unless it is already."""
        y = self.products(x)
        return y.to(y.layout.reduced)


class ParallelCrossEntropy(Module):
    """Cross entropy of logits split over the classes, one loss per row.

    Args:
        mp_group: must be None.
        name: accepted for compatibility.
        ignore_index: a label whose row costs nothing.
    """

    def __init__(self, mp_group: Any = None, name: str | None = None, ignore_index: int = -100) -> None:
        _no_group(mp_group)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, label: Any) -> Tensor:
        """``[..., classes]``, ``[...]`` or ``[..., 1]`` -> the labels' shape.

        Raises:
            InputError: labels of another number of dims.
        """
        logits, labels = everywhere(input), everywhere(label, everywhere(input).layout.mesh)
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


def split(
    x: Tensor | np.ndarray,
    size: Sequence[int],
    operation: str,
    axis: int = 0,
    num_partitions: int = 1,
    gather_out: bool = True,
    weight_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
    *,
    padding_row: bool = True,
) -> Tensor:
    """A parallel Embedding or Linear, its parameter split over ``num_partitions`` ranks.

    Args:
        x: ids, or the input; the same on every rank.
        size: global shape of the weight.
        operation: ``"embedding"`` or ``"linear"``.
        axis: the weight dim that is split.
        num_partitions: into how many parts; several groups of ranks may do the same.
        gather_out: whether the full result ends on every rank. A row-parallel linear without it gives the
            partial products, without bias, as Paddle does.
        weight_attr: first values of the weight: a ``ParamAttr``, an initializer, or an array.
        bias_attr: first values of the bias; False for none.
        name: the parameter's name; it decides its first values.
        padding_row: keep a zero row at the end of every part of an embedding's table, as the document
            describes it; False for masks, as today's code has it. The result is the same.

    Raises:
        ValueError: everything that Paddle refuses, in its words; where it asserts an AssertionError too.
    """
    world = current_world()
    check_call(size, operation)
    if in_dynamic_mode():
        raise LayoutError(
            "paddle.distributed.split cannot be used in dynamic graph mode, please use ParallelEmbedding, "
            "ParallelRowLinear, ParallelColumnLinear instead. (Here: VocabParallelEmbedding, RowParallelLinear, "
            "ColumnParallelLinear; or enable_static().)"
        )
    if not fleet.initialised():
        raise SplitError("To use paddle.distributed.split, you must call fleet.init() firstly.")
    if num_partitions > world.size:
        raise LayoutError(f"num_partitions is {num_partitions}, but {world.size} ranks are running{alone()}")
    # The 2.0 text speaks of N / num_partitions rows: parts must be equal, with or without the padding row.
    where = split_layout(size, operation, axis, num_partitions, gather_out, world_size=world.size)
    row_parallel = operation == "linear" and axis == 0
    pending = row_parallel and not gather_out and num_partitions > 1
    biased = bias_attr is not False and not pending
    layer = SplitLayer(where, name or next_name("split"), weight_attr, biased, bias_attr, ("w", "b"))
    given = everywhere(x, where.mesh)
    if operation == "embedding" and padding_row and num_partitions > 1:
        y = ops.padded_embedding(given, with_padding_rows(layer.weight, where))
    else:
        y = layer.products(given) if row_parallel else layer.inner(given)
    if not pending:
        y = y.to(y.layout.reduced)
    return y.to(Layout.replicated(where.mesh, y.ndim)) if gather_out and operation == "linear" else y


def with_padding_rows(table: Tensor, where: SplitLayout) -> Tensor:
    """The table with a zero row at the end of every rank's part."""
    shards = [np.vstack([shard, np.zeros((1, shard.shape[1]), shard.dtype)]) for shard in table.shards]
    rows, columns = where.size
    return Tensor.from_local(shards, table.layout, table.world, shape=(rows + where.num_partitions, columns))


__all__ = [
    "ColumnParallelLinear",
    "ParallelCrossEntropy",
    "RowParallelLinear",
    "VocabParallelEmbedding",
    "split",
]
