"""Operators whose cuts mean more than their rule states: data sources and ``Gather``.

``Gather`` and ``EmbeddingLookup`` (``ops_info/gather_info.cc``): a mode states only which dims may be split together
and on which device matrix. The layouts and the pending sum come from the rule of :func:`spmdsim.ops.gather`. One
difference: MindSpore returns zeros for an index outside of the table, this package refuses it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spmdsim.arrays import ops
from spmdsim.arrays.ops.lookup import LOOKED_UP
from spmdsim.core import BoundRule, Layout, Mesh, Strategy
from spmdsim.core.cuts import factor_cuts, rank_tuple, strategy_from_factors
from spmdsim.core.notation.rules import Shape
from spmdsim.core.rule import common_mesh
from spmdsim.dialects.imitations.mindspore.sharding.sharded import (
    Sharded,
    check_cuts,
    check_devices,
    derive_sharding,
    forward_collectives,
    real_partial_axes,
    scatter_first_dim,
    shard_without_rule,
)
from spmdsim.dialects.mindspore.layout import check_even
from spmdsim.dialects.mindspore.table import ShardError
from spmdsim.errors import many

Cuts = tuple[int, ...]
#: Number of devices, or their ranks in order; None for the product of the cuts.
Devices = int | Sequence[int] | None


def batch_parallel(
    name: str,
    shapes: Sequence[Shape],
    in_strategy: Sequence[Any] | None,
    devices: Devices,
    attrs: Mapping[str, Any],
) -> Sharded:
    """Split dim 0 of every operand and result over all devices, on a device matrix of one axis.

    Return the layouts of operands and results. Nothing is communicated.

    Semantics: ``ops_info/batch_parallel_info.cc``. Scalars are replicated.

    Args:
        name: MindSpore's name of the operator.
        shapes: global shapes of the operands.
        in_strategy: cuts or layouts per operand, which must split dim 0 over all devices and nothing else. None
            stands for these cuts.
        devices: number or list of devices; None for the product of the first operand's cuts, or 1 without a strategy.
            If ``in_strategy`` has layouts, their mesh has the devices; ``devices`` must then be None or have the number
            of these devices.
        attrs: attributes; ``output_shapes`` states the results' shapes, else the result has the shape of operand 0 (of
            Flatten: a matrix).

    Raises:
        ShardError: If the strategy has other cuts.
        RuleError: If the number of devices does not divide a dim 0.
        LayoutError: If layouts are for another number of devices.
    """
    if in_strategy and isinstance(in_strategy[0], Layout):
        check_devices(in_strategy, devices)
        in_strategy, devices = [layout.cuts for layout in in_strategy], in_strategy[0].mesh.rank_list
    ranks = device_ranks(devices, math.prod(in_strategy[0]) if in_strategy else 1)
    wanted = [_cut_first_dim(shape, len(ranks)) for shape in shapes]
    if in_strategy is not None and [tuple(entry) for entry in in_strategy] != wanted:
        raise ShardError(
            f"in_strategy must be {tuple(wanted)}, because the operator splits dim 0 over all "
            f"{many(len(ranks), 'device')}, got {tuple(in_strategy)}"
        )
    check_cuts(wanted, shapes, len(ranks))
    mesh = Mesh((len(ranks),), ("batch",), ranks)
    results = [tuple(shape) for shape in attrs.get("output_shapes", _result_shapes(name, shapes))]

    def first(shape: Shape) -> Layout:
        """Return the layout that splits dim 0 of a shape over all devices."""
        return Layout(mesh, ["batch" if d == 0 else None for d in range(len(shape))])

    return shard_without_rule(
        name, mesh, shapes, list(map(first, shapes)), results, list(map(first, results))
    )


def _cut_first_dim(shape: Shape, devices: int) -> Cuts:
    """Return cuts that split dim 0 over all devices."""
    return tuple(1 if d else devices for d in range(len(shape)))


def _result_shapes(name: str, shapes: Sequence[Shape]) -> list[Shape]:
    """Return a list with the shape of the result: the shape of operand 0, for Flatten as a matrix."""
    if name == "Flatten" and shapes[0]:
        return [(shapes[0][0], math.prod(shapes[0][1:]))]
    return [shapes[0]]


def data_source(
    name: str, shapes: Sequence[Shape], in_strategy: Sequence[Any] | None, devices: Devices, repeat: str
) -> Sharded:
    """Derive the sharding of tensors from a data set: each dim is split as its strategy states.

    A sharding has the layouts of operands and results, and the collectives. The strategy with the most dims is the
    device matrix. Each cut of a tensor must be 1 or the number at the same position of the device matrix. For example,
    the cuts ((4, 2), (4,)) have the device matrix (4, 2); the second tensor could also have (1,), but not (2,).

    Semantics: ``ops_info/virtual_dataset_info.cc``, ``get_next_info.cc``.

    Args:
        name: MindSpore's name of the operator.
        shapes: global shapes of the tensors.
        in_strategy: cuts or layouts per tensor; None, or only empty cuts, splits dim 0 over all devices. Layouts are
            checked and used unchanged.
        devices: number or list of devices; None for the product of the longest strategy, or 1 without cuts.
        repeat: side of the device matrix for the axis along which devices do equal work, ``"left"`` or ``"right"``.

    Raises:
        ShardError: If a cut is neither 1 nor the number at its position of the device matrix, the cuts do not divide
            the devices, or there is not one layout per tensor.
        RuleError: If cuts do not divide the shapes.
        LayoutError: If a layout splits unevenly, or is for another number of devices.
    """
    if in_strategy and isinstance(in_strategy[0], Layout):
        check_devices(in_strategy, devices)
        for i, (tensor_layout, shape) in enumerate(zip(in_strategy, shapes)):
            check_even(tensor_layout, shape, f"tensor {i}")
        return _shard_source(name, shapes, tuple(in_strategy), 1, repeat)
    if in_strategy is not None and not any(in_strategy):
        in_strategy = None
    cuts = [tuple(entry) for entry in in_strategy] if in_strategy is not None else None
    ranks = device_ranks(devices, math.prod(_longest(cuts)) if cuts else 1)
    if cuts is None:
        cuts = [_cut_first_dim(shape, len(ranks)) for shape in shapes]
    check_cuts(cuts, shapes, len(ranks))
    matrix = _longest(cuts)
    _check_same_cuts(cuts, matrix)
    if len(ranks) % math.prod(matrix):
        raise ShardError(
            f"in_strategy {matrix} makes {many(math.prod(matrix), 'block')}; their number must divide the "
            f"{many(len(ranks), 'device')}"
        )
    mesh = device_mesh(matrix, ranks, repeat)

    def layout(entry: tuple[int, ...]) -> Layout:
        return Layout(mesh, [f"dim{d}" if cut == matrix[d] else None for d, cut in enumerate(entry)])

    return _shard_source(name, shapes, tuple(map(layout, cuts)), len(ranks) // math.prod(matrix), repeat)


def _check_same_cuts(cuts: Sequence[tuple[int, ...]], matrix: tuple[int, ...]) -> None:
    """Raise ShardError unless each cut is 1 or the device matrix's number at the cut's dim.

    For example, cuts (2, 1) fit the device matrix (2, 4); cuts (4, 1) do not.
    """
    for i, entry in enumerate(cuts):
        wrong = [d for d, cut in enumerate(entry) if cut not in (1, matrix[d])]
        if wrong:
            raise ShardError(
                f"in_strategy must cut a dim of all tensors equally or into 1, but tensor {i} has cuts {entry} "
                f"and another tensor {matrix}, which differ in dim {wrong[0]}"
            )


def _shard_source(
    name: str, shapes: Sequence[Shape], layouts: tuple[Layout, ...], repeated: int, side: str
) -> Sharded:
    """Return the sharding of an operator that reads data, such as GetNext.

    Its results are the tensors of the data set. For all operators but GetNext they are also the operands, with equal
    shapes and layouts. Nothing is communicated.

    Args:
        name: MindSpore's name of the operator.
        shapes: global shapes of the results.
        layouts: the layouts of the results, one per result.
        repeated: number of devices with equal work.
        side: side of the device matrix on which their axis is, ``"left"`` or ``"right"``.

    Raises:
        ShardError: If there is not one layout per tensor.
    """
    if len(layouts) != len(shapes):
        raise ShardError(
            f"in_strategy must have one layout per tensor, got {many(len(layouts), 'layout')} for "
            f"{many(len(shapes), 'tensor')}"
        )
    read = name != "GetNext"
    return shard_without_rule(
        name, common_mesh(layouts), shapes if read else (), layouts if read else (), shapes, layouts,
        repeated_calc=repeated, repeated_side=side, by_cuts=False,
    )  # fmt: skip


def _longest(cuts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the cuts with the most dims; of equally long cuts, those with the most blocks."""
    return sorted(cuts, key=lambda entry: (len(entry), math.prod(entry)))[-1]


