"""The history of a schedule, step by step: messages, and the chunks of each rank. For pictures and diffs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from spmdsim.collectives.instructions import REDUCE, SEND
from spmdsim.collectives.round_table import RoundTable, ScheduleFinding, group_by_pair, match_messages
from spmdsim.collectives.schedule import Schedule
from spmdsim.collectives.verification import SymbolicRun, Symbols, list_set_ranks
from spmdsim.pictured import ShortRepr


class RoundMessage(NamedTuple):
    """Message of a step: its two ranks, its chunks, and True if the receiver reduces it."""

    source: int
    target: int
    chunks: tuple[int, ...]
    reduces: bool


@dataclass(frozen=True)
class RankState:
    """Values of all ranks after a step.

    Attributes:
        holds: for each rank, the number of the value of each chunk.
        new: for each rank, the chunks that the step changed.
    """

    holds: tuple[dict[int, int], ...]
    new: tuple[frozenset[int], ...]


@dataclass(frozen=True, repr=False)
class History(ShortRepr):
    """Executed schedule: its messages and states step by step.

    With unmatched messages only ``steps`` is filled, by each rank's own rounds.

    Attributes:
        schedule: the schedule.
        symbols: the values by number.
        steps: the messages of each step.
        states: the state before the first step and after each step.
        findings: the errors.
    """

    schedule: Schedule
    symbols: Symbols
    steps: tuple[tuple[RoundMessage, ...], ...]
    states: tuple[RankState, ...]
    findings: tuple[ScheduleFinding, ...]

    @property
    def cells(self) -> list[int]:
        """Numbers of all chunks that a rank owns at any time, scratch included."""
        return sorted({c for state in self.states for holds in state.holds for c in holds})

    def contributors(self, value: int) -> list[int]:
        """Return the ranks whose input is part of a value."""
        return list_set_ranks(self.symbols.ranks[value])


def unroll(schedule: Schedule) -> History:
    """Execute a schedule symbolically and return its history: messages and values step by step.

    The schedule may be wrong: errors are findings of the history. If rounds have a wrong form or messages do not
    match, the history has no states. In the example, rank 0 sends to rank 2 in the first step; then ranks 0 and 2
    send to ranks 1 and 3.

    Raises:
        InputError: If the schedule has too many chunks or rounds to be followed one by one.

    >>> from spmdsim.collectives import schedule_of
    >>> story = unroll(schedule_of("broadcast", "binomial", 4))
    >>> [[(m.source, m.target) for m in step] for step in story.steps]
    [[(0, 2)], [(0, 1), (2, 3)]]
    """
    table = RoundTable(schedule)
    matching = match_messages(table)
    form_findings = [*table.findings, *matching.findings]
    steps = _list_messages(table, matching.travels)
    if form_findings:
        return History(schedule, Symbols(), steps, (), tuple(form_findings))
    run = SymbolicRun(table, matching, log=True)
    if not run.findings:
        run.check_end()
    last = max((change.step for change in run.changes or ()), default=-1)
    steps += ((),) * (last + 1 - len(steps))
    return History(schedule, run.symbols, steps, _list_states(run, len(steps)), tuple(run.findings))


def _list_messages(
    table: RoundTable, travels: dict[tuple[int, int], list[int]]
) -> tuple[tuple[RoundMessage, ...], ...]:
    """Return a tuple of messages for each step, from the first step on; within a step by sender.

    A step without messages has an empty tuple. A message that no rank receives counts as not reduced.

    Args:
        table: the rounds of all ranks.
        travels: by ``(sender, receiver)``, the step of each message between them, in order. If a pair is missing,
            because its messages do not match, they count in their sender's own round.
    """
    _, receives = group_by_pair(table)
    sent_counts: dict[tuple[int, int], int] = defaultdict(int)
    by_step: dict[int, list[RoundMessage]] = defaultdict(list)
    for rank, rounds in enumerate(table.rounds):
        for number, moves in enumerate(rounds):
            for move in moves:
                if move.kind != SEND:
                    continue
                pair = (rank, move.peer)
                index = sent_counts[pair]
                sent_counts[pair] += 1
                step = travels[pair][index] if pair in travels else number
                reduces = index < len(receives[pair]) and receives[pair][index][1].kind == REDUCE
                by_step[step].append(RoundMessage(rank, move.peer, tuple(move.chunks), reduces))
    return tuple(tuple(by_step[step]) for step in range(max(by_step, default=-1) + 1))


def _list_states(run: SymbolicRun, steps: int) -> tuple[RankState, ...]:
    """Return the values of all ranks before the first step, and after each of ``steps`` steps.

    So there are ``steps + 1`` states. In the first one each rank has its inputs, and no chunk is new.

    Args:
        run: the finished run, with its log of changes.
        steps: number of steps; later changes are left out.
    """
    schedule = run.schedule
    holds = [
        {c: run.symbols.leaf(rank, c) for c in schedule.starts_with(rank)} for rank in range(schedule.size)
    ]
    nothing_new: tuple[frozenset[int], ...] = (frozenset(),) * schedule.size
    states = [RankState(tuple(dict(h) for h in holds), nothing_new)]
    changes = defaultdict(list)
    for change in run.changes or ():
        changes[change.step].append(change)
    for step in range(steps):
        new: list[set[int]] = [set() for _ in range(schedule.size)]
        for change in changes[step]:
            holds[change.rank][change.chunk] = change.value
            new[change.rank].add(change.chunk)
        states.append(RankState(tuple(dict(h) for h in holds), tuple(map(frozenset, new))))
    return tuple(states)
