"""Collective algorithms, for the page: round by round who sends what and who holds what, and what is wrong with wrong ones."""

from __future__ import annotations

from typing import Any

from spmdsim.collectives import Algorithm, algorithms, from_function, make_schedule, recv, recv_reduce, send
from spmdsim.collectives.facts import as_share, facts_of
from spmdsim.collectives.history import History, unroll
from spmdsim.collectives.instructions import Rounds
from spmdsim.collectives.round_table import RoundTable
from spmdsim.collectives.schedule import Schedule
from spmdsim.errors import ScheduleError, many
from spmdsim.figures.explore.offer import Offer
from spmdsim.figures.schedule_figures import value_words


def schedules(offer: Offer) -> list[dict[str, Any]]:
    """Return every algorithm of the package, the offer's own and the wrong ones, on every rank count that fits."""
    own = [(one, "own") for one in offer.algorithms]
    wrong = [(one, "wrong") for one in mistakes()]
    return [
        {
            "collective": one.collective.name,
            "name": one.name,
            "about": one.about,
            "origin": origin,
            "needs": one.condition_words,
            "reduces": one.collective.reduces,
            "m": one.collective.size_means,
            "ranks": {size: _told(one, size) for size in offer.ranks if one.fits(size)},
        }
        for one, origin in (*own, *((one, "library") for one in algorithms()), *wrong)
    ]


def _told(one: Algorithm, size: int) -> dict[str, Any]:
    """Return the facts of an algorithm, or the reason why it has no schedule on a rank count."""
    try:
        return schedule_facts(make_schedule(one, size))
    except ScheduleError as error:
        lists = dict.fromkeys(("cells", "rounds", "states", "values", "wanted", "moves", "facts"), ())
        title = f"{one.full_name} on {many(size, 'rank')}"
        return {"title": title, "chunks": 1, **lists, "findings": [[error.message, None, None, None]]}


def schedule_facts(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as the page steps through it.

    ``rounds``: per round the messages ``[from, to, chunks, reduced]``; ``states``: before the first round and after
    each, per rank ``[chunk, value, new]`` of each chunk; ``values``: what the values are called, and the share of the ranks
    that is in them; ``findings``: what is wrong, with round, rank and chunk; ``moves``: where sends and
    receives do not meet, what every rank wants to do in each of its rounds; ``facts``: counts beside their bounds.
    """
    story = unroll(schedule)
    values: dict[int, int] = {}
    states = [
        [
            [
                [chunk, values.setdefault(value, len(values)), int(chunk in new)]
                for chunk, value in sorted(held.items())
            ]
            for held, new in zip(state.holds, state.new)
        ]
        for state in story.states
    ]
    told = {
        "title": schedule.name,
        "chunks": schedule.chunk_count,
        "cells": story.cells,
        "rounds": [
            [[m.source, m.target, list(m.chunks), int(m.reduces)] for m in step] for step in story.steps
        ],
        "states": states,
        "moves": [],
        "values": [[value_words(story, value), len(story.contributors(value))] for value in values],
        "wanted": [list(schedule.ends_with(rank)) for rank in range(schedule.size)],
        "findings": [[str(f), f.round, f.rank, f.chunk] for f in story.findings],
        "facts": [] if story.findings else _facts(story),
    }
    return told if states else {**told, **_start(schedule)}


def _start(schedule: Schedule) -> dict[str, Any]:
    """Return the initial values and instructions of a schedule that cannot be executed."""
    ranks, table = range(schedule.size), RoundTable(schedule)
    inputs = [list(schedule.starts_with(rank)) for rank in ranks]
    return {
        "cells": sorted({chunk for chunks in inputs for chunk in chunks}),
        "states": [[[[chunk, rank, 0] for chunk in chunks] for rank, chunks in enumerate(inputs)]],
        "values": [[str(rank), 1] for rank in ranks],
        "moves": [["; ".join(m.describe() for m in moves) for moves in rounds] for rounds in table.rounds],
    }


def _facts(story: History) -> list[list[str]]:
    """Return name, value and lower bound of each count."""
    facts = facts_of(story.schedule)
    rows = [
        ["rounds", str(facts.steps), str(facts.bound.steps)],
        ["bytes on the critical path", as_share(facts.beta), as_share(facts.bound.beta)],
    ]
    if story.schedule.collective.reduces:
        rows.append(
            ["bytes reduced on the critical path", as_share(facts.gamma), as_share(facts.bound.gamma)]
        )
    return rows


# -- algorithms with one mistake each -------------------------------------------------------------------


def mistakes() -> list[Algorithm]:
    """Return rings with one typical mistake each; the page shows where they fail.

    >>> [str(unroll(make_schedule(one, 4)).findings[0]) for one in mistakes()][2]
    'round 3: rank 0 adds rank 0 twice to chunk 0'
    """
    return [
        from_function(function, collective, name=name, about=about, chunks="n")
        for function, collective, name, about in _MISTAKES
    ]


def _neighbours(rank: int, size: int) -> tuple[int, int]:
    return (rank + 1) % size, (rank - 1) % size


def _stops_early(rank: int, size: int) -> Rounds:
    after, before = _neighbours(rank, size)
    for i in range(size - 2):
        yield [send(after, (rank - i) % size), recv(before, (rank - 1 - i) % size)]


def _wrong_chunk(rank: int, size: int) -> Rounds:
    after, before = _neighbours(rank, size)
    for i in range(size - 1):
        yield [send(after, (rank - i - 1) % size), recv(before, (rank - i - 2) % size)]


def _adds_twice(rank: int, size: int) -> Rounds:
    after, before = _neighbours(rank, size)
    for i in range(size):
        yield [send(after, (rank - i) % size), recv_reduce(before, (rank - 1 - i) % size)]
    for i in range(size - 1):
        yield [send(after, (rank + 1 - i) % size), recv(before, (rank - i) % size)]


def _receives_first(rank: int, size: int) -> Rounds:
    after, before = _neighbours(rank, size)
    for i in range(size - 1):
        yield [recv(before, (rank - 1 - i) % size)]
        yield [send(after, (rank - i) % size)]


_MISTAKES = (
    (_stops_early, "all_gather", "ring that stops early", "a ring with one round too few"),
    (
        _wrong_chunk,
        "all_gather",
        "ring that is off by one",
        "a ring that sends the chunk that it is about to receive",
    ),
    (_adds_twice, "all_reduce", "ring that adds twice", "a ring whose reduction goes one round too far"),
    (
        _receives_first,
        "all_gather",
        "ring that receives first",
        "a ring in which everybody receives before sending",
    ),
)
