"""Undoing numpy's broadcasting in a local gradient."""

from __future__ import annotations

import numpy as np


def unbroadcast(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Sum a gradient over the dims that broadcasting added or stretched.

    >>> unbroadcast(np.ones((2, 3)), (3,)).tolist()
    [2.0, 2.0, 2.0]
    """
    if gradient.shape == shape:
        return gradient
    extra = gradient.ndim - len(shape)
    stretched = [d for d, n in enumerate(shape) if gradient.shape[d + extra] != n]
    dims = (*range(extra), *(d + extra for d in stretched))
    array: np.ndarray = gradient.sum(axis=dims, dtype=gradient.dtype).reshape(shape)
    return array
