"""The rounds of all ranks, checked for their form, and the matching of their messages.

Messages between a pair of ranks match in the order in which they are sent and received, as in MPI. A round posts all
its messages and ends when each is matched, so nothing relies on buffers. Verification and counting start here.
"""

from __future__ import annotations

import gc
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from spmdsim.collectives.instructions import (
    COMBINE,
    COPY,
    RECV,
    REDUCE,
    SEND,
    Chunks,
    Instruction,
    name_chunks,
)
from spmdsim.collectives.schedule import Schedule, require_schedule
from spmdsim.errors import InputError, NoAnswer, ScheduleError, many

KINDS = ("send", "recv", "reduce", "copy", "combine")


MOST_RANK_ROUNDS = 3_000_000
"""Most ranks times rounds that are generated one by one; they take some gigabytes and a minute."""
MOST_CHUNKS = 1 << 24
"""Most chunks, scratch copies included, that are followed one by one."""
MOST_FINDINGS = 1000
"""Most errors of form that are collected; more errors usually have one cause."""


@dataclass(frozen=True)
class ScheduleFinding:
    """Error or warning about a schedule.

    Attributes:
        text: a sentence.
        round: the round; None for an error at the end.
        rank: the rank; None if it concerns several.
        chunk: the chunk, or None.
        warning: True if the schedule still does what its collective specifies.
    """

    text: str
    round: int | None = None
    rank: int | None = None
    chunk: int | None = None
    warning: bool = False

    def __str__(self) -> str:
        return self.text


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's cyclic garbage collector inside the ``with`` block; yields None.

    The collector would repeatedly visit millions of small tuples, all of which are in use. It stays off
    afterwards if it was off before. Works as a decorator, too.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class ForeignError(Exception):
    """Error that an algorithm in another process raised, as text."""


def failure(error: BaseException) -> str:
    """Describe an exception that an algorithm raised, with its line."""
    if isinstance(error, ForeignError):
        return str(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} (line {where.lineno}, in {where.name})"


