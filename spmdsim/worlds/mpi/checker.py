"""Comparing the ranks' calls: before a new kind of call runs, and before any number leaves the program."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from mpi4py import MPI

from spmdsim.core.elements import contiguous
from spmdsim.core.step import Step
from spmdsim.core.tensor import Meta
from spmdsim.errors import WorldError, many
from spmdsim.sides import NUMBERS, number_of
from spmdsim.worlds.mpi.board import Board, Record, digest
from spmdsim.worlds.mpi.boards import known_board
from spmdsim.worlds.mpi.comms import CLOSED
from spmdsim.worlds.mpi.noted_calls import KINDS, Calls
from spmdsim.worlds.mpi.waiting import Watch
from spmdsim.worlds.programs import STEP_COLLECTIVES, Run
from spmdsim.worlds.provenance import TENSOR

#: Bytes from which on a message of another length than expected may end the job in MPI: MPICH aborts, Open MPI writes
#: what is longer behind the receiver's buffer.
HEAVY = 1 << 10
#: Seconds after which calls are compared at the latest, or so many times what it took the last time.
LATEST, SHARE = 0.002, 50


def members_of(step: Step) -> tuple[int, ...]:
    """The ranks that take part in a step, sorted."""
    return tuple(sorted({*step.src.mesh.rank_list, *step.dst.mesh.rank_list}))


@lru_cache(maxsize=KINDS)
def _number_of_kind(kind: Meta) -> int:
    return number_of(f"{kind} on {kind.layout.mesh}")


class Checker:
    """What the checks of a world share; ``what`` tells its calls from others of the same world.

    The mode is ``"auto"``, or True to compare every call and its source lines before it runs. The world says which tensor a
    call is about, and how it was computed.
    """

    def __init__(
        self,
        world: Any,
        board: Board,
        places: Sequence[int],
        mode: bool | str,
        deadline: float,
        what: str = "",
    ) -> None:
        self.world, self.board, self.places = world, board, tuple(places)
        self.name = what + board.name(self.places)
        self.mode, self.deadline = mode, deadline
        self.everyone = tuple(range(len(self.places)))
        self.closed = ""
        self._calls: dict[tuple[int, ...], Calls] = {}
        self._counted = [0] * KINDS  # few enough to be kept for ever; kinds may share one
        if not what:
            world.provenance.add_read = self.add_read
        self.watch = Watch.of(board)
        self.watch.follow(self)

    def calls(self, members: tuple[int, ...]) -> Calls:
        """The calls of a group."""
        calls = self._calls.get(members)
        if calls is None:
            if self.closed:
                raise WorldError(self.closed)
            # By their ranks in the job: there may be worlds of parts of it.
            there = sorted((self.board.members[self.places[rank]], self.places[rank]) for rank in members)
            ranks, places = (tuple(numbers) for numbers in zip(*there))
            strict = self.mode is True
            calls = self._calls[members] = Calls(self.board, self.name, ranks, places, self, strict)
        return calls

    def groups(self) -> list[Calls]:
        """The calls of all groups so far; another thread may ask."""
        return list(self._calls.values())

    def of(self, step: Step, dtype: np.dtype, algorithm: str | None, ranks: Sequence[int]) -> Check:
        """The check of a step's calls, which these ranks make."""
        number, nbytes = digest(step, dtype.name, algorithm), math.prod(step.shape) * dtype.itemsize
        if nbytes >= HEAVY or step.collective not in STEP_COLLECTIVES:  # what has parts of any length
            number += NUMBERS
        return Check(self, Record.of(step, dtype.name, algorithm), number, ranks)

    def named(self, words: str, ranks: Sequence[int] | None = None) -> Check:
        """The check of calls that a few words say all about, such as a barrier, of these ranks or all of the world."""
        return Check(self, Record(words), number_of(words), self.everyone if ranks is None else ranks)

    def origin(self, kind: Meta) -> int:
        """The number of a tensor that this rank makes now: which one of its kind it is, counted from 1."""
        number = _number_of_kind(kind)
        counted = self._counted[number % KINDS] = self._counted[number % KINDS] + 1
        origin: int = hash((number, counted)) & (NUMBERS - 1)
        self.world.provenance.note(origin, TENSOR, parameters=(kind, counted))
        return origin

    def add_read(self, origin: int, value: int) -> None:
        """Compare a read of a whole tensor after the next call; see :class:`TensorReads`."""
        if not self.closed:
            self.calls(self.everyone).reads.add(origin, value)

    def event(self, words: str) -> None:
        """Note something that all ranks of the world do, and that moves nothing, so that nothing else holds them back."""
        check = self.named(words)
        check.calls.end(check.calls.begin(check.digest))
        check.compare()

    @contextmanager
    def together(self, words: str, ranks: Sequence[int] | None = None) -> Iterator[None]:
        """Something that all ranks of the world, or these, do at the same time: they meet before it."""
        with self.named(words, ranks).inside(first=True):
            yield

    def settle(self) -> None:
        """Compare all that was called so far with what the others called so far."""
        for calls in self._calls.values():
            if calls.number != calls.settled:
                # What they noted must be known up to this rank's last call: their data may be quicker.
                if calls.far:
                    calls.reach(calls.number - 1, calls.far)
                calls.compare()

    def process(self, rank: int) -> int:
        """Whether a rank's process runs."""
        return self.board.process(self.places[rank])

    @property
    def told(self) -> bool:
        """Whether this rank was told that ranks disagree, or do not come."""
        return any(calls.told for calls in self._calls.values())

    def close(self, failed: bool = False) -> None:
        """Note no more calls."""
        self.watch.leave(self)
        for calls in self._calls.values():
            calls.forget(failed)
        self.refuse(CLOSED)

    def refuse(self, why: str) -> None:
        """Note no calls any more: why, in words."""
        self._calls.clear()
        self.closed = why


