"""``paddle.optimizer``: optimisers with ``step()`` and ``clear_grad()``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.errors import InputError
from spmdsim.nn import SGD as CoreSGD
from spmdsim.nn import Adam as CoreAdam
from spmdsim.nn import Parameter


class _Gradients:
    """What all share."""

    parameters: list[Parameter]
    rate: float

    def clear_grad(self, set_to_zero: bool = True) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            if parameter.tensor is not None:
                parameter.tensor.grad = None

    def get_lr(self) -> float:
        """The learning rate."""
        return self.rate

    def set_lr(self, value: float) -> None:
        """Another learning rate from the next step on."""
        self.rate = float(value)


def _given(parameters: Sequence[Parameter] | None) -> list[Parameter]:
    if parameters is None:
        raise InputError("an optimiser needs parameters=model.parameters()")
    return list(parameters)


class SGD(_Gradients, CoreSGD):
    """Gradient descent."""

    def __init__(
        self, learning_rate: float = 0.001, parameters: Any = None, weight_decay: float | None = None
    ) -> None:
        super().__init__(_given(parameters), learning_rate, 0.0, weight_decay or 0.0)


class Momentum(_Gradients, CoreSGD):
    """Gradient descent with momentum."""

    def __init__(
        self,
        learning_rate: float = 0.001,
        momentum: float = 0.9,
        parameters: Any = None,
        use_nesterov: bool = False,
        weight_decay: float | None = None,
    ) -> None:
        super().__init__(
            _given(parameters), learning_rate, momentum, weight_decay or 0.0, nesterov=use_nesterov
        )


class Adam(_Gradients, CoreAdam):
    """Adam; weight decay is added to the gradient."""

    #: The weight decay if none is given, and whether it acts on the value itself.
    decay, decoupled = 0.0, False

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameters: Any = None,
        weight_decay: float | None = None,
    ) -> None:
        decay = self.decay if weight_decay is None else weight_decay
        own, self.added = (decay, 0.0) if self.decoupled else (0.0, decay)
        super().__init__(_given(parameters), learning_rate, (beta1, beta2), epsilon, own)

    def new_value(self, value: np.ndarray, gradient: np.ndarray, state: list[np.ndarray]) -> np.ndarray:
        """One step with bias-corrected moments."""
        if self.added:
            gradient = gradient + value.dtype.type(self.added) * value
        return super().new_value(value, gradient, state)


class AdamW(Adam):
    """Adam with decoupled weight decay, 0.01 if left out."""

    decay, decoupled = 0.01, True


def __getattr__(name: str) -> Any:
    from spmdsim.dialects.missing import not_covered

    raise not_covered(__name__, name, __all__, {"lr": "set_lr before each step"})


__all__ = ["SGD", "Adam", "AdamW", "Momentum"]
