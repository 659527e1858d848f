"""``.shard(in_strategy, out_strategy)`` of a MindSpore operator: everything that follows from it.

Device matrix, tensor maps (axes counted from the right), slices, the forward collective, mirror groups and the
divisor of ``_VirtualDiv`` are derived from the operator's rule. Semantics: ``ops_info/operator_info.cc`` and the
operators' own ``*_info.cc``.

>>> found = shard("MatMul", ((32, 784), (784, 512)), ((2, 4), (4, 1)), devices=8)
>>> found.dev_matrix, found.input_maps, found.output_maps
((2, 4, 1), ((2, 1), (1, 0)), ((2, 0),))
>>> found.forward[0].name, found.forward[0].groups, found.mirror_groups(1)
('AllReduce', ((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 4), (1, 5), (2, 6), (3, 7)))
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spmdsim.core import BoundRule, Layout, Strategy
from spmdsim.dialects.mindspore.layout import check_devices, check_even, from_tensor_map
from spmdsim.dialects.mindspore.operators import find
from spmdsim.dialects.mindspore.table import Row, ShardError, bind, refusing
from spmdsim.errors import RuleError, UsageTypeError
from spmdsim.imitations.mindspore.sharding.cuts_refused import check_cuts
from spmdsim.imitations.mindspore.sharding.data_parallel import (
    Devices,
    batch_parallel,
    data_source,
    device_ranks,
)
from spmdsim.imitations.mindspore.sharding.gather_modes import gather
from spmdsim.imitations.mindspore.sharding.results import forward, result_layout
from spmdsim.imitations.mindspore.sharding.sharded import Sharded, derived
from spmdsim.imitations.mindspore.sharding.tensor_parallel import nd_product
from spmdsim.layout.cuts import factor_cuts, strategy_from_factors

Cuts = Sequence[Sequence[int]]


def shard(
    operator: str,
    input_shapes: Sequence[Sequence[int]],
    in_strategy: Sequence[Any] | None = None,
    out_strategy: Any = None,
    *,
    devices: int | Sequence[int] | None = None,
    repeat: str | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> Sharded:
    """What a strategy means for an operator.

    Args:
        operator: MindSpore's name, such as ``"MatMul"``.
        input_shapes: global shapes of the operands.
        in_strategy: cuts per operand, or one layout per operand (all on one device matrix). Without it the
            operator is data parallel: dim 0 of the first operand over all devices.
        out_strategy: cuts or layout of the result, where the operator takes one (MatMul, Gather, Transpose).
        devices: how many devices, or which, in their order; the product of the cuts if left out. Layouts with a
            virtual axis are for the devices without it.
        repeat: the side on which repeated calculation enters the device matrix (``"right"`` or ``"left"``); the
            operator's own default if left out.
        attrs: MindSpore's attributes, such as ``{"transpose_b": True}``; ``cross_batch`` of a reduction leaves
            every device with its own part of the sum.

    Raises:
        RuntimeError: (also a ValueError) strategies that disagree, do not divide, split what must be whole, or
            do not fit the devices; an unknown operator or attribute.
        TypeError: cuts and layouts mixed.
    """
    shapes = [tuple(int(n) for n in shape) for shape in input_shapes]
    given = None if in_strategy is None else tuple(in_strategy)
    attributes = dict(attrs or {})
    with refusing(operator):
        row = find(operator)
        if row.strategies == "data":
            shapes = shapes or [tuple(shape) for shape in attributes.get("shapes", ())]
            return data_source(operator, shapes, given, devices, repeat or "left")
        if row.strategies == "batch":
            return batch_parallel(operator, shapes, given, devices, attributes)
        if row.strategies == "gather":
            return gather(shapes, given, out_strategy, devices, repeat, attributes)
        if "layout" in attributes:
            given = configured(attributes["layout"])
        further = shapes[1:] if row.first_only else []
        bound = bind(row.op, shapes[: len(shapes) - len(further)], row.strategy_params(shapes, attributes))
        if given and any(isinstance(entry, Layout) for entry in given):
            derivation = _by_layouts(operator, row, bound, given, out_strategy, devices, attributes)
        else:
            side = repeat or _side(attributes)
            derivation = _by_cuts(operator, row, bound, given, out_strategy, devices, side, attributes)
        return derivation.with_whole(further) if further else derivation


# -- the two ways to write a strategy ----------------------------------------------------------------


def configured(attribute: Mapping[str, Any]) -> tuple[Layout, ...]:
    """The layouts of ``add_prim_attr("layout", {"dev_matrix": ..., "input_tensor_map": ...})``."""
    maps = attribute["input_tensor_map"]
    return tuple(from_tensor_map(attribute["dev_matrix"], entry) for entry in maps)


def _side(attributes: Mapping[str, Any]) -> str:
    """Where repeated calculation goes, as the primitive's attribute says it."""
    return "right" if attributes.get("repeated_num_in_dev_matrix_right_", True) else "left"


