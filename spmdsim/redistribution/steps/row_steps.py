"""Send rows of a split table to the ranks whose ids name them.

Every rank of a group knows the ids of the whole group. So every rank knows, without a message, which rows each other rank
wants and which rank owns them. Each rank receives every row that it wants and does not own once, and nothing is added up.
This replaces the all_reduce or reduce_scatter of a lookup in which each rank contributes zeros for rows of other ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from spmdsim.core import Layout
from spmdsim.core.step import Step
from spmdsim.errors import InputError, PlanError
from spmdsim.redistribution.grid import next_run

#: All ranks of a group want equal rows.
GATHER_ROWS = "gather_rows"
#: Ranks of a group want different rows.
EXCHANGE_ROWS = "exchange_rows"
#: Each rank returns the gradients of the rows that it wanted to their owners.
RETURN_ROWS = "return_rows"

#: The largest number of rows per id for which rows are marked in a mask. For larger tables, ids are sorted.
SPARSE = 64


@dataclass(frozen=True)
class RowStep(Step):
    """A lookup of ids in a table split by rows, whose result has no pending values.

    ``src`` is the layout of a lookup with zeros, pending over ``axes``. ``shape`` is the shape of the rows, ``[..., h]``. The
    table is ``[count, h]``. The id ``padding`` names no row and gives zeros.
    """

    table: Layout = field(kw_only=True)
    count: int = field(kw_only=True)
    padding: int | None = field(default=None, kw_only=True)

    def received_elements(self, rank: int) -> int:
        """Return the expected number of elements that ``rank`` receives, for ids spread evenly and at random over the table."""
        return sum(count for peer, count in self.expected(rank) if peer != rank)

    @cached_property
    def returning(self) -> RowStep | None:
        """The step that returns gradients to the rows' owners, or None if ranks of a group have equal gradients.

        ``src`` and ``dst`` are those of the lookup.
        """
        size = self.src.mesh.axis_size
        if any(axis not in self.dst.split_axes for axis in self.axes if size(axis) > 1):
            return None
        return replace(self, collective=RETURN_ROWS)

    @property
    def goes_back(self) -> bool:
        """True if gradients go back to the rows' owners."""
        return self.collective == RETURN_ROWS

    @property
    def table_shape(self) -> tuple[int, int]:
        """Global shape of the table, ``(v, h)``."""
        return self.count, self.shape[-1]

    def held_shape(self, rank: int) -> tuple[int, ...]:
        """Return the shape of a rank's shard of the table."""
        return self.table.local_shape(self.table_shape, rank)

    def received(self, rank: int, ids: np.ndarray) -> int:
        """Return the elements that ``rank`` receives for the ids of its group."""
        frame = row_frame(self, rank)
        me, wants = frame.members.index(rank), frame.wants(ids)
        elements = frame.returned if self.goes_back else frame.elements
        return sum(count for _, count in elements(wants, me))

    def expected(self, rank: int) -> list[tuple[int, int]]:
        """Return ``(member, elements)``: the elements that ``rank`` expects from each member for evenly spread ids."""
        if rank not in self.src.mesh:
            return []
        frame = row_frame(self, rank)
        held = [stop - start for start, stop in pairwise(frame.edges)]
        me = frame.members.index(rank)
        if self.goes_back:
            return [(m, self._wanted(m, held[me])) for m in frame.members]
        return [(m, self._wanted(rank, rows)) for m, rows in zip(frame.members, held)]

    def sent_elements(self, rank: int) -> int:
        """Return the elements that ``rank`` expects to send to others: those that the reverse step would receive."""
        other = replace(self, collective=EXCHANGE_ROWS if self.goes_back else RETURN_ROWS)
        return sum(count for peer, count in other.expected(rank) if peer != rank)

    def _wanted(self, rank: int, rows: int) -> int:
        """Return the expected elements of ``rows`` table rows that a rank's ids name if they are spread evenly."""
        *ids, width = self.dst.local_shape(self.shape, rank)
        tokens = math.prod(ids)
        # The chance that a row is among t ids drawn at random is 1 - (1 - 1/v)^t.
        missed = tokens * math.log1p(-1 / self.count) if self.count > 1 else -math.inf
        return width * round(rows * -math.expm1(missed)) if tokens and self.count else 0


def row_step(
    src: Layout, table: Layout, target: Layout, shape: tuple[int, ...], count: int, padding: int | None = None
) -> RowStep:
    """Return the step from a table's rows to the layout closest to a target layout.

    If the next axes of a target dimension split the table's rows, the step splits the dimension by them.

    Raises:
        PlanError: If the table's rows are not split.
    """
    axes = table.dims[0]
    if not axes:
        raise PlanError(f"the rows of a table in {table} are not split, so each rank has all rows it wants")
    free = {*axes}
    dims = [entry + next_run(entry, wanted, free) for entry, wanted in zip(src.dims, target.dims)]
    dst = Layout(src.mesh, dims)
    alike = dst.canonical == src.reduced.canonical
    name = GATHER_ROWS if alike else EXCHANGE_ROWS
    return RowStep(name, axes, src, dst, shape, table=table, count=count, padding=padding)