def device_mesh(matrix: tuple[int, ...], ranks: tuple[int, ...], repeat: str) -> Mesh:
    """Return the mesh of a device matrix, with axes ``dim0``, ``dim1`` and so on.

    If there are more ranks than the matrix has devices, they form a further axis ``repeat``, along which devices do
    equal work. For example, the matrix (2, 4) on 16 ranks has the axes ``repeat`` (2), ``dim0`` (2) and ``dim1`` (4) if
    ``repeat`` is "left".

    Args:
        matrix: sizes of the axes; their product must divide the number of ranks.
        ranks: the ranks, row-major.
        repeat: side of the further axis: ``"left"`` for the first axis, else the last one.
    """
    repeats = len(ranks) // math.prod(matrix)
    sizes, names = list(matrix), [f"dim{d}" for d in range(len(matrix))]
    if repeats > 1:
        position = 0 if repeat == "left" else len(sizes)
        sizes.insert(position, repeats)
        names.insert(position, "repeat")
    return Mesh(sizes, names, ranks)


def device_ranks(devices: Devices, otherwise: int) -> tuple[int, ...]:
    """Return the ranks for a number or list of devices; None stands for ``otherwise`` devices."""
    return rank_tuple(otherwise if devices is None else devices)


NORMAL = "NORMAL"
AXIS_0 = "SHARD_AXIS_0_STATIC"
AXIS_1 = "SHARD_AXIS_1"
BATCH_AND_AXIS = "SHARD_BATCH_AND_AXIS"
BATCH_AXIS_SP = "SHARD_BATCH_AXIS_AND_SP"


