"""``paddle.distributed``: tensors and layers laid out on meshes (``python/paddle/distributed/auto_parallel/api.py``), and
``split``, a layer whose parameters the default program owns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from spmdsim import arrays as ours
from spmdsim.arrays import ops
from spmdsim.core import Layout
from spmdsim.dialects.host import element_type, host
from spmdsim.dialects.missing import DialectObject, add_words, refuse
from spmdsim.dialects.paddle.fleet import initialised
from spmdsim.dialects.paddle.layers import Split
from spmdsim.dialects.paddle.parameters import Parameter
from spmdsim.dialects.paddle.process_mesh import ProcessMesh
from spmdsim.dialects.paddle.process_mesh import layout as layout_of
from spmdsim.dialects.paddle.splitting import SplitError, check_call, split_layout
from spmdsim.dialects.paddle.static import Variable, in_dynamic_mode, recorded
from spmdsim.dialects.paddle.tensors import Tensor, check_has_gradient, dressed
from spmdsim.dialects.session import current_world, get_rank, get_world_size, hint_more_ranks
from spmdsim.dialects.torch import Replicate
from spmdsim.errors import InputError, LayoutError, UsageTypeError, many


class ParallelEnv(DialectObject):
    """This process's place in the job: its (first) rank, and the number of ranks."""

    ORIGINAL = "paddle.distributed.ParallelEnv"

    rank = dev_id = device_id = local_rank = property(lambda self: get_rank(), doc="The (first) rank.")
    world_size = nranks = property(lambda self: get_world_size(), doc="Number of ranks.")


def init_parallel_env() -> ParallelEnv:
    """Join the job; the world is there already."""
    return ParallelEnv()


def dtensor_from_local(local_tensor: Any, mesh: ProcessMesh, placements: Sequence[Any]) -> Tensor:
    """A tensor put together from each rank's own piece (a list with one piece per rank in lock step)."""
    pieces = local_tensor if isinstance(local_tensor, list) else [local_tensor] * len(current_world().ranks)
    where = layout_of(mesh, placements, np.ndim(pieces[0]))
    return dressed(ours.Tensor.from_local([np.asarray(x) for x in pieces], where, current_world()))


def shard_tensor(
    data: Any, mesh: ProcessMesh, placements: Sequence[Any], dtype: Any = None, place: Any = None,
    stop_gradient: bool | None = None,
) -> Any:  # fmt: skip
    """A new tensor on a mesh, from a whole array (the same on every rank) or a tensor; from a parameter, a parameter.

    It is a leaf of its own, as in Paddle: no gradient comes to what it was made from (:func:`reshard` hands gradients on).
    A program's variable is laid out when the program runs.

    Args:
        data: numbers, lists, an array, a tensor or a parameter.
        mesh: where.
        placements: one per dim of the mesh.
        dtype: element type, that of the data if left out.
        place: accepted and ignored.
        stop_gradient: as the data's if left out, else true.

    Raises:
        LayoutError: not one placement per dim of the mesh, or a dim that there is not.
        UsageTypeError: no numbers; whole numbers, and a gradient of them.
    """
    data = host(data) if isinstance(data, (list, tuple, bool, int, float, complex)) else data
    where = layout_of(mesh, placements, np.ndim(data) if not hasattr(data, "ndim") else data.ndim)
    stopped = getattr(data, "stop_gradient", True) if stop_gradient is None else stop_gradient
    if isinstance(data, Variable):
        return recorded(_placed, data, where, dtype)
    if isinstance(data, Parameter):
        return data.elsewhere(_placed(data.value.detach(), where, dtype), trainable=not stopped)
    if isinstance(data, ours.Tensor):
        tensor = dressed(_placed(data.detach(), where, dtype), fresh=True)
    else:
        tensor = dressed(ours.Tensor.from_global(host(data, dtype), where, current_world()))
    check_has_gradient(tensor.dtype, stopped)
    tensor.stop_gradient = stopped
    return tensor


def _placed(x: Any, where: Layout, dtype: Any = None) -> Any:
    return (x if dtype is None else ops.cast(x, element_type(dtype))).to(where)


