"""MindSpore's ``Layout``: device matrix, alias names, tensor map, rank list, and virtual axes of micro-shards.

Semantics: ``mindspore/python/mindspore/parallel/shard.py`` (2.7), and ``parallel/_tensor.py`` for the slice of a
rank. A call of a :class:`Layout` returns this package's own layout, with MindSpore's ``to_dict``.

A device matrix whose last axis is ``interleaved_parallel`` describes *virtual ranks*: virtual rank ``device * n + i``
is micro-shard ``i`` of a device, where ``n`` is the size of the axis. Operators work on one micro-shard after the
other, so collectives go over devices only, and a sum along the virtual axis is local to the device
(``tensor_layout/tensor_layout.cc``, ``ops_info/operator_info.cc``: UpdateOutputTensorInfoForInterleaved).

>>> mesh = Mesh((2, 2, 3), ("dp", "sp", VIRTUAL))
>>> device_mesh(mesh).shape, device_mesh(mesh).groups("dp"), micro_shards(mesh)
((2, 2, 1), ((0, 2), (1, 3)), 3)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from spmdsim.core import Bounds, Mesh, Placement, Shard
from spmdsim.core import Layout as CoreLayout
from spmdsim.dialects.layouts import first_uneven
from spmdsim.dialects.missing import DialectObject, refuse
from spmdsim.dialects.table import flat, map_nested
from spmdsim.errors import LayoutError, UsageTypeError, many, unknown

#: Alias of a virtual last axis, whose size is the number of micro-shards per device.
VIRTUAL = "interleaved_parallel"
Entry = str | Sequence[str] | None


def micro_shards(mesh: Mesh) -> int:
    """Return the number of micro-shards per device: the size of the virtual axis, else 1."""
    return mesh.axis_size(VIRTUAL) if VIRTUAL in mesh.axes else 1


def real_axes(axes: Iterable[str]) -> tuple[str, ...]:
    """Return the axes without the virtual axis."""
    return tuple(axis for axis in axes if axis != VIRTUAL)


def device_mesh(mesh: Mesh) -> Mesh:
    """Return the mesh of real devices for a mesh whose last axis may be virtual.

    A device of a virtual axis of size n computes n shards one after the other, its micro-shards. Device d thus plays
    the ranks ``d * n`` to ``d * n + n - 1``. In the result the virtual axis has size 1. A mesh without virtual axis is
    returned itself.

    For example, the mesh (2, 2) with a virtual last axis becomes (2, 1): device 0 plays ranks 0 and 1, device 1 plays
    ranks 2 and 3.

    Raises:
        LayoutError: If the rank list does not have the ranks ``d * n`` to ``d * n + n - 1`` of each device next to
            each other and in this order.
    """
    times = micro_shards(mesh)
    if VIRTUAL not in mesh.axes:
        return mesh
    shape = (*mesh.shape[:-1], 1)
    if mesh.ranks is None:
        return Mesh(shape, mesh.axes)
    blocks = [mesh.ranks[at : at + times] for at in range(0, mesh.size, times)]
    for block in blocks:
        if block[0] % times or block != tuple(range(block[0], block[0] + times)):
            raise LayoutError(
                f"a device must play the virtual ranks device * {times} + i of i in 0..{times - 1}, next to each "
                f"other in rank_list, got {block} in {list(mesh.ranks)}"
            )
    return Mesh(shape, mesh.axes, [block[0] // times for block in blocks])


def device_layout(layout: CoreLayout) -> CoreLayout:
    """Return the layout of devices: the virtual axis splits nothing, and sums along it are complete."""
    if VIRTUAL not in layout.mesh.axes:
        return layout
    partial = [(axis, op) for axis, op in layout.partial if axis != VIRTUAL]
    return CoreLayout(device_mesh(layout.mesh), [real_axes(entry) for entry in layout.dims], partial)


def _devices(layout: MindSporeLayout | Layout) -> int:
    """Return the number of real devices."""
    return layout.mesh.size // micro_shards(layout.mesh)


class MindSporeLayout(CoreLayout):
    """Layout that keeps its tensor map as written; it equals a plain :class:`spmdsim.Layout`.

    A layout written as a single tuple of axes equals only layouts written the same way, since it accepts shapes that
    a plain layout refuses (:meth:`of`). ``to_dict`` returns the tensor map as written: ``-1`` inside a tuple stays.

    Args:
        mesh: the mesh.
        tensor_map: per dim an axis from the right, -1, or a tuple of them.
    """

    __slots__ = ()

    tensor_map: tuple[Any, ...]

    def __init__(self, mesh: Mesh, tensor_map: Iterable[int | tuple[int, ...]]) -> None:
        written = tuple(tensor_map)
        numbers = [(entry,) if isinstance(entry, int) else entry for entry in written]
        super().__init__(mesh, [[mesh.axes[~n] for n in entry if n != -1] for entry in numbers])
        self.__dict__["tensor_map"] = written

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return (MindSporeLayout, (self.mesh, self.tensor_map))

    @property
    def _open(self) -> bool:
        """True if the meaning of the map depends on the tensor's number of dims."""
        return self.ndim == 1 and isinstance(self.tensor_map[0], tuple) and len(self.tensor_map[0]) > 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CoreLayout):
            return NotImplemented
        theirs = other.tensor_map if isinstance(other, MindSporeLayout) and other._open else None
        return self.made_of == other.made_of and (self.tensor_map if self._open else None) == theirs

    __hash__ = CoreLayout.__hash__

    def of(self, ndim: int) -> MindSporeLayout:
        """Return the layout of a tensor with ``ndim`` dims.

        A map written as a single tuple has two meanings. If the tensor has as many dims as the tuple has entries, each
        entry is the axis of one dim. Otherwise the tuple has the axes that split one dim together. The layout
        tutorial's template uses the first form (``tensor_map = ("a", "b")``, then ``layout(tensor_map)``).

        >>> layout = Layout((2, 4), ("axis_0", "axis_1"))(("axis_0", "axis_1"))
        >>> layout.bounds((16,), rank=5), layout.bounds((2, 4), rank=5)
        (((10, 12),), ((1, 2), (1, 2)))
        """
        if not self._open or len(self.tensor_map[0]) != ndim:
            return self
        return MindSporeLayout(self.mesh, self.tensor_map[0])

    def bounds(self, shape: Sequence[int], rank: int) -> Bounds:
        """Return the bounds of a rank's shard per dim; see :meth:`of` for single tuples."""
        return super(MindSporeLayout, self.of(len(shape))).bounds(shape, rank)

    def check_shape(self, shape: Sequence[int]) -> None:
        """Raise an error if the shape does not fit; see :meth:`of` for single tuples."""
        super(MindSporeLayout, self.of(len(shape))).check_shape(shape)

    devices = property(_devices, doc="The number of real devices, without the virtual axis.")
    interleaved_parallel = property(
        lambda self: VIRTUAL in self.mesh.axes, doc="True if the last axis is virtual."
    )
    micro_shards = property(
        lambda self: micro_shards(self.mesh), doc="Number of micro-shards per device, else 1."
    )
    device_layout = property(device_layout, doc="Layout of real devices; micro-shards of one form one shard.")

    def virtual_ranks(self, device: int) -> tuple[int, ...]:
        """Return the ranks of the virtual mesh that a real device plays: ``device * n + i``."""
        return tuple(self.mesh.rank_at(device * self.micro_shards + i) for i in range(self.micro_shards))

    def micro_bounds(self, shape: Sequence[int], device: int) -> tuple[Bounds, ...]:
        """Return the bounds of each micro-shard of a real device."""
        return tuple(self.bounds(shape, rank) for rank in self.virtual_ranks(device))

    def to_dict(self) -> dict[str, object]:
        """Return the layout under MindSpore's five keys."""
        return {**super().to_dict(), "tensor_map": self.tensor_map}


