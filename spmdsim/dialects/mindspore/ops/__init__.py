"""``mindspore.ops``: primitives (``ops.MatMul().shard(...)``) and functions (``ops.matmul(a, b)``)."""

from __future__ import annotations

from typing import Any

from spmdsim.dialects.mindspore.ops import functional, more, primitives

#: What to use instead of a name that resembles none here.
NEAREST = {
    **dict.fromkeys(
        ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "Broadcast", "AllToAll"),
        "ops.reshard(tensor, layout), which inserts the collectives",
    ),
    **dict.fromkeys(("Conv2D", "MaxPool", "AvgPool", "BatchNorm"), "MatMul over reshaped patches"),
    "GradOperation": "mindspore.value_and_grad",
    "HyperMap": "a loop over the gradients",
    "Depend": "nothing is needed: operators run in program order",
    "Assign": "Parameter.set_data",
}

_MODULES = (primitives, more, functional)


def __getattr__(name: str) -> Any:
    found = primitives.PLAIN.get(name)
    if found is None and name in names():
        found = next(m.__dict__[name] for m in _MODULES if name in m.__all__)
    if found is None:
        from spmdsim.dialects.missing import not_covered

        raise not_covered(__name__, name, names(), NEAREST)
    globals()[name] = found  # the next time without a search
    return found


def names() -> list[str]:
    """Everything that is there."""
    return sorted({*primitives.PLAIN, *(name for module in _MODULES for name in module.__all__)})


def __dir__() -> list[str]:
    return sorted([*globals(), *names()])
