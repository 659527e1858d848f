"""The optimum on one mesh: by elimination, or as an integer programme where memory is limited."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from spmdsim.auto_parallel.costs.choice_model import ChoiceModel
from spmdsim.auto_parallel.costs.move_prices import MovePrices
from spmdsim.auto_parallel.costs.peak_memory import peak_memory
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph
from spmdsim.auto_parallel.solvers.choice_problem import IMPOSSIBLE, Solution
from spmdsim.auto_parallel.solvers.elimination import TooWideError, eliminate
from spmdsim.auto_parallel.solvers.integer import DoesNotFitError, lightest, smallest_memory, solve_integer
from spmdsim.core import Mesh
from spmdsim.cost.roofline import flops_of
from spmdsim.errors import InputError, many

#: So often the limit of the integer programme is lowered to meet a limit of the peak.
MOST_LIMITS = 6
#: With up to so many assignments a limit of the peak is met by looking at each, cheapest first.
FEW_ASSIGNMENTS = 1000
#: So many peaks are looked at to lower one that is above its limit.
MOST_PEAKS = 1000
#: And so many of them from where no change of one variable lowers it, or from another start.
FURTHER_PEAKS = 100
#: From so many starts, those with the lowest peaks.
MOST_STARTS = 3
#: More operators than this have their repeated layers tied.
TIE_ABOVE = 400


def model_on(graph: Graph, mesh: Mesh, settings: Settings, moves: MovePrices | None = None) -> ChoiceModel:
    """The choices on a mesh, with uneven pieces where no operator has even ones; ``moves`` are prices known already."""
    model = ChoiceModel(graph, mesh, settings, moves=moves)
    if settings.even is not False and not is_used(model):
        model = ChoiceModel(graph, mesh, replace(settings, even=False), moves=moves)
    check_usable(model)
    return model


class LeastWork(NamedTuple):
    """The best solution on a mesh whose operators all have their least work.

    Attributes:
        seconds: the price of the solution; infinite if it is too large to find.
        slack: the part of the price that is not work.
    """

    seconds: float
    slack: float


def least_work(graph: Graph, mesh: Mesh, settings: Settings, moves: MovePrices) -> LeastWork:
    """Price the best solution on a mesh in which every operator has its least work.

    Return the price and the part of it that is not work. The price is infinite if the problem is too large for elimination.
    """
    model = ChoiceModel(graph, mesh, settings, moves=moves, slack=0.0)
    solution = _eliminate(model)
    seconds = math.inf if solution is None else solution.seconds
    return LeastWork(seconds, max(seconds - model.least_work, 0.0))


def quick_model(
    graph: Graph, mesh: Mesh, settings: Settings, moves: MovePrices, bound: LeastWork | None = None
) -> ChoiceModel:
    """Return the choices on a mesh without strategies that no optimum has.

    A strategy is left out if its work alone makes every solution dearer than the solution of least work.
    """
    bound = bound or least_work(graph, mesh, settings, moves)
    return ChoiceModel(graph, mesh, settings, moves=moves, slack=bound.slack)


def is_used(model: ChoiceModel) -> bool:
    """Whether some operator can use more than one rank of the mesh."""
    small = model.mesh.size == 1 or not model.graph.operators
    return small or any(strategy.splits for states in model.states for strategy in states.strategies)


def check_usable(model: ChoiceModel) -> None:
    """Refuse a mesh that no operator can use."""
    if is_used(model):
        return
    operator = max(model.graph.operators, key=lambda one: flops_of(one.bound))
    sizes = ", ".join(f"{factor}={size}" for factor, size in operator.bound.sizes.items())
    raise InputError(
        f"no operator can use {many(model.mesh.size, 'rank')} as {model.mesh}: every dim has fewer elements than ranks, or must stay whole, as in the largest operator "
        f"with {sizes}",
        **operator.named,
    )


#: Times the least memory that is kept: the cheapest assignments below them are looked at for the lowest peak.
SLACKS = (1.0, 1.1, 1.3, 1.6, 2.0, 3.0, 5.0, 10.0, math.inf)


def least_on(
    graph: Graph,
    mesh: Mesh,
    settings: Settings,
    moves: MovePrices | None = None,
    choices: ChoiceModel | None = None,
) -> float | None:
    """Return the seconds that every choice on a mesh takes at least, by elimination.

    Args:
        graph: the program.
        mesh: where it runs.
        settings: what the cost of a plan is made of.
        moves: prices known already.
        choices: the choices on this mesh if they were built before; used if their settings are those of this search.

    Returns:
        None where tables are too large, or nothing is proven.
    """
    settings = replace(settings, tie=settings.tie or len(graph.operators) > TIE_ABOVE)
    usable = choices is not None and choices.settings == settings
    model = choices if choices is not None and usable else ChoiceModel(graph, mesh, settings, moves=moves)
    solution = _eliminate(model)
    return None if solution is None else model.least(solution)


def solve(model: ChoiceModel, memory: float | None = None) -> Solution:
    """The cheapest assignment of a model; with a limit, one whose peak memory stays below it."""
    free = _eliminate(model)
    if memory is None:
        return free or lightest(model.problem, solve_integer(model.problem))
    if free is not None and _peak(model, free) <= memory:
        return free
    return _within(model, memory)


def _peak(model: ChoiceModel, solution: Solution) -> int:
    return peak_memory(model.choice(solution.states), model.settings, model.moves).peak


def _within(model: ChoiceModel, memory: float) -> Solution:
    """The cheapest assignment whose peak stays below a limit.

    The programme limits what lives throughout and what is kept for the backward pass. What is alive besides at the
    peak is known of an assignment only, so the programme's limit is lowered until the peak is low enough.
    """
    if math.prod(map(len, _free_states(model))) <= FEW_ASSIGNMENTS:
        return _cheapest_of_few(model, memory)
    starts = _lowest(model, memory)
    peak, least = starts[0] if starts[0][0] <= memory else _lowered(model, starts, memory)
    if peak > memory:
        raise DoesNotFitError.none_found(memory, peak)
    limit = memory
    for k in range(MOST_LIMITS):
        try:
            solution = solve_integer(model.problem, limit)
        except DoesNotFitError:
            break
        above = _peak(model, solution) - memory
        if above <= 0:
            lighter = lightest(model.problem, solution)
            solution = lighter if _peak(model, lighter) <= memory else solution
            return (
                solution if k == 0 and _proven(model, solution, memory) else replace(solution, optimal=False)
            )
        limit = min(limit, solution.memory) - max(above, 1.0)
    return replace(least, optimal=False)


def _free_states(model: ChoiceModel) -> list[range]:
    """The states of each variable; hubs, which follow from the others, have one."""
    hubs = {*model.problem.hubs}
    return [range(1 if v in hubs else size) for v, size in enumerate(model.problem.sizes)]


def _cheapest_of_few(model: ChoiceModel, memory: float) -> Solution:
    """The cheapest of all assignments whose peak stays below a limit."""
    problem = model.problem
    every = (problem.with_best_hubs(states) for states in itertools.product(*_free_states(model)))
    solutions = [Solution.of(problem, states, "all assignments", True) for states in every]
    lowest = math.inf
    for solution in sorted(solutions, key=lambda one: one.seconds):
        if solution.seconds < IMPOSSIBLE / 2:
            peak = _peak(model, solution)
            if peak <= memory:
                return solution
            lowest = min(lowest, peak)
    raise DoesNotFitError.below(memory, lowest)


def _lowered(
    model: ChoiceModel, starts: Sequence[tuple[int, Solution]], memory: float
) -> tuple[int, Solution]:
    """An assignment with a lower peak than those, whichever of them it is reached from, until it is below a limit."""
    looked: set[tuple[int, ...]] = set()
    lowest = starts[0]
    for peak, solution in starts[:MOST_STARTS]:
        most = min(MOST_PEAKS, len(looked) + FURTHER_PEAKS) if looked else MOST_PEAKS
        reached = _descended(model, solution, peak, memory, looked, most)
        lowest = min(lowest, reached, key=lambda one: one[0])
        if lowest[0] <= memory:
            break
    return lowest


def _descended(
    model: ChoiceModel,
    solution: Solution,
    peak: int,
    memory: float,
    looked: set[tuple[int, ...]],
    most: int,
) -> tuple[int, Solution]:
    """One with a lower peak, by changing one variable after the other, and where none of them helps two at a time."""
    together = 1
    while together <= 2:
        before = peak
        for change in _changes(model, together):
            if peak <= memory or len(looked) >= most or (together == 2 and peak < before):
                break
            states = [*solution.states]
            for v, state in change:
                states[v] = state
            every = model.problem.with_best_hubs(states)
            other = Solution.of(model.problem, every, solution.method, False)
            if other.seconds < IMPOSSIBLE / 2 and other.states not in looked:
                looked.add(other.states)
                lower = _peak(model, other)
                if lower < peak:
                    peak, solution = lower, other
        together = 1 if peak < before and len(looked) < most else together + 1
        if together == 2:
            most = min(most, len(looked) + FURTHER_PEAKS)
    return peak, solution


def _changes(model: ChoiceModel, together: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Other states of one variable, or of two that have a price together, as readers of a tensor and its writer."""
    free, hubs = _free_states(model), {*model.problem.hubs}
    pairs = [pair for pair in sorted(model.problem.pairs) if hubs.isdisjoint(pair)]
    for variables in pairs if together == 2 else [(v,) for v in range(len(free))]:
        yield from (
            tuple(zip(variables, states)) for states in itertools.product(*[free[v] for v in variables])
        )


def _proven(model: ChoiceModel, solution: Solution, memory: float) -> bool:
    """Whether nothing is cheaper even where only what is surely kept counts."""
    bound = solve_integer(model.surely_kept(), memory)
    return bound.optimal and bound.seconds >= solution.seconds * (1 - 1e-9)


def _lowest(model: ChoiceModel, memory: float) -> list[tuple[int, Solution]]:
    """Assignments that keep (nearly) least, the lowest peak first; if that is above a limit, also some that keep more.

    Who keeps least may gather most at once, so the peak may be lower where more is kept.
    """
    kept = smallest_memory(model.problem)
    peaks: dict[tuple[int, ...], tuple[int, Solution]] = {}
    for slack in SLACKS:
        solution = solve_integer(model.problem, slack * kept if slack < math.inf else None)
        if solution.states not in peaks:
            peaks[solution.states] = _peak(model, solution), solution
        if slack >= SLACKS[1] and min(peak for peak, _ in peaks.values()) <= memory:
            break
    return sorted(peaks.values(), key=lambda one: one[0])


def _eliminate(model: ChoiceModel) -> Solution | None:
    try:
        return eliminate(model.problem, model.kept_states)
    except TooWideError:
        return None
