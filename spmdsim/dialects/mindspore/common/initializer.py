"""``mindspore.common.initializer``: values of parameters, by name or as objects."""

from __future__ import annotations

from typing import Any

from spmdsim.dialects.mindspore.parameter import (
    INITIALISERS,
    constant,
    he_uniform,
    initializer,
    xavier_uniform,
)
from spmdsim.nn import Normal as _Normal
from spmdsim.nn import Uniform as _Uniform
from spmdsim.nn import ones, zeros


def Normal(sigma: float = 0.01, mean: float = 0.0) -> Any:
    """Normal numbers of this deviation.

    Raises:
        InputError: another mean than 0.
    """
    if mean:
        from spmdsim.errors import InputError

        raise InputError(f"Normal has mean 0 here, not {mean}; nearest: Parameter(array)")
    return _Normal(sigma)


def Uniform(scale: float = 0.07) -> Any:
    """Numbers uniform in ``[-scale, scale)``."""
    return _Uniform(scale)


def Constant(value: float) -> Any:
    """One value everywhere."""
    return constant(value)


def Zero() -> Any:
    """All zero."""
    return zeros


def One() -> Any:
    """All one."""
    return ones


def XavierUniform() -> Any:
    """Uniform numbers by fan-in and fan-out (Glorot and Bengio, 2010)."""
    return lambda index, shape, dtype, seed: xavier_uniform(shape)(index, shape, dtype, seed)


def HeUniform() -> Any:
    """Uniform numbers by fan-in (He et al., 2015)."""
    return lambda index, shape, dtype, seed: he_uniform(shape)(index, shape, dtype, seed)


def __getattr__(name: str) -> Any:
    from spmdsim.dialects.missing import not_covered

    raise not_covered(__name__, name, __all__)


__all__ = [
    "INITIALISERS", "Constant", "HeUniform", "Normal", "One", "Uniform", "XavierUniform", "Zero", "initializer",
]  # fmt: skip
