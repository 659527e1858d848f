"""Candidate strategies of operators with the layouts that follow from them, and the choice of a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from spmdsim.auto_parallel.programs.graph import Graph, Operator
from spmdsim.core import BoundRule, Layout, Mesh, Strategy
from spmdsim.core.cuts import result_layout, strategy_from_cuts
from spmdsim.errors import InputError, context, many
from spmdsim.pictured import ShortRepr


@dataclass(frozen=True)
class States:
    """An operator's strategies, one per state, with the layouts that follow from them.

    Attributes:
        strategies: the strategy of each state.
        inputs: ``inputs[operand][state]``, the layout in which an operand is read.
        outputs: ``outputs[result][state]``, the layout in which a result is computed.
        gradients: ``gradients[operand][state]``, the layout in which an operand's gradient is computed.
    """

    strategies: tuple[Strategy, ...]
    inputs: tuple[tuple[Layout, ...], ...]
    outputs: tuple[tuple[Layout, ...], ...]
    gradients: tuple[tuple[Layout, ...], ...]


@lru_cache(maxsize=4096)
def states_of(bound: BoundRule, strategies: tuple[Strategy, ...]) -> States:
    """Return the layouts of operands, results and gradients under each strategy of an operator.

    Entry s of each tuple belongs to ``strategies[s]``. All layouts are canonical (without axes of size 1), so
    equal splits are equal layouts. Whether the rule allows the strategies is not checked. Up to 4096 results are
    cached.

    Args:
        bound: the operator's rule, bound to its shapes.
        strategies: the strategies among which a search chooses.
    """
    inputs = [bound.input_layouts(s) for s in strategies]
    outputs = [bound.output_layouts(s) for s in strategies]
    operands, results = range(len(bound.inputs)), range(len(bound.outputs))
    return States(
        strategies,
        inputs=tuple(tuple(layouts[i].canonical for layouts in inputs) for i in operands),
        outputs=tuple(tuple(layouts[k].canonical for layouts in outputs) for k in results),
        gradients=tuple(tuple(bound.gradient_layout(s, i).canonical for s in strategies) for i in operands),
    )


@dataclass(frozen=True)
class StorageStates:
    """The states of a tensor with a variable of its own.

    Attributes:
        layouts: for each state, the layout in which it is stored.
        sums: for each state of a parameter, the layouts in which gradients of several readers are added before they
            move.
        shares_message: for each state, True if the gradient shares a message. The state then has one layout in
            ``sums``, in which the gradient arrives.
        joint: True if readers pay together for the moves of their gradients, instead of by ``sums``.
        complete: True if the states include all ways to add gradients.
    """

    layouts: tuple[Layout, ...]
    sums: tuple[tuple[Layout, ...], ...] = ()
    shares_message: tuple[bool, ...] = ()
    joint: bool = False
    complete: bool = True


class OperatorLayouts(NamedTuple):
    """Layouts of one operator: of its operands as read, and of results and operands' gradients as computed."""

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    gradients: tuple[Layout, ...]


@dataclass(frozen=True, repr=False)
class StrategyChoice(ShortRepr):
    """Decision of a search: a strategy per operator, and per tensor the layout in which it is stored."""

    graph: Graph
    mesh: Mesh
    strategies: tuple[Strategy, ...]
    layouts: tuple[Layout, ...]

    @cached_property
    def operator_layouts(self) -> tuple[OperatorLayouts, ...]:
        """Layouts that follow from each operator's strategy, in the order of the operators.

        The layouts are those in which an operator reads its operands, computes its results, and computes the
        gradients of its operands. Gradients that are not needed have layouts, too. Layouts are not canonical: axes of
        size 1 stay.
        """
        derived: dict[tuple[int, Strategy], OperatorLayouts] = {}
        rows = []
        for operator, strategy in zip(self.graph.operators, self.strategies):
            # Repeated layers share their rules, which the graph keeps alive.
            key, bound = (id(operator.bound), strategy), operator.bound
            if key not in derived:
                gradients = tuple([bound.gradient_layout(strategy, k) for k in range(len(operator.inputs))])
                ends = bound.input_layouts(strategy), bound.output_layouts(strategy)
                derived[key] = OperatorLayouts(*ends, gradients)
            rows.append(derived[key])
        return tuple(rows)


#: Most strategies of one operator that are enumerated.
MOST_STRATEGIES = 100_000
#: Most ranks, and most strategies of an operator, with which meshes of three axes are searched.
THREE_AXES_RANKS, FEW_STRATEGIES = 64, 64


