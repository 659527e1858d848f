"""Closed forms: the time of an algorithm from its declared counts, and where two algorithms cross.

The counts (steps, bytes and reductions on the critical path) are declared with each algorithm in
``spmdsim.collectives``; here they become seconds in the model of synchronous rounds::

    seconds = steps * alpha + beta_share * m * beta + gamma_share * m * gamma

with m the message size as ``spmdsim.cost.volumes`` defines it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from spmdsim.collectives import Algorithm


@dataclass(frozen=True)
class ClosedForm:
    """Counts of one algorithm at one rank count.

    Attributes:
        steps: rounds of communication.
        beta_share: sum over rounds of the largest message, as a share of the message size.
        gamma_share: sum over rounds of the largest reduced piece, as a share of the message size.
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
    """The closed form of an algorithm at ``n`` ranks; None where it has none there.

    >>> from spmdsim.collectives import algorithm
    >>> closed_form(algorithm("all_reduce", "ring"), 4)
    ClosedForm(steps=6, beta_share=Fraction(3, 2), gamma_share=Fraction(3, 4))
    """
    settled = {**dict(chosen.options), **(options or {})}
    if chosen.formula is None or not chosen.fits(n, settled) or not chosen.formula.holds(n, settled):
        return None
    return ClosedForm(*chosen.formula.at(n, settled))


def crossover_bytes(
    first: ClosedForm, second: ClosedForm, alpha: float, beta: float, gamma: float = 0.0
) -> float | None:
    """The message size at which two algorithms take the same time; None if one is never slower.

    >>> from spmdsim.collectives import algorithm
    >>> doubling = closed_form(algorithm("all_reduce", "recursive_doubling"), 8)
    >>> halving = closed_form(algorithm("all_reduce", "rabenseifner"), 8)
    >>> crossover_bytes(doubling, halving, alpha=1e-6, beta=1e-9)
    2400.0
    """
    slope = float(first.beta_share - second.beta_share) * beta
    slope += float(first.gamma_share - second.gamma_share) * gamma
    steps = (second.steps - first.steps) * alpha
    if slope == 0 or steps / slope <= 0:
        return None
    return round(steps / slope, 9)
