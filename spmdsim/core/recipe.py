"""Recipes: derive once what all operator calls with equal operator, parameters and operand metas share.

A recipe has the strategy, a redistribution for each operand in another layout, the local functions, the metas of the
results, and the facts that gradients need.

Next: :mod:`spmdsim.core.tape`, the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.core.cuts import ShardedOp
from spmdsim.core.element_types import has_gradient
from spmdsim.core.elements import each
from spmdsim.core.layout import Layout
from spmdsim.core.operator_context import Context
from spmdsim.core.rule import BoundRule, Rule, Strategy
from spmdsim.core.step import Route
from spmdsim.core.tensor import Meta, PlainTensor, follow
from spmdsim.core.world import AbstractWorld, Params, T
from spmdsim.errors import RuleError

if TYPE_CHECKING:
    from spmdsim.core.operator import Op

Arrays = list[np.ndarray]
#: A local function, from arrays to arrays.
Local = Callable[..., object]
#: A call of a local function with all its arguments.
Job = Callable[[], object]


@dataclass
class Recipe:
    """Derived facts of an operator call with these metas in this world.

    Attributes:
        op: the operator that runs.
        bound: its rule, bound to the shapes of the operands.
        strategy: the axes that split each factor.
        plans: the redistribution of each operand, None if the operand need not move.
        inputs: the meta of each operand in the layout that the local function needs.
        outputs: the meta of each result as the local function leaves it.
        finals: the redistribution of each result, None if the result need not move.
        active: for each owned rank, True if it is in the strategy's mesh.
        forward: the local function.
        vjp: the local gradient function, or None.
        prepared: the value of :meth:`Op.prepared`.
        number: a number of the operator with the user's functions and its parameters, equal in all processes; set by
            provenance.
        title: the operator's name and the source line of the user's function, for messages; set by provenance.
        blanks: by the argument ``wanted`` of :meth:`save_arrays`, one list per operand: the zeros that are stored in
            its place if no wanted gradient reads it, else [].
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
        """Derive facts that each call checks.

        They are True if operands move, if results move, and if this process has one rank that computes without a
        context.
        """
        self.moves_operands = any(route is not None for route in self.plans)
        self.moves_results = any(route is not None for route in self.finals)
        self.is_alone = self.active == (True,) and not self.op.contextual
        #: The type in which the only result is stored; None if there are several results.
        self.only_dtype = self.outputs[0].storage_dtype if len(self.outputs) == 1 else None

    @classmethod
    def derive(
        cls,
        op: Op,
        metas: Sequence[Meta],
        params: Params,
        world: AbstractWorld,
        requested: ShardedOp | Strategy | None = None,
    ) -> Recipe:
        """Return the recipe of a call: strategy, routes of operands and results, and functions.

        A route has the steps that redistribute a tensor: an operand to the layout that the strategy needs, or a
        result to the layout that the caller receives. The method only plans; nothing is sent.

        If the strategy splits nothing, and operands must move for it, the world's observers are informed
        (``gathered``). They are not if a sharded operator was requested, because its user wants this.

        Args:
            op: the operator.
            metas: layout, global shape and element type of each operand; at least one.
            params: the parameters of the call by name.
            world: the world of the operands.
            requested: a strategy; or a sharded operator, which decides strategy and layouts of the results, and may
                replace ``op``. None for the strategy that the operands' layouts fit; if there is none, the planner's
                choice.

        Raises:
            RuleError: If operands, parameters or the requested strategy do not fit the operator.
            WorldError: If the strategy's mesh has ranks that the world lacks.
            PlanError: If the planner finds no steps to a layout.
        """
        sharding = requested if isinstance(requested, ShardedOp) else None
        op, bound, strategy = bind_strategy(op, metas, params, world, requested)
        inputs = tuple(map(Meta.with_layout, metas, bound.input_layouts(strategy)))
        plans = tuple(plan_route(meta, needed.layout, world) for meta, needed in zip(metas, inputs))
        dtype = op.result_dtype([meta.dtype for meta in metas], params)
        output_layouts = op.output_layouts(bound, strategy)
        output_dtypes = dtype if isinstance(dtype, tuple) else (dtype,) * len(output_layouts)
        outputs = tuple(map(Meta.of, output_layouts, bound.output_shapes, output_dtypes))
        if sharding is None:
            final_layouts = [op.result_layout(meta.layout) for meta in outputs]
        else:
            final_layouts = [sharding.result_layout(meta.layout, meta.shape) for meta in outputs]
        finals = tuple(plan_route(meta, layout, world) for meta, layout in zip(outputs, final_layouts))
        active = tuple(rank in strategy.mesh for rank in world.ranks)
        functions = op.functions([meta.dtype for meta in (*inputs, *outputs)])
        prepared = op.prepared(bound, strategy, params)
        recipe = cls(op, bound, strategy, plans, inputs, outputs, finals, active, *functions, prepared)
        if sharding is None and not strategy.splits and not all(map(is_noop_route, plans, metas, inputs)):
            world.observers.gathered(recipe, metas)
        return recipe

    def redistribute_operand(self, operand: int, tensor: T) -> T:
        """Return an operand in the layout that the local function needs.

        The tensor itself is returned if its shards need not change. Before a planned redistribution, the last of
        the world's :attr:`Observers.guards` is called; it may raise an error. All ranks of the world must call
        it.

        Args:
            operand: the number of the operand.
            tensor: the operand, in the layout for which the recipe was derived. This is not checked.
        """
        route = self.plans[operand]  # Ranks outside the mesh follow it, too: the tape is equal on all ranks.
        if route is None:
            return tensor
        if guards := tensor.world.observers.guards:
            guards[-1](self.op.name, route)
        return tensor if is_noop_route(route, tensor.meta, self.inputs[operand]) else follow(tensor, route)

    def run(self, operands: Sequence[T], params: Params) -> list[T]:
        """Run the call: redistribute the operands, compute, and redistribute the results.

        All ranks of the world must call it. If an operand requires a gradient and the operator has one, record the call
        on the tape. Results get provenance numbers if the world compares them. An open program
        (:attr:`Observers.programs`) records the calculation.

        Args:
            operands: tensors with the metas for which the recipe was derived; at least one.
            params: the parameters of the call by name.

        Returns:
            The results in the layouts in which the caller receives them, as tensors of the class of the first operand.
        """
        world, kind = operands[0].world, type(operands[0])
        provenance = world.provenance
        if self.moves_operands:
            operands = [self.redistribute_operand(k, x) for k, x in enumerate(operands)]
        lists = [x.stored_shards for x in operands]
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
                result.provenance_number = provenance.of_result(self, operands, k, params)
        if self.tracked and any(x._tracked for x in operands):
            self.record(operands, results, params)
        return self.finish_results(results) if self.moves_results else results

    def finish_results(self, results: list[T]) -> list[T]:
        """Redistribute results to the layouts in which the caller receives them; return them.

        All ranks must call it. For operators with ``finish`` whose gradient function reads the results
        (``saves_result``), the tape's node stores the redistributed results from now on.

        Args:
            results: the results in the layouts in which the local function leaves them.
        """
        redistributed = [r if route is None else follow(r, route) for r, route in zip(results, self.finals)]
        if self.op.finish and results[0].node is not None:
            # The local gradient function reads the results as the user sees them.
            results[0].node.store_results(redistributed)
        return redistributed

    def record(self, operands: Sequence[PlainTensor], results: Sequence[PlainTensor], params: Params) -> None:
        """Record the call as a node on the tape, to which the results with gradients refer."""
        node = self.op.node(self, operands, results, params)
        for k in self.tracked:
            results[k]._tracked, results[k].node, results[k].output = True, node, k

    def context_arguments(self, rank: int) -> tuple[Context, ...]:
        """Return the arguments that precede a rank's arrays in the local functions.

        They are its context for a contextual operator; other operators have none.
        """
        if self.op.contextual and rank not in self._contexts:
            self._contexts[rank] = Context(self.bound, self.strategy, rank)
        return (self._contexts[rank],) if self.op.contextual else ()

    def run_on_ranks(self, world: AbstractWorld, function: Local, *lists: Arrays) -> list[Any]:
        """Call a function with the arrays of every owned rank of the strategy's mesh.

        The local functions of a contextual operator depend on the rank. There are three cases:

        - The operator is not contextual: ranks that share all their arrays share one call and its value.
        - It is contextual: the function is called for one rank after the other.
        - It is contextual, and its class has ``run_together``: this method runs the calls of all ranks, because
          they wait for each other.

        Args:
            world: the world that owns the ranks.
            function: takes one array per list, and the keyword ``head`` (:meth:`context_arguments`) if the operator is
                contextual.
            lists: for each argument its array on every owned rank.

        Returns:
            The function's value for every owned rank; None for ranks outside the mesh.
        """
        if self.op.contextual:
            columns = zip(world.ranks, self.active, *lists)
            jobs: dict[int, Job] = {
                r: partial(function, *arrays, head=self.context_arguments(r))
                for r, active, *arrays in columns
                if active
            }
            run_together = type(self.op).run_together
            if run_together is not None:
                results = run_together(world, self.strategy.mesh, self.op.name, jobs)
            else:  # Drop each job after its run, so that its arrays can be freed.
                results = {rank: jobs.pop(rank)() for rank in [*jobs]}
            return [results.get(rank) for rank in world.ranks]
        if all(self.active):
            return each(function, *lists)
        if not any(self.active):
            return [None] * len(self.active)
        computed = iter(each(function, *[[*compress(arrays, self.active)] for arrays in lists]))
        return [next(computed) if active else None for active in self.active]

    def run_local(self, params: Params, *arrays: np.ndarray, head: Any = ()) -> tuple[np.ndarray, ...]:
        """Run the local function on a rank's arrays and return a tuple with one array per result.

        Args:
            params: the parameters of the call by name.
            arrays: the rank's array of each operand.
            head: the arguments that precede the arrays; see :meth:`context_arguments`.
        """
        result = self.forward(*head, *arrays, **params)
        is_typed = type(result) is np.ndarray and result.dtype is self.only_dtype
        return (result,) if is_typed else self.cast_results(result)

    def cast_results(self, result: Any) -> tuple[np.ndarray, ...]:
        """Return the value of the local function as one array per result, in the types of ``outputs``."""
        results = result if self.only_dtype is None else (result,)
        return tuple(
            [self.op.cast_result(array, meta.storage_dtype) for array, meta in zip(results, self.outputs)]
        )

    def empty_results(self) -> tuple[np.ndarray, ...]:
        """Return the results of a rank outside the mesh: arrays without elements."""
        return tuple(np.zeros((0,) * len(meta.shape), meta.storage_dtype) for meta in self.outputs)

    def save_arrays(
        self, operands: Sequence[PlainTensor], results: Sequence[PlainTensor], wanted: tuple[bool, ...]
    ) -> tuple[list[Arrays], list[Arrays] | None]:
        """Return the arrays of operands and results that a node stores for its backward pass.

        Args:
            operands: the operands as the local function read them.
            results: the results as it left them.
            wanted: for each operand, True if its gradient is wanted.

        Returns:
            ``(of operands, of results)``, lists of shards per tensor, which are not copied. An operand that no
            wanted gradient reads is replaced by zeros that take no memory (`make_blank`), unless the world has no
            data. The zeros are created once per ``wanted``, and used again by later calls. The second is None if the
            operator's gradient does not read results (``saves_result``).
        """
        if wanted not in self.blanks:
            reads = find_read_operands(self.bound.rule, wanted, self.op.unseen)
            self.blanks[wanted] = [
                [] if is_read or not x.world.has_data else list(map(make_blank, x.stored_shards))
                for is_read, x in zip(reads, operands)
            ]
        saved = [result.stored_shards for result in results] if self.op.saves_result else None
        return [blank or x.stored_shards for blank, x in zip(self.blanks[wanted], operands)], saved

    @cached_property
    def tracked(self) -> tuple[int, ...]:
        """Numbers of the results that carry gradients: those of floating or complex type.

        Empty without a ``vjp``, or if the first result has no gradient.
        """
        differentiable = [has_gradient(meta.dtype) for meta in self.outputs]
        has_gradient_function = self.vjp is not None and differentiable[0]
        return tuple(compress(range(len(differentiable)), differentiable)) if has_gradient_function else ()

    @cached_property
    def duals(self) -> tuple[Layout, ...]:
        """Layouts in which the local gradient function takes the gradients of the results."""
        return self.op.duals(self.bound, self.strategy)

    @cached_property
    def gradients(self) -> tuple[Meta, ...]:
        """Metas of the operands' gradients as the local gradient function leaves them."""
        layouts = (self.bound.gradient_layout(self.strategy, i) for i in range(len(self.inputs)))
        return tuple(map(Meta.with_layout, self.inputs, layouts))


