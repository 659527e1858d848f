"""``ParamAttr`` and ``paddle.nn.initializer``: first values of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from spmdsim.errors import InputError
from spmdsim.nn import Normal as _Normal
from spmdsim.nn import Uniform as _Uniform
from spmdsim.nn.module import Initialiser


@dataclass(frozen=True)
class Initializer:
    """First values of a parameter, once its shape is known."""

    of: Callable[[tuple[int, ...]], Initialiser]


@dataclass(frozen=True)
class ParamAttr:
    """``ParamAttr(name=..., initializer=...)``; the learning rate and the rest must be left out."""

    name: str | None = None
    initializer: Any = None
    trainable: bool = True


def Constant(value: float = 0.0) -> Initializer:
    """One value everywhere."""
    return Initializer(
        lambda _: lambda index, *rest: np.full([p.stop - p.start for p in index], value, rest[1])
    )


def Normal(mean: float = 0.0, std: float = 1.0) -> Initializer:
    """Normal numbers.

    Raises:
        InputError: another mean than 0.
    """
    if mean:
        raise InputError(f"Normal has mean 0 here, not {mean}; nearest: Assign(array)")
    return Initializer(lambda _: _Normal(std))


def Uniform(low: float = -1.0, high: float = 1.0) -> Initializer:
    """Numbers uniform in ``[low, high)``, which must lie about 0."""
    if low != -high:
        raise InputError(f"Uniform lies about 0 here, not in [{low}, {high}); nearest: Assign(array)")
    return Initializer(lambda _: _Uniform(high))


def XavierUniform() -> Initializer:
    """Uniform numbers by fan-in and fan-out (Glorot and Bengio, 2010)."""
    return Initializer(lambda shape: _Uniform(math.sqrt(6 / sum(shape[:2]))))


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
) -> tuple[Initialiser, Any, str | None]:
    """First values, element type (None: float32) and name that a ``weight_attr`` or ``bias_attr`` asks for.

    Raises:
        InputError: values of another shape, or something that is no attribute.
    """
    name = None
    if isinstance(attribute, ParamAttr):
        name, attribute = attribute.name, attribute.initializer
    if attribute is None or attribute is True:
        return default, None, name
    if isinstance(attribute, Initializer):
        return attribute.of(shape), None, name
    if callable(attribute):
        return attribute, None, name
    if isinstance(attribute, str):
        return default, None, attribute
    array = np.asarray(attribute)
    if array.dtype == object:
        raise InputError(f"an attribute is a ParamAttr, an initializer, an array or False, not {attribute!r}")
    return Assign(array).of(shape), array.dtype, name
