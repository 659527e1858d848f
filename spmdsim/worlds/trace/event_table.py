"""A trace as text: the list of events, the communication matrix, and the difference of two traces."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from spmdsim.core.layout import block_sizes
from spmdsim.core.step import LOCAL_STEPS, Step, overlap, volume
from spmdsim.errors import many
from spmdsim.layout.element_type import element_type
from spmdsim.redistribution.plans.plan_table import bytes_text
from spmdsim.redistribution.steps.group_steps import PartsStep, ScanStep
from spmdsim.redistribution.steps.halo import HaloStep, received_boxes
from spmdsim.redistribution.steps.row_steps import RowStep
from spmdsim.tables import Table
from spmdsim.worlds.trace.events import CallCounts, CollectiveEvent, Event

if TYPE_CHECKING:
    import numpy as np

    from spmdsim.worlds.trace.recorder import Trace

HEADING = (
    *("operator", "what", "over", "group", "layouts"),
    *("planned", "received", "sent", "by", "seconds", "source"),
)
NUMBER_COLUMNS = tuple(HEADING.index(name) for name in ("planned", "received", "sent", "seconds"))


def nbytes_text(count: float) -> str:
    """Return a number of bytes as text with one decimal, in B, KiB, MiB and so on.

    >>> nbytes_text(512), nbytes_text(1536), nbytes_text(3 << 20)
    ('512 B', '1.5 KiB', '3.0 MiB')
    """
    return bytes_text(count, ".1f")


def events_table(trace: Trace) -> Table:
    """Return the table of a trace: for each event its axes, groups, layouts, time and bytes.

    ``planned`` are the bytes of the step by the convention of plans: a reduction counts as a bandwidth-optimal
    algorithm moves it. ``received`` and ``sent`` are the bytes that were moved. In each of these three columns stands
    the number of the rank with the most bytes, among the ranks of this process. ``by`` is the MPI call. Operators have
    no bytes. Below the events are a row of totals, a row with the bytes that algorithms of the MPI library moved, if
    there are any, and a row with the control traffic, if there is any.

    Args:
        trace: the trace; it may be empty.
    """
    rows = [*(_row(event) for event in trace), _total(trace)]
    if any(event.library for event in trace.collectives):
        moved = [
            event.library or CallCounts(1, max(event.nbytes), max(event.sent)) for event in trace.collectives
        ]
        rows.append(_line("library", sum(moved, CallCounts()), "with the algorithms that MPI chooses itself"))
    if trace.control:
        kinds = ", ".join(f"{counts.calls} {purpose}" for purpose, counts in sorted(trace.control.items()))
        total = sum(trace.control.values(), CallCounts())
        rows.append(_line("control", total, kinds, many(total.calls, "call")))
    return Table(HEADING, rows, right=NUMBER_COLUMNS)


def _total(trace: Trace) -> tuple[str, ...]:
    """Return the row with the sums of a trace."""
    moved = CallCounts(0, trace.nbytes(), trace.sent())
    return _line("total", moved, "", "", nbytes_text(trace.planned()), f"{trace.seconds:.6f}")


def _line(
    name: str, moved: CallCounts, note: str, what: str = "", planned: str = "", seconds: str = ""
) -> tuple[str, ...]:
    """Return a row below the events, in the order of :data:`HEADING`.

    Args:
        name: the first cell.
        moved: the received and sent bytes.
        note: the last cell.
        what: the second cell.
        planned: the planned bytes, as text.
        seconds: the seconds, as text.
    """
    moves = nbytes_text(moved.received), nbytes_text(moved.sent)
    return (name, what, "", "", "", planned, *moves, "", seconds, note)


def _row(event: Event) -> tuple[str, ...]:
    """Return the texts of an event's row, in the order of :data:`HEADING`.

    Bytes are those of the rank with the most; "about" precedes them if they are only expected. Operators have their
    strategy in the second cell and no bytes. If the library's algorithm moved other bytes than the convention of plans
    counts, its bytes follow the MPI call.

    Args:
        event: the event.
    """
    source, seconds = event.source or "", f"{event.seconds:.6f}"
    if not isinstance(event, CollectiveEvent):
        layouts = f"{', '.join(event.inputs)} -> {', '.join(event.outputs)}"
        return (event.name, event.strategy, "", "", layouts, "", "", "", "", seconds, source)
    what = event.collective + (f" ({event.algorithm})" if event.algorithm else "")
    layouts = f"{event.step.src.placement_text()} -> {event.step.dst.placement_text()}"
    prefix = "about " if event.expected else ""
    largest = [prefix + nbytes_text(max(b, default=0)) for b in (event.planned, event.nbytes, event.sent)]
    calls_text = event.way
    if event.library is not None and event.library.received != event.nbytes[0]:
        calls_text += f": {nbytes_text(event.library.received)}"
    return (
        event.operator,
        what,
        ",".join(event.axes) or "-",
        str(event.group_size),
        layouts,
        *largest,
        calls_text,
        seconds,
        source,
    )


def matrix(trace: Trace, size: int) -> np.ndarray:
    """Return the bytes that each rank sends to each rank, an int64 array ``[receiver, sender]``.

    Steps without a reduction, such as an all_gather, send the boxes that their receivers need. Reductions are counted
    as the bandwidth-optimal direct algorithm moves them: every member sends its part of a block to the owner, and for
    all_reduce the owner sends the block back. The sum of a row is the planned bytes of its receiver, and the sum of a
    column the bytes that its sender would send by this convention, whatever algorithm each step took.

    Args:
        trace: the trace of any process; steps whose transfers depend on data are exact for its ranks only.
        size: the number of ranks of the world.
    """
    import numpy as np

    out = np.zeros((size, size), np.int64)
    for event in trace.collectives:
        itemsize = element_type(event.dtype).itemsize
        for rank in {*event.step.src.mesh.rank_list, *event.step.dst.mesh.rank_list}:
            for peer, count in event_pairs(event, rank):
                out[rank, peer] += count * itemsize
    return out


def pairs(step: Step, rank: int) -> list[tuple[int, int]]:
    """Return ``(peer, elements)`` of the ranks from which ``rank`` receives in a step.

    The numbers are never 0.
    """
    counts: Counter[int] = Counter()  # a peer may send several boxes in one message
    for peer, count in _pairs(step, rank):
        counts[peer] += count
    return [(peer, count) for peer, count in counts.items() if peer != rank and count]


def event_pairs(event: CollectiveEvent, rank: int) -> list[tuple[int, int]]:
    """Return ``(peer, elements)`` of an event for ``rank``, without zeros.

    If the transfers depend on data and this process owns the rank, return what it recorded; else what the step implies
    (:func:`pairs`).
    """
    if event.peers is not None and rank in event.ranks:
        return [(peer, count) for peer, count in event.peers[event.ranks.index(rank)] if count]
    return pairs(event.step, rank)


def _pairs(step: Step, rank: int) -> list[tuple[int, int]]:
    """Return ``(peer, elements)`` of the messages that a rank receives in a step.

    A peer may occur several times, and the rank itself may be one. A local step gives []. Reductions inside groups are
    counted as the bandwidth-optimal algorithm moves them. Counts that depend on data (lookups of rows, arrays of any
    length) are expected values. A scan gives one array from the rank before, and [] for the first rank of the group.

    Args:
        step: the step.
        rank: a rank of the step's meshes.
    """
    from spmdsim.redistribution.exchange.direct import receives
    from spmdsim.redistribution.exchange.direct_reduction import count_by_peer
    from spmdsim.redistribution.exchange.flat import flat_receives

    if step.collective in LOCAL_STEPS:
        return []
    if isinstance(step, (RowStep, PartsStep)):
        return step.expected_elements(rank)
    if isinstance(step, HaloStep):
        return [(peer, sum(box.size for box in boxes)) for peer, boxes in received_boxes(step, rank)]
    if isinstance(step, ScanStep):
        before = step.neighbours(rank)[0]
        return [] if before is None else [(before, step.array_elements(rank))]
    if step.to_shape is not None:
        numbered = flat_receives(step.src, step.dst, step.shape, step.to_shape, rank)
        return [(t.peer, t.count) for t in numbered]
    if step.collective == "exchange":
        return [(t.peer, t.count) for t in receives(step.src, step.dst, step.shape, rank)]
    if step.collective == "reduce_exchange":
        return count_by_peer(step.src, step.dst, step.shape, rank)
    return _group_pairs(step, rank)


def _group_pairs(step: Step, rank: int) -> list[tuple[int, int]]:
    """Return :func:`_pairs` of a step inside groups: an all_gather, all_to_all or reduction.

    A reduction counts as the bandwidth-optimal algorithm: each member sends its part of a block to the block's owner,
    and for an all_reduce the owner sends the block back.

    Args:
        step: the step.
        rank: a rank of the step's mesh.
    """
    group = step.group(rank)
    if step.collective in ("all_gather", "all_to_all"):
        target = step.dst.bounds(step.shape, rank)
        boxes = ((member, overlap(step.src.bounds(step.shape, member), target)) for member in group)
        return [(member, volume(box)) for member, box in boxes if box is not None]
    count = math.prod(step.dst.local_shape(step.shape, rank))
    if step.collective == "reduce_scatter":
        return [(peer, count) for peer in group]
    group = tuple(sorted(group))
    blocks = block_sizes(count, len(group))
    own_block = blocks[group.index(rank)]
    return [(peer, own_block + block) for peer, block in zip(group, blocks)]


def difference(trace: Trace, other_trace: Trace) -> list[str]:
    """Return the differences of two traces of one program, times aside; empty if they agree.

    Events are compared one by one, in order. If the traces have different lengths, a last text such as "3 events
    against 4" follows. The traces may come from different worlds. Of each rank that both own, the planned bytes of a
    step are compared, whatever algorithm each world took; if the algorithm was emulated, the moved bytes.

    Args:
        trace: a trace.
        other_trace: the trace to compare with; texts name its values second.

    >>> from spmdsim.worlds.trace import Trace
    >>> difference(Trace(), Trace())
    []
    """
    differences = []
    for number, (a, b) in enumerate(zip(trace, other_trace)):
        if a.key != b.key:
            differences.append(f"event {number}: {_text(a)} against {_text(b)}")
        elif isinstance(a, CollectiveEvent) and isinstance(b, CollectiveEvent):
            own_bytes, other_bytes = (
                dict(zip(e.ranks, e.nbytes if e.algorithm is not None else e.planned)) for e in (a, b)
            )
            differences += [
                f"event {number}: {_text(a)}: rank {rank} received {own_bytes[rank]} B against {other_bytes[rank]} B"
                for rank in sorted(own_bytes.keys() & other_bytes.keys())
                if own_bytes[rank] != other_bytes[rank]
            ]
    if len(trace) != len(other_trace):
        differences.append(f"{many(len(trace), 'event')} against {len(other_trace)}")
    return differences


def _text(event: Event) -> str:
    """Return an event in words."""
    if isinstance(event, CollectiveEvent):
        return f"{event.operator}: {event.step} of {event.dtype}"
    return f"operator {event.name} with {event.strategy}"
