"""The recipe of an operator call: everything that follows from the operator, its parameters and the operands' metas.

It is derived once and used by all calls with equal metas: the strategy, a redistribution for each operand in another
layout, the local functions, the metas of the results, and what gradients need.

Next: :mod:`spmdsim.core.operator`, the declaration of operators and their calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.core.cuts import ShardedOp
from spmdsim.core.element_types import has_gradient
from spmdsim.core.elements import each
from spmdsim.core.layout import Layout
from spmdsim.core.operator_context import Context
from spmdsim.core.rule import BoundRule, Rule, Strategy
from spmdsim.core.step import Route
from spmdsim.core.tape import OpNode
from spmdsim.core.tensor import Meta, PlainTensor, follow
from spmdsim.core.world import AbstractWorld, Params, T
from spmdsim.errors import RuleError

if TYPE_CHECKING:
    from spmdsim.core.operator import Op

Arrays = list[np.ndarray]
#: A local function, from arrays to arrays; and a call of one.
Local = Callable[..., object]
Job = Callable[[], object]

_tracked = attrgetter("_tracked")


@dataclass
class Recipe:
    """The derived facts of an operator call with these metas in this world.

    Attributes:
        plans: the redistributions of operands, None where there is nothing to move.
        inputs: the metas of operands that the local function sees.
        outputs: the metas of results that it leaves.
        finals: the redistributions of results, None where there is nothing to move.
        active: per owned rank, whether it takes part.
        prepared: what a kind of operators derived besides.
        number: of the operator with the user's functions and its parameters, the same in all processes; provenance sets it.
        title: the operator's name, and where the user's function stands, for messages; provenance sets it.
        blanks: per choice of operands whose gradients are wanted, what stands for those that these do not look at.
    """

    op: Op
    bound: BoundRule
    strategy: Strategy
    plans: tuple[Route | None, ...]
    inputs: tuple[Meta, ...]
    outputs: tuple[Meta, ...]
    finals: tuple[Route | None, ...]
    active: tuple[bool, ...]
    forward: Callable[..., Any]
    vjp: Callable[..., Any] | None
    prepared: Any = None
    number: int = 0
    title: str = ""
    blanks: dict[tuple[bool, ...], list[list[Any]]] = field(default_factory=dict)
    _contexts: dict[int, Context] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Derive what each call asks: whether operands and results move, and whether one rank computes without a context."""
        self.moves_operands = any(route is not None for route in self.plans)
        self.moves_results = any(route is not None for route in self.finals)
        self.is_alone = self.active == (True,) and not self.op.contextual
        #: The type in which the only result is stored; None if there are several.
        self.kind = self.outputs[0].held if len(self.outputs) == 1 else None

    @classmethod
    def derive(
        cls,
        op: Op,
        metas: Sequence[Meta],
        params: Params,
        world: AbstractWorld,
        asked: ShardedOp | Strategy | None = None,
    ) -> Recipe:
        """Return the recipe of a call, maybe with a given strategy; RuleError if operands or parameters do not fit."""
        layouts, dtypes = [meta.layout for meta in metas], [meta.dtype for meta in metas]
        shapes = [meta.shape for meta in metas]
        bound, sharding, strategy = op.bind(shapes, params, dtypes), None, None
        if isinstance(asked, ShardedOp):
            sharding, strategy = asked, asked.strategy(bound, world.size, layouts[0].mesh)
            world.check_mesh(strategy.mesh)
            op = asked.instead(bound, strategy, params)
            bound = op.bind(shapes, params, dtypes)
        elif asked is not None:
            strategy = asked
        if strategy is not None:
            bound.check(strategy)
        else:
            try:
                strategy = bound.infer(layouts)
            except RuleError:
                strategy = world.planner.choose(bound, layouts, [meta.held for meta in metas])
        world.check_mesh(strategy.mesh)
        inputs = tuple(map(Meta.with_layout, metas, bound.input_layouts(strategy)))
        plans = tuple(routed(meta, wanted.layout, world) for meta, wanted in zip(metas, inputs))
        dtype, computed = op.result_dtype(dtypes, params), op.output_layouts(bound, strategy)
        kinds = dtype if isinstance(dtype, tuple) else (dtype,) * len(computed)
        outputs = tuple(map(Meta.of, computed, bound.output_shapes, kinds))
        finals = tuple(
            routed(meta, op.result_layout(meta.layout), world)
            if sharding is None
            else routed(meta, sharding.result_layout(meta.layout, meta.shape), world)
            for meta in outputs
        )
        active = tuple(rank in strategy.mesh for rank in world.ranks)
        functions = op.functions([meta.dtype for meta in (*inputs, *outputs)])
        prepared = op.prepared(bound, strategy, params)
        recipe = cls(op, bound, strategy, plans, inputs, outputs, finals, active, *functions, prepared)
        if sharding is None and not strategy.splits and not all(map(lies_so, plans, metas, inputs)):
            world.observers.gathered(recipe, metas)
        return recipe

    def bring(self, operand: int, tensor: T) -> T:
        """Return an operand in the layout that the local function wants: itself if it lies so, under whatever name."""
        route = self.plans[operand]  # the tape has the same nodes on all ranks, in the mesh or not
        if route is None:
            return tensor
        if guards := tensor.world.observers.guards:
            guards[-1](self.op.name, route)
        return tensor if lies_so(route, tensor.meta, self.inputs[operand]) else follow(tensor, route)

    def run(self, operands: Sequence[T], params: Params) -> list[T]:
        """Bring the operands, compute, and return the results in the layouts in which the caller gets them."""
        world, kind = operands[0].world, type(operands[0])
        provenance = world.provenance
        if self.moves_operands:
            operands = [self.bring(k, x) for k, x in enumerate(operands)]
        lists = [x.held for x in operands]
        if provenance is not None and self.op.communicates:
            world.call_provenance = provenance.of_result(self, operands, 0, params)
        try:
            if world.observers.programs:
                columns = world.perform(partial(self.op.compute, self, world, params), *lists)
            else:
                columns = self.op.compute(self, world, params, *lists)
        finally:
            world.call_provenance = 0
        results = [kind(world, meta, shards) for meta, shards in zip(self.outputs, columns)]
        if provenance is not None:
            for k, result in enumerate(results):
                result.origin = provenance.of_result(self, operands, k, params)
        if self.tracked and any(map(_tracked, operands)):
            self.track(operands, results, params)
        return self.finished(results) if self.moves_results else results

    def finished(self, results: list[T]) -> list[T]:
        """Return the results in the layouts in which the caller gets them."""
        laid_out = [r if route is None else follow(r, route) for r, route in zip(results, self.finals)]
        if self.op.finish and isinstance(node := results[0].node, OpNode) and node.saved:
            # A local gradient function looks at what the user sees.
            node.saved = [result.held for result in laid_out]
        return laid_out

    def track(self, operands: Sequence[PlainTensor], results: Sequence[PlainTensor], params: Params) -> None:
        """Remember what computed the results, for their gradients."""
        node = self.op.node(self, operands, results, params)
        for k in self.tracked:
            results[k]._tracked, results[k].node, results[k].output = True, node, k

    def head(self, rank: int) -> tuple[Context, ...]:
        """Return what comes before a rank's arrays in the local functions: its context, where the operator asks for one."""
        if self.op.contextual and rank not in self._contexts:
            self._contexts[rank] = Context(self.bound, self.strategy, rank)
        return (self._contexts[rank],) if self.op.contextual else ()

    def on_ranks(self, world: AbstractWorld, function: Local, *lists: Arrays) -> list[Any]:
        """Return the results of a function of every owned rank's arrays; None for ranks outside of the mesh."""
        if self.op.contextual:
            columns = zip(world.ranks, self.active, *lists)
            jobs: dict[int, Job] = {
                r: partial(function, *arrays, head=self.head(r)) for r, active, *arrays in columns if active
            }
            run_together = type(self.op).run_together
            if run_together is not None:
                results = run_together(world, self.strategy.mesh, self.op.name, jobs)
            else:  # each is forgotten as soon as it has run
                results = {rank: jobs.pop(rank)() for rank in [*jobs]}
            return [results.get(rank) for rank in world.ranks]
        if all(self.active):
            return each(function, *lists)
        if not any(self.active):
            return [None] * len(self.active)
        inside = iter(each(function, *[[*compress(arrays, self.active)] for arrays in lists]))
        return [next(inside) if active else None for active in self.active]

    def local(self, params: Params, *arrays: np.ndarray, head: Sequence[Any] = ()) -> tuple[np.ndarray, ...]:
        """Return what the local function makes of a rank's arrays: an array per result."""
        result = self.forward(*head, *arrays, **params)
        return (result,) if type(result) is np.ndarray and result.dtype is self.kind else self.typed(result)

    def typed(self, result: Any) -> tuple[np.ndarray, ...]:
        """Return what the local function gave, an array per result, in the types that the metas say."""
        results = result if self.kind is None else (result,)
        return tuple([self.op.typed(array, meta.held) for array, meta in zip(results, self.outputs)])

    def outside(self) -> tuple[np.ndarray, ...]:
        """Return the arrays of a rank outside the mesh; they have no elements."""
        return tuple(np.zeros((0,) * len(meta.shape), meta.held) for meta in self.outputs)

    def kept(
        self, operands: Sequence[PlainTensor], results: Sequence[PlainTensor], wanted: tuple[bool, ...]
    ) -> tuple[list[Arrays], list[Arrays] | None]:
        """Return the operands' and results' arrays that a backward pass needs.

        Unneeded operands become zeros without memory. The results are None unless the operator saves them.
        """
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

    @cached_property
    def tracked(self) -> tuple[int, ...]:
        """The numbers of the results through which gradients return; none without a ``vjp`` or if the first has none."""
        differentiable = [has_gradient(meta.dtype) for meta in self.outputs]
        whole = self.vjp is not None and differentiable[0]
        return tuple(compress(range(len(differentiable)), differentiable)) if whole else ()

    @cached_property
    def duals(self) -> tuple[Layout, ...]:
        """The layouts in which the gradients of the results are accepted."""
        return self.op.duals(self.bound, self.strategy)

    @cached_property
    def gradients(self) -> tuple[Meta, ...]:
        """The metas of the operands' gradients as the local gradient function leaves them."""
        layouts = (self.bound.gradient_layout(self.strategy, i) for i in range(len(self.inputs)))
        return tuple(map(Meta.with_layout, self.inputs, layouts))


def looks_at(rule: Rule, wanted: Sequence[bool], unseen: Sequence[int] = ()) -> tuple[bool, ...]:
    """Return, for each operand, whether the gradients of the wanted operands depend on it.

    A gradient depends on a seen operand if the rule is not linear in both operands together, for some wanted operand.
    """
    linear = rule.linear if "sum" in rule.passes else ()
    return tuple(
        i not in unseen
        and any(w and not any({i, j} <= group for group in linear) for j, w in enumerate(wanted))
        for i in range(len(wanted))
    )


def lies_so(route: Route | None, before: Meta, after: Meta) -> bool:
    """Return True if shards stay what they are on the way from one layout to another."""
    return route is None or (not route.steps and before.held is after.held)


def routed(meta: Meta, layout: Layout, world: AbstractWorld) -> Route | None:
    """Return the route of a tensor to a layout; None if the tensor is in this layout."""
    same = layout is meta.layout or layout.canonical == meta.layout.canonical
    return None if same else world.planner.plan(meta.layout, layout, meta.shape, meta.dtype)
