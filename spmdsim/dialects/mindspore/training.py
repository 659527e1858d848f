"""Training: gradients of functions, optimisers of ours with MindSpore's arguments, and models trained by one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from spmdsim import nn
from spmdsim.arrays import Tensor, checkpoint, ops
from spmdsim.core.tensor import Meta
from spmdsim.dialects.host import equal_on_all_ranks
from spmdsim.dialects.mindspore.auto_parallel import AutoParallel, numbers
from spmdsim.dialects.mindspore.cells import Cell
from spmdsim.dialects.mindspore.context import outermost, parallel
from spmdsim.dialects.mindspore.parameter import Parameter, over_ranks
from spmdsim.dialects.mindspore.tensors import dressed
from spmdsim.dialects.missing import DialectObject, refuse
from spmdsim.dialects.session import current_world
from spmdsim.dialects.table import flat, renamed
from spmdsim.errors import InputError, UsageTypeError, many
from spmdsim.layout.element_type import has_gradient

Positions = int | Sequence[int] | None
Weights = Sequence[Parameter] | Parameter | None


def value_and_grad(
    fn: Callable[..., Any], grad_position: Positions = 0, weights: Weights = None, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns ``fn``'s result, and gradients of inputs, of weights, or of both.

    ``fn`` returns the loss, or a tuple whose first element is the loss. The others get no gradient, whether ``has_aux`` says
    so or not: the tutorial's text leaves it out and means this. Inputs are meant by number (one gradient) or numbers (a
    tuple), weights as parameters, such as ``optimizer.parameters`` (a tuple), or one.

    What the loss does not depend on has gradients of zero, as in MindSpore. In a parallel program the gradients are those
    of the sum of all ranks' losses, or their mean (:mod:`spmdsim.dialects.mindspore.context`). Neither inputs nor
    weights, or a position that there is not, are an InputError.
    """
    if grad_position is None and weights is None:
        raise InputError("value_and_grad needs a grad_position, weights or both")
    wanted = [weights] if isinstance(weights, Parameter) else list(weights or ())
    places = () if grad_position is None else grad_position
    positions = (places,) if isinstance(places, int) else tuple(places)

    def both(*inputs: Any) -> tuple[Any, Any]:
        arguments = list(inputs)
        for k in positions:
            if not -len(arguments) <= k < len(arguments):
                raise InputError(
                    f"grad_position is {grad_position}, but there {'is' if len(arguments) == 1 else 'are'} "
                    f"{many(len(arguments), 'input')}"
                )
            arguments[k] = _leaf(arguments[k])
        for parameter in wanted:
            if parameter.tensor is not None:
                parameter.tensor.grad = None
        result = fn(*arguments)
        loss = result[0] if isinstance(result, tuple) else result
        settings = parallel()
        times = 1 if settings is None else settings.factor(loss)
        if isinstance(loss, Tensor) and loss.requires_grad:
            # every element counts with a gradient of one
            nn.backward(loss if loss.size == 1 else ops.sum(loss))
        of_inputs = tuple(_times(arguments[k], times) for k in positions)
        shares = [1 if settings is None else settings.divisor(p.used) for p in wanted]
        of_weights = tuple(_times(p, times / share) for p, share in zip(wanted, shares))
        # a single thing asked for comes alone, several in a tuple; inputs before weights
        first = of_inputs[0] if isinstance(grad_position, int) else of_inputs
        second = of_weights[0] if isinstance(weights, Parameter) else of_weights
        if grad_position is None:
            return result, second
        return result, first if weights is None else (first, second)

    return partial(outermost, both)


def grad(
    fn: Callable[..., Any], grad_position: Positions = 0, weights: Weights = None, has_aux: bool = False
) -> Callable[..., Any]:
    """The gradients of :func:`value_and_grad` alone; with ``has_aux`` and the further results beside them."""
    both = value_and_grad(fn, grad_position, weights, has_aux)

    def wrapped(*inputs: Any) -> Any:
        result, gradients = both(*inputs)
        return (gradients, result[1:]) if has_aux else gradients

    return wrapped


