"""``mindspore.ops.operations``: the primitives, which programs import as ``P``."""

from __future__ import annotations

from typing import Any

from spmdsim.dialects.mindspore.collectives import ReduceOp
from spmdsim.dialects.mindspore.primitive import primitive
from spmdsim.dialects.mindspore.table import TABLE
from spmdsim.dialects.missing import not_covered

__all__ = ["ReduceOp", *(name for name, row in TABLE.items() if name in row.primitives)]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return primitive(name)
    from spmdsim.dialects.mindspore import ops

    raise not_covered(__name__, name, __all__, ops.NEAREST)


def __dir__() -> list[str]:
    return sorted(__all__)
