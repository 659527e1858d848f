"""Alternatives of bench_arrays.py in Heat (helmholtz-analytics/heat) on equal data split by rows.

They need Heat and torch. Without them the functions return an empty dict.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

ABSENT = "Heat is not installed; it needs torch, torchvision, mpi4py and its checkout on PYTHONPATH"


def heat() -> Any:
    """Return the package, or None if it cannot be imported."""
    try:
        return importlib.import_module("heat")
    except ImportError:
        return None


def gather_array(array_of: Any) -> np.ndarray:
    """Return a distributed result as an array on every rank."""
    array: np.ndarray = array_of.resplit(None).larray.numpy()
    return array


def _of_pieces(block: np.ndarray) -> Any:
    return heat().array(block.copy(), is_split=0)  # Copy, because torch warns of read-only arrays.


def _values(result: Any) -> Any:
    """Return the values of a sort's result; older versions of Heat also return the indices."""
    return result[0] if isinstance(result, tuple) else result


def sort(block: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Return the sort of numbers, as a dict with the key "Heat"."""
    ht = heat()
    if ht is None:
        return {}
    x = _of_pieces(block)
    return {"Heat": lambda: _values(ht.sort(x, 0))}  # Axis -1 would sort each block separately.


def stencil(block: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Return the mean of four neighbours by shifted slices."""
    ht = heat()
    if ht is None:
        return {}
    u = _of_pieces(block)
    return {"Heat": lambda: (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) / 4}


def transform(block: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Return the Fourier transform of both dims."""
    ht = heat()
    if ht is None:
        return {}
    x = _of_pieces(block)
    return {"Heat": lambda: ht.fft.fft2(x)}


def iteration(block: np.ndarray, right: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Return the first iteration of Heat's ``linalg.cg``.

    Args:
        block: this rank's rows of the matrix.
        right: this rank's block of the right side.
    """
    ht = heat()
    if ht is None:
        return {}
    matrix, p = _of_pieces(block), _of_pieces(right)
    x, r = ht.zeros_like(p), p

    def iterate() -> Any:
        before = ht.matmul(r, r)
        image = ht.matmul(matrix, p)
        alpha = before / ht.matmul(p, image)
        moved, residual = x + alpha * p, r - alpha * image
        return moved, residual + ht.matmul(residual, residual) / before * p

    return {"Heat": lambda: iterate()[1]}
