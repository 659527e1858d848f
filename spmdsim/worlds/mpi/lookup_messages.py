"""Steps of rows on MPI: an Allgatherv or Alltoallv of the rows that other ranks want, derived once except for the ids.

Every rank derives from the ids which rows go to which rank, so only rows are sent. They arrive in a buffer in the
order of their owners, together with the rank's own rows, and one lookup in the buffer gives the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from zlib import crc32

import numpy as np
from mpi4py import MPI

from spmdsim.errors import WorldError, many
from spmdsim.redistribution.steps.row_steps import RowStep, Want, row_frame
from spmdsim.worlds.agreement.call import Call
from spmdsim.worlds.local_steps import Peers, add_gathered_gradients, place_rows, sum_row_gradients
from spmdsim.worlds.mpi import messages
from spmdsim.worlds.mpi.messages import Stretches, element
from spmdsim.worlds.mpi.shared import Windows
from spmdsim.worlds.pool import allocator
from spmdsim.worlds.programs import StepProgram


class RowProgram(StepProgram):
    """Step of rows as this rank runs it: the call that ranks compare, and the exchange of rows."""

    exchange: RowExchange | None = None

    def __init__(self, call: Call | None) -> None:
        self._call = call

    def call_for(self, ids: np.ndarray) -> Call | None:
        """Return the step's call with a description of the ids, which the ranks compare, too.

        The description has the number, dtype and CRC-32 of the ids. Returns None if the world compares no calls.

        Args:
            ids: this rank's ids, C-contiguous; equal on all ranks that make the call.
        """
        if self._call is None:
            return None
        return self._call.with_ids(
            f"{many(ids.size, f'{ids.dtype.name} id')} with checksum {crc32(ids.data):08x}"
        )

    def free(self) -> None:
        """Free MPI's types."""
        if self.exchange is not None:
            self.exchange.free()
            self.exchange = None


