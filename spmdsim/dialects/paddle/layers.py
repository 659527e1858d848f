"""Paddle's model-parallel layers (``fleet.layers.mpu.mp_layers``), as layouts of ours."""

from __future__ import annotations

from typing import Any

import numpy as np

import spmdsim.ops as ops
from spmdsim.dialects.paddle.attributes import initial
from spmdsim.dialects.paddle.distributed import fleet
from spmdsim.dialects.paddle.splitting import SplitLayout, split_layout
from spmdsim.dialects.paddle.static import everywhere, next_name
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError
from spmdsim.nn import Embedding, Linear, Module, Uniform, zeros
from spmdsim.tensor import Tensor


class _Layer(Module):
    """A layer of ours, filled as soon as it is made."""

    inner: Module
    where: SplitLayout

    def _fill(self, name: str | None, weight_attr: Any, bias: bool = False) -> None:
        """Fill the parameters; two layers of one kind get different first values, on every rank the same."""
        self._name = name or next_name(type(self).__name__)
        for path, parameter in self.inner.named_parameters():
            weight = len(parameter.shape) == 2
            default = Uniform() if weight else zeros
            attribute = weight_attr if weight else None
            found, dtype, called = initial(attribute, parameter.shape, default)
            parameter.initialiser = found
            parameter.dtype = np.dtype(dtype) if dtype is not None else parameter.dtype
            parameter.name = called or f"{self._name}.{path}"
            parameter.materialise(current_world())

    @property
    def weight(self) -> Tensor:
        """The whole weight's tensor, of which each rank holds its part."""
        found: Tensor = self.inner.parameters()[0].value
        return found

    @property
    def bias(self) -> Tensor | None:
        """The bias, if there is one."""
        bias = getattr(self.inner, "bias", None)
        return None if bias is None else bias.value

    def __call__(self, x: Any) -> Any:
        """Compute; an array is one that every rank has whole."""
        return self.forward(everywhere(x, self.where.mesh))

    def forward(self, x: Tensor) -> Tensor:
        """Compute."""
        return self.inner(x)


def _where(size: tuple[int, int], operation: str, axis: int, parts: int | None) -> SplitLayout:
    world = current_world()
    return split_layout(size, operation, axis, parts or fleet.model_parts(), world_size=world.size)


def _no_group(mp_group: Any) -> None:
    if mp_group is not None:
        raise InputError("groups follow from layouts here, so mp_group must be None; nearest: mp_degree=N")


class VocabParallelEmbedding(_Layer):
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
        _no_group(mp_group)
        self.where = _where((num_embeddings, embedding_dim), "embedding", 0, mp_degree)
        self.inner = Embedding(num_embeddings, embedding_dim, self.where.weight)
        self._fill(name, weight_attr)

    def forward(self, x: Tensor) -> Tensor:
        """``[...] -> [..., embedding_dim]``."""
        y = self.inner(x)
        return y.to(y.layout.reduced)


class ColumnParallelLinear(_Layer):
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
        _no_group(mp_group)
        self.where = _where((in_features, out_features), "linear", 1, mp_degree)
        self.gather_output = gather_output
        self.inner = Linear(in_features, out_features, self.where.weight, bool(has_bias))
        self._fill(name, weight_attr)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in] -> [..., out]``; split over the columns unless gathered."""
        y = self.inner(x)
        return y.to(self.where.mesh(*[None] * y.ndim)) if self.gather_output else y


class RowParallelLinear(_Layer):
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
        _no_group(mp_group)
        self.where = _where((in_features, out_features), "linear", 0, mp_degree)
        bias: Any = self.where.bias if has_bias else False
        self.inner = Linear(in_features, out_features, self.where.weight, bias)
        self.input_is_parallel = input_is_parallel
        self._fill(name, weight_attr)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in] -> [..., out]``; the input is split over its last dim unless it is already."""
        kept = [entry if x.layout.mesh == self.where.mesh else () for entry in x.layout.dims[:-1]]
        free = [tuple(axis for axis in entry if axis != "mp") for entry in kept]
        y = self.inner(x.to(self.where.mesh(*free, "mp")))
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


__all__ = ["ColumnParallelLinear", "ParallelCrossEntropy", "RowParallelLinear", "VocabParallelEmbedding"]
