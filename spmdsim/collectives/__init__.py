"""Collective algorithms, each declared once as the rounds of one rank.

An algorithm is a generator function of ``(rank, size)``. From this declaration it is verified, counted, executed, drawn
and exported. The package imports neither MPI nor a world.
"""

from typing import TYPE_CHECKING

# Before the function of the same name, which would else be replaced by the package when it is first imported.
import spmdsim.collectives.algorithms  # noqa: F401
from spmdsim.collectives.algorithm import *
from spmdsim.collectives.algorithm import __all__ as _algorithms
from spmdsim.collectives.instructions import *
from spmdsim.collectives.instructions import __all__ as _instructions
from spmdsim.collectives.promises import *
from spmdsim.collectives.promises import __all__ as _collectives
from spmdsim.collectives.schedule import *
from spmdsim.collectives.schedule import __all__ as _schedules
from spmdsim.lazy_imports import lazy_names, list_public_names

if TYPE_CHECKING:
    from spmdsim.collectives.execution import run_lock_step as run_lock_step
    from spmdsim.collectives.facts import Counts as Counts
    from spmdsim.collectives.facts import Facts as Facts
    from spmdsim.collectives.facts import count as count
    from spmdsim.collectives.facts import facts_of as facts_of
    from spmdsim.collectives.facts import lower_bound as lower_bound
    from spmdsim.collectives.history import unroll as unroll
    from spmdsim.collectives.reduction_order import emulate as emulate
    from spmdsim.collectives.selection_tables import choose as choose
    from spmdsim.collectives.verification import ScheduleVerdict as ScheduleVerdict
    from spmdsim.collectives.verification import reduction_trees as reduction_trees
    from spmdsim.collectives.verification import verify as verify

_LAZY = {
    "execution": "run_lock_step",
    "facts": "Counts Facts count facts_of lower_bound",
    "history": "unroll",
    "reduction_order": "emulate",
    "selection_tables": "choose",
    "verification": "ScheduleVerdict reduction_trees verify",
}
"""Modules imported when they are first used, so that declaring algorithms stays light."""

__getattr__ = lazy_names(__name__, _LAZY, former={"Move": "Instruction", "Verdict": "ScheduleVerdict"})

__all__ = [*_algorithms, *_instructions, *_collectives, *_schedules, *list_public_names(_LAZY)]
