"""Price redistributions of evenly split tensors, with one plan for all that differ only in names, order or size.

If all shards are equal in size, a plan's bytes are shares of the tensor's bytes. The price then depends on the
tensor's bytes, on the splits of each dimension, and on the sizes and links of the axes. It does not depend on the
order of dimensions, on names of axes, or on dimensions and axes that take no part. A redistribution is therefore
planned in a standard form, on a tensor in which everything divides. Searches need millions of prices, and a few
hundred plans.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from spmdsim.core import Layout, Mesh
from spmdsim.cost.closed_forms import Link
from spmdsim.cost.machine import CostModel, Machine
from spmdsim.layout.windowed_layout import Windowed
from spmdsim.redistribution.plans.plan_candidates import Candidate, cut_axes_at_nodes
from spmdsim.redistribution.plans.planner import cheapest_candidate
from spmdsim.redistribution.price import machine_on

Axes = tuple[str, ...]
#: Dimension of a standard form: its size, and the axes that split it before and after.
StandardDim = tuple[int, Axes, Axes]

#: The largest number of elements of a standard tensor, so that counts fit into 64 bits.
MOST_ELEMENTS = 2**60


class EvenMove(NamedTuple):
    """A redistribution in standard form.

    Attributes:
        src: the layout before, on a mesh of standard axes.
        dst: the layout after, on this mesh.
        shape: a shape in which everything divides.
        machine: the cost model with the links of the standard axes.
        divisors: numbers that must divide the dimensions of a tensor with this standard form.
    """

    src: Layout
    dst: Layout
    shape: tuple[int, ...]
    machine: CostModel | None
    divisors: tuple[int, ...]

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return True if a tensor of this shape is divided evenly."""
        return not any(size % divisor for size, divisor in zip(shape, self.divisors))


def price_move(
    src: Layout, dst: Layout, shape: tuple[int, ...], itemsize: int, machine: CostModel | None = None
) -> Candidate:
    """Return the planner's cheapest candidate (a plan with its price) between two layouts.

    Its seconds and the names of its steps are those of the planner. To plan similar redistributions only once, a
    standard form is planned instead (:func:`standardise_move`); the layouts of the steps are then those of this form.
    It is used if it exists, both layouts are on one mesh, and none has windows. Without a machine, it is used only if
    nothing is reduced.

    Args:
        src: the layout before; its pending axes must include those of ``dst``.
        dst: the layout after.
        shape: the global shape.
        itemsize: bytes per element.
        machine: the cost model; None compares by bytes alone.

    >>> from spmdsim.redistribution import plan
    >>> mesh, laptop = Mesh((2, 4), ("dp", "tp")), Machine.laptop()
    >>> best = price_move(mesh("dp", "tp"), mesh("dp", None), (64, 64), 4, laptop)
    >>> best.seconds == plan(mesh("dp", "tp"), mesh("dp", None), (64, 64), "float32", laptop).seconds
    True
    """
    model: Any = machine
    even = None
    # By bytes alone, a direct reduction may win. Its shares are rounded to elements, so they are not proportional.
    reduces_by_bytes = machine is None and src.partial != dst.partial
    if (
        src.mesh == dst.mesh
        and not reduces_by_bytes
        and not isinstance(src, Windowed)
        and not isinstance(dst, Windowed)
    ):
        divisors = _required_divisors(src, dst)[3]
        sizes = tuple(map(math.gcd, shape, divisors))
        even = standardise_move(src, dst, model, None if sizes == divisors else sizes)
    if even is None:
        return cheapest_candidate(src, dst, shape, itemsize, model)
    scale = itemsize * math.prod(shape) / math.prod(even.shape)
    model = even.machine
    best = cheapest_candidate(even.src, even.dst, even.shape, scale, model)
    # The standard form knows no nodes, so axes are cut at nodes before it is made.
    finer_ends = cut_axes_at_nodes(src, dst, shape, machine)
    if finer_ends is None:
        return best
    return min(best, price_move(*finer_ends, shape, itemsize, machine), key=lambda candidate: candidate.order)


