"""One rank's end of a communicator: all that a message needs of it, looked up once."""

from __future__ import annotations

import sys
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

from spmdsim.simulation.engine.mailboxes import Message, Receive
from spmdsim.simulation.findings.problems import ERROR, Problem, place_in_stack

if TYPE_CHECKING:
    from spmdsim.simulation.engine.scheduler import Scheduler, Task

try:
    import greenlet
except ImportError:  # said in one line when a simulation begins
    getcurrent: Any = None
else:
    getcurrent = greenlet.getcurrent


class Endpoint:
    """What a rank has of a communicator.

    Attributes:
        shared: what all ranks of the communicator share.
        rank: the rank in it.
        task: the rank of the whole program.
        scheduler: the simulation.
        box: its mailbox, and ``boxes`` those of all ranks.
        message: the one that it can be blocked in, used again and again by the short way.
        receive: likewise.
    """

    __slots__ = ("box", "boxes", "message", "rank", "receive", "scheduler", "shared", "size", "task")

    def __init__(self, shared: Any, rank: int, task: Task) -> None:
        self.shared, self.rank, self.task = shared, rank, task
        self.scheduler: Scheduler = shared.scheduler
        self.boxes, self.size = shared.boxes, shared.size
        self.box = shared.boxes[rank]
        self.message = self.new_message()
        self.receive = Receive(shared, task, None, None, -1, rank, 0, "", None, True, 0.0)

    def new_message(self) -> Message:
        """A message of this rank's that nothing is said of yet."""
        return Message(self.shared, self.task, None, None, self.rank, -1, 0, "", None, 0.0, 0.0)

    def running(self) -> Task:
        """The rank, which must be the one that runs, in the thread that plays all ranks."""
        task = self.task
        if task.greenlet is not getcurrent():
            self._check()
        return task

    def _check(self) -> None:
        if get_ident() != self.scheduler.thread:
            self.scheduler.refuse_thread(self.task, sys._getframe(1))
        if self.task is not self.scheduler.current:
            self._strange()

    def _strange(self) -> NoReturn:
        runs, task = self.scheduler.current, self.task
        place = place_in_stack(runs.rank, sys._getframe(1))
        text = (
            f"rank {runs.rank} uses rank {task.rank}'s handle of {self.shared.name} in {place}: it was kept in "
            "something that virtual ranks share, as a function's variables; in a real run each rank has its own"
        )
        self.scheduler.fail(Problem("shared_communicator", ERROR, text, (runs.rank, task.rank), (place,)))