def bind_strategy(
    op: Op,
    metas: Sequence[Meta],
    params: Params,
    world: AbstractWorld,
    requested: ShardedOp | Strategy | None,
) -> tuple[Op, BoundRule, Strategy]:
    """Return the operator that runs, its rule bound to the operands, and the strategy.

    A strategy that is requested is checked against the rule. The mesh of each strategy is checked against the world.

    Args:
        op: the operator.
        metas: layout, global shape and element type of each operand.
        params: the parameters of the call by name.
        world: the world of the operands.
        requested: a strategy, which is used as it is. Or a sharded operator, which has its own strategy, and may
            replace ``op`` by another operator. None for :func:`choose_strategy`.

    Raises:
        RuleError: If operands, parameters or the requested strategy do not fit the operator.
        WorldError: If the strategy's mesh has ranks that the world lacks.
    """
    shapes, dtypes = [meta.shape for meta in metas], [meta.dtype for meta in metas]
    bound = op.bind(shapes, params, dtypes)
    if requested is None:
        strategy = choose_strategy(bound, metas, world)
    elif isinstance(requested, ShardedOp):
        strategy = requested.strategy(bound, world.size, metas[0].layout.mesh)
        world.check_mesh(strategy.mesh)
        op = requested.substitute_op(bound, strategy, params)
        bound = op.bind(shapes, params, dtypes)
        bound.check(strategy)
    else:
        strategy = requested
        bound.check(strategy)
    world.check_mesh(strategy.mesh)
    return op, bound, strategy


