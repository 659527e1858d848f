"""The operator: one declaration, from which layouts, gradients and costs follow.

Next: :mod:`spmdsim.core.phases`, local functions with collectives in their middle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from spmdsim.core import elements
from spmdsim.core.bind import bind
from spmdsim.core.bound import BoundRule
from spmdsim.core.layout import Layout
from spmdsim.core.mesh import Mesh
from spmdsim.core.rule import Rule
from spmdsim.core.strategy import Strategy
from spmdsim.errors import RuleError, context
from spmdsim.pictured import Pictured, ShortRepr

if TYPE_CHECKING:
    from spmdsim.core.tensor import Tensor

T = TypeVar("T", bound="Tensor")
Shape = tuple[int, ...]
RuleSource = Rule | Callable[..., Rule | tuple[Rule, Mapping[str, int]]]

#: Kinds of elements by what they can say: truth values, whole numbers, fractions, complex numbers.
_LEVELS = {"b": 0, "i": 1, "u": 1, "f": 2, "V": 2, "c": 3}


def _load(*call: Any) -> Any:
    from spmdsim.core.apply import apply

    return apply(*call)


#: Who applies operators: :func:`spmdsim.core.apply.apply`, as soon as it is loaded.
applied: list[Callable[..., Any]] = [_load]

#: How a user may give a strategy: cuts per operand, a layout per operand, or axes per factor.
Cuts = Sequence[Sequence[int]] | Sequence[int]
StrategyLike = Strategy | Mapping[str, str | Sequence[str]] | Sequence[Layout] | Layout | Cuts


@dataclass(frozen=True, repr=False)
class Context(ShortRepr):
    """What a contextual local function may ask about the shard it works on.

    Attributes:
        bound: the rule with global sizes.
        strategy: the strategy it runs with.
        rank: whose shard this is.
    """

    bound: BoundRule
    strategy: Strategy
    rank: int

    @cached_property
    def _bounds(self) -> dict[str, tuple[int, int]]:
        layout = Layout(self.strategy.mesh, [self.strategy.axes_of(f) for f in self.bound.sizes])
        return dict(zip(self.bound.sizes, layout.bounds(tuple(self.bound.sizes.values()), self.rank)))

    def bounds(self, factor: str) -> tuple[int, int]:
        """``(start, stop)`` of this rank's part of a factor."""
        return self._bounds[factor]

    def size(self, factor: str) -> int:
        """Global size of a factor."""
        return self.bound.sizes[factor]

    def index(self, operand: int) -> tuple[slice, ...]:
        """Global slices of an operand's shard; operand -1 is the first result."""
        term = self.bound.outputs[0] if operand < 0 else self.bound.inputs[operand]
        shape = self.bound.output_shapes[0] if operand < 0 else self.bound.shapes[operand]
        layout = Layout(self.strategy.mesh, [[a for f in d for a in self.strategy.axes_of(f)] for d in term])
        return layout.slices(shape, self.rank)


