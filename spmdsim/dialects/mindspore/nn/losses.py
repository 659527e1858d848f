"""Losses, and the cells that put a loss or a training step around a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import spmdsim.ops as core
from spmdsim.core import Layout
from spmdsim.dialects.host import whole
from spmdsim.dialects.mindspore.gradient import value_and_grad
from spmdsim.dialects.mindspore.nn.cell import Cell
from spmdsim.dialects.mindspore.primitive import to_tensor
from spmdsim.errors import InputError
from spmdsim.nn import losses
from spmdsim.redistribution.sparse_lookup import checked_ids
from spmdsim.tensor import Tensor


class _Loss(Cell):
    """The mean, the sum or all of the elements' losses."""

    #: Of each element.
    loss: Callable[..., Tensor]

    def __init__(self, reduction: str = "mean") -> None:
        losses.check_reduction(reduction)
        self.reduction = reduction

    def construct(self, logits: Any, labels: Any) -> Tensor:
        """Two tensors of one shape -> ``[]``."""
        given = to_tensor(logits)
        return self._reduced(type(self).loss(given, _labels(labels, given), "none"))

    def _reduced(self, found: Tensor) -> Tensor:
        total = losses.reduced(found, self.reduction)
        return total if self.reduction == "none" else total.to(total.layout.reduced)


class MSELoss(_Loss):
    """Squared differences."""

    loss = losses.mse_loss


class L1Loss(_Loss):
    """Absolute differences."""

    loss = losses.l1_loss


def _labels(labels: Any, logits: Tensor) -> Tensor:
    """Labels beside the rows of the logits."""
    if isinstance(labels, Tensor):
        return labels
    array = whole(labels, logits.world)
    layout = Layout(logits.layout.mesh, logits.layout.dims[: array.ndim])
    return Tensor.from_global(array, layout, logits.world)


class CrossEntropyLoss(_Loss):
    """Mean (or sum, or none) of minus the log-probability of each label.

    Labels are class numbers, or probabilities in the shape of the logits.
    """

    def __init__(
        self,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        if weight is not None or label_smoothing or ignore_index != -100:
            raise InputError(
                "CrossEntropyLoss has no weight, ignore_index or label_smoothing here; nearest: reduction='none'"
            )

    def construct(self, logits: Any, labels: Any) -> Tensor:
        """``[batch, classes]``, ``[batch]`` or ``[batch, classes]`` -> ``[]``."""
        given = to_tensor(logits)
        given = given.to(given.layout.reduced)
        if not isinstance(labels, Tensor) and np.ndim(labels) < given.ndim:
            # On the whole, so that all ranks say the same.
            checked_ids(np.asarray(labels), given.shape[-1], what="classes")
        known = _labels(labels, given)
        if known.ndim < given.ndim:
            return self._reduced(core.cross_entropy(given, known, "none"))
        return self._reduced(core.negative(core.sum(core.multiply(known, core.log_softmax(given)), -1)))


class SoftmaxCrossEntropyWithLogits(CrossEntropyLoss):
    """Cross entropy from logits; ``sparse`` labels are class numbers, others probabilities."""

    def __init__(self, sparse: bool = False, reduction: str = "none") -> None:
        super().__init__(reduction=reduction)
        self.sparse = sparse

    def construct(self, logits: Any, labels: Any) -> Tensor:
        """``[batch, classes]`` and labels -> ``[batch]`` or ``[]``."""
        dims = np.ndim(labels) if not hasattr(labels, "ndim") else labels.ndim
        if (dims < to_tensor(logits).ndim) is not self.sparse:
            raise InputError(
                f"with sparse={self.sparse} labels are {'numbers' if self.sparse else 'probabilities'} of classes, but "
                f"they have {dims} dims"
            )
        return super().construct(logits, labels)


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
        if sens != 1.0:
            raise InputError(
                f"the loss is not scaled here, but sens is {sens}; nearest: a larger learning rate"
            )
        self.network, self.optimizer = network, optimizer

    def construct(self, *inputs: Any) -> Any:
        """The loss before the update."""
        loss, gradients = value_and_grad(self.network, None, self.optimizer.parameters)(*inputs)
        self.optimizer(gradients)
        return loss


__all__ = [
    "CrossEntropyLoss", "L1Loss", "MSELoss", "SoftmaxCrossEntropyWithLogits", "TrainOneStepCell", "WithLossCell",
]  # fmt: skip
