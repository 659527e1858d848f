"""The operator: one declaration, from which layouts, gradients and costs follow.

Kinds of operators that need more override what is asked of them here: :mod:`spmdsim.tensor.stepped` has collectives in
the middle of local functions, :mod:`spmdsim.tensor.owned_rows` exchanges rows that data decide about.

Next: :mod:`spmdsim.core.tape`, what remembers operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from spmdsim.core import elements
from spmdsim.core.bound import BoundRule, bind
from spmdsim.core.layout import Layout
from spmdsim.core.mesh import Mesh
from spmdsim.core.reductions import each
from spmdsim.core.rule import Rule
from spmdsim.core.strategy import Strategy
from spmdsim.core.world import performed
from spmdsim.errors import RuleError, context
from spmdsim.pictured import Pictured, ShortRepr

if TYPE_CHECKING:
    from spmdsim.core.apply import Recipe
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


@dataclass(frozen=True, repr=False, eq=False)
class Context(ShortRepr):
    """What a contextual local function may ask about the shard of a rank that it works on; one per recipe and rank."""

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

    @cached_property
    def _slices(self) -> list[tuple[slice, ...]]:
        bound, mesh, axes = self.bound, self.strategy.mesh, self.strategy.axes_of
        pairs = zip((*bound.inputs, bound.outputs[0]), (*bound.shapes, bound.output_shapes[0]))
        return [Layout(mesh, [sum(map(axes, d), ()) for d in t]).slices(n, self.rank) for t, n in pairs]

    def index(self, operand: int) -> tuple[slice, ...]:
        """Global slices of an operand's shard; operand -1 is the first result."""
        return self._slices[operand]