def _by_cuts(
    name: str,
    row: Row,
    bound: BoundRule,
    given: Any,
    out: Any,
    devices: Devices,
    repeat: str,
    attrs: Mapping[str, Any],
) -> Sharded:
    if row.of_result and given is not None:
        factors = cuts_of_result(bound, given, devices)
    else:
        wanted = given if given is not None else default_cuts(bound, len(device_ranks(devices, 1)))
        cuts = row.adjust(wanted, bound.shapes)
        check_cuts(
            cuts, bound.shapes, len(device_ranks(devices, math.prod(factor_cuts(bound, cuts).values())))
        )
        factors = factor_cuts(bound, cuts)
    used = math.prod(factors.values())
    members = device_ranks(devices, used)
    strategy = strategy_from_factors(bound, factors, members, repeat=repeat)
    repeated = len(members) // used
    return _derive(name, row, bound, strategy, out, attrs, repeated, repeat)


def _by_layouts(
    name: str,
    row: Row,
    bound: BoundRule,
    given: Sequence[Any],
    out: Any,
    devices: Devices,
    attrs: Mapping[str, Any],
) -> Sharded:
    if not all(isinstance(entry, Layout) for entry in given):
        raise UsageTypeError("a strategy is written in cuts or in layouts, but this one mixes them")
    if len(given) != len(bound.inputs):
        raise ShardError(f"{len(given)} layouts were given for {len(bound.inputs)} operands")
    for i, (layout, shape) in enumerate(zip(given, bound.shapes)):
        layout.check_shape(shape)
        check_even(layout, shape, f"operand {i}")
    check_devices(given, devices)
    if attrs.get("enable_nd_tp") and row.out_strategy == "product":
        return _nd(name, bound, given, out)
    strategy = bound.infer(given)
    return _derive(name, row, bound, strategy, out, attrs, 1, "right", tuple(given))


def _nd(name: str, bound: BoundRule, given: Sequence[Layout], out: Any) -> Sharded:
    derivation = nd_product(name, bound, given)
    wanted = out[0] if isinstance(out, (tuple, list)) else out
    if wanted is not None and Layout(wanted.mesh, wanted.dims).canonical != derivation.outputs[0].canonical:
        raise ShardError(f"out_strategy {wanted} cannot be had; the result is {derivation.outputs[0]}")
    check_even(derivation.outputs[0], derivation.output_shapes[0], "the result")
    return derivation


def default_cuts(bound: BoundRule, devices: int) -> tuple[tuple[int, ...], ...]:
    """The cuts of an operator without a strategy: data parallel, dim 0 of the first operand over all devices.

    Raises:
        ValueError: that dim must stay whole or does not divide.
    """
    first = bound.inputs[0]
    if not first or not first[0]:
        return tuple((1,) * len(shape) for shape in bound.shapes)
    factor = first[0][0]
    if factor in bound.rule.whole or bound.shapes[0][0] % devices:
        raise RuleError(
            f"without a strategy dim 0 of the first operand is split over all {devices} devices, but of shape "
            f"{bound.shapes[0]} it must stay whole or does not divide; give a strategy"
        )
    return tuple(tuple(devices if factor in dim else 1 for dim in term) for term in bound.inputs)


def cuts_of_result(bound: BoundRule, given: Sequence[Any], devices: Devices) -> dict[str, int]:
    """Factor cuts from those of the result; entries for further, scalar operands are empty."""
    entries = [tuple(entry) for entry in given]
    if any(entry for entry in entries[1:]):
        raise ShardError(f"the strategy is that of the result, and empty for scalars, but got {given}")
    check_cuts(
        entries[:1], bound.output_shapes[:1], len(device_ranks(devices, max(math.prod(entries[0]), 1)))
    )
    return {factor: cut for dim, cut in zip(bound.outputs[0], entries[0]) for factor in dim}


# -- what follows ------------------------------------------------------------------------------------


def _derive(
    name: str, row: Row, bound: BoundRule, strategy: Strategy, out: Any, attrs: Mapping[str, Any], repeated: int,
    side: str, given: tuple[Layout, ...] | None = None,
) -> Sharded:  # fmt: skip
    inputs = given or bound.input_layouts(strategy)
    computed, shapes = list(bound.output_layouts(strategy)), list(bound.output_shapes)
    for op, params in row.also(bound.shapes, attrs):
        further = op.bind(bound.shapes[:1], params)
        computed += further.output_layouts(further.infer(inputs[:1]))
        shapes += further.output_shapes
    for i in row.first_dim:
        computed[i], shapes[i] = Layout(strategy.mesh, computed[i].dims[:1]), shapes[i][:1]
    if row.gathers is not None:
        shapes = [row.gathers(bound.shapes, attrs)]
        computed = [Layout.replicated(strategy.mesh, len(shapes[0]))]
    outputs = [layout.reduced for layout in computed]
    if out is not None:
        outputs[0] = result_layout(row.out_strategy, computed[0], shapes[0], out)
    for layout, shape in zip(outputs, shapes):
        check_even(layout, shape, "the result")
    return derived(
        name, bound, strategy, inputs=inputs, output_shapes=tuple(shapes), computed=tuple(computed),
        outputs=tuple(outputs), repeated_calc=repeated, repeated_side=side, loss_output=row.loss, by_cuts=given is None,
        forward=() if attrs.get("cross_batch") else tuple(forward(computed[0], outputs[0], row.mean)),
    )  # fmt: skip
