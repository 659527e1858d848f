"""Time of a schedule when it is run by this package: its rounds, and the copies its buffers need besides."""

from __future__ import annotations

from functools import lru_cache

from spmdsim.collectives import Schedule
from spmdsim.collectives.rank_program import INPUT, program_for
from spmdsim.cost.machine import Machine
from spmdsim.cost.pricing import price

#: Ranks whose copies are looked at; more do not copy differently.
_LOOKED_AT = 32


def emulated_seconds(schedule: Schedule, machine: Machine, count: int, itemsize: int) -> float:
    """Seconds of one emulated collective on ``count`` elements, from separate input to output arrays.

    Args:
        schedule: the algorithm.
        machine: best one calibrated on the machine that runs it.
        count: elements as the collective counts them.
        itemsize: bytes per element.

    >>> from spmdsim.collectives import schedule_of
    >>> machine = Machine("m", 1e-6, 1e-9, beta_memory=1e-9)
    >>> f"{emulated_seconds(schedule_of('all_gather', 'ring', 2), machine, 1000, 1):.2e}"
    '2.00e-06'
    """
    seconds = price(schedule, machine, count * itemsize, itemsize=itemsize, rounds=True).seconds
    seconds += machine.call_seconds + max(
        sum(machine.copy_seconds(items * itemsize) for items in _copied(schedule, rank, count))
        for rank in range(min(schedule.size, _LOOKED_AT))
    )
    if machine.still_pieces:
        for items in _sent_as_given(schedule, count):
            nbytes = items * itemsize
            seconds -= machine.message_seconds(nbytes) - machine.still_seconds(nbytes)
    return seconds


@lru_cache(maxsize=1024)
def _sent_as_given(schedule: Schedule, count: int) -> tuple[int, ...]:
    """Elements of the messages in rounds in which all ranks send input only: bytes nobody has written in between."""
    resting: dict[int, int] = {}
    written: set[int] = set()
    for rank in range(min(schedule.size, _LOOKED_AT)):
        numbers = (number for number, moves in enumerate(schedule.rounds(rank)) if moves)
        for number, step in zip(numbers, program_for(schedule, rank, count).steps):
            places = [place for _, place in step.sends]
            if len(places) > 1 or any(place.array != INPUT for place in places):
                written.add(number)
            for place in places:
                resting[number] = max(resting.get(number, 0), place.stop - place.start)
    return tuple(items for number, items in resting.items() if number not in written)


@lru_cache(maxsize=1024)
def _copied(schedule: Schedule, rank: int, count: int) -> tuple[int, ...]:
    """Elements of each local copy of a rank: packing, unpacking, and input that goes to the output."""
    program = program_for(schedule, rank, count)
    actions = [a for step in program.steps for part in (step.packs, step.actions) for a in part]
    return tuple(
        action.target.stop - action.target.start
        for action in (*actions, *program.finish)
        if action.second is None
    )
