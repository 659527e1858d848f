"""Verify that a schedule does what its collective specifies, symbolically, for any data and any operator.

Verified are: the form of the instructions, one port per round (or the declared number), that every message has a
receiver that expects its chunks, freedom from deadlock, that a sender owns the chunks it sends, that no contribution
is added twice, the final state, the order of operands, and whether all ranks round identically.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from spmdsim.collectives.instructions import COMBINE, COPY, REDUCE, SEND, Instruction
from spmdsim.collectives.round_table import (
    Matching,
    RoundTable,
    ScheduleFinding,
    checked_matching,
    collector_paused,
    match_messages,
)
from spmdsim.collectives.schedule import Schedule
from spmdsim.errors import ScheduleError
from spmdsim.pictured import ShortRepr
from spmdsim.wrong_calls import explained


@dataclass(frozen=True, repr=False)
class ScheduleVerdict(ShortRepr):
    """The result of verification.

    Attributes:
        schedule: the verified schedule.
        findings: errors and warnings, in the order of rounds.
        in_order: True if every result combines its operands in rank order.
        same_tree: True if all ranks get one reduction tree up to swapped operands, and so identical bits.
        depth: longest chain of operator applications in a result.
        steps: rounds in which messages travel.
        aligned: True if round i is one step on all ranks.

    >>> from spmdsim.collectives import schedule_of, verify
    >>> verify(schedule_of("all_reduce", "ring", 4)).depth
    3
    """

    schedule: Schedule
    findings: tuple[ScheduleFinding, ...]
    in_order: bool = False
    same_tree: bool = False
    depth: int = 0
    steps: int = 0
    aligned: bool = True

    @property
    def ok(self) -> bool:
        """True if the schedule does what its collective specifies. Warnings are allowed."""
        return all(f.warning for f in self.findings)

    def raise_if_wrong(self) -> ScheduleVerdict:
        """Raise the first error, if any, else return the verdict.

        Raises:
            ScheduleError: With the round, the rank and the chunk.
        """
        for finding in self.findings:
            if not finding.warning:
                raise ScheduleError(finding.text, schedule=self.schedule.name)
        return self

    def __str__(self) -> str:
        title = self.schedule.name
        if not self.findings:
            return f"{title}: correct"
        return "\n".join([f"{title}:", *(f"  {f}" for f in self.findings)])


@explained
@collector_paused()
def verify(schedule: Schedule) -> ScheduleVerdict:
    """Simulate a schedule on symbols instead of numbers, and return the verdict.

    These checks are made in order, up to the first one that finds errors:

    1. the form of rounds, and the matching of messages;
    2. each step: ranks use only chunks that they have, and add no contribution twice;
    3. the final state: each rank has what the collective specifies;
    4. local copies and reductions are between chunks of one size.

    After errors ``in_order`` and ``same_tree`` are False, and ``depth`` is 0. A schedule without errors that reduces
    gets an error if its order is not the declared one, and a warning if ranks combine operands in different trees. With
    these two findings, ``in_order``, ``same_tree`` and ``depth`` keep their values.

    Raises:
        InputError: If the schedule has too many chunks or rounds to be followed one by one.

    >>> from spmdsim.collectives import schedule_of
    >>> verdict = verify(schedule_of("all_reduce", "ring", 6))
    >>> verdict.ok, verdict.in_order, verdict.same_tree, verdict.depth
    (True, False, True, 5)
    """
    table = RoundTable(schedule)
    if table.findings:
        return ScheduleVerdict(schedule, tuple(table.findings))
    matching = match_messages(table)
    if matching.findings:
        return ScheduleVerdict(schedule, tuple(matching.findings), aligned=matching.aligned)
    run = SymbolicRun(table, matching)
    if not run.findings:
        run.check_end()
    if not run.findings:
        run.check_sizes()
    facts = run.facts() if not run.findings else (False, False, 0)
    findings = list(run.findings)
    if run.reduces and not findings:
        findings += _list_warnings(schedule, facts[0], facts[1])
    return ScheduleVerdict(schedule, tuple(findings), *facts, matching.steps, matching.aligned)


def _list_warnings(schedule: Schedule, in_order: bool, same_tree: bool) -> Iterator[ScheduleFinding]:
    """Yield an error if the declared rank order is broken, and a warning if trees differ.

    The order is checked only for root 0, and only if the algorithm declares that it keeps the rank order.
    """
    if schedule.algorithm.in_order and schedule.root == 0 and not in_order:
        text = "operands are not combined in rank order, although the algorithm declares it"
        yield ScheduleFinding(text)
    if not same_tree:
        text = "ranks combine operands in different trees: floating-point results may differ between ranks"
        yield ScheduleFinding(text, warning=True)


class Change(NamedTuple):
    """A new value of a chunk of a rank in a step."""

    step: int
    rank: int
    chunk: int
    value: int


class SymbolicRun:
    """Symbolic execution of all ranks.

    Attributes:
        holds: for each rank, the number of the value of each chunk.
        heard: for each rank, the ranks from which it got messages, directly or not, as a bit set.
        changes: all changes of chunks, if ``log`` was set, else None.
        findings: the errors.
    """

    def __init__(self, table: RoundTable, matching: Matching, log: bool = False) -> None:
        self.schedule = table.schedule
        self.table = table
        self.size, self.chunk_count = self.schedule.size, self.schedule.chunk_count
        self.reduces = self.schedule.collective.reduces
        self.findings: list[ScheduleFinding] = []
        self.symbols = Symbols()
        self.holds: list[dict[int, int]] = [
            {c: self.symbols.leaf(rank, c) for c in self.schedule.starts_with(rank)}
            for rank in range(self.size)
        ]
        self.heard = [1 << rank for rank in range(self.size)]
        self.ends = matching.ends
        self.changes: list[Change] | None = [] if log else None
        self._mail: dict[tuple[int, int], deque[tuple[list[int | None], int]]] = defaultdict(deque)
        for rank, number, starts in matching.order:
            if starts:
                self._start_round(rank, number)
            else:
                self._end_round(rank, number)

    def _start_round(self, rank: int, number: int) -> None:
        """Send the messages of a rank's round, with the values from before the round.

        They are put into the mail of the pair of ranks. A chunk that the rank does not own becomes a finding, and
        None is sent in its place.

        Args:
            rank: the rank.
            number: the number of its round, from 0.
        """
        holds = self.holds[rank]
        for move in self.table.rounds[rank][number]:
            if move.kind != SEND:
                continue
            values = [holds.get(chunk) for chunk in move.chunks]
            if None in values:
                for chunk in move.chunks:
                    if chunk not in holds:
                        self._add_finding(number, rank, chunk, f"sends chunk {chunk}, which it does not hold")
            self._mail[rank, move.peer].append((values, self.heard[rank]))

    def _end_round(self, rank: int, number: int) -> None:
        """Take a round's messages, and run its copies and reductions, in the order written.

        A local instruction that uses a chunk which the rank does not own is a finding.

        Args:
            rank: the rank.
            number: the number of its round, from 0; all its messages have been sent.
        """
        holds = self.holds[rank]
        for move in self.table.rounds[rank][number]:
            if move.receives:
                values, heard = self._mail[move.peer, rank].popleft()
                self.heard[rank] |= heard
                self._store_values(rank, number, move, values)
            elif move.kind in (COPY, COMBINE):
                for chunk in move.source:
                    if chunk not in holds:
                        self._add_finding(number, rank, chunk, f"uses chunk {chunk}, which it does not hold")
                self._store_values(rank, number, move, [holds.get(chunk) for chunk in move.source])

    def _store_values(self, rank: int, number: int, move: Instruction, values: list[int | None]) -> None:
        """Replace the chunks of an instruction by values, or reduce the values into them.

        Findings of a reduction are:

        * a chunk that the rank does not own; then nothing is reduced;
        * the data of another chunk, or a rank's contribution that the chunk already has; then it is reduced all the
          same.

        With a log, the new values are recorded as changes.

        Args:
            rank: the rank.
            number: the number of its round.
            move: the instruction.
            values: the number of the value for each chunk; None, for a chunk that the sender did not have, is
                skipped.
        """
        holds, symbols = self.holds[rank], self.symbols
        reducing = move.kind in (REDUCE, COMBINE)
        left = move.incoming_left(rank)
        for chunk, value in zip(move.chunks, values):
            if value is None:
                continue
            if not reducing:
                holds[chunk] = value
                continue
            current = holds.get(chunk)
            if current is None:
                self._add_finding(number, rank, chunk, f"reduces into chunk {chunk}, which it does not hold")
                continue
            if symbols.chunk[current] % self.chunk_count != symbols.chunk[value] % self.chunk_count:
                text = (
                    f"adds the data of chunk {symbols.chunk[value]} to that of chunk {symbols.chunk[current]}"
                )
                self._add_finding(number, rank, chunk, text)
            twice = symbols.ranks[current] & symbols.ranks[value]
            if twice:
                self._add_finding(
                    number, rank, chunk, f"adds {_name_few(list_set_ranks(twice))} twice to chunk {chunk}"
                )
            holds[chunk] = symbols.combine(value, current) if left else symbols.combine(current, value)

        if self.changes is not None:
            step = self.ends[rank][number]
            self.changes += [Change(step, rank, c, holds[c]) for c in move.chunks if c in holds]

    def _add_finding(self, number: int | None, rank: int, chunk: int | None, text: str) -> None:
        """Record a finding."""
        moment = "at the end" if number is None else f"round {number}"
        self.findings.append(ScheduleFinding(f"{moment}: rank {rank} {text}", number, rank, chunk))

    def check_end(self) -> None:
        """Record a finding for each final value that is not what the collective specifies.

        After an all_reduce, for example, each chunk must have one contribution of each rank. After a barrier, each
        rank must have got messages from all others, directly or through other ranks; of several missing ranks the
        first is named.
        """
        schedule, promise = self.schedule, self.schedule.collective
        if promise.value == "nothing":
            for rank, heard in enumerate(self.heard):
                for missing in list_set_ranks((1 << self.size) - 1 & ~heard)[:1]:
                    self._add_finding(None, rank, None, f"leaves without having heard from rank {missing}")
            return
        for rank in range(self.size):
            for chunk in schedule.ends_with(rank):
                people = promise.contributors(rank, self.size, chunk, self.chunk_count, schedule.root)
                wanted = (1 << people.stop) - (1 << people.start)
                self._check_value(rank, chunk, wanted)

    def check_sizes(self) -> None:
        """Record a finding for each local copy or reduction between different chunks.

        Chunks of an uneven vector have different sizes, so their elements would not match. Scratch copies of a chunk
        have its size.
        """
        k = self.chunk_count
        for rank, rounds in enumerate(self.table.rounds):
            for number, moves in enumerate(rounds):
                for move in moves:
                    for source, target in zip(move.source, move.chunks):
                        if source % k != target % k:
                            does = "copies" if move.kind == COPY else "combines"
                            self._add_finding(
                                number,
                                rank,
                                target,
                                f"{does} chunk {source} into chunk {target}, which may have another size",
                            )

    def _check_value(self, rank: int, chunk: int, wanted: int) -> None:
        """Record a finding if a final chunk of a rank is missing or wrong.

        At most one is recorded, the first of these: the rank has no such chunk; it has the data of another chunk;
        contributions of ranks are missing; contributions of other ranks are in it.

        Args:
            rank: the rank.
            chunk: the chunk, below the chunk count.
            wanted: the contributing ranks as a bit set.
        """
        value = self.holds[rank].get(chunk)
        if value is None:
            self._add_finding(None, rank, chunk, f"has no chunk {chunk}")
            return
        contributors, holds = self.symbols.ranks[value], self.symbols.chunk[value]
        if holds % self.chunk_count != chunk:
            self._add_finding(
                None, rank, chunk, f"has the data of chunk {holds} in the place of chunk {chunk}"
            )
        elif wanted & ~contributors:
            who = _ranks(wanted & ~contributors)
            self._add_finding(None, rank, chunk, f"lacks the contribution of {who} in chunk {chunk}")
        elif contributors & ~wanted:
            self._add_finding(
                None,
                rank,
                chunk,
                f"has {_ranks(contributors & ~wanted)} in chunk {chunk}, which does not belong there",
            )

    def facts(self) -> tuple[bool, bool, int]:
        """Return `(in_order, same_tree, depth)`: how the results were reduced.

        Valid only if there are no findings. For a collective that does not reduce, it is ``(False, True, 0)``.

        Returns:
            * ``in_order``: True if operands are in rank order in every result;
            * ``same_tree``: True if a chunk has one reduction tree on all ranks, up to swapped operands, so that its
              bits are equal; the trees of scans are not compared;
            * ``depth``: the longest chain of operators; ``((0, 1), 2)`` has 2.
        """
        if not self.reduces:
            return False, True, 0
        symbols, schedule = self.symbols, self.schedule
        in_order, same_tree, depth = True, True, 0
        shapes: dict[int, int] = {}
        for rank in range(self.size):
            for chunk in schedule.ends_with(rank):
                value = self.holds[rank][chunk]
                in_order = in_order and symbols.sorted[value]
                depth = max(depth, symbols.depth[value])
                if schedule.collective.value == "sum":
                    shape = symbols.shape[value]
                    same_tree = same_tree and shapes.setdefault(chunk, shape) == shape
        return in_order, same_tree, depth


def _name_few(ranks: list[int]) -> str:
    """Return ranks as text, such as "rank 2" or "ranks 0, 1"; of more than four the first four and "…"."""
    names = ", ".join(map(str, ranks[:4])) + (", …" if len(ranks) > 4 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {names}"


def _ranks(ranks: int) -> str:
    """Name the ranks of a bit set, at most six."""
    names = list_set_ranks(ranks)
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(map(str, names[:6]))}{', ...' if len(names) > 6 else ''}"


def reduction_trees(schedule: Schedule, rank: int | None = None) -> dict[int, Tree]:
    """Return the order in which a schedule combines inputs, as a tree per chunk number.

    A tree is a rank, or a pair of trees ``(left operand, right operand)``. Chunks are ascending.

    Args:
        schedule: a correct schedule of a reducing collective.
        rank: the rank of the result; None: the first rank that ends with the chunk.

    Raises:
        ScheduleError: If a round or a message is wrong. That the result is complete is not checked.

    >>> from spmdsim.collectives import schedule_of
    >>> reduction_trees(schedule_of("all_reduce", "recursive_doubling", 4))
    {0: ((0, 1), (2, 3))}
    """
    run = SymbolicRun(*checked_matching(schedule))
    for finding in run.findings:
        raise ScheduleError(finding.text, schedule=schedule.name)
    trees: dict[int, Tree] = {}
    for owner in range(schedule.size) if rank is None else (rank,):
        for chunk in schedule.ends_with(owner):
            if chunk not in trees:
                trees[chunk] = run.symbols.tree(run.holds[owner][chunk])
    return dict(sorted(trees.items()))


Tree: TypeAlias = "int | tuple[Tree, Tree]"
"""A reduction tree as a value: a rank, or a pair ``(left operand, right operand)``."""


class Symbols:
    """Interned symbolic values, numbered from 0.

    A value is a leaf, rank ``r``'s input of chunk ``c``, or the combination of two values. Equal values
    have equal numbers. The attributes are lists by number:

    * ``chunk``: the chunk it is a value of.
    * ``ranks``: the contributors as a bit set.
    * ``depth``: longest chain of operator applications.
    * ``sorted``: True if its contributors, from left to right, are in rank order.
    * ``shape``: equal for values that differ only by swapped operands, which round identically.
    """

    def __init__(self) -> None:
        self.chunk: list[int] = []
        self.ranks: list[int] = []
        self.depth: list[int] = []
        self.sorted: list[bool] = []
        self.shape: list[int] = []
        self.operands: list[tuple[int, int] | None] = []
        self._leaves: dict[tuple[int, int], int] = {}
        self._pairs: dict[tuple[int, int], int] = {}
        self._shapes: dict[tuple[int, int], int] = {}

    def leaf(self, rank: int, chunk: int) -> int:
        """Return the number for rank ``rank``'s input of ``chunk``; the first call adds it."""
        number = self._leaves.get((rank, chunk))
        if number is None:
            number = self._add_value(chunk, 1 << rank, 0, True, None)
            self._leaves[rank, chunk] = number
            self.shape.append(number)
        return number

    def combine(self, left: int, right: int) -> int:
        """Return the number for the value ``left op right``; the first call for a pair adds it.

        The value counts as one of the chunk of ``left``. It is in order if both operands are, and all ranks of
        ``left`` are below those of ``right``. Values that differ only by swapped operands get equal entries in
        ``shape``.

        Args:
            left: the number of the left operand.
            right: the number of the right operand.
        """
        number = self._pairs.get((left, right))
        if number is None:
            left_ranks, right_ranks = self.ranks[left], self.ranks[right]
            lowest_right = right_ranks & -right_ranks
            is_below = left_ranks.bit_length() < lowest_right.bit_length()
            ordered = self.sorted[left] and self.sorted[right] and is_below
            depth = 1 + max(self.depth[left], self.depth[right])
            number = self._add_value(
                self.chunk[left], left_ranks | right_ranks, depth, ordered, (left, right)
            )
            self._pairs[left, right] = number
            first, second = sorted((self.shape[left], self.shape[right]))
            self.shape.append(self._shapes.setdefault((first, second), number))
        return number

    def _add_value(
        self, chunk: int, ranks: int, depth: int, ordered: bool, operands: tuple[int, int] | None
    ) -> int:
        """Add a value and return its number.

        Args:
            chunk: the chunk of its data.
            ranks: the ranks whose inputs it combines, as a bit set: 0b101 for ranks 0 and 2.
            depth: the longest chain of operators.
            ordered: True if it combines inputs in rank order.
            operands: the numbers of the two combined values; None for an input.
        """
        self.chunk.append(chunk)
        self.ranks.append(ranks)
        self.depth.append(depth)
        self.sorted.append(ordered)
        self.operands.append(operands)
        return len(self.chunk) - 1

    def tree(self, value: int) -> Tree:
        """Return how a value was combined, as nested pairs ``(left, right)`` of ranks.

        For example, ``((0, 1), 2)`` is the sum of ranks 0 and 1, to which rank 2 was added. An input is its rank. The
        method is not recursive, because trees may be deep.

        Args:
            value: the number of the value.
        """
        done: dict[int, Tree] = {}
        stack = [value]
        while stack:
            node = stack[-1]
            operands = self.operands[node]
            if operands is None:
                done[node] = self.ranks[node].bit_length() - 1
            elif operands[0] in done and operands[1] in done:
                done[node] = (done[operands[0]], done[operands[1]])
            else:
                stack += [o for o in operands if o not in done]
                continue
            stack.pop()
        return done[value]


def list_set_ranks(ranks: int) -> list[int]:
    """Return the ranks of a bit set.

    >>> list_set_ranks(0b1011)
    [0, 1, 3]
    """
    return [i for i in range(ranks.bit_length()) if ranks >> i & 1]