@contextmanager
def making(world: Any, comm: MPI.Comm, deadline: float) -> Iterator[None]:
    """While a world is made: its ranks meet before that, where others can see them."""
    board = known_board(comm) if comm.Get_size() > 1 else None
    if board is None:  # the first one
        yield
        return
    checker, failed = Checker(world, *board, "auto", deadline, "making "), True
    try:
        with checker.together(f"a new world of {many(comm.Get_size(), 'rank')}"):
            checker.board.met(checker.places)  # they met: whatever comes of it, the next time is another one
            yield
        failed = False
    finally:
        checker.close(failed)


class Check:
    """Notes and compares one kind of call each time it is made: in words, and by the number that stands for them.

    The calls of the same ranks are numbered together. The numbers of those that move much are ``NUMBERS`` at least.
    """

    __slots__ = ("calls", "checker", "digest", "record")

    def __init__(self, checker: Checker, record: Record, digest: int, ranks: Sequence[int]) -> None:
        self.checker, self.record, self.digest = checker, record, digest
        checker.board.tell(digest, record.packed())
        self.calls = checker.calls(tuple(sorted(ranks)))

    def before(self, run: Run) -> Run:
        """What notes the call, runs it, and compares it sooner or later: in one function, since it is on the way of all."""
        if self.checker.mode is not True:
            return self.calls.noted(run, self)

        def compared(array: np.ndarray) -> np.ndarray:
            with self.inside():
                return run(contiguous(array))

        return compared

    def failed(self, error: BaseException) -> None:
        """Compare after an error of MPI's, such as a message that is longer than expected."""
        if isinstance(error, MPI.Exception):
            self.calls.compare()

    @contextmanager
    def inside(self, ids: str = "", first: bool = False) -> Iterator[None]:
        """Note a call for as long as it takes; ``first`` compares it before it runs, be it new or not."""
        calls, checker, kind = self.calls, self.checker, self.digest
        if ids:
            kind ^= number_of(ids)
            checker.board.tell(kind, replace(self.record, ids=ids).packed())
        number = calls.begin(kind)
        try:
            if calls.new(self.digest) or first or checker.mode is True:
                calls.meet()
            elif calls.unlike(number):
                calls.compare()
            yield
        except MPI.Exception:
            calls.compare()
            raise
        finally:
            calls.end(number)
        self.compare()

    def compare(self) -> None:
        """Compare what was called so far; go on as soon as there is room to note more."""
        calls, begin = self.calls, time.monotonic()
        calls.compare()
        end = time.monotonic()
        calls.due = end + max(LATEST, SHARE * (end - begin))
        if not calls.room():
            calls.wait(calls.number - 1, self._room)

    def _room(self) -> bool:
        self.calls.compare()
        return self.calls.room()
