"""How ranks exchange data: collective algorithms, each declared once as one rank's rounds.

Declared as a generator of ``(rank, size)``, an algorithm is verified, counted, executed, drawn and exported
from that one declaration. Nothing here knows MPI or a world.
"""

from __future__ import annotations

# Before the function of the same name, which would else be replaced by the package when it is first imported.
import spmdsim.collectives.algorithms  # noqa: F401
from spmdsim.collectives.algorithm import (
    Algorithm,
    Formula,
    algorithm,
    algorithms,
    declare,
    from_function,
)
from spmdsim.collectives.moves import Chunks, Move, Round, combine, copy, recv, recv_reduce, send
from spmdsim.collectives.promises import COLLECTIVES, Collective, collective
from spmdsim.collectives.schedule import Schedule, make_schedule, schedule_of

__all__ = [
    "COLLECTIVES",
    "Algorithm",
    "Chunks",
    "Collective",
    "Formula",
    "Move",
    "Round",
    "Schedule",
    "algorithm",
    "algorithms",
    "collective",
    "combine",
    "copy",
    "declare",
    "from_function",
    "make_schedule",
    "recv",
    "recv_reduce",
    "schedule_of",
    "send",
]