class RowExchange:
    """Exchange of rows of one rank, over the communicator of its group, sorted by rank.

    Args:
        step: the step.
        rank: the rank.
        comm: the communicator.
        dtype: the element type.
        near: True if all ranks of the group are on one node.
        windows: memory for the result if all ranks share one copy, else None.
    """

    def __init__(
        self, step: RowStep, rank: int, comm: MPI.Comm, dtype: np.dtype, near: bool, windows: Windows | None
    ) -> None:
        self.frame = frame = row_frame(step, rank)
        self.comm, self.dtype, self.near, self.windows = comm, dtype, near, windows
        self.me = frame.members.index(rank)
        #: The position in ``frame.members`` (the group's order) of each rank of the communicator, in its order.
        self.places = [frame.members.index(member) for member in sorted(frame.members)]
        self.target = step.dst.local_shape(step.shape, rank)
        self.width = self.target[-1]
        self.first, self.last = frame.edges[self.me], frame.edges[self.me + 1]
        self._whole, self._kind = False, element(dtype.itemsize)
        ids = math.prod(self.target[:-1])
        # Ids bound the buffers as much as rows do: a row that no id names is never sent.
        own_rows = self.last - self.first
        requested_rows = sum(
            min(_size(ids_slices), own_rows) for k, ids_slices in enumerate(frame.parts) if k != self.me
        )
        self._landing = allocator((min(ids, frame.count) + 1, self.width), dtype)
        self._packed = allocator((requested_rows, self.width), dtype)
        self._fresh = allocator((ids, self.width), dtype)
        self.types: list[MPI.Datatype] = []
        self._same_columns = len(set(map(str, frame.columns))) == 1
        self.held_shape = step.held_shape(rank)
        widths = {columns.stop - columns.start for columns in frame.columns}
        most = _size(frame.parts[0]) if frame.is_equal else sum(map(_size, frame.parts))
        if (most + 1) * max(widths) > messages.MAX_COUNT:
            if len(widths) > 1:
                raise WorldError(
                    f"ranks {list(frame.members)} would exchange more elements than MPI can count, in rows of "
                    f"different lengths {sorted(widths)}; split the ids instead of the columns"
                )
            # Count whole rows as MPI's elements.
            self._whole, self._kind = True, self._kind.Create_contiguous(self.width).Commit()
            self.types.append(self._kind)

    def free(self) -> None:
        """Free MPI's types."""
        for datatype in self.types:
            datatype.Free()

    def _unit(self, width: int) -> int:
        """Return the unit that MPI counts in a row of this width: its elements, or the row."""
        return 1 if self._whole else width

    def look_up(self, ids: np.ndarray, table: np.ndarray) -> tuple[np.ndarray, Peers]:
        """Return the rows of a table that ids name; each rank of the group owns some of the rows.

        For example, the ids [5, 1] give the rows 5 and 1, whichever ranks own them. All ranks of the group must call
        it. The result is read-only if ranks share it in memory.

        Args:
            ids: the ids, equal on all ranks that share rows. The padding (an id that names no row) gets zeros.
            table: this rank's shard of the table.

        Returns:
            ``(rows, peers)``.
            ``rows``: the rows in the shape of the result's shard, one per id.
            ``peers``: ``(peer, elements)`` for each other rank: how many elements this rank received from it.

        Raises:
            InputError: If ids are no integers, or an id is neither a row nor the padding.
        """
        wants = self.frame.wants(ids)
        if self.windows is not None and (memory := self.windows.memory()) is not None:
            return self._fill_shared(memory, ids, table), tuple(self.frame.looked_up_elements(wants, self.me))
        want = wants[self.me]
        rows = self._landing()
        start, stop = want.places[self.me : self.me + 2]
        if start < stop and self.width:
            _copy_rows(table, self.frame.columns[self.me], want.of(self.me) - self.first, rows[start:stop])
        received = self._gather(wants, rows) if self.frame.is_equal else self._exchange(wants, table, rows)
        if want.has_padding:
            rows[len(want.rows)] = 0
        out = self._fresh()
        if out.size:
            np.take(rows, want.index, axis=0, out=out, mode="clip")
        return out.reshape(self.target), received

    def _count_incoming(self, want: Want) -> Stretches:
        """Return what MPI must know to receive the rows that this rank wants.

        These are, in the order of the communicator, the counts from each rank, this one included, and their offsets in
        the buffer of distinct rows. They count elements or, if there are too many, whole rows (:meth:`_unit`).

        Args:
            want: the rows that this rank wants.
        """
        unit = self._unit(self.width)
        counts = [want.counts[k] * unit for k in self.places]
        starts = [want.places[k] * unit for k in self.places]
        return Stretches(counts, starts)

    def _received_elements(self, counts: Sequence[int]) -> Peers:
        """Return ``(rank, elements)`` of each other rank, in the group's order.

        Args:
            counts: the counts of the call, in the order of the communicator: elements or rows.
        """
        elements_per_count = self.width if self._whole else 1
        elements = {k: count * elements_per_count for k, count in zip(self.places, counts) if k != self.me}
        return tuple((self.frame.members[k], elements[k]) for k in sorted(elements))

    def _gather(self, wants: Sequence[Want], rows: np.ndarray) -> Peers:
        """Receive the rows that all ranks want into ``rows``, in which this rank's own rows are.

        Every rank wants equal rows. On one node, each rank sends its rows to each other rank (:meth:`_send_to_each`).
        On several nodes, an Allgatherv passes them on. Nothing is sent if no row is wanted.

        Args:
            wants: the rows that each member wants, in the group's order.
            rows: the buffer of the distinct rows; it is filled.

        Returns:
            ``(peer, elements)`` for each other rank.
        """
        want = wants[self.me]
        counts, starts = self._count_incoming(want)
        if max(want.counts) and self.width:
            if self.near:
                self._send_to_each(rows, counts, starts)
            else:
                self.comm.Allgatherv(MPI.IN_PLACE, [rows, (counts, starts), self._kind])
        return self._received_elements(counts)

    def _send_to_each(self, rows: np.ndarray, counts: list[int], starts: list[int]) -> None:
        """Send this rank's rows to each other rank, and receive theirs, in one Alltoallv.

        The result is that of an Allgatherv. On one node, where a message to any rank takes equally long, this takes at
        most half of its time, because an Allgatherv passes rows around a ring.

        Args:
            rows: the buffer of the distinct rows, with this rank's own; the others are received into it.
            counts: the count of each rank's rows, in the order of the communicator.
            starts: the offset of each rank's rows in the buffer, in that order.
        """
        own_place, unit = self.places.index(self.me), self._unit(self.width)
        first, count = starts[own_place] // unit, counts[own_place]
        sent = [count if k != own_place else 0 for k in range(len(counts))]
        received_counts = [0 if k == own_place else count_ for k, count_ in enumerate(counts)]
        # The two buffers must not start at one address. The owner of the first rows receives behind them, and a
        # rank without rows sends nothing, from the end.
        skip = count // unit if first == 0 else 0
        first = first if count else len(rows) - 1
        places = [start - skip * unit if count_ else 0 for start, count_ in zip(starts, received_counts)]
        self.comm.Alltoallv(
            [rows[first:], (sent, [0] * len(sent)), self._kind],
            [rows[skip:], (received_counts, places), self._kind],
        )

    def _exchange(self, wants: Sequence[Want], table: np.ndarray, rows: np.ndarray) -> Peers:
        """Receive the rows that this rank wants into ``rows``, and send the others what they want.

        Nothing is sent if no rank wants a row of another one.

        Args:
            wants: the rows that each member wants, in the group's order.
            table: this rank's shard of the table.
            rows: the buffer of the distinct rows; it is filled.

        Returns:
            ``(peer, elements)`` received from each other rank.
        """
        incoming = self._count_incoming(wants[self.me]).without(self.places.index(self.me))
        if _want_rows_of_others(wants):
            outgoing, packed = self._pack(wants, table)
            self.comm.Alltoallv([packed, outgoing, self._kind], [rows, incoming, self._kind])
        return self._received_elements(incoming.counts)

    def give_back(self, ids: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, Peers]:
        """Return the gradient of this rank's shard of a table, from the gradients of looked-up rows.

        A row's gradient is the sum over all ids that name it: with ids [5, 1, 5] and gradients a, b, c, row 5 gets the
        sum of a and c, and row 1 gets b. Each rank sums the gradients of its own ids, and sends the sums to the rows'
        owners. Gradients for the padding (an id that names no row) are dropped. All ranks of the group must call it.

        Args:
            ids: the ids of the lookup.
            gradients: the gradients of the looked-up rows, in the shape of the result's shard.

        Returns:
            ``(gradient, peers)``.
            ``gradient``: a new array in the shape of the shard; rows that no id names are 0.
            ``peers``: ``(peer, elements)`` for each other rank: how many elements this rank received from it.

        Raises:
            InputError: If ids are no integers, or an id is neither a row nor the padding.
        """
        wants, size = self.frame.wants(ids), len(self.places)
        sums = sum_row_gradients(wants[self.me], gradients)
        sent = self._count_incoming(wants[self.me]).without(self.places.index(self.me))
        counts, starts = self._requested_elements(wants)
        received = self._packed() if self._same_columns else np.empty(sum(counts), self.dtype)
        if _want_rows_of_others(wants):
            self.comm.Alltoallv([sums, sent, self._kind], [received, (counts, starts), self._kind])
        flat, parts = received.reshape(-1), [sums[:0]] * size
        elements_per_count = self.width if self._whole else 1
        for k, count, start in zip(self.places, counts, starts):
            width = self.frame.columns[k].stop - self.frame.columns[k].start
            if k != self.me and count:
                parts[k] = flat[start * elements_per_count : (start + count) * elements_per_count].reshape(
                    -1, width
                )
        want = wants[self.me]
        parts[self.me] = sums[want.places[self.me] : want.places[self.me + 1]]
        gradient = add_gathered_gradients(self.frame, wants, self.me, parts, self.held_shape)
        return gradient, self._received_elements(counts)

    def _requested_elements(self, wants: Sequence[Want]) -> Stretches:
        """Return the counts and packed offsets of the elements that each rank wants from this rank.

        Both lists have one entry per rank of the group, in the order of the communicator. A count is the number of this
        rank's rows that the other rank wants, times the number of columns of the other rank; it is 0 for this rank. If
        MPI cannot count the elements, the count is the number of rows (:meth:`_unit`). An offset is the sum of the
        counts before.

        Args:
            wants: the rows that each member of the group wants, in the group's order.
        """
        columns = [self.frame.columns[k] for k in self.places]
        rows = [wants[k].counts[self.me] if k != self.me else 0 for k in self.places]
        counts = [
            row_count * self._unit(columns_slice.stop - columns_slice.start)
            for row_count, columns_slice in zip(rows, columns)
        ]
        return Stretches.of(counts)

    def _pack(self, wants: Sequence[Want], table: np.ndarray) -> tuple[Stretches, np.ndarray]:
        """Return the rows of this rank's shard that other ranks want, packed to be sent.

        Each rank gets only the columns that it owns of the result.

        Args:
            wants: the rows that each member wants, in the group's order.
            table: this rank's shard of the table.

        Returns:
            ``(layout, packed)``.
            ``layout``: how much each rank gets and from which offset, as in :meth:`_requested_elements`.
            ``packed``: the elements, in the order of the communicator.
        """
        requested_rows = [wants[k].of(self.me) if k != self.me else wants[k].rows[:0] for k in self.places]
        if self._same_columns:
            rows, packed = np.concatenate(requested_rows), self._packed()
            _copy_rows(table, self.frame.columns[self.me], rows - self.first, packed[: len(rows)])
            return self._requested_elements(wants), packed
        columns = [self.frame.columns[k] for k in self.places]
        pieces = [
            table[:, columns_slice][rows - self.first].reshape(-1)
            for rows, columns_slice in zip(requested_rows, columns)
        ]
        return self._requested_elements(wants), np.concatenate(pieces)

    def _fill_shared(self, memory: np.ndarray, ids: np.ndarray, table: np.ndarray) -> np.ndarray:
        """Write the rows that this rank owns into a result that all ranks share.

        All ranks must call it; it returns when all have written. If rank 0 owns row 1 and rank 1 owns row 5, the ids
        [5, 1] make rank 0 write the second row of the result and rank 1 the first one. The group's first member also
        writes zeros for the padding (an id that names no row).

        Args:
            memory: the bytes of the result, uninitialised.
            ids: the ids, equal on all ranks; they are not checked here.
            table: this rank's shard of the table.

        Returns:
            The read-only result in the shape :attr:`target`, that of this rank's shard of the lookup's result.
        """
        out, flat = memory.view(self.dtype).reshape(-1, self.width), ids.reshape(-1)
        own_ids = np.flatnonzero((flat >= self.first) & (flat < self.last))
        if self.frame.padding is not None:
            empty = flat == self.frame.padding
            own_ids = own_ids[~empty[own_ids]]
            if self.me == 0:
                out[empty] = 0
        place_rows(table, flat[own_ids].astype(np.intp) - self.first, out, own_ids)
        self.comm.Barrier()
        shared: np.ndarray = out.reshape(self.target)
        shared.flags.writeable = False
        return shared


def _size(ids_slices: tuple[slice, ...]) -> int:
    """Return the number of ids in a part."""
    return math.prod(slice_.stop - slice_.start for slice_ in ids_slices)


def _want_rows_of_others(wants: Sequence[Want]) -> bool:
    """Return True if a member of a group wants rows that another member owns.

    ``wants`` has the rows that each member wants, in the group's order.
    """
    return any(
        count
        for member, want in enumerate(wants)
        for owner, count in enumerate(want.counts)
        if owner != member
    )


def _copy_rows(table: np.ndarray, columns: slice, rows: np.ndarray, out: np.ndarray) -> None:
    """Copy the ``columns`` of some rows of a table to ``out``.

    Args:
        table: a matrix.
        columns: the columns, as a slice with start and stop.
        rows: the numbers of the rows, all valid.
        out: a matrix with a row per number; it is filled.
    """
    if not out.size:
        return
    if columns.stop - columns.start == table.shape[1]:
        # Any other mode than "raise" spares numpy a second buffer.
        np.take(table, rows, axis=0, out=out, mode="clip")
    else:
        out[...] = table[:, columns][rows]
