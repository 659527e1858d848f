"""Build the plans that compete for a redistribution, each with its price.

* Collective steps alone (:mod:`~spmdsim.redistribution.path_search`).
* On nodes: collective steps on a finer shape, in which axes may be gathered in any order, and on a finer mesh, whose
  axes end where nodes end.
* The direct exchange, after pending values are reduced.
* Between meshes: an exchange that splits a replicated target over its ranks, and an all_gather there.
* The direct reduction, if plans are compared by bytes alone and the others exceed the lower bound. It is built on one
  mesh of up to 64 ranks, and between two meshes of up to 512 ranks each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.core.step import EXCHANGES, LOCAL_STEPS, Step
from spmdsim.layout.common_mesh import mesh_of_nodes, refine
from spmdsim.pictured import ShortRepr
from spmdsim.redistribution.bound.lower_bound import (
    MOST_RANKS,
    kept_axes,
    least_on_average,
    lower_bound,
    reduced_axes,
)
from spmdsim.redistribution.exchange.direct_reduction import DirectReduction
from spmdsim.redistribution.exchange.exchange_counts import busiest_counts
from spmdsim.redistribution.grid import Ends, count_common_axes
from spmdsim.redistribution.path_search import (
    STEP_PENALTY,
    Paths,
    PathState,
    build_steps,
    find_single_step,
    search_paths,
)
from spmdsim.redistribution.price import (
    BYTES_ONLY,
    Prices,
    least_exchange,
    machine_on,
    price_exchange,
    price_step,
    shared_ports,
)
from spmdsim.redistribution.step_counts import (
    busiest_received,
    count_most_received,
    largest_shard,
    largest_shard_shape,
)

Shape: TypeAlias = tuple[int, ...]

#: The kinds of plan.
LOCAL = "local"
COLLECTIVES = "collectives"
DIRECT = "direct exchange"
REDUCED = "reduction, then exchange"
SPREAD = "exchange, then all_gather"
SUMMED = "direct reduction"

#: The relative difference up to which prices count as equal.
PRICE_TOLERANCE = 1e-9

#: The largest number of ranks with which the direct reduction is a candidate: on one mesh, and on each of two meshes.
FEW_SUMMED, MOST_SUMMED = 64, 512


@dataclass(frozen=True, repr=False)
class Candidate(ShortRepr):
    """Steps between two layouts with their price.

    Attributes:
        kind: one of the kinds of plan above.
        steps: the steps.
        seconds: the modelled seconds, or the seconds of the bytes alone.
        allowed: False if a shard in between is larger than the larger of source and target shard. Such a candidate is
            only shown in tables.
    """

    kind: str
    steps: tuple[Step, ...]
    seconds: float
    allowed: bool = True

    @cached_property
    def most_received(self) -> int:
        """Number of elements that the busiest rank receives over all steps."""
        return busiest_received(self.steps)

    @cached_property
    def largest_shard(self) -> int:
        """Number of elements of the largest shard after a step."""
        return max((largest_shard(step.dst, step.shape_after) for step in self.steps), default=0)

    @cached_property
    def order(self) -> tuple[bool, float, int, bool]:
        """Sort key: allowed first, then time, number of steps, and regular collectives before exchanges."""
        irregular = any(step.collective in EXCHANGES for step in self.steps)
        return (not self.allowed, float(f"{self.seconds:.9e}"), len(self.steps), irregular)


class PlanTask(NamedTuple):
    """Input of planning.

    Attributes:
        src: the layout before.
        dst: the layout after.
        shape: the global shape.
        itemsize: the bytes of an element.
        machine: the cost model; None to compare plans by bytes.
        to_shape: the global shape after, if the plan reshapes; else None.
    """

    src: Layout
    dst: Layout
    shape: Shape
    itemsize: Any
    machine: Any
    to_shape: Shape | None = None

    def candidate(self, steps: tuple[Step, ...], kind: str, allowed: bool = True) -> Candidate:
        """Return a candidate with these steps and their price in seconds.

        On a machine, the price is the sum of the steps' seconds. Without one, it is the bytes that the busiest rank
        receives over all steps, times 1.2e-10 s.

        Args:
            steps: the steps from ``src`` to ``dst``.
            kind: the kind of plan; replaced by ``"local"`` if no step sends anything.
            allowed: as in :class:`Candidate`.
        """
        local = all(step.collective in LOCAL_STEPS for step in steps)
        kind = LOCAL if local else kind
        if self.machine is not None:
            seconds = sum([price_step(step, self.itemsize, self.machine)[1] for step in steps])
            return Candidate(kind, steps, seconds, allowed)
        received = busiest_received(steps)
        candidate = Candidate(kind, steps, received * self.itemsize * BYTES_ONLY.beta, allowed)
        vars(candidate)["most_received"] = received  # Fill the cached property.
        return candidate


@lru_cache(maxsize=4096)
def common_endpoints(src: Layout, dst: Layout, shape: Shape) -> tuple[Layout, Layout, Shape]:
    """Return both layouts without axes of size 1, and the shape.

    Layouts on different meshes are rewritten on a common mesh if there is one.
    """
    if src.mesh == dst.mesh:
        return src.canonical, dst.canonical, shape
    return (*(refine(src, dst, shape) or (src.canonical, dst.canonical)), shape)


def build_candidates(task: PlanTask, everything: bool = False) -> tuple[Candidate, ...]:
    """Return the candidate plans for a redistribution, best first; at least one.

    They are sorted by :attr:`Candidate.order`: allowed ones first, then by time and by number of steps. Plans that
    cannot be the best are left out; often only one remains. If the target has pending axes that are not pending in the
    source, each plan leads to the layout of :func:`layout_before_fill` and ends with a local fill.

    Args:
        task: the layouts, which must not have axes of size 1, the shape and the machine; ``to_shape`` is not used.
        everything: True to add plans that cannot be the best, for tables. If every path of collectives has too large
            shards in between, the cheapest of these paths is then added, too (``allowed`` is False).
    """
    dst = task.dst
    base = layout_before_fill(task.src, dst, task.shape)
    finder = _Finder(task if base is dst else task._replace(dst=base), everything)
    plans = finder.on_one_mesh() if finder.one_mesh else finder.on_two_meshes()
    if base is not dst:
        axes = tuple(axis for axis in dst.partial_axes if axis not in base.partial_axes)
        fill = Step("fill", axes, base, dst, task.shape, dst.reduce_op)
        plans = [task.candidate((*plan.steps, fill), plan.kind) for plan in plans]
    return tuple(sorted(plans, key=lambda candidate: candidate.order))


def _split_largest(dims: list[list[str]], axes: list[str], mesh: Mesh, shape: Shape) -> None:
    """Append ``axes`` to the entry of the dim in which shards are longest; to the first one of equals.

    For a scalar, nothing changes. For example, an (8, 8) tensor whose first dim is split by an axis of size 4 has
    shards of 2 x 8, so the axes are appended to the second dim.
    """
    if dims:
        sizes = largest_shard_shape(mesh, dims, shape)
        dims[sizes.index(max(sizes))] += axes


def layout_before_fill(src: Layout, dst: Layout, shape: tuple[int, ...]) -> Layout:
    """Return the layout that one local ``fill`` step turns into ``dst``, or ``dst`` itself.

    A fill makes axes pending without messages: one rank along the axis keeps the values, and the others get what the
    reduction ignores, such as 0 for a sum. ``dst`` is returned if it needs no fill, because all of its pending axes are
    pending in ``src`` by the same reduction on one mesh. Otherwise each axis that is pending only in ``dst`` is
    replaced:

    * source on another mesh: the axis splits the dim in which shards are longest, so that each rank receives less.
    * axis splits a dim of the source: it splits this dim, so nothing has to move.
    * axis replicates the source: it replicates. But if the lower bound of the busiest rank is smaller with it, all of
      these axes together split the dim in which shards are longest.

    For example, with ``dst`` pending over "a": a source split by "a" stays split, and a replicated source stays
    replicated.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape.
    """
    if not dst.partial:
        return dst
    is_same_mesh = src.mesh == dst.mesh
    new_partial = [(axis, op) for axis, op in dst.partial if not (is_same_mesh and (axis, op) in src.partial)]
    if not new_partial:
        return dst
    dims = [list(entry) for entry in dst.dims]
    replicated: list[str] = []
    for axis, _ in new_partial:
        if not is_same_mesh:
            _split_largest(dims, [axis], dst.mesh, shape)
        elif axis in src.replicated_axes:
            replicated.append(axis)
        else:
            for dim, entry in enumerate(src.dims):
                if axis in entry:
                    dims[dim].append(axis)
    remaining_partial = [item for item in dst.partial if item not in new_partial]
    base = Layout(dst.mesh, dims, remaining_partial)
    if replicated:
        _split_largest(dims, replicated, dst.mesh, shape)
        split_further = Layout(dst.mesh, dims, remaining_partial)
        if lower_bound(src, split_further, shape).busiest < lower_bound(src, base, shape).busiest:
            return split_further
    return base


@lru_cache(maxsize=4096)
def unfold_dims(
    src: Layout, dst: Layout, shape: Shape, inside_axes: frozenset[str]
) -> tuple[Layout, Layout, Shape] | None:
    """Return both layouts and the shape with some dimensions cut into one dimension per axis, or None.

    Of the mesh axes that split a dimension, only the last ones can be gathered. If they stay inside nodes and earlier
    ones leave nodes, blocks have grown by the time the latter are gathered, so more bytes pass the nodes' ports. On
    the finer shape, each mesh axis splits a dimension of its own, so any of them can be gathered first. A dimension is
    cut if all of these hold:

    * its axes in ``src`` start with its axes in ``dst``, or the other way round;
    * among the axes that only one of the layouts has, one inside nodes comes later than one that leaves nodes;
    * its size is a multiple of the product of its axes' sizes.

    Args:
        src: the layout before.
        dst: the layout after, on the same mesh.
        shape: the global shape.
        inside_axes: the axes whose groups stay inside nodes.

    Returns:
        None if no dimension is cut. A dimension of 12 elements that axes of sizes 2 and 3 split becomes (2, 3, 2);
        the last 2 is the size of a block.

    >>> mesh = Mesh((2, 2), ("dp", "tp"))
    >>> before, after, shape = unfold_dims(mesh(("dp", "tp")), mesh(None), (8,), frozenset({"tp"}))
    >>> print(before, after, shape)  # "dp" can now be gathered before "tp"
    [dp, tp, -] over dp=2 tp=2 [-, -, -] over dp=2 tp=2 (2, 2, 2)
    """
    if not inside_axes:
        return None
    size_of = src.mesh.size_of
    sides: tuple[list[tuple[str, ...]], list[tuple[str, ...]]] = ([], [])
    sizes: list[int] = []
    for size, *entries in zip(shape, src.dims, dst.dims):
        common = count_common_axes(*entries)
        entry, are_nested = max(entries, key=len), common == min(map(len, entries))
        are_inside = [axis in inside_axes for axis in entry[common:]]
        if (
            not are_nested
            or are_inside == sorted(are_inside, reverse=True)
            or size % src.mesh.axis_size(*entry)
        ):
            sizes.append(size)
            for side, own_entry in zip(sides, entries):
                side.append(own_entry)
            continue
        cut_axes = [*([entry[:common]] if common else []), *[(axis,) for axis in entry[common:]]]
        counts = [math.prod([size_of[axis] for axis in axes]) for axes in cut_axes]
        sizes += [*counts, size // math.prod(counts)]
        for side, own_entry in zip(sides, entries):
            side += [*[axes if {*axes} <= {*own_entry} else () for axes in cut_axes], ()]
    if len(sizes) == len(shape):
        return None
    before, after = (Layout(src.mesh, side, layout.partial) for side, layout in zip(sides, (src, dst)))
    return before, after, tuple(sizes)


def cut_axes_at_nodes(src: Layout, dst: Layout, shape: Shape, machine: Any) -> tuple[Layout, Layout] | None:
    """Return both layouts on a finer mesh, whose axes end where nodes of the machine end.

    An axis that is partly inside nodes becomes two axes, so collectives can use the links inside nodes and between nodes
    one after the other. For example, an all_reduce over 2 nodes of 2 ranks can become a reduce_scatter inside, an
    all_reduce between nodes of half as many bytes, and an all_gather inside.

    The result is None in these cases:

    - There is no machine, it has one level, or it is for one mesh already (:meth:`~spmdsim.cost.Machine.on_mesh`).
    - Ranks neither follow one another on equal nodes nor are dealt to them in turn (:func:`mesh_of_nodes`).
    - No axis is cut, or axes and nodes have no common mesh.
    - A block would have other bounds on the finer mesh.

    Args:
        src: the layout before.
        dst: the layout after, on the same mesh.
        shape: the global shape.
        machine: the cost model, or None.
    """
    model = shared_ports(machine, src.mesh)
    if model is None or machine_on(machine, src.mesh) == machine:
        return None
    nodes = tuple(model.nodes_of(np.array(src.mesh.rank_list)).tolist())
    coarse = mesh_of_nodes(src.mesh, nodes)
    if coarse is None:
        return None
    anywhere = Layout(coarse, [()] * len(shape))
    refined = [refine(layout, anywhere, shape) for layout in (src, dst)]
    ends = [layouts[0] for layouts in refined if layouts is not None]
    return (ends[0], ends[1]) if len(ends) == 2 and ends[0].mesh.shape != src.mesh.shape else None


class Arrival(NamedTuple):
    """Layout to which an exchange leads, and the steps from it to the target (``next_steps``)."""

    layout: Layout
    next_steps: tuple[Step, ...]


class _Finder:
    """Builder of the candidates between two canonical layouts.

    The target's pending axes must be pending in the source, too.

    Args:
        task: the layouts, the shape and the machine.
        everything: True to build candidates that cannot win, too.
    """

    def __init__(self, task: PlanTask, everything: bool) -> None:
        self.task = task
        self.src, self.dst, self.shape, self.itemsize, self.machine, _ = task
        self.everything, self._candidate = everything, task.candidate
        self.one_mesh = self.src.mesh == self.dst.mesh
        self.prices = Prices(self.machine, self.src.mesh, self.dst.mesh)
        self.limit = max(largest_shard(self.src, self.shape), largest_shard(self.dst, self.shape))
        common_partial, self.reduced = kept_axes(self.src, self.dst), reduced_axes(self.src, self.dst)
        self.kept = tuple([item for item in self.src.partial if item[0] in common_partial])

    def on_one_mesh(self) -> list[Candidate]:
        """Return the candidates on one mesh, unsorted.

        - Equal layouts: one plan without steps.
        - Nothing to reduce: the direct exchange and the path of collectives.
        - Pending values to reduce: the path of collectives, exchanges after a reduction, and the direct reduction.
        - On nodes: the same plans on a mesh whose axes end where nodes end.

        Unless ``everything`` is True, a plan that cannot lose is returned alone: a single step that receives no more
        than the lower bound, or local steps. With ``everything``, if no path stays within the memory of source and
        target shard, the path with larger shards is added as not allowed.
        """
        src, dst = self.src, self.dst
        if src == dst:
            return [self._candidate((), LOCAL)]
        if self.reduced and not self.everything and (unbeaten := self._try_single_step()) is not None:
            return [unbeaten]
        plans = [] if self.reduced else self._build_exchanges((), src, self._arrivals)
        if plans and plans[0].kind == LOCAL and not self.everything:
            return plans
        bound = min([plan.seconds for plan in plans], default=math.inf) * (1 + PRICE_TOLERANCE) + 1e-12
        paths = self._search(dst, math.inf if self.everything else bound)
        plans += self._collectives(paths, True)
        plans += self._collectives_on_finer_shape(plans)
        plans += self._exchanges_after_reduction(paths, plans)
        plans += self._direct_reductions(plans)
        plans += self._plans_on_finer_mesh()
        if self.everything and paths.target is None:
            plans += self._collectives(self._search(dst, math.inf, unlimited=True), False)
        return plans

    def on_two_meshes(self) -> list[Candidate]:
        """Return the candidates between two meshes, unsorted: exchanges, and the direct reduction.

        Pending values are reduced on the source mesh before an exchange.
        """
        if not self.src.partial:
            return self._build_exchanges((), self.src, self._arrivals)
        plans = self._exchanges_after_reduction(self._search(self.src.reduced, math.inf), [])
        return plans + self._direct_reductions(plans)

    def _try_single_step(self) -> Candidate | None:
        """Return the plan of a single step if there is one and no plan can receive less, else None.

        The elements that its busiest rank receives must not exceed the lower bound :func:`least_on_average`. It is
        tried only if plans are compared by bytes, on up to :data:`MOST_RANKS` ranks, for a tensor with elements and
        dimensions.
        """
        src, dst, shape = self.src, self.dst, self.shape
        if not self.prices.bytes_only or src.mesh.size > MOST_RANKS or 0 in shape or not shape:
            return None
        step = find_single_step(src, dst, shape, self.kept)
        if step is None or count_most_received(step) > least_on_average(src, dst, shape).busiest:
            return None
        return self._candidate((step,), COLLECTIVES)

    def _direct_reductions(self, others: list[Candidate]) -> list[Candidate]:
        """Return the direct reduction as a list of one candidate, or an empty list if it cannot win.

        It can win only if

        * plans are compared by bytes, values have to be reduced, and the tensor has elements and dimensions;
        * source and target are on one mesh of at most :data:`FEW_SUMMED` ranks, or on two meshes of at most
          :data:`MOST_SUMMED` ranks each;
        * in each of the ``others`` the busiest rank receives more elements than both lower bounds
          (:func:`least_on_average`, :func:`lower_bound`), and more than the busiest rank of the direct reduction.

        Args:
            others: the other candidates; at least one.
        """
        src, dst = self.src, self.dst
        if not self.prices.bytes_only or not self.reduced or 0 in self.shape or not self.shape:
            return []
        if max(src.mesh.size, dst.mesh.size) > (FEW_SUMMED if self.one_mesh else MOST_SUMMED):
            return []
        best, ends = min(plan.most_received for plan in others), (src, dst, self.shape)
        if best <= least_on_average(*ends).busiest or best <= lower_bound(*ends).busiest:
            return []
        reduction = DirectReduction("reduce_exchange", (), src, dst, self.shape, src.reduce_op)
        return [self._candidate((reduction,), SUMMED)] if reduction.most_received < best else []

    def _search(self, dst: Layout, bound: float, unlimited: bool = False) -> Paths:
        """Return the cheapest paths of collectives to ``dst`` that take less than ``bound`` seconds.

        ``unlimited`` allows shards in between that are larger than the source and target shards.
        """
        limit = math.prod(self.shape) if unlimited else self.limit
        return search_paths(self.src, dst, self.shape, self.itemsize, self.prices, limit, bound)

    def _collectives(self, paths: Paths, allowed: bool) -> list[Candidate]:
        """Return the path to the target as a list of one candidate; an empty list if there is no path."""
        if paths.target is None:
            return []
        steps = build_steps(paths.target.steps, self.src, self.shape, self.kept)
        return [self._candidate(tuple(steps), COLLECTIVES, allowed)]

    def _collectives_on_finer_shape(self, others: list[Candidate]) -> list[Candidate]:
        """Return the path of collectives on the finer shape of :func:`unfold_dims`, or an empty list.

        The finer shape has a dimension per axis, so the path can gather an axis that is not the last one of its
        dimension. Local reshapes lead to this shape and back. The list has one candidate. It is empty if there is no
        finer shape, if no path is found, or (unless ``self.everything``) if the path does not take less time than each
        of ``others``.
        """
        finer_form = unfold_dims(self.src, self.dst, self.shape, self.prices.inside_axes)
        if finer_form is None:
            return []
        src, dst, shape = finer_form
        bound = math.inf if self.everything else min([plan.seconds for plan in others], default=math.inf)
        path = search_paths(src, dst, shape, self.itemsize, self.prices, self.limit, bound).target
        if path is None:
            return []
        steps = (
            Step("reshape", (), self.src, src, self.shape, to_shape=shape),
            *build_steps(path.steps, src, shape, self.kept),
            Step("reshape", (), dst, self.dst, shape, to_shape=self.shape),
        )
        return [self._candidate(steps, COLLECTIVES)]

    def _plans_on_finer_mesh(self) -> list[Candidate]:
        """Return the plans with collectives on the finer mesh of :func:`cut_axes_at_nodes`.

        The list is empty if there is no finer mesh. Left out are plans that would be equal on this mesh: direct exchanges, and plans without messages.
        """
        ends = cut_axes_at_nodes(self.src, self.dst, self.shape, self.machine)
        if ends is None:
            return []
        finder = _Finder(self.task._replace(src=ends[0], dst=ends[1]), self.everything)
        return [plan for plan in finder.on_one_mesh() if plan.kind not in (LOCAL, DIRECT)]

    # -- exchanges ----------------------------------------------------------------------------------

    def _exchanges_after_reduction(self, paths: Paths, others: list[Candidate]) -> list[Candidate]:
        """Return plans that reduce all pending axes by collectives and then exchange.

        Reductions are tried from the cheapest on, each with every arrival: a layout to which an exchange leads, and
        from which further steps may lead to the target. Without pending axes the list is empty.

        Unless ``self.everything`` is True, plans that cannot beat the best plan so far are left out. The search ends at
        the first reduction that alone takes longer than the best plan.

        Args:
            paths: the result of a search; its paths to states without pending axes are used.
            others: the candidates so far.
        """
        plans: list[Candidate] = []
        for reduction in sorted(paths.reduced, key=lambda plan: plan.seconds):
            best = None if self.everything else min(others + plans, key=lambda plan: plan.order, default=None)
            if best is not None and _without_penalty(reduction) > best.seconds * (1 + PRICE_TOLERANCE):
                break
            arrivals = [arrival for arrival in self._arrivals if self._may_win(reduction, arrival, best)]
            if arrivals:
                steps = build_steps(reduction.steps, self.src, self.shape, self.kept)
                plans += self._build_exchanges(tuple(steps), steps[-1].dst, arrivals)
        return plans

    def _may_win(self, reduction: PathState, arrival: Arrival, best: Candidate | None) -> bool:
        """Return True if an exchange after a reduction can be cheaper than ``best``; don't build the plan.

        The price is the sum of the prices of the path, of its local copies, and of the exchange. A quick lower bound
        of the exchange is tried first; its exact price is computed only if the plan can still win. Prices within
        :data:`PRICE_TOLERANCE` (a relative 1e-9) count as equal; then the plan with fewer steps wins.

        Two cases need no price: without ``best``, the result is True; on one mesh, a state with the target's splits
        needs no exchange, so the result is False.

        Args:
            reduction: the path to a state without pending axes.
            arrival: the layout to which the exchange leads.
            best: the best plan so far, or None.
        """
        src, dst, dims = self.src, arrival.layout, reduction.state.dims
        if self.one_mesh and dims == dst.dims:
            return False
        if best is None:
            return True
        steps = len(reduction.steps)
        path_seconds = _without_penalty(reduction) + self.prices.copying(reduction.copied * self.itemsize)
        ends = Ends(src.mesh, dims, dst.mesh, dst.dims, self.shape)
        for quick_or_exact in (least_exchange, price_exchange):
            seconds = quick_or_exact(ends, self.itemsize, self.prices)
            loses_ties = (steps + 1 + len(arrival.next_steps), seconds > 0) >= best.order[2:]
            tolerance = -PRICE_TOLERANCE if loses_ties else PRICE_TOLERANCE
            if path_seconds + seconds > best.seconds * (1 + tolerance):
                return False
        return True

    def _build_exchanges(
        self, steps: tuple[Step, ...], src: Layout, arrivals: list[Arrival]
    ) -> list[Candidate]:
        """Return one plan per arrival: ``steps``, the exchange, and the steps of the arrival.

        The exchange is a slice if every rank owns its target already.
        """
        kind = REDUCED if steps else DIRECT
        return [
            self._candidate(
                (*steps, self._exchange_step(src, layout), *last_steps), SPREAD if last_steps else kind
            )
            for layout, last_steps in arrivals
        ]

    def _exchange_step(self, src: Layout, dst: Layout) -> Step:
        """Return the exchange between two layouts, or a slice if every rank owns its target already."""
        ends = Ends(src.mesh, src.dims, dst.mesh, dst.dims, self.shape)
        kind = "slice" if self.one_mesh and not busiest_counts(ends).most_received else "exchange"
        return Step(kind, (), src, dst, self.shape)

    @cached_property
    def _arrivals(self) -> list[Arrival]:
        """Layouts to which an exchange may lead, with the steps from there to the target.

        - The target, without steps.
        - Between two meshes, if the target has replicas: the target split further by all axes that replicate it,
          followed by an all_gather over these axes. So each element crosses to the other mesh once. All these axes
          split one dimension: that with the longest shards, the first of equal ones. This entry is left out for a
          scalar, and without a machine, because then the all_gather has no price.
        """
        dst, free = self.dst, self.dst.replicated_axes
        arrivals = [Arrival(dst, ())]
        if self.one_mesh or self.machine is None or not self.shape or dst.mesh.axis_size(*free) == 1:
            return arrivals
        sizes = largest_shard_shape(dst.mesh, dst.dims, self.shape)
        largest_dim = sizes.index(max(sizes))
        dims = [*dst.dims]
        dims[largest_dim] = (*dims[largest_dim], *free)
        split_further = Layout(dst.mesh, dims)
        return [
            *arrivals,
            Arrival(split_further, (Step("all_gather", free, split_further, dst, self.shape),)),
        ]


def _without_penalty(reduction: PathState) -> float:
    """Return the seconds of a path without the penalty per step."""
    return reduction.seconds - len(reduction.steps) * STEP_PENALTY
