"""Cuts of ``.shard``: the number of blocks of each dim of each operand, as MindSpore writes strategies.

The cuts of all operands give the cuts of the factors. The cuts of the factors give the device matrix: one axis per
factor, in the rule's order, and an axis for repeated calculation if the product of the cuts is smaller than the number
of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from spmdsim.core.layout import Layout, Mesh
from spmdsim.core.notation.layouts import MOST_RANKS, as_items
from spmdsim.core.rule import BoundRule, Strategy
from spmdsim.errors import LayoutError, RuleError, UsageTypeError, many
from spmdsim.pictured import ShortRepr

if TYPE_CHECKING:
    from spmdsim.core.operator import Op
    from spmdsim.core.tensor import PlainTensor

T = TypeVar("T", bound="PlainTensor")

#: Name of the axis along which ranks repeat a computation.
REPEAT = "repeat"

Cuts = Sequence[Sequence[int]]
#: Cuts of each operand, or of one tensor.
WrittenCuts = Cuts | Sequence[int]
#: A strategy as users write it: cuts per operand, a layout per operand, or axes per factor.
StrategyLike = Strategy | Mapping[str, str | Sequence[str]] | Sequence[Layout] | Layout | WrittenCuts


def factor_cuts(bound: BoundRule, cuts: Cuts) -> dict[str, int]:
    """Return the number of blocks of each factor, from the number of blocks of each dim.

    For the product "m k, k n -> m n", the cuts ``((2, 4), (4, 1))`` give ``{"m": 2, "k": 4, "n": 1}``. Both operands
    must cut the shared factor k equally. Factors of one block are in the result, too. For dims of several factors see
    :func:`_add_block_counts`.

    Args:
        bound: the operator's rule, bound to the shapes of its operands.
        cuts: for each operand the number of blocks of each dim.

    Raises:
        RuleError: If the cuts have another number of operands or dims than the rule, a cut is not positive, a dim of
            size 1 without factor is cut, or two operands cut a factor differently.
    """
    if len(cuts) != len(bound.inputs):
        raise RuleError(
            f"the rule '{bound.rule}' takes {many(len(bound.inputs), 'operand')}, but the strategy "
            f"{tuple(cuts)} is for {len(cuts)}"
        )
    block_counts: dict[str, int] = {}
    for i, (term, shape, entry) in enumerate(zip(bound.inputs, bound.shapes, cuts)):
        if not isinstance(entry, (tuple, list)) or len(entry) != len(shape):
            raise RuleError(
                f"operand {i} of shape {shape} has {many(len(shape), 'dim')}, but its strategy is {entry}"
            )
        for dim, (factors, cut) in enumerate(zip(term, entry)):
            if not hasattr(cut, "__index__") or cut <= 0:
                raise RuleError(f"dim {dim} of operand {i} must have 1 or more blocks, got {cut}")
            if not factors:
                if cut != 1:
                    raise RuleError(f"dim {dim} of operand {i} of size 1 must have 1 block, got {cut}")
                continue
            _add_block_counts(bound, factors, cut, block_counts, f"dim {dim} of operand {i}")
    return block_counts


def _add_block_counts(
    bound: BoundRule, factors: tuple[str, ...], cut: int, block_counts: dict[str, int], dim_text: str
) -> None:
    """Add the number of blocks of each factor of one dim to ``block_counts``.

    A dim of one factor gives it all blocks. Of several factors, each but the last one takes the greatest number
    that divides both its size and the blocks that are left; the last one takes the rest. So 8 blocks of a dim
    ``(a b)`` with 4 elements of ``a`` are 4 blocks of ``a`` and 2 of ``b``. That the last factor has so many
    elements is not checked.

    Args:
        bound: the operator's rule, bound to the shapes of its operands.
        factors: the factors of the dim, major first.
        cut: the number of blocks of the dim.
        block_counts: the blocks by factor, which this function extends.
        dim_text: the dim in words, for the message.

    Raises:
        RuleError: If ``block_counts`` has another number for one of the factors.
    """
    remaining = cut
    for factor in factors:
        count = remaining if factor == factors[-1] else math.gcd(remaining, bound.sizes[factor])
        remaining //= count
        if block_counts.setdefault(factor, count) != count:
            raise RuleError(
                f"factor {factor!r} of the rule '{bound.rule}' must be cut equally in all operands, got "
                f"{many(block_counts[factor], 'block')} and, in {dim_text}, {count}"
            )


def strategy_from_cuts(
    bound: BoundRule, cuts: Cuts, ranks: int | Sequence[int], *, repeat: str = "right"
) -> Strategy:
    """Return the strategy that ``.shard(cuts)`` means, on a mesh of its own.

    Args:
        bound: the operator's rule, bound to the shapes of its operands.
        cuts: the number of blocks of each dim, per operand.
        ranks: the ranks of the mesh, or their number.
        repeat: the side of the device matrix on which repeated calculation is put: ``"right"`` (consecutive ranks
            own equal blocks: 0,0,1,1,…) or ``"left"`` (0,1,…,0,1,…).

    Raises:
        RuleError: If the cuts do not fit the rule, or their product does not divide the number of ranks.

    >>> from spmdsim.core import Rule, bind
    >>> matmul = bind(Rule.parse("m k, k n -> m n"), ((32, 784), (784, 512)))
    >>> strategy_from_cuts(matmul, ((2, 4), (4, 1)), 8).mesh
    Mesh((2, 4, 1), ('m', 'k', 'n'))
    """
    return strategy_from_factors(bound, factor_cuts(bound, cuts), ranks, repeat=repeat)


def strategy_from_factors(
    bound: BoundRule, block_counts: Mapping[str, int], ranks: int | Sequence[int], *, repeat: str = "right"
) -> Strategy:
    """Return the strategy that splits each factor by a mesh axis of its own.

    An axis has the name of its factor (``dim0`` for a factor ``.0`` of an ellipsis), and the factor's number of blocks
    as its size. The axes are in the order of the factors in the rule. If there are more ranks than blocks, an axis :data:`REPEAT` is added, along which ranks repeat the
    computation. For example, ``{"m": 2, "k": 2, "n": 1}`` on 8 ranks gives the mesh (2, 2, 1, 2) with the axes m, k, n
    and REPEAT.

    Args:
        bound: the operator's rule, bound to the shapes of its operands.
        block_counts: the number of blocks by factor; names that are no factors are ignored. Factors that it lacks get no
            axis and are not split.
        ranks: the ranks of the mesh, or their number.
        repeat: the end of the mesh's axes where :data:`REPEAT` is added: ``"left"``, or any other word for right.

    Raises:
        RuleError: If the product of the numbers of blocks does not divide the number of ranks, or the rule forbids the
            strategy.
        LayoutError: If there are more than ``MOST_RANKS`` ranks.
    """
    members = rank_tuple(ranks)
    factors = [f for f in bound.sizes if f in block_counts]
    axes, sizes = [_axis_name(f) for f in factors], [block_counts[f] for f in factors]
    block_count = math.prod(sizes)
    if len(members) % block_count:
        written = " * ".join(f"{n} ({factor})" for factor, n in block_counts.items())
        raise RuleError(
            f"the strategy cuts the factors of the rule '{bound.rule}' into {written} = {block_count} blocks, "
            f"which must divide the number of ranks, got {many(len(members), 'rank')}"
        )
    repeats = len(members) // block_count
    if repeats > 1:
        position = 0 if repeat == "left" else len(axes)
        axes.insert(position, REPEAT)
        sizes.insert(position, repeats)
    strategy = Strategy.of(Mesh(sizes, axes, members), {f: _axis_name(f) for f in factors})
    bound.check(strategy)
    return strategy


def _axis_name(factor: str) -> str:
    """Return the name of the axis that splits a factor; ``dim0`` for the factor ``.0`` of an ellipsis."""
    return f"dim{factor[1:]}" if factor.startswith(".") else factor


def layout_from_cuts(cuts: Sequence[int], computed: Layout, shape: Sequence[int]) -> Layout:
    """Return the layout that splits each dim of a result into ``cuts`` blocks.

    A dim keeps the axes in which it was computed; fewer blocks than these are an error. For more blocks it also takes
    pending axes, along which the result is a sum of addends, as its minor axes: the all_reduce becomes a
    reduce_scatter, as with MindSpore's out_strategy.
    Dims take pending axes from dim 0 on, in mesh order. The sums along all other pending axes are carried out, so the
    layout has no pending reductions.

    For example, a result of shape (8, 8) is computed as rows over the axis m of size 2, pending along k of size 4.
    Then the cuts (8, 1) split its rows over m and k, and (2, 1) only over m.

    Args:
        cuts: the number of blocks of each dim.
        computed: the layout in which the operator computes the result.
        shape: the global shape of the result; only its length is used.

    Raises:
        RuleError: If the number of dims differs, ``cuts`` is no tuple or list, or the axes of ``computed`` cannot give
            these numbers of blocks.
    """
    if not isinstance(cuts, (tuple, list)) or len(cuts) != len(shape):
        raise RuleError(f"out_strategy must have one entry per dim, {len(shape)}, got {cuts}")
    free_axes = list(computed.partial_axes)
    dims: list[tuple[str, ...]] = []
    for cut, computed_axes in zip(cuts, computed.dims):
        axes = computed_axes
        while computed.mesh.axis_size(*axes) < cut and free_axes:
            axes = (*axes, free_axes.pop(0))
        if computed.mesh.axis_size(*axes) != cut:
            raise RuleError(
                f"out_strategy {tuple(cuts)} does not follow from the computed layout {computed}: a dim is cut "
                f"into {computed.cuts}, and only pending axes {list(computed.partial_axes)} may cut it further"
            )
        dims.append(axes)
    return Layout(computed.mesh, dims)


class FrozenMapping(tuple[tuple[str, tuple[str, ...]], ...]):
    """Hashable form of a mapping of factors to axes."""

    __slots__ = ()


def freeze_strategy(strategy: Any) -> Any:
    """Return a strategy in a hashable form.

    * A dict of axes by factor becomes a :class:`FrozenMapping`, sorted by factor. One axis becomes a tuple of it.
    * Lists and tuples become tuples, item by item.
    * Any other value, such as None, a layout or a Strategy, is returned unchanged.

    Args:
        strategy: the strategy as the user wrote it.

    >>> freeze_strategy({"k": ["tp", "sp"], "m": "dp"}), freeze_strategy([[2, 4], [4, 1]])
    ((('k', ('tp', 'sp')), ('m', ('dp',))), ((2, 4), (4, 1)))
    """
    if isinstance(strategy, dict):
        return FrozenMapping(
            (k, (v,) if isinstance(v, str) else as_items(v, f"the axes of factor {k!r} must be names"))
            for k, v in sorted(strategy.items())
        )
    return tuple(map(freeze_strategy, strategy)) if isinstance(strategy, (list, tuple)) else strategy


def result_layout(requested: Any, computed: Layout, shape: Sequence[int]) -> Layout:
    """Return the layout that an ``out_strategy`` requests for a result.

    * None requests the layout ``computed`` without pending reductions.
    * A layout is returned without a check.
    * Numbers of blocks, such as (2, 4), request the layout with this many blocks per dim.
    * A tuple of one layout or of one such tuple counts as its entry.

    Args:
        requested: the ``out_strategy``.
        computed: the layout in which the operator computes the result.
        shape: the global shape of the result.

    Raises:
        RuleError: If ``computed`` cannot give the numbers of blocks; see :func:`layout_from_cuts`.
    """
    if requested is None:
        return computed.reduced
    is_nested = (
        isinstance(requested, tuple) and len(requested) == 1 and isinstance(requested[0], (tuple, Layout))
    )
    wanted = requested[0] if is_nested else requested
    return wanted if isinstance(wanted, Layout) else layout_from_cuts(wanted, computed, shape)


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
        """Apply the operator with this strategy. An operator with several results returns a tuple."""
        return self.op.apply(tensors, params, self)  # type: ignore[return-value]

    def strategy(self, bound: BoundRule, ranks: int | Sequence[int], mesh: Mesh | None = None) -> Strategy:
        """Return the strategy that ``in_strategy`` means for operands of certain shapes.

        It depends on the form of ``in_strategy``:

        * a :class:`FrozenMapping`: the axes that split each factor, on ``mesh``;
        * a Strategy: is checked and returned;
        * layouts: the strategy for which operands in these layouts need no redistribution;
        * all else: cuts, which make a mesh of their own; see :func:`strategy_from_cuts`.

        Args:
            bound: the operator's rule, bound to the shapes of the operands.
            ranks: the ranks, or their number; only used for cuts.
            mesh: the mesh of the first operand, or None; only used for a FrozenMapping.

        Raises:
            RuleError: If the strategy does not fit the rule, the shapes or the ranks, or needs a mesh and ``mesh`` is
                None.
            LayoutError: If a layout has another number of dims than its operand.
        """
        strategy = self.in_strategy
        if isinstance(strategy, FrozenMapping):
            if mesh is None:
                raise RuleError(f"strategy {dict(strategy)} names axes, but no operand has a mesh; use cuts")
            strategy = Strategy.of(mesh, dict(strategy))
        if isinstance(strategy, Strategy):
            bound.check(strategy)
            return strategy
        if strategy and isinstance(strategy[0], Layout):
            if len(strategy) != len(bound.inputs):
                raise RuleError(
                    f"in_strategy must have one layout per operand of the rule '{bound.rule}', "
                    f"{len(bound.inputs)}, got {many(len(strategy), 'layout')}"
                )
            for layout, shape in zip(strategy, bound.shapes):
                layout.check_shape(shape)
            return bound.infer(strategy)
        return strategy_from_cuts(bound, strategy, ranks, repeat=self.repeat)

    def result_layout(self, computed: Layout, shape: Sequence[int]) -> Layout:
        """Return the layout that ``out_strategy`` requests for a result.

        It is ``computed`` without pending reductions if there is no ``out_strategy``.
        """
        return result_layout(self.out_strategy, computed, shape)

    def substitute_op(self, bound: BoundRule, strategy: Strategy, params: dict[str, Any]) -> Op:
        """Return the operator that runs with the strategy: this one.

        Classes whose local function depends on the strategy override the method.
        """
        return self.op


def build_sharded_op(op: Op, in_strategy: Any, out_strategy: Any, repeat: str) -> ShardedOp:
    """Return the result of ``op.shard``: the operator with both strategies in hashable form."""
    frozen = freeze_strategy(in_strategy)
    if not isinstance(frozen, (tuple, Strategy)):
        raise UsageTypeError(f"{op.name}: in_strategy must be cuts, layouts or a mapping, got {frozen!r:.60}")
    return ShardedOp(op, frozen, freeze_strategy(out_strategy), repeat)


def rank_tuple(ranks: int | Iterable[int]) -> tuple[int, ...]:
    """Return ``0 ... n-1`` for a number n, or an iterable of ranks as a tuple.

    The ranks of an iterable are not checked. A negative number gives ().

    Args:
        ranks: the number, as Python's int, or the ranks.

    Raises:
        LayoutError: If the number is above ``MOST_RANKS``.

    >>> rank_tuple(3), rank_tuple([2, 0])
    ((0, 1, 2), (2, 0))
    """
    if not isinstance(ranks, int):
        return tuple(ranks)
    if ranks > MOST_RANKS:
        raise LayoutError(f"ranks must be at most {MOST_RANKS:,}, got {ranks:,}")
    return tuple(range(ranks))
