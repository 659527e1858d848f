"""What MindSpore refuses when an operator meets its strategy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
        made = error if isinstance(error, ShardError) else ShardError(error.message, **error.facts)
        made.facts.setdefault("operator", operator)
        raise made from None
