"""``paddle.optimizer``: optimisers with ``minimize()``, ``step()`` and ``clear_grad()``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spmdsim import nn
from spmdsim.arrays import Tensor, ops
from spmdsim.arrays.ops.dim_reductions import to_sum_type, to_type
from spmdsim.core.tape import OpNode
from spmdsim.dialects.missing import DialectObject, add_words, refuse
from spmdsim.dialects.paddle import static
from spmdsim.dialects.paddle.parameters import ParamAttr
from spmdsim.dialects.paddle.tensors import check_needs_gradient
from spmdsim.dialects.table import adapt_class
from spmdsim.errors import UsageTypeError


@dataclass(frozen=True)
class L2Decay:
    """Penalty on large parameters: ``coeff / 2`` times the sum of squares is added to the loss."""

    coeff: float = 0.0

    def slope(self, value: Any) -> Any:
        """Return the penalty's gradient: ``coeff * value``."""
        return ops.multiply(to_sum_type(value), float(self.coeff))


class L1Decay(L2Decay):
    """Penalty on large parameters: ``coeff`` times the sum of absolute values is added to the loss."""

    def slope(self, value: Any) -> Any:
        """Return the penalty's gradient: ``coeff * sign(value)``."""
        return super().slope(ops.sign(to_sum_type(value)))


@dataclass(frozen=True)
class ClipGradByNorm:
    """Gradient clip that scales each gradient before a step so that its norm is at most ``clip_norm``."""

    clip_norm: float

    def __call__(self, parameters: Sequence[Any]) -> None:
        """Replace the gradient of each parameter by a scaled one if its norm is over ``clip_norm``."""
        for parameter in parameters:
            ClipGradByGlobalNorm(self.clip_norm)([parameter])


@dataclass(frozen=True)
class ClipGradByGlobalNorm(ClipGradByNorm):
    """Gradient clip that scales all gradients by one factor, to a global norm of at most ``clip_norm``."""

    group_name: str = "default_group"
    auto_skip_clip: bool = False

    def __call__(self, parameters: Sequence[Any]) -> None:
        """Replace all gradients by scaled ones if their global norm is over ``clip_norm``.

        All ranks must call it. The gradients keep their element types.
        """
        factor = self.clip_norm / max(nn.global_norm(parameters), self.clip_norm)
        for parameter in parameters if factor < 1 else ():
            scaled = ops.multiply(to_sum_type(parameter.grad), factor)
            parameter.value.grad = to_type(scaled, parameter.grad.dtype)


class ClipGradByValue:
    """Gradient clip to ``[min, max]``, element by element; ``min`` is ``-max`` by default.

    Raises:
        InputError: If ``min`` is over ``max``.
    """

    def __init__(self, max: float, min: float | None = None) -> None:
        self.max, self.min = float(max), float(-max if min is None else min)
        refuse({
            f"ClipGradByValue: min must be at most max, got min {self.min} and max {self.max}": self.min > self.max
        })  # fmt: skip

    def __call__(self, parameters: Sequence[Any]) -> None:
        """Replace the gradients of the parameters by clipped ones."""
        for parameter in parameters:
            parameter.value.grad = ops.minimum(ops.maximum(parameter.grad, self.min), self.max)


