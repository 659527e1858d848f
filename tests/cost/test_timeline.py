"""The timeline of a predicted run has the times of the prediction and the messages of the schedule."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from trace_events import slices_of

from spmdsim.cli.main import main
from spmdsim.collectives import algorithms, count, make_schedule, schedule_of
from spmdsim.cost import Machine, parse_topology, price
from spmdsim.errors import InputError
from spmdsim.figures.timelines import predicted_timeline

MACHINE = Machine("toy", 1e-6, 1e-9, 1e-10)


def of_kind(document: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """Return the events of one kind (phase) of a trace."""
    return [event for event in document["traceEvents"] if event["ph"] == kind]


@pytest.mark.parametrize("chosen", algorithms(), ids=lambda a: a.full_name.replace(" ", "-"))
def test_every_message_is_an_arrow_and_the_last_slice_ends_with_the_prediction(chosen: Any) -> None:
    schedule = make_schedule(chosen, 5)
    document = predicted_timeline(schedule, MACHINE, 1000)
    starts, ends = of_kind(document, "s"), of_kind(document, "f")
    arrows = Counter(
        (begin["pid"], end["pid"])
        for begin, end in zip(*(sorted(one, key=lambda e: e["id"]) for one in (starts, ends)), strict=True)
        if begin["id"] == end["id"]
    )
    sent: Counter[tuple[int, int]] = Counter()
    for rank in range(5):
        for moves in schedule.rounds(rank):
            sent.update((rank, move.peer) for move in moves if move.kind == "send")
    assert arrows == sent and sum(sent.values()) == count(schedule, 1000).total_messages
    slices = slices_of(document)
    wanted = price(schedule, MACHINE, 1000, rounds=True).seconds
    assert max(one["ts"] + one["dur"] for one in slices) == pytest.approx(wanted * 1e6)
    by_id = {one["id"]: one["ts"] for one in starts}
    assert all(by_id[one["id"]] <= one["ts"] for one in ends)


def test_slices_of_one_lane_do_not_overlap() -> None:
    document = predicted_timeline(schedule_of("all_reduce", "rabenseifner", 6), MACHINE, 6000)
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for one in of_kind(document, "X"):
        lanes.setdefault((one["pid"], one["tid"]), []).append((one["ts"], one["ts"] + one["dur"]))
    assert len(lanes) == 16  # two ranks reduce nothing and have one lane
    for spans in lanes.values():
        spans.sort()
        assert all(left[1] <= right[0] + 1e-9 for left, right in pairwise(spans))


def test_a_topology_stretches_the_rounds() -> None:
    schedule = schedule_of("all_reduce", "recursive_doubling", 16)
    network = parse_topology("ring", 16, MACHINE)
    document = predicted_timeline(schedule, MACHINE, 10**6, network)
    end = max(one["ts"] + one["dur"] for one in of_kind(document, "X"))
    assert end == pytest.approx(price(schedule, MACHINE, 10**6, network).seconds * 1e6)
    assert document["otherData"]["topology"] == network.name


def test_the_command_writes_the_fastest_algorithm(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    argv = ["collective", "predict", "all_gather", "-n", "4,8", "-b", "1M", "--trace", str(path)]
    assert main(argv) == 0
    document = json.loads(path.read_text())
    facts = document["otherData"]
    assert (facts["ranks"], facts["bytes"], facts["collective"]) == (8, 1 << 20, "all_gather")
    assert {one["pid"] for one in of_kind(document, "X")} == set(range(8))
    assert main([*argv[:-1], str(tmp_path / "no" / "run.json")]) != 0


def test_too_many_messages_are_refused() -> None:
    with pytest.raises(InputError, match=r"at most 100,000 messages, got 130,560 of .*ring"):
        predicted_timeline(schedule_of("all_reduce", "ring", 256), MACHINE, 1 << 20)
