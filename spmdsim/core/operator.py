"""Operators: declare an operator once, derive layouts, gradients and costs from the declaration, and apply it.

A call redistributes the operands, runs the local function on each shard, and records itself on the tape. Everything
that follows from the operands' metas is derived once, as a :class:`Recipe`: the bound rule, the strategy, the layouts
that the local function needs, a route for each operand in another layout, and the layouts of the results.

Operators that do more than run a local function on each shard override methods of :class:`Op`: :meth:`Op.bind` (rules
with windows or steps) and :meth:`Op.compute` (communication in the middle).

This is the last file to read, after :mod:`spmdsim.core.recipe`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.core.cuts import ShardedOp, StrategyLike, build_sharded_op
from spmdsim.core.element_types import compute_in_float32, promote_types, typed_rule
from spmdsim.core.layout import Layout, Mesh
from spmdsim.core.notation.rules import Shape
from spmdsim.core.recipe import Arrays, Job, Local, Recipe
from spmdsim.core.rule import BoundRule, Rule, Strategy, bind
from spmdsim.core.tape import OpNode
from spmdsim.core.tensor import PlainTensor
from spmdsim.core.world import AbstractWorld, Params, T
from spmdsim.errors import NoTensorError, RuleError, UsageTypeError, context
from spmdsim.pictured import Pictured
from spmdsim.wrong_calls import explained

Dtypes = Sequence[np.dtype]
RuleSource = Rule | Callable[..., Rule | tuple[Rule, Mapping[str, int]]]

#: A function that runs one job per rank: ``(world, mesh, operator's name, jobs by rank) -> results by rank``.
RunTogether = Callable[[AbstractWorld, Mesh, str, dict[int, Job]], dict[int, object]]

#: Kinds of element types by the values that they represent: truth values, integers, fractions, complex numbers.
_LEVELS = {"b": 0, "i": 1, "u": 1, "f": 2, "V": 2, "c": 3}


@explained
@dataclass(frozen=True, repr=False, eq=False)
class Op(Pictured):
    """Operator on global tensors.

    Attributes:
        name: its name in traces and errors.
        rule: its rule, or a function of the operands' shapes and the parameters that returns a rule. The function may
            also return ``(rule, sizes)`` with the sizes of factors that the shapes do not determine.
        forward: the local function: takes numpy arrays and ``**params``, returns an array or a tuple of arrays. It
            receives float32 instead of floats of at most 16 bits, and so does ``vjp``. The result is rounded to the
            result's type.
        vjp: the local gradient function ``(dy, operands, result, **params) -> gradients``, one per operand, None for
            operands without gradient (zeros on part of the ranks). It sees shards only; sums follow from the rule. A
            gradient may be a function without arguments, which is called only if that gradient is wanted.
        dtype: a function of the operands' types and the parameters that returns the type of the result, or of each
            result. If None, the result has the type to which the operands are promoted. The local function's results
            are converted to it; a RuleError reports a result of another kind, such as floats for integers.
        contextual: True if the local functions take a :class:`Context` as first argument.
        finish: True if a pending result is reduced at once, because the local gradient needs the reduced result or the
            operator promises a result that is not partial.
        saves_result: True if ``vjp`` reads the result.
        unseen: the numbers of the operands of which ``vjp`` reads shape and type only.
        varying: parameters from which nothing is derived, such as a seed. Calls that differ in them share a recipe.
        moves: True if the local function only copies elements or writes zeros: it receives 16-bit floats unconverted.

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

    #: The class of the node that the tape records for a call.
    node: ClassVar[type[OpNode]] = OpNode
    #: True if it runs steps while it computes.
    communicates: ClassVar[bool] = False
    #: True if messages show its parameters.
    shows_parameters: ClassVar[bool] = True
    #: Runs the local functions of the owned ranks together, if they wait for each other: ``(world, mesh, name, jobs) ->
    #: results``.
    run_together: ClassVar[RunTogether | None] = None

    def __post_init__(self) -> None:
        if not isinstance(self.rule, Rule) and not callable(self.rule):
            raise UsageTypeError(f"Op: rule must be a Rule (Rule.parse) or a function, got {self.rule!r:.60}")
        if not callable(self.forward):
            raise UsageTypeError(
                f"Op: forward must be a function of numpy arrays, such as np.square, got {self.forward!r:.60}"
            )

    def __call__(self, *tensors: T, **params: object) -> T:
        """Apply the operator to tensors; several results are returned as a tuple.

        See :func:`spmdsim.core.operator.apply`.
        """
        return apply(self, tensors, params)  # type: ignore[no-any-return]

    def apply(
        self, tensors: Sequence[PlainTensor], params: dict[str, object], strategy: ShardedOp | None = None
    ) -> PlainTensor | tuple[PlainTensor, ...]:
        """Apply the operator, with ``strategy`` instead of the cheapest strategy if it is not None.

        Returns the result, or a tuple of several results.
        """
        return apply(self, tensors, params, strategy)  # type: ignore[no-any-return]

    def results(self, *tensors: T, **params: object) -> tuple[T, ...]:
        """Apply the operator and return a tuple of its results, also for an operator with one result."""
        results: T | tuple[T, ...] = apply(self, tensors, params)
        return results if isinstance(results, tuple) else (results,)

    def shard(
        self, in_strategy: StrategyLike, out_strategy: StrategyLike | None = None, *, repeat: str = "right"
    ) -> ShardedOp:
        """Return the operator with a given strategy instead of the cheapest one.

        Args:
            in_strategy: cuts per operand such as ``((2, 4), (4, 1))``, a layout per operand, or a mapping of
                factors to axes such as ``{"m": "dp", "k": "tp"}``.
            out_strategy: cuts or layout of the result; None for the computed layout without pending reductions.
            repeat: for cuts, the side of the device matrix on which repeated calculation is put: "right" or "left".
        """
        return build_sharded_op(self, in_strategy, out_strategy, repeat)

    def bind(self, shapes: Sequence[Shape], params: Params, dtypes: Dtypes | None = None) -> BoundRule:
        """Return the operator's rule for operands of these shapes and element types.

        Args:
            shapes: the global shape of each operand.
            params: the parameters of the call by name.
            dtypes: the element type of each operand. They may forbid to pass some pending reductions
                (:func:`~spmdsim.core.element_types.typed_rule`); of several results the first one's type counts.
                None, or another number of types than operands, for no such restriction.

        Raises:
            RuleError: If the number of operands or a shape does not fit the rule. If ``rule`` is a function, its
                errors are raised, too. Messages name the operator.
        """
        with context(operator=self.name):
            declared = self.rule if isinstance(self.rule, Rule) else self.rule(*shapes, **params)
            rule, sizes = declared if isinstance(declared, tuple) else (declared, {})
            if dtypes is not None and len(dtypes) == len(rule.inputs):
                result_dtype = self.result_dtype(dtypes, params)
                first_dtype = result_dtype[0] if isinstance(result_dtype, tuple) else result_dtype
                rule = typed_rule(rule, tuple(dtypes), first_dtype)
            return bind(rule, tuple(map(tuple, shapes)), tuple(sorted(sizes.items())))

    def result_dtype(self, dtypes: Dtypes, params: Params) -> np.dtype | tuple[np.dtype, ...]:
        """Return the element type of the result, or a tuple if ``dtype`` returns one type per result."""
        if self.dtype is None:
            return promote_types(*dtypes)
        kind: Any = self.dtype(*dtypes, **params)
        return kind if isinstance(kind, tuple) else np.dtype(kind)

    def output_layouts(self, bound: BoundRule, strategy: Strategy) -> tuple[Layout, ...]:
        """Return the layouts in which the local function leaves the results."""
        return bound.output_layouts(strategy)

    def result_layout(self, computed: Layout) -> Layout:
        """Return the layout in which the caller receives a result.

        It is the layout ``computed``, without pending reductions if the operator finishes its results.
        """
        return computed.reduced if self.finish else computed

    def duals(self, bound: BoundRule, strategy: Strategy) -> tuple[Layout, ...]:
        """Return the layouts in which the local gradient function takes the gradients of the results."""
        return tuple(layout.dual() for layout in self.output_layouts(bound, strategy))

    def prepared(self, bound: BoundRule, strategy: Strategy, params: Params) -> object:
        """Return what the operator itself derives once per recipe; None by default.

        An example are the steps that it runs while it computes. The value becomes the recipe's attribute ``prepared``.
        Classes of operators override the method.
        """
        return None

    def functions(self, dtypes: Dtypes) -> tuple[Local, Local | None]:
        """Return the local function and the local gradient function, which is None if there is none.

        ``dtypes`` are the types of the operands and results. If one is a float of at most 16 bits, the functions
        receive float32 instead, except a ``forward`` that only moves elements.
        """
        vjp = None if self.vjp is None else compute_in_float32(self.vjp, dtypes)
        return self.forward if self.moves else compute_in_float32(self.forward, dtypes), vjp

    @property
    def has_gradient(self) -> bool:
        """True if gradients of the results are passed on to the operands."""
        return self.functions(())[1] is not None

    def user_functions(self) -> tuple[object, ...]:
        """Return the functions of which ranks compare the code, because the operator may be a user's."""
        return self.forward, self.vjp, self.rule

    def cast_result(self, result: object, dtype: np.dtype) -> np.ndarray:
        """Return a result of the local function as an array of the declared element type.

        An array of that type is returned itself, any other result as a new C-ordered array.

        Args:
            result: an array, or a number.
            dtype: the declared type.

        Raises:
            RuleError: If the conversion would lose the kind of ``result``: complex numbers to floats, floats to
                integers, or integers to bools. Whether the values are in the range of the type is not checked.
        """
        array: np.ndarray = np.asarray(result)  # A local function may return a scalar of NumPy's.
        if array.dtype == dtype:
            return array
        if _LEVELS[array.dtype.kind] > _LEVELS[dtype.kind]:
            raise RuleError(
                f"the local function of {self.name} must return {dtype}, got {array.dtype}; convert it, or pass Op(dtype=)"
            )
        return np.asarray(array, dtype, order="C")

    def compute(self, recipe: Recipe, world: AbstractWorld, params: Params, *lists: Arrays) -> list[Arrays]:
        """Run the local function on the arrays of every owned rank, without communication.

        In a world without data, only the shapes of the results are computed. Operators that communicate in the
        middle override this method.

        Args:
            recipe: what was derived for calls like this one: strategy, layouts, functions.
            world: the world that owns the ranks.
            params: the parameters of the call by name.
            lists: for each operand its array on every owned rank, in the layout that the recipe requires.

        Returns:
            For each result a list with its array on every owned rank. The arrays of ranks outside the mesh have
            no elements.
        """
        if not world.has_data:
            return [world.empties(meta) for meta in recipe.outputs]
        if recipe.is_alone:
            return [[array] for array in recipe.run_local(params, *[shards[0] for shards in lists])]
        by_rank = recipe.run_on_ranks(world, partial(recipe.run_local, params), *lists)
        rows = [recipe.empty_results() if row is None else row for row in by_rank]
        return [[*shards] for shards in zip(*rows)]

    def __repr__(self) -> str:
        return f"Op({self.name})"