class RoundTable:
    """Rounds of every rank as lists, ``rounds[rank][i]``, and findings about their form."""

    def __init__(self, schedule: Schedule) -> None:
        require_schedule(schedule)
        self.schedule = schedule
        self.findings: list[ScheduleFinding] = []
        self.ports = schedule.ports
        if schedule.chunk_count > MOST_CHUNKS:
            raise InputError(
                f"{schedule.chunk_count:,} chunks are too many to follow one by one (at most {MOST_CHUNKS:,}); use fewer ranks",
                schedule=schedule.name,
            )
        self._most_moves = 4 * (schedule.size + schedule.chunk_count) + 1024
        self._limit = 64 * schedule.size + 8 * schedule.chunk_count + 4096
        self.rounds = [self._collect_rounds(0)]
        if schedule.size * len(self.rounds[0]) > MOST_RANK_ROUNDS and not self.findings:
            raise InputError(
                f"{schedule.size} ranks x {len(self.rounds[0])} rounds are too many to follow one by one (at most"
                f" {MOST_RANK_ROUNDS}); use fewer ranks, or predict the time, which has no such limit",
                schedule=schedule.name,
            )
        for rank in range(1, schedule.size):
            self.rounds.append(self._collect_rounds(rank) if len(self.findings) < MOST_FINDINGS else [])

    def _collect_rounds(self, rank: int) -> list[list[Instruction]]:
        """Return all rounds of one rank, without their wrong instructions.

        These are recorded as findings: each wrong instruction, an error of the generator (which ends the rounds), and
        more rounds than the limit of 64 per rank plus 8 per chunk plus 4096 (further rounds are left out).

        Raises:
            ScheduleError, MemoryError, NoAnswer: If the generator raises one of them.
        """
        collected: list[list[Instruction]] = []
        try:
            rounds = self.schedule.rounds(rank)
            if not isinstance(rounds, Iterable):
                words = f"rank {rank} gives {_kind(rounds)}, but an algorithm yields its rounds, lists of moves: yield [...]"
                self._add_finding(words, None, rank)
                return collected
            for moves in rounds:
                if len(collected) >= self._limit:
                    self._add_finding(f"rank {rank} does not end: more than {self._limit} rounds", None, rank)
                    break
                collected.append(self._check_round(moves, len(collected), rank))
        except (ScheduleError, MemoryError, NoAnswer):
            raise
        except (Exception, SystemExit) as error:
            self._add_finding(
                f"round {len(collected)}: rank {rank} fails: {failure(error)}", len(collected), rank
            )
        return collected

    def _add_finding(self, text: str, number: int | None, rank: int, chunk: int | None = None) -> None:
        """Record a finding."""
        self.findings.append(ScheduleFinding(text, number, rank, chunk))

    def _check_round(self, moves: object, number: int, rank: int) -> list[Instruction]:
        """Return the correct instructions of a rank's round; record a finding for each wrong one.

        There is also a finding in these cases:

        * The round is no list or tuple. A single instruction is used all the same, other values are not.
        * The round has too many instructions: more than 4 per rank and per chunk, plus 1024. None is used.
        * The rank sends or receives more messages than it has ports. All are used.

        Args:
            moves: what the generator yielded; any value.
            number: the number of the round.
            rank: the rank.
        """
        size, good = self.schedule.size, []
        for move in self._list_moves(moves, number, rank):
            if (
                type(move) is Instruction
                and type(move.peer) is int
                and (move.kind == SEND or move.kind == RECV)
                and len(move.chunks) == 1
                and 0 <= move.chunks[0] < MOST_CHUNKS
                and rank != move.peer
                and 0 <= move.peer < size
            ):
                good.append(move)  # by far the most frequent case, without further calls
                continue
            fault = self._find_fault(move, rank)
            if fault is None:
                good.append(move)
            else:
                self._add_finding(f"round {number}: rank {rank}{fault[0]}", number, rank, fault[1])
        if len(good) > self.ports:
            self._check_ports(good, number, rank)
        return good

    def _list_moves(self, moves: object, number: int, rank: int) -> Sequence[Instruction]:
        """Return a rank's round as a list of instructions, which may be wrong.

        * A list or tuple is returned as it is. If it has too many entries (more than 4 per rank and per chunk, plus
          1024), a finding is recorded and the result is [].
        * For a single instruction a finding is recorded, and the result is a list of it.
        * For any other value a finding is recorded, and the result is [].

        Args:
            moves: what the generator yielded; any value.
            number: the number of the round.
            rank: the rank.
        """
        if isinstance(moves, Instruction) or not isinstance(moves, (list, tuple)):
            self._add_finding(
                f"round {number}: rank {rank} yields {_kind(moves)}; a round is a list of moves: yield [...]",
                number,
                rank,
            )
            return [moves] if isinstance(moves, Instruction) else []
        if len(moves) > self._most_moves:
            self._add_finding(
                f"round {number}: rank {rank} has {len(moves):,} moves in its round", number, rank
            )
            return []
        return moves

    def _check_ports(self, moves: list[Instruction], number: int, rank: int) -> None:
        """Record a finding if a rank sends, or receives, more messages in a round than it has ports.

        Args:
            moves: the correct instructions of the round.
            number: the number of the round.
            rank: the rank.
        """
        sends = sum(move.kind == SEND for move in moves)
        receives = sum(move.receives for move in moves)
        for count, word in ((sends, "sends"), (receives, "receives")):
            if count > self.ports:
                ports = "one port" if self.ports == 1 else f"{self.ports} ports"
                self._add_finding(
                    f"round {number}: rank {rank} {word} {many(count, 'message')} at once, but has {ports}",
                    number,
                    rank,
                )

    def _find_fault(self, move: Instruction, rank: int) -> tuple[str, int | None] | None:
        """Return `(text, chunk)` if an instruction is wrong, else None.

        These are wrong, and the first of them is reported:

        * a value that is no instruction;
        * a local instruction whose lists of chunks have different lengths;
        * a peer that is no integer, no rank, or the rank itself;
        * a reduction in a collective without one;
        * a chunk that is negative, 2**24 or more, or named twice; or more than 2**24 chunks.

        Args:
            move: an item of a round; any value.
            rank: the rank.

        Returns:
            The text, which continues a sentence that begins with the rank, and the wrong chunk, or None if no chunk
            is concerned.
        """
        size, collective = self.schedule.size, self.schedule.collective
        if not isinstance(move, Instruction) or move.kind not in KINDS:
            return f" has {_kind(move)} in its round instead of a move", None
        if move.kind in (COPY, COMBINE):
            if len(move.source) != len(move.chunks):
                return f" {move.describe()}: the numbers of chunks differ", None
        elif not hasattr(move.peer, "__index__"):
            words = f"{move.peer!r} is no whole number: use // to divide"
            return f" wants to {move.describe()}, but {words}", None
        elif not 0 <= move.peer < size:
            return f" wants to {move.describe()}, but ranks are 0 ... {size - 1}", None
        elif move.peer == rank:
            return f" sends a message to itself ({move.describe()})", None
        if move.kind in (REDUCE, COMBINE) and not collective.reduces:
            return f" reduces, but {collective.name} reduces nothing", None
        for chunks in (move.chunks, move.source):
            if len(chunks) > MOST_CHUNKS:
                return f" names {len(chunks):,} chunks in a move", None
            lowest, highest = min(chunks, default=0), max(chunks, default=0)
            if highest >= MOST_CHUNKS:
                return f" names chunk {highest:,}: more than {MOST_CHUNKS:,} are not followed", highest
            if lowest < 0:
                return f": there is no chunk {lowest} ({move.describe()})", lowest
            if len(set(chunks)) != len(chunks) and chunks is move.chunks:
                return f" names a chunk twice ({move.describe()})", None
        return None

    @property
    def length(self) -> int:
        """Largest number of rounds of a rank."""
        return max(map(len, self.rounds), default=0)


