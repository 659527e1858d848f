"""Compute the page's data of searches: the best strategies of a program, their cost, and the cost of all others."""

from __future__ import annotations

from typing import Any

from spmdsim.auto_parallel.programs.graph import Graph, Operator
from spmdsim.auto_parallel.programs.networks import build_program
from spmdsim.auto_parallel.search import search
from spmdsim.auto_parallel.search_report import operator_rows, strategy_words
from spmdsim.auto_parallel.search_result import SearchResult, WhyNot
from spmdsim.auto_parallel.strategy_choice import mesh_strategies
from spmdsim.core import Strategy
from spmdsim.errors import InputError

#: Sizes for which the built-in programs are small enough to read.
SMALL: dict[str, dict[str, Any]] = {"mlp": {"layers": 2}, "tutorial": {"configured": False}}

#: Largest number of operators of a program whose other strategies are priced; more would take minutes.
MOST_REASONED = 12

RANKS = (2, 4, 8)
KINDS = ("compute", "forward", "backward", "gradient")


def searches(programs: tuple[str, ...], ranks: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return the searches of all programs for 2, 4 and 8 ranks, without the numbers that ``ranks`` lacks.

    Args:
        programs: names of built-in programs; "mlp" has two layers, and no operator of "tutorial" is configured.
        ranks: the rank counts of the page.

    Returns:
        The dicts of :func:`search_facts`, program by program.
    """
    sizes = [size for size in RANKS if size in ranks]
    return [
        search_facts(build_program(name, **SMALL.get(name, {})), size) for name in programs for size in sizes
    ]


def search_facts(graph: Graph, ranks: int) -> dict[str, Any]:
    """Search the fastest strategies of a program on a laptop's machine; return them as a dict.

    Times are in seconds per training step. Bytes are per rank.

    - "program", "ranks", "mesh", "machine", "collectives": what was searched, the mesh that was chosen, and the
      collectives of the program.
    - "seconds", "nbytes", "peak": time, received bytes, and most memory of a rank. "optimal" is True if it is proven
      that no other choice is faster under the model.
    - "operators": a row per operator, with its strategy in "words".
    - "moves": the redistributions, see :func:`_redistribution_rows`.
    - "comparison": name, seconds, received bytes and peak memory of hand-written strategies.
    - "why": by operator, the time with each of its strategies, see :func:`_alternatives`. It is {} for a program with
      more than :data:`MOST_REASONED` (12) operators.

    Args:
        graph: the program.
        ranks: number of ranks; all their meshes are searched.
    """
    result = search(graph, ranks)
    reasoned = len(graph.operators) <= MOST_REASONED
    return {
        "program": graph.name,
        "ranks": ranks,
        "mesh": str(result.mesh),
        "machine": result.settings.machine.name,
        "optimal": result.within == 0,
        "seconds": result.seconds,
        "nbytes": result.nbytes,
        "peak": result.memory.peak,
        "collectives": result.collectives,
        "operators": [
            {**row, "words": strategy_words(operator.bound, result.strategy(operator.name))}
            for operator, row in zip(graph.operators, operator_rows(result))
        ],
        "moves": _redistribution_rows(result),
        "comparison": [
            [name, evaluation.seconds, evaluation.nbytes, evaluation.memory.peak]
            for name, evaluation in result.comparison.items()
        ],
        "why": {operator.name: _alternatives(result, operator) for operator in graph.operators if reasoned},
    }


def _redistribution_rows(result: SearchResult) -> list[list[Any]]:
    """Return a row of seven entries per redistribution of a search's result.

    The entries are: phase, name of the value, layout before, layout after, collectives, bytes, seconds. The
    collectives are a list of names. The bytes are those that the first rank receives in all repetitions together.
    """
    rank, rows = result.mesh.rank_at(0), []
    for move, seconds in result.evaluation.moves:
        names = [move.phase, move.value.name, move.src.placement_text(), move.dst.placement_text()]
        nbytes = move.times * result.moves.plan(*move.price_key).nbytes(rank)
        rows.append([*names, list(result.collectives_of(move)), nbytes, seconds])
    return rows


def _alternatives(result: SearchResult, operator: Operator) -> list[dict[str, Any]]:
    """Return the step time with each strategy of an operator, the fastest first.

    The strategies of all other operators are chosen again. Strategies that no program can have are left out. Equal times
    are ordered by the text of the strategy.
    """
    settings = result.settings
    others = mesh_strategies(
        operator.bound, result.mesh, even=settings.even is not False, nested=settings.nested
    )
    rows = [_alternative(result, operator, strategy) for strategy in others]
    return sorted((row for row in rows if row is not None), key=lambda row: (row["seconds"], row["strategy"]))


def _alternative(result: SearchResult, operator: Operator, strategy: Strategy) -> dict[str, Any] | None:
    """Return the step time of the best program in which an operator has a given strategy.

    All other operators choose again. Return None if no program can have the strategy.

    Args:
        result: the result of the search.
        operator: an operator of its program.
        strategy: the strategy to fix.

    Returns:
        "strategy" (text), "words" (text for readers), "seconds" (of the whole step), and "changes", see
        :func:`_changed_operators`.
    """
    try:
        answer = result.why(operator.name, dict(strategy.splits))
    except InputError:
        return None
    words = strategy_words(operator.bound, strategy)
    return {
        "strategy": str(strategy),
        "words": words,
        "seconds": answer.other.seconds,
        "changes": _changed_operators(answer),
    }


def _changed_operators(answer: WhyNot) -> list[list[Any]]:
    """Return the operators that change if one operator must have a given strategy.

    An operator changes if its strategy does, or if one kind of its cost differs by more than 1e-12 of the best step
    time.

    Args:
        answer: the best program, and the best one of those with the given strategy.

    Returns:
        For each operator a list ``[name, best, other, seconds]``: its name, its strategy in the best program, its
        strategy in the other program, and the additional seconds in the other program for each of :data:`KINDS`.
    """
    rows = []
    best_result, other_result = answer.best, answer.other
    for operator, best_cost, other_cost in zip(
        best_result.graph.operators, best_result.evaluation.operators, other_result.evaluation.operators
    ):
        before, after = (
            strategy_words(operator.bound, result.choice.strategies[operator.index])
            for result in (best_result, other_result)
        )
        added_seconds = [getattr(other_cost, kind) - getattr(best_cost, kind) for kind in KINDS]
        if before != after or any(abs(seconds) > 1e-12 * best_result.seconds for seconds in added_seconds):
            rows.append([operator.name, before, after, added_seconds])
    return rows
