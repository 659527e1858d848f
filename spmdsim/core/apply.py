"""Applying an operator: redistribute the operands, run the local function on each shard, remember how.

What follows from the operands' metas alone is derived once, as a :class:`Recipe`: bind the rule, choose the strategy,
from it the layouts wanted, a route for each operand that lies otherwise, and the layouts of the results.

Next: :mod:`spmdsim.core.tape`, the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import attrgetter
from typing import Any
from zlib import crc32

import numpy as np

from spmdsim.core import elements, operator
from spmdsim.core.bound import BoundRule
from spmdsim.core.layout import Layout
from spmdsim.core.meta import Meta
from spmdsim.core.operator import Context, Op, OutStrategy, ShardedOp
from spmdsim.core.phases import Phase, run_phases, run_shapes
from spmdsim.core.reductions import each
from spmdsim.core.route import Route
from spmdsim.core.strategy import Strategy
from spmdsim.core.tape import MoveNode, OpNode
from spmdsim.core.tensor import Tensor, follow
from spmdsim.core.world import ORIGINS, World, performed, programs, recordings
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
        op: the operator.
        number: of the operator and its parameters, the same in all processes.
        bound: its rule with sizes.
        strategy: the chosen strategy.
        plans: per operand the redistribution it needs, or None.
        inputs: metas of the operands as the local function sees them.
        outputs: metas of the results as the local function leaves them, pending reductions included.
        finals: the redistribution of each result that the operator itself does, or None.
        active: per owned rank whether it takes part (is in the mesh).
        plain: no redistribution, no context, every owned rank active: the fast path.
        forward: the local function.
        vjp: the local gradient function, if the operator has a gradient.
        instead: what runs in the place of the local function, if the strategy of the result brings it.
        phases: the collectives in the middle of the local function; None if it has none.
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
    plain: bool
    forward: Callable[..., Any]
    vjp: Callable[..., Any] | None
    instead: Any = None
    phases: Sequence[Phase] | None = None
    _contexts: dict[int, Context] = field(default_factory=dict)

    def context(self, rank: int) -> Context:
        """What a contextual local function may ask about a rank's shards."""
        if rank not in self._contexts:
            self._contexts[rank] = Context(self.bound, self.strategy, rank)
        return self._contexts[rank]

    @cached_property
    def computed(self) -> tuple[Meta, ...]:
        """Metas of the results before what the operator itself does with them in the end."""
        return self.outputs if self.instead is None else (self.outputs[0].with_layout(self.instead.layout),)

    @cached_property
    def gradients(self) -> tuple[Meta, ...]:
        """Metas of the operands' gradients as the local gradient function leaves them."""
        layouts = (self.bound.gradient_layout(self.strategy, i) for i in range(len(self.inputs)))
        return tuple(meta.with_layout(layout) for meta, layout in zip(self.inputs, layouts))

    @cached_property
    def duals(self) -> tuple[Layout, ...]:
        """Layouts in which the local gradient function takes the results' gradients."""
        if self.instead is not None and self.instead.taken is not None:
            return (self.instead.taken,)
        return tuple(meta.layout.dual() for meta in self.outputs)


def make_recipe(
    op: Op, sharding: ShardedOp | None, metas: Sequence[Meta], params: dict[str, Any], world: World
) -> Recipe:
    """Derive the recipe of an operator call.

    Raises:
        RuleError: operands, parameters or strategy that do not fit the operator.
    """
    dtypes = [meta.dtype for meta in metas]
    bound = op.bind([meta.shape for meta in metas], params, dtypes)
    strategy = _strategy(sharding, bound, metas, world)
    wanted = bound.input_layouts(strategy)
    plans = tuple(_route(meta, layout, world) for meta, layout in zip(metas, wanted))
    if sharding is None and not strategy.splits and any(plans):
        world.gathers_whole(op.name, bound, metas, plans)
    dtype = op.result_dtype(dtypes, params)
    layouts = bound.output_layouts(strategy)
    each = dtype if isinstance(dtype, tuple) else (dtype,) * len(layouts)
    outputs = tuple(Meta.of(*facts) for facts in zip(layouts, bound.output_shapes, each))
    out = None if sharding is None else sharding.out_strategy
    instead = out.instead(bound, wanted, layouts[0], params) if isinstance(out, OutStrategy) else None
    landed = outputs if instead is None else (outputs[0].with_layout(instead.layout),)
    finals = tuple(_route(meta, _target(op, sharding, meta), world) for meta in landed)
    active = tuple(rank in strategy.mesh for rank in world.ranks)
    inputs = tuple(meta.with_layout(layout) for meta, layout in zip(metas, wanted))
    moves = any(p is not None for p in (*plans, *finals)) or instead is not None
    phases = bound.steps(strategy)
    plain = not moves and not op.contextual and all(active) and len(outputs) == 1 and phases is None
    kinds = tuple(meta.dtype for meta in (*inputs, *outputs))
    forward = op.forward if op.moves else elements.types.local(op.forward, kinds)
    vjp = None if op.vjp is None else elements.types.local(op.vjp, kinds)
    number = _number(op.name, *[(name, value) for name, value in params.items() if name not in op.varying])
    landing = (finals, active, plain, forward, vjp, instead, phases)
    return Recipe(op, number, bound, strategy, plans, inputs, outputs, *landing)