def _kind(move: object) -> str:
    """Describe a value that is not a round, or not an instruction."""
    return f"a single move ({move.describe()})" if isinstance(move, Instruction) else repr(move)


#: A round number and a move of that round.
Place = tuple[int, Instruction]
#: The places of the messages of each pair ``(sender, receiver)``.
Places = dict[tuple[int, int], list[Place]]


@dataclass
class Matching:
    """The result of matching sends with receives.

    Attributes:
        findings: unmatched messages, wrong chunks, deadlocks.
        order: events in a possible order: ``(rank, round, True)`` if a round starts, ``(rank, round, False)`` if it
            ends.
        starts: ``starts[rank][i]`` is the global step in which the rank's round i starts.
        ends: ``ends[rank][i]`` is the global step in which it ends.
        travels: for each pair of ranks, the step in which each message travels, in order.
        steps: number of global steps in which messages travel.
        aligned: True if round i is one step on all ranks.
    """

    findings: list[ScheduleFinding] = field(default_factory=list)
    order: list[tuple[int, int, bool]] = field(default_factory=list)
    starts: list[list[int]] = field(default_factory=list)
    ends: list[list[int]] = field(default_factory=list)
    travels: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    steps: int = 0
    aligned: bool = True


def match_messages(table: RoundTable) -> Matching:
    """Match each send with its receive, and order the rounds of all ranks so that they can run.

    The k-th send from one rank to another matches the k-th receive. Findings of the result are, first, messages
    without a partner, and receives of other chunks than are sent. With these there is no order. Otherwise the rounds
    are ordered; then ranks that wait for each other are a finding. If a pair of ranks has unequal numbers of sends and
    receives, their chunks are not compared.

    Args:
        table: the rounds.
    """
    sends, receives = group_by_pair(table)
    result = Matching()
    links: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for pair in sorted(sends.keys() | receives.keys()):
        sent, received = sends.get(pair, []), receives.get(pair, [])
        if len(sent) != len(received):
            result.findings += _report_unmatched(pair, sent, received)
            continue
        for (i, out), (j, into) in zip(sent, received):
            if i != j:
                result.aligned = False
            links[pair[0], i].append((pair[1], j))
            links[pair[1], j].append((pair[0], i))
            _compare_chunks(table, pair, (i, out), (j, into), result.findings)
    if result.findings:
        result.findings.sort(key=lambda f: (f.round or 0, f.rank or 0))
        return result
    if result.aligned:
        _order_in_lock_step(table, result)
    else:
        _order_by_dependency(table, links, result)
    if not result.findings:
        starts = result.starts
        for (source, target), sent in sends.items():
            received = receives[source, target]
            result.travels[source, target] = [
                max(starts[source][i], starts[target][j]) for (i, _), (j, _) in zip(sent, received)
            ]
    return result


