"""The tape: what computed each tensor, and the gradients that follow from it.

No operator has a gradient collective of its own. The local gradient function runs on the same shards with the same
strategy; every factor an operand lacks makes its gradient partial (the transposed rule), and a gradient is finally
laid out by the dual layout of its tensor (S stays S, R stays R, P becomes R), or as the tensor says
(``gradient_layout``: where an optimiser split further wants it). Between an operator and its operand a redistribution
is the identity on the global tensor, so gradients pass through it as they are, still partial, and are reduced once,
where they are used or kept.

Next: :mod:`spmdsim.core.recipe`, what the tape remembers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.core.layout import Layout
from spmdsim.core.tensor import Meta, PlainTensor
from spmdsim.core.world import AbstractWorld, Params, T
from spmdsim.errors import LayoutError, RuleError, UsageTypeError

if TYPE_CHECKING:
    from spmdsim.core.recipe import Recipe

#: Of one tensor, as they arrive: not yet added up, in any layout, partial or not.
Gradients = list[Any]
_numbers = count()
_tracked = attrgetter("_tracked")


class Node(ABC):
    """The record of a calculation: its operands that are leaves, and the meta of its first result."""

    __slots__ = ("meta", "number", "sources", "wanted", "world")

    #: How many tensors it computed.
    results = 1
    #: Whether a backward pass went through it, and dropped what it had kept.
    spent = False

    def __init__(self, *operands: PlainTensor) -> None:
        self.world, self.meta = operands[0].world, operands[0].meta
        #: Which operands gradients are for, and where these go: to a result of a node, or to a leaf.
        self.wanted = tuple(map(_tracked, operands))
        self.sources = [((x.node, x.output) if x.node else x) if x._tracked else None for x in operands]
        #: Grows from call to call, so a node's number is higher than those of the nodes it depends on.
        self.number = next(_numbers)

    @abstractmethod
    def pull(self, gradients: list[Gradients]) -> list[Gradients]:
        """Return the gradients of each operand from the gradients of each result."""

    def spend(self) -> None:  # noqa: B027 - most keep nothing
        """Drop what only the first backward pass needs."""


class MoveNode(Node):
    """The record of a redistribution, which is the identity on the global tensor."""

    __slots__ = ()

    def pull(self, gradients: list[Gradients]) -> list[Gradients]:
        """Pass the gradients on in any layout."""
        return gradients


class OpNode(Node):
    """The record of an operator call with the arrays that its local gradient function reads."""

    __slots__ = ("origin", "params", "recipe", "results", "saved", "spent", "values")

    def __init__(
        self, recipe: Recipe, operands: Sequence[PlainTensor], results: Sequence[PlainTensor], params: Params
    ) -> None:
        super().__init__(*operands)
        self.recipe, self.params, self.origin = recipe, params, results[0].origin
        self.results, self.spent = len(recipe.outputs), False
        self.values, self.saved = recipe.kept(operands, results, self.wanted)

    def spend(self) -> None:
        """Drop the operands and results that the gradient function looked at."""
        self.spent, self.sources, self.values, self.saved = True, [], [], None

    def pull(self, gradients: list[Gradients]) -> list[Gradients]:
        """Bring the results' gradients together, and calculate the operands'.

        Raises:
            RuleError: If the local gradient function looks at a result that is not saved.
        """
        recipe, world, wanted = self.recipe, self.world, self.wanted
        observers, provenance = world.observers, world.provenance
        with observers.span(recipe, world, sum(wanted)) if observers.traces else nullcontext():
            dys = [
                reduce_gradients(some, dual) if some else None for some, dual in zip(gradients, recipe.duals)
            ]
            try:
                computed = self.gradients(dys, wanted)
            except (AttributeError, TypeError) as error:
                if recipe.op.saves_result or "NoneType" not in str(error):
                    raise
                raise RuleError(
                    f"the vjp of {recipe.op.name} looks at its third argument, the result, which is kept only for "
                    f"Op(..., saves_result=True): {error}"
                ) from error
        present = [dy for dy in dys if dy is not None]
        arrived: list[Gradients] = [[] for _ in computed]
        for k, one in enumerate(computed):
            if one is None or not wanted[k]:
                continue
            if not isinstance(one, PlainTensor):
                origin = 0 if provenance is None else provenance.of_gradient(recipe, present, k, self.origin)
                one = type(present[0])(world, recipe.gradients[k], one, origin=origin)
            arrived[k].append(one)
        return arrived

    def gradients(self, dys: list[PlainTensor | None], wanted: Sequence[bool]) -> Sequence[Any]:
        """Return the wanted gradients of operands: arrays on every owned rank, or a tensor."""
        recipe, world = self.recipe, self.world
        if not world.has_data:
            return [world.empties(meta) for meta in recipe.gradients]
        arrays, arrived = [dy.held for dy in dys if dy is not None], [dy is not None for dy in dys]
        run = partial(local_gradients, recipe, world, self.params, arrived, wanted)
        return world.perform(run, *arrays, *self.values, *(self.saved or ()))  # type: ignore[no-any-return]


def pulled(recipe: Recipe, params: Params, arrived: list[bool], *arrays: Any, head: Any = ()) -> Any:
    """Call a rank's local gradient function with the results' gradients, the operands and the saved results."""
    rest = iter(arrays)
    dys = [next(rest) if there else None for there in arrived]
    operands = [next(rest) for _ in recipe.inputs]
    results = [*rest] or None
    vjp: Any = recipe.vjp
    facts = (dys[0], operands, results and results[0]) if len(dys) == 1 else (dys, operands, results)
    return vjp(*head, *facts, **params)


def local_gradients(
    recipe: Recipe,
    world: AbstractWorld,
    params: Params,
    arrived: list[bool],
    wanted: Sequence[bool],
    *lists: Any,
) -> list[list[Any] | None]:
    """Return the operands' gradients on every owned rank, computed by :func:`pulled`; None where there is none."""
    kinds = [meta.held if asked else None for asked, meta in zip(wanted, recipe.gradients)]
    # Ranks outside the mesh cannot know what has no gradient: zeros.
    nothing = np.zeros_like if recipe.strategy.mesh.size < world.size else lambda _: None

    def job(*arrays: Any, head: Any = ()) -> list[Any]:
        own = zip(pulled(recipe, params, arrived, *arrays, head=head), arrays[sum(arrived) :])
        pieces = [nothing(x) if one is None else one for one, x in own]
        return [None if kind is None or one is None else like(one, kind) for kind, one in zip(kinds, pieces)]

    rows = recipe.on_ranks(world, job, *lists)
    for k, row in enumerate(rows):
        if row is None:  # outside of the mesh the operands are empty, as their gradients are
            own = zip(kinds, lists[sum(arrived) :])
            rows[k] = [None if kind is None else np.asarray(held[k], kind) for kind, held in own]
    return [None if one is None else [row[i] for row in rows] for i, one in enumerate(rows[0])]


