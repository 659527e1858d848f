"""The tape: what computed each tensor, and the gradients that follow from it.

No operator has a gradient collective of its own. The local gradient function runs on the same shards with
the same strategy; every factor an operand lacks makes its gradient partial (the transposed rule), and a
gradient is finally laid out by the dual layout of its tensor: S stays S, R stays R, P becomes R. Between an
operator and its operand a redistribution is the identity on the global tensor, so gradients pass through it
as they are, still partial, and are reduced once, where they are used or kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from spmdsim.errors import LayoutError
from spmdsim.trace import recorder

if TYPE_CHECKING:
    from spmdsim.layout import Layout
    from spmdsim.redistribution.rows import RowStep
    from spmdsim.tensor.recipe import Recipe
    from spmdsim.tensor.tensor import Tensor

Pending = list["Tensor"]
_numbers = count()


class Node(ABC):
    """Something that computed tensors from operands."""

    __slots__ = ("number", "operands")

    def __init__(self, operands: tuple[Tensor, ...]) -> None:
        self.operands = operands
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
    """An operator call, with what its local gradient function needs."""

    __slots__ = ("params", "recipe", "results", "saved")

    def __init__(
        self, recipe: Recipe, operands: Sequence[Tensor], results: Sequence[Tensor], params: dict[str, Any]
    ) -> None:
        super().__init__(tuple(operands))
        self.recipe = recipe
        self.params = params
        self.results = [(result.world, result.meta) for result in results]
        self.saved = [result.shards for result in results] if recipe.op.saves_result else None

    def finished(self, results: Sequence[Tensor]) -> None:
        """Remember the reduced results: a local gradient function looks at what the user sees."""
        if self.saved is not None and self.recipe.op.finish:
            self.saved = [result.shards for result in results]

    def pull(self, gradients: list[Pending]) -> list[Pending]:
        """Run the local gradient function on every owned rank."""
        from spmdsim.tensor.tensor import Tensor

        recipe, world = self.recipe, self.results[0][0]
        with recorder.operator(f"{recipe.op.name}.backward"):
            dys = [
                settle(pending, layout) if pending else None
                for pending, layout in zip(gradients, recipe.duals)
            ]
            wanted = [operand.requires_grad for operand in self.operands]
            metas = [meta if w else None for meta, w in zip(recipe.gradients, wanted)]
            if recipe.returned is not None:
                shards: list[Any] = [None, self._returned(recipe.returned, dys[0])]
            elif not world.has_data:
                shards = [
                    m and [world.empty(m.layout.local_shape(m.shape, r), m.dtype) for r in world.ranks]
                    for m in metas
                ]
            else:
                shards = self._local(dys, wanted)
        return [
            [Tensor(world, meta, arrays)] if meta is not None and arrays is not None else []
            for meta, arrays in zip(metas, shards)
        ]

    def _returned(self, step: RowStep, dy: Tensor | None) -> list[Any] | None:
        """The table's gradient from those of its looked-up rows, which go back to the ranks that hold the rows."""
        if dy is None:
            return None
        found: list[Any] = dy.world.run_rows(step, self.operands[0].shards, dy.shards)
        dtype = self.recipe.inputs[1].dtype
        return found if dy.dtype == dtype else [gradient.astype(dtype) for gradient in found]

    def _local(self, dys: list[Tensor | None], wanted: list[bool]) -> list[list[Any] | None]:
        import numpy as np

        recipe, world = self.recipe, self.results[0][0]
        vjp = recipe.op.vjp
        columns: list[list[Any] | None] = [[] if w else None for w in wanted]
        for k, rank in enumerate(world.ranks):
            operands = [operand.shards[k] for operand in self.operands]
            if not recipe.active[k]:
                for column, operand in zip(columns, operands):
                    if column is not None:
                        column.append(operand)
                continue
            given = [dy.shards[k] if dy is not None else None for dy in dys]
            saved = None if self.saved is None else [shards[k] for shards in self.saved]
            single = len(given) == 1
            head = (recipe.context(rank),) if recipe.op.contextual else ()
            found = vjp(  # type: ignore[misc]
                *head,
                given[0] if single else given,
                operands,
                saved[0] if single and saved is not None else saved,
                **self.params,
            )
            for i, (column, gradient) in enumerate(zip(columns, found)):
                if column is None:
                    continue
                if gradient is None:
                    columns[i] = None
                else:
                    if callable(gradient):
                        gradient = gradient()
                    column.append(np.asarray(gradient, recipe.inputs[i].dtype, order="C"))
        return columns


