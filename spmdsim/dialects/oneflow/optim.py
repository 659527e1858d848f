"""``oneflow.optim``: optimisers with ``step()`` and ``zero_grad()``."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from spmdsim import nn
from spmdsim.dialects.missing import DialectObject, add_words
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.table import adapt_class


class _Gradients(DialectObject, nn.Optimiser):
    """Base of OneFlow's optimisers."""

    ORIGINAL = "oneflow.optim.Optimizer"

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients; ``set_to_none`` is ignored."""
        super().zero_grad()


class _DampedFromTheStart(nn.SGD):
    """SGD with OneFlow's dampening of the first gradient."""

    def new_value(self, value: np.ndarray, gradient: np.ndarray, state: list[np.ndarray]) -> np.ndarray:
        """Return a parameter's new values.

        The first gradient is dampened too, because the velocity begins as zeros.
        """
        self.count = max(self.count, 2)
        return super().new_value(value, gradient, state)


def _list_parameters(params: Any) -> list[Any]:
    """Check an optimiser's argument ``params``, and return it as a new list of parameters.

    Args:
        params: an iterable of parameters.

    Raises:
        OneFlowError: If it is a single parameter, a module or a text, if it is no iterable or an empty one, or if an
            element is no parameter (groups of parameters are not supported).
    """
    is_single = isinstance(params, (nn.Parameter, nn.Module, str)) or not isinstance(params, Iterable)
    listed = [params] if is_single else list(params)
    if not listed:
        raise OneFlowError("optimizer got an empty parameter list; nearest: model.parameters()")
    for parameter in listed:
        if not isinstance(parameter, nn.Parameter) or parameter is params:
            raise OneFlowError(
                f"params must be a list of parameters, got a {type(parameter).__name__}; nearest: "
                "model.parameters(), and one optimizer per group"
            )
    return listed


SGD = adapt_class("SGD", _DampedFromTheStart, lambda params, lr=0.001, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False: dict(
    parameters=_list_parameters(params), rate=lr, momentum=momentum, weight_decay=weight_decay, dampening=dampening,
    nesterov=nesterov), _Gradients)  # fmt: skip


def _adam(name: str, decay: float, about: str) -> Any:
    """Create Adam or AdamW; ``decay`` is the default weight decay, ``about`` the docstring."""
    return adapt_class(name, nn.Adam, lambda params, lr=0.001, betas=(0.9, 0.999), eps=1e-8, weight_decay=decay, amsgrad=False,
        do_bias_correction=True, contiguous_params=False, fused=False: dict(
        parameters=_list_parameters(params), rate=lr, betas=betas, epsilon=eps, weight_decay=weight_decay, amsgrad=amsgrad,
        decoupled=name == "AdamW", bias_correction=do_bias_correction), _Gradients, __doc__=about)  # fmt: skip


Adam = _adam("Adam", 0.0, "Adam; weight decay is added to the gradient.")
AdamW = _adam("AdamW", 0.01, "Adam, with weight decay that acts on the value itself.")

add_words(__name__)
