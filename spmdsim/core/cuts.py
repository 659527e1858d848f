"""``.shard`` cuts: how many pieces each dim of each operand is cut into, as MindSpore writes strategies.

The cuts of all operands give the cuts of the factors, and these the device matrix: one axis per factor, in
the rule's order, and one for repeated calculation where the product is smaller than the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from spmdsim.core.layout import Layout, Mesh
from spmdsim.core.notation.layouts import MOST_RANKS
from spmdsim.core.rule import BoundRule, Strategy
from spmdsim.errors import LayoutError, RuleError, many
from spmdsim.pictured import ShortRepr

if TYPE_CHECKING:
    from spmdsim.core.operator import Op
    from spmdsim.core.tensor import PlainTensor

T = TypeVar("T", bound="PlainTensor")

#: Name of the axis along which the same computation is repeated.
REPEAT = "repeat"

Cuts = Sequence[Sequence[int]]
#: A strategy as users write it: cuts per operand, a layout per operand, or axes per factor.
WrittenCuts = Cuts | Sequence[int]
StrategyLike = Strategy | Mapping[str, str | Sequence[str]] | Sequence[Layout] | Layout | WrittenCuts


def factor_cuts(bound: BoundRule, cuts: Cuts) -> dict[str, int]:
    """Return the number of blocks of each factor, from the cuts per operand and dim."""
    if len(cuts) != len(bound.inputs):
        raise RuleError(
            f"the rule '{bound.rule}' takes {many(len(bound.inputs), 'operand')}, but the strategy "
            f"{tuple(tuple(entry) for entry in cuts)} is for {len(cuts)}"
        )
    cuts_of: dict[str, int] = {}
    for i, (term, shape, entry) in enumerate(zip(bound.inputs, bound.shapes, cuts)):
        if len(entry) != len(shape):
            raise RuleError(
                f"operand {i} of shape {shape} has {many(len(shape), 'dim')}, but its strategy is {tuple(entry)}"
            )
        for dim, (factors, cut) in enumerate(zip(term, entry)):
            if cut <= 0:
                raise RuleError(
                    f"a dim is cut into 1 or more pieces, but dim {dim} of operand {i} into {cut}"
                )
            if not factors:
                if cut != 1:
                    raise RuleError(
                        f"dim {dim} of operand {i} has size 1 and cannot be cut into {many(cut, 'piece')}"
                    )
                continue
            _distribute(bound, factors, cut, cuts_of, f"dim {dim} of operand {i}")
    return cuts_of


def _distribute(
    bound: BoundRule, factors: tuple[str, ...], cut: int, cuts_of: dict[str, int], where: str
) -> None:
    """Record the number of blocks of a dim's factors in ``cuts_of``. Raise RuleError if another operand differs."""
    for k, factor in enumerate(factors):
        part = cut if k == len(factors) - 1 else math.gcd(cut, bound.sizes[factor])
        cut //= part
        if cuts_of.setdefault(factor, part) != part:
            raise RuleError(
                f"factor {factor!r} of the rule '{bound.rule}' is cut into {many(cuts_of[factor], 'piece')} elsewhere, but "
                f"into {part} in {where}"
            )


def strategy_from_cuts(
    bound: BoundRule, cuts: Cuts, ranks: int | Sequence[int], *, repeat: str = "right"
) -> Strategy:
    """Return the strategy that ``.shard(cuts)`` means for some ranks or a number of ranks, on a mesh of its own.

    Repeated calculation is put to the ``"right"`` of the device matrix (ranks hold 0,0,1,1,…) or the ``"left"``
    (0,1,…,0,1,…). A RuleError says which cuts do not fit the rule or do not divide the ranks.

    >>> from spmdsim.core import Rule, bind
    >>> matmul = bind(Rule.parse("m k, k n -> m n"), ((32, 784), (784, 512)))
    >>> strategy_from_cuts(matmul, ((2, 4), (4, 1)), 8).mesh
    Mesh((2, 4, 1), ('m', 'k', 'n'))
    """
    return strategy_from_factors(bound, factor_cuts(bound, cuts), ranks, repeat=repeat)


def strategy_from_factors(
    bound: BoundRule, pieces: Mapping[str, int], ranks: int | Sequence[int], *, repeat: str = "right"
) -> Strategy:
    """Build the strategy that splits each factor of ``pieces`` into that number of blocks, by one mesh axis each."""
    members = rank_tuple(ranks)
    names = [f for f in bound.sizes if f in pieces]
    sizes = [pieces[f] for f in names]
    used = math.prod(sizes)
    if len(members) % used:
        written = " * ".join(f"{n} ({factor})" for factor, n in pieces.items())
        raise RuleError(
            f"the strategy cuts the factors of the rule '{bound.rule}' into {written} = {used} pieces, "
            f"which does not divide the {many(len(members), 'rank')}"
        )
    repeats = len(members) // used
    axes = [_axis_name(f) for f in names]
    if repeats > 1 and repeat == "left":
        axes, sizes = [REPEAT, *axes], [repeats, *sizes]
    elif repeats > 1:
        axes, sizes = [*axes, REPEAT], [*sizes, repeats]
    mesh = Mesh(sizes, axes, members)
    strategy = Strategy.of(mesh, {f: _axis_name(f) for f in names})
    bound.check(strategy)
    return strategy


def _axis_name(factor: str) -> str:
    return f"dim{factor[1:]}" if factor.startswith(".") else factor


