"""``Gather`` and ``EmbeddingLookup``: the modes in which a table and its indices can be split.

Semantics: ``ops_info/gather_info.cc``. A mode only says which dims may be split together and on which device
matrix; the layouts and the pending sum come from the rule of :func:`spmdsim.ops.gather`. One difference: there an
index outside the table silently gives zeros on every device, here it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import spmdsim.ops as ops
from spmdsim.core import BoundRule, Layout, Mesh, Strategy
from spmdsim.dialects.mindspore.layout import check_devices, check_even
from spmdsim.dialects.mindspore.table import ShardError
from spmdsim.errors import UsageTypeError
from spmdsim.imitations.mindspore.sharding.cuts_refused import check_cuts
from spmdsim.imitations.mindspore.sharding.data_parallel import Devices, device_mesh, device_ranks
from spmdsim.imitations.mindspore.sharding.results import forward, pending_axes, result_layout, scattered
from spmdsim.imitations.mindspore.sharding.sharded import Sharded, derived, sourced
from spmdsim.layout.cuts import factor_cuts, strategy_from_factors
from spmdsim.ops.lookup import LOOKED_UP

Shape = tuple[int, ...]
Cuts = tuple[int, ...]

NORMAL = "NORMAL"
AXIS_0 = "SHARD_AXIS_0_STATIC"
AXIS_1 = "SHARD_AXIS_1"
BATCH_AND_AXIS = "SHARD_BATCH_AND_AXIS"
BATCH_AXIS_SP = "SHARD_BATCH_AXIS_AND_SP"
MANUAL = "MANUAL"


def mode_of(axis: int, param: Cuts, index: Cuts, devices: int, manual: bool = False) -> str:
    """The mode of a strategy.

    Raises:
        RuntimeError: no mode has these cuts.
    """
    if manual:
        return MANUAL
    if param[axis] == 1:
        return NORMAL
    if len(param) > 2:
        raise ShardError(f"the axis of a table of {len(param)} dims cannot be split, only of one or two dims")
    if math.prod(index) == 1:
        return AXIS_0 if axis == 0 else AXIS_1
    others = math.prod(param) // param[axis]
    split = [d for d, cut in enumerate(index) if cut > 1]
    if axis or others > 1 or split not in ([0], [0, 1], [1]):
        raise ShardError(
            f"with table cuts {param} along axis {axis} only the first two dims of the indices can be split, and no "
            f"other dim of the table, but the indices are cut into {index}"
        )
    if math.prod(index) * param[0] != devices:
        raise ShardError(
            f"index and table cuts {index} and {param} together must use all {devices} devices, not "
            f"{math.prod(index) * param[0]}"
        )
    return BATCH_AND_AXIS if split == [0] else BATCH_AXIS_SP


def gather(
    shapes: Sequence[Shape],
    given: Sequence[Any] | None,
    out: Any,
    devices: Devices,
    repeat: str | None,
    attrs: Mapping[str, Any],
) -> Sharded:
    """What a strategy means for a Gather of a table (operand 0) by indices (operand 1).

    Raises:
        RuntimeError: cuts that no mode has, or an out_strategy that the mode does not give.
    """
    if len(shapes) != 2:
        raise ShardError(f"Gather takes a table and indices, but got shapes {tuple(shapes)}")
    table, ids = shapes
    axis = int(attrs.get("axis", 0))
    if not -len(table) <= axis < len(table):
        raise ShardError(f"axis {axis} is out of range for a table of {len(table)} dims")
    axis %= len(table)
    bound = ops.gather.op.bind(shapes, {"dim": axis})
    if given is not None and any(isinstance(entry, Layout) for entry in given):
        return _by_layouts(bound, given, out, devices)
    ranks = device_ranks(devices, 1 if given is None else math.prod(math.prod(e) for e in given))
    cuts = tuple(given) if given is not None else _data_parallel(table, ids, len(ranks))
    check_cuts(cuts, shapes if "manual_split" not in attrs else (_rounded(table, cuts[0]), ids), len(ranks))
    param, index = tuple(cuts[0]), tuple(cuts[1])
    mode = mode_of(axis, param, index, len(ranks), "manual_split" in attrs)
    if mode == NORMAL:
        derivation = _normal(bound, (param, index), ranks, repeat or "right")
    elif mode == MANUAL:
        derivation = _manual(bound, (param, index), ranks, attrs["manual_split"])
    else:
        derivation = _split(bound, (param, index), ranks, mode, repeat)
    return _finished(derivation, (param, index), axis, out)


def _data_parallel(table: Shape, ids: Shape, devices: int) -> tuple[Cuts, Cuts]:
    return (1,) * len(table), tuple(devices if d == 0 else 1 for d in range(len(ids)))


def _normal(bound: BoundRule, cuts: tuple[Cuts, Cuts], ranks: tuple[int, ...], repeat: str) -> Sharded:
    """The axis is whole: indices and the table's other dims are split freely, the axis has none of its own."""
    strategy = strategy_from_factors(bound, factor_cuts(bound, cuts), ranks, repeat=repeat)
    used = math.prod(cuts[0]) * math.prod(cuts[1])
    return derived(
        "Gather", bound, strategy, mode=NORMAL, repeated_calc=len(ranks) // used, repeated_side=repeat
    )


