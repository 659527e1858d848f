"""What a diagnosis is: one sentence, with the ranks, calls and source lines it is about, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spmdsim.errors import WorldError
from spmdsim.pictured import ShortRepr
from spmdsim.simulation.findings.code_places import ProgramPlace

if TYPE_CHECKING:
    from spmdsim.simulation.simulation_report import Report

ERROR = "error"
WARNING = "warning"


@dataclass(frozen=True, repr=False)
class Problem(ShortRepr):
    """One finding about the program.

    Attributes:
        kind: a stable word for programs, such as ``deadlock`` or ``collective_mismatch``.
        severity: ``error`` (wrong by the standard, or the program cannot end) or ``warning`` (it ends, but only by luck).
        message: one sentence naming the ranks, the calls and the lines.
        ranks: ranks of the whole program that it is about, ascending.
        places: the calls it is about.
        cycle: ranks that wait for each other in this order, for a deadlock that has a cycle.
        details: further lines for a reader who wants more, such as every blocked rank.

    >>> from spmdsim import simulate
    >>> from spmdsim.simulation import SimulationError
    >>> def program():
    ...     from mpi4py import MPI
    ...     MPI.COMM_WORLD.recv(source=0)
    >>> try:
    ...     simulate(program, 2)
    ... except SimulationError as error:
    ...     error.report.problems[0].kind
    'deadlock'
    """

    kind: str
    severity: str
    message: str
    ranks: tuple[int, ...] = ()
    places: tuple[ProgramPlace, ...] = ()
    cycle: tuple[int, ...] = ()
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.severity}: {self.kind.replace('_', ' ')}: {self.message}"

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON values."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "message": self.message,
            "ranks": list(self.ranks),
            "places": [place.to_dict() for place in self.places],
            "cycle": list(self.cycle),
            "details": list(self.details),
        }


class SimulationError(WorldError):
    """The simulated program is wrong; ``report`` has every finding and what each rank did until then."""

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report
