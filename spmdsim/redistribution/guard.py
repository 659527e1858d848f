"""Do not move data behind my back: refuse, or warn of, redistributions that nobody asked for."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spmdsim.core.apply import guards
from spmdsim.errors import PlanError

if TYPE_CHECKING:
    from spmdsim.redistribution.planner import Plan

_modes: list[str] = []


class RedistributionWarning(UserWarning):
    """An operator moved data to bring an operand into the layout it needs."""


@contextmanager
def forbid_redistribution(mode: str = "raise") -> Iterator[None]:
    """Inside the block, an operator that must move an operand raises (or warns).

    Moves asked for by ``.to`` and steps without communication are always allowed.

    Args:
        mode: ``"raise"``, ``"warn"`` or ``"allow"`` (an exception to an outer block).

    Raises:
        PlanError: naming operator, layouts and bytes, where a move would happen.
    """
    if mode not in ("raise", "warn", "allow"):
        raise PlanError(f"forbid_redistribution takes 'raise', 'warn' or 'allow', not {mode!r}")
    _modes.append(mode)
    guards.append(implicit)
    try:
        yield
    finally:
        guards.pop()
        _modes.pop()


def implicit(operator: str, plan: Plan) -> None:
    """Called before an operator redistributes an operand."""
    if not _modes or _modes[-1] == "allow" or not plan.max_nbytes:
        return
    text = (
        f"{operator} would move an operand of shape {plan.shape} from {plan.src} to {plan.dst}: "
        f"{plan.max_nbytes} bytes to the busiest rank; redistribute it yourself with .to(layout) if that is meant"
    )
    if _modes[-1] == "raise":
        raise PlanError(text)
    warnings.warn(text, RedistributionWarning, stacklevel=4)
