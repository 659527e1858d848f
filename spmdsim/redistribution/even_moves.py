"""The price of a move where everything divides: found once for all tensors of so many bytes, dims and axes that are alike.

Pieces that are equal make a plan's bytes shares of the tensor's, so its price depends on the bytes of the tensor, on what
happens to each dim and on the sizes and links of the axes; not on the order of the dims, on the names of the axes, on
dims and axes that take no part. A move is therefore written in a standard form and planned there, by the planner itself,
on a tensor in which everything divides, whose elements are counted as the real one's bytes. Searches ask for millions
of prices, and need a few hundred plans.
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
from spmdsim.redistribution.plan_candidates import Candidate
from spmdsim.redistribution.planner import cheapest
from spmdsim.redistribution.price import machine_on

Axes = tuple[str, ...]

#: Standard tensors have fewer elements than this: they are counted in 64 bits.
MOST_ELEMENTS = 2**60


class EvenMove(NamedTuple):
    """A move in its standard form: a shape in which everything divides, the model with the links of the standard axes, and
    what has to divide each dim of a tensor that is moved so.
    """

    src: Layout
    dst: Layout
    shape: tuple[int, ...]
    machine: CostModel | None
    divisors: tuple[int, ...]

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape is divided evenly."""
        return not any(size % divisor for size, divisor in zip(shape, self.divisors))


def price_move(
    src: Layout, dst: Layout, shape: tuple[int, ...], itemsize: int, machine: CostModel | None = None
) -> Candidate:
    """The plan that wins between two layouts, and its seconds: what the planner says, told quickly.

    The layouts of its steps are those of the standard form. The target has nothing pending that is not pending before.

    >>> from spmdsim.redistribution import plan
    >>> mesh, laptop = Mesh((2, 4), ("dp", "tp")), Machine.laptop()
    >>> found = price_move(mesh("dp", "tp"), mesh("dp", None), (64, 64), 4, laptop)
    >>> found.seconds == plan(mesh("dp", "tp"), mesh("dp", None), (64, 64), "float32", laptop).seconds
    True
    """
    model: Any = machine
    even = None
    # By bytes alone additions may be spread over ranks element by element, and shares of few elements are rounded.
    spread = machine is None and src.partial != dst.partial
    if (
        src.mesh == dst.mesh
        and not spread
        and not isinstance(src, Windowed)
        and not isinstance(dst, Windowed)
    ):
        divisors = _divisors(src, dst)[3]
        sizes = tuple(map(math.gcd, shape, divisors))
        even = even_move(src, dst, model, None if sizes == divisors else sizes)
    if even is None:
        return cheapest(src, dst, shape, itemsize, model)
    scale = itemsize * math.prod(shape) / math.prod(even.shape)
    model = even.machine
    return cheapest(even.src, even.dst, even.shape, scale, model)


