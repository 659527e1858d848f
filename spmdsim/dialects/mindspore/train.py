"""``mindspore.train``: a model trained by one call."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from spmdsim.dialects.mindspore.auto_parallel import AutoParallel, numbers
from spmdsim.dialects.mindspore.losses import TrainOneStepCell, WithLossCell
from spmdsim.dialects.missing import Worded, each, refusal
from spmdsim.errors import InputError


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
    def on_train(self: Callback, run_context: RunContext) -> None:
        getattr(self, event)(run_context)

    return on_train


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


class Model(Worded):
    """A network with its loss and optimiser.

    Args:
        network: a cell, or an ``AutoParallel`` around it; with its loss inside if ``loss_fn`` is left out.
        loss_fn: the loss.
        optimizer: the optimiser.
        metrics: must be left out.
    """

    ORIGINAL = "mindspore.train.Model"
    NEAREST = each({
        "eval eval_network train_network predict_network": "predict",
        "fit build infer_train_layout infer_predict_layout": "train",
    })  # fmt: skip

    def __init__(
        self, network: Any, loss_fn: Any = None, optimizer: Any = None, metrics: Any = None, **options: Any
    ) -> None:
        if metrics:
            raise InputError("Model has no metrics here; nearest: compute them from Model.predict")
        self.network = network
        self._step: Any = None
        if optimizer is not None:
            wrapped = network if isinstance(network, AutoParallel) else None
            inside = network if wrapped is None else wrapped.program
            cell = TrainOneStepCell(inside if loss_fn is None else WithLossCell(inside, loss_fn), optimizer)
            self._step = cell if wrapped is None else wrapped.around(cell)

    def train(
        self, epoch: int, train_dataset: Any, callbacks: Any = None, dataset_sink_mode: bool = False, **_: Any
    ) -> None:
        """Train for so many epochs; an InputError for a model without an optimiser."""
        if self._step is None:
            raise InputError("a Model without an optimizer cannot be trained")
        several = isinstance(callbacks, (list, tuple))
        told = list(callbacks) if several else [callbacks] if callbacks else []
        sized = hasattr(train_dataset, "get_dataset_size")
        context = RunContext(
            train_network=self._step, network=self.network, epoch_num=epoch, cur_epoch_num=0, cur_step_num=0,
            batch_num=train_dataset.get_dataset_size() if sized else len(train_dataset),
            train_dataset=train_dataset, list_callback=told, net_outputs=None,
        )  # fmt: skip
        state = context.original_args()

        def tell(event: str) -> None:
            for callback in state.list_callback:
                getattr(callback, f"on_train_{event}")(context)

        tell("begin")
        for number in range(1, epoch + 1):
            state.cur_epoch_num = number
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


__all__ = ["Callback", "LossMonitor", "Model", "RunContext"]
__getattr__ = refusal(__name__, __all__, {
    "ModelCheckpoint CheckpointConfig": "save_checkpoint",
    "TimeMonitor": "LossMonitor",
})  # fmt: skip
