"""The tape: what computed each tensor, and the gradients that follow from it.

No operator has a gradient collective of its own. The local gradient function runs on the same shards with
the same strategy; every factor an operand lacks makes its gradient partial (the transposed rule), and a
gradient is finally laid out by the dual layout of its tensor (S stays S, R stays R, P becomes R), or as
the tensor says (``gradient_layout``: where an optimiser split further wants it). Between an
operator and its operand a redistribution is the identity on the global tensor, so gradients pass through it
as they are, still partial, and are reduced once, where they are used or kept.

Next: :mod:`spmdsim.core.operator`, what the tape remembers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial, reduce
from itertools import count
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.core import elements
from spmdsim.core.elements import each, in_type
from spmdsim.core.layout import Layout
from spmdsim.core.meta import Meta
from spmdsim.core.tensor import Tensor
from spmdsim.core.world import performed, programs, recordings
from spmdsim.errors import LayoutError, UsageTypeError

if TYPE_CHECKING:
    from spmdsim.core.operator import Recipe

Params = dict[str, Any]
Pending = list[Any]
_numbers = count()
_unnamed = nullcontext()


class Node(ABC):
    """Something that computed tensors from operands. Of these it keeps those that are leaves, and the first one's meta."""

    __slots__ = ("meta", "number", "sources", "wanted", "world")

    def __init__(self, operands: Sequence[Tensor]) -> None:
        self.world, self.meta = operands[0].world, operands[0].meta
        #: Which operands gradients are for, and where these go: to a result of a node, or to a leaf.
        self.wanted = tuple([x._tracked for x in operands])
        self.sources = [((x.node, x.output) if x.node else x) if x._tracked else None for x in operands]
        #: Grows from call to call, so a node's number is higher than those of the nodes it depends on.
        self.number = next(_numbers)

    @abstractmethod
    def pull(self, gradients: list[Pending]) -> list[Pending]:
        """From the pending gradients of each result, those of each operand."""


class MoveNode(Node):
    """A redistribution: the identity on the global tensor."""

    __slots__ = ()

    def __init__(self, operand: Tensor) -> None:
        super().__init__((operand,))

    def pull(self, gradients: list[Pending]) -> list[Pending]:
        """Hand the gradients on, whatever their layout."""
        return gradients


class OpNode(Node):
    """An operator call, with what its local gradient function looks at."""

    __slots__ = ("origin", "params", "recipe", "saved", "spent", "values")

    def __init__(
        self, recipe: Recipe, operands: Sequence[Tensor], results: Sequence[Tensor], params: Params
    ) -> None:
        super().__init__(operands)
        #: Spent: whether a backward pass went through it, and dropped what it had kept.
        self.recipe, self.params, self.origin, self.spent = recipe, params, results[0].origin, False
        self.values = recipe.kept(operands, self.wanted)
        self.saved = [result.held for result in results] if recipe.op.saves_result else None

    def spend(self) -> None:
        """Drop the operands and results that the gradient function looked at."""
        self.spent, self.sources, self.values, self.saved = True, [], [], None

    def pull(self, gradients: list[Pending]) -> list[Pending]:
        """Bring the results' gradients together, and calculate the operands'."""
        recipe, world, wanted = self.recipe, self.world, self.wanted
        with world.named(f"{recipe.op.name}.backward", recipe, sum(wanted)) if recordings else _unnamed:
            dys = [settle(some, dual) if some else None for some, dual in zip(gradients, recipe.duals)]
            computed = self.gradients(dys, wanted)
        known = [dy for dy in dys if dy is not None]
        kind, origin = type(known[0]), world.derived_origin if world.compares else lambda *_: 0
        pending: list[Pending] = [[] for _ in computed]
        for k, one in enumerate(computed):
            if one is not None and wanted[k] and not isinstance(one, Tensor):
                facts = world, recipe.gradients[k], one
                one = kind(*facts, origin=origin(recipe, known, self.origin + k + 1))
            pending[k] += [one] if one is not None and wanted[k] else []
        return pending

    def gradients(self, dys: list[Tensor | None], wanted: Sequence[bool]) -> Sequence[Any]:
        """The operands' gradients, of those that are wanted: arrays on every owned rank, or a tensor."""
        recipe, world = self.recipe, self.world
        if not world.has_data:
            return [world.empties(meta) for meta in recipe.gradients]
        given, arrived = [dy.held for dy in dys if dy is not None], [dy is not None for dy in dys]
        run = partial(local_gradients, recipe, world, self.params, arrived, wanted)
        return performed(run, *given, *self.values, *(self.saved or ()))  # type: ignore[no-any-return]


