"""``ParamAttr`` and ``paddle.nn.initializer``: first values of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spmdsim.dialects.missing import Worded, told
from spmdsim.errors import InputError
from spmdsim.nn import Normal as _Normal
from spmdsim.nn import Uniform as _Uniform
from spmdsim.nn.module import Initialiser


@dataclass(frozen=True)
class Initializer:
    """First values of a parameter, once its shape is known."""

    of: Callable[[tuple[int, ...]], Initialiser]


@dataclass(frozen=True)
class ParamAttr(Worded):
    """What a parameter is asked to be; ``weight_attr=`` and ``bias_attr=`` take one.

    Attributes:
        name: its name; where a parameter has that name already, it is used again.
        initializer: its first values.
        learning_rate: a factor of the optimiser's rate.
        regularizer: instead of the optimiser's weight decay.
        trainable: whether it has a gradient.
        do_model_average: accepted and ignored.
        need_clip: whether the optimiser's ``grad_clip`` concerns it.

    Raises:
        InputError: a learning rate that is none, or something that is no regularizer.
    """

    ORIGINAL = "paddle.ParamAttr"

    name: str | None = None
    initializer: Any = None
    learning_rate: float = 1.0
    regularizer: Any = None
    trainable: bool = True
    do_model_average: bool = True
    need_clip: bool = True

    def __post_init__(self) -> None:
        rate = self.learning_rate
        if not isinstance(rate, (int, float)) or not 0 <= rate < math.inf:
            raise InputError(f"learning_rate of ParamAttr is a number from 0 on, not {rate!r}")
        if self.regularizer is not None and not hasattr(self.regularizer, "slope"):
            raise InputError(
                f"regularizer is a paddle.regularizer.L2Decay or L1Decay, not a {type(self.regularizer).__name__}"
            )
        for word in ("trainable", "need_clip"):
            if not isinstance(getattr(self, word), (bool, int)):
                raise InputError(f"{word} of ParamAttr is True or False, not {getattr(self, word)!r}")
        if not isinstance(self.name, (str, type(None))):
            raise InputError(f"name of ParamAttr is a str, not {self.name!r}")

    @staticmethod
    def _of(attribute: Any, name: str | None = None) -> Any:
        """An attribute, with a name where it has none."""
        if name is None or attribute is False:
            return attribute
        if isinstance(attribute, ParamAttr):
            return attribute if attribute.name else replace(attribute, name=name)
        return ParamAttr(name, attribute)


ParamAttr.__init__ = told(ParamAttr.__init__, "ParamAttr")  # type: ignore[method-assign]


def Constant(value: float = 0.0) -> Initializer:
    """One value everywhere."""
    return Initializer(
        lambda _: lambda index, *rest: np.full([p.stop - p.start for p in index], value, rest[1])
    )


def _shifted(values: Initialiser, shift: float) -> Initialiser:
    return lambda index, shape, dtype, seed: values(index, shape, dtype, seed) + dtype.type(shift)


def Normal(mean: float = 0.0, std: float = 1.0) -> Initializer:
    """Normal numbers."""
    return Initializer(lambda _: _shifted(_Normal(std), mean))


def Uniform(low: float = -1.0, high: float = 1.0) -> Initializer:
    """Numbers uniform in ``[low, high)``."""
    return Initializer(lambda _: _shifted(_Uniform((high - low) / 2), (low + high) / 2))


def XavierUniform() -> Initializer:
    """Uniform numbers by fan-in and fan-out (Glorot and Bengio, 2010)."""
    return Initializer(lambda shape: _Uniform(math.sqrt(6 / sum(shape[:2]))))


def XavierNormal() -> Initializer:
    """Normal numbers by fan-in and fan-out (Glorot and Bengio, 2010)."""
    return Initializer(lambda shape: _Normal(math.sqrt(2 / sum(shape[:2]))))


def Assign(value: Any) -> Initializer:
    """The values of an array."""
    array = np.asarray(value)

    def of(shape: tuple[int, ...]) -> Initialiser:
        if array.shape != shape:
            raise InputError(f"a parameter of shape {shape} was given values of shape {array.shape}")
        return lambda index, _shape, dtype, _seed: array[index].astype(dtype, copy=False)

    return Initializer(of)


def initial(
    attribute: Any, shape: tuple[int, ...], default: Initialiser
) -> tuple[ParamAttr, Initialiser, Any]:
    """What a ``weight_attr`` or ``bias_attr`` asks for, with first values and element type (None: float32).

    Raises:
        InputError: values of another shape, or something that is no attribute.
    """
    attr = attribute if isinstance(attribute, ParamAttr) else ParamAttr()
    if isinstance(attribute, str):
        return ParamAttr(attribute), default, None
    values = attr.initializer if isinstance(attribute, ParamAttr) else attribute
    if values is None or values is True:
        return attr, default, None
    if isinstance(values, Initializer):
        return attr, values.of(shape), None
    if callable(values):
        return attr, values, None
    array = np.asarray(values)
    if array.dtype.kind not in "biufcV":
        raise InputError(f"an attribute is a ParamAttr, an initializer, an array or False, not {values!r}")
    return attr, Assign(array).of(shape), array.dtype
