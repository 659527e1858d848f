"""The plans of a reshape across layouts.

Where the two shapes and layouts have a common finer form, the shards are reshaped to it as they are, redistributed
there at the lower bound, and reshaped to the target: often that is one local reshape. Otherwise pending values are
reduced and one exchange by row-major element numbers sends each rank exactly what it misses.
"""

from __future__ import annotations

import math

import numpy as np

from spmdsim.core import Layout
from spmdsim.core.step import Step
from spmdsim.cost.machine import CostModel
from spmdsim.redistribution.lower_bound import ReceptionBound, contributions, lower_bound
from spmdsim.redistribution.path_search import search, steps_of
from spmdsim.redistribution.plan_candidates import (
    DIRECT,
    REDUCED,
    Candidate,
    before_fill,
    candidates,
    endpoints,
    priced,
)
from spmdsim.redistribution.price import Prices, volumes
from spmdsim.redistribution.reshape.factor import factor
from spmdsim.redistribution.reshape.flat import flat_received

Shape = tuple[int, ...]


def reshape_candidates(
    src: Layout,
    dst: Layout,
    shape: Shape,
    to_shape: Shape,
    itemsize: int,
    machine: CostModel | None,
    all_of_them: bool = False,
) -> tuple[Candidate, ...]:
    """The plans that take a tensor of ``shape`` in ``src`` to ``to_shape`` in ``dst``, best first."""
    finer_form = factor(src, dst, shape, to_shape)
    if finer_form is None:
        return _by_numbers(src, dst, shape, to_shape, itemsize, machine)
    before, after, finer = endpoints(finer_form.src, finer_form.dst, finer_form.shape)
    out = []
    for one in candidates(before, after, finer, itemsize, machine, all_of_them):
        steps = _between(src, dst, shape, to_shape, before, after, finer, one.steps)
        out.append(priced(steps, one.kind, itemsize, machine, one.allowed))
    return tuple(sorted(out, key=lambda one: one.order))


def reshape_bound(src: Layout, dst: Layout, shape: Shape, to_shape: Shape) -> ReceptionBound:
    """The least that must be received; with cuts that do not divide one another, every element of a sum once."""
    finer_form = factor(src, dst, shape, to_shape)
    if finer_form is not None:
        return lower_bound(*endpoints(finer_form.src, finer_form.dst, finer_form.shape))
    if not src.partial:
        return ReceptionBound.of_each(flat_received(src, dst.reduced, shape, to_shape)[0])
    if dst.partial:
        return ReceptionBound.of_each(np.zeros(dst.mesh.size, np.int64))
    terms, wanting = contributions(src, dst), dst.mesh.size // dst.mesh.axis_size(*dst.split_axes)
    total = math.prod(shape) * (terms + wanting - 2)
    taking_part = len({*src.mesh.rank_list, *dst.mesh.rank_list})
    return ReceptionBound.of_each(np.maximum(volumes(dst, to_shape), -(-total // taking_part)), total)


def _between(
    src: Layout,
    dst: Layout,
    shape: Shape,
    to_shape: Shape,
    before: Layout,
    after: Layout,
    finer: Shape,
    inner: tuple[Step, ...],
) -> tuple[Step, ...]:
    """The steps on the finer shape with the reshapes to it and from it."""
    if not inner:
        same = shape == to_shape
        return () if same else (Step("reshape", (), src, dst, shape, to_shape=to_shape),)
    steps = list(inner)
    if finer != shape:
        steps.insert(0, Step("reshape", (), src, before, shape, to_shape=finer))
    if finer != to_shape:
        steps.append(Step("reshape", (), after, dst, finer, to_shape=to_shape))
    return tuple(steps)


def _by_numbers(
    src: Layout, dst: Layout, shape: Shape, to_shape: Shape, itemsize: int, machine: CostModel | None
) -> tuple[Candidate, ...]:
    """Reduce what is pending, then exchange by element numbers; values that all hold are only sliced."""
    src, dst = src.canonical, dst.canonical
    base = before_fill(src.reduced, dst, to_shape) if dst.partial else dst
    fill = () if base == dst else (Step("fill", dst.partial_axes, base, dst, to_shape, dst.reduce_op),)
    starts: list[tuple[Step, ...]] = [()]
    if src.partial:
        paths = search(src, src.reduced, shape, itemsize, Prices(machine, src.mesh), math.prod(shape))
        starts = [tuple(steps_of(mid, src, shape, ())) for mid in paths.reduced]
    out = []
    for steps in starts:
        here = steps[-1].dst if steps else src
        whole = Layout.replicated(here.mesh, len(to_shape))
        if not here.split_axes and here.mesh == dst.mesh:
            last = [Step("reshape", (), here, whole, shape, to_shape=to_shape)]
            if base != whole:
                last.append(Step("slice", (), whole, base, to_shape))
        else:
            last = [Step("exchange", (), here, base, shape, to_shape=to_shape)]
        out.append(priced((*steps, *last, *fill), REDUCED if steps else DIRECT, itemsize, machine))
    return tuple(sorted(out, key=lambda one: one.order))
