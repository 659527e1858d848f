"""Applying an operator: redistribute the operands, run the local function on each shard, remember how."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spmdsim.errors import InputError, RuleError, SpmdError, UsageTypeError, WorldError
from spmdsim.layout.element_type import promoted
from spmdsim.redistribution import guard
from spmdsim.tensor import watch
from spmdsim.tensor.element_types import as_array, has_gradient
from spmdsim.tensor.meta import Meta
from spmdsim.tensor.move import run_plan
from spmdsim.tensor.operator import Op, ShardedOp
from spmdsim.tensor.recipe import Recipe, make_recipe
from spmdsim.tensor.tape import OpNode
from spmdsim.tensor.tensor import Tensor
from spmdsim.trace import recorder
from spmdsim.trace.events import OperatorEvent

if TYPE_CHECKING:
    import numpy as np


def apply(
    op: Op, tensors: Sequence[Tensor], params: dict[str, Any], sharding: ShardedOp | None = None
) -> Any:
    """Apply an operator to global tensors.

    The recipe (strategy, layouts, plans) is derived once per combination of operand metas and parameters;
    a repeated call only looks it up.

    Args:
        op: the operator.
        tensors: the operands, all of one world.
        params: the operator's parameters; hashable values.
        sharding: the operator with its given strategy, if any.

    Returns:
        The result, or a tuple of results.

    Raises:
        SpmdError: operands, parameters or strategy that do not fit, with the operator and its operands.
    """
    if watch.watchers:
        return _watched(op, tensors, params, sharding)
    return _apply(op, tensors, params, sharding)


def _watched(op: Op, tensors: Sequence[Tensor], params: dict[str, Any], sharding: ShardedOp | None) -> Any:
    tensors = _operands(op, tensors)
    watcher = watch.watchers[-1]
    changed, strategy = watcher.before(op, tensors, params, sharding)
    found = _apply(changed, tensors, params, strategy)
    watcher.after(op, tensors, params, sharding, found if isinstance(found, tuple) else (found,))
    return found


def _apply(op: Op, tensors: Sequence[Tensor], params: dict[str, Any], sharding: ShardedOp | None) -> Any:
    try:
        world = tensors[0].world
        key = (op, sharding, *[t.meta for t in tensors], *params.items())
    except AttributeError:  # a parameter, an array or a number among them
        tensors = _operands(op, tensors)
        return _apply(op, tensors, params, sharding)
    for tensor in tensors:
        if tensor.world is not world:
            raise WorldError(
                f"operands of {op.name} live in different worlds, {world} and {tensor.world}: make both with the same "
                "world=, or without one after asking spmdsim.world(N) for enough ranks"
            )
    recipe = world.recipes.get(key)
    if recipe is None:
        recipe = world.recipes[key] = _derive(op, tensors, params, sharding)
    if recipe.plain and not recorder.open_traces:
        return _run_plain(recipe, tensors, params)
    with recorder.operator(op.name):
        if not recorder.recording():
            return _run(recipe, tensors, params)
        start = time.perf_counter()
        results = _run(recipe, tensors, params)
        _emit(recipe, results, start)
    return results


def _operands(op: Op, given: Sequence[Any]) -> list[Tensor]:
    """Operands that are no tensors yet as tensors beside the others.

    Raises:
        UsageTypeError: none of them says in which world that is.
    """
    made = {i: x if isinstance(x, Tensor) else x.value for i, x in enumerate(given) if _placed(x)}
    if not made:
        kinds = ", ".join(type(x).__name__ for x in given)
        raise UsageTypeError(
            f"{op.name} takes tensors, but got {kinds}; make one with Tensor.from_global(array, layout)"
        )
    like = next(iter(made.values()))
    return [made[i] if i in made else as_operand(x, like) for i, x in enumerate(given)]


def _placed(operand: Any) -> bool:
    """A tensor, or a parameter that has its values."""
    return isinstance(operand, Tensor) or isinstance(getattr(operand, "tensor", None), Tensor)


def _derive(op: Op, tensors: Sequence[Tensor], params: dict[str, Any], sharding: ShardedOp | None) -> Recipe:
    world = tensors[0].world
    try:
        return make_recipe(op, sharding, [t.meta for t in tensors], params, world)
    except SpmdError as error:
        error.facts.setdefault("operator", op.name)
        error.facts.setdefault("operands", ", ".join(repr(t.meta) for t in tensors))
        raise error from None


def _run_plain(recipe: Recipe, tensors: Sequence[Tensor], params: dict[str, Any]) -> Tensor:
    world, meta = tensors[0].world, recipe.outputs[0]
    if not world.has_data:
        shards = _shapes(recipe, world, meta)
    elif len(tensors[0].held) == 1:
        shards = [recipe.op.typed(recipe.forward(*[t.held[0] for t in tensors], **params), meta.held)]
    else:
        shards = _distinct(recipe, [t.held for t in tensors], params)
    result = Tensor(world, meta, shards, origin=recipe.origin(tensors) if world.compares else 0)
    for tensor in tensors:
        if tensor.requires_grad:
            _track(recipe, tensors, [result], params)
            break
    return result


def _run(recipe: Recipe, tensors: Sequence[Tensor], params: dict[str, Any]) -> Any:
    world = tensors[0].world
    moved = [_move(recipe, i, t) for i, t in enumerate(tensors)]
    if recipe.rows is None:
        computed = _compute(recipe, world, moved, params)
    else:
        world.about = recipe.origin(moved)
        computed = [world.run_rows(recipe.rows, moved[0].held, moved[1].held)]
        world.about = 0
    results = [
        Tensor(world, meta, shards, origin=recipe.origin(moved, k) if world.compares else 0)
        for k, (meta, shards) in enumerate(zip(recipe.computed, computed))
    ]
    if any(tensor.requires_grad for tensor in moved):
        _track(recipe, moved, results, params)
    finished = [r if p is None else run_plan(r, p) for r, p in zip(results, recipe.finals)]
    if finished[0] is not results[0] and results[0].node is not None:
        results[0].node.finished(finished)  # type: ignore[attr-defined]
    return finished[0] if len(finished) == 1 else tuple(finished)


def _move(recipe: Recipe, operand: int, tensor: Tensor) -> Tensor:
    found = recipe.plans[operand]
    wanted = recipe.inputs[operand]
    if found is not None:
        guard.implicit(recipe.op.name, found)
        return run_plan(tensor, found)
    if tensor.meta is wanted:
        return tensor
    # The same distribution under another name: only axes of size one differ.
    renamed = Tensor(tensor.world, wanted, tensor.held, tensor.requires_grad, tensor.name, tensor.origin)
    renamed.node, renamed.output = tensor.node, tensor.output
    if tensor.requires_grad and tensor.node is None:
        from spmdsim.tensor.tape import MoveNode

        renamed.node = MoveNode(tensor)
    return renamed


def _compute(recipe: Recipe, world: Any, moved: Sequence[Tensor], params: dict[str, Any]) -> list[list[Any]]:
    if not world.has_data:
        return [_shapes(recipe, world, meta) for meta in recipe.outputs]
    lists = [t.held for t in moved]
    if not recipe.op.contextual and all(recipe.active):
        per_rank = _distinct(recipe, lists, params)
    else:
        per_rank = [
            _local(recipe, rank, arrays, params) if active else _outside(recipe)
            for rank, active, *arrays in zip(world.ranks, recipe.active, *lists)
        ]
    if len(recipe.outputs) == 1:
        return [per_rank]
    return [list(column) for column in zip(*per_rank)]


def _local(recipe: Recipe, rank: int, arrays: list[Any], params: dict[str, Any]) -> Any:
    head = (recipe.context(rank),) if recipe.op.contextual else ()
    return _typed(recipe, recipe.forward(*head, *arrays, **params))


def _typed(recipe: Recipe, result: Any) -> Any:
    """What the local function gave, in the types that the results' metas say."""
    if len(recipe.outputs) == 1:
        return recipe.op.typed(result, recipe.outputs[0].held)
    return tuple(recipe.op.typed(array, meta.held) for array, meta in zip(result, recipe.outputs))


