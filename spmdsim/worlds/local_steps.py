"""Steps on one rank's array that move nothing, and what is put together from arrays at hand.

A slice that is contiguous in its source is a view of it: the source was replicated, its owner holds it
anyhow, and a copy of 64 MiB costs milliseconds. Any other slice is copied. Who drops the source and wants its
memory back copies the slice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from spmdsim.core.elements import fold, identity
from spmdsim.core.lockstep import contiguous
from spmdsim.core.step import Step, within
from spmdsim.layout.element_type import accumulator, check_reduce
from spmdsim.redistribution.halo import HaloPiece, HaloStep
from spmdsim.worlds.pool import empty
from spmdsim.worlds.programs import Run


def in_order(run: Run) -> Run:
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


def filling(step: Step, rank: int, dtype: np.dtype) -> Run:
    """How ``rank`` makes its part of a value that becomes pending over the step's axes.

    Along an axis on which the source is replicated, coordinate 0 keeps the values, and the others hold the identity; along
    one that split it, every rank keeps its own slice. For an average all replicas keep the values, multiplied so that the
    average gives them back.
    """
    op = check_reduce(step.op, dtype)
    source, target = step.src.bounds(step.shape, rank), step.dst.bounds(step.shape, rank)
    coords = dict(zip(step.src.mesh.axes, step.src.mesh.coords(rank)))
    split = [axis for axis in step.axes if axis in step.src.split_axes]
    copies = [axis for axis in step.axes if axis not in split]
    scale = step.src.mesh.axis_size(*split) if op == "avg" else 1
    keeps = op == "avg" or all(coords[axis] == 0 for axis in copies)
    shape, fits = tuple(stop - start for start, stop in target), source == target
    if keeps and fits and scale == 1:
        return contiguous
    where = ... if fits else within(source, target)

    def run(array: np.ndarray) -> np.ndarray:
        result = np.empty(shape, array.dtype)
        if not (keeps and fits):
            result[...] = identity(op, array.dtype)
        if keeps:
            result[where] = array if scale == 1 else array * array.dtype.type(scale)
        return result

    return run


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
