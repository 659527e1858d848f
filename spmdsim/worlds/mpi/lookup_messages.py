"""Steps of rows on MPI: Allgatherv or Alltoallv of the rows that others want, derived once but for the ids.

Every rank works out from the ids which rows go where, so nothing but rows is sent. They land in a buffer in the
order of their owners, the rank's own rows among them, and one lookup in it gives the result.
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
from spmdsim.worlds.local_steps import Peers, gathered_gradient, place_rows, summed
from spmdsim.worlds.mpi import messages
from spmdsim.worlds.mpi.messages import Stretches, element
from spmdsim.worlds.mpi.shared import Windows
from spmdsim.worlds.pool import allocator
from spmdsim.worlds.programs import StepProgram


class RowProgram(StepProgram):
    """A step of rows as this rank runs it: the call that ranks compare, and what sends its rows."""

    exchange: RowExchange | None = None

    def __init__(self, call: Call | None) -> None:
        self._call = call

    def call_for(self, ids: np.ndarray) -> Call | None:
        """Return the call for these ids, which the ranks compare, too."""
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
    """What one rank does in a step of rows, over the communicator of its group, sorted by rank.

    ``near`` says that all ranks of the group are on one node; ``windows`` are memory for the result, if they share one copy.
    """

    def __init__(
        self, step: RowStep, rank: int, comm: MPI.Comm, dtype: np.dtype, near: bool, windows: Windows | None
    ) -> None:
        self.frame = frame = row_frame(step, rank)
        self.comm, self.dtype, self.near, self.windows = comm, dtype, near, windows
        self.me = frame.members.index(rank)
        #: The place in the group of each rank of the communicator.
        self.places = [frame.members.index(member) for member in sorted(frame.members)]
        self.target = step.dst.local_shape(step.shape, rank)
        self.width = self.target[-1]
        self.first, self.last = frame.edges[self.me], frame.edges[self.me + 1]
        self._whole, self._kind = False, element(dtype.itemsize)
        ids = math.prod(self.target[:-1])
        # Ids bound the buffers as much as rows do: a row that no id names is never sent.
        held = self.last - self.first
        asked = sum(min(_size(part), held) for k, part in enumerate(frame.parts) if k != self.me)
        self._landing = allocator((min(ids, frame.count) + 1, self.width), dtype)
        self._packed = allocator((asked, self.width), dtype)
        self._fresh = allocator((ids, self.width), dtype)
        self.types: list[MPI.Datatype] = []
        self._same_columns = len(set(map(str, frame.columns))) == 1
        self.held = step.held_shape(rank)
        widths = {part.stop - part.start for part in frame.columns}
        most = _size(frame.parts[0]) if frame.is_equal else sum(map(_size, frame.parts))
        if (most + 1) * max(widths) > messages.MAX_COUNT:
            if len(widths) > 1:
                raise WorldError(
                    f"ranks {list(frame.members)} would exchange more elements than MPI can count, in rows of "
                    f"different lengths {sorted(widths)}; split the ids instead of the columns"
                )
            # Whole rows as MPI's elements.
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
        """Return the looked-up rows, and the elements received from each other rank."""
        wants = self.frame.wants(ids)
        if self.windows is not None and (memory := self.windows.memory()) is not None:
            return self._into(memory, ids, table), tuple(self.frame.looked_up_elements(wants, self.me))
        want = wants[self.me]
        rows = self._landing()
        start, stop = want.places[self.me : self.me + 2]
        if start < stop and self.width:
            _take(table, self.frame.columns[self.me], want.of(self.me) - self.first, rows[start:stop])
        received = self._gather(wants, rows) if self.frame.is_equal else self._exchange(wants, table, rows)
        if want.nobody:
            rows[len(want.rows)] = 0
        out = self._fresh()
        if out.size:
            np.take(rows, want.index, axis=0, out=out, mode="clip")
        return out.reshape(self.target), received

    def _incoming(self, want: Want) -> Stretches:
        """Return, for each rank of the communicator, the number of elements from it and their place."""
        unit = self._unit(self.width)
        counts, starts = (
            [want.counts[k] * unit for k in self.places],
            [want.places[k] * unit for k in self.places],
        )
        return Stretches(counts, starts)

    def _received(self, counts: Sequence[int]) -> Peers:
        """Return the elements from each other rank, from the counts of the call."""
        each = self.width if self._whole else 1
        elements = {k: count * each for k, count in zip(self.places, counts) if k != self.me}
        return tuple((self.frame.members[k], elements[k]) for k in sorted(elements))

    def _gather(self, wants: Sequence[Want], rows: np.ndarray) -> Peers:
        """Gather rows that all ranks want: each rank sends those it owns, in place."""
        want = wants[self.me]
        counts, starts = self._incoming(want)
        if max(want.counts) and self.width:
            if self.near:
                self._to_each(rows, counts, starts)
            else:
                self.comm.Allgatherv(MPI.IN_PLACE, [rows, (counts, starts), self._kind])
        return self._received(counts)

    def _to_each(self, rows: np.ndarray, counts: list[int], starts: list[int]) -> None:
        """Gather rows by messages between all pairs, instead of an Allgatherv that passes rows around a ring.

        On one node, where no message is farther than another, that takes half of the time or less.
        """
        here, unit = self.places.index(self.me), self._unit(self.width)
        first, count = starts[here] // unit, counts[here]
        sent = [count if k != here else 0 for k in range(len(counts))]
        taken = [0 if k == here else part for k, part in enumerate(counts)]
        # The two sides may not begin at the same address: who holds the first rows receives from behind them, and
        # who holds none sends nothing from the end.
        skip = count // unit if first == 0 else 0
        first = first if count else len(rows) - 1
        places = [start - skip * unit if part else 0 for start, part in zip(starts, taken)]
        self.comm.Alltoallv(
            [rows[first:], (sent, [0] * len(sent)), self._kind], [rows[skip:], (taken, places), self._kind]
        )

    def _exchange(self, wants: Sequence[Want], table: np.ndarray, rows: np.ndarray) -> Peers:
        taken = self._incoming(wants[self.me]).without(self.places.index(self.me))
        if any(want.counts[k] for m, want in enumerate(wants) for k in range(len(wants)) if k != m):
            outgoing, packed = self._pack(wants, table)
            self.comm.Alltoallv([packed, outgoing, self._kind], [rows, taken, self._kind])
        return self._received(taken.counts)

    def give_back(self, ids: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, Peers]:
        """Return the gradient of this rank's part of the table, and the elements received from each other rank.

        The same messages as for the lookup, the other way: each row's gradient, summed over the ids that name it.
        """
        wants, n = self.frame.wants(ids), len(self.places)
        sums = summed(wants[self.me], gradients)
        sent = self._incoming(wants[self.me]).without(self.places.index(self.me))
        counts, starts = self._asked(wants)
        landed = self._packed() if self._same_columns else np.empty(sum(counts), self.dtype)
        if any(want.counts[k] for m, want in enumerate(wants) for k in range(n) if k != m):
            self.comm.Alltoallv([sums, sent, self._kind], [landed, (counts, starts), self._kind])
        flat, parts = landed.reshape(-1), [sums[:0]] * n
        each = self.width if self._whole else 1
        for k, count, start in zip(self.places, counts, starts):
            width = self.frame.columns[k].stop - self.frame.columns[k].start
            if k != self.me and count:
                parts[k] = flat[start * each : (start + count) * each].reshape(-1, width)
        want = wants[self.me]
        parts[self.me] = sums[want.places[self.me] : want.places[self.me + 1]]
        gradient = gathered_gradient(self.frame, wants, self.me, parts, self.held)
        return gradient, self._received(counts)

    def _asked(self, wants: Sequence[Want]) -> Stretches:
        """Return, for each rank of the communicator, the number of elements it wants and their packed place."""
        columns = [self.frame.columns[k] for k in self.places]
        rows = [wants[k].counts[self.me] if k != self.me else 0 for k in self.places]
        counts = [some * self._unit(part.stop - part.start) for some, part in zip(rows, columns)]
        return Stretches.of(counts)

    def _pack(self, wants: Sequence[Want], table: np.ndarray) -> tuple[Stretches, np.ndarray]:
        """Return the rows that the other ranks want of this rank, ordered by rank."""
        asked = [wants[k].of(self.me) if k != self.me else wants[k].rows[:0] for k in self.places]
        if self._same_columns:
            rows, packed = np.concatenate(asked), self._packed()
            _take(table, self.frame.columns[self.me], rows - self.first, packed[: len(rows)])
            return self._asked(wants), packed
        columns = [self.frame.columns[k] for k in self.places]
        pieces = [table[:, part][rows - self.first].reshape(-1) for rows, part in zip(asked, columns)]
        return self._asked(wants), np.concatenate(pieces)

    def _into(self, memory: np.ndarray, ids: np.ndarray, table: np.ndarray) -> np.ndarray:
        """Every rank writes the rows it holds into the result that all share."""
        out, flat = memory.view(self.dtype).reshape(-1, self.width), ids.reshape(-1)
        mine = np.flatnonzero((flat >= self.first) & (flat < self.last))
        if self.frame.padding is not None:
            empty = flat == self.frame.padding
            mine = mine[~empty[mine]]
            if self.me == 0:
                out[empty] = 0
        place_rows(table, flat[mine].astype(np.intp) - self.first, out, mine)
        self.comm.Barrier()
        shared: np.ndarray = out.reshape(self.target)
        shared.flags.writeable = False
        return shared


def _size(part: tuple[slice, ...]) -> int:
    return math.prod(one.stop - one.start for one in part)


def _take(table: np.ndarray, columns: slice, rows: np.ndarray, out: np.ndarray) -> None:
    if not out.size:
        return
    if columns.stop - columns.start == table.shape[1]:
        # Any other mode than "raise" spares numpy a second buffer.
        np.take(table, rows, axis=0, out=out, mode="clip")
    else:
        out[...] = table[:, columns][rows]