def _outside(recipe: Recipe) -> Any:
    """What a rank outside the mesh holds: arrays without elements."""
    import numpy as np

    empty = [np.zeros((0,) * len(meta.shape), meta.held) for meta in recipe.outputs]
    return empty[0] if len(empty) == 1 else tuple(empty)


def _distinct(recipe: Recipe, lists: Sequence[list[Any]], params: dict[str, Any]) -> list[Any]:
    """The local function on every owned rank; ranks that share all operand arrays share the result."""
    forward = recipe.forward
    made: dict[tuple[int, ...], Any] = {}
    results = []
    for arrays in zip(*lists):
        key = tuple(map(id, arrays))
        if key not in made:
            made[key] = _typed(recipe, forward(*arrays, **params))
        results.append(made[key])
    return results


def _shapes(recipe: Recipe, world: Any, meta: Meta) -> list[Any]:
    return [world.empty(meta.layout.local_shape(meta.shape, rank), meta.held) for rank in world.ranks]


def _track(
    recipe: Recipe, operands: Sequence[Tensor], results: Sequence[Tensor], params: dict[str, Any]
) -> None:
    if recipe.op.vjp is None or not has_gradient(results[0].dtype):
        return
    node = OpNode(recipe, operands, results, params)
    for k, result in enumerate(results):
        result.requires_grad, result.node, result.output = True, node, k


