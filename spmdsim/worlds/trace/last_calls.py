"""What every rank called last, side by side: a timeline in Chrome's JSON format that holds all that the table shows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from spmdsim.errors import InputError
from spmdsim.reading import read_json
from spmdsim.sides import name_ranks
from spmdsim.tables import Table

#: What the file is, as it says of itself.
KIND = "the last calls of each rank"


@dataclass(frozen=True)
class LastCall:
    """A call that one rank made.

    Attributes:
        rank: who, in ``MPI.COMM_WORLD``.
        group: the ranks that make it together, sorted.
        world: tells groups of the same ranks in several worlds apart.
        number: which one of the group's calls, from 0 on.
        agreed: equal for calls that agree.
        words: what.
        line: of the user's program.
        begin: in nanoseconds, by a clock that the ranks of a node share.
        end: the same; 0 if the rank is in it still.
    """

    rank: int
    group: tuple[int, ...]
    world: str
    number: int
    agreed: str
    words: str
    line: str
    begin: int
    end: int


_TYPES = {"rank": int, "number": int, "begin": int, "end": int}


def document(calls: Sequence[LastCall], ranks: Sequence[int], reason: str, now: int) -> dict[str, Any]:
    """Return the timeline of some calls: one process per rank, one lane per group.

    Args:
        calls: of all ranks.
        ranks: those that were read; some may have called nothing.
        reason: why they were read.
        now: when, in nanoseconds; where calls end that have not ended.

    >>> call = LastCall(0, (0, 1), "w", 0, "a", "barrier", "x.py:3", 5_000, 9_000)
    >>> [event["dur"] for event in document([call], (0, 1), "SIGTERM", 9_000)["traceEvents"] if event["ph"] == "X"]
    [4.0]
    """
    first = min((call.begin for call in calls), default=0)
    lanes = {place: lane for lane, place in enumerate(dict.fromkeys((c.group, c.world) for c in calls))}
    names = [
        {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}} for rank in ranks
    ]
    names += [
        {"ph": "M", "pid": rank, "tid": lane, "name": "thread_name", "args": {"name": f"group {group}"}}
        for (group, _), lane in lanes.items()
        for rank in ranks
        if rank in group
    ]
    slices = [
        {
            "ph": "X",
            "pid": call.rank,
            "tid": lanes[call.group, call.world],
            "ts": (call.begin - first) / 1e3,
            "dur": max((call.end or now) - call.begin, 0) / 1e3,
            "name": call.words.partition(" of ")[0],
            "cat": "call" if call.end else "call that has not ended",
            "args": asdict(call),
        }
        for call in calls
    ]
    about = {"kind": KIND, "ranks": list(ranks), "reason": reason}
    return {"traceEvents": names + slices, "displayTimeUnit": "ms", "otherData": about}


def write(path: str | os.PathLike[str], document: dict[str, Any]) -> None:
    """Write a document in one step, as JSON if the name ends in ``.json``, else as a table."""
    text = json.dumps(document) if Path(path).suffix == ".json" else table([document])
    beside = f"{os.fspath(path)}.{os.getpid()}.part"
    try:
        Path(beside).write_text(text + "\n", encoding="utf-8")
        os.replace(beside, path)
    except OSError:
        Path(beside).unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a document from its file.

    Raises:
        InputError: there is none.
    """
    document = read_json(os.fspath(path), "the last calls of ranks")
    about = document.get("otherData") if isinstance(document, dict) else None
    try:
        if not isinstance(about, dict) or about.get("kind") != KIND:
            raise TypeError
        if not all(type(rank) is int for rank in about["ranks"]) or not isinstance(about["reason"], str):
            raise TypeError
        for call in _calls(document):
            if not all(
                isinstance(getattr(call, f.name), _TYPES.get(f.name, (str, tuple))) for f in fields(call)
            ):
                raise TypeError
            if not all(type(rank) is int for rank in call.group) or call.number < 0:
                raise TypeError
    except (TypeError, KeyError, AttributeError):
        raise InputError(
            f"{path} does not hold the last calls of ranks, as spmdsim launch --record FILE.json writes them"
        ) from None
    result: dict[str, Any] = document
    return result


def _calls(document: dict[str, Any]) -> Iterator[LastCall]:
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            yield LastCall(**{**event["args"], "group": tuple(event["args"]["group"])})