@dataclass(frozen=True, eq=False)
class Want:
    """The rows that one rank's ids name.

    ``rows`` are their numbers, each once, ascending: first those of the group's first member, and so on, from ``places`` to
    ``places``. ``index`` says for each id where its row is in ``rows``: ``len(rows)`` for an id that names none.
    """

    rows: np.ndarray
    places: tuple[int, ...]
    index: np.ndarray
    nobody: bool

    @property
    def counts(self) -> tuple[int, ...]:
        """Rows wanted from each member, the rank itself included."""
        return tuple(stop - start for start, stop in pairwise(self.places))

    def of(self, member: int) -> np.ndarray:
        """Return the rows wanted from a member, by its number in the group."""
        return self.rows[self.places[member] : self.places[member + 1]]


@dataclass(frozen=True)
class RowFrame:
    """What of a step of rows is known before the ids are, for one group.

    Args:
        members: its ranks, in the order in which they hold the table's rows.
        edges: where each member's rows begin in the table, and the end.
        parts: per member, its part of the group's ids.
        columns: per member, the columns it wants of those that the group holds.
        alike: whether all members want the same.
    """

    members: tuple[int, ...]
    edges: tuple[int, ...]
    parts: tuple[tuple[slice, ...], ...]
    columns: tuple[slice, ...]
    alike: bool
    count: int
    padding: int | None

    def wants(self, ids: np.ndarray) -> tuple[Want, ...]:
        """Return the rows that each member wants, for the group's ids."""
        checked = checked_ids(ids, self.count, self.padding)
        if self.alike:
            return (self._want(checked),) * len(self.members)
        wants: dict[str, Want] = {}  # members that differ in columns only want the same rows
        for part in self.parts:
            if str(part) not in wants:
                wants[str(part)] = self._want(checked[part])
        return tuple(wants[str(part)] for part in self.parts)

    def _want(self, ids: np.ndarray) -> Want:
        rows, index, nobody = distinct(ids.reshape(-1), self.count)
        return Want(rows, tuple(np.searchsorted(rows, self.edges).tolist()), index, nobody)

    def elements(self, wants: Sequence[Want], member: int) -> list[tuple[int, int]]:
        """Return ``(rank, elements)``: the elements that a member receives from each other rank of the group."""
        width = self.columns[member].stop - self.columns[member].start
        counts = wants[member].counts
        return [(m, rows * width) for k, (m, rows) in enumerate(zip(self.members, counts)) if k != member]

    def returned(self, wants: Sequence[Want], member: int) -> list[tuple[int, int]]:
        """Return ``(rank, elements)``: the elements of gradients that each other rank returns to a member."""
        widths = [part.stop - part.start for part in self.columns]
        rows = [want.counts[member] for want in wants]
        return [(m, rows[k] * widths[k]) for k, m in enumerate(self.members) if k != member]


def row_frame(step: RowStep, rank: int) -> RowFrame:
    """Return the frame of the group of ``rank``."""
    return _frame(step, step.group(rank))


@lru_cache(maxsize=4096)
def _frame(step: RowStep, members: tuple[int, ...]) -> RowFrame:
    held = [step.table.bounds(step.table_shape, m)[0] for m in members]
    base = step.src.bounds(step.shape, members[0])
    boxes = [step.dst.bounds(step.shape, m) for m in members]
    within = [tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(box, base)) for box in boxes]
    return RowFrame(
        members,
        (*(start for start, _ in held), held[-1][1]),
        tuple(part[:-1] for part in within),
        tuple(part[-1] for part in within),
        len(set(boxes)) == 1,
        step.count,
        step.padding,
    )


def checked_ids(
    ids: np.ndarray, count: int, padding: int | None = None, what: str = "rows of the table"
) -> np.ndarray:
    """Return the ids with ``count`` in place of padding.

    Raises:
        InputError: If ids are not integers, or an id is neither in ``0 .. count-1`` nor the padding.
    """
    if ids.dtype.kind not in "iu":
        raise InputError(f"{what} are looked up by integers, but the ids are {ids.dtype}")
    padded = None if padding is None else ids == padding
    named = ids if padded is None else ids[~padded]
    if named.size and (np.minimum.reduce(named, None) < 0 or np.maximum.reduce(named, None) >= count):
        bad = named[(named < 0) | (named >= count)].flat[0]
        raise InputError(f"id {bad} is outside 0..{count - 1}, the {what} there are")
    return ids if padded is None or named.size == ids.size else np.where(padded, count, ids.astype(np.int64))


def distinct(ids: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return the distinct ids below ``count`` in ascending order, the index of each id in them, and if other ids occur.

    >>> [part.tolist() for part in distinct(np.array([7, 2, 9, 2]), 9)[:2]]
    [[2, 7], [1, 0, 2, 0]]
    """
    if count > SPARSE * ids.size:
        rows, index = np.unique(ids, return_inverse=True)
        nobody = bool(rows.size) and int(rows[-1]) >= count
        return (rows[:-1] if nobody else rows), index.reshape(-1), nobody
    marks = np.zeros(count + 1, np.bool_)
    marks[ids] = True
    rows = np.flatnonzero(marks[:count])
    place = np.empty(count + 1, np.intp)
    place[rows] = np.arange(len(rows))
    place[count] = len(rows)
    return rows, place[ids], bool(marks[count])