def _emit(recipe: Recipe, results: Any, start: float) -> None:
    first = results[0] if isinstance(results, tuple) else results
    rank = first.world.ranks[0]
    outputs = [p.dst if p else m.layout for p, m in zip(recipe.finals, recipe.computed)]
    metas = (*recipe.inputs, *[m.with_layout(o) for m, o in zip(recipe.outputs, outputs)])
    recorder.emit(
        OperatorEvent(
            name=recipe.op.name,
            strategy=str(recipe.strategy),
            inputs=tuple(m.layout.short() for m in recipe.inputs),
            outputs=tuple(layout.short() for layout in outputs),
            local_shapes=tuple(m.layout.local_shape(m.shape, rank) for m in metas),
            seconds=time.perf_counter() - start,
            start=start,
            source=recorder.source_line(),
        )
    )


def as_operand(value: Any, like: Tensor) -> Tensor:
    """A number or array as a tensor replicated where ``like`` lives; a tensor stays as it is.

    A Python number takes ``like``'s element type where it fits, as in numpy.
    """
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "as_operand"):  # a parameter
        found: Tensor = value.as_operand(like)
        return found
    import numpy as np

    from spmdsim.core import Layout

    if isinstance(value, (bool, int, float, complex)):
        dtype = _with_number(like.dtype, value)
        world = like.world
        try:
            number = np.asarray(value, dtype)
        except OverflowError:
            limits = np.iinfo(dtype)
            raise InputError(
                f"{value} is no {dtype.name}, which goes from {limits.min} to {limits.max}; convert the tensor first, "
                "such as x.astype('int64')"
            ) from None
        held = number if world.has_data else world.empty((), dtype)
        meta = Meta.of(Layout.replicated(like.layout.mesh, 0), (), dtype)
        return Tensor(world, meta, [held] * len(world.ranks))
    array = as_array(value)
    if array.dtype == object:
        raise RuleError(f"an operand must be a tensor, an array or a number, not {type(value).__name__}")
    return Tensor.from_global(array, Layout.replicated(like.layout.mesh, array.ndim), like.world)


def _with_number(dtype: np.dtype, value: complex) -> np.dtype:
    """The type of a Python number beside elements of a type: theirs where it fits, as in numpy."""
    import numpy as np

    if dtype.kind != "V":
        return np.result_type(dtype, value)
    return promoted(dtype, np.dtype("complex64")) if isinstance(value, complex) else dtype