@dataclass(frozen=True, eq=False)
class Op(Pictured):
    """An operator on global tensors.

    Attributes:
        name: its name in traces and errors.
        rule: its rule, or a function of the operands' shapes and the parameters that gives one (and, as a
            second value, sizes of factors that the shapes do not determine).
        forward: the local function, numpy arrays in, array (or tuple of arrays) out; ``**params`` follow. It is
            given float32 for floats of 16 bits, as is ``vjp``, and what comes out is rounded to the result's type. Its
            attribute ``known``, if it has one, makes a function for arrays of the shapes and types that it is given.
        vjp: the local gradient function ``(dy, operands, result, **params) -> gradients``, one per operand,
            None for operands without gradient (zeros on part of the ranks). It sees shards only; sums follow from the rule. A
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

    #: What the tape keeps of a call, if it is no :class:`~spmdsim.core.tape.OpNode`.
    node: ClassVar[Any] = None

    @property
    def has_gradient(self) -> bool:
        """Whether its results have gradients that go on to its operands."""
        return self.vjp is not None

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
        out_strategy: StrategyLike | None = None,
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
        return ShardedOp(self, reader.frozen(in_strategy), reader.frozen(out_strategy), repeat)

    # -- what recipes are derived from ----------------------------------------------------------------

    def bind(
        self, shapes: Sequence[Shape], params: dict[str, Any], dtypes: Sequence[np.dtype] | None = None
    ) -> BoundRule:
        """The rule for these shapes, and what of it holds for these element types; RuleError if it does not fit."""
        with context(operator=self.name):
            sizes: tuple[tuple[str, int], ...] = ()
            rule = self.rule if isinstance(self.rule, Rule) else self.rule(*shapes, **params)
            if not isinstance(rule, Rule):
                rule, given = rule
                sizes = tuple(sorted(given.items()))
            if dtypes is not None and len(dtypes) == len(rule.inputs):
                kind = self.result_dtype(dtypes, params)
                rule = elements.types.rule(rule, tuple(dtypes), kind[0] if isinstance(kind, tuple) else kind)
            return bind(rule, tuple(tuple(shape) for shape in shapes), sizes)

    def result_dtype(self, dtypes: Sequence[np.dtype], params: dict[str, Any]) -> Any:
        """Element type of the result; of several results that are not alike a tuple of them."""
        if self.dtype is None:
            return elements.types.promoted(*dtypes)
        kind = self.dtype(*dtypes, **params)
        return kind if isinstance(kind, tuple) else np.dtype(kind)

    def output_layouts(self, bound: BoundRule, strategy: Strategy) -> tuple[Layout, ...]:
        """The layouts in which the local function leaves the results."""
        return bound.output_layouts(strategy)

    def prepared(self, bound: BoundRule, strategy: Strategy, params: dict[str, Any]) -> Any:
        """What else a kind of operators derives once, for its recipe; it is then not run the plain way."""
        return None

    def duals(self, recipe: Recipe) -> tuple[Layout, ...]:
        """The layouts in which gradients of its results are taken."""
        return tuple(meta.layout.dual() for meta in recipe.outputs)

    # -- how it runs ----------------------------------------------------------------------------------

    def computed(self, recipe: Recipe, tensors: Sequence[Tensor], params: dict[str, Any]) -> list[list[Any]]:
        """The arrays of the results on every owned rank, from operands where the local function wants them."""
        run = partial(calculated, recipe, tensors[0].world, params)
        return performed(run, *[tensor.held for tensor in tensors])  # type: ignore[no-any-return]

    def on_ranks(self, world: Any, mesh: Mesh, jobs: dict[Any, Any]) -> dict[int, Any]:
        """What local functions give, by rank; each is forgotten as soon as it has run."""
        results = {}
        for rank in [*jobs]:
            results[rank] = jobs.pop(rank)()
        return results

    def typed(self, array: Any, dtype: np.dtype) -> Any:
        """A local result in the type that the operator declares; RuleError if that would lose its kind."""
        if array.dtype == dtype:
            return array
        if _LEVELS[array.dtype.kind] > _LEVELS[dtype.kind]:
            raise RuleError(
                f"the local function of {self.name} gave elements of {array.dtype}, but the operator declares {dtype}"
            )
        return np.asarray(array, dtype, order="C")

    def __repr__(self) -> str:
        return f"Op({self.name})"


def calculated(recipe: Recipe, world: Any, params: dict[str, Any], *lists: list[Any]) -> list[list[Any]]:
    """The results' arrays on every owned rank, from those of the operands where the local function wants them."""
    if not world.has_data:
        return [world.empties(meta) for meta in recipe.outputs]
    if not recipe.op.contextual and all(recipe.active):
        return by_result(recipe, each(partial(recipe.local, params, None), *lists))
    columns = zip(world.ranks, recipe.active, *lists)
    jobs = {r: partial(recipe.local, params, r, *arrays) for r, active, *arrays in columns if active}
    results = recipe.op.on_ranks(world, recipe.strategy.mesh, jobs)
    return by_result(recipe, [results[r] if r in results else recipe.outside() for r in world.ranks])


def by_result(recipe: Recipe, by_rank: list[Any]) -> list[list[Any]]:
    """Of what each rank's local function gave, the list of each result."""
    return [by_rank] if len(recipe.outputs) == 1 else [list(column) for column in zip(*by_rank)]


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
        """The strategy meant, for a bound rule; RuleError if it does not fit the rule, the shapes or the ranks."""
        return reader.strategy(self, bound, ranks, mesh)

    def instead(self, bound: BoundRule, strategy: Strategy, params: dict[str, Any]) -> Op:
        """The operator that runs."""
        return self.op


class StrategyReader:
    """Who reads strategies: those of core are values of that name. :mod:`spmdsim.layout.cuts` reads what users write."""

    def frozen(self, given: Any) -> Any:
        """What was given, as a value that can be hashed."""
        return given

    def strategy(self, sharded: ShardedOp, bound: BoundRule, ranks: Any, mesh: Mesh | None) -> Strategy:
        """The strategy that was meant."""
        bound.check(sharded.in_strategy)
        return sharded.in_strategy  # type: ignore[no-any-return]

    def result_layout(self, given: Any, computed: Layout, shape: Sequence[int]) -> Layout:
        """The layout of a result that was meant; if none was given, pending reductions are done."""
        return computed.reduced if given is None else given


reader = StrategyReader()
"""Who reads them; the package puts another one here."""
