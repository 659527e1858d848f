"""The steps that move nothing, ``slice`` and ``fill``, on one rank's array; and windows put together from arrays at hand.

A slice that is contiguous in its source is a view of it: the source was replicated, its owner holds it
anyhow, and a copy of 64 MiB costs milliseconds. Any other slice is copied. Who drops the source and wants its
memory back copies the slice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from spmdsim.core.elements import fold, identity
from spmdsim.core.lockstep import contiguous
from spmdsim.core.step import Index, Step, within
from spmdsim.layout.element_type import accumulator, check_reduce
from spmdsim.redistribution.halo import HaloPiece, HaloStep
from spmdsim.worlds.pool import empty


def in_order(run: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """The same function, given C-contiguous arrays only."""
    return lambda array: run(array if array.flags.c_contiguous else contiguous(array))


def stays(piece: HaloPiece, shape: tuple[int, ...], size: int) -> bool:
    """Whether a piece of a block of so many elements is the windows where it lies: all of them, and most of the block."""
    return piece.size == math.prod(shape) and 2 * piece.size >= size


def assembled(
    step: HaloStep,
    shape: tuple[int, ...],
    dtype: np.dtype,
    parts: Iterable[tuple[np.ndarray, Sequence[HaloPiece]]],
) -> np.ndarray:
    """A rank's windows from blocks, or on the way back its block from contributions, added up in the group's order."""
    if not step.back:
        parts = list(parts)
        if len(parts) == 1 and len(parts[0][1]) == 1:
            array, (piece,) = parts[0]
            if stays(piece, shape, array.size):
                return array[piece.source]
        windows = empty(shape, dtype)
        for array, pieces in parts:
            for piece in pieces:
                windows[piece.target] = array[piece.source]
        return windows
    block = np.zeros(shape, accumulator("sum", dtype))
    for array, pieces in parts:
        for piece in pieces:
            block[piece.target] += array[piece.source]
    return block.astype(dtype, copy=False)


@dataclass(frozen=True)
class Filling:
    """How one rank makes its part of a pending value.

    Args:
        op: the pending reduction.
        shape: shape of the target shard.
        index: where the rank's own values go in it; None if they fill it.
        keeps: whether this rank contributes its values, or only the identity element.
        scale: what the values are multiplied by, so that an average over the ranks gives them back.
    """

    op: str
    shape: tuple[int, ...]
    index: Index | None
    keeps: bool
    scale: int

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """The rank's part of the pending value."""
        if self.keeps and self.index is None and self.scale == 1:
            return contiguous(array)
        result = np.empty(self.shape, array.dtype)
        if not self.keeps or self.index is not None:
            result[...] = identity(self.op, array.dtype)
        if self.keeps:
            where = ... if self.index is None else self.index
            result[where] = array if self.scale == 1 else array * array.dtype.type(self.scale)
        return result


def filling(step: Step, rank: int, dtype: np.dtype) -> Filling:
    """What ``rank`` holds of a value that becomes pending over the step's axes.

    Along an axis on which the source is replicated, coordinate 0 keeps the values; along one that split it,
    every rank keeps its own slice. For an average all replicas keep the values.
    """
    op = check_reduce(step.op, dtype)
    source, target = step.src.bounds(step.shape, rank), step.dst.bounds(step.shape, rank)
    coords = dict(zip(step.src.mesh.axes, step.src.mesh.coords(rank)))
    split = [axis for axis in step.axes if axis in step.src.split_axes]
    copies = [axis for axis in step.axes if axis not in split]
    scale = step.src.mesh.axis_size(*split) if op == "avg" else 1
    keeps = op == "avg" or all(coords[axis] == 0 for axis in copies)
    index = None if source == target else within(source, target)
    return Filling(op, tuple(stop - start for start, stop in target), index, keeps, scale)


def add_up(op: str, parts: Sequence[np.ndarray], complete: bool) -> np.ndarray:
    """What :func:`fold` makes of all contributions, or, of a part of them, what :func:`add_on` completes."""
    return fold(op if complete or op != "avg" else "sum", parts)


def add_on(op: str, before: np.ndarray, own: np.ndarray, count: int | None) -> np.ndarray:
    """Two sums of contributions added up; ``count`` contributions if these are all."""
    total = fold("sum" if op == "avg" else op, [before, own])
    return (total / count).astype(total.dtype) if op == "avg" and count is not None else total


def scanned(op: str, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """For each of equally shaped arrays, the reduction of those before it; of none, the reduction's identity."""
    prefixes = [np.full(parts[0].shape, identity(op, parts[0].dtype))]
    for part in parts[:-1]:
        prefixes.append(fold(op, [prefixes[-1], part]) if len(prefixes) > 1 else part)
    return prefixes