class Layout(DialectObject):
    """``Layout(device_matrix, alias_name, rank_list=None)``, called with one entry per tensor dim.

    An entry is an alias, ``"None"``, or a tuple of aliases (which may contain ``"None"``) that split one dim
    together. An alias splits at most one dim of a tensor. **The first alias of a tuple is the major one**, as in
    MindSpore's code, its figures, and the number / adjust / compute procedure.

    Args:
        device_matrix: sizes of the axes (a tuple of positive integers).
        alias_name: one name per axis (a tuple). A last axis named ``interleaved_parallel`` is virtual: the
            devices are those of the axes before it, and its size is the number of micro-shards per device.
        rank_list: the device at each position, row-major, in any order; by default ``0 .. n-1``.
        tuple_order: ``"tuple"`` (default): the axes of a tuple split a dim in the order of the tuple. ``"mesh"``: they
            split it in the order of the device matrix, like the slice table printed in the operator-level parallel
            tutorial.
        name: another name of ``alias_name``, which the text of this tutorial uses; ``alias_name`` has precedence.

    Raises:
        UsageTypeError: If an argument is no tuple, list, int or text as required.
        LayoutError: If lengths, sizes, ranks or aliases do not fit; in a call, if an alias is unknown or repeated.

    >>> layout = Layout((2, 2, 2), ("dp", "sp", "mp"))
    >>> x = layout("mp", ("sp", "dp"))
    >>> x.to_dict()["tensor_map"], x.bounds((32, 784), rank=2)
    ((0, (1, 2)), ((0, 16), (392, 588)))
    >>> as_printed = Layout((2, 2, 2), ("dp", "sp", "mp"), tuple_order="mesh")
    >>> as_printed("mp", ("sp", "dp")).bounds((32, 784), rank=2)
    ((0, 16), (196, 392))
    """

    ORIGINAL = "mindspore.Layout"

    def __init__(
        self, device_matrix: tuple[int, ...], alias_name: tuple[str, ...] | None = None, rank_list: list[int] | None = None,
        *, tuple_order: str = "tuple", name: tuple[str, ...] | None = None,
    ) -> None:  # fmt: skip
        alias_name = name if alias_name is None else alias_name
        _check_axes(device_matrix, alias_name)
        if rank_list is not None:
            _check_ranks(rank_list, device_matrix)
        if tuple_order not in ("tuple", "mesh"):
            raise LayoutError(f"tuple_order must be 'tuple' or 'mesh', got {tuple_order!r}")
        self.mesh = Mesh(device_matrix, alias_name or (), rank_list)
        self.device_matrix, self.tuple_order = device_matrix, tuple_order
        self.alias_name: tuple[str, ...] = self.mesh.axes
        self.rank_list = list(self.mesh.rank_list) if rank_list is None else list(rank_list)

    def __call__(self, *tensor_map: Entry) -> MindSporeLayout:
        """Return the layout of a tensor with one entry per dim.

        Raises LayoutError if an alias is unknown or repeated.
        """
        only = tensor_map[0] if len(tensor_map) == 1 else None
        if isinstance(only, tuple | list) and any(isinstance(entry, tuple | list) for entry in only):
            tensor_map = tuple(only)  # nested entries can only be the map of a whole tensor
        names = [tuple("None" if name is None else name for name in flat([entry])) for entry in tensor_map]
        used = [name for name in flat(names) if name != "None"]
        for i, name in enumerate(used):
            if name not in self.alias_name:
                raise unknown(
                    f"alias {name!r} is not found in alias_name", name, self.alias_name, LayoutError
                )
            if name in used[:i]:
                once = f"alias {name!r} has been set more than once in {tensor_map}"
                raise LayoutError(f"{once}; it can split one dim only")
        number_from_right = {name: number for number, name in enumerate(reversed(self.alias_name))}
        numbers = [[number_from_right.get(name, -1) for name in entry] for entry in names]
        if self.tuple_order == "mesh":
            numbers = [sorted(entry, reverse=True) for entry in numbers]
        entries = [
            tuple(numbers_of_dim) if isinstance(entry, tuple | list) else numbers_of_dim[0]
            for numbers_of_dim, entry in zip(numbers, tensor_map)
        ]
        return MindSporeLayout(self.mesh, entries)

    devices = property(_devices, doc="The number of real devices, without the virtual axis.")

    def to_dict(self) -> dict[str, object]:
        """Raise LayoutError: a tensor map exists only after a call."""
        raise LayoutError("the tensor map is not set: call the layout with one entry per tensor dim first")

    def __repr__(self) -> str:
        return f"Layout({self.device_matrix}, {self.alias_name}, {self.rank_list})"


