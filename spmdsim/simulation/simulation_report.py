"""Report of a simulation: findings, results, output, traffic and modelled time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spmdsim.errors import WorldError, many
from spmdsim.pictured import ShortRepr
from spmdsim.redistribution.plans.plan_table import bytes_text, seconds_text
from spmdsim.simulation.engine.waiting_times import WaitingTime
from spmdsim.simulation.findings.problems import ERROR, Problem
from spmdsim.tables import Table


@dataclass(frozen=True, repr=False)
class Report(ShortRepr):
    """The outcome of one simulated run.

    Attributes:
        size: number of ranks.
        problems: all findings in order; the first one ended the run if ``completed`` is false.
        completed: True if every rank reached its end.
        results: result of the function on each rank.
        seconds: modelled time at which each rank ended.
        messages: number of point-to-point messages that each rank sent.
        nbytes: bytes of these messages.
        collective_messages: number of messages that each rank sent in collectives; ``collective_nbytes``: their bytes.
        output: printed lines as (rank, line), in order.
        exit_code: the first nonzero exit code in the order of the ranks. If all are 0, it is 1 if there is an error,
            else 0.
        counts_computation: True if the times have computation, which was measured or which the program states.
        waits: waiting times by rank, line and cause, the longest first.
        strict: True if warnings count as errors.
        trace: the timeline as Chrome/Perfetto JSON values, or None.
        orders: number of orders of messages that were run (``explore``); 0 if none was asked for.
        all_orders: True if these are all orders.

    >>> from spmdsim import simulate
    >>> from spmdsim.simulation import Report
    >>> def program():
    ...     from mpi4py import MPI
    ...     return MPI.COMM_WORLD.allreduce(1)
    >>> simulate(program, 3).results
    (3, 3, 3)
    """

    size: int
    problems: tuple[Problem, ...]
    completed: bool
    results: tuple[Any, ...]
    seconds: tuple[float, ...]
    messages: tuple[int, ...]
    nbytes: tuple[int, ...]
    output: tuple[tuple[int, str], ...]
    exit_code: int
    strict: bool = False
    trace: dict[str, Any] | None = None
    orders: int = 0
    all_orders: bool = False
    collective_messages: tuple[int, ...] = ()
    collective_nbytes: tuple[int, ...] = ()
    counts_computation: bool = False
    waits: tuple[WaitingTime, ...] = ()

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The findings that make the program wrong: errors, and warnings too if ``strict``."""
        return tuple(p for p in self.problems if self.strict or p.severity == ERROR)

    @property
    def ok(self) -> bool:
        """True if there is no error and every rank reached its end."""
        return self.completed and not self.errors

    @property
    def total_messages(self) -> int:
        """The number of messages of all ranks, point to point and in collectives."""
        return sum(self.messages) + sum(self.collective_messages)

    @property
    def total_nbytes(self) -> int:
        """The bytes of :attr:`total_messages`."""
        return sum(self.nbytes) + sum(self.collective_nbytes)

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems]
        state = "all finished" if self.completed else "stopped"
        lines.append(
            f"{many(self.size, 'rank')}, {state}: {many(self.total_messages, 'message')}, "
            f"{bytes_text(self.total_nbytes)}, "
            f"{seconds_text(max(self.seconds, default=0.0))} modelled"
            f"{'' if self.counts_computation else ' without computation'}"
        )
        if self.orders:
            which = "all" if self.all_orders else "not all"
            lines[-1] += f"; {many(self.orders, 'order')} of messages explored, {which}"
        return "\n".join(lines)

    def waits_table(self, most: int | None = None) -> Table:
        """Return a table of the waiting times, the longest first.

        Args:
            most: largest number of rows; None for all.
        """
        rows = [
            (
                str(wait.location.rank),
                str(wait.location),
                wait.cause,
                f"{wait.count:,}",
                seconds_text(wait.seconds),
            )
            for wait in self.waits[:most]
        ]
        return Table(("rank", "waits in", "cause", "times", "waiting time"), tuple(rows), right=(3, 4))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict of JSON values, without the results and the trace.

        Keys are

        - "ranks": the number of ranks;
        - "ok", "completed", "strict": True or False, as the attributes of this class;
        - "exit_code": the exit code;
        - "problems": a dict per finding, see ``Problem.to_dict``;
        - "seconds", "messages", "bytes", "collective_messages", "collective_bytes": lists with a number per rank;
        - "total_messages", "total_bytes": the sums over ranks of both kinds of messages;
        - "counts_computation": True or False, as the attribute;
        - "waits": a dict per waiting time, see ``WaitingTime.to_dict``;
        - "output": a dict with "rank" and "line" per printed line;
        - "orders", "all_orders": as the attributes.
        """
        return {
            "ranks": self.size,
            "ok": self.ok,
            "completed": self.completed,
            "exit_code": self.exit_code,
            "strict": self.strict,
            "problems": [problem.to_dict() for problem in self.problems],
            "seconds": list(self.seconds),
            "messages": list(self.messages),
            "bytes": list(self.nbytes),
            "collective_messages": list(self.collective_messages),
            "collective_bytes": list(self.collective_nbytes),
            "total_messages": self.total_messages,
            "total_bytes": self.total_nbytes,
            "counts_computation": self.counts_computation,
            "waits": [wait.to_dict() for wait in self.waits],
            "output": [{"rank": rank, "line": line} for rank, line in self.output],
            "orders": self.orders,
            "all_orders": self.all_orders,
        }


class SimulationError(WorldError):
    """The error that ``simulate`` raises for a wrong program; ``report`` has all findings."""

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report
