"""Compute the page's data of collective algorithms: messages and chunks of each round, and errors of wrong ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    """Return the data of all algorithms: the user's, the library's, and wrong ones.

    Wrong algorithms have one typical error each; see :func:`mistakes`. Each algorithm is a dict:

    - "collective", "name", "about", "needs", "m": texts about it; "needs" is its condition, "m" what the message size
      means.
    - "origin": "own" (the user's), "library" or "wrong".
    - "reduces": True if the collective reduces.
    - "ranks": a dict from each offered number of ranks that the algorithm supports to its schedule; see
      :func:`schedule_facts`.

    Args:
        offer: the choices: the user's algorithms and the rank counts.
    """
    offered = [(algorithm, "own") for algorithm in offer.algorithms]
    wrong = [(algorithm, "wrong") for algorithm in mistakes()]
    return [
        {
            "collective": algorithm.collective.name,
            "name": algorithm.name,
            "about": algorithm.about,
            "origin": origin,
            "needs": algorithm.condition_words,
            "reduces": algorithm.collective.reduces,
            "m": algorithm.collective.size_means,
            "ranks": {
                size: _schedule_or_error(algorithm, size) for size in offer.ranks if algorithm.fits(size)
            },
        }
        for algorithm, origin in (*offered, *((algorithm, "library") for algorithm in algorithms()), *wrong)
    ]


def _schedule_or_error(algorithm: Algorithm, size: int) -> dict[str, Any]:
    """Return the data of an algorithm's schedule for ``size`` ranks, with root 0.

    If it has no schedule, ``findings`` has the text of the ScheduleError, and all other lists are empty. For the form
    see :func:`schedule_facts`.
    """
    try:
        return schedule_facts(make_schedule(algorithm, size))
    except ScheduleError as error:
        lists = dict.fromkeys(("cells", "rounds", "states", "values", "wanted", "moves", "facts"), ())
        title = f"{algorithm.full_name} on {many(size, 'rank')}"
        return {"title": title, "chunks": 1, **lists, "findings": [[error.message, None, None, None]]}


def schedule_facts(schedule: Schedule) -> dict[str, Any]:
    """Return the data of a schedule for the page.

    The schedule is executed symbolically: the value of a chunk is the set of ranks whose input is in it. A chunk is a
    number. Ranks are in order.

    - ``title``, ``chunks``: the schedule's name, and its number of chunks.
    - ``cells``: the chunks that any rank owns at any time, scratch memory included.
    - ``rounds``: for each round the messages ``[from, to, chunks, reduced]``; ``reduced`` is 1 if the receiver adds,
      else 0.
    - ``states``: before the first round and after each, for each rank ``[chunk, value, new]`` of each chunk. ``value``
      is an index of ``values``; ``new`` is 1 if the chunk changed in the round.
    - ``values``: the name of each value, such as "0+2", and the number of ranks that contributed to it.
    - ``wanted``: for each rank the chunks that it must own at the end.
    - ``findings``: errors as ``[text, round, rank, chunk]``, with None for what does not apply.
    - ``moves``: if sends and receives do not match, the instructions of every rank in each of its rounds; else [].
    - ``facts``: counts with their lower bounds, see :func:`_count_facts`; [] for a wrong schedule.

    If sends and receives do not match, :func:`_initial_facts` replaces the values of some keys.
    """
    story = unroll(schedule)
    values: dict[int, int] = {}

    def rank_state(values_by_chunk: Mapping[int, int], new: Collection[int]) -> list[list[int]]:
        """Return ``[chunk, number of the value, 1 if it is new]`` of each chunk that a rank owns."""
        return [
            [chunk, values.setdefault(value, len(values)), int(chunk in new)]
            for chunk, value in sorted(values_by_chunk.items())
        ]

    states = [list(map(rank_state, state.holds, state.new)) for state in story.states]
    schedule_data = {
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
        "facts": [] if story.findings else _count_facts(story),
    }
    return schedule_data if states else {**schedule_data, **_initial_facts(schedule)}


def _initial_facts(schedule: Schedule) -> dict[str, Any]:
    """Return the start and the instructions of a schedule whose messages do not match.

    The dict has these entries, to be used instead of the entries of :func:`schedule_facts`:

    - ``cells``: the chunks that any rank owns at the start, sorted.
    - ``states``: one state, before the first round: for each rank ``[chunk, number of the value, 0]`` of each chunk.
    - ``values``: one value per rank, its own input, as ``[text of the rank, 1]``.
    - ``moves``: for each rank and each of its rounds the instructions, joined to one text.
    """
    ranks, table = range(schedule.size), RoundTable(schedule)
    inputs = [list(schedule.starts_with(rank)) for rank in ranks]
    state = [[[chunk, rank, 0] for chunk in chunks] for rank, chunks in enumerate(inputs)]
    return {
        "cells": sorted({chunk for chunks in inputs for chunk in chunks}),
        "states": [state],
        "values": [[str(rank), 1] for rank in ranks],
        "moves": [["; ".join(m.describe() for m in moves) for moves in rounds] for rounds in table.rounds],
    }


def _count_facts(story: History) -> list[list[str]]:
    """Return name, value and lower bound of the counts of a correct schedule, as texts.

    The counts are rounds, bytes on the critical path, and reduced bytes if the collective reduces. Bytes are multiples
    of the message size m. ``story`` is the executed schedule.
    """
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
    """Return ring algorithms with one typical error each.

    >>> [str(unroll(make_schedule(one, 4)).findings[0]) for one in mistakes()][2]
    'round 3: rank 0 adds rank 0 twice to chunk 0'
    """
    return [
        from_function(function, collective, name=name, about=about, chunks="n")
        for function, collective, name, about in _MISTAKES
    ]


def _neighbours(rank: int, size: int) -> tuple[int, int]:
    """Return the next and the previous rank of a ring."""
    return (rank + 1) % size, (rank - 1) % size


def _stops_early(rank: int, size: int) -> Rounds:
    """Yield the rounds of an all_gather ring that has one round too few.

    It is a generator of ``rank`` among ``size`` ranks; each rank lacks one chunk at the end.
    """
    after, before = _neighbours(rank, size)
    for i in range(size - 2):
        yield [send(after, (rank - i) % size), recv(before, (rank - 1 - i) % size)]


def _wrong_chunk(rank: int, size: int) -> Rounds:
    """Yield the rounds of an all_gather ring that sends the chunk that it is about to receive.

    It is a generator of ``rank`` among ``size`` ranks.
    """
    after, before = _neighbours(rank, size)
    for i in range(size - 1):
        yield [send(after, (rank - i - 1) % size), recv(before, (rank - i - 2) % size)]


def _adds_twice(rank: int, size: int) -> Rounds:
    """Yield the rounds of an all_reduce ring whose reduction has one round too many.

    So rank r adds its own input a second time. An all_gather of the sums follows. It is a generator of ``rank`` among
    ``size`` ranks, as :func:`~spmdsim.collectives.from_function` needs it.
    """
    after, before = _neighbours(rank, size)
    for i in range(size):
        yield [send(after, (rank - i) % size), recv_reduce(before, (rank - 1 - i) % size)]
    for i in range(size - 1):
        yield [send(after, (rank + 1 - i) % size), recv(before, (rank - i) % size)]


def _receives_first(rank: int, size: int) -> Rounds:
    """Yield the rounds of an all_gather ring in which all ranks receive before they send.

    It is a generator of ``rank`` among ``size`` ranks; the ranks deadlock.
    """
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
