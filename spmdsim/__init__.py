"""spmdsim: see, run and choose the layouts of distributed tensors.

The public names are loaded when they are first used: importing the package imports neither numpy nor MPI.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spmdsim._version import __version__
from spmdsim.launcher import detect as _detect

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

#: Public name -> module that has it.
_HOMES = {
    **dict.fromkeys(("Layout", "Mesh", "Partial", "Replicate", "Shard"), "spmdsim.core"),
    **dict.fromkeys(("Rule", "Strategy"), "spmdsim.core"),
    **dict.fromkeys(("EmulatedCommunicator", "LockStep", "MPIWorld", "ShapeOnly", "world"), "spmdsim.worlds"),
    **dict.fromkeys(("Op", "Tensor"), "spmdsim.tensor"),
    **dict.fromkeys(("Verdict", "check"), "spmdsim.tensor.check"),
    "compile": "spmdsim.compiled",
    "check_gradient": "spmdsim.ops.gradient_check",
    "check_replicas": "spmdsim.tensor.replicas",
    **dict.fromkeys(("einsum", "embedding", "linear", "matmul", "relu", "reshape", "softmax"), "spmdsim.ops"),
    "local_map": "spmdsim.local",
    "plan": "spmdsim.redistribution",
    "search": "spmdsim.auto_parallel.search",
    "Machine": "spmdsim.cost.machine",
    "forbid_redistribution": "spmdsim.redistribution.guard",
    "record": "spmdsim.trace",
    **dict.fromkeys(("figure", "show"), "spmdsim.draw"),
    "simulate": "spmdsim.simulation",
    "SpmdError": "spmdsim.errors",
}

#: Names that start MPI: ``from spmdsim import *`` leaves them out, and works where there is none.
_ON_MPI = ("EmulatedCommunicator", "MPIWorld")

#: What ``from spmdsim import *`` leaves out, since Python has something else of that name, too.
_APART = (*_ON_MPI, "compile")

#: Namespaces that need no import of their own: ``spmdsim.linalg.qr``.
_ROOMS = ("array_api", "fft", "linalg", "ops")

__all__ = ["__version__", *sorted(name for name in _HOMES if name not in _APART)]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if name in _ROOMS:
        return import_module(f"spmdsim.{name}")
    if home is None:
        from spmdsim.wrong_calls import missing_name

        raise missing_name(__name__, name, (*__all__, *_APART, *_ROOMS))
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_APART])


if (_here := _detect()) is not None and _here.size > 1:
    import_module("spmdsim.ending.hooks").protect()  # a failure of this rank ends the job
