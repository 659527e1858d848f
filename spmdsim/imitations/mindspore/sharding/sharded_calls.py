"""What a strategy means for one call of a primitive, and what MindSpore refuses of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spmdsim.core import BoundRule, Layout, Strategy
from spmdsim.core.operator import Op, ShardedOp
from spmdsim.dialects.mindspore.layout import MindSporeLayout, device_layout
from spmdsim.dialects.mindspore.table import Row, ShardError, refusing
from spmdsim.dialects.session import alone
from spmdsim.errors import RuleError, UsageTypeError
from spmdsim.imitations.mindspore.sharding.cuts_refused import check_cuts
from spmdsim.imitations.mindspore.sharding.results import result_layout
from spmdsim.imitations.mindspore.sharding.strategies import cuts_of_result, default_cuts
from spmdsim.layout.cuts import strategy_from_cuts, strategy_from_factors


def configure(op: Op, in_strategy: Any, out_strategy: Any, repeat: str) -> ShardedOp:
    """Our operator with a strategy as it is written for MindSpore, on devices instead of virtual ranks.

    Raises:
        TypeError: something else, or cuts and layouts mixed.
    """
    if not isinstance(in_strategy, (tuple, list)) or not in_strategy:
        raise UsageTypeError(
            f"a strategy is a tuple with cuts or a layout per operand, but got {in_strategy!r}"
        )
    layouts = [isinstance(entry, Layout) for entry in in_strategy]
    if any(layouts) and not all(layouts):
        raise UsageTypeError(
            f"a strategy is written in cuts or in layouts, but this one mixes them: {in_strategy}"
        )
    for entry in in_strategy:
        if not isinstance(entry, (Layout, tuple, list)):
            raise UsageTypeError(
                f"a strategy has cuts or a layout per operand, but {in_strategy} has {entry!r}"
            )
    return op.shard(_of_devices(in_strategy), _of_devices(out_strategy), repeat=repeat)


def _of_devices(strategy: Any) -> Any:
    if isinstance(strategy, Layout):
        return device_layout(strategy)
    if isinstance(strategy, (tuple, list)) and any(isinstance(entry, Layout) for entry in strategy):
        return tuple(map(_of_devices, strategy))
    return strategy


def fitted(sharding: ShardedOp | None, ndims: Sequence[int]) -> ShardedOp | None:
    """As configured; layouts that were written as one tuple are those of so many dims."""
    given: tuple[Any, ...] = () if sharding is None else sharding.in_strategy
    if sharding is None or len(given) != len(ndims) or not isinstance(given[0], Layout):
        return sharding
    of_dims = tuple(e.of(n) if isinstance(e, MindSporeLayout) else e for e, n in zip(given, ndims))
    if all(a is b for a, b in zip(given, of_dims)):
        return sharding
    return sharding.op.shard(_of_devices(of_dims), sharding.out_strategy, repeat=sharding.repeat)


def strategy_of(row: Row, name: str, bound: BoundRule, sharding: ShardedOp | None, ranks: int) -> Strategy:
    """The strategy meant, for these shapes on so many ranks; data parallel without one.

    Args:
        row: the primitive's row.
        name: its own name.
        bound: our operator's rule for the operands.
        sharding: as configured.
        ranks: how many run.

    Raises:
        RuntimeError: (also a ValueError) it does not fit the operator, the shapes or the ranks.
    """
    if sharding is None:
        return data_parallel(bound, ranks)
    given, op = sharding.in_strategy, sharding.op.name
    if row.of_result and isinstance(given[0], tuple):
        with refusing(name):
            factors = cuts_of_result(bound, given, ranks)
            return strategy_from_factors(bound, factors, ranks, repeat=sharding.repeat)
    for layout in given if isinstance(given[0], Layout) else ():
        if layout.mesh.size != ranks:
            raise ShardError(
                f"the device matrix {layout.mesh.shape} has {layout.mesh.size} devices, but {ranks} ranks are "
                f"running{alone()}"
            )
    try:
        if not isinstance(given[0], Layout):
            check_cuts(given, bound.shapes, ranks)
    except RuleError as error:
        raise ShardError(f"{op}.shard({given}): {error.message}") from None
    try:
        return sharding.strategy(bound, ranks)
    except RuleError as error:
        raise ShardError(f"{op}.shard({given}): {error.message}{alone()}", **error.facts) from None


def data_parallel(bound: BoundRule, ranks: int) -> Strategy:
    """Dim 0 of the first operand over all ranks, if it divides; else the same work everywhere."""
    try:
        cuts = default_cuts(bound, ranks)
    except RuleError:
        cuts = tuple((1,) * len(shape) for shape in bound.shapes)
    return strategy_from_cuts(bound, cuts, ranks)


def check_result(row: Row, bound: BoundRule, sharding: ShardedOp | None, strategy: Strategy) -> None:
    """Refuse an out_strategy that the operator does not take, or cannot give.

    Raises:
        RuntimeError: (also a ValueError) saying which layouts there are.
    """
    if sharding is not None and sharding.out_strategy is not None:
        computed = bound.output_layouts(strategy)[0]
        try:
            result_layout(row.out_strategy, computed, bound.output_shapes[0], sharding.out_strategy)
        except RuleError as error:
            raise ShardError(f"{sharding.op.name}.shard: {error.message}") from None
