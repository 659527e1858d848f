"""The 784-512-512-10 network of the operator-level parallel tutorial, with its two sets of strategies."""

from __future__ import annotations

import itertools
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


def simple(ranks: int) -> list[Any]:
    """Cuts per operator, in the order matmul1, relu1, matmul2, relu2, matmul3; the last is data parallel."""
    return [((2, 4), (4, 1)), ((4, 1),), ((1, 8), (8, 1)), ((8, 1),), ((ranks, 1), (1, 1))]


def advanced(ranks: int) -> list[Any]:
    """Layouts on two device matrices, (2, 2, 2) and (8,), with a dim cut by two axes."""
    cube, line = Mesh((2, 2, 2), ("dp", "sp", "mp")), Mesh((8,), ("tp",))
    return [
        (cube("mp", ("sp", "dp")), cube(("sp", "dp"), None)),
        ((4, 1),),
        (line(None, "tp"), line("tp", None)),
        ((8, 1),),
        ((ranks, 1), (1, 1)),
    ]


def data_parallel(ranks: int) -> list[Any]:
    """Every operator split over the batch."""
    product, each = ((ranks, 1), (1, 1)), ((ranks, 1),)
    return [product, each, product, each, product]


STRATEGIES: dict[str, Callable[[int], list[Any]]] = {
    "simple": simple, "advanced": advanced, "data": data_parallel,
}  # fmt: skip


class Network(Module):
    """Flatten, three products with a ReLU in between, every operator with its own strategy.

    Args:
        strategies: a name in :data:`STRATEGIES`.
        ranks: number of ranks.
        batch: rows per step.
        dtype: element type.

    Raises:
        InputError: strategies for 8 ranks on another number, or a batch that they do not divide.
    """

    def __init__(self, strategies: str, ranks: int, batch: int, dtype: Any = np.float32) -> None:
        if strategies != "data" and ranks != 8:
            raise InputError(
                f"the {strategies!r} strategies are for 8 ranks, but {ranks} are running; use 'data'"
            )
        if batch % ranks or (batch % 8 and strategies != "data"):
            raise InputError(f"a batch of {batch} does not divide over {ranks} ranks")
        given = STRATEGIES[strategies](ranks)
        self.products = [ops.matmul.op.shard(s) for s in given[0::2]]
        self.activations = [ops.relu.op.shard(s) for s in given[1::2]]
        shapes = list(itertools.pairwise(WIDTHS))
        layouts = [self._layouts(p, (batch, n), (n, m), ranks) for p, (n, m) in zip(self.products, shapes)]
        self.input_layout = layouts[0][0]
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