def _times(source: Tensor | Parameter, times: float) -> Tensor | None:
    """The gradient of an input or a parameter, so many times: zeros where nothing came; None of numbers that have none."""
    leaf: Tensor | None = source if isinstance(source, Tensor) else source.tensor
    gradient = None if leaf is None else leaf.grad
    if gradient is not None:
        return dressed(gradient if times == 1 else ops.multiply(gradient, times))
    if not has_gradient(source.dtype):
        return None
    world, shape = current_world(), source.shape
    layout = (
        over_ranks(len(shape)) if leaf is None else leaf.layout.dual()
    )  # a parameter stays without a place
    make = np.zeros if world.has_data else world.empty
    shards = [make(layout.local_shape(shape, rank), source.dtype) for rank in world.ranks]
    return dressed(Tensor(world, Meta.of(layout, shape, source.dtype), shards))


def _leaf(operand: Any) -> Tensor:
    """An input that gathers a gradient, if its numbers have one."""
    if not isinstance(operand, Tensor):
        array = equal_on_all_ranks(operand, current_world())
        operand = Tensor.from_global(array, over_ranks(array.ndim), current_world())
    tracked = has_gradient(operand.dtype)
    return Tensor(operand.world, operand.meta, operand.held, tracked, operand.name, operand.origin)


class Optimizer(DialectObject, nn.Optimiser):
    """One gradient per parameter, and a rate: a number, one per step (the last one stays), or a function of the step."""

    weight_decay: float

    saved_numbers = ("global_step",)  # the rate follows from it

    ORIGINAL = "mindspore.nn.Optimizer"

    def __init__(self, parameters: Iterable[Any], rate: Any, **options: Any) -> None:
        refuse({
            f"an optimiser takes an iterable of parameters, not a {type(parameters).__name__}; nearest: net.trainable_params()":
                not isinstance(parameters, Iterable) or isinstance(parameters, str),
        }, UsageTypeError)  # fmt: skip
        trained = list(parameters)
        other = next((type(x).__name__ for x in trained if not isinstance(x, Parameter)), "")
        refuse({
            "an optimiser takes parameters, but got none; nearest: net.trainable_params()": not trained,
            f"an optimiser takes parameters, but got a {other}; groups with rates of their own are not covered, nearest: one "
            "optimiser per group": bool(other),
        })  # fmt: skip
        self.learning_rate, self.global_step = rate, 0
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
        gradients = list(grads)
        if len(gradients) != len(self.parameters):
            raise InputError(
                f"{many(len(gradients), 'gradient was', 'gradients were')} given for {many(len(self.parameters), 'parameter')}"
            )
        self.zero_grad()
        for parameter, gradient in zip(self.parameters, gradients):
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
        decay = self.weight_decay
        if "beta" in parameter.name or "gamma" in parameter.name:
            self.weight_decay = 0.0  # as MindSpore does where parameters stand in no groups
        updated = super()._updated(parameter, gradient)
        self.weight_decay = decay
        return updated


def _options(loss_scale: float, refused: str, **options: Any) -> dict[str, Any]:
    scaled = f"gradients are not scaled here, but loss_scale is {loss_scale}; nearest: 1.0"
    refuse({scaled: loss_scale != 1.0, refused: bool(refused)})
    return options


SGD = renamed("SGD", nn.SGD, lambda params, learning_rate=0.1, momentum=0.0, dampening=0.0, weight_decay=0.0,
              nesterov=False, loss_scale=1.0: _options(
    loss_scale, "nesterov needs a momentum above 0 and no dampening" * bool(nesterov and (momentum <= 0 or dampening)),
    parameters=params, rate=learning_rate, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
    nesterov=nesterov), Optimizer,
    __doc__="Gradient descent with momentum, dampening, Nesterov's variant and weight decay.")  # fmt: skip
Momentum = renamed("Momentum", SGD, lambda params, learning_rate, momentum, weight_decay=0.0, loss_scale=1.0,
                   use_nesterov=False: dict(
    params=params, learning_rate=learning_rate, momentum=momentum, weight_decay=weight_decay, nesterov=use_nesterov,
    loss_scale=loss_scale))  # fmt: skip
