"""Training: gradients of functions, our optimisers with MindSpore's arguments, and `Model`."""

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
from spmdsim.dialects.mindspore.context import call_outermost, parallel
from spmdsim.dialects.mindspore.parameter import Parameter, over_ranks
from spmdsim.dialects.mindspore.tensors import with_methods
from spmdsim.dialects.missing import DialectObject, refuse
from spmdsim.dialects.session import current_world
from spmdsim.dialects.table import adapt_class, flat
from spmdsim.errors import InputError, UsageTypeError, many
from spmdsim.layout.element_type import has_gradient

Positions = int | Sequence[int] | None
Weights = Sequence[Parameter] | Parameter | None


def value_and_grad(
    fn: Callable[..., Any], grad_position: Positions = 0, weights: Weights = None, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that computes ``fn`` and its gradients: ``(result, gradients)``.

    For example, with parameters v and w, a call with ``x`` returns:

    * ``value_and_grad(f)``: ``(f(x), dx)``, in which ``dx`` is the gradient of x;
    * ``value_and_grad(f, weights=[v, w])``: ``(f(x), (dx, (dv, dw)))``;
    * ``value_and_grad(f, None, weights=[v, w])``: ``(f(x), (dv, dw))``.

    Details:

    * The gradient of an input or parameter on which the loss does not depend is zeros. The gradient of an integer or
      bool is None.
    * A loss of several elements is summed.
    * In a parallel program, the gradients are those of the sum of all ranks' losses, or of their mean; see
      :class:`spmdsim.dialects.mindspore.context.Parallel`.
    * A call replaces the ``grad`` of the ``weights``.

    Args:
        fn: function that returns the loss, or a tuple whose first element is the loss.
        grad_position: position of the input (its gradient is returned alone), or several positions (a tuple of
            gradients); None for no input.
        weights: parameters (a tuple of gradients), or one parameter (its gradient alone); None for no parameter.
        has_aux: not used: elements of the result after the loss never get a gradient.

    Returns:
        The function, with the arguments of ``fn``. All ranks must call it.

    Raises:
        InputError: If ``grad_position`` and ``weights`` are None; in a call, if a position is out of range.
    """
    if grad_position is None and weights is None:
        raise InputError(
            "value_and_grad: grad_position or weights must be given, got None for both; nearest: grad_position=0"
        )
    wanted = [weights] if isinstance(weights, Parameter) else list(weights or ())
    places = () if grad_position is None else grad_position
    positions = (places,) if isinstance(places, int) else tuple(places)

    def both(*inputs: Any) -> tuple[Any, Any]:
        """Run ``fn`` and the backward pass; return the result and the gradients."""
        arguments = _replace_by_leaves(inputs, positions)
        for parameter in wanted:
            if parameter.tensor is not None:
                parameter.tensor.grad = None
        result = fn(*arguments)
        loss = result[0] if isinstance(result, tuple) else result
        settings = parallel()
        loss_factor = 1 if settings is None else settings.loss_factor(loss)
        if isinstance(loss, Tensor) and loss.requires_grad:
            # The gradient of every element is one.
            nn.backward(loss if loss.size == 1 else ops.sum(loss))
        of_inputs = tuple(_scaled_gradient(arguments[position], loss_factor) for position in positions)
        divisors = [1 if settings is None else settings.gradient_divisor(p.used) for p in wanted]
        of_weights = tuple(
            _scaled_gradient(parameter, loss_factor / divisor) for parameter, divisor in zip(wanted, divisors)
        )
        # One requested gradient is returned alone, several in a tuple; inputs come before weights.
        input_gradients = of_inputs[0] if isinstance(grad_position, int) else of_inputs
        weight_gradients = of_weights[0] if isinstance(weights, Parameter) else of_weights
        if grad_position is None:
            return result, weight_gradients
        return result, input_gradients if weights is None else (input_gradients, weight_gradients)

    return partial(call_outermost, both)


def _replace_by_leaves(inputs: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    """Return the inputs; those at ``positions`` are replaced by new tensors that collect gradients.

    An array at one of these positions becomes a replicated tensor. Inputs whose type has no gradient, such as int32,
    become tensors that collect none.

    Args:
        inputs: tensors or arrays; they are not changed.
        positions: indices of inputs; negative ones count from the end.

    Raises:
        InputError: If a position is out of range.
    """
    arguments = list(inputs)
    for k in positions:
        if not -len(arguments) <= k < len(arguments):
            raise InputError(
                f"grad_position must be in -{len(arguments)}..{len(arguments) - 1} for "
                f"{many(len(arguments), 'input')}, got {k}"
            )
        arguments[k] = _make_leaf(arguments[k])
    return arguments


def grad(
    fn: Callable[..., Any], grad_position: Positions = 0, weights: Weights = None, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that returns only the gradients of :func:`value_and_grad`.

    Args:
        fn: as in :func:`value_and_grad`.
        grad_position: as in :func:`value_and_grad`.
        weights: as in :func:`value_and_grad`.
        has_aux: True to return ``(gradients, further results)``: ``fn`` returns a tuple, and the results after the loss
            follow as a tuple.

    Raises:
        InputError: As :func:`value_and_grad`.
    """
    compute = value_and_grad(fn, grad_position, weights, has_aux)

    def wrapped(*inputs: Any) -> Any:
        result, gradients = compute(*inputs)
        return (gradients, result[1:]) if has_aux else gradients

    return wrapped


def _scaled_gradient(source: Tensor | Parameter, times: float) -> Tensor | None:
    """Return ``times`` the gradient that a backward pass has left in an input or a parameter.

    * If the loss does not depend on the source: zeros in the layout of the source's gradient (the dual of the source's
      layout). For a parameter that no operator has used, the zeros are replicated.
    * If the element type has no gradient, such as int32: None.

    Args:
        source: the input, or the parameter.
        times: the factor.
    """
    leaf: Tensor | None = source if isinstance(source, Tensor) else source.tensor
    gradient = None if leaf is None else leaf.grad
    if gradient is not None:
        return with_methods(gradient if times == 1 else ops.multiply(gradient, times))
    if not has_gradient(source.dtype):
        return None
    world, shape = current_world(), source.shape
    # Without a leaf, the source is a parameter that no operator has used; it stays without values.
    layout = over_ranks(len(shape)) if leaf is None else leaf.layout.dual()
    make = np.zeros if world.has_data else world.empty
    shards = [make(layout.local_shape(shape, rank), source.dtype) for rank in world.ranks]
    return with_methods(Tensor(world, Meta.of(layout, shape, source.dtype), shards))


def _make_leaf(operand: Any) -> Tensor:
    """Return an input as a new tensor that collects a gradient, if its type has one."""
    if not isinstance(operand, Tensor):
        array = equal_on_all_ranks(operand, current_world())
        operand = Tensor.from_global(array, over_ranks(array.ndim), current_world())
    return Tensor.from_tensor(operand, requires_grad=has_gradient(operand.dtype))


class Optimizer(DialectObject, nn.Optimiser):
    """Base of MindSpore's optimisers: called with one gradient per parameter.

    Args:
        parameters: the parameters.
        rate: a number, a list with one number per step (the last one stays), or a function of the step.
        options: arguments of our optimiser.

    Raises:
        UsageTypeError: If ``parameters`` is no iterable.
        InputError: If it is empty or has other elements.
    """

    weight_decay: float

    saved_numbers = ("global_step",)  # the learning rate depends on it

    ORIGINAL = "mindspore.nn.Optimizer"

    def __init__(self, parameters: Iterable[Any], rate: Any, **options: Any) -> None:
        refuse({
            f"params must be an iterable of parameters, got a {type(parameters).__name__}; nearest: net.trainable_params()":
                not isinstance(parameters, Iterable) or isinstance(parameters, str),
        }, UsageTypeError)  # fmt: skip
        trained = list(parameters)
        wrong_type = next((type(x).__name__ for x in trained if not isinstance(x, Parameter)), "")
        refuse({
            "params must have at least one parameter, got none; nearest: net.trainable_params()": not trained,
            f"params must have parameters only, got a {wrong_type}; groups with their own rates are not supported, nearest: one "
            "optimiser per group": bool(wrong_type),
        })  # fmt: skip
        self.learning_rate, self.global_step = rate, 0
        super().__init__(trained, self.get_lr(), **options)

    def get_lr(self) -> float:
        """Return the learning rate of the next step.

        The configured rate is one of these:

        * a number;
        * a list with a rate per step, whose last entry stays: ``[0.1, 0.01]`` is 0.1 in the first step and 0.01 later;
        * a function of the number of finished steps, which returns a number or a list with a rate per step.

        Raises:
            UsageTypeError: If the rate is not a number.
        """
        rate = self.learning_rate
        if callable(rate):
            rate = rate(self.global_step)
        if isinstance(rate, (list, tuple)) or (hasattr(rate, "shape") and rate.shape):
            rate = rate[min(self.global_step, len(rate) - 1)]
        if isinstance(rate, (str, bool)) or not hasattr(rate, "__float__"):
            raise UsageTypeError(
                f"learning_rate must be a number, a list of numbers or a function of the step, got {rate!r}; "
                "nearest: 0.1"
            )
        return float(rate)

    def __call__(self, grads: Iterable[Tensor | None]) -> bool:
        """Update all parameters and return True.

        Args:
            grads: one gradient per parameter; None leaves the parameter unchanged.

        Raises:
            UsageTypeError: If ``grads`` is no iterable.
            InputError: If there is not one gradient per parameter.
        """
        if not isinstance(grads, Iterable):
            raise UsageTypeError(f"grads must be a list with one gradient per parameter, got {grads!r}")
        gradients = list(grads)
        if len(gradients) != len(self.parameters):
            raise InputError(
                f"grads must have one gradient for each of {many(len(self.parameters), 'parameter')}, got "
                f"{len(gradients)}"
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
        """Return the class, in the form of a cell."""
        return f"{type(self).__name__}<>"

    def _compute_updated_value(self, parameter: Any, gradient: Tensor) -> Tensor:
        """Return a parameter's new value after a step with this gradient; see `nn.Optimiser`.

        Parameters with ``beta`` or ``gamma`` in their names have no weight decay, as in MindSpore without parameter
        groups.
        """
        decay = self.weight_decay
        if "beta" in parameter.name or "gamma" in parameter.name:
            self.weight_decay = 0.0
        try:
            return super()._compute_updated_value(parameter, gradient)
        finally:
            self.weight_decay = decay


def _check_options(loss_scale: float, refused: str, **options: Any) -> dict[str, Any]:
    """Check two arguments of MindSpore's optimisers; return the arguments ``options`` of ours."""
    scaled = f"loss_scale must be 1.0 here, because gradients are not scaled, got {loss_scale}"
    refuse({scaled: loss_scale != 1.0, refused: bool(refused)})
    return options


SGD = adapt_class("SGD", nn.SGD, lambda params, learning_rate=0.1, momentum=0.0, dampening=0.0, weight_decay=0.0,
              nesterov=False, loss_scale=1.0: _check_options(
    loss_scale, "nesterov needs a momentum above 0 and no dampening" * bool(nesterov and (momentum <= 0 or dampening)),
    parameters=params, rate=learning_rate, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
    nesterov=nesterov), Optimizer,
    __doc__="Gradient descent with momentum, dampening, Nesterov's variant and weight decay.")  # fmt: skip
Momentum = adapt_class("Momentum", SGD, lambda params, learning_rate, momentum, weight_decay=0.0, loss_scale=1.0,
                   use_nesterov=False: dict(
    params=params, learning_rate=learning_rate, momentum=momentum, weight_decay=weight_decay, nesterov=use_nesterov,
    loss_scale=loss_scale))  # fmt: skip
Adam = adapt_class("Adam", nn.Adam, lambda params, learning_rate=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, use_locking=False,
               use_nesterov=False, weight_decay=0.0, loss_scale=1.0, use_amsgrad=False: _check_options(
    loss_scale, "Adam has no use_nesterov here; nearest: nn.SGD(..., nesterov=True)" * bool(use_nesterov),
    parameters=params, rate=learning_rate, betas=(beta1, beta2), epsilon=eps, weight_decay=weight_decay,
    decoupled=False, amsgrad=use_amsgrad, epsilon_hat=True), Optimizer,
    __doc__="Adam; weight decay is added to the gradient, ``eps`` to the uncorrected root of the second moment.")  # fmt: skip


class WithLossCell(Cell):
    """Network with its loss."""

    def __init__(self, backbone: Any, loss_fn: Any) -> None:
        self._backbone, self._loss_fn = backbone, loss_fn

    def construct(self, data: Any, label: Any) -> Any:
        """Return the loss of the network's result."""
        return self._loss_fn(self._backbone(data), label)


class TrainOneStepCell(Cell):
    """Training step: the loss, its gradients, and the optimiser's update."""

    def __init__(self, network: Any, optimizer: Any, sens: float = 1.0) -> None:
        refuse(
            {f"the loss is not scaled here, but sens is {sens}; nearest: a larger learning rate": sens != 1.0}
        )
        self.network, self.optimizer = network, optimizer

    def construct(self, *inputs: Any) -> Any:
        """Run a step; return the loss before the update."""
        loss, gradients = value_and_grad(self.network, None, self.optimizer.parameters)(*inputs)
        self.optimizer(gradients)
        return loss


class RunContext:
    """State of the training for callbacks, and a way to stop it."""

    def __init__(self, **state: Any) -> None:
        self._state, self._stop = SimpleNamespace(**state), False

    def original_args(self) -> SimpleNamespace:
        """Return the state.

        It has ``cur_epoch_num``, ``cur_step_num`` (over all epochs), ``batch_num``, ``epoch_num``, ``net_outputs`` and
        others.
        """
        return self._state

    def request_stop(self) -> None:
        """Stop the training after this step."""
        self._stop = True

    def get_stop_requested(self) -> bool:
        """Return True if a callback has asked to stop."""
        return self._stop


class Callback:
    """Base of callbacks. `Model` calls a method, with a :class:`RunContext`, at every event.

    Override ``begin``, ``epoch_begin``, ``step_begin``, ``step_end``, ``epoch_end`` or ``end``, or ``on_train_begin``
    and so on.
    """


def _event_method(event: str) -> Callable[[Callback, RunContext], None]:
    """Return the method ``on_train_<event>``, which calls the method ``<event>``."""
    return lambda self, run_context: getattr(self, event)(run_context)


for _event in ("begin", "epoch_begin", "step_begin", "step_end", "epoch_end", "end"):
    setattr(Callback, _event, lambda self, run_context: None)
    setattr(Callback, f"on_train_{_event}", _event_method(_event))


class LossMonitor(Callback):
    """Callback that prints the loss every ``per_print_times`` steps; 0 prints nothing."""

    def __init__(self, per_print_times: int = 1) -> None:
        self.every, self.count = per_print_times, 0

    def step_end(self, run_context: RunContext) -> None:
        """Print epoch, step and loss if ``per_print_times`` steps have passed since the last text.

        The form is MindSpore's: ``epoch: 1 step: 3, loss is 0.5``. Steps count from one in each epoch. With
        ``per_print_times`` 0 nothing is printed.

        Args:
            run_context: the state of the training.
        """
        self.count += 1
        if self.every and self.count % self.every == 0:
            state = run_context.original_args()
            step = state.cur_step_num - (state.cur_epoch_num - 1) * state.batch_num
            print(f"epoch: {state.cur_epoch_num} step: {step}, loss is {state.net_outputs}")


class Model(DialectObject):
    """Network with its loss and its optimiser.

    Args:
        network: the network, or an ``AutoParallel`` of it.
        loss_fn: function of the network's result and the labels that returns the loss; None if the network itself
            returns the loss.
        optimizer: the optimiser; None for a model that is not trained.
        metrics: must be None or empty.
        options: ignored.

    Raises:
        InputError: If ``metrics`` are given.
    """

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
            self._step = network.wrap(cell) if parallel else cell

    def train(
        self, epoch: int, train_dataset: Any, callbacks: Any = None, dataset_sink_mode: bool = False, **_: Any
    ) -> None:
        """Train the network: one step per batch, for each epoch; all ranks must call it.

        The callbacks' methods ``on_train_begin``, ``on_train_epoch_begin``, ``on_train_step_begin``,
        ``on_train_step_end``, ``on_train_epoch_end`` and ``on_train_end`` are called at these times. If a callback
        requests a stop, no further step is made; the ``epoch_end`` and ``end`` methods are still called.

        Args:
            epoch: number of epochs.
            train_dataset: dataset, or a sized iterable of batches; a batch is a tuple of the network's inputs.
            callbacks: a callback, or a list of them.
            dataset_sink_mode: not used; further options are not used, either.

        Raises:
            InputError: If the model has no optimiser.
        """
        refuse({"a Model without an optimizer cannot be trained": self._step is None})
        sized = hasattr(train_dataset, "get_dataset_size")
        context = RunContext(
            train_network=self._step, network=self.network, epoch_num=epoch, cur_epoch_num=0, cur_step_num=0,
            batch_num=train_dataset.get_dataset_size() if sized else len(train_dataset),
            train_dataset=train_dataset, list_callback=flat([callbacks] if callbacks else []), net_outputs=None,
        )  # fmt: skip
        state = context.original_args()

        def notify(event: str) -> None:
            for callback in state.list_callback:
                getattr(callback, f"on_train_{event}")(context)

        notify("begin")
        for state.cur_epoch_num in range(1, epoch + 1):
            notify("epoch_begin")
            for batch in train_dataset:
                notify("step_begin")
                state.cur_step_num += 1
                state.net_outputs = numbers(self._step(*batch))
                notify("step_end")
                if context.get_stop_requested():
                    break
            notify("epoch_end")
            if context.get_stop_requested():
                break
        notify("end")

    def predict(self, *inputs: Any) -> Any:
        """Return the network's result."""
        return self.network(*inputs)


def save_checkpoint(save_obj: Any, ckpt_file_name: str | Path, **options: Any) -> None:
    """Write a cell's parameters, or a list of ``{"name": ..., "data": ...}``; all ranks must call it.

    The checkpoint is a folder. ``options`` are ignored.
    """
    checkpoint.save(ckpt_file_name, {name: p.everywhere() for name, p in _named_parameters(save_obj)})


def load_checkpoint(ckpt_file_name: str | Path, net: Any = None) -> dict[str, Any]:
    """Return the parameters of a checkpoint as tensors by name; all ranks must call it.

    Dim 0 of a tensor is split over all ranks if their number divides it; other tensors are replicated.

    Args:
        ckpt_file_name: the folder that `save_checkpoint` wrote.
        net: a cell whose parameters are also set to the values, see `load_param_into_net`; None for no cell.

    Raises:
        InputError: If the path is a file of another program, or the folder is missing or damaged.
    """
    if Path(ckpt_file_name).is_file():
        raise InputError(
            "load_checkpoint: ckpt_file_name must be a folder written by save_checkpoint, got the file "
            f"{ckpt_file_name}"
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
    """Set a cell's parameters to the values of a checkpoint, by name.

    For example, if the cell has the parameters "w" and "b", and the checkpoint has "w" and "v", "w" is set and the
    result is ``(["b"], ["v"])``.

    Args:
        net: the cell, or a list or dict of parameters; see `_named_parameters`.
        parameter_dict: values by name: parameters, tensors or arrays.
        strict_load: True to raise an error, after all parameters with a value are set, if one of the returned lists is
            not empty.

    Returns:
        The names of parameters without a value, and the names of values without a parameter.

    Raises:
        InputError: If a value has another shape, or with ``strict_load`` if names do not match.
    """
    parameters = dict(_named_parameters(net))
    for name, parameter in parameters.items():
        if name in parameter_dict:
            value = parameter_dict[name]
            parameter.set_data(value.asnumpy() if isinstance(value, Parameter) else value)
    missing = [name for name in parameters if name not in parameter_dict]
    extra = [name for name in parameter_dict if name not in parameters]
    if strict_load and (missing or extra):
        raise InputError(
            f"with strict_load the checkpoint must have the names of the network's parameters, but it lacks {missing} "
            f"and has also {extra}"
        )
    return missing, extra


def _named_parameters(parameters: Any) -> Iterable[tuple[str, Parameter]]:
    """Return ``(name, parameter)`` pairs of a cell, a dict, or a list of dicts.

    Args:
        parameters: a cell; a dict of parameters or arrays by name; or a list of ``{"name": ..., "data": ...}``. An
            array becomes a new parameter.

    Raises:
        InputError: If ``parameters`` has another type.
    """
    if hasattr(parameters, "get_parameters"):
        return [(parameter.name, parameter) for parameter in parameters.get_parameters()]
    if isinstance(parameters, (list, tuple)) and all(isinstance(entry, Mapping) for entry in parameters):
        parameters = {entry["name"]: entry["data"] for entry in parameters}
    if isinstance(parameters, Mapping):
        return [
            (name, value if isinstance(value, Parameter) else Parameter(value, name))
            for name, value in parameters.items()
        ]
    raise InputError(
        "save_checkpoint: parameters must be a cell, a list or a dict of parameters, got a "
        f"{type(parameters).__name__}"
    )
