"""A Fourier transform along one split dim: as a matrix of points, which is transformed by columns and by rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from spmdsim.core import Layout, Rule
from spmdsim.ops.shape import reshape, transpose
from spmdsim.tensor import Context, Op, Tensor


@lru_cache(maxsize=256)
def factors(n: int, parts: int) -> tuple[int, int] | None:
    """Two factors of a number of points, as alike as they can be, of which both are cut in so many equal parts, or one is.

    >>> factors(4096, 4), factors(24, 4), factors(15, 4)
    ((64, 64), (4, 6), None)
    """
    rows = np.arange(parts, n // parts + 1, parts)
    rows = rows[n % rows == 0]
    if not len(rows):
        return None
    first = min(rows.tolist(), key=lambda one: (n // one % parts > 0, abs(math.log(one * one / n))))
    return first, n // first


def four_steps(transform: Callable[[Tensor, int], Tensor], x: Tensor, dim: int, inverse: bool) -> Tensor:
    """A split dim as a matrix, of which columns and then rows are transformed, each entry turned in between.

    All ranks exchange their pieces three times, and no rank ever has more than one. There must be :func:`factors`.
    """
    layout = x.layout.canonical
    sizes = factors(x.shape[dim], layout.parts[dim])
    assert sizes
    y = reshape(x, (*x.shape[:dim], *sizes, *x.shape[dim + 1 :]))
    y = transform(_turn_op(transform(y, dim), dim=dim, inverse=inverse), dim + 1)
    order = list(range(y.ndim))
    order[dim : dim + 2] = dim + 1, dim
    y = transpose(y, order)
    split = Layout(layout.mesh, [*layout.dims[: dim + 1], (), *layout.dims[dim + 1 :]])
    return reshape(y.to(split), x.shape, layout)


def _turned(context: Context, x: np.ndarray, dim: int, inverse: bool) -> np.ndarray:
    """Entries ``[k, j]`` of two dims times the root of unity of power ``k j``."""
    (first, last), (start, stop) = context.bounds(f"d{dim}"), context.bounds(f"d{dim + 1}")
    n = context.size(f"d{dim}") * context.size(f"d{dim + 1}")
    powers = np.outer(np.arange(first, last), np.arange(start, stop)) % n
    roots = np.exp((2j if inverse else -2j) * np.pi / n * powers).astype(x.dtype)
    return np.asarray(x * roots.reshape(*roots.shape, *[1] * (x.ndim - dim - 2)))


_turn_op = Op(
    "twiddle",
    lambda shape, dim, inverse: Rule.parse(
        "{0} -> {0}".format(" ".join(f"d{d}" for d in range(len(shape)))), linear="each"
    ),
    _turned,
    lambda context, dy, _operands, _y, dim, inverse: (_turned(context, dy, dim, not inverse),),
    contextual=True,
)
