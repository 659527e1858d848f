"""Who receives which message, and in which order the rounds can run: unmatched messages and deadlocks.

Messages between a pair of ranks match in the order they are sent and received, as in MPI. A round posts
all its messages and ends when each has been taken up by its partner, so nothing relies on buffers.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

from spmdsim.collectives.instructions import SEND, Chunks, Instruction, name_chunks
from spmdsim.collectives.round_table import RoundTable, ScheduleFinding

Place = tuple[int, Instruction]
Places = dict[tuple[int, int], list[Place]]
"""A round number and a move of that round."""


@dataclass
class Matching:
    """The result of matching.

    Attributes:
        findings: unmatched messages, wrong chunks, deadlocks.
        order: events in an order that can happen: ``(rank, round, True)`` a round starts, ``False`` it ends.
        starts: ``starts[rank][i]`` is the global step in which the rank's round i starts.
        ends: likewise the step in which it ends.
        travels: per pair of ranks, the step in which each message travels, in order.
        steps: number of global steps in which messages travel.
        aligned: whether round i means the same step on every rank.
    """

    findings: list[ScheduleFinding] = field(default_factory=list)
    order: list[tuple[int, int, bool]] = field(default_factory=list)
    starts: list[list[int]] = field(default_factory=list)
    ends: list[list[int]] = field(default_factory=list)
    travels: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    steps: int = 0
    aligned: bool = True


def match(table: RoundTable) -> Matching:
    """Match all messages of a table and put its rounds in order."""
    sends, receives = _by_pair(table)
    result = Matching()
    links: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for pair in sorted(sends.keys() | receives.keys()):
        sent, got = sends.get(pair, []), receives.get(pair, [])
        if len(sent) != len(got):
            result.findings += _unmatched(pair, sent, got)
            continue
        for (i, out), (j, into) in zip(sent, got):
            if i != j:
                result.aligned = False
            links[pair[0], i].append((pair[1], j))
            links[pair[1], j].append((pair[0], i))
            _compare_chunks(table, pair, (i, out), (j, into), result.findings)
    if result.findings:
        result.findings.sort(key=lambda f: (f.round or 0, f.rank or 0))
        return result
    if result.aligned:
        _in_lock_step(table, result)
    else:
        _by_dependency(table, links, result)
    if not result.findings:
        starts = result.starts
        for (source, target), sent in sends.items():
            got = receives[source, target]
            result.travels[source, target] = [
                max(starts[source][i], starts[target][j]) for (i, _), (j, _) in zip(sent, got)
            ]
    return result


def _by_pair(table: RoundTable) -> tuple[Places, Places]:
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


def _unmatched(pair: tuple[int, int], sent: list[Place], got: list[Place]) -> list[ScheduleFinding]:
    """The messages of one pair that have no partner."""
    findings = []
    source, target = pair
    for number, move in _surplus(sent, got):
        text = (
            f"round {number}: rank {source} sends {name_chunks(move.chunks)} to rank {target}:"
            " nobody receives this message"
        )
        findings.append(ScheduleFinding(text, number, source, _first(move.chunks)))
    for number, move in _surplus(got, sent):
        text = (
            f"round {number}: rank {target} waits for {name_chunks(move.chunks)} from rank {source}:"
            " nobody sends this message"
        )
        findings.append(ScheduleFinding(text, number, target, _first(move.chunks)))
    return findings


def _surplus(these: list[Place], those: list[Place]) -> list[Place]:
    """What ``these`` have beyond ``those``: by round number where that explains it, else the last ones."""
    rounds = Counter(number for number, _ in those)
    extra = []
    for place in these:
        if rounds[place[0]]:
            rounds[place[0]] -= 1
        else:
            extra.append(place)
    return extra if len(extra) == len(these) - len(those) else these[len(those) :]


def _first(chunks: Chunks) -> int | None:
    return chunks[0] if chunks else None


def _compare_chunks(
    table: RoundTable, pair: tuple[int, int], out: Place, into: Place, findings: list[ScheduleFinding]
) -> None:
    """The receiver must expect the chunks that are sent; scratch chunks may stand for their originals."""
    sent, expected = out[1].chunks, into[1].chunks
    if sent == expected:
        return
    count = table.schedule.chunk_count
    if [c % count for c in sent] == [c % count for c in expected]:
        return
    text = (
        f"round {out[0]}: rank {pair[0]} sends {name_chunks(sent)} to rank {pair[1]},"
        f" which expects {name_chunks(expected)}"
    )
    different = (a for a, b in zip(sent, expected) if a % count != b % count)
    findings.append(ScheduleFinding(text, out[0], pair[0], next(different, _first(sent))))


def _in_lock_step(table: RoundTable, result: Matching) -> None:
    ranks = range(len(table.rounds))
    result.starts = [list(range(len(rounds))) for rounds in table.rounds]
    result.ends = result.starts
    for number in range(table.length):
        active = [r for r in ranks if number < len(table.rounds[r])]
        result.order += [(r, number, True) for r in active]
        result.order += [(r, number, False) for r in active]
        result.steps += any(_has_messages(table.rounds[r][number]) for r in active)


def _has_messages(moves: list[Instruction]) -> bool:
    return any(move.peer >= 0 for move in moves)


def _by_dependency(
    table: RoundTable, links: dict[tuple[int, int], list[tuple[int, int]]], result: Matching
) -> None:
    """Start each round as early as its rank allows; it ends when all its partners have started theirs."""
    size = len(table.rounds)
    result.starts, result.ends = [[] for _ in range(size)], [[] for _ in range(size)]
    waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
    clock = [0] * size
    ready = deque(range(size))
    while ready:
        rank = ready.popleft()
        number = len(result.starts[rank])
        if number:
            number -= 1
            late = [(p, j) for p, j in links[rank, number] if len(result.starts[p]) <= j]
            if late:
                waiting[late[0]].append(rank)
                continue
            began = [result.starts[p][j] for p, j in links[rank, number]]
            if began:
                clock[rank] = max(clock[rank], *began) + 1
            result.ends[rank].append(max(0, clock[rank] - 1))
            result.order.append((rank, number, False))
            number += 1
        if number < len(table.rounds[rank]):
            result.starts[rank].append(clock[rank])
            result.order.append((rank, number, True))
            ready.extend(waiting.pop((rank, number), ()))
            ready.append(rank)
    result.steps = max(clock)
    stuck = {rank: place for place, ranks in waiting.items() for rank in ranks}
    if stuck:
        result.findings.append(_deadlock(table, stuck, result))


def _deadlock(table: RoundTable, stuck: dict[int, tuple[int, int]], result: Matching) -> ScheduleFinding:
    rank = min(stuck)
    seen: list[int] = []
    while rank not in seen:  # all messages have partners: who is waited for waits, too
        seen.append(rank)
        rank = stuck[rank][0]
    cycle = seen[seen.index(rank) :]
    lowest = cycle.index(min(cycle))
    cycle = cycle[lowest:] + cycle[:lowest]
    first = cycle[0]
    number = len(result.starts[first]) - 1
    moves = "; ".join(m.describe() for m in table.rounds[first][number])
    path = " → ".join(map(str, [*cycle, first]))
    text = f"round {number}: ranks wait for each other: {path} (rank {first}: {moves})"
    return ScheduleFinding(text, number, first)
