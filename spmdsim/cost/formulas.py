"""Closed forms: steps, bytes and reductions on the critical path of each collective algorithm.

One :class:`ClosedForm` per algorithm and rank count, as exact fractions of the message size (see
``spmdsim.cost.volumes`` for what the message size of each collective is). The model is that of synchronous rounds,
one send and one receive per rank and round::

    seconds = steps * alpha + beta_share * m * beta + gamma_share * m * gamma

Sources: Thakur, Rabenseifner and Gropp 2005; Bruck et al. 1997; Träff 2005; the algorithms as MPICH and Open MPI
implement them, including their folds when the number of ranks is not a power of two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from spmdsim.errors import InputError


@dataclass(frozen=True)
class ClosedForm:
    """Cost of one algorithm at one rank count.

    Attributes:
        steps: rounds of communication.
        beta_share: sum over rounds of the largest message, as a share of the message size.
        gamma_share: sum over rounds of the largest reduced piece, as a share of the message size.
        depth: longest chain of reductions; 0 where nothing is reduced.
        text: the formula as printed in tables.

    >>> form = closed_form("all_reduce", "ring", 4)
    >>> form.steps, form.beta_share, form.gamma_share, form.depth
    (6, Fraction(3, 2), Fraction(3, 4), 3)
    """

    steps: int
    beta_share: Fraction
    gamma_share: Fraction = Fraction(0)
    depth: int = 0
    text: str = ""

    def seconds(self, nbytes: float, alpha: float, beta: float, gamma: float = 0.0) -> float:
        """Time on a flat network for a message of ``nbytes``."""
        moved = float(self.beta_share) * beta + float(self.gamma_share) * gamma
        return self.steps * alpha + nbytes * moved


class _Ranks:
    """The numbers that closed forms are made of, for one rank count."""

    def __init__(self, n: int, segments: int) -> None:
        self.n = n
        self.segments = segments
        self.f = n.bit_length() - 1
        self.c = (n - 1).bit_length()
        self.power = 1 << self.f
        self.rest = n - self.power
        #: 1 when ranks have to be folded away first, else 0.
        self.fold = 1 if self.rest else 0
        self.q = Fraction(n - 1, n)
        self.qp = Fraction(self.power - 1, self.power)

    def halving_share(self) -> Fraction:
        """Bytes of recursive halving over the survivors of the fold, the first of which carry two blocks."""
        windows = (1 << k for k in range(self.f))
        return Fraction(sum(h + min(h, self.rest) for h in windows), self.n)

    def popcounts(self) -> Fraction:
        """Blocks that Bruck's all_to_all forwards, as a share of all blocks."""
        return Fraction(sum(j.bit_count() for j in range(self.n)), self.n)


_Row = tuple[object, object, object, object]
_Formula = Callable[[_Ranks], _Row]
_ANY = "any n"
_EVEN = "n even"
_POWER = "n a power of two"

