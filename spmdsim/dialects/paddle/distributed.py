"""``paddle.distributed``: tensors and layers on meshes, and ``split``, a layer with parameters of the default program.

Semantics: ``python/paddle/distributed/auto_parallel/api.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from spmdsim import arrays as ours
from spmdsim.arrays import ops
from spmdsim.core import Layout
from spmdsim.dialects.host import to_host, to_numpy_dtype
from spmdsim.dialects.missing import DialectObject, add_words, refuse
from spmdsim.dialects.paddle.fleet import is_initialised
from spmdsim.dialects.paddle.layers import Split
from spmdsim.dialects.paddle.parameters import Parameter
from spmdsim.dialects.paddle.process_mesh import ProcessMesh
from spmdsim.dialects.paddle.process_mesh import layout as layout_of
from spmdsim.dialects.paddle.splitting import SplitError, check_call, split_layout
from spmdsim.dialects.paddle.static import Variable, call_recorded, in_dynamic_mode
from spmdsim.dialects.paddle.tensors import Tensor, check_has_gradient, with_methods
from spmdsim.dialects.session import current_world, get_rank, get_world_size, hint_more_ranks
from spmdsim.dialects.torch import Replicate
from spmdsim.errors import InputError, LayoutError, UsageTypeError, many
from spmdsim.wrong_calls import explained


class ParallelEnv(DialectObject):
    """Rank of this process, and the number of ranks."""

    ORIGINAL = "paddle.distributed.ParallelEnv"

    rank = dev_id = device_id = local_rank = property(
        lambda self: get_rank(), doc="First rank of this process."
    )
    world_size = nranks = property(lambda self: get_world_size(), doc="Number of ranks.")


def init_parallel_env() -> ParallelEnv:
    """Join the job; the world exists already."""
    return ParallelEnv()


@explained
def dtensor_from_local(local_tensor: Any, mesh: ProcessMesh, placements: Sequence[Any]) -> Tensor:
    """Return the tensor whose shards are the ranks' own arrays.

    Args:
        local_tensor: the shard of this process; in lock step also a list with one shard per rank.
        mesh: the mesh.
        placements: one per dim of the mesh.
    """
    pieces = local_tensor if isinstance(local_tensor, list) else [local_tensor] * len(current_world().ranks)
    where = layout_of(mesh, placements, np.ndim(pieces[0]))
    return with_methods(ours.Tensor.from_local([np.asarray(x) for x in pieces], where, current_world()))


@explained
def shard_tensor(
    data: Any, mesh: ProcessMesh, placements: Sequence[Any], dtype: Any = None, place: Any = None,
    stop_gradient: bool | None = None,
) -> Any:  # fmt: skip
    """Return a new tensor with the data, laid out on a mesh; from a parameter, a new parameter.

    For example, ``shard_tensor(x, mesh, [Shard(0), Replicate()])`` splits dim 0 along the first mesh dim. The result is
    a leaf, as in Paddle: no gradient reaches ``data`` (:func:`reshard` passes gradients on). A variable of a static
    program is laid out in each run of the program. All ranks must call it.

    Args:
        data: numbers, lists, an array that is equal on every rank (not checked), a tensor or a parameter.
        mesh: the mesh.
        placements: Shard, Replicate or Partial, one per dim of the mesh.
        dtype: element type; None for that of the data.
        place: not used: the interface has it.
        stop_gradient: False to collect a gradient, True for none. None takes the flag of ``data``, or True if it has no
            flag.

    Raises:
        LayoutError: If there is not one placement per dim of the mesh, or a dim is out of range.
        UsageTypeError: If the data are no numbers, or a gradient of integers is asked for.
    """
    data = to_host(data) if isinstance(data, (list, tuple, bool, int, float, complex)) else data
    where = layout_of(mesh, placements, np.ndim(data) if not hasattr(data, "ndim") else data.ndim)
    stopped = getattr(data, "stop_gradient", True) if stop_gradient is None else stop_gradient
    if isinstance(data, Variable):
        return call_recorded(_move, data, where, dtype)
    if isinstance(data, Parameter):
        return data.copy_to(_move(data.value.detach(), where, dtype), trainable=not stopped)
    if isinstance(data, ours.Tensor):
        tensor = with_methods(_move(data.detach(), where, dtype), fresh=True)
    else:
        tensor = with_methods(ours.Tensor.from_global(to_host(data, dtype), where, current_world()))
    check_has_gradient(tensor.dtype, stopped)
    tensor.stop_gradient = stopped
    return tensor


def _move(x: Any, where: Layout, dtype: Any = None) -> Any:
    """Return a tensor in the layout ``where``; in another element type unless ``dtype`` is None."""
    return (x if dtype is None else ops.cast(x, to_numpy_dtype(dtype))).to(where)


@explained
def dtensor_from_fn(fn: Any, mesh: ProcessMesh, placements: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of a function such as ``paddle.ones``, on a mesh."""
    return shard_tensor(fn(*args, **kwargs), mesh, placements)


