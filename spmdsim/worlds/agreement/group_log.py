"""Logs of the calls of a group's ranks, read from the board by this rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from spmdsim.sides import hash_text, name_ranks
from spmdsim.worlds.agreement import shared_board as layout
from spmdsim.worlds.agreement.shared_board import LoggedCall, SharedBoard


class TensorHistory(Protocol):
    """History of this rank's tensors: how each was computed.

    Attributes:
        count: the number of tensors that were computed so far.
    """

    count: int

    def __contains__(self, number: int) -> bool:
        """Return True if the tensor with this provenance number is known."""

    def ancestors(self, number: int) -> Iterator[tuple[int, str]]:
        """Yield ``(provenance number, calculation in words)`` of a tensor and of what it was computed from."""


class GroupLog:
    """Logged calls of one group.

    Args:
        board: the memory of the ranks' logs.
        name: the name of the world.
        members: the group's ranks in the job, sorted.
        places: their places on the board.
        history: how this rank's tensors were computed.

    Attributes:
        start: the index of this rank's slot on the board.
        number: the number of calls that this rank has begun.
        computed: the number of tensors that were computed before the latest call.
    """

    def __init__(
        self,
        board: SharedBoard,
        name: str,
        members: tuple[int, ...],
        places: tuple[int, ...],
        history: TensorHistory,
    ) -> None:
        self.board, self.members, self.places, self.history = board, members, places, history
        self.key = hash_text(f"{name} {members}")
        self.start = board.open_group(self.key, places)
        self.number = self.computed = 0
        self._starts: dict[int, int] = {}

    def find_start(self, place: int) -> int | None:
        """Return the index of a rank's slot for this group; None if it has no slot there.

        The slot is the range of numbers on the board in which the rank logs the group's calls. The index is remembered.
        If the rank has reused the slot for another group since, search for the group anew.

        Args:
            place: the rank's place: its index on the shared board of call logs.
        """
        if place == self.board.me:
            return self.start
        start = self._starts.get(place)
        if start is None or self.board.areas[place][start + layout.KEY] != self.key:
            start = self.board.find_group(place, self.key)
            # Replace the table, because another thread may read it.
            starts = {
                other_place: index for other_place, index in self._starts.items() if other_place != place
            }
            self._starts = starts if start is None else {**starts, place: start}
        return start

    def count_begun(self, place: int) -> int:
        """Return the number of calls of this group that the rank at ``place`` has begun.

        It is 0 if the rank has no slot for the group.
        """
        start = self.find_start(place)
        return 0 if start is None else int(self.board.areas[place][start + layout.BEGUN])

    def have_begun(self, number: int, places: Sequence[int]) -> bool:
        """Return True if all ranks at ``places`` have begun call ``number`` of this group.

        Return True, too, if ``places`` is empty.
        """
        return all(self.count_begun(place) > number for place in places)

    def arrived(self, number: int) -> list[int]:
        """Return the ranks of the group that have begun call ``number``.

        The result has their numbers in the job, sorted.
        """
        return [rank for rank, place in zip(self.members, self.places) if self.count_begun(place) > number]

    def read(self, place: int, number: int) -> LoggedCall | None:
        """Return call ``number`` of the rank at ``place``.

        Return None if the rank's log has overwritten the call, or the rank has not begun it yet.
        """
        start = self.find_start(place)
        if start is None or number not in self.board.readable_calls(place, start):
            return None
        return self.board.read_call(place, start, number)

    def publish_ancestors(self, tensor: int) -> None:
        """Publish on the board how this rank computed a tensor and its operands.

        ``tensor`` is a provenance number; operands are followed as far as the history yields them.
        """
        for ancestor, text in self.history.ancestors(tensor):
            self.board.publish(ancestor, text)

    def title(self, number: int) -> str:
        """Return the words for a call's number, such as "call 3 of ranks 0, 1"."""
        return f"call {number} of {name_ranks(self.members)}"

    def describe(self, number: int, place: int | None = None) -> str:
        """Return a call's words and source line as a rank logged it, or "a call that is not kept".

        Args:
            number: the number of the call in the group.
            place: the rank's place on the board; None for this rank.
        """
        call = self.read(self.board.me if place is None else place, number)
        return "a call that is not kept" if call is None else f"{call.description}, at {call.line}"
