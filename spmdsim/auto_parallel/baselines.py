"""Hand-written strategies to compare a search with: data parallel, Megatron-style and fully sharded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from spmdsim.auto_parallel.costs.choice_model import ChoiceModel
from spmdsim.auto_parallel.costs.move_prices import MovePrices
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph, Operator
from spmdsim.auto_parallel.solvers.elimination import eliminate
from spmdsim.auto_parallel.strategy_choice import (
    StrategyChoice,
    configured_strategy,
    device_matrices,
)
from spmdsim.core import Layout, Mesh, Strategy
from spmdsim.errors import InputError
from spmdsim.redistribution.step_counts import largest_shard

#: Largest tensor-parallel group that is tried. Larger groups are not configured by hand.
MOST_TENSOR_PARALLEL = 64


class NotPossibleError(InputError):
    """A hand-written strategy that the number of ranks does not allow."""


def data_parallel(graph: Graph, mesh: Mesh) -> tuple[Strategy, ...]:
    """Return strategies in which every operator splits the batch over all axes of the mesh.

    The batch dims are the dims that come from dim 0 of the inputs. Operators without a batch dim, or whose rule
    forbids the split, split nothing. Blocks differ by one row if the number of ranks does not divide the batch.

    Args:
        graph: the program; strategies that the user fixed in it are ignored.
        mesh: the mesh of the strategies.

    Returns:
        One strategy per operator, in the order of the graph. A strategy reads ``factor:axes``; ".0" is the first
        factor that "..." stands for in a rule, here the rows of the batch.

    Raises:
        NotPossibleError: If some operator's batch has fewer rows than ranks, or no operator has a batch.

    >>> from spmdsim.auto_parallel.programs.networks import mlp
    >>> str(data_parallel(mlp(1, 8, 8, bias=False), Mesh((7,), ("dp",)))[0])
    '.0:dp'
    """
    strategies = []
    chosen: dict[tuple[object, ...], Strategy] = {}
    for operator, factors in zip(graph.operators, graph.batch_factors):
        key = (id(operator.bound), factors)  # repeated layers share their rules, which the graph keeps alive
        if key not in chosen:
            factor = _batch_factor(operator, factors, mesh.size)
            chosen[key] = _allowed(operator, mesh, {} if factor is None else {factor: mesh.axes})
        strategies.append(chosen[key])
    if mesh.size > 1 and not any(strategy.splits for strategy in strategies):
        raise NotPossibleError("no operator has a batch")
    return tuple(strategies)


def _allowed(operator: Operator, mesh: Mesh, splits: Mapping[str, str | tuple[str, ...]]) -> Strategy:
    """Return the strategy with these splits, or the unsplit one if the rule rejects it.

    ``splits`` maps factors to mesh axes.
    """
    strategy = Strategy.of(mesh, splits)
    return strategy if operator.bound.allows(strategy) else Strategy.of(mesh, {})


def _batch_factor(operator: Operator, factors: Sequence[str], parts: int) -> str | None:
    """Return the first batch factor that can be split; see :func:`_first_splittable`."""
    return _first_splittable(operator, factors, parts, "rows in the batch")


def megatron(graph: Graph, mesh: Mesh) -> tuple[Strategy, ...]:
    """Return Megatron-style strategies, one per operator.

    The first mesh axis splits the batch, the last one splits the layers; a mesh with one axis splits the layers only.
    The first product of a layer splits its weight by columns, and so its result. The operators behind it keep that
    split (attention by heads). The next product splits its weight by rows; it sums over the split dim, which ends the
    split.

    Args:
        graph: the program; strategies that the user fixed in it are ignored.
        mesh: the mesh of the strategies.

    Raises:
        NotPossibleError: If some operator has fewer rows, columns or heads than the axis that has to split them, or
            no product has a parameter whose columns can be split.

    The two products of this network are ``... k, k n -> ... n``; the first splits the columns n, the second the rows
    k:

    >>> from spmdsim.auto_parallel.programs.networks import mlp
    >>> [str(s) for s in megatron(mlp(2, 8, 8, bias=False), Mesh((2, 2), ("dp", "tp")))]
    ['.0:dp n:tp', '.0:tp .1:dp', '.0:dp k:tp', 'b:dp']
    """
    # The dim of each tensor that the layers' axis splits.
    split: dict[int, int | None] = {}
    strategies = []
    chosen: dict[tuple[object, ...], tuple[Strategy, list[int | None]]] = {}
    for operator, batch in zip(graph.operators, graph.batch_factors):
        dims = tuple([split.get(operand) for operand in operator.inputs])
        kinds = tuple([graph.values[operand].kind for operand in operator.inputs])
        # Repeated layers share their rules, which the graph keeps alive.
        key = (id(operator.bound), dims, kinds, batch)
        if key not in chosen:
            chosen[key] = _megatron_strategy(operator, mesh, dims, kinds, batch)
        strategy, result_dims = chosen[key]
        strategies.append(strategy)
        split.update(zip(operator.outputs, result_dims))
    if all(dim is None for dim in split.values()):
        raise NotPossibleError("no product has a parameter whose columns can be split")
    return tuple(strategies)


def _megatron_strategy(
    operator: Operator,
    mesh: Mesh,
    split: Sequence[int | None],
    kinds: Sequence[str],
    batch: Sequence[str],
) -> tuple[Strategy, list[int | None]]:
    """Return an operator's strategy, and the dim of each result that the layers' axis splits.

    The data axis splits the first batch factor that has enough rows, and the layers' axis the factor from
    :func:`_model_factor`. If the rule does not allow both together, only the split of the batch remains; if it does
    not allow this either, nothing is split. The dim of a result is None if the layers' axis does not split it.

    Args:
        operator: the operator.
        mesh: the data axis first, the layers' axis last; a mesh with one axis has no data axis.
        split: for each operand, the dim that the layers' axis splits, or None.
        kinds: the kind of each operand: "input", "parameter" or "result".
        batch: the factors of the batch.

    Raises:
        NotPossibleError: If a factor that has to be split cannot be.
    """
    data, model = mesh.axes[0], mesh.axes[-1]
    factor = _model_factor(operator, split, kinds, mesh.axis_size(model))
    splits: dict[str, str] = {}
    if len(mesh.axes) > 1:
        rows = _batch_factor(operator, [name for name in batch if name != factor], mesh.axis_size(data))
        splits |= {rows: data} if rows is not None else {}
    if factor is not None:
        splits[factor] = model
    strategy = Strategy.of(mesh, splits)
    if not operator.bound.allows(strategy):
        # Keep the split of the batch if the rule allows that one alone.
        strategy = _allowed(operator, mesh, {f: a for f, a in splits.items() if a != model})
        factor = None
    result_dims = []
    for term in operator.bound.outputs:
        split_dims = [d for d, factors in enumerate(term) if factor in factors]
        result_dims.append(split_dims[0] if split_dims else None)
    return strategy, result_dims


def _model_factor(
    operator: Operator, split: Sequence[int | None], kinds: Sequence[str], size: int
) -> str | None:
    """Return the factor of an operator that the layers' axis splits; None if it splits none.

    A factor is a dim of the rule, such as k or n of the product ``... k, k n -> ... n``. The cases are:

    - An operand is split already: the operator keeps the split of the first such operand. If the first operand is split
      along k, the result is "k". If the dim is the product of several factors, the first one that can be split is
      taken.
    - Otherwise, the operator is a product or lookup with a parameter: the first factor that can be split. The lookup's
      index factor is tried first, then the columns. Columns are the factors of the result that the first parameter has,
      and no operand except parameters has: "n" if the second operand of the product is a parameter.
    - Any other operator splits none.

    Args:
        operator: the operator.
        split: for each operand, the dim that the layers' axis splits, or None.
        kinds: the kind of each operand: "input", "parameter" or "result".
        size: the size of the layers' axis.

    Raises:
        NotPossibleError: If the operator has factors to split, but none can be split into ``size`` blocks.
    """
    bound = operator.bound
    for dim, term in zip(split, bound.inputs):
        if dim is not None:
            return _first_splittable(operator, term[dim], size)
    parameters = [k for k, kind in enumerate(kinds) if kind == "parameter"]
    is_product_or_lookup = bound.contraction or bound.rule.indexed
    if not parameters or not is_product_or_lookup:
        return None
    parameter_factors = {f for dim in bound.inputs[parameters[0]] for f in dim}
    other_factors = {
        f for k, term in enumerate(bound.inputs) if k not in parameters for dim in term for f in dim
    }
    result_factors = {f for dim in bound.outputs[0] for f in dim}
    column_factors = (parameter_factors - other_factors) & result_factors
    columns = [f for f in bound.sizes if f in column_factors]
    return _first_splittable(operator, (*bound.rule.indexed, *columns), size)


def _first_splittable(
    operator: Operator, factors: Sequence[str], parts: int, elements: str = ""
) -> str | None:
    """Return the first factor that can be split into ``parts`` blocks, none of them empty.

    A factor must have at least ``parts`` elements; its blocks may differ by one element. If a dim combines the factor
    with another one, as in ``(f0 f1)``, the blocks must be equal. Factors that the rule keeps whole are left out; if
    no other factors are given, the result is None.

    Args:
        operator: the operator.
        factors: some of its factors.
        parts: the number of blocks.
        elements: a phrase for the elements of a factor, for messages; by default "elements along <factor>".

    Raises:
        NotPossibleError: If factors may be split, but none of them into ``parts`` blocks.
    """
    bound = operator.bound
    splittable = [factor for factor in factors if factor not in bound.rule.whole]
    for factor in splittable:
        size = bound.sizes[factor]
        if size >= parts and (factor not in bound.compound or size % parts == 0):
            return factor
    if not splittable:
        return None
    size = bound.sizes[splittable[0]]
    why = f"fewer than {parts:,}" if size < parts else f"which {parts:,} does not divide"
    elements = elements or f"elements along '{splittable[0]}'"
    raise NotPossibleError(f"{operator.name} has {size:,} {elements}, {why}")


def complete_choice(
    graph: Graph,
    mesh: Mesh,
    strategies: tuple[Strategy, ...],
    settings: Settings,
    stored: Callable[[int], Layout | None] | None = None,
    moves: MovePrices | None = None,
) -> StrategyChoice:
    """Choose the cheapest layouts of all tensors for given strategies of the operators.

    The layouts with the fewest modelled seconds are found exactly, by elimination. Strategies that the user fixed in
    the graph are ignored, and so are layouts of results that belong to them. Repeated layers share layouts if they
    have equal strategies.

    Args:
        graph: the program.
        mesh: the mesh that it runs on.
        strategies: one per operator.
        settings: the assumptions of the cost model.
        stored: ``stored(i)`` returns the layout in which parameter i (its index in the graph) is stored, or None for
            any layout. If ``stored`` is None, the cost model chooses the layouts of all parameters.
        moves: prices that earlier calls computed; None: none yet.

    Raises:
        TooWideError: If the elimination needs too large a table.
    """
    fixed = graph
    if stored is not None:
        values = [replace(v, layout=stored(v.index)) if v.kind == "parameter" else v for v in graph.values]
        fixed = replace(fixed, values=tuple(values))
    if any(operator.configured is not None for operator in graph.operators):
        operators = tuple(_unconfigured(o, strategies[o.index], mesh) for o in graph.operators)
        fixed = replace(fixed, operators=operators)
    repeated = all(strategies[first] == strategies[o] for o, first in fixed.tied_operators.items())
    settings = replace(settings, tie=repeated)
    model = ChoiceModel(fixed, mesh, settings, lambda o: (strategies[o.index],), moves)
    choice = model.choice(eliminate(model.problem).states)
    return replace(choice, graph=graph)


def fully_sharded(
    graph: Graph, meshes: Sequence[Mesh], settings: Settings, moves: MovePrices | None = None
) -> StrategyChoice:
    """Return the choice with the batch split over all ranks and all parameters in shards.

    Parameters are gathered for use and their gradients are scattered. Each parameter is split over as many ranks as
    possible, the largest one over all ranks. Of several meshes with such a split, the one with the fewest stored
    elements per rank is used, of equal ones the first.

    Args:
        graph: the program.
        meshes: the meshes to choose from.
        settings: the assumptions of the cost model.
        moves: prices that earlier calls computed; None: none yet.

    Raises:
        NotPossibleError: If the batch or the largest parameter cannot be split over all ranks of any mesh.
    """
    largest_shape = max((value.shape for value in graph.parameters), key=math.prod, default=())
    shapes = Counter(value.shape for value in graph.parameters)
    best: tuple[int, Mesh] | None = None
    for mesh in meshes:
        if math.prod(_finest_layout(mesh, largest_shape).cuts) == mesh.size:
            elements = sum(
                count * largest_shard(_finest_layout(mesh, shape), shape) for shape, count in shapes.items()
            )
            if best is None or elements < best[0]:
                best = elements, mesh
    if best is None:
        shape = " x ".join(map(str, largest_shape)) or "()"
        raise NotPossibleError(f"the largest parameter, of shape {shape}, cannot be cut into so many pieces")
    mesh = best[1]
    layouts = {shape: _finest_layout(mesh, shape) for shape in shapes}
    strategies = data_parallel(graph, mesh)
    return complete_choice(graph, mesh, strategies, settings, lambda i: layouts[graph.values[i].shape], moves)


def _finest_layout(mesh: Mesh, shape: tuple[int, ...]) -> Layout:
    """Return the layout with the smallest shards in which each mesh axis splits at most one dim.

    No shard is empty. Of layouts with equally small shards, the one with the fewest uneven dims wins, then the first
    one that was tried. If axes do not fit any dim, they split nothing.

    Args:
        mesh: the mesh.
        shape: the global shape.

    >>> _finest_layout(Mesh((2, 4), ("a", "b")), (8, 3)).dims, _finest_layout(Mesh((2, 4), ("a", "b")), (4, 3)).dims
    ((('a', 'b'), ()), (('b',), ('a',)))
    """
    best: tuple[tuple[int, int], Layout] | None = None
    for dims in product(range(len(shape) + 1), repeat=len(mesh.axes)):
        entries = [tuple(axis for axis, d in zip(mesh.axes, dims) if d == k) for k in range(len(shape))]
        parts = [mesh.axis_size(*entry) for entry in entries]
        if any(size < count for size, count in zip(shape, parts)):
            continue
        layout = Layout(mesh, entries)
        score = largest_shard(layout, shape), sum(size % count > 0 for size, count in zip(shape, parts))
        if best is None or score < best[0]:
            best = score, layout
    return Layout.replicated(mesh, len(shape)) if best is None else best[1]


def _unconfigured(operator: Operator, strategy: Strategy, mesh: Mesh) -> Operator:
    """Return the operator without the user's strategy.

    The user's layout of the result is kept only if ``strategy`` is the user's strategy.
    """
    if operator.configured is None:
        return operator
    keeps_out = operator.out is not None and configured_strategy(operator, mesh) == strategy
    return replace(operator, configured=None, out=operator.out if keeps_out else None)


def baselines(
    graph: Graph, ranks: int, settings: Settings, moves: MovePrices | None = None
) -> tuple[dict[str, StrategyChoice], dict[str, str]]:
    """Return the hand-written choices by name, and the reasons why others are not possible.

    The choices are:

    - "data parallel": the batch split over all ranks;
    - "fully sharded": besides, all parameters in shards;
    - "Megatron DxM": a grid of D data-parallel times M tensor-parallel ranks, or "Megatron M" if the grid has one
      axis. All grids with M up to :data:`MOST_TENSOR_PARALLEL` (64) are tried.

    The layouts of tensors are the cheapest ones for these strategies. If no grid is possible, the reason for the
    smallest M is returned under "Megatron".

    Args:
        graph: the program; strategies that it configures are ignored.
        ranks: the number of ranks.
        settings: the assumptions of the cost model.
        moves: prices that earlier calls computed; None: none yet.

    Returns:
        ``(choices, reasons)``, both by name.
    """
    choices: dict[str, StrategyChoice] = {}
    reasons: dict[str, str] = {}

    def add(name: str, kind: str, choose: Callable[[], StrategyChoice]) -> None:
        """Store a choice under ``name``, or the reason why it is not possible under ``kind``."""
        try:
            choices[name] = choose()
        except NotPossibleError as error:
            reasons[kind] = str(error)

    flat = Mesh((ranks,), ("dp",))
    matrices = device_matrices(ranks, 2)
    name = "data parallel"
    add(name, name, lambda: complete_choice(graph, flat, data_parallel(graph, flat), settings, moves=moves))
    name = "fully sharded"
    add(name, name, lambda: fully_sharded(graph, matrices, settings, moves))
    grids = [mesh for mesh in matrices if mesh.shape[-1] <= MOST_TENSOR_PARALLEL]
    # Go from large to small groups, because each reason replaces the one before.
    for mesh in sorted(grids, key=lambda mesh: -mesh.shape[-1]):
        name = f"Megatron {'x'.join(map(str, mesh.shape))}"
        add(name, "Megatron", partial(_megatron, graph, mesh, settings, moves))
    if any(name.startswith("Megatron") for name in choices):
        reasons.pop("Megatron", None)
    elif not grids:
        reasons["Megatron"] = f"no group of 2 to {MOST_TENSOR_PARALLEL} divides them"
    return choices, reasons


def _megatron(graph: Graph, mesh: Mesh, settings: Settings, moves: MovePrices | None) -> StrategyChoice:
    """Return the Megatron-style choice on a mesh, with the cheapest layouts in between."""
    return complete_choice(graph, mesh, megatron(graph, mesh), settings, moves=moves)
