"""spmdsim: see, run and choose the layouts of distributed tensors.

The public names are loaded when they are first used: importing the package imports neither numpy nor MPI.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from spmdsim._version import __version__
from spmdsim.launcher import detect as _detect

#: Public name -> module that has it.
_HOMES = {
    **dict.fromkeys(("Layout", "Mesh", "Partial", "Replicate", "Shard"), "spmdsim.core"),
    **dict.fromkeys(("Rule", "Strategy"), "spmdsim.core"),
    **dict.fromkeys(("EmulatedCommunicator", "LockStep", "MPIWorld", "ShapeOnly", "world"), "spmdsim.worlds"),
    **dict.fromkeys(("Op", "Tensor"), "spmdsim.tensor"),
    **dict.fromkeys(("Verdict", "check"), "spmdsim.tensor.check"),
    "check_replicas": "spmdsim.tensor.replicas",
    **dict.fromkeys(("einsum", "embedding", "linear", "matmul", "relu", "reshape", "softmax"), "spmdsim.ops"),
    "plan": "spmdsim.redistribution",
    "search": "spmdsim.auto_parallel.search",
    "Machine": "spmdsim.cost.machine",
    "forbid_redistribution": "spmdsim.redistribution.guard",
    "record": "spmdsim.trace",
    "show": "spmdsim.draw",
    "simulate": "spmdsim.simulation",
    "SpmdError": "spmdsim.errors",
}

#: Names that start MPI: ``from spmdsim import *`` leaves them out, and works where there is none.
_ON_MPI = ("EmulatedCommunicator", "MPIWorld")

__all__ = ["__version__", *sorted(name for name in _HOMES if name not in _ON_MPI)]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'spmdsim' has no attribute {name!r}")
    if name == "Tensor":
        import_module("spmdsim.ops")  # gives tensors their operators
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_ON_MPI])


if (_here := _detect()) is not None and _here.size > 1:
    import_module("spmdsim.ending.hooks").protect()  # a failure of this rank ends the job
