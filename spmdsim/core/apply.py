"""Applying an operator: redistribute the operands, run the local function on each shard, remember how.

What follows from the operands' metas alone is derived once, as a :class:`Recipe`: bind the rule, choose the strategy,
from it the layouts wanted, a route for each operand that lies otherwise, and the layouts of the results.

This is the last file: the way from mesh to gradients ends here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import attrgetter
from typing import Any

import numpy as np

from spmdsim.core import elements, operator
from spmdsim.core.bound import BoundRule
from spmdsim.core.layout import Layout
from spmdsim.core.meta import Meta
from spmdsim.core.operator import Context, Op, ShardedOp
from spmdsim.core.reductions import each
from spmdsim.core.route import Route
from spmdsim.core.strategy import Strategy
from spmdsim.core.tape import MoveNode, OpNode
from spmdsim.core.tensor import Tensor, follow
from spmdsim.core.world import ORIGINS, World, recordings
from spmdsim.errors import RuleError, UsageTypeError, WorldError, context

#: Who sees operator calls, and may say with which strategy they run; the last one counts.
watchers: list[Any] = []
#: Who is asked before an operator moves an operand, with its name and the route; the last one counts.
guards: list[Callable[[str, Any], None]] = []

_meta = attrgetter("meta")


def _refuse(op: Op, given: Sequence[Any]) -> list[Tensor]:
    raise UsageTypeError(f"{op.name} takes tensors, but got {', '.join(type(x).__name__ for x in given)}")


#: Makes operands of what is none: :mod:`spmdsim.tensor.operands` takes numbers, arrays and parameters.
operands_of: list[Callable[[Op, Sequence[Any]], list[Any]]] = [_refuse]


@dataclass
class Recipe:
    """What to do when an operator meets operands with these metas in this world.

    Attributes:
        op: the operator that runs.
        number: of the operator and its parameters, the same in all processes.
        bound: its rule with sizes.
        strategy: the chosen strategy.
        plans: per operand the redistribution it needs, or None.
        inputs: metas of the operands as the local function sees them.
        outputs: metas of the results as the local function leaves them, pending reductions included.
        finals: the redistribution of each result that the operator itself does, or None.
        active: per owned rank whether it takes part (is in the mesh).
        prepared: what a kind of operators derived besides (:meth:`~spmdsim.core.operator.Op.prepared`).
        moves: whether some operand needs a redistribution.
        plain: the operands once brought, nothing but the local function is left, with one result on every owned rank.
        alone: the local function of the only owned rank, its context given, or made for the shapes that it has there.
        forward: the local function.
        vjp: the local gradient function, if the operator has a gradient.
        blanks: per choice of operands whose gradients are wanted, what stands for those that these do not look at.
    """

    op: Op
    number: int
    bound: BoundRule
    strategy: Strategy
    plans: tuple[Route | None, ...]
    inputs: tuple[Meta, ...]
    outputs: tuple[Meta, ...]
    finals: tuple[Route | None, ...]
    active: tuple[bool, ...]
    prepared: Any
    moves: bool
    plain: bool
    alone: Callable[..., Any]
    forward: Callable[..., Any]
    vjp: Callable[..., Any] | None
    _contexts: dict[int, Context] = field(default_factory=dict)
    blanks: dict[tuple[bool, ...], list[list[Any]]] = field(default_factory=dict)

    def head(self, rank: int) -> tuple[Context, ...]:
        """What comes before a rank's arrays in the local functions: its context, where the operator asks for one."""
        if self.op.contextual and rank not in self._contexts:
            self._contexts[rank] = Context(self.bound, self.strategy, rank)
        return (self._contexts[rank],) if self.op.contextual else ()

    def local(self, params: dict[str, Any], rank: Any, *arrays: Any) -> Any:
        """Run the local function on a rank's arrays."""
        return self.typed(self.forward(*self.head(rank), *arrays, **params))

    def typed(self, result: Any) -> Any:
        """What the local function gave, in the types that the results' metas say."""
        if len(self.outputs) == 1:
            return self.op.typed(result, self.outputs[0].held)
        return tuple(self.op.typed(array, meta.held) for array, meta in zip(result, self.outputs))

    def outside(self) -> Any:
        """What a rank outside the mesh holds: arrays without elements."""
        empty = [np.zeros((0,) * len(meta.shape), meta.held) for meta in self.outputs]
        return empty[0] if len(empty) == 1 else tuple(empty)

    def unseen(self, operands: Sequence[Tensor], wanted: tuple[bool, ...]) -> list[list[Any]]:
        """Zeros that take no memory, for operands that the wanted gradients do not look at; nothing for the others."""
        held = [x.held if x.world.has_data else [] for x in operands]
        zeros = [
            [np.broadcast_to(np.zeros((), array.dtype), array.shape) for array in arrays] for arrays in held
        ]
        looks = self.bound.looks_at(wanted)
        self.blanks[wanted] = [[] if look else blank for look, blank in zip(looks, zeros)]
        return self.blanks[wanted]

    @cached_property
    def duals(self) -> tuple[Layout, ...]:
        """Layouts in which the results' gradients are taken."""
        return self.op.duals(self)

    @cached_property
    def gradients(self) -> tuple[Meta, ...]:
        """Metas of the operands' gradients as the local gradient function leaves them."""
        layouts = (self.bound.gradient_layout(self.strategy, i) for i in range(len(self.inputs)))
        return tuple(meta.with_layout(layout) for meta, layout in zip(self.inputs, layouts))