class Optimizer(DialectObject, nn.Optimiser):
    """Base of Paddle's optimisers.

    Args:
        parameters: the parameters; None trains those of the default program, which needs static mode or neither mode.
        rate: learning rate, a number.
        weight_decay: regularizer, or a number for ``L2Decay``, of parameters without a regularizer of their own.
        grad_clip: gradient clip, or None.
        options: arguments of our optimiser.

    Raises:
        UsageTypeError: If ``parameters`` is a single one or no iterable.
        InputError: If another argument is not supported.
    """

    ORIGINAL = "paddle.optimizer.Optimizer"

    def __init__(
        self, parameters: Any, rate: Any, weight_decay: Any = None, grad_clip: Any = None, **options: Any
    ) -> None:
        kinds = [type(x).__name__ for x in (parameters, rate, weight_decay, grad_clip)]
        is_single = isinstance(parameters, (nn.Parameter, nn.Module, Tensor, str)) or not isinstance(
            parameters, Iterable | None
        )
        refuse(
            {f"parameters must be a list or tuple of parameters, got a {kinds[0]}": is_single}, UsageTypeError
        )
        listed = None if parameters is None else list(parameters)
        number = isinstance(weight_decay, (int, float))
        refuse({
            f"learning_rate must be a number here, got a {kinds[1]}; nearest: set_lr before each step": not isinstance(rate, (int, float)),
            "parameters argument given to the Optimizer should not be None in dygraph mode; nearest: parameters=model.parameters()":
                parameters is None and static.in_dynamic_mode(),
            "parameters in groups are not covered; nearest: ParamAttr(learning_rate=, regularizer=) of each parameter":
                any(isinstance(x, dict) for x in listed or ()),
            f"weight_decay must be a number, L2Decay or L1Decay, got a {kinds[2]}; nearest: 0.0":
                not (number or weight_decay is None or hasattr(weight_decay, "slope")),
            f"grad_clip must be a class of paddle.nn, got a {kinds[3]}; nearest: ClipGradByGlobalNorm(1.0)":
                not isinstance(grad_clip, (ClipGradByNorm, ClipGradByValue, type(None))),
            "AdamW has no lr_ratio here; nearest: ParamAttr(learning_rate=...)": options.pop("lr_ratio", None) is not None,
        })  # fmt: skip
        self.regularization, self.grad_clip = L2Decay(weight_decay) if number else weight_decay, grad_clip
        self._decay, self._decays = options.pop("decoupled_decay", 0.0), options.pop("decays", None)
        super().__init__(listed or [], rate, **options)
        self._listed = listed and self.parameters

    def minimize(
        self, loss: Any, startup_program: Any = None, parameters: Any = None, no_grad_set: Any = None
    ) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """Update parameters by the gradients of a loss; in a program, record this step for each run.

        Gradients are computed first, unless ``loss.backward()`` has run already.

        Args:
            loss: a tensor of one element that depends on a trained parameter, or a variable of a program.
            startup_program: program whose run resets the optimiser; None for the default startup program. Only used if
                the step is recorded.
            parameters: parameters or names to train; None for those of the optimiser.
            no_grad_set: parameters or names to leave out; None for none.

        Returns:
            ``([], pairs)``. The first list is always empty, as in Paddle. A pair is a parameter and its gradient, or in
            a program the gradient's name, such as ``(w, "w@GRAD")``. Parameters without gradient are left out; if the
            loss is a variable, all chosen parameters are listed.

        Raises:
            InputError: If the loss has several elements, or no parameter is left to train.
            UsageTypeError: If nothing that the loss was computed from needs a gradient.
        """
        passed = isinstance(getattr(loss, "node", None), OpNode) and loss.node.spent
        if not passed:
            check_needs_gradient(loss, "minimize(loss)")
        symbolic = isinstance(loss, static.Variable)
        program = loss.program if symbolic else static.default_main_program()
        chosen = _select_parameters(self._trained(program), parameters, no_grad_set, program)
        refuse({
            f"minimize: loss must have one element, got shape {list(loss.shape)}; nearest: paddle.mean(loss)": math.prod(loss.shape) != 1,
            "minimize: the loss must depend on a parameter that is trained, got none; give parameters=model.parameters()": not chosen,
        })  # fmt: skip
        if symbolic or static.in_static_mode():
            (startup_program or static.default_startup_program()).optimizers.append(self)
            program.call(self._train, (loss, chosen, passed), {}, trains=True)
        else:
            self._train(loss, chosen, passed)
        if symbolic:
            return [], [(x, f"{x.name}@GRAD") for x in chosen]
        return [], [(x, x.grad) for x in chosen if x.grad is not None]

    def _train(self, loss: Any, chosen: list[Any], passed: bool) -> None:
        """Compute the gradients of a loss, and run a step on some parameters.

        Gradients that the parameters have are dropped first.
        """
        if not passed:
            for parameter in chosen:
                parameter.value.grad = None
            nn.backward(loss)
        self._step(chosen)

    def step(self) -> None:
        """Update all parameters that have a gradient."""
        self._step(self._trained())

    def _trained(self, program: static.Program | None = None) -> list[Any]:
        """Return the parameters that the constructor was given; without any, those of a program.

        ``program`` None stands for the default main program.
        """
        if self._listed is None:
            return (program or static.default_main_program()).all_parameters()
        return self._listed

    def _step(self, chosen: list[Any]) -> None:
        """Clip the gradients and update parameters in place; those without a gradient stay.

        The gradients of parameters with ``need_clip=False`` are not clipped.
        """
        text = "an optimiser needs parameters=model.parameters(): the default program has none"
        refuse({text: not chosen})
        self.parameters = chosen
        if self.grad_clip is not None:
            self.grad_clip([x for x in chosen if x.grad is not None and _attribute(x).need_clip])
        super().step()

    def _compute_updated_value(self, parameter: Any, gradient: Tensor) -> Tensor:
        """Return a parameter's new value, with its own regularizer and factor of the learning rate.

        A parameter without a regularizer has the optimiser's. Decoupled decay (of AdamW) acts on parameters whose name
        ``apply_decay_param_fun`` accepts, or on all. The optimiser's ``rate`` is set for the call and restored after
        it.

        Args:
            parameter: the parameter; it is not changed.
            gradient: its gradient.
        """
        attribute, rate = _attribute(parameter), self.rate
        if (regularizer := attribute.regularizer or self.regularization) is not None:
            gradient = ops.add(to_sum_type(gradient), regularizer.slope(parameter.value.detach()))
        self.rate = rate * attribute.learning_rate
        decays = self._decays is None or self._decays(parameter.name)
        vars(self)["weight_decay"] = self._decay if decays else 0.0
        try:
            return super()._compute_updated_value(parameter, gradient)
        finally:
            self.rate = rate

    def clear_grad(self, set_to_zero: bool = True) -> None:
        """Drop all gradients; ``set_to_zero`` is ignored."""
        self.parameters = self._trained()
        self.zero_grad()

    clear_gradients = clear_grad

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state as tensors by name; see :meth:`spmdsim.nn.Optimiser.state_dict`."""
        self.parameters = self._trained()
        return super().state_dict()

    def set_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Set the state that :meth:`state_dict` returned."""
        self.load_state_dict(state_dict)

    def get_lr(self) -> float:
        """Return the learning rate."""
        return self.rate

    def set_lr(self, value: float) -> None:
        """Set the learning rate of the next steps."""
        self.rate = float(value)


