"""Timelines that ui.perfetto.dev opens: a whole training step, predicted and measured side by side; and a collective's messages.

The measured side is a trace: one process per rank. The predicted side is one process more: the same operators, gradients
and collectives in the same order, each as long as a machine model says the busiest rank takes, one after the other. Only
what was begun early runs beside them, one after the other on a line of its own, and holds up what was waited for. Every
predicted slice has the measured time, too.

A run of a collective is one process per rank with a lane for what it sends, one for what it receives and one for what it
reduces; an arrow goes from each send to its receive. Predicted and measured runs look the same, so they can be laid side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from spmdsim.collectives import Instruction, Schedule
from spmdsim.cost import LogGOPS, Machine, Topology, price, program_of, simulate_program
from spmdsim.cost.event_simulation import CALC, SEND
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
    """Something that was measured, with the time that a machine model says."""

    name: str
    kind: str  # "operator" or "collective"
    start: float
    seconds: float  # predicted; of an operator with its collectives
    measured: float
    depth: int  # how many slices it lies in
    early: bool = False  # begun early, while computing went on


class _Waiting(NamedTuple):
    """The end of something that was begun early."""

    event: CollectiveEvent
    start: float
    seconds: float = 0.0


def predicted_slices(trace: Trace, machine: Machine) -> list[PredictedSlice]:
    """The events of a trace in their order, as long as the model says; those begun early beside the others."""
    slices: list[PredictedSlice] = []
    _lay(_nested(trace), machine, 0.0, 0, slices, {})
    return slices


def _nested(trace: Trace) -> list[tuple[Any, list[Any]]]:
    """Spans and collectives as trees, by their measured times."""
    early = [one for one in trace.collectives if one.exposed is not None]
    intervals: list[Any] = [*trace.spans, *trace.collectives]
    intervals += [_Waiting(one, one.start + one.seconds) for one in early]
    # Of two that begin at once the longer one is outside.
    intervals.sort(key=lambda one: (one.start, -one.seconds))
    roots: list[tuple[Any, list[Any]]] = []
    open_: list[tuple[Any, list[Any]]] = []
    for one in intervals:
        while open_ and one.start >= open_[-1][0].start + open_[-1][0].seconds:
            open_.pop()
        node: tuple[Any, list[Any]] = (one, [])
        (open_[-1][1] if open_ else roots).append(node)
        if isinstance(one, ComputedSpan):
            open_.append(node)
    return roots


def _lay(
    nodes: Sequence[tuple[Any, list[Any]]],
    machine: Machine,
    at: float,
    depth: int,
    slices: list[PredictedSlice],
    under_way: dict[int, float],
) -> float:
    """Put slices one after the other from ``at`` on, and return where they end."""
    for one, inner in nodes:
        place = len(slices)
        if isinstance(one, _Waiting):
            end = max(at, under_way.pop(id(one.event), at))
        elif isinstance(one, CollectiveEvent):
            early = one.exposed is not None
            begin = max(at, *under_way.values()) if early and under_way else at
            end = begin + price_step(one.step, element_type(one.dtype).itemsize, machine)[1]
            times = begin, end - begin, one.seconds
            slices.append(PredictedSlice(one.collective, "collective", *times, depth, early))
            if early:
                under_way[id(one)], end = end, at
        else:
            end = _lay(inner, machine, at, depth + 1, slices, under_way)
            end += _computing(one, inner, machine)
            slices.insert(place, PredictedSlice(one.name, "operator", at, end - at, one.seconds, depth))
        at = end
    return at


def _computing(span: ComputedSpan, inner: Sequence[tuple[Any, list[Any]]], machine: Machine) -> float:
    """Modelled seconds of what an operator computes itself; one made of others computes nothing of its own."""
    if any(isinstance(one, ComputedSpan) for one, _ in inner):
        return 0.0
    if not span.gradients:
        return forward_work(span.bound, span.strategy, span.itemsizes).seconds(machine)
    once = gradient_work(span.bound, span.strategy, span.itemsizes).seconds(machine)
    return once * (span.gradients if kind_of(span.bound) == "product" else 1)


def step_timeline(traces: Sequence[Trace], machine: Machine, world: str = "") -> dict[str, Any]:
    """The timeline of one step, of a trace per process: measured ranks, and the prediction as a process of its own."""
    document = timeline(traces)
    first = min((one.start for trace in traces for one in (*trace, *trace.spans)), default=0.0)
    events: list[dict[str, Any]] = document["traceEvents"]
    ranks = sorted({event["pid"] for event in events}) or [0]
    for trace in traces:
        owned = list(next((event.ranks for event in trace.collectives), trace.ranks))
        events += [one for rank in owned for one in _gradients(trace, rank, first)]
    predicted = ranks[-1] + 1
    slices = predicted_slices(traces[0], machine) if traces else []
    named = {"ph": "M", "pid": predicted, "tid": 0}
    words = f"predicted on {machine.name}"
    events.append({**named, "name": "process_name", "args": {"name": words}})
    events.append({**named, "name": "process_sort_index", "args": {"sort_index": -1}})
    for one in slices:
        ratio = {"measured / predicted": one.measured / one.seconds if one.seconds else None}
        args = {"predicted us": one.seconds * 1e6, "measured us": one.measured * 1e6, **ratio}
        times = {"ts": one.start * 1e6, "dur": one.seconds * 1e6, "tid": int(one.early)}
        events.append({"ph": "X", "pid": predicted, "name": one.name, "cat": one.kind, **times, "args": args})
    events += lane_names([event for event in events if event["pid"] == predicted])
    measured = [one.measured for one in slices if not one.depth and not one.early]
    measured += [one.exposed or 0.0 for one in traces[0].collectives] if traces else []
    other = document.setdefault("otherData", {})
    other |= {
        "machine": machine.name,
        "certainty": machine.certainty,
        "measured in": world,
        "predicted seconds": max((one.start + one.seconds for one in slices), default=0.0),
        "measured seconds": sum(measured),
    }
    return document


def _gradients(trace: Trace, rank: int, first: float) -> Iterator[dict[str, Any]]:
    """Slices of the way back, which a trace has as spans only."""
    for span in trace.spans:
        if span.gradients:
            times = {"ts": (span.start - first) * 1e6, "dur": span.seconds * 1e6}
            what = {"ph": "X", "pid": rank, "tid": 0, "name": span.name, "cat": "operator"}
            yield {**what, **times, "args": {"strategy": str(span.strategy)}}


#: Messages in one timeline at most: more make a browser slow.
MOST_MESSAGES = 100_000

SENDS, RECEIVES, REDUCES = 0, 1, 2
LANES = ("sends", "receives", "reduces")


@dataclass(frozen=True)
class Slice:
    """Something a rank does, from ``start`` to ``end`` in seconds."""

    rank: int
    lane: int
    name: str
    start: float
    end: float
    nbytes: float
    message: int  # shared by a send and its receive; -1 for a reduction
    round: int


def chrome_timeline(slices: Iterable[Slice], ranks: int, facts: dict[str, Any]) -> dict[str, Any]:
    """The timeline as JSON values; facts about the run are kept in ``otherData``."""
    names = [one for rank in range(ranks) for one in _names(rank)]
    events = [event for one in slices for event in _chrome(one)]
    return {"traceEvents": names + events, "displayTimeUnit": "ns", "otherData": facts}


def _names(rank: int) -> Iterator[dict[str, Any]]:
    common = {"ph": "M", "pid": rank}
    yield common | {"name": "process_name", "args": {"name": f"rank {rank}"}}
    yield common | {"name": "process_sort_index", "args": {"sort_index": rank}}
    for lane, words in enumerate(LANES):
        yield common | {"tid": lane, "name": "thread_name", "args": {"name": words}}


def _chrome(one: Slice) -> Iterator[dict[str, Any]]:
    """The slice, and its end of the message's arrow."""
    start, lasts = one.start * 1e6, (one.end - one.start) * 1e6
    place = {"pid": one.rank, "tid": one.lane}
    facts = {"bytes": one.nbytes, "round": one.round}
    kind = "reduction" if one.lane == REDUCES else "message"
    yield place | {"ph": "X", "name": one.name, "cat": kind, "ts": start, "dur": lasts, "args": facts}
    if one.message >= 0:
        arrow = place | {"name": "message", "cat": "message", "id": one.message + 1}
        # An arrow binds to the slice around its time, which is still inside just before the end.
        last = {"ph": "f", "bp": "e", "ts": start + 0.999 * lasts}
        yield arrow | ({"ph": "s", "ts": start} if one.lane == SENDS else last)


