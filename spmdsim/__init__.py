"""spmdsim: see, run and choose the layouts of distributed tensors.

The public names are loaded when they are first used: importing the package imports neither numpy nor MPI.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from spmdsim._version import __version__
from spmdsim.launcher import detect as _detect
from spmdsim.lazy_imports import lazy_names, list_public_names

if TYPE_CHECKING:
    from spmdsim.arrays import Op as Op
    from spmdsim.arrays import Tensor as Tensor
    from spmdsim.arrays.check import check as check
    from spmdsim.arrays.local import local_map as local_map
    from spmdsim.arrays.ops import einsum as einsum
    from spmdsim.arrays.ops import embedding as embedding
    from spmdsim.arrays.ops import matmul as matmul
    from spmdsim.arrays.ops import relu as relu
    from spmdsim.arrays.ops import reshape as reshape
    from spmdsim.arrays.ops import softmax as softmax
    from spmdsim.arrays.ops.contract import linear as linear
    from spmdsim.arrays.ops.gradient_check import check_gradient as check_gradient
    from spmdsim.arrays.replicas import check_replicas as check_replicas
    from spmdsim.arrays.rounding import Verdict as Verdict
    from spmdsim.auto_parallel.search import search as search
    from spmdsim.core import Layout as Layout
    from spmdsim.core import Mesh as Mesh
    from spmdsim.core import Partial as Partial
    from spmdsim.core import Replicate as Replicate
    from spmdsim.core import Rule as Rule
    from spmdsim.core import Shard as Shard
    from spmdsim.core import Strategy as Strategy
    from spmdsim.cost.machine import Machine as Machine
    from spmdsim.errors import SpmdError as SpmdError
    from spmdsim.figures.figures import figure as figure
    from spmdsim.figures.show import show as show
    from spmdsim.nn.compiled import compile as compile
    from spmdsim.redistribution import plan as plan
    from spmdsim.redistribution.guard import forbid_redistribution as forbid_redistribution
    from spmdsim.simulation import simulate as simulate
    from spmdsim.worlds import LockStep as LockStep
    from spmdsim.worlds import ShapeOnly as ShapeOnly
    from spmdsim.worlds import world as world
    from spmdsim.worlds.stop_request import StopRequest as StopRequest
    from spmdsim.worlds.trace import record as record

#: Module -> its public names.
_HOMES = {
    "core": "Layout Mesh Partial Replicate Rule Shard Strategy",
    "worlds": "LockStep ShapeOnly world",
    "arrays": "Op Tensor",
    "arrays.check": "Verdict check",
    "arrays.replicas": "check_replicas",
    "arrays.ops": "einsum embedding linear matmul relu reshape softmax",
    "arrays.ops.gradient_check": "check_gradient",
    "arrays.local": "local_map",
    "redistribution": "plan",
    "redistribution.guard": "forbid_redistribution",
    "auto_parallel.search": "search",
    "cost.machine": "Machine",
    "worlds.stop_request": "StopRequest",
    "worlds.trace": "record",
    "figures": "figure show",
    "simulation": "simulate",
    "errors": "SpmdError",
}
#: Names that ``from spmdsim import *`` leaves out: worlds that start MPI, and a name of Python's own.
_APART = {"worlds": "EmulatedCommunicator MPIWorld", "nn.compiled": "compile"}

__all__ = ["__version__", *sorted(list_public_names(_HOMES))]

__getattr__ = lazy_names(
    __name__,
    {
        **_HOMES,
        "worlds": f"{_HOMES['worlds']} {_APART['worlds']}",
        "nn.compiled": _APART["nn.compiled"],
        "": "array_api fft linalg local ops",
    },
)


def __dir__() -> list[str]:
    return sorted([*__all__, *list_public_names(_APART)])


if (_here := _detect()) is not None and _here.size > 1:
    import_module("spmdsim.shutdown.hooks").set_hooks()  # a failure of this rank ends the job