def dtensor_from_fn(fn: Any, mesh: ProcessMesh, placements: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    """What a function such as ``paddle.ones`` gives, laid out on a mesh."""
    return shard_tensor(fn(*args, **kwargs), mesh, placements)


def reshard(dist_tensor: Any, mesh: ProcessMesh, placements: Sequence[Any]) -> Tensor:
    """The same tensor laid out in another way; gradients go back. ``Partial`` keeps the values on one rank of each group."""
    kind, tensor = type(dist_tensor).__name__, isinstance(dist_tensor, (ours.Tensor, Variable, Parameter))
    refuse({
        f"reshard takes a tensor, not a {kind}; nearest: shard_tensor(data, mesh, placements)": not tensor
    }, UsageTypeError)  # fmt: skip
    source = dist_tensor.value if isinstance(dist_tensor, Parameter) else dist_tensor
    moved: Tensor = recorded(_placed, source, layout_of(mesh, placements, source.ndim))
    return moved


def unshard_dtensor(dist_tensor: Any) -> Tensor:
    """The same tensor, whole on every rank of its mesh."""
    mesh = dist_tensor.process_mesh
    return reshard(dist_tensor, mesh, [Replicate()] * mesh.ndim)


def shard_layer(
    layer: Any, process_mesh: ProcessMesh, shard_fn: Callable[..., Any] | None = None,
    input_fn: Callable[..., Any] | None = None, output_fn: Callable[..., Any] | None = None,
) -> Any:  # fmt: skip
    """The layer itself, with its parameters on a mesh: whole, except those that a function lays out.

    Args:
        layer: a layer.
        process_mesh: where.
        shard_fn: called with the name of each layer inside (the layer itself has none, ``""``), that layer and the mesh; lays
            out parameters by ``layer.weight = shard_tensor(layer.weight, ...)``.
        input_fn: called with the inputs of a call, a tuple, and the mesh; gives the inputs.
        output_fn: called with the output of a call and the mesh; gives the output.

    Raises:
        UsageTypeError: no mesh, or no layer.
    """
    kinds = [type(one).__name__ for one in (process_mesh, layer)]
    refuse({
        f"the argument `process_mesh` is not `dist.ProcessMesh` type but a {kinds[0]}": not isinstance(process_mesh, ProcessMesh),
        f"shard_layer takes a paddle.nn.Layer, not a {kinds[1]}": not hasattr(layer, "named_sublayers"),
    }, UsageTypeError)  # fmt: skip
    for name, part in layer.named_sublayers(include_self=True):
        if shard_fn is not None:
            shard_fn(name, part, process_mesh)
        for word, parameter in [] if isinstance(part, Split) else [*vars(part).items()]:
            if isinstance(parameter, Parameter) and parameter.layout.mesh != process_mesh.to_mesh():
                setattr(part, word, shard_tensor(parameter, process_mesh, [Replicate()] * process_mesh.ndim))
    forward = layer.forward

    def around(*inputs: Any, **options: Any) -> Any:
        args = inputs if input_fn is None else input_fn(inputs, process_mesh)
        output = forward(*(args if isinstance(args, (tuple, list)) else [args]), **options)
        return output if output_fn is None else output_fn(output, process_mesh)

    if input_fn is not None or output_fn is not None:
        vars(layer)["forward"] = around
    return layer


def shard_optimizer(optimizer: Any, shard_fn: Any = None) -> Any:
    """The optimiser itself: what it remembers of a parameter is laid out like the parameter, in no other way."""
    if shard_fn is not None:
        raise InputError(
            "an optimiser's state is laid out like its parameters here; nearest: shard_fn=None, or spmdsim.nn.sharded_over"
        )
    return optimizer


def split(
    x: Any, size: Sequence[int], operation: str, axis: int = 0, num_partitions: int = 1, gather_out: bool = True,
    weight_attr: Any = None, bias_attr: Any = None, name: str | None = None, *, padding_row: bool = True,
) -> Any:  # fmt: skip
    """A parallel Embedding or Linear, its parameter split over ``num_partitions`` ranks and owned by the default program.

    Args:
        x: ids, or the input; the same on every rank.
        size: global shape of the weight, as the following ones that of :func:`split_layout`.
        operation: ``"embedding"`` or ``"linear"``.
        axis: the weight dim that is split.
        num_partitions: into how many parts; several groups of ranks may do the same.
        gather_out: whether the result is whole on every rank. Without it the result is the rank's own shard, as in Paddle:
            ``shape`` and ``numpy()`` are the shard's (in lock step the first rank's), of a column-parallel linear
            ``M / num_partitions`` columns, of a row-parallel one the partial products without bias. What would need other
            ranks' shards is refused, but for a row-parallel linear; ``full()`` and layouts are the global tensor's.
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
    if not initialised():
        raise SplitError("To use paddle.distributed.split, you must call fleet.init() firstly.")
    if num_partitions > world.size:
        raise LayoutError(
            f"num_partitions is {num_partitions}, but {many(world.size, 'rank is', 'ranks are')} running{hint_more_ranks()}"
        )
    # The 2.0 text speaks of N / num_partitions rows: parts must be equal, with or without the padding row.
    where = split_layout(size, operation, axis, num_partitions, gather_out, world_size=world.size)
    linear = operation == "linear"
    where = replace(where, padding_row=padding_row and num_partitions > 1 and not linear)
    biased = linear and bias_attr is not False and not where.stays_partial
    kind = "linear" if linear else "_parallel_embedding"
    return Split(where, name, weight_attr, biased, bias_attr, kind, keep=True)(x)


add_words(__name__)
