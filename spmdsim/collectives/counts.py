"""Counting: messages, bytes and reductions per rank, steps and the critical path of a schedule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spmdsim.collectives.instructions import COMBINE, COPY, REDUCE, SEND, Instruction
from spmdsim.collectives.matching import Matching, match
from spmdsim.collectives.round_table import RoundTable, collector_paused
from spmdsim.collectives.schedule import Schedule
from spmdsim.errors import InputError, ScheduleError
from spmdsim.pictured import ShortRepr

Ints = NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class Counts(ShortRepr):
    """What a schedule moves and reduces, per rank and in total. All sizes in bytes.

    Attributes:
        steps: rounds in which messages travel.
        messages_sent, messages_received: per rank, empty messages included.
        bytes_sent, bytes_received: per rank.
        bytes_reduced: per rank, reduced as messages arrive.
        bytes_combined: per rank, reduced in local moves.
        critical_bytes: sum over steps of the most bytes one rank sends or receives (with one port: the
            largest message).
        critical_reduced_bytes: sum over steps of the most bytes a rank reduces from messages.
        critical_worked_bytes: sum over rounds of the most bytes a rank reduces, from messages or locally.
        empty_messages: messages without data, all ranks together.
        peak_bytes: per rank, all chunks it ever holds plus the most it must receive aside before reducing.

    >>> from spmdsim.collectives import facts_of, schedule_of
    >>> facts_of(schedule_of("all_reduce", "ring", 4)).counts.steps
    6
    """

    steps: int
    messages_sent: Ints
    messages_received: Ints
    bytes_sent: Ints
    bytes_received: Ints
    bytes_reduced: Ints
    bytes_combined: Ints
    critical_bytes: int
    critical_reduced_bytes: int
    critical_worked_bytes: int
    empty_messages: int
    peak_bytes: Ints

    @property
    def total_messages(self) -> int:
        """Messages of all ranks."""
        return int(self.messages_sent.sum())

    @property
    def total_bytes(self) -> int:
        """Bytes sent by all ranks."""
        return int(self.bytes_sent.sum())


def count(schedule: Schedule, nbytes: int, itemsize: int = 1, sizes: Sequence[int] | None = None) -> Counts:
    """Count a schedule by generating all its rounds.

    Args:
        schedule: any schedule whose messages match; correctness of the data is not checked.
        nbytes: message size, as the collective counts it (see ``Collective.size_means``).
        itemsize: bytes per element; chunks are cut between elements.
        sizes: bytes of each chunk, instead of cutting ``nbytes``.

    Raises:
        ScheduleError: when messages do not match.
        InputError: when ``nbytes`` is no multiple of ``itemsize``.

    >>> from spmdsim.collectives import schedule_of
    >>> counted = count(schedule_of("all_reduce", "ring", 6), 720720)
    >>> counted.steps, counted.critical_bytes, counted.bytes_sent.tolist()[0]
    (10, 1201200, 1201200)
    """
    if sizes is None:
        sizes = [e * itemsize for e in schedule.chunk_elements(elements(nbytes, itemsize))]
    with collector_paused():
        return _count(schedule, sizes)


def _count(schedule: Schedule, sizes: Sequence[int]) -> Counts:
    table = RoundTable(schedule)
    matching = match(table)
    for finding in (*table.findings, *matching.findings):
        raise ScheduleError(finding.text, schedule=schedule.name)
    tally = _Tally(schedule, sizes, matching)
    for rank, rounds in enumerate(table.rounds):
        for number, moves in enumerate(rounds):
            tally.add_round(rank, number, moves)
    return tally.result(matching.steps)


def elements(nbytes: int, itemsize: int) -> int:
    """The number of elements in a message.

    Raises:
        InputError: when it is no whole number.
    """
    if itemsize < 1 or nbytes < 0 or nbytes % itemsize:
        raise InputError(f"{nbytes} bytes are no whole number of {itemsize}-byte elements")
    return nbytes // itemsize


class _Tally:
    def __init__(self, schedule: Schedule, sizes: Sequence[int], matching: Matching) -> None:
        self.sent_in = {pair: iter(steps) for pair, steps in matching.travels.items()}
        self.received_in = {pair: iter(steps) for pair, steps in matching.travels.items()}
        self.schedule, self.sizes, self.count = schedule, sizes, schedule.chunk_count
        n = schedule.size
        self.per_rank = {
            name: np.zeros(n, np.int64)
            for name in (
                "messages_sent", "messages_received", "bytes_sent", "bytes_received",
                "bytes_reduced", "bytes_combined",
            )
        }  # fmt: skip
        self.moved: dict[tuple[int, int, str], int] = defaultdict(int)
        self.reduced: dict[tuple[int, int], int] = defaultdict(int)
        self.worked: dict[tuple[int, int], int] = defaultdict(int)
        self.empty = 0
        self.held = [set(schedule.starts_with(r)) | set(schedule.ends_with(r)) for r in range(n)]
        self.aside = [0] * n

    def size_of(self, move: Instruction) -> int:
        sizes, count = self.sizes, self.count
        return sum(sizes[c % count] for c in move.chunks)

    def add_round(self, rank: int, number: int, moves: list[Instruction]) -> None:
        per_rank, reduced = self.per_rank, 0
        for move in moves:
            size = self.size_of(move)
            if move.kind == SEND:
                per_rank["messages_sent"][rank] += 1
                per_rank["bytes_sent"][rank] += size
                self.empty += size == 0
                step = next(self.sent_in[rank, move.peer])
                self.moved[step, rank, "sent"] += size
                continue
            self.held[rank].update(move.chunks)
            if move.kind in (COMBINE, REDUCE):
                self.worked[number, rank] += size
            if move.kind == COMBINE:
                per_rank["bytes_combined"][rank] += size
            elif move.kind != COPY:
                per_rank["messages_received"][rank] += 1
                per_rank["bytes_received"][rank] += size
                step = next(self.received_in[move.peer, rank])
                self.moved[step, rank, "received"] += size
                if move.kind == REDUCE:
                    reduced += size
                    self.reduced[step, rank] += size
        per_rank["bytes_reduced"][rank] += reduced
        self.aside[rank] = max(self.aside[rank], reduced)

    def result(self, steps: int) -> Counts:
        held = [sum(self.sizes[c % self.count] for c in cells) for cells in self.held]
        return Counts(
            steps=steps,
            **self.per_rank,
            critical_bytes=_sum_of_most(self.moved),
            critical_reduced_bytes=_sum_of_most(self.reduced),
            critical_worked_bytes=_sum_of_most(self.worked),
            empty_messages=self.empty,
            peak_bytes=np.array(held, np.int64) + np.array(self.aside, np.int64),
        )


def _sum_of_most(by_place: Mapping[tuple[Any, ...], int]) -> int:
    """Sum over steps of the largest number; the step comes first in a key."""
    most: dict[int, int] = defaultdict(int)
    for place, number in by_place.items():
        most[place[0]] = max(most[place[0]], number)
    return sum(most.values())