def choose_mode(axis: int, param: Cuts, index: Cuts, devices: int) -> str:
    """Return MindSpore's mode of a Gather strategy: the meaning of a split lookup axis.

    The modes are constants of this module:

    * ``NORMAL``: the lookup axis is not split;
    * ``AXIS_0``, ``AXIS_1``: lookup axis 0 or 1 is split, and the indices are not;
    * ``BATCH_AND_AXIS``: the lookup axis and dim 0 of the indices are split;
    * ``BATCH_AXIS_SP``: the lookup axis and dim 1 of the indices are split; dim 0 of the indices may be split, too.

    Args:
        axis: lookup axis of the table, from 0.
        param: cuts of the table.
        index: cuts of the indices.
        devices: number of devices.

    Raises:
        ShardError: For a split lookup axis:
            - if the table has more than two dims;
            - with split indices: if the axis is not 0, another dim of the table is split, a dim of the indices after
              dim 1 is split, or the product of the cuts of the indices and the table is not ``devices``.
    """
    if param[axis] == 1:
        return NORMAL
    if len(param) > 2:
        raise ShardError(
            f"Gather: the axis of a table may be split if the table has 1 or 2 dims, but this one has {len(param)}; "
            "cut its axis into 1"
        )
    if math.prod(index) == 1:
        return AXIS_0 if axis == 0 else AXIS_1
    other_cuts = math.prod(param) // param[axis]
    split = [d for d, cut in enumerate(index) if cut > 1]
    if axis or other_cuts > 1 or split not in ([0], [0, 1], [1]):
        raise ShardError(
            f"if a table with cuts {param} is split along axis {axis}, only the first two dims of the indices may "
            f"be split, and no other dim of the table, but the indices have cuts {index}"
        )
    if math.prod(index) * param[0] != devices:
        raise ShardError(
            f"the cuts of indices and table must use all {many(devices, 'device')}, got {index} and {param}, "
            f"which use {math.prod(index) * param[0]}"
        )
    return BATCH_AND_AXIS if split == [0] else BATCH_AXIS_SP


