"""Work counted, not timed: how many calls of functions something takes, the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls(work: Callable[[], Any]) -> int:
    """How many functions ``work()`` calls, those of Python and those written in C."""
    count = 0

    def watch(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