def from_tensor_map(
    device_matrix: Sequence[int], tensor_map: Sequence[int | Sequence[int]], rank_list: Sequence[int] | None = None,
    alias_name: Sequence[str] | None = None,
) -> MindSporeLayout:  # fmt: skip
    """Return the layout of a tensor map: per dim, the number of the axis that splits it, or -1.

    Axes are numbered from the right, from 0. In the example, dim 0 is split by axis 0, which is the last one. Dim 1 is
    split by axes 1 and 2, of which 1 is the major one. Rank 2 has the index 1 on axis 1, so it owns block 2 of the 4
    blocks of dim 1.

    Args:
        device_matrix: sizes of the axes.
        tensor_map: per dim a number, or several numbers (major first, -1 is ignored) that split it together.
        rank_list: the device at each position; None for ``0 .. n-1``.
        alias_name: names of the axes; None for ``"d<n>"`` with the number from the right.

    Raises:
        LayoutError: If a number is outside -1 .. axes-1, or repeated, or matrix, names and ranks do not fit each other.
        UsageTypeError: If an entry is no integer.

    >>> from_tensor_map((2, 2, 2), (0, (1, 2))).bounds((32, 784), 2)
    ((0, 16), (392, 588))
    """
    count = len(device_matrix)
    names = tuple(f"d{count - 1 - i}" for i in range(count)) if alias_name is None else tuple(alias_name)
    for number in flat(tensor_map):
        if not is_integer(number):
            raise UsageTypeError(f"a tensor map must have integers, got {number!r} in {tensor_map}")
        if not -1 <= number < count:
            raise LayoutError(
                f"tensor map {tensor_map} has {number}, but the {many(count, 'axis', 'axes')} of device matrix "
                f"{tuple(device_matrix)} {'is' if count == 1 else 'are'} numbered 0..{count - 1} from the right, and -1 is not split"
            )
    template = Layout(tuple(device_matrix), names, None if rank_list is None else list(rank_list))

    def name_axis(number: int) -> str:
        """Return the name of an axis by its number from the right; "None" for -1."""
        return "None" if number == -1 else names[-1 - number]

    return template(*[map_nested(entry, name_axis) for entry in tensor_map])


