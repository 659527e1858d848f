"""Operators without a rule of their own: sources of data, and everything that is split along the batch only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spmdsim.core import Layout, Mesh
from spmdsim.core.bound import common_mesh
from spmdsim.dialects.mindspore.layout import check_devices, check_even
from spmdsim.dialects.mindspore.table import ShardError
from spmdsim.imitations.mindspore.sharding.cuts_refused import check_cuts
from spmdsim.imitations.mindspore.sharding.sharded import Sharded, sourced

Shape = tuple[int, ...]
#: How many devices, or which, in their order; None for as many as the cuts make.
Devices = int | Sequence[int] | None


def batch_parallel(
    name: str,
    shapes: Sequence[Shape],
    given: Sequence[Any] | None,
    devices: Devices,
    attrs: Mapping[str, Any],
) -> Sharded:
    """Dim 0 of every operand and result over all devices, on a device matrix of one axis.

    Semantics: ``ops_info/batch_parallel_info.cc``.

    Raises:
        RuntimeError: another strategy, or a dim 0 that does not divide.
    """
    if given and isinstance(given[0], Layout):
        check_devices(given, devices)
        given, devices = [layout.parts for layout in given], given[0].mesh.rank_list
    ranks = device_ranks(devices, math.prod(given[0]) if given else 1)
    wanted = [tuple(len(ranks) if d == 0 else 1 for d in range(len(shape))) for shape in shapes]
    if given is not None and [tuple(entry) for entry in given] != wanted:
        raise ShardError(f"the operator splits dim 0 over all {len(ranks)} devices, but got {tuple(given)}")
    check_cuts(wanted, shapes, len(ranks))
    mesh = Mesh((len(ranks),), ("batch",), ranks)
    results = [tuple(shape) for shape in attrs.get("output_shapes", _result_shapes(name, shapes))]

    def first(shape: Shape) -> Layout:
        return Layout(mesh, ["batch" if d == 0 else None for d in range(len(shape))])

    return sourced(name, mesh, shapes, list(map(first, shapes)), results, list(map(first, results)))


def _result_shapes(name: str, shapes: Sequence[Shape]) -> list[Shape]:
    if name == "Flatten" and shapes[0]:
        return [(shapes[0][0], math.prod(shapes[0][1:]))]
    return [shapes[0]]


def data_source(
    name: str,
    shapes: Sequence[Shape],
    given: Sequence[Any] | None,
    devices: Devices,
    repeat: str,
) -> Sharded:
    """Tensors that come from a data set: each dim split as its strategy says, nothing else.

    The device matrix is the longest strategy; repeated calculation is on the left unless asked otherwise.
    Semantics: ``ops_info/virtual_dataset_info.cc``, ``get_next_info.cc``.

    Raises:
        RuntimeError: strategies that split the same dim differently, or that do not divide.
    """
    if given and isinstance(given[0], Layout):
        check_devices(given, devices)
        for i, (whole, shape) in enumerate(zip(given, shapes)):
            check_even(whole, shape, f"tensor {i}")
        return _source(name, shapes, tuple(given), 1, repeat)
    if given is not None and not any(given):
        given = None
    cuts = [tuple(entry) for entry in given] if given is not None else None
    ranks = device_ranks(devices, math.prod(_longest(cuts)) if cuts else 1)
    if cuts is None:
        cuts = [tuple(len(ranks) if d == 0 else 1 for d in range(len(shape))) for shape in shapes]
    check_cuts(cuts, shapes, len(ranks))
    matrix = _longest(cuts)
    for i, entry in enumerate(cuts):
        wrong = [d for d, cut in enumerate(entry) if cut not in (1, matrix[d])]
        if wrong:
            raise ShardError(
                f"tensor {i} is cut into {entry}, but dim {wrong[0]} of the others into {matrix}"
            )
    if len(ranks) % math.prod(matrix):
        raise ShardError(
            f"{matrix} makes {math.prod(matrix)} pieces, which do not divide {len(ranks)} devices"
        )
    mesh = device_mesh(matrix, ranks, repeat)

    def layout(entry: tuple[int, ...]) -> Layout:
        return Layout(mesh, [f"dim{d}" if cut == matrix[d] else None for d, cut in enumerate(entry)])

    return _source(name, shapes, tuple(map(layout, cuts)), len(ranks) // math.prod(matrix), repeat)


def _source(
    name: str, shapes: Sequence[Shape], layouts: tuple[Layout, ...], repeated: int, side: str
) -> Sharded:
    if len(layouts) != len(shapes):
        raise ShardError(f"{len(layouts)} layouts were given for {len(shapes)} tensors")
    read = name != "GetNext"
    return sourced(
        name, common_mesh(layouts), shapes if read else (), layouts if read else (), shapes, layouts,
        repeated_calc=repeated, repeated_side=side, by_cuts=False,
    )  # fmt: skip


def _longest(cuts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return sorted(cuts, key=lambda entry: (len(entry), math.prod(entry)))[-1]


def device_mesh(matrix: tuple[int, ...], ranks: tuple[int, ...], repeat: str) -> Mesh:
    """The mesh of a device matrix, with an axis of repeated calculation if there are more ranks."""
    times = len(ranks) // math.prod(matrix)
    sizes, names = list(matrix), [f"dim{d}" for d in range(len(matrix))]
    if times > 1:
        at = 0 if repeat == "left" else len(sizes)
        sizes.insert(at, times)
        names.insert(at, "repeat")
    return Mesh(sizes, names, ranks)


def device_ranks(devices: Devices, otherwise: int) -> tuple[int, ...]:
    """The ranks meant by a number of devices or a list of them."""
    if devices is None:
        return tuple(range(otherwise))
    return tuple(range(devices)) if isinstance(devices, int) else tuple(devices)
