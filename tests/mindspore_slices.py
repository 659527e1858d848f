"""Reference execution of MindSpore's redistribution operators on the slices of all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def apply(ops: Mapping[int, Sequence[Any]], slices: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Run the operators ``ops`` of each rank on the ``slices`` and return the resulting slices by rank."""
    state = {rank: np.asarray(value) for rank, value in slices.items()}
    for level in range(max((len(rank_ops) for rank_ops in ops.values()), default=0)):
        state = {
            rank: _apply_operator(ops[rank][level], state, rank) if rank in ops else state[rank]
            for rank in state
        }
    return state


def _apply_operator(op: Any, state: Mapping[int, np.ndarray], rank: int) -> np.ndarray:
    """Return the slice of ``rank`` after an operator; ``state`` has the slices of all ranks before it."""
    value = state[rank]
    if op.name == "Reshape":
        return value.reshape(op.args)
    if op.name == "AllConcat":
        return np.concatenate([state[peer] for peer in op.args[:-1]], axis=op.args[-1])
    if op.name == "AllToAll":
        group, count = op.args["group"], op.args["count"]
        index = group.index(rank)
        blocks = [np.split(state[peer], count, op.args["split_dim"])[index] for peer in group]
        return np.concatenate(blocks, axis=op.args["concat_dim"])
    begin, end, _ = np.split(np.asarray(op.args), 3)
    return value[tuple(slice(int(a), int(b)) for a, b in zip(begin, end))]
