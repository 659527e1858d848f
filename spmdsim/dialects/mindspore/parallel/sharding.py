"""``mindspore.parallel.shard``: a function with a strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spmdsim.dialects.mindspore.primitive import Primitive
from spmdsim.errors import InputError


def shard(
    fn: Callable[..., Any], in_strategy: Any, out_strategy: Any = None, **options: Any
) -> Callable[..., Any]:
    """A function of ``ops`` or ``mint``, or a primitive, with a strategy.

    Raises:
        InputError: another function, of which nobody knows what its cuts mean; or further options.
    """
    if options:
        raise InputError(f"shard takes in_strategy and out_strategy here, not {', '.join(options)}")
    if isinstance(fn, Primitive):
        return fn.shard(in_strategy, out_strategy)
    if not hasattr(fn, "sharded"):
        name = getattr(fn, "__name__", type(fn).__name__)
        raise InputError(
            f"shard takes a function of one operator, not {name}; nearest: .shard on the primitives inside"
        )
    sharded: Callable[..., Any] = vars(fn)["sharded"](in_strategy, out_strategy)
    return sharded


__all__ = ["shard"]
