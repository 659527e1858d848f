"""Paddle's model-parallel layers (``fleet.layers.mpu.mp_layers``), as layouts of ours."""

from __future__ import annotations

from typing import Any

from spmdsim.dialects.paddle.splitting import SplitLayout, split_layout
from spmdsim.dialects.session import current_world
from spmdsim.nn import Embedding, Linear, Module, Uniform
from spmdsim.ops import cross_entropy
from spmdsim.tensor import Tensor


class _Layer(Module):
    """A layer of ours, filled as soon as it is made."""

    inner: Module

    def _fill(self, name: str | None) -> None:
        for path, parameter in self.inner.named_parameters():
            parameter.name = f"{name or type(self).__name__}.{path}"
            parameter.materialise(current_world())

    def forward(self, x: Tensor) -> Tensor:
        """Compute."""
        return self.inner(x)


def _where(size: tuple[int, int], operation: str, axis: int, parts: int | None) -> SplitLayout:
    world = current_world()
    return split_layout(size, operation, axis, parts or world.size, world_size=world.size)


class VocabParallelEmbedding(_Layer):
    """A table split by rows; the looked-up rows are summed over the ranks.

    Raises:
        ValueError: a vocabulary that does not divide.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        mp_degree: int | None = None,
        name: str | None = None,
    ) -> None:
        where = _where((num_embeddings, embedding_dim), "embedding", 0, mp_degree)
        self.where = where
        self.inner = Embedding(num_embeddings, embedding_dim, where.weight, initialiser=Uniform())
        self._fill(name)

    def forward(self, x: Tensor) -> Tensor:
        """``[...] -> [..., embedding_dim]``."""
        y = self.inner(x)
        return y.to(y.layout.reduced)


class ColumnParallelLinear(_Layer):
    """A weight split by columns, with a bias split alike.

    Raises:
        ValueError: columns that do not divide.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        has_bias: bool = True,
        gather_output: bool = True,
        *,
        mp_degree: int | None = None,
        name: str | None = None,
    ) -> None:
        self.where = _where((in_features, out_features), "linear", 1, mp_degree)
        self.gather_output = gather_output
        self.inner = Linear(
            in_features, out_features, self.where.weight, bool(has_bias), initialiser=Uniform()
        )
        self._fill(name)

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
        has_bias: bool = True,
        input_is_parallel: bool = False,
        *,
        mp_degree: int | None = None,
        name: str | None = None,
    ) -> None:
        self.where = _where((in_features, out_features), "linear", 0, mp_degree)
        bias: Any = self.where.bias if has_bias else False
        self.inner = Linear(in_features, out_features, self.where.weight, bias, initialiser=Uniform())
        self.input_is_parallel = input_is_parallel
        self._fill(name)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in] -> [..., out]``; the input is split over its last dim unless it is already."""
        y = self.inner(x.to(self.where.mesh(*[None] * (x.ndim - 1), "mp")))
        return y.to(y.layout.reduced)


class ParallelCrossEntropy(Module):
    """Cross entropy of logits split over the classes, one loss per row."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """``[..., classes]``, ``[...]`` or ``[..., 1]`` -> ``[...]``."""
        if labels.ndim == logits.ndim:
            from spmdsim.ops import reshape

            labels = reshape(labels, labels.shape[:-1])
        return cross_entropy(logits, labels, "none")
