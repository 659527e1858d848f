"""The timeline of a simulated run: a slice per call, an arrow per message, as Chrome/Perfetto JSON."""

from __future__ import annotations

from types import FrameType
from typing import Any

from spmdsim.errors import many
from spmdsim.simulation.engine.mailboxes import Message, Receive
from spmdsim.simulation.findings.problems import user_call
from spmdsim.trace.source_lines import in_words

_MICRO = 1e6


class Timeline:
    """Collects what happens when; times are modelled seconds."""

    def __init__(self, size: int) -> None:
        self._events: list[dict[str, Any]] = []
        for rank in range(size):
            self._meta("process_name", rank, name=f"rank {rank}")
            self._meta("thread_name", rank, name="calls")
            self._meta("process_sort_index", rank, sort_index=rank)
        self._arrows = 0

    def _meta(self, what: str, rank: int, **said: object) -> None:
        self._events.append({"ph": "M", "name": what, "pid": rank, "tid": 0, "args": said})

    def call(self, task: Any, name: str, begin: float, frame: FrameType, **facts: Any) -> None:
        """One call of a rank, from ``begin`` to the rank's clock."""
        _, user = user_call(frame)
        if user is not None:
            facts["line"] = in_words(user.f_code.co_filename, user.f_lineno, folder=True)
        self._slice(name, task.rank, begin, task.clock, facts)

    def blocked(self, task: Any, name: str, where: str, ranks: str, last: float) -> None:
        """The call in which a rank is when nobody can go on: it waits until beyond the last rank's clock."""
        self._slice(name, task.rank, task.clock, 1.25 * last or 1e-6, {"line": where, "for": ranks}, "wait")

    def _slice(
        self, name: str, rank: int, begin: float, end: float, facts: dict[str, Any], category: str = "mpi"
    ) -> None:
        times = {"ts": begin * _MICRO, "dur": (end - begin) * _MICRO}
        event = {"ph": "X", "cat": category, "name": name, "pid": rank, "tid": 0}
        self._events.append(event | times | {"args": facts})

    def arrow(self, message: Message, receive: Receive) -> None:
        """A message from its sender to its receiver."""
        name = f"tag {message.tag}, {many(message.payload.nbytes, 'byte')}"
        self._arrow("message", name, message, message.start, receive)

    def meeting(self, shared: Any, calls: list[Any]) -> None:
        """A collective: an arrow from the last rank that came to every other one."""
        last = max(calls, key=lambda call: call.entered)
        for call in calls:
            if call is not last and calls[0].rule.flow == "all":
                self._arrow("collective", call.name, last, last.entered, call)

    def _arrow(self, category: str, name: str, source: Any, begin: float, target: Any) -> None:
        """From an operation of one rank at a time to the end of another's."""
        self._arrows += 1
        common = {"cat": category, "name": name, "id": self._arrows, "tid": 0}
        start = {"ph": "s", "pid": source.task.rank, "ts": begin * _MICRO}
        end = {"ph": "f", "bp": "e", "pid": target.task.rank, "ts": target.end * _MICRO}
        self._events += [common | start, common | end]

    def to_dict(self) -> dict[str, Any]:
        """The JSON values of a trace file."""
        return {"traceEvents": self._events, "displayTimeUnit": "ns"}
