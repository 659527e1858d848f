"""The cheapest strategy of one operator for operands that already live somewhere.

All strategies are priced: the plans that bring the operands where they are wanted, the computation with the collectives
in its middle, and the plan that would complete a result left pending. "Most split wins" and "cheapest input move wins"
both lose to this. A quick lower bound of that price comes first, so that only the strategies that may win are planned for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from spmdsim.core import BoundRule, Layout, Strategy
from spmdsim.core.step import overlap, volume
from spmdsim.cost.machine import CostModel, Link, Machine
from spmdsim.cost.roofline import forward_work
from spmdsim.errors import RuleError
from spmdsim.layout.element_type import element_type, held_type
from spmdsim.redistribution.planner import plan
from spmdsim.redistribution.price import price_step, steps_seconds

if TYPE_CHECKING:
    import numpy as np

#: Two layouts of a tensor, its shape, and its element type.
Move: TypeAlias = "tuple[Layout, Layout, tuple[int, ...], np.dtype]"


def choose(
    bound: BoundRule, layouts: Sequence[Layout], dtypes: Sequence[Any], machine: CostModel | None = None
) -> Strategy:
    """The strategy with the least modelled time, for operands in these layouts.

    Without a cost model the plans are those with the fewest bytes, and their times a laptop's.

    Raises:
        RuleError: no strategy at all fits.
    """
    model: Any = machine
    return _choose(bound, tuple(layouts), tuple(element_type(dtype) for dtype in dtypes), model)


@lru_cache(maxsize=4096)
def _choose(
    bound: BoundRule, layouts: tuple[Layout, ...], dtypes: tuple[np.dtype, ...], machine: Any
) -> Strategy:
    options = []
    itemsizes = [dtype.itemsize for dtype in dtypes]
    for number, strategy in enumerate(_candidates(bound, layouts)):
        moves = _moves(bound, strategy, layouts, dtypes)
        least = [
            forward_work(bound, strategy, itemsizes).seconds(machine or Machine.laptop())
            + steps_seconds(bound.steps(strategy) or (), machine or Machine.laptop()),
            *(least_seconds(*move, machine) for move in moves),
        ]
        options.append((sum(least), number, least, moves, strategy))
    best: tuple[float, float, Strategy | None] = math.inf, math.inf, None
    for _, number, seconds, moves, strategy in sorted(options, key=lambda option: option[0]):
        for place, move in enumerate(moves, 1):
            if sum(seconds) <= best[0] * 1.000000001:
                seconds[place] = planned_seconds(*move, machine)
        # Equal times but for rounding: the first strategy wins.
        best = min(best, (float(f"{sum(seconds):.9e}"), number, strategy))
    if best[2] is None:
        raise RuleError(f"no strategy fits the rule '{bound.rule}' on any of the operands' meshes")
    return best[2]


def _candidates(bound: BoundRule, layouts: Sequence[Layout]) -> list[Strategy]:
    strategies: list[Strategy] = []
    for mesh in dict.fromkeys(layout.mesh for layout in layouts):
        partial = {op for layout in layouts for op in dict(layout.partial).values()}
        for strategy in bound.strategies(mesh, partial=bool(partial), empty=True):
            if _partial_already(strategy, layouts):
                strategies += _orders(strategy, layouts)
    return strategies


def _partial_already(strategy: Strategy, layouts: Sequence[Layout]) -> bool:
    """Whether what the strategy passes on is pending in the operands, by the same reduction: nothing makes it so."""
    return all(
        layouts[i].mesh == strategy.mesh and dict(layouts[i].partial).get(axis) == op
        for axis, operands, op in strategy.passed
        for i in operands
    )


def _orders(strategy: Strategy, layouts: Sequence[Layout]) -> list[Strategy]:
    """The strategy with the axes of a factor in mesh order, and begun in the order an operand already has."""
    used = dict.fromkeys(entry for layout in layouts for entry in layout.dims if entry)
    variants = [strategy]
    for factor, axes in strategy.splits:
        first = ([axis for axis in entry if axis in axes] for entry in used)
        orders = dict.fromkeys((*begun, *(a for a in axes if a not in begun)) for begun in first)
        for order in orders:
            if order != axes:
                variants.append(Strategy.of(strategy.mesh, {**strategy.axes, factor: order}, strategy.passed))
    return variants


def _moves(
    bound: BoundRule, strategy: Strategy, layouts: Sequence[Layout], dtypes: Sequence[np.dtype]
) -> list[Move]:
    """What moves with a strategy: the operands, and the results that are left pending."""
    outputs = [(layout, shape) for layout, shape in zip(bound.output_layouts(strategy), bound.output_shapes)]
    widest = max(dtypes, key=lambda dtype: dtype.itemsize, default=element_type("float64"))
    return [
        *zip(layouts, bound.input_layouts(strategy), bound.shapes, dtypes),
        *((layout, layout.reduced, shape, widest) for layout, shape in outputs if layout.partial),
    ]


def planned_seconds(
    src: Layout, dst: Layout, shape: tuple[int, ...], dtype: np.dtype, machine: Any = None
) -> float:
    """Modelled seconds of the plan between two layouts."""
    best = plan(src, dst, shape, dtype, machine)
    if machine is not None:
        return best.seconds
    return sum(price_step(step, best.itemsize, Machine.laptop())[1] for step in best.steps)


def least_seconds(
    src: Layout, dst: Layout, shape: tuple[int, ...], dtype: np.dtype, machine: CostModel | None
) -> float:
    """Seconds that :func:`planned_seconds` says at least, from what two ranks of the target must receive.

    Where values are reduced, each holder of a sum has one contribution at most and receives another for each element.
    Models other than machines, and measured times, say nothing.
    """
    model = machine or Machine.laptop()
    if src == dst or not isinstance(model, Machine) or model.measured:
        return 0.0
    reduces = any(item not in dst.partial and src.mesh.size_of[item[0]] > 1 for item in src.partial)
    ends = (dst.mesh.rank_at(0), dst.mesh.rank_at(dst.mesh.size - 1))
    received = max(_missing(src, dst, shape, rank, reduces) for rank in ends) * held_type(src, dtype).itemsize
    link = _best_link(model)
    return link.alpha + received * link.beta if received else 0.0


def _missing(src: Layout, dst: Layout, shape: tuple[int, ...], rank: int, reduces: bool) -> int:
    target = dst.bounds(shape, rank)
    held = None if reduces else overlap(src.bounds(shape, rank), target)
    return volume(target) - (volume(held) if held else 0)


@lru_cache(maxsize=256)
def _best_link(machine: Machine) -> Link:
    """The least alpha and the least beta of any message."""
    links: list[Any] = [machine, *machine.pieces, *(link for _, link in machine.axis_links)]
    links += [machine.intra] if machine.intra else []
    return Link(min(link.alpha for link in links), min(link.beta for link in links))
