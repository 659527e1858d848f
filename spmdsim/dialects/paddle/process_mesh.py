"""Paddle's ``ProcessMesh``, placements and ``dims_mapping``.

Semantics: ``paddle.distributed.ProcessMesh`` and
``paddle/phi/core/distributed/auto_parallel`` (``dist_attr``, ``reshard/reshard_utils.cc``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.core import Layout, Mesh, Placement
from spmdsim.dialects.layouts import first_uneven
from spmdsim.dialects.missing import DialectObject, refuse
from spmdsim.dialects.torch import Replicate, Shard  # noqa: F401 (in examples)
from spmdsim.errors import LayoutError
from spmdsim.layout.written import flatten_integers


class ReduceType:
    """Paddle's names of pending reductions: ``Partial(ReduceType.kRedMax)``."""

    kRedSum, kRedMax, kRedMin, kRedProd = "sum", "max", "min", "prod"
    kRedAvg, kRedAny, kRedAll = "avg", "any", "all"


class ProcessMesh(DialectObject):
    """Process ids in an n-D array with named dims, by default ``d0``, ``d1``, ...; ids keep their order.

    Args:
        mesh: nested lists or an array of ids.
        dim_names: one name per dim.
        shape: sizes of the dims, if ``mesh`` is None.
        process_ids: ids in row-major order, if ``mesh`` is None.

    Raises:
        LayoutError: (a ValueError) If ids are repeated or negative, lists are ragged, or the number of names is
            wrong.
        UsageTypeError: If ids are no integers.

    >>> mesh = ProcessMesh([[2, 4, 5], [0, 1, 3]])
    >>> mesh.shape, mesh.dim_names, mesh.process_ids
    ([2, 3], ['d0', 'd1'], [2, 4, 5, 0, 1, 3])
    """

    ORIGINAL = "paddle.distributed.ProcessMesh"

    def __init__(
        self, mesh: Any = None, dim_names: Sequence[str] | None = None, shape: Sequence[int] | None = None,
        process_ids: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        sizes, ids = (shape, process_ids) if mesh is None else flatten_integers(mesh, "the mesh")
        if sizes is None or ids is None:
            raise LayoutError(
                "ProcessMesh: mesh must be given, or shape together with process_ids; nearest: ProcessMesh([[0, 1], "
                "[2, 3]])"
            )
        names = [f"d{i}" for i in range(len(sizes))] if dim_names is None else list(dim_names)
        refuse({
            f"a mesh of shape {list(sizes)} needs {len(sizes)} dim_names, but got {names}": len(names) != len(sizes),
            f"All elements of the mesh must be unique, but got {list(ids)}": len({*ids}) != len(ids),
        }, LayoutError)  # fmt: skip
        self._mesh = Mesh(sizes, names, ids)

    shape = property(lambda self: list(self._mesh.shape), doc="Size of each dim.")
    ndim = property(lambda self: len(self._mesh.shape), doc="Number of dims.")
    dim_names = property(lambda self: list(self._mesh.axes), doc="Name of each dim.")
    process_ids = property(lambda self: list(self._mesh.rank_list), doc="The ids in row-major order.")
    mesh = property(lambda self: np.array(self.process_ids).reshape(self.shape), doc="The ids as an array.")

    def get_dim_size(self, dim_name: str) -> int:
        """Return the size of a named dim."""
        return self._mesh.axis_size(dim_name)

    def get_rank_by_dim_and_process_id(self, dim_name: str, process_id: int) -> int:
        """Return the coordinate of a process along a named dim; -1 for a process outside of the mesh."""
        axis = self._mesh.axis_index(dim_name)
        return self._mesh.coords(process_id)[axis] if process_id in self._mesh else -1

    def to_mesh(self) -> Mesh:
        """Return the mesh as a :class:`spmdsim.Mesh`."""
        return self._mesh

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessMesh) and self._mesh == other._mesh

    def __hash__(self) -> int:
        return hash(self._mesh)

    def __repr__(self) -> str:
        return f"ProcessMesh(shape={self.shape}, process_ids={self.process_ids}, dim_names={self.dim_names})"


def layout(mesh: ProcessMesh, placements: Sequence[Placement], ndim: int) -> Layout:
    """Return the layout of a tensor with ``ndim`` dims and one placement per mesh dim.

    >>> mesh = ProcessMesh([[2, 4, 5], [0, 1, 3]])
    >>> layout(mesh, [Shard(0), Replicate()], ndim=2).local_shape((6, 4), rank=0)
    (3, 4)
    """
    return Layout.from_placements(mesh.to_mesh(), placements, ndim)


def dims_mapping(layout: Layout) -> list[int | list[int]]:
    """Return per tensor dim the mesh dim that splits it, or -1; several mesh dims are a list.

    >>> dims_mapping(layout(ProcessMesh([[0, 1], [2, 3]]), [Replicate(), Shard(0)], ndim=2))
    [1, -1]
    """
    numbers = [[layout.mesh.axes.index(axis) for axis in entry] for entry in layout.dims]
    return [entry if len(entry) > 1 else entry[0] if entry else -1 for entry in numbers]


def from_dims_mapping(
    mesh: ProcessMesh, mapping: Sequence[int | Sequence[int]], partial_on: Sequence[int] = (), op: str = "sum"
) -> Layout:
    """Return the layout of a dims_mapping.

    Args:
        mesh: the mesh.
        mapping: per tensor dim a mesh dim, several of them (major first), or -1.
        partial_on: mesh dims with a pending reduction.
        op: the reduction, such as ``"sum"`` or ``"max"``.

    Raises:
        LayoutError: (a ValueError) If a mesh dim does not exist or is used twice.

    >>> from_dims_mapping(ProcessMesh([[0, 1], [2, 3]]), [1, -1], partial_on=[0]).placement_text()
    'P(sum)S(0)'
    """
    axes = mesh.to_mesh().axes
    listed = ([entry] if isinstance(entry, int) else entry for entry in mapping)
    entries = [[number for number in entry if number != -1] for entry in listed]
    refuse({
        f"dims_mapping {list(mapping)} has {number}, but the mesh dims are 0..{len(axes) - 1} (-1: not split)": number not in range(len(axes))
        for entry in (*entries, partial_on) for number in entry
    }, LayoutError)  # fmt: skip
    dims = [tuple(axes[number] for number in entry) for entry in entries]
    return Layout(mesh.to_mesh(), dims, {axes[number]: op for number in partial_on})


def ceil_split(total: int, parts: int) -> list[int]:
    """Return the uneven sizes that Paddle cuts: rounded up, but for the last, which gets the remainder.

    The remainder may be 0 or even negative. This package cuts balanced blocks instead, and the dialect refuses uneven
    sizes (:func:`check_even`).

    >>> ceil_split(10, 4), ceil_split(5, 4)
    ([3, 3, 3, 1], [2, 2, 2, -1])
    """
    size = -(-total // parts)
    return [size] * (parts - 1) + [total - size * (parts - 1)]


def check_even(layout: Layout, shape: Sequence[int], what: str = "the tensor") -> None:
    """Raise LayoutError if the layout splits a dim of a shape unevenly.

    The message has the sizes that Paddle would cut; ``what`` names the tensor in it.
    """
    if uneven := first_uneven(layout, shape):
        text, cut = f"{what} of shape {tuple(shape)} cannot be split", ceil_split(uneven.size, uneven.parts)
        raise LayoutError(f"{text}: {uneven} (Paddle would cut {cut})")
