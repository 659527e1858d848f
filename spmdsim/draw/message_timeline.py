"""A run of a collective, message by message, as a timeline in Chrome's JSON format, which ui.perfetto.dev opens.

One process per rank with a lane for what it sends, one for what it receives and one for what it reduces; an arrow
goes from each send to its receive. Predicted and measured runs look the same, so they can be laid side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

#: Messages in one timeline at most: more make a browser slow.
MOST_MESSAGES = 100_000

SENDS, RECEIVES, REDUCES = 0, 1, 2
LANES = ("sends", "receives", "reduces")


@dataclass(frozen=True)
class Slice:
    """Something a rank does, from ``start`` to ``end`` in seconds.

    Attributes:
        rank: who.
        lane: SENDS, RECEIVES or REDUCES.
        name: in words.
        start: when it begins.
        end: when it ends.
        nbytes: how much.
        message: number of the message that a send and its receive share; -1 for a reduction.
        round: round of the schedule.
    """

    rank: int
    lane: int
    name: str
    start: float
    end: float
    nbytes: float
    message: int
    round: int


def chrome_timeline(slices: Iterable[Slice], ranks: int, facts: dict[str, Any]) -> dict[str, Any]:
    """The timeline as JSON values.

    Args:
        slices: in any order.
        ranks: number of ranks.
        facts: about the run, kept in ``otherData``.
    """
    names = [one for rank in range(ranks) for one in _names(rank)]
    events = [event for one in slices for event in _chrome(one)]
    return {"traceEvents": names + events, "displayTimeUnit": "ns", "otherData": facts}


def _names(rank: int) -> Iterator[dict[str, Any]]:
    common = {"ph": "M", "pid": rank}
    yield common | {"name": "process_name", "args": {"name": f"rank {rank}"}}
    yield common | {"name": "process_sort_index", "args": {"sort_index": rank}}
    for lane, words in enumerate(LANES):
        yield common | {"tid": lane, "name": "thread_name", "args": {"name": words}}


def _chrome(one: Slice) -> Iterator[dict[str, Any]]:
    """The slice, and its end of the message's arrow."""
    start, lasts = one.start * 1e6, (one.end - one.start) * 1e6
    place = {"pid": one.rank, "tid": one.lane}
    facts = {"bytes": one.nbytes, "round": one.round}
    kind = "reduction" if one.lane == REDUCES else "message"
    yield place | {"ph": "X", "name": one.name, "cat": kind, "ts": start, "dur": lasts, "args": facts}
    if one.message >= 0:
        arrow = place | {"name": "message", "cat": "message", "id": one.message + 1}
        # An arrow binds to the slice around its time, which is still inside just before the end.
        last = {"ph": "f", "bp": "e", "ts": start + 0.999 * lasts}
        yield arrow | ({"ph": "s", "ts": start} if one.lane == SENDS else last)
