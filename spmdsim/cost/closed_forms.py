"""Formulas of times and bytes: of links, ranges of sizes, measured curves, and closed forms of collectives.

All formulas of this kind are in this module: bytes (message size, received bytes, bus factors), the textbook's time of
a collective, and the time of a declared algorithm from its counts. The size of a collective is stated in two ways, and
both are needed:

* the **message** size of benchmarks: the vector on each rank for all_reduce, reduce, broadcast and scan; all
  bytes gathered for all_gather; the vector before scattering for reduce_scatter; all bytes one rank holds
  for all_to_all; the bytes at the root for gather and scatter (the convention of nccl-tests and MPICH);
* the **received** bytes of one rank, which plans and traces of this package count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import exp, inf, log
from typing import TYPE_CHECKING, Any

from spmdsim.core.layout import largest_block
from spmdsim.core.step import reduction_elements
from spmdsim.errors import InputError, many, unknown
from spmdsim.pictured import Pictured
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    from spmdsim.collectives import Algorithm, Schedule


@explained
@dataclass(frozen=True)
class Link(Pictured):
    """The latency and inverse bandwidth of one level of the network.

    Attributes:
        alpha: seconds per message.
        beta: seconds per byte.

    >>> Link(1e-6, 1e-10).alpha
    1e-06
    """

    alpha: float
    beta: float

    def seconds(self, nbytes: float) -> float:
        """Return the seconds of one message of this size."""
        return self.alpha + nbytes * self.beta


@dataclass(frozen=True)
class Piece(Pictured):
    """Alpha and beta of messages up to a size.

    MPI libraries change their protocol with the size.

    Attributes:
        limit: largest message in bytes; infinity for the last piece.
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
    """Time of a class of operators on one rank.

    The slower one of the times per flop and per byte counts.

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


def link_at_size(pieces: tuple[Piece, ...], nbytes: float, otherwise: Link) -> Link:
    """Return the link of the first range that includes this size.

    It is ``otherwise`` beyond the last range.
    """
    for piece in pieces:
        if nbytes <= piece.limit:
            return Link(piece.alpha, piece.beta)
    return otherwise


def least_per_byte(pieces: tuple[Piece, ...], otherwise: Link) -> float:
    """Return the least seconds per byte over all message sizes.

    The link ``otherwise`` is used beyond the last range.

    >>> least_per_byte((Piece(10, 1.0, 0.5),), Link(0.0, 2.0))
    0.6
    """
    return min([otherwise.beta, *(piece.alpha / piece.limit + piece.beta for piece in pieces)])


def scale_pieces(pieces: tuple[Piece, ...], alpha: float, beta: float) -> tuple[Piece, ...]:
    """Return the ranges with their alpha and beta multiplied by factors."""
    return tuple(Piece(piece.limit, piece.alpha * alpha, piece.beta * beta) for piece in pieces)


@dataclass(frozen=True)
class Measurement(Pictured):
    """Measured time of a collective.

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
    """A table of measurements by collective, algorithm, ranks and size.

    >>> table = MeasuredTable([Measurement("all_reduce", "native", 2, 100, 1e-6),
    ...                        Measurement("all_reduce", "native", 2, 10000, 1e-4)])
    >>> f"{table.seconds('all_reduce', 'native', 2, 1000):.2e}"
    '1.00e-05'
    """

    def __init__(self, measurements: Iterable[Measurement]) -> None:
        rows: dict[tuple[str, str, int], dict[int, float]] = {}
        for measurement in measurements:
            if measurement.nbytes < 0 or not 0 < measurement.seconds < inf or measurement.group_size < 1:
                raise InputError(
                    f"measured {measurement.collective}: times must be greater than 0 and finite, got {many(measurement.nbytes, 'byte')} on "
                    f"{many(measurement.group_size, 'rank')} in {measurement.seconds} s"
                )
            key = (measurement.collective, measurement.algorithm, measurement.group_size)
            rows.setdefault(key, {})[measurement.nbytes] = measurement.seconds
        self._curves = {
            key: (
                [log(max(size, 1)) for size in sorted(points)],
                [log(points[size]) for size in sorted(points)],
            )
            for key, points in rows.items()
        }

    def algorithms(self, collective: str, group_size: int) -> tuple[str, ...]:
        """Return the algorithms that were measured for a collective and group size."""
        return tuple(a for (c, a, n) in self._curves if c == collective and n == group_size)

    def seconds(self, collective: str, algorithm: str, group_size: int, nbytes: float) -> float | None:
        """Return the time in seconds that measurements give for a message size, or None.

        - Between measured sizes, times are interpolated linearly in the logarithms of size and time.
        - Below the smallest size, the time is constant.
        - Above the largest size, the time grows in proportion to the size.

        For example, if 100 bytes took 1 µs and 400 bytes 4 µs, then 200 bytes take 2 µs, 50 bytes 1 µs and 800
        bytes 8 µs. Sizes below 1 byte count as 1.

        Args:
            collective: such as ``all_reduce``.
            algorithm: the name of the algorithm, or ``native`` for the MPI library's own call.
            group_size: number of ranks.
            nbytes: message size as benchmarks state it (see the module's text).

        Returns:
            None if the algorithm was not measured on this number of ranks, or if ``nbytes`` is above measurements of at
            most one byte, such as those of a barrier.
        """
        curve = self._curves.get((collective, algorithm, group_size))
        if curve is None:
            return None
        sizes, times = curve
        x = log(max(nbytes, 1.0))
        if x <= sizes[0]:
            return exp(times[0])
        if x >= sizes[-1]:
            if sizes[-1] == 0.0:
                return None
            return exp(times[-1] + (x - sizes[-1]))
        index = bisect_left(sizes, x)
        low, high = sizes[index - 1], sizes[index]
        share = (x - low) / (high - low)
        return exp(times[index - 1] * (1 - share) + times[index] * share)


