"""A whole training step, predicted and measured side by side, as one timeline that ui.perfetto.dev opens.

The measured side is a trace: one process per rank. The predicted side is one process more: the same operators, gradients
and collectives in the same order, each as long as a machine model says the busiest rank takes, one after the other. Only
what was begun early runs beside them, one after the other on a line of its own, and holds up what was waited for. Every
predicted slice has the measured time, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from spmdsim.cost.machine import Machine
from spmdsim.cost.roofline import forward_work, gradient_work, kind_of
from spmdsim.layout.element_type import element_type
from spmdsim.redistribution.price import price_step
from spmdsim.trace.events import CollectiveEvent, ComputedSpan
from spmdsim.trace.perfetto import lane_names, timeline

if TYPE_CHECKING:
    from spmdsim.trace.recorder import Trace


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
