"""Compute the fewest receptions and sent elements of redistributions by search and linear programming.

It shares no code with :mod:`spmdsim.redistribution.bound.lower_bound`, which it verifies. It looks at each element:
which rank owns which contribution, and which ranks want the result. :func:`every_schedule` tries all schedules for one
element. :func:`optimum` distributes the elements over these schedules so that the busiest rank receives as little as
possible.

A contribution is an addend of the element; without a pending sum the only one is the element itself. A schedule is
given by the number of receptions of each rank.
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
    """A kind of element.

    Attributes:
        holds: for each rank the number of the contribution that it owns; -1 for none.
        lines: the groups of ranks that want the result. A group is one rank unless the target is partial; then its
            members own addends of their choice.
    """

    holds: tuple[int, ...]
    lines: frozenset[frozenset[int]]


def kinds(src: Layout, dst: Layout, shape: tuple[int, ...], size: int) -> Counter[Kind]:
    """Count the elements of each kind in a redistribution.

    An axis that is partial before and after splits the redistribution into independent ones, one per coordinate, and
    the elements of all of them are counted.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: shape of the tensor.
        size: number of ranks.
    """
    on_one_mesh = src.mesh == dst.mesh
    staying = [axis for axis, op in src.partial if on_one_mesh and (axis, op) in dst.partial]
    summed = [axis for axis in src.partial_axes if axis not in staying]
    new = [axis for axis in dst.partial_axes if axis not in staying]

    def coords_on(layout: Layout, rank: int, axes: list[str]) -> tuple[int, ...]:
        coords = dict(zip(layout.mesh.axes, layout.mesh.coords(rank)))
        return tuple(coords[axis] for axis in axes)

    sums = list(product(*(range(src.mesh.size_of[axis]) for axis in summed)))
    boxes = [
        (rank, src.bounds(shape, rank), sums.index(coords_on(src, rank, summed)))
        for rank in src.mesh.rank_list
    ]
    others = [axis for axis in dst.mesh.axes if axis not in new]
    wants = [(rank, dst.bounds(shape, rank), coords_on(dst, rank, others)) for rank in dst.mesh.rank_list]
    counts: Counter[Kind] = Counter()
    for problem in product(*(range(src.mesh.size_of[axis]) for axis in staying)):
        for element in np.ndindex(shape):
            holds, lines = [-1] * size, {}
            for rank, box, number in boxes:
                if coords_on(src, rank, staying) == problem and _is_inside(element, box):
                    holds[rank] = number
            for rank, box, line in wants:
                if (not staying or coords_on(dst, rank, staying) == problem) and _is_inside(element, box):
                    lines.setdefault(line, set()).add(rank)
            counts[Kind(tuple(holds), frozenset(map(frozenset, lines.values())))] += 1
    return counts


def _is_inside(element: tuple[int, ...], box: Any) -> bool:
    return all(start <= at < stop for at, (start, stop) in zip(element, box))


# -- one element, all schedules -------------------------------------------------------------------------


@cache
def every_schedule(kind: Kind, slack: int = 1) -> frozenset[Vector]:
    """Return the receptions per rank of all schedules that no other schedule beats on every rank.

    It is a breadth-first search over the sums that every rank knows. A sum is a bit mask of its contributions. Each
    layer has one more reception.

    Args:
        kind: the kind of the element.
        slack: schedules may have this number of receptions more than the fewest in all.
    """
    size, terms = len(kind.holds), max(kind.holds) + 1
    start = tuple(frozenset([1 << c]) if c >= 0 else frozenset() for c in kind.holds)
    layer: dict[Any, set[Vector]] = {start: {(0,) * size}}
    done: set[Vector] = set()
    fewest = None
    for count in range(2 * size + 2):
        done |= {
            v for knows, vectors in layer.items() if _is_finished(knows, kind.lines, terms) for v in vectors
        }
        if done and fewest is None:
            fewest = count
        if fewest is not None and count >= fewest + slack:
            break
        next_layer: dict[Any, set[Vector]] = {}
        for knows, vectors in layer.items():
            for sender, receiver in permutations(range(size), 2):
                for mask in knows[sender] - knows[receiver]:
                    richer = list(knows)
                    richer[receiver] = _reachable_sums(knows[receiver], mask)
                    more = {(*v[:receiver], v[receiver] + 1, *v[receiver + 1 :]) for v in vectors}
                    next_layer.setdefault(tuple(richer), set()).update(more)
        layer = next_layer
    return frozenset(v for v in done if not any(u != v and all(a <= b for a, b in zip(u, v)) for u in done))


@cache
def _reachable_sums(masks: frozenset[int], mask: int) -> frozenset[int]:
    """Return the sums that a rank can form from known sums and a new one; each contribution is added once."""
    return masks | {mask} | {mask | addend for addend in masks if not mask & addend}


def _is_finished(knows: tuple[frozenset[int], ...], lines: frozenset[frozenset[int]], terms: int) -> bool:
    """Return True if every group of ranks that wants the result can form it."""
    all_terms = (1 << terms) - 1
    for line in lines:
        sums = {0}
        for rank in line:
            sums |= {a | b for a in sums for b in knows[rank] if not a & b}
        if all_terms not in sums:
            return False
    return True


def corners(kind: Kind) -> frozenset[Vector]:
    """Return the schedules of which all others are mixtures: in each of them one rank adds all contributions.

    Each rank that wants the result receives once, and the adding rank receives the further contributions. In all these
    are the fewest receptions, or one more if a contribution of the adding rank saves no reception. There are three
    such cases:

    - No rank owns a contribution and wants the result, and the adding rank does neither.
    - Some ranks do both, and the adding rank owns no contribution.
    - Some ranks do both, but not the adding rank, and all of them own the contribution of the adding rank.

    If there is only one contribution, each rank that wants it and does not own it receives it once.
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


