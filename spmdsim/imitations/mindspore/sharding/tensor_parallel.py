"""Products in two- and three-dimensional tensor parallelism (``enable_nd_tp``).

Operands and result are split by all axes, so none of them is ever held twice. Semantics: ``ops_info/matmul_info.cc``;
the schemes are those of Xu et al. (2021, 2-D) and Bian et al. (2021, 3-D):

===  ======================  ================  ======================  ===============================================
     activation              weight            result                  collectives
===  ======================  ================  ======================  ===============================================
2-D  ``(m, (x, y))``         ``(x, y)``        ``(m, (y, x))``         gather over y, scatter the sum over x
3-D  ``((..., z, y), x)``    ``((x, z), y)``   ``((..., z, x), y)``    gather over y and over z, scatter the sum over x
===  ======================  ================  ======================  ===============================================

What is gathered and what is summed follows from the product's rule; only the pattern is recognised here.
"""

from __future__ import annotations

from collections.abc import Sequence

from spmdsim.core import BoundRule, Layout, Strategy
from spmdsim.dialects.mindspore.table import ShardError
from spmdsim.imitations.mindspore.sharding.sharded import Forward, Sharded, derived

Axes = tuple[str, ...]


def nd_product(name: str, bound: BoundRule, given: Sequence[Layout]) -> Sharded:
    """A product whose operands' layouts are one of the two patterns.

    Raises:
        RuntimeError: they are neither.
    """
    splits, scattered = _pattern(bound, given)
    strategy = Strategy.of(given[0].mesh, splits)
    bound.check(strategy)
    computed = bound.output_layouts(strategy)[0]
    dims = [
        (*entry, *computed.partial_axes) if scattered in factors else entry
        for entry, factors in zip(computed.dims, bound.outputs[0])
    ]
    result = Layout(computed.mesh, dims)
    forward = [
        Forward("AllGather", "", axes, computed.mesh.groups(*axes))
        for have, want in zip(given, bound.input_layouts(strategy))
        if (axes := tuple(a for a in have.split_axes if a not in want.split_axes))
    ]
    pending = computed.partial_axes
    if pending:
        forward.append(Forward("ReduceScatter", "sum", pending, computed.mesh.groups(*pending)))
    mode = "2-D" if scattered == "n" else "3-D"
    return derived(
        name,
        bound,
        strategy,
        inputs=tuple(given),
        outputs=(result,),
        forward=tuple(forward),
        by_cuts=False,
        mode=mode,
    )


def _pattern(bound: BoundRule, given: Sequence[Layout]) -> tuple[dict[str, Axes], str]:
    """Axes of every factor of the product, and the factor along which the sum is scattered."""
    a, w = (_factor_axes(bound, i, layout) for i, layout in enumerate(given))
    batch = {factor: axes for factor, axes in a.items() if factor not in ("m", "k")}
    m, k, rows, columns = a.get("m", ()), a["k"], w["k"], w["n"]
    if len(k) == 2 and rows == k[:1] and columns == k[1:]:
        return {**batch, "m": m, "k": rows, "n": columns}, "n"
    three = len(m) >= 2 and len(k) == 1 and len(rows) == 2 and rows[0] == k[0]
    if three and m[-2] == rows[1] and m[-1:] == columns:
        return {**batch, "m": m[:-1], "k": k, "n": columns}, "m"
    raise ShardError(
        "with enable_nd_tp the layouts are (m, (x, y)) and (x, y), or ((..., z, y), x) and ((x, z), y), but got "
        f"{given[0]} and {given[1]}"
    )


def _factor_axes(bound: BoundRule, operand: int, layout: Layout) -> dict[str, Axes]:
    return {dim[0]: axes for dim, axes in zip(bound.inputs[operand], layout.dims) if dim}