def apply(
    op: Op, operands: Sequence[Any], params: Params, strategy: ShardedOp | Strategy | None = None
) -> Any:
    """Apply an operator to global tensors; return the result, or a tuple of several results.

    All ranks must call it, because operands and results may be redistributed. The recipe (strategy, routes and
    local functions) is derived once per combination of operand metas, parameters (hashable values) and
    strategy; a repeated call only looks it up.

    The watcher that was added last, if any, is asked first and may change operator and strategy. After the run it gets
    the original ones and the results. Open traces record the run.

    Args:
        op: the operator.
        operands: tensors, objects with an attribute ``tensor``, or other values, which the world of the first tensor
            converts.
        params: the parameters of the operator by name.
        strategy: the axes that split each factor, or a sharded operator; None for the strategy that the operands'
            layouts fit, or else the planner's cheapest one.

    Raises:
        NoTensorError: If no operand is a tensor or has one.
        SpmdError: If operands, parameters or strategy do not fit the operator; the message names the operator.
    """
    first_world = getattr(operands[0], "world", None) if operands else None
    if not operands or any(not isinstance(x, PlainTensor) or x.world is not first_world for x in operands):
        operands = operands_of_one_world(op.name, operands)
    world: Any = operands[0].world
    observers, call = world.observers, (op, operands, params, strategy)
    watcher = observers.watchers[-1] if observers.watchers else None
    if watcher is not None:
        op, strategy = watcher.before(*call)
    key = (op, strategy, *[x.meta for x in operands])
    if params:
        key += tuple(params.items()) if not op.varying else tuple(derived_from(op, params))
    recipe: Recipe | None = world.cache.get(key)
    if recipe is None:
        metas = [x.meta for x in operands]
        with context(operator=op.name, operands=lambda: ", ".join(map(repr, metas))):
            recipe = Recipe.derive(op, metas, params, world, strategy)
        world.cache[key] = recipe
    if observers.traces:
        with observers.span(recipe, world, 0):
            results = recipe.run(operands, params)
    else:
        results = recipe.run(operands, params)
    if watcher is not None:
        watcher.after(*call, results)
    return results[0] if len(results) == 1 else tuple(results)


def derived_from(op: Op, params: Params) -> list[tuple[str, Any]]:
    """Return ``(name, value)`` of the parameters on which a recipe depends.

    These are all parameters but the operator's ``varying`` ones.
    """
    return [(name, value) for name, value in params.items() if name not in op.varying]


def operands_of_one_world(name: str, values: Sequence[Any]) -> Sequence[PlainTensor]:
    """Return the operands of an operator as tensors of the world of the first tensor.

    This world converts the other operands (:meth:`AbstractWorld.operands`).

    Args:
        name: the operator's name, for messages.
        values: the operands: tensors, objects with an attribute ``tensor``, or other values that the world
            converts.

    Raises:
        NoTensorError: If no value is a tensor or has one.
        UsageTypeError: If the world cannot convert a value.
        WorldError: If the world cannot take a tensor of another world.
    """
    for x in values:
        tensor = x if isinstance(x, PlainTensor) else getattr(x, "tensor", None)
        if isinstance(tensor, PlainTensor):
            return tensor.world.operands(name, values, tensor)
    kinds = ", ".join(type(x).__name__ for x in values) or "no operand"
    raise NoTensorError(
        f"{name} takes tensors, but got {kinds}; make one with Tensor.from_global(array, layout)"
    )
