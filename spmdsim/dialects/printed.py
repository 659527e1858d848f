"""What dialects print of tensors: which values a process knows without asking others, and numbers in nested brackets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.tensor import Tensor
from spmdsim.trace.recorder import unseen


def known_values(x: Tensor) -> tuple[np.ndarray, str]:
    """The values of a tensor that this process has, and which they are, if they are not all.

    Nothing is communicated, so that one rank alone may print.
    """
    whole = not x.layout.partial and set(x.layout.cuts) <= {1} and x.world.ranks[0] in x.layout.mesh
    if whole:
        return np.asarray(x.shards[0]), ""
    if len(x.world.ranks) == x.world.size:
        with unseen():
            return np.asarray(x.detach().full()), ""
    rank = x.world.ranks[0]
    partial = f", pending {x.layout.reduce_op}" if x.layout.partial else ""
    cuts = x.layout.bounds(x.shape, rank) if rank in x.layout.mesh else [(0, 0)] * x.ndim
    box = ", ".join(f"{start}:{stop}" for start, stop in cuts)
    return np.asarray(x.shards[0]), f"rank {rank} has [{box}]{partial}"


def ends(array: np.ndarray, edgeitems: int, threshold: float) -> tuple[np.ndarray, list[bool]]:
    """Of a large array the elements at the ends of its dims, and which dims were cut."""
    cut = [array.size > threshold and size > 2 * edgeitems for size in array.shape]
    for dim in [dim for dim, short in enumerate(cut) if short]:
        array = np.take(array, np.r_[:edgeitems, -edgeitems:0], axis=dim)
    return array, cut


def nested(
    array: np.ndarray, cut: Sequence[bool], indent: int, written: Callable[[Any], str], per_line: Callable[[int], int],
    edgeitems: int, dots: str = "...",
) -> str:  # fmt: skip
    """Numbers in brackets, those that :func:`ends` leaves: as many per line as fit behind so many characters."""
    if not array.ndim:
        return written(array[()])
    if array.ndim == 1:
        items, size, joined = [written(value) for value in array], max(1, per_line(indent)), ", "
    else:
        items = [nested(part, cut[1:], indent + 1, written, per_line, edgeitems, dots) for part in array]
        size, joined = 1, ""
    if cut[0]:
        items.insert(edgeitems, "..." if array.ndim > 1 else dots)
    lines = [joined.join(items[k : k + size]) for k in range(0, len(items), size)]
    apart = "," + "\n" * max(1, array.ndim - 1) + " " * (indent + 1)
    return f"[{apart.join(lines)}]"
