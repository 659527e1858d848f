"""What no algorithm can beat: lower bounds on rounds, bytes and reductions, and scores against them.

One port per rank and round; see Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory,
practice, and experience" (2007). The three bounds cannot always be reached by one algorithm: for all_to_all Bruck's
reaches the first, pairwise exchange the second.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from spmdsim.collectives.formula import evaluate
from spmdsim.collectives.promises import collective

_BOUNDS: dict[str, tuple[str, str, str]] = {
    "barrier": ("c", "0", "0"),
    "broadcast": ("c", "y", "0"),
    "reduce": ("c", "y", "q"),
    "gather": ("c", "q", "0"),
    "scatter": ("c", "q", "0"),
    "all_gather": ("c", "q", "0"),
    "reduce_scatter": ("c", "q", "q"),
    "all_reduce": ("c", "2*q", "q"),
    "all_to_all": ("c", "q", "0"),
    "scan": ("c", "y", "q"),
    "exscan": ("c", "y", "max(0, n-2)/n"),
}


class CostBound(NamedTuple):
    """A lower bound: ``steps`` rounds, ``beta`` and ``gamma`` times the message size in bytes and reduced bytes."""

    steps: int
    beta: Fraction
    gamma: Fraction


def lower_bound(collective_name: str, size: int) -> CostBound:
    """The lower bound of a collective.

    >>> lower_bound("all_reduce", 6)
    CostBound(steps=3, beta=Fraction(5, 3), gamma=Fraction(5, 6))
    """
    steps, beta, gamma = (
        evaluate(words.replace("y", "(1 if n > 1 else 0)"), size)
        for words in _BOUNDS[collective(collective_name).name]
    )
    return CostBound(int(steps), beta, gamma)


def score(best: float, reached: float) -> float:
    """How near ``reached`` comes to the bound ``best``: 1 is optimal, 0.5 twice as much.

    >>> score(3, 6), score(0, 0)
    (0.5, 1.0)
    """
    if reached <= best:
        return 1.0
    return float(best) / float(reached)
