"""What people configure by hand: data parallel, Megatron-style and fully sharded layouts of any program."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from spmdsim.auto_parallel.costs.choice_model import ChoiceModel
from spmdsim.auto_parallel.costs.settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph, Operator
from spmdsim.auto_parallel.solvers.elimination import eliminate
from spmdsim.auto_parallel.strategy_choice import (
    StrategyChoice,
    batch_factors,
    configured_strategy,
    device_matrices,
)
from spmdsim.core import Layout, Mesh, Strategy

#: Largest tensor-parallel group that is tried: more is never configured by hand.
MOST_TENSOR_PARALLEL = 64


def data_parallel(graph: Graph, mesh: Mesh) -> tuple[Strategy, ...]:
    """Every operator splits the batch, by the first axis: the dims that come from dim 0 of the inputs."""
    strategies = []
    for operator, factors in zip(graph.operators, batch_factors(graph)):
        usable = [f for f in factors if _fits(operator, f, mesh.shape[0], uneven=True)]
        strategy = Strategy.of(mesh, {usable[0]: mesh.axes[0]} if usable else {})
        strategies.append(strategy if operator.bound.allows(strategy) else Strategy.of(mesh, {}))
    return tuple(strategies)


def _flat(graph: Graph, ranks: int) -> Mesh:
    """One axis for the batch; where it has fewer rows than there are ranks, a second one that repeats the work."""
    rows = [value.shape[0] for value in graph.values if value.kind == "input" and value.shape]
    used = ranks if not rows or ranks <= min(rows) else math.gcd(ranks, *rows)
    return Mesh((ranks,), ("dp",)) if used == ranks else Mesh((used, ranks // used), ("dp", "repeat"))


def megatron(graph: Graph, mesh: Mesh) -> tuple[Strategy, ...]:
    """The batch by the first axis, the layers by the last: columns of one product, rows of the next.

    A product with a parameter splits a dim of the result that only the parameter has; operators after it keep that
    split (attention by heads) until it is summed away.
    """
    batch = batch_factors(graph)
    data, model = mesh.axes[0], mesh.axes[-1]
    split: dict[int, int | None] = {}
    strategies = []
    for operator in graph.operators:
        factor = _model_factor(graph, operator, split, mesh.axis_size(model))
        splits: dict[str, str] = {}
        if len(mesh.axes) > 1:
            size = mesh.axis_size(data)
            rows = [f for f in batch[operator.index] if f != factor and _fits(operator, f, size)]
            splits |= {rows[0]: data} if rows else {}
        if factor is not None:
            splits[factor] = model
        strategy = Strategy.of(mesh, splits)
        if not operator.bound.allows(strategy):
            strategy = Strategy.of(mesh, {f: a for f, a in splits.items() if a != model})
            factor = None
        strategies.append(strategy)
        for result, term in zip(operator.outputs, operator.bound.outputs):
            dims = [d for d, factors in enumerate(term) if factor in factors]
            split[result] = dims[0] if dims else None
    return tuple(strategies)


def _model_factor(graph: Graph, operator: Operator, split: dict[int, int | None], size: int) -> str | None:
    """The factor that the layers' axis splits in an operator."""
    bound = operator.bound
    for operand, term in zip(operator.inputs, bound.inputs):
        dim = split.get(operand)
        if dim is not None:
            factors = [f for f in term[dim] if f not in bound.rule.whole and _fits(operator, f, size)]
            return factors[0] if factors else None
    weights = [k for k, operand in enumerate(operator.inputs) if graph.values[operand].kind == "parameter"]
    if not weights or not (operator.bound.contraction or bound.rule.indexed):
        return None
    own = {f for dim in bound.inputs[weights[0]] for f in dim}
    others = {f for k, term in enumerate(bound.inputs) if k not in weights for dim in term for f in dim}
    results = {f for dim in bound.outputs[0] for f in dim}
    indexed = [f for f in bound.rule.indexed if _fits(operator, f, size)]
    columns = [f for f in bound.sizes if f in own - others and f in results and _fits(operator, f, size)]
    return next(iter((*indexed, *columns)), None)


def _fits(operator: Operator, factor: str, size: int, uneven: bool = False) -> bool:
    bound = operator.bound
    if factor in bound.rule.whole:
        return False
    # Pieces may differ by one, where all have some and no dim is made of several factors.
    uneven = uneven and bound.sizes[factor] >= size and factor not in bound.compound
    return uneven or bound.sizes[factor] % size == 0


def complete(
    graph: Graph,
    mesh: Mesh,
    strategies: tuple[Strategy, ...],
    settings: Settings,
    stored: Callable[[int], Layout | None] | None = None,
) -> StrategyChoice:
    """Strategies as a whole choice: the tensors between them get the layouts that cost least, or those ``stored`` says."""
    values = graph.values
    if stored is not None:
        values = tuple(replace(v, layout=stored(v.index)) if v.kind == "parameter" else v for v in values)
    operators = tuple(_unconfigured(o, strategies[o.index], mesh) for o in graph.operators)
    fixed = replace(graph, values=values, operators=operators)
    model = ChoiceModel(fixed, mesh, replace(settings, tie=False), lambda o: (strategies[o.index],))
    choice = model.choice(eliminate(model.problem).states)
    return replace(choice, graph=graph)


def fully_sharded(graph: Graph, mesh: Mesh, settings: Settings) -> StrategyChoice:
    """Data parallel, with every parameter stored in pieces: gathered for use, its gradient scattered."""

    def stored(index: int) -> Layout:
        shape = graph.values[index].shape
        dims = [d for d, size in enumerate(shape) if size % mesh.size == 0]
        return Layout(mesh, [mesh.axes if dims and d == dims[0] else () for d in range(len(shape))])

    return complete(graph, mesh, data_parallel(graph, mesh), settings, stored)


def _unconfigured(operator: Operator, strategy: Strategy, mesh: Mesh) -> Operator:
    """The operator without its configuration; the layout of its result stays where the strategy is its own."""
    if operator.configured is None:
        return operator
    own = operator.out is not None and configured_strategy(operator, mesh) == strategy
    return replace(operator, configured=None, out=operator.out if own else None)


def baselines(graph: Graph, ranks: int, settings: Settings) -> dict[str, StrategyChoice]:
    """The three layouts by name, one Megatron-style layout per grid."""
    flat = _flat(graph, ranks)
    choices = {
        "data parallel": complete(graph, flat, data_parallel(graph, flat), settings),
        "fully sharded": fully_sharded(graph, flat, settings),
    }
    for mesh in device_matrices(ranks, 2):
        tensor = mesh.shape[-1]
        if tensor <= MOST_TENSOR_PARALLEL:
            name = f"Megatron {'x'.join(map(str, mesh.shape))}"
            choices[name] = complete(graph, mesh, megatron(graph, mesh), settings)
    return choices
