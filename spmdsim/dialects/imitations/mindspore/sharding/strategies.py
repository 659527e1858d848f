"""Derive what ``.shard(in_strategy, out_strategy)`` of a MindSpore operator implies, and refuse what MindSpore refuses.

Device matrix, tensor maps (axes counted from the right), slices, the forward collective, mirror groups and the
divisor of ``_VirtualDiv`` are derived from the operator's rule. Semantics: ``ops_info/operator_info.cc`` and the
operators' own ``*_info.cc``.

>>> product = shard("MatMul", ((32, 784), (784, 512)), ((2, 4), (4, 1)), devices=8)
>>> product.dev_matrix, product.input_maps, product.output_maps
((2, 4, 1), ((2, 1), (1, 0)), ((2, 0),))
>>> product.forward[0].name, product.forward[0].groups, product.mirror_groups(1)
('AllReduce', ((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 4), (1, 5), (2, 6), (3, 7)))
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spmdsim.arrays import Op, ShardedOp
from spmdsim.core import BoundRule, Layout, Strategy
from spmdsim.core.cuts import build_sharded_op, factor_cuts, strategy_from_cuts, strategy_from_factors
from spmdsim.dialects.imitations.mindspore.sharding.cuts_by_mode import (
    Devices,
    batch_parallel,
    data_source,
    device_ranks,
    gather,
)
from spmdsim.dialects.imitations.mindspore.sharding.sharded import (
    Sharded,
    bind,
    check_cuts,
    check_devices,
    check_operands,
    choose_result_layout,
    derive_sharding,
    forward_collectives,
    name_operator,
)
from spmdsim.dialects.mindspore.layout import (
    MindSporeLayout,
    check_even,
    device_layout,
    from_tensor_map,
)
from spmdsim.dialects.mindspore.operators import find_operator
from spmdsim.dialects.mindspore.table import OperatorRow, ShardError, parse_arguments
from spmdsim.dialects.session import hint_more_ranks
from spmdsim.errors import RuleError, UsageTypeError, many, unknown
from spmdsim.reading import one_line


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
    """Derive the sharding of an operator from its strategy, as MindSpore does.

    A sharding has the device matrix, the layouts of operands and results, and the collectives.

    Args:
        operator: MindSpore's name, such as ``"MatMul"``.
        input_shapes: global shapes of the operands.
        in_strategy: cuts per operand (numbers of blocks, one per dim), or one layout per operand, all on one device
            matrix. OneHot takes the cuts of its result. None: data parallel, that is, dim 0 of the first operand (of
            Gather: of the indices) is split over all devices. The attribute ``layout`` replaces this argument.
        out_strategy: cuts or layout of the result, if the operator accepts one (MatMul, Gather, Transpose); None: it
            follows from the operands. Operators that are always data parallel ignore it.
        devices: number of devices, or their ranks in order. None: the product of the cuts, 1 without a strategy. A
            virtual axis of layouts does not count.
        repeat: side of the device matrix for the axis along which devices do equal work (``"right"`` or ``"left"``);
            None for the operator's own: ``"left"`` for data sources and for a Gather whose lookup axis is split;
            otherwise ``"right"``. Except for Gather, the attribute ``repeated_num_in_dev_matrix_right_=False`` changes
            it to ``"left"``. It has no effect on layouts and on operators that are always data parallel.
        attrs: MindSpore's attributes, such as ``{"transpose_b": True}``.

    Raises:
        ShardError: (a RuntimeError and a ValueError) If strategies disagree, do not divide, split a dim that must be
            whole, or do not fit the devices; or an operator or attribute is unknown.
        UsageTypeError: If cuts and layouts are mixed.
    """
    shapes = [tuple(int(n) for n in shape) for shape in input_shapes]
    in_strategy = None if in_strategy is None else tuple(in_strategy)
    attributes = dict(attrs or {})
    with name_operator(operator):
        row = find_operator(operator)
        check_attributes(operator, row, attributes)
        if row.strategies == "data":
            shapes = shapes or [tuple(shape) for shape in attributes.get("shapes", ())]
            return data_source(operator, shapes, in_strategy, devices, repeat or "left")
        if row.strategies == "batch":
            return batch_parallel(operator, shapes, in_strategy, devices, attributes)
        if "layout" in attributes:
            in_strategy = configured_layouts(attributes["layout"])
        has_layouts = any(isinstance(entry, Layout) for entry in in_strategy or ())
        if row.strategies == "gather" and not has_layouts:
            return gather(shapes, in_strategy, out_strategy, devices, repeat, attributes)
        # Operands that are replicated on every device, such as the mask of a DropoutDoMask.
        further_shapes = shapes[1:] if row.first_only else []
        bound = bind(
            row.op, shapes[: len(shapes) - len(further_shapes)], row.strategy_params(shapes, attributes)
        )
        request = _RequestedStrategy(operator, row, bound, out_strategy, devices, attributes)
        if in_strategy and has_layouts:
            derivation = request.by_layouts(in_strategy)
        else:
            repeats_right = attributes.get("repeated_num_in_dev_matrix_right_", True)
            derivation = request.by_cuts(in_strategy, repeat or ("right" if repeats_right else "left"))
        return derivation.with_whole(further_shapes) if further_shapes else derivation


def check_attributes(operator: str, row: OperatorRow, attributes: Mapping[str, Any]) -> None:
    """Raise ShardError if an attribute is unknown, or is a text where no text is allowed.

    Other values are not checked. ``dtype`` may always be a text.

    Args:
        operator: MindSpore's name, for the error.
        row: the operator's row of the table: names, arguments and restrictions.
        attributes: values by name.
    """
    names = row.attribute_names
    defaults = {**parse_arguments(row.called).defaults, **parse_arguments(row.attrs).defaults}
    for name, value in attributes.items():
        if name not in names:
            raise unknown(f"{operator} has no attribute {name!r}", name, names, ShardError)
        default = defaults.get(name)
        may_be_text = name == "dtype" or isinstance(default, str)
        if isinstance(value, str) and not may_be_text:
            rule = "True or False" if isinstance(default, bool) else "no text"
            raise ShardError(f"{operator}: attribute {name} must be {rule}, got {value!r}")


def configured_layouts(attribute: Mapping[str, Any]) -> tuple[Layout, ...]:
    """Return one layout per operand from an attribute ``layout`` in numbers.

    Args:
        attribute: ``{"dev_matrix": ..., "input_tensor_map": ...}``: the device matrix, and per operand a tensor map
            (axes from the right, -1 for none). Further keys are ignored.

    Raises:
        ShardError: If the attribute is no dict with both keys.
        LayoutError: If a map does not fit the device matrix.
    """
    if not isinstance(attribute, Mapping) or not {"dev_matrix", "input_tensor_map"} <= {*attribute}:
        raise ShardError(
            "attribute layout must be a dict with dev_matrix and input_tensor_map, got "
            f"{one_line(repr(attribute))}"
        )
    maps = attribute["input_tensor_map"]
    return tuple(from_tensor_map(attribute["dev_matrix"], entry) for entry in maps)


@dataclass(frozen=True)
class _RequestedStrategy:
    """Operator with a requested strategy; derives the sharding from cuts or from layouts.

    Attributes:
        name: MindSpore's name.
        row: the operator's row of the table: names, arguments and restrictions.
        bound: rule of the operator for given shapes: it names the factor (shared index) of each dim.
        out: requested out_strategy, or None.
        devices: number or list of devices, or None.
        attrs: MindSpore's attributes.
    """

    name: str
    row: OperatorRow
    bound: BoundRule
    out: Any
    devices: Devices
    attrs: Mapping[str, Any]

    def by_cuts(self, in_strategy: Any, repeat: str) -> Sharded:
        """Derive the sharding (layouts and collectives) from cuts.

        Args:
            in_strategy: cuts per operand, or of the result for OneHot; None is data parallel.
            repeat: side of the device matrix for the axis along which devices do equal work, ``"left"`` or ``"right"``.

        Raises:
            RuleError: If the cuts do not fit the shapes, the rule or the devices.
            LayoutError: If a result is split unevenly.
            ShardError: If the requested out_strategy is not supported.
        """
        row, bound = self.row, self.bound
        if row.of_result and in_strategy is not None:
            factors = cuts_of_result(bound, in_strategy, self.devices)
        else:
            wanted = in_strategy
            if wanted is None:
                wanted = default_cuts(bound, len(device_ranks(self.devices, 1)))
            cuts = row.adjust(wanted, bound.shapes)
            pieces = math.prod(factor_cuts(bound, cuts).values())
            check_cuts(cuts, bound.shapes, len(device_ranks(self.devices, pieces)))
            factors = factor_cuts(bound, cuts)
        used = math.prod(factors.values())
        members = device_ranks(self.devices, used)
        strategy = strategy_from_factors(bound, factors, members, repeat=repeat)
        return self._derive(strategy, len(members) // used, repeat)

    def by_layouts(self, layouts: tuple[Any, ...]) -> Sharded:
        """Derive the sharding (layouts and collectives) from one layout per operand.

        Args:
            layouts: the layouts.

        Raises:
            LayoutError: If a layout splits unevenly or is for another number of devices.
            ShardError: If there is not one layout per operand, or the requested out_strategy is not supported.
            RuleError: If the rule cannot combine the layouts.
            UsageTypeError: If cuts and layouts are mixed.
        """
        if not all(isinstance(entry, Layout) for entry in layouts):
            raise UsageTypeError("a strategy is written in cuts or in layouts, but this one mixes them")
        if len(layouts) != len(self.bound.inputs):
            raise ShardError(
                f"in_strategy must have one layout per operand, got {many(len(layouts), 'layout')} for "
                f"{many(len(self.bound.inputs), 'operand')}"
            )
        check_operands(layouts, self.bound.shapes)
        check_devices(layouts, self.devices)
        return self._derive(self.bound.infer(layouts), 1, "right", layouts)

    def _derive(
        self, strategy: Strategy, repeated: int, side: str, layouts: tuple[Layout, ...] | None = None
    ) -> Sharded:
        """Derive layouts of all results, and the collective of the first one, from a strategy.

        Pending sums are reduced.

        Args:
            strategy: the mesh axes that split each factor of the rule.
            repeated: number of devices that do equal work.
            side: position of their axis in the device matrix, ``"left"`` or ``"right"``.
            layouts: layouts of the operands; None takes the layouts of the strategy.

        Raises:
            ShardError: If the requested out_strategy is not supported.
            LayoutError: If a result is split unevenly.
        """
        row, bound, attrs = self.row, self.bound, self.attrs
        inputs = layouts or bound.input_layouts(strategy)
        computed, shapes = list(bound.output_layouts(strategy)), list(bound.output_shapes)
        # Further results, such as the mean and the variance of a LayerNorm.
        for op, params in row.also(bound.shapes, attrs):
            further = op.bind(bound.shapes[:1], params)
            computed += further.output_layouts(further.infer(inputs[:1]))
            shapes += further.output_shapes
        # Of these results MindSpore keeps dim 0 only.
        for i in row.first_dim:
            computed[i], shapes[i] = Layout(strategy.mesh, computed[i].dims[:1]), shapes[i][:1]
        if row.gathers is not None:  # the result of a Reshape is replicated, as in MindSpore
            shapes = [row.gathers(bound.shapes, attrs)]
            computed = [Layout.replicated(strategy.mesh, len(shapes[0]))]
        outputs = [layout.reduced for layout in computed]
        if self.out is not None:
            outputs[0] = choose_result_layout(row.out_strategy, computed[0], shapes[0], self.out)
        for layout, shape in zip(outputs, shapes):
            check_even(layout, shape, "the result")
        return derive_sharding(
            self.name, bound, strategy, inputs=inputs, output_shapes=tuple(shapes), computed=tuple(computed),
            outputs=tuple(outputs), repeated_calc=repeated, repeated_side=side, loss_output=row.loss,
            forward=tuple(forward_collectives(computed[0], outputs[0], row.mean)),
            by_cuts=layouts is None, mode="LAYOUT" if layouts and row.strategies == "gather" else "",
        )  # fmt: skip


def default_cuts(bound: BoundRule, devices: int) -> tuple[tuple[int, ...], ...]:
    """Return the cuts of data parallelism: dim 0 of the first operand over all devices.

    Args:
        bound: rule of the operator for given shapes: it names the factor (shared index) of each dim.
        devices: number of devices.

    Returns:
        For each operand the number of blocks of each dim. Dims of any operand that have the factor of this dim
        0 are cut into ``devices`` blocks, all others into 1. For example, a product ``m k, k n -> m n`` on 8
        devices has the cuts ``((8, 1), (1, 1))``. No dim is cut if the first operand is a scalar, or its dim 0
        has no factor in the rule.

    Raises:
        RuleError: If dim 0 must stay whole, or ``devices`` does not divide its size.
    """
    first_operand = bound.inputs[0]
    has_batch_factor = bool(first_operand) and bool(first_operand[0])
    if not has_batch_factor:
        return tuple((1,) * len(shape) for shape in bound.shapes)
    factor = first_operand[0][0]
    if factor in bound.rule.whole or bound.shapes[0][0] % devices:
        raise RuleError(
            f"without a strategy dim 0 of the first operand is split over all {many(devices, 'device')}, but it must stay whole "
            f"or their number does not divide it in shape {bound.shapes[0]}; give a strategy"
        )
    return tuple(tuple(devices if factor in dim else 1 for dim in term) for term in bound.inputs)


def cuts_of_result(bound: BoundRule, in_strategy: Sequence[Any], devices: Devices) -> dict[str, int]:
    """Return the number of blocks per factor of a rule, from the cuts of its result.

    Args:
        bound: rule of the operator for given shapes: it names the factor (shared index) of each dim.
        in_strategy: first the cuts of the *result* (not of an operand), then () for each scalar operand. For OneHot, whose
            on and off values are scalars, an example is ``((4, 1), (), ())``.
        devices: number or list of devices, against which the cuts are checked; None for the product of the cuts.

    Raises:
        ShardError: If a further entry is not empty.
        RuleError: If the cuts do not fit the result's shape; see `check_cuts`.
    """
    entries = [tuple(entry) for entry in in_strategy]
    if any(entry for entry in entries[1:]):
        raise ShardError(
            f"in_strategy must have the cuts of the result and an empty () for each scalar, got {in_strategy}"
        )
    ranks = device_ranks(devices, max(math.prod(entries[0]), 1))
    check_cuts(entries[:1], bound.output_shapes[:1], len(ranks))
    return {factor: cut for dim, cut in zip(bound.outputs[0], entries[0]) for factor in dim}


def configure(op: Op, in_strategy: Any, out_strategy: Any, repeat: str) -> ShardedOp:
    """Return our operator with a strategy in MindSpore's form.

    Virtual axes of layouts, such as ``interleaved_parallel``, divide the work of one device and stand for no devices;
    they are removed. Shapes are not known yet: whether the strategy fits them is checked in a call.

    Args:
        op: our operator.
        in_strategy: a tuple or list with an entry per operand: either all are cuts, such as ``((2, 1), (1, 2))``, or
            all are layouts.
        out_strategy: cuts or layout of the result, or None.
        repeat: side of the device matrix for the axis along which devices do equal work, ``"left"`` or ``"right"``.

    Raises:
        UsageTypeError: If ``in_strategy`` is not a tuple or list, is empty, has both cuts and layouts, or has another
            kind of entry.
    """
    if not isinstance(in_strategy, (tuple, list)) or not in_strategy:
        raise UsageTypeError(
            f"in_strategy must be a tuple with cuts or a layout per operand, got {one_line(repr(in_strategy))}; "
            "write, for example, ((2, 1), (1, 2))"
        )
    layouts = [isinstance(entry, Layout) for entry in in_strategy]
    if any(layouts) and not all(layouts):
        raise UsageTypeError(f"in_strategy must have only cuts or only layouts, got {in_strategy}")
    for entry in in_strategy:
        if not isinstance(entry, (Layout, tuple, list)):
            raise UsageTypeError(
                f"in_strategy must have cuts or a layout per operand, got {entry!r} in {one_line(in_strategy)}; "
                "write, for example, ((2, 1), (1, 2))"
            )
    return op.shard(_to_devices(in_strategy), _to_devices(out_strategy), repeat=repeat)


def _to_devices(strategy: Any) -> Any:
    """Return a strategy without the virtual axes of its interleaved layouts.

    A virtual axis divides the work of one device. It is no axis of the devices.
    """
    if isinstance(strategy, Layout):
        return device_layout(strategy)
    if isinstance(strategy, (tuple, list)) and any(isinstance(entry, Layout) for entry in strategy):
        return tuple(map(_to_devices, strategy))
    return strategy


def fit_sharding(sharding: ShardedOp | None, ndims: Sequence[int]) -> ShardedOp | None:
    """Return a configured operator whose layouts fit operands with these numbers of dims.

    A layout written as one tuple of axes depends on the number of dims; see `MindSporeLayout.of`. Other configured
    operators, None, and operators for another number of operands are returned unchanged.

    Args:
        sharding: our operator with the configured strategy; None if there is none.
        ndims: number of dims of each operand.
    """
    in_strategy: tuple[Any, ...] = () if sharding is None else sharding.in_strategy
    if sharding is None or len(in_strategy) != len(ndims) or not isinstance(in_strategy[0], Layout):
        return sharding
    fitted = tuple(
        layout.of(ndim) if isinstance(layout, MindSporeLayout) else layout
        for layout, ndim in zip(in_strategy, ndims)
    )
    if all(new is old for new, old in zip(fitted, in_strategy)):
        return sharding
    return build_sharded_op(sharding.op, _to_devices(fitted), sharding.out_strategy, sharding.repeat)


def _check_devices(layouts: Sequence[Layout], ranks: int) -> None:
    """Raise ShardError unless the device matrix of each layout has as many devices as there are ranks."""
    for layout in layouts:
        if layout.mesh.size != ranks:
            raise ShardError(
                f"the device matrix {layout.mesh.shape} has {many(layout.mesh.size, 'device')}, but "
                f"{many(ranks, 'rank is', 'ranks are')} running{hint_more_ranks()}"
            )


def strategy_of(
    row: OperatorRow, name: str, bound: BoundRule, sharding: ShardedOp | None, ranks: int
) -> Strategy:
    """Return the strategy of a call on ``ranks`` ranks; data parallel if ``sharding`` is None.

    Args:
        row: the operator's row of the table: names, arguments and restrictions.
        name: MindSpore's name, for messages.
        bound: rule of the operator for given shapes: it names the factor (shared index) of each dim.
        sharding: our operator with the configured strategy; None if there is none.
        ranks: number of ranks.

    Raises:
        ShardError: If the strategy does not fit the shapes or the ranks.
        UsageTypeError: If a cut is no integer.
    """
    if sharding is None:
        return data_parallel(bound, ranks)
    in_strategy, op = sharding.in_strategy, sharding.op.name
    if row.of_result and isinstance(in_strategy[0], tuple):
        with name_operator(name):
            factors = cuts_of_result(bound, in_strategy, ranks)
            return strategy_from_factors(bound, factors, ranks, repeat=sharding.repeat)
    if isinstance(in_strategy[0], Layout):
        _check_devices(in_strategy, ranks)
    else:
        try:
            check_cuts(in_strategy, bound.shapes, ranks)
        except RuleError as error:
            raise ShardError(f"{op}.shard({in_strategy}): {error.message}") from None
    try:
        return sharding.strategy(bound, ranks)
    except RuleError as error:
        raise ShardError(
            f"{op}.shard({in_strategy}): {error.message}{hint_more_ranks()}", **error.facts
        ) from None


def data_parallel(bound: BoundRule, ranks: int) -> Strategy:
    """Return the strategy that splits dim 0 of the first operand over all ranks.

    If the number of ranks does not divide the dim, or the dim must stay whole, nothing is split: all ranks compute the
    whole result.

    Args:
        bound: rule of the operator for given shapes: it names the factor (shared index) of each dim.
        ranks: number of ranks.
    """
    try:
        cuts = default_cuts(bound, ranks)
    except RuleError:
        cuts = tuple((1,) * len(shape) for shape in bound.shapes)
    return strategy_from_cuts(bound, cuts, ranks)


def check_result(row: OperatorRow, bound: BoundRule, sharding: ShardedOp | None, strategy: Strategy) -> None:
    """Raise ShardError if the operator does not accept or cannot produce the configured out_strategy.

    Do nothing without an out_strategy.

    Args:
        row: row of the operator table, whose ``out_strategy`` says what is accepted.
        bound: rule of the operator for given shapes: it names the factor (shared index) of each dim.
        sharding: our operator with the configured strategy; None if there is none.
        strategy: the mesh axes that split each factor of the rule in this call.
    """
    if sharding is not None and sharding.out_strategy is not None:
        computed = bound.output_layouts(strategy)[0]
        try:
            choose_result_layout(row.out_strategy, computed, bound.output_shapes[0], sharding.out_strategy)
        except RuleError as error:
            raise ShardError(f"{sharding.op.name}.shard: {error.message}") from None
