"""A measured run of an emulated algorithm as a timeline: when each of its messages was posted and was there."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from spmdsim.cli.collective.measure import MeasuredCase
from spmdsim.cli.output import write_file
from spmdsim.collectives import Schedule
from spmdsim.collectives.execution import execute
from spmdsim.collectives.rank_program import program_for
from spmdsim.draw.message_timeline import (
    MOST_MESSAGES,
    RECEIVES,
    REDUCES,
    SENDS,
    Slice,
    chrome_timeline,
)
from spmdsim.errors import InputError

#: Runs before the recorded one.
WARMUP = 3


class Noted(NamedTuple):
    """What one rank notes: a message or local work, from ``start`` to ``end`` on its clock."""

    lane: int
    peer: int
    nbytes: int
    start: float
    end: float
    round: int


class Recorder:
    """A transport that notes when messages are posted and done; in between ranks reduce and copy.

    Args:
        transport: what moves the messages.
    """

    def __init__(self, transport: Any) -> None:
        self.transport = transport
        self.noted: list[Noted] = []
        self._posted: list[tuple[int, int, int, float]] = []
        self._round = 0
        self._free = time.perf_counter()

    def irecv(self, buffer: np.ndarray, source: int, tag: int) -> Any:
        """Start to receive."""
        self._post(RECEIVES, source, buffer.nbytes)
        return self.transport.irecv(buffer, source, tag)

    def isend(self, buffer: np.ndarray, dest: int, tag: int) -> Any:
        """Start to send."""
        self._post(SENDS, dest, buffer.nbytes)
        return self.transport.isend(buffer, dest, tag)

    def wait_all(self, requests: Sequence[Any]) -> None:
        """Wait for the round's messages."""
        self.transport.wait_all(requests)
        self._free = time.perf_counter()
        for lane, peer, nbytes, start in self._posted:
            self.noted.append(Noted(lane, peer, nbytes, start, self._free, self._round))
        self._posted.clear()
        self._round += 1

    def work(self) -> None:
        """Note what was done on this rank since its last message."""
        self.noted.append(Noted(REDUCES, -1, 0, self._free, time.perf_counter(), self._round))

    def _post(self, lane: int, peer: int, nbytes: int) -> None:
        if not self._posted:
            self.work()
        self._posted.append((lane, peer, nbytes, time.perf_counter()))


def write_measured_timeline(path: str, schedule: Schedule, case: MeasuredCase, comm: Any) -> None:
    """Run an algorithm once more and write the timeline of that run; all ranks call it.

    Clocks of processes on one machine agree; those of several machines may be shifted against each other.

    Raises:
        InputError: too many messages to draw, or a file that cannot be written.
    """
    from spmdsim.worlds.mpi.messages import Messages

    program = program_for(schedule, case.rank, case.count)
    messages = sum(comm.allgather(sum(len(step.sends) for step in program.steps)))
    if messages > MOST_MESSAGES:
        raise InputError(f"{schedule.name} has {messages:,} messages; {MOST_MESSAGES:,} can be drawn")
    result, work = np.empty(case.output_count, case.dtype), np.empty(program.work_count, case.dtype)
    for _ in range(WARMUP + 1):
        comm.Barrier()
        recorder = Recorder(Messages(comm))
        execute(program, recorder, case.given, result, work=work)
        recorder.work()
    everyone = comm.gather(recorder.noted)
    if everyone is None:
        return
    facts = {
        "collective": schedule.collective.name,
        "algorithm": schedule.algorithm.name,
        "ranks": case.size,
        "bytes": case.nbytes,
        "measured": True,
    }
    write_file(path, json.dumps(chrome_timeline(slices_of(everyone), case.size, facts)))


def slices_of(everyone: Sequence[Sequence[Noted]]) -> list[Slice]:
    """The notes of all ranks as slices; messages of a pair of ranks arrive in the order sent.

    >>> sent, got = Noted(SENDS, 1, 8, 5.0, 6.0, 0), Noted(RECEIVES, 0, 8, 5.5, 7.0, 0)
    >>> [(one.start, one.message) for one in slices_of([[sent], [got]])]
    [(0.0, 0), (0.5, 0)]
    """
    first = min((one.start for noted in everyone for one in noted), default=0.0)
    numbers: dict[tuple[int, int, int], int] = {}
    slices = []
    for rank, noted in enumerate(everyone):
        counts: dict[tuple[int, int], int] = {}
        for one in noted:
            message, name = -1, "reduce and copy"
            if one.lane != REDUCES:
                pair = (rank, one.peer) if one.lane == SENDS else (one.peer, rank)
                counts[pair] = counts.get(pair, 0) + 1
                message = numbers.setdefault((*pair, counts[pair]), len(numbers))
                name = f"to {one.peer}" if one.lane == SENDS else f"from {one.peer}"
            times = (one.start - first, one.end - first)
            slices.append(Slice(rank, one.lane, name, *times, one.nbytes, message, one.round))
    return slices
