"""The optimum on one mesh: by elimination, or as an integer program if memory is limited."""

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
from spmdsim.auto_parallel.solvers.integer import (
    DoesNotFitError,
    find_lightest,
    smallest_memory,
    solve_integer,
)
from spmdsim.core import Mesh
from spmdsim.cost.roofline import flops_of
from spmdsim.errors import InputError, many

#: Number of times that the limit of the integer program is lowered until the peak is below its limit.
MOST_LIMITS = 6
#: Most assignments whose peaks are all computed to find the cheapest one below the limit of the peak.
FEW_ASSIGNMENTS = 1000
#: Most peaks that are computed to lower a peak that is above its limit.
MOST_PEAKS = 1000
#: Most further peaks, after no change of one variable lowers the peak, and from each further start.
FURTHER_PEAKS = 100
#: Most assignments, those with the lowest peaks, from which a lower peak is searched.
MOST_STARTS = 3
#: Programs with more operators have the strategies of their repeated layers tied.
TIE_ABOVE = 400


def build_choice_model(
    graph: Graph, mesh: Mesh, settings: Settings, moves: MovePrices | None = None
) -> ChoiceModel:
    """Build the model of all choices on a mesh: even blocks if they work, else uneven ones.

    Uneven blocks are tried if no operator can use the mesh with even ones, unless ``settings.even`` is False already.

    Args:
        graph: the program.
        mesh: the mesh.
        settings: the settings of the search.
        moves: prices of redistributions that earlier calls computed; None: none yet.

    Raises:
        InputError: If no operator can use the mesh, or an operator has too many strategies.
        RuleError: If a configured strategy does not fit its operator.
    """
    model = ChoiceModel(graph, mesh, settings, moves=moves)
    if settings.even is not False and not is_used(model):
        model = ChoiceModel(graph, mesh, replace(settings, even=False), moves=moves)
    check_usable(model)
    return model


class LeastWork(NamedTuple):
    """Price of the best solution on a mesh whose operators all have their least work.

    Attributes:
        seconds: the price of the solution; infinite if the problem is too large for elimination.
        slack: the part of the price that is not work, in seconds.
    """

    seconds: float
    slack: float


def least_work(graph: Graph, mesh: Mesh, settings: Settings, moves: MovePrices) -> LeastWork:
    """Price the best solution on a mesh in which every operator has its least work.

    Both numbers are infinite if the tables of the elimination are too large.

    Args:
        graph: the program.
        mesh: the mesh that it runs on.
        settings: the assumptions of the cost model.
        moves: prices that earlier calls computed.

    Returns:
        The seconds of the solution, and its seconds beyond the least work of all operators, at least 0.
    """
    model = ChoiceModel(graph, mesh, settings, moves=moves, slack=0.0)
    solution = _eliminate(model)
    seconds = math.inf if solution is None else solution.seconds
    return LeastWork(seconds, max(seconds - model.least_work, 0.0))


def quick_model(
    graph: Graph, mesh: Mesh, settings: Settings, moves: MovePrices, bound: LeastWork | None = None
) -> ChoiceModel:
    """Return the choices on a mesh without strategies that no optimum has.

    A strategy is left out if its work alone makes every solution dearer than the solution of least work. ``bound`` is
    the result of :func:`least_work` on this mesh; None to compute it. ``moves`` has prices of earlier calls.
    """
    bound = bound or least_work(graph, mesh, settings, moves)
    return ChoiceModel(graph, mesh, settings, moves=moves, slack=bound.slack)


def is_used(model: ChoiceModel) -> bool:
    """Return True if some operator has a strategy that splits something, so that it uses the mesh.

    It is also True for a mesh of one rank and for a graph without operators.
    """
    small = model.mesh.size == 1 or not model.graph.operators
    return small or any(strategy.splits for states in model.states for strategy in states.strategies)


