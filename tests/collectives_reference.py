"""What each collective must give, in plain numpy and one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.collectives import Schedule

Array = np.ndarray[Any, Any]


def balanced(array: Array, pieces: int) -> list[Array]:
    """Cut so that the first ``len % pieces`` pieces have one element more."""
    small, rest = divmod(len(array), pieces)
    stops = np.cumsum([small + (i < rest) for i in range(pieces)])
    return np.split(array, stops[:-1])


def expected(schedule: Schedule, inputs: Sequence[Any], op: Callable[[Any, Any], Any] = np.add) -> list[Any]:
    """Each rank's output; None where a rank has none."""
    n, root, name = schedule.size, schedule.root, schedule.collective.name
    if name == "barrier":
        return [None] * n
    if name == "broadcast":
        return [inputs[root]] * n
    if name == "scatter":
        return list(balanced(inputs[root], n))
    if name in ("all_gather", "gather"):
        whole = np.concatenate(list(inputs))
        return [whole if name == "all_gather" or rank == root else None for rank in range(n)]
    if name == "all_to_all":
        blocks = [balanced(operand, n) for operand in inputs]
        return [np.concatenate([blocks[s][d] for s in range(n)]) for d in range(n)]
    sums = [inputs[0]]
    for operand in inputs[1:]:
        sums.append(op(sums[-1], operand))
    if name == "scan":
        return sums
    if name == "exscan":
        return [None, *sums[:-1]]
    if name == "reduce_scatter":
        return list(balanced(sums[-1], n))
    return [sums[-1] if name == "all_reduce" or rank == root else None for rank in range(n)]


def make_inputs(schedule: Schedule, count: int, make: Callable[[int], Any]) -> list[Any]:
    """An input for every rank that has one; blocks of different lengths where that is allowed."""
    name, n = schedule.collective.name, schedule.size
    if name == "barrier":
        return [None] * n
    if name in ("broadcast", "scatter"):
        return [make(count) if rank == schedule.root else None for rank in range(n)]
    if name in ("all_gather", "gather"):
        return [make(count + rank % 3 if count else 0) for rank in range(n)]
    return [make(count) for _ in range(n)]