@lru_cache(maxsize=4096)
def mesh_strategies(
    bound: BoundRule,
    mesh: Mesh,
    *,
    partial: bool = False,
    full: bool = False,
    even: bool = True,
    nested: bool = True,
) -> tuple[Strategy, ...]:
    """Return the strategies of an operator on a mesh, the least split one first; cached.

    Axes of size 1 are never used. The strategy without splits is among them unless ``full`` removes it.

    Args:
        bound: the operator's rule.
        mesh: the mesh.
        partial: include strategies whose operands have pending reductions, which the operator passes on. A strategy
            that makes a pending sum itself, such as ``k:x`` below, is always included.
        full: return only strategies that use every axis of size > 1, if there are any, else all.
        even: return only strategies with blocks of equal size.
        nested: include strategies that split a factor by several axes.

    Raises:
        InputError: If there are more than :data:`MOST_STRATEGIES` strategies, estimated as
            (splittable factors + 1) ** (axes of size > 1).

    >>> from spmdsim.core import Rule, bind
    >>> matmul = bind(Rule.parse("m k, k n -> m n"), ((8, 8), (8, 8)))
    >>> [str(s) for s in mesh_strategies(matmul, Mesh((4,), ("x",)))]
    ['replicated', 'm:x', 'k:x', 'n:x']
    """
    busy_axes = sum(size > 1 for size in mesh.shape)
    if (len(bound.splittable) + 1) ** busy_axes > MOST_STRATEGIES:
        raise InputError(
            f"a mesh of {many(busy_axes, 'axis', 'axes')} gives the rule '{bound.rule}' too many strategies to "
            "look at each; use fewer "
            "axes, or the double recursion"
        )
    strategies = [s for s in bound.strategies(mesh, partial=partial) if _uses_no_unit_axis(s)]
    if even:
        strategies = [s for s in strategies if all(bound.sizes[f] % s.parts(f) == 0 for f, _ in s.splits)]
    if not nested:
        strategies = [s for s in strategies if all(len(axes) == 1 for _, axes in s.splits)]
    if full:
        axes = {axis for axis, size in zip(mesh.axes, mesh.shape) if size > 1}
        busy = [s for s in strategies if {axis for _, split in s.splits for axis in split} == axes]
        strategies = busy or strategies
    return tuple(strategies)


def _uses_no_unit_axis(strategy: Strategy) -> bool:
    """Return True if a strategy uses no axis of size 1."""
    size = strategy.mesh.axis_size
    used = [axis for _, axes in strategy.splits for axis in axes] + [axis for axis, _, _ in strategy.passed]
    return all(size(axis) > 1 for axis in used)


def configured_strategy(operator: Operator, mesh: Mesh) -> Strategy:
    """Return the strategy that the user fixed for an operator.

    It depends on what the user gave:

    - a Strategy: is returned;
    - a mapping of factors to axes of ``mesh``, or its items: a strategy on ``mesh``;
    - layouts of the operands: the strategy is inferred from them;
    - cuts, the numbers of blocks per dim of each operand: the strategy on ``mesh`` that splits as they do. If there is
      none, the strategy is on a device matrix of its own.

    Args:
        operator: an operator whose ``configured`` is not None; not checked.
        mesh: the mesh of the search.

    Raises:
        RuleError: If the strategy does not fit the operator; items of a mapping are not checked.
    """
    configured, bound = operator.configured, operator.bound
    with context(**operator.error_facts):
        if isinstance(configured, Strategy | dict):
            strategy = configured if isinstance(configured, Strategy) else Strategy.of(mesh, configured)
            bound.check(strategy)
            return strategy
        first = configured[0] if configured else None
        if isinstance(first, Layout):
            return bound.infer(configured)
        if isinstance(first, tuple) and len(first) == 2 and isinstance(first[0], str):
            return Strategy.of(mesh, dict(configured))
        cuts_strategy = strategy_from_cuts(bound, configured, mesh.rank_list)
        return _on_mesh(bound, cuts_strategy, mesh) or cuts_strategy


def configured_result(operator: Operator, strategy: Strategy) -> Layout | None:
    """Return the layout that the user fixed for an operator's first result, or None.

    Args:
        operator: the operator; its attribute ``out`` has the user's layout or cuts.
        strategy: its strategy; cuts split the layout that follows from it.

    Raises:
        RuleError: If the user's layout does not fit the result.
    """
    if operator.out is None:
        return None
    with context(**operator.error_facts):
        produced = operator.bound.output_layouts(strategy)[0]
        return result_layout(operator.out, produced, operator.bound.output_shapes[0]).canonical


