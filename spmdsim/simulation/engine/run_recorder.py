"""Record what ranks do in modelled time, so that the run can be replayed on another machine without the program.

A record has, for each rank, its computation, messages, collectives and completions in the order of its calls. It has
sizes instead of data.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from spmdsim.errors import InputError
from spmdsim.simulation.data.message_buffers import OBJECT

#: Version of the format, which the first line of a file has.
VERSION = 1


class RunRecorder:
    """The record of a run.

    Args:
        size: number of ranks.
    """

    def __init__(self, size: int) -> None:
        self._events: list[list[dict[str, Any]]] = [[] for _ in range(size)]
        self._started = [0] * size  # number of operations of each rank
        self._sent: Counter[tuple[int, int]] = Counter()  # messages by (sender, receiver)
        self._groups: dict[Any, int] = {}  # numbers of the communicators that had a collective

    def add_computation(self, task: Any, seconds: float) -> None:
        """Add modelled seconds in which a rank computes or sleeps."""
        self._events[task.rank].append({"do": "compute", "seconds": seconds})

    def _start(self, operation: Any, facts: dict[str, Any]) -> None:
        """Add the start of an operation, and number it on its rank."""
        rank = operation.task.rank
        operation.event = facts | {"op": self._started[rank]}
        self._started[rank] += 1
        self._events[rank].append(operation.event)

    def add_send(self, message: Any, target: int) -> None:
        """Add the start of a send.

        Args:
            message: the message.
            target: the receiver as a rank of the program.
        """
        number = self._sent[message.task.rank, target]
        self._sent[message.task.rank, target] += 1
        facts = {"do": "send", "to": target, "number": number}
        self._start(message, facts | {"bytes": message.payload.nbytes, "mode": message.mode, "pending": True})

    def add_receive(self, receive: Any) -> None:
        """Add the start of a receive; its sender is added when it matches."""
        self._start(receive, {"do": "receive"})

    def add_match(self, message: Any, receive: Any) -> None:
        """Add the message that a receive takes."""
        message.event.pop("pending", None)
        receive.event |= {"from": message.task.rank, "number": message.event["number"]}

    def add_join(self, call: Any) -> None:
        """Add the call of a collective by a rank."""
        ranks = call.comm.ranks
        group = self._groups.setdefault(call.comm, len(self._groups))
        block = call.send[0] if call.send else None
        facts = {"do": "join", "group": group, "ranks": list(ranks), "collective": call.rule.priced_as}
        facts |= {"flow": call.rule.flow, "root": call.root, "bytes": [entry.nbytes for entry in call.send]}
        facts["itemsize"] = 0 if block is None or block.dtype is OBJECT else int(block.dtype.itemsize)
        facts["reduces"] = "no" if call.op is None else "ordered" if not call.op.Is_commutative() else "yes"
        facts["sources"] = [list(pair) for pair in call.value] if call.rule.priced_as == "neighbours" else []
        self._start(call, facts)

    def add_arrival(self, receives: Iterable[Any]) -> None:
        """Add receives that a rank completes together."""
        events = [(receive.task.rank, receive.event["op"]) for receive in receives]
        if len(events) > 1:
            self._events[events[0][0]].append({"do": "arrive", "ops": [op for _, op in events]})

    def add_completion(self, operation: Any) -> None:
        """Add the completion of an operation; a send that is not matched counts as buffered."""
        event = operation.event
        if event is not None and (event["do"] != "receive" or "from" in event):
            self._events[operation.task.rank].append({"do": "complete", "op": event["op"]})
            if "pending" in event:
                event["mode"] = "buffered"

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the record as JSON values: the header, then the events of each rank in order.

        Receives that no message matched are left out.
        """
        yield {"spmdsim_record": VERSION, "ranks": len(self._events)}
        for rank, events in enumerate(self._events):
            for event in events:
                if event["do"] != "receive" or "from" in event:
                    yield {"rank": rank} | {key: value for key, value in event.items() if key != "pending"}


def write_record(recorder: RunRecorder, path: str, missing: str) -> None:
    """Write a record as a file of JSON lines; replace an existing one.

    Args:
        recorder: the record.
        path: the file.
        missing: what the program used whose times are not recorded; an empty text for nothing.

    Raises:
        InputError: If ``missing`` is not empty, or the file cannot be written.
    """
    if missing:
        raise InputError(f"simulate: a run to record must not use {missing}, got some; leave record out")
    try:
        with open(path, "w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(line) + "\n" for line in recorder.lines())
    except OSError as error:
        raise InputError(f"cannot write the record {path}: {error.strerror}") from None
