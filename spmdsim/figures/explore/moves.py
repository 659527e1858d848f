"""Compute the page's data of layouts, redistributions and a matrix product.

:class:`PlanTable` has the plans between all layouts of a mesh. A product has slices of the operands, local products,
partial sums, and a ring that adds them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.arrays.ops import matmul
from spmdsim.collectives import schedule_of
from spmdsim.collectives.history import History, unroll
from spmdsim.core import Bounds, Layout, Mesh, Strategy
from spmdsim.core.rule import BoundRule
from spmdsim.core.step import LOCAL_STEPS, Step, overlap
from spmdsim.figures.explore.offer import Shape, layouts_of, list_plan_ends
from spmdsim.figures.plan_figures import SentBox, transfers
from spmdsim.layout.addends import ownership_words, partial_reduction
from spmdsim.layout.explain import Derivation
from spmdsim.redistribution import plan
from spmdsim.redistribution.exchange.direct_reduction import reduction_parts
from spmdsim.redistribution.step_counts import all_received
from spmdsim.worlds import LockStep


def layout_key(layout: Layout) -> str:
    """Return the key of a layout on the page: axes per dim joined by ``;``, then partial axes after ``+``.

    >>> layout_key(Mesh((2, 2, 2), ("a", "b", "c"))(("b", "a"), None, partial="c"))
    'b,a;+c'
    """
    dims = ";".join(",".join(entry) for entry in layout.dims)
    return f"{dims}+{','.join(axis for axis, _ in layout.partial)}" if layout.partial else dims


def mesh_facts(mesh: Mesh) -> dict[str, Any]:
    """Return the name, axes and sizes of a mesh, and its ranks with their coordinates.

    "ranks" is in mesh order; "coords" has a tuple of an index per axis for each of these ranks.
    """
    return {
        "name": str(mesh),
        "axes": list(mesh.axes),
        "sizes": list(mesh.shape),
        "ranks": list(mesh.rank_list),
        "coords": [mesh.coords(rank) for rank in mesh.rank_list],
    }


def derivations(mesh: Mesh, ndim: int, further: Sequence[Layout] = ()) -> dict[str, dict[str, Any]]:
    """Return the derivation of each offered layout of a mesh and of each further one, by key."""
    return {layout_key(layout): derivation_facts(layout) for layout in (*layouts_of(mesh, ndim), *further)}


def derivation_facts(layout: Layout) -> dict[str, Any]:
    """Return the steps by which a layout gives each rank its shard number, and texts.

    The steps are: number the axes of the device matrix; take the axes that the tensor map uses, in its order
    ("adjusted" axes); multiply a rank's coordinates on them by strides; add the products. In the first example, the
    adjusted axes are (b, a) with strides (2, 1). Rank 1 has the coordinates a=0, b=1, so its shard is 1 * 2 + 0 * 1 =
    2. Lists with an entry per rank are in mesh order.

    - "short", "text", "tensor_map": the layout as placements, as text and as tensor map.
    - "adjusted", "dropped", "moves": the adjusted axes, the axes that the tensor map does not use, and True if the
      adjusted axes have another order than in the device matrix.
    - "strides", "stride_texts": the stride of each adjusted axis, and its calculation.
    - "digits", "terms", "shard", "replicas": per rank its coordinates on the adjusted axes, these times the strides,
      their sum (the shard number), and the ranks that own equal shards.
    - "pending", "addends", "owned", "result": axes and addends of a pending reduction, each rank's addend in words, and
      the result in words; [] or "" without one.
    - "shards", "ownership": the number of shards, and a sentence about their owners.

    >>> facts = derivation_facts(Mesh((2, 2), ("a", "b"))("b", "a"))
    >>> facts["shard"], facts["strides"], facts["short"]
    ([0, 2, 1, 3], [2, 1], 'S(1)S(0)')
    >>> derivation_facts(Mesh((2, 2), ("a", "b"))("a", partial="b"))["addends"]
    ['+1 of 2', '+2 of 2', '+1 of 2', '+2 of 2']
    """
    derived, reduction = Derivation(layout), partial_reduction(layout)
    rows = derived.rows
    return {
        "short": layout.placement_text(),
        "text": str(layout),
        "tensor_map": layout.to_dict()["tensor_map"],
        "adjusted": list(derived.adjusted_axes),
        "dropped": list(derived.dropped_axes),
        "moves": derived.needs_adjusting,
        "stride_texts": [str(stride) for stride in derived.strides],
        "strides": [stride.value for stride in derived.strides],
        "digits": [row.adjusted for row in rows],
        "terms": [row.terms for row in rows],
        "shard": [row.shard_number for row in rows],
        "shards": layout.shard_count,
        "replicas": [row.replicas for row in rows],
        "pending": [] if reduction is None else list(reduction.axes),
        "addends": [] if reduction is None else [reduction.label(row.rank) for row in rows],
        "owned": [] if reduction is None else [reduction.long_label(row.rank) for row in rows],
        "result": "" if reduction is None else reduction.result_words,
        "ownership": ownership_words(layout),
    }


def shard_bounds(layout: Layout, shape: Shape) -> list[list[tuple[int, int]]]:
    """Return ``(start, stop)`` of each dimension of each rank's shard, for ranks in mesh order."""
    return [list(layout.bounds(shape, rank)) for rank in layout.mesh.rank_list]