def check_usable(model: ChoiceModel) -> None:
    """Raise InputError if no operator of a model can use its mesh; see :func:`is_used`.

    Args:
        model: the choices on the mesh.

    Raises:
        InputError: If no operator can use it. The text has the sizes of the operator with the most floating point
            operations.
    """
    if is_used(model):
        return
    operator = max(model.graph.operators, key=lambda candidate: flops_of(candidate.bound))
    sizes = ", ".join(f"{factor}={size}" for factor, size in operator.bound.sizes.items())
    raise InputError(
        f"no operator can use {many(model.mesh.size, 'rank')} as {model.mesh}: every dim has fewer elements than ranks, or must stay whole, as in the largest operator "
        f"with {sizes}",
        **operator.error_facts,
    )


#: Limits on memory, as multiples of the least memory. The cheapest assignment below each is a start for a low peak.
SLACKS = (1.0, 1.1, 1.3, 1.6, 2.0, 3.0, 5.0, 10.0, math.inf)


def bound_seconds(
    graph: Graph,
    mesh: Mesh,
    settings: Settings,
    moves: MovePrices | None = None,
    choices: ChoiceModel | None = None,
) -> float | None:
    """Return a lower bound on the seconds of every choice on a mesh, by elimination.

    With ``settings.tie``, or above :data:`TIE_ABOVE` (400) operators, only choices with equal strategies for repeated
    layers count. Messages that gradients share are priced with an allowance, so that the bound holds.

    Args:
        graph: the program.
        mesh: the mesh that it runs on.
        settings: the assumptions of the cost model.
        moves: prices that earlier calls computed; None: none yet.
        choices: an earlier choice model of this mesh; used only if its settings equal those of this search.

    Returns:
        The seconds. None if the tables of the elimination are too large, or if the model leaves out choices. Also
        None if the allowance for shared messages is not smaller than the seconds.
    """
    settings = replace(settings, tie=settings.tie or len(graph.operators) > TIE_ABOVE)
    if choices is not None and choices.settings == settings:
        model = choices
    else:
        model = ChoiceModel(graph, mesh, settings, moves=moves)
    solution = _eliminate(model)
    return None if solution is None else model.least(solution)


def find_optimum(model: ChoiceModel, memory: float | None = None) -> Solution:
    """Return the cheapest assignment (a state for each variable) of a model.

    - Without a limit, it is that of the elimination. If the tables of the elimination are too large, it is that of the
      solver HiGHS; of equally fast ones, the one with the least memory.
    - With a limit, it is that of the elimination if its peak fits. Otherwise integer programs are solved
      (:func:`_solve_within`), and the result need not be proven to be the cheapest.

    Args:
        model: the choices on a mesh.
        memory: the largest peak in bytes of a rank; None for no limit.

    Raises:
        DoesNotFitError: If no assignment with a peak of at most ``memory`` bytes was found.
        InputError: If HiGHS is needed and scipy is not installed.
    """
    without_limit = _eliminate(model)
    if memory is None:
        return without_limit or find_lightest(model.problem, solve_integer(model.problem))
    if without_limit is not None and _peak(model, without_limit) <= memory:
        return without_limit
    return _solve_within(model, memory)


def _peak(model: ChoiceModel, solution: Solution) -> int:
    """Return the peak bytes of a rank for a solution."""
    return peak_memory(model.choice(solution.states), model.settings, model.moves).peak


