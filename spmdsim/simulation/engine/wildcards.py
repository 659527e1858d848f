"""Match receives and probes from any source in the order of modelled time.

A wildcard takes the message that leaves its sender first. Other ranks may still send an earlier one. So the simulator
decides when no rank can continue without a decision. A message that is sent later is then an effect of a decision: it
leaves its sender at least one latency after the message of that decision. So the earliest message is certain, and so
is each message within one latency of it. In a simulation with a seed, wildcards match at random and at once.
"""

from __future__ import annotations

from spmdsim.simulation.data.constants import ANY_SOURCE
from spmdsim.simulation.engine.mailboxes import Mailbox, Message, Probing, Receive, finish
from spmdsim.simulation.engine.scheduler import Scheduler
from spmdsim.simulation.engine.transfer import match


def decide_wildcards(scheduler: Scheduler) -> None:
    """Match the wildcards in ``scheduler.undecided`` whose messages are certainly the earliest ones.

    Each mailbox gets at most one match. Mailboxes without a candidate are removed from ``scheduler.undecided``.

    Args:
        scheduler: the simulation, in which no rank can continue.
    """
    decisions = []
    for box in list(scheduler.undecided):
        decision = _find_earliest(box)
        if decision is None:
            del scheduler.undecided[box]
        else:
            decisions.append((box, *decision))
    first = min((message.end for _, _, message in decisions), default=0.0)
    certain_until = first + scheduler.least_latency
    for box, wildcard, message in decisions:
        if message.end <= certain_until:
            match_wildcard(scheduler, box, wildcard, message)


def _find_earliest(box: Mailbox) -> tuple[Receive | Probing, Message] | None:
    """Return the wildcard of a mailbox that matches first, and its message; None if no message fits.

    The message that leaves its sender first counts; of equal times, that of the lowest rank. If several wildcards
    accept it, the one that was posted first gets it, and receives come before probes.

    Args:
        box: the mailbox.
    """
    best: tuple[Receive | Probing, Message] | None = None
    for wildcard in (*box.wild, box.blocked, *box.probes):
        if wildcard is None or wildcard.source != ANY_SOURCE:
            continue
        message = box.find(ANY_SOURCE, wildcard.tag)
        if message is not None and (best is None or message.order() < best[1].order()):
            best = wildcard, message
    return best


def match_wildcard(scheduler: Scheduler, box: Mailbox, wildcard: Receive | Probing, message: Message) -> None:
    """Give a message to a wildcard receive, or show it to a wildcard probe.

    Afterwards posted receives that waited for this decision are matched.

    Args:
        scheduler: the simulation.
        box: the mailbox that has both.
        wildcard: the receive or probe.
        message: the message.
    """
    if isinstance(wildcard, Probing):
        box.probes.remove(wildcard)
        wildcard.message = message
        finish(scheduler, wildcard)
        return
    box.remove(message)
    box.remove_receive(wildcard)
    match(scheduler, message, wildcard)
    match_posted(scheduler, box)


def match_posted(scheduler: Scheduler, box: Mailbox) -> None:
    """Match the posted receives from one source that no wildcard holds back any more.

    Args:
        scheduler: the simulation.
        box: the mailbox, from which a wildcard receive was removed.
    """
    for receive in box.posted_receives():
        if receive.source == ANY_SOURCE:
            continue
        message = box.find(receive.source, receive.tag)
        if message is not None and not box.is_held_back(message, receive.number):
            box.remove(message)
            box.remove_receive(receive)
            match(scheduler, message, receive)
