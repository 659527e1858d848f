"""``oneflow.optim``: optimisers with ``step()`` and ``zero_grad()``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spmdsim.nn import SGD as CoreSGD
from spmdsim.nn import Adam as CoreAdam
from spmdsim.nn import Parameter


class _Gradients:
    """What both optimisers share."""

    parameters: list[Parameter]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            if parameter.tensor is not None:
                parameter.tensor.grad = None


class SGD(_Gradients, CoreSGD):
    """Gradient descent with momentum and weight decay."""

    def __init__(
        self,
        params: Iterable[Parameter],
        lr: float = 0.001,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(list(params), lr, momentum, weight_decay, dampening=dampening, nesterov=nesterov)


class Adam(_Gradients, CoreAdam):
    """Adam without weight decay."""

    def __init__(
        self,
        params: Iterable[Parameter],
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(list(params), lr, betas, eps)


class AdamW(_Gradients, CoreAdam):
    """Adam with decoupled weight decay."""

    def __init__(
        self,
        params: Iterable[Parameter],
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(list(params), lr, betas, eps, weight_decay)


def __getattr__(name: str) -> Any:
    from spmdsim.dialects.missing import not_covered

    raise not_covered(__name__, name, __all__, {"lr_scheduler": "optimiser.rate, set before each step"})


__all__ = ["SGD", "Adam", "AdamW"]
