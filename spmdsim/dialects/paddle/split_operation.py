"""``paddle.distributed.split``: a layer whose parameters the default program owns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import spmdsim.ops as ops
from spmdsim.core import Layout
from spmdsim.core.meta import Meta
from spmdsim.core.tape import MoveNode, Pending
from spmdsim.dialects.paddle.distributed import fleet
from spmdsim.dialects.paddle.layers import SplitLayer
from spmdsim.dialects.paddle.splitting import SplitError, SplitLayout, check_call, split_layout
from spmdsim.dialects.paddle.static import in_dynamic_mode
from spmdsim.dialects.paddle.tensors import Tensor
from spmdsim.dialects.session import alone, current_world
from spmdsim.errors import LayoutError
from spmdsim.tensor import Tensor as CoreTensor


def split(
    x: Any,
    size: Sequence[int],
    operation: str,
    axis: int = 0,
    num_partitions: int = 1,
    gather_out: bool = True,
    weight_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
    *,
    padding_row: bool = True,
) -> Any:
    """A parallel Embedding or Linear, its parameter split over ``num_partitions`` ranks and owned by the default program.

    Args:
        x: ids, or the input; the same on every rank.
        size: global shape of the weight.
        operation: ``"embedding"`` or ``"linear"``.
        axis: the weight dim that is split.
        num_partitions: into how many parts; several groups of ranks may do the same.
        gather_out: whether the full result ends on every rank. A row-parallel linear without it gives the
            partial products, without bias, as Paddle does.
        weight_attr: the weight's ``ParamAttr``, an initializer, or an array. A name that the default program has a
            parameter of is that parameter, used again.
        bias_attr: the bias's; False for none.
        name: what the parameters' names begin with (``name.w_0``, ``name.b_0``); it decides their first values.
        padding_row: keep a zero row at the end of every part of an embedding's table, as the document
            describes it; False for masks, as today's code has it. The result is the same.

    Raises:
        ValueError: everything that Paddle refuses, in its words; where it asserts an AssertionError too.
    """
    world = current_world()
    check_call(size, operation)
    if in_dynamic_mode():
        raise LayoutError(
            "paddle.distributed.split cannot be used in dynamic graph mode, please use ParallelEmbedding, "
            "ParallelRowLinear, ParallelColumnLinear instead. (Here: VocabParallelEmbedding, RowParallelLinear, "
            "ColumnParallelLinear; or enable_static().)"
        )
    if not fleet.initialised():
        raise SplitError("To use paddle.distributed.split, you must call fleet.init() firstly.")
    if num_partitions > world.size:
        raise LayoutError(f"num_partitions is {num_partitions}, but {world.size} ranks are running{alone()}")
    # The 2.0 text speaks of N / num_partitions rows: parts must be equal, with or without the padding row.
    where = split_layout(size, operation, axis, num_partitions, gather_out, world_size=world.size)
    layer = _Split(where, name, weight_attr, bias_attr, padding_row and num_partitions > 1)
    return layer(x)


class _Split(SplitLayer):
    """What :func:`split` applies."""

    def __init__(
        self, where: SplitLayout, name: str | None, weight_attr: Any, bias_attr: Any, padding_row: bool
    ) -> None:
        self.row_parallel = where.operation == "linear" and where.axis == 0
        self.pending = self.row_parallel and not where.gather_out and where.num_partitions > 1
        self.padding_row = padding_row
        kind = "_parallel_embedding" if where.operation == "embedding" else "linear"
        biased = bias_attr is not False and not self.pending
        super().__init__(where, name, weight_attr, biased, bias_attr, kind, keep=True)

    def forward(self, x: Tensor) -> Any:
        """``[...] -> [..., columns]``, or ``[..., rows] -> [..., columns]``."""
        where = self.where
        if where.operation == "embedding" and self.padding_row:
            y = ops.padded_embedding(x, with_padding_rows(self.weight.to(where.weight), where))
        else:
            y = self.products(x) if self.row_parallel else self.inner(x)
        if not self.pending:
            y = y.to(y.layout.reduced)
        whole = where.gather_out and where.operation == "linear"
        return y.to(Layout.replicated(where.mesh, y.ndim)) if whole else y


class _PaddingNode(MoveNode):
    """Rows of zeros at the end of every rank's part, which have no gradient."""

    __slots__ = ()

    def pull(self, gradients: list[Pending]) -> list[Pending]:
        """Leave out the last row of every rank's part."""
        table, world = self.meta, self.world
        return [[
            type(g)(world, Meta.of(g.layout, table.shape, g.dtype), _each(g.held, lambda part: part[:-1]), origin=g.origin)
            for g in gradients[0]
        ]]  # fmt: skip


def _each(shards: list[Any], of: Any) -> list[Any]:
    """Something of every rank's part; parts that ranks share are shared afterwards, too."""
    by_shard = {id(shard): shard for shard in shards}
    by_shard = {key: of(shard) for key, shard in by_shard.items()}
    return [by_shard[id(shard)] for shard in shards]


def with_padding_rows(table: CoreTensor, where: SplitLayout) -> Any:
    """The table with a zero row at the end of every rank's part."""
    world, (rows, columns) = table.world, where.size
    meta = Meta.of(table.layout, (rows + where.num_partitions, columns), table.dtype)

    def padded(part: Any) -> Any:
        if not world.has_data:
            return world.empty((part.shape[0] + 1, columns), part.dtype)
        return np.vstack([part, np.zeros((1, columns), part.dtype)])

    longer = Tensor(world, meta, _each(table.held, padded), table.requires_grad, origin=table.origin)
    longer.node = _PaddingNode(table) if table.requires_grad else None
    return longer


__all__ = ["split", "with_padding_rows"]
