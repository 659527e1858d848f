"""Run a program with all orders in which its wildcard receives can take messages, and compare the outcomes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from spmdsim.errors import many
from spmdsim.simulation.engine.order_choices import Choice, ChoicePoint, OrderChoices, find_next_path
from spmdsim.simulation.findings.problems import ERROR, WARNING, Problem
from spmdsim.simulation.simulation_report import Report

#: Number of sources that a finding shows of one order.
SHOWN_SOURCES = 12
#: Runs after which ``progress`` is called again.
PROGRESS_STEP = 50

Order = tuple[Choice, ...]


@dataclass
class OrderOutcome:
    """Errors, output and results of a program in some orders of messages.

    Attributes:
        report: the report of the shortest order.
        order: the shortest order; the first one of equally short ones.
        count: number of orders with this outcome.
    """

    report: Report
    order: Order
    count: int = 1


def explore_orders(
    base: Report,
    run: Callable[[OrderChoices], Report],
    limit: int,
    progress: Callable[[int], None] | None,
) -> Report:
    """Return the report of a program with the findings of all orders of its messages.

    Args:
        base: the report of the ordinary run. A program that fails there is not run again.
        run: runs the program with the order that its argument prescribes.
        limit: the largest number of runs.
        progress: called with the number of runs from time to time; None: not called.
    """
    if not base.completed:
        return base
    outcomes: dict[Any, OrderOutcome] = {}
    path: list[ChoicePoint] = []
    runs, orders, open_end = 0, 0, True
    while open_end and runs < limit:
        choices = OrderChoices(path)
        report = run(choices)
        runs += 1
        if not choices.is_repeated:
            orders += 1
            _add_outcome(outcomes, report, tuple(point.chosen for point in path))
        if progress is not None and runs % PROGRESS_STEP == 0:
            progress(runs)
        open_end = find_next_path(path)
    findings = [*_find_new_errors(base, outcomes, orders), *_find_dependence(outcomes, orders)]
    problems = (*base.problems, *findings)
    wrong = any(base.strict or problem.severity == ERROR for problem in problems)
    return replace(
        base,
        problems=problems,
        exit_code=base.exit_code or int(wrong),
        orders=orders,
        all_orders=not open_end,
    )


def _add_outcome(outcomes: dict[Any, OrderOutcome], report: Report, order: Order) -> None:
    """Count an order; keep it if it is the shortest one with its outcome."""
    outcome = outcomes.setdefault(_outcome_key(report), OrderOutcome(report, order, 0))
    outcome.count += 1
    if len(order) < len(outcome.order):
        outcome.report, outcome.order = report, order


def _outcome_key(report: Report) -> Any:
    """Return a value that is equal for runs with equal errors, output lines and results on each rank."""
    errors = tuple(_error_key(problem) for problem in report.problems if problem.severity == ERROR)
    return errors, tuple(_lines_of(report, rank) for rank in range(report.size)), _as_bytes(report.results)


def _error_key(problem: Problem) -> Any:
    return problem.kind, tuple((location.file, location.line) for location in problem.places)


def _lines_of(report: Report, rank: int) -> tuple[str, ...]:
    """Return the lines that a rank prints."""
    return tuple(line for printing_rank, line in report.output if printing_rank == rank)


def _as_bytes(value: Any) -> bytes:
    """Return a value as bytes for a comparison: pickled, or its text if it cannot be pickled."""
    try:
        return pickle.dumps(value)
    except Exception:
        return repr(value).encode()


def _find_new_errors(base: Report, outcomes: dict[Any, OrderOutcome], orders: int) -> Iterator[Problem]:
    """Yield the errors that the ordinary run does not have, each with its shortest order.

    Args:
        base: the report of the ordinary run.
        outcomes: the outcomes of all orders.
        orders: the number of orders.
    """
    error_keys = {_error_key(problem) for problem in base.problems}
    for outcome in sorted(outcomes.values(), key=lambda outcome: len(outcome.order)):
        for problem in outcome.report.problems:
            if problem.severity == ERROR and _error_key(problem) not in error_keys:
                error_keys.add(_error_key(problem))
                order = describe_order(outcome.order)
                text = f"{problem.message}; this happens if {order} (in {outcome.count} of {many(orders, 'order')})"
                yield replace(problem, message=text)


def _find_dependence(outcomes: dict[Any, OrderOutcome], orders: int) -> Iterator[Problem]:
    """Yield a warning "order_dependent" if orders without an error differ in output or results.

    Args:
        outcomes: the outcomes of all orders.
        orders: the number of orders.
    """
    correct = [outcome for outcome in outcomes.values() if outcome.report.ok]
    if len(correct) < 2:
        return
    first, second = sorted(correct, key=lambda outcome: len(outcome.order))[:2]
    rank, words, other_words = _first_difference(first.report, second.report)
    differing = [a for a, b in zip(first.order, second.order) if a != b] or first.order or second.order
    places = (differing[0].location,) if differing else ()
    where = f" in {places[0]}" if places else ""
    text = (
        f"the result depends on the order of messages{where}: rank {rank} {words} if {describe_order(first.order)}, "
        f"and {other_words} if {describe_order(second.order)} "
        f"({many(len(correct), 'outcome')} of {many(orders, 'order')})"
    )
    ranks = tuple(sorted({rank, *(location.rank for location in places)}))
    yield Problem("order_dependent", WARNING, text, ranks, places)


def _first_difference(first: Report, second: Report) -> tuple[int, str, str]:
    """Return the first rank that prints or returns something else, and a clause for both runs.

    Args:
        first: a report.
        second: the report of another order.

    Returns:
        The rank; a clause such as ``prints "3"``; what differs in the second run, such as ``"4"``.
    """
    for rank in range(first.size):
        lines, other_lines = _lines_of(first, rank), _lines_of(second, rank)
        for line, other_line in zip((*lines, "nothing more"), (*other_lines, "nothing more")):
            if line != other_line:
                return rank, f'prints "{line}"', f'"{other_line}"'
        result, other_result = first.results[rank], second.results[rank]
        if _as_bytes(result) != _as_bytes(other_result):
            return rank, f"returns {_shorten(result)}", _shorten(other_result)
    return 0, "returns another object", "yet another one"


def _shorten(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def describe_order(order: Order) -> str:
    """Return an order as text, such as ``rank 0 receives from 2, 1``.

    Args:
        order: the choices; of each receiver the first :data:`SHOWN_SOURCES` (12) are shown.
    """
    sources: dict[int, list[int]] = {}
    for choice in order:
        sources.setdefault(choice.rank, []).append(choice.source)
    phrases = []
    for rank, senders in sources.items():
        words = [str(sender) for sender in senders[:SHOWN_SOURCES]]
        words += ["…"] if len(senders) > SHOWN_SOURCES else []
        phrases.append(f"rank {rank} receives from {', '.join(words)}")
    return " and ".join(phrases[:3]) or "no wildcard takes a message"
