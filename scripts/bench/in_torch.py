"""Run works of the benches in torch's DTensor over gloo if torch is installed; the project does not need it."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from mpi4py import MPI

#: The text that benches print if torch is not installed.
ABSENT = "skipped, torch is not installed"


class Torch(NamedTuple):
    """The modules, and the mesh of all ranks."""

    torch: Any
    tensor: Any
    mesh: Any


def start() -> Torch | None:
    """Start torch's process group on the ranks of MPI's world; return None if torch is not installed."""
    if find_spec("torch") is None:
        return None
    torch, distributed = import_module("torch"), import_module("torch.distributed")
    comm = MPI.COMM_WORLD
    if not distributed.is_initialized():
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
        distributed.init_process_group("gloo", rank=comm.Get_rank(), world_size=comm.Get_size())
    torch.set_num_threads(1)
    mesh = import_module("torch.distributed.device_mesh").init_device_mesh("cpu", (comm.Get_size(),))
    return Torch(torch, import_module("torch.distributed.tensor"), mesh)


def mlp(rows: int, width: int, hidden: int) -> dict[str, Callable[[], object]]:
    """Return forward and backward pass of column-parallel product, ReLU and row-parallel product."""
    torch_parts = start()
    if torch_parts is None:
        return {}
    torch, laid, mesh = torch_parts

    def laid_out(shape: tuple[int, int], placement: object) -> Any:
        return laid.distribute_tensor(torch.randn(shape), mesh, [placement]).requires_grad_()

    x, up = laid_out((rows, width), laid.Replicate()), laid_out((width, hidden), laid.Shard(1))
    down, dy = laid_out((hidden, width), laid.Shard(0)), laid_out((rows, width), laid.Replicate()).detach()

    def step() -> None:
        y = torch.relu(x @ up) @ down
        y.redistribute(mesh, [laid.Replicate()]).backward(dy)
        for tensor in (x, up, down):
            tensor.grad = None

    return {"DTensor": step}


def embedding(ids: Any, rows: int, width: int, scattered: bool) -> dict[str, Callable[[], object]]:
    """Return the lookup of replicated ids in a table split by rows.

    Args:
        ids: the ids.
        rows: rows of the table.
        width: size of a row.
        scattered: True if each rank needs the rows of its block of the ids.
    """
    torch_parts = start()
    if torch_parts is None:
        return {}
    torch, laid, mesh = torch_parts
    placements = [laid.Shard(0) if scattered else laid.Replicate()]
    table = laid.distribute_tensor(torch.randn(rows, width), mesh, [laid.Shard(0)])
    numbers = laid.distribute_tensor(torch.from_numpy(ids.copy()), mesh, [laid.Replicate()])

    def look_up() -> object:
        with torch.no_grad():
            pieces = torch.nn.functional.embedding(numbers, table).redistribute(mesh, placements)
            return pieces.to_local()

    return {"DTensor": look_up}
