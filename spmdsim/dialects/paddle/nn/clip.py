"""What an optimiser's ``grad_clip=`` does with gradients before a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import spmdsim.ops as ops
from spmdsim.errors import InputError
from spmdsim.nn import global_norm
from spmdsim.ops.reduce import as_type, wide


class Clip(ABC):
    """Changes the gradients of parameters."""

    @abstractmethod
    def __call__(self, parameters: Sequence[Any]) -> None:
        """New gradients for those that have one."""


def _scale(parameters: Sequence[Any], largest: float) -> None:
    factor = largest / max(global_norm(parameters), largest)
    for parameter in parameters if factor < 1 else ():
        scaled = ops.multiply(wide(parameter.grad), factor)
        parameter.value.grad = as_type(scaled, parameter.grad.dtype)


class ClipGradByGlobalNorm(Clip):
    """All gradients scaled down together until the norm of all is at most ``clip_norm``."""

    def __init__(
        self, clip_norm: float, group_name: str = "default_group", auto_skip_clip: bool = False
    ) -> None:
        self.clip_norm = float(clip_norm)

    def __call__(self, parameters: Sequence[Any]) -> None:
        """New gradients for those that have one."""
        _scale(parameters, self.clip_norm)


class ClipGradByNorm(Clip):
    """Each gradient scaled down until its norm is at most ``clip_norm``."""

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = float(clip_norm)

    def __call__(self, parameters: Sequence[Any]) -> None:
        """New gradients for those that have one."""
        for parameter in parameters:
            _scale([parameter], self.clip_norm)


class ClipGradByValue(Clip):
    """Each element of a gradient brought into ``[min, max]``; ``min`` is ``-max`` if left out.

    Raises:
        InputError: limits between which there is nothing.
    """

    def __init__(self, max: float, min: float | None = None) -> None:
        self.max, self.min = float(max), float(-max if min is None else min)
        if self.min > self.max:
            raise InputError(
                f"ClipGradByValue brings gradients into [min, max], but min is {self.min} and max {self.max}"
            )

    def __call__(self, parameters: Sequence[Any]) -> None:
        """New gradients for those that have one."""
        for parameter in parameters:
            parameter.value.grad = ops.minimum(ops.maximum(parameter.grad, self.min), self.max)
