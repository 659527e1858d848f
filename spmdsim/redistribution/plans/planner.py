"""Plan the steps that take a tensor from one layout to another, with their bytes and prices.

Two kinds of plan compete: a shortest path of collective steps, and the direct exchange, in which every rank receives the
elements that it lacks. The cheaper plan on the machine wins. Pending values are reduced first; replicas share the work.
Planning is pure and cached by value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np

from spmdsim.core import Layout
from spmdsim.core.notation.layouts import as_integers
from spmdsim.core.step import Step
from spmdsim.cost.machine import CostModel, require_machine
from spmdsim.errors import PlanError, UsageTypeError, many
from spmdsim.imitated import imitation
from spmdsim.layout.element_type import element_type, number_type, storage_dtype
from spmdsim.layout.windowed_layout import Windowed
from spmdsim.pictured import ShortRepr
from spmdsim.redistribution.bound.lower_bound import ReceptionBound, lower_bound, reduced_axes
from spmdsim.redistribution.bound.node_bound import node_bound
from spmdsim.redistribution.exchange.direct import count_sent
from spmdsim.redistribution.implementations.implementation import plan_peak
from spmdsim.redistribution.plans.plan_candidates import (
    Candidate,
    PlanTask,
    Shape,
    build_candidates,
    common_endpoints,
)
from spmdsim.redistribution.plans.reshape_plans import reshape_bound, reshape_candidates
from spmdsim.redistribution.price import BYTES_ONLY, port_elements, price_step, shared_ports
from spmdsim.redistribution.step_counts import LISTED, all_received, largest_shard, most_sent, sent_nbytes
from spmdsim.redistribution.steps.halo import build_halo_steps, halo_bound
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


@dataclass(frozen=True, repr=False)
class Plan(ShortRepr):
    """Redistribution as a value; ``str(plan)`` is its table.

    Attributes:
        src: the layout before.
        dst: the layout after.
        shape: the global shape before.
        dtype: the name of the element type.
        itemsize: the bytes of an element on the way: four for pending values of a 16-bit float.
        steps: the collectives, in order; none if every rank owns its target already.
        machine: the cost model that chose it; None if the plan with the fewest bytes, then the fewest steps, was
            chosen.
        to_shape: the global shape after, if the plan reshapes, too; else None.
        kind: ``"local"``, ``"collectives"``, ``"direct exchange"``, ``"reduction, then exchange"``, ``"exchange, then
            all_gather"`` or ``"direct reduction"``, with ``" and halos"`` if windows are built or added up; ``"halo
            exchange"`` if that is all.

    >>> from spmdsim import Mesh, plan
    >>> mesh = Mesh((2,), ("x",))
    >>> found = plan(mesh("x", None), mesh(None, "x"), (4, 4), "float32")
    >>> [step.collective for step in found.steps], found.nbytes(0)
    (['all_to_all'], 16)
    """

    src: Layout
    dst: Layout
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    steps: tuple[Step, ...]
    machine: CostModel | None = None
    to_shape: tuple[int, ...] | None = None
    kind: str = "local"
    _cached: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def shape_after(self) -> tuple[int, ...]:
        """Global shape after the plan."""
        return self.shape if self.to_shape is None else self.to_shape

    # -- bytes --------------------------------------------------------------------------------------

    def nbytes(self, rank: int) -> int:
        """Return the bytes that ``rank`` receives from other ranks over all steps."""
        return sum(step.nbytes(rank, self.itemsize) for step in self.steps)

    def lower_bound(self, rank: int) -> int:
        """Return the bytes that ``rank`` must receive.

        If values are reduced or become partial, it is the rank's share of the bytes that must be received: single
        ranks may receive less, but no algorithm on :attr:`bound_ranks` ranks keeps all of them below. For example, an
        all_reduce of 32 bytes on 4 ranks has the bound 48 for each rank. It is 0 for a rank outside the target mesh.
        """
        if rank not in self.dst.mesh:
            return 0
        return self._own_itemsize * int(self._reception_bound.ranks[self.dst.mesh.position(rank)])

    @cached_property
    def max_nbytes(self) -> int:
        """Bytes that the busiest rank receives."""
        return int(self._received_elements.max(initial=0)) * self.itemsize

    @cached_property
    def total_nbytes(self) -> int:
        """Bytes that all ranks receive together."""
        return int(self._received_elements.sum()) * self.itemsize

    @cached_property
    def max_sent_nbytes(self) -> int:
        """Bytes that the busiest rank sends.

        On more than 1,024 ranks it is the sum over the busiest senders of the steps.
        """
        if self.sent_elements is None:
            return self.itemsize * sum(most_sent(step) for step in self.steps)
        return self.itemsize * max(map(sum, zip(*self.sent_elements)), default=0)

    @cached_property
    def sent_elements(self) -> list[list[int]] | None:
        """Elements that each rank of the plan sends, one list per step; None if a mesh has over 1,024 ranks.

        A list has an entry per rank of all steps' meshes, in rank order; 0 if the rank sends nothing. A plan without
        steps gives []. In the example of the class, both ranks send 4 elements in the only step: ``[[4, 4]]``.
        """
        meshes = [mesh for step in self.steps for mesh in (step.src.mesh, step.dst.mesh)]
        if max([mesh.size for mesh in meshes], default=0) > LISTED:
            return None
        ranks = sorted({rank for mesh in meshes for rank in mesh.rank_list})
        return [
            count_sent(step.src, step.dst, step.shape, ranks)
            if step.collective == "exchange" and step.to_shape is None
            else [sent_nbytes(step, rank, 1) for rank in ranks]
            for step in self.steps
        ]

    @cached_property
    def max_lower_bound(self) -> int:
        """Lower bound of the busiest rank in bytes. A bound of sums holds for the ranks of the two meshes."""
        return self._reception_bound.busiest * self._own_itemsize

    @cached_property
    def total_lower_bound(self) -> int:
        """Lower bound of all ranks together, in bytes."""
        return self._reception_bound.total * self._own_itemsize

    @cached_property
    def node_lower_bound(self) -> int | None:
        """Lower bound, for any algorithm, of the bytes that enter the busiest node.

        They enter through the port that the ranks of the node share. It is None

        - if no port is shared;
        - if source or target has windows (:class:`Windowed`), and for a reshape;
        - if the target has pending axes that the source lacks;
        - if the plan is too large to count, see :func:`node_bound`.
        """
        machine = shared_ports(self.machine, self.src.mesh, self.dst.mesh)
        if (
            machine is None
            or self.to_shape is not None
            or isinstance(self.src, Windowed)
            or isinstance(self.dst, Windowed)
        ):
            return None
        bound = node_bound(self.src, self.dst, self.shape, machine.nodes_of)
        return None if bound is None else bound * self._own_itemsize

    @cached_property
    def node_nbytes(self) -> int | None:
        """Bytes that enter the busiest port by the model of the machine's prices; None if no port is shared.

        They are the sum over the steps of the bytes that enter the busiest port of the step, which may be another
        port in each step.
        """
        if shared_ports(self.machine, self.src.mesh, self.dst.mesh) is None:
            return None
        return round(sum(port_elements(step, self.machine) for step in self.steps) * self.itemsize)

    @cached_property
    def bound_ranks(self) -> int:
        """Number of ranks to which the lower bound is restricted, if values are reduced; else 0.

        These are the ranks of the two meshes; a rank in both counts once. Other ranks of a world could add up a part of
        a sum, so the bound does not hold with their help. A bound of values that only move holds with any ranks.
        """
        if not reduced_axes(self.src.canonical, self.dst.canonical):
            return 0
        if self.src.mesh == self.dst.mesh:
            return self.src.mesh.size
        return len({*self.src.mesh.rank_list, *self.dst.mesh.rank_list})

    @property
    def ratio(self) -> float:
        """Bytes of the busiest rank divided by its lower bound.

        It is 1.0 if nothing moves, and infinity if only the bound is 0.
        """
        if not self.max_lower_bound:
            return 1.0 if not self.max_nbytes else float("inf")
        return self.max_nbytes / self.max_lower_bound

    # -- memory -------------------------------------------------------------------------------------

    @property
    def step_dtype(self) -> np.dtype:
        """Element type of the arrays between the steps: float32 for sums of 16-bit floats."""
        return storage_dtype(self.src, element_type(self.dtype))

    @cached_property
    def peak_nbytes(self) -> int:
        """Peak bytes of shards and buffers on the rank that needs most, including the shards before and after.

        Buffers are those of ``MPIWorld`` with the built-in choices for Open MPI.
        """
        if not self.steps:
            return largest_shard(self.src, self.shape) * self.itemsize
        return plan_peak(self.steps, self.step_dtype, element_type(self.dtype))

    # -- time ---------------------------------------------------------------------------------------

    @cached_property
    def prices(self) -> tuple[tuple[int, float], ...]:
        """``(elements, seconds)`` of each step: elements that its busiest rank receives, and modelled seconds."""
        return tuple(price_step(step, self.itemsize, self.machine) for step in self.steps)

    @cached_property
    def seconds(self) -> float:
        """Modelled seconds; without a machine, the seconds of the busiest rank's bytes on a link of 8 GB/s."""
        if self.machine is None:
            return self.max_nbytes * BYTES_ONLY.beta
        return sum(seconds for _, seconds in self.prices)

    # -- text and data ------------------------------------------------------------------------------

    @cached_property
    def states(self) -> tuple[Layout, ...]:
        """Layouts of the tensor before, between and after the steps."""
        return (self.src, *(step.dst for step in self.steps[:-1]), self.dst)

    @property
    def trace(self) -> str:
        """Layouts before, between and after the steps in short form, such as ``S(0)R -> S(0)S(1)``.

        A plan without steps has the layouts before and after.
        """
        layouts = [self.src, self.dst]
        if self.steps:
            layouts = [self.steps[0].src, *(step.dst for step in self.steps)]
        return " -> ".join(layout.placement_text() for layout in layouts)

    @cached_property
    def alternatives(self) -> tuple[Candidate, ...]:
        """Candidates with their prices, including the chosen one and those that cannot win."""
        task = PlanTask(self.src, self.dst, self.shape, self.itemsize, self.machine, self.to_shape)
        return _list_candidates(task, True)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan in plain types, for JSON."""
        from spmdsim.redistribution.plans.plan_table import plan_dict

        return plan_dict(self)

    def __str__(self) -> str:
        from spmdsim.redistribution.plans.plan_table import plan_table

        return plan_table(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the table in a notebook."""
        printer.text("..." if cycle else str(self))

    @cached_property
    def _reception_bound(self) -> ReceptionBound:
        """The least number of elements that must be received, in elements of the complete result.

        Incomplete sums of 16-bit floats travel as float32, so each counts as two elements. There are three bounds:
        for windows (`halo_bound`, which counts no element twice), for reshapes (`reshape_bound`) and for all other
        plans (`lower_bound`).
        """
        elements_per_addend = self.itemsize // self._own_itemsize
        if isinstance(self.src, Windowed) or isinstance(self.dst, Windowed):
            return halo_bound(self.src, self.dst, self.shape)
        if self.to_shape is not None:
            return reshape_bound(self.src, self.dst, self.shape, self.to_shape, elements_per_addend)
        return lower_bound(*common_endpoints(self.src, self.dst, self.shape), elements_per_addend)

    @cached_property
    def _own_itemsize(self) -> int:
        """Bytes of an element of a complete result. For 16-bit floats, pending values have more."""
        return min(self.itemsize, storage_dtype(self.dst, element_type(self.dtype)).itemsize)

    @cached_property
    def _received_elements(self) -> np.ndarray:
        """Elements that each rank number receives over all steps."""
        return all_received(self.steps)