def list_sent_boxes(step: Step) -> list[SentBox]:
    """Return the boxes of the global tensor that ranks send in a step, by receiver.

    A box is a pair ``(start, stop)`` per dimension. In the example, x splits 4 elements over 2 ranks, and the step
    gathers them: rank 1 sends its elements 2 and 3 to rank 0. A local step sends none, and blocks that stay on their
    rank are left out. For an all_reduce the boxes are the complete shards of the other members; ``Step.nbytes`` has the
    bytes that are really sent.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2,), ("x",))
    >>> step, = plan(mesh("x"), mesh(None), (4,)).steps
    >>> list_sent_boxes(step)[0]
    SentBox(sender=1, receiver=0, box=((2, 4),))
    """
    if step.collective in LOCAL_STEPS:
        return []
    if step.collective == "reduce_exchange":
        return [
            SentBox(*hop, transfer.box)
            for transfer in reduction_parts(step.src, step.dst, step.shape)
            for hop in (*transfer.contributions, *transfer.forwarded, *transfer.results)
        ]
    if step.collective == "exchange":
        return [sent for sent in transfers(step.src, step.dst, step.shape) if sent.sender != sent.receiver]
    have, want = _bounds_of_ranks(step.src, step.shape), _bounds_of_ranks(step.dst, step.shape)
    group_of = {rank: group for group in step.src.mesh.groups(*step.axes) for rank in group}
    return [
        SentBox(member, rank, box)
        for rank in sorted(want)
        for member in group_of[rank]
        if member != rank and (box := overlap(have[member], want[rank])) is not None
    ]


@lru_cache(maxsize=512)
def _bounds_of_ranks(layout: Layout, shape: Shape) -> dict[int, Bounds]:
    """Return the bounds of every rank; cached, because a few layouts occur in thousands of steps."""
    return {rank: layout.bounds(shape, rank) for rank in layout.mesh.rank_list}


class PlanTable:
    """The plans between layouts of one mesh and shape; each step and box is stored once."""

    def __init__(self, mesh: Mesh, shape: Shape, dtype: str, further: Sequence[Layout] = ()) -> None:
        self.mesh, self.shape, self.dtype, self.further = mesh, shape, dtype, further
        self._layouts: dict[Layout, int] = {}
        self._steps: dict[Step, int] = {}
        self._boxes: dict[Bounds, int] = {}
        self._step_rows: list[list[Any]] = []
        self._received: list[list[int]] = []

    def to_dict(self) -> dict[str, Any]:
        """Return all plans between the offered layouts, as JSON values.

        Steps, layouts and boxes are each stored once, in the lists "steps", "layouts" and "boxes". Plans refer to steps
        by their index, and steps to layouts and boxes by theirs. "sources" and "targets" have the keys of layouts.

        - "shape": the global shape.
        - "sources", "targets": the keys of the layouts between which there are plans.
        - "plans": ``plans[i][j]`` is the plan from ``sources[i]`` to ``targets[j]``; see :meth:`_plan`.
        - "steps": a row per step; see :meth:`_step`.
        - "layouts": for each layout its key, its text, and the bounds of each rank's shard. Offered layouts come first,
          then those between steps.
        - "boxes": the bounds of each box that is sent.
        """
        ndim = len(self.shape)
        for layout in (*layouts_of(self.mesh, ndim), *self.further):
            self._layout(layout)
        sources, targets = list_plan_ends(self.mesh, ndim)
        plans = [[self._plan(src, dst) for dst in targets] for src in sources]
        return {
            "shape": list(self.shape),
            "sources": [layout_key(layout) for layout in sources],
            "targets": [layout_key(layout) for layout in targets],
            "plans": plans,
            "steps": self._step_rows,
            "layouts": [
                [layout_key(layout), layout.placement_text(), shard_bounds(layout, self.shape)]
                for layout in self._layouts
            ],
            "boxes": list(self._boxes),
        }

    def _plan(self, src: Layout, dst: Layout) -> list[Any]:
        """Return a plan as a list: kind, numbers of its steps, received bytes, lower bounds, totals.

        Steps that are not in the table yet are stored. Received bytes and lower bounds have an entry per rank, in order
        of ranks. The totals are the largest received bytes, the largest lower bound, and the sums of both.
        """
        route = plan(src, dst, self.shape, self.dtype)
        step_numbers = [self._step(step, route.itemsize) for step in route.steps]
        no_bytes = [0] * self.mesh.size  # for a plan without steps
        bytes_of_steps = [self._received[number] for number in step_numbers]
        received = [sum(bytes_of_rank) for bytes_of_rank in zip(no_bytes, *bytes_of_steps)]
        bounds = [route.lower_bound(rank) for rank in sorted(self.mesh.rank_list)]
        totals = [max(received), route.max_lower_bound, sum(received), route.total_lower_bound]
        return [route.kind, step_numbers, received, bounds, totals]

    def _step(self, step: Step, itemsize: int) -> int:
        """Return the number of a step in the list of steps; append its row if the step is new.

        A row is the list ``[collective, axes, before, after, groups, messages, received]``:

        - ``before``, ``after``: the numbers of the layouts before and after the step;
        - ``groups``: the groups of ranks that communicate; [] without axes;
        - ``messages``: ``[sender, receiver, number of the box]`` each;
        - ``received``: the bytes that each rank receives, in order of ranks.

        Args:
            step: the step; equal steps have one number.
            itemsize: bytes of an element.
        """
        number = self._steps.get(step)
        if number is None:
            number = self._steps[step] = len(self._steps)
            sent = [
                [message.sender, message.receiver, self._box(message.box)]
                for message in list_sent_boxes(step)
            ]
            received = (itemsize * all_received((step,))[sorted(self.mesh.rank_list)]).tolist()
            self._received.append(received)
            groups = [list(group) for group in self.mesh.groups(*step.axes)] if step.axes else []
            ends = (self._layout(step.src), self._layout(step.dst))
            self._step_rows.append([step.collective, list(step.axes), *ends, groups, sent, received])
        return number

    def _layout(self, layout: Layout) -> int:
        """Return the number of a layout; store a layout that is new."""
        return self._layouts.setdefault(layout, len(self._layouts))

    def _box(self, box: Bounds) -> int:
        """Return the number of a box; store a box that is new."""
        return self._boxes.setdefault(box, len(self._boxes))


