"""``oneflow.device``: where a local tensor is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spmdsim.dialects.oneflow.placements import DEVICE_TYPES
from spmdsim.dialects.oneflow.sbp import OneFlowError


@dataclass(frozen=True, init=False)
class device:
    """``device("cpu")``, ``device("cuda:1")``, ``device("cpu", 2)``.

    Raises:
        RuntimeError: another type than cpu and cuda, or an index that is no whole number.

    >>> device("cuda:1"), str(device("cpu", 2)), device("cpu") == device("cpu:0")
    (device(type='cuda', index=1), 'cpu:2', True)
    """

    type: str
    index: int

    def __init__(self, type: Any, index: Any = None) -> None:
        kind, colon, number = str(type).partition(":")
        if kind not in DEVICE_TYPES:
            raise OneFlowError(
                f"Expected one of {', '.join(DEVICE_TYPES)} device type at start of device string: {type}"
            )
        given = number if colon else "0" if index is None else str(index)
        if not given.isdecimal() or (colon and index is not None):
            raise OneFlowError(f"a device has one index, such as {kind}:1, not {type!r} with index {index!r}")
        object.__setattr__(self, "type", kind)
        object.__setattr__(self, "index", int(given))

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"