def pulled(recipe: Recipe, params: Params, arrived: list[bool], *arrays: Any, head: Any = ()) -> Any:
    """What a rank's local gradient function gives, from the results' gradients that arrived, the operands, what was saved."""
    vjp: Any = recipe.vjp
    rest = iter(arrays)
    dys = [next(rest) if there else None for there in arrived]
    operands = [next(rest) for _ in recipe.inputs]
    saved = [*rest] or None
    if len(dys) == 1:
        return vjp(*head, dys[0], operands, saved and saved[0], **params)
    return vjp(*head, dys, operands, saved, **params)


def local_gradients(
    recipe: Recipe, world: Any, params: Params, arrived: list[bool], wanted: Sequence[bool], *lists: Any
) -> list[list[Any] | None]:
    """The operands' gradients on every owned rank, from what :func:`pulled` takes; None where there are none."""
    kinds = [meta.held if asked else None for asked, meta in zip(wanted, recipe.gradients)]
    # Ranks outside the mesh cannot know what has no gradient: zeros.
    nothing = np.zeros_like if recipe.strategy.mesh.size < world.size else lambda _: None

    def job(rank: int, *arrays: Any) -> list[Any]:
        own = zip(pulled(recipe, params, arrived, *arrays, head=recipe.head(rank)), arrays[sum(arrived) :])
        pieces = [nothing(x) if one is None else one for one, x in own]
        return [None if kind is None or one is None else like(one, kind) for kind, one in zip(kinds, pieces)]

    columns = [*zip(world.ranks, recipe.active, zip(*lists))]
    jobs = {rank: partial(job, rank, *arrays) for rank, active, arrays in columns if active}
    results, rows = recipe.op.on_ranks(world, recipe.strategy.mesh, jobs), []
    for rank, active, arrays in columns:
        if not active:  # outside of the mesh the operands are empty, as their gradients are
            own = zip(kinds, arrays[sum(arrived) :])
            results[rank] = [None if kind is None else np.asarray(held, kind) for kind, held in own]
        rows.append(results[rank])
    return [None if one is None else [row[i] for row in rows] for i, one in enumerate(rows[0])]


def like(gradient: Any, dtype: np.dtype) -> np.ndarray:
    """A local gradient, or a function that gives it, in the type of its operand; that of a real operand is the real part."""
    gradient = np.asarray(gradient() if callable(gradient) else gradient)
    if gradient.dtype.kind == "c" and dtype.kind != "c":
        gradient = gradient.real
    return np.asarray(gradient, dtype, order="C")


def settle(pending: Pending, layout: Layout) -> Any:
    """Add gradients up and bring them into a layout: equal layouts are added first, then reduced once."""
    by_meta: dict[int, Pending] = {}
    for gradient in pending:
        by_meta.setdefault(id(gradient.meta), []).append(gradient)
    return added([added(alike).to(layout) for alike in by_meta.values()])


def added(gradients: Sequence[Any], *, more_to_come: bool = False) -> Any:
    """The sum of gradients that lie alike, shard by shard; 16-bit floats are added up in float32 and rounded once.

    Where more is to come, what was rounded is kept, so that sums over many calls do not stand still either.
    """
    first = gradients[0]
    if len(gradients) == 1 or not first.world.has_data:
        return first
    meta, kind = first.meta, elements.types.accumulator("sum", first.meta.held)
    lists = [g.sums or (g.held if kind is meta.held else in_type(g.held, kind)) for g in gradients]
    sums = performed(partial(each, lambda *arrays: reduce(add, arrays)), *lists)
    origin = first.world.derived_origin(None, gradients) if first.world.compares else 0
    held = sums if kind is meta.held else in_type(sums, meta.held)
    total = type(first)(first.world, meta, held, origin=origin)
    if more_to_come and kind is not meta.held:
        total.sums = sums
    return total


