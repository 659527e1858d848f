"""Send rows of a split table to the ranks whose ids name them.

Every rank of a group knows the ids of the whole group. So every rank knows, without a message, which rows each other
rank wants and which rank owns them. Each rank receives every row that it wants and does not own once, and nothing is
added up. This replaces the all_reduce or reduce_scatter of a lookup in which each rank contributes zeros for rows of
other ranks.
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
from spmdsim.redistribution.grid import next_axes

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
    """Lookup of ids in a table split by rows, whose result has no pending values.

    Attributes:
        src: the layout of a lookup with zeros, pending over ``axes``.
        shape: the shape of the looked-up rows, ``[..., h]``.
        table: the layout of the table, whose shape is ``[count, h]``.
        count: the number of rows of the table.
        padding: an id that names no row and gives zeros, or None.
    """

    table: Layout = field(kw_only=True)
    count: int = field(kw_only=True)
    padding: int | None = field(default=None, kw_only=True)

    def received_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` is expected to receive from others.

        The expectation is for ids drawn evenly and at random.
        """
        return sum(count for peer, count in self.expected_elements(rank) if peer != rank)

    @cached_property
    def returning(self) -> RowStep | None:
        """Step that returns gradients to the rows' owners, or None if ranks of a group have equal gradients.

        Its ``src`` and ``dst`` are those of the lookup.
        """
        size = self.src.mesh.axis_size
        if any(axis not in self.dst.split_axes for axis in self.axes if size(axis) > 1):
            return None
        return replace(self, collective=RETURN_ROWS)

    @property
    def goes_back(self) -> bool:
        """True if the step returns gradients to the rows' owners."""
        return self.collective == RETURN_ROWS

    @property
    def table_shape(self) -> tuple[int, int]:
        """Global shape of the table, ``(count, h)``."""
        return self.count, self.shape[-1]

    def held_shape(self, rank: int) -> tuple[int, ...]:
        """Return the shape of a rank's shard of the table."""
        return self.table.local_shape(self.table_shape, rank)

    def received_for_ids(self, rank: int, ids: np.ndarray) -> int:
        """Return the number of elements that ``rank`` receives for the ids of its group."""
        frame = row_frame(self, rank)
        me, wants = frame.members.index(rank), frame.wants(ids)
        count = frame.returned_elements if self.goes_back else frame.looked_up_elements
        return sum(elements for _, elements in count(wants, me))

    def expected_elements(self, rank: int) -> list[tuple[int, int]]:
        """Return the elements that each rank of the group should send to ``rank``, on average.

        The average is over ids drawn evenly and at random. A step that returns gradients sends these instead of rows.

        Args:
            rank: the receiver.

        Returns:
            ``(member, elements)`` in the order in which the members own the table's rows, ``rank`` itself included; []
                for
            a rank outside of the source mesh.
        """
        if rank not in self.src.mesh:
            return []
        frame = row_frame(self, rank)
        row_counts = [stop - start for start, stop in pairwise(frame.edges)]
        me = frame.members.index(rank)
        if self.goes_back:
            return [(m, self._expected_elements(m, row_counts[me])) for m in frame.members]
        return [(m, self._expected_elements(rank, rows)) for m, rows in zip(frame.members, row_counts)]

    def sent_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` is expected to send to others.

        It is the number that the reverse step would receive.
        """
        reverse = replace(self, collective=EXCHANGE_ROWS if self.goes_back else RETURN_ROWS)
        return sum(count for peer, count in reverse.expected_elements(rank) if peer != rank)

    def _expected_elements(self, rank: int, rows: int) -> int:
        """Return the expected number of elements of the distinct rows that a rank's ids name.

        A row is among t ids drawn evenly from v rows with probability 1 - (1 - 1/v)^t. The result is the width of a
        row times the rounded number of rows.
        """
        *ids, width = self.dst.local_shape(self.shape, rank)
        tokens = math.prod(ids)
        # The chance that a row is among t ids drawn at random is 1 - (1 - 1/v)^t.
        missed = tokens * math.log1p(-1 / self.count) if self.count > 1 else -math.inf
        return width * round(rows * -math.expm1(missed)) if tokens and self.count else 0


def build_row_step(
    src: Layout, table: Layout, target: Layout, shape: tuple[int, ...], count: int, padding: int | None = None
) -> RowStep:
    """Return the lookup of rows in a table that is split by rows, without pending values.

    Its result has the layout of ``src`` without pending axes. If the next axes of a dimension of ``target`` split the
    table's rows, the result is split by them, too: then the step is :data:`EXCHANGE_ROWS`, else :data:`GATHER_ROWS`.

    Args:
        src: the layout of a lookup with zeros, pending over the axes that split the table's rows.
        table: the layout of the table.
        target: the layout of the result that the caller wants.
        shape: the global shape of the result.
        count: the number of rows of the table.
        padding: an id that names no row, or None.

    Raises:
        PlanError: If the table's rows are not split.
    """
    axes = table.dims[0]
    if not axes:
        raise PlanError(f"the rows of the table must be split, got {table}; look rows up without a step")
    row_axes = {*axes}
    dims = [entry + next_axes(entry, wanted, row_axes) for entry, wanted in zip(src.dims, target.dims)]
    dst = Layout(src.mesh, dims)
    is_equal_on_ranks = dst.canonical == src.reduced.canonical
    name = GATHER_ROWS if is_equal_on_ranks else EXCHANGE_ROWS
    return RowStep(name, axes, src, dst, shape, table=table, count=count, padding=padding)


@dataclass(frozen=True, eq=False)
class Want:
    """Rows that one rank's ids name.

    Attributes:
        rows: their numbers, distinct and ascending: first those of the group's first member, and so on.
        places: the start of each member's rows in ``rows``, and the end.
        index: for each id the index of its row in ``rows``; ``len(rows)`` for an id that names no row.
        has_padding: True if an id names no row.
    """

    rows: np.ndarray
    places: tuple[int, ...]
    index: np.ndarray
    has_padding: bool

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of rows from each member, including the rank itself."""
        return tuple(stop - start for start, stop in pairwise(self.places))

    def of(self, member: int) -> np.ndarray:
        """Return the rows that a member owns, by its number in the group."""
        return self.rows[self.places[member] : self.places[member + 1]]


@dataclass(frozen=True)
class RowFrame:
    """Facts about a step of rows that do not depend on the ids, for one group.

    Args:
        members: the group's ranks, in the order in which they own the table's rows.
        edges: the first row of each member, and the end of the table.
        parts: per member, its part of the group's ids.
        columns: per member, the columns that it wants of those that the group owns.
        is_equal: True if all members want equal elements.
        count: the number of rows of the table.
        padding: an id that names no row, or None.
    """

    members: tuple[int, ...]
    edges: tuple[int, ...]
    parts: tuple[tuple[slice, ...], ...]
    columns: tuple[slice, ...]
    is_equal: bool
    count: int
    padding: int | None

    def wants(self, ids: np.ndarray) -> tuple[Want, ...]:
        """Return the rows that each member's ids name, in the order of the members.

        Members with equal ids share one object.

        Args:
            ids: the ids of the whole group.

        Raises:
            InputError: If ids are no integers, or an id is neither a row nor the padding.
        """
        checked = check_ids(ids, self.count, self.padding)
        if self.is_equal:
            return (self._want(checked),) * len(self.members)
        wants: dict[str, Want] = {}  # Members that differ only in columns want equal rows.
        for ids_slice in self.parts:
            if str(ids_slice) not in wants:
                wants[str(ids_slice)] = self._want(checked[ids_slice])
        return tuple(wants[str(ids_slice)] for ids_slice in self.parts)

    def _want(self, ids: np.ndarray) -> Want:
        """Return the rows that these ids name."""
        rows, index, has_padding = find_distinct(ids.reshape(-1), self.count)
        return Want(rows, tuple(np.searchsorted(rows, self.edges).tolist()), index, has_padding)

    def looked_up_elements(self, wants: Sequence[Want], member: int) -> list[tuple[int, int]]:
        """Return ``(rank, elements)``: the elements that a member receives from each other rank of the group."""
        width = self.columns[member].stop - self.columns[member].start
        counts = wants[member].counts
        return [(m, rows * width) for k, (m, rows) in enumerate(zip(self.members, counts)) if k != member]

    def returned_elements(self, wants: Sequence[Want], member: int) -> list[tuple[int, int]]:
        """Return ``(rank, elements)``: the elements of gradients that each other rank returns to a member."""
        widths = [column.stop - column.start for column in self.columns]
        rows = [want.counts[member] for want in wants]
        return [(m, rows[k] * widths[k]) for k, m in enumerate(self.members) if k != member]


def row_frame(step: RowStep, rank: int) -> RowFrame:
    """Return the facts about a step for the group of ``rank``."""
    return _build_frame(step, step.group(rank))


@lru_cache(maxsize=4096)
def _build_frame(step: RowStep, members: tuple[int, ...]) -> RowFrame:
    """Return the facts about a step for one group, which do not depend on the ids; cached.

    They are the rows of the table that each member owns, and the ids and columns of the result that each member
    wants. Boxes of ids and columns count from the start of the first member's box before the step: if that starts at
    id 8, the ids 8 to 11 are the slice 0:4.

    Args:
        step: the step.
        members: the group's ranks, in the order in which they own the table's rows.
    """
    row_bounds = [step.table.bounds(step.table_shape, member)[0] for member in members]
    first_box = step.src.bounds(step.shape, members[0])
    boxes = [step.dst.bounds(step.shape, member) for member in members]
    relative_boxes = [
        tuple(slice(start - origin, stop - origin) for (start, stop), (origin, _) in zip(box, first_box))
        for box in boxes
    ]
    return RowFrame(
        members,
        edges=(*(start for start, _ in row_bounds), row_bounds[-1][1]),
        parts=tuple(slices[:-1] for slices in relative_boxes),
        columns=tuple(slices[-1] for slices in relative_boxes),
        is_equal=len(set(boxes)) == 1,
        count=step.count,
        padding=step.padding,
    )


def check_ids(
    ids: np.ndarray, count: int, padding: int | None = None, description: str = "rows of the table"
) -> np.ndarray:
    """Check that ids are rows, and return them with ``count`` in place of the padding.

    The ids themselves are returned if none is the padding; else a copy of type int64.

    Args:
        ids: the ids, of any shape.
        count: the number of rows.
        padding: the id that names no row, or None.
        description: a phrase for the rows, for messages.

    Raises:
        InputError: If ids are not integers, or an id is neither in ``0 .. count-1`` nor the padding.
    """
    if ids.dtype.kind not in "iu":
        raise InputError(f"{description} are looked up by integers, but the ids are {ids.dtype}")
    padded = None if padding is None else ids == padding
    named = ids if padded is None else ids[~padded]
    if named.size and (np.minimum.reduce(named, None) < 0 or np.maximum.reduce(named, None) >= count):
        wrong_id = named[(named < 0) | (named >= count)].flat[0]
        raise InputError(f"id {wrong_id} is outside 0..{count - 1}, the numbers of the {description}")
    return ids if padded is None or named.size == ids.size else np.where(padded, count, ids.astype(np.int64))


def find_distinct(ids: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return the distinct ids, the index of each id in them, and True if ``count`` occurs.

    An id is a row of a table of ``count`` rows; the id ``count`` names no row (padding). The distinct ids are
    ascending, without ``count``; its index is the number of distinct ids. If the table has more than :data:`SPARSE`
    (64) rows per id, ids are sorted, else marked in a mask.

    Args:
        ids: integers in ``0 .. count``, one-dimensional; not checked.
        count: the number of rows of the table.

    >>> rows, index, is_padded = find_distinct(np.array([7, 2, 9, 2]), 9)
    >>> rows.tolist(), index.tolist(), is_padded
    ([2, 7], [1, 0, 2, 0], True)
    """
    if count > SPARSE * ids.size:
        rows, index = np.unique(ids, return_inverse=True)
        has_padding = bool(rows.size) and int(rows[-1]) >= count
        return (rows[:-1] if has_padding else rows), index.reshape(-1), has_padding
    marks = np.zeros(count + 1, np.bool_)
    marks[ids] = True
    rows = np.flatnonzero(marks[:count])
    index_of = np.empty(count + 1, np.intp)
    index_of[rows] = np.arange(len(rows))
    index_of[count] = len(rows)
    return rows, index_of[ids], bool(marks[count])
