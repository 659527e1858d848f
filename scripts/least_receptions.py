"""The fewest receptions by search and by linear programme, and the fewest elements sent: what redistributions are checked against.

Nothing here is shared with :mod:`spmdsim.redistribution.bound.lower_bound`. Elements are looked at one by one: who holds which
contribution, who wants the result. :func:`every_schedule` tries all ways to send and add for one element, and
:func:`optimum` distributes the elements over those ways so that the busiest rank receives as little as possible.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection
from functools import cache
from itertools import permutations, product
from typing import Any, NamedTuple

import numpy as np

from spmdsim.core import Layout

Vector = tuple[int, ...]


class Kind(NamedTuple):
    """One element: per rank the contribution it holds (-1: none), and the lines that want the result.

    A line is the ranks that hold the result together, in parts of their choice: one rank, unless the target is pending.
    """

    holds: tuple[int, ...]
    lines: frozenset[frozenset[int]]


def kinds(src: Layout, dst: Layout, shape: tuple[int, ...], size: int) -> Counter[Kind]:
    """The elements by their kind, one for each coordinate on axes that stay pending, on ``size`` ranks."""
    same = src.mesh == dst.mesh
    kept = [axis for axis, op in src.partial if same and (axis, op) in dst.partial]
    summed = [axis for axis in src.partial_axes if axis not in kept]
    new = [axis for axis in dst.partial_axes if axis not in kept]

    def place(layout: Layout, rank: int, axes: list[str]) -> tuple[int, ...]:
        coords = dict(zip(layout.mesh.axes, layout.mesh.coords(rank)))
        return tuple(coords[axis] for axis in axes)

    sums = list(product(*(range(src.mesh.size_of[axis]) for axis in summed)))
    boxes = [
        (rank, src.bounds(shape, rank), sums.index(place(src, rank, summed))) for rank in src.mesh.rank_list
    ]
    others = [axis for axis in dst.mesh.axes if axis not in new]
    wants = [(rank, dst.bounds(shape, rank), place(dst, rank, others)) for rank in dst.mesh.rank_list]
    counts: Counter[Kind] = Counter()
    for problem in product(*(range(src.mesh.size_of[axis]) for axis in kept)):
        for element in np.ndindex(shape):
            holds, lines = [-1] * size, {}
            for rank, box, number in boxes:
                if place(src, rank, kept) == problem and _inside(element, box):
                    holds[rank] = number
            for rank, box, line in wants:
                if (not kept or place(dst, rank, kept) == problem) and _inside(element, box):
                    lines.setdefault(line, set()).add(rank)
            counts[Kind(tuple(holds), frozenset(map(frozenset, lines.values())))] += 1
    return counts


def _inside(element: tuple[int, ...], box: Any) -> bool:
    return all(start <= at < stop for at, (start, stop) in zip(element, box))


# -- one element, all schedules -------------------------------------------------------------------------


@cache
def every_schedule(kind: Kind, slack: int = 1) -> frozenset[Vector]:
    """Receptions per rank of all schedules that are not worse than another on every rank.

    Searched breadth first over what every rank knows (sets of contributions that it can add up), up to ``slack``
    receptions more in all than the fewest.
    """
    size, terms = len(kind.holds), max(kind.holds) + 1
    start = tuple(frozenset([1 << c]) if c >= 0 else frozenset() for c in kind.holds)
    layer: dict[Any, set[Vector]] = {start: {(0,) * size}}
    done: set[Vector] = set()
    fewest = None
    for count in range(2 * size + 2):
        done |= {
            v for knows, vectors in layer.items() if _finished(knows, kind.lines, terms) for v in vectors
        }
        if done and fewest is None:
            fewest = count
        if fewest is not None and count >= fewest + slack:
            break
        after: dict[Any, set[Vector]] = {}
        for knows, vectors in layer.items():
            for giver, taker in permutations(range(size), 2):
                for mask in knows[giver] - knows[taker]:
                    richer = list(knows)
                    richer[taker] = _closed(knows[taker], mask)
                    more = {(*v[:taker], v[taker] + 1, *v[taker + 1 :]) for v in vectors}
                    after.setdefault(tuple(richer), set()).update(more)
        layer = after
    return frozenset(v for v in done if not any(u != v and all(a <= b for a, b in zip(u, v)) for u in done))


@cache
def _closed(masks: frozenset[int], mask: int) -> frozenset[int]:
    """What can be added up from what is known and one sum more: contributions are added once."""
    return masks | {mask} | {mask | other for other in masks if not mask & other}


def _finished(knows: tuple[frozenset[int], ...], lines: frozenset[frozenset[int]], terms: int) -> bool:
    whole = (1 << terms) - 1
    for line in lines:
        sums = {0}
        for rank in line:
            sums |= {a | b for a in sums for b in knows[rank] if not a & b}
        if whole not in sums:
            return False
    return True


def corners(kind: Kind) -> frozenset[Vector]:
    """The schedules of which all others are mixtures, for any number of ranks: one rank does all the adding.

    Every rank that wants the result receives once, and the adding rank what is left. One without a contribution
    of use (its copies are at all that hold one and want the result) costs one reception more.
    """
    size = len(kind.holds)
    wants = {rank for line in kind.lines for rank in line}
    if max(kind.holds) == 0:
        return frozenset([tuple(int(r in wants and kind.holds[r] < 0) for r in range(size))])
    both = {rank for rank in wants if kind.holds[rank] >= 0}
    fewest = max(kind.holds) + 1 + len(wants) - 1 - bool(both)
    vectors = set()
    for adder in range(size):
        if not both:
            outside = adder not in wants and kind.holds[adder] < 0
        elif kind.holds[adder] < 0:
            outside = True
        else:
            outside = adder not in both and {kind.holds[r] for r in both} == {kind.holds[adder]}
        vector = [int(rank in wants) for rank in range(size)]
        vector[adder] += fewest - len(wants) + (outside and fewest > len(wants))
        vectors.add(tuple(vector))
    return frozenset(vectors)


# -- all elements ----------------------------------------------------------------------------------------


def optimum(counts: Counter[Kind], ranks: Collection[int], ways: Any = corners) -> tuple[float, int]:
    """The least that the busiest of some ranks can receive, in fractions of elements, and the least in all.

    Nobody else takes part.
    """
    from scipy.optimize import linprog

    columns, rows = [], []
    for number, (kind, count) in enumerate(counts.items()):
        for vector in (one for one in ways(kind) if not any(n for r, n in enumerate(one) if r not in ranks)):
            columns.append(vector)
            rows.append((number, count))
    total = sum(count * min(map(sum, ways(kind))) for kind, count in counts.items())
    if not any(map(sum, columns)):
        return 0.0, 0
    loads = np.array(columns, float).T
    below = np.hstack([loads, -np.ones((len(loads), 1))])
    equal = np.zeros((len(counts), len(columns) + 1))
    for column, (number, _) in enumerate(rows):
        equal[number, column] = 1
    solution = linprog(
        [0] * len(columns) + [1],
        A_ub=below,
        b_ub=np.zeros(len(loads)),
        A_eq=equal,
        b_eq=np.array(list(counts.values()), float),
        method="highs",
    )
    return float(solution.fun), total


# -- senders ---------------------------------------------------------------------------------------------


def least_sent(src: Layout, dst: Layout, shape: tuple[int, ...], size: int) -> int:
    """The fewest elements that the busiest sender can send where values only move: a maximum flow, element by element.

    Elements that the same ranks hold are one source; its ranks can send so many elements each, and all that ranks want
    and do not hold has to arrive.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    have, want = (np.array([_held(layout, shape, rank) for rank in range(size)]) for layout in (src, dst))
    demand: Counter[tuple[bool, ...]] = Counter()
    for holders, count in zip(have.T.tolist(), (want & ~have).sum(axis=0).tolist()):
        demand[tuple(holders)] += count
    begin, end, total = 0, 1 + len(demand) + size, sum(demand.values())

    def arrives(limit: int) -> bool:
        room = np.zeros((end + 1, end + 1), np.int32)
        for number, (holders, count) in enumerate(demand.items(), 1):
            room[begin, number] = count
            room[number, 1 + len(demand) : end] = np.array(holders) * total
        room[1 + len(demand) : end, end] = limit
        return int(maximum_flow(csr_array(room), begin, end).flow_value) == total

    return bisect_left(range(total), True, key=arrives)


def _held(layout: Layout, shape: tuple[int, ...], rank: int) -> np.ndarray:
    """Which elements a rank holds, as a flat mask."""
    mask = np.zeros(shape, bool)
    if rank in layout.mesh:
        mask[layout.slices(shape, rank)] = True
    return mask.ravel()