#: Received bytes per message byte: a multiplier, and whether a factor (n-1)/n comes on top.
_RECEIVED: dict[str, tuple[float, bool]] = {
    "all_gather": (1.0, True),
    "reduce_scatter": (1.0, True),
    "all_reduce": (2.0, True),
    "all_to_all": (1.0, True),
    "gather": (1.0, True),
    "scatter": (1.0, True),
    "broadcast": (1.0, False),
    "reduce": (1.0, False),
    "scan": (1.0, False),
    "exscan": (1.0, False),
    "permute": (1.0, False),
    "exchange": (1.0, False),
    "barrier": (0.0, False),
    "slice": (0.0, False),
}

#: Names of all collectives that have prices.
COLLECTIVES: tuple[str, ...] = tuple(_RECEIVED)


def _received_entry(collective: str) -> tuple[float, bool]:
    """Return the factors of the bytes that a rank receives in a collective.

    They are ``(multiplier, has_fraction)``: a rank of n receives ``multiplier`` times the message size, times
    (n-1)/n if ``has_fraction`` is True. So all_reduce has (2.0, True), broadcast (1.0, False).

    Args:
        collective: its name, a key of :data:`_RECEIVED`.

    Raises:
        InputError: If the collective is unknown.
    """
    try:
        return _RECEIVED[collective]
    except KeyError:
        raise unknown(
            f"unknown collective {collective!r}", collective, sorted(_RECEIVED), listed="known are"
        ) from None


def received_per_message(collective: str, group_size: int) -> float:
    """Return the bytes that a rank receives per message byte, with the least traffic.

    >>> received_per_message("all_reduce", 4)
    1.5
    >>> received_per_message("broadcast", 4)
    1.0
    """
    multiplier, fraction = _received_entry(collective)
    return multiplier * (group_size - 1) / group_size if fraction else multiplier


def bound_received_elements(collective: str, members: int, count: int) -> float:
    """Return the elements that the busiest rank receives with the least traffic.

    For all_reduce, reduce_scatter, all_gather and all_to_all it is an exact integer: sizes of blocks differ by at
    most one. For others it is a float, in which blocks may have fractions of elements.

    Args:
        collective: the name of the collective.
        members: the number of ranks.
        count: the size of the message in elements, as benchmarks state it: that of all_gather is the gathered
            size.

    Raises:
        InputError: If the collective is unknown.

    >>> bound_received_elements("all_reduce", 4, 10), bound_received_elements("all_gather", 4, 10), bound_received_elements("reduce_scatter", 4, 10)
    (16, 8, 9)
    """
    if collective in ("all_reduce", "reduce_scatter"):
        owned = count if collective == "all_reduce" else largest_block(count, members)
        return int(reduction_elements(collective, members, owned))
    if collective in ("all_gather", "all_to_all"):
        return count - count // members
    return received_per_message(collective, members) * count


def message_bytes(collective: str, group_size: int, received: float) -> float:
    """Return the message size whose least traffic is ``received`` bytes per rank.

    Benchmarks state this size. It is 0 if no bytes are received.

    >>> message_bytes("all_gather", 4, 768)
    1024.0
    """
    factor = received_per_message(collective, group_size)
    return received / factor if factor else 0.0


def bus_factor(collective: str, group_size: int) -> float:
    """Return the ratio of bus bandwidth to algorithm bandwidth, as nccl-tests defines it.

    >>> bus_factor("all_reduce", 8), bus_factor("broadcast", 8)
    (1.75, 1.0)
    """
    multiplier, fraction = _received_entry(collective)
    return multiplier * (group_size - 1) / group_size if fraction else 1.0


