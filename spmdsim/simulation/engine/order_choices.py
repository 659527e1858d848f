"""Match wildcards in an order that is prescribed, to run a program again with another order of messages.

A run makes a list of choices: each gives one message to one wildcard. Two choices of different receivers commute, so
only one of their two orders is tried ("sleep sets", P. Godefroid, Partial-Order Methods, LNCS 1032, 1996).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from spmdsim.simulation.data.constants import ANY_SOURCE
from spmdsim.simulation.engine.scheduler import Scheduler
from spmdsim.simulation.engine.wildcards import match_wildcard
from spmdsim.simulation.findings.problems import ProgramPlace, describe_call_place, place_in_stack


@dataclass(frozen=True)
class Choice:
    """The message that a wildcard receive or probe takes.

    Attributes:
        rank: rank of the receiver in the program; ``source``: rank of the sender.
        communicator: name of the communicator.
        number: number of the wildcard in its mailbox; 0 for a probe.
        location: the line of the wildcard.
    """

    rank: int
    source: int
    communicator: str
    number: int
    location: ProgramPlace = field(compare=False)


@dataclass
class ChoicePoint:
    """A state in which no rank can continue before a wildcard gets a message.

    Attributes:
        chosen: the choice of the last run.
        untried: choices that no run has tried.
        tried: choices of earlier runs.
        asleep: choices whose order with the choices before does not matter.
    """

    chosen: Choice
    untried: list[Choice]
    tried: set[Choice]
    asleep: set[Choice]


class EverySite(set[Any]):
    """A set that contains everything: the call sites whose standard sends are buffered."""

    def __contains__(self, site: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return True


class OrderChoices:
    """The choices of one run, which repeats the choices of a path and extends it.

    Standard sends are buffered, so that as many messages as possible can match.

    Attributes:
        is_repeated: True if an earlier run was equal but for the order of choices that commute.

    Args:
        path: the choices to repeat; later ones are appended.
    """

    def __init__(self, path: list[ChoicePoint]) -> None:
        self.path = path
        self.depth = 0
        self.is_repeated = False

    def attach(self, scheduler: Scheduler) -> None:
        """Let a simulation use these choices."""
        scheduler.buffered_sites = EverySite()
        scheduler.decide = lambda: self.decide(scheduler)

    def decide(self, scheduler: Scheduler) -> None:
        """Match one wildcard as the path says; after its end take the message that left its sender first.

        Args:
            scheduler: the simulation, in which no rank can continue.
        """
        options = dict(_list_options(scheduler))
        if not options:
            scheduler.undecided.clear()
            return
        if self.depth == len(self.path):
            self.path.append(self._open_point(options))
        chosen = self.path[self.depth].chosen
        self.depth += 1
        match_wildcard(scheduler, *options.get(chosen, next(iter(options.values()))))

    def _open_point(self, options: dict[Choice, Any]) -> ChoicePoint:
        """Return the state behind the path: the choice to take first, and the choices to try later.

        Args:
            options: the mailbox, wildcard and message of each possible choice.
        """
        ordered = sorted(options, key=lambda choice: (options[choice][2].order(), choice.rank, choice.number))
        asleep: set[Choice] = set()
        if self.path:
            last = self.path[-1]
            earlier = last.asleep | last.tried
            asleep = {choice for choice in earlier if choice.rank != last.chosen.rank}
        awake = [choice for choice in ordered if choice not in asleep]
        self.is_repeated = self.is_repeated or not awake
        chosen, *untried = awake or ordered[:1]
        return ChoicePoint(chosen, untried, set(), asleep)


def find_next_path(path: list[ChoicePoint]) -> bool:
    """Shorten a path in place to its last state with an untried choice, and take this choice.

    Returns:
        False if all choices have been tried.
    """
    while path:
        point = path[-1]
        if point.untried:
            point.tried.add(point.chosen)
            point.chosen = point.untried.pop(0)
            return True
        path.pop()
    return False


def _list_options(scheduler: Scheduler) -> Iterator[tuple[Choice, Any]]:
    """Yield each possible choice with the mailbox, the wildcard and the message.

    Args:
        scheduler: the simulation.
    """
    for box in list(scheduler.undecided):
        for wildcard in (*box.wild, box.blocked, *box.probes):
            if wildcard is None or wildcard.source != ANY_SOURCE:
                continue
            task = wildcard.task
            if hasattr(wildcard, "site"):
                location = describe_call_place(task.rank, wildcard.name, wildcard.site)
            else:
                location = place_in_stack(task.rank, task.greenlet.gr_frame)
            for source in sorted(box.arrived):
                message = box.find(source, wildcard.tag)
                if message is not None and not _is_behind(box, message, wildcard):
                    number = getattr(wildcard, "number", 0)
                    choice = Choice(task.rank, message.task.rank, message.comm.name, number, location)
                    yield choice, (box, wildcard, message)


def _is_behind(box: Any, message: Any, wildcard: Any) -> bool:
    """Return True if a receive that was posted earlier accepts a message, which it then gets first.

    Args:
        box: the mailbox.
        message: the message.
        wildcard: a receive or probe that accepts it, too.
    """
    number = getattr(wildcard, "number", 0) or float("inf")
    return any(
        receive.number < number and receive.accepts(message.source, message.tag)
        for receive in box.posted_receives()
        if receive is not wildcard
    )
