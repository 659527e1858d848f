"""Checkers of lab 9, "Messages between ranks"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from spmdsim.errors import NoAnswer, SpmdError, many
from spmdsim.labs.judging import RANKS, Mistake, expect, per_rank
from spmdsim.simulation import simulate
from spmdsim.simulation.simulation_report import Report

Body = Callable[[Any], Any]


def _simulate(body: Body, size: int, seed: int | None = None) -> Report:
    """Run a program on ``size`` virtual ranks whose sends are never buffered; return the report.

    Args:
        body: the program of a rank, a function of its communicator.
        size: the number of ranks.
        seed: selects a legal order of the ranks; None for the simulator's default order.

    Raises:
        Mistake: If the simulator reports an error, such as a deadlock; of several, the first one.
        NoAnswer: If the process of a rank gives no valid answer.
        NotImplementedError: If the student has written no function.
    """
    unanswered: list[NoAnswer] = []

    def run_rank(comm: Any) -> Any:
        try:
            return body(comm)
        except NoAnswer as error:  # raised by the rank's process, not by its function
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


def _run_on_launched(body: Body) -> list[Any] | None:
    """Run a program on real ranks, if this process is one of a launched job.

    All ranks of the job must call it. The program gets a communicator of its own, which is freed at the end.

    Args:
        body: the program of a rank, a function of its communicator. Its errors are not caught.

    Returns:
        A list with this rank's result; None outside of jobs.
    """
    from spmdsim.launcher import launched  # inside, because virtual ranks share the names at the top
    from spmdsim.worlds import world

    if not launched():
        return None
    real_world: Any = world(RANKS)
    communicator = real_world.comm.Dup()
    try:
        return [body(communicator)]
    finally:
        communicator.Free()


def _expect_results(values: Any, wanted: list[Any], call: str) -> None:
    """Raise Mistake unless every rank's result is the wanted one.

    Args:
        values: the results of all ranks in order; on real ranks a list with this rank's result only.
        wanted: the right result of each rank. An array or number is compared by its values, None by identity.
        call: the name of the student's function, for the sentence.
    """
    from spmdsim.worlds import world

    ranks = range(len(wanted)) if len(values) == len(wanted) else world(RANKS).ranks
    for rank, value in zip(ranks, values):
        is_equal = np.array_equal(value, wanted[rank]) if wanted[rank] is not None else value is None
        difference = f"gives {_value_text(value)} on rank {rank}, but it is {_value_text(wanted[rank])}"
        expect(is_equal, f"{call} on {many(len(wanted), 'rank')} {difference}")


def _value_text(value: Any) -> str:
    """Return a result as text, arrays as lists."""
    return str(value.tolist() if isinstance(value, np.ndarray) else value)


@per_rank
def ring(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``ring(comm, mine)``: the sum of all ranks' numbers by messages.

    Yield None once per point, after each of these checks:

    * the sums on 1 to 3 ranks are right;
    * the sums on 4 to 8 ranks are right;
    * no rank sends more than ``size - 1`` messages, and, with several ranks, some rank sends one. In a launched job,
      real ranks must give the right sum, too.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If a check fails.
    """
    body: Body = lambda comm: answer(comm, (comm.rank + 1) ** 2)  # noqa: E731
    reports = {}
    for sizes in ((1, 2, 3), range(4, RANKS + 1)):
        for size in sizes:
            reports[size] = _simulate(body, size)
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
    if (values := _run_on_launched(body)) is not None:
        _expect_results(values, [sum((r + 1) ** 2 for r in range(RANKS))] * RANKS, "ring")
    yield


