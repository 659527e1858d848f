"""Messages between ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from spmdsim.errors import NoAnswer, SpmdError, many
from spmdsim.labs.judging import RANKS, Mistake, expect, per_rank
from spmdsim.simulation import simulate
from spmdsim.simulation.simulation_report import Report

Body = Callable[[Any], Any]


def _run(body: Body, size: int, seed: int | None = None) -> Report:
    """Run a program on virtual ranks; no send is buffered."""
    unanswered: list[NoAnswer] = []

    def run_rank(comm: Any) -> Any:
        try:
            return body(comm)
        except NoAnswer as error:  # of the rank's process, and not of its function
            unanswered.append(error)
            raise

    try:
        report = simulate(run_rank, size, strict=True, check=False, seed=seed)
    except SpmdError as error:
        raise Mistake(f"on {many(size, 'rank')}: {error}") from None
    if unanswered:
        raise unanswered[0]
    if not report.ok:
        first = report.errors[0]
        if first.kind == "exception" and "NotImplementedError" in first.message:
            raise NotImplementedError
        raise Mistake(f"on {size} rank{'s' * (size > 1)}: {first.kind.replace('_', ' ')}: {first.message}")
    return report


def _on_ranks(body: Body) -> list[Any] | None:
    """Run a correct program on real ranks; return a list of this rank's result, or None if nothing was launched."""
    from spmdsim.launcher import launched  # what this file has at its top belongs to no virtual rank
    from spmdsim.worlds import world

    if not launched():
        return None
    here: Any = world(RANKS)
    communicator = here.comm.Dup()
    try:
        return [body(communicator)]
    finally:
        communicator.Free()


def _expect_results(values: Any, wanted: list[Any], call: str) -> None:
    """Check every rank's result; on real ranks only the caller's."""
    from spmdsim.worlds import world

    ranks = range(len(wanted)) if len(values) == len(wanted) else world(RANKS).ranks
    for rank, value in zip(ranks, values):
        same = np.array_equal(value, wanted[rank]) if wanted[rank] is not None else value is None
        gives = f"gives {_told(value)} on rank {rank}, but it is {_told(wanted[rank])}"
        expect(same, f"{call} on {many(len(wanted), 'rank')} {gives}")


def _told(value: Any) -> str:
    return str(value.tolist() if isinstance(value, np.ndarray) else value)


@per_rank
def ring(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the sums, then the messages."""
    body: Body = lambda comm: answer(comm, (comm.rank + 1) ** 2)  # noqa: E731
    reports = {}
    for sizes in ((1, 2, 3), range(4, RANKS + 1)):
        for size in sizes:
            reports[size] = _run(body, size)
            _expect_results(reports[size].results, [sum((r + 1) ** 2 for r in range(size))] * size, "ring")
        yield
    for size, report in reports.items():
        most = max(report.messages)
        words = f"with {many(size, 'rank')} one sends {many(most, 'message')}, but {size - 1} would do"
        expect(most <= size - 1, words)
        expect(
            most or size == 1,
            f"on {many(size, 'rank')} nobody sends a message: collectives are not allowed here",
        )
    if (values := _on_ranks(body)) is not None:
        _expect_results(values, [sum((r + 1) ** 2 for r in range(RANKS))] * RANKS, "ring")
    yield


@per_rank
def halo(answer: Callable[..., Any]) -> Iterator[None]:
    """Check all cells on two ranks, then on three and more, then on one."""

    def body(comm: Any) -> Any:
        return answer(comm, np.array([-1.0, *(10.0 * comm.rank + np.arange(3)), -2.0]))

    def filled(rank: int, size: int) -> np.ndarray:
        left = 10.0 * (rank - 1) + 2 if rank else -1.0
        right = 10.0 * (rank + 1) if rank + 1 < size else -2.0
        return np.array([left, *(10.0 * rank + np.arange(3)), right])

    return _each(body, ((2,), (3, 4, RANKS), (1,)), filled, "halo")


def _each(
    body: Body, groups: Iterable[Iterable[int]], wanted: Callable[[int, int], Any], name: str
) -> Iterator[None]:
    """Check the results of each rank: yield once per group of rank counts, then check real ranks, if any."""
    for sizes in groups:
        for size in sizes:
            _expect_results(_run(body, size).results, [wanted(rank, size) for rank in range(size)], name)
        yield
    if (values := _on_ranks(body)) is not None:
        _expect_results(values, [wanted(rank, RANKS) for rank in range(RANKS)], name)


@per_rank
def swap(answer: Callable[..., Any]) -> Iterator[None]:
    """Check even numbers of ranks, then odd ones."""
    body: Body = lambda comm: answer(comm, np.full(3, comm.rank + 1))  # noqa: E731

    def swapped(rank: int, size: int) -> np.ndarray:
        other = rank ^ 1
        return np.full(3, (rank if other >= size else other) + 1)

    return _each(body, ((2, 4, RANKS), (1, 3, 5)), swapped, "swap")


@per_rank
def farm(answer: Callable[..., Any]) -> Iterator[None]:
    """Check results in several legal orders, fewer tasks than workers, and that workers stay busy during a long task."""
    by_rank_0: list[int] = []

    def body(tasks: list[int]) -> Body:
        def on(comm: Any) -> Any:
            def work(task: int) -> int:
                if comm.rank == 0:
                    by_rank_0.append(task)
                return task * task

            return answer(comm, list(tasks) if comm.rank == 0 else None, work)

        return on

    def results(tasks: list[int], size: int) -> list[Any]:
        return [[task * task for task in tasks], *[None] * (size - 1)]

    many = [3, 1, 2, 5, 4, 1, 1]
    for seed in (None, 1, 2):
        _expect_results(_run(body(many), 4, seed).results, results(many, 4), f"farm with tasks {many}")
    expect(not by_rank_0, f"farm with tasks {many}: rank 0 works on tasks itself, which is for the workers")
    yield
    for tasks in ([2], []):
        _expect_results(_run(body(tasks), 4).results, results(tasks, 4), f"farm with tasks {tasks}")
    yield
    _expect_busy(answer)
    if (values := _on_ranks(body(many))) is not None:
        _expect_results(values, results(many, RANKS), f"farm with tasks {many}")
    yield


def _expect_busy(answer: Callable[..., Any]) -> None:
    """Check that other workers do all other tasks while one worker is at the first task.

    The first task ends after all others, or after 600 probes (50 per task), which let the other ranks run.
    """
    tasks, others, missing = list(range(12)), set(range(1, 12)), []

    def body(comm: Any) -> Any:
        others_done = comm.Dup()

        def work(task: int) -> int:
            done.add(task)
            if task == 0:
                for _ in range(50 * len(tasks)):
                    if others <= done:
                        break
                    others_done.Iprobe()  # the others go on meanwhile
                missing.append(len(others - done))
            return task * task

        return answer(comm, list(tasks) if comm.rank == 0 else None, work)

    done: set[int] = set()
    results = [[task * task for task in tasks], None, None, None]
    _expect_results(_run(body, 4).results, results, f"farm with tasks {tasks}")
    behind = sum(missing)
    words = f"while a worker is at the one long task, {behind} of the {len(others)} others wait"
    expect(not behind, f"{words} although two workers are free")
