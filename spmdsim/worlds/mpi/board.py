"""What every rank called last, in memory that all ranks of a node read: each writes its own area, and asks nobody.

A rank that waits, hangs in MPI, was stopped or was killed can still be read. Where ranks are on several nodes each
has a board of its own, and they compare by messages (``check``).

The memory has no name in any folder: nothing is left behind, however a job ends.
"""

from __future__ import annotations

import mmap
import os
import secrets
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
from mpi4py import MPI

from spmdsim.bounded import Bounded
from spmdsim.errors import WorldError
from spmdsim.worlds.mpi.counted import Counted

#: Calls that a rank keeps of each group. More than this many calls no rank is ahead of another.
RING = 256
#: Groups at most that a rank takes part in at a time.
GROUPS = 2048
#: Groups of closed worlds that stay readable.
LINGER = 32
#: Lines of the user's that are known by their instructions.
LINES = 8192
#: Bytes for what numbers mean, in words.
TEXT = 1 << 20

#: What stands in a rank's area before its groups: whether it left, the group that it waits in now (counted from 1),
#: its process, the bytes of its words, how many times they began anew, how many places of groups were ever taken, and
#: whether it writes what all ranks called.
LEFT, INSIDE, PROCESS, WORDS, ANEW, PLACES, WRITES = range(7)
_HEAD = 10
#: Where the bytes stand by which ranks know that they opened the same memory.
_WORD = 64
#: What stands before a group's calls: its number, how many were begun, and how many were compared with everybody.
KEY, BEGUN, COMPARED = range(3)
_GROUP_HEAD = 4
#: What is kept of a call, each in a column: the number that must agree, the tensor that is in it, the line, begin, end.
AGREED, TENSOR, LINE, BEGIN, END = range(5)
COLUMNS = 5

_GROUP = _GROUP_HEAD + COLUMNS * RING
_AREA = _HEAD + GROUPS * _GROUP + TEXT // 8

#: How a rank left.
STAYS, DONE, FAILED = range(3)