def _solve_within(model: ChoiceModel, memory: float) -> Solution:
    """Return the cheapest assignment with a peak of at most ``memory`` bytes.

    If there are at most :data:`FEW_ASSIGNMENTS` assignments, all are tried. Otherwise an integer program is solved,
    which can limit only a part of the peak: the bytes that live throughout and those stored for the backward pass. The
    whole peak is known for a complete assignment only. If it is too high, the program's limit is lowered by the
    difference and the program is solved again; it is solved at most :data:`MOST_LIMITS` (6) times in all. If no
    solution fits, the assignment with the lowest peak is returned that a local search found at the start.

    Args:
        model: the choices on a mesh.
        memory: the largest peak in bytes of a rank.

    Returns:
        The solution. It is ``optimal`` only if that is proven: a lowered limit may cut off cheaper assignments.

    Raises:
        DoesNotFitError: If the local search at the start found no assignment with a low enough peak; with few
            assignments, if none has one.
    """
    if math.prod(map(len, _free_states(model))) <= FEW_ASSIGNMENTS:
        return _cheapest_of_few(model, memory)
    starts = _find_low_peaks(model, memory)
    peak, least = starts[0] if starts[0][0] <= memory else _lower_peaks(model, starts, memory)
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
            lighter = find_lightest(model.problem, solution)
            solution = lighter if _peak(model, lighter) <= memory else solution
            # A lowered limit may have cut off cheaper assignments with low peaks.
            is_optimal = k == 0 and _is_proven_optimal(model, solution, memory)
            return solution if is_optimal else replace(solution, optimal=False)
        # Lower the limit by as much as the peak was too high, at least by one byte.
        limit = min(limit, solution.memory) - max(above, 1.0)
    return replace(least, optimal=False)


def _free_states(model: ChoiceModel) -> list[range]:
    """Return the states of each variable that an enumeration visits.

    Hubs have one, because they follow from the other variables.
    """
    hubs = {*model.problem.hubs}
    return [range(1 if v in hubs else size) for v, size in enumerate(model.problem.sizes)]


def _cheapest_of_few(model: ChoiceModel, memory: float) -> Solution:
    """Return the cheapest assignment with a low enough peak, by trying all assignments.

    An assignment has a state for each variable. Hubs, which take part in many pairs, are not enumerated: each hub gets
    its cheapest state for the other variables' states. The assignments are sorted by their seconds; the first whose
    peak is low enough is returned. Impossible ones are left out.

    Args:
        model: the choices on a mesh.
        memory: the largest peak in bytes of a rank.

    Raises:
        DoesNotFitError: If no assignment has such a peak; the error names the lowest one.
    """
    problem = model.problem
    assignments = (problem.with_best_hubs(states) for states in itertools.product(*_free_states(model)))
    solutions = [Solution.of(problem, states, "all assignments", True) for states in assignments]
    lowest = math.inf
    for solution in sorted(solutions, key=lambda candidate: candidate.seconds):
        if solution.seconds < IMPOSSIBLE / 2:
            peak = _peak(model, solution)
            if peak <= memory:
                return solution
            lowest = min(lowest, peak)
    raise DoesNotFitError.below(memory, lowest)


def _lower_peaks(
    model: ChoiceModel, starts: Sequence[tuple[int, Solution]], memory: float
) -> tuple[int, Solution]:
    """Search an assignment with a peak of at most ``memory`` bytes.

    The search changes the states of given assignments. It starts from each of the first :data:`MOST_STARTS` (3) ones
    until the peak is low enough. It computes at most :data:`MOST_PEAKS` (1000) peaks in total, of which at most
    :data:`FURTHER_PEAKS` (100) from each start after the first one.

    Args:
        model: the choices.
        starts: (peak, solution) pairs, the lowest peak first.
        memory: the limit of the peak in bytes.

    Returns:
        The (peak, solution) pair with the lowest peak, which may be above the limit.
    """
    visited: set[tuple[int, ...]] = set()
    lowest = starts[0]
    for peak, solution in starts[:MOST_STARTS]:
        most_visited = min(MOST_PEAKS, len(visited) + FURTHER_PEAKS) if visited else MOST_PEAKS
        reached = _lower_peak(model, solution, peak, memory, visited, most_visited)
        lowest = min(lowest, reached, key=lambda pair: pair[0])
        if lowest[0] <= memory:
            break
    return lowest