@lru_cache(maxsize=1 << 16)
def standardise_move(
    src: Layout, dst: Layout, machine: Any, sizes: tuple[int, ...] | None = None
) -> EvenMove | None:
    """Return the standard form of a redistribution, or None; equal forms have equal prices.

    - Axes are named by their kind (equal size and link) and a number, because axes of one kind are interchangeable.
    - Dimensions and axes that take no part are left out.
    - A dimension has the smallest size that its splits divide, and dimensions are sorted.

    Args:
        src: the layout before.
        dst: the layout after, on the same mesh.
        machine: the cost model; None to count bytes.
        sizes: for each dimension, the greatest common divisor of its size and the number of blocks that it may have
            between steps. None if all dimensions are divisible. With one divisible dimension there is a form, because
            a plan splits no uneven dimension further.

    Returns:
        The form. None for a scalar, and if the form would have more than :data:`MOST_ELEMENTS` elements. If ``sizes``
        is given, also None without a machine, without a divisible dimension, and for an uneven split.

    Axis tp of size 4 becomes "4/#0", dp becomes "2/#0", and the dims are swapped:

    >>> mesh = Mesh((2, 4), ("dp", "tp"))
    >>> form = standardise_move(mesh("dp", None), mesh(None, "tp"), None)
    >>> form.src.dims, form.dst.dims, form.shape
    (((), ('2/#0',)), (('4/#0',), ()), (4, 2))
    """
    src, dst, free, divisors = _required_divisors(src, dst)
    if sizes is not None and machine is None:
        return None
    model: Any = machine and machine_on(machine, src.mesh)
    size_of = src.mesh.size_of
    # The kind of each axis of size > 1: axes of one kind have equal sizes and links.
    kinds = _axis_kinds(src.mesh, machine)
    if sizes is None:
        moving = _divisible_dims(src, dst, free)
    else:
        moving = _partly_divisible_dims(src, dst, free, divisors, sizes)
    if not moving or math.prod([size for size, _, _ in moving]) > MOST_ELEMENTS:
        return None
    moving.sort(key=lambda dim: ([[kinds[axis] for axis in entry] for entry in dim[1:]], dim[0]))
    # The axes that take part, in a fixed order; free axes may split any dimension between two steps.
    used = dict.fromkeys(axis for _, *entries in moving for entry in entries for axis in entry)
    used |= dict.fromkeys((*src.partial_axes, *(kinds if free else ())))
    names = [kinds[axis] for axis in used]
    # Number the axes of each kind, because axes of one kind are interchangeable.
    if not _has_named_axes(model):
        names = [f"{kind}#{names[:k].count(kind)}" for k, kind in enumerate(names)]
    name_of = dict(zip(used, names))
    axes = tuple(zip(names, [size_of[axis] for axis in used]))
    dims = tuple(
        [
            (size, *[tuple([name_of[axis] for axis in entry]) for entry in entries])
            for size, *entries in moving
        ]
    )
    partial: Any = tuple([tuple([(name_of[axis], op) for axis, op in end.partial]) for end in (src, dst)])
    return _build_even_move(axes, dims, partial, model)._replace(divisors=divisors)


def _list_dims(src: Layout, dst: Layout, free: frozenset[str]) -> list[StandardDim]:
    """Return all dimensions of a redistribution, each with the smallest size that all its splits divide."""
    size_of = src.mesh.size_of
    return [
        (math.prod([size_of[axis] for axis in free.union(*pair)]), *pair) for pair in zip(src.dims, dst.dims)
    ]


def _divisible_dims(src: Layout, dst: Layout, free: frozenset[str]) -> list[StandardDim]:
    """Return the dimensions of the standard form if all dimensions are divisible.

    They are the dimensions that a layout splits and, if there are free axes, one unsplit dimension for all of them.
    Without either, it is the first dimension; for a scalar the list is empty.
    """
    dims = _list_dims(src, dst, free)
    unsplit = [dim for dim in dims if not dim[1] and not dim[2]][: 1 if free else 0]
    return [dim for dim in dims if dim[1] or dim[2]] + unsplit or dims[:1]


def _partly_divisible_dims(
    src: Layout, dst: Layout, free: frozenset[str], divisors: tuple[int, ...], sizes: tuple[int, ...]
) -> list[StandardDim]:
    """Return the dimensions of the standard form if some dimensions are indivisible.

    A dimension is divisible if its divisor divides its size. The dimensions of the form are:

    - all dimensions that a layout splits; an indivisible one has its size in ``sizes``;
    - one divisible dimension that no layout splits, for all unsplit ones. If there is none, the unsplit dimensions
      with more than one element in ``sizes``.

    The list is empty if no dimension is divisible, or if a layout splits a dimension unevenly.

    For example, a (16, 3, 6) tensor is split in its first dimension, and each divisor is 8. So ``sizes`` has 8, 1 and
    2. The form has the first dimension with size 8. No unsplit dimension is divisible, so it also has the third one
    with size 2; the second one, with 1, is left out.

    Args:
        src: the layout before.
        dst: the layout after.
        free: the axes that may split any dimension between two steps.
        divisors: for each dimension, the number that must divide it.
        sizes: for each dimension, the greatest common divisor of its size and its divisor.
    """
    is_divisible = [size == divisor for size, divisor in zip(sizes, divisors)]
    pairs = zip(src.dims, dst.dims)
    split_sizes = [math.lcm(*[src.mesh.axis_size(*entry) for entry in pair]) for pair in pairs]
    if not any(is_divisible) or any(size % count for size, count in zip(sizes, split_sizes)):
        return []
    dims = [
        dim if divisible else (size, *dim[1:])
        for dim, size, divisible in zip(_list_dims(src, dst, free), sizes, is_divisible)
    ]
    unsplit = [(dim, divisible) for dim, divisible in zip(dims, is_divisible) if not dim[1] and not dim[2]]
    divisible_dims = [dim for dim, divisible in unsplit if divisible]
    represented = divisible_dims[:1] or [dim for dim, _ in unsplit if dim[0] > 1]
    return [dim for dim in dims if dim[1] or dim[2]] + represented


