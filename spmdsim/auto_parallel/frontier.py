"""Time against memory over several meshes: the strategies that no other strategies beat in both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from spmdsim.auto_parallel.costs.choice_model import ChoiceModel
from spmdsim.auto_parallel.costs.peak_memory import peak_memory
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph
from spmdsim.auto_parallel.search import candidate_meshes
from spmdsim.auto_parallel.solvers.choice_problem import IMPOSSIBLE, ChoiceProblem, Solution
from spmdsim.auto_parallel.solvers.integer import DoesNotFitError, solve_integer
from spmdsim.auto_parallel.strategy_choice import StrategyChoice
from spmdsim.core import Mesh
from spmdsim.pictured import ShortRepr
from spmdsim.redistribution.plans.plan_table import seconds_text
from spmdsim.tables import Table
from spmdsim.worlds.trace.event_table import nbytes_text

Either = TypeVar("Either", "TradeOff", Solution)


def pareto_filter(costs: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the (first, second) pairs of ``costs`` that no other pair beats in both numbers.

    The pairs are sorted by the first number; their second numbers fall. Of pairs with equal first numbers, the one
    with the smallest second stays; equal pairs stay once. MindSpore keeps an operator's candidates this way, by
    computation and communication.

    >>> pareto_filter([(100, 20), (200, 10), (300, 50)])
    [(100, 20), (200, 10)]
    """
    frontier_pairs: list[tuple[float, float]] = []
    for pair in sorted(costs):
        if not frontier_pairs or pair[1] < frontier_pairs[-1][1]:
            frontier_pairs.append(pair)
    return frontier_pairs


def unbeaten(points: Sequence[Either]) -> list[Either]:
    """Return the points that no other point beats in both seconds and memory, fastest first.

    Of points with equal seconds and memory, the first one is returned.
    """
    first = {(point.seconds, point.memory): point for point in reversed(points)}
    return [first[pair] for pair in pareto_filter(first)]


def list_pareto_solutions(
    problem: ChoiceProblem, most: int = 20, step: float = 0.0, gap: float = 1e-9
) -> list[Solution]:
    """Return the assignments that no other one beats in both seconds and memory, fastest first.

    First, the fastest assignment without a limit on memory is found. Its memory, reduced by ``step``, is the limit of
    the next one, and so on, until no assignment fits or there are ``most`` solutions. For example, solutions of (1 s,
    9 GB), (2 s, 6 GB) and (4 s, 5 GB): faster ones need more memory. Of equally fast assignments, one with little
    memory is taken.

    Args:
        problem: the assignment problem.
        most: the largest number of solutions.
        step: each limit is the memory of the solution before, less this share of it and less 0.5 bytes.
        gap: relative gap at which the integer solver stops.

    Raises:
        InputError: If scipy is not installed.
    """
    frontier: list[Solution] = []
    limit: float | None = None
    seconds_per_byte = _tie_break(problem)
    while len(frontier) < most:
        try:
            answer = solve_integer(problem.weighted(seconds_per_byte), limit, gap=gap)
        except DoesNotFitError:
            break
        answer = Solution.of(problem, answer.states, answer.method, answer.optimal)
        frontier.append(answer)
        limit = answer.memory * (1.0 - step) - 0.5
        if limit <= 0:
            break
    return unbeaten(frontier)


def _tie_break(problem: ChoiceProblem) -> float:
    """Return a price in seconds per byte that is so small that bytes only decide between equal times."""
    seconds = sum(float(row[row < IMPOSSIBLE / 2].max(initial=0.0)) for row in problem.seconds)
    memory = sum(float(row.max(initial=0.0)) for row in problem.memory) or 1.0
    # The largest possible memory then costs 1e-6 of the largest possible seconds.
    return 1e-6 * seconds / memory if seconds else 1e-12


@dataclass(frozen=True, repr=False)
class TradeOff(ShortRepr):
    """A choice with its modelled seconds per step and its peak bytes of a rank."""

    mesh: Mesh
    seconds: float
    memory: float
    choice: StrategyChoice


def frontier(
    graph: Graph, where: int | Mesh | Sequence[Mesh], settings: Settings, most: int = 10
) -> list[TradeOff]:
    """Return trade-offs of time and memory over the given or searched meshes, fastest first.

    A trade-off that another one beats in both is left out.

    On each mesh the fastest solution is found first. Each next solution may use at most 96 % of the memory of the one
    before, so smaller savings are not found. It ends at ``most`` solutions, or if none fits. Solutions are optimal to
    within 0.1 %.

    Parameters may be stored in shards (fully sharded) where that saves memory, and the repeats of a layer have equal
    strategies. The memory of a trade-off is its peak, in bytes of the busiest rank.

    Args:
        graph: the program.
        where: a mesh, several meshes, or a number of ranks, for which meshes with up to two axes are searched.
        settings: the assumptions of the cost model.
        most: the largest number of solutions per mesh.

    Raises:
        InputError: If scipy is not installed, or the number of ranks is not possible.
    """
    points: list[TradeOff] = []
    tie = any(operator.layer is not None for operator in graph.operators)
    open_settings = replace(settings, sharded_parameters=True, tie=tie)
    for mesh in candidate_meshes(graph, where, 2):
        model = ChoiceModel(graph, mesh, open_settings)
        for solution in list_pareto_solutions(model.problem, most, step=0.04, gap=1e-3):
            choice = model.choice(solution.states)
            peak = peak_memory(choice, open_settings, model.moves).peak
            points.append(TradeOff(mesh, solution.seconds, peak, choice))
    return unbeaten(points)


def frontier_table(points: Sequence[TradeOff]) -> Table:
    """Return the table of trade-offs: time of a step, peak bytes of a rank, mesh."""
    rows = [(seconds_text(p.seconds), nbytes_text(p.memory), str(p.mesh)) for p in points]
    return Table(("time", "peak memory", "mesh"), rows, right=(0, 1))
