"""Call operators as programs do: look the recipe up, tell watchers and traces, bring operands, compute.

What a call means is in :mod:`spmdsim.core.operator`; the operators of programs ask this module's :func:`apply`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import attrgetter
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from spmdsim.core import Rule
from spmdsim.core.layout import Layout
from spmdsim.core.operator import Recipe, lies_so, routed, run
from spmdsim.core.step import Route
from spmdsim.core.tape import OpNode
from spmdsim.core.tensor import Meta, Tensor, follow
from spmdsim.errors import context
from spmdsim.layout.cuts import ShardedOp
from spmdsim.redistribution.guard import guards
from spmdsim.tensor.operands import operands
from spmdsim.tensor.operator_context import Context
from spmdsim.tensor.several_worlds import in_one_world
from spmdsim.tensor.watch import watchers
from spmdsim.trace import recorder
from spmdsim.trace.recorder import open_traces
from spmdsim.worlds.base import World

if TYPE_CHECKING:
    from spmdsim.tensor.program_operator import Op

T = TypeVar("T", bound=Tensor)
_meta = attrgetter("meta")


@dataclass
class CallRecipe(Recipe):
    """A recipe of a program's operator, with facts for messages, comparisons between ranks, and gradients.

    Attributes:
        finals: the redistributions of results, None where there is nothing to move.
        prepared: what a kind of operators derived besides.
        number: of the operator with the user's functions and its parameters, the same in all processes.
        title: the operator's name, and where the user's function stands, for messages.
        blanks: per choice of operands whose gradients are wanted, what stands for those that these do not look at.
    """

    op: Op
    finals: tuple[Route | None, ...] = ()
    prepared: Any = None
    number: int = 0
    title: str = ""
    blanks: dict[tuple[bool, ...], list[list[Any]]] = field(default_factory=dict)
    _contexts: dict[int, Context] = field(default_factory=dict, init=False)

    @classmethod
    def of_call(
        cls, op: Op, sharding: ShardedOp | None, metas: Sequence[Meta], params: dict[str, Any], world: Any
    ) -> CallRecipe:
        """That of a call; RuleError if operands, parameters or strategy do not fit."""
        strategy = None
        if sharding is not None:
            bound = op.bind([meta.shape for meta in metas], params, [meta.dtype for meta in metas])
            strategy = sharding.strategy(bound, world.size, metas[0].layout.mesh)
            world.check_mesh(strategy.mesh)
            op = cast("Op", sharding.instead(bound, strategy, params))
        recipe: CallRecipe = cls.derive(op, metas, params, world, strategy)
        recipe.prepared = op.prepared(recipe.bound, recipe.strategy, params)
        recipe.finals = tuple(
            routed(meta, op.result_layout(meta.layout), world)
            if sharding is None
            else routed(meta, sharding.result_layout(meta.layout, meta.shape), world)
            for meta in recipe.outputs
        )
        if isinstance(world, World):  # those of core know nothing of this
            facts = op.facts if world.compares else ()
            place = str(facts[0]) if facts else ""
            recipe.title = f"{op.name} ({place})" if place else op.name
            derived_from = [p for p in params.items() if p[0] not in op.varying]
            recipe.number = world.number(op.name, *[one.compared for one in facts], *derived_from)
            moves = not all(map(lies_so, recipe.plans, metas, recipe.inputs))
            if sharding is None and moves and not recipe.strategy.splits:
                world.gathers_whole(op.name, recipe.bound, metas, recipe.plans)
        return recipe

    def bring(self, operand: int, tensor: T) -> T:
        """An operand in the layout that the local function wants; who guards redistributions is asked before."""
        route = self.plans[operand]
        if guards and route is not None:
            guards[-1](self.op.name, route)
        return super().bring(operand, tensor)

    def head(self, rank: int) -> tuple[Context, ...]:
        """What comes before a rank's arrays in the local functions: its context, where the operator asks for one."""
        if self.op.contextual and rank not in self._contexts:
            self._contexts[rank] = Context(self.bound, self.strategy, rank)
        return (self._contexts[rank],) if self.op.contextual else ()

    def on_ranks(self, world: Any, function: Callable[..., Any], *lists: list[np.ndarray]) -> list[Any]:
        """What a function makes of every owned rank's arrays; where it asks for its rank, of each by itself."""
        if not self.op.contextual:
            if self.active == (True,):
                return [function(*[arrays[0] for arrays in lists])]
            return super().on_ranks(world, function, *lists)
        columns = zip(world.ranks, self.active, *lists)
        jobs: dict[int, Callable[[], Any]] = {
            r: partial(function, *arrays, head=self.head(r)) for r, active, *arrays in columns if active
        }
        results = self.op.on_ranks(world, self.strategy.mesh, jobs)
        return [results.get(rank) for rank in world.ranks]

    @cached_property
    def duals(self) -> tuple[Layout, ...]:
        """Layouts in which the results' gradients are taken."""
        return self.op.duals(self.bound, self.strategy)

    def typed(self, result: Any) -> tuple[np.ndarray, ...]:
        """What the local function gave, in the types that the results' metas say, if these hold it."""
        if len(self.outputs) == 1:
            return (self.op.typed(result, self.outputs[0].held),)
        return tuple([self.op.typed(array, meta.held) for array, meta in zip(result, self.outputs)])

    def finished(self, results: list[T]) -> list[T]:
        """The results in the layouts in which they are given to who called."""
        if self.finals == (None,):
            return results
        laid_out = [r if route is None else follow(r, route) for r, route in zip(results, self.finals)]
        if self.op.finish and isinstance(node := results[0].node, OpNode) and node.saved:
            # A local gradient function looks at what the user sees.
            node.saved = [result.held for result in laid_out]
        return laid_out

    def kept(
        self, operands: Sequence[Tensor], results: Sequence[Tensor], wanted: tuple[bool, ...]
    ) -> tuple[list[list[Any]], list[list[Any]] | None]:
        """The arrays that the wanted gradients look at; zeros that take no memory in the place of other operands."""
        blanks = self.blanks.get(wanted)
        if blanks is None:
            held = [x.held if x.world.has_data else [] for x in operands]
            zeros = [
                [np.broadcast_to(np.zeros((), array.dtype), array.shape) for array in arrays]
                for arrays in held
            ]
            looks = looks_at(self.bound.rule, wanted, self.op.unseen)
            blanks = self.blanks[wanted] = [[] if look else blank for look, blank in zip(looks, zeros)]
        saved = [result.held for result in results] if self.op.saves_result else None
        return [blank or operand.held for blank, operand in zip(blanks, operands)], saved


