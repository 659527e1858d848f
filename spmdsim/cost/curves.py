"""Times over sizes: alpha and beta of a link or of a range of sizes, rates of operators, and measured curves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, log

from spmdsim.errors import InputError
from spmdsim.pictured import Pictured


@dataclass(frozen=True)
class Link(Pictured):
    """Latency and inverse bandwidth of one level of the network.

    Attributes:
        alpha: seconds per message.
        beta: seconds per byte.

    >>> Link(1e-6, 1e-10).alpha
    1e-06
    """

    alpha: float
    beta: float

    def seconds(self, nbytes: float) -> float:
        """Time of one message, or whatever else takes this per piece and byte."""
        return self.alpha + nbytes * self.beta


@dataclass(frozen=True)
class Piece(Pictured):
    """Alpha and beta of messages up to a size: MPI libraries change their protocol with the size.

    Attributes:
        limit: largest message in bytes this holds for; infinity for the last piece.
        alpha: seconds per message.
        beta: seconds per byte.

    >>> Piece(4096, 1e-6, 1e-10).limit
    4096
    """

    limit: float
    alpha: float
    beta: float


@dataclass(frozen=True)
class Rate(Pictured):
    """What a class of operators takes on one rank: the slower of the two decides.

    Attributes:
        kind: the class, as :func:`spmdsim.cost.roofline.kind_of` says.
        per_flop: seconds per operation.
        per_byte: seconds per byte read or written.

    >>> Rate("product", 1e-11, 1e-10).per_flop
    1e-11
    """

    kind: str
    per_flop: float
    per_byte: float


def at_size(pieces: tuple[Piece, ...], nbytes: float, otherwise: Link) -> Link:
    """Alpha and beta of the range that a size falls into; ``otherwise`` beyond the last one."""
    for one in pieces:
        if nbytes <= one.limit:
            return Link(one.alpha, one.beta)
    return otherwise


def least_per_byte(pieces: tuple[Piece, ...], otherwise: Link) -> float:
    """Seconds per byte in messages of the size at which these cost least; ``otherwise`` beyond the last range.

    >>> least_per_byte((Piece(10, 1.0, 0.5),), Link(0.0, 2.0))
    0.6
    """
    return min([otherwise.beta, *(one.alpha / one.limit + one.beta for one in pieces)])


def scaled(pieces: tuple[Piece, ...], alpha: float, beta: float) -> tuple[Piece, ...]:
    """Ranges with alpha and beta multiplied."""
    return tuple(Piece(one.limit, one.alpha * alpha, one.beta * beta) for one in pieces)


@dataclass(frozen=True)
class Measurement(Pictured):
    """One measured time.

    Attributes:
        collective: such as ``all_reduce``.
        algorithm: the emulated algorithm's name, or ``native`` for the MPI library's own call.
        group_size: ranks that took part.
        nbytes: message size as benchmarks state it (see ``spmdsim.cost.closed_forms``).
        seconds: time of one call.

    >>> Measurement("all_reduce", "ring", 4, 1024, 1e-5).seconds
    1e-05
    """

    collective: str
    algorithm: str
    group_size: int
    nbytes: int
    seconds: float


class MeasuredTable:
    """Lookup of measurements by collective, algorithm, ranks and size.

    >>> table = MeasuredTable([Measurement("all_reduce", "native", 2, 100, 1e-6),
    ...                        Measurement("all_reduce", "native", 2, 10000, 1e-4)])
    >>> f"{table.seconds('all_reduce', 'native', 2, 1000):.2e}"
    '1.00e-05'
    """

    def __init__(self, measurements: Iterable[Measurement]) -> None:
        rows: dict[tuple[str, str, int], dict[int, float]] = {}
        for one in measurements:
            if one.nbytes < 0 or not one.seconds > 0 or one.group_size < 1:
                raise InputError(
                    f"measured {one.collective}: {one.nbytes} bytes on {one.group_size} ranks in "
                    f"{one.seconds} s cannot be; times are greater than 0"
                )
            key = (one.collective, one.algorithm, one.group_size)
            rows.setdefault(key, {})[one.nbytes] = one.seconds
        self._curves = {
            key: (
                [log(max(size, 1)) for size in sorted(points)],
                [log(points[size]) for size in sorted(points)],
            )
            for key, points in rows.items()
        }

    def algorithms(self, collective: str, group_size: int) -> tuple[str, ...]:
        """The algorithms measured for this collective and group size."""
        return tuple(a for (c, a, n) in self._curves if c == collective and n == group_size)

    def seconds(self, collective: str, algorithm: str, group_size: int, nbytes: float) -> float | None:
        """Interpolated seconds, or None where nothing was measured for this group size.

        Below the smallest measured size the time stays what it was there, above the largest it grows in
        proportion to the size.
        """
        curve = self._curves.get((collective, algorithm, group_size))
        if curve is None:
            return None
        sizes, times = curve
        x = log(max(nbytes, 1.0))
        if x <= sizes[0]:
            return exp(times[0])
        if x >= sizes[-1]:
            return exp(times[-1] + (x - sizes[-1]))
        at = bisect_left(sizes, x)
        low, high = sizes[at - 1], sizes[at]
        share = (x - low) / (high - low)
        return exp(times[at - 1] * (1 - share) + times[at] * share)
