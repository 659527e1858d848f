"""``mindspore.train``: a model trained by one call."""

from __future__ import annotations

from typing import Any

from spmdsim.dialects.mindspore.nn import TrainOneStepCell, WithLossCell
from spmdsim.dialects.mindspore.parallel.auto_parallel import AutoParallel, numbers
from spmdsim.dialects.missing import refusal
from spmdsim.errors import InputError


class Callback:
    """Told of each step and epoch."""

    def step_end(self, epoch: int, step: int, loss: Any) -> None:
        """After a step."""

    def epoch_end(self, epoch: int, loss: Any) -> None:
        """After an epoch."""


class LossMonitor(Callback):
    """Prints the loss every so many steps.

    Args:
        per_print_times: how often, in steps.
    """

    def __init__(self, per_print_times: int = 1) -> None:
        self.every, self.count = per_print_times, 0

    def step_end(self, epoch: int, step: int, loss: Any) -> None:
        """Print as MindSpore does, counting from one."""
        self.count += 1
        if self.every and self.count % self.every == 0:
            print(f"epoch: {epoch} step: {step}, loss is {loss}")


class Model:
    """A network with its loss and optimiser.

    Args:
        network: a cell, or an ``AutoParallel`` around it; with its loss inside if ``loss_fn`` is left out.
        loss_fn: the loss.
        optimizer: the optimiser.
        metrics: must be left out.
    """

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
        """Train for so many epochs.

        Raises:
            InputError: the model has no optimiser.
        """
        if self._step is None:
            raise InputError("a Model without an optimizer cannot be trained")
        told = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks] if callbacks else []
        for number in range(1, epoch + 1):
            loss = None
            for step, batch in enumerate(train_dataset, 1):
                loss = numbers(self._step(*batch))
                for callback in told:
                    callback.step_end(number, step, loss)
            for callback in told:
                callback.epoch_end(number, loss)

    def predict(self, *inputs: Any) -> Any:
        """The network's result."""
        return self.network(*inputs)


__all__ = ["Callback", "LossMonitor", "Model"]
__getattr__ = refusal(__name__, __all__, {
    **dict.fromkeys(("ModelCheckpoint", "CheckpointConfig"), "save_checkpoint"), "TimeMonitor": "LossMonitor",
})  # fmt: skip
