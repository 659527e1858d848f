"""What the gradients of a tensor's readers cost on their way to where it was computed: as the tape moves them.

Gradients that arrive in one layout are added and moved once, straight to where their tensor's gradient goes; each further
layout is a move of its own. So readers pay together (:class:`SharedPrice`), by the layouts in which their gradients arrive.
Where that would be a table of too many combinations, which layouts several readers share is a choice that follows from
theirs: a state names them, pays for each once, and readers whose gradient arrives in another one pay for that themselves.
Of all states the one that names what is really shared is the cheapest, so the optimum over them is the price of the run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from spmdsim.auto_parallel.solvers.choice_problem import SharedPrice
from spmdsim.core import Layout

#: Combinations of the readers' and the producer's states that one table may hold.
MOST_TOGETHER = 3_000_000
#: States of one tensor's gradients, at most; where there are more, fewer layouts are shared at a time.
MOST_SUMS = 400

#: Seconds from one layout to another.
Price = Callable[[Layout, Layout], float]


class GradientSums(NamedTuple):
    """Per state where the gradient goes, and the layouts that are added there before they move; whether all are there."""

    targets: tuple[Layout, ...]
    shared: tuple[tuple[Layout, ...], ...]
    complete: bool = True

    def moves(self, price: Price) -> np.ndarray:
        """Seconds of each state's own moves."""
        every = zip(self.targets, self.shared)
        return np.array([sum(price(source, target) for source in shared) for target, shared in every])

    def has(self, arriving: Sequence[Layout]) -> np.ndarray:
        """``[state, gradient]``: whether a state has paid for a gradient in this layout."""
        rows = {shared: [g in shared for g in arriving] for shared in dict.fromkeys(self.shared)}
        return np.array([rows[shared] for shared in self.shared]).reshape(len(self.shared), len(arriving))


def gradient_sums(
    readers: Sequence[Sequence[Layout]], targets: Sequence[Layout], price: Price
) -> GradientSums:
    """All states for readers whose gradients may arrive in these layouts, and go to one of the targets.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2,), ("x",))
    >>> split, pending = mesh("x"), mesh(None, partial="x")
    >>> [len(shared) for shared in gradient_sums([[split, pending], [pending]], [split], lambda a, b: a != b).shared]
    [0, 1]
    """
    common, half = _common(readers), len(readers) // 2
    moving = {target: [one for one in common if price(one, target) > 0] for target in dict.fromkeys(targets)}
    fits = (most for most in range(half, 0, -1) if _count(moving.values(), most) <= MOST_SUMS)
    most = next(fits, 0)
    states = [(target, one) for target, some in moving.items() for one in _choices(some, most)]
    complete = all(min(half, len(some)) <= most for some in moving.values())
    return GradientSums(tuple(t for t, _ in states), tuple(s for _, s in states), complete)


def fits_table(sizes: Iterable[int]) -> bool:
    """Whether a table of so many states per variable is small enough for readers to pay together."""
    return math.prod(sizes) <= MOST_TOGETHER


def joint_price(
    variables: Sequence[int], layouts: Sequence[Sequence[Layout]], exempt: Sequence[bool], price: Price
) -> SharedPrice:
    """What readers pay together: their gradients' layouts, state by state, after those where the gradient goes.

    States of the first variable that are ``exempt`` cost nothing here.
    """
    goes, *arriving = layouts
    target = {layout: k for k, layout in enumerate(dict.fromkeys(goes))}
    source = {layout: k for k, layout in enumerate(dict.fromkeys(one for some in arriving for one in some))}
    prices = np.array([[*(price(a, b) for b in target), 0.0] for a in source])
    first = np.array([len(target) if free else target[one] for one, free in zip(goes, exempt)])
    labels = (first, *(np.array([source[one] for one in some]) for some in arriving))
    return SharedPrice(tuple(variables), labels, prices)


def _count(choices: Iterable[Sequence[Layout]], most: int) -> int:
    return sum(math.comb(len(some), k) for some in choices for k in range(most + 1))


def _common(readers: Sequence[Sequence[Layout]]) -> list[Layout]:
    """The layouts in which more than one reader's gradient may arrive."""
    counts: dict[Layout, int] = {}
    for arriving in readers:
        for layout in dict.fromkeys(arriving):
            counts[layout] = counts.get(layout, 0) + 1
    return [layout for layout, count in counts.items() if count > 1]


def _choices(layouts: Sequence[Layout], most: int) -> Iterator[tuple[Layout, ...]]:
    """Every choice of up to ``most`` of them."""
    for count in range(1 + min(most, len(layouts))):
        yield from itertools.combinations(layouts, count)
