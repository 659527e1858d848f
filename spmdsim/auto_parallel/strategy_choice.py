"""The strategies that a search chooses from, what follows from each of them, and what is chosen."""

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
    """An operator's strategies with everything that follows from them, state by state."""

    strategies: tuple[Strategy, ...]
    inputs: tuple[tuple[Layout, ...], ...]
    outputs: tuple[tuple[Layout, ...], ...]
    gradients: tuple[tuple[Layout, ...], ...]


@lru_cache(maxsize=4096)
def states_of(bound: BoundRule, strategies: tuple[Strategy, ...]) -> States:
    """The layouts of all strategies of an operator: ``inputs[operand][state]`` and so on."""
    inputs = [bound.input_layouts(s) for s in strategies]
    outputs = [bound.output_layouts(s) for s in strategies]
    operands = range(len(bound.inputs))
    gradients = [[bound.gradient_layout(s, i).canonical for s in strategies] for i in operands]
    return States(
        strategies,
        tuple(tuple(row[i].canonical for row in inputs) for i in operands),
        tuple(tuple(row[k].canonical for row in outputs) for k in range(len(bound.outputs))),
        tuple(tuple(row) for row in gradients),
    )


@dataclass(frozen=True)
class StorageStates:
    """The states of a tensor with a variable of its own, state by state.

    Attributes:
        layouts: the layout it is kept in.
        sums: of a parameter, the layouts in which gradients of several readers are added before they move.
        together: whether the gradient, which then arrives in the one layout of ``sums``, shares a message.
        joint: whether readers pay together for the moves of their gradients, instead of by ``sums``.
        complete: whether gradients may be added in all ways.
    """

    layouts: tuple[Layout, ...]
    sums: tuple[tuple[Layout, ...], ...] = ()
    together: tuple[bool, ...] = ()
    joint: bool = False
    complete: bool = True


class OperatorLayouts(NamedTuple):
    """Layouts around one operator: operands as it reads them, results and operands' gradients as it computes them."""

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    gradients: tuple[Layout, ...]


@dataclass(frozen=True, repr=False)
class StrategyChoice(ShortRepr):
    """What a search decides: a strategy per operator, and per tensor where it is stored or handed on."""

    graph: Graph
    mesh: Mesh
    strategies: tuple[Strategy, ...]
    layouts: tuple[Layout, ...]

    @cached_property
    def operator_layouts(self) -> tuple[OperatorLayouts, ...]:
        """Return the layouts that follow from each operator's strategy."""
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


#: Up to so many strategies of one operator are enumerated.
MOST_STRATEGIES = 100_000
#: Three axes are searched for up to so many ranks, where no operator has more strategies than this on them.
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
    """The strategies of an operator on a mesh, the least split one first; axes of size 1 are never used.

    With ``partial`` also those that pass pending sums on, with ``full`` only those that use every axis, if there are any,
    with ``even`` only those with pieces of one size, with ``nested`` also those that split a factor by several axes.

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
    strategies = [s for s in bound.strategies(mesh, partial=partial) if _sensible(s)]
    if even:
        strategies = [s for s in strategies if all(bound.sizes[f] % s.parts(f) == 0 for f, _ in s.splits)]
    if not nested:
        strategies = [s for s in strategies if all(len(axes) == 1 for _, axes in s.splits)]
    if full:
        axes = {axis for axis, size in zip(mesh.axes, mesh.shape) if size > 1}
        busy = [s for s in strategies if _used(s) == axes]
        strategies = busy or strategies
    return tuple(strategies)


def _sensible(strategy: Strategy) -> bool:
    """Whether no axis of size one is used."""
    size = strategy.mesh.axis_size
    used = [axis for _, axes in strategy.splits for axis in axes] + [axis for axis, _, _ in strategy.passed]
    return all(size(axis) > 1 for axis in used)


def _used(strategy: Strategy) -> set[str]:
    return {axis for _, axes in strategy.splits for axis in axes}


def configured_strategy(operator: Operator, mesh: Mesh) -> Strategy:
    """The strategy a user fixed for an operator: a Strategy, a mapping of factors to axes, layouts, or cuts.

    Cuts get a device matrix of their own unless some strategy on ``mesh`` cuts the same way.
    """
    configured, bound = operator.configured, operator.bound
    with context(**operator.named):
        if isinstance(configured, Strategy | dict):
            strategy = configured if isinstance(configured, Strategy) else Strategy.of(mesh, configured)
            bound.check(strategy)
            return strategy
        first = configured[0] if configured else None
        if isinstance(first, Layout):
            return bound.infer(configured)
        if isinstance(first, tuple) and len(first) == 2 and isinstance(first[0], str):
            return Strategy.of(mesh, dict(configured))
        own = strategy_from_cuts(bound, configured, mesh.rank_list)
        return _on_mesh(bound, own, mesh) or own


def configured_result(operator: Operator, strategy: Strategy) -> Layout | None:
    """The layout that a user fixed for an operator's result; None if there is none."""
    if operator.out is None:
        return None
    with context(**operator.named):
        produced = operator.bound.output_layouts(strategy)[0]
        return result_layout(operator.out, produced, operator.bound.output_shapes[0]).canonical


