"""Findings on windows at the end of the run: calls that are not complete, and windows that were not freed."""

from __future__ import annotations

from collections.abc import Iterator

from spmdsim.simulation.engine.scheduler import Scheduler
from spmdsim.simulation.findings.problems import ERROR, WARNING, Problem, ranks_text
from spmdsim.simulation.one_sided.window_state import WindowState


def find_open_windows(scheduler: Scheduler) -> Iterator[Problem]:
    """Yield an error for each open epoch, and a warning for each window that was not freed.

    Args:
        scheduler: the simulation, which has ended.
    """
    for task in scheduler.tasks:
        if scheduler.order is not None:
            scheduler.order.observe(task)
    for window in scheduler.windows:
        if window.freed is None:
            yield from _find_open_epochs(window)
    yield from _find_not_freed(scheduler)


def _find_open_epochs(window: WindowState) -> Iterator[Problem]:
    """Yield one error "open_epoch" per clause on an epoch of a ``window`` that ranks have not closed."""
    ranks_of_clause: dict[str, list[int]] = {}
    for rank, epochs in zip(window.ranks, window.epochs):
        clause = epochs.find_open(passive=True)
        if clause:
            ranks_of_clause.setdefault(clause, []).append(rank)
    for clause, ranks in ranks_of_clause.items():
        verb = "ends" if len(ranks) == 1 else "end"
        text = f"{ranks_text(ranks)} {verb} in an epoch: {clause}"
        yield Problem("open_epoch", ERROR, text, tuple(ranks))


def _find_not_freed(scheduler: Scheduler) -> Iterator[Problem]:
    """Yield one warning "not_freed" per source line whose windows of ``scheduler`` were not freed."""
    windows_of_line: dict[str, list[WindowState]] = {}
    for window in scheduler.windows:
        if window.freed is None:
            windows_of_line.setdefault(window.created.where, []).append(window)
    for windows in windows_of_line.values():
        created = windows[0].created
        ranks = sorted({rank for window in windows for rank in window.ranks})
        verb = "frees" if len(ranks) == 1 else "free"
        objects = "the window" if len(windows) == 1 else f"{len(windows)} windows"
        text = f"{ranks_text(ranks)} never {verb} {objects} of {created}; call Free on all ranks of a window"
        yield Problem("not_freed", WARNING, text, tuple(ranks), (created,))