def make_recipe(
    op: Op, sharding: ShardedOp | None, metas: Sequence[Meta], params: dict[str, Any], world: World
) -> Recipe:
    """Derive the recipe of an operator call; RuleError if operands, parameters or strategy do not fit."""
    dtypes = [meta.dtype for meta in metas]
    bound = op.bind([meta.shape for meta in metas], params, dtypes)
    strategy = _strategy(sharding, bound, metas, world)
    op = op if sharding is None else sharding.instead(bound, strategy, params)
    wanted = bound.input_layouts(strategy)
    plans = tuple(_route(meta, layout, world) for meta, layout in zip(metas, wanted))
    if sharding is None and not strategy.splits and any(plans):
        world.gathers_whole(op.name, bound, metas, plans)
    dtype, layouts = op.result_dtype(dtypes, params), op.output_layouts(bound, strategy)
    kinds = dtype if isinstance(dtype, tuple) else (dtype,) * len(layouts)
    outputs = tuple(Meta.of(*facts) for facts in zip(layouts, bound.output_shapes, kinds))
    finals = tuple(_route(meta, _target(op, sharding, meta), world) for meta in outputs)
    active = tuple(rank in strategy.mesh for rank in world.ranks)
    inputs = tuple(meta.with_layout(layout) for meta, layout in zip(metas, wanted))
    prepared = op.prepared(bound, strategy, params)
    turns = op.contextual and (len(active) > 1 or type(op).on_ranks is not Op.on_ranks)
    plain = prepared is None and finals == (None,) and all(active) and not turns
    kinds = tuple(meta.dtype for meta in (*inputs, *outputs))
    forward = op.forward if op.moves else elements.types.local(op.forward, kinds)
    vjp = None if op.vjp is None else elements.types.local(op.vjp, kinds)
    contexts = {rank: Context(bound, strategy, rank) for rank in world.ranks[: int(op.contextual)]}
    alone = partial(forward, *contexts.values()) if contexts else forward
    if active == (True,) and world.has_data and not params and not contexts and hasattr(forward, "known"):
        shapes = [meta.layout.local_shape(meta.shape, world.ranks[0]) for meta in inputs]
        alone = forward.known(*[np.broadcast_to(np.empty((), m.held), n) for m, n in zip(inputs, shapes)])
    known = [(name, value) for name, value in params.items() if name not in op.varying]
    landing = (outputs, finals, active, prepared, any(plans), plain, alone, forward, vjp, contexts)
    return Recipe(op, world.number(op.name, *known), bound, strategy, plans, inputs, *landing)


def _varied(op: Op, params: dict[str, Any], world: World) -> int:
    """A number for the parameters that no recipe knows."""
    return world.number(*[params.get(name) for name in op.varying]) if op.varying else 0


def _strategy(sharding: ShardedOp | None, bound: BoundRule, metas: Sequence[Meta], world: World) -> Strategy:
    layouts = [meta.layout for meta in metas]
    if sharding is not None:
        strategy = sharding.strategy(bound, world.size, layouts[0].mesh)
        world.check_mesh(strategy.mesh)
        return strategy
    try:
        return bound.infer(layouts)
    except RuleError:
        return world.choose(bound, layouts, [meta.held for meta in metas])


def _route(meta: Meta, layout: Layout, world: World) -> Route | None:
    same = layout.canonical == meta.layout.canonical
    return None if same else world.plan(meta.layout, layout, meta.shape, meta.dtype)


def _target(op: Op, sharding: ShardedOp | None, meta: Meta) -> Layout:
    if sharding is not None:
        return operator.reader.result_layout(sharding.out_strategy, meta.layout, meta.shape)
    return meta.layout.reduced if op.finish else meta.layout


