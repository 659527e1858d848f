"""Event simulation: programs of sends, receives and calculations of every rank in the LogGOPS model.

It also prices schedules without regular rounds. The semantics are those of LogGOPSim (Hoefler, Schneider, Lumsdaine,
HPDC 2010). A send of s bytes that starts at t keeps its cpu busy for ``o + (s-1) O`` and its network card for
``g + (s-1) G``; its first byte arrives at ``t + o + L``. It is received when cpu and card of the receiver are free, and
keeps them busy for ``o + (s-1) max(O, G)`` and ``g + (s-1) G``. A send up to ``S`` bytes ends once it has started, a
longer one when it is matched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from spmdsim.collectives import Schedule
from spmdsim.cost.machine import Machine
from spmdsim.errors import ScheduleError, many
from spmdsim.pictured import Pictured, ShortRepr

SEND, RECV, CALC = 0, 1, 2
KIND_NAMES = ("send", "recv", "calc")


class EventProgram(Pictured):
    """Operations of all ranks as a graph that can be simulated.

    An operation may require that others have ended (``after``) or only that they have started (``started``), as
    ``requires`` and ``irequires`` do in GOAL files. A receive matches sends of the named rank with its tag, in the
    order in which they arrive.

    Raises:
        ScheduleError: If there are no ranks.

    >>> program = EventProgram(2)
    >>> first = program.send(0, 1, 8)
    >>> answer = program.recv(0, 1, 8, after=[first])
    >>> program.describe(answer)
    'rank 0: recv 8 bytes from 1, tag 0'
    """

    def __init__(self, ranks: int) -> None:
        if ranks < 1:
            raise ScheduleError(f"EventProgram: ranks must be 1 or more, got {ranks}")
        self.size = ranks
        self.kinds: list[int] = []
        self.ranks: list[int] = []
        self.peers: list[int] = []
        self.sizes: list[float] = []
        self.tags: list[int] = []
        self.cpus: list[int] = []
        self.cards: list[int] = []
        self.needs: list[Sequence[int]] = []
        self.start_needs: dict[int, Sequence[int]] = {}

    def __len__(self) -> int:
        return len(self.kinds)

    def send(
        self,
        rank: int,
        target: int,
        nbytes: float,
        tag: int = 0,
        after: Iterable[int] = (),
        started: Iterable[int] = (),
        cpu: int = 0,
        card: int = 0,
    ) -> int:
        """Add a send of ``nbytes`` and return the operation's number.

        Args:
            rank: the rank that sends.
            target: the rank that receives.
            nbytes: the bytes of the message.
            tag: the tag, which a receive has to name.
            after: the numbers of operations that must have ended before.
            started: the numbers of operations that must have started before.
            cpu: the number of the rank's processor that it uses.
            card: the number of the rank's network card that it uses.

        Raises:
            ScheduleError: If a rank does not exist or ``nbytes`` is negative. Numbers of operations are checked when
                the program is simulated.
        """
        return self._add(SEND, rank, target, nbytes, tag, after, started, cpu, card)

    def recv(
        self,
        rank: int,
        source: int,
        nbytes: float,
        tag: int = 0,
        after: Iterable[int] = (),
        started: Iterable[int] = (),
        cpu: int = 0,
        card: int = 0,
    ) -> int:
        """Add a receive of a message of the rank ``source`` and return the operation's number.

        The other arguments are as in :meth:`send`, but ``cpu`` and ``card`` have no effect: a message uses the
        receiver's processor and network card with the numbers that its send names.
        """
        return self._add(RECV, rank, source, nbytes, tag, after, started, cpu, card)

    def calc(
        self,
        rank: int,
        duration: float,
        after: Iterable[int] = (),
        started: Iterable[int] = (),
        cpu: int = 0,
        tag: int = 0,
    ) -> int:
        """Add a calculation that keeps a processor busy for ``duration``; return the operation's number.

        ``duration`` is in the time unit of the simulator's parameters. The other arguments are as in :meth:`send`.
        """
        return self._add(CALC, rank, rank, duration, tag, after, started, cpu, 0)

    def require(self, op: int, after: Iterable[int] = (), started: Iterable[int] = ()) -> None:
        """Add requirements to an operation.

        It then also waits until the operations ``after`` have ended and the operations ``started`` have started.
        """
        self.needs[op] = (*self.needs[op], *after)
        if added := tuple(started):
            self.start_needs[op] = (*self.start_needs.get(op, ()), *added)

    def _add(
        self,
        kind: int,
        rank: int,
        peer: int,
        size: float,
        tag: int,
        after: Iterable[int],
        started: Iterable[int],
        cpu: int,
        card: int,
    ) -> int:
        """Append an operation and return its number, from 0.

        Args:
            kind: :data:`SEND`, :data:`RECV` or :data:`CALC`.
            rank: the rank that runs it.
            peer: the other rank of a message; ``rank`` itself for a calculation.
            size: the bytes of a message, or the duration of a calculation in the unit of the simulator's parameters.
            tag: the tag of a message; 0 for a calculation.
            after: the numbers of operations that must have ended before.
            started: the numbers of operations that must have started before.
            cpu: the number of the processor that it uses.
            card: the number of the network card that it uses.

        Raises:
            ScheduleError: If a rank does not exist or the size is negative. Numbers of operations are checked when the
                program is simulated.
        """
        if not 0 <= rank < self.size or not 0 <= peer < self.size:
            raise ScheduleError(
                f"{KIND_NAMES[kind]} of rank {rank} with rank {peer}: ranks are 0 ... {self.size - 1}"
            )
        if size < 0:
            raise ScheduleError(f"{KIND_NAMES[kind]} of rank {rank} has size {size}; sizes are >= 0")
        op = len(self.kinds)
        self.kinds.append(kind)
        self.ranks.append(rank)
        self.peers.append(peer)
        self.sizes.append(size)
        self.tags.append(tag)
        self.cpus.append(cpu)
        self.cards.append(card)
        self.needs.append(tuple(after))
        if required_starts := tuple(started):
            self.start_needs[op] = required_starts
        return op

    def describe(self, op: int) -> str:
        """Return a text such as ``rank 0: send 8 bytes to 1, tag 0`` for operation number ``op``.

        A calculation has its duration, as in ``rank 0: calc 5``.
        """
        rank, size, kind = self.ranks[op], self.sizes[op], self.kinds[op]
        if kind == CALC:
            return f"rank {rank}: calc {size:g}"
        direction = "to" if kind == SEND else "from"
        return f"rank {rank}: {KIND_NAMES[kind]} {many(size, 'byte', written=f'{size:g}')} {direction} {self.peers[op]}, tag {self.tags[op]}"

    def channels(self) -> list[int]:
        """Return a channel number per operation, for (sender, receiver, tag); -1 for calculations.

        A send and a receive that can match have equal numbers. The numbers count from 0, in the order in which
        channels first occur.
        """
        numbers: dict[tuple[int, int, int], int] = {}
        channel_of = []
        for kind, rank, peer, tag in zip(self.kinds, self.ranks, self.peers, self.tags):
            key = (rank, peer, tag) if kind == SEND else (peer, rank, tag)
            channel_of.append(-1 if kind == CALC else numbers.setdefault(key, len(numbers)))
        return channel_of


def _followers(count: int, needs_of: Iterable[tuple[int, Sequence[int]]]) -> list[list[int]]:
    """Return, for each operation, the list of the operations that wait for it.

    For example, if operations 1 and 2 both require operation 0, entry 0 is ``[1, 2]``.
    """
    after: list[list[int]] = [[] for _ in range(count)]
    for op, needs in needs_of:
        for required in needs:
            if not 0 <= required < count:
                raise ScheduleError(f"operation {op} requires operation {required}; there are {count}")
            after[required].append(op)
    return after


def _slots(ranks: Sequence[int], numbers: Sequence[int]) -> list[int]:
    """Return a number per operation that tells the CPUs, or the network cards, of all ranks apart."""
    width = max(numbers, default=0) + 1
    return [rank * width + number for rank, number in zip(ranks, numbers)]


def program_of(schedule: Schedule, nbytes: int, itemsize: int = 1, gamma: float = 0.0) -> EventProgram:
    """Convert a schedule to a program of the event simulator.

    An operation starts after all operations of the rank's previous round. The instructions of a round become:

    - a send: a send, with the number of the round as tag;
    - a receive, with or without reduction: a receive with this tag;
    - a reduction, if ``gamma`` is above 0: a calculation. If it reduces received data, it follows their
      receive. If it reduces local data, it follows all operations that its round lists before it;
    - a local copy: nothing.

    Args:
        schedule: an algorithm at a rank count.
        nbytes: message size as the collective counts it, rounded up to whole elements.
        itemsize: bytes per element; chunks are cut between elements.
        gamma: time per reduced byte, in the unit of the simulator's parameters.

    >>> from spmdsim.collectives import schedule_of
    >>> len(program_of(schedule_of("all_reduce", "ring", 4), 4096))
    48
    """
    program = EventProgram(schedule.size)
    sizes = [items * itemsize for items in schedule.chunk_elements(-(-nbytes // itemsize))]
    chunk_count = len(sizes)
    for rank in range(schedule.size):
        previous: tuple[int, ...] = ()
        for number, moves in enumerate(schedule.rounds(rank)):
            current: list[int] = []
            for move in moves:
                chunks = move.chunks if move.peer >= 0 or move.kind == "combine" else ()
                amount = sum(sizes[chunk % chunk_count] for chunk in chunks)
                if move.kind == "send":
                    current.append(program.send(rank, move.peer, amount, number, previous))
                elif move.kind in ("recv", "reduce"):
                    current.append(program.recv(rank, move.peer, amount, number, previous))
                if move.kind in ("reduce", "combine") and gamma * amount > 0:
                    needs = current[-1:] if move.kind == "reduce" else (*current, *previous)
                    current.append(program.calc(rank, gamma * amount, needs, tag=number))
            previous = tuple(current) or previous
    return program


@dataclass(frozen=True)
class LogGOPS(Pictured):
    """The parameters of the LogGOPS model, in any unit of time (LogGOPSim uses nanoseconds).

    Attributes:
        L: latency of the network.
        o: cpu time per message on each side.
        g: gap between messages on a network card.
        G: time per byte on the network.
        O: cpu time per byte.
        S: longest message that is sent without waiting for its receiver.

    >>> LogGOPS().S
    65535
    """

    L: float = 2500
    o: float = 1500
    g: float = 1000
    G: float = 6
    O: float = 0
    S: float = 65535

    @classmethod
    def from_machine(cls, machine: Machine, eager_bytes: float | None = None) -> LogGOPS:
        """Return parameters in seconds that follow a machine.

        A short message takes alpha and each further byte beta. A quarter of alpha is the processor's time on each
        side if the machine has no ``overhead``.

        Args:
            machine: the machine.
            eager_bytes: longest message that is sent without waiting for its receiver; None for that of the machine,
                or 65,536 if it is unknown.

        >>> LogGOPS.from_machine(Machine("m", alpha=1.0, beta=0.5, overhead=0.125, eager_bytes=10))
        LogGOPS(L=0.75, o=0.125, g=0.0, G=0.5, O=0.0, S=10)
        """
        overhead = machine.overhead or machine.alpha / 4
        limit = (machine.eager_bytes or 65536) if eager_bytes is None else eager_bytes
        latency = machine.alpha - 2 * overhead
        return cls(latency, overhead, 0.0, machine.beta, machine.overhead_per_byte, limit)


@dataclass(frozen=True, repr=False)
class SimulatedRun(ShortRepr):
    """The result of a simulation; times are in the unit of the parameters.

    Attributes:
        makespan: time at which the last rank ended.
        rank_ends: time at which each rank ended.
        starts: start time of each operation; for a receive, the time at which its message left the network.
        ends: time at which each operation released its processor.
        partners: for each send its receive, for each receive its send, and -1 for calculations.
        events: number of processed operations and messages.
    """

    makespan: float
    rank_ends: tuple[float, ...]
    starts: tuple[float, ...]
    ends: tuple[float, ...]
    partners: tuple[int, ...]
    events: int


def simulate_program(program: EventProgram, parameters: LogGOPS | None = None) -> SimulatedRun:
    """Run a program in simulated time.

    The module's text has the rules of the model. All operations without requirements are ready at time 0.

    Args:
        program: the operations of all ranks. Sizes of calculations are in the time unit of the parameters.
        parameters: the LogGOPS parameters; None for those of LogGOPSim, in nanoseconds.

    Returns:
        The times of all operations and ranks, in the time unit of the parameters.

    Raises:
        ScheduleError: If operations never start, messages are never received, or an operation requires one that does
            not exist.

    >>> program = EventProgram(2)
    >>> _ = program.send(0, 1, 1), program.recv(1, 0, 1)
    >>> simulate_program(program).rank_ends
    (1500, 5500)
    """
    # Use one long loop over plain lists, because a function call per event would halve the several hundred thousand
    # events per second.
    p = parameters or LogGOPS()
    total = len(program)
    kinds, kind_of, channels = program.kinds, program.kinds.__getitem__, program.channels()
    cpus, cards = (_slots(program.ranks, numbers) for numbers in (program.cpus, program.cards))
    to_cpu, to_card = (_slots(program.peers, numbers) for numbers in (program.cpus, program.cards))
    # Share one tuple (cpu time of a send, cpu time of a receive, card time, eager) per size, so it stays in the cache.
    by_size = {size: _costs(size, p) for size in set(program.sizes)}
    costs = [by_size[size] for size in program.sizes]
    travel = p.o + p.L
    followers = _followers(total, enumerate(program.needs))
    on_start = _followers(total, program.start_needs.items()) if program.start_needs else None
    waiting = [len(needs) for needs in program.needs]
    for op, needs in program.start_needs.items():
        waiting[op] += len(needs)
    cpu_free: list[float] = [0] * (max(cpus + to_cpu, default=0) + 1)
    card_out: list[float] = [0] * (max(cards + to_card, default=0) + 1)
    card_in = list(card_out)
    # Queues of posted receives and arrived messages per channel, linked through ``after``: -1 ends a queue.
    posted = [-1] * (max(channels, default=-1) + 1)
    arrived, last = list(posted), list(posted)
    after = [-1] * total
    starts: list[float] = [-1] * total
    ends: list[float] = [-1] * total
    ready: list[float] = [0] * total  # time at which all required operations have ended
    taken: list[tuple[float, float]] = [(0, 0)] * total
    partners = [-1] * total
    # Group events by time, because regular programs have many at one moment, which then need no sorting.
    moments: list[float] = []
    events_at: dict[float, list[int]] = {}
    current: Iterator[int] = iter(())

    def push(at: float, event: int) -> None:
        """Queue an event at a time."""
        if at in events_at:
            events_at[at].append(event)
        else:
            events_at[at] = [event]
            heappush(moments, at)

    freed = [op for op in range(total) if not waiting[op]]
    finished: list[int] = []
    started: list[int] = []
    events = 0
    now: float = -1  # before the first moment
    while True:
        # 1. Release the operations that waited for operations that have finished or started.
        for op in finished:
            end = ends[op]
            for follower in followers[op]:
                waiting[follower] -= 1
                if end > ready[follower]:
                    ready[follower] = end
                if not waiting[follower]:
                    freed.append(follower)
        if on_start:
            for op in started:
                for follower in on_start[op]:
                    waiting[follower] -= 1
                    if not waiting[follower]:
                        freed.append(follower)
        finished.clear()
        started.clear()
        # 2. Queue the released sends and calculations; post the released receives.
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
                    push(at if at > now else now, op)
                    continue
                # A receive takes no time itself: it is posted, or takes a message that has arrived.
                events += 1
                started.append(op)
                channel = channels[op]
                send = arrived[channel]
                if send < 0:
                    if posted[channel] < 0:
                        posted[channel] = op
                    else:
                        after[last[channel]] = op
                    last[channel] = op
                    continue
                arrived[channel] = after[send]
                starts[op], end = taken[send]
                ends[op] = max(end, now, ready[op])
                partners[op], partners[send] = send, op
                finished.append(op)
                if not costs[send][3]:
                    ends[send] = max(ends[send], now)
                    finished.append(send)
            freed.clear()
            if finished or started:
                continue
        # 3. Take the next event of this moment, or move to the next moment. The simulation ends after the last one.
        op = next(current, -1)
        if op < 0:
            events_at.pop(now, None)
            if not moments:
                break
            now = heappop(moments)
            current = iter(events_at[now])
            continue
        # 4. Events from ``total`` on are messages that arrive: match the message with a posted receive, or store it.
        if op >= total:
            send = op - total
            cpu, card = to_cpu[send], to_card[send]
            at = cpu_free[cpu]
            if card_in[card] > at:
                at = card_in[card]
            if at > now:
                push(at, op)
                continue
            events += 1
            _, busy, wire, eager = costs[send]
            cpu_free[cpu] = end = now + busy
            card_in[card] = now + wire
            channel = channels[send]
            op = posted[channel]
            if op < 0:
                taken[send] = (now, end)
                if arrived[channel] < 0:
                    arrived[channel] = send
                else:
                    after[last[channel]] = send
                last[channel] = send
                continue
            posted[channel] = after[op]
            starts[op], ends[op] = now, end if end > ready[op] else ready[op]
            partners[op], partners[send] = send, op
            finished.append(op)
            if not eager:
                ends[send] = max(ends[send], now)
                finished.append(send)
            continue
        # 5. Run a send or a calculation, or queue it again if its processor or network card is busy.
        cpu = cpus[op]
        at = cpu_free[cpu]
        if kinds[op] == SEND:
            card = cards[op]
            if card_out[card] > at:
                at = card_out[card]
            if at > now:
                push(at, op)
                continue
            busy, _, wire, eager = costs[op]
            cpu_free[cpu] = ends[op] = now + busy
            card_out[card] = now + wire
            push(now + travel, op + total)
            if eager:
                finished.append(op)
        else:
            if at > now:
                push(at, op)
                continue
            cpu_free[cpu] = ends[op] = now + program.sizes[op]
            finished.append(op)
        events += 1
        starts[op] = now
        started.append(op)
    _refuse_leftovers(program, starts, partners)
    rank_ends = _find_rank_ends(program, ends)
    return SimulatedRun(max(rank_ends), rank_ends, tuple(starts), tuple(ends), tuple(partners), events)


def _find_rank_ends(program: EventProgram, ends: Sequence[float]) -> tuple[float, ...]:
    """Return the time at which the last operation of each rank ends; 0 for a rank without operations.

    ``ends`` has the end of each operation of the program.
    """
    rank_ends: list[float] = [0] * program.size
    for rank, end in zip(program.ranks, ends):
        rank_ends[rank] = max(rank_ends[rank], end)
    return tuple(rank_ends)


def _costs(size: float, p: LogGOPS) -> tuple[float, float, float, bool]:
    """Return ``(sender, receiver, card, eager)`` of a message of this size.

    The first three are the times for which it occupies the sender's processor, the receiver's processor, and the
    network card on each side. ``eager`` is True if it is sent without waiting for its receiver: up to ``p.S`` bytes.

    Args:
        size: the bytes of the message.
        p: the parameters of the model.
    """
    more = size - 1 if size > 0 else 0
    return p.o + more * p.O, p.o + more * max(p.O, p.G), p.g + more * p.G, size <= p.S


def _refuse_leftovers(program: EventProgram, starts: list[float], partners: list[int]) -> None:
    """Raise ScheduleError if an operation never ran, or a message was never received.

    The error names the first operation that never ran although all operations that it requires did: it waits
    for a message that no rank sends. If there is none, it names the first operation that never ran because
    operations require each other, or the first send that was never received.

    Args:
        program: the operations of all ranks.
        starts: the start of each operation; negative if it never ran.
        partners: the matched operation of each send and receive; -1 without one.
    """
    for op, start in enumerate(starts):
        needed = (*program.needs[op], *program.start_needs.get(op, ()))
        if start >= 0 or any(starts[required] < 0 for required in needed):
            continue
        raise ScheduleError(f"{program.describe(op)} waits for a message that no rank sends")
    for op, start in enumerate(starts):
        if start < 0:
            raise ScheduleError(
                f"{program.describe(op)} never starts: the operations that it requires wait for it; remove one requirement"
            )
        if program.kinds[op] == SEND and partners[op] < 0:
            raise ScheduleError(f"{program.describe(op)} is never received")
