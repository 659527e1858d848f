"""The ways of bench_arrays.py in Heat (helmholtz-analytics/heat), where it and torch can be imported: the same data, split by rows."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

ABSENT = "Heat is not there; a venv with torch, torchvision, mpi4py and a checkout of it on PYTHONPATH has it"


def heat() -> Any:
    """The package, or None."""
    try:
        return importlib.import_module("heat")
    except ImportError:
        return None


def whole(array_of: Any) -> np.ndarray:
    """A result on every rank."""
    array: np.ndarray = array_of.resplit(None).larray.numpy()
    return array


def _of_pieces(part: np.ndarray) -> Any:
    return heat().array(part.copy(), is_split=0)  # torch warns of arrays that are only read


def _values(result: Any) -> Any:
    """Of what a sort gives the values; older versions give the places, too."""
    return result[0] if isinstance(result, tuple) else result


def sort(part: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Numbers in order."""
    ht = heat()
    if ht is None:
        return {}
    x = _of_pieces(part)
    return {"Heat": lambda: _values(ht.sort(x, 0))}  # axis -1 sorts each piece for itself


def stencil(part: np.ndarray) -> dict[str, Callable[[], Any]]:
    """The mean of four neighbours, by shifted slices."""
    ht = heat()
    if ht is None:
        return {}
    u = _of_pieces(part)
    return {"Heat": lambda: (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) / 4}


def transform(part: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Both dims transformed."""
    ht = heat()
    if ht is None:
        return {}
    x = _of_pieces(part)
    return {"Heat": lambda: ht.fft.fft2(x)}


def iteration(part: np.ndarray, right: np.ndarray) -> dict[str, Callable[[], Any]]:
    """One iteration of its ``linalg.cg``, from the right side on."""
    ht = heat()
    if ht is None:
        return {}
    matrix, p = _of_pieces(part), _of_pieces(right)
    x, r = ht.zeros_like(p), p

    def one() -> Any:
        before = ht.matmul(r, r)
        image = ht.matmul(matrix, p)
        alpha = before / ht.matmul(p, image)
        moved, rest = x + alpha * p, r - alpha * image
        return moved, rest + ht.matmul(rest, rest) / before * p

    return {"Heat": lambda: one()[1]}