def textbook_seconds(
    collective: str,
    group_size: int,
    nbytes: float,
    alpha: float,
    beta: float,
    gamma: float = 0.0,
    messages: int | None = None,
) -> float:
    """Return the seconds of one collective by the fastest of the textbook algorithms.

    The algorithms are latency-optimal ones for short messages and bandwidth-optimal ones for long messages. For
    example, an all_to_all of n ranks takes ``(n - 1) * alpha + nbytes * beta`` by single messages. Bruck's
    algorithm needs only ``ceil(log2(n))`` messages, but moves more bytes; the smaller time is returned. One
    rank, or the collective "slice", takes 0 seconds.

    Args:
        collective: its name, one of :data:`COLLECTIVES`.
        group_size: number of ranks.
        nbytes: bytes that each rank receives.
        alpha: seconds per message.
        beta: seconds per byte.
        gamma: seconds per reduced byte.
        messages: messages of an exchange per rank; None for ``group_size - 1``. Other collectives ignore it.

    Raises:
        InputError: If the collective is unknown.

    >>> textbook_seconds("all_to_all", 8, 0, alpha=1.0, beta=1.0)
    3.0
    >>> textbook_seconds("exchange", 8, 100, alpha=1.0, beta=1.0, messages=2)
    102.0
    """
    _received_entry(collective)
    n, r = group_size, nbytes
    if n == 1 or collective == "slice":
        return 0.0
    c = (n - 1).bit_length()  # ceil(log2(n)), the rounds of a tree
    q = (n - 1) / n
    if collective in ("all_gather", "gather", "scatter"):
        return c * alpha + r * beta
    if collective == "reduce_scatter":
        return c * alpha + r * (beta + gamma)
    if collective == "all_reduce":
        vector = r / (2 * q)
        doubling = c * (alpha + vector * (beta + gamma))
        return min(doubling, 2 * c * alpha + r * beta + r / 2 * gamma)
    if collective == "all_to_all":
        bruck = c * alpha + r / q * (c / 2) * beta
        return min((n - 1) * alpha + r * beta, bruck)
    if collective == "broadcast":
        return min(c * (alpha + r * beta), 2 * c * alpha + 2 * q * r * beta)
    if collective == "reduce":
        return min(c * (alpha + r * (beta + gamma)), 2 * c * alpha + q * r * (2 * beta + gamma))
    if collective in ("scan", "exscan"):
        return c * (alpha + r * (beta + gamma))
    if collective == "permute":
        return alpha + r * beta
    if collective == "exchange":
        return (n - 1 if messages is None else messages) * alpha + r * beta
    return c * alpha  # a barrier


@dataclass(frozen=True)
class ClosedForm:
    """Counts of one algorithm at one rank count, as ``spmdsim.collectives`` declares them.

    In the model of synchronous rounds, with m the message size, an algorithm takes
    ``steps * alpha + beta_share * m * beta + gamma_share * m * gamma`` seconds.

    Attributes:
        steps: number of rounds.
        beta_share: sum over the rounds of the largest message, as a share of the message size.
        gamma_share: sum over the rounds of the largest reduced block, as a share of the message size.
    """

    steps: int
    beta_share: Fraction
    gamma_share: Fraction = Fraction(0)

    def seconds(self, nbytes: float, alpha: float, beta: float, gamma: float = 0.0) -> float:
        """Return the seconds of a message of ``nbytes`` on a flat network.

        >>> ClosedForm(6, Fraction(3, 2)).seconds(1000, alpha=1e-6, beta=1e-9)
        7.5e-06
        """
        moved = float(self.beta_share) * beta + float(self.gamma_share) * gamma
        return self.steps * alpha + nbytes * moved


@explained
def closed_form(chosen: Algorithm, n: int, options: dict[str, Any] | None = None) -> ClosedForm | None:
    """Return an algorithm's steps and its multiples of beta and gamma at ``n`` ranks, or None.

    It is None if the algorithm declares no formula, does not run on ``n`` ranks, or its formula does not cover
    ``n`` or the options.

    Args:
        chosen: the algorithm.
        n: number of ranks.
        options: options of the algorithm by name, and ``root`` if it is not 0. Options that are left out have
            their default values; None for all.

    >>> from spmdsim.collectives import algorithm
    >>> closed_form(algorithm("all_reduce", "ring"), 4)
    ClosedForm(steps=6, beta_share=Fraction(3, 2), gamma_share=Fraction(3, 4))
    """
    all_options = {**dict(chosen.options), **(options or {})}
    if chosen.formula is None or not chosen.fits(n, all_options):
        return None
    if not chosen.formula.holds(n, all_options):
        return None
    return ClosedForm(*chosen.formula.at(n, all_options))


def closed_form_of(schedule: Schedule) -> ClosedForm | None:
    """Return the :class:`ClosedForm` of a schedule, or None."""
    return closed_form(schedule.algorithm, schedule.size, {**dict(schedule.options), "root": schedule.root})
