"""The operator: one declaration, from which layouts, gradients and costs follow; and how it is applied.

A call redistributes the operands, runs the local function on each shard, and remembers how. What follows from the
operands' metas alone is derived once, as a :class:`Recipe`: bind the rule, choose the strategy, from it the layouts
wanted, a route for each operand that lies otherwise, and the layouts of the results.

Operators that do more than run a local function on each shard override methods of :class:`Op`: :meth:`Op.bind` (rules with
windows or steps) and :meth:`Op.compute` (communication in the middle).

This is the last file: the way from mesh to gradients ends here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.core.cuts import ShardedOp, StrategyLike, sharded
from spmdsim.core.element_types import computed_widely, promoted, typed_rule
from spmdsim.core.layout import Layout, Mesh
from spmdsim.core.notation.rules import Shape
from spmdsim.core.recipe import Arrays, Job, Local, Recipe
from spmdsim.core.rule import BoundRule, Rule, Strategy, bind
from spmdsim.core.tape import OpNode
from spmdsim.core.tensor import Meta, PlainTensor
from spmdsim.core.world import AbstractWorld, Params, T
from spmdsim.errors import NoTensorError, RuleError, context
from spmdsim.pictured import Pictured
from spmdsim.wrong_calls import explained

Dtypes = Sequence[np.dtype]
RuleSource = Rule | Callable[..., Rule | tuple[Rule, Mapping[str, int]]]

#: Kinds of element types by the values that they represent: truth values, integers, fractions, complex numbers.
_LEVELS = {"b": 0, "i": 1, "u": 1, "f": 2, "V": 2, "c": 3}
_meta = attrgetter("meta")


@explained
@dataclass(frozen=True, repr=False, eq=False)
class Op(Pictured):
    """An operator on global tensors.

    Attributes:
        name: its name in traces and errors.
        rule: its rule, or a function of the operands' shapes and the parameters that gives one (and, as a
            second value, sizes of factors that the shapes do not determine).
        forward: the local function, numpy arrays in, array (or tuple of arrays) out; ``**params`` follow. It is
            given float32 for floats of 16 bits, as is ``vjp``, and what comes out is rounded to the result's type.
        vjp: the local gradient function ``(dy, operands, result, **params) -> gradients``, one per operand,
            None for operands without gradient (zeros on part of the ranks). It sees shards only; sums follow from the rule. A
            gradient may be a function without arguments, which is called only if that gradient is wanted.
        dtype: result type from the operands' types and the parameters; the one in which they meet if None. The
            local function is held to it: a wider result is rounded, one of another kind is an error.
        contextual: the local functions take a :class:`Context` as first argument.
        finish: reduce a pending result at once (the local gradient needs the reduced one, or the operator
            promises a result that is not partial).
        saves_result: whether ``vjp`` looks at the result.
        unseen: the operands of which it looks at shape and type alone.
        varying: parameters from which nothing is derived, such as a seed: calls with others of them are repeated calls.
        moves: the local function computes nothing, it only puts elements elsewhere (or zeros): 16-bit floats need
            not become float32 for it.

    >>> from spmdsim import Mesh, Rule, Tensor
    >>> square = Op("square", Rule.parse("... -> ..."), np.square, lambda dy, xs, y: (2 * dy * xs[0],))
    >>> square(Tensor.from_global([1.0, 2.0, 3.0], Mesh((3,), ("x",))("x"))).full()
    array([1., 4., 9.])
    """

    name: str
    rule: RuleSource
    forward: Local
    vjp: Callable[..., Sequence[object]] | None = None
    dtype: Callable[..., DTypeLike | tuple[DTypeLike, ...]] | None = None
    contextual: bool = False
    finish: bool = False
    saves_result: bool = False
    unseen: tuple[int, ...] = ()
    varying: tuple[str, ...] = ()
    moves: bool = False

    #: The node that the tape keeps of a call.
    node: ClassVar[type[OpNode]] = OpNode
    #: Whether it runs steps while it computes.
    communicates: ClassVar[bool] = False
    #: Whether messages show its parameters.
    shows_parameters: ClassVar[bool] = True
    #: Runs the local functions of the owned ranks together, if they wait for each other: ``(world, mesh, name, jobs) -> results``.
    run_together: ClassVar[Callable[[AbstractWorld, Mesh, str, dict[int, Job]], dict[int, object]] | None] = (
        None
    )

    def __call__(self, *tensors: T, **params: object) -> T:
        """Apply the operator; see :func:`spmdsim.core.operator.apply`. Several results are a tuple: :meth:`results`."""
        return apply(self, tensors, params)  # type: ignore[no-any-return]

    def apply(
        self, tensors: Sequence[PlainTensor], params: dict[str, object], strategy: ShardedOp | None = None
    ) -> PlainTensor | tuple[PlainTensor, ...]:
        """Apply the operator, maybe with a strategy of its own; several results are a tuple."""
        return apply(self, tensors, params, strategy)  # type: ignore[no-any-return]

    def results(self, *tensors: T, **params: object) -> tuple[T, ...]:
        """Apply an operator with several results."""
        results: T | tuple[T, ...] = apply(self, tensors, params)
        return results if isinstance(results, tuple) else (results,)

    def shard(
        self, in_strategy: StrategyLike, out_strategy: StrategyLike | None = None, *, repeat: str = "right"
    ) -> ShardedOp:
        """Return the operator with a given strategy instead of the cheapest one.

        Args:
            in_strategy: cuts per operand such as ``((2, 4), (4, 1))``, a layout per operand, or a mapping of
                factors to axes such as ``{"m": "dp", "k": "tp"}``.
            out_strategy: cuts or layout of the result; as computed if left out, pending reductions done.
            repeat: the side of the device matrix on which repeated calculation goes, for cuts.
        """
        return sharded(self, in_strategy, out_strategy, repeat)

    def bind(self, shapes: Sequence[Shape], params: Params, dtypes: Dtypes | None = None) -> BoundRule:
        """Return the rule for these shapes and element types. Raise RuleError if they do not fit."""
        with context(operator=self.name):
            source = self.rule if isinstance(self.rule, Rule) else self.rule(*shapes, **params)
            rule, sizes = source if isinstance(source, tuple) else (source, {})
            if dtypes is not None and len(dtypes) == len(rule.inputs):
                kind = self.result_dtype(dtypes, params)
                rule = typed_rule(rule, tuple(dtypes), kind[0] if isinstance(kind, tuple) else kind)
            return bind(rule, tuple(map(tuple, shapes)), tuple(sorted(sizes.items())))

    def result_dtype(self, dtypes: Dtypes, params: Params) -> np.dtype | tuple[np.dtype, ...]:
        """Return the element type of the result, or a tuple if several results have different types."""
        if self.dtype is None:
            return promoted(*dtypes)
        kind: Any = self.dtype(*dtypes, **params)
        return kind if isinstance(kind, tuple) else np.dtype(kind)

    def output_layouts(self, bound: BoundRule, strategy: Strategy) -> tuple[Layout, ...]:
        """Return the layouts in which the local function leaves the results."""
        return bound.output_layouts(strategy)

    def result_layout(self, computed: Layout) -> Layout:
        """Return the layout in which a caller gets a result: pending reductions are done if the operator finishes them."""
        return computed.reduced if self.finish else computed

    def duals(self, bound: BoundRule, strategy: Strategy) -> tuple[Layout, ...]:
        """Return the layouts in which the gradients of the results are accepted."""
        return tuple(layout.dual() for layout in self.output_layouts(bound, strategy))

    def prepared(self, bound: BoundRule, strategy: Strategy, params: Params) -> object:
        """Return other facts that a kind of operators derives once, for its recipe."""
        return None

    def functions(self, dtypes: Dtypes) -> tuple[Local, Local | None]:
        """Return ``forward`` and ``vjp``, or None without one; they get float32 for floats of at most 16 bits.

        ``dtypes`` are the types of the operands and results. ``forward`` is unchanged if the operator only moves elements.
        """
        vjp = None if self.vjp is None else computed_widely(self.vjp, dtypes)
        return self.forward if self.moves else computed_widely(self.forward, dtypes), vjp

    @property
    def has_gradient(self) -> bool:
        """True if gradients of the results are passed on to the operands."""
        return self.functions(())[1] is not None

    def user_functions(self) -> tuple[object, ...]:
        """Return the functions that ranks compare, if they are a user's."""
        return self.forward, self.vjp, self.rule

    def typed(self, result: object, dtype: np.dtype) -> np.ndarray:
        """Return a local result in the type that the operator declares; RuleError if that would lose its kind."""
        array: np.ndarray = np.asarray(result)  # some ranks may have a scalar of numpy's
        if array.dtype == dtype:
            return array
        if _LEVELS[array.dtype.kind] > _LEVELS[dtype.kind]:
            raise RuleError(
                f"the local function of {self.name} gave elements of {array.dtype}, but the operator declares {dtype}"
            )
        return np.asarray(array, dtype, order="C")

    def compute(self, recipe: Recipe, world: AbstractWorld, params: Params, *lists: Arrays) -> list[Arrays]:
        """Return the results' arrays on every owned rank, from those of the operands where the local function wants them."""
        if not world.has_data:
            return [world.empties(meta) for meta in recipe.outputs]
        if recipe.is_alone:
            return [[array] for array in recipe.local(params, *[shards[0] for shards in lists])]
        by_rank = recipe.on_ranks(world, partial(recipe.local, params), *lists)
        return [[*shards] for shards in zip(*[recipe.outside() if row is None else row for row in by_rank])]

    def __repr__(self) -> str:
        return f"Op({self.name})"


