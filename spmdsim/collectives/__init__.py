"""How ranks exchange data: collective algorithms, each declared once as one rank's rounds.

Declared as a generator of ``(rank, size)``, an algorithm is verified, counted, executed, drawn and exported
from that one declaration. Nothing here knows MPI or a world.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from spmdsim.collectives.execution import run_lock_step
    from spmdsim.collectives.facts import Counts, Facts, count, facts_of, lower_bound
    from spmdsim.collectives.history import unroll
    from spmdsim.collectives.reduction_order import emulate
    from spmdsim.collectives.selection_tables import choose
    from spmdsim.collectives.verification import ScheduleVerdict, reduction_trees, verify

_LATER = {
    "Counts": "facts",
    "Facts": "facts",
    "ScheduleVerdict": "verification",
    "choose": "selection_tables",
    "count": "facts",
    "emulate": "reduction_order",
    "facts_of": "facts",
    "lower_bound": "facts",
    "reduction_trees": "verification",
    "run_lock_step": "execution",
    "unroll": "history",
    "verify": "verification",
}
"""Names imported when they are first used, so that declaring algorithms stays light."""


_FORMER = {"Move": "Instruction", "Verdict": "ScheduleVerdict"}
"""Names of the release before, which still work in this one."""


def __getattr__(name: str) -> Any:
    if name in _FORMER:
        return getattr(import_module(__name__), _FORMER[name])
    if name in _LATER:
        return getattr(import_module(f"spmdsim.collectives.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
