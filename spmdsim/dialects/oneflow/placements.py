"""OneFlow's ``placement``: a device type and an n-D array of ranks whose shape is the mesh.

Semantics: ``oneflow/api/python/symbol/placement_symbol.cpp``, ``oneflow/core/job/parallel_desc.cpp``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from spmdsim.core import Mesh
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.layout.written import flatten, nest

DEVICE_TYPES = ("cpu", "cuda")


@dataclass(frozen=True, init=False)
class placement:
    """``placement("cpu", ranks=[[0, 1], [2, 3]])``: ranks 0 to 3 as a mesh of 2 x 2.

    **The order in which ranks are written is kept.** OneFlow itself sorts them (``[0, 2, 1, 3]`` acts there as
    ``[0, 1, 2, 3]``): ``sort_ranks=True`` does the same.

    Args:
        type: ``"cpu"`` or ``"cuda"``.
        ranks: integers in any number of dimensions (lists, tuples, a range or an array); the shape is the mesh.
        sort_ranks: sort the ranks, as OneFlow does.
        world_size: when given, ranks must be below it.
        devices_per_node: when given, every node that is named must be named equally often.

    Raises:
        RuntimeError: another device type, a rank twice or out of range, uneven nodes, ragged ranks.
        TypeError: ranks that are not integers.

    >>> placement("cpu", ranks=[[0, 1], [2, 3]])
    oneflow.placement(type="cpu", ranks=[[0, 1], [2, 3]])
    >>> placement("cpu", [0, 2, 1, 3]).mesh.rank_list, placement("cpu", [0, 2, 1, 3], sort_ranks=True).mesh.rank_list
    ((0, 2, 1, 3), (0, 1, 2, 3))
    """

    type: str
    shape: tuple[int, ...]
    order: tuple[int, ...]

    def __init__(
        self,
        type: str,
        ranks: Any,
        *,
        sort_ranks: bool = False,
        world_size: int | None = None,
        devices_per_node: int | None = None,
    ) -> None:
        if type not in DEVICE_TYPES:
            raise OneFlowError(
                f"Expected one of {', '.join(DEVICE_TYPES)} device type at start of device string: {type}"
            )
        if isinstance(ranks, dict):
            raise OneFlowError(
                f"placement ranks are nested lists, not nodes with devices such as {ranks}; nearest: [0, 1]"
            )
        shape, order = flatten(ranks, "placement ranks", OneFlowError)
        _check(order, world_size, devices_per_node)
        object.__setattr__(self, "type", type)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "order", tuple(sorted(order)) if sort_ranks else order)

    @classmethod
    def all(cls, type: str, world_size: int | None = None) -> placement:
        """All ranks of the world as one axis; ``world_size`` is the running world's when left out."""
        if world_size is None:
            from spmdsim.dialects.session import current_world

            world_size = current_world().size
        return cls(type, range(world_size))

    @property
    def ranks(self) -> list[Any]:
        """The ranks as nested lists."""
        return nest(self.order, self.shape)

    device_type = property(lambda self: self.type, doc="OneFlow's older name of ``type``.")
    hierarchy = property(lambda self: self.shape, doc="OneFlow's older name of the shape.")
    ndim = property(lambda self: len(self.shape), doc="The number of mesh axes.")

    @property
    def mesh(self) -> Mesh:
        """The mesh, with axes ``d0``, ``d1``, ..."""
        return Mesh(self.shape, [f"d{i}" for i in range(len(self.shape))], self.order)

    def __repr__(self) -> str:
        return f'oneflow.placement(type="{self.type}", ranks={self.ranks})'


def _check(order: tuple[int, ...], world_size: int | None, devices_per_node: int | None) -> None:
    if len(set(order)) < len(order):
        repeated = next(rank for i, rank in enumerate(order) if rank in order[:i])
        raise OneFlowError(
            f"the ranks of a placement must differ, but {repeated} is repeated in {list(order)}"
        )
    if min(order) < 0:
        raise OneFlowError(f"the ranks of a placement must not be negative, but got {list(order)}")
    if world_size is not None and max(order) >= world_size:
        raise OneFlowError(
            f"Placement is invalid because rank must be less than world size! rank {max(order)} of {list(order)}, "
            f"world size {world_size}"
        )
    nodes = Counter(rank // devices_per_node for rank in order) if devices_per_node else {}
    if len(set(nodes.values())) > 1:
        raise OneFlowError(
            f"every node of a placement must contribute the same number of devices, but nodes of "
            f"{devices_per_node} contribute {dict(nodes)} (node: devices)"
        )