class StyledPlan(Protocol):
    """Interface of plans of other systems' planners, with the plan of this package."""

    @property
    def ours(self) -> Plan:
        """Plan of this package between the same layouts."""

    def to_dict(self) -> dict[str, Any]:
        """Return the plan in plain types."""


@overload
def plan(
    src: Layout,
    dst: Layout,
    shape: Sequence[int],
    dtype: DTypeLike = "float32",
    machine: CostModel | None = None,
    to_shape: Sequence[int] | None = None,
    style: None = None,
    *,
    more_memory: bool = False,
) -> Plan: ...
@overload
def plan(
    src: Layout,
    dst: Layout,
    shape: Sequence[int],
    dtype: DTypeLike = "float32",
    machine: CostModel | None = None,
    to_shape: Sequence[int] | None = None,
    *,
    style: str,
    more_memory: bool = False,
) -> StyledPlan: ...
@explained
def plan(
    src: Layout,
    dst: Layout,
    shape: Sequence[int],
    dtype: DTypeLike = "float32",
    machine: CostModel | None = None,
    to_shape: Sequence[int] | None = None,
    style: str | None = None,
    *,
    more_memory: bool = False,
) -> Plan | StyledPlan:
    """Return the cheapest plan from one layout of a tensor to another.

    Nothing is sent: the plan is a value, and results are cached. A plan is cheaper if it takes fewer modelled
    seconds, then has fewer steps, then no exchange.

    Args:
        src: the layout before, on any mesh; pending values are reduced on the way.
        dst: the layout after, on the same mesh or another one. One rank along a new pending axis owns each value; the
            others own what the reduction ignores, such as 0 for a sum.
        shape: global shape.
        dtype: the element type, or a value that NumPy converts to one.
        machine: the cost model that prices the candidates. Without one, the plan in which the busiest rank receives
            the fewest bytes wins, then the one with the fewest steps.
        to_shape: the global shape after, to reshape on the way.
        style: ``"mindspore"`` or ``"dtensor"`` for the plan of MindSpore's inference or of DTensor's default planner.
        more_memory: allow collective steps after which a rank owns more than the larger of source and target shard,
            if that is faster. Such plans are taken anyway if the machine can run no other plan.

    Returns:
        A :class:`Plan`. With a style, the plan of that system; its attribute ``ours`` is the :class:`Plan`.

    Raises:
        PlanError: If the layouts do not fit the shapes, the shapes have different numbers of elements, a size is
            negative, values are pending by another reduction in the target, the style is unknown, or all ranks
            together own more than :data:`MOST_ELEMENTS` elements.
        InputError: If the element type does not exist.
        UsageTypeError: If an argument is not a layout or not a size.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2, 2), ("a", "b"))
    >>> [str(step) for step in plan(mesh("a", "b"), mesh("a", None), (8, 8)).steps]
    ['all_gather over b: S(0)S(1) -> S(0)R']
    """
    for layout in (src, dst):
        if not isinstance(layout, Layout):
            raise UsageTypeError(
                f"plan: src and dst must be layouts, such as mesh('dp', None), got {layout!r:.60}"
            )
    if machine is not None:
        require_machine(machine, "plan")
    target_shape = None if to_shape is None else as_integers(to_shape)
    model: Any = machine  # A cost model is hashable, but its protocol does not declare it.
    kind = element_type(dtype)
    if (
        kind.type is not np.void or kind.names or kind.subdtype
    ):  # Elements of any number of bytes may be planned.
        kind = number_type(kind, "a plan would move")
    ours = _plan_by_value(src, dst, as_integers(shape), kind, model, target_shape, more_memory)
    return ours if style is None else _plan_in_style(ours, style)


