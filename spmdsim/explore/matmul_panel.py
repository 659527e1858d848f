"""A matrix product, for the page: slices of the operands, local products, partial sums, and a ring that adds them up."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from spmdsim.collectives import schedule_of
from spmdsim.collectives.history import History, unroll
from spmdsim.core import Layout, Mesh, Strategy
from spmdsim.core.rule import BoundRule
from spmdsim.core.step import Step
from spmdsim.explore.moves import boxes
from spmdsim.ops import matmul
from spmdsim.tensor import Tensor
from spmdsim.worlds import LockStep

M, K, N = 4, 8, 4
_NUMBERS = np.random.default_rng(7)
X = _NUMBERS.integers(0, 4, (M, K))
W = _NUMBERS.integers(-2, 3, (K, N))
"""Small whole numbers: every sum of them is exact, in any order."""


def product(mesh: Mesh) -> dict[str, Any]:
    """``x @ w`` under every strategy on a mesh, by key."""
    bound = matmul.op.bind((X.shape, W.shape), {})
    every = [one for one in bound.strategies(mesh, partial=False) if _is_busy(one, mesh)]
    strategies = {strategy_key(strategy): strategy_facts(bound, strategy) for strategy in every}
    return {"mesh": str(mesh), "strategies": strategies}


def operands() -> dict[str, Any]:
    """The global matrices, alike in all products."""
    return {"x": X.tolist(), "w": W.tolist(), "y": (X @ W).tolist()}


def strategy_key(strategy: Strategy) -> str:
    """One factor per busy axis, in mesh order.

    >>> strategy_key(Strategy.of(Mesh((2, 1, 2), ("a", "b", "c")), {"k": "c"}))
    '-,k'
    """
    factor = {axis: name for name, axes in strategy.splits for axis in axes}
    mesh = strategy.mesh
    return ",".join(factor.get(axis, "-") for axis, size in zip(mesh.axes, mesh.shape) if size > 1)


def strategy_facts(bound: BoundRule, strategy: Strategy) -> dict[str, Any]:
    """One strategy: layouts and boxes of the operands, what every rank computes, and the rounds that reduce it.

    ``local``: per rank the local product; ``rounds``: per round of the ring the messages ``[from, to, elements]`` and
    every rank's numbers afterwards, row-major like ``local``; ``result``: those in the end, as the library has them.
    """
    world = LockStep(strategy.mesh.size)
    first, second = bound.input_layouts(strategy)
    x, w = (Tensor.from_global(a, layout, world) for a, layout in ((X, first), (W, second)))
    y = matmul(x, w)  # operands that lie as the strategy wants them are multiplied as they are
    whole = y.to(y.layout.reduced)
    local = [np.asarray(shard) for shard in y.shards]
    return {
        "text": str(strategy),
        "layouts": [str(first), str(second), str(y.layout)],
        "x": boxes(first, X.shape),
        "w": boxes(second, W.shape),
        "y": boxes(y.layout, (M, N)),
        "pending": list(y.layout.partial_axes),
        "local": [shard.ravel().tolist() for shard in local],
        "received": _received(y.layout, y.meta.dtype.itemsize),
        "rounds": ring_rounds(y.layout, local),
        "result": [np.asarray(shard).ravel().tolist() for shard in whole.shards],
    }


def _received(layout: Layout, itemsize: int) -> list[int]:
    """Bytes that every rank receives in the all_reduce."""
    if not layout.partial:
        return [0] * layout.mesh.size
    step = Step("all_reduce", layout.partial_axes, layout, layout.reduced, (M, N), "sum")
    return [step.nbytes(rank, itemsize) for rank in layout.mesh.rank_list]


def ring_rounds(layout: Layout, local: list[np.ndarray]) -> list[dict[str, Any]]:
    """The partial sums of every group on their way around a ring."""
    if not layout.partial:
        return []
    groups = layout.mesh.groups(*layout.partial_axes)
    story = unroll(schedule_of("all_reduce", "ring", len(groups[0])))
    rounds = []
    for number, messages in enumerate(story.steps):
        sent: list[list[Any]] = []
        held: list[list[int]] = [[] for _ in local]
        for group in groups:
            parts = [local[layout.mesh.position(rank)].ravel() for rank in group]
            spans = _spans(story, len(parts[0]))
            for place, rank in enumerate(group):
                held[layout.mesh.position(rank)] = _numbers(story, number + 1, place, parts, spans)
            for message in messages:
                elements = [e for chunk in message.chunks for e in range(*spans[chunk])]
                sent.append([group[message.source], group[message.target], elements, int(message.reduces)])
        rounds.append({"sent": sent, "held": held})
    return rounds


def _spans(story: History, count: int) -> list[tuple[int, int]]:
    """First and last element of each chunk."""
    ends = np.cumsum([0, *story.schedule.chunk_elements(count)]).tolist()
    return list(pairwise(ends))


def _numbers(
    story: History, state: int, place: int, parts: list[np.ndarray], spans: list[tuple[int, int]]
) -> list[int]:
    """What a rank holds: per chunk the sum of those whose input is in it."""
    numbers: list[int] = []
    for chunk, span in enumerate(spans):
        inside = story.contributors(story.states[state].holds[place][chunk])
        numbers += np.sum([parts[one][slice(*span)] for one in inside], axis=0).tolist()
    return numbers


def _is_busy(strategy: Strategy, mesh: Mesh) -> bool:
    """Whether it splits nothing over axes of size 1."""
    return all(mesh.axis_size(axis) > 1 for _, axes in strategy.splits for axis in axes)
