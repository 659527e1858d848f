"""What a rank has sent since it last waited for anybody: hundreds of messages to one rank are a finding.

Most programs send once or to one rank and then wait, so the rank's present receiver has its counts in the task; only
a rank that sends to several in a row has a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmdsim.simulation.findings import faults

if TYPE_CHECKING:
    from spmdsim.simulation.engine.mailboxes import Mailbox, Message
    from spmdsim.simulation.engine.scheduler import Task

FLOOD = 500  # messages to one rank, sent without ever waiting, that no program should rely on


def count_ahead(task: Task, box: Mailbox, nbytes: int, message: Message | None = None) -> None:
    """One more message to a rank.

    Args:
        task: the sender.
        box: where it goes.
        nbytes: its size.
        message: the message, needed when it is the one too many.
    """
    if task.to is not box:
        if task.to is not None:
            task.ahead[task.to] = (task.count, task.nbytes)
        task.to = box
        task.count, task.nbytes = task.ahead.get(box, (0, 0))
    task.count += 1
    task.nbytes += nbytes
    if task.count == FLOOD and message is not None:
        task.flood = message


def settle(task: Task) -> None:
    """A rank has waited for somebody: what it sent before can no longer pile up without bound."""
    if task.flood is not None:
        note_flood(task)
    task.to, task.count = None, 0
    if task.ahead:
        task.ahead.clear()


def note_flood(task: Task) -> None:
    """Report that a rank has sent one rank too much, if it has."""
    message = task.flood
    if message is not None:
        task.flood = None
        box = message.comm.boxes[message.dest]
        count, nbytes = (task.count, task.nbytes) if task.to is box else task.ahead[box]
        faults.note_flood(message, count, nbytes)