# ---------------------------------------------------------------- predicted: rounds as they are priced, or simulated events


def predicted_timeline(
    schedule: Schedule,
    machine: Machine,
    nbytes: int,
    network: Topology | None = None,
    itemsize: int = 1,
    events: LogGOPS | None = None,
) -> dict[str, Any]:
    """The timeline of a schedule as it is priced, on the machine's own levels if no network is given.

    With LogGOPS parameters, in seconds, events are simulated instead of synchronous rounds.

    >>> from spmdsim.collectives import schedule_of
    >>> timeline = predicted_timeline(schedule_of("all_gather", "ring", 3), Machine.laptop(), 300)
    >>> sum(event["ph"] == "s" for event in timeline["traceEvents"])
    6
    """
    if events is None:
        slices = list(_rounds(schedule, machine, nbytes, network, itemsize))
    else:
        slices = list(_events(schedule, nbytes, itemsize, machine.gamma, events))
    title = {"collective": schedule.collective.name, "algorithm": schedule.algorithm.name}
    facts = title | {"ranks": schedule.size, "bytes": nbytes, "machine": machine.name}
    if network is not None:
        facts["topology"] = network.name
    return chrome_timeline(slices, schedule.size, facts)


def _rounds(
    schedule: Schedule, machine: Machine, nbytes: int, network: Topology | None, itemsize: int
) -> Iterator[Slice]:
    """Synchronous rounds: all messages of a round begin with it, reductions end it."""
    priced = price(schedule, machine, nbytes, network, itemsize, rounds=True).rounds
    _refuse_many(schedule, sum(one.repeat * one.messages for one in priced))
    prices = (one for one in priced for _ in range(one.repeat))
    sizes = [items * itemsize for items in schedule.chunk_elements(-(-nbytes // itemsize))]
    nothing: list[Instruction] = []
    start, messages = 0.0, 0
    every_rank = zip_longest(*(schedule.rounds(rank) for rank in range(schedule.size)), fillvalue=nothing)
    for number, (one, moves_of) in enumerate(zip(prices, every_rank)):
        moved = start + one.seconds - machine.reduce_seconds(one.reduced)
        numbers: dict[tuple[int, int], list[int]] = {}
        for rank, moves in enumerate(moves_of):
            for move in moves:
                if move.kind == "send":
                    numbers.setdefault((rank, move.peer), []).append(messages)
                    size = _bytes(move, sizes)
                    yield Slice(rank, SENDS, f"to {move.peer}", start, moved, size, messages, number)
                    messages += 1
        for rank, moves in enumerate(moves_of):
            reduced, begin = 0, moved
            for move in moves:
                size = _bytes(move, sizes)
                if move.receives:
                    message = numbers[move.peer, rank].pop(0)
                    yield Slice(rank, RECEIVES, f"from {move.peer}", start, moved, size, message, number)
                if move.kind in ("reduce", "combine") and one.reduced:
                    reduced += size
                    end = moved + machine.reduce_seconds(reduced)
                    yield Slice(rank, REDUCES, "reduce", begin, end, size, -1, number)
                    begin = end
        start += one.seconds


def _bytes(move: Instruction, sizes: list[int]) -> int:
    return sum(sizes[chunk % len(sizes)] for chunk in move.chunks)


def _events(
    schedule: Schedule, nbytes: int, itemsize: int, gamma: float, parameters: LogGOPS
) -> Iterator[Slice]:
    """Events of the LogGOPS model; the operations' tags are the rounds."""
    program = program_of(schedule, nbytes, itemsize, gamma)
    _refuse_many(schedule, program.kinds.count(SEND))
    run = simulate_program(program, parameters)
    free: dict[tuple[int, int], float] = {}
    for op in sorted(range(len(program)), key=run.starts.__getitem__):
        kind, rank, peer = program.kinds[op], program.ranks[op], program.peers[op]
        start, end = run.starts[op], run.ends[op]
        if kind == CALC:
            yield Slice(rank, REDUCES, "reduce", start, end, end - start, -1, program.tags[op])
            continue
        lane, words = (SENDS, f"to {peer}") if kind == SEND else (RECEIVES, f"from {peer}")
        # A long send is over when it is matched, while the next one may have begun: slices of a lane do not overlap.
        start = max(start, free.get((rank, lane), 0.0))
        free[rank, lane] = end = max(start, end)
        message = min(op, run.partners[op])
        yield Slice(rank, lane, words, start, end, program.sizes[op], message, program.tags[op])


def _refuse_many(schedule: Schedule, messages: int) -> None:
    if messages > MOST_MESSAGES:
        raise InputError(
            f"{schedule.name} has {messages:,} messages, too many for a timeline: "
            f"{MOST_MESSAGES:,} can be drawn; choose fewer ranks"
        )
