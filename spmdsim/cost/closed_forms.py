"""Closed forms of what a collective moves and how long it takes: the one place for such formulas.

Three parts, each used by the next: bytes (message size, received bytes, bus factors), the textbook's time of a collective,
and the time of a declared algorithm from its counts. Two ways to state the size of a collective are in use, and both are
needed:

* the **message** size of benchmarks: the vector on each rank for all_reduce, reduce, broadcast and scan; all
  bytes gathered for all_gather; the vector before scattering for reduce_scatter; all bytes one rank holds
  for all_to_all; the bytes at the root for gather and scatter (the convention of nccl-tests and MPICH);
* the **received** bytes of one rank, which is what plans and traces of this package count.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from spmdsim.core.step import reduction_elements
from spmdsim.errors import unknown
from spmdsim.layout.blocks import largest_block

if TYPE_CHECKING:
    from spmdsim.collectives import Algorithm, Schedule

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

#: Every collective this room prices.
COLLECTIVES: tuple[str, ...] = tuple(_RECEIVED)


def _entry(collective: str) -> tuple[float, bool]:
    try:
        return _RECEIVED[collective]
    except KeyError:
        raise unknown(
            f"unknown collective {collective!r}", collective, sorted(_RECEIVED), listed="known are"
        ) from None


def received_per_message(collective: str, group_size: int) -> float:
    """Bytes a rank receives per message byte when the collective is done with the least traffic.

    >>> received_per_message("all_reduce", 4)
    1.5
    >>> received_per_message("broadcast", 4)
    1.0
    """
    multiplier, fraction = _entry(collective)
    return multiplier * (group_size - 1) / group_size if fraction else multiplier


def most_received(collective: str, members: int, count: int) -> float:
    """Elements that the busiest rank receives, of a message of ``count`` elements in balanced blocks.

    >>> most_received("all_reduce", 4, 10), most_received("all_gather", 4, 10), most_received("reduce_scatter", 4, 10)
    (16, 8, 9)
    """
    if collective in ("all_reduce", "reduce_scatter"):
        held = count if collective == "all_reduce" else largest_block(count, members)
        return int(reduction_elements(collective, members, held))
    if collective in ("all_gather", "all_to_all"):
        return count - count // members
    return received_per_message(collective, members) * count


def message_bytes(collective: str, group_size: int, received: float) -> float:
    """The benchmark's message size whose least traffic is ``received`` bytes per rank.

    >>> message_bytes("all_gather", 4, 768)
    1024.0
    """
    factor = received_per_message(collective, group_size)
    return received / factor if factor else 0.0


def bus_factor(collective: str, group_size: int) -> float:
    """Ratio of bus bandwidth to algorithm bandwidth as nccl-tests defines it.

    >>> bus_factor("all_reduce", 8), bus_factor("broadcast", 8)
    (1.75, 1.0)
    """
    multiplier, fraction = _entry(collective)
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
    """Seconds of one collective over ``group_size`` ranks, each receiving ``nbytes`` bytes, done the textbook's best way.

    The fastest of the well-known algorithms: latency-optimal ones for short messages, bandwidth-optimal ones for long
    messages. ``n`` ranks, ``c = ceil(log2 n)``, ``q = (n-1)/n``, ``r`` bytes received.

    Raises:
        InputError: an unknown collective.

    >>> textbook_seconds("all_to_all", 8, 0, alpha=1.0, beta=1.0)
    3.0
    >>> textbook_seconds("exchange", 8, 100, alpha=1.0, beta=1.0, messages=2)
    102.0
    """
    _entry(collective)
    n, r = group_size, nbytes
    if n == 1 or collective == "slice":
        return 0.0
    c = (n - 1).bit_length()
    q = (n - 1) / n
    if collective in ("all_gather", "gather", "scatter"):
        return c * alpha + r * beta
    if collective == "reduce_scatter":
        return c * alpha + r * (beta + gamma)
    if collective == "all_reduce":
        whole = r / (2 * q)
        doubling = c * (alpha + whole * (beta + gamma))
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
    """Counts of one algorithm at one rank count, as declared with it in ``spmdsim.collectives``.

    In the model of synchronous rounds, with m the message size, an algorithm takes
    ``steps * alpha + beta_share * m * beta + gamma_share * m * gamma`` seconds. The shares are the sums over the rounds
    of the largest message, and of the largest reduced piece, as shares of the message size.
    """

    steps: int
    beta_share: Fraction
    gamma_share: Fraction = Fraction(0)

    def seconds(self, nbytes: float, alpha: float, beta: float, gamma: float = 0.0) -> float:
        """Time on a flat network for a message of ``nbytes``.

        >>> ClosedForm(6, Fraction(3, 2)).seconds(1000, alpha=1e-6, beta=1e-9)
        7.5e-06
        """
        moved = float(self.beta_share) * beta + float(self.gamma_share) * gamma
        return self.steps * alpha + nbytes * moved


def closed_form(chosen: Algorithm, n: int, options: dict[str, Any] | None = None) -> ClosedForm | None:
    """The :class:`ClosedForm` of an algorithm at ``n`` ranks; None where it has none there.

    Options that are left out have their default values; ``root`` is one if it is not 0.

    >>> from spmdsim.collectives import algorithm
    >>> closed_form(algorithm("all_reduce", "ring"), 4)
    ClosedForm(steps=6, beta_share=Fraction(3, 2), gamma_share=Fraction(3, 4))
    """
    settled = {**dict(chosen.options), **(options or {})}
    if chosen.formula is None or not chosen.fits(n, settled) or not chosen.formula.holds(n, settled):
        return None
    return ClosedForm(*chosen.formula.at(n, settled))


def closed_form_of(schedule: Schedule) -> ClosedForm | None:
    """That of a schedule."""
    return closed_form(schedule.algorithm, schedule.size, {**dict(schedule.options), "root": schedule.root})
