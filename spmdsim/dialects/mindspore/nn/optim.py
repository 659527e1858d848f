"""Optimisers called with gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import spmdsim.ops as core
from spmdsim.dialects.mindspore.parameter import Parameter
from spmdsim.errors import InputError
from spmdsim.nn import SGD as CoreSGD
from spmdsim.nn import Adam as CoreAdam
from spmdsim.nn.optimisers import Optimiser
from spmdsim.tensor import Tensor


class Optimizer:
    """Base: one gradient per parameter, and a learning rate that may follow the steps.

    Args:
        params: the parameters, such as ``net.trainable_params()``.
        learning_rate: a number, one number per step (the last one stays), or a function of the step.
        weight_decay: added to the gradient, times the parameter.
        inner: makes our optimiser from parameters and a first rate.
    """

    def __init__(self, params: Iterable[Any], learning_rate: Any, weight_decay: float, inner: Any) -> None:
        self.parameters: list[Parameter] = list(params)
        for parameter in self.parameters:
            if not isinstance(parameter, Parameter):
                raise InputError(
                    f"an optimiser takes parameters, but got a {type(parameter).__name__}; groups with rates of their "
                    "own are not covered, nearest: one optimiser per group"
                )
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.global_step = 0
        self._inner: Optimiser = inner(self.parameters, self._rate())

    def _rate(self) -> float:
        rate = self.learning_rate
        if callable(rate):
            rate = rate(self.global_step)
        if isinstance(rate, (list, tuple, np.ndarray)) and np.ndim(rate):
            rate = rate[min(self.global_step, len(rate) - 1)]
        return float(rate)

    def __call__(self, grads: Iterable[Tensor | None]) -> bool:
        """Update all parameters.

        Raises:
            InputError: not one gradient per parameter.
        """
        given = list(grads)
        if len(given) != len(self.parameters):
            raise InputError(f"{len(given)} gradients were given for {len(self.parameters)} parameters")
        for parameter, gradient in zip(self.parameters, given):
            if gradient is not None:
                parameter.everywhere().grad = self._decayed(parameter, gradient)
            elif parameter.tensor is not None:
                parameter.tensor.grad = None
        self._inner.rate = self._rate()
        self._inner.parameters = [p for p in self.parameters if p.tensor is not None]
        self._inner.step()
        self.global_step += 1
        return True

    construct = __call__

    def get_lr(self) -> float:
        """The rate of the next step."""
        return self._rate()

    def _decayed(self, parameter: Parameter, gradient: Tensor) -> Tensor:
        if not self.weight_decay:
            return gradient
        return core.add(gradient, core.multiply(parameter.value.detach(), self.weight_decay))


class SGD(Optimizer):
    """Gradient descent with momentum, dampening, Nesterov's variant and weight decay."""

    def __init__(
        self,
        params: Iterable[Any],
        learning_rate: Any = 0.1,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        loss_scale: float = 1.0,
    ) -> None:
        _unscaled(loss_scale)
        if nesterov and (momentum <= 0 or dampening):
            raise InputError("nesterov needs a momentum above 0 and no dampening")
        super().__init__(
            params,
            learning_rate,
            weight_decay,
            lambda found, rate: CoreSGD(found, rate, momentum, dampening=dampening, nesterov=nesterov),
        )


class Momentum(SGD):
    """Gradient descent with momentum."""

    def __init__(
        self,
        params: Iterable[Any],
        learning_rate: Any,
        momentum: float,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(params, learning_rate, momentum, 0.0, weight_decay, use_nesterov, loss_scale)


class Adam(Optimizer):
    """Adam; weight decay is added to the gradient."""

    def __init__(
        self,
        params: Iterable[Any],
        learning_rate: Any = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        use_locking: bool = False,
        use_nesterov: bool = False,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
    ) -> None:
        _unscaled(loss_scale)
        if use_nesterov:
            raise InputError("Adam has no use_nesterov here; nearest: nn.SGD(..., nesterov=True)")
        super().__init__(
            params,
            learning_rate,
            weight_decay,
            lambda found, rate: CoreAdam(found, rate, (beta1, beta2), eps),
        )


def _unscaled(loss_scale: float) -> None:
    if loss_scale != 1.0:
        raise InputError(f"gradients are not scaled here, but loss_scale is {loss_scale}; nearest: 1.0")


__all__ = ["SGD", "Adam", "Momentum", "Optimizer"]