def like(gradient: Any, dtype: np.dtype) -> np.ndarray:
    """Convert a local gradient, or a function that computes it, to its operand's type; take the real part for real operands."""
    gradient = np.asarray(gradient() if callable(gradient) else gradient)
    if gradient.dtype.kind == "c" and dtype.kind != "c":
        gradient = gradient.real
    return np.asarray(gradient, dtype, order="C")


def converted(gradient: T, dtype: np.dtype) -> T:
    """Return a gradient in the type of its tensor, without pending reductions."""
    whole, world = gradient.detach().to(gradient.layout.reduced), gradient.world
    shards = [like(x, dtype) if world.has_data else world.empty(x.shape, dtype) for x in whole.shards]
    return type(gradient)(world, Meta.of(whole.layout, whole.shape, dtype), shards)


def reduce_gradients(gradients: list[T], layout: Layout) -> T:
    """Add gradients up, taken out of their list, and bring them into a layout: equal layouts are added first, then reduced once."""
    by_meta: dict[int, list[T]] = {}
    while gradients:
        by_meta.setdefault(id(gradients[0].meta), []).append(gradients.pop(0))
    return added([added(alike).to(layout) for alike in by_meta.values()])


def added(gradients: Sequence[T], *, more_to_come: bool = False) -> T:
    """Return the sum of gradients in equal layouts; more gradients may be added to it later."""
    first, *others = gradients
    return first._plus(others, more_to_come) if others and first.world.has_data else first


