"""What cannot be planned, said in one line."""

from __future__ import annotations

import math

from spmdsim.core import Layout
from spmdsim.errors import PlanError


def check_layouts(
    src: Layout,
    dst: Layout,
    shape: tuple[int, ...],
    to_shape: tuple[int, ...] | None,
    partial_target: bool,
) -> None:
    """Refuse a redistribution that has no meaning.

    Raises:
        PlanError: a shape with another number of dims than its layout, shapes of different element counts, or a
            target with pending values that the source does not hold pending.
    """
    after = shape if to_shape is None else to_shape
    pair = f"{src} -> {dst}"
    if to_shape is None and src.ndim != dst.ndim:
        raise PlanError(f"the layouts are for {src.ndim} and {dst.ndim} dims, so no tensor has both: {pair}")
    for layout, sizes in ((src, shape), (dst, after)):
        if len(sizes) != layout.ndim:
            raise PlanError(
                f"the shape {sizes} has {len(sizes)} dims, but {layout} is for {layout.ndim}, in {pair}"
            )
    if any(size < 0 for size in (*shape, *after)):
        both = f"{shape}" if to_shape is None else f"{shape} and {after}"
        raise PlanError(f"a shape has no negative sizes, but got {both} for {pair}")
    if math.prod(shape) != math.prod(after):
        raise PlanError(
            f"shape {shape} holds {math.prod(shape)} elements and {after} holds {math.prod(after)}; "
            f"a redistribution keeps them all: {pair}"
        )
    if dst.partial and not partial_target and not (src.mesh == dst.mesh and {*dst.partial} <= {*src.partial}):
        raise PlanError(
            f"the target waits for {dict(dst.partial)}, which nothing can produce from the source's values: {pair}; "
            f"ask for {dst.reduced}"
        )
    if dst.partial and src.partial and dst.reduce_op != src.reduce_op:
        raise PlanError(f"pending {src.reduce_op} values cannot become pending {dst.reduce_op} ones: {pair}")