def checked_matching(schedule: Schedule) -> tuple[RoundTable, Matching]:
    """Return the rounds of a schedule and which send belongs to which receive.

    Args:
        schedule: the schedule.

    Raises:
        ScheduleError: If a round has a wrong form, messages do not match, or ranks wait for each other.
    """
    table = RoundTable(schedule)
    matching = match_messages(table)
    for finding in (*table.findings, *matching.findings):
        raise ScheduleError(finding.text, schedule=schedule.name)
    return table, matching


def group_by_pair(table: RoundTable) -> tuple[Places, Places]:
    """Return two dicts by pair of ranks: of their sends, and of their receives.

    The key is ``(sender, receiver)``. The value is a list of ``(round number, instruction)``, in the order of the
    rounds. A pair without messages has no key; the dicts return an empty list for it.

    Args:
        table: the rounds.
    """
    sends: Places = defaultdict(list)
    receives: Places = defaultdict(list)
    for rank, rounds in enumerate(table.rounds):
        for number, moves in enumerate(rounds):
            for move in moves:
                if move.kind == SEND:
                    sends[rank, move.peer].append((number, move))
                elif move.receives:
                    receives[move.peer, rank].append((number, move))
    return sends, receives


def _report_unmatched(
    pair: tuple[int, int], sent: list[Place], received: list[Place]
) -> Iterator[ScheduleFinding]:
    """Yield a finding for each send and each receive of a pair of ranks that has no partner.

    Args:
        pair: the sender and the receiver.
        sent: the sends of the pair, as (round number, instruction).
        received: the receives of the pair, as (round number, instruction); more or fewer than the sends.
    """
    source, target = pair
    sides = (
        (source, "sends {} to", target, "receives", _find_unpaired(sent, received)),
        (target, "waits for {} from", source, "sends", _find_unpaired(received, sent)),
    )
    for rank, does, peer, lacks, surplus in sides:
        for number, move in surplus:
            what = f"rank {rank} {does.format(name_chunks(move.chunks))} rank {peer}"
            text = f"round {number}: {what}: nobody {lacks} this message"
            yield ScheduleFinding(text, number, rank, _first(move.chunks))


def _find_unpaired(messages: list[Place], counterparts: list[Place]) -> list[Place]:
    """Return the messages that have no counterpart on the other rank; [] if all have one.

    Messages of equal round numbers are paired. If more messages remain than are too many, the two ranks number
    their rounds differently. Then messages are paired in order, and the last ones remain.

    Args:
        messages: the sends of a pair of ranks, or its receives, as (round number, instruction).
        counterparts: its receives, or its sends.
    """
    unpaired_in_round = Counter(number for number, _ in counterparts)
    unpaired = []
    for message in messages:
        number = message[0]
        if unpaired_in_round[number]:
            unpaired_in_round[number] -= 1
        else:
            unpaired.append(message)
    surplus = len(messages) - len(counterparts)
    return unpaired if len(unpaired) == surplus else messages[len(counterparts) :]


def _first(chunks: Chunks) -> int | None:
    """Return the first chunk number, or None if there is none."""
    return chunks[0] if chunks else None


def _compare_chunks(
    table: RoundTable, pair: tuple[int, int], out: Place, into: Place, findings: list[ScheduleFinding]
) -> None:
    """Record a finding if the receiver of a message expects other chunks than the sender sends.

    Numbers from the chunk count on are scratch copies, and count as their original chunks: of 4 chunks, 5 counts as 1.

    Args:
        table: the rounds.
        pair: the sender and the receiver.
        out: the round and the instruction of the sender.
        into: the round and the instruction of the receiver.
        findings: the list to which a finding is appended.
    """
    number, sent, expected = out[0], out[1].chunks, into[1].chunks
    if sent == expected:
        return
    count = table.schedule.chunk_count
    if [c % count for c in sent] == [c % count for c in expected]:
        return
    text = (
        f"round {number}: rank {pair[0]} sends {name_chunks(sent)} to rank {pair[1]},"
        f" which expects {name_chunks(expected)}"
    )
    different = (a for a, b in zip(sent, expected) if a % count != b % count)
    findings.append(ScheduleFinding(text, number, pair[0], next(different, _first(sent))))


