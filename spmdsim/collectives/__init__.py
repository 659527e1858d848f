"""How ranks exchange data: collective algorithms, each declared once as one rank's rounds.

Declared as a generator of ``(rank, size)``, an algorithm is verified, counted, executed, drawn and exported
from that one declaration. Nothing here knows MPI or a world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# Before the function of the same name, which would else be replaced by the package when it is first imported.
import spmdsim.collectives.algorithms  # noqa: F401
from spmdsim.collectives.algorithm import Algorithm, Formula, algorithm, algorithms, declare, from_function
from spmdsim.collectives.instructions import (
    Chunks,
    Instruction,
    Round,
    combine,
    copy,
    recv,
    recv_reduce,
    send,
)
from spmdsim.collectives.promises import COLLECTIVES, Collective, collective
from spmdsim.collectives.schedule import Schedule, make_schedule, schedule_of
from spmdsim.later import later

if TYPE_CHECKING:
    from spmdsim.collectives.execution import run_lock_step
    from spmdsim.collectives.facts import Counts, Facts, count, facts_of, lower_bound
    from spmdsim.collectives.history import unroll
    from spmdsim.collectives.reduction_order import emulate
    from spmdsim.collectives.selection_tables import choose
    from spmdsim.collectives.verification import ScheduleVerdict, reduction_trees, verify

_LATER = {
    "execution": "run_lock_step",
    "facts": "Counts Facts count facts_of lower_bound",
    "history": "unroll",
    "reduction_order": "emulate",
    "selection_tables": "choose",
    "verification": "ScheduleVerdict reduction_trees verify",
}
"""Modules imported when they are first used, so that declaring algorithms stays light."""

__getattr__ = later(__name__, _LATER, former={"Move": "Instruction", "Verdict": "ScheduleVerdict"})

__all__ = [
    "COLLECTIVES",
    "Algorithm",
    "Chunks",
    "Collective",
    "Counts",
    "Facts",
    "Formula",
    "Instruction",
    "Round",
    "Schedule",
    "ScheduleVerdict",
    "algorithm",
    "algorithms",
    "choose",
    "collective",
    "combine",
    "copy",
    "count",
    "declare",
    "emulate",
    "facts_of",
    "from_function",
    "lower_bound",
    "make_schedule",
    "recv",
    "recv_reduce",
    "reduction_trees",
    "run_lock_step",
    "schedule_of",
    "send",
    "unroll",
    "verify",
]
