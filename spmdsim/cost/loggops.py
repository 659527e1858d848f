"""The LogGOPS model as an event simulator: for schedules that are not made of regular rounds.

Semantics as in LogGOPSim (Hoefler, Schneider, Lumsdaine, HPDC 2010): a send of s bytes that starts at t keeps its
cpu busy for ``o + (s-1) O`` and its network card for ``g + (s-1) G``; its first byte is there at ``t + o + L``. It is
received when cpu and card of the receiver are free, which keeps them busy for ``o + (s-1) max(O, G)`` and
``g + (s-1) G``. A send up to ``S`` bytes is done once it has started, a longer one when it is matched.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count as counter

from spmdsim.cost.machine import Machine
from spmdsim.cost.program import RECV, SEND, Program
from spmdsim.errors import ScheduleError


@dataclass(frozen=True)
class LogGOPS:
    """The parameters, in any unit of time (nanoseconds by default, as in LogGOPSim).

    Attributes:
        L: latency of the network.
        o: cpu time per message on each side.
        g: gap between messages on a network card.
        G: time per byte on the network.
        O: cpu time per byte.
        S: longest message that is sent without waiting for its receiver.
    """

    L: float = 2500
    o: float = 1500
    g: float = 1000
    G: float = 6
    O: float = 0
    S: float = 65535

    @classmethod
    def from_machine(cls, machine: Machine, eager_bytes: float = 65536) -> LogGOPS:
        """Parameters in seconds such that a short message takes alpha and each further byte beta."""
        return cls(machine.alpha / 2, machine.alpha / 4, 0.0, machine.beta, 0.0, eager_bytes)


@dataclass(frozen=True)
class SimulatedRun:
    """What a simulation found; times in the unit of the parameters.

    Attributes:
        makespan: when the last rank was done.
        rank_ends: when each rank was done.
        starts: when each operation started; for a receive, when its message was taken from the network.
        ends: when each operation let go of its cpu.
        partners: for each send its receive and the other way round; -1 for calculations.
        events: operations and messages processed.
    """

    makespan: float
    rank_ends: tuple[float, ...]
    starts: tuple[float, ...]
    ends: tuple[float, ...]
    partners: tuple[int, ...]
    events: int


def simulate_program(program: Program, parameters: LogGOPS | None = None) -> SimulatedRun:
    """Run a program of sends, receives and calculations in simulated time.

    Args:
        program: operations and what they require.
        parameters: LogGOPSim's defaults if not given.

    Raises:
        ScheduleError: when operations are left that never start, or messages that nobody receives.

    >>> program = Program(2)
    >>> _ = program.send(0, 1, 1), program.recv(1, 0, 1)
    >>> simulate_program(program).rank_ends
    (1500, 5500)
    """
    # One long loop over plain lists: at several hundred thousand events per second a call per event is too much.
    p = parameters or LogGOPS()
    total = len(program)
    kinds, kind_of, channels = program.kinds, program.kinds.__getitem__, program.channels()
    cpus, cards = program.cpu_slots(), program.card_slots()
    to_cpu, to_card = program.cpu_slots(program.peers), program.card_slots(program.peers)
    more = [size - 1 if size > 0 else 0 for size in program.sizes]
    send_busy = [p.o + m * p.O for m in more]
    recv_busy = [p.o + m * max(p.O, p.G) for m in more]
    wire = [p.g + m * p.G for m in more]
    eager = [size <= p.S for size in program.sizes]
    travel = p.o + p.L
    followers, on_start = program.followers(), program.start_followers()
    waiting = [len(needs) for needs in program.needs]
    for op, needs in program.start_needs.items():
        waiting[op] += len(needs)
    cpu_free: list[float] = [0] * (max(cpus + to_cpu, default=0) + 1)
    card_out: list[float] = [0] * (max(cards + to_card, default=0) + 1)
    card_in = list(card_out)
    posted: list[deque[int]] = [deque() for _ in range(max(channels, default=-1) + 1)]
    arrived: list[deque[int]] = [deque() for _ in posted]
    starts: list[float] = [-1] * total
    ends: list[float] = [-1] * total
    ready: list[float] = [0] * total  # when what an operation requires is over, on whichever cpu
    taken: list[tuple[float, float]] = [(0, 0)] * total
    partners = [-1] * total
    heap: list[tuple[float, int, int]] = []
    push, pop, tick = heappush, heappop, counter().__next__
    freed = [op for op in range(total) if not waiting[op]]
    finished: list[int] = []
    begun: list[int] = []
    events = 0
    now: float = 0
    while True:
        for op in finished:
            end = ends[op]
            for other in followers[op]:
                waiting[other] -= 1
                if end > ready[other]:
                    ready[other] = end
                if not waiting[other]:
                    freed.append(other)
        if on_start:
            for op in begun:
                for other in on_start.get(op, ()):
                    waiting[other] -= 1
                    if not waiting[other]:
                        freed.append(other)
        finished.clear()
        begun.clear()
        if freed:
            if len(freed) > 1:
                freed.sort(key=kind_of)
            for op in freed:
                kind = kinds[op]
                if kind != RECV:
                    at = cpu_free[cpus[op]]
                    if kind == SEND and card_out[cards[op]] > at:
                        at = card_out[cards[op]]
                    if ready[op] > at:
                        at = ready[op]
                    push(heap, (at if at > now else now, tick(), op))
                    continue
                # A receive costs nothing itself: it is posted, or takes a message that is already there.
                events += 1
                begun.append(op)
                if not arrived[channels[op]]:
                    posted[channels[op]].append(op)
                    continue
                send = arrived[channels[op]].popleft()
                starts[op], end = taken[send]
                ends[op] = max(end, now, ready[op])
                partners[op], partners[send] = send, op
                finished.append(op)
                if not eager[send]:
                    ends[send] = max(ends[send], now)
                    finished.append(send)
            freed.clear()
            if finished or begun:
                continue
        if not heap:
            break
        now, _, op = pop(heap)
        if op >= total:
            send = op - total
            cpu, card = to_cpu[send], to_card[send]
            at = cpu_free[cpu]
            if card_in[card] > at:
                at = card_in[card]
            if at > now:
                push(heap, (at, tick(), op))
                continue
            events += 1
            cpu_free[cpu] = end = now + recv_busy[send]
            card_in[card] = now + wire[send]
            if not posted[channels[send]]:
                taken[send] = (now, end)
                arrived[channels[send]].append(send)
                continue
            op = posted[channels[send]].popleft()
            starts[op], ends[op] = now, end if end > ready[op] else ready[op]
            partners[op], partners[send] = send, op
            finished.append(op)
            if not eager[send]:
                ends[send] = max(ends[send], now)
                finished.append(send)
            continue
        cpu = cpus[op]
        at = cpu_free[cpu]
        if kinds[op] == SEND:
            card = cards[op]
            if card_out[card] > at:
                at = card_out[card]
            if at > now:
                push(heap, (at, tick(), op))
                continue
            cpu_free[cpu] = ends[op] = now + send_busy[op]
            card_out[card] = now + wire[op]
            push(heap, (now + travel, tick(), op + total))
            if eager[op]:
                finished.append(op)
        else:
            if at > now:
                push(heap, (at, tick(), op))
                continue
            cpu_free[cpu] = ends[op] = now + program.sizes[op]
            finished.append(op)
        events += 1
        starts[op] = now
        begun.append(op)
    _refuse_leftovers(program, starts, partners)
    rank_ends: list[float] = [0] * program.size
    for rank, end in zip(program.ranks, ends):
        if end > rank_ends[rank]:
            rank_ends[rank] = end
    return SimulatedRun(max(rank_ends), tuple(rank_ends), tuple(starts), tuple(ends), tuple(partners), events)


def _refuse_leftovers(program: Program, starts: list[float], partners: list[int]) -> None:
    """Say which operation never ran, or which message nobody received."""
    for op, start in enumerate(starts):
        needed = (*program.needs[op], *program.start_needs.get(op, ()))
        if start >= 0 or any(starts[other] < 0 for other in needed):
            continue
        raise ScheduleError(f"{program.describe(op)} waits for a message that nobody sends")
    for op, start in enumerate(starts):
        if start < 0:
            raise ScheduleError(
                f"{program.describe(op)} never starts: what it requires waits for it in a circle"
            )
        if program.kinds[op] == SEND and partners[op] < 0:
            raise ScheduleError(f"{program.describe(op)} is never received")
