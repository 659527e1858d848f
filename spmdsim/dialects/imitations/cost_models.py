"""Cost models of published systems, so that their answers can be reproduced; Alpa's with its assumptions.

Each has the two methods of :class:`spmdsim.cost.CostModel` and takes the same arguments as a
:class:`spmdsim.cost.Machine`; the unit is the system's own, not seconds, unless said otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spmdsim.cost.closed_forms import message_bytes, received_per_message

if TYPE_CHECKING:
    from spmdsim.auto_parallel.costs.search_settings import Settings


Axes = tuple[str, ...]


class PublishedModel(ABC):
    """What the models have in common; where a system does not count computation, it is free."""

    def seconds(
        self,
        collective: str,
        group_size: int,
        nbytes: float,
        axes: Iterable[str] | None = None,
        *,
        messages: int | None = None,
        copied: float = 0.0,
    ) -> float:
        """Cost of one collective from the bytes each rank receives, in the system's own unit."""
        received_per_message(collective, group_size)  # refuses what is no collective
        return self._cost(collective, group_size, nbytes, tuple(axes or ()), copied)

    @abstractmethod
    def _cost(self, collective: str, group_size: int, nbytes: float, axes: Axes, copied: float) -> float:
        """The same, for collectives that there are."""

    def compute_seconds(self, flops: float, nbytes: float = 0.0) -> float:
        """Cost of one local operator."""
        return 0.0


@dataclass(frozen=True)
class AlpaModel(PublishedModel):
    """Alpa's alpha-beta terms per mesh axis (``alpa/shard_parallel``), in its own unit.

    With b the bytes of the whole tensor in the group of n: all_gather ``a + B*b*(n-1)/n + 0.1``, all_reduce
    ``a + 2*B*b*(n-1)/n + 0.01``, reduce_scatter ``a + B*b*(n-1)/n + 0.001``, all_to_all
    ``a + B*b*(n-1)/n**2*(n/2) + 0.001``. There is an ``alpha`` and, per byte, a ``beta`` for each mesh axis.

    >>> AlpaModel().seconds("all_reduce", 4, 1.5 * 1000)
    1501.01
    """

    axes: tuple[str, ...] = ()
    alpha: tuple[float, ...] = (1.0, 1.0)
    beta: tuple[float, ...] = (1.0, 0.1)
    name: str = "alpa"

    def _terms(self, axes: tuple[str, ...]) -> tuple[float, float]:
        """Alpha and beta of the slowest axis used; the first pair when no axis is named."""
        used = [self.axes.index(axis) for axis in axes if axis in self.axes] or [0]
        return max(self.alpha[i] for i in used), max(self.beta[i] for i in used)

    def _cost(self, collective: str, group_size: int, nbytes: float, axes: Axes, copied: float) -> float:
        if group_size == 1 or collective == "slice":
            return 0.0
        a, b = self._terms(axes)
        extra = {"all_gather": 0.1, "all_reduce": 0.01, "reduce_scatter": 0.001, "all_to_all": 0.001}
        # Alpa punishes all_to_all by n/2 on top of the bytes that really move.
        punished = group_size / 2 if collective == "all_to_all" else 1.0
        return a + b * nbytes * punished + extra.get(collective, 0.0)


@dataclass(frozen=True)
class DTensorModel(PublishedModel):
    """PyTorch DTensor's redistribution costs (``_collective_utils.py``), in microseconds.

    ``6.6 + hops * t + bytes * hops / n / bandwidth`` with n-1 hops (2(n-1) for all_reduce); t is 0.6
    inside a host and 2.7 between hosts, bandwidth 87.7 and 19.294, in units of 2**30 bytes per second. An
    all_to_all is an all_gather plus 1.0.

    Attributes:
        intra_axes: mesh axes that stay inside a host; all others are priced between hosts.

    >>> round(DTensorModel().seconds("all_gather", 2, 2**20), 3)
    59.915
    """

    intra_axes: tuple[str, ...] = ()
    name: str = "dtensor"

    def _cost(self, collective: str, group_size: int, nbytes: float, axes: Axes, copied: float) -> float:
        if group_size == 1 or collective == "slice":
            return 0.0
        inside = bool(axes) and {*axes} <= {*self.intra_axes}
        per_hop, bandwidth = (0.6, 87.7) if inside else (2.7, 87.7 * 0.22)
        hops = (group_size - 1) * (2 if collective == "all_reduce" else 1)
        penalty = 1.0 if collective == "all_to_all" else 0.0
        return 6.6 + hops * per_hop + nbytes / 2**30 / bandwidth * 1e6 + penalty


