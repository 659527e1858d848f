"""What OneFlow does between two sbp, by the name that programs know."""

from __future__ import annotations

from typing import Any

from spmdsim.dialects.missing import not_covered
from spmdsim.imitated import imitation


def __getattr__(name: str) -> Any:
    boxing = imitation("boxing", "oneflow")
    if hasattr(boxing, name):
        return getattr(boxing, name)
    raise not_covered(
        __name__, name, [n for n in dir(boxing) if n[0] != "_"], {"nccl": "the settings of MPI"}
    )
