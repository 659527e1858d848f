"""``save_checkpoint``, ``load_checkpoint``, ``load_param_into_net``: sharded checkpoints of this package's own form.

A checkpoint is a folder (of the name given, such as ``net.ckpt``), written in parts by all ranks and readable on any
number of them. MindSpore's own files are not read: they would have to be unpickled or parsed by MindSpore itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from spmdsim.dialects.mindspore.parameter import Parameter, over_ranks
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError
from spmdsim.tensor import checkpoint


def save_checkpoint(save_obj: Any, ckpt_file_name: str | Path, **options: Any) -> None:
    """Write a cell's parameters, or a list of ``{"name": ..., "data": ...}``; all ranks must call it."""
    checkpoint.save(ckpt_file_name, {name: p.everywhere() for name, p in _named(save_obj)})


def load_checkpoint(ckpt_file_name: str | Path, net: Any = None) -> dict[str, Any]:
    """The parameters of a checkpoint by name, dim 0 over the ranks where it divides; an InputError for what is none."""
    if Path(ckpt_file_name).is_file():
        raise InputError(
            f"{ckpt_file_name} is a file of another program; checkpoints here are folders written by save_checkpoint"
        )
    world = current_world()
    parameters = checkpoint.load(
        ckpt_file_name,
        world,
        lambda _, shape: over_ranks(len(shape), bool(shape) and shape[0] % world.size == 0),
    )
    if net is not None:
        load_param_into_net(net, parameters)
    return parameters


def load_param_into_net(
    net: Any, parameter_dict: Mapping[str, Any], strict_load: bool = False
) -> tuple[list[str], list[str]]:
    """Give a cell the values of a checkpoint, by name; returns the names not loaded, and those left over.

    A value of another shape is an InputError; with ``strict_load`` names that are not met are, too.
    """
    wanted = dict(_named(net))
    for name, parameter in wanted.items():
        if name in parameter_dict:
            value = parameter_dict[name]
            parameter.set_data(value.asnumpy() if isinstance(value, Parameter) else value)
    missing = [name for name in wanted if name not in parameter_dict]
    extra = [name for name in parameter_dict if name not in wanted]
    if strict_load and (missing or extra):
        raise InputError(f"the checkpoint lacks {missing} and has {extra} that the network does not know")
    return missing, extra


def _named(parameters: Any) -> Iterable[tuple[str, Parameter]]:
    if hasattr(parameters, "get_parameters"):
        return [(p.name, p) for p in parameters.get_parameters()]
    if isinstance(parameters, (list, tuple)) and all(isinstance(e, Mapping) for e in parameters):
        parameters = {e["name"]: e["data"] for e in parameters}
    if isinstance(parameters, Mapping):
        return [(n, v if isinstance(v, Parameter) else Parameter(v, n)) for n, v in parameters.items()]
    raise InputError(
        f"save_checkpoint takes a cell, a list or a dict of parameters, not a {type(parameters).__name__}"
    )
