"""Time against memory over meshes: the strategies that no others beat in both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from spmdsim.auto_parallel.costs.choice_model import ChoiceModel
from spmdsim.auto_parallel.costs.peak_memory import peak_memory
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph
from spmdsim.auto_parallel.search import candidate_meshes
from spmdsim.auto_parallel.solvers.choice_problem import ChoiceProblem, Solution
from spmdsim.auto_parallel.solvers.integer import DoesNotFitError, solve_integer
from spmdsim.auto_parallel.strategy_choice import StrategyChoice
from spmdsim.core import Mesh
from spmdsim.pictured import ShortRepr
from spmdsim.redistribution.plans.plan_table import seconds_text
from spmdsim.tables import Table
from spmdsim.worlds.trace.event_table import nbytes_text

Either = TypeVar("Either", "TradeOff", Solution)


def pareto_filter(costs: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (first, second) pairs that no other pair beats in both: sorted by the first, the second falling.

    MindSpore keeps an operator's candidates this way, by computation and communication.

    >>> pareto_filter([(100, 20), (200, 10), (300, 50)])
    [(100, 20), (200, 10)]
    """
    kept: list[tuple[float, float]] = []
    for pair in sorted(costs):
        if not kept or pair[1] < kept[-1][1]:
            kept.append(pair)
    return kept


def unbeaten(points: Sequence[Either]) -> list[Either]:
    """The trade-offs, or solutions, that no other beats in both, fastest first; the first of equal ones."""
    first = {(point.seconds, point.memory): point for point in reversed(points)}
    return [first[pair] for pair in pareto_filter(first)]


def solutions(problem: ChoiceProblem, most: int = 20, step: float = 0.0, gap: float = 1e-9) -> list[Solution]:
    """The frontier of a problem, fastest first: the limit on memory is lowered until nothing fits."""
    frontier: list[Solution] = []
    limit: float | None = None
    tiny = _tie_break(problem)
    while len(frontier) < most:
        try:
            answer = solve_integer(problem.weighted(tiny), limit, gap=gap)
        except DoesNotFitError:
            break
        answer = Solution.of(problem, answer.states, answer.method, answer.optimal)
        frontier.append(answer)
        limit = answer.memory * (1.0 - step) - 0.5
        if limit <= 0:
            break
    return unbeaten(frontier)


def _tie_break(problem: ChoiceProblem) -> float:
    """Seconds per byte, small enough that bytes only decide between equal times."""
    seconds = sum(float(row[row < 1e29].max(initial=0.0)) for row in problem.seconds)
    memory = sum(float(row.max(initial=0.0)) for row in problem.memory) or 1.0
    return 1e-6 * seconds / memory if seconds else 1e-12


@dataclass(frozen=True, repr=False)
class TradeOff(ShortRepr):
    """Modelled time of a step against the bytes that a rank holds at its peak."""

    mesh: Mesh
    seconds: float
    memory: float
    choice: StrategyChoice


def frontier(
    graph: Graph, where: int | Mesh | Sequence[Mesh], settings: Settings, most: int = 10
) -> list[TradeOff]:
    """All trade-offs of time and memory over the given or searched meshes, fastest first.

    Parameters may be stored in pieces (fully sharded) where that saves memory.
    """
    points: list[TradeOff] = []
    tie = any(operator.layer is not None for operator in graph.operators)
    open_settings = replace(settings, sharded_parameters=True, tie=tie)
    for mesh in candidate_meshes(graph, where, 2):
        model = ChoiceModel(graph, mesh, open_settings)
        for one in solutions(model.problem, most, step=0.04, gap=1e-3):
            choice = model.choice(one.states)
            peak = peak_memory(choice, open_settings, model.moves).peak
            points.append(TradeOff(mesh, one.seconds, peak, choice))
    return unbeaten(points)


def frontier_table(points: Sequence[TradeOff]) -> Table:
    """Return the table of trade-offs: time of a step, peak bytes of a rank, mesh."""
    rows = [(seconds_text(p.seconds), nbytes_text(p.memory), str(p.mesh)) for p in points]
    return Table(("time", "peak memory", "mesh"), rows, right=(0, 1))