def _on_mesh(bound: BoundRule, own: Strategy, mesh: Mesh) -> Strategy | None:
    """The strategy on ``mesh`` that puts the same pieces on the ranks as ``own``, which has its own device matrix.

    Axis after axis of the device matrix must be a product of the mesh's next axes.
    """
    if mesh.rank_list != own.mesh.rank_list:
        return None
    rest = [(axis, size) for axis, size in zip(mesh.axes, mesh.shape) if size > 1]
    factor_of = {axis: factor for factor, axes in own.splits for axis in axes}
    splits: dict[str, tuple[str, ...]] = {}
    for axis, size in zip(own.mesh.axes, own.mesh.shape):
        taken: list[str] = []
        while size > 1 and rest and size % rest[0][1] == 0:
            name, part = rest.pop(0)
            taken.append(name)
            size //= part
        if size > 1:
            return None
        if axis in factor_of:
            splits[factor_of[axis]] = tuple(taken)
    strategy = Strategy.of(mesh, splits)
    return strategy if bound.allows(strategy) else None


def device_matrices(ranks: int, axes: int = 2) -> tuple[Mesh, ...]:
    """The meshes to search over: every ordered way to write ``ranks`` as a product of at most ``axes`` sizes > 1.

    >>> [mesh.shape for mesh in device_matrices(8)]
    [(8,), (2, 4), (4, 2)]
    """
    if ranks < 1:
        raise InputError(f"{many(ranks, 'rank')} cannot form a mesh; there has to be at least 1")
    names = ("dp", "tp", "sp", "ep")

    def factorings(left: int, count: int) -> Iterator[tuple[int, ...]]:
        if count == 1:
            if left > 1:
                yield (left,)
            return
        for first in range(2, left // 2 + 1):
            if left % first == 0:
                for rest in factorings(left // first, count - 1):
                    yield (first, *rest)

    shapes = [shape for count in range(1, axes + 1) for shape in factorings(ranks, count)] or [(ranks,)]
    return tuple(Mesh(shape, names[: len(shape)]) for shape in shapes)


def searched_axes(graph: Graph, ranks: int) -> int:
    """How many axes the device matrices have that are searched: three where that is quick, else two."""
    factors = {bound: len(bound.splittable) for bound in {o.bound for o in graph.operators}}
    quick = all((count + 1) ** 3 <= FEW_STRATEGIES for count in factors.values())
    return 3 if quick and ranks <= THREE_AXES_RANKS else 2


def has_uneven_pieces(graph: Graph, mesh: Mesh) -> bool:
    """Return True if an axis of a mesh can cut a dim of some operator, but does not divide it.

    >>> from spmdsim.auto_parallel.programs.networks import mlp
    >>> [has_uneven_pieces(mlp(1, 8, 8), Mesh((ranks,), ("x",))) for ranks in (3, 4)]
    [True, False]
    """
    rules = {operator.bound for operator in graph.operators if operator.configured is None}
    sizes = {bound.sizes[factor] for bound in rules for factor in bound.splittable}
    return any(size % axis and size >= axis for size in sizes for axis in mesh.shape)


def binary_mesh(ranks: int) -> Mesh:
    """One axis per prime factor of ``ranks``, largest first: the mesh of the double recursion.

    >>> binary_mesh(12).shape, binary_mesh(8).axes
    ((3, 2, 2), ('c0', 'c1', 'c2'))
    """
    sizes = prime_factors(ranks) or (1,)
    return Mesh(sizes, tuple(f"c{k}" for k in range(len(sizes))))


def prime_factors(number: int) -> tuple[int, ...]:
    """The prime factors, largest first.

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


def splitting_batch(strategies: Sequence[Strategy], factors: Sequence[str], axis: str) -> Sequence[Strategy]:
    """The strategies in which an axis splits one of the factors; all of them if there are none such."""
    splitting = [s for s in strategies if any(axis in s.axes.get(factor, ()) for factor in factors)]
    return splitting or strategies