def choose_strategy(bound: BoundRule, metas: Sequence[Meta], world: AbstractWorld) -> Strategy:
    """Return the strategy that needs no redistribution of operands, or the planner's choice.

    The planner chooses if every strategy needs a redistribution.

    Args:
        bound: the operator's rule, bound to the shapes of the operands.
        metas: layout, global shape and element type of each operand.
        world: the world with the planner.

    Raises:
        PlanError: If the planner finds no steps for any strategy.
    """
    layouts = [meta.layout for meta in metas]
    try:
        return bound.infer(layouts)
    except RuleError:
        return world.planner.choose(bound, layouts, [meta.storage_dtype for meta in metas])


def make_blank(array: np.ndarray) -> np.ndarray:
    """Return a read-only array of zeros in the shape and type of ``array``, of one element in memory."""
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)


def find_read_operands(rule: Rule, wanted: Sequence[bool], unseen: Sequence[int] = ()) -> tuple[bool, ...]:
    """Return, for each operand, True if the gradients of the wanted operands read its elements.

    The gradient of operand ``j`` does not read operand ``i`` if one of the rule's linear sets has both ``i`` and
    ``j``. Otherwise it reads the operand. So the gradient of ``x`` in ``x @ w`` reads ``w`` but not ``x`` (linear
    sets {x} and {w}), and the gradients of ``x + y`` read nothing (linear set {x, y}).

    If the rule does not pass sums, its linear sets are ignored: every gradient reads all operands. If no gradient is
    wanted, no operand is read.

    Args:
        rule: the operator's rule.
        wanted: for each operand, True if its gradient is wanted.
        unseen: the numbers of operands of which the gradient function reads only the shape and type. They count as
            not read.
    """
    linear = rule.linear if "sum" in rule.passes else ()
    wanted_operands = [j for j, is_wanted in enumerate(wanted) if is_wanted]

    def is_jointly_linear(i: int, j: int) -> bool:
        return any(i in group and j in group for group in linear)

    def is_read(i: int) -> bool:
        return not all(is_jointly_linear(i, j) for j in wanted_operands)

    return tuple(i not in unseen and is_read(i) for i in range(len(wanted)))


def is_noop_route(route: Route | None, before: Meta, after: Meta) -> bool:
    """Return True if a route changes no shard and no element type."""
    return route is None or (not route.steps and before.storage_dtype is after.storage_dtype)


def plan_route(meta: Meta, layout: Layout, world: AbstractWorld) -> Route | None:
    """Return the planned route of a tensor to a layout; None if its shards need not change.

    That is so for equal layouts, and for layouts that differ in axes of size 1 only.
    """
    is_unchanged = layout is meta.layout or layout.canonical == meta.layout.canonical
    return None if is_unchanged else world.planner.plan(meta.layout, layout, meta.shape, meta.dtype)
