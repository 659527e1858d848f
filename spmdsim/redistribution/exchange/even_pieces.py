"""What an exchange on one mesh moves where everything divides: a few products, however many ranks there are."""

from __future__ import annotations

from math import gcd, prod

from spmdsim.redistribution.exchange.grid import Ends
from spmdsim.redistribution.exchange.shares import FEW_RANKS

Axes = tuple[str, ...]


class EvenVolume:
    """The busiest ranks of an exchange, counted as :class:`~spmdsim.redistribution.exchange.exchange_volume.ExchangeVolume` counts them.

    Pieces of a dim are nested, one in the other, or some rank's two pieces have nothing in common; so what the busiest
    rank has already is a product of lengths, or nothing.

    Attributes:
        most_received: the most elements one rank receives from others.
        most_messages: the most messages one rank receives; among few ranks, those that hold a piece share its boxes.
        most_sent: the most elements one rank sends, those who hold a piece sending equally much.
    """

    def __init__(self, ends: Ends) -> None:
        have, src, _, dst, shape = ends
        size_of = have.size_of
        split = {axis for entry in src for axis in entry}
        own = wanted = held = kept = messages = box = 1
        for size, before, after in zip(shape, src, dst):
            had, asked = (size // prod([size_of[axis] for axis in entry]) for entry in (before, after))
            first, second = rests(before, after)
            nested = not first or not second
            own *= min(had, asked) if nested else 0
            held, wanted, messages = held * had, wanted * asked, messages * max(asked // had, 1)
            box *= min(had, asked)
            if second and not first:
                kept *= asked * prod([size_of[axis] for axis in second if axis not in split])
            else:
                kept *= had if nested or split.isdisjoint(second) else 0
        needed = {axis for entry in dst for axis in entry}
        apart = prod([size for axis, size in size_of.items() if axis not in split and axis not in needed])
        copies = have.size // (prod([size_of[axis] for axis in needed]) * apart)
        holders = have.size // (prod([size_of[axis] for axis in split]) * apart)
        demand = held * copies - kept
        self.most_received = wanted - own
        self.most_messages = messages - (own > 0)
        self.most_sent = demand / holders
        if have.size <= FEW_RANKS and demand:
            self.most_messages *= senders(holders, demand // box)


def even_volume(ends: Ends) -> EvenVolume | None:
    """The traffic of an exchange, where it is this simple: on one mesh, with equal pieces whose cuts nest."""
    have, src, want, dst, shape = ends
    if have != want or 0 in shape:
        return None
    size_of = have.size_of
    split = {axis for entry in src for axis in entry}
    for size, before, after in zip(shape, src, dst):
        one, other = sorted(prod([size_of[axis] for axis in entry]) for entry in (before, after))
        if other % one or size % other:
            return None
        first, second = rests(before, after)
        if first and second and second[0] not in split and not split.isdisjoint(second):
            return None
    return EvenVolume(ends)


def senders(holders: int, boxes: int) -> int:
    """Of how many holders one of several equal boxes consists at most, if each holder sends equally much of all.

    >>> [senders(holders, boxes) for holders, boxes in ((2, 4), (4, 2), (2, 3), (3, 2))]
    [1, 2, 2, 2]
    """
    return 1 - (gcd(holders, boxes) - holders) // boxes


def rests(before: Axes, after: Axes) -> tuple[Axes, Axes]:
    """What two entries have behind their common beginning."""
    count = 0
    for one, other in zip(before, after):
        if one != other:
            break
        count += 1
    return before[count:], after[count:]
