"""Losses: cells of two tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import spmdsim.ops as core
from spmdsim.core import Layout
from spmdsim.dialects.host import whole
from spmdsim.dialects.mindspore.cells import Cell
from spmdsim.dialects.mindspore.context import LOCAL_MEAN, LOCAL_SUM
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

    def _reduced(self, elements: Tensor) -> Tensor:
        total = losses.reduced(elements, self.reduction)
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


def _total(x: Tensor) -> Tensor:
    total = core.sum(x)
    return total.to(total.layout.reduced)


class CrossEntropyLoss(_Loss):
    """Mean (or sum, or none) of minus the log-probability of each label.

    Labels are class numbers, or probabilities in the shape of the logits. The mean is that of a rank's own rows, which
    decides how often it counts in a parallel program (:mod:`spmdsim.dialects.mindspore.context`).

    Args:
        weight: one per class.
        ignore_index: labels that do not count.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: the share of every label that is spread evenly over all classes.
    """

    def __init__(
        self, weight: Any = None, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0
    ) -> None:  # fmt: skip
        super().__init__(reduction)
        if not 0 <= label_smoothing <= 1:
            raise InputError(f"label_smoothing is in [0, 1], not {label_smoothing}")
        self.weight, self.ignore_index, self.label_smoothing = weight, ignore_index, label_smoothing

    def construct(self, logits: Any, labels: Any) -> Tensor:
        """``[batch, classes]``, ``[batch]`` or ``[batch, classes]`` -> ``[]``."""
        given = to_tensor(logits)
        given = given.to(given.layout.reduced)
        weight = None if self.weight is None else self._weights(given)
        if _ndim(labels) == given.ndim:
            return self._of_probabilities(given, _labels(labels, given), weight)
        if weight is None and not self.label_smoothing and not self._ignores(labels):
            loss = self._reduced(core.cross_entropy(given, self._classes(labels, given), "none"))
            loss.name = {"mean": LOCAL_MEAN, "sum": LOCAL_SUM}.get(self.reduction, "")
            return loss
        return self._of_some(given, labels, weight)

    def _weights(self, logits: Tensor) -> Tensor:
        values = np.asarray(self.weight, logits.dtype)
        if values.shape != logits.shape[-1:]:
            raise InputError(f"weight has one number per class, {logits.shape[-1]}, not shape {values.shape}")
        return Tensor.from_global(values, Layout.replicated(logits.layout.mesh, 1), logits.world)

    def _ignores(self, labels: Any) -> bool:
        """Whether there may be labels that do not count: of a tensor's nobody knows all."""
        if isinstance(labels, Tensor):
            return self.ignore_index != -100
        return bool((np.asarray(labels) == self.ignore_index).any())

    @staticmethod
    def _classes(labels: Any, logits: Tensor) -> Tensor:
        if not isinstance(labels, Tensor):  # on the whole, so that all ranks say the same
            checked_ids(np.asarray(labels), logits.shape[-1], what="classes")
        return _labels(labels, logits)

    def _of_probabilities(self, logits: Tensor, known: Tensor, weight: Tensor | None) -> Tensor:
        share = self.label_smoothing
        if share:
            known = core.add(core.multiply(known, 1 - share), share / logits.shape[-1])
        logs = core.log_softmax(logits)
        logs = logs if weight is None else core.multiply(logs, weight)
        return self._reduced(core.negative(core.sum(core.multiply(known, logs), -1)))

    def _of_some(self, logits: Tensor, labels: Any, weight: Tensor | None) -> Tensor:
        """Where labels are ignored, weighted or smoothed: the mean is that of the weights of the labels that count."""
        if isinstance(labels, Tensor):
            counts = core.cast(core.not_equal(labels, self.ignore_index), logits.dtype)
            classes = core.where(core.equal(labels, self.ignore_index), 0, labels)
        else:
            array = np.asarray(labels)
            counts = _labels((array != self.ignore_index).astype(logits.dtype), logits)
            classes = self._classes(np.where(array == self.ignore_index, 0, array), logits)
        weights = counts if weight is None else core.multiply(core.gather(weight, classes), counts)
        loss = core.multiply(core.cross_entropy(logits, classes, "none"), weights)
        if self.reduction == "mean":
            loss = core.divide(_total(loss), _total(weights))
        elif self.reduction == "sum":
            loss = _total(loss)
        share, number = self.label_smoothing, logits.shape[-1]
        if not share:
            return loss
        spread = core.multiply(core.negative(core.sum(core.log_softmax(logits), -1)), counts)
        return core.add(core.multiply(loss, 1 - share), core.multiply(self._reduced(spread), share / number))


def _ndim(x: Any) -> int:
    return int(x.ndim if hasattr(x, "ndim") else np.ndim(x))


class SoftmaxCrossEntropyWithLogits(CrossEntropyLoss):
    """Cross entropy from logits; ``sparse`` labels are class numbers, others probabilities."""

    def __init__(self, sparse: bool = False, reduction: str = "none") -> None:
        super().__init__(reduction=reduction)
        self.sparse = sparse

    def construct(self, logits: Any, labels: Any) -> Tensor:
        """``[batch, classes]`` and labels -> ``[batch]`` or ``[]``."""
        dims = _ndim(labels)
        if (dims < to_tensor(logits).ndim) is not self.sparse:
            raise InputError(
                f"with sparse={self.sparse} labels are {'numbers' if self.sparse else 'probabilities'} of classes, but "
                f"they have {dims} dims"
            )
        return super().construct(logits, labels)