def from_placements(
    mesh_shape: Sequence[int], alias_name: Sequence[str], placements: Sequence[Placement], ndim: int
) -> CoreLayout:
    """Return the layout of hyper-parallel's placements, which say what each mesh axis does.

    For example, mesh (2, 4) with placements ``(Shard(0), Replicate())`` cuts dim 0 in 2 blocks along the first axis;
    the 4 ranks along the second axis own equal blocks. Two axes must not split one dim, because placements cannot state
    which axis is the major one; alias tuples can.

    Args:
        mesh_shape: sizes of the axes.
        alias_name: names of the axes.
        placements: one per axis: ``Shard(dim)``, where a negative dim counts from the end, Replicate or Partial.
        ndim: number of dims of the tensor.

    Raises:
        LayoutError: If two axes split one dim, a dim is out of range, the number of placements differs from the number
            of axes, or ``ndim`` is negative.
    """
    if ndim < 0:
        raise LayoutError(f"the number of tensor dims must be 0 or positive, got {ndim}")
    for axis, placement in zip(alias_name, placements):
        if isinstance(placement, Shard) and not -ndim <= placement.dim < ndim:
            dims_text = f"the tensor has {many(ndim, 'dim')}, -{ndim}..{ndim - 1}"
            raise LayoutError(f"{placement} on axis {axis!r} is out of bounds: {dims_text}")
    layout = CoreLayout.from_placements(Mesh(tuple(mesh_shape), tuple(alias_name)), placements, ndim)
    for dim, axes in enumerate(layout.dims):
        if len(axes) > 1:
            raise LayoutError(
                f"dim {dim} has been sharded by axis {axes[0]!r} already; write the axes as one tuple of aliases, {axes}, which "
                "also says which is the major one"
            )
    return layout


