"""Optimisers of ours, made with MindSpore's arguments and called with gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spmdsim import nn
from spmdsim.dialects.mindspore.parameter import Parameter
from spmdsim.dialects.mindspore.runtime import Room, reserve
from spmdsim.dialects.missing import Worded, each
from spmdsim.dialects.table import renamed
from spmdsim.errors import InputError, UsageTypeError
from spmdsim.layout.element_type import accumulator
from spmdsim.tensor import Tensor


class Optimizer(Worded, nn.Optimiser):
    """One gradient per parameter, and a learning rate that may follow the steps.

    Args:
        parameters: such as ``net.trainable_params()``.
        rate: a number, one number per step (the last one stays), or a function of the step.
        **options: what else our optimiser takes.
    """

    ORIGINAL = "mindspore.nn.Optimizer"
    NEAREST = each({
        "param_groups groups target is_group params group_params group_lr": "parameters, and one optimiser per group",
        "state_dict load_state_dict": "save_checkpoint",
        "get_weight_decay get_lr_parameter dynamic_lr": "get_lr",
        "clone_state": "Parameter.clone",
        "unique parameters_groups": "parameters",
    })  # fmt: skip

    def __init__(self, parameters: Iterable[Any], rate: Any, **options: Any) -> None:
        if not isinstance(parameters, Iterable) or isinstance(parameters, str):
            raise UsageTypeError(
                f"an optimiser takes an iterable of parameters, not a {type(parameters).__name__}; nearest: net.trainable_params()"
            )
        trained = list(parameters)
        if not trained:
            raise InputError("an optimiser takes parameters, but got none; nearest: net.trainable_params()")
        other = next((x for x in trained if not isinstance(x, Parameter)), None)
        if other is not None:
            raise InputError(
                f"an optimiser takes parameters, but got a {type(other).__name__}; groups with rates of their "
                "own are not covered, nearest: one optimiser per group"
            )
        self.learning_rate, self.global_step = rate, 0
        self._room: dict[int, list[Room]] = {}
        super().__init__(trained, self.get_lr(), **options)

    def get_lr(self) -> float:
        """The rate of the next step."""
        rate = self.learning_rate
        if callable(rate):
            rate = rate(self.global_step)
        if isinstance(rate, (list, tuple)) or (hasattr(rate, "shape") and rate.shape):
            rate = rate[min(self.global_step, len(rate) - 1)]
        if isinstance(rate, (str, bool)) or not hasattr(rate, "__float__"):
            raise UsageTypeError(
                f"learning_rate is a number, numbers or a function of the step, not {rate!r}; nearest: 0.1"
            )
        return float(rate)

    def __call__(self, grads: Iterable[Tensor | None]) -> bool:
        """Update all parameters; an InputError for not one gradient per parameter."""
        if not isinstance(grads, Iterable):
            raise UsageTypeError(
                f"an optimiser is called with gradients, one per parameter, not with {grads!r}"
            )
        given = list(grads)
        if len(given) != len(self.parameters):
            raise InputError(f"{len(given)} gradients were given for {len(self.parameters)} parameters")
        self.zero_grad()
        for parameter, gradient in zip(self.parameters, given):
            if gradient is not None:
                parameter.everywhere()  # type: ignore[attr-defined]
                parameter.value.grad = gradient
        self.rate = self.get_lr()
        self.step()
        self.global_step += 1
        return True

    construct = __call__

    def __repr__(self) -> str:
        """Its class, as of a cell."""
        return f"{type(self).__name__}<>"

    def _updated(self, parameter: Any, gradient: Tensor) -> Tensor:
        if id(parameter) not in self._room:
            self._room[id(parameter)] = rooms = [Room() for _ in range(self.slots)]
            layout, kind = self.state_layout(parameter), accumulator("sum", parameter.dtype)
            for room in rooms:
                what = f"the optimiser's state of {parameter.name}, of shape {parameter.shape}"
                reserve(room, layout.largest_shape(parameter.shape), kind, what)
        return super()._updated(parameter, gradient)


class _SGD(Optimizer, nn.SGD):
    """Gradient descent with momentum, dampening, Nesterov's variant and weight decay."""


class _Adam(Optimizer, nn.Adam):
    """Adam; weight decay is added to the gradient."""


def _options(loss_scale: float, refused: str, **options: Any) -> dict[str, Any]:
    if loss_scale != 1.0:
        raise InputError(f"gradients are not scaled here, but loss_scale is {loss_scale}; nearest: 1.0")
    if refused:
        raise InputError(refused)
    return options


SGD = renamed("SGD", _SGD, lambda params, learning_rate=0.1, momentum=0.0, dampening=0.0, weight_decay=0.0,
              nesterov=False, loss_scale=1.0: _options(
    loss_scale, "nesterov needs a momentum above 0 and no dampening" * bool(nesterov and (momentum <= 0 or dampening)),
    parameters=params, rate=learning_rate, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
    nesterov=nesterov))  # fmt: skip
Momentum = renamed("Momentum", SGD, lambda params, learning_rate, momentum, weight_decay=0.0, loss_scale=1.0,
                   use_nesterov=False: dict(
    params=params, learning_rate=learning_rate, momentum=momentum, weight_decay=weight_decay, nesterov=use_nesterov,
    loss_scale=loss_scale))  # fmt: skip
Adam = renamed("Adam", _Adam, lambda params, learning_rate=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, use_locking=False,
               use_nesterov=False, weight_decay=0.0, loss_scale=1.0: _options(
    loss_scale, "Adam has no use_nesterov here; nearest: nn.SGD(..., nesterov=True)" * bool(use_nesterov),
    parameters=params, rate=learning_rate, betas=(beta1, beta2), epsilon=eps, weight_decay=weight_decay,
    decoupled=False))  # fmt: skip
