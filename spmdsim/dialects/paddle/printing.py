"""How Paddle's tensors print.

Semantics: ``python/paddle/tensor/to_string.py``: eight digits, summarised above 1,000 elements. Of a tensor of which ranks
hold parts, Paddle gathers the values; here a rank says which it has, so that one alone may print.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.core import Partial, Placement, Shard
from spmdsim.dialects.printed import ends, known_values, nested

PREFIX = "Tensor("
PRECISION, THRESHOLD, EDGEITEMS, WIDTH = 8, 1000, 3, 80


def shown(x: Any) -> str:
    """A tensor as Paddle shows it."""
    place = f"Place(cpu), stop_gradient={x.stop_gradient}"
    told = f"{PREFIX}shape={list(x.shape)}, dtype={x.dtype.name}, place={place},"
    values, which = known_values(x)
    if x.layout.partial or any(parts > 1 for parts in x.layout.parts):
        mesh = x.layout.mesh
        names, kinds = ", ".join(mesh.axes), ", ".join(map(_placement, x.layout.placements))
        told += f" process_mesh={{shape: {list(mesh.shape)}, process_ids: {list(mesh.rank_list)}, dim_names: [{names}]}},"
        told += f" placements=[{kinds}], " + (f"{which}, DenseTensor=" if which else "GlobalDenseTensor=")
    return f"{told}\n{' ' * len(PREFIX)}{_numbers(values)})"


def _placement(one: Placement) -> str:
    if isinstance(one, Shard):
        return f"Shard(dim={one.dim})"
    return f"Partial(reduce_type={one.op})" if isinstance(one, Partial) else "Replicate()"


def _numbers(array: np.ndarray) -> str:
    array, cut = ends(array, EDGEITEMS, THRESHOLD)
    width, signed = max((len(_number(value)) for value in array.flat), default=0), bool((array < 0).any())

    def written(value: Any) -> str:
        text = _number(value)
        if width <= len(text):
            return text
        return f" {text.ljust(width - 1)}" if signed and not value < 0 else text.ljust(width)

    return nested(array, cut, len(PREFIX), written, lambda indent: (WIDTH - indent) // (width + 2), EDGEITEMS)


def _number(value: Any) -> str:
    if value.dtype.kind != "f":
        return f"{value}"
    return f"{value:.0f}." if np.ceil(value) == value else f"{value:.{PRECISION}f}"
