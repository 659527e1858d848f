"""What MindSpore refuses when an operator meets its strategy."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from spmdsim.core import BoundRule, Rule
from spmdsim.core.operator import Op
from spmdsim.errors import RuleError, SpmdError, UsageTypeError


class ShardError(RuleError, RuntimeError):
    """A strategy, layout or attribute that does not fit the operator; a RuntimeError there, and here as well."""


@contextmanager
def refusing(operator: str) -> Iterator[None]:
    """Name the operator in whatever is refused inside, and make it a :class:`ShardError`."""
    try:
        yield
    except UsageTypeError:
        raise
    except SpmdError as error:
        refusal = error if isinstance(error, ShardError) else ShardError(error.message, **error.facts)
        refusal.facts.setdefault("operator", operator)
        raise refusal from None


def bind(op: Op, shapes: Sequence[tuple[int, ...]], params: dict[str, Any]) -> BoundRule:
    """The operator's rule for these shapes.

    Raises:
        ShardError: a wrong number of operands.
    """
    if not isinstance(op.rule, Rule):
        try:
            inspect.signature(op.rule).bind(*shapes, **params)
        except TypeError:
            raise ShardError(
                f"{op.name} does not take {len(shapes)} operands, of shapes {[*shapes]}"
            ) from None
    return op.bind(shapes, params)