Adam = renamed("Adam", nn.Adam, lambda params, learning_rate=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, use_locking=False,
               use_nesterov=False, weight_decay=0.0, loss_scale=1.0, use_amsgrad=False: _options(
    loss_scale, "Adam has no use_nesterov here; nearest: nn.SGD(..., nesterov=True)" * bool(use_nesterov),
    parameters=params, rate=learning_rate, betas=(beta1, beta2), epsilon=eps, weight_decay=weight_decay,
    decoupled=False, amsgrad=use_amsgrad, epsilon_hat=True), Optimizer,
    __doc__="Adam; weight decay is added to the gradient, ``eps`` to the root of the second moment as it is.")  # fmt: skip


class WithLossCell(Cell):
    """A network with its loss."""

    def __init__(self, backbone: Any, loss_fn: Any) -> None:
        self._backbone, self._loss_fn = backbone, loss_fn

    def construct(self, data: Any, label: Any) -> Any:
        """The loss."""
        return self._loss_fn(self._backbone(data), label)


class TrainOneStepCell(Cell):
    """One step of training: the loss, its gradients, and the optimiser's update."""

    def __init__(self, network: Any, optimizer: Any, sens: float = 1.0) -> None:
        refuse(
            {f"the loss is not scaled here, but sens is {sens}; nearest: a larger learning rate": sens != 1.0}
        )
        self.network, self.optimizer = network, optimizer

    def construct(self, *inputs: Any) -> Any:
        """The loss before the update."""
        loss, gradients = value_and_grad(self.network, None, self.optimizer.parameters)(*inputs)
        self.optimizer(gradients)
        return loss


class RunContext:
    """What callbacks are given: the state of the training, and a way to end it."""

    def __init__(self, **state: Any) -> None:
        self._state, self._stop = SimpleNamespace(**state), False

    def original_args(self) -> SimpleNamespace:
        """``cur_epoch_num``, ``cur_step_num`` (over all epochs), ``batch_num``, ``epoch_num``, ``net_outputs`` and the rest."""
        return self._state

    def request_stop(self) -> None:
        """End the training after this step."""
        self._stop = True

    def get_stop_requested(self) -> bool:
        """Whether somebody wants it to end."""
        return self._stop


class Callback:
    """Told of what begins and ends, each time with a :class:`RunContext`: override what is wanted, under either name.

    ``begin``, ``epoch_begin``, ``step_begin``, ``step_end``, ``epoch_end`` and ``end``, or ``on_train_begin`` and so on.
    """


def _told(event: str) -> Callable[[Callback, RunContext], None]:
    return lambda self, run_context: getattr(self, event)(run_context)


for _event in ("begin", "epoch_begin", "step_begin", "step_end", "epoch_end", "end"):
    setattr(Callback, _event, lambda self, run_context: None)
    setattr(Callback, f"on_train_{_event}", _told(_event))


class LossMonitor(Callback):
    """Prints the loss every so many steps: ``per_print_times``."""

    def __init__(self, per_print_times: int = 1) -> None:
        self.every, self.count = per_print_times, 0

    def step_end(self, run_context: RunContext) -> None:
        """Print as MindSpore does, counting from one in each epoch."""
        self.count += 1
        if self.every and self.count % self.every == 0:
            state = run_context.original_args()
            step = state.cur_step_num - (state.cur_epoch_num - 1) * state.batch_num
            print(f"epoch: {state.cur_epoch_num} step: {step}, loss is {state.net_outputs}")


