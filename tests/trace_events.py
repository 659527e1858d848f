"""Checks of JSON files for ui.perfetto.dev and chrome://tracing, by Google's "Trace Event Format"."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import Any

#: Phase -> the fields that its events have besides ``ph``, ``pid`` and ``name``.
NEEDS = {"X": {"ts", "dur", "tid"}, "M": {"args"}, "s": {"ts", "tid", "id"}, "f": {"ts", "tid", "id"},
         "C": {"ts", "args"}, "i": {"ts", "tid"}}  # fmt: skip
METADATA = {"process_name": str, "thread_name": str, "process_sort_index": int, "thread_sort_index": int}


def slices_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Check that ``document`` follows the format and return its slices.

    Raises:
        AssertionError: If an event violates the format.
    """
    document = json.loads(json.dumps(document, allow_nan=False))
    assert document["displayTimeUnit"] in ("ms", "ns")
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    named: set[object] = set()
    flows: dict[Any, dict[str, dict[str, Any]]] = defaultdict(dict)
    for event in document["traceEvents"]:
        kind = event["ph"]
        assert kind in NEEDS and NEEDS[kind] | {"pid", "name"} <= {*event}, event
        assert isinstance(event["pid"], int) and isinstance(event.get("tid", 0), int), event
        for key in ("ts", "dur"):
            assert math.isfinite(event.get(key, 0)) and event.get(key, 0) >= 0, event
        if kind == "X":
            lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif kind == "M":
            of = METADATA[event["name"]]
            assert isinstance(event["args"]["name" if of is str else "sort_index"], of), event
            named |= {event["pid"]} if event["name"] == "process_name" else {(event["pid"], event.get("tid"))}
        elif kind in "sf":
            assert kind not in flows[event["id"]], event
            flows[event["id"]][kind] = event
    assert {*lanes, *(pid for pid, _ in lanes)} <= named
    for lane, spans in lanes.items():  # Slices of one lane must be disjoint or nested.
        open_until: list[float] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= begin + 1e-6:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-6, (lane, begin, end, open_until)
            open_until.append(end)
    for flow in flows.values():
        assert {*flow} == {"s", "f"} and flow["f"]["ts"] >= flow["s"]["ts"] - 1e-6, flow
        for event in flow.values():  # The viewers attach each end of an arrow to the slice around it.
            spans = lanes[event["pid"], event["tid"]]
            assert any(begin - 1e-3 <= event["ts"] <= end + 1e-3 for begin, end in spans), event
    return [event for event in document["traceEvents"] if event["ph"] == "X"]
