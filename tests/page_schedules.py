"""The schedules on a page of ``spmdsim explore``. Tests compare them with the package's schedules."""

from __future__ import annotations

from collections.abc import Iterator

from spmdsim.collectives import Schedule, algorithms, make_schedule
from spmdsim.figures.explore import Offer
from spmdsim.figures.explore.schedules import mistakes


def every_schedule(offer: Offer) -> Iterator[Schedule]:
    """Yield a schedule for each algorithm and each rank count of a page."""
    for algorithm in (*offer.algorithms, *algorithms(), *mistakes()):
        for size in offer.ranks:
            if algorithm.fits(size):
                yield make_schedule(algorithm, size)
