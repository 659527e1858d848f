"""Plan redistributions exactly and choose strategies of operators, by a model of the machine.

The price of a strategy has three parts: the plans that redistribute the operands, the computation with its collectives,
and the plan that would reduce a pending result. A lower bound of the price is computed first, so that only strategies
that may win are planned.
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
from spmdsim.layout.element_type import element_type, storage_dtype
from spmdsim.redistribution.plans.planner import Plan, plan
from spmdsim.redistribution.price import price_step, steps_seconds

if TYPE_CHECKING:
    import numpy as np

#: Two layouts of a tensor, its shape, and its element type.
Move: TypeAlias = "tuple[Layout, Layout, tuple[int, ...], np.dtype]"


class MachinePlanner:
    """Planner that takes prices from a cost model; None is the default model."""

    def __init__(self, machine: CostModel | None) -> None:
        self.machine = machine

    def plan(self, src: Layout, dst: Layout, shape: tuple[int, ...], dtype: np.dtype) -> Plan:
        """Return the exact plan; see :func:`spmdsim.plan`."""
        return plan(src, dst, shape, dtype, self.machine)

    def choose(self, bound: BoundRule, layouts: Sequence[Layout], dtypes: Sequence[np.dtype]) -> Strategy:
        """Return the cheapest strategy, by modelled time of the computation and of its plans.

        See :func:`choose_strategy` for the arguments and errors.
        """
        return choose_strategy(bound, layouts, dtypes, self.machine)


def choose_strategy(
    bound: BoundRule, layouts: Sequence[Layout], dtypes: Sequence[Any], machine: CostModel | None = None
) -> Strategy:
    """Return the strategy with the least modelled time for operands with these layouts.

    Results are cached.

    Args:
        bound: the operator's rule with the operands' shapes.
        layouts: the layout of each operand.
        dtypes: the element type of each operand.
        machine: the cost model. None: the plans with the fewest bytes are used, with the times of a laptop.

    Raises:
        RuleError: If no strategy fits.
    """
    model: Any = machine
    return _choose(bound, tuple(layouts), tuple(element_type(dtype) for dtype in dtypes), model)


@lru_cache(maxsize=4096)
def _choose(
    bound: BoundRule, layouts: tuple[Layout, ...], dtypes: tuple[np.dtype, ...], machine: Any
) -> Strategy:
    """Return the strategy with the least price: the axes that split each dim of an operator.

    The price is the modelled seconds of the computation, its collectives and the redistributions of operands and
    results. Of prices that are equal in ten digits, the first strategy counts.

    Each strategy first gets a lower bound of its price. In the order of these bounds, strategies are planned, which
    gives the exact price and takes longer. For example, with bounds 3, 5 and 9 and planned prices 6 and 7 of the first
    two, the third one is never planned.

    Args:
        bound: the operator's rule with the operands' shapes.
        layouts: the layout of each operand.
        dtypes: the element type of each operand.
        machine: the cost model, or None, as in :func:`choose_strategy`.

    Raises:
        RuleError: If no strategy fits.
    """
    options = []
    itemsizes = [dtype.itemsize for dtype in dtypes]
    for number, strategy in enumerate(_candidates(bound, layouts)):
        moves = _moves(bound, strategy, layouts, dtypes)
        lower_bounds = [
            forward_work(bound, strategy, itemsizes).seconds(machine or Machine.laptop())
            + steps_seconds(bound.steps(strategy) or (), machine or Machine.laptop()),
            *(bound_planned_seconds(*move, machine) for move in moves),
        ]
        options.append((sum(lower_bounds), number, lower_bounds, moves, strategy))
    best: tuple[float, float, Strategy | None] = math.inf, math.inf, None
    for _, number, seconds, moves, strategy in sorted(options, key=lambda option: option[0]):
        # Replace the lower bounds of the moves by exact times, as long as the strategy can still be the best one.
        for index, move in enumerate(moves, 1):
            # The factor allows for rounding: ``best`` has ten digits.
            if sum(seconds) <= best[0] * 1.000000001:
                seconds[index] = planned_seconds(*move, machine)
        # Equal times but for rounding: the first strategy wins.
        best = min(best, (float(f"{sum(seconds):.9e}"), number, strategy))
    if best[2] is None:
        raise RuleError(f"no strategy fits the rule '{bound.rule}' on any of the operands' meshes")
    return best[2]


def _candidates(bound: BoundRule, layouts: Sequence[Layout]) -> list[Strategy]:
    """Return the strategies among which the planner chooses, on the operands' meshes.

    An operand is partial in a strategy only if it is partial in its layout. Variants with another order of axes are
    included (:func:`_vary_axis_order`). The list is empty if no strategy fits the rule.

    Args:
        bound: the operator's rule with the operands' shapes.
        layouts: the layout of each operand.
    """
    strategies: list[Strategy] = []
    for mesh in dict.fromkeys(layout.mesh for layout in layouts):
        partial = {op for layout in layouts for op in dict(layout.partial).values()}
        for strategy in bound.strategies(mesh, partial=bool(partial), empty=True):
            if _are_partial(strategy, layouts):
                strategies += _vary_axis_order(strategy, layouts)
    return strategies


def _are_partial(strategy: Strategy, layouts: Sequence[Layout]) -> bool:
    """Return True if each operand that is partial in a strategy is also partial in its layout.

    The layout must have the strategy's mesh, and the operand's reduction along the axis. Return True, too, if no
    operand is partial in the strategy.

    Args:
        strategy: the axes that split each factor (dim) of the operator.
        layouts: the layout of each operand.
    """
    return all(
        layouts[i].mesh == strategy.mesh and dict(layouts[i].partial).get(axis) == op
        for axis, operands, op in strategy.passed
        for i in operands
    )


def _vary_axis_order(strategy: Strategy, layouts: Sequence[Layout]) -> list[Strategy]:
    """Return a strategy, and variants of it in which one factor has its axes in another order.

    An operand whose layout has the strategy's order of axes need not be redistributed. So each dim of an operand's
    layout gives one order per factor: first the factor's axes that split this dim, in the layout's order, then its
    other axes. For example, if the axes (x, y, z) split a factor, a dim split by (z, x) gives the order (z, x, y).

    The strategy itself comes first. Each new order of each factor follows once.

    Args:
        strategy: the axes that split each factor (dim) of the operator.
        layouts: the layout of each operand.
    """
    # Dicts with the value None serve as ordered sets.
    dims = dict.fromkeys(entry for layout in layouts for entry in layout.dims if entry)
    variants = [strategy]
    for factor, axes in strategy.splits:
        orders: dict[tuple[str, ...], None] = {}
        for entry in dims:
            first_axes = [axis for axis in entry if axis in axes]
            orders[(*first_axes, *(axis for axis in axes if axis not in first_axes))] = None
        for order in orders:
            if order != axes:
                variants.append(Strategy.of(strategy.mesh, {**strategy.axes, factor: order}, strategy.passed))
    return variants


def _moves(
    bound: BoundRule, strategy: Strategy, layouts: Sequence[Layout], dtypes: Sequence[np.dtype]
) -> list[Move]:
    """Return the redistributions that a strategy needs, as ``(source, target, shape, dtype)``.

    The list has one for each operand, also if its layout does not change, and one for each result with pending
    reductions, which carries them out. The element type of a result is taken to be the widest of the operands, or
    float64 without operands.

    Args:
        bound: the operator's rule with the operands' shapes.
        strategy: the axes that split each factor (dim) of the operator.
        layouts: the layout of each operand.
        dtypes: the element type of each operand.
    """
    outputs = [(layout, shape) for layout, shape in zip(bound.output_layouts(strategy), bound.output_shapes)]
    widest = max(dtypes, key=lambda dtype: dtype.itemsize, default=element_type("float64"))
    return [
        *zip(layouts, bound.input_layouts(strategy), bound.shapes, dtypes),
        *((layout, layout.reduced, shape, widest) for layout, shape in outputs if layout.partial),
    ]


def planned_seconds(
    src: Layout, dst: Layout, shape: tuple[int, ...], dtype: np.dtype, machine: Any = None
) -> float:
    """Return the modelled seconds of the plan between two layouts.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape.
        dtype: the element type.
        machine: the cost model. None: the plan has the fewest bytes, and the seconds are those of a laptop.

    Raises:
        PlanError: If no steps lead from one layout to the other.
    """
    best = plan(src, dst, shape, dtype, machine)
    if machine is not None:
        return best.seconds
    return sum(price_step(step, best.itemsize, Machine.laptop())[1] for step in best.steps)


def bound_planned_seconds(
    src: Layout, dst: Layout, shape: tuple[int, ...], dtype: np.dtype, machine: CostModel | None
) -> float:
    """Return a lower bound of :func:`planned_seconds` that needs no plan.

    It is the time of one message on the machine's best link, with the elements that the first or the last rank of the
    target must receive: those of its target box that it does not own. If values are reduced, it must receive all of
    them, because it owns at most one addend of each. The bound is 0 for models that are no :class:`Machine`, and for
    measured times.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape.
        dtype: the element type.
        machine: the cost model; None for a laptop.
    """
    model = machine or Machine.laptop()
    if src == dst or not isinstance(model, Machine) or model.measured:
        return 0.0
    reduces = any(item not in dst.partial and src.mesh.size_of[item[0]] > 1 for item in src.partial)
    ends = (dst.mesh.rank_at(0), dst.mesh.rank_at(dst.mesh.size - 1))
    elements = max(_missing(src, dst, shape, rank, reduces) for rank in ends)
    received = elements * storage_dtype(src, dtype).itemsize
    link = _best_link(model)
    return link.alpha + received * link.beta if received else 0.0


def _missing(src: Layout, dst: Layout, shape: tuple[int, ...], rank: int, reduces: bool) -> int:
    """Return the number of elements of a rank's target box that it must receive.

    It receives those that its source box lacks.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape.
        rank: a rank of both meshes.
        reduces: True if each element is a reduction over ranks, so that the rank owns none.
    """
    target = dst.bounds(shape, rank)
    owned = None if reduces else overlap(src.bounds(shape, rank), target)
    return volume(target) - (volume(owned) if owned else 0)


@lru_cache(maxsize=256)
def _best_link(machine: Machine) -> Link:
    """Return a link that is at least as fast as each link of a machine.

    It has the least latency (alpha) and the least seconds per byte (beta) of all.
    """
    links: list[Any] = [machine, *machine.pieces, *(link for _, link in machine.axis_links)]
    links += [machine.intra] if machine.intra else []
    return Link(min(link.alpha for link in links), min(link.beta for link in links))