@dataclass(frozen=True, eq=False)
class Op(Pictured):
    """An operator on global tensors.

    Attributes:
        name: its name in traces and errors.
        rule: its rule, or a function of the operands' shapes and the parameters that gives one (and, as a
            second value, sizes of factors that the shapes do not determine).
        forward: the local function, numpy arrays in, array (or tuple of arrays) out; ``**params`` follow. It is
            given float32 for floats of 16 bits, as is ``vjp``, and what comes out is rounded to the result's type.
        vjp: the local gradient function ``(dy, operands, result, **params) -> gradients``, one per operand,
            None for operands without gradient. It sees shards only; sums over ranks follow from the rule. A
            gradient may be a function without arguments, which is called only if that gradient is wanted.
        dtype: result type from the operands' types and the parameters; the one in which they meet if None. The
            local function is held to it: a wider result is rounded, one of another kind is an error.
        contextual: the local functions take a :class:`Context` as first argument.
        finish: reduce a pending result at once (the local gradient needs the reduced one, or the operator
            promises a result that is not partial).
        saves_result: whether ``vjp`` looks at the result.
        varying: parameters from which nothing is derived, such as a seed: calls with others of them are repeated calls.
        moves: the local function computes nothing, it only puts elements elsewhere (or zeros): 16-bit floats need
            not become float32 for it.
        adjoint: the gradient as operators on global tensors, ``(dys, operands, results, **params) -> gradients``,
            where a local function of shards cannot say it.
    """

    name: str
    rule: RuleSource
    forward: Callable[..., Any]
    vjp: Callable[..., Sequence[Any]] | None = None
    dtype: Callable[..., Any] | None = None
    contextual: bool = False
    finish: bool = False
    saves_result: bool = False
    varying: tuple[str, ...] = ()
    moves: bool = False
    adjoint: Callable[..., Sequence[Any]] | None = None
    together: Callable[..., Mapping[int, Any]] | None = None

    @property
    def has_gradient(self) -> bool:
        """Whether its results have gradients that go on to its operands."""
        return self.vjp is not None or self.adjoint is not None

    def __call__(self, *tensors: T, **params: object) -> T:
        """Apply the operator; see :func:`spmdsim.core.apply.apply`. Several results are a tuple: :meth:`results`."""
        return applied[0](self, tensors, params)  # type: ignore[no-any-return]

    def results(self, *tensors: T, **params: object) -> tuple[T, ...]:
        """Apply an operator with several results."""
        results: T | tuple[T, ...] = applied[0](self, tensors, params)
        return results if isinstance(results, tuple) else (results,)

    def shard(
        self,
        in_strategy: StrategyLike,
        out_strategy: StrategyLike | OutStrategy | None = None,
        *,
        repeat: str = "right",
    ) -> ShardedOp:
        """The operator with a given strategy instead of the cheapest one.

        Args:
            in_strategy: cuts per operand such as ``((2, 4), (4, 1))``, a layout per operand, or a mapping of
                factors to axes such as ``{"m": "dp", "k": "tp"}``.
            out_strategy: cuts or layout of the result; as computed if left out, pending reductions done.
            repeat: the side of the device matrix on which repeated calculation goes, for cuts.
        """
        return ShardedOp(self, freeze(in_strategy), freeze(out_strategy), repeat)

    def bind(
        self, shapes: Sequence[Shape], params: dict[str, Any], dtypes: Sequence[np.dtype] | None = None
    ) -> BoundRule:
        """The rule for these shapes, and what of it holds for these element types if they are given.

        Raises:
            RuleError: the operands do not fit the rule.
        """
        with context(operator=self.name):
            sizes: tuple[tuple[str, int], ...] = ()
            rule = self.rule if isinstance(self.rule, Rule) else self.rule(*shapes, **params)
            if not isinstance(rule, Rule):
                rule, given = rule
                sizes = tuple(sorted(given.items()))
            if dtypes is not None and len(dtypes) == len(rule.inputs):
                kind = self.result_dtype(dtypes, params)
                rule = rule.typed(tuple(dtypes), kind[0] if isinstance(kind, tuple) else kind)
            return bind(rule, tuple(tuple(shape) for shape in shapes), sizes)

    def result_dtype(self, dtypes: Sequence[np.dtype], params: dict[str, Any]) -> Any:
        """Element type of the result; of several results that are not alike a tuple of them."""
        if self.dtype is None:
            return elements.types.promoted(*dtypes)
        found = self.dtype(*dtypes, **params)
        return found if isinstance(found, tuple) else np.dtype(found)

    def typed(self, array: Any, dtype: np.dtype) -> Any:
        """A local result in the type that the operator declares.

        Raises:
            RuleError: that would make whole numbers of fractions, or real ones of complex ones.
        """
        if array.dtype is dtype or array.dtype == dtype:
            return array
        if _LEVELS[array.dtype.kind] > _LEVELS[dtype.kind]:
            raise RuleError(
                f"the local function of {self.name} gave elements of {array.dtype}, but the operator declares {dtype}"
            )
        return np.asarray(array, dtype, order="C")

    def __repr__(self) -> str:
        return f"Op({self.name})"


@dataclass(frozen=True, repr=False)
class ShardedOp(ShortRepr):
    """An operator with a strategy of its own."""

    op: Op
    in_strategy: Any
    out_strategy: Any = None
    repeat: str = "right"

    def __call__(self, *tensors: T, **params: object) -> T:
        """Apply the operator with this strategy."""
        return applied[0](self.op, tensors, params, self)  # type: ignore[no-any-return]

    def strategy(self, bound: BoundRule, ranks: int | Sequence[int], mesh: Mesh | None = None) -> Strategy:
        """The strategy meant, for a bound rule.

        Raises:
            RuleError: it does not fit the rule, the shapes or the ranks.
        """
        given = self.in_strategy
        if isinstance(given, Strategy):
            bound.check(given)
            return given
        if isinstance(given, Mapping_):
            if mesh is None:
                raise RuleError(f"the strategy {dict(given)} names axes, but no operand has a mesh")
            strategy = Strategy.of(mesh, dict(given))
            bound.check(strategy)
            return strategy
        if given and isinstance(given[0], Layout):
            if len(given) != len(bound.inputs):
                raise RuleError(
                    f"{len(given)} layouts were given for the {len(bound.inputs)} operands of '{bound.rule}'"
                )
            for layout, shape in zip(given, bound.shapes):
                layout.check_shape(shape)
            return bound.infer(given)
        return cuts.strategy(bound, given, ranks, self.repeat)


class OutStrategy:
    """As ``out_strategy`` of an operator: what runs in the place of its local function, straight into a layout."""

    layout: Layout

    def instead(
        self, bound: BoundRule, wanted: Sequence[Layout], computed: Layout, params: dict[str, Any]
    ) -> Any:
        """Who runs it and its gradient (:class:`spmdsim.tensor.owned_rows.RowLookup` is one), or None."""


class CutsReader:
    """Who reads strategies written as numbers of pieces: :mod:`spmdsim.layout.cuts`, once it is loaded."""

    def strategy(self, bound: BoundRule, given: Any, ranks: Any, repeat: str) -> Strategy:
        """The strategy that cuts per operand mean."""
        raise RuleError(f"a strategy is axes by factor, or a layout per operand, but got {given!r}")

    def result_layout(self, given: Any, computed: Layout, shape: Sequence[int]) -> Layout:
        """The layout that cuts of a result mean."""
        raise RuleError(f"the layout of a result is a layout, but got {given!r}")


cuts = CutsReader()


class Mapping_(tuple[tuple[str, tuple[str, ...]], ...]):
    """A frozen mapping of factors to axes (hashable, unlike a dict)."""

    __slots__ = ()


def freeze(value: Any) -> Any:
    """A hashable copy of a strategy as users write it."""
    if isinstance(value, dict):
        return Mapping_((k, (v,) if isinstance(v, str) else tuple(v)) for k, v in sorted(value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(freeze(item) for item in value)
    return value
