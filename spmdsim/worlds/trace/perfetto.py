"""Export of traces as timelines: Chrome's JSON format, which ui.perfetto.dev opens.

One process per rank; operators enclose their collectives; arrows go from each sender to its receivers. Collectives
that were started early have a lane of their own below, from their start until the rank waited for them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from spmdsim.worlds.trace.event_table import event_pairs
from spmdsim.worlds.trace.events import CollectiveEvent, Event
from spmdsim.worlds.trace.recorder import Trace

#: Arrows drawn at most: more make a browser slow and a picture black.
MOST_ARROWS = 20_000


def timeline(traces: Sequence[Trace]) -> dict[str, Any]:
    """Return the timeline of one program in Chrome's JSON format, with one process per rank.

    Args:
        traces: one trace per process, such as ``world.gather_objects([trace])`` returns. Events of equal number in them
            are one call.

    Returns:
        A dict with two or three entries.
        ``traceEvents``: the names of ranks and lanes, a slice per event and rank, and arrows from senders to receivers.
        Times are microseconds since the first event. Clocks of one machine agree; those of several machines may be
        shifted against each other.
        ``displayTimeUnit``: "ms".
        ``otherData``: the control traffic (messages by which ranks agree about calls), only if there is any.
    """
    first = min((span.start for trace in traces for span in (*trace, *trace.spans)), default=0.0)
    slices: dict[tuple[int, int], tuple[Event, float, int]] = {}
    events: list[dict[str, Any]] = []
    ranks: set[int] = set()
    for trace in traces:
        owned = _recorded_ranks(trace)
        ranks.update(owned)
        lanes = _assign_lanes(trace)
        for number, event in enumerate(trace):
            for rank in owned:
                start, lane = (event.start - first) * 1e6, lanes.get(number, 0)
                slices[rank, number] = (event, start, lane)
                events.append(_slice(event, rank, start) | {"tid": lane})
    names = [
        {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": _name_rank(rank, traces)}}
        for rank in sorted(ranks)
    ]
    names += lane_names(events)
    control = {
        f"rank {_recorded_ranks(trace)[0]}": {
            purpose: counts._asdict() for purpose, counts in sorted(trace.control.items())
        }
        for trace in traces
        if trace.control
    }
    document: dict[str, Any] = {"traceEvents": names + events + _arrows(slices), "displayTimeUnit": "ms"}
    return {**document, "otherData": {"control traffic": control}} if control else document


def _name_rank(rank: int, traces: Sequence[Trace]) -> str:
    """Return the name of a rank, with its host if the first trace that knows nodes has several."""
    nodes = next((trace.nodes for trace in traces if trace.nodes is not None), None)
    if nodes is None or nodes.count == 1 or rank >= nodes.size:
        return f"rank {rank}"
    return f"rank {rank}, {nodes.host_of(rank)}"


def _recorded_ranks(trace: Trace) -> Sequence[int]:
    """Return the ranks of the process that recorded the trace."""
    return next((event.ranks for event in trace.collectives), trace.ranks)


def _assign_lanes(trace: Trace) -> dict[int, int]:
    """Return the lane, from 1 on, of each event that started early, by the event's number.

    A lane is a row of the timeline. An event gets the first lane whose last event has ended before, so events of a
    lane do not overlap. Other events have no entry: they are in lane 0.

    Args:
        trace: the trace.
    """
    early_events = [
        (event.start, number)
        for number, event in enumerate(trace)
        if getattr(event, "exposed", None) is not None
    ]
    ends: list[float] = []  # of the last event of lanes 1, 2, …
    lanes: dict[int, int] = {}
    for start, number in sorted(early_events):
        index = next((k for k, end in enumerate(ends) if end <= start), len(ends))
        ends[index : index + 1] = [start + trace[number].seconds]  # also appends a new lane
        lanes[number] = index + 1
    return lanes


def lane_names(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records that name the lanes of each rank, sorted by rank and lane.

    Lane 0 is called "operators and collectives". Every further lane is called "begun early" and has collectives that
    started early. Lanes without a slice have no record.

    Args:
        events: records in Chrome's format; only slices ("ph" is "X") count.
    """
    lanes = sorted({(event["pid"], event["tid"]) for event in events if event["ph"] == "X"})
    words = ("operators and collectives", "begun early")
    return [
        {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": words[tid > 0]}}
        for pid, tid in lanes
    ]


def _slice(event: Event, rank: int, start: float) -> dict[str, Any]:
    """Return the record of an event in lane 0 of a rank: name, times in microseconds and facts.

    The viewer shows the facts, ``args``, when the slice is selected:

    - Operator: strategy, layouts of inputs and outputs, and line of the program.
    - Collective: axes, group size, layouts, the rank's bytes (planned, received, sent), calls, element type and line.
      If it started early: also the microseconds that the rank waited for it.

    Args:
        event: the event of an operator or a collective.
        rank: the rank, which must be one of a collective's recorded ranks.
        start: the start of the event in microseconds since the first event.
    """
    common = {"ph": "X", "pid": rank, "tid": 0, "ts": start, "dur": event.seconds * 1e6}
    if not isinstance(event, CollectiveEvent):
        args: dict[str, Any] = {
            "strategy": event.strategy,
            "inputs": list(event.inputs),
            "outputs": list(event.outputs),
            "source": event.source,
        }
        return {**common, "name": event.name, "cat": "operator", "args": args}
    position = event.ranks.index(rank)
    args = {
        "axes": list(event.axes),
        "group": event.group_size,
        "from": event.step.src.placement_text(),
        "to": event.step.dst.placement_text(),
        "bytes planned": event.planned[position],
        "bytes received": event.nbytes[position],
        "bytes sent": event.sent[position],
        "by": event.way,
        "dtype": event.dtype,
        "source": event.source,
    }
    if event.exposed is not None:
        args["waited us"] = event.exposed * 1e6
    return {**common, "name": event.collective, "cat": "collective", "args": args}


def _arrows(slices: dict[tuple[int, int], tuple[Event, float, int]]) -> list[dict[str, Any]]:
    """Return the records of arrows that show messages between ranks, two per message.

    The first one is the arrow's start, at the start of the sender's event; the second one is its end, at the end of the
    receiver's event. The following have no arrows:

    - events that are no collectives, and ranks outside of the target's mesh;
    - messages whose sender has no event with the receiver's number, or has another call there;
    - messages beyond the first :data:`MOST_ARROWS` (20,000).

    Args:
        slices: by rank and number of the event: the event, its start in microseconds, and its lane.
    """
    arrows: list[dict[str, Any]] = []
    for (rank, number), (event, start, lane) in slices.items():
        if not isinstance(event, CollectiveEvent) or rank not in event.step.dst.mesh:
            continue
        for peer, _ in event_pairs(event, rank):
            sender = slices.get((peer, number))
            if sender is None or sender[0].key != event.key:
                continue
            if len(arrows) >= 2 * MOST_ARROWS:
                return arrows
            common = {"name": "message", "cat": "message", "id": len(arrows) // 2 + 1, "tid": lane}
            arrows.append({**common, "ph": "s", "pid": peer, "ts": sender[1]})
            end = start + event.seconds * 1e6
            arrows.append({**common, "ph": "f", "bp": "e", "pid": rank, "ts": end})
    return arrows


def save_timeline(path: str, traces: Sequence[Trace]) -> None:
    """Write the timeline of one program to a file."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(timeline(traces), file)
