"""The data of a page of ``spmdsim explore``, and its schedules, which tests compare with the package's schedules."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator

from spmdsim.collectives import Algorithm, Schedule, algorithms, from_function, make_schedule, recv, send
from spmdsim.core import Layout, Mesh
from spmdsim.figures.explore import Offer


def read_page(text: str) -> dict:
    """Return the data of a page, unpacked in Python."""
    packed = re.search(r'<script type="text/plain" id="data">(.*?)</script>', text)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def layout_of(mesh: Mesh, key: str) -> Layout:
    """Return the layout of a key such as `dp;tp+x`: axes per dim, then partial axes."""
    dims, _, partial_axes = key.partition("+")
    entries = [tuple(filter(None, entry.split(","))) for entry in dims.split(";")]
    return Layout(mesh, entries, dict.fromkeys(filter(None, partial_axes.split(",")), "sum"))


def _short_ring(rank, size):
    for i in range(size - 2):
        yield [send((rank + 1) % size, (rank - i) % size), recv((rank - 1) % size, (rank - 1 - i) % size)]


def _waiting_ring(rank, size):
    for i in range(size - 1):
        yield [recv((rank - 1) % size, (rank - 1 - i) % size)]
        yield [send((rank + 1) % size, (rank - i) % size)]


def wrong_rings() -> tuple[Algorithm, ...]:
    """Return an all_gather ring with one round too few, and one whose ranks all receive before they send."""
    rings = {"short": _short_ring, "waiting": _waiting_ring}
    return tuple(
        from_function(ring, "all_gather", name=name, about="", chunks="n") for name, ring in rings.items()
    )


def every_schedule(offer: Offer) -> Iterator[Schedule]:
    """Yield a schedule for each algorithm of the user and of the library, and each rank count of a page."""
    for algorithm in (*offer.algorithms, *algorithms()):
        for size in offer.ranks:
            if algorithm.fits(size):
                yield make_schedule(algorithm, size)