@lru_cache(maxsize=1024)
def _plan_in_style(ours: Plan, style: str) -> StyledPlan:
    """Return the plan of another system's planner. Raise PlanError for an unknown style."""
    plan_of: Callable[[Plan], StyledPlan] = imitation("plan", style, PlanError)
    return plan_of(ours)


@lru_cache(maxsize=4096)
def _plan_by_value(
    src: Layout,
    dst: Layout,
    shape: tuple[int, ...],
    dtype: np.dtype,
    machine: Any,
    to_shape: tuple[int, ...] | None,
    more_memory: bool,
) -> Plan:
    """Return the plan for the arguments of :func:`plan`, which are hashable here; cached by value.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape.
        dtype: the element type.
        machine: the cost model, or None.
        to_shape: the global shape after; None, or equal to ``shape``, if the plan does not reshape.
        more_memory: as in :func:`plan`.

    Raises:
        PlanError: If layouts and shapes do not fit, or the target's pending reductions do not.
    """
    _check_shapes(src, dst, shape, shape if to_shape is None else to_shape, one_shape=to_shape is None)
    if dst.partial and src.partial and dst.reduce_op != src.reduce_op:
        raise PlanError(
            f"plan: dst must be pending by {src.reduce_op} as src is, or reduced, got {dst.reduce_op}: {src} -> {dst}"
        )
    if to_shape == shape:
        to_shape = None
    itemsize = storage_dtype(src, dtype).itemsize
    if more_memory:
        best = _fastest_candidate(PlanTask(src, dst, shape, itemsize, machine, to_shape))
    else:
        best = cheapest_candidate(src, dst, shape, itemsize, machine, to_shape)
    return Plan(src, dst, shape, dtype.name, itemsize, best.steps, machine, to_shape, best.kind)