M, K, N = 4, 8, 4
_NUMBERS = np.random.default_rng(7)
X = _NUMBERS.integers(0, 4, (M, K))
W = _NUMBERS.integers(-2, 3, (K, N))
"""Operands of small integers, whose sums are exact in any order."""


def product_facts(mesh: Mesh) -> dict[str, Any]:
    """Return the matrix product ``x @ w`` with every strategy on a mesh, by key of the strategy.

    Strategies that split over an axis of size 1 are left out. The dict has "mesh" (its name) and "strategies" (the
    dicts of :func:`strategy_facts`). The products are computed in lock step.

    Args:
        mesh: the mesh; its size is the number of ranks.
    """
    bound = matmul.op.bind((X.shape, W.shape), {})
    all_strategies = [
        strategy for strategy in bound.strategies(mesh, partial=False) if _uses_long_axes(strategy, mesh)
    ]
    strategies = {strategy_key(strategy): strategy_facts(bound, strategy) for strategy in all_strategies}
    return {"mesh": str(mesh), "strategies": strategies}


def create_matrices() -> dict[str, Any]:
    """Return the global matrices, which are equal in all products."""
    return {"x": X.tolist(), "w": W.tolist(), "y": (X @ W).tolist()}


def strategy_key(strategy: Strategy) -> str:
    """Return the key of a strategy: one factor per axis in use, in mesh order.

    >>> strategy_key(Strategy.of(Mesh((2, 1, 2), ("a", "b", "c")), {"k": "c"}))
    '-,k'
    """
    factor = {axis: name for name, axes in strategy.splits for axis in axes}
    mesh = strategy.mesh
    return ",".join(factor.get(axis, "-") for axis, size in zip(mesh.axes, mesh.shape) if size > 1)


