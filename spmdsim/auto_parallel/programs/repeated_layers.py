"""Finding the repeated layers of a recorded program, so that searches can give them equal strategies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spmdsim.auto_parallel.programs.graph import Graph

#: The longest layer that is looked for, in operators.
LONGEST = 400


def mark_layers(graph: Graph, name: str = "layer") -> Graph:
    """The graph with its longest stretch of equal, repeated pieces marked as repeats of one layer.

    Two operators are alike if they have the same rule and sizes and read equally distant results.
    """
    period, start, repeats = find_repeats(_fingerprints(graph))
    if repeats < 2:
        return graph
    operators = tuple(
        replace(o, layer=(name, (o.index - start) // period))
        if start <= o.index < start + period * repeats
        else replace(o, layer=None)
        for o in graph.operators
    )
    return replace(graph, operators=operators)


def _fingerprints(graph: Graph) -> list[int]:
    """One number per operator, equal for operators that are alike."""
    numbers: dict[object, int] = {}
    marks = []
    for operator in graph.operators:
        reads = []
        for value in operator.inputs:
            producer = graph.values[value].producer
            reads.append(graph.values[value].kind if producer is None else operator.index - producer)
        key = (operator.kind, operator.bound, tuple(reads), repr((operator.configured, operator.out)))
        marks.append(numbers.setdefault(key, len(numbers)))
    return marks


def find_repeats(marks: list[int]) -> tuple[int, int, int]:
    """Period, start and number of repeats of the stretch that covers most; (1, 0, 0) if nothing repeats.

    Among stretches that cover equally much, the shortest period wins.

    >>> find_repeats([9, 1, 2, 3, 1, 2, 3, 1, 2, 3, 8])
    (3, 1, 3)
    >>> find_repeats([1, 2, 3])
    (1, 0, 0)
    """
    array = np.asarray(marks)
    best, covered = (1, 0, 0), 0
    for period in range(1, min(LONGEST, len(array) // 2) + 1):
        same = array[:-period] == array[period:]
        edges = np.flatnonzero(np.diff(np.concatenate(([0], same.astype(np.int8), [0]))))
        if not len(edges):
            continue
        lengths = edges[1::2] - edges[::2]
        longest = int(lengths.argmax())
        repeats = int(lengths[longest]) // period + 1
        if repeats >= 2 and repeats * period > covered:
            best, covered = (period, int(edges[2 * longest]), repeats), repeats * period
    return best