def looks_at(rule: Rule, wanted: Sequence[bool], unseen: Sequence[int] = ()) -> tuple[bool, ...]:
    """The operands that the gradients of the wanted ones depend on: seen ones that are not linear together with each of them."""
    linear = rule.linear if "sum" in rule.passes else ()
    return tuple(
        i not in unseen
        and any(w and not any({i, j} <= group for group in linear) for j, w in enumerate(wanted))
        for i in range(len(wanted))
    )


def apply(
    op: Op,
    tensors: Sequence[Tensor],
    params: dict[str, Any],
    sharding: ShardedOp | None = None,
    seen: bool = False,
) -> Any:
    """Apply an operator to global tensors of one world; with several results, it gives a tuple.

    The recipe is derived once per combination of operand metas and parameters (hashable values); a repeated call only
    looks it up. ``seen``: the watcher knows of this call. An SpmdError says what does not fit, of which operator.
    """
    if watchers and not seen:
        return _watched(op, operands(op.name, tensors), params, sharding)
    count = len(tensors)
    try:
        first, last = tensors[0], tensors[count - 1]
        world: Any = first.world
        key: tuple[Any, ...]
        if count == 2:
            key = (op, sharding, first.meta, last.meta)
        else:
            key = (op, sharding, first.meta) if count == 1 else (op, sharding, *map(_meta, tensors))
        if params:
            key += (*params.items(),) if not op.varying else _named(params, op.varying)
    except AttributeError:  # a parameter, an array or a number among them
        return apply(op, operands(op.name, tensors), params, sharding, seen)
    recipe: CallRecipe | None = world.cache.get(key)
    if recipe is None or last.world is not world or count > 2:
        together = in_one_world(op.name, tensors)
        if together is not tensors:
            return apply(op, together, params, sharding, seen)
        if recipe is None:
            with context(operator=op.name, operands=partial(_in_words, tensors)):
                recipe = CallRecipe.of_call(op, sharding, [tensor.meta for tensor in tensors], params, world)
            world.cache[key] = recipe
    if open_traces and isinstance(world, World):
        return _recorded(world, recipe, tensors, params)
    return _run(recipe, tensors, params)


def _named(params: dict[str, Any], varying: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """The parameters from which something is derived."""
    return tuple([p for p in params.items() if p[0] not in varying])


def _in_words(tensors: Sequence[Tensor]) -> str:
    """What is known of operands."""
    return ", ".join(repr(tensor.meta) for tensor in tensors)


def _run(recipe: CallRecipe, tensors: Sequence[Tensor], params: dict[str, Any]) -> Any:
    """Return the result of a recipe, or a tuple of several, in the layouts in which the caller is given them."""
    results = recipe.finished(run(recipe, tensors, params))
    return results[0] if len(results) == 1 else tuple(results)


def _recorded(world: World, recipe: CallRecipe, tensors: Sequence[Tensor], params: dict[str, Any]) -> Any:
    with recorder.operator(recipe.op.name, recipe):
        start = perf_counter()
        results = _run(recipe, tensors, params)
        recorder.emit_operator(recipe, world.ranks, start)
    return results


def _watched(op: Op, tensors: Sequence[Tensor], params: dict[str, Any], sharding: ShardedOp | None) -> Any:
    watcher = watchers[-1]
    changed, strategy = watcher.before(op, tensors, params, sharding)
    results = apply(changed, tensors, params, strategy, seen=True)
    watcher.after(op, tensors, params, sharding, results if isinstance(results, tuple) else (results,))
    return results