def optimum(counts: Counter[Kind], ranks: Collection[int], schedules: Any = corners) -> tuple[float, int]:
    """Return the fewest elements (a fraction) that the busiest rank can receive, and the fewest in all.

    The first number is the optimum of a linear program. Its variables are the elements of each kind that follow each
    schedule, and the limit that no rank exceeds, which is minimised.

    Args:
        counts: the number of elements of each kind.
        ranks: the ranks that take part.
        schedules: function that returns the schedules of a kind.
    """
    from scipy.optimize import linprog

    columns, rows = [], []
    for number, (kind, count) in enumerate(counts.items()):
        for vector in (
            schedule
            for schedule in schedules(kind)
            if not any(n for r, n in enumerate(schedule) if r not in ranks)
        ):
            columns.append(vector)
            rows.append((number, count))
    total = sum(count * min(map(sum, schedules(kind))) for kind, count in counts.items())
    if not any(map(sum, columns)):
        return 0.0, 0
    loads = np.array(columns, float).T
    upper_rows = np.hstack([loads, -np.ones((len(loads), 1))])
    equal_rows = np.zeros((len(counts), len(columns) + 1))
    for column, (number, _) in enumerate(rows):
        equal_rows[number, column] = 1
    solution = linprog(
        [0] * len(columns) + [1],
        A_ub=upper_rows,
        b_ub=np.zeros(len(loads)),
        A_eq=equal_rows,
        b_eq=np.array(list(counts.values()), float),
        method="highs",
    )
    return float(solution.fun), total


# -- senders ---------------------------------------------------------------------------------------------


def least_sent(src: Layout, dst: Layout, shape: tuple[int, ...], size: int) -> int:
    """Return the fewest elements that the busiest sender can send if values only move, by a maximum flow.

    Elements with equal owners form one source of the flow, and each owner can send up to a limit. The result is the
    smallest limit for which every element arrives at the ranks that want it and do not own it.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    have, want = (
        np.array([_owned_mask(layout, shape, rank) for rank in range(size)]) for layout in (src, dst)
    )
    demand: Counter[tuple[bool, ...]] = Counter()
    for holders, count in zip(have.T.tolist(), (want & ~have).sum(axis=0).tolist()):
        demand[tuple(holders)] += count
    begin, end, total = 0, 1 + len(demand) + size, sum(demand.values())

    def arrives(limit: int) -> bool:
        capacity = np.zeros((end + 1, end + 1), np.int32)
        for number, (holders, count) in enumerate(demand.items(), 1):
            capacity[begin, number] = count
            capacity[number, 1 + len(demand) : end] = np.array(holders) * total
        capacity[1 + len(demand) : end, end] = limit
        return int(maximum_flow(csr_array(capacity), begin, end).flow_value) == total

    return bisect_left(range(total), True, key=arrives)


def _owned_mask(layout: Layout, shape: tuple[int, ...], rank: int) -> np.ndarray:
    """Return a flat mask of the elements that a rank owns."""
    mask = np.zeros(shape, bool)
    if rank in layout.mesh:
        mask[layout.slices(shape, rank)] = True
    return mask.ravel()