#: (collective, algorithm) -> (condition, formula of steps, beta, gamma, depth; text of the formula).
_FORMS: dict[tuple[str, str], tuple[str, _Formula, str]] = {
    ("all_reduce", "ring"): (
        _ANY,
        lambda r: (2 * (r.n - 1), 2 * r.q, r.q, r.n - 1),
        "2(n-1)a + 2q m b + q m g",
    ),
    ("all_reduce", "recursive_doubling"): (
        _ANY,
        lambda r: (r.f + 2 * r.fold, r.f + 2 * r.fold, r.f + r.fold, r.c),
        "(f[+2])a + (f[+2]) m b + (f[+1]) m g",
    ),
    ("all_reduce", "rabenseifner"): (
        _ANY,
        lambda r: (2 * r.f + 2 * r.fold, 2 * r.qp + 2 * r.fold, r.qp + r.fold, r.c),
        "(2f[+2])a + (2q'[+2]) m b + (q'[+1]) m g",
    ),
    ("all_reduce", "rabenseifner_halffold"): (
        _ANY,
        lambda r: (2 * r.f + 3 * r.fold, 2 * r.qp + 2 * r.fold, r.qp + Fraction(r.fold, 2), r.c),
        "(2f[+3])a + (2q'[+2]) m b + (q'[+1/2]) m g",
    ),
    ("all_reduce", "reduce_bcast_binomial"): (
        _ANY,
        lambda r: (2 * r.c, 2 * r.c, r.c, r.c),
        "2c a + 2c m b + c m g",
    ),
    ("all_reduce", "linear_reduce_bcast"): (
        _ANY,
        lambda r: (2 * (r.n - 1), 2 * (r.n - 1), r.n - 1, r.n - 1),
        "2(n-1)a + 2(n-1) m b + (n-1) m g",
    ),
    ("all_reduce", "allgather_reduce_direct"): (
        _ANY,
        lambda r: (r.n - 1, r.n - 1, r.n - 1, r.n - 1),
        "(n-1)a + (n-1) m b + (n-1) m g",
    ),
    ("reduce_scatter", "ring"): (_ANY, lambda r: (r.n - 1, r.q, r.q, r.n - 1), "(n-1)a + q m (b+g)"),
    ("reduce_scatter", "pairwise"): (_ANY, lambda r: (r.n - 1, r.q, r.q, r.n - 1), "(n-1)a + q m (b+g)"),
    ("reduce_scatter", "recursive_halving"): (
        _ANY,
        lambda r: (
            r.f + 2 * r.fold,
            r.halving_share() + r.fold * (1 + Fraction(1, r.n)),
            r.halving_share() + r.fold,
            r.c,
        ),
        "(f[+2])a + (q[+1+..]) m b + (q[+1..]) m g",
    ),
    ("reduce_scatter", "butterfly_noncomm"): (_POWER, lambda r: (r.f, r.q, r.q, r.c), "f a + q m (b+g)"),
    ("reduce_scatter", "recursive_doubling_noncomm"): (
        _POWER,
        lambda r: (r.f, r.f - r.q, r.f - r.q, r.c),
        "f a + (f-q) m (b+g)",
    ),
    ("all_gather", "ring"): (_ANY, lambda r: (r.n - 1, r.q, 0, 0), "(n-1)a + q m b"),
    ("all_gather", "direct"): (_ANY, lambda r: (r.n - 1, r.q, 0, 0), "(n-1)a + q m b"),
    ("all_gather", "recursive_doubling"): (_POWER, lambda r: (r.f, r.q, 0, 0), "f a + q m b"),
    ("all_gather", "bruck"): (_ANY, lambda r: (r.c, r.q, 0, 0), "c a + q m b"),
    ("all_gather", "neighbor_exchange"): (_EVEN, lambda r: (r.n // 2, r.q, 0, 0), "n/2 a + q m b"),
    ("all_to_all", "pairwise"): (_ANY, lambda r: (r.n - 1, r.q, 0, 0), "(n-1)a + q m b"),
    ("all_to_all", "bruck"): (_ANY, lambda r: (r.c, r.popcounts(), 0, 0), "c a + c/2 m b"),
    ("broadcast", "linear"): (_ANY, lambda r: (r.n - 1, r.n - 1, 0, 0), "(n-1)a + (n-1) m b"),
    ("broadcast", "binomial"): (_ANY, lambda r: (r.c, r.c, 0, 0), "c a + c m b"),
    ("broadcast", "chain"): (_ANY, lambda r: (r.n - 1, r.n - 1, 0, 0), "(n-1)a + (n-1) m b"),
    ("broadcast", "pipelined_chain"): (
        _ANY,
        lambda r: (r.n - 2 + r.segments, Fraction(r.n - 2 + r.segments, r.segments), 0, 0),
        "(n-2+s)a + (n-2+s)/s m b",
    ),
    ("broadcast", "scatter_ring_allgather"): (
        _ANY,
        lambda r: (r.c + r.n - 1, 2 * r.q, 0, 0),
        "(c+n-1)a + 2q m b",
    ),
    ("broadcast", "scatter_recursive_doubling_allgather"): (
        _POWER,
        lambda r: (2 * r.f, 2 * r.q, 0, 0),
        "2f a + 2q m b",
    ),
    ("reduce", "linear"): (_ANY, lambda r: (r.n - 1,) * 4, "(n-1)(a + m b + m g)"),
    ("reduce", "chain"): (_ANY, lambda r: (r.n - 1,) * 4, "(n-1)(a + m b + m g)"),
    ("reduce", "binomial"): (_ANY, lambda r: (r.c,) * 4, "c (a + m b + m g)"),
    ("reduce", "rabenseifner"): (
        _ANY,
        lambda r: (2 * r.f + r.fold, 2 * r.qp + r.fold, r.qp + r.fold, r.c),
        "(2f[+1])a + (2q'[+1]) m b + (q'[+1]) m g",
    ),
    ("gather", "linear"): (_ANY, lambda r: (r.n - 1, r.q, 0, 0), "(n-1)a + q m b"),
    ("gather", "binomial"): (_ANY, lambda r: (r.c, r.q, 0, 0), "c a + q m b"),
    ("scatter", "linear"): (_ANY, lambda r: (r.n - 1, r.q, 0, 0), "(n-1)a + q m b"),
    ("scatter", "binomial"): (_ANY, lambda r: (r.c, r.q, 0, 0), "c a + q m b"),
    ("barrier", "dissemination"): (_ANY, lambda r: (r.c, 0, 0, 0), "c a"),
    ("barrier", "recursive_doubling"): (_ANY, lambda r: (r.f + 2 * r.fold, 0, 0, 0), "(f[+2])a"),
    ("barrier", "binomial_tree"): (_ANY, lambda r: (2 * r.c, 0, 0, 0), "2c a"),
    ("barrier", "linear"): (_ANY, lambda r: (2 * (r.n - 1), 0, 0, 0), "2(n-1)a"),
    ("barrier", "double_ring"): (_ANY, lambda r: (2 * r.n, 0, 0, 0), "2n a"),
}


def closed_form(collective: str, algorithm: str, n: int, segments: int = 4) -> ClosedForm | None:
    """The closed form of one algorithm at ``n`` ranks.

    Args:
        collective: such as ``all_reduce``.
        algorithm: such as ``ring``.
        n: ranks, at least 1.
        segments: pieces of a pipelined chain.

    Returns:
        The form, or None where the algorithm does not run at this rank count or has no closed form.

    Raises:
        InputError: fewer than one rank or segment.
    """
    if n < 1 or segments < 1:
        raise InputError(f"{n} ranks and {segments} segments have no closed form; both have to be >= 1")
    entry = _FORMS.get((collective, algorithm))
    if entry is None:
        return None
    condition, formula, text = entry
    if n == 1:
        return ClosedForm(0, Fraction(0), text=text)
    if (condition == _POWER and n & (n - 1)) or (condition == _EVEN and n % 2):
        return None
    steps, beta, gamma, depth = formula(_Ranks(n, segments))
    return ClosedForm(int(str(steps)), Fraction(str(beta)), Fraction(str(gamma)), int(str(depth)), text)


def algorithms_with_closed_form(collective: str) -> tuple[str, ...]:
    """The algorithms of a collective that have a closed form.

    >>> algorithms_with_closed_form("all_to_all")
    ('pairwise', 'bruck')
    """
    return tuple(algorithm for (name, algorithm) in _FORMS if name == collective)


def lower_bound(collective: str, n: int) -> ClosedForm:
    """What no algorithm can beat: steps, bytes and reductions, each on its own.

    >>> lower_bound("all_reduce", 8).steps
    3
    """
    r = _Ranks(max(n, 1), 1)
    q, zero, one = r.q, Fraction(0), Fraction(1 if n > 1 else 0)
    shares = {
        "barrier": (zero, zero),
        "broadcast": (one, zero),
        "reduce": (one, q),
        "gather": (q, zero),
        "scatter": (q, zero),
        "all_gather": (q, zero),
        "reduce_scatter": (q, q),
        "all_reduce": (2 * q, q),
        "all_to_all": (q, zero),
        "scan": (one, one),
        "exscan": (one, zero),
    }
    if collective not in shares:
        raise InputError(f"no lower bound for {collective!r}; known are {', '.join(sorted(shares))}")
    beta, gamma = shares[collective]
    return ClosedForm(r.c, beta, gamma, r.c if gamma else 0, "lower bound")


def crossover_bytes(
    first: ClosedForm, second: ClosedForm, alpha: float, beta: float, gamma: float = 0.0
) -> float | None:
    """The message size at which two algorithms take the same time; None if one is always faster.

    >>> ring, doubling = closed_form("all_reduce", "ring", 8), closed_form("all_reduce", "recursive_doubling", 8)
    >>> round(crossover_bytes(doubling, ring, alpha=1e-6, beta=1e-9))
    8800
    """
    slope = float(second.beta_share - first.beta_share) * beta
    slope += float(second.gamma_share - first.gamma_share) * gamma
    steps = (first.steps - second.steps) * alpha
    if slope == 0 or steps / slope <= 0:
        return None
    return steps / slope
