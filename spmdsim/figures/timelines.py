"""Build timelines for ui.perfetto.dev: a training step, predicted and measured, or the messages of a collective.

A training step has one process per rank with the measured trace, and one process with the prediction. The prediction
has the same operators, gradients and collectives in the same order, one after the other; each takes the time of the
busiest rank by the machine model. Collectives that started early have their own line and delay the operator that waits
for them. Each predicted slice also has its measured time. See :func:`step_timeline`.

A run of a collective has one process per rank with lanes for sends, receives and reductions, and an arrow from each
send to its receive. Predicted and measured runs have equal forms, so that they can be compared side by side. See
:func:`predicted_timeline`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from spmdsim.collectives import Instruction, Schedule
from spmdsim.cost import Machine, Topology, price
from spmdsim.cost.roofline import forward_work, gradient_work, kind_of
from spmdsim.errors import InputError
from spmdsim.layout.element_type import element_type
from spmdsim.redistribution.price import price_step
from spmdsim.worlds.trace.events import CollectiveEvent, ComputedSpan
from spmdsim.worlds.trace.perfetto import lane_names, timeline

if TYPE_CHECKING:
    from spmdsim.worlds.trace.recorder import Trace


@dataclass(frozen=True)
class PredictedSlice:
    """An operator or collective with its predicted and its measured time.

    Attributes:
        name: name of the operator or collective.
        kind: "operator" or "collective".
        start: predicted start, in seconds.
        seconds: predicted duration; an operator includes its collectives.
        measured: measured duration.
        depth: number of slices that contain it.
        early: True for a collective that runs while operators compute.
    """

    name: str
    kind: str
    start: float
    seconds: float
    measured: float
    depth: int
    early: bool = False


class _Waiting(NamedTuple):
    """The wait for a collective that started early."""

    event: CollectiveEvent
    start: float
    seconds: float = 0.0


def predicted_slices(trace: Trace, machine: Machine) -> list[PredictedSlice]:
    """Return the events of a trace in order, with the times of a machine model.

    The first slice starts at 0. An operator comes before the slices inside it.

    Args:
        trace: a recorded step of a program.
        machine: the machine that predicts.
    """
    slices: list[PredictedSlice] = []
    _place_slices(_build_trees(trace), machine, 0.0, 0, slices, {})
    return slices


def _build_trees(trace: Trace) -> list[tuple[Any, list[Any]]]:
    """Return the events of a trace as trees ``(event, children)``, in the order of their starts.

    Events are spans and collectives. A span is the time in which an operator, or its gradient, is computed. An event that
    starts during a span is a child of it; of several such spans, of the innermost one. So a matmul that redistributes its
    result is ``(matmul, [(all_reduce, [])])``.

    An early collective runs while operators compute. It gives two events: itself where it starts, and a
    :class:`_Waiting` where it ends.
    """
    early_events = [event for event in trace.collectives if event.exposed is not None]
    intervals: list[Any] = [*trace.spans, *trace.collectives]
    intervals += [_Waiting(event, event.start + event.seconds) for event in early_events]
    # If two events start together, the longer one is the parent.
    intervals.sort(key=lambda event: (event.start, -event.seconds))
    roots: list[tuple[Any, list[Any]]] = []
    open_nodes: list[tuple[Any, list[Any]]] = []
    for event in intervals:
        while open_nodes and event.start >= open_nodes[-1][0].start + open_nodes[-1][0].seconds:
            open_nodes.pop()
        node: tuple[Any, list[Any]] = (event, [])
        (open_nodes[-1][1] if open_nodes else roots).append(node)
        if isinstance(event, ComputedSpan):
            open_nodes.append(node)
    return roots


def _place_slices(
    nodes: Sequence[tuple[Any, list[Any]]],
    machine: Machine,
    at: float,
    depth: int,
    slices: list[PredictedSlice],
    under_way: dict[int, float],
) -> float:
    """Predict the times of some trees, one tree after the other; return the end in seconds.

    A slice with the predicted start and duration is appended to ``slices`` for each event:

    - A collective takes the modelled time of its step on the busiest rank.
    - An operator takes its children, one after the other, and then its own computation.
    - An early collective (one that runs while operators compute) starts now, or when the early ones before it end. The
      next event starts now, too. Its :class:`_Waiting` then lasts until the collective ends, and has no slice.

    Args:
        nodes: the trees of :func:`_build_trees`.
        machine: the machine, which predicts durations.
        at: start of the first slice in seconds.
        depth: number of slices that contain the trees.
        slices: the list to extend.
        under_way: the ends of early collectives that are not awaited yet, by id of the event. It is changed.
    """
    for event, children in nodes:
        position = len(slices)
        if isinstance(event, _Waiting):
            end = max(at, under_way.pop(id(event.event), at))
        elif isinstance(event, CollectiveEvent):
            is_early = event.exposed is not None
            begin = max(at, *under_way.values()) if is_early and under_way else at
            end = begin + price_step(event.step, element_type(event.dtype).itemsize, machine)[1]
            times = begin, end - begin, event.seconds
            slices.append(PredictedSlice(event.collective, "collective", *times, depth, is_early))
            if is_early:
                under_way[id(event)], end = end, at
        else:
            end = _place_slices(children, machine, at, depth + 1, slices, under_way)
            end += _compute_seconds(event, children, machine)
            slices.insert(
                position, PredictedSlice(event.name, "operator", at, end - at, event.seconds, depth)
            )
        at = end
    return at


def _compute_seconds(span: ComputedSpan, inner: Sequence[tuple[Any, list[Any]]], machine: Machine) -> float:
    """Return the modelled seconds of an operator's own computation, without its collectives.

    Return 0 if it consists of other operators. The time is that of the roofline model, for the forward computation or
    for the gradient. Gradients of a matrix product cost one product per operand.
    """
    if any(isinstance(child, ComputedSpan) for child, _ in inner):
        return 0.0
    if not span.gradients:
        return forward_work(span.bound, span.strategy, span.itemsizes).seconds(machine)
    once = gradient_work(span.bound, span.strategy, span.itemsizes).seconds(machine)
    return once * (span.gradients if kind_of(span.bound) == "product" else 1)


def step_timeline(traces: Sequence[Trace], machine: Machine, world: str = "") -> dict[str, Any]:
    """Return the timeline of one training step: what each rank measured, and a prediction.

    In the timeline each measured rank is a process, and the prediction by the machine model is one more, which is shown
    first.

    Args:
        traces: one trace per process of the run. The prediction is made from the first one. [] gives a timeline without
            events.
        machine: the machine of the prediction.
        world: name of the world of the measurement.

    Returns:
        A document in Chrome's trace format, with times in microseconds. Its "otherData" has the "predicted seconds" and
        "measured seconds" of the step; the latter come from the first trace.
    """
    document = timeline(traces)
    starts = [event.start for trace in traces for event in (*trace, *trace.spans)]
    events: list[dict[str, Any]] = document["traceEvents"]
    ranks = sorted({event["pid"] for event in events}) or [0]
    for trace in traces:
        owned = next((event.ranks for event in trace.collectives), trace.ranks)
        for rank in owned:
            events += _gradient_events(trace, rank, min(starts, default=0.0))
    slices = predicted_slices(traces[0], machine) if traces else []
    predicted_events = list(_predicted_events(slices, ranks[-1] + 1, f"predicted on {machine.name}"))
    events += [*predicted_events, *lane_names(predicted_events)]
    measured_seconds = [each.measured for each in slices if not each.depth and not each.early]
    if traces:
        measured_seconds += [collective.exposed or 0.0 for collective in traces[0].collectives]
    document.setdefault("otherData", {}).update(
        {
            "machine": machine.name,
            "certainty": machine.certainty,
            "measured in": world,
            "predicted seconds": max((each.start + each.seconds for each in slices), default=0.0),
            "measured seconds": sum(measured_seconds),
        }
    )
    return document


def _predicted_events(slices: Sequence[PredictedSlice], process: int, title: str) -> Iterator[dict[str, Any]]:
    """Yield the events of the prediction's process in Chrome's format, in microseconds.

    The first two events give the process its name and its place above the others. Then each slice is an event. Its "args"
    are the predicted and the measured microseconds, and "measured / predicted" (None if the prediction is 0). Early
    collectives are in line 1, all other slices in line 0.

    Args:
        slices: the predicted slices.
        process: number of the process.
        title: its name.
    """
    metadata = {"ph": "M", "pid": process, "tid": 0}
    yield {**metadata, "name": "process_name", "args": {"name": title}}
    yield {**metadata, "name": "process_sort_index", "args": {"sort_index": -1}}
    for each in slices:
        yield {
            "ph": "X",
            "pid": process,
            "tid": int(each.early),
            "name": each.name,
            "cat": each.kind,
            "ts": each.start * 1e6,
            "dur": each.seconds * 1e6,
            "args": {
                "predicted us": each.seconds * 1e6,
                "measured us": each.measured * 1e6,
                "measured / predicted": each.measured / each.seconds if each.seconds else None,
            },
        }


def _gradient_events(trace: Trace, rank: int, first: float) -> Iterator[dict[str, Any]]:
    """Yield the timeline events of a rank's backward pass, one per operator.

    A trace has the operators of the backward pass only as spans (start and duration), which the timeline of its calls
    lacks. Times are in microseconds.
    """
    for span in trace.spans:
        if span.gradients:
            times = {"ts": (span.start - first) * 1e6, "dur": span.seconds * 1e6}
            event = {"ph": "X", "pid": rank, "tid": 0, "name": span.name, "cat": "operator"}
            yield {**event, **times, "args": {"strategy": str(span.strategy)}}


#: Largest number of messages of one timeline, because more make a browser slow.
MOST_MESSAGES = 100_000

SENDS, RECEIVES, REDUCES = 0, 1, 2
LANES = ("sends", "receives", "reduces")


@dataclass(frozen=True)
class Slice:
    """A send, receive or reduction of a rank, from ``start`` to ``end`` in seconds."""

    rank: int
    lane: int
    name: str
    start: float
    end: float
    nbytes: float
    message: int  # shared by a send and its receive; -1 for a reduction
    round: int


def _lane_metadata(rank: int) -> Iterator[dict[str, Any]]:
    """Yield the events that name the process of a rank and its three lanes.

    The lanes are those of :data:`LANES`. Processes are sorted by ``rank``.
    """
    common = {"ph": "M", "pid": rank}
    yield common | {"name": "process_name", "args": {"name": f"rank {rank}"}}
    yield common | {"name": "process_sort_index", "args": {"sort_index": rank}}
    for lane, words in enumerate(LANES):
        yield common | {"tid": lane, "name": "thread_name", "args": {"name": words}}


def _slice_events(one_slice: Slice) -> Iterator[dict[str, Any]]:
    """Yield one or two events in Chrome's format: a slice, and one end of its message's arrow.

    An arrow goes from a send to its receive: the slice of a send yields its start, the slice of a receive its end. A
    reduction has no arrow. Times are in microseconds.
    """
    start, duration = one_slice.start * 1e6, (one_slice.end - one_slice.start) * 1e6
    track = {"pid": one_slice.rank, "tid": one_slice.lane}
    facts = {"bytes": one_slice.nbytes, "round": one_slice.round}
    kind = "reduction" if one_slice.lane == REDUCES else "message"
    yield track | {
        "ph": "X",
        "name": one_slice.name,
        "cat": kind,
        "ts": start,
        "dur": duration,
        "args": facts,
    }
    if one_slice.message >= 0:
        arrow = track | {"name": "message", "cat": "message", "id": one_slice.message + 1}
        # An arrow belongs to the slice around its time, so its end is just before the end of the slice.
        arrow_end = {"ph": "f", "bp": "e", "ts": start + 0.999 * duration}
        yield arrow | ({"ph": "s", "ts": start} if one_slice.lane == SENDS else arrow_end)


def predicted_timeline(
    schedule: Schedule,
    machine: Machine,
    nbytes: int,
    network: Topology | None = None,
    itemsize: int = 1,
) -> dict[str, Any]:
    """Return the timeline of a schedule by its price.

    Each rank has lanes for sends, receives and reductions. "otherData" names the algorithm, the sizes and the machine.

    Args:
        schedule: the schedule.
        machine: the machine.
        nbytes: bytes of the message, as the collective counts them.
        network: topology of the links; None for the levels of the machine.
        itemsize: bytes of an element.

    Returns:
        A document in Chrome's trace format, for ui.perfetto.dev.

    Raises:
        InputError: If there are more than :data:`MOST_MESSAGES` (100,000) messages.

    >>> from spmdsim.collectives import schedule_of
    >>> timeline = predicted_timeline(schedule_of("all_gather", "ring", 3), Machine.laptop(), 300)
    >>> sum(event["ph"] == "s" for event in timeline["traceEvents"])
    6
    """
    slices = list(_round_slices(schedule, machine, nbytes, network, itemsize))
    title = {"collective": schedule.collective.name, "algorithm": schedule.algorithm.name}
    facts = title | {"ranks": schedule.size, "bytes": nbytes, "machine": machine.name}
    if network is not None:
        facts["topology"] = network.name
    names = chain.from_iterable(map(_lane_metadata, range(schedule.size)))
    events = chain.from_iterable(map(_slice_events, slices))
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ns", "otherData": facts}


def _round_slices(
    schedule: Schedule, machine: Machine, nbytes: int, network: Topology | None, itemsize: int
) -> Iterator[Slice]:
    """Yield the slices of a schedule that runs in synchronous rounds, round by round.

    In each round, first all messages start together, and all end together, when the slowest one does. Then each rank
    reduces the chunks that it received, one after the other. The next round starts when the slowest rank has reduced.

    For example, a ring of 3 ranks has an all_gather of 2 rounds with 3 messages each. These are 6 sends and 6 receives.

    Args:
        schedule: the schedule.
        machine: the machine.
        nbytes: bytes of the message.
        network: topology of the links; None for the levels of the machine.
        itemsize: bytes of an element.

    Raises:
        InputError: If there are more than :data:`MOST_MESSAGES` (100,000) messages.
    """
    priced = price(schedule, machine, nbytes, network, itemsize, rounds=True).rounds
    message_count = sum(round_price.repeat * round_price.messages for round_price in priced)
    if message_count > MOST_MESSAGES:
        raise InputError(
            f"a timeline must have at most {MOST_MESSAGES:,} messages, got {message_count:,} of {schedule.name}; "
            "choose fewer ranks"
        )
    prices = (round_price for round_price in priced for _ in range(round_price.repeat))
    sizes = [items * itemsize for items in schedule.chunk_elements(-(-nbytes // itemsize))]
    nothing: list[Instruction] = []
    start, messages = 0.0, 0
    every_rank = zip_longest(*(schedule.rounds(rank) for rank in range(schedule.size)), fillvalue=nothing)
    for number, (round_price, moves_of) in enumerate(zip(prices, every_rank)):
        transfer_end = start + round_price.seconds - machine.reduce_seconds(round_price.reduced)
        numbers: dict[tuple[int, int], list[int]] = {}
        for rank, moves in enumerate(moves_of):
            for move in moves:
                if move.kind == "send":
                    numbers.setdefault((rank, move.peer), []).append(messages)
                    size = _move_bytes(move, sizes)
                    yield Slice(rank, SENDS, f"to {move.peer}", start, transfer_end, size, messages, number)
                    messages += 1
        for rank, moves in enumerate(moves_of):
            reduced_bytes, begin = 0, transfer_end
            for move in moves:
                size = _move_bytes(move, sizes)
                if move.receives:
                    message = numbers[move.peer, rank].pop(0)
                    yield Slice(
                        rank, RECEIVES, f"from {move.peer}", start, transfer_end, size, message, number
                    )
                if move.kind in ("reduce", "combine") and round_price.reduced:
                    reduced_bytes += size
                    end = transfer_end + machine.reduce_seconds(reduced_bytes)
                    yield Slice(rank, REDUCES, "reduce", begin, end, size, -1, number)
                    begin = end
        start += round_price.seconds


def _move_bytes(move: Instruction, sizes: list[int]) -> int:
    """Return the bytes of an instruction's chunks; ``sizes`` has the bytes of each chunk."""
    return sum(sizes[chunk % len(sizes)] for chunk in move.chunks)
