"""Tensors and layers laid out on meshes: ``shard_tensor``, ``reshard``, ``shard_layer`` and their relatives.

Semantics: ``python/paddle/distributed/auto_parallel/api.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import spmdsim.ops as ops
import spmdsim.tensor as ours
from spmdsim.core import Layout
from spmdsim.dialects.host import element_type, host
from spmdsim.dialects.paddle.parameters import Parameter
from spmdsim.dialects.paddle.process_mesh import ProcessMesh, Replicate
from spmdsim.dialects.paddle.process_mesh import layout as layout_of
from spmdsim.dialects.paddle.static.program import recorded
from spmdsim.dialects.paddle.static.variables import Variable
from spmdsim.dialects.paddle.tensors import Tensor, check_has_gradient, dressed
from spmdsim.dialects.pending import laid_out
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError, UsageTypeError


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
    return laid_out(x if dtype is None else ops.cast(x, element_type(dtype)), where)


def dtensor_from_fn(
    fn: Callable[..., Any], mesh: ProcessMesh, placements: Sequence[Any], *args: Any, **kwargs: Any
) -> Any:
    """What a function such as ``paddle.ones`` gives, laid out on a mesh."""
    return shard_tensor(fn(*args, **kwargs), mesh, placements)


def reshard(dist_tensor: Any, mesh: ProcessMesh, placements: Sequence[Any]) -> Tensor:
    """The same tensor laid out in another way; gradients go back. ``Partial`` keeps the values on one rank of each group.

    Raises:
        LayoutError: not one placement per dim of the mesh, or a dim that there is not.
        UsageTypeError: no tensor.
    """
    if not isinstance(dist_tensor, (ours.Tensor, Variable, Parameter)):
        raise UsageTypeError(
            f"reshard takes a tensor, not a {type(dist_tensor).__name__}; nearest: shard_tensor(data, mesh, placements)"
        )
    given = dist_tensor.value if isinstance(dist_tensor, Parameter) else dist_tensor
    moved: Tensor = recorded(_placed, given, layout_of(mesh, placements, given.ndim))
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
    if not isinstance(process_mesh, ProcessMesh):
        raise UsageTypeError(
            f"the argument `process_mesh` is not `dist.ProcessMesh` type but a {type(process_mesh).__name__}"
        )
    if not hasattr(layer, "named_sublayers"):
        raise UsageTypeError(f"shard_layer takes a paddle.nn.Layer, not a {type(layer).__name__}")
    for name, part in layer.named_sublayers(include_self=True):
        if shard_fn is not None:
            shard_fn(name, part, process_mesh)
        for word, parameter in [*vars(part).items()]:
            if isinstance(parameter, Parameter) and parameter.layout.mesh != process_mesh.to_mesh():
                whole = [Replicate()] * process_mesh.ndim
                setattr(part, word, shard_tensor(parameter, process_mesh, whole))
    _around(layer, process_mesh, input_fn, output_fn)
    return layer


def _around(layer: Any, mesh: ProcessMesh, before: Any, after: Any) -> None:
    """Have calls of a layer go through functions of what comes in and of what comes out."""
    forward = layer.forward

    def call(*inputs: Any, **options: Any) -> Any:
        given = inputs if before is None else before(inputs, mesh)
        output = forward(*(given if isinstance(given, (tuple, list)) else [given]), **options)
        return output if after is None else after(output, mesh)

    if before is not None or after is not None:
        vars(layer)["forward"] = call


def shard_optimizer(optimizer: Any, shard_fn: Any = None) -> Any:
    """The optimiser itself: what it remembers of a parameter is laid out like the parameter.

    Raises:
        InputError: a function that lays it out in another way.
    """
    if shard_fn is not None:
        raise InputError(
            "an optimiser's state is laid out like its parameters here; nearest: shard_fn=None, or spmdsim.nn.sharded_over"
        )
    return optimizer