def layout_from_cuts(cuts: Sequence[int], computed: Layout, shape: Sequence[int]) -> Layout:
    """Return the layout that splits each dim into a number of blocks, by the axes that the result has or still reduces.

    A dim that is cut more finely than it was computed takes the pending axes as minor ones: the all_reduce
    becomes a reduce_scatter (MindSpore's out_strategy of MatMul and Gather).
    """
    if len(cuts) != len(shape):
        raise RuleError(f"the result has {many(len(shape), 'dim')}, but its out_strategy is {tuple(cuts)}")
    partial = list(computed.partial_axes)
    dims: list[tuple[str, ...]] = []
    for cut, entry, parts in zip(cuts, computed.dims, computed.cuts):
        axes = entry
        while parts < cut and partial:
            axes = (*axes, partial.pop(0))
            parts = computed.mesh.axis_size(*axes)
        if parts != cut:
            raise RuleError(
                f"out_strategy {tuple(cuts)} does not follow from the computed layout {computed}: a dim is cut "
                f"into {computed.cuts}, and only pending axes {list(computed.partial_axes)} may cut it further"
            )
        dims.append(axes)
    return Layout(computed.mesh, dims)


class FrozenMapping(tuple[tuple[str, tuple[str, ...]], ...]):
    """A hashable mapping of factors to axes."""

    __slots__ = ()


def frozen(strategy: Any) -> Any:
    """Return a strategy as the user wrote it, converted to a hashable value."""
    if isinstance(strategy, dict):
        return FrozenMapping(
            (k, (v,) if isinstance(v, str) else tuple(v)) for k, v in sorted(strategy.items())
        )
    return tuple(map(frozen, strategy)) if isinstance(strategy, (list, tuple)) else strategy


def result_layout(wanted: Any, computed: Layout, shape: Sequence[int]) -> Layout:
    """Return the layout that an ``out_strategy`` asks for; without one, the computed layout without pending reductions."""
    if isinstance(wanted, tuple) and len(wanted) == 1 and isinstance(wanted[0], (tuple, Layout)):
        wanted = wanted[0]
    if wanted is None or isinstance(wanted, Layout):
        return computed.reduced if wanted is None else wanted
    return layout_from_cuts(wanted, computed, shape)


@dataclass(frozen=True, repr=False)
class ShardedOp(ShortRepr):
    """An operator with a given strategy, and possibly a given layout of its result.

    Attributes:
        op: the operator.
        in_strategy: a strategy, or as users write it: cuts per operand, a layout per operand, axes by factor.
        out_strategy: cuts or a layout of the result; if there are none, pending reductions are done.
        repeat: the side of the device matrix on which repeated calculation goes, for cuts.
    """

    op: Op
    in_strategy: Any
    out_strategy: Any = None
    repeat: str = "right"

    @cached_property
    def _hash(self) -> int:
        return hash((self.op, self.in_strategy, self.out_strategy, self.repeat))

    def __hash__(self) -> int:
        return self._hash

    def __call__(self, *tensors: T, **params: object) -> T:
        """Apply the operator with this strategy."""
        return self.op.apply(tensors, params, self)  # type: ignore[return-value]

    def strategy(self, bound: BoundRule, ranks: int | Sequence[int], mesh: Mesh | None = None) -> Strategy:
        """Return the strategy for a bound rule. Raise RuleError if it does not fit the rule, the shapes or the ranks."""
        strategy = self.in_strategy
        if isinstance(strategy, FrozenMapping):
            if mesh is None:
                raise RuleError(f"the strategy {dict(strategy)} names axes, but no operand has a mesh")
            strategy = Strategy.of(mesh, dict(strategy))
        if isinstance(strategy, Strategy):
            bound.check(strategy)
            return strategy
        if strategy and isinstance(strategy[0], Layout):
            if len(strategy) != len(bound.inputs):
                raise RuleError(
                    f"{many(len(strategy), 'layout was', 'layouts were')} given for the "
                    f"{many(len(bound.inputs), 'operand')} of '{bound.rule}'"
                )
            for layout, shape in zip(strategy, bound.shapes):
                layout.check_shape(shape)
            return bound.infer(strategy)
        return strategy_from_cuts(bound, strategy, ranks, repeat=self.repeat)

    def result_layout(self, computed: Layout, shape: Sequence[int]) -> Layout:
        """Return the layout that ``out_strategy`` asks for; without one, ``computed`` without pending reductions."""
        return result_layout(self.out_strategy, computed, shape)

    def instead(self, bound: BoundRule, strategy: Strategy, params: dict[str, Any]) -> Op:
        """Return the operator that runs with the strategy."""
        return self.op


def sharded(op: Op, in_strategy: Any, out_strategy: Any, repeat: str) -> ShardedOp:
    """Build the result of ``op.shard``."""
    return ShardedOp(op, frozen(in_strategy), frozen(out_strategy), repeat)


def rank_tuple(ranks: int | Iterable[int]) -> tuple[int, ...]:
    """Return a tuple of ranks: the given ones, or ``0 ... n-1`` for a number n.

    >>> rank_tuple(3), rank_tuple([2, 0])
    ((0, 1, 2), (2, 0))
    """
    if not isinstance(ranks, int):
        return tuple(ranks)
    if ranks > MOST_RANKS:
        raise LayoutError(f"{ranks:,} ranks are too many: at most {MOST_RANKS:,}")
    return tuple(range(ranks))