def keep(leaf: PlainTensor, gradient: PlainTensor) -> None:
    """Add a gradient to the one that a leaf has, which may have come into another layout."""
    if leaf.grad is not None:
        gradient = added([leaf.grad.to(gradient.layout), gradient], more_to_come=True)
    leaf.grad = gradient


def backward(result: PlainTensor, gradient: PlainTensor | None, retain_graph: bool = False) -> None:
    """Compute and keep the gradients of all leaves that ``result`` depends on."""
    leaves = pull_back(result, gradient, retain_graph)
    for leaf, total in [
        (x, reduce_gradients(arrived, x.gradient_layout or x.layout.dual())) for x, arrived in leaves
    ]:
        keep(leaf, total)


def pull_back(
    result: PlainTensor, gradient: PlainTensor | None = None, retain_graph: bool = False
) -> Iterator[tuple[Any, Gradients]]:
    """Yield each leaf on which ``result`` depends with the list of its gradients, as soon as all of them have arrived.

    The caller sums the list.

    Args:
        result: the tensor that is differentiated.
        gradient: the gradient of ``result``; ones by default.
        retain_graph: keep the nodes for another pass.

    Raises:
        UsageTypeError: If ``result`` needs no gradient, or its nodes were used by an earlier pass.
    """
    if not result.requires_grad:
        raise UsageTypeError("backward() starts from a tensor that nothing with requires_grad=True went into")
    waiting: dict[tuple[Node, int], Gradients] = {}
    leaves: dict[int, tuple[Any, Gradients]] = {}

    def arrive(source: Any, gradients: Gradients) -> None:
        if isinstance(source, tuple):
            waiting.setdefault(source, []).extend(gradients)
        elif gradients and source is not None and source.requires_grad:
            leaves.setdefault(id(source), (source, []))[1].extend(gradients)
        gradients.clear()

    nodes = history(result.node)
    for node in nodes:
        if node.spent:
            assert isinstance(node, OpNode)
            raise UsageTypeError(
                f"the graph of {node.recipe.op.name} was passed backward before: compute the result again, add the losses "
                "and go back once, or let the first pass keep the graph, backward(retain_graph=True)"
            )
    arrive((result.node, result.output) if result.node else result, [_first(result, gradient)])
    last = {id(source): node for node in nodes for source in node.sources if not isinstance(source, tuple)}
    for node in nodes:
        sources = node.sources
        arrived = [waiting.pop((node, k), []) for k in range(node.results)]
        for source, gradients in zip(sources, node.pull(arrived) if any(arrived) else ()):
            arrive(source, gradients)
        if not retain_graph:
            node.spend()
        if leaves:
            yield from (leaves.pop(id(x)) for x in sources if id(x) in leaves and last[id(x)] is node)
    yield from leaves.values()


def _first(result: PlainTensor, gradient: PlainTensor | None) -> PlainTensor:
    if gradient is not None:
        if gradient.shape != result.shape:
            raise LayoutError(f"the gradient has shape {gradient.shape}, but the tensor has {result.shape}")
        return gradient
    world, meta = result.world, Meta.of(result.layout.dual(), result.shape, result.dtype)
    held = [np.ones(x.shape, meta.held) for x in result.held] if world.has_data else world.empties(meta)
    ones = type(result)(world, meta, held, origin=result.origin)
    if world.observers.programs:
        world.observers.programs[-1].created(ones)
    return ones


def history(root: Node | None) -> list[Node]:
    """Return all nodes on which ``root`` depends, each after the nodes that use it."""
    nodes: dict[int, Node] = {}
    waiting = [root]
    for node in waiting:
        if node is not None and id(node) not in nodes:
            nodes[id(node)] = node
            waiting += [source[0] for source in node.sources if isinstance(source, tuple)]
    return sorted(nodes.values(), key=lambda node: node.number, reverse=True)