def _select_parameters(
    parameters: Sequence[Any], wanted: Any, without: Any, program: static.Program
) -> list[Any]:
    """Return the parameters to train, without those that are not trainable."""
    chosen = parameters if wanted is None else [program.var(x) if isinstance(x, str) else x for x in wanted]
    omitted = {x if isinstance(x, str) else x.name for x in without or ()}
    return [x for x in chosen if getattr(x, "trainable", True) and x.name not in omitted]


_PLAIN = ParamAttr()


def _attribute(parameter: Any) -> Any:
    """Return a parameter's `ParamAttr`, or the default one."""
    return getattr(parameter, "attribute", _PLAIN)


SGD = adapt_class("SGD", nn.SGD, lambda learning_rate=0.001, parameters=None, weight_decay=None, grad_clip=None, name=None: dict(
    parameters=parameters, rate=learning_rate, weight_decay=weight_decay, grad_clip=grad_clip), Optimizer)  # fmt: skip
Momentum = adapt_class("Momentum", nn.SGD, lambda learning_rate=0.001, momentum=0.9, parameters=None, use_nesterov=False,
    weight_decay=None, grad_clip=None, name=None: dict(parameters=parameters, rate=learning_rate,
    weight_decay=weight_decay, grad_clip=grad_clip, momentum=momentum, nesterov=use_nesterov), Optimizer)  # fmt: skip
Adam = adapt_class("Adam", nn.Adam, lambda learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8, parameters=None,
    weight_decay=None, grad_clip=None, name=None: dict(parameters=parameters, rate=learning_rate,
    weight_decay=weight_decay, grad_clip=grad_clip, betas=(beta1, beta2), epsilon=epsilon), Optimizer)  # fmt: skip
AdamW = adapt_class("AdamW", nn.Adam, lambda learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8, parameters=None,
    weight_decay=0.01, lr_ratio=None, apply_decay_param_fun=None, grad_clip=None, name=None: dict(parameters=parameters,
    rate=learning_rate, decoupled_decay=weight_decay, decays=apply_decay_param_fun, lr_ratio=lr_ratio, grad_clip=grad_clip,
    betas=(beta1, beta2), epsilon=epsilon), Optimizer, __doc__="Adam whose weight decay acts on the value itself.")  # fmt: skip

add_words(__name__)
