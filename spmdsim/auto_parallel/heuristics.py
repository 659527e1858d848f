"""The two heuristic searches from start to end: what they find, and the local search that improves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spmdsim.auto_parallel.baselines import complete
from spmdsim.auto_parallel.costs.choice_model import ChoiceModel
from spmdsim.auto_parallel.costs.evaluate import evaluate
from spmdsim.auto_parallel.costs.move_prices import MovePrices
from spmdsim.auto_parallel.costs.settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph, Operator
from spmdsim.auto_parallel.propagation import propagate
from spmdsim.auto_parallel.search_result import SearchResult
from spmdsim.auto_parallel.solvers.local_search import improve
from spmdsim.auto_parallel.strategy_candidates import (
    binary_mesh,
    configured_strategy,
    device_matrices,
    searched_axes,
)
from spmdsim.core import Mesh, Strategy
from spmdsim.imitated import imitation

#: Meshes of more axes have too many strategies to improve them.
POLISH_AXES = 3
#: So many operators that differ are not improved on several meshes.
MOST_OPERATORS = 2000


def by_propagation(graph: Graph, meshes: Sequence[Mesh], settings: Settings, polish: bool) -> SearchResult:
    """The sharding propagation on each of some meshes; the best answer."""
    answers = []
    for mesh in meshes:
        propagated = propagate(graph, mesh, settings)
        start = complete(graph, mesh, propagated.strategies, settings)
        answer = SearchResult(
            start, settings, "sharding propagation", propagated.remarks, rivals=tuple(meshes)
        )
        answers.append((_seconds(answer), answer))
        if polish:
            answers.append(_improved(answer, mesh, propagated.strategies))
    return _best(answers)


def by_recursion(graph: Graph, ranks: int, settings: Settings, version: str, polish: bool) -> SearchResult:
    """The double recursion.

    Its mesh has one axis per prime factor. The local search goes on from the same cuts on the device matrices that a
    search for the optimum would try.
    """
    recursion = imitation("search", "double_recursion")
    strategies = recursion(graph, ranks, version).strategies()
    mesh = binary_mesh(ranks)
    start = complete(graph, mesh, strategies, settings)
    rivals = expressing(graph, ranks, searched_axes(graph, ranks))
    start_result = SearchResult(start, settings, f"double recursion {version}", rivals=rivals)
    if not polish or _different(graph) > MOST_OPERATORS:
        return start_result
    if not rivals and len(mesh.axes) <= POLISH_AXES:
        return _best([(_seconds(start_result), start_result), _improved(start_result, mesh, strategies)])
    coarse = [
        _improved(start_result, m, tuple(_on_coarse(o, s, m) for o, s in zip(graph.operators, strategies)))
        for m in rivals
    ]
    return _best([(_seconds(start_result), start_result), *coarse])


def expressing(graph: Graph, ranks: int, least: int = 2) -> tuple[Mesh, ...]:
    """The device matrices of as few axes as it takes to write every configured strategy on, at least ``least``."""
    meshes: tuple[Mesh, ...] = ()
    for axes in range(least, POLISH_AXES + 1):
        meshes = tuple(mesh for mesh in device_matrices(ranks, axes) if _expresses(graph, mesh))
        if any(_useful(graph, mesh) for mesh in meshes):
            break
    return meshes


def _expresses(graph: Graph, mesh: Mesh) -> bool:
    configured = (o for o in graph.operators if o.configured is not None)
    return all(configured_strategy(o, mesh).mesh == mesh for o in configured)


def _useful(graph: Graph, mesh: Mesh) -> bool:
    """Whether the largest operator can use every axis: one of 6 ranks is of no use if only 2 divides the sizes."""
    operator = max(graph.operators, key=lambda o: o.bound.flops)
    sizes = [operator.bound.sizes[factor] for factor in operator.bound.splittable]
    return all(any(size % axis == 0 for size in sizes) for axis in mesh.shape)


def _different(graph: Graph) -> int:
    """Operators, those of a repeated layer counted once."""
    return sum(o.layer is None or o.layer[1] == 0 for o in graph.operators)


def _best(answers: Sequence[tuple[float, SearchResult]]) -> SearchResult:
    return min(answers, key=lambda pair: pair[0])[1]


def _improved(answer: SearchResult, mesh: Mesh, strategies: Sequence[Strategy]) -> tuple[float, SearchResult]:
    """What the local search makes of strategies on a mesh, after its seconds."""
    graph, settings = answer.graph, answer.settings
    tied = replace(settings, tie=any(operator.layer is not None for operator in graph.operators))
    model = ChoiceModel(graph, mesh, tied)
    solution = improve(model.problem, model.states_of(strategies))
    method = f"{answer.method}, then local search"
    return solution.seconds, replace(answer, choice=model.choice(solution.states), method=method)


def _seconds(answer: SearchResult) -> float:
    """Modelled time by the prices that searches use."""
    return evaluate(answer.choice, answer.settings, MovePrices(answer.settings)).seconds


def _on_coarse(operator: Operator, fine: Strategy, mesh: Mesh) -> Strategy:
    """The strategy on a mesh of larger axes that cuts an operator most nearly as a finer one does."""
    if operator.configured is not None:
        return configured_strategy(operator, mesh)
    wanted = {factor: fine.parts(factor) for factor, _ in fine.splits}
    done: dict[str, tuple[str, ...]] = {}
    for axis, size in sorted(zip(mesh.axes, mesh.shape), key=lambda pair: -pair[1]):
        fitting = [f for f, parts in wanted.items() if parts % size == 0]
        if fitting:
            factor = max(fitting, key=lambda f: wanted[f])
            wanted[factor] //= size
            done[factor] = tuple(a for a in mesh.axes if a in (*done.get(factor, ()), axis))
    strategy = Strategy.of(mesh, done)
    return strategy if operator.bound.allows(strategy) else Strategy.of(mesh, {})
