"""MindSpore's spelling.

>>> from spmdsim.dialects import mindspore
>>> mindspore.Layout((2, 4), ("dp", "mp"))("dp", "None").to_dict()["tensor_map"]
(1, -1)
"""

from __future__ import annotations

from typing import Any

from spmdsim.dialects import lazy

#: Public name -> the submodule that has it.
EXPORTS: dict[str, str] = {
    "Layout": "layout",
    "MindSporeLayout": "layout",
    "check_cuts": "cuts",
    "check_even": "layout",
    "optimizer_shard": "forms",
    "without_ones": "forms",
    "without_tuples": "forms",
    "from_cuts": "layout",
    "from_tensor_map": "layout",
    "from_placements": "layout",
}

__all__ = list(EXPORTS)


def __getattr__(name: str) -> Any:
    return lazy(__name__, EXPORTS, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *EXPORTS])
