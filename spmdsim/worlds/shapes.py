"""ShapeOnly: one representative rank and no data, for costs at any number of ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.core.step import Step
from spmdsim.pictured import Pictured
from spmdsim.redistribution.group_steps import Parts, PartsStep
from spmdsim.redistribution.sparse_lookup import RowStep
from spmdsim.worlds.base import V, World
from spmdsim.worlds.local_steps import Arrived, Peers, check_shards
from spmdsim.worlds.programs import Moved, check_shard


@dataclass(frozen=True)
class ShapeArray(Pictured):
    """The shape and element type of an array, without its data.

    >>> import numpy as np
    >>> ShapeArray((3, 4), np.dtype("f4")).nbytes
    48
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def ndim(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes the array would have."""
        return self.size * self.dtype.itemsize

    def astype(self, dtype: Any, order: str = "C") -> ShapeArray:
        """The same shape with another element type."""
        return ShapeArray(self.shape, dtype)


class ShapeOnly(World):
    """A world of ``size`` ranks of which only rank 0 is followed, by shapes.

    In a mesh that begins with rank 0, that rank holds the largest shard of every layout (balanced blocks give the first
    ones one element more), so its shapes and bytes are the worst case.

    >>> ShapeOnly(65536).ranks
    range(0, 1)
    """

    has_data = False

    def __init__(self, size: int) -> None:
        super().__init__(size, range(1))
        self.cache.most = 1 << 16

    def _run(self, step: Step, shards: list[Any], algorithm: str | None) -> list[Any]:
        cached: list[Any] | None = self.cache.get((step, shards[0]))
        if cached is not None:
            return cached
        self.check_step(step)
        shard = shards[0]
        check_shard(step, 0, shard.shape, step.src.local_shape(step.shape, 0))
        result = ShapeArray(step.dst.local_shape(step.shape_after, 0), shard.dtype)
        results = self.cache[step, shard] = [result]
        return results

    def _run_rows(self, step: RowStep, ids: list[Any], values: list[Any]) -> Arrived:
        self.check_mesh(step.src.mesh)
        if 0 in step.src.mesh:
            check_shards(step, 0, ids[0], values[0])
        shape = step.held_shape(0) if step.goes_back else step.dst.local_shape(step.shape, 0)
        return [ShapeArray(shape, values[0].dtype)], [_expected(step)]

    def _run_parts(self, step: PartsStep, dtype: np.dtype, outgoing: Sequence[Parts | None]) -> Arrived:
        return [None], [_expected(step)]

    def _moved_rows(
        self, step: RowStep | PartsStep, dtype: np.dtype, planned: Sequence[int], *_: object
    ) -> Moved:
        return Moved([count * dtype.itemsize for count in planned], [step.expected_sent(0) * dtype.itemsize])

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> ShapeArray:
        """A shape without data."""
        return ShapeArray(tuple(shape), np.dtype(dtype))

    def gather_objects(self, values: Sequence[V], what: str = "gather_objects") -> list[V]:
        """The representative's value in the place of every rank's."""
        return list(values) * self.size


def _expected(step: RowStep | PartsStep) -> Peers:
    """What the representative is expected to receive, from each other rank."""
    return tuple((peer, count) for peer, count in step.expected(0) if peer != 0)
