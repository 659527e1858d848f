"""The operator: one declaration, from which layouts, gradients and costs follow; and how it is applied.

A call redistributes the operands, runs the local function on each shard, and remembers how. What follows from the
operands' metas alone is derived once, as a :class:`Recipe`: bind the rule, choose the strategy, from it the layouts
wanted, a route for each operand that lies otherwise, and the layouts of the results.

What plugs in here: the operators of programs (:mod:`spmdsim.tensor.program_operator`) override what is asked of an operator;
calls that are watched, recorded, and fast when they come again (:mod:`spmdsim.tensor.operator_calls`), what is asked of a recipe.

This is the last file: the way from mesh to gradients ends here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import compress
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.core.element_types import computed_widely, has_gradient, promoted, typed_rule
from spmdsim.core.elements import each
from spmdsim.core.layout import Layout
from spmdsim.core.rule import BoundRule, Rule, Strategy, bind
from spmdsim.core.step import Route
from spmdsim.core.tape import OpNode, Params
from spmdsim.core.tensor import Meta, T, Tensor, follow
from spmdsim.core.world import World, performed
from spmdsim.errors import RuleError, UsageTypeError, context
from spmdsim.notation.rules import Shape
from spmdsim.pictured import Pictured

Arrays = list[np.ndarray]
Dtypes = Sequence[np.dtype]
#: A local function: arrays in, and out.
Local = Callable[..., object]
RuleSource = Rule | Callable[..., Rule | tuple[Rule, Mapping[str, int]]]


@dataclass(frozen=True, eq=False)
class Op(Pictured):
    """An operator on global tensors.

    Attributes:
        name: its name in traces and errors.
        rule: its rule, or a function of the operands' shapes and the parameters that gives one (and, as a
            second value, sizes of factors that the shapes do not determine).
        forward: the local function, numpy arrays in, array (or tuple of arrays) out; ``**params`` follow.
        vjp: the local gradient function ``(dy, operands, result, **params) -> gradients``, one per operand,
            None for operands without gradient. It sees shards only; sums follow from the rule.
        dtype: result type from the operands' types and the parameters; the one in which they meet if None.
    """

    name: str
    rule: RuleSource
    forward: Local
    vjp: Callable[..., Sequence[object]] | None = None
    dtype: Callable[..., DTypeLike | tuple[DTypeLike, ...]] | None = None

    #: What the tape keeps of a call.
    node: ClassVar[type[OpNode]] = OpNode

    def __call__(self, *tensors: T, **params: object) -> T:
        """Apply the operator; see :func:`apply`. Several results are a tuple."""
        return self.apply(tensors, params)  # type: ignore[no-any-return]

    def apply(self, tensors: Sequence[Tensor], params: dict[str, Any], strategy: Any = None) -> Any:
        """Apply the operator with a :class:`Strategy`; operators of programs take strategies as users write them."""
        return apply(self, tensors, params, strategy)

    def bind(self, shapes: Sequence[Shape], params: Params, dtypes: Dtypes | None = None) -> BoundRule:
        """The rule for these shapes, and what of it holds for these element types; RuleError if it does not fit."""
        with context(operator=self.name):
            source = self.rule if isinstance(self.rule, Rule) else self.rule(*shapes, **params)
            rule, sizes = source if isinstance(source, tuple) else (source, {})
            if dtypes is not None and len(dtypes) == len(rule.inputs):
                kind = self.result_dtype(dtypes, params)
                rule = typed_rule(rule, tuple(dtypes), kind[0] if isinstance(kind, tuple) else kind)
            return bind(rule, tuple(map(tuple, shapes)), tuple(sorted(sizes.items())))

    def result_dtype(self, dtypes: Dtypes, params: Params) -> np.dtype | tuple[np.dtype, ...]:
        """Element type of the result; of several results that are not alike a tuple of them."""
        if self.dtype is None:
            return promoted(*dtypes)
        kind: Any = self.dtype(*dtypes, **params)
        return kind if isinstance(kind, tuple) else np.dtype(kind)

    def output_layouts(self, bound: BoundRule, strategy: Strategy) -> tuple[Layout, ...]:
        """The layouts in which the local function leaves the results."""
        return bound.output_layouts(strategy)

    def functions(self, dtypes: Dtypes) -> tuple[Local, Local | None]:
        """Return ``forward`` and ``vjp`` for operands and results of these types: they get float32 for 16-bit floats."""
        vjp = None if self.vjp is None else computed_widely(self.vjp, dtypes)
        return computed_widely(self.forward, dtypes), vjp

    def computed(self, recipe: Recipe, tensors: Sequence[Tensor], params: Params) -> list[Arrays]:
        """The arrays of the results on every owned rank, from operands where the local function wants them."""
        run = partial(calculated, recipe, tensors[0].world, params)
        return performed(run, *[tensor.held for tensor in tensors])  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"Op({self.name})"


@dataclass
class Recipe:
    """What to do when an operator meets operands with these metas in this world.

    ``plans`` are the redistributions of operands, None where there is nothing to move; ``inputs`` and ``outputs`` are the
    metas that the local function sees and leaves; ``active`` says which owned ranks take part.
    """

    op: Op
    bound: BoundRule
    strategy: Strategy
    plans: tuple[Route | None, ...]
    inputs: tuple[Meta, ...]
    outputs: tuple[Meta, ...]
    active: tuple[bool, ...]
    forward: Callable[..., Any]
    vjp: Callable[..., Any] | None

    @classmethod
    def derive(
        cls, op: Op, metas: Sequence[Meta], params: Params, world: World, strategy: Strategy | None = None
    ) -> Any:
        """That of a call, maybe with a given strategy; RuleError if operands or parameters do not fit."""
        layouts, dtypes = [meta.layout for meta in metas], [meta.dtype for meta in metas]
        bound = op.bind([meta.shape for meta in metas], params, dtypes)
        if strategy is None:
            try:
                strategy = bound.infer(layouts)
            except RuleError:
                strategy = world.choose(bound, layouts, [meta.held for meta in metas])
        else:
            bound.check(strategy)
        world.check_mesh(strategy.mesh)
        inputs = tuple(map(Meta.with_layout, metas, bound.input_layouts(strategy)))
        plans = tuple(routed(meta, wanted.layout, world) for meta, wanted in zip(metas, inputs))
        dtype, computed = op.result_dtype(dtypes, params), op.output_layouts(bound, strategy)
        kinds = dtype if isinstance(dtype, tuple) else (dtype,) * len(computed)
        outputs = tuple(map(Meta.of, computed, bound.output_shapes, kinds))
        active = tuple(rank in strategy.mesh for rank in world.ranks)
        functions = op.functions([meta.dtype for meta in (*inputs, *outputs)])
        return cls(op, bound, strategy, plans, inputs, outputs, active, *functions)

    def bring(self, operand: int, tensor: T) -> T:
        """Return an operand in the layout that the local function wants: itself if it lies so, under whatever name."""
        route = self.plans[operand]  # the tape has the same nodes on all ranks, in the mesh or not
        if route is None or lies_so(route, tensor.meta, self.inputs[operand]):
            return tensor
        return follow(tensor, route)

    def on_ranks(self, world: World, function: Local, *lists: Arrays) -> list[Any]:
        """What a function makes of every owned rank's arrays; ranks outside of the mesh have None."""
        if all(self.active):
            return each(function, *lists)
        inside = iter(each(function, *[[*compress(arrays, self.active)] for arrays in lists]))
        return [next(inside) if active else None for active in self.active]

    def local(self, params: Params, *arrays: np.ndarray, head: Sequence[Any] = ()) -> tuple[np.ndarray, ...]:
        """What the local function makes of a rank's arrays: an array per result."""
        return self.typed(self.forward(*head, *arrays, **params))

    def typed(self, result: Any) -> tuple[np.ndarray, ...]:
        """What the local function gave, in the types that the results' metas say."""
        arrays = result if len(self.outputs) > 1 else (result,)
        like = zip(map(np.asarray, arrays), [meta.held for meta in self.outputs])
        return tuple([x if x.dtype == kind else x.astype(kind, order="C") for x, kind in like])

    def outside(self) -> tuple[np.ndarray, ...]:
        """What a rank outside the mesh holds: arrays without elements."""
        return tuple(np.zeros((0,) * len(meta.shape), meta.held) for meta in self.outputs)

    def kept(
        self, operands: Sequence[Tensor], results: Sequence[Tensor], wanted: tuple[bool, ...]
    ) -> tuple[list[Arrays], list[Arrays] | None]:
        """The operands' and the results' arrays, as the tape keeps them for these gradients."""
        return [operand.held for operand in operands], [result.held for result in results]

    @cached_property
    def tracked(self) -> tuple[int, ...]:
        """The results that gradients come back from; none without those of the first."""
        differentiable = [has_gradient(meta.dtype) for meta in self.outputs]
        whole = self.vjp is not None and differentiable[0]
        return tuple(compress(range(len(differentiable)), differentiable)) if whole else ()

    @cached_property
    def duals(self) -> tuple[Layout, ...]:
        """Layouts in which the results' gradients are taken."""
        return tuple(meta.layout.dual() for meta in self.outputs)

    @cached_property
    def gradients(self) -> tuple[Meta, ...]:
        """Metas of the operands' gradients as the local gradient function leaves them."""
        layouts = (self.bound.gradient_layout(self.strategy, i) for i in range(len(self.inputs)))
        return tuple(map(Meta.with_layout, self.inputs, layouts))


