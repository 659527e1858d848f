"""Comparing the ranks' calls before a collective, with a deadline after which missing ranks are named."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from spmdsim.errors import InputError, WorldError
from spmdsim.redistribution.step import Step
from spmdsim.trace.recorder import source_line, source_lines
from spmdsim.worlds.local_steps import contiguous
from spmdsim.worlds.mpi.comms import Comms
from spmdsim.worlds.mpi.counted import GAVE_UP, Counted
from spmdsim.worlds.mpi.fingerprint import EVERY, FIRST, Record, describe, digest, mixed, number_of
from spmdsim.worlds.mpi.leaving import Counts, key

if TYPE_CHECKING:
    from spmdsim.worlds.mpi.waiting import Watch

Run = Callable[[np.ndarray], np.ndarray]

#: Seconds that ranks wait for each other unless ``SPMDSIM_DEADLINE`` says otherwise.
DEADLINE = 300.0
#: Seconds that ranks which gave up wait for the others that gave up.
GRACE = 1.0


def deadline_seconds() -> float:
    """The deadline that the environment asks for, or the default.

    Raises:
        InputError: it asks for something that is no number of seconds.
    """
    asked = os.environ.get("SPMDSIM_DEADLINE", "")
    try:
        seconds = float(asked or DEADLINE)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise InputError(f"SPMDSIM_DEADLINE is a number of seconds, but it is {asked!r}")
    return seconds


@dataclass(frozen=True)
class Call:
    """What a rank is about to run, derived once per step.

    Args:
        step: the step.
        dtype: name of the element type.
        algorithm: the emulated algorithm, if any.
        members: the ranks of the step's meshes, sorted: they all run it at the same time.
        digest: the number that stands for it.
    """

    step: Step
    dtype: str
    algorithm: str | None
    members: tuple[int, ...]
    digest: int

    @staticmethod
    def of(step: Step, dtype: np.dtype, algorithm: str | None) -> Call:
        """The call for a step."""
        ranks = set(step.src.mesh.rank_list)
        if step.dst.mesh is not step.src.mesh:
            ranks |= set(step.dst.mesh.rank_list)
        found = digest(step, dtype.name, algorithm)
        return Call(step, dtype.name, algorithm, tuple(sorted(ranks)), found)

    def record(self, number: int, source: str, ids: str = "") -> Record:
        """The call in words; ``ids`` says which ones, where it depends on them."""
        step = self.step
        return Record(
            number,
            step.collective,
            ",".join(step.axes),
            str(step.src),
            str(step.dst),
            str(step.shape) if step.to_shape is None else f"{step.shape} as {step.to_shape}",
            self.dtype,
            step.op or "",
            self.algorithm or "",
            ids,
            source,
        )


class Calls:
    """The calls of one group so far.

    Attributes:
        members: the ranks of the group.
        number: how many were begun.
        inside: what this rank is in right now, if it is in one.
        known: the digests of those that were made.
    """

    __slots__ = ("inside", "known", "members", "number")

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members, self.number = members, 0
        self.inside: Check | None = None
        self.known: set[int] = set()


class Checker:
    """What the checks of a world share.

    Args:
        comms: where the group's communicators come from.
        mode: True compares every call and its source lines; "auto" the first ones, each new one, and a sample of the
            rest. Who waits too long in one of the rest is told on by a watch.
        deadline: seconds to wait for the others.
    """

    def __init__(self, comms: Comms, mode: bool | str, deadline: float) -> None:
        self.comms, self.mode, self.deadline = comms, mode, deadline
        self.given_up: list[object] = []
        self._calls: dict[tuple[int, ...], Calls] = {}
        self._meetings = 0
        self._watch: Watch | None = None

    def counts(self) -> Counts:
        """How many calls of which groups were begun, for a rank that leaves."""
        calls = {key("call", members): calls.number for members, calls in self._calls.items()}
        return {**calls, key("meeting"): self._meetings}

    def meet(self, comm: Counted) -> None:
        """Wait until all ranks of a communicator are there.

        Raises:
            WorldError: they are not before the deadline.
        """
        request, begin, number = comm.Ibarrier(), time.monotonic(), self._meetings
        self._meetings += 1
        while not request.Test():
            waited = time.monotonic() - begin
            if waited > self.deadline:
                self.given_up.append(request)
                raise WorldError(
                    f"some ranks did not come within {self.deadline:g} s to where rank {comm.rank} is, at "
                    f"{source_line() or 'an unknown place'}; do all ranks run the same program?"
                )
            if waited > 0.005:
                self.comms.require(tuple(range(comm.size)), key("meeting"), number, self._meeting_place)
                time.sleep(0.0005)
            else:
                os.sched_yield()

    @staticmethod
    def _meeting_place() -> str:
        return f"where all ranks meet, at {source_line() or 'an unknown place'}"

    def of(self, call: Call) -> Check:
        """The check of a call; calls of the same members are numbered together."""
        calls = self._calls.get(call.members)
        if calls is None:
            calls = self._calls[call.members] = Calls(call.members)
        return Check(self, call, calls)

    def watch(self) -> None:
        """Notice from now on when this rank waits too long in a call."""
        if self._watch is None:
            from spmdsim.worlds.mpi.waiting import Watch

            self._watch = Watch(self.comms.comm, self.deadline, self._calls)

    def close(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.stop()


class Check:
    """Compares one kind of call each time it is made."""

    __slots__ = ("call", "calls", "checker", "number")

    def __init__(self, checker: Checker, call: Call, calls: Calls) -> None:
        self.checker, self.call, self.calls, self.number = checker, call, calls, 0

    def due(self) -> bool:
        """Count a call; whether it must be compared. All members have made the same ones before, and know which are new."""
        calls, digest = self.calls, self.call.digest
        number = self.number = calls.number
        calls.number = number + 1
        if digest not in calls.known:
            calls.known.add(digest)
            return True
        return number < FIRST or number % EVERY == 0 or self.checker.mode is True

    def before(self, run: Run) -> Run:
        """What compares the call, if it is due, and then runs it: in one function, since it is on the way of every call."""
        calls, always = self.calls, self.checker.mode is True

        def checked(array: np.ndarray) -> np.ndarray:
            number = calls.number
            calls.number = number + 1
            if number < FIRST or number % EVERY == 0 or always:
                self.number = number
                self.compare()
            calls.inside = self
            try:
                return run(array if array.flags.c_contiguous else contiguous(array))
            finally:
                calls.inside = None

        return checked

    def inside(self, run: Callable[..., Any], *arrays: np.ndarray) -> Any:
        """Run a call that :meth:`due` counted."""
        self.calls.inside = self
        try:
            return run(*arrays)
        finally:
            self.calls.inside = None

    def compare(self, ids: str = "") -> None:
        """Compare the call, and its ids if it depends on them, with those of the other members.

        Raises:
            WorldError: the ranks disagree, or some do not come.
        """
        call, number, strict = self.call, self.number, self.checker.mode is True
        place = number_of(source_lines()) if strict else 0
        mine = mixed(call.digest ^ number_of(ids) if ids else call.digest, number, place)
        give, take = np.array([mine, -mine]), np.empty(2, np.int64)
        comm = self.checker.comms.of(call.members)
        if number >= FIRST - 1:  # the next ones may not be compared
            self.checker.watch()
        request = comm.Iallreduce(give, take, MPI.MIN)
        if not request.Test():
            self._wait(request, comm, (give, take))
        if take[0] != -take[1]:
            records = comm.allgather(call.record(number, self._place(), ids))
            raise WorldError(describe(call.members, records, strict))

    def _place(self) -> str:
        return (source_lines() if self.checker.mode is True else source_line()) or "an unknown place"

    def _wait(self, request: MPI.Request, comm: Counted, held: object) -> None:
        begin = time.monotonic()
        patient = begin + 0.005
        while not request.Test():
            now = time.monotonic()
            if now < patient:
                os.sched_yield()
            elif now - begin > self.checker.deadline or comm.Iprobe(MPI.ANY_SOURCE, GAVE_UP):
                self.checker.given_up.append((request, held))
                raise WorldError(self._missing(comm))
            else:
                self._require_others()
                time.sleep(0.0005)

    def _require_others(self) -> None:
        call, number = self.call, self.number
        kind, text = key("call", call.members), lambda: call.record(number, self._place())
        self.checker.comms.require(call.members, kind, number, lambda: f"collective {number}: {text()}")

    def _missing(self, comm: Counted) -> str:
        """Tell the others that this rank gave up; who does not say so too within a moment is missing."""
        call, number = self.call, self.number
        word, here = np.array([number]), {comm.rank}
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        self.checker.given_up.append([comm.Isend(word, rank, GAVE_UP) for rank in others])
        end = time.monotonic() + GRACE
        status = MPI.Status()
        while len(here) < comm.size and time.monotonic() < end:
            if comm.Iprobe(MPI.ANY_SOURCE, GAVE_UP, status):
                comm.Recv(np.empty(1, word.dtype), status.Get_source(), GAVE_UP)
                here.add(status.Get_source())
            else:
                time.sleep(0.002)
        absent = [str(call.members[k]) for k in range(comm.size) if k not in here]
        who = f"rank{'s' if len(absent) > 1 else ''} {', '.join(absent)}" if absent else "no rank"
        record = call.record(number, self._place())
        return f"{who} did not come to collective {number} within {self.checker.deadline:g} s: {record}"