def strategy_facts(bound: BoundRule, strategy: Strategy) -> dict[str, Any]:
    """Return all numbers of the product ``x @ w`` when ranks compute it with one strategy.

    A strategy says which mesh axes split which dimensions. Each rank multiplies its shards of x and w; if the common
    dimension is split, the local products are addends, which a ring all_reduce sums.

    Args:
        bound: the rule of ``matmul``, bound to the shapes of :data:`X` and :data:`W`.
        strategy: the strategy.

    Returns:
        A dict. Lists with an entry per rank are in mesh order, and arrays are flat lists.

    - "text": the strategy as text.
    - "layouts": texts of the layouts of x, w and the product before the reduction.
    - "x", "w", "y": the bounds of each rank's shard.
    - "local": each rank's local product.
    - "received": the bytes that each rank receives in the all_reduce.
    - "rounds": the result of :func:`trace_ring`.
    - "result": each rank's final numbers, as the library computes them.
    - "pending" and "owned": the axes of the pending reduction, and each rank's addend as text; [] without one.
    """
    world = LockStep(strategy.mesh.size)
    first, second = bound.input_layouts(strategy)
    x, w = (Tensor.from_global(a, layout, world) for a, layout in ((X, first), (W, second)))
    y = matmul(x, w)  # the operands already have the layouts of the strategy
    total, reduction = y.to(y.layout.reduced), partial_reduction(y.layout)
    local = [np.asarray(shard) for shard in y.read_shards()]
    return {
        "text": str(strategy),
        "layouts": [str(first), str(second), str(y.layout)],
        "x": shard_bounds(first, X.shape),
        "w": shard_bounds(second, W.shape),
        "y": shard_bounds(y.layout, (M, N)),
        "pending": list(y.layout.partial_axes),
        "owned": [reduction.long_label(rank) for rank in strategy.mesh.rank_list] if reduction else [],
        "local": [shard.ravel().tolist() for shard in local],
        "received": _received_by_rank(y.layout, y.meta.dtype.itemsize),
        "rounds": trace_ring(y.layout, local),
        "result": [np.asarray(shard).ravel().tolist() for shard in total.read_shards()],
    }


def _received_by_rank(layout: Layout, itemsize: int) -> list[int]:
    """Return the bytes that every rank receives in the all_reduce, in mesh order.

    All are 0 if ``layout``, the layout of the product, is not partial. An element has ``itemsize`` bytes.
    """
    if not layout.partial:
        return [0] * layout.mesh.size
    step = Step("all_reduce", layout.partial_axes, layout, layout.reduced, (M, N), "sum")
    return [step.nbytes(rank, itemsize) for rank in layout.mesh.rank_list]


def trace_ring(layout: Layout, local: list[np.ndarray]) -> list[dict[str, Any]]:
    """Return the messages and the values of every rank after each round of a ring all_reduce.

    All groups of ranks run the ring at the same time. A layout without pending reduction gives []. For example, a
    message ``[0, 1, [4, 5], 1]`` says that rank 0 sends its elements 4 and 5 to rank 1, which adds them to its own.

    Args:
        layout: the layout of the product.
        local: the addend of each rank, in mesh order; all of one shape.

    Returns:
        A dict per round. "sent" has ``[from, to, elements, reduced]`` for each message: two ranks, the positions in the
        flattened shard, and 1 if the receiver adds, else 0. "held" has, for each rank in mesh order, the flat list of
        its values: at each position the sum of the addends that have arrived.
    """
    if not layout.partial:
        return []
    groups = layout.mesh.groups(*layout.partial_axes)
    history = unroll(schedule_of("all_reduce", "ring", len(groups[0])))
    rounds = []
    for number, messages in enumerate(history.steps):
        sent: list[list[Any]] = []
        values_by_rank: list[list[int]] = [[] for _ in local]
        for group in groups:
            addends = [local[layout.mesh.position(rank)].ravel() for rank in group]
            chunk_spans = _chunk_spans(history, len(addends[0]))
            for index, rank in enumerate(group):
                values_by_rank[layout.mesh.position(rank)] = _rank_values(
                    history, number + 1, index, addends, chunk_spans
                )
            for message in messages:
                elements = [e for chunk in message.chunks for e in range(*chunk_spans[chunk])]
                sent.append([group[message.source], group[message.target], elements, int(message.reduces)])
        rounds.append({"sent": sent, "held": values_by_rank})
    return rounds


def _chunk_spans(history: History, count: int) -> list[tuple[int, int]]:
    """Return ``(start, stop)`` of each chunk's elements, if a vector has ``count`` elements.

    ``history`` is the executed schedule that divides the vector into chunks.
    """
    ends = np.cumsum([0, *history.schedule.chunk_elements(count)]).tolist()
    return list(pairwise(ends))


def _rank_values(
    history: History, state: int, member: int, local_values: list[np.ndarray], spans: list[tuple[int, int]]
) -> list[int]:
    """Return the values of a rank in a state: per chunk the sum of its contributors' elements."""
    numbers: list[int] = []
    for chunk, span in enumerate(spans):
        contributors = history.contributors(history.states[state].holds[member][chunk])
        numbers += np.sum(
            [local_values[contributor][slice(*span)] for contributor in contributors], axis=0
        ).tolist()
    return numbers


def _uses_long_axes(strategy: Strategy, mesh: Mesh) -> bool:
    """Return True if a strategy splits no factor over axes of size 1."""
    return all(mesh.axis_size(axis) > 1 for _, axes in strategy.splits for axis in axes)
