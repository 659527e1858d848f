"""Reference results of all collectives, computed with plain NumPy in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.collectives import Schedule

Array = np.ndarray[Any, Any]


def cut_evenly(array: Array, count: int) -> list[Array]:
    """Return ``count`` blocks of an array; the first ``len(array) % count`` have one element more."""
    small, remainder = divmod(len(array), count)
    stops = np.cumsum([small + (i < remainder) for i in range(count)])
    return np.split(array, stops[:-1])


def expected(schedule: Schedule, inputs: Sequence[Any], op: Callable[[Any, Any], Any] = np.add) -> list[Any]:
    """Return the output of a collective for each rank, and None for ranks without output.

    Args:
        schedule: names the collective, its root and its number of ranks.
        inputs: one array per rank; None for ranks without input.
        op: the reduction.
    """
    n, root, name = schedule.size, schedule.root, schedule.collective.name
    if name == "barrier":
        return [None] * n
    if name == "broadcast":
        return [inputs[root]] * n
    if name == "scatter":
        return list(cut_evenly(inputs[root], n))
    if name in ("all_gather", "gather"):
        full_array = np.concatenate(list(inputs))
        return [full_array if name == "all_gather" or rank == root else None for rank in range(n)]
    if name == "all_to_all":
        blocks = [cut_evenly(operand, n) for operand in inputs]
        return [np.concatenate([blocks[s][d] for s in range(n)]) for d in range(n)]
    sums = [inputs[0]]
    for operand in inputs[1:]:
        sums.append(op(sums[-1], operand))
    if name == "scan":
        return sums
    if name == "exscan":
        return [None, *sums[:-1]]
    if name == "reduce_scatter":
        return list(cut_evenly(sums[-1], n))
    return [sums[-1] if name == "all_reduce" or rank == root else None for rank in range(n)]


def chunk_lengths(schedule: Schedule, inputs: Sequence[Any]) -> list[int]:
    """Return the number of elements of each chunk of these inputs; None counts as no elements."""
    lengths = [0 if operand is None else len(operand) for operand in inputs]
    if schedule.collective.name in ("all_gather", "gather"):
        each = schedule.chunk_count // schedule.size
        return [len(block) for n in lengths for block in cut_evenly(np.empty(n), each)]
    return list(schedule.chunk_elements(lengths[schedule.root]))


def make_inputs(schedule: Schedule, count: int, make: Callable[[int], Any]) -> list[Any]:
    """Return the input of each rank, and None for ranks without input.

    Args:
        schedule: names the collective, its root and its number of ranks.
        count: elements per rank. Gathers get up to 2 more on some ranks, because their blocks may differ in length.
        make: returns an array for a number of elements.
    """
    name, n = schedule.collective.name, schedule.size
    if name == "barrier":
        return [None] * n
    if name in ("broadcast", "scatter"):
        return [make(count) if rank == schedule.root else None for rank in range(n)]
    if name in ("all_gather", "gather"):
        return [make(count + rank % 3 if count else 0) for rank in range(n)]
    return [make(count) for _ in range(n)]
