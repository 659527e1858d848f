"""One matrix product with free layouts: the grid of ranks that moves the fewest words.

On a grid ``pm x pk x pn`` the first operand is gathered along pn, the second along pm, and the results are reduced
and scattered along pk; every operand starts and ends evenly spread over the ranks. A grid may leave ranks idle. The
words moved are compared with the tight memory-independent lower bound (Al Daas, Ballard, Grigori, Kumar, Rouse,
arXiv 2205.13407); COSMA chooses its grids to the same end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spmdsim.core import Layout, Mesh, Strategy
from spmdsim.core.notation.layouts import check_world_size
from spmdsim.errors import InputError, many
from spmdsim.pictured import Pictured


def lower_bound(m: int, k: int, n: int, ranks: int) -> float:
    """Words that some rank must receive, whatever the algorithm, when each starts and ends with its even share.

    >>> round(lower_bound(4096, 4096, 4096, 8))
    6291456
    """
    small, middle, large = sorted((m, k, n))
    if ranks <= large / middle:
        needed = (large * middle + large * small) / ranks + middle * small
    elif ranks <= large * middle / small**2:
        needed = 2 * math.sqrt(large * middle * small**2 / ranks) + large * middle / ranks
    else:
        needed = 3 * (large * middle * small / ranks) ** (2 / 3)
    return max(0.0, needed - (large * middle + large * small + middle * small) / ranks)


def regime(m: int, k: int, n: int, ranks: int) -> str:
    """Which of the three cases of the bound holds: ``1D``, ``2D`` or ``3D`` grids attain it."""
    small, middle, large = sorted((m, k, n))
    if ranks <= large / middle:
        return "1D"
    return "2D" if ranks <= large * middle / small**2 else "3D"


def grid_words(m: int, k: int, n: int, grid: tuple[int, int, int]) -> float:
    """Words each rank of the grid receives, in even pieces.

    >>> grid_words(4096, 4096, 4096, (2, 2, 2))
    6291456.0
    """
    pm, pk, pn = grid
    first = m * k / (pm * pk) * (1 - 1 / pn)
    second = k * n / (pk * pn) * (1 - 1 / pm)
    result = m * n / (pm * pn) * (1 - 1 / pk)
    return first + second + result


@dataclass(frozen=True)
class GridProduct(Pictured):
    """The best grid for a product.

    Attributes:
        grid: ranks along m, k (summed) and n; their product may leave some of ``ranks`` idle.
        words: words a rank receives on it.
        bound: the lower bound, for all ranks.
    """

    m: int
    k: int
    n: int
    ranks: int
    grid: tuple[int, int, int]
    words: float
    bound: float

    @property
    def used(self) -> int:
        """Ranks that work."""
        return math.prod(self.grid)

    @property
    def ratio(self) -> float:
        """Words over bound; 1.0 where the grid attains it."""
        if not self.bound:
            return 1.0 if not self.words else math.inf
        return self.words / self.bound

    @property
    def mesh(self) -> Mesh:
        """The grid as a mesh of the first ranks."""
        return Mesh(self.grid, ("m", "k", "n"))

    @property
    def strategy(self) -> Strategy:
        """Each axis of the mesh splits its factor."""
        return Strategy.of(self.mesh, {axis: axis for axis, size in zip("mkn", self.grid) if size > 1})

    def layouts(self) -> tuple[Layout, Layout, Layout]:
        """Where both operands and the result live: spread evenly over all ranks of the grid.

        An operand's piece is cut once more along the axis on which it is gathered; the result's along the
        axis on which it is scattered.
        """
        mesh = self.mesh
        return mesh("m", ("k", "n")), mesh(("k", "m"), "n"), mesh(("m", "k"), "n")

    def to_dict(self) -> dict[str, Any]:
        """In plain types."""
        return {
            "sizes": {"m": self.m, "k": self.k, "n": self.n},
            "ranks": self.ranks,
            "grid": list(self.grid),
            "used_ranks": self.used,
            "words_per_rank": self.words,
            "lower_bound_words_per_rank": self.bound,
            "ratio": self.ratio,
            "regime": regime(self.m, self.k, self.n, self.ranks),
            "words_of_others": self.others,
        }

    @property
    def others(self) -> dict[str, float | None]:
        """The words a rank receives on other grids of all ranks, by name; None if no such grid fits the sizes."""
        kinds = {
            "1-D, second operand gathered": [(self.ranks, 1, 1)],
            "best 2-D": grids(self.ranks, deep=False),
        }
        sizes = self.m, self.k, self.n
        return {
            name: min((grid_words(*sizes, grid) for grid in some if _fits(grid, sizes)), default=None)
            for name, some in kinds.items()
        }

    def __str__(self) -> str:
        idle = self.ranks - self.used
        grid = "x".join(map(str, self.grid))
        first, second, result = self.layouts()
        lines = [
            f"product ({self.m} x {self.k}) ({self.k} x {self.n}) on {many(self.ranks, 'rank')}: grid pm x pk x pn = {grid}"
            + (f", {many(idle, 'rank')} idle" if idle else ""),
            f"words received per rank {number_text(self.words)}, lower bound {number_text(self.bound)} "
            f"({regime(self.m, self.k, self.n, self.ranks)} case), ratio {self.ratio:.3f}",
            f"layouts: {first} times {second} gives {result}",
        ]
        for name, words in self.others.items():
            none = f"no grid of {many(self.ranks, 'rank')} fits the matrices"
            lines.append(f"{name}: {none if words is None else format_words(words)}")
        return "\n".join(lines)


def number_text(words: float) -> str:
    """Return a number of words as text: three digits of small numbers, whole large ones.

    >>> number_text(1234.5), number_text(3.375), number_text(0.0042)
    ('1,234', '3.38', '0.0042')
    """
    return f"{words:,.0f}" if words >= 100 else f"{words:.3g}"


def format_words(words: float) -> str:
    """Format a number of words with its unit.

    >>> format_words(1.0), format_words(0.5)
    ('1 word', '0.5 words')
    """
    number = number_text(words)
    return f"{number} word{'s' * (number != '1')}"


def _fits(grid: tuple[int, int, int], sizes: tuple[int, int, int]) -> bool:
    """Return True if no axis of a grid has more ranks than the size that it splits."""
    return all(parts <= size for parts, size in zip(grid, sizes))


def grids(ranks: int, *, deep: bool = True) -> Iterator[tuple[int, int, int]]:
    """The grids of ``ranks`` ranks; without ``deep`` those with pk = 1."""
    for pm in _divisors(ranks):
        for pk in _divisors(ranks // pm) if deep else (1,):
            yield pm, pk, ranks // pm // pk


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def best_grid(m: int, k: int, n: int, ranks: int, *, idle: float = 0.25) -> GridProduct:
    """The grid with the fewest words for an (m, k) times a (k, n) matrix among those that use most ranks.

    The share ``idle`` of ranks may have nothing to do, if the others receive fewer words by more than they compute more;
    if no grid fits the sizes otherwise, more ranks may be.

    >>> best_grid(512, 512, 512, 8).grid, best_grid(65536, 256, 256, 8).grid
    ((2, 2, 2), (8, 1, 1))
    """
    if min(m, k, n, ranks) < 1:
        raise InputError(
            f"a product needs sizes and ranks of at least 1, but got {m}, {k}, {n} on {many(ranks, 'rank')}"
        )
    check_world_size(ranks)
    most = min(ranks, m * k * n)  # on more, some rank of any grid has nothing
    least = max(1, math.ceil(ranks * (1 - idle)))
    for allowed in (range(most, least - 1, -1), range(min(most, least - 1), 0, -1)):
        best: tuple[float, tuple[int, int, int]] | None = None
        for used in allowed:
            # From 2 ranks on the bound of what counts here only rises as ranks fall.
            if best is not None and used > 1 and lower_bound(m, k, n, used) * (ranks / used) > best[0]:
                break
            for grid in grids(used):
                if not _fits(grid, (m, k, n)):
                    continue
                # A grid of fewer ranks must be better by more than the computation it gives up.
                words = grid_words(m, k, n, grid) * (ranks / used)
                if best is None or words < best[0] * (1 - 1e-12):
                    best = (words, grid)
            if best is not None and used < least:
                break
        if best is not None:
            words = grid_words(m, k, n, best[1])
            return GridProduct(m, k, n, ranks, best[1], words, lower_bound(m, k, n, ranks))
    raise InputError(f"no grid of at most {many(ranks, 'rank')} fits the sizes {m}, {k}, {n}")


def run_product(a: Any, b: Any, product: GridProduct) -> Any:
    """The product of two global tensors on the grid: operands moved to their even pieces, result scattered."""
    from spmdsim.arrays.ops import matmul

    first, second, result = product.layouts()
    return matmul.op.shard(product.strategy, result)(a.to(first), b.to(second))
