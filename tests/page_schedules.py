"""The schedules that a page of ``spmdsim explore`` has, for those who compare them."""

from __future__ import annotations

from collections.abc import Iterator

from spmdsim.collectives import Schedule, algorithms, make_schedule
from spmdsim.figures.explore import Offer
from spmdsim.figures.explore.schedules import mistakes


def every_schedule(offer: Offer) -> Iterator[Schedule]:
    for one in (*offer.algorithms, *algorithms(), *mistakes()):
        for size in offer.ranks:
            if one.fits(size):
                yield make_schedule(one, size)