def apply(
    op: Op, operands: Sequence[Any], params: Params, strategy: ShardedOp | Strategy | None = None
) -> Any:
    """Apply an operator to global tensors of one world; with several results, it gives a tuple.

    The recipe is derived once per combination of operand metas, parameters (hashable values) and strategy, which is the
    cheapest one if none is given; a repeated call only looks it up. An SpmdError says what does not fit, of which operator.
    """
    world: Any = getattr(operands[0], "world", None) if operands else None
    for x in operands:
        if not isinstance(x, PlainTensor) or x.world is not world:
            operands = operands_of_one_world(op.name, operands)
            world = operands[0].world
            break
    observers, called = world.observers, (op, operands, params, strategy)
    watcher = observers.watchers[-1] if observers.watchers else None
    if watcher is not None:
        op, strategy = watcher.before(*called)
    key = (op, strategy, *map(_meta, operands))
    if params:
        key += tuple(params.items()) if not op.varying else tuple(derived_from(op, params))
    recipe: Recipe | None = world.cache.get(key)
    if recipe is None:
        metas = [x.meta for x in operands]
        with context(operator=op.name, operands=partial(_in_words, metas)):
            recipe = Recipe.derive(op, metas, params, world, strategy)
        world.cache[key] = recipe
    if observers.traces:
        with observers.span(recipe, world, 0):
            results = recipe.run(operands, params)
    else:
        results = recipe.run(operands, params)
    if watcher is not None:
        watcher.after(*called, results)
    return results[0] if len(results) == 1 else tuple(results)


def derived_from(op: Op, params: Params) -> list[tuple[str, Any]]:
    """Return the parameters from which something is derived."""
    return [(name, value) for name, value in params.items() if name not in op.varying]


def _in_words(metas: Sequence[Meta]) -> str:
    return ", ".join(map(repr, metas))


def operands_of_one_world(name: str, values: Sequence[Any]) -> Sequence[PlainTensor]:
    """Return an operator's operands as tensors of one world; NoTensorError if none is a tensor or stands for one."""
    for x in values:
        tensor = x if isinstance(x, PlainTensor) else getattr(x, "tensor", None)
        if isinstance(tensor, PlainTensor):
            return tensor.world.operands(name, values, tensor)
    kinds = ", ".join(type(x).__name__ for x in values)
    raise NoTensorError(
        f"{name} takes tensors, but got {kinds}; make one with Tensor.from_global(array, layout)"
    )
