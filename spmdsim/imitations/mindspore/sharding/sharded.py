"""What follows from an operator's strategy, as a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from spmdsim.core import BoundRule, Layout, Mesh, Strategy
from spmdsim.dialects.mindspore.layout import (
    MindSporeLayout,
    device_mesh,
    from_tensor_map,
    micro_shards,
    real_axes,
)
from spmdsim.imitations.mindspore.sharding.layout_forms import optimizer_shard

Shape = tuple[int, ...]
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Forward:
    """The collective that follows the local operator.

    Args:
        name: ``AllReduce`` or ``ReduceScatter``.
        op: the reduction.
        axes: the axes of the device matrix over which it goes.
        groups: the groups that run it.
        divisor: what the sum is divided by afterwards (a mean), else 1.
    """

    name: str
    op: str
    axes: tuple[str, ...]
    groups: Groups
    divisor: int = 1

    def group(self, rank: int) -> tuple[int, ...]:
        """The group of a rank."""
        return next(group for group in self.groups if rank in group)

    def __str__(self) -> str:
        return f"{self.name}:{self.op}"


@dataclass(frozen=True)
class Sharded:
    """An operator with its strategy, derived.

    With a virtual axis (``interleaved_parallel``) the layouts and slices are those of micro-shards, on the mesh of
    virtual ranks; device matrices and groups are those of devices.

    Args:
        operator: MindSpore's name.
        strategy: which factor each axis of the device matrix splits.
        mesh: the device matrix, a virtual axis with its size included.
        input_shapes: global shapes of the operands.
        inputs: their layouts.
        output_shapes: global shapes of the results.
        computed: the results' layouts as the local operator leaves them, pending reductions included.
        outputs: the results' layouts after the collective.
        forward: the collective, if there is one.
        repeated_calc: how often the same work is done.
        repeated_side: where its axis stands in the device matrix.
        loss_output: the result that a loss is made of.
        bound: the rule with sizes (None for sources of data).
        mode: a Gather's mode, else empty.
        output_shape_matrix: the device matrix of the first result, if it is another one.
        by_cuts: whether the strategy was written in cuts, so that the device matrix may be changed.
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
        """The mesh of real devices: :attr:`mesh`, unless it has a virtual axis."""
        return device_mesh(self.mesh)

    @property
    def micro_shards(self) -> int:
        """How many micro-shards of each split tensor a device holds: 1 without a virtual axis."""
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
        """The device matrix of the first result: after a ReduceScatter, the axes of dim 0 are one axis there.

        Layouts keep the device matrix they were written on.
        """
        return device_mesh(self._output.mesh).shape

    @cached_property
    def _output(self) -> Layout:
        return merged(self.outputs[0], self.output_shape_matrix) if self.by_cuts else self.outputs[0]

    @property
    def input_slices(self) -> tuple[Shape, ...]:
        """Shape of a device's part of each operand."""
        first = self.mesh.rank_at(0)
        return tuple(x.local_shape(shape, first) for x, shape in zip(self.inputs, self.input_shapes))

    @property
    def output_slices(self) -> tuple[Shape, ...]:
        """Shape of a device's part of each result."""
        first = self.mesh.rank_at(0)
        return tuple(x.local_shape(shape, first) for x, shape in zip(self.outputs, self.output_shapes))

    def with_whole(self, shapes: Sequence[Shape]) -> Sharded:
        """The same with further operands, which every device holds whole."""
        whole = tuple(Layout.replicated(self.mesh, len(shape)) for shape in shapes)
        return replace(self, input_shapes=(*self.input_shapes, *shapes), inputs=(*self.inputs, *whole))

    # -- the gradient's side -------------------------------------------------------------------------

    def mirror_groups(self, operand: int) -> Groups:
        """The groups that all_reduce the gradient of an operand, if it is a parameter: equal slices.

        No group at all where every device has a slice of its own.
        """
        replicated = real_axes(self.inputs[operand].replicated_axes)
        axes = [axis for axis in replicated if self.mesh.axis_size(axis) > 1]
        return self.device_mesh.groups(*axes) if axes else ()

    @property
    def mirrored(self) -> tuple[int, ...]:
        """The operands that get a mirror operator if they are parameters."""
        return tuple(i for i in range(len(self.inputs)) if self.mirror_groups(i))

    @property
    def virtual_div(self) -> int:
        """What ``_VirtualDiv`` divides the gradient of a loss by: on how many devices the same loss stands."""
        layout = self.outputs[self.loss_output]
        return self.mesh.axis_size(*real_axes(layout.replicated_axes))

    def optimizer_shard(self, operand: int) -> Layout:
        """The layout of a parameter whose equal slices are shared out for the optimizer.

        Raises:
            ValueError: no two devices hold equal slices, or dim 0 does not divide.
        """
        return optimizer_shard(self.inputs[operand], self.input_shapes[operand])

    def gradient_layout(self, operand: int) -> Layout | None:
        """The layout in which the local gradient of an operand comes out, before any collective."""
        if self.bound is None or self.strategy is None:
            return None
        return self.bound.gradient_layout(self.strategy, operand)


def derived(operator: str, bound: BoundRule, strategy: Strategy, **more: Any) -> Sharded:
    """What an operator's rule makes of a strategy, every result reduced."""
    computed = bound.output_layouts(strategy)
    facts: dict[str, Any] = {
        "inputs": bound.input_layouts(strategy), "output_shapes": bound.output_shapes, "computed": computed,
        "outputs": tuple(layout.reduced for layout in computed), **more,
    }  # fmt: skip
    return Sharded(operator, strategy, strategy.mesh, bound.shapes, bound=bound, **facts)


def sourced(operator: str, mesh: Mesh, shapes: Sequence[Shape], inputs: Sequence[Layout], results: Sequence[Shape],
            outputs: Sequence[Layout], **more: Any) -> Sharded:  # fmt: skip
    """An operator without a rule: where its operands and results lie."""
    return Sharded(
        operator,
        None,
        mesh,
        tuple(shapes),
        tuple(inputs),
        tuple(results),
        tuple(outputs),
        tuple(outputs),
        **more,
    )


def merged(layout: Layout, matrix: tuple[int, ...] | None = None) -> MindSporeLayout:
    """The layout with the axes of each tuple put together, where they stand side by side in the device matrix.

    ``matrix`` asks for a device matrix with axes of size one beside those that are left.
    """
    mesh, axes = layout.mesh, list(layout.mesh.axes)
    blocks = [[axis] for axis in axes]
    for entry in layout.dims:
        at = [axes.index(axis) for axis in entry]
        if len(entry) > 1 and at == list(range(at[0], at[0] + len(at))):
            blocks = [b for b in blocks if b[0] not in entry]
            blocks.append(list(entry))
    blocks.sort(key=lambda block: axes.index(block[0]))
    shape = tuple(mesh.axis_size(*block) for block in blocks)
    names = [block[0] for block in blocks]
    if matrix is not None and matrix != shape:
        shape, names = matrix, _named(shape, names, matrix)
    number = {name: len(names) - 1 - i for i, name in enumerate(names)}
    numbers = [tuple(number[axis] for axis in entry if axis in number) for entry in layout.dims]
    written = [-1 if not n else n[0] if len(n) == 1 else n for n in numbers]
    return from_tensor_map(shape, written, mesh.rank_list, names)


def _named(shape: tuple[int, ...], names: list[str], matrix: tuple[int, ...]) -> list[str]:
    """Names for a matrix that is ``shape`` with leading ones."""
    extra = len(matrix) - len(shape)
    return [f"one{i}" for i in range(extra)] + names