def settle(pending: Pending, layout: Layout) -> Tensor:
    """Add gradients up and bring them into a layout: equal layouts are added first, then reduced once."""
    if len(pending) == 1:
        return pending[0].to(layout)
    by_meta: dict[int, Tensor] = {}
    for gradient in pending:
        key = id(gradient.meta)
        by_meta[key] = added(by_meta[key], gradient) if key in by_meta else gradient
    settled = [gradient.to(layout) for gradient in by_meta.values()]
    total = settled[0]
    for gradient in settled[1:]:
        total = added(total, gradient)
    return total


def added(a: Tensor, b: Tensor) -> Tensor:
    """The sum of two gradients that lie alike, shard by shard."""
    from spmdsim.tensor.tensor import Tensor

    if not a.world.has_data:
        return a
    return Tensor(a.world, a.meta, [x + y for x, y in zip(a.shards, b.shards)])


def backward(result: Tensor, gradient: Tensor | None) -> None:
    """Compute and keep the gradients of all leaves that ``result`` depends on."""
    for leaf, pending in pull_back(result, gradient):
        total = settle(pending, leaf.layout.dual())
        leaf.grad = total if leaf.grad is None else added(leaf.grad, total)


def pull_back(result: Tensor, gradient: Tensor | None = None) -> list[tuple[Tensor, Pending]]:
    """The leaves ``result`` depends on, each with its gradients as they arrive: not yet added or reduced."""
    pending: dict[tuple[int, int], Pending] = {}
    leaves: dict[int, tuple[Tensor, Pending]] = {}

    def arrive(tensor: Tensor, gradients: Pending) -> None:
        if not gradients or not tensor.requires_grad:
            return
        if tensor.node is None:
            leaves.setdefault(id(tensor), (tensor, []))[1].extend(gradients)
        else:
            pending.setdefault((id(tensor.node), tensor.output), []).extend(gradients)

    arrive(result, [_seed(result, gradient)])
    for node in _latest_first(result.node):
        results = len(node.results) if isinstance(node, OpNode) else 1
        arrived = [pending.pop((id(node), k), []) for k in range(results)]
        if any(arrived):
            for operand, gradients in zip(node.operands, node.pull(arrived)):
                arrive(operand, gradients)
    return list(leaves.values())


def _seed(result: Tensor, gradient: Tensor | None) -> Tensor:
    from spmdsim.tensor.meta import Meta
    from spmdsim.tensor.tensor import Tensor

    if gradient is None:
        import numpy as np

        meta = Meta.of(result.layout.dual(), result.shape, result.dtype)
        world = result.world
        make = np.ones if world.has_data else world.empty
        shapes = [meta.layout.local_shape(meta.shape, rank) for rank in world.ranks]
        return Tensor(world, meta, [make(shape, meta.dtype) for shape in shapes])
    if gradient.shape != result.shape:
        raise LayoutError(f"the gradient has shape {gradient.shape}, but the tensor has {result.shape}")
    return gradient


def _latest_first(root: Node | None) -> list[Node]:
    """All nodes that ``root`` depends on, each after the nodes that use it."""
    found = {id(root): root} if root is not None else {}
    waiting = list(found.values())
    while waiting:
        for operand in waiting.pop().operands:
            node = operand.node
            if node is not None and id(node) not in found:
                found[id(node)] = node
                waiting.append(node)
    return sorted(found.values(), key=lambda node: node.number, reverse=True)
