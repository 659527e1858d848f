"""Refuse redistributions that the program did not request, or warn of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from spmdsim.bounded import Bounded
from spmdsim.errors import PlanError, many
from spmdsim.redistribution.plans.planner import Plan
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    from spmdsim.core.rule import BoundRule
    from spmdsim.core.step import Route
    from spmdsim.core.tensor import Meta

#: Functions to call with the operator's name and the route before an operator moves an operand. Only the last one is called.
guards: list[Callable[[str, Any], None]] = []
_modes: list[str] = []


class RedistributionWarning(UserWarning):
    """Warning of an operator that redistributed an operand into the layout that it needs."""


@contextmanager
@explained
def forbid_redistribution(mode: str = "raise") -> Iterator[None]:
    """Make operators raise or warn before they redistribute an operand with communication.

    This holds inside the block, for all threads of the process. An inner block replaces the mode of an outer one.
    Moves by ``.to`` and steps without communication are always allowed. The context yields None.

    Args:
        mode: ``"raise"``, ``"warn"`` (:class:`RedistributionWarning`) or ``"allow"`` (an exception to an outer
            block).

    Raises:
        PlanError: If ``mode`` is another word; inside a block of mode "raise", if an operator would move an operand.
            The message names operator, layouts and bytes.

    >>> from spmdsim import Mesh, Tensor
    >>> x = Tensor.from_global([1.0, 2.0], Mesh((2,), ("x",))("x"))
    >>> with forbid_redistribution():
    ...     print((x + 1).full())
    [2. 3.]
    """
    if mode not in ("raise", "warn", "allow"):
        raise PlanError(f"forbid_redistribution: mode must be 'raise', 'warn' or 'allow', got {mode!r}")
    _modes.append(mode)
    guards.append(guard_redistribution)
    try:
        yield
    finally:
        guards.pop()
        _modes.pop()


def guard_redistribution(operator: str, plan: Plan) -> None:
    """Raise PlanError or warn before an operator redistributes an operand by ``plan``.

    The innermost :func:`forbid_redistribution` decides. Nothing happens outside of its blocks, in the mode "allow",
    and for a plan in which no rank receives a byte. The warning is a :class:`RedistributionWarning`.

    Args:
        operator: the operator's name, for the message.
        plan: the redistribution of the operand.

    Raises:
        PlanError: If the mode is "raise" and a rank would receive bytes.
    """
    if not _modes or _modes[-1] == "allow" or not plan.max_nbytes:
        return
    text = (
        f"{operator} would move an operand of shape {plan.shape} from {plan.src} to {plan.dst}: "
        f"{many(plan.max_nbytes, 'byte')} to the busiest rank; redistribute it yourself with .to(layout) if that is meant"
    )
    if _modes[-1] == "raise":
        raise PlanError(text)
    warnings.warn(text, RedistributionWarning, stacklevel=4)


class GatheringWarning(RedistributionWarning):
    """Warning of an operator that cannot keep a split.

    Its operands are gathered, and every rank computes the whole result.
    """


_warned: Bounded[tuple[str, str, int], bool] = Bounded(1000)


def warn_of_gathering(
    operator: str,
    bound: BoundRule,
    operands: Sequence[Meta],
    routes: Sequence[Route | None],
    source_line: tuple[str, int],
) -> None:
    """Warn that an operator gathers its operands, once per operator and line of the program.

    The warning is a :class:`GatheringWarning`. It states the bytes that a rank receives, and alternatives. No warning
    is given if

    * no redistributed operand was really split, because it had one shard, or shards of one element each;
    * no rank receives a byte;
    * the operator and line are among the last 1,000 of this process that were warned of.

    Args:
        operator: the operator's name.
        bound: the operator's rule, bound to the shapes.
        operands: the metas (layout, shape and type) of the operands.
        routes: the redistribution of each operand, or None if it stays as it is; routes that are no plans do not
            count.
        source_line: file and line number of the call.
    """
    split = [
        k
        for k, route in enumerate(routes)
        if isinstance(route, Plan) and 1 < route.src.shard_count < math.prod(route.shape)
    ]
    received = sum(route.max_nbytes for route in routes if isinstance(route, Plan)) if split else 0
    if not received or (operator, *source_line) in _warned:
        return
    _warned[(operator, *source_line)] = True
    moved = [k for k, route in enumerate(routes) if isinstance(route, Plan) and route.max_nbytes]
    moved_text = " and ".join(f"{operands[k]!r}" for k in moved)
    text = (
        f"{operator} cannot keep how {moved_text} {'is' if len(moved) == 1 else 'are'} split: everything is "
        f"gathered, {many(received, 'byte')} to a rank, and computed on every rank; give it another split "
        f"with .to(layout) or a strategy with .shard (its rule is '{bound.rule}'), or gather once with .to yourself"
    )
    warnings.warn_explicit(text, GatheringWarning, *source_line)
