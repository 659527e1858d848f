"""A trace as text: the list of events, the communication matrix, and the difference of two traces."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
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
from spmdsim.worlds.trace.events import CallCounts, CollectiveEvent, Event, sum_bytes

if TYPE_CHECKING:
    import numpy as np

HEADING = (
    *("operator", "what", "over", "group", "layouts"),
    *("planned", "received", "sent", "MPI call", "seconds", "source"),
)
NUMBER_COLUMNS = tuple(HEADING.index(name) for name in ("planned", "received", "sent", "seconds"))


def nbytes_text(count: float) -> str:
    """Return a number of bytes as text with one decimal, in B, KiB, MiB and so on.

    >>> nbytes_text(512), nbytes_text(1536), nbytes_text(3 << 20)
    ('512 B', '1.5 KiB', '3.0 MiB')
    """
    return bytes_text(count, ".1f")


def events_table(events: Sequence[Event], control: Mapping[str, CallCounts]) -> Table:
    """Return the table of the events of a trace: a row per event, and rows of sums below.

    Each row has the axes, the number of ranks per group, the layouts, the seconds and three numbers of bytes. They are
    those of the rank with the most bytes, among the ranks of this process. Operators have none.

    - ``planned``: the bytes that a plan counts for the step; a reduction as a bandwidth-optimal algorithm moves it.
    - ``received`` and ``sent``: the bytes that were moved.

    ``MPI call`` is empty for worlds without MPI. Below the events are

    - "total": the sums;
    - "library": the sums again, with the bytes that the MPI library's own algorithms moved, if reductions ran by MPI;
    - "control": the messages by which ranks agree about calls, if there are any.

    Args:
        events: the events; there may be none.
        control: the control traffic of the trace by purpose.
    """
    collectives = [event for event in events if isinstance(event, CollectiveEvent)]
    rows = [*map(_row, events), _total(collectives)]
    if any(event.library for event in collectives):
        moved = [event.library or CallCounts(1, max(event.nbytes), max(event.sent)) for event in collectives]
        rows.append(_line("library", sum(moved, CallCounts()), "with the algorithms that MPI chooses itself"))
    if control:
        kinds = ", ".join(f"{counts.calls} {purpose}" for purpose, counts in sorted(control.items()))
        total = sum(control.values(), CallCounts())
        rows.append(_line("control", total, kinds, many(total.calls, "call")))
    return Table(HEADING, rows, right=NUMBER_COLUMNS)


def _total(collectives: Sequence[CollectiveEvent]) -> tuple[str, ...]:
    """Return the row with the sums of all collectives of a trace."""
    received, sent, planned = (sum_bytes(collectives, name) for name in ("nbytes", "sent", "planned"))
    seconds = sum(event.spent for event in collectives)
    return _line("total", CallCounts(0, received, sent), "", "", nbytes_text(planned), f"{seconds:.6f}")


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
    """Return the cells of an event's row, in the order of :data:`HEADING`.

    - An operator has its name, strategy and layouts, and no bytes.
    - A collective has its operator, name, axes, size of groups, layouts, bytes and MPI call. Bytes are those of the
      rank with the most. They begin with "about" if they are only expected, as for a lookup without data. If MPI's own
      algorithm moved other bytes than the plan counts, they follow the call: ``Allreduce (ring): 1.5 KiB``.

    Both have the seconds and the line of the program.

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


def matrix(events: Sequence[Event], size: int) -> np.ndarray:
    """Return the bytes that each rank sends to each rank, an int64 array ``[receiver, sender]``.

    Steps without a reduction, such as an all_gather, send the boxes that their receivers need. Reductions are counted
    as the bandwidth-optimal direct algorithm moves them: every member sends its part of a block to the owner, and for
    all_reduce the owner sends the block back. The sum of a row is the planned bytes of its receiver, and the sum of a
    column the bytes that its sender would send by this convention, whatever algorithm each step took.

    Args:
        events: the events of any process; steps whose transfers depend on data are exact for its ranks only.
        size: the number of ranks of the world.
    """
    import numpy as np

    out = np.zeros((size, size), np.int64)
    for event in events:
        if not isinstance(event, CollectiveEvent):
            continue
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

    - A local step, and a scan on the first rank of a group: [].
    - A scan on another rank: one array, from the rank before.
    - A reduction inside groups: as the bandwidth-optimal algorithm moves it (:func:`_group_pairs`).
    - A step whose messages depend on data, such as a lookup of rows: the expected numbers of elements.
    - Any other step: the elements of each message that brings parts of the rank's new shard.

    A peer may occur several times, and the rank itself may be one.

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
    """Return ``(peer, elements)`` of what a rank receives in a step inside groups.

    - all_gather, all_to_all: from each member, the elements that the member owns of the rank's target.
    - reduce_scatter: from each member, its addends for the rank's block.
    - all_reduce: from each member, its addends for the rank's block, and the member's own reduced block. For example, 6
      elements on 3 ranks are blocks of 2, so each member sends 2 + 2 = 4.

    The rank itself is one of the peers. A reduction counts as the bandwidth-optimal algorithm moves it, whatever ran.

    Args:
        step: an all_gather, all_to_all, reduce_scatter or all_reduce.
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


def difference(trace: Sequence[Event], other_trace: Sequence[Event]) -> list[str]:
    """Return the differences of two traces of one program, times aside; [] if they agree.

    Events are compared one by one, in order. A difference is a text such as "event 3: … against …", or "event 3: …:
    rank 0 received 8 B against 16 B". If the traces have different lengths, a last text such as "3 events against 4"
    follows.

    The traces may come from different worlds, so bytes are compared only for ranks that both own. They are the planned
    bytes of a step, which do not depend on the world; if the algorithm was emulated, the moved bytes.

    Args:
        trace: the events of a trace.
        other_trace: the events to compare with; texts name its values second.

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