@per_rank
def halo(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``halo(comm, u)``, which fills outer cells with the neighbours' cells.

    ``u`` is an array of five cells per rank, of which the first and last are outer cells. Outer cells without a
    neighbour keep their values. For example, two ranks with [-1, 0, 1, 2, -2] and [-1, 10, 11, 12, -2] get
    [-1, 0, 1, 2, 10] and [2, 10, 11, 12, -2]. Yield None once per point: after two ranks, after three and more, and
    after one.

    Args:
        answer: the student's function; it returns the array.

    Raises:
        Mistake: If a result is wrong.
    """

    def body(comm: Any) -> Any:
        return answer(comm, np.array([-1.0, *(10.0 * comm.rank + np.arange(3)), -2.0]))

    def filled(rank: int, size: int) -> np.ndarray:
        left = 10.0 * (rank - 1) + 2 if rank else -1.0
        right = 10.0 * (rank + 1) if rank + 1 < size else -2.0
        return np.array([left, *(10.0 * rank + np.arange(3)), right])

    return _check_each(body, ((2,), (3, 4, RANKS), (1,)), filled, "halo")


def _check_each(
    body: Body, groups: Iterable[Iterable[int]], wanted: Callable[[int, int], Any], name: str
) -> Iterator[None]:
    """Check the result of each rank on virtual ranks, then on the real ranks of a launched job.

    Yield None after each group of rank counts, once per point. The real ranks are checked after all groups, if this
    process is one of a launched job, which has ``RANKS`` ranks.
    """
    for sizes in groups:
        for size in sizes:
            _expect_results(_simulate(body, size).results, [wanted(rank, size) for rank in range(size)], name)
        yield
    if (values := _run_on_launched(body)) is not None:
        _expect_results(values, [wanted(rank, RANKS) for rank in range(RANKS)], name)


@per_rank
def swap(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``swap(comm, mine)``, which exchanges arrays between neighbours.

    The neighbours are ranks 0 and 1, 2 and 3, and so on. A last rank without partner keeps its array: three ranks with
    [1, 1, 1], [2, 2, 2] and [3, 3, 3] get [2, 2, 2], [1, 1, 1] and [3, 3, 3]. Yield None once per point: after even
    numbers of ranks, and after odd ones.

    Args:
        answer: the student's function; it returns the array that the rank then has.

    Raises:
        Mistake: If a result is wrong.
    """
    body: Body = lambda comm: answer(comm, np.full(3, comm.rank + 1))  # noqa: E731

    def swapped(rank: int, size: int) -> np.ndarray:
        partner = rank ^ 1  # 0 and 1, 2 and 3, …
        source = partner if partner < size else rank
        return np.full(3, source + 1)

    return _check_each(body, ((2, 4, RANKS), (1, 3, 5)), swapped, "swap")


@per_rank
def farm(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``farm(comm, tasks, work)``, which distributes tasks to workers.

    Rank 0 has the tasks, a list of numbers, and returns the list of ``work(task)`` in their order; it must not work
    itself. The other ranks get None and return None. Yield None once per point, after each of these checks:

    * the results of 4 ranks are right in three legal orders of the ranks;
    * the results are right for fewer tasks than workers;
    * no worker idles while another one is at a long task. In a launched job, real ranks must give the right results,
      too.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If a check fails.
    """
    tasks_of_rank_0: list[int] = []
    all_tasks = [3, 1, 2, 5, 4, 1, 1]
    body, call = _make_farm_body(answer, all_tasks, tasks_of_rank_0), f"farm with tasks {all_tasks}"
    for seed in (None, 1, 2):
        _expect_results(_simulate(body, 4, seed).results, _list_farm_results(all_tasks, 4), call)
    expect(not tasks_of_rank_0, f"{call}: rank 0 works on tasks itself, which is for the workers")
    yield
    for tasks in ([2], []):
        report = _simulate(_make_farm_body(answer, tasks, tasks_of_rank_0), 4)
        _expect_results(report.results, _list_farm_results(tasks, 4), f"farm with tasks {tasks}")
    yield
    _expect_busy(answer)
    if (values := _run_on_launched(body)) is not None:
        _expect_results(values, _list_farm_results(all_tasks, RANKS), call)
    yield


def _make_farm_body(answer: Callable[..., Any], tasks: list[int], tasks_of_rank_0: list[int]) -> Body:
    """Return the program of a rank that calls the student's farm with tasks to square.

    Tasks are integers; the work of task 3 gives 9. Ranks other than 0 get None instead of the tasks.

    Args:
        answer: the student's ``farm(comm, tasks, work)``.
        tasks: the tasks; rank 0 gets a copy of the list.
        tasks_of_rank_0: the list to which rank 0 appends each task that it works on itself.
    """

    def run_rank(comm: Any) -> Any:
        def work(task: int) -> int:
            if comm.rank == 0:
                tasks_of_rank_0.append(task)
            return task * task

        return answer(comm, list(tasks) if comm.rank == 0 else None, work)

    return run_rank


def _list_farm_results(tasks: list[int], size: int) -> list[Any]:
    """Return the right result of each rank of a farm: the squares of the tasks on rank 0, else None."""
    return [[task * task for task in tasks], *[None] * (size - 1)]


def _expect_busy(answer: Callable[..., Any]) -> None:
    """Raise Mistake if free workers wait while another worker is at a long task.

    Four ranks run the student's ``farm``: rank 0 distributes 12 tasks, the other three work. Task 0 is long: it ends when
    the tasks 1 to 11 were started. If a farm gives out new tasks only after task 0, this never happens. So task 0 ends
    after 600 probes, too (50 per task; a probe lets the other ranks run), and the number of tasks that still wait is the
    mistake. A wrong result raises Mistake, too.

    Args:
        answer: the student's ``farm(comm, tasks, work)``.
    """
    tasks, others, missing = list(range(12)), set(range(1, 12)), []

    def body(comm: Any) -> Any:
        """Run the student's farm on a rank; the first task waits for all others, up to 600 probes."""
        others_done = comm.Dup()

        def work(task: int) -> int:
            done.add(task)
            if task == 0:
                for _ in range(50 * len(tasks)):
                    if others <= done:
                        break
                    others_done.Iprobe()  # lets the other ranks run
                missing.append(len(others - done))
            return task * task

        return answer(comm, list(tasks) if comm.rank == 0 else None, work)

    done: set[int] = set()
    _expect_results(_simulate(body, 4).results, _list_farm_results(tasks, 4), f"farm with tasks {tasks}")
    waiting = sum(missing)
    words = f"while a worker is at the one long task, {waiting} of the {len(others)} others wait"
    expect(not waiting, f"{words} although two workers are free")
