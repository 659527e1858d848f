"""From rounds to a program for the event simulator: each rank's operations wait for its previous round."""

from __future__ import annotations

from spmdsim.collectives import Schedule
from spmdsim.cost.events.event_program import EventProgram


def program_of(schedule: Schedule, nbytes: int, itemsize: int = 1, gamma: float = 0.0) -> EventProgram:
    """The program of a schedule.

    An operation starts after all operations of the rank's previous round; a reduction is a calculation that follows
    its receive, if reducing takes time.

    Args:
        schedule: an algorithm at a rank count.
        nbytes: message size as the collective counts it.
        itemsize: bytes that are never cut.
        gamma: time per reduced byte, in the unit of the simulator's parameters.

    >>> from spmdsim.collectives import schedule_of
    >>> len(program_of(schedule_of("all_reduce", "ring", 4), 4096))
    48
    """
    program = EventProgram(schedule.size)
    sizes = [items * itemsize for items in schedule.chunk_elements(-(-nbytes // itemsize))]
    k = len(sizes)
    for rank in range(schedule.size):
        before: tuple[int, ...] = ()
        for number, moves in enumerate(schedule.rounds(rank)):
            now: list[int] = []
            for move in moves:
                chunks = move.chunks if move.peer >= 0 or move.kind == "combine" else ()
                amount = sum(sizes[chunk % k] for chunk in chunks)
                if move.kind == "send":
                    now.append(program.send(rank, move.peer, amount, number, before))
                elif move.kind in ("recv", "reduce"):
                    now.append(program.recv(rank, move.peer, amount, number, before))
                if move.kind in ("reduce", "combine") and gamma * amount > 0:
                    needs = now[-1:] if move.kind == "reduce" else (*now, *before)
                    now.append(program.calc(rank, gamma * amount, needs))
            before = tuple(now) or before
    return program
