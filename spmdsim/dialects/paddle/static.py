"""The words around a Paddle program that have no meaning here, and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_seed = [0]
_dynamic = [False]


def enable_static() -> None:
    """The mode that ``paddle.distributed.split`` asks for; here everything is computed at once in either mode."""
    _dynamic[0] = False


def disable_static() -> None:
    """Dynamic mode, in which ``paddle.distributed.split`` refuses to work, as Paddle's does."""
    _dynamic[0] = True


def in_dynamic_mode() -> bool:
    """Whether dynamic mode was asked for."""
    return _dynamic[0]


def set_device(device: str) -> str:
    """Accepted and ignored: every rank computes on its CPU."""
    return device


def seed(value: int) -> None:
    """Where random numbers begin."""
    _seed[0] = value


def randint(
    low: int, high: int | None = None, shape: Sequence[int] = (1,), dtype: Any = "int64"
) -> np.ndarray:
    """Whole numbers in ``[low, high)``, the same on every rank."""
    _seed[0] += 1
    if high is None:
        low, high = 0, low
    return np.random.default_rng(_seed[0]).integers(low, high, size=tuple(shape)).astype(dtype)
