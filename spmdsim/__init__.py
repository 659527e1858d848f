"""spmdsim: see, run and choose the layouts of distributed tensors.

The public names are loaded when they are first used: importing the package imports neither numpy nor MPI.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from spmdsim._version import __version__
from spmdsim.launcher import detect as _detect
from spmdsim.lazy_imports import lazy_names, names_in

if TYPE_CHECKING:
    from spmdsim.auto_parallel.search import search as search
    from spmdsim.compiled import compile as compile
    from spmdsim.core import Layout as Layout
    from spmdsim.core import Mesh as Mesh
    from spmdsim.core import Partial as Partial
    from spmdsim.core import Replicate as Replicate
    from spmdsim.core import Rule as Rule
    from spmdsim.core import Shard as Shard
    from spmdsim.core import Strategy as Strategy
    from spmdsim.cost.machine import Machine as Machine
    from spmdsim.draw.figures import figure as figure
    from spmdsim.draw.show import show as show
    from spmdsim.errors import SpmdError as SpmdError
    from spmdsim.local import local_map as local_map
    from spmdsim.ops import einsum as einsum
    from spmdsim.ops import embedding as embedding
    from spmdsim.ops import matmul as matmul
    from spmdsim.ops import relu as relu
    from spmdsim.ops import reshape as reshape
    from spmdsim.ops import softmax as softmax
    from spmdsim.ops.contract import linear as linear
    from spmdsim.ops.gradient_check import check_gradient as check_gradient
    from spmdsim.redistribution import plan as plan
    from spmdsim.redistribution.guard import forbid_redistribution as forbid_redistribution
    from spmdsim.simulation import simulate as simulate
    from spmdsim.tensor import Op as Op
    from spmdsim.tensor import Tensor as Tensor
    from spmdsim.tensor.check import check as check
    from spmdsim.tensor.replicas import check_replicas as check_replicas
    from spmdsim.tensor.rounding import Verdict as Verdict
    from spmdsim.trace import record as record
    from spmdsim.worlds import LockStep as LockStep
    from spmdsim.worlds import ShapeOnly as ShapeOnly
    from spmdsim.worlds import world as world

#: Module -> its public names.
_HOMES = {
    "core": "Layout Mesh Partial Replicate Rule Shard Strategy",
    "worlds": "LockStep ShapeOnly world",
    "tensor": "Op Tensor",
    "tensor.check": "Verdict check",
    "tensor.replicas": "check_replicas",
    "ops": "einsum embedding linear matmul relu reshape softmax",
    "ops.gradient_check": "check_gradient",
    "local": "local_map",
    "redistribution": "plan",
    "redistribution.guard": "forbid_redistribution",
    "auto_parallel.search": "search",
    "cost.machine": "Machine",
    "trace": "record",
    "draw": "figure show",
    "simulation": "simulate",
    "errors": "SpmdError",
}
#: Names that ``from spmdsim import *`` leaves out: worlds that start MPI, and a name of Python's own.
_APART = {"worlds": "EmulatedCommunicator MPIWorld", "compiled": "compile"}

__all__ = ["__version__", *sorted(names_in(_HOMES))]

__getattr__ = lazy_names(
    __name__,
    {
        **_HOMES,
        "worlds": f"{_HOMES['worlds']} {_APART['worlds']}",
        "compiled": _APART["compiled"],
        "": "array_api fft linalg ops",
    },
)


def __dir__() -> list[str]:
    return sorted([*__all__, *names_in(_APART)])


if (_here := _detect()) is not None and _here.size > 1:
    import_module("spmdsim.ending.hooks").protect()  # a failure of this rank ends the job