def _order_in_lock_step(table: RoundTable, result: Matching) -> None:
    """Fill the order of steps into ``result``, for ranks that run equal rounds together.

    The caller has checked that each message is sent and received in rounds of one number. In the order, all ranks
    start round k before one of them ends it. ``starts`` and ``ends`` number the steps by rounds; ``steps`` counts
    the rounds in which at least one message travels.

    Args:
        table: the rounds.
        result: its fields ``order``, ``starts``, ``ends`` and ``steps`` are filled; no finding is added.
    """
    ranks = range(len(table.rounds))
    result.starts = [list(range(len(rounds))) for rounds in table.rounds]
    # A round starts and ends in one step, so both lists may be one object.
    result.ends = result.starts
    for number in range(table.length):
        active = [r for r in ranks if number < len(table.rounds[r])]
        result.order += [(r, number, True) for r in active]
        result.order += [(r, number, False) for r in active]
        result.steps += any(move.peer >= 0 for r in active for move in table.rounds[r][number])


def _order_by_dependency(
    table: RoundTable, links: dict[tuple[int, int], list[tuple[int, int]]], result: Matching
) -> None:
    """Fill ``result`` with the earliest order of the rounds in which each message is possible.

    A rank starts a round as soon as it has ended the round before. It ends the round when the partners of all its
    messages have started theirs: so a message travels in the step in which the later of its two rounds starts. Rounds
    without messages take no step.

    Args:
        table: the rounds.
        links: for each ``(rank, round)`` with messages, the ``(rank, round)`` of the partner of each message.
        result: its fields ``order``, ``starts``, ``ends`` and ``steps`` are filled. A finding is added if ranks wait
            for each other; then the order has only the rounds that can run.
    """
    size = len(table.rounds)
    result.starts, result.ends = [[] for _ in range(size)], [[] for _ in range(size)]
    waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
    clock = [0] * size
    ready = deque(range(size))
    while ready:
        rank = ready.popleft()
        following = len(result.starts[rank])
        if following:  # End the round that runs, or wait for a partner that has not started its round.
            number = following - 1
            late = [(p, j) for p, j in links[rank, number] if len(result.starts[p]) <= j]
            if late:
                waiting[late[0]].append(rank)
                continue
            began = [result.starts[p][j] for p, j in links[rank, number]]
            if began:
                clock[rank] = max(clock[rank], *began) + 1
            result.ends[rank].append(max(0, clock[rank] - 1))
            result.order.append((rank, number, False))
        if following < len(table.rounds[rank]):  # Start the next round, and wake the ranks that wait for it.
            result.starts[rank].append(clock[rank])
            result.order.append((rank, following, True))
            ready.extend(waiting.pop((rank, following), ()))
            ready.append(rank)
    result.steps = max(clock)
    stuck = {rank: awaited for awaited, ranks in waiting.items() for rank in ranks}
    if stuck:
        result.findings.append(_report_deadlock(table, stuck, result))


def _report_deadlock(
    table: RoundTable, stuck: dict[int, tuple[int, int]], result: Matching
) -> ScheduleFinding:
    """Return a finding about one cycle of ranks that wait for each other.

    It is found by following the waits from the lowest waiting rank on, and named from its lowest rank on. For example,
    if 0 waits for 3, 3 for 1 and 1 for 3, the text has "1 → 3 → 1".

    Args:
        table: the rounds.
        stuck: for each rank that waits, the rank and round that it waits for.
        result: the matching; its ``starts`` show the round in which a rank waits.
    """
    rank = min(stuck)
    chain: list[int] = []
    # All messages have partners, so a rank that another one waits for is waiting itself.
    while rank not in chain:
        chain.append(rank)
        rank = stuck[rank][0]
    cycle = chain[chain.index(rank) :]
    lowest = cycle.index(min(cycle))
    cycle = cycle[lowest:] + cycle[:lowest]
    first = cycle[0]
    number = len(result.starts[first]) - 1
    moves = "; ".join(m.describe() for m in table.rounds[first][number])
    path = " → ".join(map(str, [*cycle, first]))
    text = f"round {number}: ranks wait for each other: {path} (rank {first}: {moves})"
    return ScheduleFinding(text, number, first)
