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
    """Return the searches of all programs for those of 2, 4 and 8 ranks that ``ranks`` has."""
    chosen = [size for size in RANKS if size in ranks]
    return [
        search_facts(build_program(name, **SMALL.get(name, {})), size) for name in programs for size in chosen
    ]


def search_facts(graph: Graph, ranks: int) -> dict[str, Any]:
    """Return one search: operators, layouts, redistributions, comparison, and other strategies.

    ``why`` has the time with each other strategy of each operator. It is empty for each operator of a program with more
    than :data:`MOST_REASONED` operators.
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
    """Return a row per redistribution: phase, value, layouts, collectives, bytes, seconds.

    The bytes are those of the first rank.
    """
    rank, rows = result.mesh.rank_at(0), []
    for move, seconds in result.evaluation.moves:
        names = [move.phase, move.value.name, move.src.placement_text(), move.dst.placement_text()]
        nbytes = move.times * result.moves.plan(*move.price_key).nbytes(rank)
        rows.append([*names, list(result.collectives_of(move)), nbytes, seconds])
    return rows


def _alternatives(result: SearchResult, operator: Operator) -> list[dict[str, Any]]:
    """Return the step time with each strategy of an operator, the fastest first.

    Strategies that no program can have are left out.
    """
    settings = result.settings
    others = mesh_strategies(
        operator.bound, result.mesh, even=settings.even is not False, nested=settings.nested
    )
    rows = [_alternative(result, operator, strategy) for strategy in others]
    return sorted((row for row in rows if row is not None), key=lambda row: (row["seconds"], row["strategy"]))


def _alternative(result: SearchResult, operator: Operator, strategy: Strategy) -> dict[str, Any] | None:
    """Return the step time with one strategy of an operator; None if no program can have it."""
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
    """Return the operators whose strategy or cost differs from the best program.

    Returns:
        For each operator its name, the strategy in the best program, the strategy in the other program, and the
        additional seconds for each of :data:`KINDS`.
    """
    rows = []
    best, second = answer.best, answer.other
    for operator, old, new in zip(
        best.graph.operators, best.evaluation.operators, second.evaluation.operators
    ):
        before, after = (
            strategy_words(operator.bound, result.choice.strategies[operator.index])
            for result in (best, second)
        )
        more = [getattr(new, kind) - getattr(old, kind) for kind in KINDS]
        if before != after or any(abs(seconds) > 1e-12 * best.seconds for seconds in more):
            rows.append([operator.name, before, after, more])
    return rows