@explained
def reshard(dist_tensor: Any, mesh: ProcessMesh, placements: Sequence[Any]) -> Tensor:
    """Return the tensor in another layout; gradients pass back to the source.

    All ranks must call it. ``Partial`` keeps the values on one rank of each group. A variable of a program is laid out
    when the program runs.

    Args:
        dist_tensor: a tensor, a parameter (its value is moved) or a variable.
        mesh: the new mesh.
        placements: one per dim of the mesh.

    Raises:
        UsageTypeError: If ``dist_tensor`` is something else.
        LayoutError: If there is not one placement per dim of the mesh, or a dim is out of range.
    """
    kind, is_tensor = type(dist_tensor).__name__, isinstance(dist_tensor, (ours.Tensor, Variable, Parameter))
    refuse({
        f"reshard: dist_tensor must be a tensor, got a {kind}; nearest: shard_tensor(data, mesh, placements)": not is_tensor
    }, UsageTypeError)  # fmt: skip
    source = dist_tensor.value if isinstance(dist_tensor, Parameter) else dist_tensor
    moved: Tensor = call_recorded(_move, source, layout_of(mesh, placements, source.ndim))
    return moved


@explained
def unshard_dtensor(dist_tensor: Any) -> Tensor:
    """Return the tensor replicated on every rank of its mesh."""
    mesh = dist_tensor.process_mesh
    return reshard(dist_tensor, mesh, [Replicate()] * mesh.ndim)


@explained
def shard_layer(
    layer: Any, process_mesh: ProcessMesh, shard_fn: Callable[..., Any] | None = None,
    input_fn: Callable[..., Any] | None = None, output_fn: Callable[..., Any] | None = None,
) -> Any:  # fmt: skip
    """Move a layer's parameters to a mesh, and wrap its calls; return the layer itself.

    1. ``shard_fn`` is called for the layer and for each layer inside, parents first. It may split parameters.
    2. Parameters that are then not on the mesh are replicated on it, except those of parallel layers (such as
       ColumnParallelLinear), which stay as they are.
    3. Later calls of the layer pass through ``input_fn`` before, and ``output_fn`` after.

    Args:
        layer: a layer, which is changed.
        process_mesh: the mesh.
        shard_fn: function of a name (``""`` for the layer itself), the layer with this name and the mesh. It splits a
            parameter by ``layer.weight = shard_tensor(layer.weight, ...)``. None: all are replicated.
        input_fn: function of the tuple of a call's positional inputs, and the mesh. It returns the new inputs: one, or
            a tuple or list. Named inputs are passed unchanged. None: all inputs stay.
        output_fn: function of the output of a call, and the mesh. It returns the new output. None: it stays.

    Raises:
        UsageTypeError: If the mesh or the layer has another type.
    """
    kinds = [type(argument).__name__ for argument in (process_mesh, layer)]
    refuse({
        f"the argument `process_mesh` is not `dist.ProcessMesh` type but a {kinds[0]}": not isinstance(process_mesh, ProcessMesh),
        f"shard_layer: layer must be a paddle.nn.Layer, got a {kinds[1]}": not hasattr(layer, "named_sublayers"),
    }, UsageTypeError)  # fmt: skip
    for name, sublayer in layer.named_sublayers(include_self=True):
        if shard_fn is not None:
            shard_fn(name, sublayer, process_mesh)
        if isinstance(sublayer, Split):
            continue
        for attribute, parameter in [*vars(sublayer).items()]:
            if isinstance(parameter, Parameter) and parameter.layout.mesh != process_mesh.to_mesh():
                setattr(
                    sublayer,
                    attribute,
                    shard_tensor(parameter, process_mesh, [Replicate()] * process_mesh.ndim),
                )
    forward = layer.forward

    def around(*inputs: Any, **options: Any) -> Any:
        """Call the layer between ``input_fn`` and ``output_fn``."""
        args = inputs if input_fn is None else input_fn(inputs, process_mesh)
        output = forward(*(args if isinstance(args, (tuple, list)) else [args]), **options)
        return output if output_fn is None else output_fn(output, process_mesh)

    if input_fn is not None or output_fn is not None:
        vars(layer)["forward"] = around
    return layer