def _on_mesh(bound: BoundRule, strategy_on_matrix: Strategy, mesh: Mesh) -> Strategy | None:
    """Convert a strategy on a device matrix to an identical one on ``mesh``, or return None.

    The size of each axis of the device matrix must be the product of the sizes of the next axes of ``mesh``, in order;
    axes of size 1 do not count. For example, an axis of size 4 and an axis of size 2 fit the mesh (2, 2, 2): the first
    becomes its axes 0 and 1. The result is None

    * if the sizes are no such products;
    * if the two meshes have different lists of ranks;
    * if the rule does not allow the strategy on ``mesh``.

    Args:
        bound: the operator's rule.
        strategy_on_matrix: the strategy. One axis splits each factor, as :func:`strategy_from_cuts` builds it.
        mesh: the mesh of the result.
    """
    if mesh.rank_list != strategy_on_matrix.mesh.rank_list:
        return None
    mesh_axes = [(axis, size) for axis, size in zip(mesh.axes, mesh.shape) if size > 1]
    factor_of = {axis: factor for factor, axes in strategy_on_matrix.splits for axis in axes}
    splits: dict[str, tuple[str, ...]] = {}
    for axis, size in zip(strategy_on_matrix.mesh.axes, strategy_on_matrix.mesh.shape):
        # Take axes of the mesh until the product of their sizes is the size of this axis.
        taken: list[str] = []
        while size > 1 and mesh_axes and size % mesh_axes[0][1] == 0:
            name, axis_size = mesh_axes.pop(0)
            taken.append(name)
            size //= axis_size
        if size > 1:
            return None
        if axis in factor_of:
            splits[factor_of[axis]] = tuple(taken)
    strategy = Strategy.of(mesh, splits)
    return strategy if bound.allows(strategy) else None


def device_matrices(ranks: int, axes: int = 2) -> tuple[Mesh, ...]:
    """Return the meshes to search: all ordered products of sizes > 1 that equal ``ranks``.

    Meshes with few axes come first. One rank has the mesh of shape (1,).

    Args:
        ranks: the number of ranks; at least 1.
        axes: the largest number of sizes of a product, 1 to 4. The axes are called dp, tp, sp and ep, in this order.

    Raises:
        InputError: If ``ranks`` is below 1.

    >>> [mesh.shape for mesh in device_matrices(8)]
    [(8,), (2, 4), (4, 2)]
    """
    if ranks < 1:
        raise InputError(f"{many(ranks, 'rank')} cannot form a mesh; there has to be at least 1")
    names = ("dp", "tp", "sp", "ep")

    def factorings(number: int, count: int) -> Iterator[tuple[int, ...]]:
        """Yield every ordered product of ``count`` factors > 1 that equals ``number``."""
        if count == 1:
            if number > 1:
                yield (number,)
            return
        for first in range(2, number // 2 + 1):
            if number % first == 0:
                for further in factorings(number // first, count - 1):
                    yield (first, *further)

    shapes = [shape for count in range(1, axes + 1) for shape in factorings(ranks, count)] or [(ranks,)]
    return tuple(Mesh(shape, names[: len(shape)]) for shape in shapes)


def searched_axes(graph: Graph, ranks: int) -> int:
    """Return the number of axes of the searched device matrices: three if that is quick, else two.

    Three axes are quick with at most :data:`THREE_AXES_RANKS` ranks and :data:`FEW_STRATEGIES` strategies per
    operator.
    """
    # On n axes, an operator has at most about (factors + 1) ** n strategies.
    factors = {bound: len(bound.splittable) for bound in {o.bound for o in graph.operators}}
    quick = all((count + 1) ** 3 <= FEW_STRATEGIES for count in factors.values())
    return 3 if quick and ranks <= THREE_AXES_RANKS else 2


def has_uneven_pieces(graph: Graph, mesh: Mesh) -> bool:
    """Return True if an axis of a mesh can split a dim of some operator, but does not divide it.

    Configured operators do not count.

    >>> from spmdsim.auto_parallel.programs.networks import mlp
    >>> [has_uneven_pieces(mlp(1, 8, 8), Mesh((ranks,), ("x",))) for ranks in (3, 4)]
    [True, False]
    """
    rules = {operator.bound for operator in graph.operators if operator.configured is None}
    sizes = {bound.sizes[factor] for bound in rules for factor in bound.splittable}
    return any(size % axis and size >= axis for size in sizes for axis in mesh.shape)


def binary_mesh(ranks: int) -> Mesh:
    """Return the mesh with one axis per prime factor of ``ranks``, largest first.

    This is the mesh of the double recursion.

    >>> binary_mesh(12).shape, binary_mesh(8).axes
    ((3, 2, 2), ('c0', 'c1', 'c2'))
    """
    sizes = prime_factors(ranks) or (1,)
    return Mesh(sizes, tuple(f"c{k}" for k in range(len(sizes))))


def prime_factors(number: int) -> tuple[int, ...]:
    """Return the prime factors of a positive number, repeated ones included, largest first.

    >>> prime_factors(60), prime_factors(1)
    ((5, 3, 2, 2), ())
    """
    factors, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return tuple(sorted([*factors, *([number] if number > 1 else [])], reverse=True))


def batch_splitting_strategies(
    strategies: Sequence[Strategy], factors: Sequence[str], axis: str
) -> Sequence[Strategy]:
    """Return the strategies in which ``axis`` splits a batch factor; all strategies if none does."""
    splitting = [s for s in strategies if any(axis in s.axes.get(factor, ()) for factor in factors)]
    return splitting or strategies