def lies_so(route: Route | None, before: Meta, after: Meta) -> bool:
    """Return True if shards stay what they are on the way from one layout to another."""
    return route is None or (not route.steps and before.held is after.held)


def routed(meta: Meta, layout: Layout, world: World) -> Route | None:
    """The way of a tensor into a layout; None where it lies so."""
    same = layout is meta.layout or layout.canonical == meta.layout.canonical
    return None if same else world.plan(meta.layout, layout, meta.shape, meta.dtype)


def calculated(recipe: Recipe, world: World, params: Params, *lists: Arrays) -> list[Arrays]:
    """The results' arrays on every owned rank, from those of the operands where the local function wants them."""
    if not world.has_data:
        return [world.empties(meta) for meta in recipe.outputs]
    by_rank = recipe.on_ranks(world, partial(recipe.local, params), *lists)
    return [[*arrays] for arrays in zip(*[recipe.outside() if row is None else row for row in by_rank])]


def track(recipe: Recipe, operands: Sequence[Tensor], results: Sequence[Tensor], params: Params) -> None:
    """Remember what computed the results, for their gradients."""
    if recipe.tracked:
        node = recipe.op.node(recipe, operands, results, params)
        for k in recipe.tracked:
            results[k]._tracked, results[k].node, results[k].output = True, node, k


