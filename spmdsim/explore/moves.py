"""Where a tensor lives and how it is redistributed, for the page: derivations, boxes, plans, and who sends what in each step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from spmdsim.core import Bounds, Layout, Mesh
from spmdsim.core.step import LOCAL_STEPS, Step, overlap
from spmdsim.draw.plan_figures import SentBox, transfers
from spmdsim.explore.offer import Shape, ends_of, layouts_of
from spmdsim.layout.explain import Derivation
from spmdsim.redistribution import plan
from spmdsim.redistribution.exchange.direct_reduction import parts
from spmdsim.redistribution.price import all_received


def layout_key(layout: Layout) -> str:
    """How page and tests name a layout: axes per dim, joined by ``;``, then the pending ones behind ``+``.

    >>> layout_key(Mesh((2, 2, 2), ("a", "b", "c"))(("b", "a"), None, partial="c"))
    'b,a;+c'
    """
    dims = ";".join(",".join(entry) for entry in layout.dims)
    return f"{dims}+{','.join(axis for axis, _ in layout.partial)}" if layout.partial else dims


def mesh_facts(mesh: Mesh) -> dict[str, Any]:
    """A mesh: its name, axes, and every rank's coordinate."""
    return {
        "name": str(mesh),
        "axes": list(mesh.axes),
        "sizes": list(mesh.shape),
        "ranks": list(mesh.rank_list),
        "coords": [mesh.coords(rank) for rank in mesh.rank_list],
    }


def derivations(mesh: Mesh, ndim: int, further: Sequence[Layout] = ()) -> dict[str, dict[str, Any]]:
    """The derivation of every layout on offer, and of further ones, by its key."""
    return {layout_key(layout): derivation_facts(layout) for layout in (*layouts_of(mesh, ndim), *further)}


def derivation_facts(layout: Layout) -> dict[str, Any]:
    """The three steps of a derivation as plain data, and what the layout is called elsewhere.

    >>> facts = derivation_facts(Mesh((2, 2), ("a", "b"))("b", "a"))
    >>> facts["shard"], facts["strides"], facts["short"]
    ([0, 2, 1, 3], [2, 1], 'S(1)S(0)')
    """
    derived = Derivation(layout)
    rows = derived.rows
    return {
        "short": layout.short(),
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
        "pending": list(layout.partial_axes),
    }


def boxes(layout: Layout, shape: Shape) -> list[list[tuple[int, int]]]:
    """``(start, stop)`` per dim of every rank, in mesh order."""
    return [list(layout.bounds(shape, rank)) for rank in layout.mesh.rank_list]


def sent_boxes(step: Step) -> list[SentBox]:
    """Who sends which box of the global tensor to whom in a step, by receiver.

    In an all_reduce every member's whole box is one, as it takes part: how many bytes travel says ``Step.nbytes``.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2,), ("x",))
    >>> step, = plan(mesh("x"), mesh(None), (4,)).steps
    >>> sent_boxes(step)[0]
    SentBox(sender=1, receiver=0, box=((2, 4),))
    """
    if step.collective in LOCAL_STEPS:
        return []
    if step.collective == "reduce_exchange":
        return [
            SentBox(*hop, part.box)
            for part in parts(step.src, step.dst, step.shape)
            for hop in (*part.contributions, *part.passed, *part.results)
        ]
    if step.collective == "exchange":
        return [one for one in transfers(step.src, step.dst, step.shape) if one.sender != one.receiver]
    have, want = _pieces(step.src, step.shape), _pieces(step.dst, step.shape)
    group_of = {rank: group for group in step.src.mesh.groups(*step.axes) for rank in group}
    return [
        SentBox(member, rank, box)
        for rank in sorted(want)
        for member in group_of[rank]
        if member != rank and (box := overlap(have[member], want[rank])) is not None
    ]


@lru_cache(maxsize=512)
def _pieces(layout: Layout, shape: Shape) -> dict[int, Bounds]:
    """Every rank's box: a page's few layouts meet in thousands of steps."""
    return {rank: layout.bounds(shape, rank) for rank in layout.mesh.rank_list}


class MoveTable:
    """The plans between layouts of a mesh and shape, each step and box once; further layouts are only shown."""

    def __init__(self, mesh: Mesh, shape: Shape, dtype: str, further: Sequence[Layout] = ()) -> None:
        self.mesh, self.shape, self.dtype, self.further = mesh, shape, dtype, further
        self._layouts: dict[Layout, int] = {}
        self._steps: dict[Step, int] = {}
        self._boxes: dict[Bounds, int] = {}
        self._step_rows: list[list[Any]] = []
        self._received: list[list[int]] = []

    def to_dict(self) -> dict[str, Any]:
        """The table as plain data; the page looks plans up by the keys of two layouts."""
        ndim = len(self.shape)
        for layout in (*layouts_of(self.mesh, ndim), *self.further):
            self._layout(layout)
        sources, targets = ends_of(self.mesh, ndim)
        plans = [[self._plan(src, dst) for dst in targets] for src in sources]
        return {
            "shape": list(self.shape),
            "sources": [layout_key(layout) for layout in sources],
            "targets": [layout_key(layout) for layout in targets],
            "plans": plans,
            "steps": self._step_rows,
            "layouts": [[layout_key(one), one.short(), boxes(one, self.shape)] for one in self._layouts],
            "boxes": list(self._boxes),
        }

    def _plan(self, src: Layout, dst: Layout) -> list[Any]:
        route = plan(src, dst, self.shape, self.dtype)
        steps = [self._step(step, route.itemsize) for step in route.steps]
        received = [sum(each) for each in zip([0] * self.mesh.size, *(self._received[one] for one in steps))]
        bounds = [route.lower_bound(rank) for rank in sorted(self.mesh.rank_list)]
        ends = [max(received), route.max_lower_bound, sum(received), route.total_lower_bound]
        return [route.kind, steps, received, bounds, ends]

    def _step(self, step: Step, itemsize: int) -> int:
        number = self._steps.get(step)
        if number is None:
            number = self._steps[step] = len(self._steps)
            sent = [[one.sender, one.receiver, self._box(one.box)] for one in sent_boxes(step)]
            received = (itemsize * all_received((step,))[sorted(self.mesh.rank_list)]).tolist()
            self._received.append(received)
            groups = [list(group) for group in self.mesh.groups(*step.axes)] if step.axes else []
            ends = (self._layout(step.src), self._layout(step.dst))
            self._step_rows.append([step.collective, list(step.axes), *ends, groups, sent, received])
        return number

    def _layout(self, layout: Layout) -> int:
        return self._layouts.setdefault(layout, len(self._layouts))

    def _box(self, box: Bounds) -> int:
        return self._boxes.setdefault(box, len(self._boxes))
