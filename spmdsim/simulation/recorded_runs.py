"""Replay the record of a run on a machine: its computation, messages and collectives, without the program.

The simulator's own engine runs the events of a record, so a replay on the machine of the record takes equal times.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from spmdsim.cost.node_map import Nodes
from spmdsim.errors import InputError
from spmdsim.reading import one_line, parse_json, read_text
from spmdsim.simulation.data.constants import PROC_NULL, TAG_UB_VALUE
from spmdsim.simulation.data.message_buffers import OBJECT, OBJECT_TARGET, ObjectPayload
from spmdsim.simulation.data.reduce_operators import Op
from spmdsim.simulation.engine.collective_calls import RULES, CollectiveCall, CollectiveRule, join_meeting
from spmdsim.simulation.engine.computation import Speed
from spmdsim.simulation.engine.mailboxes import (
    BUFFERED,
    READY,
    STANDARD,
    SYNCHRONOUS,
    Endpoint,
    Message,
    Receive,
    wait_for,
)
from spmdsim.simulation.engine.run_recorder import VERSION
from spmdsim.simulation.engine.stated_work import compute
from spmdsim.simulation.engine.timing import MachineLike
from spmdsim.simulation.engine.transfer import (
    complete_receive,
    complete_send,
    set_receive_times,
    start_receive,
    start_send,
)
from spmdsim.simulation.interface.simulated_comm import CommunicatorState
from spmdsim.simulation.runner import MOST_RANKS, simulate
from spmdsim.simulation.simulation_report import Report

#: Operations of recorded reductions, by the key "reduces".
_OPERATORS = {
    "no": None,
    "yes": Op.make("recorded operation", None, None),
    "ordered": Op.make("recorded operation", None, None, commutes=False),
}
_MODES = {mode: mode for mode in (STANDARD, SYNCHRONOUS, BUFFERED, READY)}  # the engine compares by identity
#: Names of collectives whose times are known.
_COLLECTIVES = frozenset(rule.priced_as for rule in RULES.values())
_MOST = 2**62


class SizedPayload(ObjectPayload):
    """The payload of a replayed message or collective: a number of bytes, without data.

    Args:
        nbytes: the number of bytes.
        itemsize: bytes of an element; 0 if they are not known, as for messages and Python objects.
    """

    __slots__ = ("dtype",)
    dtype: Any

    def __init__(self, nbytes: int, itemsize: int = 0) -> None:
        super().__init__(None)
        self.nbytes = nbytes
        self.dtype = np.dtype(f"V{itemsize}") if itemsize else OBJECT


def replay(
    path: str | os.PathLike[str],
    *,
    machine: MachineLike = None,
    nodes: Nodes | None = None,
    like: str = "strict",
    algorithms: Mapping[str, str] | None = None,
    speed: Speed = 1.0,
    noise: float = 0.0,
    seed: int | None = None,
) -> Report:
    """Replay a recorded run on a machine; no code of the program runs.

    Messages keep the partners that they had in the recorded run, also those received from any source. On the machine
    of the record, and with the options of the recorded run, the times are equal to those of that run.

    Args:
        path: a file that ``simulate(..., record=path)`` wrote.
        machine: machine for the modelled time, as for :func:`~spmdsim.simulation.simulate`.
        nodes: the node of each rank, as for ``simulate``.
        like: library whose algorithms collectives use, as for ``simulate``.
        algorithms: algorithms by collective that replace the library's choices.
        speed: speed of the recorded computation, for all ranks or per rank.
        noise: random factors on the time of each computation, as for ``simulate``.
        seed: seed of the noise; None means 0.

    Returns:
        The report, with the times and the traffic. It has no findings, results, output or waiting times.

    Raises:
        InputError: If the file cannot be read or is no complete record, or an option has a wrong value.

    >>> import tempfile
    >>> from spmdsim.simulation import simulate
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = simulate(lambda comm: comm.Barrier(), 2, record=f"{folder}/run", machine=(1.0, 0.0))
    ...     replay(f"{folder}/run", machine=(3.0, 0.0)).seconds
    (3.0, 3.0)
    """
    where = os.fspath(path)
    events = _read_record(where)
    report = simulate(
        _RecordedEvents(events).run,
        len(events),
        machine=machine,
        nodes=nodes,
        like=like,
        algorithms=algorithms,
        speed=speed,
        noise=noise,
        seed=seed,
        check=False,
    )
    if not report.completed:
        reason = report.errors[0].message if report.errors else "it does not end"
        raise InputError(f"{where}: the record is not complete: {one_line(reason)}")
    nothing = (None,) * report.size
    return replace(report, problems=(), waits=(), results=nothing, output=(), exit_code=0)


class _RecordedEvents:
    """A replay of recorded events.

    Args:
        events: the events of each rank, which :func:`_read_record` has checked.
    """

    def __init__(self, events: list[list[dict[str, Any]]]) -> None:
        self._events = events
        self._groups: dict[tuple[int, ...], CommunicatorState] = {}

    def run(self, comm: Any) -> None:
        """Run the events of the calling rank.

        Args:
            comm: its COMM_WORLD.
        """
        end: Endpoint = comm._end
        operations: list[Any] = []
        for event in self._events[end.rank]:
            kind = event["do"]
            if kind == "compute":
                compute(seconds=event["seconds"])
            elif kind == "arrive":
                receives = [operations[op] for op in event["ops"]]
                for receive in receives:
                    wait_for(end.scheduler, receive)
                set_receive_times(receives)
            elif kind == "complete":
                _complete(operations[event["op"]])
            else:
                operations.append(self._start(end, event))

    def _start(self, end: Endpoint, event: dict[str, Any]) -> Any:
        """Return the started operation of an event.

        Args:
            end: the rank's end of COMM_WORLD.
            event: a send, a receive or a join.
        """
        kind, site = event["do"], (_RecordedEvents.run.__code__, 0)
        if kind == "send":
            payload = SizedPayload(event["bytes"])
            return start_send(end, payload, event["to"], event["number"], _MODES[event["mode"]], kind, site)
        if kind == "receive":
            return start_receive(end, OBJECT_TARGET, event["from"], event["number"], kind, site, direct=False)
        ranks = tuple(event["ranks"])
        key = (event["group"], *ranks)
        if key not in self._groups:
            self._groups[key] = CommunicatorState(end.scheduler, ranks, "a recorded communicator")
        group = Endpoint(self._groups[key], ranks.index(end.rank), end.task)
        call = CollectiveCall(
            CollectiveRule(_move_nothing, event["collective"], event["flow"]),
            [SizedPayload(nbytes, event["itemsize"]) for nbytes in event["bytes"]],
            None,
            {"root": event["root"]} if event["root"] >= 0 else {},
            root=event["root"],
            op=_OPERATORS[event["reduces"]],
            value=[tuple(pair) for pair in event["sources"]],
        )
        return join_meeting(group, call, event["collective"], site)


def _move_nothing(calls: list[CollectiveCall]) -> None:
    """Set no blocks: a replay has no data."""


def _complete(operation: Any) -> None:
    """Block until an operation is done, and advance the clock of its rank."""
    wait_for(operation.task.scheduler, operation)
    if isinstance(operation, Message):
        complete_send(operation, None)
    elif isinstance(operation, Receive):
        complete_receive(operation, None)
    else:
        operation.deliver()


# ---------------------------------------------------------------------- reading


def _read_record(where: str) -> list[list[dict[str, Any]]]:
    """Return the checked events of each rank.

    Args:
        where: the file.

    Raises:
        InputError: If the file cannot be read, or a line is wrong; the error names the line.
    """
    lines = read_text(where, "a record").splitlines()
    events: list[list[dict[str, Any]]] = []
    started: list[list[str]] = []
    for number, text in enumerate(lines, 1):
        try:
            event = parse_json(text)
            if number == 1:
                size = _header_ranks(event)
                events, started = [[] for _ in range(size)], [[] for _ in range(size)]
            else:
                _check_event(event, started)
                events[event["rank"]].append(event)
        except (InputError, ValueError) as error:
            raise InputError(f"{where}: line {number}: {one_line(error)}") from None
    if not events:
        raise InputError(f"{where}: a record must have lines, got an empty file")
    return events


def _header_ranks(header: Any) -> int:
    """Return the number of ranks of the first line; raise ValueError if it is no header."""
    if not isinstance(header, dict) or header.get("spmdsim_record") != VERSION:
        raise ValueError(f'the first line must be {{"spmdsim_record": {VERSION}, "ranks": N}}')
    return _check_number_of(header, "ranks", 1, MOST_RANKS)


def _check_number_of(event: dict[str, Any], key: str, least: int, most: int) -> int:
    """Return a whole number of an event; raise ValueError if it is missing or out of range."""
    value = event.get(key)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{key} must be a whole number from {least} to {most}, got {value!r}")
    return value


def _check_numbers_of(event: dict[str, Any], key: str, least: int, most: int) -> list[int]:
    """Return a list of whole numbers of an event; raise ValueError if it is another value."""
    values = event.get(key)
    if not isinstance(values, list):
        raise ValueError(f"{key} must be a list of whole numbers, got {values!r}")
    return [_check_number_of({key: value}, key, least, most) for value in values]


def _word(event: dict[str, Any], key: str, words: Collection[str]) -> str:
    """Return a word of an event; raise ValueError if it is none of ``words``."""
    value = event.get(key)
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"{key} must be one of {', '.join(sorted(words))}, got {value!r}")
    return value


def _check_event(event: Any, started: list[list[str]]) -> None:
    """Check an event, and add the operation that it starts to those of its rank.

    Args:
        event: the JSON value of a line.
        started: kinds of the started operations of each rank.

    Raises:
        ValueError: If it is no event.
    """
    if not isinstance(event, dict):
        raise ValueError(f"an event must be a JSON object, got {event!r}")
    operations = started[_check_number_of(event, "rank", 0, len(started) - 1)]
    kind = _word(event, "do", ("compute", "send", "receive", "join", "arrive", "complete"))
    if kind == "compute":
        seconds = event.get("seconds")
        if (
            isinstance(seconds, bool)
            or not isinstance(seconds, int | float)
            or not 0 <= seconds < float("inf")
        ):
            raise ValueError(f"seconds must be a number of 0 or more, got {seconds!r}")
    elif kind == "arrive":
        chosen = _check_numbers_of(event, "ops", 0, len(operations) - 1)
        if any(operations[op] != "receive" for op in chosen):
            raise ValueError("ops must be receives")
    elif kind == "complete":
        _check_number_of(event, "op", 0, len(operations) - 1)
    else:
        _check_number_of(event, "op", len(operations), len(operations))
        _check_start(event, kind, len(started))
        operations.append(kind)


def _check_start(event: dict[str, Any], kind: str, size: int) -> None:
    """Check an event that starts an operation; raise ValueError if a value is wrong.

    Args:
        event: the event.
        kind: "send", "receive" or "join".
        size: number of ranks.
    """
    if kind == "join":
        _check_join(event, size)
        return
    _check_number_of(event, "number", 0, TAG_UB_VALUE)
    _check_number_of(event, "to" if kind == "send" else "from", 0, size - 1)
    if kind == "send":
        _check_number_of(event, "bytes", 0, _MOST)
        _word(event, "mode", _MODES)


def _check_join(event: dict[str, Any], size: int) -> None:
    """Check the call of a collective; raise ValueError if a value is wrong.

    Args:
        event: the event.
        size: number of ranks.
    """
    ranks = _check_numbers_of(event, "ranks", 0, size - 1)
    if len({*ranks}) < len(ranks) or event["rank"] not in ranks:
        raise ValueError(f"ranks must be different and contain {event['rank']}, got {ranks}")
    name = _word(event, "collective", _COLLECTIVES)
    _word(event, "flow", ("all", "down", "up"))
    _word(event, "reduces", _OPERATORS)
    root = _check_number_of(event, "root", -1, len(ranks) - 1)
    _check_number_of(event, "group", 0, _MOST)
    _check_number_of(event, "itemsize", 0, 2**30)
    blocks = _check_numbers_of(event, "bytes", 0, _MOST)
    least = {"barrier": 0, "neighbours": 0, "broadcast": 0, "scatter": 0, "all_to_all": len(ranks)}.get(
        name, 1
    )
    if name in ("broadcast", "scatter") and root == ranks.index(event["rank"]):
        least = 1 if name == "broadcast" else len(ranks)
    if len(blocks) < least or (name in ("broadcast", "scatter", "reduce", "gather") and root < 0):
        raise ValueError(f"{name} must have its root and a size for each of its {least} blocks, got {blocks}")
    sources = event.get("sources")
    if not isinstance(sources, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in sources):
        raise ValueError(f"sources must be a list of pairs, got {sources!r}")
    for source, number in sources:
        _check_number_of({"sources": source}, "sources", PROC_NULL, len(ranks) - 1)
        _check_number_of({"sources": number}, "sources", PROC_NULL, _MOST)
