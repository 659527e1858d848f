"""Groups: ordered sets of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from spmdsim.simulation.data.constants import IDENT, PROC_NULL, SIMILAR, UNDEFINED, UNEQUAL, MPIError
from spmdsim.simulation.data.handles import Handle
from spmdsim.simulation.engine.scheduler import current_task


class Group(Handle):
    """An ordered set of ranks."""

    _members: tuple[int, ...] | None = None

    @classmethod
    def make(cls, members: Iterable[int] = ()) -> Group:
        """Return a new group.

        Args:
            members: ranks of the whole program, in the group's order.
        """
        ranks = tuple(int(rank) for rank in members)
        if not ranks:
            return cls(GROUP_EMPTY)
        group = cls()
        group._members = ranks
        return group

    @classmethod
    def Create_from_session_pset(cls, session: Any, pset_name: str) -> Group:
        """Return the group of a set of ranks of a session, as ``session.Create_group`` does."""
        group: Group = session.Create_group(pset_name)
        return group

    @property
    def members(self) -> tuple[int, ...]:
        """The members as ranks of the program. Raises an MPI error if the group is null or was freed."""
        if self._members is None:
            raise MPIError("ERR_GROUP", "the group is GROUP_NULL")
        return self._members

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Group):
            return NotImplemented
        return self._members == other._members

    __hash__ = None

    def __bool__(self) -> bool:
        return self._members is not None

    def Get_size(self) -> int:
        """Return the number of ranks."""
        return len(self.members)

    def Get_rank(self) -> int:
        """Return the caller's position in the group, or UNDEFINED."""
        members, task = self.members, current_task()
        if task is None or task.rank not in members:
            return UNDEFINED
        return members.index(task.rank)

    size = property(Get_size)
    rank = property(Get_rank)

    def Translate_ranks(self, ranks: Sequence[int] | None = None, group: Group | None = None) -> list[int]:
        """Return the positions of some members of this group in another group.

        For example, if this group has the ranks (4, 5, 6) of COMM_WORLD and the other one (6, 4), the result for
        ``ranks`` [0, 1, 2] is [1, UNDEFINED, 0].

        Args:
            ranks: positions in this group, which give the order of the result; None selects all. PROC_NULL stays
                PROC_NULL.
            group: the other group; without it, return ranks in COMM_WORLD. A member that it lacks gets UNDEFINED.

        Raises:
            MPIError: If a position is outside this group.
        """
        positions = range(self.size) if ranks is None else ranks
        members = [
            position if position == PROC_NULL else self.members[self._check_position(position)]
            for position in positions
        ]
        if group is None:
            return members
        position_of = {member: position for position, member in enumerate(group.members)} | {
            PROC_NULL: PROC_NULL
        }
        return [position_of.get(member, UNDEFINED) for member in members]

    def Compare(self, group: Group) -> int:
        """Return IDENT, SIMILAR (equal ranks in another order) or UNEQUAL."""
        if self.members == group.members:
            return IDENT
        return SIMILAR if set(self.members) == set(group.members) else UNEQUAL

    def Dup(self) -> Group:
        """Return an equal group."""
        return Group.make(self.members)

    @classmethod
    def Union(cls, group1: Group, group2: Group) -> Group:
        """Return all ranks of the first group, then the ranks of the second one that are not in the first."""
        return cls.make([*group1.members, *(m for m in group2.members if m not in group1.members)])

    @classmethod
    def Intersection(cls, group1: Group, group2: Group) -> Group:
        """Return the ranks of the first group that are in the second one."""
        return cls.make(m for m in group1.members if m in group2.members)

    Intersect = Intersection

    @classmethod
    def Difference(cls, group1: Group, group2: Group) -> Group:
        """Return the ranks of the first group that are not in the second one."""
        return cls.make(m for m in group1.members if m not in group2.members)

    def Incl(self, ranks: Sequence[int]) -> Group:
        """Return the group of the members at these positions, in this order.

        Raises an MPI error (ERR_RANK) if a position is outside this group, or occurs twice.
        """
        positions = [self._check_position(rank) for rank in ranks]
        if len(set(positions)) < len(positions):
            raise MPIError("ERR_RANK", f"the ranks of Incl must differ, got {positions}")
        return Group.make(self.members[position] for position in positions)

    def Excl(self, ranks: Sequence[int]) -> Group:
        """Return the group of the members at all other positions, in their order.

        Raises an MPI error (ERR_RANK) if a position is outside this group.
        """
        excluded = {self._check_position(rank) for rank in ranks}
        return Group.make(m for position, m in enumerate(self.members) if position not in excluded)

    def Range_incl(self, ranks: Sequence[tuple[int, int, int]]) -> Group:
        """Return the group of the members at positions given as (first, last, stride).

        The last one is included; a stride may be negative. Raises an MPI error (ERR_RANK) if a position is outside
        this group.
        """
        return self.Incl(_expand_ranges(ranks))

    def Range_excl(self, ranks: Sequence[tuple[int, int, int]]) -> Group:
        """Return the group of the members at all positions but those given as (first, last, stride).

        The last one is included; a stride may be negative. Raises an MPI error (ERR_RANK) if a position is outside
        this group.
        """
        return self.Excl(_expand_ranges(ranks))

    def Free(self) -> None:
        """Free the group: the handle becomes null. GROUP_EMPTY stays as it is."""
        if self.members or self is not GROUP_EMPTY:
            self.__dict__.clear()

    def _check_position(self, rank: int) -> int:
        """Return a position in the group; raise an MPI error if it is out of range."""
        if not 0 <= rank < self.size:
            raise MPIError("ERR_RANK", f"the rank must be 0 to {self.size - 1}, got {rank}")
        return rank


GROUP_EMPTY = Group()
GROUP_EMPTY._members = ()
GROUP_NULL = Group()


def _expand_ranges(ranges: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return the positions of ranges (first, last, stride); the last one is included."""
    positions: list[int] = []
    for first, last, stride in ranges:
        positions.extend(range(first, last + (1 if stride > 0 else -1), stride))
    return positions
