"""Model the time of messages and collectives on a machine; record a run as a timeline in Chrome/Perfetto JSON.

A rank has one port out and one port in, which work at the same time. Messages leave one after the other, in the order
in which the rank sends them. They arrive one after the other, in the order in which the rank completes its receives.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import FrameType
from typing import Any

import numpy as np

from spmdsim.cost.closed_forms import Link
from spmdsim.cost.machine import Machine
from spmdsim.cost.port_load import group_load
from spmdsim.errors import UsageTypeError, many
from spmdsim.simulation.engine.mailboxes import Message, Receive
from spmdsim.simulation.findings.problems import user_call
from spmdsim.worlds.trace.source_lines import format_place

#: A machine, its name or file, its numbers (alpha, beta[, gamma]), or None for a plain network.
MachineLike = Machine | str | os.PathLike[str] | Sequence[float] | None

_PLAIN = Machine("a plain network", alpha=1e-6, beta=1e-10, gamma=1e-10)


def as_machine(machine: MachineLike) -> Machine:
    """Convert a name, a file, numbers or None to a :class:`spmdsim.cost.Machine`.

    - A name or a path: the machine of this name or in this file.
    - A tuple or list (alpha, beta) or (alpha, beta, gamma): seconds per message, per sent byte and per reduced byte;
      gamma is 1e-10 if it is omitted.
    - None: a plain network with alpha 1e-6 s, beta and gamma 1e-10 s per byte.
    - A Machine: itself.

    Raises:
        InputError: If a number is below zero, or no machine has this name.
        UsageTypeError: If ``machine`` has another type, or another number of numbers.

    >>> as_machine((2e-6, 1e-9)).alpha
    2e-06
    """
    if machine is None:
        return _PLAIN
    if isinstance(machine, Machine):
        return machine
    if isinstance(machine, str | os.PathLike):
        from spmdsim.cost import load_machine

        return load_machine(os.fspath(machine))
    if isinstance(machine, tuple | list) and 2 <= len(machine) <= 3:
        alpha, beta, gamma = (*machine, _PLAIN.gamma)[:3]
        return Machine("given numbers", float(alpha), float(beta), float(gamma))
    raise UsageTypeError(
        f"machine must be a name, a file, (alpha, beta, gamma) or a Machine, got {machine!r}"
    )


def are_on_one_node(machine: Machine, ranks: Sequence[int]) -> bool:
    """Return True if all ranks are on one node of the machine; False if the machine has no nodes."""
    if machine.intra is None:
        return False
    return not group_load(machine.nodes_of(np.asarray(ranks, np.int64))[None, :]).crosses_nodes


def message_link(machine: Machine, ranks: Sequence[int], nbytes: int) -> Link:
    """Return the link of a message of ``nbytes`` between ranks of the program.

    A link has ``alpha``, the seconds per message, and ``beta``, the seconds per byte. Ranks on one node use the
    machine's link inside a node, if it has one. Other messages use its link for their size.

    >>> message_link(_PLAIN, (0, 1), 8)
    Link(alpha=1e-06, beta=1e-10)
    """
    inside = machine.intra if are_on_one_node(machine, ranks) else None
    return inside or machine.piece(nbytes)


#: Microseconds per second: trace files count microseconds.
_MICRO = 1e6


class Timeline:
    """A record of the calls, messages and collectives of all ranks; times are modelled seconds."""

    def __init__(self, size: int) -> None:
        self._events: list[dict[str, Any]] = []
        for rank in range(size):
            self.add_rank(rank)
        self._arrows = 0

    def add_rank(self, rank: int) -> None:
        """Add the row of a rank."""
        self._meta("process_name", rank, name=f"rank {rank}")
        self._meta("thread_name", rank, name="calls")
        self._meta("process_sort_index", rank, sort_index=rank)

    def _meta(self, what: str, rank: int, **values: object) -> None:
        self._events.append({"ph": "M", "name": what, "pid": rank, "tid": 0, "args": values})

    def record_call(self, task: Any, name: str, begin: float, frame: FrameType, **facts: Any) -> None:
        """Record one call of a rank, from ``begin`` to the rank's clock, with its line.

        Args:
            task: the rank.
            name: name of the call, such as "Send".
            begin: modelled seconds.
            frame: a frame of the call; the line is that of the user's code. Without one no line is recorded.
            facts: further values to show with the call, such as ``nbytes``.
        """
        _, user = user_call(frame)
        if user is not None:
            facts["line"] = format_place(user.f_code.co_filename, user.f_lineno, folder=True)
        self._slice(name, task.rank, begin, task.clock, facts)

    def record_blocked(self, task: Any, name: str, where: str, ranks: str, last: float) -> None:
        """Record the call in which a rank is blocked in a deadlock.

        Args:
            task: the rank.
            name: name of the call.
            where: its file and line.
            ranks: the ranks for which it waits, as text.
            last: latest modelled clock of all ranks. The bar ends at 1.25 times this time, after all other bars.
        """
        self._slice(name, task.rank, task.clock, 1.25 * last or 1e-6, {"line": where, "for": ranks}, "wait")

    def _slice(
        self, name: str, rank: int, begin: float, end: float, facts: dict[str, Any], category: str = "mpi"
    ) -> None:
        """Record a bar on the row of a rank.

        Args:
            name: its label.
            rank: the rank.
            begin: start in modelled seconds.
            end: end in modelled seconds.
            facts: values to show with it.
            category: the bar's category, "mpi" or "wait".
        """
        times = {"ts": begin * _MICRO, "dur": (end - begin) * _MICRO}
        event = {"ph": "X", "cat": category, "name": name, "pid": rank, "tid": 0}
        self._events.append(event | times | {"args": facts})

    def record_message(self, message: Message, receive: Receive) -> None:
        """Record a message from its sender to its receiver."""
        name = f"tag {message.tag}, {many(message.payload.nbytes, 'byte')}"
        self._arrow("message", name, message, message.start, receive)

    def record_collective(self, shared: Any, calls: list[Any]) -> None:
        """Record a collective that waits for all ranks as arrows from the last rank to the others.

        Collectives in which ranks wait for the root only, or only the root waits, have no arrows.

        Args:
            shared: not used: the caller's interface has it.
            calls: the calls of all ranks, in rank order.
        """
        last_call = max(calls, key=lambda call: call.entered)
        for call in calls:
            if call is not last_call and calls[0].rule.flow == "all":
                self._arrow("collective", call.name, last_call, last_call.entered, call)

    def _arrow(self, category: str, name: str, source: Any, begin: float, target: Any) -> None:
        """Record an arrow between two ranks.

        The arrow starts on the rank of ``source`` at the modelled time ``begin``. It ends on the rank of ``target``
        at the time at which the operation ``target`` is complete.

        Args:
            category: "message" or "collective".
            name: its label.
            source: the operation at its start: a message or collective call.
            begin: modelled seconds.
            target: the operation at its end: a receive or collective call.
        """
        self._arrows += 1
        common = {"cat": category, "name": name, "id": self._arrows, "tid": 0}
        # In Chrome's format, "s" starts an arrow and "f" ends it. "bp" is "e": it ends at the bar around its end.
        start = {"ph": "s", "pid": source.task.rank, "ts": begin * _MICRO}
        end = {"ph": "f", "bp": "e", "pid": target.task.rank, "ts": target.end * _MICRO}
        self._events += [common | start, common | end]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a trace file as JSON values."""
        return {"traceEvents": self._events, "displayTimeUnit": "ns"}
