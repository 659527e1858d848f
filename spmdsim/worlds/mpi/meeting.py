"""Meeting of the ranks of a group before they create its communicator: reports up a binomial tree, answers down.

A member reports to its parent when all members below it have come. When the first member has all reports, it answers,
and each member passes the answer on. In a group of 8, member 0 has the children 4, 2, 1, member 4 has 6, 5, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spmdsim.worlds.mpi.counted import MEETING, Counted


def find_parent(index: int) -> int:
    """Return the parent of a member in a binomial tree; the root, member 0, has itself.

    >>> [find_parent(index) for index in range(8)]
    [0, 0, 0, 2, 0, 4, 4, 6]
    """
    return index & (index - 1)


def list_subtrees(index: int, count: int) -> dict[int, range]:
    """Return the members below each child of a member in a binomial tree, with the child, by child.

    The child with the most members below it comes first. The root has ``ceil(log2(count))`` children; no member has more.

    Args:
        index: the member.
        count: the number of members.

    >>> list_subtrees(0, 6)
    {4: range(4, 6), 2: range(2, 4), 1: range(1, 2)}
    """
    span = index & -index or 1 << (count - 1).bit_length()
    sizes = [1 << bit for bit in reversed(range(span.bit_length() - 1)) if index + (1 << bit) < count]
    return {index + size: range(index + size, min(index + 2 * size, count)) for size in sizes}


class GroupMeeting:
    """Meeting of some ranks; each calls :meth:`is_over` until it returns True.

    A member sends at most ``1 + ceil(log2(members))`` messages.

    Args:
        comm: a communicator with all ranks of the group.
        ranks: the members, sorted, with this rank.
        number: a number that only equal groups share. A message with another number does not count: its sender has come
            to another group.

    Attributes:
        awaited: this rank's children that have not reported.
    """

    def __init__(self, comm: Counted, ranks: Sequence[int], number: int) -> None:
        index = ranks.index(comm.Get_rank())
        subtrees = list_subtrees(index, len(ranks))
        self._comm, self._number = comm, np.array([number])
        self._parent = ranks[find_parent(index)] if index else None
        self._below = {ranks[child]: [ranks[i] for i in members] for child, members in subtrees.items()}
        self.awaited, self._has_reported = set(self._below), False

    def is_over(self) -> bool:
        """Receive reports or the answer, send what follows from them; return True if all members have come."""
        self.awaited -= {child for child in sorted(self.awaited) if self._receive(child)}
        if self.awaited:
            return False
        if self._parent is not None:
            if not self._has_reported:
                self._comm.Send(self._number, self._parent, MEETING)
                self._has_reported = True
            if not self._receive(self._parent):
                return False
        for child in self._below:
            self._comm.Send(self._number, child, MEETING)
        return True

    def list_unreported(self) -> set[int]:
        """Return the ranks in the subtree under this one that no received report covers.

        Some of them may wait already: a child reports only when all ranks under it have come.
        """
        return {rank for child in self.awaited for rank in self._below[child]}

    def _receive(self, rank: int) -> bool:
        """Receive a message from a rank if it has arrived; return True if it is about this group."""
        if not self._comm.Iprobe(rank, MEETING):
            return False
        number = np.empty(1, np.int64)
        self._comm.Recv(number, rank, MEETING)
        return bool(number[0] == self._number[0])
