"""A run of a collective, message by message, as a timeline in Chrome's JSON format, which ui.perfetto.dev opens.

One process per rank with a lane for what it sends, one for what it receives and one for what it reduces; an arrow
goes from each send to its receive. Predicted and measured runs look the same, so they can be laid side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from spmdsim.collectives import Instruction, Schedule
from spmdsim.cost import LogGOPS, Machine, Topology, price, program_of, simulate_program
from spmdsim.cost.event_simulation import CALC, SEND
from spmdsim.errors import InputError

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
