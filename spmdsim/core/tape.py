"""The tape: record what computed each tensor, and compute gradients from the records.

No operator has a gradient collective of its own. The local gradient function runs on the shards of the forward pass
with the same strategy. Its gradient is partial along the axes of every factor that the operand lacks (the transposed
rule). The final gradient has the dual layout of its tensor (S stays S, R stays R, P becomes R), or the tensor's
``gradient_layout``, which an optimiser sets to split it further. A redistribution between an operator and its operand
is the identity on the global tensor. So gradients pass through it unchanged, still partial, and are reduced once, when
an operator reads them or a leaf stores them.

Next: :mod:`spmdsim.core.operator`, the declaration of operators and their calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from spmdsim.core.layout import Layout
from spmdsim.core.recipe import Recipe
from spmdsim.core.tensor import Gradients, Meta, Node, PlainTensor
from spmdsim.core.world import AbstractWorld, Params, T
from spmdsim.errors import LayoutError, RuleError, UsageTypeError


class OpNode(Node):
    """Record of an operator call with the arrays that its local gradient function reads."""

    __slots__ = ("params", "provenance_number", "recipe", "results", "saved", "spent", "values")

    def __init__(
        self, recipe: Recipe, operands: Sequence[PlainTensor], results: Sequence[PlainTensor], params: Params
    ) -> None:
        super().__init__(*operands)
        self.recipe, self.params, self.provenance_number = recipe, params, results[0].provenance_number
        self.results, self.spent = len(recipe.outputs), False
        self.values, self.saved = recipe.save_arrays(operands, results, self.wanted)

    def spend(self) -> None:
        """Drop the stored operands and results, and mark the node as spent."""
        self.spent, self.sources, self.values, self.saved = True, [], [], None

    def store_results(self, results: Sequence[PlainTensor]) -> None:
        """Store other arrays for the gradient function if it reads results."""
        if self.saved:
            self.saved = [result.stored_shards for result in results]

    def pull(self, gradients: list[Gradients]) -> list[Gradients]:
        """Sum the addends of each result's gradient; compute the wanted operands' gradients.

        The sums have the results' dual layouts (the layouts that the local gradient function needs). The
        addends may have to be redistributed for it, so all ranks must call the method. An open trace records
        the calculation. The lists in ``gradients`` are emptied. See :meth:`Node.pull` for the argument and the
        lists that are returned.

        Raises:
            RuleError: If the local gradient function reads a result that is not saved (``saves_result``).
        """
        recipe, world = self.recipe, self.world
        records = world.observers.traces
        with world.observers.span(recipe, world, sum(self.wanted)) if records else nullcontext():
            dys = [
                reduce_gradients(addends, dual) if addends else None
                for addends, dual in zip(gradients, recipe.duals)
            ]
            try:
                computed = self.gradients(dys, self.wanted)
            except (AttributeError, TypeError) as error:
                if recipe.op.saves_result or "NoneType" not in str(error):
                    raise
                raise RuleError(
                    f"the vjp of {recipe.op.name} must not read its third argument, the result, unless it is kept; "
                    f"use Op(..., saves_result=True): {error}"
                ) from error
        present = [dy for dy in dys if dy is not None]
        return [
            [self._build_gradient(k, gradient, present)] if is_wanted and gradient is not None else []
            for k, (gradient, is_wanted) in enumerate(zip(computed, self.wanted))
        ]

    def _build_gradient(self, operand: int, gradient: Any, dys: Sequence[PlainTensor]) -> PlainTensor:
        """Return the gradient of an operand as a tensor.

        A gradient that is a tensor already is returned unchanged. From arrays, a tensor is made in the layout that the
        recipe has for this gradient. Its provenance number identifies how it was computed; the number is 0 if the world
        does not number tensors.
        """
        if isinstance(gradient, PlainTensor):
            return gradient
        provenance, number = self.world.provenance, 0
        if provenance is not None:
            number = provenance.of_gradient(self.recipe, dys, operand, self.provenance_number)
        return type(dys[0])(self.world, self.recipe.gradients[operand], gradient, provenance_number=number)

    def gradients(self, dys: list[PlainTensor | None], wanted: Sequence[bool]) -> Sequence[Any]:
        """Run the operator's gradient function on each rank of this process; return the gradients.

        In a world without data, the gradients of all operands are arrays of the right shapes without values, also those
        that are not wanted. If a program is being recorded (:attr:`Observers.programs`), the calculation is recorded,
        too.

        Args:
            dys: the gradient of each result in its dual layout; None for results without gradient.
            wanted: for each operand, True if its gradient is wanted.

        Returns:
            One entry per operand: the list of the arrays of this process's ranks, or a tensor. None if the operand has
            no gradient or it is not wanted.
        """
        recipe, world = self.recipe, self.world
        if not world.has_data:
            return [world.empties(meta) for meta in recipe.gradients]
        arrays, present = [dy.stored_shards for dy in dys if dy is not None], [dy is not None for dy in dys]
        run = partial(local_gradients, recipe, world, self.params, present, wanted)
        return world.perform(run, *arrays, *self.values, *(self.saved or ()))  # type: ignore[no-any-return]


def call_vjp(recipe: Recipe, params: Params, present: list[bool], *arrays: Any, head: Any = ()) -> Any:
    """Call the local gradient function for one rank; return its gradients, one per operand.

    It is called as ``vjp(dy, operands, result, **params)``, or with lists ``vjp(dys, operands, results,
    **params)`` if the operator has several results. Results that are not saved are None.

    Args:
        recipe: what was derived for the forward call: strategy, layouts, functions.
        params: the parameters of the forward call by name.
        present: for each result, True if it has a gradient. The function gets None for the other gradients.
        arrays: the rank's arrays: ``sum(present)`` gradients, one operand per input of ``recipe``, then the saved
            results, if any.
        head: arguments before all others: a tuple with the context of a contextual operator; else empty.
    """
    remaining = iter(arrays)
    dys = [next(remaining) if is_present else None for is_present in present]
    operands = [next(remaining) for _ in recipe.inputs]
    results = [*remaining] or None
    vjp: Any = recipe.vjp
    if len(dys) == 1:
        return vjp(*head, dys[0], operands, results and results[0], **params)
    return vjp(*head, dys, operands, results, **params)


def local_gradients(
    recipe: Recipe,
    world: AbstractWorld,
    params: Params,
    present: list[bool],
    wanted: Sequence[bool],
    *lists: Any,
) -> list[list[Any] | None]:
    """Return the operands' gradients on every owned rank, computed by :func:`call_vjp`.

    - A rank outside the strategy's mesh gets gradients without elements.
    - If the function returns None for an operand, it has no gradient. But on a mesh smaller than the world its
      gradient is zeros, because ranks outside the mesh cannot know that it has none.
    - If the function returns a function as gradient, it is called only for a wanted gradient
      (:func:`match_dtype`).

    Args:
        recipe: what was derived for the forward call: strategy, layouts, functions.
        world: the world.
        params: the parameters of the call by name.
        present: for each result, True if it has a gradient.
        wanted: for each operand, True if its gradient is wanted.
        lists: the arrays of :func:`call_vjp`, each as a list over the owned ranks.

    Returns:
        For each operand a list of arrays over the owned ranks, in the operand's type; None if it has no gradient or its
        gradient is not wanted.
    """
    dtypes = [meta.storage_dtype if is_wanted else None for is_wanted, meta in zip(wanted, recipe.gradients)]
    # Ranks outside the mesh cannot know which operands have no gradient, so all ranks take zeros for it.
    replacement = np.zeros_like if recipe.strategy.mesh.size < world.size else lambda _: None

    def job(*arrays: Any, head: Any = ()) -> list[Any]:
        """Return the gradients of one rank in the types of the operands, None for unwanted ones."""
        pairs = zip(call_vjp(recipe, params, present, *arrays, head=head), arrays[sum(present) :])
        gradients = [replacement(x) if gradient is None else gradient for gradient, x in pairs]
        typed = zip(dtypes, gradients)
        return [None if dtype is None or x is None else match_dtype(x, dtype) for dtype, x in typed]

    rows = recipe.run_on_ranks(world, job, *lists)
    for k, row in enumerate(rows):
        if row is None:  # Outside the mesh the operands are empty, so they are their own gradients.
            operands = zip(dtypes, lists[sum(present) :])
            rows[k] = [None if dtype is None else np.asarray(shards[k], dtype) for dtype, shards in operands]
    return [None if first is None else [row[i] for row in rows] for i, first in enumerate(rows[0])]


def match_dtype(gradient: Any, dtype: np.dtype) -> np.ndarray:
    """Return a local gradient as a C-ordered array of its operand's type.

    ``gradient`` is an array, or a function without arguments that computes it. For a real operand, the imaginary part
    is dropped.
    """
    gradient = np.asarray(gradient() if callable(gradient) else gradient)
    if gradient.dtype.kind == "c" and dtype.kind != "c":
        gradient = gradient.real
    return np.asarray(gradient, dtype, order="C")


def convert_gradient(gradient: T, dtype: np.dtype) -> T:
    """Return a gradient tensor converted to an element type, without pending reductions."""
    reduced, world = gradient.detach().to(gradient.layout.reduced), gradient.world
    function = match_dtype if world.has_data else lambda x, dtype: world.empty(x.shape, dtype)
    shards = [function(x, dtype) for x in reduced.read_shards()]
    return type(gradient)(world, Meta.of(reduced.layout, reduced.shape, dtype), shards)


def reduce_gradients(gradients: list[T], layout: Layout) -> T:
    """Return the sum of gradients in a layout.

    All ranks must call it, because gradients in other layouts are redistributed. Gradients in equal layouts are added
    first, so that each layout is redistributed once. The list ``gradients`` is emptied, so that memory is freed early.
    """
    by_meta: dict[int, list[T]] = {}
    while gradients:
        by_meta.setdefault(id(gradients[0].meta), []).append(gradients.pop(0))
    return add_gradients([add_gradients(group).to(layout) for group in by_meta.values()])


def add_gradients(gradients: Sequence[T], *, more_to_come: bool = False) -> T:
    """Return the sum of one or more gradients in equal layouts; a single gradient itself.

    If ``more_to_come``, the sum of 16-bit floats also stores its unrounded values for later additions. In a world
    without data the first gradient is returned.
    """
    first, *others = gradients
    return first._add(others, more_to_come) if others and first.world.has_data else first


def accumulate_grad(leaf: PlainTensor, gradient: PlainTensor) -> None:
    """Add a gradient to the stored gradient of a leaf, which takes the layout of the new one."""
    if leaf.grad is not None:
        gradient = add_gradients([leaf.grad.to(gradient.layout), gradient], more_to_come=True)
    leaf.grad = gradient


def backward(result: T, gradient: T | None = None, retain_graph: bool = False) -> None:
    """Compute the gradients of all leaves on which ``result`` depends, and add them to ``grad``.

    All ranks must call it.

    Args:
        result: the tensor that is differentiated.
        gradient: the gradient of the final result with respect to this tensor, which is converted to its element
            type. None for a tensor of one element: the gradient is then 1.
        retain_graph: True to keep the arrays that another pass through these operators needs; else they are
            released.

    Raises:
        LayoutError: If the gradient has another shape, or there is none and the tensor does not have one element.
        UsageTypeError: If the tensor needs no gradient, an earlier pass did not retain the graph, or ``gradient`` is
            not a tensor.
    """
    if gradient is None and math.prod(result.shape) != 1:
        raise LayoutError(f"backward: gradient must be passed unless x has one element, got {result.shape}")
    if gradient is not None and not isinstance(gradient, PlainTensor):
        raise UsageTypeError(f"backward: gradient must be a tensor or None, got {type(gradient).__name__}")
    if gradient is not None and gradient.dtype != result.dtype:
        gradient = convert_gradient(gradient, result.dtype)
    leaves = pull_back(result, gradient, retain_graph)
    totals = [(leaf, reduce_gradients(xs, leaf.gradient_layout or leaf.layout.dual())) for leaf, xs in leaves]
    for leaf, total in totals:
        accumulate_grad(leaf, total)


def pull_back(
    result: PlainTensor, gradient: PlainTensor | None = None, retain_graph: bool = False
) -> Iterator[tuple[Any, Gradients]]:
    """Yield each leaf on which ``result`` depends, with the addends of its gradient.

    All ranks must call it, because it communicates. A leaf is a tensor that requires a gradient and was not
    computed by a recorded operator. It is yielded once, as soon as its list of addends is complete; the caller
    sums them. For example, x in ``x * y + x`` is yielded with two addends. Leaves that get no gradient are not
    yielded.

    Args:
        result: the tensor that is differentiated.
        gradient: the gradient of ``result``; None for ones.
        retain_graph: True to keep the arrays that nodes store, for another pass. Otherwise each node drops its arrays
            as soon as it was used.

    Raises:
        UsageTypeError: If ``result`` needs no gradient, or its nodes were used by an earlier pass.
        LayoutError: If ``gradient`` has another shape than ``result``.
    """
    if not result.requires_grad:
        raise UsageTypeError("backward: the tensor must depend on a tensor with requires_grad=True")
    waiting: dict[tuple[Node, int], Gradients] = {}
    leaves: dict[int, tuple[Any, Gradients]] = {}

    def arrive(source: Any, gradients: Gradients) -> None:
        """Move gradients to the list of their receiver, a result or a leaf; drop them if it is None."""
        if isinstance(source, tuple):
            waiting.setdefault(source, []).extend(gradients)
        elif gradients and source is not None and source.requires_grad:
            leaves.setdefault(id(source), (source, []))[1].extend(gradients)
        gradients.clear()

    nodes = collect_nodes(result.node)
    _check_unspent(nodes)
    arrive((result.node, result.output) if result.node else result, [_initial_gradient(result, gradient)])
    sources_of = [(node, source) for node in nodes for source in node.sources]
    last_user = {id(source): node for node, source in sources_of if not isinstance(source, tuple)}
    for node in nodes:
        sources = node.sources
        addends = [waiting.pop((node, k), []) for k in range(node.results)]
        for source, gradients in zip(sources, node.pull(addends) if any(addends) else ()):
            arrive(source, gradients)
        if not retain_graph:
            node.spend()
        if leaves:
            yield from (leaves.pop(id(x)) for x in sources if id(x) in leaves and last_user[id(x)] is node)
    yield from leaves.values()


def _check_unspent(nodes: Sequence[Node]) -> None:
    """Raise UsageTypeError if an earlier backward pass dropped the arrays of one of ``nodes``."""
    for node in nodes:
        if node.spent:
            assert isinstance(node, OpNode)
            raise UsageTypeError(
                f"the graph of {node.recipe.op.name} was passed backward before; compute the result again, add the losses "
                "and call backward once, or keep the graph with backward(retain_graph=True)"
            )


def _initial_gradient(result: PlainTensor, gradient: PlainTensor | None) -> PlainTensor:
    """Return the gradient with which a backward pass starts.

    Args:
        result: the tensor that is differentiated.
        gradient: is returned unchanged; None for ones in the dual layout of ``result``, which is its layout without
            pending reductions.

    Raises:
        LayoutError: If ``gradient`` has another shape than ``result``.
    """
    if gradient is not None:
        if gradient.shape != result.shape:
            raise LayoutError(f"backward: gradient must have shape {result.shape}, got {gradient.shape}")
        return gradient
    world, meta = result.world, Meta.of(result.layout.dual(), result.shape, result.dtype)
    shards = (
        [np.ones(x.shape, meta.storage_dtype) for x in result.stored_shards]
        if world.has_data
        else world.empties(meta)
    )
    ones = type(result)(world, meta, shards, provenance_number=result.provenance_number)
    if world.observers.programs:
        world.observers.programs[-1].created(ones)
    return ones


def collect_nodes(root: Node | None) -> list[Node]:
    """Return ``root`` and all nodes on which it depends, each after the nodes that use it.

    So a backward pass can visit them in this order, which is descending by number. If ``root`` is None, the list
    is empty.
    """
    nodes: dict[int, Node] = {}
    queue = [root]
    for node in queue:
        if node is not None and id(node) not in nodes:
            nodes[id(node)] = node
            queue += [source[0] for source in node.sources if isinstance(source, tuple)]
    return sorted(nodes.values(), key=lambda node: node.number, reverse=True)