def run(recipe: Recipe, tensors: Sequence[T], params: Params) -> list[T]:
    """Do what a recipe says: the results as they were computed."""
    world, kind = tensors[0].world, type(tensors[0])
    operands = [x if recipe.plans[i] is None else recipe.bring(i, x) for i, x in enumerate(tensors)]
    results = [
        kind(world, meta, arrays, origin=world.derived_origin(recipe, operands, k, params))
        for k, (meta, arrays) in enumerate(zip(recipe.outputs, recipe.op.computed(recipe, operands, params)))
    ]
    if any(tensor._tracked for tensor in operands):
        track(recipe, operands, results, params)
    return results


def apply(op: Op, tensors: Sequence[Tensor], params: Params, strategy: Strategy | None = None) -> Any:
    """Apply an operator to global tensors of one world; with several results, it gives a tuple.

    The recipe is derived once per combination of operand metas, parameters (hashable values) and strategy, which is the
    cheapest one if none is given; a repeated call only looks it up.
    """
    if not all(isinstance(x, Tensor) for x in tensors):
        kinds = ", ".join(type(x).__name__ for x in tensors)
        raise UsageTypeError(f"{op.name} takes tensors, but got {kinds}")
    world, metas = tensors[0].world, [tensor.meta for tensor in tensors]
    key = (op, strategy, *metas, *params.items())
    if key not in world.cache:
        world.cache[key] = Recipe.derive(op, metas, params, world, strategy)
    results = run(world.cache[key], tensors, params)
    return results[0] if len(results) == 1 else tuple(results)