def apply(
    op: Op,
    tensors: Sequence[Tensor],
    params: dict[str, Any],
    sharding: ShardedOp | None = None,
    seen: bool = False,
) -> Any:
    """Apply an operator to global tensors; with several results, it gives a tuple.

    The recipe is derived once per combination of operand metas and parameters; a repeated call only looks it up.

    Args:
        op: the operator.
        tensors: the operands, all of one world.
        params: the operator's parameters; hashable values.
        sharding: the operator with its given strategy, if any.
        seen: whether the watcher knows of this call.

    Raises:
        SpmdError: operands, parameters or strategy that do not fit, with the operator and its operands.
    """
    if watchers and not seen:
        return _watched(watchers[-1], op, operands_of[-1](op, tensors), params, sharding)
    try:
        first, last, two, more = tensors[0], tensors[-1], len(tensors) == 2, len(tensors) > 2
        world = first.world
        key = (op, sharding, first.meta, last.meta) if two else (op, sharding, *map(_meta, tensors))
        if params:
            key += tuple(
                [p for p in params.items() if p[0] not in op.varying] if op.varying else params.items()
            )
    except AttributeError:  # a parameter, an array or a number among them
        return apply(op, operands_of[-1](op, tensors), params, sharding, seen)
    if last.world is not world or (more and any(tensor.world is not world for tensor in tensors)):
        other = next(tensor.world for tensor in tensors if tensor.world is not world)
        raise WorldError(
            f"operands of {op.name} live in different worlds, {world} and {other}: make both with the same "
            "world=, or without one after asking spmdsim.world(N) for enough ranks"
        )
    recipe: Recipe | None = world.cache.get(key)
    if recipe is None:
        with context(operator=op.name, operands=", ".join(repr(tensor.meta) for tensor in tensors)):
            recipe = make_recipe(op, sharding, [tensor.meta for tensor in tensors], params, world)
        world.cache[key] = recipe
    if recordings:
        return world.recorded(recipe, lambda: _run(recipe, tensors, params))
    if not recipe.plain:
        return _run(recipe, tensors, params)
    if recipe.moves:
        tensors = [_bring(recipe, i, tensor) for i, tensor in enumerate(tensors)]
        first, last = tensors[0], tensors[-1]
    meta = recipe.outputs[0]
    if not world.has_data:
        shards = world.empties(meta)
    elif len(first.held) == 1:
        if two and not params:  # an empty ** is not free
            array = recipe.alone(first.held[0], last.held[0])
        else:
            array = recipe.alone(*[tensor.held[0] for tensor in tensors], **params)
        shards = [array if array.dtype is meta.held else op.typed(array, meta.held)]
    else:
        shards = each(partial(recipe.local, params, None), *[tensor.held for tensor in tensors])
    origin = 0
    if world.compares and two and not op.varying:  # what a world would say, without asking it
        origin = hash((recipe.number, first.origin, last.origin)) & ORIGINS
    elif world.compares:
        origin = world.derived_origin(recipe, tensors, _varied(op, params, world))
    result = type(first)(world, meta, shards, False, "", origin)
    if first._tracked or last._tracked or (more and any(tensor._tracked for tensor in tensors)):
        _track(recipe, tensors, [result], params)
    return result


operator.applied[0] = apply


def _watched(
    watcher: Any, op: Op, tensors: Sequence[Tensor], params: dict[str, Any], sharding: ShardedOp | None
) -> Any:
    changed, strategy = watcher.before(op, tensors, params, sharding)
    results = apply(changed, tensors, params, strategy, seen=True)
    watcher.after(op, tensors, params, sharding, results if isinstance(results, tuple) else (results,))
    return results


def _run(recipe: Recipe, tensors: Sequence[Tensor], params: dict[str, Any]) -> Any:
    world, kind = tensors[0].world, type(tensors[0])
    moved = [_bring(recipe, i, t) for i, t in enumerate(tensors)]
    computed = recipe.op.computed(recipe, moved, params)
    varied, origin = _varied(recipe.op, params, world), world.derived_origin
    results = [
        kind(world, meta, shards, origin=origin(recipe, moved, k + varied) if world.compares else 0)
        for k, (meta, shards) in enumerate(zip(recipe.outputs, computed))
    ]
    if any(tensor.requires_grad for tensor in moved):
        _track(recipe, moved, results, params)
    finished = [r if p is None else follow(r, p) for r, p in zip(results, recipe.finals)]
    if recipe.op.finish and isinstance(node := results[0].node, OpNode) and node.saved:
        node.saved = [
            result.held for result in finished
        ]  # a local gradient function looks at what the user sees
    return finished[0] if len(finished) == 1 else tuple(finished)


def _bring(recipe: Recipe, operand: int, tensor: Tensor) -> Tensor:
    """An operand in the layout that the local function wants."""
    route, wanted = recipe.plans[operand], recipe.inputs[operand]
    if route is not None:
        if guards:
            guards[-1](recipe.op.name, route)
        return follow(tensor, route)
    if tensor.meta is wanted:
        return tensor
    # The same distribution under another name: only axes of size one differ.
    facts = tensor.held, tensor.requires_grad, tensor.name, tensor.origin
    renamed = type(tensor)(tensor.world, wanted, *facts)
    renamed.node = MoveNode(tensor) if tensor.requires_grad else None
    return renamed


def _track(
    recipe: Recipe, operands: Sequence[Tensor], results: Sequence[Tensor], params: dict[str, Any]
) -> None:
    if not recipe.op.has_gradient or not elements.types.has_gradient(results[0].dtype):
        return
    node = (recipe.op.node or OpNode)(recipe, operands, results, params)
    for k, result in enumerate(results):
        if elements.types.has_gradient(result.dtype):
            result.requires_grad, result.node, result.output = True, node, k
