"""The cheapest strategy of one operator for operands that already live somewhere.

All strategies are priced: what the operands must move, the computation, and the pending reduction that the
result is left with. "Most split wins" and "cheapest input move wins" both lose to this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from spmdsim.cost.machine import CostModel, Machine
from spmdsim.errors import RuleError
from spmdsim.layout import Layout, Mesh
from spmdsim.redistribution.step import overlap
from spmdsim.rules import BoundRule, Strategy


def choose(
    bound: BoundRule, layouts: Sequence[Layout], dtypes: Sequence[Any], machine: CostModel | None = None
) -> Strategy:
    """The strategy with the least modelled time.

    Args:
        bound: the operator's rule with sizes.
        layouts: where the operands live now.
        dtypes: their element types.
        machine: the cost model; a laptop if left out.

    Raises:
        RuleError: no strategy at all fits.
    """
    sizes = tuple(getattr(dtype, "itemsize", 8) for dtype in dtypes)
    return _choose(bound, tuple(layouts), sizes, machine or Machine.laptop())  # type: ignore[arg-type]


@lru_cache(maxsize=16384)
def _choose(
    bound: BoundRule, layouts: tuple[Layout, ...], itemsizes: tuple[int, ...], machine: CostModel
) -> Strategy:
    best: tuple[float, int, Strategy] | None = None
    for number, strategy in enumerate(_candidates(bound, layouts)):
        seconds = _price(bound, strategy, layouts, itemsizes, machine)
        if best is None or seconds < best[0] * (1 - 1e-9):
            best = (seconds, number, strategy)
    if best is None:
        raise RuleError(f"no strategy fits the rule '{bound.rule}' on any of the operands' meshes")
    return best[2]


def _candidates(bound: BoundRule, layouts: Sequence[Layout]) -> list[Strategy]:
    found: list[Strategy] = []
    for mesh in dict.fromkeys(layout.mesh for layout in layouts):
        partial = {op for layout in layouts for op in dict(layout.partial).values()}
        for strategy in bound.strategies(mesh, partial=bool(partial), empty=True):
            if _pending_already(strategy, layouts):
                found += _orders(strategy, layouts)
    return found


def _pending_already(strategy: Strategy, layouts: Sequence[Layout]) -> bool:
    """Whether what the strategy passes on is pending in the operands, by the same reduction: nothing makes it so."""
    return all(
        layouts[i].mesh == strategy.mesh and dict(layouts[i].partial).get(axis) == op
        for axis, operands, op in strategy.passed
        for i in operands
    )


def _orders(strategy: Strategy, layouts: Sequence[Layout]) -> list[Strategy]:
    """The strategy with the axes of a factor in mesh order, and in the order an operand already has."""
    used = {entry for layout in layouts for entry in layout.dims if len(entry) > 1}
    variants = [strategy]
    for factor, axes in strategy.splits:
        same = [entry for entry in used if set(entry) == set(axes) and entry != axes]
        for entry in same:
            splits = {**strategy.axes, factor: entry}
            variants.append(Strategy.of(strategy.mesh, splits, strategy.passed))
    return variants


def _price(
    bound: BoundRule,
    strategy: Strategy,
    layouts: Sequence[Layout],
    itemsizes: Sequence[int],
    machine: CostModel,
) -> float:
    seconds = 0.0
    pieces = math.prod(strategy.parts(factor) for factor in bound.sizes)
    nbytes = sum(math.prod(shape) * size for shape, size in zip(bound.shapes, itemsizes)) / pieces
    seconds += machine.compute_seconds(bound.flops / pieces, nbytes)
    for src, dst, shape, size in zip(layouts, bound.input_layouts(strategy), bound.shapes, itemsizes):
        seconds += _moving(src, dst, shape, size, machine)
    for layout, shape in zip(bound.output_layouts(strategy), bound.output_shapes):
        if layout.partial:
            seconds += _reducing(layout, shape, max(itemsizes, default=8), machine)
    return seconds


def _moving(src: Layout, dst: Layout, shape: tuple[int, ...], itemsize: int, machine: CostModel) -> float:
    if src == dst:
        return 0.0
    seconds = 0.0
    kept = [axis for axis in src.partial_axes if axis in dst.partial_axes]
    pending = [axis for axis in src.partial_axes if axis not in kept]
    if pending:
        group = src.mesh.axis_size(*pending)
        local = math.prod(src.local_shape(shape, src.mesh.rank_at(0))) * itemsize
        scattered = any(axis in dst.split_axes for axis in pending)
        kind = "reduce_scatter" if scattered else "all_reduce"
        seconds += machine.seconds(kind, group, (1 if scattered else 2) * local * (group - 1) / group)
    received = max(_received(src, dst, shape, rank) for rank in _sample(dst.mesh)) * itemsize
    if received:
        seconds += machine.seconds("exchange", dst.mesh.size, received, messages=1)
    return seconds


def _reducing(layout: Layout, shape: tuple[int, ...], itemsize: int, machine: CostModel) -> float:
    group = layout.mesh.axis_size(*layout.partial_axes)
    local = math.prod(layout.local_shape(shape, layout.mesh.rank_at(0))) * itemsize
    return machine.seconds("all_reduce", group, 2 * local * (group - 1) / group)


def _received(src: Layout, dst: Layout, shape: tuple[int, ...], rank: int) -> int:
    target = dst.bounds(shape, rank)
    box = overlap(src.bounds(shape, rank), target)
    held = math.prod(stop - start for start, stop in box) if box else 0
    return math.prod(stop - start for start, stop in target) - held


def _sample(mesh: Mesh) -> list[int]:
    """Ranks that stand for all: every rank of a small mesh, a spread of a large one."""
    step = max(1, mesh.size // 16)
    return [mesh.rank_at(position) for position in range(0, mesh.size, step)]
