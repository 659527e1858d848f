"""``mindspore.nn``: cells, losses, optimisers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import spmdsim.ops as core
from spmdsim.dialects.mindspore import ops
from spmdsim.dialects.mindspore.parameter import Parameter, initializer
from spmdsim.nn import SGD as CoreSGD
from spmdsim.nn import Adam as CoreAdam
from spmdsim.nn import Module
from spmdsim.nn.optimisers import Optimiser
from spmdsim.tensor import Tensor


class Cell(Module):
    """A network: parameters and cells as attributes, and ``construct``."""

    def construct(self, *inputs: Any, **options: Any) -> Any:
        """Compute; defined by each cell."""
        raise TypeError(f"{type(self).__name__} defines no construct()")

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Run :meth:`construct`."""
        return self.construct(*inputs, **options)

    def trainable_params(self) -> list[Parameter]:
        """The parameters that are trained, named by their path."""
        return [p for p in self.get_parameters() if p.requires_grad]

    def get_parameters(self) -> list[Parameter]:
        """All parameters."""
        found = []
        for path, parameter in self.named_parameters():
            parameter.name = path
            found.append(parameter)
        return found  # type: ignore[return-value]


class SequentialCell(Cell):
    """Cells one after the other."""

    def __init__(self, *cells: Any) -> None:
        self.cells = (
            list(cells[0]) if len(cells) == 1 and isinstance(cells[0], (list, tuple)) else list(cells)
        )

    def construct(self, x: Any) -> Any:
        """The last cell's result."""
        for cell in self.cells:
            x = cell(x)
        return x


class ReLU(Cell):
    """Rectified linear unit."""

    def __init__(self) -> None:
        self.relu = ops.ReLU()

    def construct(self, x: Any) -> Any:
        """Element by element."""
        return self.relu(x)


class Flatten(Cell):
    """All dims but the first as one."""

    def construct(self, x: Any) -> Any:
        """``[batch, ...] -> [batch, n]``."""
        return ops.Flatten()(x)


class Dense(Cell):
    """``x @ weight.T + bias``, the weight ``[out, in]`` as MindSpore keeps it."""

    def __init__(self, in_channels: int, out_channels: int, has_bias: bool = True) -> None:
        self.weight = Parameter(initializer("normal", [out_channels, in_channels]))
        self.bias = Parameter(initializer("zeros", [out_channels])) if has_bias else None
        self.matmul = ops.MatMul(transpose_b=True)
        self.bias_add = ops.BiasAdd()

    def construct(self, x: Any) -> Any:
        """``[batch, in] -> [batch, out]``."""
        y = self.matmul(x, self.weight)
        return y if self.bias is None else self.bias_add(y, self.bias)


class CrossEntropyLoss(Cell):
    """Mean (or sum, or none) of minus the log-probability of each label; labels may be class numbers."""

    def __init__(self, reduction: str = "mean") -> None:
        self.reduction = reduction

    def construct(self, logits: Tensor, labels: Any) -> Tensor:
        """``[batch, classes]``, ``[batch] -> []``."""
        given = logits.to(logits.layout.reduced)
        layout = type(given.layout)(given.layout.mesh, given.layout.dims[:-1])
        array = labels if isinstance(labels, Tensor) else np.asarray(labels)
        known = array if isinstance(array, Tensor) else Tensor.from_global(array, layout, given.world)
        loss = core.cross_entropy(given, known, self.reduction)
        return loss.to(loss.layout.reduced)


class _Optimizer:
    """An optimiser called with gradients, one per parameter."""

    def __init__(self, params: Iterable[Parameter], inner: Any) -> None:
        self.parameters = list(params)
        self._make = inner
        self._inner: Optimiser | None = None

    def __call__(self, grads: Iterable[Tensor | None]) -> bool:
        """Update all parameters."""
        if self._inner is None:
            self._inner = self._make(self.parameters)
        for parameter, gradient in zip(self.parameters, grads):
            parameter.value.grad = gradient
        self._inner.step()
        return True


class SGD(_Optimizer):
    """Gradient descent with momentum and weight decay."""

    def __init__(
        self,
        params: Iterable[Parameter],
        learning_rate: float = 0.1,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        if dampening or nesterov:
            from spmdsim.errors import InputError

            raise InputError("SGD with dampening or nesterov is not there; momentum is the nearest that is")
        super().__init__(params, lambda found: CoreSGD(found, learning_rate, momentum, weight_decay))


class Adam(_Optimizer):
    """Adam."""

    def __init__(
        self,
        params: Iterable[Parameter],
        learning_rate: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, lambda found: CoreAdam(found, learning_rate, (beta1, beta2), eps))


__all__ = [
    "SGD", "Adam", "Cell", "CrossEntropyLoss", "Dense", "Flatten", "ReLU", "SequentialCell",
]  # fmt: skip