@explained
def shard_optimizer(optimizer: Any, shard_fn: Any = None) -> Any:
    """Return the optimiser itself: its state is laid out like the parameters.

    Args:
        optimizer: the optimiser; it is not checked or changed.
        shard_fn: must be None.

    Raises:
        InputError: If ``shard_fn`` is given.
    """
    if shard_fn is not None:
        raise InputError(
            "shard_optimizer: shard_fn must be None here, because the state has the layout of its parameter; "
            "nearest: spmdsim.nn.sharded_over"
        )
    return optimizer


@explained
def split(
    x: Any, size: Sequence[int], operation: str, axis: int = 0, num_partitions: int = 1, gather_out: bool = True,
    weight_attr: Any = None, bias_attr: Any = None, name: str | None = None, *, padding_row: bool = True,
) -> Any:  # fmt: skip
    """Apply a parallel Embedding or Linear, whose weight is split over ``num_partitions`` ranks.

    For example, ``split(x, (8, 6), "linear", axis=1, num_partitions=2)`` is column-parallel: each rank owns an (8, 3)
    shard of the weight. With axis 0 it is row-parallel, with (4, 6) shards. Every call creates new parameters, unless
    ``weight_attr`` names an existing one; the default program owns them. All ranks must call it.

    Args:
        x: ids, or the input; equal on every rank.
        size: global shape of the weight.
        operation: ``"embedding"`` or ``"linear"``.
        axis: the weight dim that is split: 0, for a linear also 1.
        num_partitions: number of shards; several groups of ranks may have equal shards.
        gather_out: return the whole result on every rank. If False, the result is the rank's own shard, as in Paddle:
            ``shape`` and ``numpy()`` are the shard's (in lock step the first rank's). A column-parallel linear then
            returns ``M / num_partitions`` columns, a row-parallel one the partial products without bias. Operators that
            need other ranks' shards are refused, except a row-parallel linear. ``full()`` and layouts describe the
            global tensor.
        weight_attr: the weight's ``ParamAttr``, an initializer, or an array; None for the default. If the default
            program has a parameter of this name, it is used again.
        bias_attr: like ``weight_attr``, for the bias; False for no bias.
        name: prefix of the parameters' names (``name.w_0``, ``name.b_0``), on which their first values depend; None
            numbers them.
        padding_row: keep a zero row at the end of every shard of an embedding's table, as in Paddle's 2.0
            documentation. False uses masks, as in Paddle's current code. The result is equal.

    Raises:
        LayoutError: (a ValueError) If Paddle refuses the call, with Paddle's message, such as in dynamic mode; where
            Paddle asserts, such as before ``fleet.init()``, an AssertionError too.
    """
    world = current_world()
    check_call(size, operation)
    if in_dynamic_mode():
        raise LayoutError(
            "paddle.distributed.split cannot be used in dynamic graph mode, please use ParallelEmbedding, "
            "ParallelRowLinear, ParallelColumnLinear instead. (Here: VocabParallelEmbedding, RowParallelLinear, "
            "ColumnParallelLinear; or enable_static().)"
        )
    if not is_initialised():
        raise SplitError("To use paddle.distributed.split, you must call fleet.init() firstly.")
    if num_partitions > world.size:
        raise LayoutError(
            f"num_partitions is {num_partitions}, but {many(world.size, 'rank is', 'ranks are')} running{hint_more_ranks()}"
        )
    # Paddle 2.0 documents N / num_partitions rows, so shards must be equal, with or without the padding row.
    where = split_layout(size, operation, axis, num_partitions, gather_out, world_size=world.size)
    linear = operation == "linear"
    where = replace(where, padding_row=padding_row and num_partitions > 1 and not linear)
    biased = linear and bias_attr is not False and not where.stays_partial
    kind = "linear" if linear else "_parallel_embedding"
    return Split(where, name, weight_attr, biased, bias_attr, kind, keep=True)(x)


add_words(__name__)
