"""The time of a collective when it is done the textbook's best way, in plain float arithmetic.

For each collective the fastest of the well-known algorithms: latency-optimal ones for short messages,
bandwidth-optimal ones for long messages. ``n`` ranks, ``c = ceil(log2 n)``, ``q = (n-1)/n``, ``r`` bytes
received.
"""

from __future__ import annotations

from spmdsim.cost.volumes import COLLECTIVES
from spmdsim.errors import InputError


def textbook_seconds(
    collective: str,
    group_size: int,
    nbytes: float,
    alpha: float,
    beta: float,
    gamma: float = 0.0,
    messages: int | None = None,
) -> float:
    """Seconds of one collective over ``group_size`` ranks, each receiving ``nbytes`` bytes.

    >>> textbook_seconds("all_to_all", 8, 0, alpha=1.0, beta=1.0)
    3.0
    >>> textbook_seconds("exchange", 8, 100, alpha=1.0, beta=1.0, messages=2)
    102.0
    """
    n, r = group_size, nbytes
    if n == 1 or collective == "slice":
        return _known(collective)
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
    if collective == "barrier":
        return c * alpha
    return _known(collective)


def _known(collective: str) -> float:
    """Zero seconds, after making sure that the name is one we know."""
    if collective not in COLLECTIVES:
        known = ", ".join(sorted(COLLECTIVES))
        raise InputError(f"unknown collective {collective!r}; known are {known}")
    return 0.0