def from_cuts(cuts: Sequence[int], devices: int, repeat: str = "right") -> MindSporeLayout:
    """Return the layout of a tensor whose dims are cut into ``cuts`` blocks, as by ``.shard``.

    The device matrix has the cuts as sizes, and axes named ``"d<n>"``, numbered from the right. If there are fewer
    blocks than devices, a further axis has the devices that own equal blocks. In the examples there are 4 blocks for 8
    devices.

    Args:
        cuts: the number of blocks of each dim.
        devices: the number of devices.
        repeat: ``"right"`` makes the further axis the last one of the device matrix, so neighbours own equal blocks;
            ``"left"`` makes it the first one, so the devices repeat all blocks in order.

    Raises:
        UsageTypeError: If a cut is no integer.
        LayoutError: If a cut is not positive, their product does not divide the devices, or ``repeat`` is unknown.

    >>> [from_cuts((2, 1, 1, 2, 1), 8).shard_index(r) for r in range(8)]
    [0, 0, 1, 1, 2, 2, 3, 3]
    >>> [from_cuts((2, 1, 1, 2, 1), 8, repeat="left").shard_index(r) for r in range(8)]
    [0, 1, 2, 3, 0, 1, 2, 3]
    """
    if not all(map(is_integer, cuts)):
        raise UsageTypeError(f"cuts must be integers, but got {tuple(cuts)}")
    product = math.prod(cuts)
    refuse({
        f"repeat must be 'right' or 'left', got {repeat!r}": repeat not in ("right", "left"),
        f"cuts {tuple(cuts)} make {many(product, 'block')}; their number must be positive and divide the {many(devices, 'device')}":
            min(cuts, default=1) <= 0 or devices % product > 0,
    }, LayoutError)  # fmt: skip
    times = () if product == devices else (devices // product,)
    matrix = (*times, *cuts) if repeat == "left" else (*cuts, *times)
    shift = len(times) if repeat == "right" else 0
    return from_tensor_map(matrix, [shift + len(cuts) - 1 - i for i in range(len(cuts))])


def check_even(layout: CoreLayout, shape: Sequence[int], what: str = "the tensor") -> None:
    """Raise LayoutError if a layout splits a dim of a shape unevenly, as MindSpore does.

    The message has the first of these dims; ``what`` names the tensor in it.
    """
    uneven = first_uneven(layout, shape)
    if uneven:
        raise LayoutError(f"{what} of shape {tuple(shape)} cannot be split: {uneven}")


def is_integer(value: object) -> bool:
    """Return True for an integer that is no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


class NestedRankListError(LayoutError, UsageTypeError):
    """Error of a rank list in several dimensions: its elements are no integers, and its shape is wrong."""


def _check_kind(what: str, kind: type, *values: Any) -> None:
    """Raise UsageTypeError unless all values have type ``kind``; bools are no integers."""
    for value in values:
        if not isinstance(value, kind) or isinstance(value, bool):
            need = f"must be a {kind.__name__}" if kind in (tuple, list) else f"must be {kind.__name__}"
            raise UsageTypeError(f"{what} {need}, but got {value!r} ({type(value).__name__})")


def _check_axes(matrix: Any, names: Any) -> None:
    """Raise an error unless a device matrix and alias names describe the axes of a mesh.

    For example, ``(2, 4)`` and ``("dp", "mp")`` describe two axes.

    Args:
        matrix: the device matrix, a tuple of positive ints.
        names: the alias names, a tuple of different texts, one per axis. No name is empty or ``"None"``, and only the
            last name may be ``"interleaved_parallel"``, which names the virtual axis.

    Raises:
        UsageTypeError: If one is no tuple, or an element has another type; bools are no integers.
        LayoutError: If lengths, sizes or names are wrong.
    """
    _check_kind("device_matrix", tuple, matrix)
    _check_kind("alias_name", tuple, names)
    sizes = f"device_matrix {matrix} has {many(len(matrix), 'axis', 'axes')}, but alias_name {names} names {len(names)}"
    refuse({f"{sizes}; they must be equally long": len(matrix) != len(names)}, LayoutError)
    _check_kind("the elements of device_matrix", int, *matrix)
    _check_kind("the elements of alias_name", str, *names)
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    refuse({
        f"an alias must not be empty: {names}": "" in names,
        f"'None' cannot be an alias, because it means not split: {names}": "None" in names,
        f"every alias must be different, but {twice!r} is repeated in {names}": twice is not None,
        f"{VIRTUAL!r} names the virtual axis and must be the last alias: {names}": VIRTUAL in names[:-1],
        f"every element of device_matrix must be positive, but got {matrix}": min(matrix, default=1) <= 0,
    }, LayoutError)  # fmt: skip


def _check_ranks(rank_list: Any, device_matrix: tuple[int, ...]) -> None:
    """Raise an error unless a rank list is a flat list with one int per device.

    Repeated or negative ranks are not checked here.
    """
    _check_kind("rank_list", list, rank_list)
    if any(isinstance(rank, list | tuple) for rank in rank_list):
        raise NestedRankListError(f"rank_list must be one-dimensional and hold ints, but got {rank_list}")
    _check_kind("the elements of rank_list", int, *rank_list)
    if len(rank_list) != math.prod(device_matrix):
        need = f"device_matrix {device_matrix} needs {math.prod(device_matrix)}"
        raise LayoutError(f"rank_list has {many(len(rank_list), 'rank')}, but {need}")
