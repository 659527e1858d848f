"""Programs that work only because the library buffers: noticed when nobody can go on, then helped over it.

Every standard send waits for its receive here. When all ranks are stuck and some of them in such sends, a
library with room would go on; so do we, and once such a message has been received after all, the program is
reported to depend on the buffer.
"""

from __future__ import annotations

from typing import Any

from spmdsim.simulate.messages import STANDARD, Message, finish
from spmdsim.simulate.places import place_of, ranks_text, site_key
from spmdsim.simulate.problems import WARNING, Problem
from spmdsim.simulate.scheduler import Scheduler
from spmdsim.simulate.waiting import WaitGraph, arrows, open_operations


class Relief:
    """Sends that one stall let go, and the cycle they were on."""

    def __init__(self, cycle: tuple[int, ...], messages: list[Message]) -> None:
        self.cycle = cycle
        self.messages = messages

    def confirm(self, scheduler: Scheduler, message: Message) -> None:
        """A message let go was received: report it, and let its call buffer from now on."""
        scheduler.buffered_sites.add(site_key(message.site))
        key = ("buffer", message.site)
        if key in scheduler.suspects:
            return
        scheduler.suspects[key] = True
        alike = [other for other in self.messages if other.site == message.site]
        ranks = sorted({other.task.rank for other in alike})
        place = place_of(message.task.rank, message.name, message.site)
        dest = message.comm.ranks[message.dest]
        if len(ranks) > 1 and self.cycle:
            who = f"{ranks_text(ranks)} wait for each other ({arrows(self.cycle)})"
        elif self.cycle:
            who = f"rank {place.rank} waits for rank {dest} in the cycle {arrows(self.cycle)}"
        else:
            who = f"rank {place.rank} waits for rank {dest}, which receives later"
        scheduler.problems.append(
            Problem(
                "needs_buffering",
                WARNING,
                f"{place} only works because the library buffers the message: without a buffer {who}",
                tuple(ranks),
                (place,),
                self.cycle,
            )
        )


def relieve(scheduler: Scheduler, graph: WaitGraph) -> bool:
    """Let the standard sends of a stall return, those on a cycle first.

    Returns:
        Whether a rank can go on now.
    """
    if scheduler.strict:
        return False
    sends = [
        operation
        for task in graph.blocked
        for operation in open_operations(task.waiting)
        if isinstance(operation, Message) and operation.mode is STANDARD
    ]
    if not sends:
        return False
    on_cycle = graph.components()
    chosen: list[Any] = []
    for message in sends:
        component = on_cycle.get(message.task.rank)
        if component is not None and on_cycle.get(message.comm.ranks[message.dest]) == component:
            chosen.append(message)
    cycle = graph.cycle_from(chosen[0].task.rank) if chosen else ()
    chosen = chosen or sends
    relief = Relief(cycle, chosen)
    for message in chosen:
        message.keep()
        message.relieved = relief
        finish(scheduler, message)
    return True