def keep(leaf: Tensor, gradient: Tensor) -> None:
    """Add a gradient to the one that a leaf has, which may have come into another layout."""
    if leaf.grad is not None:
        gradient = added([leaf.grad.to(gradient.layout), gradient], more_to_come=True)
    leaf.grad = gradient


def backward(result: Tensor, gradient: Tensor | None, retain_graph: bool = False) -> None:
    """Compute and keep the gradients of all leaves that ``result`` depends on."""
    for leaf, pending in pull_back(result, gradient, retain_graph):
        keep(leaf, settle(pending, leaf.gradient_layout or leaf.layout.dual()))


def pull_back(
    result: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool = False,
    complete: Callable[[Any, Pending], None] | None = None,
) -> list[tuple[Any, Pending]]:
    """The leaves ``result`` depends on, each with its gradients as they arrive: not yet added or reduced.

    ``complete`` is told of each leaf, with its gradients, as soon as no more come.

    Raises:
        UsageTypeError: ``result`` needs no gradient, or a backward pass went this way before and did not retain the graph.
    """
    if not result.requires_grad:
        raise UsageTypeError("backward() starts from a tensor that nothing with requires_grad=True went into")
    pending: dict[tuple[int, int], Pending] = {}
    leaves: dict[int, tuple[Any, Pending]] = {}

    def arrive(source: Any, gradients: Pending) -> None:
        if isinstance(source, tuple):
            pending.setdefault((id(source[0]), source[1]), []).extend(gradients)
        elif gradients and source is not None and source.requires_grad:
            leaves.setdefault(id(source), (source, []))[1].extend(gradients)

    nodes = history(result.node)
    for node in nodes:
        if isinstance(node, OpNode) and node.spent:
            raise UsageTypeError(
                f"the graph of {node.recipe.op.name} was passed backward before: compute the result again, add the losses "
                "and go back once, or let the first pass keep the graph, backward(retain_graph=True)"
            )
    arrive((result.node, result.output) if result.node else result, [_seed(result, gradient)])
    latest = {id(source): node for node in nodes for source in node.sources}
    for node in nodes:
        ending = [key for key in dict.fromkeys(map(id, node.sources)) if latest[key] is node]
        results = len(node.recipe.outputs) if isinstance(node, OpNode) else 1
        arrived = [pending.pop((id(node), k), []) for k in range(results)]
        if any(arrived):
            for source, gradients in zip(node.sources, node.pull(arrived)):
                arrive(source, gradients)
        if isinstance(node, OpNode) and not retain_graph:
            node.spend()
        for key in ending:
            if complete and key in leaves:
                complete(*leaves[key])
    return list(leaves.values())


def _seed(result: Tensor, gradient: Tensor | None) -> Tensor:
    if gradient is None:
        world, meta = result.world, Meta.of(result.layout.dual(), result.shape, result.dtype)
        held = [np.ones_like(x) for x in world.empties(meta)] if world.has_data else world.empties(meta)
        ones = type(result)(world, meta, held, origin=result.origin)
        if programs:
            programs[-1].made(ones)
        return ones
    if gradient.shape != result.shape:
        raise LayoutError(f"the gradient has shape {gradient.shape}, but the tensor has {result.shape}")
    if gradient.dtype == (dtype := result.dtype):
        return gradient
    whole, world = gradient.detach().to(gradient.layout.reduced), gradient.world
    shards = [like(x, dtype) if world.has_data else world.empty(x.shape, dtype) for x in whole.shards]
    return type(gradient)(world, whole.meta.of(whole.layout, whole.shape, dtype), shards)


def history(root: Node | None) -> list[Node]:
    """All nodes that ``root`` depends on, each after the nodes that use it."""
    nodes = {id(root): root} if root is not None else {}
    waiting = list(nodes.values())
    for node in waiting:
        for source in node.sources:
            if isinstance(source, tuple) and id(source[0]) not in nodes:
                nodes[id(source[0])] = source[0]
                waiting.append(source[0])
    return sorted(nodes.values(), key=lambda node: node.number, reverse=True)
