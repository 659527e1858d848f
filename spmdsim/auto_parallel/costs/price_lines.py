"""A price as the least of a few straight lines of its bytes, and how far they are above it at most.

A collective of a plain machine costs what the least of its algorithms does, each a straight line: the price is concave.
Calibrated machines' prices jump, where libraries change their protocol or a measurement was disturbed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

from spmdsim.core.step import Step
from spmdsim.cost.closed_forms import message_bytes
from spmdsim.cost.machine import CostModel, Machine, Restricted
from spmdsim.redistribution.price import most_received

#: Message sizes at which lines are looked for.
SAMPLES = tuple(2.0**k for k in range(4, 45, 4))
#: The least of the lines is no more than this share above the price; ``LOOSE`` where the price is not concave.
CLOSE, LOOSE = 1e-3, 1e-2

#: A price as a straight line: seconds of a message without bytes, and seconds per byte.
Line = tuple[float, float]


def lines(price: Callable[[float], float], sizes: Sequence[float] = SAMPLES, unit: float = 1.0) -> list[Line]:
    """The straight lines whose least is a concave price of multiples of ``unit`` bytes: at some sizes, and where two meet.

    >>> [(round(a, 2), round(b, 2)) for a, b in lines(lambda r: min(1 + r, 20 + r / 2, 60 + r / 4))]
    [(1.0, 1.0), (20.0, 0.5), (60.0, 0.25)]
    """
    open_ends = [(size, _tangent(price, size)) for size in reversed(sizes)]
    tangents: list[Line] = []
    size, line = open_ends.pop()
    while open_ends:
        further, other = open_ends[-1]
        (start, slope), (high, flat) = line, other
        meet = 4 * unit * ((high - start) / (slope - flat) // (4 * unit)) if slope > flat else size
        if size < meet < further and price(meet) < (1 - CLOSE) * (start + slope * meet):
            open_ends.append((meet, _tangent(price, meet)))
        else:
            tangents.append(line)
            size, line = open_ends.pop()
    tangents.append(line)
    kept: list[Line] = []
    for line in tangents:
        if min(line) >= 0 and not any(same_line(line, other) for other in kept):
            kept.append(line)
    return kept


def lowered(price: Callable[[float], float], straight: Sequence[Line], sizes: Iterable[float]) -> list[Line]:
    """The lines, and more of them where a price that is not concave is lower at one of some sizes.

    >>> lowered(lambda r: 1 + r if r < 8 else 0.5 * r, [(1.0, 1.0)], (4.0, 8.0))
    [(1.0, 1.0), (0.0, 0.5)]
    """
    every = [*straight]
    for size in sizes:
        seconds = price(size)
        least, slope = min([(start + slope * size, slope) for start, slope in every], default=(math.inf, 0.0))
        if least > (1 + LOOSE) * seconds:
            slope = min(slope, seconds / size)
            every.append((seconds - slope * size, slope))
    return every


def excess(
    price: Callable[[float], float], straight: Sequence[Line], sizes: Sequence[float], unit: float = 1.0
) -> float:
    """By what share the least of the lines is above a price at most, which is concave between neighbours of some sizes.

    Over a concave price a line is highest at an end of what it is the least for.

    >>> round(excess(lambda r: r ** 0.5 + 1, [(1.5, 0.5), (3.0, 0.125)], (1.0, 16.0)), 2)
    0.17
    """
    every = {*sizes}
    for (a, s), (b, t) in permutations(straight, 2):
        meet = (b - a) / (s - t) if s > t else 0.0
        edge = unit * (meet // unit)
        if sizes[0] < edge < sizes[-1] - unit and a + s * meet <= (1 + 1e-9) * _least(straight, meet):
            every |= {edge, edge + unit}
    over = [(size, [(a + s * size) / price(size) - 1.0 for a, s in straight]) for size in sorted(every)]
    pairs = [(one, two) for (size, one), (further, two) in pairwise(over) if further > size + unit]
    return max(min(map(max, *pair)) for pair in (*pairs, *((one, one) for _, one in over)))


def _least(straight: Sequence[Line], size: float) -> float:
    return min([start + slope * size for start, slope in straight])


def _tangent(price: Callable[[float], float], size: float) -> Line:
    low, high = price(size), price(1.25 * size)
    slope = (high - low) / (0.25 * size)
    return low - slope * size, slope


def same_line(one: Line, other: Line) -> bool:
    """Whether two lines are one but for rounding."""
    return all(abs(a - b) <= CLOSE / 10 * max(abs(a), abs(b)) for a, b in zip(one, other))


def limits_of(machine: CostModel, steps: Iterable[Step], itemsize: int) -> Iterator[float]:
    """By how much a message may grow, in times of its size, until the price of one of its steps begins anew.

    A calibrated machine's prices have ranges of sizes, and measured times between which they are interpolated.
    """
    model: Any = machine.model if isinstance(machine, Restricted) else machine
    for step in steps if isinstance(model, Machine) else ():
        even = replace(step, shape=tuple([size * step.src.mesh.size for size in step.shape]))
        received = most_received(even) * itemsize / step.src.mesh.size
        if not received:
            continue
        members = step.src.mesh.axis_size(*step.axes)
        message = message_bytes(step.collective, members, received)
        yield from (piece.limit / received for piece in model.pieces)
        yield from (one.nbytes / message for one in model.measured if one.collective == step.collective)