@lru_cache(maxsize=8192)
def cheapest_candidate(
    src: Layout,
    dst: Layout,
    shape: tuple[int, ...],
    itemsize: Any,
    machine: Any,
    to_shape: tuple[int, ...] | None = None,
) -> Candidate:
    """Return the cheapest candidate between two layouts, cached by value.

    Its shards stay small: see :attr:`Candidate.allowed`. If there is none that ``machine`` can run, the cheapest one
    with larger shards is returned. The arguments are those of :class:`PlanTask`. Plans, the choice of strategies,
    searches and reports all take the price of a redistribution from here.
    """
    task = PlanTask(src, dst, shape, itemsize, machine, to_shape)
    best = _list_candidates(task, False)[0]
    # A restricted model may allow no plan within the memory of source and target shards.
    return _fastest_candidate(task) if best.seconds == math.inf else best


def _fastest_candidate(task: PlanTask) -> Candidate:
    """Return the best candidate, however large its shards between the steps are."""
    return min(_list_candidates(task, True), key=lambda candidate: candidate.order[1:])


def _list_candidates(task: PlanTask, everything: bool) -> tuple[Candidate, ...]:
    """Return the candidates of a task, best first.

    They come from :func:`_list_windowed_candidates` for layouts with windows, from :func:`reshape_candidates` for
    reshapes, and from :func:`build_candidates` for all other tasks.

    Args:
        task: the layouts, shapes and machine.
        everything: True to build candidates that cannot win, too.
    """
    if isinstance(task.src, Windowed) or isinstance(task.dst, Windowed):
        return _list_windowed_candidates(task, everything)
    if task.to_shape is not None:
        return reshape_candidates(task, everything)
    return build_candidates(
        PlanTask(*common_endpoints(task.src, task.dst, task.shape), task.itemsize, task.machine), everything
    )


