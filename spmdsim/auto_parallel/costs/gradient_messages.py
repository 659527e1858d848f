"""Gradients of parameters that share messages: what that costs, for a search and for its report.

Reductions of gradients that may go together (:mod:`spmdsim.redistribution.merge`) pay latency once per message. What
one collective takes as a function of its bytes is, for real machines, the least of a few straight lines, such as the
latency-optimal and the bandwidth-optimal algorithm. So a search needs one more variable per kind of message: its
states are "every gradient on its own" and one per line; each gradient that goes this way adds the line's slope, and the
line's start is paid once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from spmdsim.auto_parallel.costs.move_prices import MovePrices, moved_itemsize
from spmdsim.redistribution.merge import BUCKET_BYTES, Merge, elements_held, merge_of

if TYPE_CHECKING:
    from spmdsim.auto_parallel.costs.settings import Settings
    from spmdsim.auto_parallel.programs.graph import Value
    from spmdsim.auto_parallel.solvers.choice_problem import ChoiceProblem
    from spmdsim.core import Layout

#: Message sizes between which a cost model is taken for straight.
SAMPLES = tuple(2.0**k for k in range(4, 45, 4))

#: A price as a straight line: seconds of a message without bytes, and seconds per byte.
Line = tuple[float, float]


def shared(settings: Settings, src: Layout, dst: Layout, shape: tuple[int, ...]) -> Merge | None:
    """How a gradient's reduction shares a message under these settings; None if it goes alone."""
    if not settings.merges:
        return None
    found = merge_of(src, dst, shape)
    return None if found is not None and found.dim is not None and not settings.scatter else found


def lines(price: Callable[[float], float]) -> list[Line]:
    """The straight lines whose least is a concave price, found at :data:`SAMPLES`.

    >>> [(round(a, 6), round(b, 6)) for a, b in lines(lambda r: min(1 + r, 100 + r / 2))]
    [(1.0, 1.0), (100.0, 0.5)]
    """
    found: list[Line] = []
    for size in SAMPLES:
        low, high = price(size), price(1.25 * size)
        slope = (high - low) / (0.25 * size)
        line = (low - slope * size, slope)
        known = any(abs(a - line[0]) <= 1e-6 * abs(a) and abs(b - slope) <= 1e-6 * abs(b) for a, b in found)
        if line[0] >= 0 and slope >= 0 and not known:
            found.append(line)
    return found


class SharedMessages:
    """The messages that gradients may share, as hubs of a problem.

    Args:
        problem: where the hubs are added.
        moves: prices of redistributions.
        settings: the assumptions.
        total_bytes: bytes of all parameters: whether buckets fill up.
    """

    def __init__(
        self, problem: ChoiceProblem, moves: MovePrices, settings: Settings, total_bytes: float
    ) -> None:
        self.problem, self.moves, self.settings = problem, moves, settings
        self.many = total_bytes > BUCKET_BYTES
        self._hubs: dict[tuple[Merge, int], tuple[int, list[Line]]] = {}
        self._merges: dict[tuple[object, ...], list[Merge | None]] = {}

    def add(
        self,
        variable: int,
        sources: Sequence[Layout],
        targets: Sequence[Layout],
        value: Value,
        count: int,
    ) -> None:
        """Price the gradient of a parameter, which each state of a variable reduces from a source to a target.

        Args:
            variable: its number.
            sources: the gradient's layout, per state.
            targets: the layout it is brought into, per state.
            value: the parameter.
            count: how many such parameters there are.
        """
        exposed = count * (1.0 - self.settings.overlap)
        merges = self._find(tuple(sources), tuple(targets), value.shape)
        alone = np.zeros(len(merges))
        for k, (merge, src, dst) in enumerate(zip(merges, sources, targets)):
            if merge is None:
                alone[k] = self.moves.seconds(src, dst, value.shape, value.itemsize)
        self.problem.seconds[variable] = self.problem.seconds[variable] + exposed * alone
        for merge in dict.fromkeys(m for m in merges if m is not None):
            hub, known = self._hub(merge, moved_itemsize(sources[merges.index(merge)], value.itemsize))
            prices = np.zeros((len(merges), 1 + len(known)))
            for k, src in enumerate(sources):
                if merges[k] == merge:
                    held = moved_itemsize(src, value.itemsize) * elements_held(src, value.shape)
                    own = self.moves.seconds(src, targets[k], value.shape, value.itemsize)
                    prices[k] = exposed * np.array([own, *self._along(known, held)])
            self.problem.add_pair(variable, hub, prices)

    def _find(
        self, sources: tuple[Layout, ...], targets: tuple[Layout, ...], shape: tuple[int, ...]
    ) -> list[Merge | None]:
        key = (sources, targets, shape)
        if key not in self._merges:
            self._merges[key] = [shared(self.settings, *pair, shape) for pair in zip(sources, targets)]
        return self._merges[key]

    def _hub(self, merge: Merge, itemsize: int) -> tuple[int, list[Line]]:
        found = self._hubs.get((merge, itemsize))
        if found is None:
            known = lines(partial(self.moves.together, merge))
            starts = (1.0 - self.settings.overlap) * np.array([0.0, *(start for start, _ in known)])
            found = self._hubs[merge, itemsize] = (self.problem.add_variable(starts, hub=True), known)
        return found

    def _along(self, known: list[Line], held: int) -> list[float]:
        """Of one gradient: its price along each line, with its part of the bucket's message."""
        messages = min(1.0, held / BUCKET_BYTES) if self.many else 0.0
        return [slope * held + start * messages for start, slope in known]