@lru_cache(maxsize=1 << 16)
def even_move(
    src: Layout, dst: Layout, machine: Any, sizes: tuple[int, ...] | None = None
) -> EvenMove | None:
    """The standard form of a move on one mesh; None if there is none.

    ``sizes``: how far the dims divide, for tensors of which some divide less than by whatever may split them for a while.
    Pieces are equal all the same where another dim does: values are not spread where it is uneven.
    """
    src, dst, free, divisors = _divisors(src, dst)
    model: Any = machine and machine_on(machine, src.mesh)
    size_of = src.mesh.size_of
    kinds = _kinds(src.mesh, machine)

    def parts(*entries: Axes) -> int:
        return math.prod([size_of[axis] for axis in free.union(*entries)])

    pairs = [*zip(src.dims, dst.dims)]
    dims = [(parts(*pair), *pair) for pair in pairs]
    whole = [dim for dim in dims if not dim[1] and not dim[2]][: 1 if free else 0]
    if sizes is not None:
        full = [size == divisor for size, divisor in zip(sizes, divisors)]
        own = [math.lcm(*[src.mesh.axis_size(*entry) for entry in pair]) for pair in pairs]
        if machine is None or not any(full) or any(size % least for size, least in zip(sizes, own)):
            return None
        dims = [dim if all_ else (size, *dim[1:]) for dim, size, all_ in zip(dims, sizes, full)]
        untouched = [(dim, all_) for dim, all_ in zip(dims, full) if not dim[1] and not dim[2]]
        whole = [dim for dim, all_ in untouched if all_][:1] or [dim for dim, _ in untouched if dim[0] > 1]
    # One dim that nothing splits stands for all.
    moving = [dim for dim in dims if dim[1] or dim[2]] + whole or dims[:1]
    if not moving or math.prod([size for size, _, _ in moving]) > MOST_ELEMENTS:
        return None
    moving.sort(key=lambda dim: ([[kinds[axis] for axis in entry] for entry in dim[1:]], dim[0]))
    used = dict.fromkeys(axis for _, *entries in moving for entry in entries for axis in entry)
    used |= dict.fromkeys((*src.partial_axes, *(kinds if free else ())))
    names = [kinds[axis] for axis in used]
    if model is None or isinstance(model, Machine):  # the axes of a kind are numbered
        names = [f"{kind}#{names[:k].count(kind)}" for k, kind in enumerate(names)]
    name_of = dict(zip(used, names))
    return _standard(
        tuple(zip(names, [size_of[axis] for axis in used])),
        tuple(
            [(d, *[tuple([name_of[axis] for axis in entry]) for entry in entries]) for d, *entries in moving]
        ),
        tuple([tuple([(name_of[axis], op) for axis, op in one.partial]) for one in (src, dst)]),
        model,
    )._replace(divisors=divisors)


@lru_cache(maxsize=1 << 16)
def _divisors(src: Layout, dst: Layout) -> tuple[Layout, Layout, frozenset[str], tuple[int, ...]]:
    """Both layouts without axes of size 1, the axes that may split any dim, and what divides dims all the same.

    Where values are reduced, any axis may split any dim for a while, those along which there are copies too.
    """
    src, dst = src.canonical, dst.canonical
    size_of = src.mesh.size_of
    kept = [item for item in src.partial if item in dst.partial]
    movable = {axis for axis, size in size_of.items() if size > 1}.difference([axis for axis, _ in kept])
    free = frozenset(movable if len(kept) < len(src.partial) else ())
    ends = [
        [math.prod([size_of[axis] for axis in free.union(entry)]) for entry in one.dims] for one in (src, dst)
    ]
    return src, dst, free, tuple(map(math.lcm, *ends)) if ends[0] else ()


@lru_cache(maxsize=1024)
def _kinds(mesh: Mesh, machine: Any) -> dict[str, str]:
    """What axes have in common that cost the same: size and link; for other models each axis is its own kind."""
    model = machine_on(machine, mesh)
    axes = [axis for axis in mesh.axes if mesh.size_of[axis] > 1]
    if not isinstance(model, Machine):
        return {axis: axis for axis in axes}
    links = dict(model.axis_links)
    return {axis: f"{mesh.size_of[axis]}/{_text(links.get(axis))}" for axis in axes}


def _text(link: Link | None) -> str:
    return "" if link is None else f"{link.alpha!r}/{link.beta!r}"


@lru_cache(maxsize=1 << 16)
def _standard(
    axes: tuple[tuple[str, int], ...],
    dims: tuple[Any, ...],
    partial: tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]],
    model: Any,
) -> EvenMove:
    order = sorted(axes)
    mesh = Mesh([size for _, size in order], [name for name, _ in order])
    src, dst = (Layout(mesh, [dim[1 + side] for dim in dims], partial[side]) for side in (0, 1))
    if isinstance(model, Machine) and model.axis_links:
        model = _with_links(model, tuple(name for name, _ in order))
    return EvenMove(src, dst, tuple(divisor for divisor, _, _ in dims), model, ())


@lru_cache(maxsize=4096)
def _with_links(machine: Machine, names: tuple[str, ...]) -> Machine:
    """The machine with the links that the names of standard axes say."""
    links = [(name, name.partition("#")[0].split("/")[1:]) for name in names]
    return replace(
        machine, axis_links=tuple((name, Link(*map(float, link))) for name, link in links if link != [""])
    )
