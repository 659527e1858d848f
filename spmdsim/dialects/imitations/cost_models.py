"""Cost models of published systems, to reproduce their answers: Alpa, DTensor, MindSpore and OneFlow.

Each one has the two methods of :class:`spmdsim.cost.CostModel`, with the arguments of :class:`spmdsim.cost.Machine`.
Results are in the unit of the system, which is seconds only if the class states it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from spmdsim.cost.closed_forms import message_bytes, received_per_message

Axes = tuple[str, ...]


class PublishedModel(ABC):
    """Base of the cost models. It checks arguments; computation is free unless a model overrides it."""

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
        """Return the cost of one collective in the system's own unit.

        Args:
            collective: name of the collective, or ``"slice"`` for a local slice.
            group_size: number of ranks in the group.
            nbytes: bytes that each rank receives.
            axes: mesh axes of the group; models with one rate for all axes ignore them.
            messages: ignored; a machine takes it.
            copied: bytes that a rank copies locally.

        Raises:
            InputError: If the name is no collective.
        """
        received_per_message(collective, group_size)  # raises an error for an unknown collective
        return self._cost(collective, group_size, nbytes, tuple(axes or ()), copied)

    @abstractmethod
    def _cost(self, collective: str, group_size: int, nbytes: float, axes: Axes, copied: float) -> float:
        """Return the cost of a collective in the system's own unit.

        The arguments are those of `seconds`; ``collective`` is a valid name, and ``axes`` is a tuple.
        """

    def compute_seconds(self, flops: float, nbytes: float = 0.0) -> float:
        """Return the cost of one local operator with ``flops`` operations and ``nbytes`` bytes of operands."""
        return 0.0


@dataclass(frozen=True)
class AlpaModel(PublishedModel):
    """Alpa's alpha-beta terms per mesh axis (``alpa/shard_parallel``), in its own unit.

    With b the bytes of the whole tensor in a group of n ranks, the costs are:

    * all_gather: ``a + B*b*(n-1)/n + 0.1``
    * all_reduce: ``a + 2*B*b*(n-1)/n + 0.01``
    * reduce_scatter: ``a + B*b*(n-1)/n + 0.001``
    * all_to_all: ``a + B*b*(n-1)/n**2*(n/2) + 0.001``
    * other collectives: ``a + B * received bytes``

    Attributes:
        axes: names of the mesh axes; axes not listed use the first term of alpha and beta.
        alpha: latency term a per mesh axis.
        beta: cost B per byte and mesh axis.

    >>> AlpaModel().seconds("all_reduce", 4, 1.5 * 1000)
    1501.01
    """

    axes: tuple[str, ...] = ()
    alpha: tuple[float, ...] = (1.0, 1.0)
    beta: tuple[float, ...] = (1.0, 0.1)
    name: str = "alpa"

    def _terms(self, axes: tuple[str, ...]) -> tuple[float, float]:
        """Return the largest alpha and beta of the axes, or the first pair if no axis is known."""
        used = [self.axes.index(axis) for axis in axes if axis in self.axes] or [0]
        return max(self.alpha[i] for i in used), max(self.beta[i] for i in used)

    def _cost(self, collective: str, group_size: int, nbytes: float, axes: Axes, copied: float) -> float:
        """Return Alpa's cost by the formulas of the class; 0 for one rank or a slice.

        Args:
            collective: a valid name.
            group_size: number of ranks.
            nbytes: bytes that a rank receives: the bytes b of the formulas, times their factors of n. For an all_gather
                they are ``b * (n-1) / n``.
            axes: mesh axes of the group; the largest alpha and the largest beta of them count.
            copied: not used; all cost models take it.
        """
        if group_size == 1 or collective == "slice":
            return 0.0
        alpha, beta = self._terms(axes)
        extra = {"all_gather": 0.1, "all_reduce": 0.01, "reduce_scatter": 0.001, "all_to_all": 0.001}
        # Alpa charges n/2 times the bytes that an all_to_all moves.
        factor = group_size / 2 if collective == "all_to_all" else 1.0
        return alpha + beta * nbytes * factor + extra.get(collective, 0.0)


@dataclass(frozen=True)
class DTensorModel(PublishedModel):
    """PyTorch DTensor's redistribution costs (``_collective_utils.py``), in microseconds.

    ``6.6 + hops * t + bytes * hops / n / bandwidth`` with n-1 hops (2(n-1) for all_reduce). Inside a host, t is 0.6
    and the bandwidth 87.7; between hosts, 2.7 and 19.294 (in 2**30 bytes per second). An all_to_all costs an
    all_gather plus 1.0.

    Attributes:
        intra_axes: mesh axes that stay inside a host; all others are priced between hosts.

    >>> round(DTensorModel().seconds("all_gather", 2, 2**20), 3)
    59.915
    """

    intra_axes: tuple[str, ...] = ()
    name: str = "dtensor"

    def _cost(self, collective: str, group_size: int, nbytes: float, axes: Axes, copied: float) -> float:
        """Return DTensor's cost in microseconds by the formula of the class; 0 for one rank or a slice.

        Args:
            collective: a valid name.
            group_size: number of ranks.
            nbytes: bytes that a rank receives.
            axes: mesh axes of the group. Without axes, or if one is not in ``intra_axes``, the group is between hosts.
            copied: not used; all cost models take it.
        """
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

    The objective is ``alpha * computation + beta * communication``. Forward communication counts in bytes:
    ``0.5 * slice * n`` for an all_gather over n ranks, ``2 * slice`` for an all_to_all, the vector for an all_reduce,
    and half of the vector for a reduce_scatter.

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
        """Return the refined cost for short messages: ``const`` up to the threshold, a bias added above it.

        Costs <= 0 stay unchanged.

        >>> [MindSporeModel().refine(x) for x in (0, 1, 2048, 2049, 10000)]
        [0, 3072.0, 3072.0, 3073.0, 11024.0]
        """
        if communication <= 0:
            return communication
        return self.const if communication <= self.threshold else communication + self.bias

    def forward_bytes(self, collective: str, group_size: int, nbytes: float) -> float:
        """Return the bytes that MindSpore counts for a collective of the forward pass, unweighted.

        The message is the gathered result, or the whole data of a rank that is reduced or exchanged. The bytes are:

        * all_gather, reduce_scatter: half of the message;
        * all_to_all: twice the message;
        * all others: the message;
        * one rank: 0.

        Args:
            collective: name of the collective.
            group_size: number of ranks.
            nbytes: bytes that a rank receives.

        A rank receives three quarters of this message of 400 bytes:

        >>> MindSporeModel().forward_bytes("all_gather", 4, 300)
        200.0
        """
        message = message_bytes(collective, group_size, nbytes) if group_size > 1 else 0.0
        if collective in ("all_gather", "reduce_scatter"):
            return 0.5 * message
        if collective == "all_to_all":
            return 2.0 * message
        return message

    def _cost(self, collective: str, group_size: int, nbytes: float, axes: Axes, copied: float) -> float:
        moved = self.forward_bytes(collective, group_size, nbytes)
        return self.beta * (self.refine(moved) if self.practical else moved) + self.alpha * copied

    def compute_seconds(self, flops: float, nbytes: float = 0.0) -> float:
        """Return the weighted computation: MindSpore counts the bytes of the operands' slices, not flops."""
        return self.alpha * nbytes


@dataclass(frozen=True)
class OneFlowModel(PublishedModel):
    """OneFlow's copy cost (``sbp_infer_util.cpp``): bytes received, summed over all ranks of the group.

    A local slice of a replicated tensor costs 1.0, so that an unchanged layout wins ties.

    Attributes:
        cost_ratio: weight of computation.
        wait_time: OneFlow's constant for waiting; no method of this class uses it.

    >>> OneFlowModel().seconds("all_reduce", 4, 1.5 * 1000)
    6000.0
    """

    cost_ratio: float = 0.05
    wait_time: float = 1.65e4
    name: str = "oneflow"

    def _cost(self, collective: str, group_size: int, nbytes: float, axes: Axes, copied: float) -> float:
        return 1.0 if collective == "slice" else nbytes * group_size

    def compute_seconds(self, flops: float, nbytes: float = 0.0) -> float:
        """Return the computation, in flops times ``cost_ratio``."""
        return self.cost_ratio * flops
