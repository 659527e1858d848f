"""A predicted run as a timeline of its messages: rounds as they are priced, or simulated events."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from spmdsim.collectives import Instruction, Schedule
from spmdsim.cost import LogGOPS, Machine, Topology, price, program_of, simulate_program
from spmdsim.cost.event_simulation import CALC, SEND
from spmdsim.draw.message_timeline import MOST_MESSAGES, RECEIVES, REDUCES, SENDS, Slice, chrome_timeline
from spmdsim.errors import InputError


def predicted_timeline(
    schedule: Schedule,
    machine: Machine,
    nbytes: int,
    network: Topology | None = None,
    itemsize: int = 1,
    events: LogGOPS | None = None,
) -> dict[str, Any]:
    """The timeline of a schedule as it is priced.

    Args:
        schedule: an algorithm at a rank count.
        machine: alpha, beta and gamma.
        nbytes: message size as the collective counts it.
        network: links to share; the machine's own levels if not given.
        itemsize: bytes that are never cut.
        events: LogGOPS parameters in seconds, to simulate events instead of synchronous rounds.

    Raises:
        InputError: too many messages to draw.

    >>> from spmdsim.collectives import schedule_of
    >>> found = predicted_timeline(schedule_of("all_gather", "ring", 3), Machine.laptop(), 300)
    >>> sum(event["ph"] == "s" for event in found["traceEvents"])
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
