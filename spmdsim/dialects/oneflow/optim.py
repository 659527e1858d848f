"""``oneflow.optim``: optimisers with ``step()`` and ``zero_grad()``."""

from spmdsim import nn
from spmdsim.dialects.missing import refusal
from spmdsim.dialects.table import renamed


class _Gradients(nn.Optimiser):
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        super().zero_grad()


SGD = renamed("SGD", nn.SGD, lambda params, lr=0.001, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False: dict(
    parameters=list(params), rate=lr, momentum=momentum, weight_decay=weight_decay, dampening=dampening,
    nesterov=nesterov), _Gradients)  # fmt: skip
Adam = renamed("Adam", nn.Adam, lambda params, lr=0.001, betas=(0.9, 0.999), eps=1e-8: dict(
    parameters=list(params), rate=lr, betas=betas, epsilon=eps), _Gradients)  # fmt: skip
AdamW = renamed("AdamW", nn.Adam, lambda params, lr=0.001, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01: dict(
    parameters=list(params), rate=lr, betas=betas, epsilon=eps, weight_decay=weight_decay), _Gradients)  # fmt: skip

__all__ = ["SGD", "Adam", "AdamW"]
__getattr__ = refusal(__name__, __all__, {"lr_scheduler": "optimiser.rate, set before each step"})