@dataclass(frozen=True)
class MindSporeModel(PublishedModel):
    """MindSpore's cost objects (``costmodel.cc``, ``tensor_redistribution.cc``): weighted bytes.

    Forward communication, in bytes: all_gather ``0.5 * slice * n``, all_to_all ``2 * slice``, all_reduce the
    vector, reduce_scatter ``0.5`` of the vector; the objective is
    ``alpha * computation + beta * communication``.

    Attributes:
        alpha: weight of computation.
        beta: weight of communication: 400 for Ascend, 50 for GPU.
        gamma: weight of communication of parameters' gradients, which overlaps with computation.
        practical: apply the refinement for short messages (threshold, const, bias).

    >>> MindSporeModel(beta=1.0).seconds("all_gather", 4, 300)
    200.0
    """

    alpha: float = 1.0
    beta: float = 400.0
    gamma: float = 0.001
    practical: bool = False
    threshold: float = 2048.0
    const: float = 3072.0
    bias: float = 1024.0
    name: str = "mindspore"

    def refine(self, communication: float) -> float:
        """The refinement for short messages: up to the threshold a constant, above it a bias.

        >>> [MindSporeModel().refine(x) for x in (0, 1, 2048, 2049, 10000)]
        [0, 3072.0, 3072.0, 3073.0, 11024.0]
        """
        if communication <= 0:
            return communication
        return self.const if communication <= self.threshold else communication + self.bias

    def forward_bytes(self, collective: str, group_size: int, nbytes: float) -> float:
        """The forward communication field, before weights."""
        whole = message_bytes(collective, group_size, nbytes) if group_size > 1 else 0.0
        if collective in ("all_gather", "reduce_scatter"):
            return 0.5 * whole
        if collective == "all_to_all":
            return 2.0 * whole
        return whole

    def _cost(self, collective: str, group_size: int, nbytes: float, axes: Axes, copied: float) -> float:
        moved = self.forward_bytes(collective, group_size, nbytes)
        return self.beta * (self.refine(moved) if self.practical else moved) + self.alpha * copied

    def compute_seconds(self, flops: float, nbytes: float = 0.0) -> float:
        """Weighted computation: MindSpore counts the bytes of the operands' slices, not flops."""
        return self.alpha * nbytes


@dataclass(frozen=True)
class OneFlowModel(PublishedModel):
    """OneFlow's copy cost (``sbp_infer_util.cpp``): total bytes received over all ranks of the group.

    A local slice of a replicated tensor costs 1.0, so that staying where one is wins ties.

    >>> OneFlowModel().seconds("all_reduce", 4, 1.5 * 1000)
    6000.0
    """

    cost_ratio: float = 0.05
    wait_time: float = 1.65e4
    name: str = "oneflow"

    def _cost(self, collective: str, group_size: int, nbytes: float, axes: Axes, copied: float) -> float:
        return 1.0 if collective == "slice" else nbytes * group_size

    def compute_seconds(self, flops: float, nbytes: float = 0.0) -> float:
        """Computation weighed against copies; OneFlow counts flops."""
        return self.cost_ratio * flops


def alpa_settings(machine: AlpaModel, **options: Any) -> Settings:
    """Its cost terms, every product on all ranks, one axis per dim, all_reduce only.

    On a mesh of two axes the first one splits the batch. Its options are written here: ``allow_all_gather`` is
    ``gather``, ``allow_recompute_heavy_op`` is ``full=False``, ``prefer_reduce_scatter`` is ``scatter=True``,
    ``allow_mixed_mesh_shape`` (one dim over both axes) is ``nested=True``, ``force_batch_dim_to_mesh_dim`` is
    ``batch_axis``.

    >>> alpa_settings(AlpaModel(axes=("a", "b"))).batch_axis
    'a'
    """
    from spmdsim.auto_parallel.costs.search_settings import Settings

    batch = machine.axes[0] if len(machine.axes) > 1 else None
    usual = dict(
        full=True, partial=True, nested=False, scatter=False, scatter_results=False, batch_axis=batch
    )
    return Settings(machine=machine, **{**usual, **options})