class Board:
    """The areas of some ranks.

    Args:
        memory: zeros at first; all ranks' areas, or only this rank's own.
        members: the ranks in ``MPI.COMM_WORLD``, sorted.
        me: this rank's place among them.
        shared: whether the other ranks' areas are there.
    """

    def __init__(self, memory: mmap.mmap, members: Sequence[int], me: int, shared: bool) -> None:
        self.members, self.me, self.shared = tuple(members), me, shared
        self.numbers = memoryview(memory).cast("q")
        self._bytes = memoryview(memory)
        self._worlds: Counter[tuple[int, ...]] = Counter()
        self._used: dict[int, int] = {}
        self._retired: deque[int] = deque()
        self._told: dict[int, str] = {}
        #: The user's lines by their instructions, as numbers that were told.
        self.lines: Bounded[int, int] = Bounded(LINES)
        self._read: dict[int, tuple[tuple[int, int], dict[int, str]]] = {}
        self.numbers[self.area(me) + PROCESS] = os.getpid()

    def area(self, place: int) -> int:
        """Where a rank's area begins, in numbers."""
        return place * _AREA if self.shared else 0

    def name(self, places: tuple[int, ...]) -> str:
        """Tells the next world of these ranks from earlier ones; all of its ranks have made the same ones."""
        return f"{places} {self._worlds[places]}"

    def made(self, places: tuple[int, ...]) -> None:
        """A world of these ranks was made."""
        self._worlds[places] += 1

    # -- this rank writes ---------------------------------------------------------------------------------

    def enter(self, key: int, words: str) -> int:
        """Take a place for the calls of a group and say who is in it: where its numbers begin.

        Raises:
            WorldError: there are too many groups.
        """
        places = self.area(self.me) + PLACES
        if len(self._retired) > LINGER:
            place = self._retired.popleft()
        elif (place := self.numbers[places]) >= GROUPS:
            raise WorldError(f"{GROUPS} different groups of ranks are in use; close() a world to free them")
        self.tell(key, words)
        at = self._used[key] = self.area(self.me) + _HEAD + place * _GROUP
        for k in (BEGUN, COMPARED):
            self.numbers[at + k] = 0
        self.numbers[at + KEY] = key
        self.numbers[places] = max(self.numbers[places], place + 1)
        return at

    def forget(self, key: int, failed: bool = False) -> None:
        """Give a group's place back; others may read there for a while, but not of a group that came to nothing."""
        at = self._used.pop(key)
        if failed:
            self.numbers[at + KEY] = 0
        self._retired.append((at - self.area(self.me) - _HEAD) // _GROUP)

    def inside(self, at: int) -> int:
        """The number that says that this rank waits in the group whose numbers begin there."""
        return (at - self.area(self.me) - _HEAD) // _GROUP + 1

    def leave(self, how: int) -> None:
        """Say that this rank makes no more calls."""
        self.numbers[self.area(self.me) + LEFT] = how

    def tell(self, number: int, words: str) -> None:
        """Say what a number means, once."""
        if number in self._told:
            return
        self._told[number] = words
        if not self._append(number, words):  # begin anew with what is most likely asked for
            kept = list(self._told.items())[-(TEXT >> 10) :]
            self._told = dict(kept)
            self.lines.clear()  # they are told again where they are met again
            at = self.area(self.me)
            self.numbers[at + WORDS] = 0
            self.numbers[at + ANEW] += 1
            for known, text in kept:
                self._append(known, text)

    def _append(self, number: int, words: str) -> bool:
        at = self.area(self.me)
        used, data = self.numbers[at + WORDS], words.encode()[:1000]
        size = (len(data) + 7) // 8 * 8
        if used + 16 + size > TEXT:
            return False
        first = at + _HEAD + GROUPS * _GROUP + used // 8
        self.numbers[first], self.numbers[first + 1] = number, len(data)
        self._bytes[first * 8 + 16 : first * 8 + 16 + len(data)] = data
        self.numbers[at + WORDS] = used + 16 + size
        return True

    # -- everybody reads ----------------------------------------------------------------------------------

    def places(self) -> range:
        """The places of the ranks that can be read."""
        return range(len(self.members)) if self.shared else range(self.me, self.me + 1)

    def state(self, place: int, what: int) -> int:
        """What stands in the head of a rank's area."""
        return self.numbers[self.area(place) + what]

    def find(self, place: int, key: int) -> int | None:
        """Where a rank's numbers of a group begin; None if it has not taken part in it."""
        if place == self.me:
            return self._used.get(key)
        return next((at for at, there in self.groups(place) if there == key), None)

    def groups(self, place: int) -> Iterator[tuple[int, int]]:
        """Where a rank's numbers of each of its groups begin, with what the group is called by."""
        first = self.area(place) + _HEAD
        end = first + self.state(place, PLACES) * _GROUP
        return ((at, self.numbers[at + KEY]) for at in range(first, end, _GROUP) if self.numbers[at + KEY])

    def kept(self, at: int) -> range:
        """The numbers of the calls that are kept of the group whose numbers begin there."""
        begun = self.numbers[at + BEGUN]
        return range(max(begun - RING, 0), begun)

    def waits(self, place: int) -> tuple[int, int] | None:
        """The group, and the number of its call, that a rank is in now."""
        inside = self.state(place, INSIDE)
        if not inside:
            return None
        at = self.area(place) + _HEAD + (inside - 1) * _GROUP
        return self.numbers[at + KEY], self.numbers[at + BEGUN] - 1

    def words(self, place: int, number: int) -> str | None:
        """What a rank says that a number means."""
        if place == self.me:
            return self._told.get(number)
        state = (self.state(place, ANEW), self.state(place, WORDS))
        known = self._read.get(place)
        if known is None or known[0] != state:
            known = self._read[place] = state, self._all_words(place, state[1])
        return known[1].get(number)

    def _all_words(self, place: int, used: int) -> dict[int, str]:
        found, first = {}, self.area(place) + _HEAD + GROUPS * _GROUP
        at, end = first, first + used // 8
        while at < end:
            length = self.numbers[at + 1]
            if not 0 <= length <= TEXT:  # it is being written anew
                break
            text = bytes(self._bytes[at * 8 + 16 : at * 8 + 16 + length])
            found[self.numbers[at]] = text.decode(errors="replace")
            at += 2 + (length + 7) // 8
        return found


def column(at: int, what: int, number: int) -> int:
    """Where a column of a call stands, of the group whose numbers begin at ``at``."""
    return at + _GROUP_HEAD + what * RING + number % RING


_boards: list[Board] = []


def known_board(comm: MPI.Comm) -> tuple[Board, list[int]] | None:
    """The board that an earlier world of these ranks uses, and their places there."""
    ranks = _world_ranks(comm)
    for board in _boards:
        if {*ranks} <= {*board.members}:
            return board, [board.members.index(rank) for rank in ranks]
    return None


def board_of(comm: Counted) -> tuple[Board, list[int]]:
    """The board of a communicator's ranks, an earlier world's or a new one, and their places there.

    Collective if it is new.
    """
    found = known_board(comm)
    if found is not None:
        return found
    ranks = _world_ranks(comm)
    if MPI.UNDEFINED in ranks:  # some were started later
        ranks, memory = list(range(len(ranks))), None
    else:
        memory = _shared(comm)
    members, me = sorted(ranks), ranks[comm.Get_rank()]
    shared = memory is not None
    board = Board(memory or mmap.mmap(-1, _AREA * 8), members, members.index(me), shared)
    _boards.append(board)
    return board, [members.index(rank) for rank in ranks]


def _world_ranks(comm: MPI.Comm) -> list[int]:
    """The ranks of a communicator in ``MPI.COMM_WORLD``."""
    here, everyone = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    found = here.Translate_ranks(list(range(comm.Get_size())), everyone)
    here.Free()
    everyone.Free()
    return list(found)


def _shared(comm: Counted) -> mmap.mmap | None:
    """Memory of all ranks of a communicator; None if some are on other nodes, or it cannot be had."""
    size, word = comm.Get_size() * _AREA * 8, secrets.token_bytes(16)
    own = _file(size) if comm.Get_rank() == 0 else None
    if own is not None:
        os.pwrite(own[0], word, _WORD)
    path, word = comm.allgather((own and own[1], word))[0]
    memory = None
    with suppress(OSError, ValueError):
        if path is not None:
            fd = os.open(path, os.O_RDWR)
            try:
                if os.pread(fd, 16, _WORD) == word:
                    memory = mmap.mmap(fd, size)
            finally:
                os.close(fd)
    there = np.array([memory is not None], np.int64), np.empty(1, np.int64)
    comm.agree(*there, MPI.MIN)
    if own is not None:
        os.close(own[0])
        if not path.startswith("/proc/"):
            os.unlink(path)
    return memory if there[1][0] else None


def _file(size: int) -> tuple[int, str] | None:
    """An empty file that has no name, or soon has none, and the path by which others can open it now."""
    try:
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("spmdsim")
            path = f"/proc/{os.getpid()}/fd/{fd}"
        else:
            fd, path = tempfile.mkstemp(prefix="spmdsim")
        os.ftruncate(fd, size)
    except OSError:
        return None
    return fd, path