def gather(
    shapes: Sequence[Shape],
    in_strategy: Sequence[Any] | None,
    out: Any,
    devices: Devices,
    repeat: str | None,
    attrs: Mapping[str, Any],
) -> Sharded:
    """Derive how MindSpore shards a Gather of a table (operand 0) by indices (operand 1).

    The result has the layouts of operands and results, and the collectives. The lookup axis is the dim of the table
    whose entries the indices select. `choose_mode` says whether this axis is whole or split.

    Args:
        shapes: global shapes of table and indices.
        in_strategy: cuts of both; None splits dim 0 of the indices over all devices.
        out: cuts of the result, for axis 0 only; None for MindSpore's choice, see `_reduce_result`.
        devices: number or list of devices; None for the product of the cuts, or 1 without a strategy.
        repeat: side of the device matrix for the axis along which devices do equal work; None for the default of the
            mode: right if the lookup axis is whole, else left.
        attrs: the attribute ``axis`` (default 0).

    Raises:
        ShardError: If MindSpore refuses the strategy; see `choose_mode` and `_reduce_result`.
        RuleError: If the cuts do not divide the shapes.
    """
    if len(shapes) != 2:
        raise ShardError(
            f"Gather: operands must be a table and indices, got {many(len(shapes), 'shape')}: {tuple(shapes)}"
        )
    table, ids = shapes
    axis = int(attrs.get("axis", 0))
    if not -len(table) <= axis < len(table):
        raise ShardError(
            f"Gather: axis must be in -{len(table)}..{len(table) - 1} for a table of {many(len(table), 'dim')}, got "
            f"{axis}"
        )
    axis %= len(table)
    bound = ops.gather.op.bind(shapes, {"dim": axis})
    if in_strategy is None:
        ranks = device_ranks(devices, 1)
        cuts: Sequence[Any] = ((1,) * len(table), _cut_first_dim(ids, len(ranks)))
    else:
        ranks = device_ranks(devices, math.prod(math.prod(entry) for entry in in_strategy))
        cuts = tuple(in_strategy)
    check_cuts(cuts, shapes, len(ranks))
    param, index = tuple(cuts[0]), tuple(cuts[1])
    mode = choose_mode(axis, param, index, len(ranks))
    if mode == NORMAL:
        derivation = _derive_whole_axis(bound, (param, index), ranks, repeat or "right")
    else:
        derivation = _derive_split_axis(bound, (param, index), ranks, mode, repeat)
    return _reduce_result(derivation, (param, index), axis, out)


def _derive_whole_axis(
    bound: BoundRule, cuts: tuple[Cuts, Cuts], ranks: tuple[int, ...], repeat: str
) -> Sharded:
    """Derive the sharding of a Gather whose lookup axis is whole: all other dims may be split."""
    strategy = strategy_from_factors(bound, factor_cuts(bound, cuts), ranks, repeat=repeat)
    times = len(ranks) // (math.prod(cuts[0]) * math.prod(cuts[1]))
    return derive_sharding("Gather", bound, strategy, mode=NORMAL, repeated_calc=times, repeated_side=repeat)


