"""Value `Sharded`: all that follows from an operator's strategy; and other forms of layouts, checks and collectives.

Semantics: ``ops_info/operator_info.cc`` (CheckStrategyByVector, forward communication), ``matmul_info.cc`` and
``gather_info.cc`` (out_strategy), ``tensor_layout/tensor_layout.cc`` (RemoveElementEqualToOneInDeviceArrangement,
InitFromExtendVector, GenerateOptShardSliceShape) and ``parallel/_tensor.py``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from spmdsim.core import BoundRule, Layout, Mesh, Rule, Strategy
from spmdsim.core.operator import Op
from spmdsim.dialects.imitations.mindspore.map_layouts import Shape, expand_tuples, from_right
from spmdsim.dialects.mindspore.layout import (
    MindSporeLayout,
    check_even,
    device_mesh,
    from_tensor_map,
    micro_shards,
    real_axes,
)
from spmdsim.dialects.mindspore.table import Params, ShardError
from spmdsim.errors import LayoutError, RuleError, SpmdError, UsageTypeError, many

Groups = tuple[tuple[int, ...], ...]


def without_ones(layout: Layout) -> MindSporeLayout:
    """Return the layout on a device matrix without axes of size 1; the tensor map is renumbered.

    Pending reductions are dropped.

    Args:
        layout: the layout.

    >>> reduced = without_ones(from_tensor_map((1, 16, 1), (2, 1)))
    >>> reduced.mesh.shape, reduced.tensor_map
    ((16,), (-1, 0))
    """
    axes = [axis for axis, size in zip(layout.mesh.axes, layout.mesh.shape) if size > 1]
    shape = [layout.mesh.axis_size(axis) for axis in axes]
    numbers = {axis: len(axes) - 1 - i for i, axis in enumerate(axes)}
    entries = [tuple(numbers[axis] for axis in entry if axis in numbers) for entry in layout.dims]
    return from_tensor_map(shape, _map_entries(entries), layout.mesh.rank_list, axes)


def without_tuples(layout: Layout, shape: Sequence[int]) -> tuple[MindSporeLayout, tuple[int, ...]]:
    """Return the layout and the shape of a tensor reshaped so that at most one axis splits each dim.

    A dim with several axes becomes several dims: one per axis but the last, with the axis's size, and one for the
    remaining size.

    >>> expanded, shape = without_tuples(from_tensor_map((4, 2, 2), ((2, 1), 0)), (8, 8))
    >>> expanded.tensor_map, shape
    ((2, 1, 0), (4, 2, 8))
    """
    check_even(layout, shape)
    mesh = layout.mesh
    matrix, entries, sizes = expand_tuples(mesh.shape, from_right(layout), tuple(shape))
    return from_tensor_map(matrix, entries, mesh.rank_list, mesh.axes), sizes


def optimizer_shard(layout: Layout, shape: Sequence[int]) -> Layout:
    """Return a parameter's layout when devices with equal slices split them further along dim 0.

    Dim 0 is split first as in the layout, then along all axes that do not split the parameter (virtual axes
    excepted). In the example, 8 x 4 devices split 1024 columns in 4; the 8 devices with equal slices get 64 of
    512 rows each.

    Args:
        layout: layout of the parameter.
        shape: its global shape.

    Raises:
        LayoutError: If the parameter is a scalar, no slices are equal, or dim 0 is not split evenly.

    >>> optimizer_shard(from_tensor_map((8, 4), (-1, 0)), (512, 1024)).local_shape((512, 1024), 0)
    (64, 256)
    """
    if not layout.ndim:
        raise LayoutError(
            "optimizer_shard: the parameter must have a dim 0 that devices can split further, got a scalar"
        )
    replicated = real_axes(layout.replicated_axes)
    if layout.mesh.axis_size(*replicated) == 1:
        raise LayoutError(
            f"optimizer_shard: some devices must own equal slices, got {layout}, in which all slices differ"
        )
    axes = (*layout.dims[0], *replicated)
    shared = Layout(layout.mesh, (axes, *layout.dims[1:]))
    check_even(shared, shape, "the parameter")
    return shared


def _map_entries(entries: Sequence[tuple[int, ...]]) -> list[int | tuple[int, ...]]:
    """Return tensor map entries: -1 for no axis, a number for one axis, a tuple for several."""
    return [-1 if not entry else entry[0] if len(entry) == 1 else entry for entry in entries]


@contextmanager
def name_operator(operator: str) -> Iterator[None]:
    """Convert errors inside the ``with`` block to `ShardError` with the operator's name.

    * Errors of this package become a ShardError with the name in its ``facts``.
    * A ShardError stays; the name is added to its ``facts`` if they have none.
    * UsageTypeError, and errors of Python, stay as they are.

    Args:
        operator: MindSpore's name.
    """
    try:
        yield
    except UsageTypeError:
        raise
    except SpmdError as error:
        refusal = error if isinstance(error, ShardError) else ShardError(error.message, **error.facts)
        refusal.facts.setdefault("operator", operator)
        raise refusal from None


def bind(op: Op, shapes: Sequence[Shape], params: Params) -> BoundRule:
    """Return an operator's rule, bound to the global shapes of its operands.

    Args:
        op: spmdsim's operator, not MindSpore's.
        shapes: global shapes of the operands.
        params: its parameters by name.

    Raises:
        ShardError: If a rule that is a function does not take this number of operands, or these parameters.
        RuleError: If the shapes do not fit the rule.
    """
    if not isinstance(op.rule, Rule):
        try:
            inspect.signature(op.rule).bind(*shapes, **params)
        except TypeError:
            raise ShardError(
                f"{op.name}: the number of operands or their attributes do not fit, got "
                f"{many(len(shapes), 'operand')} of shapes {[*shapes]}"
            ) from None
    return op.bind(shapes, params)


def check_devices(layouts: Sequence[Layout], devices: int | Sequence[int] | None) -> None:
    """Raise LayoutError if layouts have another number of devices than expected.

    Virtual axes, which divide the work of one device, do not count.

    Args:
        layouts: the layouts.
        devices: number or list of devices, of which only the length counts; None: nothing is checked.
    """
    if devices is None:
        return
    count = devices if isinstance(devices, int) else len(devices)
    for layout in layouts:
        needed = layout.mesh.size // micro_shards(layout.mesh)
        if count != needed:
            raise LayoutError(
                f"the layouts must have {many(count, 'device')}, got {needed}; give them a mesh of that size"
            )


def check_cuts(cuts: Sequence[Sequence[int]], shapes: Sequence[Sequence[int]], devices: int) -> None:
    """Raise an error for cuts (numbers of blocks) that no operator supports for these shapes.

    Whether the cuts fit each other, or all devices are used, is not checked.

    Args:
        cuts: cuts per operand and dim.
        shapes: global shapes of the operands.
        devices: number of devices.

    Raises:
        RuleError: If the number of operands or dims is wrong, or a cut is not positive, does not divide its dim, or is
            no power of two although ``devices`` is one.
        UsageTypeError: If a cut is no integer.

    >>> check_cuts(((2, 4), (4, 1)), ((32, 784), (784, 512)), 8)
    >>> check_cuts(((3, 1),), ((32, 784),), 8)
    Traceback (most recent call last):
    ...
    spmdsim.errors.RuleError: dim 0 of operand 0 has size 32, which cannot be split evenly into 3 pieces
    """
    if len(cuts) != len(shapes):
        text = tuple(tuple(entry) for entry in cuts)
        raise RuleError(
            f"strategy must have one entry for each of {many(len(shapes), 'operand')}, got {text}"
        )
    for i, (entry, shape) in enumerate(zip(cuts, shapes)):
        if len(entry) != len(shape):
            raise RuleError(
                f"strategy must have one cut per dim, but operand {i} has shape {tuple(shape)} of "
                f"{many(len(shape), 'dim')} and its cuts are {tuple(entry)}"
            )
        for dim, (cut, size) in enumerate(zip(entry, shape)):
            _check_cut(cut, size, dim, i, devices)


def _check_cut(cut: int, size: int, dim: int, operand: int, devices: int) -> None:
    """Raise an error if a dim cannot be cut into this number of blocks; see `check_cuts`.

    Args:
        cut: the number of blocks; it must divide ``size``.
        size: the size of the dim.
        dim: number of the dim, for the error.
        operand: number of the operand, for the error.
        devices: the number of devices; if it is a power of two, the cut must be one, too.

    Raises:
        UsageTypeError: If the cut is no integer; a bool is none.
        RuleError: If it is not positive, does not divide the size, or is no power of two where it must be one.
    """
    where = f"dim {dim} of operand {operand}"
    if not isinstance(cut, int) or isinstance(cut, bool):
        raise UsageTypeError(f"a cut must be an integer, but {where} has {cut!r}")
    if cut <= 0:
        raise RuleError(f"a cut must be positive, but {where} is cut into {cut}")
    if size % cut:
        raise RuleError(f"{where} has size {size}, which cannot be split evenly into {many(cut, 'piece')}")
    if math.log2(devices).is_integer() and cut & (cut - 1):
        raise RuleError(f"on {devices} devices a cut must be a power of two, but {where} is cut into {cut}")


def check_operands(layouts: Sequence[Layout], shapes: Sequence[Shape]) -> None:
    """Raise an error if a layout does not fit its operand's shape or splits it unevenly.

    Args:
        layouts: the layout of each operand.
        shapes: the global shape of each operand.
    """
    for i, (layout, shape) in enumerate(zip(layouts, shapes)):
        layout.check_shape(shape)
        check_even(layout, shape, f"operand {i}")


@dataclass(frozen=True)
class Forward:
    """Collective that follows the local operator, with the groups that run it.

    Attributes:
        name: AllReduce, ReduceScatter or AllGather.
        op: name of the reduction; empty for AllGather.
        axes: axes of the device matrix.
        groups: ranks of each group.
        divisor: number by which a sum is divided to get a mean.
    """

    name: str
    op: str
    axes: tuple[str, ...]
    groups: Groups
    divisor: int = 1

    def group(self, rank: int) -> tuple[int, ...]:
        """Return the group of a rank."""
        return next(group for group in self.groups if rank in group)

    def __str__(self) -> str:
        return f"{self.name}:{self.op}"


@dataclass(frozen=True)
class Sharded:
    """Operator with its strategy and everything derived from it.

    With a virtual axis (``interleaved_parallel``), layouts and slices are those of micro-shards, on the mesh of
    virtual ranks. Device matrices and groups are those of devices.

    Attributes:
        operator: MindSpore's name.
        strategy: the strategy; None for data sources.
        mesh: device matrix, with the size of a virtual axis.
        input_shapes: global shapes of the operands.
        inputs: layouts of the operands.
        output_shapes: global shapes of the results.
        computed: layouts of the results after the local operator, with pending reductions.
        outputs: layouts of the results after the collective.
        forward: collectives after the local operator.
        repeated_calc: number of devices that do equal work.
        repeated_side: position of their axis in the device matrix, ``"left"`` or ``"right"``.
        loss_output: index of the result that a loss is computed from.
        bound: rule with sizes (None for data sources).
        mode: mode of a Gather or of an n-dimensional product, else empty.
        output_shape_matrix: device matrix of the first result, if it differs.
        by_cuts: True if the strategy was written in cuts; the device matrix of the result may change then.
    """

    operator: str
    strategy: Strategy | None
    mesh: Mesh
    input_shapes: tuple[Shape, ...]
    inputs: tuple[Layout, ...]
    output_shapes: tuple[Shape, ...]
    computed: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    forward: tuple[Forward, ...] = ()
    repeated_calc: int = 1
    repeated_side: str = "right"
    loss_output: int = 0
    bound: BoundRule | None = None
    mode: str = ""
    output_shape_matrix: tuple[int, ...] | None = None
    by_cuts: bool = True

    @property
    def dev_matrix(self) -> tuple[int, ...]:
        """Sizes of the axes, repeated calculation included; a virtual axis has size 1."""
        return self.device_mesh.shape

    @property
    def device_mesh(self) -> Mesh:
        """Mesh of real devices: :attr:`mesh` without a virtual axis."""
        return device_mesh(self.mesh)

    @property
    def micro_shards(self) -> int:
        """Number of micro-shards of each split tensor on a device: 1 without a virtual axis."""
        return micro_shards(self.mesh)

    @property
    def input_maps(self) -> tuple[Any, ...]:
        """Tensor maps of the operands: axes counted from the right, -1 for a dim that is not split."""
        return tuple(layout.to_dict()["tensor_map"] for layout in self.inputs)

    @property
    def output_maps(self) -> tuple[Any, ...]:
        """Tensor maps of the results, the first on :attr:`output_dev_matrix`."""
        others = tuple(layout.to_dict()["tensor_map"] for layout in self.outputs[1:])
        return (self._output.to_dict()["tensor_map"], *others)

    @property
    def output_dev_matrix(self) -> tuple[int, ...]:
        """Device matrix of the first result; after a ReduceScatter, the axes of dim 0 are merged into one."""
        return device_mesh(self._output.mesh).shape

    @cached_property
    def _output(self) -> Layout:
        """Layout of the first result, with merged axes if the strategy was written in cuts."""
        return merge_axes(self.outputs[0], self.output_shape_matrix) if self.by_cuts else self.outputs[0]

    @property
    def input_slices(self) -> tuple[Shape, ...]:
        """Shape of a device's shard of each operand."""
        return self._slices(self.inputs, self.input_shapes)

    @property
    def output_slices(self) -> tuple[Shape, ...]:
        """Shape of a device's shard of each result."""
        return self._slices(self.outputs, self.output_shapes)

    def _slices(self, layouts: Sequence[Layout], shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        """Return the shard shape of the mesh's first rank for each layout."""
        first = self.mesh.rank_at(0)
        return tuple(layout.local_shape(shape, first) for layout, shape in zip(layouts, shapes))

    def with_whole(self, shapes: Sequence[Shape]) -> Sharded:
        """Return a copy with further operands of these shapes, replicated on every device."""
        replicated = tuple(Layout.replicated(self.mesh, len(shape)) for shape in shapes)
        return replace(self, input_shapes=(*self.input_shapes, *shapes), inputs=(*self.inputs, *replicated))

    # -- the gradient's side -------------------------------------------------------------------------

    def mirror_groups(self, operand: int) -> Groups:
        """Return the groups that all_reduce the gradient of an operand, if it is a parameter.

        Empty if no devices have equal slices.
        """
        replicated = real_axes(self.inputs[operand].replicated_axes)
        axes = [axis for axis in replicated if self.mesh.axis_size(axis) > 1]
        return self.device_mesh.groups(*axes) if axes else ()

    @property
    def mirrored(self) -> tuple[int, ...]:
        """Indices of the operands that get a mirror operator if they are parameters."""
        return tuple(i for i in range(len(self.inputs)) if self.mirror_groups(i))

    @property
    def virtual_div(self) -> int:
        """Divisor of ``_VirtualDiv`` for a loss's gradient: the number of devices with equal loss values."""
        layout = self.outputs[self.loss_output]
        return self.mesh.axis_size(*real_axes(layout.replicated_axes))

    def optimizer_shard(self, operand: int) -> Layout:
        """Return the layout of a parameter whose equal slices are split further for the optimizer."""
        return optimizer_shard(self.inputs[operand], self.input_shapes[operand])

    def gradient_layout(self, operand: int) -> Layout | None:
        """Return the layout of an operand's local gradient before any collective; None without a rule."""
        if self.bound is None or self.strategy is None:
            return None
        return self.bound.gradient_layout(self.strategy, operand)


def derive_sharding(operator: str, bound: BoundRule, strategy: Strategy, **more: Any) -> Sharded:
    """Return the sharding that an operator's rule derives from a strategy.

    A sharding has the layouts of operands and results, and the collectives.

    Results have no pending reductions, and no collectives are listed, unless ``more`` states them.

    Args:
        operator: MindSpore's name.
        bound: rule of the operator for given shapes: it names the factor (shared index) of each dim.
        strategy: the mesh axes that split each factor of the rule.
        more: fields of `Sharded` that override or complete the derived ones.
    """
    computed = bound.output_layouts(strategy)
    facts: dict[str, Any] = {
        "inputs": bound.input_layouts(strategy), "output_shapes": bound.output_shapes, "computed": computed,
        "outputs": tuple(layout.reduced for layout in computed), **more,
    }  # fmt: skip
    return Sharded(operator, strategy, strategy.mesh, bound.shapes, bound=bound, **facts)


def shard_without_rule(operator: str, mesh: Mesh, shapes: Sequence[Shape], inputs: Sequence[Layout], results: Sequence[Shape],
            outputs: Sequence[Layout], **more: Any) -> Sharded:  # fmt: skip
    """Return the sharding of an operator without a rule, from the layouts of its operands and results.

    Args:
        operator: MindSpore's name.
        mesh: device matrix.
        shapes: global shapes of the operands.
        inputs: layouts of the operands.
        results: global shapes of the results.
        outputs: layouts of the results.
        more: further fields of `Sharded`.
    """
    lists = tuple(shapes), tuple(inputs), tuple(results), tuple(outputs), tuple(outputs)
    return Sharded(operator, None, mesh, *lists, **more)


def merge_axes(layout: Layout, matrix: tuple[int, ...] | None = None) -> MindSporeLayout:
    """Return the layout with the axes that split one dim together merged into one axis.

    Only axes that are adjacent in the device matrix, in this order, are merged; the new axis has the name of
    the first. In the example, the axes 2 and 4 split dim 0 together and become one axis of 8. Pending
    reductions are dropped.

    Args:
        layout: the layout.
        matrix: device matrix of the result, which may have additional leading axes of size 1; None for none.

    >>> merge_axes(from_tensor_map((2, 4), ((1, 0), -1))).mesh.shape
    (8,)
    """
    mesh, axes = layout.mesh, list(layout.mesh.axes)
    blocks = [[axis] for axis in axes]
    for entry in layout.dims:
        positions = [axes.index(axis) for axis in entry]
        if len(entry) > 1 and positions == list(range(positions[0], positions[0] + len(entry))):
            blocks = [block for block in blocks if block[0] not in entry]
            blocks.append(list(entry))
    blocks.sort(key=lambda block: axes.index(block[0]))
    shape = tuple(mesh.axis_size(*block) for block in blocks)
    names = [block[0] for block in blocks]
    if matrix is not None and matrix != shape:
        shape, names = matrix, [f"one{i}" for i in range(len(matrix) - len(shape))] + names
    number = {name: len(names) - 1 - i for i, name in enumerate(names)}
    numbers = [tuple(number[axis] for axis in entry if axis in number) for entry in layout.dims]
    return from_tensor_map(shape, _map_entries(numbers), mesh.rank_list, names)


def forward_collectives(computed: Layout, wanted: Layout, mean: bool = False) -> list[Forward]:
    """Return a list with the collective after the local operator; [] if no reduction is pending.

    The collective is a ReduceScatter if ``wanted`` splits a dim along one of the axes of the pending reduction, else an
    AllReduce. Reductions along a virtual axis are local to the device and do not count.

    Args:
        computed: layout of the result before the collective.
        wanted: layout after it.
        mean: True to divide the sum by the number of addends.
    """
    axes = real_partial_axes(computed)
    if not axes:
        return []
    op = dict(computed.partial)[axes[0]]
    name = "ReduceScatter" if set(axes) & set(wanted.split_axes) else "AllReduce"
    divisor = computed.mesh.axis_size(*computed.partial_axes) if mean else 1
    return [Forward(name, op, axes, device_mesh(computed.mesh).groups(*axes), divisor)]


def real_partial_axes(computed: Layout) -> tuple[str, ...]:
    """Return the axes, of size over 1, along which devices still have to reduce."""
    return tuple(axis for axis in real_axes(computed.partial_axes) if computed.mesh.axis_size(axis) > 1)


def choose_result_layout(kind: str, computed: Layout, shape: Shape, out: Any) -> Layout:
    """Return the layout that an out_strategy asks for, one of those that the operator can produce.

    An operator can produce its result with all reductions complete. A product can also scatter a pending sum along dim
    0.

    Args:
        kind: ``"no"`` for an operator that accepts no out_strategy, ``"product"`` for a product; any other text for an
            operator that accepts only the result with complete reductions.
        computed: layout of the result with pending reductions.
        shape: global shape of the result.
        out: cuts or a layout, or a tuple whose first element it is.

    Raises:
        ShardError: If the operator accepts none, the result cannot have this layout, or cuts are given for a product
            with other than 2 dims.
    """
    if kind == "no":
        raise ShardError(
            f"out_strategy must be None for this operator, got {out}; its result has the layout that follows from the "
            "operands"
        )
    entry = out[0] if isinstance(out, (tuple, list)) and out and not isinstance(out[0], int) else out
    choices = [computed.reduced]
    if kind == "product" and real_partial_axes(computed):
        choices.append(scatter_first_dim(computed))
    if isinstance(entry, Layout):
        wanted = Layout(entry.mesh, entry.dims).canonical
        fitting = [choice for choice in choices if choice.canonical == wanted]
    else:
        if kind == "product" and len(shape) != 2:
            raise ShardError(
                f"out_strategy with cuts may be given for 2-D products only, but the result has shape {shape}; give a "
                "layout, or None"
            )
        fitting = [choice for choice in choices if choice.parts == tuple(entry)]
    if not fitting:
        raise ShardError(
            f"out_strategy must be {' or '.join(map(str, choices))} (cuts "
            f"{', '.join(str(choice.parts) for choice in choices)}), got {entry}"
        )
    return fitting[0]


def scatter_first_dim(computed: Layout) -> Layout:
    """Return the layout with the pending axes as minor axes of dim 0."""
    return Layout(computed.mesh, ((*computed.dims[0], *real_partial_axes(computed)), *computed.dims[1:]))
