"""``paddle.distributed``: split, and who takes part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.core import Layout
from spmdsim.dialects.paddle.attributes import initial
from spmdsim.dialects.paddle.distributed import fleet
from spmdsim.dialects.paddle.process_mesh import Partial, ProcessMesh, Replicate, Shard
from spmdsim.dialects.paddle.process_mesh import layout as layout_of
from spmdsim.dialects.paddle.splitting import SplitError, SplitLayout, check_call, split_layout
from spmdsim.dialects.paddle.static import everywhere, in_dynamic_mode, next_name
from spmdsim.dialects.session import alone, current_world
from spmdsim.errors import LayoutError
from spmdsim.nn import Uniform, zeros
from spmdsim.nn.module import Initialiser, Parameter
from spmdsim.ops import add, embedding, matmul, padded_embedding
from spmdsim.tensor import Tensor


class ParallelEnv:
    """This process's place in the job."""

    @property
    def rank(self) -> int:
        """The first rank this process owns."""
        return current_world().ranks[0]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return current_world().size

    dev_id = rank
    nranks = world_size


def get_rank() -> int:
    """This process's (first) rank."""
    return ParallelEnv().rank


def get_world_size() -> int:
    """Number of ranks."""
    return ParallelEnv().world_size


def split(
    x: Tensor | np.ndarray,
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
) -> Tensor:
    """A parallel Embedding or Linear, its parameter split over ``num_partitions`` ranks.

    Args:
        x: ids, or the input; the same on every rank.
        size: global shape of the weight.
        operation: ``"embedding"`` or ``"linear"``.
        axis: the weight dim that is split.
        num_partitions: into how many parts; several groups of ranks may do the same.
        gather_out: whether the full result ends on every rank. A row-parallel linear without it gives the
            partial products, without bias, as Paddle does.
        weight_attr: first values of the weight: a ``ParamAttr``, an initializer, or an array.
        bias_attr: first values of the bias; False for none.
        name: the parameter's name; it decides its first values.
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
    given = x if isinstance(x, Tensor) else everywhere(x, where.mesh)
    name = name or next_name("split")
    if operation == "embedding":
        return _embedding(given, where, weight_attr, name, padding_row)
    return _linear(given, where, weight_attr, bias_attr, name)


def _parameter(
    shape: tuple[int, ...], layout: Layout, attribute: Any, default: Initialiser, name: str
) -> Parameter:
    initialiser, dtype, called = initial(attribute, shape, default)
    parameter = Parameter(shape, layout, initialiser, np.float32 if dtype is None else dtype)
    parameter.name = called or name
    parameter.materialise(current_world())
    return parameter


def _embedding(ids: Tensor, where: SplitLayout, attribute: Any, name: str, padding_row: bool) -> Tensor:
    table = _parameter(where.size, where.weight, attribute, Uniform(), f"{name}.w")
    if padding_row and where.num_partitions > 1:
        y = padded_embedding(ids, with_padding_rows(table.value, where))
    else:
        y = embedding(ids, table.value)
    return y.to(y.layout.reduced)


def with_padding_rows(table: Tensor, where: SplitLayout) -> Tensor:
    """The table with a zero row at the end of every rank's part."""
    parts = where.num_partitions
    shards = [np.vstack([shard, np.zeros((1, shard.shape[1]), shard.dtype)]) for shard in table.shards]
    rows, columns = where.size
    return Tensor.from_local(shards, table.layout, table.world, shape=(rows + parts, columns))


def _linear(x: Tensor, where: SplitLayout, weight_attr: Any, bias_attr: Any, name: str) -> Tensor:
    weight = _parameter(where.size, where.weight, weight_attr, Uniform(), f"{name}.w")
    mesh = where.mesh
    if where.axis == 0:
        x = x.to(mesh(*[None] * (x.ndim - 1), "mp"))
    y = matmul(x, weight.value)
    if where.axis == 0 and not where.gather_out and where.num_partitions > 1:
        return y
    y = y.to(y.layout.reduced)
    if bias_attr is not False and where.bias is not None:
        bias = _parameter((where.size[1],), where.bias, bias_attr, zeros, f"{name}.b")
        y = add(y, bias.value)
    return y.to(mesh(*[None] * y.ndim)) if where.gather_out else y


def init_parallel_env() -> ParallelEnv:
    """Join the job; the world is there already."""
    return ParallelEnv()


def shard_tensor(data: Any, mesh: ProcessMesh, placements: Sequence[Any], **options: Any) -> Tensor:
    """A whole array (the same on every rank), or a tensor, laid out on a mesh."""
    where = layout_of(mesh, placements, len(data.shape) if hasattr(data, "shape") else np.ndim(data))
    if isinstance(data, Tensor):
        return data.to(where)
    return Tensor.from_global(np.asarray(data), where, current_world())


def reshard(dist_tensor: Tensor, mesh: ProcessMesh, placements: Sequence[Any]) -> Tensor:
    """The same tensor laid out in another way."""
    return dist_tensor.to(layout_of(mesh, placements, dist_tensor.ndim))


def dtensor_from_local(local_tensor: Any, mesh: ProcessMesh, placements: Sequence[Any]) -> Tensor:
    """A tensor put together from each rank's own piece (a list with one piece per rank in lock step)."""
    pieces = local_tensor if isinstance(local_tensor, list) else [local_tensor] * len(current_world().ranks)
    where = layout_of(mesh, placements, np.ndim(pieces[0]))
    return Tensor.from_local([np.asarray(piece) for piece in pieces], where, current_world())


def __getattr__(name: str) -> Any:
    from spmdsim.dialects.missing import not_covered

    nearest = dict.fromkeys(
        (
            "all_reduce",
            "all_gather",
            "reduce_scatter",
            "alltoall",
            "broadcast",
            "scatter",
            "reduce",
            "send",
            "recv",
        ),
        "reshard(tensor, mesh, placements), which inserts the collectives",
    )
    nearest |= {
        "launch": "spmdsim launch",
        "new_group": "ProcessMesh",
        "shard_layer": "shard_tensor per parameter",
    }
    raise not_covered(__name__, name, __all__, nearest)


__all__ = [
    "ParallelEnv", "Partial", "ProcessMesh", "Replicate", "Shard", "dtensor_from_local", "fleet", "get_rank",
    "get_world_size", "init_parallel_env", "reshard", "shard_tensor", "split", "with_padding_rows",
]  # fmt: skip