def _derive_split_axis(
    bound: BoundRule, cuts: tuple[Cuts, Cuts], ranks: tuple[int, ...], mode: str, repeat: str | None
) -> Sharded:
    """Derive the sharding of a Gather whose lookup axis is split.

    The device matrix has only the dims that the mode states:

    - ``AXIS_0``, ``AXIS_1``: the cuts of the table;
    - ``BATCH_AND_AXIS``: the cuts of dim 0 of the indices and of the lookup axis;
    - ``BATCH_AXIS_SP``: the cuts of dims 0 and 1 of the indices and of the lookup axis.

    Args:
        bound: rule of the Gather for given shapes: it names the factor (shared index) of each dim.
        cuts: cuts of table and indices.
        ranks: the devices.
        mode: ``AXIS_0``, ``AXIS_1``, ``BATCH_AND_AXIS`` or ``BATCH_AXIS_SP``; see `choose_mode`.
        repeat: side of the device matrix for the axis along which devices do equal work; None is ``"left"``.

    Raises:
        ShardError: If the cuts do not divide the devices, or need repeated calculation that ``mode`` does not support:
            only ``AXIS_0`` does, if no other dim of the table is split.
    """
    param, index = cuts
    used = math.prod(param) * math.prod(index)
    if len(ranks) % used:
        raise ShardError(
            f"the cuts {param} and {index} make {many(used, 'block')}; their number must divide the "
            f"{many(len(ranks), 'device')}"
        )
    if used != len(ranks) and (mode != AXIS_0 or (len(param) > 1 and param[1] != 1)):
        raise ShardError(
            f"cuts {param} along a split axis must use all {many(len(ranks), 'device')}, because repeated "
            f"calculation is not supported, but they use {used}"
        )
    if mode in (AXIS_0, AXIS_1):
        sizes, factors = param, [dim[0] if dim else "" for dim in bound.inputs[0]]
    else:
        lead = 1 if mode == BATCH_AND_AXIS else 2
        sizes = (*index[:lead], param[0])
        factors = [*(dim[0] if dim else "" for dim in bound.inputs[1][:lead]), LOOKED_UP]
    side = repeat or "left"
    splits = {factor: f"dim{d}" for d, factor in enumerate(factors) if factor}
    strategy = Strategy.of(device_mesh(sizes, ranks, side), splits)
    bound.check(strategy)
    times = len(ranks) // used
    return derive_sharding("Gather", bound, strategy, mode=mode, repeated_calc=times, repeated_side=side)


def _reduce_result(derivation: Sharded, cuts: tuple[Cuts, Cuts], axis: int, out: Any) -> Sharded:
    """Return the sharding with its pending result reduced, and scattered along dim 0 if possible.

    - No reduction is pending: nothing is communicated.
    - Dim 0 of the result can be split evenly, and the mode is not ``BATCH_AXIS_SP``: the result is reduced and
      scattered along dim 0 (ReduceScatter).
    - Otherwise every device gets the whole sum (AllReduce).

    ``out`` may ask for one of the last two.

    Args:
        derivation: the sharding with a pending result.
        cuts: cuts of table and indices.
        axis: lookup axis.
        out: cuts of the result, which decide whether it is scattered; None for MindSpore's choice.

    Raises:
        ShardError: If ``out`` is not supported, or if the result cannot be scattered in mode ``AXIS_1``.
        LayoutError: If the result is split unevenly.
    """
    computed, shape = derivation.computed[0], derivation.output_shapes[0]
    complete, scattered = computed.reduced, scatter_first_dim(computed)
    axes = real_partial_axes(computed)
    divides = bool(axes) and shape[0] % derivation.mesh.axis_size(*scattered.dims[0]) == 0
    if derivation.mode == AXIS_1 and not divides:
        raise ShardError(
            "Gather: dim 0 of the result must be a multiple of the devices that scatter it, but the result has shape "
            f"{shape} and the table cuts {cuts[0]}"
        )
    wanted = scattered if divides and derivation.mode != BATCH_AXIS_SP else complete
    if out is not None:
        wanted = _choose_result((complete, scattered if divides else None), axis, out)
    check_even(wanted, shape, "the result")
    matrix = (1, derivation.mesh.size) if derivation.mode == AXIS_1 else None
    derivation = replace(derivation, outputs=(wanted,), forward=tuple(forward_collectives(computed, wanted)))
    return replace(derivation, output_shape_matrix=matrix)


def _choose_result(choices: tuple[Layout, Layout | None], axis: int, out: Any) -> Layout:
    """Return the layout of a Gather's result that an out_strategy asks for.

    Args:
        choices: the layout after an AllReduce, and after a ReduceScatter; the second one is None if the result cannot
            be scattered.
        axis: lookup axis.
        out: the wanted cuts, or a tuple whose first element they are.

    Raises:
        ShardError: If no choice has these cuts, or ``axis`` is not 0.
    """
    entry = tuple(out[0]) if out and not isinstance(out[0], int) else tuple(out)
    if axis != 0:
        raise ShardError(f"Gather: out_strategy may be given for axis 0 only, got {entry} for axis {axis}")
    for layout in choices:
        if layout is not None and layout.cuts == entry:
            return layout
    cuts_of_choices = [str(layout.cuts) for layout in choices if layout is not None]
    raise ShardError(f"out_strategy must be {' or '.join(cuts_of_choices)}, got {entry}")