def _lower_peak(
    model: ChoiceModel,
    solution: Solution,
    peak: int,
    memory: float,
    visited: set[tuple[int, ...]],
    most: int,
) -> tuple[int, Solution]:
    """Lower the peak of a solution by changing one variable after the other.

    A change is kept if it lowers the peak; the seconds do not count. If no change of one variable does, two variables
    are changed together, with at most :data:`FURTHER_PEAKS` (100) further peaks in total; then single variables are
    changed again. The search stops

    * at a peak of at most ``memory`` bytes;
    * after ``most`` computed peaks;
    * if no change lowers the peak.

    Args:
        model: the choices.
        solution: the assignment to start from.
        peak: its peak in bytes.
        memory: the limit of the peak in bytes.
        visited: assignments whose peaks were computed, shared by all starts; new ones are added.
        most: the largest size of ``visited``.

    Returns:
        The lowest peak and its assignment.
    """
    changed_variables = 1
    while changed_variables <= 2:
        peak_before = peak
        for change in _list_changes(model, changed_variables):
            if peak <= memory or len(visited) >= most or (changed_variables == 2 and peak < peak_before):
                break
            states = [*solution.states]
            for v, state in change:
                states[v] = state
            all_states = model.problem.with_best_hubs(states)
            candidate = Solution.of(model.problem, all_states, solution.method, False)
            if candidate.seconds < IMPOSSIBLE / 2 and candidate.states not in visited:
                visited.add(candidate.states)
                candidate_peak = _peak(model, candidate)
                if candidate_peak < peak:
                    peak, solution = candidate_peak, candidate
        # Go on with single variables after a success, with pairs after a failure.
        changed_variables = 1 if peak < peak_before and len(visited) < most else changed_variables + 1
        if changed_variables == 2:
            most = min(most, len(visited) + FURTHER_PEAKS)
    return peak, solution


def _list_changes(model: ChoiceModel, changed_variables: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield changes of an assignment, each as ``(variable, new state)`` pairs.

    An assignment has one state for each variable. A new state may equal the present one.

    - ``changed_variables`` 1: each change is of one variable, such as ``((0, 2),)``. A hub has only the state 0 here,
      because its state follows from the other variables.
    - 2: each change is of two variables that have a price as a pair, such as the producer and the reader of a tensor.
      Pairs with a hub are left out.
    """
    states_of_variable, hubs = _free_states(model), {*model.problem.hubs}
    singles = [(variable,) for variable in range(len(states_of_variable))]
    pairs = [pair for pair in sorted(model.problem.pairs) if hubs.isdisjoint(pair)]
    for variables in pairs if changed_variables == 2 else singles:
        for states in itertools.product(*[states_of_variable[variable] for variable in variables]):
            yield tuple(zip(variables, states))


def _is_proven_optimal(model: ChoiceModel, solution: Solution, memory: float) -> bool:
    """Return True if no assignment with a peak of at most ``memory`` bytes is cheaper than a solution.

    The proof counts only the memory that an assignment certainly needs.
    """
    bound = solve_integer(model.surely_kept(), memory)
    return bound.optimal and bound.seconds >= solution.seconds * (1 - 1e-9)


def _find_low_peaks(model: ChoiceModel, memory: float) -> list[tuple[int, Solution]]:
    """Return ``(peak, solution)`` pairs of assignments that store little, the lowest peak first.

    For each factor in :data:`SLACKS` (1.0, 1.1, 1.3 …), the cheapest assignment is computed that stores at most the least
    possible bytes times the factor. Several factors are needed, because an assignment that stores least may gather
    most at its peak. At least the first two factors are used; the list ends after a peak of at most ``memory`` bytes.
    Peaks are bytes of a rank.

    Args:
        model: the choices.
        memory: the limit of the peak in bytes.
    """
    least_memory = smallest_memory(model.problem)
    peaks: dict[tuple[int, ...], tuple[int, Solution]] = {}
    for slack in SLACKS:
        solution = solve_integer(model.problem, slack * least_memory if slack < math.inf else None)
        if solution.states not in peaks:
            peaks[solution.states] = _peak(model, solution), solution
        if slack >= SLACKS[1] and min(peak for peak, _ in peaks.values()) <= memory:
            break
    return sorted(peaks.values(), key=lambda pair: pair[0])


def _eliminate(model: ChoiceModel) -> Solution | None:
    """Return the optimum by elimination, or None if its tables are too large."""
    try:
        return eliminate(model.problem, model.kept_states)
    except TooWideError:
        return None