class Model(DialectObject):
    """A network, which may be an ``AutoParallel``, with its loss (inside of it if ``loss_fn`` is left out) and optimiser."""

    ORIGINAL = "mindspore.train.Model"

    def __init__(
        self, network: Any, loss_fn: Any = None, optimizer: Any = None, metrics: Any = None, **options: Any
    ) -> None:
        refuse({"Model has no metrics here; nearest: compute them from Model.predict": bool(metrics)})
        self.network = network
        self._step: Any = None
        if optimizer is not None:
            parallel = isinstance(network, AutoParallel)
            inside = network.program if parallel else network
            cell = TrainOneStepCell(inside if loss_fn is None else WithLossCell(inside, loss_fn), optimizer)
            self._step = network.around(cell) if parallel else cell

    def train(
        self, epoch: int, train_dataset: Any, callbacks: Any = None, dataset_sink_mode: bool = False, **_: Any
    ) -> None:
        """Train for so many epochs; an InputError for a model without an optimiser."""
        refuse({"a Model without an optimizer cannot be trained": self._step is None})
        sized = hasattr(train_dataset, "get_dataset_size")
        context = RunContext(
            train_network=self._step, network=self.network, epoch_num=epoch, cur_epoch_num=0, cur_step_num=0,
            batch_num=train_dataset.get_dataset_size() if sized else len(train_dataset),
            train_dataset=train_dataset, list_callback=flat([callbacks] if callbacks else []), net_outputs=None,
        )  # fmt: skip
        state = context.original_args()

        def tell(event: str) -> None:
            for callback in state.list_callback:
                getattr(callback, f"on_train_{event}")(context)

        tell("begin")
        for state.cur_epoch_num in range(1, epoch + 1):
            tell("epoch_begin")
            for batch in train_dataset:
                tell("step_begin")
                state.cur_step_num += 1
                state.net_outputs = numbers(self._step(*batch))
                tell("step_end")
                if context.get_stop_requested():
                    break
            tell("epoch_end")
            if context.get_stop_requested():
                break
        tell("end")

    def predict(self, *inputs: Any) -> Any:
        """The network's result."""
        return self.network(*inputs)


def save_checkpoint(save_obj: Any, ckpt_file_name: str | Path, **options: Any) -> None:
    """Write a cell's parameters, or a list of ``{"name": ..., "data": ...}``; all ranks must call it."""
    checkpoint.save(ckpt_file_name, {name: p.everywhere() for name, p in _named(save_obj)})


def load_checkpoint(ckpt_file_name: str | Path, net: Any = None) -> dict[str, Any]:
    """The parameters of a checkpoint by name, dim 0 over the ranks where it divides; an InputError for what is none."""
    if Path(ckpt_file_name).is_file():
        raise InputError(
            f"{ckpt_file_name} is a file of another program; checkpoints here are folders written by save_checkpoint"
        )
    world = current_world()
    parameters = checkpoint.load(
        ckpt_file_name,
        world,
        lambda _, shape: over_ranks(len(shape), bool(shape) and shape[0] % world.size == 0),
    )
    if net is not None:
        load_param_into_net(net, parameters)
    return parameters


def load_param_into_net(
    net: Any, parameter_dict: Mapping[str, Any], strict_load: bool = False
) -> tuple[list[str], list[str]]:
    """Give a cell the values of a checkpoint, by name; returns the names not loaded, and those left over.

    A value of another shape is an InputError; with ``strict_load`` names that are not met are, too.
    """
    wanted = dict(_named(net))
    for name, parameter in wanted.items():
        if name in parameter_dict:
            value = parameter_dict[name]
            parameter.set_data(value.asnumpy() if isinstance(value, Parameter) else value)
    missing = [name for name in wanted if name not in parameter_dict]
    extra = [name for name in parameter_dict if name not in wanted]
    if strict_load and (missing or extra):
        raise InputError(f"the checkpoint lacks {missing} and has {extra} that the network does not know")
    return missing, extra


def _named(parameters: Any) -> Iterable[tuple[str, Parameter]]:
    if hasattr(parameters, "get_parameters"):
        return [(p.name, p) for p in parameters.get_parameters()]
    if isinstance(parameters, (list, tuple)) and all(isinstance(e, Mapping) for e in parameters):
        parameters = {e["name"]: e["data"] for e in parameters}
    if isinstance(parameters, Mapping):
        return [(n, v if isinstance(v, Parameter) else Parameter(v, n)) for n, v in parameters.items()]
    raise InputError(
        f"save_checkpoint takes a cell, a list or a dict of parameters, not a {type(parameters).__name__}"
    )