def table(documents: Sequence[dict[str, Any]]) -> str:
    """Documents of different ranks as one text: for each group a row per call and a column per rank.

    >>> calls = [LastCall(rank, (0, 1), "w", 0, str(rank), f"call {rank}", "x.py:3", 5, 9 * rank) for rank in (0, 1)]
    >>> print(table([document(calls, (0, 1), "stopped", 9)]))
    last calls of ranks 0, 1: stopped
    <BLANKLINE>
    group of ranks 0, 1
       call  rank 0  rank 1  at ms
    -  ----  ------  ------  -----
    >  0     a ...   b       0.000
    first difference: call 0
      a  call 0, at x.py:3
      b  call 1, at x.py:3
    """
    parts = [title(documents)]
    parts += [
        "\n".join((one.name, Table(one.rows[0], one.rows[1:]).text(), *one.notes))
        for one in groups(documents)
    ]
    return "\n\n".join(parts)


def title(documents: Sequence[dict[str, Any]]) -> str:
    """Return a title with the ranks of the documents and the reason why they were written."""
    reasons = dict.fromkeys(one["otherData"]["reason"] for one in documents)
    return f"last calls of {name_ranks(_ranks(documents))}: {'; '.join(reasons)}"


def _ranks(documents: Sequence[dict[str, Any]]) -> list[int]:
    return sorted({rank for one in documents for rank in one["otherData"]["ranks"]})


@dataclass(frozen=True)
class GroupCalls:
    """The calls of one group side by side.

    Attributes:
        name: whose they are.
        rows: the headings, then a row per call and a column per rank.
        notes: the first call that differs, who did not come, and what the letters stand for.
    """

    name: str
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def groups(documents: Sequence[dict[str, Any]]) -> list[GroupCalls]:
    """Return the groups whose calls the documents contain, ordered by their first call."""
    by_group: dict[tuple[tuple[int, ...], str], list[LastCall]] = {}
    calls = [call for one in documents for call in _calls(one)]
    for call in sorted(calls, key=lambda call: call.begin):
        by_group.setdefault((call.group, call.world), []).append(call)
    first = min((call.begin for call in calls), default=0)
    return [_group(group, theirs, _ranks(documents), first) for (group, _), theirs in by_group.items()]


def _group(group: tuple[int, ...], calls: Sequence[LastCall], ranks: Sequence[int], first: int) -> GroupCalls:
    members = [rank for rank in group if rank in ranks]
    rows: dict[int, dict[int, LastCall]] = {}
    for call in calls:
        rows.setdefault(call.number, {})[call.rank] = call
    numbers = sorted(rows)
    last = {rank: max((c.number for c in calls if c.rank == rank), default=-1) for rank in members}
    different = _first(numbers, lambda n: len({call.agreed for call in rows[n].values()}) > 1)
    absent = _first(numbers, lambda n: any(last[rank] < n for rank in members))
    parted = _first(numbers, lambda n: len({call.line for call in rows[n].values()}) > 1)
    marked = absent if different is None else different
    labels: dict[tuple[str, str, str], str] = {}
    lines = [("", "call", *(f"rank {rank}" for rank in members), "at ms")]
    for n in numbers:
        cells = [_cell(rows[n].get(rank), n > last[rank], labels) for rank in members]
        begin = (min(call.begin for call in rows[n].values()) - first) / 1e6
        lines.append((">" if n == marked else "", str(n), *cells, f"{begin:.3f}"))
    notes = []
    if different is not None:
        notes.append(f"first difference: call {different}")
    if absent is not None:
        notes.append(
            f"call {absent}: {name_ranks([rank for rank in members if last[rank] < absent])} did not come"
        )
    if parted is not None and parted != different:
        notes.append(f"equal calls are from other lines since call {parted}")
    notes += [f"  {label}  {what}, at {line}" for (_, what, line), label in labels.items()]
    return GroupCalls(f"group of {name_ranks(group)}", tuple(lines), tuple(notes))


def _first(numbers: Sequence[int], holds: Callable[[int], bool]) -> int | None:
    return next((number for number in numbers if holds(number)), None)


def _cell(call: LastCall | None, never: bool, labels: dict[tuple[str, str, str], str]) -> str:
    if call is None:
        return "-" if never else "not kept"
    label = labels.setdefault((call.agreed, call.words, call.line), _label(len(labels)))
    return label if call.end else f"{label} ..."


def _label(number: int) -> str:
    """Return the label of a number: a, b, ..., z, aa, ab, ...

    >>> _label(0), _label(25), _label(26), _label(702)
    ('a', 'z', 'aa', 'aaa')
    """
    label = ""
    while number >= 0:
        number, letter = divmod(number, 26)
        label, number = chr(ord("a") + letter) + label, number - 1
    return label
