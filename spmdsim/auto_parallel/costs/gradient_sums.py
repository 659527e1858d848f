"""Costs of moving the gradients of a tensor from its readers to its producer, as the tape moves them.

Gradients that arrive in one layout are added and moved once, straight to the layout of the tensor's gradient. Each
further layout is a move of its own. So readers pay together (:class:`SharedPrice`), by the layouts in which their
gradients arrive. If a table of all their combinations is too large, a further variable decides which layouts several
readers share. Each of its states names shared layouts and pays once for each; a reader whose gradient arrives in
another layout pays for its own move. The cheapest state names the layouts that are really shared, so the optimum over
all states is the price of the run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from spmdsim.auto_parallel.solvers.choice_problem import SharedPrice
from spmdsim.core import Layout

#: Most combinations of the readers' and the producer's states in one table.
MOST_TOGETHER = 3_000_000
#: Most states of one tensor's gradients; if there are more, only states with fewer shared layouts are used.
MOST_SUMS = 400

#: Seconds of moving a gradient from one layout to another.
Price = Callable[[Layout, Layout], float]


class GradientSums(NamedTuple):
    """States of a tensor's gradients.

    Attributes:
        targets: for each state, the layout to which the gradient goes.
        shared: for each state, the layouts in which gradients are added before they move.
        complete: True if these are all states.
    """

    targets: tuple[Layout, ...]
    shared: tuple[tuple[Layout, ...], ...]
    complete: bool = True

    def moves(self, price: Price) -> np.ndarray:
        """Return the seconds of the moves that each state pays for."""
        states = zip(self.targets, self.shared)
        return np.array([sum(price(source, target) for source in shared) for target, shared in states])

    def has(self, arriving: Sequence[Layout]) -> np.ndarray:
        """Return ``[state, gradient]`` flags: True if the state has paid for the gradient's layout."""
        rows = {shared: [g in shared for g in arriving] for shared in dict.fromkeys(self.shared)}
        return np.array([rows[shared] for shared in self.shared]).reshape(len(self.shared), len(arriving))


def gradient_sums(
    readers: Sequence[Sequence[Layout]], targets: Sequence[Layout], price: Price
) -> GradientSums:
    """Return the states of the variable that decides where gradients of several readers are added.

    A state is a target, and a set of layouts in which gradients are added before the sum moves to the target. Such a
    layout must be possible for at least two readers, and the move from it must cost seconds. A set has at most half
    as many layouts as there are readers, because at least two readers share each layout. If there are more than
    :data:`MOST_SUMS` (400) states, states with many layouts are left out, and the result is not ``complete``.

    Args:
        readers: for each reader, the layouts in which its gradient may arrive.
        targets: the layouts to which the gradient may go.
        price: the seconds of a move.

    Two readers have the pending layout in common, so the states for the target have no layout or this one:

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2,), ("x",))
    >>> split, pending = mesh("x"), mesh(None, partial="x")
    >>> [len(shared) for shared in gradient_sums([[split, pending], [pending]], [split], lambda a, b: a != b).shared]
    [0, 1]
    """
    common, half = _common_layouts(readers), len(readers) // 2
    moving = {
        target: [layout for layout in common if price(layout, target) > 0]
        for target in dict.fromkeys(targets)
    }
    # At most half as many layouts as readers are shared, because each shared layout has at least two readers.
    fitting = (most for most in range(half, 0, -1) if _count_choices(moving.values(), most) <= MOST_SUMS)
    most = next(fitting, 0)
    states = [
        (target, shared) for target, sources in moving.items() for shared in _list_choices(sources, most)
    ]
    complete = all(min(half, len(sources)) <= most for sources in moving.values())
    return GradientSums(
        tuple(target for target, _ in states), tuple(shared for _, shared in states), complete
    )


def fits_table(sizes: Iterable[int]) -> bool:
    """Return True if a table over variables of these sizes has at most :data:`MOST_TOGETHER` entries.

    Then the readers of a tensor pay for its gradient by one table.
    """
    return math.prod(sizes) <= MOST_TOGETHER


def joint_price(
    variables: Sequence[int], layouts: Sequence[Sequence[Layout]], exempt: Sequence[bool], price: Price
) -> SharedPrice:
    """Return the price that readers of a tensor pay together for the moves of their gradients.

    Gradients that arrive in one layout are added before they move to the target, so each distinct layout is paid for
    once. For example, the gradients of three readers arrive in the layouts A, A and B: the price is that of a move from
    A and one from B.

    Args:
        variables: the variable that decides the target, then those of the readers.
        layouts: for each variable, the gradient's layout in each state: the target first, then the readers' layouts.
        exempt: for each state of the first variable, True if it pays nothing here.
        price: the seconds of a move.
    """
    targets, *arriving = layouts
    target_label = {layout: k for k, layout in enumerate(dict.fromkeys(targets))}
    source_label = {layout: k for k, layout in enumerate(dict.fromkeys(itertools.chain(*arriving)))}
    # The last column is the price of exempt states.
    prices = np.array([[*(price(source, target) for target in target_label), 0.0] for source in source_label])
    columns = [
        len(target_label) if is_exempt else target_label[layout] for layout, is_exempt in zip(targets, exempt)
    ]
    rows_of_readers = [np.array([source_label[layout] for layout in sources]) for sources in arriving]
    return SharedPrice(tuple(variables), (np.array(columns), *rows_of_readers), prices)


def _count_choices(layout_sets: Iterable[Sequence[Layout]], most: int) -> int:
    """Return the number of choices of up to ``most`` layouts, over all sets of layouts."""
    return sum(math.comb(len(layouts), k) for layouts in layout_sets for k in range(most + 1))


def _common_layouts(readers: Sequence[Sequence[Layout]]) -> list[Layout]:
    """Return the layouts that at least two of the ``readers`` list, in the order of the lists.

    A reader lists the layouts in which its gradient may arrive. For example, the lists [A, A, B] and [B, C] have only B
    in common.
    """
    counts: dict[Layout, int] = {}
    for arriving in readers:
        for layout in dict.fromkeys(arriving):
            counts[layout] = counts.get(layout, 0) + 1
    return [layout for layout, count in counts.items() if count > 1]


def _list_choices(layouts: Sequence[Layout], most: int) -> Iterator[tuple[Layout, ...]]:
    """Yield every choice of up to ``most`` layouts, the smallest first."""
    for count in range(1 + min(most, len(layouts))):
        yield from itertools.combinations(layouts, count)
