"""The 784-512-512-10 network of the operator-level parallel tutorial, with its two sets of strategies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import spmdsim.ops as ops
from spmdsim.core import Layout, Mesh, bind
from spmdsim.core.operator import ShardedOp
from spmdsim.errors import InputError
from spmdsim.nn import Module, Normal, Parameter
from spmdsim.tensor import Tensor

#: Widths of the layers.
WIDTHS = (784, 512, 512, 10)


def like_eight(ranks: int, count: int) -> tuple[int, ...]:
    """A number of ranks in so many factors, the least primes first: as the tutorial has 8 of them.

    >>> like_eight(8, 2), like_eight(8, 3), like_eight(12, 2), like_eight(7, 2), like_eight(1, 3)
    ((2, 4), (2, 2, 2), (2, 6), (1, 7), (1, 1, 1))
    """
    factors: list[int] = []
    rest = ranks
    while len(factors) < count - 1:
        prime = next((p for p in range(2, math.isqrt(rest) + 1) if rest % p == 0), 0)
        if not prime:
            break
        factors.append(prime)
        rest //= prime
    return (*(1,) * (count - 1 - len(factors)), *factors, rest)


def simple(ranks: int) -> list[Any]:
    """Cuts per operator, in the order matmul1, relu1, matmul2, relu2, matmul3; the last is data parallel."""
    rows, inner = like_eight(ranks, 2)
    first = ((rows, inner), (inner, 1))
    return [first, ((inner, 1),), ((1, ranks), (ranks, 1)), ((ranks, 1),), ((ranks, 1), (1, 1))]


def advanced(ranks: int) -> list[Any]:
    """Layouts on two device matrices, (2, 2, 2) and (8,) on 8 ranks, with a dim cut by two axes."""
    cube, line = Mesh(like_eight(ranks, 3), ("dp", "sp", "mp")), Mesh((ranks,), ("tp",))
    return [
        (cube("mp", ("sp", "dp")), cube(("sp", "dp"), None)),
        ((like_eight(ranks, 2)[1], 1),),
        (line(None, "tp"), line("tp", None)),
        ((ranks, 1),),
        ((ranks, 1), (1, 1)),
    ]


def data_parallel(ranks: int) -> list[Any]:
    """Every operator split over the batch."""
    product, each = ((ranks, 1), (1, 1)), ((ranks, 1),)
    return [product, each, product, each, product]


STRATEGIES: dict[str, Callable[[int], list[Any]]] = {
    "simple": simple, "advanced": advanced, "data": data_parallel,
}  # fmt: skip


def _adapted(strategies: str, ranks: int, batch: int) -> str:
    words = []
    if strategies != "data" and ranks != 8:
        matrices = {"simple": (2,), "advanced": (3, 1)}[strategies]
        shapes = " and ".join("x".join(map(str, like_eight(ranks, count))) for count in matrices)
        words.append(f"the tutorial has 8 ranks, so on {ranks} its strategies become {shapes}")
    uneven = [str(size) for size in (batch, *dict.fromkeys(WIDTHS[:-1])) if size % ranks]
    if uneven:
        words.append(f"{' and '.join(uneven)} do not divide by {ranks}: pieces differ by one")
    return "; ".join(words)


class Network(Module):
    """Flatten, three products with a ReLU in between, every operator with its own strategy.

    Args:
        strategies: a name in :data:`STRATEGIES`.
        ranks: number of ranks.
        batch: rows per step.
        dtype: element type.

    Raises:
        InputError: a batch of fewer rows than ranks.
    """

    def __init__(self, strategies: str, ranks: int, batch: int, dtype: Any = np.float32) -> None:
        if batch < ranks:
            raise InputError(
                f"a batch of {batch} rows leaves some of {ranks} ranks without any; take more rows"
            )
        given = STRATEGIES[strategies](ranks)
        self.products = [ops.matmul.op.shard(s) for s in given[0::2]]
        self.activations = [ops.relu.op.shard(s) for s in given[1::2]]
        shapes = list(itertools.pairwise(WIDTHS))
        layouts = [self._layouts(p, (batch, n), (n, m), ranks) for p, (n, m) in zip(self.products, shapes)]
        self.input_layout = layouts[0][0]
        #: How the strategies differ from the tutorial's, in words; empty on its 8 ranks.
        self.adapted = _adapted(strategies, ranks, batch)
        self.fc1, self.fc2, self.fc3 = (
            Parameter(shape, layout, Normal(0.01), dtype) for shape, (_, layout) in zip(shapes, layouts)
        )

    @staticmethod
    def _layouts(
        product: ShardedOp, x: tuple[int, int], w: tuple[int, int], ranks: int
    ) -> tuple[Layout, ...]:
        bound = product.op.bind([x, w], {})
        return bind(bound.rule, (x, w)).input_layouts(product.strategy(bound, ranks))

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, 784] -> [batch, 10]``."""
        x = self.products[0](x, self.fc1.value)
        x = self.activations[0](x)
        x = self.products[1](x, self.fc2.value)
        x = self.activations[1](x)
        return self.products[2](x, self.fc3.value)
