"""A trace as text: the list of events, the communication matrix, and the difference of two traces."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

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


def nbytes_text(count: float) -> str:
    """Return a number of bytes as text.

    >>> nbytes_text(512), nbytes_text(1536), nbytes_text(3 << 20)
    ('512 B', '1.5 KiB', '3.0 MiB')
    """
    return bytes_text(count, ".1f")


def events_table(trace: Trace) -> Table:
    """Return the table of a trace: for each event its axes, groups, layouts, bytes (most of any rank) and time.

    ``planned`` is what the step amounts to by the convention of plans, ``received`` and ``sent`` what was moved, and
    ``by`` how. Below the total stand what the library's own algorithms moved instead, and the control traffic.
    """
    rows = [*(_row(event) for event in trace), _total(trace)]
    if any(event.library for event in trace.collectives):
        moved = [
            event.library or CallCounts(1, max(event.nbytes), max(event.sent)) for event in trace.collectives
        ]
        rows.append(_line("library", sum(moved, CallCounts()), "with the algorithms that MPI chooses itself"))
    if trace.control:
        kinds = ", ".join(f"{asked.calls} {purpose}" for purpose, asked in sorted(trace.control.items()))
        total = sum(trace.control.values(), CallCounts())
        rows.append(_line("control", total, kinds, many(total.calls, "call")))
    return Table(HEADING, rows, right=(5, 6, 7, 9))


def _total(trace: Trace) -> tuple[str, ...]:
    moved = CallCounts(0, trace.nbytes(), trace.sent())
    return _line("total", moved, "", "", nbytes_text(trace.planned()), f"{trace.seconds:.6f}")


def _line(
    name: str, moved: CallCounts, note: str, what: str = "", planned: str = "", seconds: str = ""
) -> tuple[str, ...]:
    """Return a line below the events."""
    moves = nbytes_text(moved.received), nbytes_text(moved.sent)
    return (name, what, "", "", "", planned, *moves, "", seconds, note)


def _row(event: Event) -> tuple[str, ...]:
    source, seconds = event.source or "", f"{event.seconds:.6f}"
    if not isinstance(event, CollectiveEvent):
        layouts = f"{', '.join(event.inputs)} -> {', '.join(event.outputs)}"
        return (event.name, event.strategy, "", "", layouts, "", "", "", "", seconds, source)
    what = event.collective + (f" ({event.algorithm})" if event.algorithm else "")
    layouts = f"{event.step.src.short()} -> {event.step.dst.short()}"
    about = "about " if event.expected else ""
    most = [about + nbytes_text(max(b, default=0)) for b in (event.planned, event.nbytes, event.sent)]
    way = event.way
    if event.library is not None and event.library.received != event.nbytes[0]:
        way += f": {nbytes_text(event.library.received)}"
    return (
        event.operator,
        what,
        ",".join(event.axes) or "-",
        str(event.group_size),
        layouts,
        *most,
        way,
        seconds,
        source,
    )


def matrix(trace: Trace, size: int) -> np.ndarray:
    """Return the bytes sent from rank to rank: an int64 array ``[receiver, sender]`` over all ranks of the world.

    Placing steps send the boxes they place. Reductions are counted as the bandwidth-optimal direct algorithm
    moves them: every member's part of a block to its owner, and for all_reduce the blocks back. Rows sum up to
    the bytes that are planned, columns to those that would be sent, whichever way each step took.
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
    """Return the peers from which ``rank`` receives in a step, with the number of elements (never 0)."""
    counts: Counter[int] = Counter()  # a peer may send several boxes in one message
    for peer, count in _pairs(step, rank):
        counts[peer] += count
    return [(peer, count) for peer, count in counts.items() if peer != rank and count]


def event_pairs(event: CollectiveEvent, rank: int) -> list[tuple[int, int]]:
    """Return the peers of an event: those that this process recorded if data decide, else the step's."""
    if event.peers is not None and rank in event.ranks:
        return [(peer, count) for peer, count in event.peers[event.ranks.index(rank)] if count]
    return pairs(event.step, rank)


def _pairs(step: Step, rank: int) -> list[tuple[int, int]]:
    from spmdsim.core.layout import block_sizes
    from spmdsim.redistribution.exchange.direct import receives
    from spmdsim.redistribution.exchange.direct_reduction import peers
    from spmdsim.redistribution.exchange.flat import flat_receives

    if step.collective in LOCAL_STEPS:
        return []
    if isinstance(step, (RowStep, PartsStep)):
        return step.expected(rank)
    if isinstance(step, HaloStep):
        return [(peer, sum(piece.size for piece in pieces)) for peer, pieces in received_boxes(step, rank)]
    if isinstance(step, ScanStep):
        before = step.neighbours(rank)[0]
        return [] if before is None else [(before, step.array_elements(rank))]
    if step.to_shape is not None:
        numbered = flat_receives(step.src, step.dst, step.shape, step.to_shape, rank)
        return [(t.peer, t.count) for t in numbered]
    if step.collective == "exchange":
        return [(t.peer, t.count) for t in receives(step.src, step.dst, step.shape, rank)]
    if step.collective == "reduce_exchange":
        return peers(step.src, step.dst, step.shape, rank)
    group = step.group(rank)
    if step.collective in ("all_gather", "all_to_all"):
        target = step.dst.bounds(step.shape, rank)
        boxes = ((member, overlap(step.src.bounds(step.shape, member), target)) for member in group)
        return [(member, volume(box)) for member, box in boxes if box is not None]
    count = 1
    for length in step.dst.local_shape(step.shape, rank):
        count *= length
    if step.collective == "reduce_scatter":
        return [(peer, count) for peer in group]
    group = tuple(sorted(group))
    blocks = block_sizes(count, len(group))
    mine = blocks[group.index(rank)]
    return [(peer, mine + theirs) for peer, theirs in zip(group, blocks)]


def difference(one: Trace, other: Trace) -> list[str]:
    """Return the first difference of two traces of one program, times aside; empty if they agree.

    They may come from different worlds: for the ranks that both own the bytes are compared that the steps amount to,
    whichever way each world took, and those of the emulated algorithms.

    >>> from spmdsim.worlds.trace import Trace
    >>> difference(Trace(), Trace())
    []
    """
    differences = []
    for number, (a, b) in enumerate(zip(one, other)):
        if a.key != b.key:
            differences.append(f"event {number}: {_text(a)} against {_text(b)}")
        elif isinstance(a, CollectiveEvent) and isinstance(b, CollectiveEvent):
            mine, theirs = (
                dict(zip(e.ranks, e.nbytes if e.algorithm is not None else e.planned)) for e in (a, b)
            )
            differences += [
                f"event {number}: {_text(a)}: rank {rank} received {mine[rank]} B against {theirs[rank]} B"
                for rank in sorted(mine.keys() & theirs.keys())
                if mine[rank] != theirs[rank]
            ]
    if len(one) != len(other):
        differences.append(f"{many(len(one), 'event')} against {len(other)}")
    return differences


def _text(event: Event) -> str:
    if isinstance(event, CollectiveEvent):
        return f"{event.operator}: {event.step} of {event.dtype}"
    return f"operator {event.name} with {event.strategy}"