def _number(*facts: Any) -> int:
    """The number of some facts, the same in all processes."""
    return crc32(repr(_alike(facts)).encode())


def _varied(op: Op, params: dict[str, Any]) -> int:
    """A number for the parameters that no recipe knows."""
    return _number(*[params.get(name) for name in op.varying]) if op.varying else 0


def _alike(value: Any) -> Any:
    """A parameter as all processes print it; of what they may print otherwise, such as functions, the type."""
    if isinstance(value, (tuple, list)):
        return [_alike(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    kinds = (str, bytes, int, float, complex, slice, np.dtype, type(None))
    return value if isinstance(value, kinds) else type(value).__name__


def _strategy(sharding: ShardedOp | None, bound: BoundRule, metas: Sequence[Meta], world: World) -> Strategy:
    layouts = [meta.layout for meta in metas]
    if sharding is not None:
        strategy = sharding.strategy(bound, world.size, layouts[0].mesh if layouts else None)
        world.check_mesh(strategy.mesh)
        return strategy
    try:
        return bound.infer(layouts)
    except RuleError:
        return world.choose(bound, layouts, [meta.held for meta in metas])


def _route(meta: Meta, layout: Layout, world: World) -> Route | None:
    if layout is meta.layout or layout == meta.layout or layout.canonical == meta.layout.canonical:
        return None
    world.check_mesh(meta.layout.mesh)
    return world.plan(meta.layout, layout, meta.shape, meta.dtype)


def _target(op: Op, sharding: ShardedOp | None, meta: Meta) -> Layout:
    if sharding is not None:
        return result_layout(sharding.out_strategy, meta.layout, meta.shape)
    return meta.layout.reduced if op.finish else meta.layout


def result_layout(out: Any, computed: Layout, shape: Sequence[int]) -> Layout:
    """The layout of a result with a given out_strategy; without one, pending reductions are done."""
    if out is None:
        return computed.reduced
    if isinstance(out, OutStrategy):
        return out.layout
    if isinstance(out, tuple) and len(out) == 1 and isinstance(out[0], (tuple, Layout)):
        out = out[0]
    return out if isinstance(out, Layout) else operator.cuts.result_layout(out, computed, shape)


def apply(
    op: Op,
    tensors: Sequence[Tensor],
    params: dict[str, Any],
    sharding: ShardedOp | None = None,
    seen: bool = False,
) -> Any:
    """Apply an operator to global tensors.

    The recipe is derived once per combination of operand metas and parameters; a repeated call only looks it up.

    Args:
        op: the operator.
        tensors: the operands, all of one world.
        params: the operator's parameters; hashable values.
        sharding: the operator with its given strategy, if any.
        seen: whether the watcher knows of this call.

    Returns:
        The result, or a tuple of results.

    Raises:
        SpmdError: operands, parameters or strategy that do not fit, with the operator and its operands.
    """
    if watchers and not seen:
        return _watched(watchers[-1], op, operands_of[-1](op, tensors), params, sharding)
    try:
        first, last, two = tensors[0], tensors[-1], len(tensors) == 2  # as most operators have
        world = first.world
        key = (op, sharding, first.meta, last.meta) if two else (op, sharding, *map(_meta, tensors))
        if params:
            key += tuple(
                [p for p in params.items() if p[0] not in op.varying] if op.varying else params.items()
            )
    except AttributeError:  # a parameter, an array or a number among them
        return apply(op, operands_of[-1](op, tensors), params, sharding, seen)
    if last.world is not world or (not two and any(tensor.world is not world for tensor in tensors)):
        other = next(tensor.world for tensor in tensors if tensor.world is not world)
        raise WorldError(
            f"operands of {op.name} live in different worlds, {world} and {other}: make both with the same "
            "world=, or without one after asking spmdsim.world(N) for enough ranks"
        )
    recipe: Recipe | None = world.cache.get(key)
    if recipe is None:
        recipe = world.cache[key] = _derive(op, tensors, params, sharding)
    if recordings:
        return world.recorded(recipe, lambda: _run(recipe, tensors, params))
    if not recipe.plain:
        return _run(recipe, tensors, params)
    meta = recipe.outputs[0]
    if not world.has_data:
        shards = world.empties(meta)
    elif len(first.held) == 1:
        arrays = (first.held[0], last.held[0]) if two else [tensor.held[0] for tensor in tensors]
        array = recipe.forward(*arrays, **params) if params else recipe.forward(*arrays)
        shards = [array if array.dtype is meta.held else op.typed(array, meta.held)]
    else:
        shards = each(partial(_local, recipe, params, None), *[tensor.held for tensor in tensors])
    origin = 0
    if world.compares and two and not op.varying:  # what a world would say, without asking it
        origin = hash((recipe.number, first.origin, last.origin)) & ORIGINS
    elif world.compares:
        origin = world.derived_origin(recipe, tensors, _varied(op, params))
    result = type(first)(world, meta, shards, False, "", origin)
    if first._tracked or last._tracked or (not two and any(tensor._tracked for tensor in tensors)):
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


def _derive(op: Op, tensors: Sequence[Tensor], params: dict[str, Any], sharding: ShardedOp | None) -> Recipe:
    with context(operator=op.name, operands=", ".join(repr(tensor.meta) for tensor in tensors)):
        return make_recipe(op, sharding, [tensor.meta for tensor in tensors], params, tensors[0].world)


def _run(recipe: Recipe, tensors: Sequence[Tensor], params: dict[str, Any]) -> Any:
    world, kind = tensors[0].world, type(tensors[0])
    moved = [_bring(recipe, i, t) for i, t in enumerate(tensors)]
    if recipe.instead is None:
        if recipe.phases is not None:
            world.about = world.derived_origin(recipe, moved)
        computed = performed(partial(calculated, recipe, world, params), *[tensor.held for tensor in moved])
    else:
        if programs:
            programs[-1].refuse(f"{recipe.op.name} exchanges rows that the ids decide about in every call")
        computed = [recipe.instead.run(recipe, moved)]
    varied, origin = _varied(recipe.op, params), world.derived_origin
    results = [
        kind(world, meta, shards, origin=origin(recipe, moved, k + varied) if world.compares else 0)
        for k, (meta, shards) in enumerate(zip(recipe.computed, computed))
    ]
    if any(tensor.requires_grad for tensor in moved):
        _track(recipe, moved, results, params)
    finished = [r if p is None else follow(r, p) for r, p in zip(results, recipe.finals)]
    if finished[0] is not results[0] and isinstance(results[0].node, OpNode):
        results[0].node.finished(finished)
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
    renamed = type(tensor)(
        tensor.world, wanted, tensor.held, tensor.requires_grad, tensor.name, tensor.origin
    )
    renamed.node, renamed.output = tensor.node, tensor.output
    if tensor.requires_grad and tensor.node is None:
        renamed.node = MoveNode(tensor)
    return renamed


def calculated(recipe: Recipe, world: Any, params: dict[str, Any], *lists: list[Any]) -> list[list[Any]]:
    """The results' arrays on every owned rank, from those of the operands where the local function wants them."""
    if not world.has_data:
        run_shapes(recipe.phases or (), world)
        world.about = 0
        return [world.empties(meta) for meta in recipe.outputs]
    if not recipe.op.contextual and (recipe.op.together or recipe.phases) is None and all(recipe.active):
        per_rank = each(partial(_local, recipe, params, None), *lists)
    else:
        begin = _local if recipe.phases is None else _begin
        columns = zip(world.ranks, recipe.active, *lists)
        jobs = {r: partial(begin, recipe, params, r, *arrays) for r, active, *arrays in columns if active}
        if recipe.op.together is not None:
            found = recipe.op.together(world, recipe.strategy.mesh, jobs)
        elif recipe.phases is not None:
            begun = [jobs[rank]() if rank in jobs else None for rank in world.ranks]
            found = dict(zip(world.ranks, run_phases(recipe.phases, world, begun)))
            found = {rank: _typed(recipe, found[rank]) for rank in jobs}
            world.about = 0
        else:
            found = {rank: job() for rank, job in jobs.items()}
        per_rank = [found[rank] if rank in found else _outside(recipe) for rank in world.ranks]
    if len(recipe.outputs) == 1:
        return [per_rank]
    return [list(column) for column in zip(*per_rank)]


def _begin(recipe: Recipe, params: dict[str, Any], rank: int, *arrays: Any) -> Any:
    return recipe.forward(*((recipe.context(rank),) if recipe.op.contextual else ()), *arrays, **params)


def _local(recipe: Recipe, params: dict[str, Any], rank: Any, *arrays: Any) -> Any:
    return _typed(recipe, _begin(recipe, params, rank, *arrays))


def _typed(recipe: Recipe, result: Any) -> Any:
    """What the local function gave, in the types that the results' metas say."""
    if len(recipe.outputs) == 1:
        return recipe.op.typed(result, recipe.outputs[0].held)
    return tuple(recipe.op.typed(array, meta.held) for array, meta in zip(result, recipe.outputs))


def _outside(recipe: Recipe) -> Any:
    """What a rank outside the mesh holds: arrays without elements."""
    empty = [np.zeros((0,) * len(meta.shape), meta.held) for meta in recipe.outputs]
    return empty[0] if len(empty) == 1 else tuple(empty)


def _track(
    recipe: Recipe, operands: Sequence[Tensor], results: Sequence[Tensor], params: dict[str, Any]
) -> None:
    if not recipe.op.has_gradient or not elements.types.has_gradient(results[0].dtype):
        return
    node = OpNode(recipe, operands, results, params)
    for k, result in enumerate(results):
        if elements.types.has_gradient(result.dtype):
            result.requires_grad, result.node, result.output = True, node, k
