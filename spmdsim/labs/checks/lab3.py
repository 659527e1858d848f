"""Checkers of lab 3, "Matrix products on grids of ranks"."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from spmdsim.arrays.ops import matmul
from spmdsim.core import Layout, Mesh
from spmdsim.labs.judging import (
    RANKS,
    expect,
    expect_answer,
    expect_bytes,
    expect_collectives,
    expect_several,
    draw_numbers,
    tensor,
    to_python,
    traced,
)


def grid_words(m: int, k: int, n: int, grid: tuple[int, int, int]) -> float:
    """Return the elements that each rank receives in ``[m, k] @ [k, n]`` on a grid of ranks.

    All three matrices are evenly split over all ranks, before and after the product. The number is exact if the grid
    divides the sizes.

    Args:
        m: rows of the left matrix.
        k: columns of the left matrix, over which the product is summed.
        n: columns of the right matrix.
        grid: ``(pm, pk, pn)``: the numbers of ranks that split the three sizes.

    >>> grid_words(4096, 4096, 4096, (2, 2, 2))
    6291456.0
    """
    pm, pk, pn = grid
    first = m * k / (pm * pk) * (1 - 1 / pn)
    second = k * n / (pk * pn) * (1 - 1 / pm)
    result = m * n / (pm * pn) * (1 - 1 / pk)
    return first + second + result


def no_communication(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``no_communication(mesh)``: the layouts of X and W of a product Z.

    Yield None once per point, after each of these checks:

    * the product does not communicate and leaves no sum pending;
    * no rank repeats another rank's work;
    * the shards of X and W together are as small as possible.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If a check fails.
    """
    mesh = Mesh((2, 4), ("dp", "tp"))
    layouts = answer(mesh)
    expect_several(layouts, 2, "two layouts", Layout)
    a, b = draw_numbers(32, 16), draw_numbers(16, 32, seed=2)
    z, trace = traced(lambda: matmul(tensor(a, layouts[0]), tensor(b, layouts[1])))
    expect_collectives(trace, {}, "the product")
    expect(not z.layout.partial_axes, f"Z is {z.layout}: it is not finished")
    yield
    replicas = len(z.layout.replica_ranks(0))
    expect(replicas == 1, f"Z is {z.layout}: {replicas} ranks compute the same block")
    yield

    def count_owned(rank: int) -> int:
        """Return the number of elements of X and W that a rank owns."""
        return sum(math.prod(layout.local_shape(array.shape, rank)) for layout, array in zip(layouts, (a, b)))

    owned, least = max(map(count_owned, mesh.rank_list)), 32 * 16 // 2 + 16 * 32 // 4
    expect(owned <= least, f"a rank owns {owned} elements of X and W together, but {least} would do")
    yield


def contraction(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``contraction(x, w)``: values and layout, then the bytes.

    The operands of the product are split along the inner dim. The result must be split along dim 0. The busiest rank
    may receive only the bytes of a reduce_scatter. Yield None once per point: after values and layout, and after the
    bytes.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If a check fails.
    """
    mesh = Mesh((RANKS,), ("r",))
    a, b = draw_numbers(16, 64), draw_numbers(64, 8, seed=2)
    x, w = tensor(a, mesh(None, "r")), tensor(b, mesh("r", None))
    trace = expect_answer(answer, [x, w], np.matmul(a, b), mesh("r", None), "contraction(x, w)")
    yield
    expect_bytes(trace.planned(), 16 * 8 * 4 * 7 // 8, "contraction(x, w)")
    yield


def words(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``words(m, k, n, grid)`` against the formula of :func:`grid_words`.

    A relative error of 1e-9 is accepted. Yield None once per point: after sizes that the grid divides, and after other
    sizes.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If an answer is wrong.
    """
    even = (((8, 8, 8), (2, 2, 2)), ((64, 8, 8), (8, 1, 1)))
    uneven = (((12, 6, 10), (1, 4, 2)), ((5, 7, 9), (3, 1, 2)))
    for cases in (even, uneven):
        for (m, k, n), grid in cases:
            value, wanted = to_python(answer(m, k, n, grid)), grid_words(m, k, n, grid)
            right = isinstance(value, int | float) and math.isclose(value, wanted)
            expect(right, f"words({m}, {k}, {n}, {grid}) gives {value!r}, but it is {wanted:g}")
        yield


def best_grid(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``best_grid(m, k, n, ranks)``: the grid of ranks for a matrix product.

    The product is that of an m x k and a k x n matrix. A grid is ``(pm, pk, pn)``, three integers with the product
    ``ranks``. A right grid moves the fewest words, which are the elements that a rank receives (:func:`grid_words`). Yield
    None three times, once after each of these cases of the lower bound, for one point each:

    * one size is large: two calls of ``best_grid``;
    * two sizes are large: two calls;
    * three sizes are equal: two calls, the second with a prime number of ranks.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If an answer is wrong.
    """
    for cases in (
        ((4096, 64, 64, 8), (64, 64, 4096, 8)),
        ((512, 16, 512, 16), (24, 480, 480, 12)),
        ((512, 512, 512, 64), (64, 64, 64, 7)),
    ):
        for sizes in cases:
            _check_grid(to_python(answer(*sizes)), *sizes)
        yield


def _check_grid(grid: Any, m: int, k: int, n: int, ranks: int) -> None:
    """Raise Mistake if ``grid``, the answer of ``best_grid(m, k, n, ranks)``, is wrong."""
    call = f"best_grid({m}, {k}, {n}, {ranks})"
    has_three = isinstance(grid, tuple | list) and len(grid) == 3
    is_grid = has_three and all(isinstance(extent, int) and extent > 0 for extent in grid)
    expect(is_grid, f"{call} gives {grid!r}, but a grid of three whole numbers from 1 on is asked for")
    expect(math.prod(grid) == ranks, f"{call} gives {tuple(grid)}, which has {math.prod(grid)} ranks")
    best = min(_grids(ranks), key=lambda candidate: grid_words(m, k, n, candidate))
    moved_words, least = grid_words(m, k, n, tuple(grid)), grid_words(m, k, n, best)
    moves = f"which moves {moved_words:,.0f} words, but {least:,.0f} would do"
    expect(moved_words <= least * (1 + 1e-9), f"{call} gives {tuple(grid)}, {moves}")


def _grids(ranks: int) -> list[tuple[int, int, int]]:
    """Return all grids of three dimensions with this number of ranks."""
    divisors = [d for d in range(1, ranks + 1) if ranks % d == 0]
    return [(a, b, ranks // (a * b)) for a in divisors for b in divisors if ranks % (a * b) == 0]
