"""Ranks in groups, such as the ranks of nodes, and the rails between groups, for algorithms of two levels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from spmdsim.collectives.algorithms.rank_arithmetic import ring_rounds
from spmdsim.collectives.instructions import Chunks, Rounds


class Rails(NamedTuple):
    """Groups of consecutive ranks, and the rails that connect them.

    The last group may be smaller. Rail i connects the local ranks i of all groups. In a smaller last group each rank
    serves several neighbouring rails, and its own block travels on the first of them.

    Attributes:
        size: the number of ranks.
        group: the number of ranks of a group, and of rails.

    >>> rails = Rails(size=10, group=4)  # the groups are 0-3, 4-7 and 8-9
    >>> rails.group_count, rails.members(9), rails.rails_of(9), rails.ranks_on(1)
    (3, range(8, 10), range(2, 4), [1, 5, 8])
    """

    size: int
    group: int

    @property
    def group_count(self) -> int:
        """The number of groups."""
        return -(-self.size // self.group)

    @property
    def largest(self) -> int:
        """The number of ranks of the largest group."""
        return min(self.group, self.size)

    def members(self, rank: int) -> range:
        """Return the ranks of the group of a rank."""
        first = rank - rank % self.group
        return range(first, min(first + self.group, self.size))

    def rails_of(self, rank: int) -> range:
        """Return the rails that a rank serves; one, unless it is in a smaller last group."""
        members = self.members(rank)
        local, count = rank - members.start, len(members)
        return range(local * self.group // count, (local + 1) * self.group // count)

    def ranks_on(self, rail: int) -> list[int]:
        """Return the rank of each group that serves a rail, in the order of the groups."""
        last = self.members(self.size - 1)
        in_full_groups = range(rail, last.start, self.group)
        return [*in_full_groups, last.start + ((rail + 1) * len(last) - 1) // self.group]

    def owners_on(self, rail: int) -> list[Chunks]:
        """Return, for each group, the ranks whose own blocks travel on a rail: one rank, or none."""
        return [(rank,) if self.rails_of(rank).start == rail else () for rank in self.ranks_on(rail)]

    def owners_served_by(self, rank: int) -> Chunks:
        """Return the ranks of all groups whose own blocks travel on the rails of a rank."""
        return tuple(
            owner for rail in self.rails_of(rank) for owners in self.owners_on(rail) for owner in owners
        )

    def ring_inside(self, rank: int, chunks: Sequence[Chunks], reduces: bool = False) -> Rounds:
        """Yield the rounds of a rank in the ring of its group.

        Idle rounds follow, up to those of the largest group.

        Args:
            rank: the rank.
            chunks: the chunks of each member, which go around the ring in one message.
            reduces: True for a reduce_scatter, which leaves a member its own chunks reduced; False for an all_gather of
                the members' chunks.
        """
        members = self.members(rank)
        local, count = rank - members.start, len(members)
        rounds = ring_rounds((local + 1) % count, (local - 1) % count, count, local - reduces, reduces)
        return pad_rounds(rename(rounds, members, chunks), self.largest - 1)

    def ring_between(self, rank: int, rail: int, chunks: Sequence[Chunks], reduces: bool = False) -> Rounds:
        """Yield the rounds of a rank in the ring between groups on one of its rails.

        Args:
            rank: the rank.
            rail: the rail.
            chunks: the chunks of each group.
            reduces: as in :meth:`ring_inside`.
        """
        position, count = rank // self.group, self.group_count
        rounds = ring_rounds(
            (position + 1) % count, (position - 1) % count, count, position - reduces, reduces
        )
        return rename(rounds, self.ranks_on(rail), chunks)

    def take_turns(self, rank: int, rounds_on: Callable[[int], Rounds], length: int) -> Rounds:
        """Yield the rounds of a rank on its rails.

        All rails are in use at one time, unless the last group is smaller. Then its ranks serve their rails one after
        the other, a turn each, and ranks whose rail has another turn are idle.

        Args:
            rank: the rank.
            rounds_on: returns the rounds of this rank on a rail.
            length: the number of rounds on a rail, equal for all.
        """
        rails_of_last = [self.rails_of(last) for last in self.members(self.size - 1)]
        for turn in range(max(map(len, rails_of_last))):
            rails_in_turn = {rails[turn] for rails in rails_of_last if turn < len(rails)}
            own_rails = rails_in_turn.intersection(self.rails_of(rank))
            if own_rails:
                yield from rounds_on(own_rails.pop())
            else:
                yield from ([] for _ in range(length))


def rename(rounds: Rounds, ranks: Sequence[int], chunks: Sequence[Chunks] | None = None) -> Rounds:
    """Yield rounds that were written for ranks and chunks 0, 1, ... with other ranks and chunks.

    If ``chunks`` are given, messages that have no chunks afterwards are left out. Their round stays, if need be as an
    idle one (``[]``), so that all ranks stay in step.

    Args:
        rounds: the rounds, of messages only.
        ranks: the rank that takes the place of each number.
        chunks: the chunks that take the place of each chunk; None to keep them.

    >>> from spmdsim.collectives.instructions import send
    >>> list(rename(iter([[send(1, 0)]]), ranks=[4, 6], chunks=[(8, 9)]))[0][0].describe()
    'send to 6: chunks 8, 9'
    """
    for moves in rounds:
        moves = [move._replace(peer=ranks[move.peer]) for move in moves]
        if chunks is not None:
            replaced = [_join([chunks[chunk] for chunk in move.chunks]) for move in moves]
            moves = [move._replace(chunks=new) for move, new in zip(moves, replaced) if new]
        yield moves


def _join(sets: Sequence[Chunks]) -> Chunks:
    """Return the chunks of all ``sets`` in their order; a single one stays as it is."""
    return sets[0] if len(sets) == 1 else tuple(chunk for chunks in sets for chunk in chunks)


def pad_rounds(rounds: Rounds, length: int) -> Rounds:
    """Yield the rounds, then idle rounds (``[]``) up to ``length`` rounds; longer ones stay as they are.

    So groups of different sizes stay in step.
    """
    count = 0
    for moves in rounds:
        count += 1
        yield moves
    yield from ([] for _ in range(length - count))
