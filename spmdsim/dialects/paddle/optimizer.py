"""``paddle.optimizer``: optimisers with ``step()`` and ``clear_grad()``."""

from __future__ import annotations

from typing import Any

from spmdsim import nn
from spmdsim.dialects.missing import refusal
from spmdsim.dialects.table import renamed
from spmdsim.errors import InputError


class _Words(nn.Optimiser):
    def clear_grad(self, set_to_zero: bool = True) -> None:
        """Forget all gradients."""
        self.zero_grad()

    def get_lr(self) -> float:
        """The learning rate."""
        return self.rate

    def set_lr(self, value: float) -> None:
        """Another learning rate from the next step on."""
        self.rate = float(value)


def _arguments(parameters: Any, rate: float, decay: float | None, **options: Any) -> dict[str, Any]:
    if parameters is None:
        raise InputError("an optimiser needs parameters=model.parameters()")
    return {"parameters": list(parameters), "rate": rate, "weight_decay": decay or 0.0, **options}


SGD = renamed("SGD", nn.SGD, lambda learning_rate=0.001, parameters=None, weight_decay=None: _arguments(
    parameters, learning_rate, weight_decay), _Words)  # fmt: skip
Momentum = renamed("Momentum", nn.SGD, lambda learning_rate=0.001, momentum=0.9, parameters=None, use_nesterov=False,
    weight_decay=None: _arguments(parameters, learning_rate, weight_decay, momentum=momentum,
    nesterov=use_nesterov), _Words)  # fmt: skip


def _adam(name: str, default_decay: float, decoupled: bool, *bases: Any) -> Any:
    return renamed(name, nn.Adam, lambda learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8, parameters=None,
        weight_decay=None: _arguments(parameters, learning_rate, default_decay if weight_decay is None else weight_decay,
        betas=(beta1, beta2), epsilon=epsilon, decoupled=decoupled), *bases, _Words)  # fmt: skip


#: Weight decay is added to the gradient, or acts on the value itself.
Adam = _adam("Adam", 0.0, False)
AdamW = _adam("AdamW", 0.01, True, Adam)

__all__ = ["SGD", "Adam", "AdamW", "Momentum"]
__getattr__ = refusal(__name__, __all__, {"lr": "set_lr before each step"})
