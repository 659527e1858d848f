"""The last calls of every rank, side by side: as a table, and as a timeline in Chrome's JSON format."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from spmdsim.errors import InputError
from spmdsim.reading import read_json
from spmdsim.sides import name_ranks
from spmdsim.tables import Table

#: The kind of the file, which the file states.
KIND = "the last calls of each rank"


@dataclass(frozen=True)
class LastCall:
    """Call that one rank made.

    Attributes:
        rank: the rank, in ``MPI.COMM_WORLD``.
        group: the ranks that make the call together, sorted.
        world: a name that separates groups of equal ranks in several worlds.
        number: the number of the call in its group, from 0 on.
        agreed: a text that is equal for calls that agree.
        words: the call in words.
        line: the line of the user's program.
        begin: the start in nanoseconds, by a clock that the ranks of a node share.
        end: the end in nanoseconds; 0 if the rank is still in the call.
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


def document(
    calls: Sequence[LastCall],
    ranks: Sequence[int],
    reason: str,
    now: int,
    hosts: Mapping[int, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the timeline of logged calls in Chrome's JSON format: one lane per rank, group and world.

    Args:
        calls: the calls of all ranks.
        ranks: the ranks whose logs were read; some may have made no call.
        reason: why the logs were read, such as "SIGTERM".
        now: the time in nanoseconds, at which unfinished calls end in the timeline.
        hosts: the host of each rank, by rank; they are named if there are several.

    Returns:
        A dict with three entries.
        ``traceEvents``: records that name ranks and lanes, then a slice per call. Times are microseconds since the
        first call. A slice has all fields of its call in ``args``.
        ``displayTimeUnit``: "ms".
        ``otherData``: a dict with kind, ranks, reason and nodes, from which :func:`read` knows such a file.

    >>> call = LastCall(0, (0, 1), "w", 0, "a", "barrier", "x.py:3", 5_000, 9_000)
    >>> [event["dur"] for event in document([call], (0, 1), "SIGTERM", 9_000)["traceEvents"] if event["ph"] == "X"]
    [4.0]
    """
    first = min((call.begin for call in calls), default=0)
    lanes = {
        group_and_world: lane
        for lane, group_and_world in enumerate(dict.fromkeys((c.group, c.world) for c in calls))
    }
    nodes = _name_nodes({rank: hosts[rank] for rank in ranks if rank in hosts})
    labels = {
        rank: f"rank {rank}, {hosts[rank]}" if nodes and rank in hosts else f"rank {rank}" for rank in ranks
    }
    names = [
        {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": labels[rank]}} for rank in ranks
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
    about = {"kind": KIND, "ranks": list(ranks), "reason": reason, "nodes": nodes}
    return {"traceEvents": names + slices, "displayTimeUnit": "ms", "otherData": about}


def _name_nodes(hosts: Mapping[int, str]) -> str:
    """Return the ranks of each host as text; empty for one host.

    An example is ``node1: ranks 0, 1; node2: rank 2``. ``hosts`` has the host by rank.
    """
    if len({*hosts.values()}) < 2:
        return ""
    by_host: dict[str, list[int]] = {}
    for rank, host in hosts.items():
        by_host.setdefault(host, []).append(rank)
    return "; ".join(f"{host}: {name_ranks(ranks)}" for host, ranks in by_host.items())


def write_document(path: str | os.PathLike[str], document: dict[str, Any]) -> None:
    """Write a document of :func:`document` to a file: as JSON for ``.json``, else as a table.

    An earlier file is replaced. A reader sees either the whole earlier file or the whole new one.

    Args:
        path: the file.
        document: the document.

    Raises:
        OSError: If the file cannot be written; nothing is left behind.
    """
    text = json.dumps(document) if Path(path).suffix == ".json" else table([document])
    new_file = f"{os.fspath(path)}.{os.getpid()}.part"
    try:
        Path(new_file).write_text(text + "\n", encoding="utf-8")
        os.replace(new_file, path)
    except OSError:
        Path(new_file).unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the timeline of logged calls that :func:`write_document` has written to a JSON file.

    Args:
        path: the file.

    Returns:
        The dict that :func:`document` describes. Its calls are checked.

    Raises:
        InputError: If the file cannot be read or has other contents.
    """
    document = read_json(os.fspath(path), "the last calls of ranks")
    about = document.get("otherData") if isinstance(document, dict) else None
    try:
        if not isinstance(about, dict) or about.get("kind") != KIND:
            raise TypeError
        if not all(type(rank) is int for rank in about["ranks"]) or not isinstance(about["reason"], str):
            raise TypeError
        if not all(map(_is_valid, _calls(document))):
            raise TypeError
    except (TypeError, KeyError, AttributeError):
        raise InputError(
            f"{path} does not hold the last calls of ranks, as spmdsim launch --record FILE.json writes them"
        ) from None
    result: dict[str, Any] = document
    return result


def _is_valid(call: LastCall) -> bool:
    """Return True if a call from a file has fields of the right types.

    Its number must not be negative.
    """
    for field in fields(call):
        if not isinstance(getattr(call, field.name), _TYPES.get(field.name, (str, tuple))):
            return False
    return all(type(rank) is int for rank in call.group) and call.number >= 0


def _calls(document: dict[str, Any]) -> Iterator[LastCall]:
    """Yield the calls of a document."""
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            yield LastCall(**{**event["args"], "group": tuple(event["args"]["group"])})


def table(documents: Sequence[dict[str, Any]]) -> str:
    """Return the last calls of all ranks in the documents as one text, group by group.

    The text has a title with the ranks and the reasons, and a table per group. A table has a row per call and a column
    per rank whose log was read. Cells and columns mean:

    - ``>`` marks the first call that differs or, if none differs, the first one that a rank has not made.
    - A letter stands for equal calls from one source line; "..." follows it if the call has not ended.
    - ``-`` means that the rank did not come, "not kept" that its log has overwritten the call.
    - "at ms" is the start of the first rank's call, in milliseconds since the first call of all groups.

    The notes below a table name the first difference, the ranks that did not come, the first call from another line,
    and the call of each letter.

    Args:
        documents: at least one document of :func:`document`.

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
        "\n".join((group.name, Table(group.rows[0], group.rows[1:]).text(), *group.notes))
        for group in groups(documents)
    ]
    return "\n\n".join(parts)


def title(documents: Sequence[dict[str, Any]]) -> str:
    """Return a title with the ranks of the documents and the reason why they were written.

    Ranks on several nodes have a second line, which names the ranks of each node.
    """
    reasons = dict.fromkeys(document["otherData"]["reason"] for document in documents)
    nodes = dict.fromkeys(filter(None, (document["otherData"].get("nodes") for document in documents)))
    lines = [f"last calls of {name_ranks(_ranks(documents))}: {'; '.join(reasons)}"]
    return "\n".join([*lines, *(f"nodes: {text}" for text in nodes)])


def _ranks(documents: Sequence[dict[str, Any]]) -> list[int]:
    """Return the ranks whose logs the documents have, sorted."""
    return sorted({rank for document in documents for rank in document["otherData"]["ranks"]})


@dataclass(frozen=True)
class GroupCalls:
    """Calls of one group side by side.

    Attributes:
        name: the ranks of the group, in words.
        rows: the headings, then a row per call and a column per rank.
        notes: the first call that differs, the ranks that did not come, and the meaning of the letters.
    """

    name: str
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def groups(documents: Sequence[dict[str, Any]]) -> list[GroupCalls]:
    """Return the groups whose calls the documents contain, ordered by their first call.

    Groups of equal ranks in several worlds are several groups. Only calls that the logs still had are known.

    Args:
        documents: documents of :func:`document`.
    """
    by_group: dict[tuple[tuple[int, ...], str], list[LastCall]] = {}
    calls = [call for document in documents for call in _calls(document)]
    for call in sorted(calls, key=lambda call: call.begin):
        by_group.setdefault((call.group, call.world), []).append(call)
    first = min((call.begin for call in calls), default=0)
    return [
        _group(group, calls_of_group, _ranks(documents), first)
        for (group, _), calls_of_group in by_group.items()
    ]


def _group(group: tuple[int, ...], calls: Sequence[LastCall], ranks: Sequence[int], first: int) -> GroupCalls:
    """Return the calls of one group side by side: a row per call, a column per rank, and notes.

    A cell has a letter for the rank's call; equal calls from one line of the program have equal letters. ``>`` marks
    the first call that differs or, if none does, the first one that a rank has not made. For example, rank 1 differs in
    call 1::

           call  rank 0  rank 1  at ms
           0     a       a       0.000
        >  1     b       c       1.250

    The notes name the calls that differ first, the ranks that did not come, and each letter's call.

    Args:
        group: the ranks of the group.
        calls: its calls; a rank's calls have distinct numbers.
        ranks: the ranks whose logs were read; other members have no column.
        first: the time of the first call of all groups in nanoseconds, from which milliseconds count.
    """
    members = [rank for rank in group if rank in ranks]
    rows: dict[int, dict[int, LastCall]] = {}
    for call in calls:
        rows.setdefault(call.number, {})[call.rank] = call
    numbers = sorted(rows)
    last_calls = {rank: max((c.number for c in calls if c.rank == rank), default=-1) for rank in members}
    first_difference = _first(numbers, lambda n: len({call.agreed for call in rows[n].values()}) > 1)
    first_absence = _first(numbers, lambda n: any(last_calls[rank] < n for rank in members))
    first_other_line = _first(numbers, lambda n: len({call.line for call in rows[n].values()}) > 1)
    marked_call = first_absence if first_difference is None else first_difference
    labels: dict[tuple[str, str, str], str] = {}
    lines = [("", "call", *(f"rank {rank}" for rank in members), "at ms")]
    for number in numbers:
        row = rows[number]
        cells = [_cell(row.get(rank), number > last_calls[rank], labels) for rank in members]
        milliseconds = (min(call.begin for call in row.values()) - first) / 1e6
        mark = ">" if number == marked_call else ""
        lines.append((mark, str(number), *cells, f"{milliseconds:.3f}"))
    notes = []
    if first_difference is not None:
        notes.append(f"first difference: call {first_difference}")
    if first_absence is not None:
        absent_ranks = [rank for rank in members if last_calls[rank] < first_absence]
        notes.append(f"call {first_absence}: {name_ranks(absent_ranks)} did not come")
    if first_other_line is not None and first_other_line != first_difference:
        notes.append(f"equal calls are from other lines since call {first_other_line}")
    notes += [f"  {label}  {what}, at {line}" for (_, what, line), label in labels.items()]
    return GroupCalls(f"group of {name_ranks(group)}", tuple(lines), tuple(notes))


def _first(numbers: Sequence[int], holds: Callable[[int], bool]) -> int | None:
    """Return the first number for which ``holds`` is true, or None."""
    return next((number for number in numbers if holds(number)), None)


def _cell(call: LastCall | None, never: bool, labels: dict[tuple[str, str, str], str]) -> str:
    """Return the text of a rank's cell: the label of its call, with ``...`` if it has not ended.

    Args:
        call: the rank's call, or None.
        never: used without a call: True if the rank never came, which gives "-"; False if its log has overwritten the
            call, which gives "not kept".
        labels: the label of each call by ``(agreed, words, line)``; a new call is added.
    """
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