def _split(
    bound: BoundRule, cuts: tuple[Cuts, Cuts], ranks: tuple[int, ...], mode: str, repeat: str | None
) -> Sharded:
    """The axis is split: the device matrix has the dims that the mode knows, and no others."""
    param, index = cuts
    used = math.prod(param) * math.prod(index)
    if len(ranks) % used:
        raise ShardError(
            f"the cuts {param} and {index} make {used} pieces, which {len(ranks)} devices cannot share"
        )
    if used != len(ranks) and (mode != AXIS_0 or (len(param) > 1 and param[1] != 1)):
        raise ShardError(
            f"cuts {param} along a split axis do not support repeated calculation, but they use {used} of "
            f"{len(ranks)} devices"
        )
    if mode in (AXIS_0, AXIS_1):
        sizes, factors = param, [dim[0] if dim else "" for dim in bound.inputs[0]]
    else:
        lead = 1 if mode == BATCH_AND_AXIS else 2
        sizes = (*index[:lead], param[0])
        factors = [*(dim[0] if dim else "" for dim in bound.inputs[1][:lead]), LOOKED_UP]
    mesh = device_mesh(sizes, ranks, repeat or "left")
    splits = {factor: f"dim{d}" for d, factor in enumerate(factors) if factor}
    strategy = Strategy.of(mesh, splits)
    bound.check(strategy)
    repeated = len(ranks) // used
    return derived(
        "Gather", bound, strategy, mode=mode, repeated_calc=repeated, repeated_side=repeat or "left"
    )


def _rounded(table: Shape, param: Cuts) -> Shape:
    """The table with a first dim that divides: pieces of a manual split are as unequal as they like."""
    return (table[0] - table[0] % max(param[0], 1) or param[0], *table[1:])


def _manual(
    bound: BoundRule, cuts: tuple[Cuts, Cuts], ranks: tuple[int, ...], pieces: Sequence[Any]
) -> Sharded:
    """Unequal pieces of the vocabulary, one per field of the indices: nothing is communicated."""
    param, index = cuts
    rows = [piece if isinstance(piece, int) else piece[0] for piece in pieces]
    if len(rows) != param[0] or sum(rows) != bound.shapes[0][0]:
        raise ShardError(
            f"manual_split {tuple(rows)} must have one entry per piece of the table, {param[0]}, and sum to its "
            f"{bound.shapes[0][0]} rows"
        )
    if len(param) != 2 or len(index) != 2 or index[0] != 1 or index[1] != param[0]:
        raise ShardError(f"with manual_split the indices are cut into (1, {param[0]}), but got {index}")
    if math.prod(param) != len(ranks):
        raise ShardError(f"manual_split needs all {len(ranks)} devices, but the table is cut into {param}")
    mesh = Mesh(param, ("dim0", "dim1"), ranks)
    result = Layout(mesh, (None, "dim0", "dim1"))
    inputs = Layout(mesh, ("dim0", "dim1")), Layout(mesh, (None, "dim0"))
    return sourced("Gather", mesh, bound.shapes, inputs, bound.output_shapes, (result,), mode=MANUAL)


def _finished(derivation: Sharded, cuts: tuple[Cuts, Cuts], axis: int, out: Any) -> Sharded:
    """The result after its reduction: scattered along dim 0 where that divides, unless out asks otherwise."""
    computed, shape = derivation.computed[0], derivation.output_shapes[0]
    whole, parted = computed.reduced, scattered(computed)
    pending = pending_axes(computed)
    divides = bool(pending) and shape[0] % derivation.mesh.axis_size(*parted.dims[0]) == 0
    if derivation.mode == AXIS_1 and not divides:
        raise ShardError(f"the result of shape {shape} cannot be scattered along dim 0 over {cuts[0]}")
    wanted = parted if divides and derivation.mode != BATCH_AXIS_SP else whole
    if out is not None:
        wanted = _asked(derivation, (whole, parted if divides else None), axis, out)
    check_even(wanted, shape, "the result")
    matrix = (1, derivation.mesh.size) if derivation.mode == AXIS_1 else None
    derivation = replace(derivation, outputs=(wanted,), forward=tuple(forward(computed, wanted)))
    return replace(derivation, output_shape_matrix=matrix)


def _asked(made: Sharded, choices: tuple[Layout, Layout | None], axis: int, out: Any) -> Layout:
    entry = tuple(out[0]) if out and not isinstance(out[0], int) else tuple(out)
    if axis != 0 or made.mode == MANUAL:
        raise ShardError(f"an out_strategy is accepted for axis 0 only, but got {entry} for axis {axis}")
    for layout in choices:
        if layout is not None and layout.parts == entry:
            return layout
    kept = [str(layout.parts) for layout in choices if layout is not None]
    raise ShardError(f"out_strategy {entry} cannot be had; the result is cut into {' or '.join(kept)}")


def _by_layouts(bound: BoundRule, given: Sequence[Any], out: Any, devices: Devices) -> Sharded:
    """Layouts instead of cuts: what the rule makes of them, reduced, or scattered along dim 0 if out says so."""
    if not all(isinstance(entry, Layout) for entry in given):
        raise UsageTypeError("a strategy is written in cuts or in layouts, but this one mixes them")
    check_devices(given, devices)
    for i, (layout, shape) in enumerate(zip(given, bound.shapes)):
        layout.check_shape(shape)
        check_even(layout, shape, f"operand {i}")
    derivation = derived(
        "Gather", bound, bound.infer(given), inputs=tuple(given), mode="LAYOUT", by_cuts=False
    )
    wanted = derivation.outputs[0]
    if out is not None:
        wanted = result_layout("product", derivation.computed[0], derivation.output_shapes[0], out)
    check_even(wanted, derivation.output_shapes[0], "the result")
    return replace(derivation, outputs=(wanted,), forward=tuple(forward(derivation.computed[0], wanted)))
