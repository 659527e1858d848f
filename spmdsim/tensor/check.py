"""Checking a distributed tensor against a single-process reference, shard by shard."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from spmdsim.errors import InputError, WorldError
from spmdsim.tensor.tensor import Tensor

#: Rounding errors add up like a random walk; eight standard deviations leave no honest result outside.
SAFETY = 8.0


@dataclass(frozen=True)
class Verdict:
    """What all ranks agreed on about one tensor.

    Attributes:
        ok: every element of every shard is within the tolerance.
        max_error: largest absolute difference (inf where only one side is nan).
        tolerance: what was allowed.
        why: how the tolerance came about.
        rank: the rank with the largest error.
        index: the global index of that element, None for an empty tensor.
        expected: the reference's value there.
        got: the tensor's value there.
    """

    ok: bool
    max_error: float
    tolerance: float
    why: str
    rank: int = 0
    index: tuple[int, ...] | None = None
    expected: Any = None
    got: Any = None

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        if self.ok:
            return f"ok: max error {self.max_error:.2g} <= {self.tolerance:.2g} ({self.why})"
        return (
            f"WRONG on rank {self.rank} at {self.index}: got {self.got}, expected {self.expected}; error "
            f"{self.max_error:.2g} > {self.tolerance:.2g} ({self.why})"
        )


def unit_roundoff(dtype: Any) -> float:
    """Half the distance from 1 to the next number of a floating type; 0 for exact types.

    >>> unit_roundoff("float32") == 2.0**-24, unit_roundoff("int32")
    (True, 0.0)
    """
    dtype = np.dtype(dtype)
    if dtype.name == "bfloat16":
        return 2.0**-8
    if dtype.kind not in "fc":
        return 0.0
    return float(np.finfo(dtype).eps) / 2


def tolerance(dtype: Any, magnitude: float, depth: int) -> tuple[float, str]:
    """The largest error that rounding explains, and the explanation.

    Args:
        dtype: element type of the computation.
        magnitude: size of the terms that are added: the largest ``sum |a_i b_i|``, or the largest result.
        depth: how many of them are added, over all ranks.
    """
    u = unit_roundoff(dtype)
    if not u:
        return 0.0, "exact type"
    value = SAFETY * u * math.sqrt(max(depth, 1)) * magnitude
    return value, f"{SAFETY:g} u({np.dtype(dtype).name}) sqrt({depth} terms) * {magnitude:.3g}"


Reference = Any | Callable[[tuple[slice, ...]], Any]


def check(tensor: Tensor, reference: Reference, *, depth: int = 1, magnitude: float | None = None) -> Verdict:
    """Compare every shard with the reference; all ranks return the same verdict.

    Args:
        tensor: what was computed; pending reductions are done first.
        reference: an array of the global shape, or a function of a tuple of slices (so that no rank needs
            the whole).
        depth: how many terms each element is a sum of; it widens the tolerance.
        magnitude: size of the terms; the reference's largest absolute value if left out.

    Raises:
        InputError: a reference of another shape.
        WorldError: the world holds no data.
    """
    world = tensor.world
    if not world.has_data:
        raise WorldError("a ShapeOnly world holds no data to check")
    tensor = tensor.detach().to(tensor.layout.reduced)
    found = []
    for rank, shard in zip(world.ranks, tensor.shards):
        found.append(_compare(tensor, rank, shard, reference) if rank in tensor.layout.mesh else None)
    reports = [report for report in world.gather_objects(found) if report is not None]
    scale = magnitude if magnitude is not None else max((r[4] for r in reports), default=0.0)
    allowed, why = tolerance(tensor.dtype, scale, depth)
    worst = max(reports, key=lambda report: report[0])
    error, rank, index, values, _ = worst
    return Verdict(error <= allowed, error, allowed, why, rank, index, *values)


def _compare(tensor: Tensor, rank: int, shard: np.ndarray, reference: Reference) -> tuple[Any, ...]:
    index = tensor.layout.slices(tensor.shape, rank)
    expected = reference(index) if callable(reference) else np.asarray(reference)
    if not callable(reference):
        if expected.shape != tensor.shape:
            raise InputError(f"the reference has shape {expected.shape}, but the tensor {tensor.shape}")
        expected = expected[index]
    expected = np.asarray(expected)
    if expected.shape != shard.shape:
        raise InputError(f"the reference gave a block of shape {expected.shape} for one of {shard.shape}")
    if not shard.size:
        return 0.0, rank, None, (None, None), 0.0
    error = _difference(shard, expected)
    at = np.unravel_index(int(np.argmax(error)), error.shape)
    where = tuple(int(i) + part.start for i, part in zip(at, index))
    sizes = np.abs(_wide(expected))
    # What is not finite must be met exactly and says nothing about the size of rounding errors.
    scale = sizes.max(initial=0.0, where=np.isfinite(sizes.astype(np.float64)))
    return float(error[at]), rank, where, (expected[at], shard[at]), float(scale)


def _difference(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    a, b = _wide(got), _wide(expected)
    with np.errstate(invalid="ignore"):
        error = np.asarray(np.abs(a - b), dtype=np.float64)
    same = (a == b) | ((a != a) & (b != b))  # nan is the one value that differs from itself
    error = np.where(same, 0.0, error)
    return np.where(np.isnan(error), np.inf, error)


def _wide(array: np.ndarray) -> np.ndarray:
    """The values in a type in which differences are exact enough."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        return array.astype(object) if _needs_object(array) else array.astype(np.int64)
    return array.astype(np.float64)


def _needs_object(array: np.ndarray) -> bool:
    return bool(array.size) and (int(array.max()) > 2**62 or int(array.min()) < -(2**62))