@lru_cache(maxsize=1 << 16)
def _required_divisors(src: Layout, dst: Layout) -> tuple[Layout, Layout, frozenset[str], tuple[int, ...]]:
    """Return both layouts without axes of size 1, the free axes, and the divisor of each dimension.

    An axis is free if it may split any dimension between two steps. If values are reduced, these are all axes longer
    than 1 that do not stay pending; else there are none. A divisor is the least common multiple of the numbers of
    blocks before and after, counted as if all free axes split the dimension, too. If the divisors divide the
    dimensions of the tensor, all shards are equal in size.

    Args:
        src: the layout before.
        dst: the layout after, on the same mesh.

    Returns:
        ``(src, dst, free, divisors)``.

    >>> mesh = Mesh((2, 4), ("dp", "tp"))
    >>> _required_divisors(mesh("dp", None), mesh(None, "tp"))[2:]
    (frozenset(), (2, 4))

    If values are reduced, both axes are free, and each dimension may be split into 8 blocks:

    >>> _required_divisors(mesh("dp", None, partial="tp"), mesh("dp", None))[3]
    (8, 8)
    """
    src, dst = src.canonical, dst.canonical
    size_of = src.mesh.size_of
    still_partial = [item for item in src.partial if item in dst.partial]
    movable = {axis for axis, size in size_of.items() if size > 1}
    movable -= {axis for axis, _ in still_partial}
    free = frozenset(movable if len(still_partial) < len(src.partial) else ())
    ends = [
        [math.prod([size_of[axis] for axis in free.union(entry)]) for entry in layout.dims]
        for layout in (src, dst)
    ]
    return src, dst, free, tuple(map(math.lcm, *ends)) if ends[0] else ()


@lru_cache(maxsize=1024)
def _axis_kinds(mesh: Mesh, machine: Any) -> dict[str, str]:
    """Return a text for each axis of size > 1, by its name; axes with equal texts have equal costs.

    The text has the size of the axis and the latency and inverse bandwidth of its link, such as "4/1e-06/1e-10", or
    "4/" without a link of its own. If prices depend on names (:func:`_has_named_axes`), it is the name of the axis.
    """
    model = machine_on(machine, mesh)
    axes = [axis for axis in mesh.axes if mesh.size_of[axis] > 1]
    if _has_named_axes(model):
        return {axis: axis for axis in axes}
    links = dict(model.axis_links) if isinstance(model, Machine) else {}
    return {axis: f"{mesh.size_of[axis]}/{_text(links.get(axis))}" for axis in axes}


def _has_named_axes(model: CostModel | None) -> bool:
    """Return True if a price may depend on the names of axes.

    It may for cost models other than machines, and if the groups along axes share the ports of nodes.
    """
    return bool(model.meshes) if isinstance(model, Machine) else model is not None


def _text(link: Link | None) -> str:
    """Return the parameters of a link as text, exactly; empty for no link of its own."""
    return "" if link is None else f"{link.alpha!r}/{link.beta!r}"


@lru_cache(maxsize=1 << 16)
def _build_even_move(
    axes: tuple[tuple[str, int], ...],
    dims: tuple[Any, ...],
    partial: tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]],
    model: Any,
) -> EvenMove:
    """Build a redistribution in standard form, from a cache; its ``divisors`` are empty.

    Args:
        axes: name and size of each standard axis; the mesh has them sorted by name. A name is the text of
            :func:`_axis_kinds` with a number, such as "4/1e-06/1e-10#0".
        dims: for each dimension, its size and its axes before and after.
        partial: the pending (axis, reduction) pairs before and after.
        model: the cost model; None for bytes alone. A machine gets the links that the names contain.
    """
    sorted_axes = sorted(axes)
    mesh = Mesh([size for _, size in sorted_axes], [name for name, _ in sorted_axes])
    src = Layout(mesh, [axes_before for _, axes_before, _ in dims], partial[0])
    dst = Layout(mesh, [axes_after for _, _, axes_after in dims], partial[1])
    if isinstance(model, Machine) and model.axis_links and not _has_named_axes(model):
        model = _with_links(model, tuple(name for name, _ in sorted_axes))
    return EvenMove(src, dst, tuple(size for size, _, _ in dims), model, ())


@lru_cache(maxsize=4096)
def _with_links(machine: Machine, names: tuple[str, ...]) -> Machine:
    """Return the machine with the links that the names of standard axes contain."""
    links = [(name, name.partition("#")[0].split("/")[1:]) for name in names]
    return replace(
        machine, axis_links=tuple((name, Link(*map(float, link))) for name, link in links if link != [""])
    )
