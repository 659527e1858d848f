"""Plan a reshape as a redistribution on a finer shape.

Elements are numbered in row-major order. A shape cuts that numbering at its suffix products, and a split dimension at
the starts of its blocks. If the cuts of both shapes and both layouts divide one another, both shapes merge dimensions
of a finer shape. A local reshape of each shard to the finer shape moves nothing, so the remaining task is a
redistribution there. A mesh axis whose block spans several finer dimensions is cut, too.

Dimensions that both shapes have may be split unevenly. If cuts do not divide one another, such as ``(4, 3)`` split by
rows and ``(3, 4)`` split by rows, no finer shape exists: see :mod:`~spmdsim.redistribution.exchange.flat`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.core.step import Step
from spmdsim.layout.common_mesh import same_cuts
from spmdsim.redistribution.bound.lower_bound import ReceptionBound, count_addends, lower_bound
from spmdsim.redistribution.exchange.flat import FlatExchange, flat_counts
from spmdsim.redistribution.grid import grid
from spmdsim.redistribution.path_search import build_steps, search_paths
from spmdsim.redistribution.plans.plan_candidates import (
    DIRECT,
    REDUCED,
    Candidate,
    PlanTask,
    Shape,
    build_candidates,
    common_endpoints,
    layout_before_fill,
)
from spmdsim.redistribution.price import Prices

#: The positions at which each mesh axis is cut, as prefix products of its parts.
AxisCuts = dict[str, set[int]]


@dataclass(frozen=True)
class Factored:
    """Finer shape of a reshape, and both layouts on it."""

    shape: tuple[int, ...]
    src: Layout
    dst: Layout


@lru_cache(maxsize=1024)
def find_finer_form(
    src: Layout, dst: Layout, shape: tuple[int, ...], to_shape: tuple[int, ...]
) -> Factored | None:
    """Return the finer shape of a reshape with both layouts on it, or None.

    Both shapes result from the finer shape by merging neighbouring dimensions. On it, the reshape needs no exchange by
    element numbers, only a redistribution of blocks. Mesh axes may be cut into parts for it: an axis "a" of size 4
    becomes "a.0" and "a.1" of size 2.

    None in these cases:

    - the numbers of elements differ, or there are no elements;
    - the positions of two cuts do not divide one another;
    - an axis unevenly splits a dimension that the reshape changes;
    - a layout cannot be written on the finer shape.

    Results are cached by value.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape before.
        to_shape: the global shape after.

    In the example, the dimension of 8 becomes the finer dimensions 0 to 2 (2 x 2 x 2), and the dimension of 4 becomes
    the finer dimensions 3 and 4 (2 x 2). Before, "a" splits dimension 0 and "b" splits dimension 3. After, "a" splits
    dimension 0 and "b" splits dimension 1.

    >>> mesh = Mesh((2, 2), ("a", "b"))
    >>> found = find_finer_form(mesh("a", "b"), mesh(("a", "b")), (8, 4), (32,))
    >>> found.shape, found.src.placement_text(), found.dst.placement_text()
    ((2, 2, 2, 2, 2), 'S(0)S(3)', 'S(0)S(1)')
    """
    groups = _group_dims(shape, to_shape)
    if groups is None:
        return None
    axis_cuts: AxisCuts = {}
    target_axis_cuts = axis_cuts if src.mesh == dst.mesh else {}
    sides = [_Side(src, shape, groups, 0, axis_cuts), _Side(dst, to_shape, groups, 1, target_axis_cuts)]
    cuts: list[set[int]] = [set() for _ in groups]
    for side in sides:
        side.add_dims(cuts)
    if not _refine_all_cuts(sides, cuts):
        return None
    sorted_cuts = [sorted(group_cuts, reverse=True) for group_cuts in cuts]
    sizes: list[int] = []
    for (old, new), group_cuts in zip(groups, sorted_cuts):
        is_unchanged = len(old) == len(new) == 1
        sizes += [shape[old[0]]] if is_unchanged else [high // low for high, low in pairwise(group_cuts)]
    old_layout, new_layout = [side.rewrite(sorted_cuts) for side in sides]
    if old_layout is None or new_layout is None:
        return None
    return Factored(tuple(sizes), old_layout, new_layout)


Group = tuple[tuple[int, ...], tuple[int, ...]]


def _group_dims(shape: tuple[int, ...], to_shape: tuple[int, ...]) -> list[Group] | None:
    """Return the shortest runs of dimensions that a reshape converts into one another, from left to right.

    A group has a run of dimensions of ``shape`` and a run of dimensions of ``to_shape``; the sizes of both have equal
    products. If dimensions of size 1 remain at the end of one shape, they are the last group, whose other run is
    empty. None if the numbers of elements differ or are 0.

    4 x 6 is 2 x 12, and no shorter run has equal products; the 5 stays:

    >>> _group_dims((4, 6, 5), (2, 12, 5))
    [((0, 1), (0, 1)), ((2,), (2,))]
    """
    if math.prod(shape) != math.prod(to_shape) or 0 in shape:
        return None
    groups: list[Group] = []
    i = j = 0
    while i < len(shape) and j < len(to_shape):
        first_i, first_j = i, j
        product, to_product = shape[i], to_shape[j]
        i, j = i + 1, j + 1
        while product != to_product:
            if product < to_product:
                product, i = product * shape[i], i + 1
            else:
                to_product, j = to_product * to_shape[j], j + 1
        groups.append((tuple(range(first_i, i)), tuple(range(first_j, j))))
    if i < len(shape) or j < len(to_shape):  # dimensions of size 1 at the end
        groups.append((tuple(range(i, len(shape))), tuple(range(j, len(to_shape)))))
    return groups


class _Side:
    """Side of a reshape: a shape with its layout, and the cuts of the mesh axes.

    Args:
        layout: the layout.
        shape: the shape before or after the reshape.
        groups: the dimensions that the reshape converts into one another.
        which: 0 for the side before, 1 for the side after.
        axis_cuts: the cuts of the mesh axes by axis; shared by both sides on one mesh.
    """

    def __init__(
        self, layout: Layout, shape: tuple[int, ...], groups: Sequence[Group], which: int, axis_cuts: AxisCuts
    ) -> None:
        self.layout, self.shape, self.axis_cuts = layout.canonical, shape, axis_cuts
        self.groups = [group[which] for group in groups]
        self.is_unchanged = [len(old) == len(new) == 1 for old, new in groups]
        for axis, size in zip(layout.mesh.axes, layout.mesh.shape):
            axis_cuts.setdefault(axis, {1, size})

    def add_dims(self, cuts: list[set[int]]) -> None:
        """Add the suffix products of the dimensions of each group to its set in ``cuts``, in place.

        Dimensions (4, 6) add 1, 6 and 24: the distances, in elements, between cuts of the group.
        """
        for group, group_cuts in zip(self.groups, cuts):
            stride = 1
            for dim in reversed(group):
                group_cuts.add(stride)
                stride *= self.shape[dim]
            group_cuts.add(stride)

    def refine_cuts(self, cuts: list[set[int]]) -> bool:
        """Carry cuts between this side's dimensions and its axes, once.

        The cuts of an axis become cuts of its dimension's group. Cuts of the group that lie inside the range of an axis
        become cuts of the axis.

        A cut is a distance in elements of the group, a suffix product of its sizes: dimensions (4, 6) have the cuts
        24, 6, 1. An axis that splits a dimension covers a range of distances. If an axis of size 2 splits the 4, it
        covers 24 to 12; so 12 becomes a cut of the group. If an axis of size 4 splits the 4, it covers 24 to 6; a cut
        at 12, from the other side of the reshape, then cuts the axis into 2 x 2. A group of one dimension before and
        one after the reshape stays as it is.

        Args:
            cuts: the suffix products of each group; extended in place, like ``axis_cuts``.

        Returns:
            False if a cut does not divide another one, or if an axis does not split its dimension evenly. The sets may
            be extended then, too.
        """
        for group, group_cuts, is_unchanged in zip(self.groups, cuts, self.is_unchanged):
            if is_unchanged:
                continue
            stride = math.prod(self.shape[dim] for dim in group)
            for dim in group:
                top = stride
                stride //= self.shape[dim]
                for axis in self.layout.dims[dim]:
                    bottom, remainder = divmod(top, self.layout.mesh.axis_size(axis))
                    is_even_split = not remainder and not bottom % stride
                    if not is_even_split or not _exchange_cuts(group_cuts, self.axis_cuts[axis], top, bottom):
                        return False
                    top = bottom
        return all(_are_divisible(cut) for cut in self.axis_cuts.values())

    def rewrite(self, finer: list[list[int]]) -> Layout | None:
        """Return the layout on the finer shape, on a mesh whose axes are cut into parts.

        For example, the axes a and b of size 2 split the dimensions (4, 6). With the cuts 24, 12, 6, 3, 1, the finer
        shape is (2, 2, 2, 3), and its layout is [a, -, b, -]. None if the parts of an axis would cut an uneven
        dimension elsewhere than the axis does.

        Args:
            finer: the cuts of each group of dimensions, in descending order, such as [24, 6, 1] for sizes 4 and 6.
        """
        mesh, names = _cut_mesh(self.layout.mesh, self.axis_cuts)
        dims: list[tuple[str, ...]] = []
        for group, cuts, is_unchanged in zip(self.groups, finer, self.is_unchanged):
            if is_unchanged:
                size = self.shape[group[0]]
                axes = self.layout.dims[group[0]]
                axis_parts = tuple(name for axis in axes for name in names[axis])
                axis_sizes = tuple(self.layout.mesh.axis_size(axis) for axis in axes)
                part_sizes = tuple(mesh.axis_size(name) for name in axis_parts)
                if not same_cuts(size, axis_sizes, part_sizes):
                    return None
                dims.append(axis_parts)
            else:
                dims += self._entries(group, cuts, names, mesh)
        partial = [(name, op) for axis, op in self.layout.partial for name in names[axis]]
        return Layout(mesh, dims, partial)

    def _entries(
        self, group: tuple[int, ...], cuts: list[int], names: dict[str, tuple[str, ...]], mesh: Mesh
    ) -> list[tuple[str, ...]]:
        """Return, for each finer dimension of a group, the parts of axes that split it, major first.

        For example, the axes a and b of size 2 split the dimensions (4, 6). With the cuts 24, 12, 6, 3, 1 the result is
        [("a",), (), ("b",), ()].

        Args:
            group: the dimensions of the group, in this side's shape.
            cuts: the suffix products of the finer dimensions, in descending order.
            names: the names of each axis's parts, by axis.
            mesh: the mesh with the parts as axes.
        """
        entries: dict[int, tuple[str, ...]] = {high: () for high, _ in pairwise(cuts)}
        stride = math.prod(self.shape[dim] for dim in group)
        for dim in group:
            top = stride
            stride //= self.shape[dim]
            for axis in self.layout.dims[dim]:
                for name in names[axis]:
                    high = min(cut for cut in cuts if cut >= top)
                    entries[high] = (*entries[high], name)
                    top //= mesh.axis_size(name)
        return list(entries.values())


def _exchange_cuts(group_cuts: set[int], axis_cuts: set[int], top: int, bottom: int) -> bool:
    """Add the cuts of a group inside an axis to those of the axis, and the axis's cuts to the group.

    For example, an axis of size 4 covers the distances 24 to 6. Its cuts {1, 4} and the group's {24, 12, 1} become
    {1, 2, 4} and {24, 12, 6, 1}: cut 2 of the axis is at 24 / 2.

    Args:
        group_cuts: the distances in elements at which the group is cut; extended in place.
        axis_cuts: the prefix products of the axis's parts; extended in place.
        top: the largest distance that the axis covers.
        bottom: the smallest distance that the axis covers.

    Returns:
        False if a cut does not divide ``top``. The sets may be extended then, too.
    """
    inner_cuts = [cut for cut in group_cuts if bottom < cut < top]
    if any(top % cut for cut in inner_cuts):
        return False
    axis_cuts.update(top // cut for cut in inner_cuts)
    if any(top % axis_cut for axis_cut in axis_cuts):
        return False
    group_cuts.update(top // axis_cut for axis_cut in axis_cuts)
    return True


def _refine_all_cuts(sides: Sequence[_Side], cuts: list[set[int]]) -> bool:
    """Add cuts to the dimensions and to the axes until nothing changes; return False if it fails.

    It fails if one cut does not divide another one. A cut is a product of the last sizes of a group: the dimensions
    (4, 6) have the cuts 24, 6, 1. If they become (2, 12), the group has the cuts 24, 12, 6, 1. An axis of size 4 that
    splits the 4 has the cuts 24 and 6. The cut 12 is between them, so the axis is cut into 2 x 2 (24/12 and 12/6).

    Args:
        sides: the sides before and after; their ``axis_cuts`` are extended in place.
        cuts: the suffix products of each group; extended in place.
    """
    all_cuts = [*cuts, *(cut_set for side in sides for cut_set in side.axis_cuts.values())]
    while True:
        sizes_before = [*map(len, all_cuts)]
        if not all(side.refine_cuts(cuts) for side in sides):
            return False
        if not all(map(_are_divisible, cuts)):
            return False
        if sizes_before == [*map(len, all_cuts)]:
            return True


def _are_divisible(cuts: set[int]) -> bool:
    """Return True if each cut divides the next larger one."""
    return all(high % low == 0 for low, high in pairwise(sorted(cuts)))


def _cut_mesh(mesh: Mesh, axis_cuts: AxisCuts) -> tuple[Mesh, dict[str, tuple[str, ...]]]:
    """Return the mesh with its axes cut into parts, and the names of the parts by axis.

    A part is called ``axis.k``; an axis of one part keeps its name. If no axis is cut, the mesh is ``mesh`` itself.

    Args:
        mesh: the mesh.
        axis_cuts: for each axis, the prefix products of its parts: {1, 2, 8} cuts 8 ranks into parts of 2 and 4.
    """
    sizes: list[int] = []
    names: dict[str, tuple[str, ...]] = {}
    for axis in mesh.axes:
        parts = [high // low for low, high in pairwise(sorted(axis_cuts[axis]))] or [1]
        names[axis] = (axis,) if len(parts) == 1 else tuple(f"{axis}.{k}" for k in range(len(parts)))
        sizes += parts
    if all(len(axis_parts) == 1 for axis_parts in names.values()):
        return mesh, names
    return Mesh(sizes, [name for axis_parts in names.values() for name in axis_parts], mesh.ranks), names


def reshape_candidates(task: PlanTask, everything: bool = False) -> tuple[Candidate, ...]:
    """Return the plans between two shapes and layouts, best first.

    - If both shapes have a common finer shape (:func:`find_finer_form`): a local reshape to it, a plan of blocks on
      it, and a local reshape to the new shape.
    - Otherwise: the plans of :func:`_numbered_candidates`, which exchange elements by their numbers.

    Args:
        task: the layouts, shapes and machine; ``to_shape`` must not be None.
        everything: True to build plans that cannot win, too; without effect if there is no finer shape.
    """
    src, dst, shape, _, _, to_shape = task
    assert to_shape is not None  # for the type checker
    finer_form = find_finer_form(src, dst, shape, to_shape)
    if finer_form is None:
        return _numbered_candidates(task, to_shape)
    ends = common_endpoints(finer_form.src, finer_form.dst, finer_form.shape)
    plans = []
    for plan in build_candidates(PlanTask(*ends, task.itemsize, task.machine), everything):
        steps = _surround_by_reshapes(task, to_shape, *ends, plan.steps)
        plans.append(task.candidate(steps, plan.kind, plan.allowed))
    return tuple(sorted(plans, key=lambda plan: plan.order))


def reshape_bound(src: Layout, dst: Layout, shape: Shape, to_shape: Shape, parts: int = 1) -> ReceptionBound:
    """Return the lower bound of a reshape, in elements that a rank receives.

    With a finer shape, it is :func:`lower_bound` there. Otherwise:

    * If values only move: the elements that each rank lacks, which is exact.
    * If values are summed and the target is partial: 0 for each rank.
    * If values are summed to a target that is not partial: the larger one of a rank's target shard and the average over
      the ranks of both meshes. All ranks together receive each element ``(n - 1) * parts + N - 1`` times, for n addends
      and N target replicas. With 4 addends and 4 replicas on 4 ranks, 3 + 3 receptions of each element, so the
      average is 1.5 times the elements.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape before.
        to_shape: the global shape after.
        parts: the number of elements as which an incomplete sum counts on its way; 2 for 16-bit floats.
    """
    finer_form = find_finer_form(src, dst, shape, to_shape)
    if finer_form is not None:
        return lower_bound(*common_endpoints(finer_form.src, finer_form.dst, finer_form.shape), parts)
    if not src.partial:
        return ReceptionBound.of_each(flat_counts(src, dst.reduced, shape, to_shape).received)
    if dst.partial:
        return ReceptionBound.of_each(np.zeros(dst.mesh.size, np.int64))
    terms, wanting = count_addends(src, dst), dst.mesh.size // dst.mesh.axis_size(*dst.split_axes)
    total = math.prod(shape) * ((terms - 1) * parts + wanting - 1)
    taking_part = len({*src.mesh.rank_list, *dst.mesh.rank_list})
    return ReceptionBound.of_each(
        np.maximum(grid(dst.mesh, dst.dims, to_shape).volumes, -(-total // taking_part)), total
    )


def _surround_by_reshapes(
    task: PlanTask,
    to_shape: Shape,
    before: Layout,
    after: Layout,
    finer: Shape,
    inner: tuple[Step, ...],
) -> tuple[Step, ...]:
    """Return the steps on the finer shape, surrounded by the local reshapes to it and from it.

    A reshape is left out if the shapes are equal. Without inner steps, one reshape is enough, or none for equal
    shapes.

    Args:
        task: the layouts and shape of the reshape.
        to_shape: the shape after.
        before: the source layout on the finer shape.
        after: the target layout on the finer shape.
        finer: the finer shape.
        inner: the steps on the finer shape.
    """
    src, dst, shape = task[:3]
    if not inner:
        return () if shape == to_shape else (Step("reshape", (), src, dst, shape, to_shape=to_shape),)
    first = [Step("reshape", (), src, before, shape, to_shape=finer)] if finer != shape else []
    last = [Step("reshape", (), after, dst, finer, to_shape=to_shape)] if finer != to_shape else []
    return (*first, *inner, *last)


def _numbered_candidates(task: PlanTask, to_shape: Shape) -> tuple[Candidate, ...]:
    """Return plans for a reshape without a finer shape, best first.

    A plan has up to three parts:

    1. If the source has pending values, collectives reduce all of them. There is a plan for each path of collectives
       that does so; shards in between may have any size. Otherwise there is one plan.
    2. Elements are exchanged by their row-major numbers. But if the tensor is now replicated on the target's mesh, each
       rank reshapes it and slices its shard without messages.
    3. New pending axes of the target are filled locally.

    Args:
        task: the layouts, shapes and machine.
        to_shape: the global shape after.
    """
    src, dst, shape = task.src.canonical, task.dst.canonical, task.shape
    base = layout_before_fill(src.reduced, dst, to_shape) if dst.partial else dst
    fill = () if base == dst else (Step("fill", dst.partial_axes, base, dst, to_shape, dst.reduce_op),)
    reductions: list[tuple[Step, ...]] = [()]
    if src.partial:
        prices = Prices(task.machine, src.mesh)
        paths = search_paths(src, src.reduced, shape, task.itemsize, prices, math.prod(shape))
        reductions = [tuple(build_steps(mid.steps, src, shape, ())) for mid in paths.reduced]
    plans = []
    for steps in reductions:
        layout = steps[-1].dst if steps else src
        replicated = Layout.replicated(layout.mesh, len(to_shape))
        if not layout.split_axes and layout.mesh == dst.mesh:
            last = [Step("reshape", (), layout, replicated, shape, to_shape=to_shape)]
            if base != replicated:
                last.append(Step("slice", (), replicated, base, to_shape))
        else:
            last = [FlatExchange("exchange", (), layout, base, shape, to_shape=to_shape)]
        plans.append(task.candidate((*steps, *last, *fill), REDUCED if steps else DIRECT))
    return tuple(sorted(plans, key=lambda plan: plan.order))