def _list_windowed_candidates(task: PlanTask, everything: bool) -> tuple[Candidate, ...]:
    """Return the plans between two layouts of which one or both have windows, best first.

    A window is a rank's block with elements of its neighbours (a halo). A plan has three parts, of which some may be
    empty: add up the windows of the source to blocks, redistribute the blocks, build the windows of the target. There
    is a plan for each order of the halo exchanges: one dimension after the other, or all at once. Between equal
    times, the fewest elements of all ranks win.

    Args:
        task: the layouts, shape and machine; windows are not reshaped.
        everything: True to build plans of the blocks that cannot win, too.
    """
    src, dst, shape = task[:3]
    before = build_halo_steps(src, shape, back=True) if isinstance(src, Windowed) else [()]
    after = build_halo_steps(dst, shape) if isinstance(dst, Windowed) else [()]
    src_blocks, dst_blocks = (
        layout.base if isinstance(layout, Windowed) else layout for layout in (src, dst)
    )
    plans = []
    for plan in _list_candidates(task._replace(src=src_blocks, dst=dst_blocks), everything):
        kind = f"{plan.kind} and halos" if plan.steps else "halo exchange"
        for first, last in product(before, after):
            plans.append(task.candidate((*first, *plan.steps, *last), kind, plan.allowed))
    # Between equal times, the fewest total bytes win, then one dimension after the other, which has fewer messages.
    return tuple(sorted(plans, key=lambda plan: (*plan.order[:2], int(all_received(plan.steps).sum()))))


#: The largest number of elements of all ranks together: bytes are counted in 64 bits.
MOST_ELEMENTS = 2**61


def _check_shapes(src: Layout, dst: Layout, shape: Shape, shape_after: Shape, one_shape: bool) -> None:
    """Raise PlanError if the layouts do not fit the shapes, or the shapes do not fit each other.

    - Each layout has as many dimensions as its shape; without a reshape, both layouts have equally many.
    - No size is negative, and both shapes have equally many elements.
    - The elements times the ranks of the larger mesh are at most :data:`MOST_ELEMENTS` (2**61).

    Sizes need not be divisible by the numbers of blocks.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape before.
        shape_after: the global shape after; ``shape`` if the plan does not reshape.
        one_shape: True if the plan does not reshape.
    """
    if one_shape and len(src.dims) != len(dst.dims):
        raise PlanError(
            f"plan: src and dst must have as many dims, got {src.ndim} and {dst.ndim}: {src} -> {dst}"
        )
    for layout, sizes in ((src, shape), (dst, shape_after)):
        if len(sizes) != len(layout.dims):
            raise PlanError(
                f"plan: a shape must have {many(layout.ndim, 'dim')} for {layout}, got {sizes} in {src} -> {dst}"
            )
    if any(size < 0 for size in (*shape, *shape_after)):
        both = f"{shape}" if one_shape else f"{shape} and {shape_after}"
        raise PlanError(f"plan: sizes of a shape must be 0 or more, got {both} for {src} -> {dst}")
    if (elements := math.prod(shape) * max(src.mesh.size, dst.mesh.size)) > MOST_ELEMENTS:
        raise PlanError(
            f"{shape} on all ranks is {elements:,} elements, too many to count exactly: at most {MOST_ELEMENTS:,}"
        )
    if math.prod(shape) != math.prod(shape_after):
        raise PlanError(
            f"plan: to_shape must have the {many(math.prod(shape), 'element')} of shape {shape}, got {shape_after} with "
            f"{math.prod(shape_after)}: {src} -> {dst}"
        )
